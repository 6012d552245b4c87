"""The demo with votes that the model does not describe: `python -m bench.misspecified`.

Every tenth vote is flipped at random, and a lean grows with the difference in quality. Writes
``docs/results_misspecified.md``; runs that stand in ``runs/misspecified`` are not run again.
"""

from __future__ import annotations

from pathlib import Path

from badpo.data.corpora.signed import SignedConfig
from badpo.experiments.demo import run_demo
from badpo.results.tables import seeds_markdown
from bench.real_data import progress

OUT = Path("runs/misspecified")
PAGE = Path("docs/results_misspecified.md")
SEEDS = (42, 123, 456)
CONFIG = SignedConfig(noise=0.1, lean_growth=0.5)

HEAD = """# The demo under votes that the model does not describe

Written by `make misspecified` (`python -m bench.misspecified`). The corpus, the model and the settings are the
demo's; only the votes are drawn otherwise:

- a share of {noise:.0%} of all votes is flipped, whatever the responses (carelessness);
- an annotator's lean on a comparison is theta_k (1 + {growth} |q|), with q the quality difference in log-odds: it
  grows where quality differs, so no constant theta describes it.

The *ceiling* of the vote prediction is that of the planted theta_k in the model's own form. Here it is not the best
possible prediction, and an arm may lie above it.

"""


def main() -> None:
    summaries = run_demo(OUT, SEEDS, progress, config=CONFIG)
    head = HEAD.format(noise=CONFIG.noise, growth=CONFIG.lean_growth)
    PAGE.write_text(head + seeds_markdown(summaries))
    print(PAGE)


if __name__ == "__main__":
    main()
