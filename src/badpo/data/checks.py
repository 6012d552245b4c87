"""Check whether biases can be estimated from judgments, and try out attributes on judgments."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from badpo.data.attributes import Attribute, Config, Text, attribute_from_config, plain_text
from badpo.data.judgments import Judgments, measure_sides
from badpo.data.problems import LISTED, ConfigError, Json, Problem, counted, listed, worst_first
from badpo.data.vocabulary import side_pairs
from badpo.theory import Bools, Floats
from badpo.theory.identifiability import annotator_components, separated_annotators

FEW_CROSS = 200  # badpo warns (W121) if the sides differ in fewer than FEW_CROSS judgments
# badpo warns (W121) if the share of judgments whose sides differ is below SMALL_CROSS_SHARE
# badpo warns (W122) if the share of judgments whose sides differ is above LARGE_CROSS_SHARE
SMALL_CROSS_SHARE = 0.05
LARGE_CROSS_SHARE = 0.95
# W114 reports an annotator with unusually many votes, who may be a model or several people.
# For W114, the annotator's share of all votes must be larger than LARGE_VOTE_SHARE.
# For W114, the annotator must also have cast more than MANY_MEDIANS times the median number of votes.
LARGE_VOTE_SHARE = 0.25
MANY_MEDIANS = 10
# An annotator who chose the same side in at least 95 % of 20 or more votes probably did not read the responses.
MANY_VOTES, NEARLY_ALL = 20, 0.95
LARGE_INFLATION = 10.0  # badpo warns (W126) if a variance inflation factor exceeds this limit
FEW_SCORED = 30  # badpo checks the scores (W135) only if they differ in at least FEW_SCORED judgments
_SHOWN = 100  # largest number of characters in an example
_SCORES = ("score", "quality", "rating", "reward")


def check(judgments: Judgments) -> list[Problem]:
    """Return the problems that affect estimation and training, and the problems found while reading the table.

    Parameters
    ----------
    judgments : Judgments
        Judgments with the attributes whose biases are to be estimated.

    Returns
    -------
    list of Problem
        Errors first, then warnings, then notices. An error (E120, E121, E126) means that the bias toward an
        attribute cannot be estimated from these votes at all.

    References
    ----------
    BA-DPO, Theorem `thm:identif`: only cross-group votes have information about a bias, and only annotators who share
    cross-group comparisons can be compared.

    Examples
    --------
    >>> from badpo.attributes import Emoji
    >>> rows = [{"prompt": "Why?", "chosen": "So.", "rejected": "No."}]
    >>> [problem.code for problem in check(Judgments.read(rows, attributes=[Emoji()]))]
    ['E120', 'N110']
    """
    cross = judgments.cross_group()
    found = [*judgments.findings, *_of_pool(judgments)]
    are_several = judgments.has_identities and judgments.n_annotators > 1
    for j, attribute in enumerate(judgments.attributes):
        differs, missing = cross[:, j], judgments.missing[:, j]
        problems = _of_differences(attribute, differs, judgments)
        problems += _of_missing(attribute, missing, judgments)
        found += problems
        is_told = not any(problem.severity == "error" for problem in problems)
        if is_told and are_several:
            delta = judgments.delta[:, j] * differs
            found += _of_annotators(attribute, delta, missing, judgments)
    return worst_first([*found, *_of_scores(judgments.votes), *_of_likeness(judgments)])


def estimable(judgments: Judgments) -> tuple[Judgments, list[Problem]]:
    """Remove attributes whose bias cannot be estimated; return the judgments and a warning for each removed attribute.

    If no bias can be estimated, return the judgments with all attributes and an empty list. `check` then reports the
    reasons as errors.
    """
    kept: list[int] = []
    left_out: list[Problem] = []
    cross = judgments.cross_group()
    for j, attribute in enumerate(judgments.attributes):
        found = _of_differences(attribute, cross[:, j], judgments)
        found += _of_likeness(_only(judgments, [*kept, j]))
        faults = [problem for problem in found if problem.severity == "error"]
        kept += [j] * (not faults)
        left_out += [
            replace(
                each,
                code="W120",
                what=f"left out, since {each.what}",
                remedy=f"continue without this attribute, or {each.remedy}",
            )
            for each in faults
        ]
    return (_only(judgments, kept), left_out) if kept else (judgments, [])


def _only(judgments: Judgments, kept: Sequence[int]) -> Judgments:
    """Return the judgments with only the attributes ``kept``, without measuring the attributes again."""
    return replace(
        judgments,
        attributes=tuple(judgments.attributes[j] for j in kept),
        delta=judgments.delta[:, kept],
        missing=judgments.missing[:, kept],
    )


def _of_pool(judgments: Judgments) -> Iterator[Problem]:
    """Report annotators who cast an unusually large share of the votes or nearly always choose one side."""
    names = judgments.annotators["pseudonym"].to_numpy()
    n_votes = np.bincount(judgments.votes["annotator"], minlength=len(names))
    if not judgments.has_identities or not n_votes.any():
        return
    has_voted = n_votes > 0
    if has_voted.sum() == 1:
        what = "1 annotator: shared_mean and per_annotator are the same as pooled"
        yield Problem("W111", what, names[has_voted][0], "use bias: pooled")
        return
    usual, share = np.median(n_votes[has_voted]), n_votes / n_votes.sum()
    classes = judgments.annotators["annotator_class"]
    has_own_class = classes.notna() & ~classes.duplicated(keep=False)
    is_known = has_own_class | judgments.annotators["model"].notna()
    cast_most = (share > LARGE_VOTE_SHARE) & (n_votes > MANY_MEDIANS * usual)
    for k in np.flatnonzero(cast_most & ~is_known):
        what = f"one annotator cast {share[k]:.0%} of the votes; is this annotator a model, or several people?"
        remedy = (
            'give this annotator a separate annotator_class ("model" for a model, whose name is then shown), or leave '
            "out the annotator's rows"
        )
        yield Problem("W114", what, names[k], remedy, int(n_votes[k]))
    chose_a = np.bincount(judgments.votes["annotator"], judgments.votes["sign"] > 0, len(names))
    others = (chose_a.sum() - chose_a) / np.maximum(n_votes.sum() - n_votes, 1)
    same = np.maximum(chose_a, n_votes - chose_a) >= NEARLY_ALL * n_votes
    is_mixed = np.minimum(others, 1 - others) > 1 - NEARLY_ALL
    always = same & is_mixed & (n_votes >= MANY_VOTES)
    if always.any():
        who = counted(int(always.sum()), "annotator")
        what = f"{who} nearly always chose the same side (a or b), regardless of the responses"
        remedy = (
            "leave out the rows of annotators who always choose one side: their bias and reliability can barely be "
            "estimated, and several such annotators also affect the estimates for other annotators"
        )
        yield Problem("W115", what, listed(list(names[always])), remedy, int(n_votes[always].sum()))


def _of_differences(attribute: Attribute, differs: Bools, judgments: Judgments) -> list[Problem]:
    """Report an attribute on which the two sides of a judgment rarely or almost always differ.

    If the two sides never differ on the attribute, the function reports an error instead of a warning, because the bias
    cannot be estimated.
    """
    where = f'attribute "{attribute.name}"'
    n, n_cross = len(differs), int(differs.sum())
    of_all = counted(n, "judgment")
    by_more = f" by more than {attribute.threshold:g}" if attribute.threshold else ""
    if n_cross == 0:
        if attribute.scope == "response" and attribute.columns is None:
            values = np.unique(measure_sides(attribute, judgments.comparisons))
            if len(values) == 1:
                what = f"the value is {values[0]:g} for every response in {of_all}, so no bias can be estimated"
                return [Problem("E120", what, where, "check the rule with badpo attributes test", n)]
        what = f"the sides differ{by_more} in 0 of {of_all}; only votes on pairs that differ can show a bias"
        remedy = (
            "collect votes on pairs that differ, lower the threshold, or do not declare the attribute"
        )
        return [Problem("E121", what, where, remedy, n)]
    found = []
    if n_cross < max(SMALL_CROSS_SHARE * n, FEW_CROSS):
        what = f"the sides differ{by_more} in only {counted(n_cross, 'judgment')}{f' of {n:,}' * (n_cross < n)}"
        are_few = n_cross <= LARGE_CROSS_SHARE * n
        remedy = f"expect a wide interval; judge more pairs{' that differ' * are_few}"
        found.append(Problem("W121", what, where, remedy, n_cross))
    if n_cross > LARGE_CROSS_SHARE * n and attribute.scope != "judgment":
        what = (
            f"the sides differ{by_more} in {n_cross / n:.1%} of judgments; only the few other votes depend on "
            "quality alone"
        )
        remedy = (
            "raise the attribute's threshold or ratio, so that nearly equal responses count as equal"
        )
        found.append(Problem("W122", what, where, remedy, n_cross))
    if attribute.is_position and judgments.votes["shown_first"].nunique() == 1:
        first = judgments.votes["shown_first"].dropna().iloc[0]
        what = f"{first} was always shown first, so a bias toward the first side may be due to better responses"
        what += " on this side"
        remedy = "show some pairs in the other order, unless the two responses were assigned to the sides at random"
        found.append(Problem("W128", what, where, remedy, n_cross))
    return found


def _of_missing(attribute: Attribute, missing: Bools, judgments: Judgments) -> Iterator[Problem]:
    """Report how many judgments do not record an attribute, and for how many annotators no judgment records it."""
    if not missing.any():
        return
    n, annotator = int(missing.sum()), judgments.votes["annotator"].to_numpy()
    never = len(set(annotator)) - len(set(annotator[~missing]))
    what, name, remedy = "record it", attribute.name, "fill it in"
    if attribute.is_position:
        what, remedy = "say which side was shown first", "fill in shown_first"
    told = (
        f"{n:,} of {counted(len(missing), 'judgment')} do not {what}: these judgments contain no information about "
        f"{name}, and are compared only with one another"
    )
    if never and judgments.has_identities:
        told += f"; {counted(never, 'annotator')} never did, and their bias is not known"
    yield Problem("W127", told, f'attribute "{name}"', remedy, n)


def _of_annotators(
    attribute: Attribute, delta: Floats, missing: Bools, judgments: Judgments
) -> Iterator[Problem]:
    """Report annotators whose bias cannot be estimated or cannot be compared with other annotators' biases."""
    where = f'attribute "{attribute.name}"'
    names = judgments.annotators["pseudonym"].to_numpy()
    annotator, k = judgments.votes["annotator"].to_numpy(), len(names)
    has_told = np.bincount(annotator[~missing], minlength=k) > 0
    has_seen = np.bincount(annotator[delta != 0], minlength=k) > 0
    without = has_told & ~has_seen
    if n := int(without.sum()):
        what = f"{counted(n, 'annotator')} of {has_told.sum():,} never judged a pair whose sides differ"
        remedy = "no action is needed: training uses the pool's mean bias for annotators whose bias is unknown"
        yield Problem("W123", what, f"{where}: {listed(names[without])}", remedy, n)
    sign = judgments.votes["sign"]
    one_way = separated_annotators(annotator, sign, delta, k).ravel() != 0
    if n := int(one_way.sum()):
        what = f"{counted(n, 'annotator')} always sided one way"
        remedy = "train without per_annotator: the bias of an annotator who always sides one way has no finite estimate"
        yield Problem("W124", what, f"{where}: {listed(names[one_way])}", remedy, n)
    comparison = judgments.votes["comparison"].to_numpy()
    groups = annotator_components(comparison, annotator, delta != 0, k).ravel()
    if groups.max() > 0 and attribute.scope != "judgment":
        sizes = np.bincount(groups[groups >= 0])
        shown = [f"{n:,}" for n in sizes[:LISTED]] + ["..."] * (len(sizes) > LISTED)
        of_groups = f"{len(sizes):,} groups ({' + '.join(shown)})"
        what = (
            f"the annotators fall into {of_groups}: no comparison whose sides differ was judged by annotators from two "
            "of these groups"
        )
        if sizes[0] == 1:
            what = "no comparison whose sides differ was judged by two annotators"
        remedy = "let people judge the same comparisons: annotators without shared comparisons cannot be compared"
        yield Problem("W125", what, where, remedy, len(sizes))


def _of_scores(votes: pd.DataFrame) -> Iterator[Problem]:
    """If most votes contradict the scores, report that the two score columns may be reversed."""
    for first, second in side_pairs(votes.columns).items():
        if any(word in first.casefold() for word in _SCORES):
            toward = (votes[first] - votes[second]).to_numpy(dtype=np.float64) * votes["sign"]
            n, against = int((np.abs(toward) > 0).sum()), int((toward < 0).sum())
            # the share of votes against the scores is more than two standard errors above one half
            if n >= FEW_SCORED and against > n / 2 + np.sqrt(n):
                what = f"{against:,} of {counted(n, 'judgment')} contradict the scores: are the columns reversed?"
                remedy = (
                    "check some rows; if the columns are reversed, exchange the responses or the winners"
                )
                yield Problem("W135", what, f"columns {first} and {second}", remedy, against)


def _of_likeness(judgments: Judgments) -> Iterator[Problem]:
    """Report attributes whose differences are linearly dependent, or nearly so, in the judgments."""
    size = np.sqrt((judgments.delta**2).sum(axis=0))
    names = np.array([f'"{name}"' for name in judgments.attribute_names], dtype=object)[size > 0]
    if len(names) < 2:
        return
    unit = judgments.delta[:, size > 0] / size[size > 0]
    values, vectors = np.linalg.eigh(unit.T @ unit)
    where = f"attributes {', '.join(judgments.attribute_names)}"
    null = np.abs(vectors[:, values < 1e-9]).max(axis=1, initial=0.0) > 1e-4
    if n := int(null.sum()):
        relation = "say the same about"
        if n > 2:
            relation = "are linearly dependent in"
        alike = f"{' and '.join(names[null])} {relation} every judgment"
        what = f"{alike}; their biases cannot be told apart"
        yield Problem("E126", what, where, "leave one of them out", n)
        return
    inflation = ((vectors**2) / values).sum(axis=1)
    high = inflation > LARGE_INFLATION
    if n := int(high.sum()):
        largest = f"variance inflation up to {inflation.max():.0f}"
        what = f"{' and '.join(names[high])} nearly say the same ({largest})"
        remedy = "expect wide intervals, declare only one of these attributes, or judge pairs in which they differ"
        yield Problem("W126", what, where, remedy, n)


def attribute_trials(
    judgments: Judgments,
    configs: Sequence[Config],
    n_examples: int = 3,
) -> list[Json]:
    """Try out attributes: report how often the sides differ and how often the side with the attribute wins.

    Parameters
    ----------
    judgments : Judgments
    configs : sequence of mapping
        Configurations of attributes, as for `attribute_from_config`.
    n_examples : int
        Largest number of example responses with the attribute. The same limit applies to responses without it.

    Returns
    -------
    list of dict
        One entry for each attribute: ``attribute``, ``parameters``, ``scope``, ``problem`` (the reason why
        nothing can be estimated, or None), ``n_cross`` (number of judgments whose sides differ), ``cross_share`` (their
        share of all judgments), ``win_rate`` (how often the side with the attribute wins if the sides differ),
        ``log_odds``, ``ci_low`` and ``ci_high`` (95 % confidence interval, clustered by prompt), and ``examples`` (the
        beginnings of responses ``with`` and ``without`` the attribute, from comparisons whose sides differ). If all
        votes are for the side with the attribute, or all are against it, the log-odds and one end of the interval are
        None.

    Raises
    ------
    ConfigError
        If ``configs`` is empty or an attribute is unknown.

    Examples
    --------
    >>> rows = [{"prompt": "Why?", "chosen": "because it is so", "rejected": "so"},
    ...         {"prompt": "How?", "chosen": "so", "rejected": "in the usual way"}]
    >>> trial, = attribute_trials(Judgments.read(rows), [{"type": "length"}])
    >>> trial["n_cross"], trial["win_rate"], trial["examples"]["without"]
    (2, 0.5, ['so'])
    """
    if not configs:
        raise ConfigError("name an attribute to test, as in --attribute length:ratio=1.5")
    return [_trial(judgments, attribute_from_config(config), n_examples) for config in configs]


def _trial(judgments: Judgments, attribute: Attribute, n_examples: int) -> Json:
    measured = judgments.with_attributes([attribute])
    (odds,) = measured.offline_log_odds()
    cross = measured.cross_group()[:, 0]
    votes = measured.votes.assign(delta=measured.delta[:, 0])[cross]
    votes = votes.drop_duplicates("comparison").sort_values("comparison")
    texts = measured.comparisons[["response_a", "response_b"]]
    pairs = texts.loc[votes["comparison"]].to_numpy()
    pairs = np.where(votes[["delta"]] > 0, pairs, pairs[:, ::-1])
    low, high = odds.interval()
    faults = [each.what for each in _of_differences(attribute, cross, measured) if each.code[0] == "E"]
    return {
        "attribute": attribute.name,
        "parameters": {k: v for k, v in attribute.config.items() if k not in ("type", "name")},
        "scope": attribute.scope,
        "problem": [*faults, None][0],
        "cross_share": odds.n_cross / measured.n_votes,
        **{name: getattr(odds, name) for name in ("n_cross", "win_rate", "log_odds")},
        **{"ci_low": low, "ci_high": high},
        "examples": {
            side: list(dict.fromkeys(map(_beginning, texts)))[:n_examples]
            for side, texts in zip(("with", "without"), pairs.T, strict=True)
        },
    }


def _beginning(response: Text) -> str:
    text = " ".join(plain_text(response).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
