"""Set the amount of work, which is small by day and large by night (``HYPOTHESIS_PROFILE=nightly``)."""

from __future__ import annotations

import os

IS_NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"


def by_day(few: int, *, by_night: int) -> int:
    """Return the number of examples, steps or places to try."""
    return by_night if IS_NIGHTLY else few
