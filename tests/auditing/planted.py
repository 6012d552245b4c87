"""Tables of votes whose leans are known."""

from __future__ import annotations

import numpy as np
import pandas as pd

SHORT, LONG = "brief answer", "an answer that takes quite a lot more words"
MARKED = "- an answer that takes quite a lot more words"


def votes(
    n_comparisons: int = 400,
    n_annotators: int = 12,
    votes_each: int = 4,
    spread: float = 0.6,
    mean: float = 0.7,
    class_gap: float = 0.0,
    seed: int = 0,
) -> tuple[pd.DataFrame, np.ndarray]:
    """A table in the judgment schema, and each annotator's lean toward the longer response.

    The sides of three comparisons in four differ in length. Annotators ``w0, w1, ...`` are half in class ``crowd`` and
    half in class ``staff``, which leans ``class_gap`` more.
    """
    random = np.random.default_rng(seed)
    lean = mean + spread * random.standard_normal(n_annotators)
    lean[1::2] += class_gap
    rows = []
    for c in range(n_comparisons):
        longer = random.choice(["a", "b", None], p=[0.375, 0.375, 0.25])
        texts = {side: f"{LONG if side == longer else SHORT} {c}{side}" for side in "ab"}
        quality = random.standard_normal()
        difference = {"a": 1.0, "b": -1.0}.get(longer, 0.0)
        for k in random.choice(n_annotators, votes_each, replace=False):
            chance = 1 / (1 + np.exp(-(quality + lean[k] * difference)))
            rows.append(
                {
                    "comparison_id": f"c{c}",
                    "prompt_id": f"p{c // 4}",
                    "prompt": f"question {c // 4}",
                    "response_a": texts["a"],
                    "response_b": texts["b"],
                    "winner": "a" if random.random() < chance else "b",
                    "annotator": f"w{k}",
                    "annotator_class": "staff" if k % 2 else "crowd",
                }
            )
    return pd.DataFrame(rows), lean


def seen_in_order(
    n_comparisons: int, n_judges: int = 6, lean: float = 1.0, *, by_judge: bool = False, seed: int = 0
) -> pd.DataFrame:
    """Judges who prefer the side shown first; the order is drawn for each comparison, or for each judgment."""
    random = np.random.default_rng(seed)
    rows = []
    for c in range(n_comparisons):
        quality, of_comparison = random.standard_normal(), random.choice([-1, 1])
        for k in range(n_judges):
            first = random.choice([-1, 1]) if by_judge else of_comparison
            chance = 1 / (1 + np.exp(-quality - lean * first))
            rows.append(
                {
                    "comparison_id": f"c{c}",
                    "prompt": f"question {c}",
                    "response_a": f"{SHORT} {c}a",
                    "response_b": f"{LONG} {c}b",
                    "winner": "a" if random.random() < chance else "b",
                    "annotator": f"w{k}",
                    "shown_first": "a" if first > 0 else "b",
                }
            )
    return pd.DataFrame(rows)
