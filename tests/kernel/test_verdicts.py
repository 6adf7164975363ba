"""Hosts on which a verdict was once wrong: library, recording and boot script say the same, and it is right."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from asking import BY_HAND, recorded_by
from scripts import Sandbox, awk_or_skip, awks_for, told_by

import phases
from hostrouting import Config
from hostrouting.boot.render import render_check_route_overlap_script
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.recording import SnapshotBackend, take_snapshot
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.model.routes import Table
from hostrouting.model.rules import Rule
from hostrouting.overlap.check import check_overlap

if TYPE_CHECKING:
    from hostrouting.kernel.namespace import NamespaceKernel
    from hostrouting.kernel.port import RouteBackend
    from hostrouting.overlap.findings import OverlapReport

pytestmark = pytest.mark.kernel

CIDR = "172.16.0.0/16"
# e0 has the default route, e1 is a second interface.
NODE = """
    link add e0 type veth peer name p0
    link add e1 type veth peer name p1
    link set e0 up
    link set p0 up
    link set e1 up
    link set p1 up
    addr add 10.1.0.4/24 dev e0
    addr add 10.2.0.4/24 dev e1
    route add default via 10.1.0.1 dev e0 proto dhcp
"""


@attrs.frozen
class Case:
    """What is done to the node, and what is to be said.

    Args:
        does: commands of ip.
        told: of each failure the kind, the interfaces, the first address and the source.
        cidr: what is expected.
        overlap: more keys of ``routeOverlap``.
        is_told_by_ip: whether a recording by ip has what decides.
    """

    does: str
    told: tuple[tuple[str, str, str, str], ...] = ()
    cidr: Any = CIDR
    overlap: dict[str, Any] = attrs.field(factory=dict)
    is_told_by_ip: bool = True


AWAY = "route add default via 10.2.0.1 dev e1 table 100"
GROUP = "link set e1 group 5\nroute add 172.16.0.0/24 dev e1\nroute add 172.16.0.0/16 via 10.1.0.1 table 100"
BEHIND = "rule add pref 100 lookup main suppress_ifgroup {group}\nrule add pref 200 lookup 100"
WAYS = (
    "encap ip id 1 dst 192.0.2.1",
    "encap ip id 1 dst 192.0.2.1 tos 4",
    "encap ip id 1 dst 192.0.2.1 ttl 9 tos 4 csum",
    "encap ip6 id 1 dst 2001:db8::1 tc 4",
    "encap ip id 1 dst 192.0.2.1 tos 4 nexthop",
)
TUNNELS = "".join(
    f"link add t{n} type veth peer name u{n}\nlink set t{n} up\nroute add 172.16.{n}.0/24 {way} dev t{n}\n"
    for n, way in enumerate(WAYS, 1)
)
RENAMED_LOOPBACK = """
    link set lo down
    link set lo name loop
    link set loop up
    rule add pref 50 iif lo lookup 101
    route add default dev p1 table 101
    rule add pref 100 iif loop lookup 100
"""
LOCAL_AROUND = """
    route add local 172.16.0.0/16 dev lo table local
    route add 172.16.1.0/24 via 10.1.0.1
    route add 172.16.2.0/24 dev e1
"""
CASES = {
    "a rule for the source that connections get": Case(
        f"{AWAY}\nrule add from 10.1.0.4 lookup 100", (("OVERLAP", "e1", "172.16.0.0", "10.1.0.4"),)
    ),
    "one for another source": Case(f"{AWAY}\nrule add from 10.2.0.4 lookup 100"),
    "one for the source and a part of the CIDR": Case(
        f"{AWAY}\nrule add from 10.1.0.4 to 172.16.9.0/24 lookup 100", (("OVERLAP", "e1", "172.16.9.0", "10.1.0.4"),)
    ),
    "one that connections don't meet, and datagrams do": Case(
        f"{AWAY}\nrule add not from 10.1.0.4 lookup 100", (("OVERLAP", "e1", "172.16.0.0", ""),)
    ),
    "what TCP's first look-up fails as is told once": Case(
        f"rule add pref 5 ipproto tcp to {CIDR} blackhole\nrule add pref 6 from 10.1.0.4 to {CIDR} blackhole",
        (("BLACKHOLE", "", "172.16.0.0", ""),),
    ),
    "a rule to a prefix with host bits": Case(
        f"{AWAY}\naddr add 172.16.1.255/32 dev e0\nrule add to 172.16.1.255/24 lookup 100",
        (("OVERLAP", "e1", "172.16.1.0", ""),),
    ),
    "an interface with a hostile name": Case(
        "link add secondary type veth peer name q3\nlink set secondary up\naddr add 10.3.0.4/24 dev secondary\n"
        "route replace default dev secondary\nroute add unreachable default table 100\nrule add from 10.3.0.4 lookup 100",
        (("BLACKHOLE", "", "172.16.0.0", "10.3.0.4"),),
    ),
    "what is discarded by a rule with realms is a CNI's": Case(
        "route add blackhole 172.16.4.0/24 table 100 proto bird\nrule add pref 5 lookup 100 realms 5/6"
    ),
    "TCP and datagrams are discarded otherwise": Case(
        f"rule add pref 10 to {CIDR} prohibit\nrule add pref 5 ipproto tcp to {CIDR} blackhole",
        (("BLACKHOLE", "", "172.16.0.0", ""),),
    ),
    "table local says that a network isn't local": Case(
        "rule del pref 0\nroute add throw 172.16.1.0/24 table local\nroute add local 172.16.1.0/24 dev lo table main",
        (("OVERLAP", "lo", "172.16.1.0", ""),),
    ),
    "three rules that aren't the kernel's own": Case(
        "route add 172.16.1.0/24 via 10.1.0.1\nroute add 172.16.0.0/16 dev e1 table 100\n"
        "rule add pref 20 lookup 100 protocol kernel\nrule del pref 32767",
        (("OVERLAP", "e1", "172.16.0.0", ""),),
    ),
    "one for TCP": Case(f"{AWAY}\nrule add ipproto tcp lookup 100", (("OVERLAP", "e1", "172.16.0.0", ""),)),
    "one for TCP from a source": Case(
        f"{AWAY}\nrule add from 10.1.0.4 ipproto tcp lookup 100", (("OVERLAP", "e1", "172.16.0.0", "10.1.0.4"),)
    ),
    "one for ports": Case(f"{AWAY}\nrule add ipproto tcp dport 443 lookup 100"),
    "one for tunnels, and nothing else leads to the default route": Case(
        """
        route add 172.16.0.0/17 via 10.1.0.1 table 100
        rule add pref 100 tun_id 5 lookup main
        rule add pref 200 lookup 100
        rule del pref 32766
        rule del pref 32767
        """,
        (("NO-ROUTE", "", "172.16.128.0", ""),),
    ),
    "one for tunnels that leads away": Case(f"{AWAY}\nrule add pref 100 tun_id 5 lookup 100"),
    "one for all but tunnels that leads away": Case(
        f"{AWAY}\nrule add not pref 100 tun_id 5 lookup 100", (("OVERLAP", "e1", "172.16.0.0", ""),)
    ),
    "one for tunnels that leads away, and so does main": Case(
        "route add 172.16.0.0/24 dev e1\nroute add default dev p1 table 100\nrule add pref 100 tun_id 5 lookup 100",
        (("OVERLAP", "e1", "172.16.0.0", ""),),
    ),
    "a connection that is discarded": Case(
        "rule add from 10.1.0.4 to 172.16.0.0/24 blackhole", (("BLACKHOLE", "", "172.16.0.0", "10.1.0.4"),)
    ),
    "a local route of main": Case(
        "route add local 172.16.5.0/24 dev lo table main", (("OVERLAP", "lo", "172.16.5.0", ""),)
    ),
    "a local route of main beside rules": Case(
        "rule add pref 9 lookup 7\nroute add local 172.16.5.0/24 dev e0 table main",
        (("OVERLAP", "lo", "172.16.5.0", ""),),
    ),
    "a broadcast and an anycast route of main": Case(
        "route add broadcast 172.16.6.0/24 dev e1 table main\nroute add anycast 172.16.7.0/24 dev e1",
        (("OVERLAP", "e1", "172.16.6.0", ""),),
    ),
    "routes of main discard before table default is asked": Case(
        "route add blackhole 172.16.0.0/24\nroute add unreachable 172.16.1.0/24\nroute add throw 172.16.2.0/24\n"
        "route add 172.16.0.0/16 via 10.1.0.1 table default",
        (("BLACKHOLE", "", "172.16.0.0", ""),),
    ),
    "a route of main discards, and table default has others": Case(
        "route add blackhole 172.16.0.0/24\nroute add 192.168.0.0/16 via 10.1.0.1 table default",
        (("BLACKHOLE", "", "172.16.0.0", ""),),
    ),
    "rules that discard": Case(
        "rule add pref 10 to 172.16.0.0/25 unreachable\nrule add pref 11 to 172.16.0.128/25 blackhole",
        (("NO-ROUTE", "", "172.16.0.0", ""), ("BLACKHOLE", "", "172.16.0.128", "")),
    ),
    "results of prefixes up to a length are passed over": Case(
        "route add 172.16.0.0/24 dev e1\nroute add 172.16.0.0/16 via 10.1.0.1 table 100\n"
        "rule add pref 100 lookup main suppress_prefixlength 24\nrule add pref 200 lookup 100",
    ),
    "a renamed loopback": Case(f"{AWAY}\n{RENAMED_LOOPBACK}", (("OVERLAP", "e1", "172.16.0.0", ""),)),
    "a renamed loopback, and nothing else leads to the default route": Case(
        """
        link set lo down
        link set lo name loop
        link set loop up
        route add 172.16.0.0/17 via 10.1.0.1 table 100
        rule add pref 100 iif lo lookup main
        rule add pref 200 lookup 100
        rule del pref 32766
        rule del pref 32767
        """,
        (("NO-ROUTE", "", "172.16.128.0", ""),),
    ),
    "own and broadcast addresses": Case("addr add 172.16.5.1/24 dev e0"),
    "a default route for a tos": Case(
        "link add t0 type veth peer name q0\nlink set t0 up\nroute add default tos 0x10 dev t0\n"
        "route add 172.16.3.0/24 dev e1",
        (("OVERLAP", "e1", "172.16.3.0", ""),),
    ),
    "a default route for a tos, into a tunnel": Case(
        "route add default tos 0x10 encap ip6 id 1 dst 2001:db8::1 via 10.2.0.1 dev e1"
    ),
    "a default route into a tunnel with a tos": Case(
        "route replace default encap ip id 1 dst 192.0.2.1 tos 4 via 10.1.0.1 dev e0\n"
        "route add default via 10.2.0.1 dev e1 metric 50"
    ),
    "routes into tunnels": Case(TUNNELS, tuple(("OVERLAP", f"t{n}", f"172.16.{n}.0", "") for n in range(1, 6))),
    "routes for a tos, into tunnels": Case(
        "route add 172.16.0.0/24 tos 0x10 encap ip id 1 dst 192.0.2.1 dev e1\n"
        "route add 172.16.1.0/24 tos 0x10 encap ip6 id 1 dst 2001:db8::1 via 10.2.0.1 dev e1"
    ),
    "hops into tunnels": Case(
        "route add 172.16.0.0/24 nexthop encap ip id 1 dst 192.0.2.1 dev e0 nexthop encap ip id 2 dst 192.0.2.2 dev e1",
        (("OVERLAP", "e0,e1", "172.16.0.0", ""),),
    ),
    "results over a group of interfaces are passed over": Case(f"{GROUP}\n{BEHIND.format(group=5)}"),
    "results over a group of interfaces are passed over, and the next rule leads away": Case(
        "link set e1 group 5\nroute add 172.16.0.0/24 dev e1\nroute add 172.16.0.0/16 dev p1 table 100\n"
        f"{BEHIND.format(group=5)}",
        (("OVERLAP", "p1", "172.16.0.0", ""),),
        cidr="172.16.0.0/24",
    ),
    "results over another group are passed over": Case(
        f"{GROUP}\n{BEHIND.format(group=0)}", (("OVERLAP", "e1", "172.16.0.0", ""),), cidr="172.16.0.0/24"
    ),
    "a rule came and went": Case(
        f"rule add pref 5 lookup 77\nrule del pref 5\n{LOCAL_AROUND}",
        (("OVERLAP", "lo", "172.16.0.0", ""),),
        cidr="172.16.0.0/22",
        is_told_by_ip=False,
    ),
    "no rule ever came": Case(
        LOCAL_AROUND,
        (("OVERLAP", "lo", "172.16.0.0", ""), ("OVERLAP", "e1", "172.16.2.0", "")),
        cidr="172.16.0.0/22",
        is_told_by_ip=False,
    ),
    "only one trie or two tell what discards": Case(
        "route add unreachable 172.16.0.0/16 table local\nroute add blackhole 172.16.1.0/24",
        (("BLACKHOLE", "", "172.16.0.0", ""),),
        is_told_by_ip=False,
    ),
    "an interface that took a node's CIDR": Case(
        "link add cali1 type veth peer name q1\nlink set cali1 up\nroute add 172.16.7.0/24 dev cali1",
        (("OVERLAP", "cali1", "172.16.7.0", ""),),
        cidr={"cidr": CIDR, "devs": ["e0"]},
    ),
    "the same where pods may": Case(
        "link add cali1 type veth peer name q1\nlink set cali1 up\nroute add 172.16.7.0/24 dev cali1"
    ),
    "wg0": Case(
        "link add wg0 type veth peer name q2\nlink set wg0 up\nroute add 172.16.0.0/16 dev wg0",
        (("OVERLAP", "wg0", "172.16.0.0", ""),),
    ),
}


def check(backend: RouteBackend, case: Case) -> OverlapReport:
    section = {"routeOverlap": {"expectedCidrs": [case.cidr], **case.overlap}, "waitSeconds": 0}
    return check_overlap(Config.from_mapping({"hostRouting": section}), backend, phases.CancelScope())


def build(commands: str) -> None:
    lines = (line.strip() for line in (NODE + commands).splitlines())
    subprocess.run(["ip", "-batch", "-"], input="\n".join(filter(None, lines)), text=True, check=True)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_library_recording_and_script_say_what_is_so(case: Case, kernel: NamespaceKernel, tmp_path: Path) -> None:
    build(case.does)
    all_say(case, tmp_path)


def test_routes_by_nexthop_objects_are_gone_with_the_carrier(kernel: NamespaceKernel, tmp_path: Path) -> None:
    kernel.add_link("x1")
    kernel.add_address("x1", "10.3.0.4/24")
    Path("/proc/sys/net/ipv4/conf/all/ignore_routes_with_linkdown").write_text("1")
    build("""
        nexthop add id 7 dev x1
        nexthop add id 8 via 10.3.0.1 dev x1
        route add 172.16.0.0/24 nhid 7
        route add 172.16.0.0/24 via 10.1.0.1 metric 10
        route add 172.16.1.0/24 nhid 8
        route add 172.16.0.0/16 dev p0
    """)
    kernel.set_link("x1", carrier=False)
    scope = phases.CancelScope(timeout=10)
    # The routes hear of it after the link.
    while not all(hop.is_dead for route in kernel.routes(Table.MAIN) for hop in route.hops if hop.dev == "x1"):
        kernel.wait_for_change(scope)
    all_say(Case("", (("OVERLAP", "p0", "172.16.1.0", ""),)), tmp_path)


def test_a_rule_that_passes_over_results_of_less_than_no_length_passes_over_none(
    kernel: NamespaceKernel, tmp_path: Path
) -> None:
    """The kernel takes the number for a negative one, and so does ip show it."""
    build("route add 172.16.0.0/24 dev e1\nroute add default via 10.1.0.1 table 100\nrule add pref 200 lookup 100")
    kernel.add_rule(Rule(100, suppress_prefix_length=3_000_000_000))
    all_say(Case("", (("OVERLAP", "e1", "172.16.0.0", ""),)), tmp_path)


def all_say(case: Case, tmp_path: Path) -> None:
    """Library, both recordings and boot script."""
    recording = Snapshot.from_document(json.loads(take_snapshot(NetlinkBackend()).to_text()))
    by_ip = recorded_by(BY_HAND)
    if not case.is_told_by_ip:
        assert check(SnapshotBackend(by_ip), case).verdict == "unknown"
        by_ip = recording
    for backend in (NetlinkBackend(), SnapshotBackend(recording), SnapshotBackend(by_ip)):
        report = check(backend, case)
        told = tuple((str(f.kind), ",".join(f.devs), str(f.probe), str(f.source or "")) for f in report.findings)
        assert told == case.told
        assert report.verdict == ("overlap" if case.told else "ok")
    script = render_check_route_overlap_script([case.cidr], "STRICT", wait_seconds=0, **case.overlap)
    for name in awks_for(repr(case)):
        root = tmp_path / name
        root.mkdir()
        sandbox = Sandbox(root, awk_or_skip(name))
        done = sandbox.run(script)
        assert done.returncode == (1 if case.told else 0), done.stderr
        marker = sandbox.root / "run/aks-flex-node" / f"route-overlap.{'detected' if case.told else 'ok'}"
        assert told_by(marker.read_text().splitlines()) == case.told
