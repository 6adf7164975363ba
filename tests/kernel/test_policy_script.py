"""Test the rules and side tables of the boot script for static routes, on a real kernel."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from nightly import by_day, some
from node import build_node6, nics, on_linux, run_ip, run_ip6, tool
from scripts import AWKS, Sandbox, awk_or_skip, other_ip, with_constants

import phases
from hostrouting import Config
from hostrouting.boot.render import render_check, render_no_routes, render_static_routes
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.kernel.port import Write
from hostrouting.kernel.rtnetlink import messages as rtnl
from hostrouting.model.family import Family
from hostrouting.model.routes import Protocol, Table
from hostrouting.model.rules import Rule
from hostrouting.overlap.check import check_families

pytestmark = pytest.mark.kernel

HALVES = ({"destination": "172.16.0.0/17"}, {"destination": "172.16.128.0/17"})
VPN = "10.96.0.0/12"
VPN6 = "fd00:18::/48"


@pytest.fixture
def host() -> NamespaceKernel:
    """Build a host with an uplink, a second NIC behind a router, and two InfiniBand interfaces in
    one network, which is the cluster's as well.
    """
    kernel = on_linux()
    run_ip(
        nics(
            eth0="10.1.0.4/24",
            eth1="10.2.0.4/24",
            ib0="172.16.0.10/16",
            ib1="172.16.0.11/16",
        ),
        "route add default via 10.1.0.1 dev eth0 metric 100",
        "route add default via 10.2.0.1 dev eth1 metric 200",
    )
    return kernel


def script(
    *keep: str | dict[str, str],
    routes: Sequence[dict[str, Any]] = (),
    rules: Sequence[tuple[str, int]] = (),
    wait: int = 0,
    settle: int | None = None,
    uplinks: Sequence[str] | None = None,
) -> str:
    section = {
        "enabled": True,
        "routes": routes,
        "rules": [{"to": to, "priority": priority} for to, priority in rules],
        "keep": keep,
    }
    return render_static_routes(
        Config(
            static_routes=section,
            route_overlap={"settleSeconds": settle},
            wait_seconds=wait,
            uplinks=uplinks,
        )
    )


def rules(family: str = "-4") -> list[str]:
    """Return our rules, as ip shows them."""
    shown = tool("ip", family, "-N", "rule", "show").splitlines()
    own = " proto 217"
    return [line.strip().removesuffix(own).replace("\t", " ") for line in shown if own in line]


def side_routes() -> list[str]:
    """Return the routes in all side tables, including those of other programs."""
    shown = tool("ip", "-4", "-N", "route", "show", "table", "all").splitlines()
    return [" ".join(line.split()) for line in shown if " table 217" in line]


def state() -> list[list[str]]:
    """Return all rules and all routes, of IPv6 only ours, because the kernel adds others later.

    Which of several rules with one preference is first doesn't count, except for pairs.
    """
    shown = []
    for family in ("-4", "-6"):
        of_pairs = [line for line in rules(family) if line.endswith((" lookup 254", " lookup 255"))]
        everyones = tool("ip", family, "-N", "rule", "show").splitlines()
        whose = () if family == "-4" else ("proto", "217")
        routes = tool("ip", family, "-N", "route", "show", "table", "all", *whose).splitlines()
        shown += [of_pairs, sorted(everyones), routes]
    return shown


def installed(sandbox: Sandbox, text: str, *arguments: str, **more: Any) -> list[str]:
    """Run a script that must succeed, and return what it changed and noted."""
    done = sandbox.run(text, *arguments, **more)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def refused(sandbox: Sandbox, text: str, *arguments: str, **more: Any) -> str:
    """Run a script that must fail and leave no trace, and return its error."""
    before = state()
    done = sandbox.run(text, *arguments, **more)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done
    assert state() == before
    return done.stderr


def unchanged(sandbox: Sandbox, text: str, *notes: str) -> None:
    """Check that a run changes nothing."""
    before = state()
    assert installed(sandbox, text) == ["nothing to change", *notes]
    assert state() == before


IB0 = "172.16.0.0/16 dev ib0 table 2170000 proto 217 scope 253 src 172.16.0.10"
IB1 = "172.16.0.0/16 dev ib1 table 2170001 proto 217 scope 253 src 172.16.0.11"
KEPT = ["2170: from 172.16.0.10 lookup 2170000", "2170: from 172.16.0.11 lookup 2170001"]


# --- installed ------------------------------------------------------------------------------------


@pytest.mark.parametrize("awk", some(AWKS, one_of=2))
def test_all_is_installed_and_removed(host: NamespaceKernel, awk: str, tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path, awk_or_skip(awk))
    build_node6("e6", "i6")
    before = state()
    text = script("ib*", "eth1", routes=HALVES, rules=[(VPN, 5269), (VPN6, 5269)])
    made = installed(sandbox, text)
    assert [line.split()[:2] for line in made] == ([["route", "add"]] * 6 + [["rule", "add"]] * 9)
    assert side_routes() == [
        "default via 10.2.0.1 dev eth1 table 2170000 proto 217",
        "10.2.0.0/24 dev eth1 table 2170000 proto 217 scope 253 src 10.2.0.4",
        IB0.replace("2170000", "2170001"),
        IB1.replace("2170001", "2170002"),
    ]
    assert rules() == [
        "2170: from 10.2.0.4 lookup 2170000 suppress_prefixlength 0",
        "2170: from 172.16.0.10 lookup 2170001",
        "2170: from 172.16.0.11 lookup 2170002",
        "2171: from 10.2.0.4 lookup 254 suppress_prefixlength 0",
        "2172: from 10.2.0.4 lookup 2170000",
        f"5269: from all to {VPN} lookup 255",
        f"5269: from all to {VPN} lookup 254",
    ]
    assert rules("-6") == [
        f"5269: from all to {VPN6} lookup 255",
        f"5269: from all to {VPN6} lookup 254",
    ]
    unchanged(sandbox, text)
    removed = installed(sandbox, render_no_routes())
    assert [line.split()[:2] for line in removed] == (
        [["rule", "del"]] * 7 + [["route", "del"]] * 6 + [["rule", "del"]] * 2
    )
    assert state() == before
    assert installed(sandbox, render_no_routes()) == ["nothing to change"]


def test_without_the_keys_no_rule_or_side_table_of_ours_is_left(
    host: NamespaceKernel, sandbox: Sandbox
) -> None:
    before = state()
    installed(sandbox, script("ib*", rules=[(VPN, 5269)]))
    run_ip("rule add to 10.9.0.0/16 lookup 254 pref 5269", "route add 10.9.0.0/16 dev ib1 table 9")
    others = state()
    assert len(installed(sandbox, script())) == 6
    assert not rules()
    assert not side_routes()
    run_ip("rule del to 10.9.0.0/16 lookup 254 pref 5269", "route del 10.9.0.0/16 dev ib1 table 9")
    assert state() == before != others


def test_a_config_without_the_keys_needs_no_more_processes(
    host: NamespaceKernel, sandbox: Sandbox
) -> None:
    """With the keys, one more ip asks which rules decide."""
    with_keys = script("ib*", "eth1", routes=HALVES, rules=[(VPN, 5269)])
    sandbox.count_processes(script(routes=HALVES))  # creates the folder
    without = sandbox.count_processes(script(routes=HALVES))
    assert sandbox.count_processes(with_keys) == without + 1
    # Then only questions are left.
    assert sandbox.count_processes(with_keys) == without


# --- rules ----------------------------------------------------------------------------------------

PAIR = [f"5269: from all to {VPN} lookup 255", f"5269: from all to {VPN} lookup 254"]
LOCAL, MAIN = (f"rule add to {VPN} lookup {table} pref 5269 proto 217" for table in (255, 254))
OTHER = "rule add to 10.0.0.0/8 lookup 254 pref 5269"

THERE = {
    "only the second": [MAIN],
    "only the first": [LOCAL],
    "the second before the first": [MAIN, LOCAL],
    "another priority": [LOCAL.replace("5269", "5270"), MAIN.replace("5269", "5270")],
    "another program's in between": [LOCAL, OTHER, MAIN],
    "the second before another program's and the first": [MAIN, OTHER, LOCAL],
    "another program's own": [f"rule add to {VPN} lookup 254 pref 5269", OTHER],
}


@pytest.mark.parametrize("there", THERE)
def test_the_first_rule_of_a_pair_comes_first(
    host: NamespaceKernel, there: str, sandbox: Sandbox
) -> None:
    run_ip(*THERE[there])
    installed(sandbox, script(rules=[(VPN, 5269)]))
    assert rules() == PAIR
    unchanged(sandbox, script(rules=[(VPN, 5269)]))


def test_of_equal_rules_one_stays(
    host: NamespaceKernel, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ip can't add another one, but other programs can."""
    with monkeypatch.context() as changed:
        changed.setattr(rtnl, "ADD", rtnl.NLM_F_REQUEST | rtnl.NLM_F_CREATE)
        for backend, to in ((NetlinkBackend(), VPN), (NetlinkBackend6(), VPN6)):
            local, main = (
                Rule(5269, table=table, destination=ip_network(to), protocol=Protocol.HOSTROUTING)
                for table in (Table.LOCAL, Table.MAIN)
            )
            assert backend.write_rules(Write.ADD, [main, local, local, main, local]) == ()
    text = script(rules=[(VPN, 5269), (VPN6, 5269)])
    installed(sandbox, text)
    assert rules() == PAIR
    assert rules("-6") == [line.replace(VPN, VPN6) for line in PAIR]
    unchanged(sandbox, text)


def test_a_rule_decides_before_a_later_one(host: NamespaceKernel, sandbox: Sandbox) -> None:
    run_ip("route add default dev ib0 table 52", "rule add lookup 52 pref 5270")
    route = {"destination": "10.97.0.0/16"}
    error = refused(sandbox, script(routes=[route]))
    assert error.startswith("10.97.0.0/16 doesn't win: ")
    installed(sandbox, script(routes=[route], rules=[(VPN, 5269)]))
    assert " dev eth0 " in tool("ip", "route", "get", "10.97.0.1")


@pytest.mark.parametrize("family", ["-4", "-6"])
def test_a_rule_that_comes_too_late_is_an_error(
    host: NamespaceKernel, family: str, sandbox: Sandbox
) -> None:
    build_node6("e6", "i6")
    to = VPN if family == "-4" else VPN6
    ib = "ib0" if family == "-4" else "i6"
    run_ip(
        f"route add default dev {ib} table 52",
        "rule add not fwmark 0x1 lookup 52 pref 5000",
        "rule add fwmark 0x1 lookup 52 pref 4000",
        program=f"ip {family}",
    )
    error = refused(sandbox, script(rules=[(to, 5269)]))
    first = to.partition("/")[0]
    assert error.startswith(
        f"the rule to {to} priority 5269 has no effect: packets to {first} go by default dev {ib} "
    )
    assert error.endswith(", because of the rule 5000: not from all fwmark 0x1 lookup 52\n")


def test_own_addresses_say_nothing_about_a_rule(host: NamespaceKernel, sandbox: Sandbox) -> None:
    run_ip("route add default dev ib0 table 52", "rule add lookup 52 pref 100")
    text = script(rules=[("10.2.0.4/32", 5269), ("10.1.0.4/31", 5269)])
    assert "the rule to 10.1.0.4/31 " in refused(sandbox, text)
    installed(sandbox, script(rules=[("10.2.0.4/32", 5269)]))


def test_a_rule_may_lead_nowhere(host: NamespaceKernel, sandbox: Sandbox) -> None:
    run_ip("route del default via 10.1.0.1", "route del default via 10.2.0.1")
    installed(sandbox, script(rules=[(VPN, 5269)]))


# --- keep -----------------------------------------------------------------------------------------


def test_a_side_table_is_found_again(host: NamespaceKernel, sandbox: Sandbox) -> None:
    installed(sandbox, script("ib*"))
    assert (rules(), side_routes()) == (KEPT, [IB0, IB1])
    # Only the second interface is kept, so the first table becomes free.
    installed(sandbox, script("ib1"))
    assert (rules(), side_routes()) == (KEPT[1:], [IB1])
    text = script("ib*", "eth1")
    installed(sandbox, text)
    assert "2170: from 10.2.0.4 lookup 2170000 suppress_prefixlength 0" in rules()
    assert IB0.replace("2170000", "2170002") in side_routes()
    assert KEPT[1] in rules()
    unchanged(sandbox, text)


def test_tables_of_other_programs_are_left_alone(host: NamespaceKernel, sandbox: Sandbox) -> None:
    run_ip(
        "route add 10.9.0.0/16 dev eth1 table 2170000",
        "rule add pref 900 to 10.9.0.0/16 lookup 2170001",
    )
    installed(sandbox, script("ib0"))
    assert rules() == ["2170: from 172.16.0.10 lookup 2170002"]
    run_ip("route add 10.9.0.0/16 dev eth1 table 2170002")
    error = refused(sandbox, script("ib0"))
    assert error == (
        "can't keep ib0: another program has a route in its table 2170002 "
        "(10.9.0.0/16 dev eth1 table 2170002 scope 253)\n"
    )


def test_a_gateway_that_comes_or_goes(host: NamespaceKernel, sandbox: Sandbox) -> None:
    run_ip("route del default via 10.2.0.1")
    plain = ["2170: from 10.2.0.4 lookup 2170000"]
    far = [
        f"{plain[0]} suppress_prefixlength 0",
        "2171: from 10.2.0.4 lookup 254 suppress_prefixlength 0",
        "2172: from 10.2.0.4 lookup 2170000",
    ]
    text = script("eth1")
    installed(sandbox, text)
    assert rules() == plain
    run_ip("route add default via 10.2.0.1 dev eth1 metric 200")
    installed(sandbox, text)
    assert rules() == far
    unchanged(sandbox, text)
    run_ip("route del default via 10.2.0.1")
    installed(sandbox, text)
    assert rules() == plain
    unchanged(sandbox, text)
    # A killed run may have left both.
    run_ip("rule add pref 2170 from 10.2.0.4 lookup 2170000 suppress_prefixlength 0 proto 217")
    installed(sandbox, text)
    assert rules() == plain
    run_ip(
        "rule del pref 2170 from 10.2.0.4 lookup 2170000 proto 217",
        "rule add pref 2170 from 10.2.0.4 lookup 2170000 suppress_prefixlength 0 proto 217",
        "rule add pref 2170 from 10.2.0.4 lookup 2170000 proto 217",
    )
    installed(sandbox, script({"dev": "eth1", "gateway": "10.2.0.9"}))
    assert rules() == far
    assert side_routes()[0] == "default via 10.2.0.9 dev eth1 table 2170000 proto 217"


GATEWAYS = {
    "10.2.0.9": "default via 10.2.0.9 dev eth1 table 2170000 proto 217",
    "10.7.0.9": "default via 10.7.0.9 dev eth1 table 2170000 proto 217 onlink",
    "onlink": "default dev eth1 table 2170000 proto 217 scope 253",
}


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_a_gateway_from_the_config(host: NamespaceKernel, gateway: str, sandbox: Sandbox) -> None:
    text = script({"dev": "eth1", "gateway": gateway}, "eth*")
    assert installed(sandbox, text)[-1] == "note: eth0 isn't kept: it is an uplink"
    assert side_routes()[0] == GATEWAYS[gateway]


DEFAULTS = {
    "default via inet6 fe80::1 dev eth1 metric 50": "via inet6 fe80::1 dev eth1",
    "default via 10.9.9.9 dev eth1 onlink metric 50": "via 10.9.9.9 dev eth1",
    "default dev eth1 metric 50": "dev eth1",
    "default metric 150 nexthop via 10.1.0.9 dev eth0 nexthop via 10.2.0.7 dev eth1": (
        "via 10.2.0.7 dev eth1"
    ),
}


@pytest.mark.parametrize("default", DEFAULTS)
def test_a_gateway_from_the_own_default_route(
    host: NamespaceKernel, default: str, sandbox: Sandbox
) -> None:
    run_ip(f"route add {default}", program="ip -4")
    text = script("eth1", uplinks=("eth0",))
    installed(sandbox, text)
    words = side_routes()[0].split(" table ")[0]
    assert words == f"default {DEFAULTS[default]}"
    assert side_routes()[0].endswith("onlink") == ("onlink" in default)
    unchanged(sandbox, text)


def test_addresses_and_their_networks(host: NamespaceKernel, sandbox: Sandbox) -> None:
    run_ip(
        "addr add 172.16.0.12/16 dev ib0",
        "addr add 10.5.0.1/32 dev ib0",
        "addr add 10.6.0.1 peer 10.6.0.2/32 dev ib0",
        "addr add 10.7.0.1/24 dev ib0 scope link",
        "addr add 10.8.0.1/25 dev ib0",
    )
    text = script("ib0")
    installed(sandbox, text)
    assert side_routes() == [
        "10.6.0.2 dev ib0 table 2170000 proto 217 scope 253 src 10.6.0.1",
        "10.8.0.0/25 dev ib0 table 2170000 proto 217 scope 253 src 10.8.0.1",
        IB0,
    ]
    kept = {"172.16.0.10", "172.16.0.12", "10.5.0.1", "10.6.0.1", "10.8.0.1"}
    assert {*rules()} == {f"2170: from {address} lookup 2170000" for address in kept}
    unchanged(sandbox, text)


LEFT_OUT = {
    "eth0": ([], "eth0 isn't kept: it is an uplink"),
    "zz*": ([], "zz* isn't kept: there is no such interface"),
    "lo": ([], "lo isn't kept: lo never is, and there is no other such interface"),
    "ib0": (
        ["link add br0 type bridge", "link set ib0 master br0"],
        "ib0 isn't kept: it is a port of br0",
    ),
    "ib1": (
        ["addr add 172.16.0.11/32 dev eth1"],
        "172.16.0.11 of ib1 isn't kept: eth1 has this address, too",
    ),
    "d0": (
        [nics(d0="10.9.0.1/32")],
        "d0 isn't kept: it has neither a connected network nor a gateway",
    ),
    "d1": (
        [nics("d1"), "link set d1 down"],
        "not kept yet: d1 (it is down); the watcher or the next run does it",
    ),
    "d2": (
        [nics("d2"), "addr add 10.9.0.1/24 dev d2 scope link"],
        "not kept yet: d2 (it has no address); the watcher or the next run does it",
    ),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_is_left_out_is_noted(host: NamespaceKernel, name: str, sandbox: Sandbox) -> None:
    steps, note = LEFT_OUT[name]
    run_ip(*steps)
    before = state()
    assert installed(sandbox, script(name)) == ["nothing to change", f"note: {note}"]
    assert state() == before


def test_a_port_of_a_vrf_is_kept(host: NamespaceKernel, sandbox: Sandbox) -> None:
    """Many kernels are built without VRFs, so the script takes a bridge for one."""
    text = script("ib0")
    assert "link show type vrf" in text
    run_ip("link add br1 type bridge", "link set br1 up", "link set ib0 master br1")
    installed(sandbox, text.replace("link show type vrf", "link show type bridge"))
    assert side_routes() == [IB0]


def test_named_uplinks_are_left_out(host: NamespaceKernel, sandbox: Sandbox) -> None:
    made = installed(sandbox, script("ib*", "eth*", uplinks=("eth1", "ib1")))
    assert [line for line in made if line.startswith("note: ")] == [
        f"note: {name} isn't kept: it is an uplink" for name in ("eth1", "ib1")
    ]
    assert {line.split(" dev ")[1].split()[0] for line in side_routes()} == {"eth0", "ib0"}


def test_a_rule_before_a_kept_interface_is_refused(host: NamespaceKernel, sandbox: Sandbox) -> None:
    rule = ("172.16.5.0/24", 2169)
    assert refused(sandbox, script("ib0", rules=[rule])) == (
        "can't install the rule to 172.16.5.0/24 priority 2169: it would take packets off ib0, "
        "which is kept, as it comes before 2170 and meets its network 172.16.0.0/16\n"
    )
    installed(sandbox, script("ib0", rules=[("172.16.5.0/24", 2173), ("172.17.0.0/16", 2169)]))


def test_nothing_is_kept_before_table_local(host: NamespaceKernel, sandbox: Sandbox) -> None:
    """With the order that vrf.rst in the kernel recommends, packets from a kept address to this
    host's own addresses would leave it. Kept interfaces are let go, and nothing fails.
    """
    assert installed(sandbox, script("ib0"))
    run_ip("rule add pref 32765 lookup local", "rule del pref 0")
    *_, note = installed(sandbox, script("ib0"))
    assert note == "note: ib0 isn't kept: no rule before 2170 looks up table local"
    assert not rules()
    assert not side_routes()
    assert installed(sandbox, script(rules=[(VPN, 5269)]))
    run_ip("rule add pref 2169 lookup local")
    assert installed(sandbox, script("ib0"))
    assert tool("ip", "route", "get", "172.16.0.10", "from", "172.16.0.10").startswith("local ")


ODD_RULES = (
    *("blackhole", "unreachable", "prohibit", "nop", "goto 32766", "l3mdev"),
    *("lookup 77 ipproto tcp", "lookup 77 iif eth7", "lookup 77 oif eth7"),
)


def test_rules_with_our_protocol_that_ip_prints_otherwise_are_removed(
    host: NamespaceKernel, sandbox: Sandbox
) -> None:
    """Only by hand could such rules get it. They are put back if the run fails."""
    run_ip(*(f"rule add pref {n} {odd} protocol 217" for n, odd in enumerate(ODD_RULES, 20000)))
    run_ip("route add default dev eth0 table 52", "rule add pref 9 lookup 52")
    before = tool("ip", "rule")
    refused(sandbox, script("ib0"))
    assert tool("ip", "rule") == before
    run_ip("rule del pref 9")
    assert installed(sandbox, script("ib0"))
    assert [rule for rule in tool("ip", "rule").splitlines() if rule.startswith("20")] == []


EARLIER = {
    "another table": (
        ["route add default dev eth0 table 52", "rule add pref 9 lookup 52"],
        (
            "packets to 172.16.0.1 from 172.16.0.10 go by default dev eth0 table 52 scope 253, "
            "because of the rule 9: from all lookup 52"
        ),
    ),
    "a rule that jumps": (
        ["rule add pref 9 goto 32766"],
        (
            "packets to 172.16.0.1 from 172.16.0.10 go by 172.16.0.0/16 dev ib0 proto 2 scope 253 "
            "src 172.16.0.10, because the rule 9: from all goto 32766 jumps over ours"
        ),
    ),
    "a rule without a preference": (
        ["rule add pref 2169 from 172.16.0.10 lookup 254"],
        (
            "packets to 172.16.0.1 from 172.16.0.10 go by 172.16.0.0/16 dev ib0 proto 2 scope 253 "
            "src 172.16.0.10, because of the rule 2169: from 172.16.0.10 lookup 254"
        ),
    ),
}


@pytest.mark.parametrize("earlier", EARLIER)
def test_an_earlier_rule_is_an_error(host: NamespaceKernel, earlier: str, sandbox: Sandbox) -> None:
    steps, why = EARLIER[earlier]
    run_ip(*steps)
    assert refused(sandbox, script("ib0")) == f"can't keep 172.16.0.10 on ib0: {why}\n"


def test_a_far_address_must_leave_by_the_gateway(host: NamespaceKernel, sandbox: Sandbox) -> None:
    text = script("eth1")
    run_ip("rule add pref 9 from 10.2.0.4 to 198.51.100.0/24 lookup 254")
    assert refused(sandbox, text).startswith("can't keep 10.2.0.4 on eth1: packets to 198.51.100.1")
    # A longer route of table main is right.
    run_ip("route add 198.51.100.0/24 via 10.1.0.9 dev eth0")
    installed(sandbox, text)


def test_no_carrier_no_proof(host: NamespaceKernel, sandbox: Sandbox) -> None:
    Path("/proc/sys/net/ipv4/conf/eth1/ignore_routes_with_linkdown").write_text("1")
    run_ip("link set peer-eth1 down")
    installed(sandbox, script({"dev": "eth1", "gateway": "10.2.0.1"}))
    assert len(rules()) == 3


@pytest.mark.parametrize("lost", [2170, 2172])
def test_a_table_is_found_by_either_rule(
    host: NamespaceKernel, sandbox: Sandbox, lost: int
) -> None:
    text = script({"dev": "eth1", "gateway": "10.2.0.1"})
    installed(sandbox, text)
    before = rules(), side_routes()
    run_ip(f"rule del pref {lost} proto 217")
    installed(sandbox, text)
    assert (rules(), side_routes()) == before


# --- waiting --------------------------------------------------------------------------------------


def test_an_interface_is_waited_for(host: NamespaceKernel, sandbox: Sandbox) -> None:
    run_ip("addr flush dev ib1")
    process = sandbox.start(script("ib*", settle=60))
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting up to 60 s for ib1 (it has no address)\n"
    # Meanwhile, nothing is changed, and no lock is held.
    assert not rules()
    run_ip("addr add 172.16.0.11/16 dev ib1")
    _, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (0, "")
    assert rules() == KEPT


def test_an_interface_that_is_down_is_not_waited_for(
    host: NamespaceKernel, sandbox: Sandbox
) -> None:
    run_ip("link set ib1 down")
    *_, note = installed(sandbox, script("ib*", settle=60))
    assert note == "note: not kept yet: ib1 (it is down); the watcher or the next run does it"
    assert rules() == KEPT[:1]


def test_the_wait_for_an_interface_ends(host: NamespaceKernel, sandbox: Sandbox) -> None:
    """A start that is held waits only once."""
    run_ip("addr flush dev ib1")
    text = with_constants(script("ib*", routes=HALVES, settle=600), GATE_SECONDS=1)
    out = installed(sandbox, text, "gate")
    note = "note: not kept yet: ib1 (it has no address); the watcher or the next run does it"
    assert out[0] == "waiting up to 1 s for ib1 (it has no address)"
    assert (out[-1], len(out)) == (note, 6)
    assert rules() == KEPT[:1]
    assert installed(sandbox, text, "gate", "told") == ["nothing to change", note]


def test_the_network_is_waited_for_first(host: NamespaceKernel, sandbox: Sandbox) -> None:
    run_ip("addr flush dev ib1", "route del default via 10.1.0.1", "route del default via 10.2.0.1")
    process = sandbox.start(script("ib*", routes=HALVES, settle=1, wait=60))
    assert process.stdout is not None
    assert process.stdout.readline().startswith("waiting up to 60 s for the default route")
    run_ip("route add default via 10.1.0.1")
    out, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (0, "")
    assert out.endswith(" ib1 (it has no address); the watcher or the next run does it\n")


# --- all or nothing -------------------------------------------------------------------------------

OLD = script("ib0", "eth1", routes=HALVES[:1], rules=[(VPN, 5269), (VPN6, 5269)])
NEW = script(
    {"dev": "eth1", "gateway": "10.2.0.9"},
    "ib1",
    routes=HALVES[1:],
    rules=[("10.98.0.0/16", 5269), (VPN6, 5270)],
)
FAULTS = {
    "ip is refused": 'echo "RTNETLINK answers: Operation not permitted" >&2; exit 2',
    "awk is killed": "kill -9 $PPID; sleep 0.1; exit",
    "a signal": 'read -r _ _ _ script _ <"/proc/$PPID/stat"; kill -TERM "$script"; exit 1',
}


@pytest.mark.parametrize("fault", FAULTS)
def test_changes_are_undone_after_a_fault_at_each_step(
    host: NamespaceKernel, fault: str, sandbox: Sandbox
) -> None:
    build_node6("e6", "i6")
    installed(sandbox, OLD)
    before = state()
    # A batch of changes comes from a file.
    count = '[ ! -f /proc/self/fd/0 ] || wc -l >>"$ROOT/counts" <"$SCRATCH"'
    installed(sandbox, NEW, prepare=other_ip(count))
    counts = [int(line) for line in (sandbox.root / "counts").read_text().split()]
    assert len(counts) == 4
    after = state()
    steps = [(call, step) for call, lines in enumerate(counts, 1) for step in range(lines)]
    # By day, only some of these.
    for call, step in steps[len(fault) % 5 :: by_day(16, by_night=1)]:
        installed(sandbox, OLD)
        assert state() == before
        (sandbox.root / "batches").unlink(missing_ok=True)
        change = (
            'if [ -f /proc/self/fd/0 ]; then echo >>"$ROOT/batches"; fi; '
            f'if [ -f /proc/self/fd/0 ] && [ "$(wc -l <"$ROOT/batches")" = {call} ]; then '
            f'head -n {step} | "$ROOT/ip-itself" "$@"; {FAULTS[fault]}; fi'
        )
        done = sandbox.run(NEW, prepare=other_ip(change))
        assert (done.returncode, state() == before) == (1, True), (call, step, done.stderr)
        assert "not all could be put back" not in done.stderr
    installed(sandbox, NEW)
    assert state() == after
    del host


@pytest.mark.parametrize(
    "why", ["Dump was interrupted and may be inconsistent.", "Error: no answer"]
)
def test_changes_are_undone_if_rules_can_not_be_listed(
    host: NamespaceKernel, why: str, sandbox: Sandbox
) -> None:
    installed(sandbox, OLD)
    before = state()
    commit = (
        '[ -e "$ROOT/made" ] || { "$ROOT/ip-itself" "$@" >/dev/null; : >"$ROOT/made"; exit 2; }'
    )
    change = (
        f"if [ -f /proc/self/fd/0 ]; then {commit}; "
        f'elif [ -e "$ROOT/made" ]; then echo "{why}" >&2; exit 2; fi'
    )
    assert sandbox.run(NEW, prepare=other_ip(change)).returncode == 1
    assert (sandbox.root / "made").exists()
    assert state() == before


def test_a_rule_that_is_already_gone_needs_no_removal(
    host: NamespaceKernel, sandbox: Sandbox
) -> None:
    installed(sandbox, script("ib*", rules=[(VPN, 5269)]))
    lose = "; ".join(
        f'"$ROOT/ip-itself" {words}'
        for words in ("rule flush proto 217", "route flush table 2170000 proto 217")
    )
    installed(sandbox, script(), prepare=other_ip(f'[ "$calls" != 2 ] || {{ {lose}; }}'))
    assert not rules()
    assert not side_routes()


def test_a_rule_that_is_added_meanwhile_stops_the_run(
    host: NamespaceKernel, sandbox: Sandbox
) -> None:
    """That a rule exists doesn't mean that it is the wanted one."""
    add = f'"$ROOT/ip-itself" rule add from 10.9.0.1 to {VPN} lookup 255 pref 5269 proto 217'
    done = sandbox.run(script(rules=[(VPN, 5269)]), prepare=other_ip(f'[ "$calls" != 2 ] || {add}'))
    assert done.returncode == 1
    assert (
        f"ip rule add pref 5269 from all to {VPN} lookup 255 proto 217: File exists" in done.stderr
    )


# --- names ----------------------------------------------------------------------------------------

NAMES = (
    *(
        "from",
        "via",
        "dev",
        "lookup",
        "proto",
        "to",
        "table",
        "scope",
        "inet",
        "iif",
        "not",
        "goto",
    ),
    *("link", "onlink", "src", "all0", "254", "217", "2170000", "[detached]", "a@b", "x*", "peer"),
)


@pytest.mark.parametrize("name", some(NAMES, one_of=4))
def test_interfaces_may_be_named_like_words(name: str, tmp_path: Path) -> None:
    kernel = on_linux()  # as long as it exists, so does its namespace
    run_ip(nics(eth0="10.1.0.4/24"), "route add default via 10.1.0.1 dev eth0 metric 100")
    run_ip(f"link add dev {name} type veth peer name other", "link set other up")
    run_ip(
        f"link set dev {name} up",
        f"addr add 172.16.0.10/16 dev {name}",
        f"route add default via 172.16.0.1 dev {name} metric 200",
        f"rule add pref 2170 from 10.9.0.1 iif {name} oif {name} lookup 99",
        f"rule add pref 5269 to {VPN} iif {name} lookup 99",
    )
    pattern = "".join(letter if letter.isalnum() else "?" for letter in name)
    uplinks = ("eth0",)
    text = script(pattern, rules=[(VPN, 5269)], uplinks=uplinks)
    sandbox = Sandbox(tmp_path, awk_or_skip(AWKS[NAMES.index(name) % len(AWKS)]))
    before = state()
    installed(sandbox, text)
    assert side_routes() == [
        f"default via 172.16.0.1 dev {name} table 2170000 proto 217",
        f"172.16.0.0/16 dev {name} table 2170000 proto 217 scope 253 src 172.16.0.10",
    ]
    assert len(rules()) == 5
    unchanged(sandbox, text)
    installed(sandbox, render_no_routes())
    assert state() == before
    del kernel


# --- the end of a trial ---------------------------------------------------------------------------


def test_a_trials_end_puts_the_installed_rules_back(
    host: NamespaceKernel, sandbox: Sandbox
) -> None:
    build_node6("e6", "i6")
    run_ip6("route add default via fd00:a::1 dev e6")
    installed(sandbox, OLD)
    before = state()
    installed(sandbox, NEW)
    installed(sandbox, OLD, "trial")
    assert state() == before
    # A trial may have added rules of a family that the installed script doesn't list.
    without = script()
    installed(sandbox, without, "trial")
    assert not rules()
    assert not rules("-6")
    assert not side_routes()
    del host


def test_a_trials_end_removes_rules_even_if_others_can_not_be_installed(
    host: NamespaceKernel, sandbox: Sandbox
) -> None:
    kept = script("ib0", rules=[(VPN, 5269)])
    installed(sandbox, script("ib*", rules=[(VPN, 5269), ("10.98.0.0/16", 5269)]))
    run_ip("route add 10.9.0.0/16 dev eth1 table 2170000")
    done = sandbox.run(kept, "trial")
    assert (done.returncode, done.stderr.splitlines()) == (
        1,
        [
            (
                "can't keep ib0: another program has a route in its table 2170000 "
                "(10.9.0.0/16 dev eth1 table 2170000 scope 253)"
            )
        ],
    )
    assert rules() == [KEPT[0], *PAIR]
    assert side_routes() == ["10.9.0.0/16 dev eth1 table 2170000 scope 253", IB0]


# --- the check ------------------------------------------------------------------------------------


def test_a_host_with_kept_interfaces_is_ordinary(host: NamespaceKernel, sandbox: Sandbox) -> None:
    """The script says ok without Python."""
    run_ip6("addr add fd00:a::4/64 dev eth0 nodad", "route add default via fd00:a::1 dev eth0")
    expected = ["172.16.0.0/16", VPN, VPN6]
    config = Config(route_overlap={"expectedCidrs": expected, "mode": "STRICT"}, wait_seconds=0)
    check = render_check(config)
    assert sandbox.run(check).returncode == 1
    installed(sandbox, script("ib*", "eth1", routes=HALVES, rules=[(VPN, 5269), (VPN6, 5269)]))
    backends = {Family.IPV4: NetlinkBackend(), Family.IPV6: NetlinkBackend6()}
    report = check_families(config, backends.__getitem__, phases.CancelScope())
    assert report.verdict == "ok", report.reason
    done = sandbox.run(check)
    assert (done.returncode, done.stderr, sandbox.told()) == (0, "", [])


def test_rules_before_table_local_are_ordinary_in_pairs(
    host: NamespaceKernel, sandbox: Sandbox
) -> None:
    """Another program may move the rule for table local behind ours, as Cilium does."""
    installed(sandbox, script(rules=[("10.1.0.0/24", 50)], routes=HALVES))
    run_ip("rule add pref 100 lookup 255", "rule del pref 0")
    check = render_check(
        Config(
            route_overlap={"expectedCidrs": ["172.16.0.0/16", "10.1.0.0/24"], "mode": "STRICT"},
            wait_seconds=0,
        )
    )
    done = sandbox.run(check)
    assert (done.returncode, done.stderr, sandbox.told()) == (0, "", [])
    # Without its first rule, a pair leads this host's own address away.
    run_ip("rule del pref 50 to 10.1.0.0/24 lookup 255")
    assert sandbox.run(check).returncode == 1
    assert sandbox.told() == ["check-failed: table local isn't asked first"]
