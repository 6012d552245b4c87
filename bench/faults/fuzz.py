"""Test all parts that read foreign files with generated inputs: `make fuzz`.

The inputs are those of tests/fuzz, with seeds from the clock. A crash is any error of another kind than badpo's
errors, a figure that is not a number, or a violated promise of the part, such as a vote that is neither read nor
counted as left out.
"""

import os
import tempfile
import time
import warnings

from bench.faults import GENERATED, Row
from tests.fuzz.running import attack, shares
from tests.fuzz.targets import TARGETS

N_INPUTS = 100_000


def rows(budget_seconds: float) -> list[Row]:
    """Make one row for each part within a total time, and print the crashes on the way."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    first_seed, found = int(time.time()), []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # raw ids of the inputs become pseudonyms under a key of this run alone
        os.environ["XDG_CONFIG_HOME"] = folder
        warnings.simplefilter("ignore")
        for name, n in shares(TARGETS, N_INPUTS).items():
            tried = attack(TARGETS[name], n, first_seed, budget_seconds / len(TARGETS))
            print(f"{name}: {tried.n_inputs:,} inputs, {len(tried.crashes)} crashes", flush=True)
            for crash in tried.crashes.values():
                print(f"  {crash}", flush=True)
            outcome = "; ".join(tried.crashes) or f"taken, or refused in words; seeds from {first_seed}"
            found.append(Row(GENERATED, name, tried.n_inputs, outcome, len(tried.crashes)))
    return found
