"""A trial of routes: what stands in /run meanwhile, and the script by which systemd puts the routes back in time.

Nothing of it is anywhere else: after a reboot neither the trial's routes are there nor anything that would undo them.
"""

from __future__ import annotations

import json
import sys
from shlex import quote
from typing import TYPE_CHECKING

from hostrouting.boot import files
from hostrouting.boot.render import fill
from hostrouting.config.routing import Config
from hostrouting.model.errors import RouteError, UnitError
from hostrouting.model.routes import Protocol, Route, Scope
from hostrouting.model.text import to_json_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hostrouting.boot.host import Host
    from hostrouting.boot.layout import Layout
    from phases import CancelScope


UNIT = "hostrouting-trial"
_TIMER, _SERVICE = f"{UNIT}.timer", f"{UNIT}.service"


def render_trial(routes: Sequence[Route], until: str) -> str:
    """Render the script that puts routes back.

    Args:
        routes: ours before the trial.
        until: when the trial ends; the script does nothing to another one.
    """
    # Those first that others need for their gateway.
    ordered = sorted(routes, key=lambda route: route.scope != Scope.LINK)
    ours, number = f"proto {Protocol.HOSTROUTING.name.lower()}", f"proto {int(Protocol.HOSTROUTING)}"
    lines = [str(route).replace(ours, number).replace("scope link", f"scope {int(Scope.LINK)}") for route in ordered]
    return fill("trial.sh", UNTIL=until, PYTHON=quote(sys.executable), ROUTES="\n".join(lines))


def standing(path: Path) -> str | None:
    """Until when a trial stands, by its file; None if none does."""
    text = files.read_text(path)
    return None if text is None else str(json.loads(text)["until"])


def start_timer(host: Host, seconds: int) -> None:
    """Have systemd run the script in time, whether or not it is there by then.

    Raises:
        UnitError: there is no running systemd, or it refuses.
    """
    try:
        # Of an earlier trial that has ended.
        host.units.stop(_TIMER)
        host.units.stop(_SERVICE)
        host.units.run_later(UNIT, seconds, ["/bin/bash", "-p", str(host.layout.trial_script)])
    except UnitError as error:
        why = "a trial needs a running systemd, which puts the routes back whatever becomes of this run"
        raise UnitError(f"{why}: {error}", errno=error.errno) from error


def begin(layout: Layout, config: Config, routes: Sequence[Route], until: str) -> None:
    """Have a trial stand from here on; with the lock, and a timer that goes already.

    Args:
        layout: where.
        config: what is tried.
        routes: ours before it.
        until: when it ends, RFC 3339; it is also its name.

    Raises:
        FileError: a file can't be written.
    """
    files.write_if_changed(layout.trial_script, render_trial(routes, until), mode=0o755)
    files.write_if_changed(layout.trial, to_json_text({"until": until} | config.to_mapping()))


def put_back(host: Host) -> None:
    """End a trial now, if one stands, by the very script that ends it in time.

    Raises:
        UnitError: the script fails; if it can, it tries again when the time is over.
    """
    if host.layout.trial.exists():
        host.units.restart(_SERVICE)
    host.units.stop(_TIMER)


def claim(host: Host, scope: CancelScope) -> Config:
    """Take a trial from its timer, to confirm it; also one whose confirm was killed.

    Returns:
        What was tried.

    Raises:
        RouteError: there is none.
        FileError: the lock can't be taken, or a file can't be moved.
    """
    layout = host.layout
    with files.locked(layout.lock, scope):
        files.move(layout.trial, layout.confirmed)
    text = files.read_text(layout.confirmed)
    if text is None:
        raise RouteError(
            "there is nothing to confirm: no trial of routes stands; hostrouting apply --try 60 begins one"
        )
    return Config.from_mapping(json.loads(text))


def give_back(host: Host) -> None:
    """Undo ``claim``, and end the trial."""
    files.move(host.layout.confirmed, host.layout.trial)
    put_back(host)


def forget(host: Host) -> None:
    """Have a claimed trial be over."""
    files.remove(host.layout.confirmed)
    host.units.stop(_TIMER)
