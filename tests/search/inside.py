"""Worker process that searches in its own namespaces, using JSON lines on stdin and stdout."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import attrs

from search.moments import Counterexample, Search
from search.pairs import PAIRS, TWO_STEPS
from search.starts import LoadedSystemd
from search.world import AWKS, State, make_world, read_state, use_awk

if TYPE_CHECKING:
    from collections.abc import Collection


def main(outside: str) -> None:
    """Set up the namespaces and process requests until EOF."""
    make_world(outside)
    LoadedSystemd().reload()
    nothing = read_state()
    for line in sys.stdin:
        sys.stdout.write(f"{json.dumps(examine(nothing, **json.loads(line)))}\n")
        sys.stdout.flush()


def examine(nothing: State, pair: str, kinds: Collection[str], most: int | None, turn: int) -> dict[str, Any]:
    """Search an update with each awk in turn, and return the results."""
    (row,) = (each for each in (*PAIRS, TWO_STEPS) if each.name == pair)
    search = Search.prepare(row, nothing)
    states: Counter[str] = Counter()
    found: list[Counterexample] = []
    for count, (kind, number) in enumerate(search.moments(kinds, most, turn), turn):
        use_awk(AWKS[count % len(AWKS)])
        states[kind.value] += 1
        counterexample = search.examine(kind, number)
        found += [counterexample] if counterexample else []
    return {"states": states, "counterexamples": [attrs.asdict(one) for one in found]}


if __name__ == "__main__":
    main(sys.argv[1])
