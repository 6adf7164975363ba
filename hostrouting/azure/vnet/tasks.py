"""The task RemoveStaleAzureVnet, in the steps read -> plan (pure) -> remove.

If a crash interrupts a run, the next run finishes its work. For this, neighbours are removed before the rules that show
to which pods they belong.
"""

from __future__ import annotations

from contextlib import nullcontext

import attrs

from hostrouting.azure.config import HostNetworking
from hostrouting.azure.nodes import AzureVnetError, given_or_real
from hostrouting.azure.vnet.linux import LinuxBridgeNode
from hostrouting.azure.vnet.parse import parse_endpoints
from hostrouting.azure.vnet.plan import AzureVnetReport, plan_cleaning
from hostrouting.azure.vnet.port import BridgeNode, Neighbour
from hostrouting.boot.files import read_text
from hostrouting.boot.host import Host
from hostrouting.boot.locks import locked
from phases import CancelScope

# The file in which azure-vnet lists the pods that it serves.
STATE_FILE = "/var/run/azure-vnet.json"
# Since v1.4.15, azure-vnet holds this lock with flock(2) as long as it runs.
LOCK_FILE = "/var/run/azure-vnet/azure-vnet.lock"


def plan_stale(config: HostNetworking, host: Host, *, node: BridgeNode | None = None) -> AzureVnetReport:
    """Plan for the host's current state, without changing anything or waiting.

    Args:
        config: the config of the clean-up.
        host: the host, which must not be an image.
        node: the host's bridge; by default that of this kernel.

    Returns:
        The planned removals and the items that stay; empty if the config asks for no clean-up.

    Raises:
        AzureVnetError: the node can't be read, azure-vnet's state can't be understood, or there is no kernel.
        FileError: azure-vnet's state can't be read.
    """
    stale = config.stale_azure_vnet
    if stale is None:
        return AzureVnetReport()
    state = _node(host, node).look(stale.bridge)
    path = host.layout.of(STATE_FILE)
    return plan_cleaning(stale, state, parse_endpoints(read_text(path) or "", str(path)))


def _node(host: Host, given: BridgeNode | None) -> BridgeNode:
    if host.is_image:
        raise AzureVnetError(
            f"can't look for azure-vnet's leftovers: the image {host.layout.root} has no kernel to ask"
        )
    return given_or_real(host, given, LinuxBridgeNode)


@attrs.frozen
class RemoveStaleAzureVnet:
    """Remove azure-vnet's leftovers for pods that it no longer serves, and nothing else.

    Args:
        config: the config of the clean-up. Without ``staleAzureVnet`` nothing is done.
        host: the host to work on; by default this host.
        node: the host's bridge; by default that of this kernel, through ebtables and netlink.
    """

    name = "remove-stale-azure-vnet"

    config: HostNetworking
    host: Host | None = attrs.field(default=None, kw_only=True)
    node: BridgeNode | None = attrs.field(default=None, kw_only=True)

    def do(self, scope: CancelScope) -> AzureVnetReport:
        """Remove the neighbours and then the rules, and check that they are gone.

        Returns:
            The items that were removed and the items that stay, each with its reason.

        Raises:
            AzureVnetError: something can't be read or removed. Everything that was removed so far was stale, and a
                later run continues from there.
            FileError: hostrouting's own lock or azure-vnet's can't be taken, or azure-vnet's state can't be read.
        """
        stale = self.config.stale_azure_vnet
        if stale is None:
            return AzureVnetReport()
        host = self.host or Host()
        node = _node(host, self.node)
        theirs = host.layout.of(LOCK_FILE)
        # If the lock's folder is missing, no azure-vnet that uses this lock has run since boot, so the folder isn't
        # created. If an older azure-vnet is setting up a pod, the pod's veth pair shows it.
        kept_out = locked(theirs, scope, seconds=stale.lock_wait_seconds) if theirs.parent.is_dir() else nullcontext()
        with locked(host.layout.lock, scope), kept_out:
            plan = plan_stale(self.config, host, node=node)
            scope.check()
            neighbours = [item.what for item in plan.removed if isinstance(item.what, Neighbour)]
            rules = [item.what for item in plan.removed if isinstance(item.what, str)]
            # The rules are removed last. If this process ends before that, they still show to which pods the neighbours
            # belong.
            node.remove_neighbours(neighbours)
            try:
                if rules:
                    node.remove_rules(rules)
            except AzureVnetError as error:
                done = f"no rule was deleted, but {len(neighbours)} neighbours before that"
                hint = error.hint or "run it again"
                raise AzureVnetError(f"{error.message}; {done}", hint=hint, errno=error.errno) from error
            after = node.look(stale.bridge)
            if left := {*neighbours, *rules} & {*after.neighbours, *after.rules}:
                raise AzureVnetError(
                    f"can't remove azure-vnet's leftovers: {len(left)} of {len(plan.removed)} are still there, or "
                    f"there again, as {min(map(str, left))}",
                    hint="stop azure-cnms if it is running",
                )
        return plan
