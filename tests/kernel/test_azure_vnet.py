"""What azure-vnet leaves breaks a new pod, and its removal mends that: real packets, ebtables and bridge."""

from __future__ import annotations

import fcntl
import os
import subprocess
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from azure_world import (
    CIDRS,
    GATEWAY,
    HALF,
    LIVE,
    NEW,
    NIC,
    NODE,
    STALE_MAC,
    AzureWorld,
    Leftover,
    deleting,
    ip,
    mac_of,
    neighbour_of,
    restore,
)
from datagrams import Customers, answer, loses, sniffing
from programs import attempt, tool
from stale import TUNNEL_MAC, arp_reply, dnat

import phases
from hostrouting import Host, Layout
from hostrouting.azure.config import HostNetworking, StaleAzureVnet
from hostrouting.azure.nodes import AzureVnetError
from hostrouting.azure.vnet.linux import LinuxBridgeNode
from hostrouting.azure.vnet.port import Neighbour
from hostrouting.azure.vnet.tasks import LOCK_FILE, STATE_FILE, RemoveStaleAzureVnet, plan_stale
from hostrouting.model.errors import FileError
from hostrouting.testing import FakeSystemd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from hostrouting.azure.vnet.plan import AzureVnetReport
    from hostrouting.azure.vnet.port import BridgeNode
    from hostrouting.kernel.namespace import NamespaceKernel
    from phases import Observer

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("ebtables")]

EACH = tuple(Leftover)
DNAT, ARPREPLY = dnat(NEW, STALE_MAC), arp_reply(NEW, STALE_MAC)


@pytest.fixture
def world(kernel: NamespaceKernel, tmp_path: Path) -> Iterator[AzureWorld]:
    built = AzureWorld(kernel, Layout(tmp_path))
    try:
        yield built
    finally:
        built.close()


def config_of(**stale: Any) -> HostNetworking:
    return HostNetworking(stale_azure_vnet=StaleAzureVnet(**{"cidrs": CIDRS, **stale}))


def host_of(world: AzureWorld) -> Host:
    units = FakeSystemd(world.layout)
    return Host(routes=world.kernel, units=units, layout=world.layout)


def clean(
    world: AzureWorld, *, node: BridgeNode | None = None, observer: Observer | None = None, **stale: Any
) -> AzureVnetReport:
    task = RemoveStaleAzureVnet(config_of(**stale), host=host_of(world), node=node or LinuxBridgeNode())
    return phases.run(task, observer=observer)


def changes_nothing(world: AzureWorld, **stale: Any) -> bool:
    before = world.everything()
    clean(world, **stale)
    return world.everything() == before


def refusal(world: AzureWorld, **options: Any) -> str:
    """The error of a clean-up that must not have changed anything."""
    before = world.everything()
    with pytest.raises((AzureVnetError, FileError)) as refused:
        clean(world, **options)
    assert world.everything() == before
    return str(refused.value)


# --- each leftover, alone ------------------------------------------------------------------------------------------


def test_without_leftovers_everybody_is_served_and_nothing_is_removed(world: AzureWorld) -> None:
    world.add_new_pod()
    assert changes_nothing(world)
    for source in (world.fabric, world.live, world.host):
        assert answer(source, NEW) == "new pod"
    for source in (world.fabric, world.host):
        assert answer(source, LIVE) == "pod .33"
    assert answer(world.live, GATEWAY) == "fabric"


def test_a_stale_dnat_rule_hides_the_new_pod_from_the_fabric_until_it_is_removed(world: AzureWorld) -> None:
    world.add_new_pod()
    world.leave(Leftover.DNAT)
    with sniffing(world.live) as sees:
        assert loses(world.fabric, NEW)
        assert sees(STALE_MAC)  # flooded to every port of the bridge
    assert answer(world.host, NEW) == "new pod"  # so a look from the host proves nothing
    clean(world)
    assert answer(world.fabric, NEW) == "new pod"


def test_a_stale_arpreply_rule_hides_the_new_pod_from_azure_pods_until_it_is_removed(world: AzureWorld) -> None:
    world.add_new_pod()
    world.leave(Leftover.ARPREPLY)
    with sniffing(world.fabric) as sees:
        assert loses(world.live, NEW)
        assert sees(STALE_MAC)
    assert answer(world.fabric, NEW) == "new pod"
    clean(world)
    world.forget(world.live)
    assert answer(world.live, NEW) == "new pod"


def test_a_permanent_neighbour_hides_an_address_that_moved_to_another_node_until_it_is_removed(
    world: AzureWorld,
) -> None:
    world.move_to_another_node()
    world.leave(Leftover.NEIGHBOUR)
    with sniffing(world.fabric) as sees:
        assert loses(world.host, NEW)
        assert sees(STALE_MAC)
    clean(world)
    assert answer(world.host, NEW) == "another node"


def test_n3_host_routes_by_the_bridge_are_none_of_azure_vnets_and_stay(world: AzureWorld) -> None:
    for number, protocol in enumerate(("dhcp", "static", "bird", "boot", "217"), start=45):
        ip(f"route add 10.224.0.{number}/32 dev azure0 proto {protocol}")
    ip("route add 10.224.0.60/32 dev azv33")
    tool("ip", "-6", "route", "add", "fd00::45/128", "dev", "azure0")
    world.leave(*EACH)
    routes, ipv6 = world.routes(), tool("ip", "-6", "route")
    clean(world)
    assert (world.routes(), tool("ip", "-6", "route")) == (routes, ipv6)
    assert changes_nothing(world)


def test_n4_what_is_left_at_an_address_that_the_host_has_now_goes_and_the_host_is_reached(world: AzureWorld) -> None:
    ip(f"address add {NEW}/32 dev azure0")
    world.host.run(lambda: world.echo.listen("node", NEW))
    world.leave(Leftover.DNAT, Leftover.ARPREPLY)
    rules = world.rules()
    assert loses(world.fabric, NEW)
    assert loses(world.live, NEW)
    clean(world)
    assert [rule for rule in rules if rule not in world.rules()] == [DNAT, ARPREPLY]
    assert arp_reply(NODE, NIC) in world.rules()
    world.forget(world.live)
    for source in (world.fabric, world.live):
        assert answer(source, NEW) == "node"


def test_n5_a_live_pod_that_has_changed_its_mac_keeps_its_rules_without_a_state_file(world: AzureWorld) -> None:
    """As KubeVirt's bridge binding does it: the machine in the pod has the MAC, and the pod's end another one."""
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
    world.leave(*EACH, is_listed=False)
    assert answer(world.live, GATEWAY) == "fabric"
    before = world.rules(), world.neighbours()
    clean(world)
    assert {DNAT, ARPREPLY} == set(before[0]) - set(world.rules())
    assert len(before[1]) - len(world.neighbours()) == 1
    for source in (world.fabric, world.host):
        assert answer(source, LIVE) == "pod .33"


def test_n6_a_permanent_neighbour_whose_rules_were_flushed_goes_and_its_address_is_reached_elsewhere(
    world: AzureWorld,
) -> None:
    world.move_to_another_node()
    world.leave(Leftover.NEIGHBOUR, is_listed=False)
    world.leave(Leftover.NEIGHBOUR, address="10.224.0.250", mac="a2:00:00:00:02:50", is_listed=False)
    assert changes_nothing(world)  # as long as azure-vnet's rules are there, they tell what is its own
    tool("ebtables-nft", "-t", "nat", "-F")
    assert loses(world.host, NEW)
    clean(world)
    assert answer(world.host, NEW) == "another node"
    assert answer(world.host, LIVE) == "pod .33"
    assert f"{LIVE} dev azure0 lladdr {mac_of(33)} PERMANENT" in world.neighbours()
    assert TUNNEL_MAC in neighbour_of("169.254.1.7")


def test_n6_a_pipe_as_state_file_hangs_nothing(world: AzureWorld) -> None:
    world.layout.of(STATE_FILE).unlink()
    os.mkfifo(world.layout.of(STATE_FILE))
    with pytest.raises(FileError, match="is not a regular file"):
        plan_stale(config_of(), host_of(world), node=LinuxBridgeNode())


# --- all of them: what goes, what stays ----------------------------------------------------------------------------


def test_the_live_pod_is_served_throughout_and_every_other_rule_stays_as_it_was(world: AzureWorld) -> None:
    world.add_new_pod()
    rules, neighbours, routes = world.rules(), world.neighbours(), world.routes()
    counted = world.packets()
    for number in (32, *range(40, 60)):
        world.leave(*EACH, address=f"10.224.0.{number}", mac=mac_of(number))
    kept = (world.fabric, LIVE, "pod .33"), (world.host, LIVE, "pod .33"), (world.live, GATEWAY, "fabric")
    batches: list[int] = []
    with Customers(*kept) as customers:
        clean(world, node=Watched(before=lambda: batches.append(1)))
        customers.await_more()
    assert customers.lost == []
    assert batches == [1]  # one transaction
    assert (world.rules(), world.neighbours(), world.routes()) == (rules, neighbours, routes)
    assert all(packets >= counted[rule] for rule, packets in world.packets().items())
    assert world.packets()[dnat(LIVE, mac_of(33))] > counted[dnat(LIVE, mac_of(33))]
    for source in (world.fabric, world.live, world.host):
        assert answer(source, NEW) == "new pod"


def test_a_dry_run_tells_what_a_run_then_removes_and_changes_nothing(world: AzureWorld) -> None:
    world.leave(*EACH)
    before = world.everything()
    plan = plan_stale(config_of(), host_of(world), node=LinuxBridgeNode())
    assert world.everything() == before
    assert len(plan.removed) == len(EACH)
    assert set(clean(world).removed) == set(plan.removed)
    assert {DNAT, ARPREPLY} == {item.what for item in plan.removed if item.kind == "rule"}
    assert all(item.reason for item in (*plan.removed, *plan.kept))


def test_without_a_state_file_the_macs_decide(world: AzureWorld) -> None:
    rules, neighbours = world.rules(), world.neighbours()
    world.leave(*EACH)
    world.layout.of(STATE_FILE).unlink()
    clean(world)
    assert (world.rules(), world.neighbours()) == (rules, neighbours)


def test_of_two_pods_with_one_address_the_rules_of_the_gone_one_go(world: AzureWorld) -> None:
    rules = world.rules()
    restore(*(rule.replace("-A", "-I", 1) for rule in (dnat(LIVE, STALE_MAC), arp_reply(LIVE, STALE_MAC))))
    assert loses(world.fabric, LIVE)
    clean(world)
    assert world.rules() == rules
    assert answer(world.fabric, LIVE) == "pod .33"


def test_in_tunnel_mode_a_live_pods_answer_stays_and_a_gone_ones_goes(world: AzureWorld) -> None:
    restore(arp_reply(LIVE, TUNNEL_MAC))
    rules = world.rules()
    world.leave(Leftover.DNAT)
    restore(arp_reply(NEW, TUNNEL_MAC))
    clean(world)
    assert world.rules() == rules


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        pytest.param("meta mark set numgen inc mod 3", "ebtables doesn't understand", id="a mark: no rule is printed"),
        pytest.param(
            "ip saddr 192.0.2.1 limit rate 5/second log", "ebtables doesn't understand", id="a log: no rule is printed"
        ),
        pytest.param(
            "meta cpu 0 ip daddr 10.224.0.32 accept", "unknown meta key", id="a processor: that rule is left out"
        ),
    ],
)
@pytest.mark.usefixtures("nft")
def test_rules_that_ebtables_cannot_print_are_an_error_and_nothing_is_removed(
    world: AzureWorld, rule: str, reason: str
) -> None:
    world.leave(*EACH)
    tool("nft", f"insert rule bridge nat PREROUTING {rule}")
    before = listed_by_nft(), world.neighbours(), world.routes()
    with pytest.raises(AzureVnetError, match=f"can't read ebtables' rules: .*{reason}"):
        clean(world)
    assert (listed_by_nft(), world.neighbours(), world.routes()) == before


def listed_by_nft() -> str:
    """The rules without counters, which any packet changes."""
    return tool("nft", "-s", "list", "table", "bridge", "nat")


def test_what_has_the_nodes_own_mac_or_its_gateways_address_stays(world: AzureWorld) -> None:
    restore(
        arp_reply("10.224.0.7", NIC),
        dnat("10.224.0.7", NIC),
        dnat(GATEWAY, STALE_MAC),
    )
    assert changes_nothing(world)


def test_learned_and_managed_neighbours_stay(world: AzureWorld) -> None:
    ip(
        f"neighbour add 10.224.0.60 lladdr {mac_of(60)} dev azure0 extern_learn",
        "neighbour add 10.224.0.61 dev azure0 managed extern_learn",
    )
    for number in (60, 61):
        world.leave(address=f"10.224.0.{number}", mac=mac_of(number))
    clean(world)
    assert "extern_learn" in neighbour_of("10.224.0.60")
    assert "managed" in neighbour_of("10.224.0.61")


def test_what_is_left_goes_without_the_bridge_too(world: AzureWorld) -> None:
    ip("link del azure0")
    rules = world.rules()
    restore(DNAT, ARPREPLY)
    clean(world)
    assert world.rules() == rules


def test_what_is_to_be_kept_or_outside_of_the_cidrs_stays(world: AzureWorld) -> None:
    world.leave(*EACH)
    assert changes_nothing(world, keep=[NEW])
    assert changes_nothing(world, cidrs=["10.224.0.40/29"])


def test_duplicates_go_all_of_them(world: AzureWorld) -> None:
    rules = world.rules()
    restore(DNAT, DNAT, DNAT)
    assert len(clean(world).removed) == 3
    assert world.rules() == rules


def test_ipv6_goes_too(world: AzureWorld) -> None:
    rules = world.rules()
    world.leave(*EACH, address="fd00::32")
    assert len(clean(world).removed) == 2
    assert world.rules() == rules


def test_a_pod_that_ends_leaves_what_the_next_run_removes(world: AzureWorld) -> None:
    assert clean(world).removed == ()
    ip("link delete azv33")
    assert len(clean(world).removed) == 3


# --- a node that others change too ---------------------------------------------------------------------------------


def _nothing() -> None:
    pass


class Watched(LinuxBridgeNode):
    """The real node, and somebody who acts at certain moments.

    Args:
        before: called before rules are removed.
        after: called after that.
    """

    def __init__(
        self,
        *,
        before: Callable[[], None] = _nothing,
        after: Callable[[], None] = _nothing,
    ) -> None:
        super().__init__()
        self._before, self._after = before, after

    def remove_rules(self, rules: Sequence[str]) -> None:
        self._before()
        super().remove_rules(rules)
        self._after()


def test_a_late_cni_del_fails_as_azure_vnet_expects_and_changes_nothing(world: AzureWorld) -> None:
    world.add_new_pod()
    world.leave(*EACH)
    clean(world)
    after = world.everything()
    for rule in (DNAT, ARPREPLY):
        assert attempt("ebtables-nft", "-t", "nat", *deleting(rule).split()).returncode == 1
    assert world.everything() == after
    assert answer(world.fabric, NEW) == "new pod"
    assert answer(world.fabric, LIVE) == "pod .33"


@pytest.mark.parametrize("is_moved", [True, False], ids=["pod end in the pod", "pod end still here"])
def test_what_a_half_done_add_has_made_stays(world: AzureWorld, is_moved: bool) -> None:
    if is_moved:
        world.add_azure_pod(HALF, is_saved=False)
    else:
        world.start_azure_pod(HALF)
    assert changes_nothing(world)
    if is_moved:
        assert answer(world.fabric, HALF) == "pod .34"


def test_a_rule_that_changed_since_the_plan_is_an_error_none_goes_and_the_next_run_goes_on(world: AzureWorld) -> None:
    rules = world.rules()
    world.leave(*EACH)

    def change() -> None:
        restore(deleting(DNAT), dnat(NEW, mac_of(98)))

    with pytest.raises(AzureVnetError, match="can't delete 2 rules .*run it again"):
        clean(world, node=Watched(before=change))
    assert ARPREPLY in world.rules()
    clean(world)
    assert world.rules() == rules


@pytest.mark.parametrize("content", ["{", "[]", '{"Network": 7}'])
def test_a_state_that_makes_no_sense_is_an_error_and_nothing_is_removed(world: AzureWorld, content: str) -> None:
    world.leave(*EACH)
    world.layout.of(STATE_FILE).write_text(content)
    assert "azure-vnet.json" in refusal(world)


# --- azure-vnet's own lock -----------------------------------------------------------------------------------------


@contextmanager
def held_by_another_process(path: Path) -> Iterator[Callable[[], None]]:
    """Holds a lock as azure-vnet does, until what it yields is called."""
    path.parent.mkdir(parents=True, exist_ok=True)
    argv = ["flock", str(path), "sh", "-c", "echo held; exec cat"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder.stdin.close


@attrs.define
class Releasing:
    """An observer that releases a lock as soon as it hears that somebody waits.

    Args:
        release: what does that.
    """

    release: Callable[[], None]
    heard: list[str] = attrs.field(factory=list)

    def started(self, path: str) -> None:
        pass

    def progress(self, path: str, message: str, fraction: float | None) -> None:
        self.heard.append(message)
        self.release()

    def finished(self, path: str, status: object, error: BaseException | None, seconds: float) -> None:
        pass


def test_a_held_lock_is_an_error_and_nothing_is_removed(world: AzureWorld) -> None:
    world.leave(*EACH)
    with held_by_another_process(world.layout.of(LOCK_FILE)):
        assert "azure-vnet.lock" in refusal(world, lock_wait_seconds=0)
        assert "azure-vnet.lock" in refusal(world, lock_wait_seconds=1)


def test_a_lock_that_is_released_in_time_is_waited_for(world: AzureWorld) -> None:
    rules = world.rules()
    world.leave(*EACH)
    with held_by_another_process(world.layout.of(LOCK_FILE)) as release:
        observer = Releasing(release)
        clean(world, observer=observer, lock_wait_seconds=60)
    assert "azure-vnet.lock" in observer.heard[0]
    assert world.rules() == rules


def test_azure_vnet_is_locked_out_while_rules_are_removed_and_not_afterwards(world: AzureWorld) -> None:
    world.leave(*EACH)
    seen: list[bool] = []

    def look() -> None:
        seen.append(is_free(world.layout.of(LOCK_FILE)))

    clean(world, node=Watched(before=look, after=look))
    assert set(seen) == {False}
    assert is_free(world.layout.of(LOCK_FILE))


def is_free(lock: Path) -> bool:
    with lock.open() as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


# --- what the node tells of itself, and what can't be done -----------------------------------------------------------


def test_permanent_neighbours_of_the_bridge_are_seen_and_no_others(world: AzureWorld) -> None:
    before = set(LinuxBridgeNode().look("azure0").neighbours)
    ip(
        "neighbour add 10.224.0.50 dev azure0 lladdr a2:00:00:00:00:50 nud permanent router",
        "neighbour add 10.224.0.51 dev azure0 nud failed",
        "neighbour add 10.224.0.52 dev azure0 lladdr a2:00:00:00:00:52 nud stale",
        "neighbour add 10.224.0.53 dev azv33 lladdr a2:00:00:00:00:53 nud permanent",
        "neighbour add fd00::53 dev azure0 lladdr a2:00:00:00:00:53 nud permanent",
    )
    assert set(LinuxBridgeNode().look("azure0").neighbours) - before == {
        Neighbour("azure0", IPv4Address("10.224.0.50"), "a2:00:00:00:00:50"),
        Neighbour("azure0", IPv6Address("fd00::53"), "a2:00:00:00:00:53"),
    }


def test_a_neighbour_that_is_gone_is_fine_and_so_is_one_whose_interface_is_gone(world: AzureWorld) -> None:
    gone = Neighbour("azure0", IPv4Address("10.224.0.99"), STALE_MAC)
    before = world.neighbours()
    LinuxBridgeNode().remove_neighbours([gone, attrs.evolve(gone, dev="azure9")])
    assert world.neighbours() == before


def test_interfaces_are_seen_with_their_far_ends_in_whichever_namespace(world: AzureWorld) -> None:
    world.start_azure_pod(HALF)
    assert answer(world.live, GATEWAY) == "fabric"
    found = {one.name: one for one in LinuxBridgeNode().look("azure0").interfaces}
    assert found["azv33"].far_mac == mac_of(33)
    assert mac_of(33) in found["azv33"].seen_macs
    assert (found["azv34"].far_mac, found["azv342"].mac) == (mac_of(34), mac_of(34))
    assert (found["azv33"].master, found["eth0"].master, found["azure0"].master) == ("azure0", "azure0", None)
    assert (found["azure0"].mac, found["azure0"].far_mac) == (NIC, None)


def node_with(folder: Path, **programs: str) -> LinuxBridgeNode:
    """A node that finds nothing but some shell scripts, ip(8) and bridge(8)."""
    for name in ("ip", "bridge"):
        programs[name] = real(name)
    for name, text in programs.items():
        program = folder / name.replace("_", "-")
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    return LinuxBridgeNode(search_path=str(folder))


def real(program: str, user: str = "") -> str:
    return f'PATH={os.environ["PATH"]} exec {user} {program} "$@"'


def test_without_leave_no_rule_is_read_or_removed_and_it_says_so(world: AzureWorld, tmp_path: Path) -> None:
    nobody = "setpriv --reuid 65534 --clear-groups --"
    if subprocess.run([*nobody.split(), "true"], check=False).returncode:
        pytest.skip("root of a user namespace with one user can't become another")
    restore(DNAT)
    before = world.rules()
    programs = {name.replace("-", "_"): real(name, nobody) for name in ("ebtables-nft-save", "ebtables-nft-restore")}
    node = node_with(tmp_path, **programs)
    for bridge in ("azure0", "azure1"):
        with pytest.raises(AzureVnetError, match="can't read ebtables' rules: .*; run as root") as caught:
            node.look(bridge)
        assert caught.value.is_not_permitted
    with pytest.raises(AzureVnetError, match="can't delete 1 rules .*; run as root") as caught:
        node.remove_rules([DNAT])
    assert caught.value.is_not_permitted
    assert world.rules() == before


def test_without_leave_no_neighbour_is_removed_and_it_says_so(
    world: AzureWorld, as_ordinary_user: Callable[[], AbstractContextManager[None]]
) -> None:
    before, node = world.neighbours(), LinuxBridgeNode()
    neighbours = node.look("azure0").neighbours
    with as_ordinary_user(), pytest.raises(AzureVnetError, match="run as root") as caught:
        node.remove_neighbours(neighbours)
    assert caught.value.is_not_permitted
    assert world.neighbours() == before


def test_no_ebtables_is_an_error_that_names_the_package_unless_there_is_no_bridge(
    world: AzureWorld, tmp_path: Path
) -> None:
    restore(DNAT)
    before, node = world.rules(), node_with(tmp_path)
    missing = "ebtables-nft-save isn't installed; install the package that has it"
    with pytest.raises(AzureVnetError, match=missing):
        node.look("azure0")
    state = node.look("azure1")
    assert (state.rules, state.neighbours) == ((), ())
    assert "there is no bridge azure1" in state.notes[0]
    assert f"rules weren't looked at: can't read ebtables' rules: {missing}" in state.notes[1]
    half = node_with(tmp_path, ebtables_nft_save=real("ebtables-nft-save"))
    with pytest.raises(AzureVnetError, match="ebtables-nft-restore isn't installed"):
        clean(world, node=half)
    assert world.rules() == before


def test_a_bridge_that_is_not_there_is_noted_as_its_name_may_be_wrong(world: AzureWorld) -> None:
    restore(DNAT)
    state = LinuxBridgeNode().look("azure1")
    assert DNAT in state.rules
    assert state.notes == ("there is no bridge azure1; if azure-vnet's has another name, give it as its `bridge`",)


def test_a_batch_that_fails_is_an_error_and_removes_none(world: AzureWorld, tmp_path: Path) -> None:
    restore(DNAT)
    before = world.rules()
    with pytest.raises(AzureVnetError, match="no rule was deleted"):
        LinuxBridgeNode().remove_rules([DNAT, ARPREPLY])
    broken = node_with(tmp_path, ebtables_nft_restore="echo no memory >&2; exit 4")
    with pytest.raises(AzureVnetError, match="ebtables-nft-restore refused: no memory"):
        broken.remove_rules([DNAT])
    assert world.rules() == before


def test_the_legacy_table_is_named_and_left_alone(world: AzureWorld, tmp_path: Path) -> None:
    (tmp_path / "module/ebtable_nat").mkdir(parents=True)
    state = LinuxBridgeNode(sys=tmp_path).look("azure0")
    assert "legacy ebtables, whose rules aren't looked at" in state.notes[0]
    assert state.rules
    assert LinuxBridgeNode().look("azure0").notes == ()


def test_rules_saved_with_counters_are_read_without(world: AzureWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    before = LinuxBridgeNode().look("azure0").rules
    monkeypatch.setenv("EBTABLES_SAVE_COUNTER", "yes")
    assert LinuxBridgeNode().look("azure0").rules == before
