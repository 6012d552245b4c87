"""Anchor a policy's attribute rates at targets, at sampling time or in training, and say what else moved."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from badpo.anchoring.calibration import Calibration, calibrate
from badpo.anchoring.editors import (
    CounterfactualEditor,
    MarkdownStrip,
    SignatureSwap,
    WordSwap,
    carries,
    pool_signatures,
)
from badpo.anchoring.kept_answers import (
    KeptAnswer,
    TiltedName,
    edited_answer,
    named_answer,
    own_answer,
    renamed_answer,
    shifted_logps,
)
from badpo.anchoring.offset_stage import FEWEST_ANSWERS, OffsetPairs, offset_pairs, train_offset
from badpo.anchoring.rates import Behavior, RateTable, answer_rates, moved, signature_rates, tilted_margins
from badpo.anchoring.sampling import (
    Kept,
    TiltedChoice,
    completed_share,
    rejection_sample,
    shift_of_the_pool,
)
from badpo.anchoring.source import AnchorSource
from badpo.data.attributes import plain_text
from badpo.data.files import RUN_SEAL, SealError, flush_folder, locked, read_seal, seal_damage, write_seal
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, did_you_mean
from badpo.readouts.generation import Generation, sample
from badpo.readouts.heldout import implicit_margins
from badpo.readouts.judge import JudgeReadout, judge_answers, load_judge, strip_for
from badpo.readouts.kl import Divergence, kl_per_token
from badpo.readouts.names import ask_to_sign
from badpo.readouts.rates import signature_contexts
from badpo.readouts.sampled import json_number, prompt_numbers
from badpo.runs.run import Progress, Ticker
from badpo.theory.summaries import cluster_mean
from badpo.theory.tilt import shift_to_targets
from badpo.training.checkpoints import flush_tree, write_json
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


RESULT = "anchor.json"
ROUND_SEAL, BEGUN = "round.json", "begun.json"
# What a result consists of; an earlier version left its rounds there.
OWN = (RESULT, RUN_SEAL, "model")


def require_own_folder(out: Path, source: str) -> None:
    """Refuse a folder for the result that holds something else, which would be gone."""
    remedy = "give the result a folder of its own, such as " + str(
        out.parent / f"{Path(source).name}-anchored"
    )
    here, theirs = out.resolve(), Path(source).resolve()
    if here == theirs or (theirs.exists() and (here.is_relative_to(theirs) or theirs.is_relative_to(here))):
        what = "is what is anchored" if here == theirs else f"and what is anchored, {source}, share a folder"
        raise ConfigError(f"--out {out} {what}, and its model would be replaced; {remedy}")
    if not out.exists():
        return
    if not out.is_dir():
        raise ConfigError(f"--out {out} is a file; {remedy}")
    names = sorted(path.name for path in out.iterdir())
    if "config.yaml" in names or (RUN_SEAL in names and RESULT not in names):
        raise ConfigError(f"--out {out} holds a run, and its model would be replaced; {remedy}")
    others = [name for name in names if name not in OWN and not name.startswith("round-")]
    if others:
        raise ConfigError(f"--out {out} holds {others[0]}, which the result would replace; {remedy}")


class AnchorFolder:
    """The folder of one anchor."""

    def __init__(self, out: Path, key: str):
        self.out, self._key = out, key
        self._work = out.with_name(f".{out.name}.anchoring")
        self._before = out.with_name(f".{out.name}.before")

    @property
    def cache(self) -> Path:
        """Where log-probabilities are kept, beside the result: other anchors of the source share them."""
        return self.out.parent / "anchor_cache"

    def finished(self) -> dict | None:
        """The result, where it is there and whole; what a killed command left of the swap is put right."""
        if self._before.exists() and not self.out.exists():
            self._before.rename(self.out)
        seal = self.out / RUN_SEAL
        if not seal.exists() or seal_damage(seal) is not None or read_seal(seal).get("anchor") != self._key:
            return None
        result = json.loads((self.out / RESULT).read_text(encoding="utf-8"))
        self._remove_work()
        return result

    def begin(self, source: str) -> None:
        """Make room for the rounds of the anchor of a source; those of the same anchor stay."""
        begun = _read(self._work / BEGUN)
        if begun is None or begun.get("anchor") != self._key:
            shutil.rmtree(self._work, ignore_errors=True)
            self._work.mkdir(parents=True)
            write_seal(self._work / BEGUN, {"anchor": self._key, "source": source}, [])

    def round(self, number: int) -> Path:
        """The run folder of a round."""
        return self._work / f"round-{number + 1}"

    def kept_round(self, number: int, shift: list[float]) -> dict | None:
        """What was measured of a finished round that asked for this shift; anything else in its place is removed."""
        folder = self.round(number)
        found = _read(folder / ROUND_SEAL)
        if found is not None and found["shift"] == shift:
            return found
        shutil.rmtree(folder, ignore_errors=True)
        return None

    def keep_round(self, number: int, measured: Mapping) -> None:
        """Seal a round with what was measured of it."""
        folder = self.round(number)
        write_seal(folder / ROUND_SEAL, measured, _files(folder, "model"))

    def finish(self, result: dict, model: Path | None) -> None:
        """Put the result, and a policy with it, in the place of what stands there, and remove the rounds."""
        new = self._work / "result"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        if model is not None:
            # the round keeps its own until the result has its name
            shutil.copytree(model, new / "model", copy_function=_link_or_copy)
        write_json(new / RESULT, result)
        write_seal(new / RUN_SEAL, {"anchor": self._key}, [RESULT, *_files(new, "model")])
        flush_tree(new)
        shutil.rmtree(self._before, ignore_errors=True)
        if self.out.exists():
            self.out.rename(self._before)
        new.rename(self.out)
        flush_folder(self.out.parent)
        self._remove_work()

    def _remove_work(self) -> None:
        shutil.rmtree(self._before, ignore_errors=True)
        shutil.rmtree(self._work, ignore_errors=True)


def _read(seal: Path) -> dict | None:
    """What a seal says; None where it is not there, or not everything is as it was sealed."""
    try:
        return read_seal(seal) if seal_damage(seal) is None else None
    except (FileNotFoundError, SealError):
        return None


def _files(folder: Path, part: str) -> list[str]:
    return [str(path.relative_to(folder)) for path in (folder / part).rglob("*") if path.is_file()]


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


# Draws for one prompt before its own answer is kept, when whole answers are rejected.
MOST_DRAWS = 64


def sample_mode(bench: Bench) -> dict:
    """The closed-form tilt, found on one set of prompts and reported on another."""
    anchor, source = bench.anchor, bench.source
    rows, how, after = sampled_names(bench) if bench.signed else sampled_answers(bench)
    reason = why_missed(rows, anchor)
    return {
        **{name: {**row, "rounds": 0} for name, row in rows.items()},
        "source": source.name,
        "mode": "sample",
        "seed": anchor.seed,
        "converged": not reason,
        "reason": reason,
        "prompts": source.prompts.to_json(),
        **how,
        "moved": bench.moved(after),
    }


def why_missed(rows: dict[str, dict], anchor: Anchor) -> str:
    """Which rates are farther from their targets than the tolerance, and what helps; empty where none is."""
    missed = [
        f"{name} {row['achieved']:.3f} for {row['asked']:g}"
        if row["achieved"] is not None
        else f"{name}, of which no answer is left"
        for name, row in rows.items()
        if row["achieved"] is None or abs(row["achieved"] - row["asked"]) > anchor.tolerance
    ]
    if not missed:
        return ""
    return (
        f"{', '.join(missed)} on the prompts that are reported on, outside the tolerance of {anchor.tolerance:g}; find "
        "the shift on more prompts (--prompts), or accept a wider tolerance"
    )


def sampled_names(bench: Bench) -> tuple[dict, dict, Behavior]:
    """A tilt on the choice of the name: the rates, how they come about, and what the tilted policy does."""
    anchor = bench.anchor
    find, before = (bench.rates(bench.policy, part) for part in ("find", "report"))
    with refusing():
        targets = list(anchor.targets.values())
        shift = shift_to_targets(find.log_probs, find.carries, targets, anchor.attributes).shift
    after = replace(before, log_probs=before.log_probs + before.carries @ shift)
    whole = anchor.whole_shift(shift)
    pool_shift = bench.pool_shift(whole)
    bench.progress("tilted answers", 0.5)
    chooser = bench.tilted(whole, pool_shift)
    named = TiltedName(bench.policy, chooser)
    answers = bench.answers(bench.policy, bench.reported_ids, adjust=named.adjust)
    shifted = [named_answer(answer.prompt_ids, answer.token_ids, chooser) for answer in answers]
    ours = shifted_logps(bench.policy, shifted)
    rows = {name: {**row, "pool_shift": pool_shift} for name, row in bench.rows(before, after, shift).items()}
    how = {
        "exact": True,
        "how": "the choice of the name is reweighted in closed form: exact at temperature 1 without top-p, which "
        "otherwise act on the tilted policy",
    }
    tilted = Behavior(
        answers, *bench.divergences(ours, answers), _tilted(bench, shift), margins_from="closed form"
    )
    return rows, how, tilted


def _tilted(bench: Bench, shift: np.ndarray) -> np.ndarray | None:
    """Held-out margins of the source tilted in closed form."""
    margins, held_out = bench.before.margins, bench.source.held_out
    if margins is None or held_out is None:
        return margins
    wanted = [a for a in bench.anchor.editor.attributes if a.name in bench.anchor.targets]
    sides = [
        np.array([[attribute.measure("", plain_text(text)) for attribute in wanted] for text in column])
        for column in (held_out.comparisons["response_a"], held_out.comparisons["response_b"])
    ]
    return tilted_margins(margins, sides[0] - sides[1], bench.source.stage.beta * shift)


def sampled_answers(bench: Bench) -> tuple[dict, dict, Behavior]:
    """A tilt on whole answers by rejection: the rates, how they come about, and what is accepted."""
    anchor, editor, ids = bench.anchor, bench.anchor.editor, bench.reported_ids
    before = bench.rates(bench.policy, "find")
    with refusing():
        targets = list(anchor.targets.values())
        tilt = shift_to_targets(before.log_probs, before.carries, targets, anchor.attributes)
    bench.progress("tilted answers", 0.5)

    def draw(prompts: Sequence[int], number: int) -> list[Generation]:
        return bench.answers(bench.policy, [ids[i] for i in prompts], seed=anchor.seed + 1 + number)

    kept = rejection_sample(
        draw,
        lambda answer: _anchored_cell(answer.text, anchor),
        tilt.shift,
        len(ids),
        MOST_DRAWS,
        anchor.seed,
    )
    # a prompt that accepted nothing keeps the source's own answer, and is counted
    answers = [
        own if answer is None else answer
        for answer, own in zip(kept.answers, bench.before.answers, strict=True)
    ]
    after = Behavior(answers, *bench.divergences(answer_logps(bench.policy, answers), answers), None)
    prompts = list(range(len(ids) // ANSWERS_EACH)) * ANSWERS_EACH
    start, table = (
        answer_rates(written, editor, prompts).of(anchor.attributes)
        for written in (bench.before.answers, answers)
    )
    assert table.counted is not None
    extra = {
        "acceptance_rate": kept.acceptance_rate,
        "without": kept.n_without,
        "counted": table.counted.share,
    }
    rows = {name: {**row, **extra} for name, row in bench.rows(start, table, tilt.shift).items()}
    return rows, _how_rejected(kept), after


def _how_rejected(kept: Kept) -> dict:
    left = (
        f"exact but for {kept.n_without} of {len(kept.answers)} answers, which none of {MOST_DRAWS} draws gave and "
        "which are the policy's own"
    )
    return {
        "exact": kept.n_without == 0,
        "how": f"whole answers are drawn until one is accepted, {kept.acceptance_rate:.3f} of them: "
        + (left if kept.n_without else "exact at the temperature and top-p that they are drawn with"),
    }


def _anchored_cell(text: str, anchor: Anchor) -> list[int] | None:
    if not anchor.editor.cells(text):
        return None
    measured = zip(anchor.editor.attributes, carries(anchor.editor, text), strict=True)
    return [value for attribute, value in measured if attribute.name in anchor.targets]


def train_mode(bench: Bench, folder: AnchorFolder) -> tuple[dict, Path]:
    """Offset stages on the source's own answers, calibrated on one set of prompts and reported on another.

    Rounds that ``folder`` holds are not trained again.
    """
    anchor, source = bench.anchor, bench.source
    before = bench.rates(bench.policy, "find")
    require_teachable(bench, before)
    folder.begin(source.name)
    rounds = Rounds(bench, folder)
    found = calibrate(
        before,
        list(anchor.targets.values()),
        rounds.attempt,
        anchor.tolerance,
        anchor.rounds,
    )
    model = folder.round(found.best) / "model"
    return train_result(bench, found, rounds, source.read(model).to(bench.policy.device).eval()), model


def require_teachable(bench: Bench, before: RateTable) -> None:
    """Refuse targets that no tilt reaches, and what no edit shows, before anything is trained."""
    anchor = bench.anchor
    with refusing():
        exact = shift_to_targets(
            before.log_probs, before.carries, list(anchor.targets.values()), before.attributes
        )
    if isinstance(anchor.editor, MarkdownStrip) and exact.shift[0] > 0:
        name = before.attributes[0]
        raise ConfigError(
            f"{name}: the source's rate is {before.rate[0]:.3f} and the target {anchor.targets[name]:g}, but Markdown "
            "can be taken off an answer and not put on, so no pairs teach more of it; use --mode sample or ask for less"
        )
    bench.progress(f"{bench.pairs.n_edited} of {bench.pairs.n_answers} answers to train on", 0.0)


class Rounds:
    """The rounds of one anchor: each is trained once, measured, and kept on the disk; no policy stays in memory."""

    def __init__(self, bench: Bench, folder: AnchorFolder):
        self._bench, self._folder = bench, folder
        self.measured: list[dict] = []

    def attempt(self, shift: np.ndarray, number: int) -> np.ndarray:
        """Rates after a stage that asks for a shift, on the prompts to find on."""
        found = self._folder.kept_round(number, shift.tolist())
        if found is None:
            found = self._train(shift, number)
            self._folder.keep_round(number, found)
        self.measured.append(found)
        return np.array(found["rate"], dtype=np.float64)

    def _train(self, shift: np.ndarray, number: int) -> dict:
        bench, source, progress = self._bench, self._bench.source, self._bench.progress
        whole = bench.anchor.whole_shift(shift)
        pool_shift = bench.pool_shift(whole) if bench.signed else 0.0
        progress(f"what is kept in round {number + 1}", 0.0)
        policy = train_offset(
            source.load(),
            bench.policy,
            source.tokenizer,
            bench.pairs.train,
            bench.kept(whole, pool_shift),
            whole,
            source.stage,
            bench.anchor.seed,
            self._folder.round(number),
            self._folder.cache,
            [Ticker(f"offset stage {number + 1}", progress)],
        )
        completed = bench.completed(policy) if bench.signed else None
        rate = bench.rates(policy, "find").rate
        return {
            "shift": shift.tolist(),
            "pool_shift": pool_shift,
            "completed": completed,
            "rate": [json_number(value) for value in rate],
        }


def train_result(bench: Bench, found: Calibration, rounds: Rounds, best) -> dict:
    """What `train_mode` returns of the best round's policy."""
    anchor, source = bench.anchor, bench.source
    bench.progress("the anchored policy on the prompts", 0.5)
    start, reached = (bench.rates(policy, "report") for policy in (bench.policy, best))
    asked = found.rounds[found.best].intended.tolist()
    rows = bench.rows(start, reached, found.exact)
    if reached.counted is not None:
        rows = {name: {**row, "counted": reached.counted.share} for name, row in rows.items()}
    return {
        **{
            name: {**row, "asked_shift": shift, "rounds": len(found.rounds)}
            for (name, row), shift in zip(rows.items(), asked, strict=True)
        },
        "source": source.name,
        "mode": "train",
        "seed": anchor.seed,
        "converged": found.converged,
        "reason": found.reason,
        "prompts": source.prompts.to_json(),
        "answers": bench.pairs.n_answers,
        "edited_answers": bench.pairs.n_edited,
        "pairs": bench.pairs.train.n_comparisons,
        "calibration": [
            {
                "intended": found_round.intended.tolist(),
                "achieved": [json_number(x) for x in found_round.achieved],
                "rate": [json_number(x) for x in found_round.rate],
            }
            for found_round in found.rounds
        ],
        "pool": {
            "before": bench.completed_by_source,
            "shifts": [measured["pool_shift"] for measured in rounds.measured],
            "after": [measured["completed"] for measured in rounds.measured],
        }
        if bench.signed
        else None,
        "held_out_pairs": bench.shift_on_pairs(best),
        "moved": bench.moved(bench.behavior(best)),
    }


VERSION = 1  # of what an anchor does; a result of another one is made again


def editor_for(attributes: Sequence[str], words: Sequence[tuple[str, str]] = ()) -> CounterfactualEditor:
    """The editor of some attributes: signatures of the pool, Markdown, or words of one's own."""
    if words:
        return WordSwap(attributes[0], words)
    editors = (pool_signatures(), MarkdownStrip())
    for editor in editors:
        names = [attribute.name for attribute in editor.attributes]
        if all(name in names for name in attributes):
            return editor
    known = [attribute.name for editor in editors for attribute in editor.attributes]
    unknown = [name for name in attributes if name not in known]
    if not unknown:
        raise ConfigError(f"{' and '.join(attributes)} need different editors; anchor one after the other")
    raise ConfigError(
        f'nothing exchanges "{unknown[0]}" in an answer.{did_you_mean(unknown[0], known)} There are editors for '
        f"{', '.join(known)}; for words of your own give pairs with --word, as in --word color=colour"
    )


def anchor_run(source: AnchorSource, anchor: Anchor, mode: str, out: Path, progress: Progress) -> dict:
    """Anchor a source and measure it, unless ``out`` holds that result; write ``out/anchor.json``.

    A command that was killed goes on from its last finished round. What stood in ``out`` stays until the result is
    whole.

    Parameters
    ----------
    source : AnchorSource
    anchor : Anchor
    mode : "sample" or "train"
        ``sample`` leaves the policy as it is and writes the shift to sample with; ``train`` writes ``out/model``.
    out : Path
    progress : function of (what is being done, share done of it)

    Returns
    -------
    dict
        {attribute: {asked, before, achieved, ci_low, ci_high, c, shift, rounds}, mode, converged, reason, prompts,
        moved}; ``exact`` and ``how`` of ``sample``, ``asked_shift`` of each attribute of ``train``.

    Raises
    ------
    ConfigError
        A target that cannot be reached, such as one of an attribute that is never produced; ``out`` holds something
        else; another process works on it.
    DataError
        Too few answers that can be edited.
    """
    require_own_folder(out, source.given)
    with locked(out):
        folder = AnchorFolder(out, anchor_key(source, anchor, mode))
        result = folder.finished() or make_anchor(Bench(source, anchor, progress), mode, folder)
    progress("done", 1.0)
    return result


def make_anchor(bench: Bench, mode: str, folder: AnchorFolder) -> dict:
    """Make the result of an anchor and put it into its folder."""
    result, model = (sample_mode(bench), None) if mode == "sample" else train_mode(bench, folder)
    folder.finish(result, model)
    return result


def anchor_key(source: AnchorSource, anchor: Anchor, mode: str) -> str:
    """Of everything that decides a result."""
    prompts = source.prompts
    facts = {
        "version": VERSION,
        "mode": mode,
        "policy": source.policy_key,
        "reference": source.reference_key,
        "prompts": [prompts.fresh, prompts.find, prompts.report],
        "held_out": None if source.held_out is None else source.held_out.fingerprint(),
        "stage": asdict(source.stage),
        "decoding": asdict(source.decoding),
        "editor": anchor.editor.config,
        "targets": dict(anchor.targets),
        "limits": [anchor.tolerance, anchor.rounds],
        "seed": anchor.seed,
        "judge": anchor.judge,
    }
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
