"""Hosts on which packets leave otherwise than a check once said: sockets, library, recordings and boot script beside."""

from __future__ import annotations

import socket
import struct
import subprocess
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from asking import BY_HAND, recorded, recorded_by
from leaving import Leaving
from scripts import AWKS, Sandbox, awk_or_skip, told_by

import phases
from hostrouting import Config
from hostrouting.boot.render import render_check_route_overlap_script
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.recording import SnapshotBackend
from hostrouting.model.errors import RouteError
from hostrouting.model.routes import Table
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.explanation import explain
from hostrouting.overlap.findings import Verdict

if TYPE_CHECKING:
    from hostrouting import OverlapReport
    from hostrouting.kernel.namespace import NamespaceKernel
    from hostrouting.kernel.port import RouteBackend

pytestmark = pytest.mark.kernel

# eth0 has the default route, ib0 is a second interface.
NODE = """
    link add eth0 type veth peer name p0
    link add ib0 type veth peer name p1
    link set p0 up
    link set eth0 up arp off
    link set p1 up
    link set ib0 up arp off
    addr add 10.1.0.4/24 dev eth0
    addr add 10.2.0.4/24 dev ib0
"""
DEFAULT = "route add default via 10.1.0.1 dev eth0"
# IPv6 leaves by ib0.
WRAPPED = f"""
    {DEFAULT}
    addr add fd00:2::4/64 dev ib0 nodad
    route add fc00::/16 dev ib0
"""
# Table 100 leads by ib0.
AWAY = f"{DEFAULT}\nroute add default via 10.2.0.1 dev ib0 table 100"
# As long as the first gateway's neighbour isn't known to be reachable, the kernel takes them by turns.
BY_TURNS = """
    link set eth0 arp on
    route add default via 10.1.0.1 metric 1024 table {table}
    route append default via 10.2.0.1 metric 1024 table {table}
    neigh replace 10.1.0.1 dev eth0 lladdr 02:00:00:00:00:01 nud stale
    neigh replace 10.2.0.1 dev ib0 lladdr 02:00:00:00:00:02 nud permanent
"""


@attrs.frozen
class Case:
    """A case: what is done to a node, what sockets do then, and what is to be said.

    Args:
        does: commands of ip.
        seen: what ``left_by`` gives.
        told: of each failure the kind, the interfaces, the first address and the source.
        unknown: the reason's kind; empty: the verdict is known.
        by_ip: why a recording by ip can't be judged, if the host can.
        recorded: why our own recording can't be, if the host can.
        ip: the release that is put in the place of ip's own.
        cidr: what is expected.
        address: to which packets are sent.
    """

    does: str
    seen: frozenset[str | None]
    told: tuple[tuple[str, str, str, str], ...] = ()
    unknown: str = ""
    by_ip: str = ""
    recorded: str = ""
    ip: str = "iproute2-9999.0"
    cidr: Any = "10.5.0.0/16"
    address: str = "10.5.0.9"


def seen(*devs: str | None) -> frozenset[str | None]:
    return frozenset(devs)


def overlap(devs: str, probe: str = "10.5.0.0") -> tuple[tuple[str, str, str, str], ...]:
    return (("OVERLAP", devs, probe, ""),)


SHUT = (("BLACKHOLE", "", "10.5.0.0", ""),)
CASES: dict[str, Case] = {
    "an interface with commas in its name": Case(
        f"{DEFAULT}\nlink add eth0,eth0 type veth peer name px\nlink set px up\nlink set eth0,eth0 arp off up\n"
        "addr add 10.5.0.1/24 dev eth0,eth0",
        seen("eth0,eth0"),
        overlap("eth0,eth0"),
        cidr="10.5.0.0/24",
    ),
    "a wide local entry of table local": Case(
        f"{DEFAULT}\nroute add local 10.5.0.0/17 dev lo table local\nroute add 10.5.1.0/24 via 10.1.0.1",
        seen("lo"),
        overlap("lo"),
        by_ip="check-failed",
    ),
    "a wide local entry, and a longer route of main": Case(
        f"{DEFAULT}\nroute add local 10.5.0.0/16 dev lo table local\nroute add 10.5.0.0/17 via 10.1.0.1",
        seen("eth0"),
        (),
        by_ip="check-failed",
        cidr="10.5.0.0/17",
    ),
    "a wide local entry and a longer route, of two tables": Case(
        f"{DEFAULT}\nroute add local 10.5.0.0/16 dev lo table local\nroute add 10.5.0.0/17 via 10.1.0.1\n"
        "rule add pref 5 lookup 77",
        seen("lo"),
        overlap("lo"),
        cidr="10.5.0.0/17",
    ),
    "a wide broadcast entry of table local": Case(
        f"{DEFAULT}\nroute add broadcast 10.5.0.0/17 dev ib0 table local", seen(None), overlap("ib0")
    ),
    "a local and a broadcast address of table local": Case(
        f"{DEFAULT}\nroute add local 10.5.0.9 dev lo table local\nroute add broadcast 10.5.0.7 dev ib0 table local",
        seen("lo"),
    ),
    "a rule for all ports": Case(f"{AWAY}\nrule add dport 1-65534 lookup 100", seen("ib0"), overlap("ib0")),
    "rules for all ports, and for some": Case(
        f"{AWAY}\nrule add dport 1-65534 lookup 100\nrule add dport 1-8 lookup main\n"
        "rule add ipproto udp dport 443 lookup main\nrule add ipproto tcp sport 1-9 lookup main",
        seen("ib0"),
        overlap("ib0"),
    ),
    "a rule for all source ports": Case(
        f"{AWAY}\nroute add unreachable 10.5.0.0/16\nroute add 10.5.0.0/16 dev eth0 table 100\n"
        "rule add sport 1-65534 lookup 100",
        seen(None, "eth0"),
        unknown="check-failed",
    ),
    "a rule for all source ports that changes nothing": Case(
        f"{DEFAULT}\nroute add default via 10.1.0.1 dev eth0 table 100\nroute add 10.5.0.0/16 dev ib0\n"
        "rule add to 10.6.0.0/16 sport 1-65534 dport 1-65534 lookup 100",
        seen("ib0"),
        overlap("ib0"),
    ),
    "a rule for all but the ports that all have": Case(f"{AWAY}\nrule add not dport 1-65534 lookup 100", seen("eth0")),
    "a rule for all ports of TCP": Case(
        f"{AWAY}\nrule add ipproto tcp dport 1-65534 lookup 100", seen("eth0", "ib0"), overlap("ib0")
    ),
    "packets that a tunnel is given addresses for": Case(
        f"{DEFAULT}\nroute add 10.5.0.0/16 encap ip6 id 1 dst 2001:db8::1 dev ib0", seen("ib0"), overlap("ib0")
    ),
    "packets that are wrapped in IPv6": Case(
        f"{WRAPPED}\nroute add 10.5.0.0/24 encap seg6 mode encap segs fc00::1 dev eth0",
        seen("ib0"),
        unknown="check-failed",
    ),
    "packets of a hop that are wrapped in IPv6": Case(
        f"{WRAPPED}\nroute add 10.5.0.0/24 nexthop encap seg6 mode encap segs fc00::1 dev eth0 nexthop dev eth0",
        seen("eth0", "ib0"),
        unknown="check-failed",
    ),
    "packets of a nexthop object that are wrapped in IPv6": Case(
        f"{WRAPPED}\nnexthop add id 5 encap seg6 mode encap segs fc00::1 dev eth0\nroute add 10.5.0.0/24 nhid 5",
        seen("ib0"),
        unknown="check-failed",
    ),
    "two default routes of one metric": Case(
        BY_TURNS.format(table="main"), seen("eth0", "ib0"), unknown="contested-default"
    ),
    "two default routes of one metric, and the CIDR names its interfaces": Case(
        BY_TURNS.format(table="main"),
        seen("eth0", "ib0"),
        overlap("ib0"),
        cidr={"cidr": "10.5.0.0/16", "devs": ["eth0"]},
    ),
    "two default routes of one metric, and the CIDR may use both": Case(
        BY_TURNS.format(table="main"), seen("eth0", "ib0"), cidr={"cidr": "10.5.0.0/16", "devs": ["eth0", "ib0"]}
    ),
    "two default routes of one metric, and another rule decides": Case(
        f"{DEFAULT} metric 9\n{BY_TURNS.format(table=100)}\nrule add lookup 100", seen("eth0", "ib0"), overlap("ib0")
    ),
    "two default routes of one metric by one interface": Case(
        f"{DEFAULT} metric 9\nroute append default via 10.1.0.7 dev eth0 metric 9", seen("eth0")
    ),
    "two default routes of one metric, and only connections meet them": Case(
        f"{BY_TURNS.format(table='main')}\nroute add 10.5.0.0/16 via 10.1.0.1 dev eth0 table 100\n"
        "rule add not from 10.0.0.0/8 lookup 100",
        seen("eth0", "ib0"),
        (("OVERLAP", "ib0", "10.5.0.0", "10.1.0.4"),),
        cidr={"cidr": "10.5.0.0/16", "devs": ["eth0"]},
    ),
    "a source of this host, and a rule that only TCP comes by": Case(
        f"{DEFAULT}\nroute add 10.5.0.0/24 dev ib0 src 10.2.0.4\nroute add unreachable 10.5.0.0/16 table 100\n"
        "rule add not to 10.5.0.0/24 ipproto tcp lookup 100",
        seen(None, "ib0"),
        (*SHUT, *overlap("ib0")),
        cidr="10.5.0.0/24",
    ),
    "a multicast route": Case(
        f"{DEFAULT}\nroute add multicast 10.5.0.0/16 dev eth0 table main", seen(None, "eth0"), SHUT
    ),
    "a multicast route that no connection takes": Case(
        f"{AWAY}\nroute add multicast 10.5.0.0/16 dev eth0 table main\nrule add from 10.1.0.4 lookup 100",
        seen("eth0", "ib0"),
        (("OVERLAP", "ib0", "10.5.0.0", "10.1.0.4"),),
    ),
    "a multicast route that TCP doesn't take": Case(
        f"{AWAY}\nroute add multicast 10.5.0.0/16 dev eth0 table main\nrule add ipproto tcp lookup 100",
        seen("eth0", "ib0"),
        overlap("ib0"),
    ),
    "a multicast route, and a rule for other sources": Case(
        f"{AWAY}\nroute add multicast 10.5.0.0/16 dev eth0 table main\nrule add from 10.2.0.4 lookup 100",
        seen(None, "eth0"),
        SHUT,
    ),
    "a broadcast route that no connection takes": Case(
        f"{AWAY}\nroute add broadcast 10.5.0.0/16 dev eth0 table main\nrule add from 10.1.0.4 lookup 100",
        seen(None, "ib0"),
        (*SHUT, ("OVERLAP", "ib0", "10.5.0.0", "10.1.0.4")),
    ),
    "a rule for some ports": Case(f"{AWAY}\nrule add dport 1000-65534 lookup 100", seen("eth0")),
}


def run_ip(commands: str) -> None:
    lines = "\n".join(filter(None, map(str.strip, commands.splitlines())))
    subprocess.run(["ip", "-batch", "-"], input=lines, text=True, check=True)


def checked(backend: RouteBackend, cidr: Any) -> OverlapReport:
    section = {"routeOverlap": {"expectedCidrs": [cidr]}, "waitSeconds": 0}
    return check_overlap(Config.from_mapping({"hostRouting": section}), backend, phases.CancelScope())


def is_explained_as_expected(backend: RouteBackend, case: Case) -> bool | None:
    """Tell whether ``explain`` finds that all is well; None: it can't."""
    section = {"routeOverlap": {"expectedCidrs": [case.cidr]}, "waitSeconds": 0}
    config = Config.from_mapping({"hostRouting": section})
    try:
        found = explain(IPv4Address(case.address), config, backend, phases.CancelScope())
    except RouteError:
        return None
    return found.is_as_expected


def told(report: OverlapReport) -> tuple[tuple[str, str, str, str], ...]:
    return tuple((str(f.kind), ",".join(f.devs), str(f.probe), str(f.source or "")) for f in report.findings)


def all_say(case: Case, tmp_path: Path) -> None:
    """Have the library, both recordings and the boot script judge, each as it should."""
    live = NetlinkBackend()
    by_ip = SnapshotBackend(recorded_by(BY_HAND, ip=case.ip))
    for backend, why in ((live, ""), (SnapshotBackend(recorded(live)), case.recorded), (by_ip, case.by_ip)):
        report = checked(backend, case.cidr)
        if unknown := case.unknown or why:
            assert (report.verdict, report.reason_kind) == ("unknown", unknown), report
            # One address may be known where not all are.
            assert is_explained_as_expected(backend, case) in ((None,) if case.unknown else (None, not case.told))
            continue
        assert (report.verdict, told(report)) == ("overlap" if case.told else "ok", case.told), report.reason
        assert is_explained_as_expected(backend, case) is not bool(case.told)
    script = render_check_route_overlap_script([case.cidr], "STRICT", wait_seconds=0)
    for name in AWKS:
        root = tmp_path / name
        root.mkdir()
        sandbox = Sandbox(root, awk_or_skip(name))
        done = sandbox.run(script)
        assert done.returncode == bool(case.told or case.unknown), done.stderr
        marker = sandbox.root / "run/aks-flex-node" / f"route-overlap.{'detected' if done.returncode else 'ok'}"
        if case.unknown:
            assert marker.read_text().startswith(f"{case.unknown}: ")
        else:
            assert told_by(marker.read_text().splitlines()) == case.told


def left_by(address: str, *, count: int = 1) -> frozenset[str | None]:
    """Return the interfaces by which packets to an address leave.

    An empty one: something else left, or nothing; None: a socket failed.
    """
    with Leaving() as leaving:
        ways = (leaving.by_tcp, leaving.by_connected_datagram, leaving.by_datagram)
        return frozenset(way(IPv4Address(address), 9 + port) for way in ways for port in range(count))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_all_say_what_sockets_do(case: Case, kernel: NamespaceKernel, tmp_path: Path) -> None:
    # So that ports decide about the hop, and a few of them try all hops.
    Path("/proc/sys/net/ipv4/fib_multipath_hash_policy").write_text("1")
    run_ip(NODE + case.does)
    all_say(case, tmp_path)
    assert left_by(case.address, count=16) == case.seen


def add_rule(table: int, *attributes: tuple[int, bytes]) -> None:
    """Add a rule of preference 50 that selects by what ip has no words for."""
    given = ((6, struct.pack("=I", 50)), *attributes)
    body = struct.pack("=8BI", socket.AF_INET, 0, 0, 0, table, 0, 0, 1, 0)
    body += b"".join(struct.pack("=HH", 4 + len(value), kind) + value.ljust(4, b"\0") for kind, value in given)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.send(struct.pack("=IHHII", 16 + len(body), 32, 0x605, 1, 0) + body)
        (errno,) = struct.unpack_from("=i", kernel.recv(4096), 16)
    if errno:
        pytest.skip("this kernel knows no such selector")


DSCP, DSCP_MASK = 25, 30


LEGS = "route add 10.5.0.0/16 nexthop via 10.1.0.1 dev eth0 nexthop via 10.2.0.1 dev ib0"
MEMBERS = """
    nexthop add id 1 via 10.1.0.1 dev eth0
    nexthop add id 2 via 10.2.0.1 dev ib0
    nexthop add id 3 group 1/2
    route add 10.5.0.0/16 nhid 3
"""


@pytest.mark.parametrize(
    ("does", "ends", "by"),
    [
        (LEGS, "link set p1 down", ("eth0", "ib0")),  # which drops them, having no carrier
        (LEGS, "link set ib0 down", ("eth0",)),
        (MEMBERS, "link set p1 down", ("eth0",)),
    ],
)
def test_a_leg_that_a_late_sysctl_shows_as_dead_keeps_its_share(
    does: str, ends: str, by: tuple[str, ...], kernel: NamespaceKernel, tmp_path: Path
) -> None:
    Path("/proc/sys/net/ipv4/fib_multipath_hash_policy").write_text("1")
    run_ip(f"{NODE}\n{DEFAULT}\n{does}")
    run_ip(ends)
    scope = phases.CancelScope().child(timeout=10)
    # The connected route goes with the link, and is marked with the carrier.
    while any(hop.dev == "ib0" and not hop.is_linkdown for route in kernel.routes(Table.MAIN) for hop in route.hops):
        kernel.wait_for_change(scope)
    Path("/proc/sys/net/ipv4/conf/all/ignore_routes_with_linkdown").write_text("1")
    all_say(Case("", seen(), overlap("eth0,ib0") if len(by) > 1 else ()), tmp_path)
    assert left_by("10.5.0.9", count=16) == seen(*by)


def test_ip_may_not_print_what_a_rule_selects_by(kernel: NamespaceKernel, tmp_path: Path) -> None:
    run_ip(f"{NODE}\n{DEFAULT}\nroute add 10.5.0.0/16 dev ib0\nroute add default via 10.1.0.1 table 100")
    add_rule(100, (DSCP, b"\x05"))
    all_say(Case("", seen(), overlap("ib0"), by_ip="check-failed", ip="iproute2-6.1.0"), tmp_path)
    assert left_by("10.5.0.9") == seen("ib0")


def test_a_recording_does_not_tell_whether_an_unknown_selector_matches(kernel: NamespaceKernel, tmp_path: Path) -> None:
    run_ip(f"{NODE}\n{AWAY}")
    add_rule(100, (DSCP, b"\x00"), (DSCP_MASK, b"\x03"))
    why = "check-failed"
    all_say(Case("", seen(), overlap("ib0"), recorded=why, by_ip=why, ip="iproute2-6.1.0"), tmp_path)
    assert left_by("10.5.0.9") == seen("ib0")


def test_a_rule_with_an_unknown_selector_may_not_matter(kernel: NamespaceKernel, tmp_path: Path) -> None:
    run_ip(f"{NODE}\n{DEFAULT}\nroute add 10.5.0.0/16 dev ib0\nroute add 10.6.0.0/16 dev ib0 table 100")
    add_rule(100, (DSCP, b"\x00"), (DSCP_MASK, b"\x03"))
    all_say(Case("", seen(), overlap("ib0"), ip="iproute2-6.1.0"), tmp_path)
    assert left_by("10.5.0.9") == seen("ib0")


# --- the fix ---------------------------------------------------------------------------------------------------------


def test_no_entry_is_proposed_that_the_kernel_refuses_where_a_rule_is_for_vrfs(kernel: NamespaceKernel) -> None:
    """The rule stays when the last VRF is gone, and changes nothing then."""
    run_ip(f"""{NODE}
        addr add 10.5.0.1/24 dev ib0
        {DEFAULT}
        rule add pref 1000 l3mdev
        rule add pref 20 not to 10.5.0.0/16 unreachable
    """)
    report = checked(kernel, "10.5.0.0/24")
    assert (report.verdict, report.remedy.routes) == (Verdict.OVERLAP, ())
    assert [str(each.ranges[0]) for each in report.remedy.unmendable] == ["10.5.0.0/32"]
    refused = subprocess.run(["ip", "route", "add", "10.5.0.0/25", "via", "10.1.0.1"], check=False)
    assert refused.returncode != 0


METRICS = "route add 10.5.0.0/24 via 10.2.0.1 dev ib0 metric 100\nroute add 10.5.7.7/32 via 10.2.0.1 dev ib0 metric 100"
HALVES = ["10.5.0.0/25", "10.5.0.128/25"]


@pytest.mark.parametrize(
    ("does", "cidr", "fix", "left"),
    [
        (METRICS, "10.5.0.0/24", ["10.5.0.0/24"], []),
        (METRICS, "10.5.7.7/32", ["10.5.7.7/32"], []),
        ("addr add 10.5.0.1/24 dev ib0 metric 50", "10.5.0.0/24", HALVES, []),
        ("route add local 10.5.0.0/24 dev lo table local", "10.5.0.0/24", HALVES, []),
        ("route add local 10.5.0.0/24 dev lo table local\nrule add lookup 7", "10.5.0.0/24", [], ["10.5.0.0/24"]),
    ],
)
def test_a_fix_is_as_short_as_the_kernel_lets_it_be(
    does: str, cidr: str, fix: list[str], left: list[str], kernel: NamespaceKernel
) -> None:
    run_ip(f"{NODE}\n{DEFAULT}\n{does}")
    remedy = checked(kernel, cidr).remedy
    assert [str(entry.destination) for entry in remedy.routes] == fix
    assert [str(network) for each in remedy.unmendable for network in each.ranges][:1] == left
    run_ip("\n".join(f"route add {destination} via 10.1.0.1" for destination in fix))
    if not left:
        assert checked(kernel, cidr).verdict == "ok"
        assert left_by(str(IPv4Network(cidr)[-1] - (cidr != "10.5.7.7/32"))) == seen("eth0")


def test_what_any_source_of_a_fix_may_meet_is_told(kernel: NamespaceKernel) -> None:
    """An interface without an address takes that of the one that was registered first, which nothing shows."""
    run_ip("""
        link add z0 index 90 type veth peer name p0
        link add a0 index 60 type veth peer name p1
        link add up0 index 70 type veth peer name p2
        link set p0 up
        link set z0 up
        link set p1 up
        link set a0 up
        link set p2 up
        link set up0 up arp off
        addr add 10.9.0.4/24 dev z0
        addr add 10.5.0.1/24 dev a0 metric 50
        route add default dev up0
        rule add from 10.9.0.4 to 10.5.0.0/24 blackhole
    """)
    remedy = checked(kernel, "10.5.0.0/25").remedy
    assert remedy.routes
    assert any(IPv4Address("10.5.0.9") in network for each in remedy.unmendable for network in each.ranges)
    run_ip("\n".join(f"route add {entry.destination} dev up0" for entry in remedy.routes))
    assert left_by("10.5.0.9") == seen(None, "up0")
