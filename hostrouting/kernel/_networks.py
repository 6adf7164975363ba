"""A choice of the prefixes that lie inside some networks."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from ipaddress import IPv4Network

__all__ = ["Inside"]


class Inside:
    """The prefixes that are one of some networks or lie in one (``_entries.Destinations``).

    Args:
        networks: in any order; they may lie in each other.
    """

    def __init__(self, networks: Iterable[IPv4Network]) -> None:
        # Prefixes never overlap by halves, so without the nested ones they are apart, in order.
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for network in sorted(networks):
            first, last = int(network.network_address), int(network.broadcast_address)
            if not self._lasts or self._lasts[-1] < first:
                self._firsts.append(first)
                self._lasts.append(last)

    def among(self, prefixes: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Those that lie inside."""
        return [(length, address) for length, address in prefixes if self._holds(length, address)]

    def _holds(self, length: int, address: int) -> bool:
        position = bisect_right(self._firsts, address) - 1
        return position >= 0 and address | (0xFFFFFFFF >> length) <= self._lasts[position]

    def are_between(self, first: int, last: int, /) -> bool:
        """Whether a network holds an address from the first to the last, so that a prefix there may lie inside."""
        position = bisect_right(self._firsts, last) - 1
        return position >= 0 and first <= self._lasts[position]
