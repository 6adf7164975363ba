"""The task RemoveStaleAzureVnet, which reads the node's state, plans and removes.

After a crash, the next run completes the removal. Neighbours are removed before rules, because the
rules show which neighbours are stale.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import attrs

from hostrouting.azure.config import HostNetworking, to_networking
from hostrouting.azure.nodes import AzureVnetError, node_or_default
from hostrouting.azure.vnet.bridge import BridgeNode, Neighbour, NodeState
from hostrouting.azure.vnet.leftovers import AzureVnetReport, plan_cleaning
from hostrouting.azure.vnet.linux import LinuxBridgeNode
from hostrouting.azure.vnet.parse import parse_endpoints
from hostrouting.boot.files import read_text
from hostrouting.boot.host import Host
from hostrouting.boot.locks import locked
from hostrouting.model.values import frozen
from hostrouting.tasks.arguments import HostTask, to_host
from phases import CancelScope

# azure-vnet's state file. It lists the pods that azure-vnet serves.
STATE_FILE = "/var/run/azure-vnet.json"
# Since v1.4.15, azure-vnet holds this flock(2) lock while it runs.
LOCK_FILE = "/var/run/azure-vnet/azure-vnet.lock"


def plan_stale(
    config: HostNetworking,
    *,
    host: Host | None = None,
    node: BridgeNode | None = None,
) -> AzureVnetReport:
    """Plan the clean-up for the host's current state, without changing or locking anything.

    Args:
        config: the Azure config. Without ``staleAzureVnet``, the plan is empty.
        host: the host to look at; by default, this host. Images aren't supported.
        node: access to the bridge to clean up; by default, to this host's.

    Returns:
        The items to remove and to keep.

    Raises:
        AzureVnetError: the node can't be read, azure-vnet's state is malformed, or the host is an
            image.
        FileError: azure-vnet's state can't be read.
    """
    stale = to_networking(config).stale_azure_vnet
    if stale is None:
        return AzureVnetReport()
    host = to_host(host)
    state = _node(host, node).read_state(stale.bridge)
    path = host.layout.of(STATE_FILE)
    return plan_cleaning(stale, state, parse_endpoints(read_text(path) or "", str(path)))


def _node(host: Host, given: BridgeNode | None) -> BridgeNode:
    if host.is_image:
        raise AzureVnetError(
            "can't look for azure-vnet's leftovers: "
            f"the image {host.layout.root} has no kernel to ask"
        )
    return node_or_default(host, given, LinuxBridgeNode)


@frozen
class RemoveStaleAzureVnet(HostTask):
    """Remove azure-vnet's leftovers for pods that it no longer serves.

    Args:
        config: the Azure config. Without ``staleAzureVnet``, the task is a no-op.
        node: access to the bridge to clean up; by default, to this host's.
    """

    name = "remove-stale-azure-vnet"

    config: HostNetworking = attrs.field(converter=to_networking)
    node: BridgeNode | None = attrs.field(default=None, kw_only=True)

    def do(self, scope: CancelScope) -> AzureVnetReport:
        """Remove the neighbours and then the rules, and verify the removal.

        Returns:
            The removed and kept items, each with a reason.

        Raises:
            AzureVnetError: the clean-up failed. Some stale items may have been removed already; run
                the task again to remove the others.
            FileError: hostrouting's or azure-vnet's lock can't be acquired, or azure-vnet's state
                can't be read.
        """
        stale = self.config.stale_azure_vnet
        if stale is None:
            return AzureVnetReport()
        host = self.host
        node = _node(host, self.node)
        lock_file = host.layout.of(LOCK_FILE)
        # A missing folder means that since boot, only versions of azure-vnet without this lock have
        # run. So the lock isn't taken then.
        azure_vnets_lock: AbstractContextManager[None] = nullcontext()
        if lock_file.parent.is_dir():
            azure_vnets_lock = locked(lock_file, scope, seconds=stale.lock_wait_seconds)
        with locked(host.layout.lock, scope), azure_vnets_lock:
            plan = plan_stale(self.config, host=host, node=node)
            scope.check()
            _remove(plan, node)
            _verify_removal(plan, node.read_state(stale.bridge))
        return plan


def _remove(plan: AzureVnetReport, node: BridgeNode) -> None:
    """Remove a plan's neighbours, and then its rules.

    If the process dies after the neighbours, the rules show the next run which neighbours are
    stale.
    """
    neighbours = [item.what for item in plan.removed if isinstance(item.what, Neighbour)]
    rules = [item.what for item in plan.removed if isinstance(item.what, str)]
    node.remove_neighbours(neighbours)
    if not rules:
        return
    try:
        node.remove_rules(rules)
    except AzureVnetError as error:
        done = f"no rule was deleted, but {len(neighbours)} neighbours before that"
        hint = error.hint or "run it again"
        raise AzureVnetError(f"{error.message}; {done}", hint=hint, errno=error.errno) from error


def _verify_removal(plan: AzureVnetReport, after: NodeState) -> None:
    left = {item.what for item in plan.removed} & {*after.neighbours, *after.rules}
    if left:
        raise AzureVnetError(
            f"can't remove azure-vnet's leftovers: {len(left)} of {len(plan.removed)} "
            f"are still there, or there again, as {min(map(str, left))}",
            hint="stop azure-cnms if it is running",
        )
