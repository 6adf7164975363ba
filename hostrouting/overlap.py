"""Pure: the kernel's answers and the default route -> what leaves by a wrong interface, and what is worth a note."""

from __future__ import annotations

from bisect import bisect_left
from enum import StrEnum
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING, Any

import attrs

from hostrouting.model import Hardware, Lookup, Protocol, Route, RouteType
from hostrouting.rules import RouteIndex, discarding_route, is_about_other_packets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hostrouting.config import OverlapMode, RouteOverlap
    from hostrouting.model import Address, Link, Rule

__all__ = [
    "NO_DEFAULT_ROUTE",
    "Finding",
    "FindingKind",
    "Note",
    "NoteKind",
    "OverlapReport",
    "Scene",
    "Verdict",
    "judge",
    "pending_devs",
    "probe",
]

NO_DEFAULT_ROUTE = "no-default-route"

# Calico's blackhole of its own block has protocol 80; BIRD's has 12.
_CNI_PROTOCOLS = (Protocol.BIRD, 80)


class Verdict(StrEnum):
    """``unknown``: nothing could be judged; the report's ``reason`` says why."""

    OK = "ok"
    OVERLAP = "overlap"
    UNKNOWN = "unknown"


class FindingKind(StrEnum):
    """Why an expected CIDR fails."""

    OVERLAP = "OVERLAP"
    NO_ROUTE = "NO-ROUTE"
    BLACKHOLE = "BLACKHOLE"


class NoteKind(StrEnum):
    """Why something that doesn't leave by the default interface is no failure."""

    LOCAL = "LOCAL"
    BROADCAST = "BROADCAST"
    CONTAINER = "CONTAINER"
    ALLOWED = "ALLOWED"
    CNI_DISCARD = "CNI-DISCARD"
    PENDING = "PENDING"
    RULE = "RULE"


@attrs.frozen
class Finding:
    """An expected CIDR that fails.

    Args:
        kind: why.
        cidr: the expected CIDR, masked.
        probe: the address that was asked about.
        devs: the interfaces that it leaves by, sorted; none if it doesn't.
        expected_devs: the default route's, sorted.
        ranges: the failing part.
        route: the entry that wins there; None if there is none.
        fix: ``staticRoutes`` entries that mend it.
        message: one line for a person.
    """

    kind: FindingKind
    cidr: IPv4Network
    probe: IPv4Address
    devs: tuple[str, ...]
    expected_devs: tuple[str, ...]
    ranges: tuple[IPv4Network, ...]
    route: Route | None
    message: str
    fix: tuple[Mapping[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON."""
        return {
            "kind": str(self.kind),
            "cidr": str(self.cidr),
            "probe": str(self.probe),
            "devs": list(self.devs),
            "expectedDevs": list(self.expected_devs),
            "ranges": [str(part) for part in self.ranges],
            "route": None if self.route is None else str(self.route),
            "fix": [dict(entry) for entry in self.fix],
            "message": self.message,
        }


@attrs.frozen
class Note:
    """Something worth knowing that is no failure.

    Args:
        kind: what sort.
        message: one line for a person.
        cidr: the expected CIDR that it is about; None: all of them.
        devs: the interfaces that it is about, sorted.
        ranges: the part of the CIDR that it is about.
    """

    kind: NoteKind
    message: str
    cidr: IPv4Network | None = None
    devs: tuple[str, ...] = ()
    ranges: tuple[IPv4Network, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The note as JSON."""
        return {
            "kind": str(self.kind),
            "message": self.message,
            "cidr": None if self.cidr is None else str(self.cidr),
            "devs": list(self.devs),
            "ranges": [str(part) for part in self.ranges],
        }


@attrs.frozen
class OverlapReport:
    """The result of a check.

    Args:
        verdict: the result in a word.
        mode: what a failure means to the node.
        default_devs: the default route's interfaces, sorted.
        findings: the failures.
        notes: the rest.
        reason: why the verdict is ``unknown``.
        time: RFC 3339, UTC, in seconds.
        cidrs: what was checked.
    """

    verdict: Verdict
    mode: OverlapMode
    time: str
    default_devs: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[Note, ...] = ()
    reason: str | None = None
    cidrs: tuple[IPv4Network, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The report in the one form that every output has."""
        return {
            "schema": 1,
            "verdict": str(self.verdict),
            "mode": str(self.mode),
            "coverage": "PROBE",
            "defaultDevs": list(self.default_devs),
            "findings": [finding.to_json() for finding in self.findings],
            "notes": [note.to_json() for note in self.notes],
            "reason": self.reason,
            "time": self.time,
        }


@attrs.frozen
class Scene:
    """Everything that a judgement needs to know of the host.

    Args:
        default: the default route that counts.
        links: all interfaces.
        addresses: of this host.
        rules: in the order in which the kernel asks them.
        routes: the entries of every table.
        answers: the kernel's answer for each probe.
    """

    default: Route
    links: Sequence[Link]
    addresses: Sequence[Address]
    rules: Sequence[Rule]
    routes: Sequence[Route]
    answers: Mapping[IPv4Address, Lookup]


def probe(cidr: IPv4Network) -> IPv4Address:
    """The one address that PROBE asks about: network + 1 (also for a /31); for a /32 the address itself."""
    return cidr.network_address if cidr.prefixlen == 32 else cidr.network_address + 1


def pending_devs(links: Sequence[Link], addresses: Sequence[Address], default_devs: Sequence[str]) -> tuple[str, ...]:
    """The InfiniBand interfaces without an IPv4 address: their connected routes may still come."""
    with_address = {address.dev for address in addresses} | set(default_devs)
    return tuple(
        sorted(link.name for link in links if link.hardware == Hardware.INFINIBAND and link.name not in with_address)
    )


def judge(overlap: RouteOverlap, scene: Scene) -> tuple[tuple[Finding, ...], tuple[Note, ...]]:
    """Sort the kernel's answer for each expected CIDR into failures and notes.

    Args:
        overlap: the expected CIDRs and what may carry them besides the default interface.
        scene: the host.

    Returns:
        The failures in the order of the config, and the notes.
    """
    discards = _Discards(RouteIndex.of(scene.routes), _container_networks(overlap, scene))
    judged = [_judge_cidr(cidr, overlap, scene, discards) for cidr in dict.fromkeys(overlap.expected_cidrs)]
    findings = tuple(item for item in judged if isinstance(item, Finding))
    notes = [item for item in judged if isinstance(item, Note)]
    for dev in pending_devs(scene.links, scene.addresses, scene.default.devs):
        text = (
            f"{dev} is an InfiniBand interface without an IPv4 address; once it has one, its subnet's route comes too"
        )
        notes.append(Note(NoteKind.PENDING, text, devs=(dev,)))
    others = [str(rule.preference) for rule in scene.rules if is_about_other_packets(rule)]
    if others:
        text = (
            f"policy rules on marks, sources, users, interfaces or ports weren't judged: preference {', '.join(others)}"
        )
        notes.append(Note(NoteKind.RULE, text))
    return findings, tuple(notes)


@attrs.frozen
class _Discards:
    """What telling a CNI's own discard takes, made once for all CIDRs.

    Args:
        index: of all entries.
        containers: for each table the networks of its routes to container interfaces, sorted by their first address.
    """

    index: RouteIndex
    containers: dict[int, list[tuple[int, int]]]


def _container_networks(overlap: RouteOverlap, scene: Scene) -> dict[int, list[tuple[int, int]]]:
    networks: dict[int, list[tuple[int, int]]] = {}
    for route in scene.routes:
        if any(_is_like(dev, overlap.container_devs) and dev not in scene.default.devs for dev in route.devs):
            destination = route.destination
            networks.setdefault(route.table, []).append((int(destination.network_address), destination.prefixlen))
    return {table: sorted(found) for table, found in networks.items()}


def _judge_cidr(cidr: IPv4Network, overlap: RouteOverlap, scene: Scene, discards: _Discards) -> Finding | Note | None:
    address = probe(cidr)
    answer = scene.answers[address]
    if answer.route is None:
        return _judge_discard(cidr, answer, scene, discards)
    expected = scene.default.devs
    devs = answer.route.devs
    if answer.route.type in (RouteType.LOCAL, RouteType.BROADCAST):
        return _note_unroutable(cidr, address, answer.route, expected)
    foreign = [dev for dev in devs if dev not in expected]
    if devs and not foreign:
        return None
    whole = (IPv4Network(address),)
    via = f"expected CIDR {cidr} (probe {address}) routes via {','.join(devs) or 'no device'}"
    if devs and all(_is_like(dev, overlap.container_devs) for dev in foreign):
        return Note(NoteKind.CONTAINER, f"{via}, a container interface", cidr, tuple(foreign), whole)
    if devs and all(_is_like(dev, (*overlap.container_devs, *overlap.allowed_devs)) for dev in foreign):
        return Note(NoteKind.ALLOWED, f"{via}, an allowed interface", cidr, tuple(foreign), whole)
    return Finding(
        kind=FindingKind.OVERLAP,
        cidr=cidr,
        probe=address,
        devs=devs,
        expected_devs=expected,
        ranges=whole,
        route=answer.route,
        message=f"OVERLAP: {via}, expected {','.join(expected)}; by {answer.route}",
    )


def _is_like(dev: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(dev, pattern) for pattern in patterns)


def _note_unroutable(cidr: IPv4Network, address: IPv4Address, route: Route, expected: tuple[str, ...]) -> Note:
    is_local = route.type is RouteType.LOCAL
    what = "an address of this host" if is_local else "a broadcast address"
    where = f" on {','.join(route.devs)}" if route.devs else ""
    message = f"{address} of {cidr} is {what}{where}; no route can change that"
    if not set(route.devs) <= {*expected, "lo"}:
        message += ", so nothing in the cluster that has this address can be reached"
    kind = NoteKind.LOCAL if is_local else NoteKind.BROADCAST
    return Note(kind, message, cidr, route.devs, (IPv4Network(address),))


def _judge_discard(cidr: IPv4Network, answer: Lookup, scene: Scene, discards: _Discards) -> Finding | Note:
    expected = scene.default.devs
    asked = f"expected CIDR {cidr} (probe {answer.address})"
    via = f"expected via {','.join(expected)}"
    whole = (IPv4Network(answer.address),)
    discarded_by = answer.discarded_by
    if discarded_by is None:
        message = f"NO-ROUTE: {asked} has no IPv4 route; {via}"
        return Finding(FindingKind.NO_ROUTE, cidr, answer.address, (), expected, whole, None, message)
    route = discarding_route(answer, scene.rules, discards.index)
    if route is not None and _is_of_cni(route, discards):
        return Note(NoteKind.CNI_DISCARD, f"{asked} is discarded by {route}, a CNI's own block", cidr, (), whole)
    message = f"BLACKHOLE: {asked} is discarded by {discarded_by.name.lower()}; {via}"
    message += f"; by {route}" if route is not None else "; by a policy rule"
    return Finding(FindingKind.BLACKHOLE, cidr, answer.address, (), expected, whole, route, message)


def _is_of_cni(discard: Route, discards: _Discards) -> bool:
    """CNIs blackhole their own block, with the routes to their pods inside it, in the same table.

    A discarded default is nobody's block.
    """
    block = discard.destination
    if block.prefixlen == 0:
        return False
    if discard.protocol in _CNI_PROTOCOLS:
        return True
    containers = discards.containers.get(discard.table, [])
    position = bisect_left(containers, (int(block.network_address), block.prefixlen))
    return position < len(containers) and containers[position][0] <= int(block.broadcast_address)
