"""Find the unit files and drop-ins that systemd would read now."""

from __future__ import annotations

import os
from pathlib import Path

from hostrouting.boot.files import is_present, matching
from hostrouting.boot.layout import Layout

# From systemd.unit(5). If two files have the same name, the first one counts. Only the output of generators is read.
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
    """Return the names under which systemd looks for a unit's drop-ins and links, the most specific first.

    For ``a-b@c.service`` they are ``a-b@c.service``, ``a-b@.service``, ``a-.service`` and, for all services,
    ``service``.
    """
    stem, _, kind = unit.rpartition(".")
    prefix, at, _ = stem.partition("@")
    template = (f"{prefix}@.{kind}",) if at else ()
    dashes = [place for place, letter in enumerate(prefix) if letter == "-" and place + 1 < len(prefix)]
    return (*dict.fromkeys((unit, *template)), *(f"{prefix[: place + 1]}.{kind}" for place in reversed(dashes)), kind)


def unit_files(layout: Layout, unit: str) -> list[Path]:
    """Return the files of a unit or of its template, including dangling links; the first file counts."""
    paths = [layout.of(f"{folder}/{name}") for name in unit_names(unit)[:2] for folder in UNIT_PATH]
    return [path for path in paths if is_present(path)]


def is_masked(path: Path) -> bool:
    """Return whether a unit file or a drop-in is a link to /dev/null."""
    return os.path.realpath(path) == os.devnull


def drop_ins(layout: Layout, unit: str) -> dict[str, Path]:
    """Return the drop-ins, by name, that systemd would read if it loaded a unit now.

    If several have the same name, the first one counts. The folders come in systemd's order, and within a folder those
    of the more specific unit come first. Drop-ins for all services come last.
    """
    *own, kind = unit_names(unit)
    folders = [f"{folder}/{name}.d" for folder in UNIT_PATH for name in own]
    found: dict[str, Path] = {}
    for folder in (*folders, *(f"{folder}/{kind}.d" for folder in UNIT_PATH)):
        for path in matching(layout.of(folder), "*.conf"):
            found.setdefault(path.name, path)
    return {name: found[name] for name in sorted(found)}


def settings(text: str) -> list[tuple[str, str]]:
    """Return the settings (``KEY=value``) of a unit file, or of a file with the same syntax, in their order."""
    pairs = (line.partition("=") for line in text.splitlines() if not line.lstrip().startswith(("#", ";")))
    return [(key.strip(), value.strip()) for key, equals, value in pairs if equals]
