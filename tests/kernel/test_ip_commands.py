"""Tests of ``FakeKernel.ip`` and ``NamespaceKernel.ip``."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from node import like_linux, on_linux, tool

from hostrouting import RouteError
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.port import Kernel, read_routes
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


@pytest.mark.kernel
def test_ip_itself_shows_what_its_words_made() -> None:
    kernel = on_linux()
    kernel.ip(H200)
    shown = [" ".join(line.split()) for line in tool("ip", "route", "show").splitlines()]
    assert shown[0] == ROUTES[0]
    assert [line for line in shown if line.startswith("172.16")] == ROUTES[3:]
    assert tool("ip", "rule", "show").replace(":\t", ": ").splitlines() == RULES


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
        ("ip -6 route add default dev lo", "ip -6 route add default dev lo: IPv4 only$"),
        ("address add fd00::1/64 dev lo", "IPv4 only$"),
        ("route add fd00::/64 dev lo", "IPv4 only$"),
        ("rule add from fd00::/64 lookup 100", "IPv4 only$"),
        ("route add 10.0.0.0/8 dev lo scope universe", "'universe' is neither .* of global, site"),
        ("tunnel add x", "not known here"),
        ("link add eth0 type dummy", "types aren't known here: a new link is like"),
        ("link set lo carrier maybe", "'maybe' is missing or not known"),
        ("address add 10.1.0.4/24", "'dev' is missing"),
        ("route add", "words are missing"),
        ("route add default via", "via needs a value"),
        ("route add default via eth0", "'eth0' does not appear to be an IPv4"),
        ("route add 10.0.0.1/8 dev lo", "10.0.0.1/8 has host bits set"),
        ("route add 10.0.0.0/8 dev lo proto bpg", "'bpg' is neither a number nor one of unspec,"),
        ("route add 10.0.0.0/8 dev lo from 10.1.0.4", "'from' isn't known here; known are via"),
        ("rule add lookup mian", "'mian' is neither a number nor one of default, main, local"),
    ],
)
def test_an_unknown_command_says_what_is_known(command: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FakeKernel().ip(command)


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
