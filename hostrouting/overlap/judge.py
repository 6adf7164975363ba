"""Pure: the kernel's answers and the default route -> what leaves by a wrong interface, and what is worth a note.

One answer at a time is sorted (``Outcome``); tiles whose outcomes are alike are then told of together.
"""

from __future__ import annotations

from bisect import bisect_left
from fnmatch import fnmatchcase
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network, summarize_address_range
from typing import TYPE_CHECKING

import attrs

from hostrouting.config.routing import Coverage
from hostrouting.kernel.rules import is_about_other_packets
from hostrouting.model.links import Hardware
from hostrouting.model.routes import Lookup, Protocol, Route, RouteType, Table
from hostrouting.model.text import shortened
from hostrouting.overlap.coverage import Piece, fewest_prefixes
from hostrouting.overlap.findings import Finding, FindingKind, JudgedCidr, Note, NoteKind, Segment

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from hostrouting.config.routing import RouteOverlap
    from hostrouting.kernel.fib import Fib
    from hostrouting.model.links import Address, Link
    from hostrouting.model.rules import Rule
    from hostrouting.overlap.coverage import Tile, Tiling

__all__ = ["Outcome", "Reading", "judge", "judged_cidr", "networks_of", "own_subnets", "pending_devs", "sort_answers"]

# Calico's blackhole of its own block has protocol 80; BIRD's has 12.
_CNI_PROTOCOLS = (Protocol.BIRD, 80)

# A line is for people; all of them are in the report's lists.
_SHOWN_NETWORKS, _SHOWN_DEVS = 16, 8


@attrs.frozen
class Reading:
    """Everything that a judgement needs to know of the host.

    Args:
        default: the default route that counts.
        links: all interfaces.
        addresses: of this host.
        rules: in the order in which the kernel asks them.
        routes: the entries of every table.
        tiling: of the expected CIDRs.
        answers: the kernel's answer to each question of the tiling.
    """

    default: Route
    links: Sequence[Link]
    addresses: Sequence[Address]
    rules: Sequence[Rule]
    routes: Sequence[Route]
    tiling: Tiling
    answers: Mapping[IPv4Address, Lookup]


@attrs.frozen
class Outcome:
    """What an answer means.

    Args:
        kind: of the failure or note; None: by the default route's interfaces, as expected.
        answer: the kernel's.
        devs: what to name: the interfaces that it leaves by, of a container's or an allowed one only those.
        route: the entry that wins or discards; None if there is none.
        is_lost: of an own or a broadcast address: whether it hides one of the cluster's.
    """

    kind: FindingKind | NoteKind | None
    answer: Lookup
    devs: tuple[str, ...] = ()
    route: Route | None = None
    is_lost: bool = False

    @property
    def is_failure(self) -> bool:
        """Whether it is none that is only noted."""
        return isinstance(self.kind, FindingKind)

    @cached_property
    def group(self) -> Hashable:
        """What it is told of together with, of one CIDR."""
        if self.is_failure:
            return (self.kind, self.devs)
        return (self.kind, self.is_lost, self.route if self.kind is NoteKind.CNI_DISCARD else None)


def pending_devs(links: Sequence[Link], addresses: Sequence[Address], default_devs: Sequence[str]) -> tuple[str, ...]:
    """The InfiniBand interfaces without an IPv4 address: their connected routes may still come."""
    with_address = {address.dev for address in addresses} | set(default_devs)
    return tuple(
        sorted(link.name for link in links if link.hardware == Hardware.INFINIBAND and link.name not in with_address)
    )


def own_subnets(addresses: Iterable[Address], devs: Sequence[str]) -> dict[IPv4Network, str]:
    """The subnets of some interfaces, each with the interface.

    Args:
        addresses: of the host.
        devs: the default route's interfaces.

    Returns:
        None that is a single address: nobody else is in it.
    """
    subnets = ((address.network, address.dev) for address in addresses if address.dev in devs)
    return {network: dev for network, dev in subnets if network.prefixlen < 32}


def networks_of(tiles: Iterable[Tile]) -> tuple[IPv4Network, ...]:
    """The fewest CIDRs that are together some tiles, which come in the order of their addresses."""
    networks: list[IPv4Network] = []
    first = last = -1
    for tile in tiles:
        if tile.first != last + 1 and first >= 0:
            networks += summarize_address_range(IPv4Address(first), IPv4Address(last))
            first = -1
        first, last = tile.first if first < 0 else first, tile.last
    if first >= 0:
        networks += summarize_address_range(IPv4Address(first), IPv4Address(last))
    return tuple(networks)


# --- one answer --------------------------------------------------------------------------------------------------


def sort_answers(overlap: RouteOverlap, reading: Reading) -> dict[IPv4Address, Outcome]:
    """What each of the kernel's answers means.

    Args:
        overlap: what may carry expected traffic besides the default interface.
        reading: the host.

    Returns:
        For each question its outcome.
    """
    sorter = _Sorter(overlap, reading)
    return {question: sorter.sort(answer) for question, answer in reading.answers.items()}


class _Sorter:
    def __init__(self, overlap: RouteOverlap, reading: Reading) -> None:
        self._overlap, self._scene = overlap, reading
        self._expected = frozenset(reading.default.devs)
        self._is_container: dict[str, bool] = {}

    @cached_property
    def _fib(self) -> Fib:
        from hostrouting.kernel.fib import Fib

        return Fib(self._scene.rules, self._scene.routes)

    def sort(self, answer: Lookup) -> Outcome:
        route = answer.route
        if route is None:
            return self._discarded(answer)
        devs = route.devs
        if route.type in (RouteType.LOCAL, RouteType.BROADCAST):
            kind = NoteKind.LOCAL if route.type is RouteType.LOCAL else NoteKind.BROADCAST
            return Outcome(kind, answer, devs, route, is_lost=not self._expected.issuperset(set(devs) - {"lo"}))
        foreign = tuple(dev for dev in devs if dev not in self._expected)
        if devs and not foreign:
            return Outcome(None, answer, devs, route)
        if devs and all(map(self._belongs_to_pods, foreign)):
            return Outcome(NoteKind.CONTAINER, answer, foreign, route)
        if devs and all(self._belongs_to_pods(dev) or _is_like(dev, self._overlap.allowed_devs) for dev in foreign):
            return Outcome(NoteKind.ALLOWED, answer, foreign, route)
        return Outcome(FindingKind.OVERLAP, answer, devs, route)

    def _discarded(self, answer: Lookup) -> Outcome:
        if answer.discarded_by is None:
            return Outcome(FindingKind.NO_ROUTE, answer)
        entry = self._fib.decide(answer.address).route
        route = entry if entry is not None and entry.type is answer.discarded_by else None
        is_of_cni = route is not None and self._is_of_cni(route)
        return Outcome(NoteKind.CNI_DISCARD if is_of_cni else FindingKind.BLACKHOLE, answer, (), route)

    def _belongs_to_pods(self, dev: str) -> bool:
        if dev not in self._is_container:
            self._is_container[dev] = _is_like(dev, self._overlap.container_devs)
        return self._is_container[dev]

    def _is_of_cni(self, discard: Route) -> bool:
        """CNIs blackhole their own block, with the routes to their pods inside it, in the same table.

        A discarded default is nobody's block.
        """
        block = discard.destination
        if block.prefixlen == 0:
            return False
        if discard.protocol in _CNI_PROTOCOLS:
            return True
        pods = self._pod_networks.get(discard.table, [])
        position = bisect_left(pods, (int(block.network_address), block.prefixlen))
        return position < len(pods) and pods[position][0] <= int(block.broadcast_address)

    @cached_property
    def _pod_networks(self) -> dict[int, list[tuple[int, int]]]:
        """For each table the networks of its routes to container interfaces, by their first address."""
        networks: dict[int, list[tuple[int, int]]] = {}
        for route in self._scene.routes:
            if any(dev not in self._expected and self._belongs_to_pods(dev) for dev in route.devs):
                place = (int(route.destination.network_address), route.destination.prefixlen)
                networks.setdefault(route.table, []).append(place)
        return {table: sorted(found) for table, found in networks.items()}


def _is_like(dev: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(dev, pattern) for pattern in patterns)


# --- all of them -------------------------------------------------------------------------------------------------


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
