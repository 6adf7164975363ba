"""Check with a state machine that ``FakeKernel``, Linux and the backends in examples/ behave
identically.
"""

from __future__ import annotations

import errno
import os
import re
import unittest
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from ipaddress import IPv4Address, IPv4Network
from itertools import permutations
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import Phase, settings
from ip_command_backend import IpCommandBackend
from needs import needs_encapsulation
from nightly import IS_NIGHTLY, by_day, some
from node import GATEWAY, like_linux, on_linux, run_ip, until
from pyroute2_backend import Pyroute2Backend
from wanted import config

import phases
from hostrouting import ConfigureStaticRoutes, Host, Layout, RouteError, check
from hostrouting.kernel.forwarding import ForwardingBackend
from hostrouting.kernel.memory import FakeKernel
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.kernel.port import Facts, Kernel, RouteBackend, Sent, Write, read_routes
from hostrouting.kernel.selection import EVERYTHING, Entries, Selection, WholeEntries
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.lookups import Lookup, RouteFailure, RuleFailure
from hostrouting.model.routes import NextHop, Protocol, Route, Table
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.testing import FakeSystemd
from hostrouting.testing.conformance import (
    ConformanceMachine,
    DisagreementError,
    conformance_test,
    pair,
)

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(by_day(300, by_night=7200))]


TestLinux = conformance_test(
    lambda: nullcontext(on_linux()),
    max_examples=by_day(3, by_night=5000),
    steps=by_day(12, by_night=40),
)


# --- the state machine itself ---------------------------------------------------------------------


class _LaxKernel(FakeKernel):
    """A backend that ignores the requested table and returns routes from all tables."""

    def entries(self, wanted: Selection = EVERYTHING) -> Entries:
        return super().entries(attrs.evolve(wanted, table=None))


class _Listening:
    """A listener that always or never hears of a change."""

    def __init__(self, *, has_happened: bool) -> None:
        self._has_happened = has_happened

    def happened(self) -> bool:
        return self._has_happened

    def wait(self, scope: phases.CancelScope) -> None:
        scope.check()


class _AlwaysHappening(ForwardingBackend):
    def changes(self, inside: Any = None) -> Any:
        return nullcontext(_Listening(has_happened=True))


class _DeafWithoutPrefixes(ForwardingBackend):
    def changes(self, inside: Any = None) -> Any:
        return super().changes(inside or ())


class _ReplacingRules(ForwardingBackend):
    def write_rules(self, change: Write, rules: Sequence[Rule]) -> tuple[RuleFailure, ...]:
        return () if change is Write.REPLACE else super().write_rules(change, rules)


class _DeletingLoosely(ForwardingBackend):
    def write_rules(self, change: Write, rules: Sequence[Rule]) -> tuple[RuleFailure, ...]:
        failures = super().write_rules(change, rules)
        return tuple(each for each in failures if each.errno != errno.ENOTRECOVERABLE)


class _LosingGroups(ForwardingBackend):
    def facts(self) -> Facts:
        facts = super().facts()
        return attrs.evolve(facts, links=tuple(attrs.evolve(each, group=0) for each in facts.links))


class _LosingTunnels(ForwardingBackend):
    def facts(self) -> Facts:
        facts = super().facts()
        rules = tuple(attrs.evolve(each, tun_id=0) for each in facts.rules)
        return attrs.evolve(facts, rules=rules)


@pytest.mark.parametrize(
    ("backend", "told"),
    [
        (_LosingTunnels, "rules differ:"),
        (_LosingGroups, "links differ:"),
        (_AlwaysHappening, "keeps reporting changes, although nothing changes"),
        (_DeafWithoutPrefixes, "didn't notice that unreachable 10.77.0.0/16"),
        (_ReplacingRules, "returned () for Write.REPLACE; expected a ValueError"),
        (_DeletingLoosely, "refusals differ:"),
    ],
)
def test_a_rare_mistake_is_found_by_the_first_example(
    backend: Callable[[RouteBackend], RouteBackend], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hostrouting.testing.conformance._HEARD_SECONDS", 0.2)

    @contextmanager
    def kernel() -> Iterator[Kernel]:
        world = on_linux()
        yield pair(backend(NetlinkBackend()), world=world)

    test_case = conformance_test(kernel, max_examples=1, steps=1)
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(test_case).run(result)
    ((_, error),) = result.errors
    assert told in error


def test_a_disagreement_is_reported_without_shrinking() -> None:
    """Hypothesis runs the failing example once more to report it; to shrink it, it would try others
    first.
    """
    made: list[_LaxKernel] = []

    @contextmanager
    def lax_kernel() -> Iterator[Kernel]:
        made.append(_LaxKernel(os.uname().release))
        yield made[-1]

    test_case = conformance_test(lax_kernel, max_examples=30, steps=20)
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(test_case).run(result)
    ((_, error),) = result.errors
    assert "DisagreementError: entries of Selection(table=" in error
    assert len(made) <= 4


class _OneSourceKernel(FakeKernel):
    """A backend that returns only the first source of each entry."""

    def sources(
        self, sent: Sequence[Sent], *, is_tcp: bool = False
    ) -> tuple[tuple[IpAddress, ...], ...]:
        return tuple(each[:1] for each in super().sources(sent, is_tcp=is_tcp))


class _NumberKernel(FakeKernel):
    """A backend that doesn't know the name of a table, and loses the last entry."""

    def entries(self, wanted: Selection = EVERYTHING) -> Entries:
        routes = [*super().entries(wanted)]
        return WholeEntries(attrs.evolve(each, table=int(each.table)) for each in routes[:-1])


def disagreement_of(make: Callable[[str], Kernel]) -> str:
    test_case = conformance_test(
        lambda: nullcontext(make(os.uname().release)), max_examples=300, steps=30
    )
    test_case.settings = settings(test_case.settings, derandomize=True)  # type: ignore[attr-defined]
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(test_case).run(result)
    ((_, error),) = result.errors
    return error


class _DeafKernel(FakeKernel):
    """A backend that doesn't tell lookups by TCP from others."""

    def lookup(
        self,
        addresses: Sequence[IpAddress],
        *,
        source: IpAddress | None = None,
        is_tcp: bool = False,
    ) -> tuple[Lookup, ...]:
        del is_tcp
        return super().lookup(addresses, source=source)


class _EvenKernel(FakeKernel):
    """A backend that gives all next hops of a route the same weight."""

    def write(self, change: Write, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        hops = [[attrs.evolve(hop, weight=1) for hop in each.hops] for each in routes]
        even = [
            attrs.evolve(each, hops=tuple(those)) for each, those in zip(routes, hops, strict=True)
        ]
        refused = super().write(change, even)
        return tuple(each._replace(route=routes[even.index(each.route)]) for each in refused)


# A search for the deaf one takes seconds. By day, the next test shows that it would be found.
@pytest.mark.parametrize("kind", [_EvenKernel, *([_DeafKernel] if IS_NIGHTLY else [])])
def test_a_mistake_that_seldom_matters_is_found(kind: Callable[[str], Kernel]) -> None:
    assert "DisagreementError: " in disagreement_of(kind)


def test_a_lookup_that_ignores_tcp_is_found() -> None:
    class Machine(ConformanceMachine):
        make_kernel = staticmethod(lambda: nullcontext(_DeafKernel(os.uname().release)))

    machine = Machine()
    machine.furnish(is_furnished=True)
    machine.agrees()
    machine.write_rules([Rule(100, RuleAction.PROHIBIT, ip_protocol=6)], Write.ADD)
    with pytest.raises(DisagreementError, match="lookups.* differ:"):
        machine.agrees()


def test_a_missing_source_of_a_multipath_route_is_found() -> None:
    class Machine(ConformanceMachine):
        make_kernel = staticmethod(lambda: nullcontext(_OneSourceKernel(os.uname().release)))

    hops = (NextHop("v0", IPv4Address("10.0.0.9")), NextHop("v1", IPv4Address("10.0.1.9")))
    machine = Machine()
    machine.furnish(is_furnished=True)
    machine.add(routes=[Route(IPv4Network("0.0.0.0/0"), hops)])
    with pytest.raises(DisagreementError, match="sources differ:") as caught:
        machine.agrees()
    assert re.search(
        r"^-\(.* nexthop .*, \(10\.0\.\d\.\d+, .*\)\)$", str(caught.value), re.MULTILINE
    )


def test_a_difference_is_told_in_ips_words() -> None:
    """Only what differs, and which side is which."""
    error = disagreement_of(_NumberKernel)
    told = error.partition("DisagreementError: ")[2].splitlines()
    assert told[1:3] == ["--- reference: FakeKernel", "+++ candidate: yours"]
    changed = [line for line in told[3:] if line[:1] in ("-", "+")]
    assert len(changed) == 1
    assert re.match(r"-.*\d+\.\d+\.\d+\.\d+.* dev ", changed[0])


class _Kernel6(FakeKernel):
    family = Family.IPV6


class _StrictKernel(FakeKernel):
    """A backend that refuses all routes for another reason than the kernel."""

    def write(self, change: Write, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        return tuple(RouteFailure(route, errno.ECANCELED, "not today") for route in routes)


def test_a_difference_shows_the_reason_of_a_refusal() -> None:
    error = disagreement_of(_StrictKernel)
    assert "DisagreementError: refusals differ:" in error
    assert re.search(rf"^\+.*: errno {errno.ECANCELED} \(not today\)$", error, re.MULTILINE)


def test_a_pair_has_a_short_repr() -> None:
    kernel = FakeKernel()
    shown = "pair(<FakeKernel with lo>, world=<FakeKernel with lo>)"
    assert repr(pair(kernel, world=kernel)) == shown


def test_the_arguments_set_only_what_they_name() -> None:
    few = settings_of(max_examples=7, steps=9)
    usual = settings_of()
    assert (few.max_examples, few.stateful_step_count) == (7, 9)
    assert (usual.max_examples, usual.stateful_step_count) == (
        settings().max_examples,
        settings().stateful_step_count,
    )
    assert Phase.shrink not in (*few.phases, *usual.phases)
    assert Phase.shrink in settings_of(shrink=True).phases


def settings_of(**given: Any) -> settings:
    test_case = conformance_test(lambda: nullcontext(FakeKernel()), **given)
    found: settings = test_case.settings  # type: ignore[attr-defined]
    return found


def test_an_incomplete_backend_is_refused() -> None:
    class Mine:
        family = Family.IPV4

    mine: Any = Mine()
    with pytest.raises(TypeError, match=r"pair\(\) takes a RouteBackend; Mine lacks changes, entr"):
        pair(mine, world=FakeKernel())


def test_a_backend_for_ipv6_is_refused() -> None:
    """All prefixes that the machine tries are IPv4."""
    kernel = FakeKernel()
    with pytest.raises(TypeError, match=r"^pair\(\) takes a backend for IPv4, not for IPv6: Netl"):
        pair(NetlinkBackend6(), world=kernel)
    with pytest.raises(TypeError, match=r"^pair\(world=…\) takes a backend for IPv4"):
        pair(kernel, world=_Kernel6())
    lacking: Any = NetlinkBackend()
    with pytest.raises(TypeError, match=r"^pair\(world=…\) takes a Kernel; NetlinkBackend lacks"):
        pair(kernel, world=lacking)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (NetlinkBackend(), "conformance_test() takes a Kernel; NetlinkBackend lacks add_address"),
        (_Kernel6(), "conformance_test() takes a backend for IPv4, not for IPv6: "),
    ],
    ids=["without a world", "for IPv6"],
)
def test_a_kernel_that_does_not_suit_is_refused(kernel: Any, message: str) -> None:
    test_case = conformance_test(lambda: nullcontext(kernel), max_examples=1, steps=1)
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(test_case).run(result)
    ((_, error),) = result.errors
    assert f"TypeError: {message}" in error


_PREFIX = IPv4Network("10.2.0.0/16")
_SOME_RULES = (
    Rule(10, table=100),
    Rule(10, table=101),
    Rule(11, table=100),
    Rule(10, table=100, source=_PREFIX),
    Rule(10, table=100, destination=_PREFIX),
    Rule(10, table=100, source=_PREFIX, is_inverted=True),
    Rule(10, table=100, tos=4),
    Rule(10, table=100, mark=3),
    Rule(10, table=100, ip_protocol=6),
    Rule(10, table=100, iif="lo"),
    Rule(10, table=100, suppress_prefix_length=0),
    Rule(10, action=RuleAction.GOTO, goto=10),
    Rule(10, action=RuleAction.GOTO, goto=20),
    Rule(10, action=RuleAction.GOTO, goto=30),
    Rule(10, action=RuleAction.BLACKHOLE),
    Rule(10, table=100, protocol=Protocol.HOSTROUTING),
    Rule(10, table=100, protocol=Protocol.HOSTROUTING, destination=_PREFIX),
)


def test_the_same_rules_are_refused() -> None:
    """The kernel takes some rules for others."""
    kernels = on_linux(), like_linux()
    for pair_of_rules in permutations(_SOME_RULES, 2):
        left = [_after_adding(kernel, pair_of_rules) for kernel in kernels]
        assert left[0] == left[1], pair_of_rules


def test_the_same_rules_are_deleted() -> None:
    """The kernel deletes the first rule that matches, which may be another one."""
    linux, memory = on_linux(), like_linux()
    for first, second in some(permutations(_SOME_RULES, 2), one_of=2):
        for request in _SOME_RULES if IS_NIGHTLY else (first, second, _SOME_RULES[0]):
            left = [_left_after(request, kernel, first, second) for kernel in (linux, memory)]
            assert left[0] == left[1], (first, second, request)


def _after_adding(kernel: Kernel, rules: Sequence[Rule]) -> Sequence[Rule]:
    """Return the rules after these were added one by one, and remove them."""
    for each in rules:
        with suppress(RouteError):
            kernel.add_rule(each)
    left = kernel.facts().rules
    _delete_ours(kernel, left)
    return left


def _delete_ours(kernel: Kernel, rules: Iterable[Rule]) -> None:
    for each in rules:
        if each.preference in (10, 11):
            kernel.del_rule(each)


def _left_after(request: Rule, kernel: Kernel, *rules: Rule) -> object:
    """Return the errnos of a loose and an exact deletion, and the rules that they leave."""
    for each in rules:
        with suppress(RouteError):
            kernel.add_rule(each)
    refused: list[int | None] = []
    try:
        kernel.del_rule(request)
    except RouteError as error:
        refused.append(error.errno)
    refused += [failure.errno for failure in kernel.write_rules(Write.DELETE, [request])]
    left = kernel.facts().rules
    _delete_ours(kernel, left)
    return refused, left


# --- the backends in examples/ --------------------------------------------------------------------


def on_linux_with(backend: Callable[[], RouteBackend]) -> type[unittest.TestCase]:
    test_case = conformance_test(
        lambda: nullcontext(pair(world=on_linux(), backend=backend())),
        max_examples=by_day(1, by_night=12),
        steps=by_day(4, by_night=15),
    )
    # The examples are deterministic because one in several hundred random ones had an errno that
    # ip doesn't print.
    test_case.settings = settings(test_case.settings, derandomize=True)  # type: ignore[attr-defined]
    return test_case


TestIpCommandBackend = on_linux_with(IpCommandBackend)
TestPyroute2Backend = on_linux_with(Pyroute2Backend)

BACKENDS = pytest.mark.parametrize("backend", [IpCommandBackend, Pyroute2Backend])

WANTED = Route(IPv4Network("172.16.1.0/24"), (NextHop("eth0", GATEWAY),))


@BACKENDS
def test_a_host_works_with_it(
    node: NamespaceKernel, tmp_path: Path, backend: Callable[[], RouteBackend]
) -> None:
    host = Host(routes=backend(), units=FakeSystemd(), layout=Layout(tmp_path))
    task = ConfigureStaticRoutes(config("172.16.1.0/24", cidrs=()), host=host)
    assert phases.run(task).plan.add == (WANTED,)
    assert phases.run(task).plan.unchanged == (WANTED,)
    assert WANTED in read_routes(node)


_TUNNELS = """
    tuntap add dev tun0 mode tun
    link set tun0 up
    rule add preference 30 tun_id 7 table 9
    route add 172.20.0.0/16 encap seg6 mode encap segs fc00::1 dev eth0
    route add 172.21.0.0/16 nexthop encap seg6 mode encap segs fc00::1 dev eth0 nexthop dev ib0
    route add 172.22.0.0/16 tos 0x10 metric 5 encap ip id 5 dst 10.1.0.9 tos 0x08 dev eth0
    route add 172.23.0.0/16 encap ip id 5 dst 10.1.0.9 tos 0x08 dev eth0
    route add 172.24.0.0/16 encap ip6 id 5 dst fc00::1 dev eth0
    route add 172.25.0.0/16 dev tun0
"""


@BACKENDS
@pytest.mark.usefixtures("node")
def test_it_reads_tunnels_as_netlink_does(backend: Callable[[], RouteBackend]) -> None:
    """``FakeKernel`` has no encapsulation, and no ``tun`` comes from ``NamespaceKernel``."""
    needs_encapsulation("seg6")
    run_ip(_TUNNELS)
    mine, netlink = backend(), NetlinkBackend()
    assert any(each.is_point_to_point for each in netlink.facts().links)
    assert any(each.tun_id for each in netlink.facts().rules)
    assert sum(bool(each.encap) for each in read_routes(netlink)) == 2
    assert mine.facts() == netlink.facts()
    assert [*mine.entries()] == [*netlink.entries()]
    asked = [IPv4Address(f"172.{number}.0.9") for number in range(20, 26)]
    assert mine.lookup(asked) == netlink.lookup(asked)


@BACKENDS
@pytest.mark.parametrize(
    "words",
    [
        "rule add preference 30 tun_id 7 table 9\nroute add {} via 10.1.0.1 dev eth0 table 9",
        "route add {} encap seg6 mode encap segs fc00::1 dev eth0",
    ],
    ids=["a rule", "a route"],
)
@pytest.mark.usefixtures("node")
def test_what_is_decided_elsewhere_is_decided_alike(
    words: str, backend: Callable[[], RouteBackend], tmp_path: Path
) -> None:
    needs_encapsulation("seg6")
    cidr = "172.20.0.0/16"
    run_ip(words.format(cidr))

    def reported(routes: RouteBackend) -> object:
        host = Host(routes=routes, units=FakeSystemd(), layout=Layout(tmp_path))
        report = check(config(cidrs=[cidr]), host=host)
        return report.verdict, report.findings, report.reason, report.notes

    assert reported(backend()) == reported(NetlinkBackend())


@BACKENDS
@pytest.mark.usefixtures("node")
def test_its_lookups_by_tcp_and_its_sources_are_netlinks(
    backend: Callable[[], RouteBackend],
) -> None:
    """Several packets may all take the hop with the greater weight."""
    run_ip(
        "addr add 10.2.0.4/24 dev ib0",
        "rule add preference 30 ipproto tcp table 9",
        "route add 172.20.0.0/16 via 10.1.0.1 dev eth0 table 9",
        "route add 172.20.0.0/16 nexthop via 10.1.0.1 dev eth0 weight 1 "
        "nexthop via 10.2.0.1 dev ib0 weight 200",
    )
    mine, netlink, asked = backend(), NetlinkBackend(), IPv4Address("172.20.0.9")
    (by_udp,), (by_tcp,) = (mine.lookup([asked], is_tcp=is_tcp) for is_tcp in (False, True))
    assert ((by_udp,), (by_tcp,)) == (netlink.lookup([asked]), netlink.lookup([asked], is_tcp=True))
    assert by_udp.route != by_tcp.route
    for addresses in ([], [asked], [asked, asked]):
        for is_tcp, entry in ((False, by_udp.route), (True, by_tcp.route)):
            sent = [(entry, addresses)]
            assert mine.sources(sent, is_tcp=is_tcp) == netlink.sources(sent, is_tcp=is_tcp)


@BACKENDS
@pytest.mark.usefixtures("node")
def test_its_failures_have_route_errno_and_reason(backend: Callable[[], RouteBackend]) -> None:
    far = Route(IPv4Network("10.9.0.0/16"), (NextHop("eth0", IPv4Address("10.99.0.1")),))
    (failure,) = backend().write(Write.ADD, [far, WANTED])
    assert (failure.route, failure.errno) == (far, errno.ENETUNREACH)
    assert "Nexthop has invalid gateway" in failure.message
    (failure,) = backend().write(Write.ADD, [WANTED])
    assert failure.errno == errno.EEXIST


@BACKENDS
@pytest.mark.parametrize("has_address", [True, False])
def test_a_hop_is_dead_only_if_it_gets_no_packets(
    node: NamespaceKernel, backend: Callable[[], RouteBackend], *, has_address: bool
) -> None:
    """The kernel shows the same words in both cases."""
    run_ip(
        "addr add 10.2.0.4/24 dev ib0\n"
        "route add 10.5.0.0/16 nexthop via 10.1.0.1 dev eth0 nexthop via 10.2.0.1 dev ib0"
    )
    node.set_link("ib0", carrier=False)
    until(
        lambda: any(hop.is_linkdown for each in read_routes(node, Table.MAIN) for hop in each.hops)
    )
    Path("/proc/sys/net/ipv4/conf/ib0/ignore_routes_with_linkdown").write_text("1")
    if not has_address:
        run_ip("addr flush dev ib0")
    asked = backend()
    (answer,) = asked.lookup([IPv4Address("10.5.0.9")])
    (legs,) = (route for route in read_routes(asked, Table.MAIN) if len(route.hops) == 2)
    assert answer.route == legs
    assert [(hop.dev, hop.is_dead, hop.is_linkdown) for hop in legs.hops] == [
        ("eth0", False, False),
        ("ib0", not has_address, True),
    ]


def test_no_ip_is_a_route_error(kernel: NamespaceKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RouteError, match="part of iproute2"):
        IpCommandBackend().facts()
