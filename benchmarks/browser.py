"""A headless Chromium, driven as https://www.w3.org/TR/webdriver2/ says."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
__all__ = ["CONTROL", "Browser", "chromium"]

CONTROL = "\ue009"


class Browser:
    """A session.

    Args:
        url: of the session.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def open(self, path: Path) -> None:
        """Load a file, wholly."""
        _ask("POST", f"{self._url}/url", {"url": path.as_uri()})

    def run(self, script: str) -> Any:
        """Have the page evaluate an expression."""
        return _ask("POST", f"{self._url}/execute/sync", {"script": f"return {script}", "args": []})

    def shown(self, selector: str) -> list[str]:
        """The texts of the elements that are to be seen, be it by scrolling there."""
        visible = "each => each.checkVisibility()"
        every = f"[...document.querySelectorAll({json.dumps(selector)})]"
        found: list[str] = self.run(f"{every}.filter({visible}).map(each => each.textContent.trim())")
        return found

    def type(self, selector: str, keys: str) -> None:
        """Press keys in an element."""
        _ask("POST", f"{self._element(selector)}/value", {"text": keys})

    def click(self, selector: str) -> None:
        """Click on an element."""
        _ask("POST", f"{self._element(selector)}/click", {})

    def pasted(self, selector: str) -> str:
        """What is on the clipboard, by pasting it into a field."""
        self.type(selector, f"{CONTROL}v")
        text: str = self.run(f"document.querySelector({json.dumps(selector)}).value")
        return text

    def _element(self, selector: str) -> str:
        found = _ask("POST", f"{self._url}/element", {"using": "css selector", "value": selector})
        return f"{self._url}/element/{found[_ELEMENT]}"


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """Start one that knows nobody and reaches nothing, and end it.

    Args:
        folder: for what it remembers.
    """
    words = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", f"--user-data-dir={folder}"]
    wanted = {"alwaysMatch": {"goog:chromeOptions": {"args": words}}}
    with subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        try:
            port = next(match[1] for line in driver.stdout if (match := re.search(r"on port (\d+)\.", line)))
            base = f"http://127.0.0.1:{port}/session"
            session = f"{base}/{_ask('POST', base, {'capabilities': wanted})['sessionId']}"
            try:
                yield Browser(session)
            finally:
                _ask("DELETE", session)
        finally:
            driver.terminate()


def _ask(method: str, url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["value"]
