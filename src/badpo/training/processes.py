"""Checks and communication for runs in which several processes train the same policy."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, gather_object

from badpo.data.files import locked
from badpo.data.problems import ConfigError
from badpo.objective.theta import JudgedVotes

# Phrases in error messages that report a lost connection between processes.
# Torch has an error class for a lost connection to its store, but none for a lost connection in a backend such as NCCL.
LOST_PEER_SIGNS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "remote process exited",
    "ncclRemoteError",
)


@contextmanager
def lock_by_first(folder: Path) -> Iterator[None]:
    """Lock a folder for all processes as `badpo.data.files.locked` does; only the first process takes the lock."""
    with locked(folder) if int(os.environ.get("RANK", "0")) == 0 else nullcontext():
        yield


def prepare_fsdp(accelerator: Accelerator, is_requested: bool) -> None:
    """Make FSDP2 compute as precisely as a run without sharded weights; raise `ConfigError` for unsuitable settings.

    With bf16, accelerate casts the sharded weights, the gradient sums and the model's output to 16 bits. The reference
    is scored before the weights are sharded, so only the policy would be rounded, and the first margins would not be 0.
    Moreover, 16 bits are too coarse for margins. badpo therefore keeps float32 in FSDP, and autocast works as in a
    single process.
    """
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is None or accelerator.distributed_type != DistributedType.FSDP:
        if is_requested or plugin is not None:
            raise ConfigError(
                "fsdp was requested, but accelerate shards weights only over several GPUs, which this run does not "
                "use; omit fsdp, or start the run on several GPUs with accelerate launch"
            )
        return
    if plugin.fsdp_version != 2:
        raise ConfigError("fsdp_version: 1 is not supported; write fsdp_version: 2 in fsdp_config")
    if accelerator.mixed_precision != "no":
        from torch.distributed.fsdp import MixedPrecisionPolicy

        plugin.mixed_precision_policy = MixedPrecisionPolicy(cast_forward_inputs=False)


def gather_weights(accelerator: Accelerator, wrapped: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Gather sharded weights by name on the first process; all processes must call this function.

    Tied weights appear only once in the result, because gathered copies do not show that two names share a tensor.
    """
    state: dict[str, torch.Tensor] = accelerator.get_state_dict(wrapped)
    seen: set[int] = set()
    for name, parameter in accelerator.unwrap_model(wrapped).named_parameters(remove_duplicate=False):
        if id(parameter) in seen:
            state.pop(name, None)
        seen.add(id(parameter))
    return state


def require_same_facts(facts: Mapping[str, str], accelerator: Accelerator) -> None:
    """Raise `ConfigError` on every process if the processes start with different ``facts``.

    A process with different weights would compute a different reference, and a process with different judgments would
    plan different steps. The loss would not reveal either error. The usual cause of different weights is that only the
    first process has loaded the model.
    """
    if accelerator.num_processes == 1:
        return
    all_facts = gather_object([dict(facts)])
    different = [name for name in facts if len({process[name] for process in all_facts}) > 1]
    if different:
        raise ConfigError(
            f"the processes start with different values of {' and '.join(different)}. Give all processes the same "
            "files, and set fsdp_cpu_ram_efficient_loading: false, so that every process loads the weights"
        )


def gather_votes(accelerator: Accelerator, own: JudgedVotes) -> JudgedVotes:
    """Join the votes of an optimizer step from all processes; every process gets the same result."""
    return own if accelerator.num_processes == 1 else JudgedVotes.join(gather_object([own]))


def is_peer_lost(error: BaseException) -> bool:
    """Whether an error means that the connection to another process of the run was lost."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or not isinstance(error, RuntimeError):
        return False
    is_store_error = isinstance(error, torch.distributed.DistNetworkError)
    return is_store_error or any(sign in str(error) for sign in LOST_PEER_SIGNS)
