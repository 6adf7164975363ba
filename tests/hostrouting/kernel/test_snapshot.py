"""Tests that snapshots and managers' state files are read, and errors are reported with their
paths.
"""

from __future__ import annotations

import json
import os
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from operator import attrgetter
from pathlib import Path
from typing import Any

import attrs
import pytest
from file_trees import write_file
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from nightly import by_day
from node import shadowed_kernel
from wanted import config

import phases
from hostrouting import Host, Layout, OverlapReport, check
from hostrouting.host_files.managers import (
    NETWORK_MANAGER,
    NETWORKD,
    is_managed,
    keeps_foreign_rules,
    who_manages,
)
from hostrouting.host_files.resolv_conf import nameservers
from hostrouting.kernel.model import Model, model_of
from hostrouting.kernel.port import Write, read_routes
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.kernel.taking_snapshots import take_snapshot
from hostrouting.model.errors import ConfigError, FileError, RouteError
from hostrouting.model.family import Family
from hostrouting.model.links import Address, Link
from hostrouting.model.routes import NextHop, Protocol, Route, RouteType, Table
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.overlap.findings import Verdict
from hostrouting.overlap.summary import reasons
from hostrouting.testing import FakeKernel

LINK = {
    "ifindex": 2,
    "ifname": "eth0",
    "flags": ["BROADCAST", "UP", "LOWER_UP"],
    "link_type": "ether",
}
EMPTY: dict[str, Any] = {"schema": 1, "links": [], "addresses": [], "rules": [], "routes": []}


def read(**lists: Any) -> Snapshot:
    return Snapshot.from_document(EMPTY | lists)


def problems(document: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        Snapshot.from_document(document)
    return dict(caught.value.problems)


# --- ip's output ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"src": "all", "table": "main"}, {}),
        ({"dscp": "5", "table": "254"}, {"tos": 20}),
        ({"fwmark": "0", "table": "254"}, {"mark": 0}),
        (
            {"uid_start": 5, "uid_end": 10, "ipproto": "ipproto-6", "table": "254"},
            {"uid_range": (5, 10), "ip_protocol": 6},
        ),
        ({"ipproto": "udp", "dport": 53, "table": "254"}, {"ip_protocol": 17, "has_ports": True}),
        ({"sport_start": 1, "sport_end": 2, "table": "254"}, {"has_ports": True}),
        ({"dscp": "0", "dscp_mask": "0x3f", "table": "254"}, {}),
        ({"dscp": "0x28", "dscp_mask": "0x38", "table": "254"}, {"tos": 160}),
        ({"dport": 53, "dport_mask": "0xffff", "table": "254"}, {"has_ports": True}),
        ({"sport": 53, "sport_mask": "0xffff", "table": "254"}, {"has_ports": True}),
        ({"goto": 50000, "unresolved": None}, {"action": RuleAction.GOTO, "goto": 50000}),
        ({"goto": "none"}, {"action": RuleAction.GOTO}),
        ({"action": "7"}, {"action": RuleAction.UNREACHABLE}),
        ({"action": "prohibit"}, {"action": RuleAction.PROHIBIT}),
        ({"action": "10"}, {"action": RuleAction.BLACKHOLE}),
    ],
)
def test_rules_as_ip_words_them(item: dict[str, Any], expected: dict[str, Any]) -> None:
    """tests/kernel/test_snapshots_agree.py has the other selectors and actions, as this machine's
    ip prints them.
    """
    (rule,) = read(rules=[{"priority": 100} | item]).rules
    assert rule == Rule(**{"preference": 100, "protocol": Protocol.KERNEL} | expected)


@pytest.mark.parametrize("infiniband", ["[32]", "infiniband"])
def test_links_and_addresses_as_ip_words_them(infiniband: str) -> None:
    port = {
        "ifindex": 3,
        "ifname": "p1",
        "flags": ["NO-CARRIER"],
        "link_type": infiniband,
        "master": "br0",
    }
    snapshot = read(
        links=[
            LINK | {"address": "00:0d:3a:00:00:01"},
            {},
            port | {"linkinfo": {"info_kind": "veth", "info_slave_kind": "bridge"}},
        ],
        addresses=[
            {},
            {"ifname": "lo"},
            {
                "ifname": "eth0",
                "addr_info": [
                    {},
                    {"family": "inet6", "local": "fe80::1", "prefixlen": 64},
                    {
                        "family": "inet",
                        "local": "10.1.0.5",
                        "prefixlen": 24,
                        "secondary": True,
                        "noprefixroute": True,
                    },
                    {
                        "family": "inet",
                        "local": "192.0.2.1",
                        "address": "192.0.2.9",
                        "prefixlen": 30,
                        "metric": 5,
                    },
                ],
            },
        ],
    )
    assert snapshot.links == (
        Link(2, "eth0", mac="00:0d:3a:00:00:01"),
        Link(3, "p1", is_up=False, has_carrier=False, kind="veth", hardware=32, master="br0"),
    )
    assert snapshot.addresses == (
        Address("eth0", IPv4Address("10.1.0.5"), 24, is_secondary=True, has_prefix_route=False),
        Address("eth0", IPv4Address("192.0.2.1"), 30, IPv4Address("192.0.2.9"), metric=5),
    )


def test_an_optimistic_address_is_usable_before_it_is_verified() -> None:
    plain = {"family": "inet6", "prefixlen": 64, "tentative": True}
    infos = [plain | {"local": "fd00::1"}, plain | {"local": "fd00::2", "optimistic": True}]
    found = read(addresses=[{"ifname": "eth0", "addr_info": infos}], rules6=[], routes6=[])
    assert found.ipv6 is not None
    assert [each.is_usable for each in found.ipv6.addresses] == [False, True]


@pytest.mark.parametrize(
    ("name", "hardware"),
    [("gre6", 823), ("netlink", 824), ("can", 280), ("ieee802.15.4", 804), ("fcfb12", 799)],
)
def test_link_types_that_ip_names(name: str, hardware: int) -> None:
    assert read(links=[LINK | {"link_type": name}]).links[0].hardware == hardware


@pytest.mark.parametrize(("name", "number"), [("isis", 187), ("babel", 42), ("none", 0)])
def test_protocols_that_ip_names(name: str, number: int) -> None:
    (route,) = read(routes=[{"dst": "10.0.0.0/8", "dev": "eth0", "protocol": name}]).routes
    assert route.protocol == number


def test_rules_are_read_in_the_order_of_their_preferences() -> None:
    rules = [{"priority": each, "table": "254"} for each in (32766, 0, 100)]
    assert [rule.preference for rule in read(rules=rules).rules] == [0, 100, 32766]


# --- documents that aren't snapshots --------------------------------------------------------------


def test_both_families_in_one_list_are_told_once() -> None:
    default = {"dst": "default", "dev": "wg0"}
    ipv6 = [{"dst": f"fd00:{number:x}::/64", "dev": "eth0"} for number in range(300)]
    told = problems(EMPTY | {"routes": [default, *ipv6]})
    assert told == {
        "routes": "has IPv6 routes (300 of 301, such as 'fd00:0::/64'), which belong in routes6: "
        "use ip -j -N -d -4 route show table all"
    }
    told = problems(EMPTY | {"rules6": [], "routes6": [default, {"dst": "10.0.0.0/8"}]})
    assert told["routes6"].startswith("has IPv4 routes (1 of 2, such as '10.0.0.0/8'), which belon")


def test_an_ipv6_default_route_isnt_read_as_ipv4s() -> None:
    told = problems(EMPTY | {"routes": [{"dst": "default", "dev": "wg0", "pref": "medium"}]})
    assert told["routes"].startswith("has IPv6 routes (1 of 1, such as 'default')")


def test_a_long_number_is_cut() -> None:
    told = problems(EMPTY | {"links": [LINK | {"mtu": 10**400}]})
    assert len(told["links[0].mtu"]) < 120


@pytest.mark.parametrize(("key", "value"), [("ifname", "eth0"), ("ifindex", 2)])
def test_links_have_different_names_and_indexes(key: str, value: object) -> None:
    other = {"ifindex": 3, "ifname": "eth1", "flags": [], "link_type": "ether"}
    told = problems(EMPTY | {"links": [LINK, other | {key: value}]})
    assert told == {"links": f"several links have {key} {value}"}


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            "default via 10.1.0.1 dev eth0\n",
            "; it begins with 'default': exp",
        ),
        ('Warning: added host\n{"links": []}', "; it begins with 'Warning:': expected"),
        ("ssh: connect to host node\n", "; it begins with 'ssh:': expected"),
        ("1: lo: <LOOPBACK,UP>\n", "; it begins with '1:': expected"),
        ("root:$6$salt$hash:20000:0:::\n", "; it doesn't begin with {: expected"),
        ("secret\n", "; it doesn't begin with {: expected"),
        ('{"ip": ""\n, "links":\n, "rules":\n}', "; the command before it printed nothing"),
        ('{"links": []\n, "routes": default via 10.1.0.1}', "before it printed no JSON: does its"),
        ('{"links": [], // of eth0\n "rules": []}', "; JSON has no comments"),
        ('{"links": [1 2]}', "(char 13)"),
        ('{"links": [{"ifname": "et', "(char 22); it ends early"),
        ('{"links": [], "routes":\n', "; it ends early"),
        ('{"links": [],', "; it ends early"),
    ],
)
def test_what_isnt_json_has_a_likely_cause(text: str, cause: str, tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        Snapshot.load(path)
    ((_, told),) = caught.value.problems
    assert told.startswith("is not JSON: ")
    assert cause in told


def test_all_problems_are_reported_at_once_with_their_paths() -> None:
    document = {
        "schema": 2,
        "host": "a\n✓ 1 b",
        "time": 5,
        "links": [LINK, {"ifname": "", "flags": "UP", "link_type": "sausage"}],
        "addresses": [
            {
                "ifname": "eth0",
                "addr_info": [{"local": "10.1.0.4"}, {"local": "x", "prefixlen": 33}],
            }
        ],
        "rules": [{"priority": -1, "table": "blue"}, {"priority": 7}, 5],
        "routes": [
            {"dst": "10.0.0.0/33", "dev": "eth0"},
            {"dst": "10.0.0.1/24", "gateway": "fe80::1"},
            {"dst": "10.0.0.0/8", "nexthops": [{"dev": "eth0"}, {"via": {}, "weight": True}]},
        ],
        "nexthops": {},
        "nameservers": ["10.0.0.10", "dns"],
    }
    found = problems(document)
    info = "addresses[0].addr_info"
    assert list(found) == [
        *(
            "schema",
            "host",
            "time",
            "links[1].flags",
            "links[1].ifindex",
            "links[1].ifname",
            "links[1].link_type",
        ),
        *(f"{info}[0].prefixlen", f"{info}[1].local", f"{info}[1].prefixlen"),
        *("rules[0].priority", "rules[0].table", "rules[1].table", "rules[2]"),
        *("routes[0].dst", "routes[1].gateway", "routes[1].dst"),
        *(
            "routes[2].nexthops[1].via.host",
            "routes[2].nexthops[1].weight",
            "nexthops",
            "nameservers[1]",
        ),
    ]
    assert found["schema"] == "2 is not a schema that is known here; expected 1"
    assert found["rules[0].table"] == "'blue' is not a number; use ip -N, which prints no names"
    assert found["rules[1].table"] == "is missing"
    assert "is not an IPv4 prefix" in found["routes[0].dst"]
    assert "host bits" in found["routes[1].dst"]
    assert problems({"nexthops": []}) == dict.fromkeys(
        ("links", "addresses", "rules", "routes"), "is missing"
    )
    for other in (None, [], "x", 5, [{"dst": "default"}]):
        assert "the lists links, addresses, rules and routes" in problems(other)[""]


NAMES = ["ib0\nok", "a b", "\t", "", 7, "x" * 16, "é" * 8, "\udcff" * 16, "a/b", "a:b", ".", ".."]


@pytest.mark.parametrize("name", NAMES)
def test_an_impossible_interface_name_is_refused(name: object) -> None:
    for lists in (
        {"links": [LINK | {"ifname": name}]},
        {"links": [LINK | {"master": name}]},
        {"addresses": [{"ifname": name, "addr_info": []}]},
        {"routes": [{"dst": "10.0.0.0/8", "dev": name}]},
        {"routes": [{"dst": "10.0.0.0/8", "nexthops": [{"dev": name}]}]},
        {"nexthops": [{"id": 1, "dev": name}]},
    ):
        (problem,) = problems(EMPTY | lists).values()
        assert "is not " in problem


@pytest.mark.parametrize("key", ["time", "kernel", "ip", "name", "mac", "since"])
@pytest.mark.parametrize("text", ["x\nfix: y", "\x1b[31mx", "x\u2028y", "x\x00"])
def test_no_text_injects_lines_into_a_report(key: str, text: str) -> None:
    document: dict[str, Any] = {"rules": [], "routes": [], "links": [], "addresses": []}
    is_about_uplink = key in ("name", "mac", "since")
    more: dict[str, Any] = {"uplink": [{"name": "eth0", key: text}]}
    with pytest.raises(ConfigError, match=f"(uplink\\[0\\][.])?{key}: "):
        Snapshot.from_document(document | (more if is_about_uplink else {key: text}))


@pytest.mark.parametrize("selector", ["iif", "oif"])
def test_a_rule_may_name_an_impossible_interface(selector: str) -> None:
    """The kernel accepts any name of up to 15 bytes, but a report shows it on one line."""
    for name in ("eth0:1", "a b", "ib0\nok", ".."):
        (rule,) = read(rules=[{"priority": 1, "table": "254", selector: name}]).rules
        assert getattr(rule, selector) == name
        assert len(str(rule).splitlines()) == 1
    for refused in ("", 7, "x" * 16):
        assert [
            *problems(EMPTY | {"rules": [{"priority": 1, "table": "254", selector: refused}]})
        ] == [f"rules[0].{selector}"]


def test_an_unusual_interface_name_is_read(tmp_path: Path) -> None:
    for name in ("x" * 15, "é" * 7, "\udcff" * 15, "$(reboot)", "...", "-"):
        assert read(routes=[{"dst": "10.0.0.0/8", "dev": name}]).routes[0].devs == (name,)
    path = tmp_path / "node.json"
    path.write_bytes(
        json.dumps(EMPTY | {"links": [LINK]}).encode().replace(b'"eth0"', b'"\xffeth"')
    )
    assert Snapshot.load(path).links[0].name == os.fsdecode(b"\xffeth")


@pytest.mark.parametrize(
    ("told", "file", "host"),
    [
        ({}, "node-7.json", "node-7"),
        ({}, "10.1.0.4", "10.1.0.4"),
        ({"host": "node-8"}, "node-7.json", "node-8"),
        ({}, "a\n✓ b.json", "a?✓ b"),
    ],
)
def test_an_unnamed_host_gets_the_files_name(
    tmp_path: Path, told: dict[str, str], file: str, host: str
) -> None:
    path = tmp_path / file
    path.write_text(json.dumps(EMPTY | told))
    assert Snapshot.load(path).host == host


# --- the backend ----------------------------------------------------------------------------------


@pytest.fixture
def backend() -> Model:
    route = {"dst": "default", "gateway": "10.1.0.1", "dev": "eth0"}
    rules = [
        {"priority": 0, "table": "255"},
        {"priority": 32766, "table": "254"},
        {"priority": 32767, "table": "253"},
    ]
    return model_of(
        read(links=[LINK], rules=rules, routes=[route, {"dst": "10.0.0.0/8", "table": "7"}]).known(
            Family.IPV4
        )
    )


def test_a_snapshot_answers_and_never_changes(backend: Model) -> None:
    """Waiting for a change ends only when the scope does."""
    assert [answer.route for answer in backend.lookup([IPv4Address("10.0.0.1")])] == [
        read_routes(backend, Table.MAIN)[0]
    ]
    assert len(read_routes(backend)) == 2
    assert [route.table for route in read_routes(backend, 7)] == [7]
    assert read_routes(backend, 8) == ()
    before = read_routes(backend)
    for change in Write:
        assert backend.write(change, []) == ()
        with pytest.raises(
            RouteError, match="can't .* default via 10.1.0.1 dev eth0: the host is a snapshot"
        ):
            backend.write(change, before)
    assert read_routes(backend) == before
    scope = phases.CancelScope()
    scope.cancel("enough")
    with backend.changes() as changes:
        with pytest.raises(phases.Cancelled):
            changes.wait(scope)
        assert not changes.happened()


# --- nameservers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("taken", "hint"),
    [
        ({"schema": 1}, "check on the host itself"),
        ({}, "take the snapshot with hostrouting snapshot"),
    ],
)
def test_a_lacking_fact_has_a_hint_that_helps(taken: dict[str, int], hint: str) -> None:
    lists = {**EMPTY, "routes": [{"dst": "default", "gateway": "10.1.0.1"}]}
    del lists["schema"]
    snapshot = Snapshot.from_document(lists | taken)
    with pytest.raises(RouteError) as caught:
        model_of(snapshot.known(Family.IPV4)).entries()
    assert caught.value.hint == hint


def test_nameservers_come_from_resolv_conf_or_behind_the_stub(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert nameservers(layout) == ()
    write_file(layout.resolv_conf, "nameserver 127.0.0.53\noptions edns0\n")
    assert nameservers(layout) == ()
    write_file(layout.resolved_conf, "nameserver 168.63.129.16\nnameserver fe80::1%2\n")
    assert nameservers(layout) == (IPv4Address("168.63.129.16"),)
    layout.resolv_conf.write_text(
        "# nameserver 10.0.0.1\nnameserver\t10.0.0.2  # the first\n"
        " nameserver 10.0.0.3\nnameservers 10.0.0.4\n"
        "nameserver\nnameserver x\nnameserver 2001:db8::1\n"
        "nameserver 10.0.0.5\nnameserver 10.0.0.2\n"
    )
    assert nameservers(layout) == (IPv4Address("10.0.0.2"), IPv4Address("10.0.0.5"))
    layout.resolv_conf.unlink()
    layout.resolv_conf.mkdir()
    with pytest.raises(FileError, match=r"can't read .*resolv.conf: Is a directory"):
        nameservers(layout)


def test_a_snapshot_names_host_time_kernel_and_nameservers() -> None:
    snapshot = attrs.evolve(take_snapshot(FakeKernel()), nameservers=(IPv4Address("10.0.0.10"),))
    assert (snapshot.host, snapshot.kernel) == (os.uname().nodename, f"Linux {os.uname().release}")
    assert len(snapshot.time or "") == len("2026-11-20T09:00:00Z")
    keys = (
        "schema",
        "host",
        "time",
        "kernel",
        "isMerged",
        "links",
        "addresses",
        "rules",
        "routes",
        "nameservers",
    )
    assert tuple(json.loads(snapshot.to_text())) == keys


@pytest.mark.parametrize(
    ("told", "is_known"),
    [
        ({"schema": 1}, True),
        ({}, False),
        ({"kernel": "Linux 6.12.3-azure"}, True),
        ({"kernel": "Linux 6.13.0"}, False),
        ({"kernel": "Linux 6.16.1", "ip": "ip utility, iproute2-6.1.0, libbpf 1.1.2"}, False),
        ({"kernel": "Linux 6.16.1", "ip": "ip utility, iproute2-6.16.0"}, True),
        ({"kernel": "Linux 6.16.1", "ip": "ip utility, iproute2-ss200127"}, False),
        ({"kernel": "unknown", "ip": "ip utility, iproute2-6.16.0"}, False),
    ],
)
def test_an_ip_older_than_the_kernel_may_omit_selectors(
    told: dict[str, Any], is_known: bool
) -> None:
    rules = [
        {"priority": 5, "table": "100"},
        {"priority": 2170, "table": "100", "protocol": "217"},
        {"priority": 32766, "table": "254", "protocol": "2"},
    ]
    document = {"links": [], "addresses": [], "rules": rules, "routes": []}
    found = Snapshot.from_document(document | told).rules
    assert [rule.has_unknown for rule in found] == [not is_known, False, False]


VPN = """\
link add wg0
address add 10.8.0.2/24 dev wg0
route add default dev wg0 table 51820
rule add pref 5209 {} lookup 51820"""
OLD_IP: dict[str, Any] = {
    "kernel": "Linux 6.16.1",
    "ip": "ip utility, iproute2-6.1.0",
    "schema": None,
}


def check_vpn(selectors: str, changes: dict[str, Any]) -> OverlapReport:
    """Check a snapshot of a host with a VPN's rule, after changes of the document."""
    kernel = shadowed_kernel()
    kernel.ip(VPN.format(selectors))
    document = take_snapshot(kernel).to_document() | changes
    given = {key: value for key, value in document.items() if value is not None}
    return check(config(cidrs=["10.96.0.0/12"]), host=Host.recorded(Snapshot.from_document(given)))


def test_a_rule_that_may_have_more_selectors_gives_no_verdict() -> None:
    assert check_vpn("from all", {}).verdict is Verdict.OVERLAP
    assert check_vpn("from all", OLD_IP).reason == (
        "check-failed: the snapshot doesn't show whether the rule 5209: from all (and"
        " perhaps more selectors) lookup 51820 matches, which decides about 10.96.0.0;"
        " this snapshot may hide selectors of that rule: take one with hostrouting snapshot"
    )


def test_a_rule_that_may_have_more_selectors_is_not_blamed() -> None:
    """A rule of wg-quick isn't to be changed because of what an old ip hides."""
    selectors = "not from all fwmark 51820"
    assert len(check_vpn(selectors, {}).fix.rules) == 1
    report = check_vpn(selectors, OLD_IP)
    (unfixable,) = report.fix.unfixable
    assert [line.split(" 10.")[0] for line in reasons(report)] == ["no route is proposed for"]
    assert "change that rule" not in unfixable.reason
    assert "; this snapshot may hide selectors of that rule: take one with" in unfixable.reason


# --- network managers -----------------------------------------------------------------------------


NETWORKDS, NETWORK_MANAGERS = "run/systemd/netif/links/2", "run/NetworkManager/devices/2"


@pytest.mark.parametrize(
    ("path", "text", "managed_by"),
    [
        (NETWORKDS, "# Do not parse.\nADMIN_STATE=configured\nOPER_STATE=routable\n", NETWORKD),
        (NETWORKDS, "ADMIN_STATE=configuring", NETWORKD),
        (NETWORKDS, "ADMIN_STATE=unmanaged\n", None),
        (NETWORKDS, "OPER_STATE=routable\n", None),
        (NETWORKDS, "", None),
        (NETWORKDS, "SSID=\udcff\nADMIN_STATE=configured\n", NETWORKD),
        (NETWORK_MANAGERS, "[device]\nmanaged=full\n", NETWORK_MANAGER),
        (NETWORK_MANAGERS, "[device]\nmanaged = true\n", NETWORK_MANAGER),
        (NETWORK_MANAGERS, "[device]\nmanaged=false\n", None),
        ("run/systemd/netif/links/3", "ADMIN_STATE=configured\n", None),
    ],
)
def test_a_managers_file_claims_an_interface(
    tmp_path: Path, path: str, text: str, managed_by: str | None
) -> None:
    write_file(tmp_path / path, text)
    managers = {
        manager for manager in (NETWORKD, NETWORK_MANAGER) if is_managed(tmp_path, manager, 2)
    }
    assert managers == ({managed_by} if managed_by else set())
    assert (managed_by or "no network manager") in who_manages(tmp_path, "eth0", 2)


def test_a_folder_in_the_files_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / NETWORKDS).mkdir(parents=True)
    with pytest.raises(FileError, match="netif/links/2"):
        who_manages(tmp_path, "eth0", 2)


KEEPING = "[Network]\nManageForeignRoutingPolicyRules=no\n"
DROPPING = "[Network]\nManageForeignRoutingPolicyRules=yes\n"


@pytest.mark.parametrize(
    ("files", "is_kept"),
    [
        ({}, False),
        ({"etc/systemd/networkd.conf": KEEPING}, True),
        ({"etc/systemd/networkd.conf": "[Network]\n#ManageForeignRoutingPolicyRules=no\n"}, False),
        ({"etc/systemd/networkd.conf": KEEPING.replace("[Network]", "[DHCPv4]")}, False),
        ({"usr/lib/systemd/networkd.conf": KEEPING}, True),
        (
            {"usr/lib/systemd/networkd.conf": KEEPING, "etc/systemd/networkd.conf": "[Network]\n"},
            False,
        ),
        (
            {"run/systemd/networkd.conf.d/a.conf": " [Network] \n " + KEEPING.partition("\n")[2]},
            True,
        ),
        (
            {
                "etc/systemd/networkd.conf": KEEPING,
                "usr/lib/systemd/networkd.conf.d/a.conf": DROPPING,
            },
            False,
        ),
        (
            {
                "etc/systemd/networkd.conf.d/a.conf": DROPPING,
                "usr/lib/systemd/networkd.conf.d/b.conf": KEEPING,
            },
            True,
        ),
        (
            {
                "etc/systemd/networkd.conf.d/a.conf": "",
                "usr/lib/systemd/networkd.conf.d/a.conf": KEEPING,
            },
            False,
        ),
        ({"etc/systemd/networkd.conf.d/a.conf": KEEPING.replace("=no", " = OFF")}, True),
        (
            {"etc/systemd/networkd.conf.d/a.conf": KEEPING + "ManageForeignRoutingPolicyRules=\n"},
            True,
        ),
    ],
)
def test_networkds_configuration_says_whether_rules_stay(
    tmp_path: Path, files: dict[str, str], is_kept: bool
) -> None:
    for path, text in files.items():
        write_file(tmp_path / path, text)
    assert keeps_foreign_rules(tmp_path) == is_kept


# --- any snapshot ---------------------------------------------------------------------------------


uint32s = st.integers(0, 2**32 - 1)
bytes_ = st.integers(0, 255)
ipv4 = st.integers(0, 2**32 - 1).map(IPv4Address)
ipv6 = st.integers(0, 2**128 - 1).map(IPv6Address)
networks = st.builds(
    lambda address, length: IPv4Network((address, length), strict=False), ipv4, st.integers(0, 32)
)
# In interface names, the kernel accepts any bytes except NUL, /, : and whitespace; os.fsdecode
# decodes them like this.
names = (
    st.binary(min_size=1, max_size=15)
    .filter(
        lambda raw: raw.split() == [raw] and not {*b"\0/:"} & {*raw} and raw not in (b".", b"..")
    )
    .map(lambda raw: raw.decode("utf-8", "surrogateescape"))
)

BY_TYPE = {
    "bool": st.booleans(),
    "str": names,
    "int": bytes_,
    "IpAddress": ipv4,
    "IpNetwork": networks,
}


def drawn(cls: type, **special: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw values of each field by its type, or as given.

    A number is a byte unless it may be missing.
    """
    for field in attrs.fields(cls):
        kind, _, missing = str(field.type).partition(" | ")
        if field.name not in special:
            special[field.name] = (
                st.none() | (uint32s if kind == "int" else BY_TYPE[kind])
                if missing
                else BY_TYPE[kind]
            )
    return st.builds(cls, **special)


indexes = st.integers(1, 2**31 - 1)
links = drawn(Link, index=indexes, hardware=st.integers(0, 0xFFFF), mac=st.none()) | drawn(
    Link, index=indexes, hardware=st.sampled_from((1, 32)), mac=st.sampled_from(("02:00", "0a:ff"))
)
addresses = drawn(Address, prefix_length=st.integers(0, 32), metric=uint32s)
hops = drawn(
    NextHop,
    gateway=st.none() | ipv4 | ipv6,
    weight=st.just(1) | st.integers(1, 256),
    encap=st.sampled_from(("", "", "seg6")),
)


@st.composite
def routes(draw: st.DrawFn) -> Route:
    kind = draw(st.sampled_from(RouteType))
    few = st.lists(hops, max_size=3).map(tuple)
    table = st.sampled_from(Table) | st.integers(1, 2**32 - 1)
    ways = few if kind < RouteType.BLACKHOLE else st.just(())
    return draw(drawn(Route, hops=ways, type=st.just(kind), table=table, metric=uint32s))  # type: ignore[no-any-return]


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    action = draw(st.sampled_from(RuleAction))
    is_l3mdev = draw(st.booleans())
    mark = draw(st.none() | uint32s)
    has_table = action is RuleAction.TO_TABLE and not is_l3mdev
    return draw(  # type: ignore[no-any-return]
        drawn(
            Rule,
            preference=uint32s,
            action=st.just(action),
            table=st.integers(1, 2**32 - 1) if has_table else st.just(Table.MAIN),
            goto=st.none() | uint32s if action is RuleAction.GOTO else st.none(),
            mark=st.just(mark),
            mark_mask=st.just(0xFFFFFFFF) if mark is None else uint32s,
            uid_range=st.none() | st.tuples(uint32s, uint32s),
            tun_id=st.sampled_from((0, 0, 1, 2**64 - 1)),
            is_l3mdev=st.just(is_l3mdev),
        )
    )


def tuples(items: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, max_size=4).map(tuple)


_NAME_OF, _INDEX_OF = attrgetter("name"), attrgetter("index")
lines = st.text().filter(str.isprintable)
snapshots = st.builds(
    Snapshot,
    links=st.lists(links, max_size=4, unique_by=(_NAME_OF, _INDEX_OF)).map(tuple),
    addresses=tuples(addresses),
    rules=tuples(rules()).map(lambda some: tuple(sorted(some, key=attrgetter("preference")))),
    routes=tuples(routes()),
    nameservers=tuples(ipv4),
    ignoring_linkdown=st.none() | tuples(names),
    host=st.none() | st.text().filter(lambda name: len(name.splitlines()) < 2),
    time=st.none() | lines,
    kernel=st.none() | lines,
)


# A snapshot has so many parts that shrinking one takes minutes.
@settings(max_examples=by_day(4, by_night=5000), phases=set(Phase) - {Phase.shrink, Phase.explain})
@given(snapshots)
def test_a_snapshot_survives_a_round_trip_through_text(snapshot: Snapshot) -> None:
    for document in (json.loads(snapshot.to_text()), snapshot.to_document()):
        found = Snapshot.from_document(document)
        for field in attrs.fields(Snapshot):
            assert getattr(found, field.name) == getattr(snapshot, field.name), field.name
        assert found == snapshot


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.just("10.0.0.1"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@st.composite
def broken(draw: st.DrawFn) -> object:
    """Draw a valid document in which one value is replaced by an arbitrary one."""
    document = draw(snapshots).to_document()
    place: Any = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = draw(st.sampled_from(keys))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or draw(st.booleans()):
            place[key] = draw(anything)
            return document
        place = inner


@given(broken() | anything)
def test_any_document_is_a_snapshot_or_one_config_error(document: object) -> None:
    try:
        Snapshot.from_document(document)
    except ConfigError as error:
        assert all(message and "\n" not in message for _, message in error.problems)
