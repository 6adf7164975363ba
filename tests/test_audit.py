"""Compare the reports on random hosts with the kernel and with sockets, and test that the comparison finds mistakes."""

from __future__ import annotations

from collections.abc import Collection

import attrs
import pytest
from audit import examine, sockets
from audit.events import EventAudit, hosts_for_events
from audit.examine import Audit, HostAudit
from audit.features import SEEN_FEATURES, with_features
from audit.hosts import FEATURES, Audited, hosts
from audit.sockets import SocketAudit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from leaving import seen_leaving
from nightly import IS_NIGHTLY, by_day
from node import nics
from worlds import Question, World
from worlds.cut import questions
from worlds.ipv6 import World6

from hostrouting import ExpectedCidr, OverlapReport, Verdict
from hostrouting.model.family import Family

pytestmark = pytest.mark.kernel

ADDRESSES = by_day(32, by_night=1024)
FOR_SOCKETS = st.builds(with_features, questions(by_source=True), st.randoms(use_true_random=True))
# For each kind of host: the comparison, the hosts, how many there are by day and by night, how many addresses are
# compared, and the features that the hosts of a night have.
KINDS = {
    "plain": (HostAudit, hosts(), (3, 2000), ADDRESSES, FEATURES),
    "sockets": (SocketAudit, FOR_SOCKETS, (3, 2000), 16, SEEN_FEATURES),
    "events": (EventAudit, hosts_for_events(), (1, 300), ADDRESSES, ()),
}


@pytest.mark.timeout(by_day(120, by_night=7200))
@pytest.mark.parametrize(("kind", "strategy", "count", "addresses", "features"), KINDS.values(), ids=KINDS)
def test_every_report_on_a_random_host_is_right(
    kind: type[Audit],
    strategy: SearchStrategy[Audited],
    count: tuple[int, int],
    addresses: int,
    features: Collection[str],
) -> None:
    """``tests/kernel/test_ipv6_worlds.py`` does the same with IPv6 hosts."""
    drawn: set[str] = set()

    @settings(max_examples=by_day(count[0], by_night=count[1]), suppress_health_check=[*HealthCheck])
    @given(strategy)
    def compare(host: Audited) -> None:
        drawn.update(host.features)
        audit = kind(host, addresses)
        audit.run()
        assert not audit.mistakes, "\n".join((*audit.mistakes, *host.steps, *host.cycle, str(host.hostrouting)))

    compare()
    assert not IS_NIGHTLY or {*features} <= drawn


def _without_findings(report: OverlapReport) -> OverlapReport:
    return attrs.evolve(report, findings=())


def _judged_ok(report: OverlapReport | str) -> OverlapReport | str:
    return report if isinstance(report, str) else attrs.evolve(report, findings=(), verdict=Verdict.OK)


SHADOWED = """
    ip address add 10.1.0.4/24 dev eth0
    ip address add 172.16.0.10/16 dev ib0
    ip route add default via 10.1.0.1 dev eth0
"""
SHADOWED6 = """
    ip address add 2001:db8:1::4/64 dev eth0 nodad
    ip address add fd00:172:16:7::9/64 dev ib0 nodad
    ip -6 route add default via fe80::1 dev eth0
"""


def shadowed(kind: type[Audit], family: Family) -> Audit:
    """Return an audit of a host whose ib0 shadows the expected CIDR."""
    lines = (SHADOWED if family is Family.IPV4 else SHADOWED6).splitlines()
    steps = (*nics("eth0", "ib0"), *filter(None, map(str.strip, lines)))
    if family is Family.IPV6:
        return kind(World6(1, steps, {"routeOverlap": {"expectedCidrs": ["fd00:172:16::/48"]}}), 16)
    expected = (ExpectedCidr("172.16.0.0/15"),)
    question = Question(World((), ()), expected) if kind is HostAudit else None
    return kind(Audited(steps, expected, connecting=question), 16)


AUDITS = [(HostAudit, Family.IPV4), (SocketAudit, Family.IPV4), (SocketAudit, Family.IPV6)]


@pytest.mark.parametrize(("kind", "family"), AUDITS)
def test_wrong_reports_are_found(kind: type[Audit], family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    live, on_snapshots = Audit._live, Audit._on_snapshots
    monkeypatch.setattr(Audit, "_live", lambda self: _without_findings(live(self)))
    monkeypatch.setattr(Audit, "_on_snapshots", lambda self: ((way, _judged_ok(it)) for way, it in on_snapshots(self)))
    monkeypatch.setattr(examine, "booted", lambda *_: [])
    monkeypatch.setattr(sockets, "booted", lambda *_: ["NO-ROUTE: expected CIDR 172.16.0.0/15 (probe 172.16.0.0) has"])
    monkeypatch.setattr(
        examine, "seen_leaving", lambda *given, **how: dict.fromkeys(seen_leaving(*given, **how), frozenset({"ib9"}))
    )
    audit = shadowed(kind, family)
    audit.run()
    found = {"live", "snapshot"} | ({"ip", "boot"} if family is Family.IPV4 else set())
    found |= {"sockets"} if kind is HostAudit else set()
    assert {mistake.partition(":")[0] for mistake in audit.mistakes} - {"fix"} == found


@pytest.mark.parametrize(("kind", "family"), AUDITS)
@pytest.mark.parametrize("has_effect", [True, False])
def test_a_fix_without_effect_is_found(
    kind: type[Audit], family: Family, has_effect: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_effect:
        monkeypatch.setattr(kind, "_install", lambda *_: "")
    audit = shadowed(kind, family)
    audit.run()
    assert audit.fixes == 1
    assert {mistake.partition(":")[0] for mistake in audit.mistakes} == (set() if has_effect else {"fix"})


def test_an_unknown_verdict_is_wrong_with_a_complete_snapshot() -> None:
    audit = shadowed(HostAudit, Family.IPV4)
    audit._doubt("snapshot", "check-failed: planted")
    assert audit.mistakes == ["snapshot: the verdict is unknown: check-failed: planted"]
