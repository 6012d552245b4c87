"""What a run starts from and is measured against: the policy, and the reference that it must not leave too far."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from badpo.training.config import BADPOConfig
from badpo.training.inputs import disable_dropout, load_model, with_adapter
from badpo.training.logprobs import attach
from badpo.training.reference import weights_key


@dataclass(frozen=True)
class PolicyAndReference:
    """A policy before training, and which weights are its reference.

    Attributes
    ----------
    policy : causal language model
        With its adapter, where it has one.
    plain : causal language model
        The same without the wrapper of a new adapter.
    other : causal language model or None
        The reference, where it is not the start policy itself.
    reference_key : str
        Of the reference's weights; see `badpo.training.reference.weights_key`.
    """

    policy: Any
    plain: Any
    other: Any
    reference_key: str

    @contextmanager
    def reference(self, model, device: torch.device) -> Iterator[Any]:
        """The reference on a device, for the block.

        Parameters
        ----------
        model : causal language model
            The policy as the trainer holds it; until it is trained it is its own reference, without a new adapter.
        device : torch.device
        """
        if self.other is not None:
            yield self.other.to(device)
            return
        with nullcontext() if self.policy is self.plain else model.disable_adapter():
            yield model


def policy_and_reference(model, ref_model, peft_config, args: BADPOConfig) -> PolicyAndReference:
    """The policy that a run starts from, able to score comparisons.

    Parameters
    ----------
    model : str or PreTrainedModel
    ref_model : PreTrainedModel or None
        Another reference.
    peft_config : peft.PeftConfig or None
        Of a new adapter.
    args : BADPOConfig
    """
    plain = attach(load_model(model, args))
    other = attach(ref_model) if ref_model is not None else None
    # before the adapter, which is no part of the reference
    key = weights_key(other or plain, args.mixed_precision_name)
    # a new adapter starts at random values, which must be those of the seed
    transformers.set_seed(args.seed)
    policy = with_adapter(plain, peft_config)
    if args.disable_dropout:
        disable_dropout(policy)
    return PolicyAndReference(policy, plain, other, key)
