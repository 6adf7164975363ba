"""Tests that ``RestoreOnFailure`` returns to the installed config, and leaves errors that tell the
truth.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from functools import partial
from pathlib import Path
from subprocess import CalledProcessError
from threading import Event, Thread
from typing import Any, NoReturn

import attrs
import pytest
from acting import ActingSystemd, refusing
from file_trees import outside_run
from wanted import MACHINE, SHADOWED, config, lose_default_route, ours

import phases
from hostrouting import (
    Config,
    Configure,
    ConfigureStaticRoutes,
    FileError,
    Host,
    Layout,
    RemoveHostRouting,
    RouteError,
    RouteOverlapError,
    UnitError,
)
from hostrouting.backend import Write
from hostrouting.report import Change, Changes, ChangesObserver
from hostrouting.tasks import InstallRoutes, RestoreOnFailure, TryRoutes, installed_config
from hostrouting.tasks.restoring import RESTORE_SECONDS
from hostrouting.testing import FakeKernel, FakeSystemd
from phases._errors import own_notes, rollback_notes
from phases.testing import FakeClock, RecordingObserver

FORMER = config("172.16.9.0/24", mode="WARN", consumer="kubelet.service", waitSeconds=600)
LATER = config(SHADOWED, watch={"enabled": True})
SICK = config(cidrs=[SHADOWED])
RESTORED = "what was installed before is installed again"
REMOVED = "nothing was installed before, so everything was removed again"
STAYS = "another program has changed what is installed, or begun a trial, since: that stays"
SAME = "the same config was installed before, perhaps by a killed run, so nothing was restored"
CHANGES = Changes(units=(Change("kube1.service", "started"),))
AGAIN_HINT = ": fix this, then try again"


class MyError(Exception):
    pass


@phases.task("start-machine")
def failing(scope: phases.CancelScope) -> NoReturn:
    raise MyError("there is no image")


@phases.task("start-machine")
def starting(scope: phases.CancelScope) -> str:
    return "kube1"


@pytest.fixture
def units(layout: Layout) -> ActingSystemd:
    return ActingSystemd(layout)


def restoring(host: Host, *tasks: phases.Task[Any]) -> phases.Task[Any]:
    return RestoreOnFailure(phases.Serial(*tasks), host=host)


def installation(host: Host) -> object:
    files = outside_run(host.layout.root)
    files.pop(str(host.layout.manifest), None)  # it also lists folders created in the meantime
    return host.our_routes(), files, installed_config(host=host)


def configured(observer: RecordingObserver) -> list[str]:
    """Return the tasks that have installed a config, in order."""
    paths = [str(event[1]) for event in observer.events if event[0] == "started"]
    return [path for path in paths if path.endswith("/configure")]


FIRST, AGAIN = "restore-on-failure/serial/configure", "restore-on-failure/configure"


def test_a_success_is_passed_on(host: Host) -> None:
    task = restoring(host, Configure(LATER, host=host), starting)
    assert str(phases.Serial(task)).count("configure") == 1
    report, started = phases.run(task)
    assert started == "kube1"
    assert installed_config(host=host) == LATER
    assert report.changes.routes


# --- nothing to do --------------------------------------------------------------------------------


@pytest.mark.parametrize("is_there", [True, False], ids=["installed", "with nothing installed"])
def test_nothing_is_done_after_a_run_that_changed_nothing(
    is_there: bool, host: Host, kernel: FakeKernel
) -> None:
    """Without a default route, installing the former config would wait for ten minutes."""
    if is_there:
        phases.run(Configure(FORMER, host=host))
    lose_default_route(kernel)
    before, clock, observer = installation(host), FakeClock(), RecordingObserver()
    task = restoring(host, Configure(LATER, host=host), starting)
    with pytest.raises(RouteError, match="timed out after 0 s") as caught:
        phases.run(task, scope=phases.CancelScope(clock=clock), observers=[observer])
    assert configured(observer) == [FIRST]
    assert "raise waitSeconds" in caught.value.hint
    assert clock.monotonic() == 0
    assert installation(host) == before


def test_nothing_is_done_if_the_same_config_was_installed_before(host: Host) -> None:
    phases.run(Configure(LATER, host=host))
    before, observer = installation(host), RecordingObserver()
    with pytest.raises(MyError):
        phases.run(restoring(host, Configure(LATER, host=host), failing), observers=[observer])
    assert configured(observer) == [FIRST]
    assert installation(host) == before


def test_a_note_says_that_a_killed_run_installed_the_same_config(
    host: Host, kernel: FakeKernel
) -> None:
    """The killed run had written the files, but no route yet."""
    phases.run(Configure(LATER, host=host))
    before, observer = installation(host), ChangesObserver()
    assert kernel.write(Write.DELETE, host.our_routes()) == ()
    with pytest.raises(MyError) as caught:
        phases.run(restoring(host, Configure(LATER, host=host), failing), observers=[observer])
    assert observer.changes.routes
    assert told(caught.value) == [SAME]
    assert installation(host) == before
    with pytest.raises(MyError) as caught:
        phases.run(restoring(host, Configure(LATER, host=host), failing))
    assert told(caught.value) == []


def test_nothing_is_done_after_a_task_has_rolled_back(host: Host, units: ActingSystemd) -> None:
    phases.run(Configure(FORMER, host=host))
    before, observer = installation(host), RecordingObserver()
    units.act = refusing("enable", "hostrouting-watch.service")
    with pytest.raises(UnitError):
        phases.run(restoring(host, Configure(LATER, host=host)), observers=[observer])
    assert configured(observer) == [FIRST]
    assert installation(host) == before


def test_nothing_is_run_if_it_is_unknown_what_was_installed(host: Host) -> None:
    phases.run(Configure(FORMER, host=host))
    host.layout.manifest.unlink()
    observer = RecordingObserver()
    with pytest.raises(FileError, match="can't tell what was installed"):
        phases.run(restoring(host, Configure(LATER, host=host)), observers=[observer])
    assert configured(observer) == []


# --- the state before -----------------------------------------------------------------------------


@pytest.mark.parametrize("former", [FORMER, SICK, Config()], ids=["a config", "held", "nothing"])
@pytest.mark.parametrize("is_stopped", [False, True], ids=["fails", "is stopped"])
def test_the_state_before_is_restored(
    former: Config, is_stopped: bool, host: Host, units: ActingSystemd
) -> None:
    """If the former config's check fails, its error isn't one of the restoration. No consumer is
    touched.
    """
    with suppress(RouteOverlapError):
        phases.run(Configure(former, host=host))
    before, scope = installation(host), phases.CancelScope()

    @phases.task("start-machine")
    def stopped(inner: phases.CancelScope) -> None:
        assert installation(host) != before
        scope.cancel("SIGTERM")
        inner.check()

    task = restoring(host, Configure(LATER, host=host), stopped if is_stopped else failing)
    calls: list[tuple[object, ...]] = []
    units.act = lambda *call: calls.append(call)
    with pytest.raises((MyError, phases.Cancelled)) as caught:
        phases.run(task, scope=scope)
    assert installation(host) == before
    assert rollback_notes(caught.value) == []
    assert not any(call[0] != "show" and {MACHINE, FORMER.consumer} & {*call} for call in calls)


@pytest.mark.parametrize("former", [FORMER, Config()], ids=["a config", "nothing"])
def test_a_ctrl_c_does_not_end_the_restoration(
    former: Config, host: Host, kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases.run(Configure(former, host=host))
    before = installation(host)

    def interrupted(*changed: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return FakeKernel.write(kernel, *changed)

    @phases.task("start-machine")
    def start_machine(scope: phases.CancelScope) -> NoReturn:
        monkeypatch.setattr(kernel, "write", interrupted)
        raise MyError

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            phases.run(restoring(host, Configure(LATER, host=host), start_machine))
    finally:
        signal.signal(signal.SIGINT, handler)
    assert installation(host) == before
    for error in (caught.value, caught.value.__context__):
        assert told(error) == [REMOVED if former == Config() else RESTORED]


def test_routes_that_a_rollback_left_are_removed(host: Host, kernel: FakeKernel) -> None:
    """Then the installed config is the former one, but the kernel isn't as it was."""
    task = ConfigureStaticRoutes(LATER, host=host)

    @phases.task("left")
    def left(scope: phases.CancelScope) -> NoReturn:
        changes = phases.run_child(InstallRoutes(LATER, host=host), scope).changes
        raise RouteError("can't install", hint="the rollback failed, too", changes=changes)

    with pytest.raises(RouteError) as caught:
        phases.run(restoring(host, left, task))
    assert ours(kernel) == ()
    assert (caught.value.hint, caught.value.changes) == (REMOVED + AGAIN_HINT, Changes())


# --- what another program has installed since -----------------------------------------------------

OTHER = config("172.16.8.0/24", mode="WARN")


@pytest.mark.parametrize("is_stopped", [False, True], ids=["fails", "is stopped"])
@pytest.mark.parametrize(
    "others",
    [
        lambda host: Configure(OTHER, host=host),
        lambda host: RemoveHostRouting(host=host),
        lambda host: TryRoutes(OTHER, 60, host=host),
    ],
    ids=["apply", "remove", "trial"],
)
def test_what_another_program_has_changed_since_stays(
    others: Callable[[Host], phases.Task[Any]], is_stopped: bool, host: Host
) -> None:
    phases.run(Configure(FORMER, host=host))
    scope, seen = phases.CancelScope(), []

    @phases.task("start-machine")
    def start_machine(inner: phases.CancelScope) -> NoReturn:
        in_another_program(others(host))
        seen.append((installation(host), host.layout.trial.exists()))
        if is_stopped:
            scope.cancel("SIGTERM")
            inner.check()
        raise UnitError("can't start kube1", changes=CHANGES, hint="journalctl -u kube1")

    with pytest.raises((UnitError, phases.Cancelled)) as caught:
        phases.run(restoring(host, Configure(LATER, host=host), start_machine), scope=scope)
    assert seen == [(installation(host), host.layout.trial.exists())]
    assert own_notes(caught.value) == [STAYS]
    if isinstance(caught.value, UnitError):
        assert (caught.value.hint, caught.value.changes) == (STAYS + AGAIN_HINT, CHANGES)


def test_a_later_task_that_fails_does_not_claim_what_another_program_has_installed(
    host: Host, units: ActingSystemd
) -> None:
    @phases.task("others")
    def others(scope: phases.CancelScope) -> None:
        in_another_program(Configure(OTHER, host=host))
        units.act = refusing("enable", "hostrouting-watch.service")

    first, later = Configure(FORMER, host=host), Configure(LATER, host=host)
    task = restoring(host, restoring(host, first, others, later))
    with pytest.raises(UnitError) as caught:
        phases.run(task)
    assert installed_config(host=host) == OTHER
    assert own_notes(caught.value) == [STAYS]


def test_a_trial_of_the_tree_is_ended(host: Host) -> None:
    trial = TryRoutes(OTHER, 60, host=host)
    with pytest.raises(MyError):
        phases.run(restoring(host, Configure(LATER, host=host), trial, failing))
    assert installed_config(host=host) == Config()
    assert not host.layout.trial.exists()


def in_another_program(task: phases.Task[Any]) -> None:
    """Run a task without the context of this test's tree."""
    thread = Thread(target=Context().run, args=(phases.run, task))
    thread.start()
    thread.join()


# --- what the error says --------------------------------------------------------------------------


def told(error: BaseException | None) -> list[str]:
    """Return the notes of an error about a restoration."""
    notes: list[str] = getattr(error, "__notes__", [])
    return [note for note in notes if "before" in note]


@pytest.mark.parametrize("former", [FORMER, Config()], ids=["a config", "nothing"])
def test_the_outer_of_two_restorations_has_the_last_word(former: Config, host: Host) -> None:
    """The inner one installs the config again that the outer one then replaces."""
    phases.run(Configure(former, host=host))
    between = Configure(config("172.16.7.0/24"), host=host)
    with pytest.raises(RouteOverlapError) as caught:
        phases.run(restoring(host, between, restoring(host, Configure(SICK, host=host))))
    note = REMOVED if former == Config() else RESTORED
    assert told(caught.value) == [note]
    assert (caught.value.hint, caught.value.changes) == (note + AGAIN_HINT, Changes())
    assert installed_config(host=host) == former


def test_a_restoration_that_a_sibling_caused_is_told(host: Host) -> None:
    """In a ``Parallel``, the cancelled task's own exception is lost."""
    installed = Event()

    @phases.task("wait")
    def waiting(scope: phases.CancelScope) -> None:
        installed.set()
        scope.wait(60)

    @phases.task("pull-image")
    def pull(scope: phases.CancelScope) -> NoReturn:
        assert installed.wait(60)
        raise MyError

    task = restoring(host, Configure(LATER, host=host), waiting)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - a group
        phases.run(phases.Parallel(task, pull))
    assert [type(each) for each in caught.value.exceptions] == [MyError]  # type: ignore[attr-defined]
    (note,) = told(caught.value)
    assert note.startswith("besides: Cancelled: pull-image ended with MyError (in task ")
    assert note.endswith(f", {REMOVED})")
    assert installed_config(host=host) == Config()


def alone(task: phases.Task[Any]) -> phases.Task[Any]:
    return task


@pytest.mark.parametrize("tree", [alone, phases.Parallel], ids=["alone", "in parallel"])
def test_the_hint_and_the_changes_are_those_after_the_restoration(
    tree: Callable[[phases.Task[Any]], phases.Task[Any]],
    host: Host,
    caplog: pytest.LogCaptureFixture,
) -> None:
    phases.run(Configure(FORMER, host=host))
    caplog.set_level(logging.INFO, "phases")
    with pytest.raises(Exception) as caught:  # noqa: PT011 - also a group
        phases.run(restoring(host, tree(Configure(SICK, host=host))))
    (error,) = getattr(caught.value, "exceptions", (caught.value,))
    assert isinstance(error, RouteOverlapError)
    assert (error.hint, error.changes) == (RESTORED + AGAIN_HINT, Changes())
    assert error.findings
    first, last = (
        [record for record in caplog.records if record.message.startswith("failed")][number]
        for number in (0, -1)
    )
    assert "is held back until this is fixed" in vars(first)["hint"]
    assert last.message == "failed restore-on-failure"
    assert vars(last).get("hint", error.hint) == error.hint


@pytest.mark.parametrize(
    "failure",
    [
        partial(CalledProcessError, 1, ["false"]),
        KeyboardInterrupt,
        partial(phases.Cancelled, "SIGTERM"),
        partial(UnitError, "can't start kube1", hint="journalctl -u kube1"),
    ],
    ids=["of a command", "Ctrl-C", "a cancellation", "ours"],
)
@pytest.mark.parametrize("tree", [alone, phases.Parallel], ids=["alone", "in parallel"])
def test_a_note_of_any_exception_says_that_the_former_config_is_installed(
    tree: Callable[[phases.Task[Any]], phases.Task[Any]],
    failure: Callable[[], BaseException],
    host: Host,
) -> None:
    @phases.task("start-machine")
    def start_machine(scope: phases.CancelScope) -> NoReturn:
        raise failure()

    with pytest.raises(BaseException) as caught:  # noqa: PT011 - also a group
        phases.run(restoring(host, Configure(LATER, host=host), tree(start_machine)))
    assert told(caught.value) == [REMOVED]
    assert installed_config(host=host) == Config()


def test_without_a_restoration_no_note_tells_of_one(host: Host) -> None:
    with pytest.raises(MyError) as caught:
        phases.run(restoring(host, failing))
    assert told(caught.value) == []


def test_the_hint_of_a_failure_that_left_nothing_is_kept(host: Host) -> None:
    @phases.task("start-machine")
    def refused(scope: phases.CancelScope) -> NoReturn:
        raise UnitError("can't start kube1", hint="journalctl -u kube1")

    with pytest.raises(UnitError) as caught:
        phases.run(restoring(host, Configure(LATER, host=host), refused))
    assert caught.value.hint == "journalctl -u kube1"
    assert installed_config(host=host) == Config()


# --- if it can't be restored ----------------------------------------------------------------------


@pytest.mark.parametrize("wait_seconds", [0, 600])
def test_without_a_default_route_the_new_config_stays_and_a_note_says_why(
    wait_seconds: int, host: Host, kernel: FakeKernel
) -> None:
    """The gate holds the node according to the new config. Nothing is half-restored."""
    phases.run(Configure(attrs.evolve(FORMER, wait_seconds=wait_seconds), host=host))
    clock = FakeClock()
    seen: list[object] = []

    @phases.task("start-machine")
    def start_machine(scope: phases.CancelScope) -> NoReturn:
        lose_default_route(kernel)
        seen.append(installation(host))
        raise MyError

    with pytest.raises(MyError) as caught:
        phases.run(
            restoring(host, Configure(LATER, host=host), start_machine),
            scope=phases.CancelScope(clock=clock),
        )
    (note,) = rollback_notes(caught.value)
    assert "waiting for the default route" in note
    assert clock.monotonic() == min(wait_seconds, RESTORE_SECONDS)
    assert seen == [installation(host)]
    assert installed_config(host=host) == LATER


def test_nothing_is_awaited_to_restore_an_empty_config(host: Host, kernel: FakeKernel) -> None:
    clock = FakeClock()

    @phases.task("start-machine")
    def start_machine(scope: phases.CancelScope) -> NoReturn:
        lose_default_route(kernel)
        raise MyError

    with pytest.raises(MyError):
        phases.run(
            restoring(host, Configure(LATER, host=host), start_machine),
            scope=phases.CancelScope(clock=clock),
        )
    assert clock.monotonic() == 0
    assert installed_config(host=host) == Config()
    assert ours(kernel) == ()


@pytest.mark.parametrize("others", [None, 3, ["download"], {"a": 1}, lambda: ()])
def test_an_own_task_may_use_the_name_of_the_subtasks_otherwise(host: Host, others: object) -> None:
    class Mine:
        name = "download"
        tasks = others

        def do(self, scope: phases.CancelScope) -> str:
            return "done"

    assert phases.run(RestoreOnFailure(Mine(), host=host)) == "done"


def test_a_task_for_another_host_is_refused(host: Host, tmp_path: Path) -> None:
    other = Layout(tmp_path / "other")
    other.units.mkdir(parents=True)
    elsewhere = Host(FakeKernel(), FakeSystemd(other), other)
    tree = phases.Serial(Configure(LATER, host=elsewhere), starting)
    with pytest.raises(TypeError, match="configure is for another host than RestoreOnFailure"):
        RestoreOnFailure(phases.Timeout(60, tree), host=host)
