"""A systemd in memory."""

from __future__ import annotations

from hostrouting.errors import UnitError

__all__ = ["FakeSystemd"]


class FakeSystemd:
    """A ``UnitManager`` that remembers what it was told.

    Args:
        units: the units that there are, each with its properties as ``show`` returns them.
        failing: the units whose start fails.
    """

    def __init__(
        self, units: dict[str, dict[str, str]] | None = None, *, failing: frozenset[str] = frozenset()
    ) -> None:
        self.units = dict(units or {})
        self.failing = failing
        self.enabled: set[str] = set()
        self.started: list[str] = []
        self.reloads = 0

    def reload(self) -> None:
        """Count it."""
        self.reloads += 1

    def enable(self, unit: str) -> None:
        """Remember it."""
        self._find(unit, "enable")
        self.enabled.add(unit)

    def disable(self, unit: str) -> None:
        """Forget it."""
        self.enabled.discard(unit)

    def start(self, unit: str) -> None:
        """Remember it; fail if told so."""
        self._find(unit, "start")
        if unit in self.failing:
            raise UnitError(f"can't start {unit}: its process failed; see journalctl -u {unit}")
        self.started.append(unit)

    def show(self, unit: str, name: str) -> str:
        """The property it was made with; empty if there is none, as systemctl(1) has it."""
        return self.units.get(unit, {}).get(name, "")

    def _find(self, unit: str, verb: str) -> dict[str, str]:
        try:
            return self.units[unit]
        except KeyError:
            raise UnitError(f"can't {verb} {unit}: there is no such unit") from None
