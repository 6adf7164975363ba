"""Access to a Linux node through ebtables(8), ip(8), bridge(8) and netlink.

ebtables has two backends, nftables and legacy, each with rules of its own. This module handles only
the nftables backend, which can delete several rules in one transaction. A table of the legacy
backend can only be replaced as a whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from ipaddress import ip_address
from pathlib import Path

import attrs

from hostrouting.azure.nodes import LEGACY_BY_HAND, AzureVnetError, Programs
from hostrouting.azure.vnet.bridge import Interface, Neighbour, NodeState
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.port import read_routes
from hostrouting.kernel.refusals import NetlinkError
from hostrouting.kernel.rtnetlink import link_messages
from hostrouting.kernel.rtnetlink import messages as rtnl
from hostrouting.kernel.rtnetlink.conversation import Conversation, read
from hostrouting.kernel.rtnetlink.messages import (
    HEADER_BYTES,
    LINK,
    attributes,
    decode_name,
    to_number,
)
from hostrouting.model.family import IpAddress

_READ_RULES = "read ebtables' rules"
# linux/if_link.h
_IFLA_ADDRESS = 1
_IFLA_LINK = 5
_IFLA_LINK_NETNSID = 37
_IFLA_TARGET_NETNSID = 46
_NO_NAMESPACE = b"\xff\xff\xff\xff"  # NETNSA_NSID_NOT_ASSIGNED of linux/net_namespace.h


@attrs.define(kw_only=True, eq=False)
class LinuxBridgeNode(Programs):
    """A ``BridgeNode`` for the calling thread's network namespace.

    Args:
        sys: the sysfs mount point, used to detect kernel modules.
        search_path: the search path for programs.
    """

    error = AzureVnetError
    sys: Path = Path("/sys")

    def read_state(self, bridge: str) -> NodeState:
        """Return the node's state, for a plan."""
        notes: list[str] = []
        rules: tuple[str, ...] = ()
        has_bridge = bool(self.run_ip("look for the bridge", f"ip -j link show dev {bridge}"))
        if not has_bridge:
            notes.append(
                f"there is no bridge {bridge}; if azure-vnet's has another name, "
                "give it as its `bridge`"
            )
        if (self.sys / "module/ebtable_nat").exists():
            notes.append(
                f"the kernel also has a separate table nat for ebtables-legacy: {LEGACY_BY_HAND}"
            )
        try:
            rules = self._rules()
        except AzureVnetError as error:
            # Without the bridge, the rules have no effect.
            if has_bridge or error.is_not_permitted:
                raise
            notes.append(f"rules weren't read: {error.clause}")
        gateways = _gateways()
        neighbours = self._neighbours(bridge)
        seen = self.run_ip("list the bridge's MACs", f"bridge -j fdb show br {bridge}")
        # The interfaces must be read last; see ``BridgeNode.read_state``.
        interfaces = read("list the interfaces", partial(_interfaces, seen))
        return NodeState(rules, interfaces, gateways, neighbours, tuple(notes))

    def _rules(self) -> tuple[str, ...]:
        """Return the rules of table nat in the format that ``remove_rules`` takes."""
        lines = self.run(_READ_RULES, "ebtables-nft-save -t nat").splitlines()
        # ebtables-nft-save may not understand a rule of another program. ebtables-nft-save then
        # omits the whole table, and still exits with 0.
        if "*nat" not in lines:
            printed = " ".join(lines)[:80]
            raise AzureVnetError(
                f"can't {_READ_RULES}: ebtables-nft-save printed no table nat ({printed})",
                hint="list it with `nft list table bridge nat`, and make the owner of foreign "
                "rules move them to a separate table",
            )
        return tuple(line for line in lines if line.startswith("-A "))

    def remove_rules(self, rules: Sequence[str]) -> None:
        """Delete rules, given in ebtables-save format, from ebtables' table nat in one transaction.

        If any rule is missing, none are deleted.
        """
        attempt = f"delete {len(rules)} rules of ebtables' table nat"
        deletions = "".join(f"-D{rule.removeprefix('-A')}\n" for rule in rules)
        self.run(attempt, "ebtables-nft-restore --noflush", text=f"*nat\n{deletions}COMMIT\n")

    def remove_neighbours(self, neighbours: Sequence[Neighbour]) -> None:
        """Delete neighbours; missing ones are ignored."""
        for neighbour in neighbours:
            command = f"ip neighbour delete {neighbour.address} dev {neighbour.dev}"
            self.run(
                f"delete the neighbour {neighbour}",
                command,
                "No such file",
                "Cannot find device",
            )

    def _neighbours(self, bridge: str) -> tuple[Neighbour, ...]:
        """Return the permanent neighbours without the flags managed and extern_learn."""
        command = f"ip -j neighbour show dev {bridge} nud permanent"
        return tuple(
            Neighbour(bridge, ip_address(entry["dst"]), entry["lladdr"])
            for entry in self.run_ip("list the bridge's neighbours", command)
            if "lladdr" in entry and not {"extern_learn", "managed"} & entry.keys()
        )


def _gateways() -> tuple[IpAddress, ...]:
    gateways: set[IpAddress] = set()
    for route in read_routes(NetlinkBackend()):
        gateways.update(hop.gateway for hop in route.hops if hop.gateway)
    return tuple(gateways)


def _interfaces(seen: Sequence[Mapping[str, str]], talk: Conversation) -> tuple[Interface, ...]:
    """Return all interfaces, each with the MACs that a bridge has learned on it."""
    _, kind, body, _ = link_messages.LINKS
    links = dict(map(_link, talk.messages(kind, body)))
    names = {index: decode_name(found[link_messages.IFLA_IFNAME]) for index, found in links.items()}
    macs = defaultdict[str, list[str]](list)
    for entry in seen:
        macs[entry["ifname"]].append(entry["mac"])
    interfaces = []
    for index, found in links.items():
        name = names[index]
        master = names.get(to_number(found.get(link_messages.IFLA_MASTER, b"")))
        far_mac = _far_mac(talk, index, found)
        interfaces.append(Interface(name, _mac(found), master, far_mac, tuple(macs[name])))
    return tuple(interfaces)


def _link(message: bytes) -> tuple[int, dict[int, bytes]]:
    """Return an interface's index and attributes."""
    _, _, index, _, _ = LINK.unpack_from(message, HEADER_BYTES)
    return index, attributes(message, HEADER_BYTES + LINK.size)


def _mac(found: Mapping[int, bytes]) -> str:
    return found.get(_IFLA_ADDRESS, b"").hex(":")


def _far_mac(talk: Conversation, index: int, found: Mapping[int, bytes]) -> str | None:
    """Return the MAC of a veth interface's peer; None if it can't be read."""
    far = found.get(_IFLA_LINK)
    namespace = found.get(_IFLA_LINK_NETNSID)
    # A network namespace that the kernel is destroying has no ID.
    if far is None or namespace == _NO_NAMESPACE:
        return None
    request = LINK.pack(0, 0, to_number(far), 0, 0)
    # If IFLA_LINK_NETNSID is missing, the peer is in this namespace.
    if namespace is not None:
        request += rtnl.attribute(_IFLA_TARGET_NETNSID, namespace)
    try:
        _, peer = _link(talk.get(rtnl.RTM_GETLINK, request))
    except NetlinkError:
        return None
    # In a veth pair, each end's IFLA_LINK is the other end. A VLAN's IFLA_LINK is its parent, but
    # the parent's IFLA_LINK isn't the VLAN.
    return _mac(peer) if to_number(peer.get(_IFLA_LINK, b"")) == index else None
