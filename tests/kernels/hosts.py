"""Keep the hosts that tests build on a kernel, so that another kernel's machine can judge their
snapshots.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from pathlib import Path

import phases
from hostrouting import Config
from hostrouting.backend import RouteBackend
from hostrouting.kernel.model import model_of
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.kernel.taking_snapshots import take_snapshot
from hostrouting.model.family import Family
from hostrouting.overlap.check import check_overlap

__all__ = ["VARIABLE", "differences", "keep"]

VARIABLE = "HOSTROUTING_KEEP_HOSTS"
"""The environment variable with the directory for the hosts that ``keep`` keeps."""


def keep(config: Config, backend: RouteBackend) -> None:
    """Write a host's snapshot and its own report to the directory."""
    if folder := os.environ.get(VARIABLE):
        document = {
            "test": os.environ["PYTEST_CURRENT_TEST"],
            "config": config.to_mapping(),
            "snapshot": take_snapshot(backend).to_document(),
            "report": _report(config, backend),
        }
        with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".json", delete=False) as file:
            json.dump(document, file)


def differences(folder: Path) -> tuple[Counter[str], tuple[str, ...]]:
    """Judge the snapshots in a directory.

    Args:
        folder: the directory that ``keep`` has filled.

    Returns:
        How many hosts each file of tests has left, and a text for each one whose snapshot gets
        another report here than the host itself.
    """
    judged, wrong = Counter[str](), []
    for path in folder.iterdir():
        document = json.loads(path.read_text())
        judged[document["test"].partition("::")[0]] += 1
        snapshot = Snapshot.from_document(document["snapshot"])
        here = _report(
            Config.from_mapping(document["config"]), model_of(snapshot.known(Family.IPV4))
        )
        if here != document["report"]:
            wrong.append(f"{json.dumps(document)}\nhere: {json.dumps(here)}")
    return judged, tuple(wrong)


def _report(config: Config, backend: RouteBackend) -> object:
    """Return the report without time and host, and with only the kind of its reason, whose words
    may differ.
    """
    report = check_overlap(config, backend, phases.CancelScope())
    return json.loads(
        json.dumps(report.to_json() | {"time": None, "host": None, "reason": report.reason_kind})
    )
