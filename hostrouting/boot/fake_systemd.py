"""An in-memory fake of systemd."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hostrouting.boot import files
from hostrouting.boot.installed_units import drop_ins, is_masked, settings, unit_files, unit_names
from hostrouting.boot.layout import Layout
from hostrouting.model.text import shown
from phases import CancelScope

# Settings whose last value counts, with their defaults; see systemd.service(5) and systemd.unit(5).
_DEFAULTS = {
    "Restart": "no",
    "RestartUSec": "100ms",
    "StartLimitBurst": "5",
    "StartLimitIntervalUSec": "10s",
    "TimeoutStartUSec": "1min 30s",
}


class FakeSystemd:
    """A fake ``UnitManager`` that holds a layout's unit files as of the last reload.

    Args:
        layout: the layout to read unit files and drop-ins from, or None to read nothing.
        running: the loaded units, for example ``systemd-nspawn@kube1.service``. They need a layout:
            it has the gate's drop-ins for them.

    No program runs: a start or restart only marks the unit as active. A trial of routes doesn't end
    by itself; ``EndTrial`` restores the routes instead of the trial's script. ``properties`` holds
    unit properties that don't come from a file.
    """

    def __init__(self, layout: Layout | None = None, *, running: Iterable[str] = ()) -> None:
        if not isinstance(layout, Layout | None):
            raise TypeError(f"FakeSystemd takes a Layout, such as Layout({shown(layout)})")
        self._running = _to_units(running)
        if layout is None and self._running:
            raise TypeError(
                "FakeSystemd(running=…) also takes the layout from which these units are loaded: "
                f"FakeSystemd(Layout(FOLDER), running={[*self._running]})"
            )
        self._layout = Layout("/nonexistent") if layout is None else layout
        self._loaded: dict[str, dict[str, list[str]]] = {}
        self.enabled: set[str] = set()
        self.active: set[str] = set()
        self.restarts: list[str] = []
        self.starts: list[str] = []
        self.timers: dict[str, tuple[int, tuple[str, ...]]] = {}
        self.reloads = 0
        self.properties: dict[str, dict[str, str]] = {}
        self._load()

    def __repr__(self) -> str:
        return "<FakeSystemd>"

    def within(self, scope: CancelScope) -> FakeSystemd:
        """Return this object: the fake never waits, so nothing has to be cancelled."""
        del scope
        return self

    def reload(self) -> None:
        """Read the unit files again."""
        self.reloads += 1
        self._load()

    def enable(self, unit: str) -> None:
        """Create the symlink that our units' [Install] section requests."""
        self.enabled.add(unit)
        link = self._link(unit)
        if files.exists(self._layout.units / unit) and not files.is_present(link):
            files.link(link, f"/etc/systemd/system/{unit}")

    def disable(self, unit: str) -> None:
        """Remove the symlink that ``enable`` creates."""
        self.enabled.discard(unit)
        files.remove(self._link(unit))

    def restart(self, unit: str) -> None:
        """Record a restart and mark the unit as active."""
        self.restarts.append(unit)
        self.active.add(unit)

    def start(self, unit: str) -> None:
        """Record a start and mark the unit as active."""
        self.starts.append(unit)
        self.active.add(unit)

    def stop(self, unit: str) -> None:
        """Mark the unit as inactive."""
        self.active.discard(unit)
        self.timers.pop(unit, None)

    def run_later(self, name: str, seconds: int, argv: Sequence[str]) -> None:
        """Add the command and its delay to ``timers``; ``stop`` removes them."""
        self.timers[f"{name}.timer"] = (seconds, tuple(argv))
        self.active.add(f"{name}.timer")

    def is_active(self, unit: str) -> bool:
        """Return whether the unit was started and hasn't been stopped since."""
        return unit in self.active

    def is_enabled(self, unit: str) -> bool:
        """Return whether a ``.wants`` or ``.requires`` folder contains the unit.

        A unit without a file counts as enabled after ``enable``, too.
        """
        if not files.exists(self._layout.units / unit):
            return files.is_present(self._link(unit)) or unit in self.enabled
        wants = files.matching(self._layout.units, "*.wants")
        requires = files.matching(self._layout.units, "*.requires")
        return any(files.is_present(folder / unit) for folder in (*wants, *requires))

    def instances(self, consumer: str) -> tuple[str, ...]:
        """Return the running units that match a consumer."""
        return tuple(name for name in self._running if consumer in unit_names(name)[:2])

    def show(self, unit: str, *names: str) -> dict[str, str]:
        """Return a unit's properties: settings as of the last reload, and those in ``properties``.

        ``ExecConditionEx``, ``ExecStartPreEx``, ``EnvironmentFiles``, ``NeedDaemonReload`` and the
        unit's states are derived in the same way as in systemd.
        """
        loaded = self._loaded.get(unit, {})
        is_stale = unit in self._loaded and loaded != self._read(unit)
        properties = {
            **_properties_of(loaded),
            "NeedDaemonReload": "yes" if is_stale else "no",
            "LoadState": self._load_state(unit),
            "ActiveState": "active" if unit in self.active else "inactive",
            "RequiredBy": " ".join(self._requiring(unit)),
            **self.properties.get(unit, {}),
        }
        return {name: properties.get(name, "") for name in names}

    def _requiring(self, unit: str) -> list[str]:
        return [name for name, lists in self._loaded.items() if unit in _words(lists["Requires"])]

    def show_each(
        self,
        units: Sequence[str],
        *names: str,
        consumers: Sequence[str] = (),
    ) -> dict[str, dict[str, str]]:
        """Return the properties of each unit and instance; see ``show``."""
        instances = [unit for consumer in consumers for unit in self.instances(consumer)]
        return {unit: self.show(unit, *names) for unit in (*instances, *units)}

    def orderings(self, *units: str) -> dict[str, tuple[str, ...]]:
        """Map each unit, whether running or given, to the units after which it is started."""
        after: dict[str, list[str]] = {}
        loaded = {unit: self._read(unit) for unit in units} | self._loaded
        for unit, lists in loaded.items():
            after.setdefault(unit, []).extend(_words(lists.get("After", ())))
            for later in _words(lists.get("Before", ())):
                after.setdefault(later, []).append(unit)
        return {unit: tuple(names) for unit, names in after.items()}

    # --- unit files -------------------------------------------------------------------------------

    def _load(self) -> None:
        self._loaded = {unit: self._read(unit) for unit in self._running}

    def _load_state(self, unit: str) -> str:
        prefix, at, _ = unit.partition("@")
        is_instance = at and any(name.startswith(f"{prefix}@") for name in self._running)
        has_timer = f"{unit.removesuffix('.service')}.timer" in self.timers
        if unit in self._loaded or is_instance or has_timer:
            return "loaded"
        found = unit_files(self._layout, unit)
        if not found:
            return "not-found"
        return "masked" if is_masked(found[0]) else "loaded"

    def _link(self, unit: str) -> Path:
        return self._layout.enablement(unit.removesuffix(".service"))

    def _read(self, unit: str) -> dict[str, list[str]]:
        """Parse a unit's file and then its drop-ins, in order.

        An empty assignment resets a list.
        """
        own = unit_files(self._layout, unit)[:1]
        later = [path for path in drop_ins(self._layout, unit).values() if path.is_file()]
        lists: dict[str, list[str]] = {}
        for path in (*own, *later):
            for key, value in settings(path.read_text()):
                lists[key] = [*lists.get(key, ()), value] if value else []
        lists["DropInPaths"] = [self._layout.relative(path) for path in later]
        for name in unit_names(unit)[:-1]:
            for key in ("requires", "wants"):
                links = (self._layout.units / f"{name}.{key}").glob("*")
                names = sorted(path.name for path in links)
                lists.setdefault(key.capitalize(), []).extend(names)
        return lists


def _to_units(running: Any) -> tuple[str, ...]:
    is_list = isinstance(running, Iterable) and not isinstance(running, (str, bytes))
    units = tuple(running) if is_list else ()
    if not is_list or not all(isinstance(unit, str) for unit in units):
        raise TypeError(f"FakeSystemd(running=…) takes a list of units, not {shown(running)}")
    return units


def _words(values: Iterable[str]) -> list[str]:
    return " ".join(values).split()


def _properties_of(loaded: Mapping[str, Sequence[str]]) -> dict[str, str]:
    properties = dict(_DEFAULTS)
    for key, values in loaded.items():
        name = f"{key.removesuffix('Sec')}USec" if key.endswith("Sec") else key
        if values:
            properties[name] = values[-1] if name in _DEFAULTS else " ".join(values)
    for key in ("ExecCondition", "ExecStartPre"):
        commands = map(_exec_words, loaded.get(key, ()))
        properties[f"{key}Ex"] = "\n".join(commands)
    paths = [path.lstrip("-") for path in loaded.get("EnvironmentFile", ())]
    properties["EnvironmentFiles"] = "\n".join(f"{path} (ignore_errors=no)" for path in paths)
    return properties


def _exec_words(line: str) -> str:
    argv = line.lstrip("-+")
    prefixes = line[: -len(argv)]
    flags = []
    if "-" in prefixes:
        flags.append("ignore-failure")
    if "+" in prefixes:
        flags.append("privileged")
    path = argv.split()[0]
    return f"{{ path={path} ; argv[]={argv} ; flags={' '.join(flags)} ; start_time=[n/a] }}"
