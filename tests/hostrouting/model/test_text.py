"""Text from outside, as a person's terminal gets it."""

from __future__ import annotations

import pytest

from hostrouting.model.text import clean, shortened


@pytest.mark.parametrize("letter", ["\x1b", "\x9b", "\r", "\x7f", "\u202e", "\u2028", "\u2029", "\udcff"])
def test_what_steers_a_terminal_or_breaks_a_line_is_gone(letter: str) -> None:
    assert clean(f"a{letter}é") == "a?é"


def test_what_is_left_out_is_counted_in_thousands() -> None:
    assert shortened(["a"] * 1128, ", ", 2) == "a, a and 1,126 more"
