"""The installation for the next boot has the right order, is all or nothing, and can be removed without a trace."""

from __future__ import annotations

import fcntl
import os
import stat
import threading
from ipaddress import IPv4Network
from typing import TYPE_CHECKING, Any

import pytest
from planning import plan_boot
from wanted import MACHINE, SHADOWED, config

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


WANTED = config(SHADOWED)
NOTHING = config(cidrs=())


def tree(layout: Layout) -> dict[str, object]:
    """Return everything outside of /run, with the content and mode of files and the targets of links."""

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
    """Return the lines of the gate list without folders and checksums."""
    *rows, end = layout.gate_list.read_text().splitlines()
    assert end == "end"
    return [" ".join(row.split()[:2]).removeprefix("/etc/aks-flex-node/") for row in rows]


def apply(host: Host, wanted: Config = WANTED) -> None:
    phases.run(Configure(wanted, host=host))


def override(layout: Layout, text: str, name: str = "zzz-override") -> None:
    path = layout.units / f"{MACHINE}.d/{name}.conf"
    path.parent.mkdir()
    path.write_text(f"[Service]\n{text}\n")


def test_files_have_modes_and_units_are_enabled(host: Host, layout: Layout, units: FakeSystemd) -> None:
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


def test_the_manifest_names_every_written_file(host: Host, layout: Layout) -> None:
    before = set(tree(layout))
    apply(host)
    manifest = Manifest.load(layout)
    made = set(tree(layout)) - before
    named = {*map(layout.relative, (layout.manifest, *manifest.files(layout))), *manifest.folders}
    assert {f"/{name}" for name in made} == named | {"/etc/hostrouting"}


@pytest.mark.parametrize("is_by_config", [False, True])
def test_remove_restores_the_tree(host: Host, layout: Layout, kernel: FakeKernel, is_by_config: bool) -> None:
    """The reference leaves its script and unit behind, which then install the old routes at every boot."""
    before, routes = tree(layout), kernel.routes()
    apply(host)
    apply(host, config(SHADOWED, consumer="kubelet.service", mode="WARN"))
    if is_by_config:
        apply(host, NOTHING)
    else:
        phases.run(RemoveHostRouting(host=host))
    assert tree(layout) == before
    assert kernel.routes() == routes


def test_a_second_run_touches_no_file_and_reloads_nothing(host: Host, layout: Layout, units: FakeSystemd) -> None:
    def states() -> dict[Path, tuple[int, int, int]]:
        paths = [path for path in layout.root.joinpath("etc").rglob("*") if path.is_file()]
        return {path: (path.stat().st_ino, path.stat().st_mtime_ns, path.stat().st_ctime_ns) for path in paths}

    apply(host)
    before, reloads = states(), units.reloads
    apply(host)
    assert (states(), units.reloads) == (before, reloads)


def test_many_routes_wait_as_long_as_one(layout: Layout) -> None:
    """The reference sets its "cached" device in a subshell, so it waits again for each route."""
    clock, bare = FakeClock(), Host(routes=FakeKernel(), units=FakeSystemd(layout), layout=layout)
    many = config(*(f"172.16.{number}.0/24" for number in range(1, 50)), waitSeconds=30)
    with pytest.raises(HostRoutingError, match="waited 30 s in vain for the default route"):
        phases.run(ConfigureStaticRoutes(many, host=bare), scope=phases.CancelScope(clock=clock))
    assert clock.monotonic() == pytest.approx(30)


def test_separate_tasks_agree_about_the_uplinks(host: Host, layout: Layout) -> None:
    named = config(SHADOWED, uplinks=["eth*"])
    phases.run(ConfigureStaticRoutes(named, host=host))
    phases.run(CheckRouteOverlap(named, host=host))
    assert Manifest.load(layout).config.uplinks == ("eth*",)
    before = {name: layout.script(name).read_text() for name in (ROUTES, CHECK)}
    for task in (ConfigureStaticRoutes, CheckRouteOverlap):
        with pytest.raises(UnitError):
            phases.run(task(WANTED, host=host))
        assert Manifest.load(layout).config.uplinks == ("eth*",)
        assert before == {name: layout.script(name).read_text() for name in (ROUTES, CHECK)}
    apply(host)
    assert Manifest.load(layout).config.uplinks is None
    assert all("\nuplinks " not in layout.script(name).read_text() for name in (ROUTES, CHECK))


def test_an_update_changes_the_list_and_no_drop_in(host: Host, layout: Layout, units: FakeSystemd) -> None:
    phases.run(ConfigureStaticRoutes(WANTED, host=host))
    assert steps(layout) == ["static-routes.sh required"]
    drop_in = layout.gates("systemd-nspawn@.service")[-1]
    before = drop_in.stat()
    assert drop_in.read_text() == DROP_INS[-1]
    phases.run(CheckRouteOverlap(WANTED, host=host))
    assert steps(layout) == ["static-routes.sh required", "check-route-overlap.sh required"]
    reloads = units.reloads
    apply(host, config(SHADOWED, mode="WARN"))
    assert steps(layout) == ["static-routes.sh required", "check-route-overlap.sh forgiven"]
    assert units.reloads == reloads
    phases.run(ConfigureStaticRoutes(NOTHING, host=host))
    assert steps(layout) == ["check-route-overlap.sh forgiven"]
    assert drop_in.stat() == before
    apply(host, config(SHADOWED, consumer="kubelet.service"))
    assert not drop_in.parent.exists()
    assert layout.gates("kubelet.service")[-1].read_text() == DROP_INS[-1]


@pytest.mark.parametrize("wait_seconds", [0, 600])
def test_units_do_not_depend_on_the_config(host: Host, layout: Layout, wait_seconds: int) -> None:
    apply(host, config(SHADOWED, waitSeconds=wait_seconds))
    for name, seconds in ((ROUTES, "660"), (CHECK, "1260")):
        lines = layout.unit(name).read_text().splitlines()
        assert f"TimeoutStartSec={seconds}" in lines
        (after,) = [line for line in lines if line.startswith("After=")]
        assert "systemd-udev-settle.service ib_rdma_configure.service" in after


# --- the gate must hold --------------------------------------------------------------------------------------------


def test_the_next_run_heals_one_killed_before_the_reload(host: Host, layout: Layout) -> None:
    behind = FakeSystemd(layout, running=[MACHINE])
    apply(host)  # the systemd of `behind` hasn't loaded any of this
    apply(Host(routes=host.routes, units=behind, layout=layout))
    assert behind.reloads == 1
    assert "gate.sh again" in behind.show(MACHINE, "ExecStartPreEx")["ExecStartPreEx"]


@pytest.mark.parametrize(
    ("setting", "name", "mode", "told"),
    [
        ("ExecStartPre=", "zzz-override", "STRICT", ".*systemctl cat"),
        ("ExecStartPre=", "override", "STRICT", None),  # this drop-in comes before ours
        ("SuccessExitStatus=255", "override", "WARN", ": SuccessExitStatus="),
        ("SuccessExitStatus=133 SIGKILL", "override", "STRICT", ": SuccessExitStatus="),
        ("SuccessExitStatus=133", "override", "STRICT", None),
        ("TimeoutStartSec=24", "override", "STRICT", ": TimeoutStartSec="),
        ("TimeoutStartSec=4", "override", "WARN", None),
    ],
)
@pytest.mark.parametrize("task", [Configure, CheckRouteOverlap])
def test_apply_refuses_a_consumer_that_ignores_the_gate(
    host: Host, layout: Layout, kernel: FakeKernel, setting: str, name: str, mode: str, told: str | None, task: Any
) -> None:
    override(layout, setting, name)
    before, routes = tree(layout), kernel.routes()
    run = task(config(SHADOWED, mode=mode, cidrs=["10.96.0.0/12"]), host=host)
    if told is None:
        phases.run(run)
    else:
        with pytest.raises(UnitError, match=f"doesn't hold {MACHINE}{told}"):
            phases.run(run)
        assert (tree(layout), kernel.routes()) == (before, routes)


# --- oneshots ------------------------------------------------------------------------------------------------------


def test_oneshots_start_once_the_network_is_up(host: Host, units: FakeSystemd) -> None:
    apply(host)
    assert units.starts == []
    units.active.add("network-online.target")
    apply(host)
    apply(host)
    assert units.starts == ["static-routes.service", "check-route-overlap.service"]


def test_the_oneshot_of_a_failing_strict_check_runs_too(host: Host, layout: Layout, units: FakeSystemd) -> None:
    units.active.add("network-online.target")
    with pytest.raises(RouteOverlapError):
        apply(host, config(SHADOWED, cidrs=["172.16.2.0/24"]))
    assert units.starts == ["static-routes.service", "check-route-overlap.service"]
    assert layout.gates("systemd-nspawn@.service")[-1].exists()
    assert layout.script(CHECK).exists()


# --- locks and removal -----------------------------------------------------------------------------------------------


def test_a_reload_holds_only_the_lock_of_runs(kernel: FakeKernel, layout: Layout) -> None:
    """No script waits for a reload or a verification, and no other run can start between them."""
    seen: set[tuple[bool, bool]] = set()

    def is_free(path: Path) -> bool:
        with path.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    class Watching(FakeSystemd):
        def reload(self) -> None:
            seen.add((is_free(layout.lock), is_free(layout.run_lock)))
            super().reload()

        def show(self, unit: str, *names: str) -> dict[str, str]:
            seen.add((is_free(layout.lock), is_free(layout.run_lock)))
            return super().show(unit, *names)

    host = Host(routes=kernel, units=Watching(layout, running=[MACHINE]), layout=layout)
    apply(host, config(SHADOWED, watch={"enabled": True}))
    phases.run(RemoveHostRouting(host=host))
    assert seen == {(True, False)}


def test_the_check_writes_its_marker_under_the_scripts_lock(host: Host, layout: Layout) -> None:
    check = CheckRouteOverlap(config(cidrs=["172.16.2.0/24"]), host=host)
    with locked(layout.lock, phases.CancelScope()):
        with pytest.raises(FileError, match="another run has held it"):
            phases.run(check, scope=phases.CancelScope(clock=FakeClock()))
        assert not any(path.exists() for path in (layout.marker_ok, layout.marker_detected, layout.report))
    with pytest.raises(RouteOverlapError):
        phases.run(check)
    assert layout.marker_detected.exists()


def test_a_run_waits_for_another_and_its_config_wins(host: Host, layout: Layout) -> None:
    first, second = WANTED, config(mode="WARN", cidrs=["10.96.0.0/12"])
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


def test_removal_waits_for_starts_in_the_gate(host: Host, layout: Layout, units: FakeSystemd) -> None:
    apply(host)
    units.properties[MACHINE] = {"SubState": "condition"}
    clock = FakeClock()
    reloads = units.reloads
    phases.run(RemoveHostRouting(host=host), scope=phases.CancelScope(clock=clock))
    assert clock.monotonic() == pytest.approx(15, abs=1)
    assert units.reloads == reloads + 1
    assert not layout.gate_script.exists()


# --- the reference's installation ----------------------------------------------------------------------------------


@pytest.fixture(params=["a unit", "nothing"])
def reference(request: pytest.FixtureRequest, layout: Layout) -> list[Path]:
    """Create the links of the Go package to units with the same names. The units may be missing, as in an image."""
    links = []
    for name in (ROUTES, CHECK):
        if request.param == "a unit":
            layout.unit(name).write_text(
                "[Unit]\nBefore=systemd-nspawn@.service\n[Service]\nType=oneshot\nExecStart=/x\n"
            )
        for kind in ("requires", "wants"):
            link = layout.units / f"systemd-nspawn@.service.{kind}" / f"{name}.service"
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(f"../{name}.service")
            links.append(link)
    return links


def test_the_references_links_are_removed_first(host: Host, layout: Layout, reference: list[Path]) -> None:
    """With such a link, restarting the oneshot would also restart the running machine."""
    order: list[tuple[int, bool]] = []
    unit = layout.unit(ROUTES)
    old = unit.read_text() if unit.exists() else None

    class Watching(FakeSystemd):
        def reload(self) -> None:
            is_old = (unit.read_text() if unit.exists() else None) == old
            order.append((len([link for link in reference if link.is_symlink()]), is_old))
            super().reload()

    apply(Host(routes=host.routes, units=Watching(layout, running=[MACHINE]), layout=layout))
    assert order[:2] == [(0, True), (0, False)]
    assert not any(link.parent.exists() for link in reference)


def test_a_failure_restores_the_references_links(host: Host, layout: Layout, reference: list[Path]) -> None:
    override(layout, "ExecStartPre=")
    before = tree(layout)
    with pytest.raises(UnitError):
        apply(host)
    assert tree(layout) == before
    assert all(link.is_symlink() for link in reference)


# --- faults --------------------------------------------------------------------------------------------------------


class Refusing(FakeSystemd):
    """A systemd that fails at the nth call that changes anything."""

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
def test_a_failing_systemd_leaves_nothing(host: Host, layout: Layout, kernel: FakeKernel, at: int) -> None:
    before = tree(layout)
    with pytest.raises(UnitError, match="timed out"):
        apply(Host(routes=kernel, units=Refusing(layout, at), layout=layout))
    assert tree(layout) == before
    apply(Host(routes=kernel, units=FakeSystemd(layout, running=[MACHINE]), layout=layout))
    assert layout.gates("systemd-nspawn@.service")[-1].read_text() == DROP_INS[-1]


def test_a_rollback_makes_systemd_forget_the_gate_first(kernel: FakeKernel, layout: Layout) -> None:
    """The programs of a new drop-in exist as long as systemd has it in memory."""
    seen: list[tuple[bool, ...]] = []

    class Reading(FakeSystemd):
        def reload(self) -> None:
            seen.append(
                tuple(path.exists() for path in (layout.gates("systemd-nspawn@.service")[-1], layout.gate_script))
            )
            super().reload()

    in_the_way = Route(IPv4Network(SHADOWED), (NextHop("ib0"),), protocol=Protocol.STATIC)
    assert kernel.add([in_the_way]) == ()
    with pytest.raises(RouteError):
        apply(Host(routes=kernel, units=Reading(layout, running=[MACHINE]), layout=layout))
    assert seen == [(True, True), (False, True), (False, False)]


def test_a_rollback_restores_the_old_scripts(host: Host, layout: Layout) -> None:
    """If the first routes are rolled back, the check must not expect them."""
    apply(host, config(cidrs=["10.96.0.0/12"]))
    script = layout.script(CHECK)
    plan = plan_next_boot(host, Wanted.of(WANTED, host.layout))
    assert {file.path: file.text for file in plan.way_back}[script] == script.read_text()
    assert [file.path for file in plan.way_back][-1] == layout.gate_list


def test_litter_in_the_staging_folder_ends_no_run(host: Host, layout: Layout, tmp_path: Path) -> None:
    """The run removes files and links, but not the targets of links."""
    apply(host)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    layout.stages.mkdir()
    (layout.stages / "file").touch()
    (layout.stages / "link").symlink_to(elsewhere)
    apply(host)
    assert not layout.stages.exists()
    assert elsewhere.exists()


# --- plan and images -----------------------------------------------------------------------------------------------


def units_all(action: str) -> tuple[Change, ...]:
    return tuple(Change(unit, action) for unit in ("static-routes.service", "check-route-overlap.service"))


def test_plan_names_the_changes_of_apply_and_none_afterwards(host: Host, layout: Layout) -> None:
    before = tree(layout)
    plan = plan_boot(WANTED, host)
    assert tree(layout) == before
    assert plan.units == units_all("enabled")
    apply(host)
    written = {name for name, value in tree(layout).items() if isinstance(value, tuple) and name not in before}
    assert {str(change.what) for change in plan.files} == {f"/{name}" for name in written}
    assert not plan_boot(WANTED, host)
    host.units.disable("static-routes.service")
    assert plan_boot(WANTED, host).units == (Change("static-routes.service", "enabled"),)
    host.units.enable("static-routes.service")
    taken_back = plan_boot(NOTHING, host)
    assert all(change.after is None for change in taken_back.files)
    files = {path for path in layout.root.rglob("*") if path.is_file()} - {layout.lock, layout.run_lock}
    assert {layout.of(str(change.what)) for change in taken_back.files} == files
    assert taken_back.units == units_all("disabled")


@pytest.fixture
def image_root(tmp_path: Path) -> Path:
    root = tmp_path / "image"
    for folder in ("etc/systemd/system", "usr/lib/systemd/system", "opt"):
        (root / folder).mkdir(parents=True)
    return root


@pytest.mark.parametrize("rest", ["", "etc/systemd/system"])
def test_a_folder_without_a_system_is_not_an_image(tmp_path: Path, rest: str) -> None:
    """The folder may be a mount point on which nothing is mounted, or where /usr is missing."""
    (tmp_path / rest).mkdir(parents=True, exist_ok=True)
    with pytest.raises(HostRoutingError, match=r"has no system: it lacks usr/lib/systemd/system"):
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
        "etc/hostrouting",
        "etc/hostrouting/installed.json",
        "etc/hostrouting/stages",
        "run/aks-flex-node",
        "etc",
        "usr",
    ],
)
def test_a_link_out_of_an_image_is_refused_first(image_root: Path, path: str, target: str) -> None:
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
    phases.run(Configure(WANTED, host=Host.image(image_root)))
    assert (image_root / "opt/static-routes.sh").is_file()
    assert (image_root / "usr/etc/systemd/system/static-routes.service").is_file()


@pytest.mark.skipif(not os.access("/usr/bin/systemctl", os.X_OK), reason="no systemctl on this machine")
def test_an_image_gets_files_and_enablement_and_no_run(image_root: Path) -> None:
    before, image = tree(Layout(image_root)), Host.image(image_root)
    report = phases.run(Configure(WANTED, host=image))
    assert (bool(report.routes.plan.changes), bool(report.changes.files)) == (False, True)
    assert (report.overlap.verdict, report.overlap.findings) == ("unknown", ())
    assert image.layout.enablement("static-routes").is_symlink()
    assert image.layout.gates("systemd-nspawn@.service")[-1].exists()
    assert not (image_root / "run").exists()
    phases.run(RemoveHostRouting(host=image))
    assert tree(image.layout) == before


@pytest.mark.parametrize("root", ["/", "//", "//.", "/..", "/proc/self/root", "/proc/self/root/"])
def test_this_hosts_own_root_is_not_an_image(root: str) -> None:
    with pytest.raises(HostRoutingError, match="this host's own"):
        Host.image(root)
    assert Layout("//").is_this_host
    assert Layout("//srv/image") == Layout("/srv/image")


def test_another_root_needs_its_own_routes_and_units(tmp_path: Path) -> None:
    with pytest.raises(HostRoutingError) as caught:
        Host(layout=Layout(tmp_path))
    assert [path for path, _ in caught.value.problems] == ["routes", "units"]  # type: ignore[attr-defined]
