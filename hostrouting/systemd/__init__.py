"""The systemd port: what hostrouting asks of a service manager.

``FakeSystemd`` (memory.py) is the one in memory. Nothing is installed into systemd yet: the port is the seam at
which the units and the gate come in.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["UnitManager"]


class UnitManager(Protocol):
    """A systemd, running or not. Every call raises ``UnitError`` if it can't be done."""

    def reload(self) -> None:
        """Read the unit files again (``systemctl daemon-reload``)."""
        ...

    def enable(self, unit: str) -> None:
        """Have a unit start at every boot, as its [Install] section says."""
        ...

    def disable(self, unit: str) -> None:
        """Undo ``enable``; a unit that isn't enabled is fine."""
        ...

    def start(self, unit: str) -> None:
        """Start a unit and wait until it is up, or for a oneshot until it is done."""
        ...

    def show(self, unit: str, name: str) -> str:
        """A property of a unit as ``systemctl show --property`` prints it; empty if it isn't set."""
        ...
