"""Pure: which address of its own the host gives to what it sends, where the sender leaves it open."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from hostrouting.model.routes import RouteType, Scope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.model.links import Address
    from hostrouting.model.routes import NextHop, Route

__all__ = ["selected", "sources"]


def sources(route: Route, addresses: Sequence[Address]) -> tuple[IPv4Address, ...]:
    """The sources that packets by an entry get: of several hops each has its own (fib_result_prefsrc).

    A look-up would tell of one of them only: that of the hop which it happens to choose.

    Args:
        route: the entry that wins.
        addresses: of the host, in the kernel's order.

    Returns:
        Each once; none if it isn't a unicast entry, or there is no address to choose.
    """
    if route.type is not RouteType.UNICAST:
        return ()
    if route.source is not None:
        return (route.source,)
    found = (selected(hop, route.scope, addresses) for hop in route.hops if not hop.is_dead)
    return tuple(dict.fromkeys(source for source in found if source is not None))


def selected(hop: NextHop, scope: int, addresses: Sequence[Address]) -> IPv4Address | None:
    """The source by a hop (inet_select_addr): of its interface, the gateway's subnet first; else of any other.

    Args:
        hop: of an entry that names no source itself.
        scope: the entry's.
        addresses: of the host, in the kernel's order.
    """
    primary = [address for address in addresses if not address.is_secondary]
    own = [address for address in primary if address.dev == hop.dev and address.scope <= scope]
    if isinstance(hop.gateway, IPv4Address):
        for address in own:
            if hop.gateway in address.network:
                return address.local
    others = (each for each in primary if each.scope != Scope.LINK and each.scope <= scope)
    return next((each.local for each in (*own, *others)), None)
