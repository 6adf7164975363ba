"""The command ``./run bench peers``."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machines import obstacle
from benchmarks.peers import cases
from benchmarks.peers.page import page, write_docs
from benchmarks.peers.programs import PEERS
from benchmarks.peers.work import Facts, PeerError, booted, figures
from hostrouting.cli.output import complain, dim, say

_SIZES, _ROUNDS = (1000, 10_000), 3
# A program whose work takes longer than this is measured only once, so that the whole run ends
# within half an hour.
_SLOW_SECONDS = 60.0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line, or exit with an error message."""
    parser = argparse.ArgumentParser(
        prog="./run bench peers",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="""\
Compares hostrouting with the programs that a user might choose instead. Each
runs on a machine of its own, which boots Debian trixie with the program's
package, and gets its routes in its own kind of file. The first run downloads
the packages, and builds a tree for each program.

  work    install 1,000 and 10,000 routes, change nothing, change 10, remove
          all: CPU time of everything that was set off, time until all routes
          are in the kernel, writes, and memory of daemons
  cases   an impossible route, another program's route, a killed run, link
          down, a deleted route, another default gateway, and so on: what the
          program does, read from the kernel, its exit code and the journal

It needs root, and takes up to half an hour. One machine runs at a time. Other
work on this host makes times longer, but changes CPU times little.""",
        epilog=f"NAME is one of: {' '.join(PEERS)}",
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help="compare apply only with this")
    parser.add_argument(
        "--quick", action="store_true", help="one round of a few routes, and no cases"
    )
    parser.add_argument(
        "--docs",
        metavar="FOLDER",
        type=Path,
        help="write the page and its figures into its contributing/",
    )
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in PEERS]:
        parser.error(f"there is no {unknown[0]}; there are: {' '.join(PEERS)}")
    if options.docs and (options.names or options.quick):
        parser.error("the page is of a whole run: --docs takes neither NAME nor --quick")
    return options


def main(arguments: Sequence[str]) -> None:
    """Compare, and print the page."""
    options = parse(arguments)
    if reason := obstacle():
        raise SystemExit(f"./run bench peers: {reason}")
    names = [name for name in PEERS if name in {"apply", *(options.names or PEERS)}]
    record = compare(names, (20,) if options.quick else _SIZES, is_quick=options.quick)
    text = json.dumps(record, indent=1) + "\n"
    if options.docs:
        write_docs(record, text, options.docs / "contributing")
    say(page(record))


def compare(names: Sequence[str], sizes: Sequence[int], *, is_quick: bool) -> Facts:
    """Compare some peers, and return the record from which the page is made."""
    start, load = time.monotonic(), os.getloadavg()[0]
    peers: dict[str, Facts] = {
        name: {"name": PEERS[name].name, "version": "", "error": "", "rounds": [], "cases": {}}
        for name in names
    }
    for number in range(1 if is_quick else _ROUNDS):
        for name in names:
            _measure(name, peers[name], sizes, number)
    for name in [] if is_quick else names:
        # It differs from apply only in what it costs.
        if name != "routes-only" and not peers[name]["error"]:
            peers[name]["cases"] = _observe(name)
    release = ".".join(platform.release().split(".")[:2])
    return {
        "made": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "minutes": round((time.monotonic() - start) / 60, 1),
        "kernel": f"{platform.system()} {release}, {os.cpu_count()} cores",
        "load": [load, os.getloadavg()[0]],
        "sizes": list(sizes),
        "peers": peers,
    }


def _measure(name: str, found: Facts, sizes: Sequence[int], number: int) -> None:
    """Measure a round, unless an earlier one failed or was slow."""
    if found["error"] or found.get("slow"):
        return
    complain(dim(f"measuring {name}, round {number + 1}"))
    start = time.monotonic()
    try:
        with booted(PEERS[name]) as node:
            found["version"] = node.version()
            found["rounds"].append(figures(node, sizes))
    except PeerError as error:
        found["error"] = str(error)
    found["slow"] = time.monotonic() - start > _SLOW_SECONDS


def _observe(name: str) -> dict[str, Facts]:
    """Observe each case on a machine of its own. A case that fails is a result, too."""
    found: dict[str, Facts] = {}
    for case in cases.CASES:
        complain(dim(f"observing {name}, {case.__name__}"))
        try:
            with booted(PEERS[name]) as node:
                found[case.__name__] = case(node)
        except PeerError as error:
            found[case.__name__] = {"failed": str(error)}
    return found
