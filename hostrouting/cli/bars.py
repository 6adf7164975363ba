"""Draw a CIDR as a bar of coloured cells, with a legend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, groupby
from typing import Any, NamedTuple

from hostrouting.model.family import Family, IpNetwork
from hostrouting.model.parsing import is_inside, reserved_blocks
from hostrouting.model.text import clean, shortened
from hostrouting.overlap.findings import FindingKind, NoteKind


class CellKind(NamedTuple):
    """The result for a cell's addresses: whether packets to them leave as expected.

    Args:
        kind: the kind of the finding or note; None if packets leave through the uplinks.
        devs: the interfaces that shadow the addresses now, or would after a removal of the
            shadowing routes, sorted. Empty for kinds that usually involve many interfaces, such as
            pods with a veth each.
    """

    kind: str | None = None
    devs: tuple[str, ...] = ()


# The number of cells in a bar, if they fit next to the label.
_CELLS = 64

# For each kind of cell, the ranges of the CIDR's addresses of this kind. Addresses that leave as
# expected are left out.
Bar = list[tuple[CellKind, tuple[IpNetwork, ...]]]


def cells(cidr: IpNetwork, bar: Bar, count: int) -> tuple[CellKind | None, ...]:
    """Split a CIDR into equal cells, and return the kind of each.

    For a cell with addresses of several kinds, the worst kind is drawn. A failure is worse than a
    note, and a note is worse than an expected address. Between two kinds of failures or of notes,
    the kind with fewer addresses in the bar is drawn. So a single failing address in a /12 is
    visible. If the number of cells is a power of two, each cell is a prefix.

    Args:
        cidr: the CIDR to draw.
        bar: for each unexpected kind, the ranges of its addresses.
        count: the number of cells. If there are more cells than addresses, each address gets
            several cells.

    Returns:
        The kind of each cell, or None for a cell without checked addresses.
    """
    base = int(cidr.network_address)
    size = cidr.num_addresses
    drawn: list[CellKind | None] = [None] * count
    worst_first = [*sorted(bar, key=_rank), (CellKind(), _judged_parts(cidr))]
    for cell, ranges in reversed(worst_first):
        for network in ranges:
            begin = (int(network.network_address) - base) * count // size
            end = ((int(network.broadcast_address) - base + 1) * count - 1) // size + 1
            drawn[begin:end] = [cell] * (end - begin)
    return tuple(drawn)


def _rank(part: tuple[CellKind, tuple[IpNetwork, ...]]) -> tuple[bool, int]:
    """Return a sort key that puts the worst kind first."""
    cell, ranges = part
    addresses = sum(network.num_addresses for network in ranges)
    return not isinstance(cell.kind, FindingKind), addresses


def _judged_parts(cidr: IpNetwork) -> tuple[IpNetwork, ...]:
    """Return the parts of a CIDR that a check judges: all except reserved blocks."""
    parts: list[Any] = [cidr]
    for block in reserved_blocks(Family.of(cidr)):
        if is_inside(block, cidr):
            parts = [rest for part in parts for rest in _without(block, part)]
    return tuple(parts)


def _without(block: Any, part: Any) -> Iterable[IpNetwork]:
    return part.address_exclude(block) if block.subnet_of(part) else (part,)


class Paint(NamedTuple):
    """The appearance of a cell.

    Args:
        symbol: a single character, for output without colours.
        back: the background colour, as an index into the 256-colour palette.
        meaning: a short explanation for the legend.
        ink: the colour of the symbol.
    """

    symbol: str
    back: int
    meaning: str
    ink: int = 16

    def on(self, text: str) -> str:
        """Return text that fills cells of one colour. Only its middle character is visible.

        If a user copies the cells from the terminal, the copy contains the whole text.
        """
        middle = len(text) // 2
        left = text[:middle]
        right = text[middle + 1 :]
        return (
            self._coloured(left, self.back)
            + self._coloured(text[middle], self.ink)
            + self._coloured(right, self.back)
        )

    def _coloured(self, text: str, ink: int) -> str:
        return f"\x1b[48;5;{self.back};38;5;{ink}m{text}\x1b[0m" if text else ""


# Expected cells have muted colours, failures warm ones, and notes cool colours or grey.
# Colour-blind readers can distinguish the cells: adjacent colours also differ in lightness, and
# each cell has a symbol.
KINDS: dict[str | None, Paint] = {
    FindingKind.NO_ROUTE: Paint("N", 198, "no route"),
    FindingKind.BLACKHOLE: Paint("X", 196, "discarded"),
    FindingKind.GATEWAY: Paint("@", 202, "gateway is this host"),
    FindingKind.PORT: Paint("%", 203, "through a port"),
    NoteKind.LOCAL: Paint("o", 250, "own address"),
    NoteKind.BROADCAST: Paint("b", 244, "broadcast address"),
    NoteKind.CONTAINER: Paint("c", 140, "containers"),
    NoteKind.ALLOWED: Paint("+", 80, "allowed"),
    NoteKind.CNI_DISCARD: Paint("d", 189, "discarded by a CNI"),
}


# Symbols and colours for the cells of each unexpected interface, or of several that share a route.
# An H200 has eight InfiniBand interfaces. If a host has more interfaces than colours or symbols,
# these repeat. N, O and X are left out, because ``KINDS`` has N, o and X.
_SYMBOLS = "ABCDEFGHIJKLMPQRSTUVW"
_BACKS = (208, 220, 211, 137, 223, 169, 229, 173)


# The most interfaces that are named: enough for the InfiniBand interfaces of an H200.
_NAMES = 8


def legend(
    drawn: Iterable[CellKind | None],
    default_devs: Sequence[str],
    meanings: tuple[str, str] = ("expected", "shadow"),
) -> dict[CellKind | None, Paint]:
    """Assign a symbol and a colour to each kind of cell. If there are too few, they repeat.

    Args:
        drawn: the kinds of the cells, in the order in which they appear.
        default_devs: the interfaces that the CIDRs are expected on.
        meanings: the legend's word for expected interfaces, and its word for other interfaces.

    Returns:
        The paint of each kind, in this order: expected cells, failures, notes, unchecked cells.
    """
    seen = dict.fromkeys(drawn)
    paints: dict[CellKind | None, Paint] = {}
    if CellKind() in seen:
        meaning = f"{dev_words(default_devs)} {meanings[0]}".lstrip()
        paints[CellKind()] = Paint("·", 24, meaning, ink=67)
    shadows = [each for each in seen if each and each.kind is FindingKind.OVERLAP]
    for each, symbol, back in zip(shadows, cycle(_SYMBOLS), cycle(_BACKS)):
        paints[each] = Paint(symbol, back, f"{dev_words(each.devs)} {meanings[1]}".strip())
    for kind, paint in KINDS.items():
        if CellKind(kind) in seen:
            paints[CellKind(kind)] = paint
    if None in seen:
        paints[None] = Paint("_", 236, "not judged", ink=240)
    return paints


def legend_lines(paints: Mapping[CellKind | None, Paint]) -> list[str]:
    """Return a line for each paint, with its meaning."""
    used = dict.fromkeys(paints.values())
    return [f"  {paint.on(f' {paint.symbol} ')} {clean(paint.meaning)}" for paint in used]


def dev_words(devs: Sequence[str]) -> str:
    """Return words for a list of interfaces: the first ones, and the number of the others."""
    return shortened(devs, ",", _NAMES)


def bar_text(line: Iterable[CellKind | None], paints: dict[CellKind | None, Paint]) -> str:
    """Return a line of cells as text with colours."""
    parts = ((paints[cell], len(list(same))) for cell, same in groupby(line))
    return "".join(paint.on(paint.symbol * length) for paint, length in parts)


def cells_in(columns: int | None, label: int) -> int:
    """Return how many cells fit next to a label: a power of two, because each cell is a prefix."""
    count = _CELLS
    while columns is not None and columns - label - len("✗   ") < count > 8:
        count //= 2
    return count
