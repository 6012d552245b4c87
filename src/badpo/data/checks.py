"""What is legal in a table of judgments and still wrong for the statistics, and what an attribute finds in one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from badpo.data.attributes import Attribute, attribute_from_config, plain_text
from badpo.data.judgments import Judgments, measure_sides
from badpo.data.problems import ConfigError, Problem, counted, worst_first
from badpo.data.tables import side_pairs
from badpo.theory import Bools
from badpo.theory.identifiability import annotator_components, separated_annotators

FEW_CROSS = 200
SMALL_CROSS_SHARE = 0.05
LARGE_CROSS_SHARE = 0.95
LARGE_VOTE_SHARE = 0.25
MANY_MEDIANS = 10
LARGE_INFLATION = 10.0
FEW_SCORED = 30
NAMES_SHOWN = 5
_SHOWN = 100  # characters of an example
_SCORES = ("score", "quality", "rating", "reward")


def check(judgments: Judgments) -> list[Problem]:
    """Everything to know before estimating or training: what the reader noticed, then what the votes can carry.

    Parameters
    ----------
    judgments : Judgments
        With the attributes that are to be declared.

    Returns
    -------
    list of Problem
        Errors first, then warnings, then notices. An error (E120, E121, E126) means that the bias toward an
        attribute cannot be estimated from these votes at all.

    References
    ----------
    BA-DPO, Theorem `thm:identif`: only cross-group votes tell of a bias, and only annotators who share cross-group
    comparisons can be compared.

    Examples
    --------
    >>> from badpo.attributes import Emoji
    >>> rows = [{"prompt": "Why?", "chosen": "So.", "rejected": "No."}]
    >>> [problem.code for problem in check(Judgments.read(rows, attributes=[Emoji()]))]
    ['E120', 'N110']
    """
    found = _Found(judgments)
    _check_pool(found)
    for j in range(judgments.n_attributes):
        if _check_differences(j, found) and judgments.has_identities and judgments.n_annotators > 1:
            _check_annotators(j, found)
    _check_scores(found)
    _check_collinear(found)
    return worst_first(found.problems)


class _Found:
    """The judgments that are looked over, and what was found."""

    def __init__(self, judgments: Judgments):
        self.judgments = judgments
        self.problems = list(judgments.findings)
        self.names = judgments.annotators["pseudonym"].to_numpy()
        self.annotator = judgments.votes["annotator"].to_numpy()
        self.cross = judgments.cross_group()

    def note(self, *problem: Any) -> None:
        self.problems.append(Problem(*problem))

    def listed(self, chosen: Bools) -> str:
        names = self.names[chosen]
        more = f" and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
        return ", ".join(names[:NAMES_SHOWN]) + more


def _check_pool(found: _Found) -> None:
    n_votes = np.bincount(found.annotator, minlength=len(found.names))
    if not found.judgments.has_identities or not n_votes.any():
        return
    if (n_votes > 0).sum() == 1:
        what = "1 annotator: shared_mean and per_annotator are the same as pooled"
        found.note("W111", what, found.listed(n_votes > 0), "use bias: pooled")
        return
    usual, share = np.median(n_votes[n_votes > 0]), n_votes / n_votes.sum()
    classes = found.judgments.annotators["annotator_class"]
    is_alone = classes.notna() & ~classes.duplicated(keep=False)
    for k in np.flatnonzero((share > LARGE_VOTE_SHARE) & (n_votes > MANY_MEDIANS * usual) & ~is_alone):
        what = f"one annotator cast {share[k]:.0%} of the votes; a model, or several people?"
        remedy = "give it an annotator_class of its own, or leave it out"
        found.note("W114", what, str(found.names[k]), remedy, int(n_votes[k]))


def _check_differences(j: int, found: _Found) -> bool:
    """Whether the two sides ever differ on an attribute; problems where they seldom or always do."""
    judgments, attribute, cross = found.judgments, found.judgments.attributes[j], found.cross[:, j]
    where = f'attribute "{attribute.name}"'
    n, n_cross = len(cross), int(cross.sum())
    of_all = counted(n, "judgment")
    by_more = f" by more than {attribute.threshold:g}" if attribute.threshold else ""
    if n_cross == 0:
        if attribute.scope == "response" and attribute.columns is None:
            values = np.unique(measure_sides(attribute, judgments.comparisons))
            if len(values) == 1:
                what = f"{where} is {values[0]:g} for every response of {of_all}: nothing to estimate"
                found.note("E120", what, where, "check the rule: badpo attributes test", n)
                return False
        what = f"the sides differ{by_more} in 0 of {of_all}; only pairs that differ tell of a bias"
        remedy = "judge pairs that differ, lower the threshold, or do not declare the attribute"
        found.note("E121", what, where, remedy, n)
        return False
    if n_cross < SMALL_CROSS_SHARE * n or n_cross < FEW_CROSS:
        what = f"the sides differ{by_more} in {n_cross:,} of {of_all} ({n_cross / n:.1%})"
        found.note("W121", what, where, "expect a wide interval; judge more pairs that differ", n_cross)
    if n_cross > LARGE_CROSS_SHARE * n and attribute.scope != "judgment":
        what = f"the sides differ{by_more} in {n_cross / n:.1%} of judgments; little is left to learn quality from"
        remedy = "raise the threshold or the ratio, so that pairs which hardly differ count as alike"
        found.note("W122", what, where, remedy, n_cross)
    unknown = int(judgments.votes["shown_first"].isna().sum())
    if attribute.is_position and unknown:
        what = (
            f"{unknown:,} of {of_all} do not say which side was shown first: they tell nothing about position, and "
            "are compared only with one another"
        )
        found.note("W127", what, where, "fill in shown_first", unknown)
    return True


def _check_annotators(j: int, found: _Found) -> None:
    judgments, attribute, cross = found.judgments, found.judgments.attributes[j], found.cross[:, j]
    where, k = f'attribute "{attribute.name}"', len(found.names)
    n_votes, n_cross = (
        np.bincount(found.annotator[rows], minlength=k) for rows in (cross | True, cross)
    )
    without = (n_votes > 0) & (n_cross == 0)
    if n := int(without.sum()):
        what = f"{counted(n, 'annotator')} of {(n_votes > 0).sum():,} never saw the sides differ"
        remedy = "their lean is not known; they are given the pool's mean"
        found.note("W123", what, f"{where}: {found.listed(without)}", remedy, n)
    delta = np.where(cross, judgments.delta[:, j], 0.0)
    one_way = separated_annotators(found.annotator, judgments.votes["sign"], delta, k).ravel() != 0
    if n := int(one_way.sum()):
        once = int((one_way & (n_cross == 1)).sum())
        what = f"{counted(n, 'annotator')} always sided one way"
        what += f" ({once:,} of them have one such vote)" if once else ""
        remedy = "a free estimate is unbounded; use shared_mean, and read the shrunken value"
        found.note("W124", what, f"{where}: {found.listed(one_way)}", remedy, n)
    comparison = judgments.votes["comparison"].to_numpy()
    groups = annotator_components(comparison, found.annotator, cross, k).ravel()
    if groups.max() > 0 and attribute.scope != "judgment":
        sizes = np.bincount(groups[groups >= 0])
        shown = " + ".join(f"{size:,}" for size in sizes[:NAMES_SHOWN])
        more = (
            f" + {int(sizes[NAMES_SHOWN:].sum()):,} in smaller ones" if len(sizes) > NAMES_SHOWN else ""
        )
        what = (
            f"annotators form {len(sizes):,} groups that share no cross-group comparison ({shown}{more})"
        )
        if sizes[0] == 1:
            what = "no two annotators judged the same cross-group comparison"
        remedy = "the votes do not compare one group with another; let some people judge comparisons of two groups"
        found.note("W125", what, where, remedy, len(sizes))


def _check_scores(found: _Found) -> None:
    """Scores that most votes go against: the columns may be the wrong way round."""
    votes = found.judgments.votes
    for first, second in side_pairs(votes.columns).items():
        if any(word in first.casefold() for word in _SCORES):
            toward = (votes[first] - votes[second]).to_numpy(dtype=np.float64) * votes["sign"]
            n, against = int((np.abs(toward) > 0).sum()), int((toward < 0).sum())
            # more than two standard errors above a half
            if n >= FEW_SCORED and against > n / 2 + np.sqrt(n):
                what = f"{against / n:.0%} of {counted(n, 'judgment')} go against the scores: are the columns reversed?"
                remedy = "look at some rows; if they are, exchange the responses or the winners"
                found.note("W135", what, f"columns {first} and {second}", remedy, against)


def _check_collinear(found: _Found) -> None:
    size = np.sqrt((found.judgments.delta**2).sum(axis=0))
    names = np.array(found.judgments.attribute_names)[size > 0]
    if len(names) < 2:
        return
    unit = found.judgments.delta[:, size > 0] / size[size > 0]
    values, vectors = np.linalg.eigh(unit.T @ unit)
    where = f"attributes {', '.join(found.judgments.attribute_names)}"
    null = np.abs(vectors[:, values < 1e-9]).max(axis=1, initial=0.0) > 1e-4
    if null.any():
        same = (
            "say the same about"
            if null.sum() == 2
            else "follow from one another (one is a sum of others) in"
        )
        what = f"{_quoted(names[null])} {same} every judgment; their biases cannot be told apart"
        found.note("E126", what, where, "leave one of them out", int(null.sum()))
        return
    inflation = ((vectors**2) / values).sum(axis=1)
    high = inflation > LARGE_INFLATION
    if high.any():
        what = f"{_quoted(names[high])} nearly say the same (variance inflation up to {inflation.max():.0f})"
        remedy = "expect wide intervals; declare one of them, or judge pairs in which they part"
        found.note("W126", what, where, remedy, int(high.sum()))


def _quoted(names: Iterable[str]) -> str:
    return " and ".join(f'"{name}"' for name in names)


def attribute_trials(
    judgments: Judgments,
    configs: Sequence[Mapping[str, Any]],
    sweep: tuple[str, Sequence[Any]] | None = None,
    n_examples: int = 3,
) -> list[dict[str, Any]]:
    """What each attribute finds in the data.

    Parameters
    ----------
    judgments : Judgments
    configs : sequence of mapping
        As `attribute_from_config` takes them.
    sweep : (parameter, values), optional
        Try each attribute once with each of these values of the parameter.
    n_examples : int
        How many responses to show on each side.

    Returns
    -------
    list of dict
        For each attribute and value: ``attribute``, ``parameters``, ``scope``, ``n_cross`` (judgments whose sides
        differ), ``cross_share`` of all judgments, ``carrier_wins``, ``log_odds`` with ``ci_low`` and ``ci_high``
        (95 %, clustered by prompt; where every vote went one way the log-odds and one end are None), and
        ``examples``: the beginnings of responses ``with`` and ``without`` the attribute in comparisons that differ
        on it.

    Raises
    ------
    ConfigError
        No attribute, or one that is not there.

    Examples
    --------
    >>> rows = [{"prompt": "Why?", "chosen": "because it is so", "rejected": "so"},
    ...         {"prompt": "How?", "chosen": "so", "rejected": "in the usual way"}]
    >>> trial, = attribute_trials(Judgments.read(rows), [{"type": "length"}])
    >>> trial["n_cross"], trial["carrier_wins"], trial["examples"]["without"]
    (2, 0.5, ['so'])
    """
    if not configs:
        raise ConfigError("name an attribute to test, as in --attribute length:ratio=1.5")
    name, values = sweep or ("", [None])
    tried = [
        config if sweep is None else {**config, name: value} for config in configs for value in values
    ]
    return [_trial(judgments, attribute_from_config(config), n_examples) for config in tried]


def _trial(judgments: Judgments, attribute: Attribute, n_examples: int) -> dict[str, Any]:
    measured = judgments.with_attributes([attribute])
    (found,) = measured.offline_log_odds()
    figures = ("n_cross", "carrier_wins", "log_odds", "ci_low", "ci_high")
    return {
        "attribute": attribute.name,
        "parameters": {k: v for k, v in attribute.config.items() if k not in ("type", "name")},
        "scope": attribute.scope,
        "cross_share": found.n_cross / measured.n_votes,
        **{name: getattr(found, name) for name in figures},
        "examples": _examples(measured, n_examples),
    }


def _examples(measured: Judgments, n_examples: int) -> dict[str, list[str]]:
    votes = measured.votes.assign(delta=measured.delta[:, 0])[measured.cross_group()[:, 0]]
    votes = votes.drop_duplicates("comparison").sort_values("comparison")
    pairs = measured.comparisons.loc[votes["comparison"], ["response_a", "response_b"]].to_numpy()
    has_more = np.where(votes["delta"] > 0, 0, 1)
    rows = np.arange(len(votes))
    sides = {"with": pairs[rows, has_more], "without": pairs[rows, 1 - has_more]}
    return {
        side: list(dict.fromkeys(map(_beginning, texts)))[:n_examples] for side, texts in sides.items()
    }


def _beginning(response: Any) -> str:
    text = " ".join(plain_text(response).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
