"""The changes of a run, which its failure carries too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import attrs

from hostrouting.model.changes import Changes
from hostrouting.model.errors import FileError, HostRoutingError
from phases import Cancelled, TimedOut


class OverdueRun(TimedOut):
    """A run whose deadline passed, and which has changed something that stays.

    Args:
        seconds: how much time there had been.
        changes: what stays changed.
    """

    def __init__(self, seconds: float, changes: Changes) -> None:
        super().__init__(seconds)
        self.changes = changes

    def __reduce__(self) -> tuple[type[OverdueRun], tuple[float, Changes]]:
        return type(self), (self.seconds, self.changes)


class StoppedRun(Cancelled):
    """A run that was cancelled, and has changed something that stays.

    Args:
        reason: why it was cancelled, in words.
        changes: what stays changed.
    """

    def __init__(self, reason: str, changes: Changes) -> None:
        super().__init__(reason)
        self.changes = changes

    def __reduce__(self) -> tuple[type[StoppedRun], tuple[str, Changes]]:
        return type(self), (self.reason, self.changes)


@attrs.define
class Done:
    """The changes that a run has made so far, and not put back; its failure carries them."""

    changes: Changes = attrs.field(factory=Changes)

    def add(self, made: Iterable[Changes]) -> None:
        """Add changes, each as soon as it is made."""
        for changes in made:
            self.changes |= changes

    @contextmanager
    def told(self) -> Iterator[None]:
        """Have what ends the block tell what stays changed."""
        try:
            yield
        except HostRoutingError as error:
            error.changes = self.changes
            raise
        except OSError as error:
            # Each is to be named where it happens; an import may open a file anywhere.
            stray = FileError.of(f"carry out the run at {error.filename or 'a file without a name'}", error)
            stray.changes = self.changes
            raise stray from error
        except Cancelled as stop:
            if not self.changes:
                raise
            raise StoppedRun(stop.reason, self.changes) from stop
        except TimedOut as late:
            if not self.changes:
                raise
            raise OverdueRun(late.seconds, self.changes) from late
