"""The systemd port, which defines what hostrouting needs from a service manager.

``Systemctl`` (systemctl.py) implements it for the running system or an image, and ``FakeSystemd`` (fake_systemd.py) in
memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from phases import CancelScope

# An instance that doesn't exist, used to read the settings that every instance of a template gets.
ANY_INSTANCE = "hostrouting-probe"


class UnitManager(Protocol):
    """A systemd, running or not; every method that fails raises ``UnitError``."""

    def within(self, scope: CancelScope) -> UnitManager:
        """Return this systemd, but with methods that stop waiting for answers once the scope is cancelled.

        They raise the scope's end then. Code that undoes changes uses a scope that is never cancelled.
        """

    def reload(self) -> None:
        """Reload the unit files (``systemctl daemon-reload``); in an image, do nothing."""

    def enable(self, unit: str) -> None:
        """Make a unit start at every boot, according to its [Install] section."""

    def disable(self, unit: str) -> None:
        """Undo ``enable``; if the unit isn't enabled, do nothing."""

    def restart(self, unit: str) -> None:
        """Restart or start a unit, and wait until it has started, or until a oneshot has finished.

        In an image, do nothing.
        """

    def start(self, unit: str) -> None:
        """Start a unit without waiting for it; in an image, do nothing."""

    def stop(self, unit: str) -> None:
        """Stop a unit if it is running; in an image, do nothing."""

    def run_later(self, name: str, seconds: int, argv: Sequence[str]) -> None:
        """Run a program once after some seconds, even if the caller ends before; in an image, do nothing.

        Args:
            name: the name of the timer and of the service, without suffixes; both are removed when the program has
                ended.
            seconds: the delay in seconds.
            argv: the program's path and its arguments.
        """

    def is_active(self, unit: str) -> bool:
        """Return whether a unit is running; in an image, none is."""

    def is_enabled(self, unit: str) -> bool:
        """Return whether a unit starts at every boot."""

    def instances(self, consumer: str) -> tuple[str, ...]:
        """Return the units that a consumer stands for and whose settings can be read.

        Args:
            consumer: a service, or a template, which stands for all its instances.

        Returns:
            The sorted names; none in an image.
        """

    def show(self, unit: str, *names: str) -> dict[str, str]:
        """Return a unit's properties as ``systemctl show`` prints them.

        A property that isn't set is an empty string; in an image, all of them are.

        Args:
            unit: the unit's name.
            names: the names of the properties.
        """

    def orderings(self, *units: str) -> dict[str, tuple[str, ...]]:
        """Return the start order of all units that are loaded or start at boot.

        Args:
            units: more units to include.

        Returns:
            The units after which each unit starts; empty for an image.
        """
