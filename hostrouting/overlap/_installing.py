"""Apply proposed entries to a model of the host, and verify them as an installation would. This module does no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hostrouting.config.routing import StaticRoute
from hostrouting.kernel.fib import Fib
from hostrouting.kernel.nexthops import Router
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.kernel.snapshot_backend import SnapshotBackend
from hostrouting.model.errors import RouteError
from hostrouting.model.family import IpAddress
from hostrouting.model.prefixes import Prefix, numbers
from hostrouting.model.routes import Lookup, Route, Table
from hostrouting.overlap._state import State
from hostrouting.routes.plan import plan_routes
from hostrouting.routes.resolve import resolve
from hostrouting.routes.verify import losing_routes


def tables_with(state: State, fib: Fib, entries: Sequence[StaticRoute], fixed: Mapping[int, str | None]) -> Fib | str:
    """Return the tables after the planner has applied entries, or the reason why the entries don't work.

    Args:
        state: the host's state.
        fib: the tables before. The new routes come before its routes.
        entries: the proposed entries.
        fixed: the fixed addresses, each with the interface that it must leave through, or None for the uplinks.
    """
    main = [route for route in state.routes if route.table == Table.MAIN]
    try:
        routes, missing = resolve(entries, state.links, state.addresses, main, state.uplinks.named)
        # Keep our existing entries and add the new ones.
        plan = plan_routes(routes, [route for route in main if not route.is_ours])
    except RouteError as error:
        return str(error)
    if missing:
        return missing
    tables = fib.with_routes(plan.add)
    for number, dev in fixed.items():
        address, devs = state.family.address(number), state.uplinks.devs if dev is None else (dev,)
        found = tables.lookup(address).route
        if found is None or not set(found.devs) <= set(devs):
            silent = [f"{gateway} on {by} doesn't answer" for by, gateway in sorted(state.silent_routers, key=str)]
            return "; ".join([f"{address} would still not leave through {','.join(devs)}", *silent])
    return tables


def losing_entries(state: State, tables: Fib, routes: Sequence[Route]) -> dict[Prefix, str]:
    """Return the reason for each new route that the last check of an installation would refuse, by its destination."""
    refused = losing_routes(routes, _Modelled(state, tables))
    return {numbers(route.destination): refusal.message for route, refusal in refused}


class _Modelled(SnapshotBackend):
    """A backend that answers by a check's model of the tables."""

    def __init__(self, state: State, fib: Fib) -> None:
        super().__init__(Snapshot(tuple(state.links), tuple(state.addresses), tuple(state.rules), tuple(fib.routes)))
        self.family, self._model, self._silent = state.family, fib, state.silent_routers

    def lookup(
        self, addresses: Sequence[IpAddress], *, source: IpAddress | None = None, is_tcp: bool = False
    ) -> tuple[Lookup, ...]:
        """Return the best route to each address."""
        return tuple(self._model.lookup(address, source, is_tcp=is_tcp) for address in addresses)

    def silent_routers(self) -> frozenset[Router]:
        """Return the routers that the kernel avoids because they are unreachable."""
        return self._silent
