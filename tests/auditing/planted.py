"""Tables of votes whose leans are known."""

import numpy as np
import pandas as pd

SHORT, LONG = "brief answer", "an answer that takes quite a lot more words"
COLUMNS = ["comparison_id", "prompt_id", "prompt", "response_a", "response_b", "winner", "annotator"]


def votes(
    n_comparisons=400, n_annotators=12, votes_each=4, spread=0.6, mean=0.7, class_gap=0.0, seed=0
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
        texts = [f"{LONG if side == longer else SHORT} {c}{side}" for side in "ab"]
        quality = random.standard_normal()
        difference = {"a": 1.0, "b": -1.0}.get(longer, 0.0)
        for k in random.choice(n_annotators, votes_each, replace=False):
            chance = 1 / (1 + np.exp(-(quality + lean[k] * difference)))
            won, group = "a" if random.random() < chance else "b", "staff" if k % 2 else "crowd"
            rows.append((f"c{c}", f"p{c // 4}", f"question {c // 4}", *texts, won, f"w{k}", group))
    return pd.DataFrame(rows, columns=[*COLUMNS, "annotator_class"]), lean
