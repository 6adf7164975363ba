"""A temporary host for the real command line, in network and mount namespaces with a private /run and /etc."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from node import SHADOWED, as_batch

# /etc/aks-flex-node may not exist on the host, so an overlay covers all of /etc. No write leaves the namespaces.
SETUP = rf"""
set -eu
mount -t tmpfs none "$SCRATCH"
mkdir "$SCRATCH/upper" "$SCRATCH/work"
mount -t overlay none -o "lowerdir=/etc,upperdir=$SCRATCH/upper,workdir=$SCRATCH/work" /etc
mount -t tmpfs none /run
mkdir -p /etc/aks-flex-node
ip -batch - <<'IP'
{as_batch(SHADOWED)}IP
hostrouting() {{ "$PYTHON" -m hostrouting "$@"; }}
"""

CONFIG = {
    "hostRouting": {
        "staticRoutes": {
            "enabled": True,
            "routes": [{"destination": "172.16.1.0/24"}, {"destination": "fd00:16:0:1::/64"}],
        },
        "routeOverlap": {"expectedCidrs": ["172.16.1.0/24", "fd00:16:0:1::/64"], "mode": "STRICT"},
        "waitSeconds": 0,
    }
}


def on_a_host(
    folder: Path, script: str, *words: str, config: Mapping[str, Any] = CONFIG, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a bash script on a temporary host.

    Args:
        folder: an empty folder, for what the host writes.
        script: the script, which finds the path of the config in ``$CONFIG``.
        words: the script's arguments.
        config: the config.
        environment: more variables.
    """
    path, scratch = folder / "config.json", folder / "scratch"
    scratch.mkdir()
    path.write_text(json.dumps(config))
    return subprocess.run(
        ["unshare", "--net", "--mount", "--", "bash", "-c", SETUP + script, "bash", *words],
        env=os.environ | {"SCRATCH": str(scratch), "PYTHON": sys.executable, "CONFIG": str(path)} | environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
