"""Every path that hostrouting reads or writes, in one value below one root."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import attrs

CONFIG_DIR = PurePosixPath("etc/aks-flex-node")
# The agent's reset removes CONFIG_DIR whole; what then still has to tell what is missing, and to take it back, is here.
STATE_DIR = PurePosixPath("etc/hostrouting")
UNIT_DIR = PurePosixPath("etc/systemd/system")
RUN_DIR = PurePosixPath("run/aks-flex-node")

# The first comes before other commands, the last after an override that empties their list.
GATE_NAMES = ("00-hostrouting.conf", "zz-hostrouting.conf")

# Where programs are looked for, at boot and now, whatever the PATH of who runs us: cron's has no sbin.
SEARCH_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

# As the kernel (MAXSYMLINKS).
_LINKS_MAX = 40


def _root(value: str | os.PathLike[str]) -> Path:
    # Lexical, as the root of an image may be a symlink on purpose. POSIX leaves two slashes at the beginning.
    return Path("/" + os.path.abspath(value).lstrip("/"))  # noqa: PTH100


class _Below:
    """A path of a layout, below its root."""

    def __init__(self, path: str | PurePosixPath) -> None:
        self._path = path

    def __get__(self, layout: Layout, _: type[Layout]) -> Path:
        return layout.root / self._path


@attrs.frozen
class Layout:
    """Paths of everything that is installed, read or written.

    Args:
        root: the folder that stands for ``/``: a mounted image, or a temporary folder in a test.
    """

    root: Path = attrs.field(default=Path("/"), converter=_root)

    config = _Below(CONFIG_DIR / "config.json")
    """The config file that is read if none is named."""

    manifest = _Below(STATE_DIR / "installed.json")
    """What was installed, so that it can be taken back without the config that asked for it."""

    journal_socket = _Below("run/systemd/journal/socket")
    """Where journald takes entries with fields, systemd-journald.service(8)."""

    units = _Below(UNIT_DIR)
    """The folder of the administrator's units."""

    gate_script = _Below(STATE_DIR / "gate.sh")
    """What the drop-in runs."""

    gate_list = _Below(STATE_DIR / "gate.list")
    """The scripts that the gate runs, and whose failure it forgives."""

    stages = _Below(STATE_DIR / "stages")
    """Folders of scripts that a run is about to put in the place of others; there while it does so."""

    gate_off = _Below(STATE_DIR / "gate.off")
    """Break-glass: as long as it is there, the gate admits."""

    protocol_names = _Below("etc/iproute2/rt_protos.d/hostrouting.conf")
    """Tells iproute2 that protocol 217 is called hostrouting."""

    resolv_conf = _Below("etc/resolv.conf")
    """Which nameservers the host asks, resolv.conf(5)."""

    resolved_conf = _Below("run/systemd/resolve/resolv.conf")
    """Which nameservers systemd-resolved asks for it."""

    run_dir = _Below(RUN_DIR)
    """The folder of what lives until the next boot."""

    lock = _Below(RUN_DIR / "lock")
    """Lock of a process that reads the table in order to write it."""

    run_lock = _Below(RUN_DIR / "run.lock")
    """Held for a whole run, also while it waits; no script takes it."""

    trial = _Below(RUN_DIR / "trial.json")
    """There as long as a trial of routes stands: its config, and until when; removed when it ends."""

    confirmed = _Below(RUN_DIR / "trial.confirmed.json")
    """The same while the trial is confirmed."""

    trial_script = _Below(RUN_DIR / "trial.sh")
    """Puts the routes back that were there before the trial."""

    marker_ok = _Below(RUN_DIR / "route-overlap.ok")
    """Empty; there if the last check found nothing that fails."""

    marker_detected = _Below(RUN_DIR / "route-overlap.detected")
    """A line a failure; there if the last check found any, or couldn't judge."""

    report = _Below(RUN_DIR / "route-overlap.json")
    """The last check as JSON."""

    @property
    def markers(self) -> tuple[Path, ...]:
        """Return the markers that a check leaves."""
        return self.marker_ok, self.marker_detected, self.report

    @property
    def is_this_host(self) -> bool:
        """Return whether the files are those of the running system."""
        return self.root == Path("/")

    def script(self, part: str) -> Path:
        """Return the script that runs at boot and at the gate; ``part`` is one of those that are part of the gate."""
        return self.root / CONFIG_DIR / f"{part}.sh"

    def unit(self, part: str) -> Path:
        """Return the unit of a part: the oneshot that runs a script at boot, or the watcher."""
        return self.root / UNIT_DIR / f"{part}.service"

    def enablement(self, part: str) -> Path:
        """Return the link by which a unit is started at every boot."""
        return self.root / UNIT_DIR / "multi-user.target.wants" / f"{part}.service"

    def gates(self, consumer: str) -> tuple[Path, ...]:
        """Return the drop-ins that hold a consumer back."""
        return tuple(self.root / UNIT_DIR / f"{consumer}.d" / name for name in GATE_NAMES)

    def of(self, path: str) -> Path:
        """Return the path here of what the running system sees at this path."""
        return self.root / path.lstrip("/")

    def followed(self, path: str) -> Path:
        """Return where the running system finds something, by links as it follows them: never out of the root."""
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
        """Return a path of this layout as the running system will see it, starting with ``/``."""
        return "/" + str(path.relative_to(self.root))
