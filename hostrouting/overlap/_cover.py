"""Pure: the fewest prefixes that cover some addresses, where of the prefixes around an address the longest counts.

So a prefix may cover what a longer one holds, and may have others in it::

    172.16.0.0/16    dev ib0     to be covered by what is longer than /16
    172.16.1.0/24    dev eth0    stays what it is below anything shorter than /24
    172.16.2.0/24    dev ib1     to be covered by what is longer than /24
    fewest                       172.16.0.0/17 172.16.128.0/17, and within the first 172.16.2.0/25 172.16.2.128/25

Each prefix of the binary trie costs what its halves cost, or one more than they cost once it is taken itself.
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

# What it costs to leave out addresses that could be covered: more than any number of prefixes.
_TOO_MUCH = 1 << 40


class Segment(NamedTuple):
    """Consecutive addresses, and what they ask of the prefixes that cover them.

    Args:
        first: the first address, as a number.
        last: the last one.
        is_target: whether it shall be covered, if it can be, by a prefix that is longer than ``above``.
        above: shorter prefixes may cover it too, and do nothing for it; -1: there are none.
        most: no longer prefix may cover it; -1: none may.
    """

    first: int
    last: int
    is_target: bool
    above: int = -1
    most: int = 32


def fewest_prefixes(segments: Sequence[Segment], taken: Container[Prefix] = ()) -> list[IPv4Network]:
    """Cover the targets with as few prefixes as possible.

    Of several ways to do so it is the one that covers the least, own and broadcast addresses and whatever else any
    prefix may cover aside.

    Args:
        segments: in the order of their addresses; what none of them covers isn't to be covered.
        taken: prefixes that can't be used.

    Returns:
        The prefixes in the order of their addresses, each before those in it.
    """
    firsts, lasts = [segment.first for segment in segments], [segment.last for segment in segments]
    mosts = [segment.most for segment in segments]
    # Whatever is around serves what is no target, and what is longer than 32 would be needed to serve it.
    aboves = [segment.above if segment.is_target else -2 for segment in segments]
    lowest = [segment.above if segment.is_target else 32 for segment in segments]
    # How many segments up to this one don't go on where the one before ends.
    gaps = list(accumulate(first != last + 1 for first, last in zip(firsts, [-1, *lasts], strict=False)))

    def part(first: int, length: int) -> slice:
        return slice(bisect_left(lasts, first), bisect_left(firsts, first + _size(length)))

    def is_served(first: int, length: int, around: int) -> bool:
        return max(aboves[part(first, length)], default=-2) < around

    @cache
    def cheapest(first: int, length: int, around: int) -> tuple[int, tuple[Prefix, ...]]:
        """Return what the targets in a prefix cost, and what to take for them.

        Args:
            first: the prefix's first address.
            length: its length.
            around: the length of the innermost prefix that is taken around it; -1: none.
        """
        if is_served(first, length, around):
            return 0, ()
        inner = part(first, length)
        # Of what is shorter than the smallest prefix around the segments, they don't cover a half.
        begin, end = max(first, firsts[inner.start]), min(first + _size(length) - 1, lasts[inner.stop - 1])
        length = 32 - (begin ^ end).bit_length()
        first = begin >> (32 - length) << (32 - length)
        is_covered = end - begin + 1 == _size(length) and gaps[inner.start] == gaps[inner.stop - 1]
        most = min(mosts[inner])
        is_usable = is_covered and min(lowest[inner]) < length <= most and (first, length) not in taken
        halves = (first, first + _size(length + 1))
        # At the same price the smaller one is taken, which is in a half; what is free is rather taken along.
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
    """Own and broadcast addresses, which are noted: they count as part of the failures beside them.

    Args:
        intervals: theirs.
    """

    def __init__(self, intervals: Iterable[Interval]) -> None:
        self._by_first = {interval.first: interval for interval in intervals}
        self._by_last = {interval.last: interval for interval in self._by_first.values()}

    def around(self, failing: Iterable[Interval]) -> list[IPv4Network]:
        """Return where a failure is, in a few prefixes."""
        segments: dict[int, Segment] = {}
        for interval in failing:
            segments[interval.first] = Segment(interval.first, interval.last, is_target=True)
            for each in self._adjacent(interval):
                segments.setdefault(each.first, Segment(each.first, each.last, is_target=False))
        return fewest_prefixes([segments[first] for first in sorted(segments)])

    def _adjacent(self, interval: Interval) -> Iterator[Interval]:
        """Yield the intervals that lead up to an interval without a gap, and those that lead on from it."""
        first, last = interval.first, interval.last
        while before := self._by_last.get(first - 1):
            yield before
            first = before.first
        while behind := self._by_first.get(last + 1):
            yield behind
            last = behind.last
