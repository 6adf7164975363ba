"""The port of the load balancer's probes, which defines what they need from a node's IPv6 side."""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import Protocol

from phases import CancelScope


class ProbeNode(Protocol):
    """A node's IPv6 side; every method that fails raises ``LoadBalancerProbeError``."""

    def assigned_addresses(self, scope: CancelScope) -> tuple[IPv6Address, ...]:
        """Return the IPv6 addresses that Azure's metadata service has assigned to any NIC.

        An empty list is a valid answer. If the answer is missing or can't be understood, that is an error.
        """

    def listing(self, table: str) -> str | None:
        """Return what nft prints for a table of family ip6, without counters, or None if there is no such table."""

    def load(self, text: str) -> None:
        """Load a text with nft, in one transaction."""

    def route(self) -> str | None:
        """Return the route for a packet to the rewritten source, as ip(8) prints it, or None if there is none."""

    def pin(self, route: str) -> None:
        """Put a route into table main, in place of any route with the same destination and metric."""

    def unpin(self) -> None:
        """Delete hostrouting's routes to the rewritten source, if there are any."""
