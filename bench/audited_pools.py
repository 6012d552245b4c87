"""The whole audit on pools with known biases, including pools that violate its assumptions: rows of one table."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from badpo.attributes import Column, Position
from badpo.auditing.audit import audit
from badpo.auditing.result import AuditResult
from badpo.data.judgments import Judgments
from badpo.data.privacy import pseudonym
from badpo.estimation.fit import fit_conditional
from badpo.estimation.reliability import estimate_class_merit
from badpo.estimation.significance import class_offsets
from badpo.results.audit_findings import reliability_sentence
from bench.simulated_pools import DrawnVotes, Pool, draw_votes, sized

Measured = dict[str, float]
Change = Callable[[pd.DataFrame], pd.DataFrame]
RHO, ENOUGH, ALPHA = 0.5, 10, 0.05

# -- the cells ------------------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """A pool, codes of messages that explain a missed goal, a change of the pool's table, and the required power."""

    pool: Any
    reasons: tuple[str, ...] = ()
    change: Change | None = None
    power: float = 0.0


def exported_twice(table: pd.DataFrame, ids: str) -> pd.DataFrame:
    """Repeat all votes with the sides exchanged; ``ids`` of the copies are the "same", their "own" or "none"."""
    exchanged = {f"{name}_{a}": f"{name}_{b}" for name in ("response", "x") for a, b in ("ab", "ba")}
    again = table.rename(columns=exchanged)
    again["winner"] = again["winner"].map({"a": "b", "b": "a"})
    if ids == "own":
        again["comparison_id"] += " again"
    both = pd.concat([table, again], ignore_index=True)
    return both.drop(columns="comparison_id") if ids == "none" else both


def rescaled(table: pd.DataFrame) -> pd.DataFrame:
    """Multiply the attribute by 100."""
    return table.assign(x_a=100 * table["x_a"], x_b=100 * table["x_b"])


def two_log_the_order(table: pd.DataFrame) -> pd.DataFrame:
    """Turn the attribute into the side shown first, which only the first two annotators recorded."""
    first = np.where(table["x_a"] > 0, "a", "b")
    return table.assign(shown_first=np.where(table["annotator"].isin(people(2)), first, None))


CONTROL = Pool(600, 30)


def cell(reasons: str = "", change: Change | None = None, power: float = 0.0, **changes: Any) -> Cell:
    """Make a cell of the control pool with changes."""
    return Cell(replace(CONTROL, **changes), tuple(reasons.split()), change, power)


CARE = "W410"
NOBODY_LEANS = {"mean": 0.0, "spread": 0.0, "better": 0.7}
TEAMS = {"mean": 0.0, "spread": 0.3, "teams": 1.0}
FAR = {"n_annotators": 40, "spread": 0.3, "planted": 2.5}
ONE_OF_24 = {"n_comparisons": sized(100, 4, 1.0, 24), "n_annotators": 24}
ADVERSARY = {"reasons": "W405", "power": 0.85, **ONE_OF_24}
SIZES = {
    "10 of 4": [4] * 10,
    "8 of 5": [5] * 8,
    "6 of 8": [8] * 6,
    "3 of 20": [20] * 3,
    "2 and 38": [2, 38],
}
CLASSES_30 = {**NOBODY_LEANS, "spread": 0.3, "classes": (15, 15)}
GOLD = {**NOBODY_LEANS, "n_comparisons": 1000, "n_annotators": 12}
CELLS = {
    "control": cell(),
    "6 of 30 click, nobody leans": cell(CARE, **NOBODY_LEANS, n_clickers=6),
    "6 of 30 click, 1,500 comparisons": cell(CARE, **NOBODY_LEANS, n_clickers=6, n_comparisons=1500),
    "6 of 30 click, leans of sd 0.5": cell(CARE, mean=0.0, better=0.7, n_clickers=6),
    "care of sd 0.4, nobody leans": cell(CARE, **NOBODY_LEANS, care_sd=0.4),
    "care of sd 0.4, 1,500 comparisons": cell(CARE, **NOBODY_LEANS, care_sd=0.4, n_comparisons=1500),
    "care of sd 0.4, leans of sd 0.5": cell(CARE, care_sd=0.4),
    "care and leans of sd 0.5, 1,500 comparisons": cell(
        "W410 N435", mean=0.0, better=1.0, care_sd=0.5, n_comparisons=1500
    ),
    "teams at +1 and -1, joined by one comparison": cell("W406", **TEAMS, n_joint=1),
    "teams at +1 and -1, apart": cell("W406", **TEAMS),
    "first side by 1.0, two of six log the order": cell(
        "W127", two_log_the_order, n_annotators=6, mean=1.0, spread=0.0, cross_share=1.0
    ),
    **{
        f"classes, {name}": cell(
            n_comparisons=12 * sum(sizes), n_annotators=sum(sizes), classes=tuple(sizes), cross_share=1.0
        )
        for name, sizes in SIZES.items()
    },
    **{
        f"classes, 15 of 30 with reliability {care:g}, {n:,} comparisons": cell(
            "W417", **CLASSES_30, class_care=care, n_comparisons=n
        )
        for care in (0.3, 0.5, 0.7, 1.0)
        for n in (600, 1500, 3000)
    },
    "classes, votes of Zipf's law": cell(
        n_comparisons=900, n_annotators=60, classes=(20, 20, 20), zipf=1.5
    ),
    "classes, votes of the square of Zipf's law": cell(
        n_comparisons=900, n_annotators=60, classes=(20, 20, 20), zipf=2.0
    ),
    "classes, one of 40 casts 60 % of the votes": cell(
        n_comparisons=1500, n_annotators=40, classes=(4,) * 10, busiest=0.6, cross_share=1.0
    ),
    "gold annotators 6 of 12, the others click": cell(CARE, **GOLD, n_gold=6, n_clickers=6),
    "gold annotators 6 of 12": cell(CARE, **GOLD | {"spread": 0.5, "mean": 0.8}, n_gold=6),
    "gold annotators 3 of 30, reliability 0.3": cell(
        CARE, mean=0.8, better=0.7, n_gold=3, gold_care=0.3, n_comparisons=1500
    ),
    "gold annotators 3 of 30, reliability 0": cell(
        CARE, mean=0.8, better=0.7, n_gold=3, gold_care=0.0, n_comparisons=1500
    ),
    "gold annotators 3 of 30, all sides differ": cell(
        CARE, mean=0.8, better=0.7, n_gold=3, gold_care=0.3, cross_share=1.0
    ),
    "tastes of sd 0.8 between 75 prompts": cell("N433", taste=0.8, per_prompt=8),
    "tastes of sd 0.8 between 150 prompts": cell("N433", taste=0.8, per_prompt=8, n_comparisons=1200),
    **{
        f"exported twice, ids: {ids}": cell("N132", partial(exported_twice, ids=ids))
        for ids in ("own", "same", "none")
    },
    "continuous": cell(continuous=True),
    "continuous, times 100": cell("", rescaled, continuous=True),
    "continuous, 3 % recorded 40 times as large": cell("W414", continuous=True, outliers=0.03),
    "6 of 40 at 2.5 more or less, sd 0.3": cell(**FAR, n_planted=6),
    "12 of 40 at 2.5 more or less, sd 0.3": cell(**FAR, n_planted=12),
    **{
        f"leans of sd 0.9 toward what goes with it{name}": cell(
            "W416", mean=0.0, spread=0.0, hidden=0.9, together=share
        )
        for name, share in (("", 0.7), (" (r = 0.8)", 0.83))
    },
    **{
        f"6 of 30 of another taste, {n:,} comparisons": cell(
            "W419 N435", n_comparisons=n, camps=(24, 6), quality_sd=1.5
        )
        for n in (600, 2000)
    },
    "two camps of 15": cell("W419", n_comparisons=1000, camps=(15, 15), quality_sd=2.0),
    "three families of 4 judges, all on 400 comparisons": cell(
        "W419",
        n_comparisons=400,
        n_annotators=12,
        votes_each=12,
        camps=(4, 4, 4),
        agreement=0.5,
        quality_sd=2.0,
    ),
    "leans of sd 0.9, something goes with it (r = 0.8)": cell(
        mean=0.0, spread=0.9, hidden=1e-9, together=0.83
    ),
    "one of 24 votes against the attribute": cell(**ADVERSARY, adversary=-1),
    "one of 24 votes against it but for a tenth": cell(**ADVERSARY, adversary=-1, errors=0.1),
    "one of 24 votes for the attribute": cell(**ADVERSARY, adversary=1),
    "one of 24 votes for it but for a tenth": cell(**ADVERSARY, adversary=1, errors=0.1),
    **{
        f"50 informative votes of one of 24 {way} it, blind to quality": cell(
            power=0.75,
            n_comparisons=800,
            n_annotators=24,
            mean=0.0,
            better=0.7,
            adversary=sign,
            errors=0.1,
            blind=True,
        )
        for way, sign in (("against", -1), ("for", 1))
    },
    "3 of 30 at 3.0 more": cell(power=0.85, n_planted=3, planted=3.0, one_way=True),
    "one of 24 at 1.0 more or less": cell(power=0.6, **ONE_OF_24, n_planted=1),
    "longer is better, specialists": cell(better=0.7, specialists=True),
    "two votes each": cell("W404", n_comparisons=1200, votes_each=2),
    **{
        f"{votes} votes on each, quality of sd {sd:g}": cell(
            n_comparisons=sized(50, votes, sd, 30), votes_each=votes, quality_sd=sd
        )
        for votes, sd in ((2, 0.5), (3, 1.0), (4, 2.0), (6, 1.0), (8, 0.5))
    },
    **{
        f"{n} informative votes for each of {m}": cell(
            "W404", n_comparisons=sized(n, 4, 1.0, m), n_annotators=m
        )
        for n, m in ((4, 300), (12, 60), (40, 12))
    },
    "leans of Student's t, 2 degrees": cell(heavy=True),
    "nearly all for the attribute": cell("W404", mean=3.0),
}

# -- the audit of a pool --------------------------------------------------------------------------------------


def build_table(votes: DrawnVotes, pool: Pool) -> pd.DataFrame:
    """Build a table of judgments; the hidden feature is an emoji."""
    emoji = [np.where(side * votes.feature > 0, " \N{GRINNING FACE}", "") for side in (1, -1)]
    number, amount = votes.comparison, votes.recorded[votes.comparison]
    name = number.astype(str)
    if not pool.hidden:
        emoji = [np.full_like(texts, "") for texts in emoji]
    table = {
        "comparison_id": name,
        "prompt": (number // pool.per_prompt).astype(str),
        "response_a": np.char.add(np.char.add("yes ", name), emoji[0][number]),
        "response_b": np.char.add(np.char.add("no ", name), emoji[1][number]),
        "winner": np.where(votes.sign > 0, "a", "b"),
        "annotator": people(pool.n_annotators)[votes.annotator],
        "x_a": np.maximum(amount, 0),
        "x_b": np.maximum(-amount, 0),
    }
    if pool.classes:
        class_of = np.repeat(np.arange(len(pool.classes)), pool.classes)
        table["annotator_class"] = np.char.add("class ", class_of[votes.annotator].astype(str))
    return pd.DataFrame(table)


@cache
def people(n: int) -> NDArray:
    """Return pseudonyms that do not depend on the key of a machine."""
    return np.array([pseudonym(f"person {k}", b"the key of all simulated pools") for k in range(n)])


def to_judgments(table: pd.DataFrame) -> Judgments:
    """Convert a simulated table of votes without ties, which takes a third of the time of reading the table."""
    number, _ = pd.factorize(table["comparison_id"])
    annotator, pseudonyms = pd.factorize(table["annotator"])
    # columns of the votes must not describe the comparisons
    described = table.drop(
        columns=["winner", "annotator", "annotator_class", "shown_first"], errors="ignore"
    )
    firsts = described[~described["comparison_id"].duplicated()]
    comparisons = firsts.reset_index(drop=True).astype({"prompt": object})
    nothing = np.full(len(table), None, dtype=object)
    shown_first = table["shown_first"].to_numpy(object) if "shown_first" in table else nothing
    classes = table["annotator_class"].to_numpy(object) if "annotator_class" in table else nothing
    votes = pd.DataFrame(
        {
            "comparison": number,
            "sign": np.where(table["winner"] == "a", 1, -1),
            "annotator": annotator,
            "weight": 1.0,
            "row": np.arange(len(table)),
            "shown_first": shown_first,
        }
    )
    is_first = ~table["annotator"].duplicated().to_numpy()
    annotators = {
        "pseudonym": pseudonyms.to_numpy(object),
        "annotator_class": classes[is_first],
        "model": nothing[is_first],
    }
    return Judgments(
        comparisons=comparisons.assign(prompt_id=comparisons["prompt"]),
        votes=votes,
        annotators=pd.DataFrame(annotators, dtype=object),
        attributes=(),
        delta=np.empty(0),
        missing=np.empty(0, dtype=bool),
        dropped=pd.DataFrame({"reason": [], "annotator": [], "n": []}).astype({"n": int}),
        findings=(),
        has_identities=True,
    )


def run_audit(data: pd.DataFrame | Judgments, pool: Pool) -> AuditResult:
    """Audit votes, with the position as the attribute if the table has it."""
    attribute = Column("x", a="x_a", b="x_b", continuous=pool.continuous)
    anchors = people(pool.n_annotators)[: pool.n_gold].tolist()
    return audit(
        data,
        [Position("x") if isinstance(data, pd.DataFrame) and "shown_first" in data else attribute],
        anchors=anchors,
    )


def measure_audit(pool: Pool, random: np.random.Generator, change: Change | None = None) -> Measured:
    """Compare the audit of one pool with the truth, and list the codes on its page."""
    votes = draw_votes(pool, random)
    table = build_table(votes, pool)
    audited_table = change(table) if change else table
    result = run_audit(audited_table if change else to_judgments(table), pool)
    whole, rows = result.summary["pool"]["x"], result.annotators.set_index("annotator")
    # an annotator without votes has no flag
    flags = rows[["flag", "flag_reliability"]]
    rows = rows.reindex(people(pool.n_annotators)).assign(
        **{
            name: flag.reindex(people(pool.n_annotators), fill_value=False)
            for name, flag in flags.items()
        }
    )
    figures = compare_with_truth(pool, whole, rows, true_deviations(votes, pool, rows))
    low, high = whole["shared_bias_ci"] or (-np.inf, np.inf)
    if "shown_first" in audited_table:
        figures = {"level": float(low <= pool.mean <= high)}
    elif pool.n_gold:
        figures["level"] = float(low <= votes.deviation[pool.n_gold :].mean() <= high)
    elif change:
        before = run_audit(table, pool).annotators.set_index("annotator")
        figures["same"] = float((before["flag"] == rows["flag"].reindex(before.index)).all())
    if np.ptp(votes.care):
        figures |= measure_reliability(votes, rows)
    if pool.camps:
        figures["called_unreliable"] = float(rows["flag_reliability"].any())
        if rows["flag_reliability"].any():
            figures["taste_said"] = float("another taste" in reliability_sentence(result.summary))
    if pool.classes:
        figures |= class_tests(pool, random)
    return figures | {warning["code"]: 1.0 for warning in result.summary["warnings"]}


def residuals_from_line(votes: DrawnVotes) -> NDArray:
    """Compute the deviations of the true biases from their least-squares line in true reliability."""
    line = np.column_stack([np.ones_like(votes.care), votes.care])
    return votes.deviation - line @ np.linalg.lstsq(line, votes.deviation, rcond=None)[0]


def true_deviations(votes: DrawnVotes, pool: Pool, rows: pd.DataFrame) -> NDArray:
    """Compute the true deviations per unit, from the line in reliability or from the mean of the group."""
    truth = votes.deviation
    if pool.n_gold:
        return np.where(np.arange(len(truth)) < pool.n_gold, np.nan, truth)
    if np.ptp(votes.care):
        return residuals_from_line(votes)
    known = pd.Series(np.where(np.isfinite(truth), truth, np.nan))
    means = known.groupby(rows["component"].to_numpy()).transform("mean").to_numpy()
    adversaries = ~np.isfinite(truth)
    recorded = np.abs(votes.recorded[votes.comparison])
    unit = np.median(recorded[recorded > 0]) if pool.continuous else 1.0
    return np.where(adversaries, truth, truth - (0.0 if adversaries.any() else means)) * unit


def true_spread(pool: Pool, truth: NDArray) -> float:
    """Compute the standard deviation of true deviations; NaN if tau is not defined or is another quantity."""
    if pool.heavy or pool.adversary or pool.class_gap or pool.class_care != 1:
        return np.nan
    if pool.n_gold:
        return float(np.nanstd(truth, ddof=1))
    if pool.care_sd or pool.n_clickers:
        return float(np.sqrt((truth**2).sum() / (len(truth) - 2)))
    share = pool.n_planted / pool.n_annotators
    return float(np.sqrt((1 - share) * pool.spread**2 + share * pool.planted**2))


def compare_with_truth(
    pool: Pool, whole: dict[str, Any], rows: pd.DataFrame, truth: NDArray
) -> Measured:
    """Measure the coverage of intervals, the share of wrong flags, and the share of detected annotators."""

    def covers(low: str, high: str, among: pd.Series) -> float:
        inside = (rows[low] <= truth) & (truth <= rows[high])
        return float(inside[among].mean())

    finite, deviation = np.isfinite(truth), rows["deviation"].to_numpy()
    sure = finite & (rows["n_informative"] >= ENOUGH) & np.isfinite(deviation)
    large = np.abs(truth) > RHO
    flag = rows["flag"].to_numpy(dtype=bool)
    n_planted = pool.n_planted + abs(pool.adversary)
    wanted = np.arange(len(truth)) < n_planted if n_planted else large
    low, high = whole["tau_ci"]
    spread = true_spread(pool, truth)
    holds = low is not None and low <= spread <= (np.inf if high is None else high)
    known = finite & np.isfinite(deviation)
    along = truth[known] @ truth[known]
    equal = whole["equal_biases_p"]
    return {
        "slope": float(deviation[known] @ truth[known] / along) if along > 1e-9 else np.nan,
        "coverage": covers("ci_low", "ci_high", sure),
        "posterior_coverage": covers("post_low", "post_high", finite & rows["post_low"].notna()),
        "tau_coverage": np.nan if low is None or np.isnan(spread) else float(holds),
        "equal": np.nan if equal is None else float(equal < ALPHA),
        "false": float((flag & ~large).sum() / max(flag.sum(), 1)),
        "found": float(flag[wanted].mean()) if wanted.any() else np.nan,
    }


def measure_reliability(votes: DrawnVotes, rows: pd.DataFrame) -> Measured:
    """Measure the coverage of reliability, and the flags for annotators with less than half the mean reliability."""
    care, flag = votes.care / votes.care.mean(), rows["flag_reliability"].to_numpy(dtype=bool)
    inside = ((rows["reliability_low"] <= care) & (care <= rows["reliability_high"]))[
        rows["reliability_low"].notna()
    ]
    little = care < 0.5
    return {
        "care_coverage": float(inside.mean()),
        "care_false": float((flag & ~little).sum() / max(flag.sum(), 1)),
        "care_found": float(flag[little].mean()) if little.any() else np.nan,
    }


def class_tests(pool: Pool, random: np.random.Generator) -> Measured:
    """Test the classes of a further pool with equal classes, and of one whose first class has a larger bias by 1.0.

    Further figures are whether the test rejects if it assumes equally reliable classes, and, if it rejects, whether the
    audit names reliability as a possible reason.
    """
    class_of = np.repeat(np.arange(len(pool.classes)), pool.classes)

    def compute_p_values(one: Pool) -> tuple[float, float, bool]:
        votes = draw_votes(one, random).arrays
        biases = fit_conditional(votes)
        classes = class_of[votes.annotator]
        merit = estimate_class_merit(votes._replace(annotator=classes, n_annotators=len(pool.classes)))
        p_value, if_equal = (class_offsets(biases, class_of, each).p_value[0] for each in (merit, None))
        return p_value, if_equal, bool(merit.unknown)

    p_value, if_equal, is_unknown = compute_p_values(pool)
    is_named = is_unknown or p_value >= ALPHA
    return {
        "class_rejects": float(p_value < ALPHA),
        "class_if_equal": float(if_equal < ALPHA),
        "class_named": float(is_named) if if_equal < ALPHA else np.nan,
        "class_power": float(compute_p_values(replace(pool, class_gap=1.0))[0] < ALPHA),
    }


# -- the goals ------------------------------------------------------------------------------------------------

# Lower and upper limit of each figure; a figure may miss its limits by two Monte Carlo errors, except "same".
INTERVALS = (
    *("coverage", "posterior_coverage", "tau_coverage", "care_coverage", "level"),
    *("impact", "population", "sum_coverage", "pooled_coverage"),
)
GOALS = {
    **dict.fromkeys(INTERVALS, (0.93, 1.0)),
    **dict.fromkeys(("false", "care_false"), (0.0, 0.12)),
    "class_rejects": (0.0, 0.06),
    "taste_said": (0.8, 1.0),
    "same": (1.0, 1.0),
}
# Least share of a row's pools with the message that explains a missed goal, and largest share of control pools.
EXPLAINED, NEEDLESS = 0.8, 0.05


def list_goals(cell: Cell) -> dict[str, tuple[float, float]]:
    """List the goals of a cell's figures; the test of equal biases has a goal only if no annotator deviates."""
    pool = cell.pool
    deviating = ("spread", "hidden", "n_planted", "n_clickers", "teams")
    goals = GOALS | {"found": (cell.power, 1.0)}
    return goals if any(getattr(pool, name, 0) for name in deviating) else goals | {"equal": (0.0, 0.06)}


def find_misses(row: dict[str, Any], goals: dict[str, tuple[float, float]]) -> list[str]:
    """Find the figures of a row that miss their goals by more than their Monte Carlo error."""
    missed = []
    for figure in goals.keys() & row.keys():
        low, high = goals[figure]
        mean = row[figure]["mean"]
        error = 0.0 if low == high else row[figure]["high"] - mean
        if max(low - mean, mean - high) > error + 1e-9:
            missed.append(figure)
    return missed


def explain_misses(row: dict[str, Any], control: dict[str, Any] | None, codes: Sequence[str]) -> str:
    """Name the most frequent code that explains a miss, with its share of the row's pools and of the control pools."""
    if not codes:
        return "**no code**"
    share, code = max((share_with(row, code), code) for code in codes)
    needless = share_with(control or {}, code)
    text = f"{code} {share:.0%}" + (f", control {needless:.0%}" if control else "")
    return text if share >= EXPLAINED and needless <= NEEDLESS else f"**{text}**"


def share_with(row: dict[str, Any], code: str) -> float:
    """Share of a row's pools whose page has the code."""
    return row.get(code, {"mean": 0.0})["mean"]
