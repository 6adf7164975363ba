"""Tests that the check classifies answers, reports on running nodes, and copes with hosts that
change.
"""

from __future__ import annotations

import cProfile
import re
from collections import Counter
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from types import CodeType
from typing import Any

import attrs
import pytest
from asking import checked, recorded
from backends import Altered
from brute_force import Judge, disagreements, judged, sort_all
from fixing import install
from needs import NO_BROADCAST, needs_linux
from nightly import by_day
from node import GATEWAY, build_node, on_linux
from scenario import play

import phases
from benchmarks.snapshots import HOSTS
from hostrouting import Config, OverlapReport, RouteOverlap
from hostrouting.kernel.model import model_of
from hostrouting.kernel.port import Kernel, Write
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.model.family import Family, IpNetwork
from hostrouting.model.links import Hardware
from hostrouting.model.lookups import Lookup
from hostrouting.model.routes import NextHop, Route, Table
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.overlap._read import read_host
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.findings import NoteKind
from hostrouting.report import Finding, Note
from hostrouting.testing import FakeKernel
from phases.testing import FakeClock

# --- classification of answers --------------------------------------------------------------------

CIDR = "172.20.0.0/16"
CONTAINERS = ("veth1a2b", "cali0", "cilium_host", "azv123", "unbounded0", "kube-ipvs0")
SHADOWS = ("docker0", "br-1a2b", "podman1", "virbr0", "tailscale0", "wg0")
GIVEN = {"allowedDevs": ["ib[0-3]"], "containerDevs": ["pod*"]}
POD = "link add cali1\nroute add 172.20.0.9 dev cali1"
BLOCK, PEER = "172.20.0.0/24", "route add 172.20.7.0/24 via 10.1.0.7 dev eth0"
NO_DEFAULT = "route del default via 10.1.0.1 dev eth0 proto dhcp metric 100"
BY_VETH0 = (
    "link add veth0\naddr add 10.7.0.4/24 dev veth0\n"
    f"{NO_DEFAULT}\nroute add default via 10.7.0.1 dev veth0"
)
IN_BOTH = (
    f"{NO_DEFAULT}\nroute add default nexthop via 10.1.0.1 dev eth0 nexthop via 10.2.0.1 dev eth1"
)

FORESEEN = {"foreseen": ["172.20.5.0/24"]}
ANSWERS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("", {}, []),
    *(
        (f"link add {dev}\nroute add {CIDR} dev {dev}", {}, [f"CONTAINER {dev}"])
        for dev in CONTAINERS
    ),
    *((f"link add {dev}\nroute add {CIDR} dev {dev}", {}, [f"OVERLAP {dev}"]) for dev in SHADOWS),
    ("route add 172.20.5.0/24 via 10.1.0.1 dev eth0 mtu 1400", {}, []),
    ("route add 172.20.5.0/24 via 10.1.0.1 dev eth0 mtu 9000", {}, ["MTU eth0"]),
    (
        "\n".join(
            f"route add 172.20.{n}.0/24 via 10.1.0.1 dev eth0 mtu 9000" for n in range(5, 90)
        ),
        {},
        ["MTU eth0"],
    ),
    # Patterns in the config replace the defaults.
    (f"route add {CIDR} dev ib0", GIVEN, ["ALLOWED ib0"]),
    (
        f"route add {CIDR} dev ib0",
        {"expectedCidrs": [{"cidr": CIDR, "devs": ["eth0"]}], "allowedDevs": ["ib0"]},
        ["OVERLAP ib0"],
    ),
    (
        f"link add veth1\nroute add {CIDR} nexthop dev veth1 nexthop dev ib0",
        {"allowedDevs": ["ib0"]},
        ["ALLOWED ib0,veth1"],
    ),
    (f"link add pod1\nroute add {CIDR} dev pod1", GIVEN, ["CONTAINER pod1"]),
    (f"link add veth1\nroute add {CIDR} dev veth1", GIVEN, ["OVERLAP veth1"]),
    # The default route's interface never counts as a container interface.
    (BY_VETH0, {}, ["CONTESTED veth0"]),
    (f"{BY_VETH0}\nroute add {CIDR} dev ib0", {}, ["OVERLAP ib0", "CONTESTED veth0"]),
    # The live hops must be a subset of the default route's hops.
    (f"{IN_BOTH}\nroute add {CIDR} dev eth1", {}, []),
    (f"{IN_BOTH}\nroute add {CIDR} nexthop dev eth1 nexthop dev ib0", {}, ["OVERLAP eth1,ib0"]),
    (
        f"link add veth1\nroute add {CIDR} nexthop dev veth1 nexthop dev ib0",
        {},
        ["OVERLAP ib0,veth1"],
    ),
    (NO_DEFAULT, {"uplinks": ["eth0"]}, ["NO-ROUTE "]),
    # Only a blackhole longer than the CIDR is a CNI's own block, and only if it holds a route to a
    # container in the same table, or an address of one, or if there are routes of its protocol to
    # other nodes.
    (f"{POD}\nroute add blackhole {BLOCK}", {}, ["CNI-DISCARD ", "CONTAINER cali1"]),
    (f"{POD}\nroute add unreachable {BLOCK}", {}, ["BLACKHOLE ", "CONTAINER cali1"]),
    (f"{POD}\nroute add blackhole {CIDR}", {}, ["BLACKHOLE ", "CONTAINER cali1"]),
    (f"{POD.replace('172.20', '10.9')}\nroute add blackhole {BLOCK}", {}, ["BLACKHOLE "]),
    (f"{POD} table 100\nroute add blackhole {BLOCK}", {}, ["BLACKHOLE "]),
    (f"route add blackhole {BLOCK} proto bird", {}, ["BLACKHOLE "]),
    (f"{PEER} proto bird\nroute add blackhole {BLOCK} proto bird", {}, ["CNI-DISCARD "]),
    (f"{PEER} proto 80\nroute add blackhole {BLOCK} proto 80", {}, ["CNI-DISCARD "]),
    (
        (
            f"{PEER} proto 80\nroute add blackhole {BLOCK} proto 80\n"
            "route add blackhole 172.20.9.0/26 proto 80"
        ),
        {},
        ["CNI-DISCARD ", "CNI-DISCARD "],
    ),
    (f"{PEER} proto 80\nroute add blackhole {BLOCK} proto bird", {}, ["BLACKHOLE "]),
    (f"{PEER} proto static\nroute add blackhole {BLOCK} proto static", {}, ["BLACKHOLE "]),
    (
        f"link add tunl0\naddr add 172.20.0.0/32 dev tunl0\nroute add blackhole {BLOCK}",
        {},
        ["LOCAL tunl0", "CNI-DISCARD "],
    ),
    # Of the clouds' own networks, only EKS' addresses for pods of IPv6 clusters are exempt.
    *(
        (
            f"link add {dev}\nroute add {to} dev {dev}",
            {"expectedCidrs": [cidr]},
            [f"{'CONTAINER' if is_pod else 'OVERLAP'} {dev}"],
        )
        for dev, to, cidr, is_pod in (
            ("veth1", "169.254.172.5", "169.254.172.0/24", True),
            ("eni1a2b", "169.254.175.255", "169.254.0.0/16", True),
            ("veth1", "169.254.172.0/22", "169.254.0.0/16", False),
            ("veth1", "169.254.176.1", "169.254.0.0/16", False),
            ("veth1", "169.254.169.254", "169.254.0.0/16", False),
            ("veth1", "169.254.169.253", "169.254.0.0/16", False),
            ("veth1", "169.254.170.2", "169.254.0.0/16", False),
            ("veth1", "168.63.129.16", "168.63.0.0/16", False),
            ("docker0", "169.254.172.5", "169.254.0.0/16", False),
        )
    ),
    (
        "link add veth1\nroute add 168.63.0.0/16 dev veth1",
        {"expectedCidrs": ["168.63.0.0/16"]},
        ["OVERLAP veth1", "CONTAINER veth1"],
    ),
    # Networks of pods in an uplink's subnet have a note of their own.
    (
        (
            "addr add 10.64.0.4/11 dev eth0\nlink add cni0\n"
            "route add 10.65.1.0/24 dev cni0\nroute add 10.244.1.0/24 dev cni0"
        ),
        {"expectedCidrs": ["10.0.0.0/8"], "uplinks": ["eth*"]},
        ["LOCAL eth0,eth1", "BROADCAST eth0,eth1", "CONTAINER cni0", "CONTAINER cni0"],
    ),
    (
        (
            "addr add 10.64.0.4/11 dev eth0\nlink add cni0\n"
            "route add 10.65.1.9 dev cni0\nroute add 10.244.1.0/24 dev cni0"
        ),
        {"expectedCidrs": ["10.0.0.0/8"], "uplinks": ["eth*"]},
        ["LOCAL eth0,eth1", "BROADCAST eth0,eth1", "CONTAINER cni0"],
    ),
    ("link add cni0\nroute add 172.0.0.0/8 dev cni0", {}, ["CONTAINER cni0"]),
    ("link add cni0\nroute add 172.0.0.0/7 dev cni0", {}, ["OVERLAP cni0"]),
    ("route add broadcast 172.20.5.0/24 dev ib0", {}, ["OVERLAP ib0"]),
    # A foreseen network would shadow routes with its prefix or a shorter one, if main decides.
    ("", FORESEEN, ["FORESEEN "]),
    ("route add 172.20.5.0/24 via 10.1.0.1 dev eth0", FORESEEN, ["FORESEEN "]),
    (
        (
            "route add 172.20.5.0/25 via 10.1.0.1 dev eth0\n"
            "route add 172.20.5.128/25 via 10.1.0.1 dev eth0"
        ),
        FORESEEN,
        [],
    ),
    (
        (
            "route add default via 10.1.0.1 dev eth0 table 100\n"
            "rule add pref 100 to 172.20.0.0/16 lookup 100"
        ),
        FORESEEN,
        [],
    ),
    # A default route that discards isn't a CNI's block.
    (
        "route add blackhole default proto bird table 100\nrule add pref 100 lookup 100",
        {},
        ["BLACKHOLE "],
    ),
]


def answered(scenario: str, **more: Any) -> OverlapReport:
    """Check a node in memory that expects one CIDR."""
    kernel = build_node(FakeKernel())
    play(kernel, scenario)
    uplinks = {"uplinks": more.pop("uplinks")} if "uplinks" in more else {}
    section = {"routeOverlap": {"expectedCidrs": [CIDR], **more}, "waitSeconds": 0, **uplinks}
    return check_overlap(
        Config.from_mapping({"hostRouting": section}), kernel, phases.CancelScope()
    )


@pytest.mark.parametrize(("scenario", "more", "told"), ANSWERS)
def test_an_answer_is_classified(scenario: str, more: dict[str, Any], told: list[str]) -> None:
    report = answered(scenario, **more)
    items: list[Finding | Note] = [*report.findings, *report.notes]
    assert [f"{each.kind} {','.join(each.devs)}" for each in items] == told


@pytest.mark.parametrize(
    ("following", "behind"),
    [("ib1 metric 9", ("ib1",)), ("ib0 metric 9", ()), ("ib1 tos 0x10 metric 9", ())],
)
def test_a_failure_names_the_interface_behind_its_route(
    following: str, behind: tuple[str, ...]
) -> None:
    report = answered(f"link add ib1\nroute add {CIDR} dev ib0\nroute add {CIDR} dev {following}")
    (found,) = report.findings
    assert (found.devs, found.behind) == (("ib0",), behind)


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [
        *((kind, "overlap") for kind in ("bridge", "bond", "team", "openvswitch")),
        ("vrf", "ok"),
        (None, "unknown"),
    ],
)
@pytest.mark.parametrize("is_recorded", [False, True])
def test_an_uplink_is_no_port(kind: str | None, verdict: str, is_recorded: bool) -> None:
    kernel = FakeKernel()
    kernel.add_link("above", kind=kind)
    kernel.add_link("eth0", master="above")
    play(kernel, "addr add 10.1.0.4/24 dev eth0\nroute add default via 10.1.0.1 dev eth0")
    backend = model_of(recorded(kernel).known(Family.IPV4)) if is_recorded else kernel
    asked = Config(route_overlap={"expectedCidrs": [CIDR]}, wait_seconds=0)
    report = check_overlap(asked, backend, phases.CancelScope())
    assert report.verdict == verdict
    if verdict == "overlap":
        assert [(each.kind, each.devs) for each in report.findings] == [("PORT", ("eth0",))]
        (unfixable,) = report.fix.unfixable
        assert unfixable.reason == "eth0 is a port of above: move its address and routes to above"
        assert report.fix.routes == ()


def test_one_of_several_uplinks_is_no_port() -> None:
    kernel = FakeKernel()
    kernel.add_link("br0", kind="bridge")
    kernel.add_link("eth1", master="br0")
    play(
        kernel,
        """
            link add eth0
            addr add 10.1.0.4/24 dev eth0
            addr add 172.18.0.5/16 dev eth1
            route add default via 10.1.0.1 dev eth0
        """,
    )
    asked = Config(
        route_overlap={"expectedCidrs": ["172.16.0.0/12"]},
        uplinks=["eth0", "eth1"],
        wait_seconds=0,
    )
    (finding,) = check_overlap(asked, kernel, phases.CancelScope()).findings
    assert finding.kind == "PORT"
    assert all(str(part).startswith("172.18.") for part in finding.ranges)


def test_an_uplink_may_have_ports() -> None:
    """On Azure, the virtual function is a port of the interface with the address."""
    kernel = build_node(FakeKernel())
    kernel.add_link("vf0", kind=None, master="eth0")
    config = {"expectedCidrs": [CIDR]}
    report = check_overlap(
        Config(route_overlap=config, uplinks=["eth0", "vf*"], wait_seconds=0),
        kernel,
        phases.CancelScope(),
    )
    assert (report.verdict, report.default_devs) == ("ok", ("eth0", "vf0"))


_WITH_VRFS = "(this host then also receives what its VRFs send to such addresses)"
_LOCAL_FIRST = "ip rule add preference {} lookup local"


@pytest.mark.parametrize(
    ("rules", "has_vrf", "advised"),
    [
        ("rule add pref 2000 from 10.2.0.4 lookup 100", True, _LOCAL_FIRST.format(1999)),
        (
            (
                "rule add pref 2000 from 10.2.0.4 lookup 100\n"
                "rule add pref 1500 from 10.2.0.0/24 lookup 100"
            ),
            True,
            _LOCAL_FIRST.format(1499),
        ),
        (
            "rule add pref 900 from 10.2.0.4 lookup 100",
            True,
            f"{_LOCAL_FIRST.format(0)} {_WITH_VRFS}",
        ),
        ("rule add pref 2000 from 10.2.0.4 lookup 100", False, _LOCAL_FIRST.format(0)),
    ],
)
def test_table_local_stays_behind_the_rule_for_vrfs(
    rules: str, has_vrf: bool, advised: str
) -> None:
    kernel = FakeKernel()
    if has_vrf:
        kernel.add_link("vrf1", kind="vrf")
    play(
        kernel,
        f"""
        link add eth0
        link add eth1
        addr add 10.1.0.4/24 dev eth0
        addr add 10.2.0.4/24 dev eth1
        route add default via 10.1.0.1 dev eth0
        route add default via 10.2.0.1 dev eth1 table 100
        rule add pref 32765 lookup local
        {rules}
        rule del pref 0 proto kernel lookup local
        """,
    )
    kernel.add_rule(Rule(1000, is_l3mdev=True))
    config = Config(
        route_overlap={"expectedCidrs": [CIDR, {"cidr": "10.2.0.0/24", "devs": ["eth1"]}]},
        wait_seconds=0,
    )
    report = check_overlap(config, kernel, phases.CancelScope())
    assert report.reason_kind == "no-local-table"
    assert report.reason_detail.endswith(f"; have that table asked first: {advised}")
    (preference,) = re.findall(r"\d+", advised)
    kernel.add_rule(Rule(int(preference), table=Table.LOCAL))
    assert check_overlap(config, kernel, phases.CancelScope()).verdict == "ok"


# Packets from there can't leave the host.
FROM_LO = "via 10.1.0.1 dev eth0 src 127.0.0.1 proto bird"


@pytest.mark.parametrize(
    ("scenario", "cause"),
    [
        (f"route add {CIDR} dev ib0", f"{CIDR} dev ib0 proto hostrouting scope link"),
        (f"route add {CIDR} {FROM_LO}", f"{CIDR} via 10.1.0.1 dev eth0 proto bird src 127.0.0.1"),
        (f"rule add pref 100 to {CIDR} blackhole", "a policy rule"),
    ],
)
def test_a_failures_message_ends_with_its_cause(scenario: str, cause: str) -> None:
    """The failures alone are in test_bars.py, as they are printed."""
    (finding,) = answered(scenario).findings
    assert finding.message == f"{finding.failure}; by {cause}"


@pytest.mark.parametrize(("length", "is_named"), [(12, True), (16, False), (24, True), (32, True)])
def test_a_local_address_in_the_pods_range_conflicts(length: int, is_named: bool) -> None:
    """There is no conflict if the CIDR is the node's subnet or the config names interfaces."""
    scenario = f"addr add 172.20.0.4/{length} dev eth0"
    for cidr, is_said in ((CIDR, is_named), ({"cidr": CIDR, "devs": ["eth0"]}, False)):
        note = next(
            each
            for each in answered(scenario, expectedCidrs=[cidr]).notes
            if each.kind is NoteKind.LOCAL
        )
        assert ("a pod or Service that has" in note.message, note.devs) == (is_said, ("eth0",))


@pytest.mark.parametrize(
    ("rule", "sources"),
    [
        ("", []),
        ("rule add pref 10 to 172.20.0.0/24 lookup main", []),
        ("rule add pref 10 iif eth1 lookup main", []),
        ("rule add pref 10 from 10.7.0.0/16 lookup main", ["10.1.0.4"]),
        ("rule add pref 10 from 10.1.0.9/32 lookup main", ["10.1.0.4", "10.1.0.9"]),
    ],
)
def test_only_a_rule_that_tells_replies_apart_costs_lookups(rule: str, sources: list[str]) -> None:
    asked: set[str] = set()

    class Counting(FakeKernel):
        def lookup(
            self, addresses: Sequence[Any], *, source: Any = None, is_tcp: bool = False
        ) -> tuple[Lookup, ...]:
            asked.update([str(source)] if source and addresses else [])
            return super().lookup(addresses, source=source, is_tcp=is_tcp)

    kernel = build_node(Counting())
    play(kernel, f"addr add 10.1.0.9/24 dev eth0\n{rule}")
    config = Config.from_mapping(
        {"hostRouting": {"routeOverlap": {"expectedCidrs": [CIDR]}, "waitSeconds": 0}}
    )
    assert check_overlap(config, kernel, phases.CancelScope()).verdict == "ok"
    assert sorted(asked) == sources


def test_an_address_that_a_dns_cache_answers_at_is_no_loss() -> None:
    scenario = "link add nodelocaldns\naddr add {} dev nodelocaldns"
    for address, is_shared in (("172.20.0.10/32", False), ("10.1.0.7/32", True)):
        report = answered(scenario.format(address), expectedCidrs=[address])
        (note,) = report.notes
        assert (note.kind, note.devs) == (NoteKind.LOCAL, ("nodelocaldns",))
        assert "it is answered on this host (containerDevs)" in note.message
        assert ("so another node may have it" in note.message) == is_shared


@pytest.mark.parametrize(
    ("scenario", "devs"),
    [
        (f"route add {CIDR} via 10.1.0.1 dev eth0 src 172.16.0.10", ["ib0"]),
        (f"route add {CIDR} via 10.1.0.1 dev eth0 src 10.1.0.4", []),
        (f"addr add 10.9.9.9/32 dev lo\nroute add {CIDR} via 10.1.0.1 src 10.9.9.9", []),
        # What cloud-init and NetworkManager write: connections to a pod of this host leave through
        # the uplink.
        (
            (
                f"{POD}\nroute add default via 10.1.0.1 dev eth0 table 7\n"
                "rule add pref 10 from 10.1.0.4 lookup 7"
            ),
            ["eth0"],
        ),
    ],
)
def test_a_source_of_another_network_is_noted(scenario: str, devs: list[str]) -> None:
    report = answered(scenario)
    assert report.verdict == "ok"
    assert [
        dev for note in report.notes if note.kind is NoteKind.SOURCE for dev in note.devs
    ] == devs


def test_an_uplink_without_carrier_is_noted() -> None:
    assert [
        note.devs
        for note in answered("link set eth0 carrier off").notes
        if note.kind is NoteKind.LINK
    ] == [("eth0",)]


def test_an_address_that_another_interface_has_hides_one_in_the_cluster() -> None:
    note = next(
        each
        for each in answered("addr add 172.20.0.4/32 dev ib0").notes
        if each.kind is NoteKind.LOCAL
    )
    assert "so nothing in the cluster that has such an address can be reached" in note.message


@pytest.mark.parametrize(
    ("own", "taken", "is_named"),
    [
        ("eth0 172.20.0.4", "172.20.7.0/24", True),
        ("eth0 172.20.0.4", "172.20.7.9/32", False),  # a pod on this node
        ("eth0 10.1.9.4", "172.20.7.0/24", False),
        ("cbr0 172.20.7.1", "172.20.7.0/24", False),
    ],
)
def test_a_container_bridge_in_the_nodes_range_conflicts(
    own: str, taken: str, is_named: bool
) -> None:
    dev, address = own.split()
    notes = answered(
        f"link add cbr0\naddr add {address}/32 dev {dev}\nroute add {taken} dev cbr0"
    ).notes
    (found,) = (each for each in notes if each.kind is NoteKind.CONTAINER)
    assert found.devs == ("cbr0",)
    assert ("name the CIDR's devs in expectedCidrs" in found.message) == is_named


def test_an_infiniband_interface_without_an_address_is_pending() -> None:
    kernel = build_node(FakeKernel())
    kernel.add_link("ib1", hardware=Hardware.INFINIBAND)
    (note,) = checked(kernel, [IPv4Network(CIDR)])[1].notes
    assert (note.kind, note.devs, note.cidr) == (NoteKind.PENDING, ("ib1",), None)


OTHER_PACKETS = (
    "fwmark 1",
    "uidrange 1-5",
    "iif eth1",
    "oif eth1",
    "tos 8",
    "ipproto 1",
    "dport 443",
)
COVERED = (f"to {CIDR}", "iif lo suppress_prefixlength 0", "from 10.0.0.0/8", "ipproto 6")


@pytest.mark.parametrize("selector", [*OTHER_PACKETS, *COVERED])
def test_rules_for_other_packets_are_one_note(selector: str) -> None:
    report = answered(
        f"rule add pref 100 {selector} lookup 100\nrule add pref 101 {selector} lookup 101"
    )
    assert report.findings == ()
    assert [(each.kind, "100, 101" in each.message) for each in report.notes] == (
        [] if selector in COVERED else [(NoteKind.RULE, True)]
    )


def test_without_a_default_route_nothing_is_fixable() -> None:
    (left,) = answered(f"{NO_DEFAULT}\nlink set eth0 down", uplinks=["eth0"]).fix.unfixable
    assert left.reason.endswith(
        ", and eth0 is down: add a default route, or an entry that names gateway and dev"
    )


VIA_ROUTER = "route add default via 10.1.0.1 dev eth0 table 10"
PEERS = "route add 10.1.0.64/26 via 10.1.0.7 dev eth0 proto bird"


@pytest.mark.parametrize(
    ("scenario", "cidr", "led"),
    [
        (f"{VIA_ROUTER}\nrule add pref 10 to 10.1.0.0/24 lookup 10", "10.1.0.0/24", "10.1.0.0/24"),
        # Only what is sent from the host's address is led there, such as replies.
        (f"{VIA_ROUTER}\nrule add pref 10 from 10.1.0.4 lookup 10", "10.0.0.0/8", "10.1.0.0/24"),
        ("route add 10.1.0.128/25 via 10.1.0.1 dev eth0", "10.1.0.0/16", "10.1.0.128/25"),
        ("route add 10.1.0.128/25 via 10.1.0.1 dev eth0", "10.0.0.0/8", "10.1.0.128/25"),
        # The table has the subnet's route, another node is the gateway, and there is no subnet.
        (
            (
                f"{VIA_ROUTER}\nroute add 10.1.0.0/24 dev eth0 table 10 scope link\n"
                "rule add pref 10 from 10.1.0.4 lookup 10"
            ),
            "10.0.0.0/8",
            None,
        ),
        (PEERS, "10.0.0.0/8", None),
        (
            (
                "addr del 10.1.0.4/24 dev eth0\naddr add 10.1.0.4/32 dev eth0\n"
                "route add 10.1.0.1 dev eth0 scope link\n"
                "route add default via 10.1.0.1 dev eth0\n"
                "route add 10.1.0.0/24 via 10.1.0.1 dev eth0"
            ),
            "10.0.0.0/8",
            None,
        ),
    ],
)
def test_neighbours_that_are_sent_to_by_the_router_are_noted(
    scenario: str, cidr: str, led: str | None
) -> None:
    report = answered(scenario, expectedCidrs=[cidr])
    assert report.verdict in ("ok", "overlap")
    assert [finding for finding in report.findings if finding.devs == ("eth0",)] == []
    notes = [note for note in report.notes if note.kind is NoteKind.ON_LINK]
    assert [" ".join(map(str, note.ranges)) for note in notes] == ([led] if led else [])
    for note in notes:
        assert note.message.startswith(f"{led}, in the subnet of eth0, goes to the router by ")


UPPER = "10.1.0.128/25 via 10.1.0.1 dev eth0"


@pytest.mark.parametrize(
    ("scenario", "hint", "steps"),
    [
        (
            f"route add {UPPER} proto static",
            "remove that route where it is configured",
            f"route del {UPPER} proto static",
        ),
        (
            f"{VIA_ROUTER}\nrule add pref 10 from 10.1.0.4 lookup 10",
            "add the route 10.1.0.0/24 dev eth0 to table 10, too",
            "route add 10.1.0.0/24 dev eth0 table 10",
        ),
        (
            f"route add {UPPER}",
            'set "gateway": "onlink" in its entry of hostRouting.staticRoutes.routes, then: ',
            f"route del {UPPER}\nroute add 10.1.0.128/25 dev eth0 scope link",
        ),
    ],
    ids=["main", "table", "ours"],
)
def test_neighbours_are_reached_after_what_the_note_says(
    scenario: str, hint: str, steps: str
) -> None:
    before, after = (
        answered(each, expectedCidrs=["10.0.0.0/8"]) for each in (scenario, f"{scenario}\n{steps}")
    )
    (note,) = (each for each in before.notes if each.kind is NoteKind.ON_LINK)
    assert f"; if they are on the link, {hint}" in note.message
    assert after.findings == before.findings
    assert NoteKind.ON_LINK not in [each.kind for each in after.notes]


@pytest.mark.parametrize("discard", ["unreachable", "blackhole", "throw"])
def test_a_bridges_network_is_not_led_to_the_router(discard: str) -> None:
    scenario = "link add docker0\naddr add 172.20.7.1/24 dev docker0 noprefixroute"
    report = answered(f"{scenario}\nroute add {discard} {CIDR}")
    (left,) = report.fix.unfixable
    network = IPv4Network("172.20.7.0/24")
    assert all(part.subnet_of(network) for part in left.ranges if isinstance(part, IPv4Network))
    assert "it lies in the network of docker0, a bridge of this host" in left.reason
    assert report.fix.routes
    assert not any(entry.destination.overlaps(network) for entry in report.fix.routes)


@pytest.mark.parametrize(
    ("dev", "uplinks", "told"),
    [
        ("cni0", {}, ["GATEWAY eth0", "GATEWAY eth0", "LOCAL eth0", "BROADCAST eth0"]),
        ("eth0", {}, ["LOCAL eth0", "BROADCAST eth0"]),
        # The address is that of another NIC's router.
        ("cni0", {"uplinks": ["eth1"]}, ["OVERLAP eth0", "OVERLAP eth0"]),
    ],
)
def test_a_routers_address_on_another_interface_fails_in_the_lan_too(
    dev: str, uplinks: dict[str, Any], told: list[str]
) -> None:
    scenario = f"link add cni0\naddr add 10.1.0.1/32 dev {dev}"
    report = answered(scenario, expectedCidrs=[CIDR, "10.1.0.0/24"], **uplinks)
    items: list[Finding | Note] = [*report.findings, *report.notes]
    assert [f"{each.kind} {','.join(each.devs)}" for each in items][: len(told)] == told
    if told[0] == "GATEWAY eth0":
        cause = "default via 10.1.0.1 dev eth0 proto dhcp metric 100"
        of_lan = "GATEWAY: expected CIDR 10.1.0.0/24 (probe 10.1.0.1) leaves for 10.1.0.1, which"
        assert report.findings[1].message == (
            f"{of_lan} is also an address of this host (cni0); expected via eth0;"
            f" shadowed: 10.1.0.1/32; by {cause}"
        )
        reasons = {each.reason for each in report.fix.unfixable}
        assert reasons == {f"10.1.0.1 is the gateway of {cause}: remove that address from cni0"}


@pytest.mark.parametrize(
    ("scenario", "said"),
    [
        (
            BY_VETH0,
            (
                "default via 10.7.0.1 dev veth0 proto hostrouting may be a container's default"
                " route, and missing is the default route on eth0 (table main has no unicast"
                " 0.0.0.0/0 on eth0): add a default route, or an entry that names gateway and dev,"
                " or, if"
            ),
        ),
        (
            BY_VETH0.replace(NO_DEFAULT, ""),
            (
                "default via 10.7.0.1 dev veth0 proto hostrouting may be a container's default"
                " route: remove it, after which packets no longer go to other addresses through"
                " veth0, but through eth0, and packets from the addresses of veth0 no longer go to"
                " 172.20.0.0/16 through veth0, but through eth0, or, if"
            ),
        ),
    ],
)
def test_a_containers_default_route_is_no_network_to_move(scenario: str, said: str) -> None:
    (left,) = answered(scenario, uplinks=["eth0"]).fix.unfixable
    assert left.reason == f'{said} it is meant to carry this, set "allowedDevs": ["veth0"]'


BESIDE_MAIN = "route add default via 10.1.0.1 dev eth0 table {} proto static"


@pytest.mark.parametrize(
    ("scenario", "is_awaited", "said"),
    [
        ("", True, 'if this host needs none, set "uplinks": ["eth0"]'),
        (BESIDE_MAIN.format("default"), False, 'to compare with that, set "uplinks": ["eth0"]'),
        (
            f"rule add pref 40 lookup 50\n{BESIDE_MAIN.format(50)}",
            False,
            'to compare with that, set "uplinks": ["eth0"]',
        ),
        # A VPN's, whose table isn't for its own packets, and one that is for some packets only.
        (
            f"{BESIDE_MAIN.format(50)}\nrule add pref 40 not fwmark 7 lookup 50",
            True,
            "no policy rule",
        ),
        (
            f"{BESIDE_MAIN.format(50)}\nrule add pref 40 from 10.1.0.4 lookup 50",
            True,
            "no policy rule",
        ),
        (
            (
                "link add wg0\n"
                "route add default dev wg0 table 50 scope link\nrule add pref 40 lookup 50"
            ),
            True,
            "no policy rule",
        ),
    ],
)
def test_a_default_route_beside_main_is_named_and_not_waited_for(
    scenario: str, is_awaited: bool, said: str
) -> None:
    kernel = build_node(FakeKernel())
    play(kernel, f"{NO_DEFAULT}\n{scenario}")
    clock = FakeClock()

    def check_at_boot(**more: Any) -> OverlapReport:
        overlap = {"expectedCidrs": ["10.1.0.0/16"]}
        section = {"routeOverlap": overlap, "waitSeconds": 30, **more}
        config = Config.from_mapping({"hostRouting": section})
        return check_overlap(
            config, kernel, phases.CancelScope(clock=clock), started=clock.monotonic()
        )

    report = check_at_boot()
    assert (clock.monotonic() >= 30, report.reason_kind) == (is_awaited, "no-default-route")
    assert said in report.reason_detail
    if not is_awaited:
        assert check_at_boot(uplinks=["eth0"]).findings == ()
        assert clock.monotonic() < 30


def test_infiniband_and_ports_are_never_offered_as_uplinks() -> None:
    kernel = build_node(FakeKernel())
    play(kernel, NO_DEFAULT)
    kernel.add_link("br0", kind="bridge")
    kernel.add_link("eth5", master="br0")
    kernel.add_address("eth5", "172.16.9.9/24")
    section = {"routeOverlap": {"expectedCidrs": ["172.16.0.0/16"]}}
    config = Config.from_mapping({"hostRouting": section})
    detail = check_overlap(config, kernel, phases.CancelScope()).reason_detail
    ending = 'if this host needs none, set "uplinks": ["NAME"], then: hostrouting apply'
    assert detail.endswith(ending)


IB0_WINS = f"{NO_DEFAULT}\nroute add default via 172.16.0.1 dev ib0"
VPN_WINS = "link add wg0\nroute add default dev wg0 scope link"


@pytest.mark.parametrize("scenario", ["", VPN_WINS])
def test_infiniband_alone_as_uplinks_is_a_note(scenario: str) -> None:
    report = answered(scenario, uplinks=["ib*"], expectedCidrs=["172.16.0.0/16"])
    (note,) = (each for each in report.notes if each.kind is NoteKind.CONTESTED)
    assert note.devs == ("eth0",)
    assert note.message.startswith("hostRouting.uplinks names only InfiniBand, ib0, but another")
    assert 'set "uplinks": ["eth0"], then: hostrouting apply' in note.message


@pytest.mark.parametrize(
    ("uplinks", "named"),
    [(["*"], '("*")'), (["ib*", "eth0"], '("ib*", "eth0")'), (["eth*"], None), (["eth0"], None)],
)
@pytest.mark.parametrize(("scenario", "is_by_nic"), [("", True), (IB0_WINS, False)])
def test_infiniband_besides_nics_as_uplinks_is_a_note(
    uplinks: list[str], named: str | None, scenario: str, is_by_nic: bool
) -> None:
    report = answered(scenario, uplinks=uplinks, expectedCidrs=["172.16.0.0/16", "fd00:10::/48"])
    told = [each for each in report.notes if each.devs == ("ib0",) and "include" in each.message]
    assert [each.kind for each in told] == [NoteKind.CONTESTED] * (named is not None and is_by_nic)
    for note in told:
        assert note.message.startswith(f"the uplinks {named} include ib0: packets that")


@pytest.mark.parametrize(
    ("scenario", "more", "devs"),
    [
        (IB0_WINS, {}, [("ib0",)]),
        (IB0_WINS, {"expectedCidrs": ["172.16.0.0/16", "fd00:10::/48"]}, [("ib0",)]),
        # The config says what is meant.
        (IB0_WINS, {"uplinks": ["ib0"]}, []),
        (IB0_WINS, {"expectedCidrs": [{"cidr": CIDR, "devs": ["ib0"]}]}, []),
        (f"{IB0_WINS}\nroute add default via 10.1.0.1 dev eth0 metric 500", {}, [("eth0", "ib0")]),
        ("", {}, []),
    ],
)
def test_infiniband_as_the_only_default_is_a_note(
    scenario: str, more: dict[str, Any], devs: list[tuple[str, ...]]
) -> None:
    report = answered(scenario, **more)
    told = [each for each in report.notes if each.kind is NoteKind.CONTESTED]
    assert [each.devs for each in told] == devs
    assert report.verdict != "overlap", "it is a note, and holds no node"
    for note in told:
        is_by_infiniband = note.message.startswith("only InfiniBand has a default route, so ")
        assert is_by_infiniband == (len(note.devs) == 1)
        if is_by_infiniband:
            assert f'set hostRouting\'s "uplinks": ["{note.devs[0]}"]' in note.message


INHERITS = "route add default via 10.2.0.1 dev eth1 metric 900"


@pytest.mark.parametrize(
    ("scenario", "more", "is_told"),
    [
        ("", {}, True),
        (VPN_WINS, {}, True),
        # A second NIC that is meant: its routes are installed, or can inherit.
        (f"route add {CIDR} via 10.2.0.1 dev eth1", {}, False),
        (INHERITS, {}, False),
        ("", {"allowedDevs": ["eth0"]}, False),
        ("", {"expectedCidrs": [{"cidr": CIDR, "devs": ["eth1"]}, "10.2.0.0/24"]}, False),
        # The uplink is down, something else takes the packets, or only a VPN has a default route.
        ("link set eth1 down", {}, False),
        (f"route add {CIDR} dev ib0", {}, False),
        (f"{NO_DEFAULT}\n{VPN_WINS}", {}, False),
    ],
)
def test_an_uplink_without_default_route_is_a_note(
    scenario: str, more: dict[str, Any], is_told: bool
) -> None:
    report = answered(scenario, uplinks=["eth1"], **more)
    told = [each.message for each in report.notes if each.kind is NoteKind.CONTESTED]
    assert len(told) == is_told
    if told:
        assert told[0].startswith("hostRouting.uplinks names only eth1, but another interface has")
        assert 'only if the cluster is reached through eth0, set "uplinks": ["eth0"]' in told[0]


def test_the_own_subnet_without_its_route_needs_no_default_route() -> None:
    scenario = (
        f"{NO_DEFAULT}\naddr del 10.1.0.4/24 dev eth0\naddr add 10.1.0.4/24 dev eth0 noprefixroute"
    )
    fix = answered(scenario, uplinks=["eth0"], expectedCidrs=["10.1.0.0/24", CIDR]).fix
    assert [str(entry) for entry in fix.routes] == ["10.1.0.0/24 onlink dev eth0"]
    (left,) = fix.unfixable
    assert "missing is the default route" in left.reason


def test_the_same_cidr_twice_is_one_finding() -> None:
    assert len(answered(f"route add {CIDR} dev ib0", expectedCidrs=[CIDR, CIDR]).findings) == 1


# --- running nodes: CNIs, Docker, VPNs and local addresses ----------------------------------------


@attrs.frozen
class Node:
    """A node with eth0 (10.1.0.4/24 and the default route), eth1 (10.2.0.4/24) and ib0
    (172.16.0.10/16).

    Args:
        has: scenario commands.
        cidrs: the expected CIDRs.
        told: the expected lines, one per failure, note, fix entry and unfixable part.
    """

    has: str
    cidrs: tuple[str, ...]
    told: tuple[str, ...]


WIREGUARD = """
    link add wg0
    route add 10.244.0.0/16 dev wg0 table 51820 proto boot scope link
    rule add pref 32765 not fwmark 0xca6c lookup 51820
"""
TAILSCALE = """
    link add tailscale0
    addr add 100.101.102.103/32 dev tailscale0
    route add 10.96.0.0/20 dev tailscale0 table 52 proto boot scope link
    route add throw 127.0.0.0/8 table 52 proto boot
    rule add pref 5210 fwmark 0x80000 lookup main
    rule add pref 5230 fwmark 0x80000 lookup default
    rule add pref 5250 fwmark 0x80000 unreachable
    rule add pref 5270 lookup 52
"""
NODES = {
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
        (
            "CNI-DISCARD 63 of 10.244.1.0-10.244.1.63",
            "LOCAL tunl0 10.244.1.1",
            "CONTAINER tunl0 10.244.2.0/26",
        ),
    ),
    "discarded blocks with and without a pod inside": Node(
        """
        link add veth1
        route add blackhole 10.244.1.0/24 proto static
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
        rule add pref 9 fwmark 0x200 lookup 2004
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
    "a VPN that redirects the default route by a rule": Node(
        """
        link add vpn0
        addr add 10.99.0.2/32 dev vpn0
        route add default dev vpn0 table 51820 proto boot scope link
        rule add pref 32764 lookup main suppress_prefixlength 0
        rule add pref 32765 not fwmark 0xca6c lookup 51820
        """,
        ("10.96.0.0/16", "10.1.0.0/24"),
        (
            "OVERLAP vpn0 10.96.0.0/16",
            "LOCAL eth0 10.1.0.4",
            "BROADCAST eth0 10.1.0.255",
            "fix 10.96.0.0/16",
        ),
    ),
    "WireGuard": Node(
        WIREGUARD,
        ("10.244.0.0/16",),
        (
            "OVERLAP wg0 10.244.0.0/16",
            (
                "unfixable 10.244.0.0/16: 10.244.0.0/16 dev wg0 table 51820 scope link "
                "may be there on purpose"
            ),
        ),
    ),
    "Tailscale": Node(
        TAILSCALE,
        ("10.96.0.0/16",),
        (
            "OVERLAP tailscale0 10.96.0.0/20",
            "RULE",
            (
                "unfixable 10.96.0.0/20: 10.96.0.0/20 dev tailscale0 table 52 scope link "
                "may be there on purpose"
            ),
        ),
    ),
    "kube-proxy with IPVS": Node(
        (
            "link add kube-ipvs0\naddr add 10.96.0.1/32 dev kube-ipvs0\n"
            "addr add 10.96.0.10/32 dev kube-ipvs0"
        ),
        ("10.96.0.0/16",),
        ("LOCAL kube-ipvs0 10.96.0.1 10.96.0.10",),
    ),
    "a network that is entirely local": Node(
        "route add local 10.96.0.0/16 dev lo table local proto boot scope host",
        ("10.96.0.0/16", "10.96.3.0/24"),
        (
            "OVERLAP lo 10.96.0.0/16",
            "OVERLAP lo 10.96.3.0/24",
            "fix 10.96.0.0/17",
            "fix 10.96.128.0/17",
        ),
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
    """Return a kernel with eth0 (10.1.0.4/24 and the default route), eth1 (10.2.0.4/24) and ib0
    (172.16.0.10/16).
    """
    return build_node(each_kernel)


@pytest.mark.parametrize("case", NODES.values(), ids=NODES)
def test_running_nodes_are_classified_and_fixed(case: Node, node: Kernel, tmp_path: Path) -> None:
    needs_linux(*NO_BROADCAST)
    play(node, case.has)
    cidrs = [*map(IPv4Network, case.cidrs)]
    report = checked(node, cidrs)[1]
    assert lines_of(report) == [*case.told]
    assert {finding.expected_devs for finding in report.findings} <= {("eth0",)}
    _see_around(node, report, case)
    install(node, report.fix.routes, tmp_path)
    after = checked(node, cidrs)[1]
    assert after.verdict == ("overlap" if report.fix.unfixable else "ok")


def _see_around(kernel: Kernel, report: OverlapReport, case: Node) -> None:
    """Compare the check with brute force around the address ranges that it reports."""
    ranges = [finding.ranges for finding in report.findings] + [
        note.ranges for note in report.notes
    ]
    near = {IPv4Network((part[0], 24), strict=False) for parts in ranges for part in parts}
    # If the check reports nothing, compare part of the CIDR.
    around = sorted(near)[:4] or [IPv4Network(case.cidrs[0])]
    config, closer = checked(kernel, around)
    judge = Judge(kernel, config.route_overlap, had_rules=len(kernel.facts().rules) > 3)
    assert (
        disagreements(
            closer, judge, {cidr: sort_all(kernel, judge, judged(cidr), cidr) for cidr in around}
        )
        == []
    )


def lines_of(report: OverlapReport) -> list[str]:
    """Return one line per failure, note, fix entry and unfixable part."""
    items: list[Finding | Note] = [*report.findings, *report.notes]
    told = [(str(item.kind), ",".join(item.devs), _span(item.ranges)) for item in items]
    lines = [" ".join(filter(None, words)) for words in told]
    lines += [f"fix {entry}" for entry in report.fix.routes]
    return lines + [
        f"unfixable {_span(part.ranges)}: {re.split('[:;] ', part.reason)[0]}"
        for part in report.fix.unfixable
    ]


def _span(ranges: tuple[IpNetwork, ...]) -> str:
    if len(ranges) <= 4:
        return " ".join(str(part).removesuffix("/32") for part in ranges)
    return f"{sum(part.num_addresses for part in ranges)} of {ranges[0][0]}-{ranges[-1][-1]}"


# --- hosts that change during the check -----------------------------------------------------------

SHADOWED = RouteOverlap(["172.20.0.0/16"])
SHADOW_172_20 = Route(IPv4Network("172.20.4.0/24"), (NextHop("ib0"),))


def restless(kernel: Kernel, *steps: Callable[[Kernel], object]) -> Altered:
    """Return a kernel that changes right before each of the first lookups."""
    left = iter(steps)

    def lookup(addresses: Sequence[IPv4Address], **more: Any) -> tuple[Lookup, ...]:
        next(left, lambda _: None)(kernel)
        return kernel.lookup(addresses, **more)

    return Altered(kernel, lookup=lookup)


def look(kernel: object, scope: phases.CancelScope | None = None) -> OverlapReport:
    return check_overlap(Config(route_overlap=SHADOWED), kernel, scope or phases.CancelScope())  # type: ignore[arg-type]


def by_eth0(network: str) -> Route:
    return Route(IPv4Network(network), (NextHop("eth0", GATEWAY),))


def flap(kernel: Kernel) -> None:
    if kernel.write(Write.ADD, [SHADOW_172_20]):
        kernel.write(Write.DELETE, [SHADOW_172_20])


def test_a_route_added_between_dump_and_lookups_is_seen(node: Kernel) -> None:
    report = look(restless(node, lambda kernel: kernel.write(Write.ADD, [SHADOW_172_20])))
    assert [finding.ranges for finding in report.findings] == [(SHADOW_172_20.destination,)]


def test_tables_that_change_all_the_time_get_no_verdict(node: Kernel) -> None:
    report = look(restless(node, *[flap] * 99))
    assert (report.verdict, report.reason_kind) == ("unknown", "check-failed")


def test_large_changing_tables_are_read_for_seconds_only() -> None:
    """Each read takes a second, and the check starts no read that would end after five seconds."""
    kernel, clock, looks = build_node(FakeKernel()), FakeClock(), []

    def flap_slowly(kernel: Kernel) -> None:
        flap(kernel)
        clock.advance(1)
        looks.append(clock.monotonic())

    report = look(restless(kernel, *[flap_slowly] * 99), phases.CancelScope(clock=clock))
    assert (report.verdict, looks) == ("unknown", [1, 2, 3, 4, 5])


# --- large hosts ----------------------------------------------------------------------------------

PLAIN = [by_eth0(f"20.{high}.{low}.0/24") for high in range(8) for low in range(256)]


@pytest.mark.kernel
def test_only_relevant_routes_of_a_large_table_are_read() -> None:
    kernel = build_node(on_linux())
    kernel.write(
        Write.ADD,
        [*PLAIN, by_eth0("172.16.5.0/24"), Route(IPv4Network("20.1.0.0/25"), (NextHop("ib0"),))],
    )
    config = Config(route_overlap=RouteOverlap(["172.16.0.0/16", "20.0.0.0/8"]))
    found = read_host(config, kernel, phases.CancelScope()).state
    assert found is not None
    plain = [
        route
        for route in found.routes
        if route.devs == ("eth0",) and route.hops[0].gateway is not None
    ]
    plain = [route for route in plain if route.destination.prefixlen]
    assert [str(route.destination) for route in plain] == ["172.16.5.0/24"]


@pytest.mark.kernel
def test_routes_to_gateways_are_read_from_a_large_table_too() -> None:
    """The rules suppress the default route but not the gateway's subnet."""
    kernel = build_node(on_linux())
    kernel.write(Write.ADD, PLAIN)
    kernel.add_rule(Rule(10, suppress_prefix_length=23))
    kernel.add_rule(Rule(11, action=RuleAction.PROHIBIT))
    fix = checked(kernel, [IPv4Network("10.96.0.0/12")])[1].fix
    assert (len(fix.routes), fix.unfixable) == (2**12, ())


def tables(count: int) -> tuple[Snapshot, RouteOverlap]:
    """Return a snapshot with policy rules.

    Each rule has its own table, with an entry for part of the CIDR.
    """
    recorded, overlap = HOSTS["rules"][1](count)
    parts = [rule.destination for rule in recorded.rules if rule.destination is not None]
    rules = [Rule(number, table=1000 + number) for number in range(1, count + 1)]
    routes = [
        Route(part, (NextHop("ib0"),), table=1000 + number) for number, part in enumerate(parts, 1)
    ]
    own, *others = [rule for rule in recorded.rules if rule.destination is None]
    changed = attrs.evolve(
        recorded, rules=(own, *rules, *others), routes=(*recorded.routes, *routes)
    )
    return changed, overlap


MAKERS = {**{name: make for name, (_, make) in HOSTS.items()}, "tables": tables}


def calls_of_a_check(name: str, size: int) -> Counter[str]:
    """Return the number of calls of each function."""
    recorded, overlap = MAKERS[name](size)
    backend = model_of(recorded.known(Family.IPV4))
    profile = cProfile.Profile()
    config = Config(route_overlap=overlap, uplinks=["eth0"])
    report = profile.runcall(check_overlap, config, backend, phases.CancelScope())
    fix = report.fix
    told = len(report.notes) + len(fix.routes) + len(fix.unfixable)
    assert told >= size or fix.rules  # few rules do for all parts
    calls = Counter[str]()
    for entry in profile.getstats():
        calls[_called(entry.code)] += entry.callcount
    return calls


def _called(code: CodeType | str) -> str:
    return (
        code
        if isinstance(code, str)
        else f"{Path(code.co_filename).name}:{code.co_firstlineno} {code.co_name}"
    )


@pytest.mark.parametrize("name", MAKERS)
def test_a_check_of_twice_the_host_makes_twice_the_calls(name: str) -> None:
    """The number of calls is linear, so no long list is scanned once per item."""
    calls_of_a_check(name, 1)  # this makes the calls that only the first check needs
    size = by_day(10, by_night=160)
    small, large = calls_of_a_check(name, size), calls_of_a_check(name, 2 * size)
    dearer = large - Counter({each: 2 * calls for each, calls in small.items()})
    assert large.total() < 2.04 * small.total(), dearer.most_common(5)
