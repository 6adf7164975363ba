"""Changes that a run has made or would make to routes, files and units."""

from __future__ import annotations

from typing import Any, NamedTuple

import attrs

from hostrouting.model.routes import Route
from hostrouting.model.values import frozen


@frozen
class Replacement:
    """One of our routes and its replacement, which has the same destination and metric."""

    old: Route
    new: Route


class Change(NamedTuple):
    """A single change that a run has made or would make.

    Args:
        what: the route or rule in ip(8) format, a file's path in the running system, or the unit
            name.
        action: ``added``, ``replaced`` or ``removed``; for a unit ``enabled``, ``disabled``,
            ``started``, ``restarted``, ``stopped`` or ``reloaded``.
        was: the route that was replaced, if any.
        before: the content of a file that would be replaced or removed.
        after: the content of a file that would be added or replaced.
    """

    what: object
    action: str
    was: object = None
    before: str | None = None
    after: str | None = None

    def __repr__(self) -> str:
        # Leave out the contents: an error may carry the changes of all files of an installation.
        was = "" if self.was is None else f", was={self.was!r}"
        return f"Change({self.what!r}, {self.action!r}{was})"


@frozen
class Changes:
    """All changes that a run has made or would make. An empty instance is falsy.

    The lock file and the check's results, which every run rewrites, aren't included.

    Args:
        routes: changes to the kernel's routing tables.
        rules: changes to the kernel's policy rules.
        files: changes to scripts, units, drop-ins, symlinks, and the manifest.
        units: changes to systemd units. A daemon-reload alone doesn't count.
    """

    routes: tuple[Change, ...] = ()
    rules: tuple[Change, ...] = attrs.field(default=(), kw_only=True)
    files: tuple[Change, ...] = ()
    units: tuple[Change, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.routes or self.rules or self.files or self.units)

    def __or__(self, later: Changes) -> Changes:
        """Return the changes from the state before this instance to the state after the later one.

        A change that the later ones undo is left out, and a change in both instances counts once.
        """
        files = _net(self.files, later.files)
        # Of a unit whose file was added and removed again, nothing is left.
        temporary = {_name(change.what) for change in self.files if change.action == "added"}
        temporary -= {_name(change.what) for change in files}
        units = _net_of_units(self.units, later.units)
        return Changes(
            _net(self.routes, later.routes),
            files,
            tuple(change for change in units if change.what not in temporary),
            rules=_net(self.rules, later.rules),
        )

    @property
    def of_kernel(self) -> Changes:
        """Return the changes to routes and rules."""
        return Changes(self.routes, rules=self.rules)

    @property
    def of_boot(self) -> Changes:
        """Return the changes to files and units."""
        return Changes(files=self.files, units=self.units)

    def of_part(self, name: str) -> Changes:
        """Return the changes to files and units whose names, up to the first dot, are ``name``."""
        return Changes(
            files=tuple(change for change in self.files if _stem(change.what) == name),
            units=tuple(change for change in self.units if _stem(change.what) == name),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the changes as JSON. The value of ``changed`` is true if there are changes."""
        return {
            "changed": bool(self),
            "routes": _listed("route", self.routes),
            "rules": _listed("rule", self.rules),
            "files": _listed("path", self.files),
            "units": _listed("unit", self.units),
        }


def _net(earlier: tuple[Change, ...], later: tuple[Change, ...]) -> tuple[Change, ...]:
    if not (earlier and later):
        return earlier or later
    net: dict[object, Change] = {}
    for change in (*earlier, *later):
        key = change.what.key if isinstance(change.what, Route) else change.what
        both = _combined(net[key], change) if key in net else change
        if both is None:
            del net[key]
        else:
            net[key] = both
    return tuple(net.values())


def _combined(earlier: Change, later: Change) -> Change | None:
    """Return both changes as one, or None if ``later`` has undone ``earlier``."""
    is_new = earlier.action == "added"
    if later.action == "removed":
        former = earlier.what if earlier.was is None else earlier.was
        return None if is_new else Change(former, "removed", before=earlier.before)
    if is_new:
        return Change(later.what, "added", after=later.after)
    if earlier == later:
        return earlier
    was = earlier.what if earlier.was is None else earlier.was
    if _is_same(was, later.what):
        if earlier.before == later.after:
            return None
        was = None  # a file with another content
    return Change(later.what, "replaced", was, earlier.before, later.after)


def _is_same(before: object, after: object) -> bool:
    if isinstance(before, Route) and isinstance(after, Route):
        return before.has_same_effect(after)
    return before == after


_UNDONE_BY = {"enabled": "disabled", "disabled": "enabled", "started": "stopped"}
_OF_PROCESSES = ("started", "restarted", "stopped")


def _net_of_units(earlier: tuple[Change, ...], later: tuple[Change, ...]) -> tuple[Change, ...]:
    net: dict[object, Change] = {}
    for change in (*earlier, *later):
        is_of_process = change.action in _OF_PROCESSES
        is_of_boot = change.action in ("enabled", "disabled")
        key = (change.what, is_of_process, is_of_boot)
        if key in net and _UNDONE_BY.get(net[key].action) == change.action:
            del net[key]
        else:
            net[key] = change
    return tuple(net.values())


def _name(what: object) -> str:
    """Return the name of a file or unit."""
    return str(what).rpartition("/")[2]


def _stem(what: object) -> str:
    """Return the name of a file or unit up to its first dot."""
    return _name(what).partition(".")[0]


def _listed(key: str, changes: tuple[Change, ...]) -> list[dict[str, str]]:
    items = []
    for change in changes:
        item = {key: str(change.what), "change": change.action}
        if change.was is not None:
            item["was"] = str(change.was)
        items.append(item)
    return items
