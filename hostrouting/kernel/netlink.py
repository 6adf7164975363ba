"""The routes port on the kernel itself, over our own netlink sockets.

Requests never share a socket with notifications (on a bound socket, another process's message would be taken for the
answer): each call opens a conversation in its own thread and closes it; changes arrive on other sockets
(rtnetlink/conversation.py).
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

# How often to read a table that other daemons keep changing, to get one that didn't change during the read.
_READ_ATTEMPTS = 4

# The first port to try; no service uses the ones after it.
_FIRST_PORT = 50_000

# The errors by which fib_lookup answers without an entry; any other one is a failure.
_NO_ROUTE = (errnos.ENETUNREACH, errnos.EHOSTUNREACH, errnos.EACCES, errnos.EINVAL)


def _list_rules(talk: Conversation) -> list[bytes]:
    _, kind, body, _ = values.RULES
    return list(talk.messages(kind, body))


class NetlinkBackend:
    """The IPv4 FIB of the network namespace that the calling thread is in.

    Reading needs no privileges; writing needs CAP_NET_ADMIN, without which each route fails with EPERM. Threads may
    share it: every call works on its own socket.
    """

    def __init__(self) -> None:
        self._local = threading.local()

    def __reduce__(self) -> tuple[type[NetlinkBackend], tuple[()]]:
        # A copy, or one in another process, queries the kernel there; sockets aren't copied.
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

        Not part of the port: ``routes`` shows their effect on routes.
        """
        return self._list(values.NEXTHOPS)

    def routes(self, table: int | None = None) -> tuple[Route, ...]:
        """Return the entries of a table, or of every table if none is named, in the kernel's order.

        A table that changed while it was read is read again, a few times. If it never stops changing, each entry
        existed at some time during the call, though not all of them at one moment.

        Args:
            table: the table's number; the kernel itself leaves out the others.

        Returns:
            The entries; none for a table that doesn't exist. An entry with a nexthop object has the object's hops.
        """
        return routes_of(self._groups(table))

    def routes_by_attributes(self, table: int) -> tuple[tuple[Route, Sequence[Prefix]], ...]:
        """Return the entries of a table as ``routes`` reads them: consecutive prefixes, grouped by their attributes."""
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
        """Return the entries of table main for 0.0.0.0/0, which come first; don't read the rest.

        Returns:
            The entries in the kernel's order: by tos, then by metric.
        """

        def ask(talk: Conversation) -> tuple[Route, ...]:
            groups = chain.from_iterable(map(self._reader().groups, _dumped_routes(talk, Table.MAIN)))
            # The kernel walks a table in address order (leaf_walk_rcu). Closing the socket ends the walk.
            head = takewhile(lambda group: group[1][0][0] == 0, groups)
            return routes_of((entry, [prefix for prefix in prefixes if prefix == (0, 0)]) for entry, prefixes in head)

        return self._read("look for the default route", ask)

    def our_routes(self) -> tuple[Route, ...]:
        """Return the entries of table main that are ours; the kernel leaves out those of other protocols."""
        entries = routes_of(self._groups(Table.MAIN, protocol=Protocol.HOSTROUTING))
        return tuple(entry for entry in entries if entry.is_ours)

    def routes_except(
        self, devs: Collection[str], *, inside: Sequence[Prefix] = (), sources: Collection[IPv4Address] = ()
    ) -> tuple[Route, ...]:
        """Return the entries of every table except the plain ones through some interfaces outside some prefixes.

        A plain entry is unicast for tos 0, and all its live hops are on these interfaces; it isn't of scope link or
        nearer, where gateways are. Unwanted entries never become values: memory depends on the result, whatever the
            size of
        the tables. In a large table, most entries are skipped hundreds at a time.

        Args:
            devs: the names of the interfaces.
            inside: prefixes; a plain entry is included if its destination is one of them or lies in one.
            sources: the sources that a plain entry may have.

        Returns:
            The entries in the kernel's order; for a table that never stops changing, see ``routes``.
        """
        return routes_of(self._groups(None, lambda route: not is_plain_by(route, devs, sources), inside))

    @contextmanager
    def noticing_changes(self, inside: Sequence[Prefix], /) -> Iterator[Callable[[], bool]]:
        """Yield a function that returns whether anything that matters may have changed since then.

        An overrun of the socket counts as a change.

        Args:
            inside: prefixes; an entry matters if it has an address in one of them.

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
        """Return for each address the entry that wins for a packet of this host (mark 0, tos 0, uid 0, nothing bound).

        Never names an output interface: the kernel would then call nearly every destination reachable.

        Until the first policy rule is added, tables local and main are one trie, and the kernel names main
        (254) for the entries of both (fib_trie_unmerge).

        A rule for all ports applies to every packet; the kernel only finds that out for a lookup that has ports.

        Raises:
            RouteError: the kernel can't be queried, or a rule for all source ports decides. TCP's first lookup has no
                source port, its second one has (tcp_v4_connect).
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
        """Return the sources that the kernel chooses for packets without one, by the entries that win for them.

        A lookup shows the hop that it takes: by a hash of the address or, depending on a sysctl, of the port too.
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
        """Add routes; a route whose ``key`` is taken fails with EEXIST."""
        return self._write(routes, partial(wire.new_route, rtnl.ADD, wire.hops_packer(rtnl.Indexes())))

    def replace(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Add routes, or replace the first ones with the same ``key``.

        The kernel compares only the key, so a connected route or another daemon's is replaced too.
        """
        return self._write(routes, partial(wire.new_route, rtnl.REPLACE, wire.hops_packer(rtnl.Indexes())))

    def delete(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Delete exactly these routes; a route that isn't there fails with ESRCH."""
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
            if entry.protocol == protocol  # for the kernel 0 means no filter
        )

    # --- waiting -----------------------------------------------------------------------------------------------

    def wait_for_change(self, scope: CancelScope) -> None:
        """Return when links, addresses, routes or rules may have changed since this thread's last call.

        The first call in a thread returns at once; from then on changes are collected until the thread ends or the
        backend is deleted. An overrun of the socket counts as a change.

        Args:
            scope: cancels the wait.

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
        # If the sysctl nexthop_compat_mode is 0, the kernel doesn't show the hops of a nexthop object with a route.
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
