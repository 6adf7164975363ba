"""Simulate the kernel's routing in memory, for tests and for systems without namespaces.

::

    kernel = FakeKernel()
    kernel.ip("link add eth0")
    kernel.ip("address add 10.1.0.4/24 dev eth0")
    kernel.ip("route add 172.16.1.0/24 via 10.1.0.1")
    kernel.lookup([IPv4Address("172.16.1.9")])[0].route.devs        # ("eth0",)

``hostrouting.testing.conformance`` compares the results and errnos with the real kernel's.

The following isn't modelled:

- sysctls: they have the kernel's defaults
- most invalid policy rules
- nexthop objects (EINVAL, as if the object didn't exist)
- VRFs and encapsulation
- IPv6: a device that is up can reach any IPv6 gateway
- 127/8 source addresses on devices other than ``lo`` in multipath routes
- routes that the kernel rejects or changes because a number is out of range
- user-added broadcast routes for a subnet's first address (the kernel removes them with the subnet)
- the packet type that the kernel caches for a multicast route and other routes with the same hops
"""

from __future__ import annotations

import errno as errnos
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from ipaddress import IPv4Address, IPv4Interface

import attrs

from hostrouting.kernel._memory import devinet
from hostrouting.kernel._memory.net import (
    Device,
    Net,
    WriteMode,
    fib_table_delete,
    fib_tables_dump,
    refuse_ecn_bits,
)
from hostrouting.kernel._memory.semantics import fib_new_route
from hostrouting.kernel.arguments import check_addresses, check_routes, check_rules
from hostrouting.kernel.ip_commands import IpCommands
from hostrouting.kernel.port import ChangeListener, Facts, Kernel, Sent, Write, refuse_replacing
from hostrouting.kernel.refusals import (
    Deletable,
    DeletableRules,
    NetlinkError,
    refuse_unwritable,
    rule_failure,
)
from hostrouting.kernel.release import numbers_of
from hostrouting.kernel.rules import LOOPBACK
from hostrouting.kernel.selection import EVERYTHING, Entries, Selection
from hostrouting.kernel.sources import Sources
from hostrouting.model.errors import RouteError
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.field_types import ADDRESS, NONE, check_fields
from hostrouting.model.integer_prefixes import Prefix
from hostrouting.model.links import Address, Hardware
from hostrouting.model.lookups import Lookup, RouteFailure, RuleFailure
from hostrouting.model.routes import NextHop, Route, Scope
from hostrouting.model.rules import Rule
from hostrouting.model.text import shown
from phases import CancelScope


class FakeKernel(IpCommands, Kernel):
    """A thread-safe in-memory ``Kernel``.

    The kernel starts out like a new network namespace with ``lo`` up. ``ip`` changes it with the
    words of ``ip link``, ``ip address``, ``ip route`` and ``ip rule``.

    Args:
        release: the release of Linux to behave like, for example ``5.10``, or None for Linux 6.18.

    Raises:
        ValueError: the release isn't one of Linux.
    """

    family: Family = Family.IPV4

    def __init__(self, release: str | None = None) -> None:
        wanted = f"expected a release of Linux, such as '5.10', not {shown(release)}"
        if not isinstance(release, str | None):
            raise TypeError(wanted)
        if release is not None and numbers_of(release) is None:
            raise ValueError(wanted)
        self._lock = threading.Lock()
        self._net = Net(release)
        self._changed = threading.Event()
        self.add_link(LOOPBACK, kind=None, hardware=Hardware.LOOPBACK)

    def __repr__(self) -> str:
        names = ", ".join(self._net.devices)
        return f"<FakeKernel with {names}>"

    # --- reading ----------------------------------------------------------------------------------

    def facts(self) -> Facts:
        with self._lock:
            links = tuple(dev.show() for dev in self._net.devices.values())
            return Facts(links, self._net.addresses(), tuple(self._net.rules))

    def entries(self, wanted: Selection = EVERYTHING) -> Entries:
        with self._lock:
            return wanted.filter(fib_tables_dump(self._net, wanted.table))

    def lookup(
        self,
        addresses: Sequence[IpAddress],
        *,
        source: IpAddress | None = None,
        is_tcp: bool = False,
    ) -> tuple[Lookup, ...]:
        check_addresses(addresses, self.family)
        # Net inherits ``lookup`` from Fib, the model of the kernel's lookup.
        with self._lock:
            return tuple(self._net.lookup(address, source, is_tcp=is_tcp) for address in addresses)

    def sources(
        self,
        sent: Sequence[Sent],
        *,
        is_tcp: bool = False,
    ) -> tuple[tuple[IpAddress, ...], ...]:
        with self._lock:
            chosen = Sources(self._net.addresses())
            return tuple(() if entry is None else chosen.of(entry) for entry, _ in sent)

    # --- writing ----------------------------------------------------------------------------------

    def write(self, change: Write, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        check_routes(change, routes, self.family)
        for route in routes:
            check_fields(route, _ROUTE_FIELDS)
            for hop in route.hops:
                if not isinstance(hop, NextHop):
                    raise TypeError(f"expected a NextHop, not {hop!r}")
        failures: list[RouteFailure] = []
        with self._changing() as net:
            for route in routes:
                try:
                    _WRITERS[change](net, route)
                except NetlinkError as refusal:
                    failures.append(RouteFailure(route, refusal.errno, refusal.message))
        return tuple(failures)

    def write_rules(self, change: Write, rules: Sequence[Rule]) -> tuple[RuleFailure, ...]:
        check_rules(change, rules)
        refuse_replacing(change)
        write = _add_rule if change is Write.ADD else _delete_rule
        failures: list[RuleFailure] = []
        with self._changing() as net:
            for rule in rules:
                try:
                    write(net, rule)
                except NetlinkError as refusal:
                    failures.append(rule_failure(rule, refusal))
        return tuple(failures)

    # --- changes ----------------------------------------------------------------------------------

    @contextmanager
    def changes(self, inside: Sequence[Prefix] | None = None) -> Iterator[ChangeListener]:
        yield _Listener(self._count_changes)

    def _count_changes(self) -> tuple[int, threading.Event]:
        """Return the number of changes so far, and an event that the next change sets."""
        with self._lock:
            return self._net.changes, self._changed

    # --- links, addresses and rules ---------------------------------------------------------------

    def add_link(
        self,
        name: str,
        *,
        up: bool = True,
        kind: str | None = "veth",
        hardware: int = Hardware.ETHER,
        master: str | None = None,
        mac: str | None = None,
    ) -> None:
        """Add an interface with a carrier.

        Args:
            name: the name of the new interface.
            up: whether to set the interface up.
            kind: the link kind, such as ``veth`` or ``bridge``; None for a physical interface.
            hardware: the hardware type (ARPHRD).
            master: the name of the bridge or other master, or None.
            mac: the MAC address in lower case with colons, or None.

        Raises:
            RouteError: EEXIST: the name is already in use. ENODEV: the master doesn't exist.
        """
        with self._attempting(f"add the link {name}") as net:
            if master is not None:
                net.device(master)
            dev = Device(next(net.indexes), name, kind, hardware, master, mac=mac)
            devinet.add_device(net, dev)
            devinet.set_device_up(net, dev, is_up=up)

    def set_link(
        self,
        name: str,
        *,
        up: bool | None = None,
        carrier: bool | None = None,
        group: int | None = None,
    ) -> None:
        """Set an interface up or down, plug or unplug its cable, or set its group.

        Raises:
            RouteError: ENODEV: there is no interface with that name.
        """
        with self._attempting(f"set the link {name}") as net:
            dev = net.device(name)
            if up is not None:
                devinet.set_device_up(net, dev, is_up=up)
            if carrier is not None:
                devinet.carrier_changed(net, dev, is_plugged=carrier)
            if group is not None:
                devinet.set_group(net, dev, group)

    def del_link(self, name: str) -> None:
        """Delete an interface along with its addresses and routes.

        Raises:
            RouteError: ENODEV: there is no interface with that name. EOPNOTSUPP: it is ``lo``.
        """
        with self._attempting(f"delete the link {name}") as net:
            devinet.delete_device(net, net.device(name))

    def add_address(
        self,
        dev: str,
        address: str,
        *,
        peer: str | None = None,
        metric: int = 0,
        prefix_route: bool = True,
    ) -> None:
        """Add an address to an interface.

        Args:
            dev: the interface that gets the address.
            address: the address, like ``10.1.0.4/24``.
            peer: the peer address of a point-to-point link. The prefix length then applies to the
                peer.
            metric: the metric of the connected route.
            prefix_route: whether the kernel adds the connected route.

        Raises:
            RouteError: ENODEV: the interface doesn't exist. EEXIST: it already has the address.
            ValueError: the address isn't valid.
        """
        interface = _ipv4(address)
        ifa = Address(
            dev,
            interface.ip,
            interface.network.prefixlen,
            peer=IPv4Address(peer) if peer not in (None, str(interface.ip)) else None,
            metric=metric,
            has_prefix_route=prefix_route,
        )
        with self._attempting(f"add the address {address} to {dev}") as net:
            devinet.inet_insert_ifa(net, net.device(dev), ifa)

    def del_address(self, dev: str, address: str) -> None:
        """Remove an address from an interface.

        Args:
            dev: the interface that has the address.
            address: the address and prefix length, as added.

        Raises:
            RouteError: ENODEV: the interface doesn't exist. EADDRNOTAVAIL: it doesn't have the
                address.
            ValueError: the address isn't valid.
        """
        interface = _ipv4(address)
        with self._attempting(f"delete the address {address} of {dev}") as net:
            devinet.inet_del_ifa(net, net.device(dev), interface.ip, interface.network.prefixlen)

    def add_rule(self, rule: Rule) -> None:
        """Add a policy rule after existing rules with the same preference.

        Raises:
            RouteError: EEXIST if the rule exists.
        """
        check_rules(Write.ADD, [rule])
        with self._attempting(f"add the rule {rule.preference}") as net:
            net.add_rule(rule)

    def del_rule(self, rule: Rule) -> None:
        """Delete the first policy rule that has all selectors of the given one, as the kernel does.

        Raises:
            RouteError: ENOENT: no rule has these selectors.
        """
        check_rules(Write.DELETE, [rule])
        with self._attempting(f"delete the rule {rule.preference}") as net:
            net.del_rule(rule)

    # --- access to the state ----------------------------------------------------------------------

    @contextmanager
    def _changing(self) -> Iterator[Net]:
        """Hold the lock during a change, and then wake up the threads that wait for a change."""
        with self._lock:
            before = self._net.changes
            try:
                yield self._net
            finally:
                if self._net.changes != before:
                    self._changed.set()
                    self._changed = threading.Event()

    @contextmanager
    def _attempting(self, attempt: str) -> Iterator[Net]:
        try:
            with self._changing() as net:
                yield net
        except NetlinkError as refusal:
            raise RouteError(
                f"can't {attempt}: {refusal.message}",
                errno=refusal.errno,
            ) from refusal


def _ipv4(address: str) -> IPv4Interface:
    try:
        return IPv4Interface(address)
    except ValueError as error:
        raise ValueError(
            f"FakeKernel takes an IPv4 address such as 10.1.0.4/24, not {shown(address)}; "
            "a NamespaceKernel takes IPv6, too"
        ) from error


class _Listener(ChangeListener):
    """A listener to which every change is relevant.

    Args:
        count: a function that returns two values: the number of changes so far, and an event that
            the next change sets.
    """

    def __init__(self, count: Callable[[], tuple[int, threading.Event]]) -> None:
        self._count = count
        self._first, _ = count()
        self._seen = self._first

    def happened(self) -> bool:
        changes, _ = self._count()
        return changes != self._first

    def wait(self, scope: CancelScope) -> None:
        changes, changed = self._count()
        if changes == self._seen:
            scope.wait(changed)
            changes, _ = self._count()
        self._seen = changes


# The types of a route's fields, which ``Route`` itself doesn't check, because a table may hold a
# million routes.
_ROUTE_FIELDS = {
    **dict.fromkeys(("type", "table", "protocol", "scope", "metric", "tos"), (int,)),
    "source": (*ADDRESS, *NONE),
    **dict.fromkeys(("mtu", "nexthop_id"), (int, *NONE)),
}


def _new_route(net: Net, route: Route, *, how: WriteMode) -> None:
    _refuse_request(net, route, route.hops)
    fib_new_route(net, route, how)


def _delete_route(net: Net, route: Route) -> None:
    _refuse_request(net, route, route.hops[:1])
    # The kernel compares fewer attributes than ``RouteBackend.write`` promises: metric 0 matches
    # any metric, and a missing gateway matches any gateway.
    Deletable(net.there(route)).take(route)
    fib_table_delete(
        net,
        attrs.evolve(
            route,
            scope=Scope.NOWHERE,
            hops=route.hops[:1],
            source=None,
        ),
    )


def _refuse_request(net: Net, route: Route, hops: tuple[NextHop, ...]) -> None:
    """Reject requests with ECN bits, for table 0, or for an interface that doesn't exist."""
    refuse_ecn_bits(route.tos)
    if route.table == 0:
        raise NetlinkError(errnos.EINVAL, "there is no table 0")
    if route.nexthop_id is None:
        for hop in hops:
            if hop.dev is not None:
                net.device(hop.dev)


_WRITERS: dict[Write, Callable[[Net, Route], None]] = {
    Write.ADD: partial(_new_route, how=WriteMode.ADD),
    Write.REPLACE: partial(_new_route, how=WriteMode.REPLACE),
    Write.DELETE: _delete_route,
}


def _add_rule(net: Net, rule: Rule) -> None:
    refuse_unwritable(rule)
    net.add_rule(rule)


def _delete_rule(net: Net, rule: Rule) -> None:
    # The kernel compares fewer selectors than ``write_rules`` promises.
    DeletableRules(net.rules).take(rule)
    net.del_rule(rule)
