"""Read an Ignition document as Ignition does, limited to the features that our documents use."""

from __future__ import annotations

import gzip
from base64 import b64decode
from typing import Any


def written(document: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """Map the path of each file that Ignition writes to its contents and mode."""
    found = {}
    for file in document["storage"]["files"]:
        packed = b64decode(file["contents"]["source"].removeprefix("data:;base64,"), validate=True)
        found[file["path"]] = gzip.decompress(packed).decode(), file["mode"]
    for unit in document["systemd"]["units"]:
        if "contents" in unit:
            found[f"/etc/systemd/system/{unit['name']}"] = unit["contents"], 0o644
        for drop_in in unit.get("dropins", ()):
            found[f"/etc/systemd/system/{unit['name']}.d/{drop_in['name']}"] = drop_in["contents"], 0o644
    return found
