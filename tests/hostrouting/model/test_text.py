"""Untrusted text is made safe for a terminal."""

from __future__ import annotations

import pytest

from hostrouting.model.text import clean, shortened


@pytest.mark.parametrize("letter", ["\x1b", "\x9b", "\r", "\x7f", "\u202e", "\u2028", "\u2029", "\udcff"])
def test_control_characters_and_line_breaks_are_removed(letter: str) -> None:
    assert clean(f"a{letter}é") == "a?é"


def test_omitted_items_are_counted_with_thousands_separators() -> None:
    assert shortened(["a"] * 1128, ", ", 2) == "a, a and 1,126 more"
