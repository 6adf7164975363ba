"""The temporary host of a search, with the real kernel and scripts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from command_line import SOURCE
from file_trees import read_trees, restore_trees, write_file
from host_states import (
    BACKENDS,
    HostState,
    delete_routes,
    delete_rules,
    is_later_default,
    our_routes,
    our_rules,
)
from wanted import MACHINE

from hostrouting import Layout
from hostrouting.boot import assets
from hostrouting.model.family import IpNetwork
from search.pairs import KUBELET, TEMPLATE

LAYOUT = Layout()
# The fake systemd's state directory.
SYSTEMD = Path("/run/search")

_ETC, _RUN = Path("/etc"), Path("/run")

_REFUSING_TABLE = 100

# It leaves to Python only what depends on the unit files.
_SYSTEMCTL = """\
#!/bin/sh
case $1 in
  is-active) exit 3 ;;
  list-units) echo {machine} loaded inactive dead ;;
  daemon-reload | show) exec {python} -m search.bundles "$@" ;;
esac
"""

_WAITS = {"HOLD_SECONDS": 0, "GATE_SECONDS": 5}


def make_world() -> None:
    """Prepare this temporary host for a search."""
    require_world()
    SYSTEMD.mkdir()
    LAYOUT.protocol_names.parent.mkdir(parents=True, exist_ok=True)
    for unit in (TEMPLATE, KUBELET):
        (LAYOUT.units / unit).write_text("[Service]\nExecStart=/bin/true\nRestart=on-failure\n")
    _shorten_waits()
    # The scripts set this PATH.
    systemctl = shutil.which("systemctl", path="/usr/sbin:/usr/bin:/sbin:/bin")
    assert systemctl is not None
    program = write_file(
        SYSTEMD / "systemctl", _SYSTEMCTL.format(machine=MACHINE, python=sys.executable), 0o755
    )
    subprocess.run(["mount", "--bind", program, os.path.realpath(systemctl)], check=True)
    # The gate runs this interpreter to explain each verdict, which would dominate the run time, so
    # replace it with a no-op.
    sys.executable = "/bin/true"


def require_world() -> None:
    """Fail unless this process is on a temporary host. Nothing is written elsewhere."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    # The last mount for a path is on top, see proc_pid_mountinfo(5).
    sources = {words[4]: words[words.index("-") + 2] for words in mounts}
    assert sources.get(str(_ETC)) == sources.get(str(_RUN)) == SOURCE


def _shorten_waits() -> None:
    """Render the scripts with short waits: repeated checks by the gate are pointless here."""
    read = assets.read_asset

    def shortened(package: str, name: str) -> str:
        text = read(package, name)
        for constant, seconds in _WAITS.items():
            text = re.sub(
                rf"^readonly {constant}=\d+",
                f"readonly {constant}={seconds}",
                text,
                flags=re.MULTILINE,
            )
        return text

    assets.read_asset = shortened


# --- its state ------------------------------------------------------------------------------------


def use_awk(name: str) -> None:
    """Make the scripts use this awk implementation."""
    require_world()
    program, link = shutil.which(name), _ETC / "alternatives/awk"
    assert program is not None, f"there is no {name}"
    link.unlink()
    link.symlink_to(program)


def read_state() -> HostState:
    return HostState.read(_RUN)


def restore(state: HostState) -> None:
    """Restore the files and routes from a snapshot."""
    require_world()
    accept_routes()
    state.restore(read_state())


def forget_boot() -> None:
    """Simulate a reboot: remove the routes and /run, except for the fake systemd's loaded state.

    The network manager installs its default routes again.
    """
    require_world()
    there = read_trees(_RUN)
    kept = {
        name: entry
        for name, entry in there.items()
        if Path(name) == _RUN or Path(name).is_relative_to(SYSTEMD)
    }
    restore_trees(kept, there)
    delete_rules(our_rules())
    delete_routes([route for route in our_routes() if not is_later_default(route)])


def refuse_route(destination: IpNetwork) -> None:
    """Add a rule with a higher priority than table main, so that verifying routes to a destination
    fails.

    Packets to the destination still leave through ib0, as they do without the update.
    """
    family = f"-{destination.version}"
    ip(family, "route", "replace", str(destination), "dev", "ib0", "table", str(_REFUSING_TABLE))
    ip(
        family,
        "rule",
        "add",
        "to",
        str(destination),
        "lookup",
        str(_REFUSING_TABLE),
        "pref",
        str(_REFUSING_TABLE),
    )


def accept_routes() -> None:
    """Remove the rule added by ``refuse_route``, if any."""
    for backend in BACKENDS:
        if any(rule.table == _REFUSING_TABLE for rule in backend.facts().rules):
            family = f"-{backend.family.value}"
            ip(family, "rule", "delete", "pref", str(_REFUSING_TABLE))
            ip(family, "route", "flush", "table", str(_REFUSING_TABLE))


def ip(*words: str) -> None:
    """Run ip(8)."""
    subprocess.run(["ip", *words], check=True)
