"""Pure: how often each thing went wrong lately, and so when it is tried again.

Once or twice is an accident: a daemon that starts anew, a cable. What goes wrong again and again does so on purpose,
or will not get better soon; then it is tried later each time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Container, Hashable, Iterable

__all__ = ["Backoff", "Setbacks"]

_ACCIDENTS_MAX = 2
_FIRST_SECONDS, _LONGEST_SECONDS = 1.0, 300.0
# What goes well for so long is over.
_CALM_SECONDS = 900.0


@attrs.frozen
class Setbacks:
    """How often one thing went wrong.

    Args:
        count: how many times, since it last went well for long.
        last: when, by the watcher's clock.
    """

    count: int = 0
    last: float = 0.0

    @property
    def is_no_accident(self) -> bool:
        """Whether it is to be tried later each time."""
        return self.count > _ACCIDENTS_MAX

    @property
    def wait_seconds(self) -> float:
        """How long after the last time it is tried again."""
        doublings = min(self.count - _ACCIDENTS_MAX - 1, 16)
        return min(_LONGEST_SECONDS, _FIRST_SECONDS * 2.0**doublings) if self.is_no_accident else 0.0

    @property
    def due(self) -> float:
        """When it is tried again."""
        return self.last + self.wait_seconds


@attrs.frozen
class Backoff:
    """The setbacks of all things, by their keys."""

    setbacks: dict[Hashable, Setbacks] = attrs.field(factory=dict)

    def after(self, keys: Iterable[Hashable], now: float) -> Backoff:
        """With one more for each of some things, and without those of long ago.

        Args:
            keys: of what has just gone wrong.
            now: by the watcher's clock.
        """
        recent = {key: each for key, each in self.setbacks.items() if now < each.due + _CALM_SECONDS}
        return Backoff(recent | {key: Setbacks(recent.get(key, Setbacks()).count + 1, now) for key in keys})

    def of(self, key: Hashable) -> Setbacks:
        """How often one thing went wrong lately."""
        return self.setbacks.get(key, Setbacks())

    def only(self, keys: Container[Hashable]) -> Backoff:
        """Without what has gone well: the setbacks of some things alone."""
        return Backoff({key: each for key, each in self.setbacks.items() if key in keys})
