"""The current trial of routes: its file in /run, and the systemd timer that ends it.

The file has the end of the trial twice: by the clock since boot, which can't be set, and as text for users. The boot ID
couldn't replace it: in a container, a unit with ``ProtectKernelTunables=`` sees another boot ID than the other units.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from hostrouting.boot.files import exists, read_text
from hostrouting.boot.host import Host
from hostrouting.boot.layout import Layout
from hostrouting.model.errors import FileError
from hostrouting.model.jsonable import rfc_3339
from phases import CancelScope

_UNIT = "hostrouting-trial"
_TIMER, _SERVICE = f"{_UNIT}.timer", f"{_UNIT}.service"


def read_trial(path: Path) -> dict[str, Any] | None:
    """Read a trial's file, which has the end of the trial and its config; return None if there is no trial.

    Raises:
        FileError: the file was edited.
    """
    text = read_text(path)
    if text is None:
        return None
    try:
        document = json.loads(text)
        return {**document, "until": str(document["until"]), "uptime": int(document["uptime"])}
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(f"can't read the trial {path}: {error!r}", hint="hostrouting apply ends the trial") from error


def standing(path: Path) -> str | None:
    """Return the time at which the current trial ends, or None if there is no trial."""
    document = read_trial(path)
    return None if document is None else document["until"]


def uptime() -> float:
    """Return the seconds since boot, including the time asleep, as in /proc/uptime."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def times_of(seconds: int) -> dict[str, Any]:
    """Return the end of a trial that lasts so many seconds, in the form of its file."""
    return {"until": rfc_3339(time.time() + seconds), "uptime": math.ceil(uptime() + seconds)}


def is_overdue(layout: Layout) -> bool:
    """Return whether the current trial is past its end.

    This happens after a soft reboot or ``systemctl isolate``, which remove its timer.

    Raises:
        FileError: the trial's file was edited.
    """
    document = read_trial(layout.trial)
    if document is None or exists(layout.confirmed):
        return False
    return bool(uptime() > document["uptime"])


def start_timer(host: Host, seconds: int) -> None:
    """Make systemd end a trial after some seconds, whether or not the trial's script exists by then."""
    # Stop the timer of an earlier trial.
    host.units.stop(_TIMER)
    host.units.stop(_SERVICE)
    host.units.run_later(_UNIT, seconds, ["/bin/bash", "-p", str(host.layout.trial_script)])


def stop_timer(host: Host) -> None:
    """Remove the timer of a trial that has ended."""
    host.units.within(CancelScope()).stop(_TIMER)


def put_back(host: Host) -> None:
    """End a trial now, if there is one, with the script that would otherwise end it later.

    Raises:
        UnitError: the script fails. If it can, it tries again when the trial's time is over.
    """
    host = host.within(CancelScope())
    if exists(host.layout.trial):
        if host.units.show(_SERVICE, "LoadState")["LoadState"] == "not-found":
            start_timer(host, _LATER_SECONDS)  # systemd removes the unit together with its timer
        host.units.restart(_SERVICE)
    stop_timer(host)


_LATER_SECONDS = 60
