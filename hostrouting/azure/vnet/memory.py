"""A bridge in memory: the one that tests drive.

::

    node = FakeBridgeNode(NodeState(rules=(line,), interfaces=(Interface("azure0"),)))
    node.before("remove_rules", lambda: node.change(rules=()))       # somebody else was faster
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import attrs

from hostrouting.azure.errors import AzureVnetError
from hostrouting.azure.vnet.port import NodeState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostrouting.azure.vnet.port import Neighbour

__all__ = ["FakeBridgeNode"]


class FakeBridgeNode:
    """A ``BridgeNode`` that holds what it is told, of one bridge.

    Args:
        state: what it holds.

    Attributes:
        state: what it holds now.
        calls: the names of the calls so far, in order.
    """

    def __init__(self, state: NodeState | None = None) -> None:
        self.state = NodeState() if state is None else state
        self.calls: list[str] = []
        self._before: list[tuple[str, Callable[[], object]]] = []

    def before(self, call: str, act: Callable[[], object]) -> None:
        """Have something happen as the next call of a name comes, and before it is answered; once.

        Args:
            call: ``look``, ``remove_rules`` or ``remove_neighbours``.
            act: changes the node under the caller's feet; what it raises, the call raises.
        """
        self._before.append((call, act))

    def change(self, **fields: Any) -> None:
        """Have another state, which differs in some of its fields."""
        self.state = attrs.evolve(self.state, **fields)

    def look(self, bridge: str) -> NodeState:
        """All of it, but for neighbours that are on another interface."""
        self._come("look")
        return attrs.evolve(self.state, neighbours=tuple(one for one in self.state.neighbours if one.dev == bridge))

    def remove_rules(self, rules: Sequence[str]) -> None:
        """Remove rules, all or none."""
        self._come("remove_rules")
        left = list(self.state.rules)
        if Counter(rules) - Counter(left):
            raise AzureVnetError("can't delete rules: one isn't there; none went: run it again")
        for rule in rules:
            left.remove(rule)
        self.change(rules=tuple(left))

    def remove_neighbours(self, neighbours: Sequence[Neighbour]) -> None:
        """Remove neighbours that are there."""
        self._come("remove_neighbours")
        self.change(neighbours=tuple(one for one in self.state.neighbours if one not in neighbours))

    def _come(self, call: str) -> None:
        self.calls.append(call)
        for number, (name, act) in enumerate(self._before):
            if name == call:
                del self._before[number]
                act()
                return
