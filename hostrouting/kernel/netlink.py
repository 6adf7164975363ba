"""Implement the routes port on the real kernel, over our own netlink sockets.

Requests never share a socket with notifications, because on a bound socket the message of another process could be
taken for the answer. Each call opens a conversation in its own thread and closes it again. Changes arrive on other
sockets (rtnetlink/conversation.py).
"""

from __future__ import annotations

import errno as errnos
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from ipaddress import IPv4Address
from itertools import chain, takewhile
from typing import TypeVar

from hostrouting.kernel.port import is_plain_by
from hostrouting.kernel.refusals import Deletable, NetlinkError
from hostrouting.kernel.rtnetlink import messages as rtnl
from hostrouting.kernel.rtnetlink import values, wire
from hostrouting.kernel.rtnetlink.conversation import Conversation, Listener, read, retry_if_changed
from hostrouting.kernel.rtnetlink.entries import Group, RouteReader, routes_of
from hostrouting.model.errors import RouteError
from hostrouting.model.links import Address, Link
from hostrouting.model.prefixes import Prefix, PrefixSet, numbers
from hostrouting.model.routes import Lookup, NexthopObject, Protocol, Route, RouteFailure, Table
from hostrouting.model.rules import Rule
from phases import CancelScope

T = TypeVar("T")

# The maximum number of reads of a table that other daemons keep changing.
_READ_ATTEMPTS = 4

# The first port to try. No service uses the ports after it.
_FIRST_PORT = 50_000

# The errors that fib_lookup returns instead of an entry. Any other error is a failure.
_NO_ROUTE = (errnos.ENETUNREACH, errnos.EHOSTUNREACH, errnos.EACCES, errnos.EINVAL)


def _list_rules(talk: Conversation) -> list[bytes]:
    _, kind, body, _ = values.RULES
    return list(talk.messages(kind, body))


class NetlinkBackend:
    """The IPv4 FIB of the network namespace that the calling thread is in.

    Reading needs no privileges. Writing needs CAP_NET_ADMIN, without which each route fails with EPERM. Threads may
    share a backend, because every call uses its own socket.
    """

    def __init__(self) -> None:
        self._local = threading.local()

    def __reduce__(self) -> tuple[type[NetlinkBackend], tuple[()]]:
        # A copy queries the kernel wherever it is, even in another process. Sockets aren't copied.
        return type(self), ()

    # --- reading -----------------------------------------------------------------------------------------------

    def links(self) -> tuple[Link, ...]:
        """Return all network interfaces, by index."""
        return tuple(sorted(self._list(values.LINKS), key=lambda link: link.index))

    def addresses(self) -> tuple[Address, ...]:
        """Return all IPv4 addresses of this host."""
        return self._list(values.ADDRESSES)

    def rules(self) -> tuple[Rule, ...]:
        """Return the policy rules in the order in which the kernel evaluates and lists them."""
        return self._list(values.RULES)

    def nexthops(self) -> tuple[NexthopObject, ...]:
        """Return all nexthop objects, by number.

        This isn't part of the port, because ``routes`` shows the effect of these objects.
        """
        return self._list(values.NEXTHOPS)

    def routes(self, table: int | None = None) -> tuple[Route, ...]:
        """Return the entries of a table, or of every table, in the kernel's order.

        If a table changes during a read, it is read again, up to a few times. If it never stops changing, each entry
        existed at some time during the call, but maybe not all of them at the same moment.

        Args:
            table: the number of the table, or None for every table. The kernel itself leaves out other tables.

        Returns:
            The entries, or none if the table doesn't exist. An entry with a nexthop object has the hops of that object.
        """
        return routes_of(self._groups(table))

    def routes_by_attributes(self, table: int) -> tuple[tuple[Route, Sequence[Prefix]], ...]:
        """Return the entries of a table as ``routes`` reads them, with consecutive prefixes grouped by attributes."""
        return tuple(self._groups(table))

    def _groups(
        self,
        table: int | None,
        is_wanted: Callable[[Route], bool] = lambda _: True,
        inside: Sequence[Prefix] = (),
        protocol: int = 0,
    ) -> list[Group]:
        attempts = iter(range(_READ_ATTEMPTS))

        def ask(talk: Conversation) -> list[Group]:
            reader = self._reader(is_wanted, inside)
            with retry_if_changed(attempts):
                runs = _dumped_routes(talk, table, protocol)
                return [group for run in runs for group in reader.groups(run)]

        return self._read("list the routes", ask)

    def default_routes(self) -> tuple[Route, ...]:
        """Return the entries of table main for 0.0.0.0/0, which come first, without reading the rest.

        Returns:
            The entries in the kernel's order, which is by tos and then by metric.
        """

        def ask(talk: Conversation) -> tuple[Route, ...]:
            groups = chain.from_iterable(map(self._reader().groups, _dumped_routes(talk, Table.MAIN)))
            # The kernel walks a table in address order (leaf_walk_rcu). Closing the socket ends the walk.
            head = takewhile(lambda group: group[1][0][0] == 0, groups)
            return routes_of((entry, [prefix for prefix in prefixes if prefix == (0, 0)]) for entry, prefixes in head)

        return self._read("look for the default route", ask)

    def our_routes(self) -> tuple[Route, ...]:
        """Return our own entries of table main.

        The kernel itself leaves out the entries of other protocols.
        """
        entries = routes_of(self._groups(Table.MAIN, protocol=Protocol.HOSTROUTING))
        return tuple(entry for entry in entries if entry.is_ours)

    def routes_except(
        self, devs: Collection[str], *, inside: Sequence[Prefix] = (), sources: Collection[IPv4Address] = ()
    ) -> tuple[Route, ...]:
        """Return the entries of every table, except plain ones through certain interfaces outside certain prefixes.

        A plain entry is unicast with tos 0, and all its live hops are on these interfaces. Its scope isn't link or
        narrower, because such entries lead to gateways. Unwanted entries are never decoded into values, so the memory
        depends on the result and not on the size of the tables. In a large table, most entries are skipped hundreds at
        a time.

        Args:
            devs: the names of the interfaces.
            inside: the prefixes inside which even plain entries are included.
            sources: the sources that a plain entry may have.

        Returns:
            The entries in the kernel's order. For a table that never stops changing, see ``routes``.
        """
        return routes_of(self._groups(None, lambda route: not is_plain_by(route, devs, sources), inside))

    @contextmanager
    def noticing_changes(self, inside: Sequence[Prefix], /) -> Iterator[Callable[[], bool]]:
        """Yield a function that returns whether anything that matters may have changed in the meantime.

        An overrun of the socket counts as a change.

        Args:
            inside: prefixes. An entry matters if it has an address in one of them.

        Raises:
            RouteError: listening to the kernel failed.
        """
        attempt = "listen for changes of routes"
        with rtnl.translate_errors(attempt):
            listener = Listener(PrefixSet(inside))

        def may_have_changed() -> bool:
            with rtnl.translate_errors(attempt):
                return listener.saw_a_change()

        with listener:
            yield may_have_changed

    def lookup(
        self, addresses: Sequence[IPv4Address], *, source: IPv4Address | None = None, is_tcp: bool = False
    ) -> tuple[Lookup, ...]:
        """Return the winning entry for each address, for packets from this host (mark 0, tos 0, uid 0, nothing bound).

        A lookup never names an output interface, because the kernel would then report nearly every destination as
        reachable.

        Until the first policy rule is added, tables local and main share one trie, and the kernel reports main (254)
        for the entries of both (fib_trie_unmerge).

        A rule for all ports applies to every packet, but the kernel only matches it if the lookup has ports.

        Raises:
            RouteError: the kernel can't be queried, or a rule for all source ports decides. For TCP, the first lookup
                has no source port, but the second one has (tcp_v4_connect).
        """
        if not addresses:
            return ()

        def ask(talk: Conversation) -> tuple[Lookup, ...]:
            rules = _list_rules(talk)
            port = values.port_of_any(rules)
            found = tuple(self._answers(talk, addresses, wire.look_up(source, is_tcp, ports=(port, port))))
            if values.selects_any_source_port(rules):
                without = self._answers(talk, addresses, wire.look_up(source, is_tcp, ports=(None, port)))
                for lookup, other in zip(found, without, strict=True):
                    if lookup != other:
                        reason = "a policy rule selects by source port, and TCP is looked up before it has one"
                        raise RouteError(f"can't tell where TCP to {lookup.address} leaves: {reason}")
            return found

        return self._read("look up routes", ask)

    def _answers(
        self, talk: Conversation, addresses: Sequence[IPv4Address], pack: Callable[[IPv4Address, int], bytes]
    ) -> Iterator[Lookup]:
        reader = self._reader()
        for asked, answers in talk.ask(addresses, pack):
            for address, answer in zip(asked, answers, strict=True):
                if not isinstance(answer, NetlinkError):
                    yield Lookup(address, reader.entry(answer))
                elif answer.errno in _NO_ROUTE:
                    yield Lookup(address, None, answer.errno)
                else:
                    raise answer

    def sources(
        self, entries: Mapping[Route, Sequence[IPv4Address]], *, is_tcp: bool = False
    ) -> dict[Route, tuple[IPv4Address, ...]]:
        """Return the sources that the kernel chooses for packets that have no source yet, grouped by entry.

        A lookup shows the chosen hop. The kernel chooses it with a hash of the address or, depending on a sysctl, of
        the address and port.
        """
        owners = [entry for entry, addresses in entries.items() for _ in addresses]
        flows = [
            (address, port if len(addresses) > 1 else None)
            for addresses in entries.values()
            for port, address in enumerate(addresses, _FIRST_PORT)
        ]

        def ask(talk: Conversation) -> dict[Route, tuple[IPv4Address, ...]]:
            any_port = values.port_of_any(_list_rules(talk))

            def pack(flow: tuple[IPv4Address, int | None], sequence: int) -> bytes:
                address, port = flow
                ports = (any_port, any_port if port is None else port)
                return wire.look_up(None, is_tcp, 0, ports)(address, sequence)

            answers = chain.from_iterable(answers for _, answers in talk.ask(flows, pack))
            found: dict[Route, set[IPv4Address]] = {entry: set() for entry in entries}
            for owner, answer in zip(owners, answers, strict=True):
                if isinstance(answer, NetlinkError):
                    if answer.errno not in _NO_ROUTE:
                        raise answer
                elif (source := wire.chosen_source(answer)) is not None:
                    found[owner].add(source)
            return {entry: tuple(sorted(sources)) for entry, sources in found.items()}

        return self._read("ask for sources", ask) if flows else {}

    # --- writing -----------------------------------------------------------------------------------------------

    def add(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Add routes.

        A route whose ``key`` is taken fails with EEXIST.
        """
        return self._write(routes, partial(wire.new_route, rtnl.ADD, wire.hops_packer(rtnl.Indexes())))

    def replace(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Add routes, or replace the first ones with the same ``key``.

        The kernel compares only the key, so it also replaces connected routes and routes of other daemons.
        """
        return self._write(routes, partial(wire.new_route, rtnl.REPLACE, wire.hops_packer(rtnl.Indexes())))

    def delete(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Delete exactly these routes.

        A route that doesn't exist fails with ESRCH.
        """
        deletable, pack_hops = self._deletable(routes), wire.hops_packer(rtnl.Indexes())

        def pack(route: Route, sequence: int) -> bytes:
            message = wire.delete_route(pack_hops, route, sequence)
            deletable.take(route)
            return message

        return self._write(routes, pack)

    def _write(self, routes: Sequence[Route], pack: Callable[[Route, int], bytes]) -> tuple[RouteFailure, ...]:
        if not routes:
            return ()
        with rtnl.translate_errors("change routes"), self._connect() as talk:
            refusals = talk.change(routes, pack)
        return tuple(RouteFailure(route, refusal.errno, refusal.message) for route, refusal in refusals)

    def _deletable(self, routes: Sequence[Route]) -> Deletable:
        destinations = [numbers(route.destination) for route in routes]
        tables = sorted({(route.table, route.protocol) for route in routes if 0 <= route.protocol <= rtnl.PROTOCOL_MAX})
        return Deletable(
            entry
            for table, protocol in tables
            for entry in routes_of(self._groups(table, lambda _: False, destinations, protocol))
            if entry.protocol == protocol  # to the kernel, 0 means no filter
        )

    # --- waiting -----------------------------------------------------------------------------------------------

    def wait_for_change(self, scope: CancelScope) -> None:
        """Return when links, addresses, routes or rules may have changed since the last call in this thread.

        The first call in a thread returns at once. After that, changes are collected until the thread ends or the
        backend is deleted. An overrun of the socket counts as a change.

        Args:
            scope: the scope that can cancel the wait.

        Raises:
            phases.Cancelled, phases.TimedOut: the scope was cancelled first.
            RouteError: listening to the kernel failed.
        """
        attempt = "listen for changes of routes"
        changes: Listener | None = vars(self._local).get("changes")
        if changes is None:
            with rtnl.translate_errors(attempt):
                self._local.changes = Listener()
            return
        with rtnl.translate_errors(attempt):
            scope.wait(changes)
            changes.drain()

    # --- access to the kernel ----------------------------------------------------------------------------------

    def _connect(self) -> Conversation:
        return Conversation()

    def _reader(
        self, is_wanted: Callable[[Route], bool] = lambda _: True, inside: Sequence[Prefix] = ()
    ) -> RouteReader:
        # If the sysctl nexthop_compat_mode is 0, the kernel shows routes without the hops of their nexthop objects.
        nexthops = cache(lambda: {nexthop.id: nexthop for nexthop in self.nexthops()})
        return RouteReader(rtnl.Names(), nexthops, is_wanted, PrefixSet(inside))

    def _list(self, listing: values.Listing[T]) -> tuple[T, ...]:
        attempt, kind, body, decode = listing

        def ask(talk: Conversation) -> tuple[T, ...]:
            names = rtnl.Names()
            return tuple(decode(message, names) for message in talk.messages(kind, body))

        return self._read(attempt, ask)

    def _read(self, attempt: str, ask: Callable[[Conversation], T]) -> T:
        return read(attempt, ask, self._connect)


def _dumped_routes(talk: Conversation, table: int | None, protocol: int = 0) -> Iterator[rtnl.Run]:
    if table is not None and not 0 < table <= rtnl.TABLE_MAX:
        return
    try:
        yield from talk.dump(rtnl.RTM_GETROUTE, wire.dump_routes(table, protocol))
    except NetlinkError as refusal:
        if table is None or refusal.errno != errnos.ENOENT:
            raise
