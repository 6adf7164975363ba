"""Hold what a run has changed, or would change: routes, files and units, each with what became of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import attrs


class Change(NamedTuple):
    """One thing that a run has changed, or would change.

    Args:
        what: a route, which is told as ip(8) prints it, the path of a file as the running system sees it, or a unit.
        action: what became of it: ``added``, ``replaced`` or ``removed``; of a unit ``enabled``, ``disabled``,
            ``started``, ``restarted``, ``stopped`` or ``reloaded``.
        was: the route that was replaced.
        before: of a file that would be replaced, its content.
        after: of a file that would be added or replaced, the content.
    """

    what: object
    action: str
    was: object = None
    before: str | None = None
    after: str | None = None


@attrs.frozen
class Changes:
    """Changes that a run has made, or would make; false if there are none.

    What a run leaves anew each time isn't among it: its lock, and what a check has found.

    Args:
        routes: of the kernel's table.
        files: scripts, units, drop-ins, links, the manifest.
        units: those of systemd; what a reload alone brings isn't listed.
    """

    routes: tuple[Change, ...] = ()
    files: tuple[Change, ...] = ()
    units: tuple[Change, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.routes or self.files or self.units)

    def __or__(self, later: Changes) -> Changes:
        """Return the changes of both, one after the other."""
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
        """Return the changes without routes."""
        return Changes(files=self.files, units=self.units)

    def of_part(self, name: str) -> Changes:
        """Return those of a part's own script, unit and other files named after it."""
        own = tuple(change for change in self.files if f"/{name}." in str(change.what))
        return Changes(files=own, units=tuple(change for change in self.units if change.what == f"{name}.service"))

    def to_json(self) -> dict[str, Any]:
        """Return whether anything is changed, and lists of what is."""
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
