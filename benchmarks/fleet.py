"""Many recordings: the processor time and the memory of the command and its workers, and how its page opens."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import attrs

from benchmarks.browser import chromium
from benchmarks.figures import Figures, Measured, Row
from benchmarks.measure import timed
from benchmarks.recordings import CONFIG, KINDS, node, write_recordings
from benchmarks.worlds import SCRATCH, WrongOutcomeError
from hostrouting.cli.fleet import fleet_page
from hostrouting.config.routing import Config
from hostrouting.kernel.namespace import enter_namespace
from hostrouting.overlap.fleet import FleetReport, judge

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.worlds import Effort

__all__ = ["ROWS", "write_page"]

_RECORDINGS = 10_000

# Its own highest memory and that of its largest worker, which has ended by then; in KiB.
_JUDGE = """
import resource, sys
from hostrouting.cli import main
main(sys.argv[1:])
own = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:"))
print(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
"""


def write_page(folder: Path, count: int) -> Path:
    """Write the page of that many hosts, those of each kind a group, into a folder."""
    kinds = [{} if kind == "cut-off" else make(node(0)).to_document() for kind, make in KINDS.items()]
    groups = judge(kinds, Config.from_mapping(CONFIG)).groups
    hosts = [f"aks-h200-{number:05}" for number in range(count)]
    spread = (attrs.evolve(group, hosts=tuple(hosts[at :: len(groups)])) for at, group in enumerate(groups))
    path = folder / "fleet.html"
    path.write_text(fleet_page(FleetReport(tuple(spread))), encoding="ascii")
    return path


def _judge(paths: Sequence[Path]) -> float:
    """The highest memory, in bytes, once all groups are as they should be."""
    words = [str(paths[0].with_name("config.json")), *map(str, paths)]
    process = [sys.executable, "-c", _JUDGE, "judge", "--output", "json", *words]
    done = subprocess.run(process, capture_output=True, check=True, text=True)
    sizes = Counter(len(group["hosts"]) for group in json.loads(done.stdout)["groups"])
    wanted = Counter(len(paths[kind :: len(KINDS)]) for kind in range(len(KINDS)))
    if sizes != wanted:
        raise WrongOutcomeError(f"groups of {sorted(sizes.elements())} hosts, not of {sorted(wanted.elements())}")
    return sum(map(int, done.stderr.splitlines()[-1].split())) * 1024.0


def _cpu(effort: Effort) -> Measured:
    paths = write_recordings(SCRATCH, effort.size(_RECORDINGS))
    spans = [timed(lambda: _judge(paths))[0] for _ in range(effort.rounds(3))]
    return Measured(Figures.of([span.cpu / len(paths) for span in spans]))


def _open(effort: Effort) -> Measured:
    """From the address to the moment at which everything is there and drawn once."""
    page, took = write_page(SCRATCH, effort.size(_RECORDINGS)), []
    # Only the loopback is there, where chromedriver listens; elsewhere Chromium asks the network for this and that.
    enter_namespace()
    with chromium(SCRATCH / "chromium") as browser:
        for _ in range(effort.rounds()):
            start = time.perf_counter()
            browser.open(page)
            took.append(time.perf_counter() - start)
    return Measured(Figures.of(took))


def _memory(effort: Effort) -> Measured:
    paths = write_recordings(SCRATCH, effort.size(_RECORDINGS))
    few = [_judge(paths[: effort.size(_RECORDINGS // 10)]) for _ in range(effort.rounds(3))]
    return Measured(Figures.of([_judge(paths) for _ in few]), Figures.of(few))


ROWS: tuple[Row, ...] = (
    Row("judge", "judge, 10,000 recordings: processor time for each", "", _cpu, 0.01),
    Row("judge-memory", "judge, memory for 10,000 recordings", "for 1,000", _memory, 1.2, is_memory=True),
)
if shutil.which("chromedriver"):
    ROWS += (Row("judge-page", "judge, its page of 10,000 hosts open in Chromium", "", _open, 2.0),)
