"""What stays for the next boot: in the right order, all or nothing, and gone without a trace."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import threading
from ipaddress import IPv4Network
from typing import TYPE_CHECKING, Any

import pytest
from planning import plan_boot
from shadowed import shadowed_kernel

import phases
from hostrouting import (
    CheckRouteOverlap,
    Config,
    Configure,
    ConfigureStaticRoutes,
    Host,
    HostRoutingError,
    Layout,
    RemoveHostRouting,
    RouteError,
    RouteOverlapError,
    UnitError,
)
from hostrouting.backend import NextHop, Protocol, Route
from hostrouting.boot.gate import DROP_INS
from hostrouting.boot.locks import locked
from hostrouting.boot.manifest import CHECK, ROUTES, Manifest
from hostrouting.boot.parts import Wanted
from hostrouting.boot.plan import plan_next_boot
from hostrouting.model.changes import Change
from hostrouting.model.errors import FileError
from hostrouting.testing import FakeKernel, FakeSystemd
from phases.testing import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

MACHINE = "systemd-nspawn@kube1.service"


def config(*, mode: str = "STRICT", cidrs: tuple[str, ...] = ("172.16.1.0/24",), **more: Any) -> Config:
    section = {
        "staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.1.0/24"}]},
        "routeOverlap": {"expectedCidrs": list(cidrs), "mode": mode},
        "waitSeconds": 0,
    } | more
    return Config.from_mapping({"hostRouting": section})


NOTHING = config(cidrs=(), staticRoutes={"enabled": True})


@pytest.fixture
def kernel() -> FakeKernel:
    return shadowed_kernel()


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    return Layout(tmp_path)


@pytest.fixture
def units(layout: Layout) -> FakeSystemd:
    return FakeSystemd(layout, running=[MACHINE])


@pytest.fixture
def host(kernel: FakeKernel, units: FakeSystemd, layout: Layout) -> Host:
    return Host(routes=kernel, units=units, layout=layout)


def tree(layout: Layout) -> dict[str, object]:
    """Everything but /run: content and mode of files, targets of links, folders."""

    def one(path: Path) -> object:
        if path.is_symlink():
            return path.readlink()
        return (path.read_text(), stat.S_IMODE(path.stat().st_mode)) if path.is_file() else "folder"

    return {
        name: one(path)
        for path in sorted(layout.root.rglob("*"))
        if not (name := str(path.relative_to(layout.root))).startswith("run")
    }


def steps(layout: Layout) -> list[str]:
    """The gate's list, without folders and checksums."""
    *rows, end = layout.gate_list.read_text().splitlines()
    assert end == "end"
    return [" ".join(row.split()[:2]).removeprefix("/etc/aks-flex-node/") for row in rows]


def apply(host: Host, wanted: Config | None = None) -> None:
    phases.run(Configure(wanted or config(), host=host))


def test_everything_is_there_with_its_mode_and_both_units_are_enabled(
    host: Host, layout: Layout, units: FakeSystemd
) -> None:
    apply(host)
    files = {name: value for name, value in tree(layout).items() if isinstance(value, tuple)}
    assert {name: value[1] for name, value in files.items()} == {
        "etc/aks-flex-node/check-route-overlap.sh": 0o755,
        "etc/hostrouting/gate.list": 0o644,
        "etc/hostrouting/gate.sh": 0o755,
        "etc/hostrouting/installed.json": 0o644,
        "etc/aks-flex-node/static-routes.sh": 0o755,
        "etc/iproute2/rt_protos.d/hostrouting.conf": 0o644,
        "etc/systemd/system/check-route-overlap.service": 0o644,
        "etc/systemd/system/static-routes.service": 0o644,
        "etc/systemd/system/systemd-nspawn@.service.d/00-hostrouting.conf": 0o644,
        "etc/systemd/system/systemd-nspawn@.service.d/zz-hostrouting.conf": 0o644,
    }
    assert units.is_enabled("static-routes.service")
    assert units.is_enabled("check-route-overlap.service")


def test_the_manifest_names_everything_that_was_written(host: Host, layout: Layout) -> None:
    before = set(tree(layout))
    apply(host)
    manifest = Manifest.load(layout)
    made = set(tree(layout)) - before
    named = {*map(layout.relative, (layout.manifest, *manifest.files(layout))), *manifest.folders}
    assert {f"/{name}" for name in made} == named | {"/etc/hostrouting"}


def test_an_emptied_config_removes_scripts_and_units(host: Host, layout: Layout, kernel: FakeKernel) -> None:
    """The reference leaves script and unit, which install the old routes at every boot."""
    before, routes = tree(layout), kernel.routes()
    apply(host)
    apply(host, NOTHING)
    assert tree(layout) == before
    assert kernel.routes() == routes


def test_remove_leaves_a_tree_as_it_was_before_the_first_apply(host: Host, layout: Layout, kernel: FakeKernel) -> None:
    before, routes = tree(layout), kernel.routes()
    apply(host)
    apply(host, config(consumer="kubelet.service", mode="WARN"))
    phases.run(RemoveHostRouting(host=host))
    assert tree(layout) == before
    assert kernel.routes() == routes


def test_a_second_run_touches_no_file_and_reloads_nothing(host: Host, layout: Layout, units: FakeSystemd) -> None:
    apply(host)
    written = [path for path in layout.root.joinpath("etc").rglob("*") if path.is_file()]
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns, path.stat().st_ctime_ns) for path in written}
    reloads = units.reloads
    apply(host)
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns, path.stat().st_ctime_ns) for path in written} == before
    assert units.reloads == reloads


def test_many_routes_wait_no_longer_than_one(layout: Layout) -> None:
    """The reference's "cached" device is set in a subshell, so each route waits anew."""
    many = [{"destination": f"172.16.{number}.0/24"} for number in range(1, 50)]
    clock = FakeClock()
    task = ConfigureStaticRoutes(
        config(staticRoutes={"enabled": True, "routes": many}, waitSeconds=30),
        host=Host(routes=FakeKernel(), units=FakeSystemd(layout), layout=layout),
    )
    with pytest.raises(HostRoutingError, match="waited 30 s in vain for the default route"):
        phases.run(task, scope=phases.CancelScope(clock=clock))
    assert clock.monotonic() == pytest.approx(30)


def test_the_tasks_alone_agree_about_the_uplinks(host: Host, layout: Layout) -> None:
    named, unnamed = config(uplinks=["eth*"]), config()
    phases.run(ConfigureStaticRoutes(named, host=host))
    phases.run(CheckRouteOverlap(named, host=host))
    assert Manifest.load(layout).config.uplinks == ("eth*",)
    before = {name: layout.script(name).read_text() for name in (ROUTES, CHECK)}
    for task in (ConfigureStaticRoutes, CheckRouteOverlap):
        with pytest.raises(UnitError):
            phases.run(task(unnamed, host=host))
        assert Manifest.load(layout).config.uplinks == ("eth*",)
        assert before == {name: layout.script(name).read_text() for name in (ROUTES, CHECK)}
    phases.run(Configure(unnamed, host=host))
    assert Manifest.load(layout).config.uplinks is None
    assert all("\nuplinks " not in layout.script(name).read_text() for name in (ROUTES, CHECK))


def test_a_mode_changes_the_list_and_a_consumer_moves_the_drop_in(
    host: Host, layout: Layout, units: FakeSystemd
) -> None:
    apply(host)
    assert layout.gates("systemd-nspawn@.service")[-1].read_text() == DROP_INS[-1]
    reloads = units.reloads
    apply(host, config(mode="WARN"))
    assert steps(layout) == ["static-routes.sh required", "check-route-overlap.sh forgiven"]
    assert units.reloads == reloads
    apply(host, config(consumer="kubelet.service"))
    assert not layout.gates("systemd-nspawn@.service")[-1].parent.exists()
    assert layout.gates("kubelet.service")[-1].read_text() == DROP_INS[-1]


def test_what_the_gate_runs_comes_and_goes_and_its_drop_in_never_changes(host: Host, layout: Layout) -> None:
    phases.run(ConfigureStaticRoutes(config(), host=host))
    assert steps(layout) == ["static-routes.sh required"]
    before = layout.gates("systemd-nspawn@.service")[-1].stat()
    phases.run(CheckRouteOverlap(config(), host=host))
    assert steps(layout) == ["static-routes.sh required", "check-route-overlap.sh required"]
    phases.run(ConfigureStaticRoutes(NOTHING, host=host))
    assert steps(layout) == ["check-route-overlap.sh required"]
    assert layout.gates("systemd-nspawn@.service")[-1].stat() == before


@pytest.mark.parametrize("wait_seconds", [0, 600])
def test_units_do_not_depend_on_the_config(host: Host, layout: Layout, wait_seconds: int) -> None:
    kernel_has_all = config(waitSeconds=wait_seconds)
    apply(host, kernel_has_all)
    limits = {"static-routes": "660", "check-route-overlap": "1260"}
    for name, seconds in limits.items():
        lines = layout.unit(name).read_text().splitlines()
        assert f"TimeoutStartSec={seconds}" in lines
        (after,) = [line for line in lines if line.startswith("After=")]
        assert "systemd-udev-settle.service ib_rdma_configure.service" in after


def test_strict_raises_after_everything_is_installed(host: Host, layout: Layout) -> None:
    with pytest.raises(RouteOverlapError):
        apply(host, config(cidrs=("172.16.2.0/24",)))
    assert layout.gates("systemd-nspawn@.service")[-1].exists()
    assert layout.script("check-route-overlap").exists()


# --- the gate must hold --------------------------------------------------------------------------------------------


def test_an_instance_whose_override_comes_after_ours_and_empties_the_list_makes_apply_fail_with_nothing_changed(
    host: Host, layout: Layout, kernel: FakeKernel
) -> None:
    override = layout.units / f"{MACHINE}.d" / "zzz-override.conf"
    override.parent.mkdir()
    override.write_text("[Service]\nExecStartPre=\n")
    before, routes = tree(layout), kernel.routes()
    with pytest.raises(UnitError, match=r"doesn't hold systemd-nspawn@kube1\.service.*systemctl cat"):
        apply(host)
    assert tree(layout) == before
    assert kernel.routes() == routes


def test_an_override_that_sorts_before_ours_is_survived(host: Host, layout: Layout) -> None:
    override = layout.units / f"{MACHINE}.d" / "override.conf"
    override.parent.mkdir()
    override.write_text("[Service]\nExecStartPre=\n")
    apply(host)


def test_a_run_that_was_killed_before_the_reload_is_healed_by_the_next(host: Host, layout: Layout) -> None:
    behind = FakeSystemd(layout, running=[MACHINE])
    apply(host)  # systemd `behind` has read none of it
    apply(Host(routes=host.routes, units=behind, layout=layout))
    assert behind.reloads == 1
    assert "gate.sh again" in behind.show(MACHINE, "ExecStartPreEx")["ExecStartPreEx"]


@pytest.mark.parametrize(
    ("setting", "mode", "is_refused"),
    [
        ("SuccessExitStatus=255", "WARN", True),
        ("SuccessExitStatus=133 SIGKILL", "STRICT", True),
        ("SuccessExitStatus=133", "STRICT", False),
        ("TimeoutStartSec=24", "STRICT", True),
        ("TimeoutStartSec=4", "WARN", False),
    ],
)
def test_a_consumer_that_starts_though_the_gate_fails_makes_apply_fail_with_nothing_changed(
    host: Host, layout: Layout, setting: str, mode: str, is_refused: bool
) -> None:
    override = layout.units / f"{MACHINE}.d" / "override.conf"
    override.parent.mkdir()
    override.write_text(f"[Service]\n{setting}\n")
    before = tree(layout)
    if is_refused:
        with pytest.raises(UnitError, match=f"doesn't hold {MACHINE}: {setting.partition('=')[0]}="):
            phases.run(CheckRouteOverlap(config(mode=mode), host=host))
        assert tree(layout) == before
    else:
        apply(host, config(mode=mode))


# --- oneshots ------------------------------------------------------------------------------------------------------


def test_oneshots_that_have_not_run_are_started_once_the_network_is_up(host: Host, units: FakeSystemd) -> None:
    apply(host)
    assert units.starts == []
    units.active.add("network-online.target")
    apply(host)
    apply(host)
    assert units.starts == ["static-routes.service", "check-route-overlap.service"]


def test_a_failing_strict_check_has_its_oneshot_run_too(host: Host, units: FakeSystemd) -> None:
    units.active.add("network-online.target")
    with pytest.raises(RouteOverlapError):
        apply(host, config(cidrs=("172.16.2.0/24",)))
    assert units.starts == ["static-routes.service", "check-route-overlap.service"]


# --- locks and removal -----------------------------------------------------------------------------------------------


def is_free(path: Path) -> bool:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_no_script_waits_for_a_reload_or_a_read_back_and_no_second_run_comes_between(
    kernel: FakeKernel, layout: Layout
) -> None:
    seen: set[tuple[bool, bool]] = set()

    class Watching(FakeSystemd):
        def reload(self) -> None:
            seen.add((is_free(layout.lock), is_free(layout.run_lock)))
            super().reload()

        def show(self, unit: str, *names: str) -> dict[str, str]:
            seen.add((is_free(layout.lock), is_free(layout.run_lock)))
            return super().show(unit, *names)

    host = Host(routes=kernel, units=Watching(layout, running=[MACHINE]), layout=layout)
    apply(host, config(watch={"enabled": True}))
    phases.run(RemoveHostRouting(host=host))
    assert seen == {(True, False)}


def test_the_check_writes_its_marker_under_the_lock_of_the_script_and_the_watcher(host: Host, layout: Layout) -> None:
    with locked(layout.lock, phases.CancelScope()):
        with pytest.raises(FileError, match="another run has held it"):
            phases.run(CheckRouteOverlap(config(), host=host), scope=phases.CancelScope(clock=FakeClock()))
        assert not layout.marker_ok.exists()
        assert not layout.marker_detected.exists()
        assert not layout.report.exists()
    with pytest.raises(RouteOverlapError):
        phases.run(CheckRouteOverlap(config(), host=host))
    assert layout.marker_detected.exists()


def test_a_run_waits_for_another_and_its_config_is_the_last(host: Host, layout: Layout) -> None:
    first, second = config(), config(mode="WARN", cidrs=("10.96.0.0/12",), staticRoutes={"enabled": True})
    ended: list[str] = []

    def run(name: str, wanted: Config) -> None:
        apply(host, wanted)
        ended.append(name)

    threads = [threading.Thread(target=run, args=item) for item in (("first", first), ("second", second))]
    layout.run_dir.mkdir(parents=True)
    with layout.run_lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for thread in threads:
            thread.start()
        threads[0].join(timeout=0.2)
        assert ended == []
    for thread in threads:
        thread.join()
    assert not plan_boot({"first": first, "second": second}[ended[-1]], host)


def test_removal_waits_for_starts_that_run_the_gate_which_then_admits(
    host: Host, layout: Layout, units: FakeSystemd
) -> None:
    apply(host)
    units.properties[MACHINE] = {"SubState": "condition"}
    clock = FakeClock()
    reloads = units.reloads
    phases.run(RemoveHostRouting(host=host), scope=phases.CancelScope(clock=clock))
    assert clock.monotonic() == pytest.approx(15, abs=1)
    assert units.reloads == reloads + 1
    assert not layout.gate_script.exists()


# --- the reference's installation ----------------------------------------------------------------------------------


@pytest.fixture
def reference(layout: Layout) -> list[Path]:
    """What the Go package leaves: units of the same names, required by every instance of the template."""
    links = []
    for name in ("static-routes", "check-route-overlap"):
        layout.unit(name).write_text(
            f"[Unit]\nBefore=systemd-nspawn@.service\n[Service]\nType=oneshot\nExecStart=/bin/{name}\n"
        )
        for kind in ("requires", "wants"):
            link = layout.units / f"systemd-nspawn@.service.{kind}" / f"{name}.service"
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(f"../{name}.service")
            links.append(link)
    return links


def test_the_references_links_are_gone_and_reloaded_before_any_unit_is_touched(
    host: Host, layout: Layout, reference: list[Path]
) -> None:
    """Beside such a link a restart of the oneshot bounces the running machine."""
    order: list[str] = []
    old = layout.unit("static-routes").read_text()

    class Watching(FakeSystemd):
        def reload(self) -> None:
            links = [link for link in reference if link.is_symlink()]
            is_old = layout.unit("static-routes").read_text() == old
            order.append(f"{len(links)} links, {'old' if is_old else 'new'} unit")
            super().reload()

    apply(Host(routes=host.routes, units=Watching(layout, running=[MACHINE]), layout=layout))
    assert order[:2] == ["0 links, old unit", "0 links, new unit"]
    assert not any(link.parent.exists() for link in reference)


def test_links_of_the_reference_that_lead_nowhere_are_gone_too(host: Host, layout: Layout) -> None:
    """As all of them do in an image, and any whose unit somebody has removed."""
    link = layout.units / "systemd-nspawn@.service.requires/static-routes.service"
    link.parent.mkdir()
    link.symlink_to("/nowhere/static-routes.service")
    apply(host)
    assert not link.is_symlink()
    assert not link.parent.exists()


def test_a_failure_puts_the_references_links_back(host: Host, layout: Layout, reference: list[Path]) -> None:
    override = layout.units / f"{MACHINE}.d" / "zzz-override.conf"
    override.parent.mkdir()
    override.write_text("[Service]\nExecStartPre=\n")
    before = tree(layout)
    with pytest.raises(UnitError):
        apply(host)
    assert tree(layout) == before


# --- faults --------------------------------------------------------------------------------------------------------


class Refusing(FakeSystemd):
    """Fails at the Nth call that changes anything."""

    def __init__(self, layout: Layout, at: int) -> None:
        super().__init__(layout, running=[MACHINE])
        self.left = at

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise UnitError("`systemctl` failed: Connection timed out")

    def reload(self) -> None:
        self._count()
        super().reload()

    def enable(self, unit: str) -> None:
        self._count()
        super().enable(unit)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_systemd_that_fails_at_any_step_leaves_nothing_and_the_next_run_heals(
    host: Host, layout: Layout, kernel: FakeKernel, at: int
) -> None:
    before = tree(layout)
    with pytest.raises(UnitError, match="timed out"):
        apply(Host(routes=kernel, units=Refusing(layout, at), layout=layout))
    assert tree(layout) == before
    apply(Host(routes=kernel, units=FakeSystemd(layout, running=[MACHINE]), layout=layout))
    assert layout.gates("systemd-nspawn@.service")[-1].read_text() == DROP_INS[-1]


class Reading(FakeSystemd):
    """Notes at each reload whether the drop-in and what it runs are there."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout, running=[MACHINE])
        self._gate = (layout.gates("systemd-nspawn@.service")[-1], layout.gate_script)
        self.read: list[tuple[bool, ...]] = []

    def reload(self) -> None:
        self.read.append(tuple(path.exists() for path in self._gate))
        super().reload()


def test_on_the_way_back_the_gate_is_forgotten_first(kernel: FakeKernel, layout: Layout) -> None:
    """As long as systemd has the drop-in of a first installation in memory, what it runs is there."""
    units = Reading(layout)
    in_the_way = Route(IPv4Network("172.16.1.0/24"), (NextHop("ib0"),), protocol=Protocol.STATIC)
    assert kernel.add([in_the_way]) == ()
    with pytest.raises(RouteError):
        apply(Host(routes=kernel, units=units, layout=layout))
    assert units.read == [(True, True), (False, True), (False, False)]


def test_the_way_back_has_the_scripts_of_before(host: Host, layout: Layout) -> None:
    """Where first routes are taken back a check must not expect what they bring."""
    before = config(cidrs=("10.96.0.0/12",), staticRoutes={"enabled": True})
    apply(host, before)
    script = layout.script(CHECK)
    plan = plan_next_boot(host, Wanted.of(config(), host.layout))
    assert {file.path: file.text for file in plan.way_back}[script] == script.read_text()
    assert [file.path for file in plan.way_back][-1] == layout.gate_list


def test_litter_among_the_stages_ends_no_run(host: Host, layout: Layout, tmp_path: Path) -> None:
    """A file goes and so does a link, while what it leads to stays."""
    apply(host)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    layout.stages.mkdir()
    (layout.stages / "file").touch()
    (layout.stages / "link").symlink_to(elsewhere)
    apply(host)
    assert not layout.stages.exists()
    assert elsewhere.exists()


def write_steps(layout: Layout) -> list[Path]:
    return [
        layout.manifest,
        layout.script("static-routes"),
        layout.unit("static-routes"),
        layout.protocol_names,
        layout.gate_script,
        layout.gate_list,
        *layout.gates("systemd-nspawn@.service"),
    ]


@pytest.mark.parametrize("step", range(8))
def test_a_file_that_can_not_be_written_at_any_step_puts_all_back(
    host: Host, layout: Layout, kernel: FakeKernel, step: int
) -> None:
    """A folder in the file's place stands for every refusal of the file system."""
    blocked = write_steps(layout)[step]
    blocked.mkdir(parents=True)
    (blocked / "x").mkdir()
    before, routes = tree(layout), kernel.routes()
    with pytest.raises(FileError, match="can't (read|write)"):
        apply(host)
    assert tree(layout) == before
    assert kernel.routes() == routes


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"parts": 3}', "null", '{"consumer": "../../x.service", "parts": {}, "folders": []}']
)
def test_a_broken_manifest_is_an_error_that_says_what_to_do(
    host: Host, layout: Layout, kernel: FakeKernel, text: str
) -> None:
    layout.manifest.parent.mkdir(parents=True)
    layout.manifest.write_text(text)
    routes = kernel.routes()
    with pytest.raises(FileError, match="can't read the manifest.*mend it"):
        apply(host)
    assert kernel.routes() == routes


def test_a_manifest_can_not_make_us_remove_somebody_elses_folder(host: Host, layout: Layout) -> None:
    victim = layout.root / "var" / "empty"
    victim.mkdir(parents=True)
    apply(host)
    document = json.loads(layout.manifest.read_text())
    document["folders"] += ["/var/empty"]
    layout.manifest.write_text(json.dumps(document))
    with pytest.raises(FileError, match="'/var/empty' is nothing that hostrouting installs"):
        phases.run(RemoveHostRouting(host=host))
    assert victim.exists()


# --- plan and images -----------------------------------------------------------------------------------------------


def units_all(action: str) -> tuple[Change, ...]:
    return tuple(Change(unit, action) for unit in ("static-routes.service", "check-route-overlap.service"))


def test_plan_says_what_apply_does_and_nothing_afterwards(host: Host, layout: Layout) -> None:
    before = tree(layout)
    plan = plan_boot(config(), host)
    assert tree(layout) == before
    assert {change.what for change in plan.files} == {
        f"/{path.relative_to(layout.root)}"
        for path in [*write_steps(layout), layout.script("check-route-overlap"), layout.unit("check-route-overlap")]
    }
    assert plan.units == units_all("enabled")
    apply(host)
    assert not plan_boot(config(), host)
    host.units.disable("static-routes.service")
    assert plan_boot(config(), host).units == (Change("static-routes.service", "enabled"),)
    host.units.enable("static-routes.service")
    taken_back = plan_boot(NOTHING, host)
    assert all(change.after is None for change in taken_back.files)
    assert {layout.of(str(change.what)) for change in taken_back.files} == {
        *(path for path in layout.root.rglob("*") if path.is_file() and path not in (layout.lock, layout.run_lock))
    }
    assert taken_back.units == units_all("disabled")


@pytest.fixture
def image_root(tmp_path: Path) -> Path:
    root = tmp_path / "image"
    for folder in ("etc/systemd/system", "usr/lib/systemd/system", "opt"):
        (root / folder).mkdir(parents=True)
    return root


@pytest.mark.parametrize("rest", ["", "etc/systemd/system"])
def test_a_folder_without_a_system_is_no_image(tmp_path: Path, rest: str) -> None:
    """A mount point that nothing is mounted on, or whose /usr isn't."""
    (tmp_path / rest).mkdir(parents=True, exist_ok=True)
    with pytest.raises(HostRoutingError, match=r"holds no system: it has no usr/lib/systemd/system"):
        Host.image(tmp_path)


OUTWARD = ["/opt/elsewhere", "../" * 30 + "opt/elsewhere"]


@pytest.mark.parametrize("target", OUTWARD)
@pytest.mark.parametrize(
    "path",
    [
        "etc/aks-flex-node",
        "etc/aks-flex-node/static-routes.sh",
        "etc/systemd/system/systemd-nspawn@.service.d",
        "etc/systemd/system/multi-user.target.wants",
        "etc/iproute2",
        "etc/iproute2/rt_protos.d",
        "etc",
        "usr",
    ],
)
def test_a_link_out_of_an_image_is_refused_before_anything_is_written(image_root: Path, path: str, target: str) -> None:
    link = image_root / path
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.exists():
        link.rename(image_root / "moved")
    link.symlink_to(target)
    before = tree(Layout(image_root))
    with pytest.raises(HostRoutingError, match=f"{link} is a link to {target}, which leads out of the image"):
        Host.image(image_root)
    assert tree(Layout(image_root)) == before


def test_a_link_inside_an_image_is_followed(image_root: Path) -> None:
    (image_root / "etc").rename(image_root / "usr/etc")
    (image_root / "etc").symlink_to("usr/etc")
    (image_root / "etc/aks-flex-node").symlink_to("../../opt")
    phases.run(Configure(config(), host=Host.image(image_root)))
    assert (image_root / "opt/static-routes.sh").is_file()
    assert (image_root / "usr/etc/systemd/system/static-routes.service").is_file()


def test_an_image_gets_files_and_enablement_and_no_run(image_root: Path) -> None:
    root = image_root
    if not os.access("/usr/bin/systemctl", os.X_OK):
        pytest.skip("no systemctl on this machine")
    before = tree(Layout(root))
    image = Host.image(root)
    report = phases.run(Configure(config(), host=image))
    assert (bool(report.routes.plan.changes), bool(report.changes.files)) == (False, True)
    assert (report.overlap.verdict, report.overlap.findings) == ("unknown", ())
    assert image.layout.enablement("static-routes").is_symlink()
    assert image.layout.gates("systemd-nspawn@.service")[-1].exists()
    assert not (root / "run").exists()
    phases.run(RemoveHostRouting(host=image))
    assert tree(image.layout) == before


@pytest.mark.parametrize("root", ["/", "//", "//.", "/..", "/proc/self/root", "/proc/self/root/"])
def test_this_hosts_own_root_is_no_image(root: str) -> None:
    with pytest.raises(HostRoutingError, match="this host's own"):
        Host.image(root)


def test_two_slashes_are_one() -> None:
    assert Layout("//").is_this_host
    assert Layout("//srv/image") == Layout("/srv/image")


def test_a_layout_of_another_root_needs_its_own_routes_and_units(tmp_path: Path) -> None:
    with pytest.raises(HostRoutingError) as caught:
        Host(layout=Layout(tmp_path))
    assert [path for path, _ in caught.value.problems] == ["routes", "units"]  # type: ignore[attr-defined]
