"""A bridge in memory: the one that tests drive.

::

    node = FakeBridgeNode(NodeState(rules=(line,), interfaces=(Interface("azure0"),)))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs

from hostrouting.azure.nodes import AzureVnetError
from hostrouting.azure.vnet.port import Neighbour, NodeState


@attrs.define(slots=False)
class FakeBridgeNode:
    """A ``BridgeNode`` that holds what it is told, of one bridge.

    Args:
        state: what it holds, to be changed at will.
    """

    state: NodeState = attrs.field(factory=NodeState)

    def look(self, bridge: str) -> NodeState:
        """All of it, but for neighbours that are on another interface."""
        return attrs.evolve(self.state, neighbours=tuple(one for one in self.state.neighbours if one.dev == bridge))

    def remove_rules(self, rules: Sequence[str]) -> None:
        """Remove rules, all or none."""
        left = list(self.state.rules)
        if Counter(rules) - Counter(left):
            raise AzureVnetError("can't delete rules: one isn't there; no rule was deleted: run it again")
        for rule in rules:
            left.remove(rule)
        self.state = attrs.evolve(self.state, rules=tuple(left))

    def remove_neighbours(self, neighbours: Sequence[Neighbour]) -> None:
        """Remove neighbours that are there."""
        left = tuple(one for one in self.state.neighbours if one not in neighbours)
        self.state = attrs.evolve(self.state, neighbours=left)
