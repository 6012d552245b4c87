"""What a script leaves after ``trainer.train()`` is measured and drawn like a run of the command line."""

import json
import shlex
import warnings

import pytest
from transformers import AutoModelForCausalLM

from badpo import BADPOConfig, BADPOTrainer
from badpo.data.judgments import Judgments
from badpo.results.bias_check import bias_verdicts, check_bias
from badpo.results.run_files import read_run, read_suite
from badpo.results.run_page import report_html
from badpo.runs.evaluate import evaluate_run
from badpo.training.recipe import read_recipe
from badpo_paper.schedule import silent
from tests import tiny
from tests.public_face import invoke
from tests.runs.recipes import as_trl, save_model

ASKED = {
    "max_steps": 4,
    "learning_rate": 1e-2,
    "use_cpu": True,
    "report_to": "none",
    "disable_tqdm": True,
}


def trained_by_script(folder, by_name: bool, held_out: bool, arguments=None, **options):
    model = save_model(folder / "model")
    train, unseen = Judgments.read(tiny.votes(40, 6), attributes=["length"]).split(0.2)
    trainer = BADPOTrainer(
        str(model) if by_name else AutoModelForCausalLM.from_pretrained(model),
        args=BADPOConfig(
            output_dir=str(folder / "runs" / "own"),
            reference_cache=str(folder / "cache"),
            **(ASKED | (arguments or {})),
        ),
        train_dataset=train,
        eval_dataset=unseen if held_out else None,
        processing_class=tiny.tokenizer(),
        **options,
    )
    trainer.train()
    return trainer


@pytest.mark.parametrize("by_name", [True, False], ids=["name", "object"])
def test_a_script_s_run_is_measured_on_its_held_out_votes(tmp_path, by_name):
    trainer = trained_by_script(tmp_path, by_name, held_out=True)
    run = tmp_path / "runs" / "own"
    assert (run / "start").exists() != by_name  # a reference with a name is read again from there
    accuracy = trainer.evaluate()["eval_rewards/accuracies"]
    readouts = evaluate_run(run, silent)
    held = readouts["heldout"]["length"]
    n = held["n_same"], held["n_cross"]
    assert sum(n) == 24 and readouts["kl"]["per_token"] != 0
    assert (held["same"] * n[0] + held["cross"] * n[1]) / 24 == pytest.approx(accuracy)
    assert readouts["theta"]["length"]["level"] == pytest.approx(
        float(trainer.bias.theta().mean()), abs=0.006
    )
    assert readouts["arm"] == "shared_mean" and readouts["training"]["steps"] == 4
    suite = read_suite(run)
    assert suite.arms == ("reference", "shared_mean")
    html = report_html(suite)
    assert "Tilt toward length" in html and "--bias none --compare placebo</code>" in html


def test_the_command_of_the_page_adds_dpo_and_the_placebo(tmp_path):
    trained_by_script(tmp_path, by_name=True, held_out=True)
    run = tmp_path / "runs" / "own"
    command = shlex.split(read_run(run).train_command("--bias", "none", "--compare", "placebo"))
    config = command.index("--config") + 1
    command[config] = str(tmp_path / "runs" / command[config])  # the page names no folder of the machine
    trained = invoke(*command[1:])
    assert trained.exit_code == 0, trained.stderr
    assert invoke("evaluate", tmp_path / "runs").exit_code == 0
    suite = read_suite(tmp_path / "runs")
    assert suite.arms == ("reference", "dpo", "dpo_placebo", "shared_mean")
    assert check_bias(suite)[0].target == "dpo_placebo" and len(bias_verdicts(suite)) == 1


def test_a_script_without_held_out_votes_is_measured_on_those_it_has_and_told(tmp_path, caplog):
    trained_by_script(tmp_path, by_name=True, held_out=False)
    readouts = evaluate_run(tmp_path / "runs" / "own", silent)
    assert "measured on its training votes" in caplog.text
    assert readouts["heldout"]["any"]["n_same"] + readouts["heldout"]["any"]["n_cross"] == 96


def test_the_votes_of_a_script_s_run_name_nobody_and_are_not_for_everybody(tmp_path):
    trained_by_script(tmp_path, by_name=True, held_out=True)
    for path in (tmp_path / "runs" / "own").glob("*.parquet"):
        assert b"person " not in path.read_bytes()
        assert path.stat().st_mode & 0o077 == 0


def test_warnings_about_the_votes_are_python_warnings(tmp_path):
    table = tiny.votes(40, 6)
    differs = (
        abs(table["response_a"].str.split().str.len() - table["response_b"].str.split().str.len()) > 1
    )
    judgments = Judgments.read(table[differs], attributes=["length"])
    trainer = BADPOTrainer(
        tiny.model(),
        args=BADPOConfig(
            output_dir=str(tmp_path / "own"), **ASKED | {"max_steps": 1, "save_strategy": "no"}
        ),
        train_dataset=judgments,
        processing_class=tiny.tokenizer(),
    )
    with pytest.warns(UserWarning, match="W122 warning: the sides differ"):
        trainer.train()
    # the command line tells them itself, once
    trainer.is_script = False
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        trainer.train()
    assert json.loads((tmp_path / "own" / "run.json").read_text())["schema"].startswith("badpo.run")


def test_a_run_of_trl_s_trainer_is_measured_beside_its_output(tmp_path):
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    from badpo.trl import BiasAdjustedDPOTrainer

    rows = as_trl(tiny.votes(40, 6))
    of_first = rows["prompt"].isin(rows["prompt"].unique()[:30])
    train, unseen = (
        datasets.Dataset.from_pandas(r, preserve_index=False) for r in (rows[of_first], rows[~of_first])
    )
    args = trl.DPOConfig(output_dir=str(tmp_path / "out"), **ASKED, save_strategy="no", bf16=False)
    model, options = save_model(tmp_path / "model"), {"attributes": ["length"]}
    trainer = BiasAdjustedDPOTrainer(
        str(model),
        args=args,
        train_dataset=train,
        eval_dataset=unseen,
        processing_class=tiny.tokenizer(),
        **options,
    )
    trainer.train()
    accuracy = trainer.evaluate()["eval_rewards/accuracies"]
    readouts = evaluate_run(tmp_path / "out-bias" / "run", silent)
    found = readouts["heldout"]["length"]
    n = found["n_same"], found["n_cross"]
    assert (sum(n), (found["same"] * n[0] + found["cross"] * n[1]) / sum(n)) == (
        len(unseen),
        pytest.approx(accuracy, abs=0.02),
    )
    assert {"implied", "offline_low"} <= readouts["theta"]["length"].keys()
    assert read_suite(tmp_path / "out-bias").arms == ("reference", "shared_mean")


def test_the_recipe_of_a_script_s_run_trains_the_same_policy(tmp_path):
    options = {"per_device_train_batch_size": 3, "num_train_epochs": 2.0, "max_steps": -1}
    trainer = trained_by_script(tmp_path, by_name=True, held_out=True, arguments=options)
    run = tmp_path / "runs" / "own"
    args = read_recipe(run / "config.yaml").arguments()
    names = (
        "per_device_train_batch_size",
        "num_train_epochs",
        "max_steps",
        "learning_rate",
        "seed",
        "bias_fit",
    )
    assert {name: getattr(args, name) for name in names} == {
        name: getattr(trainer.args, name) for name in names
    }
