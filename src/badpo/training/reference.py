"""Score comparisons with the reference policy, and cache the reference's log-probabilities.

The cache contains one log-probability for each token of a response. The cache identifies each value by the model, the
scoring code and the token ids. Other arms, other seeds and resumed runs on the same texts can therefore reuse the
cached values.
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import transformers
from accelerate import Accelerator
from transformers import PreTrainedModel

from badpo.data.files import require_safe_to_read, write_atomically
from badpo.data.problems import ConfigError
from badpo.training import attention, logprobs, packing
from badpo.training.batches import EncodedJudgments
from badpo.training.config import BADPOConfig
from badpo.training.logprobs import response_logps
from badpo.training.metrics import require_finite_reference
from badpo.training.packing import Pair

logger = logging.getLogger(__name__)

# Number of responses in a cache shard; a process that is killed loses at most one shard of responses.
# An even number keeps both responses of a comparison in the same shard, so that they share a forward pass.
RESPONSES_PER_SHARD = 4096
# Settings of a model or an adapter that do not change log-probabilities.
# The first two lines of the regular expression match settings that `save_pretrained` and the Trainer write.
# The last line of the regular expression matches settings of adapter files.
WITHOUT_EFFECT = re.compile(
    ".*drop.*|_name_or_path|transformers_version|architectures|dtype|use_cache|model_type|bos_token_id|eos_token_id"
    "|pad_token_id|return_dict|output_attentions|output_hidden_states"
    "|base_model_name_or_path|revision|auto_mapping|inference_mode|peft_version"
)
# Number of comparisons used to test whether a new adapter changes the model.
N_COMPARED = 8


def compute_weights_key(model: PreTrainedModel, numerics: str) -> str:
    """Compute a digest of everything that determines the log-probabilities of ``model`` in the precision ``numerics``.

    The digest covers the weights and the configuration of the model and of an enabled adapter. A model with a disabled
    adapter has the same digest as its base model. The digest does not cover the scoring code, because the name of the
    cache folder contains a separate digest of that code.
    """
    settings = read_configuration(model)
    inner = logprobs.remove_adapter(model)
    unused = set() if settings["adapter"] else set(getattr(model, "peft_config", None) or {})
    digest = hashlib.blake2b(json.dumps([numerics, settings], default=str).encode(), digest_size=16)
    # some buffers, such as rotary embedding frequencies, are not part of the state_dict
    tensors = {**dict(inner.named_buffers()), **inner.state_dict()}
    for name, tensor in sorted(tensors.items()):
        parts = [part for part in name.split(".") if part not in ("base_layer", "original_module")]
        if unused.isdisjoint(parts):
            digest.update(f"{'.'.join(parts)} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_configuration(model: PreTrainedModel) -> dict[str, Any]:
    """Return the settings of a model and its enabled adapters that affect the model's outputs in evaluation mode."""
    adapters = getattr(model, "peft_config", None) or {}
    if adapters:
        from peft import get_model_status

        adapters = adapters if get_model_status(model).enabled else {}
    adapter_settings = {}
    for name, adapter in adapters.items():
        settings = _select_effective(adapter.to_dict())
        # empty settings are ignored, because later versions of peft add optional settings without effect
        adapter_settings[name] = {k: v for k, v in settings.items() if v not in (None, False, {}, [])}
    return {
        "attention": model.config._attn_implementation,
        "model": _select_effective(model.config.to_dict()),
        "adapter": adapter_settings,
    }


def _select_effective(settings: Any) -> Any:
    """Return the settings that can change log-probabilities, in a fixed order."""
    if isinstance(settings, dict):
        by_name = {str(name): value for name, value in settings.items()}
        return {
            name: _select_effective(value)
            for name, value in sorted(by_name.items())
            if not WITHOUT_EFFECT.fullmatch(name)
        }
    return sorted(settings) if isinstance(settings, set) else settings


@cache
def scoring_code() -> str:
    """Compute a digest of the modules that compute log-probabilities and of the transformers version."""
    digest = hashlib.blake2b(transformers.__version__.encode(), digest_size=6)
    for module in (attention, logprobs, packing):
        digest.update(Path(str(module.__file__)).read_bytes())
    return digest.hexdigest()


def is_adapter_neutral(model: PreTrainedModel, pairs: Sequence[Pair]) -> bool:
    """Whether a few responses have bitwise identical log-probabilities with and without the model's adapter.

    Most new adapters do not change the model before training, so the base model can be the reference. PiSSA and OLoRA
    move part of the base weights into the adapter, so disabling the adapter does not restore the base model.
    """
    if not hasattr(model, "disable_adapter"):
        return False
    sample = pairs[: 2 * N_COMPARED]
    adapted = response_logps(model, sample)
    with model.disable_adapter():
        base = response_logps(model, sample)
    return all(map(np.array_equal, adapted, base))


def default_cache() -> Path:
    """Default folder for reference log-probabilities in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "badpo" / "reference"


class ReferenceCache:
    """Cache of the reference log-probability of every response token, in memory-mapped files.

    Every few thousand responses, the cache writes the new log-probabilities to a new shard. A shard is written
    atomically, and its name is the checksum of its content. Two processes can therefore write to the cache at the same
    time, although both may then write the same response. If a shard has a wrong checksum, the cache reports the shard
    instead of reading it. The model then scores the responses of the damaged shard again in the same groups, so the new
    values are bitwise equal to the original ones. ``n_computed`` is the number of responses that the model has scored.
    """

    def __init__(self, folder: Path, key: str):
        require_safe_to_read(Path(folder))
        self.key = key
        self.folder = Path(folder) / f"{key}-{scoring_code()}"
        self._values: dict[bytes, np.ndarray] = {}
        self._opened: set[str] = set()
        self.n_computed = 0
        self.progress: Callable[[str, float], None] = lambda what, share: None

    def logps(self, model: PreTrainedModel | None, pairs: Sequence[Pair]) -> list[np.ndarray]:
        """Return the float32 log-probabilities of the response tokens for every pair of prompt ids and response ids.

        ``model`` is None if the policy was its own reference and has been trained since then. Without a model, all
        responses must be in the cache.
        """
        self.open_new_shards()
        keys = [_pair_key(prompt, response) for prompt, response in pairs]
        missing = {key: pair for key, pair in zip(keys, pairs, strict=True) if key not in self._values}
        if missing and model is None:
            raise ConfigError(
                "cannot compute reference log-probabilities for a data set that is passed to `evaluate` after "
                "training: the policy was its own reference and has been trained since. Pass the data set to the "
                "trainer as an eval_dataset, evaluate on it once before training, give a ref_model, or pass the model "
                "by name"
            )
        missing_keys, missing_pairs = list(missing), list(missing.values())
        for start in range(0, len(missing), RESPONSES_PER_SHARD):
            self.progress("reference log-probabilities", start / len(missing))
            shard = slice(start, start + RESPONSES_PER_SHARD)
            self._write_shard(missing_keys[shard], response_logps(model, missing_pairs[shard]))
        self.n_computed += len(missing)
        self.open_new_shards()
        return [self._values[key] for key in keys]

    def open_new_shards(self) -> None:
        """Open all shards of the cache that were written since the last call of this method."""
        for path in sorted(self.folder.glob("shard-*.arrow")):
            if path.name in self._opened:
                continue
            if _shard_name(path.read_bytes()) != path.name:
                logger.warning(
                    "reference cache: %s is damaged; badpo will compute its values again when they are needed",
                    path.name,
                )
                continue
            self._opened.add(path.name)
            shard = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
            values, ends = shard["logps"].values.to_numpy(), shard["logps"].offsets.to_numpy()
            pieces = np.split(values, ends[1:-1])
            self._values.update(zip(shard["key"].to_pylist(), pieces, strict=True))

    def _write_shard(self, keys: list[bytes], values: list[np.ndarray]) -> None:
        columns = {"key": pa.array(keys), "logps": pa.array(values, pa.large_list(pa.float32()))}
        shard, sink = pa.record_batch(columns), pa.BufferOutputStream()
        with pa.ipc.new_file(sink, shard.schema) as writer:
            writer.write(shard)
        content = sink.getvalue().to_pybytes()
        write_atomically(self.folder / _shard_name(content), content)


class ReferenceScorer:
    """Score comparisons with a run's reference policy.

    The reference is ``ref_model``. Without a ``ref_model``, the policy is its own reference until its first step. After
    the first step, ``load_start`` loads the initial policy again as the reference; if ``load_start`` is None, there is
    no reference. The responses in ``pairs`` are used to test whether a new adapter changes the model.
    """

    def __init__(
        self,
        policy: PreTrainedModel,
        ref_model: PreTrainedModel | None,
        accelerator: Accelerator,
        args: BADPOConfig,
        load_start: Callable[[], PreTrainedModel] | None,
        pairs: Sequence[Pair],
    ):
        self.policy_has_moved = False
        self._policy, self._ref_model, self._load_start = policy, ref_model, load_start
        self._accelerator, self._args, self._pairs = accelerator, args, pairs

    @cached_property
    def cache(self) -> ReferenceCache:
        """Cache of the reference log-probabilities; the first access must come before the first training step."""
        with self.reference() as model:
            key = compute_weights_key(model, self._args.mixed_precision_name)
        return ReferenceCache(Path(self._args.reference_cache or default_cache()), key)

    @cached_property
    def _adapter_is_neutral(self) -> bool:
        with self._accelerator.autocast():
            return is_adapter_neutral(self._policy, self._pairs)

    @contextmanager
    def reference(self) -> Iterator[PreTrainedModel | None]:
        """Yield the reference model, or None if the policy was its own reference and has been trained since then."""
        if self._ref_model is not None:
            yield self._ref_model.to(self._args.device)
        elif self._adapter_is_neutral:
            with self._policy.disable_adapter():
                yield self._policy
        elif not self.policy_has_moved:
            yield self._policy
        else:
            yield self._load_unchanged_start()

    def _load_unchanged_start(self) -> PreTrainedModel | None:
        if self._load_start is None:
            return None
        start = self._load_start().to(self._args.device)
        has_changed = compute_weights_key(start, self._args.mixed_precision_name) != self.cache.key
        return None if has_changed else start

    def score(self, data: EncodedJudgments) -> list[np.ndarray]:
        """Compute the log-probabilities of all responses of all comparisons; each process computes a share of them."""
        if data.reference is None:
            pairs, n_before = data.encoded.pairs, self.cache.n_computed
            rank, world = self._accelerator.process_index, self._accelerator.num_processes
            # each process scores whole comparisons, because both responses share the forward pass over their prompt
            share = [pair for i, pair in enumerate(pairs) if i // 2 % world == rank]
            with self.reference() as model, self._accelerator.autocast():
                self.cache.logps(model, share)
                self._accelerator.wait_for_everyone()
                data.reference = self.cache.logps(model, pairs)
            n_new = self.cache.n_computed - n_before
            logger.info("reference: %d responses, %d newly scored", len(pairs), n_new)
            require_finite_reference(data.reference, data.judgments)
        return data.reference

    def score_all(self, train: EncodedJudgments, evaluation: object) -> None:
        """Score the training set and all evaluation sets with the reference, before the first training step."""
        sets = evaluation.values() if isinstance(evaluation, Mapping) else [evaluation]
        for data in (train, *sets):
            if isinstance(data, EncodedJudgments):
                self.score(data)


def _shard_name(content: bytes) -> str:
    return f"shard-{hashlib.sha256(content).hexdigest()[:32]}.arrow"


def _pair_key(prompt: np.ndarray, response: np.ndarray) -> bytes:
    content = np.concatenate([[len(prompt)], prompt, response], dtype=np.int64).tobytes()
    return hashlib.blake2b(content, digest_size=16).digest()
