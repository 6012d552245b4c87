"""A reward model with a bias term beside it."""

import numpy as np
import pytest
import torch
from transformers import Qwen2ForSequenceClassification
from trl import RewardConfig

from badpo.attributes import Length
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.objective.bias import VARIANTS, BiasTerm
from badpo.training.inputs import build_bias
from badpo_paper.reward_model import BiasedRewardTrainer, reward_rows
from tests import tiny
from tests.training.tiny_runs import PLAIN, judgments


def model() -> Qwen2ForSequenceClassification:
    config = tiny.model().config
    config.num_labels = 1
    torch.manual_seed(0)
    return Qwen2ForSequenceClassification(config)


SETTINGS = PLAIN | {"max_steps": 6, "learning_rate": 1e-3, "seed": 7, "save_strategy": "no"}


def trainer(folder, data: Judgments, bias: BiasTerm, rate=1e-2, **options) -> BiasedRewardTrainer:
    args = RewardConfig(output_dir=str(folder), **(SETTINGS | options))
    return BiasedRewardTrainer(model(), args, data, bias, tiny.tokenizer(), rate)


def test_the_loss_and_thetas_gradient_are_those_of_the_model_and_rows_winner_and_loser(tmp_path):
    """-log sigmoid(r_w - r_l + b), with the bias inside the sigmoid on the winner's side."""
    data = judgments()
    bias = BiasTerm(["length"], data.annotators["pseudonym"].tolist(), VARIANTS["per_annotator"])
    with torch.no_grad():
        bias.deviation.copy_(torch.linspace(-1, 2, 5)[:, None])
    run = trainer(tmp_path, data, bias)
    batch = next(iter(run.get_train_dataloader()))
    annotator, delta = batch["annotator"], batch["winner_delta"]
    b = bias.theta().detach().float()[annotator, 0] * delta[:, 0]
    with torch.no_grad():
        rewards = run.model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    winner, loser = rewards.squeeze(-1).chunk(2)
    logit = winner - loser + b
    loss = run.compute_loss(run.model, dict(batch))
    assert loss.shape == ()
    torch.testing.assert_close(loss.detach(), -torch.nn.functional.logsigmoid(logit).mean())
    loss.backward()
    expected = torch.zeros(5).index_add(0, annotator, -torch.sigmoid(-logit) * delta[:, 0]) / len(delta)
    torch.testing.assert_close(bias.deviation.grad[:, 0], expected, rtol=1e-4, atol=1e-6)
    assert (delta != 0).any() and (expected != 0).any()
    # the first step of Adam is the rate, against the gradient
    gradient, before = bias.deviation.grad.clone(), bias.deviation.detach().clone()
    run.step_theta()
    torch.testing.assert_close(bias.deviation.detach() - before, -1e-2 * gradient.sign())
    assert not bias.deviation.grad
    row, sign = reward_rows(data)[0], data.votes["sign"].iloc[0]
    comparison = data.comparisons.iloc[data.votes["comparison"].iloc[0]]
    assert row["chosen"] == comparison["response_a" if sign > 0 else "response_b"]
    assert row["winner_delta"] == (sign * data.delta[0]).tolist()


@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    data, options = judgments(), dict(save_strategy="steps", save_steps=3)
    whole = trainer(tmp_path / "whole", data, build_bias(data, "shared_mean", "offline"), **options)
    whole.train()
    cut = trainer(tmp_path / "cut", data, build_bias(data, "shared_mean", "offline"), **options)
    steps = []

    def step_then_die():
        steps.append(1)
        if len(steps) == 5:
            raise InterruptedError
        BiasedRewardTrainer.step_theta(cut)

    cut.step_theta = step_then_die
    with pytest.raises(InterruptedError):
        cut.train()
    resumed = trainer(tmp_path / "cut", data, build_bias(data, "shared_mean", "offline"), **options)
    resumed.train(resume_from_checkpoint=True)
    np.testing.assert_array_equal(resumed.bias.theta().detach(), whole.bias.theta().detach())
    for p, q in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("variant", ["none", "per_annotator"])
def test_the_saved_reward_model_carries_no_annotator(tmp_path, variant):
    data = judgments()
    run = trainer(tmp_path, data, build_bias(data, variant, "zero"))
    run.train()
    assert (run.bias_optimizer is None) == (variant == "none")
    assert run.bias.theta().detach().any() == (variant != "none")
    run.save_model(str(tmp_path / "model"))
    content = b"".join(path.read_bytes() for path in (tmp_path / "model").iterdir())
    assert not any(name.encode() in content for name in data.annotators["pseudonym"])


def test_what_is_too_long_is_counted_and_weights_and_another_pools_bias_refused(tmp_path, caplog):
    data = judgments()
    with caplog.at_level("WARNING"):
        run = trainer(tmp_path, data, build_bias(data, "pooled", "zero"), max_length=12)
    n_left_out = data.n_votes - len(run.train_dataset)
    assert n_left_out > 0 and f"{n_left_out} judgments left out" in caplog.text
    weighted = Judgments.read(tiny.votes().assign(weight=2.0), attributes=[Length(ratio=1.5)])
    with pytest.raises(ConfigError, match="weights"):
        trainer(tmp_path, weighted, build_bias(weighted, "pooled", "zero"))
    with pytest.raises(ConfigError, match="the same and in the same order"):
        trainer(tmp_path, data, BiasTerm(["length"], ["ann_a"], VARIANTS["pooled"]))
