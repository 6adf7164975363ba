"""Interfaces and their addresses, in the words of ip-link(8) and ip-address(8).

Interfaces are named, never numbered: an index is looked up right before a write, since a re-created link gets a new
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
    """Return whether the name of an interface is like one of some shell patterns."""
    return _any_of(patterns)(dev) is not None


@lru_cache(maxsize=64)
def _any_of(patterns: tuple[str, ...]) -> Callable[[str], object]:
    return re.compile("|".join(map(translate, patterns)) or "(?!)").match


class Hardware(IntEnum):
    """ARPHRD_* of linux/if_arp.h, as far as they matter here."""

    ETHER = 1
    INFINIBAND = 32
    LOOPBACK = 772


@attrs.frozen
class Link:
    """A network interface.

    Args:
        index: the kernel's number for it, as long as it exists.
        name: its name.
        is_up: the administrative state (IFF_UP).
        has_carrier: whether the other end is there (IFF_LOWER_UP).
        kind: ``veth``, ``bridge``, ``bond``…; None for hardware.
        hardware: the ARPHRD number (see ``Hardware``).
        master: the bridge, bond or other interface that it is a port of.
        group: its number, by which policy rules may pass over results; 0 is everybody's.
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
        prefix_length: 0-32, of the connected network.
        peer: the other end of a point-to-point link, if it isn't ``local`` itself.
        metric: of the connected route; 0 is the kernel's default.
        is_secondary: a later address of the same subnet on the same interface.
        has_prefix_route: whether the kernel adds a connected route for it.
        scope: how far it may be used as a source: ``Scope.UNIVERSE``, or the link, or this host.
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
        """The connected network: the peer's, where there is one."""
        return IPv4Network(self.prefix)

    @property
    def prefix(self) -> Prefix:
        """Return the connected network as numbers."""
        host_bits = 32 - self.prefix_length
        return int(self.peer or self.local) >> host_bits << host_bits, self.prefix_length
