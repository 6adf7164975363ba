"""Find out whether the kernel chooses IPv6 sources that the model of a snapshot doesn't know."""

from __future__ import annotations

from ipaddress import IPv6Address
from itertools import chain, islice

from hostrouting.kernel.port import Lookups, RouteBackend
from hostrouting.kernel.rules import kernel_rules
from hostrouting.kernel.snapshot import Ipv6State
from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.parsing import reserved_block
from hostrouting.model.routes import Route, Route6, RouteType

# How many addresses to try to learn whether sources follow RFC 6724, and an address of the internet.
_TRIED_ADDRESSES, _GLOBAL = 256, IPv6Address("2000::1")


def has_odd_sources(state: Ipv6State, backend: RouteBackend, model: Lookups) -> bool:
    """Return whether the kernel deviates from RFC 6724 in choosing sources, if sources affect lookups.

    Args:
        state: the host's entries and rules.
        backend: the kernel to query.
        model: the lookups in a snapshot of this state.
    """
    specific = (route for route in state.routes if isinstance(route, Route6) and route.source_prefix is not None)
    if not any(rule.source is not None for rule in state.rules) and next(specific, None) is None:
        return False
    # On these hosts, the model may find other entries than the kernel, and a snapshot is doubted anyway.
    if any(rule.has_unknown for rule in state.rules) or {*state.rules} < {*kernel_rules(Family.IPV6)}:
        return False
    # Discards count too: the kernel looks up their packets again, with a source that it selects for no interface.
    judged = (route.destination for route in state.routes if reserved_block(route.destination) is None)
    tried = dict.fromkeys(chain.from_iterable(map(_tried_addresses, judged)))
    entries: dict[Route, list[IpAddress]] = {}
    unrouted: list[IpAddress] = []
    for found in backend.lookup(list(islice(tried, _TRIED_ADDRESSES))):
        if found.route is None:
            unrouted.append(found.address)
        elif found.route.type is RouteType.UNICAST:
            entries.setdefault(found.route, []).append(found.address)
    return backend.sources(entries) != model.sources(entries) or (
        backend.sources_of_unrouted(unrouted) != model.sources_of_unrouted(unrouted)
    )


def _tried_addresses(destination: IpNetwork) -> tuple[IpAddress, ...]:
    # The first address of ::/0 means no address, and the last one is for multicast.
    return (_GLOBAL,) if _GLOBAL in destination else (destination[0], destination[-1])
