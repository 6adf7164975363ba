"""Tests that the installation for the next boot is ordered, atomic, completely removable, and the
same by Ignition.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import attrs
import pytest
from acting import ActingSystemd, at, is_held, refusing
from file_trees import outside_run, version_of, write_file, write_link, written_by_ignition
from go_package import ANY, write_go_package
from node import GATEWAY
from planning import install_for_boot, wanted_probe
from wanted import MACHINE, SHADOWED, config, ours

import phases
from hostrouting import (
    CheckRouteOverlap,
    Config,
    ConfigError,
    Configure,
    ConfigureStaticRoutes,
    ConfigureWatch,
    Host,
    Layout,
    RemoveHostRouting,
    plan,
)
from hostrouting.backend import NextHop, Protocol, Route, Write, read_our_routes, read_routes
from hostrouting.boot import files
from hostrouting.boot.bundle import ignition, rendered_files
from hostrouting.boot.gate import DROP_INS
from hostrouting.boot.go_package import hand_over, routes_to_adopt
from hostrouting.boot.layout import CHECK, ROUTES
from hostrouting.boot.locks import locked
from hostrouting.boot.manifest import InstalledPart, Manifest
from hostrouting.boot.parts import Wanted
from hostrouting.boot.plan import plan_next_boot
from hostrouting.boot.render import render_check, render_static_routes
from hostrouting.boot.systemctl import Systemctl
from hostrouting.doctor.examine import examine
from hostrouting.model.changes import Change, Changes
from hostrouting.model.errors import FileError, HostRoutingError, RouteError, UnitError
from hostrouting.model.jsonable import to_json_text
from hostrouting.overlap.findings import RouteOverlapError
from hostrouting.tasks import InstallRoutes, RestoreOnFailure, TryRoutes, installed_config, render
from hostrouting.testing import FakeKernel, FakeSystemd
from phases.testing import FakeClock

WANTED = config(SHADOWED)


def steps(layout: Layout) -> list[str]:
    """Return the lines of the gate list without directories and checksums."""
    *rows, end = layout.gate_list.read_text().splitlines()
    assert end == "end"
    return [" ".join(row.split()[:2]).removeprefix("/etc/aks-flex-node/") for row in rows]


def apply(host: Host, wanted: Config = WANTED) -> None:
    phases.run(Configure(wanted, host=host))


def override(layout: Layout, text: str) -> None:
    write_file(layout.units / f"{MACHINE}.d/zzz-override.conf", f"[Service]\n{text}\n")


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


def test_an_update_changes_the_list_and_no_drop_in(
    host: Host, layout: Layout, units: FakeSystemd
) -> None:
    phases.run(ConfigureStaticRoutes(WANTED, host=host))
    assert steps(layout) == ["static-routes.sh required"]
    drop_in = layout.gates("systemd-nspawn@.service")[-1]
    before = version_of(drop_in)
    phases.run(CheckRouteOverlap(WANTED, host=host))
    assert steps(layout) == ["static-routes.sh required", "check-route-overlap.sh required"]
    reloads = units.reloads
    apply(host, config(SHADOWED, mode="WARN"))
    assert steps(layout) == ["static-routes.sh required", "check-route-overlap.sh forgiven"]
    assert (units.reloads, version_of(drop_in)) == (reloads, before)


def test_the_units_time_out_after_the_longest_wait(host: Host, layout: Layout) -> None:
    apply(host)
    for name, seconds in ((ROUTES, "660"), (CHECK, "1260")):
        lines = layout.unit(name).read_text().splitlines()
        assert f"TimeoutStartSec={seconds}" in lines
        assert "RestrictAddressFamilies=AF_NETLINK AF_UNIX" in lines
        (after,) = [line for line in lines if line.startswith("After=")]
        assert "systemd-udev-settle.service ib_rdma_configure.service" in after


def test_a_short_timeout_defeats_only_a_strict_gate(host: Host, layout: Layout) -> None:
    override(layout, "TimeoutStartSec=4")
    apply(host, config(SHADOWED, mode="WARN"))
    with pytest.raises(UnitError, match=f"doesn't hold {MACHINE}: TimeoutStartSec="):
        apply(host)


# --- oneshots -------------------------------------------------------------------------------------


def test_oneshots_start_once_the_network_is_up(host: Host, units: FakeSystemd) -> None:
    apply(host)
    assert units.starts == []
    units.active.add("network-online.target")
    told = [phases.run(Configure(WANTED, host=host)).changes for _ in range(2)]
    started = [Change(f"{name}.service", "started") for name in (ROUTES, CHECK)]
    assert told == [Changes(units=tuple(started)), Changes()]
    assert units.starts == [change.what for change in started]


def test_the_oneshot_of_a_failing_strict_check_runs_too(
    host: Host, layout: Layout, units: FakeSystemd
) -> None:
    units.active.add("network-online.target")
    with pytest.raises(RouteOverlapError):
        apply(host, config(SHADOWED, cidrs=["172.16.2.0/24"]))
    assert units.starts == ["static-routes.service", "check-route-overlap.service"]
    assert layout.gates("systemd-nspawn@.service")[-1].exists()
    assert layout.script(CHECK).exists()


# --- locks and removal ----------------------------------------------------------------------------


def test_a_reload_holds_only_the_lock_of_runs(kernel: FakeKernel, layout: Layout) -> None:
    """Scripts don't wait for a reload or a verification, and no other run can start in between."""
    seen: set[tuple[bool, bool]] = set()
    units = ActingSystemd(
        layout, lambda *_: seen.add((is_held(layout.lock), is_held(layout.run_lock)))
    )
    host = Host(routes=kernel, units=units, layout=layout)
    apply(host, config(SHADOWED, watch={"enabled": True}))
    phases.run(RemoveHostRouting(host=host))
    assert seen == {(False, True)}


def test_the_check_writes_its_marker_under_the_scripts_lock(host: Host, layout: Layout) -> None:
    check = CheckRouteOverlap(config(cidrs=["172.16.2.0/24"]), host=host)
    with locked(layout.lock, phases.CancelScope()):
        with pytest.raises(FileError, match="another run has held it"):
            phases.run(check, scope=phases.CancelScope(clock=FakeClock()))
        assert not any(
            path.exists() for path in (layout.marker_ok, layout.marker_detected, layout.report)
        )
    with pytest.raises(RouteOverlapError):
        phases.run(check)
    assert layout.marker_detected.exists()


def test_removal_waits_for_starts_in_the_gate(
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


# --- the Go package's installation ----------------------------------------------------------------


@pytest.fixture
def reference(layout: Layout) -> list[Path]:
    """Create the Go package's installation, whose units have the same names as ours, and other
    links to its units.
    """
    links = write_go_package(layout, f"{SHADOWED}|{ANY}|0", f"172.16.2.0/24|{ANY}|0")
    wants = layout.units / "systemd-nspawn@.service.wants"
    return [*links, *(write_link(wants / link.name, f"../{link.name}") for link in links)]


def boot(destination: str) -> Route:
    """Return a route as the Go package's script installs it."""
    return Route(IPv4Network(destination), (NextHop("eth0", GATEWAY),), protocol=Protocol.BOOT)


def test_the_go_packages_links_are_removed_first(
    host: Host, layout: Layout, reference: list[Path]
) -> None:
    """With such a symlink, restarting the oneshot would also restart the running machine."""
    order: list[tuple[int, bool]] = []
    unit = layout.unit(ROUTES)
    old = unit.read_text()

    def look() -> None:
        order.append(
            (len([link for link in reference if link.is_symlink()]), unit.read_text() == old)
        )

    apply(Host(routes=host.routes, units=ActingSystemd(layout, at("reload", look)), layout=layout))
    assert order[:2] == [(0, True), (0, False)]
    assert not any(link.parent.exists() for link in reference)


def test_a_plan_tells_what_becomes_of_the_go_packages_routes(
    host: Host, layout: Layout, kernel: FakeKernel, reference: list[Path]
) -> None:
    assert not kernel.write(Write.ADD, [boot(SHADOWED), boot("172.16.2.0/24")])
    planned = plan(WANTED, host=host)
    assert [(each.action, str(each.what)) for each in planned.changes.routes] == [
        ("replaced", f"{SHADOWED} via 10.1.0.1 dev eth0 proto hostrouting"),
        ("removed", "172.16.2.0/24 via 10.1.0.1 dev eth0"),
    ]
    assert not plan(Config(), host=host).changes.routes
    report = phases.run(Configure(WANTED, host=host))
    assert report.changes.routes == planned.changes.routes
    phases.run(RemoveHostRouting(host=host))
    assert not [
        route
        for route in read_routes(kernel)
        if route.protocol in (Protocol.BOOT, Protocol.HOSTROUTING)
    ]


def test_a_config_without_routes_leaves_the_go_package_its_routes(
    host: Host, layout: Layout, kernel: FakeKernel, reference: list[Path]
) -> None:
    """The Go package's script stays, too, as nothing of ours takes its place."""
    assert not kernel.write(Write.ADD, [boot(SHADOWED), boot("172.16.2.0/24")])
    before, script = read_routes(kernel), layout.script(ROUTES).read_text()
    wanted = config(cidrs=["10.96.0.0/12"])
    assert not plan(wanted, host=host).changes.routes
    apply(host, wanted)
    assert (read_routes(kernel), layout.script(ROUTES).read_text()) == (before, script)


@pytest.mark.parametrize("task", [TryRoutes, InstallRoutes])
def test_only_a_run_that_replaces_its_script_takes_its_routes(
    host: Host, kernel: FakeKernel, reference: list[Path], task: Any
) -> None:
    """A trial, or the kernel's routes alone, don't replace the Go package: it keeps its routes."""
    there = attrs.evolve(boot(SHADOWED), hops=(NextHop("eth1", IPv4Address("10.2.0.1")),))
    kernel.add_link("eth1")
    kernel.add_address("eth1", "10.2.0.4/24")
    assert not kernel.write(Write.ADD, [there, boot("172.16.2.0/24")])
    before = read_routes(kernel)
    arguments = (WANTED, 60) if task is TryRoutes else (WANTED,)
    with pytest.raises(RouteError, match="another program's route has its destination and metric"):
        phases.run(task(*arguments, host=host))
    assert read_routes(kernel) == before


@pytest.mark.parametrize("is_wanting", [True, False])
def test_a_later_run_takes_over_what_a_killed_one_has_begun(
    host: Host, layout: Layout, kernel: FakeKernel, is_wanting: bool
) -> None:
    """It was killed after it had replaced the script, but not yet all of the routes."""
    apply(host, config("172.16.3.0/24", cidrs=()))
    write_file(layout.adopted, f"{SHADOWED} * * 0\n172.16.2.0/24 * * 0\n")
    assert not kernel.write(Write.ADD, [boot(SHADOWED), boot("172.16.2.0/24")])
    phases.run(Configure(WANTED, host=host) if is_wanting else RemoveHostRouting(host=host))
    assert not [route for route in read_routes(kernel) if route.protocol == Protocol.BOOT]
    assert [str(route.destination) for route in ours(kernel)] == [SHADOWED] * is_wanting
    assert not layout.adopted.exists()


def test_routes_are_read_back_as_they_were_handed_over(host: Host, layout: Layout) -> None:
    write_go_package(
        layout, f"{SHADOWED}|{ANY}|0", "172.16.2.0/24|eth1|10.2.0.1|100", f"172.16.3.0/24|{ANY}|7"
    )
    routes = routes_to_adopt(host, replaces_script=True)
    hand_over(routes, layout, phases.Undo())
    layout.script(ROUTES).unlink()
    assert len(routes) == 3
    assert routes_to_adopt(host, replaces_script=True) == routes


@pytest.mark.parametrize("kind", ["fifo", "folder", "without a usable row", "binary"])
def test_a_list_without_a_route_takes_nothing_over(
    host: Host, layout: Layout, kernel: FakeKernel, kind: str
) -> None:
    apply(host, config("172.16.3.0/24", cidrs=()))
    layout.adopted.parent.mkdir(parents=True, exist_ok=True)
    if kind == "fifo":
        os.mkfifo(layout.adopted)
    elif kind == "folder":
        layout.adopted.mkdir()
    else:
        layout.adopted.write_bytes(
            b"0.0.0.0/0 * * 0\nx\n" if kind.startswith("without") else b"\xff\x00"
        )
    there = boot("172.16.2.0/24")
    assert not kernel.write(Write.ADD, [there])
    if kind in ("fifo", "folder"):
        with pytest.raises(FileError, match="adopted"):
            apply(host)
    else:
        apply(host)
    assert there in read_routes(kernel)


def test_a_rollback_undoes_what_a_start_has_taken_over(
    kernel: FakeKernel, layout: Layout, reference: list[Path]
) -> None:
    """Once the script is in place, the gate of a start may run it, before the run that has written
    it fails.
    """
    assert not kernel.write(Write.ADD, [boot(SHADOWED), boot("172.16.2.0/24")])
    override(layout, "ExecStartPre=")
    before, files = read_routes(kernel), outside_run(layout.root)

    def start() -> None:
        if layout.gate_list.exists() and layout.adopted.exists():
            assert not kernel.write(
                Write.REPLACE, [attrs.evolve(boot(SHADOWED), protocol=Protocol.HOSTROUTING)]
            )
            assert not kernel.write(Write.DELETE, [boot("172.16.2.0/24")])
            layout.adopted.unlink()

    with pytest.raises(UnitError):
        apply(Host(routes=kernel, units=ActingSystemd(layout, at("reload", start)), layout=layout))
    assert sorted(map(str, read_routes(kernel))) == sorted(map(str, before))
    assert (outside_run(layout.root), layout.adopted.exists()) == (files, False)
    override(layout, "")
    apply(Host(routes=kernel, units=FakeSystemd(layout, running=[MACHINE]), layout=layout))
    assert [str(route.destination) for route in ours(kernel)] == [SHADOWED]


# --- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "refused", [["reload"], ["enable", f"{ROUTES}.service"], ["enable", f"{CHECK}.service"]]
)
def test_a_failing_systemd_leaves_nothing(
    layout: Layout, kernel: FakeKernel, refused: list[str]
) -> None:
    before = outside_run(layout.root)
    with pytest.raises(UnitError, match="timed out"):
        apply(Host(routes=kernel, units=ActingSystemd(layout, refusing(*refused)), layout=layout))
    assert outside_run(layout.root) == before
    apply(Host(routes=kernel, units=FakeSystemd(layout, running=[MACHINE]), layout=layout))
    assert layout.gates("systemd-nspawn@.service")[-1].read_text() == DROP_INS[-1]


class ProgramsSystemctl:
    """A program's own wrapper. A ``Host`` refuses the real Systemctl beside a FakeKernel."""

    def __getattr__(self, name: str) -> Any:
        return getattr(Systemctl(), name)


def test_without_systemd_nothing_changes(
    kernel: FakeKernel, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hostrouting.boot.systemctl.SEARCH_PATH", str(layout.root))
    with pytest.raises(UnitError, match="without systemd nothing can be changed") as caught:
        apply(Host(routes=kernel, units=ProgramsSystemctl(), layout=layout))
    assert not layout.manifest.exists()
    assert not [note for note in caught.value.__notes__ if "putting things back" in note]


def test_a_rollback_makes_systemd_forget_the_gate_first(kernel: FakeKernel, layout: Layout) -> None:
    """The programs in a new drop-in must exist as long as systemd has the drop-in loaded."""
    seen: list[tuple[bool, bool]] = []
    drop_in = layout.gates("systemd-nspawn@.service")[-1]
    look = at("reload", lambda: seen.append((drop_in.exists(), layout.gate_script.exists())))
    in_the_way = Route(IPv4Network(SHADOWED), (NextHop("ib0"),), protocol=Protocol.STATIC)
    assert kernel.write(Write.ADD, [in_the_way]) == ()
    with pytest.raises(RouteError):
        apply(Host(routes=kernel, units=ActingSystemd(layout, look), layout=layout))
    assert seen == [(True, True), (False, True), (False, False)]


def test_no_drop_in_that_can_not_be_seen_is_left_behind(
    host: Host, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would block every start once the gate's script is gone."""
    apply(host)
    (folder,) = {path.parent for path in layout.units.glob("*.d/*hostrouting.conf")}
    exists = files.exists

    def refuse(path: Path) -> bool:
        if path.parent == folder:
            raise FileError(f"can't look at {path}: Permission denied")
        return exists(path)

    monkeypatch.setattr(files, "exists", refuse)
    with pytest.raises(FileError, match=f"look at {folder}"):
        phases.run(RemoveHostRouting(host=host))
    assert layout.gate_script.exists()


def test_a_rollback_restores_the_old_scripts(host: Host, layout: Layout) -> None:
    """If the initial routes are rolled back, the check must no longer expect them."""
    apply(host, config(cidrs=["10.96.0.0/12"]))
    script = layout.script(CHECK)
    plan = plan_next_boot(host, Wanted.of(WANTED, host.layout))
    assert {file.path: file.text for file in plan.gate.rollback}[script] == script.read_text()
    assert [file.path for file in plan.gate.rollback][-1] == layout.gate_list


# --- plan and images ------------------------------------------------------------------------------


@pytest.fixture
def image_root(tmp_path: Path) -> Path:
    root = tmp_path / "image"
    for folder in ("etc/systemd/system", "usr/lib/systemd/system", "opt"):
        (root / folder).mkdir(parents=True)
    return root


@pytest.mark.parametrize("rest", ["", "etc/systemd/system", "lib/systemd/system"])
def test_a_folder_without_a_system_is_not_an_image(tmp_path: Path, rest: str) -> None:
    """The directory may be an empty mount point, lack /usr, or be /usr."""
    (tmp_path / rest).mkdir(parents=True, exist_ok=True)
    with pytest.raises(HostRoutingError, match=r"has no system: it lacks usr/lib/systemd/system"):
        Host.image(tmp_path)
    with pytest.raises(HostRoutingError):
        Host.image(tmp_path / "none")


OUTWARD = ["/opt/elsewhere", "../" * 30 + "opt/elsewhere"]


@pytest.mark.parametrize("target", OUTWARD)
@pytest.mark.parametrize(
    "path",
    [
        "etc/aks-flex-node",
        "etc/aks-flex-node/static-routes.sh",
        "etc/systemd/system/systemd-nspawn@.service.d",
        "etc/systemd/system/systemd-nspawn@.service.d/zz-hostrouting.conf",
        "etc/systemd/system/multi-user.target.wants",
        "etc/iproute2",
        "etc/iproute2/rt_protos.d",
        "etc/hostrouting",
        "etc/hostrouting/installed.json",
        "etc/hostrouting/stages",
        "run/aks-flex-node",
        "var/lib",
        "var/lib/hostrouting",
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
    before = outside_run(image_root)
    with pytest.raises(
        HostRoutingError, match=f"{link} is a link to {target}, which leads out of the image"
    ):
        Host.image(image_root)
    assert outside_run(image_root) == before


@pytest.mark.parametrize("is_unmounted", [False, True], ids=["linked", "unmounted"])
@pytest.mark.parametrize(
    "use",
    [
        lambda host: Configure(WANTED, host=host),
        lambda host: CheckRouteOverlap(WANTED, host=host),
        lambda host: ConfigureWatch(WANTED, host=host),
        lambda host: RemoveHostRouting(host=host),
        lambda host: RestoreOnFailure(Configure(WANTED, host=host), host=host),
        lambda host: partial(plan, WANTED, host=host),
        lambda host: partial(examine, WANTED, host=host),
        lambda host: partial(installed_config, host=host),
    ],
    ids=["apply", "check", "watch", "remove", "restore", "plan", "examine", "installed"],
)
def test_an_image_that_has_become_unsuitable_is_not_used(
    use: Callable[[Host], Any], image_root: Path, *, is_unmounted: bool
) -> None:
    """An earlier task of the run may have unmounted it, or made the link."""
    used = use(Host.image(image_root))
    image_root.rename(moved := image_root.with_name("moved"))
    image_root.mkdir()
    if not is_unmounted:
        (image_root / "usr/lib/systemd/system").mkdir(parents=True)
        (image_root / "etc").symlink_to(moved / "etc")
    before = outside_run(image_root.parent)
    why = "has no system" if is_unmounted else f"etc is a link to {moved}/etc, which leads out"
    with pytest.raises(ConfigError, match=why):
        used() if isinstance(used, partial) else phases.run(used)
    assert outside_run(image_root.parent) == before


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


# --- the manifest ---------------------------------------------------------------------------------


CONFIG = config(SHADOWED, consumer="kubelet.service", watch={"enabled": True})


def spoil(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        at: Any = document
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value

    return change


def edit(layout: Layout, change: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads(layout.manifest.read_text())
    change(document)
    layout.manifest.write_text(json.dumps(document))


PARTS: list[Any] = [None, [], "x", {"../x": {}}, {"x/y": {}}]
FOREIGN = [
    "/etc/passwd",
    "/etc/aks-flex-node/../passwd",
    "/etc/aks-flex-node/a/b",
    "/etc/aks-flex-node/config.json",
    "/etc/aks-flex-node/azure-cni.sh",
    "/etc/systemd/system/ssh.service",
    "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf",
    "/etc/systemd/system/kubelet.service.d/hostrouting-other.conf",
    "etc/x",
    "/",
    "",
    3,
    None,
]


@pytest.mark.parametrize(
    "change",
    [
        *(spoil("parts", ROUTES, "files", 0, value=name) for name in FOREIGN),
        *(spoil("folders", value=[name]) for name in ["/", "/usr", "/etc/../usr", "/etc/ssh", 3]),
        *(spoil("consumer", value=name) for name in ["../../x.service", "x", "", None]),
        *(spoil("former", value=[name]) for name in ["../../x.service", "x/y.service"]),
        *(spoil("parts", value=value) for value in PARTS),
        spoil("parts", ROUTES, "config", value={"hostRouting": ["nothingSuch"]}),
    ],
)
def test_foreign_names_are_refused(
    host: Host, layout: Layout, change: Callable[[dict[str, Any]], None]
) -> None:
    phases.run(Configure(CONFIG, host=host))
    edit(layout, change)
    before = outside_run(layout.root)
    with pytest.raises(FileError, match="hostrouting.installed.json"):
        phases.run(RemoveHostRouting(host=host))
    assert outside_run(layout.root) == before


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"parts": 3}',
        "null",
        '{"consumer": "../../x.service", "parts": {}, "folders": []}',
    ],
)
def test_a_broken_manifest_is_an_error_with_a_hint(host: Host, layout: Layout, text: str) -> None:
    write_file(layout.manifest, text)
    with pytest.raises(FileError, match="can't read the manifest.*\nhint: fix it"):
        phases.run(Configure(CONFIG, host=host))
    assert not read_our_routes(host.routes)


def test_a_removed_part_does_not_keep_the_old_wait(host: Host, layout: Layout) -> None:
    phases.run(Configure(CONFIG, host=host))
    without = Config(static_routes=CONFIG.static_routes, wait_seconds=7, consumer=CONFIG.consumer)
    phases.run(Configure(without, host=host))
    assert Manifest.load(layout).config == without
    assert not phases.run(Configure(without, host=host)).changes


def test_parts_of_other_programs_come_last(layout: Layout) -> None:
    manifest = Manifest("kubelet.service", {"another": InstalledPart(), CHECK: InstalledPart()})
    assert list(manifest.with_parts((), {ROUTES: InstalledPart()}).parts) == [
        ROUTES,
        CHECK,
        "another",
    ]
    assert list(manifest.with_parts(["another"], {}).parts) == [CHECK]


@pytest.mark.parametrize(
    "change",
    [
        spoil("hostRouting", "watch", value={"enabled": True, "textfile": 3}),
        spoil(
            "hostRouting", "staticRoutes", value={"enabled": True, "routes": [{"destination": "x"}]}
        ),
        spoil("hostRouting", "waitSeconds", value="no"),
    ],
)
def test_an_edited_config_is_an_error(
    host: Host, layout: Layout, change: Callable[[dict[str, Any]], None]
) -> None:
    phases.run(Configure(CONFIG, host=host))
    before = layout.manifest.read_text()
    edit(layout, change)
    with pytest.raises(FileError, match="the manifest was edited"):
        _ = Manifest.load(layout).config
    assert "not-examined" in {finding.kind for finding in examine(host=host).findings}
    phases.run(Configure(CONFIG, host=host))
    assert layout.manifest.read_text() == before
    edit(layout, change)
    phases.run(RemoveHostRouting(host=host))
    assert not layout.manifest.exists()
    assert not layout.script(ROUTES).exists()


def test_a_rediscovered_probe_holds_no_start_back(host: Host, layout: Layout) -> None:
    """The probe isn't part of the gate, and all of its files are found again."""
    phases.run(Configure(CONFIG, host=host))
    install_for_boot(host, wanted_probe("eth0", CONFIG.consumer, layout))
    before = Manifest.load(layout).parts
    layout.manifest.unlink()
    found = Manifest.of_host(layout).parts
    assert {name: (part.is_gated, {*part.files}) for name, part in found.items()} == {
        name: (part.is_gated, {*part.files}) for name, part in before.items()
    }
    phases.run(RemoveHostRouting(host=host))
    assert not layout.gates(CONFIG.consumer)[-1].exists()


def test_a_file_with_a_similar_name_is_not_ours(host: Host, layout: Layout) -> None:
    phases.run(Configure(CONFIG, host=host))
    copy = layout.script(ROUTES).with_suffix(".sh.bak")
    copy.write_text("another file")
    layout.manifest.unlink()
    phases.run(RemoveHostRouting(host=host))
    assert copy.read_text() == "another file"


# --- Ignition -------------------------------------------------------------------------------------


LAYOUT = Layout("/x")
CONSUMERS = ("systemd-nspawn@.service", "kubelet.service")


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_it_contains_every_file_with_its_mode(consumer: str) -> None:
    files = rendered_files(config(SHADOWED, consumer=consumer), LAYOUT)
    expected = {LAYOUT.relative(file.path): (file.text, file.mode) for file in files}
    document = ignition(config(SHADOWED, consumer=consumer))
    assert written_by_ignition(document) == expected
    assert render(config(SHADOWED, consumer=consumer)) == {
        path: text for path, (text, _) in expected.items()
    }
    units = {unit["name"]: unit for unit in document["systemd"]["units"]}
    assert {name for name, unit in units.items() if unit.get("enabled")} == {
        "static-routes.service",
        "check-route-overlap.service",
    }
    assert [each["name"] for each in units[consumer]["dropins"]] == [
        "00-hostrouting.conf",
        "zz-hostrouting.conf",
    ]
    assert units[consumer].keys() == {"name", "dropins"}, "the consumer's owner enables it"


@pytest.mark.ci
def test_the_reference_validator_accepts_it(tmp_path: Path) -> None:
    program = shutil.which("ignition-validate")
    if program is None:
        pytest.skip("no ignition-validate on this machine")
    path, text = (
        tmp_path / "routing.ign",
        json.dumps(ignition(config(SHADOWED, watch={"enabled": True}))),
    )
    # Debian's Ignition 2.14 knows only the experimental version name.
    for version in ("3.4.0", "3.4.0-experimental"):
        path.write_text(text.replace('"3.4.0"', f'"{version}"'))
        done = subprocess.run([program, str(path)], capture_output=True, text=True, check=False)
        if "unsupported config version" not in done.stderr:
            break
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_it_fits_into_azures_custom_data() -> None:
    """The printed document fits, with 1,000 routes."""
    routes = [f"172.{number // 256}.{number % 256}.0/24" for number in range(1000)]
    document = to_json_text(ignition(config(*routes)))
    assert len(document) <= 65535


@pytest.mark.parametrize("is_watched", [False, True])
@pytest.mark.parametrize("is_scattered", [False, True])
def test_the_routes_that_a_page_counts_fit(*, is_scattered: bool, is_watched: bool) -> None:
    """Scattered destinations compress less. Twice as many as are promised don't fit."""
    page = (Path(__file__).parents[3] / "docs/howto/images.md").read_text()
    said = r"(\d+) routes to neighbouring CIDRs, (\d+) with the watcher, or (\d+)\s+and (\d+) to"
    (counts,) = re.findall(said, page)
    count = int(counts[2 * is_scattered + is_watched])
    subnets = [*IPv4Network("10.0.0.0/8").subnets(new_prefix=24)]
    if is_scattered:
        random.Random(1).shuffle(subnets)
    (example,) = re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    document = json.loads(example)
    section = document["hostRouting"]
    section["watch"] = {"enabled": is_watched}
    sizes: list[int] = []
    for total in (count, 2 * count):
        routes = [{"destination": str(each)} for each in subnets[:total]]
        section["staticRoutes"]["routes"] = routes
        sizes.append(len(to_json_text(ignition(Config.from_mapping(document)))))
    assert sizes[0] <= 65535 < sizes[1]


def test_a_script_keeps_the_comments_that_say_what_it_does() -> None:
    for text in (render_static_routes(config(SHADOWED)), render_check(config(SHADOWED))):
        head, rest = text.split("\n\n", 1)
        assert "the oneshot at boot" in head
        assert not re.search("^ *#", rest, re.MULTILINE)
