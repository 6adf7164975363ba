"""Decide which of a node's leftovers to remove, and why; everything that may belong to a live pod stays.

All functions are pure. A pod's veth pair shows whether the pod is alive: by the MAC of the pod's end, by the MACs from
which the bridge has seen frames behind the host's end, and by the existence of the host's end. An entry in azure-vnet's
state proves nothing, because it stays forever if the CNI gets no DEL.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, TypeAlias

import attrs

from hostrouting.azure.config import StaleAzureVnet
from hostrouting.azure.vnet.parse import TUNNEL_MAC, Endpoint, PodRule, parse_pod_rule
from hostrouting.azure.vnet.port import Neighbour, NodeState
from hostrouting.model.jsonable import fields_in_json
from hostrouting.model.parsing import IpAddress

# The prefix of the names that azure-vnet gives the host's end of a pod's veth pair.
_VETH_PREFIX = "azv"

# The reason why something stays, and the interface that shows it, if there is one.
Why: TypeAlias = "tuple[str] | tuple[str, str]"

_ALIKE = "no rule says where frames for the pod behind an interface go: this one may be the pod's"
# All tunnel rules have the same MAC.
_GONE = {False: "no pod here has this MAC any more", True: "no pod of azure-vnet has this address any more"}
_GONE_TOO = "the pod that had this address and MAC is gone"


@attrs.frozen
class Item:
    """A rule or neighbour of a node, and the reason why it is removed or stays.

    Args:
        what: the rule in its saved form, or the neighbour.
        address: the pod's address that it belongs to.
        reason: the reason, as a clause.
        interface: the interface that the reason mentions, if there is one.
    """

    what: str | Neighbour
    address: IpAddress
    reason: str
    interface: str | None = None

    @property
    def kind(self) -> str:
        """``rule`` or ``neighbour``."""
        return "rule" if isinstance(self.what, str) else "neighbour"

    def to_json(self) -> dict[str, Any]:
        """Return the item as JSON."""
        return {"kind": self.kind, "object": str(self.what), "reason": self.reason, "interface": self.interface}


@attrs.frozen
class AzureVnetReport:
    """The rules and neighbours that are removed and that stay, with rules first, and each kind sorted by address.

    Args:
        removed: the items that nothing needs any more.
        kept: the items that are on the bridge, or look like azure-vnet's, and stay.
        notes: what couldn't be read, one sentence each.
        other_rules: the number of rules in table nat that don't look like a pod's, and stay.
        is_unsure: whether rules that couldn't be read may block a pod. Without the bridge, no frame reaches a rule.
    """

    removed: tuple[Item, ...] = ()
    kept: tuple[Item, ...] = ()
    notes: tuple[str, ...] = ()
    other_rules: int = 0
    is_unsure: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        names = ("removed", "kept", "other_rules", "notes")
        return {"schema": 1, "changed": bool(self.removed)} | fields_in_json(self, *names)


def plan_cleaning(config: StaleAzureVnet, state: NodeState, endpoints: Iterable[Endpoint]) -> AzureVnetReport:
    """Find azure-vnet's leftovers for pods that it no longer serves.

    The order of the input doesn't matter. Once the plan has been carried out, the next plan is empty.

    Args:
        config: the CIDRs to clean up, and the addresses to keep.
        state: the node's state.
        endpoints: the pods in azure-vnet's state, including dead ones.

    Returns:
        The planned removals, and the items that stay.
    """
    return _Planner(config, state, tuple(endpoints)).plan()


class _Planner:
    """A node's state, indexed for the decisions."""

    def __init__(self, config: StaleAzureVnet, state: NodeState, endpoints: tuple[Endpoint, ...]) -> None:
        self._config, self._state = config, state
        self._rules = [(line, rule) for line in state.rules if (rule := parse_pod_rule(line)) is not None]
        # In the dictionary the last interface with a MAC wins, but the first one should be reported.
        interfaces = sorted(state.interfaces, key=lambda one: one.name, reverse=True)
        self._names = {interface.name for interface in interfaces}
        veths = [one for one in interfaces if one.name.startswith(_VETH_PREFIX)]
        # A renamed pair still serves its pod while it is a port of the bridge.
        pairs = [one for one in interfaces if one in veths or one.master == config.bridge]
        self._holders: dict[str | None, Why] = {
            mac: ("a running pod has this MAC", one.name) for one in pairs for mac in (*one.seen_macs, one.far_mac)
        }
        self._holders |= {one.mac: ("its MAC is that of an interface of this node", one.name) for one in interfaces}
        self._unreadable = [one.name for one in veths if one.far_mac is None]
        # These are indexed by address, because there may be thousands of pods and rules.
        self._alive_at: defaultdict[IpAddress, list[Endpoint]] = defaultdict(list)
        self._dead_macs: defaultdict[IpAddress, set[str | None]] = defaultdict(set)
        for endpoint in sorted(endpoints, key=lambda one: one.interface):
            for address in endpoint.addresses:
                if endpoint.interface in self._names:
                    self._alive_at[address].append(endpoint)
                elif endpoint.interface:  # a pod whose interface is unknown may still be alive
                    self._dead_macs[address].add(endpoint.mac)
        self._frames_to: defaultdict[IpAddress, set[str]] = defaultdict(set)
        for _, rule in self._rules:
            if rule.uplink is not None:
                self._frames_to[rule.address].add(rule.mac)
        # azure-vnet first creates the pair, then the ARP rules, then the rules for frames, and writes its state last.
        begun, saved = set().union(*self._frames_to.values()), {endpoint.interface for endpoint in endpoints}
        added = [one for one in veths if one.name not in saved]
        self._half_done = [one.name for one in added if begun.isdisjoint((one.far_mac, *one.seen_macs))]

    def plan(self) -> AzureVnetReport:
        rules = [(line, rule, self._why_rule_stays(rule)) for line, rule in self._rules]
        stale = {(rule.address, rule.mac) for _, rule, why in rules if why is None}
        neighbours = [(one, self._why_neighbour_stays(one, stale)) for one in self._state.neighbours]
        removed = [Item(line, rule.address, _GONE[rule.is_tunnel]) for line, rule, why in rules if why is None]
        removed += [Item(one, one.address, _GONE_TOO) for one, why in neighbours if why is None]
        kept = [Item(line, rule.address, *why) for line, rule, why in rules if why is not None]
        kept += [Item(one, one.address, *why) for one, why in neighbours if why is not None]
        goes, stays = (tuple(sorted(items, key=_place)) for items in (removed, kept))
        notes, others = self._state.notes, len(self._state.rules) - len(self._rules)
        return AzureVnetReport(goes, stays, notes, others, bool(notes) and self._config.bridge in self._names)

    def _why_rule_stays(self, rule: PodRule) -> Why | None:
        if rule.uplink not in (None, self._config.uplink):
            return (f"it is for frames from {rule.uplink}, not from {self._config.uplink}",)
        if why := self._why_address_stays(rule.address):
            return why
        # A rule for the address's frames may belong to the pod that had the address before.
        if rule.is_tunnel and self._half_done:
            return _ALIKE, self._half_done[-1]
        # All tunnel rules have the same MAC. The target of the frames to the rule's address shows which pod it is for.
        return self._owner(rule.address, self._frames_to[rule.address] if rule.is_tunnel else {rule.mac})

    def _why_neighbour_stays(self, neighbour: Neighbour, stale: set[tuple[IpAddress, str]]) -> Why | None:
        address, mac = neighbour.address, neighbour.mac
        if why := self._why_address_stays(address):
            return why
        if mac == TUNNEL_MAC:
            return ("it goes to the fabric, not to a pod",)
        if why := self._owner(address, {mac}):
            return why
        is_gone = (address, mac) in stale or mac in self._dead_macs[address]
        return None if is_gone else ("nothing shows that azure-vnet made it",)

    def _why_address_stays(self, address: IpAddress) -> Why | None:
        if not any(address in cidr for cidr in self._config.cidrs):
            return ("it is outside of the given CIDRs",)
        if address in self._config.keep:
            return ("the config keeps its address",)
        return ("it is the gateway of a route",) if address in self._state.gateways else None

    def _owner(self, address: IpAddress, macs: set[str]) -> Why | None:
        """Return why a pod or the node has, or may have, an address and one of some MACs.

        If no MACs are given, they are unknown. Return None if nothing has them.
        """
        if held := sorted(macs & self._holders.keys()):
            return self._holders[held[0]]
        for endpoint in self._alive_at[address]:
            if not macs or endpoint.mac is None or endpoint.mac in macs:
                return "azure-vnet serves it, and its interface is there", endpoint.interface
        is_known_dead = bool(macs) and macs <= self._dead_macs[address]
        if is_known_dead or not self._unreadable:
            return None
        return "nothing shows what is behind an interface: this may belong to its pod", self._unreadable[-1]


def _place(item: Item) -> tuple[bool, int, int, str]:
    """Return a sort key that puts rules before neighbours and orders each kind by address.

    It doesn't depend on the order of the input.
    """
    return item.kind == "neighbour", item.address.version, int(item.address), str(item.what)
