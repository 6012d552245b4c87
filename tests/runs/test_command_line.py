"""The commands from one end to the other: what they print, what they write, and how they leave."""

import json
import re
from pathlib import Path

import pytest
import transformers

from badpo.objective import registry
from badpo.objective.bias import BiasTerm
from tests import tiny
from tests.public_face import assert_face, keys
from tests.public_face import invoke as badpo
from tests.runs.recipes import log_lines, write_recipe, written

RUN = Path("runs") / "shared_mean-s42"


@pytest.mark.face
def test_demo_prints_a_table_and_writes_report_and_summary(tmp_path, tiny_demo):
    def demo(*arguments: object) -> str:
        result = badpo("demo", "--out", folder, *arguments)
        assert result.exit_code == 0, result.stderr
        return result.stdout

    folder, page = tmp_path / "demo", tmp_path / "docs" / "results.md"
    told = demo()
    assert f"report: {folder / 'report.html'}" in told and len(told.splitlines()) <= 40
    for part in ("reference", "DPO", "pooled", "shared"):
        assert part.casefold() in told.casefold()
    summary = json.loads((folder / "summary.json").read_text())
    assert_face("runs/demo/summary.json", keys(summary))
    assert_face("runs of the demo", sorted(path.parent.name for path in folder.glob("*/run.json")))
    assert f"{summary['rates']['dpo']['woman']:.3f}" in told
    assert "</html>" in (folder / "report.html").read_text()
    over_seeds = json.loads(demo("--seeds", "42,1", "--results", page, "--json"))
    assert [found["seed"] for found in over_seeds] == [42, 1]
    text = page.read_text()
    assert "badpo demo --out" in text and "--seeds 42,1" in text and "pooled" in text.casefold()


def test_an_objective_of_ones_own_comes_from_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "OBJECTIVES", dict(registry.OBJECTIVES))
    paper = {"variant": "shared_mean", "fit": "adam"}
    config = write_recipe(tmp_path, objective={"name": "bounded", "q": 0.7}, bias=paper)
    page = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
    (own := tmp_path / "bounded.py").write_text(re.search(r"# bounded.py\n.*?(?=```)", page, re.S)[0])
    refused = badpo("train", "--config", config)
    assert refused.exit_code == 2 and "from a file with --arm-file" in refused.stderr
    trained = badpo("train", "--config", config, "--arm-file", own)
    assert trained.exit_code == 0, trained.stderr
    folder = tmp_path / "runs" / "shared_mean_bounded-s42"
    # at the start every vote costs (1 - 0.5 ** q) / q
    assert log_lines(folder)[0]["loss"] == pytest.approx((1 - 0.5**0.7) / 0.7, rel=1e-5)
    monkeypatch.setattr(registry, "OBJECTIVES", {"votes": registry.OBJECTIVES["votes"]})
    assert badpo("evaluate", folder).exit_code == 2
    assert badpo("evaluate", folder, "--arm-file", own).exit_code == 0
    own.write_text("OBJECTIVES = {'votes': None}", encoding="utf-8")
    assert "votes is a built-in objective" in badpo("evaluate", folder, "--arm-file", own).stderr


@pytest.mark.face
def test_a_dry_run_prints_the_plan_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(transformers.Trainer, "train", lambda *args, **kwargs: pytest.fail("trained"))
    asked = ("train", "--config", write_recipe(tmp_path, reference={"sft": True}), "--dry-run")
    before = written(tmp_path)
    result = badpo(*asked)
    assert result.exit_code == 0, result.stderr
    names = " ".join(line.split()[0] for line in result.stdout.splitlines()[:5])
    assert names == "run judgments policy reference self-test"
    assert "reference   trained first, scored once; its log-probabilities are kept in" in result.stdout
    assert "96 on 32 comparisons by 6 annotators; 24 judgments held out" in result.stdout
    plan = json.loads(badpo(*asked, "--json").stdout)
    assert_face("train --dry-run --json", keys(plan))
    counts = {"judgments": 96, "comparisons": 32, "annotators": 6, "held_out": 24}
    assert {name: plan[f"n_{name}"] for name in counts} == counts
    assert plan["n_trained"] == plan["n_parameters"] > 0 and len(plan["self_tests"]) == 1
    (run,) = plan["runs"]
    assert (run["folder"], run["n_steps"], run["is_finished"]) == (str(tmp_path / RUN), 4, False)
    told = {finding["code"]: finding for finding in plan["findings"]}
    assert "W121" in told and told["W137"]["what"].endswith("are wide, 0.22 to 0.78 for a rate of 0.5")
    assert told["W137"]["remedy"] == "train with --held_out 0.5, or have more prompts judged"
    assert "W137" not in badpo(*asked, "--held_out", "0").stdout
    assert written(tmp_path) == before


def test_training_takes_the_options_with_which_the_audit_reads_a_table(tmp_path):
    votes = tiny.votes(n_comparisons=40, n_annotators=6)
    labels = votes["winner"].map({"a": "first", "b": "second"})
    table = votes.drop(columns="winner").assign(mark=labels).rename(columns={"annotator": "who"})
    config = write_recipe(tmp_path, table, columns={"annotator": "nobody"})
    reading = [
        "--column",
        "annotator=who",
        "--column",
        "winner=mark",
        "--winner",
        "first=b",
        "--winner",
        "second=a",
    ]
    plain = json.loads(
        badpo("audit", tmp_path / "votes.jsonl", "--attribute", "length", *reading, "--json").stdout
    )
    plan = badpo("train", "--config", config, *reading, "--dry-run", "--json")
    assert plan.exit_code == 0, plan.stderr
    found = json.loads(plan.stdout)
    assert found["n_judgments"] + found["n_held_out"] == plain["data"]["n_judgments"] == 120
    assert found["n_annotators"] == 6


@pytest.mark.parametrize(
    "option, n_votes", [([], 119), (["--bad-rows", "drop"], 119), (["--bad-rows", "error"], None)]
)
def test_an_option_for_reading_replaces_the_key_of_the_recipe(tmp_path, option, n_votes):
    table = tiny.votes(n_comparisons=40, n_annotators=6)
    table.loc[0, "winner"] = "c"
    config = write_recipe(tmp_path, table, bad_rows="drop")
    plan = badpo("train", "--config", config, *option, "--dry-run", "--json")
    assert (plan.exit_code == 0) == (n_votes is not None), plan.stderr
    if n_votes:
        found = json.loads(plan.stdout)
        assert found["n_judgments"] + found["n_held_out"] == n_votes


@pytest.mark.face
def test_train_evaluate_and_report(tmp_path, caplog):
    config, runs, page = write_recipe(tmp_path), tmp_path / "runs", tmp_path / "report.html"
    folders = [tmp_path / RUN, runs / "pooled-s3"]
    trained = badpo("train", "--config", config)
    assert trained.exit_code == 0, trained.stderr
    assert trained.stdout == f"{folders[0]}\nnext: badpo evaluate {folders[0]}\n"
    pooled = badpo("train", "--config", config, "--bias", "pooled", "--seed", "3", "--json")
    assert json.loads(pooled.stdout) == {"run": str(folders[1])}
    assert BiasTerm.load(folders[1]).parts == ("mean",)

    unmeasured = badpo("report", runs, "--out", page)
    assert (unmeasured.exit_code, page.exists()) == (2, False)
    assert "run `badpo evaluate` on them first" in unmeasured.stderr

    measured = badpo("evaluate", runs, "--json")
    assert measured.exit_code == 0, measured.stderr
    assert set(json.loads(measured.stdout)) == {str(folder) for folder in folders}
    assert caplog.text.count("W137 warning") == 3  # once for each of three commands
    assert_face("readouts.json", keys(json.loads((folders[0] / "readouts.json").read_text())))
    assert_face("run.json", sorted(json.loads((folders[0] / "run.json").read_text())))
    assert_face("files of a run", sorted(path.name for path in folders[0].iterdir()))
    *lines, last = badpo("evaluate", folders[0]).stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if "mean tokens" in line)
    lines, (header, reference, own, verdict, *_) = lines[:at], lines[at:]
    assert verdict.startswith("Tilt toward length")
    assert not {"measured", "version", "generated"} & {line.split()[0] for line in lines if line}
    assert "mean tokens (n = 8)" in header and last == f"next: badpo report {runs}"
    for row, folder in ((reference, runs / "reference"), (own, folders[0])):
        tokens = json.loads((folder / "readouts.json").read_text())["tokens"]
        assert f"{tokens['mean']:.1f} ({tokens['low']:.1f} to {tokens['high']:.1f})" in row

    reported = badpo("report", runs, "--out", page, "--json")
    assert json.loads(reported.stdout) == {"report": str(page)}
    assert "pooled" in page.read_text() and "length" in page.read_text()
    question = json.loads((folders[0] / "readouts.json").read_text())["answers"][0]["prompt"]
    compare = "badpo train --config pooled-s3/config.yaml --compare</code> trains"
    told = [page.read_text().find(text) for text in (compare, "mean tokens", ">Findings<", question)]
    assert told[0] > -1 and told == sorted(told)
    assert badpo("report", runs, "--out", page, "--no-texts").exit_code == 0
    assert question not in page.read_text()
