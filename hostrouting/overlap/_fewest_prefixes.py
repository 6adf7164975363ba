"""Find the fewest prefixes that cover a set of addresses under longest-prefix matching.

This module does no I/O.

A *target* is a range of addresses that must be covered, by a prefix longer than a given length. A
chosen prefix *serves* a target if it covers the target and is long enough. A chosen prefix may also
contain addresses that match a longer prefix: there, the longer one wins. Other chosen prefixes may
be nested in it::

    172.16.0.0/16    dev ib0     must be covered by prefixes longer than /16
    172.16.1.0/24    dev eth0    isn't affected by prefixes shorter than /24
    172.16.2.0/24    dev ib1     must be covered by prefixes longer than /24
    solution                     172.16.0.0/17 172.16.128.0/17,
                                 and in the former 172.16.2.0/25 172.16.2.128/25

The cost of a prefix is the number of prefixes chosen in it. If the prefix isn't chosen, its cost is
the sum of the costs of its halves. A chosen prefix costs 1 more than its halves, but then these may
need fewer prefixes. In the example, 172.16.0.0/16 can't be chosen, so it costs what its halves do::

    172.16.128.0/17   1: chosen, it is enough
    172.16.0.0/17     3: if chosen, 1 and 2 more, for the halves of 172.16.2.0/24;
                         if not chosen, more, for each part around the two /24s
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Sequence
from functools import cache
from ipaddress import summarize_address_range
from itertools import accumulate
from typing import NamedTuple

from hostrouting.model.family import Family, IpNetwork
from hostrouting.model.integer_prefixes import Prefix
from hostrouting.overlap._places import Span

# The cost of leaving a target uncovered. Any number of prefixes costs less.
_TOO_MUCH = 1 << 40

# A prefix stays uncovered if all its addresses need prefixes that are more than 12 bits longer: in
# a /8, longer than /20. A fix with more than 4,096 routes for one prefix wouldn't be of use, and a
# search for billions of routes would never end.
_SPLITS = 12

# The maximum prefix length in either family.
_ANY_LENGTH = 128

# Stands for the length of the chosen prefix as long as none is chosen. It serves no target.
_NONE_CHOSEN = -1
# The length to exceed for a segment that needs no prefix. Even _NONE_CHOSEN exceeds it.
_NOT_NEEDED = -2


class Segment(NamedTuple):
    """A range of consecutive addresses with constraints on the prefixes that cover it.

    Args:
        first: the first address as an integer.
        last: the last address as an integer.
        longer_than: the length that a covering prefix must exceed, or -1 for any length. None if no
            prefix needs to cover the segment: it isn't a target.
        length_max: the maximum length of a covering prefix, or -1 if no prefix may cover the
            segment.
    """

    first: int
    last: int
    longer_than: int | None = None
    length_max: int = _ANY_LENGTH


def fewest_prefixes(
    segments: Sequence[Segment],
    family: Family,
    taken: Container[Prefix] = (),
) -> list[IpNetwork]:
    """Cover the targets with as few prefixes as possible.

    Ties are broken in favor of the list that covers the fewest other addresses. Addresses that any
    prefix may cover, such as local and broadcast ones, aren't counted.

    Args:
        segments: the segments in address order. No other addresses may be covered.
        family: the address family.
        taken: prefixes that are already in use and can't be chosen.

    Returns:
        The prefixes in address order. Outer prefixes precede those nested in them.
    """
    search = _Search(segments, family.bits, taken)
    return list(map(family.network, search.cheapest(0, 0, _NONE_CHOSEN).prefixes))


class _Cover(NamedTuple):
    """The prefixes chosen in a prefix."""

    cost: int
    prefixes: tuple[Prefix, ...] = ()


class _Search:
    """The search for the fewest prefixes. The arguments are those of ``fewest_prefixes``."""

    def __init__(self, segments: Sequence[Segment], bits: int, taken: Container[Prefix]) -> None:
        self._bits = bits
        self._taken = taken
        self._firsts = [segment.first for segment in segments]
        self._lasts = [segment.last for segment in segments]
        self._lengths_max = [segment.length_max for segment in segments]
        # The length that a prefix must exceed to serve each segment. A segment that isn't a target
        # counts in ``_for_all`` as served by every prefix, and in ``_for_any`` as served by none.
        self._for_all = [_longer_than(each, otherwise=_NOT_NEEDED) for each in segments]
        self._for_any = [_longer_than(each, otherwise=_ANY_LENGTH) for each in segments]
        # How many gaps between segments precede each segment.
        ends = zip(self._firsts, [-1, *self._lasts], strict=False)
        self._gaps = list(accumulate(first != last + 1 for first, last in ends))
        self.cheapest = cache(self._cheapest)

    def _cheapest(self, outer_first: int, outer_length: int, chosen_length: int) -> _Cover:
        """Return the fewest more prefixes that serve all targets in an outer prefix.

        The search goes on with the smallest prefix around the same segments. There are five cases:

        - A prefix that is already chosen serves all targets: the cost is 0.
        - The smallest prefix is enough: the cost is 1.
        - No prefix serves the targets: the cost is ``_TOO_MUCH``.
        - The smallest prefix isn't chosen, but prefixes in its halves are: the sum of their costs.
        - The smallest prefix is chosen, and so are prefixes in its halves: 1 more than this sum.

        Args:
            outer_first: the first address of the outer prefix.
            outer_length: the length of the outer prefix.
            chosen_length: the length of the innermost chosen prefix around the outer prefix, or
                _NONE_CHOSEN.
        """
        inner = self._part(outer_first, outer_length)
        if self._serves_all(chosen_length, inner):
            return _Cover(0)
        # In all larger prefixes, these segments are in the same half.
        first, length, is_whole = self._smallest_around(inner, outer_first, outer_length)
        can_choose = is_whole and self._can_choose((first, length), inner)
        if can_choose and self._is_enough(first, length, chosen_length, inner):
            return _Cover(1, ((first, length),))
        if length == self._bits:
            return _Cover(_TOO_MUCH)
        if is_whole and min(self._for_all[inner]) >= length + _SPLITS:
            return _Cover(_TOO_MUCH)
        without = self._cheapest_halves(first, length, chosen_length)
        # A single smaller prefix is better, because it covers fewer addresses.
        if not can_choose or without.cost <= 1:
            return without
        # If this prefix is chosen, the halves need prefixes only for what it doesn't serve.
        inside = self._cheapest_halves(first, length, length)
        if 1 + inside.cost < without.cost:
            return _Cover(1 + inside.cost, ((first, length), *inside.prefixes))
        return without

    def _cheapest_halves(self, first: int, length: int, chosen_length: int) -> _Cover:
        """Return the results of ``cheapest`` for both halves of a prefix, added up."""
        low = self.cheapest(first, length + 1, chosen_length)
        high = self.cheapest(first + self._size(length + 1), length + 1, chosen_length)
        return _Cover(low.cost + high.cost, low.prefixes + high.prefixes)

    def _can_choose(self, prefix: Prefix, inner: slice) -> bool:
        """Return whether a prefix may cover all segments in it, and serves any."""
        _, length = prefix
        is_useful = min(self._for_any[inner]) < length
        return is_useful and length <= min(self._lengths_max[inner]) and prefix not in self._taken

    def _is_enough(self, first: int, length: int, chosen_length: int, inner: slice) -> bool:
        """Return whether a prefix serves all targets in it, and no smaller one would be better.

        A smaller prefix covers fewer addresses that aren't targets. So if only one half of the
        prefix has targets that aren't served yet, a prefix in that half is better. But if prefixes
        of any length may cover all the addresses here, none is better than another.

        Args:
            first: the first address of the prefix.
            length: the length of the prefix.
            chosen_length: see ``_cheapest``.
            inner: the slice of the segments in the prefix.
        """
        if not self._serves_all(length, inner):
            return False
        if min(self._lengths_max[inner]) >= self._bits:
            return True
        halves = (first, first + self._size(length + 1))
        parts = (self._part(half, length + 1) for half in halves)
        return not any(self._serves_all(chosen_length, part) for part in parts)

    def _size(self, length: int) -> int:
        return 1 << self._bits >> length

    def _part(self, first: int, length: int) -> slice:
        """Return the slice of the segments that overlap a prefix."""
        behind = first + self._size(length)
        return slice(bisect_left(self._lasts, first), bisect_left(self._firsts, behind))

    def _serves_all(self, length: int, inner: slice) -> bool:
        """Return whether a chosen prefix of a length serves all targets in a slice of segments."""
        return max(self._for_all[inner], default=_NOT_NEEDED) < length

    def _smallest_around(self, inner: slice, first: int, length: int) -> tuple[int, int, bool]:
        """Return the smallest prefix around a slice of segments, and whether they fill it.

        Only the parts of the segments that lie in the prefix ``first``/``length`` count.
        """
        begin = max(first, self._firsts[inner.start])
        end = min(first + self._size(length) - 1, self._lasts[inner.stop - 1])
        smallest = self._bits - (begin ^ end).bit_length()
        is_full = end - begin + 1 == self._size(smallest)
        is_whole = is_full and self._gaps[inner.start] == self._gaps[inner.stop - 1]
        return begin >> (self._bits - smallest) << (self._bits - smallest), smallest, is_whole


def _longer_than(segment: Segment, *, otherwise: int) -> int:
    """Return the length that a prefix must exceed to serve a segment that is a target.

    Args:
        segment: the segment, which may be a target.
        otherwise: what to return if the segment isn't a target.
    """
    return otherwise if segment.longer_than is None else segment.longer_than


def networks_of(spans: Iterable[Span], family: Family) -> tuple[IpNetwork, ...]:
    """Return the fewest CIDRs that exactly cover the spans. The spans must be in address order."""
    joined: list[tuple[int, int]] = []
    for span in spans:
        is_adjacent = bool(joined) and joined[-1][1] == span.first - 1
        first = joined.pop()[0] if is_adjacent else span.first
        joined.append((first, span.last))
    networks: list[IpNetwork] = []
    for first, last in joined:
        networks += summarize_address_range(family.address(first), family.address(last))
    return tuple(networks)


def summary_of(
    failing: Sequence[Span],
    spans: Sequence[Span],
    local: Container[Span],
    family: Family,
) -> list[IpNetwork]:
    """Return a short list of prefixes that cover failing spans.

    The prefixes may also cover adjacent local or broadcast addresses.

    Args:
        failing: the failing spans, in address order.
        spans: all spans, in address order.
        local: the spans of local and broadcast addresses.
        family: the address family of the spans.
    """
    start = bisect_left(spans, failing[0])
    stop = bisect_right(spans, failing[-1])
    while start and spans[start - 1] in local:
        start -= 1
    while stop < len(spans) and spans[stop] in local:
        stop += 1
    if not any(span in local for span in spans[start:stop]):
        return [*networks_of(failing, family)]
    targets = {*failing}
    segments: list[Segment] = []
    for span in spans[start:stop]:
        if span in targets:
            segments.append(Segment(span.first, span.last, longer_than=-1))
        elif span in local:
            segments.append(Segment(span.first, span.last))
    return fewest_prefixes(segments, family)
