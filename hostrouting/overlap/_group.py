"""Group the judgements of places into findings and notes. This module does no I/O.

Spans of the same CIDR with equal judgements are reported together.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import takewhile

from hostrouting.config.routing import ExpectedCidr, RouteOverlap, StaticRoutes
from hostrouting.model.family import Family, IpNetwork
from hostrouting.model.integer_prefixes import PrefixIndex, numbers
from hostrouting.model.links import Address
from hostrouting.model.routes import Table, destination_words
from hostrouting.model.text import shortened, with_runs
from hostrouting.overlap._ask import asks_local_first
from hostrouting.overlap._fewest_prefixes import networks_of, summary_of
from hostrouting.overlap._places import Judgement, Places, Span
from hostrouting.overlap._state import State
from hostrouting.overlap.findings import Finding, FindingKind, Note, NoteKind

# Spans to report together, each with its judgement.
_Group = list[tuple[Span, Judgement]]
_Networks = tuple[IpNetwork, ...]

# Limits for human-readable lines; the lists in the report are always complete.
_SHOWN_NETWORKS = 16
_SHOWN_DEVS = 8

# The keys of the config that let an interface carry expected traffic.
_KEYS = {NoteKind.CONTAINER: "containerDevs", NoteKind.ALLOWED: "allowedDevs"}


def findings_and_notes(
    overlap: RouteOverlap,
    state: State,
    places: Places,
) -> tuple[tuple[Finding, ...], tuple[Note, ...]]:
    """Return a check's findings, and its notes on places. ``notes_on_host`` has the others.

    Args:
        overlap: the expected CIDRs.
        state: the host's state.
        places: the places with their judgements.

    Returns:
        The findings, in config order and by address within a CIDR, and the notes.
    """
    foreseen = PrefixIndex(map(numbers, overlap.foreseen), state.family.bits)
    findings: list[Finding] = []
    notes: list[Note] = []
    for expected in dict.fromkeys(overlap.expected_cidrs):
        spans = places.overlapping(numbers(expected.cidr))
        groups = _groups(expected, spans)
        local: set[Span] = set()
        if groups:  # most CIDRs have no groups, but may have many spans
            local = {span for span in spans if span.place.unconnected_for(expected).is_local}
        for group in groups:
            judgement = group[0][1]
            failing = [span for span, _ in group]
            ranges = networks_of(failing, state.family)
            shown = ranges
            if judgement.is_failure or judgement.kind is NoteKind.ALLOWED:
                shown = tuple(summary_of(failing, spans, local, state.family))
            if judgement.is_failure:
                findings.append(_finding(expected, group, state, ranges, shown))
            else:
                notes.append(_note(expected, group, state, ranges, shown))
        notes += _foreseen(expected, foreseen, state, places)
    return tuple(findings), tuple(dict.fromkeys(notes))


def without_listed(notes: Iterable[Note], static: StaticRoutes) -> tuple[Note, ...]:
    """Return the notes without those that advise a route which the config lists already."""
    return tuple(
        note
        for note in notes
        if note.kind is not NoteKind.CONTESTED or not _is_listed(note.cidr, static)
    )


def _is_listed(cidr: IpNetwork | None, static: StaticRoutes) -> bool:
    if cidr is None:
        return False
    wanted = numbers(cidr)
    family = Family.of(cidr)
    listed = [each.destination for each in static.routes if Family.of(each.destination) is family]
    index = PrefixIndex(map(numbers, listed), family.bits)
    return next(index.around(wanted), None) is not None


def _groups(expected: ExpectedCidr, spans: Iterable[Span]) -> list[_Group]:
    groups: dict[Hashable, _Group] = {}
    for span in spans:
        for judgement in span.place.judgements[expected]:
            if judgement.kind is not None:
                groups.setdefault(judgement.group, []).append((span, judgement))
    return [*groups.values()]


def _finding(
    expected: ExpectedCidr,
    group: _Group,
    state: State,
    ranges: _Networks,
    shown: _Networks,
) -> Finding:
    span, judgement = group[0]
    types = {type_ for _, each in group if (type_ := each.discarded_by) is not None}
    behind = {dev for _, each in group for dev in _behind(each, expected, state)}
    return Finding(
        kind=FindingKind(str(judgement.kind)),
        cidr=expected.cidr,
        probe=state.family.address(span.first),
        devs=judgement.devs,
        expected_devs=state.uplinks.devs if expected.devs is None else expected.devs,
        source=judgement.lookup.source,
        is_reply=judgement.lookup.is_reply,
        ranges=ranges,
        route=judgement.route,
        shadowed=shown,
        gateway=judgement.gateway,
        port=judgement.port,
        discarded_by=tuple(sorted(types)),
        behind=tuple(sorted(behind)),
    )


def _note(
    expected: ExpectedCidr,
    group: _Group,
    state: State,
    ranges: _Networks,
    shown: _Networks,
) -> Note:
    judgement = group[0][1]
    kind = NoteKind(str(judgement.kind))
    cidr = expected.cidr
    devs = tuple(sorted({dev for _, each in group for dev in each.devs}))
    part = _part(cidr, shown)
    through = shortened(with_runs(devs), ",", _SHOWN_DEVS)
    if judgement.is_local:
        message = f"{part}: {kind.lower()}{f' on {through}' if through else ''}"
        if asks_local_first(state.rules):
            message += "; no route can change that"
        message += _about_local(expected, judgement, state)
    elif kind is NoteKind.CNI_DISCARD:
        message = (
            f"{part} is discarded by {judgement.route}, a CNI's own block;"
            " an address in it that lives on another node can't be reached from here"
        )
    else:  # through interfaces that a key of the config allows
        key = _KEYS[kind]
        message = f"{part} routes via {through} ({key}){_about_exempt(expected, group, state)}"
    return Note(kind, message, cidr, devs, ranges)


def _about_local(expected: ExpectedCidr, judgement: Judgement, state: State) -> str:
    """Return a clause that says what a local address means for traffic to the cluster."""
    if judgement.is_answered and judgement.uplink_subnet:
        whose = f"it lies in {judgement.uplink_subnet}, so another node may have it"
        return f", it is answered on this host (containerDevs); {whose}"
    if judgement.is_answered:
        return ", it is answered on this host (containerDevs)"
    if judgement.is_lost:
        return ", so nothing in the cluster that has such an address can be reached"
    on_uplinks = _local_on_uplinks(expected, state)
    is_of_nodes = all(address.network == expected.cidr for address in on_uplinks)
    if judgement.kind is not NoteKind.LOCAL or is_of_nodes:
        return ""
    return (
        ", which is fine if the CIDR is the nodes';"
        " a pod or Service that has such an address can't be reached: move their CIDR"
    )


def _about_exempt(expected: ExpectedCidr, group: _Group, state: State) -> str:
    """Return a clause on other hosts whose addresses an exempt interface hides, or ""."""
    judgement = group[0][1]
    if judgement.uplink_subnet:
        lost = "so other hosts there that have such an address can't be reached"
        return f"; it lies in {judgement.uplink_subnet}, {lost}"
    local = _local_on_uplinks(expected, state)
    if judgement.kind is not NoteKind.CONTAINER or not local:
        return ""
    # A host route leads to a local pod and doesn't shadow other addresses.
    lengths = [each.route.destination.prefixlen for _, each in group if each.route is not None]
    if all(length == state.family.bits for length in lengths):
        return ""
    return (
        f"; this host's own {local[0].local} on {local[0].dev} is in the same CIDR:"
        " if that is the nodes', nodes in this part can't be reached;"
        " name the CIDR's devs in expectedCidrs to make that a failure"
    )


def _local_on_uplinks(expected: ExpectedCidr, state: State) -> list[Address]:
    """Return the addresses of this host's uplinks that lie in an expected CIDR.

    Such an address is a hint that the CIDR may be the nodes'. The address proves nothing, because a
    node may have an address in the pod CIDR by mistake, and the config doesn't say whether a CIDR
    is for nodes, pods or Services. The list is empty for a CIDR with its own ``devs``. No hint is
    needed there, because no container interface may carry such a CIDR.
    """
    if expected.devs is not None:
        return []
    devs = state.uplinks.devs
    return [each for each in state.addresses if each.dev in devs and each.local in expected.cidr]


def _part(cidr: IpNetwork, ranges: _Networks) -> str:
    if ranges == (cidr,):
        return f"expected CIDR {cidr}"
    return f"{shortened(list(map(destination_words, ranges)), ' ', _SHOWN_NETWORKS)} of {cidr}"


def _behind(judgement: Judgement, expected: ExpectedCidr, state: State) -> set[str]:
    """Return the unexpected interfaces that packets would use without the matching route.

    If the next route is unexpected, too, its interfaces are added, and so on up to the first
    expected route.
    """
    route = judgement.route
    if judgement.kind is not FindingKind.OVERLAP or route is None:
        return set()

    def is_unexpected(devs: Sequence[str]) -> bool:
        return not any(expected.is_expected(dev, state.uplinks.devs) for dev in devs)

    first, length = numbers(route.destination)
    entries = state.fib.tables.get(route.table, {}).get(length, {}).get(first, ())
    following = [entry.devs for entry in entries if entry.tos == route.tos]
    return {dev for devs in takewhile(is_unexpected, following) for dev in devs} - {*judgement.devs}


def _foreseen(
    expected: ExpectedCidr,
    foreseen: PrefixIndex,
    state: State,
    places: Places,
) -> Iterator[Note]:
    """Yield a note for each foreseen prefix whose connected route would shadow part of the CIDR."""
    cidr = expected.cidr
    for prefix in map(state.family.network, foreseen.meeting(numbers(cidr))):
        part = prefix if prefix.prefixlen > cidr.prefixlen else cidr
        lost = [
            span
            for span in places.overlapping(numbers(part))
            if _would_lose(span.place.unconnected_for(expected), prefix)
        ]
        if lost:
            ranges = networks_of(lost, state.family)
            message = (
                f"{_part(cidr, ranges)} would be shadowed by a route to {prefix}, which is foreseen"
            )
            yield Note(NoteKind.FORESEEN, message, cidr, (), ranges)


def _would_lose(judgement: Judgement, prefix: IpNetwork) -> bool:
    """Return whether packets leave as expected, but wouldn't with a connected route."""
    route = judgement.route
    if judgement.kind is not None or route is None or route.table != Table.MAIN:
        return False
    return route.destination.prefixlen <= prefix.prefixlen
