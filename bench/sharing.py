"""Tokens saved by reading comparisons of one prompt together: `python -m bench.sharing`.

Counts tokens only, on real votes, with words and punctuation as tokens. A comparison by itself shares its prompt and
what its two responses begin with. Beyond that, comparisons in the same pack could share their prompt or a response.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd

from badpo.training.batches import BATCHING
from badpo.training.packing import build_tree
from badpo.training.prompt_trees import Pair, response_stars
from bench import timing

DATA = Path("../shared/data")
FILES = ("ukpconvarg1_human", "mtbench_human_gpt4")
STEP, N_STEPS = 32, 60
UNBOUNDED = 2**62


NOTES = (
    "Tokens fed, with words and punctuation as tokens: `tokens_alone` with every comparison (in the reference every "
    "response) by itself, `tokens_together` with those of one prompt together, `saved` the share that falls away. A "
    "step has 32 judgments, or with `comparisons` 32 comparisons; means of 60 steps.",
)


def main() -> None:
    options = timing.arguments(__doc__.splitlines()[0], FILES)
    if not DATA.is_dir():
        print(f"{DATA} is not there: no real votes to count the tokens of")
        return
    rows = [row for name in options.case or FILES for row in savings(name)]
    timing.report("Tokens that comparisons of one prompt could share", rows, options, NOTES)


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
