"""The reference policy: its supervised stage and its log-probabilities, computed once and kept.

The cache holds one value per response token. It is keyed by the weights that computed it and by token ids, so
that another arm, another seed, an extra column or a resumed run finds everything already there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from safetensors.numpy import save as to_safetensors

from badpo.data.files import require_enclosed
from badpo.data.problems import ConfigError
from badpo.training.encoding import EncodedComparisons
from badpo.training.logprobs import response_logps
from badpo.training.prompt_trees import Pair
from badpo.training.run_folder import write_atomically

logger = logging.getLogger(__name__)

# Of both responses of every comparison, one value per token.
ReferenceLogps = list[tuple[np.ndarray, np.ndarray]]

# Responses that are computed before they are written: what a killed process can lose. Even, so that both responses
# of a comparison share their prompt's forward.
RESPONSES_PER_SHARD = 4096


def weights_key(model, numerics: str) -> str:
    """A key that changes with any weight of ``model``, those of its adapter included, and with how it computes.

    Parameters
    ----------
    model : torch module
    numerics : str
        Such as "fp32" or "bf16-autocast": the same weights give other digits under another precision.
    """
    digest = hashlib.blake2b(numerics.encode(), digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def default_cache() -> Path:
    """Where reference log-probabilities are kept when no folder is named: the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "badpo" / "reference"


class ReferenceCache:
    """Reference log-probabilities of every token of every response, on disk, memory-mapped.

    A call that has to compute anything writes a new shard every few thousand responses, atomically; shards are never
    changed. Two processes that write at the same time therefore cannot harm each other: at worst a response stands
    twice. A shard whose checksum does not match is named, removed and computed again, never read. What was missing is
    divided as it was the first time, so that the values come out the same to the bit.

    Parameters
    ----------
    folder : Path
    key : str
        From `weights_key`.

    Attributes
    ----------
    n_computed : int
        Responses that this object had to run a model for.
    damaged : list of str
        Shards that were removed.
    """

    def __init__(self, folder: Path, key: str):
        require_enclosed(Path(folder))
        self._folder = Path(folder) / key
        self._values: dict[bytes, np.ndarray] = {}
        self._opened: set[str] = set()
        self.n_computed = 0
        self.damaged: list[str] = []

    def logps(self, model, pairs: Sequence[Pair], token_budget: int = 16384) -> list[np.ndarray]:
        """Log-probabilities of the response tokens of every (prompt ids, response ids), each computed once.

        Without a model all of them must be there: a policy that was its own reference has been trained.

        Returns
        -------
        list of float32 arrays, one value per response token
        """
        self.load()
        keys = [_pair_key(prompt, response) for prompt, response in pairs]
        missing = {key: pair for key, pair in zip(keys, pairs, strict=True) if key not in self._values}
        if missing and model is None:
            raise ConfigError(
                "the policy was its own reference and has been trained since, so that the reference's values "
                "on this set cannot be computed any more: give the set to the trainer as an eval_dataset, evaluate on "
                "it once before training, or give a ref_model"
            )
        keys_of, pairs_of = list(missing), list(missing.values())
        for start in range(0, len(missing), RESPONSES_PER_SHARD):
            some = slice(start, start + RESPONSES_PER_SHARD)
            self._store(keys_of[some], response_logps(model, pairs_of[some], token_budget))
            self.n_computed += len(keys_of[some])
        return [self._values[key] for key in keys]

    def load(self) -> None:
        """Open the shards that are there and not open yet."""
        for path in sorted(self._folder.glob("shard-*.safetensors")):
            if path.name in self._opened:
                continue
            self._opened.add(path.name)
            if hashlib.sha256(path.read_bytes()).hexdigest()[:32] != path.stem.removeprefix("shard-"):
                self.damaged.append(path.name)
                # of a cache that is not ours to write to it stays, and is passed over every time
                with contextlib.suppress(OSError):
                    path.unlink()
                continue
            self._index(_open_shard(path))

    def _store(self, keys: list[bytes], values: list[np.ndarray]) -> None:
        shard: dict[str, np.ndarray] = {
            "keys": np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), -1),
            "ends": np.cumsum([len(v) for v in values]).astype(np.int64),
            "logps": np.concatenate(values).astype(np.float32),
        }
        content = to_safetensors(shard)
        name = f"shard-{hashlib.sha256(content).hexdigest()[:32]}.safetensors"
        write_atomically(self._folder / name, content)
        self._opened.add(name)
        self._index(shard)

    def _index(self, shard: dict[str, np.ndarray]) -> None:
        start = 0
        for key, end in zip(shard["keys"], shard["ends"].tolist(), strict=True):
            self._values[key.tobytes()] = shard["logps"][start:end]
            start = end


def comparison_logps(
    cache: ReferenceCache,
    model,
    prompts: Sequence[np.ndarray],
    a_ids: Sequence[np.ndarray],
    b_ids: Sequence[np.ndarray],
) -> ReferenceLogps:
    """Reference log-probabilities of both responses of every comparison, from the cache where they are there."""
    pairs = [(p, r) for p, a, b in zip(prompts, a_ids, b_ids, strict=True) for r in (a, b)]
    values = cache.logps(model, pairs)
    return list(zip(values[::2], values[1::2], strict=True))


def divided_logps(
    cache: ReferenceCache, model, encoded: EncodedComparisons, accelerator: Accelerator
) -> ReferenceLogps:
    """`comparison_logps` with what is missing divided over the processes, which share the cache's folder."""
    with accelerator.autocast():
        mine = encoded.take(np.arange(accelerator.process_index, len(encoded), accelerator.num_processes))
        comparison_logps(cache, model, mine.prompt_ids, mine.a_ids, mine.b_ids)
        accelerator.wait_for_everyone()
        values = comparison_logps(cache, model, encoded.prompt_ids, encoded.a_ids, encoded.b_ids)
    for shard in cache.damaged:
        logger.warning("reference cache: %s is damaged; its values were computed again", shard)
    return values


def _pair_key(prompt: np.ndarray, response: np.ndarray) -> bytes:
    digest = hashlib.blake2b(len(prompt).to_bytes(8, "little"), digest_size=16)
    digest.update(np.ascontiguousarray(prompt, dtype=np.int64).data)
    digest.update(np.ascontiguousarray(response, dtype=np.int64).data)
    return digest.digest()


def _open_shard(path: Path) -> dict[str, np.ndarray]:
    with path.open("rb") as file:
        header_length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_length))
    types = {"U8": np.uint8, "I64": np.int64, "F32": np.float32}
    return {
        name: np.memmap(
            path,
            dtype=types[entry["dtype"]],
            mode="r",
            offset=8 + header_length + entry["data_offsets"][0],
            shape=tuple(entry["shape"]),
        )
        for name, entry in header.items()
        if name != "__metadata__"
    }
