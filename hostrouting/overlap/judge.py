"""Pure: what the answers mean -> what leaves by a wrong interface, and what is worth a note.

Tiles of a CIDR whose outcomes are alike are told of together.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING

from hostrouting.config.routing import Coverage
from hostrouting.kernel.rules import is_about_other_packets
from hostrouting.model.routes import Table
from hostrouting.model.text import shortened
from hostrouting.overlap.coverage import Piece, fewest_prefixes, networks_of
from hostrouting.overlap.findings import Finding, FindingKind, JudgedCidr, Note, NoteKind, Segment
from hostrouting.overlap.reading import pending_devs

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from hostrouting.config.routing import RouteOverlap
    from hostrouting.overlap.coverage import Tile, Tiling
    from hostrouting.overlap.outcomes import Outcome
    from hostrouting.overlap.reading import Reading

__all__ = ["judge", "judged_cidr"]

# A line is for people; all of them are in the report's lists.
_SHOWN_NETWORKS, _SHOWN_DEVS = 16, 8


def judge(
    overlap: RouteOverlap, reading: Reading, outcomes: Mapping[IPv4Address, Outcome]
) -> tuple[tuple[Finding, ...], tuple[Note, ...]]:
    """Tell of the failures and of what is worth a note.

    Args:
        overlap: the expected CIDRs.
        reading: the host.
        outcomes: of ``sort_answers``.

    Returns:
        The failures in the order of the config, of one CIDR in that of their first addresses; and the notes.
    """
    findings: list[Finding] = []
    notes: list[Note] = []
    for cidr in dict.fromkeys(overlap.expected_cidrs):
        for tiles in _groups(reading.tiling.of(cidr), outcomes):
            outcome = outcomes[tiles[0].question]
            if outcome.is_failure:
                is_exact = overlap.coverage is Coverage.EXACT
                part = _about(reading.tiling.of(cidr), outcomes, outcome) if is_exact else [cidr]
                findings.append(_finding(cidr, tiles, outcomes, reading.default.devs, part))
            else:
                notes.append(_note(cidr, tiles, outcomes))
        notes += _foreseen(cidr, overlap.foreseen, reading, outcomes)
    return tuple(findings), (*notes, *_notes_on_host(reading))


def _groups(tiles: Iterable[Tile], outcomes: Mapping[IPv4Address, Outcome]) -> Iterable[list[Tile]]:
    groups: dict[Hashable, list[Tile]] = {}
    for tile in tiles:
        outcome = outcomes[tile.question]
        if outcome.kind is not None:
            groups.setdefault(outcome.group, []).append(tile)
    return groups.values()


def _about(tiles: Iterable[Tile], outcomes: Mapping[IPv4Address, Outcome], failure: Outcome) -> Sequence[IPv4Network]:
    """Where a failure is, in a few prefixes: own and broadcast addresses, which are noted, count as part of it."""
    pieces = []
    for tile in tiles:
        outcome = outcomes[tile.question]
        is_target = outcome.group == failure.group
        is_free = is_target or outcome.kind in (NoteKind.LOCAL, NoteKind.BROADCAST)
        pieces.append(Piece(tile.first, tile.last, is_target, most=32 if is_free else -1))
    return fewest_prefixes(pieces)


def _finding(
    cidr: IPv4Network,
    tiles: Sequence[Tile],
    outcomes: Mapping[IPv4Address, Outcome],
    expected: tuple[str, ...],
    part: Sequence[IPv4Network],
) -> Finding:
    outcome = outcomes[tiles[0].question]
    first = IPv4Address(tiles[0].first)
    asked, via = f"expected CIDR {cidr} (probe {first})", f"expected via {','.join(expected)}"
    if outcome.kind is FindingKind.OVERLAP:
        devs = ",".join(outcome.devs) or "no device"
        message = f"OVERLAP: {asked} routes via {devs}, expected {','.join(expected)}"
    elif outcome.kind is FindingKind.NO_ROUTE:
        message = f"NO-ROUTE: {asked} has no IPv4 route; {via}"
    else:
        types = {outcomes[tile.question].answer.discarded_by for tile in tiles}
        words = ",".join(sorted(type_.name.lower() for type_ in types if type_ is not None))
        message = f"BLACKHOLE: {asked} is discarded by {words}; {via}"
    if list(part) != [cidr]:
        message += f"; shadowed: {shortened(list(map(str, part)), ' ', _SHOWN_NETWORKS)}"
    if outcome.kind is not FindingKind.NO_ROUTE:
        message += f"; by {outcome.route or 'a policy rule'}"
    return Finding(
        kind=FindingKind(str(outcome.kind)),
        cidr=cidr,
        probe=first,
        devs=outcome.devs,
        expected_devs=expected,
        ranges=networks_of(tiles),
        route=outcome.route,
        message=message,
    )


def _note(cidr: IPv4Network, tiles: Sequence[Tile], outcomes: Mapping[IPv4Address, Outcome]) -> Note:
    outcome = outcomes[tiles[0].question]
    kind = NoteKind(str(outcome.kind))
    ranges = networks_of(tiles)
    devs = tuple(sorted({dev for tile in tiles for dev in outcomes[tile.question].devs}))
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


def judged_cidr(cidr: IPv4Network, tiling: Tiling, outcomes: Mapping[IPv4Address, Outcome]) -> JudgedCidr:
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
    return JudgedCidr(cidr, tuple(segments))


def _foreseen(
    cidr: IPv4Network, foreseen: Sequence[IPv4Network], reading: Reading, outcomes: Mapping[IPv4Address, Outcome]
) -> Iterable[Note]:
    """What connected routes to the foreseen prefixes would shadow: all that no longer route of main protects."""
    for prefix in dict.fromkeys(foreseen):
        if not prefix.overlaps(cidr):
            continue
        first, last = int(prefix.network_address), int(prefix.broadcast_address)
        tiles = [
            tile
            for tile in reading.tiling.of(cidr)
            if first <= tile.first and tile.last <= last and _would_lose(outcomes[tile.question], prefix)
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
        text = (
            f"policy rules on marks, sources, users, interfaces or ports weren't judged: preference {', '.join(others)}"
        )
        yield Note(NoteKind.RULE, text)
