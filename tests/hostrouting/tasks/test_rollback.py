"""Tests that an observer learns what a failed tree leaves, and that the installed config restores
an installation.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import attrs
import pytest
from acting import ActingSystemd, at, refusing
from azure_fakes import FakeProbeNode
from file_trees import outside_run, write_file
from node import shadowed_kernel
from wanted import MACHINE, SHADOWED, config

import phases
from hostrouting import (
    CheckRouteOverlap,
    Config,
    Configure,
    ConfigureStaticRoutes,
    ConfigureWatch,
    FileError,
    Host,
    Layout,
    RemoveHostRouting,
    RouteError,
    Snapshot,
    UnitError,
    check,
    plan,
)
from hostrouting.azure import ConfigureLoadBalancerProbe, HostNetworking
from hostrouting.boot.systemd import innermost_units
from hostrouting.report import Changes, ChangesObserver, ConfigureReport, WatchReport
from hostrouting.tasks import RestoreOnFailure, installed_config
from hostrouting.testing import FakeKernel, FakeSystemd

WATCHED = config(SHADOWED, watch={"enabled": True})


class MyError(Exception):
    pass


@phases.task("start-machine")
def failing(scope: phases.CancelScope) -> NoReturn:
    raise MyError


@phases.task("start-machine")
def cancelled(scope: phases.CancelScope) -> NoReturn:
    scope.cancel("SIGTERM")
    scope.check()
    raise AssertionError


@attrs.frozen
class Passing:
    """A task that runs another one, and passes on its result or exception."""

    task: phases.Task[Any]
    name: str = "passing"

    def do(self, scope: phases.CancelScope) -> object:
        return phases.run_child(self.task, scope)


def node(layout: Layout, name: str) -> Host:
    """Return another node, below the first one's root."""
    other = Layout(layout.root / name)
    other.units.mkdir(parents=True)
    return Host(shadowed_kernel(), FakeSystemd(other, running=[MACHINE]), other)


@pytest.fixture
def units(layout: Layout) -> ActingSystemd:
    return ActingSystemd(layout)


# --- changes --------------------------------------------------------------------------------------


TREES: dict[str, tuple[Callable[[phases.Task[Any]], phases.Task[Any]], type[BaseException]]] = {
    "a later task fails": (lambda done: phases.Serial(done, failing), MyError),
    "a later task is cancelled": (lambda done: phases.Serial(done, cancelled), phases.Cancelled),
    "a report is passed on": (
        lambda done: phases.Serial(Passing(phases.Timeout(9, done)), failing),
        MyError,
    ),
    "it was parallel": (lambda done: phases.Serial(phases.Parallel(done), failing), MyError),
}


@pytest.mark.parametrize(("tree", "error"), TREES.values(), ids=TREES)
def test_an_observer_learns_once_what_completed_tasks_have_changed(
    tree: Callable[[phases.Task[Any]], phases.Task[Any]],
    error: type[BaseException],
    host: Host,
    layout: Layout,
) -> None:
    observer = ChangesObserver()
    with pytest.raises(error) as caught:
        phases.run(tree(Configure(WATCHED, host=host)), observers=[observer])
    assert not hasattr(caught.value, "changes")
    alone = ChangesObserver()
    changes = phases.run(Configure(WATCHED, host=node(layout, "other")), observers=[alone]).changes
    assert observer.changes == alone.changes == changes
    assert all((changes.routes, changes.files, changes.units))


@pytest.mark.parametrize("error", [None, UnitError("`systemctl` failed: Connection timed out")])
def test_an_observer_learns_what_a_stopped_task_has_changed(
    host: Host, units: ActingSystemd, error: UnitError | None
) -> None:
    """A cancelled task's own exception is dropped, and its failure becomes a note, which contains
    no changes.
    """
    scope = phases.CancelScope()

    def stop() -> None:
        scope.cancel("SIGTERM")
        if error is not None:
            raise error

    units.act = at("restart", stop)
    observer = ChangesObserver()
    with pytest.raises(phases.Cancelled):
        phases.run(
            phases.Parallel(Configure(WATCHED, host=host)), scope=scope, observers=[observer]
        )
    assert observer.changes.routes
    assert observer.changes.files


def test_an_observer_learns_what_a_late_cancel_dropped(host: Host) -> None:
    observer, scope = ChangesObserver(), phases.CancelScope()

    @phases.task("configure-then-cancel")
    def late(inner: phases.CancelScope) -> ConfigureReport:
        report = phases.run(Configure(WATCHED, host=host))
        scope.cancel("SIGTERM")
        return report

    with pytest.raises(phases.Cancelled):
        phases.run(late, scope=scope, observers=[observer])
    assert observer.changes.routes


def undone(host: Host, _: Layout) -> tuple[list[phases.Task[Any]], Changes]:
    return [Configure(WATCHED, host=host), RemoveHostRouting(host=host)], Changes()


def replaced_again(host: Host, layout: Layout) -> tuple[list[phases.Task[Any]], Changes]:
    once = phases.run(Configure(FULL, host=node(layout, "other"))).changes
    return [Configure(WATCHED, host=host), Configure(FULL, host=host)], once


def summed(host: Host, layout: Layout) -> tuple[list[phases.Task[Any]], Changes]:
    """Return a task with a report of its own, which contains the changes of its subtasks."""
    once = phases.run(Configure(WATCHED, host=node(layout, "other"))).changes

    @phases.task("summed")
    def both(scope: phases.CancelScope) -> WatchReport:
        routes = phases.run_child(ConfigureStaticRoutes(WATCHED, host=host), scope).changes
        rest = phases.run_child(Configure(WATCHED, host=host), scope).changes
        return WatchReport(routes | rest)

    return [both], once


def passed_on(host: Host, _: Layout) -> tuple[list[phases.Task[Any]], Changes]:
    """Return a task that returns the report of a subtask whose changes it has undone."""

    @phases.task("passed-on")
    def look(scope: phases.CancelScope) -> ConfigureReport:
        report = phases.run_child(Configure(WATCHED, host=host), scope)
        phases.run_child(RemoveHostRouting(host=host), scope)
        return report

    return [look], Changes()


MADE = {
    "undone": undone,
    "replaced again": replaced_again,
    "summed": summed,
    "passed on": passed_on,
}


def by_name(changes: Changes) -> set[tuple[str, str, str | None]]:
    """Return the changes in any order, because tasks may make them in different orders.

    Leave out the folders in the manifest, and the results of the check, of which runs only report
    the removal.
    """
    made = (*changes.routes, *changes.rules, *changes.files, *changes.units)
    files = {
        (str(change.what), change.action, (change.after or "").partition('"folders"')[0])
        for change in made
    }
    return {each for each in files if not each[0].startswith("/run/")}


@pytest.mark.parametrize("tasks", MADE.values(), ids=MADE)
def test_an_observer_has_the_net_changes_of_all_tasks(
    tasks: Callable[[Host, Layout], tuple[list[phases.Task[Any]], Changes]],
    host: Host,
    layout: Layout,
) -> None:
    observer = ChangesObserver()
    run, expected = tasks(host, layout)
    phases.run(phases.Serial(*run), observers=[observer])
    assert by_name(observer.changes) == by_name(expected)


def test_an_observer_forgets_the_changes_of_a_failure_that_was_rolled_back(host: Host) -> None:
    observer = ChangesObserver()

    @phases.task("bring-up")
    def bring_up(scope: phases.CancelScope) -> None:
        report = phases.run_child(Configure(WATCHED, host=host), scope)
        raise RouteError("a later task failed", changes=report.changes)

    with pytest.raises(RouteError, match="a later task failed"):
        phases.run(RestoreOnFailure(bring_up, host=host), observers=[observer])
    assert not by_name(observer.changes)


def test_an_observer_takes_no_plan_for_a_change(host: Host) -> None:
    observer = ChangesObserver()
    look = phases.task("look")(lambda _: plan(FULL, host=host))
    assert phases.run(phases.Serial(look), observers=[observer])[0].changes
    assert not observer.changes


def test_a_rolled_back_task_leaves_nothing(
    host: Host, units: ActingSystemd, layout: Layout
) -> None:
    observer, before = ChangesObserver(), outside_run(layout.root)
    units.act = refusing("enable", "static-routes.service")
    with pytest.raises(UnitError):
        phases.run(phases.Serial(Configure(WATCHED, host=host), failing), observers=[observer])
    assert observer.changes == Changes()
    assert (outside_run(layout.root), host.our_routes()) == (before, ())


def test_a_cancelled_run_leaves_no_unit_enabled(host: Host, units: ActingSystemd) -> None:
    scope = phases.CancelScope()
    units.act = at("enable", lambda: scope.cancel("SIGTERM"))
    with pytest.raises(phases.Cancelled):
        phases.run(Configure(WATCHED, host=host), scope=scope)
    assert units.enabled == set()


# --- the state before -----------------------------------------------------------------------------


def with_probe(task: phases.Task[Any], host: Host) -> phases.Task[Any]:
    """Return a task that also installs the plug-in's part."""
    networking = HostNetworking.from_mapping(
        {"hostNetworking": {"loadBalancerProbe": {"enabled": True}}}
    )
    return phases.Serial(
        ConfigureLoadBalancerProbe(networking, host=host, node=FakeProbeNode()), task
    )


FULL = config(
    SHADOWED,
    {"destination": "172.16.2.0/24", "gateway": "10.1.0.9", "dev": "eth0", "metric": 5},
    cidrs=[SHADOWED, {"cidr": "10.1.0.0/24", "devs": ["eth*"]}],
    uplinks=["eth*"],
    watch={"enabled": True, "textfile": "/var/lib/node_exporter/hostrouting.prom"},
    consumer="kubelet.service",
    waitSeconds=7,
)
FORMER: dict[str, Callable[[Host], list[phases.Task[Any]]]] = {
    "nothing": lambda _: [],
    "everything": lambda host: [Configure(FULL, host=host)],
    "only routes": lambda host: [ConfigureStaticRoutes(FULL, host=host)],
    "only the check": lambda host: [CheckRouteOverlap(config(mode="WARN"), host=host)],
    "routes and the watcher": lambda host: [
        ConfigureStaticRoutes(FULL, host=host),
        ConfigureWatch(FULL, host=host),
    ],
    "routes, then the check": lambda host: [
        ConfigureStaticRoutes(FULL, host=host),
        CheckRouteOverlap(FULL, host=host),
    ],
    "routes, then another check": lambda host: [
        ConfigureStaticRoutes(attrs.evolve(FULL, uplinks=None), host=host),
        CheckRouteOverlap(attrs.evolve(WATCHED, wait_seconds=FULL.wait_seconds), host=host),
    ],
    "a plug-in": lambda host: [with_probe(Configure(FULL, host=host), host)],
    "only a plug-in": lambda host: [with_probe(Configure(Config(), host=host), host)],
}
LATER: dict[str, Config] = {
    "another consumer": config(SHADOWED, "172.16.3.0/24", mode="WARN"),
    "nothing": Config(),
    "only routes": config("172.16.9.0/24", cidrs=[]),
}


def installation(host: Host) -> Any:
    """Return all files outside of /run.

    The manifest may also list folders that were created in the meantime.
    """
    manifest = host.layout.manifest
    listed = json.loads(manifest.read_text()) | {"folders": []} if manifest.exists() else None
    files = {
        name: entry
        for name, entry in outside_run(host.layout.root).items()
        if name != str(manifest)
    }
    return files, listed


def state(host: Host) -> Any:
    """Return our routes, the files, and the units that are enabled or watch.

    Oneshots are never stopped.
    """
    units = innermost_units(host.units)
    assert isinstance(units, FakeSystemd)
    return (
        host.our_routes(),
        installation(host),
        units.enabled,
        units.is_active("hostrouting-watch.service"),
    )


@pytest.mark.parametrize("later", LATER.values(), ids=LATER)
@pytest.mark.parametrize("former", FORMER.values(), ids=FORMER)
def test_the_installed_config_restores_the_state_before(
    former: Callable[[Host], list[phases.Task[Any]]], later: Config, host: Host
) -> None:
    for task in former(host):
        phases.run(task)
    before, installed = state(host), installed_config(host=host)
    observer = ChangesObserver()
    with pytest.raises(MyError):
        phases.run(phases.Serial(Configure(later, host=host), failing), observers=[observer])
    assert state(host) != before or later == installed
    assert bool(observer.changes) is (state(host) != before)
    phases.run(Configure(installed, host=host), observers=[observer])
    assert state(host) == before
    assert not observer.changes.of_kernel
    # The manifest may also list folders that were created in the meantime.
    named = {str(change.what) for change in observer.changes.files}
    assert named <= {host.layout.relative(host.layout.manifest)}
    assert {change.action for change in observer.changes.units} <= {"restarted", "started"}


@pytest.mark.parametrize("later_uplinks", [["eth1"], ["eth0", "eth1"]], ids=["other", "both"])
@pytest.mark.parametrize("mode", ["STRICT", "WARN"])
def test_the_verified_uplinks_are_restored(mode: str, later_uplinks: list[str], host: Host) -> None:
    """Otherwise, the node would stay on the uplink of the config that was rolled back."""
    kernel = host.routes
    assert isinstance(kernel, FakeKernel)
    kernel.ip("link add eth1")
    kernel.ip("link set eth1 up")
    kernel.ip("address add 10.2.0.4/24 dev eth1")
    kernel.ip("route add default via 10.2.0.1 dev eth1 metric 100")
    phases.run(Configure(config(SHADOWED, mode=mode), host=host))
    before, installed = state(host), installed_config(host=host)
    later = config(
        {"destination": SHADOWED, "dev": later_uplinks[-1]}, mode="STRICT", uplinks=later_uplinks
    )
    phases.run(Configure(later, host=host))
    assert host.layout.verified.read_text().count("\n") == len(later_uplinks)
    assert plan(installed, host=host).changes.routes
    phases.run(Configure(installed, host=host))
    assert state(host) == before
    assert check(config(cidrs=[SHADOWED]), host=host).default_devs == ("eth0",)
    assert not phases.run(Configure(installed_config(host=host), host=host)).changes


def test_a_changed_installed_config_restores_no_record(host: Host) -> None:
    """Otherwise, each run would forget with which uplink the check has passed before."""
    phases.run(Configure(config(SHADOWED, mode="WARN"), host=host))
    assert not host.layout.verified.exists()
    strict = config(SHADOWED, mode="STRICT").route_overlap
    changed = attrs.evolve(installed_config(host=host), route_overlap=strict)
    assert changed.former_record is None
    phases.run(Configure(changed, host=host))
    before = host.layout.verified.read_text()
    assert before.startswith("eth0")
    kernel = host.routes
    assert isinstance(kernel, FakeKernel)
    for line in (
        "link add eth1",
        "link set eth1 up",
        "address add 10.2.0.4/24 dev eth1",
        "route del default",
        "route add default via 10.1.0.1 dev eth0 metric 100",
        "route add default via 10.2.0.1 dev eth1 metric 50",
    ):
        kernel.ip(line)
    for now in (changed, attrs.evolve(installed_config(host=host), wait_seconds=7)):
        assert check(now, host=host).default_devs == ("eth0",)
        assert phases.run(Configure(now, host=host)).overlap.default_devs == ("eth0",)
        assert host.layout.verified.read_text() == before


def test_an_earlier_record_is_restored_as_planned(host: Host) -> None:
    """The record of an earlier STRICT config counts in WARN mode, too."""
    for mode in ("STRICT", "WARN"):
        phases.run(Configure(config(SHADOWED, mode=mode), host=host))
    installed = installed_config(host=host)
    assert [each.name for each in installed.verified] == ["eth0"]
    assert not plan(installed, host=host).changes
    assert not phases.run(Configure(installed, host=host)).changes
    host.layout.verified.unlink()
    assert len(plan(installed, host=host).changes.files) == 1
    phases.run(Configure(installed, host=host))
    assert host.layout.verified.read_text().startswith("eth0")


@pytest.mark.parametrize("later", LATER.values(), ids=LATER)
def test_an_image_is_restored_with_ipv6(later: Config, tmp_path: Path) -> None:
    """An image has no kernel, and a fake one has no IPv6."""
    write_file(tmp_path / "usr/lib/systemd/system/systemd-nspawn@.service")
    host = Host.image(tmp_path)
    wanted = config(
        "fd00:172::/32",
        SHADOWED,
        cidrs=["fd00::/8", {"cidr": "fd00:9::/48", "devs": ["eth1"]}, SHADOWED],
    )
    phases.run(Configure(wanted, host=host))
    before, installed = installation(host), installed_config(host=host)
    assert installed == wanted
    phases.run(Configure(later, host=host))
    phases.run(Configure(installed, host=host))
    assert installation(host) == before


@pytest.mark.parametrize("wanted", [Config(), FULL, WATCHED], ids=["nothing", "full", "watched"])
def test_the_installed_config_is_the_wanted_one(wanted: Config, host: Host) -> None:
    phases.run(Configure(wanted, host=host))
    assert installed_config(host=host) == wanted


def test_an_installation_without_its_manifest_is_not_taken_for_none(
    host: Host, layout: Layout
) -> None:
    """Restoring an empty config would open the gate."""
    phases.run(Configure(WATCHED, host=host))
    shutil.rmtree(layout.manifest.parent)
    with pytest.raises(FileError, match=str(layout.manifest)) as caught:
        installed_config(host=host)
    assert caught.value.hint


def test_a_snapshot_has_no_installed_config() -> None:
    with pytest.raises(FileError):
        installed_config(host=Host.recorded(Snapshot((), (), (), ())))
