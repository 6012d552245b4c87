"""Generated inputs against every part that reads what others wrote: `make fuzz`, `python -m bench.faults.fuzz`.

The inputs are those of tests/fuzz, from seeds of the clock unless one is given; the page says which, and the same seed
gives the same inputs again. A crash is any error that is not one of ours, a ValueError that is not documented, a
figure that is none, or a broken promise of the part, such as a vote that is neither read nor counted as left out.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from pathlib import Path

from bench.faults.table import GENERATED, Row
from bench.timing import machine
from tests.fuzz.running import Attack, attack, shares
from tests.fuzz.targets import TARGETS

N_INPUTS = 100_000
PAGE = Path("docs/results/fuzz.md")
SECONDS_PER_PART = 240.0
HEAD = """\
# Generated inputs, and what broke

Written by `make fuzz`, which is `python -m bench.faults.fuzz`; `--seed {seed}` tries the same inputs again, as far as
the time for each part goes. What counts as a crash stands in [SECURITY.md](../../SECURITY.md).

| part | inputs | seeds | seconds | crashes |
| --- | ---: | --- | ---: | ---: |
"""


def rows(budget_seconds: float) -> list[Row]:
    """One row for each part, within a time for all of them together."""
    attacks = attack_all(N_INPUTS, int(time.time()), budget_seconds / len(TARGETS))
    return [
        Row(
            GENERATED,
            name,
            found.n_inputs,
            "taken, or refused in words" if not found.crashes else "; ".join(found.crashes),
            len(found.crashes),
        )
        for name, found in attacks.items()
    ]


def attack_all(n_inputs: int, first_seed: int, seconds_per_part: float) -> dict[str, Attack]:
    """What became of the inputs of every part; what it finds is printed on the way."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    found = {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # raw ids of the inputs become pseudonyms under a key of this run alone
        os.environ["XDG_CONFIG_HOME"] = folder
        warnings.simplefilter("ignore")
        for name, n in shares(TARGETS, n_inputs).items():
            found[name] = attack(TARGETS[name], n, first_seed, seconds_per_part)
            print(f"{name}: {found[name].n_inputs:,} inputs, {len(found[name].crashes)} crashes", flush=True)
            for crash in found[name].crashes.values():
                print(f"  {crash}", flush=True)
    return found


def page(attacks: dict[str, Attack], first_seed: int) -> str:
    """The table as a page."""
    lines = [
        f"| {name} | {found.n_inputs:,} | {found.seeds[0]} to {found.seeds[-1]} | {found.seconds:.0f} | "
        f"{len(found.crashes)} |"
        for name, found in attacks.items()
    ]
    total = sum(found.n_inputs for found in attacks.values())
    crashes = sum(len(found.crashes) for found in attacks.values())
    lines.append(f"| **together** | **{total:,}** | | | **{crashes}** |")
    where = "; ".join(f"{name} {value}" for name, value in machine().items() if name != "trl")
    return HEAD.format(seed=first_seed) + "\n".join(lines) + f"\n\n{where}.\n"


def main() -> None:
    """Try the inputs and write the page; a crash makes the command fail."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=N_INPUTS, metavar="N", help="of all parts together")
    parser.add_argument("--seed", type=int, default=int(time.time()), metavar="N", help="of the first batch")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS_PER_PART, metavar="N", help="at most, for each part"
    )
    parser.add_argument("--out", type=Path, default=PAGE, metavar="FILE", help="the page to write")
    options = parser.parse_args()
    attacks = attack_all(options.inputs, options.seed, options.seconds)
    options.out.write_text(page(attacks, options.seed))
    print(f"\n{options.out}: {sum(found.n_inputs for found in attacks.values()):,} inputs")
    if any(found.crashes for found in attacks.values()):
        raise SystemExit("some parts crashed")


if __name__ == "__main__":
    main()
