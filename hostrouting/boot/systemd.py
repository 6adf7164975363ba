"""The systemd port: what hostrouting asks of a service manager.

``Systemctl`` (systemctl.py) is the real one, of the running system or of an image; ``FakeSystemd`` (fake_systemd.py)
the one in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from phases import CancelScope

# An instance that doesn't exist: to read back what every instance of a template gets.
ANY_INSTANCE = "hostrouting-probe"


class UnitManager(Protocol):
    """A systemd, running or not. Every call raises ``UnitError`` if it can't be done."""

    def within(self, scope: CancelScope) -> UnitManager:
        """Return this systemd, of which no answer is awaited any more once a scope has ended: its end is raised.

        What puts things back asks within a scope that is never cancelled.
        """

    def reload(self) -> None:
        """Have the unit files read again (``systemctl daemon-reload``); does nothing for an image."""

    def enable(self, unit: str) -> None:
        """Have a unit start at every boot, as its [Install] section says."""

    def disable(self, unit: str) -> None:
        """Undo ``enable``; a unit that isn't enabled is fine."""

    def restart(self, unit: str) -> None:
        """Start a unit, anew if it runs, and wait until it has started, or, a oneshot, is done; not for an image."""

    def start(self, unit: str) -> None:
        """Have a unit start, and don't wait for it; does nothing for an image."""

    def stop(self, unit: str) -> None:
        """Stop a unit; one that doesn't run is fine; does nothing for an image."""

    def run_later(self, name: str, seconds: int, argv: Sequence[str]) -> None:
        """Have a program run once in so many seconds, whatever becomes of who asks; does nothing for an image.

        Args:
            name: of the timer and of the service that come of it, without their endings; both go when they are done.
            seconds: from now.
            argv: the program, by its path, and its arguments.
        """

    def is_active(self, unit: str) -> bool:
        """Return whether a unit runs; never in an image."""

    def is_enabled(self, unit: str) -> bool:
        """Return whether a unit starts at every boot."""

    def instances(self, consumer: str) -> tuple[str, ...]:
        """Return the units whose settings can be read back that a consumer stands for.

        Args:
            consumer: a service; a template stands for all its instances.

        Returns:
            Their names, sorted; none for an image.
        """

    def show(self, unit: str, *names: str) -> dict[str, str]:
        """Properties of a unit as ``systemctl show`` prints them; empty where one isn't set, and in an image.

        Args:
            unit: its name.
            names: of the properties.
        """

    def orderings(self, *units: str) -> dict[str, tuple[str, ...]]:
        """Return the order in which everything would start that is in memory or starts at boot.

        Args:
            units: to be looked at besides.

        Returns:
            Each unit with those that it starts after; empty for an image.
        """
