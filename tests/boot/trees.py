"""Bootable Debian trees, created once with mmdebstrap, cached, and never modified afterwards.

    python tests/boot/trees.py          # creates the missing trees, and prints their paths

The cache directory is ``$HOSTROUTING_BOOT_CACHE``, or ``hostrouting-boot`` in the user's cache
directory. It contains:

    lock                held while a tree is created; a waiting process then finds the finished tree
    build-NAME/tree     unfinished
    SUITE-KEY/tree      finished; KEY is a hash of the suite, the packages and the set-up

Old trees, and those of killed builders, remain until a user deletes them: a builder removes only
what it has just made.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["BUILD_SECONDS", "SUITES", "CannotBuildError", "find_or_build", "outer_network"]

# Debian suites, with their systemd versions.
SUITES = {"bookworm": 252, "trixie": 257}

PACKAGES = (
    *(
        "bash",
        "busybox",
        "dbus",
        "gawk",
        "iproute2",
        "mawk",
        "netplan.io",
        "nftables",
        "procps",
        "python3",
    ),
    *("systemd", "systemd-container", "systemd-sysv", "util-linux"),
)
BUILD_SECONDS = 900

# This script runs in a chroot in the new tree, so symlinks in the tree can't escape from it.
SET_UP = r"""
set -eu
# Without a fixed one each boot counts as the first, and presets are applied anew.
echo 6d61636869e44f6bb19a7e5d6f0c2b52 >/etc/machine-id
echo node >/etc/hostname
printf '127.0.0.1 localhost node\n' >/etc/hosts
: >/etc/resolv.conf
mkdir -p /etc/systemd/system.conf.d /etc/systemd/journald.conf.d /var/log/journal
printf '[Manager]\nDefaultTimeoutStopSec=10s\n' >/etc/systemd/system.conf.d/boot-rig.conf
printf '[Journal]\nStorage=persistent\nSyncIntervalSec=1s\nRateLimitIntervalSec=0\n' \
  >/etc/systemd/journald.conf.d/boot-rig.conf
for unit in getty.target console-getty.service systemd-firstboot.service systemd-timesyncd.service \
  apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer \
  systemd-logind.service dev-hugepages.mount sys-fs-fuse-connections.mount systemd-remount-fs.service \
  systemd-tmpfiles-setup-dev-early.service systemd-tmpfiles-setup-dev.service systemd-udev-load-credentials.service \
  systemd-update-utmp.service systemd-update-utmp-runlevel.service; do
  ln -sf /dev/null "/etc/systemd/system/$unit"
done
# None of these generators has anything to generate, and each reload would run them all.
mkdir /etc/systemd/system-generators
for generator in /usr/lib/systemd/system-generators/systemd-*; do
  ln -s /dev/null "/etc/systemd/system-generators/${generator##*/}"
done
# ConditionNeedsUpdate=: nothing has to be brought up to date at boot.
touch -d '2040-01-01' /etc/.updated /var/.updated
"""  # noqa: E501 - a new set-up would rebuild all trees

# The complete environment for maintainer scripts. ./run's Python settings would put the bytecode
# elsewhere, and a machine's Python would then write it later, among files that are compared.
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C",
    "DEBIAN_FRONTEND": "noninteractive",
    "HOSTROUTING_BOOT_SET_UP": SET_UP,
}
# In some networks, the internet is reachable only through a proxy.
_PROXIES = ("http_proxy", "https_proxy", "no_proxy")

_KEPT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")


class CannotBuildError(Exception):
    """Raised if a tree is missing and can't be created."""


def find_or_build(suite: str, *more: str) -> Path:
    """Return a suite's tree, creating it if it doesn't exist, which takes half a minute and needs
    the network.

    Args:
        suite: the Debian release.
        more: packages to add to those of every tree.

    Raises:
        CannotBuildError: the tree is missing and can't be created.
    """
    cache = _cache_folder().resolve()
    packages = (*PACKAGES, *more)
    final = cache / f"{suite}-{_key(suite, packages)}"
    if not final.exists():
        if obstacle := _obstacle():
            raise CannotBuildError(f"can't build a tree of Debian {suite}, because {obstacle}")
        with _locked(cache) as lock:
            if not final.exists():
                _build(suite, packages, final, lock)
    return final / "tree"


def _cache_folder() -> Path:
    if named := os.environ.get("HOSTROUTING_BOOT_CACHE"):
        return Path(named).absolute()
    return (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute()
        / "hostrouting-boot"
    )


def _key(suite: str, packages: Sequence[str]) -> str:
    words = [suite, platform.machine(), *packages, *ENVIRONMENT.values(), *_KEPT_OUT]
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:12]


def _obstacle() -> str | None:
    if os.geteuid() != 0 or Path("/proc/self/uid_map").read_text().split()[2] != "4294967295":
        return "that takes root, and not that of a user namespace"
    if missing := [
        tool for tool in ("mmdebstrap", "unshare", "nsenter") if shutil.which(tool) is None
    ]:
        return f"{', '.join(missing)} isn't installed"
    return None


@contextmanager
def _locked(cache: Path) -> Iterator[int]:
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(cache / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def _build(suite: str, packages: Sequence[str], final: Path, lock: int) -> None:
    build = Path(tempfile.mkdtemp(prefix="build-", dir=final.parent))
    try:
        _mmdebstrap(suite, packages, build / "tree", lock)
        build.rename(final)
    except BaseException:
        shutil.rmtree(build)
        raise


def _mmdebstrap(suite: str, packages: Sequence[str], target: Path, lock: int) -> None:
    argv = [
        # Maintainer scripts run in their own mount namespace, which cleans up their mounts.
        *("nsenter", f"--net={outer_network()}", "unshare", "--mount", "--propagation", "private"),
        *("mmdebstrap", "--mode=root", "--variant=essential", f"--include={','.join(packages)}"),
        # The index of a release without support has expired, but is signed.
        '--aptopt=Acquire::Check-Valid-Until "false"',
        '--aptopt=Acquire::Retries "3"',
        *("--dpkgopt=force-unsafe-io", *(f"--dpkgopt=path-exclude={glob}" for glob in _KEPT_OUT)),
        '--customize-hook=chroot "$1" sh -c "$HOSTROUTING_BOOT_SET_UP"',
        *(suite, str(target)),
    ]
    env = ENVIRONMENT | {name: os.environ[name] for name in _PROXIES if name in os.environ}
    try:
        # mmdebstrap inherits the lock and holds it until it has finished, even if this process is
        # killed.
        done = subprocess.run(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=BUILD_SECONDS,
            pass_fds=[lock],
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CannotBuildError(
            f"can't build a tree of Debian {suite}: not done in {BUILD_SECONDS} s"
        ) from None
    if done.returncode != 0:
        last_words = "\n".join((done.stdout + done.stderr).strip().splitlines()[-8:])
        raise CannotBuildError(
            f"can't build a tree of Debian {suite}, because mmdebstrap failed:\n{last_words}"
        )


def outer_network() -> str:
    """Return the network namespace of the most distant ancestor process whose namespace is
    readable, for downloads.

    The tests run in their own namespace, which has no outbound route.
    """
    pid, found = os.getpid(), "/proc/self/ns/net"
    while pid > 0:
        if os.access(f"/proc/{pid}/ns/net", os.R_OK):
            found = f"/proc/{pid}/ns/net"
        pid = int(
            re.findall(r"^PPid:\s*(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[0]
        )
    return found


if __name__ == "__main__":
    try:
        for suite in SUITES:
            print(find_or_build(suite))  # noqa: T201
    except CannotBuildError as error:
        sys.exit(str(error))
