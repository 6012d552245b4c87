"""Find dependent votes: repeated votes, votes that settle disagreements, and selective ties."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import logit, ndtr
from scipy.stats import sem

from badpo.data.judgments import Judgments
from badpo.data.privacy import is_dominated
from badpo.data.problems import Problem, counted
from badpo.estimation.fit import Votes, fit_conditional
from badpo.estimation.log_odds import joint_log_odds
from badpo.estimation.significance import equal_bias_p_value, format_p_value
from badpo.results.audit_json import TieRow, Voters
from badpo.theory import Bools, Floats, Ints

# The usual number of votes is the smallest number (2 or more) that occurs on at least this share of comparisons.
USUAL_SHARE = 0.05
# Evidence of adjudication requires at least FEWEST_EXTENDED comparisons with extra votes.
# The shares of vote pairs that disagree must differ from one half by more than SURE standard errors.
FEWEST_EXTENDED, SURE = 20, 3.0
# An adjudicator has at least FEWEST_DECIDED votes.
# An adjudicator casts at least the share NEARLY_ALL of their votes on comparisons with extra votes.
FEWEST_DECIDED, NEARLY_ALL = 5, 0.95


class Adjudication(NamedTuple):
    """Mask of the votes that settle disagreements (``late``), and shares of vote pairs that disagree.

    ``disagree`` is the share of disagreeing pairs on comparisons with more than ``n_usual`` votes, and
    ``disagree_usually`` is the share on comparisons with ``n_usual`` votes.
    """

    late: Bools
    n_usual: int
    disagree: float
    disagree_usually: float


def select_independent_votes(judgments: Judgments) -> tuple[Judgments, list[Problem]]:
    """Return the judgments used for estimation, and a notice or warning for each kind of omitted judgment.

    Repeated votes are dependent. If an annotator votes several times on the same comparison with the same attribute
    differences, only the first vote is used. Votes in both orders of the responses are kept if the position is a
    declared attribute. Votes that settle disagreements (`find_adjudicating_votes`) are also excluded.
    """
    if not judgments.has_identities:
        return judgments, []
    keys = judgments.votes[["annotator", "comparison"]]
    questions = np.column_stack([keys, judgments.delta, judgments.missing])
    is_used = ~pd.DataFrame(questions).duplicated().to_numpy()
    problems = [*_report_repeated_votes(int((~is_used).sum()))]
    is_first = ~keys.duplicated().to_numpy()
    comparison, annotator = (keys[name].to_numpy()[is_first] for name in ("comparison", "annotator"))
    sign = judgments.votes["sign"].to_numpy()[is_first]
    if adjudication := find_adjudicating_votes(comparison, sign, annotator):
        late = np.zeros(judgments.n_votes, dtype=bool)
        late[np.flatnonzero(is_first)[adjudication.late]] = True
        # If a first vote is excluded, the same annotator's vote in the other order is also excluded.
        pairs = pd.MultiIndex.from_frame(keys)
        late = pairs.isin(pairs[late])
        is_used &= ~late
        problems.append(_report_adjudication(adjudication, int(late.sum())))
    return (judgments if is_used.all() else judgments.take(is_used)), problems


def _report_repeated_votes(n: int) -> Iterator[Problem]:
    """N434: annotators voted repeatedly on a comparison."""
    if n:
        yield Problem(
            "N434",
            f"{counted(n, 'judgment')} repeat an earlier vote of the same annotator on the same comparison. Repeated "
            "votes are not independent, so the audit uses only the first vote",
            "columns annotator and comparison",
            "no action is needed; for narrower intervals, have annotators judge new comparisons",
            n,
        )


def _report_adjudication(found: Adjudication, n: int) -> Problem:
    """W441: votes were added to comparisons whose earlier votes disagreed; ``n`` of these votes can be identified."""
    shares = (
        f"{found.disagree:.0%} of vote pairs disagree on comparisons with more than {found.n_usual} votes, and "
        f"{found.disagree_usually:.0%} on other comparisons"
    )
    if not n:
        return Problem(
            "W441",
            f"comparisons with disagreeing votes were judged again (adjudication): {shares}. The table does not show "
            "which votes came later, so differences between annotators and between classes may result from the "
            "selection of comparisons alone",
            "column annotator",
            "sort the rows by the time of the vote, earliest first",
        )
    return Problem(
        "W441",
        f"{counted(n, 'judgment')} were cast because the first votes on the comparison disagreed (adjudication): "
        f"{shares}. All estimates exclude these votes, because selecting comparisons by their votes makes annotators "
        "and classes seem to differ",
        "column annotator",
        "no action is needed; to compare adjudicators with others, have them judge random comparisons",
        n,
    )


def find_adjudicating_votes(comparison: Ints, sign: Ints, annotator: Ints) -> Adjudication | None:
    r"""Find votes that were cast because the first votes on a comparison disagreed; return None if there are none.

    Without adjudication, the votes on a comparison are exchangeable draws, and at most half of all vote pairs are
    expected to disagree:

    .. math:: E\Bigl[\frac{2 w (n - w)}{n (n - 1)}\Bigr] = E[2 p (1 - p)] \le \frac12

    where w of the n votes are for one side. The function finds adjudication if the share of disagreeing pairs is above
    one half on comparisons with more votes than usual and below one half on comparisons with the usual number, each by
    more than ``SURE`` standard errors. Late votes are the votes of annotators who judged almost only comparisons with
    more votes than usual, and all other votes that exceed the usual number in row order. If the remaining votes agree
    on more than a few of the extended comparisons, the rows are not in chronological order, and no vote counts as late.

    Examples
    --------
    Annotators 0 and 1 disagree on 30 of 90 comparisons, and annotator 2 decides these 30:

    >>> two, three = np.repeat(np.arange(60), 2), np.repeat(np.arange(60, 90), 3)
    >>> sign = np.append(np.ones(120, int), np.tile([1, -1, 1], 30))
    >>> annotator = np.append(np.tile([0, 1], 60), np.tile([0, 1, 2], 30))
    >>> votes = find_adjudicating_votes(np.append(two, three), sign, annotator)
    >>> int(votes.late.sum()), votes.n_usual, round(votes.disagree, 2), votes.disagree_usually
    (30, 2, 0.67, 0.0)
    """
    number = np.unique(comparison, return_inverse=True)[1]
    n, won = np.bincount(number), np.bincount(number, sign > 0)
    disagree = 2 * won * (n - won) / np.maximum(n * (n - 1), 1)
    share = np.bincount(n) / max(len(n), 1)
    usual = next((size for size in range(2, len(share)) if share[size] >= USUAL_SHARE), None)
    if usual is None or (extended := n > usual).sum() < FEWEST_EXTENDED:
        return None
    shares = [disagree[extended], disagree[n == usual]]
    (more, fewer), errors = ([each(one) for one in shares] for each in (np.mean, sem))
    if more - SURE * errors[0] <= 0.5 or fewer + SURE * errors[1] >= 0.5:
        return None
    on_extended = extended[number]
    cast, decided = np.bincount(annotator), np.bincount(annotator, on_extended)
    decides = (cast >= FEWEST_DECIDED) & (decided >= NEARLY_ALL * cast)
    late = on_extended & decides[annotator]
    earlier = pd.Series(number[~late]).groupby(number[~late]).cumcount().to_numpy()
    late[~late] = on_extended[~late] & (earlier >= usual)
    total, left = (
        np.bincount(number[~late], sign[~late], len(n)),
        np.bincount(number[~late], minlength=len(n)),
    )
    is_split = (np.abs(total) < left)[extended & (left > 1)]
    if not len(is_split) or is_split.mean() < NEARLY_ALL:
        late[:] = False
    return Adjudication(late, usual, float(more), float(fewer))


# -- ties ------------------------------------------------------------------------------------------------------

# The tests for selective ties have this significance level over all attributes together.
SELECTIVE = 0.05
# The test caps differences at this multiple of the median, so that a few large differences do not dominate.
MOST_SIZE = 3.0


def estimate_tie_effects(judgments: Judgments) -> dict[str, TieRow]:
    """Effect of omitting ties, for each attribute of the responses; empty if the table contains no rows for ties.

    A row contains ``n``, the number of ties on comparisons whose sides differ; ``n_annotators``, ``n_people`` and
    ``is_dominated``, which describe who called these ties or the other ties; ``differing_share`` and ``alike_share``,
    the shares of ties among judgments whose sides differ and among judgments whose sides do not differ; ``size_p``, the
    p-value of the hypothesis that ties do not depend on the difference (on its size for a continuous attribute);
    ``annotators_p``, the p-value of the hypothesis that annotators call ties equally often on the same comparisons
    whose sides differ; ``is_selective``, whether either test rejects at 5 % over all attributes; and the pool's
    log-odds if ties are left out (``log_odds``), count as half a vote for each side (``log_odds_half``), or count as
    votes for the side without or with the attribute (``log_odds_low``, ``log_odds_high``).
    """
    of_texts = [one for one in judgments.attributes if one.scope != "judgment"]
    if judgments.ties is None or not of_texts:
        return {}
    both = judgments.with_attributes(of_texts), judgments.ties.with_attributes(of_texts)
    votes = pd.concat([name_votes(each) for each in both], ignore_index=True)
    delta = np.concatenate([each.delta * each.cross_group() for each in both])
    differs_all, is_tie_all = delta != 0, votes["sign"].to_numpy() == 0
    models = {*judgments.annotators["pseudonym"][judgments.annotators["model"].notna()]}
    callers = votes["annotator"].where(is_tie_all)
    # The shares of ties include all judgments; the tests use only an annotator's first vote on each comparison.
    first = ~votes.duplicated(["comparison", "annotator", "row"][: 3 - judgments.has_identities])
    votes, delta = votes[first], delta[first]
    sign, is_tie = votes["sign"].to_numpy(), (votes["sign"] == 0).to_numpy()
    rows: dict[str, TieRow] = {}
    for attribute, difference, on_all in zip(of_texts, delta.T, differs_all.T, strict=True):
        differs = difference != 0
        size_p, annotators_p = _test_selection(
            votes, is_tie, np.abs(difference), judgments.has_identities
        )
        n_ties, n_votes = int((differs & is_tie).sum()), int((differs & ~is_tie).sum())
        won = int((sign * difference > 0).sum())
        # (ties counted as votes for the response with the attribute, all counted ties)
        ways = (0, 0), (n_ties / 2, n_ties), (0, n_ties), (n_ties, n_ties)
        log_odds = logit([(won + more) / max(n_votes + n, 1) for more, n in ways]).tolist()
        rows[attribute.name] = {
            "n": int(is_tie_all[on_all].sum()),
            **_describe_callers([callers[on_all], callers[~on_all]], models),
            "differing_share": is_tie_all[on_all].mean(),
            "alike_share": is_tie_all[~on_all].mean() if not on_all.all() else np.nan,
            "size_p": size_p,
            "annotators_p": annotators_p,
            "is_selective": bool(min(size_p, annotators_p) < SELECTIVE / (2 * len(of_texts))),
            "log_odds": log_odds[0],
            "log_odds_half": log_odds[1],
            "log_odds_low": log_odds[2],
            "log_odds_high": log_odds[3],
        }
    return rows


def _describe_callers(groups: Sequence[pd.Series], models: Collection[str]) -> Voters:
    """Count the annotators and people who called each group of ties; return the smallest counts over all groups.

    The result also says whether few people dominate a group of ties.
    """
    counts = [group.value_counts() for group in groups if group.notna().any()]
    people = [each[~each.index.isin(models)] for each in counts]
    return {
        "n_annotators": min(map(len, counts), default=0),
        "n_people": min(map(len, people), default=0),
        "is_dominated": any(map(is_dominated, people)),
    }


def find_selective_ties(ties: Mapping[str, TieRow]) -> list[Problem]:
    """W442: ties are selective."""
    problems = []
    for name, row in ties.items():
        reasons = {
            "the share of ties depends on how much the sides differ": row["size_p"],
            "annotators differ in how often they call ties": row["annotators_p"],
        }
        found = (f"{reason} ({format_p_value(p)})" for reason, p in reasons.items() if p < SELECTIVE)
        what = (
            f"ties are selective: {' and '.join(found)}. The audit excludes ties, so annotators who call a tie "
            "instead of voting for one side seem biased. Biases, flags and tau may be artifacts of the ties"
        )
        remedy = (
            "ask annotators to choose a side; compare flags with the number of ties in annotators.csv"
        )
        if row["is_selective"]:
            problems.append(Problem("W442", what, f'attribute "{name}"', remedy, row["n"]))
    return problems


def name_votes(judgments: Judgments) -> pd.DataFrame:
    """Return a table with the ids of each vote; tables of votes and of ties use the same ids."""
    votes, comparison = judgments.votes, judgments.votes["comparison"]
    return pd.DataFrame(
        {
            "sign": votes["sign"],
            "row": votes["row"],
            "shown_first": votes["shown_first"],
            "comparison": judgments.comparisons["comparison_id"].to_numpy()[comparison],
            "prompt": judgments.comparisons["prompt_id"].to_numpy()[comparison],
            "annotator": judgments.annotators["pseudonym"].to_numpy()[votes["annotator"]],
        }
    )


def _test_selection(
    votes: pd.DataFrame, is_tie: Bools, size: Floats, has_identities: bool
) -> tuple[float, float]:
    """P-values of two hypotheses: ties do not depend on how much sides differ; annotators call ties equally often."""
    sign, differs = np.where(is_tie, 1, -1), size > 0
    typical = np.median(size[differs]) if differs.any() else 1.0
    columns = np.column_stack([np.ones(len(size)), np.minimum(size / typical, MOST_SIZE)])
    slope = joint_log_odds(columns, sign, pd.factorize(votes["prompt"])[0])[1]
    size_p = 1.0
    if slope is not None and slope.se > 0:
        size_p = float(2 * ndtr(-abs(slope.estimate / slope.se)))
    elif is_tie.any() and (are_on := differs[is_tie].mean()) in (0.0, 1.0) and 0 < differs.mean() < 1:
        # The p-value is the probability that the sides differ by chance for all ties or for no tie.
        share = differs.mean() if are_on else 1 - differs.mean()
        size_p = float(share ** votes["prompt"][is_tie].nunique())
    if not has_identities or not is_tie[differs].any():
        return size_p, 1.0
    comparison, annotator = (
        pd.factorize(votes[name][differs])[0] for name in ("comparison", "annotator")
    )
    ones = np.ones((len(comparison), 1))
    cast = Votes(comparison, sign[differs], annotator, ones, annotator.max() + 1)
    equal_p = equal_bias_p_value(cast, fit_conditional(cast))[0]
    return size_p, float(np.nan_to_num(equal_p, nan=1.0))
