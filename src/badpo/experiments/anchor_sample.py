"""Anchoring at sampling time: the policy stays as it is, and its choices are reweighted while it writes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from badpo.anchoring.behind import TiltedName, named_answer
from badpo.anchoring.best_of import Kept, rejection_sample
from badpo.anchoring.editors import SignatureSwap, carries
from badpo.anchoring.kept_answers import shifted_logps
from badpo.anchoring.moved import Behavior, tilted_margins
from badpo.anchoring.rates import answer_rates
from badpo.anchoring.sampled_anchor import anchor_sampling
from badpo.data.attributes import plain_text
from badpo.experiments.anchor_bench import ANSWERS_EACH, Anchor, Bench, answer_logps, refusing
from badpo.readouts.generation import Generation
from badpo.theory.tilt import shift_to_targets

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
    anchor, source, editor = bench.anchor, bench.source, bench.anchor.editor
    assert isinstance(editor, SignatureSwap)
    names = list(editor.names)
    cells = np.array([editor.names[name] for name in names], dtype=np.float64)
    carries = cells[:, [[a.name for a in editor.attributes].index(name) for name in anchor.attributes]]
    with refusing():
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
    how = {
        "exact": True,
        "how": "the choice of the name is reweighted in closed form: exact at temperature 1 without top-p, which "
        "otherwise act on the tilted policy",
    }
    tilted = Behavior(
        answers, *bench.divergences(ours, answers), _tilted(bench, found.shift), margins_from="closed form"
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
