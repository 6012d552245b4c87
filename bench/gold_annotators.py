"""Where a true reward for an attribute ends, with and without gold annotators: `python -m bench.gold_annotators`.

The demo's corpus with a true reward of 0.8 log-odds for each attribute besides the annotators' leans. Pooled BA-DPO
cannot tell the two apart and stays at the reference's rate; annotators known to lean nowhere can. Writes
``docs/gold_annotators.md``; arms that are finished in ``runs/gold`` are not run again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from badpo.data.corpora import signed
from badpo.experiments.arms import Arm
from badpo.experiments.demo import DATA_SEED, SETTINGS, bundled_material, tokenizer_texts
from badpo.experiments.progress import Ticker
from badpo.experiments.signed_readouts import ReferenceStage, measure
from badpo.experiments.signed_suite import fit_reference, train_policy
from badpo.experiments.small_model import build_model, build_tokenizer
from bench.gold_page import write_page
from bench.real_data import progress

OUT = Path("runs/gold")
REWARD = 0.8
SEEDS = (42, 123, 456)
EVERYONE = 60


@dataclass(frozen=True)
class Case:
    """How the votes are drawn, and what is trained on them.

    Attributes
    ----------
    label : str
    n_gold : int
        Annotators whose planted lean is zero, spread evenly over the classes.
    bias, warm_start
        As in `BADPOConfig`.
    settings : dict
        Fields of `SuiteSettings` that are not the demo's.
    named : bool
        Whether training is told who they are.
    """

    label: str
    n_gold: int
    bias: str = "shared_mean"
    warm_start: Literal["zero", "offline"] = "zero"
    settings: Mapping[str, Any] = field(default_factory=dict)
    named: bool = True


HELD = {"bias_learning_rate": 0.0}
LONG = {"steps": 2400}
CASES: dict[str, Case] = {
    "dpo_unbiased": Case("DPO, no annotator leans", EVERYONE, "none", named=False),
    "gold_10": Case("10 gold", 10),
    "pooled": Case("pooled, not told (10 lean nowhere)", 10, "pooled", named=False),
    "held_10": Case("10 gold, theta held", 10, warm_start="offline", settings=HELD),
    "dpo": Case("DPO (10 lean nowhere)", 10, "none", named=False),
    "gold_20": Case("20 gold", 20),
    "gold_5": Case("5 gold", 5),
    "held_20": Case("20 gold, theta held", 20, warm_start="offline", settings=HELD),
    "held_5": Case("5 gold, theta held", 5, warm_start="offline", settings=HELD),
    "dpo_unbiased_long": Case(
        "DPO, no annotator leans, 2,400 steps", EVERYONE, "none", settings=LONG, named=False
    ),
    "gold_10_long": Case("10 gold, 2,400 steps", 10, settings=LONG),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--page-only", action="store_true", help="write the page from what is finished")
    asked = parser.parse_args()
    if asked.page_only:
        print(page())
        return
    bench = Bench()
    for seed in asked.seeds:
        for name in asked.cases:
            print_line(name, seed, bench.run(name, seed))
    print(page())


def page() -> Path:
    """Write the page from what is finished."""
    head = {
        "steps": SETTINGS.steps,
        "batch": SETTINGS.batch_size,
        "beta": SETTINGS.beta,
        "reward": REWARD,
    }
    return write_page(OUT, CASES, SEEDS, head)


def print_line(name: str, seed: int, readouts: Mapping) -> None:
    rates = ", ".join(f"{a} {found['rate']:.3f}" for a, found in readouts["rates"].items())
    print(f"{name} s{seed}: {rates}", flush=True)


class Bench:
    """The corpus under every choice of gold annotators, and one reference for all of them."""

    def __init__(self) -> None:
        self._scored, signing_prompts = bundled_material()
        self._plan = signed.draw_plan(len(signed.usable_pairs(self._scored)[0]), DATA_SEED)
        self._corpora: dict[int, signed.SignedCorpus] = {}
        tokenizer = build_tokenizer(tokenizer_texts(self._scored, signing_prompts))
        self._settings = replace(SETTINGS, command="make gold-annotators")
        self._stage = fit_reference(
            self.corpus(EVERYONE),
            signing_prompts,
            build_model(tokenizer, seed=DATA_SEED),
            tokenizer,
            self._settings,
            OUT / "reference",
            progress,
        )
        if not (OUT / "reference" / "readouts.json").exists():
            measure(self._stage.folder, self._stage, self._settings, 0, None, progress)

    def corpus(self, n_gold: int) -> signed.SignedCorpus:
        """The demo's corpus with a true reward on both attributes and ``n_gold`` annotators who lean nowhere.

        Pairs, names, who judges what and the random number of every vote are the same throughout.
        """
        if n_gold not in self._corpora:
            leans = self._plan.theta.copy()
            leans[gold_numbers(n_gold, len(leans))] = 0.0
            built = signed.build(self._scored, replace(self._plan, theta=leans + REWARD))
            self._corpora[n_gold] = replace(built, planted_theta=built.planted_theta - REWARD)
        return self._corpora[n_gold]

    def run(self, name: str, seed: int) -> dict:
        """The readouts of a case at a seed, trained and measured unless they are there."""
        case, folder = CASES[name], OUT / f"{name}-s{seed}"
        corpus, settings = self.corpus(case.n_gold), replace(self._settings, **case.settings)
        train, held_out = corpus.judgments.split(settings.held_out, seed=0)
        stage: ReferenceStage = replace(
            self._stage, train=train, held_out=held_out, planted=corpus.planted_theta
        )
        gold = [f"constructed-{k:02d}" for k in gold_numbers(case.n_gold, EVERYONE)] if case.named else []
        bias = train_policy(
            Arm(case.bias, case.warm_start, gold=tuple(gold)),
            train,
            stage.folder / "model",
            stage.cache_folder,
            stage.tokenizer,
            settings,
            seed,
            folder,
            Ticker(f"{name} s{seed}", progress),
        )
        if not (folder / "readouts.json").exists():
            measure(folder, stage, settings, seed, bias, progress)
        return json.loads((folder / "readouts.json").read_text())


def gold_numbers(n_gold: int, n_annotators: int) -> Sequence[int]:
    """Who leans nowhere: every so many-th annotator, so that every class has about as many.

    Examples
    --------
    >>> gold_numbers(3, 60)
    [0, 20, 40]
    """
    return np.linspace(0, n_annotators, n_gold, endpoint=False).astype(int).tolist()


if __name__ == "__main__":
    main()
