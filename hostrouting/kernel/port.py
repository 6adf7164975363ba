"""The routes port: what hostrouting asks of a kernel.

``NetlinkBackend`` (netlink.py) is the real one, ``FakeKernel`` (memory.py) the one in memory; a third is held
to the same answers by ``hostrouting.testing.conformance``, and may leave what is there for speed alone to
``WholeTables``. ``NamespaceKernel`` (namespace.py) is the real one in a throw-away network namespace, where links and
addresses can be changed too.
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

    Calls that read raise ``RouteError`` if the kernel can't be asked. The bulk calls that write attempt every
    route in the given order, go on after a failure, and return the failures, each with its route, in that order:
    an empty tuple means that all went in. They raise ``RouteError`` only where nothing was attempted.
    """

    def links(self) -> tuple[Link, ...]:
        """All network interfaces, by index."""

    def addresses(self) -> tuple[Address, ...]:
        """All IPv4 addresses of this host."""

    def rules(self) -> tuple[Rule, ...]:
        """Return the policy rules in the order in which the kernel asks them."""

    def routes(self, table: int | None = None) -> tuple[Route, ...]:
        """Return the entries of a table, in the kernel's order; of every table, if none is named.

        A table that doesn't exist is empty.
        """

    def routes_by_attributes(self, table: int) -> tuple[tuple[Route, Sequence[Prefix]], ...]:
        """Return the entries of a table without a value for each: in the kernel's order, grouped by their next hops.

        Returns:
            An entry whose destination doesn't count, and the prefixes of some that differ from it in nothing else.
        """

    def default_routes(self) -> tuple[Route, ...]:
        """Return the entries of table main for 0.0.0.0/0, in the kernel's order."""

    def our_routes(self) -> tuple[Route, ...]:
        """Return the entries of table main that are ours (``Route.is_ours``), in the kernel's order."""

    def routes_except(
        self, devs: Collection[str], *, inside: Sequence[Prefix] = (), sources: Collection[IPv4Address] = ()
    ) -> tuple[Route, ...]:
        """Return the entries of every table but the plain ones by some interfaces, as a check of a large table needs.

        A plain entry is unicast for tos 0, and all its live hops are on these interfaces; it isn't of scope link or
        nearer, where gateways are, encapsulates nothing (``Route.encap``), and names no ``src`` but some of its own.

        Args:
            devs: names of interfaces.
            inside: prefixes; a plain entry whose destination is one of them or lies in one is given too.
            sources: that a plain entry may name.

        Returns:
            The entries in the kernel's order.
        """

    def noticing_changes(self, inside: Sequence[Prefix], /) -> AbstractContextManager[Callable[[], bool]]:
        """While it is open, tell whether anything that matters may have changed since it was opened, even to and fro.

        Links, addresses, rules and nexthop objects matter always, and entries by ``matters``. Once a change has been
        told, each later call tells it again. A backend that can't listen by itself may leave this to another one of the
        same network namespace (``NetlinkBackend().noticing_changes``).

        Args:
            inside: prefixes; an entry matters that has an address in one of them.

        Raises:
            RestlessError: what is read was never of one moment, as in a torn snapshot.
        """

    def lookup(
        self, addresses: Sequence[IPv4Address], *, source: IPv4Address | None = None, is_tcp: bool = False
    ) -> tuple[Lookup, ...]:
        """For each address the entry that wins for a packet of this host (mark 0, tos 0, uid 0, nothing bound).

        What the FIB says instead of an entry is an answer, a ``Lookup`` with that errno: ENETUNREACH (nothing
        matches), EHOSTUNREACH (unreachable), EACCES (prohibit), EINVAL (blackhole). Any other errno (ENOMEM,
        EMFILE...) means that the question went unanswered: a ``RouteError``. So EACCES is never one about
        privileges here.

        Args:
            addresses: the destinations.
            source: the packet's source, as a socket that connects has chosen it; from one that isn't an address of
                this host nothing can be reached (ENETUNREACH, EINVAL from multicast or broadcast). None, and 0.0.0.0 as
                in a packet: none is chosen yet.
            is_tcp: whether it is TCP's; else it is UDP's, for which the kernel takes one that doesn't say
                (inet_rtm_getroute in net/ipv4/route.c).
        """

    def sources(
        self, entries: Mapping[Route, Sequence[IPv4Address]], *, is_tcp: bool = False
    ) -> dict[Route, tuple[IPv4Address, ...]]:
        """Ask which sources the kernel chooses for packets that have none, by the entries that win for them.

        Args:
            entries: answers of ``lookup``, each with addresses that it wins for: one, or of an entry with several hops
                so many that each hop is taken for some of them, on ports of their own. The kernel itself is asked
                about the addresses; a backend without one computes by the entries.
            is_tcp: as for ``lookup``.

        Returns:
            For each entry the sources, each once, the least first.
        """

    def add(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Add routes; one whose ``key`` is taken fails with EEXIST (NLM_F_CREATE | NLM_F_EXCL)."""

    def replace(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Add routes or put them in the place of the first with the same ``key`` (NLM_F_CREATE | NLM_F_REPLACE)."""

    def delete(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Delete exactly these routes; one that isn't there fails with ESRCH.

        Destination, table, tos, metric, type, protocol and the first hop must match; scope, source, MTU and later
        hops don't count. A first hop with ``dev=None`` matches any device. A first hop with a device that doesn't
        exist is ENODEV, not ESRCH, as no such route could be asked for.

        The kernel's own match is looser, so what is there may have to be read first, once for each call: many
        calls of a few routes each cost more than one of many.
        """

    def wait_for_change(self, scope: CancelScope) -> None:
        """Return when links, addresses, routes or rules may have changed since this thread's last call.

        The first call returns at once, so that a loop of wait, look, decide misses nothing. A return is only a
        reason to look: it may be for nothing, and some losses of routes send no event.

        A backend that can't listen by itself may leave this to another one of the same network namespace
        (``NetlinkBackend().wait_for_change``), kept as long as itself.

        Args:
            scope: ends the wait.

        Raises:
            phases.Cancelled, phases.TimedOut: the scope ended first.
        """


class Kernel(RouteBackend, Protocol):
    """A backend whose world can be changed too: the one in memory, or a namespace made for the purpose."""

    def add_link(self, name: str, *, up: bool = True) -> None:
        """Add an Ethernet-like interface with carrier."""

    def set_link(self, name: str, *, up: bool | None = None, carrier: bool | None = None) -> None:
        """Set an interface up or down, or plug its cable in or out."""

    def del_link(self, name: str) -> None:
        """Delete an interface with its addresses and routes."""

    def add_address(
        self, dev: str, address: str, *, peer: str | None = None, metric: int = 0, prefix_route: bool = True
    ) -> None:
        """Give an interface an address like ``10.1.0.4/24``; with ``peer`` the prefix length is the peer's."""

    def del_address(self, dev: str, address: str) -> None:
        """Take an address away from an interface."""

    def add_rule(self, rule: Rule) -> None:
        """Add a policy rule."""

    def del_rule(self, rule: Rule) -> None:
        """Delete a policy rule."""


def is_plain_by(route: Route, devs: Collection[str], sources: Collection[IPv4Address]) -> bool:
    """Return whether ``RouteBackend.routes_except`` may pass over an entry by some interfaces.

    Args:
        route: its destination doesn't count.
        devs: names of interfaces.
        sources: that it may name.
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
    """Tell whether ``RouteBackend.noticing_changes`` has to tell that an entry has changed.

    Args:
        table: of the entry; in table local all matter, since they decide which sources are this host's.
        prefix: its destination.
        inside: where entries matter.
    """
    first, length = prefix
    # A dump that goes on in the midst of the entries with one first address counts those before (fn_trie_dump_leaf).
    while length and not first >> (32 - length) & 1:
        length -= 1
    return table == Table.LOCAL or inside.overlaps(*ends((first, length)))


class RestlessError(RouteError):
    """A host changed each time that it was read."""


# Between the first look and the last answer there are milliseconds: so many changes in a row are no chance. Large
# tables take longer, and a person waits.
_ATTEMPTS, _SECONDS = 16, 5.0


def at_one_moment(
    backend: RouteBackend, inside: Sequence[Prefix], scope: CancelScope, read: Callable[[], T]
) -> tuple[T, RestlessError | None]:
    """Read until nothing changes meanwhile, a bounded number of times, and not again where that would take too long.

    Tables that read the same before and after prove nothing: a change may have come and gone.

    Args:
        backend: what is read.
        inside: prefixes outside of which entries may change.
        scope: ends it between two readings.
        read: reads all that belongs together.

    Returns:
        What was read last, and why it may be of several moments; None: it is of one.
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
    """The selective reads of a ``RouteBackend``, made of ``routes``; derive from it."""

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
        """Return the entries of every table but the plain ones by some interfaces; of these, those in some prefixes."""
        prefixes = PrefixSet(inside)
        return tuple(
            route
            for route in self.routes()
            if not is_plain_by(route, devs, sources) or prefixes.covers(numbers(route.destination))
        )
