"""The page of `bench.gold_annotators`, from the readouts of its runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from badpo.results.labels import decimal, signed
from badpo.theory.summaries import Interval, log_odds_distance, t_interval
from bench.markdown_table import markdown_table

PAGE = Path("docs/gold_annotators.md")
MARGIN = 0.05

HEAD = """# Gold annotators

Written by `make gold-annotators` (`python -m bench.gold_annotators`). The corpus, the model and the settings are the
demo's (60 annotators, {steps} steps of {batch} judgments, beta {beta}), with a true reward of {reward} log-odds for
each attribute besides the planted leans: everyone, whoever they are, prefers the carrying side by that much. Some
annotators lean nowhere; they vote by quality and the true reward alone. Pairs, names, who judges what and the random
number behind every vote are the same in all rows, and so is the reference. Means over the training seeds, with 95 % t
intervals over them where there are several.

- *DPO, no annotator leans*: what the policy does with the true reward alone. The others are compared with it.
- *pooled, not told*: BA-DPO without gold annotators. Votes cannot tell a reward that all share from a lean that all
  share, so by design it counts the reward as lean.
- *n gold*: shared mean, with `gold_annotators` naming them: their theta is held at zero, the others' is learned.
- *n gold, theta held*: besides, `warm_start: offline` and `learning_rate: 0` in the block `bias`: the others' theta is
  what the audit's conditional estimator makes of the votes with the gold annotators anchored, and stays there.

"""

READ = """

*apart* is the rate minus that of DPO without leans at the same seed and number of steps; the aim is {margin} or less in
size, and what misses it is marked. *theta* is the mean over all 60 annotators, gold ones counted with 0, and *planted*
that of the leans they were given; where no one is named, theta takes up the true reward as well.

How to read it. No row is at its optimum: a true reward of {reward} at beta {beta} is worth {optimum:.0f} log-odds,
which is a rate of nearly 1. Rows therefore differ in speed as well as in where they go. Where theta is learned beside
the policy it takes up the others' level within about a hundred steps (`bias/theta` in `log.jsonl`), and along
the attribute only the gold annotators' votes push the policy from then on. Where theta is held at the audit's estimate,
every vote pushes it.
"""


def write_page(out: Path, cases: Mapping, seeds: Sequence[int], head: Mapping) -> Path:
    """Write the page from what is finished in ``out``; a case without a finished run has no row.

    Parameters
    ----------
    out : Path
    cases : mapping of name to Case
    seeds : sequence of int
    head : mapping
        ``steps``, ``batch``, ``beta`` and ``reward`` of the text.
    """
    found = {
        name: {
            seed: json.loads(path.read_text())
            for seed in seeds
            if (path := readouts_of(out, name, seed)).exists()
        }
        for name in cases
    }
    reference = json.loads((out / "reference" / "readouts.json").read_text())
    parts = [HEAD.format(**head)]
    for attribute, cell in reference["rates"].items():
        parts.append(f"## {attribute}\n\nThe reference's rate is {cell['rate']:.3f}.\n")
        rows = [row(name, case, found, attribute) for name, case in cases.items() if found[name]]
        parts.append(
            markdown_table(["", "seeds", "rate", "apart", "apart in log-odds", "theta", "planted"], rows)
            + "\n"
        )
    rows = [other_row(case, found[name]) for name, case in cases.items() if found[name]]
    parts.append("## What else\n")
    parts.append(markdown_table(["", "KL per token", "held-out gap", "signed answers"], rows))
    PAGE.write_text(
        "\n".join(parts) + READ.format(margin=MARGIN, optimum=head["reward"] / head["beta"], **head)
    )
    return PAGE


def readouts_of(out: Path, name: str, seed: int) -> Path:
    return out / f"{name}-s{seed}" / "readouts.json"


def row(name: str, case, found: Mapping[str, Mapping[int, dict]], attribute: str) -> list[str]:
    rates = {seed: r["rates"][attribute]["rate"] for seed, r in found[name].items()}
    yardstick = "dpo_unbiased" + ("_long" if name.endswith("_long") else "")
    theirs = {seed: r["rates"][attribute]["rate"] for seed, r in found[yardstick].items()}
    common = sorted(rates.keys() & theirs.keys())
    thetas = [r["theta"][attribute] for r in found[name].values()]
    apart, log_odds = "", ""
    if name != yardstick and common:
        own, other = (np.array([values[seed] for seed in common]) for values in (rates, theirs))
        difference = t_interval(own - other)
        apart = f"{signed(difference.estimate, 3)}{ends(difference)}" + (
            "" if abs(difference.estimate) <= MARGIN else " (beyond)"
        )
        log_odds = signed(float(np.mean(log_odds_distance(own, other))))
    rate = t_interval(list(rates.values()))
    return [
        case.label,
        str(len(rates)),
        f"{decimal(rate.estimate, 3)}{ends(rate)}",
        apart,
        log_odds,
        decimal(float(np.mean([theta["level"] for theta in thetas]))) if case.bias != "none" else "",
        decimal(thetas[0]["planted_level"]),
    ]


def other_row(case, runs: Mapping[int, dict]) -> list[str]:
    def mean(read) -> float:
        return float(np.mean([read(r) for r in runs.values()]))

    return [
        case.label,
        decimal(mean(lambda r: r["kl"]["per_token"]), 3),
        signed(mean(lambda r: r["heldout"]["any"]["gap"]), 3),
        decimal(mean(lambda r: r["sampled"]["signed"])),
    ]


def ends(interval: Interval) -> str:
    """The interval in parentheses; nothing for one seed."""
    if not np.isfinite(interval.low):
        return ""
    return f" ({decimal(interval.low, 3)} to {decimal(interval.high, 3)})"
