"""RemoveStaleAzureVnet on a node in memory: locks, and what others do meanwhile."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from stale import (
    GONE,
    GONE_MAC,
    GONE_RULES,
    LIVE_RULES,
    NODE_RULES,
    config,
    dnat,
    neighbour,
    networking,
    node_state,
    state,
)

import phases
from hostrouting import Host, Layout
from hostrouting.azure.config import HostNetworking
from hostrouting.azure.nodes import AzureVnetError
from hostrouting.azure.vnet.plan import AzureVnetReport
from hostrouting.azure.vnet.port import NodeState
from hostrouting.azure.vnet.tasks import LOCK_FILE, STATE_FILE, RemoveStaleAzureVnet, plan_stale
from hostrouting.boot.files import locked
from hostrouting.cli.azure.vnet import report_text
from hostrouting.model.errors import FileError
from hostrouting.testing import FakeBridgeNode, FakeKernel, FakeSystemd
from phases import CancelScope
from phases.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from hostrouting.azure import BridgeNode, Neighbour

LEFT = (*NODE_RULES, *LIVE_RULES)


class WatchedNode(FakeBridgeNode):
    """The node in memory, which notes who calls, and lets somebody act between two calls."""

    def __init__(self, state: NodeState) -> None:
        super().__init__(state)
        self.calls: list[str] = []
        self._before: list[tuple[str, Callable[[], object]]] = []

    def before(self, call: str, act: Callable[[], object]) -> None:
        """Have something happen as the next call of a name comes, once; what it raises, the call raises."""
        self._before.append((call, act))

    def change(self, **fields: Any) -> None:
        self.state = attrs.evolve(self.state, **fields)

    def look(self, bridge: str) -> NodeState:
        self._come("look")
        return super().look(bridge)

    def remove_rules(self, rules: Sequence[str]) -> None:
        self._come("remove_rules")
        super().remove_rules(rules)

    def remove_neighbours(self, neighbours: Sequence[Neighbour]) -> None:
        self._come("remove_neighbours")
        super().remove_neighbours(neighbours)

    def _come(self, call: str) -> None:
        self.calls.append(call)
        for number, (name, act) in enumerate(self._before):
            if name == call:
                del self._before[number]
                act()
                return


@pytest.fixture
def node() -> WatchedNode:
    return WatchedNode(node_state())


@pytest.fixture
def host(tmp_path: Path, node: WatchedNode) -> Host:
    return Host(FakeKernel(), FakeSystemd(), Layout(tmp_path))


def clean(host: Host, node: BridgeNode, config: HostNetworking | None = None) -> AzureVnetReport:
    return phases.run(RemoveStaleAzureVnet(config or networking(), host=host, node=node))


def write_state(host: Host, text: str) -> None:
    host.layout.of(STATE_FILE).parent.mkdir(parents=True, exist_ok=True)
    host.layout.of(STATE_FILE).write_text(text)


def test_what_is_stale_goes_all_else_stays_and_a_second_run_finds_nothing(host: Host, node: WatchedNode) -> None:
    before = node.state
    report = clean(host, node)
    assert node.state == attrs.evolve(before, rules=LEFT, neighbours=before.neighbours[:1])
    assert {item.what for item in report.removed} == {*GONE_RULES, neighbour(GONE)}
    assert report.notes == ()
    assert {item.what for item in report.kept} == {*LIVE_RULES, NODE_RULES[2], before.neighbours[0]}
    calls = len(node.calls)
    again = clean(host, node)
    assert (again.removed, again.kept) == ((), report.kept)
    assert set(node.calls[calls:]) == {"look"}


def test_rules_go_in_one_batch_and_last_as_they_tell_whose_the_rest_is(host: Host, node: WatchedNode) -> None:
    clean(host, node)
    assert node.calls == ["look", "remove_neighbours", "remove_rules"]


@pytest.mark.parametrize("call", ["remove_neighbours", "remove_rules"])
def test_after_a_crash_in_the_middle_the_next_run_finishes(host: Host, node: WatchedNode, call: str) -> None:
    def crash() -> None:
        raise KeyboardInterrupt

    node.before(call, crash)
    with pytest.raises(KeyboardInterrupt):
        clean(host, node)
    clean(host, node)
    assert (node.state.rules, len(node.state.neighbours)) == (LEFT, 1)


def test_a_plan_changes_nothing_and_waits_for_nobody(host: Host, node: WatchedNode) -> None:
    before = node.state
    with locked(host.layout.lock, CancelScope()):
        plan = plan_stale(networking(), host, node=node)
    assert len(plan.removed) == 4
    assert node.state == before
    assert node.calls == ["look"]


def test_nothing_asked_nothing_done(host: Host, node: WatchedNode) -> None:
    assert clean(host, node, HostNetworking()) == AzureVnetReport()
    assert plan_stale(HostNetworking(), host) == AzureVnetReport()
    assert node.calls == []
    assert list(host.layout.root.iterdir()) == []


def test_an_image_has_no_kernel_to_clean(tmp_path: Path, node: WatchedNode) -> None:
    (tmp_path / "usr/lib/systemd/system").mkdir(parents=True)
    image = Host.image(tmp_path)
    with pytest.raises(AzureVnetError, match="has no kernel that holds any of it"):
        clean(image, node)
    with pytest.raises(AzureVnetError, match="has no kernel that holds any of it"):
        plan_stale(networking(), image)
    assert clean(image, node, HostNetworking()) == AzureVnetReport()


# --- what others do meanwhile ------------------------------------------------------------------------------------


def test_what_has_changed_since_the_plan_is_never_forced_and_the_next_run_goes_on(
    host: Host, node: WatchedNode
) -> None:
    """azure-vnet of old, without a lock that could keep it out, writes the rule of a new pod for the address."""
    alive = dnat(GONE, "a2:06:00:20:0b:99")

    def start_pod() -> None:
        new = attrs.evolve(node.state.interfaces[-1], name="azvnew", far_mac="a2:06:00:20:0b:99")
        rules = (*LEFT, *(rule for rule in GONE_RULES if rule != dnat(GONE)), alive)
        node.change(rules=rules, interfaces=(*node.state.interfaces, new))

    node.before("remove_rules", start_pod)
    with pytest.raises(AzureVnetError, match="run it again"):
        clean(host, node)
    assert set(GONE_RULES) - {dnat(GONE)} < set(node.state.rules)
    clean(host, node)
    assert node.state.rules == (*LEFT, alive)


def test_neighbours_that_go_by_themselves_are_fine(host: Host, node: WatchedNode) -> None:
    node.before("remove_neighbours", lambda: node.change(neighbours=()))
    assert neighbour(GONE) in {item.what for item in clean(host, node).removed}


def test_a_refusal_is_raised_as_it_is(host: Host, node: WatchedNode) -> None:
    def refuse() -> None:
        raise AzureVnetError("can't delete: Operation not permitted", errno=errno.EPERM)

    node.before("remove_rules", refuse)
    with pytest.raises(AzureVnetError, match="not permitted") as caught:
        clean(host, node)
    assert caught.value.is_not_permitted
    assert set(GONE_RULES) < set(node.state.rules)


# --- locks and the state -----------------------------------------------------------------------------------------


def test_a_held_lock_of_azure_vnet_is_an_error_and_nothing_is_touched(host: Host, node: WatchedNode) -> None:
    path, clock = host.layout.of(LOCK_FILE), FakeClock()
    path.parent.mkdir(parents=True)
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(FileError, match=r"azure-vnet\.lock: another run has held it for 5 s"):
            phases.run(RemoveStaleAzureVnet(networking(), host=host, node=node), scope=CancelScope(clock=clock))
        with pytest.raises(FileError, match="for 0 s"):
            clean(host, node, networking(lock_wait_seconds=0))
    assert node.calls == []


def test_azure_vnets_files_are_where_its_versions_have_them() -> None:
    """Another path would read as no state, and as a lock that nobody holds."""
    assert STATE_FILE == "/var/run/azure-vnet.json"
    assert LOCK_FILE == "/var/run/azure-vnet/azure-vnet.lock"


def test_where_azure_vnet_has_no_folder_none_is_made(host: Host, node: WatchedNode) -> None:
    clean(host, node)
    assert not host.layout.of(LOCK_FILE).parent.exists()


def test_another_run_of_ours_is_waited_for(host: Host, node: WatchedNode) -> None:
    with locked(host.layout.lock, CancelScope()), pytest.raises(FileError, match="another run has held it"):
        phases.run(RemoveStaleAzureVnet(networking(), host=host, node=node), scope=CancelScope(clock=FakeClock()))
    assert node.calls == []


def test_a_state_that_cant_be_understood_removes_nothing(host: Host, node: WatchedNode) -> None:
    write_state(host, '{"Network": {')
    with pytest.raises(AzureVnetError, match="can't be understood") as caught:
        clean(host, node)
    assert str(host.layout.of(STATE_FILE)) in str(caught.value)
    with pytest.raises(AzureVnetError, match="can't be understood"):
        plan_stale(networking(), host, node=node)
    assert set(node.calls) == {"look"}


def test_a_state_that_cant_be_read_removes_nothing(host: Host, node: WatchedNode) -> None:
    host.layout.of(STATE_FILE).mkdir(parents=True)
    with pytest.raises(FileError, match=r"can't read .*/azure-vnet\.json: Is a directory"):
        clean(host, node)
    assert set(node.calls) == {"look"}


def test_a_pipe_as_state_file_is_an_error_and_hangs_nothing(host: Host, node: WatchedNode) -> None:
    host.layout.of(STATE_FILE).parent.mkdir(parents=True)
    os.mkfifo(host.layout.of(STATE_FILE))
    with pytest.raises(FileError, match="is not a regular file"):
        plan_stale(networking(), host, node=node)


@pytest.mark.parametrize("text", ["", state(), state(("azvgone", GONE_MAC, str(GONE)))])
def test_an_empty_state_and_one_that_lists_dead_pods_are_fine_and_never_written(
    host: Host, node: WatchedNode, text: str
) -> None:
    write_state(host, text)
    assert len(clean(host, node).removed) == 4
    assert host.layout.of(STATE_FILE).read_text() == text


# --- the report --------------------------------------------------------------------------------------------------


def test_a_report_is_json_and_text(host: Host, node: WatchedNode) -> None:
    node.change(notes=("legacy",))
    report = clean(host, node)
    document = report.to_json()
    assert json.loads(json.dumps(document)) == document
    assert set(document) == {"schema", "changed", "removed", "kept", "otherRules", "notes"}
    assert document["notes"] == ["legacy"]
    text = report_text(report)
    assert text.count("  - ") == 4
    assert text.count("  = ") == 4
    assert "removed: 4 in all" in text
    assert text.endswith("note: legacy")
    assert "there is nothing to remove among what could be read" in report_text(clean(host, node))
    node.change(notes=())
    assert "azure-vnet has left nothing here" in report_text(clean(host, node))


def test_config_defaults_are_the_facts() -> None:
    assert (config().bridge, config().uplink, config().lock_wait_seconds) == ("azure0", "eth0", 5)


def test_a_node_without_anything_is_fine(host: Host, node: WatchedNode) -> None:
    node.state = NodeState()
    assert clean(host, node) == AzureVnetReport()
