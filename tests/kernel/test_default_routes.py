"""Test that packets by the routes installed for any form of default route arrive, and that the
ip(8) commands of the fix add the same routes when pasted into a shell.
"""

from __future__ import annotations

import socket
import struct
import subprocess
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from pathlib import Path

import attrs
import fixing
import pytest
from needs import needs_linux
from node import (
    GATEWAY,
    LOST_AFTER_SECONDS,
    OWN,
    SECOND_GATEWAY,
    add_nics,
    build_fabric,
    build_links,
    build_node,
    default_route,
    hears,
    listening,
    run_ip,
    until,
)
from scripts import Sandbox
from wanted import config

import phases
from hostrouting import (
    CheckRouteOverlap,
    ConfigureStaticRoutes,
    Host,
    Layout,
    RouteOverlapError,
    Verdict,
)
from hostrouting.boot.render import render_static_routes
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.port import Write, read_routes
from hostrouting.model.routes import PRINTED, NextHop, Route, Table
from hostrouting.routes.formats import as_ip
from hostrouting.routes.plan import plan_now
from hostrouting.testing import FakeSystemd

pytestmark = pytest.mark.kernel

DESTINATION = IPv4Network("172.16.1.0/24")
ONLINK_GATEWAY = IPv4Address("169.254.1.1")


@pytest.fixture
def host(kernel: NamespaceKernel, tmp_path: Path) -> Host:
    return Host(routes=kernel, units=FakeSystemd(), layout=Layout(tmp_path))


def install(host: Host, **asked: str) -> Route:
    """Install a route with the task, check that a second run and the boot script change nothing,
    and return it.
    """
    wanted = config({"destination": str(DESTINATION), **asked}, cidrs=(), waitSeconds=30)
    phases.run(ConfigureStaticRoutes(wanted, host=host))
    (route,) = [route for route in read_routes(host.routes, Table.MAIN) if route.protocol == 217]
    assert phases.run(ConfigureStaticRoutes(wanted, host=host)).plan.unchanged == (route,)
    assert (
        Sandbox(host.layout.root).run(render_static_routes(wanted)).stdout == "nothing to change\n"
    )
    return route


@pytest.fixture
def node(kernel: NamespaceKernel) -> NamespaceKernel:
    build_links(kernel)
    build_fabric(kernel)
    return kernel


def test_without_our_route_packets_are_lost_in_the_fabric(node: NamespaceKernel) -> None:
    """Control for the tests below."""
    assert node.write(Write.ADD, [default_route()]) == ()
    with listening(node, "eth0") as servers:
        assert not hears(servers, patience=LOST_AFTER_SECONDS)


ETH0, ETH1 = NextHop("eth0", GATEWAY), NextHop("eth1", SECOND_GATEWAY)
BY_ETH0, BY_ETH1 = "via 10.1.0.1 dev eth0", "via 10.2.0.1 dev eth1"
MULTIPATH = f"route add default nexthop {BY_ETH0} weight 2 nexthop {BY_ETH1}"
BY_ID = f"nexthop add id 7 {BY_ETH0}\nroute add default nhid 7"
BY_GROUP = (
    f"nexthop add id 7 {BY_ETH0}\nnexthop add id 8 {BY_ETH1}\n"
    "nexthop add id 9 group 7,3/8\nroute add default nhid 9"
)
ADDRESS = "addr add 10.1.0.44/24 dev eth0"
TWO = f"route add default {BY_ETH0} metric 100\nroute add default {BY_ETH1} metric 50"
TUNNELLED = f"route add default {BY_ETH0} metric 100\nroute add default {{}} {BY_ETH1}"


@attrs.frozen
class Form:
    """A form of default route.

    Args:
        does: the ip commands that add the default route.
        hops: the next hops that our route inherits.
        asks: keys of our route in the config, in addition to the destination.
        has: the other expected attributes of our route.
        compat_mode: the sysctl nexthop_compat_mode. If it is 0, the kernel hides the next hops of
            nexthop objects.
    """

    does: str
    hops: tuple[NextHop, ...]
    asks: dict[str, str] = attrs.field(factory=dict)
    has: dict[str, object] = attrs.field(factory=dict)
    compat_mode: str = "1"


FORMS = {
    "without a metric": Form(f"route add default {BY_ETH0}", (ETH0,)),
    "with the highest metric": Form(f"route add default {BY_ETH0} metric 4294967295", (ETH0,)),
    "multipath": Form(MULTIPATH, (attrs.evolve(ETH0, weight=2), ETH1)),
    "one device of a multipath route": Form(MULTIPATH, (ETH1,), {"dev": "eth1"}),
    "the hop of a multipath route that reaches a gateway": Form(
        MULTIPATH.replace("10.2.0.1", "10.2.0.9"), (ETH1,), {"gateway": "10.2.0.1"}
    ),
    "a nexthop object": Form(BY_ID, (ETH0,), has={"nexthop_id": None}),
    "a group of nexthop objects": Form(BY_GROUP, (attrs.evolve(ETH0, weight=3), ETH1)),
    "hidden hops": Form(BY_ID, (ETH0,), has={"nexthop_id": None}, compat_mode="0"),
    # The Go package always uses the third word of the line as the gateway.
    "without a gateway": Form("route add default dev eth0", (NextHop("eth0"),), has={"scope": 253}),
    "with a source and an MTU": Form(
        f"{ADDRESS}\nroute add default {BY_ETH0} src 10.1.0.44 mtu lock 1400",
        (ETH0,),
        has={"source": IPv4Address("10.1.0.44"), "mtu": 1400},
    ),
    "the lower of two metrics": Form(TWO, (ETH1,)),
    "the named one of two": Form(TWO, (ETH0,), {"dev": "eth0"}),
    "another one for a tos, into a tunnel": Form(
        TUNNELLED.format("tos 0x10 encap ip6 id 1 dst fc00::1"), (ETH0,)
    ),
    "another one into a tunnel with a tos": Form(
        TUNNELLED.format("encap ip id 1 dst 192.0.2.1 tos 4"), (ETH1,)
    ),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_default_route_of_any_form(form: Form, node: NamespaceKernel, host: Host) -> None:
    # Only in this namespace.
    Path("/proc/sys/net/ipv4/nexthop_compat_mode").write_text(form.compat_mode)
    run_ip(form.does)
    route = install(host, **form.asks)
    assert route.hops == form.hops
    assert {name: getattr(route, name) for name in form.has} == form.has
    with listening(node, *route.devs) as servers:
        assert hears(servers)


@pytest.mark.parametrize("compat_mode", ["0", "1"])
def test_a_default_route_with_more_weight_than_routes_have(
    node: NamespaceKernel, host: Host, compat_mode: str
) -> None:
    """Nexthop group weights have 16 bits, which not every version of ip supports; a route shows
    only eight of them.
    """
    needs_linux(6, 12, "weights of nexthop groups with 16 bits")
    Path("/proc/sys/net/ipv4/nexthop_compat_mode").write_text(compat_mode)  # only in this namespace
    run_ip(f"nexthop add id 1 {BY_ETH0}\nnexthop add id 2 {BY_ETH1}")
    members = struct.pack("=IBBHIBBH", 1, 43, 1, 0, 2, 2, 0, 0)
    body = struct.pack("=BBBBI", 0, 0, socket.AF_INET, 0, 0) + struct.pack(
        "=HHIHH", 8, 1, 10, 4 + len(members), 2
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.send(
            struct.pack("=IHHII", 16 + len(body + members), 104, 0x405, 1, 0) + body + members
        )
        assert struct.unpack_from("=i", kernel.recv(4096), 16) == (0,)
    run_ip("route add default nhid 10")
    assert {hop.dev: hop.weight for hop in install(host).hops} == {"eth0": 44, "eth1": 3}


def test_an_onlink_default_route(kernel: NamespaceKernel, host: Host) -> None:
    """Azure's /32 addresses need an onlink route because the gateway is outside all of the node's
    subnets.
    """
    hop = NextHop("eth0", ONLINK_GATEWAY, onlink=True)
    kernel.add_link("eth0")
    kernel.add_address("eth0", f"{OWN}/32")
    kernel.in_fabric(lambda: kernel.add_address("eth0", f"{ONLINK_GATEWAY}/32"))
    assert kernel.write(Write.ADD, [default_route(hop)]) == ()
    assert install(host).hops == (hop,)
    with listening(kernel, "eth0") as servers:
        assert hears(servers)


def test_a_default_route_with_an_ipv6_gateway(kernel: NamespaceKernel, host: Host) -> None:
    """RFC 8950 allows such routes."""

    def without_waiting_for_duplicates() -> None:
        for name in ("accept_dad", "dad_transmits"):
            Path(f"/proc/sys/net/ipv6/conf/default/{name}").write_text("0")

    def link_local_address() -> IPv6Address:
        addresses = Path("/proc/thread-self/net/if_inet6")
        # The kernel adds it once it has noticed the carrier.
        until(lambda: " eth0\n" in addresses.read_text())
        (word,) = [
            fields[0]
            for line in addresses.read_text().splitlines()
            if (fields := line.split())[-1] == "eth0"
        ]
        return IPv6Address(bytes.fromhex(word))

    without_waiting_for_duplicates()
    kernel.in_fabric(without_waiting_for_duplicates)
    build_links(kernel)
    gateway = kernel.in_fabric(link_local_address)
    assert kernel.write(Write.ADD, [default_route(NextHop("eth0", gateway))]) == ()
    assert install(host).hops == (NextHop("eth0", gateway),)
    with listening(kernel, "eth0") as servers:
        assert hears(servers)


# --- commands to paste ----------------------------------------------------------------------------


def paste(text: str, folder: Path) -> None:
    done = subprocess.run(
        ["bash", "-eu"], cwd=folder, input=text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def marked(routes: tuple[Route, ...]) -> set[Route]:
    return {attrs.evolve(route, protocol=PRINTED) for route in routes}


def there(kernel: NamespaceKernel) -> set[Route]:
    return {route for route in read_routes(kernel, Table.MAIN) if route.is_printed}


def test_pasted_commands_fix_the_host_as_our_routes_do(kernel: NamespaceKernel, host: Host) -> None:
    odd = (
        NextHop("eth0", IPv6Address("fe80::1"), weight=3),
        NextHop("eth1", ONLINK_GATEWAY, onlink=True),
    )
    build_node(kernel, default_route(*odd, source=OWN, mtu=1400))
    asked = config(
        "172.16.0.0/17",
        {"destination": "172.16.128.0/17", "metric": 4294967295},
        {"destination": "10.99.7.7/32", "gateway": "10.2.0.9", "dev": "eth1"},
        {"destination": "10.2.0.64/26", "gateway": "onlink", "dev": "eth1"},
        cidrs=("172.16.0.0/16", "172.16.128.0/24"),
    )
    with pytest.raises(RouteOverlapError):
        phases.run(CheckRouteOverlap(asked, host=host))
    wanted = plan_now(asked, kernel)[0].add
    paste(as_ip(wanted), host.layout.root)
    assert there(kernel) == marked(wanted)
    assert phases.run(CheckRouteOverlap(asked, host=host)).verdict is Verdict.OK
    assert set(phases.run(ConfigureStaticRoutes(asked, host=host)).plan.foreign) == marked(wanted)


def test_a_route_of_another_table_is_outdone(kernel: NamespaceKernel, host: Host) -> None:
    """A rule lets table main decide, although the table already has a route to the CIDR."""
    build_node(kernel)
    run_ip("rule add to 10.99.0.0/16 table 100\nroute add 10.99.0.0/16 dev eth1 table 100")
    check = CheckRouteOverlap(
        config(cidrs=["10.99.0.0/16"], mode="WARN", uplinks=["eth0"]), host=host
    )
    fix = phases.run(check).fix
    assert fix.unfixable == ()
    fixing.install(kernel, fix.routes, host.layout.root, fix.rules)
    assert phases.run(check).verdict is Verdict.OK


def test_an_interface_may_be_named_like_a_keyword(kernel: NamespaceKernel, tmp_path: Path) -> None:
    names = ["via", "on", "-x", "0x1", "nexthop"]
    build_links(kernel)
    add_nics(kernel, **{name: f"10.{number}.0.4/24" for number, name in enumerate(names, 20)})
    routes = tuple(
        Route(
            IPv4Network(f"172.16.{number}.0/24"),
            (NextHop(name, IPv4Address(f"10.{number}.0.1")), ETH0)[: 1 + number % 2],
        )
        for number, name in enumerate(names, 20)
    )
    paste(as_ip(routes), tmp_path)
    assert there(kernel) == marked(routes)


def test_no_entry_is_offered_for_a_name_that_no_config_accepts(
    kernel: NamespaceKernel, host: Host
) -> None:
    """The kernel allows shell metacharacters in interface names, so a snapshot may contain them."""
    name = "x;>pwn;#"
    build_node(kernel)
    add_nics(kernel, **{name: "172.20.0.9/16"})
    asked = config(cidrs=["172.20.0.0/24"], mode="WARN", uplinks=["eth0"])
    (told,) = phases.run(CheckRouteOverlap(asked, host=host)).fix.consequences
    assert told.startswith(f"the node then sends to neighbours of {name} in 172.20.0.0/24 ")
    assert "keep" not in told
