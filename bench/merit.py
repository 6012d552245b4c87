"""Measure BA-DPO if an attribute may be merit, and if there is no bias: `python -m bench.merit`.

The corpora, models and votes are those of `bench.defaults`. In the corpus with merit, responses signed by a woman
contain two more good words, and the annotators value these words. A fifth of the comparisons are swap pairs: two equal
responses with different names. Three of twelve annotators have no bias. In the corpora without bias, the votes depend
on quality alone, but the attribute is declared.
"""

import argparse
import tempfile
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
import transformers

from badpo.data.judgments import Judgments
from badpo.theory.summaries import t_interval
from badpo.training.config import BADPOConfig
from badpo.training.trainer import BADPOTrainer
from bench import defaults

GOLD = ["person 0", "person 1", "person 2"]
SEEDS = range(3000, 3005)  # data seeds; no setting was chosen on these seeds
N_STEPS, TRAINING_SEED = 1000, 42


@dataclass(frozen=True)
class Decision:
    """A way to fix the shared bias, and its settings."""

    label: str
    on_biased_votes: bool
    settings: dict[str, Any]


DECISIONS = (
    Decision("DPO", True, {"bias": "none"}),
    Decision("DPO, votes without bias", False, {"bias": "none"}),
    Decision("accept the reference (default)", True, {"bias": "pooled"}),
    Decision("gold annotators", True, {"bias": "pooled", "gold_annotators": GOLD}),
    Decision(
        "swap pairs",
        True,
        {"bias": "pooled", "bias_fit": "adam", "warm_start": "audit", "bias_learning_rate": 0.0},
    ),
)


def train_policy(reference, tokenizer, votes: Judgments, n_steps: int, settings: dict[str, Any]):
    """Train one policy and return it with the mean of theta over the annotators."""
    with tempfile.TemporaryDirectory() as folder:
        args = BADPOConfig(
            folder, reference_cache=f"{folder}/cache", beta=defaults.BETA, seed=TRAINING_SEED,
            learning_rate=defaults.RATE, max_steps=n_steps, per_device_train_batch_size=defaults.BATCH,
            lr_scheduler_type="linear", use_cpu=True, bf16=False, gradient_checkpointing=False,
            report_to="none", save_strategy="no", disable_tqdm=True, logging_strategy="no", **settings,
        )  # fmt: skip
        policy = defaults.copy.deepcopy(reference)
        trainer = BADPOTrainer(policy, args=args, train_dataset=votes, processing_class=tokenizer)
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    theta = float(trainer.bias.theta().mean()) if trainer.bias.parts else 0.0
    return trainer.model.eval(), theta


def measure_tilts(
    corpus: defaults.Corpus, decisions: tuple[Decision, ...], n_steps: int
) -> list[dict[str, Any]]:
    """Measure the tilt on held-out comparisons and the mean of theta for each decision."""
    tokenizer, planted = defaults.make_tokenizer(), defaults.plant(corpus)
    reference = defaults.make_reference(corpus, planted, tokenizer)
    held_out = defaults.encoded(planted.held_out, tokenizer)
    with torch.no_grad():
        base = defaults.log_probabilities(reference, *held_out)
    rows = []
    for decision in decisions:
        votes = planted.biased if decision.on_biased_votes else planted.placebo
        model, theta = train_policy(reference, tokenizer, votes, n_steps, decision.settings)
        margins = defaults.margins_of(model, base, held_out)
        tilt = defaults.tilt_of(margins, planted.held_out)
        rows.append({"decision": decision.label, "seed": corpus.seed, "theta": theta, "tilt": tilt})
    return rows


def format_interval(values: pd.Series) -> str:
    interval = t_interval(values.to_numpy())
    return f"{interval.estimate:.2f} ± {(interval.high - interval.low) / 2:.2f}"


def merit_table() -> pd.DataFrame:
    """Compute the mean tilt and theta of each decision over the data seeds."""
    rows = [
        row
        for seed in SEEDS
        for row in measure_tilts(
            defaults.Corpus("names", True, seed, has_merit=True), DECISIONS, N_STEPS
        )
    ]
    table = pd.DataFrame(rows).groupby("decision", sort=False)[["tilt", "theta"]].agg(format_interval)
    return table.reset_index()


def table_without_bias() -> pd.DataFrame:
    """Compute the tilt of BA-DPO minus that of DPO on votes without bias, for each attribute."""
    without_bias = tuple(replace(DECISIONS[i], on_biased_votes=False) for i in (0, 2))
    rows = []
    for attribute in defaults.ATTRIBUTES:
        for n_steps in (100, N_STEPS):
            pairs = [
                measure_tilts(
                    defaults.Corpus(attribute, False, seed, is_mirrored=False), without_bias, n_steps
                )
                for seed in SEEDS
            ]
            difference = pd.Series([ours["tilt"] - dpo["tilt"] for dpo, ours in pairs])
            theta = pd.Series([ours["theta"] for _, ours in pairs])
            rows.append(
                {
                    "attribute": attribute,
                    "steps": n_steps,
                    "BA-DPO - DPO": format_interval(difference),
                    "theta": format_interval(theta),
                }
            )
    return pd.DataFrame(rows)


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    defaults.set_quiet()
    for title, table in (("Merit", merit_table()), ("No bias", table_without_bias())):
        print(f"{title}: means over {len(SEEDS)} data seeds, ± half of the 95 % confidence interval\n")
        print(table.to_markdown(index=False, disable_numparse=True), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
