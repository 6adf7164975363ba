"""Does the watcher run, and can it write its metrics?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.boot.examination import Fault, Severity
from hostrouting.boot.manifest import WATCH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.boot.examination import ExaminedHost

__all__ = ["watcher"]

_UNIT = f"{WATCH}.service"

# One restart is an accident.
_RESTARTS_MAX = 2


def watcher(examined: ExaminedHost) -> Iterator[Fault]:
    """What keeps everything true after boot runs, and is heard."""
    if WATCH not in examined.manifest.parts:
        return
    shown = examined.units.show(_UNIT, "ActiveState", "SubState", "NRestarts")
    so, journal = "routes that get lost aren't put back, and the markers grow old", f"journalctl -u {WATCH}"
    if shown["SubState"] == "auto-restart" or int(shown["NRestarts"] or 0) > _RESTARTS_MAX:
        message = f"it fails again and again, {shown['NRestarts']} times so far: {so}"
        yield Fault("watcher-fails", _UNIT, message, journal, Severity.RISK)
    elif shown["ActiveState"] != "active":
        yield Fault("watcher-down", _UNIT, f"it is installed and doesn't run: {so}", journal, Severity.RISK)
    textfile = examined.manifest.config.watch.textfile
    if textfile is None:
        return
    folder, restart = textfile.rpartition("/")[0] or "/", f"systemctl restart {_UNIT}"
    if not examined.layout.of(folder).is_dir():
        message = f"it isn't there, so the watcher can't write {textfile}"
        yield Fault("textfile", folder, message, f"mkdir -p {folder}; {restart}", Severity.RISK)
    elif shown["ActiveState"] == "active" and not examined.layout.of(textfile).exists():
        # Which folders a service may write to is settled as it starts.
        message = f"the watcher doesn't write it; was {folder} made after the watcher had started?"
        yield Fault("textfile", textfile, message, f"{restart}; {journal}", Severity.RISK)
