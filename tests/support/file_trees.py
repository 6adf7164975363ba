"""Read directory trees, restore them to an earlier state, and write files and symlinks with their
folders.
"""

from __future__ import annotations

import gzip
import os
import stat
from base64 import b64decode
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

Entry = tuple[str, int, bytes]
"""The type, the permission bits, and the file content or symlink target."""


def write_file(path: Path, text: str = "", mode: int = 0o644) -> Path:
    """Write a file, and the folders that it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, errors="surrogateescape")
    path.chmod(mode)
    return path


def write_link(path: Path, target: str | Path) -> Path:
    """Create a symlink, or replace one, and the folders that it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)
    return path


def version_of(path: Path) -> tuple[int, int, int]:
    """Return the numbers that change if a file is written or replaced, not if it is read."""
    return (now := path.stat()).st_ino, now.st_mtime_ns, now.st_ctime_ns


def read_trees(*roots: Path, leaving_out: Collection[Path] = ()) -> dict[str, Entry]:
    """Return all entries in some directory trees by their paths, parents first."""
    found: dict[str, Entry] = {}
    for root in filter(Path.is_dir, roots):
        found[str(root)] = _read(root)
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if Path(folder, name) not in leaving_out]
            paths = [Path(folder, name) for name in (*folders, *names)]
            found |= {str(path): _read(path) for path in paths if path not in leaving_out}
    return found


def outside_run(root: Path) -> dict[str, Entry]:
    """Return all entries below a host's root but those in /run."""
    return read_trees(root, leaving_out=[root / "run"])


def restore_trees(wanted: Mapping[str, Entry], there: dict[str, Entry]) -> None:
    """Replace the existing entries with the wanted ones."""
    for name in reversed(there):
        if there[name] != wanted.get(name):
            if there[name][0] != "folder":
                Path(name).unlink()
            elif name not in wanted:
                Path(name).rmdir()
    for name, (kind, mode, content) in wanted.items():
        path = Path(name)
        if there.get(name) == (kind, mode, content):
            continue
        if kind == "link":
            path.symlink_to(os.fsdecode(content))
            continue
        if kind == "folder":
            path.mkdir(exist_ok=True)
        else:
            path.write_bytes(content)
        path.chmod(mode)


def _read(path: Path) -> Entry:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return "link", 0, os.fsencode(path.readlink())
    if stat.S_ISDIR(mode):
        return "folder", stat.S_IMODE(mode), b""
    return "file", stat.S_IMODE(mode), path.read_bytes()


def written_by_ignition(document: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """Map the path of each file that Ignition writes to its contents and mode, for what our
    documents use.
    """
    found = {}
    for file in document["storage"]["files"]:
        packed = b64decode(file["contents"]["source"].removeprefix("data:;base64,"), validate=True)
        found[file["path"]] = gzip.decompress(packed).decode(), file["mode"]
    for unit in document["systemd"]["units"]:
        if "contents" in unit:
            found[f"/etc/systemd/system/{unit['name']}"] = unit["contents"], 0o644
        for drop_in in unit.get("dropins", ()):
            found[f"/etc/systemd/system/{unit['name']}.d/{drop_in['name']}"] = (
                drop_in["contents"],
                0o644,
            )
    return found
