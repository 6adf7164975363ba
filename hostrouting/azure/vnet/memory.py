"""A bridge in memory: the one that tests drive.

::

    node = FakeBridgeNode(NodeState(rules=(line,), interfaces=(Interface(2, "azure0"),)))
    node.before("remove_rules", lambda: node.change(rules=()))       # somebody else was faster
    assert not node.remove_rules([line])
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import attrs

from hostrouting.azure.vnet.model import NodeState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostrouting.azure.vnet.model import HostRoute, Neighbour

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
            call: ``look``, ``remove_rules``, ``remove_neighbours`` or ``remove_routes``.
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

    def remove_rules(self, rules: Sequence[str]) -> bool:
        """Remove rules, all or none."""
        self._come("remove_rules")
        if Counter(rules) - Counter(self.state.rules):
            return False
        left = Counter(rules)
        kept = []
        for rule in self.state.rules:
            if left[rule]:
                left[rule] -= 1
            else:
                kept.append(rule)
        self.change(rules=tuple(kept))
        return True

    def remove_neighbours(self, neighbours: Sequence[Neighbour]) -> tuple[Neighbour, ...]:
        """Remove neighbours; give those that weren't there."""
        self._come("remove_neighbours")
        before = self.state.neighbours
        self.change(neighbours=tuple(one for one in before if one not in neighbours))
        return tuple(one for one in neighbours if one not in before)

    def remove_routes(self, routes: Sequence[HostRoute]) -> tuple[HostRoute, ...]:
        """Remove routes; give those that weren't there."""
        self._come("remove_routes")
        before = self.state.routes
        self.change(routes=tuple(one for one in before if one not in routes))
        return tuple(one for one in routes if one not in before)

    def _come(self, call: str) -> None:
        self.calls.append(call)
        for number, (name, act) in enumerate(self._before):
            if name == call:
                del self._before[number]
                act()
                return
