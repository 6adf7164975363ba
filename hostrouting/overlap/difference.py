"""Compare two snapshots' lookups for every address, and find the changes behind a difference.

This module does no I/O. CIDRs are split and looked up as for a check. The causes of a difference
are changes of the host. Once all causes are undone, the lookups have the earlier results again.
With all but one undone, a lookup still has a new result.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import ClassVar, Literal

import attrs

from hostrouting.kernel.host_changes import (
    HostChange,
    HostChangeKind,
    HostChanges,
    RenamedNic,
    renamed_nics,
)
from hostrouting.kernel.model import model_of
from hostrouting.kernel.port import RouteBackend, UnstableHostError, read_routes
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.kernel.sources import SourceKey, source_key_to
from hostrouting.model.errors import RouteError
from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.integer_prefixes import Prefix, PrefixSet, numbers
from hostrouting.model.jsonable import JsonObject
from hostrouting.model.links import Address
from hostrouting.model.routes import Route, RouteType
from hostrouting.model.values import frozen
from hostrouting.overlap._ask import Sockets, called_addresses, source_borders
from hostrouting.overlap._cut import Cutter
from hostrouting.overlap._fewest_prefixes import networks_of
from hostrouting.overlap._places import Place, Places, SocketLookup, Span, distinct

# To find out whether a change can be left out, this many places are looked up first. Most changes
# turn out to be needed for one of them.
_TRIED_FIRST = 16


@frozen
class LookupResult(JsonObject):
    """The way in which the kernel sends a packet.

    Args:
        type: the matching entry's type, or ``no route``.
        devs: the interfaces that the packet leaves through, sorted.
        hops: the next hops in ip-route(8) syntax, without those that the kernel ignores.
        source: the source address; None if the packet doesn't leave.
    """

    type: str
    devs: tuple[str, ...] = ()
    hops: tuple[str, ...] = ()
    source: IpAddress | None = None

    def __str__(self) -> str:
        shown_type = () if self.type == RouteType.UNICAST.name.lower() else (self.type,)
        return " ".join(
            (*shown_type, *self.hops, *(() if self.source is None else (f"src {self.source}",)))
        )


@frozen
class ChangedResult(JsonObject):
    """Packets whose lookup results differ between the snapshots.

    Args:
        packets: the packets, such as ``UDP`` (unconnected datagrams), ``TCP connection`` or ``UDP
            reply from 10.1.0.4``. Replies are left out if other packets have changed in the same
            way.
        before: the earlier results. A packet has several results if the kernel chooses among
            default routes or sources.
        after: the results in the later snapshot.
    """

    packets: tuple[str, ...]
    before: tuple[LookupResult, ...]
    after: tuple[LookupResult, ...]


@frozen
class Difference(JsonObject):
    """The ranges of a CIDR whose results have changed in the same way.

    Args:
        cidr: an expected CIDR, an address of this host, or all addresses.
        ranges: the ranges of ``cidr``.
        results: which packets have new results, with the results before and after.
        causes: the changes of the host that explain the difference.
    """

    cidr: IpNetwork
    ranges: tuple[IpNetwork, ...]
    results: tuple[ChangedResult, ...]
    causes: tuple[HostChange, ...]


@frozen
class DiffReport(JsonObject):
    """The result of ``diff``.

    Args:
        host: the name of the later snapshot's host.
        before: when the earlier snapshot was taken; None if that isn't known.
        after: when the later snapshot was taken; None if that isn't known.
        cidrs: the expected CIDRs, or all addresses of each family that both snapshots include.
        changed: the differences, CIDR by CIDR.
        others: the changes of the host that explain none of ``changed``.
        reason: why some CIDRs couldn't be compared, or None.
        renamed: the NICs that have another name in the later snapshot.
        host_before: the name of the earlier snapshot's host. If it isn't ``host``, two hosts were
            compared, or the host was renamed.
    """

    schema: ClassVar[Literal[1]] = 1
    json_names = (
        "schema",
        "host",
        "host_before",
        "before",
        "after",
        "differs",
        "reason",
        "cidrs",
        "changed",
        "others",
        "renamed",
    )

    host: str | None
    before: str | None
    after: str | None
    cidrs: tuple[IpNetwork, ...]
    changed: tuple[Difference, ...] = ()
    others: tuple[HostChange, ...] = ()
    reason: str | None = None
    renamed: tuple[RenamedNic, ...] = ()
    host_before: str | None = None

    @property
    def differs(self) -> bool | None:
        """Return whether any lookup has a new result; None if CIDRs couldn't be compared."""
        return True if self.changed else None if self.reason else False

    @property
    def causes(self) -> tuple[HostChange, ...]:
        """Return the changes that explain the differences."""
        return tuple(dict.fromkeys(cause for each in self.changed for cause in each.causes))


def compare(before: Snapshot, after: Snapshot, cidrs: Sequence[IpNetwork]) -> DiffReport:
    """Compare the lookups of two snapshots.

    Args:
        before: the earlier snapshot.
        after: the later snapshot.
        cidrs: the expected CIDRs. Without any, all addresses are compared, in each family that both
            snapshots include.
    """
    cidrs = tuple(cidrs) or _all_addresses(before, after)
    changed: list[Difference] = []
    changes: dict[HostChange, None] = {}
    reasons: list[str] = []
    for family in dict.fromkeys(map(Family.of, cidrs)):
        of_family = [cidr for cidr in cidrs if Family.of(cidr) is family]
        try:
            found = _Comparison(before, after, family)
            changes |= dict.fromkeys(found.changes.all)
            changed += found.changed(of_family)
        except RouteError as error:
            reasons.append(error.clause)
    reason = "; ".join(dict.fromkeys(reasons)) or None
    report = DiffReport(
        after.host,
        before.time,
        after.time,
        cidrs,
        tuple(changed),
        reason=reason,
        renamed=renamed_nics(before.links, after.links),
        host_before=before.host,
    )
    causes = {*report.causes}
    return attrs.evolve(report, others=tuple(each for each in changes if each not in causes))


def _all_addresses(before: Snapshot, after: Snapshot) -> tuple[IpNetwork, ...]:
    """Return all addresses of each family that both snapshots include, as a CIDR each."""
    if before.ipv6 and after.ipv6:
        return (Family.IPV4.any, Family.IPV6.any)
    return (Family.IPV4.any,)


# The results for an address, by kind of packet.
_Results = dict[str, tuple[LookupResult, ...]]


class _ModelLookups:
    """The lookups in the model of a snapshot, or of a snapshot with some changes undone.

    Args:
        backend: the model's lookups for one family.
        called: this host's addresses at which a server may be called.
    """

    def __init__(self, backend: RouteBackend, called: Sequence[IpAddress]) -> None:
        self._backend = backend
        self._family = backend.family
        self._called = called
        self._sources: dict[SourceKey, tuple[IpAddress, ...]] = {}

    def results(self, places: Iterable[Place]) -> dict[Place, _Results]:
        """Return the lookup results of each place, by kind of packet."""
        backend = self._backend
        rules = backend.facts().rules
        routes = read_routes(backend)
        sockets = Sockets(backend, rules, routes, self._family, self._called)
        return {place: self._by_packet(found) for place, found in sockets.ask(places).items()}

    def _by_packet(self, lookups: Sequence[SocketLookup]) -> _Results:
        udp = [lookup for lookup in lookups if not lookup.is_tcp]
        tcp = [lookup for lookup in lookups if lookup.is_tcp]
        first = _without_source(udp)
        # Over IPv6, every socket retries a failed lookup.
        is_retried = self._family is Family.IPV6 and all(each.route is None for each in first)
        sent = _of_connection(udp) if is_retried else first
        results = {"UDP": self._results_of(sent)}
        return results | self._by_source("UDP", udp) | self._by_source("TCP", tcp or udp)

    def _by_source(self, protocol: str, lookups: Sequence[SocketLookup]) -> _Results:
        """Return the results of connections, and of replies from each address in ``called``."""
        results = {f"{protocol} connection": self._results_of(_of_connection(lookups))}
        first = _without_source(lookups)
        for source in self._called:
            replies = [lookup for lookup in lookups if lookup.source == source] or first
            results[f"{protocol} reply from {source}"] = self._results_of(replies, source)
        return results

    def _results_of(
        self,
        lookups: Iterable[SocketLookup],
        source: IpAddress | None = None,
    ) -> tuple[LookupResult, ...]:
        results: set[LookupResult] = set()
        for lookup in lookups:
            results.update(self._by_sources(lookup, source or lookup.source))
        return tuple(sorted(results, key=str))

    def _by_sources(self, lookup: SocketLookup, source: IpAddress | None) -> Iterator[LookupResult]:
        """Yield a result for each source that the kernel may select, or only for ``source``."""
        route = lookup.route
        if route is None:
            discarded = lookup.result.discarded_by
            yield LookupResult("no route" if discarded is None else discarded.name.lower())
            return
        live = [hop for hop in route.hops if not hop.is_dead]
        words = sorted(
            f"{hop.words(self._family)} {hop.encap and f'encap {hop.encap}'}".rstrip()
            for hop in live
        )
        for each in (source,) if source else self._sources_to(lookup.address, route) or (None,):
            yield LookupResult(route.type.name.lower(), route.devs, tuple(words), each)

    def _sources_to(self, address: IpAddress, route: Route) -> tuple[IpAddress, ...]:
        if route.type is RouteType.LOCAL:
            return ()
        key = source_key_to(address, route)
        if key not in self._sources:
            (self._sources[key],) = self._backend.sources([(route, (address,))])
        return self._sources[key]


def _without_source(lookups: Iterable[SocketLookup]) -> list[SocketLookup]:
    return [lookup for lookup in lookups if lookup.source is None]


def _of_connection(lookups: Iterable[SocketLookup]) -> list[SocketLookup]:
    """Return the lookups that decide about a client's connection.

    These are the lookups with a source that the kernel has selected, or else those without one.
    """
    sent = [lookup for lookup in lookups if not lookup.is_reply]
    again = [lookup for lookup in sent if lookup.source is not None]
    return again or sent


def _usable_in_both(old: Iterable[Address], new: Iterable[Address]) -> list[Address]:
    kept = {address.local for address in old if address.is_usable}
    return [address for address in new if address.is_usable and address.local in kept]


class _Comparison:
    """The comparison of two snapshots, in one family."""

    def __init__(self, before: Snapshot, after: Snapshot, family: Family) -> None:
        if before.is_torn:
            raise UnstableHostError(
                "the host changed while the earlier snapshot was taken",
                hint="compare with another one",
            )
        self._family = family
        self._backends = [model_of(snapshot.known(family)) for snapshot in (before, after)]
        for backend in self._backends:
            # Raises an error if the host changed while the later snapshot was taken.
            with backend.changes():
                pass
        self.changes = HostChanges(before, after, family)
        self._keys_around = cache(self.changes.keys_around)
        self._facts = [backend.facts() for backend in self._backends]
        self._rules = [rule for facts in self._facts for rule in facts.rules]
        self._local = _usable_in_both(*(facts.addresses for facts in self._facts))
        devs = {address.dev for address in self._local}
        self._called = called_addresses(self._local, devs, self._rules)

    def changed(self, cidrs: Sequence[IpNetwork]) -> Iterator[Difference]:
        """Yield the differences in the CIDRs and in this host's own addresses."""
        every = [*dict.fromkeys((*cidrs, *self._local_beyond(cidrs)))]
        places = self._places(every)
        old, new = (_ModelLookups(each, self._called).results(places) for each in self._backends)
        for cidr in every:
            groups: dict[tuple[ChangedResult, ...], list[Span]] = {}
            for span in places.overlapping(numbers(cidr)):
                if results := tuple(_changed_results(old[span.place], new[span.place])):
                    groups.setdefault(results, []).append(span)
            for results, inside in groups.items():
                causes = self._causes({place: old[place] for place in distinct(inside)})
                yield Difference(cidr, networks_of(inside, self._family), results, causes)

    def _local_beyond(self, cidrs: Iterable[IpNetwork]) -> Iterator[IpNetwork]:
        """Yield those of this host's addresses that are in no CIDR."""
        family = self._family
        covered = PrefixSet(map(numbers, cidrs), family.bits)
        for address in self._local:
            single = family.network((int(address.local), family.bits))
            if not address.local.is_link_local and not covered.covers(numbers(single)):
                yield single

    def _places(self, cidrs: Iterable[IpNetwork]) -> Places:
        """Cut the CIDRs into places, and return the spans in which results may differ."""
        bits = self._family.bits
        reach = PrefixSet(self.changes.reach, bits)
        routes = (route for backend in self._backends for route in read_routes(backend))
        inside = [route for route in routes if reach.covers(numbers(route.destination))]
        cutter = Cutter(self._family, [*map(numbers, cidrs)], (), self._rules, [(0, 0)])
        spans = cutter.cut(inside, self._source_borders()).spans
        return Places([span for span in spans if reach.covers((span.first, bits))], self._family)

    def _source_borders(self) -> Iterable[Prefix]:
        """Return the prefixes at whose ends the source of IPv6 packets may change."""
        if self._family is Family.IPV4:
            return ()
        addresses = [address for facts in self._facts for address in facts.addresses]
        labels = {label for facts in self._facts for label in facts.labels}
        return source_borders(addresses, labels)

    def _causes(self, wanted: Mapping[Place, _Results]) -> tuple[HostChange, ...]:
        """Return the fewest changes that, when undone, give the lookups the wanted results.

        Args:
            wanted: the results to get back, from the earlier snapshot.
        """
        touching = {place: self._touching(place) for place in wanted}
        changes = set().union(*touching.values())
        # If only one change touches a place, it is needed.
        certain = set().union(*(each for each in touching.values() if len(each) == 1))
        if changes != certain and not self._restores(changes, wanted):
            # Other changes matter, too, so start with all of them.
            changes = {*self.changes.all}
            certain = set()
            touching = dict.fromkeys(wanted, changes)
        kept = sorted(changes, key=_rank)
        while True:
            fewer = self._with_fewer(kept, certain, wanted, touching)
            if len(fewer) == len(kept):
                return tuple(kept)
            kept = fewer

    def _with_fewer(
        self,
        kept: list[HostChange],
        certain: Container[HostChange],
        wanted: Mapping[Place, _Results],
        touching: Mapping[Place, Container[HostChange]],
    ) -> list[HostChange]:
        """Return the changes without superfluous ones, trying to leave out one after the other."""
        for change in kept:
            if change in certain:
                continue
            touched = {place: old for place, old in wanted.items() if change in touching[place]}
            fewer = [each for each in kept if each is not change]
            if self._restores_quickly(fewer, touched):
                kept = fewer
        return kept

    def _touching(self, place: Place) -> set[HostChange]:
        """Return the changes of the host that may affect the lookups of a place."""
        owners = self.changes.owners
        keys = self._keys_around(place.probe)
        return {*self.changes.everywhere, *(owners[key] for key in keys if key in owners)}

    def _restores_quickly(
        self,
        back: Sequence[HostChange],
        wanted: Mapping[Place, _Results],
    ) -> bool:
        items = [*wanted.items()]
        parts = [dict(items[:_TRIED_FIRST]), dict(items[_TRIED_FIRST:])]
        return all(self._restores(back, part) for part in parts if part)

    def _restores(self, back: Iterable[HostChange], wanted: Mapping[Place, _Results]) -> bool:
        """Return whether the lookups give the wanted results with the changes ``back`` undone."""
        keys = {key for place in wanted for key in self._keys_around(place.probe)}
        restored = model_of(self.changes.without(back, keys))
        lookups = _ModelLookups(restored, self._called)
        try:
            return lookups.results(wanted) == wanted
        except RouteError:  # the lookups may depend on a fact that neither snapshot shows
            return False


def _changed_results(before: _Results, after: _Results) -> Iterator[ChangedResult]:
    """Yield the packets whose results differ, grouped by these results."""
    packets: dict[tuple[tuple[LookupResult, ...], ...], list[str]] = {}
    ways: dict[object, tuple[tuple[LookupResult, ...], ...]] = {}
    for packet, old in before.items():
        if old != (new := after[packet]):
            # Leave the source out, because replies usually leave as a client's packets do, although
            # the source differs.
            way = tuple(
                tuple({attrs.evolve(each, source=None): None for each in results})
                for results in (old, new)
            )
            first = ways.setdefault(way, (old, new))
            if "reply" not in packet or first == (old, new):
                packets.setdefault((old, new), []).append(packet)
    for (old, new), names in packets.items():
        yield ChangedResult(tuple(names), old, new)


def _rank(change: HostChange) -> tuple[object, ...]:
    return [*HostChangeKind].index(change.kind), change.before, change.after
