"""Pure: how often each of our routes was lost lately, and so when it is put back next.

A loss or two is mended at once: a daemon that starts anew, a cable. Whoever takes the same route again and again does
it on purpose; then each time it is put back later, and it is said who we are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostrouting.model.routes import Route

__all__ = ["CONTESTED_LOSSES", "Backoff", "Losses", "Repair"]

# From the third loss on it is no accident.
CONTESTED_LOSSES = 3
_FIRST_SECONDS, _LONGEST_SECONDS = 1.0, 300.0
# Somebody who leaves a route alone for so long has given up.
_CALM_SECONDS = 900.0

Key = object


@attrs.frozen
class Losses:
    """The losses of one route.

    Args:
        count: how many, since it was last left alone for long.
        last: when, by the watcher's clock.
    """

    count: int
    last: float

    @property
    def wait_seconds(self) -> float:
        """How long after the last loss it is put back."""
        if self.count < CONTESTED_LOSSES:
            return 0.0
        return min(_LONGEST_SECONDS, _FIRST_SECONDS * 2.0 ** min(self.count - CONTESTED_LOSSES, 16))

    @property
    def due(self) -> float:
        """When it is put back."""
        return self.last + self.wait_seconds

    @property
    def is_contested(self) -> bool:
        """Whether somebody does it on purpose."""
        return self.count >= CONTESTED_LOSSES


@attrs.frozen
class Backoff:
    """The losses of all routes, by their keys."""

    losses: dict[Key, Losses] = attrs.field(factory=dict)

    def after(self, lost: Iterable[Route], now: float) -> Backoff:
        """With some more losses, and without those of long ago.

        Args:
            lost: the routes that were there and have gone.
            now: by the watcher's clock.
        """
        losses = {key: item for key, item in self.losses.items() if now < item.due + _CALM_SECONDS}
        for route in lost:
            before = losses.get(route.key)
            losses[route.key] = Losses(before.count + 1 if before else 1, now)
        return Backoff(losses)

    def of(self, route: Route) -> Losses | None:
        """The losses of a route; None if it wasn't lost lately."""
        return self.losses.get(route.key)

    def is_due(self, route: Route, now: float) -> bool:
        """Whether a route may be put back."""
        item = self.of(route)
        return item is None or now >= item.due

    def next_due(self, now: float) -> float | None:
        """The seconds until the next route may be put back that may not yet; None if there is none."""
        waits = [item.due - now for item in self.losses.values() if item.due > now]
        return min(waits, default=None)


@attrs.frozen
class Repair:
    """How our routes are after a look, and what it took.

    Args:
        kept: ours that are in the table now.
        restored: those that were lost since the last look, or missing at the first, and are back.
        followed: those that have changed with the default route, as they are now.
        removed: those that no config asks for any more.
        lost: those that were there after the last look and were gone at this one.
        waiting: those that are lost, and are put back later since somebody takes them again and again.
        problem: why not all is as wanted, in words; None if it is.
        backoff: the losses so far.
        refused: how often the kernel has refused each route, and so when it is asked again.
        refusals: why, in words, by the keys of the routes that aren't there for it.
        failures: attempts of a repair that failed as a whole, one after the other; None if the last went well.
    """

    kept: tuple[Route, ...] = ()
    restored: tuple[Route, ...] = ()
    followed: tuple[Route, ...] = ()
    removed: tuple[Route, ...] = ()
    lost: tuple[Route, ...] = ()
    waiting: tuple[Route, ...] = ()
    problem: str | None = None
    backoff: Backoff = attrs.field(factory=Backoff)
    refused: Backoff = attrs.field(factory=Backoff)
    refusals: dict[Key, str] = attrs.field(factory=dict)
    failures: Losses | None = None

    @property
    def contested(self) -> tuple[Route, ...]:
        """Those that somebody has just taken once more, on purpose."""
        found = ((route, self.backoff.of(route)) for route in self.lost)
        return tuple(route for route, losses in found if losses is not None and losses.is_contested)

    def next_due(self, now: float) -> float | None:
        """The seconds until something may be tried again; None if nothing waits for it."""
        waits = [self.backoff.next_due(now) if self.waiting else None]
        waits.append(self.refused.next_due(now) if self.refusals else None)
        if self.failures is not None:
            waits.append(max(0.0, self.failures.due - now))
        return min((seconds for seconds in waits if seconds is not None), default=None)
