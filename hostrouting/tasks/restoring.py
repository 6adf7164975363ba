"""Run a program's task, and install the former config again if the task fails.

A failed ``Configure`` undoes its own changes (``configure``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

import attrs

from hostrouting.boot.files import read_text
from hostrouting.boot.host import Host
from hostrouting.boot.locks import ENCLOSING, Done, Enclosing
from hostrouting.config.routing import Config
from hostrouting.model.errors import NO_CHANGES, HostRoutingError, RouteError
from hostrouting.model.values import frozen
from hostrouting.overlap.findings import RouteOverlapError
from hostrouting.routes.plan import find_missing
from hostrouting.tasks.arguments import HostTask
from hostrouting.tasks.configure import Configure
from hostrouting.tasks.queries import installed_config
from phases import CancelScope, Serial, Task, TimedOut, all_or_nothing, run_child

T_co = TypeVar("T_co", covariant=True)

# Less than the default of systemd's TimeoutStopSec=, which is 90 s.
RESTORE_SECONDS = 60

_RESTORED = "what was installed before is installed again"
_REMOVED = "nothing was installed before, so everything was removed again"
_STAYS = "another program has changed what is installed, or begun a trial, since: that stays"
_SAME = "the same config was installed before, perhaps by a killed run, so nothing was restored"
_NOTES = (_RESTORED, _REMOVED, _STAYS, _SAME)
_HINTS = {each: f"{each}: fix this, then try again" for each in _NOTES}


@frozen
class RestoreOnFailure(HostTask, Generic[T_co]):
    """Run a task, and if it fails, install the config again that was installed before.

    Nothing is done if that config is still installed, and the failed task has left no changes, as
    after a run that was killed while it installed the same config; then a note says so. A
    cancellation or a Ctrl-C is a failure, too; another one doesn't end the restoration. Changes of
    a program's own tasks stay. If another program has changed what is installed since, or has begun
    a trial, nothing is restored. An ``apply`` of exactly the config that the task installed changes
    nothing, so it isn't noticed, and the former config is restored.

    Args:
        task: the task to run, such as ``phases.Serial(Configure(config), start_node)``. It, and all
            tasks below it, must be for the same host as this one.
    """

    task: Task[T_co]

    name = "restore-on-failure"

    def __attrs_post_init__(self) -> None:
        """Refuse a task for another host, whose changes couldn't be undone here.

        Raises:
            TypeError: the task, or one below it, is for another host, or it isn't a task.
        """
        Serial(self.task)  # only a task is accepted
        for each in _tasks_from(self.task):
            other = getattr(each, "host", self.host)
            if isinstance(other, Host) and other.layout != self.host.layout:
                raise TypeError(
                    f"{each.name} is for another host than RestoreOnFailure:"
                    " pass the same host=… to both"
                )

    @property
    def tasks(self) -> tuple[Task[T_co]]:
        """Return the task in a tuple, as ``phases.Serial`` does with its tasks."""
        return (self.task,)

    def do(self, scope: CancelScope) -> T_co:
        """Run the task.

        Returns:
            The task's result.

        Raises:
            FileError: the installed config can't be read, so the task wasn't run.
            BaseException: any exception raised by the task. If the former config has been
                installed again, or all was removed because there was none, a note of the exception
                says so. If a ``HostRoutingError`` listed changes, these are then empty, and its
                ``hint`` says so, too. If another program's changes stay, a note and the hint of an
                error with changes say that. If the former config can't be installed within 60 s,
                for example because there is no default route, the task's changes stay, and a note
                of the exception says why.
        """
        former = installed_config(host=self.host)
        tree = _Tree(self.host, former, ENCLOSING.get())
        failure: BaseException | None = None

        def restore() -> None:
            if not any(_with_changes(failure)) and installed_config(host=self.host) == former:
                if failure is not None and tree.has_changed:
                    _say_same(failure)
                return
            note = _REMOVED if former == Config() else _RESTORED
            tree.is_restoring = True
            try:
                _install(former, self.host, scope.shield().child(timeout=RESTORE_SECONDS))
            except _StaysError:
                note = _STAYS
            if failure is not None:
                _update(failure, note)

        token = ENCLOSING.set(tree.enclose)
        try:
            with all_or_nothing() as undo:
                undo.push(restore)
                try:
                    return run_child(self.task, scope)
                except BaseException as error:
                    failure = error
                    raise
        except KeyboardInterrupt as interrupt:
            # A Ctrl-C during the restoration replaces the failure.
            told = _told(failure)
            if told and interrupt is not failure:
                _add_note(interrupt, told[-1])
            raise
        finally:
            ENCLOSING.reset(token)


class _StaysError(RouteError):
    """Another program has changed what is installed, so nothing is restored."""


@attrs.define(eq=False, repr=False)
class _Tree:
    """The changes by the runs of a tree, to tell them from those by another program.

    Args:
        former: the installed config before the tree.
        outer: encloses the runs of a tree around this one.
        config: the installed config that the last change by one of the tree's runs left.
        trial: the file of the trial that one of the tree's runs began last.
        is_restoring: whether the next run restores the former config.
        has_changed: whether a run has changed anything.
    """

    host: Host
    former: Config
    outer: Enclosing
    config: Config | None = None
    trial: str | None = None
    is_restoring: bool = False
    has_changed: bool = False

    @contextmanager
    def enclose(self, host: Host, done: Done) -> Iterator[None]:
        """Record what a run changes, or stop the restoration of another program's changes.

        Raises:
            _StaysError: the restoration would undo another program's changes.
        """
        if host.layout != self.host.layout:
            with self.outer(host, done):
                yield
            return
        config, trial = self._state()
        if self.is_restoring and self._is_of_others(config, trial):
            raise _StaysError(_STAYS)
        try:
            with self.outer(host, done):
                yield
        finally:
            self.has_changed |= bool(done.changes)
            left, tried = self._state()
            if not _is_same(left, config):
                self.config = left
            if tried != trial:
                self.trial = tried

    def _is_of_others(self, config: Config | None, trial: str | None) -> bool:
        if trial not in (None, self.trial):
            return True
        return not any(_is_same(config, each) for each in (self.former, self.config))

    def _state(self) -> tuple[Config | None, str | None]:
        """Return the installed config, or None if it is unknown, and the file of a trial."""
        with suppress(HostRoutingError):  # the run itself says what is wrong
            config = installed_config(host=self.host)
            return config, None if self.host.is_image else read_text(self.host.layout.trial)
        return None, None


def _is_same(config: Config | None, other: Config | None) -> bool:
    """Return whether two installed configs, and their verified uplinks, are the same."""
    if config is None or other is None:
        return config is other
    return config == other and config.former_record == other.former_record


def _tasks_from(task: Any) -> Iterator[Any]:
    """Yield a task and all tasks below it."""
    yield task
    below = getattr(task, "tasks", ())
    # A program's own task may use the name ``tasks`` otherwise.
    for each in below if isinstance(below, list | tuple) else ():
        yield from _tasks_from(each)


def _install(former: Config, host: Host, scope: CancelScope) -> None:
    try:
        run_child(Configure(former, host=host), scope)
    except RouteOverlapError:
        return  # everything is installed, and the gate holds the node as it did before
    except TimedOut as late:
        known = host.with_verified(former)
        missing = find_missing(known, *host.backends(known.static_routes.families))
        waited_for = f", waiting for {missing}" if missing else ""
        raise RouteError(f"can't install the former config again: {late}{waited_for}") from late


def _with_changes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error, or those in its group, that lists changes which a task has left."""
    return (each for each in _errors_from(error) if getattr(each, "changes", None))


def _errors_from(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and all errors in its group."""
    if error is not None:
        yield error
    for each in getattr(error, "exceptions", ()):
        yield from _errors_from(each)


def _update(error: BaseException, note: str) -> None:
    """Say what is installed now: in a note, and in the errors with changes.

    What a task below this one, which restored a later state, has said is replaced.
    """
    for each in _errors_from(error):
        has_changes = bool(getattr(each, "changes", None))
        if has_changes and note != _STAYS:
            vars(each)["changes"] = NO_CHANGES
        if isinstance(each, HostRoutingError) and (has_changes or each.hint in _HINTS.values()):
            each.hint = _HINTS[note]
    _add_note(error, note)


def _say_same(failure: BaseException) -> None:
    """Add the note that nothing was restored, unless a task below has restored something."""
    if not any(map(_told, _errors_from(failure))):
        _add_note(failure, _SAME)


def _told(error: BaseException | None) -> list[str]:
    """Return the notes that say what is installed now."""
    return [note for note in getattr(error, "__notes__", ()) if note in _NOTES]


def _add_note(error: BaseException, note: str) -> None:
    notes = [each for each in getattr(error, "__notes__", ()) if each not in _NOTES]
    vars(error)["__notes__"] = [*notes, note]  # as in Python 3.11
