"""Numbers that are not finite stop a run and name their comparison; leans without a bound are told."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch

from badpo.attributes import Length
from badpo.data.judgments import Judgments
from badpo.results.run_files import read_suite
from badpo.results.verdicts import anchor_sentences
from badpo.training.metrics import NotFiniteError, require_finite_reference
from badpo.training.trainer import BADPOTrainer
from tests import tiny
from tests.results.suites import write_suite
from tests.training.run_one import BrokenAt
from tests.training.test_trainer import judgments, log_lines, trainer


def broken(folder, kind: str, **options) -> BADPOTrainer:
    run = trainer(folder, **options)
    callback = BrokenAt(3, kind)
    callback.trainer = run
    run.add_callback(callback)
    return run


@pytest.mark.parametrize(
    "precision",
    [
        pytest.param({}, id="float32"),
        pytest.param({"bf16": True}, id="bf16", marks=pytest.mark.slow),
        pytest.param(
            {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8},
            id="accumulation",
            marks=pytest.mark.slow,
        ),
    ],
)
@pytest.mark.parametrize("kind", ["margin", "gradient", "theta"])
def test_a_value_that_is_not_finite_stops_the_run_and_names_its_comparison(tmp_path, kind, precision):
    run = broken(tmp_path, kind, save_strategy="steps", save_steps=1, **precision)
    with pytest.raises(NotFiniteError, match=r"^step 3: .*comparisons? .*\bc\d+") as caught:
        run.train()
    assert len(log_lines(tmp_path)) == 2
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "checkpoint-1",
        "checkpoint-2",
    ]
    if kind == "theta":
        assert "annotator ann_" in str(caught.value)
    assert "Lower the learning rate" in str(caught.value)


def test_the_comparison_and_the_row_are_the_right_ones(tmp_path):
    data = judgments()
    run = trainer(tmp_path, data, per_device_train_batch_size=8, gradient_accumulation_steps=1)
    whole = run._margins
    positions: list[int] = []

    def margins(model, inputs):
        values = whole(model, inputs)
        if run.state.global_step == 1:
            positions.extend(inputs["votes"][inputs["comparison"] == 2].tolist())
            values = torch.where(torch.arange(len(values)) == 2, math.inf, values)
        return values

    run._margins = margins
    with pytest.raises(NotFiniteError) as caught:
        run.train()
    said = str(caught.value)
    [name] = data.comparisons["comparison_id"].iloc[data.votes["comparison"].iloc[positions].unique()]
    rows = data.votes["row"].iloc[positions] + 1
    assert f"step 2: the margin of comparison {name} (row " in said and "is inf. Lower" in said
    assert any(f"(row {row} of the table" in said for row in rows)


def test_broken_weights_are_told_from_a_broken_comparison(tmp_path):
    run = trainer(tmp_path)
    assert run.references
    with torch.no_grad():
        next(run.model.parameters()).fill_(math.nan)
    with pytest.raises(NotFiniteError, match="step 1: all 8 judgments .* the policy's weights are broken"):
        run.train()


def test_evaluation_stops_too(tmp_path):
    run = trainer(tmp_path, eval_dataset=judgments())
    assert run.references
    with torch.no_grad():
        next(run.model.parameters()).fill_(math.nan)
    with pytest.raises(NotFiniteError, match="evaluation at step 0: all 72 judgments"):
        run.evaluate()


def test_a_reference_that_is_not_finite_is_refused_before_the_first_step(tmp_path):
    run = trainer(tmp_path)
    with torch.no_grad():
        next(run.model.parameters()).fill_(math.nan)
    with pytest.raises(NotFiniteError, match="24 comparisons of 24 .* load it in bf16 or float32"):
        run.train()
    assert not (tmp_path / "log.jsonl").exists()


def test_one_comparison_of_a_reference_is_named():
    data = judgments()
    fine = np.zeros(2, dtype=np.float32)
    values = [(fine, fine)] * 5 + [(fine, np.array([0.0, np.nan]))] + [(fine, fine)] * 18
    with pytest.raises(NotFiniteError, match=r"1 comparison of 24 .*\(first: c5\)"):
        require_finite_reference(values, data)


def one_sided(annotators: set[str]) -> Judgments:
    table = tiny.votes(n_comparisons=40)
    longer = tiny.for_the_longer(table)
    chosen = table["annotator"].isin(annotators)
    table = table.assign(winner=table["winner"].where(~chosen, longer["winner"]))
    return Judgments.read(table, attributes=[Length(ratio=1.5)])


def told_to_be_separated(folder, data, bias: str) -> dict[str, int]:
    run = trainer(folder, data, bias=bias)
    run.save_bias(folder)
    return json.loads((folder / "bias.json").read_text())["extra"]["separated"]


@pytest.mark.parametrize("bias", ["shared_mean", "per_annotator", "class"])
def test_annotators_who_always_side_one_way_are_counted(tmp_path, bias):
    data = one_sided({"person 1", "person 3"})
    longer = pd.Series(data.votes["sign"].to_numpy() * data.delta[:, 0])
    differs = longer != 0
    expected = int((longer[differs].groupby(data.votes["annotator"][differs]).nunique() == 1).sum())
    assert expected >= 2
    assert told_to_be_separated(tmp_path, data, bias) == {"length": expected}


@pytest.mark.parametrize(("n", "told"), [(4, "fewer than 5"), (12, "10")])
def test_the_report_counts_the_one_sided_and_names_nobody(tmp_path, n, told):
    path = write_suite(tmp_path) / "shared_mean-s42" / "bias.json"
    assert not any("sided one way" in sentence for sentence in anchor_sentences(read_suite(tmp_path)))
    bias = json.loads(path.read_text())
    bias["extra"]["separated"] = {"woman": n}
    path.write_text(json.dumps(bias))
    [sentence] = [s for s in anchor_sentences(read_suite(tmp_path)) if "sided one way" in s]
    assert sentence.startswith(
        f"BA-DPO (shared mean): annotators who always sided one way (woman-coded {told} of 60)."
    )
    assert not any(name in sentence for name in bias["annotators"])


def test_a_pooled_theta_has_no_bound_only_where_everyone_sides_one_way(tmp_path):
    everyone = one_sided({f"person {k}" for k in range(5)})
    assert told_to_be_separated(tmp_path / "mixed", one_sided({"person 1"}), "pooled") == {}
    assert told_to_be_separated(tmp_path / "alike", everyone, "pooled") == {"length": 5}
    assert told_to_be_separated(tmp_path / "plain", everyone, "none") == {}


def test_theta_of_the_one_sided_is_bounded_by_the_steps(tmp_path):
    run = trainer(tmp_path, one_sided({"person 1"}), bias="per_annotator", max_steps=20, num_train_epochs=5)
    run.train()
    assert run.bias.theta().abs().max() <= 20 * run.args.bias_learning_rate * 1.01
