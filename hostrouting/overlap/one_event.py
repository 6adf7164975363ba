"""Predict the verdict after each possible event using an in-memory kernel, without modifying the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Interface, IPv4Network
from itertools import chain

import attrs

from hostrouting.config.routing import Config
from hostrouting.kernel.after_event import after, lease_of, with_sources
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.kernel.snapshot_backend import SnapshotBackend, SnapshotBackend6
from hostrouting.kernel.sources import flows_through
from hostrouting.model.errors import RouteError
from hostrouting.model.events import EventKind, HostEvent
from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.integer_prefixes import PrefixSet, ends, numbers
from hostrouting.model.links import Hardware
from hostrouting.model.routes import Protocol, Route, Route6
from hostrouting.model.text import shortened
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.findings import (
    EventVerdict,
    Outlook,
    OverlapReport,
    UnknownReason,
    Verdict,
)
from hostrouting.overlap.uplinks import Uplinks, find_uplinks
from hostrouting.routes.plan import plan_now
from phases import CancelScope

_WATCHER = "hostrouting watch"

# A limit for human-readable lines.
_SHOWN_CIDRS = 4

# The prefix length that Azure's agent uses for addresses on InfiniBand interfaces.
_LATE_LENGTH = 16

# Kinds of devices whose state depends on a lower device that snapshots don't record.
_STACKED = ("vlan", "macvlan", "macvtap", "ipvlan", "ipvtap")


def anticipate(config: Config, snapshot: Snapshot, scope: CancelScope) -> tuple[EventVerdict, ...]:
    """Predict the verdict after each possible event.

    Args:
        config: the config with the expected CIDRs.
        snapshot: the snapshot of the host.
        scope: cancellation scope.
    """
    config6 = attrs.evolve(config, route_overlap=config.route_overlap.of(Family.IPV6))
    cidrs6 = [each.cidr for each in config6.route_overlap.expected_cidrs]
    config = attrs.evolve(config, route_overlap=config.route_overlap.of(Family.IPV4))
    predictor, found = _Predictor(config, snapshot), list[EventVerdict]()
    for event in events(config, snapshot, cidrs6):
        scope.check()
        if event.kind is EventKind.EXPIRED:
            found.append(_after_expiry(config6, snapshot, event))
            continue
        # For the host, an interface that moves into a pod is gone, so the verdict of the previous
        # event (gone) applies.
        is_known = event.kind is EventKind.INTO_POD
        verdict = attrs.evolve(found[-1], event=event) if is_known else predictor.verdict(event)
        if cidrs6 and verdict.outlook is not Outlook.UNPREDICTABLE and not verdict.is_risk:
            why = f"what the event does to the IPv6 routes to {shortened([*map(str, cidrs6)], ' ', _SHOWN_CIDRS)}"
            verdict = EventVerdict(
                event, Outlook.UNPREDICTABLE, Verdict.UNKNOWN, reason=f"{why} isn't known"
            )
        found.append(verdict)
    return tuple(found)


def events(
    config: Config, snapshot: Snapshot, cidrs6: Iterable[IpNetwork] = ()
) -> Iterator[HostEvent]:
    """Yield the possible events that may change the verdict.

    Args:
        config: the config with the expected IPv4 CIDRs.
        snapshot: the snapshot of the host.
        cidrs6: the expected IPv6 CIDRs.
    """
    spans6 = PrefixSet(map(numbers, cidrs6), 128)
    routes6 = () if snapshot.ipv6 is None else snapshot.ipv6.routes
    touching6 = (
        route.devs for route in routes6 if spans6.overlaps(*ends(numbers(route.destination), 128))
    )
    touching = touching_devs(config, snapshot).union(*touching6)
    for link in snapshot.links:
        if link.name in touching and link.hardware != Hardware.LOOPBACK:
            if link.is_up:
                yield HostEvent(EventKind.FLAP, link.name)
            if link.has_carrier:
                yield HostEvent(EventKind.CARRIER_LOST, link.name)
            yield HostEvent(EventKind.GONE, link.name)
            yield HostEvent(EventKind.INTO_POD, link.name)
            yield from _renumbered(snapshot, link.name)
    for dev in _uplinks(config, snapshot).pending:
        yield from _late_addresses(config, snapshot, dev)
    yield from (HostEvent(EventKind.RESTART, manager.name) for manager in snapshot.managers)
    expiring = (
        route for route in routes6 if spans6.overlaps(*ends(numbers(route.destination), 128))
    )
    for dev, router in dict.fromkeys(chain.from_iterable(map(_advertised_by, expiring))):
        yield HostEvent(EventKind.EXPIRED, dev, gateway=router)


def _advertised_by(route: Route) -> Iterator[tuple[str, IpAddress]]:
    """Yield the routers on whose advertisements a route depends, each with its interface."""
    if isinstance(route, Route6) and route.expires is not None and not route.is_dead:
        yield from (
            (hop.dev, hop.gateway)
            for hop in route.hops
            if hop.dev is not None and hop.gateway is not None
        )


def touching_devs(config: Config, snapshot: Snapshot) -> set[str]:
    """Return the interfaces that may affect the verdict.

    These are the uplinks, interfaces with an entry in any table that overlaps an expected CIDR,
    interfaces with an address that such an entry or a policy rule may use, and ports of all these
    interfaces. Every default route overlaps the CIDRs. Entries that overlap a discard route in a
    CIDR also count, because that route may be for a CNI's own block.
    """
    cidrs = [numbers(each.cidr) for each in config.route_overlap.expected_cidrs]
    discarded = [numbers(route.destination) for route in snapshot.routes if route.type.is_discard]
    expected = PrefixSet(cidrs, 32)
    spans = PrefixSet(
        (*cidrs, *(prefix for prefix in discarded if expected.overlaps(*ends(prefix, 32)))), 32
    )
    owners = {address.local: address.dev for address in snapshot.addresses}
    found = {*_uplinks(config, snapshot).devs}
    for route in snapshot.routes:
        if spans.overlaps(*ends(numbers(route.destination), 32)):
            found.update(hop.dev for hop in route.hops if hop.dev is not None)
            if route.source is not None and route.source in owners:
                found.add(owners[route.source])
    if any(rule.source is not None for rule in snapshot.rules):
        found.update(owners.values())
    found.update(link.name for link in snapshot.links if link.master in found)
    return found


def _uplinks(config: Config, snapshot: Snapshot) -> Uplinks:
    return find_uplinks(config, snapshot.links, snapshot.addresses, snapshot.routes)


def _renumbered(snapshot: Snapshot, dev: str) -> Iterator[HostEvent]:
    """Yield an event in which a DHCP client gets a new address and gateway in the next subnet."""
    if (old := lease_of(snapshot, dev)) is not None:
        network = old.address.network
        step = network.num_addresses if int(network[-1]) >> 24 < 223 else -network.num_addresses
        address = IPv4Interface(((int(old.address.local) + step) % (1 << 32), network.prefixlen))
        gateway = old.gateway + step if old.gateway in network else old.gateway
        yield HostEvent(EventKind.RENUMBERED, dev, address, gateway)


def _late_addresses(config: Config, snapshot: Snapshot, dev: str) -> Iterator[HostEvent]:
    """Yield events in which an InfiniBand interface gets an address.

    The address is in the network of another InfiniBand interface or, if there is none, in a network
    around an expected CIDR.
    """
    fabric = {link.name for link in snapshot.links if link.hardware == Hardware.INFINIBAND}
    networks = [address.network for address in snapshot.addresses if address.dev in fabric]
    firsts = (each.cidr.network_address for each in config.route_overlap.expected_cidrs)
    taken = {address.local for address in snapshot.addresses}
    for network in dict.fromkeys(
        networks or (IPv4Network((first, _LATE_LENGTH), strict=False) for first in firsts)
    ):
        if (
            free := next((address for address in network.hosts() if address not in taken), None)
        ) is not None:
            yield HostEvent(EventKind.LATE_ADDRESS, dev, IPv4Interface((free, network.prefixlen)))


# --- the verdict after an event -------------------------------------------------------------------


class _Predictor:
    """Predictor for the verdicts after events on one host.

    Args:
        config: the config with the expected CIDRs.
        snapshot: the snapshot of the host.
    """

    def __init__(self, config: Config, snapshot: Snapshot) -> None:
        self._config, self._snapshot = config, with_sources(snapshot, snapshot)
        self._now, self._why_none_predictable = (
            _check(config, self._snapshot),
            _why_none_predictable(config, snapshot),
        )

    def verdict(self, event: HostEvent) -> EventVerdict:
        """Predict the verdict after an event."""
        if why := self._why_none_predictable or _why_unpredictable(self._snapshot, event):
            return EventVerdict(event, Outlook.UNPREDICTABLE, Verdict.UNKNOWN, reason=why)
        try:
            return self._predicted(event)
        except RouteError as error:
            return EventVerdict(event, Outlook.UNPREDICTABLE, Verdict.UNKNOWN, reason=str(error))

    def _predicted(self, event: HostEvent) -> EventVerdict:
        later = after(self._snapshot, event)
        first, programs = _check(self._config, later), tuple[str, ...]()
        last = first
        if _comparable(first) != _comparable(self._now):
            programs, restored = self._restored(event, later)
            last = _check(self._config, restored) if programs else first
        for report in (self._now, first, last):
            if report.reason_kind is UnknownReason.CHECK_FAILED:
                return EventVerdict(
                    event, Outlook.UNPREDICTABLE, Verdict.UNKNOWN, reason=report.reason
                )
        outlook = Outlook.LASTING
        if _comparable(last) == _comparable(self._now):
            outlook = Outlook.RESTORED if programs else Outlook.SAME
        return EventVerdict(
            *(event, outlook, first.verdict, first.findings, first.reason),
            *(programs, last.verdict, last.findings),
        )

    def _restored(self, event: HostEvent, later: Snapshot) -> tuple[tuple[str, ...], Snapshot]:
        """Return the programs that restore routes after an event, the watcher last, and the resulting snapshot."""
        left = {(route.key, route.hops) for route in later.routes}
        lost = [
            r
            for r in self._snapshot.routes
            if r.protocol != Protocol.KERNEL and (r.key, r.hops) not in left
        ]
        # Routes from an expired lease aren't restored.
        managers = self._snapshot.managers if event.kind is not EventKind.RENUMBERED else ()
        back = [route for route in lost if any(manager.adds(route) for manager in managers)]
        programs = [manager.name for manager in managers if any(map(manager.adds, back))]
        restored = after(self._snapshot, event, back)
        if restored.routes == later.routes:  # the kernel accepts none of these routes
            programs = []
        if self._config.watch.enabled and (ours := _kept_routes(self._config, restored)):
            programs, restored = [*programs, _WATCHER], after(self._snapshot, event, (*back, *ours))
        return tuple(programs), restored


def _after_expiry(config: Config, snapshot: Snapshot, event: HostEvent) -> EventVerdict:
    """Predict the verdict on IPv6 CIDRs once a router's routes have expired.

    No program restores these routes.
    """
    now, later = _check6(config, snapshot), _check6(config, after(snapshot, event))
    for report in (now, later):
        if report.reason_kind is UnknownReason.CHECK_FAILED:
            return EventVerdict(event, Outlook.UNPREDICTABLE, Verdict.UNKNOWN, reason=report.reason)
    outlook = Outlook.SAME if _comparable(later) == _comparable(now) else Outlook.LASTING
    return EventVerdict(
        event,
        outlook,
        later.verdict,
        later.findings,
        later.reason,
        (),
        later.verdict,
        later.findings,
    )


def _check6(config: Config, snapshot: Snapshot) -> OverlapReport:
    backend, ipv4 = SnapshotBackend6(snapshot), SnapshotBackend(snapshot)
    return check_overlap(config, backend, CancelScope(), ipv4=ipv4, needs_fix=False)


def _check(config: Config, snapshot: Snapshot) -> OverlapReport:
    return check_overlap(config, SnapshotBackend(snapshot), CancelScope(), needs_fix=False)


def _comparable(report: OverlapReport) -> tuple[object, ...]:
    """Return a comparison key for a check's result that ignores which entries caused it."""
    return (
        report.verdict,
        *((each.kind, each.cidr, each.devs, each.source, each.ranges) for each in report.findings),
    )


def _why_none_predictable(config: Config, snapshot: Snapshot) -> str | None:
    """Return why no events can be predicted for a host, or None if some can."""
    if missing := {each.dev for each in snapshot.addresses} - {
        link.name for link in snapshot.links
    }:
        return f"the snapshot lacks the interface {min(missing)}"
    expected = PrefixSet((numbers(each.cidr) for each in config.route_overlap.expected_cidrs), 32)
    for route in snapshot.routes if any(rule.source is not None for rule in snapshot.rules) else ():
        # If the destination has enough addresses, every hop carries some of them, whatever the hash
        # decides.
        is_short = route.destination.num_addresses < flows_through(route)
        if is_short and expected.overlaps(*ends(numbers(route.destination), 32)):
            return (
                f"the kernel's own hash decides which hop of {route} is taken, and so which source"
            )
    return None


def _why_unpredictable(snapshot: Snapshot, event: HostEvent) -> str | None:
    """Return why the in-memory kernel can't predict the effect of an event, or None if it can."""
    if event.kind is EventKind.RESTART:
        is_known = all(
            each.drops_routes is not None
            for each in snapshot.managers
            if each.name == event.subject
        )
        return None if is_known else f"whether {event.subject} then drops routes isn't known"
    if event.kind is EventKind.CARRIER_LOST and snapshot.ignoring_linkdown is None:
        return "ignore_routes_with_linkdown isn't in the snapshot, but decides about it"
    link = next(each for each in snapshot.links if each.name == event.subject)
    if link.master is not None:
        return f"{link.name} is a port of {link.master}, whose state may follow"
    secondary = [each for each in snapshot.addresses if each.dev == link.name and each.is_secondary]
    if event.kind is EventKind.RENUMBERED and secondary:
        return f"whether the other addresses of {link.name} then go isn't in the snapshot (promote_secondaries)"
    stacked = [each.name for each in snapshot.links if each.kind in _STACKED]
    if stacked and link.kind not in _STACKED and event.address is None:
        return f"{stacked[0]} may lie on {link.name}, and follow its state"
    return None


def _kept_routes(config: Config, snapshot: Snapshot) -> list[Route]:
    """Return the routes that the watcher would restore."""
    try:
        plan, _ = plan_now(config, SnapshotBackend(snapshot))
    except RouteError:  # then the watcher restores none
        return []
    return [*plan.add, *(change.new for change in plan.replace)]
