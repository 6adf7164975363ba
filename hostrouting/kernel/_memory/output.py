"""net/ipv4/route.c: the answer to RTM_GETROUTE with RTM_F_FIB_MATCH and RTM_F_LOOKUP_TABLE."""

from __future__ import annotations

import errno as errnos
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

import attrs

from hostrouting.kernel._memory.net import Flow, Found, Net
from hostrouting.kernel._memory.rules import fib_lookup
from hostrouting.model.routes import Lookup, RouteType, Scope

if TYPE_CHECKING:
    from hostrouting.kernel._memory.device import Device
    from hostrouting.kernel._memory.net import Hop

__all__ = ["get_route"]

_BROADCAST = IPv4Address("255.255.255.255")
# inet_rtm_getroute asks for UDP unless told otherwise.
_UDP = 17
_LOOPBACK_NETWORK = 127


def get_route(net: Net, address: IPv4Address) -> Lookup:
    """The entry that wins for a packet of this host, or the errno."""
    if not int(address):
        # 0.0.0.0 is this host without any look-up, so there is no entry to show.
        return Lookup(address, None, errnos.EHOSTUNREACH)
    found = fib_lookup(net, Flow(int(address), ip_protocol=_UDP))
    if not isinstance(found, Found):
        return Lookup(address, None, found)
    kind = found.alias.info.type
    # What is local leaves by lo, whatever the entry's device.
    if kind is not RouteType.LOCAL and _leaves_with_loopback_source(net, found):
        return Lookup(address, None, errnos.EINVAL)
    # __mkroute_output: the entry is shown with the type that the packet has.
    if address == _BROADCAST:
        kind = RouteType.BROADCAST
    elif address.is_multicast:
        kind = RouteType.MULTICAST
    route = found.alias.show(ignores_linkdown=net.ignores_linkdown)
    if route.type is not kind or route.table != found.table:
        # While local and main are one trie, what is in local is found in main.
        route = attrs.evolve(route, type=kind, table=found.table)
    return Lookup(address, route)


def _leaves_with_loopback_source(net: Net, found: Found) -> bool:
    if found.hop.dev.is_loopback:
        return False
    source = found.alias.info.source
    chosen = int(source) if source is not None else _inet_select_addr(net, found.hop, found.alias.info.scope)
    return chosen >> 24 == _LOOPBACK_NETWORK


def _inet_select_addr(net: Net, hop: Hop, scope: int) -> int:
    """The source that the kernel prefers: of the hop's device, the gateway's subnet first; else of any other."""
    gateway = int(hop.gateway) if isinstance(hop.gateway, IPv4Address) else 0
    own = [ifa for ifa in hop.dev.addresses if not ifa.is_secondary and min(ifa.scope, Scope.HOST) <= scope]
    for ifa in own:
        if not gateway or ifa.matches(gateway):
            return ifa.local
    if own:
        return own[0].local
    return _select_of_any(list(net.devices.values()), scope)


def _select_of_any(devices: list[Device], scope: int) -> int:
    for dev in devices:
        for ifa in dev.addresses:
            if not ifa.is_secondary and ifa.scope != Scope.LINK and ifa.scope <= scope:
                return ifa.local
    return 0
