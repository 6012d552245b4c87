"""The default rule of theta in complete runs: micro-batches, resumption and extreme votes."""

import numpy as np
import pytest
import torch

from badpo.attributes import Length
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from tests import tiny
from tests.training.tiny_runs import config, judgments, lora, trained

ANCHORED = dict(bias_fit="anchored", bias_learning_rate=None)


def theta(run) -> np.ndarray:
    return run.bias.theta().detach().numpy()


def test_a_setting_of_adam_selects_adam_and_the_default_is_the_anchored_fit(tmp_path):
    found = [
        config(tmp_path, **options).bias_fit
        for options in (
            dict(bias_learning_rate=None),
            dict(),
            dict(bias_learning_rate=None, warm_start="offline"),
        )
    ]
    assert found == ["anchored", "adam", "adam"]
    assert config(tmp_path, bias_fit="adam", bias_learning_rate=None).bias_learning_rate == 0.01
    with pytest.raises(
        ConfigError, match="bias_fit: anchored supports neither warm_start.*bias_fit: adam"
    ):
        config(tmp_path, bias_fit="anchored", bias_learning_rate=0.1)


def test_micro_batches_do_not_change_the_fit(tmp_path):
    sizes = [(8, 1), (2, 4)]
    runs = [
        trained(
            tmp_path / str(n),
            **ANCHORED,
            per_device_train_batch_size=n,
            gradient_accumulation_steps=parts,
        )
        for n, parts in sizes
    ]
    np.testing.assert_allclose(theta(runs[0]), theta(runs[1]), atol=1e-5)
    assert np.ptp(theta(runs[0])) >= 0 and theta(runs[0]).mean() > 0.5


@pytest.mark.parametrize("variant", ["pooled", "shared_mean", "class", "per_annotator"])
def test_a_resumed_run_has_identical_bits(tmp_path, variant):
    options = dict(ANCHORED, bias=variant, max_steps=8, save_strategy="steps", save_steps=5)
    whole = trained(tmp_path, **options)
    from tests.training.tiny_runs import trainer

    (tmp_path / "checkpoints" / "checkpoint-8" / "complete.json").unlink()
    again = trainer(tmp_path, **options)
    again.train(resume_from_checkpoint=True)
    assert again.resumed_from.name == "checkpoint-5"
    assert np.array_equal(theta(whole), theta(again))
    for one, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "options", [dict(loss_type=["ipo"]), dict(ld_alpha=0.5), dict(peft_config=True)]
)
def test_theta_is_fitted_with_other_losses_and_adapters(tmp_path, options):
    if "peft_config" in options:
        options = dict(peft_config=lora())
    run = trained(tmp_path, **ANCHORED, **options)
    assert np.isfinite(theta(run)).all() and theta(run).mean() > 0.1


def one_way() -> Judgments:
    return Judgments.read(tiny.for_the_longer(tiny.votes()), attributes=[Length(ratio=1.5)])


def never_differs() -> Judgments:
    return Judgments.read(tiny.votes(), attributes=[Length(ratio=50)])


def many_people() -> Judgments:
    table = tiny.votes(n_comparisons=200)
    return Judgments.read(
        table.assign(annotator=[f"p{i}" for i in range(len(table))]), attributes=[Length(ratio=1.5)]
    )


@pytest.mark.parametrize("make", [one_way, never_differs, many_people, judgments])
def test_theta_is_finite_for_extreme_votes(tmp_path, make):
    run = trained(tmp_path, make(), **ANCHORED)
    assert np.isfinite(theta(run)).all()
    assert abs(theta(run)).max() < 8
    if make is never_differs:
        assert not theta(run).any()
