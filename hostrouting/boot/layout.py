"""All paths that hostrouting reads or writes, relative to a root folder."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import attrs

from hostrouting.model.opening import check_path, translate_errors
from hostrouting.model.values import frozen
from hostrouting.model.verified_uplinks import VERIFIED_PATH

CONFIG_DIR = PurePosixPath("etc/aks-flex-node")
# A reset of the agent deletes CONFIG_DIR, but not STATE_DIR, whose files hostrouting uses to detect
# the reset and to clean up.
STATE_DIR = PurePosixPath("etc/hostrouting")
UNIT_DIR = PurePosixPath("etc/systemd/system")
RUN_DIR = PurePosixPath("run/aks-flex-node")
WATCH_DIR = PurePosixPath("var/lib/hostrouting")

# The names of the parts, of their scripts and of their units.
ROUTES = "static-routes"
CHECK = "check-route-overlap"
WATCH = "hostrouting-watch"

# systemd loads drop-ins in the order of their names. So the commands of the first drop-in run
# before all others. The second drop-in is loaded after any drop-in that resets the list of
# commands.
GATE_NAMES = ("00-hostrouting.conf", "zz-hostrouting.conf")

# Search path for programs. The caller's PATH isn't used because cron's lacks sbin.
SEARCH_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

# The kernel's limit (MAXSYMLINKS).
_LINKS_MAX = 40


def _root(value: str | os.PathLike[str]) -> Path:
    check_path(value, "Layout(root=…)")
    # Don't resolve symlinks: an image's root may be a symlink on purpose. abspath() keeps two
    # slashes at the beginning (POSIX). Strip them.
    return Path("/" + os.path.abspath(value).lstrip("/"))  # noqa: PTH100


class _Below:
    """A descriptor for a path relative to the layout's root."""

    def __init__(self, path: str | PurePosixPath) -> None:
        self._path = path

    def __get__(self, layout: Layout, _: type[Layout]) -> Path:
        return layout.root / self._path


@frozen
class Layout:
    """Paths of all files that hostrouting installs, reads or writes.

    Args:
        root: the folder to use as ``/``, such as a mounted image or a temporary folder in tests.
    """

    root: Path = attrs.field(default=Path("/"), converter=_root)

    config = _Below(CONFIG_DIR / "config.json")
    """The default config file."""

    manifest = _Below(STATE_DIR / "installed.json")
    """The record of the installation, used to uninstall without the config."""

    journal_socket = _Below("run/systemd/journal/socket")
    """journald's socket for entries with fields, systemd-journald.service(8)."""

    units = _Below(UNIT_DIR)
    """The folder for the administrator's units."""

    gate_script = _Below(STATE_DIR / "gate.sh")
    """The script that the drop-ins run."""

    gate_list = _Below(STATE_DIR / "gate.list")
    """The scripts that the gate runs, and whether it ignores their failures."""

    stages = _Below(STATE_DIR / "stages")
    """Staging folders for scripts; they exist only during a run."""

    gate_off = _Below(STATE_DIR / "gate.off")
    """While this file exists, the gate admits every start."""

    verified = _Below(VERIFIED_PATH)
    """The uplinks with which the check has passed. They stay the node's uplinks."""

    protocol_names = _Below("etc/iproute2/rt_protos.d/hostrouting.conf")
    """Names protocol 217 "hostrouting" in iproute2."""

    resolv_conf = _Below("etc/resolv.conf")
    """The host's nameservers, resolv.conf(5)."""

    resolved_conf = _Below("run/systemd/resolve/resolv.conf")
    """The nameservers that systemd-resolved queries for the host."""

    run_dir = _Below(RUN_DIR)
    """The folder for files that last until the next boot."""

    lock = _Below(RUN_DIR / "lock")
    """The lock that a process holds while it reads and then writes the routing table."""

    run_lock = _Below(RUN_DIR / "run.lock")
    """The lock of a whole run, even while it waits. Of the boot scripts, only trial.sh takes it."""

    passed_starts = _Below(RUN_DIR / "passed")
    """The gate's files, one for each start that has passed."""

    trial = _Below(RUN_DIR / "trial.json")
    """The current trial's config and deadline; removed when the trial ends."""

    confirmed = _Below(RUN_DIR / "trial.confirmed.json")
    """The current trial's config and deadline while the trial is being confirmed."""

    trial_script = _Below(RUN_DIR / "trial.sh")
    """The script that ends the trial."""

    adopted = _Below(RUN_DIR / "adopted")
    """The Go package's routes that a run takes over. Like these routes, it is gone after a boot."""

    marker_ok = _Below(RUN_DIR / "route-overlap.ok")
    """Empty; exists if the last check found no failure."""

    marker_detected = _Below(RUN_DIR / "route-overlap.detected")
    """One line per failure; exists if the last check failed or couldn't reach a verdict."""

    report = _Below(RUN_DIR / "route-overlap.json")
    """The last check's report as JSON."""

    good = _Below(WATCH_DIR / "good.json")
    """The watcher's last snapshot of this host with the verdict ``ok``."""

    bad = _Below(WATCH_DIR / "bad.json")
    """The watcher's snapshot of this host at the first verdict other than ``ok``."""

    @property
    def snapshots(self) -> tuple[Path, ...]:
        """Return the paths of the watcher's snapshots."""
        return self.good, self.bad

    @property
    def markers(self) -> tuple[Path, ...]:
        """Return the paths of the check's marker files."""
        return self.marker_ok, self.marker_detected, self.report

    @property
    def is_this_host(self) -> bool:
        """Return whether the root is ``/``, i.e. the running system."""
        return self.root == Path("/")

    def script(self, part: str) -> Path:
        """Return the path of a part's script, which runs both at boot and in the gate."""
        return self.root / CONFIG_DIR / f"{part}.sh"

    def unit(self, part: str) -> Path:
        """Return the path of a part's unit: the watcher, or a oneshot that runs its script."""
        return self.root / UNIT_DIR / f"{part}.service"

    def enablement(self, part: str) -> Path:
        """Return the symlink that enables a part's unit at boot."""
        return self.root / UNIT_DIR / "multi-user.target.wants" / f"{part}.service"

    def gates(self, consumer: str) -> tuple[Path, ...]:
        """Return the paths of the gate's drop-ins for a consumer."""
        return tuple(self.root / UNIT_DIR / f"{consumer}.d" / name for name in GATE_NAMES)

    def of(self, path: str) -> Path:
        """Map an absolute path to its location in this layout."""
        return self.root / path.lstrip("/")

    def followed(self, path: str) -> Path:
        """Resolve symlinks in a path as if the layout's root were the root folder."""
        return self.passed(path)[-1]

    def passed(self, path: str) -> list[Path]:
        """Return the folders that a path passes through, from the root to the path's target.

        Symlinks are resolved. A user who can write to one of these folders can replace everything
        that comes after it.

        Raises:
            FileError: this user can't look at a part of the path.
        """
        with translate_errors(f"look at {path}"):
            return self._passed(path)

    def _passed(self, path: str) -> list[Path]:
        folder = self.root
        passed = [folder]
        steps = [*reversed(PurePosixPath(path).parts[1:])]
        links = 0
        while steps:
            step = folder / steps.pop()
            if step.name == "..":
                folder = folder if folder == self.root else folder.parent
            elif step.is_symlink() and links < _LINKS_MAX:
                links += 1
                target = PurePosixPath(step.readlink())
                if target.is_absolute():
                    folder = self.root
                    target = target.relative_to("/")
                steps += reversed(target.parts)
            else:
                folder = step
            passed.append(folder)
        return passed

    def relative(self, path: Path) -> str:
        """Map a path in this layout to the absolute path on the running system."""
        return "/" + str(path.relative_to(self.root))
