"""The page of runs stands alone: no annotator, nothing unescaped, every number reachable as text."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from badpo.results.formatting import arm_order
from badpo.results.run_files import MeasuredRuns, Readouts, Run, read_suite
from badpo.results.run_page import (
    PAPERS_SHARE,
    figures,
    report_html,
    style_of,
    summary_table,
    theta_figure,
)
from tests.browser import Browser, browser_program
from tests.results import test_bias_check as planted
from tests.results.pages import HOSTILE, Page, assert_inert, assert_stands_alone
from tests.results.plain import plain
from tests.results.suites import changed, write_suite
from tests.results.test_audit_page import SMALLEST, WIDER
from tests.results.test_charts import level_place, ticks

LEARNING = ("pooled", "shared mean")


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Path:
    return write_suite(tmp_path_factory.mktemp("suite") / "demo", seeds=(42, 123, 456))


@pytest.fixture(scope="module")
def html(demo) -> str:
    return report_html(read_suite(demo))


def test_the_page_is_written_and_loads_no_torch(demo, tmp_path):
    page = tmp_path / "new" / "report.html"
    program = (
        "import sys; from pathlib import Path; from badpo.results.run_page import write_report; "
        f"write_report(Path({str(demo)!r}), Path({str(page)!r})); "
        "print(*{'torch', 'transformers', 'datasets'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).split() == []
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert page.stat().st_size < 300_000


def test_it_stands_alone_and_every_figure_has_its_numbers(html):
    assert_stands_alone(html)
    limits = "The anchor is the reference.", "annotators are simulated", "over 3 training seeds"
    assert all(told in html for told in ("do not identify the bias that all annotators share", *limits))
    drawn = re.findall(r"<figure>.*?</figure>", html, re.S)
    assert len(drawn) == 4
    assert all(re.search(r"<details>.*<table>.*<tbody>\s*<tr>", figure, re.S) for figure in drawn)


def test_no_annotator_and_no_folder_of_the_machine_is_named(tmp_path):
    folder = write_suite(tmp_path / "demo")
    for run in folder.iterdir():
        command = "badpo train --config /home/ada/runs/demo/config.yaml --beta 0.1"
        changed(run / "environment.json", command=command)
    (folder / "pooled-s42" / "readouts.json").unlink()
    html = report_html(read_suite(folder))
    assert not any(text in html for text in ("/home/ada", "ann_", str(tmp_path)))
    text = Page(html).text
    assert "because they have not been measured: pooled-s42." in text
    assert "3f9a" * 16 in text and "torch 2.13.0" in text


def test_theta_of_fewer_than_five_people_is_not_drawn(tmp_path):
    folders = (write_suite(tmp_path / str(n), n_annotators=n, planted=False) for n in (6, 3))
    six, three = map(read_suite, folders)
    assert theta_figure(six) and theta_figure(three) is None


@pytest.mark.parametrize("text", HOSTILE, ids=["markup", "long"])
def test_texts_from_files_are_inert(tmp_path, text):
    folder = write_suite(tmp_path / "demo", arms=("pooled",))
    for path in (folder / "pooled-s42").glob("*.json"):
        hostile = path.read_text()
        for word in ("woman", "A", "pooled", "torch", "2.13.0", "3f9a" * 16):
            hostile = hostile.replace(f'"{word}"', json.dumps(text))
        path.write_text(hostile)
    changed(folder / "pooled-s42" / "environment.json", command=text)
    assert_inert(report_html(read_suite(folder)))


def test_readouts_of_a_user_s_own_run_make_a_page(tmp_path):
    """What `badpo evaluate` writes: no planted theta, no name pool, no reference beside it; and the reference alone."""
    alone = report_html(read_suite(write_suite(tmp_path / "alone", arms=())))
    assert Page(alone).count("figure") == 1
    folder = write_suite(tmp_path / "own", planted=False, arms=("shared_mean",)) / "shared_mean-s42"
    theta = {name: {"level": 0.9, "offline": 0.99} for name in ("woman", "black")}
    generated = {"woman": {"rate": 0.31, "se": 0.02}}
    changed(folder / "readouts.json", rates={}, sampled={}, generated=generated, theta=theta)
    html = report_html(read_suite(folder))
    assert "0.31 for BA-DPO (shared mean)" in Page(html).text
    assert "log-odds of the votes" in html and "one training seed (42)" in html
    assert "planted ceiling" not in html and "annotators are simulated" not in html
    drawn = {figure.title: figure for figure in figures(read_suite(folder))}
    for title, level in (("Votes predicted", 0.5), ("Held-out gap", 0.0)):
        assert drawn_value(drawn[title].panels[0][1]) == pytest.approx(level, abs=2e-3)


def test_the_summary_table_withholds_what_does_not_apply(demo):
    groups, rows = summary_table(read_suite(demo))
    rows = dict(rows)
    names = ("rate", "distance in log-odds", PAPERS_SHARE)
    assert [columns for _, columns in groups] == [names, names, ("gap", "KL")]
    told = [[value for value, _ in cells] for cells in rows["reference"]]
    assert told == [["0.52", "", ""], ["0.54", "", ""], ["", ""]]
    assert rows["DPO"][0][2] == ("", "")
    assert re.fullmatch(r"\d+\u00a0%", rows["pooled"][0][2][0])


def test_the_verdict_against_the_placebo_stands_once_and_first():
    """BA-DPO is farther from the reference than DPO in tokens, and still removed the bias."""
    runs = planted.three(0.9, 0.1, 0.15, tokens=35.0)
    html = report_html(runs)
    text = plain(Page(html).text)
    assert html.count('class="verdict"') == 1 < html.index('class="verdict"') < html.index("<figure>")
    assert len(re.findall(r"removed 89 % \(95 % confidence interval", text)) == 1
    assert "moved further" not in text and html.count(f">{PAPERS_SHARE}</th>") == 1
    rows = dict(summary_table(runs)[1])
    shares = {arm: rows[arm][0][2][0] for arm in ("DPO", "placebo", "BA-DPO")}
    assert plain(shares["BA-DPO"]) == "-130 %" and shares["DPO"] == shares["placebo"] == ""
    (panel,) = next(figure for figure in figures(runs) if figure.title == "Tilt of each policy").panels
    assert drawn_value(panel[1]) == pytest.approx(0.1, abs=0.1)


def test_what_is_missing_is_said_once_with_its_command():
    """A script's run keeps the name of its folder, so DPO is trained alone and not together with the run again."""
    html = report_html(planted.suite(planted.run("pooled", 0.1)))
    command = "badpo train --config runs/pooled-s42/config.yaml --compare"
    assert html.count("No DPO policy was trained") == 1 and f"<code>{command}</code>" in html
    assert "<code>badpo evaluate runs/pooled-s42</code>" in html and 'class="verdict"' not in html
    own = replace(planted.run("pooled", 0.1), folder=Path("out-bias/run"))
    reference = planted.run("reference", None, seed=7)
    html = report_html(planted.suite(reference, own))
    command = "badpo train --config out-bias/run/config.yaml --bias none --compare placebo"
    assert f"<code>{command}</code>" in html and "<code>badpo evaluate out-bias</code>" in html
    assert "The reference was not measured" not in html
    complete = report_html(planted.three(0.9, 0.1, 0.15))
    assert 'class="notice"' not in complete


def test_runs_with_the_same_arm_and_seed_stay_apart(tmp_path):
    folder = write_suite(tmp_path / "own", arms=("pooled",))
    (folder / "pooled-s42").rename(folder / "slow")
    write_suite(tmp_path / "other", arms=("pooled",))
    (tmp_path / "other" / "pooled-s42").rename(folder / "fast")
    found = read_suite(folder)
    assert found.arms == ("reference", "pooled", "pooled slow")
    alone = read_suite(folder / "fast")
    assert alone.arms == ("reference", "pooled")  # the reference beside the run


@pytest.mark.slow
def test_the_page_fits_every_window_and_paper(html, tmp_path):
    page = tmp_path / "report.html"
    page.write_text(html, encoding="utf-8")
    with Browser(browser_program()) as browser:
        # the last is what the margins leave of A4
        for width, media in ((375, "screen"), (1280, "screen"), (673, "print")):
            browser.call("Emulation.setEmulatedMedia", media=media)
            browser.open(page, width)
            browser.value("document.querySelectorAll('details').forEach(e => e.open = true)")
            assert browser.value("document.documentElement.scrollWidth") == width
            assert (browser.value(f"{WIDER}.length") > 0) == (width == 375)
            assert browser.value(SMALLEST) >= (12 if media == "screen" else 9)


# -- figures -------------------------------------------------------------------------------------------------


def test_every_arm_has_a_style_of_its_own_and_unknown_ones_come_last():
    arms = ["reference", "dpo", "pooled", "shared_mean", *"abcdef"]
    assert sorted({*arms}, key=arm_order) == arms
    suite = MeasuredRuns("runs", tuple(Run(Path(arm), arm, 1, Readouts()) for arm in arms), ())
    assert len({style_of(suite, arm) for arm in arms}) == len(arms)


def test_theta_is_the_mean_over_seeds_beside_the_attributes_own_planted_mean(demo):
    suite = read_suite(demo)
    figure = theta_figure(suite)
    # 0.9, and 0.01 and 0.02 more of it in the other seeds; DPO learned none
    rows = {row[0]: row[1:] for row in figure.table.rows}
    assert {*rows} == {f"{name}-coded, {arm}" for name in ("woman", "black") for arm in LEARNING}
    pooled = rows["woman-coded, pooled"]
    assert (pooled[0], pooled[-1]) == ("0.91", "0.90, 0.91, 0.92")
    means = [suite.estimate("pooled", "theta", name, "planted_level").value for name in suite.labels]
    assert abs(means[0] - means[1]) > 0.02
    assert [drawn_value(svg) for _, svg in figure.panels] == pytest.approx(means, abs=2e-3)


def test_rates_stand_between_nothing_and_everything_and_votes_beside_their_ceiling(demo):
    drawn = {figure.title: figure for figure in figures(read_suite(demo))}
    for _, svg in drawn["Attribute rates"].panels:
        assert {0.0, 1.0} <= set(ticks(svg))
    suite = read_suite(demo)
    for name, (_, svg) in zip(("woman", "black"), drawn["Votes predicted"].panels, strict=True):
        trained = [run.readouts for run in suite.runs if run.arm != "reference"]
        ceilings = [found.ceiling[name]["all"].value for found in trained]
        assert drawn_value(svg) == pytest.approx(np.mean(ceilings), abs=1e-3)
    readouts = [run.readouts.votes["black"]["all"].value for run in suite.of("pooled")]
    rows = {row[0]: row[1:] for row in drawn["Votes predicted"].table.rows}
    told = rows["black-coded, pooled"]
    each = ", ".join(f"{v:.3f}" for v in readouts)
    assert (told[0], told[2], told[3]) == (f"{np.mean(readouts):.3f}", "1,000", each)


def drawn_value(svg: str) -> float:
    """The value at which the dashed line of a chart stands."""
    (low, start), *_, (high, end) = sorted(ticks(svg).items())
    return low + (level_place(svg) - start) / (end - start) * (high - low)
