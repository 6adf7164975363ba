"""A trial of routes that stands: its file in /run, and its end by the timer that systemd has for it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from hostrouting.boot.files import exists, read_text
from hostrouting.boot.host import Host
from hostrouting.boot.layout import Layout
from hostrouting.model.errors import FileError
from hostrouting.model.jsonable import rfc_3339

_UNIT = "hostrouting-trial"
_TIMER, _SERVICE = f"{_UNIT}.timer", f"{_UNIT}.service"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def read_trial(path: Path) -> dict[str, Any] | None:
    """Read the file of a trial: until when it stands, in which boot, and its config; None if there is none.

    Raises:
        FileError: somebody has edited it.
    """
    text = read_text(path)
    if text is None:
        return None
    try:
        document = json.loads(text)
        return {**document, "until": str(document["until"])}
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(f"can't read the trial {path}: {error!r}", hint="hostrouting apply ends the trial") from error


def standing(path: Path) -> str | None:
    """Return until when a trial stands, by its file; None if none does."""
    document = read_trial(path)
    return None if document is None else document["until"]


def boot_id() -> str:
    """Return what names this boot of the kernel, random(4)."""
    return _BOOT_ID.read_text().strip()


def is_overdue(layout: Layout) -> bool:
    """Return whether a trial stands though it is over: a soft reboot, and ``systemctl isolate``, take its timer away.

    Raises:
        FileError: somebody has edited its file.
    """
    document = read_trial(layout.trial)
    if document is None or exists(layout.confirmed):
        return False
    return rfc_3339(time.time()) > document["until"] or document.get("boot") != boot_id()


def start_timer(host: Host, seconds: int) -> None:
    """Have systemd end a trial after some seconds, whether or not its script is there by then."""
    # Of an earlier trial that has ended.
    host.units.stop(_TIMER)
    host.units.stop(_SERVICE)
    host.units.run_later(_UNIT, seconds, ["/bin/bash", "-p", str(host.layout.trial_script)])


def stop_timer(host: Host) -> None:
    """Take the timer away of a trial that has ended."""
    host.units.stop(_TIMER)


def put_back(host: Host) -> None:
    """End a trial now, if one stands, by the very script that ends it in time.

    Raises:
        UnitError: the script fails; if it can, it tries again when the time is over.
    """
    if exists(host.layout.trial):
        if host.units.show(_SERVICE, "LoadState")["LoadState"] == "not-found":
            start_timer(host, _LATER_SECONDS)  # the unit is lost with its timer
        host.units.restart(_SERVICE)
    stop_timer(host)


_LATER_SECONDS = 60
