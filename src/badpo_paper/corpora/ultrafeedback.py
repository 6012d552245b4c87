"""Signed-UltraFeedback: the signed recipe on scored pairs of UltraFeedback, as in the paper.

The texts are real, the annotators are constructed. See the paper's appendix `app:names`.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from badpo.data.cells import Table, as_messages
from badpo.data.files import Json
from badpo.data.problems import DataError, Problem
from badpo.importers.convert import PAIRS, import_votes
from badpo.readouts.names import ask_to_sign
from badpo_paper.corpora import signed
from badpo_paper.corpora.published import HubSplit, Source, read_split

TRAIN = HubSplit(
    "HuggingFaceH4/ultrafeedback_binarized",
    "train_prefs",
    (*signed.PAIR_COLUMNS, "messages"),
    # an earlier revision has other rows, so the same shuffle would draw other pairs
    revision="3949bf5f8c17c394422ccfab0c31ea9c20bdeb85",
)
TEST = TRAIN._replace(split="test_prefs", columns=("prompt",))
N_PAIRS, N_SIGNING, HELD_OUT = 8_000, 300, 0.1
_OTHER_PROMPT = "the conversation does not begin with the prompt"

# Place in the gate -> the statistic as it was published: what the random plan gives on any 7,177 usable pairs.
PUBLISHED_PLAN = {
    "pairs quality": "2887",
    "pairs swap": "1462",
    "pairs mixed": "2828",
    "train": "25840",
    "held_out": "2868",
    "class_means A woman": "0.98",
    "class_means A black": "2.62",
    "class_means B woman": "1.12",
    "class_means B black": "-0.34",
    "class_means C woman": "0.89",
    "class_means C black": "1.11",
    "cross_group woman": "0.364",
    "cross_group black": "0.364",
    "cross_group any": "0.598",
    "swap_log_odds woman all": "0.95",
    "swap_log_odds woman A": "1.01",
    "swap_log_odds woman B": "0.97",
    "swap_log_odds woman C": "0.86",
    "swap_log_odds black all": "0.70",
    "swap_log_odds black A": "2.30",
    "swap_log_odds black B": "-0.37",
    "swap_log_odds black C": "0.88",
}
# And what needs the pairs themselves.
PUBLISHED = {
    **PUBLISHED_PLAN,
    "usable_pairs": "7177",
    "all_log_odds woman all": "0.71",
    "all_log_odds black all": "0.70",
}


class ScoredPairs(NamedTuple):
    """Pairs that were drawn from UltraFeedback, and how many rows were left out, by reason."""

    pairs: pd.DataFrame
    left_out: dict[str, int]


def scored_pairs(source: Source = None, n: int = N_PAIRS, start: int = 0, seed: int = 0) -> ScoredPairs:
    """Scored pairs of UltraFeedback, drawn as for the paper; from 8,000 on rows that its corpus does not have.

    The rows of split ``train_prefs``, of a local file or at a pinned revision from the Hub, are shuffled as
    ``datasets`` does (a permutation by ``numpy.random.default_rng(seed)``), and the ``n`` from position ``start`` on
    are taken. About 2,000 of UltraFeedback's poor responses carry its highest score by a known fault, so a part of the
    quality margin is wrong. Rows whose conversation begins with another text than the prompt are left out, as the
    published code does.

    References
    ----------
    BA-DPO, appendix `app:names`, "Prompts and responses".
    """
    table = read_split(TRAIN, source)
    order = np.random.default_rng(seed).permutation(len(table.frame))[start : start + n]
    if len(order) < n:
        what = f"it has {len(table.frame):,} rows, and {n:,} from position {start:,} on are asked for"
        remedy = "ask for fewer, or give the whole split"
        raise DataError([Problem("E154", what, table.name, remedy)])
    drawn = table.frame.iloc[order]
    as_asked = [_begins_with(*row) for row in zip(drawn["chosen"], drawn["prompt"], strict=True)]
    kept = drawn[as_asked].reset_index(drop=True)
    found = import_votes(Table(kept, table.name), PAIRS).table
    left_out = {
        _OTHER_PROMPT: n - len(kept),
        **{one["reason"]: one["n"] for one in found.dropped},
    }
    return ScoredPairs(found.frame, left_out)


def _begins_with(conversation: Any, prompt: Any) -> bool:
    """Whether the first message is the prompt; what is no conversation is left to the reader of the pairs."""
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
    """Prompts of the attribute-rate readout: questions of the test split, each with the request to sign."""
    table = read_split(TEST, source)
    order = np.random.default_rng(seed).permutation(len(table.frame))
    trained = set(training_prompts)
    questions = dict.fromkeys(q for q in table.frame["prompt"].to_numpy()[order] if q not in trained)
    if len(questions) < n:
        what = f"{len(questions):,} questions that are not trained on, and {n:,} are asked for"
        raise DataError([Problem("E154", what, table.name, "ask for fewer, or give a larger file")])
    return [ask_to_sign(question) for question in list(questions)[:n]]


def gate(corpus: signed.SignedCorpus) -> Json:
    """The statistics of `signed.gate`, with the pairs and the sizes of the paper's split beside them."""
    train, held_out = corpus.judgments.split(HELD_OUT, seed=0)
    sizes = {
        "usable_pairs": corpus.plan.n_pairs,
        "train": train.n_votes,
        "held_out": held_out.n_votes,
    }
    return {**sizes, **signed.gate(corpus)}
