"""Build Signed-UltraFeedback: scored pairs of UltraFeedback with signatures and simulated votes, as in the paper.

The texts of Signed-UltraFeedback are real, and its annotators are simulated. The paper's appendix `app:names` describes
the corpus.
"""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import pandas as pd

from badpo.data.cells import as_messages
from badpo.data.problems import DataError, Problem
from badpo.importers.export import NOT_A_PAIR
from badpo.readouts.names import ask_to_sign
from badpo_paper.corpora import signed
from badpo_paper.corpora.published import STATISTICS, HubSplit, Source, Statistics, read_split

TRAIN = HubSplit(
    "HuggingFaceH4/ultrafeedback_binarized",
    "train_prefs",
    (*signed.PAIR_COLUMNS, "messages"),
    # An earlier revision of the data set has different rows, so the same shuffle would draw other pairs.
    revision="3949bf5f8c17c394422ccfab0c31ea9c20bdeb85",
)
TEST = TRAIN._replace(split="test_prefs", columns=("prompt",))
N_PAIRS, N_SIGNING, HELD_OUT = 8_000, 300, 0.1
_OTHER_PROMPT = "the conversation does not begin with the prompt"

# The statistics of the plan depend on the random plan and on the number of usable pairs (7,177), not on the texts.
# The other published statistics of UltraFeedback depend on the texts and scores of the pairs.
PUBLISHED_PLAN = STATISTICS["signed plan"]
PUBLISHED = {**PUBLISHED_PLAN, **STATISTICS["ultrafeedback"]}


class ScoredPairs(NamedTuple):
    """Pairs drawn from UltraFeedback, and the number of excluded rows for each reason."""

    pairs: pd.DataFrame
    left_out: dict[str, int]


def scored_pairs(source: Source = None, n: int = N_PAIRS, start: int = 0, seed: int = 0) -> ScoredPairs:
    """Draw scored pairs of UltraFeedback with the paper's procedure.

    The function reads the split ``train_prefs`` from a local file, or a pinned revision from the Hub. The function
    shuffles the rows as ``datasets`` does (a permutation by ``numpy.random.default_rng(seed)``), and draws ``n`` rows
    from position ``start`` on. The paper's corpus consists of the first 8,000 rows of the shuffled split. Rows whose
    conversation does not begin with the prompt are excluded, as in the published code. Because of a known error in
    UltraFeedback, about 2,000 of its poor responses have the highest score, so some of the quality margins are wrong.

    References
    ----------
    BA-DPO, appendix `app:names`, "Prompts and responses".
    """
    table = read_split(TRAIN, source)
    order = np.random.default_rng(seed).permutation(len(table.frame))[start : start + n]
    if len(order) < n:
        what = f"the table has {len(table.frame):,} rows, but {n:,} rows from position {start:,} on are requested"
        remedy = "request fewer rows, or give the whole split"
        raise DataError([Problem("E154", what, table.name, remedy)])
    drawn = table.frame.iloc[order]
    has_prompt = [_begins_with(*row) for row in zip(drawn["chosen"], drawn["prompt"], strict=True)]
    matching = drawn[has_prompt].reset_index(drop=True)
    answers = matching[["chosen", "rejected"]].map(_find_last_answer)
    is_pair = answers.notna().all(axis=1)
    pairs = matching[list(signed.PAIR_COLUMNS)].assign(**answers)[is_pair].reset_index(drop=True)
    if not len(pairs):
        raise DataError(
            [Problem("E104", "the table has no pair of answers", table.name, "export the table again")]
        )
    left_out = {_OTHER_PROMPT: n - len(matching), NOT_A_PAIR: int((~is_pair).sum())}
    return ScoredPairs(pairs, left_out)


def _find_last_answer(conversation: object) -> str | None:
    """Return the last message of a conversation if the assistant wrote it, otherwise None."""
    try:
        messages = as_messages(conversation)
    except ValueError:
        return None
    ends_with_answer = messages and messages[-1]["role"] == "assistant"
    return messages[-1]["content"] if ends_with_answer else None


def _begins_with(conversation: object, prompt: object) -> bool:
    """Return whether a conversation begins with the prompt; True if malformed, because a later check reports it."""
    try:
        messages = as_messages(conversation)
    except ValueError:
        return True
    return not messages or messages[0]["content"] == prompt


def signing_prompts(
    source: Source = None,
    training_prompts: Collection[str] = (),
    n: int = N_SIGNING,
    seed: int = 0,
) -> list[str]:
    """Return the prompts for measuring attribute rates: test questions with the request to sign the answer."""
    table = read_split(TEST, source)
    order = np.random.default_rng(seed).permutation(len(table.frame))
    used = set(training_prompts)
    questions = dict.fromkeys(q for q in table.frame["prompt"].to_numpy()[order] if q not in used)
    if len(questions) < n:
        what = f"the table has {len(questions):,} questions that are not training prompts, but {n:,} are requested"
        raise DataError(
            [Problem("E154", what, table.name, "request fewer questions, or give a larger file")]
        )
    return [ask_to_sign(question) for question in list(questions)[:n]]


def measure_corpus(corpus: signed.SignedCorpus) -> Statistics:
    """Return the statistics of `signed.measure_corpus`, the number of usable pairs, and the sizes of both splits."""
    train, held_out = corpus.judgments.split(HELD_OUT, seed=0)
    sizes = {
        "usable_pairs": corpus.plan.n_pairs,
        "train": train.n_votes,
        "held_out": held_out.n_votes,
    }
    return {**sizes, **signed.measure_corpus(corpus)}
