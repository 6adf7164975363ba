"""Prefixes as numbers, which sort and hash in a tenth of the time of ``IPv4Network``; and sets of them.

Prefixes are nested or apart, never half in each other.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from ipaddress import IPv4Network

__all__ = ["Prefix", "PrefixSet", "halves", "numbers", "own_addresses"]

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
        """Whether a prefix is one of them or lies in one."""
        first, length = prefix
        position = bisect_right(self._firsts, first) - 1
        return position >= 0 and first | (0xFFFFFFFF >> length) <= self._lasts[position]

    def overlaps(self, first: int, last: int) -> bool:
        """Whether one of them has an address from the first to the last."""
        position = bisect_right(self._firsts, last) - 1
        return position >= 0 and first <= self._lasts[position]

    def holds(self, address: int) -> bool:
        """Whether an address is in one of them."""
        return self.overlaps(address, address)


def halves(network: IPv4Network) -> tuple[IPv4Network, ...]:
    """The two prefixes that are together the network and each longer than it; none for a /32."""
    return tuple(network.subnets()) if network.prefixlen < 32 else ()


def numbers(network: IPv4Network) -> Prefix:
    """A prefix as its first address and its length: what sorts and hashes in a tenth of the time."""
    return int(network.network_address), network.prefixlen


def own_addresses(prefixes: Iterable[Prefix]) -> dict[Prefix, int | None]:
    """For each prefix its first address that no longer prefix of the same set covers; None if they cover it all.

    Longest-prefix match gives such an address to that prefix alone, so one look-up of it shows whether the prefix
    wins. One pass over the sorted prefixes, O(n log n).

    Args:
        prefixes: any; duplicates count once.

    Returns:
        An address or None for each of them.
    """
    own: dict[Prefix, int | None] = {}
    # The prefixes that contain the current one, outermost first, each with its last address and its first address
    # not yet covered.
    open_: list[tuple[Prefix, int, int]] = []

    for prefix in sorted(set(prefixes)):
        first, length = prefix
        last = first + (1 << (32 - length)) - 1
        while open_ and open_[-1][1] < first:
            outer, end, free = open_.pop()
            own.setdefault(outer, free if free <= end else None)
        if open_:
            outer, end, free = open_[-1]
            if free < first:
                own.setdefault(outer, free)
            open_[-1] = (outer, end, max(free, last + 1))
        open_.append((prefix, last, first))
    for outer, end, free in open_:
        own.setdefault(outer, free if free <= end else None)
    return own
