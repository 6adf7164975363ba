"""Tests that a function's decisions are counted as ``./run lint`` limits them."""

from __future__ import annotations

import pytest
from density import Function, complaints, measure, script_lines


def counted(source: str) -> dict[str, int]:
    """Return the decisions of each function in a module named ``m``."""
    return dict(measure(source, "m").functions)


@pytest.mark.parametrize(
    ("body", "decisions"),
    [
        ("return 1", 1),
        ("if a: return 1", 2),
        ("if a: return 1\n    elif b: return 2\n    else: return 3", 3),
        ("return 1 if a else 2", 2),
        ("return a and b", 2),
        ("return a or b or c", 3),
        ("return (a and b) or (c and not d)", 4),
        ("for x in y: pass\n    else: pass", 2),
        ("while a: pass", 2),
        ("return [x for x in y]", 2),
        ("return {x for y in z if y if x for x in y}", 5),
        ("return {x: 1 for x in y if x and a}", 4),
        ("return all(x for x in y)", 2),
        ("return sorted(y, key=lambda x: x.a if x else 0)", 2),
        ("try: pass\n    except OSError: pass\n    except (KeyError, ValueError): pass", 3),
        ("try: pass\n    finally: pass", 1),
        ("with a, b: pass", 1),
        ("match a:\n        case 1: pass\n        case _: pass", 3),
        ("assert a", 1),
    ],
)
def test_each_kind_of_decision_counts(body: str, decisions: int) -> None:
    assert counted(f"def f():\n    {body}") == {"m.f": decisions}


def test_a_coroutine_counts_its_loops() -> None:
    source = "async def f():\n    async for x in y: pass\n    return [x async for x in y]"
    assert counted(source) == {"m.f": 3}


def test_a_nested_function_counts_for_itself() -> None:
    source = """
class C:
    def method(self):
        if a:
            def inner():
                return b or c
        class D:
            if a:
                def deepest(self): return [x for x in y]
"""
    found = counted(source)
    assert found == {"m.C.method": 2, "m.C.method.inner": 2, "m.C.method.D.deepest": 2}


def test_only_code_counts_as_lines_and_tokens() -> None:
    source = '''"""A docstring."""

from a import (
    b,
)

# A comment.
x = """not a
docstring"""  # one of two lines


def f():
    """A docstring.

    Its second paragraph.
    """
    return x
'''
    found = measure(source, "m")
    # x = "", def f():, return x
    assert (found.lines, found.tokens) == (4, 3 + 5 + 2)
    assert (found + found).lines == 8


def test_a_function_above_the_limit_is_reported() -> None:
    functions = [Function("m.f", 15), Function("m.g", 16)]
    assert complaints(functions, set()) == [
        "m.g has 16 decisions, and may have 15: flatten it, or split it",
    ]
    assert complaints(functions, {"m.g"}) == []


def test_an_exception_that_is_no_longer_one_is_reported() -> None:
    assert complaints([Function("m.f", 15)], {"m.f", "m.removed"}) == [
        "m.f has at most 15 decisions: remove it from the exceptions",
        "m.removed has at most 15 decisions: remove it from the exceptions",
    ]


def test_blank_lines_and_comments_of_a_script_do_not_count() -> None:
    assert script_lines("#!/bin/sh\n\n  # why\nset -e  # how\nexit\n") == 2
