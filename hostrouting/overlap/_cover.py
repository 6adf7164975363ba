"""Pure: cover addresses with the fewest prefixes, where the longest prefix that contains an address wins.

A prefix may therefore cover the addresses of a longer one, and may contain other prefixes::

    172.16.0.0/16    dev ib0     must be covered by prefixes longer than /16
    172.16.1.0/24    dev eth0    isn't changed by prefixes shorter than /24
    172.16.2.0/24    dev ib1     must be covered by prefixes longer than /24
    fewest                       172.16.0.0/17 172.16.128.0/17, and inside the first 172.16.2.0/25 172.16.2.128/25

A prefix that isn't chosen costs as much as its two halves. A chosen one costs one more than its halves inside it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cache
from ipaddress import IPv4Network
from itertools import accumulate, chain
from typing import NamedTuple

from hostrouting.model.prefixes import Prefix
from hostrouting.overlap._coverage import Interval

# The cost of leaving a target uncovered, which is higher than any number of prefixes.
_TOO_MUCH = 1 << 40


class Segment(NamedTuple):
    """A range of consecutive addresses, and the constraints on prefixes that cover it.

    Args:
        first: the first address as an integer.
        last: the last address as an integer.
        is_target: whether a prefix longer than ``above`` must cover it, if possible.
        above: the length up to which prefixes have no effect on it, or -1 if every prefix has an effect.
        most: the length of the longest prefix that may cover it, or -1 if none may.
    """

    first: int
    last: int
    is_target: bool
    above: int = -1
    most: int = 32


def fewest_prefixes(segments: Sequence[Segment], taken: Container[Prefix] = ()) -> list[IPv4Network]:
    """Cover the targets with as few prefixes as possible.

    If several lists are equally short, return the one that covers the fewest other addresses. Addresses that any prefix
    may cover, such as local and broadcast ones, don't count.

    Args:
        segments: the segments in address order. Addresses outside them must not be covered.
        taken: the prefixes that must not be used.

    Returns:
        The prefixes in address order. Each one precedes the prefixes inside it.
    """
    firsts, lasts = [segment.first for segment in segments], [segment.last for segment in segments]
    mosts = [segment.most for segment in segments]
    # A segment that isn't a target is satisfied with any prefix around it (-2), and no prefix inside it helps (32).
    aboves = [segment.above if segment.is_target else -2 for segment in segments]
    lowest = [segment.above if segment.is_target else 32 for segment in segments]
    # The number of gaps before each segment.
    gaps = list(accumulate(first != last + 1 for first, last in zip(firsts, [-1, *lasts], strict=False)))

    def part(first: int, length: int) -> slice:
        return slice(bisect_left(lasts, first), bisect_left(firsts, first + _size(length)))

    def is_served(first: int, length: int, around: int) -> bool:
        return max(aboves[part(first, length)], default=-2) < around

    @cache
    def cheapest(first: int, length: int, around: int) -> tuple[int, tuple[Prefix, ...]]:
        """Return the cost of covering the targets in a prefix, and the prefixes that cover them.

        Args:
            first: the first address of the prefix.
            length: the length of the prefix.
            around: the length of the innermost chosen prefix that covers it, or -1 if there is none.
        """
        if is_served(first, length, around):
            return 0, ()
        inner = part(first, length)
        # Any prefix larger than the smallest one that contains all segments has them all in one half.
        begin, end = max(first, firsts[inner.start]), min(first + _size(length) - 1, lasts[inner.stop - 1])
        length = 32 - (begin ^ end).bit_length()
        first = begin >> (32 - length) << (32 - length)
        is_covered = end - begin + 1 == _size(length) and gaps[inner.start] == gaps[inner.stop - 1]
        most = min(mosts[inner])
        is_usable = is_covered and min(lowest[inner]) < length <= most and (first, length) not in taken
        halves = (first, first + _size(length + 1))
        # If the cost is equal, the smaller prefix wins, which lies in one half. Addresses that cost nothing are
        # included.
        if (
            is_usable
            and max(aboves[inner]) < length
            and (most == 32 or not any(is_served(half, length + 1, around) for half in halves))
        ):
            return 1, ((first, length),)
        if length == 32:
            return _TOO_MUCH, ()
        without, found = _sum(cheapest(half, length + 1, around) for half in halves)
        if is_usable and without > 1:
            price, more = _sum(cheapest(half, length + 1, length) for half in halves)
            if price + 1 < without:
                return price + 1, ((first, length), *more)
        return without, found

    return list(map(IPv4Network, cheapest(0, 0, -1)[1]))


def _sum(halves: Iterable[tuple[int, tuple[Prefix, ...]]]) -> tuple[int, tuple[Prefix, ...]]:
    prices, found = zip(*halves, strict=True)
    return sum(prices), tuple(chain.from_iterable(found))


def _size(length: int) -> int:
    return 1 << 32 >> length


class AdjacentIntervals:
    """The local and broadcast addresses, which count as part of the failures next to them.

    Args:
        intervals: the intervals that contain these addresses.
    """

    def __init__(self, intervals: Iterable[Interval]) -> None:
        self._by_first = {interval.first: interval for interval in intervals}
        self._by_last = {interval.last: interval for interval in self._by_first.values()}

    def around(self, failing: Iterable[Interval]) -> list[IPv4Network]:
        """Return a few prefixes that show where a failure is."""
        segments: dict[int, Segment] = {}
        for interval in failing:
            segments[interval.first] = Segment(interval.first, interval.last, is_target=True)
            for each in self._adjacent(interval):
                segments.setdefault(each.first, Segment(each.first, each.last, is_target=False))
        return fewest_prefixes([segments[first] for first in sorted(segments)])

    def _adjacent(self, interval: Interval) -> Iterator[Interval]:
        """Yield the intervals that adjoin an interval on either side without a gap."""
        first, last = interval.first, interval.last
        while before := self._by_last.get(first - 1):
            yield before
            first = before.first
        while behind := self._by_first.get(last + 1):
            yield behind
            last = behind.last
