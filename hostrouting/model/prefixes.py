"""Prefixes as integers, which sort and hash ten times as fast as ``IPv4Network``; and sets of them.

Prefixes are nested or disjoint, never partly overlapping.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network

# The first address and the length: in sorted order, a prefix comes right before those inside it.
Prefix = tuple[int, int]


class PrefixSet:
    """The addresses that a set of prefixes covers.

    Args:
        prefixes: in any order; they may be nested.
    """

    def __init__(self, prefixes: Iterable[Prefix]) -> None:
        # Without the nested ones they are disjoint.
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, length in sorted(prefixes):
            if not self._lasts or first > self._lasts[-1]:
                self._firsts.append(first)
                self._lasts.append(first + (1 << (32 - length)) - 1)

    def covers(self, prefix: Prefix) -> bool:
        """Return whether a prefix is in the set or inside one of its prefixes."""
        first, length = prefix
        position = bisect_right(self._firsts, first) - 1
        return position >= 0 and first | (0xFFFFFFFF >> length) <= self._lasts[position]

    def overlaps(self, first: int, last: int) -> bool:
        """Return whether the set contains an address from the first to the last."""
        position = bisect_right(self._firsts, last) - 1
        return position >= 0 and first <= self._lasts[position]


class PrefixIndex:
    """Prefixes that can be looked up by what they contain, and by what contains them.

    Args:
        prefixes: in any order; duplicates count once.
    """

    def __init__(self, prefixes: Iterable[Prefix]) -> None:
        self._sorted = sorted(set(prefixes))
        self._prefixes = frozenset(self._sorted)
        self._lengths = sorted({length for _, length in self._sorted}, reverse=True)

    def around(self, prefix: Prefix) -> Iterator[Prefix]:
        """Yield the prefixes that contain a prefix, or are equal to it, the innermost first."""
        first, longest = prefix
        for length in self._lengths:
            outer = (first >> (32 - length) << (32 - length), length)
            if length <= longest and outer in self._prefixes:
                yield outer

    def meeting(self, prefix: Prefix) -> list[Prefix]:
        """Return the prefixes that contain a prefix, are equal to it, or are inside it."""
        start, stop = bisect_right(self._sorted, prefix), bisect_right(self._sorted, (ends(prefix)[1], 32))
        return [*self.around(prefix), *self._sorted[start:stop]]


def numbers(network: IPv4Network) -> Prefix:
    """Return a prefix as its first address and its length, which sorts and hashes ten times as fast."""
    return int(network.network_address), network.prefixlen


def ends(prefix: Prefix) -> tuple[int, int]:
    """Return the first and the last address of a prefix."""
    first, length = prefix
    return first, first | (0xFFFFFFFF >> length)


def uncovered_addresses(prefixes: Iterable[Prefix]) -> dict[Prefix, int | None]:
    """Return for each prefix its first address that no longer prefix of the set covers; None if they cover it all.

    Longest-prefix match gives such an address only to that prefix, so one lookup of it shows whether the prefix
    wins. It takes one pass over the sorted prefixes, O(n log n).

    Args:
        prefixes: in any order; duplicates count once.

    Returns:
        An address or None for each prefix.
    """
    own: dict[Prefix, int | None] = {}
    # First and last addresses of the prefixes after the current one that aren't inside another one so far, nearest
    # last.
    behind: list[tuple[int, int]] = []
    # Not a set, whose order would make sorting sorted tables expensive again.
    for first, length in sorted(dict.fromkeys(prefixes), reverse=True):
        last, free = first | (0xFFFFFFFF >> length), first
        while behind and behind[-1][0] <= last:
            start, end = behind.pop()
            if start == free:
                free = end + 1
        own[first, length] = free if free <= last else None
        behind.append((first, last))
    return own
