"""RemoveStaleAzureVnet: look -> plan (pure) -> remove -> look again, until nothing is left to remove.

Whatever a crash leaves half done, the next run finishes: neighbours and routes go first, since it is the rules that
tell whose they are.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import attrs

from hostrouting.azure import nodes
from hostrouting.azure.errors import AzureVnetError
from hostrouting.azure.vnet import places
from hostrouting.azure.vnet.lock import azure_vnet_locked
from hostrouting.azure.vnet.model import HostRoute, Neighbour
from hostrouting.azure.vnet.parse import parse_endpoints
from hostrouting.azure.vnet.plan import AzureVnetPlan, AzureVnetReport, plan_cleaning
from hostrouting.boot.files import locked, read_text
from hostrouting.boot.host import Host
from hostrouting.model.errors import FileError

if TYPE_CHECKING:
    from hostrouting.azure.config import HostNetworking, StaleAzureVnet
    from hostrouting.azure.vnet.model import NodeState
    from hostrouting.azure.vnet.plan import Item
    from hostrouting.azure.vnet.port import BridgeNode
    from phases import CancelScope

__all__ = ["RemoveStaleAzureVnet", "plan_stale"]

ROUNDS_MAX = 3


def plan_stale(config: HostNetworking, host: Host, *, node: BridgeNode | None = None) -> AzureVnetPlan:
    """Plan for the host as it is at this moment, changing nothing and waiting for nobody.

    Args:
        config: where to look.
        host: where; not an image.
        node: its bridge's side; None: this kernel's.

    Returns:
        The plan; an empty one if the config asks for none.

    Raises:
        AzureVnetError: the node or azure-vnet's state can't be read, or there is no kernel.
    """
    if config.stale_azure_vnet is None:
        return AzureVnetPlan()
    _refuse_image(host)
    return _look(config.stale_azure_vnet, host, nodes.bridge_node(host, node))[1]


def _refuse_image(host: Host) -> None:
    if host.is_image:
        raise AzureVnetError(
            f"can't remove what azure-vnet left: the image {host.layout.root} has no kernel that holds any of it; "
            "leave staleAzureVnet to the running node"
        )


def _look(config: StaleAzureVnet, host: Host, node: BridgeNode) -> tuple[NodeState, AzureVnetPlan]:
    state = node.look(config.bridge)
    path = places.state(host.layout)
    try:
        text = read_text(path) or ""
    except FileError as error:
        raise AzureVnetError(f"can't tell which pods azure-vnet still serves: {error}", errno=error.errno) from error
    return state, plan_cleaning(config, state, parse_endpoints(text, str(path)))


@attrs.frozen
class RemoveStaleAzureVnet:
    """Remove what azure-vnet left for pods that it no longer serves, and nothing else.

    Args:
        config: where to look; without ``staleAzureVnet`` nothing is done.
        host: where; None: this host.
        node: its bridge's side; None: this kernel's, by ebtables and netlink.
    """

    name = "remove-stale-azure-vnet"

    config: HostNetworking
    host: Host | None = attrs.field(default=None, kw_only=True)
    node: BridgeNode | None = attrs.field(default=None, kw_only=True)

    def do(self, scope: CancelScope) -> AzureVnetReport:
        """Do it.

        Returns:
            What went and what stays, each with its reason.

        Raises:
            AzureVnetError: azure-vnet's lock is held, something can't be read or removed, or comes back. What was
                removed until then was stale, and a later run goes on from there.
            FileError: hostrouting's own lock can't be taken.
        """
        stale = self.config.stale_azure_vnet
        if stale is None:
            return AzureVnetReport()
        host = self.host or Host()
        _refuse_image(host)
        run = _Run(stale, host, nodes.bridge_node(host, self.node), scope)
        with locked(host.layout.lock, scope):
            with azure_vnet_locked(host.layout, stale.lock_wait_seconds, scope):
                run.remove_all()
            # Whoever was waiting for the lock may have been at it since.
            return run.finish()


class _Run:
    """One run, and what it has done so far."""

    def __init__(self, config: StaleAzureVnet, host: Host, node: BridgeNode, scope: CancelScope) -> None:
        self._config = config
        self._host = host
        self._node = node
        self._scope = scope
        self._removed: list[Item] = []
        self._gone: list[Item] = []
        self._rounds = 0
        self._last = AzureVnetPlan()

    def remove_all(self) -> None:
        """Remove what is planned, and plan again, until there is nothing left to remove."""
        plan = self._look()[1]
        while self._is_worth_a_round(plan):
            if self._rounds == ROUNDS_MAX:
                raise AzureVnetError(
                    f"can't remove what azure-vnet left: {len(plan.remove)} rules, neighbours and routes are still to "
                    f"go, as somebody changed them while they were removed, {ROUNDS_MAX} times over; see to it that "
                    "neither azure-vnet nor azure-cnms is running, and run it again"
                )
            self._scope.check()
            self._rounds += 1
            self._scope.progress(f"removing {len(plan.remove)} rules, neighbours and routes that azure-vnet left")
            plan = self._remove(plan)
        self._last = plan

    def finish(self) -> AzureVnetReport:
        """Look once more, and say what became of it."""
        more: tuple[str, ...] = ()
        try:
            _, plan = _look(self._config, self._host, self._node)
        except AzureVnetError as error:
            # azure-vnet may run again by now, and be at its state: what was removed is told all the same.
            plan, more = self._last, (f"whether anything has come back since isn't known: {error}",)
        else:
            self._refuse_back(plan)
            if plan.remove:
                count = len(plan.remove)
                more = (f"{count} more to go have come since: something uses these addresses; run it again",)
        return AzureVnetReport(
            removed=tuple(self._removed),
            already_gone=tuple(self._gone),
            kept=plan.keep,
            rounds=self._rounds,
            notes=(*plan.notes, *more),
            other_rules=plan.other_rules,
            other_routes=plan.other_routes,
        )

    def _is_worth_a_round(self, plan: AzureVnetPlan) -> bool:
        # As long as somebody sends to a dead address, the kernel keeps asking for its MAC.
        return any(not (self._rounds and _is_unresolved(item)) for item in plan.remove)

    def _look(self) -> tuple[NodeState, AzureVnetPlan]:
        state, plan = _look(self._config, self._host, self._node)
        self._refuse_back(plan)
        return state, plan

    def _refuse_back(self, plan: AzureVnetPlan) -> None:
        removed = {item.what for item in self._removed if item.kind == "rule"}
        if back := [str(item.what) for item in plan.remove if item.what in removed]:
            raise AzureVnetError(
                f"{len(back)} ebtables rules were removed and are back, the first one is `{back[0]}`: azure-vnet puts "
                "them back at every CNI CHECK, and azure-cnms every few seconds, as long as azure-vnet's state "
                f"{places.state(self._host.layout)} lists the pod; have the kubelet use another CNI, stop "
                "azure-cnms, and run it again"
            )

    def _remove(self, plan: AzureVnetPlan) -> AzureVnetPlan:
        """Remove what is planned; give the plan for what is there then."""
        node = self._node
        # The rules last: they tell whose the others are, should this be the end of us.
        neighbours = [item.what for item in plan.remove if isinstance(item.what, Neighbour)]
        routes = [item.what for item in plan.remove if isinstance(item.what, HostRoute)]
        missing = {
            *(node.remove_neighbours(neighbours) if neighbours else ()),
            *(node.remove_routes(routes) if routes else ()),
        }
        for item in plan.remove:
            if not isinstance(item.what, str):
                (self._gone if item.what in missing else self._removed).append(item)
        rules = [item for item in plan.remove if isinstance(item.what, str)]
        if not rules or node.remove_rules([str(item.what) for item in rules]):
            self._removed += rules
            return self._look()[1]
        state, again = self._look()
        left = Counter(state.rules)
        for item in rules:
            if left[str(item.what)]:
                left[str(item.what)] -= 1
            else:
                self._gone.append(item)
        return again


def _is_unresolved(item: Item) -> bool:
    return isinstance(item.what, Neighbour) and item.what.is_unresolved
