"""ConfigureLoadBalancerProbe and its removal on a node in memory: every outcome, all or nothing, and twice is once."""

from __future__ import annotations

import errno
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Any

import attrs
import pytest

import phases
from hostrouting import ConfigError, Host, Layout, UnitError
from hostrouting.azure.config import HostNetworking, Ipv6Detection, LoadBalancerProbe
from hostrouting.azure.nodes import LoadBalancerProbeError
from hostrouting.azure.probe.plan import ProbeReport
from hostrouting.azure.probe.port import NodeAddress, Pin
from hostrouting.azure.probe.ruleset import PROBE, PROBE_SOURCE, REMOVAL, TABLE, render_ruleset
from hostrouting.azure.probe.tasks import (
    ConfigureLoadBalancerProbe,
    RemoveLoadBalancerProbe,
    plan_probe,
)
from hostrouting.boot.files import locked
from hostrouting.boot.manifest import Manifest
from hostrouting.model.changes import Change, Changes
from hostrouting.model.errors import FileError
from hostrouting.model.routes import NextHop
from hostrouting.testing import FakeKernel, FakeProbeNode, FakeSystemd
from phases import Cancelled, CancelScope
from phases.testing import FakeClock, RecordingObserver

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


OURS, STATIC = 217, 4
OWN = NodeAddress("eth0", IPv6Address("fd00::4"))
TENTATIVE = attrs.evolve(OWN, is_usable=False)
PINNED = Pin(PROBE_SOURCE, "eth0", OURS, 1)
ASTRAY = Pin(PROBE_SOURCE, "eth1", OURS, 1)
FOREIGN = Pin(IPv6Address("fe80::1"), "eth0", STATIC, 1)
UNAVAILABLE = LoadBalancerProbeError("Azure's metadata service is unavailable")


BRIDGED = ({"name": "azure0", "kind": "bridge"}, {"name": "eth0", "master": "azure0"})
LINKS = ({"name": "eth0"}, {"name": "eth1"})


# What is in force of the rules for some devices, as the node in memory lists it.
def rules(device: str) -> str:
    return FakeProbeNode().dry_run(render_ruleset(device), TABLE)


def config(*, enabled: bool = True, **more: Any) -> HostNetworking:
    return HostNetworking(LoadBalancerProbe(enabled=enabled, **more))


def node(**more: Any) -> FakeProbeNode:
    given: dict[str, Any] = {
        "default_devices": ["eth0"],
        "addresses": [OWN],
    }
    return FakeProbeNode(**(given | more))


def instead(there: object, name: str, call: Callable[..., object]) -> None:
    """Have another function called, as of a node that misbehaves."""
    setattr(there, name, call)


class World:
    """A host around a node, with a clock that needs no time."""

    def __init__(self, root: Path, there: FakeProbeNode, links: Sequence[dict[str, Any]] = LINKS) -> None:
        self.layout = Layout(root)
        self.layout.units.mkdir(parents=True, exist_ok=True)
        self.node = there
        self.clock = FakeClock()
        self.units = FakeSystemd(self.layout, running=["systemd-nspawn@kube1.service"])
        kernel = FakeKernel()
        for link in links:
            kernel.add_link(**link)
        self.host = Host(kernel, self.units, self.layout)
        self.observer = RecordingObserver()

    def configure(self, asked: HostNetworking | None = None) -> ProbeReport:
        task = ConfigureLoadBalancerProbe(asked or config(), host=self.host, node=self.node)
        return phases.run(task, scope=CancelScope(clock=self.clock), observer=self.observer)

    def remove(self) -> ProbeReport:
        return phases.run(RemoveLoadBalancerProbe(host=self.host, node=self.node), scope=CancelScope(clock=self.clock))

    def plan(self, asked: HostNetworking | None = None) -> ProbeReport:
        return plan_probe(asked or config(), self.host, CancelScope(clock=self.clock), node=self.node)

    @property
    def is_installed(self) -> bool:
        return PROBE in Manifest.load(self.layout).parts

    def state(self) -> object:
        """All that a run may change."""
        files = {
            str(path.relative_to(self.layout.root)): path.read_bytes() if path.is_file() else None
            for path in sorted(self.layout.root.rglob("*"))
            if path.relative_to(self.layout.root).parts[0] != "run" and not path.is_symlink()
        }
        return files, dict(self.node.tables), sorted(map(str, self.node.pin_list)), sorted(self.units.enabled)

    @property
    def waits(self) -> list[str]:
        return [str(event[2]) for event in self.observer.events if event[0] == "progress"]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, node())


def test_the_first_run_loads_pins_and_installs_and_the_second_touches_nothing(world: World) -> None:
    first = world.configure()
    assert (first.changed, first.has_new_rules, bool(first.boot), first.pins.add) == (True, True, True, (PINNED,))
    assert (first.device, first.evidence, first.problem) == ("eth0", "eth0 has fd00::4", None)
    assert world.node.tables == {TABLE: rules("eth0")}
    assert world.node.pin_list == [PINNED]
    assert world.is_installed
    before, calls = world.state(), list[str]()
    for name in ("load", "pin", "unpin"):
        instead(world.node, name, note(calls, name, getattr(world.node, name)))
    again = world.configure()
    assert not again.changed
    assert again.pins.unchanged == (PINNED,)
    assert (world.state(), calls) == (before, [])


def test_a_change_of_devices_changes_rules_and_route_the_new_route_first(world: World) -> None:
    world.configure()
    calls: list[str] = []
    instead(world.node, "pin", note(calls, "pin", world.node.pin))
    instead(world.node, "unpin", note(calls, "unpin", world.node.unpin))
    report = world.configure(config(devices=["eth1"]))
    assert world.node.tables == {TABLE: rules("eth1")}
    assert calls == ["pin", "unpin"]
    assert [(pin.dev, pin.metric) for pin in world.node.pin_list] == [("eth1", 1)]
    assert report.pins.remove == (PINNED,)
    assert not world.configure(config(devices=["eth1"])).changed


def note(calls: list[str], name: str, call: Callable[[Any], None]) -> Callable[[Any], None]:
    def noted(what: Any) -> None:
        calls.append(name)
        call(what)

    return noted


def test_a_changed_table_is_mended_and_other_tables_are_left_alone(world: World) -> None:
    world.configure()
    world.node.tables["other"] = "table ip6 other {\n}\n"
    world.node.tables[TABLE] = world.node.tables[TABLE].replace("prerouting", "stray")
    assert world.configure().has_new_rules
    assert world.node.tables == {TABLE: rules("eth0"), "other": "table ip6 other {\n}\n"}


def test_without_ipv6_nothing_is_installed_after_a_wait_that_is_told(tmp_path: Path) -> None:
    world = World(tmp_path, node(addresses=[], has_nft=False))
    before = world.state()
    report = world.configure()
    assert report.skipped_because == "no IPv6 address of scope global on eth0"
    assert not report.changed
    assert world.state() == before
    assert world.waits[0] == "waiting up to 5 s for an IPv6 address of scope global on eth0"
    assert world.clock.monotonic() >= 5


def test_rules_that_are_required_wait_for_an_address_and_then_are_installed_without(tmp_path: Path) -> None:
    world = World(tmp_path, node(addresses=[]))
    asked = config(required=True)
    assert world.plan(asked).missing == "an IPv6 address of scope global on eth0"
    report = world.configure(asked)
    assert world.clock.monotonic() >= 5
    assert (report.skipped_because, report.has_new_rules, report.pins.add) == (None, True, (PINNED,))
    assert report.evidence == "no IPv6 address of scope global on eth0, but it may come, and the rules are required"
    assert world.is_installed
    assert not world.plan(asked).changed


def test_an_address_that_is_still_tried_out_is_waited_for(tmp_path: Path) -> None:
    world = World(tmp_path, node(addresses=[TENTATIVE]))
    world.clock.call_at(2, lambda: world.node.address_list.append(OWN))
    assert world.configure().changed
    assert 2 <= world.clock.monotonic() < 4


def test_only_addresses_of_the_devices_in_question_and_of_scope_global_count(tmp_path: Path) -> None:
    of_a_pod = attrs.evolve(OWN, dev="azv1")
    link_local = NodeAddress("eth0", IPv6Address("fe80::4"), is_global=False)
    world = World(tmp_path, node(addresses=[of_a_pod, link_local]))
    assert world.configure().skipped_because


def test_a_default_route_is_waited_for(tmp_path: Path) -> None:
    world = World(tmp_path, node(default_devices=[]))
    world.clock.call_at(3, lambda: world.node.default_device_names.append("eth0"))
    assert world.configure().device == "eth0"
    assert world.waits[0].startswith("waiting up to 5 s for a default route")


def test_no_wait_holds_the_lock(tmp_path: Path) -> None:
    world = World(tmp_path, node(default_devices=[]))
    taken: list[bool] = []

    def another_run() -> None:
        with locked(world.layout.lock, CancelScope(clock=FakeClock())):
            taken.append(True)
        world.node.default_device_names.append("eth0")

    world.clock.call_at(1.5, another_run)
    assert world.configure().changed
    assert taken == [True]


@pytest.mark.parametrize(
    ("given", "asked", "expected"),
    [
        ({"default_devices": []}, {}, "waited 5 s in vain for a default route"),
        ({"links": []}, {}, "in vain for device eth0 (there is no such device)"),
        ({}, {"devices": ["eth7"]}, "in vain for device eth7 (there is no such device)"),
        ({"links": [{"name": "eth0", "up": False}]}, {}, "in vain for device eth0 (it is down)"),
        ({"links": BRIDGED}, {}, "eth0 is a port of azure0"),
        ({"default_devices": ["we ird"]}, {}, "'we ird' is not an interface name"),
        ({"has_nft": False}, {}, "install the package nftables"),
        ({"pins": [FOREIGN]}, {}, "somebody else's route is in its place (2603:1062:0:1:fe80:1234:5678:9abc via fe80::1 "),
        ({"assigned": UNAVAILABLE}, {"ipv6_detection": Ipv6Detection.METADATA}, "unavailable"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_an_error_if_required_and_a_problem_if_not(
    tmp_path: Path, given: dict[str, Any], asked: dict[str, Any], expected: str
) -> None:
    links = given.get("links", LINKS)
    world = World(tmp_path, node(**{key: value for key, value in given.items() if key != "links"}), links)
    before = world.state()
    with pytest.raises(LoadBalancerProbeError) as caught:
        world.configure(config(required=True, **asked))
    assert expected in str(caught.value)
    assert world.state() == before
    report = world.configure(config(**asked))
    assert expected in (report.problem or "")
    assert (world.node.tables, world.node.pin_list) == ({}, given.get("pins", []))
    # For the next boot, which may go better, all is there if it is known for which device.
    is_known = not any(words in expected for words in ("a default route", "is a port of", "not an interface name"))
    assert world.is_installed == (report.device is not None) == is_known
    assert not world.configure(config(**asked)).changed


def test_of_several_default_routes_the_device_of_the_best_gets_rules_and_route(tmp_path: Path) -> None:
    world = World(tmp_path, node(default_devices=["eth0", "eth1"]))
    world.configure()
    assert world.node.tables == {TABLE: rules("eth0")}
    assert world.node.pin_list == [PINNED]


def test_the_route_is_pinned_on_no_port_of_a_bridge_but_on_a_member_of_a_vrf(tmp_path: Path) -> None:
    links = (*BRIDGED, {"name": "red", "kind": "vrf"}, {"name": "eth2", "master": "red"})
    there = node(default_devices=["eth0", "azure0"], addresses=[attrs.evolve(OWN, dev="azure0")])
    world = World(tmp_path, there, links)
    world.configure()
    assert [pin.dev for pin in world.node.pin_list] == ["azure0"]
    assert world.node.tables == {TABLE: rules("azure0")}
    assert world.configure(config(devices=["eth2"], ipv6_detection="ALWAYS")).pins.add[0].dev == "eth2"


def test_always_asks_nobody(tmp_path: Path) -> None:
    world = World(tmp_path, node(addresses=[], assigned=UNAVAILABLE))
    report = world.configure(config(ipv6_detection="ALWAYS"))
    assert report.changed
    assert report.evidence == "ipv6Detection is ALWAYS"


def test_what_azure_has_assigned_counts_before_the_kernel_has_it(tmp_path: Path) -> None:
    world = World(tmp_path, node(addresses=[], assigned=[IPv6Address("fd00::9")]))
    report = world.configure(config(ipv6_detection="METADATA"))
    assert report.evidence == "Azure's metadata service has assigned fd00::9"
    assert world.node.tables
    assert world.waits == []


def test_no_assigned_address_is_no_ipv6_and_nothing_is_waited_for(tmp_path: Path) -> None:
    world = World(tmp_path, node(assigned=[]))
    report = world.configure(config(ipv6_detection="METADATA"))
    assert report.skipped_because == "Azure's metadata service has assigned no IPv6 address"
    assert world.waits == []


def test_without_ipv6_what_was_installed_stays_and_is_kept_up(world: World) -> None:
    world.configure()
    world.node.address_list.clear()
    world.node.tables.clear()
    report = world.configure()
    assert report.has_new_rules
    assert report.evidence.endswith("but it is installed already, and stays")
    assert world.node.tables == {TABLE: rules("eth0")}
    assert world.waits == []


def test_not_enabled_removes_what_was_installed_and_then_touches_nothing(world: World) -> None:
    before = world.state()
    world.configure()
    report = world.configure(config(enabled=False))
    assert (report.changed, report.has_new_rules, report.pins.remove) == (True, True, (PINNED,))
    assert world.state() == before
    world.node.has_nft = False
    again = world.configure(config(enabled=False))
    assert again == ProbeReport(skipped_because="loadBalancerProbe isn't enabled in the config")


def test_a_removal_leaves_nothing_needs_no_config_and_may_be_repeated(world: World) -> None:
    before = world.state()
    world.configure()
    assert world.remove().changed
    assert world.state() == before
    assert world.remove() == ProbeReport(skipped_because="nothing of it is installed")


def test_a_removal_leaves_nothing_though_a_flush_gives_the_rules_back_meanwhile(world: World) -> None:
    before = world.state()
    world.configure()
    reload = world.units.reload

    def reload_slowly() -> None:
        reload()
        if world.layout.script(PROBE).exists():
            world.node.tables[TABLE] = rules("eth0")

    instead(world.units, "reload", reload_slowly)
    world.remove()
    assert world.state() == before


def test_a_removal_leaves_the_routes_and_tables_of_others(tmp_path: Path) -> None:
    theirs = attrs.evolve(FOREIGN, metric=5)
    world = World(tmp_path, node(pins=[theirs], tables={"other": "x"}))
    world.configure()
    world.remove()
    assert (world.node.pin_list, world.node.tables) == ([theirs], {"other": "x"})


def test_a_removal_without_nft_takes_back_the_rest_and_says_that_rules_may_stay(world: World) -> None:
    world.configure()
    world.node.has_nft = False
    report = world.remove()
    assert report.pins.remove == (PINNED,)
    assert report.problem is not None
    assert "then again: hostrouting lb-probe remove" in report.problem
    assert not world.is_installed
    assert world.remove() == ProbeReport(skipped_because="nothing of it is installed")


def test_a_removal_that_is_not_permitted_says_so_and_keeps_the_files(world: World) -> None:
    world.configure()
    before = world.state()

    def refuse(_: str) -> str | None:
        raise LoadBalancerProbeError("not permitted", errno=errno.EPERM)

    instead(world.node, "listing", refuse)
    with pytest.raises(LoadBalancerProbeError) as caught:
        world.remove()
    assert caught.value.is_not_permitted
    assert world.state() == before


# --- all or nothing --------------------------------------------------------------------------------------------------


class Trouble:
    """Something goes wrong at the n-th call that changes the node; then all is well again, for the way back."""

    def __init__(self, there: FakeProbeNode, at: int, happen: Callable[[], None]) -> None:
        self.calls, self.at, self.happen = 0, at, happen
        for name in ("load", "pin", "unpin"):
            instead(there, name, self.around(getattr(there, name)))

    def around(self, call: Callable[[Any], None]) -> Callable[[Any], None]:
        def called(what: Any) -> None:
            self.calls += 1
            if self.calls == self.at:
                self.happen()
            call(what)

        return called


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("error", [LoadBalancerProbeError("refused"), Cancelled("stop"), KeyboardInterrupt()])
def test_whatever_fails_all_is_as_before(tmp_path: Path, at: int, error: BaseException) -> None:
    world = World(tmp_path, node(pins=[ASTRAY], tables={TABLE: rules("eth1")}))
    before = world.state()

    def happen() -> None:
        raise error

    trouble = Trouble(world.node, at, happen)
    with pytest.raises(type(error)):
        world.configure(config(required=True))
    assert trouble.calls >= at
    assert world.state() == before


@pytest.mark.parametrize("at", [1, 2])
def test_a_cancel_between_two_steps_puts_all_back(tmp_path: Path, at: int) -> None:
    world = World(tmp_path, node(pins=[ASTRAY], tables={TABLE: rules("eth1")}))
    before = world.state()
    scope = CancelScope(clock=world.clock)
    Trouble(world.node, at, lambda: scope.cancel("enough"))
    with pytest.raises(Cancelled):
        ConfigureLoadBalancerProbe(config(), host=world.host, node=world.node).do(scope)
    assert world.state() == before


@pytest.mark.parametrize("at", [1, 2])
def test_a_removal_that_fails_puts_rules_and_route_back(world: World, at: int) -> None:
    world.configure()
    before = world.state()

    def happen() -> None:
        raise LoadBalancerProbeError("refused")

    Trouble(world.node, at, happen)
    with pytest.raises(LoadBalancerProbeError):
        world.remove()
    assert world.state() == before


def test_rules_that_do_not_stay_as_loaded_are_an_error(world: World) -> None:
    load = world.node.load

    def load_something_else(text: str) -> None:
        load(text.replace("counter", "log") if text != REMOVAL else text)

    instead(world.node, "load", load_something_else)
    with pytest.raises(LoadBalancerProbeError, match="isn't as it was loaded"):
        world.configure(config(required=True))
    assert world.node.tables == {}


@pytest.mark.parametrize(
    ("hop", "said"),
    [(None, "would go nowhere"), (NextHop("eth1", IPv6Address("fe80::9")), "would go via fe80::9 dev eth1")],
)
def test_a_route_that_does_not_win_is_an_error_and_all_is_as_before(
    world: World, hop: NextHop | None, said: str
) -> None:
    before = world.state()
    instead(world.node, "next_hop", lambda: hop)
    with pytest.raises(LoadBalancerProbeError, match=said):
        world.configure(config(required=True))
    assert world.state() == before


def test_what_could_not_be_put_back_is_part_of_the_problem(world: World) -> None:
    def refuse(_: object) -> None:
        raise LoadBalancerProbeError("nft has gone mad")

    load = world.node.load

    def only_once(text: str) -> None:
        load(text)
        instead(world.node, "load", refuse)

    instead(world.node, "load", only_once)
    instead(world.node, "pin", refuse)
    problem = world.configure().problem
    assert problem == "nft has gone mad\nwhile putting things back: nft has gone mad"


def test_a_file_or_unit_that_fails_is_always_raised_and_all_is_as_before(world: World) -> None:
    def refuse(_: str) -> None:
        raise UnitError("systemd refuses")

    before = world.state()
    instead(world.units, "enable", refuse)
    with pytest.raises(UnitError):
        world.configure()
    assert world.state() == before
    world.layout.run_lock.unlink()
    world.layout.run_lock.mkdir()
    with pytest.raises(FileError):
        world.configure()


# --- plan, image -----------------------------------------------------------------------------------------------------


def test_a_plan_says_what_the_run_does_and_changes_nothing(world: World) -> None:
    before = world.state()
    plan = world.plan()
    assert (plan.rules_before, plan.rules_after, plan.pins.add) == (None, rules("eth0"), (PINNED,))
    assert plan.changed
    assert world.state() == before
    world.configure()
    assert not world.plan().changed
    going = world.plan(config(enabled=False))
    assert (going.rules_before, going.rules_after, going.pins.remove) == (rules("eth0"), None, (PINNED,))


def test_a_plan_does_not_wait_and_says_what_is_missing(tmp_path: Path) -> None:
    world = World(tmp_path, node(default_devices=[], has_nft=False))
    assert (world.plan().missing or "").startswith("a default route")
    assert world.clock.monotonic() == 0
    assert world.plan(config(enabled=False)) == ProbeReport(
        skipped_because="loadBalancerProbe isn't enabled in the config"
    )


def test_a_plan_names_what_is_installed_for_the_next_boot(world: World) -> None:
    def boot(asked: HostNetworking) -> Changes:
        return world.plan(asked).boot

    assert not boot(config(enabled=False))
    coming = boot(config())
    assert "/etc/aks-flex-node/load-balancer-probe.nft" in {change.what for change in coming.files}
    assert coming.units == (Change("load-balancer-probe.service", "enabled"),)
    world.configure()
    assert not boot(config())
    assert boot(config(required=True))
    going = boot(config(enabled=False))
    assert going.units == (Change("load-balancer-probe.service", "disabled"),)
    assert all(change.after is None for change in going.files)


def test_a_plan_leaves_the_next_boot_as_it_is_where_nothing_is_known_or_done(world: World) -> None:
    world.configure()
    world.node.default_device_names.clear()
    assert not world.plan().boot
    world.remove()
    world.node.default_device_names.append("eth0")
    world.node.address_list.clear()
    assert not world.plan().boot


def test_an_image_gets_files_and_its_kernel_is_not_asked(tmp_path: Path) -> None:
    world = World(tmp_path, node())
    image = _image(world)
    with pytest.raises(ConfigError, match="loadBalancerProbe.devices: must be given for an image"):
        ConfigureLoadBalancerProbe(config(), host=image).do(CancelScope())
    asked = config(devices=["eth0"], required=True)
    assert plan_probe(asked, image, CancelScope()).device == "eth0"
    report = ConfigureLoadBalancerProbe(asked, host=image).do(CancelScope())
    assert (report.changed, report.has_new_rules, report.device) == (True, False, "eth0")
    assert world.is_installed
    assert not (tmp_path / "run").exists()
    assert not ConfigureLoadBalancerProbe(asked, host=image).do(CancelScope()).changed
    assert RemoveLoadBalancerProbe(host=image).do(CancelScope()).boot.files
    assert not world.is_installed


def _image(world: World) -> Host:
    image = Host.__new__(Host)
    image.__attrs_init__(backend=None, units=world.units, layout=world.layout)
    return image


def test_reports_and_plans_are_json(world: World) -> None:
    assert world.plan().to_json()["rules"]["differ"] is True
    document = world.configure().to_json()
    assert document["schema"] == 1
    assert document["routes"] == [{"route": str(PINNED), "change": "added"}]
    assert {"path": "/etc/aks-flex-node/load-balancer-probe.sh", "change": "added"} in document["files"]
