"""A temporary host for the real command line, in network and mount namespaces with a private /run
and /etc.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from node import SHADOWED, as_batch
from wanted import section

SOURCE = "hostrouting-test"
"""The source of the mounts at /etc and /run, which marks a temporary host for programs."""

# /etc/aks-flex-node may not exist on the host, so an overlay covers all of /etc. No write leaves
# the namespaces.
SETUP = rf"""
set -eu
mount -t tmpfs none "$SCRATCH"
mkdir "$SCRATCH/upper" "$SCRATCH/work" "$SCRATCH/bin"
mount -t overlay {SOURCE} -o "lowerdir=/etc,upperdir=$SCRATCH/upper,workdir=$SCRATCH/work" /etc
mount -t tmpfs {SOURCE} /run
mkdir -p /etc/aks-flex-node /etc/systemd/system
# Hide the host's own units.
for folder in /usr/lib/systemd/system /etc/systemd/system; do
  [ ! -d "$folder" ] || mount -t tmpfs none "$folder"
done
mkdir /etc/systemd/system/multi-user.target.wants
printf '#!/bin/sh\n%s\n' "$SYSTEMCTL" >"$SCRATCH/bin/systemctl"
printf '#!/bin/sh\n' >"$SCRATCH/bin/systemd-run"
chmod +x "$SCRATCH/bin/systemctl" "$SCRATCH/bin/systemd-run"
# The command looks for programs in its own PATH.
mount -t overlay {SOURCE} -o "lowerdir=$SCRATCH/bin:/usr/bin" /usr/bin
PATH=$SCRATCH/bin:$PATH
ip -batch - <<'IP'
{as_batch(SHADOWED)}IP
hostrouting() {{ "$PYTHON" -m hostrouting "$@"; }}
"""

# systemd isn't running there, so this systemctl enables units, and knows only ours.
SYSTEMCTL = """
links=/etc/systemd/system/multi-user.target.wants
for unit; do :; done
case $1:$unit in
  restart:hostrouting-trial.service) exec bash -p /run/aks-flex-node/trial.sh ;;
  show:hostrouting-trial.service) echo LoadState=loaded ;;
esac
case $1 in
  is-enabled) test -L "$links/$unit" && echo enabled || exit 1 ;;
  enable) mkdir -p "$links" && ln -s "../$unit" "$links/$unit" ;;
  disable) rm "$links/$unit" ;;
  is-active) exit 3 ;;
  show) echo LoadState=not-found ;;
esac
"""

_CIDRS = ("172.16.1.0/24", "fd00:16:0:1::/64")
CONFIG = {"hostRouting": section(*_CIDRS, cidrs=_CIDRS)}
KEEPING = {
    "hostRouting": section(
        *_CIDRS,
        cidrs=_CIDRS,
        rules=[{"to": to, "priority": 5269} for to in ("10.96.0.0/12", "fd00:18::/48")],
        keep=["ib0"],
    )
}


def script_on_a_host(
    folder: Path, script: str, *words: str, config: Mapping[str, Any] = CONFIG, **environment: str
) -> dict[str, Any]:
    """Return the arguments for ``subprocess`` that run a bash script on a temporary host.

    Args:
        folder: an empty folder, for what the host writes.
        script: the script, which finds the path of the config in ``$CONFIG``.
        words: the script's arguments.
        config: the config.
        environment: more variables, such as another ``SYSTEMCTL``.
    """
    path, scratch = folder / "config.json", folder / "scratch"
    scratch.mkdir()
    path.write_text(json.dumps(config))
    own = {
        "SCRATCH": str(scratch),
        "PYTHON": sys.executable,
        "CONFIG": str(path),
        "SYSTEMCTL": SYSTEMCTL,
    }
    return {
        "args": ["unshare", "--net", "--mount", "--", "bash", "-c", SETUP + script, "bash", *words],
        "env": os.environ | own | environment,
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }


def on_a_host(
    folder: Path, script: str, *words: str, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a bash script on a temporary host to its end, with the same arguments as
    ``script_on_a_host``.
    """
    return subprocess.run(**script_on_a_host(folder, script, *words, **more), check=False)
