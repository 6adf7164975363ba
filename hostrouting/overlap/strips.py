"""Pure: an expected CIDR as a strip of segments that have the same answer each, and as the cells that a picture has."""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from ipaddress import IPv4Network

    from hostrouting.overlap.coverage import Tiling
    from hostrouting.overlap.judge import Outcome

__all__ = ["Answer", "Segment", "Strip", "cells", "runs", "strip_of"]

# Where the interfaces are the news. One veth for each pod, or an own address on each interface, is none.
_KINDS_BY_DEVICE = ("OVERLAP", "ALLOWED")


@attrs.frozen
class Answer:
    """What becomes of packets, as far as a picture tells it apart.

    Args:
        kind: of the finding or note; None: they leave by the default route's interfaces.
        is_failure: whether it is a finding's.
        devs: what they leave by, sorted, where the kind alone doesn't say it.
    """

    kind: str | None = None
    is_failure: bool = False
    devs: tuple[str, ...] = ()

    @property
    def is_fine(self) -> bool:
        """Whether packets leave by the default route's interfaces."""
        return self.kind is None


@attrs.frozen
class Segment:
    """A part of a CIDR in which every address has the same answer.

    Args:
        first: its first address.
        last: its last address.
        kind: of the finding or note; None: it leaves by the default route's interfaces.
        is_failure: whether the kind is a finding's.
        devs: what it leaves by, sorted; none where it doesn't leave.
    """

    first: IPv4Address
    last: IPv4Address
    kind: str | None = None
    is_failure: bool = False
    devs: tuple[str, ...] = ()

    @property
    def answer(self) -> Answer:
        """What the segment is drawn as."""
        return Answer(self.kind, self.is_failure, self.devs if self.kind in _KINDS_BY_DEVICE else ())

    @property
    def num_addresses(self) -> int:
        """How many addresses it has."""
        return int(self.last) - int(self.first) + 1


@attrs.frozen
class Strip:
    """An expected CIDR, cut where the answer changes.

    Args:
        cidr: masked.
        segments: in order; together they are the CIDR but for the parts that aren't judged.
    """

    cidr: IPv4Network
    segments: tuple[Segment, ...]

    @property
    def is_fine(self) -> bool:
        """Whether every address that is judged leaves by the default route's interfaces."""
        return all(segment.kind is None for segment in self.segments)


def strip_of(cidr: IPv4Network, tiling: Tiling, outcomes: Mapping[IPv4Address, Outcome]) -> Strip:
    """A CIDR with what the kernel's answers for it mean; tiles side by side that mean the same are one segment.

    Args:
        cidr: one of the tiling's.
        tiling: of whole CIDRs.
        outcomes: of ``sort_answers``.
    """
    segments: list[Segment] = []
    first, last, said = 0, -1, None
    for tile in tiling.of(cidr):
        outcome = outcomes[tile.question]
        says = (outcome.kind, outcome.is_failure, outcome.devs)
        if said is not None and (says != said or tile.first != last + 1):
            segments.append(Segment(IPv4Address(first), IPv4Address(last), *said))
            said = None
        if said is None:
            first, said = tile.first, says
        last = tile.last
    if said is not None:
        segments.append(Segment(IPv4Address(first), IPv4Address(last), *said))
    return Strip(cidr, tuple(segments))


def cells(strip: Strip, count: int) -> tuple[Answer | None, ...]:
    """Draw a strip into cells that are equal parts of its CIDR.

    Where a cell has several answers, the worst is drawn: a failure before a note before what is fine, and among those
    the rarest in the strip. So a single failing address in a /12 is seen. A power of two makes each cell a prefix.

    Args:
        strip: what to draw.
        count: how many cells; a CIDR of fewer addresses has several cells for each.

    Returns:
        The answer of each cell; None where none of its addresses is judged.
    """
    base, size = int(strip.cidr.network_address), strip.cidr.num_addresses
    answers = [segment.answer for segment in strip.segments]
    addresses: Counter[Answer] = Counter()
    for segment, answer in zip(strip.segments, answers, strict=True):
        addresses[answer] += segment.num_addresses
    weight = {answer: (answer.is_failure, not answer.is_fine, -number) for answer, number in addresses.items()}
    drawn: list[Answer | None] = [None] * count
    for segment, answer in zip(strip.segments, answers, strict=True):
        begin = (int(segment.first) - base) * count // size
        end = ((int(segment.last) - base + 1) * count - 1) // size
        for number in range(begin, end + 1):
            present = drawn[number]
            if present is None or weight[answer] > weight[present]:
                drawn[number] = answer
    return tuple(drawn)


def runs(drawn: tuple[Answer | None, ...]) -> tuple[tuple[int, int, Answer | None], ...]:
    """Cells side by side with the same answer, as (first cell, number of cells, answer), in order."""
    found: list[tuple[int, int, Answer | None]] = []
    for number, answer in enumerate(drawn):
        if found and found[-1][2] == answer:
            first, length, _ = found[-1]
            found[-1] = (first, length + 1, answer)
        else:
            found.append((number, 1, answer))
    return tuple(found)
