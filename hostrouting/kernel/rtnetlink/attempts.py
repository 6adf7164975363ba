"""What every attempt of the backend goes through: where it may run, and how its failure is told."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hostrouting.model.errors import RouteError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["refuse_running_loop", "told"]


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
    """Tell why a socket can't be opened as of the attempt ("list the routes")."""
    try:
        yield
    except OSError as error:
        raise RouteError(f"can't {attempt}: no netlink socket: {error.strerror or error}", errno=error.errno) from error
