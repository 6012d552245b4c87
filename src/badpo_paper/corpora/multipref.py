"""MultiPref: real votes of 227 evaluators on pairs of model answers, two crowd workers and two experts each.

Every vote stays a row of its own and ties are left out. See the paper's appendix `app:multipref`.
"""

import random
from typing import NamedTuple

from badpo.auditing.pool import log_odds_row
from badpo.data.attributes import Attribute, Length, Markdown
from badpo.data.files import Json
from badpo.data.judgments import Judgments
from badpo.data.problems import DataError, Problem, counted
from badpo.importers.convert import import_votes
from badpo.importers.multipref import COLUMNS
from badpo_paper.corpora.published import HubSplit, Source, read_split

HUB = HubSplit("allenai/multipref", "train", COLUMNS, configuration="default")
HELD_OUT, N_EVALUATION = 0.1, 300
# Place in the gate -> the statistic as it was published.
PUBLISHED = {
    "comparisons": "10461",
    "prompts": "5323",
    "annotators": "227",
    "votes_per_comparison least": "4",
    "votes_per_comparison most": "4",
    "tie_share": "0.26",
    "judgments": "30847",
    "train": "27812",
    "held_out": "3035",
    "any_longer_share": "0.995",
    "length 1.25 cross_share": "0.73",
    "length 1.25 log_odds": "0.91",
    "length 1.5 cross_share": "0.587",
    "length 1.5 carrier_wins": "0.73",
    "length 1.5 log_odds": "0.99",
    "length 2 cross_share": "0.40",
    "length 2 log_odds": "1.04",
    "length 3 cross_share": "0.21",
    "length 3 log_odds": "1.05",
    "markdown cross_share": "0.264",
    "markdown log_odds": "0.98",
}


class MultiPref(NamedTuple):
    """MultiPref as judgments, and statistics that are read from the votes before any training."""

    judgments: Judgments
    gate: Json


def load(source: Source = None) -> MultiPref:
    """MultiPref from the Hub, or from a local file of the same schema, with length and Markdown declared.

    Evaluator ids become pseudonyms as they are read.
    """
    table = import_votes(read_split(HUB, source), "multipref").table
    judgments = Judgments.read(table, attributes=(Length(ratio=1.5), Markdown()))
    cast, n_votes = table.frame, judgments.n_votes
    each = cast.groupby("comparison_id").size()
    train, held_out = judgments.split(HELD_OUT, seed=0)
    words = judgments.comparisons[["response_a", "response_b"]].map(lambda text: len(text.split()))

    def offline(attribute: Attribute) -> Json:
        (found,) = judgments.with_attributes([attribute]).offline_log_odds()
        return log_odds_row(found, n_votes)

    gate = {
        # of what was cast, before ties are left out
        "comparisons": len(each),
        "prompts": cast["prompt_id"].nunique(),
        "annotators": cast["annotator"].nunique(),
        "votes_per_comparison": {"least": int(each.min()), "most": int(each.max())},
        "tie_share": 1 - n_votes / len(cast),
        "judgments": n_votes,
        "train": train.n_votes,
        "held_out": held_out.n_votes,
        "any_longer_share": float((words["response_a"] != words["response_b"]).mean()),
        "length": {f"{ratio:g}": offline(Length(ratio=ratio)) for ratio in (1.25, 1.5, 2.0, 3.0)},
        "markdown": offline(Markdown()),
    }
    return MultiPref(judgments, gate)


def evaluation_prompts(
    judgments: Judgments, n: int = N_EVALUATION, held_out: float = HELD_OUT
) -> tuple[str, ...]:
    """Prompts that policies answer: texts of held-out prompts, each once, that no training prompt has.

    ``random.Random(0)`` first shuffles the prompt ids as `Judgments.split` does; the distinct texts of the held
    out ones, sorted, are then shuffled by the same generator, and the first ``n`` are taken.
    """
    train, apart = judgments.split(held_out, 0)
    draw = random.Random(0)
    prompt_ids = sorted(set(judgments.comparisons["prompt_id"]))
    draw.shuffle(prompt_ids)
    texts = sorted(set(apart.comparisons["prompt"]))
    draw.shuffle(texts)
    trained = set(train.comparisons["prompt"])
    fresh = [text for text in texts if text not in trained]
    if not fresh:
        what = (
            f"{counted(len(prompt_ids), 'prompt')}, {len(texts):,} texts of them held out: none that is not a training "
            "prompt too is left to evaluate on"
        )
        remedy = "give more prompts, or one prompt_id to equal ones"
        raise DataError([Problem("E154", what, "judgments", remedy)])
    return tuple(fresh[:n])
