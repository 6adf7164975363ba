"""Compare what ``explain`` says of single addresses of random hosts with what the check says."""

from __future__ import annotations

import random
import re
from ipaddress import IPv4Network

import pytest
from asking import checked
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nightly import by_day
from worlds import Question
from worlds.cut import questions

import phases
from hostrouting import Config, OverlapReport
from hostrouting.kernel.port import RouteBackend, Write, read_routes
from hostrouting.kernel.rules import KERNEL_RULES
from hostrouting.model.errors import RouteError
from hostrouting.model.family import IpAddress
from hostrouting.model.routes import NextHop, Protocol, Route, RouteType, Scope, Table
from hostrouting.model.rules import Rule
from hostrouting.overlap._read import read_host
from hostrouting.overlap.explanation import explain
from hostrouting.report import UnknownReason, Verdict
from hostrouting.testing import FakeKernel

_PROBES_MAX = 12


@settings(
    max_examples=by_day(6, by_night=5000),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(question=st.booleans().flatmap(lambda by_source: questions(by_source=by_source)))
def test_an_address_is_explained_as_the_check_judges_it(question: Question) -> None:
    kernel = FakeKernel()
    question.world.build(kernel)
    config, report = checked(kernel, question.expected, question.allowed, question.foreseen)
    if report.verdict is Verdict.UNKNOWN:
        probes: list[IpAddress] = [cidr[0] for cidr in question.cidrs]
    else:
        moment = read_host(config, kernel, phases.CancelScope())
        probes = [place.probe for place in moment.places]
    chosen = random.Random(len(probes)).sample(probes, min(_PROBES_MAX, len(probes)))
    for probe in chosen:
        _compare(probe, config, kernel, report)


@settings(
    max_examples=by_day(6, by_night=5000),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(question=questions(by_source=True), without=st.lists(st.integers(0, 7), max_size=2))
def test_own_addresses_are_delivered_as_advised(question: Question, without: list[int]) -> None:
    """Table local is asked late, and may lack entries."""
    kernel = FakeKernel()
    question.world.build(kernel)
    if KERNEL_RULES[0] in kernel.facts().rules:
        kernel.del_rule(KERNEL_RULES[0])
        kernel.add_rule(Rule(32000, table=Table.LOCAL))
    entries = [route for route in read_routes(kernel) if route.table == Table.LOCAL]
    gone = [entries[number % len(entries)] for number in without]
    kernel.write(Write.DELETE, [*dict.fromkeys(gone)])
    for _ in range(3 + len(gone)):
        _, report = checked(kernel, question.expected, question.allowed, question.foreseen)
        if report.reason_kind is not UnknownReason.NO_LOCAL_TABLE:
            return
        _follow(report.reason_detail, kernel)
    pytest.fail(str(report.reason))


def _follow(advice: str, kernel: FakeKernel) -> None:
    """Do what a reason without a verdict advises."""
    for preference in re.findall(r"rule add preference (\d+) lookup local", advice):
        kernel.add_rule(Rule(int(preference), table=Table.LOCAL))
    is_behind = "delete each other rule of preference 0" in advice
    for rule in kernel.facts().rules if is_behind else ():
        if rule.preference == 0 and rule.table != Table.LOCAL:
            kernel.del_rule(rule)
            kernel.add_rule(rule)
    for address, dev in re.findall(r"route add local (\S+) dev (\S+) table local", advice):
        entry = Route(
            IPv4Network(address),
            (NextHop(dev),),
            RouteType.LOCAL,
            table=Table.LOCAL,
            protocol=Protocol.KERNEL,
            scope=Scope.HOST,
        )
        assert not kernel.write(Write.ADD, [entry])


def _compare(probe: IpAddress, config: Config, kernel: RouteBackend, report: OverlapReport) -> None:
    try:
        found = explain(probe, config, kernel, phases.CancelScope())
    except RouteError:
        assert report.verdict is Verdict.UNKNOWN
        return
    if report.reason_kind is UnknownReason.NO_LOCAL_TABLE:
        assert (found.is_as_expected, found.not_received) == (None, report.reason_detail)
    elif report.verdict is not Verdict.UNKNOWN:
        parts = [part for finding in report.findings for part in finding.ranges]
        assert found.is_as_expected is not any(probe in part for part in parts), probe
        assert found.not_received is None
