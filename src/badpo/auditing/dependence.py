"""Votes that are no independent draws: repeated votes, votes cast because others disagreed, and votes without ties."""

from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import logit, ndtr
from scipy.stats import sem

from badpo.data.files import Json
from badpo.data.judgments import Judgments
from badpo.data.problems import Problem, counted
from badpo.estimation.fit import fit_conditional
from badpo.estimation.pool import joint_log_odds
from badpo.estimation.significance import equal_leans_test
from badpo.theory import Bools, Floats, Ints

# A comparison has the usual number of votes, at least two, if this share of the comparisons has as few.
USUAL_SHARE = 0.05
FEWEST_EXTENDED, SURE = 20, 3.0
# Whoever casts so many votes, nearly all of them on comparisons with more votes than usual, decides disagreements.
FEWEST_DECIDED, NEARLY_ALL = 5, 0.95
LEFT_OUT = (
    "{} were cast because the first votes on the comparison disagreed (adjudication): of the pairs of votes on "
    "comparisons with more than {} votes {:.0%} disagree, on the others {:.0%}. They are left out of every estimate, "
    "because the votes chose these comparisons, and biases and classes would seem to differ"
)
NOT_FOUND = (
    "comparisons on which votes disagreed were judged again (adjudication): of the pairs of votes on comparisons with "
    "more than {} votes {:.0%} disagree, on the others {:.0%}; which votes came later cannot be seen, so that "
    "biases, classes and flags may come from the choice of comparisons alone"
)


def independent_votes(judgments: Judgments) -> tuple[Judgments, Bools, list[Problem]]:
    """The judgments that estimates are made of, which votes these are, and what was left out.

    An annotator's further votes on a comparison are left out if they say the same of every attribute: they repeat what
    is the annotator's own taste. Votes in both orders stay if the position is declared. Votes that decide
    disagreements (`adjudicating_votes`) are left out too.
    """
    kept = np.ones(judgments.n_votes, dtype=bool)
    problems: list[Problem] = []
    if not judgments.has_identities:
        return judgments, kept, problems
    of_votes = judgments.votes[["annotator", "comparison"]]
    asked = np.column_stack([of_votes, judgments.delta, judgments.missing])
    kept = ~pd.DataFrame(asked).duplicated().to_numpy()
    if n_again := int((~kept).sum()):
        what = (
            f"{counted(n_again, 'judgment')} are an annotator's further votes on a comparison, which are not "
            "independent: of each annotator the first vote on a comparison counts"
        )
        remedy = "nothing; to know more, have more comparisons judged, and not the same ones again"
        problems.append(Problem("N434", what, "columns annotator and comparison", remedy, n_again))
    chosen = ~of_votes.duplicated().to_numpy()
    comparison, annotator = (of_votes[name].to_numpy()[chosen] for name in ("comparison", "annotator"))
    sign = judgments.votes["sign"].to_numpy()[chosen]
    if found := adjudicating_votes(comparison, sign, annotator):
        late = np.zeros(judgments.n_votes, dtype=bool)
        late[np.flatnonzero(chosen)[found.late]] = True
        # a second order of a vote goes with the first
        cells = pd.MultiIndex.from_frame(of_votes)
        late = cells.isin(cells[late])
        kept &= ~late
        shown = found.n_usual, found.disagree, found.disagree_usually
        what, remedy = (
            NOT_FOUND.format(*shown),
            "sort the rows by the time of the vote, first votes first",
        )
        if late.any():
            what = LEFT_OUT.format(counted(int(late.sum()), "judgment"), *shown)
            remedy = "nothing; to compare those who decide with the others, let them judge comparisons drawn by chance"
        problems.append(Problem("W441", what, "column annotator", remedy, max(int(late.sum()), 1)))
    return (judgments if kept.all() else judgments.take(kept)), kept, problems


class Adjudication(NamedTuple):
    """Which votes are ``late``, cast because others disagreed, and the shares of the pairs of votes that disagree.

    ``disagree`` is of the comparisons with more votes than ``n_usual``, ``disagree_usually`` of those with as many.
    """

    late: Bools
    n_usual: int
    disagree: float
    disagree_usually: float


def adjudicating_votes(comparison: Ints, sign: Ints, annotator: Ints) -> Adjudication | None:
    r"""The votes on comparisons that got more votes because the first ones disagreed; None if there are none.

    If the number of votes does not depend on the votes, those on a comparison are exchangeable draws, and at most half
    of their pairs disagree:

    .. math:: E\Bigl[\frac{2 w (n - w)}{n (n - 1)}\Bigr] = E[2 p (1 - p)] \le \frac12

    with w of n votes for one side. If more of the pairs disagree on comparisons with more votes than usual, and fewer
    on those with the usual number, each beyond ``SURE`` standard errors, votes decided which comparisons got more of
    them. Late are the votes of annotators who judged hardly any other comparison, and then those beyond the usual
    number in the order of the votes. None are late if what is left still agrees on more than a few of them: the order
    is then not that of time.

    Examples
    --------
    Annotator 2 decides where 0 and 1 disagree, in every third of 90 comparisons:

    >>> two, three = np.repeat(np.arange(60), 2), np.repeat(np.arange(60, 90), 3)
    >>> sign = np.append(np.ones(120, int), np.tile([1, -1, 1], 30))
    >>> found = adjudicating_votes(np.append(two, three), sign, np.append(np.tile([0, 1], 60), np.tile([0, 1, 2], 30)))
    >>> int(found.late.sum()), found.n_usual, round(found.disagree, 2), found.disagree_usually
    (30, 2, 0.67, 0.0)
    """
    of = np.unique(comparison, return_inverse=True)[1]
    n, won = np.bincount(of), np.bincount(of, sign > 0)
    disagree = 2 * won * (n - won) / np.maximum(n * (n - 1), 1)
    share = np.bincount(n) / max(len(n), 1)
    usual = next((size for size in range(2, len(share)) if share[size] >= USUAL_SHARE), None)
    if usual is None or (extended := n > usual).sum() < FEWEST_EXTENDED:
        return None
    shares = [disagree[extended], disagree[n == usual]]
    (more, fewer), errors = ([each(one) for one in shares] for each in (np.mean, sem))
    if more - SURE * errors[0] <= 0.5 or fewer + SURE * errors[1] >= 0.5:
        return None
    on_extended = extended[of]
    cast, decided = np.bincount(annotator), np.bincount(annotator, on_extended)
    decides = (cast >= FEWEST_DECIDED) & (decided >= NEARLY_ALL * cast)
    late = on_extended & decides[annotator]
    earlier = pd.Series(of[~late]).groupby(of[~late]).cumcount().to_numpy()
    late[~late] = on_extended[~late] & (earlier >= usual)
    total, left = np.bincount(of[~late], sign[~late], len(n)), np.bincount(of[~late], minlength=len(n))
    is_split = (np.abs(total) < left)[extended & (left > 1)]
    if not len(is_split) or is_split.mean() < NEARLY_ALL:
        late[:] = False
    return Adjudication(late, usual, float(more), float(fewer))


# -- ties ------------------------------------------------------------------------------------------------------

SELECTIVE = 0.05
MOST_SIZE = 3.0  # in medians; a few vast differences would decide alone


def tie_effects(judgments: Judgments) -> dict[str, Json]:
    """For each attribute of the responses what leaving ties out changes; nothing if there are none, or only counts.

    A row has ``n``, the ties on comparisons whose sides differ; ``differing_share`` and ``alike_share``, how often a
    judgment is a tie if the sides differ and if not; ``size_p``, of the test that this does not depend on the
    difference (its size for a continuous attribute); ``annotators_p``, of the test that annotators call ties equally
    often on the same comparisons whose sides differ; ``is_selective``, whether either test rejects at 5 % over all
    attributes; and the pool's log-odds with ties left out (``log_odds``), as half a vote for each side
    (``log_odds_half``), and as votes for the side without or with the attribute (``log_odds_low``, ``log_odds_high``).
    """
    of_texts = [one for one in judgments.attributes if one.scope != "judgment"]
    if judgments.ties is None or not of_texts:
        return {}
    both = judgments.with_attributes(of_texts), judgments.ties.with_attributes(of_texts)
    votes = pd.concat([_votes_of(each) for each in both], ignore_index=True)
    first = ~votes.duplicated(["comparison", "annotator", "row"][: 3 - judgments.has_identities])
    delta = np.concatenate([each.delta * each.cross_group() for each in both])[first]
    votes = votes[first]
    sign, is_tie = votes["sign"].to_numpy(), (votes["sign"] == 0).to_numpy()
    rows = {}
    for attribute, difference in zip(of_texts, delta.T, strict=True):
        differs = difference != 0
        size_p, annotators_p = _selection(votes, is_tie, np.abs(difference), judgments.has_identities)
        n_ties, n_votes = int((differs & is_tie).sum()), int((differs & ~is_tie).sum())
        won = int((sign * difference > 0).sum())
        # of the ties that count, the votes for the side with the attribute
        ways = {
            "": (0, 0),
            "_half": (n_ties / 2, n_ties),
            "_low": (0, n_ties),
            "_high": (n_ties, n_ties),
        }
        rows[attribute.name] = {
            "n": n_ties,
            "differing_share": is_tie[differs].mean(),
            "alike_share": is_tie[~differs].mean() if not differs.all() else np.nan,
            "size_p": size_p,
            "annotators_p": annotators_p,
            "is_selective": bool(min(size_p, annotators_p) < SELECTIVE / (2 * len(of_texts))),
            **{
                f"log_odds{way}": float(logit((won + more) / max(n_votes + n, 1)))
                for way, (more, n) in ways.items()
            },
        }
    return rows


def selective_ties(ties: dict[str, Json]) -> list[Problem]:
    """A warning for each attribute whose ties are selective."""
    found = []
    for name, row in ties.items():
        reasons = []
        if row["size_p"] < SELECTIVE:
            reasons.append(f"they depend on how far the sides differ (p = {row['size_p']:.2g})")
        if row["annotators_p"] < SELECTIVE:
            reasons.append(f"annotators call ties unequally often (p = {row['annotators_p']:.2g})")
        what = (
            f"ties are selective: {' and '.join(reasons)}. The audit leaves them out, so that an annotator who calls a "
            "tie in place of a vote for one side seems to be biased: biases, flags and tau may come from ties"
        )
        remedy = (
            "ask for a choice in place of a tie; read flags beside the number of ties in annotators.csv"
        )
        if row["is_selective"]:
            found.append(Problem("W442", what, f'attribute "{name}"', remedy, row["n"]))
    return found


def _votes_of(judgments: Judgments) -> pd.DataFrame:
    """Sign, comparison, prompt and annotator of each vote, by ids that votes and ties share."""
    votes, of = judgments.votes, judgments.votes["comparison"]
    return pd.DataFrame(
        {
            "sign": votes["sign"],
            "row": votes["row"],
            "comparison": judgments.comparisons["comparison_id"].to_numpy()[of],
            "prompt": judgments.comparisons["prompt_id"].to_numpy()[of],
            "annotator": judgments.annotators["pseudonym"].to_numpy()[votes["annotator"]],
        }
    )


def _selection(
    votes: pd.DataFrame, is_tie: Bools, size: Floats, has_identities: bool
) -> tuple[float, float]:
    """P-values of no dependence of ties on the size of the difference, and of equal shares of ties of annotators."""
    sign, differs = np.where(is_tie, 1, -1), size > 0
    typical = np.median(size[differs]) if differs.any() else 1.0
    columns = np.column_stack([np.ones(len(size)), np.minimum(size / typical, MOST_SIZE)])
    slope = joint_log_odds(columns, sign, pd.factorize(votes["prompt"])[0])[1]
    size_p = 1.0
    if slope is not None and slope.se > 0:
        size_p = float(2 * ndtr(-abs(slope.estimate / slope.se)))
    elif is_tie.any() and (are_on := differs[is_tie].mean()) in (0.0, 1.0) and 0 < differs.mean() < 1:
        # all ties are on one kind of comparison: the chance that those of all prompts are
        share = differs.mean() if are_on else 1 - differs.mean()
        size_p = float(share ** votes["prompt"][is_tie].nunique())
    if not has_identities or not is_tie[differs].any():
        return size_p, 1.0
    comparison, annotator = (
        pd.factorize(votes[name][differs])[0] for name in ("comparison", "annotator")
    )
    cast = comparison, sign[differs], annotator, np.ones((len(comparison), 1))
    found = equal_leans_test(*cast, fit_conditional(*cast, annotator.max() + 1))[0]
    return size_p, float(np.nan_to_num(found, nan=1.0))
