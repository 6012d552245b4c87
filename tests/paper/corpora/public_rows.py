"""Rows in the schemas of two public data sets, with texts and votes of our own."""

from __future__ import annotations

import random
from typing import Any

import pandas as pd

PREFERENCES = (
    "A-is-clearly-better",
    "A-is-slightly-better",
    "Tie",
    "B-is-slightly-better",
    "B-is-clearly-better",
)
SENTENCE = "water the beans in the morning and look under the leaves"


def multipref_row(number: int, draw: random.Random) -> dict[str, Any]:
    """One comparison with two crowd workers and two experts."""
    long, short = " ".join([SENTENCE] * 4), SENTENCE
    listed = f"- {SENTENCE}\n- {SENTENCE}"
    a, b = draw.sample([long, short, listed], 2)
    return {
        "comparison_id": f"comparison-{number:04d}",
        "prompt_id": f"prompt-{number // 2:04d}",
        "text": f"How do I grow beans in garden {number // 2}?",
        "model_a": "model-1",
        "completion_a": f"{a} {number}",
        "model_b": "model-2",
        "completion_b": f"{b} {number}",
        "normal_worker_annotations": [annotation(k, draw) for k in draw.sample(range(6), 2)],
        "expert_worker_annotations": [annotation(k, draw) for k in draw.sample(range(100, 104), 2)],
    }


def annotation(evaluator: int, draw: random.Random) -> dict[str, Any]:
    """One evaluator's answers."""
    return {
        "evaluator": f"worker-{evaluator}",
        **{f"{what}_pref": draw.choice(PREFERENCES) for what in ("overall", "helpful")},
        "time_spent": draw.randrange(20, 200),
    }


def multipref(n: int = 40, seed: int = 0) -> pd.DataFrame:
    """A table in the schema of MultiPref's configuration ``default``."""
    draw = random.Random(seed)
    return pd.DataFrame([multipref_row(number, draw) for number in range(n)])


def ultrafeedback(n: int = 60, seed: int = 0) -> pd.DataFrame:
    """A table in the schema of the preference splits of UltraFeedback binarized."""
    draw = random.Random(seed)
    rows = []
    for number in range(n):
        prompt = f"How do I grow beans in garden {number}?"
        answers = {side: f"{SENTENCE} {side} {draw.random():.6f}" for side in ("chosen", "rejected")}
        low, high = sorted(draw.choices([x / 2 for x in range(2, 21)], k=2))
        asked = {"content": prompt, "role": "user"}
        said = {side: [asked, {"content": text, "role": "assistant"}] for side, text in answers.items()}
        rows.append(
            {
                "prompt": prompt,
                "prompt_id": f"id-{number:05d}",
                **said,
                "messages": said["chosen"],
                "score_chosen": high,
                "score_rejected": low,
            }
        )
    return pd.DataFrame(rows)
