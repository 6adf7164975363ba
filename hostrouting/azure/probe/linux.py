"""A Linux node's IPv6 side: nft(8) and ip(8) as subprocesses, as the unit at boot runs them."""

from __future__ import annotations

from hostrouting.azure.nodes import LoadBalancerProbeError, Programs
from hostrouting.azure.probe import metadata
from hostrouting.azure.probe.ruleset import REWRITTEN_SOURCE


class LinuxProbeNode(Programs):
    """A ``ProbeNode``: the calling thread's network namespace. Rules and changes need CAP_NET_ADMIN."""

    error = LoadBalancerProbeError

    assigned_addresses = staticmethod(metadata.assigned_addresses)

    def listing(self, table: str) -> str | None:
        """Return nft's output for a table of family ip6, without counters; None if there is no such table."""
        command = f"nft -s list table ip6 {table}"
        return self.ask(f"list the nftables table {table}", command, "No such file or directory") or None

    def load(self, text: str) -> None:
        """Load a text with nft, all of it or nothing."""
        self.ask("load the nftables rules", "nft -f -", text=text)

    def route(self) -> str | None:
        """Return the route for a packet to the rewritten source, as ip(8) prints it; None if there is none."""
        command = f"ip -6 -N -o route get fibmatch {REWRITTEN_SOURCE}"
        return self.ask("look up a route", command, "RTNETLINK answers").partition(" pref ")[0].strip() or None

    def pin(self, route: str) -> None:
        """Put a route into table main, replacing one with the same destination and metric."""
        self.ask(f"pin the route {route} (devices names its interface)", f"ip -6 route replace {route}")

    def unpin(self) -> None:
        """Delete hostrouting's routes to the rewritten source, if there are any."""
        self.ask("delete the pinned route", f"ip -6 route flush table main proto 217 {REWRITTEN_SOURCE}")
