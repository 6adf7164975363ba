"""Compare the reports on random hosts with the kernel and with sockets, and test that the
comparison finds mistakes.
"""

from __future__ import annotations

from collections.abc import Collection

import attrs
import pytest
from audit import examine
from audit.examine import Audit, HostAudit
from audit.plans import PlanAudit
from audit.sockets import SocketAudit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from leaving import Leaving, seen_leaving
from nightly import IS_NIGHTLY, by_day
from node import SHADOWED, lines, nics
from worlds import Question, World
from worlds.cut import questions
from worlds.features import SEEN_FEATURES, with_features
from worlds.hosts import FEATURES, Host, connected, hosts, section
from worlds.ipv6 import moved_and_back, world
from worlds.seldom import A_SOURCE_A_HOP, CHOSEN_BY_AN_EXPECTED_ROUTE, TCP_ONLY_CHOOSES

from hostrouting import ExpectedCidr, OverlapReport, Verdict
from hostrouting.model.family import Family

pytestmark = pytest.mark.kernel

ADDRESSES = by_day(32, by_night=1024)
SEEDS = st.integers(0, 2**32 - 1)
FOR_SOCKETS = st.builds(with_features, questions(by_source=True), st.randoms(use_true_random=True))
# For each kind of host: the comparison, the hosts, how many there are by day and by night, how many
# addresses are compared, and the features that the hosts of a night have.
KINDS = {
    "plain": (HostAudit, hosts(), (2, 3000), ADDRESSES, FEATURES[Family.IPV4]),
    "sockets": (SocketAudit, FOR_SOCKETS, (1, 2000), 16, SEEN_FEATURES),
    "ipv6": (
        SocketAudit,
        SEEDS.map(world),
        (1, 2000),
        by_day(16, by_night=40),
        FEATURES[Family.IPV6],
    ),
    "plans": (PlanAudit, hosts(), (1, 500), ADDRESSES, ()),
    "ipv6 plans": (PlanAudit, SEEDS.map(world), (1, 500), ADDRESSES, ()),
}


@pytest.mark.timeout(by_day(300, by_night=7200))
@pytest.mark.parametrize(
    ("kind", "strategy", "count", "addresses", "features"), KINDS.values(), ids=KINDS
)
def test_every_report_on_a_random_host_is_right(
    kind: type[Audit],
    strategy: SearchStrategy[Host],
    count: tuple[int, int],
    addresses: int,
    features: Collection[str],
) -> None:
    """The snapshots and the boot script say the same, and nothing fails after the fix."""
    drawn, fixes = set[str](), 0

    @settings(
        max_examples=by_day(count[0], by_night=count[1]), suppress_health_check=[*HealthCheck]
    )
    @given(strategy)
    def compare(host: Host) -> None:
        nonlocal fixes
        drawn.update(host.features)
        audit = kind(host, addresses)
        audit.run()
        fixes += audit.fixes if isinstance(audit, SocketAudit) else 0
        assert not audit.mistakes, "\n".join(
            (*audit.mistakes, *host.steps, *host.cycle, str(host.hostrouting))
        )

    compare()
    assert not IS_NIGHTLY or [each for each in features if drawn.isdisjoint(each.split("|"))] == []
    assert not IS_NIGHTLY or fixes or kind is not SocketAudit


# --- rare hosts -----------------------------------------------------------------------------------

_ADDRESSES = """
    ip address add 2001:db8:1::4/64 dev eth0 nodad
    ip address add fd00:172:16:7::9/64 dev ib0 nodad
    ip -6 route add default via fe80::1 dev eth0
"""
_SELDOM = {
    "an anycast route that a program added": """
        ip -6 route add anycast fd00:172:16:8000::/64 dev ib0 table local
    """,
    "an anycast route to lo of table main, which comes before table local": """
        ip -6 route add anycast fd00:172:16:8000::/64 dev lo table main
        ip -6 rule add lookup local pref 32767
        ip -6 rule del pref 0
    """,
    "a local route of table main after a rule": """
        ip -6 route add local fd00:172:16:ff::/72 dev lo table main
        ip -6 route add prohibit fd00:172:16::/48 table 100
        ip -6 rule add from fd00:172:16:7::/64 lookup 100 pref 15
    """,
    "the rule of table main deleted before any other was added": "ip -6 rule del pref 32766",
    "sources of the outgoing interface alone": """
        sysctl -qw net.ipv6.conf.eth0.use_oif_addrs_only=1
        ip -6 route add default via fe80::2 dev ib0 table 100
        ip -6 rule add from 2001:db8:1::/64 lookup 100 pref 15
        ip address change 2001:db8:1::4/64 dev eth0 preferred_lft 0
    """,
    "labels of a part of a CIDR": """
        ip address add 2001:db8:2::4/64 dev eth0 nodad
        ip -6 route add default via fe80::2 dev ib0 table 100
        ip -6 rule add from 2001:db8:1::/64 lookup 100 pref 15
        ip addrlabel add prefix 2001:db8:1::/64 label 99
        ip addrlabel add prefix fd00:172:16:4000::/52 label 99
    """,
    "an IPv4-mapped source": """
        ip address add ::ffff:10.1.0.4/96 dev eth0 nodad
        ip address del 2001:db8:1::4/64 dev eth0
        ip -6 rule add from fd00:172:16:7::/64 lookup 100 pref 15
        ip -6 route add unreachable fd00:172:16:8000::/49
    """,
    "no labels": """
        ip address add fd00:172:16:4000::4/64 dev eth0 nodad
        ip -6 route add default via fe80::2 dev ib0 table 100
        ip -6 rule add from fd00:172:16:4000::/64 lookup 100 pref 15
        ip addrlabel flush
    """,
    "an interface that was in another namespace": f"""
        {moved_and_back("eth0")}
        ip address add 2001:db8:1::4/64 dev eth0 nodad
        ip address add 2001:db8:2::4/64 dev ib0 nodad
        ip -6 route add default from 2001:db8:1::/64 via fe80::1 dev eth0
        ip -6 route add default from 2001:db8:2::/64 via fe80::2 dev ib0
        ip -6 route add default from fd00:172:16:7::/64 via fe80::2 dev ib0
    """,
    "halves of all sources": """
        ip -6 route add fd00:172:16:8000::/49 from ::/1 via fe80::2 dev ib0
        ip -6 route add 2001:db8:8000::/33 from 8000::/1 via fe80::2 dev ib0
    """,
    "temporary addresses that an interface would prefer": """
        sysctl -qw net.ipv6.conf.eth0.use_tempaddr=2
        ip address add 2001:db8:2::4/64 dev ib0 nodad
        ip -6 route add default via fe80::2 dev ib0 table 100
        ip -6 rule add from 2001:db8:1::/64 lookup 100 pref 15
        ip -6 rule add not from 2001:db8::/32 unreachable pref 16
    """,
    "temporary addresses that an interface would prefer, for packets that an entry discards": """
        sysctl -qw net.ipv6.conf.eth0.use_tempaddr=2
        ip address add fd00:172:16:ff::4/64 dev eth0 nodad
        ip -6 route add throw fd00:172:16:8000::/49
        ip -6 route add default via fe80::2 dev ib0 table 100
        ip -6 rule add from fd00:172:16:ff::/64 lookup 100 pref 15
    """,
    "a CNI's own block, which only TCP meets": """
        ip -6 route add unreachable fd00:172:16:8000::/49
        ip -6 route add fd00:172:16:8000::7/128 dev cali1
        ip -6 route add 2001:db8:7::/64 dev cali1
        ip -6 route add default via fe80::2 dev ib0 table 100
        ip -6 rule add ipproto udp lookup 100 pref 15
    """,
    "a TCP connection that fails once it has a source, and whose replies are lost": """
        ip -6 route add unreachable default table 100
        ip -6 rule add not from 2001:db8::/32 ipproto tcp lookup main pref 11
        ip -6 rule add from 2001:db8::/32 lookup 100 pref 22
        ip -6 rule add lookup local pref 40
        ip -6 rule del pref 0
    """,
    "a failing lookup for TCP only, repeated with another source": """
        ip -6 route add default via fe80::2 dev ib0 table 100
        ip -6 route add blackhole fd00:172:16::/52 table 101
        ip -6 route add default via fe80::1 dev eth0 table 102
        ip -6 rule add from 2001:db8:1::/64 lookup 102 pref 13
        ip -6 rule add from fd00:172:16:7::/64 lookup 100 pref 14
        ip -6 rule add ipproto tcp lookup 101 pref 15
    """,
    "a rule for all source ports, behind a route that the fix replaces": """
        ip -6 route add prohibit fd00:172:16::/64
        ip -6 rule add from 2001:db8:9::/64 lookup main pref 10
        ip -6 rule add sport 1-65534 prohibit pref 21
    """,
}


@pytest.mark.parametrize(
    "question", [CHOSEN_BY_AN_EXPECTED_ROUTE, TCP_ONLY_CHOOSES, A_SOURCE_A_HOP]
)
def test_rare_sources(question: Question) -> None:
    audited = HostAudit(connected(question), ADDRESSES)
    audited.run()
    assert not audited.mistakes


@pytest.mark.parametrize("name", _SELDOM)
def test_rare_hosts(name: str) -> None:
    devs = ("eth0", "ib0", "cali1") if "cali1" in _SELDOM[name] else ("eth0", "ib0")
    steps = lines(nics(*devs), _ADDRESSES, _SELDOM[name])
    expected = ["fd00:172:16::/48", "2001:db8::/32", {"cidr": "2001:db8::/32", "devs": ["eth0"]}]
    config = {"routeOverlap": {"expectedCidrs": expected}, "uplinks": ["eth0"]}
    audited = SocketAudit(Host(steps, config, Family.IPV6), by_day(8, by_night=40))
    audited.run()
    assert not audited.mistakes


# --- the audit itself -----------------------------------------------------------------------------


def _without_findings(report: OverlapReport) -> OverlapReport:
    return attrs.evolve(report, findings=())


def _judged_ok(report: OverlapReport | str) -> OverlapReport | str:
    return (
        report if isinstance(report, str) else attrs.evolve(report, findings=(), verdict=Verdict.OK)
    )


def shadowed(family: Family, *, connects: bool = False) -> Host:
    """Return a host whose ib0 shadows the expected CIDR."""
    if family is Family.IPV6:
        return Host(lines(SHADOWED), {"routeOverlap": {"expectedCidrs": ["fd00:16::/47"]}}, family)
    expected = (ExpectedCidr("172.16.0.0/15"),)
    return Host(
        lines(SHADOWED),
        section(expected),
        connecting=Question(World((), ()), expected) if connects else None,
    )


AUDITS: list[tuple[type[Audit], Family]] = [
    (HostAudit, Family.IPV4),
    (SocketAudit, Family.IPV4),
    (SocketAudit, Family.IPV6),
]


@pytest.mark.parametrize(("kind", "family"), AUDITS)
def test_wrong_reports_are_found(
    kind: type[Audit], family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, on_snapshots = Audit._live, Audit._on_snapshots
    monkeypatch.setattr(Audit, "_live", lambda self: _without_findings(live(self)))
    monkeypatch.setattr(
        Audit,
        "_on_snapshots",
        lambda self: ((way, _judged_ok(it)) for way, it in on_snapshots(self)),
    )
    monkeypatch.setattr(
        examine,
        "booted",
        lambda *_: ["NO-ROUTE: expected CIDR 172.16.0.0/15 (probe 172.16.0.0) has"],
    )
    monkeypatch.setattr(
        examine,
        "seen_leaving",
        lambda *given, **how: dict.fromkeys(seen_leaving(*given, **how), frozenset({"ib9"})),
    )
    monkeypatch.setattr(examine, "_ends_of", lambda *_, **__: {"ib9"})
    monkeypatch.setattr(Leaving, "_accept", lambda *_: None)
    audit = kind(shadowed(family, connects=kind is HostAudit), 16)
    audit.run()
    found = {"live", "snapshot", "boot"} | ({"ip"} if family is Family.IPV4 else set())
    found |= {"sockets", "explanation"} if kind is HostAudit else {"replies"}
    found |= {"rp_filter"} if (kind, family) == (SocketAudit, Family.IPV4) else set()
    assert {mistake.partition(":")[0] for mistake in audit.mistakes} - {"fix"} == found


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("has_effect", [True, False])
def test_a_fix_without_effect_is_found(
    family: Family, has_effect: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_effect:
        monkeypatch.setattr(SocketAudit, "_install", lambda *_: "")
    audit = SocketAudit(shadowed(family), 16)
    audit.run()
    assert audit.fixes == 1
    assert {mistake.partition(":")[0] for mistake in audit.mistakes} == (
        set() if has_effect else {"fix"}
    )


def test_an_unknown_verdict_is_wrong_with_a_complete_snapshot() -> None:
    audit = HostAudit(shadowed(Family.IPV4), 16)
    audit._doubt("snapshot", "check-failed: planted")
    assert audit.mistakes == ["snapshot: the verdict is unknown: check-failed: planted"]
