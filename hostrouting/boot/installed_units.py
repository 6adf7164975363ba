"""Find the unit files and drop-ins that systemd would load."""

from __future__ import annotations

import os
from pathlib import Path

from hostrouting.boot.files import exists, is_present, matching, read_text
from hostrouting.boot.layout import Layout

# See systemd.unit(5). The first file of a given name takes precedence. Generators aren't run, but
# their output is included.
UNIT_PATH = (
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/run/systemd/generator.early",
    "/etc/systemd/system",
    "/etc/systemd/system.attached",
    "/run/systemd/system",
    "/run/systemd/system.attached",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/run/systemd/generator.late",
)


def unit_names(unit: str) -> tuple[str, ...]:
    """Return the names under which systemd looks for a unit's drop-ins and links, best match first.

    For example, ``a-b@c.service`` yields ``a-b@c.service``, ``a-b@.service``, ``a-.service`` and
    ``service``.
    """
    stem, _, kind = unit.rpartition(".")
    prefix, at, _ = stem.partition("@")
    template = (f"{prefix}@.{kind}",) if at else ()
    names = [*dict.fromkeys((unit, *template))]
    ends = [end for end in range(len(prefix) - 1, 0, -1) if prefix[end - 1] == "-"]
    return (*names, *(f"{prefix[:end]}.{kind}" for end in ends), kind)


def unit_files(layout: Layout, unit: str) -> list[Path]:
    """Return the files of a unit or its template; systemd uses the first one.

    Dangling symlinks are included.
    """
    folders = _unit_folders(layout)
    paths = []
    for name in unit_names(unit)[:2]:
        paths += [folder / name for folder in folders]
    return [path for path in paths if is_present(path)]


def _unit_folders(layout: Layout) -> list[Path]:
    # A host has few of these folders. Leave out the others, because looking for each name in them
    # would take ten times as long.
    return [folder for folder in map(layout.of, UNIT_PATH) if exists(folder)]


def is_masked(path: Path) -> bool:
    """Return whether a unit file or drop-in is masked, i.e. a symlink to /dev/null."""
    return os.path.realpath(path) == os.devnull


def drop_ins(layout: Layout, unit: str) -> dict[str, Path]:
    """Return the drop-ins, by name, that systemd would load for a unit.

    For drop-ins with the same name, the first one takes precedence. Folders are searched in
    systemd's order, and more specific unit names come first within a folder. Drop-ins for all
    services come last.
    """
    *names, kind = unit_names(unit)
    unit_folders = _unit_folders(layout)
    folders = []
    for folder in unit_folders:
        folders += [folder / f"{name}.d" for name in names]
    folders += [folder / f"{kind}.d" for folder in unit_folders]
    found: dict[str, Path] = {}
    for folder in folders:
        for path in matching(folder, "*.conf"):
            found.setdefault(path.name, path)
    return dict(sorted(found.items()))


def settings(text: str) -> list[tuple[str, str]]:
    """Parse the ``KEY=value`` settings of a unit file or a file with the same syntax, in order."""
    pairs = []
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.lstrip().startswith(("#", ";")):
            pairs.append((key.strip(), value.strip()))
    return pairs


def environment_names(layout: Layout, printed: str) -> set[str]:
    """Return the names of the variables that a unit's environment files set.

    Args:
        printed: the property ``EnvironmentFiles`` as printed by ``systemctl show``, with a file or
            a glob pattern in each line.

    Raises:
        FileError: a file can't be read.
    """
    names: set[str] = set()
    for line in printed.splitlines():
        pattern = layout.followed(line.rpartition(" (")[0])
        for path in matching(pattern.parent, pattern.name):
            names.update(name for name, _ in settings(read_text(path) or ""))
    return names
