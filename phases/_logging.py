"""The observer that logs: one record as a task starts, one as it ends."""

from __future__ import annotations

import logging

from attrs import frozen

from phases._errors import is_raised_at, text_of
from phases._observe import Status

LOGGER = logging.getLogger("phases")
# Without a handler of its own a library's warnings would reach stderr through logging.lastResort.
LOGGER.addHandler(logging.NullHandler())

_LEVELS = {
    Status.OK: logging.INFO,
    Status.CANCELLED: logging.WARNING,
    Status.TIMED_OUT: logging.ERROR,
    Status.FAILED: logging.ERROR,
}


@frozen
class LogObserver:
    """Writes wide records: constant messages, the data as attributes named `phases.…`."""

    logger: logging.Logger

    def started(self, path: str) -> None:
        """Log `phases.task` and `phases.path`."""
        self.logger.info("task started", extra=_identity(path))

    def progress(self, path: str, message: str, fraction: float | None) -> None:
        """Log nothing: progress is for whoever looks on."""

    def finished(self, path: str, status: Status, error: BaseException | None, seconds: float) -> None:
        """Log `phases.status`, `phases.duration_seconds` and `phases.error` (None if ok) besides."""
        outcome = {
            "phases.status": str(status),
            "phases.duration_seconds": seconds,
            "phases.error": None if error is None else text_of(error),
        }
        # The tasks above the one that failed would only repeat its traceback.
        has_traceback = error is not None and status is Status.FAILED and is_raised_at(error, path)
        self.logger.log(
            _LEVELS[status],
            "task ended",
            extra=_identity(path) | outcome,
            exc_info=error if has_traceback else None,
        )


def _identity(path: str) -> dict[str, object]:
    return {"phases.task": path.rpartition("/")[2], "phases.path": path}
