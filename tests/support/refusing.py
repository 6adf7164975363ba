"""A program: run ``apply`` again and again, each time with one openat(2) later refused for want of descriptors (EMFILE).

``refusing.py CONFIG FIRST STEP`` runs on a throw-away host, and takes each STEPth of the files that apply opens once it
has read CONFIG, from number FIRST on; those of Python's own modules don't count. It prints a line of JSON for each.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

PLACES = ("/etc/aks-flex-node", "/etc/hostrouting", "/etc/systemd/system", "/etc/iproute2")
COMMAND = (sys.executable, "-m", "hostrouting")
OPENED = re.compile(r'openat\(\w+, "([^"]*)"')
MODULES = (
    "/etc/ld.so.cache",
    sys.prefix,
    sys.base_prefix,
    sys.pycache_prefix or sys.prefix,
    str(Path(__file__).parents[2]),
)


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


def apply(config: str, *tracer: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*tracer, *COMMAND, "apply", config], capture_output=True, text=True, check=False)


def remove() -> None:
    subprocess.run([*COMMAND, "remove"], check=True, capture_output=True)


def main(config: str, first: int, step: int) -> None:
    trace = Path("/run/trace")
    tracer = ("strace", "--quiet=all", "-o", str(trace), "-e", "trace=openat")
    nothing = state()
    # Of two parts the first may stay where the second can't be installed.
    document = json.loads(Path(config).read_text())
    part = Path("/run/part.json")
    part.write_text(json.dumps({"hostRouting": document["hostRouting"] | {"routeOverlap": {"expectedCidrs": []}}}))
    assert apply(str(part)).returncode == 0
    whole = [nothing, state()]
    remove()
    done = apply(config, *tracer)
    assert done.returncode == 0, done.stderr
    whole.append(state())
    remove()
    assert state() == nothing
    opened = OPENED.findall(trace.read_text())
    own = [
        number
        for number, path in enumerate(opened, 1)
        if number > opened.index(config) and not path.startswith(MODULES) and ".so" not in Path(path).name
    ]
    for number in own[first::step]:
        done = apply(config, *tracer, "-e", f"inject=openat:error=EMFILE:when={number}")
        report = {"path": opened[number - 1], "code": done.returncode, "said": done.stderr, "whole": state() in whole}
        sys.stdout.write(f"{json.dumps(report)}\n")
        sys.stdout.flush()
        remove()
        assert state() == nothing


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
