"""A whole run: its lock, and its changes, which its failure carries too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext

import attrs

from hostrouting.boot.files import exists, remove
from hostrouting.boot.host import Host
from hostrouting.boot.locks import locked
from hostrouting.boot.manifest import ROUTES
from hostrouting.model.changes import Changes
from hostrouting.model.errors import FileError, HostRoutingError
from phases import Cancelled, CancelScope, TimedOut

# As long as another run may wait for the network.
_WAIT_SECONDS = 660


class OverdueRun(TimedOut):
    """A run whose deadline passed, and which has changed something that stays: its ``changes``."""

    changes = Changes()


class StoppedRun(Cancelled):
    """A run that was cancelled, and has changed something that stays: its ``changes``."""

    changes = Changes()


@attrs.define
class Done:
    """The changes that a run has made so far, and not put back."""

    changes: Changes = attrs.field(factory=Changes)

    def add(self, made: Iterable[Changes]) -> None:
        """Add changes, each as soon as it is made."""
        for changes in made:
            self.changes |= changes


@contextmanager
def exclusive_run(host: Host, scope: CancelScope, *, is_wanting: bool) -> Iterator[Done]:
    """Hold the lock of a whole run, and have what ends the run tell what stays changed.

    Of two runs at once the second begins where the first has ended. An image has no other runs, and no /run to leave a
    file in; a run that wants nothing, on a host that has seen no other, leaves none either. A trial whose confirm was
    killed ends with a run that succeeds.

    Args:
        host: where.
        scope: ends the wait for another run.
        is_wanting: whether anything is to be installed.

    Yields:
        What the run has done, which the caller adds to.

    Raises:
        FileError: the lock can't be taken.
    """
    done, layout = Done(), host.layout
    has_lock = not host.is_image and (
        is_wanting or any(map(exists, (layout.run_lock, layout.manifest, layout.unit(ROUTES))))
    )
    try:
        with locked(layout.run_lock, scope, seconds=_WAIT_SECONDS) if has_lock else nullcontext():
            yield done
            if has_lock:
                remove(layout.confirmed)
    except HostRoutingError as error:
        error.changes = done.changes
        raise
    except OSError as error:
        # Each is to be named where it happens; an import may open a file anywhere.
        attempt = f"carry out the run at {error.filename or 'a file without a name'}"
        stray = FileError.of(attempt, error)
        stray.changes = done.changes
        raise stray from error
    except (Cancelled, TimedOut) as end:
        if not done.changes:
            raise
        ended = StoppedRun(end.reason) if isinstance(end, Cancelled) else OverdueRun(end.seconds)
        ended.changes = done.changes
        raise ended from end
