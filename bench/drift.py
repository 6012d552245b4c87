"""Measure how DPO lengthens answers without bias in the votes, and which methods help: `python -m bench.drift`.

The corpora, models and votes are those of `bench.defaults`. All runs train on votes without bias, so that each change
in the length of answers is due to the method. Answers to held-out prompts are sampled at temperature 1.
"""

import argparse
import copy
import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
import transformers

from badpo.data.judgments import Judgments
from badpo.objective import objectives
from badpo.training.config import BADPOConfig
from badpo.training.trainer import BADPOTrainer
from bench import defaults
from bench.merit import format_interval

SEEDS = range(4000, 4012)  # data seeds; no setting was chosen on these seeds
N_STEPS, TRAINING_SEED, LONGEST = 300, 42, 40  # in tokens
ATTRIBUTE = "length"


class PerToken(objectives.VoteWeights):
    """DPO with margins that are divided by the length of each response, in units of ``typical`` tokens."""

    weighs_tokens = True

    def __init__(self, typical: float):
        self.typical = typical

    def response_weights(self, n_tokens: int, n_other: int) -> np.ndarray:
        """Return the typical length over the response's length for each token."""
        return np.full(n_tokens, self.typical / n_tokens)


@dataclass(frozen=True)
class Method:
    """A row of the table: the factor of the learning rate, and the objective (None for DPO)."""

    label: str
    factor: float
    objective: objectives.Objective | None = None


METHODS = (
    Method("DPO", 5.0),
    Method("DPO, a fifth of the learning rate", 1.0),
    Method("SamPO", 5.0, objectives.SampledTokens(TRAINING_SEED)),
    Method("LD-DPO, alpha 0.5", 5.0, objectives.DiscountedTail(0.5)),
    Method("margins per token", 5.0, PerToken(typical=10.0)),
)


def train_policy(reference, tokenizer, votes: Judgments, method: Method):
    """Train plain DPO with the objective and the learning rate of a method."""
    with tempfile.TemporaryDirectory() as folder:
        args = BADPOConfig(
            folder, reference_cache=f"{folder}/cache", beta=defaults.BETA, seed=TRAINING_SEED, bias="none",
            learning_rate=defaults.RATE * method.factor, max_steps=N_STEPS, use_cpu=True, bf16=False,
            per_device_train_batch_size=defaults.BATCH, lr_scheduler_type="linear", gradient_checkpointing=False,
            report_to="none", save_strategy="no", disable_tqdm=True, logging_strategy="no",
        )  # fmt: skip
        trainer = BADPOTrainer(
            copy.deepcopy(reference),
            args=args,
            train_dataset=votes,
            processing_class=tokenizer,
            objective=method.objective,
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    return trainer.model.eval()


def mean_length(model, tokenizer, prompts: list[str]) -> float:
    """Mean number of tokens of one sampled answer to each prompt."""
    torch.manual_seed(0)
    ids = tokenizer(prompts, return_tensors="pt")["input_ids"]
    answers = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=True, max_new_tokens=LONGEST, pad_token_id=0
    )
    return float((answers[:, ids.shape[1] :] > 1).sum(dim=1).double().mean())


def measure_seed(seed: int) -> list[dict[str, Any]]:
    """One line for each method: lengthening, change of the log-probability per token, and held-out accuracy."""
    corpus = defaults.Corpus(ATTRIBUTE, False, seed)
    tokenizer, planted = defaults.make_tokenizer(), defaults.plant(corpus)
    reference = defaults.make_reference(corpus, planted, tokenizer)
    data, held_out = defaults.encoded(planted.held_out, tokenizer), planted.held_out
    prompts, n_tokens = held_out.comparisons["prompt"].tolist(), data[1].sum(dim=1)
    with torch.no_grad():
        base = defaults.log_probabilities(reference, *data)
    length = mean_length(reference, tokenizer, prompts)
    votes, rows = held_out.votes, []
    sign, of = votes["sign"].to_numpy(), votes["comparison"].to_numpy()
    for method in METHODS:
        model = train_policy(reference, tokenizer, planted.placebo, method)
        with torch.no_grad():
            ratio = (defaults.log_probabilities(model, *data) - base) / n_tokens
        margins = defaults.margins_of(model, base, data)
        added = mean_length(model, tokenizer, prompts) - length
        rows.append(
            {
                "method": method.label,
                "reference's tokens": length,
                "tokens added": added,
                "absolute change": abs(added),
                "log-probability per token": float(ratio.mean()),
                "tilt": defaults.tilt_of(margins, held_out),
                "accuracy": float((sign * margins[of] > 0).mean()),
            }
        )
    return rows


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    defaults.set_quiet()
    rows = pd.DataFrame([row for seed in SEEDS for row in measure_seed(seed)])
    table = rows.groupby("method", sort=False).agg(format_interval).reset_index()
    print(f"Means over {len(SEEDS)} data seeds, ± half of the 95 % confidence interval.\n")
    print(table.to_markdown(index=False, disable_numparse=True))


if __name__ == "__main__":
    main()
