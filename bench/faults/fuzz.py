"""Generated inputs against every part that reads what others wrote: `make fuzz`.

The inputs are those of tests/fuzz, from seeds of the clock. A crash is any error that is not one of ours, a figure that
is none, or a broken promise of the part, such as a vote that is neither read nor counted as left out.
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
    """One row for each part, within a time for all of them together; what is found is printed on the way."""
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
