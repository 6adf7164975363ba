"""The systemd port: what hostrouting needs from a service manager.

``Systemctl`` (systemctl.py) is the real one, for the running system or an image; ``FakeSystemd`` (fake_systemd.py) is
in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from phases import CancelScope

# An instance that doesn't exist, to read the settings that every instance of a template gets.
ANY_INSTANCE = "hostrouting-probe"


class UnitManager(Protocol):
    """A systemd, running or not. Every method raises ``UnitError`` if it fails."""

    def within(self, scope: CancelScope) -> UnitManager:
        """Return this systemd, but raise the scope's end instead of waiting for answers once the scope is cancelled.

        Code that undoes changes uses a scope that is never cancelled.
        """

    def reload(self) -> None:
        """Reload the unit files (``systemctl daemon-reload``); do nothing for an image."""

    def enable(self, unit: str) -> None:
        """Make a unit start at every boot, according to its [Install] section."""

    def disable(self, unit: str) -> None:
        """Undo ``enable``; a unit that isn't enabled is ignored."""

    def restart(self, unit: str) -> None:
        """Restart or start a unit and wait until it has started, or a oneshot until it is done; not for an image."""

    def start(self, unit: str) -> None:
        """Start a unit without waiting for it; do nothing for an image."""

    def stop(self, unit: str) -> None:
        """Stop a unit; ignore one that doesn't run; do nothing for an image."""

    def run_later(self, name: str, seconds: int, argv: Sequence[str]) -> None:
        """Run a program once after some seconds, even if the caller ends; do nothing for an image.

        Args:
            name: the name of the timer and the service, without their suffixes; both are removed when they are done.
            seconds: the seconds from now.
            argv: the program's path and its arguments.
        """

    def is_active(self, unit: str) -> bool:
        """Return whether a unit runs; never in an image."""

    def is_enabled(self, unit: str) -> bool:
        """Return whether a unit starts at every boot."""

    def instances(self, consumer: str) -> tuple[str, ...]:
        """Return the units with readable settings that a consumer stands for.

        Args:
            consumer: a service; a template stands for all its instances.

        Returns:
            Their names, sorted; none for an image.
        """

    def show(self, unit: str, *names: str) -> dict[str, str]:
        """Return a unit's properties as ``systemctl show`` prints them; empty if one isn't set, and in an image.

        Args:
            unit: the unit's name.
            names: the names of the properties.
        """

    def orderings(self, *units: str) -> dict[str, tuple[str, ...]]:
        """Return the start order of everything that is loaded or starts at boot.

        Args:
            units: more units to include.

        Returns:
            Each unit with those that it starts after; empty for an image.
        """
