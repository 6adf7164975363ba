"""Find a Python interpreter that units and scripts can safely run as root."""

from __future__ import annotations

import os
import re
import stat
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath
from site import getsitepackages

import attrs

import phases
from hostrouting.boot.layout import Layout
from hostrouting.model.errors import FileError
from hostrouting.model.opening import translate_errors
from phases import CancelScope, TimedOut

# Long enough for a cold start on a busy machine.
_SECONDS = 30.0

# Where a Python looks for packages, below its prefix.
_SITES = ("lib*/python3*/*-packages", "local/lib*/python3*/*-packages")
# The subfolders from which the boot check and the watcher load code.
_PACKAGES = ("hostrouting", "phases", "attr", "attrs", "exceptiongroup", "__pycache__")


def python_of(layout: Layout) -> str:
    """Return the path of this Python if units and scripts can run it, or an empty string.

    Raises:
        FileError: running the interpreter times out, or this user can't look at Python's files.
    """
    return "" if why_unsuitable(layout) else sys.executable


def why_unsuitable(layout: Layout) -> str:
    """Return why units and scripts can't run this Python as root; empty if they can.

    Another user may own PYTHONPATH's folders, the working directory or the user's site-packages.
    Units and scripts therefore run Python with ``-I``, which ignores all of these. At boot, this
    Python judges hosts that the scripts can't judge, so it needs the same protection as the
    scripts. A Python is unsuitable in two cases: it doesn't find hostrouting with ``-I``, or
    another user can change a file that it imports.

    Raises:
        FileError: running the interpreter times out, or this user can't look at Python's files.
    """
    # An image's Python can't be run on the build host. Assume that the image's Python has the same
    # path as this one.
    if not layout.is_this_host:
        with translate_errors(f"tell whether other users can change the image's {sys.executable}"):
            return _told(_changeable_in_image(layout, sys.executable))
    if not _finds_hostrouting(sys.executable):
        return f"{sys.executable or 'Python'} -I finds no hostrouting"
    return why_unsafe()


def why_unsafe() -> str:
    """Return why this Python isn't safe to run as root on this host, or an empty string.

    Raises:
        FileError: this user can't look at Python's files.
    """
    with translate_errors(f"tell whether other users can change {sys.executable}"):
        return _told(_changeable_path(Layout(), sys.executable))


def files_of(layout: Layout, python: str, *sites: str) -> set[str]:
    """Return the files that decide what a Python runs as root, and the folders on their paths.

    The files are the interpreter, its settings, the folders in which it looks for packages, and the
    packages that the boot check and the watcher load, with all of their files and the bytecode. A
    returned path may be missing on the host. The paths are strings, because a Path for each of
    hundreds of files takes longer than stat(2).

    Args:
        sites: more folders in which this Python looks for packages.

    Raises:
        FileError: this user can't look at a folder.
    """
    prefix = PurePosixPath(python).parent.parent
    names = (python, str(prefix / "pyvenv.cfg"), str(prefix / "bin/pyvenv.cfg"))
    found = {str(step) for name in names for step in layout.passed(name)}
    all_sites = {*sites}
    for pattern in _SITES:
        all_sites.update(map(layout.relative, layout.of(str(prefix)).glob(pattern)))
    for site in all_sites:
        found |= _files_of_site(layout, site)
    return found


def _files_of_site(layout: Layout, name: str) -> set[str]:
    """Return the files in a folder for packages, and those that its .pth files add or import."""
    found = _packages_in(layout, name)
    site = layout.followed(name)
    for file in site.glob("*.pth"):
        for line in file.read_text("utf-8", "surrogateescape").splitlines():
            if line.startswith(("import ", "import\t")):
                # Such a line is code. For example, setuptools has a line that imports
                # _distutils_hack.
                for word in re.findall(r"\w+", line):
                    found |= all_in(layout, site / word) if (site / word).is_dir() else set()
            elif line.strip() and not line.startswith("#"):
                found |= _packages_in(layout, str(PurePosixPath(name, line.rstrip())))
    return found


def _packages_in(layout: Layout, name: str) -> set[str]:
    """Return the single files in a folder for packages, and everything in our packages."""
    passed = layout.passed(name)
    found = {*map(str, passed)}
    if passed[-1].is_dir():
        plain, others = _split(passed[-1])
        found.update(plain)
        for path in others:
            if path.name in _PACKAGES or not path.is_dir():
                found |= all_in(layout, path)
    return found


def all_in(layout: Layout, top: Path) -> set[str]:
    """Return a path, everything below it, and all that the symlinks there pass through."""
    found: set[str] = set()
    walked: set[Path] = set()  # symlinks may lead in a circle
    left = [top]
    while left:
        path = left.pop()
        if path.is_symlink():
            passed = layout.passed(layout.relative(path))
            found.update(map(str, passed))
            path = passed[-1]
        found.add(str(path))
        if path.is_dir() and path not in walked:
            walked.add(path)
            plain, others = _split(path)
            found.update(plain)
            left += others
    return found


def _split(folder: Path) -> tuple[list[str], list[Path]]:
    """Return a folder's plain files, which lead nowhere, and its other entries."""
    plain: list[str] = []
    others: list[Path] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                plain.append(entry.path)
            else:
                others.append(Path(entry))
    return plain, others


def _told(changeable: Path | None) -> str:
    return f"a user other than root can change {changeable}" if changeable else ""


def _changeable_in_image(layout: Layout, python: str) -> Path | None:
    """Return a path in an image at which another user can change what this Python runs, or None.

    The result is also None if the image lacks this Python.
    """
    if not layout.followed(python).is_file():
        return None
    root = layout.root.stat()
    for path in sorted({*map(Path, files_of(layout, python))} - {layout.root}):
        if path.exists():
            state = path.stat()
            if state.st_uid != root.st_uid or is_changeable(state, root.st_gid):
                return path
    return None


def is_changeable(state: os.stat_result, group: int = 0) -> bool:
    """Return whether more users can change a file than its owner and the members of a group.

    A folder with the sticky bit may be writable, because other users can't replace its owner's
    files.

    Args:
        group: the ID of the group whose members may change the file.
    """
    is_shared = stat.S_ISDIR(state.st_mode) and state.st_mode & stat.S_ISVTX
    if state.st_mode & stat.S_IWOTH and not is_shared:
        return True
    return bool(state.st_mode & stat.S_IWGRP) and state.st_gid != group


@cache
def _changeable_path(layout: Layout, python: str) -> Path | None:
    """Return a path at which another user can change what this Python runs, or None."""
    packages = Path(__file__).parents[1], Path(phases.__file__).parent, Path(attrs.__file__).parent
    files = files_of(
        layout,
        python,
        *getsitepackages(),
        *(str(package.parent) for package in packages),
    )
    files.update(map(str, layout.passed(os.__file__)))
    trusted = {0, os.geteuid()}
    changeable: list[Path] = []
    for path in files:
        try:
            state = os.stat(path)  # noqa: PTH116 - a Path takes longer than stat(2)
        except FileNotFoundError:
            continue
        if state.st_uid not in trusted or is_changeable(state):
            changeable.append(Path(path))
    return min(changeable, default=None)


@cache
def _finds_hostrouting(python: str) -> bool:
    if not python:  # an embedded Python doesn't know its path
        return False
    if str(Path(__file__).parents[2]) in getsitepackages():  # -I searches these, too
        return True
    argv = [python, "-I", "-c", "import hostrouting"]
    with translate_errors(f"run {python}"), suppress(FileNotFoundError):
        try:
            return CancelScope(timeout=_SECONDS).run(argv, check=False).returncode == 0
        except TimedOut:
            reason = (
                f"can't tell whether {python} -I finds hostrouting: timed out after {_SECONDS:g} s"
            )
            raise FileError(reason) from None
    return False
