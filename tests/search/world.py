"""A disposable host with separate mounts, processes and network, but with the real kernel and the real scripts.

/etc and /run are file systems in memory that disappear with the last process. Nothing is written unless this module
has mounted both of them, and has made the network.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from hostrouting import Layout
from hostrouting.boot import render
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.model.routes import Route, Table
from search.pairs import KUBELET, TEMPLATE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from ipaddress import IPv4Network

LAYOUT = Layout()
# The folder for the loaded state of the fake systemd.
SYSTEMD = Path("/run/search")

_ETC, _RUN = Path("/etc"), Path("/run")
_SOURCE = "hostrouting-search"
# The parts of the real /etc that programs need. For example, awk is a link into alternatives.
_COPIED = ("alternatives", "group", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "nsswitch.conf", "passwd")

_NETWORK = """\
link set lo up
link add eth0 type veth peer name eth0-far
link set eth0-far up
link set eth0 up
address add 10.1.0.4/24 dev eth0
route add default via 10.1.0.1 dev eth0 proto dhcp metric 100
link add ib0 type veth peer name ib0-far
link set ib0-far up
link set ib0 up
address add 172.16.0.10/16 dev ib0
"""
_REFUSING_TABLE = 100

AWKS = ("gawk", "mawk", "busybox")

_WAITS = {"HOLD_SECONDS": 0, "GATE_SECONDS": 5}

# The type, the permission bits, and the content of a file or the target of a link.
_Entry = tuple[str, int, bytes]


class WorldError(Exception):
    """The world can't be made, or this process isn't in a world."""


@attrs.frozen
class State:
    """Everything that an update can change, so that it can be restored."""

    etc: Mapping[str, _Entry]
    run: Mapping[str, _Entry]
    routes: frozenset[Route]

    def differences(self, other: State) -> list[str]:
        """Return the routes and the files in /etc that differ from another state."""
        names = [name for name in sorted({*self.etc, *other.etc}) if self.etc.get(name) != other.etc.get(name)]
        routes = sorted(f"{route.destination} metric {route.metric}" for route in self.routes ^ other.routes)
        return [*(f"/etc/{name}" for name in names), *routes]


def make_world(outside: str) -> None:
    """Turn the new namespaces of this process into a host.

    Args:
        outside: the return value of ``namespaces`` outside these namespaces.

    Raises:
        WorldError: the namespaces are the same as outside, or the network isn't empty.
    """
    if set(outside.split()) & set(namespaces().split()):
        raise WorldError(f"not in namespaces of its own: {namespaces()}")
    if [link.name for link in NetlinkBackend().links()] != ["lo"]:
        raise WorldError("the network isn't a new one")
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
    subprocess.run(["ip", "-batch", "-"], input=_NETWORK, text=True, check=True)
    _shorten_waits()
    # The check at the gate runs this program to explain each verdict, which would take most of the time. The substitute
    # succeeds without an explanation.
    sys.executable = "/bin/true"


def namespaces() -> str:
    """Return the names of the mount, PID and network namespaces of this process."""
    return " ".join(os.readlink(f"/proc/self/ns/{kind}") for kind in ("mnt", "pid", "net"))  # noqa: PTH115 - no path


def require_world() -> None:
    """Refuse to continue unless this module has mounted /etc and /run.

    Raises:
        WorldError: one of them is another file system.
    """
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    # The last mount is on top, see proc_pid_mountinfo(5).
    sources = {words[4]: words[words.index("-") + 2] for words in mounts}
    for folder in (_ETC, _RUN):
        if sources.get(str(folder)) != _SOURCE:
            raise WorldError(f"{folder} isn't the one of this search")


def _mount(folder: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", _SOURCE, folder], check=True)


def _shorten_waits() -> None:
    """Render the scripts with short waits, because it is pointless here that a failing gate checks again."""
    read = render._read

    def shortened(room: str, asset: str) -> str:
        text = read(room, asset)
        for name, seconds in _WAITS.items():
            text = re.sub(rf"^readonly {name}=\d+", f"readonly {name}={seconds}", text, flags=re.MULTILINE)
        return text

    render._read = shortened


def require_short_waits() -> None:
    """Refuse to search with a gate that waits as long as a real one.

    Raises:
        WorldError: the gate has other waits, so ``_shorten_waits`` no longer works.
    """
    text = LAYOUT.gate_script.read_text()
    for name, seconds in _WAITS.items():
        if f"readonly {name}={seconds}\n" not in text:
            raise WorldError(f"{LAYOUT.gate_script} isn't rendered with {name}={seconds}")


# --- its state -----------------------------------------------------------------------------------------------------


def use_awk(name: str) -> None:
    """Make this program the awk of the scripts."""
    require_world()
    program, link = shutil.which(name), _ETC / "alternatives/awk"
    if program is None:
        raise WorldError(f"there is no {name}")
    link.unlink()
    link.symlink_to(program)


def read_state() -> State:
    """Return everything that an update can change."""
    return State(dict(_read_tree(_ETC)), dict(_read_tree(_RUN)), frozenset(_our_routes()))


def restore(state: State) -> None:
    """Restore the files and routes of a state."""
    require_world()
    _restore_tree(_ETC, state.etc)
    _restore_tree(_RUN, state.run)
    accept_routes()
    backend, there = NetlinkBackend(), frozenset(_our_routes())
    failures = (*backend.delete([*there - state.routes]), *backend.add([*state.routes - there]))
    if failures:
        raise WorldError(f"the routes can't be put back: {failures}")


def forget_boot() -> None:
    """Remove what a reboot removes: the routes and /run, except for the loaded state of systemd."""
    require_world()
    _restore_tree(_RUN, {name: entry for name, entry in _read_tree(_RUN) if Path("/run", name).is_relative_to(SYSTEMD)})
    if failures := NetlinkBackend().delete(_our_routes()):
        raise WorldError(f"the routes can't be removed: {failures}")


def refuse_route(destination: IPv4Network) -> None:
    """Make the verification of routes to a destination fail, with a rule that takes precedence over table main.

    Packets to the destination still leave on ib0, as they do without the update.
    """
    ip("route", "replace", str(destination), "dev", "ib0", "table", str(_REFUSING_TABLE))
    ip("rule", "add", "to", str(destination), "lookup", str(_REFUSING_TABLE), "pref", str(_REFUSING_TABLE))


def accept_routes() -> None:
    """Remove the rule that ``refuse_route`` adds, if it exists."""
    if any(rule.table == _REFUSING_TABLE for rule in NetlinkBackend().rules()):
        ip("rule", "delete", "pref", str(_REFUSING_TABLE))
        ip("route", "flush", "table", str(_REFUSING_TABLE))


def ip(*words: str) -> None:
    """Run ip(8)."""
    subprocess.run(["ip", *words], check=True)


def _our_routes() -> list[Route]:
    return [route for route in NetlinkBackend().routes(Table.MAIN) if route.is_ours]


def _read_tree(root: Path) -> Iterator[tuple[str, _Entry]]:
    """Yield the entries below a folder, with each folder before its contents."""
    for folder, folders, names in os.walk(root):
        if Path(folder) == _ETC:
            folders[:] = [name for name in folders if name not in _COPIED]
            names = [name for name in names if name not in _COPIED]
        for name in (*folders, *names):
            path = Path(folder, name)
            yield str(path.relative_to(root)), _read_entry(path)


def _read_entry(path: Path) -> _Entry:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return "link", 0, os.fsencode(path.readlink())
    if stat.S_ISDIR(mode):
        return "folder", stat.S_IMODE(mode), b""
    return "file", stat.S_IMODE(mode), path.read_bytes()


def _restore_tree(root: Path, wanted: Mapping[str, _Entry]) -> None:
    there = dict(_read_tree(root))
    for name in reversed(there):
        if there[name] != wanted.get(name):
            path = root / name
            if there[name][0] != "folder":
                path.unlink()
            elif name not in wanted:
                path.rmdir()
    for name, entry in wanted.items():
        kind, mode, content = entry
        if there.get(name) == entry:
            continue
        path = root / name
        if kind == "link":
            path.symlink_to(os.fsdecode(content))
            continue
        if kind == "folder":
            path.mkdir(exist_ok=True)
        else:
            path.write_bytes(content)
        path.chmod(mode)
