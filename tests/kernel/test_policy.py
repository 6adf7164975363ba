"""Tests that a config's rules and kept interfaces are installed, proven, put back and removed, on
Linux and in memory.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any

import attrs
import pytest
from node import GATEWAY, add_nics, build_node6, default_route, run_ip, run_ip6, tool

import phases
from hostrouting import (
    Config,
    Configure,
    Host,
    Layout,
    RemoveHostRouting,
    RouteError,
    RoutesReport,
    cli,
    explain,
    plan,
)
from hostrouting.backend import ForwardingBackend, NetlinkBackend, NetlinkBackend6
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.port import RouteBackend, Write, read_routes
from hostrouting.model.family import Family
from hostrouting.model.lookups import RouteFailure, RuleFailure
from hostrouting.model.routes import (
    SIDE_TABLES,
    NextHop,
    Protocol,
    Route,
    Route6,
    Scope,
    Table,
    how_to_delete_printed,
)
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.routes.formats import PlacedRule, as_ip
from hostrouting.routes.printed import read_printed
from hostrouting.tasks.install_routes import InstallRoutes
from hostrouting.testing import FakeKernel, FakeSystemd

AnyKernel = NamespaceKernel | FakeKernel

T = SIDE_TABLES[0]
VPN = 52
POD = "10.244.0.0/16"
IB_NETWORK = IPv4Network("172.16.0.0/16")
SECOND = IPv4Address("10.2.0.1")


def config(*routes: str, rules: Any = (), keep: Any = (), **more: Any) -> Config:
    static = {
        "enabled": True,
        "routes": [{"destination": each} for each in routes],
        "rules": [{"to": to, "priority": priority} for to, priority in rules],
        "keep": [*keep],
    }
    return Config.from_mapping({"hostRouting": {"staticRoutes": static, "waitSeconds": 0, **more}})


KEEPING = config("172.16.0.0/17", "172.16.128.0/17", keep=["ib*"])
BOTH = config(
    "172.16.0.0/17",
    rules=[(POD, 5269), ("10.96.0.0/12", 5269)],
    keep=["ib*", {"dev": "eth1", "gateway": str(SECOND)}],
)


def build_h200(kernel: AnyKernel, count: int = 2) -> None:
    """Build an H200 with a second NIC. All ``ib`` interfaces are in one network."""
    add_nics(kernel, eth0="10.1.0.4/24", eth1="10.2.0.4/24")
    assert not kernel.write(Write.ADD, [default_route()])
    add_nics(kernel, **{f"ib{number}": f"172.16.0.1{number}/16" for number in range(count)})


@pytest.fixture
def h200(each_kernel: AnyKernel) -> AnyKernel:
    build_h200(each_kernel)
    return each_kernel


@pytest.fixture
def on(tmp_path: Path) -> Callable[..., Host]:
    """Return a function that makes a host of a backend."""
    layout = Layout(tmp_path)
    layout.units.mkdir(parents=True)

    def make(backend: RouteBackend, backend6: RouteBackend | None = None) -> Host:
        return Host(backend, FakeSystemd(layout), layout, backend6)

    return make


def install(given: Config, host: Host) -> RoutesReport:
    return phases.run(InstallRoutes(given, host=host))


def state(backend: RouteBackend) -> tuple[list[str], list[str]]:
    """Return the routes outside of table local, and the rules."""
    routes = [str(route) for route in read_routes(backend) if route.table != 255]
    return sorted(routes), [f"{rule.preference}: {rule}" for rule in backend.facts().rules]


def our_rules(backend: RouteBackend) -> list[str]:
    return [f"{rule.preference}: {rule}" for rule in backend.facts().rules if rule.is_ours]


def side_routes(backend: RouteBackend) -> list[str]:
    return [str(route) for route in read_routes(backend) if route.table in SIDE_TABLES]


def words(report: RoutesReport) -> list[str]:
    changes = (*report.changes.routes, *report.changes.rules)
    return [f"{change.action} {change.what}" for change in changes]


def keep_in(network: IPv4Network | str, dev: str, table: int, source: str) -> str:
    return f"{network} dev {dev} table {table} proto hostrouting scope link src {source}"


@pytest.mark.parametrize("family", [Family.IPV4, Family.IPV6])
def test_what_fix_printed_is_deleted_by_its_mark(
    kernel: NamespaceKernel, on: Callable[..., Host], family: Family
) -> None:
    """The commands delete it in all tables, and nothing else."""
    build_h200(kernel)
    run_ip6("address add fd00:a::4/64 dev eth0 nodad")
    backend = kernel if family is Family.IPV4 else NetlinkBackend6()
    wide, narrow, gateway = {
        Family.IPV4: ("172.16.0.0/17", "172.16.9.0/24", GATEWAY),
        Family.IPV6: ("fd00:172::/32", "fd00:172:9::/48", "fd00:a::1"),
    }[family]
    run = run_ip if family is Family.IPV4 else run_ip6
    run(f"route add {narrow} via {gateway} dev eth0 proto static")
    run(f"rule add to {narrow} lookup main pref 5268 proto static")
    before = state(backend)
    to = ip_network(wide)
    hop = NextHop("eth0", ip_address(str(gateway)))
    kind = Route if family is Family.IPV4 else Route6
    routes = [kind(to, (hop,)), kind(to, (hop,), table=T)]
    pair = [Rule(5269, table=table, destination=to) for table in (Table.LOCAL, Table.MAIN)]
    tool("bash", "-eu", stdin=as_ip(routes, [PlacedRule(rule, "eth0") for rule in pair]))
    (found,) = read_printed([kernel, NetlinkBackend6()])
    assert (found.family, len(found.rules), len(found.routes)) == (family, 2, 2)
    tool("bash", "-euc", how_to_delete_printed(family))
    assert state(backend) == before
    assert read_printed([kernel, NetlinkBackend6()]) == ()


def test_the_hint_on_printed_commands_works_literally(
    kernel: NamespaceKernel,
    on: Callable[..., Host],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """CONFIG lacks the CIDR of the emergency, and lists no route."""
    build_h200(kernel)
    host = on(kernel, NetlinkBackend6())
    path = tmp_path / "given.json"
    path.write_text('{"hostRouting": {"routeOverlap": {"expectedCidrs": ["10.244.0.0/16"]}}}')

    def run(*words: str) -> tuple[int, str]:
        return cli.main([*words], host=host), capsys.readouterr().out

    def way() -> str:
        return tool("ip", "-4", "route", "get", "172.16.9.9").partition(" src ")[0]

    assert run("apply", str(path))[0] == 0
    code, printed = run("fix", "--cidr", "172.16.0.0/16", "--uplink", "eth0", "--format", "ip")
    assert code == 0
    tool("bash", "-eu", stdin=printed)
    cured = way()
    assert " dev eth0" in cured
    hint = run("check", str(path))[1].partition("to make it last: ")[2].splitlines()[0]
    for command in hint.split(" && "):
        if command.startswith("hostrouting "):
            assert run(*command.split()[1:])[0] == 0, command
        else:
            tool(*command.split())
    assert (way(), read_printed([kernel, NetlinkBackend6()])) == (cured, ())


def test_our_rules_come_beside_printed_ones(
    kernel: NamespaceKernel, on: Callable[..., Host]
) -> None:
    build_h200(kernel)
    given = config("172.16.0.0/17", rules=[(POD, 5269)])
    wanted = plan(given, host=on(kernel)).routes
    rules = [PlacedRule(rule, "eth0") for policy in wanted.policies for rule in policy.wanted.rules]
    tool("bash", "-eu", stdin=as_ip(wanted.wanted, rules))
    pair = [f"5269: from all to {POD} lookup {table}" for table in ("local", "main")]
    assert words(install(given, on(kernel))) == [f"added {rule}" for rule in pair]
    tool("bash", "-euc", how_to_delete_printed(Family.IPV4))
    assert words(install(given, on(kernel))) == [f"added {wanted.wanted[0]}"]
    assert our_rules(kernel) == pair


# --- what is installed ----------------------------------------------------------------------------


def test_a_rule_stands_for_two(h200: AnyKernel, on: Callable[..., Host]) -> None:
    report = install(config(rules=[(POD, 5269)]), on(h200))
    assert our_rules(h200) == [
        f"5269: from all to {POD} lookup local",
        f"5269: from all to {POD} lookup main",
    ]
    assert words(report) == [f"added {rule}" for rule in our_rules(h200)]
    assert report.to_json()["rules"] == [
        {"rule": rule, "change": "added"} for rule in our_rules(h200)
    ]
    assert side_routes(h200) == []


def test_a_kept_interface_gets_a_side_table(h200: AnyKernel, on: Callable[..., Host]) -> None:
    install(KEEPING, on(h200))
    assert our_rules(h200) == [
        f"2170: from 172.16.0.10 lookup {T}",
        f"2170: from 172.16.0.11 lookup {T + 1}",
    ]
    assert side_routes(h200) == [
        keep_in(IB_NETWORK, "ib0", T, "172.16.0.10"),
        keep_in(IB_NETWORK, "ib1", T + 1, "172.16.0.11"),
    ]
    for number in range(2):
        address = IPv4Address(f"172.16.0.1{number}")
        (found,) = h200.lookup([IPv4Address("172.16.5.5")], source=address)
        assert found.route is not None
        assert found.route.devs == (f"ib{number}",)


def test_a_gateway_takes_three_rules(h200: AnyKernel, on: Callable[..., Host]) -> None:
    install(config(keep=[{"dev": "eth1", "gateway": str(SECOND)}]), on(h200))
    assert our_rules(h200) == [
        f"2170: from 10.2.0.4 lookup {T} suppress_prefixlength 0",
        "2171: from 10.2.0.4 lookup main suppress_prefixlength 0",
        f"2172: from 10.2.0.4 lookup {T}",
    ]
    assert side_routes(h200) == [
        f"default via {SECOND} dev eth1 table {T} proto hostrouting",
        keep_in("10.2.0.0/24", "eth1", T, "10.2.0.4"),
    ]


def nic_route(dev: str, gateway: str | None, **more: Any) -> Route:
    hop = NextHop(dev, None if gateway is None else IPv4Address(gateway), **more)
    return Route(
        IPv4Network("0.0.0.0/0"), (hop,), protocol=Protocol.DHCP, metric=300, scope=_scope(gateway)
    )


def _scope(gateway: str | None) -> int:
    return Scope.LINK if gateway is None else Scope.UNIVERSE


@pytest.mark.parametrize(
    ("own", "entry", "expected"),
    [
        (nic_route("eth1", "10.2.0.9"), {}, "via 10.2.0.9 dev eth1"),
        (nic_route("eth1", None), {}, "dev eth1 scope link"),
        (nic_route("eth1", "192.0.2.1", onlink=True), {}, "via 192.0.2.1 dev eth1 onlink"),
        (nic_route("eth1", "10.2.0.9"), {"gateway": "onlink"}, "dev eth1 scope link"),
        (None, {"gateway": "192.0.2.1"}, "via 192.0.2.1 dev eth1 onlink"),
    ],
)
def test_the_gateway_is_given_or_inherited(
    h200: AnyKernel,
    on: Callable[..., Host],
    own: Route | None,
    entry: dict[str, str],
    expected: str,
) -> None:
    if own is not None:
        assert not h200.write(Write.ADD, [own])
    install(config(keep=[{"dev": "eth1"} | entry]), on(h200))
    (found,) = [each for each in side_routes(h200) if each.startswith("default")]
    assert found.replace(f" table {T} proto hostrouting", "") == f"default {expected}"


def test_each_network_has_one_route(h200: AnyKernel, on: Callable[..., Host]) -> None:
    """The first address of a network is its source. An address may have a peer."""
    h200.add_address("ib0", "172.16.0.20/16")
    h200.add_address("ib0", "192.168.7.1/32")
    h200.add_address("ib0", "192.168.8.1/32", peer="192.168.8.2")
    install(config(keep=["ib0"]), on(h200))
    assert sorted(side_routes(h200)) == [
        keep_in(IB_NETWORK, "ib0", T, "172.16.0.10"),
        keep_in("192.168.8.2", "ib0", T, "192.168.8.1"),
    ]
    addresses = [each.local for each in h200.facts().addresses if each.dev == "ib0"]
    assert our_rules(h200) == [f"2170: from {address} lookup {T}" for address in addresses]
    assert len(addresses) == 4


def test_the_first_entry_that_matches_counts(h200: AnyKernel, on: Callable[..., Host]) -> None:
    entries = ["ib0", {"dev": "ib*", "gateway": "172.16.0.1"}]
    install(config(keep=entries), on(h200))
    defaults = [each for each in side_routes(h200) if each.startswith("default")]
    assert defaults == [f"default via 172.16.0.1 dev ib1 table {T + 1} proto hostrouting"]


# --- what is left out -----------------------------------------------------------------------------


def leave_out(kernel: AnyKernel, host: Host, *keep: Any, **more: Any) -> tuple[str, ...]:
    report = install(config(keep=keep, **more), host)
    assert report.to_json()["notes"] == [*report.plan.notes]
    return report.plan.notes


def test_an_uplink_is_left_out(h200: AnyKernel, on: Callable[..., Host]) -> None:
    assert leave_out(h200, on(h200), "eth*") == ("eth0 isn't kept: it is an uplink",)
    assert {rule.source for rule in h200.facts().rules if rule.is_ours} == {
        IPv4Network("10.2.0.4/32")
    }


def test_a_named_uplink_is_left_out(h200: AnyKernel, on: Callable[..., Host]) -> None:
    notes = leave_out(h200, on(h200), "eth*", uplinks=["eth1"])
    assert notes == ("eth1 isn't kept: it is an uplink",)


def test_an_address_of_two_interfaces_is_left_out(h200: AnyKernel, on: Callable[..., Host]) -> None:
    h200.add_address("ib1", "172.16.0.10/16")
    notes = leave_out(h200, on(h200), "ib*")
    assert notes == (
        "172.16.0.10 of ib0 isn't kept: ib1 has this address, too",
        "172.16.0.10 of ib1 isn't kept: ib0 has this address, too",
    )
    assert our_rules(h200) == [f"2170: from 172.16.0.11 lookup {T}"]


def test_a_pattern_without_interfaces_is_a_note(h200: AnyKernel, on: Callable[..., Host]) -> None:
    assert leave_out(h200, on(h200), "wg*") == ("wg* isn't kept: there is no such interface",)


def test_a_lone_address_needs_a_gateway(h200: AnyKernel, on: Callable[..., Host]) -> None:
    h200.add_link("wg0")
    h200.add_address("wg0", "192.168.7.1/32")
    notes = leave_out(h200, on(h200), "wg0")
    assert notes == ("wg0 isn't kept: it has neither a connected network nor a gateway",)
    install(config(keep=[{"dev": "wg0", "gateway": "onlink"}]), on(h200))
    assert side_routes(h200) == [f"default dev wg0 table {T} proto hostrouting scope link"]


@pytest.mark.kernel
def test_a_port_is_left_out(kernel: NamespaceKernel, on: Callable[..., Host]) -> None:
    build_h200(kernel)
    run_ip("link add br0 type bridge", "link set ib1 master br0")
    assert leave_out(kernel, on(kernel), "ib*") == ("ib1 isn't kept: it is a port of br0",)
    assert our_rules(kernel) == [f"2170: from 172.16.0.10 lookup {T}"]


def test_an_interface_that_is_not_ready_is_a_note(h200: AnyKernel, on: Callable[..., Host]) -> None:
    h200.add_link("ib2")
    h200.set_link("ib1", up=False)
    notes = leave_out(h200, on(h200), "ib*")
    why = "ib1 (it is down), ib2 (it has no address)"
    assert notes == (f"not kept yet: {why}; the watcher or the next run does it",)
    h200.add_address("ib2", "172.16.0.12/16")
    h200.set_link("ib1", up=True)
    assert leave_out(h200, on(h200), "ib*") == ()
    assert len(our_rules(h200)) == 3


# --- what is refused ------------------------------------------------------------------------------


def refused(given: Config, host: Host) -> str:
    before = state(host.routes)
    with pytest.raises(RouteError) as caught:
        install(given, host)
    assert state(host.routes) == before
    return str(caught.value)


def foreign(table: int, destination: str = "10.9.0.0/16") -> Route:
    return Route(
        IPv4Network(destination),
        (NextHop("eth0", GATEWAY),),
        table=table,
        protocol=Protocol.STATIC,
    )


@pytest.mark.kernel
def test_nothing_is_kept_before_table_local(
    kernel: NamespaceKernel,
    on: Callable[..., Host],
) -> None:
    """With the order that vrf.rst in the kernel recommends, packets from a kept address to this
    host's own addresses would leave it. Kept interfaces are let go, and nothing fails.
    """
    build_h200(kernel)
    install(KEEPING, on(kernel))
    run_ip("rule add pref 32765 lookup local", "rule del pref 0")
    report = install(KEEPING, on(kernel))
    assert [each.name for policy in report.plan.policies for each in policy.wanted.left_out] == [
        "ib0",
        "ib1",
    ]
    assert not our_rules(kernel)
    assert not side_routes(kernel)
    install(config(rules=[(POD, 5269)]), on(kernel))
    for early in ("rule add pref 2169 lookup local", "rule add pref 9 iif lo lookup local"):
        run_ip(early)
        install(KEEPING, on(kernel))
        (found,) = kernel.lookup([IPv4Address("172.16.0.11")], source=IPv4Address("172.16.0.10"))
        assert found.route is not None
        assert found.route.table == Table.LOCAL
        run_ip(early.replace("add", "del"))


def test_a_foreign_route_in_our_table_is_refused(h200: AnyKernel, on: Callable[..., Host]) -> None:
    install(KEEPING, on(h200))
    assert not h200.write(Write.ADD, [foreign(T + 1)])
    said = refused(KEEPING, on(h200))
    assert f"can't keep ib1: another program has a route in its table {T + 1}" in said
    assert "10.9.0.0/16" in said


def test_used_tables_are_not_taken(h200: AnyKernel, on: Callable[..., Host]) -> None:
    """A table is another program's if it has a route there, or a rule that looks it up."""
    assert not h200.write(Write.ADD, [foreign(T)])
    h200.add_rule(Rule(900, table=T + 1, source=IPv4Network("10.77.0.0/16")))
    install(KEEPING, on(h200))
    assert our_rules(h200) == [
        f"2170: from 172.16.0.10 lookup {T + 2}",
        f"2170: from 172.16.0.11 lookup {T + 3}",
    ]
    assert str(foreign(T)) in side_routes(h200)


def divert(kernel: AnyKernel, preference: int, table: int = VPN) -> None:
    """Let another program's rule take all packets."""
    route = Route(
        IPv4Network("0.0.0.0/0"), (NextHop("eth1"),), table=table, protocol=Protocol.STATIC
    )
    assert not kernel.write(Write.ADD, [route])
    kernel.add_rule(Rule(preference, table=table))


def test_a_late_rule_is_refused(h200: AnyKernel, on: Callable[..., Host]) -> None:
    divert(h200, 5210)
    said = refused(config(rules=[(POD, 5269)]), on(h200))
    assert f"the rule 5269: from all to {POD} lookup main has no effect" in said
    assert f"because of the rule 5210: from all lookup {VPN}" in said
    install(config(rules=[(POD, 5209)]), on(h200))
    assert len(our_rules(h200)) == 2


def test_a_rule_before_a_kept_address_is_refused(h200: AnyKernel, on: Callable[..., Host]) -> None:
    divert(h200, 2000)
    said = refused(config(keep=["ib*"]), on(h200))
    assert said.startswith("can't keep 172.16.0.10 on ib0, nor 1 other address on ib1: packets to ")
    assert ": packets to 172.16.0.1 from 172.16.0.10 go by" in said
    assert said.count("can't keep") == 1, "both have the same reason"
    assert f"because of the rule 2000: from all lookup {VPN}" in said


@pytest.mark.parametrize("has_main_first", [False, True])
def test_the_printed_commands_move_the_rules_of_wg_quick(
    h200: AnyKernel, on: Callable[..., Host], *, has_main_first: bool
) -> None:
    """Only its second rule moved, or its first one before it, would lead everything elsewhere."""
    given = config(keep=["ib*"])
    divert(h200, 100)
    h200.del_rule(Rule(100, table=VPN))
    install(given, on(h200))
    h200.ip(f"rule add not fwmark 51820 table {VPN}")
    if has_main_first:
        h200.ip("rule add table main suppress_prefixlength 0")
    asked = [IPv4Address(each) for each in ("10.1.0.1", "10.2.0.1", "172.16.0.1", "8.8.8.8")]
    before = h200.lookup(asked)
    rule = "2168: from all lookup main" if has_main_first else "2169: not from all"
    with pytest.raises(RouteError, match=f"because of the rule {rule}") as caught:
        install(given, on(h200))
    (commands, _) = str(caught.value.hint).split(": ", 1)[1].split(";", 1)
    for command in commands.split(" && "):
        h200.ip(command.removeprefix("ip -4 "))
        assert h200.lookup(asked) == before, command
    assert (" preference 5001" in commands) == has_main_first
    install(given, on(h200))
    assert h200.lookup(asked) == before


@pytest.mark.parametrize("wanted", [{"rules": [(POD, 2200)]}, {"keep": ["ib*"]}])
def test_a_rule_that_jumps_over_ours_is_named(
    h200: AnyKernel, on: Callable[..., Host], wanted: dict[str, Any]
) -> None:
    divert(h200, 32000)
    h200.add_rule(Rule(2100, RuleAction.GOTO, table=0, goto=32000))
    said = refused(config(**wanted), on(h200))
    assert "because the rule 2100: from all goto 32000 jumps over ours" in said


def test_a_rule_that_discards_is_named(h200: AnyKernel, on: Callable[..., Host]) -> None:
    h200.add_rule(Rule(60, RuleAction.BLACKHOLE, source=IPv4Network("172.16.0.10/32")))
    said = refused(config(keep=[{"dev": "ib0", "gateway": "onlink"}]), on(h200))
    assert (
        "can't keep 172.16.0.10 on ib0: packets to 198.51.100.1 from 172.16.0.10 go nowhere "
        "(Invalid argument), because of the rule 60: from 172.16.0.10 blackhole"
    ) in said


def test_the_rule_for_table_local_is_never_to_be_moved(
    h200: AnyKernel, on: Callable[..., Host]
) -> None:
    h200.ip("route add unreachable 198.51.100.0/24 table local")
    with pytest.raises(RouteError, match="because of the rule 0: from all lookup local") as caught:
        install(config(keep=[{"dev": "ib0", "gateway": "onlink"}]), on(h200))
    assert caught.value.hint == "look at: ip -4 route show table local"


def test_an_early_rule_on_a_kept_network_is_refused(
    h200: AnyKernel, on: Callable[..., Host]
) -> None:
    said = refused(config(rules=[("172.16.4.0/24", 2000)], keep=["ib0"]), on(h200))
    assert "to 172.16.4.0/24 priority 2000" in said
    assert "ib0" in said
    install(config(rules=[("172.16.4.0/24", 2173)], keep=["ib0"]), on(h200))
    assert len(our_rules(h200)) == 3


def test_own_pods_keep_their_routes(h200: AnyKernel, on: Callable[..., Host]) -> None:
    """A kept address answers this host's own pods, which table main has longer routes to."""
    h200.add_link("cni0")
    h200.add_address("cni0", "10.244.3.1/24")
    install(config(keep=[{"dev": "eth1", "gateway": str(SECOND)}]), on(h200))
    pod, far = IPv4Address("10.244.3.7"), IPv4Address("198.51.100.7")
    found = h200.lookup([pod, far], source=IPv4Address("10.2.0.4"))
    assert [each.route.devs for each in found if each.route] == [("cni0",), ("eth1",)]


# --- all or nothing -------------------------------------------------------------------------------


class FaultyBackend(ForwardingBackend):
    """A backend whose write with a number fails, for one route or rule, before or after it is made.

    Args:
        inner: the wrapped backend.
        number: the number of the write, counted from 0; later ones work.
    """

    def __init__(self, inner: RouteBackend, number: int) -> None:
        super().__init__(inner)
        self.number = number
        self.count = 0

    def _fails(self) -> bool:
        self.count += 1
        return self.count - 1 == self.number

    def write(self, change: Write, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        if not self._fails():
            return super().write(change, routes)
        super().write(change, routes[:-1])
        return (RouteFailure(routes[-1], errno.ENOMEM, "Cannot allocate memory"),)

    def write_rules(self, change: Write, rules: Sequence[Rule]) -> tuple[RuleFailure, ...]:
        if not self._fails():
            return super().write_rules(change, rules)
        super().write_rules(change, rules[:-1])
        return (RuleFailure(rules[-1], errno.ENOMEM, "Cannot allocate memory"),)


CHANGED = config(
    "172.16.128.0/17",
    rules=[("10.96.0.0/12", 5268), (POD, 5269)],
    keep=["ib0", {"dev": "eth1", "gateway": "10.2.0.77"}],
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, BOTH),
        (BOTH, CHANGED),
        (CHANGED, BOTH),
        (BOTH, config("172.16.0.0/17")),
        (BOTH, Config()),
        (config(keep=["eth1", "ib*"]), BOTH),
        (BOTH, config(keep=["eth1", "ib*"])),
    ],
)
def test_a_fault_at_any_step_leaves_all_as_it_was(
    h200: AnyKernel, on: Callable[..., Host], before: Config | None, after: Config
) -> None:
    h200.add_link("ib5")  # no step may depend on what is left out
    if before is not None:
        install(before, on(h200))
    routes, rules = state(h200)
    for number in range(20):
        faulty = FaultyBackend(h200, number)
        try:
            install(after, on(faulty))
        except RouteError as error:
            assert "Cannot allocate memory" in str(error)
        else:
            break
        now = state(h200)
        assert now[0] == routes
        assert sorted(now[1]) == sorted(rules)
    assert number >= 2
    assert install(after, on(h200)).changes.routes == ()
    assert not install(after, on(h200)).changes


def test_a_failing_proof_leaves_all_as_it_was(h200: AnyKernel, on: Callable[..., Host]) -> None:
    install(CHANGED, on(h200))
    divert(h200, 5000)
    routes, rules = state(h200)
    with pytest.raises(RouteError, match="has no effect"):
        install(config(rules=[(POD, 5269)], keep=["ib*"]), on(h200))
    now = state(h200)
    assert (now[0], sorted(now[1])) == (routes, sorted(rules))


def test_a_cancelled_run_leaves_all_as_it_was(h200: AnyKernel, on: Callable[..., Host]) -> None:
    scope = phases.CancelScope()

    class Cancelling(ForwardingBackend):
        def write_rules(self, change: Write, rules: Sequence[Rule]) -> tuple[RuleFailure, ...]:
            made = super().write_rules(change, rules)
            scope.cancel("SIGTERM")
            return made

    before = state(h200)
    with pytest.raises(phases.Cancelled):
        phases.run(InstallRoutes(BOTH, host=on(Cancelling(h200))), scope=scope)
    assert state(h200) == before


# --- repairs --------------------------------------------------------------------------------------


def test_a_second_run_changes_nothing(h200: AnyKernel, on: Callable[..., Host]) -> None:
    install(BOTH, on(h200))
    before = state(h200)
    report = install(BOTH, on(h200))
    assert not report.changes
    assert report.to_json()["unchangedRules"] == our_rules(h200)
    assert state(h200) == before


def lose(kernel: AnyKernel, *rules: Rule) -> None:
    assert not kernel.write_rules(Write.DELETE, rules)


def test_only_what_is_lost_is_put_back(h200: AnyKernel, on: Callable[..., Host]) -> None:
    install(BOTH, on(h200))
    before = state(h200)
    ours = [rule for rule in h200.facts().rules if rule.is_ours]
    lost = next(rule for rule in ours if rule.source == IPv4Network("172.16.0.10/32"))
    lose(h200, lost)
    assert words(install(BOTH, on(h200))) == [f"added 2170: {lost}"]
    lose(h200, *ours)
    report = install(BOTH, on(h200))
    assert len(report.changes.rules) == len(ours)
    assert not report.changes.routes
    assert state(h200)[0] == before[0]
    assert sorted(state(h200)[1]) == sorted(before[1])


@pytest.mark.parametrize("left", [2170, 2172])
def test_a_table_is_found_by_either_rule(
    h200: AnyKernel, on: Callable[..., Host], left: int
) -> None:
    given = config(keep=[{"dev": "eth1", "gateway": "10.2.0.1"}])
    install(given, on(h200))
    before = our_rules(h200), side_routes(h200)
    lost = [
        rule for rule in h200.facts().rules if rule.is_ours and rule.preference not in (left, 2171)
    ]
    assert not h200.write_rules(Write.DELETE, lost)
    install(given, on(h200))
    assert (our_rules(h200), side_routes(h200)) == before


def test_a_flap_loses_the_side_table(h200: AnyKernel, on: Callable[..., Host]) -> None:
    install(BOTH, on(h200))
    before = state(h200)
    h200.set_link("ib1", up=False)
    h200.set_link("ib1", up=True)
    assert words(install(BOTH, on(h200))) == [
        f"added {keep_in(IB_NETWORK, 'ib1', T + 2, '172.16.0.11')}"
    ]
    assert state(h200) == before


def test_another_address_takes_the_place_of_the_old(
    h200: AnyKernel, on: Callable[..., Host]
) -> None:
    install(KEEPING, on(h200))
    h200.del_address("ib1", "172.16.0.11/16")
    h200.add_address("ib1", "172.16.0.44/16")
    report = install(KEEPING, on(h200))
    assert words(report) == [
        f"added {keep_in(IB_NETWORK, 'ib1', T + 2, '172.16.0.44')}",
        f"added 2170: from 172.16.0.44 lookup {T + 2}",
        f"removed 2170: from 172.16.0.11 lookup {T + 1}",
    ]


def test_a_second_address_shares_the_table(h200: AnyKernel, on: Callable[..., Host]) -> None:
    install(KEEPING, on(h200))
    h200.add_address("ib0", "172.16.0.99/16")
    assert words(install(KEEPING, on(h200))) == [f"added 2170: from 172.16.0.99 lookup {T}"]


def test_a_gateway_comes_and_goes(h200: AnyKernel, on: Callable[..., Host]) -> None:
    """The kernel takes a rule without a limit for prefixes for one with it."""
    plain, with_gateway = config(keep=["eth1"]), config(keep=[{"dev": "eth1", "gateway": "onlink"}])
    install(plain, on(h200))
    before = state(h200)
    install(with_gateway, on(h200))
    assert len(our_rules(h200)) == 3
    install(plain, on(h200))
    assert state(h200) == before


def pair(to: str, preference: int) -> list[Rule]:
    return [
        Rule(preference, table=table, destination=IPv4Network(to), protocol=Protocol.HOSTROUTING)
        for table in (255, 254)
    ]


@pytest.mark.parametrize("there", [(1,), (1, 0)])
def test_table_local_comes_first(
    h200: AnyKernel, on: Callable[..., Host], there: tuple[int, ...]
) -> None:
    local_and_main = pair(POD, 5269)
    assert not h200.write_rules(Write.ADD, [local_and_main[each] for each in there])
    install(config(rules=[(POD, 5269)]), on(h200))
    assert [rule for rule in h200.facts().rules if rule.is_ours] == local_and_main


def test_other_programs_rules_stay(h200: AnyKernel, on: Callable[..., Host]) -> None:
    """A rule like ours with another protocol is another program's."""
    theirs = [attrs.evolve(rule, protocol=Protocol.STATIC) for rule in pair(POD, 5269)]
    for rule in theirs:
        h200.add_rule(rule)
    host = on(h200)
    install(config(rules=[(POD, 5269)]), host)
    assert len(our_rules(h200)) == 2
    install(Config(), host)
    assert our_rules(h200) == []
    assert [rule for rule in h200.facts().rules if rule.preference == 5269] == theirs


# --- removal --------------------------------------------------------------------------------------


def test_removal_needs_no_config(h200: AnyKernel, on: Callable[..., Host]) -> None:
    before = state(h200)
    host = on(h200)
    phases.run(Configure(BOTH, host=host))
    assert len(our_rules(h200)) == 9
    report = phases.run(RemoveHostRouting(host=host))
    assert len(report.changes.rules) == 9
    assert state(h200) == before


def test_removal_takes_side_tables_without_rules(h200: AnyKernel, on: Callable[..., Host]) -> None:
    before = state(h200)
    host = on(h200)
    install(BOTH, host)
    lose(h200, *(rule for rule in h200.facts().rules if rule.is_ours))
    assert side_routes(h200)
    phases.run(RemoveHostRouting(host=host))
    assert state(h200) == before


def test_removal_takes_rules_without_any_file(h200: AnyKernel, on: Callable[..., Host]) -> None:
    before = state(h200)
    host = on(h200)
    install(config(rules=[(POD, 5269)], keep=["ib*"]), host)
    for path in (host.layout.lock, host.layout.run_lock):
        path.unlink()
    phases.run(RemoveHostRouting(host=host))
    assert state(h200) == before


def test_another_config_takes_rules_back(h200: AnyKernel, on: Callable[..., Host]) -> None:
    install(config("172.16.0.0/17"), on(h200))
    before = state(h200)
    install(BOTH, on(h200))
    install(config("172.16.0.0/17"), on(h200))
    assert state(h200) == before


@pytest.mark.kernel
def test_both_families_have_rules(kernel: NamespaceKernel, on: Callable[..., Host]) -> None:
    build_node6()
    host = on(NetlinkBackend(), backend6 := NetlinkBackend6())
    before = state(backend6)
    both = config(rules=[("fd00:99::/48", 5269), (POD, 5269)])
    install(both, host)
    assert our_rules(backend6) == [
        "5269: from all to fd00:99::/48 lookup local",
        "5269: from all to fd00:99::/48 lookup main",
    ]
    assert len(our_rules(kernel)) == 2
    assert not install(both, host).changes
    install(config(rules=[(POD, 5269)]), host)  # without IPv6
    assert state(backend6) == before
    install(both, host)
    phases.run(RemoveHostRouting(host=host))
    assert state(backend6) == before
    assert our_rules(kernel) == []


@pytest.mark.kernel
def test_a_late_ipv6_rule_is_refused(kernel: NamespaceKernel, on: Callable[..., Host]) -> None:
    build_node6()
    tool("ip", "-6", "route", "add", "default", "via", "fd00:b::1", "table", "52")
    tool("ip", "-6", "rule", "add", "pref", "5210", "lookup", "52")
    host = on(NetlinkBackend(), backend6 := NetlinkBackend6())
    before = state(backend6)
    with pytest.raises(RouteError, match="because of the rule 5210: from all lookup 52"):
        install(config(rules=[("fd00:99::/48", 5269)]), host)
    assert state(backend6) == before
    # Where table main has no route, the next rule decides.
    with pytest.raises(RouteError, match="table main has no route"):
        install(config(rules=[("fd00:99::/48", 5209)]), host)
    tool("ip", "-6", "route", "add", "default", "via", "fd00:a::1")
    install(config(rules=[("fd00:99::/48", 5209)]), host)
    (found,) = backend6.lookup([IPv6Network("fd00:99::/48")[1]])
    assert found.route is not None
    assert found.route.devs == ("eth0",)


# --- plan, explain --------------------------------------------------------------------------------


def test_a_plan_tells_what_is_then_done(h200: AnyKernel, on: Callable[..., Host]) -> None:
    host = on(h200)
    for given in (BOTH, CHANGED, KEEPING, Config()):
        before = state(h200)
        planned = plan(given, host=host)
        assert state(h200) == before
        assert planned.next_start.is_admitted, planned.next_start.reason
        report = install(given, host)
        assert report.changes.of_kernel == planned.changes.of_kernel


def test_a_plan_foresees_a_late_rule(h200: AnyKernel, on: Callable[..., Host]) -> None:
    divert(h200, 5210)
    planned = plan(config(rules=[(POD, 5269)]), host=on(h200))
    assert not planned.next_start.is_admitted
    assert "has no effect" in planned.next_start.reason


def test_explain_names_our_rule(h200: AnyKernel, on: Callable[..., Host]) -> None:
    divert(h200, 5300)
    install(config(rules=[("10.244.0.0/16", 5269)]), on(h200))
    told = str(explain("10.244.0.9", host=on(h200)).to_json())
    assert "to 10.244.0.0/16 lookup main" in told


# --- cost -----------------------------------------------------------------------------------------


class CountingBackend(ForwardingBackend):
    """A backend that counts the calls of each method."""

    def __init__(self, inner: RouteBackend) -> None:
        super().__init__(inner)
        self.calls = Counter[str]()

    def __getattribute__(self, name: str) -> Any:
        if name in ("facts", "entries", "lookup", "sources", "write", "write_rules"):
            self.calls[name] += 1
        return super().__getattribute__(name)


def test_without_the_keys_nothing_more_is_read(h200: AnyKernel, on: Callable[..., Host]) -> None:
    counting = CountingBackend(h200)
    given = config("172.16.0.0/17")
    install(given, on(counting))
    # A new route is compared with what it diverts: two more reads of everything, and a lookup.
    assert counting.calls == {"facts": 4, "entries": 5, "write": 1, "lookup": 2}
    counting.calls.clear()
    install(given, on(counting))
    assert counting.calls == {"facts": 2, "entries": 3, "lookup": 1}
