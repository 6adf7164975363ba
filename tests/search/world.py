"""A disposable host with its own mount, PID and network namespaces, but the real kernel and scripts.

/etc and /run are tmpfs mounts that disappear with the last process. Nothing is written unless this module has mounted
both.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from file_trees import read_trees, restore_trees
from host_states import BACKENDS, HostState, delete_routes, our_routes
from node import SHADOWED, run_ip

from hostrouting import Layout
from hostrouting.boot import render
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.model.family import IpNetwork
from search.pairs import KUBELET, TEMPLATE

LAYOUT = Layout()
# The fake systemd's state directory.
SYSTEMD = Path("/run/search")

_ETC, _RUN = Path("/etc"), Path("/run")
_SOURCE = "hostrouting-search"
# Files in the real /etc that programs need; e.g. awk is a symlink into alternatives.
_COPIED = ("alternatives", "group", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "nsswitch.conf", "passwd")

_REFUSING_TABLE = 100

AWKS = ("gawk", "mawk", "busybox")

_WAITS = {"HOLD_SECONDS": 0, "GATE_SECONDS": 5}


class WorldError(Exception):
    """The namespaces can't be set up, or this process isn't in them."""


def make_world(outside: str) -> None:
    """Set up a host in this process's new namespaces.

    Args:
        outside: the result of ``namespaces()`` in the parent process.

    Raises:
        WorldError: a namespace is shared with the parent, or the network isn't empty.
    """
    if set(outside.split()) & set(namespaces().split()):
        raise WorldError(f"not in namespaces of its own: {namespaces()}")
    if [link.name for link in NetlinkBackend().links()] != ["lo"]:
        raise WorldError("the network namespace isn't new")
    kept = SYSTEMD.with_name("kept")
    _mount(_RUN)
    kept.mkdir()
    for name in _COPIED:
        source = _ETC / name
        if source.is_dir():
            shutil.copytree(source, kept / name, symlinks=True)
        elif source.exists():
            shutil.copy(source, kept / name)
    _mount(_ETC)
    require_world()
    for path in kept.iterdir():
        shutil.move(path, _ETC)
    kept.rmdir()
    SYSTEMD.mkdir()
    LAYOUT.units.mkdir(parents=True)
    LAYOUT.protocol_names.parent.mkdir(parents=True)
    for unit in (TEMPLATE, KUBELET):
        (LAYOUT.units / unit).write_text("[Service]\nExecStart=/bin/true\nRestart=on-failure\n")
    run_ip(SHADOWED)
    _shorten_waits()
    # The gate runs this interpreter to explain each verdict, which would dominate the run time, so replace it with a
    # no-op.
    sys.executable = "/bin/true"


def namespaces() -> str:
    """Return the IDs of this process's mount, PID and network namespaces."""
    return " ".join(os.readlink(f"/proc/self/ns/{kind}") for kind in ("mnt", "pid", "net"))  # noqa: PTH115 - no path


def require_world() -> None:
    """Verify that this module has mounted /etc and /run.

    Raises:
        WorldError: one of them is a different file system.
    """
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    # The last mount for a path is on top, see proc_pid_mountinfo(5).
    sources = {words[4]: words[words.index("-") + 2] for words in mounts}
    for folder in (_ETC, _RUN):
        if sources.get(str(folder)) != _SOURCE:
            raise WorldError(f"{folder} isn't the one of this search")


def _mount(folder: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", _SOURCE, folder], check=True)


def _shorten_waits() -> None:
    """Render the scripts with short waits, because repeated checks by the gate are pointless here."""
    read = render._read

    def shortened(room: str, asset: str) -> str:
        text = read(room, asset)
        for name, seconds in _WAITS.items():
            text = re.sub(rf"^readonly {name}=\d+", f"readonly {name}={seconds}", text, flags=re.MULTILINE)
        return text

    render._read = shortened


# --- its state -----------------------------------------------------------------------------------------------------


def use_awk(name: str) -> None:
    """Make the scripts use this awk implementation."""
    require_world()
    program, link = shutil.which(name), _ETC / "alternatives/awk"
    if program is None:
        raise WorldError(f"there is no {name}")
    link.unlink()
    link.symlink_to(program)


def read_state() -> HostState:
    return HostState.read([_ETC], _RUN, [_ETC / name for name in _COPIED])


def restore(state: HostState) -> None:
    """Restore the files and routes from a snapshot."""
    require_world()
    accept_routes()
    state.restore(read_state())


def forget_boot() -> None:
    """Simulate a reboot: remove the routes and /run, except for the fake systemd's loaded state."""
    require_world()
    there = read_trees(_RUN)
    kept = {name: entry for name, entry in there.items() if Path(name) == _RUN or Path(name).is_relative_to(SYSTEMD)}
    restore_trees(kept, there)
    delete_routes(our_routes())


def refuse_route(destination: IpNetwork) -> None:
    """Add a rule with a higher priority than table main, so that verifying routes to a destination fails.

    Packets to the destination still leave through ib0, as they do without the update.
    """
    family = f"-{destination.version}"
    ip(family, "route", "replace", str(destination), "dev", "ib0", "table", str(_REFUSING_TABLE))
    ip(family, "rule", "add", "to", str(destination), "lookup", str(_REFUSING_TABLE), "pref", str(_REFUSING_TABLE))


def accept_routes() -> None:
    """Remove the rule added by ``refuse_route``, if any."""
    for backend in BACKENDS:
        if any(rule.table == _REFUSING_TABLE for rule in backend.rules()):
            family = f"-{backend.family.value}"
            ip(family, "rule", "delete", "pref", str(_REFUSING_TABLE))
            ip(family, "route", "flush", "table", str(_REFUSING_TABLE))


def ip(*words: str) -> None:
    """Run ip(8)."""
    subprocess.run(["ip", *words], check=True)
