"""The page of `bench.anchoring`, from the results of its anchors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from badpo.experiments.anchor_bench import ANSWERS_EACH
from badpo.results.labels import signed
from badpo.theory.summaries import Interval, t_interval
from bench.anchoring_picture import picture
from bench.markdown_table import markdown_table

TARGETS, MODES, ATTRIBUTES = (0.3, 0.5, 0.7), ("sample", "train"), ("woman", "black")
# The largest distance from a target that counts as reached, by mode.
FARTHEST = {"sample": 0.02, "train": 0.05}
SIGNED, TOKENS, SAME = 0.03, 0.03, 0.02
KEPT, IN_THE_MEAN, MISSED = "yes", "mean only", "no"

# By mode and target, and there by the source's seed.
Results = dict[tuple[str, float], dict[int, dict]]

INTRODUCTION = """\
# Anchoring on the demo

Printed by `make anchoring`, from the DPO runs of `make demo-seeds` at {seeds}.
`sample` reweights the choice of the name while sampling; its shift is found on one set of prompts and the rates are
read on {n_prompts} others. `train` is the offset stage: the policy's own answers, no votes, calibrated on the first set
and read on the others. Rates are probabilities of the names of the pool, a name counted only where a space follows it;
the paper's readout, which [the demo's page](results_demo.md) has, also counts longer words that begin with it, and can
stand elsewhere for the same policies. All means are over the source seeds, with the
95 % t interval over them.
"""
MOVED = """\
## What else moved

`tokens` is the ratio of mean lengths, `same-group accuracy` the change of the held-out accuracy where the responses do
not differ, a `deviation` an annotator's lean less the pool mean when the margins are taken as the quality; KL in nats
per token, on the answers as they are decoded: the published estimate ([readouts.md](readouts.md)).

{closed}"""
CLOSED = """\
Of `sample`, same-group accuracy, gap and deviations are no measurement: they follow in closed form from the source's
margins, plus c times the difference of the responses, so that the first and the last cannot change.

"""
ASKED = """\
## What was asked for

Paired differences, anchored minus source at the same seed: the mean over seeds with the 95 % t interval over seeds,
and behind the semicolon the 95 % interval over prompts at these seeds. *yes* where both intervals lie within the
margins, *mean only* where the mean does. The rate is monotone in the target: {monotone}.

"""


def write_page(results: Results, page: Path, image: Path) -> None:
    """Write the page and its picture; what was not anchored has no row."""
    image.parent.mkdir(parents=True, exist_ok=True)
    image.write_text(picture({key: list(found.values()) for key, found in results.items()}, ATTRIBUTES))
    parts = [
        introduction(results),
        f"![Asked against achieved]({image.relative_to(page.parent)})\n",
        rates(results) + "\n",
        what_moved(results) + "\n",
        what_was_asked_for(results) + "\n",
        rounds(results) + "\n",
    ]
    page.write_text("\n".join(parts))


def introduction(results: Results) -> str:
    seeds = sorted({seed for found in results.values() for seed in found})
    answers = {
        r["moved"]["kl_source"]["n_generations"] // ANSWERS_EACH
        for found in results.values()
        for r in found.values()
    }
    named = f"seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"seed {seeds[0]}"
    return INTRODUCTION.format(seeds=named, n_prompts=" or ".join(map(str, sorted(answers))))


def rates(results: Results) -> str:
    rows = []
    for (mode, target), found in results.items():
        columns = [mode, f"{target:g}"]
        for name in ATTRIBUTES:
            sides = [{seed: r[name][side] for seed, r in found.items()} for side in ("before", "achieved")]
            columns += [over(side, float) for side in sides]
        columns += [f"{farthest(found, target):.3f}"]
        rows.append([*columns, over(found, lambda r: sum(r[n]["c"] for n in ATTRIBUTES) / 2)])
    header = ["mode", "target", "woman before", "woman", "black before", "black", "farthest", "mean c"]
    return "## Rates\n\n" + markdown_table(header, rows)


def what_moved(results: Results) -> str:
    readouts: dict[str, Callable[[dict], float]] = {
        "signed before": lambda m: m["editable"]["before"],
        "signed": lambda m: m["editable"]["after"],
        "sampled woman": lambda m: m["sampled"]["woman"]["after"]["rate"],
        "sampled black": lambda m: m["sampled"]["black"]["after"]["rate"],
        "tokens": lambda m: m["tokens"]["ratio"],
        "same-group accuracy": lambda m: m["heldout"]["same"]["difference"],
        "gap before": lambda m: m["heldout"]["gap"]["before"],
        "gap": lambda m: m["heldout"]["gap"]["after"],
        "KL source": lambda m: m["kl_source"]["per_token"],
        "KL reference before": lambda m: m["kl_reference"]["before"]["per_token"],
        "KL reference": lambda m: m["kl_reference"]["after"]["per_token"],
    }
    rows = [
        [
            mode,
            f"{target:g}",
            *(over(moved, read) for read in readouts.values()),
            largest_deviation(found),
        ]
        for (mode, target), found in results.items()
        for moved in [{seed: r["moved"] for seed, r in found.items()}]
    ]
    closed = (
        CLOSED if any(is_closed_form(mode, r) for (mode, _), f in results.items() for r in f.values()) else ""
    )
    header = ["mode", "target", *readouts, "largest change of a deviation"]
    return MOVED.format(closed=closed) + markdown_table(header, rows)


def is_closed_form(mode: str, result: Mapping) -> bool:
    """Whether held-out figures of a result are the closed form's; older results do not say."""
    older = "closed form" if mode == "sample" else "measured"
    return result["moved"].get("heldout_from", older) == "closed form"


def largest_deviation(found: Mapping[int, dict]) -> str:
    """Over annotators, attributes and seeds; in log-odds."""
    return f"{max(value for r in found.values() for value in r['moved']['deviations'].values()):.1e}"


def farthest(found: Mapping[int, dict], target: float) -> float:
    """Largest distance of a rate from its target, over attributes and seeds."""
    return max(abs(r[name]["achieved"] - target) for r in found.values() for name in ATTRIBUTES)


@dataclass(frozen=True)
class Verdict:
    """A margin of the issue, what was measured against it, and whether it is kept."""

    text: str
    kept: str


def verdicts(mode: str, target: float, found: Mapping[int, dict]) -> dict[str, Verdict]:
    """What was asked of the demo, for one mode and target."""
    moved = [r["moved"] for r in found.values()]
    far = farthest(found, target)
    kl = [m["kl_reference"] for m in moved]
    falls = [k["after"]["per_token"] - k["before"]["per_token"] for k in kl]
    n_falls = sum(change < 0 for change in falls)
    mean_falls = MISSED if np.mean(falls) >= 0 else IN_THE_MEAN
    tokens = TOKENS * float(np.mean([m["tokens"]["before"] for m in moved]))
    return {
        f"every rate within {FARTHEST['sample']:g} (sample), {FARTHEST['train']:g} (train)": Verdict(
            f"{far:.3f}", KEPT if far <= FARTHEST[mode] else MISSED
        ),
        f"signed within {SIGNED:g}": within([m["editable"] for m in moved], SIGNED),
        f"tokens within {100 * TOKENS:g} %": within([m["tokens"] for m in moved], tokens),
        f"same-group accuracy within {SAME:g}": within([m["heldout"]["same"] for m in moved], SAME),
        "KL to the reference falls at every seed": Verdict(
            f"{number(t_interval(falls))}, at {n_falls} of {len(falls)}",
            KEPT if n_falls == len(falls) else mean_falls,
        ),
    }


def within(rows: Sequence[Mapping], margin: float) -> Verdict:
    """A paired difference over seeds with both of its intervals, against a margin."""
    seeds = t_interval([row["difference"] for row in rows])
    halves = [(row["ci_high"] - row["ci_low"]) / 2 for row in rows]
    half = float(np.sqrt(np.sum(np.square(halves)))) / len(rows)
    ends = [seeds.estimate - half, seeds.estimate + half]
    ends += [end for end in (seeds.low, seeds.high) if np.isfinite(end)]
    kept = IN_THE_MEAN if abs(seeds.estimate) <= margin else MISSED
    return Verdict(
        f"{number(seeds)}; {signed(ends[0], 3)} to {signed(ends[1], 3)}",
        KEPT if max(map(abs, ends)) <= margin else kept,
    )


def what_was_asked_for(results: Results) -> str:
    found = {key: verdicts(*key, anchors) for key, anchors in results.items()}
    header = ["mode", "target", "seeds", *next(iter(found.values()))]
    rows = [
        [mode, f"{target:g}", str(len(results[mode, target])), *(f"{v.text}: {v.kept}" for v in row.values())]
        for (mode, target), row in found.items()
    ]
    text = ASKED.format(monotone=monotone(results))
    return text + markdown_table(header, rows) + "\n\n" + what_is_missed(found)


def what_is_missed(found: Mapping[tuple[str, float], Mapping[str, Verdict]]) -> str:
    """The margins that are not kept everywhere, where, and whether at least the mean keeps them."""
    lines = []
    for name in next(iter(found.values())):
        where = {
            kept: [f"{mode} {target:g}" for (mode, target), row in found.items() if row[name].kept == kept]
            for kept in (IN_THE_MEAN, MISSED)
        }
        told = [f"in the mean only at {', '.join(where[IN_THE_MEAN])}"] if where[IN_THE_MEAN] else []
        told += [f"missed at {', '.join(where[MISSED])}"] if where[MISSED] else []
        if told:
            lines.append(f"*{name}* is {' and '.join(told).replace('in the mean', 'kept in the mean')}")
    if not lines:
        return "Every margin is kept at every target."
    return "Not everything that was asked for is there: " + "; ".join(lines) + "."


def monotone(results: Results) -> str:
    """Whether every rate rises with its target, at each seed that has all of them."""
    kept = True
    for mode in MODES:
        series = [results[mode, target] for target in TARGETS if (mode, target) in results]
        common = set.intersection(*map(set, series)) if series else set()
        for seed in common:
            for name in ATTRIBUTES:
                kept &= bool(np.all(np.diff([found[seed][name]["achieved"] for found in series]) > 0))
    return "yes" if kept else "no"


def rounds(results: Results) -> str:
    rows = [
        [
            f"{seed}",
            f"{target:g}",
            f"{n + 1}",
            *(f"{x:.2f}" for x in step["intended"]),
            *("-" if x is None else f"{x:.2f}" for x in step["achieved"]),
            *("-" if x is None else f"{x:.3f}" for x in step["rate"]),
        ]
        for (mode, target), found in results.items()
        if mode == "train"
        for seed, result in found.items()
        for n, step in enumerate(result["calibration"])
    ]
    header = ["seed", "target", "round"]
    header += [f"{what} {name}" for what in ("intended", "achieved", "rate") for name in ATTRIBUTES]
    return "## Rounds of the calibration\n\nShifts in log-odds.\n\n" + markdown_table(header, rows)


def over(found: Mapping[int, Any], read: Callable[[Any], float]) -> str:
    """Mean over the seeds with its interval, where there are several."""
    over_seeds = t_interval([read(result) for result in found.values()])
    if not np.isfinite(over_seeds.low):
        return f"{over_seeds.estimate:.3f}"
    return f"{over_seeds.estimate:.3f} ({over_seeds.low:.3f} to {over_seeds.high:.3f})"


def number(found: Interval) -> str:
    """A difference with its interval, where there is one."""
    if not np.isfinite(found.low):
        return signed(found.estimate, 3)
    return f"{signed(found.estimate, 3)} ({signed(found.low, 3)} to {signed(found.high, 3)})"
