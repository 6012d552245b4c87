"""What a suite would run, what is there already, and what the rest will cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from types import MappingProxyType
from typing import Any

from badpo.data.corpora import multipref
from badpo.data.files import holder
from badpo.experiments.arms import ARMS
from badpo.experiments.suite_readouts import kept_json
from badpo.experiments.suite_runs import TIMING, PlannedRun

TINY_SECONDS = 90.0  # of a run and its readouts on one core, until runs have told better
TINY_MIB = 1200.0
# An anchor with one round, and with several of which two are needed as a rule: a round takes as long as a run.
ANCHORED = (2.0, 3.0)


@dataclass(frozen=True)
class PaperModel:
    """A model of the paper, and what a run of it took there on one shared A100 80GB (Appendix `app:training`).

    Attributes
    ----------
    name : str
    n_parameters, n_trained : float
    bytes_per_weight : int
        Of weights that are not trained.
    hours : (float, float)
        Published, least and most.
    gib : (float, float)
        Published peak memory of training.
    """

    name: str
    n_parameters: float
    n_trained: float
    bytes_per_weight: int
    hours: tuple[float, float]
    gib: tuple[float, float]


PAPER_MODELS = {
    "small": PaperModel("Qwen2.5-0.5B-Instruct", 0.494e9, 0.494e9, 4, (70 / 60, 150 / 60), (11.0, 19.0)),
    "large": PaperModel("Llama-3.1-8B-Instruct", 8.03e9, 0.084e9, 2, (7.0, 9.0), (21.5, 21.5)),
    "other": PaperModel("Mistral-7B-Instruct-v0.3", 7.25e9, 0.084e9, 2, (8.0, 12.0), (17.7, 17.7)),
}
STEPS, JUDGMENTS_PER_STEP = 1000, 32


@dataclass(frozen=True)
class CorpusSize:
    """How much a corpus of the paper is to read.

    Attributes
    ----------
    comparisons : int
    prompt, response : float
        Tokens; assumptions from the published mean lengths of answers.
    """

    comparisons: int
    prompt: float
    response: float

    @property
    def answer(self) -> float:
        """Tokens of a prompt with one response."""
        return self.prompt + self.response

    @property
    def comparison(self) -> float:
        """Tokens of a prompt, read once, with both responses."""
        return self.prompt + 2 * self.response


PAPER_CORPORA = {"style": CorpusSize(10_461, 100, 350), "signed": CorpusSize(7_177, 50, 300)}
HELD_OUT = multipref.HELD_OUT
# Of an A100's dense bf16 peak; an assumption.
PEAK_FLOPS, UTILIZATION = 312e12, 0.35
BYTES_PER_TRAINED = 16  # fp32 weight, gradient and two Adam moments
ACTIVATION_GIB = 3.0  # of a micro-batch of two judgments with checkpointing, and of one chunk of logits
# 300 answers of up to 512 tokens, 64 side by side; 30 ms for a token of all of them is an assumption.
N_ANSWERS, SAMPLING_SECONDS = 300, 5 * 512 * 0.03
JUDGE_PARAMETERS = 1.7e9
OTHER = "other settings"


@dataclass(frozen=True)
class PlannedCost:
    """A run, whether it is there, and what it is expected to take.

    Attributes
    ----------
    run : PlannedRun
    state : {"done", "trained", "begun", "running", "to do", "other settings"}
        ``done``: trained and measured; ``trained``: without readouts; ``other settings``: its folder holds a run with
        other data or settings, begun or finished, and the suite would be refused.
    minutes : float
        0 for what is done and for what would be refused.
    gib : float
        Peak memory.
    """

    run: PlannedRun
    state: str
    minutes: float
    gib: float


@dataclass(frozen=True)
class SuitePlan:
    """All runs of some suites with their costs, what is to be said of their votes, and why runs would be refused."""

    costs: tuple[PlannedCost, ...]
    jobs: int
    how: str
    about: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def minutes(self) -> float:
        """Of all that is not done, side by side as told."""
        return sum(cost.minutes for cost in self.costs) / self.jobs

    @property
    def gib(self) -> float:
        """Largest peak memory, of as many runs as go side by side."""
        todo = sorted((cost.gib for cost in self.costs if cost.minutes), reverse=True)
        return sum(todo[: self.jobs])

    def lines(self) -> list[str]:
        """The plan for people: one line for each run, then the sums."""
        width = max(len(cost.run.place) for cost in self.costs)
        of_state = max(len(cost.state) for cost in self.costs)
        lines = [
            f"{cost.run.place:<{width}}  {cost.state:<{of_state}}  {cost.minutes:6.1f} min  {cost.gib:5.1f} GiB"
            for cost in self.costs
        ]
        done = sum(cost.state == "done" for cost in self.costs)
        beside = f", {self.jobs} side by side" if self.jobs > 1 else ""
        return [
            *lines,
            "",
            f"{len(self.costs)} runs, {done} of them done; the rest takes about {duration(self.minutes)}{beside} and "
            f"{self.gib:.1f} GiB",
            self.how,
            *refusals(self.refused),
            *self.about,
        ]

    def to_json(self) -> dict[str, Any]:
        """The same as plain numbers."""
        return {
            "runs": [
                {"run": c.run.place, "state": c.state, "minutes": round(c.minutes, 2), "gib": round(c.gib, 2)}
                for c in self.costs
            ],
            "minutes": round(self.minutes, 1),
            "gib": round(self.gib, 2),
            "how": self.how,
            "about": list(self.about),
            "refused": dict(self.refused),
        }


def plan(
    runs: Sequence[PlannedRun],
    scale: str,
    out: Path,
    jobs: int,
    refused: Mapping[str, str] = MappingProxyType({}),
) -> SuitePlan:
    """The runs with what is there of each and what the rest is expected to cost. Reads run folders, loads no model.

    Parameters
    ----------
    runs : sequence of PlannedRun
    scale : str
    out : Path
    jobs : int
    refused : mapping of a run's place to what differs
        Runs whose folders hold others (`badpo.experiments.suite_needs.refused_runs`).
    """
    known = [timing for run in runs if (timing := timing_of(out / run.place)) and run.condition]
    if scale == "paper":
        each = [paper_cost(run) for run in runs]
        how = (
            "minutes and memory: estimates for one A100 80GB at 35 % of its peak; the paper's own runs shared theirs: "
            + "; ".join(_published(model) for model in PAPER_MODELS.values())
        )
    else:
        seconds = mean(t["train_seconds"] + t["measure_seconds"] for t in known) if known else TINY_SECONDS
        gib = (max(t["peak_mib"] for t in known) if known else TINY_MIB) / 1024
        each = [(seconds * policies(run) / 60, gib) for run in runs]
        how = (
            f"minutes: the mean of {len(known)} finished runs"
            if known
            else f"minutes: {TINY_SECONDS:.0f} s a run, for none has finished here yet"
        )
    costs = []
    for run, (minutes, gib) in zip(runs, each, strict=True):
        state = OTHER if run.place in refused else state_of(out / run.place)
        costs.append(PlannedCost(run, state, 0.0 if state in ("done", OTHER) else minutes, gib))
    return SuitePlan(tuple(costs), jobs, how, refused=refused)


def refusals(refused: Mapping[str, str]) -> list[str]:
    """What is said of runs that would be refused.

    Examples
    --------
    >>> refusals({"signed/dpo-s42": "beta was 0.1, is now 0.5"})
    ['signed/dpo-s42 holds a run with other data or settings (beta was 0.1, is now 0.5)', 'nothing would be trained: ...
    """
    if not refused:
        return []
    each = [
        f"{place} holds a run with other data or settings ({changes})" for place, changes in refused.items()
    ]
    return [*each, "nothing would be trained: remove these folders, or give another --out"]


def policies(run: PlannedRun) -> float:
    """How many times as long as a plain run: an arm of several types trains each in every round and once more.

    Examples
    --------
    >>> from badpo.experiments.suite_parts import Condition, Corpus
    >>> policies(PlannedRun(Corpus("signed"), Condition("em_dpo", "em_dpo"), 42))
    5.4
    """
    if run.condition is not None and run.condition.offset is not None:
        return ANCHORED[min(run.condition.offset.rounds, len(ANCHORED)) - 1]
    arm = ARMS[run.condition.arm] if run.condition else None
    if arm is None or arm.objective != "types":
        return 1.0
    given = arm.settings
    return round(float(given["n_types"]) * (1 + float(given["n_rounds"]) * float(given["round_share"])), 2)


def paper_cost(run: PlannedRun) -> tuple[float, float]:
    r"""Minutes and GiB of a run at the paper's scale.

    .. math:: t = \frac{8 N\, T_{trained} + 2 N\, T_{read} + 2 N_{judge}\, T_{judged}}{0.35 \cdot 312\,\text{TFLOPS}}
        + t_{sampling}, \qquad M = 16\,n_{trained} + b\,(N - n_{trained}) + \text{activations}

    with N weights of the policy and b bytes of one that is not trained. A token that is trained on passes twice the
    weights forward, four times backward and twice again for the recomputed activations. The reference is trained on one
    response to nine tenths of the comparisons, once, and reads all of them; another run trains on 32 judgments in each
    of 1,000 steps, and then reads the held-out comparisons and, as policy and as reference, two sets of 300 answers.
    The judge reads one set twice, as it is and without the attribute.

    Examples
    --------
    >>> from badpo.experiments.suite_parts import Condition, Corpus
    >>> minutes, gib = paper_cost(PlannedRun(Corpus("signed"), Condition("dpo", "dpo"), 42))
    >>> round(minutes), round(gib, 1)
    (15, 10.4)
    >>> round(paper_cost(PlannedRun(Corpus("signed"), None))[0])
    3
    """
    model, size = PAPER_MODELS[run.corpus.model], PAPER_CORPORA[run.corpus.kind]
    answers = N_ANSWERS * size.answer
    if run.condition is None:
        trained = (1 - HELD_OUT) * size.comparisons * size.answer
        read, sets = size.comparisons * size.comparison, 1
    else:
        trained = STEPS * JUDGMENTS_PER_STEP * size.comparison
        read, sets = HELD_OUT * size.comparisons * size.comparison + 4 * answers, 2
    operations = (8 * trained + 2 * read) * model.n_parameters + 2 * JUDGE_PARAMETERS * 2 * answers
    seconds = operations / (PEAK_FLOPS * UTILIZATION) + sets * SAMPLING_SECONDS
    frozen = model.n_parameters - model.n_trained
    weights = BYTES_PER_TRAINED * model.n_trained + model.bytes_per_weight * frozen
    return seconds * policies(run) / 60, weights / 2**30 + ACTIVATION_GIB


def state_of(folder: Path) -> str:
    """What there is of a run."""
    if holder(folder) is not None:
        return "running"
    if (folder / "run.json").exists():
        return "done" if (folder / "readouts.json").exists() else "trained"
    return "begun" if (folder / "begun.json").exists() else "to do"


def duration(minutes: float) -> str:
    """A time in words.

    Examples
    --------
    >>> duration(0.4), duration(34.2), duration(600)
    ('0 min', '34 min', '10.0 h')
    """
    return f"{minutes / 60:.1f} h" if minutes >= 120 else f"{minutes:.0f} min"


def _published(model: PaperModel) -> str:
    hours = f"{model.hours[0]:.1f} to {model.hours[1]:.1f} h"
    gib = (
        f"{model.gib[0]:g} GB" if model.gib[0] == model.gib[1] else f"{model.gib[0]:g} to {model.gib[1]:g} GB"
    )
    return f"{model.name} {hours}, {gib}"


def timing_of(folder: Path) -> dict[str, Any] | None:
    """The content of a run's ``timing.json``; None where it is not there, or is no time and no memory."""
    found = kept_json(folder / TIMING)
    needed = [found.get(name) for name in ("train_seconds", "measure_seconds", "peak_mib")]
    are_times = all(isinstance(value, int | float) and 0 <= value < math.inf for value in needed)
    return found if are_times else None
