"""Draw bars, which show the addresses of a CIDR as coloured cells, with a legend."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network
from itertools import cycle
from typing import NamedTuple

from hostrouting.model.parsing import RESERVED
from hostrouting.overlap.findings import FindingKind, NoteKind


class CellKind(NamedTuple):
    """A kind of cell, which says what happens to packets to its addresses.

    Args:
        kind: the kind of finding or note, or None if the packets leave through the uplinks.
        devs: the interfaces that shadow the addresses, and those that would shadow them next, sorted. It is empty for
            kinds that usually have many, such as a veth for each pod or a local address on each interface.
    """

    kind: str | None = None
    devs: tuple[str, ...] = ()


# Each unexpected answer, with its addresses.
Bar = list[tuple[CellKind, tuple[IPv4Network, ...]]]


def cells(cidr: IPv4Network, bar: Bar, count: int) -> tuple[CellKind | None, ...]:
    """Draw a CIDR as cells, each of which stands for an equal part of it.

    If a cell contains several answers, the worst one is drawn: failures come before notes, and notes before expected
    answers. Among equals, the one with the fewest addresses in the bar is drawn. So a single failing address in a /12
    is visible. If the number of cells is a power of two, each cell is a prefix.

    Args:
        cidr: the CIDR to draw.
        bar: the CIDR's unexpected answers.
        count: the number of cells; if it exceeds the number of addresses, each address gets several cells.

    Returns:
        The answer that each cell shows, or None if none of its addresses is judged.
    """

    def rank(part: tuple[CellKind, tuple[IPv4Network, ...]]) -> tuple[bool, int]:
        answer, ranges = part
        return not isinstance(answer.kind, FindingKind), sum(network.num_addresses for network in ranges)

    judged = [cidr]
    for block in filter(cidr.supernet_of, RESERVED):
        judged = [
            part for each in judged for part in (each.address_exclude(block) if block.subnet_of(each) else [each])
        ]
    base, size = int(cidr.network_address), cidr.num_addresses
    drawn: list[CellKind | None] = [None] * count
    for answer, ranges in reversed((*sorted(bar, key=rank), (CellKind(), judged))):
        for network in ranges:
            begin = (int(network.network_address) - base) * count // size
            end = ((int(network.broadcast_address) - base + 1) * count - 1) // size + 1
            drawn[begin:end] = [answer] * (end - begin)
    return tuple(drawn)


class Paint(NamedTuple):
    """The appearance of a cell.

    Args:
        symbol: a single character, for outputs without colours.
        back: the background colour, one of a terminal's 256 colours.
        meaning: a short explanation for the legend.
        ink: the colour of the symbol.
    """

    symbol: str
    back: int
    meaning: str
    ink: int = 16

    def on(self, text: str) -> str:
        """Return text as cells in one solid colour, of which only the middle character is visible.

        If the cells are copied, all of the text is copied.
        """
        middle = len(text) // 2
        parts = ((self.back, text[:middle]), (self.ink, text[middle]), (self.back, text[middle + 1 :]))
        return "".join(f"\x1b[48;5;{self.back};38;5;{ink}m{part}\x1b[0m" for ink, part in parts if part)


# Expected cells have calm colours, failures warm ones, and notes cool colours or grey. Adjacent colours differ in
# lightness, not only in hue, and each has a symbol too, so no reader has to tell red from green.
KINDS: dict[str | None, Paint] = {
    FindingKind.NO_ROUTE: Paint("N", 198, "no route"),
    FindingKind.BLACKHOLE: Paint("X", 196, "discarded"),
    NoteKind.LOCAL: Paint("o", 250, "own address"),
    NoteKind.BROADCAST: Paint("b", 244, "broadcast address"),
    NoteKind.CONTAINER: Paint("c", 140, "containers"),
    NoteKind.ALLOWED: Paint("+", 80, "allowed"),
    NoteKind.CNI_DISCARD: Paint("d", 189, "discarded by a CNI"),
}


# An H200 has eight InfiniBand interfaces. For more answers than that only the symbols differ, and for more than 21 only
# the texts. N and X are used by other kinds.
_SYMBOLS, _BACKS = "ABCDEFGHIJKLMPQRSTUVW", (208, 220, 211, 137, 223, 169, 229, 173)


_NAMES = 4


def legend(drawn: Iterable[CellKind | None], default_devs: Sequence[str]) -> dict[CellKind | None, Paint]:
    """Give each answer its own symbol and colour while there are unused ones.

    Args:
        drawn: the answers, in the order in which they appear.
        default_devs: the expected interfaces.

    Returns:
        The paint of each answer: first the expected answer, then failures, notes and parts that aren't judged.
    """
    answers = dict.fromkeys(drawn)
    paints: dict[CellKind | None, Paint] = {}
    if CellKind() in answers:
        paints[CellKind()] = Paint("·", 24, f"{dev_words(default_devs)} expected", ink=67)
    shadows = [each for each in answers if each and each.kind is FindingKind.OVERLAP]
    for each, symbol, back in zip(shadows, cycle(_SYMBOLS), cycle(_BACKS)):
        paints[each] = Paint(symbol, back, f"{dev_words(each.devs)} shadow".lstrip())
    paints |= {CellKind(kind): paint for kind, paint in KINDS.items() if CellKind(kind) in answers}
    if None in answers:
        paints[None] = Paint("_", 236, "not judged", ink=240)
    return paints


def dev_words(devs: Sequence[str]) -> str:
    """Return a short text for a list of interfaces, such as ``ib0-ib7``."""
    runs = _runs(devs)
    shown = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(run) for run in runs[:_NAMES]]
    rest = sum(map(len, runs[_NAMES:]))
    return f"{','.join(shown)}{f' and {rest} more' if rest else ''}"


_NUMBERED = r"(?s)(.*\D)(0|[1-9][0-9]{0,8})"


def _runs(devs: Iterable[str]) -> list[list[str]]:
    """Group interfaces whose names end in consecutive numbers."""
    parts = [
        (match[1], int(match[2]), dev) if (match := re.fullmatch(_NUMBERED, dev)) else (dev, -1, dev) for dev in devs
    ]
    runs: dict[tuple[str, int], list[str]] = {}
    for position, (stem, number, dev) in enumerate(sorted(parts)):
        runs.setdefault((stem, number - position), []).append(dev)
    return list(runs.values())
