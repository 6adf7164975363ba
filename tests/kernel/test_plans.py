"""Tests that a plan predicts a refusal of the installed routes, with the reason that the
installation then gives.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from node import NICS, run_ip, run_ip6
from wanted import section

import phases
from hostrouting import Config, Host, Layout, RouteError, plan
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.kernel.port import read_routes
from hostrouting.tasks.install_routes import InstallRoutes
from hostrouting.testing import FakeSystemd

pytestmark = pytest.mark.kernel

WANTED = {"destination": "10.77.0.0/24"}
IPV6 = {"destination": "fd00:77::/64", "gateway": "fe80::1", "dev": "eth0"}


@pytest.fixture
def node(kernel: NamespaceKernel, tmp_path: Path) -> Host:
    for dev in ("eth0", "ib0"):
        kernel.add_link(dev)
        kernel.add_address(dev, NICS[dev])
    run_ip("route add default via 10.1.0.1 dev eth0")
    Path(tmp_path, "proc").symlink_to("/proc")
    return Host(
        routes=kernel, routes6=NetlinkBackend6(), units=FakeSystemd(), layout=Layout(tmp_path)
    )


def config(*routes: dict[str, Any], cidr: str = "10.5.0.0/24") -> Config:
    return Config.from_mapping({"hostRouting": section(*routes, cidrs=[cidr], uplinks=["eth0"])})


def refusal(wanted: Config, node: Host) -> str:
    before = read_routes(node.routes)
    with pytest.raises(RouteError) as caught:
        InstallRoutes(wanted, host=node).do(phases.CancelScope())
    assert read_routes(node.routes) == before
    return caught.value.message


LOSING = {
    "a rule for another table comes before main": (
        "rule add pref 5270 lookup 52",
        "route add 10.77.0.0/16 dev ib0 table 52",
    ),
    "a rule discards": ("rule add pref 5270 to 10.77.0.0/24 unreachable",),
    "another program's route has a lower metric": ("route add 10.77.0.0/24 dev ib0 metric 50",),
    "longer routes cover it": (
        "route add 10.77.0.0/25 dev ib0",
        "route add 10.77.0.128/25 dev ib0",
    ),
    "table local comes before main": (
        "rule add pref 9 lookup 9",
        "route add unreachable 10.77.0.0/16 table local",
    ),
}


@pytest.mark.parametrize("commands", LOSING.values(), ids=LOSING)
def test_a_plan_says_which_route_would_not_win(commands: tuple[str, ...], node: Host) -> None:
    wanted = config({**WANTED, "metric": 100})
    run_ip(*commands)
    told = plan(wanted, host=node)
    assert told.next_start.is_admitted is False
    assert refusal(wanted, node) in told.next_start.reason
    assert told.routes.add


def test_a_route_that_is_there_already_must_win_too(node: Host) -> None:
    wanted = config(WANTED)
    InstallRoutes(wanted, host=node).do(phases.CancelScope())
    assert plan(wanted, host=node).next_start.is_admitted is True
    run_ip("rule add pref 5270 to 10.77.0.0/24 prohibit")
    assert plan(wanted, host=node).next_start.is_admitted is False


def test_a_gateway_that_the_kernel_refuses_is_told(node: Host) -> None:
    wanted = config({**WANTED, "gateway": "172.16.0.9", "dev": "ib0"})
    assert plan(wanted, host=node).next_start.is_admitted is True
    run_ip("rule add pref 10 to 172.16.0.9 prohibit")
    told = plan(wanted, host=node).next_start
    assert told.is_admitted is False
    assert refusal(wanted, node) in told.reason


def test_a_gateway_behind_the_loopback_interface_is_told(node: Host) -> None:
    run_ip("link set lo up")
    wanted = config({**IPV6, "dev": "lo"})
    told = plan(wanted, host=node).next_start
    assert told.is_admitted is False
    assert refusal(wanted, node) in told.reason


def test_a_route_may_hold_its_own_gateway(node: Host) -> None:
    run_ip6("addr add fd00:a::4/48 dev eth0 nodad")
    wanted = config({"destination": "fd00:a:0:1::/64", "gateway": "fd00:a:0:1::1", "dev": "eth0"})
    assert plan(wanted, host=node).next_start.is_admitted is True
    InstallRoutes(wanted, host=node).do(phases.CancelScope())


def test_an_interface_without_ipv6_is_told(node: Host) -> None:
    wanted = config(IPV6)
    assert plan(wanted, host=node).next_start.is_admitted is True
    Path("/proc/sys/net/ipv6/conf/eth0/disable_ipv6").write_text("1")
    told = plan(wanted, host=node).next_start
    assert told.is_admitted is False
    assert refusal(wanted, node) in told.reason


def test_the_kernel_is_asked_about_what_a_plan_does_not_change(node: Host) -> None:
    """A snapshot doesn't show which sources this host's connections get."""
    run_ip6("addr add fd00:1::4/64 dev eth0 nodad", "addr add fd00:5::8/64 dev ib0 nodad")
    run_ip6(
        "route add default from fd00:1::/64 via fe80::1 dev eth0",
        "route add default from fd00:5::/64 via fe80::1 dev ib0",
    )
    Path("/proc/sys/net/ipv6/conf/eth0/use_oif_addrs_only").write_text("1")
    for label in ("fd00:9::/64", "fd00:5::/64"):
        run_ip(f"addrlabel add prefix {label} label 99")
    wanted = config(IPV6, cidr="fd00:9::/64")
    told = plan(wanted, host=node).next_start
    assert told.is_admitted is False
    assert "OVERLAP: expected CIDR fd00:9::/64" in told.reason
