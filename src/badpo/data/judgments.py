"""The class `Judgments`: comparisons of two responses, votes on the comparisons, and attribute differences.

All votes on a comparison have the same response a and the same response b. A vote's sign is +1 if the annotator chose
a, and -1 if the annotator chose b. An attribute difference is the attribute's value for response a minus its value for
response b. For judgment j by annotator k on comparison c, the logit is ``sign_j * (u_c + theta_k . delta_j)``.
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
from badpo.data.privacy import is_about_few, is_dominated, keyed_digest
from badpo.data.problems import ConfigError, DataError, Problem, counted, refuse_other_types
from badpo.data.reading import VOTE_COLUMNS, Request, VotesRead, read_votes
from badpo.data.tables import DROPPED_KEY, Source, write_table
from badpo.estimation.log_odds import LogOdds, offline_log_odds
from badpo.theory import Bools, Floats, Ints

_RETURNS = {
    "response": "one number",
    "pair": "two numbers (g_a, g_b)",
    "judgment": "one number (None if not recorded)",
}


class ReadingOptions(TypedDict, total=False):
    """Options of `Judgments.read` other than ``attributes``, for functions that also read a table."""

    columns: Mapping[str, str | None] | None
    annotators_missing: str
    repeated: str
    winners: Mapping[str, str] | None
    keep: Sequence[str]
    bad_rows: str
    layout: str | None


@dataclass(frozen=True, eq=False)
class Judgments:
    """Annotators' votes on pairs of responses, with the measured values of the declared attributes.

    Attributes
    ----------
    comparisons : DataFrame
        Row c is comparison c: ``comparison_id``, ``prompt_id``, ``prompt``, ``response_a``, ``response_b`` (text or
        lists of messages), and the carried columns that have the same value in all votes on each comparison.
    votes : DataFrame
        Row j is judgment j: ``comparison`` (int), ``sign`` (+1 chose a, -1 chose b), ``annotator`` (int), ``weight``,
        ``row`` (0-based row of the source), ``shown_first`` ("a", "b" or None), and all carried columns.
    annotators : DataFrame
        Row k is annotator k. Annotators are in the order of their first votes. The columns are ``pseudonym``,
        ``annotator_class`` (text or None), and ``model``, the name of an annotator of the class "model" (None for
        people).
    attributes : tuple of Attribute
    delta : float64 array of shape (n_votes, n_attributes)
        d_j = g(a) - g(b); 0 if the value is missing.
    missing : bool array of shape (n_votes, n_attributes)
        True if a vote lacks the value of an attribute, for example the position of the responses.
    dropped : DataFrame
        Number ``n`` of source rows that are not votes, for each ``reason`` and ``annotator`` (pseudonym).
    findings : tuple of Problem
        Warnings and notices from the reader. They contain no errors, because an error stops the reader.
    has_identities : bool
        False if the source has no annotator column. All votes then belong to one annotator, ``everyone``.
    source : str
        Name of the file with the votes; empty if the votes were not read from a file.
    ties : Judgments or None
        Judgments that are ties. They have the sign 0 and separate tables of comparisons and annotators.
        None if there are no ties.

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
            A table with columns ``prompt, response_a, response_b, winner`` or ``chosen, rejected`` (and ``prompt``),
            and optionally ``annotator, annotator_class, comparison_id, prompt_id, judgment_id, weight, shown_first``.
            Instead of ``winner``, a table can have ``rating``, or ``rating_a, rating_b``, or ``votes_a, votes_b,
            votes_tie``.
        columns : mapping
            Maps badpo's column names to the names in the table. If the value is None, badpo does not use the column.
            Columns with common names are recognized automatically, and a finding lists them.
        attributes : Attribute, or text such as "length:ratio=1.5", or several
        annotators_missing : "error" or "drop"
            Whether a row without an annotator is an error or is left out, if other rows name an annotator.
        repeated : "all" or "last"
            Whether to keep all votes of an annotator on the same comparison, or only the last vote. Two votes are not
            repeated votes if different sides were shown first.
        winners : mapping
            Maps winner labels of the table to ``a``, ``b``, ``tie`` or ``skip`` (rows with ``skip`` are left out). For
            ratings, ``high`` maps to the side that a high rating prefers, and a number maps to ``tie``.
        keep : sequence of str
            Further columns to carry along with the votes.
        bad_rows : "error" or "drop"
            Whether rows that cannot be read are an error, or are left out and counted.
        layout : None, "wide" or "counts"
            In a wide table, each column of labels holds the votes of one annotator. If other columns hold labels too,
            name the annotators' columns in ``columns``, as in ``{"annotator": "ann_1,ann_2"}``. In a table of counts,
            columns contain numbers of votes.

        Returns
        -------
        Judgments

        Raises
        ------
        DataError
            If the table has errors. The message lists all of them with rows, columns and remedies.
        ConfigError
            If an option has an unknown value.
        """
        refuse_other_types(columns=columns, winners=winners, keep=keep)
        declared = as_attributes(attributes)
        pairs = [attribute.columns for attribute in declared if attribute.columns is not None]
        request = Request(
            columns or {}, winners or {}, keep, pairs, annotators_missing, repeated, bad_rows, layout
        )
        name = Path(source).name if isinstance(source, str | os.PathLike) else ""
        return cls._without_attributes(read_votes(source, request), name).with_attributes(declared)

    @classmethod
    def _without_attributes(cls, read: VotesRead, source: str) -> Judgments:
        ties = None if read.ties is None else cls._without_attributes(read.ties, source)
        delta, missing = np.empty(0), np.empty(0, dtype=bool)
        fields = {**vars(read), "ties": ties}
        return cls(attributes=(), delta=delta, missing=missing, source=source, **fields)

    def with_attributes(self, attributes: Attributes) -> Judgments:
        """Return the same votes with the given attributes instead of the current attributes.

        Raises
        ------
        ConfigError
            If two attributes have the same name.
        DataError
            If an attribute cannot be measured.
        """
        attributes = as_attributes(attributes)
        names = [attribute.name for attribute in attributes]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f'two attributes are called "{name}"; rename one of these attributes')
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
        """Split the judgments by prompt into training and held-out judgments, following the paper's rule.

        The distinct prompt ids are sorted and then shuffled with ``random.Random(seed)``. The first
        ``int(held_out * n_prompts)`` prompts are held out. Both parts keep the whole annotators table.

        Parameters
        ----------
        held_out : float
            Share of the prompts, 0 or more and below 1.
        seed : int

        Returns
        -------
        train, held_out : Judgments
            ``held_out`` is empty if the share is less than one prompt.

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
            what = "held_out is a share of the prompts and must be at least 0 and below 1"
            raise ConfigError(f"{what}; got {held_out!r}")
        prompt_id = self.comparisons["prompt_id"]
        prompts = sorted(set(prompt_id))
        random.Random(seed).shuffle(prompts)
        chosen = prompt_id.isin(prompts[: int(held_out * len(prompts))]).to_numpy()
        is_held_out = chosen[self.votes["comparison"]]
        return self.take(~is_held_out), self.take(is_held_out)

    def take(self, votes: NDArray[Any]) -> Judgments:
        """Return a copy of the judgments that has only the selected votes and their comparisons.

        The comparisons keep their order, but get new numbers. The annotators table keeps all rows, so that annotator k
        is the same person in every selection of votes.

        Parameters
        ----------
        votes : bool array of shape (n_votes,), or int array
            Mask or indices of the votes to keep. With indices, the votes get the order of the indices.
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
        """Return which votes are cross-group for each attribute, as a bool array of shape (n_votes, n_attributes).

        A vote is cross-group if the two responses differ on the attribute by more than the attribute's threshold.
        """
        return np.abs(self.delta) > np.array([attribute.threshold for attribute in self.attributes])

    def comparable_votes(self) -> Ints:
        """Return a group number for each vote; votes with the same number can be compared with each other.

        Two votes are in the same group if they are on the same comparison and record the same attributes. For example,
        a vote without ``shown_first`` does not record the position. If a vote without ``shown_first`` were compared
        with a vote that records the position, the missing difference would wrongly count as zero.
        """
        comparison: Ints = self.votes["comparison"].to_numpy()
        if not self.missing.any():
            return comparison
        _, kind = np.unique(self.missing, axis=0, return_inverse=True)
        numbers: Ints = pd.factorize(comparison * (kind.max() + 1) + kind.reshape(-1))[0]
        return numbers

    def prompt_of_votes(self) -> Ints:
        """Return each vote's prompt number, as an array of shape (n_votes,)."""
        prompts: Ints = pd.factorize(self.comparisons["prompt_id"])[0]
        of_votes: Ints = prompts[self.votes["comparison"].to_numpy()]
        return of_votes

    def reveals_people(self, votes: Bools) -> bool:
        """Return whether figures about the marked votes would reveal too much about individual people.

        The result is True if fewer than five people cast the votes, or if one to four people cast too many of the votes
        (`is_dominated`). It is False if no vote is marked, if only models cast the votes, or if the table has no
        annotator column.
        """
        is_person = self.annotators["model"].isna().to_numpy()
        n_votes = np.bincount(self.votes["annotator"].to_numpy()[votes], minlength=len(is_person))
        n_annotators, n_people = (int((n > 0).sum()) for n in (n_votes, n_votes[is_person]))
        is_revealing = is_about_few(n_annotators, n_people) or is_dominated(n_votes[is_person])
        return self.has_identities and n_annotators > 0 and is_revealing

    def majority(self) -> NDArray[np.int64]:
        """Return each comparison's majority side, +1 (a) or -1 (b), as an array of shape (n_comparisons,).

        The weights of votes do not count. If a comparison is tied, the method returns the side of its earliest vote, as
        the paper does for its reference policy.

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
        """Estimate, for each attribute, the log-odds that the response with the attribute wins a cross-group vote.

        The confidence intervals are clustered by prompt.
        """
        return offline_log_odds(
            self.votes["sign"], self.delta, self.cross_group(), self.prompt_of_votes()
        )

    def fingerprint(self) -> str:
        """Return an HMAC-SHA256 of the texts, the votes, the attribute differences and the attribute configurations.

        The fingerprint depends on the order of the votes, but not on pseudonyms, comparison ids or source row numbers.
        Writing judgments with `to_parquet`, and reading the file with the same attributes and pseudonym key, preserves
        the fingerprint. Without the pseudonym key, nobody can use the fingerprint to check a guess about the votes.
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
        """Write a parquet file with one row for each vote; `read` returns the same judgments from this file.

        The file contains the pseudonyms of people, the names of models, and the counts of dropped rows. An interrupted
        call leaves no partial file. The parquet file does not contain the attributes, so declare the attributes again
        when you read the file.

        Parameters
        ----------
        path : path
            A file name that ends in ``.parquet``.

        Raises
        ------
        DataError
            If a message field other than role and content has values of several types. A parquet column can hold only
            one type.
        """
        if not str(path).endswith(".parquet"):
            raise ConfigError(
                f"{path}: the file name must end in .parquet; otherwise badpo cannot read the file"
            )
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
            what = (
                "messages have fields besides role and content whose values are empty or differ in type"
            )
            remedy = "remove all fields besides role and content, or give each field values of one type"
            raise DataError([Problem("E105", what, str(path), remedy)]) from error

    @property
    def n_votes(self) -> int:
        """Number of judgments."""
        return len(self.votes)

    @property
    def n_comparisons(self) -> int:
        """Number of comparisons; the model processes each comparison once, even if there are several votes on it."""
        return len(self.comparisons)

    @property
    def n_annotators(self) -> int:
        """Number of annotators in the annotators table; some may have no votes because `take` keeps the whole table."""
        return len(self.annotators)

    @property
    def n_attributes(self) -> int:
        """Number of attributes."""
        return len(self.attributes)

    @property
    def attribute_names(self) -> tuple[str, ...]:
        """Attribute names, in the order of the columns of `delta`."""
        return tuple(attribute.name for attribute in self.attributes)

    def __repr__(self) -> str:
        names = ", ".join(self.attribute_names) or "none"
        return (
            f"Judgments({counted(self.n_votes, 'vote')} on {counted(self.n_comparisons, 'comparison')} by "
            f"{counted(self.n_annotators, 'annotator')}; attributes: {names})"
        )


# -- attribute differences: each distinct text is measured once -------------------------------------------------


def measure_sides(attribute: Attribute, comparisons: pd.DataFrame) -> Floats:
    """Measure a response or pair attribute; return g(a) and g(b) as an array of shape (n_comparisons, 2)."""
    return _sides(attribute, comparisons, _plain_texts(comparisons))


def numbered_texts(table: pd.DataFrame, columns: Sequence[str]) -> tuple[Ints, Objects]:
    """Return the index of each cell's plain text among the distinct texts in ``columns``, and the distinct texts.

    The array of indices has the shape (n_columns, n_rows).
    """
    cells = (
        cell if isinstance(cell, str) else plain_text(cell) for name in columns for cell in table[name]
    )
    numbers, distinct = numbered(cells)
    return numbers.reshape(len(columns), -1), distinct


def _plain_texts(comparisons: pd.DataFrame) -> Callable[[], tuple[Ints, Objects]]:
    """Return a function that numbers the texts of all comparisons when it is first called (see `numbered_texts`)."""
    return cache(lambda: numbered_texts(comparisons, ("prompt", "response_a", "response_b")))


def _sides(
    attribute: Attribute, comparisons: pd.DataFrame, texts: Callable[[], tuple[Ints, Objects]]
) -> Floats:
    if attribute.columns is not None:
        missing = [name for name in attribute.columns if name not in comparisons]
        if missing:
            what = f'attribute "{attribute.name}": no single value for each comparison in {", ".join(missing)}'
            remedy = (
                "declare the attribute in Judgments.read; if the votes on one comparison have different values of the "
                'attribute, declare a PythonFunction with the scope "judgment"'
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
        what = f'attribute "{attribute.name}" needs to know which side was shown first, but no judgment records this'
        remedy = "add a column shown_first with the value a or b; if a was always shown first, write a in each row"
        raise DataError([Problem("E129", what, "the column shown_first", remedy, len(votes))])
    # compute the attribute `Position` for all votes at once
    signs: Floats = shown.map({"a": 1.0, "b": -1.0}).to_numpy(dtype=np.float64)
    return signs


def _called(attribute: Attribute, ids: Objects, rows: Iterable[Sequence[Any]]) -> Floats:
    """Call the attribute's function (possibly a user's function) on each row; return two numbers for each row.

    If the attribute's function returns only one number for a row, the row's second number is 0. If the attribute has
    the scope "judgment", the function may return None or NaN for a vote that does not record the attribute.
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
        remedy = f"the attribute's function must return {_RETURNS[attribute.scope]} for every text"
        raise DataError([Problem("E127", what, where, remedy)]) from error
    measured = np.array(values, dtype=np.float64).reshape(-1, 2)
    wrong = np.isinf(measured) if of_judgment else ~np.isfinite(measured)
    bad = np.flatnonzero(wrong.any(axis=1))
    if n := len(bad):
        what = f'attribute "{attribute.name}" gives no finite number: {n:,} of {len(measured):,}'
        where = f"first: comparison {ids[bad[0]]}"
        raise DataError([Problem("E127", what, where, "return a number for every text", n)])
    return measured
