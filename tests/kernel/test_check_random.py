"""Compare the check on random hosts with brute force for every address and with ip(8), and prove
its fixes.

A fix has to resolve the failures that it names, change nothing else, and have no unnecessary entry.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network
from itertools import compress
from pathlib import Path

import asking
import attrs
import pytest
from asking import ETH0, NODE, Case, leaving
from brute_force import Judge, Sort, default_route, disagreements, judged, live, sort_all
from fixing import changed, covered, failing, found, install
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from needs import NO_BROADCAST, needs_linux
from nightly import IS_NIGHTLY, by_day
from node import DEFAULT, attempt, build_node, nics, on_linux, run_ip, until
from scenario import play
from worlds import DEVICES, Question, World, as_expected
from worlds.cut import questions
from worlds.hosts import section
from worlds.seldom import (
    BLACKHOLED_GATEWAY,
    CLAIMED_GATEWAY,
    EXPECTED_LOST_GATEWAY,
    LOST_GATEWAY,
    ODD_NAME,
    PASSED_DISCARD,
    SELDOM,
    UDP_REFUSED,
    question,
)

import phases
from hostrouting import (
    Config,
    ExpectedCidr,
    Host,
    OverlapReport,
    RouteError,
    RouteOverlap,
    StaticRoute,
    check,
)
from hostrouting.config.routing import StaticRule
from hostrouting.kernel.memory import FakeKernel
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.port import Kernel, Write, read_routes
from hostrouting.kernel.taking_snapshots import take_snapshot
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.links import Link
from hostrouting.model.parsing import is_device, is_inside
from hostrouting.model.routes import NextHop, Protocol, Route, RouteType, Table
from hostrouting.model.rules import Rule
from hostrouting.model.verified_uplinks import VerifiedUplink
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.proposals import Fix
from hostrouting.routes.policy import resolve_policy
from hostrouting.routes.resolve import resolve

_SETTINGS = settings(
    max_examples=by_day(2, by_night=5000),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@attrs.frozen
class Recorded:
    """An uplink in a host's record.

    Args:
        dev: the interface that it is by now, if that exists.
        is_renamed: whether it is recorded with the address of this interface, but under another
            name; otherwise with this name and an address that nothing has.
    """

    dev: str
    is_renamed: bool

    def of(self, links: Iterable[Link]) -> VerifiedUplink:
        macs = {link.name: link.mac for link in links}
        if self.is_renamed and macs.get(self.dev):
            return VerifiedUplink("was0", macs[self.dev])
        return VerifiedUplink(self.dev, "02:00:00:00:00:99")


RECORDS = st.lists(
    st.builds(Recorded, st.sampled_from((*DEVICES[:3], "gone0")), st.booleans()),
    max_size=2,
    unique_by=lambda recorded: recorded.dev,
)


def verified_of(kernel: Kernel, record: Iterable[Recorded]) -> tuple[VerifiedUplink, ...]:
    return tuple(each.of(kernel.facts().links) for each in record)


def uplinks_of(kernel: Kernel, record: Iterable[Recorded]) -> tuple[str, ...]:
    """Return the interfaces that recorded ones are by now. A bridge takes the place of its port."""
    masters = {link.name: link.master for link in kernel.facts().links}
    return tuple(sorted({masters[each.dev] or each.dev for each in record if each.dev in masters}))


def compare(kernel: Kernel, question: Question, record: Sequence[Recorded] = ()) -> None:
    question.world.build(kernel)
    verified, uplinks = verified_of(kernel, record), uplinks_of(kernel, record)
    config, report = asking.checked(
        kernel, question.cidrs, question.allowed, question.foreseen, verified=verified
    )
    judge = Judge(
        kernel,
        config.route_overlap,
        had_rules=question.world.has_rules,
        uplinks=uplinks,
    )
    is_contested = judge.has_a_containers_default() or (record and len({*judge.rivals}) > 1)
    is_unknown = not uplinks and (judge.default is None or is_contested)
    if is_unknown or judge.is_deaf():
        assert report.verdict == "unknown"
        return
    sorts = {cidr: sort_all(kernel, judge, judged(cidr), cidr) for cidr in question.cidrs}
    _see(disagreements(report, judge, sorts), kernel)


def _see(wrong: list[str], kernel: Kernel) -> None:
    if wrong:
        entries = "\n  ".join(map(str, (*read_routes(kernel), *kernel.facts().rules)))
        raise AssertionError("\n".join(wrong[:20]) + f"\n\n  {entries}")


@pytest.mark.parametrize("question", SELDOM)
def test_in_memory_rare_hosts_agree_with_brute_force(question: Question) -> None:
    compare(FakeKernel(), question)


@pytest.mark.kernel
@settings(_SETTINGS)
@given(question=questions(has_objects=True), record=RECORDS)
def test_on_linux_the_check_agrees_with_brute_force(
    question: Question, record: list[Recorded]
) -> None:
    compare(on_linux(), question, record)


# --- fixes ----------------------------------------------------------------------------------------

_FIX_SETTINGS = settings(
    max_examples=by_day(2, by_night=2000),
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """Create a directory for the lock, shared by all Hypothesis examples."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@attrs.frozen
class Patient:
    """A host with failures, its config and its check.

    Args:
        kernel: the host's kernel.
        question: the host's config.
        root: root directory for the host's files.
        is_named: whether the config names the default route's interfaces as uplinks, so that no fix
            needs an answer.
        record: the recorded uplinks, which don't count if the config names the uplinks.
    """

    kernel: Kernel
    question: Question
    root: Path
    is_named: bool = True
    record: Sequence[Recorded] = ()

    def check(self) -> OverlapReport:
        question = self.question
        default = default_route(read_routes(self.kernel)) if self.is_named else None
        named = () if default is None or not all(map(is_device, live(default))) else live(default)
        return asking.checked(
            self.kernel,
            question.cidrs,
            question.allowed,
            question.foreseen,
            sorted(named),
            verified_of(self.kernel, self.record),
        )[1]

    def sorts(self) -> dict[IpAddress, Sort]:
        """Classify each expected address by brute force."""
        overlap = RouteOverlap(self.question.cidrs, allowed_devs=self.question.allowed)
        judge = Judge(
            self.kernel,
            overlap,
            had_rules=len(self.kernel.facts().rules) > 3 or self.question.world.has_rules,
            uplinks=uplinks_of(self.kernel, self.record),
        )
        each = [sort_all(self.kernel, judge, judged(cidr), cidr) for cidr in self.question.cidrs]
        # What is a CNI's own block in one CIDR may be none in another.
        parts = (item for found in each for item in found.items())
        return dict(sorted(parts, key=lambda item: (item[0], item[1].has_failure)))

    def apply(self, entries: Sequence[StaticRoute], rules: Sequence[StaticRule] = ()) -> None:
        verified = verified_of(self.kernel, self.record)
        install(self.kernel, entries, self.root, rules, verified=verified)

    def is_mendable(self, address: IpAddress, devs: Sequence[str]) -> bool:
        """Return whether a host route would fix an address, provided that nothing else rules it
        out.
        """
        routes = read_routes(self.kernel)
        is_gateway = any(hop.gateway == address for route in routes for hop in route.hops)
        has_route = any(
            route.destination == IPv4Network(address) and route.table == Table.MAIN
            for route in routes
        )
        if is_gateway or has_route or "docker0" in devs:
            return False
        try:
            self.apply([StaticRoute(IPv4Network(address))])
        except RouteError:
            return False
        return address not in failing(self.sorts())

    def connected(self) -> tuple[str, ...]:
        return tuple(str(route) for route in read_routes(self.kernel) if route.is_connected)


def see_fix(patient: Patient, *, few: bool) -> None:
    """Apply the fix, whole and in parts, and check that every address behaves as predicted.

    Args:
        patient: a host.
        few: whether to test a single entry and a single finding, which is faster.
    """
    report = patient.check()
    fix = report.fix
    if not report.findings:
        assert fix == Fix()
        return
    before = patient.sorts()
    hopeless = {address for part in fix.unfixable for network in part.ranges for address in network}
    of_connections = [
        part for part in fix.unfixable if re.search(" for (connections|TCP)", part.reason)
    ]
    never = [part for part in fix.unfixable if part not in of_connections]
    assert hopeless <= failing(before), "what was fine is called unfixable"
    _see_what_is_covered(fix, before)
    assert {entry for finding in report.findings for entry in finding.fix} == set(fix.routes)
    assert {rule for finding in report.findings for rule in finding.rules} == set(fix.rules)
    left = failing(before) - covered(fix.routes, fix.rules)
    assert left <= hopeless, "left out without a word"

    connected = patient.connected()
    patient.apply(fix.routes, fix.rules)
    again, after = patient.check(), patient.sorts()
    assert failing(after) == hopeless, f"it still fails: {again.findings}"
    assert found(again) == hopeless
    assert changed(fix, before, after) == set()
    assert patient.connected() == connected

    for entry in fix.routes[:1] if few else fix.routes[:8]:
        others = [other for other in fix.routes if other != entry]
        patient.apply(others, fix.rules)
        # A nested entry may be redundant only if it keeps its addresses on-link.
        is_link = entry.gateway == "onlink" and any(
            is_inside(entry.destination, o.destination) for o in others
        )
        assert is_link or found(patient.check()) & covered([entry]), f"{entry} is idle"
    for rule in fix.rules[:1] if few else fix.rules[:8]:
        try:
            patient.apply(fix.routes, [other for other in fix.rules if other != rule])
        except RouteError:
            continue  # without the rule, a route doesn't win
        assert found(patient.check()) & covered([], [rule]), f"{rule} is idle"
    # If a connection's first lookup fails, it may match another rule after the fix, because its
    # source changes.
    findings = [finding for finding in report.findings if finding.source is None]
    for finding in findings[:1] if few else findings[:4]:
        patient.apply(finding.fix, finding.rules)
        there = {address for part in finding.ranges for address in part}
        still = found(patient.check())
        assert there & still <= hopeless, f"the fix of {finding.message} leaves it"
    patient.apply([])
    assert patient.connected() == connected
    assert patient.sorts() == before
    # A single route could fix these. Without uplinks in the config, other default interfaces'
    # subnets are left alone, and an interface that no config can name keeps its subnet.
    left_alone = re.compile("has a default route too|a name that no config accepts")
    hopeless_parts = [
        part for part in never if not (part.obstacle.is_withheld or left_alone.search(part.reason))
    ]
    for part in hopeless_parts[:1] if few else hopeless_parts[:4]:
        assert not patient.is_mendable(part.ranges[0][0], part.devs), f"one route would fix {part}"


def _see_what_is_covered(fix: Fix, before: dict[IpAddress, Sort]) -> None:
    """Check that routes cover no place that doesn't fail, unless it has a longer one in main.

    What a rule covers leaves as before, or fails now; ``changed`` compares that.
    """
    of_rules = covered([], fix.rules)
    assert of_rules <= before.keys(), "a rule covers what isn't asked about"
    for entry in fix.routes:
        assert all(address in before for address in entry.destination), (
            f"{entry} covers what isn't asked about"
        )
        sorts = [before[address] for address in entry.destination if address not in of_rules]
        failing_now = [before[address] for address in entry.destination]
        assert any(sort.is_failure for sort in failing_now), f"{entry} covers nothing that fails"
        for sort in sorts:
            if not sort.is_failure and sort.kind not in ("LOCAL", "BROADCAST"):
                assert sort.route is not None, f"{entry} covers {sort}"
                assert sort.route.table == Table.MAIN, f"{entry} covers {sort}"
                assert sort.route.destination.prefixlen > entry.destination.prefixlen, (
                    f"{entry} takes {sort}"
                )


@settings(_SETTINGS)
@given(
    question=st.one_of(questions(), questions(by_source=True)),
    is_listed=st.lists(st.booleans(), min_size=3, max_size=3),
    keep=st.lists(st.sampled_from(("eth0", "eth1", "ib*", "tun0")), max_size=2, unique=True),
)
def test_in_memory_each_failure_of_a_config_has_a_fix_or_a_reason(
    question: Question, is_listed: list[bool], keep: list[str]
) -> None:
    """The config lists routes and interfaces that the kernel lacks, or even refuses."""
    kernel = FakeKernel()
    question.world.build(kernel)
    cidrs = dict.fromkeys(expected.cidr for expected in as_expected(question.cidrs))
    routes = [{"destination": str(cidr)} for cidr in compress(cidrs, is_listed)]
    document = section(as_expected(question.cidrs), question.allowed, question.foreseen)
    document["staticRoutes"] = {"enabled": True, "routes": routes, "keep": keep}
    host = Host.recorded(take_snapshot(kernel))
    report = check(Config.from_mapping({"hostRouting": document}), host=host)
    fix = report.fix
    told = [part for each in fix.unfixable for part in each.ranges]
    for finding in report.findings:
        is_told = any(part.overlaps(other) for part in finding.ranges for other in told)
        is_fixed = finding.fix or finding.rules or fix.needs_apply
        # A listed route may win only with the fix's entries.
        assert is_told or is_fixed or (fix.would_fail and fix.entries.is_wanted), finding.message


@pytest.mark.kernel
@settings(_FIX_SETTINGS)
@given(
    question=st.one_of(questions(has_objects=True), questions(by_source=True)),
    record=st.none() | RECORDS,
)
def test_on_linux_the_fix_fixes_exactly_what_it_names(
    question: Question, record: list[Recorded] | None, root: Path
) -> None:
    """Also where neither the config nor a record names the uplinks."""
    kernel = on_linux()
    question.world.build(kernel)
    patient = Patient(kernel, question, root, is_named=record is None, record=record or ())
    see_fix(patient, few=not IS_NIGHTLY)


# --- hosts made by hand ---------------------------------------------------------------------------


def on_node(scenario: str) -> FakeKernel:
    """Build the scenario's node in memory."""
    kernel = FakeKernel()
    build_node(kernel)
    play(kernel, scenario)
    return kernel


NODE_AT_10_9 = """
    addr add 10.1.0.4/24 dev eth0
    addr add 10.2.0.4/24 dev eth1
    route add default via 10.1.0.1 dev eth0 proto dhcp
    expect 10.9.0.0/24
"""
BY_IB0 = f"{NODE_AT_10_9}route add 10.9.0.0/16 dev ib0 proto static"
IN_TABLE_100 = (
    "route add default via 10.2.0.1 dev eth1 table 100 proto static\n"
    "rule add pref 10 to 10.9.0.0/28 lookup 100"
)
AT_10_9, AT_10_0_1 = (
    ["10.9.0.16/28", "10.9.0.32/27", "10.9.0.64/26", "10.9.0.128/25"],
    ["10.0.1.0/25", "10.0.1.128/25"],
)
# For each host, the fix's entries and a part of the reason why they aren't enough.
RARE = {
    "another rule decides for a part": (
        question(f"{BY_IB0}\n{IN_TABLE_100}"),
        ["10.9.0.0/24"],
        "",
    ),
    "a rule discards the gateway": (
        question(f"{BY_IB0}\nrule add pref 10 to 10.1.0.0/24 prohibit"),
        [],
        "via 10.1.0.1: under the policy rules",
    ),
    "a throw route for one address": (
        question(f"{NODE_AT_10_9}route add throw 10.9.0.7 proto static"),
        [],
        "throw 10.9.0.7 proto static",
    ),
    "a discard behind other rules": (
        PASSED_DISCARD,
        ["10.0.0.0/26", "10.0.0.64/26", "10.0.1.0/26", "10.0.1.64/26"],
        "",
    ),
    "a gateway that became local": (
        CLAIMED_GATEWAY,
        [],
        "would refuse entries via 192.0.2.1, because it is in local",
    ),
    "a gateway behind the rules": (
        LOST_GATEWAY,
        [],
        "would refuse entries via 192.0.2.1: under the policy rules",
    ),
    "an expected gateway behind the rules": (
        EXPECTED_LOST_GATEWAY,
        ["10.0.0.0/25", "10.0.0.128/25"],
        "would refuse entries via 10.0.0.1",
    ),
    "a gateway that a route discards": (BLACKHOLED_GATEWAY, AT_10_0_1, ""),
    "a gateway that UDP doesn't reach": (UDP_REFUSED, AT_10_0_1, ""),
    "an interface whose name a config refuses": (
        ODD_NAME,
        [],
        "it is on the link of e$th, a name that no config accepts: rename it",
    ),
}


@pytest.mark.parametrize(("question", "entries", "reason"), RARE.values(), ids=RARE)
def test_a_rare_host_is_fixed_as_far_as_possible(
    question: Question, entries: list[str], reason: str, each_kernel: Kernel, tmp_path: Path
) -> None:
    question.world.build(each_kernel)
    patient = Patient(each_kernel, question, tmp_path)
    fix = patient.check().fix
    assert [str(entry.destination) for entry in fix.routes] == entries
    assert bool(fix.unfixable) == bool(reason)
    assert all(reason in part.reason for part in fix.unfixable)
    see_fix(patient, few=not IS_NIGHTLY)


def test_an_entry_never_covers_a_local_address_of_main(tmp_path: Path) -> None:
    kernel = on_node("")
    own = IPv4Network("10.9.0.70/32")
    local = Route(own, (NextHop("lo"),), RouteType.LOCAL, table=Table.LOCAL)
    shadow = Route(IPv4Network("10.9.0.64/28"), (NextHop("ib0"),), table=Table.LOCAL)
    assert kernel.write(Write.ADD, [local, shadow]) == ()
    kernel.add_rule(Rule(10, table=Table.MAIN, suppress_prefix_length=16))
    kernel.add_rule(Rule(11, table=Table.LOCAL))
    kernel.add_rule(Rule(5, table=Table.LOCAL, destination=IPv4Network("10.1.0.4/32")))
    kernel.del_rule(Rule(0, table=Table.LOCAL, protocol=Protocol.KERNEL))
    patient = Patient(kernel, Question(World((), ()), (IPv4Network("10.9.0.0/24"),)), tmp_path)
    entries = patient.check().fix.routes
    assert entries
    assert not any(is_inside(own, entry.destination) for entry in entries)
    see_fix(patient, few=not IS_NIGHTLY)


# --- fixes on Linux -------------------------------------------------------------------------------


@pytest.mark.kernel
def test_no_refused_entry_is_proposed_with_vrfs(kernel: NamespaceKernel) -> None:
    """The rule remains after the last VRF is deleted, but has no effect."""
    needs_linux(*NO_BROADCAST)
    run_ip(f"{NODE}\naddr add 10.5.0.1/24 dev ib0\n{DEFAULT}\nrule add pref 1000 l3mdev")
    run_ip("rule add pref 20 not to 10.5.0.0/16 unreachable")
    report = asking.checked(kernel, [IPv4Network("10.5.0.0/24")])[1]
    assert (report.verdict, report.fix.routes) == ("overlap", ())
    assert [str(each.ranges[0]) for each in report.fix.unfixable] == ["10.5.0.0/32"]
    assert attempt("ip", "route", "add", "10.5.0.0/25", "via", "10.1.0.1").returncode != 0


@pytest.mark.kernel
def test_no_entry_leads_to_a_link_without_a_carrier(
    kernel: NamespaceKernel, tmp_path: Path
) -> None:
    """The kernel keeps using the hop of an older route, but a new one would be dead."""
    run_ip(
        f"{NODE}\nroute add default nexthop via 10.1.0.1 dev eth0 onlink "
        "nexthop via 10.2.0.1 dev ib0 onlink"
    )
    Path("/proc/sys/net/ipv4/conf/all/ignore_routes_with_linkdown").write_text("1")
    run_ip("route add prohibit 10.2.0.64/26\nlink set peer-ib0 down")
    until(lambda: not {link.name: link for link in kernel.facts().links}["ib0"].has_carrier)
    report = asking.checked(kernel, [IPv4Network("10.2.0.64/26")])[1]
    assert [(str(entry.destination), entry.gateway) for entry in report.fix.routes] == [
        ("10.2.0.64/27", None),
        ("10.2.0.96/27", None),
    ]
    install(kernel, report.fix.routes, tmp_path)


@pytest.mark.kernel
def test_rules_for_any_source_of_a_fix_are_reported(kernel: NamespaceKernel) -> None:
    """An interface without an address borrows one from the first registered interface, which no
    dump reveals.
    """
    run_ip(f"""{nics("z0 index 90", "a0 index 60", "up0 index 70")}
        addr add 10.9.0.4/24 dev z0
        addr add 10.5.0.1/24 dev a0 metric 50
        route add default dev up0
        rule add from 10.9.0.4 to 10.5.0.0/24 blackhole
    """)
    fix = asking.checked(kernel, [IPv4Network("10.5.0.0/25")], uplinks=["up0"])[1].fix
    assert fix.routes
    assert any(
        IPv4Address("10.5.0.9") in network for each in fix.unfixable for network in each.ranges
    )
    run_ip("\n".join(f"route add {entry.destination} dev up0" for entry in fix.routes))
    assert leaving("10.5.0.9") == {None, "up0"}


LOST_SOURCE = """
    route add local 10.7.7.7 dev lo
    route add default via 10.1.0.1 src 10.7.7.7 {}
    route del local 10.7.7.7 dev lo table local
"""


@pytest.mark.kernel
def test_a_fix_has_no_source_that_was_removed(kernel: NamespaceKernel) -> None:
    case = Case(
        f"addr add 10.5.0.1/24 dev ib0\n{LOST_SOURCE.format('')}",
        cidr="10.5.0.0/24",
        node=ETH0,
        default="",
    )
    case.build()
    fix = check_overlap(case.config, kernel, phases.CancelScope()).fix
    main = read_routes(kernel, Table.MAIN)
    routes, missing = resolve(
        fix.routes, kernel.facts().links, kernel.facts().addresses, main, None
    )
    assert (fix.unfixable, missing, kernel.write(Write.ADD, routes)) == ((), None, ())
    assert check_overlap(case.config, kernel, phases.CancelScope()).verdict == "ok"


@pytest.mark.kernel
def test_a_fix_without_a_removed_source_needs_its_gateway(kernel: NamespaceKernel) -> None:
    """The rules hide the network of the gateway, which the default route needs no more, because it
    is onlink.
    """
    hidden = "rule add pref 5 lookup main suppress_prefixlength 24\nrule del pref 32766"
    case = Case(
        f"route add blackhole 10.5.0.0/25\n{LOST_SOURCE.format('dev eth0 onlink')}\n{hidden}",
        cidr="10.5.0.0/25",
        node=ETH0,
        default="",
    )
    case.build()
    fix = check_overlap(case.config, kernel, phases.CancelScope()).fix
    assert fix.routes == ()
    assert "under the policy rules" in fix.unfixable[0].reason


# --- failures with no fix or half of one ----------------------------------------------------------

UDP_ALONE = """
    route del default via 10.1.0.1 dev eth0 proto dhcp metric 100
    addr del 172.16.0.10/16 dev ib0
    addr add 172.16.0.10/22 dev ib0
    route add default proto dhcp nexthop via 10.1.0.1 dev eth0 nexthop via 10.2.0.1 dev eth1
    route add 128.0.0.0/1 via 10.2.0.1 dev eth1 table 101
    rule add pref 100 to 172.16.2.0/23 ipproto 17 lookup 101
"""
DISCARDED = """
    route add {kind} 10.9.0.0/16
    route add default via 10.2.0.1 dev eth1 table 100
    rule add pref 100 from 10.1.0.4/32 lookup 100
"""
SUPPRESSED = """
    route add 8.0.0.0/6 dev ib0 proto static
    route add 8.0.0.0/6 dev ib0 proto static table 100
    addr del 10.1.0.4/24 dev eth0
    addr del 10.2.0.4/24 dev eth1
    addr add 192.168.1.4/24 dev eth0
    route add default via 192.168.1.1 dev eth0 proto dhcp
    rule add pref 100 suppress_prefixlength 22 lookup main
    rule add pref 32767 lookup 100
    rule del pref 32767 lookup default proto kernel
"""
WIDE = ExpectedCidr("10.9.0.0/16")
# Each has a host, what it expects, how many entries the fix has, and a part of the reason why it
# isn't enough.
FIXES: dict[str, tuple[str, list[ExpectedCidr], int, str]] = {
    "an unexpected default route": (
        "route add 10.9.0.0/17 dev eth1",
        [ExpectedCidr("10.9.0.0/16", ["eth1"])],
        0,
        "no route through eth1 tells its next hop",
    ),
    "an entry that expects another interface": (
        "",
        [ExpectedCidr("10.2.0.0/16"), ExpectedCidr("10.2.0.0/24", ["eth1"])],
        0,
        "10.2.0.0/24 by eth1 is expected",
    ),
    **{
        f"a fixed {kind} route, and then a rule": (
            DISCARDED.format(kind=kind),
            [WIDE],
            2,
            "",
        )
        for kind in ("unreachable", "blackhole")
    },
    "TCP behind a rule for UDP": (
        UDP_ALONE,
        [ExpectedCidr("172.16.0.0/22")],
        1,
        "apply would refuse",
    ),
    "a suppressing rule": (SUPPRESSED, [ExpectedCidr("8.0.0.0/6")], 2, ""),
    "a suppressing rule alone": (
        f"{SUPPRESSED}rule del pref 32766 lookup main proto kernel",
        [ExpectedCidr("8.0.0.0/6")],
        0,
        "change the rule that skips",
    ),
}


@pytest.mark.parametrize(("has", "expected", "entries", "reason"), FIXES.values(), ids=FIXES)
def test_a_fix_goes_as_far_as_possible(
    has: str, expected: list[ExpectedCidr], entries: int, reason: str
) -> None:
    kernel = on_node(has)
    fix = asking.checked(kernel, expected)[1].fix
    assert (len(fix.routes), bool(fix.unfixable)) == (entries, bool(reason))
    assert all(reason in part.reason for part in fix.unfixable)
    routes, _ = resolve(
        fix.routes,
        kernel.facts().links,
        kernel.facts().addresses,
        read_routes(kernel, Table.MAIN),
        None,
    )
    assert kernel.write(Write.ADD, routes) == ()
    wanted = Config(static_routes=fix.entries)
    rules = resolve_policy(wanted, Family.IPV4, kernel.facts(), (), lambda _: None).rules
    assert kernel.write_rules(Write.ADD, rules) == ()
    assert bool(asking.checked(kernel, expected)[1].findings) == bool(reason)
