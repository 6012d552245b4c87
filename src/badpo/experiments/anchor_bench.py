"""A policy on the prompts that it is anchored with: its answers, its rates, and what else it does."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from badpo.anchoring.editors import CounterfactualEditor, LongAnswers, SignatureSwap
from badpo.anchoring.moved import Behavior, moved
from badpo.anchoring.offset_pairs import OffsetPairs, offset_pairs
from badpo.anchoring.other_names import other_names
from badpo.anchoring.rates import RateTable, answer_rates, signature_rates
from badpo.data.corpora.signatures import ask_to_sign
from badpo.experiments.anchor_source import AnchorSource
from badpo.experiments.signed_suite import Progress
from badpo.readouts.attribute_rate import signature_contexts
from badpo.readouts.generation import Generation, sample
from badpo.readouts.kl import Divergence, kl_per_token
from badpo.readouts.policies import implicit_margins
from badpo.training.encoding import encode_prompts
from badpo.training.logprobs import response_logps
from badpo.training.reference import ReferenceCache, weights_key


@dataclass(frozen=True)
class Anchor:
    """What is asked for.

    Attributes
    ----------
    editor : CounterfactualEditor
    targets : mapping of str to float
        Of some or all of the editor's attributes; the shift of the others is zero.
    tolerance : float
        Largest distance of a trained rate from its target.
    rounds : int
        Most offset stages.
    seed : int
    """

    editor: CounterfactualEditor
    targets: Mapping[str, float]
    tolerance: float = 0.03
    rounds: int = 4
    seed: int = 42

    @property
    def attributes(self) -> tuple[str, ...]:
        """Names of the attributes that have a target."""
        return tuple(self.targets)

    def whole_shift(self, shift: np.ndarray) -> np.ndarray:
        """A shift of the anchored attributes as one of all attributes of the editor."""
        given = dict(zip(self.targets, shift.tolist(), strict=True))
        return np.array([given.get(attribute.name, 0.0) for attribute in self.editor.attributes])


class Bench:
    """A source on its prompts: what every anchor of it shares."""

    def __init__(self, source: AnchorSource, anchor: Anchor, progress: Progress):
        self.source, self.anchor, self.progress = source, anchor, progress
        self.signed = isinstance(anchor.editor, SignatureSwap)
        self.policy = source.load().eval()
        self.ids = {
            "report": self.prompt_ids(source.prompts.report),
            "find": self.prompt_ids(source.prompts.find),
        }
        self.contexts: dict[str, list[list[int]]] = {}
        for part, ids in self.ids.items() if self.signed else ():
            progress(f"answers to {part} on", 0.0)
            # the reference's where there is one, so that all anchors share them
            written = self.answers(source.reference or self.policy, ids, seed=0)
            self.contexts[part] = signature_contexts(written, source.tokenizer)
        progress("the source on the prompts", 0.0)
        self.before = self.behavior(self.policy)
        if isinstance(anchor.editor, LongAnswers):
            own = [answer.text for answer in self.before.answers]
            self.anchor = replace(anchor, editor=LongAnswers.above_median(own))

    def at(self, targets: Mapping[str, float]) -> Bench:
        """The same source on the same prompts, with other targets of the same attributes."""
        other = copy.copy(self)
        other.anchor = replace(self.anchor, targets=dict(targets))
        return other

    @cached_property
    def written(self) -> list[Generation]:
        """The source's own answers to the fresh prompts."""
        self.progress("the source's own answers", 0.0)
        return self.answers(self.policy, self.prompt_ids(self.source.prompts.fresh))

    @cached_property
    def others(self) -> dict[int, list[str]]:
        """Names outside of the pool that the source signs with, by the number of the answer."""
        return self.other_names(self.policy, self.anchor.seed)

    def other_names(self, policy, seed: int) -> dict[int, list[str]]:
        """The same of any policy, at the signatures of the source's answers; none where no signatures are anchored."""
        editor = self.anchor.editor
        if not isinstance(editor, SignatureSwap):
            return {}
        return other_names(policy, self.source.tokenizer, self.written, editor, seed)

    def pairs(self, others: Mapping[int, Sequence[str]]) -> OffsetPairs:
        """Pairs of the source's own answers, with other names beside those of the pool."""
        prompts = self.texts(self.source.prompts.fresh)
        texts = [answer.text for answer in self.written]
        return offset_pairs(prompts, texts, self.anchor.editor, self.anchor.seed, drawn=others)

    def texts(self, prompts: Sequence[str]) -> list[str]:
        """Prompts with the request to sign, where signatures are anchored."""
        return [ask_to_sign(prompt) for prompt in prompts] if self.signed else list(prompts)

    def prompt_ids(self, prompts: Sequence[str]) -> list[np.ndarray]:
        """Prompts as the policy reads them."""
        stage = self.source.stage
        return encode_prompts(
            self.texts(prompts), self.source.tokenizer, stage.encoding, stage.max_prompt_length
        )

    def answers(self, policy, prompt_ids, adjust=None, seed: int | None = None) -> list[Generation]:
        """One answer to each prompt."""
        how = self.source.decoding
        return sample(
            policy,
            self.source.tokenizer,
            prompt_ids,
            how.max_new_tokens,
            how.temperature,
            how.top_p,
            seed=self.anchor.seed if seed is None else seed,
            adjust=adjust,
        )

    def rates(self, policy, part: str) -> RateTable:
        """Rates of the anchored attributes on the prompts to "find" or to "report" on."""
        editor, tokenizer = self.anchor.editor, self.source.tokenizer
        if isinstance(editor, SignatureSwap):
            table = signature_rates(policy, tokenizer, self.contexts[part], editor)
        else:
            table = answer_rates(self.answers(policy, self.ids[part]), editor)
        return table.of(self.anchor.attributes)

    def behavior(self, policy) -> Behavior:
        """What a policy does on the prompts that are reported on."""
        answers = self.answers(policy, self.ids["report"])
        return Behavior(
            answers, *self.divergences(answer_logps(policy, answers), answers), self.margins(policy)
        )

    def margins(self, policy) -> np.ndarray | None:
        """Implicit margins on the held-out comparisons; None without a reference or votes."""
        source = self.source
        if source.reference is None or source.held_out is None:
            return None
        stage = source.stage
        return implicit_margins(
            policy,
            source.reference,
            ReferenceCache(source.cache, weights_key(source.reference, "fp32")),
            source.held_out,
            source.tokenizer,
            stage.encoding,
            stage.max_length,
            stage.max_prompt_length,
            stage.beta,
        )

    def divergences(self, ours, answers) -> tuple[Divergence, Divergence | None]:
        """KL of a policy from the source and from the reference, given its log-probabilities of its answers."""
        how = self.source.decoding
        decoding = (how.temperature, how.top_p)
        to_source = kl_per_token(ours, answer_logps(self.policy, answers), *decoding)
        if self.source.reference is None:
            return to_source, None
        return to_source, kl_per_token(ours, answer_logps(self.source.reference, answers), *decoding)

    def moved(self, after: Behavior) -> dict:
        """What else moved."""
        source = self.source
        return moved(self.before, after, source.prompts.report, self.anchor.editor, source.held_out)


def answer_logps(policy, answers: Sequence[Generation]) -> list[np.ndarray]:
    """Log-probability of every sampled token of each answer under a policy, at temperature 1."""
    pairs = [(np.asarray(a.prompt_ids), np.asarray(a.token_ids)) for a in answers]
    return response_logps(policy, pairs)
