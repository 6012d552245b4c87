"""Anchor a policy's attribute rates at targets, at sampling time or in training, and say what else moved."""

import hashlib
import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from badpo.anchoring.editors import (
    CounterfactualEditor,
    MarkdownStrip,
    SignatureSwap,
    WordSwap,
    carries,
)
from badpo.anchoring.offset_stage import (
    FEWEST_ANSWERS,
    KeptAnswer,
    OffsetPairs,
    calibrate,
    kept_answer,
    offset_pairs,
    train_offset,
)
from badpo.anchoring.rates import Behavior, RateTable, answer_rates, moved, signature_rates
from badpo.anchoring.sampling import redrawn_names, rejection_sample
from badpo.anchoring.source import AnchorSource
from badpo.data.attributes import plain_text
from badpo.data.files import RUN_SEAL, Json, locked, run_damage, write_json, write_seal
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, counted, did_you_mean
from badpo.readouts.generation import Generation, sample
from badpo.readouts.heldout import implicit_margins
from badpo.readouts.judge import judge_scores, load_judge, strip_for
from badpo.readouts.names import ask_to_sign
from badpo.readouts.rates import signature_contexts
from badpo.readouts.sampled import (
    answer_logps,
    figures,
    json_number,
    kl_per_token,
    prompt_numbers,
)
from badpo.runs.evaluate import kept_json
from badpo.runs.run import BEGUN, Progress, Ticker
from badpo.theory import Floats
from badpo.theory.summaries import cluster_mean
from badpo.theory.tilt import shift_to_targets
from badpo.training.checkpoints import whole_folder
from badpo.training.encoding import encode_comparisons, encode_prompts
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
# Draws for one prompt before its own answer is kept, when whole answers are rejected.
MOST_DRAWS = 64
# Below this share of signed answers a rate of names says little of what a policy does.
FEWEST_SIGNED = 0.05
VERSION = 3  # of what an anchor does; a result of another one is made again


@dataclass(frozen=True)
class Anchor:
    """What is asked for: rates of some of the editor's attributes, the shift of the others being zero.

    No rate may be farther from its target than the tolerance after so many offset stages; ``judge`` is a reward model's
    folder or name on the Hub, to score the answers with.
    """

    editor: CounterfactualEditor
    targets: Mapping[str, float]
    tolerance: float = 0.03
    rounds: int = 4
    seed: int = 42
    judge: str | None = None

    def whole_shift(self, shift: Floats) -> Floats:
        """A shift of the anchored attributes as one of all attributes of the editor."""
        given = dict(zip(self.targets, shift.tolist(), strict=True))
        return np.array([given.get(attribute.name, 0.0) for attribute in self.editor.attributes])

    def reason(self, found: str, rates: Sequence[float | None], remedy: str) -> str:
        """Which rates are farther from their targets than the tolerance, put where {} stands; empty where none is."""
        missed = []
        for (name, target), rate in zip(self.targets.items(), rates, strict=True):
            if rate is None or not np.isfinite(rate):
                missed.append(f"{name}, of which no answer is left")
            elif abs(rate - target) > self.tolerance:
                missed.append(f"{name} {rate:.3f} for {target:g}")
        if not missed:
            return ""
        told = found.format(", ".join(missed))
        return (
            f"{told}, outside the tolerance of {self.tolerance:g}; {remedy}, or accept a wider tolerance"
        )


def editor_for(attributes: Sequence[str], words: Sequence[tuple[str, str]] = ()) -> CounterfactualEditor:
    """The editor of some attributes: signatures of the pool, Markdown, or words of one's own."""
    if words:
        return WordSwap(attributes[0], words)
    editors = {
        attribute.name: editor
        for editor in (SignatureSwap(), MarkdownStrip())
        for attribute in editor.attributes
    }
    if unknown := [name for name in attributes if name not in editors]:
        raise ConfigError(
            f'nothing exchanges "{unknown[0]}" in an answer.{did_you_mean(unknown[0], [*editors])} There are editors '
            f"for {', '.join(editors)}; for words of your own give pairs with --word, as in --word color=colour"
        )
    first, *others = {editors[name] for name in attributes}
    if others:
        raise ConfigError(
            f"{' and '.join(attributes)} need different editors; anchor one after the other"
        )
    return first


def anchor_run(source: AnchorSource, anchor: Anchor, mode: str, out: Path, progress: Progress) -> dict:
    """Anchor a source and measure it, unless ``out`` holds that result; write ``out/anchor.json``.

    A command that was killed goes on from its last finished round. What stood in ``out`` stays until the result is
    whole. The mode ``sample`` leaves the policy as it is and writes the shift to sample with; ``train`` writes
    ``out/model``. A `ConfigError` says that a target cannot be reached, such as one of an attribute that is never
    produced, that ``out`` holds something else, or that another process works on it; a `DataError` that too few answers
    can be edited.
    """
    require_own_folder(out, source.given)
    with locked(out):
        folder = AnchorFolder(out, anchor_key(source, anchor, mode))
        result = folder.finished() or make_anchor(Bench(source, anchor, progress), mode, folder)
    progress("done", 1.0)
    return result


def anchor_key(source: AnchorSource, anchor: Anchor, mode: str) -> str:
    """Of everything that decides a result."""
    facts = {
        **vars(anchor),
        "editor": anchor.editor.config,
        "version": VERSION,
        "mode": mode,
        "policy": source.policy_key,
        "reference": source.reference_key,
        "prompts": [source.prompts.fresh, source.prompts.find, source.prompts.report],
        "held_out": None if source.held_out is None else source.held_out.fingerprint(),
        "stage": asdict(source.stage),
        "decoding": asdict(source.decoding),
    }
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


class Bench:
    """A source on its prompts: what every anchor of it shares, whatever the targets and rounds of ``anchor``."""

    def __init__(self, source: AnchorSource, anchor: Anchor, progress: Progress):
        self.source, self.anchor, self.progress = source, anchor, progress
        self.signed = isinstance(anchor.editor, SignatureSwap)
        self.judge = None if anchor.judge is None else load_judge(anchor.judge)
        progress("the source on the prompts", 0.0)
        self.policy = source.read().eval()
        prompts = source.prompts
        self.ids = {
            "report": self.prompt_ids(prompts.report),
            "find": self.prompt_ids(prompts.find),
        }
        # the prompt of every answer of a `Behavior`
        self.reported_ids = self.ids["report"] * ANSWERS_EACH
        self.reported_prompts = prompts.report * ANSWERS_EACH
        self.contexts: dict[str, list[list[int]]] = {}
        for part, ids in self.ids.items() if self.signed else ():
            # the reference's where there is one, so that all anchors share them
            written = self.answers(source.reference or self.policy, ids, seed=0)
            self.contexts[part] = signature_contexts(written, source.tokenizer)
        self.before = self.behavior(self.policy)

    def texts(self, prompts: Sequence[str]) -> list[str]:
        """Prompts with the request to sign, where signatures are anchored."""
        return [ask_to_sign(prompt) for prompt in prompts] if self.signed else list(prompts)

    def prompt_ids(self, prompts: Sequence[str]) -> list:
        """Prompts as the policy reads them."""
        stage, texts = self.source.stage, self.texts(prompts)
        return encode_prompts(texts, self.source.tokenizer, stage.encoding, stage.max_prompt_length)

    @refusing()
    def answers(self, policy, prompt_ids, seed: int | None = None) -> list[Generation]:
        """One answer to each prompt."""
        seed, how = self.anchor.seed if seed is None else seed, vars(self.source.decoding)
        return sample(policy, self.source.tokenizer, prompt_ids, **how, seed=seed)

    @refusing()
    def rates(self, policy, part: str) -> RateTable:
        """Rates of the anchored attributes on the prompts to "find" or to "report" on."""
        editor = self.anchor.editor
        if isinstance(editor, SignatureSwap):
            table = signature_rates(policy, self.source.tokenizer, self.contexts[part], editor)
        else:
            answers = self.answers(policy, self.ids[part])
            table = answer_rates(answers, editor, range(len(answers)))
        return table.of([*self.anchor.targets])

    @refusing()
    def exact_shift(self, table: RateTable) -> Floats:
        """The shift that brings the rates of a table to their targets in closed form."""
        targets = list(self.anchor.targets.values())
        return shift_to_targets(table.log_probs, table.carries, targets, table.attributes)

    def rows(self, before: RateTable, after: RateTable, shift: Floats, **more: Any) -> Json:
        """{attribute: {asked, before, achieved, ci_low, ci_high, c, shift}}; ``counted`` of sampled answers."""
        share = {} if after.counted is None else {"counted": after.counted}
        found = zip(self.anchor.targets.items(), before.rate, after.intervals(), shift, strict=True)
        return {
            name: figures(
                asked=asked,
                before=rate,
                achieved=interval.estimate,
                ci_low=interval.low,
                ci_high=interval.high,
                c=self.source.stage.beta * moved_by,
                shift=moved_by,
            )
            | share
            | more
            for (name, asked), rate, interval, moved_by in found
        }

    def hardly_signed(self) -> str:
        """Why no rate of names can be anchored here; empty where it can be."""
        answers = self.before.answers
        n = sum(bool(self.anchor.editor.cells(answer.text)) for answer in answers)
        if not self.signed or n >= FEWEST_SIGNED * len(answers):
            return ""
        share = f"{n:,} of {len(answers):,} sampled answers ({n / len(answers):.1%})"
        return (
            f"{share} are signed with a name of the pool; below {FEWEST_SIGNED:.0%} no rate of names reaches a target; "
            "anchor a policy that signs when it is asked to, such as one trained on signed answers, or give --prompts "
            "whose answers it signs"
        )

    # -- what a policy does ------------------------------------------------------------------------------------

    def behavior(self, policy) -> Behavior:
        """What a policy does on the prompts that are reported on."""
        answers, source = self.answers(policy, self.reported_ids), self.source
        margins = None
        if source.reference is not None and source.held_out is not None:
            margins = self.margins(source.reference, policy, source.held_out)
        return self.measured(answers, answer_logps(policy, answers), margins=margins)

    def measured(
        self, answers: Sequence[Generation], logps: Sequence[Floats], **margins: Any
    ) -> Behavior:
        """Answers with the divergences of the policy that gives their tokens these log-probabilities, and judged."""
        how = self.source.decoding
        known = (how.temperature, how.top_p, prompt_numbers(answers))
        source, reference = (
            None if other is None else kl_per_token(logps, answer_logps(other, answers), *known)
            for other in (self.policy, self.source.reference)
        )
        return Behavior(answers, source, reference, judged=self.judged(answers), **margins)

    def judged(self, answers: Sequence[Generation]) -> dict[str, Floats]:
        """Scores of answers by the reward model, as they are and without the attribute."""
        if self.judge is None:
            return {}
        self.progress("the judge", 0.0)
        texts = {"rm": [answer.text for answer in answers]}
        if strip := strip_for(self.anchor.editor.attributes[0]):
            texts["rm_minus"] = list(map(strip, texts["rm"]))
        prompts = self.texts(self.reported_prompts)
        return {name: judge_scores(self.judge, prompts, given)[0] for name, given in texts.items()}

    def margins(self, reference, policy, judgments: Judgments) -> Floats:
        """Implicit margins of a policy against a reference."""
        source, stage = self.source, self.source.stage
        cache = ReferenceCache(source.cache, weights_key(reference, "fp32"))
        limits = (stage.encoding, stage.max_length, stage.max_prompt_length)
        return implicit_margins(
            policy, reference, cache, judgments, source.tokenizer, *limits, stage.beta
        )

    def moved(self, after: Behavior) -> dict:
        """What else moved."""
        return moved(self.before, after, self.reported_prompts, self.anchor.editor, self.source.held_out)

    # -- what an offset stage is trained on --------------------------------------------------------------------

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
        fewest = max(FEWEST_ANSWERS, math.ceil(self.signed * FEWEST_SIGNED * len(texts)))
        pairs = offset_pairs(prompts, texts, self.anchor.editor, self.anchor.seed, fewest=fewest)
        self.progress(f"{pairs.n_edited} of {pairs.n_answers} answers to train on", 0.0)
        return pairs

    @cached_property
    def kept(self) -> list[KeptAnswer]:
        """The source's own answers, edited ones as in their pairs."""
        stage, rows = self.source.stage, self.pairs.train.comparisons
        lengths = (stage.max_length, stage.max_prompt_length)
        encoded = encode_comparisons(rows, self.source.tokenizer, stage.encoding, *lengths).pairs
        unedited = [self.written[i] for i in self.pairs.unedited]
        kept = [kept_answer(answer.prompt_ids, answer.token_ids) for answer in unedited]
        # response a is the same in all pairs of an answer
        for pairs in rows.groupby("prompt_id", sort=False).indices.values():
            prompt, answer = encoded[2 * pairs[0]]
            kept.append(kept_answer(prompt, answer, [encoded[2 * i + 1][1] for i in pairs]))
        return kept

    def shift_on_pairs(self, policy) -> Json:
        """Log-odds by which a policy moved pairs that no stage saw, for each attribute of the editor."""
        held_out = self.pairs.held_out
        pair = held_out.votes["comparison"].to_numpy()
        moved_by = self.margins(self.policy, policy, held_out)[pair] / self.source.stage.beta
        found = {}
        for name, column in zip(held_out.attribute_names, held_out.delta.T, strict=True):
            mean = cluster_mean((moved_by * column)[column != 0], pair[column != 0])
            found[name] = figures(shift=mean.estimate, ci_low=mean.low, ci_high=mean.high)
        return found


# -- the folder of a result --------------------------------------------------------------------------------------

RESULT, MEASURED = "anchor.json", "round.json"


def require_own_folder(out: Path, source: str) -> None:
    """Refuse a folder for the result that holds something else, which would be gone."""
    own = out.parent / f"{Path(source).name}-anchored"
    remedy = f"give the result a folder of its own, such as {own}"
    here, theirs = out.resolve(), Path(source).resolve()
    if theirs.exists() and (here.is_relative_to(theirs) or theirs.is_relative_to(here)):
        raise ConfigError(f"--out {out} and what is anchored, {source}, share a folder; {remedy}")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file; {remedy}")
    names = {path.name for path in out.iterdir()} if out.exists() else set()
    others = sorted(names - {RESULT, RUN_SEAL, "model"} if RESULT in names else names)
    if others:
        raise ConfigError(f"--out {out} holds {others[0]}, which the result would replace; {remedy}")


class AnchorFolder:
    """The folder of one anchor, and beside it the rounds that lead there."""

    def __init__(self, out: Path, key: str):
        self.out, self._key = out, key
        self._work = out.with_name(f".{out.name}.anchoring")
        # of log-probabilities, beside the result: other anchors of the source share them
        self.cache = out.parent / "anchor_cache"

    def finished(self) -> dict | None:
        """The result, where it is there and whole."""
        if kept_json(self.out / RUN_SEAL).get("anchor") != self._key or run_damage(self.out):
            return None
        return kept_json(self.out / RESULT)

    def begin(self, source: str) -> None:
        """Make room for the rounds of the anchor of a source; those of the same anchor stay."""
        if kept_json(self._work / BEGUN).get("anchor") != self._key:
            shutil.rmtree(self._work, ignore_errors=True)
            self._work.mkdir(parents=True)
            write_json(self._work / BEGUN, {"anchor": self._key, "source": source}, private=True)

    def round(self, number: int) -> Path:
        """The run folder of a round."""
        return self._work / f"round-{number + 1}"

    def kept_round(self, number: int, shift: list[float]) -> dict:
        """What was measured of a finished round that asked for this shift; anything else in its place is removed."""
        found = kept_json(self.round(number) / MEASURED)
        if found.get("shift") == shift:
            return found
        shutil.rmtree(self.round(number), ignore_errors=True)
        return {}

    def finish(self, result: dict, model: Path | None) -> None:
        """Put the result, and a policy with it, in the place of what stands there, and remove the rounds."""
        with whole_folder(self.out) as new:
            new.mkdir(parents=True)
            if model is not None:
                shutil.copytree(model, new / "model")
            write_json(new / RESULT, result)
            files = [str(path.relative_to(new)) for path in new.rglob("*") if path.is_file()]
            write_seal(new / RUN_SEAL, {"anchor": self._key}, files)
        shutil.rmtree(self._work, ignore_errors=True)


# -- the two modes -----------------------------------------------------------------------------------------------


def make_anchor(bench: Bench, mode: str, folder: AnchorFolder) -> dict:
    """Make the result of an anchor and put it into its folder."""
    found, model = (sample_mode(bench), None) if mode == "sample" else train_mode(bench, folder)
    result = {
        **found,
        "source": bench.source.name,
        "mode": mode,
        "seed": bench.anchor.seed,
        "converged": not found["reason"],
        "prompts": bench.source.prompts.to_json(),
    }
    folder.finish(result, model)
    return result


def sample_mode(bench: Bench) -> dict:
    """The closed-form tilt, found on one set of prompts and reported on another."""
    shift = bench.exact_shift(bench.rates(bench.policy, "find"))
    bench.progress("tilted answers", 0.5)
    rows, how, after = (sampled_names if bench.signed else sampled_answers)(bench, shift)
    reason = bench.hardly_signed() or bench.anchor.reason(
        "{} on the prompts that are reported on",
        [row["achieved"] for row in rows.values()],
        "find the shift on more prompts (--prompts)",
    )
    return {**rows, "reason": reason, **how, "moved": bench.moved(after)}


def sampled_names(bench: Bench, shift: Floats) -> tuple[dict, dict, Behavior]:
    """A tilt on the choice of the name: the rates, how they come about, and what the tilted policy does."""
    source, anchor, editor = bench.source, bench.anchor, bench.anchor.editor
    assert isinstance(editor, SignatureSwap)
    before = bench.rates(bench.policy, "report")
    after = replace(before, log_probs=before.log_probs + before.carries @ shift)
    answers, gains = redrawn_names(
        bench.policy,
        source.tokenizer,
        bench.before.answers,
        editor,
        anchor.whole_shift(shift),
        anchor.seed,
    )
    logps = answer_logps(bench.policy, answers)
    for values, gain in zip(logps, gains, strict=True):
        values[-1] += gain
    how = {
        "exact": True,
        "how": "the name of a signature is drawn anew from the policy's probabilities of all names, reweighted in "
        "closed form; everything else in an answer is the policy's own",
    }
    margins = tilted_margins(bench, shift)
    tilted = bench.measured(answers, logps, margins=margins, margins_from="closed form")
    return bench.rows(before, after, shift, rounds=0), how, tilted


def tilted_margins(bench: Bench, shift: Floats) -> Floats | None:
    """Held-out margins of the source tilted in closed form: u + c (g_a - g_b)."""
    margins, held_out = bench.before.margins, bench.source.held_out
    if margins is None or held_out is None:
        return None
    a, b = (
        np.array([carries(bench.anchor.editor, plain_text(text)) for text in held_out.comparisons[side]])
        for side in ("response_a", "response_b")
    )
    return margins + bench.source.stage.beta * (a - b) @ bench.anchor.whole_shift(shift)


def sampled_answers(bench: Bench, shift: Floats) -> tuple[dict, dict, Behavior]:
    """A tilt on whole answers by rejection: the rates, how they come about, and what is accepted."""
    anchor, editor, ids = bench.anchor, bench.anchor.editor, bench.reported_ids

    def draw(prompts: Sequence[int], number: int) -> list[Generation]:
        return bench.answers(bench.policy, [ids[i] for i in prompts], seed=anchor.seed + 1 + number)

    kept, acceptance = rejection_sample(
        draw,
        lambda answer: carries(editor, answer.text) if editor.cells(answer.text) else None,
        anchor.whole_shift(shift),
        len(ids),
        MOST_DRAWS,
        anchor.seed,
    )
    # a prompt that accepted nothing keeps the source's own answer, and is counted
    own, n_without = bench.before.answers, kept.count(None)
    answers = [own[i] if answer is None else answer for i, answer in enumerate(kept)]
    prompts = list(range(len(bench.ids["report"]))) * ANSWERS_EACH
    start, table = (
        answer_rates(written, editor, prompts).of([*anchor.targets]) for written in (own, answers)
    )
    left = (
        f"exact but for {n_without} of {len(kept)} answers, which none of {MOST_DRAWS} draws gave and which are the "
        "policy's own"
    )
    how = {
        "exact": n_without == 0,
        "how": f"whole answers are drawn until one is accepted, {acceptance:.3f} of them: "
        + (left if n_without else "exact at the temperature and top-p that they are drawn with"),
    }
    rows = bench.rows(start, table, shift, acceptance_rate=acceptance, without=n_without, rounds=0)
    return rows, how, bench.measured(answers, answer_logps(bench.policy, answers))


def train_mode(bench: Bench, folder: AnchorFolder) -> tuple[dict, Path]:
    """Offset stages on the source's own answers, calibrated on one set of prompts and reported on another.

    Rounds that ``folder`` holds are not trained again.
    """
    anchor, source = bench.anchor, bench.source
    find = bench.rates(bench.policy, "find")
    require_teachable(bench, find)
    n_pairs = bench.pairs.train.n_comparisons  # too few answers are refused before a folder is begun
    folder.begin(source.name)
    targets = list(anchor.targets.values())
    rounds, best = calibrate(
        find,
        targets,
        lambda *ask: round_rates(bench, folder, *ask),
        anchor.tolerance,
        anchor.rounds,
    )
    model = folder.round(best) / "model"
    policy = source.read(model).to(bench.policy.device).eval()
    bench.progress("the anchored policy on the prompts", 0.5)
    start, reached = (bench.rates(one, "report") for one in (bench.policy, policy))
    rows = bench.rows(start, reached, rounds[0].intended, rounds=len(rounds))
    for row, asked in zip(rows.values(), rounds[best].intended.tolist(), strict=True):
        row["asked_shift"] = asked
    result = {
        **rows,
        "reason": anchor.reason(
            f"after {counted(len(rounds), 'round')} the nearest is {{}}",
            rounds[best].rate.tolist(),
            "allow more rounds, give the stage more steps or a higher learning rate",
        ),
        "answers": bench.pairs.n_answers,
        "edited_answers": bench.pairs.n_edited,
        "pairs": n_pairs,
        "calibration": [
            {
                name: list(map(json_number, getattr(found, name)))
                for name in ("intended", "achieved", "rate")
            }
            for found in rounds
        ],
        "held_out_pairs": bench.shift_on_pairs(policy),
        "moved": bench.moved(bench.behavior(policy)),
    }
    return result, model


def require_teachable(bench: Bench, before: RateTable) -> None:
    """Refuse targets that no tilt reaches, and what no edit shows, before anything is trained."""
    anchor, shift = bench.anchor, bench.exact_shift(before)
    if isinstance(anchor.editor, MarkdownStrip) and shift[0] > 0:
        name = before.attributes[0]
        raise ConfigError(
            f"{name}: the source's rate is {before.rate[0]:.3f} and the target {anchor.targets[name]:g}, but Markdown "
            "can be taken off an answer and not put on, so no pairs teach more of it; use --mode sample or ask for less"
        )


def round_rates(bench: Bench, folder: AnchorFolder, shift: Floats, number: int) -> Floats:
    """Rates on the prompts to find on after a stage that asks for a shift; a kept round is not trained again."""
    kept = folder.kept_round(number, shift.tolist())
    if not kept:
        source = bench.source
        policy = train_offset(
            source.read(),
            bench.policy,
            source.tokenizer,
            bench.pairs.train,
            bench.kept,
            bench.anchor.whole_shift(shift),
            source.stage,
            bench.anchor.seed,
            folder.round(number),
            folder.cache,
            [Ticker(f"offset stage {number + 1}", bench.progress)],
        )
        rate = bench.rates(policy, "find").rate
        kept = {"shift": shift.tolist(), "rate": list(map(json_number, rate))}
        # last of all: what is measured is whole
        write_json(folder.round(number) / MEASURED, kept)
    return np.array(kept["rate"], float)
