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
    """Show each record of ours, with its data, until the end of the block."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_ExtraFormatter("%(levelname)s %(name)s: %(message)s"))
    loggers = [logging.getLogger(name) for name in ("phases", "hostrouting")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
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
