"""The remedy against brute force: what it proposes mends what fails, nothing else changes, and no entry is idle."""

from __future__ import annotations

import re
import tempfile
from ipaddress import IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
from brute_force import Judge, Sort, default_route, fewest_prefixes, judged, live, sort_all
from hypothesis import HealthCheck, given, settings
from mending import changed, covered, failing, found, install
from nightly import IS_NIGHTLY, by_day
from node import build_node
from scenario import play
from test_exact_coverage import checked
from worlds import (
    BLACKHOLED_GATEWAY,
    CLAIMED_GATEWAY,
    EXPECTED_LOST_GATEWAY,
    LOST_GATEWAY,
    ODD_NAME,
    PASSED_DISCARD,
    UDP_REFUSED,
    Question,
    World,
    questions,
)

from hostrouting import RouteError, RouteOverlap, StaticRoute
from hostrouting.kernel.memory import FakeKernel
from hostrouting.kernel.namespace import NamespaceKernel, enter_namespace
from hostrouting.model.routes import NextHop, Protocol, Route, RouteType, Table
from hostrouting.model.rules import Rule
from hostrouting.overlap.findings import Remedy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from ipaddress import IPv4Address

    from hostrouting import OverlapReport
    from hostrouting.kernel.port import Kernel

_SETTINGS = settings(
    max_examples=by_day(3, by_night=2000),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """Where the lock is; hypothesis runs a test's function many times."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@attrs.frozen
class Patient:
    """A host with failures, and its check.

    Args:
        kernel: the host's.
        question: what is expected of it.
        root: where its files are.
    """

    kernel: Kernel
    question: Question
    root: Path

    def check(self) -> OverlapReport:
        return checked(self.kernel, self.question)[1]

    def sorts(self) -> dict[IPv4Address, Sort]:
        """By brute force what each expected address is."""
        overlap = RouteOverlap(self.question.cidrs, allowed_devs=self.question.allowed)
        judge = Judge(self.kernel, overlap, had_rules=len(self.kernel.rules()) > 3 or self.question.world.has_rules)
        addresses = {address for cidr in self.question.cidrs for address in judged(cidr)}
        return sort_all(self.kernel, judge, sorted(addresses))

    def apply(self, entries: Sequence[StaticRoute]) -> None:
        install(self.kernel, entries, self.root)

    def fewest_entries(self, targets: set[IPv4Address], before: dict[IPv4Address, Sort]) -> int | None:
        """How many prefixes cover addresses, each longer than what wins there; None where that isn't so simple."""
        main = [route for route in self.kernel.routes(Table.MAIN) if route.tos == 0]
        if any(rule.table == Table.MAIN and rule.suppress_prefix_length is not None for rule in self.kernel.rules()):
            return None
        default = default_route(main)
        subnets = [a.network for a in self.kernel.addresses() if default is not None and a.dev in live(default)]
        # Inside a subnet of the default's an entry is on the link, outside it has a gateway.
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
        """Whether a route of its own, where none may be proposed for other reasons, mends an address."""
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


def mend(patient: Patient, *, few: bool) -> None:
    """Apply the remedy, all of it and parts, and hold what becomes of every address to what was promised.

    Args:
        patient: a host.
        few: whether to leave out only one entry, and apply only one finding's fix, not several.
    """
    report = patient.check()
    remedy = report.remedy
    if not report.findings:
        assert remedy == Remedy()
        return
    before = patient.sorts()
    hopeless = {address for part in remedy.unmendable for network in part.ranges for address in network}
    of_connections = [part for part in remedy.unmendable if re.search(" for (connections|TCP)", part.reason)]
    never = [part for part in remedy.unmendable if part not in of_connections]
    left = {address for part in never for network in part.ranges for address in network}
    unconnected = {address for address, sort in before.items() if sort.is_failure}
    assert hopeless <= failing(before), "what was fine is called unmendable"
    _see_what_is_covered(remedy.routes, before)
    assert {entry for finding in report.findings for entry in finding.fix} == set(remedy.routes)
    assert failing(before) - covered(remedy.routes) <= hopeless, "left out without a word"

    most = patient.fewest_entries(unconnected - left, before)
    assert most is None or len(remedy.routes) <= most, f"{most} would do, instead of {remedy.routes}"

    connected = patient.connected()
    patient.apply(remedy.routes)
    again, after = patient.check(), patient.sorts()
    assert failing(after) == hopeless, f"it still fails: {again.findings}"
    assert found(again) == hopeless
    assert changed(remedy, before, after) == set()
    assert patient.connected() == connected

    for entry in remedy.routes[:1] if few else remedy.routes[:8]:
        others = [other for other in remedy.routes if other != entry]
        patient.apply(others)
        # Within another entry it may only be what keeps its addresses on the link.
        is_link = entry.gateway == "onlink" and any(entry.destination.subnet_of(o.destination) for o in others)
        assert is_link or found(patient.check()) & covered([entry]), f"{entry} is idle"
    # Of a connection that fails the first look-up may, and then its source changes.
    findings = [finding for finding in report.findings if finding.source is None]
    for finding in findings[:1] if few else findings[:4]:
        patient.apply(finding.fix)
        there = {address for part in finding.ranges for address in part}
        still = found(patient.check())
        assert there & still <= hopeless, f"the fix of {finding.message} leaves it"
    patient.apply([])
    assert patient.connected() == connected
    assert patient.sorts() == before
    for part in never[:1] if few else never[:4]:
        assert not patient.is_mendable(part.ranges[0][0], part.devs), f"one route would mend {part}"


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
def test_in_memory_the_remedy_mends_all_that_it_says_and_nothing_else(question: Question, root: Path) -> None:
    kernel = FakeKernel()
    question.world.build(kernel)
    mend(Patient(kernel, question, root), few=not IS_NIGHTLY)


@pytest.mark.kernel
@settings(_SETTINGS)
@given(question=questions(has_objects=True))
def test_on_linux_the_remedy_mends_all_that_it_says_and_nothing_else(question: Question, root: Path) -> None:
    enter_namespace()
    kernel = NamespaceKernel()
    question.world.build(kernel)
    mend(Patient(kernel, question, root), few=True)


def test_an_entry_never_covers_what_a_rule_decides_before_main(tmp_path: Path) -> None:
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
    mend(Patient(kernel, Question(World((), ()), (IPv4Network("10.9.0.0/24"),)), tmp_path), few=not IS_NIGHTLY)


def test_an_entry_never_covers_an_own_address_that_main_is_asked_for_first(tmp_path: Path) -> None:
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
    entries = patient.check().remedy.routes
    assert entries
    assert not any(own.subnet_of(entry.destination) for entry in entries)
    mend(patient, few=not IS_NIGHTLY)


def test_no_entry_is_proposed_whose_interface_no_config_takes(tmp_path: Path) -> None:
    kernel = FakeKernel()
    ODD_NAME.world.build(kernel)
    patient = Patient(kernel, ODD_NAME, tmp_path)
    remedy = patient.check().remedy
    assert {part.reason for part in remedy.unmendable} == {
        "it is on the link of e$th, a name that no config takes: rename it",
    }
    patient.apply(remedy.routes)
    assert patient.check().remedy.unmendable == remedy.unmendable
    assert patient.check().remedy.routes == ()


def test_what_main_discards_is_mended_where_a_rule_would_pass_over_a_route_and_main_is_asked_again(
    tmp_path: Path,
) -> None:
    kernel = FakeKernel()
    PASSED_DISCARD.world.build(kernel)
    patient = Patient(kernel, PASSED_DISCARD, tmp_path)
    networks = [str(entry.destination) for entry in patient.check().remedy.routes]
    assert networks == ["10.0.0.0/26", "10.0.0.64/26", "10.0.1.64/26"]
    mend(patient, few=not IS_NIGHTLY)


def kernels() -> Iterator[Kernel]:
    yield FakeKernel()
    enter_namespace()
    yield NamespaceKernel()


@pytest.mark.kernel
@pytest.mark.parametrize(
    "question", [LOST_GATEWAY, EXPECTED_LOST_GATEWAY, BLACKHOLED_GATEWAY, CLAIMED_GATEWAY, UDP_REFUSED]
)
def test_no_entry_is_proposed_that_the_kernel_refuses_as_it_does_not_find_the_gateway(
    question: Question, root: Path
) -> None:
    for kernel in kernels():
        question.world.build(kernel)
        mend(Patient(kernel, question, root), few=not IS_NIGHTLY or isinstance(kernel, NamespaceKernel))


def test_entries_by_a_gateway_that_the_rules_pass_over_need_one_to_it_first(tmp_path: Path) -> None:
    kernel = FakeKernel()
    LOST_GATEWAY.world.build(kernel)
    patient = Patient(kernel, LOST_GATEWAY, tmp_path)
    report = patient.check()
    assert report.remedy.routes == ()
    assert {finding.fix for finding in report.findings} == {()}
    (reason,) = {part.reason for part in report.remedy.unmendable}
    assert "would refuse entries via 192.0.2.1" in reason
    assert reason.endswith('{"destination": "192.0.2.1/32", "gateway": "onlink"}')
    own = StaticRoute(IPv4Network("192.0.2.1"), "onlink")
    patient.apply([own])
    after = patient.check().remedy
    assert covered(after.routes) == {address for cidr in LOST_GATEWAY.cidrs for address in cidr}
    patient.apply([own, *after.routes])
    assert patient.check().verdict == "ok"


def test_entries_by_an_onlink_gateway_that_table_local_claims_are_not_proposed(tmp_path: Path) -> None:
    kernel = FakeKernel()
    CLAIMED_GATEWAY.world.build(kernel)
    report = Patient(kernel, CLAIMED_GATEWAY, tmp_path).check()
    assert (report.remedy.routes, {finding.fix for finding in report.findings}) == ((), {()})
    (part,) = report.remedy.unmendable
    claim = next(route for route in kernel.routes(Table.LOCAL) if route.destination.prefixlen == 30)
    assert str(claim) in part.reason
    assert kernel.delete([claim]) == ()
    mend(Patient(kernel, CLAIMED_GATEWAY, tmp_path), few=not IS_NIGHTLY)


def test_entries_by_a_gateway_that_a_rule_discards_need_another_rule(tmp_path: Path) -> None:
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
    (part,) = patient.check().remedy.unmendable
    assert "via 10.1.0.1: by its rules " in part.reason
    mend(patient, few=not IS_NIGHTLY)


def test_a_throw_for_one_address_is_named_as_what_no_route_beats(tmp_path: Path) -> None:
    kernel = FakeKernel()
    build_node(kernel)
    play(kernel, "route add throw 10.9.0.7 proto static")
    patient = Patient(kernel, Question(World((), ()), (IPv4Network("10.9.0.0/24"),)), tmp_path)
    (part,) = patient.check().remedy.unmendable
    assert part.reason.startswith("throw 10.9.0.7 proto static ")
    mend(patient, few=not IS_NIGHTLY)
