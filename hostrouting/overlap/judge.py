"""Pure: what the answers mean -> what leaves by a wrong interface, and what is worth a note.

Tiles of a CIDR whose outcomes are alike are told of together.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING

from hostrouting.kernel.rules import is_about_other_packets
from hostrouting.model.routes import Table
from hostrouting.model.text import shortened
from hostrouting.overlap.cover import Piece, fewest_prefixes
from hostrouting.overlap.coverage import networks_of
from hostrouting.overlap.findings import Finding, FindingKind, JudgedCidr, Note, NoteKind, Segment
from hostrouting.overlap.reading import pending_devs

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from hostrouting.config.overlap import ExpectedCidr, RouteOverlap
    from hostrouting.overlap.coverage import Tile, Tiling
    from hostrouting.overlap.outcomes import Outcome, Outcomes
    from hostrouting.overlap.reading import Reading


# A line is for people; all of them are in the report's lists.
_SHOWN_NETWORKS, _SHOWN_DEVS = 16, 8


def judge(
    overlap: RouteOverlap, reading: Reading, outcomes: Mapping[ExpectedCidr, Outcomes]
) -> tuple[tuple[Finding, ...], tuple[Note, ...]]:
    """Tell of the failures and of what is worth a note.

    Args:
        overlap: the expected CIDRs.
        reading: the host.
        outcomes: of each, by ``sort_answers``.

    Returns:
        The failures in the order of the config, of one CIDR in that of their first addresses; and the notes.
    """
    findings: list[Finding] = []
    notes: list[Note] = []
    for expected, found in outcomes.items():
        tiles = reading.tiling.of(expected.cidr)
        for group in _groups(tiles, found):
            _, outcome = group[0]
            if outcome.is_failure:
                part = _about(tiles, found, outcome)
                findings.append(_finding(expected, group, reading.default.devs, part))
            else:
                notes.append(_note(expected.cidr, group))
        notes += _foreseen(expected.cidr, overlap.foreseen, reading, found)
    return tuple(findings), (*dict.fromkeys(notes), *_notes_on_host(reading))


# The tiles of which something is told together, each with the outcome that it is told for.
_Group = list[tuple["Tile", "Outcome"]]


def _groups(tiles: Iterable[Tile], outcomes: Outcomes) -> Iterable[_Group]:
    groups: dict[Hashable, _Group] = {}
    for tile in tiles:
        for outcome in outcomes[tile.question]:
            if outcome.kind is not None:
                groups.setdefault(outcome.group, []).append((tile, outcome))
    return groups.values()


def _about(tiles: Iterable[Tile], outcomes: Outcomes, failure: Outcome) -> Sequence[IPv4Network]:
    """Where a failure is, in a few prefixes: own and broadcast addresses, which are noted, count as part of it."""
    pieces = []
    for tile in tiles:
        found = outcomes[tile.question]
        is_target = any(outcome.group == failure.group for outcome in found)
        is_free = is_target or found[0].kind in (NoteKind.LOCAL, NoteKind.BROADCAST)
        pieces.append(Piece(tile.first, tile.last, is_target, most=32 if is_free else -1))
    return fewest_prefixes(pieces)


def _finding(
    expected: ExpectedCidr, group: _Group, default_devs: tuple[str, ...], part: Sequence[IPv4Network]
) -> Finding:
    tile, outcome = group[0]
    cidr, first = expected.cidr, IPv4Address(tile.first)
    devs = default_devs if expected.devs is None else expected.devs
    asked, via = f"expected CIDR {cidr} (probe {first})", f"expected via {','.join(devs)}"
    if outcome.kind is FindingKind.OVERLAP:
        message = f"OVERLAP: {asked} routes via {','.join(outcome.devs) or 'no device'}, expected {','.join(devs)}"
    elif outcome.kind is FindingKind.NO_ROUTE:
        message = f"NO-ROUTE: {asked} has no IPv4 route; {via}"
    else:
        types = {each.answer.lookup.discarded_by for _, each in group}
        words = ",".join(sorted(type_.name.lower() for type_ in types if type_ is not None))
        message = f"BLACKHOLE: {asked} is discarded by {words}; {via}"
    if (source := outcome.answer.source) is not None:
        message += f" for connections from {source}"
    if list(part) != [cidr]:
        message += f"; shadowed: {shortened(list(map(str, part)), ' ', _SHOWN_NETWORKS)}"
    if outcome.kind is not FindingKind.NO_ROUTE:
        message += f"; by {outcome.route or 'a policy rule'}"
    return Finding(
        kind=FindingKind(str(outcome.kind)),
        cidr=cidr,
        probe=first,
        devs=outcome.devs,
        expected_devs=devs,
        source=source,
        ranges=networks_of(tile for tile, _ in group),
        route=outcome.route,
        message=message,
    )


def _note(cidr: IPv4Network, group: _Group) -> Note:
    _, outcome = group[0]
    kind = NoteKind(str(outcome.kind))
    ranges = networks_of(tile for tile, _ in group)
    devs = tuple(sorted({dev for _, each in group for dev in each.devs}))
    by = shortened(devs, ",", _SHOWN_DEVS)
    part = _part(cidr, ranges)
    is_one = sum(network.num_addresses for network in ranges) == 1
    if kind in (NoteKind.LOCAL, NoteKind.BROADCAST):
        whose = "address of this host" if kind is NoteKind.LOCAL else "broadcast address"
        if is_one:
            what = f"is {'an' if kind is NoteKind.LOCAL else 'a'} {whose}"
        else:
            what = f"are {whose.replace('address', 'addresses', 1)}"
        message = f"{part} {what}{f' on {by}' if by else ''}; no route can change that"
        if outcome.is_lost:
            message += f", so nothing in the cluster that has {'this address' if is_one else 'one of them'}"
            message += " can be reached"
    elif kind is NoteKind.CNI_DISCARD:
        message = f"{part} is discarded by {outcome.route}, a CNI's own block"
    else:
        whose = "container" if kind is NoteKind.CONTAINER else "allowed"
        article = "an" if whose == "allowed" else "a"
        what = f"{article} {whose} interface" if len(devs) == 1 else f"{whose} interfaces"
        message = f"{part} routes via {by}, {what}"
    return Note(kind, message, cidr, devs, ranges)


def _part(cidr: IPv4Network, ranges: tuple[IPv4Network, ...]) -> str:
    if ranges == (cidr,):
        return f"expected CIDR {cidr}"
    return f"{shortened([str(network).removesuffix('/32') for network in ranges], ' ', _SHOWN_NETWORKS)} of {cidr}"


def judged_cidr(cidr: IPv4Network, tiling: Tiling, outcomes: Outcomes) -> JudgedCidr:
    """A CIDR with what the kernel's answers for it mean; tiles side by side that mean the same are one segment.

    Args:
        cidr: one of the tiling's.
        tiling: of the expected CIDRs.
        outcomes: of ``sort_answers``.
    """
    segments: list[Segment] = []
    first, last, said = 0, -1, None
    for tile in tiling.of(cidr):
        found = outcomes[tile.question]
        outcome = next((each for each in found if each.is_failure), found[0])
        says = (outcome.kind, outcome.is_failure, outcome.devs)
        if said is not None and (says != said or tile.first != last + 1):
            segments.append(Segment(IPv4Address(first), IPv4Address(last), *said))
            said = None
        if said is None:
            first, said = tile.first, says
        last = tile.last
    if said is not None:
        segments.append(Segment(IPv4Address(first), IPv4Address(last), *said))
    return JudgedCidr(cidr, tuple(segments))


def _foreseen(
    cidr: IPv4Network, foreseen: Sequence[IPv4Network], reading: Reading, outcomes: Outcomes
) -> Iterable[Note]:
    """What connected routes to the foreseen prefixes would shadow: all that no longer route of main protects."""
    for prefix in dict.fromkeys(foreseen):
        if not prefix.overlaps(cidr):
            continue
        first, last = int(prefix.network_address), int(prefix.broadcast_address)
        tiles = [
            tile
            for tile in reading.tiling.of(cidr)
            if first <= tile.first and tile.last <= last and _would_lose(outcomes[tile.question][0], prefix)
        ]
        if tiles:
            ranges = networks_of(tiles)
            message = f"{_part(cidr, ranges)} would be shadowed by a route to {prefix}, which is foreseen"
            yield Note(NoteKind.FORESEEN, message, cidr, (), ranges)


def _would_lose(outcome: Outcome, prefix: IPv4Network) -> bool:
    route = outcome.route
    if outcome.kind is not None or route is None or route.table != Table.MAIN:
        return False
    return route.destination.prefixlen <= prefix.prefixlen


def _notes_on_host(reading: Reading) -> Iterable[Note]:
    for dev in pending_devs(reading.links, reading.addresses, reading.default.devs):
        text = (
            f"{dev} is an InfiniBand interface without an IPv4 address; once it has one, its subnet's route comes too"
        )
        yield Note(NoteKind.PENDING, text, devs=(dev,))
    others = [str(rule.preference) for rule in reading.rules if is_about_other_packets(rule)]
    if others:
        text = f"policy rules on marks, users, interfaces, ports or more weren't judged: preference {', '.join(others)}"
        yield Note(NoteKind.RULE, text)
