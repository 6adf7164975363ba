"""ConfigureWatch: the service that keeps all of it true after boot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hostrouting.boot.alone import alone
from hostrouting.boot.files import remove
from hostrouting.boot.host import Host
from hostrouting.boot.installation import install_part, remove_parts
from hostrouting.boot.manifest import WATCH, Manifest
from hostrouting.boot.parts import is_watched, watch_part
from hostrouting.model.errors import FileError
from phases import CancelScope, all_or_nothing

if TYPE_CHECKING:
    from pathlib import Path

    from hostrouting.boot.layout import Layout
    from hostrouting.config.routing import Config

__all__ = ["ConfigureWatch", "remove_watch"]


@attrs.frozen
class ConfigureWatch:
    """Have the watcher run if a config asks for one, and not if it doesn't.

    The watcher keeps true what is installed, as the manifest names it; so it follows the other tasks by itself.

    Args:
        config: what is wanted.
        host: where; None: this host.
    """

    name = "configure-watch"

    config: Config
    host: Host | None = attrs.field(default=None, kw_only=True)

    def do(self, scope: CancelScope) -> bool:
        """Do it.

        Returns:
            Whether anything was installed, changed or removed.

        Raises:
            UnitError: systemd refuses, or can't run this Python; everything is as before.
            FileError: a file can't be written, or the lock can't be taken; everything is as before.
        """
        host = self.host or Host()
        with alone(host, scope, is_wanting=is_watched(self.config)):
            return self._install(host, scope) if is_watched(self.config) else remove_watch(host, scope)

    def _install(self, host: Host, scope: CancelScope) -> bool:
        unit, before = f"{WATCH}.service", _textfile(host.layout)
        with all_or_nothing(scope) as undo:
            is_new = install_part(host, self.config.consumer, watch_part(self.config, host.layout), undo)
        if before is not None and before != _textfile(host.layout):
            remove(before)
        if not host.is_image and (is_new or not host.units.is_active(unit)):
            host.units.restart(unit)
        return is_new


def remove_watch(host: Host, scope: CancelScope, *more: str) -> bool:
    """Take back what an earlier run installed, and more parts with it; whether it did."""
    textfile = _textfile(host.layout)
    removed = remove_parts(host, scope, WATCH, *more)
    if textfile is not None and removed:
        remove(textfile)
    return bool(removed)


def _textfile(layout: Layout) -> Path | None:
    """Where the installed watcher writes metrics."""
    manifest = Manifest.load(layout)
    try:
        name = manifest.config.watch.textfile
    except FileError:  # somebody has edited it: then nothing is known of the file, and the rest goes all the same
        return None
    return None if name is None else layout.of(name)
