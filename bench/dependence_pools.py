"""Pools with dependent votes: repeated votes, adjudication and ties; intervals for a population of annotators."""

from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit, logit

from badpo.attributes import Column, Position
from badpo.auditing.audit import audit
from bench.audited_pools import ALPHA, ENOUGH, RHO, Cell, people, to_judgments

Measured = dict[str, float]


@dataclass(frozen=True)
class Scene:
    """A pool of annotators; the sides of half of the comparisons differ in the attribute.

    The biases have the mean ``mean`` and the standard deviation ``spread``. ``own_taste`` is the standard deviation of
    an annotator's own opinion of a comparison, in addition to its quality. Each of the ``votes_each`` annotators of a
    comparison votes ``samples`` times, or in ``both_orders`` with a position bias of standard deviation 0.5. If the
    votes disagree, one of ``n_experts`` experts decides (``adjudicates``: "expert"), or one more annotator
    ("anybody"). ``ties`` names the rule by which votes become ties.
    """

    n_comparisons: int = 600
    n_annotators: int = 30
    votes_each: int = 4
    mean: float = 0.8
    spread: float = 0.5
    own_taste: float = 0.0
    samples: int = 1
    both_orders: bool = False
    declares_position: bool = False
    adjudicates: str = ""
    n_experts: int = 5
    ties: str = ""


def draw_table(scene: Scene, random: np.random.Generator) -> tuple[pd.DataFrame, NDArray, int]:
    """Draw a table of judgments, the true deviations, and the number of majorities that change without them."""
    n, m, each = scene.n_comparisons, scene.n_annotators, scene.votes_each
    n_all = m + scene.n_experts * (scene.adjudicates == "expert")
    bias = scene.mean + scene.spread * random.standard_normal(n_all)
    position = 0.5 * random.standard_normal(n_all) * scene.both_orders
    difference = random.choice([-1.0, 0.0, 1.0], n, p=[0.25, 0.5, 0.25])
    quality = random.standard_normal(n)
    chosen = np.argsort(random.random((n, m)), axis=1)[:, : each + 1]
    comparison, who = np.repeat(np.arange(n), each), chosen[:, :each].ravel()
    if scene.adjudicates:
        late = random.integers(m, n_all, n) if scene.adjudicates == "expert" else chosen[:, each]
        comparison, who = np.append(comparison, np.arange(n)), np.append(who, late)
    taste = scene.own_taste * random.standard_normal(len(who))
    n_votes = 2 if scene.both_orders else scene.samples
    comparison, who, taste = (np.repeat(one, n_votes) for one in (comparison, who, taste))
    first = np.resize([1, -1], len(who)) if scene.both_orders else random.choice([-1, 1], len(who))
    deviation = bias - bias[:m].mean()
    shift = deviation[who] * difference[comparison]
    latent = quality[comparison] + taste + position[who] * first + random.logistic(size=len(who))
    latent += bias[:m].mean() * difference[comparison]
    sign = np.where(latent + shift > 0, 1, -1)
    kept = np.ones(len(who), dtype=bool)
    if scene.adjudicates:
        base = np.arange(len(who)) < n * each
        total = np.bincount(comparison[base], sign[base], n)
        kept = base | (np.abs(total) < each)[comparison]
    is_tie = choose_ties(scene.ties, latent + shift, who, difference[comparison], random)
    plain = np.bincount(comparison[kept], sign[kept], n)
    without = np.bincount(comparison[kept], np.where(latent > 0, 1, -1)[kept], n)
    is_contested = np.abs(plain) < np.bincount(comparison[kept], minlength=n)
    turned = int(((plain * without < 0) & is_contested).sum())
    number = comparison.astype(str)
    table = pd.DataFrame(
        {
            "comparison_id": number,
            "prompt": number,
            "response_a": np.char.add("yes ", number),
            "response_b": np.char.add("no ", number),
            "winner": np.where(is_tie, "tie", np.where(sign > 0, "a", "b")),
            "annotator": people(n_all)[who],
            "x_a": np.maximum(difference[comparison], 0),
            "x_b": np.maximum(-difference[comparison], 0),
        }
    )
    if scene.both_orders:
        table["shown_first"] = np.where(first > 0, "a", "b")
    if scene.adjudicates:
        table["annotator_class"] = np.where(who < m, "crowd", "expert")
    order = np.argsort(comparison[kept], kind="stable")
    return table[kept].iloc[order], deviation, turned


def choose_ties(
    kind: str, latent: NDArray, who: NDArray, difference: NDArray, random: np.random.Generator
) -> NDArray:
    """Choose the votes that become ties."""
    n, m = len(who), who.max() + 1
    if kind == "at random":
        return random.random(n) < 0.25
    if kind == "close calls":
        return np.abs(latent) < 0.5
    if kind == "own threshold":
        return np.abs(latent) < random.uniform(0, 2.0, m)[who]
    if kind == "half spare the side without":
        spares = (random.random(m) < 0.5)[who]
        return spares & (latent * difference < 0) & (random.random(n) < 0.6)
    if kind == "all spare the side without":
        return (latent * difference < 0) & (random.random(n) < 0.5)
    return np.zeros(n, dtype=bool)


NULL = Scene(spread=0.0)
FEW_PEOPLE = Scene(n_annotators=25, n_comparisons=500, spread=1.0)
# Pools, and the code on the audit's page that names the cause.
SCENES: dict[str, tuple[Scene, str]] = {
    "independent votes": (Scene(), ""),
    "independent votes, nobody deviates": (NULL, ""),
    "five samples of each judge, own taste of sd 2": (replace(NULL, samples=5, own_taste=2.0), "N434"),
    "both orders, own taste of sd 2": (replace(NULL, both_orders=True, own_taste=2.0), "N434"),
    "both orders, position declared, own taste of sd 2": (
        replace(NULL, both_orders=True, own_taste=2.0, declares_position=True),
        "",
    ),
    **{
        f"{who} decides, {n:,} comparisons": (
            replace(NULL, n_comparisons=n, votes_each=2, adjudicates=kind),
            "W441",
        )
        for who, kind in (("an expert", "expert"), ("anybody", "anybody"))
        for n in (900, 3000)
    },
    **{
        f"ties: {kind}": (Scene(ties=kind), "W442")
        for kind in (
            *("at random", "close calls", "own threshold"),
            *("half spare the side without", "all spare the side without"),
        )
    },
    "biases of sd 1, three votes, 1,000 comparisons": (Scene(1000, votes_each=3, spread=1.0), ""),
    "25 annotators with biases of sd 1": (FEW_PEOPLE, ""),
    "8 annotators with biases of sd 1": (replace(FEW_PEOPLE, n_annotators=8), ""),
}


def measure_audit(scene: Scene, random: np.random.Generator, code: str = "") -> Measured:
    """Compare the audit of one pool with the truth, and report whether its page names the cause."""
    table, truth, turned = draw_table(scene, random)
    attributes = [Column("x", a="x_a", b="x_b")] + [Position()] * scene.declares_position
    # the reader reports ties and repeated votes, so tables with ties or repeated votes are read
    is_read = scene.ties or scene.samples > 1
    result = audit(table if is_read else to_judgments(table), attributes)
    (row,) = [each for each in result.summary["attributes"] if each["name"] == "x"]
    (impact,) = [each for each in result.summary["flips"] if each["attribute"] == "x"]
    pool, rows = result.summary["pool"]["x"], result.annotators
    rows = rows[rows["attribute"] == "x"].set_index("annotator").reindex(people(len(truth)))
    sure = np.isfinite(rows["deviation"].to_numpy(float)) & (rows["n_informative"].to_numpy() >= ENOUGH)
    flag, large = rows["flag"].eq(True).to_numpy(), np.abs(truth) > RHO
    of_tau = pool["tau_ci"]
    found = {
        "equal": pool["equal_biases_p"],
        "class_rejects": pool["class_test_p"],
    }
    figures = {name: float(p < ALPHA) for name, p in found.items() if p is not None}
    figures |= {
        "coverage": is_within(truth, rows["ci_low"], rows["ci_high"])[sure].mean(),
        "posterior_coverage": is_within(truth, rows["post_low"], rows["post_high"])[
            rows["post_low"].notna()
        ].mean(),
        "false": (flag & ~large).sum() / max(flag.sum(), 1),
    }
    if not scene.ties:
        figures["population"] = float(is_within(population_value(scene), *row["population_ci"]))
    if of_tau[0] is not None:
        figures["tau_coverage"] = float(of_tau[0] <= scene.spread <= (of_tau[1] or np.inf))
    if scene.spread:
        figures["found"] = flag[large].mean()
    if impact["labels"] and scene.samples == 1 and not (scene.adjudicates or scene.ties):
        figures["impact"] = float(is_within(turned, *impact["labels"][1:]))
    codes = {warning["code"]: 1.0 for warning in result.warnings}
    named = {"named": codes.get(code, 0.0)} if code else {}
    return {name: float(value) for name, value in (figures | named | codes).items()}


def is_within(value: NDArray | float, low: NDArray | float, high: NDArray | float) -> NDArray:
    """Whether values lie within intervals."""
    return np.asarray((low <= value) & (value <= high))


@cache
def population_value(scene: Scene) -> float:
    """Compute the log-odds that the response with the attribute wins, over all annotators and comparisons."""
    sds = [1.0, scene.spread, scene.own_taste, 0.5 * scene.both_orders]
    drawn = np.random.default_rng(0).standard_normal((1_000_000, len(sds)))
    return float(logit(expit(scene.mean + drawn @ sds).mean()))


def dependence_cases() -> list[tuple[str, Scene, partial, Cell]]:
    """List the label, pool, measure and cell of each row."""
    return [
        (label, scene, partial(measure_audit, code=code), Cell(scene, tuple(code.split())))
        for label, (scene, code) in SCENES.items()
    ]
