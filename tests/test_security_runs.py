"""Hostile models, checkpoints and texts against real runs and a real browser: nothing of theirs is carried out."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from badpo.attributes import Length
from badpo.auditing.audit import audit
from badpo.data.files import read_seal
from badpo.results.run_files import read_suite
from badpo.results.run_page import write_report
from badpo.runs.run import train_run
from badpo.training.checkpoints import MARKER, mark_complete
from tests.auditing.planted import votes
from tests.browser import Browser, browser_program
from tests.public_face import invoke
from tests.results.suites import write_suite
from tests.runs.recipes import Owned, recipe, save_model, write_recipe
from tests.runs.test_run import stop_at_step
from tests.test_privacy import files

pytestmark = pytest.mark.slow
RUN = "shared_mean-s42"
PAYLOADS = (
    "<script>owned = 1</script>",
    "\"'><img src=x onerror='owned = 1'>",
    "</style></title></svg><script>owned = 1</script>",
    "<svg onload='owned = 1'>",
    "<a href='javascript:owned = 1'>so</a>",
    "<iframe srcdoc='<script>parent.owned = 1</script>'></iframe>",
    "<meta http-equiv=refresh content='0;url=http://127.0.0.1:9/'>",
    "url(http://127.0.0.1:9/x.png)",
)


def test_a_run_holds_no_pickle_but_the_trainers_own(tmp_path):
    run = train_run(recipe(tmp_path))
    written = [path for folder in (run, tmp_path / "cache") for path in files(folder)]
    assert len(written) > 10
    pickles = [path for path in written if path.read_bytes().startswith((b"PK", b"\x80"))]
    assert {path.name for path in pickles} <= {"optimizer.pt", "scheduler.pt", "rng_state.pth"}
    assert all("checkpoints" in path.parts for path in pickles)


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_hostile_pickle_in_a_checkpoint_is_not_carried_out(tmp_path, monkeypatch, name):
    asked = recipe(tmp_path)
    stop_at_step(monkeypatch, 4)
    with pytest.raises(KeyboardInterrupt):
        train_run(asked)
    (checkpoint,) = (tmp_path / "runs" / RUN / "checkpoints").glob("checkpoint-*")
    assert (checkpoint / name).exists()
    torch.save(Owned(tmp_path / "owned"), checkpoint / name)
    # whoever can write here can seal it again
    facts = read_seal(checkpoint / MARKER)["facts"]
    (checkpoint / MARKER).unlink()
    mark_complete(checkpoint, facts)
    with pytest.raises(Exception, match=r"(?i)weights_only|weights only"):
        train_run(asked, resume=True)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("where", ["config.json", "tokenizer_config.json"])
def test_code_beside_a_model_is_not_run(tmp_path, monkeypatch, where):
    folder = save_model(tmp_path / "model")
    (folder / "hostile.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'owned')!r})\n")
    config = json.loads((folder / where).read_text())
    classes = {"AutoConfig": "hostile.Config", "AutoModelForCausalLM": "hostile.Model"}
    classes["AutoTokenizer"] = ["hostile.Tokenizer", None]
    (folder / where).write_text(json.dumps(config | {"auto_map": classes, "model_type": "hostile"}))
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda prompt="": asked.append(prompt) or "y")
    result = invoke("train", "--config", write_recipe(tmp_path))
    assert not (tmp_path / "owned").exists()
    assert not asked, "a run asked whether it may carry out code"
    assert result.exit_code != 0 or where == "tokenizer_config.json", result.output


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser(browser_program()) as opened:
        yield opened


def hostile_audit(folder: Path, payload: str) -> Path:
    table = votes(60, 6)[0]
    for name in ("prompt", "response_a", "response_b"):
        table[name] = payload + table[name]
    classes = table["annotator_class"]
    table["annotator_class"] = classes.where(classes == "crowd", payload)
    return audit(table, [Length(name=payload)], source=payload).write(folder)


def hostile_report(folder: Path, payload: str) -> Path:
    suite = write_suite(folder / "suite")
    written = json.dumps(payload)[1:-1]
    for path in (path for path in suite.rglob("*.json*")):
        text = path.read_text()
        for word in ("woman", "black", '"A"', "shared_mean", "torch", "badpo"):
            text = text.replace(word, f'"{written}"' if word == '"A"' else written + word)
        path.write_text(text)
    for path in suite.rglob("environment.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"command": payload}))
    assert any(payload in name for name in read_suite(suite).configs)
    return write_report(suite, folder / "report.html")


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("make", [hostile_audit, hostile_report])
def test_a_hostile_text_does_nothing_on_a_page(browser, tmp_path, make, payload):
    page = make(tmp_path, payload)
    text = page.read_text()
    assert "owned" in text or "127.0.0.1" in text, "the text is not on the page"
    browser.open(page, 375)
    assert browser.value("document.documentElement.scrollWidth") == 375
    assert browser.value("typeof owned") == "undefined"
    asked = browser.reported("Network.requestWillBeSent")
    assert [sent["request"]["url"] for sent in asked] == [page.as_uri()]
    active = "script,img,iframe,object,embed,form,base,a[href^=java]"
    assert browser.value(f"document.querySelectorAll('{active}').length") == 0
    assert not browser.reported("Page.javascriptDialogOpening")
    for complaint in ("Log.entryAdded", "Runtime.exceptionThrown"):
        assert not browser.reported(complaint), "the content policy had to stop something"


def test_the_content_policy_stops_what_would_not_have_been_escaped(browser, tmp_path):
    page = hostile_audit(tmp_path, "so")
    put_in = "<body><script>owned = 1</script><img src='http://127.0.0.1:9/x.png'>"
    page.write_text(page.read_text().replace("<body>", put_in))
    browser.open(page, 1280)
    assert browser.value("typeof owned") == "undefined"
    (failed,) = browser.reported("Network.loadingFailed")
    assert failed.get("blockedReason") == "csp"
    page.write_text(page.read_text().replace("Content-Security-Policy", "no-policy"))
    browser.open(page, 1280)
    assert browser.value("owned") == 1, "the browser would have carried it out"
