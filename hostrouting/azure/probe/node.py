"""Read and change a node's nftables rules and route for probes."""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import Protocol

from hostrouting.azure.nodes import LoadBalancerProbeError, Programs
from hostrouting.azure.probe import metadata
from hostrouting.azure.probe.ruleset import REWRITTEN_SOURCE, TABLE
from phases import CancelScope


class ProbeNode(Protocol):
    """A node's IPv6 configuration. All methods raise ``LoadBalancerProbeError`` on failure."""

    def assigned_addresses(self, scope: CancelScope) -> tuple[IPv6Address, ...]:
        """Return the IPv6 addresses that Azure's metadata service lists, for all NICs together."""

    def listing(self) -> str | None:
        """Return nft's listing of our table, without counters; None if there is no table."""

    def load(self, text: str) -> None:
        """Load an nft script in one transaction."""

    def route(self) -> str | None:
        """Return the route that packets to the rewritten source use, in ip(8) syntax, or None."""

    def add_host_route(self, route: str) -> None:
        """Add a route to table main, replacing any route with the same destination and metric."""

    def delete_host_route(self) -> None:
        """Delete hostrouting's routes to the rewritten source address, if any."""


class LinuxProbeNode(Programs):
    """A ``ProbeNode`` for the calling thread's network namespace, which uses nft(8) and ip(8).

    Reading rules, and changing rules or routes, requires CAP_NET_ADMIN.
    """

    error = LoadBalancerProbeError

    assigned_addresses = staticmethod(metadata.assigned_addresses)

    def listing(self) -> str | None:
        """Return nft's listing of our table, without counters; None if there is no table."""
        attempt = f"list the nftables table {TABLE}"
        command = f"nft -s list table ip6 {TABLE}"
        return self.run(attempt, command, "No such file or directory") or None

    def load(self, text: str) -> None:
        """Load an nft script in one transaction."""
        self.run("load the nftables rules", "nft -f -", text=text)

    def route(self) -> str | None:
        """Return the route that packets to the rewritten source use, in ip(8) syntax, or None."""
        command = f"ip -6 -N -o route get fibmatch {REWRITTEN_SOURCE}"
        printed = self.run("look up a route", command, "RTNETLINK answers")
        return printed.partition(" pref ")[0].strip() or None

    def add_host_route(self, route: str) -> None:
        """Add a route to table main, replacing any route with the same destination and metric."""
        self.run(
            f"add the host route {route} (devices names its interface)",
            f"ip -6 route replace {route}",
        )

    def delete_host_route(self) -> None:
        """Delete hostrouting's routes to the rewritten source address, if any."""
        self.run(
            "delete the host route",
            f"ip -6 route flush table main proto 218 {REWRITTEN_SOURCE}",
        )
