"""Address families, and type aliases for values of either family."""

from __future__ import annotations

import socket
from collections.abc import Callable
from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network


class Family(Enum):
    """An address family. The value is the IP version, as in ``ipaddress``.

    The attributes are:

    - ``bits``: the address width
    - ``af``: the socket address family
    - ``any``: the prefix that contains all addresses
    - ``ip``: the command that shows and changes the family's routes
    - ``usual_metric``: the default metric of our routes. For IPv6, it is 512, because router
      advertisements and networkd use 1024.

    ``address`` creates an address from an integer, and ``network`` creates a network from its first
    address and prefix length.
    """

    IPV4 = 4
    IPV6 = 6

    # Enum's own __hash__ is Python code, and takes several times as long.
    __hash__ = object.__hash__

    def __init__(self, version: int) -> None:
        is_4 = version == 4
        self.bits = 32 if is_4 else 128
        self.af = socket.AF_INET if is_4 else socket.AF_INET6
        self.address: Callable[[int], IpAddress] = IPv4Address if is_4 else IPv6Address
        self.network: Callable[[tuple[int, int]], IpNetwork] = IPv4Network if is_4 else IPv6Network
        self.usual_metric = 0 if is_4 else 512
        self.ip = "ip" if is_4 else "ip -6"
        self.any: IpNetwork = IPv4Network("0.0.0.0/0") if is_4 else IPv6Network("::/0")

    @classmethod
    def of(cls, value: IpAddress | IpNetwork) -> Family:
        """Return the family of an address or network."""
        return cls.IPV4 if value.version == 4 else cls.IPV6

    def __str__(self) -> str:
        """Return the usual name, such as ``IPv6``."""
        return f"IPv{self.value}"
