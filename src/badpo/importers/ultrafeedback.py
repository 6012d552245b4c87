"""UltraFeedback binarized: pairs of answers with a model's scores, and no votes."""

from collections.abc import Iterator
from typing import Any

from badpo.data.cells import as_messages
from badpo.importers.export import NOT_A_PAIR, Export, Importer

SCORES = ("score_chosen", "score_rejected")
COLUMNS = {"prompt", "chosen", "rejected", *SCORES}


def read_ultrafeedback(export: Export) -> Iterator[dict[str, Any]]:
    """One scored pair for each row: prompt and last answers as text, with both scores.

    No person voted on these pairs, so nothing can be learned from them about annotators. They are what
    `badpo corpus signed` builds votes with planted leans on.
    """
    export.used |= {"prompt_id", *COLUMNS}
    n_pairs = 0
    for record in export.records():
        try:
            answers = {side: _last_answer(record.get(side)) for side in ("chosen", "rejected")}
        except ValueError:
            yield {"left_out": NOT_A_PAIR, "annotator": None}
            continue
        n_pairs += 1
        yield {
            name: record.get(name) for name in ("prompt_id", "prompt", "chosen", "rejected", *SCORES)
        } | answers
    what = "scored pairs, not votes: a model gave the scores, and no annotator can be told from them"
    remedy = "build votes on them with badpo corpus signed; some of the scores are known to be wrong"
    export.note("N147", what, remedy, n_pairs)


def _last_answer(cell: Any) -> str:
    messages = as_messages(cell)
    if not messages or messages[-1]["role"] != "assistant":
        raise ValueError("the conversation does not end with an answer")
    return messages[-1]["content"]


IMPORTER = Importer(
    "UltraFeedback binarized, scored pairs without votes",
    (COLUMNS | {"messages"},),
    read_ultrafeedback,
)
