"""Tests that every test named in docs/promises.md exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/promises.md").read_text()
HELD = re.findall(r"^(\S.*)\n: `(tests/[\w/]+\.py)::(test_\w+)`$", PAGE, re.MULTILINE)


@cache
def names_in(path: str) -> set[str]:
    return {node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("promise", "path", "test"), HELD)
def test_each_promise_is_a_sentence_with_an_existing_test(promise: str, path: str, test: str) -> None:
    assert promise.endswith(".")
    assert test in names_in(path)


def test_every_line_with_a_test_is_a_promise() -> None:
    assert len(HELD) == PAGE.count("\n: ") > 30


@pytest.mark.parametrize("word", ["mark", "type of service", "bound interface", "ports", "IPsec"])
def test_the_page_names_what_is_not_judged(word: str) -> None:
    assert word in " ".join(PAGE.partition("## Not promised")[2].split())
