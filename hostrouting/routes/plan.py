"""Compare the wanted routes with the table, and decide which routes must change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address
from typing import Any

import attrs

from hostrouting.config.routing import ONLINK, Config, StaticRoute
from hostrouting.kernel.port import RouteBackend
from hostrouting.model.changes import Change, Changes
from hostrouting.model.errors import Refusal, RouteError
from hostrouting.model.prefixes import Prefix, numbers
from hostrouting.model.routes import Route, Scope, Table
from hostrouting.routes.resolve import resolve


@attrs.frozen
class Replacement:
    """One of our routes and the route that is to replace it, which has the same destination and metric."""

    old: Route
    new: Route


@attrs.frozen
class RoutePlan:
    """The changes to make in table main, in the order in which they are made.

    Args:
        add: the routes whose destination and metric aren't used yet.
        replace: our routes that differ from the wanted ones.
        remove: our routes that are no longer wanted.
        unchanged: our routes that are already as wanted.
        foreign: other programs' routes that already do what is wanted, and don't change.
    """

    add: tuple[Route, ...] = ()
    replace: tuple[Replacement, ...] = ()
    remove: tuple[Route, ...] = ()
    unchanged: tuple[Route, ...] = ()
    foreign: tuple[Route, ...] = ()

    @property
    def wanted(self) -> tuple[Route, ...]:
        """Return all routes that must win once the plan has been applied."""
        return (*self.add, *(item.new for item in self.replace), *self.unchanged, *self.foreign)

    @property
    def changes(self) -> Changes:
        """Return the plan's changes, which are false if the table is as wanted."""
        added = (Change(route, "added") for route in self.add)
        replaced = (Change(item.new, "replaced", item.old) for item in self.replace)
        return Changes((*added, *replaced, *(Change(route, "removed") for route in self.remove)))


@attrs.frozen
class RoutesReport:
    """The result of installing the static routes now and for every boot.

    Args:
        plan: the plan that was applied.
        changes: every route, file and unit that the run changed.
    """

    plan: RoutePlan = attrs.field(factory=RoutePlan)
    changes: Changes = attrs.field(factory=Changes)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON, with each route as ``ip route show`` prints it."""
        same = {name: [*map(str, getattr(self.plan, name))] for name in ("unchanged", "foreign")}
        return {"schema": 1} | self.changes.to_json() | same


def plan_routes(wanted: Sequence[Route], main: Sequence[Route]) -> RoutePlan:
    """Compare wanted routes with table main.

    Args:
        wanted: the resolved routes; no two of them have the same key.
        main: the entries of table main, in the kernel's order.

    Returns:
        The plan.

    Raises:
        RouteError: some routes can't be installed. The error names each of them, with the conflicting route and a hint.
    """
    plan, refusals = plan_what_goes(wanted, main)
    if refusals:
        raise RouteError.of(refusals)
    return plan


def plan_what_goes(wanted: Sequence[Route], main: Sequence[Route]) -> tuple[RoutePlan, list[Refusal]]:
    """Compare wanted routes with table main, and plan those that don't conflict.

    Only our own routes (protocol 217) are ever replaced or removed. If another program's route has the same
    destination, tos and metric, it is left alone if it has the same next hops. Otherwise the wanted route is refused,
    because NLM_F_REPLACE ignores the owner (fib_table_insert in net/ipv4/fib_trie.c).

    Args:
        wanted: the resolved routes; no two of them have the same key.
        main: the entries of table main, in the kernel's order.

    Returns:
        The plan for the accepted routes, and a refusal for each other route, with the conflicting route and a hint.
    """
    # The entries of each destination. Pairs of numbers hash several times as fast as networks.
    entries: dict[Prefix, list[Route]] = {}
    for route in main:
        entries.setdefault(numbers(route.destination), []).append(route)
    sorted_: dict[str, list[Any]] = {field.name: [] for field in attrs.fields(RoutePlan)}
    refusals: list[Refusal] = []
    for route in wanted:
        same = entries.get(numbers(route.destination))
        if same is None:
            sorted_["add"].append(route)
            continue
        connected = next((entry for entry in same if entry.is_connected), None)
        # If several entries have the same key, NLM_F_REPLACE replaces the first one.
        there = next((entry for entry in same if entry.key == route.key), None)
        if connected is not None:
            refusals.append(_refuse_connected(route, connected))
        elif there is None:
            sorted_["add"].append(route)
        elif there.is_ours and _is_same(there, route):
            sorted_["unchanged"].append(there)
        elif there.is_ours:
            sorted_["replace"].append(Replacement(there, route))
        elif there.has_same_next_hops(route):
            sorted_["foreign"].append(there)
        else:
            refusals.append(_refuse_foreign(route, there))
    ours = [route for route in main if route.is_ours]
    keys = {route.key for route in wanted} if ours else set()
    # Routes that other routes need for their gateways are removed last, so that undoing, in reverse order, restores
    # them first.
    sorted_["remove"] = sorted(
        (route for route in ours if route.key not in keys), key=lambda route: route.scope == Scope.LINK
    )
    return RoutePlan(**{name: tuple(items) for name, items in sorted_.items()}), refusals


def _is_same(there: Route, wanted: Route) -> bool:
    def substance(route: Route) -> tuple[object, ...]:
        hops = tuple(hop.path for hop in route.hops)
        return (route.type, hops, route.scope, route.source, route.mtu, route.nexthop_id)

    return substance(there) == substance(wanted)


def _refuse_connected(route: Route, connected: Route) -> Refusal:
    halves = " and ".join(map(str, route.destination.subnets())) if route.destination.prefixlen < 32 else ""
    return Refusal(
        f"can't install {route.destination}: it is the connected network of {','.join(connected.devs)} ({connected}); "
        "another route of that destination would cut the interface off or be ambiguous",
        f"name its halves instead, {halves}, which win as the longer prefixes" if halves else "leave it out",
    )


def _refuse_foreign(route: Route, there: Route) -> Refusal:
    return Refusal(
        f"can't install {route}: another program's route has its destination and metric ({there})",
        "choose another metric or destination, or have its owner remove it",
    )


def plan_now(config: Config, backend: RouteBackend) -> tuple[RoutePlan, str | None]:
    """Plan the routes for the host's current state, without changing anything.

    Args:
        config: the wanted routes.
        backend: the backend that accesses the kernel.

    Returns:
        The plan, and a phrase that says what is still missing. If anything is, the plan is empty.

    Raises:
        RouteError: a route can never be installed as given, or the kernel can't be queried.
    """
    main = backend.routes(Table.MAIN)
    wanted = config.static_routes.routes
    routes, missing = resolve(wanted, backend.links(), backend.addresses(), main, config.uplinks)
    return (RoutePlan() if missing else plan_routes(routes, main)), missing


def find_missing(config: Config, backend: RouteBackend) -> str | None:
    """Return what must appear before the config's routes can be planned, without reading the whole table.

    This reads only the links, the default routes, and the entries around the config's gateways.

    Args:
        config: the wanted routes.
        backend: the backend that accesses the kernel.

    Returns:
        A phrase that says what is missing, or None if the routes can be planned or one of them can never be installed.

    Raises:
        RouteError: the kernel can't be queried.
    """
    # One route for each device and gateway is enough, besides each route on the link, which may reach a gateway. With
    # all routes of a config with 100,000, apply would take 0.4 s longer.
    firsts: dict[object, StaticRoute] = {}
    for route in config.static_routes.routes:
        firsts.setdefault((route.dev, route.gateway, route.gateway == ONLINK and route.destination), route)
    if not firsts:
        return None
    wanted = tuple(firsts.values())
    gateways = tuple({route.gateway: None for route in wanted if isinstance(route.gateway, IPv4Address)})
    links, addresses, defaults = backend.links(), backend.addresses(), backend.default_routes()

    def missing_with(found: Iterable[Route | None]) -> str | None:
        around = (each for each in found if each is not None and each.table == Table.MAIN)
        main = (*defaults, *(each for each in around if each.destination.prefixlen))
        try:
            return resolve(wanted, links, addresses, main, config.uplinks)[1]
        except RouteError:  # waiting doesn't help
            return None

    missing = missing_with(answer.route for answer in backend.lookup(gateways))
    if missing is not None and gateways:
        # A lookup may find a longer prefix or another table than the entry against which the kernel checks a gateway.
        missing = missing_with(backend.routes_except({dev for route in defaults for dev in route.devs}))
    return missing
