"""Attribute rates asked for and reached, from three biased policies: `python -m bench.anchoring`.

The DPO runs of ``make demo-seeds`` are anchored at 0.3, 0.5 and 0.7 on both attributes, at sampling time and by an
offset stage. Finished anchors in ``runs/anchoring`` are not made again. Writes ``docs/anchoring_results.md`` and a
picture.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from badpo.anchoring.editors import pool_signatures
from badpo.experiments.anchor import RESULT, sample_mode, train_mode
from badpo.experiments.anchor_bench import Anchor, Bench
from badpo.experiments.anchor_source import open_source
from badpo.theory.summaries import t_interval
from badpo.training.run_folder import write_json
from bench.anchoring_picture import picture
from bench.real_data import progress

SOURCES = Path("runs/demo-seeds")
OUT = Path("runs/anchoring")
PAGE, PICTURE = Path("docs/anchoring_results.md"), Path("docs/images/anchoring.svg")
SEEDS, TARGETS, MODES = (42, 123, 456), (0.3, 0.5, 0.7), ("sample", "train")
ATTRIBUTES = ("woman", "black")
# The largest distance from a target that counts as reached, by mode.
MARGINS = {"sample": 0.02, "train": 0.05}
INTRODUCTION = """\
# Anchoring on the demo

Printed by `make anchoring`, from the DPO runs of `make demo-seeds`. `sample` reweights the choice of the name while
sampling; its shift is found on 300 prompts and the rates are read on 300 others. `train` is the offset stage: the
policy's own answers, no votes, calibrated on the first 300 prompts and read on the others. Rates are probabilities of
the names of the pool. All means are over three source seeds, with the 95 % interval over seeds.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--page-only", action="store_true", help="write the page from what is there")
    options = parser.parse_args()
    if not options.page_only:
        for seed in map(int, options.seeds.split(",")):
            anchor_seed(seed, options.modes.split(","))
    write_page(finished())


def folder_of(seed: int, mode: str, target: float) -> Path:
    return OUT / f"dpo-s{seed}-{mode}-{target:g}"


def anchor_seed(seed: int, modes: Sequence[str]) -> None:
    """Every anchor of one source that is not there yet; the source's answers are sampled once."""
    # 0.5 comes first: its line is the one that the others start from
    order = sorted(TARGETS, key=lambda target: abs(target - 0.5))
    missing = [(m, t) for m in modes for t in order if not (folder_of(seed, m, t) / RESULT).exists()]
    if not missing:
        return
    source = open_source(str(SOURCES / f"dpo-s{seed}"))
    bench = Bench(source, Anchor(pool_signatures(), dict.fromkeys(ATTRIBUTES, 0.5), seed=seed), progress)
    if "train" in modes:
        # sampled before the targets share it
        print(f"s{seed}: {bench.pairs.n_answers} answers, {bench.pairs.n_edited} of them signed", flush=True)
    for mode, target in missing:
        at = bench.at(dict.fromkeys(ATTRIBUTES, target))
        out = folder_of(seed, mode, target)
        result = (sample_mode if mode == "sample" else train_mode)(at, out)
        write_json(out / RESULT, result)
        reached = ", ".join(f"{name} {result[name]['achieved']:.3f}" for name in ATTRIBUTES)
        print(
            f"s{seed} {mode} {target:g}: {reached}; {result['reason'] or 'within the tolerance'}", flush=True
        )


def finished() -> dict[tuple[str, float], list[dict]]:
    """Results by mode and target, in the order of the seeds."""
    found: dict[tuple[str, float], list[dict]] = {}
    for mode in MODES:
        for target in TARGETS:
            paths = [folder_of(seed, mode, target) / RESULT for seed in SEEDS]
            results = [json.loads(path.read_text()) for path in paths if path.exists()]
            if results:
                found[mode, target] = results
    return found


def write_page(results: dict[tuple[str, float], list[dict]]) -> None:
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(picture(results, ATTRIBUTES))
    parts = [INTRODUCTION, f"![Asked against achieved]({PICTURE.relative_to(PAGE.parent)})\n", rates(results)]
    parts += [what_moved(results), verdicts(results), rounds(results)]
    PAGE.write_text("\n".join(parts))
    print(PAGE)


def rates(results: dict[tuple[str, float], list[dict]]) -> str:
    rows = []
    for (mode, target), found in results.items():
        columns = [mode, f"{target:g}"]
        for name in ATTRIBUTES:
            columns += [over([r[name]["before"] for r in found]), over([r[name]["achieved"] for r in found])]
        columns.append(f"{max(abs(r[n]['achieved'] - target) for r in found for n in ATTRIBUTES):.3f}")
        rows.append([*columns, over([sum(r[n]["c"] for n in ATTRIBUTES) / 2 for r in found])])
    header = ["mode", "target", "woman before", "woman", "black before", "black", "farthest", "mean c"]
    return "## Rates\n\n" + markdown(header, rows)


def what_moved(results: dict[tuple[str, float], list[dict]]) -> str:
    def of(read: Callable[[dict], float]) -> Callable[[list[dict]], str]:
        return lambda found: over([read(r["moved"]) for r in found])

    readouts = {
        "signed before": of(lambda m: m["editable"]["before"]),
        "signed": of(lambda m: m["editable"]["after"]),
        "sampled woman": of(lambda m: m["sampled"]["woman"]["after"]["rate"]),
        "sampled black": of(lambda m: m["sampled"]["black"]["after"]["rate"]),
        "tokens": of(lambda m: m["tokens"]["ratio"]),
        "same-group accuracy": of(lambda m: m["heldout"]["same"]["difference"]),
        "largest change of a deviation": deviations,
        "gap before": of(lambda m: m["heldout"]["gap"]["before"]),
        "gap": of(lambda m: m["heldout"]["gap"]["after"]),
        "KL source": of(lambda m: m["kl_source"]["per_token"]),
        "KL reference before": of(lambda m: m["kl_reference"]["before"]["per_token"]),
        "KL reference": of(lambda m: m["kl_reference"]["after"]["per_token"]),
    }
    rows = [
        [mode, f"{target:g}", *(read(found) for read in readouts.values())]
        for (mode, target), found in results.items()
    ]
    text = (
        "## What else moved\n\n`tokens` is the ratio of mean lengths, `same-group accuracy` the change of the held-out "
        "accuracy where the responses do not differ, a `deviation` an annotator's lean less the pool mean when the "
        "margins are taken as the quality; KL in nats per token, on sampled answers.\n\n"
    )
    return text + markdown(["mode", "target", *readouts], rows)


def deviations(found: list[dict]) -> str:
    """Largest over annotators, attributes and seeds; in log-odds."""
    return f"{max(value for r in found for value in r['moved']['deviations'].values()):.1e}"


def verdicts(results: dict[tuple[str, float], list[dict]]) -> str:
    """What was asked of the demo, and whether each anchor keeps it."""
    rows = []
    for (mode, target), found in results.items():
        farthest = max(abs(r[n]["achieved"] - target) for r in found for n in ATTRIBUTES)
        moved = [r["moved"] for r in found]
        kl = [m["kl_reference"] for m in moved]
        rows.append(
            [
                mode,
                f"{target:g}",
                f"{len(found)}",
                f"{farthest:.3f}: {yes(farthest <= MARGINS[mode])}",
                beside([m["editable"] for m in moved], 0.03),
                beside([m["tokens"] for m in moved], 0.03 * np.mean([m["tokens"]["before"] for m in moved])),
                beside([m["heldout"]["same"] for m in moved], 0.02),
                yes(all(k["after"]["per_token"] < k["before"]["per_token"] for k in kl)),
            ]
        )
    header = [
        "mode",
        "target",
        "seeds",
        "every rate within 0.02 (sample), 0.05 (train)",
        "signed within 0.03",
        "tokens within 3 %",
        "same-group accuracy within 0.02",
        "KL to the reference falls, every seed",
    ]
    text = (
        "## What was asked for\n\nThe mean over the seeds of the paired difference, with the 95 % interval over "
        "prompts: *yes* where all of the interval lies within the margins, *mean only* where the mean does. "
        f"The rate is monotone in the target: {monotone(results)}.\n\n"
    )
    return text + markdown(header, rows)


def beside(rows: Sequence[dict], margin: float) -> str:
    """A mean paired difference over seeds, its interval, and whether it lies within a margin."""
    mean = float(np.mean([row["difference"] for row in rows]))
    halves = [(row["ci_high"] - row["ci_low"]) / 2 for row in rows]
    half = float(np.sqrt(np.sum(np.square(halves)))) / len(rows)
    verdict = "yes" if abs(mean) + half <= margin else "mean only" if abs(mean) <= margin else "no"
    return f"{mean:+.3f} ({mean - half:+.3f} to {mean + half:+.3f}): {verdict}"


def yes(kept: bool) -> str:
    return "yes" if kept else "no"


def monotone(results: dict[tuple[str, float], list[dict]]) -> str:
    kept = True
    for mode in MODES:
        series = [results[mode, t] for t in TARGETS if (mode, t) in results]
        n_seeds = min(map(len, series), default=0)
        for seed in range(n_seeds):
            for name in ATTRIBUTES:
                kept &= bool(np.all(np.diff([found[seed][name]["achieved"] for found in series]) > 0))
    return "yes" if kept else "no"


def rounds(results: dict[tuple[str, float], list[dict]]) -> str:
    rows = [
        [
            f"{seed}",
            f"{target:g}",
            f"{number + 1}",
            *(f"{x:.2f}" for x in step["intended"]),
            *("-" if x is None else f"{x:.2f}" for x in step["achieved"]),
            *(f"{x:.3f}" for x in step["rate"]),
        ]
        for (mode, target), found in results.items()
        if mode == "train"
        for seed, result in zip(SEEDS, found, strict=False)
        for number, step in enumerate(result["calibration"])
    ]
    header = ["seed", "target", "round"]
    header += [f"{what} {name}" for what in ("intended", "achieved", "rate") for name in ATTRIBUTES]
    return "## Rounds of the calibration\n\nShifts in log-odds.\n\n" + markdown(header, rows)


def over(values: Sequence[float]) -> str:
    found = t_interval(values)
    if len(values) < 2:
        return f"{found.estimate:.3f}"
    return f"{found.estimate:.3f} ({found.low:.3f} to {found.high:.3f})"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


if __name__ == "__main__":
    main()
