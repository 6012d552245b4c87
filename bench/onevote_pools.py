"""The audit of tables with one vote per comparison, on pools with known biases."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit, logit

from badpo.attributes import Column
from badpo.auditing.audit import audit
from bench.audited_pools import ALPHA, RHO, Measured, people, to_judgments

OWN_TOPIC = 0.9
TOPICS = (("bake", "soup", "oven"), ("code", "loop", "class"))
MODELS = np.array(["amber", "birch", "cedar", "delta", "ember"])
# Quality at which the truth is integrated.
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(41)


@dataclass(frozen=True)
class OneVotePool:
    """A pool in which each annotator judges ``votes_each`` comparisons that nobody else judges.

    The two sides differ in the attribute in a share ``cross_share`` of the comparisons. The quality of a comparison has
    the standard deviation ``quality_sd``. If ``models`` is above 0, the table names the models that wrote the
    responses, and their strengths range from ``-models`` to ``models``. The side with the attribute is better by
    ``better``. If there are ``specialists``, half of the annotators judge nine tenths of their comparisons in the first
    topic, the others in the second topic, and in the second topic the side with the attribute is worse by ``better``.
    Biases have the mean ``mean`` and the standard deviation ``spread``. The first ``n_planted`` annotators have a bias
    that is larger or smaller by ``planted``. The last ``n_clickers`` annotators answer at random. If ``says_topics``
    is true, a prompt contains words of its topic.
    """

    n_annotators: int = 40
    votes_each: int = 100
    cross_share: float = 1.0
    quality_sd: float = 1.5
    better: float = 0.7
    mean: float = 0.5
    spread: float = 0.0
    n_planted: int = 0
    planted: float = 1.0
    n_clickers: int = 0
    specialists: bool = False
    says_topics: bool = True
    models: float = 0.0


CELLS: dict[str, OneVotePool] = {
    "coin tosses": OneVotePool(quality_sd=0.0, better=0.0, mean=0.0, votes_each=50, cross_share=0.5),
    "coin tosses, 8 votes each": OneVotePool(100, 8, quality_sd=0.0, better=0.0, mean=0.0),
    "annotators alike": OneVotePool(),
    "annotators alike, 25 votes each": OneVotePool(votes_each=25),
    "8 of 40 at 1.0 more or less, no quality": OneVotePool(n_planted=8, quality_sd=0.0, better=0.0),
    "biases of sd 0.5": OneVotePool(spread=0.5),
    "8 of 40 at 1.0 more or less": OneVotePool(n_planted=8),
    "half of 40 at 0.5 more, half less": OneVotePool(n_planted=40, planted=0.5),
    "specialists": OneVotePool(specialists=True, better=1.5),
    "specialists, 8 votes each": OneVotePool(100, 8, specialists=True, better=1.5),
    "specialists, prompts do not say of what": OneVotePool(
        specialists=True, better=1.5, says_topics=False
    ),
    "6 of 40 click": OneVotePool(n_clickers=6, mean=1.0),
    "annotators alike, models named": OneVotePool(models=1.2),
    "8 of 40 at 1.0, models named": OneVotePool(models=1.2, n_planted=8),
    "6 of 40 click, models named": OneVotePool(models=1.2, n_clickers=6, mean=1.0),
}


def draw_table(pool: OneVotePool, random: np.random.Generator) -> tuple[pd.DataFrame, NDArray, NDArray]:
    """Draw a table of votes, the annotators' biases, and the log-odds with which each chooses the attribute."""
    m, n = pool.n_annotators, pool.n_annotators * pool.votes_each
    bias = pool.mean + pool.spread * random.standard_normal(m)
    bias[: pool.n_planted] += pool.planted * np.resize([1.0, -1.0], pool.n_planted)
    clicks = np.arange(m) >= m - pool.n_clickers
    bias, reliability = np.where(clicks, 0.0, bias), np.where(clicks, 0.0, 1.0)
    who = random.permutation(np.repeat(np.arange(m), pool.votes_each))
    own = random.random(n) < (OWN_TOPIC if pool.specialists else 0.5)
    topic = np.where(own, who % 2, 1 - who % 2)
    chances = [pool.cross_share / 2, 1 - pool.cross_share, pool.cross_share / 2]
    difference = random.choice([-1.0, 0.0, 1.0], n, p=chances)
    merit = pool.better * np.where(pool.specialists & (topic == 1), -1.0, 1.0)
    strength = pool.models * np.linspace(-1, 1, len(MODELS))
    sides = np.array([random.permutation(len(MODELS))[:2] for _ in range(n)]).T
    quality = pool.quality_sd * random.standard_normal(n) + merit * difference
    quality += strength[sides[0]] - strength[sides[1]]
    won = random.random(n) < expit(reliability[who] * quality + bias[who] * difference)
    name = random.permutation(n).astype(str)
    words = np.array(TOPICS)[topic, random.integers(3, size=n)]
    table = {
        "comparison_id": name,
        "prompt": np.char.add(np.char.add(words if pool.says_topics else "ask", " "), name),
        "response_a": np.char.add("yes ", name),
        "response_b": np.char.add("no ", name),
        "winner": np.where(won, "a", "b"),
        "annotator": people(m)[who],
        "x_a": np.maximum(difference, 0),
        "x_b": np.maximum(-difference, 0),
    }
    if pool.models:
        table |= {"model_a": MODELS[sides[0]], "model_b": MODELS[sides[1]]}
    return pd.DataFrame(table), bias, _sums(pool, bias, reliability)


def _sums(pool: OneVotePool, bias: NDArray, reliability: NDArray) -> NDArray:
    """Log-odds with which each annotator chooses the side with the attribute, over the quality of their comparisons."""
    topics = np.array([0.5, 0.5])[None].repeat(len(bias), axis=0)
    if pool.specialists:
        topics = np.where(np.equal.outer(np.arange(len(bias)) % 2, [0, 1]), OWN_TOPIC, 1 - OWN_TOPIC)
    merits = pool.better * np.array([1.0, -1.0 if pool.specialists else 1.0])
    quality = merits[:, None] + pool.quality_sd * NODES
    chance = expit(reliability[:, None, None] * quality + bias[:, None, None])
    return logit((topics * (chance @ WEIGHTS / WEIGHTS.sum())).sum(axis=1))


def measure_audit(pool: OneVotePool, random: np.random.Generator) -> Measured:
    """Compare the audit of one pool with the truth, and list the figures that it does not report."""
    table, bias, sums = draw_table(pool, random)
    result = audit(to_judgments(table), [Column("x", a="x_a", b="x_b")])
    found: dict[str, Any] = result.summary["pool"]["x"]
    rows = result.annotators.set_index("annotator").reindex(people(pool.n_annotators))
    flag, is_refused = rows["flag"].to_numpy(dtype=bool), "flag" in found["refused"]
    truth, wanted = bias - bias.mean(), np.arange(len(bias)) < pool.n_planted
    figures = {
        "refused": float(is_refused),
        "unsplit": float(found["shared_bias"] is None and result.summary["flips"][0]["labels"] is None),
        "flags": float(flag.sum()),
        "false": float((flag & (np.abs(truth) <= RHO)).sum() / max(flag.sum(), 1)),
    }
    if found["sum"] is not None and not pool.models:  # if models are named, the sum is another quantity
        inside = (rows["log_odds_low"] <= sums) & (sums <= rows["log_odds_high"])
        pooled, total = found["sum"], logit(expit(sums).mean())
        figures["sum_coverage"] = float(inside[rows["log_odds_low"].notna()].mean())
        figures["pooled_coverage"] = float(pooled["ci_low"] <= total <= pooled["ci_high"])
    if not is_refused:
        figures["equal"] = float(found["equal_biases_p"] < ALPHA)
        figures["caveat"] = float("less bias or" in found["caveat"])
        low, high = found["tau_ci"]
        if low is not None and not (pool.models or pool.n_clickers):
            figures["tau_coverage"] = float(low <= sums.std() <= high)
        if wanted.any():
            figures["found"] = float(flag[wanted].mean())
            figures["size"] = float(rows["deviation"] @ truth / (truth @ truth))
        if pool.n_clickers and "reliability" not in found["refused"]:
            clicked = rows["flag_reliability"].to_numpy(dtype=bool)
            figures["care_found"] = float(clicked[-pool.n_clickers :].mean())
            figures["care_false"] = float(clicked[: -pool.n_clickers].sum() / max(clicked.sum(), 1))
    return figures
