"""What ``python -m benchmarks`` runs in its own mount namespace."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
from typing import TYPE_CHECKING

from benchmarks.figures import Growth, Report, Result, Row
from benchmarks.growth import GROWTHS
from benchmarks.measure import adopt_orphans
from benchmarks.options import parse
from benchmarks.page import as_table, write_docs
from benchmarks.rows import ROWS
from benchmarks.worlds import SCRATCH, Effort
from hostrouting.cli.output import complain, dim, say

if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> None:
    """Measure what was asked for, and tell it."""
    if not SCRATCH.is_dir():
        sys.exit("start it with: python -m benchmarks")
    options = parse(sys.argv[1:])
    adopt_orphans()
    effort = Effort(options.quick)
    load = os.getloadavg()
    chosen = set(options.names) or {*(row.name for row in ROWS), *GROWTHS}
    results = tuple(_measure(row, effort) for row in ROWS if row.name in chosen)
    growths = tuple(_grow(name, growth, effort) for name, growth in GROWTHS.items() if name in chosen)
    report = Report(_made(load), results, growths)
    if options.docs:
        write_docs(report, options.docs / "explanation")
    say(json.dumps(report.to_json(), indent=1) if options.json else as_table(report))
    if options.quick:
        complain("quick: every size was tiny and everything ran once, so the figures mean nothing")


def _measure(row: Row, effort: Effort) -> Result:
    complain(dim(f"measuring {row.name}"))
    measured = row.measure(effort)
    return Result(
        row.name, row.what, row.against, row.most, row.is_memory, measured.ours, measured.theirs, measured.notes
    )


def _grow(name: str, growth: Callable[[Effort], Growth], effort: Effort) -> Growth:
    complain(dim(f"measuring {name}"))
    return growth(effort)


def _made(before: tuple[float, float, float]) -> dict[str, str]:
    after = os.getloadavg()
    programs = f"Python {platform.python_version()}", _first_line("ip", "-V"), _first_line("awk", "-W", "version")
    return {
        "made": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "kernel": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}, {os.cpu_count()} cores",
        "programs": ", ".join(programs),
        "load average": f"{before[0]:.1f} before, {after[0]:.1f} after",
    }


def _first_line(*words: str) -> str:
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[0] if lines else f"{words[0]} without a version"


if __name__ == "__main__":
    main()
