"""What the command line shows while something waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, TextIO

from hostrouting.model.text import clean

if TYPE_CHECKING:
    from phases import Status

__all__ = ["ProgressLine"]

_BAR_CELLS = 20


class ProgressLine:
    """An observer that draws progress: one line redrawn on a terminal, a line a message elsewhere.

    Args:
        stream: standard error, as a rule: standard output is for results.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._last = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def started(self, path: str) -> None:
        """Nothing is drawn for a task that doesn't wait."""

    def progress(self, path: str, message: str, fraction: float | None) -> None:
        """Draw a message, and how far it is."""
        del path
        text = clean(message)
        if self._is_terminal:
            bar = ""
            if fraction is not None:
                cells = min(_BAR_CELLS, max(0, round(fraction * _BAR_CELLS)))
                bar = f"[{'#' * cells}{'.' * (_BAR_CELLS - cells)}] "
            self._write(f"\r\x1b[K{bar}{text}")
        elif text != self._last:
            self._write(f"{text}\n")
        self._last = text

    def finished(self, path: str, status: Status, error: BaseException | None, seconds: float) -> None:
        """Clear the line."""
        del path, status, error, seconds
        self._clear()

    def _clear(self) -> None:
        if self._is_terminal and self._last:
            self._write("\r\x1b[K")
        self._last = ""

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
