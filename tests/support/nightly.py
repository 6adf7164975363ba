"""Scale the amount of work, which is small by day and large by night (``HYPOTHESIS_PROFILE=nightly``)."""

from __future__ import annotations

import os
from zlib import crc32

IS_NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"


def by_day(few: int, *, by_night: int) -> int:
    """Return the number of examples, steps or positions to try."""
    return by_night if IS_NIGHTLY else few


def is_chosen(name: str, *, one_of: int) -> bool:
    """Return whether a test runs an expensive part: always by night, and in one of ``one_of`` cases by day."""
    return IS_NIGHTLY or crc32(name.encode()) % one_of == 0
