"""Render boot scripts, and run them in this thread's network namespace with a private /run."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import Any
from zlib import crc32

import attrs
import pytest
from nightly import IS_NIGHTLY

from hostrouting import Config, Host, OverlapReport, RouteOverlap
from hostrouting.boot.render import fill, render_check, render_static_routes
from hostrouting.model.verified_uplinks import VerifiedUplink, verified_text
from hostrouting.overlap.markers import marker_text

AWKS = ("mawk", "gawk", "busybox", "original-awk")

# The mounts disappear when the script exits. The scripts set their own PATH and find awk there, so
# the chosen awk is bind-mounted over it. /etc/aks-flex-node may not exist on the host, so an
# overlay covers all of /etc.
_ENTER = r"""
set -eu
mount --all --fstab "$ROOT/fstab"
if [ -n "$ETC" ]; then
  mount -t tmpfs none "$ROOT/scratch"
  mkdir "$ROOT/scratch/upper" "$ROOT/scratch/work"
  layers="lowerdir=/etc,upperdir=$ROOT/scratch/upper,workdir=$ROOT/scratch/work"
  mount -t overlay none -o "$layers" /etc
fi
eval "$PREPARE"
exec "$@"
"""

# In a new PID namespace, the difference in ns_last_pid is the number of processes that a command
# has started.
_COUNT = r"""
read -r before < /proc/sys/kernel/ns_last_pid
"$@" > "$ROOT/out" 2>&1 || exit
read -r after < /proc/sys/kernel/ns_last_pid
echo $((after - before))
"""


_OTHER_IP = r"""
real=$(readlink -f "$(command -v ip)")
cp "$real" "$ROOT/ip-itself"
cat >"$ROOT/ip" <<'END'
#!/bin/bash
case $* in *monitor*) MONITOR ;; esac
echo >>"$ROOT/calls"
mapfile <"$ROOT/calls"
calls=${#MAPFILE[@]}
CHANGE
exec "$ROOT/ip-itself" "$@"
END
chmod 755 "$ROOT/ip"
mount --bind "$ROOT/ip" "$real"
"""


def other_ip(change: str = "", *, monitor: str = 'exec "$ROOT/ip-itself" "$@"') -> str:
    """Return what prepares a script to run another ip, which runs a shell command first.

    Args:
        change: the command, in which ``$calls`` is the number of this call, without those of ``ip
            monitor``.
        monitor: what ``ip monitor`` does instead.
    """
    return _OTHER_IP.replace("CHANGE", change).replace("MONITOR", monitor)


_NO_VERDICT = re.compile(
    "(check-failed|no-uplink|no-default-route|no-local-table|contested-default|swapped)(: |$)"
)


def verdict_of(lines: Sequence[str]) -> str:
    """Return the verdict that the lines of the boot check's marker stand for."""
    if not lines:
        return "ok"
    return "unknown" if _NO_VERDICT.match(lines[0]) else "overlap"


def judged_soundly(lines: Sequence[str], report: OverlapReport) -> str:
    """Return the boot check's verdict, which the library's report must not contradict.

    Without Python, it may always be unknown. Python is asked only then, so a wrong failure would
    hold a healthy node as well.
    """
    verdict = verdict_of(lines)
    assert verdict != "ok" or report.verdict == "ok", marker_text(report)
    assert verdict != "overlap" or report.verdict != "ok", lines
    return verdict


def awks_for(test: str) -> tuple[str, ...]:
    """Return all awks in nightly runs, otherwise a single one, selected by the name of the test or
    case.
    """
    return AWKS if IS_NIGHTLY else (AWKS[crc32(test.encode()) % len(AWKS)],)


def render_static_routes_script(routes: Sequence[Any], *, wait_seconds: int = 30) -> str:
    return render_static_routes(
        Config(static_routes={"enabled": True, "routes": routes}, wait_seconds=wait_seconds)
    )


def render_check_route_overlap_script(
    expected_cidrs: Sequence[Any], mode: str = "WARN", *, wait_seconds: int = 30, **more: Any
) -> str:
    """Render the check script. Other keyword arguments are fields of `RouteOverlap`."""
    return render_check(
        Config(route_overlap=RouteOverlap(expected_cidrs, mode, **more), wait_seconds=wait_seconds)
    )


def with_constants(text: str, **values: int) -> str:
    """Return a script with other values of its constants, to shorten its waits."""
    for name, value in values.items():
        text, count = re.subn(
            rf"^readonly {name}=.*$", f"readonly {name}={value}", text, flags=re.MULTILINE
        )
        assert count == 1, name
    return text


def recorded(verified: Sequence[VerifiedUplink]) -> dict[str, Any]:
    """Return arguments of `Sandbox.run` with which the installed check is STRICT, and these uplinks
    are recorded, if there are any.
    """
    if not verified:
        return {}
    lines = [
        "mkdir -p /etc/hostrouting /etc/aks-flex-node",
        f"printf %s {quote(verified_text(verified))} >/etc/hostrouting/uplink",
        r"printf '\nreadonly MODE=STRICT\n#' >/etc/aks-flex-node/check-route-overlap.sh",
    ]
    return {"etc": True, "prepare": "\n".join(lines)}


_BESIDE = {"lock", "run.lock", "route-overlap.json"}
_started: list[subprocess.Popen[str]] = []


def end_what_is_left() -> None:
    """Kill scripts that a failed test left running."""
    while _started:
        process = _started.pop()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        if process.stdout is not None and not process.stdout.closed:
            process.communicate()


def awk_or_skip(name: str) -> str:
    """Return the real path of an awk, or skip the test if it isn't installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} isn't installed")
    return os.path.realpath(found)


@attrs.frozen
class Sandbox:
    """A place to run scripts.

    Args:
        root: a new directory; the scripts see ``root/run`` as /run.
        awk: the awk for the scripts, or an empty string for the system's default.
    """

    root: Path
    awk: str = ""

    def write(self, text: str, name: str = "script.sh") -> Path:
        """Write an executable file."""
        for folder in ("run", "scratch"):
            (self.root / folder).mkdir(exist_ok=True)
        # Some hosts lack /etc/protocols.
        run = str(self.root / "run").replace(" ", r"\040")  # fstab(5)
        mounts = {
            run: "/run",
            self.awk: os.path.realpath("/usr/bin/awk"),
            "/dev/null": "/etc/protocols",
        }
        lines = (
            f"{source} {place} none bind\n"
            for source, place in mounts.items()
            if source and Path(place).exists()
        )
        path = self.root / name
        for file, content in ((self.root / "fstab", "".join(lines)), (path, text)):
            # A script can't be overwritten while it runs.
            if not file.exists() or file.read_text() != content:
                file.write_text(content)
        path.chmod(0o755)
        return path

    def start(
        self,
        text: str,
        *arguments: str,
        is_host: bool = False,
        etc: bool = False,
        prepare: str = "",
        before: tuple[str, ...] = (),
    ) -> subprocess.Popen[str]:
        """Start a rendered script in this thread's network namespace and in its own process group.

        Args:
            text: the script.
            arguments: the script's arguments.
            is_host: whether the script treats this network namespace as the host's, which is that
                of its PID 1.
            etc: whether /etc is writable.
            prepare: shell commands to run first, in the script's mount namespace.
            before: command prefix for the script.
        """
        script = self.write(text)
        pids = ["--pid", "--fork", "--kill-child", "--mount-proc"] if is_host else []
        process = subprocess.Popen(
            [
                "unshare",
                "--mount",
                *pids,
                "--",
                "sh",
                "-c",
                _ENTER,
                "sh",
                *before,
                str(script),
                *arguments,
            ],
            env=os.environ
            | {"ROOT": str(self.root), "ETC": "1" if etc else "", "PREPARE": prepare or ":"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            errors="backslashreplace",  # bash prints a byte 0xff about a script that is cut off
            start_new_session=True,
        )
        _started.append(process)
        return process

    def run(self, text: str, *arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
        """Run a rendered script to completion, with the same arguments as ``start``."""
        process = self.start(text, *arguments, **more)  # type: ignore[arg-type]
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def told(self) -> list[str]:
        """Return the lines of the check's marker, which is the only file that it leaves, apart from
        locks.
        """
        names = {path.name for path in (self.root / "run/aks-flex-node").iterdir()}
        (marker,) = (name for name in names - _BESIDE if not name.startswith("script.sh."))
        lines = (self.root / "run/aks-flex-node" / marker).read_text().splitlines()
        assert marker == ("route-overlap.detected" if lines else "route-overlap.ok")
        return lines

    def count_processes(self, text: str, *arguments: str, **more: object) -> int:
        """Return the number of processes of a script, including itself and its subshells."""
        done = self.run(
            text, *arguments, **({"is_host": True} | more), before=("bash", "-c", _COUNT, "count")
        )
        assert done.returncode == 0, (done.stdout, done.stderr, (self.root / "out").read_text())
        return int(done.stdout)


def sandboxes(test: str, root: Path) -> Iterator[Sandbox]:
    """Yield a sandbox with each awk in nightly runs, otherwise with one, selected by the name of
    the test or case.
    """
    for name in awks_for(test):
        folder = root / name
        folder.mkdir(exist_ok=True)
        yield Sandbox(folder, awk_or_skip(name))


def run_gate(host: Host, root: Path) -> subprocess.CompletedProcess[str]:
    """Run the real gate with a host's installed scripts; exit code 255 holds the start."""
    there = host.layout.root
    lines = [
        "rm -rf /etc/aks-flex-node /etc/hostrouting",
        f"cp -a {there}/etc/aks-flex-node {there}/etc/hostrouting /etc",
    ]
    gate = fill("gate.sh").replace("HOLD_SECONDS=3", "HOLD_SECONDS=0")
    root.mkdir()
    done = Sandbox(root).run(gate, "last", is_host=True, etc=True, prepare="\n".join(lines))
    assert done.returncode in (0, 255), done.stderr
    return done
