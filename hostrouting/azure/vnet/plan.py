"""Pure: what a node holds -> what goes, what stays, and why. Everything that might be a live pod's stays.

Whether a pod lives is told by its veth pair: the MAC of the pod's end, and that the host's end is there. To be listed
in azure-vnet's state is no sign of life: without a CNI DEL its entry stays for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from hostrouting.azure.vnet.model import HostRoute, Neighbour
from hostrouting.azure.vnet.parse import TUNNEL_MAC, PodRule, RuleKind, parse_pod_rule
from hostrouting.model.routes import Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostrouting.azure.config import StaleAzureVnet
    from hostrouting.azure.vnet.model import NodeState
    from hostrouting.azure.vnet.parse import Endpoint
    from hostrouting.model.parsing import IpAddress

__all__ = ["AzureVnetPlan", "AzureVnetReport", "Item", "plan_cleaning"]

# How azure-vnet names the host's end of a pod's veth pair.
_VETH_PREFIX = "azv"


@attrs.frozen
class Item:
    """Something that a node holds, and why it goes or stays.

    Args:
        what: a rule as it was saved, a neighbour or a route.
        reason: in words.
    """

    what: str | Neighbour | HostRoute
    reason: str

    @property
    def kind(self) -> str:
        """``rule``, ``neighbour`` or ``route``."""
        return "rule" if isinstance(self.what, str) else "neighbour" if isinstance(self.what, Neighbour) else "route"

    @property
    def address(self) -> IpAddress | None:
        """Which address it is about; None if it is a rule of a shape of its own."""
        if isinstance(self.what, HostRoute):
            return self.what.destination
        if isinstance(self.what, Neighbour):
            return self.what.address
        rule = parse_pod_rule(self.what)
        return None if rule is None else rule.address

    def to_json(self) -> dict[str, Any]:
        """The item as JSON."""
        return {"kind": self.kind, "object": str(self.what), "reason": self.reason}


@attrs.frozen
class AzureVnetPlan:
    """What goes and what stays: rules, then neighbours, then routes, each by address.

    Args:
        remove: what nobody needs any more.
        keep: what is inside the CIDRs, on the bridge or of azure-vnet's shape, and stays.
        notes: what couldn't be looked at, in words.
        other_rules: how many rules of table nat aren't of the shape that a pod's have; they stay.
        other_routes: how many host routes are neither inside the CIDRs nor on azure-vnet's interfaces; they stay.
        is_unsure: whether what couldn't be looked at may be in a pod's way; without the bridge no frame meets a rule.
    """

    remove: tuple[Item, ...] = ()
    keep: tuple[Item, ...] = ()
    notes: tuple[str, ...] = ()
    other_rules: int = 0
    other_routes: int = 0
    is_unsure: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to remove."""
        return not self.remove

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON."""
        return {
            "schema": 1,
            "remove": [item.to_json() for item in self.remove],
            "keep": [item.to_json() for item in self.keep],
            "otherRules": self.other_rules,
            "otherRoutes": self.other_routes,
            "notes": list(self.notes),
        }


@attrs.frozen
class AzureVnetReport:
    """What became of it.

    Args:
        removed: what went.
        already_gone: what was to go, and wasn't there any more when its turn came.
        kept: what is inside the CIDRs, on the bridge or of azure-vnet's shape, and stays.
        rounds: how many times something was removed; more than one: the node changed meanwhile.
        notes: what couldn't be looked at, and what is worth knowing, in words.
        other_rules: as in the plan.
        other_routes: as in the plan.
    """

    removed: tuple[Item, ...] = ()
    already_gone: tuple[Item, ...] = ()
    kept: tuple[Item, ...] = ()
    rounds: int = 0
    notes: tuple[str, ...] = ()
    other_rules: int = 0
    other_routes: int = 0

    def to_json(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "schema": 1,
            "removed": [item.to_json() for item in self.removed],
            "alreadyGone": [item.to_json() for item in self.already_gone],
            "kept": [item.to_json() for item in self.kept],
            "otherRules": self.other_rules,
            "otherRoutes": self.other_routes,
            "rounds": self.rounds,
            "notes": list(self.notes),
        }


def plan_cleaning(config: StaleAzureVnet, state: NodeState, endpoints: Iterable[Endpoint]) -> AzureVnetPlan:
    """Tell what azure-vnet has left for pods that it no longer serves.

    The order of what is given doesn't matter. A plan over what is left by this plan is empty.

    Args:
        config: where to look, and what to leave alone.
        state: the node.
        endpoints: the pods that azure-vnet's state lists, dead ones too.

    Returns:
        The plan.
    """
    return _Planner(config, state, tuple(endpoints)).plan()


class _Planner:
    """A node as the decisions look at it."""

    def __init__(self, config: StaleAzureVnet, state: NodeState, endpoints: Sequence[Endpoint]) -> None:
        self._config = config
        self._scene = state
        self._rules = [(line, rule) for line in state.rules if (rule := parse_pod_rule(line)) is not None]
        self._own = dict.fromkeys(state.addresses, "it is an address of this host")
        self._gateways = set(state.gateways)
        self._own_macs = {
            interface.mac: f"its MAC is that of {interface.name}"
            for interface in sorted(state.interfaces, key=lambda one: one.name, reverse=True)
            if interface.name in (config.uplink, config.bridge) and interface.mac
        }
        names = {interface.name for interface in state.interfaces}
        self._has_bridge = config.bridge in names
        self._alive = [endpoint for endpoint in endpoints if endpoint.interface in names]
        # One without an interface may be anywhere.
        dead = [endpoint for endpoint in endpoints if endpoint.interface and endpoint.interface not in names]
        self._alive_at, self._dead_at = _by_address(self._alive), _by_address(dead)
        veths = sorted((one for one in state.interfaces if one.name.startswith(_VETH_PREFIX)), key=lambda one: one.name)
        # A pair that somebody has renamed still serves its pod, as long as it is a port of the bridge.
        pairs = [one for one in state.interfaces if one in veths or one.master == config.bridge]
        self._pod_ends = {
            pair.far_mac: pair.name
            for pair in sorted(pairs, key=lambda one: one.name, reverse=True)
            if pair.far_mac is not None
        }
        self._unreadable = [veth.name for veth in veths if veth.far_mac is None]
        # azure-vnet makes the pair first, then the rules, ARP's before that for frames, and writes its state last.
        begun = {rule.mac for _, rule in self._rules if rule.kind is RuleKind.DNAT}
        saved = {endpoint.interface for endpoint in self._alive}
        self._half_done = [veth.name for veth in veths if veth.far_mac not in begun and veth.name not in saved]
        self._frames_to: dict[IpAddress, set[str]] = {}
        self._macs_of: dict[IpAddress, set[str]] = {}
        for _, rule in self._rules:
            self._macs_of.setdefault(rule.address, set()).update(() if rule.is_tunnel else (rule.mac,))
            if rule.kind is RuleKind.DNAT:
                self._frames_to.setdefault(rule.address, set()).add(rule.mac)
        self._stale: set[tuple[IpAddress, str]] = set()

    def plan(self) -> AzureVnetPlan:
        remove: list[Item] = []
        keep: list[Item] = []
        other_routes = 0
        for line, rule in self._rules:
            staying = self._why_rule_stays(rule)
            if staying is None and not rule.is_tunnel:
                self._stale.add((rule.address, rule.mac))
            (remove if staying is None else keep).append(Item(line, staying or self._why_rule_goes(rule)))
        for neighbour in self._scene.neighbours:
            staying = self._why_neighbour_stays(neighbour)
            (remove if staying is None else keep).append(Item(neighbour, staying or _why_neighbour_goes(neighbour)))
        routes = [(route, self._why_route_stays(route)) for route in self._scene.routes]
        taken = {request for route, staying in routes if staying is not None for request in route.requests}
        for route, staying in routes:
            if not self._is_inside(route.destination) and not self._is_azure_vnets(route.dev):
                other_routes += 1
                continue
            reason = staying or (_TWIN_STAYS if route.requests & taken else None)
            (remove if reason is None else keep).append(Item(route, reason or _ROUTE_GOES))
        return AzureVnetPlan(
            remove=tuple(sorted(remove, key=_place)),
            keep=tuple(sorted(keep, key=_place)),
            notes=self._scene.notes,
            other_rules=len(self._scene.rules) - len(self._rules),
            other_routes=other_routes,
            is_unsure=bool(self._scene.notes) and self._has_bridge,
        )

    # --- rules -------------------------------------------------------------------------------------------------

    def _why_rule_stays(self, rule: PodRule) -> str | None:
        if rule.uplink not in (None, self._config.uplink):
            return f"it is for frames from {rule.uplink}, not from {self._config.uplink}"
        if reason := self._why_address_stays(rule.address):
            return reason
        if not rule.is_tunnel:
            return self._own_macs.get(rule.mac) or self._owner(rule.address, {rule.mac})
        # Every pod's has this MAC; where the frames of its address go to tells whose it is.
        macs = self._frames_of(rule.address)
        if own := sorted(macs & self._own_macs.keys()):
            return self._own_macs[own[0]]
        if self._half_done:
            # Whatever tells where frames for the address go may be of the pod that had it before.
            return f"no rule says where frames for the pod behind {self._half_done[0]} go: this one may be its"
        return self._owner(rule.address, macs)

    def _frames_of(self, address: IpAddress) -> set[str]:
        return self._frames_to.get(address, set())

    def _why_rule_goes(self, rule: PodRule) -> str:
        if rule.is_tunnel:
            return "no pod of azure-vnet has this address any more"
        is_listed = any(one.mac == rule.mac for one in self._dead_at.get(rule.address, ()))
        listed = "; azure-vnet still lists it, behind an interface that is gone" if is_listed else ""
        return f"no pod here has this MAC any more{listed}"

    # --- neighbours --------------------------------------------------------------------------------------------

    def _why_neighbour_stays(self, neighbour: Neighbour) -> str | None:
        if neighbour.dev != self._config.bridge:
            return f"it is not on {self._config.bridge}"
        if reason := self._why_address_stays(neighbour.address):
            return reason
        if neighbour.is_foreign:
            return "somebody else has learned it or manages it"
        if neighbour.is_unresolved:
            return self._holder(neighbour.address)
        if not neighbour.is_permanent:
            return "the kernel has found it by itself, and lets go of it by itself"
        return self._why_permanent_stays(neighbour.address, neighbour.mac)

    def _why_permanent_stays(self, address: IpAddress, mac: str | None) -> str | None:
        if mac is None:
            return "it has no MAC"
        if mac == TUNNEL_MAC:
            return "it goes to the fabric, not to a pod"
        if reason := self._own_macs.get(mac) or self._owner(address, {mac}):
            return reason
        if (address, mac) in self._stale or mac in self._dead_macs(address):
            return None
        return "nothing tells that azure-vnet has made it"

    # --- routes ------------------------------------------------------------------------------------------------

    def _why_route_stays(self, route: HostRoute) -> str | None:
        address = route.destination
        if not self._is_azure_vnets(route.dev):
            return f"it is by {route.dev}"
        if reason := self._why_address_stays(address):
            return reason
        if not route.is_plain or route.has_gateway:
            return "azure-vnet makes none with a gateway, several hops or a nexthop object"
        if route.protocol == Protocol.KERNEL:
            return "the kernel has made it"
        if route.dev != self._config.bridge:
            # A pair lives as long as the pod's namespace, so its pod may well: only the state can tell otherwise.
            behind = [endpoint.addresses for endpoint in self._alive if endpoint.interface == route.dev]
            if not behind:
                return f"{route.dev} is there, and nothing tells that its pod has another address"
            if any(address in addresses for addresses in behind):
                return _serves(route.dev)
        return self._holder(address)

    # --- whose it is -------------------------------------------------------------------------------------------

    def _is_inside(self, address: IpAddress) -> bool:
        return any(address in cidr for cidr in self._config.cidrs)

    def _is_azure_vnets(self, dev: str) -> bool:
        return dev == self._config.bridge or dev.startswith(_VETH_PREFIX)

    def _why_address_stays(self, address: IpAddress) -> str | None:
        if not self._is_inside(address):
            return "it is outside of the given CIDRs"
        if address in self._config.keep:
            return "its address is to be kept"
        if address in self._gateways:
            return "it is the gateway of a route"
        return self._own.get(address)

    def _holder(self, address: IpAddress) -> str | None:
        """The live pod that has an address, or may have it, whichever MAC the rules that are left of it tell."""
        alive = self._alive_at.get(address)
        return _serves(alive[0].interface) if alive else self._owner(address, self._macs_of.get(address, set()))

    def _owner(self, address: IpAddress, macs: set[str]) -> str | None:
        """The live pod that has an address and one of some MACs, or may have them; no MACs: it isn't known which."""
        for mac in sorted(macs & self._pod_ends.keys()):
            return f"the pod behind {self._pod_ends[mac]} has this MAC"
        for endpoint in self._alive_at.get(address, ()):
            if not macs or endpoint.mac is None or endpoint.mac in macs:
                return _serves(endpoint.interface)
        if self._unreadable and not self._is_known_dead(address, macs):
            return f"it can't be told what is behind {self._unreadable[0]}: it may be its pod's"
        return None

    def _is_known_dead(self, address: IpAddress, macs: set[str]) -> bool:
        return bool(macs) and macs <= self._dead_macs(address)

    def _dead_macs(self, address: IpAddress) -> set[str]:
        return {endpoint.mac for endpoint in self._dead_at.get(address, ()) if endpoint.mac is not None}


def _by_address(endpoints: Iterable[Endpoint]) -> dict[IpAddress, list[Endpoint]]:
    """Who has which address, each list by interface: there may be thousands of both."""
    found: dict[IpAddress, list[Endpoint]] = {}
    for endpoint in sorted(endpoints, key=lambda one: one.interface):
        for address in endpoint.addresses:
            found.setdefault(address, []).append(endpoint)
    return found


def _serves(interface: str) -> str:
    return f"azure-vnet serves it: {interface} is there"


_TWIN_STAYS = "the kernel doesn't tell it from another one that stays"
_ROUTE_GOES = "no pod of azure-vnet has this address any more, and it takes the packets of whoever has"


def _why_neighbour_goes(neighbour: Neighbour) -> str:
    if neighbour.is_unresolved:
        return "nothing has answered for this address"
    return "the pod that had this address and MAC is gone"


def _place(item: Item) -> tuple[int, int, int, str, str]:
    """Rules, neighbours, routes; each by address, and nothing else by the order in which it was given."""
    address = item.address
    family, number = (0, 0) if address is None else (address.version, int(address))
    return (("rule", "neighbour", "route").index(item.kind), family, number, str(item.what), repr(item))
