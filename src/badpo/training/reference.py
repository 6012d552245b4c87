"""The reference policy's log-probabilities, computed once and kept.

The cache holds one value per response token. It is keyed by what computed it and by token ids, so that another arm,
another seed, an extra column or a resumed run finds everything already there.
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import transformers
from accelerate import Accelerator

from badpo.data.files import require_enclosed, write_atomically
from badpo.data.problems import ConfigError
from badpo.training import attention, logprobs, packing
from badpo.training.logprobs import response_logps
from badpo.training.packing import Pair

logger = logging.getLogger(__name__)

# Responses that are computed before they are written: what a killed process can lose. Even, so that both responses
# of a comparison share their prompt's forward.
RESPONSES_PER_SHARD = 4096
# Of a configuration, a model's or an adapter's, what changes no log-probability: `save_pretrained` and the Trainer
# write the first, and about an adapter's files are the last.
NOT_COMPUTED_WITH = re.compile(
    ".*drop.*|_name_or_path|transformers_version|architectures|dtype|use_cache|model_type|bos_token_id|eos_token_id"
    "|pad_token_id|return_dict|output_attentions|output_hidden_states"
    "|base_model_name_or_path|revision|auto_mapping|inference_mode|peft_version"
)
# Comparisons on which a model with a new adapter is compared with the model without the adapter.
N_COMPARED = 8


def weights_key(model, numerics: str) -> str:
    """A key that changes with whatever decides the log-probabilities of ``model``, and its ``numerics`` ("fp32").

    Its weights and its configuration, those of an adapter included unless the adapter is disabled. A base has the same
    key with a disabled adapter as without one. The code of the scoring path is part of the cache's folder.
    """
    settings = configuration(model)
    inner = logprobs.plain(model)
    unused = set() if settings["adapter"] else set(getattr(model, "peft_config", None) or {})
    digest = hashlib.blake2b(json.dumps([numerics, settings], default=str).encode(), digest_size=16)
    # some buffers are not saved with the weights, such as the frequencies of a rotary embedding
    tensors = {**dict(inner.named_buffers()), **inner.state_dict()}
    for name, tensor in sorted(tensors.items()):
        parts = [part for part in name.split(".") if part not in ("base_layer", "original_module")]
        if unused.isdisjoint(parts):
            digest.update(f"{'.'.join(parts)} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def configuration(model) -> dict[str, Any]:
    """The settings that a model computes with in evaluation mode, such as a window; of adapters unless disabled."""
    adapters = getattr(model, "peft_config", None) or {}
    if adapters:
        from peft import get_model_status

        adapters = adapters if get_model_status(model).enabled else {}
    return {
        "attention": model.config._attn_implementation,
        "model": _computed_with(model.config.to_dict()),
        "adapter": {name: _set(_computed_with(adapter.to_dict())) for name, adapter in adapters.items()},
    }


def _set(settings: dict[str, Any]) -> dict[str, Any]:
    """What is set of an adapter: a later peft has optional settings that change nothing."""
    return {name: value for name, value in settings.items() if value not in (None, False, {}, [])}


def _computed_with(settings: Any) -> Any:
    if isinstance(settings, dict):
        named = {str(name): value for name, value in settings.items()}
        return {
            name: _computed_with(value)
            for name, value in sorted(named.items())
            if not NOT_COMPUTED_WITH.fullmatch(name)
        }
    return sorted(settings) if isinstance(settings, set) else settings


@cache
def scoring_code() -> str:
    """A key of the code that computes log-probabilities: transformers' version and the modules of the forward."""
    digest = hashlib.blake2b(transformers.__version__.encode(), digest_size=6)
    for module in (attention, logprobs, packing):
        digest.update(Path(str(module.__file__)).read_bytes())
    return digest.hexdigest()


def starts_as_its_base(model, pairs: Sequence[Pair]) -> bool:
    """Whether a model has an adapter that changes no log-probability yet, not in the last bit, of a few responses.

    Most new adapters start at a product with zero, so that their base is the reference. PiSSA and OLoRA move a part of
    the base's weights into the adapter, and the base alone is another model from then on.
    """
    if not hasattr(model, "disable_adapter"):
        return False
    few = pairs[: 2 * N_COMPARED]
    whole = response_logps(model, few)
    with model.disable_adapter():
        base = response_logps(model, few)
    return all(map(np.array_equal, whole, base))


def default_cache() -> Path:
    """Where reference log-probabilities are kept when no folder is named: the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "badpo" / "reference"


class ReferenceCache:
    """Reference log-probabilities of every token of every response, on disk, memory-mapped.

    A call that has to compute anything writes a new shard every few thousand responses, atomically, under the checksum
    of its content. Two processes that write at the same time therefore cannot harm each other: at worst a response
    stands twice. A shard whose checksum does not match is named and never read. What was missing is divided as it was
    the first time, so that the values come out the same to the bit, and the shard takes the damaged one's place.
    ``n_computed`` counts the responses that this object had to run a model for.
    """

    def __init__(self, folder: Path, key: str):
        require_enclosed(Path(folder))
        self.key = key
        self.folder = Path(folder) / f"{key}-{scoring_code()}"
        self._values: dict[bytes, np.ndarray] = {}
        self._opened: set[str] = set()
        self.n_computed = 0
        self.progress: Callable[[str, float], None] = lambda what, share: None

    def logps(self, model, pairs: Sequence[Pair]) -> list[np.ndarray]:
        """Log-probabilities of the response tokens of every (prompt ids, response ids), each computed once, float32.

        Without a model all of them must be there: a policy that was its own reference has been trained.
        """
        self.load()
        keys = [_pair_key(prompt, response) for prompt, response in pairs]
        missing = {key: pair for key, pair in zip(keys, pairs, strict=True) if key not in self._values}
        if missing and model is None:
            raise ConfigError(
                "Cannot compute reference log-probs for a dataset passed to `evaluate` after training: the policy was "
                "its own reference and has been trained since. Give the set to the trainer as an eval_dataset, "
                "evaluate on it once before training, give a ref_model, or give the model by its name"
            )
        keys_of, pairs_of = list(missing), list(missing.values())
        for start in range(0, len(missing), RESPONSES_PER_SHARD):
            self.progress("reference log-probabilities", start / len(missing))
            some = slice(start, start + RESPONSES_PER_SHARD)
            self._write(keys_of[some], response_logps(model, pairs_of[some]))
        self.n_computed += len(missing)
        self.load()
        return [self._values[key] for key in keys]

    def load(self) -> None:
        """Open the shards that are there and not open yet."""
        for path in sorted(self.folder.glob("shard-*.arrow")):
            if path.name in self._opened:
                continue
            if _shard_name(path.read_bytes()) != path.name:
                logger.warning(
                    "reference cache: %s is damaged; what is needed of it is computed again",
                    path.name,
                )
                continue
            self._opened.add(path.name)
            shard = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
            values, ends = shard["logps"].values.to_numpy(), shard["logps"].offsets.to_numpy()
            pieces = np.split(values, ends[1:-1])
            self._values.update(zip(shard["key"].to_pylist(), pieces, strict=True))

    def _write(self, keys: list[bytes], values: list[np.ndarray]) -> None:
        columns = {"key": pa.array(keys), "logps": pa.array(values, pa.large_list(pa.float32()))}
        shard, sink = pa.record_batch(columns), pa.BufferOutputStream()
        with pa.ipc.new_file(sink, shard.schema) as writer:
            writer.write(shard)
        content = sink.getvalue().to_pybytes()
        write_atomically(self.folder / _shard_name(content), content)


def divided_logps(
    cache: ReferenceCache, model, pairs: Sequence[Pair], accelerator: Accelerator
) -> list[np.ndarray]:
    """`ReferenceCache.logps` with what is missing divided over the processes, which share the cache's folder."""
    with accelerator.autocast():
        rank, world = accelerator.process_index, accelerator.num_processes
        # both responses of a comparison share their prompt's forward
        cache.logps(model, [pair for i, pair in enumerate(pairs) if i // 2 % world == rank])
        accelerator.wait_for_everyone()
        return cache.logps(model, pairs)


def _shard_name(content: bytes) -> str:
    return f"shard-{hashlib.sha256(content).hexdigest()[:32]}.arrow"


def _pair_key(prompt: np.ndarray, response: np.ndarray) -> bytes:
    content = np.concatenate([[len(prompt)], prompt, response], dtype=np.int64).tobytes()
    return hashlib.blake2b(content, digest_size=16).digest()
