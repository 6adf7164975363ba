"""A Linux node's IPv6 side: nft(8) and ip(8) as subprocesses, as the unit at boot runs them."""

from __future__ import annotations

from hostrouting.azure.nodes import LoadBalancerProbeError, Programs
from hostrouting.azure.probe import metadata
from hostrouting.azure.probe.ruleset import REWRITTEN_SOURCE


class LinuxProbeNode(Programs):
    """A ``ProbeNode``: the network namespace that the calling thread is in. Rules and changes need CAP_NET_ADMIN."""

    error = LoadBalancerProbeError

    assigned_addresses = staticmethod(metadata.assigned_addresses)

    def listing(self, table: str) -> str | None:
        """Return what nft prints of a table of family ip6, without counters; None if there is none."""
        command = f"nft -s list table ip6 {table}"
        return self.ask(f"list the nftables table {table}", command, "No such file or directory") or None

    def load(self, text: str) -> None:
        """Have nft carry out a text, all of it or nothing."""
        self.ask("load the nftables rules", "nft -f -", text=text)

    def route(self) -> str | None:
        """Return the route that a packet to the rewritten source takes, as ip(8) prints it; None if there is none."""
        command = f"ip -6 -N -o route get fibmatch {REWRITTEN_SOURCE}"
        return self.ask("look up a route", command, "RTNETLINK answers").partition(" pref ")[0].strip() or None

    def pin(self, route: str) -> None:
        """Put a route into table main, in the place of one with the same destination and metric."""
        self.ask(f"pin the route {route} (devices names its interface)", f"ip -6 route replace {route}")

    def unpin(self) -> None:
        """Delete the routes of hostrouting to the rewritten source; it is fine if there are none."""
        self.ask("delete the pinned route", f"ip -6 route flush table main proto 217 {REWRITTEN_SOURCE}")
