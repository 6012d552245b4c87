"""How judgments make up a step, and what it does to the result: `python -m bench.batching`.

The demo's corpus, model and settings under every way to batch, at equal judgments and at equal forward cost, over
three seeds. Writes ``docs/batching.md``; what is finished in ``runs/batching`` is not run again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from badpo.experiments.demo import run_demo
from badpo.experiments.suite_settings import SuiteSettings
from badpo.results.labels import arm_label, decimal, percent
from badpo.theory.summaries import t_interval
from bench.markdown_table import markdown_table
from bench.real_data import progress

OUT = Path("runs/batching")
PAGE = Path("docs/batching.md")
SEEDS = (42, 123, 456)
VOTES_PER_COMPARISON = 4
# What is compared, from the cheapest: fields of SuiteSettings.
CASES: dict[str, dict[str, str | int]] = {
    "random": {"batching": "random", "batch_size": 32, "steps": 800},
    "grouped": {"batching": "grouped", "batch_size": 32, "steps": 800},
    "grouped, 64": {"batching": "grouped", "batch_size": 64, "steps": 800},
    "comparisons, 200 steps": {"batching": "comparisons", "batch_size": 32, "steps": 200},
    "comparisons, 800 steps": {"batching": "comparisons", "batch_size": 32, "steps": 800},
}

HEAD = """# How judgments make up a step

Written by `make batching` (`python -m bench.batching`). The corpus (four votes on each comparison), the model and all
other settings are the demo's; three training seeds, means with 95 % t intervals over them.

- `random`, 32 judgments per step: the paper's way, and the comparison's yardstick.
- `grouped`, 32 judgments per step: as many judgments on a quarter of the comparisons.
- `grouped, 64`: twice as many judgments on half of the comparisons.
- `comparisons`, 32 of them with all their 128 judgments: at 200 steps as many judgments as `random`, at 800 steps about
  as many forward passes.

"""


def main() -> None:
    summaries = {name: run_case(name, fields) for name, fields in CASES.items()}
    PAGE.write_text(HEAD + "\n\n".join([cost_table(), *figure_tables(summaries)]) + "\n")
    print(PAGE)


def run_case(name: str, fields: Mapping) -> list[dict]:
    """Reference and arms under one way to batch; the reference is that of the first case."""
    folder, first = (OUT / case.replace(", ", "-").replace(" ", "-") for case in (name, next(iter(CASES))))
    finished = [folder / f"summary-s{seed}.json" for seed in SEEDS]
    if all(summary.exists() for summary in finished):
        return [json.loads(summary.read_text()) for summary in finished]
    if folder != first and not folder.exists():
        shutil.copytree(first / "reference", folder / "reference")
    settings = replace(SuiteSettings(), command="make batching", **fields)
    return run_demo(folder, SEEDS, progress, settings=settings)


def cost_table() -> str:
    rows = []
    for name, fields in CASES.items():
        per_step = {"random": 1, "grouped": 1, "comparisons": VOTES_PER_COMPARISON}[fields["batching"]]
        judgments = fields["steps"] * fields["batch_size"] * per_step
        forwards = judgments if fields["batching"] == "random" else judgments // VOTES_PER_COMPARISON
        rows.append([name, f"{fields['steps']}", f"{judgments:,}", f"{forwards:,}"])
    return markdown_table(["batching", "steps", "judgments", "comparisons read (at most)"], rows)


def figure_tables(summaries: Mapping[str, Sequence[dict]]) -> list[str]:
    """One table per reading: the cases beside each other, for every arm and attribute."""
    return [
        table("Attribute rates", summaries, "rates", lambda value: decimal(value, 3)),
        table("Share of DPO's shift removed", summaries, "removed", percent),
        table("Distance to the reference in log-odds", summaries, "log_odds_distance", decimal),
        correlation_table(summaries),
        table(
            "Held-out votes predicted, minus the planted ceiling",
            {name: [of_all(summary) for summary in found] for name, found in summaries.items()},
            "votes_minus_ceiling",
            lambda value: decimal(value, 3),
        ),
    ]


def of_all(summary: dict) -> dict:
    """A summary whose votes are those of all annotators together."""
    by_arm = summary["votes_minus_ceiling"]
    return {
        "votes_minus_ceiling": {
            arm: {attribute: by_class["all"] for attribute, by_class in by_attribute.items()}
            for arm, by_attribute in by_arm.items()
        }
    }


def table(title: str, summaries: Mapping[str, Sequence[dict]], key: str, number: Callable) -> str:
    first = next(iter(summaries.values()))[0][key]
    rows = [
        [
            arm_label(arm),
            attribute,
            *(interval(found, key, arm, attribute, number) for found in summaries.values()),
        ]
        for arm in first
        for attribute in first[arm]
    ]
    return f"## {title}\n\n" + markdown_table(["arm", "attribute", *summaries], rows)


def correlation_table(summaries: Mapping[str, Sequence[dict]]) -> str:
    key = "theta_correlation"
    rows = [
        [
            attribute,
            *(mean_with_ends([s[key][attribute] for s in found], three) for found in summaries.values()),
        ]
        for attribute in next(iter(summaries.values()))[0][key]
    ]
    return "## Correlation of learned with planted theta (shared mean)\n\n" + markdown_table(
        ["attribute", *summaries], rows
    )


def interval(found: Sequence[dict], key: str, arm: str, attribute: str, number: Callable) -> str:
    return mean_with_ends([summary[key][arm][attribute] for summary in found], number)


def mean_with_ends(values: Sequence[float], number: Callable) -> str:
    over = t_interval(values)
    return f"{number(over.estimate)} ({number(over.low)} to {number(over.high)})"


def three(value: float) -> str:
    return decimal(value, 3)


if __name__ == "__main__":
    main()
