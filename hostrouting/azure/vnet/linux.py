"""Access to a Linux node through ebtables(8), ip(8), bridge(8) and netlink.

ebtables has two backends, each with its own rules: nftables, and the legacy tables, which can only be replaced as a
whole. Only the nftables backend can delete several rules in one transaction, so only its rules are handled here.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import attrs

from hostrouting.azure.nodes import LEGACY_BY_HAND, AzureVnetError, Programs
from hostrouting.azure.vnet.port import Interface, Neighbour, NodeState
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.refusals import NetlinkError
from hostrouting.kernel.rtnetlink import messages as rtnl
from hostrouting.kernel.rtnetlink.conversation import Conversation, read
from hostrouting.kernel.rtnetlink.requests import request

_READ_RULES = "read ebtables' rules"
_NO_NAMESPACE = -1  # NETNSA_NSID_NOT_ASSIGNED of linux/net_namespace.h


@attrs.define(kw_only=True, eq=False)
class LinuxBridgeNode(Programs):
    """A ``BridgeNode`` for the calling thread's network namespace.

    Args:
        sys: the sysfs mount point, used to detect kernel modules.
        search_path: the search path for programs.
    """

    error = AzureVnetError
    sys: Path = Path("/sys")

    def look(self, bridge: str) -> NodeState:
        """Return the state needed for a plan, except for files."""
        notes, rules = [], tuple[str, ...]()
        has_bridge = bool(self.ask_ip("look for the bridge", f"ip -j link show dev {bridge}"))
        if not has_bridge:
            notes.append(f"there is no bridge {bridge}; if azure-vnet's has another name, give it as its `bridge`")
        if (self.sys / "module/ebtable_nat").exists():
            notes.append(f"the kernel also has a separate table nat for ebtables-legacy: {LEGACY_BY_HAND}")
        try:
            rules = self._rules()
        except AzureVnetError as error:
            # Without the bridge, the rules have no effect.
            if has_bridge or error.is_not_permitted:
                raise
            notes.append(f"rules weren't read: {error}")
        gateways = {hop.gateway for route in NetlinkBackend().routes() for hop in route.hops if hop.gateway}
        neighbours = self._neighbours(bridge)
        seen = self.ask_ip("list the bridge's MACs", f"bridge -j fdb show br {bridge}")
        # The interfaces must be read last; see ``BridgeNode.look``.
        interfaces = read("list the interfaces", partial(_interfaces, seen))
        return NodeState(rules, interfaces, tuple(gateways), neighbours, tuple(notes))

    def _rules(self) -> tuple[str, ...]:
        """Return the rules of table nat in ebtables-save format, which is needed to delete them."""
        lines = self.ask(_READ_RULES, "ebtables-nft-save -t nat").splitlines()
        # If another program has added rules that ebtables doesn't understand, it exits with 0 but omits the table.
        if "*nat" not in lines:
            raise AzureVnetError(
                f"can't {_READ_RULES}: ebtables-nft-save printed no table nat ({' '.join(lines)[:80]})",
                hint="list it with `nft list table bridge nat`, and make the owner of foreign rules move them to a "
                "separate table",
            )
        return tuple(line for line in lines if line.startswith("-A "))

    def remove_rules(self, rules: Sequence[str]) -> None:
        """Delete rules, given in ebtables-save format, from ebtables' nat table in a single transaction.

        If any rule is missing, none are deleted.
        """
        attempt = f"delete {len(rules)} rules of ebtables' table nat"
        deletions = "".join(f"-D{rule.removeprefix('-A')}\n" for rule in rules)
        self.ask(attempt, "ebtables-nft-restore --noflush", text=f"*nat\n{deletions}COMMIT\n")

    def remove_neighbours(self, neighbours: Sequence[Neighbour]) -> None:
        """Delete neighbours; missing ones are ignored."""
        for neighbour in neighbours:
            command = f"ip neighbour delete {neighbour.address} dev {neighbour.dev}"
            self.ask(f"delete the neighbour {neighbour}", command, "No such file", "Cannot find device")

    def _neighbours(self, bridge: str) -> tuple[Neighbour, ...]:
        """Return permanent neighbours, except managed and externally learned ones."""
        command = f"ip -j neighbour show dev {bridge} nud permanent"
        return tuple(
            Neighbour(bridge, ip_address(entry["dst"]), entry["lladdr"])
            for entry in self.ask_ip("list the bridge's neighbours", command)
            if "lladdr" in entry and not {"extern_learn", "managed"} & entry.keys()
        )


def _interfaces(seen: Sequence[Mapping[str, str]], talk: Conversation) -> tuple[Interface, ...]:
    """Return all interfaces, each with the MACs that a bridge has learned on it."""
    links = {message["index"]: message for message in request(talk, rtnl.RTM_GETLINK, rtnl.DUMP, {})}
    # pyroute2 returns names as str if they are valid UTF-8, or else as bytes.
    names = {index: os.fsdecode(link.get_attr("IFLA_IFNAME")) for index, link in links.items()}
    macs = defaultdict[str, list[str]](list)
    for entry in seen:
        macs[entry["ifname"]].append(entry["mac"])
    masters = {index: names.get(link.get_attr("IFLA_MASTER")) for index, link in links.items()}
    return tuple(
        Interface(name, _mac(links[index]), masters[index], _far_mac(talk, links[index]), tuple(macs[name]))
        for index, name in names.items()
    )


def _mac(link: Any) -> str:
    return bytes(link.get_attr("IFLA_ADDRESS") or b"").hex(":")


def _far_mac(talk: Conversation, link: Any) -> str | None:
    """Return the MAC of a veth interface's peer, or None if it can't be read."""
    far_index, namespace = link.get_attr("IFLA_LINK"), link.get_attr("IFLA_LINK_NETNSID")
    # A network namespace that is being destroyed no longer has an ID.
    if far_index is None or namespace == _NO_NAMESPACE:
        return None
    # IFLA_IF_NETNSID is the older name of IFLA_TARGET_NETNSID. Without IFLA_LINK_NETNSID, the peer is in this
    # namespace.
    where = () if namespace is None else (("IFLA_IF_NETNSID", namespace),)
    try:
        (far,) = request(talk, rtnl.RTM_GETLINK, rtnl.GET, {"index": far_index}, *where)
    except NetlinkError:
        return None
    # Veth peers refer to each other, but a VLAN's parent doesn't refer to the VLAN.
    return _mac(far) if far.get_attr("IFLA_LINK") == link["index"] else None
