"""Judgments: comparisons in one table, the votes on them in another, attribute differences beside the votes.

Response a and response b of a comparison keep one orientation. A vote has a sign (+1: chose a, -1: chose b) and every
difference is a minus b, so that the logit of judgment j is ``sign_j * (u_c + theta_k . delta_j)``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from badpo.data.attributes import Attribute, Attributes, as_attributes, plain_text
from badpo.data.cells import Objects, numbered, text_key
from badpo.data.privacy import keyed_digest
from badpo.data.problems import ConfigError, DataError, Problem, counted, refuse_other_types
from badpo.data.reading import VOTE_COLUMNS, read_votes
from badpo.data.tables import DROPPED_KEY, Source, write_table
from badpo.estimation.log_odds import LogOdds, offline_log_odds
from badpo.theory import Bools, Floats, Ints

_RETURNS = {
    "response": "one number",
    "pair": "two numbers (g_a, g_b)",
    "judgment": "one number, or None where it is not recorded,",
}


class ReadingOptions(TypedDict, total=False):
    """Options of `Judgments.read` besides the attributes, for whatever reads a table by itself."""

    columns: Mapping[str, str | None] | None
    annotators_missing: str
    repeated: str
    winners: Mapping[str, str] | None
    keep: Sequence[str]
    bad_rows: str
    layout: str | None


@dataclass(frozen=True, eq=False)
class Judgments:
    """Votes of annotators on pairs of responses, with the declared attributes measured.

    Attributes
    ----------
    comparisons : DataFrame
        Row c is comparison c: ``comparison_id``, ``prompt_id``, ``prompt``, ``response_a``, ``response_b`` (text or
        lists of messages), and carried columns that are the same for all its votes.
    votes : DataFrame
        Row j is judgment j: ``comparison`` (int), ``sign`` (+1 chose a, -1 chose b), ``annotator`` (int), ``weight``,
        ``row`` (0-based row of the source), ``shown_first`` ("a", "b" or None), and all carried columns.
    annotators : DataFrame
        Row k is annotator k, in order of their first vote: ``pseudonym``, ``annotator_class`` (text or None), and the
        name of a ``model`` (those of the class "model"; None for people).
    attributes : tuple of Attribute
    delta : float64 array of shape (n_votes, n_attributes)
        d_j = g(a) - g(b); 0 where it is missing.
    missing : bool array of shape (n_votes, n_attributes)
        Votes that do not record an attribute of the judgment.
    dropped : DataFrame
        ``reason``, ``annotator`` (pseudonym), ``n``: every row of the source that is no vote here.
    findings : tuple of Problem
        What the reader noticed; errors stop it, so these are warnings and notices.
    has_identities : bool
        False when the source has no annotator column; all votes then belong to one annotator, ``everyone``.
    source : str
        The name of the file that the votes were read from, if there was one.
    ties : Judgments or None
        The rows that are ties, with comparisons and annotators of their own and the sign 0; None without any.

    Examples
    --------
    >>> from badpo.attributes import Length
    >>> rows = [
    ...     {"prompt": "Why?", "response_a": "It just is so.", "response_b": "So.", "winner": "a"},
    ...     {"prompt": "Why?", "response_a": "So.", "response_b": "It just is so.", "winner": "a"},
    ... ]
    >>> judgments = Judgments.read(rows, attributes=[Length(ratio=1.5)])
    >>> judgments.n_comparisons, judgments.votes["sign"].tolist(), judgments.delta.ravel().tolist()
    (1, [1, -1], [1.0, 1.0])
    """

    comparisons: pd.DataFrame
    votes: pd.DataFrame
    annotators: pd.DataFrame
    attributes: tuple[Attribute, ...]
    delta: Floats
    missing: Bools
    dropped: pd.DataFrame
    findings: tuple[Problem, ...]
    has_identities: bool
    source: str = ""
    ties: Judgments | None = None

    @classmethod
    def read(
        cls,
        source: Source,
        *,
        columns: Mapping[str, str | None] | None = None,
        attributes: Attributes = (),
        annotators_missing: str = "error",
        repeated: str = "all",
        winners: Mapping[str, str] | None = None,
        keep: Sequence[str] = (),
        bad_rows: str = "error",
        layout: str | None = None,
    ) -> Judgments:
        """Read judgments from a table of votes.

        Parameters
        ----------
        source : path, DataFrame, Arrow table, split of a dataset, or list of dicts
            With columns ``prompt, response_a, response_b, winner`` or ``chosen, rejected`` (and ``prompt``), and
            optionally ``annotator, annotator_class, comparison_id, prompt_id, judgment_id, weight, shown_first``. In
            place of ``winner``: ``rating``, or ``rating_a, rating_b``, or ``votes_a, votes_b, votes_tie``.
        columns : mapping
            Our column name -> the table's; None as a value leaves a column unused. Columns whose names say what they
            are need not be named; a finding says which were recognised.
        attributes : Attribute, or text such as "length:ratio=1.5", or several
        annotators_missing : "error" or "drop"
            What happens to rows without an annotator where others have one.
        repeated : "all" or "last"
            An annotator's repeated votes on one comparison: keep all of them, or the last one. Votes that saw the
            other side first are no repetition.
        winners : mapping
            The table's winner labels -> ``a``, ``b``, ``tie`` or, for rows that are left out, ``skip``; of ratings,
            what ``high`` prefers and which number is a ``tie``.
        keep : sequence of str
            Further columns to carry along with the votes.
        bad_rows : "error" or "drop"
            Whether rows that cannot be read stop the reader, or are left out and counted.
        layout : None, "wide" or "counts"
            Wide: each column of labels holds one annotator's votes; where other columns hold labels too, name them in
            ``columns``, as in ``{"annotator": "ann_1,ann_2"}``. Counts: columns hold numbers of votes.

        Returns
        -------
        Judgments

        Raises
        ------
        DataError
            Everything that is wrong with the table, with rows, columns and remedies.
        ConfigError
            A choice that is not there.
        """
        refuse_other_types(columns=columns, winners=winners, keep=keep)
        declared = as_attributes(attributes)
        pairs = [attribute.columns for attribute in declared if attribute.columns is not None]
        asked = {"columns": columns or {}, "winners": winners or {}, "keep": keep, "pairs": pairs}
        asked |= {"annotators_missing": annotators_missing, "repeated": repeated}
        read = read_votes(source, asked | {"bad_rows": bad_rows, "layout": layout})
        name = Path(source).name if isinstance(source, str | os.PathLike) else ""
        none: dict[str, Any] = {
            "attributes": (),
            "delta": np.empty(0),
            "missing": np.empty(0, dtype=bool),
            "source": name,
        }
        if read["ties"]:
            of_ties = read["ties"] | {"dropped": read["dropped"].head(0), "findings": ()}
            read["ties"] = cls(**of_ties, **none)
        return cls(**read, **none).with_attributes(declared)

    def with_attributes(self, attributes: Attributes) -> Judgments:
        """The same votes with these attributes instead of the present ones.

        Raises
        ------
        ConfigError
            When two attributes have one name.
        DataError
            When an attribute cannot be measured.
        """
        attributes = as_attributes(attributes)
        names = [attribute.name for attribute in attributes]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f'two attributes are called "{name}"; give one of them another name')
        delta = np.zeros((self.n_votes, len(names)))
        problems: list[Problem] = []
        texts = _plain_texts(self.comparisons)
        for j, attribute in enumerate(attributes):
            try:
                if attribute.scope == "judgment":
                    delta[:, j] = _of_judgments(attribute, self.comparisons, self.votes)
                else:
                    a, b = _sides(attribute, self.comparisons, texts).T
                    delta[:, j] = (a - b)[self.votes["comparison"]]
            except DataError as error:
                problems += error.problems
        if problems:
            raise DataError(problems)
        missing = np.isnan(delta)
        delta[missing] = 0.0
        return dataclasses.replace(self, attributes=attributes, delta=delta, missing=missing)

    def split(self, held_out: float = 0.1, seed: int = 0) -> tuple[Judgments, Judgments]:
        """Split by prompt into training and held-out judgments, by the paper's rule.

        The distinct prompt ids are sorted and shuffled by ``random.Random(seed)``; the first
        ``int(held_out * n_prompts)`` are held out. Both parts keep the whole annotators table.

        Parameters
        ----------
        held_out : float
            Share of the prompts, 0 or more and below 1.
        seed : int

        Returns
        -------
        train, held_out : Judgments
            The second is empty when the share comes to less than one prompt.

        References
        ----------
        BA-DPO, appendix `app:multipref`: ten percent of the prompts are held out by prompt id.

        Examples
        --------
        >>> rows = [{"prompt": str(i), "chosen": "yes", "rejected": "no"} for i in range(10)]
        >>> train, held_out = Judgments.read(rows).split(held_out=0.2)
        >>> train.n_comparisons, held_out.n_comparisons
        (8, 2)
        """
        refuse_other_types(held_out=held_out, seed=seed)
        if not 0 <= held_out < 1:
            what = "held_out is a share of the prompts, 0 or more and below 1"
            raise ConfigError(f"{what}; got {held_out!r}")
        prompt_id = self.comparisons["prompt_id"]
        prompts = sorted(set(prompt_id))
        random.Random(seed).shuffle(prompts)
        chosen = prompt_id.isin(prompts[: int(held_out * len(prompts))]).to_numpy()
        is_held_out = chosen[self.votes["comparison"]]
        return self.take(~is_held_out), self.take(is_held_out)

    def take(self, votes: NDArray[Any]) -> Judgments:
        """Some of the votes, with the comparisons that still have one.

        Parameters
        ----------
        votes : bool array of shape (n_votes,), or int array
            The votes to keep, in the order given. Comparisons keep theirs and are numbered anew; the annotators
            table stays whole, so that annotator k is the same person in every part.
        """
        index = np.arange(self.n_votes)[np.asarray(votes)]
        kept = self.votes.iloc[index].reset_index(drop=True)
        used, number = np.unique(kept["comparison"].to_numpy(), return_inverse=True)
        return dataclasses.replace(
            self,
            comparisons=self.comparisons.iloc[used].reset_index(drop=True),
            votes=kept.assign(comparison=number.astype(np.int64)),
            delta=self.delta[index],
            missing=self.missing[index],
        )

    def cross_group(self) -> Bools:
        """Where the two responses differ on an attribute, by more than its threshold; shape (n_votes, n_attributes)."""
        return np.abs(self.delta) > np.array([attribute.threshold for attribute in self.attributes])

    def comparable_votes(self) -> Ints:
        """Votes that can be compared: a number for each, its comparison and which attributes it does not record.

        A vote without ``shown_first`` says nothing about position. Beside votes that do it would count as one without
        any, so it is compared only with its like.
        """
        comparison: Ints = self.votes["comparison"].to_numpy()
        if not self.missing.any():
            return comparison
        _, kind = np.unique(self.missing, axis=0, return_inverse=True)
        numbers: Ints = pd.factorize(comparison * (kind.max() + 1) + kind.reshape(-1))[0]
        return numbers

    def prompt_of_votes(self) -> Ints:
        """Number of the prompt that each vote stands on, of shape (n_votes,)."""
        prompts: Ints = pd.factorize(self.comparisons["prompt_id"])[0]
        of_votes: Ints = prompts[self.votes["comparison"].to_numpy()]
        return of_votes

    def majority(self) -> NDArray[np.int64]:
        """The side most votes chose, +1 (a) or -1 (b), of shape (n_comparisons,); weights do not count.

        A tie goes to the side of the earliest vote, as in the paper's reference (first response seen).

        Examples
        --------
        >>> row = {"prompt": "Why?", "response_a": "so", "response_b": "because"}
        >>> Judgments.read([row | {"winner": "b"}, row | {"winner": "a"}]).majority()
        array([-1])
        """
        comparison, sign = self.votes["comparison"].to_numpy(), self.votes["sign"].to_numpy()
        total = np.bincount(comparison, weights=sign, minlength=self.n_comparisons)
        order = np.argsort(self.votes["row"].to_numpy(), kind="stable")[::-1]
        earliest = np.zeros(self.n_comparisons, dtype=np.int64)
        earliest[comparison[order]] = sign[order]
        return np.where(total == 0, earliest, np.sign(total)).astype(np.int64)

    def offline_log_odds(self) -> tuple[LogOdds, ...]:
        """Log-odds that the carrying side wins, for each attribute, with intervals clustered by prompt."""
        return offline_log_odds(
            self.votes["sign"], self.delta, self.cross_group(), self.prompt_of_votes()
        )

    def fingerprint(self) -> str:
        """HMAC-SHA256 over texts, prompts, votes, differences and attribute configurations, in the order of the votes.

        The same for a table that was written by `to_parquet` and read again with the same attributes on a machine with
        the same pseudonym key. Without the key, votes that are not known cannot be found by trying. Pseudonyms do not
        enter, nor do comparison ids and rows of the source.
        """
        digest, votes = keyed_digest(), self.votes
        number, order = pd.factorize(votes["comparison"])
        texts = self.comparisons[["prompt_id", "prompt", "response_a", "response_b"]].iloc[order]
        for row in texts.itertuples(index=False, name=None):
            digest.update(json.dumps([text_key(text) for text in row]).encode())
        annotator, people = pd.factorize(votes["annotator"])
        shown = votes["shown_first"].map({"a": 1, "b": -1}).fillna(0)
        for values, kind in (
            (number, "<i8"),
            (annotator, "<i8"),
            (votes["sign"], "<i8"),
            (votes["weight"], "<f8"),
            (self.delta, "<f8"),
            (shown, "<i8"),
        ):
            digest.update(np.asarray(values, dtype=kind).tobytes())
        classes = self.annotators["annotator_class"].to_numpy()[people].tolist()
        configs = [dict(attribute.config) for attribute in self.attributes]
        digest.update(json.dumps([classes, configs, self.has_identities], sort_keys=True).encode())
        return digest.hexdigest()

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write one row for each vote; `read` gives the same judgments back.

        People are written as pseudonyms and models by their names, and what was dropped is kept beside the table. The
        file appears whole or not at all. Attributes are not written: declare them when reading.

        Parameters
        ----------
        path : path
            A file name that ends in ``.parquet``.

        Raises
        ------
        DataError
            Fields of messages besides role and content are of several kinds, which no column can hold.
        """
        if not str(path).endswith(".parquet"):
            raise ConfigError(f"{path}: the file's name must end in .parquet, or it cannot be read back")
        table = self.comparisons.iloc[self.votes["comparison"]].reset_index(drop=True)
        table["winner"] = np.where(self.votes["sign"] > 0, "a", "b")
        if self.has_identities:
            of_vote = self.annotators.iloc[self.votes["annotator"]].reset_index(drop=True)
            table["annotator"] = of_vote["model"].fillna(of_vote["pseudonym"])
            if of_vote["annotator_class"].notna().any():
                table["annotator_class"] = of_vote["annotator_class"]
        orders = ["shown_first"] if self.votes["shown_first"].notna().any() else []
        carried = self.votes.columns.difference(VOTE_COLUMNS)
        for name in ("weight", *orders, *carried):
            table[name] = self.votes[name]
        dropped = json.dumps(self.dropped.to_dict("records"))
        try:
            arrow = pa.Table.from_pandas(table, preserve_index=False)
            write_table(arrow.replace_schema_metadata({DROPPED_KEY: dropped.encode()}), path)
        except (pa.ArrowException, OverflowError) as error:
            what = "the messages have fields besides role and content of several kinds, or empty ones"
            remedy = "leave those fields out, or give each of them values of one kind"
            raise DataError([Problem("E105", what, str(path), remedy)]) from error

    @property
    def n_votes(self) -> int:
        """Number of judgments."""
        return len(self.votes)

    @property
    def n_comparisons(self) -> int:
        """Number of comparisons; each goes through the model once, however many votes it has."""
        return len(self.comparisons)

    @property
    def n_annotators(self) -> int:
        """Number of annotators in the table, with or without a vote in this part."""
        return len(self.annotators)

    @property
    def n_attributes(self) -> int:
        """Number of attributes."""
        return len(self.attributes)

    @property
    def attribute_names(self) -> tuple[str, ...]:
        """Names of the attributes, in the order of the columns of `delta`."""
        return tuple(attribute.name for attribute in self.attributes)

    def __repr__(self) -> str:
        names = ", ".join(self.attribute_names) or "none"
        return (
            f"Judgments({counted(self.n_votes, 'vote')} on {counted(self.n_comparisons, 'comparison')} by "
            f"{counted(self.n_annotators, 'annotator')}; attributes: {names})"
        )


# -- attribute differences: each distinct text is measured once -------------------------------------------------


def measure_sides(attribute: Attribute, comparisons: pd.DataFrame) -> Floats:
    """Values g(a) and g(b), of shape (n_comparisons, 2), of an attribute of the response or the pair."""
    return _sides(attribute, comparisons, _plain_texts(comparisons))


def numbered_texts(table: pd.DataFrame, columns: Sequence[str]) -> tuple[Ints, Objects]:
    """Which plain text stands in which cell, of shape (n_columns, n_rows), and the distinct texts."""
    cells = (
        cell if isinstance(cell, str) else plain_text(cell) for name in columns for cell in table[name]
    )
    numbers, distinct = numbered(cells)
    return numbers.reshape(len(columns), -1), distinct


def _plain_texts(comparisons: pd.DataFrame) -> Callable[[], tuple[Ints, Objects]]:
    """What numbers the prompts and responses of all comparisons as plain text, when the first attribute asks."""
    return cache(lambda: numbered_texts(comparisons, ("prompt", "response_a", "response_b")))


def _sides(
    attribute: Attribute, comparisons: pd.DataFrame, texts: Callable[[], tuple[Ints, Objects]]
) -> Floats:
    if attribute.columns is not None:
        missing = [name for name in attribute.columns if name not in comparisons]
        if missing:
            what = f'attribute "{attribute.name}": no single value for each comparison in {", ".join(missing)}'
            remedy = (
                "declare the attribute in Judgments.read; where the votes on one comparison differ in it, declare a "
                "PythonFunction of the judgment"
            )
            raise DataError([Problem("E128", what, "the comparisons", remedy, len(missing))])
        values: Floats = comparisons[[*attribute.columns]].to_numpy(dtype=np.float64)
        return values
    numbers, distinct = texts()
    ids = comparisons["comparison_id"].to_numpy()
    if attribute.scope == "pair":
        return _called(attribute, ids, distinct[numbers].T)
    rows = np.stack([np.repeat(numbers[0], 2), numbers[1:].T.ravel()])
    _, first, number = np.unique(
        rows[0] * len(distinct) + rows[1], return_index=True, return_inverse=True
    )
    measured = _called(attribute, np.repeat(ids, 2)[first], distinct[rows[:, first]].T)
    sides: Floats = measured[number, 0].reshape(-1, 2)
    return sides


def _of_judgments(attribute: Attribute, comparisons: pd.DataFrame, votes: pd.DataFrame) -> Floats:
    shown = votes["shown_first"]
    if not attribute.is_position:
        of = comparisons.to_dict("records")
        rows = [(vote, of[vote["comparison"]]) for vote in votes.to_dict("records")]
        ids = comparisons["comparison_id"].to_numpy()[votes["comparison"]]
        return _called(attribute, ids, rows)[:, 0]
    if shown.isna().all() and len(votes):
        what = f'attribute "{attribute.name}" needs to know which side was shown first, and no judgment says so'
        remedy = "give a column shown_first with a or b; all a, when the table's a side was always first"
        raise DataError([Problem("E129", what, "the column shown_first", remedy, len(votes))])
    # what `Position` measures, of all votes at once
    signs: Floats = shown.map({"a": 1.0, "b": -1.0}).to_numpy(dtype=np.float64)
    return signs


def _called(attribute: Attribute, ids: Objects, rows: Iterable[Sequence[Any]]) -> Floats:
    """What the attribute's function, which may be the user's own, says of each row: two numbers, or one and 0.

    Of a judgment it may say None or NaN: not recorded.
    """
    of_judgment = attribute.scope == "judgment"
    values: list[tuple[float, float]] = []
    try:
        for row in rows:
            value = attribute.measure(*row)
            if of_judgment and value is None:
                value = np.nan
            a, b = value if attribute.scope == "pair" else (value, 0)
            values.append((float(a), float(b)))
    except ConfigError:
        raise
    except Exception as error:
        what = f'attribute "{attribute.name}" failed: {type(error).__name__}: {error}'
        where = f"first: comparison {ids[len(values)]}"
        remedy = f"its function must return {_RETURNS[attribute.scope]} for every text"
        raise DataError([Problem("E127", what, where, remedy)]) from error
    measured = np.array(values, dtype=np.float64).reshape(-1, 2)
    wrong = np.isinf(measured) if of_judgment else ~np.isfinite(measured)
    bad = np.flatnonzero(wrong.any(axis=1))
    if n := len(bad):
        what = f'attribute "{attribute.name}" gives no finite number: {n:,} of {len(measured):,}'
        where = f"first: comparison {ids[bad[0]]}"
        raise DataError([Problem("E127", what, where, "return a number for every text", n)])
    return measured
