"""Anchor a policy's attribute rates at targets, at sampling time or in training, and say what else moved."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from badpo.anchoring.behind import TiltedName, named_answer
from badpo.anchoring.best_of import rejection_sample
from badpo.anchoring.calibration import KeptLines, calibrate
from badpo.anchoring.editors import (
    CounterfactualEditor,
    LongAnswers,
    MarkdownStrip,
    SignatureSwap,
    WordSwap,
    carries,
    pool_signatures,
)
from badpo.anchoring.kept_answers import shifted_logps
from badpo.anchoring.moved import Behavior, tilted_margins
from badpo.anchoring.offset_stage import train_offset
from badpo.anchoring.rates import RateTable, answer_rates
from badpo.anchoring.sampling import anchor_sampling
from badpo.data.attributes import plain_text
from badpo.data.problems import ConfigError, did_you_mean
from badpo.experiments.anchor_bench import Anchor, Bench, answer_logps
from badpo.experiments.anchor_source import AnchorSource
from badpo.experiments.signed_suite import Progress, Ticker
from badpo.readouts.generation import Generation
from badpo.readouts.json_number import json_number
from badpo.theory.tilt import shift_to_targets
from badpo.training.run_folder import write_json

# Draws for one prompt before its own answer is kept, when whole answers are rejected.
MOST_DRAWS = 64
RESULT = "anchor.json"


def editor_for(attributes: Sequence[str], words: Sequence[tuple[str, str]] = ()) -> CounterfactualEditor:
    """The editor of some attributes: signatures of the pool, Markdown, or words of one's own.

    Raises
    ------
    ConfigError
        There is none for an attribute, or the attributes need more than one editor.
    """
    if words:
        return WordSwap(attributes[0], words)
    if list(attributes) == ["length"]:
        # the number of words is that of the source's own answers, once there are some
        return LongAnswers(math.nan)
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
    """Anchor a source, measure it, and write ``out/anchor.json``.

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
        {attribute: {asked, before, achieved, ci_low, ci_high, c, shift, rounds}, mode, converged, reason, moved}.

    Raises
    ------
    ConfigError
        A target that cannot be reached, such as one of an attribute that is never produced.
    DataError
        Too few signed answers.
    """
    try:
        bench = Bench(source, anchor, progress)
        result = (sample_mode if mode == "sample" else train_mode)(bench, out)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    write_json(out / RESULT, result)
    progress("done", 1.0)
    return result


def sample_mode(bench: Bench, out: Path) -> dict:
    """The closed-form tilt, found on one set of prompts and reported on another."""
    anchor, source = bench.anchor, bench.source
    rows, after = sampled_names(bench) if bench.signed else sampled_answers(bench)
    return {
        **{name: {**row, "rounds": 0} for name, row in rows.items()},
        "source": source.name,
        "mode": "sample",
        "seed": anchor.seed,
        "converged": True,
        "reason": "",
        "moved": bench.moved(after),
    }


def sampled_names(bench: Bench) -> tuple[dict, Behavior]:
    """A tilt on the choice of the name: the rates, and what the tilted policy does."""
    anchor, source, editor = bench.anchor, bench.source, bench.anchor.editor
    assert isinstance(editor, SignatureSwap)
    names = list(editor.names)
    cells = np.array([editor.names[name] for name in names], dtype=np.float64)
    carries = cells[:, [[a.name for a in editor.attributes].index(name) for name in anchor.attributes]]
    found = anchor_sampling(
        bench.policy,
        source.tokenizer,
        bench.contexts["find"],
        bench.contexts["report"],
        names,
        carries,
        anchor.attributes,
        list(anchor.targets.values()),
        source.stage.beta,
    )
    whole = anchor.whole_shift(found.shift)
    pool_shift = bench.pool_shift(whole)
    bench.progress("tilted answers", 0.5)
    chooser = bench.tilted(whole, pool_shift)
    named = TiltedName(bench.policy, chooser)
    answers = bench.answers(bench.policy, bench.reported_ids, adjust=named.adjust)
    shifted = [named_answer(answer.prompt_ids, answer.token_ids, chooser) for answer in answers]
    ours = shifted_logps(bench.policy, shifted)
    rows = {name: {**row, "pool_shift": pool_shift} for name, row in found.to_json().items()}
    return rows, Behavior(answers, *bench.divergences(ours, answers), _tilted(bench, found.shift))


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


def sampled_answers(bench: Bench) -> tuple[dict, Behavior]:
    """A tilt on whole answers by rejection: the rates, and what is accepted."""
    anchor, source = bench.anchor, bench.source
    before = bench.rates(bench.policy, "find")
    tilt = shift_to_targets(
        before.log_probs, before.carries, list(anchor.targets.values()), anchor.attributes
    )
    bench.progress("tilted answers", 0.5)
    ids = bench.reported_ids

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
    table = answer_rates(answers, anchor.editor).of(anchor.attributes)
    start = answer_rates(bench.before.answers, anchor.editor).of(anchor.attributes)
    rows = _rows(anchor, start, table, tilt.shift, source.stage.beta)
    extra = {"acceptance_rate": kept.acceptance_rate, "without": kept.n_without}
    return {name: {**row, **extra} for name, row in rows.items()}, after


def _anchored_cell(text: str, anchor: Anchor) -> list[int]:
    measured = zip(anchor.editor.attributes, carries(anchor.editor, text), strict=True)
    return [value for attribute, value in measured if attribute.name in anchor.targets]


def train_mode(bench: Bench, out: Path) -> dict:
    """Offset stages on the source's own answers, calibrated on one set of prompts and reported on another."""
    anchor, source, progress = bench.anchor, bench.source, bench.progress
    pairs, policies = bench.pairs, list[Any]()
    before = bench.rates(bench.policy, "find")

    pool_shifts: list[float] = []
    shares: list[float] = []

    def attempt(shift: np.ndarray, number: int) -> RateTable:
        whole = anchor.whole_shift(shift)
        if bench.signed:
            pool_shifts.append(bench.pool_shift(whole))
        progress(f"what is kept in round {number + 1}", 0.0)
        policies.append(
            train_offset(
                source.load(),
                bench.policy,
                source.tokenizer,
                pairs.train,
                bench.kept(whole, pool_shifts[-1] if pool_shifts else 0.0),
                whole,
                source.stage,
                anchor.seed,
                out / f"round-{number + 1}",
                out.parent / "anchor_cache",
                [Ticker(f"offset stage {number + 1}", progress)],
            )
        )
        if bench.signed:
            shares.append(bench.completed(policies[-1]))
        return bench.rates(policies[-1], "find")

    stage = stage_key(source)
    kept = KeptLines.read(source.lines, stage)
    found = calibrate(before, list(anchor.targets.values()), attempt, anchor.tolerance, anchor.rounds, kept)
    kept.write_into(source.lines, stage)
    _keep_best(out, found.best, len(policies))
    progress("the anchored policy on the prompts", 0.5)
    best = policies[found.best]
    start, reached = (bench.rates(policy, "report") for policy in (bench.policy, best))
    rows = _rows(anchor, start, reached, found.exact, source.stage.beta)
    return {
        **{name: {**row, "rounds": len(found.rounds)} for name, row in rows.items()},
        "source": source.name,
        "mode": "train",
        "seed": anchor.seed,
        "converged": found.converged,
        "reason": found.reason,
        "answers": pairs.n_answers,
        "edited_answers": pairs.n_edited,
        "pairs": pairs.train.n_comparisons,
        "calibration": [
            {
                "intended": found_round.intended.tolist(),
                "achieved": [json_number(x) for x in found_round.achieved],
                "rate": found_round.rate.tolist(),
            }
            for found_round in found.rounds
        ],
        "pool": {"before": bench.completed_by_source, "shifts": pool_shifts, "after": shares}
        if bench.signed
        else None,
        "held_out_pairs": bench.shift_on_pairs(best),
        "moved": bench.moved(bench.behavior(best)),
    }


def stage_key(source: AnchorSource) -> str:
    """Which calibration lines belong to a stage: its settings, whatever the seed and the target."""
    stage = source.stage
    return f"{stage.steps} steps of {stage.batch_size} at {stage.learning_rate:g}, beta {stage.beta:g}"


def _rows(anchor: Anchor, before: RateTable, after: RateTable, shift: np.ndarray, beta: float) -> dict:
    return {
        name: {
            "asked": anchor.targets[name],
            "before": float(before.rate[i]),
            "achieved": interval.estimate,
            "ci_low": json_number(interval.low),
            "ci_high": json_number(interval.high),
            "c": float(beta * shift[i]),
            "shift": float(shift[i]),
        }
        for i, (name, interval) in enumerate(zip(anchor.attributes, after.intervals(), strict=True))
    }


def _keep_best(out: Path, best: int, n_rounds: int) -> None:
    """Move the best round's model to ``out/model``."""
    if (out / "model").exists():
        shutil.rmtree(out / "model")
    (out / f"round-{best + 1}" / "model").rename(out / "model")
    for number in range(n_rounds):
        shutil.rmtree(out / f"round-{number + 1}")
