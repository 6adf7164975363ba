"""A trial of routes that stands: its file in /run, and its end by the timer that systemd has for it.

The file says when it is over by the clock since boot, which can't be set, and in words for people. The name of the boot
would not do: a unit with ``ProtectKernelTunables=`` sees another one in a container than the rest of it.
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
    """Read the file of a trial: until when it stands, and its config; None if there is none.

    Raises:
        FileError: it was edited.
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
    """Return until when a trial stands, by its file; None if none does."""
    document = read_trial(path)
    return None if document is None else document["until"]


def uptime() -> float:
    """Return the seconds since boot, those of sleep included: /proc/uptime."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def times_of(seconds: int) -> dict[str, Any]:
    """Return when a trial of so many seconds is over, as its file says it."""
    return {"until": rfc_3339(time.time() + seconds), "uptime": math.ceil(uptime() + seconds)}


def is_overdue(layout: Layout) -> bool:
    """Return whether a trial stands though it is over: a soft reboot, and ``systemctl isolate``, take its timer away.

    Raises:
        FileError: its file was edited.
    """
    document = read_trial(layout.trial)
    if document is None or exists(layout.confirmed):
        return False
    return bool(uptime() > document["uptime"])


def start_timer(host: Host, seconds: int) -> None:
    """Have systemd end a trial after some seconds, whether or not its script is there by then."""
    # Of an earlier trial that has ended.
    host.units.stop(_TIMER)
    host.units.stop(_SERVICE)
    host.units.run_later(_UNIT, seconds, ["/bin/bash", "-p", str(host.layout.trial_script)])


def stop_timer(host: Host) -> None:
    """Take the timer away of a trial that has ended."""
    host.units.within(CancelScope()).stop(_TIMER)


def put_back(host: Host) -> None:
    """End a trial now, if one stands, by the very script that ends it in time.

    Raises:
        UnitError: the script fails; if it can, it tries again when the time is over.
    """
    host = host.within(CancelScope())
    if exists(host.layout.trial):
        if host.units.show(_SERVICE, "LoadState")["LoadState"] == "not-found":
            start_timer(host, _LATER_SECONDS)  # the unit is lost with its timer
        host.units.restart(_SERVICE)
    stop_timer(host)


_LATER_SECONDS = 60
