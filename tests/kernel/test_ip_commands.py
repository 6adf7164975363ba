"""Tests of ``FakeKernel.ip`` and ``NamespaceKernel.ip``."""

from __future__ import annotations

import errno
from collections.abc import Callable
from ipaddress import IPv4Address

import pytest
from node import attempt, like_linux, lines, on_linux, tool

from hostrouting import RouteError
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.port import Kernel, read_routes
from hostrouting.model.links import Address
from hostrouting.model.routes import Protocol, Scope, Table
from hostrouting.testing import FakeKernel

H200 = """
    # comments and empty lines are skipped

    ip link add eth0 address 02:00:00:00:00:01
    link add ib0 down
    link set dev ib0 up
    addr add 10.1.0.4/24 dev eth0
    ip address add 172.16.0.10/16 dev ib0 metric 7 noprefixroute
    ip -4 route add default via 10.1.0.1 dev eth0 protocol dhcp metric 100   # by DHCP
    r replace default via 10.1.0.9 dev eth0 proto dhcp metric 100
    route add 10.8.0.0/16 nexthop via 10.1.0.1 weight 2 nexthop via 10.1.0.2 dev eth0
    route add blackhole 10.9.0.0/16 table 100
    route add 172.16.0.0/16 dev ib0 scope link src 172.16.0.10
    rule add from 172.16.0.10 lookup 100
    rule add priority 50 not fwmark 0x80000/0xff0000 to 10.0.0.0/8 ipproto tcp table 100
    rule add pref 60 iif lo prohibit
"""
ROUTES = [
    "default via 10.1.0.9 dev eth0 proto dhcp metric 100",
    "10.1.0.0/24 dev eth0 proto kernel scope link src 10.1.0.4",
    "10.8.0.0/16 nexthop via 10.1.0.1 dev eth0 weight 2 nexthop via 10.1.0.2 dev eth0 weight 1",
    "172.16.0.0/16 dev ib0 scope link src 172.16.0.10",
]
RULES = [
    "0: from all lookup local",
    "50: not from all to 10.0.0.0/8 fwmark 0x80000/0xff0000 ipproto tcp lookup 100",
    "60: from all iif lo prohibit",
    "32765: from 172.16.0.10 lookup 100",
    "32766: from all lookup main",
    "32767: from all lookup default",
]

KERNELS = pytest.mark.parametrize(
    "make",
    [like_linux, pytest.param(on_linux, marks=pytest.mark.kernel)],
    ids=["in memory", "Linux"],
)


def main_of(kernel: Kernel) -> list[str]:
    return sorted(map(str, read_routes(kernel, Table.MAIN)))


@KERNELS
def test_the_same_commands_make_the_same_host(make: Callable[[], FakeKernel]) -> None:
    kernel = make()
    kernel.ip(H200)
    assert main_of(kernel) == sorted(ROUTES)
    assert list(map(str, read_routes(kernel, 100))) == ["blackhole 10.9.0.0/16 table 100"]
    rules = kernel.facts().rules
    assert [rule.preference for rule in rules] == [int(each.partition(":")[0]) for each in RULES]
    assert [rule.protocol for rule in rules[1:4]] == [Protocol.UNSPEC] * 3
    assert [link.mac for link in kernel.facts().links if link.name == "eth0"] == [
        "02:00:00:00:00:01"
    ]


LINKS = """
    link add eth0
    link add ib0
    address add 10.1.0.4/24 dev eth0
    address add 10.2.0.4/24 dev ib0
"""
# What was refused has -> before it.
WORDS = """
    route add 10.11.0.0/16 via 10.1.0.1 metric 0x10
    route add local 10.5.0.5 dev lo
    route add broadcast 10.5.0.255 dev eth0
    route add anycast 10.5.0.9 dev eth0
    route add multicast 224.5.0.0/16 dev eth0
    -> route add local 10.5.0.6
    -> route add blackhole 10.12.0.0/16 dev eth0
    -> route add 10.13.0.0/16 via 10.1.0.1 via 10.1.0.2
    -> route add 10.13.0.0/16 via 10.1.0.1 weight 5
    -> route add 10.13.0.0/16 via 10.1.0.1 nexthop via 10.2.0.1
    -> route add 10.13.0.0/16 nexthop via 10.1.0.1 weight 0
    -> route add 10.13.0.0/16 nexthop via 10.1.0.1 weight 257
    -> route add 10.13.0.0/16 dev eth0 dead
    -> route add 10.13.0.0/16 dev eth0 proto 256
    -> route add 10.13.0.0/16 dev eth0 metric 4294967296
    -> route add 10.5.0.0/0.0.255.255 dev eth0
    route add 10.14.0.0/16 nexthop dev eth0
    route add 10.15.0.0/16 nexthop dev eth0 nexthop dev ib0 weight 0x10
    route add 10.16.0.0/16 dev eth0 tos 10
    route add 10.16.0.0/16 dev eth0 tos 0x8 preference 7
    route add 10.17.0.0/16 dev eth0 table 0x64 proto 0x10 scope 0xc8 mtu 70000
    route add default via 10.1.0.1 metric 100
    -> route del default metric 1
    route del default metric 0
    route add default via 10.1.0.1 metric 100
    route del default proto 0
    route add default via 10.1.0.1 metric 100
    route del default scope nowhere
    route add default nexthop via 10.1.0.1 nexthop via 10.2.0.1
    -> route del default via 10.2.0.1
    route del default via 10.1.0.1
    route add blackhole 10.18.0.0/16
    -> route del unicast 10.18.0.0/16
    -> route del prohibit 10.18.0.0/16
    route del 10.18.0.0/16
    route add blackhole 10.18.0.0/16 scope link
    route del blackhole 10.18.0.0/16
    route add local 10.19.0.5 dev lo
    -> route del 10.19.0.5
    route del local 10.19.0.5
    route add multicast 224.6.0.0/16 dev eth0 scope host
    -> route del multicast 224.6.0.0/16
    address add 10.21.0.4/24 peer 10.21.0.5 dev eth0
    -> address del 10.21.0.4/32 dev eth0
    address add 10.22.0.4 peer 10.22.0.5/24 dev eth0
    address add 10.23.0.4/24 peer 10.24.0.5/16 dev eth0
    -> address del 10.23.0.4/16 dev eth0
    address del 10.23.0.4 peer 10.24.0.6/16 dev eth0
    address add 10.25.0.4/24 peer 10.25.0.4 dev ib0 metric 0x8
    address add 10.26.0.4/24 dev ib0 noprefixroute
    -> address del 10.26.0.4/25 dev ib0
    rule add pref 0x10 tos 10 from 0.0.0.0/0 lookup 0x64
    rule add pref 17 fwmark 1/0xff lookup 100
    -> rule del fwmark 1
    rule add pref 18 fwmark 2/0xff lookup 100
    rule del fwmark 2/0xff
    rule add pref 19 from 10.1.0.4 lookup 100
    -> rule del pref 0 from 10.1.0.4
    rule del not from 10.1.0.4
    rule add pref 20 from 10.1.0.4 blackhole
    -> rule del from 10.1.0.4 lookup main
    -> rule del from 10.1.0.4 prohibit
    rule add pref 21 ipproto tcp dport 443 lookup 100
    rule add pref 22 dport 443 goto 32766
    rule del dport 443 goto 32766
    -> rule del
    -> rule add
"""


@pytest.mark.kernel
def test_a_command_does_what_ip_does() -> None:
    refused = [line[3:] for line in lines(WORDS) if line.startswith("-> ")]
    commands = lines(WORDS.replace("-> ", ""))

    by_ip = on_linux()
    by_ip.ip(LINKS)
    assert [line for line in commands if attempt("ip", *line.split()).returncode] == refused
    expected = listed(by_ip), shown_by_ip()

    kernel = on_linux()
    kernel.ip(LINKS)
    assert [line for line in commands if is_refused(kernel, line)] == refused
    assert (listed(kernel), shown_by_ip()) == expected

    fake = like_linux()
    fake.ip(LINKS)
    assert [line for line in commands if is_refused(fake, line)] == refused
    assert listed(fake) == expected[0]


def is_refused(kernel: FakeKernel | NamespaceKernel, line: str) -> bool:
    try:
        kernel.ip(line)
    except (RouteError, ValueError):
        return True
    return False


def listed(kernel: Kernel) -> tuple[list[str], list[tuple[int, str]], set[Address]]:
    facts = kernel.facts()
    rules = [(rule.preference, str(rule)) for rule in facts.rules]
    return sorted(map(str, read_routes(kernel))), rules, set(facts.addresses)


def shown_by_ip() -> str:
    routes = tool("ip", "-4", "-N", "-d", "route", "show", "table", "all")
    return routes + tool("ip", "-4", "-N", "rule")


@KERNELS
def test_deletions_name_what_they_delete_as_ip_does(make: Callable[[], FakeKernel]) -> None:
    kernel = make()
    kernel.ip(H200)
    kernel.ip("""
        route del default
        route del 10.8.0.0/16
        route del 172.16.0.0/16 dev ib0 src 172.16.0.10
        route del 10.9.0.0/16 table 100
        rule del pref 50
        rule del from 172.16.0.10
        link set ib0 carrier off
        address del 172.16.0.10/16 dev ib0
        link del ib0
    """)
    assert main_of(kernel) == [ROUTES[1]]
    assert [rule.preference for rule in kernel.facts().rules] == [0, 60, 32766, 32767]
    for gone in ("route del default", "route del 10.1.0.0/24 dev lo", "rule del pref 50"):
        with pytest.raises(RouteError, match=f"ip {gone}: No such") as caught:
            kernel.ip(gone)
        assert caught.value.errno in (errno.ESRCH, errno.ENOENT)


@KERNELS
@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("link add lo", errno.EEXIST),
        ("route add 10.0.0.0/8 via 10.99.0.1", errno.ENETUNREACH),
        ("address add 10.1.0.4/24 dev eth9", errno.ENODEV),
        ("rule add pref 0 from all lookup local proto kernel", errno.EEXIST),
    ],
)
def test_a_refusal_names_the_command(
    make: Callable[[], FakeKernel], command: str, number: int
) -> None:
    kernel = make()
    with pytest.raises(RouteError, match=f"^ip {command}: ") as caught:
        kernel.ip(f"link add eth0\n{command}\nlink add eth1")
    assert caught.value.errno == number
    assert [link.name for link in kernel.facts().links] == ["lo", "eth0"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("route show", "ip route show: not known here; known are ip link add"),
        ("ip -6 route add default dev lo", "ip -6 route add default dev lo: IPv4 only"),
        ("address add fd00::1/64 dev lo", r"IPv4 only.* a NamespaceKernel takes .* by add_address"),
        ("route add fd00::/64 dev lo", "IPv4 only"),
        ("rule add from fd00::/64 lookup 100", "IPv4 only"),
        ("route add default via fd00::1 dev lo", "IPv4 only, apart from a gateway after via inet6"),
        ("route add 10.0.0.0/8 nexthop via fd00::1 dev lo", "IPv4 only"),
        ("route add 10.0.0.0/8 via inet6 fd00::1 dev lo metric 1x", "'1x' isn't a number$"),
        ("route add 10.0.0.0/8 dev lo metric -1", "'-1' isn't a number$"),
        ("link set lo mtu 9000", "'mtu' isn't known here; known are carrier, group, up, down$"),
        ("route add 10.0.0.0/8 dev lo scope universe", "'universe' is neither .* of global, site"),
        ("tunnel add x", "not known here"),
        ("link add eth0 type dummy", "types .* call add_link.name, kind="),
        ("link set lo carrier maybe", "'maybe' is missing or not known"),
        ("address add 10.1.0.4/24", "'dev' is missing"),
        ("route add", "words are missing"),
        ("route add default via", "via needs a value"),
        ("route add default via eth0", "'eth0' does not appear to be an IPv4"),
        ("route add 10.0.0.1/8 dev lo", "10.0.0.1/8 has host bits set"),
        ("route add 10.0.0.0/8 dev lo proto bpg", "'bpg' is neither a number nor one of unspec,"),
        ("route add 10.0.0.0/8 dev lo from 10.1.0.4", "'from' isn't known here; known are via"),
        ("route add 10.0.0.0/8 dev lo metric 010", "010 would be an octal number: write it"),
        ("route add 10.0.0.0/010 dev lo", "010 would be an octal number: write it without"),
        ("route add 10.0.0.0/255.0.0.0 dev lo", "'255.0.0.0' isn't a number"),
        ("route add 10.0.0.0/8 dev lo table 0", "0 isn't between 1 and 4294967295"),
        ("route add 10.0.0.0/8 dev lo dev lo", "dev is repeated"),
        ("route add 10.0.0.0/8 dev lo nexthop dev lo", "dev and onlink belong after nexthop here"),
        ("route del 10.0.0.0/8 mtu 1400", "mtu isn't known here: it can't select the route"),
        ("route del 10.0.0.0/8 nexthop dev lo", "nexthop isn't known here: it can't select"),
        ("address del 10.1.0.4 dev lo", "the prefix length is missing, and ip would guess"),
        ("link set lo up down", "say either up or down"),
        ("rule add blackhole lookup 100", "say either blackhole or lookup"),
        ("rule add dport 53 lookup 100", "of sport and dport, only dport 443 is known here"),
        ("rule add lookup mian", "'mian' is neither a number nor one of default, main, local"),
    ],
)
def test_an_unknown_command_says_what_is_known(command: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FakeKernel().ip(command)


@KERNELS
def test_a_rule_ignores_an_interface_group(make: Callable[[], FakeKernel]) -> None:
    kernel = make()
    kernel.ip("""
        link add eth0
        link set eth0 group 7
        route add 10.0.0.0/8 dev eth0
        rule add pref 5 lookup main suppress_ifgroup 7
        rule add pref 6 blackhole
    """)
    assert [link.group for link in kernel.facts().links] == [0, 7]
    assert kernel.lookup([IPv4Address("10.1.2.3")])[0].errno == errno.EINVAL
    kernel.set_link("eth0", group=0)
    assert kernel.lookup([IPv4Address("10.1.2.3")])[0].errno is None


def test_an_ipv6_address_is_refused_with_the_kernel_that_takes_it() -> None:
    for change in (FakeKernel().add_address, FakeKernel().del_address):
        with pytest.raises(ValueError, match=r"not 'fd00::1/64'; a NamespaceKernel takes IPv6"):
            change("lo", "fd00::1/64")


def test_a_list_of_commands_is_refused() -> None:
    with pytest.raises(TypeError, match="ip takes a text with one command a line, not "):
        FakeKernel().ip(["link add eth0"])  # type: ignore[arg-type]


def test_an_ipv4_route_has_an_ipv6_gateway_after_inet6() -> None:
    kernel = FakeKernel()
    kernel.ip("link add eth0\nroute add 10.0.0.0/8 via inet6 fd00::1 dev eth0")
    assert main_of(kernel) == ["10.0.0.0/8 via inet6 fd00::1 dev eth0"]


def test_both_kernels_have_the_method() -> None:
    assert NamespaceKernel.ip is FakeKernel.ip


def test_words_are_those_of_ip() -> None:
    kernel = FakeKernel()
    kernel.ip("""
        link add eth0
        route add 10.0.0.0/8 dev eth0 scope global prio 5
        rule add prio 7 lookup 100
    """)
    (route,) = read_routes(kernel, Table.MAIN)
    assert (route.scope, route.metric) == (Scope.UNIVERSE, 5)
    assert 7 in [rule.preference for rule in kernel.facts().rules]
