"""Look without a model of the host whether a plan may divert any packets.

Most plans divert none. The models, which find the packets that the others divert (``_diverted``),
take longer to import than the rest of an update of a few routes.
"""

from __future__ import annotations

from collections.abc import Iterator

from hostrouting.boot.host import Host
from hostrouting.kernel.port import RouteBackend
from hostrouting.kernel.rules import kernel_rules
from hostrouting.kernel.selection import Selection
from hostrouting.model.errors import RouteError
from hostrouting.model.integer_prefixes import PrefixSet, ends, numbers
from hostrouting.model.routes import NextHop, Route, Route6, RouteType
from hostrouting.model.values import frozen
from hostrouting.routes.plan import RoutePlan


@frozen
class HasHops:
    """A predicate for entries that send all of their packets to certain next hops.

    Args:
        hops: the next hops that count.
        mtu: the largest mtu of the plan's routes; None if one of them has none. An entry with a
            smaller mtu doesn't count.
    """

    hops: tuple[NextHop, ...]
    mtu: int | None = None

    def __call__(self, route: Route) -> bool:
        """Return whether an entry sends all of its packets to the next hops ``hops``."""
        if isinstance(route, Route6) and route.source_prefix is not None:
            return False
        if not _keeps_mtu(route, self.mtu):
            return False
        return route.type is RouteType.UNICAST and not route.tos and route.hops == self.hops


def _keeps_mtu(old: Route, mtu: int | None) -> bool:
    return old.mtu is None or (mtu is not None and mtu <= old.mtu)


def may_divert(plan: RoutePlan, host: Host) -> bool:
    """Return whether a plan may divert any packets, or the kernel can't be queried."""
    try:
        return any(_may_divert(plan.of(family), host.routes_of(family)) for family in plan.families)
    except RouteError:
        return True


def _may_divert(plan: RoutePlan, backend: RouteBackend) -> bool:
    """Return whether a plan for one family may divert any packets, without a model of the host.

    Without policy rules, a plan's routes can only divert packets of entries that overlap these
    routes and have other next hops, or a smaller mtu. Most tables have few such entries.
    """
    if any(policy.changes for policy in plan.policies):
        return True
    changed = [*_changed(plan)]
    hops = {route.hops for route in changed}
    if len(hops) != 1 or backend.facts().rules != kernel_rules(backend.family):
        return True
    (only,) = hops
    bits = backend.family.bits
    destinations = PrefixSet((numbers(route.destination) for route in changed), bits)
    if any(not _keeps_mtu(pair.old, pair.new.mtu) for pair in plan.replace):
        return True
    mtus = [route.mtu for route in changed]
    has_hops = HasHops(only, None if None in mtus else max(filter(None, mtus)))
    for template, prefixes in backend.entries(Selection(is_omitted=has_hops)).groups:
        if has_hops(template):  # a default route, which is never omitted
            continue
        if any(destinations.overlaps(*ends(prefix, bits)) for prefix in prefixes):
            return True
    return False


def _changed(plan: RoutePlan) -> Iterator[Route]:
    yield from plan.add
    yield from plan.remove
    for pair in plan.replace:
        yield from (pair.old, pair.new)
