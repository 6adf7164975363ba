"""net/ipv4/route.c: the answer to RTM_GETROUTE with RTM_F_FIB_MATCH and RTM_F_LOOKUP_TABLE."""

from __future__ import annotations

import errno as errnos
import socket
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

import attrs

from hostrouting.kernel._memory.net import Flow, Found, Net
from hostrouting.kernel._memory.rules import fib_lookup
from hostrouting.kernel._memory.trie import fib_table_lookup
from hostrouting.model.routes import Lookup, RouteType, Scope, Table

if TYPE_CHECKING:
    from hostrouting.kernel._memory.device import Device
    from hostrouting.kernel._memory.net import Hop

__all__ = ["get_route"]

_BROADCAST = IPv4Address("255.255.255.255")
_LOOPBACK_NETWORK = 127


def get_route(net: Net, address: IPv4Address, source: IPv4Address | None = None, *, is_tcp: bool = False) -> Lookup:
    """The entry that wins for a packet of this host, or the errno."""
    if source is not None and not int(source):
        source = None  # to the kernel both are zero
    if source is not None and (errno := _refuse_source(net, address, source)):
        return Lookup(address, None, errno)
    if not int(address):
        # 0.0.0.0 is this host without any look-up, so there is no entry to show.
        return Lookup(address, None, errnos.EHOSTUNREACH)
    protocol = socket.IPPROTO_TCP if is_tcp else socket.IPPROTO_UDP
    found = fib_lookup(net, Flow(int(address), int(source or 0), ip_protocol=protocol))
    if not isinstance(found, Found):
        return Lookup(address, None, found)
    kind = found.alias.info.type
    # What is local leaves by lo, whatever the entry's device.
    if kind is not RouteType.LOCAL and _leaves_with_loopback_source(net, found, source):
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


def _refuse_source(net: Net, address: IPv4Address, source: IPv4Address) -> int:
    """Why there is no look-up from a source; 0: there is one."""
    if source.is_multicast or source == _BROADCAST:
        return errnos.EINVAL
    if not _ip_dev_find(net, source):
        return errnos.ENETUNREACH
    # Such a packet leaves by the device of its source without any look-up, so there is no entry to show.
    return errnos.EHOSTUNREACH if address.is_multicast or address == _BROADCAST else 0


def _ip_dev_find(net: Net, source: IPv4Address) -> bool:
    """Whether an address is this host's: one of a device, or else one that table local calls so."""
    if any(ifa.local == int(source) for dev in net.devices.values() for ifa in dev.addresses):
        return True
    found = fib_table_lookup(net, Table.LOCAL, Flow(int(source), ignores_linkstate=True))
    return isinstance(found, Found) and found.alias.info.type is RouteType.LOCAL


def _leaves_with_loopback_source(net: Net, found: Found, source: IPv4Address | None) -> bool:
    if found.hop.dev.is_loopback:
        return False
    source = source or found.alias.info.source
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
