"""Twice the host costs a check twice the calls: nothing is walked through for each of many. No time is judged."""

from __future__ import annotations

import cProfile

import pytest
from nightly import by_day

import phases
from benchmarks.recordings import HOSTS
from hostrouting import Config
from hostrouting.kernel.recording import SnapshotBackend
from hostrouting.overlap.check import check_overlap


def calls_of_a_check(name: str, size: int) -> int:
    _, make = HOSTS[name]
    recorded, overlap = make(size)
    backend = SnapshotBackend(recorded)
    profile = cProfile.Profile()
    report = profile.runcall(check_overlap, Config(route_overlap=overlap), backend, phases.CancelScope())
    assert len(report.notes) + len(report.remedy.routes) + len(report.remedy.unmendable) >= size
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.parametrize("name", HOSTS)
def test_a_check_of_a_host_of_twice_the_size_makes_twice_the_calls(name: str) -> None:
    calls_of_a_check(name, 1)  # what is made once, however large the host
    size = by_day(40, by_night=160)
    assert calls_of_a_check(name, 2 * size) < 2.04 * calls_of_a_check(name, size)
