"""A systemd in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from hostrouting.boot.layout import Layout
from hostrouting.boot.unit_files import drop_ins, is_masked, settings, unit_files, unit_names
from hostrouting.model.errors import UnitError
from phases import CancelScope


class FakeSystemd:
    """A ``UnitManager`` that knows the unit files below a layout as of the last reload.

    Args:
        layout: where the unit files and drop-ins are, or None if there are none to read.
        running: the loaded units, for example ``systemd-nspawn@kube1.service``.

    ``properties`` holds the properties of units that no file sets.
    """

    def __init__(self, layout: Layout | None = None, *, running: Iterable[str] = ()) -> None:
        self._layout = layout
        self._running = tuple(running)
        self._loaded: dict[str, dict[str, list[str]]] = {}
        self.enabled: set[str] = set()
        self.active: set[str] = set()
        self.restarts: list[str] = []
        self.starts: list[str] = []
        self.timers: dict[str, tuple[int, tuple[str, ...]]] = {}
        self.reloads = 0
        self.properties: dict[str, dict[str, str]] = {}
        self._load()

    def within(self, scope: CancelScope) -> FakeSystemd:
        """Return this object, which never waits."""
        del scope
        return self

    def reload(self) -> None:
        """Read the unit files again."""
        self.reloads += 1
        self._load()

    def enable(self, unit: str) -> None:
        """Create the link that the [Install] section of all our units asks for."""
        self.enabled.add(unit)
        link = self._link(unit)
        if link is None or link.is_symlink():
            return
        try:
            link.parent.parent.joinpath(unit).stat()
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(f"/etc/systemd/system/{unit}")
        except OSError as error:
            raise UnitError(f"`systemctl enable {unit}` failed: {error}", errno=error.errno) from error

    def disable(self, unit: str) -> None:
        """Remove the link that ``enable`` creates."""
        self.enabled.discard(unit)
        link = self._link(unit)
        try:
            if link is not None:
                link.unlink(missing_ok=True)
        except OSError as error:
            raise UnitError(f"`systemctl disable {unit}` failed: {error}", errno=error.errno) from error

    def restart(self, unit: str) -> None:
        """Record that the unit was restarted and runs."""
        self.restarts.append(unit)
        self.active.add(unit)

    def start(self, unit: str) -> None:
        """Record that the unit was started and runs."""
        self.starts.append(unit)
        self.active.add(unit)

    def stop(self, unit: str) -> None:
        """Record that the unit doesn't run."""
        self.active.discard(unit)
        self.timers.pop(unit, None)

    def run_later(self, name: str, seconds: int, argv: Sequence[str]) -> None:
        """Record the program and its delay in ``timers``, where they stay until the timer is stopped."""
        self.timers[f"{name}.timer"] = (seconds, tuple(argv))
        self.active.add(f"{name}.timer")

    def is_active(self, unit: str) -> bool:
        """Return whether the unit was started and hasn't been stopped since."""
        return unit in self.active

    def is_enabled(self, unit: str) -> bool:
        """Return whether the link exists."""
        link = self._link(unit)
        return unit in self.enabled if link is None else link.is_symlink()

    def instances(self, consumer: str) -> tuple[str, ...]:
        """Return the running units that match a consumer, or none if there is no layout."""
        if self._layout is None:
            return ()
        prefix, at, suffix = consumer.partition("@.")
        return tuple(
            name
            for name in self._running
            if name == consumer or (at and name.startswith(f"{prefix}@") and name.endswith(f".{suffix}"))
        )

    def show(self, unit: str, *names: str) -> dict[str, str]:
        """Return a unit's properties: its settings as of the last reload, ``LoadState``, and those in ``properties``.

        ``ExecConditionEx``, ``ExecStartPreEx`` and ``NeedDaemonReload`` are derived as systemd derives them.
        """
        loaded = self._loaded.get(unit) or {}
        properties = {
            "ExecConditionEx": "\n".join(map(_exec_words, loaded.get("ExecCondition", ()))),
            "ExecStartPreEx": "\n".join(map(_exec_words, loaded.get("ExecStartPre", ()))),
            "NeedDaemonReload": "yes" if unit in self._loaded and loaded != self._read(unit) else "no",
            "LoadState": self._load_state(unit),
            "Restart": (loaded.get("Restart") or ["no"])[-1],
            "StartLimitBurst": (loaded.get("StartLimitBurst") or ["5"])[-1],
            "ActiveState": "active" if unit in self.active else "inactive",
        }
        required = {name: " ".join(lists.get("Requires", ())).split() for name, lists in self._loaded.items()}
        properties["RequiredBy"] = " ".join(name for name, units in required.items() if unit in units)
        properties |= {name: values[-1] for name, values in _spans(loaded).items()} | self.properties.get(unit, {})
        return {name: properties.get(name) or " ".join(loaded.get(name, ())) for name in names}

    def orderings(self, *units: str) -> dict[str, tuple[str, ...]]:
        """Return the start order of the running units and the given ones, as their own files and drop-ins define it."""
        after: dict[str, list[str]] = {}
        for unit, lists in ({unit: self._read(unit) for unit in units} | self._loaded).items():
            after.setdefault(unit, []).extend(" ".join(lists.get("After", ())).split())
            for name in " ".join(lists.get("Before", ())).split():
                after.setdefault(name, []).append(unit)
        return {unit: tuple(names) for unit, names in after.items()}

    # --- unit files ----------------------------------------------------------------------------------------------

    def _load(self) -> None:
        self._loaded = {unit: self._read(unit) for unit in self._running}

    def _load_state(self, unit: str) -> str:
        prefix, at, _ = unit.partition("@")
        if f"{unit.removesuffix('.service')}.timer" in self.timers:
            return "loaded"
        if unit in self._loaded or (at and any(name.startswith(f"{prefix}@") for name in self._running)):
            return "loaded"
        found = [] if self._layout is None else unit_files(self._layout, unit)
        if not found:
            return "not-found"
        return "masked" if is_masked(found[0]) else "loaded"

    def _link(self, unit: str) -> Path | None:
        return None if self._layout is None else self._layout.units / "multi-user.target.wants" / unit

    def _read(self, unit: str) -> dict[str, list[str]]:
        """Return the settings of a unit's file and then of its drop-ins, in their order.

        An empty value clears a list.
        """
        if self._layout is None:
            return {}
        *names, _ = unit_names(unit)
        later = [path for path in drop_ins(self._layout, unit).values() if path.is_file()]
        lists: dict[str, list[str]] = {}
        for path in (*unit_files(self._layout, unit)[:1], *later):
            for key, value in settings(path.read_text()):
                lists[key] = [*lists.get(key, ()), value] if value else []
        lists["DropInPaths"] = [self._layout.relative(path) for path in later]
        for name in names:
            for key in ("requires", "wants"):
                links = sorted(path.name for path in (self._layout.units / f"{name}.{key}").glob("*"))
                lists.setdefault(key.capitalize(), []).extend(links)
        return lists


# systemd.service(5), systemd.unit(5)
_DEFAULT_SPANS = {"TimeoutStartUSec": ["1min 30s"], "RestartUSec": ["100ms"], "StartLimitIntervalUSec": ["10s"]}


def _spans(settings: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the time spans among the settings, named like the properties of systemctl."""
    given = {f"{key.removesuffix('Sec')}USec": value for key, value in settings.items() if key.endswith("Sec")}
    return _DEFAULT_SPANS | {key: value for key, value in given.items() if value}


def _exec_words(line: str) -> str:
    argv = line.lstrip("-+")
    flags = [word for mark, word in (("-", "ignore-failure"), ("+", "privileged")) if mark in line[: -len(argv)]]
    return f"{{ path={argv.split()[0]} ; argv[]={argv} ; flags={' '.join(flags)} ; start_time=[n/a] }}"
