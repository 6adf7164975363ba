"""Search in a process with namespaces of its own, and collect the results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping

import attrs

from search.moments import Counterexample, Search
from search.pairs import PAIRS, TWO_STEPS
from search.starts import LoadedSystemd
from search.world import AWKS, make_world, namespaces, read_state, use_awk

_OWN = ("--mount", "--net", "--pid", "--uts", "--ipc")


class SearchError(Exception):
    """The search couldn't be completed."""


@attrs.frozen
class Result:
    """The search results for an update.

    Args:
        pair: the update's name.
        states: how many states were checked for each kind of disturbance.
        counterexamples: the counterexamples found.
    """

    pair: str
    states: Mapping[str, int]
    counterexamples: tuple[Counterexample, ...]


def search(pairs: Iterable[str], kinds: Iterable[str], *, most: int | None) -> Iterable[Result]:
    """Search the updates and yield their results in the given order.

    Args:
        pairs: names of the updates to search.
        kinds: the kinds of disturbance to try.
        most: how many disturbances to choose at random for each update, or None for all.

    Raises:
        SearchError: its process couldn't be started or died.
    """
    # Without root, a user namespace is needed too.
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    own = ("unshare", *user, *_OWN, "--fork", "--kill-child", "--mount-proc", "--propagation", "private", "--")
    argv = [*own, sys.executable, "-m", "search.run", namespaces(), json.dumps([[*pairs], [*kinds], most])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                pair, states, found = json.loads(line)
                yield Result(pair, states, tuple(Counterexample(**each) for each in found))
            if process.wait():
                raise SearchError(f"the world of the search has ended with {process.returncode}")
        finally:
            process.kill()


def _search(outside: str, asked: str) -> None:
    """Search in this process's namespaces, and print a line of JSON for each update."""
    make_world(outside)
    LoadedSystemd().reload()
    nothing = read_state()
    pairs, kinds, most = json.loads(asked)
    for turn, name in enumerate(pairs):
        (pair,) = (each for each in (*PAIRS, TWO_STEPS) if each.name == name)
        search = Search.prepare(pair, nothing)
        states, found = Counter[str](), list[Counterexample]()
        for count, (kind, number) in enumerate(search.moments(kinds, most, turn), turn):
            use_awk(AWKS[count % len(AWKS)])
            states[kind.value] += 1
            counterexample = search.examine(kind, number)
            found += [counterexample] if counterexample else []
        sys.stdout.write(f"{json.dumps([name, states, [attrs.asdict(one) for one in found]])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _search(*sys.argv[1:])
