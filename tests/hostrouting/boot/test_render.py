"""Texts are made of files that the package holds; what they say is tested on the kernel."""

from __future__ import annotations

import errno

import pytest

from hostrouting import FileError
from hostrouting.boot.render import fill


def test_a_file_that_cannot_be_read_is_named() -> None:
    with pytest.raises(FileError, match=r"scripts/absent\.sh") as caught:
        fill("absent.sh")
    assert caught.value.errno == errno.ENOENT
