"""Apply a plan to the kernel's table main, with an undo step for each change."""

from __future__ import annotations

import errno as errnos
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import attrs

from hostrouting.kernel.port import RouteBackend, Write, read_routes
from hostrouting.model.changes import Replacement
from hostrouting.model.errors import Refusal, RouteError
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.integer_prefixes import PrefixSet, ends, numbers
from hostrouting.model.lookups import RouteFailure
from hostrouting.model.routes import NextHop, Route, Route6, Table
from hostrouting.routes.plan import RoutePlan, plan_possible, plan_routes
from phases import CancelScope, Undo

T = TypeVar("T")

# The usual number of routes in a bulk call. A call must not take long, because it can't be
# cancelled.
BULK_ROUTES = 256

# The maximum number of bulk calls to replace or delete routes. Each of these calls first reads all
# our routes, so without a limit the total time would be quadratic.
_READING_CALLS_MAX = 4

_REASONS = {
    errnos.EEXIST: (
        "another route has its destination and metric",
        (
            "choose another metric or destination, or have its owner remove it; "
            "see ip -{family} route show {destination}"
        ),
    ),
    errnos.EHOSTUNREACH: (
        "its gateway can't be reached",
        "look at: ip -{family} route get {gateway}",
    ),
    errnos.ENETUNREACH: (
        "its gateway can't be reached",
        "look at: ip -{family} route get {gateway}",
    ),
    errnos.ENODEV: ("there is no such device", "look at: ip link"),
    errnos.ENETDOWN: ("its device is down", "bring it up: ip link set {dev} up"),
    errnos.EPERM: ("not permitted", "run as root (CAP_NET_ADMIN)"),
    errnos.ESRCH: ("there is no such route", "look at: ip -{family} route show {destination}"),
    errnos.EINVAL: ("the kernel rejects it as invalid", "check its gateway and source"),
    errnos.ENOTRECOVERABLE: (
        "another program has taken its place",
        "look at: ip -{family} route show {destination}",
    ),
    errnos.ENOMEM: ("the kernel has no memory for it", "free some memory and run again"),
}
# The errnos with which our own backends refuse routes, without asking the kernel.
_REFUSED_BY_OUR_BACKENDS = (errnos.EEXIST, errnos.EHOSTUNREACH, errnos.ENOTRECOVERABLE)


def apply_routes(
    plan: RoutePlan,
    backend: RouteBackend,
    scope: CancelScope,
    undo: Undo,
    before_removals: Callable[[], None] = lambda: None,
) -> RoutePlan:
    """Add, then replace, then remove routes. In this order, each destination always has a route.

    Args:
        plan: the changes to make.
        backend: the backend for kernel access.
        scope: the cancel scope, checked between bulk calls.
        undo: collects the rollback step for the changes.
        before_removals: called after all additions and replacements, before the first removal.

    Returns:
        The plan, without the routes and next hops in ``remove`` that another program had already
            removed.

    Raises:
        RouteError: the kernel rejected a change. ``undo`` covers the changes made so far.
    """
    # The rollback restores the routes in this list. ``_remove`` drops the routes that another
    # program has already removed.
    removals = [*plan.remove]
    undo.push(partial(_undo, plan, removals, backend))
    for verb, failures in _add_and_replace(plan, backend, scope):
        refuse(verb, failures, _ours_around(failures, backend))
    before_removals()
    _remove(removals, backend, scope)
    return attrs.evolve(plan, remove=tuple(removals))


def converge(
    wanted: Sequence[Route],
    backend: RouteBackend,
    added: Sequence[Route] | None = None,
) -> None:
    """Restore our routes to an earlier state.

    Another program's routes stay, even a route that has replaced one of ours.

    Args:
        wanted: the routes to restore, usually ours from before a change.
        backend: the backend for kernel access.
        added: the routes and next hops to remove, or None to remove all of our routes that aren't
            wanted.

    Raises:
        RouteError: a wanted route can't be put back, or another route can't be removed.
    """
    # An unwanted route may cover a wanted route's gateway. Then the first pass only removes the
    # unwanted route, and the second pass adds the wanted one.
    for _ in range(2):
        plan, failures, left = _converge_once(wanted, backend, added)
        if not (failures or left):
            break
    refusals = [
        Refusal(f"can't put back {route}: another program's has taken its place")
        for route in _replaced_by_others(wanted, plan)
    ]
    refusals += [explain("put back", failure) for failure in failures]
    refusals += [explain("take back", failure) for failure in left]
    # An inner and an outer rollback may fail for the same routes in different orders. Sorted, their
    # messages are equal, and reported only once.
    refusals.sort()
    if refusals:
        raise RouteError.of(refusals)


def _replaced_by_others(wanted: Iterable[Route], plan: RoutePlan) -> list[Route]:
    """Return the wanted routes in whose place another program's route is now."""
    ours = {route.key for route in plan.wanted if route not in plan.foreign}
    return [route for route in wanted if route.key not in ours and route not in plan.foreign]


def _converge_once(
    wanted: Sequence[Route],
    backend: RouteBackend,
    added: Sequence[Route] | None,
) -> tuple[RoutePlan, list[RouteFailure], list[RouteFailure]]:
    """Restore the former routes. Return the plan, and the failures to restore and to remove."""
    keys = {route.key for route in wanted}
    unwanted: list[Route] = []
    others: list[Route] = []
    for route in read_routes(backend, Table.MAIN):
        is_unwanted = route.is_ours and route.key not in keys
        (unwanted if is_unwanted else others).append(route)
    if added is not None:
        # The run may have failed before it added all routes in ``added``.
        there = {route.key for route in (*unwanted, *others)}
        unwanted = [route for route in added if route.key in there]
    plan, _ = plan_possible(wanted, others)
    failures = [
        *_write(backend, Write.ADD, by_gateways(plan.add)),
        *_write(backend, Write.REPLACE, [item.new for item in plan.replace]),
    ]
    undeleted = _write(backend, Write.DELETE, unwanted)
    is_gone = (errnos.ESRCH, errnos.ENODEV)
    left = [failure for failure in undeleted if failure.errno not in is_gone]
    return plan, failures, left


def _write(
    backend: RouteBackend, change: Write, routes: Sequence[Route]
) -> tuple[RouteFailure, ...]:
    """Change routes. For an empty list, don't call the backend, which might raise an error."""
    return backend.write(change, routes) if routes else ()


def _undo(plan: RoutePlan, removals: Sequence[Route], backend: RouteBackend) -> None:
    """Restore removed and replaced routes, and remove the added routes and next hops.

    Only our own next hops are removed, because another program may have added next hops to an IPv6
    route, before or after ours.

    Args:
        plan: the plan, of which any part may have been carried out.
        removals: the routes that have been removed, or may have been.
        backend: the backend for kernel access.
    """
    added = [*plan.add, *(hop for item in plan.replace for hop in _added_hops(item))]
    converge([*(item.old for item in plan.replace), *removals], backend, added[::-1])


def _added_hops(item: Replacement) -> list[Route]:
    """Return a route for each next hop that a replacement adds."""
    had = {(hop.dev, hop.gateway) for hop in item.old.hops}
    return [
        part
        for part in route_of_each_hop(item.new)
        if not had & {(hop.dev, hop.gateway) for hop in part.hops}
    ]


def _remove(routes: list[Route], backend: RouteBackend, scope: CancelScope) -> None:
    """Remove routes from the table, and update the list for a rollback.

    A route or next hop that another program has already removed or replaced is dropped from the
    list, because a rollback must not restore it.
    """
    for bulk in _bulks([*routes], scope, _READING_CALLS_MAX):
        failures = backend.write(Write.DELETE, bulk)
        if gone := {failure.route for failure in failures if failure.errno == errnos.ESRCH}:
            routes[:] = [kept for route in routes if (kept := _without(route, gone)) is not None]
        refuse("remove", [failure for failure in failures if failure.route not in gone])


def route_of_each_hop(route: Route) -> list[Route]:
    """Return a route for each next hop of an IPv6 route. An IPv4 route is returned unchanged.

    An IPv4 route needs no division, because another program can't add next hops to it.
    """
    several = route.family is Family.IPV6 and len(route.hops) > 1
    return [attrs.evolve(route, hops=(hop,)) for hop in route.hops] if several else [route]


def _without(route: Route, gone: Collection[Route]) -> Route | None:
    """Return a route without the next hops in ``gone``, or None if it has no others.

    Args:
        route: the route with all of its next hops.
        gone: routes as returned by ``route_of_each_hop``.
    """
    parts = [part for part in route_of_each_hop(route) if part not in gone]
    return (
        attrs.evolve(route, hops=tuple(hop for part in parts for hop in part.hops))
        if parts
        else None
    )


def by_gateways(routes: Sequence[Route]) -> list[Route]:
    """Return routes in an order in which they can be added.

    Routes that make gateways reachable come first. IPv6 routes come last if their destination
    contains another route's gateway, which the kernel would then refuse (``_gateways``).
    """
    gateways = _gateways(routes)
    return sorted(routes, key=lambda route: 0 if route.is_near else 1 + _covers(route, gateways))


def _gateways(routes: Iterable[Route]) -> PrefixSet:
    """Return the gateways of IPv6 routes.

    The kernel refuses a gateway if the route that leads to it has a gateway, too (ip6_validate_gw).
    """
    hops = (hop for route in routes if isinstance(route, Route6) for hop in route.hops)
    bits = Family.IPV6.bits
    return PrefixSet(((int(hop.gateway), bits) for hop in hops if hop.gateway is not None), bits)


def _covers(route: Route, gateways: PrefixSet) -> bool:
    """Return whether an IPv6 route with a gateway leads to any of ``gateways``."""
    is_behind = isinstance(route, Route6) and not route.is_near
    return is_behind and gateways.overlaps(*ends(numbers(route.destination), gateways.bits))


def apply_possible(
    plan: RoutePlan,
    backend: RouteBackend,
    scope: CancelScope,
    undo: Undo,
) -> tuple[RoutePlan, dict[Route, str]]:
    """Add and replace as many routes as the kernel accepts.

    If the kernel rejects any, no route is removed.

    Args:
        plan: the changes to make.
        backend: the backend for kernel access.
        scope: the cancel scope, checked between bulk calls.
        undo: collects the rollback step for the changes.

    Returns:
        The part of the plan that was carried out, and the reason for each rejected route.

    Raises:
        RouteError: the kernel can't be queried, or fails to remove a route. ``undo`` covers the
            changes made so far.
    """
    refusals: dict[Route, str] = {}
    # As in ``apply_routes``, the rollback restores the routes in this list.
    removals = [*plan.remove]
    undo.push(partial(_undo, plan, removals, backend))
    for verb, failures in _add_and_replace(plan, backend, scope):
        ours = _ours_around(failures, backend)
        refusals |= {failure.route: str(explain(verb, failure, ours)) for failure in failures}
    if refusals:
        removals.clear()
    _remove(removals, backend, scope)
    carried_out = plan.only(lambda route: route not in refusals)
    return attrs.evolve(carried_out, remove=tuple(removals)), refusals


def _add_and_replace(
    plan: RoutePlan,
    backend: RouteBackend,
    scope: CancelScope,
) -> Iterator[tuple[str, Sequence[RouteFailure]]]:
    """Add and replace routes, and yield a verb and the failures for each bulk call.

    IPv6 routes are added last if their destination contains another route's gateway, which the
    kernel would then refuse (``_gateways``).
    """
    gateways = _gateways((*plan.wanted, *plan.remove))
    last = [route for route in plan.add if _covers(route, gateways)]
    first = [route for route in plan.add if not _covers(route, gateways)] if last else plan.add
    for add in _bulks(first, scope):
        yield "add", backend.write(Write.ADD, add)
    for replace in _bulks(plan.replace, scope, _READING_CALLS_MAX):
        _refuse_replaced_by_others(replace, backend)
        yield "replace", backend.write(Write.REPLACE, [item.new for item in replace])
    for add in _bulks(last, scope):
        yield "add", backend.write(Write.ADD, add)


def _refuse_replaced_by_others(items: Sequence[Replacement], backend: RouteBackend) -> None:
    """Raise an error if another program has replaced one of our routes.

    NLM_F_REPLACE ignores the owner, so the kernel would overwrite the other program's route.
    """
    old = [item.old for item in items]
    keys = {route.key for route in old}
    there = [route for route in read_routes(backend, Table.MAIN) if route.key in keys]
    plan_routes([item.new for item in items], there, old)


def _bulks(
    items: Sequence[T],
    scope: CancelScope,
    most: int | None = None,
) -> Iterator[Sequence[T]]:
    size = BULK_ROUTES if most is None else max(BULK_ROUTES, -(-len(items) // most))
    for start in range(0, len(items), size):
        scope.check()
        yield items[start : start + size]


def _ours_around(failures: Sequence[RouteFailure], backend: RouteBackend) -> Sequence[Route]:
    """Return our routes to the gateways of IPv6 routes that were rejected with EHOSTUNREACH."""
    gateways = [*_unreachable_gateways(failures)]
    if not gateways:
        return []
    found = [answer.route for answer in backend.lookup(gateways)]
    return [route for route in found if route is not None and route.is_ours]


def _unreachable_gateways(failures: Iterable[RouteFailure]) -> Iterator[IpAddress]:
    for failure in failures:
        if failure.errno != errnos.EHOSTUNREACH or not isinstance(failure.route, Route6):
            continue
        for hop in failure.route.hops:
            if hop.gateway is not None:
                yield hop.gateway


def refuse(verb: str, failures: Sequence[RouteFailure], ours: Sequence[Route] = ()) -> None:
    """If any routes were rejected, raise a RouteError with the reasons.

    Args:
        verb: what was attempted, such as ``add``.
        failures: the rejected routes.
        ours: our routes, of which some may cover a gateway of a rejected route.
    """
    if not failures:
        return
    # From the FIB, EACCES means a prohibit route, not missing privileges.
    errno = None if failures[0].errno == errnos.EACCES else failures[0].errno
    raise RouteError.of([explain(verb, failure, ours) for failure in failures], errno=errno)


def _covering_gateway(failure: RouteFailure, ours: Iterable[Route]) -> Route | None:
    """Return our route that makes the gateway of a rejected route unreachable, or None."""
    if failure.errno != errnos.EHOSTUNREACH:
        return None
    gateways = _gateways([failure.route])
    return next((each for each in ours if _covers(each, gateways)), None)


def explain(verb: str, failure: RouteFailure, ours: Sequence[Route] = ()) -> Refusal:
    """Return why the kernel rejected a route, and what to do. See ``refuse`` for the arguments."""
    # For an invalid gateway, the kernel returns one of several errnos, but always the same message
    # (fib_check_nh).
    errno = errnos.ENETUNREACH if "invalid gateway" in failure.message else failure.errno
    reason, advice = _REASONS.get(errno, (os.strerror(errno).lower(), "look at: dmesg"))
    if "IPv6 is disabled" in failure.message:
        reason = "its device has no IPv6"
        advice = "look at: grep . /proc/sys/net/ipv6/conf/*/disable_ipv6"
    route = failure.route
    hop = route.hops[0] if route.hops else NextHop()
    around = _covering_gateway(failure, ours)
    if around is not None:
        reason = f"our route {around} covers its gateway"
        delete = f"ip -6 route del {around.destination} proto 217 metric {around.metric}"
        advice = f"run {delete}, and then the same again"
    advice = advice.format(
        family=route.family.value,
        destination=route.destination,
        gateway=hop.gateway or "GATEWAY",
        dev=hop.dev,
    )
    if failure.is_by_kernel:
        return Refusal(f"can't {verb} {route}: {reason} (kernel: {failure.message})", advice)
    is_by_a_program = errno not in _REFUSED_BY_OUR_BACKENDS
    return Refusal(f"can't {verb} {route}: {failure.message}", "" if is_by_a_program else advice)
