"""Several processes as one run: they must start alike, and divided weights must compute as whole ones do."""

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

# What the backends say when the connection to another process is gone; torch's own class is that of its store alone.
LOST_PEER_SIGNS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "remote process exited",
    "ncclRemoteError",
)


@contextmanager
def locked_by_first(folder: Path) -> Iterator[None]:
    """Hold a folder as `badpo.data.files.locked` does; of several processes of a run the first holds it for all."""
    with locked(folder) if int(os.environ.get("RANK", "0")) == 0 else nullcontext():
        yield


def prepare_division(accelerator: Accelerator, asked: bool) -> None:
    """Make divided weights (FSDP2) compute in the precision of whole ones; refuse what cannot.

    accelerate's bf16 casts the divided weights, the sums of gradients and the model's output. The reference is
    computed before the weights are divided, so that the first margins would not be 0, and log-probabilities in 16 bits
    are too coarse for margins in any case. Here FSDP keeps float32 and autocast does what it does for one process.
    """
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is None or accelerator.distributed_type != DistributedType.FSDP:
        if asked or plugin is not None:
            raise ConfigError(
                "fsdp was asked for, but accelerate divides weights over several GPUs only and would train whole ones "
                "here; leave fsdp out, or start on GPUs with accelerate launch"
            )
        return
    if plugin.fsdp_version != 2:
        raise ConfigError("fsdp_version: 1 is not supported; write fsdp_version: 2 in fsdp_config")
    if accelerator.mixed_precision != "no":
        from torch.distributed.fsdp import MixedPrecisionPolicy

        plugin.mixed_precision_policy = MixedPrecisionPolicy(cast_forward_inputs=False)


def whole_weights(accelerator: Accelerator, wrapped: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The undivided weights by name, on the first process; to be asked for by all. Tied weights stand once.

    A gathered copy does not show that two names are one tensor, and both would be written to the model's file.
    """
    state = accelerator.get_state_dict(wrapped)
    seen: set[int] = set()
    for name, parameter in accelerator.unwrap_model(wrapped).named_parameters(remove_duplicate=False):
        if id(parameter) in seen:
            state.pop(name, None)
        seen.add(id(parameter))
    return state


def require_alike(facts: Mapping[str, str], accelerator: Accelerator) -> None:
    """Raise `ConfigError` on every process unless all of them start with the same ``facts``.

    A process with other weights would compute its share of the reference with them, and one with other judgments would
    plan other steps; neither shows in the loss. Weights that only the first process loads are the usual cause.
    """
    if accelerator.num_processes == 1:
        return
    everyone = gather_object([dict(facts)])
    different = [name for name in facts if len({theirs[name] for theirs in everyone}) > 1]
    if different:
        raise ConfigError(
            f"the processes do not start alike: {' and '.join(different)} differ between them. Give each the same "
            "files, and set fsdp_cpu_ram_efficient_loading: false, so that every process loads the weights"
        )


def gathered_votes(accelerator: Accelerator, own: JudgedVotes) -> JudgedVotes:
    """The votes of a whole step from every process's share; the same on all of them."""
    return own if accelerator.num_processes == 1 else JudgedVotes.joined(gather_object([own]))


def lost_peer(error: BaseException) -> bool:
    """Whether an error says that the connection to another process of the run is gone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or not isinstance(error, RuntimeError):
        return False
    of_the_store = isinstance(error, torch.distributed.DistNetworkError)
    return of_the_store or any(sign in str(error) for sign in LOST_PEER_SIGNS)
