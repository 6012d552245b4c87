"""A headless Chromium driven over a pipe, for tests of pages: what it loads, complains of and lays out."""

import json
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_SECONDS = 60
# of the keys that tests press: number, and the text that they write
KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), " ": (32, " "), "ArrowRight": (39, "")}
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--disable-background-networking", "--remote-debugging-pipe"),
)


def browser_program() -> str:
    """The browser of this machine; skips the test where there is none."""
    found = [path for name in NAMES if (path := shutil.which(name))]
    if not found:
        pytest.skip("needs a Chromium browser")
    return found[0]


class Browser:
    """One window of a headless browser. Everything it reports is kept in ``events``.

    Commands are those of the DevTools protocol; they travel as JSON with a NUL behind each, over two pipes that the
    browser has as its descriptors 3 and 4.
    """

    def __init__(self, program: str):
        self._profile = tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
        browser_in, self._write = os.pipe()
        self._read, browser_out = os.pipe()
        # the last of four that were opened is not 3, where the first goes
        moved = f'exec "$0" "$@" 3<&{browser_in} 4>&{browser_out}'
        command = ["bash", "-c", moved, program, *_FLAGS, f"--user-data-dir={self._profile.name}"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        pipes = (browser_in, browser_out)
        self._running = subprocess.Popen([*command, "about:blank"], pass_fds=pipes, **quiet)
        os.close(browser_in)
        os.close(browser_out)
        self._unread, self._sent, self._session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self._running.terminate()
        self._running.wait(timeout=_SECONDS)
        os.close(self._write)
        os.close(self._read)
        self._profile.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; what the browser reports meanwhile is kept."""
        self._sent += 1
        message: dict[str, Any] = {"id": self._sent, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._sent:
            pass
        assert "error" not in answer, f"{method}: {answer['error']['message']}"
        return answer["result"]

    def open(self, page: Path | str, width: int) -> None:
        """Show a file or an address in a window of this width, and wait until it is loaded."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        url = page if isinstance(page, str) else page.resolve().as_uri()
        self.shows_another_page(lambda: self.call("Page.navigate", url=url))

    def shows_another_page(self, ask: Callable[[], object]) -> None:
        """Do what brings another page, and wait until it is loaded."""
        self.events.clear()
        ask()
        while not self.reported("Page.loadEventFired"):
            self._next()

    def press(self, *keys: str) -> None:
        """Press keys one after the other, as they are called in JavaScript."""
        for key in keys:
            told = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key][0]}
            text = {"text": KEYS[key][1]} if KEYS[key][1] else {}
            self.call("Input.dispatchKeyEvent", type="keyDown", **told, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", **told)

    def value(self, expression: str) -> Any:
        """What a JavaScript expression is on the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return found["result"].get("value")

    def reported(self, method: str) -> list[dict[str, Any]]:
        """What the browser reported under this name since the page was opened."""
        return [event["params"] for event in self.events if event["method"] == method]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            assert select.select([self._read], [], [], _SECONDS)[0], "the browser hangs"
            read = os.read(self._read, 1 << 16)
            assert read, "the browser ended"
            self._unread += read
        line, self._unread = self._unread.split(b"\0", 1)
        message = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message
