"""The trainer against TRL, against itself over processes and interruptions, and against the formula."""

from __future__ import annotations

import inspect
import json
import math
import types

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from safetensors.torch import load_file
from transformers import TrainingArguments
from trl import DPOConfig, DPOTrainer

from badpo.attributes import Length
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, DataError
from badpo.objective.bias import BiasTerm
from badpo.objective.objectives import VoteWeights
from badpo.training.checkpoints import damage
from badpo.training.config import BADPOConfig
from badpo.training.trainer import BADPOTrainer
from tests import tiny


def judgments(**options) -> Judgments:
    return Judgments.read(tiny.votes(**options), attributes=[Length(ratio=1.5)])


def config(folder, **options) -> BADPOConfig:
    settings = dict(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=6,
        learning_rate=1e-3,
        bias_learning_rate=1e-2,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        reference_cache=str(folder / "cache"),
        seed=7,
    )
    return BADPOConfig(**(settings | options))


def trainer(
    folder,
    data=None,
    model=None,
    ref_model=None,
    eval_dataset=None,
    peft_config=None,
    objective=None,
    bias_term=None,
    **options,
) -> BADPOTrainer:
    return BADPOTrainer(
        model if model is not None else tiny.model(),
        ref_model,
        config(folder, **options),
        train_dataset=data if data is not None else judgments(),
        eval_dataset=eval_dataset,
        processing_class=tiny.tokenizer(),
        peft_config=peft_config,
        bias=bias_term,
        objective=objective,
    )


def lora(**options):
    from peft import LoraConfig

    return LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM", **options)


def log_lines(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_first_loss_is_log_two_and_first_margin_is_zero(tmp_path):
    run = trainer(tmp_path)
    run.train()
    first = log_lines(tmp_path)[0]
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert first["rewards/margins"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("batching", ["grouped", "comparisons"])
def test_micro_batches_without_comparisons_cost_no_forward_and_change_nothing(
    tmp_path, batching, monkeypatch
):
    votes = tiny.for_the_longer(tiny.votes(n_comparisons=6, per_comparison=4))
    data = Judgments.read(votes, attributes=[Length(ratio=1.5)])
    size = dict(batching=batching, max_steps=2)
    forwards = []
    counted = BADPOTrainer._margins

    def margins(self, model, inputs):
        forwards.append(len(inputs["comparisons"]))
        return counted(self, model, inputs)

    monkeypatch.setattr(BADPOTrainer, "_margins", margins)
    n_judgments = {"grouped": 8, "comparisons": 2}[batching]
    whole = trainer(
        tmp_path / "whole",
        data,
        per_device_train_batch_size=n_judgments,
        gradient_accumulation_steps=1,
        **size,
    )
    whole.train()
    assert forwards == [2, 2]
    forwards.clear()
    cut = trainer(
        tmp_path / "cut", data, per_device_train_batch_size=1, gradient_accumulation_steps=n_judgments, **size
    )
    cut.train()
    assert forwards == [1, 1, 1, 1]
    losses = [[line["loss"] for line in log_lines(tmp_path / name)] for name in ("whole", "cut")]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    for ours, theirs in zip(cut.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(cut.bias.theta(), whole.bias.theta(), rtol=1e-4, atol=1e-6)


def test_training_moves_policy_and_theta(tmp_path):
    before = tiny.model()
    run = trainer(tmp_path, max_steps=20)
    run.train()
    moved = [not torch.equal(p, q) for p, q in zip(before.parameters(), run.model.parameters(), strict=True)]
    assert all(moved)
    assert run.bias.theta().mean() > 0.02
    assert log_lines(tmp_path)[-1]["bias/theta/length"] == round(float(run.bias.theta().detach().mean()), 2)


def test_micro_batches_do_not_change_the_step(tmp_path):
    whole = trainer(tmp_path / "whole", per_device_train_batch_size=8, gradient_accumulation_steps=1)
    parts = trainer(tmp_path / "parts", per_device_train_batch_size=1, gradient_accumulation_steps=8)
    whole.train()
    parts.train()
    for p, q in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(whole.bias.theta(), parts.bias.theta(), rtol=1e-5, atol=1e-7)


def test_a_run_shorter_than_its_logging_steps_is_logged_at_its_end(tmp_path):
    run = trainer(tmp_path, logging_steps=4, max_steps=6)
    run.train()
    *_, fourth, last = run.state.log_history
    assert "loss" in fourth and "loss" not in last and "train_loss" in last
    lines = log_lines(tmp_path)[4:]
    margins = sum(line["rewards/margins"] * line["n_judgments"] for line in lines)
    assert last["rewards/margins"] == pytest.approx(margins / sum(line["n_judgments"] for line in lines))


def test_every_epoch_has_all_judgments_in_an_order_of_its_own(tmp_path):
    seen = []

    class Noting(VoteWeights):
        def __call__(self, step):
            seen.append(
                sorted(zip(step.annotator.tolist(), step.sign.tolist(), step.delta.tolist(), strict=True))
            )
            return super().__call__(step)

    run = trainer(tmp_path, judgments(n_comparisons=8), objective=Noting())
    run.train()
    first, second = seen[:3], seen[3:]  # 24 judgments in steps of 8
    assert first != second
    assert sorted(sum(first, [])) == sorted(sum(second, []))


def test_padded_and_packed_give_the_same_run(tmp_path):
    padded = trainer(tmp_path / "padded", attention="padded")
    packed = trainer(tmp_path / "packed", attention="packed")
    padded.train()
    packed.train()
    for p, q in zip(padded.model.parameters(), packed.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


def test_swapping_every_comparison_changes_nothing(tmp_path):
    frame = tiny.votes()
    swapped = frame.rename(columns={"response_a": "response_b", "response_b": "response_a"})
    swapped["winner"] = swapped["winner"].map({"a": "b", "b": "a"})
    runs = []
    for name, table in [("straight", frame), ("swapped", swapped)]:
        run = trainer(tmp_path / name, Judgments.read(table, attributes=[Length(ratio=1.5)]))
        run.train()
        runs.append(run)
    for p, q in zip(runs[0].model.parameters(), runs[1].model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-6)
    torch.testing.assert_close(runs[0].bias.theta(), runs[1].bias.theta(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("n_comparisons", "killed_at"), [(24, 4), (8, 6)], ids=["in the first epoch", "in the second epoch"]
)
def test_killed_and_resumed_run_is_bit_equal(tmp_path, n_comparisons, killed_at):
    data = judgments(n_comparisons=n_comparisons)
    options = dict(save_strategy="steps", save_steps=2, max_steps=8)
    whole = trainer(tmp_path / "whole", data, **options)
    whole.train()
    whole.save_model()

    folder = tmp_path / "cut"
    cut = trainer(folder, data, **options)

    class Killed(Exception):
        pass

    finish, n_done = cut.finish_step, []

    def finish_then_die():
        n_done.append(1)
        if len(n_done) == killed_at:
            raise Killed
        return finish()

    cut.finish_step = finish_then_die
    with pytest.raises(Killed):
        cut.train()
    assert len(log_lines(folder)) == killed_at - 1

    # without the reference's values of before: they are those of the start, not of the checkpoint
    resumed = trainer(folder, data, **options, reference_cache=str(tmp_path / "another cache"))
    resumed.train(resume_from_checkpoint=True)
    for p, q in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(p, q)
    assert torch.equal(whole.bias.theta(), resumed.bias.theta())
    assert (folder / "log.jsonl").read_text() == (tmp_path / "whole" / "log.jsonl").read_text()


def test_old_checkpoints_go_when_newer_ones_are_sealed(tmp_path):
    trainer(tmp_path, save_strategy="steps", save_steps=2, save_total_limit=2).train()
    assert sorted(path.name for path in (tmp_path / "checkpoints").glob("checkpoint-*")) == [
        "checkpoint-4",
        "checkpoint-6",
    ]


def test_a_damaged_checkpoint_is_passed_over_and_made_again(tmp_path, caplog):
    run = trainer(tmp_path, save_strategy="steps", save_steps=2)
    run.train()
    newest = tmp_path / "checkpoints" / "checkpoint-6"
    weights = newest / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8] + b"\0" * 8)
    again = trainer(tmp_path, save_strategy="steps", save_steps=2)
    with caplog.at_level("WARNING"):
        again.train(resume_from_checkpoint=True)
    assert again.resumed_from.name == "checkpoint-4"
    assert "checkpoint-6/model.safetensors is damaged (its checksum does not match)" in caplog.text
    assert damage(newest) is None


def test_a_second_arm_and_a_second_seed_run_no_reference_forward(tmp_path):
    first = trainer(tmp_path / "first", reference_cache=str(tmp_path / "cache"))
    first.train()
    second = trainer(tmp_path / "second", reference_cache=str(tmp_path / "cache"), bias="pooled", seed=8)
    second.train()
    assert first.reference_cache.n_computed > 0
    assert second.reference_cache.n_computed == 0


def test_saved_model_loads_plainly_keeps_its_dropout_and_names_no_annotator(tmp_path):
    from transformers import AutoModelForCausalLM

    model = tiny.model()
    model.config.attention_dropout = 0.25
    run = trainer(tmp_path, model=model)
    run.train()
    run.save_model()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert (loaded.config.attention_dropout, run.model.config.attention_dropout) == (0.25, 0.0)
    for p, q in zip(run.model.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(p, q)
    content = b"".join(path.read_bytes() for path in (tmp_path / "model").rglob("*") if path.is_file())
    assert b"ann_" not in content and b"badpo" not in content
    assert not list((tmp_path / "model").glob("*.bin"))


def test_what_is_given_to_evaluate_is_evaluated(tmp_path):
    train, held_out = judgments(n_comparisons=40).split(0.25, seed=0)
    others = tiny.votes(n_comparisons=6, seed=5)
    run = trainer(tmp_path, train, eval_dataset=None)
    with pytest.raises(ConfigError, match="no eval_dataset"):
        run.evaluate()
    for given in (held_out, others, {"held_out": held_out, "others": others}):
        run.evaluate(given)  # the reference of the full policy is there until the first step
    run.train()
    given = trainer(tmp_path / "given", train, eval_dataset=held_out, reference_cache=str(tmp_path / "cache"))
    given.train()
    assert run.evaluate(held_out) == given.evaluate() != run.evaluate(others)
    several = run.evaluate({"held_out": held_out, "others": others})
    assert several["eval_held_out_loss"] == given.evaluate()["eval_loss"]
    assert several["eval_others_loss"] == run.evaluate(others)["eval_loss"]
    with pytest.raises(ConfigError, match="has been trained since"):
        run.evaluate(tiny.votes(seed=9))


@pytest.mark.parametrize("given", ["nonsense", 5, [], {}, {"a": 5}, judgments().take(np.zeros(72, bool))])
def test_what_is_no_data_set_is_not_evaluated(tmp_path, given):
    run = trainer(tmp_path, judgments(), eval_dataset=judgments(n_comparisons=3))
    with pytest.raises(ValueError):
        run.evaluate(given)


def test_several_evaluation_sets_are_measured_while_training(tmp_path):
    train, held_out = judgments(n_comparisons=40).split(0.25, seed=0)
    sets = DatasetDict({name: Dataset.from_pandas(tiny.votes(seed=n)) for n, name in enumerate(["a", "b"])})
    run = trainer(tmp_path, train, eval_dataset={**sets, "c": held_out}, eval_strategy="steps", eval_steps=3)
    run.train()
    seen = {key for entry in run.state.log_history for key in entry}
    assert {"eval_a_loss", "eval_b_loss", "eval_c_rewards/margins"} <= seen
    batch = next(iter(run.get_eval_dataloader("b")))
    assert len(batch["sign"]) == run.args.per_device_eval_batch_size
    assert run.evaluate("b")["eval_loss"] == run.evaluate()["eval_b_loss"]
    late = trainer(tmp_path / "late", train, eval_dataset=None)
    late.eval_dataset = tiny.votes(seed=1)
    assert late.evaluate()["eval_loss"] == pytest.approx(math.log(2), abs=1e-6)


def test_what_the_reader_noticed_is_logged_once_and_kept(tmp_path, caplog):
    frame = tiny.votes().assign(tools="[]")
    frame.loc[:5, "winner"] = "tie"
    data = Judgments.read(frame, attributes=[Length(ratio=1.5)])
    with caplog.at_level("INFO", "badpo"):
        run = trainer(tmp_path, data, eval_dataset=data)
    assert set(data.findings) <= set(run.findings)
    for finding in data.findings:
        (record,) = [r for r in caplog.records if r.getMessage() == str(finding)]
        assert record.levelname == ("INFO" if finding.severity == "notice" else "WARNING")
    assert {"W107", "N130"} <= {finding.code for finding in data.findings}


def test_images_are_not_trained_without(tmp_path):
    data = Judgments.read(tiny.votes().assign(images="[]"), attributes=[Length(ratio=1.5)])
    assert "W108" in [finding.code for finding in data.findings]
    for given in (data, tiny.votes().assign(image="cat.png")):
        with pytest.raises(DataError, match="images are not read"):
            trainer(tmp_path, given)


def test_nothing_to_learn_stops_before_the_reference(tmp_path):
    start = "the same words at the start "
    same = tiny.votes().assign(response_a=lambda rows: start + rows["response_a"])
    same["response_b"] = start + same["response_b"]
    with pytest.raises(DataError, match="E144 .*same tokens"):
        trainer(tmp_path, Judgments.read(same, attributes=[Length(ratio=1.5)]), max_length=6)
    with pytest.raises(DataError, match="there is no judgment"):
        trainer(tmp_path, judgments().take(np.zeros(72, bool)))
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"args": "dpo"}, "args is a DPOConfig; give a BADPOConfig"),
        ({"args": "transformers"}, "args is a TrainingArguments; give a BADPOConfig"),
        ({"train_dataset": None}, "`train_dataset` is required"),
        ({"data_collator": print}, "data_collator is refused"),
        ({"compute_metrics": print}, "compute_metrics is refused"),
        ({"quantization_config": object()}, "quantization_config is refused"),
    ],
)
def test_what_dpo_trainer_takes_and_this_cannot_gets_a_sentence(tmp_path, given, said):
    kinds = {"dpo": DPOConfig, "transformers": TrainingArguments}
    if "args" in given:
        given = {"args": kinds[given["args"]](str(tmp_path), use_cpu=True, bf16=False)}
    usual = {"args": config(tmp_path), "train_dataset": judgments(), "processing_class": tiny.tokenizer()}
    with pytest.raises(ConfigError, match=said):
        BADPOTrainer(tiny.model(), **(usual | given))


def test_the_arguments_stand_in_the_order_of_trl():
    ours, theirs = (list(inspect.signature(cls).parameters) for cls in (BADPOTrainer, DPOTrainer))
    assert ours[: len(theirs)] == theirs


def test_several_gpus_without_a_launcher_are_refused_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(BADPOConfig, "n_gpu", 2)
    with pytest.raises(ConfigError, match="accelerate launch --num_processes 2"):
        trainer(tmp_path)


def test_votes_without_annotators_train_one_lean_and_say_so(tmp_path):
    frame = tiny.votes().drop(columns=["annotator", "annotator_class"])
    run = trainer(tmp_path, Judgments.read(frame, attributes=[Length(ratio=1.5)]))
    assert (run.args.bias, run.bias.parts) == ("pooled", ("mean",))
    assert "N161" in [finding.code for finding in run.findings]
    named = trainer(tmp_path)
    assert named.args.bias == "shared_mean" and "N161" not in [finding.code for finding in named.findings]


def test_the_best_weights_come_back_with_their_theta(tmp_path):
    train, held_out = judgments(n_comparisons=40).split(0.25, seed=0)
    scores = iter([0.1, 0.9, 0.2, 0.3])
    often = dict(eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2, max_steps=8)
    best = dict(load_best_model_at_end=True, metric_for_best_model="score", greater_is_better=True)
    run = trainer(tmp_path, train, eval_dataset=held_out, save_total_limit=1, **often, **best)
    measured = run.evaluate
    run.evaluate = lambda *args, **kwargs: measured(*args, **kwargs) | {"eval_score": next(scores)}
    run.train()
    kept = sorted(path.name for path in (tmp_path / "checkpoints").glob("checkpoint-*"))
    assert kept == ["checkpoint-4", "checkpoint-8"]
    theta, last = (BiasTerm.load(tmp_path / "checkpoints" / name).theta() for name in kept)
    assert torch.equal(run.bias.theta(), theta) and not torch.equal(theta, last)
    weights = load_file(tmp_path / "checkpoints" / "checkpoint-4" / "model.safetensors")
    assert torch.equal(run.model.model.norm.weight.detach(), weights["model.norm.weight"])


def test_per_annotator_bias_without_identities_is_refused(tmp_path):
    frame = tiny.votes().drop(columns=["annotator", "annotator_class"])
    data = Judgments.read(frame, attributes=[Length(ratio=1.5)])
    with pytest.raises(ConfigError, match="needs an annotator column"):
        trainer(tmp_path, data, bias="shared_mean")


def test_no_attribute_is_refused_unless_plain_dpo_is_asked_for(tmp_path):
    data = Judgments.read(tiny.votes())
    with pytest.raises(ConfigError, match="at least one attribute"):
        trainer(tmp_path, data)
    trainer(tmp_path, data, bias="none").train()
    assert log_lines(tmp_path)[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)


def test_theta_gradient_is_that_of_the_formula(tmp_path):
    run = trainer(
        tmp_path,
        bias="per_annotator",
        per_device_train_batch_size=72,
        gradient_accumulation_steps=1,
        max_steps=1,
    )
    seen = {}
    step = run.bias_optimizer.step

    def keep_gradient():
        seen["gradient"] = next(run.bias.parameters()).grad.clone()
        return step()

    run.bias_optimizer.step = keep_gradient
    run.train()
    data = run.judgments
    signs = data.votes["sign"].to_numpy()
    expected = np.zeros((data.n_annotators, 1))
    np.add.at(expected, data.votes["annotator"].to_numpy(), -0.5 * signs[:, None] * data.delta / data.n_votes)
    np.testing.assert_allclose(seen["gradient"].numpy(), expected, atol=1e-7)


def test_the_reference_of_an_evaluation_is_the_start_whenever_it_is_asked_for(tmp_path):
    train, held_out = judgments(n_comparisons=40).split(0.25, seed=0)
    early, late = (trainer(tmp_path / name, train, eval_dataset=held_out) for name in ("early", "late"))
    early.evaluate()
    early.train()
    late.train()
    assert late.evaluate() == early.evaluate()
    # nothing of the trained policy was kept as the reference's
    fresh = trainer(
        tmp_path / "fresh", train, eval_dataset=held_out, reference_cache=str(tmp_path / "late" / "cache")
    )
    assert fresh.evaluate()["eval_loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert fresh.reference_cache.n_computed == 0


@pytest.mark.parametrize("peft_config", [None, lora()], ids=["all weights", "adapter"])
def test_the_first_loss_is_log_two_in_bf16(tmp_path, peft_config):
    run = trainer(tmp_path, peft_config=peft_config, bf16=True, max_steps=1)
    computed_in = set()
    gate = next(module for name, module in run.model.named_modules() if name.endswith("gate_proj"))
    gate.register_forward_hook(lambda module, inputs, output: computed_in.add(output.dtype))
    run.train()
    assert log_lines(tmp_path)[0]["loss"] == pytest.approx(math.log(2), abs=1e-3)
    assert computed_in == {torch.bfloat16}
    assert next(run.model.parameters()).dtype == torch.float32
    assert run.findings == []


def test_tensorboard_gets_the_metrics_of_judgments(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    trainer(tmp_path, report_to="tensorboard", max_steps=2).train()
    [written] = tmp_path.rglob("events.out.tfevents.*")
    found = events.EventAccumulator(str(written)).Reload()
    for name in ("loss", "rewards/margins", "rewards/accuracies", "votes/accuracy", "bias/theta/length"):
        scalars = found.Scalars(f"train/{name}")
        assert [scalar.step for scalar in scalars] == [1, 2]
        logged = [line[name] for line in log_lines(tmp_path)]
        assert [scalar.value for scalar in scalars] == pytest.approx(logged, abs=1e-4)


def test_only_the_model_folder_is_published(tmp_path, monkeypatch):
    import huggingface_hub

    calls = []

    def create_repo(self, repo_id, **options):
        calls.append(("create", repo_id))
        return huggingface_hub.RepoUrl(f"https://huggingface.co/someone/{repo_id}")

    def upload_folder(self, *, repo_id, folder_path, **options):
        calls.append(("upload", repo_id, folder_path))
        return types.SimpleNamespace(commit_url="the commit")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create_repo)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload_folder)
    folder = tmp_path / "study" / "shared_mean-s7"
    run = trainer(folder, save_strategy="steps", save_steps=2, push_to_hub=True, hub_model_id="leaning")
    run.train()
    assert calls == []

    assert run.push_to_hub() == "the commit"
    assert calls == [("create", "leaning"), ("upload", "someone/leaning", folder / "model")]
    published = [path for path in (folder / "model").rglob("*") if path.is_file()]
    assert {path.suffix for path in published} <= {".json", ".safetensors", ".jinja"}
    assert not any("bias" in path.name or "optimizer" in path.name for path in published)
    content = b"".join(path.read_bytes() for path in published)
    for name in [*run.judgments.annotators["pseudonym"], "person 0", "ann_"]:
        assert name.encode() not in content
    assert (folder / "bias.json").exists()


@pytest.mark.parametrize("n_comparisons", [24, 16], ids=["within an epoch", "at the end of one"])
@pytest.mark.parametrize("strategy", ["steps", "epoch"])
def test_a_run_that_was_killed_after_its_last_step_takes_no_further_one(tmp_path, n_comparisons, strategy):
    data = judgments(n_comparisons=n_comparisons)
    options = dict(save_strategy=strategy, save_steps=3, max_steps=6, save_total_limit=1)
    whole = trainer(tmp_path, data, **options)
    whole.train()
    newest = tmp_path / "checkpoints" / "checkpoint-6"
    sealed = (newest / "complete.json").stat().st_mtime_ns
    resumed = trainer(tmp_path, data, **options)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 6
    assert [line["step"] for line in log_lines(tmp_path)] == [1, 2, 3, 4, 5, 6]
    assert all(
        torch.equal(p, q) for p, q in zip(whole.model.parameters(), resumed.model.parameters(), strict=True)
    )
    assert torch.equal(whole.bias.theta(), resumed.bias.theta())
    assert (newest / "complete.json").stat().st_mtime_ns == sealed


def test_the_order_of_the_judgments_follows_the_data_seed(tmp_path):
    plans = [
        list(trainer(tmp_path / str(i), **seeds).get_train_dataloader().batch_sampler)
        for i, seeds in enumerate(({"seed": 7}, {"seed": 8, "data_seed": 7}, {"seed": 7, "data_seed": 9}))
    ]
    assert plans[0] == plans[1] != plans[2]
