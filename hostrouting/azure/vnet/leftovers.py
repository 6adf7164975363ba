"""Decide which leftovers to remove. Anything that may belong to a running pod is kept.

This module does no I/O. A pod is running if its veth pair exists. The veth pair is found by the
name of its host end, by the MAC of its other end, or by the MACs that the bridge has learned on it.
A pod in azure-vnet's state may be gone: its entry stays if azure-vnet gets no DEL command for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from hostrouting.azure.config import StaleAzureVnet
from hostrouting.azure.vnet.bridge import Interface, Neighbour, NodeState
from hostrouting.azure.vnet.parse import TUNNEL_MAC, Endpoint, PodRule, parse_pod_rule
from hostrouting.model.family import IpAddress
from hostrouting.model.jsonable import fields_in_json
from hostrouting.model.values import frozen

# azure-vnet's name prefix for the host end of a pod's veth pair.
_VETH_PREFIX = "azv"

# The reason why a rule or neighbour is kept, and the interface that the reason names or None.
Why: TypeAlias = "tuple[str] | tuple[str, str]"

_ALIKE = "no rule says where frames for the pod behind an interface go: this one may be the pod's"
# The reasons for the removal of a rule, by ``PodRule.is_tunnel``.
_GONE = {
    False: "no pod here has this MAC any more",
    True: "no pod of azure-vnet has this address any more",
}
_GONE_TOO = "the pod that had this address and MAC is gone"


@frozen
class AzureVnetItem:
    """A rule or neighbour, and why it is removed or kept.

    Args:
        what: the rule in ebtables-save format, or the neighbour.
        address: the pod address in the rule or neighbour.
        reason: why the item is removed or kept, as a clause without a full stop.
        interface: the interface that the reason refers to, or None.
    """

    what: str | Neighbour
    address: IpAddress
    reason: str
    interface: str | None = None

    @property
    def kind(self) -> str:
        """Return ``rule`` or ``neighbour``."""
        return "rule" if isinstance(self.what, str) else "neighbour"

    def to_json(self) -> dict[str, Any]:
        """Return the item as JSON."""
        return {
            "kind": self.kind,
            "object": str(self.what),
            "reason": self.reason,
            "interface": self.interface,
        }


@frozen
class AzureVnetReport:
    """The removed and the kept rules and neighbours. Rules come before neighbours.

    Args:
        removed: the stale rules and neighbours, with the reasons for their removal.
        kept: all other pod rules and permanent neighbours on the bridge.
        notes: messages about anything that couldn't be read.
        other_rules: number of unrelated rules in table nat, which are always kept.
        is_unsure: whether rules that affect a pod may exist, but couldn't be read. False without
            the bridge, because rules have no effect then.
    """

    removed: tuple[AzureVnetItem, ...] = ()
    kept: tuple[AzureVnetItem, ...] = ()
    notes: tuple[str, ...] = ()
    other_rules: int = 0
    is_unsure: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        names = ("removed", "kept", "other_rules", "notes")
        return {"schema": 1, "changed": bool(self.removed)} | fields_in_json(self, *names)


def plan_cleaning(
    config: StaleAzureVnet,
    state: NodeState,
    endpoints: Iterable[Endpoint],
) -> AzureVnetReport:
    """Find azure-vnet's leftovers for pods that it no longer serves.

    The result doesn't depend on the input order. After the plan has been executed, the next plan is
    empty.

    Args:
        config: the settings, including the pod CIDRs and the addresses to keep.
        state: the node's state.
        endpoints: all pods in azure-vnet's state, including deleted ones.

    Returns:
        The items to remove and to keep.
    """
    return _Planner(config, state, endpoints).plan()


class _Planner:
    """A planner. By a node's state, it decides which rules and neighbours to remove."""

    def __init__(
        self,
        config: StaleAzureVnet,
        state: NodeState,
        endpoints: Iterable[Endpoint],
    ) -> None:
        self._config = config
        self._state = state
        self._rules = _pod_rules(state)
        # If several interfaces have the same MAC, the report names the alphabetically first one. A
        # dict keeps the last value of a key, so sort the interfaces in reverse.
        interfaces = sorted(state.interfaces, key=lambda one: one.name, reverse=True)
        veths = [one for one in interfaces if one.name.startswith(_VETH_PREFIX)]
        self._names = {interface.name for interface in interfaces}
        self._holders = _holders(interfaces, config.bridge)
        self._unreadable = [one.name for one in veths if one.far_mac is None]

        saved = set[str]()
        self._alive: list[Endpoint] = []
        self._dead: list[Endpoint] = []
        for endpoint in sorted(endpoints, key=lambda one: one.interface):
            saved.add(endpoint.interface)
            if endpoint.interface in self._names:
                self._alive.append(endpoint)
            elif endpoint.interface:  # a pod without a known interface may still be running
                self._dead.append(endpoint)
        # A pod that isn't in the saved state is new.
        self._half_done = self._without_rules([one for one in veths if one.name not in saved])

    def _without_rules(self, added: Iterable[Interface]) -> list[str]:
        """Return the names of the new veth interfaces that have no DNAT rules yet.

        For a new pod, azure-vnet creates the veth pair first, then the ARP rules, then the DNAT
        rules, and then writes its state file.
        """
        begun = {rule.mac for _, rule in self._rules if rule.uplink is not None}
        return [one.name for one in added if begun.isdisjoint((one.far_mac, *one.seen_macs))]

    def plan(self) -> AzureVnetReport:
        removed: list[AzureVnetItem] = []
        kept: list[AzureVnetItem] = []
        stale: set[tuple[IpAddress, str]] = set()
        for line, rule in self._rules:
            if why := self._why_rule_stays(rule):
                kept.append(AzureVnetItem(line, rule.address, *why))
            else:
                removed.append(AzureVnetItem(line, rule.address, _GONE[rule.is_tunnel]))
                stale.add((rule.address, rule.mac))
        for neighbour in self._state.neighbours:
            if why := self._why_neighbour_stays(neighbour, stale):
                kept.append(AzureVnetItem(neighbour, neighbour.address, *why))
            else:
                removed.append(AzureVnetItem(neighbour, neighbour.address, _GONE_TOO))
        notes = self._state.notes
        return AzureVnetReport(
            tuple(sorted(removed, key=_sort_key)),
            tuple(sorted(kept, key=_sort_key)),
            notes,
            other_rules=len(self._state.rules) - len(self._rules),
            is_unsure=bool(notes) and self._config.bridge in self._names,
        )

    def _why_rule_stays(self, rule: PodRule) -> Why | None:
        if rule.uplink not in (None, self._config.uplink):
            return (f"it is for frames from {rule.uplink}, not from {self._config.uplink}",)
        if why := self._why_address_stays(rule.address):
            return why
        # A new pod may have the address before its DNAT rules exist. Even then, an old pod's DNAT
        # rule may exist.
        if rule.is_tunnel and self._half_done:
            return _ALIKE, self._half_done[-1]
        macs = self._dnat_macs(rule.address) if rule.is_tunnel else {rule.mac}
        return self._owner(rule.address, macs)

    def _dnat_macs(self, address: IpAddress) -> set[str]:
        """Return the MACs in the DNAT rules for an address. Each of them identifies a pod."""
        return {
            rule.mac
            for _, rule in self._rules
            if rule.uplink is not None and rule.address == address
        }

    def _why_neighbour_stays(
        self,
        neighbour: Neighbour,
        stale: set[tuple[IpAddress, str]],
    ) -> Why | None:
        address = neighbour.address
        mac = neighbour.mac
        if why := self._why_address_stays(address):
            return why
        if mac == TUNNEL_MAC:
            return ("it goes to the fabric, not to a pod",)
        if why := self._owner(address, {mac}):
            return why
        is_gone = (address, mac) in stale or mac in self._dead_macs(address)
        return None if is_gone else ("nothing shows that azure-vnet made it",)

    def _why_address_stays(self, address: IpAddress) -> Why | None:
        if not any(address in cidr for cidr in self._config.cidrs):
            return ("it is outside of the given CIDRs",)
        if address in self._config.keep:
            return ("the config keeps its address",)
        return ("it is the gateway of a route",) if address in self._state.gateways else None

    def _owner(self, address: IpAddress, macs: set[str]) -> Why | None:
        """Return why a pod or the node may use an address with one of these MACs, or None.

        An empty set of MACs means that the MAC is unknown.
        """
        if held := sorted(macs & self._holders.keys()):
            return self._holders[held[0]]
        for endpoint in self._alive:
            may_match = not macs or endpoint.mac is None or endpoint.mac in macs
            if may_match and address in endpoint.addresses:
                return "azure-vnet serves it, and its interface is there", endpoint.interface
        is_known_dead = bool(macs) and macs <= self._dead_macs(address)
        if is_known_dead or not self._unreadable:
            return None
        return (
            "nothing shows what is behind an interface: this may belong to its pod",
            self._unreadable[-1],
        )

    def _dead_macs(self, address: IpAddress) -> set[str | None]:
        return {endpoint.mac for endpoint in self._dead if address in endpoint.addresses}


def _pod_rules(state: NodeState) -> list[tuple[str, PodRule]]:
    parsed = [(line, parse_pod_rule(line)) for line in state.rules]
    return [(line, rule) for line, rule in parsed if rule is not None]


def _holders(interfaces: Iterable[Interface], bridge: str) -> dict[str | None, Why]:
    """Map each MAC of this node and its pods to the reason for keeping the MAC's rules."""
    holders: dict[str | None, Why] = {}
    for one in interfaces:
        # A pod's veth interface may have been renamed, so count every port of the bridge.
        if one.name.startswith(_VETH_PREFIX) or one.master == bridge:
            for mac in (*one.seen_macs, one.far_mac):
                holders[mac] = ("a running pod has this MAC", one.name)
    for one in interfaces:
        holders[one.mac] = ("its MAC is that of an interface of this node", one.name)
    return holders


def _sort_key(item: AzureVnetItem) -> tuple[bool, int, int, str]:
    """Return a key that sorts rules before neighbours, and both by address."""
    return item.kind == "neighbour", item.address.version, int(item.address), str(item.what)
