"""A program: run a command again and again, each time with one system call of its own refused with one errno.

``refusing.py CONFIG COMMAND COUNT PART OF`` runs on a throw-away host, and takes COUNT of the refusals that a command may
meet once it has read its input, spread evenly; 0: all of one part of so many. Those of Python's own modules don't count,
nor do its children's calls. It prints a line of JSON for each, and before them how many there are.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import attrs

PLACES = ("/etc/aks-flex-node", "/etc/hostrouting", "/etc/systemd/system", "/etc/iproute2")
RUN = "/run/aks-flex-node"
COMMAND = (sys.executable, "-m", "hostrouting")
SAID_WITHIN = 20.0
# What a file's calls may meet, and a socket's.
LOOK, CHANGE = ("EIO", "ENAMETOOLONG", "ENOMEM"), ("EIO", "ENOSPC", "EROFS")
REFUSALS = {
    "openat": ("EMFILE", "ENFILE", *LOOK, "ENOSPC", "EROFS"),
    "newfstatat": LOOK,
    "readlink": LOOK,
    "getdents64": ("EIO", "ENOMEM"),
    "read": ("EIO", "ENOMEM"),
    "write": ("EIO", "ENOSPC"),
    "fsync": ("EIO", "ENOSPC"),
    "fchmod": CHANGE,
    "rename": CHANGE,
    "unlink": CHANGE,
    "mkdir": CHANGE,
    "rmdir": CHANGE,
    "symlink": CHANGE,
    "flock": ("EIO", "ENOLCK"),
    "socket": ("EMFILE", "ENFILE", "ENOMEM"),
    "bind": ("ENOMEM",),
    "sendto": ("ENOBUFS", "ENOMEM"),
    "recvfrom": ("ENOBUFS", "ENOMEM"),
    "pipe2": ("EMFILE", "ENFILE"),
    "vfork": ("EAGAIN", "ENOMEM"),
}
OF_NO_FILE = ("socket", "bind", "sendto", "recvfrom", "pipe2", "vfork")
CALL = re.compile(r"^(\w+)\(")


@attrs.frozen
class Refusal:
    """One call that is refused: the number among those of its name, and what it meets."""

    call: str
    number: int
    error: str
    line: str


def state() -> dict[str, str]:
    """Return what is installed, and our routes."""
    found = {
        str(path): str(path.readlink()) if path.is_symlink() else path.read_text()
        for place in PLACES
        for path in Path(place).rglob("*")
        if path.is_symlink() or path.is_file()
    }
    listed = subprocess.run(["ip", "-N", "route", "show", "proto", "217"], check=True, capture_output=True, text=True)
    return found | {"routes": listed.stdout}


def litter() -> list[str]:
    """Return what a run leaves that isn't there to stay."""
    return [str(path) for place in (*PLACES, RUN) for path in Path(place).rglob("*.hostrouting-*")]


def run(*words: str, tracer: tuple[str, ...] = (), is_endless: bool = False) -> subprocess.CompletedProcess[str]:
    argv = [*tracer, *COMMAND, *words]
    if not is_endless:
        return subprocess.run(argv, capture_output=True, text=True, check=False)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + SAID_WITHIN
        marker = [Path(RUN, f"route-overlap.{name}") for name in ("ok", "detected")]
        while process.poll() is None and time.monotonic() < end and not any(path.exists() for path in marker):
            time.sleep(0.02)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        with_tracer = children.read_text().split() if tracer and children.exists() else []
        if process.poll() is None:
            os.kill(int(with_tracer[0]) if with_tracer else process.pid, signal.SIGTERM)
        out, err = process.communicate()
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


def clear() -> None:
    for name in ("trial.json", "trial.confirmed.json"):
        Path(RUN, name).unlink(missing_ok=True)
    done = run("remove")
    assert done.returncode == 0, done.stderr


@attrs.frozen
class Story:
    """A command with what comes before it.

    Args:
        words: of the command.
        before: the commands before it.
        is_endless: whether it goes on until it is told to end.
        is_taken_back: whether a failure leaves all as it was, before the command or before those before it; else another
            run goes on from there.
    """

    words: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()
    is_endless: bool = False
    is_taken_back: bool = True

    def prepare(self) -> dict[str, str]:
        clear()
        for words in self.before:
            done = run(*words)
            assert done.returncode == 0, done.stderr
        if self.is_endless:
            for path in Path(RUN).glob("route-overlap.*"):
                path.unlink()
        return state()


def refusals(trace: str, begin: str) -> list[Refusal]:
    """Return what a command may meet, by the trace of a run without any."""
    counts: dict[str, int] = {}
    found: list[Refusal] = []
    has_begun = False
    for line in trace.splitlines():
        has_begun = has_begun or begin in line
        if (match := CALL.match(line)) is None:
            continue
        call = match[1]
        counts[call] = counts.get(call, 0) + 1
        is_ours = call in OF_NO_FILE or any(place in line for place in (*PLACES, RUN))
        if has_begun and is_ours and " = -1 E" not in line and "/dev/" not in line:
            found += [Refusal(call, counts[call], error, line) for error in REFUSALS[call]]
    return found


def main(config: str, command: str, count: int, part: int, parts: int) -> None:
    trial = ("apply", "--try", "600", config)
    story = {
        "apply": Story(("apply", config)),
        "remove": Story(("remove",), (("apply", config),), is_taken_back=False),
        "try": Story(trial),
        "confirm": Story(("confirm",), (trial,)),
        "watch": Story(("watch", config), (("apply", config),), is_endless=True),
    }[command]
    trace = Path("/run/trace")
    tracer = ("strace", "--quiet=all", "-y", "-s", "256", "-o", str(trace), "-e", f"trace={','.join(REFUSALS)}")
    story.prepare()
    assert run(*story.words, tracer=tracer, is_endless=story.is_endless).returncode == 0
    begin = config if config in story.words else "/etc/hostrouting/installed.json"
    begin = f"{RUN}/" if command == "confirm" else begin
    met = refusals(trace.read_text(), begin)
    clear()
    nothing, before = state(), story.prepare()
    assert run(*story.words, is_endless=story.is_endless).returncode == 0
    after = state()
    chosen = met[len(met) // (2 * count) :: len(met) // count] if count else met[part::parts]
    sys.stdout.write(f"{len(met)}\n")
    for refusal in chosen:
        assert story.prepare() == before
        inject = ("-e", f"inject={refusal.call}:error={refusal.error}:when={refusal.number}")
        done = run(*story.words, tracer=(*tracer, *inject), is_endless=story.is_endless)
        hit = [line for line in trace.read_text().splitlines() if "(INJECTED)" in line]
        report: dict[str, Any] = {
            "call": hit[0] if hit else None,
            "error": refusal.error,
            "reason": os.strerror(getattr(errno, refusal.error)),
            "code": done.returncode,
            "said": done.stderr + (done.stdout if story.is_endless else ""),
            "whole": state() in (nothing, before, after) or not story.is_taken_back,
            "done": state() == after,
            "litter": litter(),
        }
        if done.returncode and command != "confirm":
            again = run(*story.words, is_endless=story.is_endless)
            report["heals"] = again.returncode == 0 and state() == after and not litter()
        sys.stdout.write(f"{json.dumps(report)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
