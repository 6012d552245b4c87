"""TRL's own trainer with the bias term: TRL's to the bit at theta = 0, and theta found, kept and resumed."""

from __future__ import annotations

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

from badpo.data.privacy import pseudonyms
from badpo.data.problems import ConfigError
from badpo.objective.bias import BiasTerm
from badpo.trl import BiasAdjustedDPOTrainer, beside
from tests import tiny
from tests.training.tiny_runs import PLAIN, lora

LENGTH = "length:ratio=1.5"
LEANS = np.linspace(-2.5, 2.5, 6)
IMAGE_TEMPLATE = (
    "{% for message in messages %}{{ '<' + message['role'] + '> ' }}{% for part in message['content'] %}"
    "{{ '<image>' if part['type'] == 'image' else part['text'] }} {% endfor %}{{ '<end> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant> ' }}{% endif %}"
)


@cache
def rows(n_votes: int, with_images: bool = False) -> list[dict]:
    """Votes of six people, each with a lean of their own toward the longer of two answers; quality is nothing."""
    rng = np.random.default_rng(0)
    pairs = [[" ".join(rng.choice(tiny.WORDS, n)) for n in (3, 6)] for _ in range(16)]
    made = []
    for i in range(n_votes):
        who = int(rng.integers(len(LEANS)))
        answers = pairs[i % 16]
        wins = int(rng.random() < 1 / (1 + np.exp(-LEANS[who])))
        row = {"prompt": f"the cat ran w{i % 16}", "annotator": f"person {who}"}
        row |= {"chosen": answers[wins], "rejected": answers[not wins]}
        if with_images:
            roles = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}
            row |= {name: [{"role": role, "content": row[name]}] for name, role in roles.items()}
            row["prompt"][0]["content"] = [{"type": "image"}, {"type": "text", "text": f"the w{i % 16}"}]
            row["images"] = [Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8))]
        made.append(row)
    return made


def vision_model(seed: int = 0) -> LlavaForConditionalGeneration:
    torch.manual_seed(seed)
    sizes = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)
    vision = CLIPVisionConfig(image_size=8, patch_size=4, projection_dim=16, **sizes)
    text = Qwen2Config(vocab_size=64, **tiny.SIZES)
    image = processor().tokenizer.convert_tokens_to_ids("<image>")
    return LlavaForConditionalGeneration(
        LlavaConfig(vision_config=vision, text_config=text, image_token_id=image)
    ).eval()


def processor() -> LlavaProcessor:
    tokenizer, side = tiny.tokenizer(), {"height": 8, "width": 8}
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    images = CLIPImageProcessorPil(size={"shortest_edge": 8}, crop_size=side)
    given = dict(patch_size=4, vision_feature_select_strategy="default", num_additional_image_tokens=1)
    return LlavaProcessor(images, tokenizer, chat_template=IMAGE_TEMPLATE, **given)


def trained(kind, folder, data=None, *, settings=(), images=False, go_on=None, **options):
    steps = dict(per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=3)
    steps |= dict(learning_rate=1e-3, beta=0.3, logging_steps=1, save_strategy="no")
    args = DPOConfig(str(folder), **(PLAIN | steps | dict(settings)))
    data = data if data is not None else Dataset.from_list(rows(48, images))
    make = vision_model if images else tiny.model
    options.setdefault("processing_class", processor() if images else tiny.tokenizer())
    # beside another reference margins and their gradients are not those of the first step
    options.setdefault("ref_model", None if "peft_config" in options else make(seed=1))
    run = kind(make(), args=args, train_dataset=data, **options)
    run.train(resume_from_checkpoint=go_on)
    return run


CASES = {
    "text": {},
    "images": dict(images=True),
    "adapter, several losses": dict(
        settings=dict(loss_type=["sigmoid", "hinge", "sft"], loss_weights=[1, 0.5, 0.1]),
    ),
    "precomputed, weighted": dict(
        settings=dict(precompute_ref_log_probs=True, ld_alpha=0.5, use_weighting=True)
    ),
    "bf16, checkpointed": dict(settings=dict(bf16=True, gradient_checkpointing=True)),
}


@pytest.mark.parametrize("case", CASES)
def test_at_a_theta_of_zero_every_weight_and_metric_is_trls(tmp_path, case):
    options = dict(CASES[case])
    if case.startswith("adapter"):
        options["peft_config"] = lora()
    theirs = trained(DPOTrainer, tmp_path / "trl", **options)
    ours = trained(
        BiasAdjustedDPOTrainer, tmp_path, attributes=LENGTH, bias_learning_rate=0.0, **options
    )
    weights = dict(ours.model.named_parameters())
    for name, weight in theirs.model.named_parameters():
        assert torch.equal(weight, weights[name]), name
    for line, other in zip(theirs.state.log_history[:-1], ours.state.log_history[:-1], strict=True):
        assert {name: other[name] for name in line} == line and other["bias/theta/length"] == 0
    # theta had gradients all the while, and the start is told of where it is not the reference
    assert ours.bias_optimizer.state_dict()["state"][0]["exp_avg"].any()
    assert ("W152" in [f.code for f in ours.findings]) == (ours.ref_model is not None)


@pytest.mark.parametrize(
    ("losses", "cost"),
    [
        (["sigmoid"], lambda z: -torch.nn.functional.logsigmoid(z)),
        (["hinge", "sigmoid"], lambda z: torch.relu(1 - z) - torch.nn.functional.logsigmoid(z)),
    ],
)
@pytest.mark.parametrize("precomputed", [False, True])
def test_loss_and_gradient_are_those_of_u_plus_b(tmp_path, losses, cost, precomputed):
    settings = dict(loss_type=losses, precompute_ref_log_probs=precomputed, learning_rate=0)
    run = trained(BiasAdjustedDPOTrainer, tmp_path, attributes=LENGTH, settings=settings)
    run.bias.start_at(torch.linspace(-2, 3, 6)[:, None])
    batch = next(iter(run.get_train_dataloader()))
    (chosen, rejected), reference = (
        run.compute_ref_log_probs(model, batch) for model in (run.model, run.ref_model)
    )
    u = 0.3 * ((chosen - reference[0]) - (rejected - reference[1]))
    inputs = batch["bias_inputs"].view(torch.float64)
    theta = run.bias.theta().detach().requires_grad_()
    expected = cost(u + theta[inputs[:, 0].long(), 0] * inputs[:, 1]).mean()
    expected.backward()
    run.model.train()
    assert run.compute_loss(run.model, batch).item() == pytest.approx(expected.item(), abs=1e-6)
    assert run.bias.deviation.grad.numpy() == pytest.approx(theta.grad.numpy(), abs=1e-6)
    assert run.bias.mean.grad.numpy() == pytest.approx(theta.grad.sum(0).numpy(), abs=1e-6)
    assert abs(theta.grad).max() > 0.05
    run.save_model()
    told = BiasTerm.load(beside(tmp_path)).extra
    assert told.get("theta_in_log_odds", True) == (losses == ["sigmoid"])


@pytest.mark.parametrize("images", [False, True])
def test_planted_leans_are_found(tmp_path, images):
    settings = dict(per_device_train_batch_size=16, gradient_accumulation_steps=1, max_steps=50)
    settings |= dict(learning_rate=1e-6)
    data, options = Dataset.from_list(rows(400, images)), dict(attributes=LENGTH, images=images)
    options |= dict(settings=settings, bias_learning_rate=0.1)
    run = trained(BiasAdjustedDPOTrainer, tmp_path, data, **options)
    found = run.bias.summary()["theta"]
    names = pseudonyms([f"person {k}" for k in range(6)])
    assert np.corrcoef([found[name]["length"] for name in names], LEANS)[0, 1] > 0.9
    assert 0.5 < np.ptp([found[name]["length"] for name in names]) / np.ptp(LEANS) < 2


def test_a_resumed_run_ends_as_an_uninterrupted_one_and_nothing_of_people_is_with_the_policy(tmp_path):
    saving = dict(max_steps=6, save_strategy="steps", save_steps=2, save_total_limit=2)
    options = dict(attributes=LENGTH, settings=saving, bias_learning_rate=0.05)
    whole = trained(BiasAdjustedDPOTrainer, tmp_path / "run", **options)
    whole.save_model()
    kept = {path.name for path in beside(tmp_path / "run").iterdir()}
    assert kept == {"checkpoint-4", "checkpoint-6", "bias.json", "bias.safetensors"}
    saved = BiasTerm.load(beside(tmp_path / "run"))
    assert torch.equal(saved.theta(), whole.bias.theta()) and saved.extra["variant"] == "shared_mean"
    inside = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert not any(name.encode() in inside for name in whole.bias.annotators)
    last = str(tmp_path / "run" / "checkpoint-4")
    resumed = trained(BiasAdjustedDPOTrainer, tmp_path / "run", go_on=last, **options)
    assert torch.equal(resumed.bias.theta(), whole.bias.theta())
    for weight, other in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(weight, other)
    with pytest.raises(ConfigError, match="other parts than this run"):
        trained(BiasAdjustedDPOTrainer, tmp_path / "run", go_on=last, bias="pooled", **options)


def test_the_best_weights_come_with_their_theta(tmp_path):
    best = dict(save_strategy="steps", eval_strategy="steps", save_steps=1, eval_steps=1, max_steps=3)
    best |= dict(load_best_model_at_end=True, greater_is_better=True, learning_rate=0)
    options = dict(attributes=LENGTH, settings=best, bias_learning_rate=0.5)
    data = Dataset.from_list(rows(48))
    run = trained(BiasAdjustedDPOTrainer, tmp_path, eval_dataset=data, **options)
    name = run.state.best_model_checkpoint.rpartition("/")[2]
    theta = BiasTerm.load(beside(tmp_path) / name).theta()
    assert name != "checkpoint-3" and torch.equal(run.bias.theta(), theta)


def test_evaluation_has_the_rewards_of_the_policy_and_the_loss_of_its_annotators(tmp_path):
    data = Dataset.from_list(rows(48, with_images=True))
    options = dict(attributes=LENGTH, images=True, eval_dataset={"known": data})
    run = trained(BiasAdjustedDPOTrainer, tmp_path, **options)
    people = pseudonyms([f"person {k}" for k in range(6)])
    planted = [[3 * LEANS[people.index(name)] + 0.5] for name in run.bias.annotators]
    run.bias.start_at(torch.tensor(planted))
    strangers = data.map(lambda row: {"annotator": "new " + row["annotator"]})
    known, unknown = run.evaluate(), run.evaluate({"new": strangers})
    of_policy = [f"eval_rewards/{name}" for name in ("chosen", "rejected", "margins", "accuracies")]
    assert {name: known[name] for name in of_policy} == {name: unknown[name] for name in of_policy}
    assert abs(known["eval_known_loss"] - unknown["eval_new_loss"]) > 0.05
    assert known["eval_votes/accuracy"] > unknown["eval_votes/accuracy"]
    run.bias.start_at(torch.full((6, 1), 0.5))
    # the pool's mean, which is theirs
    assert run.evaluate(strangers)["eval_loss"] == pytest.approx(unknown["eval_new_loss"], abs=1e-6)


def test_a_stream_gives_each_row_what_a_table_gives(tmp_path):
    table = rows(48, with_images=True)
    run = trained(BiasAdjustedDPOTrainer, tmp_path, attributes=LENGTH, images=True)
    stream = IterableDataset.from_generator(lambda: iter(table))
    term = BiasTerm(["length"], run.bias.annotators, ["mean", "deviation"])
    options = dict(attributes=LENGTH, bias=term, images=True)
    streamed = trained(BiasAdjustedDPOTrainer, tmp_path, stream, **options)
    inputs = [row["bias_inputs"] for row in streamed.train_dataset]
    assert inputs == [*run.train_dataset["bias_inputs"]]
    assert {d for _, d in inputs} == {-1.0, 1.0} and {k for k, _ in inputs} == {*range(6)}
    assert streamed.bias.theta().any()
    with pytest.raises(ConfigError, match="a stream is not read ahead"):
        trained(BiasAdjustedDPOTrainer, tmp_path, stream, attributes=LENGTH, bias="shared_mean")


def test_theta_takes_the_mean_gradient_of_micro_batches_and_processes(tmp_path, monkeypatch):
    moments = []
    for size, parts in [(8, 1), (4, 2)]:
        sizes = dict(per_device_train_batch_size=size, gradient_accumulation_steps=parts, seed=1)
        run = trained(BiasAdjustedDPOTrainer, tmp_path, attributes=LENGTH, settings=sizes)
        moments.append(run.bias_optimizer.state_dict()["state"][1]["exp_avg"].numpy())
    assert moments[0] == pytest.approx(moments[1], abs=1e-6) and abs(moments[0]).max() > 1e-3
    reduce = "accelerate.Accelerator.reduce"
    monkeypatch.setattr(reduce, lambda self, tensor, reduction: tensor * (reduction != "mean"))
    assert not trained(BiasAdjustedDPOTrainer, tmp_path, attributes=LENGTH).bias.theta().any()


@pytest.mark.parametrize(
    ("settings", "options", "sentence"),
    [
        (dict(loss_type="ipo"), {}, "loss_type ipo: theta is part of a margin"),
        (dict(loss_type=["sigmoid", "aot"]), {}, "loss_type aot, sigmoid"),
        (dict(loss_type="sft"), {}, "with or without sft"),
        (dict(f_divergence_type="forward_kl"), {}, "under reverse_kl alone"),
        (dict(auto_find_batch_size=True), {}, "auto_find_batch_size"),
        (
            dict(loss_type="hinge"),
            dict(warm_start="offline"),
            "warm_start offline needs a loss in log-odds",
        ),
        ({}, dict(bias="shared-mean"), 'bias is "shared-mean"; choose one of none, pooled'),
        ({}, dict(bias=BiasTerm(["length"], ["everyone"], ["mean"])), "the bias term is of 1 annotator"),
        ({}, dict(columns={"weight": "half"}), "TRL counts every vote once"),
    ],
)
def test_what_cannot_be_followed_is_refused_in_a_sentence(tmp_path, settings, options, sentence):
    data = Dataset.from_list([row | {"half": 0.5} for row in rows(48)[:8]])
    with pytest.raises(ConfigError, match=sentence):
        trained(BiasAdjustedDPOTrainer, tmp_path, data, attributes=LENGTH, settings=settings, **options)


def test_variants_start_and_hold_what_they_do_in_badpotrainer(tmp_path):
    once = dict(attributes=LENGTH, settings=dict(max_steps=1))
    warm = trained(
        BiasAdjustedDPOTrainer,
        tmp_path,
        bias="pooled",
        warm_start="offline",
        bias_learning_rate=0.0,
        **once,
    )
    (level,) = warm.judgments.offline_log_odds()
    assert warm.bias.theta()[0].item() == pytest.approx(level.log_odds, abs=1e-6)
    nameless = Dataset.from_list(rows(48)).rename_column("annotator", "who")
    alone = trained(BiasAdjustedDPOTrainer, tmp_path, nameless, **once)
    named = dict(columns={"annotator": "who"}, gold_annotators=["person 2"])
    gold = trained(BiasAdjustedDPOTrainer, tmp_path, nameless, **once, **named)
    assert alone.bias.parts == ("mean",) and gold.bias.parts == ("mean", "deviation")
    held = gold.bias.annotators.index(pseudonyms(["person 2"])[0])
    assert (gold.bias.theta() == 0).flatten().nonzero().tolist() == [[held]]
    beside_it = trained(BiasAdjustedDPOTrainer, tmp_path, bias="none", **once)
    assert beside_it.bias_optimizer is None and not beside_it.bias.theta().any()


def test_the_example_of_the_page_runs(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "trl.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.S)
    monkeypatch.chdir(tmp_path)
    example = example.replace("=5e-7", "=1e-3, bf16=False, use_cpu=True, max_steps=2")
    for part in (vision_model(), processor()):
        part.save_pretrained("my-vision-model")
    votes = Dataset.from_list(rows(48, with_images=True)).rename_column("annotator", "worker")
    votes.to_parquet("votes.parquet")
    exec(compile(example, "docs/trl.md", "exec"), {})
    assert re.search(r"{'length': -?0\.\d+}", capsys.readouterr().out)
    assert BiasTerm.load("runs/vision-bias").theta().any()
