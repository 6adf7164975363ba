"""Run searches in a worker process and collect the results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import attrs

from search.moments import Counterexample
from search.world import namespaces

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_OWN = ("--mount", "--net", "--pid", "--uts", "--ipc")
_SHUT_SECONDS = 30


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
        SearchError: the worker process couldn't be started or died.
    """
    world = _World()
    try:
        for turn, pair in enumerate(pairs):
            yield world.ask({"pair": pair, "kinds": [*kinds], "most": most, "turn": turn})
    finally:
        world.close()


class _World:
    """A worker process in new namespaces that exits on EOF."""

    def __init__(self) -> None:
        # Without root, a user namespace is needed too.
        user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
        own = ("unshare", *user, *_OWN, "--fork", "--kill-child", "--mount-proc", "--propagation", "private", "--")
        self._process = subprocess.Popen(
            [*own, sys.executable, "-m", "search.inside", namespaces()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )  # fmt: skip

    def ask(self, question: dict[str, object]) -> Result:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(question)}\n")
        self._process.stdin.flush()
        line, pair = self._process.stdout.readline(), str(question["pair"])
        if not line:
            raise SearchError(f"the world in which {pair} was searched has ended with {self._process.wait()}")
        found = json.loads(line)
        return Result(pair, found["states"], tuple(Counterexample(**each) for each in found["counterexamples"]))

    def close(self) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(_SHUT_SECONDS)
            finally:
                self._process.kill()
