"""Tokens saved by reading comparisons of one prompt together: `python -m bench.sharing [--json]`.

Counts tokens only, on real votes, with words and punctuation as tokens. A comparison by itself shares its prompt and
what its two responses begin with. Beyond that, comparisons in the same pack could share their prompt or a response.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd

from badpo.training.batches import BATCHING
from badpo.training.packing import build_tree
from badpo.training.prompt_trees import Pair, response_stars

DATA = Path("../shared/data")
FILES = ("ukpconvarg1_human", "mtbench_human_gpt4")
STEP, N_STEPS = 32, 60
UNBOUNDED = 2**62


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    as_json = parser.parse_args().json
    rows = [row for name in FILES for row in savings(name)]
    if as_json:
        print(json.dumps(rows))
        return
    print(f"{'data':<20}{'where':<34}{'tokens alone':>14}{'together':>10}{'saved':>8}")
    for row in rows:
        print(
            f"{row['data']:<20}{row['where']:<34}{row['tokens_alone']:>14,}{row['tokens_together']:>10,}"
            f"{row['saved']:>8.1%}"
        )


def savings(name: str) -> list[dict]:
    """Tokens per optimizer step of 32 in one pack, for each way to batch, and of the whole reference."""
    votes = pd.read_parquet(DATA / f"{name}.parquet")
    votes = votes[votes["winner"] != "tie"]
    if "turn" in votes:
        votes = votes[votes["turn"] == 1]
    comparison, _ = pd.factorize(votes["comparison_id"])
    texts = votes.drop_duplicates("comparison_id")
    vocabulary: dict[str, int] = {}
    comparisons = [
        tuple(token_ids(text, vocabulary) for text in row)
        for row in texts[["prompt", "response_a", "response_b"]].itertuples(index=False)
    ]
    rows = []
    for batching, steps in BATCHING.items():
        plan = steps(comparison, STEP, np.random.default_rng(0))[:N_STEPS]
        counts = [tokens_of([comparisons[c] for c in np.unique(comparison[votes])]) for votes in plan]
        rows.append(row(name, f"a step of 32, batching {batching}", *np.mean(counts, axis=0)))
    return [*rows, row(name, "reference, every response once", *reference_tokens(comparisons))]


def tokens_of(comparisons: list) -> tuple[int, int]:
    """Tokens fed with every comparison by itself, and with those of one prompt together."""
    alone = sum(build_tree(*comparison).n_fed for comparison in comparisons)
    return alone, sum(star.n_fed for star in response_stars(distinct(comparisons), UNBOUNDED))


def reference_tokens(comparisons: list) -> tuple[int, int]:
    """Tokens fed with every distinct response by itself, and with those of one prompt together."""
    responses = distinct(comparisons)
    alone = sum(len(prompt) + len(response) - 1 for prompt, response in responses)
    return alone, sum(star.n_fed for star in response_stars(responses, UNBOUNDED))


def distinct(comparisons: list) -> list[Pair]:
    """Every (prompt, response) once."""
    return list({(p.tobytes(), r.tobytes()): (p, r) for p, a, b in comparisons for r in (a, b)}.values())


def token_ids(text: str, vocabulary: dict[str, int]) -> np.ndarray:
    words = re.findall(r"\w+|[^\w\s]", text) or [""]
    return np.array([vocabulary.setdefault(word, len(vocabulary)) for word in words])


def row(data: str, where: str, alone: float, together: float) -> dict:
    return {
        "data": data,
        "where": where,
        "tokens_alone": round(alone),
        "tokens_together": round(together),
        "saved": 1 - together / alone,
    }


if __name__ == "__main__":
    main()
