"""Render a config for hosts without Python: files with two shell scripts, or an Ignition document.

This module does no I/O.
"""

from __future__ import annotations

import zlib
from base64 import b64encode
from hashlib import sha256
from shlex import quote
from typing import Any

import attrs

from hostrouting.boot.layout import Layout
from hostrouting.boot.manifest import Manifest
from hostrouting.boot.parts import BootFile, Wanted, installed_files, wanted_manifest
from hostrouting.boot.render import fill, render_no_routes
from hostrouting.config.routing import Config

IGNITION_VERSION = "3.4.0"
# Ignition's name for the new host's root. With this root, the document is the same on each build
# machine, apart from the path of Python in the watcher's unit.
_SYSROOT = Layout("/sysroot")
_GZIP = 16 + zlib.MAX_WBITS
# The values of zlib's memLevel to try. Each compressed block has a code table of its own. A lower
# memLevel makes more blocks. The rows at a script's end may then get a table of their own, which
# compresses them better.
_MEM_LEVELS = (5, 6, 7)


def rendered_files(config: Config, layout: Layout) -> list[BootFile]:
    """Return the files that a config needs on a fresh host, in the order to write them.

    The manifest comes first, and lists all parent folders as if hostrouting had created them. If
    the config enables nothing, there are no files.
    """
    wanted = Wanted.of(config, layout)
    manifest = wanted_manifest(Manifest(), wanted, layout)
    if not manifest.parts:
        return []
    folders = sorted(map(layout.relative, manifest.folders_above(layout)))
    manifest = attrs.evolve(manifest, folders=tuple(folders))
    scripts = {part.name: part.files[0].content for part in wanted.parts if part.is_gated}
    return [
        BootFile(layout.manifest, manifest.to_text()),
        *installed_files(layout, manifest, wanted.parts, scripts),
    ]


def bundle(config: Config, layout: Layout) -> list[BootFile]:
    """Return a config's files and the scripts that install and remove them."""
    files = rendered_files(config, layout)
    if not files:
        return []
    values = {
        "CONSUMER": quote(config.consumer),
        "FILES": "\n".join(_row(file, layout) for file in files),
        "NO_ROUTES": render_no_routes(),
    }
    scripts = [
        BootFile(layout.root / name, fill(name, **values), 0o755)
        for name in ("install.sh", "remove.sh")
    ]
    return [*files, *scripts]


def _row(file: BootFile, layout: Layout) -> str:
    return f"{file.mode:04o} {sha256(file.content).hexdigest()} {layout.relative(file.path)}"


def ignition(config: Config) -> dict[str, Any]:
    """Return a config's files as an Ignition document that can be merged into another one."""
    files: list[dict[str, Any]] = []
    units: dict[str, dict[str, Any]] = {}
    for file in rendered_files(config, _SYSROOT):
        path = file.path
        if path.parent == _SYSROOT.units:
            unit = units.setdefault(path.name, {"name": path.name})
            unit.update(enabled=True, contents=file.text)
        elif path.is_relative_to(_SYSROOT.units):
            name = path.parent.name.removesuffix(".d")
            drop_in = {"name": path.name, "contents": file.text}
            unit = units.setdefault(name, {"name": name})
            unit.setdefault("dropins", []).append(drop_in)
        else:
            files.append(_ignition_file(file))
    return {
        "ignition": {"version": IGNITION_VERSION},
        "storage": {"files": files},
        "systemd": {"units": [*units.values()]},
    }


def _ignition_file(file: BootFile) -> dict[str, Any]:
    # Cloud providers limit the size of user data (Azure: 64 KiB).
    packed = b64encode(_gzipped(file.content)).decode()
    return {
        "path": _SYSROOT.relative(file.path),
        "mode": file.mode,
        "overwrite": True,
        "contents": {"compression": "gzip", "source": f"data:;base64,{packed}"},
    }


def _gzipped(content: bytes) -> bytes:
    # The header contains no time, so equal scripts give equal bytes.
    return min((_gzipped_with(content, level) for level in _MEM_LEVELS), key=len)


def _gzipped_with(content: bytes, mem_level: int) -> bytes:
    packer = zlib.compressobj(level=9, wbits=_GZIP, memLevel=mem_level)
    return packer.compress(content) + packer.flush()
