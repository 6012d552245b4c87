"""The suites as data, their names, their costs; locks and starts of theta. Nothing is trained here."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from badpo.auditing.pool import swap_pairs
from badpo.data.problems import ConfigError, DataError
from badpo.objective.bias import VARIANTS, BiasTerm
from badpo.readouts.names import CELLS
from badpo.training.checkpoints import seal_run, write_json
from badpo.training.inputs import build_bias
from badpo_paper.arms import ARMS
from badpo_paper.materials import own_file, own_style
from badpo_paper.methods import FallingRate, clustered, start_bias, starting_level
from badpo_paper.patterns import PATTERNS
from badpo_paper.reproduce import (
    about_data,
    chosen_suites,
    plan_suites,
    read_suite,
    require_usable,
    scale_named,
    suites_folder,
)
from badpo_paper.schedule import plan, planned_runs, require_needs
from badpo_paper.settings import SCALES
from badpo_paper.suites import SUITES, Condition, Corpus
from badpo_paper.tables import REFERENCE, about_votes, name_panels, paper_numbers
from tests.paper.suite_scale import SMALL, material, suite

SEEDS = (42, 123, 456)
DPO, POOLED = Condition("dpo", "dpo"), Condition("pooled", "pooled")

# -- suites as data ------------------------------------------------------------------------------------------


def test_every_row_has_an_arm_and_every_pattern_a_function():
    for found in SUITES.values():
        assert all(row.condition.arm in ARMS for panel in found.panels for row in panel.rows)
        assert all(name in PATTERNS for name in found.patterns)
    assert {name for found in SUITES.values() for name in found.patterns} == set(PATTERNS)


def test_every_number_of_the_paper_has_its_row_and_column():
    panels = {
        (panel.label, panel.title): panel
        for found in SUITES.values()
        for panel in (
            *found.votes,
            *found.panels,
            *(panel for corpus in found.signatures for panel in name_panels(corpus)),
        )
    }
    of_votes = {panel for found in SUITES.values() for panel in found.votes}
    for label, by_title in paper_numbers().items():
        for title, rows in by_title.items():
            panel = panels[label, title]
            labels = {REFERENCE, panel.truth, *(row.label for row in panel.rows)}
            if panel in of_votes:
                labels |= {"length", "markdown"}
            if not panel.rows:
                labels |= {"woman", "black", *CELLS}
            columns = {column.label for column in panel.columns}
            assert set(rows) <= labels, (label, title)
            assert {column for row in rows.values() for column in row} <= columns, (label, title)


def test_the_papers_intervals_are_those_of_the_tables():
    ours = {panel.label: panel.spread for found in SUITES.values() for panel in found.panels}
    assert {ours[label] for label in ("tab:names_v3", "tab:multipref", "tab:formatting", "tab:mistral")} == {
        "t95"
    }
    assert {ours[label] for label in ("tab:abl_names_v3", "tab:abl_multipref")} == {"sd"}


def test_suites_share_their_runs():
    each = {
        name: {run.place for run in planned_runs([found], SCALES["tiny"], SEEDS)}
        for name, found in SUITES.items()
    }
    assert each["votes"] & each["names"] == each["names"]
    assert {"style/dpo-s42", "style/rdpo-s42"} <= each["multipref-length"] & each["multipref-formatting"]
    everything = planned_runs(SUITES.values(), SCALES["tiny"], SEEDS)
    assert len({run.place for run in everything}) == len(everything) < sum(map(len, each.values()))
    assert [run.condition is None for run in everything] == sorted(
        (run.condition is None for run in everything), reverse=True
    )


def test_one_name_means_one_run():
    other = Condition("dpo", "dpo", overrides=(("beta", 0.5),))
    with pytest.raises(ConfigError, match="a different run by signed/dpo-s42"):
        planned_runs([suite(DPO), suite(other)], SMALL, SEEDS)


@pytest.mark.parametrize("scale", ["tiny", "paper"])
def test_every_scale_can_plan_everything(scale, tmp_path):
    runs = planned_runs(SUITES.values(), SCALES[scale], SEEDS)
    assert set(plan(runs, tmp_path, {}).states.values()) == {"to do"}


@pytest.mark.slow
def test_a_plan_tells_which_corpora_are_out_of_reach(tmp_path):
    planned = plan_suites(list(SUITES.values()), SCALES["paper"], SEEDS, tmp_path)
    unread = [line for line in planned.about if "are not read" in line]
    assert [line.split(" are")[0] for line in unread] == ["the votes of signed", "the votes of style"]
    assert "E190" in unread[0] and planned.refused == {}


def test_em_dpo_runs_at_one_seed_of_the_tiny_scale():
    places = {run.place for run in planned_runs([SUITES["names"]], SCALES["tiny"], SEEDS)}
    assert {place for place in places if "em_dpo" in place} == {"signed/em_dpo-s42"}


# -- the plan --------------------------------------------------------------------------------------------------


def test_a_plan_tells_what_is_there(tmp_path):
    found = suite(DPO, POOLED)
    folder = tmp_path / "signed" / "dpo-s42"
    folder.mkdir(parents=True)
    for name in ("run.json", "readouts.json"):
        write_json(folder / name, {})
    (tmp_path / "signed" / "pooled-s42").mkdir()
    write_json(tmp_path / "signed" / "pooled-s42" / "begun.json", {})
    planned = plan_suites([found], SMALL, (42,), tmp_path)
    assert planned.states == {
        "signed/reference": "to do",
        "signed/dpo-s42": "done",
        "signed/pooled-s42": "begun",
    }
    assert "3 runs, 1 of them done" in planned.lines()


def test_a_plan_on_own_votes_tells_what_of_them_is_trained_on(tmp_path):
    file = tmp_path / "votes.parquet"
    material(Corpus("style"), None).judgments.to_parquet(file)
    planned = plan_suites([suite(DPO, corpus=Corpus("style"))], SMALL, (42,), tmp_path, data=file)
    assert planned.about[0].startswith("votes: ") and planned.lines()[-len(planned.about) :] == list(
        planned.about
    )
    assert planned.to_json()["about"] == list(planned.about)
    assert plan_suites([suite(DPO)], SMALL, (42,), tmp_path).about == ()


def test_tables_say_what_stands_in_for_the_models_they_name(tmp_path):
    tiny = read_suite(SUITES["names"], SCALES["tiny"], SEEDS, tmp_path)
    assert "one of 0.4 million weights" in tiny.text("text") and tiny.text("csv") == ""
    assert "in their place" not in read_suite(SUITES["names"], SCALES["paper"], SEEDS, tmp_path).text("text")


# -- names that are asked for ------------------------------------------------------------------------------------


def test_a_wrong_name_gets_the_right_one():
    with pytest.raises(ConfigError, match='Did you mean "names"'):
        chosen_suites("name")
    with pytest.raises(ConfigError, match="Scales: tiny, demo, paper"):
        scale_named("huge")


def test_a_file_stands_in_the_place_of_one_suites_corpus(tmp_path):
    votes, tiny, paper = tmp_path / "votes.csv", SCALES["tiny"], SCALES["paper"]
    with pytest.raises(ConfigError, match="is not there"):
        require_usable(votes, chosen_suites("multipref-length"), tiny)
    votes.write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="the corpus of one suite; name that suite: names"):
        require_usable(votes, chosen_suites("all"), paper)
    on_names = {"names", "names-ablation", "names-samples", "lora", "votes", "offset", "beyond"}
    for name in SUITES:
        require_usable(votes, chosen_suites(name), paper)
        if name not in on_names:
            require_usable(votes, chosen_suites(name), tiny)
            continue
        with pytest.raises(ConfigError, match=f"{name} is on names, .* a signature, which stands at a"):
            require_usable(votes, chosen_suites(name), tiny)
    assert suites_folder(tmp_path, tiny, votes).name == "tiny-votes"


def test_a_file_for_a_suite_on_both_kinds_is_the_votes_on_length(tmp_path):
    both = SUITES["mistral"].corpora()
    file = tmp_path / "votes.parquet"
    assert {corpus.kind: own_file(corpus, both, file) for corpus in both} == {"signed": None, "style": file}
    material(Corpus("style"), None).judgments.to_parquet(file)
    told = about_data([Corpus("signed"), Corpus("style")], SMALL, file)
    assert told[0].startswith("votes: ")
    assert (
        told[-1]
        == "votes.parquet holds the votes on length and Markdown; the signed pairs are those of scale small"
    )


# -- where theta starts ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def signed_votes():
    return material(Corpus("signed"), None).judgments


def test_theta_starts_at_the_swap_pairs_level(signed_votes):
    level, sources = starting_level(signed_votes, "swap")
    assert level.tolist() == [row["log_odds"] for row in swap_pairs(signed_votes)]
    assert sources == ("swap pairs", "swap pairs")


def test_without_swap_pairs_theta_starts_at_the_offline_level():
    votes = material(Corpus("style"), None).judgments
    level, sources = starting_level(votes, "swap")
    assert sources == ("offline", "offline")
    assert level.tolist() == [estimate.log_odds for estimate in votes.offline_log_odds()]


def test_a_burn_in_ends_at_the_optimum_of_the_loss(signed_votes):
    level, _ = starting_level(signed_votes, "burn_in")
    x = signed_votes.votes["sign"].to_numpy()[:, None] * signed_votes.delta
    gradient = (x / (1 + np.exp(x @ level))[:, None]).sum(axis=0)
    assert np.abs(gradient).max() < 1e-4


def test_a_bias_term_takes_its_start(signed_votes):
    level, _ = starting_level(signed_votes, "swap")
    for variant in ("pooled", "shared_mean"):
        bias = BiasTerm(
            signed_votes.attribute_names, signed_votes.annotators["pseudonym"].tolist(), VARIANTS[variant]
        )
        start_bias(bias, signed_votes, "zero")
        assert not bias.theta().any()
        start_bias(bias, signed_votes, "swap")
        np.testing.assert_allclose(bias.theta().detach().numpy()[7], level, rtol=1e-6)


def test_the_trainers_own_key_starts_theta_where_the_suite_did(signed_votes):
    for variant in ("pooled", "shared_mean"):
        people = signed_votes.annotators["pseudonym"].tolist()
        suites_own = BiasTerm(signed_votes.attribute_names, people, VARIANTS[variant])
        start_bias(suites_own, signed_votes, "swap")
        trainers = build_bias(signed_votes, variant, "audit")
        assert (trainers.theta() == suites_own.theta()).all() and trainers.theta().abs().min() > 0


def test_clusters_stand_in_for_classes(signed_votes):
    found = clustered(signed_votes)
    classes = found.annotators["annotator_class"]
    assert set(classes) <= {"cluster 0", "cluster 1", "cluster 2"} and classes.nunique() > 1
    assert clustered(signed_votes).annotators["annotator_class"].tolist() == classes.tolist()
    assert found.fingerprint() != signed_votes.fingerprint()


def test_the_boosted_rate_falls_to_its_value():
    group = {"lr": 0.02}
    callback = FallingRate(SimpleNamespace(bias_optimizer=SimpleNamespace(param_groups=[group])), boost=4.0)
    rates = []
    for step in (0, 50, 100, 400):
        state = SimpleNamespace(global_step=step, max_steps=500)
        callback.on_step_begin(SimpleNamespace(bias_learning_rate=0.02), state, None)
        rates.append(round(group["lr"], 6))
    assert rates == [0.08, 0.05, 0.02, 0.02]


# -- a user's own votes ----------------------------------------------------------------------------------------


def own_votes(path, long: str, n_prompts: int = 40):
    """Votes of four people on pairs of an answer and a longer one, written to ``path``."""
    rows = [
        {
            "prompt": f"Question {i}?",
            "chosen": (long, "So it is.")[i % 2],
            "rejected": ("So it is.", long)[i % 2],
        }
        | {"annotator": f"p{k}"}
        for i in range(n_prompts)
        for k in range(4)
    ]
    pd.DataFrame(rows).to_parquet(path)
    return path


def test_votes_that_say_nothing_of_the_declared_attribute_are_refused(tmp_path):
    file = own_votes(tmp_path / "alike.parquet", "So is it.")
    length = suite(Condition("pooled-length", "pooled", ("length",)), corpus=Corpus("style"))
    with pytest.raises(DataError, match="E121.*\n.*alike.parquet"):
        require_needs([length], SMALL, (42,), tmp_path, file)
    require_needs([suite(DPO, corpus=Corpus("style"))], SMALL, (42,), tmp_path, file)


def test_another_table_of_the_same_name_is_refused_by_its_own(tmp_path):
    length = suite(Condition("pooled-length", "pooled", ("length",)), corpus=Corpus("style"))
    file = own_votes(tmp_path / "votes.parquet", "It is so because it has always been so, everywhere.")
    reference = tmp_path / "style" / "reference"
    (reference / "model").mkdir(parents=True)
    seal_run(reference, {"facts": {"votes": "another"}})
    with pytest.raises(ConfigError, match="reference was made with other settings: .*votes was another"):
        require_needs([length], SMALL, (42,), tmp_path, file)


def test_few_prompts_of_own_votes_are_asked_often_and_as_often_each(tmp_path):
    file = own_votes(tmp_path / "few.parquet", "It is so because it has always been so.", n_prompts=28)
    asked = Counter(own_style(file, 0.25).prompts)
    assert len(asked) == 7 and set(asked.values()) == {42}
    told = about_votes(Corpus("style"), SCALES["tiny"], file)
    assert "7 evaluation prompts, 42 times each" in told[0]
    assert told[1].startswith("7 evaluation prompts are few")


def test_a_single_prompt_cannot_be_held_out(tmp_path):
    file = own_votes(tmp_path / "one.parquet", "It is so because it has always been so.", n_prompts=1)
    with pytest.raises(DataError, match="1 prompt: none can be held out"):
        own_style(file, 0.25)
