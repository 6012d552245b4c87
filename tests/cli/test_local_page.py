"""`badpo open` in a real browser, by keyboard, and what its server refuses."""

import asyncio
import csv
import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest

from badpo.auditing.audit import audit
from badpo.cli import local_page
from badpo.cli.local_page import Choices, OpenedTable
from badpo.results.audit_findings import attribute_findings
from tests.auditing.planted import votes
from tests.browser import Browser, browser_program
from tests.public_face import invoke

pytest.importorskip("starlette", reason="needs the extra [app]")
pytest.importorskip("uvicorn", reason="needs the extra [app]")

# whichever answer is the longer one wins, except in every fourth vote
WORDS = (8, 5, 9)


@pytest.fixture
def table(tmp_path) -> Path:
    """Votes whose labels could be either side by their order alone."""
    rows = []
    for i in range(36):
        texts = ["so " * WORDS[i % 3], "because " * 4]
        first, second = texts[:: 1 if i % 2 else -1]
        wins = "12"[(i % 2 == 0) == (i % 4 != 3)]
        rows.append([f"<b>Why {i}?</b>", first, second, wins, f"w{i % 3}", i % 2, (i // 2) % 2])
    with (tmp_path / "votes.csv").open("w", newline="") as file:
        names = ("prompt", "response_a", "response_b", "winner", "annotator", "kind_a", "kind_b")
        csv.writer(file).writerows([names, *rows])
    return tmp_path / "votes.csv"


@contextmanager
def started(table: Path, *flags: str, **further: str) -> Iterator[tuple[str, subprocess.Popen]]:
    """A server's address and process, which has no key of pseudonyms."""
    home = {"HOME": str(table.parent), "XDG_CONFIG_HOME": str(table.parent)}
    known = {name: value for name, value in os.environ.items() if name != "BADPO_PSEUDONYM_KEY"}
    command = [sys.executable, "-m", "badpo", "open", table.name, *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = subprocess.Popen(command, cwd=table.parent, env=known | home | further, **pipes)
    running.stdout.readline()
    address = re.search(r"http://127\.0\.0\.1:\d+/[\w-]{43}/", running.stdout.readline())
    assert address, running.stderr.read()
    try:
        yield address[0], running
    finally:
        running.kill()
        running.communicate()


@pytest.fixture
def server(table) -> Iterator[tuple[str, subprocess.Popen]]:
    with started(table, "--no-browser") as found:
        yield found


def answered(address: str, form: dict | None = None, **headers: str) -> tuple[int, str]:
    """Status and text of an answer."""
    data = urllib.parse.urlencode(form, doseq=True).encode() if form else None
    try:
        with urllib.request.urlopen(urllib.request.Request(address, data, headers)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def test_only_who_has_the_token_and_names_this_host_is_answered(server, table):
    address, running = server
    root, token = address[:-45], address[-44:-1]
    other = token[:-1] + ("A" if token[-1] != "A" else "B")
    for wrong in ("", "/", f"/{other}/", f"/{token}x/", "/é/", f"/{token}/audit", "/found"):
        assert answered(root + urllib.parse.quote(wrong))[0] == 403, wrong
    for host in ("example.org", f"example.org:{root.rpartition(':')[2]}", "localhost", "127.0.0.1"):
        assert answered(address, Host=host)[0] == 403, host
    assert answered(address)[0] == 200
    reading = json.dumps({"winners": {"1": "a", "2": "b"}})
    read = {"reading": reading, "ratio": "1.5", "attribute": "length"}
    assert "annotators" in answered(f"{address}report", read)[1]
    wrong = ['"no', "[]", "[[" * 9999, '{"source": "x"}']
    for reading in wrong:
        assert answered(f"{address}found", {"reading": reading})[0] == 400, reading
        assert answered(f"{address}found", read | {"fix": reading})[0] == 400, reading
    for ratio in ("nan", "inf", "-1", "1e999", ""):
        status, text = answered(f"{address}found", read | {"ratio": ratio})
        assert status in (200, 400) and "Traceback" not in text, ratio
    # what the form does not offer is not taken
    assert "Tick" in answered(f"{address}found", read | {"attribute": "regex:name=x,pattern=x"})[1]
    running.send_signal(signal.SIGINT)
    # a server that waits for open connections would never end
    assert running.communicate(timeout=60)[1] == "ended; nothing was written\n"
    assert running.returncode == 0
    assert [path.name for path in table.parent.rglob("*")] == [table.name]


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        (["127.0.0.1:80", "example.org"], 403),
        (["127.0.0.1:80"] * 2, 403),
        ([], 403),
        (["127.0.0.1:80"], 400),  # it ends before the body that it announced
    ],
)
def test_a_request_names_one_host_and_is_whole_whatever_the_server_lets_through(hosts, status):
    scope = {"type": "http", "method": "POST", "path": "/token/", "server": ("127.0.0.1", 80)}
    scope |= {"headers": [(b"host", host.encode()) for host in hosts], "query_string": b""}
    sent = []

    async def send(message: dict) -> None:
        sent.append(message)

    async def receive() -> dict:
        return {"type": "http.disconnect"}

    asyncio.run(local_page.local_app(None, "token")(scope, receive, send))
    assert sent[0]["status"] == status


def test_a_long_audit_does_not_keep_the_next_answer(table):
    votes(2000, 30)[0].to_csv(table, index=False)
    form = {"reading": "{}", "ratio": "1.5", "attribute": "length"}
    with started(table, "--no-browser") as (address, _), ThreadPoolExecutor() as others:
        assert answered(f"{address}found", form)[0] == 200
        report = others.submit(answered, f"{address}report", form)
        time.sleep(0.2)
        found = answered(f"{address}found", form | {"ratio": "2"})
        assert found[0] == 200 and not report.done()
        assert "annotators" in report.result()[1]


def test_the_page_has_the_figures_of_the_audit_if_votes_are_repeated_and_some_are_ties(table):
    once = votes(150, 6)[0]
    ties = once[::10].assign(winner="tie")
    pd.concat([once, once[once["annotator"] == "w1"], ties]).to_csv(table, index=False)
    found = OpenedTable(table, {"bad_rows": "error"}).findings(Choices({}, ("length",)))
    audited = audit(table, ["length"]).summary
    assert [one.finding for one in found["verdicts"]] == [
        row["verdict"] for row in audited["attributes"]
    ]
    shown, whole = (dict(one[0].sentences) for one in (found["verdicts"], attribute_findings(audited)))
    assert shown["How sure"] == whole["How sure"]
    assert len(found["left_out"]) == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="browsers start otherwise there")
def test_no_word_of_a_command_opens_the_page_and_the_browser_finds_it_in_a_file_of_this_user(
    table, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("bin")
    program = f'#!/bin/sh\nprintf %s "$1" > {folder}/new && mv {folder}/new {folder}/asked\n'
    (folder / "xdg-open").write_text(program)
    (folder / "xdg-open").chmod(0o755)
    with started(table, PATH=f"{folder}:{os.environ['PATH']}") as (address, running):
        ends = time.monotonic() + 60
        while not (folder / "asked").exists():
            assert time.monotonic() < ends
        page = Path((folder / "asked").read_text())
        assert address[-44:-1] not in str(page) and f'url={address}"' in page.read_text()
        modes = [stat.S_IMODE(one.stat().st_mode) for one in (page, page.parent)]
        assert modes == [0o600, 0o700]
        running.send_signal(signal.SIGTERM)
        assert running.communicate(timeout=60)[1] == "ended; nothing was written\n"
        assert running.returncode == 0 and not page.parent.exists()


def test_without_the_extra_the_message_names_it(monkeypatch, table):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    found = invoke("open", str(table))
    assert found.exit_code == 2 and found.stderr.endswith('constraints.txt ".[app]"\n')


def waited(browser: Browser, expression: str) -> None:
    """Wait until an expression holds on the page."""
    ends = time.monotonic() + 60
    while not browser.value(expression):
        assert time.monotonic() < ends, browser.value("document.body.innerText")


def test_rows_are_confirmed_and_the_ratio_moved_by_keyboard(server, table):
    address, _ = server
    with Browser(browser_program()) as browser:
        browser.open(address, 1280)
        rows = browser.value("document.getElementById('rows').parentNode.innerText")
        assert "preferred \u201cso so" in rows
        assert browser.value("document.getElementById('found')") is None, "nobody confirmed the rows"
        focus_on(browser, "[name=fix]")
        browser.shows_another_page(lambda: browser.press("Enter"))
        shown = "document.getElementById('found').innerText"
        command = "document.querySelector('pre').innerText"
        assert "won 75" in browser.value(shown) and "Asked \u201c<b>Why" in browser.value(shown)
        pair = browser.value("document.querySelector('.pair').innerText")
        focus_on(browser, "[type=range]")
        browser.press(*["ArrowRight"] * 11)
        waited(browser, f"{command}.includes('ratio=2.05') && !document.querySelector('[aria-busy]')")
        assert "of 12 judgments" in browser.value(shown)
        assert browser.value("document.querySelector('.pair').innerText") != pair
        focus_on(browser, "[value=lists]")
        browser.press(" ")
        waited(browser, f"{command}.includes('--attribute lists')")
        assert "never differ in lists" in browser.value("document.getElementById('told').innerText")
        focus_on(browser, "[value^=column]")
        browser.press(" ")
        waited(browser, f"{command}.includes('column:name=kind,a=kind_a,b=kind_b')")
        browser.value("document.querySelector('details').open = true")
        assert unnamed(browser) == []
        for event in ("Log.entryAdded", "Runtime.exceptionThrown"):
            assert not browser.reported(event)
        assert all(one["canceled"] for one in browser.reported("Network.loadingFailed"))
        asked = {one["request"]["url"] for one in browser.reported("Network.requestWillBeSent")}
        assert asked <= {address, f"{address}found", "data:,"}
        pasted = shlex.split(browser.value(command))
    found = invoke(*pasted[1:2], str(table), *pasted[3:], "--out", str(table.parent / "audit"), "--json")
    (length, *_) = json.loads(found.stdout)["attributes"]
    assert length["n_cross"] == 12


def focus_on(browser: Browser, selector: str) -> None:
    """Press Tab until what is selected has the focus."""
    for _ in range(60):
        if browser.value(f"document.activeElement.matches({selector!r})"):
            return
        browser.press("Tab")
    raise AssertionError(f"Tab does not reach {selector}")


def unnamed(browser: Browser) -> list[str]:
    """The roles of what takes the focus and has no name; everything is there to be named."""
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    kinds = ("checkbox", "combobox", "slider", "button")
    found = [node for node in nodes if not node["ignored"] and node["role"]["value"] in kinds]
    assert {node["role"]["value"] for node in found} == {*kinds}
    return [node["role"]["value"] for node in found if not node["name"]["value"]]
