"""What carries addresses: struct net_device with its in_device, and in_ifaddr; and the kernel's refusal."""

from __future__ import annotations

from ipaddress import IPv4Address

import attrs

from hostrouting.model.links import Address, Hardware, Link
from hostrouting.model.routes import Scope

__all__ = ["LOOPBACK", "MASKS", "Device", "InAddress", "RefusedError"]

LOOPBACK = "lo"

# inet_make_mask, by prefix length.
MASKS = tuple((0xFFFFFFFF << (32 - length)) & 0xFFFFFFFF for length in range(33))


class RefusedError(Exception):
    """The kernel's refusal; never leaves the backend.

    Args:
        errno: its reason.
        message: its own sentence.
    """

    def __init__(self, errno: int, message: str) -> None:
        self.errno = errno
        self.message = message
        super().__init__(message)


@attrs.define(eq=False)
class InAddress:
    """An address of a device (struct in_ifaddr); ``address`` is the far end's, or the same as ``local``."""

    local: int
    address: int
    length: int
    metric: int = 0
    scope: int = Scope.UNIVERSE
    has_prefix_route: bool = True
    is_secondary: bool = False

    @property
    def mask(self) -> int:
        """The netmask."""
        return MASKS[self.length]

    def matches(self, address: int) -> bool:
        """Whether an address is in this one's subnet (inet_ifa_match)."""
        return not (address ^ self.address) & self.mask

    def has_subnet_of(self, other: InAddress) -> bool:
        """Whether both are of the same subnet."""
        return self.length == other.length and self.matches(other.address)

    def show(self, dev: str) -> Address:
        """As a dump shows it."""
        return Address(
            dev=dev,
            local=IPv4Address(self.local),
            prefix_length=self.length,
            peer=IPv4Address(self.address) if self.address != self.local else None,
            metric=self.metric,
            is_secondary=self.is_secondary,
            has_prefix_route=self.has_prefix_route,
            scope=self.scope,
        )


@attrs.define(eq=False)
class Device:
    """An interface (struct net_device with its in_device); ``is_plugged``: the far end of its cable is up."""

    index: int
    name: str
    kind: str | None = None
    hardware: int = Hardware.ETHER
    master: str | None = None
    is_up: bool = False
    is_plugged: bool = True
    addresses: list[InAddress] = attrs.field(factory=list)

    @property
    def is_loopback(self) -> bool:
        """IFF_LOOPBACK."""
        return self.hardware == Hardware.LOOPBACK

    @property
    def has_carrier(self) -> bool:
        """IFF_LOWER_UP: a device that is down has none (veth_close)."""
        return self.is_up and self.is_plugged

    def by_prefix(self, prefix: int, mask: int) -> InAddress | None:
        """The primary address of a subnet (inet_ifa_byprefix)."""
        for ifa in self.addresses:
            if ifa.mask == mask and ifa.matches(prefix):
                return ifa
        return None

    def show(self) -> Link:
        """As a dump shows it."""
        return Link(self.index, self.name, self.is_up, self.has_carrier, self.kind, self.hardware, self.master)
