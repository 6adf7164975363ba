"""Determine the source addresses that the hops of IPv4 entries select. This module does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from ipaddress import IPv4Address, IPv6Address
from itertools import chain, cycle, islice, product

from hostrouting.kernel.rules import LOOPBACK
from hostrouting.model.family import IpAddress
from hostrouting.model.links import Address
from hostrouting.model.routes import NextHop, Route, Scope

# The attributes that determine which source addresses an entry selects.
SourceKey = tuple[object, ...]


def source_key(route: Route) -> SourceKey:
    """Return a key that is equal for two entries if they select the same source addresses."""
    hops = tuple(hop.path for hop in route.hops if not hop.is_dead)
    return route.type, route.scope, route.source, route.nexthop_id, hops


def source_key_to(address: IpAddress, entry: Route | None) -> SourceKey:
    """Return the attributes of an entry that select a source; for IPv6, also the destination."""
    return (
        *((address,) if address.version == 6 else ()),
        *(() if entry is None else source_key(entry)),
    )


def scopes_of_objects(routes: Iterable[Route]) -> set[int]:
    """Return the scopes of the entries that use nexthop objects.

    The source of a nexthop object may have been set by any entry that uses the object.
    """
    return {route.scope for route in routes if route.nexthop_id is not None}


# How many flows the hop with the smallest weight should get on average. The probability that this
# hop gets no flow is e**-16.
_FLOWS_A_SHARE = 16
_FLOWS_MAX = 4096


def flows_through(route: Route) -> int:
    """Return the number of flows needed to exercise all hops of an entry."""
    weights = [hop.weight for hop in route.hops]
    if len(weights) < 2 or route.source is not None:
        return 1
    return min(_FLOWS_A_SHARE * -(-sum(weights) // min(weights)), _FLOWS_MAX)


def spread(route: Route, addresses: Iterable[IpAddress]) -> list[IpAddress]:
    """Return enough addresses to exercise all hops of an entry, repeated if there are too few."""
    return list(islice(cycle(addresses), flows_through(route)))


class Sources:
    """A model of the kernel's source address selection, based on a host's addresses and entries.

    The kernel is queried instead where that is possible. Dumps lack three facts: the order in which
    interfaces were registered, the sysctl route_localnet, and the route that last set a nexthop
    object's source.

    Args:
        addresses: the host's addresses, in the kernel's order within each interface.
    """

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._primary: dict[str, list[Address]] = {}
        for address in addresses:
            if not address.is_secondary:
                self._primary.setdefault(address.dev, []).append(address)
        self._by_hop = cache(self._source_by)

    def of(self, route: Route) -> tuple[IpAddress, ...]:
        """Return the source addresses that an entry's hops select, in ascending order.

        Three facts are assumed: interfaces were registered in index order, route_localnet is 0, and
        the route itself has set its nexthop object's source.
        """
        return tuple(
            sorted(_each_once(self.by_hop(route, hop) for hop in route.hops if not hop.is_dead))
        )

    def doubtful(self, route: Route, scopes: Iterable[int]) -> tuple[IpAddress, ...]:
        """Return all sources that an entry may select; empty if only one is possible.

        Args:
            route: the entry that packets match.
            scopes: the scopes of all entries with nexthop objects. Any of these entries may have
                set the source of its object.
        """
        if route.source is not None:
            return ()
        shared = {route.scope}
        if route.nexthop_id is not None:
            # Until an address changes, the object keeps its initial source, which the kernel
            # selects by the object's scope (nh_create_ipv4).
            shared |= {*scopes, Scope.LINK - 1, Scope.LINK}
        cases = list(product(shared, (Scope.HOST, Scope.LINK)))
        hops = [(hop.dev, _compared_gateway(route, hop)) for hop in route.hops if not hop.is_dead]
        by_hop = [
            _each_once(chain.from_iterable(self._by_hop(*hop, *case) for case in cases))
            for hop in hops
        ]
        return (
            _each_once(chain.from_iterable(by_hop))
            if any(len(sources) > 1 for sources in by_hop)
            else ()
        )

    def by_hop(self, route: Route, hop: NextHop) -> IpAddress | None:
        """Return the source of packets through a hop of an entry (fib_result_prefsrc), or None."""
        if route.source is not None:
            return route.source
        return next(
            iter(self._by_hop(hop.dev, _compared_gateway(route, hop), route.scope, Scope.HOST)),
            None,
        )

    def _source_by(
        self,
        dev: str | None,
        gateway: IpAddress | None,
        scope: int,
        local_scope: int,
    ) -> tuple[IpAddress, ...]:
        """Return the sources that a hop may select (inet_select_addr).

        The kernel prefers a source in the gateway's subnet.

        Args:
            dev: the hop's interface.
            gateway: the hop's gateway, if any.
            scope: the scope of the hop's entry.
            local_scope: an address with a larger scope counts as one with this scope: host, or link
                with route_localnet.

        Returns:
            An address of the hop's interface. If none suits, the kernel uses the first other
            interface with a suitable address. The interfaces' order isn't known, so the result then
            has an address of each interface that may be the first.
        """
        local = [
            each
            for each in self._primary.get(dev or "", ())
            if min(each.scope, local_scope) <= scope
        ]
        near = (each for each in local if gateway is not None and gateway in each.network)
        if (found := next(chain(near, local), None)) is not None:
            return (found.local,)
        firsts = {name: _first_within(scope, those) for name, those in self._primary.items()}
        # The loopback interface is always registered first.
        first = firsts.get(LOOPBACK)
        return (first,) if first is not None else _each_once(firsts.values())


def _first_within(scope: int, addresses: Iterable[Address]) -> IpAddress | None:
    """Return the first address with at most the given scope, and not with scope link."""
    for address in addresses:
        if address.scope != Scope.LINK and address.scope <= scope:
            return address.local
    return None


def _compared_gateway(route: Route, hop: NextHop) -> IpAddress | None:
    """Return the gateway in whose subnet the kernel prefers a hop's source, or None.

    Of an IPv6 gateway, the kernel uses the first four bytes, or nothing if the hop belongs to a
    nexthop object (fib_info_update_nhc_saddr).
    """
    if isinstance(hop.gateway, IPv6Address):
        number = 0 if route.nexthop_id is not None else int(hop.gateway) >> 96
        return IPv4Address(number) if number else None
    return hop.gateway


def _each_once(sources: Iterable[IpAddress | None]) -> tuple[IpAddress, ...]:
    return tuple(dict.fromkeys(source for source in sources if source is not None))
