"""What is legal in a table of judgments and still wrong for the statistics, and what an attribute finds in one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from badpo.data.attributes import Attribute, attribute_from_config, plain_text
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, Problem, counted
from badpo.data.tables import side_pairs
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
    cross = judgments.cross_group()
    found = [*judgments.findings, *_pool(judgments)]
    for attribute, column, delta in zip(judgments.attributes, cross.T, judgments.delta.T, strict=True):
        found.extend(_differences(attribute, column, judgments))
        if judgments.has_identities and judgments.n_annotators > 1 and column.any():
            found.extend(_annotators_of(attribute, column, np.where(column, delta, 0.0), judgments))
    found.extend(_against_scores(judgments))
    found.extend(_collinear(judgments))
    order = {"error": 0, "warning": 1, "notice": 2}
    return sorted(found, key=lambda problem: order[problem.severity])


def _pool(judgments: Judgments) -> Iterable[Problem]:
    if not judgments.has_identities:
        return
    n_votes = np.bincount(judgments.votes["annotator"], minlength=judgments.n_annotators)
    n_voters = int((n_votes > 0).sum())
    names = judgments.annotators["pseudonym"].to_numpy()
    if n_voters == 0:
        return
    if n_voters == 1:
        what = "1 annotator: shared_mean and per_annotator are the same as pooled"
        yield Problem("W111", what, _listed(names[n_votes > 0]), "use bias: pooled", "warning")
        return
    large = (n_votes > LARGE_VOTE_SHARE * n_votes.sum()) & (
        n_votes > MANY_MEDIANS * np.median(n_votes[n_votes > 0])
    )
    classes = judgments.annotators["annotator_class"].to_numpy()
    alone = np.array([label is not None and (classes == label).sum() == 1 for label in classes])
    for k in np.flatnonzero(large & ~alone):
        what = (
            f"one annotator cast {n_votes[k] / n_votes.sum():.0%} of the votes; a model, or several people?"
        )
        remedy = "give it an annotator_class of its own, or leave it out"
        yield Problem("W114", what, str(names[k]), remedy, "warning", int(n_votes[k]))


def _differences(attribute: Attribute, cross: NDArray[np.bool_], judgments: Judgments) -> Iterable[Problem]:
    where = f'attribute "{attribute.name}"'
    n, n_cross = len(cross), int(cross.sum())
    by_more = f" by more than {attribute.threshold:g}" if attribute.threshold else ""
    if n_cross == 0:
        yield _never_differs(attribute, where, by_more, judgments)
        return
    if n_cross < SMALL_CROSS_SHARE * n or n_cross < FEW_CROSS:
        what = f"the sides differ{by_more} in {n_cross:,} of {counted(n, 'judgment')} ({n_cross / n:.1%})"
        remedy = "expect a wide interval; judge more pairs that differ"
        yield Problem("W121", what, where, remedy, "warning", n_cross)
    if n_cross > LARGE_CROSS_SHARE * n and attribute.scope != "judgment":
        what = f"the sides differ{by_more} in {n_cross / n:.1%} of judgments; little is left to learn quality from"
        remedy = "raise the threshold or the ratio, so that pairs which hardly differ count as alike"
        yield Problem("W122", what, where, remedy, "warning", n_cross)
    unknown = int(judgments.votes["shown_first"].isna().sum())
    if attribute.is_position and unknown:
        what = (
            f"{unknown:,} of {counted(n, 'judgment')} do not say which side was shown first: they tell nothing about "
            "position, and are compared only with one another"
        )
        yield Problem("W127", what, where, "fill in shown_first", "warning", unknown)


def _never_differs(attribute: Attribute, where: str, by_more: str, judgments: Judgments) -> Problem:
    n = judgments.n_votes
    if attribute.scope == "response" and attribute.columns is None:
        texts = judgments.comparisons
        values = {
            float(attribute.measure(plain_text(prompt), plain_text(response)))
            for prompt, response in zip(texts["prompt"], texts["response_a"], strict=True)
        }
        if len(values) == 1:
            what = f"is {values.pop():g} for every response of {counted(n, 'judgment')}: nothing to estimate"
            remedy = "check the rule: badpo attributes test"
            return Problem("E120", f"{where} {what}", where, remedy, "error", n)
    what = (
        f"the sides differ{by_more} in 0 of {counted(n, 'judgment')}; only pairs that differ tell of a bias"
    )
    remedy = "judge pairs that differ, lower the threshold, or do not declare the attribute"
    return Problem("E121", what, where, remedy, "error", n)


def _annotators_of(
    attribute: Attribute, cross: NDArray[np.bool_], delta: NDArray[np.float64], judgments: Judgments
) -> Iterable[Problem]:
    where = f'attribute "{attribute.name}"'
    annotator, comparison = (judgments.votes[name].to_numpy() for name in ("annotator", "comparison"))
    names = judgments.annotators["pseudonym"].to_numpy()
    n_votes, n_cross = (np.bincount(annotator[x], minlength=len(names)) for x in (cross | True, cross))
    without = (n_votes > 0) & (n_cross == 0)
    if without.any():
        what = f"{counted(int(without.sum()), 'annotator')} of {(n_votes > 0).sum():,} never saw the sides differ"
        remedy = "their lean is not known; they are given the pool's mean"
        yield Problem(
            "W123", what, f"{where}: {_listed(names[without])}", remedy, "warning", int(without.sum())
        )
    one_way = separated_annotators(annotator, judgments.votes["sign"], delta, len(names)).ravel() != 0
    if one_way.any():
        once = int((one_way & (n_cross == 1)).sum())
        what = f"{counted(int(one_way.sum()), 'annotator')} always sided one way"
        if once:
            what += f" ({once:,} of them have one such vote)"
        remedy = "a free estimate is unbounded; use shared_mean, and read the shrunken value"
        yield Problem(
            "W124", what, f"{where}: {_listed(names[one_way])}", remedy, "warning", int(one_way.sum())
        )
    groups = annotator_components(comparison, annotator, cross, len(names)).ravel()
    if groups.max() > 0 and attribute.scope != "judgment":
        yield _disconnected(np.bincount(groups[groups >= 0]), where)


def _disconnected(sizes: NDArray[np.intp], where: str) -> Problem:
    if sizes[0] == 1:
        what = "no two annotators judged the same cross-group comparison"
    else:
        shown = " + ".join(f"{size:,}" for size in sizes[:NAMES_SHOWN])
        more = f" + {int(sizes[NAMES_SHOWN:].sum()):,} in smaller ones" if len(sizes) > NAMES_SHOWN else ""
        what = f"annotators form {len(sizes):,} groups that share no cross-group comparison ({shown}{more})"
    remedy = "the votes alone do not compare one group with another; let some people judge comparisons of two groups"
    return Problem("W125", what, where, remedy, "warning", len(sizes))


def _against_scores(judgments: Judgments) -> Iterable[Problem]:
    """Scores that most votes go against: the columns may be the wrong way round."""
    votes = judgments.votes
    for first, second in side_pairs(list(votes.columns)).items():
        if not any(word in first.casefold() for word in _SCORES):
            continue
        difference = (votes[first] - votes[second]).to_numpy(dtype=np.float64)
        scored = np.isfinite(difference) & (difference != 0)
        n = int(scored.sum())
        against = int((votes["sign"].to_numpy()[scored] * difference[scored] < 0).sum())
        # more than two standard errors above a half
        if n >= FEW_SCORED and against > n / 2 + np.sqrt(n):
            what = f"{against / n:.0%} of {counted(n, 'judgment')} go against the scores: are the columns reversed?"
            remedy = "look at some rows; if they are, exchange the responses or the winners"
            yield Problem("W135", what, f"columns {first} and {second}", remedy, "warning", against)


def _collinear(judgments: Judgments) -> Iterable[Problem]:
    size = np.sqrt((judgments.delta**2).sum(axis=0))
    present = np.flatnonzero(size > 0)
    if len(present) < 2:
        return
    names = np.array(judgments.attribute_names)[present]
    unit = judgments.delta[:, present] / size[present]
    values, vectors = np.linalg.eigh(unit.T @ unit)
    where = f"attributes {', '.join(judgments.attribute_names)}"
    null = np.abs(vectors[:, values < 1e-9]).max(axis=1, initial=0.0) > 1e-4
    if null.any():
        same = (
            "say the same about" if null.sum() == 2 else "follow from one another (one is a sum of others) in"
        )
        what = f"{_quoted(names[null])} {same} every judgment; their biases cannot be told apart"
        yield Problem("E126", what, where, "leave one of them out", "error", int(null.sum()))
        return
    inflation = ((vectors**2) / values).sum(axis=1)
    high = inflation > LARGE_INFLATION
    if high.any():
        what = f"{_quoted(names[high])} nearly say the same (variance inflation up to {inflation.max():.0f})"
        remedy = "expect wide intervals; declare one of them, or judge pairs in which they part"
        yield Problem("W126", what, where, remedy, "warning", int(high.sum()))


def _quoted(names: Iterable[str]) -> str:
    return " and ".join(f'"{name}"' for name in names)


def _listed(names: NDArray[np.object_]) -> str:
    more = f" and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more


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
    tried = [config if sweep is None else {**config, name: value} for config in configs for value in values]
    return [_trial(judgments, attribute_from_config(config), n_examples) for config in tried]


def _trial(judgments: Judgments, attribute: Attribute, n_examples: int) -> dict[str, Any]:
    measured = judgments.with_attributes([attribute])
    (found,) = measured.offline_log_odds()
    return {
        "attribute": attribute.name,
        "parameters": {k: v for k, v in attribute.config.items() if k not in ("type", "name")},
        "scope": attribute.scope,
        "n_cross": found.n_cross,
        "cross_share": found.n_cross / measured.n_votes,
        "carrier_wins": found.carrier_wins,
        "log_odds": found.log_odds,
        "ci_low": found.ci_low,
        "ci_high": found.ci_high,
        "examples": _examples(measured, n_examples),
    }


def _examples(measured: Judgments, n_examples: int) -> dict[str, list[str]]:
    rows = np.flatnonzero(measured.cross_group()[:, 0])
    comparison = measured.votes["comparison"].to_numpy()[rows]
    _, first = np.unique(comparison, return_index=True)
    found: dict[str, dict[str, None]] = {"with": {}, "without": {}}
    for row in rows[np.sort(first)]:
        pair = measured.comparisons.iloc[measured.votes["comparison"].iloc[row]]
        a_has_more = measured.delta[row, 0] > 0
        found["with"][_beginning(pair["response_a" if a_has_more else "response_b"])] = None
        found["without"][_beginning(pair["response_b" if a_has_more else "response_a"])] = None
    return {side: list(texts)[:n_examples] for side, texts in found.items()}


def _beginning(response: Any) -> str:
    text = " ".join(plain_text(response).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
