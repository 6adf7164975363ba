"""The changes that a run has made or would make to routes, files and units."""

from __future__ import annotations

from typing import Any, NamedTuple

import attrs


class Change(NamedTuple):
    """A single change that a run has made or would make.

    Args:
        what: the route as ip(8) prints it, the path of a file in the running system, or the unit.
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


@attrs.frozen
class Changes:
    """The changes that a run has made or would make; a value without changes is false.

    Files that every run writes again aren't included: its lock, and the results of the check.

    Args:
        routes: the changes in the kernel's table.
        files: changes of scripts, units, drop-ins, links, and the manifest.
        units: changes of systemd's units, without the effects of a mere reload.
    """

    routes: tuple[Change, ...] = ()
    files: tuple[Change, ...] = ()
    units: tuple[Change, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.routes or self.files or self.units)

    def __or__(self, later: Changes) -> Changes:
        """Return the changes of both values, one after the other."""
        files = {change.what: change for change in self.files}
        for change in later.files:
            before = files.get(change.what)
            if before is not None and before.action == "removed":
                change = Change(change.what, "replaced")
            elif before is not None and change.action == "replaced":
                change = before
            files[change.what] = change
        units = tuple(dict.fromkeys((*self.units, *later.units)))
        return Changes((*self.routes, *later.routes), tuple(files.values()), units)

    @property
    def of_boot(self) -> Changes:
        """Return the changes of files and units."""
        return Changes(files=self.files, units=self.units)

    def of_part(self, name: str) -> Changes:
        """Return the changes of a part's own script and unit, and of other files named after the part."""
        own = tuple(change for change in self.files if f"/{name}." in str(change.what))
        return Changes(files=own, units=tuple(change for change in self.units if change.what == f"{name}.service"))

    def to_json(self) -> dict[str, Any]:
        """Return the lists of changes as JSON, with whether anything changed."""
        return {
            "changed": bool(self),
            "routes": _listed("route", self.routes),
            "files": _listed("path", self.files),
            "units": _listed("unit", self.units),
        }


def _listed(key: str, changes: tuple[Change, ...]) -> list[dict[str, str]]:
    return [
        {key: str(each.what), "change": each.action} | ({} if each.was is None else {"was": str(each.was)})
        for each in changes
    ]
