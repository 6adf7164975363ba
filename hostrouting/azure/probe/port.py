"""The port of the load balancer's probes: a node's IPv6 side."""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import Protocol

import attrs

from hostrouting.azure.probe.ruleset import REWRITTEN_SOURCE
from hostrouting.model.routes import NextHop
from phases import CancelScope


@attrs.frozen
class NodeAddress:
    """An IPv6 address of a device.

    Args:
        dev: the interface.
        address: without its prefix length.
        is_global: of scope global, which unique local ones are too (RFC 4193).
        is_usable: not tentative, and not a duplicate (RFC 4862).
    """

    dev: str
    address: IPv6Address
    is_global: bool = True
    is_usable: bool = True


@attrs.frozen
class Pin:
    """A route of table main to just the rewritten source of probes.

    Args:
        gateway: link-local, on the device.
        dev: the interface.
        protocol: who installed it; 217 is ours.
        metric: the lowest wins.
    """

    gateway: IPv6Address | None
    dev: str
    protocol: int
    metric: int

    def __str__(self) -> str:
        via = "" if self.gateway is None else f" via {self.gateway}"
        return f"{REWRITTEN_SOURCE}{via} dev {self.dev} proto {self.protocol} metric {self.metric}"


class ProbeNode(Protocol):
    """A node's IPv6 side. Every call raises ``LoadBalancerProbeError`` if it can't be done.

    A listing is what this node's own nft prints of a table, without counters and handles: two are equal if, and only
    if, the rules are the same. It can be loaded again.
    """

    def default_devices(self) -> tuple[str, ...]:
        """The devices of IPv6's default routes, each once, the best metric first."""

    def addresses(self) -> tuple[NodeAddress, ...]:
        """All IPv6 addresses."""

    def assigned_addresses(self, scope: CancelScope) -> tuple[IPv6Address, ...]:
        """The IPv6 addresses that the cloud's metadata service says it has assigned, on any NIC.

        An empty answer is one; no answer, or one that can't be understood, is an error.
        """

    def listing(self, table: str) -> str | None:
        """What is in force of a table of family ip6; None if there is none."""

    def dry_run(self, text: str, table: str) -> str:
        """The listing that a table would have if a text were loaded; what is in force isn't touched."""

    def load(self, text: str) -> None:
        """Have nft carry out a text, all of it or nothing."""

    def pins(self) -> tuple[Pin, ...]:
        """The routes to the rewritten source, the best metric first; of several hops, each is one."""

    def pin(self, pin: Pin) -> None:
        """Add a route, in the place of one of ours of the same metric; somebody else's is an error."""

    def unpin(self, pin: Pin) -> None:
        """Delete a route; one that isn't there is fine."""

    def next_hop(self) -> NextHop | None:
        """Where an unmarked packet to the rewritten source goes, by whatever table; None: nowhere."""
