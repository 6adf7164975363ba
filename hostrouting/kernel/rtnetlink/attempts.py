"""What every attempt of the backend goes through: where it may run, and how its failure is told."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from hostrouting.kernel.rtnetlink.constants import AgainError, RefusedError
from hostrouting.model.errors import RouteError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["refuse_running_loop", "told", "until_sure"]

T = TypeVar("T")

# Under constant churn two dumps of three are interrupted; this many in a row happen once in a million.
_ATTEMPTS = 32


def refuse_running_loop(attempt: str) -> None:
    """Refuse to block a thread that runs an asyncio event loop.

    Raises:
        RouteError: it does.
    """
    # A loop can only be running if somebody has imported asyncio.
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RouteError(
        f"can't {attempt} in a thread that runs an asyncio event loop: the call would block it; "
        "use `await asyncio.to_thread(...)`"
    )


@contextmanager
def told(attempt: str) -> Iterator[None]:
    """Tell why the kernel refuses, or no socket can be opened, as of the attempt ("list the routes")."""
    try:
        yield
    except RefusedError as refusal:
        raise RouteError(f"can't {attempt}: {refusal.message}", errno=refusal.errno) from refusal
    except OSError as error:
        raise RouteError(f"can't {attempt}: no netlink socket: {error.strerror or error}", errno=error.errno) from error


def until_sure(attempt: str, ask: Callable[[], T]) -> T:
    """Ask until the answer can be relied upon.

    Args:
        attempt: in words, "list the neighbours".
        ask: called anew if what it read changed meanwhile.

    Raises:
        RouteError: it changes whenever it is read.
    """
    reason = ""
    for _ in range(_ATTEMPTS):
        try:
            return ask()
        except AgainError as again:
            reason = again.reason
    raise RouteError(f"can't {attempt}: {reason}, {_ATTEMPTS} times over; try again later")
