"""Compare what ``explain`` says of single addresses of random hosts with what the check says."""

from __future__ import annotations

import random

from asking import checked
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nightly import by_day
from worlds import Question
from worlds.cut import questions

import phases
from hostrouting import Config, OverlapReport
from hostrouting.kernel.port import RouteBackend
from hostrouting.model.errors import RouteError
from hostrouting.model.family import IpAddress
from hostrouting.overlap._read import read_host
from hostrouting.overlap.explanation import explain
from hostrouting.report import UnknownReason, Verdict
from hostrouting.testing import FakeKernel

_PROBES_MAX = 12


@settings(
    max_examples=by_day(25, by_night=5000),
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
