"""The port of the load balancer's probes: a node's IPv6 side."""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import Protocol

from phases import CancelScope


class ProbeNode(Protocol):
    """A node's IPv6 side. Every method raises ``LoadBalancerProbeError`` if it fails."""

    def assigned_addresses(self, scope: CancelScope) -> tuple[IPv6Address, ...]:
        """Return the IPv6 addresses that Azure's metadata service has assigned, on any NIC.

        An empty list is a valid answer; a missing one, or one that can't be understood, is an error.
        """

    def listing(self, table: str) -> str | None:
        """Return nft's output for a table of family ip6, without counters; None if there is no such table."""

    def load(self, text: str) -> None:
        """Load a text with nft, all of it or nothing."""

    def route(self) -> str | None:
        """Return the route for a packet to the rewritten source, as ip(8) prints it; None if there is none."""

    def pin(self, route: str) -> None:
        """Put a route into table main, replacing one with the same destination and metric."""

    def unpin(self) -> None:
        """Delete hostrouting's routes to the rewritten source, if there are any."""
