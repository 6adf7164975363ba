"""``--verbose``: the log on standard error."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def logged_to_stderr() -> Iterator[None]:
    """Show each record of a task, with its data, until the end of the block."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_ExtraFormatter("%(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("phases")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


# What `phases` tells of a task.
_DATA = ("task", "path", "status", "duration", "error")


class _ExtraFormatter(logging.Formatter):
    """Appends the data of a wide record, ``path=…``."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        data = {key: value for key in _DATA if (value := getattr(record, key, None)) is not None}
        return " ".join([line, *(f"{key}={value}" for key, value in data.items())])
