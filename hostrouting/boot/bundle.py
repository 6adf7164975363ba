"""Render a config for a host without Python, as files with two scripts or as an Ignition document.

All functions are pure.
"""

from __future__ import annotations

import gzip
from base64 import b64encode
from hashlib import sha256
from shlex import quote
from typing import Any

import attrs

from hostrouting.boot.layout import Layout
from hostrouting.boot.manifest import Manifest
from hostrouting.boot.parts import BootFile, Wanted, gate_files, wanted_manifest
from hostrouting.boot.render import fill
from hostrouting.config.routing import Config

IGNITION_VERSION = "3.4.0"
# The host as Ignition sees it. This isn't a real root, so no data of the rendering machine can get into the document.
_SYSROOT = Layout("/sysroot")


def rendered_files(config: Config, layout: Layout) -> list[BootFile]:
    """Return the files that a config needs on a host where nothing is installed, in the order to write them.

    The manifest comes first, and says that all folders above the files were created for them. The list is empty if the
    config asks for nothing.
    """
    wanted = Wanted.of(config, layout)
    manifest = wanted_manifest(Manifest(), wanted, layout)
    if not manifest.parts:
        return []
    folders = sorted(map(layout.relative, manifest.folders_above(layout)))
    scripts = {part.name: part.files[0].text.encode() for part in wanted.parts if part.is_gated}
    return [
        BootFile(layout.manifest, attrs.evolve(manifest, folders=tuple(folders)).to_text()),
        *(file for part in wanted.parts for file in part.files),
        *gate_files(layout, manifest, scripts),
    ]


def bundle(config: Config, layout: Layout) -> list[BootFile]:
    """Return a config's files, and the scripts that install and remove them."""
    files = rendered_files(config, layout)
    rows = (f"{file.mode:04o} {_checksum(file)} {layout.relative(file.path)}" for file in files)
    values = {"CONSUMER": quote(config.consumer), "FILES": "\n".join(rows)}
    scripts = [BootFile(layout.root / name, fill(name, **values), 0o755) for name in ("install.sh", "remove.sh")]
    return [*files, *(scripts if files else ())]


def ignition(config: Config) -> dict[str, Any]:
    """Return a config's files as an Ignition document, which other documents can merge."""
    files: list[dict[str, Any]] = []
    units: dict[str, dict[str, Any]] = {}
    for file in rendered_files(config, _SYSROOT):
        path = file.path
        if path.parent == _SYSROOT.units:
            units.setdefault(path.name, {"name": path.name}).update(enabled=True, contents=file.text)
        elif path.is_relative_to(_SYSROOT.units):
            name = path.parent.name.removesuffix(".d")
            drop_in = {"name": path.name, "contents": file.text}
            units.setdefault(name, {"name": name}).setdefault("dropins", []).append(drop_in)
        else:
            # The size of the data given to a new machine is limited, on Azure to 64 KiB.
            packed = b64encode(gzip.compress(_content(file), mtime=0)).decode()
            contents = {"compression": "gzip", "source": f"data:;base64,{packed}"}
            files.append({"path": _SYSROOT.relative(path), "mode": file.mode, "overwrite": True, "contents": contents})
    return {
        "ignition": {"version": IGNITION_VERSION},
        "storage": {"files": files},
        "systemd": {"units": [*units.values()]},
    }


def _content(file: BootFile) -> bytes:
    return file.state.content or b""


def _checksum(file: BootFile) -> str:
    return sha256(_content(file)).hexdigest()
