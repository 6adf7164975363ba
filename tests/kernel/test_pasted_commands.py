"""Test that the ip(8) commands add the same routes as the installer when pasted into a shell."""

from __future__ import annotations

import subprocess
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from pathlib import Path

import attrs
import pytest
from node import GATEWAY, OWN, SECOND_GATEWAY, build_links, build_node, default_route
from wanted import config

import phases
from hostrouting import CheckRouteOverlap, ConfigureStaticRoutes, Host, Layout, RouteOverlapError
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.model.routes import NextHop, Protocol, Route, Table
from hostrouting.overlap.findings import Verdict
from hostrouting.routes.formats import as_ip
from hostrouting.routes.resolve import resolve
from hostrouting.testing import FakeSystemd

pytestmark = pytest.mark.kernel

ONLINK_GATEWAY = IPv4Address("169.254.1.1")
IPV6_GATEWAY = IPv6Address("fe80::1")
CONFIG = config(
    "172.16.0.0/17",
    {"destination": "172.16.128.0/17", "metric": 4294967295},
    {"destination": "10.99.7.7/32", "gateway": "10.2.0.9", "dev": "eth1"},
    {"destination": "10.2.0.64/26", "gateway": "onlink", "dev": "eth1"},
    cidrs=("172.16.0.0/16", "172.16.128.0/24"),
)


def resolved(kernel: NamespaceKernel) -> tuple[Route, ...]:
    wanted = CONFIG.static_routes.routes
    routes, missing = resolve(wanted, kernel.links(), kernel.addresses(), kernel.routes(Table.MAIN), None)
    assert missing is None
    return routes


def paste(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash"], input=text, capture_output=True, text=True, check=False)


def static(routes: tuple[Route, ...]) -> set[Route]:
    return {attrs.evolve(route, protocol=Protocol.STATIC) for route in routes}


def there(kernel: NamespaceKernel) -> set[Route]:
    return {route for route in kernel.routes(Table.MAIN) if route.protocol == Protocol.STATIC}


@pytest.mark.parametrize(
    "default",
    [
        pytest.param(default_route(), id="plain"),
        pytest.param(default_route(source=OWN, mtu=1400), id="source-mtu"),
        pytest.param(default_route(NextHop("eth0", ONLINK_GATEWAY, onlink=True)), id="onlink"),
        pytest.param(default_route(NextHop("eth0", IPV6_GATEWAY)), id="ipv6-gateway"),
        pytest.param(default_route(NextHop("eth0")), id="no-gateway"),
        pytest.param(
            default_route(NextHop("eth0", GATEWAY, weight=3), NextHop("eth1", SECOND_GATEWAY)), id="multipath"
        ),
        pytest.param(
            default_route(NextHop("eth0", IPV6_GATEWAY), NextHop("eth1", ONLINK_GATEWAY, onlink=True), mtu=1400),
            id="multipath-odd",
        ),
    ],
)
def test_pasted_commands_fix_the_host_as_our_routes_do(kernel: NamespaceKernel, tmp_path: Path, default: Route) -> None:
    build_node(kernel, default)
    host = Host(routes=kernel, units=FakeSystemd(), layout=Layout(tmp_path))
    with pytest.raises(RouteOverlapError):
        phases.run(CheckRouteOverlap(CONFIG, host=host))
    wanted = resolved(kernel)
    done = paste(f"set -eu\n{as_ip(wanted)}")
    assert (done.returncode, done.stderr) == (0, "")
    assert there(kernel) == static(wanted)
    assert phases.run(CheckRouteOverlap(CONFIG, host=host)).verdict is Verdict.OK
    assert set(phases.run(ConfigureStaticRoutes(CONFIG, host=host)).plan.foreign) == static(wanted)


def test_a_route_of_another_table_is_outdone(kernel: NamespaceKernel, tmp_path: Path) -> None:
    """The table already has a route to the CIDR."""
    build_node(kernel)
    paste("ip rule add to 10.99.0.0/16 table 100; ip route add 10.99.0.0/16 dev eth1 table 100")
    host = Host(routes=kernel, units=FakeSystemd(), layout=Layout(tmp_path))
    check = CheckRouteOverlap(config(cidrs=["10.99.0.0/16"], mode="WARN"), host=host)
    (left,) = phases.run(check).fix.unfixable
    command = left.reason.partition(": ")[2].partition(", or: ")[0]
    assert paste(command).stderr == ""
    assert phases.run(check).verdict is Verdict.OK


def test_an_interface_may_be_named_like_a_keyword(kernel: NamespaceKernel) -> None:
    names = ["via", "on", "-x", "0x1", "nexthop"]
    build_links(kernel)
    for number, name in enumerate(names):
        kernel.add_link(name)
        kernel.add_address(name, f"10.{20 + number}.0.4/24")
    routes = tuple(
        Route(
            IPv4Network(f"172.16.{number}.0/24"),
            (NextHop(name, IPv4Address(f"10.{20 + number}.0.1")), NextHop("eth0", GATEWAY))[: 1 + number % 2],
        )
        for number, name in enumerate(names)
    )
    done = paste(as_ip(routes))
    assert (done.returncode, done.stderr) == (0, "")
    assert there(kernel) == static(routes)


def test_the_sysctl_commands_are_safe_to_paste(kernel: NamespaceKernel, tmp_path: Path) -> None:
    """The kernel allows shell metacharacters in interface names, so a snapshot may contain them."""
    name = "x;>pwn;#"
    build_node(kernel)
    kernel.add_link(name)
    kernel.add_address(name, "172.20.0.9/16")
    host = Host(routes=kernel, units=FakeSystemd(), layout=Layout(tmp_path))
    asked = config(cidrs=["172.20.0.0/24"], mode="WARN")
    (told,) = phases.run(CheckRouteOverlap(asked, host=host)).fix.consequences
    _, _, commands = told.partition("give it a table: ")
    done = subprocess.run(
        ["bash"], input=commands.replace("ITS-ADDRESS", "172.20.0.9"), cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "pwn").exists()
    assert [route.devs for route in kernel.routes(100)] == [(name,)]
