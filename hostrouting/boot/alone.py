"""One run at a time: the lock of a whole run, which no script takes."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from hostrouting.boot.files import locked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hostrouting.boot.host import Host
    from phases import CancelScope


# As long as another run may wait for the network.
_WAIT_SECONDS = 660

_HELD: ContextVar[frozenset[Path]] = ContextVar("_HELD", default=frozenset())


@contextmanager
def alone(host: Host, scope: CancelScope, *, is_wanting: bool) -> Iterator[None]:
    """Hold the lock of a whole run: of two at once the second begins where the first has ended.

    A task inside another one holds it with that. An image has no other runs, and no /run to leave a file in; a run
    that wants nothing, on a host that has seen no other, leaves none either.

    Args:
        host: where.
        scope: ends the wait for another run.
        is_wanting: whether anything is to be installed.

    Raises:
        FileError: it can't be taken.
    """
    path, held = host.layout.run_lock, _HELD.get()
    has_none_before = not path.exists() and not host.layout.manifest.exists()
    if host.is_image or path in held or (has_none_before and not is_wanting):
        yield
        return
    with locked(path, scope, seconds=_WAIT_SECONDS):
        token = _HELD.set(held | {path})
        try:
            yield
        finally:
            _HELD.reset(token)
