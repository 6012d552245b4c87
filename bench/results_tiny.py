"""Write ``docs/results_tiny.md`` from finished runs: `python -m bench.results_tiny [--runs runs/reproduce]`.

Trains nothing; a suite whose runs are not all there says which are missing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from badpo.experiments.reproduce import read_suite, suites_folder
from badpo.experiments.suite_scales import SCALES
from badpo.experiments.suites import SUITES

PAGE = Path("docs/results_tiny.md")
SEEDS = (42, 123, 456)
HEAD = """# The paper's tables with a small model

Printed by `badpo reproduce all --jobs 2` and `python -m bench.results_tiny`. A model of 0.4 million weights, trained
from scratch on the bundled corpus: the paper's numbers stand in brackets so that the orders can be compared, not the
values. What each suite is, and how a pattern is decided, stands in [reproduce.md](reproduce.md).
"""


def page(runs: Path) -> str:
    """The page from the runs in a folder."""
    scale = SCALES["tiny"]
    parts = [HEAD]
    for suite in SUITES.values():
        result = read_suite(suite, scale, SEEDS, suites_folder(runs, scale, None))
        parts.append(
            f"## {suite.name}: {suite.title}\n\n{result.text('markdown') if result.tables else 'Not run.'}\n"
        )
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/reproduce"))
    PAGE.write_text(page(parser.parse_args().runs), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
