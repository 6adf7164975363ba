"""The probe's part beside those of host routing: each is installed, planned, moved and taken back without the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from shadowed import shadowed_kernel

import phases
from hostrouting import Config, Configure, Host, Layout, RemoveHostRouting, UnitError
from hostrouting.azure import RemoveLoadBalancerProbe
from hostrouting.azure.config import HostNetworking, Ipv6Detection
from hostrouting.azure.probe.part import FLUSH_DROP_INS, probe_part
from hostrouting.azure.probe.ruleset import PROBE
from hostrouting.boot.files import Run
from hostrouting.boot.gate import DROP_IN
from hostrouting.boot.installation import install_part, remove_parts
from hostrouting.boot.manifest import CHECK, ROUTES, Manifest
from hostrouting.boot.parts import plan_boot, plan_part, plan_removal
from hostrouting.model.changes import Change
from hostrouting.testing import FakeProbeNode, FakeSystemd
from phases import all_or_nothing

if TYPE_CHECKING:
    from pathlib import Path

    from hostrouting.boot.parts import Part

MACHINE = "systemd-nspawn@kube1.service"
TEMPLATE = "systemd-nspawn@.service"
UNIT = "load-balancer-probe.service"


def config(**more: Any) -> Config:
    section = {
        "staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.1.0/24"}]},
        "routeOverlap": {"expectedCidrs": ["172.16.1.0/24"], "mode": "STRICT"},
        "waitSeconds": 0,
    }
    return Config.from_mapping({"hostRouting": section | more})


NOTHING = config(staticRoutes={"enabled": True}, routeOverlap={})


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    return Layout(tmp_path)


@pytest.fixture
def units(layout: Layout) -> FakeSystemd:
    return FakeSystemd(layout, running=[MACHINE])


@pytest.fixture
def host(units: FakeSystemd, layout: Layout) -> Host:
    return Host(routes=shadowed_kernel(), units=units, layout=layout)


@pytest.fixture
def part(layout: Layout) -> Part:
    return probe_part("eth0", layout, required=True)


def tree(layout: Layout, *, manifest: bool = True) -> dict[str, object]:
    """Everything but /run: content and mode of files, targets of links, folders; with the manifest, or without."""
    return {
        name: path.readlink() if path.is_symlink() else (path.read_text(), path.stat().st_mode) if path.is_file() else 0
        for path in sorted(layout.root.rglob("*"))
        if not (name := layout.relative(path)).startswith("/run") and (manifest or path != layout.manifest)
    }


def install(host: Host, part: Part, consumer: str = TEMPLATE) -> bool:
    with all_or_nothing() as undo:
        return bool(install_part(host, consumer, part, undo))


def apply(host: Host, wanted: Config | None = None) -> None:
    phases.run(Configure(wanted or config(), host=host))


def steps(layout: Layout) -> list[str]:
    return layout.gate_list.read_text().splitlines()


PROBE_STEP, BOTH_STEPS = (
    "load-balancer-probe.sh required",
    ["static-routes.sh required", "check-route-overlap.sh required"],
)


def test_everything_is_there_with_its_mode_and_the_unit_is_enabled(
    host: Host, layout: Layout, units: FakeSystemd, part: Part
) -> None:
    before = set(tree(layout))
    assert install(host, part)
    made = {name: value for name, value in tree(layout).items() if name not in before}
    assert {name: value[1] & 0o777 for name, value in made.items() if isinstance(value, tuple)} == {
        "/etc/aks-flex-node/gate.list": 0o644,
        "/etc/aks-flex-node/gate.sh": 0o755,
        "/etc/aks-flex-node/hostrouting.installed.json": 0o644,
        "/etc/aks-flex-node/load-balancer-probe.nft": 0o644,
        "/etc/aks-flex-node/load-balancer-probe.sh": 0o755,
        "/etc/systemd/system/load-balancer-probe.service": 0o644,
        "/etc/systemd/system/nftables-flush.service.d/zz-hostrouting.conf": 0o644,
        "/etc/systemd/system/nftables.service.d/zz-hostrouting.conf": 0o644,
        "/etc/systemd/system/systemd-nspawn@.service.d/zz-hostrouting.conf": 0o644,
    }
    assert units.is_enabled(UNIT)
    manifest = Manifest.load(layout)
    assert set(made) == {
        *map(layout.relative, (layout.manifest, *manifest.files(layout))),
        *manifest.folders,
    }


def test_its_files_are_those_that_are_taken_back(layout: Layout, part: Part) -> None:
    manifest = Manifest(TEMPLATE, {PROBE: part.installed(layout)})
    last_first = [file.path for file in reversed(part.files)]
    gate = [layout.gate_list, layout.gate(TEMPLATE)]
    assert manifest.files(layout) == [*gate, layout.enablement(PROBE), *last_first, layout.gate_script]


@pytest.mark.parametrize("required", [True, False])
def test_it_holds_the_consumer_back_if_and_only_if_it_is_required(host: Host, layout: Layout, required: bool) -> None:
    install(host, probe_part("eth0", layout, required=required))
    assert steps(layout) == [f"load-balancer-probe.sh {'required' if required else 'forgiven'}"]
    assert {name: part.is_blocking for name, part in Manifest.load(layout).parts.items()} == {PROBE: required}


def test_whatever_flushes_the_ruleset_gives_the_rules_back_and_never_fails_by_it(layout: Layout, part: Part) -> None:
    texts = {file.path: file.text for file in part.files}
    for unit in FLUSH_DROP_INS:
        lines = [line for line in texts[layout.gate(unit)].splitlines() if line.startswith("Exec")]
        assert lines[0].startswith("ExecStartPost=")
        assert {line.partition("=")[2] for line in lines} == {"-+/etc/aks-flex-node/load-balancer-probe.sh rules"}


def test_a_second_time_touches_nothing_and_another_device_changes_two_files_and_the_manifest(
    host: Host, layout: Layout, units: FakeSystemd, part: Part
) -> None:
    install(host, part)
    before, reloads = tree(layout), units.reloads
    assert not install(host, part)
    assert (tree(layout), units.reloads) == (before, reloads)
    install(host, probe_part("azure0", layout, required=True))
    after = tree(layout)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {
        "/etc/aks-flex-node/hostrouting.installed.json",
        "/etc/aks-flex-node/load-balancer-probe.sh",
        "/etc/aks-flex-node/load-balancer-probe.nft",
    }


@pytest.mark.parametrize("required", [True, False])
def test_the_manifest_tells_what_it_was_rendered_from(host: Host, layout: Layout, required: bool) -> None:
    assert Manifest.load(layout).read_as(HostNetworking.from_mapping) == HostNetworking()
    apply(host)
    install(host, probe_part("azure0", layout, required=required), "kubelet.service")
    installed = Manifest.load(layout).read_as(HostNetworking.from_mapping)
    probe = installed.load_balancer_probe
    assert (probe.enabled, probe.devices, probe.required) == (True, ("azure0",), required)
    assert probe.ipv6_detection is Ipv6Detection.ALWAYS
    assert installed.consumer == "kubelet.service"
    remove_parts(host, phases.CancelScope(), Run(), PROBE)
    assert Manifest.load(layout).read_as(HostNetworking.from_mapping) == HostNetworking(consumer="kubelet.service")


def test_taken_back_the_tree_is_as_it_was(host: Host, layout: Layout, part: Part) -> None:
    before = tree(layout)
    install(host, part)
    run = Run()
    remove_parts(host, phases.CancelScope(), run, PROBE)
    gate = [layout.gate_list, layout.gate(TEMPLATE), layout.gate_script]
    gone = (layout.manifest, *gate, *(file.path for file in part.files))
    assert {*run.changes.files} == {Change(layout.relative(path), "removed") for path in gone}
    assert run.changes.units == (Change(UNIT, "disabled"),)
    assert tree(layout) == before


def test_it_is_out_of_the_gate_before_its_unit_and_its_files_go(
    host: Host, layout: Layout, units: FakeSystemd, part: Part
) -> None:
    install(host, part)
    order: list[str] = []

    class Watching(FakeSystemd):
        def reload(self) -> None:
            units_ = [path.exists() for path in (layout.gate_list, layout.gate(TEMPLATE), layout.unit(PROBE))]
            order.append(f"reload {units_} {layout.script(PROBE).exists()} {layout.gate_script.exists()}")
            super().reload()

        def disable(self, unit: str) -> None:
            order.append(f"disable {layout.gate(TEMPLATE).exists()} {layout.script(PROBE).exists()}")
            super().disable(unit)

    on = Host(routes=host.routes, units=Watching(layout, running=[MACHINE]), layout=layout)
    remove_parts(on, phases.CancelScope(), Run(), PROBE)
    assert order == ["disable False True", "reload [False, False, False] True True"]


# --- beside host routing -------------------------------------------------------------------------------------------


def test_host_routing_comes_changes_and_goes_beside_it(host: Host, layout: Layout, part: Part) -> None:
    install(host, part)
    alone = tree(layout, manifest=False)
    apply(host)
    assert steps(layout) == [*BOTH_STEPS, PROBE_STEP]
    apply(host, config(routeOverlap={}))
    assert steps(layout) == [BOTH_STEPS[0], PROBE_STEP]
    apply(host, NOTHING)
    assert tree(layout, manifest=False) == alone


def test_what_takes_back_everything_takes_it_too(host: Host, layout: Layout, part: Part) -> None:
    before = tree(layout)
    install(host, part)
    apply(host)
    phases.run(RemoveLoadBalancerProbe(host=host, node=FakeProbeNode()))
    phases.run(RemoveHostRouting(host=host))
    assert tree(layout) == before


def test_it_comes_changes_and_goes_beside_host_routing(host: Host, layout: Layout, part: Part) -> None:
    apply(host)
    alone = tree(layout, manifest=False)
    install(host, part)
    assert steps(layout) == [*BOTH_STEPS, PROBE_STEP]
    install(host, probe_part("eth1", layout, required=False))
    assert steps(layout) == [*BOTH_STEPS, "load-balancer-probe.sh forgiven"]
    remove_parts(host, phases.CancelScope(), Run(), PROBE)
    assert tree(layout, manifest=False) == alone


def test_whoever_names_another_consumer_moves_the_whole_gate(host: Host, layout: Layout, part: Part) -> None:
    install(host, part)
    apply(host, config(consumer=MACHINE))
    assert not layout.gate(TEMPLATE).parent.exists()
    assert layout.gate(MACHINE).read_text() == DROP_IN
    install(host, part, "kubelet.service")
    assert not layout.gate(MACHINE).parent.exists()
    assert layout.gate("kubelet.service").read_text() == DROP_IN
    assert steps(layout) == [*BOTH_STEPS, PROBE_STEP]
    parts = Manifest.load(layout).parts
    assert {name: part.is_blocking for name, part in parts.items()} == {ROUTES: True, CHECK: True, PROBE: True}


def test_an_instance_that_does_not_hold_it_makes_it_fail_with_nothing_changed(
    host: Host, layout: Layout, part: Part
) -> None:
    override = layout.units / f"{MACHINE}.d" / "zzz-override.conf"
    override.parent.mkdir()
    override.write_text("[Service]\nExecStartPre=\n")
    before = tree(layout)
    with pytest.raises(UnitError, match="lacks ExecStartPre=.*gate.sh again"):
        install(host, part)
    assert tree(layout) == before


def test_a_flush_drop_in_that_systemd_has_not_read_is_read_at_the_next_run(
    host: Host, layout: Layout, part: Part
) -> None:
    behind = FakeSystemd(layout, running=[MACHINE, "nftables.service"])
    install(host, part)
    path = layout.gate("nftables.service")
    text = path.read_text()
    path.unlink()
    behind.reload()
    path.write_text(text)
    assert install(Host(routes=host.routes, units=behind, layout=layout), part)
    assert behind.show("nftables.service", "NeedDaemonReload") == {"NeedDaemonReload": "no"}


# --- plans ---------------------------------------------------------------------------------------------------------


def test_the_plan_of_host_routing_is_empty_beside_it(host: Host, layout: Layout, part: Part) -> None:
    install(host, part)
    assert not plan_boot(NOTHING, host)
    assert not plan_boot(config(staticRoutes={"enabled": True}, routeOverlap={}, consumer=MACHINE), host)
    apply(host)
    assert not plan_boot(config(), host)
    taken_back = plan_boot(NOTHING, host)
    assert taken_back.units == (
        Change("static-routes.service", "disabled"),
        Change("check-route-overlap.service", "disabled"),
    )
    manifest, kept = [change for change in taken_back.files if change.after is not None]
    assert (manifest.what, kept.what) == (layout.relative(layout.manifest), layout.relative(layout.gate_list))
    assert not any("load-balancer" in str(change.what) or "nftables" in str(change.what) for change in taken_back.files)
    apply(host, NOTHING)
    assert (layout.manifest.read_text(), layout.gate_list.read_text()) == (manifest.after, kept.after)


def test_the_plan_says_how_the_whole_gate_moves(host: Host, layout: Layout, part: Part) -> None:
    install(host, part)
    plan = plan_boot(config(consumer=MACHINE), host)
    after = {change.what: change.after for change in plan.files}
    assert after[layout.relative(layout.gate(TEMPLATE))] is None
    assert after[layout.relative(layout.gate(MACHINE))] == DROP_IN


def changes(before: dict[str, object], after: dict[str, object]) -> set[tuple[str, object]]:
    """Which files have which text afterwards, but for links."""

    def text(value: object) -> object:
        return value[0] if isinstance(value, tuple) else None

    return {
        (name, text(after.get(name))) for name in {*before, *after} if text(before.get(name)) != text(after.get(name))
    }


def told(files: tuple[Change, ...]) -> set[tuple[str, object]]:
    return {(str(change.what), change.after) for change in files}


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("consumer", [TEMPLATE, "kubelet.service"])
def test_the_plan_of_the_part_alone_is_what_is_done(
    host: Host, layout: Layout, part: Part, others: bool, consumer: str
) -> None:
    if others:
        apply(host)
    before = tree(layout)
    plan = plan_part(host, consumer, part)
    assert tree(layout) == before
    assert plan.units == (Change(UNIT, "enabled"),)
    install(host, part, consumer)
    assert told(plan.files) == changes(before, tree(layout))
    assert not plan_part(host, consumer, part)

    there = tree(layout)
    plan = plan_removal(host, PROBE)
    assert plan.units == (Change(UNIT, "disabled"),)
    remove_parts(host, phases.CancelScope(), Run(), PROBE)
    assert told(plan.files) == changes(there, tree(layout))
    assert not plan_removal(host, PROBE)
