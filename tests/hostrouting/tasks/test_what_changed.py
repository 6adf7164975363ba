"""Tests that a run that fails halfway reports the changes that it hasn't rolled back."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import attrs
import pytest
from wanted import LINE, SHADOWED, config

import phases
from hostrouting import (
    Configure,
    ConfigureStaticRoutes,
    ConfigureWatch,
    FileError,
    Host,
    Layout,
    RemoveHostRouting,
    RouteError,
    RouteOverlapError,
    StaticRoute,
    StaticRoutes,
    UnitError,
)
from hostrouting.report import Change, Changes, StoppedRun
from hostrouting.testing import FakeSystemd

if TYPE_CHECKING:
    pass

CONFIG = config(SHADOWED, watch={"enabled": True})
SICK = attrs.evolve(CONFIG, route_overlap={"expectedCidrs": ["172.16.2.0/24"], "mode": "STRICT"})


class Moody(FakeSystemd):
    """A systemd on which one kind of call fails for a given unit."""

    refused = ("", "")

    def _see(self, *call: str) -> None:
        if call == self.refused:
            raise UnitError("`systemctl` failed: Connection timed out")

    def enable(self, unit: str) -> None:
        self._see("enable", unit)
        super().enable(unit)

    def disable(self, unit: str) -> None:
        self._see("disable", unit)
        super().disable(unit)

    def restart(self, unit: str) -> None:
        self._see("restart", unit)
        super().restart(unit)


@pytest.fixture
def units(layout: Layout) -> Moody:
    return Moody(layout)


def named(changes: Changes) -> dict[str, list[str]]:
    fates = {"files": changes.files, "units": changes.units, "routes": changes.routes}
    return {kind: sorted(str(change.what) for change in of_kind) for kind, of_kind in fates.items()}


def test_a_strict_failure_reports_changes_and_findings(host: Host) -> None:
    with pytest.raises(RouteOverlapError) as caught:
        phases.run(Configure(SICK, host=host))
    told = named(caught.value.changes)
    assert told["routes"] == [LINE]
    assert {host.layout.of(path) for path in told["files"]} == {
        path
        for path in host.layout.root.rglob("*")
        if path.is_file() and not path.is_symlink() and not path.is_relative_to(host.layout.run_dir)
    }
    assert [change.action for change in caught.value.changes.units] == ["enabled", "enabled", "enabled", "restarted"]
    assert caught.value.report.verdict == "overlap"
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.findings) == (str(caught.value), caught.value.findings)


def test_installed_files_are_reported_if_the_watcher_fails(host: Host, units: Moody) -> None:
    units.refused = ("restart", "hostrouting-watch.service")
    with pytest.raises(UnitError) as caught:
        phases.run(Configure(CONFIG, host=host))
    told = named(caught.value.changes)
    assert told["routes"] == [LINE]
    assert "/etc/systemd/system/hostrouting-watch.service" in told["files"]
    assert {change.action for change in caught.value.changes.units} == {"enabled"}


def test_rolled_back_changes_are_not_reported(host: Host, units: Moody) -> None:
    units.refused = ("enable", "static-routes.service")
    with pytest.raises(UnitError) as caught:
        phases.run(Configure(CONFIG, host=host))
    assert caught.value.changes == Changes()
    refused = attrs.evolve(CONFIG, static_routes=StaticRoutes(True, [StaticRoute("172.16.0.0/16")]))
    units.refused = ("", "")
    with pytest.raises(RouteError) as refusal:
        phases.run(Configure(refused, host=host))
    assert refusal.value.changes == Changes()


def test_an_interrupted_removal_reports_what_it_removed(host: Host, units: Moody) -> None:
    phases.run(Configure(CONFIG, host=host))
    before = {path for path in host.layout.root.rglob("*") if path.is_file()}
    units.refused = ("disable", "static-routes.service")
    with pytest.raises(UnitError) as caught:
        phases.run(RemoveHostRouting(host=host))
    gone = {path for path in before if not path.exists() and path.parent.suffix != ".wants"}
    assert gone
    by_action = {
        action: {change.what for change in caught.value.changes.files if change.action == action}
        for action in ("removed", "replaced")
    }
    assert {host.layout.of(str(what)) for what in by_action["removed"]} == gone
    # The part that is removed next must already admit starts.
    assert by_action["replaced"] == {
        "/etc/aks-flex-node/static-routes.sh",
        "/etc/hostrouting/gate.list",
        "/etc/hostrouting/installed.json",
    }
    assert named(caught.value.changes)["routes"] == [LINE]


def test_a_cancelled_run_reports_its_changes_too(host: Host) -> None:
    scope = phases.CancelScope()

    class Cancelling(FakeSystemd):
        def restart(self, unit: str) -> None:
            super().restart(unit)
            scope.cancel("SIGTERM")

    on = Host(routes=host.routes, units=Cancelling(host.layout), layout=host.layout)
    with pytest.raises(StoppedRun) as caught:
        phases.run(Configure(CONFIG, host=on), scope=scope)
    changes = caught.value.changes
    assert changes.units[-1] == Change("hostrouting-watch.service", "restarted")
    assert named(changes)["routes"] == [LINE]


def test_a_single_task_reports_its_changes(host: Host) -> None:
    routes = phases.run(ConfigureStaticRoutes(CONFIG, host=host))
    watch = phases.run(ConfigureWatch(CONFIG, host=host)).changes
    assert "/etc/aks-flex-node/static-routes.sh" in named(routes.changes)["files"]
    assert watch.units == (
        Change("hostrouting-watch.service", "enabled"),
        Change("hostrouting-watch.service", "restarted"),
    )
    assert "/etc/aks-flex-node/static-routes.sh" not in named(watch)["files"]
    assert not phases.run(ConfigureWatch(CONFIG, host=host)).changes
    removed = phases.run(RemoveHostRouting(host=host)).to_json()
    assert (removed["changed"], removed["routes"]) == (True, [{"route": LINE, "change": "removed"}])
    assert {"path": "/etc/aks-flex-node/static-routes.sh", "change": "removed"} in removed["files"]
    assert not phases.run(RemoveHostRouting(host=host)).to_json()["changed"]


def test_a_reload_alone_is_reported(host: Host) -> None:
    """If a run was killed before its reload, only the reload remains to be done."""
    stale = FakeSystemd(host.layout, running=["systemd-nspawn@kube1.service"])
    phases.run(ConfigureStaticRoutes(CONFIG, host=host))
    on = Host(routes=host.routes, units=stale, layout=host.layout)
    told = [phases.run(ConfigureStaticRoutes(CONFIG, host=on)).changes for _ in range(2)]
    assert told == [Changes(units=(Change("systemd-nspawn@kube1.service", "reloaded"),)), Changes()]


def test_a_started_oneshot_is_reported(host: Host, units: Moody) -> None:
    phases.run(ConfigureStaticRoutes(CONFIG, host=host))
    units.active.add("network-online.target")
    report = phases.run(ConfigureStaticRoutes(CONFIG, host=host))
    assert report.changes == Changes(units=(Change("static-routes.service", "started"),))


def test_an_unexpected_oserror_becomes_one_of_our_errors(host: Host) -> None:
    class Broken(FakeSystemd):
        def restart(self, unit: str) -> None:
            raise OSError(24, "Too many open files", "/etc/machine-id")

    on = Host(routes=host.routes, units=Broken(host.layout), layout=host.layout)
    with pytest.raises(FileError) as caught:
        phases.run(Configure(CONFIG, host=on))
    assert "/etc/machine-id" in caught.value.message
    assert named(caught.value.changes)["routes"] == [LINE]
