"""In-memory nodes for the Azure tasks: one with IPv6 and nft, and one with a bridge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ipaddress import IPv6Address
from typing import Any
from unittest import mock

import attrs

from hostrouting.azure import AzureVnetError, LoadBalancerProbeError, Neighbour, NodeState
from hostrouting.azure.probe import tasks as probe_tasks
from hostrouting.azure.probe.node import LinuxProbeNode
from hostrouting.azure.probe.ruleset import TABLE
from hostrouting.azure.vnet import tasks as vnet_tasks
from hostrouting.azure.vnet.linux import LinuxBridgeNode
from phases import CancelScope


@attrs.define(slots=False)
class FakeProbeNode:
    """A ``ProbeNode`` that lists the text last loaded into nft, without its leading ``delete
    table``.
    """

    assigned: Sequence[IPv6Address] = ()
    tables: dict[str, str] = attrs.field(factory=dict)
    host_route: str | None = None
    problem: str | None = None

    def assigned_addresses(self, scope: CancelScope) -> tuple[IPv6Address, ...]:
        self._work()
        return tuple(self.assigned)

    def listing(self) -> str | None:
        self._work()
        return self.tables.get(TABLE)

    def load(self, text: str) -> None:
        self._work()
        self.tables.pop(TABLE, None)
        if listing := text.partition(f"delete table ip6 {TABLE}\n")[2]:
            self.tables[TABLE] = listing

    def route(self) -> str | None:
        return self.host_route

    def add_host_route(self, route: str) -> None:
        self.host_route = route

    def delete_host_route(self) -> None:
        self.host_route = None

    def _work(self) -> None:
        if self.problem is not None:
            raise LoadBalancerProbeError(self.problem)


@attrs.define(slots=False)
class FakeBridgeNode:
    """A ``BridgeNode`` with one bridge that records its calls."""

    state: NodeState = attrs.field(factory=NodeState)
    calls: list[str] = attrs.field(factory=list)

    def read_state(self, bridge: str) -> NodeState:
        self.calls.append("look")
        return attrs.evolve(
            self.state, neighbours=tuple(one for one in self.state.neighbours if one.dev == bridge)
        )

    def remove_rules(self, rules: Sequence[str]) -> None:
        self.calls.append("remove_rules")
        left = list(self.state.rules)
        if Counter(rules) - Counter(left):
            raise AzureVnetError("can't delete a rule that doesn't exist")
        for rule in rules:
            left.remove(rule)
        self.state = attrs.evolve(self.state, rules=tuple(left))

    def remove_neighbours(self, neighbours: Sequence[Neighbour]) -> None:
        self.calls.append("remove_neighbours")
        left = tuple(one for one in self.state.neighbours if one not in neighbours)
        self.state = attrs.evolve(self.state, neighbours=left)


@contextmanager
def on_fakes(probe: FakeProbeNode, bridge: FakeBridgeNode) -> Iterator[None]:
    """Make the commands and the doctor use these nodes by default."""
    fakes: dict[Any, Any] = {LinuxProbeNode: probe, LinuxBridgeNode: bridge}
    with ExitStack() as patches:
        for module in (probe_tasks, vnet_tasks):
            fake = mock.patch.object(
                module, "node_or_default", lambda _, given, real: given or fakes[real]
            )
            patches.enter_context(fake)
        yield
