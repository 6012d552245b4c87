"""Anchoring in training: rounds of an offset stage on the source's own answers, until the rates are reached."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from badpo.anchoring.calibration import Calibration, KeptLines, calibrate
from badpo.anchoring.editors import MarkdownStrip
from badpo.anchoring.offset_stage import train_offset
from badpo.anchoring.rates import RateTable
from badpo.data.files import locked
from badpo.data.problems import ConfigError
from badpo.experiments.anchor_bench import Anchor, Bench, refusing
from badpo.experiments.anchor_files import AnchorFolder
from badpo.experiments.anchor_source import AnchorSource
from badpo.experiments.run import Ticker
from badpo.readouts.json_number import json_number
from badpo.theory.tilt import shift_to_targets


def train_mode(bench: Bench, folder: AnchorFolder) -> tuple[dict, Path]:
    """Offset stages on the source's own answers, calibrated on one set of prompts and reported on another.

    Rounds that ``folder`` holds are not trained again.
    """
    anchor, source = bench.anchor, bench.source
    before = bench.rates(bench.policy, "find")
    require_teachable(bench, before)
    lines = KeptLines() if source.lines is None else KeptLines.read(source.lines, stage_key(source, anchor))
    rounds = Rounds(bench, folder)
    found = calibrate(
        before,
        list(anchor.targets.values()),
        rounds.attempt,
        anchor.tolerance,
        anchor.rounds,
        folder.begin(source.name, lines),
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


def keep_lines(source: AnchorSource, anchor: Anchor, result: dict) -> None:
    """Put the rounds of a result into the file of lines, in the place of those of the same anchor."""
    if source.lines is None:
        return
    stage, name = stage_key(source, anchor), anchor_name(source, anchor)
    with locked(source.lines, wait=True):
        lines = KeptLines.read(source.lines, stage)
        lines.remove(name)
        for measured in result["calibration"]:
            for attribute, intended, achieved in zip(
                anchor.attributes, measured["intended"], measured["achieved"], strict=True
            ):
                if achieved is not None:
                    lines.add(attribute, intended, achieved, name)
        lines.write_into(source.lines, stage)


def stage_key(source: AnchorSource, anchor: Anchor) -> str:
    """Which calibration lines belong to a stage: its source and settings, whatever the seed and the target."""
    stage = source.stage
    return (
        f"{source.family}, {stage.encoding}, {' and '.join(sorted(anchor.attributes))}: {stage.steps} steps of "
        f"{stage.batch_size} at {stage.learning_rate:g}, beta {stage.beta:g}"
    )


def anchor_name(source: AnchorSource, anchor: Anchor) -> str:
    """Which anchor a point of a line is of: its source, seed and targets."""
    targets = ", ".join(f"{name}={target:g}" for name, target in anchor.targets.items())
    return f"{source.name}, seed {anchor.seed}, {targets}"
