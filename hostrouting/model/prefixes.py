"""Prefixes as pairs of integers, which sort and hash ten times as fast as ``IPv4Network``, and sets of them.

Two prefixes are either nested or disjoint; they never overlap in part.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network

# The first address and the length. In sorted order, a prefix comes right before the prefixes inside it.
Prefix = tuple[int, int]


class PrefixSet:
    """The addresses that a set of prefixes covers.

    Args:
        prefixes: the prefixes, in any order; they may be nested.
    """

    def __init__(self, prefixes: Iterable[Prefix]) -> None:
        # Without the nested prefixes, the others are disjoint.
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, length in sorted(prefixes):
            if not self._lasts or first > self._lasts[-1]:
                self._firsts.append(first)
                self._lasts.append(first + (1 << (32 - length)) - 1)

    def covers(self, prefix: Prefix) -> bool:
        """Return whether a prefix is in the set or inside one of the set's prefixes."""
        first, length = prefix
        position = bisect_right(self._firsts, first) - 1
        return position >= 0 and first | (0xFFFFFFFF >> length) <= self._lasts[position]

    def overlaps(self, first: int, last: int) -> bool:
        """Return whether the set contains any address of a range, given its first and last address."""
        position = bisect_right(self._firsts, last) - 1
        return position >= 0 and first <= self._lasts[position]


class PrefixIndex:
    """Prefixes that can be looked up by what they contain or by what contains them.

    Args:
        prefixes: the prefixes, in any order; duplicates count once.
    """

    def __init__(self, prefixes: Iterable[Prefix]) -> None:
        self._sorted = sorted(set(prefixes))
        self._prefixes = frozenset(self._sorted)
        self._lengths = sorted({length for _, length in self._sorted}, reverse=True)

    def around(self, prefix: Prefix) -> Iterator[Prefix]:
        """Yield the prefixes that contain a prefix or are equal to it, from the innermost to the outermost."""
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
    """Return a prefix as its first address and its length, which sort and hash ten times as fast."""
    return int(network.network_address), network.prefixlen


def ends(prefix: Prefix) -> tuple[int, int]:
    """Return the first and the last address of a prefix."""
    first, length = prefix
    return first, first | (0xFFFFFFFF >> length)


def uncovered_addresses(prefixes: Iterable[Prefix]) -> dict[Prefix, int | None]:
    """Return for each prefix the first of its addresses that no longer prefix covers, or None if there is none.

    Longest-prefix match assigns such an address to that prefix only, so a single lookup of it shows whether the prefix
    wins. The function makes one pass over the sorted prefixes, O(n log n).

    Args:
        prefixes: the prefixes, in any order; duplicates count once.

    Returns:
        The address or None, by prefix.
    """
    own: dict[Prefix, int | None] = {}
    # The first and last addresses of the prefixes after the current one that aren't inside another one found so far;
    # the nearest prefix is the last.
    behind: list[tuple[int, int]] = []
    # A set isn't used, because its order would make sorting an already sorted table expensive again.
    for first, length in sorted(dict.fromkeys(prefixes), reverse=True):
        last, free = first | (0xFFFFFFFF >> length), first
        while behind and behind[-1][0] <= last:
            start, end = behind.pop()
            if start == free:
                free = end + 1
        own[first, length] = free if free <= last else None
        behind.append((first, last))
    return own
