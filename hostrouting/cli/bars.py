"""Bars: the addresses of a CIDR as coloured cells, and their legend."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network
from itertools import cycle
from typing import NamedTuple

from hostrouting.model.parsing import RESERVED
from hostrouting.overlap.findings import FindingKind, NoteKind


class CellKind(NamedTuple):
    """A kind of cell: what happens to packets to its addresses.

    Args:
        kind: the kind of finding or note; None: they leave through the uplinks.
        devs: the interfaces that shadow, and those that would do so next, sorted. Empty where they are many by nature:
            a veth for each pod, or a local address on each interface.
    """

    kind: str | None = None
    devs: tuple[str, ...] = ()


# The unexpected answers, each with its addresses.
Bar = list[tuple[CellKind, tuple[IPv4Network, ...]]]


def cells(cidr: IPv4Network, bar: Bar, count: int) -> tuple[CellKind | None, ...]:
    """Draw a CIDR as cells that are equal parts of it.

    If a cell has several answers, the worst one is drawn: a failure before a note before a fine one, and among equals
    the rarest in the bar. So a single failing address in a /12 is visible. A power of two makes each cell a prefix.

    Args:
        cidr: the CIDR to draw.
        bar: the CIDR's answers.
        count: the number of cells; if a CIDR has fewer addresses, each has several cells.

    Returns:
        The answer of each cell; None if none of its addresses is judged.
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
    """The paint of a cell.

    Args:
        symbol: one character, for outputs without colours.
        back: the background colour, one of a terminal's 256.
        meaning: a few words.
        ink: the colour of the symbol.
    """

    symbol: str
    back: int
    meaning: str
    ink: int = 16

    def on(self, text: str) -> str:
        """Return symbols as cells: solid, with only the middle symbol visible; copying them gets all."""
        middle = len(text) // 2
        parts = ((self.back, text[:middle]), (self.ink, text[middle]), (self.back, text[middle + 1 :]))
        return "".join(f"\x1b[48;5;{self.back};38;5;{ink}m{part}\x1b[0m" for ink, part in parts if part)


# Expected cells are calm, failures warm, notes cool or grey. Adjacent colours differ in lightness, not only in hue, and
# each has a symbol too: no reader has to tell red from green.
KINDS: dict[str | None, Paint] = {
    FindingKind.NO_ROUTE: Paint("N", 198, "no route"),
    FindingKind.BLACKHOLE: Paint("X", 196, "discarded"),
    NoteKind.LOCAL: Paint("o", 250, "own address"),
    NoteKind.BROADCAST: Paint("b", 244, "broadcast address"),
    NoteKind.CONTAINER: Paint("c", 140, "containers"),
    NoteKind.ALLOWED: Paint("+", 80, "allowed"),
    NoteKind.CNI_DISCARD: Paint("d", 189, "discarded by a CNI"),
}


# An H200 has eight InfiniBand interfaces; after those only the symbols differ, and after 21 only the words. N and X are
# taken.
_SYMBOLS, _BACKS = "ABCDEFGHIJKLMPQRSTUVW", (208, 220, 211, 137, 223, 169, 229, 173)


_NAMES = 4


def legend(drawn: Iterable[CellKind | None], default_devs: Sequence[str]) -> dict[CellKind | None, Paint]:
    """Give each answer its own symbol and colour, as long as there are any.

    Args:
        drawn: the answers in order of appearance.
        default_devs: the expected interfaces.

    Returns:
        The paint of each answer: the expected one first, then failures, notes and unjudged parts.
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
    """Return interfaces in a few words: ``ib0-ib7``."""
    runs = _runs(devs)
    shown = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(run) for run in runs[:_NAMES]]
    rest = sum(map(len, runs[_NAMES:]))
    return f"{','.join(shown)}{f' and {rest} more' if rest else ''}"


_NUMBERED = r"(?s)(.*\D)(0|[1-9][0-9]{0,8})"


def _runs(devs: Iterable[str]) -> list[list[str]]:
    """Group interfaces with consecutive numbers."""
    parts = [
        (match[1], int(match[2]), dev) if (match := re.fullmatch(_NUMBERED, dev)) else (dev, -1, dev) for dev in devs
    ]
    runs: dict[tuple[str, int], list[str]] = {}
    for position, (stem, number, dev) in enumerate(sorted(parts)):
        runs.setdefault((stem, number - position), []).append(dev)
    return list(runs.values())
