"""Tests that every test named in docs/promises.md exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/promises.md").read_text()
HELD = re.findall(r"^(\S.*)\n: `(tests/[\w/]+\.py)::(test_\w+)`$", PAGE, re.MULTILINE)


@cache
def names_in(path: str) -> set[str]:
    return {node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, ast.FunctionDef)}


def test_each_promise_is_a_sentence_with_an_existing_test() -> None:
    assert [promise for promise, *_ in HELD if not promise.endswith(".")] == []
    assert [test for _, path, test in HELD if test not in names_in(path)] == []


def test_every_line_with_a_test_is_a_promise() -> None:
    assert len(HELD) == PAGE.count("\n: ") > 30


def test_the_page_names_what_is_not_judged() -> None:
    text = " ".join(PAGE.partition("## Not promised")[2].split())
    assert [word for word in ("mark", "type of service", "bound interface", "ports", "IPsec") if word not in text] == []
