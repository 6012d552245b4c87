"""What the speed benches should show, held against the parts that they wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Row = Mapping[str, str]


@dataclass(frozen=True)
class Goal:
    """A cell of a part's table, and the values that it must and that it should have.

    Attributes
    ----------
    title : str
    part : str
        The bench that writes the table.
    row : mapping
        Cells that tell the row.
    column : str
    must : float
    aim : float or None
    at_most : bool
        Whether the values are the largest ones instead of the smallest.
    """

    title: str
    part: str
    row: Row
    column: str
    must: float
    aim: float | None = None
    at_most: bool = False

    def verdict(self, value: float) -> str:
        if self._reaches(value, self.must):
            return "aim met" if self.aim is not None and self._reaches(value, self.aim) else "met"
        return "**missed**"

    def _reaches(self, value: float, goal: float) -> bool:
        return value <= goal if self.at_most else value >= goal


def against_trl(
    title: str, part: str, row: Row, compact: tuple[float, float | None], stock: tuple[float, float | None]
) -> list[Goal]:
    """Two goals of a row: its ratio to TRL with the GPU's path, and to stock TRL."""
    return [
        Goal(title, part, row, "ratio_vs_trl_compact", *compact),
        Goal(title, part, row, "ratio_vs_trl", *stock),
    ]


def steps(case: str, batching: str, micro_batch: int, ours_takes: int) -> Row:
    return {
        "case": case,
        "what": "steps",
        "model": "0.5B-like",
        "batching": batching,
        "micro_batch": str(micro_batch),
        "ours_takes": str(ours_takes),
    }


def _goals() -> Iterator[Goal]:
    for case, micro_batch, compact, stock in (
        ("signed", 8, (2.0, 3.0), (3.5, 5.0)),
        ("signed", 2, (1.5, 2.0), (2.0, 3.0)),
        ("multipref", 8, (1.7, 2.5), (2.7, 4.0)),
        ("mtbench", 8, (1.7, 2.5), (2.7, 4.0)),
    ):
        title = f"`{case}`, `random`, {micro_batch} judgments a forward"
        row = steps(case, "random", micro_batch, micro_batch)
        yield from against_trl(title, "training", row, compact, stock)
    for case, compact, stock in (
        ("signed", (7.0, 10.0), (11.0, 15.0)),
        ("multipref", (4.0, 6.0), (6.5, 9.0)),
    ):
        for ours_takes in (8, 16):
            title = f"`{case}`, `grouped`, 8 judgments a forward, {ours_takes} of ours"
            yield from against_trl(title, "training", steps(case, "grouped", 8, ours_takes), compact, stock)
    for batching, least, least_of_stock in (("random", 2.0, 3.0), ("grouped", 5.0, 8.0)):
        row = {"case": "signed", "what": "train()", "batching": batching}
        yield from against_trl(
            f"whole `train()`, `{batching}`", "training", row, (least, None), (least_of_stock, None)
        )
    for case in ("signed", "multipref", "mtbench"):
        row = {"case": case, "what": "first time"}
        yield from against_trl(
            f"reference of `{case}`, first time", "reference", row, (5.0, 7.0), (8.0, 10.0)
        )
    for what in ("second arm", "second seed", "added column", "resumed run"):
        yield Goal(f"reference, {what}", "reference", {"what": what}, "forwards", 0.0, at_most=True)
    yield Goal(
        "89 names, a forward for each", "readout", {"names": "89"}, "ratio_vs_full_forwards", 40.0, 70.0
    )
    for case in ("signed", "multipref"):
        for batching, must in (("random", 0.75), ("grouped", 0.3)):
            row = {"case": case, "batching": batching, "ours_takes": "8"}
            title = f"memory of `{case}`, `{batching}`"
            yield Goal(title, "memory", row, "peak_memory_ratio", must, at_most=True)


GOALS = tuple(_goals())


def goal_table(parts: Mapping[str, str]) -> str:
    """A section with every goal, what was measured and whether it was reached; from the parts' Markdown."""
    lines = [
        "## Against the goals",
        "",
        "| what | column | must | aim | measured | |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for goal in GOALS:
        cells = [
            row[goal.column]
            for row in table_rows(parts.get(goal.part, ""))
            if goal.row.items() <= row.items() and row.get(goal.column)
        ]
        sign = "≤ " if goal.at_most else ""
        aim = "" if goal.aim is None else f"{sign}{goal.aim:g}"
        found = (cells[0], goal.verdict(float(cells[0]))) if cells else ("", "not measured")
        lines.append(f"| {goal.title} | {goal.column} | {sign}{goal.must:g} | {aim} | {' | '.join(found)} |")
    return "\n".join([*lines, ""])


def table_rows(part: str) -> Iterator[dict[str, str]]:
    """The rows of the first table of a Markdown text."""
    lines = [line for line in part.splitlines() if line.startswith("|")]
    if len(lines) < 2:
        return
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    for row in rows:
        yield dict(zip(head, row, strict=True))
