"""Pure: cycles in the order in which units start."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["find_cycle"]


def find_cycle(after: Mapping[str, Iterable[str]], through: Sequence[str]) -> tuple[str, ...]:
    """A shortest cycle in the order in which units start, through one of some units.

    systemd drops the job of one of them, a different one from boot to boot, and doesn't always name the cycle.

    Args:
        after: each unit with those that it starts after.
        through: the units that matter.

    Returns:
        The units of the cycle, each starting after the next, the last after the first; empty if there is none.
    """
    for start in through:
        came_from: dict[str, str] = {}
        todo = deque([start])
        while todo:
            unit = todo.popleft()
            for other in sorted(after.get(unit, ())):
                if other == start:
                    return _path(came_from, unit)
                if other not in came_from:
                    came_from[other] = unit
                    todo.append(other)
    return ()


def _path(came_from: Mapping[str, str], last: str) -> tuple[str, ...]:
    path = [last]
    while path[-1] in came_from:
        path.append(came_from[path[-1]])
    return tuple(reversed(path))
