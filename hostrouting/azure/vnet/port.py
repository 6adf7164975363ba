"""What azure-vnet has left for pods that it no longer serves: a room of its own.

The CNI of that name gives each pod ebtables rules, a permanent neighbour and, at times, a route. Where pods move to
another CNI and no DEL is called, they stay, and packets to a pod that gets such an address again are lost.

This module is the port, what the task asks of a node: ``LinuxBridgeNode`` (linux.py) is the real one,
``hostrouting.testing.FakeBridgeNode`` the one in memory.

============  ======================================================================
``model``     what a node holds: rules, neighbours, host routes, interfaces
``parse``     pure: the output of ebtables-save, azure-vnet's state
``plan``      pure: what goes, what stays, and why
``linux``     ebtables, the kernel's neighbours and routes
``lock``      azure-vnet's own lock
``tasks``     RemoveStaleAzureVnet
``wording``   plan and report as text
``commands``  ``hostrouting azure-vnet plan|clean``
============  ======================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.azure.vnet.model import HostRoute, Neighbour, NodeState

__all__ = ["BridgeNode"]


class BridgeNode(Protocol):
    """A node on which azure-vnet may have been. Every call raises ``AzureVnetError`` if it can't be done."""

    def look(self, bridge: str) -> NodeState:
        """All that a plan is made of, but for files.

        The interfaces are read last: azure-vnet makes a pod's veth pair before anything else, so whatever else is
        seen of a pod, its pair is seen too.

        Args:
            bridge: whose neighbours to read; no such bridge: there are none.
        """
        ...

    def remove_rules(self, rules: Sequence[str]) -> bool:
        """Delete rules of ebtables' nat table in one transaction, each as it was saved.

        Returns:
            Whether all of them went; False: one wasn't there any more, and none went.
        """
        ...

    def remove_neighbours(self, neighbours: Sequence[Neighbour]) -> tuple[Neighbour, ...]:
        """Delete neighbours; give those that weren't there any more, or have another MAC or owner by now."""
        ...

    def remove_routes(self, routes: Sequence[HostRoute]) -> tuple[HostRoute, ...]:
        """Delete exactly these routes; give those that weren't there any more."""
        ...
