"""Scale the amount of work, which is larger in nightly runs, and fail tests that may not be
skipped.

``HYPOTHESIS_PROFILE=nightly`` sets the scale, and ``HOSTROUTING_REQUIRE`` names the marks of these
tests.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import NoReturn, TypeVar
from zlib import crc32

import pytest

T = TypeVar("T")

IS_NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
REQUIRED = {
    word.strip() for word in os.environ.get("HOSTROUTING_REQUIRE", "").split(",") if word.strip()
}


def refuse(mark: str, reason: str) -> NoReturn:
    """Skip a test, or fail it if tests with this mark are required."""
    if mark in REQUIRED:
        pytest.fail(f"HOSTROUTING_REQUIRE names {mark}, but {reason}", pytrace=False)
    pytest.skip(reason)


def by_day(few: int, *, by_night: int) -> int:
    """Return the number of examples, steps or positions to try."""
    return by_night if IS_NIGHTLY else few


def printed(seeds: Iterable[int]) -> Iterator[int]:
    """Yield seeds and print each, so that pytest shows with which one a test failed."""
    for seed in seeds:
        sys.stdout.write(f"seed {seed}\n")
        yield seed


def some(cases: Iterable[T], *, one_of: int, first: int = 0) -> list[T]:
    """Return all cases in nightly runs, otherwise every nth one."""
    return [*cases] if IS_NIGHTLY else [*cases][first % one_of :: one_of]


def is_chosen(name: str, *, one_of: int) -> bool:
    """Return whether a test runs an expensive part: always in nightly runs, otherwise in one of
    ``one_of`` cases.
    """
    return IS_NIGHTLY or crc32(name.encode()) % one_of == 0
