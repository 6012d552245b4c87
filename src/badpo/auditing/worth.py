"""What the leans are worth: which labels would be otherwise without them, drift, what to reread, telling pairs."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from scipy.special import log_expit

from badpo.auditing.people import Design, spread_row
from badpo.auditing.pool import interval_row, log_odds_row, voters, without_wide
from badpo.data.attributes import BUILT_IN, Attribute
from badpo.data.files import Json
from badpo.data.judgments import Judgments, numbered_texts
from badpo.data.privacy import FEWEST_ANNOTATORS
from badpo.data.problems import ConfigError, Problem, counted, listed
from badpo.estimation.alternative_estimators import fit_quality_prior
from badpo.estimation.fit import Leans, fit_conditional
from badpo.estimation.pool import carrier_sides, joint_log_odds, offline_log_odds, summed
from badpo.estimation.shrinkage import Shrunk, shrink_normal
from badpo.results.words import shown
from badpo.theory import Floats, Ints

DRAWS, SEED = 100, 0
TIMES = ("time", "timestamp", "created_at")
FEWEST_WINDOWS, MOST_WINDOWS, WINDOW_SIZE = 4, 8, 250
MOST_REREAD = 20
WRITE_TIMES = (
    "name the column that says when a vote was cast, with times such as 2026-03-01T12:30, or numbers"
)
REREAD = ["annotator", "about", "log_likelihood_ratio"]
TEXTS = ("prompt", "response_a", "response_b")
FIRST_WORDS, LAST_WORDS, LONGEST_TEXT = 18, 5, 200
# An answer of fewer letters says little; pairs of more than so many are long, and very long.
SHORTEST_PAIR, LONG_PAIRS = 60, (400, 1500)


def draw_turned(
    comparison: Ints, sign: Ints, logit: Floats, shift: Floats, random: np.random.Generator
) -> tuple[int, int]:
    r"""Number of majorities that turn when ``shift`` is taken out of the votes' logits, in one draw of their noise.

    Vote j went to the side :math:`s_j` because :math:`s_j (\ell_j + \varepsilon_j) > 0` with logistic noise. With the
    same noise the vote stays as it is with probability

    .. math:: P(s_j (\ell_j - x_j + \varepsilon_j) > 0 \mid s_j (\ell_j + \varepsilon_j) > 0)
        = \min\Bigl(1, \frac{\sigma(s_j (\ell_j - x_j))}{\sigma(s_j \ell_j)}\Bigr)

    All arrays are of shape (n_votes,): ``sign`` is +1 for a and -1 for b; ``logit`` :math:`\ell` and ``shift`` x are
    in log-odds of a. A tied comparison has no majority, and a majority that becomes a tie does not turn. Returns the
    number of majorities that turn, and of the votes for them.

    Examples
    --------
    Two votes for a that come from a bias alone, against one vote for b:

    >>> votes = np.array([0, 0, 0]), np.array([1, 1, -1]), np.array([-9.0, -9.0, -9.0])
    >>> draw_turned(*votes, np.array([9.0, 9.0, 0.0]), np.random.default_rng(0))
    (1, 2)
    """
    stays = np.exp(log_expit(sign * (logit - shift)) - log_expit(sign * logit))
    without = np.where(random.random(len(sign)) < stays, sign, -sign)
    majority = np.bincount(comparison, sign)
    turned = majority * np.bincount(comparison, without) < 0
    votes = turned[comparison] & (sign * majority[comparison] > 0)
    return int(turned.sum()), int(votes.sum())


def flips_without_leans(design: Design, leans: Leans, spreads: Sequence[Shrunk]) -> list[Json]:
    """The part ``flips`` of audit.json: what turns without the biases on each attribute, and on all (None).

    ``labels`` and ``pairs`` hold the mean and the 95 % interval of draws of the biases, of each comparison's quality
    and of the noise of each vote, given the votes; None if nothing is known of the spread. ``n_contested`` comparisons
    differ in the attribute and have a minority.
    """
    random = np.random.default_rng(SEED)
    known = [j for j, one in enumerate(spreads) if np.isfinite(one.tau)]
    drawn, mean = np.zeros((DRAWS, *leans.deviation.shape)), np.zeros(leans.deviation.shape)
    for j in known:
        drawn[:, :, j], mean[:, j] = spreads[j].posterior.draws(DRAWS, random), spreads[j].posterior.mean
    is_anchored = leans.status == "anchored"
    drawn[:, is_anchored] = mean[is_anchored] = 0.0
    comparison, sign, who, delta = design.comparison, design.sign, design.annotator, design.delta
    n_votes = np.maximum(np.bincount(comparison), 1)
    differing = summed(comparison, delta, len(n_votes)) / n_votes[:, None]
    if known:
        believed = (mean[who] * delta).sum(axis=1)
        prior = fit_quality_prior(comparison, sign, believed, differing)
    share = pd.Series(sign > 0).groupby(comparison).transform("mean")
    is_contested = ~share.isin([0.0, 0.5, 1.0]).to_numpy()
    all_known = [(None, known)] * (len(known) > 1)
    groups = [(name, [j]) for j, name in enumerate(design.attributes)] + all_known
    rows = []
    for name, group in groups:
        is_differing = np.isin(comparison, comparison[delta[:, group].any(axis=1)])
        used = np.flatnonzero(is_differing & is_contested)
        contested, of = np.unique(comparison[used], return_inverse=True)
        row = {"attribute": name, "n_contested": len(contested), "labels": None, "pairs": None}
        if group[0] in known:
            counts = []
            for one in drawn:
                each = one[who[used]] * delta[used]
                votes = of, sign[used], each.sum(axis=1)
                value, weight = prior.posterior(*votes, differing[contested])
                above = random.random((len(contested), 1)) > weight.cumsum(axis=1)
                node = np.minimum(above.sum(axis=1), value.shape[1] - 1)
                logit = value[np.arange(len(contested)), node][of] + votes[2]
                counts.append(draw_turned(*votes[:2], logit, each[:, group].sum(axis=1), random))
            found = [np.mean(counts, axis=0), *np.quantile(counts, [0.025, 0.975], axis=0)]
            row["labels"], row["pairs"] = np.round(found).astype(int).T
        rows.append(row)
    return rows


# -- drift -----------------------------------------------------------------------------------------------------


def times_of(judgments: Judgments, column: str | None) -> tuple[pd.Series | None, list[Problem]]:
    """When each vote was cast, by ``column`` or one of ``TIMES`` that goes along, and what is odd; None without one."""
    name = column or next((name for name in TIMES if name in judgments.votes), None)
    if name is None:
        return None, []
    if name not in judgments.votes:
        raise ConfigError(f'time: "{name}" does not go along; read the table with keep=["{name}"]')
    row, written = judgments.votes["row"], judgments.votes[name].astype("string")
    written = written.str.strip().replace("", None).astype(object)
    times = pd.to_numeric(written, errors="coerce").astype(float)
    if (times.isna() & written.notna()).any():
        times = pd.to_datetime(written, errors="coerce", utc=True, format="ISO8601")
    unread = times.isna() & written.notna()
    kinds = (
        ("E156", unread, "with times that cannot be read", WRITE_TIMES),
        ("N417", written.isna(), "without a time, of which no drift is told", WRITE_TIMES),
    )
    found = []
    for code, of, told, remedy in kinds:
        if of.any():
            what = f"{counted(int(of.sum()), 'row')} {told}"
            where = f'column "{name}", rows {listed(sorted(row[of] + 1))}'
            found.append(Problem(code, what, where, remedy))
    return times, found


def drift(judgments: Judgments, design: Design, times: pd.Series, least: int) -> list[Json]:
    """The part ``drift`` of audit.json: for each attribute log-odds by window of time, and how biases change.

    ``change`` is of the pool, from the first to the last window on a line; ``own_tau`` is the standard deviation of the
    annotators' own changes from the first half to the second, among annotators with ``least`` informative votes in each
    half. The list is empty if all votes have the same time.
    """
    before, n_timed = times.rank(method="min") - 1, max(int(times.count()), 1)
    n_windows = np.clip(n_timed // WINDOW_SIZE, FEWEST_WINDOWS, MOST_WINDOWS)
    window = pd.factorize(before * n_windows // n_timed, sort=True)[0]
    is_timed, last = window >= 0, int(window.max(initial=0))
    if not last:
        return []
    stratum, sign, who, delta, m = design.votes
    half, prompts = 2 * window > last, judgments.prompt_of_votes()
    strata, twice = (2 * stratum + half)[is_timed], (2 * who + half)[is_timed]
    halves = strata, sign[is_timed], twice, delta[is_timed]
    leans = fit_conditional(*halves, 2 * m, min_informative=least)
    status, lean, se = (
        each.reshape(m, 2, -1) for each in (leans.status, leans.finite_deviation, leans.se)
    )
    known = (status == "ok").all(axis=1)
    change = np.where(known, lean[:, 1] - lean[:, 0], np.nan)
    rows = []
    for j, name in enumerate(design.attributes):
        own = shrink_normal(change[:, j], np.hypot(se[:, 0, j], se[:, 1, j]))
        among = design.cross[:, j] & is_timed
        side = np.sign(delta[among, j])
        line = np.column_stack([side, side * window[among] / last])
        slope = joint_log_odds(line, sign[among], prompts[among])[1]
        windows = []
        for w in range(last + 1):
            of, first = among & (window == w), str(times[window == w].min())
            (found,) = offline_log_odds(sign[of], delta[of, j, None], among[of, None], prompts[of])
            shown = without_wide(log_odds_row(found, int(of.sum())))
            shown |= voters(judgments, of, delta[:, j])
            windows.append({"name": first[:10], **shown})
        row: Json = {"attribute": name, "windows": windows, "change": interval_row(slope)}
        row |= voters(judgments, known[who, j], delta[:, j])
        row |= {f"own_{key}": value for key, value in spread_row(own).items()}
        rows.append(row)
    return rows


# -- what to reread --------------------------------------------------------------------------------------------


def to_reread(judgments: Judgments, design: Design, table: pd.DataFrame) -> pd.DataFrame:
    r"""The votes that say most for each flag of a lean or of little care, with their texts: personal data.

    .. math:: \Lambda_j = \log \sigma\bigl(s_j (a_k \hat q_c + e_k d_j)\bigr) - \log \sigma(s_j \hat q_c)

    with care a = 1 for a lean e, and no lean for little care; quality is what the other votes make of it, half a vote
    added to either side.
    """
    comparison, sign = design.comparison, design.sign
    total, n = (np.bincount(comparison, each)[comparison] for each in (sign, None))
    quality = sign * 2 * np.arctanh((total - sign) / n)
    table = table.assign(about=table["attribute"])
    lean = table[table["flag"]].assign(care=1.0)
    care = table[table["flag_care"]].drop_duplicates("annotator")
    flags = pd.concat([lean, care.assign(about="care", shrunk=0.0)])
    rows, votes = [], [np.empty(0, dtype=int)]
    for flag in flags.to_dict("records"):
        cast = np.flatnonzero(design.annotators[design.annotator] == flag["annotator"])
        j = design.attributes.index(flag["attribute"])
        toward = sign[cast] * design.delta[cast, j]
        expected = log_expit(flag["care"] * quality[cast] + flag["shrunk"] * toward)
        gain = expected - log_expit(quality[cast])
        most = np.argsort(-gain)[: min(MOST_REREAD, (gain > 0).sum())]
        rows += [(flag["annotator"], flag["about"], ratio) for ratio in gain[most]]
        votes.append(cast[most])
    vote = np.concatenate(votes)
    of = judgments.comparisons.iloc[comparison[vote]]
    numbers, texts = numbered_texts(of, TEXTS)
    return pd.DataFrame(rows, columns=REREAD).assign(
        winner=np.where(sign[vote] > 0, "a", "b"),
        comparison_id=of["comparison_id"].to_numpy(),
        **dict(zip(TEXTS, texts[numbers], strict=True)),
    )


# -- telling pairs ---------------------------------------------------------------------------------------------


def telling_pairs(judgments: Judgments) -> list[Json]:
    """For each attribute the two answers that show its lean best, in a few words of each; nobody is named.

    The pair is one whose votes went the way of the pool, if there is any: first of five voters or more, then without a
    difference in the other attributes, then short, then by how many more votes went that way than the other.
    ``carries`` is whether the chosen answer has more of the attribute; of the ``n_votes`` whose sides differ
    ``n_chosen`` went the pool's way. Of the ``n_annotators`` who judged the pair ``n_people`` are no models.
    """
    sign, n = judgments.votes["sign"].to_numpy(), judgments.n_comparisons
    comparison = judgments.votes["comparison"].to_numpy()
    side = carrier_sides(judgments.delta, judgments.cross_group())
    numbers, texts = numbered_texts(judgments.comparisons, TEXTS)
    letters = np.array([len(text) for text in texts])[numbers[1:]].sum(axis=0)
    size = np.digitize(letters, LONG_PAIRS, right=True) + 3 * (letters < SHORTEST_PAIR)
    n_differ = np.stack([np.bincount(comparison, each, n) for each in np.abs(side).T], axis=1)
    voters = judgments.votes[["comparison", "annotator"]].drop_duplicates().to_numpy().T
    is_person = judgments.annotators["model"].isna().to_numpy()
    n_voters = np.bincount(voters[0], minlength=n)
    n_people = np.bincount(voters[0], is_person[voters[1]], n)
    is_few = n_voters < FEWEST_ANNOTATORS
    rows = []
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
        mark = _mark(judgments.attributes[j])
        prompt, a, b = (_few_words(texts[i], mark) for i in numbers[:, best])
        n_votes = int(n_differ[best, j])
        row = {"attribute": name, "prompt": prompt, "carries": way > 0, "n_votes": n_votes}
        row |= {"n_annotators": int(n_voters[best]), "n_people": int(n_people[best])}
        row["chosen"], row["other"] = (a, b) if won else (b, a)
        rows.append(row | {"n_chosen": int(n_votes + ahead[best]) // 2})
    return rows


def _mark(attribute: Attribute) -> Callable[[str], bool]:
    """Whether a part of a text has the attribute; no part has one that is not a mark in the text."""
    is_known, is_read = attribute.config.get("type") in BUILT_IN, attribute.columns is None
    is_mark = is_known and is_read and attribute.scope == "response" and not attribute.continuous
    return lambda part: bool(is_mark and attribute.measure("", part))


def _few_words(text: str, mark: Callable[[str], bool]) -> str:
    """The first words of a text and the last ones, or those around the mark that these lack, as they may be shown."""
    words = text.split(maxsplit=LONGEST_TEXT)
    if len(words) > FIRST_WORDS + LAST_WORDS:
        last = text[-LONGEST_TEXT:].split()[-LAST_WORDS:]
        words = [*words[:FIRST_WORDS], "\u2026", *last]
    told = " ".join(words)
    if mark(text) and not mark(told):
        lines = (line.split() for line in text.splitlines() if mark(line))
        parts = (
            line[i : i + FIRST_WORDS] for line in lines for i in range(0, len(line), FIRST_WORDS // 2)
        )
        around = (" ".join(part) for part in parts)
        told = next((f"\u2026 {part} \u2026" for part in around if mark(part)), told)
    return shown(told, LONGEST_TEXT)
