"""Twice the host costs a check twice the calls: nothing is walked through for each of many. No time is judged."""

from __future__ import annotations

import cProfile
from typing import TYPE_CHECKING

import attrs
import pytest
from nightly import by_day

import phases
from benchmarks.recordings import HOSTS
from hostrouting import Config
from hostrouting.kernel.recording import SnapshotBackend
from hostrouting.model.routes import NextHop, Route
from hostrouting.model.rules import Rule
from hostrouting.overlap.check import check_overlap

if TYPE_CHECKING:
    from hostrouting.config.routing import RouteOverlap
    from hostrouting.kernel.snapshot import Snapshot


def tables(count: int) -> tuple[Snapshot, RouteOverlap]:
    """Record a host with policy rules that lead to a table each, with an entry for a part of the CIDR."""
    recorded, overlap = HOSTS["rules"][1](count)
    parts = [rule.destination for rule in recorded.rules if rule.destination is not None]
    rules = [Rule(number, table=1000 + number) for number in range(1, count + 1)]
    hops = (NextHop("ib0"),)
    routes = [Route(part, hops, table=1000 + number) for number, part in enumerate(parts, 1)]
    own, *others = [rule for rule in recorded.rules if rule.destination is None]
    changed = attrs.evolve(recorded, rules=(own, *rules, *others), routes=(*recorded.routes, *routes))
    return changed, overlap


MAKERS = {**{name: make for name, (_, make) in HOSTS.items()}, "tables": tables}


def calls_of_a_check(name: str, size: int) -> int:
    recorded, overlap = MAKERS[name](size)
    backend = SnapshotBackend(recorded)
    profile = cProfile.Profile()
    report = profile.runcall(check_overlap, Config(route_overlap=overlap), backend, phases.CancelScope())
    assert len(report.notes) + len(report.remedy.routes) + len(report.remedy.unmendable) >= size
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.parametrize("name", MAKERS)
def test_a_check_of_a_host_of_twice_the_size_makes_twice_the_calls(name: str) -> None:
    calls_of_a_check(name, 1)  # what is made once, however large the host
    size = by_day(40, by_night=160)
    assert calls_of_a_check(name, 2 * size) < 2.04 * calls_of_a_check(name, size)
