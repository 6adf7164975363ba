"""Prefixes as pairs of integers, which sort and hash ten times faster than ``IPv4Network``.

Any two prefixes are either nested or disjoint; they never overlap partially.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from hostrouting.model.family import IpNetwork

# A prefix's first address as an integer, and its length. Sorting puts each prefix immediately
# before the prefixes nested in it.
Prefix = tuple[int, int]


class PrefixSet:
    """The set of addresses covered by prefixes.

    Args:
        prefixes: prefixes in any order, possibly nested.
        bits: the number of bits of an address.
    """

    def __init__(self, prefixes: Iterable[Prefix], bits: int) -> None:
        self.bits = bits
        self._all_ones = all_ones = (1 << bits) - 1
        # Only prefixes that aren't nested in another one are stored: they are disjoint.
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, length in sorted(prefixes):
            if not self._lasts or first > self._lasts[-1]:
                self._firsts.append(first)
                self._lasts.append(first | (all_ones >> length))

    def covers(self, prefix: Prefix) -> bool:
        """Return whether the set contains all addresses of a prefix."""
        first, length = prefix
        position = bisect_right(self._firsts, first) - 1
        return position >= 0 and first | (self._all_ones >> length) <= self._lasts[position]

    def overlaps(self, first: int, last: int) -> bool:
        """Return whether the set contains any address between a first and a last address."""
        position = bisect_right(self._firsts, last) - 1
        return position >= 0 and first <= self._lasts[position]


class PrefixIndex:
    """An index of prefixes. For a given prefix, it finds those around it and those nested in it.

    Args:
        prefixes: prefixes in any order; duplicates are ignored.
        bits: the number of bits of an address.
    """

    def __init__(self, prefixes: Iterable[Prefix], bits: int) -> None:
        self._bits = bits
        self._sorted = sorted(set(prefixes))
        self._prefixes = frozenset(self._sorted)
        self._lengths = sorted({length for _, length in self._sorted}, reverse=True)

    def around(self, prefix: Prefix) -> Iterator[Prefix]:
        """Yield the prefixes that contain or equal a prefix, innermost first."""
        (first, longest), bits = prefix, self._bits
        for length in self._lengths:
            outer = (first >> (bits - length) << (bits - length), length)
            if length <= longest and outer in self._prefixes:
                yield outer

    def meeting(self, prefix: Prefix) -> list[Prefix]:
        """Return the prefixes that contain a prefix, equal it, or are nested in it."""
        last = ends(prefix, self._bits)[1]
        start = bisect_right(self._sorted, prefix)
        stop = bisect_right(self._sorted, (last, self._bits))
        return [*self.around(prefix), *self._sorted[start:stop]]


def numbers(network: IpNetwork) -> Prefix:
    """Convert a network to a pair of integers: its first address and its prefix length."""
    return int(network.network_address), network.prefixlen


def ends(prefix: Prefix, bits: int) -> tuple[int, int]:
    """Return the first and last address in a prefix, for the given address width."""
    first, length = prefix
    return first, first | (1 << (bits - length)) - 1


def prefix_around(first: int, last: int, bits: int) -> Prefix:
    """Return the longest prefix that contains two addresses."""
    length = bits - (first ^ last).bit_length()
    return first >> (bits - length) << (bits - length), length


def uncovered_addresses(prefixes: Iterable[Prefix], bits: int) -> dict[Prefix, int | None]:
    """Map each prefix to its first address outside of the prefixes nested in it, or None.

    A lookup of this address finds the prefix itself, because the longest match wins. None means
    that the nested prefixes cover all of the prefix.

    Args:
        prefixes: prefixes in any order; duplicates are ignored.
        bits: the number of bits of an address.
    """
    uncovered: dict[Prefix, int | None] = {}
    all_ones = (1 << bits) - 1
    # A stack with the first and last address of each prefix visited so far, the lowest on top.
    # Prefixes that are nested in another visited prefix have been taken off the stack.
    behind: list[tuple[int, int]] = []
    # A dict, unlike a set, keeps the order of a table. An ordered table is sorted fast.
    for first, length in sorted(dict.fromkeys(prefixes), reverse=True):
        last = first | (all_ones >> length)
        free = first
        while behind and behind[-1][0] <= last:
            start, end = behind.pop()
            if start == free:
                free = end + 1
        uncovered[first, length] = free if free <= last else None
        behind.append((first, last))
    return uncovered
