"""A Linux node's IPv6 side: nft(8) and ip(8) as subprocesses, as the script at boot asks them.

nft rather than a library: it carries out a text in one transaction of the kernel and keeps its comments, and what this
very nft prints of a table is the one form in which two can be compared: versions differ in how they write a rule.
"""

from __future__ import annotations

import json
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

from hostrouting.azure.nodes import LoadBalancerProbeError, Programs
from hostrouting.azure.probe import metadata
from hostrouting.azure.probe.port import NodeAddress, Pin
from hostrouting.azure.probe.ruleset import REWRITTEN_SOURCE
from hostrouting.boot.layout import SEARCH_PATH
from hostrouting.model.routes import NextHop, Protocol
from phases import CancelScope

_IPV6 = Path("/proc/sys/net/ipv6")


class LinuxProbeNode:
    """A ``ProbeNode``: the network namespace that the calling thread is in. All about rules needs CAP_NET_ADMIN.

    Args:
        search_path: where nft(8), ip(8) and unshare(1) are looked for, whatever the path of who runs this.
    """

    def __init__(self, *, search_path: str = SEARCH_PATH) -> None:
        self._programs = Programs(LoadBalancerProbeError, search_path)

    # --- what is there -----------------------------------------------------------------------------------------

    def default_devices(self) -> tuple[str, ...]:
        """The devices of IPv6's default routes, each once, the best metric first."""
        routes = [route for route in self._ask_ip("route", "show", "default") if not {"type", "from"} & route.keys()]
        hops = [hop for route in routes for hop in route.get("nexthops", [route])]
        return tuple(dict.fromkeys(hop["dev"] for hop in hops if "dev" in hop and "dead" not in hop["flags"]))

    def addresses(self) -> tuple[NodeAddress, ...]:
        """All IPv6 addresses; an optimistic one (RFC 4429) may be used while it is tried out."""
        return tuple(
            NodeAddress(
                link["ifname"],
                IPv6Address(own["local"]),
                own["scope"] in ("global", "0"),
                "dadfailed" not in own and ("tentative" not in own or "optimistic" in own),
            )
            for link in self._ask_ip("address", "show")
            for own in link.get("addr_info", ())
        )

    def assigned_addresses(self, scope: CancelScope) -> tuple[IPv6Address, ...]:
        """The IPv6 addresses that Azure's metadata service says it has assigned, on any NIC."""
        return metadata.assigned_addresses(scope)

    # --- rules -------------------------------------------------------------------------------------------------

    def listing(self, table: str) -> str | None:
        """What is in force of a table of family ip6; None if there is none."""
        attempt = f"list the nftables table ip6 {table}"
        done = self._programs.run(attempt, "nft", "-s", "list", "table", "ip6", table)
        if done.returncode == 0:
            return done.stdout
        # Of the table, not of something else that is missing: nft repeats the command below.
        first, _, rest = done.stderr.partition("\n")
        if first.startswith("Error: No such file or directory") and rest.startswith("list table ip6"):
            return None
        raise self._programs.refusal(attempt, done)

    def dry_run(self, text: str, table: str) -> str:
        """The listing that a table would have if a text were loaded, tried in a network namespace of its own."""
        attempt = f"try out the nftables rules of table ip6 {table}"
        commands = f"nft -f - && nft -s list table ip6 {table}"
        return self._programs.ask(attempt, "unshare", "--net", "sh", "-c", commands, text=text)

    def load(self, text: str) -> None:
        """Have nft carry out a text, all of it or nothing."""
        self._programs.ask("load the nftables rules", "nft", "-f", "-", text=text)

    # --- routes ------------------------------------------------------------------------------------------------

    def pins(self) -> tuple[Pin, ...]:
        """The routes to the rewritten source, the best metric first; of several hops, each is one."""
        return tuple(
            Pin(_gateway(hop), hop.get("dev", "unknown"), int(route.get("protocol", Protocol.BOOT)), route["metric"])
            for route in self._ask_ip("route", "show", "table", "main", "to", str(REWRITTEN_SOURCE))
            if "from" not in route
            for hop in route.get("nexthops", [route])
        )

    def pin(self, pin: Pin) -> None:
        """Add a route, in the place of one of ours of the same metric; somebody else's is an error."""
        is_there = any((one.metric, one.protocol) == (pin.metric, Protocol.HOSTROUTING) for one in self.pins())
        verb = "replace" if is_there else "add"
        self._programs.ask(f"pin the route {pin}", "ip", "-6", "route", verb, *str(pin).split())

    def unpin(self, pin: Pin) -> None:
        """Delete a route; one that isn't there is fine, and without its device it isn't."""
        words = ("ip", "-6", "route", "delete", *str(pin).split())
        self._programs.ask(f"delete the route {pin}", *words, fine=("No such process", "Cannot find device"))

    def next_hop(self) -> NextHop | None:
        """Where an unmarked packet to the rewritten source goes, by whatever table; None: nowhere."""
        done = self._programs.run("look up a route", "ip", "-6", "-j", "route", "get", str(REWRITTEN_SOURCE))
        if done.returncode:
            return None
        (answer,) = json.loads(done.stdout)
        return NextHop(answer["dev"], _gateway(answer))

    def _ask_ip(self, *words: str) -> list[dict[str, Any]]:
        """What ip shows of IPv6; for a kernel without it, the kernel would answer with IPv4's."""
        attempt = f"read IPv6's {words[0]}es"
        return self._programs.ask_ip(attempt, "ip", "-6", "-j", "-N", *words) if _IPV6.exists() else []


def _gateway(hop: dict[str, Any]) -> IPv6Address | None:
    return IPv6Address(hop["gateway"]) if "gateway" in hop else None
