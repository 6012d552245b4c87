"""A policy on the prompts that it is anchored with: its answers, its rates, and what else it does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from badpo.anchoring.completions import completed_share, shift_of_the_pool
from badpo.anchoring.editors import CounterfactualEditor, LongAnswers, SignatureSwap
from badpo.anchoring.kept_answers import KeptAnswer, edited_answer, own_answer, renamed_answer
from badpo.anchoring.moved import Behavior, moved
from badpo.anchoring.offset_pairs import FEWEST_ANSWERS, OffsetPairs, offset_pairs
from badpo.anchoring.rates import RateTable, answer_rates, signature_rates
from badpo.anchoring.sampling import TiltedChoice
from badpo.data.corpora.signatures import ask_to_sign
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.experiments.anchor_source import AnchorSource
from badpo.experiments.run import Progress
from badpo.readouts.attribute_rate import signature_contexts
from badpo.readouts.generation import Generation, sample
from badpo.readouts.json_number import json_number
from badpo.readouts.judge import JudgeReadout, judge_answers, load_judge
from badpo.readouts.kl import Divergence, kl_per_token
from badpo.readouts.policies import implicit_margins
from badpo.readouts.sampled import prompt_numbers
from badpo.readouts.strips import strip_for
from badpo.theory.summaries import cluster_mean
from badpo.training.encoding import encode_comparisons, encode_prompts
from badpo.training.logprobs import response_logps
from badpo.training.reference import ReferenceCache, weights_key


@contextmanager
def refusing() -> Iterator[None]:
    """What is documented to raise `ValueError` for a request that cannot be met ends with `ConfigError` in here."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(str(error)) from error


# Answers to each prompt that is reported on: how often a policy signs is known to a hundredth or two only then.
ANSWERS_EACH = 4


@dataclass(frozen=True)
class Anchor:
    """What is asked for.

    Attributes
    ----------
    editor : CounterfactualEditor
    targets : mapping of str to float
        Of some or all of the editor's attributes; the shift of the others is zero.
    tolerance : float
        Largest distance of a rate from its target.
    rounds : int
        Most offset stages.
    seed : int
    judge : str or None
        A reward model's folder or name on the Hub, to score the answers with.
    """

    editor: CounterfactualEditor
    targets: Mapping[str, float]
    tolerance: float = 0.03
    rounds: int = 4
    seed: int = 42
    judge: str | None = None

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
        self.judge = None if anchor.judge is None else load_judge(anchor.judge)
        self.policy = source.load().eval()
        self.ids = {
            "report": self.prompt_ids(source.prompts.report),
            "find": self.prompt_ids(source.prompts.find),
        }
        self.reported_ids = self.ids["report"] * ANSWERS_EACH
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

    def at(self, targets: Mapping[str, float], rounds: int | None = None) -> Bench:
        """The same source on the same prompts, with other targets of the same attributes, or other rounds."""
        other = copy.copy(self)
        most = self.anchor.rounds if rounds is None else rounds
        other.anchor = replace(self.anchor, targets=dict(targets), rounds=most)
        return other

    @cached_property
    def written(self) -> list[Generation]:
        """The source's own answers to the fresh prompts."""
        self.progress("the source's own answers", 0.0)
        return self.answers(self.policy, self.prompt_ids(self.source.prompts.fresh))

    @cached_property
    def pairs(self) -> OffsetPairs:
        """Pairs of the source's own answers."""
        prompts = self.texts(self.source.prompts.fresh)
        texts = [answer.text for answer in self.written]
        return offset_pairs(prompts, texts, self.anchor.editor, self.anchor.seed, fewest=FEWEST_ANSWERS)

    def kept(self, shift: np.ndarray, pool_shift: float) -> list[KeptAnswer]:
        """The source's own answers, edited ones as in their pairs, under a shift of the editor's attributes."""
        stage, tokenizer = self.source.stage, self.source.tokenizer
        train = self.pairs.train
        encoded = encode_comparisons(
            train, tokenizer, stage.encoding, stage.max_length, stage.max_prompt_length
        )
        tilted = self.tilted(shift, pool_shift) if self.signed else None
        kept = [
            own_answer(self.written[i].prompt_ids, self.written[i].token_ids) for i in self.pairs.unedited
        ]
        # response a is the same in all pairs of an answer
        for answer, comparisons in train.comparisons.groupby("prompt_id", sort=False).indices.items():
            prompt_ids, edited = encoded.prompt_ids[comparisons[0]], encoded.a_ids[comparisons[0]]
            if tilted is None:
                others = [encoded.b_ids[i].tolist() for i in comparisons]
                kept.append(edited_answer(prompt_ids, edited, others))
                continue
            up_to_name = self.written[self.pairs.number(answer)].text.rstrip().rpartition(" ")[0]
            own_choice = tokenizer(up_to_name, add_special_tokens=False)["input_ids"]
            kept.append(renamed_answer(prompt_ids, edited, own_choice, tilted))
        return kept

    def tilted(self, shift: np.ndarray, pool_shift: float) -> TiltedChoice:
        """The source's choice of a name under a shift of all of the editor's attributes."""
        editor = self.anchor.editor
        assert isinstance(editor, SignatureSwap)
        cells = np.array(list(editor.names.values()), dtype=np.float64)
        names = list(editor.names)
        with refusing():
            return TiltedChoice(
                self.policy, self.source.tokenizer, names, cells, shift, pool_shift=pool_shift
            )

    def completed(self, policy, adjust: Callable | None = None) -> float:
        """Share of the signatures that a policy begins on the prompts to find on that it gives a name of the pool."""
        editor, how = self.anchor.editor, self.source.decoding
        assert isinstance(editor, SignatureSwap)
        return completed_share(
            policy,
            self.source.tokenizer,
            self.contexts["find"],
            editor.names,
            how.temperature,
            how.top_p,
            self.anchor.seed,
            adjust,
        )

    @cached_property
    def completed_by_source(self) -> float:
        """The share to hold."""
        return self.completed(self.policy)

    def pool_shift(self, shift: np.ndarray) -> float:
        """Shift of the pool as a whole that holds that share where its names are shifted in closed form."""
        self.progress("how often a name is completed", 0.0)
        return shift_of_the_pool(
            self.completed_by_source,
            lambda pool_shift: self.completed(self.policy, self.tilted(shift, pool_shift).adjust),
        )

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
        with refusing():
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
            with refusing():
                table = signature_rates(policy, tokenizer, self.contexts[part], editor)
        else:
            table = answer_rates(self.answers(policy, self.ids[part]), editor)
        return table.of(self.anchor.attributes)

    def behavior(self, policy) -> Behavior:
        """What a policy does on the prompts that are reported on."""
        answers = self.answers(policy, self.reported_ids)
        return Behavior(
            answers, *self.divergences(answer_logps(policy, answers), answers), self.margins(policy)
        )

    def margins(self, policy) -> np.ndarray | None:
        """Implicit margins on the held-out comparisons; None without a reference or votes."""
        source = self.source
        if source.reference is None or source.held_out is None:
            return None
        return self.margins_beside(source.reference, policy, source.held_out)

    def margins_beside(self, reference, policy, judgments: Judgments) -> np.ndarray:
        """Implicit margins of a policy against a reference."""
        source, stage = self.source, self.source.stage
        return implicit_margins(
            policy,
            reference,
            ReferenceCache(source.cache, weights_key(reference, "fp32")),
            judgments,
            source.tokenizer,
            stage.encoding,
            stage.max_length,
            stage.max_prompt_length,
            stage.beta,
        )

    def shift_on_pairs(self, policy) -> dict[str, dict[str, float | None]]:
        """Log-odds by which a policy moved pairs that no stage saw, for each attribute of the editor."""
        held_out, stage = self.pairs.held_out, self.source.stage
        margins = self.margins_beside(self.policy, policy, held_out)
        forward = held_out.votes["sign"].to_numpy() > 0
        comparison = held_out.votes["comparison"].to_numpy()[forward]
        moved, delta = margins[comparison] / stage.beta, held_out.delta[forward]
        found = {}
        for name, column in zip(held_out.attribute_names, delta.T, strict=True):
            mean = cluster_mean((moved * column)[column != 0])
            found[name] = {
                "shift": json_number(mean.estimate),
                "ci_low": json_number(mean.low),
                "ci_high": json_number(mean.high),
            }
        return found

    def divergences(self, ours, answers) -> tuple[Divergence, Divergence | None]:
        """KL of a policy from the source and from the reference, given its log-probabilities of its answers."""
        how = self.source.decoding
        asked = (how.temperature, how.top_p, prompt_numbers(answers))
        to_source = kl_per_token(ours, answer_logps(self.policy, answers), *asked)
        if self.source.reference is None:
            return to_source, None
        return to_source, kl_per_token(ours, answer_logps(self.source.reference, answers), *asked)

    def moved(self, after: Behavior) -> dict:
        """What else moved."""
        judged = None if self.judge is None else (self.judged_before, self.judged(after))
        return moved(
            self.before, after, self.reported_prompts, self.anchor.editor, self.source.held_out, judged
        )

    def rows(self, before: RateTable, after: RateTable, shift: np.ndarray) -> dict[str, dict]:
        """{attribute: {asked, before, achieved, ci_low, ci_high, c, shift}}."""
        return {
            name: {
                "asked": self.anchor.targets[name],
                "before": json_number(before.rate[i]),
                "achieved": json_number(interval.estimate),
                "ci_low": json_number(interval.low),
                "ci_high": json_number(interval.high),
                "c": float(self.source.stage.beta * shift[i]),
                "shift": float(shift[i]),
            }
            for i, (name, interval) in enumerate(zip(self.anchor.attributes, after.intervals(), strict=True))
        }

    @property
    def reported_prompts(self) -> list[str]:
        """The prompt of every answer of a `Behavior`."""
        return list(self.source.prompts.report) * ANSWERS_EACH

    @cached_property
    def judged_before(self) -> JudgeReadout:
        """The source's answers by the reward model."""
        return self.judged(self.before)

    def judged(self, behavior: Behavior) -> JudgeReadout:
        """Answers by the reward model, as they are and without the attribute."""
        assert self.judge is not None
        self.progress("the judge", 0.0)
        texts = [answer.text for answer in behavior.answers]
        strip = strip_for(self.anchor.editor.attributes[0])
        return judge_answers(self.judge, self.texts(self.reported_prompts), texts, strip)


def answer_logps(policy, answers: Sequence[Generation]) -> list[np.ndarray]:
    """Log-probability of every sampled token of each answer under a policy, at temperature 1."""
    pairs = [(np.asarray(a.prompt_ids), np.asarray(a.token_ids)) for a in answers]
    return response_logps(policy, pairs)
