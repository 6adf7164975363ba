"""Looks at files, links and folders; a refusal of the system becomes a ``FileError``."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from hostrouting.model.errors import FileError


@contextlib.contextmanager
def translate_errors(attempt: str) -> Iterator[None]:
    """Have a refusal of the operating system raised as an error of ours that names what was attempted."""
    try:
        yield
    except OSError as error:
        raise FileError.of(attempt, error) from error


def exists(path: Path) -> bool:
    """Return whether something is there, and a link leads to something.

    Raises:
        FileError: that can't be seen, for example for a name that is too long.
    """
    return _is_seen(path, path.stat)


def is_present(path: Path) -> bool:
    """Return whether something is there, also a link that leads nowhere.

    Raises:
        FileError: as of ``exists``.
    """
    return _is_seen(path, path.lstat)


def _is_seen(path: Path, look: Callable[[], object]) -> bool:
    with translate_errors(f"look at {path}"):
        try:
            look()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            return False
    return True


def matching(folder: Path, pattern: str) -> list[Path]:
    """Return what a folder holds, by a shell pattern of its names; nothing if there is no such folder.

    Path.glob of Python 3.13 takes a folder that can't be read for an empty one.

    Raises:
        FileError: it can't be read.
    """
    with translate_errors(f"look through {folder}"), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return [path for path in sorted(folder.iterdir()) if fnmatchcase(path.name, pattern)]
    return []
