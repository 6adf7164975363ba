"""What azure-vnet leaves breaks a new pod, and its removal mends that: real packets, ebtables and bridge."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from azure_world import (
    LIVE,
    NEW,
    STALE_MAC,
    AzureWorld,
    Leftover,
    arpreply_rule,
    deleting,
    dnat_rule,
    ip,
    restore,
    skip_without_tools,
    sniffing,
)

from hostrouting import Layout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hostrouting.backends.namespace import NamespaceKernel

pytestmark = pytest.mark.kernel


@pytest.fixture
def world(kernel: NamespaceKernel, tmp_path: Path) -> Iterator[AzureWorld]:
    skip_without_tools()
    built = AzureWorld(kernel, Layout(tmp_path))
    yield built
    built.close()


def clean(world: AzureWorld) -> None:
    for rule in (dnat_rule(NEW, STALE_MAC), arpreply_rule(NEW, STALE_MAC)):
        if rule in world.rules():
            restore(deleting(rule))
    if any(STALE_MAC in line for line in world.neighbours()):
        ip(f"neighbour del {NEW} dev azure0")
    if any(line.startswith(f"{NEW} dev azure0") for line in world.routes()):
        ip(f"route del {NEW} dev azure0")


def test_the_world_serves_everybody(world: AzureWorld) -> None:
    world.add_new_pod()
    for source in (world.fabric, world.live, world.host):
        assert world.answer(source, NEW) == "new pod"
    for source in (world.fabric, world.host):
        assert world.answer(source, LIVE) == "pod .33"


def test_a_stale_dnat_rule_hides_the_new_pod_from_the_fabric_until_it_is_removed(world: AzureWorld) -> None:
    world.add_new_pod()
    world.leave(Leftover.DNAT)
    with sniffing(world.live) as sees:
        assert world.loses(world.fabric, NEW)
        assert sees(STALE_MAC)  # flooded to every port of the bridge
    assert world.answer(world.host, NEW) == "new pod"  # so a look from the host proves nothing
    clean(world)
    assert world.answer(world.fabric, NEW) == "new pod"


def test_a_stale_arpreply_rule_hides_the_new_pod_from_azure_pods_until_it_is_removed(world: AzureWorld) -> None:
    world.add_new_pod()
    world.leave(Leftover.ARPREPLY)
    with sniffing(world.fabric) as sees:
        assert world.loses(world.live, NEW)
        assert sees(STALE_MAC)
    assert world.answer(world.fabric, NEW) == "new pod"
    clean(world)
    world.forget(world.live)
    assert world.answer(world.live, NEW) == "new pod"


def test_a_permanent_neighbour_hides_an_address_that_moved_to_another_node_until_it_is_removed(
    world: AzureWorld,
) -> None:
    world.move_to_another_node()
    world.leave(Leftover.NEIGHBOUR)
    with sniffing(world.fabric) as sees:
        assert world.loses(world.host, NEW)
        assert sees(STALE_MAC)
    clean(world)
    assert world.answer(world.host, NEW) == "another node"


@pytest.mark.parametrize("asker", ["host", "fabric"])
def test_a_dangling_route_beats_that_to_the_new_pod_until_it_is_removed(world: AzureWorld, asker: str) -> None:
    source = {"host": world.host, "fabric": world.fabric}[asker]
    world.add_new_pod(metric=50)
    assert world.answer(source, NEW) == "new pod"
    world.leave(Leftover.ROUTE)
    assert world.loses(source, NEW)
    clean(world)
    assert world.answer(source, NEW) == "new pod"
