"""Test with brute force that a fix fixes the failures it names, changes nothing else, and has no idle entry."""

from __future__ import annotations

import re
import subprocess
import tempfile
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING

import asking
import attrs
import pytest
from asking import DEFAULT, ETH0, NODE, Case, leaving, run_ip, veths
from brute_force import Judge, Sort, default_route, fewest_prefixes, judged, live, sort_all
from fixing import changed, covered, failing, found, install
from hypothesis import HealthCheck, given, settings
from nightly import IS_NIGHTLY, by_day
from node import build_node, on_linux
from scenario import play
from worlds import STANDARD_RULES, World
from worlds.cut import (
    BLACKHOLED_GATEWAY,
    CLAIMED_GATEWAY,
    EXPECTED_LOST_GATEWAY,
    LOST_GATEWAY,
    ODD_NAME,
    PASSED_DISCARD,
    UDP_REFUSED,
    Question,
    questions,
)

import phases
from hostrouting import ExpectedCidr, RouteError, RouteOverlap, StaticRoute
from hostrouting.kernel.memory import FakeKernel
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.model.routes import NextHop, Protocol, Route, RouteType, Table
from hostrouting.model.rules import Rule
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.findings import Fix
from hostrouting.routes.resolve import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostrouting import OverlapReport
    from hostrouting.kernel.port import Kernel

_SETTINGS = settings(
    max_examples=by_day(3, by_night=2000),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """Create a folder for the lock. Hypothesis runs a test's function many times."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@attrs.frozen
class Patient:
    """A host with failures, and its check.

    Args:
        kernel: the host's kernel.
        question: the host's config.
        root: the folder that contains the host's files.
    """

    kernel: Kernel
    question: Question
    root: Path

    def check(self) -> OverlapReport:
        question = self.question
        return asking.checked(self.kernel, question.cidrs, question.allowed, question.foreseen)[1]

    def sorts(self) -> dict[IPv4Address, Sort]:
        """Return the brute-force classification of each expected address."""
        overlap = RouteOverlap(self.question.cidrs, allowed_devs=self.question.allowed)
        judge = Judge(self.kernel, overlap, had_rules=len(self.kernel.rules()) > 3 or self.question.world.has_rules)
        addresses = {address for cidr in self.question.cidrs for address in judged(cidr)}
        return sort_all(self.kernel, judge, sorted(addresses))

    def apply(self, entries: Sequence[StaticRoute]) -> None:
        install(self.kernel, entries, self.root)

    def fewest_entries(self, targets: set[IPv4Address], before: dict[IPv4Address, Sort]) -> int | None:
        """Return how many prefixes longer than the winning one cover the targets, or None if this is hard to say."""
        main = [route for route in self.kernel.routes(Table.MAIN) if route.tos == 0]
        if any(rule.table == Table.MAIN and rule.suppress_prefix_length is not None for rule in self.kernel.rules()):
            return None
        default = default_route(main)
        subnets = [a.network for a in self.kernel.addresses() if default is not None and a.dev in live(default)]
        # An entry inside a subnet of the default interface is on-link, and an entry elsewhere has a gateway.
        lengths = [(route.destination, route.destination.prefixlen + 1) for route in main]
        lengths += [(subnet, subnet.prefixlen) for subnet in subnets if subnet.prefixlen < 32]
        above = {target: max((n for net, n in lengths if target in net), default=0) for target in targets}
        free = {address for address, sort in before.items() if sort.kind in ("LOCAL", "BROADCAST")}
        there = {route.destination for route in main}
        found: list[IPv4Network] = []

        def descend(network: IPv4Network) -> None:
            inside = [above[address] for address in network if address in targets]
            if inside and network.prefixlen >= max(inside):
                found.append(network)
            elif inside:
                for half in network.subnets():
                    descend(half)

        for network in fewest_prefixes(targets | free):
            descend(network)
        return None if there & set(found) else len(found)

    def is_mendable(self, address: IPv4Address, devs: Sequence[str]) -> bool:
        """Return whether a host route would fix an address, if nothing else prevented such a fix."""
        routes = self.kernel.routes()
        is_gateway = any(hop.gateway == address for route in routes for hop in route.hops)
        has_route = any(route.destination == IPv4Network(address) and route.table == Table.MAIN for route in routes)
        if is_gateway or has_route or "docker0" in devs:
            return False
        try:
            self.apply([StaticRoute(IPv4Network(address))])
        except RouteError:
            return False
        return address not in failing(self.sorts())

    def connected(self) -> tuple[str, ...]:
        return tuple(str(route) for route in self.kernel.routes() if route.is_connected)


def fix(patient: Patient, *, few: bool) -> None:
    """Apply the fix, both whole and in parts, and compare every address with what the fix promises.

    Args:
        patient: a host.
        few: whether to leave out only one entry instead of several, and to apply the fix of only one finding.
    """
    report = patient.check()
    fix = report.fix
    if not report.findings:
        assert fix == Fix()
        return
    before = patient.sorts()
    hopeless = {address for part in fix.unfixable for network in part.ranges for address in network}
    of_connections = [part for part in fix.unfixable if re.search(" for (connections|TCP)", part.reason)]
    never = [part for part in fix.unfixable if part not in of_connections]
    left = {address for part in never for network in part.ranges for address in network}
    unconnected = {address for address, sort in before.items() if sort.is_failure}
    assert hopeless <= failing(before), "what was fine is called unfixable"
    _see_what_is_covered(fix.routes, before)
    assert {entry for finding in report.findings for entry in finding.fix} == set(fix.routes)
    assert failing(before) - covered(fix.routes) <= hopeless, "left out without a word"

    most = patient.fewest_entries(unconnected - left, before)
    assert most is None or len(fix.routes) <= most, f"{most} would do, instead of {fix.routes}"

    connected = patient.connected()
    patient.apply(fix.routes)
    again, after = patient.check(), patient.sorts()
    assert failing(after) == hopeless, f"it still fails: {again.findings}"
    assert found(again) == hopeless
    assert changed(fix, before, after) == set()
    assert patient.connected() == connected

    for entry in fix.routes[:1] if few else fix.routes[:8]:
        others = [other for other in fix.routes if other != entry]
        patient.apply(others)
        # An entry inside another entry is allowed only if it keeps its addresses on-link.
        is_link = entry.gateway == "onlink" and any(entry.destination.subnet_of(o.destination) for o in others)
        assert is_link or found(patient.check()) & covered([entry]), f"{entry} is idle"
    # A connection whose first lookup fails may match another rule after the fix, as its source changes.
    findings = [finding for finding in report.findings if finding.source is None]
    for finding in findings[:1] if few else findings[:4]:
        patient.apply(finding.fix)
        there = {address for part in finding.ranges for address in part}
        still = found(patient.check())
        assert there & still <= hopeless, f"the fix of {finding.message} leaves it"
    patient.apply([])
    assert patient.connected() == connected
    assert patient.sorts() == before
    # A route could fix these: unless the config names the uplinks, the subnet of another default's interface stays there.
    hopeless_parts = [part for part in never if "has a default route too" not in part.reason]
    for part in hopeless_parts[:1] if few else hopeless_parts[:4]:
        assert not patient.is_mendable(part.ranges[0][0], part.devs), f"one route would fix {part}"


def _see_what_is_covered(entries: Sequence[StaticRoute], before: dict[IPv4Address, Sort]) -> None:
    for entry in entries:
        assert all(address in before for address in entry.destination), f"{entry} covers what isn't asked about"
        sorts = [before[address] for address in entry.destination]
        assert any(sort.is_failure for sort in sorts), f"{entry} covers nothing that fails"
        for sort in sorts:
            if not sort.is_failure and sort.kind not in ("LOCAL", "BROADCAST"):
                assert sort.route is not None, f"{entry} covers {sort}"
                assert sort.route.table == Table.MAIN, f"{entry} covers {sort}"
                assert sort.route.destination.prefixlen > entry.destination.prefixlen, f"{entry} takes {sort}"


@settings(_SETTINGS)
@given(question=questions())
def test_in_memory_the_fix_fixes_just_what_it_names(question: Question, root: Path) -> None:
    kernel = FakeKernel()
    question.world.build(kernel)
    fix(Patient(kernel, question, root), few=not IS_NIGHTLY)


@pytest.mark.kernel
@settings(_SETTINGS)
@given(question=questions(has_objects=True))
def test_on_linux_the_fix_fixes_just_what_it_names(question: Question, root: Path) -> None:
    kernel = on_linux()
    question.world.build(kernel)
    fix(Patient(kernel, question, root), few=True)


def test_an_entry_never_covers_an_earlier_rules_addresses(tmp_path: Path) -> None:
    kernel = FakeKernel()
    build_node(kernel)
    play(
        kernel,
        """
        route add 10.9.0.0/16 dev ib0 proto static
        route add default via 10.2.0.1 dev eth1 table 100 proto static
        rule add 10 to 10.9.0.0/28 lookup 100
        """,
    )
    fix(Patient(kernel, Question(World((), ()), (IPv4Network("10.9.0.0/24"),)), tmp_path), few=not IS_NIGHTLY)


def test_an_entry_never_covers_a_local_address_of_main(tmp_path: Path) -> None:
    kernel = FakeKernel()
    build_node(kernel)
    cidr, own = IPv4Network("10.9.0.0/24"), IPv4Network("10.9.0.70/32")
    local = Route(own, (NextHop("lo"),), RouteType.LOCAL, table=Table.LOCAL)
    shadow = Route(IPv4Network("10.9.0.64/28"), (NextHop("ib0"),), table=Table.LOCAL)
    assert kernel.add([local, shadow]) == ()
    kernel.add_rule(Rule(10, table=Table.MAIN, suppress_prefix_length=16))
    kernel.add_rule(Rule(11, table=Table.LOCAL))
    kernel.del_rule(Rule(0, table=Table.LOCAL, protocol=Protocol.KERNEL))
    patient = Patient(kernel, Question(World((), ()), (cidr,)), tmp_path)
    entries = patient.check().fix.routes
    assert entries
    assert not any(own.subnet_of(entry.destination) for entry in entries)
    fix(patient, few=not IS_NIGHTLY)


def test_no_entry_names_an_interface_that_a_config_refuses(tmp_path: Path) -> None:
    kernel = FakeKernel()
    ODD_NAME.world.build(kernel)
    patient = Patient(kernel, ODD_NAME, tmp_path)
    fix = patient.check().fix
    assert {part.reason for part in fix.unfixable} == {
        "it is on the link of e$th, a name that no config accepts: rename it",
    }
    patient.apply(fix.routes)
    assert patient.check().fix.unfixable == fix.unfixable
    assert patient.check().fix.routes == ()


def test_a_discard_of_main_is_fixed_behind_a_suppressing_rule(tmp_path: Path) -> None:
    kernel = FakeKernel()
    PASSED_DISCARD.world.build(kernel)
    patient = Patient(kernel, PASSED_DISCARD, tmp_path)
    networks = [str(entry.destination) for entry in patient.check().fix.routes]
    assert networks == ["10.0.0.0/26", "10.0.0.64/26", "10.0.1.64/26"]
    fix(patient, few=not IS_NIGHTLY)


def kernels() -> Iterator[Kernel]:
    yield FakeKernel()
    yield on_linux()


@pytest.mark.kernel
@pytest.mark.parametrize(
    "question", [LOST_GATEWAY, EXPECTED_LOST_GATEWAY, BLACKHOLED_GATEWAY, CLAIMED_GATEWAY, UDP_REFUSED]
)
def test_no_entry_has_a_gateway_that_the_kernel_refuses(question: Question, root: Path) -> None:
    for kernel in kernels():
        question.world.build(kernel)
        fix(Patient(kernel, question, root), few=not IS_NIGHTLY or isinstance(kernel, NamespaceKernel))


def test_a_suppressed_gateway_needs_a_route_first(tmp_path: Path) -> None:
    kernel = FakeKernel()
    LOST_GATEWAY.world.build(kernel)
    patient = Patient(kernel, LOST_GATEWAY, tmp_path)
    report = patient.check()
    assert report.fix.routes == ()
    assert {finding.fix for finding in report.findings} == {()}
    (reason,) = {part.reason for part in report.fix.unfixable}
    assert "would refuse entries via 192.0.2.1" in reason
    assert reason.endswith('{"destination": "192.0.2.1/32", "gateway": "onlink"}')
    own = StaticRoute(IPv4Network("192.0.2.1"), "onlink")
    patient.apply([own])
    after = patient.check().fix
    assert covered(after.routes) == {address for cidr in LOST_GATEWAY.cidrs for address in cidr}
    patient.apply([own, *after.routes])
    assert patient.check().verdict == "ok"


def test_no_entry_uses_an_onlink_gateway_that_is_local(tmp_path: Path) -> None:
    kernel = FakeKernel()
    CLAIMED_GATEWAY.world.build(kernel)
    report = Patient(kernel, CLAIMED_GATEWAY, tmp_path).check()
    assert (report.fix.routes, {finding.fix for finding in report.findings}) == ((), {()})
    (part,) = report.fix.unfixable
    claim = next(route for route in kernel.routes(Table.LOCAL) if route.destination.prefixlen == 30)
    assert str(claim) in part.reason
    assert kernel.delete([claim]) == ()
    fix(Patient(kernel, CLAIMED_GATEWAY, tmp_path), few=not IS_NIGHTLY)


def test_a_gateway_that_a_rule_discards_needs_another_rule(tmp_path: Path) -> None:
    kernel = FakeKernel()
    build_node(kernel)
    play(
        kernel,
        """
        route add 10.9.0.0/16 dev ib0 proto static
        rule add 10 to 10.1.0.0/24 prohibit
        """,
    )
    patient = Patient(kernel, Question(World((), ()), (IPv4Network("10.9.0.0/24"),)), tmp_path)
    (part,) = patient.check().fix.unfixable
    assert "via 10.1.0.1: by its rules " in part.reason
    fix(patient, few=not IS_NIGHTLY)


def test_a_throw_route_for_one_address_is_unfixable(tmp_path: Path) -> None:
    kernel = FakeKernel()
    build_node(kernel)
    play(kernel, "route add throw 10.9.0.7 proto static")
    patient = Patient(kernel, Question(World((), ()), (IPv4Network("10.9.0.0/24"),)), tmp_path)
    (part,) = patient.check().fix.unfixable
    assert part.reason.startswith("throw 10.9.0.7 proto static ")
    fix(patient, few=not IS_NIGHTLY)


# --- on Linux --------------------------------------------------------------------------------------------------------


@pytest.mark.kernel
def test_no_refused_entry_is_proposed_with_vrfs(kernel: NamespaceKernel) -> None:
    """The rule stays when the last VRF is gone, and then has no effect."""
    run_ip(f"{NODE}\naddr add 10.5.0.1/24 dev ib0\n{DEFAULT}\nrule add pref 1000 l3mdev")
    run_ip("rule add pref 20 not to 10.5.0.0/16 unreachable")
    report = asking.checked(kernel, [IPv4Network("10.5.0.0/24")])[1]
    assert (report.verdict, report.fix.routes) == ("overlap", ())
    assert [str(each.ranges[0]) for each in report.fix.unfixable] == ["10.5.0.0/32"]
    refused = subprocess.run(["ip", "route", "add", "10.5.0.0/25", "via", "10.1.0.1"], check=False)
    assert refused.returncode != 0


METRICS = "route add 10.5.0.0/24 via 10.2.0.1 dev ib0 metric 100\nroute add 10.5.7.7/32 via 10.2.0.1 dev ib0 metric 100"
HALVES = ["10.5.0.0/25", "10.5.0.128/25"]


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("does", "cidr", "expected", "left"),
    [
        (METRICS, "10.5.0.0/24", ["10.5.0.0/24"], []),
        (METRICS, "10.5.7.7/32", ["10.5.7.7/32"], []),
        ("addr add 10.5.0.1/24 dev ib0 metric 50", "10.5.0.0/24", HALVES, []),
        ("route add local 10.5.0.0/24 dev lo table local", "10.5.0.0/24", HALVES, []),
        ("route add local 10.5.0.0/24 dev lo table local\nrule add lookup 7", "10.5.0.0/24", [], ["10.5.0.0/24"]),
    ],
)
def test_a_fix_is_as_short_as_the_kernel_allows(
    does: str, cidr: str, expected: list[str], left: list[str], kernel: NamespaceKernel
) -> None:
    run_ip(f"{NODE}\n{DEFAULT}\n{does}")
    fix = asking.checked(kernel, [IPv4Network(cidr)])[1].fix
    assert [str(entry.destination) for entry in fix.routes] == expected
    assert [str(network) for each in fix.unfixable for network in each.ranges][:1] == left
    run_ip("\n".join(f"route add {destination} via 10.1.0.1" for destination in expected))
    if not left:
        assert asking.checked(kernel, [IPv4Network(cidr)])[1].verdict == "ok"
        assert leaving(str(IPv4Network(cidr)[-1] - (cidr != "10.5.7.7/32"))) == {"eth0"}


@pytest.mark.kernel
def test_rules_for_any_source_of_a_fix_are_reported(kernel: NamespaceKernel) -> None:
    """An interface without an address uses that of the first registered interface, but no dump shows that order."""
    run_ip(f"""{veths("z0 90", "a0 60", "up0 70")}
        addr add 10.9.0.4/24 dev z0
        addr add 10.5.0.1/24 dev a0 metric 50
        route add default dev up0
        rule add from 10.9.0.4 to 10.5.0.0/24 blackhole
    """)
    fix = asking.checked(kernel, [IPv4Network("10.5.0.0/25")])[1].fix
    assert fix.routes
    assert any(IPv4Address("10.5.0.9") in network for each in fix.unfixable for network in each.ranges)
    run_ip("\n".join(f"route add {entry.destination} dev up0" for entry in fix.routes))
    assert leaving("10.5.0.9") == {None, "up0"}


@pytest.mark.kernel
def test_a_fix_has_no_source_that_was_removed(kernel: NamespaceKernel) -> None:
    lost = "route add local 10.7.7.7 dev lo\nroute add default via 10.1.0.1 src 10.7.7.7\nroute del local 10.7.7.7 dev lo table local"
    case = Case(f"addr add 10.5.0.1/24 dev ib0\n{lost}", cidr="10.5.0.0/24", node=ETH0, default="")
    case.build()
    fix = check_overlap(case.config, kernel, phases.CancelScope()).fix
    main = kernel.routes(Table.MAIN)
    routes, missing = resolve(fix.routes, kernel.links(), kernel.addresses(), main, None)
    assert (fix.unfixable, missing, kernel.add(routes)) == ((), None, ())
    assert check_overlap(case.config, kernel, phases.CancelScope()).verdict == "ok"


# --- failures without a fix ------------------------------------------------------------------------------------------


def on_node(scenario: str) -> FakeKernel:
    """Return the in-memory node that results from a scenario."""
    kernel = FakeKernel()
    build_node(kernel)
    play(kernel, scenario)
    return kernel


def fix_of(kernel: Kernel, *expected: ExpectedCidr) -> Fix:
    report = asking.checked(kernel, expected)[1]
    assert report.findings
    return report.fix


def test_no_route_by_an_unexpected_default_route_is_proposed() -> None:
    fix = fix_of(on_node("route add 10.9.0.0/17 dev eth1"), ExpectedCidr("10.9.0.0/16", ["eth1"]))
    (left,) = fix.unfixable
    assert (fix.routes, left.ranges) == ((), (IPv4Network("10.9.128.0/17"),))
    assert "10.9.0.0/16 by eth1 is expected" in left.reason


def test_no_fix_breaks_an_entry_that_expects_another_interface() -> None:
    both = ExpectedCidr("10.2.0.0/16"), ExpectedCidr("10.2.0.0/24", ["eth1"])
    fix = fix_of(on_node(""), *both)
    (left,) = fix.unfixable
    assert (fix.routes, left.devs) == ((), ("eth1",))
    assert "10.2.0.0/24 by eth1 is expected" in left.reason


def test_a_pasted_command_quotes_the_interface_name() -> None:
    kernel = on_node(
        """
        link add ;reboot
        addr add 10.7.0.4/24 dev ;reboot
        route add default via 10.7.0.1 dev ;reboot proto dhcp
        route add default via 10.2.0.1 dev eth1 table 100
        rule add 100 lookup 100
        """
    )
    (left,) = fix_of(kernel, ExpectedCidr("10.9.0.0/16")).unfixable
    assert "dev ';reboot'" in left.reason
    assert "dev ;reboot" not in left.reason


@pytest.mark.parametrize("kind", ["unreachable", "blackhole"])
def test_a_fixed_discard_may_meet_a_rule(kind: str) -> None:
    kernel = on_node(
        f"""
        route add {kind} 10.9.0.0/16
        route add default via 10.2.0.1 dev eth1 table 100
        rule add 100 from 10.1.0.4/32 lookup 100
        """
    )
    fix = fix_of(kernel, ExpectedCidr("10.9.0.0/16"))
    assert fix.routes
    (left,) = fix.unfixable
    assert (left.ranges, left.obstacle.preference, left.obstacle.table) == ((IPv4Network("10.9.0.0/16"),), 100, 100)


def test_tcp_behind_a_rule_for_udp_is_reported() -> None:
    kernel = on_node(
        """
        route del default via 10.1.0.1 dev eth0 proto dhcp metric 100
        addr del 172.16.0.10/16 dev ib0
        addr add 172.16.0.10/22 dev ib0
        route add default proto dhcp nexthop via 10.1.0.1 dev eth0 nexthop via 10.2.0.1 dev eth1
        route add 128.0.0.0/1 via 10.2.0.1 dev eth1 table 101
        rule add 100 to 172.16.2.0/23 ipproto 17 lookup 101
        """
    )
    parts = fix_of(kernel, ExpectedCidr("172.16.0.0/22")).unfixable
    (left,) = [left for left in parts if IPv4Network("172.16.2.0/24") in left.ranges]
    assert left.devs == ("ib0",)
    assert "TCP" in left.reason


@pytest.mark.parametrize(("gone", "entries"), [(STANDARD_RULES[2:], 2), (STANDARD_RULES[1:], 0)])
def test_a_suppressing_rule_makes_only_a_few_entries(gone: tuple[Rule, ...], entries: int) -> None:
    kernel = on_node(
        """
        route add 8.0.0.0/6 dev ib0 proto static
        route add 8.0.0.0/6 dev ib0 proto static table 100
        addr del 10.1.0.4/24 dev eth0
        addr del 10.2.0.4/24 dev eth1
        addr add 192.168.1.4/24 dev eth0
        route add default via 192.168.1.1 dev eth0 proto dhcp
        rule add 100 suppress 22 lookup main
        rule add 32767 lookup 100
        """
    )
    for rule in gone:
        kernel.del_rule(rule)
    fix = fix_of(kernel, ExpectedCidr("8.0.0.0/6"))
    assert len(fix.routes) == entries
    assert bool(fix.unfixable) is not bool(entries)
