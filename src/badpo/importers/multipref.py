"""Reader for MultiPref's individual votes, which come from two crowd workers and two experts for each pair."""

from collections.abc import Iterator

from badpo.importers.export import Answer, Export, Importer, as_list

POOLS = {"normal_worker_annotations": "normal", "expert_worker_annotations": "expert"}
WINNERS = {
    "A-is-clearly-better": "a",
    "A-is-slightly-better": "a",
    "Tie": "tie",
    "B-is-slightly-better": "b",
    "B-is-clearly-better": "b",
}
# badpo's column -> column of the export
_PAIR = {name: name for name in ("comparison_id", "prompt_id", "model_a", "model_b")} | {
    "prompt": "text",
    "response_a": "completion_a",
    "response_b": "completion_b",
}

COLUMNS = (*_PAIR.values(), *POOLS)


def read_multipref(export: Export) -> Iterator[Answer]:
    """Yield one row for each annotation. The vote is the overall preference.

    ``--column winner=QUESTION`` imports another question. Clear and slight preferences count as the same vote. If an
    annotation has none of MultiPref's five answers, it is left out and counted.
    """
    export.used |= set(COLUMNS)
    records = list(export.records())
    annotations = [one for record in records for name in POOLS for one in as_list(record.get(name))]
    questions = dict.fromkeys(name for one in annotations for name in one)
    question = export.chosen_field("winner", list(questions))
    for record in records:
        pair = {column: record.get(name) for column, name in _PAIR.items()}
        for name, pool in POOLS.items():
            for one in as_list(record.get(name)):
                winner, who = WINNERS.get(one.get(question or "overall_pref")), one.get("evaluator")
                yield Answer(**pair, winner=winner, annotator=who, annotator_class=pool)


IMPORTER = Importer(
    "MultiPref's individual votes",
    [{"completion_a", "completion_b", pool} for pool in POOLS],
    read_multipref,
)
