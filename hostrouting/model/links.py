"""Interfaces and their addresses, in the terms of ip-link(8) and ip-address(8).

Interfaces are identified by their names. Their index is looked up right before a write, because a link that is created
again gets a new one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum
from fnmatch import translate
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network

import attrs

from hostrouting.model.prefixes import Prefix


def is_like(dev: str, patterns: tuple[str, ...]) -> bool:
    """Return whether the name of an interface matches any of the shell patterns."""
    return _any_of(patterns)(dev) is not None


@lru_cache(maxsize=64)
def _any_of(patterns: tuple[str, ...]) -> Callable[[str], object]:
    return re.compile("|".join(map(translate, patterns)) or "(?!)").match


class Hardware(IntEnum):
    """The values ARPHRD_* of linux/if_arp.h that are needed here."""

    ETHER = 1
    INFINIBAND = 32
    LOOPBACK = 772


@attrs.frozen
class Link:
    """A network interface.

    Args:
        index: the number that the kernel uses for the interface as long as it exists.
        name: the interface's name.
        is_up: whether it is administratively up (IFF_UP).
        has_carrier: whether the other end is up (IFF_LOWER_UP).
        kind: ``veth``, ``bridge``, ``bond`` and so on, or None for hardware.
        hardware: the ARPHRD number (see ``Hardware``).
        master: the bridge, bond or other interface of which it is a port.
        group: the number of the interface's group, by which policy rules can suppress results; 0 is the default.
    """

    index: int
    name: str
    is_up: bool = True
    has_carrier: bool = True
    kind: str | None = None
    hardware: int = Hardware.ETHER
    master: str | None = None
    group: int = 0


@attrs.frozen
class Address:
    """An IPv4 address of this host.

    Args:
        dev: the interface that has the address.
        local: the address itself.
        prefix_length: the length of the connected network's prefix, 0-32.
        peer: the other end of a point-to-point link, or None if it is ``local`` itself.
        metric: the metric of the connected route; 0 is the kernel's default.
        is_secondary: whether the interface has an earlier address of the same subnet.
        has_prefix_route: whether the kernel adds a connected route for the address.
        scope: where the address may be used as a source: everywhere (``Scope.UNIVERSE``), on the link, or on this host.
    """

    dev: str
    local: IPv4Address
    prefix_length: int
    peer: IPv4Address | None = None
    metric: int = 0
    is_secondary: bool = False
    has_prefix_route: bool = True
    scope: int = 0

    @property
    def network(self) -> IPv4Network:
        """The connected network, which is that of the peer if there is one."""
        return IPv4Network(self.prefix)

    @property
    def prefix(self) -> Prefix:
        """Return the connected network as numbers."""
        host_bits = 32 - self.prefix_length
        return int(self.peer or self.local) >> host_bits << host_bits, self.prefix_length
