"""Tests that after any events, the watcher's table, verdict and metrics are right and each problem is reported once."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from contextlib import suppress
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import attrs
from backends import RecordingBackend
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import by_day
from node import build_links

from hostrouting import Config, ExpectedCidr, Host, Layout, RouteError, RouteOverlap, StaticRoute, StaticRoutes
from hostrouting.config.routing import OverlapMode
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route, Table
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.findings import Finding, FindingKind, OverlapReport, UnknownReason, Verdict
from hostrouting.testing import FakeKernel, FakeSystemd
from hostrouting.watch._events import Event, EventKind, of_failures, of_problems, status
from hostrouting.watch._repair import Failures, Repair, plan_repair
from hostrouting.watch.loop import WatchHostRouting
from phases import Cancelled, CancelScope
from phases.testing import FakeClock

CIDRS = tuple(map(IPv4Network, ("10.96.0.0/12", "172.16.0.0/16", "192.168.0.0/24")))
findings = st.builds(
    lambda kind, cidr, dev: Finding(kind, cidr, cidr[1], (dev,), ("eth0",), (cidr,), None, (cidr,)),
    st.sampled_from(FindingKind),
    st.sampled_from(CIDRS),
    st.sampled_from(["ib0", "ib1"]),
)
judged = st.lists(findings, max_size=3, unique_by=lambda item: (item.kind, item.cidr, item.devs)).map(
    lambda items: OverlapReport(
        Verdict.OVERLAP if items else Verdict.OK,
        OverlapMode.WARN,
        "2026-01-01T00:00:00Z",
        "node-7",
        ("eth0",),
        tuple(items),
        expected=tuple(map(ExpectedCidr, CIDRS)),
    )
)
unknown = st.sampled_from([(UnknownReason.NO_DEFAULT_ROUTE, ""), (UnknownReason.CHECK_FAILED, "no memory")]).map(
    lambda reason: OverlapReport(
        Verdict.UNKNOWN,
        OverlapMode.WARN,
        "2026-01-01T00:00:00Z",
        "node-7",
        reason_kind=reason[0],
        reason_detail=reason[1],
        expected=tuple(map(ExpectedCidr, CIDRS)),
    )
)
reports = st.one_of(judged, judged, unknown)


@given(st.lists(reports))
def test_open_problems_are_the_current_failures(seen: list[OverlapReport]) -> None:
    before: OverlapReport | None = None
    said: list[str] = []
    for report in seen:
        now = report
        if before is not None and report.verdict is Verdict.UNKNOWN:
            now = attrs.evolve(report, findings=before.findings)
        for event in of_failures(before, now, ()):
            if event.kind is EventKind.FAILURE:
                (message,) = {each.message for each in now.findings if event.message.startswith(f"{each.message}; ")}
                said.append(message)
            elif event.kind is EventKind.FAILURE_GONE:
                said.remove(event.message.removeprefix("no longer so: "))
        assert sorted(said) == sorted(finding.message for finding in now.findings)
        assert list(of_failures(now, now, ())) == []
        assert "\n" not in status(now, Repair(), ())
        before = now


@given(st.lists(st.lists(st.sampled_from(["ib9 is missing", "the disk is full"]), unique=True)))
def test_a_problem_and_its_end_are_reported_once(seen: list[list[str]]) -> None:
    before: list[str] = []
    for now in seen:
        events = list(of_problems(before, now))
        assert [event.message for event in events if event.kind is EventKind.PROBLEM] == [
            each for each in now if each not in before
        ]
        assert any(event.kind is EventKind.PROBLEM_OVER for event in events) == bool(before and not now)
        before = now


@given(st.lists(st.tuples(st.floats(0, 1000), st.integers(0, 3))))
def test_a_backoff_never_shrinks_and_ends_in_time(failures: list[tuple[float, int]]) -> None:
    now, counted = 0.0, defaultdict[int, Failures](Failures)
    for seconds, key in failures:
        now += seconds
        before = counted[key]
        counted[key] = item = before.again(now)
        assert (item.count >= 3) == (item.wait_seconds > 0)
        assert now <= item.due <= now + 300
        if item.count > before.count:
            assert item.wait_seconds >= before.wait_seconds
        assert item.again(now + 10_000).count == 1


# --- the whole watcher ---------------------------------------------------------------------------------------------

GATEWAYS = [IPv4Address("10.1.0.1"), IPv4Address("10.1.0.254")]
WANTED = [IPv4Network("172.16.1.0/24"), IPv4Network("172.16.2.0/24")]
CONFIG = Config(
    StaticRoutes(True, [StaticRoute(WANTED[0]), StaticRoute(WANTED[1], gateway=str(GATEWAYS[1]))]),
    RouteOverlap(["172.16.0.0/22", "192.168.0.0/24"]),
)


def defaults(gateway: IPv4Address) -> Route:
    return Route(DEFAULT_DESTINATION, (NextHop("eth0", gateway),), protocol=Protocol.DHCP)


def theirs(destination: IPv4Network) -> Route:
    return Route(destination, (NextHop("ib0"),), protocol=Protocol.STATIC)


def put(kernel: FakeKernel, route: Route) -> object:
    return kernel.replace([route])


def take(kernel: FakeKernel, destination: IPv4Network) -> object:
    return kernel.delete([route for route in kernel.routes(Table.MAIN) if route.destination == destination])


def set_link(kernel: FakeKernel, dev: str, is_up: bool) -> None:
    kernel.set_link(dev, up=is_up)


def set_address(kernel: FakeKernel, is_there: bool) -> None:
    with suppress(RouteError):
        (kernel.add_address if is_there else kernel.del_address)("ib0", "192.168.0.1/24")


happenings = st.one_of(
    st.builds(lambda gateway: (put, defaults(gateway)), st.sampled_from(GATEWAYS)),
    st.builds(lambda to: (take, to), st.sampled_from([DEFAULT_DESTINATION, *WANTED, *WANTED])),
    st.builds(lambda to: (put, theirs(to)), st.sampled_from(WANTED)),
    st.builds(lambda to: (put, Route(to, (NextHop("ib0"),))), st.sampled_from(WANTED)),
    st.builds(lambda dev, is_up: (set_link, dev, is_up), st.sampled_from(["eth0", "ib0"]), st.booleans()),
    st.builds(lambda is_there: (set_address, is_there), st.booleans()),
)


@settings(max_examples=by_day(6, by_night=1500))
@given(st.lists(st.tuples(st.floats(0, 30), happenings), max_size=12))
def test_any_story_ends_as_configured_with_few_looks(story: list[tuple[float, tuple[Any, ...]]]) -> None:
    kernel, clock = FakeKernel(), FakeClock()
    build_links(kernel)
    kernel.add([defaults(GATEWAYS[0])])
    now = 1.0
    for seconds, (change, *arguments) in story:
        now += seconds
        clock.call_at(now, partial(change, kernel, *arguments))
    scope = CancelScope(clock=clock)
    clock.call_at(now + 700, lambda: scope.cancel("the story ends"))
    backend = RecordingBackend(kernel)
    said: list[Event] = []
    with tempfile.TemporaryDirectory() as root:
        host = Host(routes=backend, units=FakeSystemd(), layout=Layout(root))
        with suppress(Cancelled):
            WatchHostRouting(lambda: CONFIG, host, said.append, lambda line: None).do(scope)
        report = check_overlap(CONFIG, host.routes, CancelScope())
        assert json.loads(host.layout.report.read_text()) | {"time": ""} == report.to_json() | {"time": ""}
        assert host.layout.marker_ok.exists() == (report.verdict is Verdict.OK)
    assert not plan_repair(CONFIG, kernel)[0].changes
    assert all(route.is_ours for _, route in backend.written)
    problems = sum(event.kind is EventKind.PROBLEM for event in said)
    assert problems <= len(story) + 1
    assert len(backend.written) <= 8 * (len(story) + 1)


# --- the exposition format -----------------------------------------------------------------------------------------
