"""The port of the load balancer's probes: a node's IPv6 side."""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import Protocol

from phases import CancelScope


class ProbeNode(Protocol):
    """A node's IPv6 side. Every call raises ``LoadBalancerProbeError`` if it can't be done."""

    def assigned_addresses(self, scope: CancelScope) -> tuple[IPv6Address, ...]:
        """Return the IPv6 addresses that Azure's metadata service says it has assigned, on any NIC.

        An empty answer is one; no answer, or one that can't be understood, is an error.
        """

    def listing(self, table: str) -> str | None:
        """Return what nft prints of a table of family ip6, without counters; None if there is none."""

    def load(self, text: str) -> None:
        """Have nft carry out a text, all of it or nothing."""

    def route(self) -> str | None:
        """Return the route that a packet to the rewritten source takes, as ip(8) prints it; None if there is none."""

    def pin(self, route: str) -> None:
        """Put a route into table main, in the place of one with the same destination and metric."""

    def unpin(self) -> None:
        """Delete the routes of hostrouting to the rewritten source; it is fine if there are none."""
