"""Read a run's results for each file of tests, and record them for the page that ``./run docs``
makes.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

__all__ = ["MACHINES", "RECORD", "Results", "record", "record_machine", "results_of", "total"]

_FOLDER = Path(__file__).parents[2] / "docs/contributing"
RECORD, MACHINES = _FOLDER / "kernels.json", _FOLDER / "machines.json"

Results = dict[str, dict[str, Any]]
"""For each file of tests, the JSON object that is recorded."""


def results_of(junit: Path, snapshots: Mapping[str, int]) -> Results:
    """Return the results in a JUnit file.

    Args:
        junit: the file.
        snapshots: how many snapshots of each file's hosts were judged.
    """
    found: Results = {}
    for case in ElementTree.parse(junit).iter("testcase"):
        # The attribute "file" of a state machine's tests is that of Hypothesis.
        folders, module = re.findall(r"^(.*\.)?(test_\w+)", case.get("classname", ""))[0]
        name = f"{folders.replace('.', '/')}{module}.py"
        empty = {"passed": 0, "failed": 0, "skipped": Counter[str](), "seconds": 0.0}
        of_file = found.setdefault(
            name, {"date": time.strftime("%Y-%m-%d"), "snapshots": snapshots.get(name, 0), **empty}
        )
        of_file["seconds"] += float(case.get("time", 0))
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            of_file["failed"] += 1
        elif skip is not None:
            of_file["skipped"][skip.get("message", "")] += 1
        else:
            of_file["passed"] += 1
    for of_file in found.values():
        of_file["seconds"] = round(of_file["seconds"])
    return found


def total(results: Results) -> str:
    """Return the numbers of tests in words."""
    passed, failed = (
        sum(of_file[key] for of_file in results.values()) for key in ("passed", "failed")
    )
    skipped = sum(sum(of_file["skipped"].values()) for of_file in results.values())
    return f"{passed} passed, {failed} failed, {skipped} skipped"


def record(suite: str, release: str, results: Results, *, is_whole: bool) -> None:
    """Write a run's results to the record.

    Those of other files remain unless the run was a whole one.

    Args:
        suite: Debian's release.
        release: the kernel's release. Results of another one are dropped.
        results: the results.
        is_whole: whether all of the tests ran.
    """
    known = _read(RECORD)
    before = known.get(suite, {})
    others = {} if is_whole or before.get("release") != release else before["files"]
    _write(RECORD, known | {suite: {"release": release, "files": others | results}})


def record_machine(suite: str, versions: Mapping[str, str], cuts: Mapping[str, int]) -> None:
    """Write down that a machine has passed its tests.

    Args:
        suite: Debian's release.
        versions: the versions of its programs.
        cuts: how often its power was cut during each action.
    """
    row = {**versions, "date": time.strftime("%Y-%m-%d"), "cuts": {**cuts}}
    _write(MACHINES, _read(MACHINES) | {suite: row})


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def _write(path: Path, known: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
