"""Implement the routes port for the real kernel, using our own netlink sockets.

Requests and notifications use separate sockets, because a notification could otherwise be mistaken
for a reply. Each call opens and closes a socket for requests (a ``Conversation``) in the calling
thread. Notifications arrive on another socket (a ``Listener``); see rtnetlink/conversation.py for
both.
"""

from __future__ import annotations

import errno as errnos
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import TypeVar

from hostrouting.kernel.nexthops import in_order
from hostrouting.kernel.port import Ipv4Lookups, is_plain_through
from hostrouting.kernel.refusals import Deletable, NetlinkError
from hostrouting.kernel.rtnetlink import messages as rtnl
from hostrouting.kernel.rtnetlink import route_messages as rtm
from hostrouting.kernel.rtnetlink import values
from hostrouting.kernel.rtnetlink.conversation import Conversation, Listener, everywhere, read
from hostrouting.kernel.rtnetlink.entries import (
    Attributes,
    Group,
    RouteReader,
    Selection,
    routes_of,
)
from hostrouting.model.answers import Lookup, RouteFailure
from hostrouting.model.errors import RouteError
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.integer_prefixes import Prefix, PrefixSet, numbers
from hostrouting.model.links import Address, Link
from hostrouting.model.routes import NextHop, NexthopObject, Protocol, Route, Table
from hostrouting.model.rules import Rule
from phases import CancelScope

T = TypeVar("T")

_LISTENING = "listen for changes of routes"

_EVERYTHING, _DEFAULT_ROUTES = Selection(), Selection(lambda _: False)

# Maximum number of attempts to read a table that other daemons keep changing.
_READ_ATTEMPTS = 4

# The first port to try. No service uses higher ports.
_FIRST_PORT = 50_000

# An address, a destination port or None for any, and an interface index or None.
Flow = tuple[IpAddress, int | None, int | None]

# Errors from fib_lookup that mean that there is no route. Any other error is a failure.
NO_ROUTE = (errnos.ENETUNREACH, errnos.EHOSTUNREACH, errnos.EACCES, errnos.EINVAL)


class NetlinkBackend(Ipv4Lookups):
    """The IPv4 FIB in the calling thread's network namespace.

    Reading requires no privileges. Writing requires CAP_NET_ADMIN; without it, each route fails
    with EPERM. Instances are thread-safe, because every call uses its own socket.
    """

    family: Family = Family.IPV4

    def __init__(self) -> None:
        self._local = threading.local()
        self._arrange: Callable[[Iterable[NextHop]], tuple[NextHop, ...]] = in_order

    # --- reading ----------------------------------------------------------------------------------

    def links(self) -> tuple[Link, ...]:
        """Return all network interfaces, sorted by index."""
        return tuple(sorted(self._list(values.LINKS), key=lambda link: link.index))

    def addresses(self) -> tuple[Address, ...]:
        """Return all of this host's addresses."""
        # With ipv6.disable=1, the kernel answers with the addresses of the other families
        # (rtnl_dump_all).
        found = self._list(values.ADDRESSES[self.family])
        return tuple(address for address in found if address.local.version == self.family.value)

    def rules(self) -> tuple[Rule, ...]:
        """Return the policy rules in evaluation order."""
        return self._list(values.RULES[self.family])

    def nexthops(self) -> tuple[NexthopObject, ...]:
        """Return all nexthop objects, sorted by ID.

        This isn't part of the port, because ``routes`` already resolves nexthop objects.
        """
        return self._list(values.NEXTHOPS)

    def routes(self, table: int | None = None) -> tuple[Route, ...]:
        """Return the entries in one or all tables, in the kernel's order.

        If a table changes during a read, the read is retried a few times. If the table never stops
        changing, the result isn't atomic: each entry existed at some point during the call, but not
        necessarily all of them at the same time.

        Args:
            table: the table number, or None for all tables. The kernel does the filtering.

        Returns:
            The entries, or an empty tuple if the table doesn't exist. Nexthop objects are resolved
            to their hops.
        """
        return routes_of(self._groups(table))

    def routes_by_attributes(self, table: int) -> tuple[tuple[Route, Sequence[Prefix]], ...]:
        """Return the same entries as ``routes``, with consecutive prefixes grouped by attributes."""
        return tuple(self._groups(table))

    def _groups(
        self, table: int | None, selection: Selection = _EVERYTHING, protocol: int = 0
    ) -> list[Group]:
        def ask(talk: Conversation) -> list[Group]:
            reader = self._reader(selection)
            return [
                group
                for stretch in self._dump(talk, table, protocol)
                for group in reader.groups(stretch)
            ]

        for _ in range(_READ_ATTEMPTS):
            with self.noticing_changes([(0, 0)]) as may_have_changed:
                groups = self._read("list the routes", ask)
                if not may_have_changed():
                    break
        return groups

    def _dump(
        self, talk: Conversation, table: int | None, protocol: int = 0
    ) -> Iterator[rtnl.Stretch]:
        """Yield the entries in one table or in all tables, like ``Conversation.dump``."""
        if table is not None and not 0 < table <= rtnl.TABLE_MAX:
            return
        try:
            for stretch in talk.dump(
                rtnl.RTM_GETROUTE, rtm.dump_routes(self.family, table, protocol)
            ):
                # With ipv6.disable=1, the kernel answers with the routes of the other families
                # (rtnl_dump_all).
                if stretch.messages[rtnl.HEADER_BYTES] == self.family.af:
                    yield stretch
        except NetlinkError as refusal:
            if table is None or refusal.errno != errnos.ENOENT:
                raise

    def default_routes(self) -> tuple[Route, ...]:
        """Return the entries for 0.0.0.0/0 or ::/0 in table main, in the kernel's order, without decoding the others.

        An IPv4 table begins with these entries, so the rest isn't read. An IPv6 table ends with
        them, so all of it is read.
        """

        def ask(talk: Conversation) -> tuple[Route, ...]:
            reader, found = self._reader(_DEFAULT_ROUTES), list[Group]()
            for stretch in self._dump(talk, Table.MAIN):
                found += reader.groups(stretch)
                if self.family is Family.IPV4 and reader.last_address(stretch):
                    # The kernel dumps a table in address order (leaf_walk_rcu); closing the socket
                    # ends the dump.
                    break
            return routes_of(found)

        return self._read("look for the default route", ask)

    def our_routes(self) -> tuple[Route, ...]:
        """Return our own entries in table main.

        The kernel filters out entries with other protocols.
        """
        entries = routes_of(self._groups(Table.MAIN, protocol=Protocol.HOSTROUTING))
        return tuple(entry for entry in entries if entry.is_ours)

    def routes_except(
        self,
        devs: Collection[str],
        *,
        inside: Sequence[Prefix] = (),
        sources: Collection[IpAddress] = (),
    ) -> tuple[Route, ...]:
        """Return the entries in all tables, except plain ones that use ``devs`` and aren't within ``inside``.

        Default routes are always included. A plain entry is unicast with tos 0, and all its live
        hops are on these interfaces. Entries with scope link or narrower aren't plain, because
        gateways are reached through them.

        Unwanted entries are never decoded, so memory use depends on the size of the result, not on
        the size of the tables. In a large table, most entries are skipped hundreds at a time.

        Args:
            devs: the interface names.
            inside: prefixes in which plain entries are included too.
            sources: the source addresses that a plain entry may have.

        Returns:
            The entries in the kernel's order. For a table that never stops changing, see
            ``routes``.
        """
        selection = Selection(lambda route: not is_plain_through(route, devs, sources), inside)
        return routes_of(self._groups(None, selection))

    @contextmanager
    def noticing_changes(self, inside: Sequence[Prefix], /) -> Iterator[Callable[[], bool]]:
        """Yield a function that returns whether anything relevant may have changed since this call.

        A socket buffer overrun counts as a change.

        Args:
            inside: the relevant prefixes. An entry is relevant if its destination overlaps one of
                them.

        Raises:
            RouteError: the notification socket failed.
        """
        with rtnl.translate_errors(_LISTENING):
            listener = Listener(PrefixSet(inside, self.family.bits))
        with listener:
            yield rtnl.translate_errors(_LISTENING)(listener.saw_a_change)

    def lookup(
        self,
        addresses: Sequence[IpAddress],
        *,
        source: IpAddress | None = None,
        is_tcp: bool = False,
    ) -> tuple[Lookup, ...]:
        """Return the best route to each address, for packets from this host (mark 0, tos 0, uid 0, not bound).

        Lookups never specify an output interface, because the kernel would then report nearly every
        destination as reachable.

        Until the first policy rule is added, tables local and main share one trie, and the kernel
        reports main (254) for entries in either (fib_trie_unmerge).

        A rule for all ports applies to every packet, but matches a lookup only if the lookup
        specifies ports.

        Raises:
            RouteError: the kernel can't be queried, or the result depends on a rule for all source
                ports. TCP's first lookup has no source port, but its second one does
                (tcp_v4_connect).
        """
        found, network = self._look_up(addresses, source, is_tcp=is_tcp), self.family.network
        return tuple(
            Lookup(address, None, answer)
            if isinstance(answer, int)
            else Lookup(address, answer[0].copy(network(answer[1])))
            for address, answer in zip(addresses, found, strict=True)
        )

    def lookup_by_attributes(
        self, addresses: Sequence[IpAddress]
    ) -> tuple[tuple[Route, Prefix] | None, ...]:
        """Return the entry that the kernel reports for each address, as a template and a prefix; see ``lookup``."""
        found = self._look_up(addresses)
        return tuple(
            None if isinstance(answer, int) else (answer[0].entry, answer[1]) for answer in found
        )

    def _look_up(
        self,
        addresses: Sequence[IpAddress],
        source: IpAddress | None = None,
        *,
        is_tcp: bool = False,
    ) -> list[tuple[Attributes, Prefix] | int]:
        """Return the attributes and the prefix of the entry for each address, or an errno."""
        if not addresses:
            return []

        def ask(talk: Conversation) -> list[tuple[Attributes, Prefix] | int]:
            rules, reader = self._list_rules(talk), self._reader(_EVERYTHING, is_for_lookups=True)
            port = values.port_of_any(rules)

            def answers(source_port: int | None) -> list[tuple[Attributes, Prefix] | int]:
                pack = rtm.look_up(self.family, source, is_tcp, (source_port, port))
                asked = talk.ask(addresses, pack, NO_ROUTE)
                return [
                    each.errno if isinstance(each, NetlinkError) else reader.single(each)
                    for _, each in asked
                ]

            found = answers(port)
            if values.selects_any_source_port(rules):
                for address, answer, other in zip(addresses, found, answers(None), strict=True):
                    if answer != other:
                        reason = (
                            "a policy rule matches source ports, and TCP's first lookup has none"
                        )
                        raise RouteError(
                            f"can't determine how TCP to {address} is routed: {reason}"
                        )
            return found

        return self._read("look up routes", ask)

    def sources(
        self, entries: Mapping[Route, Sequence[IpAddress]], *, is_tcp: bool = False
    ) -> dict[Route, tuple[IpAddress, ...]]:
        """Return the source addresses that the kernel selects for packets without one, grouped by entry."""

        def ask(talk: Conversation) -> dict[Route, tuple[IpAddress, ...]]:
            any_port = values.port_of_any(self._list_rules(talk))
            look_up = partial(rtm.look_up, self.family, None, is_tcp, is_for_source=True)
            flows = [
                (entry, flow)
                for entry, addresses in entries.items()
                for flow in self._flows(entry, addresses)
            ]

            def pack(item: tuple[Route, Flow], sequence: int) -> bytes:
                _, (address, port, oif) = item
                ports = (any_port, any_port if port is None else port)
                return look_up(ports, oif=oif)(address, sequence)

            found: dict[Route, set[IpAddress]] = {entry: set() for entry in entries}
            for (entry, _), answer in talk.ask(flows, pack, NO_ROUTE):
                if isinstance(answer, bytes) and (source := rtm.chosen_source(answer)) is not None:
                    found[entry].add(source)
            return {entry: tuple(sorted(sources)) for entry, sources in found.items()}

        return self._read("ask for sources", ask) if entries else {}

    def _flows(self, entry: Route, addresses: Sequence[IpAddress]) -> Iterator[Flow]:
        """Yield the flows that exercise all hops of an entry.

        The kernel selects a hop by hashing the address or, depending on a sysctl, the address and
        port. A few addresses may all select the same hop, so there is also a flow for each
        interface.
        """
        several = len(addresses) > 1
        for port, address in enumerate(addresses, _FIRST_PORT):
            yield address, port if several else None, None
        if several:
            yield from ((addresses[0], None, oif) for oif in map(rtnl.index_of, entry.devs))

    # --- writing ----------------------------------------------------------------------------------

    def add(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Add routes.

        A route whose ``key`` already exists fails with EEXIST.
        """
        return self._write(routes, partial(rtm.RoutePacker(self.family).new, rtnl.ADD))

    def replace(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Add routes, each replacing the first existing route with the same ``key``, if any.

        The kernel compares only the key, so this also replaces connected routes and other daemons'
        routes.
        """
        return self._write(routes, partial(rtm.RoutePacker(self.family).new, rtnl.REPLACE))

    def delete(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Delete exactly these routes.

        A route that doesn't exist fails with ESRCH.
        """
        deletable, packer = self._deletable(routes), rtm.RoutePacker(self.family)

        def pack(route: Route, sequence: int) -> bytes:
            message = packer.delete(route, sequence)
            deletable.take(route)
            return message

        return self._write(routes, pack)

    def _write(
        self, routes: Sequence[Route], pack: Callable[[Route, int], bytes]
    ) -> tuple[RouteFailure, ...]:
        if not routes:
            return ()
        with rtnl.translate_errors("change routes"), self._connect() as talk:
            refusals = talk.change(routes, pack)
        return tuple(
            RouteFailure(route, refusal.errno, refusal.message) for route, refusal in refusals
        )

    def _deletable(self, routes: Sequence[Route]) -> Deletable:
        selection = _DEFAULT_ROUTES._replace(
            inside=[numbers(route.destination) for route in routes]
        )
        tables = sorted(
            {
                (route.table, route.protocol)
                for route in routes
                if 0 <= route.protocol <= rtnl.PROTOCOL_MAX
            }
        )
        return Deletable(
            entry
            for table, protocol in tables
            for entry in routes_of(self._groups(table, selection, protocol))
            if entry.protocol == protocol  # to the kernel, 0 means no filter
        )

    # --- waiting ----------------------------------------------------------------------------------

    @rtnl.translate_errors(_LISTENING)
    def wait_for_change(self, scope: CancelScope) -> None:
        """Wait until links, addresses, routes or rules may have changed since this thread's last call.

        The first call in a thread returns immediately. From then on, changes are collected until
        the thread ends or the backend is deleted. A socket buffer overrun counts as a change.

        Args:
            scope: the cancel scope for the wait.

        Raises:
            phases.Cancelled, phases.TimedOut: the scope was cancelled or timed out first.
            RouteError: the notification socket failed.
        """
        changes: Listener | None = vars(self._local).get("changes")
        if changes is None:
            # IPv6 checks also need IPv4 events, because the IPv4 default route determines the
            # uplinks.
            self._local.changes = Listener(everywhere(self.family), Family.IPV4)
        else:
            scope.wait(changes)
            changes.drain()

    # --- access to the kernel ---------------------------------------------------------------------

    def _list_rules(self, talk: Conversation) -> list[bytes]:
        _, kind, body, _ = values.RULES[self.family]
        return list(talk.messages(kind, body))

    def _connect(self) -> Conversation:
        return Conversation()

    def _reader(self, selection: Selection, *, is_for_lookups: bool = False) -> RouteReader:
        # If the sysctl nexthop_compat_mode is 0, the kernel omits the hops of nexthop objects from
        # routes.
        nexthops = cache(lambda: {nexthop.id: nexthop for nexthop in self.nexthops()})
        without_carrier = cache(
            lambda: {link.name for link in self.links() if link.is_up and not link.has_carrier}
        )
        return RouteReader(
            self.family, nexthops, without_carrier, self._arrange, selection, is_for_lookups
        )

    def _list(self, listing: values.Listing[T]) -> tuple[T, ...]:
        attempt, kind, body, decode = listing

        def ask(talk: Conversation) -> tuple[T, ...]:
            names = cache(rtnl.name_of)
            return tuple(decode(message, names) for message in talk.messages(kind, body))

        return self._read(attempt, ask)

    def _read(self, attempt: str, ask: Callable[[Conversation], T]) -> T:
        return read(attempt, ask, self._connect)
