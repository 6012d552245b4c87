"""The page stands alone: no network, no script, no annotator, nothing unescaped, every number reachable as text."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from badpo.results.run_files import read_suite
from badpo.results.run_page import report_html, settings, summary_table, write_report
from tests.results.suites import write_suite

VOID = {"meta", "br"}
HOSTILE = '"><script>alert(1)</script><img src=x onerror=y>'


class Page(HTMLParser):
    """Tags, attributes and text of a page; raises where tags do not nest."""

    def __init__(self, html: str):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open and self._open[-1] == tag, f"</{tag}> closes {self._open[-3:]}"
        self._open.pop()

    def handle_data(self, data):
        self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Path:
    return write_suite(tmp_path_factory.mktemp("suite") / "demo", seeds=(42, 123, 456))


@pytest.fixture(scope="module")
def html(demo) -> str:
    return report_html(read_suite(demo))


def test_the_page_is_written_whole_and_small(demo, tmp_path):
    page = write_report(demo, tmp_path / "new" / "report.html")
    content = page.read_text(encoding="utf-8")
    assert content.startswith("<!doctype html>")
    assert page.stat().st_size < 300_000
    assert [path.name for path in page.parent.iterdir()] == ["report.html"]


def test_it_needs_no_network_and_no_script(html):
    page = Page(html)
    policies = [
        a["content"] for t, a in page.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]
    assert not page.count("script") and not page.count("link") and not page.count("img")
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    addresses = set(re.findall(r"https?://[^\s\"'<)]+", html))
    assert addresses == {"http://www.w3.org/2000/svg"}
    assert "url(" not in html and "@import" not in html


def test_every_figure_has_a_caption_tooltips_and_its_numbers(html):
    figures = re.findall(r"<figure>.*?</figure>", html, re.S)
    assert len(figures) == 5
    for figure in figures:
        assert re.search(r"<figcaption>\S.*?</figcaption>", figure, re.S)
        assert re.search(r"<details>.*<table>.*<tbody>\s*<tr>", figure, re.S)
        assert "<title>" in figure and 'role="img" aria-label="' in figure
    assert "nan" not in re.sub(r"<style>.*?</style>", "", html, flags=re.S).lower().split()


def test_it_says_what_moved_what_is_not_known_and_where_it_comes_from(html):
    text = Page(html).text
    assert re.search(r"DPO moved p\(woman-coded\) from 0\.52 to 0\.9\d\.", text)
    assert re.search(r"BA-DPO \(pooled\) removed \d+\s% of that shift", text)
    for piece in (
        "is not identified by their votes",
        "The anchor is the reference",
        "annotators are constructed",
    ):
        assert piece in text
    for piece in ("torch 2.13.0", "42, 123, 456", "3f9a" * 16):
        assert piece in text


def test_no_annotator_and_no_folder_of_the_machine_is_named(html, demo):
    assert "ann_" not in html
    assert str(demo.parent) not in html
    assert "/home/ada" not in html
    assert ("output_dir", "runs") in settings(read_suite(demo))


def test_theta_of_fewer_than_five_people_is_not_drawn(tmp_path):
    of_six = write_suite(tmp_path / "six", n_annotators=6, planted=False)
    assert "Theta over steps" in report_html(read_suite(of_six))
    of_three = write_suite(tmp_path / "three", n_annotators=3, planted=False)
    assert "Theta over steps" not in report_html(read_suite(of_three))


def test_the_command_names_no_place_on_a_machine(tmp_path):
    folder = write_suite(tmp_path / "demo")
    for run in folder.iterdir():
        command = "badpo train --config /home/ada/runs/demo/config.yaml --beta 0.1"
        (run / "environment.json").write_text(json.dumps({"command": command}))
    html = report_html(read_suite(folder))
    assert "/home/ada" not in html
    assert "badpo train --config config.yaml --beta 0.1" in html


def test_texts_from_files_are_escaped(tmp_path):
    folder = write_suite(tmp_path / "demo")
    run = folder / "pooled-s42"
    readouts = json.loads((run / "readouts.json").read_text())
    for key in ("rates", "sampled", "heldout", "votes", "theta"):
        readouts[key][HOSTILE] = readouts[key]["woman"]
    readouts["arm"] = HOSTILE
    readouts["votes"]["woman"][HOSTILE] = readouts["votes"]["woman"]["A"]
    (run / "readouts.json").write_text(json.dumps(readouts))
    (run / "environment.json").write_text(json.dumps({"command": HOSTILE, "packages": {"torch": HOSTILE}}))
    (run / "config.yaml").write_text(json.dumps({HOSTILE: HOSTILE}))
    bias = json.loads((run / "bias.json").read_text())
    bias["extra"]["data"] = HOSTILE
    (run / "bias.json").write_text(json.dumps(bias))
    html = report_html(read_suite([run, folder / "reference"]))
    page = Page(html)
    assert not page.count("script") and not page.count("img")
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]


def test_direction_marks_control_characters_and_long_names_do_not_break_it(tmp_path):
    folder = write_suite(tmp_path / "demo")
    run = folder / "dpo-s42"
    readouts = json.loads((run / "readouts.json").read_text())
    name = "\u202eevil\x00" + "x" * 1_000_000
    readouts["rates"][name] = readouts["rates"]["woman"]
    (run / "readouts.json").write_text(json.dumps(readouts))
    html = report_html(read_suite(folder))
    assert "\u202e" not in html and "\x00" not in html
    assert len(html) < 300_000


def test_a_run_without_readouts_is_named(tmp_path):
    folder = write_suite(tmp_path / "demo")
    (folder / "pooled-s42" / "readouts.json").unlink()
    assert (
        "Not on this page, because they have no readouts: pooled-s42."
        in Page(report_html(read_suite(folder))).text
    )


@pytest.mark.parametrize("arms", [(), ("dpo",), ("shared_mean",)])
def test_a_part_of_a_suite_still_makes_a_page(tmp_path, arms):
    page = Page(report_html(read_suite(write_suite(tmp_path / "part", arms=arms))))
    assert page.count("figure") >= 1


def test_votes_of_real_annotators_are_not_drawn_one_by_one(tmp_path):
    folder = write_suite(tmp_path / "real", planted=False)
    html = report_html(read_suite(folder))
    assert "Learned against planted theta" not in html
    assert 'class="point' not in html


def test_readouts_of_a_user_s_own_run_make_a_page(tmp_path):
    """What `badpo evaluate` writes: no planted theta, no name pool, no reference beside it."""
    folder = write_suite(tmp_path / "own", planted=False, arms=("shared_mean",)) / "shared_mean-s42"
    readouts = json.loads((folder / "readouts.json").read_text())
    del readouts["rates"], readouts["sampled"]
    readouts["generated"] = {"woman": {"rate": 0.31, "se": 0.02}}
    readouts["theta"] = {name: {"level": 0.9, "offline": 0.99} for name in ("woman", "black")}
    (folder / "readouts.json").write_text(json.dumps(readouts))
    text = Page(report_html(read_suite(folder))).text
    assert "BA-DPO (shared mean) ended at 0.31" in text
    assert "offline estimate" in text


def test_the_summary_table_withholds_what_does_not_apply(demo):
    table = summary_table(read_suite(demo))
    rows = dict(table.rows)
    columns = [name for _, names in table.groups for name in names]
    assert columns == ["rate", "removed", "log-odds"] * 2 + ["gap", "votes", "KL"]
    assert [cell.value for cell in rows["reference"]] == ["0.52", "", "", "0.54", "", "", "", "", ""]
    assert rows["DPO"][1].value == ""
    assert re.fullmatch(r"\d+\u00a0%", rows["pooled"][1].value)
    assert [i for i, cell in enumerate(rows["pooled"]) if cell.starts_group] == [0, 3, 6]


def test_reading_runs_and_writing_the_page_loads_no_torch(demo, tmp_path):
    program = (
        "import sys; from pathlib import Path; from badpo.results.run_page import write_report; "
        f"write_report(Path({str(demo)!r}), Path({str(tmp_path / 'r.html')!r})); "
        "heavy = {'torch', 'transformers', 'datasets'} & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
