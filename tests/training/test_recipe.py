"""Recipes: what a file says, what it means, and what is said about its mistakes."""

from __future__ import annotations

import pytest
import yaml

from badpo.attributes import Length
from badpo.cli.options import parsed_flags
from badpo.data.problems import ConfigError
from badpo.data.yaml_files import read_yaml
from badpo.objective.bias import VARIANTS
from badpo.training.recipe import BiasBlock, DataChoice, read_recipe
from badpo.training.trl_keys import PRESETS

RECIPE = """\
model_name_or_path: some/model
dataset_name: votes.csv
output_dir: runs/length
learning_rate: 5.0e-7
max_steps: 20
columns: {annotator: worker_id}
attributes:
  - {type: length, ratio: 1.5}
  - markdown
bias:
  variant: pooled
"""

TRL_FILE = """\
# as trl dpo takes it
model_name_or_path: some/model
dataset_name: trl-lib/ultrafeedback_binarized
output_dir: runs/trl
learning_rate: 1.0e-6
loss_type: [sigmoid]
padding_free: false
dataset_num_proc: 4
remove_unused_columns: false
use_liger_kernel: false
use_peft: true
lora_r: 32
report_to: none
"""


def written(tmp_path, text, name="run.yaml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def complaint(tmp_path, text, **overrides) -> str:
    with pytest.raises(ConfigError) as caught:
        read_recipe(written(tmp_path, text), overrides)
    return str(caught.value)


def test_a_recipe_is_read(tmp_path):
    recipe = read_recipe(written(tmp_path, RECIPE))
    assert recipe.output_dir == "runs/length"
    assert recipe.model.model_name_or_path == "some/model"
    assert recipe.data.dataset_name == "votes.csv"
    assert recipe.data.columns == {"annotator": "worker_id"}
    assert recipe.attributes == ({"type": "length", "ratio": 1.5}, {"type": "markdown"})
    assert recipe.training == {
        "learning_rate": 5e-7,
        "max_steps": 20,
        "bias": "pooled",
        "bias_learning_rate": 1e-2,
        "warm_start": "zero",
        "gold_annotators": [],
    }
    assert recipe.reference.sft is False
    assert recipe.notices == ()


def test_a_recipe_becomes_arguments(tmp_path):
    recipe = read_recipe(written(tmp_path, RECIPE))
    args = recipe.arguments(output_dir=str(tmp_path / "arm"), use_cpu=True)
    assert args.bias == "pooled"
    assert args.learning_rate == 5e-7
    assert args.output_dir == str(tmp_path / "arm")


def test_the_resolved_recipe_reads_as_the_same(tmp_path):
    first = read_recipe(written(tmp_path, "preset: paper-8b-lora\n" + RECIPE))
    second = read_recipe(written(tmp_path, yaml.safe_dump(first.keys), "resolved.yaml"))
    assert second == first


def test_a_trl_file_is_taken_with_notices(tmp_path):
    text = TRL_FILE + "attributes: [length]\n"
    recipe = read_recipe(written(tmp_path, text))
    assert recipe.model.use_peft is True
    assert recipe.model.lora_r == 32
    assert recipe.training["report_to"] == "none"
    said = " ".join(str(notice) for notice in recipe.notices)
    assert "dataset_num_proc" in said
    assert "padding_free" in said
    assert "run.yaml:8" in said
    assert "use_liger_kernel" not in said


# What TRL 1.16 documents: its page of the command line, and the head of trl/scripts/dpo.py.
DOCUMENTED = [
    "",
    "num_processes: 4",
    "accelerate_config: multi_gpu",
    "torch_dtype: bfloat16",
    """\
learning_rate: 5.0e-7
num_train_epochs: 1
per_device_train_batch_size: 2
max_steps: 1000
gradient_accumulation_steps: 8
eval_strategy: steps
eval_steps: 50
output_dir: Qwen2-0.5B-DPO
no_remove_unused_columns: true
use_peft: true
lora_r: 32
lora_alpha: 16
""",
    "report_to:\n  none\nlearning_rate:\n  0.0001\nlr_scheduler_type:\n  cosine\n",
]


@pytest.mark.parametrize("text", DOCUMENTED)
def test_the_files_that_trl_documents_are_taken(tmp_path, text):
    named = "model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: anthropic/hh-rlhf\n"
    recipe = read_recipe(written(tmp_path, named + text), {"attributes": "length"})
    assert recipe.training["bias"] is None
    assert recipe.output_dir == ("Qwen2-0.5B-DPO" if "output_dir" in text else "runs/badpo")
    assert recipe.arguments(use_cpu=True).learning_rate == yaml.safe_load(named + text).get(
        "learning_rate", 1e-6
    )
    assert recipe.model.dtype == ("bfloat16" if "torch_dtype" in text else "float32")
    assert {"num_processes: 4": ("--num_processes", "4")}.get(text, ()) == recipe.launch[-2:] or "acc" in text


def test_the_keywords_of_the_model_have_the_last_word_as_in_trl(tmp_path):
    for name in ("dtype", "torch_dtype"):
        recipe = read_recipe(written(tmp_path, RECIPE + f"model_init_kwargs: {{{name}: bfloat16}}\n"))
        assert recipe.model.init_kwargs == {
            "dtype": "bfloat16",
            "revision": "main",
            "trust_remote_code": False,
        }


def test_trls_flags_are_taken(tmp_path):
    flags = parsed_flags(
        [
            "--model_name_or_path",
            "m",
            "--dataset_name",
            "d",
            "--no_remove_unused_columns",
            "--num_processes",
            "2",
        ]
    )
    recipe = read_recipe(None, flags | {"attributes": "length"})
    assert recipe.launch == ("--num_processes", "2")
    assert any("remove_unused_columns has no effect" in notice.what for notice in recipe.notices)


def test_a_file_for_the_launcher_is_named_by_the_caller_only(tmp_path):
    own = written(tmp_path, "num_processes: 2\n", "own.yaml")
    assert "--accelerate_config FILE" in complaint(tmp_path, RECIPE + f"accelerate_config: {own}\n")
    recipe = read_recipe(written(tmp_path, RECIPE), {"accelerate_config": str(own), "num_processes": 3})
    assert recipe.launch == ("--config_file", str(own), "--num_processes", "3")
    shipped = read_recipe(written(tmp_path, RECIPE + "accelerate_config: zero2\nnum_processes: 1\n")).launch
    assert shipped[1].endswith("zero2.yaml") and shipped[2:] == ("--num_processes", "1")
    assert read_recipe(written(tmp_path, RECIPE + "num_processes: 1\n")).launch == ()
    assert "num_processes is 0" in complaint(tmp_path, RECIPE + "num_processes: 0\n")


def test_a_trl_file_without_attributes_is_not_trained_as_dpo(tmp_path):
    message = complaint(tmp_path, TRL_FILE)
    assert "E207" in message
    assert "bias: {variant: none}" in message
    recipe = read_recipe(written(tmp_path, TRL_FILE), {"bias.variant": "none"})
    assert recipe.training["bias"] == "none"


def test_an_unknown_key_is_named_with_its_line(tmp_path):
    message = complaint(tmp_path, RECIPE + "betta: 0.1\n")
    assert message == 'E201 run.yaml:12: unknown key "betta". Did you mean "beta"?'


def test_an_unknown_key_of_a_block_is_named_with_its_line(tmp_path):
    message = complaint(tmp_path, RECIPE + "  warmstart: offline\n")
    assert message == 'E201 run.yaml:12: unknown key "warmstart" in bias. Did you mean "warm_start"?'


def test_all_mistakes_are_named_at_once(tmp_path):
    text = RECIPE + "loss_type: ipo\nmax_length: long\nheld_out: 1.5\ntorch_compile: true\n"
    message = complaint(tmp_path, text)
    assert [line.split(":")[1] for line in message.splitlines()] == ["12", "15", "13", "14"]


def test_missing_keys_say_what_they_are(tmp_path):
    message = complaint(tmp_path, "attributes: [length]\n")
    for key in ("model_name_or_path", "dataset_name"):
        assert f"{key} is missing" in message


def test_remote_code_is_allowed_by_the_caller_only(tmp_path):
    assert "give `--trust-remote-code` yourself" in complaint(tmp_path, RECIPE + "trust_remote_code: true\n")
    hidden = RECIPE + "model_init_kwargs: {trust_remote_code: true}\n"
    assert "give `--trust-remote-code` yourself" in complaint(tmp_path, hidden)
    path = written(tmp_path, RECIPE)
    assert read_recipe(path).model.init_kwargs["trust_remote_code"] is False
    assert read_recipe(path, trust_remote_code=True).model.init_kwargs["trust_remote_code"] is True


@pytest.mark.parametrize("text", ["5e-7", "5.0e-7", "5E-7", "0.0000005", '"5e-7"'])
def test_a_small_number_is_a_number_however_it_is_written(tmp_path, text):
    recipe = read_recipe(written(tmp_path, RECIPE.replace("5.0e-7", text)))
    assert recipe.training["learning_rate"] == 5e-7


def test_warmup_ratio_is_renamed(tmp_path):
    recipe = read_recipe(written(tmp_path, RECIPE + "warmup_ratio: 0.1\n"))
    assert recipe.training["warmup_steps"] == 0.1
    assert "warmup_ratio and warmup_steps" in complaint(
        tmp_path, RECIPE + "warmup_ratio: 0.1\nwarmup_steps: 10\n"
    )


def test_overrides_replace_and_are_named_as_flags(tmp_path):
    path = written(tmp_path, RECIPE)
    recipe = read_recipe(
        path, {"max_steps": 5, "bias": "shared_mean", "bias.learning_rate": 0.1, "attributes": "length"}
    )
    assert recipe.training["max_steps"] == 5
    assert recipe.training["bias"] == "shared_mean"
    assert recipe.training["bias_learning_rate"] == 0.1
    assert recipe.attributes == ({"type": "length"},)
    with pytest.raises(ConfigError, match='E201 --bias.varaint: unknown key "varaint" in bias'):
        read_recipe(path, {"bias.varaint": "pooled"})


@pytest.mark.parametrize(
    ("name", "rate", "supervised_rate", "lora"),
    [
        ("paper-0.5b", 5e-7, 1e-5, False),
        ("paper-8b-lora", 5e-6, 1e-4, True),
        ("paper-7b-lora", 5e-6, 1e-4, True),
    ],
)
def test_presets_hold_the_papers_values(tmp_path, name, rate, supervised_rate, lora):
    recipe = read_recipe(
        overrides={
            "preset": name,
            "dataset_name": "votes.csv",
            "output_dir": "runs/a",
            "attributes": ["length"],
        }
    )
    args = recipe.arguments(output_dir=str(tmp_path), use_cpu=True)
    assert args.learning_rate == rate
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps == 32
    assert (args.max_steps, args.max_length, args.max_prompt_length) == (1000, 1280, 384)
    assert (args.encoding, args.beta, args.max_grad_norm, args.bias_learning_rate) == (
        "paper",
        0.1,
        1.0,
        1e-2,
    )
    assert args.lr_scheduler_type == "cosine"
    assert args.get_warmup_steps(1000) == 100
    assert (recipe.reference.sft, recipe.reference.learning_rate) == (True, supervised_rate)
    peft_config = recipe.model.peft_config()
    if lora:
        assert (peft_config.r, peft_config.lora_alpha, peft_config.target_modules) == (32, 64, "all-linear")
        assert recipe.model.init_kwargs["dtype"] == "bfloat16"
    else:
        assert peft_config is None
        assert recipe.model.init_kwargs["dtype"] == "float32"


def test_a_file_replaces_the_presets_values(tmp_path):
    text = "preset: paper-0.5b\nencoding: trl\nmax_prompt_length:\nmax_length: null\n" + RECIPE
    recipe = read_recipe(written(tmp_path, text))
    assert recipe.training["encoding"] == "trl"
    assert "max_prompt_length" not in recipe.training
    assert recipe.training["max_length"] is None
    assert recipe.model.model_name_or_path == "some/model"
    assert recipe.arguments(output_dir=str(tmp_path / "run"), use_cpu=True).max_length is None


def test_an_unknown_preset_names_the_presets(tmp_path):
    message = complaint(tmp_path, "preset: paper-3b\n" + RECIPE)
    assert message == 'E201 run.yaml:1: unknown preset "paper-3b"; choose one of ' + ", ".join(PRESETS)


def test_the_variants_of_a_recipe_are_those_of_the_bias_term():
    named, nothing = BiasBlock.model_fields["variant"].annotation.__args__
    assert (named.__args__, nothing) == (tuple(VARIANTS), type(None))


def test_an_objective_is_a_name_or_a_block(tmp_path):
    assert read_recipe(written(tmp_path, RECIPE)).objective == {}
    recipe = read_recipe(written(tmp_path, RECIPE + "objective: sampled_tokens\n"))
    assert recipe.objective == recipe.keys["objective"] == {"name": "sampled_tokens"}
    changed = {"objective.name": "discounted_tail", "objective.alpha": 0.5}
    assert read_recipe(written(tmp_path, RECIPE), changed).objective == {
        "name": "discounted_tail",
        "alpha": 0.5,
    }
    told = complaint(tmp_path, RECIPE + "objective: em_dpo\n")
    assert told.startswith('E202 run.yaml:12: unknown objective "em_dpo".') and "badpo_paper" in told
    assert "must be a block with a name" in complaint(tmp_path, RECIPE + "objective: {alpha: 1}\n")


def test_a_column_can_be_left_unused(tmp_path):
    recipe = read_recipe(written(tmp_path, RECIPE.replace("worker_id", "null")))
    assert recipe.data.columns == {"annotator": None}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("lenght", 'Did you mean "length"?'),
        ("{type: length, ration: 2}", 'Did you mean "ratio"?'),
        ("{type: word_list, name: hedges}", "needs words"),
        ("{ratio: 2}", "must be a name, or a block with a type"),
        ("3", "must be a name, or a block with a type"),
    ],
)
def test_a_wrong_attribute_is_named_with_its_line(tmp_path, entry, message):
    text = complaint(tmp_path, RECIPE.replace("- markdown", f"- {entry}"))
    assert text.startswith(("E202 run.yaml:9:", "E204 run.yaml:9:"))
    assert message in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("beta: 0.1\nbeta: 0.2\n", '"beta" stands here and on line 1'),
        ("- beta\n", "must be a list of keys and values"),
        ("beta: [0.1\n", "run.yaml:2: not valid YAML"),
        ("a: !!python/object:os.system {}\n", "not valid YAML"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path, text, message):
    with pytest.raises(ConfigError) as caught:
        read_yaml(written(tmp_path, text))
    assert message in str(caught.value)


@pytest.mark.parametrize("content", ["", "# nothing\n"])
def test_an_empty_file_misses_everything(tmp_path, content):
    assert complaint(tmp_path, content).count("is missing") == 2


def test_the_data_choice_reads_the_table(tmp_path):
    table = tmp_path / "votes.csv"
    table.write_text(
        "prompt,response_a,response_b,who,winner\nWhy?,because it is so,so,one,left\nHow?,so,well,two,right\n"
    )
    text = RECIPE.replace("worker_id", "who") + "winners: {left: a, right: b}\n"
    recipe = read_recipe(written(tmp_path, text), {"dataset_name": str(table)})
    judgments = recipe.data.read([Length()])
    assert judgments.votes["sign"].tolist() == [1, -1]
    assert judgments.n_annotators == 2
    assert judgments.delta.ravel().tolist() == [1.0, 0.0]


@pytest.mark.parametrize("name", ["votes.csv", "folder/votes.parquet", "votes"])
def test_a_missing_file_is_not_looked_for_on_the_hub(name):
    assert str(DataChoice(name).source()) == name


def test_an_unreachable_data_set_says_what_to_do():
    with pytest.raises(ConfigError, match='there is no file "nobody/nothing".*download it once with network'):
        DataChoice("nobody/nothing").source()


@pytest.mark.parametrize("key", ["winners", "model_init_kwargs"])
def test_a_block_of_keys_must_be_one(tmp_path, key):
    assert f"{key} is 'left'; it must be a block of keys" in complaint(tmp_path, RECIPE + f"{key}: left\n")
