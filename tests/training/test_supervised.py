"""The supervised stage: the token mean over the whole step, and a model that learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import TrainerCallback, TrainingArguments

from badpo.training.attention import TREE_ATTENTION
from badpo.training.trainer import SupervisedTrainer
from tests import tiny


def pairs() -> list[tuple[np.ndarray, np.ndarray]]:
    """Responses of very different lengths, so that a mean of means is another number."""
    draw = np.random.default_rng(0).integers
    return [(draw(2, 60, 4), draw(2, 60, n)) for n in (1, 2, 9, 17)]


def trainer(folder, model=None, batch=4, accumulation=1, **options) -> SupervisedTrainer:
    args = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation,
        max_grad_norm=0.0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        remove_unused_columns=False,
        disable_tqdm=True,
        **({"max_steps": 1, "learning_rate": 1e-2, "optim": "sgd"} | options),
    )
    return SupervisedTrainer(model if model is not None else tiny.model(), args, pairs())


def losses(run: SupervisedTrainer) -> list[float]:
    return [entry["loss"] for entry in run.state.log_history if "loss" in entry]


def token_mean(model) -> torch.Tensor:
    values = [tiny.plain_logps(model, prompt, response) for prompt, response in pairs()]
    return -torch.cat(values).mean()


@pytest.mark.parametrize("batch, accumulation", [(4, 1), (2, 2), (1, 4)])
def test_a_step_takes_the_mean_over_all_its_response_tokens(tmp_path, batch, accumulation):
    run = trainer(tmp_path, batch=batch, accumulation=accumulation)
    run.train()

    expected = tiny.model()
    loss = token_mean(expected)
    loss.backward()
    assert losses(run) == [pytest.approx(float(loss.detach()), rel=1e-5)]
    for parameter, by_hand in zip(run.model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(parameter, by_hand - 1e-2 * by_hand.grad, rtol=1e-4, atol=1e-6)


def test_training_runs_under_the_tree_attention(tmp_path):
    seen = set()

    class Looks(TrainerCallback):
        def on_optimizer_step(self, args, state, control, model=None, **kwargs):
            seen.add(model.config._attn_implementation)

    run = trainer(tmp_path)
    run.add_callback(Looks())
    ordinary = run.model.config._attn_implementation
    run.train()
    assert seen == {TREE_ATTENTION}
    assert run.model.config._attn_implementation == ordinary


def test_only_an_adapter_is_trained_where_one_is_given(tmp_path):
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(tiny.model(), LoraConfig(r=2, target_modules="all-linear"))
    run = trainer(tmp_path, model, max_steps=5, optim="adamw_torch")
    run.train()
    base = dict(tiny.model().named_parameters())
    frozen = {
        name.removeprefix("base_model.model.").replace(".base_layer", ""): p
        for name, p in run.model.named_parameters()
        if "lora_" not in name
    }
    assert all(torch.equal(base[name], p) for name, p in frozen.items())
    assert losses(run)[-1] < losses(run)[0]
