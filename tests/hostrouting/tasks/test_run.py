"""Tests that a run has two deadlines, makes few requests, repairs a host, and reports what a
failure leaves.
"""

from __future__ import annotations

import errno
import pickle
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import attrs
import pytest
from acting import ActingSystemd, at, refusing
from backends import Altered, FailingBackend, Listening
from file_trees import Entry, outside_run, read_trees, write_file, write_link
from node import add_nics, default_route
from planning import plan_boot
from wanted import LED_AWAY, LINE, MACHINE, ROUTE, SHADOWED, config, lose_default_route

import phases
from hostrouting import (
    CheckRouteOverlap,
    Config,
    Configure,
    ConfigureReport,
    ConfigureStaticRoutes,
    ConfigureWatch,
    FileError,
    Host,
    Layout,
    RemoveHostRouting,
    RouteError,
    RouteOverlapError,
    UnitError,
    check,
    plan,
)
from hostrouting.backend import (
    EVERYTHING,
    Facts,
    ForwardingBackend,
    Hardware,
    NextHop,
    Route,
    RouteBackend,
    RouteFailure,
    Scope,
    Write,
    read_routes,
)
from hostrouting.boot import installation
from hostrouting.boot._switch import put
from hostrouting.boot.layout import CHECK
from hostrouting.config.routing import OverlapMode
from hostrouting.kernel.port import ChangeListener
from hostrouting.kernel.selection import DEFAULT_ROUTES, OURS_IN_MAIN, Entries, Selection
from hostrouting.model.integer_prefixes import Prefix
from hostrouting.model.routes import Protocol, Table
from hostrouting.model.rules import rule_words
from hostrouting.overlap.findings import OverlapReport, UnknownReason, Verdict
from hostrouting.overlap.markers import write_markers
from hostrouting.overlap.may_divert import HasHops
from hostrouting.report import Change, Changes, ChangesObserver, OverdueRun, StoppedRun, changes_of
from hostrouting.tasks import installed_config, remaining
from hostrouting.testing import FakeKernel, FakeSystemd
from phases.testing import FakeClock, RecordingObserver

BY_ETH1 = {"destination": "172.16.1.0/24", "gateway": "10.2.0.1", "dev": "eth1"}
INSTALLED = config(SHADOWED)
WATCHED = attrs.evolve(INSTALLED, watch={"enabled": True})
SICK = config(SHADOWED, cidrs=["172.16.2.0/24"])


# --- deadlines ------------------------------------------------------------------------------------


class LateKernel(FakeKernel):
    """A kernel that changes at given times of a fake clock."""

    def __init__(
        self, clock: FakeClock, changes: dict[float, Callable[[FakeKernel], None]]
    ) -> None:
        super().__init__()
        self._clock, self._changes_at = clock, changes

    @contextmanager
    def changes(self, inside: Sequence[Prefix] | None = None) -> Iterator[ChangeListener]:
        with super().changes(inside) as changes:
            yield Listening(self.wait, changes.happened)

    def wait(self, scope: phases.CancelScope) -> None:
        due = [when for when in self._changes_at if when <= self._clock.monotonic()]
        for when in due:
            self._changes_at.pop(when)(self)
        if not due:
            scope.wait(0.5)


def add_eth1(kernel: FakeKernel) -> None:
    kernel.add_link("eth1")
    kernel.add_address("eth1", "10.2.0.4/24")


def run_late(
    wanted: Config, layout: Layout, changes: dict[float, Callable[[FakeKernel], None]]
) -> tuple[float, BaseException | object]:
    """Run `Configure` with a clock that starts at 0, and return the end time and the result or
    exception.
    """
    clock = FakeClock()
    host = Host(LateKernel(clock, changes), FakeSystemd(layout, running=[MACHINE]), layout)
    try:
        result: object = phases.run(
            Configure(wanted, host=host), scope=phases.CancelScope(clock=clock)
        )
    except (RouteError, RouteOverlapError) as error:
        result = error
    return clock.monotonic(), result


def waiting(*routes: dict[str, Any], cidrs: Collection[str] = (), mode: str = "WARN") -> Config:
    return config(*routes, cidrs=cidrs, mode=mode, waitSeconds=30)


@pytest.mark.parametrize(
    ("wanted", "changes"),
    [
        pytest.param(waiting(BY_ETH1, cidrs=["10.96.0.0/12"]), {}, id="nothing comes"),
        pytest.param(
            waiting(BY_ETH1, ROUTE | {"metric": 5}), {29.0: add_eth1}, id="the device comes"
        ),
        pytest.param(
            waiting(BY_ETH1, cidrs=["10.96.0.0/12"]), {29.0: add_eth1}, id="its routes are in"
        ),
        pytest.param(waiting(cidrs=["10.96.0.0/12"], mode="STRICT"), {}, id="a check that waits"),
    ],
)
def test_a_run_waits_once(
    wanted: Config, changes: dict[float, Callable[[FakeKernel], None]], layout: Layout
) -> None:
    """Even if both a device and the default route are missing, the run ends after `waitSeconds`."""
    ended, report = run_late(wanted, layout, changes)
    assert ended == pytest.approx(30, abs=1)
    if isinstance(report, ConfigureReport):
        assert (report.overlap.reason or "").startswith(
            "no-default-route" if wanted.route_overlap.expected_cidrs else ""
        )


def add_ib0(kernel: FakeKernel, *, is_up: bool = True) -> None:
    kernel.add_link("ib0", hardware=Hardware.INFINIBAND, up=is_up)


def add_eth0(kernel: FakeKernel) -> None:
    add_nics(kernel, eth0="10.1.0.4/24")
    assert kernel.write(Write.ADD, [default_route()]) == ()


def give_address(kernel: FakeKernel) -> None:
    kernel.add_address("ib0", "172.16.0.10/16")


@pytest.mark.parametrize(
    ("mode", "changes", "ended"),
    [
        pytest.param(
            "STRICT", {0.0: add_ib0, 1.0: add_eth0, 20.0: give_address}, 20, id="the address comes"
        ),
        pytest.param("STRICT", {0.0: add_ib0, 1.0: add_eth0}, 60, id="it never comes"),
        pytest.param(
            "STRICT", {0.0: add_ib0, 29.0: add_eth0}, 60, id="the default route comes first"
        ),
        pytest.param("STRICT", {0.0: add_ib0}, 30, id="no default route"),
        pytest.param("WARN", {0.0: add_ib0, 1.0: add_eth0}, 1, id="WARN"),
        pytest.param(
            "STRICT", {0.0: partial(add_ib0, is_up=False), 1.0: add_eth0}, 1, id="it is down"
        ),
    ],
)
def test_a_run_waits_for_addresses(
    mode: str, changes: dict[float, Callable[[FakeKernel], None]], ended: float, layout: Layout
) -> None:
    """Both deadlines are relative to the start of the run."""
    wanted = waiting(ROUTE, cidrs=[SHADOWED], mode=mode)
    assert run_late(wanted, layout, changes)[0] == pytest.approx(ended, abs=1.5)


# --- requests to the kernel -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "gateway", [{}, {"gateway": "10.1.0.1", "dev": "eth0"}], ids=["inherited", "named"]
)
def test_the_wait_the_plan_and_the_proof_read_table_main_once(
    kernel: FakeKernel, units: FakeSystemd, layout: Layout, gateway: dict[str, str]
) -> None:
    """The wait only reads it for gateways, which may be behind any of its entries."""
    asked = [Counter[object]()]

    def entries(wanted: Selection) -> Entries:
        asked[-1][wanted] += 1
        return kernel.entries(wanted)

    def lookup(*given: Any, **more: Any) -> Any:
        asked[-1]["lookup"] += 1
        return kernel.lookup(*given, **more)

    def write(change: Write, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        asked.append(Counter())
        return kernel.write(change, routes)

    backend: Any = Altered(kernel, entries=entries, lookup=lookup, write=write)
    asked_for = waiting({"destination": "10.9.0.0/16"} | gateway)
    phases.run(
        ConfigureStaticRoutes(asked_for, host=Host(routes=backend, units=units, layout=layout))
    )
    before, after = asked
    ours, main, local = OURS_IN_MAIN, Selection(Table.MAIN), Selection(Table.LOCAL)
    diverted = Selection(is_omitted=HasHops((NextHop("eth0", IPv4Address("10.1.0.1")),)))
    assert before.keys() == {ours, main, diverted, *(() if gateway else (DEFAULT_ROUTES,))}
    assert (before[main], after[main], after[local]) == (2 if gateway else 1, 1, 1)


def test_a_gateway_behind_a_longer_prefix_needs_no_wait(kernel: FakeKernel, host: Host) -> None:
    """The kernel looks for a gateway only in routes with link scope, even if packets to it would
    use another route.
    """
    kernel.add_link("ib9")
    kernel.write(
        Write.ADD, [Route(IPv4Network("10.1.0.1/32"), (NextHop("ib9"),), scope=Scope.LINK)]
    )
    named = config(ROUTE | {"gateway": "10.1.0.1", "dev": "eth0"})
    assert len(phases.run(ConfigureStaticRoutes(named, host=host)).plan.add) == 1


# --- half of it is removed ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gone", "then"),
    [
        *(("both", then) for then in ("the same", "nothing", "remove", "another consumer")),
        *((folder, "the same") for folder in ("etc/aks-flex-node", "etc/hostrouting")),
    ],
)
def test_a_run_repairs_a_half_removed_installation(
    gone: str, then: str, host: Host, layout: Layout
) -> None:
    """An agent's reset removes one directory, and an operator may remove the other.

    Any run repairs the host.
    """

    def files() -> dict[str, Entry]:
        """Return all files but the manifest, which may name folders that exist already."""
        found = read_trees(layout.root, leaving_out=[layout.root / "run", layout.manifest])
        return {name: entry for name, entry in found.items() if entry[0] != "folder"}

    before = files()
    phases.run(Configure(WATCHED, host=host))
    whole = files()
    for folder in ["etc/aks-flex-node", "etc/hostrouting"] if gone == "both" else [gone]:
        shutil.rmtree(layout.root / folder)
    if gone == "etc/aks-flex-node":
        assert layout.gate_script.exists()
        assert str(layout.relative(layout.script("static-routes"))) in layout.gate_list.read_text()
    if then == "the same":
        phases.run(Configure(WATCHED, host=host))
        assert files() == whole
        assert not plan_boot(WATCHED, host)
        phases.run(RemoveHostRouting(host=host))
    elif then == "another consumer":
        phases.run(Configure(attrs.evolve(WATCHED, consumer="kubelet.service"), host=host))
        assert [path.parent.name for path in layout.units.glob("*.d/zz-hostrouting.conf")] == [
            "kubelet.service.d"
        ]
        phases.run(RemoveHostRouting(host=host))
    else:
        phases.run(
            Configure(Config(), host=host) if then == "nothing" else RemoveHostRouting(host=host)
        )
    assert (files(), layout.manifest.exists()) == (before, False)
    assert not [route for route in read_routes(host.routes) if route.is_ours]
    assert not host.units.is_active("hostrouting-watch.service")


def test_a_removal_in_another_network_namespace_removes_nothing(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are the host's, whose routes would stay without them."""
    phases.run(Configure(WATCHED, host=host))
    before = read_trees(host.layout.root)
    monkeypatch.setattr(Host, "has_another_network", True)
    with pytest.raises(FileError, match="this is another network namespace") as raised:
        phases.run(RemoveHostRouting(host=host))
    assert "nsenter" in raised.value.hint
    assert read_trees(host.layout.root) == before


# --- reports --------------------------------------------------------------------------------------


def test_each_report_has_its_changes(host: Host) -> None:
    """Each of `Configure`'s three partial reports has its own changes.

    Only the overall report has shared ones.
    """
    report = phases.run(Configure(WATCHED, host=host))
    files = {change.what for change in report.changes.files}
    for one, name in (
        (report.routes, "static-routes"),
        (report.watch, "hostrouting-watch"),
        (report.overlap, CHECK),
    ):
        assert f"/etc/systemd/system/{name}.service" in {
            change.what for change in one.changes.files
        }
        assert f"{name}.service" in {change.what for change in one.changes.units}
        assert {change.what for change in one.changes.files} < files
    assert (
        report.changes.routes == report.routes.changes.routes == report.routes.plan.changes.routes
    )
    assert "/etc/hostrouting/gate.list" in files
    assert report.to_json()["files"] == report.changes.to_json()["files"]


def test_parallel_tasks_plan_their_own_part(host: Host) -> None:
    loose = attrs.evolve(WATCHED, route_overlap={"expectedCidrs": [SHADOWED]})
    tasks = (ConfigureStaticRoutes, CheckRouteOverlap, ConfigureWatch)
    phases.run(phases.Parallel(*(task(loose, host=host) for task in tasks)))
    assert not plan_boot(loose, host)


def test_a_whole_run_logs_two_tasks(host: Host) -> None:
    with pytest.raises(RouteOverlapError) as caught:
        phases.run(Configure(SICK, host=host))
    assert phases.path_of(caught.value) == "configure/check-route-overlap"
    assert caught.value.warnings[-1] == LED_AWAY
    for word in ("installed", "systemd-nspawn@.service", "hostrouting remove"):
        assert word in caught.value.hint
    with pytest.raises(RouteError) as refused:
        phases.run(Configure(config("10.1.0.0/24", cidrs=["172.16.2.0/24"]), host=host))
    assert phases.path_of(refused.value) == "configure/configure-static-routes"


@pytest.mark.parametrize(
    ("wanted", "steps"),
    [
        (config(SHADOWED), ["configure-static-routes", "check-route-overlap"]),
        (config(mode="WARN"), ["configure-static-routes", "check-route-overlap"]),
        (config(SHADOWED, cidrs=[]), ["configure-static-routes", "check-route-overlap"]),
        (Config(), []),
    ],
    ids=["routes and a check", "only a check", "only routes", "nothing"],
)
def test_a_check_has_the_same_path_with_and_without_routes(
    wanted: Config, steps: list[str], host: Host
) -> None:
    recorder = RecordingObserver()
    phases.run(Configure(wanted, host=host), observers=[recorder])
    started = [call[1] for call in recorder.events if call[0] == "started"]
    assert started == ["configure", *(f"configure/{step}" for step in steps)]


def test_a_host_kubelet_that_is_not_the_consumer_is_a_warning(host: Host, layout: Layout) -> None:
    write_file(layout.units / "kubelet.service", "[Service]\nExecStart=/bin/true\n")
    write_link(layout.units / "multi-user.target.wants/kubelet.service", "../kubelet.service")
    warning, led_away = phases.run(Configure(INSTALLED, host=host)).warnings
    assert led_away == LED_AWAY
    assert "kubelet.service starts at boot, and nothing holds it back" in warning
    assert plan(INSTALLED, host=host).warnings == (warning,)


class NoSystemd(FakeSystemd):
    """A host on which systemd doesn't run, such as a container."""

    def is_active(self, unit: str) -> bool:
        raise UnitError(f"`systemctl is-active {unit}` failed")


def test_a_plan_warns_where_apply_fails_without_systemd(kernel: FakeKernel, layout: Layout) -> None:
    without = Host(kernel, NoSystemd(layout, running=[MACHINE]), layout)
    warning, led_away = plan(INSTALLED, host=without).warnings[::-1]
    assert led_away == LED_AWAY
    assert "apply can't install this here" in warning
    with pytest.raises(UnitError):
        phases.run(Configure(INSTALLED, host=without))
    assert plan(Config(), host=without).warnings == ()
    host = Host(kernel, FakeSystemd(layout, running=[MACHINE]), layout)
    phases.run(Configure(INSTALLED, host=host))
    assert plan(INSTALLED, host=without).warnings == ()


def test_an_idle_watcher_is_a_warning(host: Host) -> None:
    report = phases.run(Configure(Config(watch={"enabled": True}), host=host))
    assert not report.changes
    (warning,) = report.warnings
    assert "nothing to watch" in warning


def test_a_missing_folder_for_metrics_is_a_warning(host: Host, layout: Layout) -> None:
    metrics = attrs.evolve(
        INSTALLED, watch={"enabled": True, "textfile": "/var/lib/metrics/node.prom"}
    )
    led_away, warning = plan(metrics, host=host).warnings
    assert (led_away, "/var/lib/metrics:" in warning) == (LED_AWAY, True)
    assert phases.run(Configure(metrics, host=host)).warnings == (warning, led_away)
    layout.of("/var/lib/metrics").mkdir(parents=True)
    assert phases.run(Configure(metrics, host=host)).warnings == ()


def test_a_cancelled_plan_reads_the_routes_no_more(kernel: FakeKernel, layout: Layout) -> None:
    scope, reads = phases.CancelScope(), []

    @contextmanager
    def restless(inside: object) -> Iterator[Listening]:
        reads.append(inside)
        scope.cancel("SIGTERM")
        yield Listening(happened=lambda: True)

    host = Host(Altered(kernel, changes=restless), FakeSystemd(layout), layout)
    with pytest.raises(phases.Cancelled):
        plan(INSTALLED, host=host, scope=scope)
    assert len(reads) == 1


def test_an_open_gate_passes_the_next_start_with_any_verdict(host: Host, layout: Layout) -> None:
    write_file(layout.gate_off)
    next_start = plan(SICK, host=host).next_start
    assert next_start.is_admitted
    assert "/etc/hostrouting/gate.off" in next_start.reason
    layout.gate_off.unlink()
    assert not plan(SICK, host=host).next_start.is_admitted


@pytest.mark.parametrize(("cidr", "lines"), [(SHADOWED, 1), ("172.16.2.0/24", 2)])
def test_an_open_gate_leaves_no_marker_that_says_ok(
    host: Host, layout: Layout, cidr: str, lines: int
) -> None:
    write_file(layout.gate_off)
    phases.run(Configure(config(SHADOWED, cidrs=[cidr], mode="WARN"), host=host))
    assert not layout.marker_ok.exists()
    found = layout.marker_detected.read_text().splitlines()
    assert len(found) == lines
    assert found[-1] == (
        "gate-off: the file /etc/hostrouting/gate.off is there; every start is admitted unchecked"
    )


def test_no_stale_marker_says_ok_without_room_for_the_report(host: Host, layout: Layout) -> None:
    phases.run(Configure(INSTALLED, host=host))
    write_file(layout.report / "in its place")
    with pytest.raises(FileError):
        phases.run(CheckRouteOverlap(SICK, host=host))
    assert not layout.marker_ok.exists()


def test_two_checks_at_once_leave_one_marker(layout: Layout) -> None:
    """A boot script that doesn't get the lock goes on without it."""
    layout.run_dir.mkdir(parents=True)
    fine = OverlapReport(Verdict.OK, OverlapMode.STRICT, "", "")
    why = UnknownReason.CHECK_FAILED
    reports = [fine, attrs.evolve(fine, verdict=Verdict.UNKNOWN, reason_kind=why)]
    left = Counter[bool]()
    with ThreadPoolExecutor(len(reports)) as pool:
        for _ in range(300):
            _ = [*pool.map(partial(write_markers, layout), reports)]
            left[layout.marker_ok.exists() != layout.marker_detected.exists()] += 1
    assert left == {True: 300}


def test_a_link_in_place_of_a_staging_folder_is_removed(host: Host, layout: Layout) -> None:
    phases.run(Configure(INSTALLED, host=host))
    (others := layout.root / "home/me").mkdir(parents=True)
    for seconds, link in enumerate((layout.stages, layout.stages / "link"), 1):
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(others.parent)
        phases.run(Configure(attrs.evolve(INSTALLED, wait_seconds=seconds), host=host))
        assert (others.is_dir(), link.is_symlink()) == (True, False)


# --- what a run that fails halfway has changed ----------------------------------------------------


@pytest.fixture
def units(layout: Layout) -> ActingSystemd:
    return ActingSystemd(layout)


@pytest.mark.parametrize("wait_seconds", [30, 7])
def test_a_run_that_writes_no_unit_asks_for_each_state_once(
    host: Host, units: ActingSystemd, *, wait_seconds: int
) -> None:
    """Each call of systemctl costs as much as planning hundreds of routes."""
    phases.run(Configure(INSTALLED, host=host))
    units.active.add("network-online.target")
    phases.run(Configure(INSTALLED, host=host))
    asked: list[tuple[str, str]] = []
    units.act = lambda _, unit, *names: asked.extend((unit, name) for name in names)
    report = phases.run(Configure(attrs.evolve(INSTALLED, wait_seconds=wait_seconds), host=host))
    assert bool(report.changes) == (wait_seconds != INSTALLED.wait_seconds)
    assert ("static-routes.service", "ActiveState") in asked
    assert len(asked) == len({*asked})
    assert not [unit for unit, _ in asked if unit == "network-online.target"]


def named(changes: Changes) -> dict[str, list[str]]:
    by_kind = {"files": changes.files, "units": changes.units, "routes": changes.routes}
    return {
        kind: sorted(str(change.what) for change in of_kind) for kind, of_kind in by_kind.items()
    }


def test_a_strict_failure_reports_changes_and_findings(host: Host) -> None:
    with pytest.raises(RouteOverlapError) as caught:
        phases.run(Configure(attrs.evolve(SICK, watch={"enabled": True}), host=host))
    told = named(caught.value.changes)
    assert told["routes"] == [LINE]
    files = {name for name, (kind, *_) in outside_run(host.layout.root).items() if kind == "file"}
    assert {str(host.layout.of(path)) for path in told["files"]} == files
    assert [change.action for change in caught.value.changes.units] == [
        "enabled",
        "enabled",
        "enabled",
        "restarted",
    ]
    assert caught.value.report.verdict == "overlap"
    hint = caught.value.hint
    assert str(caught.value) == f"{caught.value.message}\nhint: {hint}"  # not behind a caution
    assert "everything is installed" in hint
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.findings, again.changes) == (
        *(str(caught.value), caught.value.findings, caught.value.changes),
    )


def fail(*_: object, **__: object) -> NoReturn:
    raise OSError(24, "Too many open files", "/etc/machine-id")


def refute() -> None:
    raise AssertionError("it is restarted")


def interrupt() -> None:
    raise KeyboardInterrupt("SIGINT")


ENDS: dict[
    str, tuple[Callable[[phases.CancelScope, FakeClock], object], type[BaseException], str]
] = {
    "systemd refuses": (lambda *_: refusing("restart")("restart"), UnitError, "timed out"),
    "systemd's caller fails": (fail, UnitError, "BoundSystemd.restart failed: Too many open"),
    "a cancel": (lambda scope, _: scope.cancel("SIGTERM"), StoppedRun, "SIGTERM"),
    "a deadline": (lambda _, clock: clock.advance(5), OverdueRun, "4 s"),
    "a Ctrl-C": (lambda *_: interrupt(), KeyboardInterrupt, "SIGINT"),
    "a test's assertion": (lambda *_: refute(), AssertionError, "restarted"),
}


@pytest.mark.parametrize(("disturb", "error", "why"), ENDS.values(), ids=ENDS)
def test_a_run_that_ends_early_reports_its_changes(
    disturb: Callable[..., object],
    error: type[BaseException],
    why: str,
    host: Host,
    units: ActingSystemd,
) -> None:
    """It ends as the watcher is started, when all else is installed."""
    clock = FakeClock()
    scope = phases.CancelScope(timeout=4, clock=clock)
    units.act = at("restart", lambda: disturb(scope, clock))
    with pytest.raises(error, match=why) as caught:
        phases.run(Configure(WATCHED, host=host), scope=scope)
    assert phases.path_of(caught.value) == "configure/check-route-overlap"
    told = changes_of(None, caught.value)
    assert named(told)["routes"] == [LINE]
    assert "/etc/systemd/system/hostrouting-watch.service" in named(told)["files"]
    restarted = [change.what for change in told.units if change.action == "restarted"]
    assert restarted == (["hostrouting-watch.service"] if error in (StoppedRun, OverdueRun) else [])


def test_an_unexpected_os_error_reports_the_changes(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hostrouting.tasks.configure.check_families", fail)
    with pytest.raises(FileError, match="carry out the run at /etc/machine-id") as caught:
        phases.run(Configure(WATCHED, host=host))
    assert named(caught.value.changes)["routes"] == [LINE]


def test_rolled_back_changes_are_not_reported(host: Host, units: ActingSystemd) -> None:
    with pytest.raises(RouteError) as refusal:
        phases.run(Configure(config("172.16.0.0/16", watch={"enabled": True}), host=host))
    assert refusal.value.changes == Changes()
    units.act = refusing("enable", "static-routes.service")
    with pytest.raises(UnitError) as caught:
        phases.run(Configure(WATCHED, host=host))
    assert caught.value.changes == Changes()


EVERYTHING_OF_OURS = Selection(protocol=Protocol.HOSTROUTING)


def state_of(kernel: FakeKernel) -> dict[object, str]:
    """Return our routes by their keys, with those in side tables, and our rules."""
    rules = [rule_words(rule) for rule in kernel.facts().rules if rule.is_ours]
    state: dict[object, str] = {
        route.key: str(route) for route in kernel.entries(EVERYTHING_OF_OURS)
    }
    return state | dict(zip(rules, rules, strict=True))


def differences(before: dict[object, str], after: dict[object, str]) -> list[tuple[str, str]]:
    found = []
    for key in {**before, **after}:
        if key not in before:
            found.append((after[key], "added"))
        elif key not in after:
            found.append((before[key], "removed"))
        elif before[key] != after[key]:
            found.append((after[key], "replaced"))
    return sorted(found)


FORMER = config(
    *(f"172.16.{number}.0/24" for number in range(1, 5)),
    {"destination": "172.16.9.0/24", "metric": 5},
    rules=[{"to": "10.244.0.0/16", "priority": 5000}],
    cidrs=(),
)
LATER = config(
    *(f"172.16.{number}.0/24" for number in range(3, 8)),
    {"destination": "172.16.9.0/24", "metric": 5, "gateway": "10.1.0.9", "dev": "eth0"},
    keep=["ib0"],
    cidrs=(),
)


@pytest.mark.parametrize("seed", range(40))
def test_what_a_failed_rollback_leaves_is_reported(
    seed: int,
    kernel: FakeKernel,
    units: FakeSystemd,
    layout: Layout,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Any writes fail, also those of the rollback. A later step may restore what others didn't."""
    former, later = (FORMER, LATER) if seed % 2 else (LATER, FORMER)
    phases.run(Configure(former, host=Host(kernel, units, layout)))
    before = state_of(kernel)
    random = Random(seed)
    kinds = ["add", "replace", "delete", "add rule", "delete rule"]
    fail = {
        kind: {number: errno.ENOMEM for number in range(1, 40) if random.random() < 0.4}
        for kind in kinds
    }
    collected = ChangesObserver()
    task = Configure(later, host=Host(FailingBackend(kernel, fail), units, layout))
    with pytest.raises(RouteError) as caught:
        phases.run(task, observers=[collected])
    for changes in (caught.value.changes, collected.changes):
        told = [(str(change.what), change.action) for change in (*changes.routes, *changes.rules)]
        assert sorted(told) == differences(before, state_of(kernel))
        assert not changes.of_boot
    assert ("the rollback failed" in caught.value.hint) is bool(caught.value.changes)
    notes = [note for note in caught.value.__notes__ if not isinstance(note, phases.PathNote)]
    are_back = "in the end, all routes and rules were put back"
    if notes:
        assert (notes[-1] == are_back) is not bool(caught.value.changes)
    step = "failed configure/configure-static-routes"
    (logged,) = (vars(each) for each in caplog.records if each.message == step)
    assert (are_back in logged["error"]) is (are_back in notes)


class Dying(ForwardingBackend):
    """A backend whose connection dies during a write that the kernel carries out."""

    def __init__(self, inner: RouteBackend, writes: int) -> None:
        super().__init__(inner)
        self.left = writes

    def _require(self) -> None:
        if not self.left:
            raise RouteError("the agent is gone")

    def facts(self) -> Facts:
        self._require()
        return super().facts()

    def entries(self, wanted: Selection = EVERYTHING) -> Entries:
        self._require()
        return super().entries(wanted)

    def write(self, change: Write, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        self._require()
        failures = super().write(change, routes)
        self.left -= 1
        self._require()
        return failures


@pytest.mark.parametrize("writes", [1, 2])
def test_what_a_rollback_cannot_confirm_is_reported(
    writes: int, kernel: FakeKernel, units: FakeSystemd, layout: Layout
) -> None:
    collected = ChangesObserver()
    task = Configure(
        config(SHADOWED, keep=["ib0"], cidrs=()), host=Host(Dying(kernel, writes), units, layout)
    )
    with pytest.raises(RouteError) as caught:
        phases.run(task, observers=[collected])
    left = differences({}, state_of(kernel))
    assert len(left) == writes
    for changes in (caught.value.changes, collected.changes):
        told = {(str(change.what), change.action) for change in (*changes.routes, *changes.rules)}
        assert told >= {*left}
        assert not changes.of_boot
    assert "the rollback failed" not in caught.value.hint
    unconfirmed = caught.value.hint.partition("whether these changes were undone: ")[2]
    assert all(f"{what} ({action})" in unconfirmed for what, action in left)


def test_a_file_that_a_rollback_cannot_look_at_is_reported(
    host: Host, units: ActingSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bool:
        raise FileError(f"can't look at {path}: Input/output error")

    monkeypatch.setattr(remaining, "is_present", refuse)
    units.act = refusing("enable", "static-routes.service")
    with pytest.raises(UnitError) as caught:
        phases.run(Configure(WATCHED, host=host))
    assert caught.value.changes.files
    assert "whether these changes were undone: /etc/" in caught.value.hint
    assert "Input/output" in "".join(caught.value.__notes__)


def test_a_file_that_a_rollback_cannot_remove_is_reported(
    host: Host, units: ActingSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, state: object) -> None:
        if path.name != "static-routes.service":
            return put(path, state)  # type: ignore[arg-type]
        raise FileError(f"can't remove {path}: Read-only file system")

    monkeypatch.setattr(installation, "put", refuse)
    units.act = refusing("enable", "static-routes.service")
    with pytest.raises(UnitError) as caught:
        phases.run(Configure(WATCHED, host=host))
    told = [(change.what, change.action) for change in caught.value.changes.files]
    assert told == [("/etc/systemd/system/static-routes.service", "added")]
    assert "Read-only" in "".join(caught.value.__notes__)


def test_an_interrupted_removal_reports_what_it_removed(host: Host, units: ActingSystemd) -> None:
    phases.run(Configure(WATCHED, host=host))
    before = {path for path in host.layout.root.rglob("*") if path.is_file()}
    units.act = refusing("disable", "static-routes.service")
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


def test_a_failing_check_tells_what_the_config_already_lists(
    kernel: FakeKernel, host: Host
) -> None:
    listed = config(SHADOWED, keep=["ib*"])
    phases.run(ConfigureStaticRoutes(listed, host=host))
    kernel.ip(f"route del {SHADOWED}")
    with pytest.raises(RouteOverlapError) as caught:
        phases.run(CheckRouteOverlap(listed, host=host))
    assert caught.value.fix is not None
    assert not caught.value.fix.entries.is_wanted
    assert caught.value.fix.unapplied == attrs.evolve(listed.static_routes, keep=())
    assert caught.value.hint.startswith("the check is installed: ")
    assert "already lists what fixes this (1 route)" in str(caught.value)


@pytest.mark.parametrize("more", [{}, {"settleSeconds": 5}], ids=["default", "settleSeconds"])
@pytest.mark.parametrize("keep", [[], ["ib*"]], ids=["nothing kept", "ib* kept"])
@pytest.mark.parametrize("mode", ["WARN", "STRICT"])
def test_each_part_can_be_configured_again_without_a_change(
    mode: str, keep: list[str], more: dict[str, Any], host: Host
) -> None:
    """A part keeps what the record says of the others: the check's CIDRs, mode and waits."""
    wanted = config(SHADOWED, mode=mode, keep=keep, watch={"enabled": True})
    document = wanted.to_mapping()
    document["hostRouting"]["routeOverlap"] |= more
    wanted = Config.from_mapping(document)
    parts = (ConfigureStaticRoutes, CheckRouteOverlap, ConfigureWatch)
    for part in parts:
        phases.run(part(wanted, host=host))
    before = outside_run(host.layout.root)
    assert not plan(wanted, host=host)
    for part in parts:
        collected = ChangesObserver()
        phases.run(part(wanted, host=host), observers=[collected])
        assert collected.changes == Changes()
        assert outside_run(host.layout.root) == before
    assert installed_config(host=host) == wanted


def test_a_single_task_reports_its_changes(host: Host) -> None:
    routes = phases.run(ConfigureStaticRoutes(WATCHED, host=host))
    watch = phases.run(ConfigureWatch(WATCHED, host=host)).changes
    assert "/etc/aks-flex-node/static-routes.sh" in named(routes.changes)["files"]
    assert watch.units == (
        Change("hostrouting-watch.service", "enabled"),
        Change("hostrouting-watch.service", "restarted"),
    )
    assert "/etc/aks-flex-node/static-routes.sh" not in named(watch)["files"]
    assert not phases.run(ConfigureWatch(WATCHED, host=host)).changes
    removed = phases.run(RemoveHostRouting(host=host)).to_json()
    assert (removed["changed"], removed["routes"]) == (True, [{"route": LINE, "change": "removed"}])
    assert {"path": "/etc/aks-flex-node/static-routes.sh", "change": "removed"} in removed["files"]
    assert not phases.run(RemoveHostRouting(host=host)).to_json()["changed"]


def test_a_reload_alone_is_reported(host: Host) -> None:
    """If a run was killed before its reload, only the reload remains to be done."""
    stale = FakeSystemd(host.layout, running=[MACHINE])
    phases.run(ConfigureStaticRoutes(WATCHED, host=host))
    on = Host(routes=host.routes, units=stale, layout=host.layout)
    told = [phases.run(ConfigureStaticRoutes(WATCHED, host=on)).changes for _ in range(2)]
    assert told == [Changes(units=(Change(MACHINE, "reloaded"),)), Changes()]


def test_a_scope_with_a_deadline_ends_a_check_with_a_timeout(
    host: Host, kernel: FakeKernel
) -> None:
    """A ``Cancelled`` would end the caller's own run, which was not cancelled."""
    lose_default_route(kernel)
    with pytest.raises(phases.TimedOut):
        check(config(SHADOWED, waitSeconds=30), host=host, scope=phases.CancelScope(timeout=0.05))
