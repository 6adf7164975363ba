"""The watcher's part: installed, started and taken back with what it watches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.boot.files import remove
from hostrouting.boot.installation import exclusive, install_part, is_installed, remove_part
from hostrouting.boot.parts import WATCH, is_watched, watch_part
from hostrouting.config.routing import Config
from hostrouting.model.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from hostrouting.boot.host import Host
    from hostrouting.boot.layout import Layout
    from phases import CancelScope, Undo

__all__ = ["install_watch", "remove_watch", "start_watch"]


def install_watch(config: Config, host: Host, undo: Undo) -> bool:
    """Have the watcher keep this config true, if it asks for one; whether anything changed.

    Under the lock in which what the config asks for is changed: the watcher reads it there, and takes no side.
    """
    if not is_watched(config):
        return False
    before = _textfile(host.layout)
    is_new = install_part(host, config.consumer, watch_part(config, host.layout), undo)
    if before is not None and before != _textfile(host.layout):
        remove(before)
    return is_new


def start_watch(config: Config, host: Host, *, is_new: bool) -> None:
    """Start what was installed; not under the lock, which the watcher takes as it starts."""
    unit = f"{WATCH}.service"
    if is_watched(config) and not host.is_image and (is_new or not host.units.is_active(unit)):
        host.units.restart(unit)


def remove_watch(host: Host, scope: CancelScope) -> None:
    if not is_installed(host, WATCH):
        return
    with exclusive(host, scope):
        textfile = _textfile(host.layout)
        remove_part(host, WATCH)
        if textfile is not None:
            remove(textfile)


def _textfile(layout: Layout) -> Path | None:
    """Where the installed watcher writes metrics."""
    try:
        name = Config.load(layout.watch_config).watch.textfile
    except ConfigError:  # gone, or somebody has edited it: then nothing is known of it
        return None
    return None if name is None else layout.root / name.lstrip("/")
