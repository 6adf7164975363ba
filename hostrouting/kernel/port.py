"""Define the routes port, which is what hostrouting needs from a kernel.

``NetlinkBackend`` (netlink.py) is the real kernel, and ``FakeKernel`` (memory.py) is a kernel in memory.
``hostrouting.testing.conformance`` checks that another implementation gives the same answers. Such an implementation
can inherit methods that exist only for speed from ``WholeTables``. ``NamespaceKernel`` (namespace.py) is the real
kernel in a throw-away network namespace, in which links and addresses can be changed as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Protocol, TypeVar

from hostrouting.model.errors import RouteError
from hostrouting.model.links import Address, Link
from hostrouting.model.prefixes import Prefix, PrefixSet, ends, numbers
from hostrouting.model.routes import Lookup, Route, RouteFailure, RouteType, Scope, Table
from hostrouting.model.rules import Rule
from phases import CancelScope

T = TypeVar("T")


class RouteBackend(Protocol):
    """The IPv4 FIB of one network namespace.

    Methods that read raise ``RouteError`` if the kernel can't be queried. The bulk methods that write attempt every
    route in the given order and continue after a failure. They return the failures with their routes in the same order,
    so an empty tuple means that all routes succeeded. They raise ``RouteError`` only if nothing was attempted.
    """

    def links(self) -> tuple[Link, ...]:
        """Return all network interfaces, by index."""

    def addresses(self) -> tuple[Address, ...]:
        """Return all IPv4 addresses of this host."""

    def rules(self) -> tuple[Rule, ...]:
        """Return the policy rules in the order in which the kernel evaluates them."""

    def routes(self, table: int | None = None) -> tuple[Route, ...]:
        """Return the entries of a table, or of every table, in the kernel's order.

        A table that doesn't exist is empty.
        """

    def routes_by_attributes(self, table: int) -> tuple[tuple[Route, Sequence[Prefix]], ...]:
        """Return the entries of a table in groups with the same attributes, in the kernel's order.

        Returns:
            For each group, an entry whose destination doesn't count, and the prefixes of all entries with its
            attributes.
        """

    def default_routes(self) -> tuple[Route, ...]:
        """Return the entries of table main for 0.0.0.0/0, in the kernel's order."""

    def our_routes(self) -> tuple[Route, ...]:
        """Return our own entries of table main (``Route.is_ours``), in the kernel's order."""

    def routes_except(
        self, devs: Collection[str], *, inside: Sequence[Prefix] = (), sources: Collection[IPv4Address] = ()
    ) -> tuple[Route, ...]:
        """Return the entries of every table except plain ones through certain interfaces, as needed for large tables.

        A plain entry is unicast with tos 0, and all its live hops are on these interfaces. Its scope isn't link or
        narrower, because such entries lead to gateways. It has no encapsulation (``Route.encap``), and no ``src``
        except one of ``sources``.

        Args:
            devs: the names of the interfaces.
            inside: prefixes. A plain entry is included if its destination is one of them or is inside one.
            sources: the sources that a plain entry may have.

        Returns:
            The entries in the kernel's order.
        """

    def noticing_changes(self, inside: Sequence[Prefix], /) -> AbstractContextManager[Callable[[], bool]]:
        """Yield a function that returns whether anything that matters may have changed, even if it changed back.

        Links, addresses, rules and nexthop objects always matter, and ``matters`` decides about entries. Once the
        function has returned True, it always returns True. A backend that can't listen may delegate to another backend
        in the same network namespace (``NetlinkBackend().noticing_changes``).

        Args:
            inside: prefixes. An entry matters if it has an address in one of them.

        Raises:
            RestlessError: the data isn't from one moment, as in a torn snapshot.
        """

    def lookup(
        self, addresses: Sequence[IPv4Address], *, source: IPv4Address | None = None, is_tcp: bool = False
    ) -> tuple[Lookup, ...]:
        """Return the winning entry for each address, for packets from this host (mark 0, tos 0, uid 0, nothing bound).

        If no entry of the FIB carries the packet, the answer is a ``Lookup`` with an errno: ENETUNREACH (nothing
        matches), EHOSTUNREACH (unreachable), EACCES (prohibit) or EINVAL (blackhole). Any other errno (ENOMEM,
        EMFILE...) means that the lookup failed and raises ``RouteError``. EACCES therefore never means a lack of
        privileges here.

        Args:
            addresses: the destinations.
            source: the source of the packet, as a connecting socket has chosen it, or None or 0.0.0.0 if no source is
                chosen yet. From a source that isn't an address of this host, nothing can be reached (ENETUNREACH, or
                EINVAL from multicast or broadcast).
            is_tcp: whether the packet is TCP rather than UDP. The kernel assumes UDP if no protocol is given
                (inet_rtm_getroute in net/ipv4/route.c).
        """

    def sources(
        self, entries: Mapping[Route, Sequence[IPv4Address]], *, is_tcp: bool = False
    ) -> dict[Route, tuple[IPv4Address, ...]]:
        """Return the sources that the kernel chooses for packets that have no source yet, grouped by entry.

        Args:
            entries: answers of ``lookup``, each with addresses for which it wins. One address is enough for an entry
                with one hop. An entry with several hops needs enough addresses that each hop carries some. Each address
                has its own port. The kernel is queried about the addresses. A backend without a kernel computes the
                sources from the entries.
            is_tcp: see ``lookup``.

        Returns:
            The sources for each entry, without duplicates and in ascending order.
        """

    def add(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Add routes.

        A route whose ``key`` is taken fails with EEXIST (NLM_F_CREATE | NLM_F_EXCL).
        """

    def replace(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Add routes, or replace the first ones with the same ``key`` (NLM_F_CREATE | NLM_F_REPLACE)."""

    def delete(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Delete exactly these routes.

        A route that doesn't exist fails with ESRCH.

        The destination, table, tos, metric, type, protocol and first hop must match. The scope, source, MTU and later
        hops don't count. A first hop with ``dev=None`` matches any device. If the device of the first hop doesn't
        exist, the error is ENODEV and not ESRCH, because such a request can't be made.

        The kernel matches more loosely, so each call may have to read the existing entries first. Many calls with a few
        routes each therefore cost more than one call with many routes.
        """

    def wait_for_change(self, scope: CancelScope) -> None:
        """Return when links, addresses, routes or rules may have changed since the last call in this thread.

        The first call returns at once, so that a loop that waits, reads and decides misses nothing. A return is only a
        reason to read: there may be no change, and the loss of a route doesn't always send an event.

        A backend that can't listen may delegate to another backend in the same network namespace
        (``NetlinkBackend().wait_for_change``), which it has to keep as long as it exists itself.

        Args:
            scope: the scope that can cancel the wait.

        Raises:
            phases.Cancelled, phases.TimedOut: the scope was cancelled first.
        """


class Kernel(RouteBackend, Protocol):
    """A backend, in memory or in a namespace made for it, whose links and addresses can be changed as well."""

    def add_link(self, name: str, *, up: bool = True) -> None:
        """Add an Ethernet-like interface with a carrier."""

    def set_link(self, name: str, *, up: bool | None = None, carrier: bool | None = None) -> None:
        """Set an interface up or down, or plug or unplug its cable."""

    def del_link(self, name: str) -> None:
        """Delete an interface with its addresses and routes."""

    def add_address(
        self, dev: str, address: str, *, peer: str | None = None, metric: int = 0, prefix_route: bool = True
    ) -> None:
        """Give an interface an address like ``10.1.0.4/24``. With ``peer``, the prefix length belongs to the peer."""

    def del_address(self, dev: str, address: str) -> None:
        """Remove an address from an interface."""

    def add_rule(self, rule: Rule) -> None:
        """Add a policy rule."""

    def del_rule(self, rule: Rule) -> None:
        """Delete a policy rule."""


def is_plain_by(route: Route, devs: Collection[str], sources: Collection[IPv4Address]) -> bool:
    """Return whether ``RouteBackend.routes_except`` may leave out an entry through certain interfaces.

    Args:
        route: the entry. Its destination doesn't count.
        devs: the names of the interfaces.
        sources: the sources that the entry may have.
    """
    return (
        route.type is RouteType.UNICAST
        and route.tos == 0
        and route.scope < Scope.LINK
        and bool(by := route.devs)
        and set(by) <= set(devs)
        and not route.encap
        and (route.source is None or route.source in sources)
    )


def matters(table: int, prefix: Prefix, inside: PrefixSet) -> bool:
    """Return whether ``RouteBackend.noticing_changes`` has to report the change of an entry.

    Args:
        table: the table of the entry. In table local, all entries matter, because they decide which sources belong to
            this host.
        prefix: the destination of the entry.
        inside: the prefixes in which entries matter.
    """
    first, length = prefix
    # If a dump resumes among entries with the same first address, it counts the entries before (fn_trie_dump_leaf).
    while length and not first >> (32 - length) & 1:
        length -= 1
    return table == Table.LOCAL or inside.overlaps(*ends((first, length)))


class RestlessError(RouteError):
    """The error for a host that changed during each read."""


# The time from the first read to the last answer is a few milliseconds, so this many changes in a row aren't a
# coincidence. Large tables take longer, and a person may be waiting.
_ATTEMPTS, _SECONDS = 16, 5.0


def at_one_moment(
    backend: RouteBackend, inside: Sequence[Prefix], scope: CancelScope, read: Callable[[], T]
) -> tuple[T, RestlessError | None]:
    """Repeat a read until nothing changes during it, within a limit on the number of reads and on the time.

    Comparing the tables before and after proves nothing, because a change may have been reverted.

    Args:
        backend: the backend to read.
        inside: the prefixes in which entries must not change.
        scope: the scope that can cancel the call between two reads.
        read: a function that reads everything that belongs together.

    Returns:
        The last result, and an error if the result may be from several moments, or None if it is from one moment.
    """
    try:
        until = scope.clock.monotonic() + _SECONDS
        for _ in range(_ATTEMPTS):
            scope.check()
            begin = scope.clock.monotonic()
            with backend.noticing_changes(inside) as may_have_changed:
                found = read()
                if not may_have_changed():
                    return found, None
            now = scope.clock.monotonic()
            if now + (now - begin) > until:
                break
    except RestlessError as error:
        return read(), error
    return found, RestlessError("the routes changed each time that they were read; try again later")


class WholeTables:
    """A base class with the selective reads of a ``RouteBackend``, implemented with ``routes``."""

    if TYPE_CHECKING:

        def routes(self, table: int | None = None) -> tuple[Route, ...]:
            """Return routes as ``RouteBackend.routes`` does."""

    def routes_by_attributes(self, table: int) -> tuple[tuple[Route, Sequence[Prefix]], ...]:
        """Return the entries of a table in the kernel's order, each in its own group."""
        return tuple((route, (numbers(route.destination),)) for route in self.routes(table))

    def default_routes(self) -> tuple[Route, ...]:
        """Return the entries of table main for 0.0.0.0/0, in the kernel's order."""
        return tuple(route for route in self.routes(Table.MAIN) if route.destination.prefixlen == 0)

    def our_routes(self) -> tuple[Route, ...]:
        """Return our own entries of table main, in the kernel's order."""
        return tuple(route for route in self.routes(Table.MAIN) if route.is_ours)

    def routes_except(
        self, devs: Collection[str], *, inside: Sequence[Prefix] = (), sources: Collection[IPv4Address] = ()
    ) -> tuple[Route, ...]:
        """Return the entries of every table, except plain ones through certain interfaces outside certain prefixes."""
        prefixes = PrefixSet(inside)
        return tuple(
            route
            for route in self.routes()
            if not is_plain_by(route, devs, sources) or prefixes.covers(numbers(route.destination))
        )
