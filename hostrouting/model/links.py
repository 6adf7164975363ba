"""Interfaces and their addresses, using the terms from ip-link(8) and ip-address(8).

Interfaces are identified by name. A recreated interface has another index, so the index is looked
up immediately before a write.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum
from fnmatch import translate
from functools import lru_cache
from ipaddress import IPv6Network

from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.field_types import ADDRESS, NONE, check_fields
from hostrouting.model.integer_prefixes import Prefix
from hostrouting.model.values import frozen


def is_like(dev: str, patterns: tuple[str, ...]) -> bool:
    """Return whether an interface name matches any of the shell patterns."""
    return _any_of(patterns)(dev) is not None


@lru_cache(maxsize=64)
def _any_of(patterns: tuple[str, ...]) -> Callable[[str], object]:
    return re.compile("|".join(map(translate, patterns)) or "(?!)").match


class Hardware(IntEnum):
    """The ARPHRD_* constants from linux/if_arp.h that are needed here."""

    ETHER = 1
    INFINIBAND = 32
    LOOPBACK = 772


VPN_DEVS = ("wg*", "tun*", "tap*", "tailscale*", "zt*", "nebula*")
"""Shell patterns for the interfaces of VPNs. ``ppp*`` is missing, because providers use it, too."""


_LINK_FIELDS = {
    **dict.fromkeys(("index", "hardware", "group", "mtu"), (int,)),
    "name": (str,),
    **dict.fromkeys(("kind", "master", "mac"), (str, *NONE)),
}
_ADDRESS_FIELDS = {
    "dev": (str,),
    "local": ADDRESS,
    **dict.fromkeys(("prefix_length", "metric", "scope"), (int,)),
    "peer": (*ADDRESS, *NONE),
}

# The names that the kernel and systemd (systemd.net-naming-scheme(7)) give to InfiniBand
# interfaces. In a VM, an InfiniBand interface may have another hardware type.
INFINIBAND_DEVS = ("ib*",)


@frozen
class Link:
    """A network interface.

    Args:
        index: the kernel's interface index, valid as long as the interface exists.
        name: the interface name.
        is_up: whether the interface is administratively up (IFF_UP).
        has_carrier: whether the interface has a carrier (IFF_LOWER_UP).
        kind: link type such as ``veth``, ``bridge`` or ``bond``; None for a physical interface.
        hardware: ARPHRD value (see ``Hardware``).
        master: the bridge, bond or other interface that has this one as a port, or None.
        group: the interface group; 0 is the default. A policy rule can ignore routes through a
            group.
        mtu: the largest packet in bytes; 0 if that isn't known.
        is_point_to_point: whether every destination can be reached through the interface without a
            gateway (IFF_POINTOPOINT).
        mac: the MAC address in lower case with colons (20 bytes for InfiniBand); None if the
            interface has none.
    """

    index: int
    name: str
    is_up: bool = True
    has_carrier: bool = True
    kind: str | None = None
    hardware: int = Hardware.ETHER
    master: str | None = None
    group: int = 0
    mtu: int = 0
    is_point_to_point: bool = False
    mac: str | None = None

    def __attrs_post_init__(self) -> None:
        check_fields(self, _LINK_FIELDS)


def is_infiniband(link: Link) -> bool:
    """Return whether a link's hardware type or name is that of an InfiniBand interface."""
    return link.hardware == Hardware.INFINIBAND or is_like(link.name, INFINIBAND_DEVS)


def mac_address(hardware: int, text: str | None) -> str | None:
    """Return a link-layer address that is a MAC address; None for any other.

    For example, the link-layer address of a tunnel is an IP address.
    """
    return (text or None) if hardware in (Hardware.ETHER, Hardware.INFINIBAND) else None


@frozen
class Address:
    """An address of this host.

    Args:
        dev: name of the interface that has the address.
        local: the address, without a prefix length.
        prefix_length: prefix length of the connected network (0-32 or 0-128).
        peer: peer address on a point-to-point link; None if it equals ``local``.
        metric: metric for the connected route; 0 is the kernel's default.
        is_secondary: whether the interface has an earlier address in the same subnet.
        has_prefix_route: whether the kernel adds a connected route for this address.
        scope: scope in which the address is a valid source: global (``Scope.UNIVERSE``), link, or
            host.
    """

    dev: str
    local: IpAddress
    prefix_length: int
    peer: IpAddress | None = None
    metric: int = 0
    is_secondary: bool = False
    has_prefix_route: bool = True
    scope: int = 0

    def __attrs_post_init__(self) -> None:
        check_fields(self, _ADDRESS_FIELDS)

    @property
    def is_usable(self) -> bool:
        """Return whether this host receives packets to the address, and can send from it."""
        return True

    @property
    def network(self) -> IpNetwork:
        """Return the connected network, which is the peer's network if there is a peer."""
        return Family.of(self.local).network(self.prefix)

    @property
    def prefix(self) -> Prefix:
        """Return the connected network as integers."""
        host_bits = self.local.max_prefixlen - self.prefix_length
        return int(self.peer or self.local) >> host_bits << host_bits, self.prefix_length


@frozen
class Address6(Address):
    """An IPv6 address of this host.

    Args:
        is_tentative: whether the address is unusable because duplicate address detection hasn't
            succeeded.
        is_deprecated: whether the kernel prefers other addresses as source addresses.
        is_temporary: whether this is a temporary privacy address (RFC 8981).
    """

    is_tentative: bool = False
    is_deprecated: bool = False
    is_temporary: bool = False

    @property
    def is_usable(self) -> bool:
        """Return whether this host receives packets to the address, and can send from it."""
        return not self.is_tentative


@frozen
class AddressLabel:
    """A label for IPv6 addresses (ip-addrlabel(8)).

    The kernel prefers source addresses with the destination's label.

    Args:
        prefix: the addresses that get the label.
        label: the number that addresses in the prefix have as their label.
        dev: the only interface for which the label counts, or None for all interfaces.
    """

    prefix: IPv6Network
    label: int
    dev: str | None = None
