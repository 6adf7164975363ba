"""Enter namespaces in which scripts can do no harm, and measure there: ``python -m benchmarks``.

The boot scripts write to /run, so the mount namespace gets a new /run. They also call awk by name,
so awk is mawk there, as it is in Debian. The namespaces end with this process and don't slow the
measurements down.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import machines
from benchmarks.figures import Report
from benchmarks.growth import GROWTHS, measure
from benchmarks.measure import adopt_orphans
from benchmarks.page import as_table, as_words, write_docs
from benchmarks.peers import command as peers
from benchmarks.rows import ROWS
from benchmarks.worlds import SCRATCH
from hostrouting.cli.output import complain, dim, say

NAMES = [*(row.name for row in ROWS), *(growth.name for growth in GROWTHS)]

_GROWTH_ROUNDS = 5

_ENTER = r"""
set -eu
mount -t tmpfs none /run
mkdir "$SCRATCH"
if [ -n "$MAWK" ]; then
  mount --bind "$MAWK" "$(readlink -f "$(command -v awk)")"
fi
unset SCRATCH MAWK
exec "$@"
"""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line, or exit with an error message."""
    parser = argparse.ArgumentParser(
        prog="./run bench",
        description="Compares hostrouting with the fastest alternatives, each in a new network "
        "namespace, and prints a table of ratios.",
        epilog=f"NAME is one of: {' '.join(NAMES)}. Another command compares hostrouting with the "
        "programs that a user might choose instead: ./run bench peers --help",
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help="measure only this")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="tiny sizes, once each: only to see that everything runs",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument(
        "--docs",
        metavar="FOLDER",
        type=Path,
        help="write the page with its pictures and figures into its contributing/",
    )
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in NAMES]:
        parser.error(f"there is no {unknown[0]}; there are: {' '.join(NAMES)}")
    if options.docs and (options.names or options.quick):
        parser.error("the page is of a whole run: --docs takes neither NAME nor --quick")
    return options


def main() -> None:
    """Restart this process in new namespaces, measure there, and print the result."""
    if sys.argv[1:2] == ["peers"]:
        peers.main(sys.argv[2:])
        return
    options = parse(sys.argv[1:])
    if not SCRATCH.is_dir():
        _enter()
    adopt_orphans()
    load = os.getloadavg()
    names = options.names or [name for name in NAMES if name not in _unmeasurable()]
    report = Report({}, {}, {})
    for row in (row for row in ROWS if row.name in names):
        complain(dim(f"measuring {row.name}"))
        size, rounds = (min(20, row.size), 1) if options.quick else (row.size, row.rounds)
        report.rows[row.name] = row.measure(size, rounds)
    for growth in (growth for growth in GROWTHS if growth.name in names):
        complain(dim(f"measuring {growth.name}"))
        sizes, rounds = (
            ([1, 10], 1)
            if options.quick
            else ([10**power for power in growth.powers], _GROWTH_ROUNDS)
        )
        report.growths[growth.name] = measure(growth, sizes, rounds)
    report.made.update(_made(load))
    if options.docs:
        write_docs(report, options.docs / "contributing")
    say(report.to_json() if options.json else f"{as_table(report)}\n\n{as_words(report)}")
    if options.quick:
        complain("quick: every size was tiny and everything ran once, so the figures mean nothing")


def _unmeasurable() -> set[str]:
    """Return the rows that need something that isn't here."""
    without = set() if shutil.which("chromedriver") else {"judge-page"}
    return without | ({"apply-same", "apply-few"} if machines.obstacle() else set())


def _enter() -> None:
    mawk = shutil.which("mawk")
    # Compile the modules only once, as pip does when it installs them. The scratch folder is the
    # default place.
    prefix = os.environ.get("PYTHONPYCACHEPREFIX") or str(SCRATCH / "pycache")
    compiled = {"PYTHONPYCACHEPREFIX": prefix, "PYTHONDONTWRITEBYTECODE": ""}
    places = {"SCRATCH": str(SCRATCH), "MAWK": os.path.realpath(mawk) if mawk else ""}
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    inside = [sys.executable, "-m", "benchmarks", *sys.argv[1:]]
    words = ["unshare", "--mount", "--net", *as_root, "--", "bash", "-c", _ENTER, "bash", *inside]
    os.chdir(Path(__file__).parent.parent)
    os.execvpe("unshare", words, os.environ | compiled | places)


def _made(before: tuple[float, float, float]) -> dict[str, str]:
    programs = (
        f"Python {platform.python_version()}",
        _first_line("ip", "-V"),
        _first_line("awk", "-W", "version"),
    )
    release = ".".join(platform.release().split(".")[:2])
    return {
        "made": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "kernel": f"{platform.system()} {release}, {os.cpu_count()} cores",
        "programs": ", ".join(programs),
        "load average": f"{before[0]:.1f} before, {os.getloadavg()[0]:.1f} after",
    }


def _first_line(*words: str) -> str:
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[0] if lines else f"{words[0]} without a version"


if __name__ == "__main__":
    main()
