"""The current route trial: its state file in /run and the systemd timer that ends it.

The file stores the deadline twice: as a timestamp for users, and in seconds of CLOCK_BOOTTIME,
which changes of the system's clock don't affect. A boot ID couldn't replace the deadline in
seconds: in a container, a unit with ``ProtectKernelTunables=`` sees another boot ID than other
units.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from hostrouting.boot.files import is_present, matching, read_text, remove
from hostrouting.boot.host import Host
from hostrouting.boot.layout import Layout
from hostrouting.model.errors import FileError
from hostrouting.model.jsonable import rfc_3339
from phases import CancelScope

TRIAL_HINT = (
    "hostrouting confirm keeps the tried routes; hostrouting revert restores the installed ones"
)
"""The advice during a trial, because an ``apply`` would end it."""

_UNIT = "hostrouting-trial"
_TIMER = f"{_UNIT}.timer"
_SERVICE = f"{_UNIT}.service"
# If the timer is gone when a trial is to be ended, a new timer is started. In case the script fails
# now, this timer runs the script again after this time.
_RETRY_SECONDS = 60


def read_trial(path: Path) -> dict[str, Any] | None:
    """Return the document in a trial's file: deadline and config. Without a trial, return None.

    Raises:
        FileError: the file can't be parsed.
    """
    text = read_text(path)
    if text is None and not is_present(path):
        return None
    try:
        document = json.loads(text or "")
        times = {"until": str(document["until"]), "uptime": int(document["uptime"])}
        return {**document, **times}
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise FileError(
            f"can't read the trial {path}: {error!r}",
            hint="hostrouting apply CONFIG ends the trial",
        ) from error


def trial_deadline(path: Path) -> str | None:
    """Return the current trial's deadline as a timestamp; None if there is no trial."""
    document = read_trial(path)
    return None if document is None else document["until"]


def uptime() -> float:
    """Return the seconds since boot, including time spent suspended, like /proc/uptime."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def times_of(seconds: int) -> dict[str, Any]:
    """Return the deadline of a trial that starts now, in the format of its file."""
    return {
        "until": rfc_3339(time.time() + seconds),
        "uptime": math.ceil(uptime() + seconds),
    }


def is_overdue(layout: Layout) -> bool:
    """Return whether the current trial's deadline has passed.

    A soft reboot or ``systemctl isolate`` removes the trial's timer, so the trial may outlive the
    deadline.

    Raises:
        FileError: the trial's file can't be parsed.
    """
    document = read_trial(layout.trial)
    if document is None or is_present(layout.confirmed):
        return False
    return bool(uptime() > document["uptime"])


def start_timer(host: Host, seconds: int) -> None:
    """Schedule the script that ends a trial; the script needn't exist yet."""
    # An earlier trial's timer may still be active.
    host.units.stop(_TIMER)
    host.units.stop(_SERVICE)
    script = str(host.layout.trial_script)
    host.units.run_later(_UNIT, seconds, ["/bin/bash", "-p", script])


def remove_trial_leftovers(host: Host) -> None:
    """Remove what an ended trial has left: a confirmation's file, the timer and the script.

    If a trial is still in progress, its timer and script stay. The caller holds the run lock, so
    that no other trial begins.
    """
    # With this file, the trial's timer would start a confirmation, which would replace what the
    # caller has installed.
    remove(host.layout.confirmed)
    is_in_progress = is_present(host.layout.trial)
    if is_in_progress or not is_present(host.layout.trial_script):
        return
    _stop_timer(host)
    for path in matching(host.layout.run_dir, f"{host.layout.trial_script.name}*"):
        remove(path)


def _stop_timer(host: Host) -> None:
    host.units.within(CancelScope()).stop(_TIMER)


def end_trial(host: Host) -> None:
    """End the current trial, if any, by running its script immediately.

    Raises:
        UnitError: the script failed. If the trial's timer is there, it runs the script again.
    """
    host = host.within(CancelScope())
    try:
        if is_present(host.layout.trial):
            if host.units.show(_SERVICE, "LoadState")["LoadState"] == "not-found":
                # The service can't be restarted, because systemd has removed it together with the
                # timer. So make both again.
                start_timer(host, _RETRY_SECONDS)
            host.units.restart(_SERVICE)
    finally:
        if not is_present(host.layout.trial):
            _stop_timer(host)
