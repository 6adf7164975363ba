"""What azure-vnet leaves breaks a new pod, and its removal mends that: real packets, ebtables and bridge."""

from __future__ import annotations

import fcntl
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from azure_world import (
    CIDR,
    GATEWAY,
    HALF,
    LIVE,
    NEW,
    NIC,
    STALE_MAC,
    TUNNEL_MAC,
    AzureWorld,
    Leftover,
    arpreply_rule,
    deleting,
    dnat_rule,
    ip,
    mac_of,
    neighbour_of,
    restore,
)
from datagrams import Customers, answer, loses, sniffing
from programs import attempt, tool

import phases
from hostrouting import Host, Layout
from hostrouting.azure.config import HostNetworking, StaleAzureVnet
from hostrouting.azure.errors import AzureVnetError
from hostrouting.azure.vnet import places
from hostrouting.azure.vnet.linux import LinuxBridgeNode
from hostrouting.azure.vnet.tasks import RemoveStaleAzureVnet, plan_stale
from hostrouting.testing import FakeSystemd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from hostrouting.azure.vnet.model import NodeState
    from hostrouting.azure.vnet.plan import AzureVnetReport
    from hostrouting.azure.vnet.port import BridgeNode
    from hostrouting.kernel.namespace import NamespaceKernel
    from phases import Observer

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("ebtables")]

EACH = tuple(Leftover)
DNAT, ARPREPLY = dnat_rule(NEW, STALE_MAC), arpreply_rule(NEW, STALE_MAC)


@pytest.fixture
def world(kernel: NamespaceKernel, tmp_path: Path) -> Iterator[AzureWorld]:
    built = AzureWorld(kernel, Layout(tmp_path))
    try:
        yield built
    finally:
        built.close()


def config_of(**stale: Any) -> HostNetworking:
    return HostNetworking(stale_azure_vnet=StaleAzureVnet(**{"cidrs": [CIDR], **stale}))


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
    with pytest.raises(AzureVnetError) as refused:
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


@pytest.mark.parametrize("asker", ["host", "fabric"])
def test_a_dangling_route_beats_that_to_the_new_pod_until_it_is_removed(world: AzureWorld, asker: str) -> None:
    source = {"host": world.host, "fabric": world.fabric}[asker]
    world.add_new_pod()
    assert answer(source, NEW) == "new pod"
    world.leave(Leftover.ROUTE)
    assert loses(source, NEW)
    clean(world)
    assert answer(source, NEW) == "new pod"


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
    assert world.packets()[dnat_rule(LIVE, mac_of(33))] > counted[dnat_rule(LIVE, mac_of(33))]
    for source in (world.fabric, world.live, world.host):
        assert answer(source, NEW) == "new pod"


def test_a_dry_run_tells_what_a_run_then_removes_and_changes_nothing(world: AzureWorld) -> None:
    world.leave(*EACH)
    before = world.everything()
    plan = plan_stale(config_of(), host_of(world), node=LinuxBridgeNode())
    assert world.everything() == before
    assert len(plan.remove) == len(EACH)
    assert set(clean(world).removed) == set(plan.remove)
    assert {DNAT, ARPREPLY} == {item.what for item in plan.remove if item.kind == "rule"}
    assert all(item.reason for item in (*plan.remove, *plan.keep))


def test_without_a_state_file_the_macs_decide(world: AzureWorld) -> None:
    rules, neighbours = world.rules(), world.neighbours()
    world.leave(*EACH)
    places.state(world.layout).unlink()
    clean(world)
    assert (world.rules(), world.neighbours()) == (rules, neighbours)


def test_of_two_pods_with_one_address_the_rules_of_the_gone_one_go(world: AzureWorld) -> None:
    rules = world.rules()
    restore(*(rule.replace("-A", "-I", 1) for rule in (dnat_rule(LIVE, STALE_MAC), arpreply_rule(LIVE, STALE_MAC))))
    assert loses(world.fabric, LIVE)
    clean(world)
    assert world.rules() == rules
    assert answer(world.fabric, LIVE) == "pod .33"


def test_in_tunnel_mode_a_live_pods_answer_stays_and_a_gone_ones_goes(world: AzureWorld) -> None:
    restore(arpreply_rule(LIVE, TUNNEL_MAC))
    rules = world.rules()
    world.leave(Leftover.DNAT)
    restore(arpreply_rule(NEW, TUNNEL_MAC))
    clean(world)
    assert world.rules() == rules


def test_of_several_routes_to_one_address_only_the_dangling_ones_go(world: AzureWorld) -> None:
    ip(
        f"route add 10.224.0.45 via {GATEWAY} dev azure0 metric 7",
        f"route add 10.224.0.45 via {GATEWAY} dev azure0 tos 0x10",
    )
    routes = world.routes()
    ip(
        "route add 10.224.0.45 dev azure0",
        "route append 10.224.0.45 dev azure0 metric 7 proto static mtu 1400",
        "route add 10.224.0.45 dev azure0 tos 0x10 metric 7",
    )
    clean(world)
    assert world.routes() == routes


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


def test_the_nodes_own_addresses_and_macs_and_its_gateway_stay(world: AzureWorld) -> None:
    ip("address add 10.224.0.6/32 dev azure0")
    restore(
        dnat_rule("10.224.0.6", STALE_MAC),
        arpreply_rule("10.224.0.6", STALE_MAC),
        arpreply_rule("10.224.0.7", NIC),
        dnat_rule("10.224.0.7", NIC),
        dnat_rule(GATEWAY, STALE_MAC),
    )
    assert changes_nothing(world)


def test_learned_and_managed_neighbours_stay_and_one_that_nobody_answered_for_goes(world: AzureWorld) -> None:
    ip(
        f"neighbour add 10.224.0.60 lladdr {mac_of(60)} dev azure0 extern_learn",
        "neighbour add 10.224.0.61 dev azure0 managed extern_learn",
    )
    for number in (60, 61, 62):
        world.leave(address=f"10.224.0.{number}", mac=mac_of(number))
    assert loses(world.host, "10.224.0.62")
    assert neighbour_of("10.224.0.62")
    clean(world)
    assert "extern_learn" in neighbour_of("10.224.0.60")
    assert "managed" in neighbour_of("10.224.0.61")
    assert neighbour_of("10.224.0.62") == ""


def test_packets_to_an_address_that_nobody_has_do_not_keep_it_from_ending(world: AzureWorld) -> None:
    rules = world.rules()
    world.leave(*EACH)

    def send() -> None:
        assert loses(world.host, "10.224.0.62")

    clean(world, node=Watched(before=send, after=send))
    assert world.rules() == rules


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


# --- a node that others change too ---------------------------------------------------------------------------------


def _nothing() -> None:
    pass


class Watched(LinuxBridgeNode):
    """The real node, and somebody who acts at certain moments.

    Args:
        looking: called before the node is looked at.
        before: called before rules are removed.
        after: called after that.
    """

    def __init__(
        self,
        *,
        looking: Callable[[], None] = _nothing,
        before: Callable[[], None] = _nothing,
        after: Callable[[], None] = _nothing,
    ) -> None:
        super().__init__()
        self._looking, self._before, self._after = looking, before, after

    def look(self, bridge: str) -> NodeState:
        self._looking()
        return super().look(bridge)

    def remove_rules(self, rules: Sequence[str]) -> bool:
        self._before()
        done = super().remove_rules(rules)
        self._after()
        return done


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


def test_rules_that_come_back_are_an_error_that_names_them(world: AzureWorld) -> None:
    world.leave(*EACH)

    def restore_one() -> None:
        if DNAT not in world.rules():
            restore(DNAT)

    with pytest.raises(AzureVnetError, match="are back, .*azure-cnms") as failed:
        clean(world, node=Watched(after=restore_one))
    assert NEW in str(failed.value)
    assert DNAT in world.rules()
    assert answer(world.fabric, LIVE) == "pod .33"


def test_rules_that_come_back_as_soon_as_the_lock_is_free_are_an_error_too(world: AzureWorld) -> None:
    world.leave(*EACH)

    def restore_one() -> None:
        if is_free(places.lock(world.layout)) and DNAT not in world.rules():
            restore(DNAT)

    with pytest.raises(AzureVnetError, match="back"):
        clean(world, node=Watched(looking=restore_one))


@pytest.mark.parametrize("content", ["{", "[]", '{"Network": 7}'])
def test_a_state_that_makes_no_sense_is_an_error_and_nothing_is_removed(world: AzureWorld, content: str) -> None:
    world.leave(*EACH)
    places.state(world.layout).write_text(content)
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
    with held_by_another_process(places.lock(world.layout)):
        assert "azure-vnet.lock" in refusal(world, lock_wait_seconds=0)
        assert "azure-vnet.lock" in refusal(world, lock_wait_seconds=1)


def test_a_lock_that_is_released_in_time_is_waited_for(world: AzureWorld) -> None:
    rules = world.rules()
    world.leave(*EACH)
    with held_by_another_process(places.lock(world.layout)) as release:
        observer = Releasing(release)
        clean(world, observer=observer, lock_wait_seconds=60)
    assert "azure-vnet" in observer.heard[0]
    assert world.rules() == rules


def test_the_lock_of_an_old_azure_vnet_is_waited_for_and_never_made_or_removed(world: AzureWorld) -> None:
    rules = world.rules()
    world.leave(*EACH)
    for lock in places.lock_files(world.layout):
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
        assert lock.name in refusal(world, lock_wait_seconds=0)
        assert lock.exists()
        lock.unlink()
    lock.touch()
    clean(world, observer=Releasing(lambda: lock.unlink(missing_ok=True)), lock_wait_seconds=60)
    assert world.rules() == rules
    assert not any(path.exists() for path in places.lock_files(world.layout))


def test_azure_vnet_is_locked_out_while_rules_are_removed_and_not_afterwards(world: AzureWorld) -> None:
    world.leave(*EACH)
    seen: list[bool] = []

    def look() -> None:
        seen.append(is_free(places.lock(world.layout)))

    clean(world, node=Watched(before=look, after=look))
    assert set(seen) == {False}
    assert is_free(places.lock(world.layout))


def is_free(lock: Path) -> bool:
    with lock.open() as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
