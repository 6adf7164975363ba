"""Defer KeyboardInterrupt during operations that must not be interrupted half-way.

The signal handler inspects the stack for guarded functions. A flag wouldn't be safe, because a
signal may arrive just before the flag is set.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])

_guarded = set[CodeType]()
_has_waited = False


def guarded(function: F) -> F:
    """Mark a function as guarded: between `begin` and `end`, a Ctrl-C can't interrupt it."""
    _guarded.add(function.__code__)
    return function


def begin() -> bool:
    """Replace Python's default SIGINT handler, and return whether it was replaced.

    Custom handlers are left in place. Outside the main thread, this is a no-op.
    """
    if not _is_main() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    signal.signal(signal.SIGINT, _handle)
    return True


def end(has_begun: bool) -> None:
    """Restore Python's default SIGINT handler, and raise a deferred KeyboardInterrupt.

    Args:
        has_begun: the result of `begin`, or False to keep the handler.

    Raises:
        KeyboardInterrupt: a Ctrl-C was deferred, and the caller isn't called from a guarded
            function.
    """
    global _has_waited
    if has_begun and signal.getsignal(signal.SIGINT) is _handle:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Don't use the inspect module, because it takes longer to load than this whole package.
    if _has_waited and _is_main() and not _is_guarded(sys._getframe(2)):  # noqa: SLF001
        _has_waited = False
        raise KeyboardInterrupt


def _handle(number: int, frame: FrameType | None) -> None:
    global _has_waited
    if not _is_guarded(frame):
        signal.default_int_handler(number, frame)
    _has_waited = True


def _is_guarded(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code in _guarded:
            return True
        frame = frame.f_back
    return False


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
