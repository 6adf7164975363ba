"""Interfaces and their addresses, in the words of ip-link(8) and ip-address(8).

Interfaces are named, never numbered: an index is looked up right before a write, because a re-created link gets a new
one.
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
    """Return whether the name of an interface matches one of some shell patterns."""
    return _any_of(patterns)(dev) is not None


@lru_cache(maxsize=64)
def _any_of(patterns: tuple[str, ...]) -> Callable[[str], object]:
    return re.compile("|".join(map(translate, patterns)) or "(?!)").match


class Hardware(IntEnum):
    """ARPHRD_* of linux/if_arp.h, as far as they are needed here."""

    ETHER = 1
    INFINIBAND = 32
    LOOPBACK = 772


@attrs.frozen
class Link:
    """A network interface.

    Args:
        index: the kernel's number for the interface, as long as it exists.
        name: its name.
        is_up: the administrative state (IFF_UP).
        has_carrier: whether the other end is up (IFF_LOWER_UP).
        kind: ``veth``, ``bridge``, ``bond``…; None for hardware.
        hardware: the ARPHRD number (see ``Hardware``).
        master: the bridge, bond or other interface that it is a port of.
        group: the number of the interface's group, by which policy rules may suppress results; 0 is the default.
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
        dev: the interface that carries it.
        local: the address.
        prefix_length: the length of the connected network's prefix, 0-32.
        peer: the other end of a point-to-point link, if it isn't ``local`` itself.
        metric: the metric of the connected route; 0 is the kernel's default.
        is_secondary: a later address of the same subnet on the same interface.
        has_prefix_route: whether the kernel adds a connected route for it.
        scope: where it may be used as a source: ``Scope.UNIVERSE``, or the link, or this host.
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
        """The connected network: the peer's, if there is one."""
        return IPv4Network(self.prefix)

    @property
    def prefix(self) -> Prefix:
        """Return the connected network as numbers."""
        host_bits = 32 - self.prefix_length
        return int(self.peer or self.local) >> host_bits << host_bits, self.prefix_length
