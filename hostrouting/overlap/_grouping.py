"""Pure: outcomes -> findings and notes. Tiles of a CIDR whose outcomes are alike are told of together."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network
from itertools import takewhile
from operator import attrgetter

from hostrouting.config.routing import ExpectedCidr, RouteOverlap
from hostrouting.kernel.rules import is_about_other_packets, loopback_of
from hostrouting.model.links import Address
from hostrouting.model.prefixes import PrefixIndex, numbers
from hostrouting.model.routes import Table, destination_words
from hostrouting.model.text import shortened
from hostrouting.overlap._coverage import Tile, networks_of, tiles_in
from hostrouting.overlap._judge import Outcome, Outcomes
from hostrouting.overlap._reading import Reading, pending_devs, rival_defaults
from hostrouting.overlap.findings import Finding, FindingKind, Note, NoteKind

# The tiles of which something is told together, each with the outcome that it is told for.
_Group = list[tuple[Tile, Outcome]]

# A line is for people; all of them are in the report's lists.
_SHOWN_NETWORKS, _SHOWN_DEVS = 16, 8

# What is said of one, and of several.
_OWN = {
    NoteKind.LOCAL: ("is an address of this host", "are addresses of this host"),
    NoteKind.BROADCAST: ("is a broadcast address", "are broadcast addresses"),
}
_OTHERS = {
    NoteKind.CONTAINER: ("a container interface", "container interfaces"),
    NoteKind.ALLOWED: ("an allowed interface", "allowed interfaces"),
}


def findings_and_notes(
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
    foreseen = PrefixIndex(map(numbers, overlap.foreseen))
    findings: list[Finding] = []
    notes: list[Note] = []
    for expected, found in outcomes.items():
        tiles = tiles_in(reading.tiles, numbers(expected.cidr))
        groups: dict[Hashable, _Group] = {}
        for tile in tiles:
            for outcome in found[tile.question]:
                if outcome.kind is not None:
                    groups.setdefault(outcome.group, []).append((tile, outcome))
        parts: dict[Hashable, Sequence[IPv4Network]] = {}
        in_few = [key for key, [(_, first), *_] in groups.items() if first.is_failure or first.kind is NoteKind.ALLOWED]
        if in_few:
            from hostrouting.overlap._cover import Neighbours

            own = Neighbours(tile for tile in tiles if found[tile.question][0].is_own)
            parts = {key: own.around(tile for tile, _ in groups[key]) for key in in_few}
        for key, group in groups.items():
            if group[0][1].is_failure:
                findings.append(_finding(expected, group, reading, parts[key]))
            else:
                notes.append(_note(expected, group, reading, parts.get(key)))
        notes += _foreseen(expected.cidr, foreseen, reading, found)
    if any(expected.devs is None for expected in outcomes):
        notes += _contested(reading)
    return tuple(findings), (*dict.fromkeys(notes), *_notes_on_host(reading))


def _finding(expected: ExpectedCidr, group: _Group, reading: Reading, part: Sequence[IPv4Network]) -> Finding:
    tile, outcome = group[0]
    types = {each.discarded_by for _, each in group}
    return Finding(
        kind=FindingKind(str(outcome.kind)),
        cidr=expected.cidr,
        probe=IPv4Address(tile.first),
        devs=outcome.devs,
        expected_devs=reading.uplinks if expected.devs is None else expected.devs,
        source=outcome.answer.source,
        ranges=networks_of(tile for tile, _ in group),
        route=outcome.route,
        shadowed=tuple(part),
        discarded_by=tuple(sorted(type_ for type_ in types if type_ is not None)),
        behind=tuple(sorted({dev for _, each in group for dev in _behind(each, expected, reading)})),
    )


def _note(expected: ExpectedCidr, group: _Group, reading: Reading, about: Sequence[IPv4Network] | None = None) -> Note:
    _, outcome = group[0]
    kind, cidr = NoteKind(str(outcome.kind)), expected.cidr
    ranges = networks_of(tile for tile, _ in group)
    devs = tuple(sorted({dev for _, each in group for dev in each.devs}))
    by = shortened(devs, ",", _SHOWN_DEVS)
    part = _part(cidr, ranges if about is None else tuple(about))
    own = _own_on_uplinks(expected, reading)
    if kind in _OWN:
        is_one = sum(network.num_addresses for network in ranges) == 1
        which = "this address" if is_one else "one of them"
        message = f"{part} {_OWN[kind][not is_one]}{f' on {by}' if by else ''}"
        if reading.asks_local_first:
            message += "; no route can change that"
        if outcome.is_lost:
            message += f", so nothing in the cluster that has {which} can be reached"
        elif kind is NoteKind.LOCAL and any(address.network != cidr for address in own):
            message += (
                f", which is fine if the CIDR is the nodes'; a pod or Service that has {which} can't be reached:"
                " move their CIDR"
            )
    elif kind is NoteKind.CNI_DISCARD:
        message = f"{part} is discarded by {outcome.route}, a CNI's own block"
    else:
        message = f"{part} routes via {by}, {_OTHERS[kind][len(devs) != 1]}"
        # A route to one address is that of a pod here, and hides no other.
        hides_others = (each.route and each.route.destination.prefixlen < 32 for _, each in group)
        if kind is NoteKind.CONTAINER and own and any(hides_others):
            import json

            alone = json.dumps({"cidr": str(cidr), "devs": reading.uplinks})
            message += (
                f"; this host's own {own[0].local} on {own[0].dev} is in the same CIDR: if that is the nodes', nodes in"
                f" this part can't be reached; {alone} in expectedCidrs makes that a failure"
            )
    return Note(kind, message, cidr, devs, ranges)


def _own_on_uplinks(expected: ExpectedCidr, reading: Reading) -> list[Address]:
    """Return this host's addresses on its uplinks, in a CIDR that may be the nodes', pods' or Services'.

    The config doesn't tell which, nor does a subnet inside the CIDR: nodes have theirs in the nodes' CIDR, and by
    mistake in the pods'. Two facts tell that it is the nodes': it is the subnet of the address (``Address.network``),
    or the config names the interfaces that may carry it, which no interface of a container then may.
    """
    if expected.devs is not None:
        return []
    devs = reading.uplinks
    return [each for each in reading.addresses if each.dev in devs and each.local in expected.cidr]


def _part(cidr: IPv4Network, ranges: tuple[IPv4Network, ...]) -> str:
    if ranges == (cidr,):
        return f"expected CIDR {cidr}"
    return f"{shortened(list(map(destination_words, ranges)), ' ', _SHOWN_NETWORKS)} of {cidr}"


def _behind(outcome: Outcome, expected: ExpectedCidr, reading: Reading) -> set[str]:
    route = outcome.route
    if outcome.kind is not FindingKind.OVERLAP or route is None:
        return set()
    number, length = numbers(route.destination)
    entries = reading.fib.tables.get(route.table, {}).get(length, {}).get(number, ())
    in_turn = takewhile(
        lambda devs: not any(expected.is_expected(dev, reading.uplinks) for dev in devs),
        (entry.devs for entry in entries if entry.tos == route.tos),
    )
    return set().union(*in_turn) - {*outcome.devs}


def _foreseen(cidr: IPv4Network, foreseen: PrefixIndex, reading: Reading, outcomes: Outcomes) -> Iterable[Note]:
    """Yield notes on what connected routes to the foreseen prefixes would shadow: all that no longer route protects."""
    for prefix in map(IPv4Network, foreseen.meeting(numbers(cidr))):
        part = prefix if prefix.prefixlen > cidr.prefixlen else cidr
        tiles = [
            tile for tile in tiles_in(reading.tiles, numbers(part)) if _would_lose(outcomes[tile.question][0], prefix)
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


def _contested(reading: Reading) -> Iterable[Note]:
    """Tell of default routes by several interfaces, where that leaves a doubt."""
    if (default := reading.default) is None or not (others := rival_defaults(reading)):
        return
    found = sorted((default, *others), key=attrgetter("metric"))
    devs = tuple(sorted({dev for route in found for dev in route.devs}))
    listed = "; ".join(map(str, found))
    if reading.named is not None:
        settles = f"what names no interface goes by {default}"
    else:
        settles = f"that by {','.join(default.devs)} wins; name the node's uplinks (hostRouting.uplinks) to settle it"
    yield Note(NoteKind.CONTESTED, f"several interfaces have a default route: {listed}; {settles}", devs=devs)


def _notes_on_host(reading: Reading) -> Iterable[Note]:
    for dev in pending_devs(reading.links, reading.addresses, reading.uplinks):
        text = (
            f"{dev} is an InfiniBand interface without an IPv4 address; once it has one, its subnet's route comes too"
        )
        yield Note(NoteKind.PENDING, text, devs=(dev,))
    loopback = loopback_of(reading.links)
    others = [str(rule.preference) for rule in reading.rules if is_about_other_packets(rule, loopback)]
    if others:
        text = f"policy rules on marks, users, interfaces, ports or more weren't judged: preference {', '.join(others)}"
        yield Note(NoteKind.RULE, text)
