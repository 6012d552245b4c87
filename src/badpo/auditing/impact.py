"""Count the labels that biases change, select judgments to reread, and choose an example pair for each attribute."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import log_expit

from badpo.auditing.annotators import BiasFit, Design
from badpo.data.attributes import BUILT_IN, Attribute
from badpo.data.judgments import Judgments, numbered_texts
from badpo.data.privacy import FEWEST_ANNOTATORS
from badpo.estimation.alternative_estimators import QualityPrior, fit_quality_prior
from badpo.estimation.log_odds import attribute_sides, summed
from badpo.results.audit_json import ExamplePair, LabelChanges
from badpo.results.formatting import shown
from badpo.theory import Floats, Ints

# Number of posterior draws, and seed of the random generator.
DRAWS, SEED = 100, 0
# Largest number of judgments to reread for each flag.
MOST_REREAD = 20
REREAD = ["annotator", "about", "log_likelihood_ratio"]
TEXTS = ("prompt", "response_a", "response_b")
# A quoted excerpt contains at most this many first words, last words and characters.
FIRST_WORDS, LAST_WORDS, LONGEST_TEXT = 18, 5, 200
# A pair of responses with fewer than SHORTEST_PAIR characters counts as too short.
# A pair of responses counts as long above the first limit in LONG_PAIRS, and as very long above the second.
SHORTEST_PAIR, LONG_PAIRS = 60, (400, 1500)


def count_turned_majorities(
    comparison: Ints, sign: Ints, logit: Floats, shift: Floats, random: np.random.Generator
) -> tuple[int, int]:
    r"""Count the majorities that change if ``shift`` is subtracted from the votes' logits, in one draw of the noise.

    In the model, vote j has the sign :math:`s_j` if :math:`s_j (\ell_j + \varepsilon_j) > 0`, where the noise
    :math:`\varepsilon_j` is logistic. If the shift is subtracted and the noise stays the same, the probability that
    vote j stays the same is

    .. math:: P(s_j (\ell_j - x_j + \varepsilon_j) > 0 \mid s_j (\ell_j + \varepsilon_j) > 0)
        = \min\Bigl(1, \frac{\sigma(s_j (\ell_j - x_j))}{\sigma(s_j \ell_j)}\Bigr)

    All arrays are of shape (n_votes,): ``sign`` is +1 for a and -1 for b; ``logit`` :math:`\ell` and ``shift`` x are
    in log-odds of a. A tied comparison has no majority, and a majority that becomes a tie does not count as changed.
    The function returns the number of majorities that change, and the number of votes for these majorities.

    Examples
    --------
    Two votes for a, which only a bias explains, and one vote for b:

    >>> votes = np.array([0, 0, 0]), np.array([1, 1, -1]), np.array([-9.0, -9.0, -9.0])
    >>> count_turned_majorities(*votes, np.array([9.0, 9.0, 0.0]), np.random.default_rng(0))
    (1, 2)
    """
    stays = np.exp(log_expit(sign * (logit - shift)) - log_expit(sign * logit))
    without = np.where(random.random(len(sign)) < stays, sign, -sign)
    majority = np.bincount(comparison, sign)
    turned = majority * np.bincount(comparison, without) < 0
    votes = turned[comparison] & (sign * majority[comparison] > 0)
    return int(turned.sum()), int(votes.sum())


def count_changed_labels(design: Design, fit: BiasFit) -> list[LabelChanges]:
    """Count the labels that would change without the bias toward one or all attributes (``flips`` in audit.json).

    ``labels`` and ``pairs`` are the posterior mean and the 95 % credible interval of the number of changed majority
    labels and training pairs. Posterior draws include the biases, the quality of each comparison and the noise of each
    vote. Both ``labels`` and ``pairs`` are None if tau cannot be estimated, or if almost all comparisons have one vote.
    ``n_contested`` is the number of comparisons whose sides differ in the attribute and whose votes disagree.
    """
    random = np.random.default_rng(SEED)
    posteriors = {j: one.posterior for j, one in enumerate(fit.shrunken_biases) if np.isfinite(one.tau)}
    if fit.sums:  # there are no majorities
        posteriors = {}
    shape = fit.biases.deviation.shape
    drawn, mean = np.zeros((DRAWS, *shape)), np.zeros(shape)
    for j, posterior in posteriors.items():
        drawn[:, :, j], mean[:, j] = posterior.draws(DRAWS, random), posterior.mean
    is_anchored = fit.biases.status == "anchored"
    drawn[:, is_anchored] = mean[is_anchored] = 0.0
    comparison, sign, delta = design.comparison, design.sign, design.delta
    differing = summed(comparison, delta, comparison.max(initial=-1) + 1)
    differing /= np.maximum(np.bincount(comparison), 1)[:, None]
    if posteriors:
        expected = (mean[design.annotator] * delta).sum(axis=1)
        prior = fit_quality_prior(comparison, sign, expected, differing)
    share = pd.Series(sign > 0).groupby(comparison).transform("mean")
    is_contested = ~share.isin([0.0, 0.5, 1.0]).to_numpy()
    groups: dict[str | None, list[int]] = {name: [j] for j, name in enumerate(design.attributes)}
    if len(posteriors) > 1:
        groups[None] = [*posteriors]
    rows: list[LabelChanges] = []
    for name, group in groups.items():
        is_differing = np.isin(comparison, comparison[delta[:, group].any(axis=1)])
        vote = np.flatnonzero(is_differing & is_contested)
        contested, number = np.unique(comparison[vote], return_inverse=True)
        row: LabelChanges = {
            "attribute": name,
            "n_contested": len(contested),
            "labels": None,
            "pairs": None,
        }
        if group[0] in posteriors:
            votes = ContestedVotes(vote, number, np.argsort(number, kind="stable"), differing[contested])
            counts = [_draw_changes(design, votes, one, group, prior, random) for one in drawn]
            figures = [np.mean(counts, axis=0), *np.quantile(counts, [0.025, 0.975], axis=0)]
            row["labels"], row["pairs"] = np.round(figures).astype(int).T.tolist()
        rows.append(row)
    return rows


class ContestedVotes(NamedTuple):
    """Votes on comparisons whose sides differ in an attribute and whose votes disagree.

    ``vote`` holds the positions of the votes, ``number`` numbers each vote's comparison from 0, and ``order`` sorts the
    votes by comparison. ``differing`` is the mean difference of the sides of each comparison.
    """

    vote: Ints
    number: Ints
    order: Ints
    differing: Floats


def _draw_changes(
    design: Design,
    votes: ContestedVotes,
    biases: Floats,
    group: Sequence[int],
    prior: QualityPrior,
    random: np.random.Generator,
) -> tuple[int, int]:
    """Draw the quality of the comparisons, and count the labels that change without the biases toward ``group``."""
    vote, number, order, differing = votes
    sign, each = design.sign[vote], biases[design.annotator[vote]] * design.delta[vote]
    shift = each.sum(axis=1)
    value, weight = prior.posterior(number[order], sign[order], shift[order], differing)
    above = random.random((len(differing), 1)) > weight.cumsum(axis=1)
    node = np.minimum(above.sum(axis=1), value.shape[1] - 1)
    logit = value[np.arange(len(differing)), node][number] + shift
    return count_turned_majorities(number, sign, logit, each[:, group].sum(axis=1), random)


# -- votes to reread --------------------------------------------------------------------------------------------


def select_votes_to_reread(judgments: Judgments, design: Design, table: pd.DataFrame) -> pd.DataFrame:
    r"""For each flag of bias or low reliability, select the votes with the strongest evidence, and add the texts.

    The result is personal data. The evidence that a vote adds to a flag is the log-likelihood ratio

    .. math:: \Lambda_j = \log \sigma\bigl(s_j (a_k \hat q_c + e_k d_j)\bigr) - \log \sigma(s_j \hat q_c)

    For a flag of bias, the reliability is a = 1; for a flag of low reliability, the bias is e = 0. The quality of the
    comparison is estimated from the votes of the other annotators, with half a vote added to either side.
    """
    comparison, sign = design.comparison, design.sign
    total, n = (np.bincount(comparison, each)[comparison] for each in (sign, None))
    quality = sign * 2 * np.arctanh((total - sign) / n)
    table = table.assign(about=table["attribute"])
    biased = table[table["flag"]].assign(reliability=1.0)
    unreliable = table[table["flag_reliability"]].drop_duplicates("annotator")
    flags = pd.concat([biased, unreliable.assign(about="reliability", shrunk=0.0)])
    rows, votes = [], [np.empty(0, dtype=int)]
    for flag in flags.to_dict("records"):
        cast = np.flatnonzero(design.annotators[design.annotator] == flag["annotator"])
        j = design.attributes.index(flag["attribute"])
        toward = sign[cast] * design.delta[cast, j]
        expected = log_expit(flag["reliability"] * quality[cast] + flag["shrunk"] * toward)
        gain = expected - log_expit(quality[cast])
        most = np.argsort(-gain)[: min(MOST_REREAD, (gain > 0).sum())]
        rows += [(flag["annotator"], flag["about"], ratio) for ratio in gain[most]]
        votes.append(cast[most])
    vote = np.concatenate(votes)
    rows_of_votes = judgments.comparisons.iloc[comparison[vote]]
    numbers, texts = numbered_texts(rows_of_votes, TEXTS)
    return pd.DataFrame(rows, columns=REREAD).assign(
        winner=np.where(sign[vote] > 0, "a", "b"),
        comparison_id=rows_of_votes["comparison_id"].to_numpy(),
        **dict(zip(TEXTS, texts[numbers], strict=True)),
    )


# -- example pairs ---------------------------------------------------------------------------------------------


def choose_example_pairs(judgments: Judgments) -> list[ExamplePair]:
    """For each attribute, choose the pair of responses that best illustrates the bias, and quote a few words of both.

    Candidates are pairs on which most votes go in the direction of the pool's bias. The function ranks candidates by
    four criteria: at least five voters, no difference in other attributes, short texts, and a large majority.
    ``carries`` says whether the chosen response has more of the attribute. Of the ``n_votes`` votes whose sides differ,
    ``n_chosen`` agree with the pool. ``n_annotators`` annotators judged the pair; ``n_people`` of them are people.
    """
    sign, n = judgments.votes["sign"].to_numpy(), judgments.n_comparisons
    comparison = judgments.votes["comparison"].to_numpy()
    side = attribute_sides(judgments.delta, judgments.cross_group())
    numbers, texts = numbered_texts(judgments.comparisons, TEXTS)
    letters = np.array([len(text) for text in texts])[numbers[1:]].sum(axis=0)
    size = np.digitize(letters, LONG_PAIRS, right=True) + 3 * (letters < SHORTEST_PAIR)
    n_differ = np.stack([np.bincount(comparison, each, n) for each in np.abs(side).T], axis=1)
    voters = judgments.votes[["comparison", "annotator"]].drop_duplicates().to_numpy().T
    is_person = judgments.annotators["model"].isna().to_numpy()
    n_voters = np.bincount(voters[0], minlength=n)
    n_people = np.bincount(voters[0], is_person[voters[1]], n)
    is_few = n_voters < FEWEST_ANNOTATORS
    pairs = []
    for j, name in enumerate(judgments.attribute_names):
        toward = sign * side[:, j]
        way = 1 if toward.sum() >= 0 else -1
        ahead = way * np.bincount(comparison, toward, n)
        others = (np.delete(n_differ, j, axis=1) > 0).sum(axis=1)
        order = np.lexsort((letters, -ahead, size, others, is_few, ahead <= 0))
        if not (ahead > 0).any():
            continue
        best = order[0]
        won = sign[(comparison == best) & (toward == way)].sum() >= 0
        mark = _attribute_predicate(judgments.attributes[j])
        prompt, a, b = (_quote(texts[i], mark) for i in numbers[:, best])
        n_votes = int(n_differ[best, j])
        pair = ExamplePair(
            attribute=name,
            prompt=prompt,
            chosen=a if won else b,
            other=b if won else a,
            carries=way > 0,
            n_votes=n_votes,
            n_chosen=int(n_votes + ahead[best]) // 2,
            n_annotators=int(n_voters[best]),
            n_people=int(n_people[best]),
        )
        pairs.append(pair)
    return pairs


def _attribute_predicate(attribute: Attribute) -> Callable[[str], bool]:
    """Return a function that says whether a passage has the attribute.

    The returned function always returns False, unless the attribute is a built-in 0/1 attribute of a response's text.
    """
    is_known, is_read = attribute.config.get("type") in BUILT_IN, attribute.columns is None
    is_mark = is_known and is_read and attribute.scope == "response" and not attribute.continuous
    return lambda part: bool(is_mark and attribute.measure("", part))


def _quote(text: str, mark: Callable[[str], bool]) -> str:
    """Quote the first and last words of a text or, if these words lack the attribute, a passage with the attribute."""
    words = text.split(maxsplit=LONGEST_TEXT)
    if len(words) > FIRST_WORDS + LAST_WORDS:
        last = text[-LONGEST_TEXT:].split()[-LAST_WORDS:]
        words = [*words[:FIRST_WORDS], "\u2026", *last]
    quote = " ".join(words)
    if mark(text) and not mark(quote):
        lines = (line.split() for line in text.splitlines() if mark(line))
        parts = (
            line[i : i + FIRST_WORDS] for line in lines for i in range(0, len(line), FIRST_WORDS // 2)
        )
        around = (" ".join(part) for part in parts)
        quote = next((f"\u2026 {part} \u2026" for part in around if mark(part)), quote)
    return shown(quote, LONGEST_TEXT)
