"""`BiasAdjustedDPOTrainer` equals TRL's trainer bit by bit at theta = 0, and estimates, saves and resumes theta."""

import copy
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset, IterableDataset
from PIL import Image
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    Qwen2Config,
)
from trl import DPOConfig, DPOTrainer

from badpo.data.forgetting import find_people, forget
from badpo.data.privacy import pseudonyms
from badpo.data.problems import ConfigError, DataError
from badpo.objective.bias import BiasTerm
from badpo.training.metrics import NotFiniteError
from badpo.trl import COLUMN, BiasAdjustedDPOTrainer
from tests import tiny
from tests.training.tiny_runs import PLAIN, lora

LENGTH = "length:ratio=1.5"
# Length bias of each annotator, in log-odds.
TRUE_BIAS = np.linspace(-2.5, 2.5, 6)
IMAGE_TEMPLATE = (
    "{% for message in messages %}{{ '<' + message['role'] + '> ' }}{% for part in message['content'] %}"
    "{{ '<image>' if part['type'] == 'image' else part['text'] }} {% endfor %}{{ '<end> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant> ' }}{% endif %}"
)


@cache
def rows(n_votes: int, with_images: bool = False) -> list[dict]:
    """Make votes of six annotators, each with another length bias; both answers have the same quality."""
    rng = np.random.default_rng(0)
    pairs = [[" ".join(rng.choice(tiny.WORDS, n)) for n in (3, 6)] for _ in range(16)]
    votes = []
    for i in range(n_votes):
        annotator = int(rng.integers(len(TRUE_BIAS)))
        answers = pairs[i % 16]
        wins = int(rng.random() < 1 / (1 + np.exp(-TRUE_BIAS[annotator])))
        row = {"prompt": f"the cat ran w{i % 16}", "annotator": f"person {annotator}"}
        row |= {"chosen": answers[wins], "rejected": answers[not wins]}
        if with_images:
            roles = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}
            row |= {name: [{"role": role, "content": row[name]}] for name, role in roles.items()}
            row["prompt"][0]["content"] = [{"type": "image"}, {"type": "text", "text": f"the w{i % 16}"}]
            row["images"] = [Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8))]
        votes.append(row)
    return votes


def annotator_names() -> list[str]:
    return pseudonyms([f"person {k}" for k in range(len(TRUE_BIAS))])


@cache
def vision_models() -> list[LlavaForConditionalGeneration]:
    """Make a policy and a different reference; each run uses copies of them."""
    models, sizes = [], dict(hidden_size=16, intermediate_size=32, num_hidden_layers=2)
    vision = CLIPVisionConfig(
        image_size=8, patch_size=4, projection_dim=16, num_attention_heads=2, **sizes
    )
    image = processor().tokenizer.convert_tokens_to_ids("<image>")
    for seed in (0, 1):
        torch.manual_seed(seed)
        text = Qwen2Config(vocab_size=64, **tiny.SIZES)
        config = LlavaConfig(vision_config=vision, text_config=text, image_token_id=image)
        models.append(LlavaForConditionalGeneration(config).eval())
    return models


@cache
def processor() -> LlavaProcessor:
    tokenizer, side = tiny.tokenizer(), {"height": 8, "width": 8}
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    images = CLIPImageProcessorPil(size={"shortest_edge": 8}, crop_size=side)
    return LlavaProcessor(
        images,
        tokenizer,
        chat_template=IMAGE_TEMPLATE,
        patch_size=4,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )


def make_trainer(
    folder, data=None, *, kind=BiasAdjustedDPOTrainer, settings=(), images=False, **options
):
    steps = dict(per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=2)
    steps |= dict(learning_rate=1e-3, beta=0.3, logging_steps=1, save_strategy="no")
    args = DPOConfig(str(folder), **(PLAIN | steps | dict(settings)))
    data = data if data is not None else Dataset.from_list(rows(48, images))
    # with another reference, the margins of the first step are not zero
    model, reference = copy.deepcopy(vision_models()) if images else (tiny.model(), tiny.model(seed=1))
    options.setdefault("ref_model", None if "peft_config" in options else reference)
    options.setdefault("processing_class", processor() if images else tiny.tokenizer())
    if kind is BiasAdjustedDPOTrainer:
        options.setdefault("attributes", LENGTH)
    return kind(model, args=args, train_dataset=data, **options)


def train(folder, data=None, checkpoint=None, **options):
    run = make_trainer(folder, data, **options)
    run.train(resume_from_checkpoint=checkpoint)
    return run


CASES = {
    "text": {},
    "images": dict(images=True),
    "adapter, several losses, bf16, checkpointed": dict(
        settings=dict(loss_type=["sigmoid", "hinge", "sft"], loss_weights=[1, 0.5, 0.1])
        | dict(bf16=True, gradient_checkpointing=True)
    ),
    "precomputed, weighted": dict(
        settings=dict(precompute_ref_log_probs=True, ld_alpha=0.5, use_weighting=True)
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_at_zero_theta_all_weights_and_metrics_equal_trl(tmp_path, case):
    options = CASES[case] | (dict(peft_config=lora()) if case.startswith("adapter") else {})
    trl_run = train(tmp_path / "trl", kind=DPOTrainer, **options)
    run = train(tmp_path, bias_learning_rate=0.0, **options)
    weights = dict(run.model.named_parameters())
    for name, weight in trl_run.model.named_parameters():
        assert torch.equal(weight, weights[name]), name
    for line, other in zip(trl_run.state.log_history[:-1], run.state.log_history[:-1], strict=True):
        assert {name: other[name] for name in line} == line and other["bias/theta/length"] == 0
    data = Dataset.from_list(rows(20, "images" in options))
    expected, measured = trl_run.evaluate(data), run.evaluate(data)
    different = {name for name, value in expected.items() if measured[name] != value}
    assert all(name.endswith(("_runtime", "_per_second")) for name in different), different
    # theta had gradients in every step, and W152 reports a start that differs from the reference
    assert run.theta_rule.optimizer.state_dict()["state"][0]["exp_avg"].any()
    assert ("W152" in [f.code for f in run.findings]) == (run.ref_model is not None)


@pytest.mark.parametrize(
    ("losses", "compute_losses"),
    [
        (["sigmoid"], lambda z: -torch.nn.functional.logsigmoid(z)),
        (["hinge", "sigmoid"], lambda z: torch.relu(1 - z) - torch.nn.functional.logsigmoid(z)),
    ],
)
def test_loss_gradient_and_metrics_follow_from_margin_plus_bias(tmp_path, losses, compute_losses):
    precomputed = len(losses) > 1
    settings = dict(loss_type=losses, precompute_ref_log_probs=precomputed)
    run = make_trainer(tmp_path, settings=settings, bias_fit="adam")
    run.bias.start_at(torch.linspace(-2, 3, 6)[:, None])
    batch = next(iter(run.get_train_dataloader()))
    policy, reference = (
        torch.stack(run.compute_ref_log_probs(model, batch)) for model in (run.model, run.ref_model)
    )
    rewards = 0.3 * (policy - reference)
    u = rewards[0] - rewards[1]
    inputs = batch["bias_inputs"].view(torch.float64)
    theta = run.bias.theta().detach().requires_grad_()
    b = theta[inputs[:, 0].long(), 0] * inputs[:, 1]
    expected = compute_losses(u + b).mean()
    expected.backward()
    run.model.train()
    assert run.compute_loss(run.model, batch).item() == pytest.approx(expected.item(), abs=1e-6)
    assert run.bias.deviation.grad.numpy() == pytest.approx(theta.grad.numpy(), abs=1e-6)
    assert run.bias.mean.grad.numpy() == pytest.approx(theta.grad.sum(0).numpy(), abs=1e-6)
    assert abs(theta.grad).max() > 0.05
    policy_rewards = dict(zip(["chosen", "margins", "accuracies"], [rewards[0], u, u > 0], strict=True))
    logged = {f"rewards/{name}": values.float().mean() for name, values in policy_rewards.items()}
    logged["votes/accuracy"] = (u + b > 0).float().mean()
    for name, value in logged.items():
        assert run._metrics["train"][name] == [pytest.approx(value.item(), abs=1e-6)], name
    run.save_model()
    assert BiasTerm.load(f"{tmp_path}-bias").extra["theta_in_log_odds"] == (losses == ["sigmoid"])


def test_a_simulated_bias_is_estimated(tmp_path):
    settings = dict(per_device_train_batch_size=32, gradient_accumulation_steps=1)
    settings |= dict(learning_rate=1e-6, max_steps=25)
    data = Dataset.from_list(rows(400))
    theta = train(tmp_path, data, settings=settings, bias_learning_rate=0.2).bias.summary()["theta"]
    bias = [theta[name]["length"] for name in annotator_names()]
    assert np.corrcoef(bias, TRUE_BIAS)[0, 1] > 0.9
    assert 0.5 < np.ptp(bias) / np.ptp(TRUE_BIAS) < 2


def test_a_resumed_run_equals_an_uninterrupted_run_and_theta_is_not_saved_with_the_policy(tmp_path):
    saving = dict(max_steps=4, save_strategy="steps", save_steps=1, save_total_limit=2)
    options = dict(settings=saving, bias_learning_rate=0.05)
    run, bias = tmp_path / "run", tmp_path / "run-bias"
    other_run = bias / "checkpoint-9"
    other_run.mkdir(parents=True)
    (other_run / "trainer_state.json").touch()
    whole = train(f"{run}/", **options)
    for folder in (None, run / "model", tmp_path / "other"):
        whole.save_model(folder)
    assert {path.name for path in bias.iterdir()} == {
        *("checkpoint-3", "checkpoint-4", "checkpoint-9", "model"),
        *("run", "bias.json", "bias.safetensors"),
    }
    saved = BiasTerm.load(bias)
    assert torch.equal(saved.theta(), whole.bias.theta()) and saved.extra["variant"] == "shared_mean"
    inside = b"".join(path.read_bytes() for path in run.rglob("*") if path.is_file())
    assert not any(name.encode() in inside for name in whole.bias.annotators)
    last = str(run / "checkpoint-3")
    resumed = train(run, checkpoint=last, **options)
    assert torch.equal(resumed.bias.theta(), whole.bias.theta())
    assert resumed.first_margin == whole.first_margin
    for weight, other in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(weight, other)
    # the checkpoint of a run in a folder inside the output folder
    make_trainer(tmp_path, bias_learning_rate=0.05)._load_theta(Path(last))
    changes = {
        "attributes and data": dict(attributes="length:ratio=3"),
        "variant and parts": dict(bias=BiasTerm(["length"], whole.bias.annotators, ["mean"])),
    }
    changes["data"] = dict(data=Dataset.from_list(rows(40)))
    for names, changed in changes.items():
        with pytest.raises(ConfigError, match=f"differs from this run in {names}"):
            train(run, checkpoint=last, **(options | changed))
    # theta of each policy is in a folder next to the policy
    left = forget(find_people(["person 2"]), runs=[run, tmp_path / "other"])
    policies = [run, bias / "run" / "model", tmp_path / "other"]
    assert [trace.path for trace in left if not trace.goes] == policies
    assert not [*tmp_path.rglob("bias.*")]
    with pytest.raises(ConfigError, match="run-bias/checkpoint-3"):
        train(run, checkpoint=last, **options)


def test_the_best_checkpoint_restores_its_theta(tmp_path):
    best = dict(save_strategy="steps", eval_strategy="steps", save_steps=1, eval_steps=1)
    best |= dict(load_best_model_at_end=True, greater_is_better=True, learning_rate=0)
    data = Dataset.from_list(rows(48)[:8])
    run = train(tmp_path, eval_dataset=data, settings=best, bias_learning_rate=0.5)
    assert Path(run.state.best_model_checkpoint).name == "checkpoint-1"
    first, second = (BiasTerm.load(f"{tmp_path}-bias/checkpoint-{i}").theta() for i in (1, 2))
    assert torch.equal(run.bias.theta(), first) and not torch.equal(first, second)


@pytest.mark.parametrize("precomputed", [False, True])
def test_evaluation_reports_rewards_without_bias_and_the_loss_with_the_bias_of_the_annotators(
    tmp_path, precomputed
):
    data = Dataset.from_list([row | {COLUMN: [0.0, 0.0]} for row in rows(48)])
    settings = dict(precompute_ref_log_probs=precomputed)
    run = make_trainer(tmp_path, data, eval_dataset={"known": data}, settings=settings)
    theta = [[3 * TRUE_BIAS[annotator_names().index(name)] + 0.5] for name in run.bias.annotators]
    run.bias.start_at(torch.tensor(theta))
    new_annotators = data.map(lambda row: {"annotator": "new " + row["annotator"]})
    known, unknown = run.evaluate(), run.evaluate({"new": new_annotators})
    names = [f"eval_rewards/{name}" for name in ("chosen", "rejected", "margins", "accuracies")]
    assert {name: known[name] for name in names} == {name: unknown[name] for name in names}
    assert abs(known["eval_known_loss"] - unknown["eval_new_loss"]) > 0.05
    assert known["eval_votes/accuracy"] > unknown["eval_votes/accuracy"]
    run.bias.start_at(torch.full((6, 1), 0.5))
    # the pool mean is the theta of every annotator
    for name, metrics in {
        "eval": run.evaluate(new_annotators),
        "test": run.predict(new_annotators).metrics,
    }.items():
        assert metrics[f"{name}_loss"] == pytest.approx(unknown["eval_new_loss"], abs=1e-6)
    with pytest.raises(ConfigError, match="not a dict"):
        run.predict({"new": new_annotators})
    run.ref_model, run.state.global_step = None, 1
    if precomputed:
        with pytest.raises(ConfigError, match="precompute_ref_log_probs"):
            run.predict(new_annotators)


def test_a_stream_and_a_table_have_the_same_inputs(tmp_path):
    table = rows(48, with_images=True)
    run = make_trainer(tmp_path, images=True)
    stream = IterableDataset.from_generator(lambda: iter(table))
    term = BiasTerm(["length"], run.bias.annotators, ["mean", "deviation"])
    # theta of a stream is fitted for the first time at the fourth step
    streamed = train(tmp_path, stream, bias=term, images=True, settings=dict(max_steps=4))
    inputs, same = ([row[run._column] for row in r.train_dataset] for r in (streamed, run))
    assert inputs == same
    assert {d for _, d in inputs} == {-1.0, 1.0} and {k for k, _ in inputs} == {*range(6)}
    assert streamed.bias.theta().any()
    raw = BiasTerm(["length"], ["person 1", "person 2"], ["mean"])
    for bias, subject in [("pooled", "a stream"), (raw, "the bias term has none")]:
        with pytest.raises(ConfigError, match=subject):
            make_trainer(tmp_path, stream, bias=bias, images=True)


def test_theta_uses_the_mean_gradient_over_micro_batches_and_processes(tmp_path, monkeypatch):
    moments = []
    for size, parts in [(8, 1), (4, 2)]:
        sizes = dict(per_device_train_batch_size=size, gradient_accumulation_steps=parts, seed=1)
        run = train(tmp_path, settings=sizes, bias_fit="adam")
        moments.append(run.theta_rule.optimizer.state_dict()["state"][1]["exp_avg"].numpy())
    assert moments[0] == pytest.approx(moments[1], abs=1e-6) and abs(moments[0]).max() > 1e-3
    reduce = "accelerate.Accelerator.reduce"
    monkeypatch.setattr(reduce, lambda self, tensor, reduction: tensor * (reduction != "mean"))
    assert not train(tmp_path, settings=dict(max_steps=1), bias_fit="adam").bias.theta().any()
    monkeypatch.setattr(reduce, lambda self, tensor, reduction: tensor * np.nan)
    with pytest.raises(NotFiniteError, match="gradient of theta"):
        train(tmp_path, bias_fit="adam")


def test_the_default_rule_is_the_anchored_fit_for_likelihoods_and_adam_for_other_losses(tmp_path):
    fits = [
        (dict(), "AnchoredFit"),
        (dict(loss_type="robust", label_smoothing=0.1), "AnchoredFit"),
        (dict(loss_type="hinge"), "AdamSteps"),
    ]
    for settings, rule in fits:
        run = train(tmp_path, settings=settings | dict(max_steps=1), bias="pooled")
        assert type(run.theta_rule).__name__ == rule and run.bias.theta().any()


TABLE = Dataset.from_list(rows(8))
WITHOUT_ANNOTATOR = Dataset.from_list([*rows(8), rows(8)[0] | {"annotator": None}])


@pytest.mark.parametrize(
    ("settings", "options", "pattern"),
    [
        (dict(loss_type="ipo"), {}, "loss_type ipo "),
        (dict(loss_type=["sigmoid", "aot"]), {}, "loss_type aot, sigmoid"),
        (dict(loss_type="sft"), {}, "loss_type sft "),
        (dict(f_divergence_type="forward_kl"), {}, "f_divergence_type: forward_kl .*reverse_kl"),
        (
            dict(auto_find_batch_size=True),
            {},
            "auto_find_batch_size: True .*per_device_train_batch_size",
        ),
        (dict(sync_ref_model=True), {}, "sync_ref_model: True .*False"),
        (dict(loss_type="hinge"), dict(warm_start="offline"), "warm_start offline"),
        ({}, dict(bias_learning_rate="1e-2"), "bias_learning_rate .*str"),
        ({}, dict(bias="shared-mean"), 'bias is "shared-mean"'),
        ({}, dict(bias=BiasTerm(["length"], ["everyone"], ["mean"])), "the bias term has 1 annotator"),
        ({}, dict(columns={"weight": "half"}), r'columns=\{"weight": None\}'),
        ({}, dict(data=rows(48)), "train_dataset is a list"),
        ({}, dict(gold_annotators="person 2"), "gold_annotators"),
        ({}, dict(eval_dataset={"held out": rows(48)}), "a data set is a list"),
        ({}, dict(args={"beta": 0.3}), "args is a dict"),
        (
            {},
            dict(data=TABLE.rename_column("prompt", "question")),
            r"rename_columns\({'question': 'prompt'}\)",
        ),
        (
            {},
            dict(data=TABLE.remove_columns("rejected")),
            "BADPOTrainer",
        ),
        (
            {},
            dict(data=WITHOUT_ANNOTATOR),
            r"BiasAdjustedDPOTrainer\(..., columns=\{'annotator': None\}\)",
        ),
    ],
)
def test_an_unusable_argument_is_refused(tmp_path, settings, options, pattern):
    data = Dataset.from_list([row | {"half": 0.5} for row in rows(48)[:8]])
    arguments = dict(args=DPOConfig(str(tmp_path), **(PLAIN | settings)), attributes=LENGTH)
    arguments |= dict(train_dataset=options.get("data", data))
    arguments |= {name: value for name, value in options.items() if name != "data"}
    with pytest.raises((ConfigError, DataError), match=pattern):
        BiasAdjustedDPOTrainer("no model", **arguments)


def test_variants_have_the_same_start_and_gold_annotators_as_in_badpotrainer(tmp_path, caplog):
    warm = make_trainer(tmp_path, bias="pooled", warm_start="offline")
    (estimate,) = warm.judgments.offline_log_odds()
    assert warm.bias.theta()[0].item() == pytest.approx(estimate.log_odds, abs=1e-6)
    # W140 reports the rows that TRL drops because of their length; theta and the facts of the run do not use them
    full = [row | {"prompt": "the cat ran " * 10} for row in rows(48)[:2]]
    eval_dataset = {"train": Dataset.from_list(rows(8)[:1] + full)}
    options = dict(bias="pooled", warm_start="offline", settings=dict(max_length=24))
    cut = make_trainer(
        tmp_path, Dataset.from_list(full + rows(48)), eval_dataset=eval_dataset, **options
    )
    assert cut.judgments.n_votes == len(cut.train_dataset) == 48
    assert cut._facts == warm._facts and torch.equal(cut.bias.theta(), warm.bias.theta())
    reports = [finding.what[:19] for finding in cut.findings if finding.code == "W140"]
    assert reports == ["2 of 50 rows (train", "2 of 3 rows (train)"] and reports[0] in caplog.text
    with pytest.raises(DataError, match="E140"):
        make_trainer(tmp_path, Dataset.from_list(full), **options)
    renamed = Dataset.from_list(rows(48)).rename_column("annotator", "who")
    alone = make_trainer(tmp_path, renamed.remove_columns("who"), attributes=())
    assert alone.judgments.attribute_names == ("length",) and "N163" in caplog.text
    options = dict(columns={"annotator": "who"}, gold_annotators=["person 2"])
    gold = train(tmp_path, renamed, **options)
    assert alone.bias.parts == ("mean",) and gold.bias.parts == ("mean", "deviation")
    array = dict(bias=gold.bias, gold_annotators=np.array(["person 2"]))
    assert make_trainer(tmp_path, renamed, **(options | array)).bias.gold_annotators
    # the finding shows how to drop repeated rows, because the trainer has no argument for it
    assert "select(Judgments.read(dataset, repeated='last', columns={'annotator': 'who'})" in caplog.text
    held = gold.bias.annotators.index(pseudonyms(["person 2"])[0])
    assert (gold.bias.theta() == 0).flatten().nonzero().tolist() == [[held]]
    plain = train(tmp_path, bias="none", settings=dict(max_steps=1))
    assert plain.theta_rule is None and not plain.bias.theta().any()


def test_the_example_of_the_documentation_runs(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "trl.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.S)
    monkeypatch.chdir(tmp_path)
    example = example.replace("=5e-7", "=1e-3, bf16=False, use_cpu=True, max_steps=2")
    for part in (vision_models()[0], processor()):
        part.save_pretrained("my-vision-model")
    votes = Dataset.from_list(rows(48, with_images=True)).rename_column("annotator", "worker")
    votes.to_parquet("votes.parquet")
    exec(compile(example, "docs/trl.md", "exec"), {})
    assert re.search(r"{'length': -?0\.\d+}", capsys.readouterr().out)
    assert BiasTerm.load("runs/vision-bias").theta().any()
