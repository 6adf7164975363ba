"""The ``UnitManager`` protocol: everything that hostrouting needs from a service manager.

Two classes implement it: ``Systemctl`` (systemctl.py), for the running system or an image,
and the in-memory ``FakeSystemd`` (fake_systemd.py). The errors of a program's own class are
translated.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol, cast

from hostrouting.kernel.translating import NEVER_TRANSLATED, foreign_error, is_of_library
from hostrouting.model.errors import UnitError
from hostrouting.model.values import frozen
from phases import CancelScope

# The name of a dummy instance. The dummy has the settings that all instances of a template share.
ANY_INSTANCE = "hostrouting-probe"

# The values of ActiveState of a unit that is running or starting.
RUNNING = ("active", "activating", "reloading")


class UnitManager(Protocol):
    """The service manager of a running host or of an image; all methods may raise ``UnitError``."""

    def within(self, scope: CancelScope) -> UnitManager:
        """Return a copy whose methods stop waiting for systemd once the scope is cancelled.

        The methods then raise the scope's ``Cancelled`` or ``TimedOut``. A rollback passes a scope
        that is never cancelled.
        """

    def reload(self) -> None:
        """Reload the unit files (``systemctl daemon-reload``); no-op for an image."""

    def enable(self, unit: str) -> None:
        """Enable a unit according to its [Install] section."""

    def disable(self, unit: str) -> None:
        """Disable a unit, if it is enabled."""

    def restart(self, unit: str) -> None:
        """Restart or start a unit and wait until it's up, or finished if it's a oneshot.

        This is a no-op for images.
        """

    def start(self, unit: str) -> None:
        """Start a unit without waiting for it; no-op for an image."""

    def stop(self, unit: str) -> None:
        """Stop a unit if it is active; no-op for an image."""

    def run_later(self, name: str, seconds: int, argv: Sequence[str]) -> None:
        """Run a command once after a delay, even if the caller has exited by then.

        This is a no-op for images.

        Args:
            name: the base name of the timer and service units; both are removed after the command
                has finished.
            seconds: the delay in seconds.
            argv: the command to run, with its arguments.
        """

    def is_active(self, unit: str) -> bool:
        """Return whether a unit is active; always False for an image."""

    def is_enabled(self, unit: str) -> bool:
        """Return whether a unit is enabled."""

    def instances(self, consumer: str) -> tuple[str, ...]:
        """Return the units that a consumer's name stands for.

        Args:
            consumer: a service, or a template for all of its instances.

        Returns:
            The sorted unit names; empty for an image.
        """

    def show(self, unit: str, *names: str) -> dict[str, str]:
        """Return a unit's properties as printed by ``systemctl show``.

        Unset properties are empty strings. An image's units have no properties set.

        Args:
            unit: the unit's name.
            names: the names of the properties.
        """

    def show_each(
        self,
        units: Sequence[str],
        *names: str,
        consumers: Sequence[str] = (),
    ) -> dict[str, dict[str, str]]:
        """Return the properties of several units by unit name, like ``show``; empty for an image.

        Args:
            units: the units' names.
            names: the names of the properties.
            consumers: consumers, each of which stands for its ``instances``.
        """

    def orderings(self, *units: str) -> dict[str, tuple[str, ...]]:
        """Return the units that each loaded or enabled unit is ordered after.

        Args:
            units: additional units to include.

        Returns:
            For each unit's name, the names of the units before it; empty for an image.
        """


def translated_units(units: UnitManager) -> UnitManager:
    """Return a service manager whose errors are ``UnitError``s.

    One of this library is returned unchanged.
    """
    return units if is_of_library(units) else cast("UnitManager", _Translating(units))


def innermost_units(units: UnitManager) -> UnitManager:
    """Return the service manager whose errors are translated, or the given one."""
    return units.inner if isinstance(units, _Translating) else units


@frozen(repr=False)
class _Translating:
    """A service manager that translates the errors of a program's own."""

    inner: UnitManager

    def __repr__(self) -> str:
        return repr(self.inner)

    def __getattr__(self, name: str) -> Any:
        is_method = not name.startswith("_") and hasattr(UnitManager, name)
        return partial(self._call, name) if is_method else getattr(self.inner, name)

    def _call(self, name: str, *args: object, **named: object) -> Any:
        try:
            value = getattr(self.inner, name)(*args, **named)
        except NEVER_TRANSLATED:
            raise
        except Exception as error:
            attempt = _attempt(name, *args)
            raise foreign_error(UnitError, attempt, self.inner, name, error) from error
        return translated_units(value) if name == "within" else value


def _attempt(name: str, *args: object) -> str:
    """Return what a call attempts, such as ``enable hostrouting-watch.service``."""
    match name, args:
        case "reload", _:
            return "reload the unit files"
        case "run_later", (str() as unit, *_):
            return f"run {unit} later"
        case (("enable" | "disable" | "restart" | "start" | "stop"), (str() as unit, *_)):
            return f"{name} {unit}"
        case _, (str() as unit, *_):
            return f"query {unit}"
        case _:
            return "query systemd"
