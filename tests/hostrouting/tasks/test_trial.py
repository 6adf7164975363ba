"""Tests that a trial changes only the kernel and /run, and leaves a complete config however it
ends.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from acting import ActingSystemd, at, refusing
from backends import FailingBackend
from file_trees import outside_run, write_file, write_link
from wanted import SHADOWED, TrialSystemd, config, ours

import phases
from hostrouting import (
    Config,
    Configure,
    ConfigureStaticRoutes,
    Host,
    Layout,
    RemoveHostRouting,
    Verdict,
)
from hostrouting.boot.manifest import Manifest
from hostrouting.boot.trial_timer import trial_deadline
from hostrouting.kernel.port import Write, read_our_routes
from hostrouting.model.errors import FileError, HostRoutingError, RouteError, UnitError
from hostrouting.overlap.findings import RouteOverlapError
from hostrouting.tasks.install_routes import InstallRoutes
from hostrouting.tasks.trial import ConfirmTrial, EndTrial, TryRoutes
from hostrouting.testing import FakeKernel, FakeSystemd
from phases.testing import FakeClock

TIMER = "hostrouting-trial.timer"


OLD = config("172.16.9.0/24", mode="WARN")
NEW = config(SHADOWED)


@pytest.fixture
def units(kernel: FakeKernel, layout: Layout) -> TrialSystemd:
    return TrialSystemd(layout, kernel)


@pytest.fixture
def host(kernel: FakeKernel, units: TrialSystemd, layout: Layout) -> Host:
    """Return a host on which OLD is installed."""
    host = Host(routes=kernel, units=units, layout=layout)
    phases.run(Configure(OLD, host=host))
    return host


def destinations(kernel: FakeKernel) -> list[str]:
    return sorted(str(route.destination) for route in ours(kernel))


BROKEN = [
    '{"until": "x", "uptime": 1e999}',
    '{"uptime": 1}',
    "[" * 100_000,
    '"x"',
    "",
    "{",
    "[]",
    "{}",
    "3",
]


@pytest.mark.parametrize("text", [*BROKEN, None])
def test_a_broken_trial_is_a_file_error(host: Host, text: str | None) -> None:
    """None stands for a symlink that dangles."""
    if text is None:
        write_link(host.layout.trial, "nowhere")
    else:
        write_file(host.layout.trial, text)
    with pytest.raises(FileError) as caught:
        trial_deadline(host.layout.trial)
    assert caught.value.hint == "hostrouting apply CONFIG ends the trial"
    for task in (TryRoutes(NEW, 60, host=host), EndTrial(host=host), ConfirmTrial(host=host)):
        with pytest.raises(FileError):
            phases.run(task)


def test_a_timer_rolls_back_and_no_file_is_written(
    host: Host, kernel: FakeKernel, units: TrialSystemd
) -> None:
    before, files = ours(kernel), outside_run(host.layout.root)
    report = phases.run(TryRoutes(NEW, 60, host=host))
    assert [str(route.destination) for route in report.routes.plan.add] == ["172.16.1.0/24"]
    assert report.overlap.verdict is Verdict.OK
    assert destinations(kernel) == ["172.16.1.0/24"]
    assert outside_run(host.layout.root) == files
    assert units.timers == {TIMER: (60, ("/bin/bash", "-p", str(host.layout.trial_script)))}
    assert trial_deadline(host.layout.trial) == report.until
    units.restart("hostrouting-trial.service")
    assert ours(kernel) == before
    assert len(before) == 1


def acting(host: Host, act: Callable[..., None]) -> Host:
    return Host(host.routes, ActingSystemd(host.layout, act), host.layout)


FAILS: dict[str, tuple[Callable[[Host, FakeClock], Host], type[HostRoutingError], str]] = {
    "a refused route": (
        lambda host, _: Host(
            FailingBackend(host.routes, {"add": {1: errno.ENOMEM}}), host.units, host.layout
        ),
        *(RouteError, "memory"),
    ),
    "expired before its first change": (
        lambda host, clock: acting(host, at("run_later", lambda: clock.advance(60))),
        *(RouteError, "expired before"),
    ),
    "no running systemd": (
        lambda host, _: acting(host, refusing("run_later")),
        UnitError,
        "timed out",
    ),
}


@pytest.mark.parametrize(("spoil", "error", "why"), FAILS.values(), ids=FAILS)
def test_a_trial_that_fails_leaves_nothing(
    host: Host, spoil: Callable[[Host, FakeClock], Host], error: type[HostRoutingError], why: str
) -> None:
    before, clock = read_our_routes(host.routes), FakeClock()
    with pytest.raises(error, match=why):
        phases.run(
            TryRoutes(NEW, 60, host=spoil(host, clock)), scope=phases.CancelScope(clock=clock)
        )
    assert read_our_routes(host.routes) == before
    assert (trial_deadline(host.layout.trial), host.units.is_active(TIMER)) == (None, False)


@pytest.mark.parametrize(
    ("seconds", "error"), [(0, ValueError), (86401, ValueError), (1.5, TypeError)]
)
def test_an_impossible_duration_is_refused(
    host: Host, seconds: int, error: type[Exception]
) -> None:
    with pytest.raises(error, match="seconds"):
        TryRoutes(NEW, seconds, host=host)


def test_a_second_trial_is_refused_with_a_hint(host: Host, kernel: FakeKernel) -> None:
    until = phases.run(TryRoutes(NEW, 60, host=host)).until
    with pytest.raises(RouteError, match=until) as caught:
        phases.run(TryRoutes(OLD, 60, host=host))
    assert "hostrouting revert" in caught.value.hint
    assert "remove" not in caught.value.hint
    assert destinations(kernel) == ["172.16.1.0/24"]
    assert trial_deadline(host.layout.trial) == until


def test_a_confirm_installs_the_tried_config(
    host: Host, kernel: FakeKernel, units: TrialSystemd, tmp_path: Path
) -> None:
    phases.run(TryRoutes(NEW, 60, host=host))
    assert phases.run(ConfirmTrial(host=host)).overlap.verdict is Verdict.OK
    assert Manifest.load(host.layout).config == NEW
    assert units.timers == {}
    assert not [*host.layout.run_dir.glob("trial*")]
    assert destinations(kernel) == ["172.16.1.0/24"]
    files = outside_run(host.layout.root)
    phases.run(Configure(NEW, host=host))
    assert outside_run(host.layout.root) == files
    with pytest.raises(RouteError, match="nothing to confirm"):
        phases.run(ConfirmTrial(host=host))


@pytest.mark.parametrize("place", ["tasks.configure.warnings_of", "testing.FakeSystemd.show_each"])
def test_a_failed_confirm_rolls_the_routes_back(
    host: Host, kernel: FakeKernel, units: TrialSystemd, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, files = ours(kernel), outside_run(host.layout.root)

    def refuse(*_: Any, **_more: Any) -> bool:
        raise UnitError("Unit is masked")

    phases.run(TryRoutes(NEW, 60, host=host))
    monkeypatch.setattr(f"hostrouting.{place}", refuse)
    with pytest.raises(UnitError, match="masked"):
        phases.run(ConfirmTrial(host=host))
    assert ours(kernel) == before
    assert outside_run(host.layout.root) == files
    assert (trial_deadline(host.layout.trial), units.timers, host.layout.confirmed.exists()) == (
        None,
        {},
        False,
    )


def test_a_confirm_that_cannot_be_taken_back_names_both_reasons(
    host: Host, units: TrialSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **_more: Any) -> bool:
        raise UnitError("Unit is masked")

    def fail(*_: Any) -> None:
        raise UnitError("the trial's script failed")

    phases.run(TryRoutes(NEW, 60, host=host))
    monkeypatch.setattr(units, "show_each", refuse)
    monkeypatch.setattr(units, "restart", fail)
    with pytest.raises(UnitError, match="masked") as caught:
        phases.run(ConfirmTrial(host=host))
    assert caught.value.__notes__[0] == "while putting things back: the trial's script failed"
    assert TIMER in units.timers


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda host: Configure(OLD, host=host), id="apply"),
        pytest.param(lambda host: Configure(Config(), host=host), id="apply nothing"),
        pytest.param(lambda host: ConfigureStaticRoutes(OLD, host=host), id="routes"),
        pytest.param(lambda host: InstallRoutes(OLD, host=host), id="routes only"),
        pytest.param(lambda host: RemoveHostRouting(host=host), id="remove"),
        pytest.param(
            lambda host: Configure(config(), host=host), id="apply what fails in STRICT mode"
        ),
    ],
)
@pytest.mark.parametrize("is_confirm_killed", [False, True])
def test_another_run_ends_the_trial_with_its_own_config(
    host: Host,
    kernel: FakeKernel,
    units: TrialSystemd,
    other: Callable[[Host], phases.Task[object]],
    is_confirm_killed: bool,
) -> None:
    phases.run(TryRoutes(config(SHADOWED, cidrs=()), 60, host=host))
    if is_confirm_killed:
        host.layout.trial.rename(host.layout.confirmed)
    with suppress(RouteOverlapError):
        phases.run(other(host))
    assert trial_deadline(host.layout.trial) is trial_deadline(host.layout.confirmed) is None
    after = ours(kernel)
    units.restart("hostrouting-trial.service")  # the time of the trial is over
    assert ours(kernel) == after


def test_a_failed_run_leaves_the_trial_unchanged(host: Host, kernel: FakeKernel) -> None:
    until = phases.run(TryRoutes(NEW, 60, host=host)).until
    with pytest.raises(HostRoutingError):
        phases.run(Configure(config("10.1.0.0/24"), host=host))  # this is a connected network
    assert trial_deadline(host.layout.trial) == until
    assert destinations(kernel) == ["172.16.1.0/24"]


def test_a_killed_confirm_can_be_repeated_until_another_run(host: Host) -> None:
    phases.run(TryRoutes(NEW, 60, host=host))
    host.layout.trial.rename(host.layout.confirmed)
    with pytest.raises(RouteError, match="hostrouting confirm"):
        phases.run(TryRoutes(OLD, 60, host=host))
    phases.run(ConfirmTrial(host=host))
    assert Manifest.load(host.layout).config == NEW
    host.layout.confirmed.write_text(json.dumps(NEW.to_mapping()))
    phases.run(Configure(OLD, host=host))
    with pytest.raises(RouteError, match="nothing to confirm"):
        phases.run(ConfirmTrial(host=host))
    assert Manifest.load(host.layout).config == OLD


@pytest.mark.parametrize("is_confirm_killed", [False, True])
def test_an_ended_trial_leaves_nothing(
    host: Host, kernel: FakeKernel, units: TrialSystemd, *, is_confirm_killed: bool
) -> None:
    before, files = ours(kernel), outside_run(host.layout.root)
    phases.run(TryRoutes(NEW, 60, host=host))
    if is_confirm_killed:
        host.layout.trial.rename(host.layout.confirmed)
    report = phases.run(EndTrial(host=host))
    assert [(str(each.what).split()[0], each.action) for each in report.changes.routes] == [
        ("172.16.9.0/24", "added"),
        ("172.16.1.0/24", "removed"),
    ]
    assert (ours(kernel), outside_run(host.layout.root), units.timers) == (before, files, {})
    assert not [path for path in (host.layout.trial, host.layout.confirmed) if path.exists()]
    phases.run(TryRoutes(NEW, 60, host=host))


@pytest.mark.parametrize(
    "tasks",
    [
        pytest.param((), id="no trial"),
        pytest.param((partial(TryRoutes, NEW, 60), EndTrial), id="an ended one"),
        pytest.param((partial(TryRoutes, NEW, 60), ConfirmTrial), id="a confirmed one"),
        pytest.param((partial(TryRoutes, NEW, 60), partial(Configure, OLD)), id="another run"),
    ],
)
def test_without_a_trial_nothing_is_ended(
    host: Host, kernel: FakeKernel, tasks: tuple[Callable[..., phases.Task[object]], ...]
) -> None:
    for task in tasks:
        phases.run(task(host=host))
    before = ours(kernel)
    with pytest.raises(RouteError, match="nothing to end"):
        phases.run(EndTrial(host=host))
    assert ours(kernel) == before


def test_an_end_names_a_config_that_stays(
    host: Host, kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A confirmation that is killed may have installed its config already."""
    before = ours(kernel)
    phases.run(TryRoutes(NEW, 60, host=host))
    with monkeypatch.context() as killed:
        killed.setattr("hostrouting.tasks.trial.remove_trial_leftovers", lambda _: None)
        phases.run(ConfirmTrial(host=host))
    with pytest.raises(RouteError) as caught:
        phases.run(EndTrial(host=host))
    assert not caught.value.changes
    assert destinations(kernel) == ["172.16.1.0/24"]
    assert trial_deadline(host.layout.trial) is None
    phases.run(Configure(OLD, host=host))
    assert ours(kernel) == before
    assert Manifest.load(host.layout).config == OLD


def test_an_expired_trial_is_not_ended_twice(host: Host, units: TrialSystemd) -> None:
    phases.run(TryRoutes(NEW, 60, host=host))
    units.restart("hostrouting-trial.service")
    with pytest.raises(RouteError, match="nothing to end"):
        phases.run(EndTrial(host=host))


def test_a_trial_that_cannot_be_ended_continues(
    host: Host, kernel: FakeKernel, units: TrialSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        kernel.write(Write.DELETE, ours(kernel))
        raise UnitError("the trial's script failed")

    until = phases.run(TryRoutes(NEW, 60, host=host)).until
    monkeypatch.setattr(units, "restart", fail)
    with pytest.raises(UnitError, match="script failed") as caught:
        phases.run(EndTrial(host=host))
    assert [each.action for each in caught.value.changes.routes] == ["removed"]
    assert (trial_deadline(host.layout.trial), [*units.timers]) == (until, [TIMER])


# --- without a systemd that runs scripts ----------------------------------------------------------


@pytest.fixture
def fake_host(kernel: FakeKernel, layout: Layout) -> Host:
    return Host(kernel, FakeSystemd(layout), layout)


@pytest.mark.parametrize("installed", [OLD, None])
def test_a_fake_systemd_does_not_keep_a_trial_from_being_ended(
    fake_host: Host, kernel: FakeKernel, installed: Config | None
) -> None:
    """Nothing is left for a script whose paths are those of the machine that runs the test."""
    if installed is not None:
        phases.run(Configure(installed, host=fake_host))
    before = ours(kernel)
    phases.run(TryRoutes(NEW, 60, host=fake_host))
    report = phases.run(EndTrial(host=fake_host))
    assert ours(kernel) == before
    assert len(report.changes.routes) == len(before) + 1
    assert not fake_host.units.is_active(TIMER)
    with pytest.raises(RouteError, match="no trial of routes is in progress"):
        phases.run(EndTrial(host=fake_host))


def test_a_failed_check_ends_a_trial_without_systemd(fake_host: Host, kernel: FakeKernel) -> None:
    with pytest.raises(RouteOverlapError):
        phases.run(TryRoutes(config(cidrs=["172.16.0.0/16"]), 60, host=fake_host))
    assert ours(kernel) == ()
    assert trial_deadline(fake_host.layout.trial) is None


def test_no_hint_names_a_script_for_another_machine(
    fake_host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below another root, too, the paths in the script are this machine's."""
    phases.run(TryRoutes(NEW, 60, host=fake_host))
    monkeypatch.setattr("hostrouting.tasks.trial.is_fake_systemd", lambda _: False)
    with pytest.raises(UnitError, match="the trial isn't over") as caught:
        phases.run(EndTrial(host=fake_host))
    assert caught.value.hint == ""
