"""The routes port: the interface that hostrouting requires from a kernel.

``NetlinkBackend`` (netlink.py) accesses the real kernel, and ``FakeKernel`` (memory.py) simulates
one in memory. ``hostrouting.testing.conformance`` checks that other implementations behave the
same. They can inherit from ``WholeTables``, which provides the methods that exist only for
performance. ``ForwardingBackend`` (forwarding.py) wraps another backend. ``NamespaceKernel``
(namespace.py) uses the real kernel in a disposable network namespace, where links and addresses can
be changed as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Protocol, TypeVar

from hostrouting.kernel.nexthops import Router
from hostrouting.model.answers import Lookup, RouteFailure
from hostrouting.model.errors import RouteError
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.integer_prefixes import Prefix, PrefixSet, ends, numbers
from hostrouting.model.links import Address, AddressLabel, Link
from hostrouting.model.routes import Route, Route6, RouteType, Table
from hostrouting.model.rules import Rule
from phases import CancelScope

T = TypeVar("T")


class Lookups(Protocol):
    """The lookups in a kernel, or in a model of one."""

    def lookup(
        self,
        addresses: Sequence[IpAddress],
        *,
        source: IpAddress | None = None,
        is_tcp: bool = False,
    ) -> tuple[Lookup, ...]:
        """Return the best route to each address, for packets from this host (mark 0, tos 0, uid 0, not bound).

        If the FIB has no route for the packet, the result is a ``Lookup`` with an errno:
        ENETUNREACH (nothing matches), EHOSTUNREACH (unreachable), EACCES (prohibit) or EINVAL
        (blackhole). Any other errno (ENOMEM, EMFILE...) means that the lookup itself failed and
        raises ``RouteError``. EACCES therefore never indicates missing privileges.

        Args:
            addresses: the destinations.
            source: the packet's source address, or None (or 0.0.0.0) before the socket has chosen
                one. Lookups from an address that isn't local fail (ENETUNREACH, or EINVAL for
                multicast and broadcast).
            is_tcp: True for TCP, False for UDP. The kernel assumes UDP if no protocol is specified
                (inet_rtm_getroute in net/ipv4/route.c).
        """

    def sources(
        self, entries: Mapping[Route, Sequence[IpAddress]], *, is_tcp: bool = False
    ) -> dict[Route, tuple[IpAddress, ...]]:
        """Return the source addresses that the kernel selects for packets without one, grouped by entry.

        Args:
            entries: entries returned by ``lookup``, each with addresses that it matches. One
                address is enough for an entry with a single hop. An entry with several hops needs
                enough addresses to exercise all of them. Each address gets its own port. The kernel
                is queried for each address and, if an entry has several hops, for each interface. A
                backend without a kernel derives the sources from the entries.
            is_tcp: see ``lookup``.

        Returns:
            The source addresses for each entry, sorted and without duplicates.
        """

    def sources_of_unrouted(
        self, addresses: Sequence[IpAddress], *, is_tcp: bool = False
    ) -> dict[IpAddress, IpAddress]:
        """Return the source addresses with which the kernel retries failed lookups.

        Only IPv6 does this. The kernel selects the source from the addresses of all interfaces
        (ip6_dst_lookup_tail).

        Args:
            addresses: destinations for which a lookup without a source address failed.
            is_tcp: see ``lookup``.

        Returns:
            The source address for each destination. Destinations that remain unreachable are
            omitted.
        """


class RouteBackend(Lookups, Protocol):
    """A network namespace's FIB for one address family.

    All addresses and prefixes that the methods accept and return belong to ``family``.

    Read methods raise ``RouteError`` if the kernel can't be queried. Bulk write methods attempt
    every route in the given order and continue after a failure. They return the failed routes in
    the same order, so an empty tuple means success. They raise ``RouteError`` only if nothing was
    attempted.
    """

    @property
    def family(self) -> Family:
        """Return the address family."""

    def links(self) -> tuple[Link, ...]:
        """Return all network interfaces, sorted by index."""

    def addresses(self) -> tuple[Address, ...]:
        """Return all of this host's addresses."""

    def rules(self) -> tuple[Rule, ...]:
        """Return the policy rules in evaluation order."""

    def routes(self, table: int | None = None) -> tuple[Route, ...]:
        """Return the entries in one or all tables, in the kernel's order.

        A missing table counts as empty.
        """

    def routes_by_attributes(self, table: int) -> tuple[tuple[Route, Sequence[Prefix]], ...]:
        """Return a table's entries, grouped by attributes, in the kernel's order.

        Returns:
            For each group, a template entry with a placeholder destination, and the prefixes of all
            entries in the group.
        """

    def lookup_by_attributes(
        self, addresses: Sequence[IpAddress]
    ) -> tuple[tuple[Route, Prefix] | None, ...]:
        """Return the same entries as ``lookup``, for UDP packets without a source.

        Returns:
            For each address, a template entry with a placeholder destination, and the entry's
            prefix, or None if there is no route. Instead of an entry with a nexthop object, another
            entry with the same object may be returned.
        """

    def default_routes(self) -> tuple[Route, ...]:
        """Return the entries for 0.0.0.0/0 or ::/0 in table main, in the kernel's order."""

    def our_routes(self) -> tuple[Route, ...]:
        """Return our own entries in table main (``Route.is_ours``), in the kernel's order."""

    def routes_except(
        self,
        devs: Collection[str],
        *,
        inside: Sequence[Prefix] = (),
        sources: Collection[IpAddress] = (),
    ) -> tuple[Route, ...]:
        """Return the entries in all tables, except plain ones through certain interfaces.

        Default routes are always included. A plain entry is unicast with tos 0, and all its live
        hops are on these interfaces. Entries with scope link or narrower aren't plain, because
        gateways are reached through them. A plain entry has no encapsulation (``Route.encap``) and
        no source prefix. Its ``src``, if any, is one of ``sources``, and none of its gateways is.

        Args:
            devs: the interface names.
            inside: prefixes in which plain entries are included too.
            sources: the host's addresses, from which packets may leave.

        Returns:
            The entries in the kernel's order.
        """

    def silent_routers(self) -> frozenset[Router]:
        """Return the routers that the kernel avoids as long as other routes lead to the same destination.

        Only IPv6 does this, and only if the host doesn't forward packets. These routers have a
        FAILED neighbour entry.
        """

    def address_labels(self) -> tuple[AddressLabel, ...]:
        """Return the labels by which the kernel selects source addresses, longest prefix first.

        Only IPv6 has these.
        """

    def noticing_changes(
        self, inside: Sequence[Prefix], /
    ) -> AbstractContextManager[Callable[[], bool]]:
        """Yield a function that returns whether anything relevant may have changed since, even if it changed back.

        Links, addresses, rules and nexthop objects are always relevant; for entries, see
        ``is_relevant``. After the function has returned True, it keeps returning True. A backend
        without notifications may delegate to another backend in the same network namespace
        (``NetlinkBackend().noticing_changes``).

        Args:
            inside: the relevant prefixes. An entry is relevant if its destination overlaps one of
                them.

        Raises:
            UnstableHostError: the data is inconsistent, as in a torn snapshot.
        """

    def add(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Add routes.

        A route whose ``key`` already exists fails with EEXIST (NLM_F_CREATE | NLM_F_EXCL).
        """

    def replace(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Add routes, or replace the first existing ones with the same ``key`` (NLM_F_CREATE | NLM_F_REPLACE)."""

    def delete(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Delete exactly these routes.

        A route that doesn't exist fails with ESRCH.

        The destination, table, tos, metric, type, protocol and first hop must match. The scope,
        source, MTU and later hops are ignored. A first hop with ``dev=None`` matches any device. If
        the first hop's device doesn't exist, the error is ENODEV rather than ESRCH, because the
        request can't be encoded.

        An IPv6 route's next hops are deleted one by one. Each next hop that fails is returned as a
        route of its own.

        The kernel matches more loosely, so each call may have to read the existing entries first. A
        single call with many routes is therefore cheaper than many calls with a few routes each.
        """

    def wait_for_change(self, scope: CancelScope) -> None:
        """Wait until links, addresses, routes or rules may have changed since this thread's last call.

        The first call returns immediately, so a loop that waits and then reads doesn't miss
        anything. Treat a return only as a hint to read again: there may be no change, and not every
        lost route triggers an event.

        A backend without notifications may delegate to another backend in the same network
        namespace (``NetlinkBackend().wait_for_change``), but must use the same instance for all
        calls.

        Args:
            scope: the cancel scope for the wait.

        Raises:
            phases.Cancelled, phases.TimedOut: the scope was cancelled or timed out first.
        """


class Kernel(RouteBackend, Protocol):
    """A backend whose links, addresses and rules can be changed too, in memory or in a dedicated namespace."""

    def add_link(self, name: str, *, up: bool = True) -> None:
        """Add an Ethernet-like interface with a carrier."""

    def set_link(self, name: str, *, up: bool | None = None, carrier: bool | None = None) -> None:
        """Set an interface up or down, or plug or unplug its cable."""

    def del_link(self, name: str) -> None:
        """Delete an interface along with its addresses and routes."""

    def add_address(
        self,
        dev: str,
        address: str,
        *,
        peer: str | None = None,
        metric: int = 0,
        prefix_route: bool = True,
    ) -> None:
        """Add an address like ``10.1.0.4/24``.

        With ``peer``, the prefix length applies to the peer.
        """

    def del_address(self, dev: str, address: str) -> None:
        """Remove an address from an interface."""

    def add_rule(self, rule: Rule) -> None:
        """Add a policy rule."""

    def del_rule(self, rule: Rule) -> None:
        """Delete a policy rule."""


def is_plain_through(route: Route, devs: Collection[str], sources: Collection[IpAddress]) -> bool:
    """Return whether ``RouteBackend.routes_except`` may omit an entry.

    Args:
        route: the entry. Its destination is ignored.
        devs: the interface names.
        sources: the host's addresses, from which packets may leave.
    """
    return route.tos == 0 and not route.is_near and leaves_through(route, devs, sources)


def leaves_through(route: Route, devs: Collection[str], sources: Collection[IpAddress]) -> bool:
    """Return whether every packet that matches an entry leaves through these interfaces; see ``is_plain_through``."""
    return (
        route.type is RouteType.UNICAST
        and bool(by := route.devs)
        and set(by).issubset(devs)
        and not route.encap
        and (route.source is None or route.source in sources)
        and not any(hop.gateway in sources for hop in route.hops)
        and not (isinstance(route, Route6) and route.source_prefix is not None)
    )


def is_relevant(table: int, prefix: Prefix, inside: PrefixSet) -> bool:
    """Return whether ``RouteBackend.noticing_changes`` must report a change to an entry.

    Args:
        table: the entry's table. All entries in table local are relevant, because they determine
            which addresses are local.
        prefix: the destination of the entry.
        inside: the prefixes in which entries are relevant.
    """
    (first, length), bits = prefix, inside.bits
    # When an IPv6 dump resumes, the kernel skips a number of entries, counted from the start of the
    # table (fib6_dump_table), so any change may make the dump miss or repeat entries.
    if bits == Family.IPV6.bits:
        return True
    # When an IPv4 dump resumes among entries with the same first address, the kernel skips a number
    # of these (fn_trie_dump_leaf), so a change to any of them is relevant.
    while length and not first >> (bits - length) & 1:
        length -= 1
    return table == Table.LOCAL or inside.overlaps(*ends((first, length), bits))


class UnstableHostError(RouteError):
    """Exception raised when the host changed during every read, or while a snapshot was taken."""


# A read takes a few milliseconds, so this many changes in a row aren't a coincidence. Large tables
# take longer, so there is also a time limit: a user may be waiting.
_ATTEMPTS, _SECONDS = 16, 5.0


def read_consistently(
    watched: Sequence[tuple[RouteBackend, Sequence[Prefix]]],
    scope: CancelScope,
    read: Callable[[], T],
) -> tuple[T, UnstableHostError | None]:
    """Retry a read until nothing changes during it, up to a maximum number of attempts and a timeout.

    Comparing the tables before and after isn't enough, because a change may have been reverted.

    Args:
        watched: the backends to read, each with the prefixes in which no entry may change.
        scope: the cancel scope, which is checked before each read.
        read: a function that reads all data that must be consistent.

    Returns:
        The last result, and an error if it may be inconsistent, or else None.
    """
    try:
        until = scope.clock.monotonic() + _SECONDS
        for _ in range(_ATTEMPTS):
            scope.check()
            begin = scope.clock.monotonic()
            with ExitStack() as stack:
                changes = [
                    stack.enter_context(backend.noticing_changes(inside))
                    for backend, inside in watched
                ]
                found = read()
                if not any(may_have_changed() for may_have_changed in changes):
                    return found, None
            now = scope.clock.monotonic()
            if now + (now - begin) > until:
                break
    except UnstableHostError as error:
        return read(), error
    return found, UnstableHostError(
        "the routes changed each time that they were read; try again later"
    )


def refuse_datagrams(lookups: Sequence[Lookup]) -> None:
    """Raise an error if a UDP lookup succeeds for an address whose TCP lookup failed.

    Args:
        lookups: the UDP lookups for addresses whose TCP lookup failed.
    """
    for found in lookups:
        if found.route is not None:
            reason = "a UDP lookup succeeds, so no socket shows the source of TCP's second lookup"
            raise RouteError(f"can't determine how TCP to {found.address} is routed: {reason}")


class Ipv4Lookups:
    """A base class that implements the methods of ``RouteBackend`` that only matter for IPv6."""

    def sources_of_unrouted(
        self, addresses: Sequence[IpAddress], *, is_tcp: bool = False
    ) -> dict[IpAddress, IpAddress]:
        """Return an empty dict: the kernel never retries a failed IPv4 lookup."""
        return {}

    def silent_routers(self) -> frozenset[Router]:
        """Return an empty set: IPv4 doesn't avoid unreachable routers."""
        return frozenset()

    def address_labels(self) -> tuple[AddressLabel, ...]:
        """Return an empty tuple: IPv4 addresses have no labels."""
        return ()


class WholeTables(Ipv4Lookups):
    """A base class that implements the selective reads of ``RouteBackend`` with ``routes``."""

    def routes_by_attributes(
        self: RouteBackend, table: int
    ) -> tuple[tuple[Route, Sequence[Prefix]], ...]:
        """Return a table's entries in the kernel's order, each in its own group."""
        return tuple((route, (numbers(route.destination),)) for route in self.routes(table))

    def lookup_by_attributes(
        self: RouteBackend, addresses: Sequence[IpAddress]
    ) -> tuple[tuple[Route, Prefix] | None, ...]:
        """Return the same entries as ``lookup``, each with its prefix."""
        found = (lookup.route for lookup in self.lookup(addresses))
        return tuple(
            None if route is None else (route, numbers(route.destination)) for route in found
        )

    def default_routes(self: RouteBackend) -> tuple[Route, ...]:
        """Return the entries for 0.0.0.0/0 or ::/0 in table main, in the kernel's order."""
        return tuple(route for route in self.routes(Table.MAIN) if route.destination.prefixlen == 0)

    def our_routes(self: RouteBackend) -> tuple[Route, ...]:
        """Return our own entries in table main, in the kernel's order."""
        return tuple(route for route in self.routes(Table.MAIN) if route.is_ours)

    def routes_except(
        self: RouteBackend,
        devs: Collection[str],
        *,
        inside: Sequence[Prefix] = (),
        sources: Collection[IpAddress] = (),
    ) -> tuple[Route, ...]:
        """Return the entries in all tables, except plain ones that use ``devs`` and aren't within ``inside``."""
        prefixes = PrefixSet(inside, self.family.bits)
        return tuple(
            route
            for route in self.routes()
            if route.destination.prefixlen == 0
            or not is_plain_through(route, devs, sources)
            or prefixes.covers(numbers(route.destination))
        )
