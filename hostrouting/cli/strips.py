"""Pure: an expected CIDR as a strip of coloured cells, and the legend of several."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from hostrouting.overlap.findings import FindingKind, NoteKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostrouting.overlap.findings import JudgedCidr, Segment

# Where the interfaces are the news. One veth for each pod, or an own address on each interface, is none.
_KINDS_BY_DEVICE = (FindingKind.OVERLAP, NoteKind.ALLOWED)


class Answer(NamedTuple):
    """What becomes of packets, as far as a strip tells it apart.

    Args:
        kind: of the finding or note; None: they leave by the default route's interfaces.
        is_failure: whether it is a finding's.
        devs: what they leave by, sorted, where the kind alone doesn't say it.
    """

    kind: str | None = None
    is_failure: bool = False
    devs: tuple[str, ...] = ()


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
    addresses: Counter[Answer] = Counter()
    for segment in strip.segments:
        addresses[answer_of(segment)] += segment.num_addresses
    weight = {each: (each.is_failure, each.kind is not None, -number) for each, number in addresses.items()}
    drawn: list[Answer | None] = [None] * count
    for segment in strip.segments:
        answer = answer_of(segment)
        begin = (int(segment.first) - base) * count // size
        end = ((int(segment.last) - base + 1) * count - 1) // size
        for number in range(begin, end + 1):
            present = drawn[number]
            if present is None or weight[answer] > weight[present]:
                drawn[number] = answer
    return tuple(drawn)


class Paint(NamedTuple):
    """How an answer is drawn.

    Args:
        symbol: one character, for what has no colours.
        back: the colour of the cell, of a terminal's 256.
        meaning: in a few words.
        ink: the colour of the symbol.
    """

    symbol: str
    back: int
    meaning: str
    ink: int = 16

    def on(self, text: str) -> str:
        """Symbols as cells: solid, with one to be seen in the middle; who copies them gets all."""
        middle = len(text) // 2
        parts = ((self.back, text[:middle]), (self.ink, text[middle]), (self.back, text[middle + 1 :]))
        return "".join(f"\x1b[48;5;{self.back};38;5;{ink}m{part}\x1b[0m" for ink, part in parts if part)


# What is expected is calm, failures are warm, notes cool or grey. Neighbours differ in lightness, not in hue alone,
# and each has a symbol besides: nobody has to tell red from green.
_FIXED: dict[str | None, Paint] = {
    FindingKind.NO_ROUTE: Paint("N", 198, "no route"),
    FindingKind.BLACKHOLE: Paint("X", 196, "discarded"),
    NoteKind.LOCAL: Paint("o", 250, "own address"),
    NoteKind.BROADCAST: Paint("b", 244, "broadcast address"),
    NoteKind.CONTAINER: Paint("c", 140, "containers"),
    NoteKind.CNI_DISCARD: Paint("d", 189, "discarded by a CNI"),
}
# An H200 has eight InfiniBand interfaces; beyond those only the symbols differ. N and X mean something.
_SHADOWS = "ABCDEFGHIJKLMPQRSTUVW", (208, 220, 211, 137, 223, 169, 229, 173), Paint("*", 173, "other shadows")
_ALLOWED = "123456789", (80, 37, 152), Paint("+", 152, "other notes")
_NAMES = 4


def legend(drawn: Iterable[Answer | None], default_devs: Sequence[str]) -> dict[Answer | None, Paint]:
    """Give each answer a symbol and a colour of its own, as long as there are any.

    Args:
        drawn: the answers in the order in which they appear.
        default_devs: the expected interfaces.

    Returns:
        For each of them how it is drawn: what is expected first, then failures, notes and what isn't judged.
    """
    answers = dict.fromkeys(drawn)
    paints: dict[Answer | None, Paint] = {}
    if Answer() in answers:
        paints[Answer()] = Paint("·", 24, _words(default_devs, "expected"), ink=67)
    for is_failure, (symbols, backs, other) in ((True, _SHADOWS), (False, _ALLOWED)):
        special = [each for each in answers if each and each.kind is not None and each.is_failure is is_failure]
        named = [each for each in special if each.kind not in _FIXED]
        for number, each in enumerate(named):
            meaning = _words(each.devs, "shadow" if is_failure else str(each.kind).lower())
            back = backs[number % len(backs)]
            paints[each] = Paint(symbols[number], back, meaning) if number < len(symbols) else other
        paints |= {each: _FIXED[each.kind] for each in special if each.kind in _FIXED}
    if None in answers:
        paints[None] = Paint("_", 236, "not judged", ink=240)
    return paints


def _words(devs: Sequence[str], meaning: str) -> str:
    rest = len(devs) - _NAMES
    names = ",".join(devs[:_NAMES]) + (f" and {rest} more" if rest > 0 else "")
    return f"{names} {meaning}".lstrip()
