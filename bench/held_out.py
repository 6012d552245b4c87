"""Does care beside lean predict votes that the audit has not seen? `python -m bench.held_out`.

Five folds over the votes of real people, fixed beforehand. The audit reads four of them; every vote of the fifth is
predicted from those on its comparison. Writes what was found to ``docs/results/held_out.md``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import minimize
from scipy.special import expit, logsumexp, softmax

from badpo.attributes import Length
from badpo.auditing.people import AuditOptions, Design, fit, people_of, shrunken
from badpo.data.judgments import Judgments
from badpo.estimation.pool import summed
from badpo.theory import Floats
from badpo.theory.summaries import cluster_mean

DATA = Path(__file__).parents[2] / "shared" / "data" / "ukpconvarg1_human.parquet"
PAGE = Path(__file__).parents[1] / "docs" / "results" / "held_out.md"
SEED, FOLDS, MANY = 20261122, 5, 20
# Quality is normal: Gauss-Hermite nodes and the logarithms of their shares.
NODES, _SHARES = np.polynomial.hermite_e.hermegauss(21)
LOG_SHARES = np.log(_SHARES / _SHARES.sum())


class People(NamedTuple):
    """Care and deviation of every annotator; whether leans count from a line in care."""

    care: Floats
    deviation: Floats
    is_line: bool = False


def logits_at_nodes(common: Floats, people: People, votes: np.recarray) -> Floats:
    r"""Logits :math:`s a_k z + (t + b (a_k - 1) + \text{deviation}_k) d`, of shape (n_votes, n_nodes)."""
    slope, level, steep = common
    care = people.care[votes.annotator]
    lean = level + steep * people.is_line * (care - 1) + people.deviation[votes.annotator]
    return (slope * care)[:, None] * NODES + (lean * votes.longer)[:, None]


def log_joint(logits: Floats, votes: np.recarray, n_comparisons: int) -> Floats:
    """Log-probability of each comparison's votes together with its quality, of shape (n_comparisons, n_nodes)."""
    toward = np.where(votes.won, 1.0, -1.0)[:, None]
    return LOG_SHARES + summed(votes.comparison, -np.logaddexp(0.0, -toward * logits), n_comparisons)


def most_likely(people: People, votes: np.recarray, n_comparisons: int) -> Floats:
    """The slope s on quality, the level t and the line's slope b that are most likely given the votes."""
    care = people.care[votes.annotator]

    def loss(common: Floats) -> tuple[float, Floats]:
        logits = logits_at_nodes(common, people, votes)
        joint = log_joint(logits, votes, n_comparisons)
        rest = softmax(joint, axis=1)[votes.comparison] * (votes.won[:, None] - expit(logits))
        toward = rest.sum(axis=1) * votes.longer
        score = (rest @ NODES) @ care, toward.sum(), people.is_line * (toward @ (care - 1))
        return -float(logsumexp(joint, axis=1).sum()) / len(care), -np.array(score) / len(care)

    return minimize(loss, np.array([1.0, 1.0, 0.0]), jac=True, method="BFGS").x


def log_loss(people: People, known: np.recarray, asked: np.recarray, n_comparisons: int) -> Floats:
    """Minus the log-probability of each vote asked for, given the known ones on its comparison."""
    common = most_likely(people, known, n_comparisons)
    joint = log_joint(logits_at_nodes(common, people, known), known, n_comparisons)
    mass = softmax(joint, axis=1)[asked.comparison]
    chance = (mass * expit(logits_at_nodes(common, people, asked))).sum(axis=1)
    return -np.log(np.where(asked.won, chance, 1 - chance))


def models_of(judgments: Judgments) -> dict[str, People]:
    """What the audit believes of everyone, without care and with it."""
    options, design = AuditOptions(), Design(judgments)
    leans = fit("conditional", design, judgments, np.zeros(len(design.annotators), bool), options)
    (alone,) = shrunken(design, leans, {})
    table = people_of(judgments, design, options).table.set_index("annotator").loc[design.annotators]
    lean, care = np.nan_to_num(alone.posterior.mean), table["care"].fillna(1.0).to_numpy()
    return {
        "neither": People(np.ones_like(lean), np.zeros_like(lean)),
        "lean": People(np.ones_like(lean), lean),
        "care and lean": People(care, lean),
        "care and lean about a line": People(care, table["shrunk"].fillna(0.0).to_numpy(), True),
    }


def losses(judgments: Judgments) -> pd.DataFrame:
    """The log-loss of every vote by every model of the folds without it."""
    votes = votes_of(judgments)
    fold = np.random.default_rng(SEED).integers(FOLDS, size=len(votes))
    parts = []
    for asked in (fold == each for each in range(FOLDS)):
        sides = votes[~asked], votes[asked], judgments.n_comparisons
        found = {name: log_loss(who, *sides) for name, who in models_of(judgments.take(~asked)).items()}
        parts.append(pd.DataFrame(found, index=np.flatnonzero(asked)))
    return pd.concat(parts).sort_index()


TEXT = """\
# Does care beside lean predict votes?

Written by `python -m bench.held_out`. {n:,} votes of crowd workers who compared arguments (UKPConvArg1); the attribute
is length, 1.5 times the other's words. The votes are in five folds, fixed before the first run. The audit reads four;
each vote of the fifth is predicted from those of the four on its comparison, integrated over its normal quality z:

    logit P(a) = s care_k z + (t + b (care_k - 1) + deviation_k) d

Care and deviations are the audit's shrunken ones from the four folds, where s, t and b are most likely. Without care it
is 1, without lean the deviation is 0; without a line b is 0 and deviations are those of an audit without care. Leans
are of the conditional likelihood throughout; the line changes what they count from and are shrunken to. Differences
have half-widths of 95 % intervals, clustered by annotator, by comparison and by prompt.

{table}

With the published competence (MACE) care correlates by {care:.2f}, lean by {lean:.2f} ({many} people of 20 votes).
"""


def page(judgments: Judgments, found: pd.DataFrame) -> str:
    """Markdown with the losses and what they say."""
    votes, names = votes_of(judgments), list(found)
    rows = [{"": name, "log-loss": f"{found[name].mean():.5f}"} for name in names]
    for one, other in ((1, 0), (2, 1), (3, 1)):
        change = found[names[one]] - found[names[other]]
        means = [cluster_mean(change, by) for by in (votes.annotator, votes.comparison, votes.prompt)]
        halves = ", ".join(f"{mean.high - mean.estimate:.5f}" for mean in means)
        holds = "holds zero" if any(mean.low <= 0 <= mean.high for mean in means) else "without zero"
        told = {"log-loss": f"{change.mean():+.5f} ± {halves}", "interval": holds}
        rows.append({"": f"{names[one]}, minus {names[other]}"} | told)
    is_many = np.bincount(votes.annotator, minlength=judgments.n_annotators) >= MANY
    competence = judgments.votes.groupby("annotator")["annotator_competence"].first().astype(float)
    models = models_of(judgments)
    about, alone = models["care and lean about a line"].care, models["lean"].deviation
    care, lean = (np.corrcoef(each[is_many], competence[is_many])[0, 1] for each in (about, alone))
    numbers = {"n": len(votes), "many": is_many.sum(), "care": care, "lean": lean}
    table = pd.DataFrame(rows).fillna("").to_markdown(index=False, disable_numparse=True)
    return TEXT.format(table=table, **numbers)


def votes_of(judgments: Judgments) -> np.recarray:
    """Of each vote: comparison, annotator, whether a won, which side is the longer one (1: a, -1: b), prompt."""
    votes = judgments.votes[["comparison", "annotator"]].assign(
        won=judgments.votes["sign"] > 0,
        longer=np.sign(judgments.delta[:, 0]),
        prompt=judgments.comparisons["prompt_id"].to_numpy()[judgments.votes["comparison"]],
    )
    return votes.to_records(index=False)


def main() -> None:
    """Audit, predict, compare, and write the page."""
    if not DATA.is_file():
        sys.exit(f"{DATA} is not there; it holds the judgments of UKPConvArg1")
    judgments = Judgments.read(DATA, attributes=[Length(ratio=1.5)], keep=["annotator_competence"])
    same = judgments.comparisons.eval("response_a == response_b").to_numpy()
    judgments = judgments.take(~same[judgments.votes["comparison"]])
    text = page(judgments, losses(judgments))
    PAGE.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
