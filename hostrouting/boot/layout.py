"""All paths that hostrouting reads or writes, relative to one root."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import attrs

CONFIG_DIR = PurePosixPath("etc/aks-flex-node")
# The agent's reset removes all of CONFIG_DIR. The files that are needed to notice the reset and to remove the rest are
# here.
STATE_DIR = PurePosixPath("etc/hostrouting")
UNIT_DIR = PurePosixPath("etc/systemd/system")
RUN_DIR = PurePosixPath("run/aks-flex-node")

# The first drop-in comes before other commands; the last comes after an override that empties their list.
GATE_NAMES = ("00-hostrouting.conf", "zz-hostrouting.conf")

# The folders of programs, which don't depend on the caller's PATH: cron's lacks sbin.
SEARCH_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

# The kernel's limit (MAXSYMLINKS).
_LINKS_MAX = 40


def _root(value: str | os.PathLike[str]) -> Path:
    # This doesn't resolve links, as an image's root may be a symlink on purpose. POSIX keeps two slashes at the
    # beginning.
    return Path("/" + os.path.abspath(value).lstrip("/"))  # noqa: PTH100


class _Below:
    """A path of a layout, relative to its root."""

    def __init__(self, path: str | PurePosixPath) -> None:
        self._path = path

    def __get__(self, layout: Layout, _: type[Layout]) -> Path:
        return layout.root / self._path


@attrs.frozen
class Layout:
    """The paths of all files that are installed, read or written.

    Args:
        root: the folder that stands for ``/``, such as a mounted image or a test's temporary folder.
    """

    root: Path = attrs.field(default=Path("/"), converter=_root)

    config = _Below(CONFIG_DIR / "config.json")
    """The config file to read if none is named."""

    manifest = _Below(STATE_DIR / "installed.json")
    """The record of the installation, so that it can be removed without its config."""

    journal_socket = _Below("run/systemd/journal/socket")
    """journald's socket for entries with fields, systemd-journald.service(8)."""

    units = _Below(UNIT_DIR)
    """The folder of the administrator's units."""

    gate_script = _Below(STATE_DIR / "gate.sh")
    """The script that the drop-in runs."""

    gate_list = _Below(STATE_DIR / "gate.list")
    """The list of the scripts that the gate runs, and of those whose failure it ignores."""

    stages = _Below(STATE_DIR / "stages")
    """Folders of scripts that a run is about to install; they exist only during the run."""

    gate_off = _Below(STATE_DIR / "gate.off")
    """Break-glass: as long as it exists, the gate admits every start."""

    protocol_names = _Below("etc/iproute2/rt_protos.d/hostrouting.conf")
    """The name of protocol 217 for iproute2: hostrouting."""

    resolv_conf = _Below("etc/resolv.conf")
    """The host's nameservers, resolv.conf(5)."""

    resolved_conf = _Below("run/systemd/resolve/resolv.conf")
    """The nameservers that systemd-resolved queries for the host."""

    run_dir = _Below(RUN_DIR)
    """The folder of files that live until the next boot."""

    lock = _Below(RUN_DIR / "lock")
    """The lock of a process that reads the table in order to write it."""

    run_lock = _Below(RUN_DIR / "run.lock")
    """The lock of a whole run, held while it waits too; no script takes it."""

    trial = _Below(RUN_DIR / "trial.json")
    """The current trial of routes: its config and its end; removed when the trial ends."""

    confirmed = _Below(RUN_DIR / "trial.confirmed.json")
    """The trial's file while it is being confirmed."""

    trial_script = _Below(RUN_DIR / "trial.sh")
    """The script that restores the routes from before the trial."""

    marker_ok = _Below(RUN_DIR / "route-overlap.ok")
    """Empty; exists if the last check found no failure."""

    marker_detected = _Below(RUN_DIR / "route-overlap.detected")
    """A line for each failure; exists if the last check found any, or couldn't judge."""

    report = _Below(RUN_DIR / "route-overlap.json")
    """The last check's report as JSON."""

    @property
    def markers(self) -> tuple[Path, ...]:
        """Return the paths of a check's markers."""
        return self.marker_ok, self.marker_detected, self.report

    @property
    def is_this_host(self) -> bool:
        """Return whether the root is that of the running system."""
        return self.root == Path("/")

    def script(self, part: str) -> Path:
        """Return the script of one of the gate's parts, which is run at boot and by the gate."""
        return self.root / CONFIG_DIR / f"{part}.sh"

    def unit(self, part: str) -> Path:
        """Return a part's unit, which is the watcher or a oneshot that runs a script at boot."""
        return self.root / UNIT_DIR / f"{part}.service"

    def enablement(self, part: str) -> Path:
        """Return the link that starts a unit at every boot."""
        return self.root / UNIT_DIR / "multi-user.target.wants" / f"{part}.service"

    def gates(self, consumer: str) -> tuple[Path, ...]:
        """Return the paths of a consumer's drop-ins for the gate."""
        return tuple(self.root / UNIT_DIR / f"{consumer}.d" / name for name in GATE_NAMES)

    def of(self, path: str) -> Path:
        """Return this layout's path for a path of the running system."""
        return self.root / path.lstrip("/")

    def followed(self, path: str) -> Path:
        """Return a file's path after following its links as the running system would, without ever leaving the root."""
        at, steps, links = self.root, [*reversed(PurePosixPath(path).parts[1:])], 0
        while steps:
            step = at / steps.pop()
            if step.name == "..":
                at = at if at == self.root else at.parent
            elif step.is_symlink() and links < _LINKS_MAX:
                links += 1
                target = PurePosixPath(step.readlink())
                at = self.root if target.is_absolute() else at
                steps += reversed(target.relative_to("/").parts if target.is_absolute() else target.parts)
            else:
                at = step
        return at

    def relative(self, path: Path) -> str:
        """Return a path of this layout as it is in the running system, starting with ``/``."""
        return "/" + str(path.relative_to(self.root))
