"""Recipes: keys, presets, overrides and error messages."""

import subprocess
import sys
import time
from importlib.util import find_spec

import pytest
import yaml

from badpo.attributes import Length
from badpo.data.problems import ConfigError, DataError
from badpo.objective.registry import OBJECTIVES
from badpo.training.config import BADPOConfig
from badpo.training.inputs import as_judgments
from badpo.training.recipe import DataChoice, read_recipe

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

TRL_FILE = "model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: anthropic/hh-rlhf\n"


def written(tmp_path, text, name="run.yaml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def read(tmp_path, text, overrides=None):
    return read_recipe(written(tmp_path, text), overrides)


def complaint(tmp_path, text) -> str:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    return str(caught.value)


# -- what is read ------------------------------------------------------------------------------------------------


def test_a_recipe_is_read_and_becomes_arguments(tmp_path):
    recipe = read(tmp_path, RECIPE)
    assert recipe.output_dir == "runs/length"
    assert recipe.model.model_name_or_path == "some/model"
    assert recipe.data.dataset_name == "votes.csv"
    assert recipe.data.columns == {"annotator": "worker_id"}
    assert recipe.attributes == ({"type": "length", "ratio": 1.5}, {"type": "markdown"})
    bias = {"bias": "pooled", "bias_fit": None, "bias_learning_rate": None}
    bias |= {"warm_start": "zero", "gold_annotators": []}
    assert recipe.training == {"learning_rate": 5e-7, "max_steps": 20} | bias
    assert (recipe.reference.sft, recipe.objective, recipe.notices) == (False, {}, ())
    args = recipe.arguments(output_dir=str(tmp_path / "arm"), use_cpu=True)
    assert (args.bias, args.learning_rate, args.output_dir) == ("pooled", 5e-7, str(tmp_path / "arm"))
    trusting = read_recipe(written(tmp_path, RECIPE), trust_remote_code=True)
    allowed = [found.model.init_kwargs["trust_remote_code"] for found in (recipe, trusting)]
    assert allowed == [False, True]


def test_a_file_for_trl_is_accepted_with_notices(tmp_path):
    flags = ("padding_free: false", "dataset_num_proc: 4", "use_liger_kernel: false", "use_peft: true")
    recipe = read(tmp_path, TRL_FILE + "\n".join([*flags, "lora_r: 32"]), {"attributes": "length"})
    assert (recipe.model.use_peft, recipe.model.lora_r) == (True, 32)
    said = " ".join(str(notice) for notice in recipe.notices)
    assert "dataset_num_proc" in said and "padding_free" in said and "run.yaml:4" in said
    assert "use_liger_kernel" not in said


# Examples of TRL 1.16 from the documentation of its command line and from trl/scripts/dpo.py.
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", {}),
        ("torch_dtype: bfloat16", {"dtype": "bfloat16"}),
        ("no_remove_unused_columns: true\nnum_processes: 1\noutput_dir: own", {"out": "own"}),
        ("report_to:\n  none\nlearning_rate:\n  0.0001\n", {"rate": 1e-4}),
    ],
)
def test_documented_files_of_trl_are_accepted(tmp_path, text, told):
    recipe = read(tmp_path, TRL_FILE + text, {"attributes": "length"})
    rate = recipe.arguments(use_cpu=True).learning_rate
    found = {"dtype": recipe.model.init_kwargs["dtype"], "out": recipe.output_dir, "rate": rate}
    assert found == {"dtype": "float32", "out": "runs/badpo", "rate": 1e-6} | told
    assert recipe.training["bias"] is None
    told = [notice.what for notice in recipe.notices]
    assert any("remove_unused_columns has no effect" in what for what in told) == ("no_" in text)


@pytest.mark.parametrize("text", ["5e-7", "5.0e-7", "5E-7", "0.0000005", '"5e-7"'])
def test_all_spellings_of_a_small_number_are_read_as_a_number(tmp_path, text):
    text = RECIPE.replace("5.0e-7", text) + "warmup_ratio: 0.1\n"
    training = read(tmp_path, text).training
    assert (training["learning_rate"], training["warmup_steps"]) == (5e-7, 0.1)


def test_overrides_replace_keys_and_errors_name_them_as_options(tmp_path):
    given = {"max_steps": 5, "bias": "shared_mean", "bias.learning_rate": 0.1, "attributes": "length"}
    recipe = read(tmp_path, RECIPE, given)
    expected = {"max_steps": 5, "bias": "shared_mean", "bias_learning_rate": 0.1}
    assert {name: recipe.training[name] for name in expected} == expected
    assert recipe.attributes == ({"type": "length"},)
    for words in ('["length:ratio=2"]', "length:ratio=2"):
        declared = RECIPE.split("attributes:")[0] + f"attributes: {words}\n"
        assert read(tmp_path, declared).attributes == ({"type": "length", "ratio": 2},)
    with pytest.raises(ConfigError, match='E201 --bias.varaint: unknown key "varaint" in bias'):
        read(tmp_path, RECIPE, {"bias.varaint": "pooled"})


WITH_ADAPTER = (5e-6, 1e-4, (32, 64, "all-linear"), "bfloat16")


@pytest.mark.parametrize("name", ["paper-0.5b", "paper-8b-lora", "paper-7b-lora"])
def test_presets_have_the_values_of_the_paper(tmp_path, name):
    whole = (5e-7, 1e-5, None, "float32")
    rate, supervised_rate, adapter, dtype = WITH_ADAPTER if "lora" in name else whole
    asked = {"preset": name, "dataset_name": "votes.csv", "attributes": ["length"]}
    recipe = read_recipe(overrides=asked)
    args = recipe.arguments(output_dir=str(tmp_path), use_cpu=True)
    expected = {"learning_rate": rate, "lr_scheduler_type": "cosine", "max_grad_norm": 1.0}
    expected |= {"max_steps": 1000, "max_length": 1280, "max_prompt_length": 384}
    expected |= {"encoding": "paper", "beta": 0.1, "bias_learning_rate": 1e-2, "step_size": 32}
    assert {key: getattr(args, key) for key in expected} == expected
    assert args.get_warmup_steps(1000) == 100
    assert (recipe.reference.sft, recipe.reference.learning_rate) == (True, supervised_rate)
    lora = recipe.model.peft_config()
    assert (lora and (lora.r, lora.lora_alpha, lora.target_modules)) == adapter
    assert recipe.model.init_kwargs["dtype"] == dtype


def test_a_file_replaces_values_of_the_preset_and_its_full_recipe_reads_the_same(tmp_path):
    text = "preset: paper-0.5b\nencoding: trl\nmax_prompt_length:\nmax_length: null\n" + RECIPE
    recipe = read(tmp_path, text)
    assert recipe.training["encoding"] == "trl" and recipe.model.model_name_or_path == "some/model"
    assert "max_prompt_length" not in recipe.training
    assert recipe.training["max_length"] is None
    assert recipe.arguments(output_dir=str(tmp_path / "run"), use_cpu=True).max_length is None
    first = read(tmp_path, "preset: paper-8b-lora\n" + RECIPE)
    assert read_recipe(written(tmp_path, yaml.safe_dump(first.keys), "resolved.yaml")) == first


def test_an_objective_is_a_name_or_a_block_and_a_baseline_has_no_theta(tmp_path):
    recipe = read(tmp_path, RECIPE + "objective: sampled_tokens\n")
    assert recipe.objective == recipe.keys["objective"] == {"name": "sampled_tokens"}
    changed = {"objective.name": "discounted_tail", "objective.alpha": 0.5}
    assert read(tmp_path, RECIPE, changed).objective == {"name": "discounted_tail", "alpha": 0.5}
    compared = "bias: {variant: pooled, warm_start: offline}\ncompare: [dpo, {name: discounted_tail, alpha: 0.5}]\n"
    recipe = read(tmp_path, RECIPE.split("bias:")[0] + compared)
    plain, tail = recipe.baselines
    assert plain.objective == {} and tail.objective == {"name": "discounted_tail", "alpha": 0.5}
    for one in recipe.baselines:
        assert (one.training["bias"], one.training["warm_start"], one.baselines) == ("none", "zero", [])
        assert one.attributes == recipe.attributes and one.data == recipe.data
    named = {flag: read(tmp_path, RECIPE, {"compare": flag}).baselines for flag in (True, False, "dpo")}
    assert [[b.training["bias"] for b in found] for found in named.values()] == [
        ["none", "none"],
        [],
        ["none"],
    ]
    assert [b.objective for b in named[True]] == [{}, {"name": "placebo"}]


def test_reading_a_recipe_loads_no_torch(tmp_path):
    text = RECIPE + "preset: paper-0.5b\nobjective: sampled_tokens\ncompare: [dpo, placebo]\n"
    wrong = RECIPE + "objective: sampled_token\nloss_type: ipo\n"
    paths = [written(tmp_path, text, "right.yaml"), written(tmp_path, wrong, "wrong.yaml")]
    program = (
        "import sys; from badpo.data.problems import ConfigError; from badpo.training.recipe import read_recipe\n"
        "assert len(read_recipe(sys.argv[1]).baselines) == 2\n"
        "try: read_recipe(sys.argv[2])\nexcept ConfigError: print(sorted({'torch', 'transformers'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program, *paths], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


# -- what is wrong -----------------------------------------------------------------------------------------------


# Text on line 12, or an attribute on line 9, and the expected message.
MISTAKES = """
betta: 0.1 -> E201 unknown key "betta". Did you mean "beta"?
  warmstart: 0 -> E201 unknown key "warmstart" in bias. Did you mean "warm_start"?
max_length: true -> E202 max_length is True:
lora_r: sixteen -> E202 lora_r is 'sixteen':
held_out: 1.0 -> E202 held_out is 1.0:
dtype: int8 -> E202 dtype is 'int8': input should be 'auto', 'float32',
winners: left -> E202 winners is 'left':
objective: em_dpo -> E202 unknown objective "em_dpo".
compare: [dop] -> E202 unknown objective "dop". Did you mean "dpo"?
objective: {alpha: 1} -> E202 objective is {'alpha': 1}; it must be a block with a name
num_processes: 4 -> E205 num_processes: 4 is refused: the launcher starts the processes: `accelerate launch
accelerate_config: zero2 -> E205 accelerate_config: zero2 is refused: the launcher
trust_remote_code: true -> E205 a file cannot allow remote code; give `--trust-remote-code` yourself
model_init_kwargs: {token: hf_x} -> E205 model_init_kwargs: ... is refused:
hub_token: hf_secret -> E205 a recipe must not contain a token; use the option `--hub_token`
loss_type: aot -> E205 loss_type: aot is refused:
warm_start: never -> E202 bias.warm_start is 'never':
warmup_steps: 10; warmup_ratio: 0.1 -> E203 warmup_ratio and warmup_steps set the same
preset: paper-3b -> E201 unknown preset "paper-3b"; choose one of paper-0.5b,
- lenght -> E204 Did you mean "length"?
- "length:ratio" -> E204 is not KEY=VALUE
- {type: length, ration: 2} -> E204 Did you mean "ratio"?
- {type: word_list, name: hedges} -> E204 needs words
- {ratio: 2} -> E204 must be a name, or a block with a type
- 3 -> E204 must be a name, or a block with a type
"""


@pytest.mark.parametrize("mistake", MISTAKES.strip("\n").splitlines())
def test_an_error_is_reported_with_its_line(tmp_path, mistake):
    text, told = mistake.split(" -> ")
    lines = text.split("; ")
    recipe, place = RECIPE + "\n".join(lines) + "\n", 11 + len(lines)
    if text.startswith("- "):
        recipe, place = RECIPE.replace("- markdown", text), 9
    message = complaint(tmp_path, recipe)
    code, what = told.split(" ", 1)
    assert message.startswith(f"{code} run.yaml:{place}: ") and what in message
    assert "hf_x" not in message and "\n" not in message


def test_all_errors_of_a_recipe_are_reported_together(tmp_path):
    text = RECIPE + "loss_type: aot\nmax_length: long\nheld_out: 1.5\ntorch_compile: true\nbetta: 1\n"
    message = complaint(tmp_path, text)
    assert sorted(line.split(":")[1] for line in message.splitlines()) == ["12", "13", "14", "15", "16"]


def test_of_very_many_errors_the_first_are_listed_with_the_number_of_others(tmp_path):
    keys = "".join(f"unknown_{i}: 1\n" for i in range(9_000))
    start, (*first, last) = time.process_time(), complaint(tmp_path, RECIPE + keys).splitlines()
    assert len(first) == 20 and "8,980 more errors" in last and time.process_time() - start < 15


def test_a_package_that_a_key_requires_is_named(tmp_path):
    recipe = read(tmp_path, RECIPE + "deepspeed: x.json\n")
    if find_spec("deepspeed") is None:
        with pytest.raises(ConfigError, match="package that is not installed: .*deepspeed"):
            recipe.arguments()


def test_a_file_for_trl_without_attributes_is_refused(tmp_path):
    message = complaint(tmp_path, TRL_FILE)
    assert message.startswith("E207 run.yaml: ") and "bias: {variant: none}" in message
    assert read(tmp_path, TRL_FILE, {"bias.variant": "none"}).training["bias"] == "none"


@pytest.mark.parametrize("content", ["", "# nothing\n", "attributes: [length]\n"])
def test_missing_keys_are_described(tmp_path, content):
    message = complaint(tmp_path, content)
    assert message.count("is missing") == 2
    for key in ("model_name_or_path", "dataset_name"):
        assert f"E206 run.yaml: {key} is missing: the " in message


BROKEN = {
    "beta: 0.1\nbeta: 0.2\n": '"beta" is set here and on line 1',
    f"seed: 1{':59' * 9_000}\n": "an integer has more than 10,000 bits",
    "- beta\n": "must consist of keys and values",
    "beta: [0.1\n": "run.yaml:2: not valid YAML",
}


@pytest.mark.parametrize("text", BROKEN)
def test_an_invalid_yaml_file_is_reported_with_its_line(tmp_path, text):
    assert BROKEN[text] in complaint(tmp_path, text)


# -- the table ---------------------------------------------------------------------------------------------------


def test_the_data_block_reads_the_table(tmp_path):
    table = tmp_path / "votes.csv"
    table.write_text(
        "prompt,response_a,response_b,who,winner\nWhy?,because it is so,so,one,left\nHow?,so,well,two,right\n"
    )
    named = {"columns": {"annotator": "who"}, "winners": {"left": "a", "right": "b"}}
    choice = DataChoice(dataset_name=str(table), **named)
    judgments = as_judgments(choice.source(), [Length()], **choice.reading)
    assert judgments.votes["sign"].tolist() == [1, -1]
    assert judgments.n_annotators == 2
    assert judgments.delta.ravel().tolist() == [1.0, 0.0]


@pytest.mark.parametrize("name", ["votes.csv", "folder/votes.parquet", "votes"])
def test_a_missing_file_is_not_searched_on_the_hub_and_an_unreachable_data_set_has_a_remedy(name):
    assert str(DataChoice(dataset_name=name).source()) == name
    told = "(?s)E190 .*no such file.*nobody/nothing.*download the data set once with network"
    with pytest.raises(DataError, match=told):
        DataChoice(dataset_name="nobody/nothing").source()


def test_warm_start_has_the_same_values_in_a_file_an_option_and_python(tmp_path):
    (tmp_path / "flat.yaml").write_text(RECIPE + "warm_start: audit\nbias_learning_rate: 0.5\n")
    (tmp_path / "plain.yaml").write_text(RECIPE)
    flag = read_recipe(tmp_path / "plain.yaml", {"warm_start": "audit", "bias_learning_rate": 0.5})
    block = {"bias.warm_start": "audit", "bias.learning_rate": 0.5}
    for recipe in (flag, read_recipe(tmp_path / "flat.yaml")):
        assert recipe.training == read_recipe(tmp_path / "plain.yaml", block).training
        named = {name: recipe.training[name] for name in ("warm_start", "bias_learning_rate")}
        args = BADPOConfig(str(tmp_path), use_cpu=True, **named)
        assert (args.warm_start, args.bias_learning_rate) == ("audit", 0.5)
    with pytest.raises(ConfigError, match="--warm_start: bias.warm_start is 'never'"):
        read_recipe(tmp_path / "plain.yaml", {"warm_start": "never"})


def test_a_new_objective_is_a_loss_type_too(tmp_path, monkeypatch):
    path = tmp_path / "run.yaml"
    for loss, objective in [("ipo", "identity_preference"), ("hinge", "hinge"), ("[hinge]", "hinge")]:
        path.write_text(f"{RECIPE}loss_type: {loss}\n")
        if objective == "hinge":
            with monkeypatch.context() as known:
                known.setitem(OBJECTIVES, "hinge", OBJECTIVES["votes"])
                assert read_recipe(path).objective == {"name": objective}
                args = BADPOConfig(str(tmp_path), use_cpu=True, loss_type=[objective])
                assert args.objective == {"name": objective}
            with pytest.raises(ConfigError, match="loss_type: .*hinge.* is refused"):
                read_recipe(path)
        else:
            assert read_recipe(path).objective == {"name": objective}
