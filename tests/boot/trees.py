"""Bootable Debian trees, created once with mmdebstrap, cached, and never modified afterwards.

    python tests/boot/trees.py          # creates the missing trees, and prints their paths

The cache directory is ``$HOSTROUTING_BOOT_CACHE``, or ``hostrouting-boot`` in the user's cache directory. It contains:

    lock                        held while a tree is created; a waiting process then finds the finished tree
    build-TOKEN/mark, tree/     unfinished, and the only kind of folder that is removed, if its mark contains its token
    SUITE-KEY/mark, tree/       finished; KEY is a hash of the suite, the packages and the set-up

Old trees remain until a user deletes them: this module removes only its own failed builds.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import secrets
import shutil
import stat
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "SUITES",
    "CannotBuildError",
    "NotOursError",
    "build_all",
    "cache_folder",
    "find_or_build",
    "outer_network",
    "remove_build",
]

# Debian suites, with their systemd versions.
SUITES = {"bookworm": 252, "trixie": 257}

PACKAGES = (
    *("bash", "busybox", "dbus", "gawk", "iproute2", "mawk", "netplan.io", "nftables", "procps", "python3"),
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
  systemd-logind.service dev-hugepages.mount sys-fs-fuse-connections.mount; do
  ln -sf /dev/null "/etc/systemd/system/$unit"
done
# ConditionNeedsUpdate=: nothing has to be brought up to date at boot.
touch -d '2040-01-01' /etc/.updated /var/.updated
"""

# The complete environment for maintainer scripts. ./run's Python settings would put the bytecode elsewhere, and a
# machine's Python would then write it later, among files that are compared.
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
_MARK = "mark"
_BUILD = re.compile(r"build-(?P<token>[0-9a-f]{32})")


class CannotBuildError(Exception):
    """Raised if a tree is missing and can't be created."""


class NotOursError(Exception):
    """Raised instead of removing a directory that this module didn't create or that isn't safe to remove."""


def cache_folder() -> Path:
    """Return the directory that contains the trees."""
    if named := os.environ.get("HOSTROUTING_BOOT_CACHE"):
        return Path(named).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "hostrouting-boot"


def find_or_build(
    suite: str, *, cache: Path | None = None, make: Callable[[str, Path, int], None] | None = None
) -> Path:
    """Return a suite's tree, creating it if it doesn't exist, which takes half a minute and needs the network.

    Args:
        suite: a suite in ``SUITES``.
        cache: the cache directory, or None for ``cache_folder()``.
        make: a function that creates a suite's tree at a path and keeps the lock's file descriptor open until it has
            finished, or None for mmdebstrap.

    Raises:
        CannotBuildError: the tree is missing and can't be created.
    """
    cache = (cache or cache_folder()).resolve()
    final = cache / f"{suite}-{_key(suite)}"
    if not final.exists():
        if make is None and (obstacle := _obstacle()):
            raise CannotBuildError(f"can't build a tree of Debian {suite}, because {obstacle}")
        with _locked(cache) as lock:
            if not final.exists():
                _build(cache, final, lambda target: (make or _mmdebstrap)(suite, target, lock))
    return final / "tree"


def build_all() -> list[Path]:
    """Create the missing trees for all suites, and return all trees."""
    return [find_or_build(suite) for suite in SUITES]


def _key(suite: str) -> str:
    words = [suite, platform.machine(), *PACKAGES, *ENVIRONMENT.values(), *_KEPT_OUT]
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:12]


def _obstacle() -> str | None:
    if os.geteuid() != 0 or Path("/proc/self/uid_map").read_text().split()[2] != "4294967295":
        return "that takes root, and not that of a user namespace"
    if missing := [tool for tool in ("mmdebstrap", "unshare", "nsenter") if shutil.which(tool) is None]:
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


def _build(cache: Path, final: Path, make: Callable[[Path], None]) -> None:
    for left_behind in cache.glob("build-*"):  # left behind by a killed builder, as a live one would hold the lock
        remove_build(left_behind, cache)
    token = secrets.token_hex(16)
    build = cache / f"build-{token}"
    build.mkdir(mode=0o755)
    (build / _MARK).write_text(f"{token}\n")
    try:
        make(build / "tree")
        build.rename(final)
    except BaseException:
        remove_build(build, cache)
        raise


def _mmdebstrap(suite: str, target: Path, lock: int) -> None:
    argv = [
        # Maintainer scripts run in their own mount namespace, which cleans up their mounts.
        *("nsenter", f"--net={outer_network()}", "unshare", "--mount", "--propagation", "private"),
        *("mmdebstrap", "--mode=root", "--variant=essential", f"--include={','.join(PACKAGES)}"),
        *("--dpkgopt=force-unsafe-io", *(f"--dpkgopt=path-exclude={glob}" for glob in _KEPT_OUT)),
        '--customize-hook=chroot "$1" sh -c "$HOSTROUTING_BOOT_SET_UP"',
        *(suite, str(target)),
    ]
    env = ENVIRONMENT | {name: os.environ[name] for name in _PROXIES if name in os.environ}
    try:
        # mmdebstrap inherits the lock and holds it until it has finished, even if this process is killed.
        done = subprocess.run(
            argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=BUILD_SECONDS, pass_fds=[lock], check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise CannotBuildError(f"can't build a tree of Debian {suite}: not done in {BUILD_SECONDS} s") from None
    if done.returncode != 0:
        last_words = "\n".join((done.stdout + done.stderr).strip().splitlines()[-8:])
        raise CannotBuildError(f"can't build a tree of Debian {suite}, because mmdebstrap failed:\n{last_words}")


def outer_network() -> str:
    """Return the network namespace of the most distant ancestor process whose namespace is readable, for downloads.

    The tests run in their own namespace, which has no outbound route.
    """
    pid, found = os.getpid(), "/proc/self/ns/net"
    while pid > 0:
        if os.access(f"/proc/{pid}/ns/net", os.R_OK):
            found = f"/proc/{pid}/ns/net"
        pid = int(re.findall(r"^PPid:\s*(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[0])
    return found


def remove_build(folder: Path, cache: Path) -> None:
    """Remove an unfinished tree created by this module, and nothing else.

    Args:
        folder: ``build-TOKEN`` in ``cache``, with a mark that contains the same token.
        cache: the directory that contains the trees.

    Raises:
        NotOursError: ``folder`` isn't such a directory, or something is mounted in it; nothing was removed.
    """
    for objection in _objections(folder, cache):
        raise NotOursError(f"refused to remove {folder}: {objection}")
    shutil.rmtree(folder)


def _objections(folder: Path, cache: Path) -> Iterator[str]:
    """Yield the reasons why a directory must not be removed. Only the first one counts; later checks rely on earlier
    ones.
    """
    if not cache.is_absolute() or cache.resolve() != cache or folder.parent != cache:
        yield "it isn't directly in the folder of trees, or there are links on the way"
    name = _BUILD.fullmatch(folder.name)
    if name is None:
        yield "its name isn't that of an unfinished tree"
        return
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_dev != cache.lstat().st_dev:
        yield "it isn't a folder of ours on the same file system"
    mark = folder / _MARK
    if mark.is_symlink() or not mark.is_file() or mark.read_text() != f"{name['token']}\n":
        yield "it doesn't hold its mark"
    if mounted := _mounts_below(folder):
        yield f"something is mounted there: {', '.join(mounted)}"
    if not shutil.rmtree.avoids_symlink_attacks:
        yield "this Python can't do it without following links"


def _mounts_below(folder: Path) -> list[str]:
    points = [line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    plain = [re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point) for point in points]
    return [point for point in plain if Path(point).is_relative_to(folder)]


if __name__ == "__main__":
    try:
        for tree in build_all():
            print(tree)  # noqa: T201
    except CannotBuildError as error:
        sys.exit(str(error))
