"""Prefixes as numbers, which sort and hash in a tenth of the time of ``IPv4Network``; and sets of them.

Prefixes are nested or apart, never half in each other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network

# The first address, and the length: sorted, a prefix comes right before those inside it.
Prefix = tuple[int, int]


class PrefixSet:
    """The addresses that some prefixes cover.

    Args:
        prefixes: in any order; they may lie in each other.
    """

    def __init__(self, prefixes: Iterable[Prefix]) -> None:
        # Without the nested ones they are apart.
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, length in sorted(prefixes):
            if not self._lasts or first > self._lasts[-1]:
                self._firsts.append(first)
                self._lasts.append(first + (1 << (32 - length)) - 1)

    def covers(self, prefix: Prefix) -> bool:
        """Return whether a prefix is one of them or lies in one."""
        first, length = prefix
        position = bisect_right(self._firsts, first) - 1
        return position >= 0 and first | (0xFFFFFFFF >> length) <= self._lasts[position]

    def overlaps(self, first: int, last: int) -> bool:
        """Return whether one of them has an address from the first to the last."""
        position = bisect_right(self._firsts, last) - 1
        return position >= 0 and first <= self._lasts[position]


class PrefixIndex:
    """Prefixes, to be found by what lies in them, and by what they lie in.

    Args:
        prefixes: in any order; duplicates count once.
    """

    def __init__(self, prefixes: Iterable[Prefix]) -> None:
        self._sorted = sorted(set(prefixes))
        self._prefixes = frozenset(self._sorted)
        self._lengths = sorted({length for _, length in self._sorted}, reverse=True)

    def around(self, prefix: Prefix) -> Iterator[Prefix]:
        """Yield the prefixes that a prefix is or lies in, the innermost first."""
        first, longest = prefix
        for length in self._lengths:
            outer = (first >> (32 - length) << (32 - length), length)
            if length <= longest and outer in self._prefixes:
                yield outer

    def meeting(self, prefix: Prefix) -> list[Prefix]:
        """Return the prefixes that a prefix is or lies in, and those in it."""
        start, stop = bisect_right(self._sorted, prefix), bisect_right(self._sorted, (ends(prefix)[1], 32))
        return [*self.around(prefix), *self._sorted[start:stop]]


def numbers(network: IPv4Network) -> Prefix:
    """Return a prefix as its first address and its length, which sorts and hashes in a tenth of the time."""
    return int(network.network_address), network.prefixlen


def ends(prefix: Prefix) -> tuple[int, int]:
    """Return the first and the last address of a prefix."""
    first, length = prefix
    return first, first | (0xFFFFFFFF >> length)


def uncovered_addresses(prefixes: Iterable[Prefix]) -> dict[Prefix, int | None]:
    """For each prefix its first address that no longer prefix of the same set covers; None if they cover it all.

    Longest-prefix match gives such an address to that prefix alone, so one lookup of it shows whether the prefix
    wins. One pass over the sorted prefixes, O(n log n).

    Args:
        prefixes: any; duplicates count once.

    Returns:
        An address or None for each of them.
    """
    own: dict[Prefix, int | None] = {}
    # First and last addresses of those behind the current one that lie in no other so far, the nearest last.
    behind: list[tuple[int, int]] = []
    # Without a set, whose order would make sorted tables a lot of work again.
    for first, length in sorted(dict.fromkeys(prefixes), reverse=True):
        last, free = first | (0xFFFFFFFF >> length), first
        while behind and behind[-1][0] <= last:
            start, end = behind.pop()
            if start == free:
                free = end + 1
        own[first, length] = free if free <= last else None
        behind.append((first, last))
    return own
