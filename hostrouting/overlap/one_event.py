"""Predict the verdict after each possible event with a kernel in memory, without changing the host."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Interface, IPv4Network
from operator import itemgetter

import attrs

from hostrouting.config.routing import Config, ExpectedCidr
from hostrouting.kernel.events import after, lease_of, with_sources
from hostrouting.kernel.nexthops import flows_through
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.kernel.snapshot_backend import SnapshotBackend
from hostrouting.model.errors import RouteError
from hostrouting.model.events import EventKind, HostEvent
from hostrouting.model.links import Hardware
from hostrouting.model.parsing import reserved_block
from hostrouting.model.prefixes import Prefix, PrefixIndex, PrefixSet, ends, numbers
from hostrouting.model.routes import Protocol, Route
from hostrouting.overlap._classify import CNI_PROTOCOLS
from hostrouting.overlap._state import named_uplinks, pending_devs
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.findings import EventVerdict, Outlook, OverlapReport, UnknownReason, Verdict
from hostrouting.routes.plan import plan_now
from phases import CancelScope

_WATCHER = "hostrouting watch"

# The prefix length of the networks that Azure's agent gives to InfiniBand interfaces.
_LATE_LENGTH = 16

# Kinds of devices whose state depends on another device, which snapshots don't name.
_STACKED = ("vlan", "macvlan", "macvtap", "ipvlan", "ipvtap")


def anticipate(config: Config, snapshot: Snapshot, scope: CancelScope) -> tuple[EventVerdict, ...]:
    """Return the verdict after each event.

    Args:
        config: the config with the expected CIDRs.
        snapshot: the snapshot of the host.
        scope: the scope that can cancel the prediction.
    """
    foretelling, found = _Foretelling(config, snapshot), list[EventVerdict]()
    for event in events(config, snapshot):
        scope.check()
        # An interface that moves into a pod is gone from the host, as after the previous event.
        is_known = event.kind is EventKind.INTO_POD
        found.append(attrs.evolve(found[-1], event=event) if is_known else foretelling.verdict(event))
    return tuple(found)


def events(config: Config, snapshot: Snapshot) -> Iterator[HostEvent]:
    """Yield the possible events that can change a verdict."""
    touching = touching_devs(config, snapshot)
    for link in snapshot.links:
        if link.name in touching:
            if link.is_up:
                yield HostEvent(EventKind.FLAP, link.name)
            if link.has_carrier:
                yield HostEvent(EventKind.CARRIER_LOST, link.name)
            yield HostEvent(EventKind.GONE, link.name)
            yield HostEvent(EventKind.INTO_POD, link.name)
            yield from _renumbered(snapshot, link.name)
    for dev in pending_devs(snapshot.links, snapshot.addresses, named_uplinks(snapshot.links, config.uplinks or ())):
        yield from _late_addresses(config, snapshot, dev)
    yield from (HostEvent(EventKind.RESTART, manager.name) for manager in snapshot.managers)


def touching_devs(config: Config, snapshot: Snapshot) -> set[str]:
    """Return the interfaces on which a verdict may depend.

    An interface counts if it has an entry in any table that overlaps an expected CIDR, as every default route does, or
    that overlaps a discarding entry there, which might be a CNI's own block. It also counts if it has an address that
    such an entry names or that a policy rule may select, if it is a port of such an interface, or if the config names
    it as an uplink.
    """
    cidrs = [numbers(each.cidr) for each in config.route_overlap.expected_cidrs]
    discarded = [numbers(route.destination) for route in snapshot.routes if route.type.is_discard]
    expected = PrefixSet(cidrs)
    spans = PrefixSet((*cidrs, *(prefix for prefix in discarded if expected.overlaps(*ends(prefix)))))
    owners = {address.local: address.dev for address in snapshot.addresses}
    found = set(named_uplinks(snapshot.links, config.uplinks or ()))
    for route in snapshot.routes:
        if spans.overlaps(*ends(numbers(route.destination))):
            found.update(hop.dev for hop in route.hops if hop.dev is not None)
            if route.source is not None and route.source in owners:
                found.add(owners[route.source])
    if any(rule.source is not None for rule in snapshot.rules):
        found.update(owners.values())
    found.update(link.name for link in snapshot.links if link.master in found)
    return found - {link.name for link in snapshot.links if link.hardware == Hardware.LOOPBACK}


def _renumbered(snapshot: Snapshot, dev: str) -> Iterator[HostEvent]:
    """Yield an event in which a DHCP client gets an address and a gateway in the next subnet."""
    if (old := lease_of(snapshot, dev)) is not None:
        network = old.address.network
        step = network.num_addresses if int(network[-1]) >> 24 < 223 else -network.num_addresses
        address = IPv4Interface(((int(old.address.local) + step) % (1 << 32), network.prefixlen))
        gateway = old.gateway + step if old.gateway in network else old.gateway
        yield HostEvent(EventKind.RENUMBERED, dev, address, gateway)


def _late_addresses(config: Config, snapshot: Snapshot, dev: str) -> Iterator[HostEvent]:
    """Yield events that give an address to an InfiniBand interface.

    The address is in the network of another InfiniBand interface or, if there is none, in one around an expected CIDR.
    """
    fabric = {link.name for link in snapshot.links if link.hardware == Hardware.INFINIBAND}
    networks = [address.network for address in snapshot.addresses if address.dev in fabric]
    firsts = (each.cidr.network_address for each in config.route_overlap.expected_cidrs)
    taken = {address.local for address in snapshot.addresses}
    for network in dict.fromkeys(networks or (IPv4Network((first, _LATE_LENGTH), strict=False) for first in firsts)):
        if (free := next((address for address in network.hosts() if address not in taken), None)) is not None:
            yield HostEvent(EventKind.LATE_ADDRESS, dev, IPv4Interface((free, network.prefixlen)))


# --- the verdict after an event ------------------------------------------------------------------------------------


class _Foretelling:
    """The current state of a host, and the verdicts for its possible later states.

    Args:
        config: the config with the expected CIDRs.
        snapshot: the snapshot of the host.
    """

    def __init__(self, config: Config, snapshot: Snapshot) -> None:
        self._config, self._snapshot = config, with_sources(snapshot, snapshot)
        self._entries, self._now = _entries(snapshot), _check(config, self._snapshot)
        self._why_none = _why_none(config, snapshot)
        # Many events affect the same parts of the CIDRs.
        self._parts: dict[tuple[ExpectedCidr, ...], tuple[object, ...]] = {}

    def verdict(self, event: HostEvent) -> EventVerdict:
        """Return the verdict after an event."""
        if why := self._why_none or _why_untold(self._snapshot, event):
            return EventVerdict(event, Outlook.UNTOLD, Verdict.UNKNOWN, reason=why)
        later = after(self._snapshot, event)
        first, programs = self._judge(event, later), tuple[str, ...]()
        last = first
        if _told(first) != _told(self._now):
            programs, restored = self._brought_back(event, later)
            last = _check(self._config, restored) if programs else first
        for report in (self._now, first, last):
            if report.reason_kind is UnknownReason.CHECK_FAILED:
                return EventVerdict(event, Outlook.UNTOLD, Verdict.UNKNOWN, reason=report.reason)
        outlook = Outlook.LASTING
        if _told(last) == _told(self._now):
            outlook = Outlook.RESTORED if programs else Outlook.SAME
        return EventVerdict(
            *(event, outlook, first.verdict, first.findings, first.reason),
            *(programs, last.verdict, last.findings),
        )

    def _judge(self, event: HostEvent, later: Snapshot) -> OverlapReport:
        """Judge the host after an event.

        Only the affected parts are judged first. If their result differs, everything is judged.
        """
        is_uplink = self._now.reason is not None or event.subject in self._now.default_devs
        if not is_uplink and all(rule.source is None for rule in later.rules):
            parts = self._touched_parts(later)
            overlap = attrs.evolve(self._config.route_overlap, expected_cidrs=parts)
            touched = attrs.evolve(self._config, route_overlap=overlap)
            if parts and parts not in self._parts:
                self._parts[parts] = _told(_check(touched, self._snapshot))
            if not parts or _told(_check(touched, later)) == self._parts[parts]:
                return self._now
        return _check(self._config, later)

    def _touched_parts(self, later: Snapshot) -> tuple[ExpectedCidr, ...]:
        """Return the parts of the CIDRs where an entry, or the source of an entry, was added or removed."""
        moved = {each.local for each in {*self._snapshot.addresses} ^ {*later.addresses}}
        was, is_now = self._entries, _entries(later)
        changed = {prefix for prefix in was.keys() | is_now.keys() if was.get(prefix) != is_now.get(prefix)}
        changed |= {numbers(route.destination) for route in self._snapshot.routes if route.source in moved}
        # The routes inside a discarded block decide whether a CNI owns it.
        inner = PrefixIndex(changed)
        discards = (route for route in later.routes if route.type.is_discard and route.protocol not in CNI_PROTOCOLS)
        blocks = filter(inner.meeting, {numbers(route.destination) for route in discards})
        touched = PrefixIndex((*changed, *blocks))
        parts = [
            attrs.evolve(expected, cidr=part)
            for expected in self._config.route_overlap.expected_cidrs
            for prefix in touched.meeting(numbers(expected.cidr))
            if not reserved_block(part := IPv4Network(max(prefix, numbers(expected.cidr), key=itemgetter(1))))
        ]
        return tuple(dict.fromkeys(parts))

    def _brought_back(self, event: HostEvent, later: Snapshot) -> tuple[tuple[str, ...], Snapshot]:
        """Return the programs that restore routes after an event, with the watcher last, and the resulting state."""
        left = {(route.key, route.hops) for route in later.routes}
        lost = [r for r in self._snapshot.routes if r.protocol != Protocol.KERNEL and (r.key, r.hops) not in left]
        # An expired lease doesn't come back.
        managers = self._snapshot.managers if event.kind is not EventKind.RENUMBERED else ()
        back = [route for route in lost if any(manager.adds(route) for manager in managers)]
        programs = [manager.name for manager in managers if any(map(manager.adds, back))]
        restored = after(self._snapshot, event, back)
        if restored.routes == later.routes:  # the kernel accepts none of these routes
            programs = []
        if self._config.watch.enabled and (ours := _kept_routes(self._config, restored)):
            programs, restored = [*programs, _WATCHER], after(self._snapshot, event, (*back, *ours))
        return tuple(programs), restored


def _check(config: Config, snapshot: Snapshot) -> OverlapReport:
    return check_overlap(config, SnapshotBackend(snapshot), CancelScope(), host=snapshot.host or "", needs_fix=False)


def _told(report: OverlapReport) -> tuple[object, ...]:
    """Return a value that is equal for checks with the same result, whichever entries cause it."""
    return (report.verdict, *((each.kind, each.cidr, each.devs, each.source, each.ranges) for each in report.findings))


def _entries(snapshot: Snapshot) -> dict[Prefix, list[Route]]:
    """Return the entries for each destination in their order, which decides between equal entries.

    A hop without a carrier is used like any other unless it is dead.
    """
    found: dict[Prefix, list[Route]] = {}
    for route in snapshot.routes:
        if any(hop.is_linkdown for hop in route.hops):
            route = attrs.evolve(route, hops=tuple(attrs.evolve(hop, is_linkdown=False) for hop in route.hops))
        found.setdefault(numbers(route.destination), []).append(route)
    return found


def _why_none(config: Config, snapshot: Snapshot) -> str | None:
    """Return why no event of a host can be predicted, or None if some can."""
    if missing := {each.dev for each in snapshot.addresses} - {link.name for link in snapshot.links}:
        return f"the snapshot lacks the interface {min(missing)}"
    expected = PrefixSet(numbers(each.cidr) for each in config.route_overlap.expected_cidrs)
    for route in snapshot.routes if any(rule.source is not None for rule in snapshot.rules) else ():
        # If the destination has more addresses, each hop carries some of them.
        is_short = route.destination.num_addresses < flows_through(route)
        if is_short and expected.overlaps(*ends(numbers(route.destination))):
            return f"the kernel's own hash decides which hop of {route} is taken, and so which source"
    return None


def _why_untold(snapshot: Snapshot, event: HostEvent) -> str | None:
    """Return why the kernel in memory can't predict the effect of an event, or None if it can."""
    if event.kind is EventKind.RESTART:
        is_known = all(each.drops_routes is not None for each in snapshot.managers if each.name == event.subject)
        return None if is_known else f"whether {event.subject} then drops routes isn't known"
    if event.kind is EventKind.CARRIER_LOST and snapshot.ignoring_linkdown is None:
        return "ignore_routes_with_linkdown isn't in the snapshot, but decides about it"
    link = next(each for each in snapshot.links if each.name == event.subject)
    if link.master is not None:
        return f"{link.name} is a port of {link.master}, whose state may follow"
    secondary = [each for each in snapshot.addresses if each.dev == link.name and each.is_secondary]
    if event.kind is EventKind.RENUMBERED and secondary:
        return f"whether the other addresses of {link.name} then go isn't recorded (promote_secondaries)"
    stacked = [each.name for each in snapshot.links if each.kind in _STACKED]
    if stacked and link.kind not in _STACKED and event.address is None:
        return f"{stacked[0]} may lie on {link.name}, and follow its state"
    return None


def _kept_routes(config: Config, snapshot: Snapshot) -> list[Route]:
    """Return the routes that the watcher restores."""
    try:
        plan, _ = plan_now(config, SnapshotBackend(snapshot))
    except RouteError:  # then the watcher restores none
        return []
    return [*plan.add, *(change.new for change in plan.replace)]
