"""Pure: the fewest prefixes that cover some addresses, where of the prefixes around an address the longest counts.

So a prefix may cover what a longer one holds, and may have others in it::

    172.16.0.0/16    dev ib0     to be covered by what is longer than /16
    172.16.1.0/24    dev eth0    stays what it is below anything shorter than /24
    172.16.2.0/24    dev ib1     to be covered by what is longer than /24
    fewest                       172.16.0.0/17 172.16.128.0/17, and within the first 172.16.2.0/25 172.16.2.128/25

From the leaves of the binary trie to its root, each node learns how many prefixes it costs, by how long the innermost
one around it is; from the root down, the cheapest are taken.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Network
from itertools import accumulate
from typing import NamedTuple

import attrs

from hostrouting.model.prefixes import Prefix
from hostrouting.overlap._coverage import Tile

# What it costs to leave out addresses that could be covered: more than any number of prefixes.
_TOO_MUCH = 1 << 40


class Piece(NamedTuple):
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


def fewest_prefixes(pieces: Sequence[Piece], taken: Container[Prefix] = ()) -> list[IPv4Network]:
    """Cover the targets with as few prefixes as possible.

    Of several ways to do so it is the one that covers the least, own and broadcast addresses and whatever else any
    prefix may cover aside.

    Args:
        pieces: in the order of their addresses; what none of them covers isn't to be covered.
        taken: prefixes that can't be used.

    Returns:
        The prefixes in the order of their addresses, each before those in it.
    """
    if not pieces:
        return []
    trie = _Trie(pieces, taken)
    trie.take(trie.node(0, 0, 0, len(pieces)), -1)
    return trie.found


@attrs.define(slots=True, eq=False)
class _Node:
    """A prefix, and what its targets need.

    Args:
        first: its first address.
        length: its length.
        start: the position of the first piece that meets it.
        stop: the position behind the last one.
        most: the least of theirs.
        is_usable: whether it may be one of those that are looked for.
        cost: of the prefixes in it, whatever is around it.
        needs: what must be spent in addition, unless a prefix that is longer than the key covers it.
        halves: none if they haven't been looked at, as nothing in the prefix needs more than the prefix itself.
    """

    first: int
    length: int
    start: int
    stop: int
    most: int
    is_usable: bool
    cost: int = 0
    needs: Mapping[int, int] = attrs.field(factory=dict)
    halves: tuple[_Node, ...] = ()

    @property
    def asks(self) -> Mapping[int, int]:
        """``needs``, where the prefix itself may serve them all at the price of one."""
        return {max(self.needs): 1} if self.is_usable and self.needs else self.needs


class _Trie:
    def __init__(self, pieces: Sequence[Piece], taken: Container[Prefix]) -> None:
        self.found: list[IPv4Network] = []
        self._pieces, self._taken = pieces, taken
        self._lasts = [piece.last for piece in pieces]
        self._mosts = [piece.most for piece in pieces]
        self._aboves = [piece.above if piece.is_target else -2 for piece in pieces]
        # How many pieces up to this one don't go on where the one before ends.
        gaps = (piece.first != last + 1 for piece, last in zip(pieces, [-1, *self._lasts], strict=False))
        self._gaps = list(accumulate(gaps))

    def node(self, first: int, length: int, start: int, stop: int) -> _Node:
        """The smallest prefix around what some pieces have in common with a prefix.

        Args:
            first: the prefix's first address.
            length: its length.
            start: the position of the first piece that meets it.
            stop: the position behind the last one.
        """
        begin = max(first, self._pieces[start].first)
        end = min(first + _size(length) - 1, self._lasts[stop - 1])
        # Of what is shorter, the pieces don't cover a half.
        length = 32 - (begin ^ end).bit_length()
        first = begin >> (32 - length) << (32 - length)
        is_covered = end - begin + 1 == _size(length) and self._gaps[start] == self._gaps[stop - 1]
        most, above = min(self._mosts[start:stop]), max(self._aboves[start:stop])
        is_usable = is_covered and length <= most and (first, length) not in self._taken
        node = _Node(first, length, start, stop, most, is_usable)
        if above == -2:
            return node
        if above < length and is_usable:
            node.needs = {above: 1}
            return node
        if length == 32:
            node.is_usable, node.needs = False, {above: _TOO_MUCH}
            return node
        return self._with_halves(node)

    def _with_halves(self, node: _Node) -> _Node:
        length = node.length + 1
        middle = node.first + _size(length)
        right = bisect_left(self._lasts, middle, node.start, node.stop)
        is_cut = self._pieces[right].first < middle
        node.halves = (
            self.node(node.first, length, node.start, right + is_cut),
            self.node(middle, length, right, node.stop),
        )
        needs: dict[int, int] = {}
        for half in node.halves:
            node.cost += half.cost
            for above, more in half.asks.items():
                if above < node.length:
                    needs[above] = needs.get(above, 0) + more
                else:  # neither this prefix nor one around it is long enough
                    node.cost += more
        node.needs = needs
        return node

    def take(self, node: _Node, around: int) -> None:
        """Find the prefixes of a node.

        Args:
            node: the node.
            around: the length of the innermost prefix that was taken around it; -1: none.
        """
        if not node.needs and not node.cost:
            return
        # At the same price the smaller one is in a half; what is free is rather taken along.
        is_free = node.most == 32 and not node.cost
        if node.is_usable and not node.halves and not is_free and node.length < 32 and max(node.needs) >= around:
            self._with_halves(node)
        missing = sum(more for above, more in node.needs.items() if above >= around)
        if node.is_usable and (missing > 1 or (missing and is_free)):
            self.found.append(IPv4Network((node.first, node.length)))
            around = node.length
        for half in node.halves:
            self.take(half, around)


def _size(length: int) -> int:
    return 1 << (32 - length)


class Neighbours:
    """Own and broadcast addresses, which are noted: they count as part of the failures beside them.

    Args:
        tiles: theirs.
    """

    def __init__(self, tiles: Iterable[Tile]) -> None:
        self._by_first = {tile.first: tile for tile in tiles}
        self._by_last = {tile.last: tile for tile in self._by_first.values()}

    def around(self, failing: Iterable[Tile]) -> list[IPv4Network]:
        """Where a failure is, in a few prefixes."""
        pieces: dict[int, Piece] = {}
        for tile in failing:
            pieces[tile.first] = Piece(tile.first, tile.last, is_target=True)
            for each in self._beside(tile):
                pieces.setdefault(each.first, Piece(each.first, each.last, is_target=False))
        return fewest_prefixes([pieces[first] for first in sorted(pieces)])

    def _beside(self, tile: Tile) -> Iterator[Tile]:
        """Those that lead up to some addresses without a gap, and those that lead on."""
        first, last = tile.first, tile.last
        while before := self._by_last.get(first - 1):
            yield before
            first = before.first
        while behind := self._by_first.get(last + 1):
            yield behind
            last = behind.last
