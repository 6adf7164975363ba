"""A node's IPv6 side in memory."""

from __future__ import annotations

import errno as errnos
from collections.abc import Sequence
from ipaddress import IPv6Address

import attrs

from hostrouting.azure.nodes import LoadBalancerProbeError
from hostrouting.azure.probe.port import NodeAddress, Pin
from hostrouting.model.routes import NextHop, Protocol
from phases import CancelScope


@attrs.define(slots=False, kw_only=True)
class FakeProbeNode:
    """A ``ProbeNode`` whose parts are its public attributes, to be changed at will.

    It knows of nft's language only how our texts begin: what comes after ``delete table ip6 …`` is the table, as it is
    written, without comments; a table of which nothing comes is gone.

    Args:
        default_devices: of IPv6's default routes.
        addresses: all IPv6 addresses.
        assigned: what the metadata service says, or the error with which it doesn't.
        tables: the listing of each table that is there.
        pins: the routes to the rewritten source.
        has_nft: whether nft is installed.
    """

    default_device_names: list[str] = attrs.field(factory=list, alias="default_devices")
    address_list: list[NodeAddress] = attrs.field(factory=list, alias="addresses")
    assigned: Sequence[IPv6Address] | LoadBalancerProbeError = ()
    tables: dict[str, str] = attrs.field(factory=dict)
    pin_list: list[Pin] = attrs.field(factory=list, alias="pins")
    has_nft: bool = True

    def default_devices(self) -> tuple[str, ...]:
        """The devices of IPv6's default routes."""
        return tuple(self.default_device_names)

    def addresses(self) -> tuple[NodeAddress, ...]:
        """All IPv6 addresses."""
        return tuple(self.address_list)

    def assigned_addresses(self, scope: CancelScope) -> tuple[IPv6Address, ...]:
        """What the metadata service says."""
        scope.check()
        if isinstance(self.assigned, LoadBalancerProbeError):
            raise self.assigned
        return tuple(self.assigned)

    def listing(self, table: str) -> str | None:
        """What is in force of a table; None if there is none."""
        self._need_nft()
        return self.tables.get(table)

    def dry_run(self, text: str, table: str) -> str:
        """The listing that a table would have if a text were loaded."""
        self._need_nft()
        return _read(text)[1] or f"table ip6 {table} {{\n}}\n"

    def load(self, text: str) -> None:
        """Put a table in the place of what is there of it, or remove it."""
        self._need_nft()
        table, listing = _read(text)
        self.tables.pop(table, None)
        if listing:
            self.tables[table] = listing

    def pins(self) -> tuple[Pin, ...]:
        """The routes to the rewritten source, by metric."""
        return tuple(sorted(self.pin_list, key=lambda pin: pin.metric))

    def pin(self, pin: Pin) -> None:
        """Add a route, in the place of one of ours of the same metric; somebody else's is an error."""
        there = [other for other in self.pin_list if other.metric == pin.metric]
        if any(other.protocol != Protocol.HOSTROUTING for other in there):
            raise LoadBalancerProbeError(f"can't pin the route {pin}: File exists")
        self.pin_list = [other for other in self.pin_list if other not in there] + [pin]

    def unpin(self, pin: Pin) -> None:
        """Delete a route; one that isn't there is fine."""
        self.pin_list = [other for other in self.pin_list if other != pin]

    def next_hop(self) -> NextHop | None:
        """Where a packet to the rewritten source goes: by the route of the lowest metric."""
        return next((NextHop(pin.dev, pin.gateway) for pin in self.pins()), None)

    def _need_nft(self) -> None:
        if not self.has_nft:
            raise LoadBalancerProbeError(
                "can't run nft: it isn't installed; install the package nftables", errno=errnos.ENOENT
            )


def _read(text: str) -> tuple[str, str]:
    """The table that a text replaces, and its new listing."""
    lines = [line for line in text.splitlines(keepends=True) if not line.lstrip().startswith("#")]
    starts = [number for number, line in enumerate(lines) if line.startswith("delete table ip6 ")]
    if not starts:
        raise LoadBalancerProbeError(f"this node knows texts with a line `delete table ip6 …` alone, not {text!r}")
    return lines[starts[0]].split()[3], "".join(lines[starts[0] + 1 :])
