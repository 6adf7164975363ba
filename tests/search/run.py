"""Search on a temporary host, and collect the results."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from command_line import on_a_host
from scripts import AWKS

from search.moments import Search
from search.pairs import PAIRS, TWO_STEPS
from search.programs import LoadedSystemd
from search.world import make_world, read_state, use_awk

# Processes that a search leaves running end with its PID namespace.
_PROGRAM = 'exec unshare --pid --fork --kill-child --mount-proc "$PYTHON" -m search.run "$@"'


def search(
    folder: Path, pairs: Iterable[str], kinds: Iterable[str], *, most: int | None, at: str = ""
) -> tuple[int, list[str]]:
    """Search the updates, and return how many states were checked, and the counterexamples.

    Args:
        folder: an empty folder for the temporary host.
        pairs: names of the updates to search.
        kinds: the kinds of disturbance to try.
        most: how many disturbances to choose at random for each update, or None for all.
        at: if all are asked for, a part of the steps that they precede.
    """
    packages = os.pathsep.join(path for path in sys.path if path)
    done = on_a_host(
        folder, _PROGRAM, json.dumps([[*pairs], [*kinds], most, at]), PYTHONPATH=packages
    )
    if f"it can't be traced: [Errno {errno.EIO}]" in done.stderr:
        pytest.skip("this kernel was built without PTRACE_GET_SYSCALL_INFO")
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    return sum(states for states, _ in results), [one for _, found in results for one in found]


def _search(asked: str) -> None:
    """Search on this host, and print a line of JSON for each update."""
    make_world()
    LoadedSystemd().reload()
    nothing = read_state()
    pairs, kinds, most, at = json.loads(asked)
    for turn, name in enumerate(pairs):
        (pair,) = (each for each in (*PAIRS, TWO_STEPS) if each.name == name)
        search = Search.prepare(pair, nothing)
        moments, found = search.moments(kinds, most, turn, at), list[str]()
        for count, (kind, number) in enumerate(moments, turn):
            use_awk(AWKS[count % len(AWKS)])
            found += filter(None, [search.examine(kind, number)])
        sys.stdout.write(f"{json.dumps([len(moments), found])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _search(*sys.argv[1:])
