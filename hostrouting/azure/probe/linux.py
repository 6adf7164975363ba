"""A Linux node's IPv6 side: nft(8) and ip(8) as subprocesses, as the unit at boot runs them."""

from __future__ import annotations

from ipaddress import IPv6Address

from hostrouting.azure.nodes import LoadBalancerProbeError, Programs
from hostrouting.azure.probe import metadata
from hostrouting.azure.probe.ruleset import REWRITTEN_SOURCE
from hostrouting.boot.layout import SEARCH_PATH
from phases import CancelScope


class LinuxProbeNode:
    """A ``ProbeNode``: the network namespace that the calling thread is in. Rules and changes need CAP_NET_ADMIN.

    Args:
        search_path: where nft(8) and ip(8) are looked for, whatever the path of the caller.
    """

    def __init__(self, *, search_path: str = SEARCH_PATH) -> None:
        self._programs = Programs(LoadBalancerProbeError, search_path)

    def assigned_addresses(self, scope: CancelScope) -> tuple[IPv6Address, ...]:
        """Return the IPv6 addresses that Azure's metadata service says it has assigned, on any NIC."""
        return metadata.assigned_addresses(scope)

    def listing(self, table: str) -> str | None:
        """Return what nft prints of a table of family ip6, without counters; None if there is none."""
        words = ("-s", "list", "table", "ip6", table)
        said = self._programs.ask(
            f"list the nftables table {table}", "nft", *words, fine=("No such file or directory",)
        )
        return said or None

    def load(self, text: str) -> None:
        """Have nft carry out a text, all of it or nothing."""
        self._programs.ask("load the nftables rules", "nft", "-f", "-", text=text)

    def route(self) -> str | None:
        """Return the route that a packet to the rewritten source takes, as ip(8) prints it; None if there is none."""
        words = ("-6", "-N", "-o", "route", "get", "fibmatch", str(REWRITTEN_SOURCE))
        said = self._programs.ask("look up a route", "ip", *words, fine=("RTNETLINK answers",))
        return said.partition(" pref ")[0].strip() or None

    def pin(self, route: str) -> None:
        """Put a route into table main, in the place of one with the same destination and metric."""
        self._programs.ask(
            f"pin the route {route} (devices names its interface)", "ip", "-6", "route", "replace", *route.split()
        )

    def unpin(self) -> None:
        """Delete the routes of hostrouting to the rewritten source; it is fine if there are none."""
        words = ("-6", "route", "flush", "table", "main", "proto", "217", str(REWRITTEN_SOURCE))
        self._programs.ask("delete the pinned route", "ip", *words)
