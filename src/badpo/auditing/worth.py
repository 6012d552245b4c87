"""What the leans are worth: which labels would be otherwise without them, drift, what to reread, telling pairs."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import expit, log_expit

from badpo.auditing.people import Design
from badpo.auditing.pool import interval_row, log_odds_row, voters
from badpo.data.attributes import BUILT_IN, Attribute
from badpo.data.files import Json
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, Problem, counted, listed
from badpo.data.tables import numbered_texts
from badpo.estimation.fit import Leans, fit_conditional
from badpo.estimation.pool import carrier_sides, joint_log_odds, offline_log_odds
from badpo.estimation.shrinkage import Shrunk, shrink_normal
from badpo.results.words import shown

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


def majority_flips(comparison: ArrayLike, sign: ArrayLike, shift: ArrayLike) -> tuple[int, int]:
    r"""How many majorities turn when leans are taken out, and how many votes for those majorities there are.

    With equally good sides vote j goes to a with probability :math:`\sigma(x_j)`, where :math:`x_j = e_k \cdot d_j`, so

    .. math:: \sum_{j \in c} \bigl([s_j = 1] - \sigma(x_j)\bigr)

    has the sign of the likeliest quality, and with x = 0 that of the majority. A tie has no majority to turn. All
    three arrays are of shape (n_votes,); ``sign`` is +1 for a and -1 for b.

    Examples
    --------
    Two who lean toward a by two log-odds do not outvote one who leans nowhere:

    >>> majority_flips([0, 0, 0], [1, 1, -1], [2.0, 2.0, 0.0])
    (1, 2)
    """
    comparison, sign = np.asarray(comparison), np.asarray(sign)
    plain = np.bincount(comparison, sign)
    turned = plain * np.bincount(comparison, (sign > 0) - expit(shift)) < 0
    votes = turned[comparison] & (sign * plain[comparison] > 0)
    return int(turned.sum()), int(votes.sum())


def flips_without_leans(design: Design, leans: Leans, spreads: Sequence[Shrunk]) -> list[Json]:
    """The part ``flips`` of audit.json: what turns without the leans on each attribute, and on all (None).

    ``labels`` and ``pairs`` hold the expected count and its 95 % interval over draws from the posterior, None where
    nothing is known of the spread; ``n_contested`` comparisons differ in the attribute and have a minority.
    """
    random = np.random.default_rng(SEED)
    known = [j for j, one in enumerate(spreads) if np.isfinite(one.tau)]
    drawn = np.zeros((DRAWS, *leans.deviation.shape))
    for j in known:
        drawn[:, :, j] = spreads[j].posterior.draws(DRAWS, random)
    drawn[:, leans.status == "anchored"] = 0.0
    share = pd.Series(design.sign > 0).groupby(design.comparison).transform("mean")
    is_contested = ~share.isin([0.0, 0.5, 1.0])
    all_known = [(None, known)] * (len(known) > 1)
    groups = [(name, [j]) for j, name in enumerate(design.attributes)] + all_known
    rows = []
    for name, group in groups:
        differing = design.comparison[design.delta[:, group].any(axis=1)]
        used = np.flatnonzero(np.isin(design.comparison, differing) & is_contested)
        comparison = np.unique(design.comparison[used], return_inverse=True)[1]
        row = {
            "attribute": name,
            "n_contested": len(set(comparison)),
            "labels": None,
            "pairs": None,
        }
        if group[0] in known:
            cells = design.annotator[used, None], group
            delta = design.delta[used[:, None], group]
            shifts = ((one[cells] * delta).sum(axis=1) for one in drawn)
            counts = [majority_flips(comparison, design.sign[used], shift) for shift in shifts]
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
    before = times[np.argsort(row)].ffill().shift().reindex(times.index)
    unread, early = (
        times.isna() & written.notna(),
        "nothing, where the table was sorted by something else",
    )
    shown = (
        f'with times that cannot be read, such as "{written[unread].iloc[0]}"' if unread.any() else ""
    )
    kinds = (
        ("E156", unread, shown, WRITE_TIMES),
        ("N417", written.isna(), "without a time, of which no drift is told", WRITE_TIMES),
        (
            "N418",
            times < before,
            "with times before that of a row above; drift goes by the times",
            early,
        ),
    )
    found = []
    for code, of, told, remedy in kinds:
        if of.any():
            what = f"{counted(int(of.sum()), 'row')} {told}"
            where = f'column "{name}", rows {listed(sorted(row[of] + 1))}'
            found.append(Problem(code, what, where, remedy))
    return times, found


def drift(judgments: Judgments, design: Design, times: pd.Series, least: int) -> list[Json]:
    """The part ``drift`` of audit.json: for each attribute log-odds by window of time, and how leans change.

    ``change`` is of the pool, from the first to the last window on a line; ``own_tau`` the spread of annotators' own
    changes from the first half to the second, of those with ``least`` informative votes in each. Nothing where all
    have one time.
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
            shown = log_odds_row(found, int(of.sum())) | voters(judgments, of, delta[:, j])
            windows.append({"name": first[:10], **shown})
        row = {
            "attribute": name,
            "windows": windows,
            **voters(judgments, known[who, j], delta[:, j]),
        }
        own_tau = {"own_tau": own.tau, "own_tau_ci": [own.tau_low, own.tau_high]}
        rows.append(row | {"change": interval_row(slope)} | own_tau)
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

    The pair is one whose votes went the way of the pool, if there is any: first without a difference in the other
    attributes, then short, then by how many more votes went that way than the other. ``carries`` is whether the chosen
    answer has more of the attribute; of the ``n_votes`` whose sides differ ``n_chosen`` went the pool's way.
    """
    sign, n = judgments.votes["sign"].to_numpy(), judgments.n_comparisons
    comparison = judgments.votes["comparison"].to_numpy()
    side = carrier_sides(judgments.delta, judgments.cross_group())
    numbers, texts = numbered_texts(judgments.comparisons, TEXTS)
    letters = np.array([len(text) for text in texts])[numbers[1:]].sum(axis=0)
    size = np.digitize(letters, LONG_PAIRS, right=True) + 3 * (letters < SHORTEST_PAIR)
    n_differ = np.stack([np.bincount(comparison, each, n) for each in np.abs(side).T], axis=1)
    rows = []
    for j, name in enumerate(judgments.attribute_names):
        toward = sign * side[:, j]
        way = 1 if toward.sum() >= 0 else -1
        ahead = way * np.bincount(comparison, toward, n)
        others = (np.delete(n_differ, j, axis=1) > 0).sum(axis=1)
        order = np.lexsort((letters, -ahead, size, others, ahead <= 0))
        if not (ahead > 0).any():
            continue
        best = order[0]
        won = sign[(comparison == best) & (toward == way)].sum() >= 0
        mark = _mark(judgments.attributes[j])
        prompt, a, b = (_few_words(texts[i], mark) for i in numbers[:, best])
        n_votes = int(n_differ[best, j])
        row = {"attribute": name, "prompt": prompt, "carries": way > 0, "n_votes": n_votes}
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
