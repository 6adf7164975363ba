"""Tests that the JSON of any report is what its schema describes."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pytest
from dual_stack import DEFAULT, RIVAL, host
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nightly import by_day
from report_schema import problems
from worlds import Question
from worlds.cut import questions

from hostrouting import (
    Config,
    Host,
    Keep,
    OverlapMode,
    OverlapReport,
    RouteOverlap,
    Snapshot,
    StaticRoute,
    StaticRoutes,
    StaticRule,
    check,
)
from hostrouting.kernel.taking_snapshots import take_snapshot
from hostrouting.model.routes import Protocol
from hostrouting.report import Fix
from hostrouting.testing import FakeKernel


def reports(snapshot: Snapshot, config: Config) -> Iterator[OverlapReport]:
    """Yield the report on a host, and those with a config that lists the fix, or its parts."""
    recorded = Host.recorded(snapshot)
    report = check(config, host=recorded)
    yield report
    fix = report.fix
    for more in ({}, {"routes": fix.routes}, {"rules": fix.rules}, {"keep": fix.keep}):
        listed = fix.entries if not more else StaticRoutes(enabled=True, **more)
        if listed.is_wanted:
            yield check(attrs.evolve(config, static_routes=listed), host=recorded)


@settings(max_examples=by_day(25, by_night=2_000))
@given(
    st.one_of(questions(), questions(by_source=True)),
    st.sampled_from([*OverlapMode]),
    st.booleans(),
)
def test_reports_on_random_hosts_are_valid(
    question: Question, mode: OverlapMode, is_ours: bool
) -> None:
    kernel = FakeKernel()
    world = question.world
    if is_ours:  # what an earlier config has left
        ours = [attrs.evolve(each, protocol=Protocol.HOSTROUTING) for each in world.routes[1:]]
        world = attrs.evolve(world, routes=(*world.routes[:1], *ours))
    world.build(kernel)
    overlap = RouteOverlap(
        question.expected, mode, allowed_devs=question.allowed, foreseen=question.foreseen
    )
    for report in reports(take_snapshot(kernel), Config(route_overlap=overlap)):
        assert problems(report.to_json()) == []


@pytest.mark.parametrize("lines", [(DEFAULT,), (DEFAULT, RIVAL), ()])
def test_reports_on_ipv6_are_valid(lines: tuple[str, ...]) -> None:
    addresses = ["fd00:1::4/64 dev eth0", "fd00:172:16::10/48 dev rail0"]
    config = Config(route_overlap=RouteOverlap(["fd00:172:16::/48", "10.96.0.0/12"]))
    for report in reports(host(*lines, addresses=addresses), config):
        assert problems(report.to_json()) == []


prefixes = st.sampled_from(["172.16.0.0/17", "10.1.0.0/24", "fd00:1::/48"])
routes = st.builds(
    StaticRoute,
    prefixes,
    gateway=st.sampled_from([None, "onlink"]),
    dev=st.sampled_from([None, "eth0"]),
    metric=st.sampled_from([0, 5]),
)
rules = st.builds(StaticRule, prefixes, st.sampled_from([9, 5269]))
keeps = st.builds(
    Keep, st.sampled_from(["ib*", "eth1"]), st.sampled_from([None, "onlink", "172.16.0.1"])
)
ENTRIES = {
    "routes": st.lists(routes, max_size=2, unique_by=lambda each: each.destination).map(tuple),
    "rules": st.lists(rules, max_size=2, unique_by=lambda each: each.to).map(tuple),
    "keep": st.lists(keeps, max_size=2, unique_by=lambda each: each.dev).map(tuple),
}


@given(
    st.builds(Fix, **ENTRIES),
    st.builds(StaticRoutes, st.just(True), **ENTRIES),
)
@example(Fix(), StaticRoutes(True, keep=["ib*"]))
def test_any_entries_are_valid(fix: Fix, unapplied: StaticRoutes) -> None:
    report = check(
        Config(route_overlap=RouteOverlap(["10.96.0.0/12"])),
        host=Host.recorded(take_snapshot(FakeKernel())),
    )
    report = attrs.evolve(report, fix=attrs.evolve(fix, unapplied=unapplied))
    assert problems(report.to_json()) == []
