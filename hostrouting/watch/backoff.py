"""Pure: how often each thing went wrong lately, and so when it is tried again.

Once or twice is an accident: a daemon that starts anew, a cable. What goes wrong again and again does so on purpose,
or will not get better soon; then it is tried later each time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable


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
    def wait_seconds(self) -> float:
        """How long after the last time it is tried again; 0: at once, as it may have been an accident."""
        doublings = min(self.count - _ACCIDENTS_MAX - 1, 16)
        return min(_LONGEST_SECONDS, _FIRST_SECONDS * 2.0**doublings) if doublings >= 0 else 0.0

    @property
    def due(self) -> float:
        """When it is tried again."""
        return self.last + self.wait_seconds


class Backoff(dict["Hashable", Setbacks]):
    """The setbacks of all things, by their keys."""

    def __missing__(self, key: Hashable) -> Setbacks:
        return Setbacks()

    def add(self, keys: Iterable[Hashable], now: float) -> None:
        """Count one more for each of some things, and forget those of long ago.

        Args:
            keys: of what has just gone wrong.
            now: by the watcher's clock.
        """
        self.keep(key for key, each in self.items() if now < each.due + _CALM_SECONDS)
        self.update({key: Setbacks(self[key].count + 1, now) for key in keys})

    def keep(self, keys: Iterable[Hashable]) -> None:
        """Forget all but some things: what isn't among them has gone well."""
        for key in self.keys() - set(keys):
            del self[key]
