"""MultiPref: real votes of 227 evaluators on pairs of model answers, two crowd workers and two experts each.

Every vote stays a row of its own and ties are left out. See the paper's appendix `app:multipref`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from badpo.data.attributes import Attribute, Length, Markdown, markedly_longer
from badpo.data.judgments import Judgments
from badpo.data.problems import DataError, Problem, counted
from badpo.importers.formats import import_votes
from badpo_paper.corpora.published import HubSplit, Published, read_split

HUB = HubSplit(
    repository="allenai/multipref",
    configuration="default",
    split="train",
    revision=None,
    license="ODC-By",
    columns=(
        "comparison_id",
        "prompt_id",
        "text",
        "completion_a",
        "completion_b",
        "normal_worker_annotations",
        "expert_worker_annotations",
    ),
)
HELD_OUT = 0.1
N_EVALUATION = 300
LENGTH_RATIOS = (1.25, 1.5, 2.0, 3.0)
PUBLISHED: tuple[Published, ...] = (
    Published(("comparisons",), 10_461),
    Published(("prompts",), 5_323),
    Published(("annotators",), 227),
    Published(("votes_per_comparison", "least"), 4),
    Published(("votes_per_comparison", "most"), 4),
    Published(("tie_share",), 0.26, 2),
    Published(("judgments",), 30_847),
    Published(("train",), 27_812),
    Published(("held_out",), 3_035),
    Published(("any_longer_share",), 0.995, 3),
    Published(("length", "1.25", "cross_share"), 0.73, 2),
    Published(("length", "1.25", "log_odds"), 0.91, 2),
    Published(("length", "1.5", "cross_share"), 0.587, 3),
    Published(("length", "1.5", "carrier_wins"), 0.73, 2),
    Published(("length", "1.5", "log_odds"), 0.99, 2),
    Published(("length", "2", "cross_share"), 0.40, 2),
    Published(("length", "2", "log_odds"), 1.04, 2),
    Published(("length", "3", "cross_share"), 0.21, 2),
    Published(("length", "3", "log_odds"), 1.05, 2),
    Published(("markdown", "cross_share"), 0.264, 3),
    Published(("markdown", "log_odds"), 0.98, 2),
)


@dataclass(frozen=True)
class MultiPrefCorpus:
    """MultiPref as judgments, and what it held before ties were left out."""

    judgments: Judgments
    comparisons: int
    prompts: int
    annotators: int
    votes: int
    votes_per_comparison: tuple[int, int]


@dataclass(frozen=True)
class EvaluationPrompts:
    """Held-out prompts that policies answer."""

    prompts: tuple[str, ...]
    n_shared: int


def load(
    source: str | os.PathLike[str] | None = None, attributes: Sequence[Attribute] | None = None
) -> MultiPrefCorpus:
    """MultiPref from the Hub, or from a local file of the same schema.

    Evaluator ids become pseudonyms as they are read.
    """
    imported = import_votes(read_split(HUB, source), "multipref")
    cast = imported.table.frame
    per_comparison = cast.groupby("comparison_id").size()
    declared = (Length(ratio=1.5), Markdown()) if attributes is None else attributes
    judgments = Judgments.read(imported.table, attributes=declared)
    return MultiPrefCorpus(
        judgments=judgments,
        comparisons=len(per_comparison),
        prompts=int(cast["prompt_id"].nunique()),
        annotators=int(cast["annotator"].nunique()),
        votes=len(cast),
        votes_per_comparison=(int(per_comparison.min()), int(per_comparison.max())),
    )


def gate(corpus: MultiPrefCorpus) -> dict[str, Any]:
    """Statistics that are read from the votes before any training."""
    judgments = corpus.judgments
    train, held_out = judgments.split(HELD_OUT, seed=0)
    lengths = {
        f"{ratio:g}": _offline(judgments.with_attributes([Length(ratio=ratio)])) for ratio in LENGTH_RATIOS
    }
    words = judgments.comparisons[["response_a", "response_b"]].map(lambda text: len(text.split()))
    a, b = words["response_a"].to_numpy(), words["response_b"].to_numpy()
    any_longer = markedly_longer(a, b, 1.0) | markedly_longer(b, a, 1.0)
    return {
        "comparisons": corpus.comparisons,
        "prompts": corpus.prompts,
        "annotators": corpus.annotators,
        "votes_per_comparison": dict(zip(("least", "most"), corpus.votes_per_comparison, strict=True)),
        "tie_share": 1 - judgments.n_votes / corpus.votes,
        "judgments": judgments.n_votes,
        "train": train.n_votes,
        "held_out": held_out.n_votes,
        "any_longer_share": float(np.mean(any_longer)),
        "length": lengths,
        "markdown": _offline(judgments.with_attributes([Markdown()])),
    }


def evaluation_prompts(
    judgments: Judgments, n: int = N_EVALUATION, held_out: float = HELD_OUT, seed: int = 0
) -> EvaluationPrompts:
    """Prompts that policies answer: texts of held-out prompts, each once, that no training prompt has.

    ``random.Random(seed)`` first shuffles the prompt ids as `Judgments.split` does; the distinct texts of the held
    out ones, sorted, are then shuffled by the same generator, and the first ``n`` are taken.
    """
    train, apart = judgments.split(held_out, seed)
    draw = random.Random(seed)
    prompt_ids = sorted(set(judgments.comparisons["prompt_id"]))
    draw.shuffle(prompt_ids)
    texts = sorted(set(apart.comparisons["prompt"]))
    trained = set(train.comparisons["prompt"])
    draw.shuffle(texts)
    fresh = [text for text in texts if text not in trained]
    if not fresh:
        what, remedy = (
            f"{counted(len(prompt_ids), 'prompt')}: none can be held out to evaluate on",
            "give more",
        )
        if texts:
            what = (
                f"all {len(texts):,} held-out prompts are training prompts too; none is left to evaluate on"
            )
            remedy = "give one prompt_id to equal prompts, or hold more out"
        raise DataError([Problem("E154", what, "judgments", remedy, "error")])
    return EvaluationPrompts(tuple(fresh[:n]), len(texts) - len(fresh))


def _offline(judgments: Judgments) -> dict[str, float | None]:
    (found,) = judgments.offline_log_odds()
    return {
        "cross_share": found.n_cross / judgments.n_votes,
        "carrier_wins": found.carrier_wins,
        "log_odds": found.log_odds,
        "ci_low": found.ci_low,
        "ci_high": found.ci_high,
    }
