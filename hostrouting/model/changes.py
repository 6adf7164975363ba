"""Changes that a run has made or would make to routes, files and units."""

from __future__ import annotations

from typing import Any, NamedTuple

import attrs


class Change(NamedTuple):
    """A single change that a run has made or would make.

    Args:
        what: the route in ip(8) format, a file's path in the running system, or the unit name.
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
    """All changes that a run has made or would make. An empty instance is falsy.

    Files rewritten by every run (its lock and the check's results) aren't included.

    Args:
        routes: changes to the kernel's routing table.
        files: changes to scripts, units, drop-ins, symlinks, and the manifest.
        units: changes to systemd units, excluding the effects of a plain daemon-reload.
    """

    routes: tuple[Change, ...] = ()
    files: tuple[Change, ...] = ()
    units: tuple[Change, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.routes or self.files or self.units)

    def __or__(self, later: Changes) -> Changes:
        """Combine both sets of changes, in order."""
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
        """Return the changes to files and units."""
        return Changes(files=self.files, units=self.units)

    def of_part(self, name: str) -> Changes:
        """Return the changes to a part's script and unit, and to other files named after the part."""
        of_it = tuple(change for change in self.files if f"/{name}." in str(change.what))
        return Changes(
            files=of_it,
            units=tuple(change for change in self.units if change.what == f"{name}.service"),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the changes as JSON, including whether anything changed."""
        return {
            "changed": bool(self),
            "routes": _listed("route", self.routes),
            "files": _listed("path", self.files),
            "units": _listed("unit", self.units),
        }


def _listed(key: str, changes: tuple[Change, ...]) -> list[dict[str, str]]:
    return [
        {key: str(each.what), "change": each.action}
        | ({} if each.was is None else {"was": str(each.was)})
        for each in changes
    ]
