"""A recorded host: how it is recorded, and asked; it can't be changed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from ipaddress import IPv4Address
from operator import attrgetter

import attrs

from hostrouting.kernel.fib import Fib
from hostrouting.kernel.nexthops import default_route, unicast_defaults
from hostrouting.kernel.port import RestlessError, RouteBackend, WholeTables, at_one_moment
from hostrouting.kernel.rules import KERNEL_RULES
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.model.errors import RouteError
from hostrouting.model.jsonable import rfc_3339
from hostrouting.model.links import Address, Link
from hostrouting.model.prefixes import Prefix, numbers, own_addresses
from hostrouting.model.routes import Lookup, Route, RouteFailure, RouteType, Table
from hostrouting.model.rules import Rule
from phases import CancelScope


def take_snapshot(backend: RouteBackend, *, nameservers: Sequence[IPv4Address] = ()) -> Snapshot:
    """Record a host at one moment; if it never stands still, at several, which ``is_torn`` then says.

    Args:
        backend: the kernel.
        nameservers: that the host asks.

    Returns:
        What was found.

    Raises:
        RouteError: the kernel can't be asked.
    """
    kernel = os.uname()

    def read() -> Snapshot:
        addresses, routes = backend.addresses(), backend.routes()
        return Snapshot(
            links=backend.links(),
            addresses=addresses,
            rules=backend.rules(),
            routes=routes,
            is_merged=_are_merged(addresses, backend),
            default=_chosen_default(routes, backend),
            nameservers=tuple(nameservers),
            host=kernel.nodename,
            time=rfc_3339(time.time()),
            kernel=f"{kernel.sysname} {kernel.release}",
        )

    snapshot, why_torn = at_one_moment(backend, ((0, 0),), read)
    return attrs.evolve(snapshot, is_torn=why_torn is not None)


def _are_merged(addresses: Sequence[Address], backend: RouteBackend) -> bool | None:
    """Whether the kernel finds an own address in table main: then that and table local are one trie."""
    for found in backend.lookup([address.local for address in addresses[:1]]):
        if found.route is not None and found.route.type is RouteType.LOCAL:
            return found.route.table == Table.MAIN
    return None


def _chosen_default(routes: Sequence[Route], backend: RouteBackend) -> Route | None:
    """Which of several default routes of table main the kernel takes."""
    first = default_route(routes)
    tied = _tied_with(first, routes) if first is not None else ()
    free = own_addresses(numbers(route.destination) for route in routes)[0, 0] if tied else None
    if free is None:
        return None
    (found,) = backend.lookup([IPv4Address(max(free, 1))])
    return found.route if found.route in tied else None


def _tied_with(route: Route, routes: Iterable[Route]) -> tuple[Route, ...]:
    """The default routes among which the kernel chooses by the state of their gateways (fib_select_default).

    Returns:
        An empty tuple if there is no choice.
    """
    if route.destination.prefixlen or not _has_one_gateway(route):
        return ()
    place = (route.key, route.scope)
    tied = tuple(each for each in routes if (each.key, each.scope) == place and _has_one_gateway(each))
    return tied if len({(each.hops, each.source) for each in tied}) > 1 else ()


def _has_one_gateway(route: Route) -> bool:
    return route.type is RouteType.UNICAST and len(route.hops) == 1 and route.hops[0].gateway is not None


_LEAVING = (RouteType.UNICAST, RouteType.BROADCAST, RouteType.ANYCAST, RouteType.MULTICAST)


def _lacks_dev(route: Route) -> bool:
    """Tell whether it isn't recorded by which interfaces a route leaves, as of a nexthop object that isn't there."""
    is_known = route.hops and all(hop.dev is not None or hop.is_dead for hop in route.hops)
    return route.type in _LEAVING and not is_known


_RECORD, _CHECK = "record the host with hostrouting snapshot", "check on the host itself"


def _untold(what: str, address: IPv4Address, advice: str) -> RouteError:
    return RouteError(f"the recording doesn't tell {what}, which decides about {address}", hint=advice)


def _untold_dev(route: Route) -> RouteError:
    return RouteError(f"the recording doesn't tell every interface by which {route} leaves", hint=_RECORD)


def _entry(found: Lookup) -> object:
    """What an answer says apart from the table: while local and main are one the kernel names main for both."""
    return found.errno, found.route and attrs.evolve(found.route, table=Table.MAIN)


class SnapshotBackend(WholeTables):
    """A ``RouteBackend`` that answers as the kernel of a recorded host would have; threads may share it.

    Args:
        snapshot: the host.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    # --- reading -----------------------------------------------------------------------------------------------

    def links(self) -> tuple[Link, ...]:
        """All network interfaces, by index."""
        return self.snapshot.links

    def addresses(self) -> tuple[Address, ...]:
        """All IPv4 addresses of the host."""
        return self.snapshot.addresses

    def rules(self) -> tuple[Rule, ...]:
        """The policy rules in the order in which the kernel asked them."""
        return self.snapshot.rules

    def routes(self, table: int | None = None) -> tuple[Route, ...]:
        """The entries of a table, in the kernel's order; of every table, if none is named."""
        return tuple(route for route in self.snapshot.routes if table is None or route.table == table)

    def default_routes(self) -> tuple[Route, ...]:
        """The entries of table main for 0.0.0.0/0, in the kernel's order.

        Raises:
            RouteError: it isn't recorded by which interfaces the first of them that counts leaves.
        """
        found = super().default_routes()
        counting = (route for route in unicast_defaults(found) if route.devs or _lacks_dev(route))
        first = min(counting, key=attrgetter("metric"), default=None)
        if first is not None and _lacks_dev(first):
            raise _untold_dev(first)
        return found

    @contextmanager
    def noticing_changes(self, _: Sequence[Prefix], /) -> Iterator[Callable[[], bool]]:
        """Tell that nothing ever changes.

        Raises:
            RestlessError: the host changed while it was recorded.
        """
        if self.snapshot.is_torn:
            raise RestlessError("the host changed while it was recorded", hint="record it again")
        yield lambda: False

    def lookup(
        self, addresses: Sequence[IPv4Address], *, source: IPv4Address | None = None, is_tcp: bool = False
    ) -> tuple[Lookup, ...]:
        """For each address the entry that wins for a packet of the host (mark 0, tos 0, uid 0, nothing bound)."""
        return tuple(self._lookup(address, source, is_tcp=is_tcp) for address in addresses)

    def _lookup(self, address: IPv4Address, source: IPv4Address | None, *, is_tcp: bool) -> Lookup:
        found = self._fib.lookup(address, source, is_tcp=is_tcp)
        for what, advice, other in self._others:
            if _entry(found) != _entry(other.lookup(address, source, is_tcp=is_tcp)):
                raise _untold(what, address, advice)
        route = found.route
        if route is not None and _lacks_dev(route):
            raise _untold_dev(route)
        if route is None or route.destination.prefixlen:
            return found
        if not (tied := _tied_with(route, self._fib.tables.get(route.table, {}).get(0, {}).get(0, ()))):
            return found
        if self.snapshot.default not in tied:
            raise _untold(f"which of {len(tied)} default routes of metric {route.metric} is taken", address, _RECORD)
        return found._replace(route=self.snapshot.default)

    @cached_property
    def _fib(self) -> Fib:
        known = self.snapshot
        is_merged = known.rules == KERNEL_RULES and known.is_merged is not False
        return Fib(known.rules, known.routes, known.addresses, links=known.links, is_merged=is_merged)

    @cached_property
    def _others(self) -> list[tuple[str, str, Fib]]:
        """What isn't known, what helps, and how it would be if it were otherwise."""
        others = []
        if self._fib.is_merged and self.snapshot.is_merged is None:
            # A rule may have been added and deleted again.
            other = attrs.evolve(self._fib, is_merged=False)
            others.append(("whether tables local and main are one", _RECORD, other))
        if any(rule.has_unknown and rule.is_inverted for rule in self.snapshot.rules):
            other = attrs.evolve(self._fib, lacks_unknown=True)
            others.append(("whether a rule that selects by something unknown is met", _CHECK, other))
        return others

    # --- writing -----------------------------------------------------------------------------------------------

    def add(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Refuse: what is recorded stays as it was."""
        if not routes:
            return ()
        raise RouteError(f"can't change {routes[0]}: this is a recorded host", hint="do it on the host itself")

    replace = delete = add

    # --- waiting -----------------------------------------------------------------------------------------------

    def wait_for_change(self, scope: CancelScope) -> None:
        """Wait for the scope's end, since nothing ever changes.

        Args:
            scope: ends the wait.

        Raises:
            phases.Cancelled, phases.TimedOut: the scope ended.
        """
        scope.wait(threading.Event())
