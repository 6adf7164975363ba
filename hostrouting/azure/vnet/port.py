"""The port of the clean-up after azure-vnet: a node's bridge."""

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
