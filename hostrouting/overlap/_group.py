"""Turn classifications into findings and notes. This module does no I/O.

Intervals of the same CIDR with equal classifications are reported together.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from itertools import takewhile

from hostrouting.config.routing import ExpectedCidr, RouteOverlap
from hostrouting.model.family import IpNetwork
from hostrouting.model.integer_prefixes import PrefixIndex, numbers
from hostrouting.model.links import Address
from hostrouting.model.routes import Table, destination_words
from hostrouting.model.text import shortened
from hostrouting.overlap._ask import asks_local_first
from hostrouting.overlap._cut import Interval, intervals_in
from hostrouting.overlap._fewest_prefixes import networks_of, summary_of
from hostrouting.overlap._host_notes import notes_on_host
from hostrouting.overlap._judge import Classification, Classifications
from hostrouting.overlap._state import State
from hostrouting.overlap.findings import Finding, FindingKind, Note, NoteKind

# Intervals to report together, each with its classification.
_Group = list[tuple[Interval, Classification]]
_Networks = tuple[IpNetwork, ...]

# Limits for human-readable lines; the lists in the report are always complete.
_SHOWN_NETWORKS, _SHOWN_DEVS = 16, 8

# The keys of the config that let an interface carry expected traffic.
_KEYS = {NoteKind.CONTAINER: "containerDevs", NoteKind.ALLOWED: "allowedDevs"}


def findings_and_notes(
    overlap: RouteOverlap, state: State, classifications: Mapping[ExpectedCidr, Classifications]
) -> tuple[tuple[Finding, ...], tuple[Note, ...]]:
    """Return a check's findings and notes.

    Args:
        overlap: the expected CIDRs.
        state: the host's state.
        classifications: the result of ``classify_probes``.

    Returns:
        The findings, in config order and by address within a CIDR, and the notes.
    """
    family, bits = state.family, state.family.bits
    foreseen = PrefixIndex(map(numbers, overlap.foreseen), bits)
    findings: list[Finding] = []
    notes: list[Note] = []
    for expected, found in classifications.items():
        intervals = state.inside[expected]
        groups: dict[Hashable, _Group] = {}
        for interval in intervals:
            for classification in found[interval.probed]:
                if classification.kind is not None:
                    groups.setdefault(classification.group, []).append((interval, classification))
        local = {each for each in intervals if groups and found[each.probed][0].is_local}
        for group in groups.values():
            first, inside = group[0][1], [interval for interval, _ in group]
            ranges = networks_of(inside, family)
            is_shortened = first.is_failure or first.kind is NoteKind.ALLOWED
            shown = tuple(summary_of(inside, intervals, local, family)) if is_shortened else ranges
            if first.is_failure:
                findings.append(_finding(expected, group, state, ranges, shown))
            else:
                notes.append(_note(expected, group, state, ranges, shown))
        notes += _foreseen(expected.cidr, foreseen, state, found)
    return tuple(findings), (*dict.fromkeys(notes), *notes_on_host(overlap, state))


def _finding(
    expected: ExpectedCidr, group: _Group, state: State, ranges: _Networks, shown: _Networks
) -> Finding:
    interval, classification = group[0]
    types = {each.discarded_by for _, each in group}
    return Finding(
        kind=FindingKind(str(classification.kind)),
        cidr=expected.cidr,
        probe=state.family.address(interval.first),
        devs=classification.devs,
        expected_devs=state.uplinks.devs if expected.devs is None else expected.devs,
        source=classification.probe.source,
        is_reply=classification.probe.is_reply,
        ranges=ranges,
        route=classification.route,
        shadowed=shown,
        gateway=classification.gateway,
        discarded_by=tuple(sorted(type_ for type_ in types if type_ is not None)),
        behind=tuple(sorted({dev for _, each in group for dev in _behind(each, expected, state)})),
    )


def _note(
    expected: ExpectedCidr, group: _Group, state: State, ranges: _Networks, shown: _Networks
) -> Note:
    _, classification = group[0]
    kind, cidr = NoteKind(str(classification.kind)), expected.cidr
    devs = tuple(sorted({dev for _, each in group for dev in each.devs}))
    by = shortened(devs, ",", _SHOWN_DEVS)
    part = _part(cidr, shown)
    local = _local_on_uplinks(expected, state)
    if classification.is_local:
        message = f"{part}: {kind.lower()}{f' on {by}' if by else ''}"
        if asks_local_first(state.rules):
            message += "; no route can change that"
        if classification.is_answered:
            message += ", it is answered on this host (containerDevs)"
            if classification.shared:
                message += f"; it lies in {classification.shared}, so another node may have it"
        elif classification.is_lost:
            message += ", so nothing in the cluster that has such an address can be reached"
        elif kind is NoteKind.LOCAL and any(address.network != cidr for address in local):
            message += (
                ", which is fine if the CIDR is the nodes'; a pod or Service that has such an address can't be reached:"
                " move their CIDR"
            )
    elif kind is NoteKind.CNI_DISCARD:
        message = (
            f"{part} is discarded by {classification.route}, a CNI's own block; an address in it that lives on another"
            " node can't be reached from here"
        )
    else:
        message = f"{part} routes via {by} ({_KEYS[kind]})"
        # A host route leads to a local pod and doesn't shadow other addresses.
        hides_others = (
            each.route and each.route.destination.prefixlen < state.family.bits for _, each in group
        )
        if classification.shared:
            where = f"{classification.shared}, so other hosts there that have such an address can't be reached"
            message += f"; it lies in {where}"
        elif kind is NoteKind.CONTAINER and local and any(hides_others):
            message += (
                f"; this host's own {local[0].local} on {local[0].dev} is in the same CIDR: if that is the nodes',"
                " nodes in this part can't be reached; name the CIDR's devs in expectedCidrs to make that a failure"
            )
    return Note(kind, message, cidr, devs, ranges)


def _local_on_uplinks(expected: ExpectedCidr, state: State) -> list[Address]:
    """Return the addresses on this host's uplinks in an expected CIDR, as a hint that the CIDR may be the nodes'.

    The config doesn't say whether a CIDR is for nodes, pods or Services. An uplink's subnet in the
    CIDR isn't proof either, because a node may have an address in the pod CIDR by mistake. The CIDR
    is only known to belong to the nodes if it is the address's subnet (``Address.network``), or if
    the config names the interfaces that may carry the CIDR, which rules out container interfaces.
    In the latter case, no hint is needed, and the list is empty.
    """
    if expected.devs is not None:
        return []
    devs = state.uplinks.devs
    return [each for each in state.addresses if each.dev in devs and each.local in expected.cidr]


def _part(cidr: IpNetwork, ranges: _Networks) -> str:
    if ranges == (cidr,):
        return f"expected CIDR {cidr}"
    return f"{shortened(list(map(destination_words, ranges)), ' ', _SHOWN_NETWORKS)} of {cidr}"


def _behind(classification: Classification, expected: ExpectedCidr, state: State) -> set[str]:
    route = classification.route
    if classification.kind is not FindingKind.OVERLAP or route is None:
        return set()
    number, length = numbers(route.destination)
    entries = state.fib.tables.get(route.table, {}).get(length, {}).get(number, ())
    in_turn = takewhile(
        lambda devs: not any(expected.is_expected(dev, state.uplinks.devs) for dev in devs),
        (entry.devs for entry in entries if entry.tos == route.tos),
    )
    return set().union(*in_turn) - {*classification.devs}


def _foreseen(
    cidr: IpNetwork, foreseen: PrefixIndex, state: State, classifications: Classifications
) -> Iterable[Note]:
    """Yield a note for each foreseen prefix whose connected route, once added, would shadow part of the CIDR."""
    for prefix in map(state.family.network, foreseen.meeting(numbers(cidr))):
        part = prefix if prefix.prefixlen > cidr.prefixlen else cidr
        intervals = [
            interval
            for interval in intervals_in(state.intervals, numbers(part), state.family.bits)
            if _would_lose(classifications[interval.probed][0], prefix)
        ]
        if intervals:
            ranges = networks_of(intervals, state.family)
            message = (
                f"{_part(cidr, ranges)} would be shadowed by a route to {prefix}, which is foreseen"
            )
            yield Note(NoteKind.FORESEEN, message, cidr, (), ranges)


def _would_lose(classification: Classification, prefix: IpNetwork) -> bool:
    route = classification.route
    if classification.kind is not None or route is None or route.table != Table.MAIN:
        return False
    return route.destination.prefixlen <= prefix.prefixlen
