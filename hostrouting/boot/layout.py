"""Every path that hostrouting reads or writes, in one value below one root."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import attrs

CONFIG_DIR = PurePosixPath("etc/aks-flex-node")
UNIT_DIR = PurePosixPath("etc/systemd/system")
RUN_DIR = PurePosixPath("run/aks-flex-node")

# Where programs are looked for, at boot and now, whatever the PATH of who runs us: cron's has no sbin.
SEARCH_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def _root(value: str | os.PathLike[str]) -> Path:
    return Path(os.path.abspath(value))  # noqa: PTH100 - lexical: the root of an image may be a symlink on purpose


@attrs.frozen
class Layout:
    """Where everything is.

    Args:
        root: the folder that stands for ``/``: a mounted image, or a temporary folder in a test.
    """

    root: Path = attrs.field(default=Path("/"), converter=_root)

    @property
    def is_this_host(self) -> bool:
        """Whether the files are those of the running system."""
        return self.root == Path("/")

    @property
    def config(self) -> Path:
        """The config file that is read if none is named."""
        return self.root / CONFIG_DIR / "config.json"

    @property
    def manifest(self) -> Path:
        """What was installed, so that it can be taken back without the config that asked for it."""
        return self.root / CONFIG_DIR / "hostrouting.installed.json"

    @property
    def journal_socket(self) -> Path:
        """Where journald takes entries with fields, systemd-journald.service(8)."""
        return self.root / "run/systemd/journal/socket"

    def script(self, part: str) -> Path:
        """What runs at boot and at the gate; ``part`` is one of those that are part of the gate."""
        return self.root / CONFIG_DIR / f"{part}.sh"

    def unit(self, part: str) -> Path:
        """The unit of a part: the oneshot that runs a script at boot, or the watcher."""
        return self.root / UNIT_DIR / f"{part}.service"

    def enablement(self, part: str) -> Path:
        """The link by which a unit is started at every boot."""
        return self.root / UNIT_DIR / "multi-user.target.wants" / f"{part}.service"

    def gate(self, consumer: str) -> Path:
        """The drop-in that holds a consumer back; ``zz``, to come after an override that empties the list."""
        return self.root / UNIT_DIR / f"{consumer}.d" / "zz-hostrouting.conf"

    @property
    def units(self) -> Path:
        """The folder of the administrator's units."""
        return self.root / UNIT_DIR

    @property
    def gate_script(self) -> Path:
        """What the drop-in runs."""
        return self.root / CONFIG_DIR / "gate.sh"

    @property
    def gate_list(self) -> Path:
        """The scripts that the gate runs, and whose failure it forgives."""
        return self.root / CONFIG_DIR / "gate.list"

    @property
    def gate_off(self) -> Path:
        """Break-glass: as long as it is there, the gate admits."""
        return self.root / CONFIG_DIR / "gate.off"

    @property
    def protocol_names(self) -> Path:
        """Tells iproute2 that protocol 217 is called hostrouting."""
        return self.root / "etc/iproute2/rt_protos.d/hostrouting.conf"

    @property
    def resolv_conf(self) -> Path:
        """Which nameservers the host asks, resolv.conf(5)."""
        return self.root / "etc/resolv.conf"

    @property
    def resolved_conf(self) -> Path:
        """Which nameservers systemd-resolved asks for it."""
        return self.root / "run/systemd/resolve/resolv.conf"

    @property
    def run_dir(self) -> Path:
        """The folder of what lives until the next boot."""
        return self.root / RUN_DIR

    @property
    def lock(self) -> Path:
        """Held by whoever reads the table in order to write it."""
        return self.run_dir / "lock"

    @property
    def run_lock(self) -> Path:
        """Held for a whole run, also while it waits; no script takes it."""
        return self.run_dir / "run.lock"

    @property
    def marker_ok(self) -> Path:
        """Empty; there if the last check found nothing that fails."""
        return self.run_dir / "route-overlap.ok"

    @property
    def marker_detected(self) -> Path:
        """A line a failure; there if the last check found any, or couldn't judge."""
        return self.run_dir / "route-overlap.detected"

    @property
    def report(self) -> Path:
        """The last check as JSON."""
        return self.run_dir / "route-overlap.json"

    def of(self, path: str) -> Path:
        """Where something is that the running system sees at this path."""
        return self.root / path.lstrip("/")

    def relative(self, path: Path) -> str:
        """A path of this layout as the running system will see it, starting with ``/``."""
        return "/" + str(path.relative_to(self.root))
