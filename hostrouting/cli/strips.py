"""Pure: an expected CIDR as the cells that a picture of it has."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from hostrouting.overlap.findings import JudgedCidr, Segment

__all__ = ["Answer", "answer_of", "cells", "runs"]

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


def answer_of(segment: Segment) -> Answer:
    """What a segment is drawn as."""
    return Answer(segment.kind, segment.is_failure, segment.devs if segment.kind in _KINDS_BY_DEVICE else ())


def cells(strip: JudgedCidr, count: int) -> tuple[Answer | None, ...]:
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
    answers = [answer_of(segment) for segment in strip.segments]
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
