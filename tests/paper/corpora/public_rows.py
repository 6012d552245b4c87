"""Synthetic rows in the schemas of two public data sets."""

import random
from typing import Any

import pandas as pd

BETTER = [f"{side}-is-{how}-better" for side in "AB" for how in ("clearly", "slightly")]
PREFERENCES = ("Tie", *BETTER)
SENTENCE = "water the beans in the morning and look under the leaves"


def multipref(n: int = 40, seed: int = 0) -> pd.DataFrame:
    """Make a table in the schema of MultiPref: each row has votes of two crowd workers and two experts."""
    draw = random.Random(seed)
    long, listed = " ".join([SENTENCE] * 4), f"- {SENTENCE}\n- {SENTENCE}"

    def annotations(evaluators: range) -> list[dict[str, Any]]:
        names = [f"worker-{k}" for k in draw.sample(evaluators, 2)]
        return [{"evaluator": name, "overall_pref": draw.choice(PREFERENCES)} for name in names]

    rows = []
    for number in range(n):
        a, b = draw.sample([long, SENTENCE, listed], 2)
        ids = {"comparison_id": f"comparison-{number:04d}", "prompt_id": f"prompt-{number // 2:04d}"}
        prompt = f"How do I grow beans in garden {number // 2}?"
        texts = {"text": prompt, "completion_a": f"{a} {number}", "completion_b": f"{b} {number}"}
        votes = {
            "normal_worker_annotations": annotations(range(6)),
            "expert_worker_annotations": annotations(range(100, 104)),
        }
        rows.append({**ids, **texts, **votes})
    return pd.DataFrame(rows).assign(model_a="model-1", model_b="model-2")


def ultrafeedback(n: int = 60, seed: int = 0) -> pd.DataFrame:
    """Make a table in the schema of the preference splits of UltraFeedback binarized."""
    draw = random.Random(seed)
    rows = []
    for number in range(n):
        prompt = f"How do I grow beans in garden {number}?"
        answers = {side: f"{SENTENCE} {side} {draw.random():.6f}" for side in ("chosen", "rejected")}
        low, high = sorted(draw.choices([x / 2 for x in range(2, 21)], k=2))
        question = {"content": prompt, "role": "user"}
        chats = {
            side: [question, {"content": text, "role": "assistant"}] for side, text in answers.items()
        }
        scores = {"score_chosen": high, "score_rejected": low}
        ids = {"prompt": prompt, "prompt_id": f"id-{number:05d}"}
        rows.append({**ids, **chats, "messages": chats["chosen"], **scores})
    return pd.DataFrame(rows)
