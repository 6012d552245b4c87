"""With theta at zero, losses, gradients and metrics equal TRL's DPOTrainer on the same votes."""

from functools import partial

import pytest

from badpo.attributes import Length
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.objective.objectives import DiscountedTail, IdentityPreference
from badpo.training.logprobs import scoring_attention
from badpo.training.trainer import BADPOTrainer
from tests import tiny
from tests.runs.recipes import as_chat, as_trl
from tests.training.tiny_runs import judgments, trained, trainer, trl_trainer

N_VOTES = 16


def loss_and_gradients(model, loss):
    loss.backward()
    return float(loss.detach()), {name: p.grad.clone() for name, p in model.named_parameters()}


def of_trl(frame, folder, max_length=1024, **options):
    # with another reference, the margins of the first step are not zero
    rows = as_trl(frame).drop(columns="annotator").to_dict("records")
    peer = trl_trainer(rows, folder, tiny.tokenizer(), max_length=max_length, beta=0.3, **options)
    batch = peer.data_collator([peer.train_dataset[i] for i in range(len(rows))])
    return loss_and_gradients(peer.model, peer.compute_loss(peer.model, batch))


def ours(frame, folder, model=tiny.model, **options) -> BADPOTrainer:
    data = Judgments.read(frame, attributes=[Length(ratio=1.5)])
    whole = dict(per_device_train_batch_size=N_VOTES, gradient_accumulation_steps=1)
    given = dict(model=model(), ref_model=model(seed=1), beta=0.3, bias="none", encoding="trl")
    return trainer(folder, data, **given | whole | options)


def assert_same(run: BADPOTrainer, expected) -> None:
    batches, normaliser = run.get_batch_samples(iter(run.get_train_dataloader()), 1, run.args.device)
    with scoring_attention(run.model, run._layout):
        loss = run.compute_loss(run.model, batches[0], num_items_in_batch=normaliser)
        loss, gradients = loss_and_gradients(run.model, loss)
    assert loss == pytest.approx(expected[0], rel=1e-5)
    largest = max(float(g.abs().max()) for g in expected[1].values())
    for name, gradient in expected[1].items():
        assert float((gradients[name] - gradient).abs().max()) <= 1e-5 * largest, name


PAIRED = tiny.votes(n_comparisons=8, per_comparison=2)


@pytest.mark.parametrize("attention", ["padded", "packed"])
@pytest.mark.parametrize(
    ("frame", "objective", "theirs"),
    [
        (PAIRED, None, {}),
        (PAIRED, None, {"max_length": 10}),
        (as_chat(PAIRED), None, {}),
        (as_chat(PAIRED), None, {"max_length": 10}),
        (PAIRED, IdentityPreference(beta=0.3), {"loss_type": "ipo"}),
        (PAIRED, DiscountedTail(alpha=0.4), {"ld_alpha": 0.4}),
    ],
)
def test_losses_of_trl_are_equal(tmp_path, frame, objective, theirs, attention):
    length = theirs.get("max_length", 1024)
    run = ours(frame, tmp_path, objective=objective, max_length=length, attention=attention)
    assert_same(run, of_trl(frame, tmp_path / "trl", **theirs))


@pytest.mark.parametrize("attention", ["padded", "packed"])
def test_rewards_and_log_probabilities_equal_trl_or_are_not_logged(tmp_path, attention):
    rows = as_trl(PAIRED).drop(columns="annotator").to_dict("records")
    peer = trl_trainer(rows, tmp_path / "trl", tiny.tokenizer(), beta=0.3)
    batch = peer.data_collator([peer.train_dataset[i] for i in range(len(rows))])
    peer.compute_loss(peer.model, batch)
    run = ours(PAIRED, tmp_path, attention=attention, per_device_eval_batch_size=N_VOTES)
    measured = run.evaluate(PAIRED)
    names = [f"{what}/{side}" for what in ("rewards", "logps") for side in ("chosen", "rejected")]
    found = {name: measured[f"eval_{name}"] for name in names if f"eval_{name}" in measured}
    logged = peer._metrics["train" if peer.model.training else "eval"]
    expected = {name: logged[name][-1] for name in names}
    assert found == ({} if attention == "packed" else pytest.approx(expected, rel=1e-4))
    assert {"eval_runtime", "eval_samples_per_second", "eval_steps_per_second"} <= measured.keys()


@pytest.mark.parametrize("kind", ["qwen3", "mixtral"])
@pytest.mark.parametrize("coefficient", [None, 0.5, 0.0])
def test_the_auxiliary_loss_of_routers_equals_trl(tmp_path, kind, coefficient):
    frame = tiny.votes(n_comparisons=8, per_comparison=2)[:-3]  # comparisons with one vote and with two
    options = dict(model=partial(tiny.mixture_of_experts, kind), router_aux_loss_coef=coefficient)
    run = ours(frame, tmp_path, per_device_eval_batch_size=N_VOTES, **options)
    measured, theirs = run.evaluate(frame), of_trl(frame, tmp_path / "trl", **options)
    assert measured["eval_loss"] == pytest.approx(theirs[0], rel=1e-5)
    assert_same(run, theirs)
    assert run.router_aux_loss_coef == (0.001 if coefficient is None else coefficient)


def test_the_auxiliary_loss_is_logged_over_the_whole_step(tmp_path):
    logged, data = [], judgments(n_comparisons=4, per_comparison=4)
    steps = dict(batching="grouped", max_steps=2, logging_steps=2)
    for size, parts in [(8, 1), (1, 8)]:
        sizes = dict(per_device_train_batch_size=size, gradient_accumulation_steps=parts)
        model = tiny.mixture_of_experts("qwen3")
        run = trained(tmp_path / str(size), data, model=model, **sizes, **steps)
        *_, line, last = run.state.log_history
        logged.append(line["aux_loss"])
        # the Trainer logs the mean of the losses of its steps
        assert line["loss"] == pytest.approx(last["train_loss"], rel=1e-5)
    # a step has two comparisons with four votes: in one micro-batch, or in two of eight micro-batches
    assert logged[0] == pytest.approx(logged[1], rel=0.05)
    assert 1.0 < logged[0] < 4.0
    with pytest.raises(
        ConfigError, match="router_aux_loss_coef is 0.5, but Qwen2ForCausalLM is not a mix"
    ):
        ours(tiny.votes(), tmp_path / "dense", router_aux_loss_coef=0.5)
