"""Machines that boot a Debian tree from a disk, on the kernel of the same Debian release, and whose
power can be cut.

The kernel is a process (see ``guest``), the disk an ext4 image, and the network two taps: ``eth0``
gets its address and its default route by DHCP, and ``ib0`` has an address whose subnet shadows the
cluster's. What the machine has written but not synced is lost with the power, as on real hardware.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from boot.rig import FOUND, FOUND_TEXT, MachineError, python_packages
from boot.trees import find_or_build

from kernels.guest import CONFINED, command_of
from kernels.packages import find_or_fetch

__all__ = ["LOG", "PROBES", "UmlMachine", "make_image"]

LOG = "/var/lib/consumer.log"
"""Where the consumer writes at each start: the boot, and the kernel's routes of ``PROBES``."""

PROBES = "172.16.5.9 172.16.200.9"

_MORE_PACKAGES = ("kmod", "udev")
_SIZE = "1500M"
_MEMORY = "384M"
_BOOT_SECONDS, _ANSWER_SECONDS = 120, 120
# A job that a gate holds stays "running", and those that wait for it.
_SETTLED = (
    "pending() { systemctl list-jobs --no-legend | grep -v 'kubelet\\|multi-user\\|graphical'; }; "
    'until [ -z "$(pending)" ]; do sleep 0.1; done'
)

_AGENT = r"""#!/bin/bash
# Runs the commands that come, in base64, one per line, and answers with their output and status.
exec 3<>/dev/ttyS1
stty raw -echo <&3
printf '\nready\n' >&3
while IFS= read -r -u3 line; do
  out=$(HOME=/root bash -c "$(base64 -d <<<"$line")" 2>&1 </dev/null; echo "status=$?")
  printf '%s\n' "$(base64 -w0 <<<"$out")" >&3
done
"""
_CONSUMER = rf"""#!/bin/bash
leads=$(for address in {PROBES}; do ip -4 route get "$address" 2>&1 | head -n 1; done)
printf '%s %s\n' "$(</proc/sys/kernel/random/boot_id)" "${{leads//$'\n'/; }}" >>{LOG}
sync
exec sleep infinity
"""
_FILES = {
    "/usr/local/bin/agent": _AGENT,
    "/usr/local/bin/consumer": _CONSUMER,
    "/etc/systemd/system/agent.service": (
        "[Unit]\nDefaultDependencies=no\nAfter=systemd-udevd.service\n"
        "[Service]\nExecStart=/usr/local/bin/agent\nRestart=always\nRestartSec=1\n"
    ),
    "/etc/systemd/system/kubelet.service": (
        "[Unit]\nWants=network-online.target\nAfter=network-online.target\n"
        "[Service]\nExecStart=/usr/local/bin/consumer\n"
    ),
    # Without this, udev handles hundreds of terminals first, which takes half of a boot.
    "/etc/systemd/system/systemd-udev-trigger.service.d/few.conf": (
        "[Service]\nExecStart=\n"
        "ExecStart=udevadm trigger --action=add --subsystem-match=net --subsystem-match=block\n"
    ),
    "/etc/systemd/network/10-eth0.link": (
        "[Match]\nMACAddress=52:54:00:00:00:01\n[Link]\nName=eth0\n"
    ),
    "/etc/systemd/network/10-ib0.link": (
        "[Match]\nMACAddress=52:54:00:00:00:02\n[Link]\nName=ib0\n"
    ),
    "/etc/systemd/network/20-eth0.network": (
        "[Match]\nName=eth0\n[Network]\nDHCP=ipv4\nIPv6AcceptRA=no\n"
        "Address=fd00:1::4/64\nGateway=fd00:1::1\n"
    ),
    "/etc/systemd/network/20-ib0.network": (
        "[Match]\nName=ib0\n[Link]\nRequiredForOnline=no\n"
        "[Network]\nAddress=172.16.0.10/16\nAddress=fd00:172::10/32\n"
        "LinkLocalAddressing=no\nIPv6AcceptRA=no\n"
    ),
}
_WANTED = {
    "sysinit.target": ("/etc/systemd/system/agent.service",),
    "multi-user.target": (
        "/etc/systemd/system/kubelet.service",
        "/lib/systemd/system/systemd-networkd.service",
    ),
    "network-online.target": ("/lib/systemd/system/systemd-networkd-wait-online.service",),
}
# Runs in a mount namespace of its own: TREE, WORK and IMAGE are its arguments.
_MAKE = rf"""
set -eu
mount -t tmpfs none "$2/work"
mkdir "$2/work/upper" "$2/work/work" "$2/work/root"
mount -t overlay none -o "lowerdir=$1,upperdir=$2/work/upper,workdir=$2/work/work" "$2/work/root"
cp -r "$2/files/." "$2/work/root/"
[ -z "$3" ] || depmod -b "$2/work/root" "$3"
[ -n "$5" ] || rm -f "$2/work/root/usr/bin/"python3*
truncate -s {_SIZE} "$4"
mkfs.ext4 -q -F -L root -d "$2/work/root" "$4"
"""


def make_image(suite: str, folder: Path, *, has_python: bool = True) -> None:
    """Make a machine's disk from a Debian release's tree, with a consumer and this checkout's
    Python code.

    Args:
        suite: the Debian release.
        folder: where to make the file ``disk``. The subfolder ``files`` may have files to add.
        has_python: whether the machine has Python and hostrouting. Otherwise, it has no Python at
            all.
    """
    tree, kernel, files, image = (
        find_or_build(suite, *_MORE_PACKAGES),
        find_or_fetch(suite),
        folder / "files",
        folder / "disk",
    )
    (folder / "work").mkdir()
    for name, text in _FILES.items():
        path = files / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if "/bin/" in name else 0o644)
    for target, units in _WANTED.items():
        wants = files / f"etc/systemd/system/{target}.wants"
        wants.mkdir(parents=True, exist_ok=True)
        for unit in units:
            (wants / Path(unit).name).symlink_to(unit)
    # A symlink can't be copied over.
    modules = (
        files / ("usr/lib" if (tree / "lib").is_symlink() else "lib") / "modules" / kernel.release
    )
    for part in ("kernel/net", "kernel/drivers/net", "kernel/lib", "kernel/crypto"):
        if (kernel.modules / part).exists():
            shutil.copytree(kernel.modules / part, modules / part)
    if has_python:
        for package, place in python_packages().items():
            shutil.copytree(
                package, files / place.lstrip("/"), ignore=shutil.ignore_patterns("__pycache__")
            )
        (files / FOUND.lstrip("/")).parent.mkdir(parents=True)
        (files / FOUND.lstrip("/")).write_text(FOUND_TEXT)
    argv = (
        "sh",
        "-c",
        _MAKE,
        "sh",
        tree,
        folder,
        kernel.release,
        image,
        "yes" if has_python else "",
    )
    subprocess.run(["unshare", "--mount", "--propagation", "private", *map(str, argv)], check=True)


# Runs in namespaces of its own, as the first process there. A command follows.
_NETWORK = """
set -e
ip link set lo up
for name in eth0 ib0; do ip tuntap add "tap-$name" mode tap; ip link set "tap-$name" up; done
ip address add 10.1.0.1/24 dev tap-eth0
ip address add fd00:1::1/64 dev tap-eth0 nodad
busybox udhcpd "$1"
shift
exec "$@"
"""
_DHCP = """
interface tap-eth0
start 10.1.0.4
end 10.1.0.4
option subnet 255.255.255.0
option router 10.1.0.1
option lease 3600
lease_file {folder}/leases
pidfile {folder}/udhcpd.pid
"""


class UmlMachine:
    """A machine on a kernel that is a process. It is off until ``boot()``.

    Args:
        suite: the Debian release, for the kernel.
        disk: the image to boot from, which the machine changes.
        folder: a directory for its console and its control socket.
    """

    def __init__(self, suite: str, disk: Path, folder: Path) -> None:
        self._kernel, self._disk, self._folder = find_or_fetch(suite), disk, folder
        self._process: subprocess.Popen[bytes] | None = None
        self._agent, far_end = socket.socketpair()
        far_end.close()

    def __enter__(self) -> UmlMachine:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._agent.close()

    def boot(self, *, wait: bool = True) -> None:
        """Turn the power on.

        Args:
            wait: whether to wait until systemd has no more jobs than those that a gate holds.

        Raises:
            MachineError: the machine ended or didn't boot in time.
        """
        self._agent.close()
        self._agent, theirs = socket.socketpair()
        dhcp = self._folder / "udhcpd.conf"
        dhcp.write_text(_DHCP.format(folder=self._folder))
        (self._folder / "leases").touch()
        fd = theirs.fileno()
        nics = {
            f"vec{number}": (
                f"transport=tap,ifname=tap-{dev},mac=52:54:00:00:00:0{number + 1},depth=64"
            )
            for number, dev in enumerate(("eth0", "ib0"))
        }
        arguments = {
            "mem": _MEMORY,
            "ubd0": self._disk,
            "root": "/dev/ubda",
            "ssl1": f"fd:{fd},fd:{fd}",
            "panic": "-1",
        }
        command = command_of(self._kernel, self._folder, "rw", **arguments)
        argv = [*CONFINED, "--net", "sh", "-c", _NETWORK, "sh", str(dhcp), *command]
        argv += [f"{name}:{value}" for name, value in nics.items()]
        with (self._folder / "console").open("ab") as console:
            self._process = subprocess.Popen(
                argv,
                cwd=self._kernel.library,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                pass_fds=[fd],
                start_new_session=True,
            )
        theirs.close()
        if wait:
            self._receive("ready", _BOOT_SECONDS)
            self.run(_SETTLED)

    def cut(self) -> None:
        """Cut the power: what isn't on the disk is lost."""
        if self._process is not None:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def power_off(self) -> None:
        """Shut the machine down cleanly."""
        self.send("systemctl poweroff")
        if self._process is not None:
            self._process.wait(_BOOT_SECONDS)
            self._process = None

    def send(self, script: str) -> None:
        """Start a shell script as root without waiting for it."""
        self._agent.sendall(base64.b64encode(script.encode()) + b"\n")

    def run(self, script: str, *, check: bool = True) -> str:
        """Run a shell script as root, and return its output.

        Raises:
            MachineError: it fails, or the machine does.
        """
        self.send(script)
        answer = base64.b64decode(self._receive("", _ANSWER_SECONDS)).decode(errors="replace")
        output, _, status = answer.rstrip("\n").rpartition("status=")
        if check and status != "0":
            raise MachineError(f"{script}: exit code {status}\n{output}")
        return output

    def _receive(self, wanted: str, seconds: float) -> str:
        """Return the next line of the agent, or the line that is wanted."""
        found, end = b"", time.monotonic() + seconds
        while True:
            self._agent.settimeout(max(0.1, end - time.monotonic()))
            try:
                chunk = self._agent.recv(65536)
            except TimeoutError:
                chunk = b""
            if not chunk:
                raise MachineError(
                    f"the machine ended or didn't answer in {seconds} s: {self._last_words()}"
                )
            found += chunk.replace(b"\r", b"")
            *lines, found = found.split(b"\n")
            for line in lines:
                if line and wanted in ("", line.decode(errors="replace")):
                    return line.decode()

    def _last_words(self) -> str:
        return (self._folder / "console").read_text(errors="replace")[-2000:]
