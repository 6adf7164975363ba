"""A ``UnitManager`` based on systemctl(1), for the running systemd or an image's unit files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import attrs

from hostrouting.boot.files import is_present, matching
from hostrouting.boot.installed_units import UNIT_PATH
from hostrouting.boot.layout import SEARCH_PATH, Layout
from hostrouting.boot.systemd import ANY_INSTANCE, RUNNING
from hostrouting.model.errors import UnitError
from hostrouting.model.opening import check_path
from hostrouting.model.values import frozen
from phases import Cancelled, CancelScope, TimedOut

if TYPE_CHECKING:
    from subprocess import CompletedProcess

# The timeout of a call. Even on a busy machine, a daemon-reload takes seconds, not minutes.
ANSWER_SECONDS = 60.0
# The timeout of a call during the rollback of a cancelled run.
LAST_ANSWER_SECONDS = 5.0
_HANGS = "see whether systemd hangs"
_WITHOUT = "nothing can be changed for the next boot"
# If a gate is installed, this hint is left out: at the next start of the consumer, the gate would
# remove the routes.
_ROUTES_ONLY = (
    "hostrouting apply --routes-only changes only the kernel's routes and rules; "
    "without routes in CONFIG it removes ours"
)


class NoAnswerError(UnitError):
    """The error of a call to which systemd gives no answer. Further calls would fail, too."""

    reason: ClassVar[str] = "systemd gives no answer"


class NoSystemdError(NoAnswerError):
    """The error of a call on a host without a running systemd."""

    reason: ClassVar[str] = "systemd doesn't run here"


@attrs.define(eq=False, repr=False)
class Silence:
    """The record of systemd's last timeout, shared by the copies of a ``Systemctl``.

    Args:
        until: the time, by the scope's clock, before which systemd isn't called again.
        is_ending: whether the run was cancelled while a call was waiting for systemd.
    """

    until: float = 0.0
    is_ending: bool = False


@frozen
class Systemctl:
    """A ``UnitManager`` that calls systemctl(1).

    Args:
        root: an image's root folder, for changing unit files only (``systemctl --root``), or None
            for the running system.
        scope: the scope whose end also ends the waits for systemd.
        silence: the record of systemd's last timeout, which the copies share.
    """

    _root: str | os.PathLike[str] | None = None
    _scope: CancelScope = attrs.field(factory=CancelScope, kw_only=True, repr=False)
    _silence: Silence = attrs.field(factory=Silence, kw_only=True, repr=False)

    def __attrs_post_init__(self) -> None:
        if self._root is not None:
            check_path(self._root, "Systemctl(root=…)")

    def __reduce__(self) -> tuple[type[Systemctl], tuple[str | os.PathLike[str] | None]]:
        # A copy in another process waits in a scope of its own.
        return type(self), (self._root,)

    @property
    def is_this_host(self) -> bool:
        """Return whether this is the running system's service manager, and not an image's."""
        return self._root is None

    def within(self, scope: CancelScope) -> Systemctl:
        """Return a copy whose calls stop waiting for systemd once the scope is cancelled."""
        return attrs.evolve(self, scope=scope)

    def reload(self) -> None:
        """Reload the unit files."""
        self._run("daemon-reload")

    def enable(self, unit: str) -> None:
        """Enable a unit."""
        self._run("enable", unit)

    def disable(self, unit: str) -> None:
        """Undo ``enable``."""
        if self.is_enabled(unit):
            self._run("disable", unit)

    def restart(self, unit: str) -> None:
        """Restart or start a unit and wait for the job to finish."""
        self._run("restart", unit)

    def start(self, unit: str) -> None:
        """Start a unit; return before it has started."""
        self._run("start", "--no-block", unit)

    def stop(self, unit: str) -> None:
        """Stop a unit if it is active."""
        if self.is_active(unit):
            self._run("stop", unit)

    def run_later(self, name: str, seconds: int, argv: Sequence[str]) -> None:
        """Run a command once after a delay, and again if it gets killed."""
        self._run(
            "--quiet",
            "--collect",
            f"--unit={name}",
            f"--on-active={seconds}",
            "--timer-property=AccuracySec=100ms",
            "--property=Type=oneshot",
            "--property=Restart=on-abnormal",
            *argv,
            program="systemd-run",
        )

    def is_active(self, unit: str) -> bool:
        """Return whether a unit is running or starting."""
        # Exit codes 3 and 4 mean inactive and nonexistent. Use the printed state, because the exit
        # codes aren't reliable.
        state = self._run("is-active", unit, fine=(0, 3, 4)).strip()
        return state in RUNNING

    def is_enabled(self, unit: str) -> bool:
        """Return whether a unit is enabled."""
        # Use the printed state, because exit code 1 can mean disabled, masked or, before systemd
        # 253, missing.
        state = self._run("is-enabled", unit, fine=(0, 1, 4)).strip()
        return state in ("enabled", "enabled-runtime")

    def instances(self, consumer: str) -> tuple[str, ...]:
        """Return the units that a consumer refers to.

        A template refers to a dummy instance, the loaded and enabled instances, and instances with
        unit files or drop-ins of their own.
        """
        if "@." not in consumer:
            return (consumer,) if self._root is None else ()
        return tuple(sorted(self.show_each((), consumers=(consumer,))))

    def show(self, unit: str, *names: str) -> dict[str, str]:
        """Return a unit's properties, joining repeated ones with newlines."""
        text = self._run("show", "--property", ",".join(names), "--", unit)
        return _properties(text, names)

    def _show(self, names: Sequence[str], *units: str) -> list[dict[str, str]]:
        """Return the properties of the given units, and of loaded units that match a pattern."""
        text = self._run("show", "--property", ",".join(names), "--", *units)
        # systemctl separates units by blank lines.
        return [_properties(block, names) for block in text.split("\n\n")]

    def show_each(
        self,
        units: Sequence[str],
        *names: str,
        consumers: Sequence[str] = (),
    ) -> dict[str, dict[str, str]]:
        """Return the properties of several units and instances, all with a single call."""
        if self._root is not None or not (units or consumers):
            return {}
        # This is a dict instead of a set, because the order matters. A unit may be given twice.
        listed = dict.fromkeys(chain(*map(_named, consumers), units))
        patterns = [consumer.replace("@.", "@*.") for consumer in consumers if "@." in consumer]
        keys = ("Id", *names)
        blocks = self._show(keys, *listed, *patterns)
        # systemctl first prints the named units, in the given order. Units are recognized by this
        # order, because an Id may be another name of the unit. The loaded units that match a
        # pattern follow.
        by_unit = {unit: dict.fromkeys(keys, "") for unit in listed}
        by_unit.update(zip(listed, blocks, strict=False))
        for block in blocks[len(listed) :]:
            by_unit.setdefault(block["Id"], block)
        return {unit: {name: block[name] for name in names} for unit, block in by_unit.items()}

    def orderings(self, *units: str) -> dict[str, tuple[str, ...]]:
        """Return the units that each loaded or enabled unit is ordered after."""
        if self._root is not None:
            return {}
        # systemd unloads stopped units, and units that it left out of a cycle. The Before= of an
        # unloaded unit is unloaded, too. So name the enabled units in the call.
        names = sorted({*units, *_enabled()})
        after: dict[str, set[str]] = {}
        for properties in self._show(("Id", "After", "Before", "LoadState"), "*", *names):
            # A unit that isn't loaded is only mentioned in another unit's ordering.
            if properties["LoadState"] != "loaded":
                continue
            unit = properties["Id"]
            after.setdefault(unit, set()).update(properties["After"].split())
            for later in properties["Before"].split():
                after.setdefault(later, set()).add(unit)
        return {unit: tuple(sorted(earlier)) for unit, earlier in after.items()}

    def _run(self, *words: str, fine: tuple[int, ...] = (0,), program: str = "systemctl") -> str:
        # systemctl would run any other command on the running system, in spite of --root.
        if self._root is not None and words[0] not in ("enable", "disable", "is-enabled"):
            return ""
        root = [] if self._root is None else [f"--root={self._root}"]
        argv = [program, *root, *words]
        command = " ".join(argv)
        done = self._call(argv, command)
        if done.returncode in fine:
            return done.stdout
        reason = " ".join((done.stderr or done.stdout).split())
        if "not been booted with systemd" in reason:
            raise NoSystemdError(
                f"`{command}` failed: {NoSystemdError.reason}, so {_WITHOUT}",
                hint=_without_systemd(),
            )
        raise UnitError(f"`{command}` failed: {reason or f'exit code {done.returncode}'}")

    def _call(self, argv: Sequence[str], command: str) -> CompletedProcess[str]:
        """Run a program that calls systemd. If systemd has timed out before, fail at once.

        After a timeout, later calls fail at once. Otherwise, each rollback step would wait for the
        full timeout while the run holds the lock.
        """
        clock = self._scope.clock
        called_at = clock.monotonic()
        if called_at < self._silence.until:
            raise NoAnswerError(f"`{command}` wasn't run: {NoAnswerError.reason}", hint=_HANGS)
        seconds = LAST_ANSWER_SECONDS if self._silence.is_ending else ANSWER_SECONDS
        env = os.environ | {"LC_ALL": "C", "PATH": SEARCH_PATH, "SYSTEMD_PAGER": ""}
        try:
            return self._scope.child(timeout=seconds).run(argv, env=env, check=False)
        except TimedOut:
            self._silence.until = clock.monotonic() + ANSWER_SECONDS
            reason = f"`{command}` gave no answer within {seconds:g} s"
            raise NoAnswerError(reason, hint=_HANGS) from None
        except Cancelled:
            self._silence.is_ending = True
            # If the call has waited long enough, don't let the rollback wait for systemd again.
            if clock.monotonic() - called_at >= LAST_ANSWER_SECONDS:
                self._silence.until = clock.monotonic() + ANSWER_SECONDS
            raise
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            kind = NoSystemdError if isinstance(error, FileNotFoundError) else UnitError
            raise kind(
                f"can't run `{command}`: {reason}; without systemd {_WITHOUT}",
                hint=_without_systemd(),
                errno=error.errno,
            ) from error


def _without_systemd() -> str:
    return "" if is_present(Layout().gate_list) else _ROUTES_ONLY


@cache
def running_systemd() -> Systemctl:
    """Return this host's service manager, always the same object, which remembers a hang."""
    return Systemctl()


def _properties(text: str, names: Sequence[str]) -> dict[str, str]:
    """Parse a unit's properties as printed by systemctl, joining repeated ones with newlines."""
    properties = dict.fromkeys(names, "")
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and name in properties:
            properties[name] = f"{properties[name]}\n{value}".strip("\n")
    return properties


def _named(consumer: str) -> set[str]:
    """Return a consumer's dummy instance, and its instances with links, files or drop-ins."""
    if "@." not in consumer:
        return {consumer}
    prefix, suffix = consumer.split("@.", 1)
    names = {f"{prefix}@{ANY_INSTANCE}.{suffix}"}
    for folder in (*map(Path, UNIT_PATH), *_dependents("wants", "requires", "upholds")):
        names |= {path.name.removesuffix(".d") for path in matching(folder, f"{prefix}@*")}
    return {name for name in names if name.endswith(f".{suffix}")} - {consumer}


def _dependents(*kinds: str) -> list[Path]:
    """Return the folders of the given kinds in systemd's unit path, such as all ``*.wants``."""
    folders: list[Path] = []
    for folder in map(Path, UNIT_PATH):
        folders += matching(folder, "*.[wru]*s")
    return [folder for folder in folders if folder.suffix.removeprefix(".") in kinds]


def _enabled() -> set[str]:
    names: set[str] = set()
    for folder in _dependents("wants", "requires"):
        names.update(path.name for path in matching(folder, "*"))
    return {name for name in names if "@." not in name}
