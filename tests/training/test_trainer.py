"""The trainer: micro-batches, layouts and objectives, references, data, saving and publishing."""

import ast
import inspect
import json
import math
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import metadata_load
from peft import get_peft_model
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer

from badpo.attributes import Length
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, DataError
from badpo.objective import objectives, registry
from badpo.objective.bias import BiasTerm
from badpo.training import trainer as trainer_module
from badpo.training.batches import ComparisonCollator
from badpo.training.config import BADPOConfig
from badpo.training.logprobs import scoring_attention
from badpo.training.metrics import Tally
from badpo.training.supervised import SupervisedTrainer, supervised_arguments
from badpo.training.trainer import BADPOTrainer
from tests import tiny
from tests.runs.recipes import log_lines
from tests.training.tiny_runs import judgments, lora, trained, trainer, untimed


def assert_same_run(one: BADPOTrainer, other: BADPOTrainer, rtol=1e-4, atol=1e-5) -> None:
    for p, q in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=rtol, atol=atol)
    torch.testing.assert_close(one.bias.theta(), other.bias.theta(), rtol=rtol, atol=min(atol, 1e-6))


# -- what a step is -------------------------------------------------------------------------------------------------


OBJECTIVES = {
    "votes": objectives.VoteWeights,
    "sampo": lambda: objectives.SampledTokens(seed=7),
    "ld_dpo": lambda: objectives.DiscountedTail(alpha=0.5),
    "ipo": lambda: objectives.IdentityPreference(beta=0.1),
    "group_dro": lambda: objectives.GroupWeights([0, 0, 1, 1, 2], eta=0.5),
    "reliability": lambda: objectives.GroupWeights(range(5), eta=-0.5),
}
QUICK = ("votes", "sampo", "group_dro")
BY_NAME = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in OBJECTIVES]


WHOLE = dict(per_device_train_batch_size=8, gradient_accumulation_steps=1)
PARTS = dict(per_device_train_batch_size=1, gradient_accumulation_steps=8)


@pytest.fixture(scope="module")
def by_votes(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("votes"), **WHOLE)


@pytest.mark.parametrize("name", BY_NAME)
def test_an_objective_changes_the_run_but_micro_batches_and_layouts_do_not(tmp_path, name, by_votes):
    one = trained(tmp_path / "one", objective=OBJECTIVES[name](), **WHOLE)
    other = trained(tmp_path / "parts", objective=OBJECTIVES[name](), attention="padded", **PARTS)
    assert_same_run(one, other)
    pairs = zip(one.model.parameters(), by_votes.model.parameters(), strict=True)
    assert any((p - q).abs().max() > 1e-5 for p, q in pairs) == (name != "votes")


@pytest.mark.parametrize("batching", ["grouped", "comparisons"])
def test_micro_batches_without_comparisons_need_no_forward_and_change_nothing(
    tmp_path, batching, monkeypatch
):
    votes = tiny.for_the_longer(tiny.votes(n_comparisons=6, per_comparison=4))
    data = Judgments.read(votes, attributes=[Length(ratio=1.5)])
    forwards, margins = [], BADPOTrainer._compute_margins
    monkeypatch.setattr(
        BADPOTrainer,
        "_compute_margins",
        lambda self, *given: forwards.append(len(given[1]["comparisons"])) or margins(self, *given),
    )
    n = {"grouped": 8, "comparisons": 2}[batching]
    runs, losses = [], []
    for size, parts, expected in ((n, 1, [2, 2]), (1, n, [1, 1, 1, 1])):
        sizes = dict(per_device_train_batch_size=size, gradient_accumulation_steps=parts)
        folder = tmp_path / str(size)
        runs.append(trained(folder, data, batching=batching, max_steps=2, **sizes))
        losses.append([line["loss"] for line in log_lines(folder)])
        assert forwards == expected
        forwards.clear()
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert_same_run(*runs, rtol=1e-3)


def test_the_gradient_of_theta_equals_the_formula(tmp_path):
    whole = dict(per_device_train_batch_size=72, gradient_accumulation_steps=1, max_steps=1)
    run = trainer(tmp_path, bias="per_annotator", **whole)
    run.theta_rule.optimizer.zero_grad = lambda: None
    run.train()
    data = run.judgments
    each = -0.5 * data.votes["sign"].to_numpy()[:, None] * data.delta / data.n_votes
    expected = np.zeros((data.n_annotators, 1))
    np.add.at(expected, data.votes["annotator"].to_numpy(), each)
    np.testing.assert_allclose(run.bias.deviation.grad.numpy(), expected, atol=1e-7)


def test_a_run_shorter_than_its_logging_steps_is_logged_at_its_end(tmp_path):
    run = trained(tmp_path, logging_steps=4, max_steps=6)
    *_, fourth, last = run.state.log_history
    assert "loss" in fourth and "loss" not in last and "train_loss" in last
    lines = log_lines(tmp_path)[4:]
    margins = sum(line["rewards/margins"] * line["n_judgments"] for line in lines)
    assert last["rewards/margins"] == pytest.approx(margins / sum(line["n_judgments"] for line in lines))


def test_every_epoch_has_all_judgments_in_another_order(tmp_path, monkeypatch):
    seen, collate = [], ComparisonCollator.__call__
    monkeypatch.setattr(
        ComparisonCollator, "__call__", lambda self, votes: seen.extend(votes) or collate(self, votes)
    )
    trained(tmp_path, judgments(n_comparisons=8))  # 24 judgments in steps of 8
    assert seen[:24] != seen[24:] and sorted(seen[:24]) == sorted(seen[24:]) == list(range(24))


def test_the_best_checkpoint_restores_weights_and_theta(tmp_path):
    train, held_out = judgments(n_comparisons=40).split(0.25, seed=0)
    scores = iter([0.1, 0.9, 0.2, 0.3])
    often = dict(eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2, max_steps=8)
    best = dict(load_best_model_at_end=True, metric_for_best_model="score", greater_is_better=True)
    run = trainer(tmp_path, train, eval_dataset=held_out, save_total_limit=1, **often, **best)
    measured = run.evaluate
    run.evaluate = lambda *args, **kwargs: measured(*args, **kwargs) | {"eval_score": next(scores)}
    run.train()
    kept = sorted((tmp_path / "checkpoints").glob("checkpoint-*"))
    assert [path.name for path in kept] == ["checkpoint-4", "checkpoint-8"]
    theta, last = (BiasTerm.load(path).theta() for path in kept)
    assert torch.equal(run.bias.theta(), theta) and not torch.equal(theta, last)
    weights = load_file(kept[0] / "model.safetensors")
    assert torch.equal(run.model.model.norm.weight.detach(), weights["model.norm.weight"])


class CopiesBetweenDevices(TorchDispatchMode):
    """Record for each copy between devices whether the copy waits until it is done."""

    def __init__(self):
        super().__init__()
        self.waits: list[bool] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        options = kwargs or {}
        found = function(*args, **options)
        if function is torch.ops.aten._to_copy.default and args[0].device != found.device:
            self.waits.append(not options.get("non_blocking"))
        return found


def test_a_micro_batch_never_waits_for_the_device(tmp_path, monkeypatch):
    run = trainer(tmp_path)
    batches, normaliser = run.get_batch_samples(iter(run.get_train_dataloader()), 2, run.args.device)
    # the meta device replaces a GPU; it has no values, so that reading a value back is an error
    meta = torch.device("meta")
    monkeypatch.setattr(BADPOConfig, "device", meta, raising=False)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)
    run.model.to(meta), run.bias.to(meta)
    run._from_reference, run._tally = run._from_reference.to(meta), Tally(run.judgments, meta)
    normaliser = normaliser.to(meta)
    with scoring_attention(run.model, run._layout), CopiesBetweenDevices() as copies:
        loss = run.compute_loss(run.model, run._prepare_inputs(batches[0]), False, normaliser)
        loss.backward()
    assert copies.waits and not any(copies.waits)


# -- other objectives -----------------------------------------------------------------------------------------------


FIRST_LOSS = {**dict.fromkeys(("votes", "sampo", "ld_dpo", "group_dro"), math.log(2)), "ipo": 25.0}


@pytest.mark.parametrize("name", FIRST_LOSS)
def test_the_first_loss_has_a_zero_margin_and_policy_and_theta_move(tmp_path, name):
    options = dict(bias="pooled", eval_dataset=judgments(seed=3), max_steps=20)
    run = trainer(tmp_path, objective=OBJECTIVES[name](), **options)
    assert run.evaluate()["eval_loss"] == pytest.approx(FIRST_LOSS[name], rel=1e-5)
    run.train()
    pairs = zip(tiny.model().parameters(), run.model.parameters(), strict=True)
    assert not any(torch.equal(p, q) for p, q in pairs)
    first, second, *_ = lines = log_lines(tmp_path)
    assert first["rewards/margins"] == pytest.approx(0.0, abs=1e-6)
    assert first["loss"] == pytest.approx(FIRST_LOSS[name], rel=1e-6)
    # the first step of Adam increases the length bias
    assert first["bias/theta/length"] == pytest.approx(0.01, rel=1e-3)
    assert first["bias/theta/length"] < second["bias/theta/length"]
    theta = float(run.bias.theta().detach().mean())
    assert theta > 0.02 and lines[-1]["bias/theta/length"] == round(theta, 2)
    told = {key: value for key, value in lines[-1].items() if key.startswith("groups/")}
    assert told == run.objective.metrics()
    assert (told.get("groups/weight_sd", 0) > 0) == (name == "group_dro")


def test_a_warm_start_is_refused_if_theta_has_another_unit(tmp_path):
    with pytest.raises(ConfigError, match="IdentityPreference has another unit"):
        trainer(tmp_path, objective=OBJECTIVES["ipo"](), bias="pooled", warm_start="offline")
    trainer(tmp_path, objective=OBJECTIVES["sampo"](), bias="pooled", warm_start="offline")


# -- the reference, and whether a run starts there --------------------------------------------------------------------


def with_trained_adapter(**options):
    """Make a model with a trained adapter; an adapter at zero would hide that it is dropped."""
    return get_peft_model(tiny.model(), lora(init_lora_weights=False, **options))


PRECISIONS = pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])


@PRECISIONS
@pytest.mark.parametrize("kind", [True, "pissa", "olora"])
def test_an_adapter_that_changes_the_base_model_has_its_own_reference_and_cache(tmp_path, kind, bf16):
    options = dict(bf16=bf16, max_steps=1, reference_cache=str(tmp_path / "cache"))
    trained(tmp_path / "adapter", peft_config=lora(init_lora_weights=kind), **options)
    whole = trainer(tmp_path / "whole", **options)
    computed_in = set()
    gate = next(module for name, module in whole.model.named_modules() if name.endswith("gate_proj"))
    gate.register_forward_hook(lambda module, inputs, output: computed_in.add(output.dtype))
    whole.train()
    assert computed_in == {torch.bfloat16 if bf16 else torch.float32} and whole.findings == []
    assert next(whole.model.parameters()).dtype == torch.float32
    assert (whole.reference.cache.n_computed == 0) == (kind is True)
    for name in ("adapter", "whole"):
        first = log_lines(tmp_path / name)[0]
        assert first["loss"] == pytest.approx(math.log(2), abs=1e-3 if bf16 else 1e-6)


@PRECISIONS
def test_training_continues_a_given_adapter_which_is_also_the_reference(tmp_path, bf16):
    model = with_trained_adapter()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run = trained(tmp_path, model=model, bf16=bf16, max_steps=1)
    assert run.first_margin.difference <= run.first_margin.tolerance
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved and all("lora_" in name for name in moved)
    plain = trainer(tmp_path / "base", bf16=bf16)
    of_the_start, base = (r.reference.score(r.train_dataset) for r in (run, plain))
    assert np.abs(of_the_start[0] - base[0]).max() > 0.1


@pytest.fixture
def adapter_folder(tmp_path):
    """Save a trained adapter and its base model in two folders."""
    base, folder = tmp_path / "base", tmp_path / "adapter"
    tiny.model().save_pretrained(base)
    model = with_trained_adapter()
    model.peft_config["default"].base_model_name_or_path = str(base)
    model.save_pretrained(folder)
    return folder


def same_twice(**options):
    model = tiny.model()
    return dict(model=model, ref_model=model, **options)


OTHER = torch.optim.SGD(tiny.model().parameters())
REFUSED = [
    ("already", lambda _: dict(model=with_trained_adapter(), peft_config=lora())),
    ("already", lambda folder: dict(model=str(folder), peft_config=lora())),
    ("is_trainable=True", lambda folder: dict(model=str(folder))),
    ("model.requires_grad_", lambda _: dict(model=tiny.model().requires_grad_(False))),
    ("use pissa", lambda _: dict(peft_config=lora(init_lora_weights="pissa_niter_4"))),
    ("would change with the policy", lambda _: same_twice()),
    ("would change with the policy", lambda _: same_twice(peft_config=lora())),
    ("model must be a PreTrainedModel", lambda _: dict(model=5)),
    ("optimizers must contain an optimizer", lambda _: dict(optimizers=torch.optim.SGD)),
    ("none of the model.s trained weights", lambda _: dict(optimizers=(OTHER, None))),
    (
        "belongs to another",
        lambda _: dict(optimizers=(None, torch.optim.lr_scheduler.ConstantLR(OTHER))),
    ),
]


@pytest.mark.parametrize(("told", "start"), REFUSED)
def test_untrainable_models_are_refused_before_the_reference_is_computed(
    tmp_path, adapter_folder, told, start
):
    with pytest.raises(ConfigError, match=told):
        trainer(tmp_path / "run", **start(adapter_folder))


@PRECISIONS
def test_cached_values_of_another_model_stop_the_run(tmp_path, bf16):
    run = trainer(tmp_path, bf16=bf16, attention="padded")
    values = run.reference.score(run.train_dataset)
    # the differences cancel in the sum of every response
    waves = [(0.5 if bf16 else 0.01) * (-1.0) ** np.arange(len(side)) for side in values]
    both = zip(values, waves, strict=True)
    run.train_dataset.reference = [side + wave - wave.mean() for side, wave in both]
    told = f"differ from the reference's .*{run.reference.cache.folder} may "
    with pytest.raises(ConfigError, match=told):
        run.train()
    assert run.first_margin.difference > run.first_margin.tolerance > abs(run.first_margin.mean)


@pytest.mark.parametrize("differs", [True, False])
def test_another_reference_is_accepted_with_a_warning(tmp_path, caplog, differs):
    seed = 1 if differs else 0
    tiny.model(seed=seed).save_pretrained(tmp_path / "other")
    run = trained(tmp_path, ref_model=str(tmp_path / "other"), max_steps=1)
    given = trainer(tmp_path / "given", ref_model=tiny.model(seed=seed))
    assert run.reference.cache.key == given.reference.cache.key
    assert [found.code for found in run.findings] == ["W152"] * differs
    assert ("leave ref_model out" in caplog.text) == differs
    run.save_model(str(tmp_path / "copy"))
    assert "model: " not in caplog.text and "contains theta" not in caplog.text
    run.save_model(str(tmp_path))
    assert f"{tmp_path} contains theta; publish the model with push_to_hub()" in caplog.text
    run.save_model()
    assert ("WARNING", f"model: {tmp_path / 'model'}") in [
        (record.levelname, record.getMessage()) for record in caplog.records
    ]
    recorded = json.loads((tmp_path / "bias.json").read_text())["extra"]["first_margin"]
    assert (recorded["difference"] > recorded["tolerance"]) == differs


def test_requested_dropout_does_not_stop_the_run(tmp_path):
    run = trained(
        tmp_path, model=with_trained_adapter(lora_dropout=0.5), disable_dropout=False, max_steps=1
    )
    assert [found.code for found in run.findings] == ["W152"]


# -- evaluation ------------------------------------------------------------------------------------------------------


def test_evaluate_uses_the_initial_reference_before_and_after_training(tmp_path):
    train, held_out = judgments(n_comparisons=40).split(0.25, seed=0)
    others = tiny.votes(n_comparisons=6, seed=5)
    run = trainer(tmp_path, train)
    with pytest.raises(ConfigError, match="no eval_dataset"):
        run.evaluate()
    for nothing in ("nonsense", 5, [], {}, {"a": 5}, held_out.take(np.zeros(held_out.n_votes, bool))):
        with pytest.raises(ValueError):
            run.evaluate(nothing)
    both = {"held_out": held_out, "others": others}
    for given in (held_out, others, both):
        run.evaluate(given)  # the reference of the full policy is there until the first step
    run.train()
    often = dict(eval_strategy="steps", eval_steps=3)
    late = trained(tmp_path / "late", train, eval_dataset=both | {"frame": tiny.votes()}, **often)
    logged = {key for entry in late.state.log_history for key in entry}
    assert {"eval_held_out_loss", "eval_others_loss", "eval_frame_rewards/margins"} <= logged
    for none_of_them in (None, "zz"):
        with pytest.raises(ConfigError, match="evaluation sets: held_out, others, frame"):
            late.get_eval_dataloader(none_of_them)
    first = next(iter(late.get_eval_dataloader("others")))
    assert len(first["sign"]) == late.args.per_device_eval_batch_size
    sets = run.evaluate(held_out), late.evaluate("held_out"), run.evaluate(others)
    same, named, other = map(untimed, sets)
    assert same == named != other
    for several in (run.evaluate(both), late.evaluate()):
        assert several["eval_held_out_loss"] == late.evaluate("held_out")["eval_loss"]
        assert several["eval_others_loss"] == run.evaluate(others)["eval_loss"]
    start = run.first_margin
    assert run.train() and run.first_margin is start  # goes on
    run.state.global_step = 0
    with pytest.raises(ConfigError, match="has been trained since"):
        run.evaluate(tiny.votes(seed=9))
    # the cache has no values of the trained policy
    cache = str(tmp_path / "late" / "cache")
    fresh = trainer(tmp_path / "fresh", train, eval_dataset=held_out, reference_cache=cache)
    assert fresh.evaluate()["eval_loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert fresh.reference.cache.n_computed == 0


# -- what is taken and refused ----------------------------------------------------------------------------------------


def test_findings_of_the_reader_are_logged_once_and_stored(tmp_path, caplog):
    frame = tiny.votes().assign(tools="[]")
    frame.loc[:5, "winner"] = "tie"
    data = Judgments.read(frame, attributes=[Length(ratio=1.5)])
    with caplog.at_level("INFO", "badpo"):
        run = trainer(tmp_path, data, eval_dataset=data)
    told = [(record.getMessage(), record.levelname) for record in caplog.records]
    for finding in data.findings:
        level = "INFO" if finding.severity == "notice" else "WARNING"
        assert told.count((str(finding), level)) == run.findings.count(finding) == 1
    assert {"W107", "N130"} <= {finding.code for finding in data.findings}


def test_unusable_training_data_are_refused(tmp_path):
    with pytest.raises(DataError, match="there is no judgment"):
        trainer(tmp_path, judgments().take(np.zeros(72, bool)))
    alike = tiny.votes().assign(response_b=lambda votes: votes["response_a"])
    alike = Judgments.read(alike, attributes=[Length(ratio=1.5)])
    with pytest.raises(DataError, match="(?s)E143.*nothing to learn.* of all 24 comparisons"):
        trainer(tmp_path, alike, bias="none")
    with pytest.raises(ConfigError, match="at least one attribute"):
        trainer(tmp_path, Judgments.read(tiny.votes()), bias="pooled")
    assert not trainer(tmp_path, Judgments.read(tiny.votes()), bias="none").bias.parts


@pytest.mark.parametrize("bias", ["pooled", "none", "per_annotator"])
def test_votes_without_annotators_are_accepted_if_the_bias_needs_no_ids(bias, tmp_path):
    table = tiny.votes().drop(columns="annotator_class")
    table.loc[::2, "annotator"] = None
    options = dict(bias=bias, attributes=["length:ratio=1.5"], max_steps=1)
    if bias == "per_annotator":
        with pytest.raises(DataError, match="E112"):
            trainer(tmp_path, table, **options)
        return
    run = trained(tmp_path, table, **options)
    assert run.judgments.n_votes == len(table) and not run.judgments.has_identities
    assert run.bias.theta().shape == (1, 1)


def test_arguments_have_the_order_of_trl_and_each_unsupported_one_is_reported(tmp_path, monkeypatch):
    ours, theirs = (list(inspect.signature(cls).parameters) for cls in (BADPOTrainer, DPOTrainer))
    assert ours[: len(theirs)] == theirs
    not_taken = ("data_collator", "compute_metrics", "quantization_config")
    args = DPOConfig("runs", use_cpu=True, bf16=False)
    wrong = dict(bias={}, objective="dpo", peft_config={"r": 8}, callbacks=print, processing_class="x")
    with pytest.raises(ConfigError) as caught:
        BADPOTrainer(tiny.model(), args=args, **dict.fromkeys(not_taken, print), **wrong)
    said = ["args is a DPOConfig; pass a BADPOConfig", "`train_dataset` is required"]
    said += [f"{name} must be a" for name in wrong]
    said += [f"{name} is not supported: " for name in not_taken]
    assert all(str(caught.value).count(sentence) == 1 for sentence in said)
    assert len(str(caught.value).splitlines()) == len(said)
    # several GPUs in one process
    monkeypatch.setattr(BADPOConfig, "n_gpu", 2)
    with pytest.raises(ConfigError, match="accelerate launch --num_processes 2"):
        trainer(tmp_path)


# -- what is written and published ------------------------------------------------------------------------------------


def test_saved_and_published_files_load_with_transformers_and_name_no_annotator(tmp_path, monkeypatch):
    uploads = []

    def upload_folder(repo_id, folder_path, **options):
        uploads.append((repo_id, folder_path))
        return types.SimpleNamespace(commit_url="the commit")

    hub = types.SimpleNamespace(upload_folder=upload_folder)
    hub.create_repo = lambda name, **options: types.SimpleNamespace(repo_id=f"someone/{name}")
    monkeypatch.setattr("badpo.training.trainer.HfApi", lambda token: hub)
    model = tiny.model()
    model.config.attention_dropout = 0.25
    saved = dict(save_strategy="steps", save_steps=2)
    run = trained(tmp_path, model=model, push_to_hub=True, hub_model_id="leaning", **saved)
    assert uploads == [] and run.push_to_hub() == "the commit"
    folder = tmp_path / "model"
    assert uploads == [("someone/leaning", folder)]
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert (loaded.config.attention_dropout, run.model.config.attention_dropout) == (0.25, 0.0)
    for p, q in zip(run.model.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(p, q)
    content = b"".join(path.read_bytes() for path in folder.iterdir())
    assert b"ann_" not in content and b"badpo" not in content
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors", ".jinja"}
    assert run.push_to_hub("done", dataset_name="someone/votes") == "the commit"
    assert metadata_load(folder / "README.md") == {"datasets": "someone/votes"}


# -- the supervised stage ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch, accumulation", [(4, 1), (2, 2), (1, 4)])
def test_the_loss_of_a_step_is_the_mean_over_all_response_tokens(tmp_path, batch, accumulation):
    draw = np.random.default_rng(0).integers
    # the lengths differ so much that a mean of means has another value
    responses = [(draw(2, 60, 4), draw(2, 60, n)) for n in (1, 2, 9, 17)]
    options = dict(max_steps=1, learning_rate=1e-2, optim="sgd", lr_scheduler_type="constant")
    options |= dict(max_grad_norm=0.0, logging_steps=1, use_cpu=True)
    sizes = dict(per_device_train_batch_size=batch, gradient_accumulation_steps=accumulation)
    args = supervised_arguments(tmp_path, **options, **sizes)
    run = SupervisedTrainer(tiny.model(), args, responses)
    run.train()
    expected = tiny.model()
    loss = -torch.cat([tiny.plain_logps(expected, *pair) for pair in responses]).mean()
    loss.backward()
    [logged] = [entry["loss"] for entry in run.state.log_history if "loss" in entry]
    assert logged == pytest.approx(float(loss.detach()), rel=1e-5)
    for parameter, by_hand in zip(run.model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(parameter, by_hand - 1e-2 * by_hand.grad, rtol=1e-4, atol=1e-6)


def test_the_trainer_and_its_arguments_name_no_objective():
    classes = {kind.__name__ for kind in objectives.VoteWeights.__subclasses__()}
    assert "GroupWeights" in classes
    for name in ("trainer", "config", "batches", "metrics", "self_test", "reference", "checkpoints"):
        source = (Path(trainer_module.__file__).parent / f"{name}.py").read_text()
        texts = {n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant)}
        assert not [kind for kind in classes if kind in source], name
        assert not texts & registry.OBJECTIVES.keys(), name
