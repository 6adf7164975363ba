"""The time and memory of judging many snapshots, and the time of opening their page."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from benchmarks.figures import Measured
from benchmarks.measure import Span, side_by_side, timed
from benchmarks.snapshots import CONFIG, KINDS, node, write_snapshots
from benchmarks.worlds import SCRATCH, WrongOutcomeError
from hostrouting.cli.fleet import fleet_page
from hostrouting.config.routing import Config
from hostrouting.fleet.groups import FleetReport
from hostrouting.fleet.judge import judge
from hostrouting.kernel.namespace import enter_namespace

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

# Prints the sizes of the groups, and then the peak memory of the process in KiB.
_JUDGE = """
import json, sys
from pathlib import Path
from hostrouting import Config, judge
folder = Path(sys.argv[1])
paths = [folder / f"node-{number:05}.json" for number in range(int(sys.argv[2]))]
report = judge(paths, Config.from_mapping(json.loads((folder / "config.json").read_text())))
own = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:"))
print(json.dumps([[len(group.hosts) for group in report.groups], int(own)]))
"""


def chromium() -> Chrome:
    """Start a headless Chromium with an empty profile and no network.

    It ends when its context ends.
    """
    # Imported here to keep selenium out of the processes of other measurements.
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(word)
    return Chrome(options, ChromeService(shutil.which("chromedriver") or "chromedriver"))


def write_page(folder: Path, count: int) -> Path:
    """Write the page of ``count`` hosts of all kinds into a folder."""
    kinds = [
        {} if kind == "cut-off" else make(node(0)).to_document() for kind, make in KINDS.items()
    ]
    groups = judge(kinds, Config.from_mapping(CONFIG)).groups
    hosts = [f"aks-h200-{number:05}" for number in range(count)]
    spread = (
        attrs.evolve(group, hosts=tuple(hosts[at :: len(groups)]))
        for at, group in enumerate(groups)
    )
    path = folder / "fleet.html"
    path.write_text(fleet_page(FleetReport(tuple(spread))), encoding="ascii")
    return path


def _judge(count: int) -> Span:
    """Judge snapshots in a separate process, check the groups, and return its memory."""
    words = [sys.executable, "-c", _JUDGE, str(SCRATCH), str(count)]
    sizes, memory = json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout)
    wanted = [len(range(kind, count, len(KINDS))) for kind in range(len(KINDS))[:count]]
    if Counter(sizes) != Counter(wanted):
        raise WrongOutcomeError(f"groups of {sizes} hosts, not of {wanted}")
    return Span(memory * 1024)


def cpu(size: int, rounds: int) -> Measured:
    """Measure the processor time that each snapshot takes."""
    write_snapshots(SCRATCH, size)
    return Measured(side_by_side(rounds, lambda: Span(timed(lambda: _judge(size))[0].cpu / size)))


def memory(size: int, rounds: int) -> Measured:
    """Compare the memory that all snapshots take with the memory that a tenth of them takes."""
    write_snapshots(SCRATCH, size)
    return Measured(side_by_side(rounds, lambda: _judge(size), lambda: _judge(size // 10)))


def opening(size: int, rounds: int) -> Measured:
    """Measure the time from opening the page until it is loaded and drawn."""
    page = write_page(SCRATCH, size).as_uri()
    # chromedriver needs only the loopback interface. With a network, Chromium would send its own
    # requests.
    enter_namespace()
    with chromium() as browser:

        def contender() -> Span:
            # timed() would wait for all child processes.
            start = time.perf_counter()
            browser.get(page)
            return Span(round(time.perf_counter() - start, 6))

        return Measured(side_by_side(rounds, contender))
