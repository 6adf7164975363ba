"""Whatever connects is looked up again, from the source that the first look-up chose; both have to go right."""

from __future__ import annotations

import cProfile
from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING, Any

import attrs
import pytest

import phases
from hostrouting import Config
from hostrouting.kernel.memory import FakeKernel
from hostrouting.kernel.recording import SnapshotBackend, take_snapshot
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route, RouteType, Table
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.findings import FindingKind, NoteKind

if TYPE_CHECKING:
    from hostrouting.kernel.port import RouteBackend
    from hostrouting.overlap.findings import OverlapReport

CIDR = "172.16.0.0/16"
E0, E1 = IPv4Address("10.1.0.4"), IPv4Address("10.2.0.4")
BY_E0, BY_E1 = (NextHop("e0", IPv4Address("10.1.0.1")),), (NextHop("e1", IPv4Address("10.2.0.1")),)
WRONG = Route(DEFAULT_DESTINATION, BY_E1, table=100)


def host(*rules: Rule, routes: tuple[Route, ...] = (WRONG,)) -> FakeKernel:
    """Two interfaces, the default route by e0, one by e1 in table 100, and some rules."""
    kernel = FakeKernel()
    for dev, address in (("e0", "10.1.0.4/24"), ("e1", "10.2.0.4/24")):
        kernel.add_link(dev)
        kernel.add_address(dev, address)
    assert kernel.add([Route(DEFAULT_DESTINATION, BY_E0, protocol=Protocol.DHCP), *routes]) == ()
    for rule in rules:
        kernel.add_rule(rule)
    return kernel


def of(source: IPv4Address, **more: Any) -> Rule:
    return attrs.evolve(Rule(100, table=100, source=IPv4Network(source)), **more)


def check(backend: RouteBackend, *cidrs: Any, **overlap: Any) -> OverlapReport:
    section = {"routeOverlap": {"expectedCidrs": [*cidrs] or [CIDR], **overlap}, "waitSeconds": 0}
    return check_overlap(Config.from_mapping({"hostRouting": section}), backend, phases.CancelScope())


def told(report: OverlapReport) -> list[tuple[str, tuple[str, ...], IPv4Address | None]]:
    return [(finding.kind, finding.devs, finding.source) for finding in report.findings]


def recorded(kernel: FakeKernel) -> SnapshotBackend:
    return SnapshotBackend(Snapshot.from_document(take_snapshot(kernel).to_document()))


@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_rule_for_the_hosts_own_source_is_met_by_every_connection(is_recorded: bool) -> None:
    kernel = host(of(E0))
    report = check(recorded(kernel) if is_recorded else kernel)
    (finding,) = report.findings
    assert (finding.kind, finding.devs, finding.source) == (FindingKind.OVERLAP, ("e1",), E0)
    assert finding.ranges == (IPv4Network(CIDR),)
    assert (finding.fix, report.remedy.routes) == ((), ())
    assert " routes via e1, expected e0 for connections from 10.1.0.4; by default via 10.2.0.1" in finding.message
    assert finding.to_json()["source"] == "10.1.0.4"


@pytest.mark.parametrize(
    "rule",
    [
        of(E1),  # nothing that leaves by e0 has this source
        of(E0, destination=IPv4Network("10.9.0.0/16")),
        of(E0, has_unknown=True),
        of(E0, has_ports=True),
        of(E0, ip_protocol=1),
    ],
)
def test_a_rule_that_no_connection_meets_fails_nothing(rule: Rule) -> None:
    assert told(check(host(rule))) == []


def test_what_is_not_connected_may_fail_alone() -> None:
    """The rule takes what has no source yet, and lets those with one pass."""
    assert told(check(host(of(E1, is_inverted=True, destination=None)))) == [("OVERLAP", ("e1",), None)]


def test_a_connection_that_fails_as_the_first_look_up_does_is_told_once() -> None:
    kernel = host(of(E1), routes=(WRONG, Route(IPv4Network(CIDR), (NextHop("e1"),))))
    assert told(check(kernel)) == [("OVERLAP", ("e1",), None)]


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        (RuleAction.BLACKHOLE, FindingKind.BLACKHOLE),
        (RuleAction.PROHIBIT, FindingKind.BLACKHOLE),
        (RuleAction.UNREACHABLE, FindingKind.NO_ROUTE),
    ],
)
def test_a_rule_may_discard_connections(action: RuleAction, kind: FindingKind) -> None:
    report = check(host(of(E0, action=action, table=Table.MAIN)))
    assert told(report) == [(kind, (), E0)]
    assert "; expected via e0 for connections from 10.1.0.4" in report.findings[0].message


def test_each_hop_has_a_source_of_its_own() -> None:
    """A plain look-up would have told of one of them."""
    both = Route(IPv4Network(CIDR), (*BY_E0, NextHop("e0", IPv4Address("10.3.0.1"))))
    kernel = host(of(IPv4Address("10.3.0.4")), routes=(WRONG,))
    kernel.add_address("e0", "10.3.0.4/24")
    assert told(check(kernel)) == []
    assert kernel.add([both]) == ()
    assert told(check(kernel)) == [("OVERLAP", ("e1",), IPv4Address("10.3.0.4"))]


def test_the_routes_own_source_comes_first() -> None:
    kernel = host(of(IPv4Address("10.1.0.9")))
    kernel.add_address("e0", "10.1.0.9/24")
    assert told(check(kernel)) == []
    assert kernel.add([Route(IPv4Network("172.16.9.0/24"), BY_E0, source=IPv4Address("10.1.0.9"))]) == ()
    (finding,) = check(kernel).findings
    assert (finding.ranges, finding.source) == ((IPv4Network("172.16.9.0/24"),), IPv4Address("10.1.0.9"))


def test_rules_on_a_protocol_are_judged_for_both() -> None:
    assert told(check(host(Rule(100, table=100, ip_protocol=6)))) == [("OVERLAP", ("e1",), None)]
    assert told(check(host(Rule(100, table=100, ip_protocol=17)))) == [("OVERLAP", ("e1",), None)]
    assert told(check(host(of(E0, ip_protocol=6)))) == [("OVERLAP", ("e1",), E0)]
    assert told(check(host(of(E0, ip_protocol=17)))) == [("OVERLAP", ("e1",), E0)]


def test_the_first_look_up_of_tcp_only_chooses_the_source_where_a_second_follows() -> None:
    """TCP sends nothing unconnected: its SYN leaves by e0."""
    back = Rule(10, source=IPv4Network(E1))
    assert told(check(host(back, Rule(11, table=100, ip_protocol=6)))) == []


def test_a_rule_with_an_attribute_that_is_not_known_never_counts_as_matching() -> None:
    """K2: without the kernel's own rules nothing would lead to the default route, and the check would say so."""
    kernel = host(Rule(50, has_unknown=True), routes=(Route(IPv4Network("172.16.0.0/17"), BY_E0),))
    kernel.add_rule(Rule(60, table=200))
    assert kernel.add([Route(IPv4Network("172.16.0.0/17"), BY_E0, table=200)]) == ()
    kernel.del_rule(Rule(32766, protocol=Protocol.KERNEL))
    report = check(kernel)
    assert told(report) == [("NO-ROUTE", (), None)]
    assert report.findings[0].ranges == (IPv4Network("172.16.128.0/17"),)
    assert [note.kind for note in report.notes] == [NoteKind.RULE]


@pytest.mark.parametrize("has_rules", [False, True])
def test_a_local_route_of_main_is_judged_like_any_other_and_mended(has_rules: bool) -> None:
    kernel = host(*([Rule(100, table=7)] if has_rules else []))
    taken = Route(IPv4Network("172.16.5.0/24"), (NextHop("e0"),), type=RouteType.LOCAL, table=Table.MAIN)
    assert kernel.add([taken]) == ()
    report = check(kernel, CIDR, "10.1.0.4/32")
    assert told(report) == [("OVERLAP", ("lo",), None)]
    assert [note.kind for note in report.notes] == [NoteKind.LOCAL]
    assert [str(entry.destination) for entry in report.remedy.routes] == ["172.16.5.0/25", "172.16.5.128/25"]


# --- interfaces that alone may carry a CIDR --------------------------------------------------------------------------


def test_a_cidr_may_name_the_interfaces_that_alone_may_carry_it() -> None:
    kernel = host()
    for dev in ("unbounded0", "cali1"):
        kernel.add_link(dev)
    stolen = [Route(IPv4Network("172.16.8.0/24"), (NextHop("unbounded0"),))]
    stolen += [Route(IPv4Network("172.16.9.0/24"), (NextHop("cali1"),))]
    assert kernel.add(stolen) == ()
    assert told(check(kernel)) == []
    report = check(kernel, {"cidr": CIDR, "devs": ["e0"]})
    assert told(report) == [("OVERLAP", ("unbounded0",), None), ("OVERLAP", ("cali1",), None)]
    assert {finding.expected_devs for finding in report.findings} == {("e0",)}
    assert [str(entry.destination) for entry in report.findings[0].fix] == ["172.16.8.0/25", "172.16.8.128/25"]
    assert told(check(kernel, {"cidr": CIDR, "devs": ["e0", "unbounded*"]})) == [("OVERLAP", ("cali1",), None)]


def test_where_the_default_route_is_not_expected_no_route_by_it_is_proposed() -> None:
    kernel = host(routes=(Route(IPv4Network("172.16.0.0/17"), (NextHop("e1"),)),))
    report = check(kernel, {"cidr": CIDR, "devs": ["e1"]})
    (finding,) = report.findings
    assert (finding.devs, finding.expected_devs) == (("e0",), ("e1",))
    assert finding.ranges == (IPv4Network("172.16.128.0/17"),)
    assert report.remedy.routes == ()
    assert "172.16.0.0/16 by e1 is expected" in report.remedy.unmendable[0].reason


def test_where_two_entries_ask_for_different_interfaces_no_fix_serves_one_at_the_others_cost() -> None:
    kernel = host(routes=())
    kernel.add_link("ib0")
    kernel.add_address("ib0", "172.16.5.4/24")
    report = check(kernel, CIDR, {"cidr": "172.16.5.0/24", "devs": ["ib0"]})
    assert told(report) == [("OVERLAP", ("ib0",), None)]
    assert report.remedy.routes == ()
    assert "172.16.5.0/24 by ib0 is expected" in report.remedy.unmendable[0].reason


def test_a_cidr_costs_the_same_however_many_there_are() -> None:
    """Each answer is sorted once for all CIDRs that expect the same interfaces."""
    cidrs = [f"172.{16 + number // 250}.{number % 250}.0/24" for number in range(600)]
    calls = {}
    for count in (150, 600):
        profile = cProfile.Profile()
        profile.runcall(check, host(), *cidrs[:count])
        calls[count] = sum(entry.callcount for entry in profile.getstats())
    assert calls[600] < 5 * calls[150]


@pytest.mark.parametrize("kind", [RouteType.THROW, RouteType.UNREACHABLE])
def test_what_table_local_says_otherwise_makes_nothing_an_own_address(kind: RouteType) -> None:
    network = IPv4Network("172.16.5.0/24")
    local = Route(network, (NextHop("lo"),), type=RouteType.LOCAL, table=Table.MAIN)
    kernel = host(Rule(50, table=7), routes=(local, Route(network, type=kind, table=Table.LOCAL)))
    kernel.del_rule(Rule(0, table=Table.LOCAL, protocol=Protocol.KERNEL))
    assert told(check(kernel)) == [("OVERLAP", ("lo",), None)]


def test_a_recorded_host_with_three_rules_of_protocol_kernel_is_judged_by_what_they_say() -> None:
    kernel = host(
        Rule(20, table=100, protocol=Protocol.KERNEL),
        routes=(WRONG, Route(IPv4Network("172.16.1.0/24"), BY_E0)),
    )
    kernel.del_rule(Rule(32767, table=Table.DEFAULT, protocol=Protocol.KERNEL))
    assert told(check(recorded(kernel))) == told(check(kernel)) == [("OVERLAP", ("e1",), None)]


def test_a_command_to_paste_quotes_the_name_of_an_interface() -> None:
    kernel = FakeKernel()
    for dev, address in ((";reboot", "10.1.0.4/24"), ("e1", "10.2.0.4/24")):
        kernel.add_link(dev)
        kernel.add_address(dev, address)
    home = Route(DEFAULT_DESTINATION, (NextHop(";reboot", IPv4Address("10.1.0.1")),), protocol=Protocol.DHCP)
    assert kernel.add([home, WRONG]) == ()
    kernel.add_rule(Rule(100, table=100))
    (left,) = check(kernel).remedy.unmendable
    assert "dev ';reboot'" in left.reason
    assert "dev ;reboot" not in left.reason


@pytest.mark.parametrize("kind", [RouteType.UNREACHABLE, RouteType.BLACKHOLE])
def test_what_is_discarded_gets_a_source_with_its_mend_and_may_meet_a_rule_then(kind: RouteType) -> None:
    kernel = host(of(E0), routes=(WRONG, Route(IPv4Network(CIDR), type=kind)))
    remedy = check(kernel).remedy
    assert remedy.routes
    (left,) = remedy.unmendable
    assert (left.ranges, left.obstacle.preference, left.obstacle.table) == ((IPv4Network(CIDR),), 100, 100)


def test_what_tcp_does_behind_a_rule_for_datagrams_is_told_though_its_table_leads_by_a_default_interface() -> None:
    kernel = FakeKernel()
    for dev, address in (("e0", "10.1.0.4/24"), ("e1", "10.2.0.4/24"), ("ib0", "172.16.0.10/22")):
        kernel.add_link(dev)
        kernel.add_address(dev, address)
    both = Route(DEFAULT_DESTINATION, (*BY_E0, *BY_E1), protocol=Protocol.DHCP)
    assert kernel.add([both, Route(IPv4Network("128.0.0.0/1"), BY_E1, table=101)]) == ()
    kernel.add_rule(Rule(100, table=101, destination=IPv4Network("172.16.2.0/23"), ip_protocol=17))
    report = check(kernel, "172.16.0.0/22")
    (left,) = [left for left in report.remedy.unmendable if IPv4Network("172.16.2.0/24") in left.ranges]
    assert left.devs == ("ib0",)
    assert "TCP" in left.reason


@pytest.mark.parametrize(("preferences", "entries"), [((32766,), 2), ((), 0)])
def test_a_rule_that_passes_over_short_routes_makes_no_more_entries_than_anybody_wants(
    preferences: tuple[int, ...], entries: int
) -> None:
    kernel = FakeKernel()
    for dev, address in (("eth0", "192.168.1.4/24"), ("ib0", "192.168.9.4/24")):
        kernel.add_link(dev)
        kernel.add_address(dev, address)
    wide = IPv4Network("8.0.0.0/6")
    assert not kernel.add(
        [
            Route(DEFAULT_DESTINATION, (NextHop("eth0", IPv4Address("192.168.1.1")),), protocol=Protocol.DHCP),
            Route(wide, (NextHop("ib0"),), protocol=Protocol.STATIC),
            Route(wide, (NextHop("ib0"),), protocol=Protocol.STATIC, table=100),
        ]
    )
    kernel.add_rule(Rule(100, suppress_prefix_length=22))
    kernel.add_rule(Rule(32767, table=100))
    for rule in kernel.rules():
        if rule.preference >= 32766 and rule.table != 100 and rule.preference not in preferences:
            kernel.del_rule(rule)
    report = check(kernel, str(wide))
    assert [finding.kind for finding in report.findings] == ["OVERLAP"]
    assert len(report.remedy.routes) == entries
    assert bool(report.remedy.unmendable) is not bool(entries)
