"""Texts are rendered from files in the package. The tests in tests/kernel cover their contents."""

from __future__ import annotations

import errno

import pytest

from hostrouting import FileError
from hostrouting.boot.render import fill


def test_an_unreadable_file_is_named() -> None:
    with pytest.raises(FileError, match=r"scripts/absent\.sh") as caught:
        fill("absent.sh")
    assert caught.value.errno == errno.ENOENT
