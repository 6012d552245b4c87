"""The scale of the paper with one-layer models of the same architectures."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from badpo.anchoring import source as anchor_source
from badpo.anchoring import targets as anchor
from badpo.anchoring.offset_stage import StageSettings
from badpo.data.problems import ConfigError
from badpo.readouts.generation import Decoding, sample
from badpo.readouts.name_rates import name_probabilities, signature_contexts
from badpo.readouts.names import FIRST_NAMES
from badpo.runs.run import read_facts
from badpo.runs.start import load_model
from badpo.training import config as config_module
from badpo.training.encoding import encode_prompts, encode_responses
from badpo.training.recipe import ModelChoice
from badpo.training.supervised import supervised_arguments
from badpo.training.trainer import BADPOTrainer
from badpo_paper import datasets, schedule
from badpo_paper.corpora.public import HELD_OUT, PUBLISHED_ULTRAFEEDBACK, draw_ultrafeedback
from badpo_paper.corpus_stage import make_run_recipe, prepare_stage
from badpo_paper.datasets import (
    load_fresh_prompts,
    load_public_dataset,
    load_signed_dataset,
    load_style_dataset,
)
from badpo_paper.reproduce import run_suites
from badpo_paper.schedule import read_states, silent
from badpo_paper.settings import PAPER, SCALES, build_tokenizer
from badpo_paper.suites import ARMS, SUITES, Condition, Corpus
from tests.paper.chat_templates import AROUND, FAMILIES, set_family
from tests.paper.corpora import public_rows
from tests.paper.suite_scale import SIGNED, STYLE, dataset, small, suite
from tests.paper.test_schedule import DPO, FRESH, SigningBench

SHAPE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
SHAPE |= {"num_key_value_heads": 2, "max_position_embeddings": 2048}
MODELS = {"small": "Qwen2", "large": "Llama", "other": "Mistral"}


def save_model(kind: str, auto_class, tokenizer, folder: Path, **more) -> Path:
    torch.manual_seed(0)
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "eos_token_id", "bos_token_id")}
    config = getattr(transformers, f"{kind}Config")(vocab_size=len(tokenizer), **SHAPE, **ids, **more)
    auto_class.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_tokenizer(family: str):
    texts = dataset(SIGNED).texts
    return set_family(build_tokenizer(texts, vocab_size=600), family)


ON_BUNDLED = replace(SCALES["paper"], dataset=partial(dataset, held_out=HELD_OUT))
# Four steps instead of the paper's 1000 steps.
SHORT = {"max_steps": 4, "gradient_accumulation_steps": 2}


@pytest.fixture
def stand_ins(tmp_path):
    """The scale of the paper with local models, a local judge and bundled votes."""
    keys = {}
    for model, kind in MODELS.items():
        folder = save_model(kind, AutoModelForCausalLM, make_tokenizer(model), tmp_path / model)
        reference = PAPER[model]["reference"] | {"max_steps": 2}
        local = {"model_name_or_path": str(folder), "reference": reference}
        keys[model] = {**PAPER[model], **SHORT, **local}
    tokenizer, more = make_tokenizer("small"), {"head_dim": 8, "num_labels": 1}
    judge = save_model(
        "Qwen3", AutoModelForSequenceClassification, tokenizer, tmp_path / "judge", **more
    )
    return replace(ON_BUNDLED, keys=keys, decoding=Decoding(max_new_tokens=8), judge=str(judge))


@pytest.mark.parametrize("model", list(MODELS))
def test_a_run_has_the_settings_of_its_preset(model, tmp_path, monkeypatch):
    stage = prepare_stage(Corpus("signed", model), ON_BUNDLED, None, tmp_path)
    lora, is_full = stage.recipe.model, model == "small"
    assert stage.recipe.data.held_out == 0.1 and stage.decoding == Decoding(512, 0.7, 0.9)
    assert stage.reference.reference.max_steps == stage.train.n_comparisons // 32
    assert (lora.use_peft, lora.dtype) == ((False, "float32") if is_full else (True, "bfloat16"))
    for module in (config_module, transformers.training_args):
        monkeypatch.setattr(module, "is_torch_bf16_gpu_available", lambda: True)
    args = make_run_recipe(Condition("pooled"), ARMS["pooled"], 42, stage).arguments()
    assert supervised_arguments(tmp_path).bf16 and args.bf16
    settings = (args.max_steps, args.beta, args.batching, args.encoding)
    assert settings == (1000, 0.1, "random", "paper")


@pytest.mark.parametrize("family", list(MODELS))
def test_prompts_and_answers_are_encoded_as_the_template_writes_them(family):
    tokenizer, (before, after) = make_tokenizer(family), AROUND[family]
    (ids,) = encode_prompts(["How do I boil rice?"], tokenizer, "paper", 384)
    assert tokenizer.decode(ids) == f"{before}How do I boil rice?{after}"
    first = tokenizer.bos_token_id
    assert first is None or (ids[0] == first and list(ids).count(first) == 1)
    # a long prompt is cut at its beginning
    (cut,) = encode_prompts(["How do I boil rice?" * 40], tokenizer, "paper", 20)
    assert len(cut) == 20 and tokenizer.decode(cut).endswith(after)
    # an answer ends with the end-of-text token, or is cut
    question, answer = "How do I boil rice?", "Boil the water.\n\n\u2014 Emily Walsh"
    ((prompt, whole),) = encode_responses([question], [answer], tokenizer, "paper", 1280, 384)
    assert tokenizer.decode(whole) == answer + FAMILIES[family][2]
    ((_, cut),) = encode_responses([question], [answer], tokenizer, "paper", len(prompt) + 3, 384)
    assert cut.tolist() == whole[:3].tolist()


@pytest.mark.parametrize("family", list(MODELS))
def test_names_are_scored_after_the_signature_mark(stand_ins, family):
    name = stand_ins.keys[family]["model_name_or_path"]
    model, tokenizer = load_model(name, ModelChoice(model_name_or_path=name))
    (prompt,) = encode_prompts(["How do I boil rice?"], tokenizer, "paper", 384)
    (answer,) = sample(model, tokenizer, [prompt], 4, seed=0)
    signed = replace(answer, text="Boil the water.\n\n\u2014 Emily Walsh")
    (context,) = signature_contexts([signed], tokenizer)
    assert tokenizer.decode(context) == tokenizer.decode(prompt) + "Boil the water.\n\n\u2014 "
    names = name_probabilities(model, tokenizer, [context], FIRST_NAMES)
    assert names.shape == (1, 89) and names.sum() == pytest.approx(1) and names.std() > 0


@pytest.mark.parametrize(
    "model",
    ["judge", "small"],
)
def test_a_model_with_a_missing_file_is_reported_before_training(stand_ins, tmp_path, model):
    (tmp_path / model / "config.json").unlink()
    runs = small(tmp_path / "out", suite(DPO), scale=stand_ins, dataset=None)
    with pytest.raises(ConfigError, match=f"(?s){model}.*config.json"):
        run_suites(runs, silent)
    assert not (tmp_path / "out").exists()


def test_all_missing_models_are_reported(tmp_path):
    missing = {model: str(tmp_path / f"no-{model}") for model in MODELS}
    keys = {model: {**PAPER[model], "model_name_or_path": name} for model, name in missing.items()}
    runs = small(tmp_path / "out", SUITES["names"], scale=ON_BUNDLED, keys=keys, judge="no-judge")
    with pytest.raises(ConfigError) as error:
        run_suites(runs, silent)
    *lines, _ = str(error.value).splitlines()
    for line, name in zip(lines, (missing["small"], missing["large"], "no-judge"), strict=True):
        assert line.startswith(f'cannot load "{name}"')
    assert not (tmp_path / "out").exists()


@pytest.fixture
def no_public_corpora():
    """Clear the caches of public corpora after a test."""
    yield
    for function in (load_signed_dataset, load_style_dataset, load_fresh_prompts, draw_ultrafeedback):
        function.cache_clear()


@pytest.mark.slow
def test_signed_ultrafeedback_is_read_from_a_file(no_public_corpora, tmp_path):
    path = tmp_path / "train_prefs.parquet"
    public_rows.ultrafeedback(11_700).to_parquet(path)
    public = load_public_dataset(SIGNED, path)
    trained = set(public.judgments.comparisons["prompt"])
    fresh = SCALES["paper"].fresh_prompts(path)
    signing = {prompt.split("\n\n")[0] for prompt in public.prompts}
    assert len(trained) == 8_000 and len(fresh) == 3_300 and len(signing) == 300
    assert not trained & set(fresh) and not trained & signing and not signing & set(fresh)
    other = load_public_dataset(Corpus("signed", data_seed=1), path)
    assert other.judgments.fingerprint() != public.judgments.fingerprint() and other.statistics == ()
    lines = datasets.describe_statistics([public])
    assert f"{'usable_pairs':<32}     8,000      7,177  differs" in lines
    (warning,) = [line for line in lines if line.startswith("warning: ")]
    assert f"of {len(PUBLISHED_ULTRAFEEDBACK)} agree with the published statistics" in warning


@pytest.mark.slow
def test_a_suite_runs_on_multipref_from_a_file(stand_ins, no_public_corpora, tmp_path, caplog):
    path = tmp_path / "multipref.parquet"
    public_rows.multipref(120).to_parquet(path)
    gap = suite(DPO, corpus=STYLE, columns={"gap": "heldout.length.gap"})
    with caplog.at_level("INFO", logger="badpo_paper"):
        runs = small(tmp_path / "out", gap, scale=stand_ins, data=path, dataset=load_public_dataset)
        (result,) = run_suites(runs, silent)
    assert result.tables[0].missing == ()
    # votes of people have no ceiling
    dpo = json.loads((tmp_path / "out/style/dpo-s42/readouts.json").read_text())
    assert "ceiling" not in dpo and not any("planted" in name for name in dpo["theta"]["length"])
    assert f"{'comparisons':<32}       120     10,461  differs" in caplog.text
    assert "of 21 agree with the published statistics" in caplog.text


def every_condition(kind: str, names: list[str]) -> list[Condition]:
    """List the conditions that suites train on the small model, with one anchored condition."""
    rows = [row for name in names for panel in SUITES[name].panels for row in panel.rows
            if panel.corpus == Corpus(kind)]  # fmt: skip
    conditions = dict.fromkeys(row.condition for row in rows)
    return [c for c in conditions if c.offset is None or c.variant == "exact_0.5"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("corpus", "conditions", "must"),
    [
        (
            SIGNED,
            every_condition("signed", ["names", "names-ablation", "lora", "offset"]),
            "class per_annotator shuffled_ids declared_subset rdpo sampo group_dro em_dpo dpo_lora pooled_lora_fast "
            "dpo_exact_0.5",
        ),
        (
            STYLE,
            every_condition("style", ["multipref-length", "multipref-formatting", "multipref-ablation"]),
            "pooled-length shared_mean_warm-length rdpo_strong group_dro_annotators reliability",
        ),
        (Corpus("signed", "large"), [DPO, Condition("shared_mean")], ""),
        (Corpus("style", "other"), [DPO, Condition("shared_mean")], ""),
    ],
    ids=lambda value: value.folder if isinstance(value, Corpus) else "",
)
def test_every_arm_can_be_trained(stand_ins, tmp_path, monkeypatch, corpus, conditions, must):
    dtypes = {}

    def train(self, *args, _train=BADPOTrainer.train, **kwargs):
        run_dtypes = dtypes.setdefault(Path(self.args.output_dir).parent.name, set())
        run_dtypes |= {
            ("lora" in name, weights.dtype) for name, weights in self.model.named_parameters()
        }
        return _train(self, *args, **kwargs)

    monkeypatch.setattr(BADPOTrainer, "train", train)
    monkeypatch.setattr(schedule, "Bench", SigningBench)
    brief = partial(StageSettings, max_steps=2, per_device_train_batch_size=4)
    monkeypatch.setattr(anchor_source, "StageSettings", brief)
    monkeypatch.setattr(anchor, "FEWEST_ANSWERS", 10)
    assert set(must.split()) <= {condition.name for condition in conditions}
    columns = {"RM minus": "judge.rm_minus.mean", "KL": "kl.per_token"}
    whole = suite(*conditions, corpus=corpus, columns=columns)
    two_steps = {model: {**keys, "max_steps": 2} for model, keys in stand_ins.keys.items()}
    runs = small(tmp_path / "out", whole, scale=stand_ins, keys=two_steps, **FRESH)
    if "em_dpo" in must:
        # the file of a round of another fit, without the marker of its start
        em_dpo_folder = tmp_path / "out" / corpus.folder / "em_dpo-s42"
        em_dpo_folder.mkdir(parents=True)
        (em_dpo_folder / "round0.json").write_text('{"probabilities": [[1.0, 0.0]]}')
    (result,) = run_suites(runs, silent)
    assert result.tables[0].missing == () and result.tables[0].columns == list(columns)
    for condition in conditions:
        folder = tmp_path / "out" / corpus.folder / f"{condition.name}-s42"
        readouts = json.loads((folder / "readouts.json").read_text())
        assert {"tokens", "heldout", "votes", "kl", "judge"} <= set(readouts), condition.name
        has_adapter = (folder / "model" / "adapter_config.json").exists()
        is_lora = ("lora_r", 32) in condition.overrides or corpus.model != "small"
        assert has_adapter == is_lora, condition.name
        adapter_dtypes = {(True, torch.float32), (False, torch.bfloat16)}
        if condition.offset is None and condition.arm != "em_dpo":
            assert dtypes[folder.name] == (adapter_dtypes if has_adapter else {(False, torch.float32)})
            rate = read_facts(folder)["learning_rate"] / two_steps[corpus.model]["learning_rate"]
            assert rate == pytest.approx(condition.rate_factor)
        if condition == DPO:
            first = json.loads((folder / "log.jsonl").read_text().splitlines()[0])
            assert first["loss"] == pytest.approx(0.6931, abs=1e-3)
        if condition.arm == "em_dpo":
            types = readouts["types"]
            assert sum(types["weights"]) == pytest.approx(1.0) and sum(types["annotators"]) == 60
            assert len(json.loads((folder / "round0.json").read_text())["probabilities"]) == 60
    assert set(read_states(runs).values()) == {"done"}
