"""Several worlds at once, and what the search finds in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING

import attrs

from search.moments import Counterexample
from search.world import namespaces

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_OWN = ("--mount", "--net", "--pid", "--uts", "--ipc")
_SHUT_SECONDS = 30


class SearchError(Exception):
    """A search that couldn't be made."""


@attrs.frozen
class Result:
    """The results for one update.

    Args:
        pair: the update's name.
        states: how many moments were examined, by disturbance.
        counterexamples: the moments that break the promise.
    """

    pair: str
    states: Mapping[str, int]
    counterexamples: tuple[Counterexample, ...]


def search(
    pairs: Iterable[str],
    kinds: Iterable[str],
    *,
    most: int | None,
    seed: int = 1,
    jobs: int = 1,
    awk: str | None = None,
) -> Iterable[Result]:
    """Search in updates, and yield the results of each, in their order.

    Args:
        pairs: the names of the updates.
        kinds: the disturbances.
        most: how many moments of each are drawn; None: all.
        seed: determines all random choices.
        jobs: how many worlds there are at once.
        awk: the scripts' awk; None: the awks take turns.

    Raises:
        SearchError: a world can't be made, or has ended too early.
    """
    worlds: SimpleQueue[_World] = SimpleQueue()
    made = [_World() for _ in range(jobs)]
    for world in made:
        worlds.put(world)

    def ask(turn: int, pair: str) -> Result:
        world = worlds.get()
        try:
            return world.ask({"pair": pair, "kinds": [*kinds], "most": most, "turn": turn, "seed": seed, "awk": awk})
        finally:
            worlds.put(world)

    try:
        with ThreadPoolExecutor(jobs) as pool:
            asked = [pool.submit(ask, turn, pair) for turn, pair in enumerate(pairs)]
            try:
                for one in asked:
                    yield one.result()
            finally:
                pool.shutdown(cancel_futures=True)
    finally:
        for world in made:
            world.close()


class _World:
    """A process in its own namespaces, which ends when its input does."""

    def __init__(self) -> None:
        # Without root, a user namespace comes first, and this process is in it.
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
