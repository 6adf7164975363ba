"""Find the fewest prefixes that cover a set of addresses under longest-prefix matching.

This module does no I/O.

A prefix may therefore contain addresses that match a longer prefix, and other chosen prefixes may
be nested in it::

    172.16.0.0/16    dev ib0     must be covered by prefixes longer than /16
    172.16.1.0/24    dev eth0    isn't affected by prefixes shorter than /24
    172.16.2.0/24    dev ib1     must be covered by prefixes longer than /24
    solution                     172.16.0.0/17 172.16.128.0/17, and in the former 172.16.2.0/25 172.16.2.128/25

The cost of a prefix that isn't chosen is the sum of the costs of its halves. Choosing a prefix adds
1 to the cost of its halves.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Sequence
from functools import cache
from ipaddress import summarize_address_range
from itertools import accumulate, chain
from typing import NamedTuple

from hostrouting.model.family import Family, IpNetwork
from hostrouting.model.integer_prefixes import Prefix
from hostrouting.overlap._cut import Interval

# The cost of leaving a target uncovered. It exceeds the cost of any number of prefixes.
_TOO_MUCH = 1 << 40

# A prefix is left uncovered if all of its addresses need prefixes that are longer by more than
# this. A fix with more than 4,096 routes for one prefix wouldn't be of use, and a search for
# billions of routes would never end.
_SPLITS = 12

# The maximum prefix length in either family.
_ANY_LENGTH = 128


class Segment(NamedTuple):
    """A range of consecutive addresses with constraints on the prefixes that cover it.

    Args:
        first: the first address as an integer.
        last: the last address as an integer.
        above: the length that a covering prefix must exceed (-1 for any), or None if the segment
            isn't a target.
        most: maximum length of a prefix that may cover it, or -1 if none may.
    """

    first: int
    last: int
    above: int | None = None
    most: int = _ANY_LENGTH


def fewest_prefixes(
    segments: Sequence[Segment], family: Family, taken: Container[Prefix] = ()
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
    bits = family.bits
    firsts, lasts = [segment.first for segment in segments], [segment.last for segment in segments]
    mosts = [segment.most for segment in segments]
    # A segment that isn't a target needs no covering prefix (-2), and no prefix inside it is
    # useful.
    aboves = [-2 if segment.above is None else segment.above for segment in segments]
    lowest = [_ANY_LENGTH if segment.above is None else segment.above for segment in segments]
    # Running count of the gaps before each segment.
    gaps = list(
        accumulate(first != last + 1 for first, last in zip(firsts, [-1, *lasts], strict=False))
    )

    def size(length: int) -> int:
        return 1 << bits >> length

    def part(first: int, length: int) -> slice:
        return slice(bisect_left(lasts, first), bisect_left(firsts, first + size(length)))

    def is_served(first: int, length: int, around: int) -> bool:
        return max(aboves[part(first, length)], default=-2) < around

    @cache
    def cheapest(first: int, length: int, around: int) -> tuple[int, tuple[Prefix, ...]]:
        """Return the cost of covering the targets in a prefix, and the prefixes that cover them.

        Args:
            first: the first address of the prefix.
            length: the length of the prefix.
            around: length of the innermost chosen prefix that contains it, or -1 if there is none.
        """
        if is_served(first, length, around):
            return 0, ()
        inner = part(first, length)
        # Start at the smallest prefix that contains all segments: in any larger one, they are all
        # in the same half.
        begin, end = (
            max(first, firsts[inner.start]),
            min(first + size(length) - 1, lasts[inner.stop - 1]),
        )
        length = bits - (begin ^ end).bit_length()
        first = begin >> (bits - length) << (bits - length)
        is_covered = end - begin + 1 == size(length) and gaps[inner.start] == gaps[inner.stop - 1]
        most = min(mosts[inner])
        is_usable = (
            is_covered and min(lowest[inner]) < length <= most and (first, length) not in taken
        )
        halves = (first, first + size(length + 1))
        # If only one half needs prefixes, one inside that half costs the same and covers fewer
        # other addresses. That doesn't matter if any prefix may cover the other addresses.
        if (
            is_usable
            and max(aboves[inner]) < length
            and (most >= bits or not any(is_served(half, length + 1, around) for half in halves))
        ):
            return 1, ((first, length),)
        if length == bits or (is_covered and min(aboves[inner]) >= length + _SPLITS):
            return _TOO_MUCH, ()
        without, found = _sum(cheapest(half, length + 1, around) for half in halves)
        if is_usable and without > 1:
            price, more = _sum(cheapest(half, length + 1, length) for half in halves)
            if price + 1 < without:
                return price + 1, ((first, length), *more)
        return without, found

    return list(map(family.network, cheapest(0, 0, -1)[1]))


def _sum(halves: Iterable[tuple[int, tuple[Prefix, ...]]]) -> tuple[int, tuple[Prefix, ...]]:
    prices, found = zip(*halves, strict=True)
    return sum(prices), tuple(chain.from_iterable(found))


def networks_of(intervals: Iterable[Interval], family: Family) -> tuple[IpNetwork, ...]:
    """Return the fewest CIDRs that exactly cover the intervals.

    The intervals must be in address order.
    """
    spans: list[tuple[int, int]] = []
    for interval in intervals:
        first = spans.pop()[0] if spans and spans[-1][1] == interval.first - 1 else interval.first
        spans.append((first, interval.last))
    networks = (
        summarize_address_range(family.address(first), family.address(last))
        for first, last in spans
    )
    return tuple(chain.from_iterable(networks))


def summary_of(
    failing: Sequence[Interval],
    intervals: Sequence[Interval],
    local: Container[Interval],
    family: Family,
) -> list[IpNetwork]:
    """Return a short list of prefixes that cover failing intervals, and maybe adjacent local or broadcast addresses.

    Args:
        failing: the failing intervals, in address order.
        intervals: all intervals, in address order.
        local: the intervals of local and broadcast addresses.
        family: the address family.
    """
    start, stop, targets = (
        bisect_left(intervals, failing[0]),
        bisect_right(intervals, failing[-1]),
        {*failing},
    )
    while start and intervals[start - 1] in local:
        start -= 1
    while stop < len(intervals) and intervals[stop] in local:
        stop += 1
    segments = (
        Segment(each.first, each.last, above=-1 if each in targets else None)
        for each in intervals[start:stop]
        if each in targets or each in local
    )
    return fewest_prefixes([*segments], family)
