"""The command line of the search; see ``./run search --help``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter

from hostrouting.cli.output import complain, say
from search.moments import Kind
from search.pairs import PAIRS, TWO_STEPS
from search.run import Result, search

_KINDS = tuple(kind.value for kind in Kind)
_NAMES = tuple(pair.name for pair in PAIRS)
_JOBS = len(os.sched_getaffinity(0))
# How many counterexamples of each update to print.
_SHOWN = 3


def main(arguments: list[str] | None = None) -> int:
    """Run the search, print a table, and return 1 if there are counterexamples."""
    options = parse(arguments)
    pairs = [name for name in (*_NAMES, TWO_STEPS.name) if any(words in name for words in options.pair)]
    start, found = time.monotonic(), []
    say(_row("update", "kind", "states", "counterexamples"))
    for result in search(pairs or _NAMES, options.kind or _KINDS, most=options.most, seed=options.seed, jobs=_JOBS):
        for row in _rows(result):
            say(row)
        found.append(result)
    for result in found:
        for counterexample in result.counterexamples[:_SHOWN]:
            complain(f"\n{counterexample}")
    states = sum(sum(result.states.values()) for result in found)
    number = sum(len(result.counterexamples) for result in found)
    say(f"{states:,} states of {len(found)} updates, {number:,} counterexamples, {time.monotonic() - start:.0f} s")
    return 1 if number else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./run search",
        description="Stops an update from one config to another before each step that others can see, starts the "
        "consumer there, and holds the answer of the gate to what both configs say; likewise after an update that was "
        "killed, cut off by a reboot, or refused by the kernel. In namespaces of its own: this machine's files, units "
        "and routes are never touched. Ends with a table; the exit status is 1 if there is a counterexample.",
    )
    parser.add_argument("--pair", action="append", default=[], help="updates whose names hold these words (all)")
    parser.add_argument("--kind", action="append", default=[], choices=_KINDS, help="what happens (everything)")
    parser.add_argument("--most", type=int, help="moments of each update, drawn by chance (all)")
    parser.add_argument("--seed", type=int, default=1, help="decides about all chance (1)")
    return parser.parse_args(arguments)


def _rows(result: Result) -> list[str]:
    found = Counter(one.kind for one in result.counterexamples)
    return [_row(result.pair, kind, states, found[kind] or "") for kind, states in result.states.items()]


def _row(pair: str, kind: str, states: object, counterexamples: object) -> str:
    return f"{pair:36}{kind:10}{states!s:>8}{counterexamples!s:>17}"


if __name__ == "__main__":
    sys.exit(main())
