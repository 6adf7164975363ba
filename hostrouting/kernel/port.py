"""The routes port: what hostrouting needs from a kernel.

``NetlinkBackend`` (netlink.py) is the real kernel, ``FakeKernel`` (memory.py) one in memory.
``hostrouting.testing.conformance`` checks that a third implementation gives the same answers; it can leave methods that
exist only for speed to ``WholeTables``. ``NamespaceKernel`` (namespace.py) is the real kernel in a throw-away network
namespace, where links and addresses can be changed too.
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
    route in the given order, continue after a failure, and return the failures, each with its route, in that order:
    an empty tuple means that all succeeded. They raise ``RouteError`` only if nothing was attempted.
    """

    def links(self) -> tuple[Link, ...]:
        """Return all network interfaces, by index."""

    def addresses(self) -> tuple[Address, ...]:
        """Return all IPv4 addresses of this host."""

    def rules(self) -> tuple[Rule, ...]:
        """Return the policy rules in the order in which the kernel evaluates them."""

    def routes(self, table: int | None = None) -> tuple[Route, ...]:
        """Return the entries of a table, or of every table if none is named, in the kernel's order.

        A table that doesn't exist is empty.
        """

    def routes_by_attributes(self, table: int) -> tuple[tuple[Route, Sequence[Prefix]], ...]:
        """Return the entries of a table in groups with the same attributes, in the kernel's order.

        Returns:
            An entry whose destination doesn't count, and the prefixes of entries that differ from it in nothing else.
        """

    def default_routes(self) -> tuple[Route, ...]:
        """Return the entries of table main for 0.0.0.0/0, in the kernel's order."""

    def our_routes(self) -> tuple[Route, ...]:
        """Return the entries of table main that are ours (``Route.is_ours``), in the kernel's order."""

    def routes_except(
        self, devs: Collection[str], *, inside: Sequence[Prefix] = (), sources: Collection[IPv4Address] = ()
    ) -> tuple[Route, ...]:
        """Return the entries of every table except the plain ones through some interfaces; large tables need this.

        A plain entry is unicast for tos 0, and all its live hops are on these interfaces; it isn't of scope link or
        nearer, where gateways are, encapsulates nothing (``Route.encap``), and has no ``src`` except one of
        ``sources``.

        Args:
            devs: the names of the interfaces.
            inside: prefixes; a plain entry is included if its destination is one of them or lies in one.
            sources: the sources that a plain entry may have.

        Returns:
            The entries in the kernel's order.
        """

    def noticing_changes(self, inside: Sequence[Prefix], /) -> AbstractContextManager[Callable[[], bool]]:
        """Yield a function that returns whether anything that matters may have changed since then, even if it reverted.

        Links, addresses, rules and nexthop objects always matter, and entries according to ``matters``. Once the
        function has returned True, it always does. A backend that can't listen may delegate to another one in the same
        network namespace (``NetlinkBackend().noticing_changes``).

        Args:
            inside: prefixes; an entry matters if it has an address in one of them.

        Raises:
            RestlessError: the data never was of one moment, as in a torn snapshot.
        """

    def lookup(
        self, addresses: Sequence[IPv4Address], *, source: IPv4Address | None = None, is_tcp: bool = False
    ) -> tuple[Lookup, ...]:
        """Return for each address the entry that wins for a packet of this host (mark 0, tos 0, uid 0, nothing bound).

        If the FIB has another result than an entry, the answer is a ``Lookup`` with its errno: ENETUNREACH (nothing
        matches), EHOSTUNREACH (unreachable), EACCES (prohibit), EINVAL (blackhole). Any other errno (ENOMEM, EMFILE...)
        means that the lookup failed: a ``RouteError``. So here EACCES never means a lack of privileges.

        Args:
            addresses: the destinations.
            source: the packet's source, as chosen by a connecting socket; from a source that isn't an address of this
                host, nothing can be reached (ENETUNREACH, EINVAL from multicast or broadcast). None, or 0.0.0.0 as in a
                packet: none is chosen yet.
            is_tcp: whether the packet is TCP's; otherwise it is UDP's, which the kernel assumes if no protocol is given
                (inet_rtm_getroute in net/ipv4/route.c).
        """

    def sources(
        self, entries: Mapping[Route, Sequence[IPv4Address]], *, is_tcp: bool = False
    ) -> dict[Route, tuple[IPv4Address, ...]]:
        """Return the sources that the kernel chooses for packets without one, by the entries that win for them.

        Args:
            entries: answers of ``lookup``, each with addresses for which it wins: one address, or, for an entry with
                several hops, enough of them that each hop carries some, on their own ports. The kernel is queried about
                the addresses; a backend without a kernel computes from the entries.
            is_tcp: as for ``lookup``.

        Returns:
            For each entry the sources, without duplicates, in ascending order.
        """

    def add(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Add routes; a route whose ``key`` is taken fails with EEXIST (NLM_F_CREATE | NLM_F_EXCL)."""

    def replace(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Add routes, or replace the first ones with the same ``key`` (NLM_F_CREATE | NLM_F_REPLACE)."""

    def delete(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Delete exactly these routes; a route that isn't there fails with ESRCH.

        Destination, table, tos, metric, type, protocol and the first hop must match; scope, source, MTU and later
        hops don't count. A first hop with ``dev=None`` matches any device. A first hop with a device that doesn't
        exist is ENODEV, not ESRCH, because such a request can't be made.

        The kernel's own match is looser, so each call may have to read the existing entries first: many calls with a
        few routes each cost more than one call with many.
        """

    def wait_for_change(self, scope: CancelScope) -> None:
        """Return when links, addresses, routes or rules may have changed since this thread's last call.

        The first call returns at once, so that a loop of wait, read, decide misses nothing. A return is only a reason
        to read: there may be no change, and some losses of routes send no event.

        A backend that can't listen may delegate to another one in the same network namespace
        (``NetlinkBackend().wait_for_change``), which it keeps as long as itself.

        Args:
            scope: cancels the wait.

        Raises:
            phases.Cancelled, phases.TimedOut: the scope was cancelled first.
        """


class Kernel(RouteBackend, Protocol):
    """A backend whose links and addresses can be changed too: in memory, or in a namespace made for the purpose."""

    def add_link(self, name: str, *, up: bool = True) -> None:
        """Add an Ethernet-like interface with carrier."""

    def set_link(self, name: str, *, up: bool | None = None, carrier: bool | None = None) -> None:
        """Set an interface up or down, or plug or unplug its cable."""

    def del_link(self, name: str) -> None:
        """Delete an interface with its addresses and routes."""

    def add_address(
        self, dev: str, address: str, *, peer: str | None = None, metric: int = 0, prefix_route: bool = True
    ) -> None:
        """Give an interface an address like ``10.1.0.4/24``; with ``peer`` the prefix length is the peer's."""

    def del_address(self, dev: str, address: str) -> None:
        """Remove an address from an interface."""

    def add_rule(self, rule: Rule) -> None:
        """Add a policy rule."""

    def del_rule(self, rule: Rule) -> None:
        """Delete a policy rule."""


def is_plain_by(route: Route, devs: Collection[str], sources: Collection[IPv4Address]) -> bool:
    """Return whether ``RouteBackend.routes_except`` may leave out an entry through some interfaces.

    Args:
        route: the entry; its destination doesn't count.
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
        table: the entry's table; in table local all entries matter, because they decide which sources are this host's.
        prefix: the entry's destination.
        inside: the prefixes in which entries matter.
    """
    first, length = prefix
    # A dump that resumes among entries with the same first address counts those before (fn_trie_dump_leaf).
    while length and not first >> (32 - length) & 1:
        length -= 1
    return table == Table.LOCAL or inside.overlaps(*ends((first, length)))


class RestlessError(RouteError):
    """A host changed during each read."""


# From the first read to the last answer takes milliseconds, so this many changes in a row are no coincidence. Large
# tables take longer, and a person waits.
_ATTEMPTS, _SECONDS = 16, 5.0


def at_one_moment(
    backend: RouteBackend, inside: Sequence[Prefix], scope: CancelScope, read: Callable[[], T]
) -> tuple[T, RestlessError | None]:
    """Read until nothing changes during a read, a limited number of times, and not again if it would take too long.

    Tables that are equal before and after prove nothing: a change may have come and gone.

    Args:
        backend: the backend to read.
        inside: prefixes outside of which entries may change.
        scope: cancels it between two reads.
        read: reads everything that belongs together.

    Returns:
        The last result, and why it may be from several moments; None: it is from one.
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
    """The selective reads of a ``RouteBackend``, made from ``routes``; derive from this class."""

    if TYPE_CHECKING:

        def routes(self, table: int | None = None) -> tuple[Route, ...]:
            """Return routes as ``RouteBackend.routes`` does."""

    def routes_by_attributes(self, table: int) -> tuple[tuple[Route, Sequence[Prefix]], ...]:
        """Return the entries of a table in the kernel's order, each by itself."""
        return tuple((route, (numbers(route.destination),)) for route in self.routes(table))

    def default_routes(self) -> tuple[Route, ...]:
        """Return the entries of table main for 0.0.0.0/0, in the kernel's order."""
        return tuple(route for route in self.routes(Table.MAIN) if route.destination.prefixlen == 0)

    def our_routes(self) -> tuple[Route, ...]:
        """Return the entries of table main that are ours, in the kernel's order."""
        return tuple(route for route in self.routes(Table.MAIN) if route.is_ours)

    def routes_except(
        self, devs: Collection[str], *, inside: Sequence[Prefix] = (), sources: Collection[IPv4Address] = ()
    ) -> tuple[Route, ...]:
        """Return the entries of every table except the plain ones through some interfaces outside some prefixes."""
        prefixes = PrefixSet(inside)
        return tuple(
            route
            for route in self.routes()
            if not is_plain_by(route, devs, sources) or prefixes.covers(numbers(route.destination))
        )
