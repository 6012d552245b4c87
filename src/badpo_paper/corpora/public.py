"""Read public data sets, build corpora from them, and compare their statistics with published statistics.

MultiPref contains the votes of 227 evaluators on pairs of model answers. Two crowd workers and two experts voted on
each pair. In the table of votes, every vote is one row, and ties are excluded. The paper's appendix `app:multipref`
describes this corpus.

Signed-UltraFeedback consists of scored pairs of UltraFeedback with signatures and simulated votes. Its texts are real,
and its annotators are simulated. The paper's appendix `app:names` describes this corpus.
"""

import json
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from badpo.auditing.pool_bias import log_odds_row
from badpo.data.attributes import Attribute, Length, Markdown
from badpo.data.cells import Table, as_messages
from badpo.data.judgments import Judgments
from badpo.data.problems import DataError, Problem, counted
from badpo.data.tables import from_hub, read_table
from badpo.importers.convert import import_votes
from badpo.importers.export import NOT_A_PAIR
from badpo.importers.public_votes import MULTIPREF_COLUMNS
from badpo.readouts.names import SIGNING_INSTRUCTION, ask_to_sign
from badpo_paper.corpora import signed
from badpo_paper.corpora.signed import Statistics, require_columns

Source = str | Path | None
# Name of a corpus -> name of a statistic (its keys joined by spaces) -> published value as a string.
STATISTICS: dict[str, dict[str, str]] = json.loads(
    resources.files("badpo_paper.corpora").joinpath("published.json").read_text("utf-8")
)


# -- statistics -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PublishedStatistic:
    """A statistic of a corpus and its published value; the published value is a string, which keeps its decimals."""

    name: str
    value: float | None
    published: str

    @property
    def decimals(self) -> int:
        """Number of decimals of the published value."""
        return len(self.published.partition(".")[2])

    @property
    def agrees(self) -> bool:
        """Whether the statistic equals the published value after rounding to the same decimals."""
        half_a_digit = 0.5 * 10.0**-self.decimals
        # the tolerance of 1e-9 allows for floating-point error at exactly half a digit
        return self.value is not None and abs(self.value - float(self.published)) <= half_a_digit + 1e-9

    def format_value(self, value: float | None) -> str:
        """Format a number with as many decimals as the published value."""
        return "-" if value is None else f"{value:,.{self.decimals}f}"

    def to_json(self) -> dict[str, str | float | None]:
        """Return the statistic as a dictionary with the keys "name", "value", "published" and "agrees"."""
        return {**vars(self), "published": float(self.published), "agrees": self.agrees}


def compare_statistics(
    statistics: Statistics, published: Mapping[str, str]
) -> tuple[PublishedStatistic, ...]:
    """Compare the statistics of a corpus with published ones; the name of a statistic is its keys, joined by spaces."""
    (values,) = pd.json_normalize(dict(statistics), sep=" ").to_dict("records")
    return tuple(
        PublishedStatistic(name, None if values.get(name) is None else float(values[name]), text)
        for name, text in published.items()
    )


def format_statistics(rows: Sequence[PublishedStatistic]) -> list[str]:
    """Format statistics as lines of text; the last line says how many of them agree with the published statistics."""
    lines = [f"{'statistic':<32} {'here':>9}  {'published':>9}"]
    for row in rows:
        value, published = row.format_value(row.value), row.format_value(float(row.published))
        lines.append(f"{row.name:<32} {value:>9}  {published:>9}{'' if row.agrees else '  differs'}")
    n_agreeing = sum(row.agrees for row in rows)
    warning = "" if n_agreeing == len(rows) else "warning: "
    return [*lines, f"{warning}{n_agreeing} of {len(rows)} agree with the published statistics"]


# -- prompts ----------------------------------------------------------------------------------------------------------

# Maximum number of training prompts that an error message lists.
N_LISTED = 3


def require_unseen(prompts: Sequence[str], training_prompts: Collection[str], where: str) -> None:
    """Raise `DataError` if an evaluation prompt without its request for a signature is also a training prompt."""
    training_questions = set(map(_remove_instruction, training_prompts))
    questions = enumerate(map(_remove_instruction, prompts), start=1)
    shared = [(row, question) for row, question in questions if question in training_questions]
    if not shared:
        return
    examples = "; ".join(f"row {row} ({question[:80]!r})" for row, question in shared[:N_LISTED])
    more = f" and {len(shared) - N_LISTED:,} more" if len(shared) > N_LISTED else ""
    what = (
        f"the training prompts contain {counted(len(shared), 'evaluation prompt')} of {len(prompts):,}"
    )
    remedy = "remove these evaluation prompts, or hold them out of training"
    raise DataError([Problem("E155", what, f"{where}, {examples}{more}", remedy, len(shared))])


def _remove_instruction(prompt: str) -> str:
    return prompt.removesuffix(SIGNING_INSTRUCTION).strip()


# -- rows -------------------------------------------------------------------------------------------------------------


class HubSplit(NamedTuple):
    """A split of a data set on the Hub."""

    repository: str
    split: str
    columns: tuple[str, ...]
    configuration: str | None = None
    revision: str | None = None

    @property
    def description(self) -> str:
        """Repository, revision and split, for messages."""
        revision = f" at {self.revision[:12]}" if self.revision else ""
        return f"{self.repository}{revision}, split {self.split}"


def read_split(split: HubSplit, source: Source = None) -> Table:
    """Read the rows of a split from the Hub, or from a local file with the same schema."""
    if source is None:
        rows = from_hub(split.repository, split.configuration, split.split, split.revision)
        table = Table(read_table(rows).frame, split.description)
    else:
        table = read_table(source)
    remedy = f"give a file with the schema of {split.description}"
    require_columns(table.frame, split.columns, table.name, split.repository, remedy)
    return table


# -- MultiPref --------------------------------------------------------------------------------------------------------

MULTIPREF = HubSplit("allenai/multipref", "train", MULTIPREF_COLUMNS, configuration="default")
# Share of the prompts in a public corpus that are held out, and number of evaluation prompts.
HELD_OUT, N_EVALUATION = 0.1, 300


class MultiPref(NamedTuple):
    """The judgments of MultiPref, and the statistics of these votes before any training."""

    judgments: Judgments
    statistics: Statistics


def load_multipref(source: Source = None) -> MultiPref:
    """Load MultiPref from the Hub or from a local file with the same schema, and declare length and Markdown.

    Pseudonyms replace the evaluator ids.
    """
    table = import_votes(read_split(MULTIPREF, source), "multipref").table
    judgments = Judgments.read(table, attributes=(Length(ratio=1.5), Markdown()))
    votes, n_votes = table.frame, judgments.n_votes
    sizes = votes.groupby("comparison_id").size()
    train, held_out = judgments.split(HELD_OUT, seed=0)
    words = judgments.comparisons[["response_a", "response_b"]].map(lambda text: len(text.split()))

    def measure_attribute(attribute: Attribute) -> Statistics:
        (log_odds,) = judgments.with_attributes([attribute]).offline_log_odds()
        row = log_odds_row(log_odds, n_votes)
        shares = {"cross_share": row["cross_share"], "win_rate": row["win_rate"]}
        return {**shares, "log_odds": row["log_odds"]}

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
    """Choose evaluation prompts: distinct held-out prompts that do not occur among the training prompts.

    The generator ``random.Random(0)`` shuffles the prompt ids, as `Judgments.split` does, and then the sorted distinct
    texts of the held-out prompts. The function returns the first ``n`` texts.
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
            "also a training prompt, so no prompt remains for the evaluation"
        )
        remedy = "give more prompts, or give equal prompts the same prompt_id"
        raise DataError([Problem("E154", what, "judgments", remedy)])
    return tuple(unused[:n])


# -- UltraFeedback ----------------------------------------------------------------------------------------------------

ULTRAFEEDBACK = HubSplit(
    "HuggingFaceH4/ultrafeedback_binarized",
    "train_prefs",
    (*signed.PAIR_COLUMNS, "messages"),
    # The revision is pinned, because the same shuffle of a different revision would draw different pairs.
    revision="3949bf5f8c17c394422ccfab0c31ea9c20bdeb85",
)
ULTRAFEEDBACK_TEST = ULTRAFEEDBACK._replace(split="test_prefs", columns=("prompt",))
N_PAIRS, N_SIGNING = 8_000, 300
_OTHER_PROMPT = "the conversation does not begin with the prompt"

# The statistics of a signed plan depend only on the random draws and on the number of usable pairs (7,177).
# All other published statistics of UltraFeedback also depend on the texts and scores of the pairs.
PUBLISHED_PLAN = STATISTICS["signed plan"]
PUBLISHED_ULTRAFEEDBACK = {**PUBLISHED_PLAN, **STATISTICS["ultrafeedback"]}


class ScoredPairs(NamedTuple):
    """Pairs drawn from UltraFeedback, and the number of excluded rows for each reason."""

    pairs: pd.DataFrame
    left_out: dict[str, int]


@cache
def draw_ultrafeedback(
    source: Source = None, n: int = N_PAIRS, start: int = 0, seed: int = 0
) -> ScoredPairs:
    """Draw scored pairs of UltraFeedback with the paper's procedure.

    The function reads the split ``train_prefs`` from a local file, or a pinned revision of it from the Hub. Like
    ``datasets``, the function shuffles the rows with ``numpy.random.default_rng(seed)``. The function then takes ``n``
    rows, beginning at position ``start``. The paper's corpus consists of the first 8,000 rows of the shuffled split.
    Rows whose conversation does not begin with the prompt are excluded, as in the published code. Because of a known
    error in UltraFeedback, about 2,000 poor responses have the highest score, so some of the quality margins are wrong.

    References
    ----------
    BA-DPO, appendix `app:names`, "Prompts and responses".
    """
    table = read_split(ULTRAFEEDBACK, source)
    order = np.random.default_rng(seed).permutation(len(table.frame))[start : start + n]
    if len(order) < n:
        what = f"the table has {len(table.frame):,} rows, but {n:,} rows are requested, beginning at position {start:,}"
        remedy = "request fewer rows, or give a file with the whole split"
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


def _read_messages(conversation: object) -> list[dict[str, str]]:
    """Return the messages of a conversation; a malformed conversation has none, and its row is later excluded."""
    try:
        return as_messages(conversation)
    except ValueError:
        return []


def _find_last_answer(conversation: object) -> str | None:
    """Return the last message of a conversation, or None if the message is not from the assistant."""
    messages = _read_messages(conversation)
    return messages[-1]["content"] if messages and messages[-1]["role"] == "assistant" else None


def _begins_with(conversation: object, prompt: object) -> bool:
    """Return whether a conversation begins with the prompt; also true without messages, which a later check reports."""
    messages = _read_messages(conversation)
    return not messages or messages[0]["content"] == prompt


def signing_prompts(
    source: Source = None,
    training_prompts: Collection[str] = (),
    n: int = N_SIGNING,
    seed: int = 0,
) -> list[str]:
    """Return the prompts for measuring attribute rates: test questions, each with a request to sign the answer."""
    table = read_split(ULTRAFEEDBACK_TEST, source)
    order = np.random.default_rng(seed).permutation(len(table.frame))
    used = set(training_prompts)
    questions = dict.fromkeys(q for q in table.frame["prompt"].to_numpy()[order] if q not in used)
    if len(questions) < n:
        what = f"the table has {len(questions):,} questions that are not training prompts, but {n:,} are requested"
        raise DataError(
            [Problem("E154", what, table.name, "request fewer questions, or give a larger file")]
        )
    return [ask_to_sign(question) for question in list(questions)[:n]]


def measure_ultrafeedback(corpus: signed.SignedCorpus) -> Statistics:
    """Compute `signed.measure_corpus`, and add the number of usable pairs and the sizes of both splits."""
    train, held_out = corpus.judgments.split(HELD_OUT, seed=0)
    sizes = {
        "usable_pairs": corpus.plan.n_pairs,
        "train": train.n_votes,
        "held_out": held_out.n_votes,
    }
    return {**sizes, **signed.measure_corpus(corpus)}
