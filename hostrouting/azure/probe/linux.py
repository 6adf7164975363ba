"""A Linux node's IPv6 side, which runs nft(8) and ip(8) as the unit at boot does."""

from __future__ import annotations

from hostrouting.azure.nodes import LoadBalancerProbeError, Programs
from hostrouting.azure.probe import metadata
from hostrouting.azure.probe.ruleset import REWRITTEN_SOURCE


class LinuxProbeNode(Programs):
    """A ``ProbeNode`` for the calling thread's network namespace.

    The rules can only be read and changed, and the routes only changed, with CAP_NET_ADMIN.
    """

    error = LoadBalancerProbeError

    assigned_addresses = staticmethod(metadata.assigned_addresses)

    def listing(self, table: str) -> str | None:
        """Return what nft prints for a table of family ip6, without counters, or None if there is no such table."""
        command = f"nft -s list table ip6 {table}"
        return self.ask(f"list the nftables table {table}", command, "No such file or directory") or None

    def load(self, text: str) -> None:
        """Load a text with nft, in one transaction."""
        self.ask("load the nftables rules", "nft -f -", text=text)

    def route(self) -> str | None:
        """Return the route for a packet to the rewritten source, as ip(8) prints it, or None if there is none."""
        command = f"ip -6 -N -o route get fibmatch {REWRITTEN_SOURCE}"
        return self.ask("look up a route", command, "RTNETLINK answers").partition(" pref ")[0].strip() or None

    def pin(self, route: str) -> None:
        """Put a route into table main, in place of any route with the same destination and metric."""
        self.ask(f"pin the route {route} (devices names its interface)", f"ip -6 route replace {route}")

    def unpin(self) -> None:
        """Delete hostrouting's routes to the rewritten source, if there are any."""
        self.ask("delete the pinned route", f"ip -6 route flush table main proto 217 {REWRITTEN_SOURCE}")
