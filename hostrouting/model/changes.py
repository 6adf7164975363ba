"""Changes that a run has made or would make to routes, files and units."""

from __future__ import annotations

from typing import Any, NamedTuple

import attrs

from hostrouting.model.routes import Route


@attrs.frozen
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
        before: the content of a file that would be replaced.
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


@attrs.frozen
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
        """Return both instances' changes, with one change for each file."""
        files = {change.what: change for change in self.files}
        for change in later.files:
            earlier = files.get(change.what)
            if earlier is None:
                files[change.what] = change
            elif earlier.action == "removed":
                files[change.what] = Change(change.what, "replaced")
            elif change.action != "replaced":  # an added file that is then replaced stays added
                files[change.what] = change
        units = tuple(dict.fromkeys((*self.units, *later.units)))
        return Changes(
            (*self.routes, *later.routes),
            tuple(files.values()),
            units,
            rules=(*self.rules, *later.rules),
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


def _stem(what: object) -> str:
    """Return the name of a file or unit up to its first dot."""
    return str(what).rpartition("/")[2].partition(".")[0]


def _listed(key: str, changes: tuple[Change, ...]) -> list[dict[str, str]]:
    items = []
    for change in changes:
        item = {key: str(change.what), "change": change.action}
        if change.was is not None:
            item["was"] = str(change.was)
        items.append(item)
    return items
