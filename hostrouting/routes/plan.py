"""Compare the wanted routes with table main, and plan the necessary changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any

import attrs

from hostrouting.config.routing import ONLINK, Config, OverlapMode, StaticRoute, StaticRoutes
from hostrouting.config.swapped_names import (
    ports_named,
    swap_words,
    swapped_routes,
    swapped_uplinks,
)
from hostrouting.kernel.default_routes import (
    MISSING_UPLINK,
    default_route,
    unicast_defaults,
    uplink_patterns,
)
from hostrouting.kernel.port import Facts, RouteBackend, read_default_routes, read_routes
from hostrouting.kernel.selection import Selection
from hostrouting.model.changes import Change, Changes, Replacement
from hostrouting.model.errors import Refusal, RouteError
from hostrouting.model.family import Family
from hostrouting.model.integer_prefixes import Prefix, numbers
from hostrouting.model.links import VPN_DEVS, Link, is_like
from hostrouting.model.routes import (
    NextHop,
    Protocol,
    Route,
    Route6,
    Table,
)
from hostrouting.model.rules import Rule, rule_words
from hostrouting.model.values import frozen
from hostrouting.model.verified_uplinks import (
    find_awaited_uplinks,
    find_verified,
    is_vpn_instead,
)
from hostrouting.routes.resolve import resolve

if TYPE_CHECKING:
    from hostrouting.routes.policy import PolicyPlan, PolicyRouting


@frozen
class RoutePlan:
    """The changes to table main, and to our rules and side tables.

    Args:
        add: wanted routes with an unused destination and metric.
        replace: our routes that must change, each with the wanted route.
        remove: our routes that are no longer wanted.
        unchanged: our routes that are already correct.
        foreign: other programs' routes that are equivalent to wanted ones and stay as they are.
        policies: a plan for each family in which the config or the host has rules or side tables of
            ours.
        diverted: a sentence for each kind of packets that the new routes divert, though no expected
            CIDR asks for it.
    """

    add: tuple[Route, ...] = ()
    replace: tuple[Replacement, ...] = ()
    remove: tuple[Route, ...] = ()
    unchanged: tuple[Route, ...] = ()
    foreign: tuple[Route, ...] = ()
    policies: tuple[PolicyPlan, ...] = ()
    diverted: tuple[str, ...] = ()

    @property
    def wanted(self) -> tuple[Route, ...]:
        """Return all routes that must be in effect once the plan has been applied."""
        return (*self.add, *(item.new for item in self.replace), *self.unchanged, *self.foreign)

    def __or__(self, other: RoutePlan) -> RoutePlan:
        """Return both plans as one."""
        names = [field.name for field in attrs.fields(RoutePlan)]
        return RoutePlan(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def of(self, family: Family) -> RoutePlan:
        """Return the part of the plan for a family."""
        if self.families == {family}:
            return self
        routes = self.only(lambda route: route.family is family)
        policies = tuple(policy for policy in self.policies if policy.family is family)
        return attrs.evolve(routes, policies=policies)

    def only(self, is_chosen: Callable[[Route], bool]) -> RoutePlan:
        """Return the part of the plan that is about chosen routes of table main.

        For a replacement, the new route must be chosen.
        """
        add, remove, unchanged, foreign = (
            tuple(filter(is_chosen, routes))
            for routes in (self.add, self.remove, self.unchanged, self.foreign)
        )
        return RoutePlan(
            add,
            tuple(item for item in self.replace if is_chosen(item.new)),
            remove,
            unchanged,
            foreign,
        )

    @cached_property
    def families(self) -> set[Family]:
        """Return the address families of the routes and rules in the plan."""
        families = {route.family for route in (*self.wanted, *self.remove)}
        return families | {policy.family for policy in self.policies}

    @property
    def unchanged_routes(self) -> tuple[Route, ...]:
        """Return our unchanged routes in table main and in side tables."""
        side = (route for policy in self.policies for route in policy.unchanged)
        return (*self.unchanged, *side)

    @property
    def unchanged_rules(self) -> tuple[Rule, ...]:
        """Return our unchanged rules."""
        return tuple(rule for policy in self.policies for rule in policy.unchanged_rules)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return sentences about the interfaces and addresses in ``keep`` that aren't kept."""
        return tuple(note for policy in self.policies for note in policy.wanted.notes)

    @property
    def awaited(self) -> tuple[str, ...]:
        """Return a phrase for each interface in ``keep`` that is up and has no address yet."""
        return tuple(phrase for policy in self.policies for phrase in policy.wanted.awaited)

    @property
    def changes(self) -> Changes:
        """Return the plan's changes; without any, the result is falsy."""
        added = (Change(route, "added") for route in self.add)
        replaced = (Change(item.new, "replaced", item.old) for item in self.replace)
        removed = (Change(route, "removed") for route in self.remove)
        policies = [policy.changes for policy in self.policies]
        side = (change for changes in policies for change in changes.routes)
        rules = (change for changes in policies for change in changes.rules)
        return Changes((*added, *replaced, *removed, *side), rules=tuple(rules))


@frozen
class RoutesReport:
    """The result of an installation of the static routes, both in the kernel and for later boots.

    Args:
        plan: the plan that was applied.
        changes: every route, rule, file and unit that the run changed.
    """

    plan: RoutePlan = attrs.field(factory=RoutePlan)
    changes: Changes = attrs.field(factory=Changes)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON, with routes in the format of ``ip route show``."""
        plan = self.plan
        return {
            "schema": 1,
            **self.changes.to_json(),
            "unchanged": [*map(str, plan.unchanged_routes)],
            "unchangedRules": [*map(rule_words, plan.unchanged_rules)],
            "foreign": [*map(str, plan.foreign)],
            "notes": [*plan.notes],
        }


def plan_routes(
    wanted: Sequence[Route],
    main: Sequence[Route],
    adopted: Collection[Route] = (),
) -> RoutePlan:
    """Compare wanted routes with table main.

    Args:
        wanted: the resolved routes, with unique keys.
        main: the entries in table main, in the kernel's order.
        adopted: another program's entries in ``main`` that become ours.

    Returns:
        The plan.

    Raises:
        RouteError: some routes can't be installed. The error lists them, each with the conflicting
            route and a hint.
    """
    plan, refusals = plan_possible(wanted, main, adopted)
    if refusals:
        raise RouteError.of(refusals)
    return plan


def plan_possible(
    wanted: Sequence[Route],
    main: Sequence[Route],
    adopted: Collection[Route] = (),
) -> tuple[RoutePlan, list[Refusal]]:
    """Compare wanted routes with table main, and plan the routes that don't conflict.

    Only our own routes (protocol 217) and adopted routes are replaced or removed. Another program's
    route may have the destination, tos and metric of a wanted route. If it also has the same next
    hops, it stays. Otherwise, the two routes conflict.

    Args:
        wanted: the resolved routes, with unique keys.
        main: the entries in table main, in the kernel's order.
        adopted: another program's entries in ``main`` that become ours.

    Returns:
        The plan for the accepted routes, and a refusal for each rejected route, with the
        conflicting route and a hint. There may also be a refusal for a planned route: it would lose
        to a next hop that another program has added to our old IPv6 route.
    """
    # Use pairs of numbers as keys, because they hash several times faster than networks.
    entries: dict[Prefix, list[Route]] = {}
    for entry in main:
        entries.setdefault(numbers(entry.destination), []).append(entry)
    sorter = _Sorter({*adopted})
    for route in wanted:
        same = entries.get(numbers(route.destination))
        if same is None:
            sorter.add.append(route)
        else:
            sorter.sort(route, same)
    ours = [*(entry for entry in main if entry.is_ours), *adopted]
    keys = {route.key for route in wanted} if ours else set()
    unwanted = [entry for entry in ours if entry.key not in keys]
    # The removal ends with the routes that make gateways reachable. So a rollback, which goes
    # backwards, begins with them.
    remove = sorted(unwanted, key=lambda entry: entry.is_near)
    plan = RoutePlan(
        tuple(sorter.add),
        tuple(sorter.replace),
        tuple(remove),
        tuple(sorter.unchanged),
        tuple(sorter.foreign),
    )
    return plan, [*sorter.refusals, *_refuse_behind_added_hops(remove, wanted, entries)]


@attrs.define(eq=False, repr=False)
class _Sorter:
    """The wanted routes, grouped by the change that each route needs.

    Args:
        adopted: another program's entries that become ours.
    """

    adopted: set[Route]
    add: list[Route] = attrs.field(factory=list[Route])
    replace: list[Replacement] = attrs.field(factory=list[Replacement])
    unchanged: list[Route] = attrs.field(factory=list[Route])
    foreign: list[Route] = attrs.field(factory=list[Route])
    refusals: list[Refusal] = attrs.field(factory=list[Refusal])

    def sort(self, route: Route, same: Sequence[Route]) -> None:
        """Add a wanted route to the list of the change that it needs, or to ``refusals``.

        Args:
            route: the wanted route to sort.
            same: the entries of table main with the route's destination.
        """
        connected = next((entry for entry in same if entry.is_connected), None)
        # If several entries have the same key, NLM_F_REPLACE replaces the first one.
        there = next((entry for entry in same if entry.key == route.key), None)
        if connected is not None:
            self.refusals.append(_refuse_connected(route, connected))
        elif there is None:
            self.add.append(route)
        elif there.is_ours or there in self.adopted:
            self._sort_ours(route, there, same)
        else:
            self._sort_foreign(route, there)

    def _sort_ours(self, route: Route, there: Route, same: Sequence[Route]) -> None:
        if there.has_same_effect(route):
            self.unchanged.append(there)
        elif (behind := _entry_behind(route, same)) is not None:
            self.refusals.append(_refuse_foreign(route, behind))
        else:
            self.replace.append(Replacement(there, route))

    def _sort_foreign(self, route: Route, there: Route) -> None:
        is_expired = isinstance(there, Route6) and there.is_expired
        if there.has_same_next_hops(route) and not is_expired:
            self.foreign.append(there)
        else:
            self.refusals.append(_refuse_foreign(route, there))


def _entry_behind(route: Route, same: Sequence[Route]) -> Route | None:
    """Return another program's IPv6 entry that has the key of our route, or None.

    If our route were replaced, the new route would come after that entry, and have no effect. The
    kernel keeps two entries with the same key if one of them has no gateway, or comes from a router
    advertisement (rt6_qualify_for_ecmp).
    """
    if not isinstance(route, Route6):
        return None
    behind = (entry for entry in same if entry.key == route.key and not entry.is_ours)
    return next(behind, None)


def _refuse_behind_added_hops(
    remove: Iterable[Route],
    wanted: Iterable[Route],
    entries: Mapping[Prefix, Sequence[Route]],
) -> Iterator[Refusal]:
    """Refuse new IPv6 routes behind a next hop that another program added to our old route.

    For example, our old route is ``2001:db8::/32 via fe80::1 dev eth0 metric 100``, and the new
    route has metric 200. Another program has added ``nexthop via fe80::2 dev eth0`` to our old
    route. When our old route is removed, this next hop stays as a route with metric 100, and
    precedes the new route. A rollback couldn't put our old route back in front of it.
    """
    old_routes = [
        route for route in remove if isinstance(route, Route6) and route.source_prefix is None
    ]
    if not old_routes:
        return
    # Of several new routes to a destination, the dict keeps the last one, so sort the lowest metric
    # last.
    by_metric = sorted(wanted, key=lambda route: route.metric, reverse=True)
    new_routes = {numbers(route.destination): route for route in by_metric}
    for old in old_routes:
        destination = numbers(old.destination)
        new = new_routes.get(destination)
        if new is not None and new.metric >= old.metric:
            yield from _refuse_beside_old(new, old, entries[destination])


def _refuse_beside_old(route: Route, old: Route, same: Iterable[Route]) -> Iterator[Refusal]:
    """Yield a refusal for a new route, if another program may have added a next hop to our old one.

    Args:
        route: the new route, which has the metric of ``old`` or a higher one.
        old: our old route, which is to be removed.
        same: the entries in table main with the destination of both routes.
    """
    hint = "choose another metric, or have its owner remove it"
    theirs = next((entry for entry in same if entry.key == old.key and not entry.is_ours), None)
    if theirs is not None:
        reason = "another program's route next to our old one would win because of its metric"
        yield Refusal(f"can't install {route}: {reason} ({theirs})", hint)
    elif len(old.hops) > 1 and not old.has_same_next_hops(route):
        # The kernel doesn't show which program has added a next hop.
        why = (
            "another program may have added a hop to our old one, "
            "which would win because of its metric"
        )
        hint += (
            "; if no other program has added one, raise the metric first, "
            "and then change the next hops"
        )
        yield Refusal(f"can't install {route}: {why} ({old})", hint)


def _refuse_connected(route: Route, connected: Route) -> Refusal:
    devs = ",".join(connected.devs)
    network = f"the connected network of {devs} ({connected})"
    why = "another route of that destination would cut the interface off or be ambiguous"
    reason = f"can't install {route.destination}: it is {network}; {why}"
    hint = f"remove {route.destination} from hostRouting.staticRoutes.routes"
    if route.devs == connected.devs:
        hint += f": the connected route leads through {devs} already"
    elif route.destination.prefixlen < route.family.bits:
        hint += f"; if its addresses are to be reached through {','.join(route.devs)} instead"
        hint += f" of {devs}, name its halves, {_halves(route)}, which win as the longer prefixes"
    return Refusal(reason, hint)


def halves_hint(route: Route) -> str:
    """Return a hint to name the two halves of a route's destination, or to leave out the route."""
    if route.destination.prefixlen == route.family.bits:
        return "leave it out"
    return f"name its halves instead, {_halves(route)}, which win as the longer prefixes"


def _halves(route: Route) -> str:
    return " and ".join(map(str, route.destination.subnets()))


def _refuse_foreign(route: Route, there: Route) -> Refusal:
    leave_out = f"remove {route.destination} from hostRouting.staticRoutes.routes"
    # If the other route has the same interfaces, halves would only take packets off its gateway.
    if route.devs != there.devs and route.destination.prefixlen < route.family.bits:
        leave_out += f" and {halves_hint(route)}"
    hint = f"{leave_out}, or have the other route's owner remove that{_owners_of_static(there)}"
    if there.is_printed:
        # Only the check knows what may be deleted first.
        hint = "hostrouting fix --format ip printed it; hostrouting check says how to make it last"
    if isinstance(there, Route6) and there.is_expired:
        hint = "it has expired: try again when the kernel has removed it, within 30 s"
    return Refusal(
        f"can't install {route}: another program's route has its destination and metric ({there})",
        hint,
    )


def _owners_of_static(there: Route) -> str:
    """Return a clause on the usual owners of a route of its protocol; empty if none is known."""
    if there.protocol != Protocol.STATIC:
        return ""
    return (
        "; a route of networkd or netplan doesn't follow a gateway that moves, so list it there or"
        " here, and not in both"
    )


class SwappedNamesError(RouteError):
    """Exception raised if an interface name in the config belongs to another NIC by now."""


def uplinks_of(
    config: Config,
    links: Sequence[Link],
    backend: RouteBackend,
    backends: Iterable[RouteBackend],
) -> tuple[str, ...] | None:
    """Return patterns for the interfaces whose default route is inherited; None for any interface.

    Args:
        config: the config, which may name the uplinks.
        links: the host's links.
        backend: the backend for which the routes are planned.
        backends: all of the host's backends.

    Raises:
        RouteError: an interface name in the config belongs to another NIC by now.
    """
    refuse_swapped(config, links)
    if config.uplinks is not None:
        return config.uplinks
    verified = find_verified(config.verified, links)
    ipv4 = next((each for each in backends if each.family is Family.IPV4), backend)
    is_asked = not verified and backend is not ipv4
    return uplink_patterns(None, verified, read_default_routes(ipv4) if is_asked else None)


def refuse_swapped(config: Config, links: Sequence[Link], *, is_lacking: bool = False) -> None:
    """Raise an error if an interface name in the config belongs to another NIC by now.

    Args:
        config: the config with interface names and verified uplinks.
        links: the host's links.
        is_lacking: whether something that a static route needs is missing.

    Raises:
        RouteError: routes would lead to another NIC than the one that had the name.
    """
    swapped = swapped_uplinks(config, links) or swapped_routes(config, links, is_lacking=is_lacking)
    for swap in swapped:
        why, hint = swap_words(swap, config, links, is_lacking=is_lacking)
        raise SwappedNamesError(f"{_CANT_INSTALL}{why}", hint=hint)


_CANT_INSTALL = "can't install the static routes: "


def why_swapped(config: Config, backend: RouteBackend, ipv4: RouteBackend | None) -> str | None:
    """Return which interface name belongs to another NIC by now, and what to do; otherwise None.

    Args:
        config: the config with interface names and verified uplinks.
        backend: the backend of a family.
        ipv4: the host's IPv4 backend; None if the host has none.
    """
    backends = [backend] if ipv4 is None or backend is ipv4 else [ipv4, backend]
    try:
        find_missing(config, *backends)
    except SwappedNamesError as error:
        return f"swapped: {error.message.removeprefix(_CANT_INSTALL)}: {error.hint}"
    except RouteError:  # the installation fails with the same error, and reports it
        return None
    return None


def resolve_with(
    config: Config,
    facts: Facts,
    main: Sequence[Route],
    backend: RouteBackend,
    backends: Iterable[RouteBackend],
) -> tuple[tuple[Route, ...], str | None]:
    """Resolve a config's routes of a backend's family; see ``resolve``.

    Args:
        config: the config with the routes, which may name the uplinks.
        facts: the facts that the backend has just returned.
        main: entries of table main that include the default routes and the routes to gateways.
        backend: the backend for which the routes are planned.
        backends: all of the host's backends.

    Raises:
        RouteError: a route can never be installed as configured, or an interface name in the config
            belongs to another NIC by now.
    """
    wanted = config.static_routes.of(backend.family)
    uplinks = uplinks_of(config, facts.links, backend, backends)
    default = default_route(main, uplinks)
    inherits = any(route.dev is None for route in wanted)
    devs = default.devs if default is not None and inherits else ()
    if config.uplinks is None and is_vpn_instead(config.verified, facts.links, devs):
        gone = ",".join(uplink.name for uplink in config.verified)
        missing = f"{gone}, with which the check passed, is gone"
        return (), f"{_OTHER_THAN_VPN}{','.join(devs)}, since {missing}"
    resolved = resolve(wanted, facts.links, facts.addresses, main, uplinks)
    if resolved[1] is not None:
        refuse_swapped(config, facts.links, is_lacking=True)
    return resolved


def adopted_routes(rows: Iterable[StaticRoute], main: Iterable[Route]) -> tuple[Route, ...]:
    """Return the entries that the Go package has installed for its routes.

    The Go package runs ``ip route replace DESTINATION via GATEWAY dev DEV metric METRIC``. This
    makes a single entry with that destination and metric, and without other attributes. If there
    are several entries, or if the entry has other attributes, the administrator has added them.

    Args:
        rows: the Go package's routes. A route without an interface matches any interface, and a
            route without a gateway matches any gateway.
        main: the entries in table main.
    """
    rows_by_key: dict[tuple[Prefix, int], list[StaticRoute]] = {}
    for row in rows:
        rows_by_key.setdefault((numbers(row.destination), row.metric), []).append(row)
    if not rows_by_key:
        return ()
    entries: dict[tuple[Prefix, int], list[Route]] = {}
    for route in main:
        key = (numbers(route.destination), route.metric)
        if key in rows_by_key and not route.tos:
            entries.setdefault(key, []).append(route)
    adopted: list[Route] = []
    for key, wanted in rows_by_key.items():
        alike = entries.get(key, [])
        if len(alike) == 1 and any(_is_installed_for(row, alike[0]) for row in wanted):
            adopted += alike
    return tuple(adopted)


def _is_installed_for(row: StaticRoute, route: Route) -> bool:
    (hop,) = route.hops if len(route.hops) == 1 else (NextHop(),)
    plain = NextHop(hop.dev, hop.gateway, is_dead=hop.is_dead, is_linkdown=hop.is_linkdown)
    expected = Route(row.destination, (plain,), protocol=Protocol.BOOT, metric=row.metric)
    is_named = row.dev in (None, hop.dev) and row.gateway in (None, hop.gateway)
    return route == expected and is_named and isinstance(hop.gateway, IPv4Address)


def plan_now(
    config: Config,
    *backends: RouteBackend,
    adopted: Sequence[StaticRoute] = (),
) -> tuple[RoutePlan, str | None]:
    """Plan the routes for the host's current state, without changing anything.

    Args:
        config: the wanted routes.
        backends: the backends for kernel access, one for each address family.
        adopted: the Go package's IPv4 routes, which become ours. The plan replaces the routes that
            are also wanted, and removes the others.

    Returns:
        The plan, and None. If a device, gateway or default route is missing: an empty plan, and a
        phrase that names what is missing.

    Raises:
        RouteError: a route can never be installed as configured, a route conflicts with an existing
            one, or the kernel can't be queried.
    """
    if not (config.static_routes.is_wanted or adopted):
        return _plan_removal(backends), None
    plan = RoutePlan()
    for backend in backends:
        main = read_routes(backend, Table.MAIN)
        facts = backend.facts()
        routes, missing = resolve_with(config, facts, main, backend, backends)
        if missing is not None:
            return RoutePlan(), missing
        _refuse_to_follow_vpn(config, facts.links, main, backend, backends)
        plan |= plan_routes(
            routes,
            main,
            adopted_routes(adopted, main) if backend.family is Family.IPV4 else (),
        )
        plan |= RoutePlan(policies=plan_policy(config, backend, facts, main))
    return plan, None


def _refuse_to_follow_vpn(
    config: Config,
    links: Sequence[Link],
    main: Sequence[Route],
    backend: RouteBackend,
    backends: Iterable[RouteBackend],
) -> None:
    """Raise an error if our installed routes would follow the default route to a VPN.

    Routes follow the default route if no uplink is configured or verified. A VPN's default route
    wins if it has a lower metric than another interface's.

    Raises:
        RouteError: some of our routes would move to the VPN.
    """
    if config.uplinks is not None or find_verified(config.verified, links):
        return
    if config.route_overlap.mode is not OverlapMode.STRICT or not config.keeps_uplinks:
        return
    # IPv6 routes follow the IPv4 default route, if there is one.
    ipv4 = next((each for each in backends if each.family is Family.IPV4), backend)
    defaults = main if backend is ipv4 else read_default_routes(ipv4) or main
    vpn = _vpn_beside(defaults)
    if vpn is None:
        return
    following = _our_following_routes(config.static_routes, backend.family, main)
    devs = sorted({dev for route in following if route.devs != vpn for dev in route.devs})
    if devs:
        why = f"the default route that wins is a VPN's, by the name of {','.join(vpn)}"
        raise RouteError(
            f"{_CANT_INSTALL}{why}, and our routes leave through {','.join(devs)}",
            hint=naming(devs),
        )


def _our_following_routes(
    static: StaticRoutes,
    family: Family,
    main: Iterable[Route],
) -> list[Route]:
    """Return our installed routes that follow the default route: the config names no ``dev``."""
    inheriting = {
        (numbers(route.destination), route.metric or family.usual_metric)
        for route in static.of(family)
        if route.dev is None
    }
    ours = (route for route in main if route.is_ours)
    return [each for each in ours if (numbers(each.destination), each.metric) in inheriting]


def _vpn_beside(defaults: Sequence[Route]) -> tuple[str, ...] | None:
    """Return the interfaces of a VPN whose default route wins over another interface's, or None."""
    best = default_route(defaults)
    if best is None or not _has_vpn(best.devs):
        return None
    others = (route.devs for route in unicast_defaults(defaults))
    is_beside = any(devs and not _has_vpn(devs) for devs in others)
    return best.devs if is_beside else None


def _has_vpn(devs: Iterable[str]) -> bool:
    return any(is_like(dev, VPN_DEVS) for dev in devs)


def _plan_removal(backends: Iterable[RouteBackend]) -> RoutePlan:
    """Plan to remove all our routes and rules, even routes in side tables that no rule looks up."""
    from hostrouting.routes.policy import PolicyPlan

    plan = RoutePlan()
    for backend in backends:
        family = backend.family
        there, main = _read_ours(backend, backend.facts())
        plan |= plan_routes((), main)
        if there.rules or there.routes:
            plan |= RoutePlan(policies=(PolicyPlan(family, there=there),))
    return plan


def plan_since(
    routes: Collection[Route],
    policies: Mapping[Family, PolicyRouting],
    executed: RoutePlan,
) -> RoutePlan:
    """Return a plan with all changes from earlier routes and rules to those of an executed plan.

    Args:
        routes: the earlier routes in table main: ours, and those that the executed plan adopted.
        policies: the earlier rules and side tables of each family that may have changed since.
        executed: the plan. Some of its routes and rules may have been there already.
    """
    from hostrouting.routes.policy import PolicyPlan

    adopted = [route for route in routes if not route.is_ours]
    # The executed plan's routes are in effect, so no earlier route can refuse them.
    plan, _ = plan_possible(executed.wanted, (*routes, *executed.foreign), adopted)
    each = {policy.family: policy for policy in executed.policies}
    for family, there in policies.items():
        each[family] = attrs.evolve(each.get(family, PolicyPlan(family)), there=there)
    return attrs.evolve(plan, policies=tuple(each.values()), diverted=executed.diverted)


def plan_policy(
    config: Config,
    backend: RouteBackend,
    facts: Facts,
    defaults: Sequence[Route],
) -> tuple[PolicyPlan, ...]:
    """Plan the changes to our rules and side tables of a family.

    If the config has neither ``rules`` nor ``keep``, and the kernel has no rule of ours, there is
    no plan.

    Args:
        config: the wanted rules and kept interfaces.
        backend: the backend for kernel access.
        facts: the facts that the backend has just returned.
        defaults: entries that include the default routes of table main.

    Returns:
        A tuple with the plan, or an empty tuple.

    Raises:
        RouteError: another program has a route in a side table, a rule of the config would take
            packets off a kept interface, or the kernel can't be queried.
    """
    family = backend.family
    static = config.static_routes
    is_keeping = family is Family.IPV4 and bool(static.keep)
    has_rules = any(rule.is_ours for rule in facts.rules)
    if not (is_keeping or has_rules or static.rules_of(family)):
        return ()
    from hostrouting.routes.policy import PolicyPlan, resolve_policy

    refuse_swapped(config, facts.links)

    def foreign_in(table: int) -> Route | None:
        entries = read_routes(backend, table)
        return next((each for each in entries if each.protocol != Protocol.HOSTROUTING), None)

    wanted = resolve_policy(config, family, facts, defaults, foreign_in)
    there, _ = _read_ours(backend, facts)
    return (PolicyPlan(family, wanted, there),)


def read_policy(backend: RouteBackend) -> PolicyRouting:
    """Return our rules and the routes in our side tables, in the kernel's order."""
    return _read_ours(backend, backend.facts())[0]


def _read_ours(backend: RouteBackend, facts: Facts) -> tuple[PolicyRouting, list[Route]]:
    """Return our rules and the routes in our side tables, and our routes in table main."""
    from hostrouting.routes.policy import PolicyRouting

    ours = [*backend.entries(Selection(protocol=Protocol.HOSTROUTING))]
    rules = tuple(rule for rule in facts.rules if rule.is_ours)
    side = tuple(route for route in ours if route.is_in_side_table)
    return PolicyRouting(rules, side), [route for route in ours if route.is_ours]


def find_missing(config: Config, *backends: RouteBackend) -> str | None:
    """Return a phrase about a missing device, gateway or default route, or None.

    All entries of table main, which may be large, are read only if gateways are configured.

    Raises:
        RouteError: a route can never be installed as configured, or the kernel can't be queried.
    """
    for backend in backends:
        wanted = config.static_routes.of(backend.family)
        has_gateways = any(route.gateway not in (None, ONLINK) for route in wanted)
        main = read_routes(backend, Table.MAIN) if has_gateways else read_default_routes(backend)
        facts = backend.facts()
        _, missing = resolve_with(config, facts, main, backend, backends)
        if missing is not None:
            return missing
    return None


def find_gone_uplink(config: Config, backend: RouteBackend) -> str | None:
    """Return a phrase about the verified uplinks that may still appear, or None.

    Raises:
        RouteError: the kernel can't be queried.
    """
    if config.uplinks is not None or not config.verified:
        return None
    return find_awaited_uplinks(config.verified, backend.facts().links)


def find_awaited(config: Config, backend: RouteBackend) -> str | None:
    """Return a phrase about the interfaces in ``keep`` that are up and have no address, or None.

    Raises:
        RouteError: the kernel can't be queried.
    """
    from hostrouting.routes.policy import find_kept

    found = find_kept(config, backend.facts(), read_default_routes(backend))
    return ", ".join(found.awaited) or None


# If a VPN has taken a verified uplink's place, ``plan_now`` reports this phrase as missing,
# followed by the VPN's interfaces.
_OTHER_THAN_VPN = "an uplink other than the VPN "
# The beginning of ``missing_default_route`` for uplinks.
_DEFAULT_ON = "the default route on "


def missing_hint(missing: str, config: Config, backends: Sequence[RouteBackend]) -> str:
    """Return a hint about a device, gateway or default route that ``plan_now`` reports as missing.

    Raises:
        RouteError: the kernel can't be queried.
    """
    is_for_vpn = missing.startswith(_OTHER_THAN_VPN)
    if not is_for_vpn and MISSING_UPLINK not in missing:
        waits_for_default = missing.startswith(_DEFAULT_ON)
        to_do = _naming_of_masters(config, backends[0]) if waits_for_default else ""
        return to_do or "bring it up or add it, or name another gateway or dev"
    defaults = (route for backend in backends for route in read_default_routes(backend))
    others = {dev for route in defaults for dev in route.devs if not is_like(dev, VPN_DEVS)}
    return naming(others) if is_for_vpn else f"add that interface, or {naming(others)}"


def _naming_of_masters(config: Config, backend: RouteBackend) -> str:
    """Return a hint to name the masters of the config's uplinks, if all these uplinks are ports."""
    links = backend.facts().links
    devs = [link.name for link in links if is_like(link.name, config.uplinks or ())]
    ports = ports_named(config, devs, links)
    return "; ".join(": ".join(swap_words(port, config, links)) for port in ports)


def naming(devs: Collection[str]) -> str:
    """Return a hint to name the node's uplinks in the config, given the candidates."""
    name = next(iter(devs)) if len(devs) == 1 else "NAME"
    answer = f'set hostRouting\'s "uplinks": ["{name}"]'
    return f"name the node's uplinks: {answer}, then: hostrouting apply"


def plan_or_raise(
    config: Config,
    attempt: str,
    *backends: RouteBackend,
    adopted: Sequence[StaticRoute] = (),
) -> RoutePlan:
    """Return the plan of ``plan_now``. If something is missing, raise a RouteError."""
    plan, missing = plan_now(config, *backends, adopted=adopted)
    if missing is not None:
        raise RouteError(
            f"can't {attempt} without {missing}", hint=missing_hint(missing, config, backends)
        )
    return plan
