"""The commands from one end to the other: what they print, what they write, and how they leave."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from badpo.cli.main import app
from badpo.objective import objectives
from badpo.objective.bias import BiasTerm
from badpo.runs import evaluate
from tests.public_face import assert_face, keys
from tests.runs.recipes import log_lines, write_recipe, written

ROOT = Path(__file__).parents[2]
RUN = Path("runs") / "shared_mean-s42"


def badpo(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def short_answers(monkeypatch):
    monkeypatch.setattr(evaluate, "MAX_NEW_TOKENS", 12)


# -- the demo ------------------------------------------------------------------------------------------------


@pytest.mark.face
def test_demo_prints_a_table_and_writes_report_and_summary(tmp_path, tiny_demo):
    result = badpo("demo", "--out", tmp_path / "demo")
    assert result.exit_code == 0, result.stderr
    assert f"report: {tmp_path / 'demo' / 'report.html'}" in result.stdout
    for part in ("reference", "DPO", "pooled", "shared"):
        assert part.casefold() in result.stdout.casefold()
    assert len(result.stdout.splitlines()) <= 25
    summary = json.loads((tmp_path / "demo" / "summary.json").read_text())
    assert_face("runs/demo/summary.json", keys(summary))
    assert_face(
        "runs of the demo", sorted(path.parent.name for path in (tmp_path / "demo").glob("*/run.json"))
    )
    assert f"{summary['rates']['dpo']['woman']:.3f}" in result.stdout
    assert "</html>" in (tmp_path / "demo" / "report.html").read_text()

    as_json = badpo("demo", "--out", tmp_path / "demo", "--json")
    assert as_json.exit_code == 0, as_json.stderr
    again = json.loads(as_json.stdout)
    assert again == json.loads((tmp_path / "demo" / "summary.json").read_text())
    assert again["rates"] == summary["rates"]

    page = tmp_path / "docs" / "results.md"
    over_seeds = badpo(
        "demo", "--out", tmp_path / "demo", "--seeds", "42,1", "--results", page, "--json"
    )
    assert over_seeds.exit_code == 0, over_seeds.stderr
    assert [found["seed"] for found in json.loads(over_seeds.stdout)] == [42, 1]
    text = page.read_text()
    assert "badpo demo --out" in text and "--seeds 42,1" in text and "pooled" in text.casefold()


BOUNDED = """
from badpo.objective.objectives import VoteWeights

class Bounded(VoteWeights):
    def __init__(self, q):
        self.q = q

    def losses(self, margins, bias_logits, sign):
        return (1 - (-self.q * super().losses(margins, bias_logits, sign)).exp()) / self.q

OBJECTIVES = {"bounded": lambda judgments, seed, beta, q: Bounded(q)}
"""


def test_an_objective_of_ones_own_comes_from_a_file(tmp_path, short_answers, monkeypatch):
    monkeypatch.setattr(objectives, "OBJECTIVES", dict(objectives.OBJECTIVES))
    own, config = (
        tmp_path / "bounded.py",
        write_recipe(tmp_path, objective={"name": "bounded", "q": 0.7}),
    )
    own.write_text(BOUNDED, encoding="utf-8")
    refused = badpo("train", "--config", config)
    assert refused.exit_code == 2 and "one of yours comes from a file: --arm-file" in refused.stderr
    trained = badpo("train", "--config", config, "--arm-file", own)
    assert trained.exit_code == 0, trained.stderr
    folder = tmp_path / "runs" / "shared_mean_bounded-s42"
    # at the start every vote costs (1 - 0.5 ** q) / q
    assert log_lines(folder)[0]["loss"] == pytest.approx((1 - 0.5**0.7) / 0.7, rel=1e-5)
    monkeypatch.setattr(objectives, "OBJECTIVES", {"votes": objectives.OBJECTIVES["votes"]})
    assert badpo("evaluate", folder).exit_code == 2
    assert badpo("evaluate", folder, "--arm-file", own).exit_code == 0
    own.write_text("OBJECTIVES = {'votes': None}", encoding="utf-8")
    assert "votes is a built-in objective" in badpo("evaluate", folder, "--arm-file", own).stderr


# -- train, evaluate, report ---------------------------------------------------------------------------------


@pytest.mark.face
def test_a_dry_run_prints_the_plan_and_writes_nothing(tmp_path):
    config = write_recipe(tmp_path)
    before = written(tmp_path)
    result = badpo("train", "--config", config, "--dry-run")
    assert result.exit_code == 0, result.stderr
    names = " ".join(line.split()[0] for line in result.stdout.splitlines()[:5])
    assert names == "run judgments steps policy self-test"
    plan = json.loads(badpo("train", "--config", config, "--dry-run", "--json").stdout)
    assert_face("train --dry-run --json", keys(plan))
    assert (plan["n_steps"], plan["n_judgments"], plan["n_annotators"]) == (4, 96, 6)
    assert plan["findings"][0]["code"].startswith("W")
    assert written(tmp_path) == before


@pytest.mark.face
def test_train_evaluate_and_report(tmp_path, short_answers):
    config = write_recipe(tmp_path)
    trained = badpo("train", "--config", config)
    assert trained.exit_code == 0, trained.stderr
    assert trained.stdout == f"{tmp_path / RUN}\nnext: badpo evaluate {tmp_path / RUN}\n"
    pooled = badpo("train", "--config", config, "--bias", "pooled", "--seed", "3", "--json")
    assert json.loads(pooled.stdout) == {"run": str(tmp_path / "runs" / "pooled-s3")}
    assert BiasTerm.load(tmp_path / "runs" / "pooled-s3").parts == ("mean",)

    unmeasured = badpo("report", tmp_path / "runs", "--out", tmp_path / "report.html")
    assert unmeasured.exit_code == 2
    assert "run `badpo evaluate` on them first" in unmeasured.stderr
    assert not (tmp_path / "report.html").exists()

    folders = [tmp_path / RUN, tmp_path / "runs" / "pooled-s3"]
    measured = badpo("evaluate", *folders, "--json")
    assert measured.exit_code == 0, measured.stderr
    assert set(json.loads(measured.stdout)) == {str(folder) for folder in folders}
    assert_face("readouts.json", keys(json.loads((folders[0] / "readouts.json").read_text())))
    assert_face("run.json", sorted(json.loads((folders[0] / "run.json").read_text())))
    assert_face("files of a run", sorted(path.name for path in folders[0].iterdir()))
    text = badpo("evaluate", folders[0]).stdout
    assert "heldout" in text and "gap" in text

    reported = badpo("report", tmp_path / "runs", "--out", tmp_path / "report.html", "--json")
    assert json.loads(reported.stdout) == {"report": str(tmp_path / "report.html")}
    page = (tmp_path / "report.html").read_text()
    assert "pooled" in page and "length" in page
