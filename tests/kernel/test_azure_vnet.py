"""Test that azure-vnet's leftovers break a new pod and that removing them fixes it."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import pytest
from azure_world import (
    CIDRS,
    GATEWAY,
    HALF,
    LIVE,
    NEW,
    NIC,
    STALE_MAC,
    AzureWorld,
    deleting,
    ip,
    mac_of,
    restore,
)
from datagrams import Customers, answer, loses
from programs import tool
from stale import arp_reply, dnat

import phases
from hostrouting import Host, Layout
from hostrouting.azure.config import HostNetworking, StaleAzureVnet
from hostrouting.azure.nodes import AzureVnetError
from hostrouting.azure.vnet.linux import LinuxBridgeNode
from hostrouting.azure.vnet.plan import AzureVnetReport
from hostrouting.azure.vnet.port import BridgeNode, Neighbour
from hostrouting.azure.vnet.tasks import LOCK_FILE, STATE_FILE, RemoveStaleAzureVnet
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.testing import FakeSystemd

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("ebtables")]

DNAT, ARPREPLY = dnat(NEW, STALE_MAC), arp_reply(NEW, STALE_MAC)


@pytest.fixture
def world(kernel: NamespaceKernel, tmp_path: Path) -> Iterator[AzureWorld]:
    built = AzureWorld(kernel, Layout(tmp_path))
    try:
        yield built
    finally:
        built.close()


def clean(world: AzureWorld, node: BridgeNode | None = None) -> AzureVnetReport:
    host = Host(world.kernel, FakeSystemd(world.layout), world.layout)
    config = HostNetworking(stale_azure_vnet=StaleAzureVnet(CIDRS))
    return phases.run(RemoveStaleAzureVnet(config, host=host, node=node or LinuxBridgeNode()))


# --- each leftover on its own --------------------------------------------------------------------------------------


def test_a_live_pod_with_a_changed_mac_is_kept(world: AzureWorld) -> None:
    """KubeVirt's bridge binding moves the MAC to the VM inside the pod and gives the pod's end a different one."""
    world.layout.of(STATE_FILE).unlink()
    world.live.run(
        lambda: ip(
            f"address delete {LIVE}/24 dev eth0",
            "link set eth0 down",
            "link set eth0 address a2:00:00:00:99:99 up",
            "link add k6t type bridge mcast_snooping 0",
            "link set eth0 master k6t",
            f"link set k6t address {mac_of(33)} up",
            f"address add {LIVE}/24 dev k6t",
            f"route add default via {GATEWAY} dev k6t",
        )
    )
    world.leave(is_listed=False)
    assert answer(world.live, GATEWAY) == "fabric"
    before = world.rules(), world.neighbours()
    clean(world)
    assert {DNAT, ARPREPLY} == set(before[0]) - set(world.rules())
    assert len(before[1]) - len(world.neighbours()) == 1
    for source in (world.fabric, world.host):
        assert answer(source, LIVE) == "pod .33"


# --- all leftovers together: what is removed, and what stays -------------------------------------------------------


def test_a_live_pod_is_served_throughout(world: AzureWorld) -> None:
    world.add_new_pod()
    rules, neighbours, routes = world.rules(), world.neighbours(), world.routes()
    counted = world.packets()
    world.leave(*((f"10.224.0.{number}", mac_of(number)) for number in (32, *range(40, 60))))
    assert loses(world.fabric, NEW)
    assert answer(world.host, NEW) == "new pod"  # so a probe from the host proves nothing
    kept = (world.fabric, LIVE, "pod .33"), (world.host, LIVE, "pod .33"), (world.live, GATEWAY, "fabric")
    batches: list[bool] = []
    with Customers(*kept) as customers:
        clean(world, Watched(lambda: batches.append(is_free(world.layout.of(LOCK_FILE)))))
        customers.await_more()
    assert customers.lost == []
    assert batches == [False]  # all in one transaction, under azure-vnet's lock
    assert (world.rules(), world.neighbours(), world.routes()) == (rules, neighbours, routes)
    assert all(packets >= counted[rule] for rule, packets in world.packets().items())
    assert world.packets()[dnat(LIVE, mac_of(33))] > counted[dnat(LIVE, mac_of(33))]
    for source in (world.fabric, world.live, world.host):
        assert answer(source, NEW) == "new pod"


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("meta mark set numgen inc mod 3", "printed no table nat"),
        ("meta cpu 0 ip daddr 10.224.0.32 accept", "unknown meta key"),
    ],
)
@pytest.mark.usefixtures("nft")
def test_rules_that_ebtables_cannot_print_are_an_error(world: AzureWorld, rule: str, reason: str) -> None:
    world.leave()
    tool("nft", f"insert rule bridge nat PREROUTING {rule}")
    before = listed_by_nft(), world.neighbours(), world.routes()
    with pytest.raises(AzureVnetError, match=f"can't read ebtables' rules: .*{reason}"):
        clean(world)
    assert (listed_by_nft(), world.neighbours(), world.routes()) == before


def listed_by_nft() -> str:
    """Return the rules without their counters, which change with every packet."""
    return tool("nft", "-s", "list", "table", "bridge", "nat")


def test_rules_are_removed_without_the_bridge_too(world: AzureWorld) -> None:
    ip("link del azure0")
    rules = world.rules()
    restore(DNAT, ARPREPLY)
    clean(world)
    assert world.rules() == rules


# --- a node that other programs change too -------------------------------------------------------------------------


class Watched(LinuxBridgeNode):
    """The real node, with a hook that runs immediately before rules are removed."""

    def __init__(self, before: Callable[[], object]) -> None:
        super().__init__()
        self._before = before

    def remove_rules(self, rules: Sequence[str]) -> None:
        self._before()
        super().remove_rules(rules)


def test_a_rule_that_changed_meanwhile_is_an_error(world: AzureWorld) -> None:
    rules = world.rules()
    world.leave()

    def change() -> None:
        restore(deleting(DNAT), dnat(NEW, mac_of(98)))

    with pytest.raises(
        AzureVnetError,
        match="can't delete 2 rules .*no rule was deleted, but 1 neighbours before that; run it again",
    ):
        clean(world, Watched(change))
    assert ARPREPLY in world.rules()
    clean(world)
    assert world.rules() == rules


def is_free(lock: Path) -> bool:
    with lock.open() as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


# --- observations of the node, and failures --------------------------------------------------------------------------


def test_only_permanent_neighbours_are_listed(world: AzureWorld) -> None:
    before = set(LinuxBridgeNode().look("azure0").neighbours)
    ip(
        "neighbour add 10.224.0.50 dev azure0 lladdr a2:00:00:00:00:50 nud permanent router",
        "neighbour add 10.224.0.51 dev azure0 nud failed",
        "neighbour add 10.224.0.52 dev azure0 lladdr a2:00:00:00:00:52 nud stale",
        "neighbour add 10.224.0.53 dev azv33 lladdr a2:00:00:00:00:53 nud permanent",
        "neighbour add fd00::53 dev azure0 lladdr a2:00:00:00:00:53 nud permanent",
        f"neighbour add 10.224.0.60 lladdr {mac_of(60)} dev azure0 nud permanent extern_learn",
        "neighbour add 10.224.0.61 dev azure0 managed extern_learn",
    )
    assert set(LinuxBridgeNode().look("azure0").neighbours) - before == {
        Neighbour("azure0", IPv4Address("10.224.0.50"), "a2:00:00:00:00:50"),
        Neighbour("azure0", IPv6Address("fd00::53"), "a2:00:00:00:00:53"),
    }


def test_peers_are_found_in_any_namespace(world: AzureWorld) -> None:
    world.start_azure_pod(HALF)
    assert answer(world.live, GATEWAY) == "fabric"
    found = {one.name: one for one in LinuxBridgeNode().look("azure0").interfaces}
    assert found["azv33"].far_mac == mac_of(33)
    assert mac_of(33) in found["azv33"].seen_macs
    assert (found["azv34"].far_mac, found["azv342"].mac) == (mac_of(34), mac_of(34))
    assert (found["azv33"].master, found["eth0"].master, found["azure0"].master) == ("azure0", "azure0", None)
    assert (found["azure0"].mac, found["azure0"].far_mac) == (NIC, None)


def node_with(folder: Path, **programs: str) -> LinuxBridgeNode:
    """Return a node whose PATH contains only these shell scripts, ip(8) and bridge(8)."""
    for name in ("ip", "bridge"):
        programs[name] = real(name)
    for name, text in programs.items():
        program = folder / name.replace("_", "-")
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    return LinuxBridgeNode(search_path=str(folder))


def real(program: str, user: str = "") -> str:
    return f'PATH={os.environ["PATH"]} exec {user} {program} "$@"'


def test_without_privileges_no_rule_is_touched(world: AzureWorld, tmp_path: Path) -> None:
    unprivileged = "setpriv --reuid 65534 --clear-groups --"
    if subprocess.run([*unprivileged.split(), "true"], check=False).returncode:
        pytest.skip("root of a user namespace with one user can't become another")
    programs = {
        name.replace("-", "_"): real(name, unprivileged) for name in ("ebtables-nft-save", "ebtables-nft-restore")
    }
    node = node_with(tmp_path, **programs)
    with pytest.raises(AzureVnetError, match="can't read ebtables' rules: .*; run as root") as caught:
        node.look("azure1")  # even if there is no such bridge
    assert caught.value.is_not_permitted
    with pytest.raises(AzureVnetError, match="can't delete 1 rules .*; run as root"):
        node.remove_rules([DNAT])


def test_no_ebtables_is_an_error_if_there_is_a_bridge(world: AzureWorld, tmp_path: Path) -> None:
    restore(DNAT)
    before, node = world.rules(), node_with(tmp_path)
    missing = "ebtables-nft-save isn't installed; install the package that has it"
    with pytest.raises(AzureVnetError, match=missing):
        node.look("azure0")
    with pytest.raises(AzureVnetError, match="rules of ebtables-legacy aren't read; list them with"):
        node.look("azure0")
    state = node.look("azure1")
    assert (state.rules, state.neighbours) == ((), ())
    assert "there is no bridge azure1" in state.notes[0]
    assert f"rules weren't read: can't read ebtables' rules: {missing}" in state.notes[1]
    half = node_with(tmp_path, ebtables_nft_save=real("ebtables-nft-save"))
    with pytest.raises(AzureVnetError, match="ebtables-nft-restore isn't installed"):
        clean(world, half)
    assert world.rules() == before


def test_the_legacy_table_is_named(world: AzureWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module/ebtable_nat").mkdir(parents=True)
    plain = LinuxBridgeNode().look("azure0")
    monkeypatch.setenv("EBTABLES_SAVE_COUNTER", "yes")  # the rules are still read without counters
    state = LinuxBridgeNode(sys=tmp_path).look("azure0")
    assert (state.rules, plain.notes) == (plain.rules, ())
    assert "rules of ebtables-legacy aren't read; list them with `ebtables-legacy -t nat -L" in state.notes[0]
