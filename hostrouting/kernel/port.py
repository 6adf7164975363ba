"""The routes port: the interface that hostrouting requires from a kernel.

``NetlinkBackend`` (netlink.py) accesses the real kernel, and ``FakeKernel`` (memory.py) simulates
one in memory. ``hostrouting.testing.conformance`` checks that other implementations behave the
same. ``ForwardingBackend`` (forwarding.py) wraps another backend. ``NamespaceKernel``
(namespace.py) uses the real kernel in a disposable network namespace, where links and addresses can
be changed as well.

The port has few methods, and is easy to implement: facts, entries, lookup, sources, write,
write_rules and changes. Functions such as ``read_routes`` call these methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Protocol, TypeVar

from hostrouting.kernel.nexthops import Router
from hostrouting.kernel.selection import (
    DEFAULT_ROUTES,
    EVERYTHING,
    OURS_IN_MAIN,
    Entries,
    Selection,
)
from hostrouting.model.errors import RouteError
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.integer_prefixes import Prefix, PrefixSet, ends
from hostrouting.model.jsonable import StrEnum
from hostrouting.model.links import Address, AddressLabel, Link
from hostrouting.model.lookups import Lookup, RouteFailure, RuleFailure
from hostrouting.model.routes import Route, Table
from hostrouting.model.rules import Rule
from hostrouting.model.values import frozen
from phases import CancelScope

T = TypeVar("T")

# An entry that ``lookup`` returned, and addresses that match the entry. Or None, and addresses for
# which ``lookup`` without a source failed.
Sent = tuple[Route | None, Sequence[IpAddress]]


@frozen
class Facts:
    """A network namespace's state for one address family, without its FIB entries.

    Args:
        links: all network interfaces, sorted by index.
        addresses: all of the host's addresses, in the order in which the kernel considers them.
        rules: the policy rules, in evaluation order.
        labels: the labels that the kernel compares to select IPv6 sources, longest prefix first.
            Empty for IPv4.
        silent_routers: the routers that the kernel avoids as long as other routes lead to the same
            destination. Silent routers have a FAILED neighbour entry. Always empty for IPv4, and
            for hosts that forward packets.
    """

    links: tuple[Link, ...] = ()
    addresses: tuple[Address, ...] = ()
    rules: tuple[Rule, ...] = ()
    labels: tuple[AddressLabel, ...] = ()
    silent_routers: frozenset[Router] = frozenset()


class Write(StrEnum):
    """The kinds of changes to routes and rules."""

    ADD = "add"
    REPLACE = "replace"
    DELETE = "delete"


class ChangeListener(Protocol):
    """A listener for changes since it was made; see ``RouteBackend.changes``."""

    def happened(self) -> bool:
        """Return whether a relevant change may have happened so far, even if it was undone.

        Once the result is True, it stays True.
        """

    def wait(self, scope: CancelScope) -> None:
        """Wait until anything relevant may have changed since the last wait.

        The first wait includes changes since the listener was made.

        After a return, read the tables: they show what has changed, or that nothing has. The kernel
        removes some routes without an event, so a wait may miss a change.

        Args:
            scope: the cancel scope for the wait.

        Raises:
            phases.Cancelled, phases.TimedOut: the scope was cancelled or timed out first.
        """


class Lookups(Protocol):
    """The lookups in a kernel, or in a model of one."""

    def lookup(
        self,
        addresses: Sequence[IpAddress],
        *,
        source: IpAddress | None = None,
        is_tcp: bool = False,
    ) -> tuple[Lookup, ...]:
        """Return the best route to each address, for packets from this host.

        The packets have mark 0, tos 0 and uid 0, and their socket isn't bound to a device.

        If the FIB has no route for the packet, the result is a ``Lookup`` with an errno:
        ENETUNREACH (nothing matches), EHOSTUNREACH (unreachable), EACCES (prohibit) or EINVAL
        (blackhole). EACCES never means missing privileges. Any other errno (ENOMEM, EMFILE...)
        means that the lookup itself has failed. Then a ``RouteError`` is raised.

        Args:
            addresses: the destinations to look up.
            source: the packet's source address; None (or 0.0.0.0) if the kernel hasn't chosen one
                yet. If this host doesn't have the address, the lookup fails with ENETUNREACH; from
                a multicast or broadcast address, with EINVAL.
            is_tcp: True for TCP, False for UDP. The kernel assumes UDP if no protocol is specified
                (inet_rtm_getroute in net/ipv4/route.c).
        """

    def sources(
        self,
        sent: Sequence[Sent],
        *,
        is_tcp: bool = False,
    ) -> tuple[tuple[IpAddress, ...], ...]:
        """Return the addresses that the kernel selects as source of packets without a source.

        Args:
            sent: entries returned by ``lookup``, each with addresses that match the entry. For an
                entry with a single hop, one address is enough. For one with several hops, the
                addresses must exercise all of the hops. Each address gets its own port. The kernel
                is queried for each address and, if an entry has several hops, for each interface. A
                backend without a kernel derives the sources from the entries.

                None instead of an entry stands for addresses for which a lookup without a source
                failed. For an IPv6 socket, the kernel then selects a source from the addresses of
                all interfaces, and repeats the lookup (ip6_dst_lookup_tail). For an IPv4 socket,
                the kernel does neither.
            is_tcp: see ``lookup``.

        Returns:
            For each item of ``sent``, the source addresses, sorted and without duplicates.
        """


class RouteBackend(Lookups, Protocol):
    """A network namespace's FIB for one address family.

    All addresses and prefixes that the methods accept and return belong to ``family``. Reads raise
    ``RouteError`` if the kernel can't be queried. ``Host`` converts any other ``Exception`` of a
    method to a ``RouteError``, and checks the types that the methods return.
    """

    @property
    def family(self) -> Family:
        """Return the address family."""

    def facts(self) -> Facts:
        """Return the links, addresses and rules; for IPv6, also labels and silent routers."""

    def entries(self, wanted: Selection = EVERYTHING) -> Entries:
        """Return the wanted entries of the FIB, in the kernel's order.

        A missing table counts as empty. A backend that can only read whole tables returns
        ``wanted.filter(routes)``.
        """

    def write(self, change: Write, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Add, replace or delete routes in bulk.

        Every route is attempted in the given order, even after a failure.

        ``ADD``: a route whose ``key`` already exists fails with EEXIST (NLM_F_CREATE | NLM_F_EXCL).

        ``REPLACE``: a route replaces the first existing route with the same ``key``, even another
        program's. If there is none, the route is added (NLM_F_CREATE | NLM_F_REPLACE).

        ``DELETE``: exactly these routes are deleted. A route that doesn't exist fails with ESRCH.
        The destination, table, tos, metric, type, protocol and first hop must match. The scope,
        source, MTU and later hops are ignored. A first hop with ``dev=None`` matches any device. If
        the first hop's device doesn't exist, the route fails with ENODEV, not ESRCH. An IPv6
        route's next hops are deleted one by one, and each one that fails is returned as a separate
        route.

        The kernel itself compares fewer attributes, and could delete another route. So a backend
        may have to read the existing entries first, which makes one call with many routes cheaper
        than many calls.

        Returns:
            The failed routes, in the same order. An empty tuple means success.

        Raises:
            RouteError: nothing was attempted.
        """

    def write_rules(self, change: Write, rules: Sequence[Rule]) -> tuple[RuleFailure, ...]:
        """Add or delete policy rules in bulk.

        Every rule is attempted in the given order, even after a failure.

        ``ADD``: a rule is added after existing rules with the same preference. A rule fails with
        EEXIST if an equal rule with the same protocol exists (NLM_F_CREATE | NLM_F_EXCL). If a new
        rule has no source, an existing rule may have any source and still be equal. The same
        applies to the destination (rule_exists).

        A rule with ports or an unsupported selector fails with EOPNOTSUPP.

        ``DELETE``: exactly these rules are deleted. A rule that doesn't exist fails with ENOENT. A
        rule fails with ENOTRECOVERABLE if the kernel would delete another rule instead
        (``rule_deleted_for``). So a backend must read the rules first.

        Args:
            change: ``ADD`` or ``DELETE``. The kernel can't replace a rule.
            rules: the rules to add or delete.

        Returns:
            The failed rules, in the same order. An empty tuple means success.

        Raises:
            RouteError: nothing was attempted.
            ValueError: the change is ``REPLACE``.
        """

    def changes(
        self,
        inside: Sequence[Prefix] | None = None,
    ) -> AbstractContextManager[ChangeListener]:
        """Listen for relevant changes during a ``with`` block.

        Changes of links, addresses, rules and nexthop objects are always relevant. For changes of
        entries, see ``is_relevant``. A backend without notifications can use those of another
        backend in the same network namespace (``NetlinkBackend().changes``).

        Args:
            inside: prefixes. A change of an entry is relevant if the entry's destination overlaps
                one of them. By default, changes of all entries of this family are relevant, and of
                all IPv4 entries, too: the IPv4 default route also determines the uplinks for IPv6.

        Raises:
            UnstableHostError: the host is a snapshot, and has changed while the snapshot was taken.
        """


class Kernel(RouteBackend, Protocol):
    """A backend whose links, addresses and rules can be changed, too."""

    def add_link(self, name: str, *, up: bool = True, mac: str | None = None) -> None:
        """Add an Ethernet-like interface with a carrier, and with the given MAC address, if any."""

    def set_link(
        self,
        name: str,
        *,
        up: bool | None = None,
        carrier: bool | None = None,
        group: int | None = None,
    ) -> None:
        """Set an interface up or down, plug or unplug its cable, or set its group."""

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


def read_routes(backend: RouteBackend, table: int | None = None) -> tuple[Route, ...]:
    """Return the entries in one or all tables, in the kernel's order."""
    return tuple(backend.entries(EVERYTHING if table is None else Selection(table)))


def read_default_routes(backend: RouteBackend) -> tuple[Route, ...]:
    """Return the entries for 0.0.0.0/0 or ::/0 in table main, in the kernel's order."""
    return tuple(backend.entries(DEFAULT_ROUTES))


def read_our_routes(backend: RouteBackend) -> tuple[Route, ...]:
    """Return our own entries in table main (``Route.is_ours``), in the kernel's order."""
    return tuple(route for route in backend.entries(OURS_IN_MAIN) if route.is_ours)


def is_relevant(table: int, prefix: Prefix, inside: PrefixSet) -> bool:
    """Return whether a listener of ``RouteBackend.changes`` must report a change to an entry.

    Args:
        table: the entry's table. All entries in table local are relevant: they determine which
            addresses are local.
        prefix: the destination of the entry.
        inside: the prefixes in which entries are relevant.
    """
    (first, length), bits = prefix, inside.bits
    # The kernel sends a long IPv6 dump in parts. For the next part, it skips as many entries from
    # the table's start as it has sent (fib6_dump_table). So after any change, the dump may miss or
    # repeat entries.
    if bits == Family.IPV6.bits:
        return True
    # The kernel sends an IPv4 dump in parts, too. If the next part begins among entries with the
    # same first address, the kernel skips as many of them as it has sent (fn_trie_dump_leaf). So a
    # change also matters if a relevant entry may have the same first address. The shortest prefix
    # with this first address contains all entries that have it.
    while length and not first >> (bits - length) & 1:
        length -= 1
    return table == Table.LOCAL or inside.overlaps(*ends((first, length), bits))


class UnstableHostError(RouteError):
    """The error for a host that changed during each read, or while its snapshot was taken."""


# A read takes a few milliseconds, so a host that changes during 16 reads in a row never stops
# changing. For large tables, which take longer, there is a time limit.
_ATTEMPTS = 16
_SECONDS = 5.0


def read_consistently(
    watched: Sequence[tuple[RouteBackend, Sequence[Prefix]]],
    scope: CancelScope,
    read: Callable[[], T],
) -> tuple[T, UnstableHostError | None]:
    """Repeat a read until nothing changes during it, or until a limit of attempts or time.

    Comparing the tables before and after the read isn't enough, because a change may have been
    undone in between.

    Args:
        watched: the backends to read, each with the prefixes in which no entry may change.
        scope: the cancel scope, which is checked before each read.
        read: a function that reads all data that must be consistent.

    Returns:
        The last result, and None. If the result may be inconsistent, the result and an error.
    """
    try:
        until = scope.clock.monotonic() + _SECONDS
        for _ in range(_ATTEMPTS):
            scope.check()
            begin = scope.clock.monotonic()
            with ExitStack() as stack:
                listeners = [
                    stack.enter_context(backend.changes(inside)) for backend, inside in watched
                ]
                found = read()
                if not any(listener.happened() for listener in listeners):
                    return found, None
            now = scope.clock.monotonic()
            if now + (now - begin) > until:  # another read would end too late
                break
    except UnstableHostError as error:
        return read(), error
    return found, UnstableHostError(
        "the routes changed each time that they were read; try again later"
    )


def refuse_replacing(change: Write) -> None:
    """Raise ``ValueError`` for ``REPLACE``, because the kernel can't replace a rule."""
    if change is Write.REPLACE:
        raise ValueError("a rule can't be replaced; add the new one, then delete the old one")


def refuse_datagrams(lookups: Sequence[Lookup]) -> None:
    """Raise an error if TCP's lookup failed for an address, but UDP's succeeded.

    Args:
        lookups: the UDP lookups for addresses whose TCP lookup failed.
    """
    for found in lookups:
        if found.route is not None:
            reason = "a UDP lookup succeeds, so no socket shows the source of TCP's second lookup"
            raise RouteError(f"can't determine how TCP to {found.address} is routed: {reason}")
