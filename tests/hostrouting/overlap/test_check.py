"""The check classifies answers, reports on running nodes, and copes with hosts that change."""

from __future__ import annotations

import cProfile
import errno as errnos
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from asking import checked
from brute_force import Judge, disagreements, judged, sort_all
from fixing import install
from nightly import by_day
from node import GATEWAY, SECOND_GATEWAY, build_node, default_route, on_linux
from scenario import play
from worlds import STANDARD_RULES

import phases
from benchmarks.snapshots import HOSTS
from hostrouting import Config, RouteOverlap
from hostrouting.backend import NetlinkBackend
from hostrouting.kernel.snapshot_backend import SnapshotBackend
from hostrouting.model.links import Address, Hardware, Link
from hostrouting.model.prefixes import numbers
from hostrouting.model.routes import Lookup, NextHop, Protocol, Route, RouteType, Scope, Table
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.overlap._classify import classify_probes
from hostrouting.overlap._coverage import Coverage, Interval
from hostrouting.overlap._grouping import findings_and_notes
from hostrouting.overlap._state import Probe, State, pending_devs, read_host
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.findings import FindingKind, NoteKind
from hostrouting.report import Finding, Note
from hostrouting.testing import FakeKernel
from phases.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from hostrouting import OverlapReport
    from hostrouting.kernel.port import Kernel
    from hostrouting.kernel.snapshot import Snapshot
    from hostrouting.model.prefixes import Prefix

# --- classification of answers ---------------------------------------------------------------------------------------

CIDR = IPv4Network("172.16.0.0/16")
PROBE = CIDR.network_address
DEFAULT = default_route(metric=0)
SHADOW = Route(CIDR, (NextHop("ib0"),), protocol=Protocol.KERNEL, source=IPv4Address("172.16.0.10"))
OWN_ENTRY = Route(IPv4Network(PROBE), (NextHop("eth0"),), RouteType.LOCAL, table=Table.LOCAL, scope=Scope.HOST)


def state(answer: Route | int, default: Route = DEFAULT, **changes: Any) -> State:
    lookup = Lookup(PROBE, None, answer) if isinstance(answer, int) else Lookup(PROBE, answer)
    base = State(
        default.devs,
        default,
        named=None,
        links=(),
        addresses=(),
        rules=STANDARD_RULES,
        routes=(default,),
        intervals=[Interval(int(CIDR[0]), int(CIDR[-1]), int(PROBE))],
        probes={int(PROBE): (Probe(lookup),)},
    )
    return attrs.evolve(base, **changes)


def sorted_into(
    answer: Route | int, overlap: RouteOverlap | None = None, **changes: Any
) -> tuple[list[Finding], list[Note]]:
    host = state(answer, **changes)
    overlap = overlap or RouteOverlap([CIDR])
    findings, notes = findings_and_notes(overlap, host, classify_probes(overlap, host))
    return list(findings), list(notes)


def items_of(*found: Sequence[Finding | Note]) -> list[Finding | Note]:
    return [item for items in found for item in items]


def finding(answer: Route | int, **changes: Any) -> Finding:
    (only,), notes = sorted_into(answer, **changes)
    assert notes == []
    return only


def note(answer: Route | int, overlap: RouteOverlap | None = None, **changes: Any) -> Note:
    findings, (only,) = sorted_into(answer, overlap, **changes)
    assert findings == []
    return only


def by(*devs: str, dead: tuple[str, ...] = ()) -> Route:
    """Return an entry for the CIDR via these interfaces."""
    return attrs.evolve(SHADOW, hops=tuple(NextHop(dev, is_dead=dev in dead) for dev in devs), source=None)


def discard(destination: str = str(CIDR), kind: RouteType = RouteType.BLACKHOLE, **more: Any) -> Route:
    return Route(IPv4Network(destination), type=kind, **({"protocol": Protocol.STATIC} | more))


VETH0 = attrs.evolve(DEFAULT, hops=(NextHop("veth0", GATEWAY),))
BOTH = attrs.evolve(DEFAULT, hops=(NextHop("eth0", GATEWAY), NextHop("eth1", GATEWAY)))
POD = Route(IPv4Network("172.16.0.9/32"), (NextHop("cali1"),), protocol=Protocol.BOOT)
OVERLAP, NO_ROUTE, BLACKHOLE = FindingKind.OVERLAP, FindingKind.NO_ROUTE, FindingKind.BLACKHOLE
GIVEN = RouteOverlap([CIDR], allowed_devs=["ib[0-3]"], container_devs=["pod*"])
CONTAINERS = ("veth1a2b", "cali0", "cilium_host", "azv123", "unbounded0", "kube-ipvs0")
SHADOWS = ("docker0", "br-1a2b", "podman1", "virbr0", "tailscale0", "ib0", "wg0", "eth1")
IN_TABLE_100 = (*STANDARD_RULES[:1], Rule(100, table=100), *STANDARD_RULES[1:])


@pytest.mark.parametrize(
    ("answer", "changes", "kind", "devs"),
    [
        (DEFAULT, {}, None, ()),
        (Route(CIDR, (NextHop("eth0", IPv4Address("10.1.0.9")),)), {}, None, ()),
        *((by(dev), {}, NoteKind.CONTAINER, (dev,)) for dev in CONTAINERS),
        *((by(dev), {}, OVERLAP, (dev,)) for dev in SHADOWS),
        (by("ib1", "ib0", "ib1"), {}, OVERLAP, ("ib0", "ib1")),
        # Patterns in the config replace the default patterns.
        (SHADOW, {"overlap": GIVEN}, NoteKind.ALLOWED, ("ib0",)),
        (by("pod1"), {"overlap": GIVEN}, NoteKind.CONTAINER, ("pod1",)),
        (by("veth1"), {"overlap": GIVEN}, OVERLAP, ("veth1",)),
        # The interface of the default route never counts as the interface of a container.
        (by("ib0"), {"default": VETH0}, OVERLAP, ("ib0",)),
        (by("veth0"), {"default": VETH0}, None, ()),
        # The live hops must be a subset of the hops of the default route.
        (by("eth1"), {"default": BOTH}, None, ()),
        (by("eth1", "ib0"), {"default": BOTH}, OVERLAP, ("eth1", "ib0")),
        (by("eth1", "ib0", dead=("ib0",)), {"default": BOTH}, None, ()),
        (by("veth1", "ib0"), {}, OVERLAP, ("ib0", "veth1")),
        (errnos.ENETUNREACH, {}, NO_ROUTE, ()),
        (errnos.EINVAL, {"routes": (DEFAULT, discard(protocol=Protocol.BIRD))}, NoteKind.CNI_DISCARD, ()),
        (errnos.EINVAL, {"routes": (DEFAULT, discard(protocol=80))}, NoteKind.CNI_DISCARD, ()),
        # A blackhole also counts as a discard by a CNI if it contains a route to a container in the same table.
        (errnos.EINVAL, {"routes": (DEFAULT, discard(), POD)}, NoteKind.CNI_DISCARD, ()),
        (
            errnos.EINVAL,
            {"routes": (DEFAULT, discard(), attrs.evolve(POD, destination=IPv4Network("10.0.0.9/32")))},
            BLACKHOLE,
            (),
        ),
        (errnos.EINVAL, {"routes": (DEFAULT, discard(), attrs.evolve(POD, table=100))}, BLACKHOLE, ()),
        # A default route that discards isn't the block of a CNI.
        (
            errnos.EINVAL,
            {
                "rules": IN_TABLE_100,
                "routes": (
                    DEFAULT,
                    discard("0.0.0.0/0", protocol=Protocol.BIRD, table=100),
                    attrs.evolve(POD, table=100),
                ),
            },
            BLACKHOLE,
            (),
        ),
    ],
)
def test_an_answer_is_classified(
    answer: Route | int, changes: dict[str, Any], kind: FindingKind | NoteKind | None, devs: tuple[str, ...]
) -> None:
    findings, notes = sorted_into(answer, **changes)
    assert [(item.kind, item.devs) for item in items_of(findings, notes)] == ([] if kind is None else [(kind, devs)])


@pytest.mark.parametrize(
    ("answer", "routes", "said"),
    [
        (
            SHADOW,
            (DEFAULT,),
            f"OVERLAP: expected CIDR 172.16.0.0/16 (probe 172.16.0.0) routes via ib0, expected eth0; by {SHADOW}",
        ),
        (
            errnos.ENETUNREACH,
            (DEFAULT,),
            "NO-ROUTE: expected CIDR 172.16.0.0/16 (probe 172.16.0.0) has no IPv4 route; expected via eth0",
        ),
        *(
            (
                errno,
                (DEFAULT, discard(kind=RouteType.THROW), discard("172.16.0.0/24", kind)),
                (
                    f"BLACKHOLE: expected CIDR 172.16.0.0/16 (probe 172.16.0.0) is discarded by {word}; "
                    f"expected via eth0; by {word} 172.16.0.0/24 proto static"
                ),
            )
            for errno, kind, word in (
                (errnos.EINVAL, RouteType.BLACKHOLE, "blackhole"),
                (errnos.EHOSTUNREACH, RouteType.UNREACHABLE, "unreachable"),
                (errnos.EACCES, RouteType.PROHIBIT, "prohibit"),
            )
        ),
    ],
)
def test_a_failure_is_worded_as_specified(answer: Route | int, routes: tuple[Route, ...], said: str) -> None:
    found = finding(answer, routes=routes)
    assert found.message == said
    assert (found.cidr, found.probe, found.expected_devs) == (CIDR, PROBE, ("eth0",))
    assert found.route == (answer if isinstance(answer, Route) else routes[-1] if routes[1:] else None)


def test_a_rule_that_discards_is_named_as_such() -> None:
    rules = (Rule(10, RuleAction.BLACKHOLE), *STANDARD_RULES)
    assert finding(errnos.EINVAL, rules=rules).message.endswith("; by a policy rule")


@pytest.mark.parametrize("kind", [RouteType.LOCAL, RouteType.BROADCAST])
@pytest.mark.parametrize("dev", ["ib0", "eth0"])
def test_local_and_broadcast_addresses_are_notes(kind: RouteType, dev: str) -> None:
    answer = attrs.evolve(OWN_ENTRY, hops=(NextHop(dev),), type=kind)
    found = note(answer, routes=(DEFAULT, answer))
    assert (found.kind, found.devs) == (NoteKind[kind.name], (dev,))
    assert ("nothing in the cluster" in found.message) == (dev == "ib0")


@pytest.mark.parametrize(("length", "is_named"), [(12, True), (16, False), (24, True), (32, True)])
def test_a_local_address_in_the_pods_range_conflicts(length: int, is_named: bool) -> None:
    """There is no conflict if the CIDR is the subnet of the node, or if the config names its interfaces."""
    for overlap, is_said in ((None, is_named), (RouteOverlap([{"cidr": CIDR, "devs": ["eth0"]}]), False)):
        own = Address("eth0", PROBE, length)
        found = note(OWN_ENTRY, overlap, routes=(DEFAULT, OWN_ENTRY), addresses=(own,))
        assert (found.kind, found.devs) == (NoteKind.LOCAL, ("eth0",))
        assert ("a pod or Service that has" in found.message) == is_said


@pytest.mark.parametrize(
    ("own", "taken", "is_named"),
    [
        ("eth0 172.16.0.4", "172.16.7.0/24", True),
        ("eth0 172.16.0.4", "172.16.7.9/32", False),  # a pod on this node
        ("eth0 10.1.0.4", "172.16.7.0/24", False),
        ("cbr0 172.16.7.1", "172.16.7.0/24", False),
    ],
)
def test_a_container_bridge_in_the_nodes_range_conflicts(own: str, taken: str, is_named: bool) -> None:
    dev, address = own.split()
    bridge = Route(IPv4Network(taken), (NextHop("cbr0"),), protocol=Protocol.KERNEL, scope=Scope.LINK)
    found = note(bridge, addresses=(Address(dev, IPv4Address(address), 24),))
    assert (found.kind, found.devs) == (NoteKind.CONTAINER, ("cbr0",))
    assert ('{"cidr": "172.16.0.0/16", "devs": ["eth0"]} in expectedCidrs' in found.message) == is_named


def test_an_infiniband_interface_without_an_address_is_pending() -> None:
    ib0, ib1 = (Link(2 + n, f"ib{n}", hardware=Hardware.INFINIBAND) for n in range(2))
    links = (ib0, ib1, Link(4, "eth1"))
    addresses = (Address("ib0", IPv4Address("172.16.0.10"), 16),)
    assert pending_devs(links, addresses, ["eth0"]) == ("ib1",)
    found = note(DEFAULT, links=links, addresses=addresses)
    assert (found.kind, found.devs, found.cidr) == (NoteKind.PENDING, ("ib1",), None)


@pytest.mark.parametrize(
    "selector",
    [
        {"mark": 1},
        {"uid_range": (1, 5)},
        {"iif": "eth1"},
        {"oif": "eth1"},
        {"tos": 8},
        {"ip_protocol": 1},
        {"has_unknown": True},
        {"has_unknown": True, "is_inverted": True},
        {"has_ports": True},
    ],
)
def test_rules_for_other_packets_are_one_note(selector: dict[str, Any]) -> None:
    rules = (Rule(100, table=100, **selector), Rule(101, table=101, **selector), *STANDARD_RULES)
    found = note(DEFAULT, rules=rules)
    assert found.kind is NoteKind.RULE
    assert "100, 101" in found.message


def test_rules_that_the_lookups_cover_are_no_note() -> None:
    rules = (
        Rule(100, table=52, destination=CIDR),
        Rule(101, iif="lo", suppress_prefix_length=0),
        Rule(102, table=52, source=IPv4Network("10.0.0.0/8")),
        Rule(103, table=52, ip_protocol=6),
        *STANDARD_RULES,
    )
    assert sorted_into(DEFAULT, rules=rules) == ([], [])


def test_the_same_cidr_twice_is_one_finding() -> None:
    findings, _ = sorted_into(SHADOW, RouteOverlap([CIDR, CIDR]))
    assert len(findings) == 1


def test_the_json_of_findings_and_notes_is_as_documented() -> None:
    assert finding(SHADOW).to_json() == {
        "kind": "OVERLAP",
        "cidr": "172.16.0.0/16",
        "probe": "172.16.0.0",
        "devs": ["ib0"],
        "expectedDevs": ["eth0"],
        "source": None,
        "ranges": ["172.16.0.0/16"],
        "route": "172.16.0.0/16 dev ib0 proto kernel scope link src 172.16.0.10",
        "fix": [],
        "message": finding(SHADOW).message,
    }
    assert note(by("veth1")).to_json() == {
        "kind": "CONTAINER",
        "message": "expected CIDR 172.16.0.0/16 routes via veth1, a container interface",
        "cidr": "172.16.0.0/16",
        "devs": ["veth1"],
        "ranges": ["172.16.0.0/16"],
    }


def test_a_route_with_hidden_hops_is_looked_up() -> None:
    """If net.ipv4.nexthop_compat_mode is 0, the kernel hides the hops of routes with a nexthop object."""
    hidden = Route(IPv4Network("172.16.4.0/24"), nexthop_id=7, scope=Scope.UNIVERSE)
    intervals = Coverage([numbers(CIDR)], ["eth0"], STANDARD_RULES, ()).intervals([DEFAULT, hidden])
    assert {interval.probed for interval in intervals} == {
        int(IPv4Address("172.16.0.0")),
        int(IPv4Address("172.16.4.0")),
    }


# --- running nodes: CNIs, Docker, VPNs and local addresses -----------------------------------------------------------


@attrs.frozen
class Node:
    """A node with eth0 (10.1.0.4/24 and the default route), eth1 (10.2.0.4/24) and ib0 (172.16.0.10/16).

    Args:
        has: the commands of a scenario.
        cidrs: the expected CIDRs.
        told: the expected lines, one for each failure, note, entry of the fix and unfixable part.
        overlap: more keys of ``routeOverlap``.
    """

    has: str
    cidrs: tuple[str, ...]
    told: tuple[str, ...]
    overlap: dict[str, Any] = attrs.field(factory=dict)


WIREGUARD = """
    link add wg0
    route add 10.244.0.0/16 dev wg0 table 51820 proto boot scope link
    rule add 32765 not fwmark 0xca6c lookup 51820
"""
TAILSCALE = """
    link add tailscale0
    addr add 100.101.102.103/32 dev tailscale0
    route add 10.96.0.0/20 dev tailscale0 table 52 proto boot scope link
    route add throw 127.0.0.0/8 table 52 proto boot
    rule add 5210 fwmark 0x80000 lookup main
    rule add 5230 fwmark 0x80000 lookup default
    rule add 5250 fwmark 0x80000 unreachable
    rule add 5270 lookup 52
"""
NODES = {
    "eight InfiniBand interfaces": Node(
        "\n".join(f"link add ib{n}\naddr add 172.16.0.{10 + n}/16 dev ib{n}" for n in range(1, 8)),
        ("172.16.0.0/16",),
        (
            "OVERLAP ib0 65527 of 172.16.0.0-172.16.255.254",
            "LOCAL ib0,ib1,ib2,ib3,ib4,ib5,ib6,ib7 172.16.0.10/31 172.16.0.12/30 172.16.0.16/31",
            "BROADCAST ib0 172.16.255.255",
            "fix 172.16.0.0/17",
            "fix 172.16.128.0/17",
        ),
    ),
    "Calico with VXLAN": Node(
        """
        link add cali1a
        link add vxlan.calico
        addr add 10.244.1.0/32 dev vxlan.calico
        route add blackhole 10.244.1.0/26 proto 80
        route add 10.244.1.5 dev cali1a proto boot scope link
        route add 10.244.2.0/26 via 10.244.2.0 dev vxlan.calico onlink proto 80
        """,
        ("10.244.0.0/16",),
        (
            "LOCAL vxlan.calico 10.244.1.0",
            "CNI-DISCARD 62 of 10.244.1.1-10.244.1.63",
            "CONTAINER cali1a,vxlan.calico 10.244.1.5 10.244.2.0/26",
        ),
    ),
    "Calico with BIRD": Node(
        """
        link add cali1a
        link add tunl0
        addr add 10.244.1.1/32 dev tunl0
        route add blackhole 10.244.1.0/26 proto bird
        route add 10.244.2.0/26 via 10.1.0.5 dev tunl0 onlink proto bird
        route add 10.244.3.0/26 via 10.1.0.6 dev eth0 proto bird
        """,
        ("10.244.0.0/16",),
        ("CNI-DISCARD 63 of 10.244.1.0-10.244.1.63", "LOCAL tunl0 10.244.1.1", "CONTAINER tunl0 10.244.2.0/26"),
    ),
    "discarded blocks with and without a pod inside": Node(
        """
        link add veth1
        route add unreachable 10.244.1.0/24 proto static
        route add 10.244.1.5 dev veth1 proto static scope link
        route add unreachable 10.244.2.0/24 proto static
        """,
        ("10.244.0.0/16",),
        (
            "BLACKHOLE 10.244.2.0/24",
            "CNI-DISCARD 255 of 10.244.1.0-10.244.1.255",
            "CONTAINER veth1 10.244.1.5",
            "fix 10.244.2.0/25",
            "fix 10.244.2.128/25",
        ),
    ),
    "Cilium": Node(
        """
        link add cilium_host
        link add lxc1a2b3c
        addr add 10.0.0.80/32 dev cilium_host
        route add 10.0.0.80 dev cilium_host proto kernel scope link
        route add 10.0.0.0/24 via 10.0.0.80 dev cilium_host proto kernel src 10.0.0.80
        route add 10.0.1.0/24 via 10.0.0.80 dev cilium_host proto kernel src 10.0.0.80 mtu 1450
        route add local 0.0.0.0/0 dev lo table 2004 proto kernel
        rule add 9 fwmark 0x200 lookup 2004
        """,
        ("10.0.0.0/16",),
        ("CONTAINER cilium_host 511 of 10.0.0.0-10.0.1.255", "LOCAL cilium_host 10.0.0.80", "RULE"),
    ),
    "Flannel": Node(
        """
        link add flannel.1
        link add cni0
        addr add 10.244.0.0/32 dev flannel.1
        addr add 10.244.0.1/24 dev cni0
        route add 10.244.1.0/24 via 10.244.1.0 dev flannel.1 onlink
        """,
        ("10.244.0.0/16",),
        (
            "LOCAL cni0,flannel.1 10.244.0.0/31",
            "CONTAINER cni0,flannel.1 509 of 10.244.0.2-10.244.1.255",
            "BROADCAST cni0 10.244.0.255",
        ),
    ),
    "a Docker pool": Node(
        "link add docker0\naddr add 172.17.0.1/16 dev docker0",
        ("172.17.0.0/16",),
        (
            "OVERLAP docker0 65534 of 172.17.0.0-172.17.255.254",
            "LOCAL docker0 172.17.0.1",
            "BROADCAST docker0 172.17.255.255",
            "unfixable 65534 of 172.17.0.0-172.17.255.254: docker0 belongs to Docker",
        ),
    ),
    "a second NIC": Node(
        "",
        ("10.2.0.0/24",),
        (
            "OVERLAP eth1 254 of 10.2.0.0-10.2.0.254",
            "LOCAL eth1 10.2.0.4",
            "BROADCAST eth1 10.2.0.255",
            "fix 10.2.0.0/25",
            "fix 10.2.0.128/25",
        ),
    ),
    "an allowed second NIC": Node(
        "",
        ("10.2.0.0/24",),
        ("ALLOWED eth1 254 of 10.2.0.0-10.2.0.254", "LOCAL eth1 10.2.0.4", "BROADCAST eth1 10.2.0.255"),
        {"allowedDevs": ["eth[1-9]"]},
    ),
    "a VPN that redirects the default route by a rule": Node(
        """
        link add vpn0
        addr add 10.99.0.2/32 dev vpn0
        route add default dev vpn0 table 51820 proto boot scope link
        rule add 32764 lookup main suppress 0
        rule add 32765 not fwmark 0xca6c lookup 51820
        """,
        ("10.96.0.0/16", "10.1.0.0/24"),
        ("OVERLAP vpn0 10.96.0.0/16", "LOCAL eth0 10.1.0.4", "BROADCAST eth0 10.1.0.255", "fix 10.96.0.0/16"),
    ),
    "a CNI's WireGuard, if the config says so": Node(
        WIREGUARD, ("10.244.0.0/16",), ("CONTAINER wg0 10.244.0.0/16",), {"containerDevs": ["wg[0-9]*"]}
    ),
    "WireGuard": Node(
        WIREGUARD, ("10.244.0.0/16",), ("OVERLAP wg0 10.244.0.0/16", "unfixable 10.244.0.0/16: wg0 belongs to a VPN")
    ),
    "Tailscale": Node(
        TAILSCALE,
        ("10.96.0.0/16",),
        ("OVERLAP tailscale0 10.96.0.0/20", "RULE", "unfixable 10.96.0.0/20: tailscale0 belongs to a VPN"),
    ),
    "allowed Tailscale": Node(
        TAILSCALE, ("10.96.0.0/16",), ("ALLOWED tailscale0 10.96.0.0/20", "RULE"), {"allowedDevs": ["tailscale*"]}
    ),
    "kube-proxy with IPVS": Node(
        "link add kube-ipvs0\naddr add 10.96.0.1/32 dev kube-ipvs0\naddr add 10.96.0.10/32 dev kube-ipvs0",
        ("10.96.0.0/16",),
        ("LOCAL kube-ipvs0 10.96.0.1 10.96.0.10",),
    ),
    "a network that is entirely local": Node(
        "route add local 10.96.0.0/16 dev lo table local proto boot scope host",
        ("10.96.0.0/16", "10.96.3.0/24"),
        ("OVERLAP lo 10.96.0.0/16", "OVERLAP lo 10.96.3.0/24", "fix 10.96.0.0/17", "fix 10.96.128.0/17"),
    ),
    "Azure's own addresses": Node(
        """
        route add 168.63.129.16 via 10.1.0.1 dev eth0 proto dhcp src 10.1.0.4 metric 100
        route add 169.254.169.254 via 10.1.0.1 dev eth0 proto dhcp src 10.1.0.4 metric 100
        """,
        ("168.63.129.16/32", "169.254.169.254/32"),
        (),
    ),
}


@pytest.fixture
def node(each_kernel: Kernel) -> Kernel:
    """Return a kernel with eth0 (10.1.0.4/24 and the default route), eth1 (10.2.0.4/24) and ib0 (172.16.0.10/16)."""
    build_node(each_kernel)
    return each_kernel


@pytest.mark.parametrize("case", NODES.values(), ids=NODES)
def test_running_nodes_are_classified_and_fixed(case: Node, node: Kernel, tmp_path: Path) -> None:
    play(node, case.has)
    report = checked_as(node, case.cidrs, case.overlap)[1]
    assert lines_of(report) == [*case.told]
    assert {finding.expected_devs for finding in report.findings} <= {("eth0",)}
    _see_around(node, report, case)
    install(node, report.fix.routes, tmp_path)
    after = checked_as(node, case.cidrs, case.overlap)[1]
    assert after.verdict == ("overlap" if report.fix.unfixable else "ok")


def checked_as(kernel: Kernel, cidrs: Sequence[str], overlap: dict[str, Any]) -> tuple[Config, OverlapReport]:
    section = {"routeOverlap": {"expectedCidrs": [*cidrs], **overlap}, "waitSeconds": 0}
    config = Config.from_mapping({"hostRouting": section})
    return config, check_overlap(config, kernel, phases.CancelScope())


def _see_around(kernel: Kernel, report: OverlapReport, case: Node) -> None:
    """Compare the check with brute force around the address ranges that it reports."""
    ranges = [finding.ranges for finding in report.findings] + [note.ranges for note in report.notes]
    near = {IPv4Network((part[0], 24), strict=False) for parts in ranges for part in parts}
    # If the check reports nothing, compare any part of the CIDR.
    around = sorted(near)[:4] or [IPv4Network(case.cidrs[0])]
    config, closer = checked_as(kernel, [*map(str, around)], case.overlap)
    judge = Judge(kernel, config.route_overlap, had_rules=len(kernel.rules()) > 3)
    assert disagreements(closer, judge, {cidr: sort_all(kernel, judge, judged(cidr)) for cidr in around}) == []


def lines_of(report: OverlapReport) -> list[str]:
    """Return a line for each failure, note, entry of the fix and unfixable part."""
    told = [
        (str(item.kind), ",".join(item.devs), _span(item.ranges)) for item in items_of(report.findings, report.notes)
    ]
    lines = [" ".join(filter(None, words)) for words in told]
    lines += [f"fix {entry}" for entry in report.fix.routes]
    return lines + [f"unfixable {_span(part.ranges)}: {part.reason.partition(':')[0]}" for part in report.fix.unfixable]


def _span(ranges: tuple[IPv4Network, ...]) -> str:
    if len(ranges) <= 4:
        return " ".join(str(part).removesuffix("/32") for part in ranges)
    return f"{sum(part.num_addresses for part in ranges)} of {ranges[0][0]}-{ranges[-1][-1]}"


# --- hosts that change during the check ------------------------------------------------------------------------------

SHADOWED = RouteOverlap(["172.20.0.0/16"])
SHADOW_172_20 = Route(IPv4Network("172.20.4.0/24"), (NextHop("ib0"),))


class Restless:
    """A kernel that changes right before each of the first lookups."""

    def __init__(self, inner: Kernel, *steps: Callable[[Kernel], object]) -> None:
        self._inner, self._steps, self.lookups = inner, list(steps), 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def lookup(self, addresses: Sequence[IPv4Address], **more: Any) -> tuple[Lookup, ...]:
        self.lookups += 1
        if self._steps:
            self._steps.pop(0)(self._inner)
        return self._inner.lookup(addresses, **more)


def look(kernel: object, scope: phases.CancelScope | None = None) -> OverlapReport:
    return check_overlap(Config(route_overlap=SHADOWED), kernel, scope or phases.CancelScope())  # type: ignore[arg-type]


def by_eth0(network: str) -> Route:
    return Route(IPv4Network(network), (NextHop("eth0", GATEWAY),))


def by_ib0(network: str) -> Route:
    return Route(IPv4Network(network), (NextHop("ib0"),))


def flap(kernel: Kernel) -> None:
    if kernel.add([SHADOW_172_20]):
        kernel.delete([SHADOW_172_20])


def test_the_production_reads_run_on_the_kernel_in_memory() -> None:
    """The check listens and then makes filtered reads, with the same calls as for ``NetlinkBackend``."""
    asked: list[tuple[str, int]] = []

    class Asked(FakeKernel):
        def routes_except(self, devs: Collection[str], **more: Any) -> tuple[Route, ...]:
            found = super().routes_except(devs, **more)
            asked.append(("routes_except", len(found)))
            return found

        @contextmanager
        def noticing_changes(self, inside: Sequence[Prefix], /) -> Iterator[Callable[[], bool]]:
            asked.append(("noticing_changes", 0))
            with super().noticing_changes(inside) as may_have_changed:
                yield may_have_changed

    kernel = Asked()
    build_node(kernel)
    plain = [by_eth0(f"20.0.{number}.0/24") for number in range(100)]
    assert kernel.add([SHADOW_172_20, *plain]) == ()
    asked.clear()
    assert [finding.devs for finding in look(kernel).findings] == [("ib0",)]
    listening, *reads = asked
    assert listening == ("noticing_changes", 0)
    assert {name for name, _ in reads} == {"routes_except"}
    assert all(0 < count < len(plain) for _, count in reads)


def test_a_route_added_between_dump_and_lookups_is_seen(node: Kernel) -> None:
    restless = Restless(node, lambda kernel: kernel.add([SHADOW_172_20]))
    assert [finding.ranges for finding in look(restless).findings] == [(SHADOW_172_20.destination,)]
    assert restless.lookups == 2


def test_a_default_route_that_moves_meanwhile_counts(node: Kernel) -> None:
    moved = default_route(NextHop("eth1", SECOND_GATEWAY))
    report = look(Restless(node, lambda kernel: [kernel.delete([default_route()]), kernel.add([moved])]))
    assert (report.verdict, report.default_devs) == ("ok", ("eth1",))


def test_a_default_route_removed_meanwhile_is_missing(node: Kernel) -> None:
    report = look(Restless(node, lambda kernel: kernel.delete([default_route()])))
    assert (report.verdict, report.reason_kind) == ("unknown", "no-default-route")


def test_routes_elsewhere_cause_no_second_look(node: Kernel) -> None:
    adding = [lambda kernel, n=n: kernel.add([by_ib0(f"172.21.{n}.0/24")]) for n in range(9)]
    restless = Restless(node, *adding)
    assert (look(restless).verdict, restless.lookups) == ("ok", 1)


def _come_and_go(kernel: Kernel) -> None:
    assert (kernel.add([SHADOW_172_20]), kernel.delete([SHADOW_172_20])) == ((), ())


CHANGES: dict[str, Callable[[Kernel], object]] = {
    "a link": lambda kernel: kernel.add_link("veth0", up=False),
    "an address": lambda kernel: kernel.add_address("ib0", "10.7.0.4/32"),
    "a rule": lambda kernel: kernel.add_rule(Rule(9, table=77)),
    "an entry of table local": lambda kernel: kernel.add(
        [Route(IPv4Network("10.8.0.4/32"), (NextHop("lo"),), RouteType.LOCAL, Table.LOCAL, scope=Scope.HOST)]
    ),
    "a shadow that was added and deleted": _come_and_go,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_relevant_change_causes_a_second_look(change: Callable[[Kernel], object]) -> None:
    kernel = FakeKernel()
    build_node(kernel)
    restless = Restless(kernel, change)
    assert (look(restless).verdict, restless.lookups) == ("ok", 2)


def test_tables_that_change_all_the_time_get_no_verdict(node: Kernel) -> None:
    report = look(Restless(node, *[flap] * 99))
    assert (report.verdict, report.reason_kind) == ("unknown", "check-failed")


def test_large_changing_tables_are_read_for_seconds_only() -> None:
    """Each read takes a second, and the check begins no read that would end after five seconds."""
    kernel, clock, looks = FakeKernel(), FakeClock(), []
    build_node(kernel)

    def flap_slowly(kernel: Kernel) -> None:
        flap(kernel)
        clock.advance(1)
        looks.append(clock.monotonic())

    report = look(Restless(kernel, *[flap_slowly] * 99), phases.CancelScope(clock=clock))
    assert (report.verdict, looks) == ("unknown", [1, 2, 3, 4, 5])


def test_a_cancel_ends_the_check() -> None:
    scope, kernel = phases.CancelScope(), FakeKernel()
    build_node(kernel)
    scope.cancel("enough")
    with pytest.raises(phases.Cancelled):
        look(kernel, scope)


# --- large hosts -----------------------------------------------------------------------------------------------------

PLAIN = [by_eth0(f"20.{high}.{low}.0/24") for high in range(8) for low in range(256)]


@pytest.mark.kernel
def test_only_relevant_routes_of_a_large_table_are_read() -> None:
    kernel = on_linux()
    build_node(kernel)
    kernel.add([*PLAIN, by_eth0("172.16.5.0/24"), by_ib0("20.1.0.0/25")])
    config = Config(route_overlap=RouteOverlap(["172.16.0.0/16", "20.0.0.0/8"]))
    found = read_host(config, kernel, phases.CancelScope())
    assert found is not None
    plain = [route for route in found.routes if route.devs == ("eth0",) and route.hops[0].gateway is not None]
    plain = [route for route in plain if route.destination.prefixlen]
    assert [str(route.destination) for route in plain] == ["172.16.5.0/24"]


@pytest.mark.kernel
def test_routes_to_gateways_are_read_from_a_large_table_too() -> None:
    """The rules suppress the default route, but not the subnet of its gateway."""
    kernel = on_linux()
    build_node(kernel)
    kernel.add(PLAIN)
    kernel.add_rule(Rule(10, suppress_prefix_length=23))
    kernel.add_rule(Rule(11, action=RuleAction.PROHIBIT))
    fix = checked(kernel, [IPv4Network("10.96.0.0/12")])[1].fix
    assert (len(fix.routes), fix.unfixable) == (2**12, ())


@pytest.mark.kernel
def test_connected_shadows_are_read_in_one_pass_and_others_in_two(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = on_linux()
    build_node(kernel)
    passes: list[object] = []
    read = NetlinkBackend.routes_except

    def counted(self: NetlinkBackend, *args: Any, **more: Any) -> tuple[Route, ...]:
        passes.append(more["inside"])
        return read(self, *args, **more)

    monkeypatch.setattr(NetlinkBackend, "routes_except", counted)
    asked = [*map(IPv4Network, ("172.16.0.0/16", "10.96.0.0/12", "10.1.0.0/24"))]
    assert checked(kernel, asked)[1].verdict == "overlap"
    assert len(passes) == 1
    kernel.add([by_ib0("10.96.7.0/24"), by_eth0("10.96.7.128/25")])
    (_, finding) = checked(kernel, asked)[1].findings
    assert [str(part) for part in finding.ranges] == ["10.96.7.0/25"]
    assert len(passes) == 3


def tables(count: int) -> tuple[Snapshot, RouteOverlap]:
    """Return a snapshot with policy rules. The table of each rule has an entry for a part of the CIDR."""
    recorded, overlap = HOSTS["rules"][1](count)
    parts = [rule.destination for rule in recorded.rules if rule.destination is not None]
    rules = [Rule(number, table=1000 + number) for number in range(1, count + 1)]
    routes = [Route(part, (NextHop("ib0"),), table=1000 + number) for number, part in enumerate(parts, 1)]
    own, *others = [rule for rule in recorded.rules if rule.destination is None]
    changed = attrs.evolve(recorded, rules=(own, *rules, *others), routes=(*recorded.routes, *routes))
    return changed, overlap


MAKERS = {**{name: make for name, (_, make) in HOSTS.items()}, "tables": tables}


def calls_of_a_check(name: str, size: int) -> int:
    recorded, overlap = MAKERS[name](size)
    backend = SnapshotBackend(recorded)
    profile = cProfile.Profile()
    report = profile.runcall(check_overlap, Config(route_overlap=overlap), backend, phases.CancelScope())
    assert len(report.notes) + len(report.fix.routes) + len(report.fix.unfixable) >= size
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.parametrize("name", MAKERS)
def test_a_check_of_twice_the_host_makes_twice_the_calls(name: str) -> None:
    """The number of calls is linear, so the check doesn't go through a long list once for each item."""
    calls_of_a_check(name, 1)  # this makes the calls that only the first check needs
    size = by_day(40, by_night=160)
    assert calls_of_a_check(name, 2 * size) < 2.04 * calls_of_a_check(name, size)


def test_the_cost_of_a_cidr_is_constant() -> None:
    """The check classifies each answer only once for all CIDRs that expect the same interfaces."""
    kernel, calls = FakeKernel(), []
    build_node(kernel)
    for count in (150, 600):
        asked = [IPv4Network((11 << 24 | number << 8, 24)) for number in range(count)]
        profile = cProfile.Profile()
        profile.runcall(checked, kernel, asked)
        calls.append(sum(entry.callcount for entry in profile.getstats()))
    assert calls[1] < 5 * calls[0]
