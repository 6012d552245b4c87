"""The parts that the speed benches wrote, joined into one page: `python -m bench.tables`.

Nothing is measured here. Parts that were not written yet are named in the page and left out of it.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

PARTS = ("training", "reference", "memory", "audit")
FOLDER, PAGE = Path("runs/bench"), Path("docs/results/performance.md")

HEAD = """\
# Speed and memory in figures

Written by `make bench`, which runs

{commands}

and joins what they wrote (`python -m bench.tables`). One part again: `make bench BENCHES=memory`. Processor, threads
and versions stand beneath each table, because the parts can be of different days. What the figures say stands in
[performance.md](../performance.md).

TRL is the release named there, in the same process, on the same token ids. On a processor it is measured twice:
its output embedding scores every position there, and on a GPU those of the responses only.

| column | what it is |
| --- | --- |
{columns}
"""
COLUMNS = {
    "case": "lengths and votes of the signed corpus (`signed`) or of MultiPref (`multipref`), as `bench/workloads.py` "
    "has them; the real texts and votes of MT-Bench (`mtbench`)",
    "what": "bare optimizer steps, or a whole `train()` with all that a trainer does besides",
    "model": "a Qwen2 with random weights whose output embedding has the share of the work that it has in Qwen2.5-0.5B "
    "(`0.5B-like`) or in Llama-3.1-8B (`8B-like`), or nearly all of it (`head-dominated`)",
    "batching": "how judgments make up a step: one by one (`random`), or those of a comparison together (`grouped`)",
    "micro_batch": "judgments that TRL takes in one forward",
    "ours_takes": "judgments that badpo takes in one forward",
    "ratio_vs_trl_compact": "TRL's CPU time, with its output embedding as on a GPU, over ours",
    "ratio_vs_trl": "stock TRL's CPU time over ours",
    "rel_grad_diff": "largest difference of a gradient entry from TRL's, relative to the largest entry; the bench "
    "fails above 2e-5",
    "peak_memory_ratio": "our memory over TRL's with its output embedding as on a GPU, model and gradients left out",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", type=Path, metavar="FOLDER", default=FOLDER, help="where the parts are")
    parser.add_argument("--out", type=Path, metavar="FILE", default=PAGE, help="the page to write")
    options = parser.parse_args()
    found = {name: options.parts / f"{name}.md" for name in PARTS}
    texts = {name: path.read_text() for name, path in found.items() if path.is_file()}
    missing = [name for name in PARTS if name not in texts]
    if not texts:
        raise SystemExit(
            f"{options.parts} has none of the parts {', '.join(PARTS)}; write them with make bench"
        )
    commands = "\n".join(f"    python -m bench.{name} --markdown {FOLDER / name}.md" for name in texts)
    columns = "\n".join(f"| {name} | {meaning} |" for name, meaning in COLUMNS.items())
    page = [HEAD.format(commands=commands, columns=columns)]
    if missing:
        page.append(f"Not measured for this page: {', '.join(f'`bench.{name}`' for name in missing)}.\n")
    # the title of a part is a section of the page
    page += [re.sub("(?m)^###", "##", text.strip()) + "\n" for text in texts.values()]
    options.out.write_text("\n".join(page))
    print(f"{options.out}: {', '.join(texts)}" + (f"; not there: {', '.join(missing)}" if missing else ""))


if __name__ == "__main__":
    main()
