"""Signed-UltraFeedback: the signed recipe on scored pairs of UltraFeedback, as in the paper.

The texts are real, the annotators are constructed. See the paper's appendix `app:names`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from badpo.data.problems import DataError, Problem
from badpo.data.tables import Table, as_messages
from badpo.importers.fields import Export
from badpo.importers.ultrafeedback import read_ultrafeedback
from badpo.readouts.names import ask_to_sign
from badpo_paper.corpora import signed
from badpo_paper.corpora.published import HubSplit, Published, read_split

_REPOSITORY = "HuggingFaceH4/ultrafeedback_binarized"
# an earlier revision has other rows, so the same shuffle would draw other pairs
_REVISION = "3949bf5f8c17c394422ccfab0c31ea9c20bdeb85"
_COLUMNS = ("prompt", "prompt_id", "chosen", "rejected", "messages", "score_chosen", "score_rejected")
TRAIN = HubSplit(_REPOSITORY, None, "train_prefs", _REVISION, "MIT", _COLUMNS)
TEST = HubSplit(_REPOSITORY, None, "test_prefs", _REVISION, "MIT", ("prompt",))
N_PAIRS, N_SIGNING, HELD_OUT = 8_000, 300, 0.1
_OTHER_PROMPT = "the conversation does not begin with the prompt"

# What the random plan gives on any 7,177 usable pairs, and what needs the pairs themselves.
PUBLISHED_PLAN: tuple[Published, ...] = (
    Published(("pairs", "quality"), 2_887),
    Published(("pairs", "swap"), 1_462),
    Published(("pairs", "mixed"), 2_828),
    Published(("train",), 25_840),
    Published(("held_out",), 2_868),
    *(
        Published(("class_means", name, attribute), mean, 2)
        for name, means in {"A": (0.98, 2.62), "B": (1.12, -0.34), "C": (0.89, 1.11)}.items()
        for attribute, mean in zip(("woman", "black"), means, strict=True)
    ),
    Published(("cross_group", "woman"), 0.364, 3),
    Published(("cross_group", "black"), 0.364, 3),
    Published(("cross_group", "any"), 0.598, 3),
    *(
        Published(("swap_log_odds", attribute, name), log_odds, 2)
        for attribute, row in {"woman": (0.95, 1.01, 0.97, 0.86), "black": (0.70, 2.30, -0.37, 0.88)}.items()
        for name, log_odds in zip(("all", "A", "B", "C"), row, strict=True)
    ),
)
PUBLISHED: tuple[Published, ...] = (
    *PUBLISHED_PLAN,
    Published(("usable_pairs",), 7_177),
    Published(("all_log_odds", "woman", "all"), 0.71, 2),
    Published(("all_log_odds", "black", "all"), 0.70, 2),
)


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs that were drawn from UltraFeedback."""

    pairs: pd.DataFrame
    dropped: pd.DataFrame
    n_drawn: int
    n_rows: int


def scored_pairs(
    source: str | os.PathLike[str] | None = None,
    n: int = N_PAIRS,
    start: int = 0,
    seed: int = 0,
) -> ScoredPairs:
    """Scored pairs of UltraFeedback, drawn as for the paper.

    The rows are shuffled as ``datasets`` does (a permutation by ``numpy.random.default_rng(seed)``), and the ``n``
    from position ``start`` on are taken. About 2,000 of UltraFeedback's poor responses carry its highest score by a
    known fault, so a part of the quality margin is wrong.
    Rows whose conversation begins with another text than the prompt are left out, as the published code does.

    Parameters
    ----------
    source : path or None
        A local file with the rows of split ``train_prefs``; None loads them from the Hub, at a pinned revision.
    n : int
        Rows to draw.
    start : int
        Position in the shuffled split; 8,000 takes rows that the paper's corpus does not have.
    seed : int
        Seed of the shuffle.

    Raises
    ------
    ConfigError
        E190: the Hub cannot be reached.
    DataError
        Another schema, or fewer rows than asked for.

    References
    ----------
    BA-DPO, appendix `app:names`, "Prompts and responses".
    """
    drawn, n_rows = _drawn(read_split(TRAIN, source), n, start, seed)
    frame = drawn.frame
    as_asked = [
        _begins_with(cell, prompt) for cell, prompt in zip(frame["chosen"], frame["prompt"], strict=True)
    ]
    kept = frame[np.array(as_asked, dtype=bool)]
    found = list(read_ultrafeedback(Export(Table(kept.reset_index(drop=True), drawn.name))))
    left_out = Counter(entry["left_out"] for entry in found if "left_out" in entry)
    reasons = Counter({_OTHER_PROMPT: len(frame) - len(kept)}) + left_out
    dropped = pd.DataFrame(list(reasons.items()), columns=["reason", "n"])
    votes = [entry for entry in found if "left_out" not in entry]
    pairs = pd.DataFrame(votes, columns=list(signed.PAIR_COLUMNS))
    return ScoredPairs(pairs, dropped, len(frame), n_rows)


def signing_prompts(
    source: str | os.PathLike[str] | None = None,
    training_prompts: Collection[str] = (),
    n: int = N_SIGNING,
    seed: int = 0,
) -> list[str]:
    """Prompts of the attribute-rate readout: questions of the test split, each with the request to sign."""
    table = read_split(TEST, source)
    order = np.random.default_rng(seed).permutation(len(table.frame))
    trained = set(training_prompts)
    questions = dict.fromkeys(q for q in table.frame["prompt"].to_numpy()[order] if q not in trained)
    if len(questions) < n:
        what = f"{len(questions):,} questions that are not trained on, and {n:,} are asked for"
        raise DataError([Problem("E154", what, table.name, "ask for fewer, or give a larger file", "error")])
    return [ask_to_sign(question) for question in list(questions)[:n]]


def gate(corpus: signed.SignedCorpus) -> dict[str, Any]:
    """The statistics of `signed.gate`, with the pairs and the sizes of the paper's split beside them."""
    train, held_out = corpus.judgments.split(HELD_OUT, seed=0)
    return {
        "usable_pairs": corpus.plan.n_pairs,
        "train": train.n_votes,
        "held_out": held_out.n_votes,
        **signed.gate(corpus),
    }


def _drawn(table: Table, n: int, start: int, seed: int) -> tuple[Table, int]:
    n_rows = len(table.frame)
    order = np.random.default_rng(seed).permutation(n_rows)[start : start + n]
    if len(order) < n:
        what = f"it has {n_rows:,} rows, and {n:,} from position {start:,} on are asked for"
        raise DataError(
            [Problem("E154", what, table.name, "ask for fewer, or give the whole split", "error")]
        )
    return Table(table.frame.iloc[order].reset_index(drop=True), table.name), n_rows


def _begins_with(conversation: Any, prompt: Any) -> bool:
    """Whether the first message is the prompt; what is no conversation is left to the reader of the pairs."""
    try:
        messages = as_messages(conversation)
    except ValueError:
        return True
    return not messages or messages[0]["content"] == prompt
