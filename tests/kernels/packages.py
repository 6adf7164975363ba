"""Debian's User-Mode Linux of each release: unpacked once by mmdebstrap, cached, and never modified
afterwards.

The cache directory is ``$XDG_CACHE_HOME/hostrouting-kernels``. It contains for each release:

    build-NAME      unfinished; a user may delete it
    SUITE           finished
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from attrs import frozen
from boot.trees import outer_network

__all__ = ["SUITES", "NoKernelError", "UserModeLinux", "find_or_fetch"]

# Debian's releases, with the kernels of their user-mode-linux.
SUITES = {"bullseye": "5.10", "bookworm": "6.1", "trixie": "6.12", "sid": "7.2"}

_HERE = Path(__file__).parent
_TOOLS = ("mmdebstrap", "gcc", "busybox", "modprobe")
# Packages are only extracted. The index of an old snapshot of the archive has expired, but is
# signed.
_UNPACK = (
    *("mmdebstrap", "--quiet", "--variant=extract", "--include=user-mode-linux,libc6"),
    '--aptopt=Acquire::Check-Valid-Until "false"',
    '--aptopt=Acquire::Retries "3"',
)
_LOADER = "ld-linux-x86-64.so.2"


class NoKernelError(Exception):
    """Raised if a kernel can't be downloaded or doesn't run here."""


@frozen
class UserModeLinux:
    """A kernel that runs as a process.

    Attributes:
        program: the kernel.
        library: the directory with its C library, in which it has to start.
        modules: the directory that it expects at /lib/modules/RELEASE.
        preload: the library that it needs on some CPUs.
    """

    program: Path
    library: Path
    modules: Path
    preload: Path

    @property
    def release(self) -> str:
        """Return the kernel's release, for example ``6.1.176``."""
        return self.modules.name


def find_or_fetch(suite: str) -> UserModeLinux:
    """Return a release's kernel, downloading it if it isn't in the cache.

    Raises:
        NoKernelError: it can't be downloaded or prepared.
    """
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute()
        / "hostrouting-kernels"
    )
    final = cache / suite
    if not final.exists():
        if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
            raise NoKernelError(
                f"can't prepare the kernel of Debian {suite}: {', '.join(missing)} isn't installed"
            )
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        _fetch(suite, final)
    files = final / "files"
    (library,) = {path.parent for path in files.rglob("libc.so.6")}
    (modules,) = (files / "usr/lib/uml/modules").iterdir()
    return UserModeLinux(files / "usr/bin/linux.uml", library, modules, final / "xstate.so")


def _fetch(suite: str, final: Path) -> None:
    build = Path(tempfile.mkdtemp(prefix="build-", dir=final.parent))
    try:
        # The tests run in a network namespace of their own.
        _run(suite, "nsenter", f"--net={outer_network()}", *_UNPACK, suite, str(build / "files"))
        _use_own_loader(build / "files/usr/bin/linux.uml")
        _run(
            suite,
            "gcc",
            "-O2",
            "-shared",
            "-fPIC",
            "-o",
            str(build / "xstate.so"),
            str(_HERE / "xstate.c"),
        )
        build.rename(final)
    except BaseException as error:
        shutil.rmtree(build)
        # Another process may have been faster.
        if not (isinstance(error, OSError) and final.exists()):
            raise


def _use_own_loader(program: Path) -> None:
    """Let the program start with the dynamic loader in its working directory: this machine's C
    library may be older.
    """
    absolute = f"/lib64/{_LOADER}".encode()
    code = program.read_bytes()
    assert code.count(absolute) == 1
    program.write_bytes(code.replace(absolute, _LOADER.encode().ljust(len(absolute), b"\0")))


def _run(suite: str, *argv: str) -> None:
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise NoKernelError(
            f"can't prepare the kernel of Debian {suite}: {shlex.join(argv)} failed:\n"
            f"{done.stderr.strip()}"
        )
