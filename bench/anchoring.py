"""Attribute rates asked for and reached, from three biased policies: `python -m bench.anchoring`.

The DPO runs of ``make demo-seeds`` are anchored at 0.3, 0.5 and 0.7 on both attributes, at sampling time and by an
offset stage. Finished anchors in ``runs/anchoring`` are not made again. Writes ``docs/anchoring_results.md`` and a
picture.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from badpo.anchoring.editors import pool_signatures
from badpo.experiments.anchor import anchor_key, make_anchor
from badpo.experiments.anchor_bench import Anchor, Bench
from badpo.experiments.anchor_files import RESULT, AnchorFolder
from badpo.experiments.anchor_source import open_source
from badpo.experiments.anchor_train import keep_lines
from bench.anchoring_page import ATTRIBUTES, MODES, TARGETS, Results, write_page
from bench.real_data import progress

SOURCES = Path("runs/demo-seeds")
OUT = Path("runs/anchoring")
PAGE, PICTURE = Path("docs/anchoring_results.md"), Path("docs/images/anchoring.svg")
SEEDS = (42, 123, 456)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--page-only", action="store_true", help="write the page from what is there")
    options = parser.parse_args()
    if not options.page_only:
        for seed in map(int, options.seeds.split(",")):
            anchor_seed(seed, options.modes.split(","))
    write_page(finished(OUT), PAGE, PICTURE)
    print(PAGE)


def folder_of(out: Path, seed: int, mode: str, target: float) -> Path:
    return out / f"dpo-s{seed}-{mode}-{target:g}"


def anchor_seed(seed: int, modes: Sequence[str]) -> None:
    """Every anchor of one source that is not there yet; the source's answers are sampled once."""
    # 0.5 comes first: its line is the one that the others start from
    order = sorted(TARGETS, key=lambda target: abs(target - 0.5))
    missing = [(m, t) for m in modes for t in order if not (folder_of(OUT, seed, m, t) / RESULT).exists()]
    if not missing:
        return
    source = open_source(str(SOURCES / f"dpo-s{seed}"))
    bench = Bench(source, Anchor(pool_signatures(), dict.fromkeys(ATTRIBUTES, 0.5), seed=seed), progress)
    if "train" in modes:
        # sampled before the targets share it
        print(f"s{seed}: {bench.pairs.n_answers} answers, {bench.pairs.n_edited} of them signed", flush=True)
    for mode, target in missing:
        at = bench.at(dict.fromkeys(ATTRIBUTES, target))
        folder = AnchorFolder(folder_of(OUT, seed, mode, target), anchor_key(source, at.anchor, mode))
        result = folder.finished() or make_anchor(at, mode, folder)
        if mode == "train":
            keep_lines(source, at.anchor, result)
        reached = ", ".join(f"{name} {result[name]['achieved']:.3f}" for name in ATTRIBUTES)
        print(
            f"s{seed} {mode} {target:g}: {reached}; {result['reason'] or 'within the tolerance'}", flush=True
        )


def finished(out: Path) -> Results:
    """Results by mode and target, and there by seed."""
    found: Results = {}
    for mode in MODES:
        for target in TARGETS:
            paths = {seed: folder_of(out, seed, mode, target) / RESULT for seed in SEEDS}
            results = {seed: json.loads(path.read_text()) for seed, path in paths.items() if path.exists()}
            if results:
                found[mode, target] = results
    return found


if __name__ == "__main__":
    main()
