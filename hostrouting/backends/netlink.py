"""The routes port on the kernel itself, over pyroute2, which is loaded on first use.

Requests never share a socket with notifications (on a bound socket another process's message is taken for the
answer): each call opens an unbound one in its own thread, asks everything, and closes it. Changes arrive on a
socket of their own (_changes.py).
"""

from __future__ import annotations

import errno as errnos
import sys
import threading
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from hostrouting.backends import _rtnetlink as rtnl
from hostrouting.backends._changes import ChangeSocket
from hostrouting.backends._deletion import Deletable
from hostrouting.backends._link_messages import DUMP_ADDRESSES, DUMP_LINKS, decode_address, decode_links
from hostrouting.backends._nexthop_messages import DUMP_NEXTHOPS, decode_nexthop
from hostrouting.backends._route_messages import (
    decode_route,
    delete_route,
    dump_routes,
    is_entry,
    lookup_route,
    new_route,
)
from hostrouting.backends._rule_messages import DUMP_RULES, decode_rule
from hostrouting.errors import RouteError
from hostrouting.model import Lookup, RouteFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from ipaddress import IPv4Address
    from typing import TypeVar

    from hostrouting.model import Address, Link, NexthopObject, Route, Rule
    from phases import CancelScope

    T = TypeVar("T")
    _Encode = Callable[[Route, rtnl.Indexes], rtnl.Request]

__all__ = ["NetlinkBackend"]

# Under constant churn two dumps of three are interrupted; this many in a row happen once in a million.
_ATTEMPTS = 32

# What fib_lookup answers instead of an entry; anything else is a failure to answer.
_NO_ROUTE = (errnos.ENETUNREACH, errnos.EHOSTUNREACH, errnos.EACCES, errnos.EINVAL)


def _refuse_running_loop(attempt: str) -> None:
    # A loop can only be running if somebody has imported asyncio.
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RouteError(
        f"can't {attempt} in a thread that runs an asyncio event loop: the call would block it; "
        "use `await asyncio.to_thread(...)`"
    )


class NetlinkBackend:
    """The IPv4 FIB of the network namespace that the calling thread is in.

    Needs no privileges to read; writing needs CAP_NET_ADMIN, without which each route fails with EPERM. May be
    shared by threads: every call works on a socket of its own. Raises ``RouteError`` in a thread that runs an
    asyncio event loop.
    """

    def __init__(self) -> None:
        self._local = threading.local()

    # --- reading -----------------------------------------------------------------------------------------------

    def links(self) -> tuple[Link, ...]:
        """All network interfaces, by index."""
        return self._read("list the interfaces", lambda channel: decode_links(channel.dump(DUMP_LINKS)))

    def addresses(self) -> tuple[Address, ...]:
        """All IPv4 addresses of this host."""

        def read(channel: rtnl.Channel) -> tuple[Address, ...]:
            names = rtnl.Names()
            return tuple(decode_address(message, names) for message in channel.dump(DUMP_ADDRESSES))

        return self._read("list the addresses", read)

    def rules(self) -> tuple[Rule, ...]:
        """The policy rules in the order in which the kernel asks them, that of its list."""
        return self._read("list the rules", lambda channel: tuple(map(decode_rule, channel.dump(DUMP_RULES))))

    def routes(self, table: int | None = None) -> tuple[Route, ...]:
        """The entries of a table, in the kernel's order; of every table, if none is named.

        Args:
            table: its number; the kernel itself leaves the others out.

        Returns:
            The entries; none for a table that doesn't exist. Where net.ipv4.nexthop_compat_mode is off, one
            that uses a nexthop object has its ``nexthop_id`` and no hops.
        """
        return self._read("list the routes", lambda channel: _entries(channel, table))

    def lookup(self, addresses: Sequence[IPv4Address]) -> tuple[Lookup, ...]:
        """For each address the entry that wins for a packet of this host (mark 0, tos 0, uid 0, nothing bound).

        Never with an output interface: the kernel would then call nearly every destination reachable.

        Until the first policy rule is added, tables local and main are one trie, and the kernel names main
        (254) for the entries of both (fib_trie_unmerge).
        """
        if not addresses:
            return ()
        attempt = "look up routes"
        with self._open(attempt) as channel:
            return tuple(_retried(attempt, partial(_look_up, channel, address)) for address in addresses)

    def nexthops(self) -> tuple[NexthopObject, ...]:
        """All nexthop objects, by number; none where the kernel has no such thing (before 5.3).

        Beyond the port: what routes do by them, ``routes`` tells, but where net.ipv4.nexthop_compat_mode is off.
        """

        def read(channel: rtnl.Channel) -> tuple[NexthopObject, ...]:
            names = rtnl.Names()
            try:
                messages = channel.dump(DUMP_NEXTHOPS)
            except rtnl.RefusedError as refusal:
                if refusal.errno == errnos.EOPNOTSUPP:
                    return ()
                raise
            return tuple(decode_nexthop(message, names) for message in messages)

        return self._read("list the nexthop objects", read)

    # --- writing -----------------------------------------------------------------------------------------------

    def add(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Add routes; one whose ``key`` is taken fails with EEXIST."""
        return self._write(routes, lambda _: partial(new_route, rtnl.ADD))

    def replace(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Add routes or put them in the place of the first with the same ``key``.

        The kernel asks for no more than the key: a connected route or another daemon's is replaced too.
        """
        return self._write(routes, lambda _: partial(new_route, rtnl.REPLACE))

    def delete(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Delete exactly these routes; one that isn't there fails with ESRCH."""

        def prepare(channel: rtnl.Channel) -> _Encode:
            deletable = _deletable(channel, routes)

            def encode(route: Route, indexes: rtnl.Indexes) -> rtnl.Request:
                request = delete_route(route, indexes)
                deletable.take(route)
                return request

            return encode

        return self._write(routes, prepare)

    def _write(self, routes: Sequence[Route], prepare: Callable[[rtnl.Channel], _Encode]) -> tuple[RouteFailure, ...]:
        if not routes:
            return ()
        failures = []
        with self._open("change routes") as channel:
            encode, indexes = prepare(channel), rtnl.Indexes()
            for route in routes:
                try:
                    channel.ask(encode(route, indexes))
                except rtnl.RefusedError as refusal:
                    failures.append(RouteFailure(route, refusal.errno, refusal.message))
        return tuple(failures)

    # --- waiting -----------------------------------------------------------------------------------------------

    def wait_for_change(self, scope: CancelScope) -> None:
        """Return when links, addresses, routes or rules may have changed since this thread's last call.

        The first call in a thread returns at once; from then on changes are collected, until the thread ends or
        the backend is gone. An overrun of the socket counts as a change.

        Args:
            scope: ends the wait.

        Raises:
            phases.Cancelled, phases.TimedOut: the scope ended first.
            RouteError: the kernel can't be listened to.
        """
        attempt = "listen for changes of routes"
        _refuse_running_loop(attempt)
        changes: ChangeSocket | None = getattr(self._local, "changes", None)
        if changes is None:
            with _told(attempt):
                self._local.changes = ChangeSocket()
            return
        # Not inside ``_told``: phases.TimedOut is an OSError too.
        scope.wait(changes)
        with _told(attempt):
            changes.drain()

    # --- the way to the kernel ---------------------------------------------------------------------------------

    @contextmanager
    def _open(self, attempt: str) -> Iterator[rtnl.Channel]:
        """A channel for a batch; why it can't be opened is told as of the attempt ("list the routes")."""
        _refuse_running_loop(attempt)
        with _told(attempt):
            channel = rtnl.Channel()
        with closing(channel):
            yield channel

    def _read(self, attempt: str, read: Callable[[rtnl.Channel], T]) -> T:
        with self._open(attempt) as channel:
            return _retried(attempt, partial(read, channel))


@contextmanager
def _told(attempt: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RouteError(f"can't {attempt}: no netlink socket: {error.strerror or error}", errno=error.errno) from error


def _retried(attempt: str, read: Callable[[], T]) -> T:
    for _ in range(_ATTEMPTS):
        try:
            return read()
        except rtnl.ChangedError:
            continue
        except rtnl.RefusedError as refusal:
            raise RouteError(f"can't {attempt}: {refusal.message}", errno=refusal.errno) from refusal
    raise RouteError(f"can't {attempt}: they changed while they were read, {_ATTEMPTS} times over; try again later")


def _entries(channel: rtnl.Channel, table: int | None, protocol: int = 0) -> tuple[Route, ...]:
    if table is not None and table not in rtnl.TABLES:
        return ()
    try:
        messages = channel.dump(dump_routes(table, protocol))
    except rtnl.RefusedError as refusal:
        if table is not None and refusal.errno == errnos.ENOENT:
            return ()
        raise
    names = rtnl.Names()
    return tuple(decode_route(message, names) for message in messages if is_entry(message))


def _deletable(channel: rtnl.Channel, routes: Sequence[Route]) -> Deletable:
    tables = sorted({(route.table, route.protocol) for route in routes if route.protocol in rtnl.BYTE})
    return Deletable(
        entry
        for table, protocol in tables
        for entry in _retried("read the routes to delete", partial(_entries, channel, table, protocol))
        if entry.protocol == protocol  # 0 is no filter to the kernel
    )


def _look_up(channel: rtnl.Channel, address: IPv4Address) -> Lookup:
    try:
        answer = channel.ask(lookup_route(address))
    except rtnl.RefusedError as refusal:
        if refusal.errno not in _NO_ROUTE:
            raise
        return Lookup(address, None, refusal.errno)
    return Lookup(address, decode_route(answer[0], rtnl.Names()))
