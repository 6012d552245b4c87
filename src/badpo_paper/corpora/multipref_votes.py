"""Load MultiPref: votes of 227 evaluators on pairs of model answers.

Two crowd workers and two experts voted on each pair of answers. In the table of votes, every vote is one row, and ties
are excluded. The paper's appendix `app:multipref` describes the corpus.
"""

import random
from typing import NamedTuple

from badpo.auditing.pool_bias import log_odds_row
from badpo.data.attributes import Attribute, Length, Markdown
from badpo.data.judgments import Judgments
from badpo.data.problems import DataError, Problem, counted
from badpo.importers.convert import import_votes
from badpo.importers.multipref import COLUMNS
from badpo_paper.corpora.published import STATISTICS, HubSplit, Source, Statistics, read_split

HUB = HubSplit("allenai/multipref", "train", COLUMNS, configuration="default")
HELD_OUT, N_EVALUATION = 0.1, 300
PUBLISHED = STATISTICS["multipref"]


class MultiPref(NamedTuple):
    """The judgments of MultiPref, and statistics of these votes before any training."""

    judgments: Judgments
    statistics: Statistics


def load(source: Source = None) -> MultiPref:
    """Load MultiPref from the Hub or from a local file with the same schema, and declare length and Markdown.

    Pseudonyms replace the evaluator ids.
    """
    table = import_votes(read_split(HUB, source), "multipref").table
    judgments = Judgments.read(table, attributes=(Length(ratio=1.5), Markdown()))
    votes, n_votes = table.frame, judgments.n_votes
    sizes = votes.groupby("comparison_id").size()
    train, held_out = judgments.split(HELD_OUT, seed=0)
    words = judgments.comparisons[["response_a", "response_b"]].map(lambda text: len(text.split()))

    def measure_attribute(attribute: Attribute) -> Statistics:
        (log_odds,) = judgments.with_attributes([attribute]).offline_log_odds()
        return log_odds_row(log_odds, n_votes)

    statistics: Statistics = {
        # statistics of all votes, including ties
        "comparisons": len(sizes),
        "prompts": votes["prompt_id"].nunique(),
        "annotators": votes["annotator"].nunique(),
        "votes_per_comparison": {"least": int(sizes.min()), "most": int(sizes.max())},
        "tie_share": 1 - n_votes / len(votes),
        "judgments": n_votes,
        "train": train.n_votes,
        "held_out": held_out.n_votes,
        "any_longer_share": float((words["response_a"] != words["response_b"]).mean()),
        "length": {
            f"{ratio:g}": measure_attribute(Length(ratio=ratio)) for ratio in (1.25, 1.5, 2.0, 3.0)
        },
        "markdown": measure_attribute(Markdown()),
    }
    return MultiPref(judgments, statistics)


def choose_evaluation_prompts(
    judgments: Judgments, n: int = N_EVALUATION, held_out: float = HELD_OUT
) -> tuple[str, ...]:
    """Choose evaluation prompts: distinct held-out prompt texts that do not occur as training prompts.

    ``random.Random(0)`` shuffles the prompt ids as `Judgments.split` does. The same random generator then shuffles the
    sorted distinct texts of the held-out prompts. The function returns the first ``n`` texts.
    """
    train, test = judgments.split(held_out, 0)
    draw = random.Random(0)
    prompt_ids = sorted(set(judgments.comparisons["prompt_id"]))
    draw.shuffle(prompt_ids)
    texts = sorted(set(test.comparisons["prompt"]))
    draw.shuffle(texts)
    training_texts = set(train.comparisons["prompt"])
    unused = [text for text in texts if text not in training_texts]
    if not unused:
        what = (
            f"of {counted(len(prompt_ids), 'prompt')}, {len(texts):,} texts are held out, but each of these texts is "
            "also a training prompt, so no prompt is left for the evaluation"
        )
        remedy = "give more prompts, or give equal prompts the same prompt_id"
        raise DataError([Problem("E154", what, "judgments", remedy)])
    return tuple(unused[:n])
