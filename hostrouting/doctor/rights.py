"""Can only root change what the gate runs, and can the gate run it?"""

from __future__ import annotations

import fcntl
import os
import stat
from typing import TYPE_CHECKING

from hostrouting.boot.examination import Fault
from hostrouting.model.errors import FileError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hostrouting.boot.examination import ExaminedHost

__all__ = ["access", "modes"]

# As long as the gate waits for the lock.
_GATE_SECONDS = 5
_POLL_SECONDS = 0.05


def modes(examined: ExaminedHost) -> Iterator[Fault]:
    """Nobody but root can change what runs as root."""
    layout = examined.layout
    ours = [layout.manifest, *examined.manifest.files(layout), layout.run_dir / "lock"]
    folders = {folder for path in ours for folder in path.parents if folder.is_relative_to(layout.root)}
    root = layout.root.stat()
    for path in sorted({*ours, *folders} - {layout.root}):
        try:
            state = path.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(state.st_mode):
            continue
        name = examined.name(path)
        what = "everything in it, and so what the gate runs" if path in folders else "it"
        if state.st_uid != root.st_uid:
            message = f"it belongs to user {state.st_uid}, who can change {what}"
            yield Fault("file-owner", name, message, f"chown root:root {name}")
        if state.st_mode & stat.S_IWOTH or (state.st_mode & stat.S_IWGRP and state.st_gid != root.st_gid):
            message = f"its mode is {stat.S_IMODE(state.st_mode):04o}: others than root can change {what}"
            yield Fault("file-mode", name, message, f"chmod go-w {name}")


def access(examined: ExaminedHost) -> Iterator[Fault]:
    """The scripts can be run, and their lock can be taken."""
    layout = examined.layout
    for folder in sorted({path.parent for path in examined.manifest.files(layout) if path.suffix == ".sh"}):
        if _has_flag(folder, os.ST_NOEXEC):
            name = examined.name(folder)
            message = "its file system is mounted noexec: no script can be run, and no start is let through"
            yield Fault("noexec", name, message, f"mount -o remount,exec $(findmnt -no TARGET -T {name})")
    run_dir = examined.name(layout.run_dir)
    if _has_flag(layout.run_dir, os.ST_RDONLY):
        message = "it is read-only: the scripts can't take their lock, and the routes count as not installed"
        yield Fault("read-only", run_dir, message, f"mount -o remount,rw $(findmnt -no TARGET -T {run_dir})")
    elif not _is_free(examined):
        lock = examined.name(layout.lock)
        message = f"somebody has held it for {_GATE_SECONDS} s: starts are held back as long as that goes on"
        yield Fault("locked", lock, message, f"see who: fuser -v {lock}")


def _has_flag(folder: Path, flag: int) -> bool:
    """Whether the file system of a folder, or of where it would be, is mounted so."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return bool(os.statvfs(there).f_flag & flag)


def _is_free(examined: ExaminedHost) -> bool:
    """Whether the gate could take the lock now; nothing is held for longer than a look."""
    scope, path = examined.scope, examined.layout.lock
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError as error:
        raise FileError.of(f"open the lock {path}", error) from error
    try:
        until = scope.clock.monotonic() + _GATE_SECONDS
        while scope.clock.monotonic() < until:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                scope.wait(_POLL_SECONDS)
            else:
                return True
    finally:
        os.close(descriptor)
    return False
