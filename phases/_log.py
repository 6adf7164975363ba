"""Logging for task runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from phases._errors import PathNote, Status, paths_of, text_of

LOGGER = logging.getLogger("phases")
# Without a handler, warnings would go to stderr through logging.lastResort.
LOGGER.addHandler(logging.NullHandler())

_LEVELS = {Status.OK: logging.INFO, Status.CANCELLED: logging.WARNING}


class Log:
    """An observer that logs each event with the task's path, also in the record's attributes."""

    def __init__(self, logger: logging.Logger) -> None:
        if not isinstance(logger, logging.Logger):
            raise TypeError(
                f"expected a logger of logging, as getLogger makes, not {logger!r:.200}"
            )
        self._logger = logger

    def started(self, path: str) -> None:
        self._logger.info("started %s", path, extra=_identity(path))

    def progress(self, path: str, message: str, fraction: float | None) -> None:
        """Do nothing, because progress is only meant for interactive use."""

    def finished(
        self,
        path: str,
        status: Status,
        result: object,
        error: BaseException | None,
        seconds: float,
    ) -> None:
        del result
        data = {
            "status": str(status),
            "duration": seconds,
            **_details(error, path),
        }
        has_traceback = error is not None and status is Status.FAILED and _is_of(error, path)
        self._logger.log(
            _LEVELS.get(status, logging.ERROR),
            "completed %s" if status is Status.OK else "failed %s",
            path,
            extra=_identity(path) | data,
            exc_info=error if has_traceback else None,
        )


def _details(error: BaseException | None, path: str) -> dict[str, object]:
    """Return the log fields of an error: its text with notes, and its hint.

    A task around the failed one logs only the first line of the text, but the whole hint, because
    the outer task may have added a line to the hint.
    """
    if error is None:
        return {"error": None}
    hint = getattr(error, "hint", None)
    hints = {"hint": hint} if isinstance(hint, str) and hint else {}
    return {"error": _text(error, path), **hints}


def _text(error: BaseException, path: str) -> str:
    text = text_of(error)
    paths = paths_of(error)
    if paths and path not in paths:
        return text.partition("\n")[0]
    notes = [note for note in getattr(error, "__notes__", ()) if not isinstance(note, PathNote)]
    return "\n".join([text, *map(str, notes)])


def _is_of(error: BaseException, path: str) -> bool:
    """Return whether the task itself raised an error, so that no subtask has logged the traceback.

    The errors in a group that `Parallel` raises have their own records.
    """
    inside: Sequence[BaseException] = getattr(error, "exceptions", ())
    is_only_group = bool(inside) and all(map(paths_of, inside))
    return path in paths_of(error) and not is_only_group


def _identity(path: str) -> dict[str, object]:
    return {"task": path.rpartition("/")[2], "path": path}
