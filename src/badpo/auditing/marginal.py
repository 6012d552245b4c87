"""Tables with one vote per comparison: estimate sums of bias and merit, and test whether annotators are comparable."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy as np
import pandas as pd
from scipy import sparse
from scipy.special import expit, ndtr, ndtri

from badpo.data.attributes import plain_text
from badpo.data.judgments import Judgments, numbered_texts
from badpo.data.vocabulary import MODELS, side_pairs
from badpo.estimation.alternative_estimators import (
    RELEVANT,
    PooledSums,
    exchange_test,
    fit_marginal,
    pooled_sums,
)
from badpo.estimation.fit import BiasEstimates, Votes
from badpo.estimation.log_odds import LEVEL, summed
from badpo.estimation.reliability import Reliability
from badpo.estimation.shrinkage import shrink_normal
from badpo.estimation.significance import format_p_value
from badpo.results.audit_json import AssignmentRow
from badpo.theory import Bools, Floats, Ints

# A word, category or model name is used as a covariate if 5 % to 95 % of the comparisons contain it.
RARE, COMMON = 0.05, 0.95
# At most MOST_WORDS words are covariates, and at most WORDS_READ words are read from each prompt.
# A column with more than MOST_CATEGORIES categories is not a covariate.
MOST_WORDS, WORDS_READ, MOST_CATEGORIES = 60, 50, 20
# Reliability is estimated from model strengths if the slope of the votes exceeds this many standard errors.
LEAST_SLOPE = 4.0
# The audit reports the number of comparisons needed for a confidence interval of this half-width, in log-odds.
HALF_WIDTH = 0.5
# If the quality of comparisons (sd 1.5) is not modeled, differences between annotators shrink to this share.
# `python -m bench.audit_statistics --table one_vote` prints the attenuation in the last column.
ATTENUATION = 0.7

UNTESTABLE = (
    "random assignment of comparisons to annotators cannot be tested, because the table has no usable description "
    "of the comparisons (words that some prompts share, categories, or names of the models that wrote the responses)"
)
WEAK = (
    "the votes are too few to test whether comparisons were assigned to annotators at random: the test would find "
    "only imbalances above {:.2f} standard deviations"
)
REJECTED = (
    "comparisons were not assigned to annotators at random (annotators' comparisons differ in: {}, {}), so "
    "annotators can differ in these sums without differing in bias"
)


@dataclass(frozen=True)
class Sums:
    """Estimates for a table in which almost every comparison has exactly one vote.

    Attributes
    ----------
    each : BiasEstimates
        Log-odds that each annotator chooses the side with an attribute: bias plus reliability times merit.
    pooled : PooledSums
        Log-odds over all votes, adjusted for the strengths of the models that wrote the responses if the table names
        them.
    biases : BiasEstimates
        For attributes of the judgment whose order was random, the bias. For other attributes, the deviation of the
        annotator's sum from the mean sum, or NaN if the audit does not compare annotators.
    equal_p : array of shape (n_attributes,)
        P-value of the hypothesis that annotators do not differ; NaN if the audit does not compare annotators.
    assignment : AssignmentRow
    reliability : Reliability or None
        Reliability, estimated from the slope of each annotator's votes on the model strengths; None without an
        estimate.
    needed : int array of shape (n_attributes,)
        Number of comparisons (whose sides differ) that a second annotator must judge to narrow the confidence interval
        of a deviation to ±0.5 log-odds.
    """

    each: BiasEstimates
    pooled: PooledSums
    biases: BiasEstimates
    equal_p: Floats
    assignment: AssignmentRow
    reliability: Reliability | None
    needed: Ints


def fit_sums(
    judgments: Judgments,
    votes: Votes,
    is_judgment_attribute: Bools,
    clusters: Ints | None,
    min_informative: int,
) -> Sums:
    """Estimate sums of bias and merit if almost no comparison has two votes.

    ``is_judgment_attribute`` marks the attributes of the judgment, such as the position.
    """
    comparison, sign, annotator, delta, m = votes
    prompt = judgments.prompt_of_votes()
    names, written = _find_writers(judgments)
    pooled = pooled_sums(sign, delta, written[comparison], prompt)
    strength = written @ pooled.strength
    # The order of the responses counts as random if it correlates with no known feature of the responses.
    features = np.column_stack(
        [delta[:, ~is_judgment_attribute], _lengths(judgments)[1][comparison], strength[comparison]]
    )
    together = delta[:, :, None] * features[:, None]
    size = np.sqrt((together**2).sum(axis=0))
    far = np.abs(together.sum(axis=0)) / np.where(size > 0, size, np.inf)
    has_random_order = is_judgment_attribute & (2 * ndtr(-far.max(axis=1)) * features.shape[1] >= LEVEL)
    fit = partial(fit_marginal, votes, strength, min_informative=min_informative, clusters=clusters)
    each, biases = fit(absolute=True), fit(absolute=has_random_order)
    assignment = check_assignment(judgments, annotator, delta[:, ~is_judgment_attribute], names, written)
    refused = ~has_random_order & bool(assignment["reason"])
    residual = (sign > 0) - expit(delta @ pooled.log_odds + strength[comparison])
    equal_p = np.array(
        [_test_residuals(residual * side, side != 0, annotator, prompt) for side in delta.T]
    )
    rates = [float(expit(log_odds)) for log_odds in pooled.log_odds]
    return Sums(
        each,
        pooled,
        _remove_refused(biases, refused),
        np.where(refused, np.nan, equal_p),
        assignment,
        _estimate_reliability_from_models(votes, strength, clusters),
        np.array([overlap_needed(rate, m, HALF_WIDTH) for rate in rates]),
    )


def overlap_needed(rate: float, n_annotators: int, half_width: float) -> int:
    r"""Number of comparisons that need a second vote before the median deviation is known to within ±``half_width``.

    The number counts comparisons whose sides differ. If two annotators choose the side with the attribute at the
    ``rate`` r, they disagree on a share of at most 2 r (1 - r) of the comparisons. Only disagreements are informative:
    each adds a Fisher information of 1/4 about either annotator's bias.

    .. math:: n = \frac{m}{2} \cdot \frac{4 (1.96 / h)^2}{2 r (1 - r)}

    Examples
    --------
    >>> overlap_needed(0.5, 40, 0.5)
    2459
    """
    disagree = max(2 * rate * (1 - rate), 1e-3)
    return int(np.ceil(n_annotators / 2 * 4 * (float(ndtri(0.975)) / half_width) ** 2 / disagree))


def _remove_refused(biases: BiasEstimates, refused: Bools) -> BiasEstimates:
    """Return the biases, with NaN for attributes on which the audit does not compare annotators."""
    return replace(
        biases,
        deviation=np.where(refused, np.nan, biases.deviation),
        se=np.where(refused, np.nan, biases.se),
        finite_deviation=np.where(refused, np.nan, biases.finite_deviation),
        finite_se=np.where(refused, np.nan, biases.finite_se),
        origin=np.where(refused, np.nan, biases.origin),
    )


def _test_residuals(score: Floats, chosen: Bools, annotator: Ints, prompt: Ints) -> float:
    """P-value of the hypothesis that the annotator does not affect the residuals of the votes.

    Votes on the same prompt may be dependent, so the test permutes sums of residuals per annotator and prompt.
    """
    pairs = np.column_stack([annotator, prompt])[chosen]
    units, number = np.unique(pairs, axis=0, return_inverse=True)
    sums = summed(number.reshape(-1), score[chosen, None], len(units))
    return float(exchange_test(sums, units[:, 0]).p_value[0])


# -- content of comparisons ------------------------------------------------------------------------------------


def check_assignment(
    judgments: Judgments, annotator: Ints, delta: Floats, names: Sequence[str], written: sparse.csr_array
) -> AssignmentRow:
    """Use all covariates in the table to test whether comparisons were assigned to annotators at random.

    The covariates are attribute differences, text lengths, words that some prompts share, columns with few categories,
    and the models that wrote the responses.
    """
    comparison = judgments.votes["comparison"].to_numpy()
    lengths, longer = _lengths(judgments)
    content = _words(judgments)
    table = judgments.comparisons
    known = {"comparison_id", "prompt_id", "prompt", "response_a", "response_b", *MODELS}
    of_sides = chain(*side_pairs(table).items(), *(one.columns or () for one in judgments.attributes))
    for name in table.columns.difference([*known, *of_sides]):
        column = table[name].astype(str)
        levels = column.value_counts().index
        if len(levels) <= MOST_CATEGORIES:
            content += [(f"column {name}: {level}", (column == level).to_numpy()) for level in levels]
    content += [
        (f"models: {name}", column != 0) for name, column in zip(names, written.toarray().T, strict=True)
    ]
    content = [(name, values) for name, values in content if RARE <= np.mean(values) <= COMMON]
    columns = [(name, values[comparison]) for name, values in (*content, *lengths)]
    of_texts = [one.name for one in judgments.attributes if one.scope != "judgment"]
    for name, side in zip(of_texts, delta.T, strict=True):
        columns.append((f"the difference in {name}", np.abs(side)))
        columns.append((f"the length of the side with more {name}", np.sign(side) * longer[comparison]))
    values = np.column_stack([np.asarray(column, float) for _, column in columns])
    prompt = judgments.prompt_of_votes()
    units, first = np.unique(np.column_stack([annotator, prompt]), axis=0, return_index=True)
    test = exchange_test(values[first], units[:, 0])
    p_values = np.where(np.isnan(test.p_value), 1.0, test.p_value)
    worst, n = int(p_values.argmin()), int(np.isfinite(test.p_value).sum())
    p_value, reason = min(float(p_values[worst]) * n, 1.0), ""
    if p_value < LEVEL:
        # The report does not quote words or categories, because text from the table may be confidential.
        reason = REJECTED.format(columns[worst][0].partition(":")[0], format_p_value(p_value))
    elif not content:
        reason = UNTESTABLE
    elif test.smallest > RELEVANT:
        reason = WEAK.format(test.smallest)
    return {
        "p_value": p_value,
        "covariate": columns[worst][0],
        "smallest": test.smallest,
        "power": test.power,
        "reason": reason,
    }


def _lengths(judgments: Judgments) -> tuple[list[tuple[str, Floats]], Floats]:
    """Ranks of the prompt and response lengths, and signed ranks of the length differences between the responses."""
    columns = "prompt", "response_a", "response_b"
    numbers, texts = numbered_texts(judgments.comparisons, columns)
    size = np.array([len(text) for text in texts], float)[numbers]
    longer = size[1] - size[2]
    ranked = [("the length of the prompt", size[0]), ("the length of the responses", size[1] + size[2])]
    signed = np.sign(longer) * pd.Series(np.abs(longer)).rank(pct=True).to_numpy()
    return [(name, pd.Series(values).rank(pct=True).to_numpy()) for name, values in ranked], signed


def _words(judgments: Judgments) -> list[tuple[str, Bools]]:
    """Words that only some prompts contain; words that occur in about half of the prompts come first."""
    prompts = judgments.comparisons["prompt"]
    number, distinct = pd.factorize(
        prompts.map(lambda text: text if isinstance(text, str) else plain_text(text))
    )
    sets = [set(re.findall(r"[^\W\d_]{2,}", text.lower())[:WORDS_READ]) for text in distinct]
    weight = np.bincount(number, minlength=len(sets))
    counts: Counter[str] = Counter()
    for words, n in zip(sets, weight.tolist(), strict=True):
        counts.update(dict.fromkeys(words, n))
    evenly = sorted(counts, key=lambda word: (abs(counts[word] / len(number) - 0.5), word))
    return [
        (f"words in prompts: {word}", np.array([word in words for words in sets])[number])
        for word in evenly[:MOST_WORDS]
    ]


def _find_writers(judgments: Judgments) -> tuple[list[str], sparse.csr_array]:
    """Names of the models that wrote responses, and a matrix with +1 for the model of response a and -1 for that of b.

    The matrix has a column for each model that wrote responses in at least 5 % of the comparisons. If the table does
    not name models, the matrix has no columns.
    """
    n, table = judgments.n_comparisons, judgments.comparisons
    if not {*MODELS} <= {*table}:
        return [], sparse.csr_array((n, 0))
    sides = table[[*MODELS]].astype(str)
    share = pd.concat([sides[name] for name in MODELS]).value_counts() / n
    names = [str(name) for name in share.index[share >= RARE]]
    codes = pd.Categorical(sides.to_numpy().ravel(), names).codes.reshape(n, 2)
    rows = [np.equal.outer(codes[:, side], np.arange(len(names))).astype(float) for side in (0, 1)]
    return names, sparse.csr_array(rows[0] - rows[1])


def _estimate_reliability_from_models(
    votes: Votes, strength: Floats, clusters: Ints | None
) -> Reliability | None:
    """Estimate reliability from the slope of each annotator's votes on model strengths; None if impossible."""
    if not strength.any():
        return None
    columns = np.column_stack([votes.delta, strength[votes.comparison]])
    none = np.zeros(len(strength))
    slopes = fit_marginal(votes._replace(delta=columns), none, absolute=True, clusters=clusters)
    mean, slope, se = slopes.shared_bias[-1], slopes.finite_deviation[:, -1], slopes.finite_se[:, -1]
    shrunken = shrink_normal(slope / mean, se / abs(mean))
    n_votes = np.where(np.isfinite(slope), slopes.n_informative[:, -1], 0)
    if not mean > LEAST_SLOPE * slopes.shared_bias_se[-1] or np.isnan(shrunken.tau):
        return None
    return Reliability(**vars(shrunken.posterior), between_sd=shrunken.tau, unknown="", n_votes=n_votes)
