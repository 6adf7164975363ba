"""How the kernel's answers are sorted into failures and notes."""

from __future__ import annotations

import errno as errnos
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import attrs
import pytest

from hostrouting import RouteOverlap
from hostrouting.model.links import Address, Hardware, Link
from hostrouting.model.prefixes import numbers
from hostrouting.model.routes import DEFAULT_DESTINATION, Lookup, NextHop, Protocol, Route, RouteType, Scope, Table
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.overlap._coverage import Coverage, Tile
from hostrouting.overlap._grouping import findings_and_notes
from hostrouting.overlap._judge import sort_answers
from hostrouting.overlap._reading import Answer, Reading, pending_devs
from hostrouting.overlap.findings import FindingKind, NoteKind
from hostrouting.report import Finding, Note

CIDR = IPv4Network("172.16.0.0/16")
PROBE = CIDR.network_address
GATEWAY = IPv4Address("10.1.0.1")
DEFAULT = Route(DEFAULT_DESTINATION, (NextHop("eth0", GATEWAY),), protocol=Protocol.DHCP)
RULES = (
    Rule(0, table=Table.LOCAL, protocol=Protocol.KERNEL),
    Rule(32766, protocol=Protocol.KERNEL),
    Rule(32767, table=Table.DEFAULT, protocol=Protocol.KERNEL),
)
SHADOW = Route(CIDR, (NextHop("ib0"),), protocol=Protocol.KERNEL, source=IPv4Address("172.16.0.10"))


def reading(answer: Route | int, default: Route = DEFAULT, **changes: Any) -> Reading:
    lookup = Lookup(PROBE, None, answer) if isinstance(answer, int) else Lookup(PROBE, answer)
    base = Reading(
        default.devs,
        default,
        named=None,
        links=(),
        addresses=(),
        rules=RULES,
        routes=(default,),
        tiles=[Tile(int(CIDR[0]), int(CIDR[-1]), int(PROBE))],
        answers={int(PROBE): (Answer(lookup),)},
    )
    return attrs.evolve(base, **changes)


def judged(
    answer: Route | int, overlap: RouteOverlap | None = None, **changes: Any
) -> tuple[list[Finding], list[Note]]:
    host = reading(answer, **changes)
    overlap = overlap or RouteOverlap([CIDR])
    findings, notes = findings_and_notes(overlap, host, sort_answers(overlap, host))
    return list(findings), list(notes)


def finding(answer: Route | int, **changes: Any) -> Finding:
    (only,), notes = judged(answer, **changes)
    assert notes == []
    return only


def note(answer: Route | int, overlap: RouteOverlap | None = None, **changes: Any) -> Note:
    findings, (only,) = judged(answer, overlap, **changes)
    assert findings == []
    return only


def test_what_leaves_by_the_default_interface_is_neither_failure_nor_note() -> None:
    assert judged(DEFAULT) == ([], [])
    assert judged(Route(CIDR, (NextHop("eth0", IPv4Address("10.1.0.9")),))) == ([], [])


def test_another_interface_is_an_overlap_in_the_fixed_words_and_the_route_is_named() -> None:
    found = finding(SHADOW)
    assert found.message == (
        "OVERLAP: expected CIDR 172.16.0.0/16 (probe 172.16.0.0) routes via ib0, expected eth0; "
        "by 172.16.0.0/16 dev ib0 proto kernel scope link src 172.16.0.10"
    )
    assert (found.kind, found.cidr, found.probe, found.devs) == (FindingKind.OVERLAP, CIDR, PROBE, ("ib0",))
    assert (found.expected_devs, found.route) == (("eth0",), SHADOW)


def test_several_interfaces_are_sorted() -> None:
    both = attrs.evolve(SHADOW, hops=(NextHop("ib1"), NextHop("ib0"), NextHop("ib1", GATEWAY)))
    assert " routes via ib0,ib1, expected eth0" in finding(both).message


def test_no_route_is_a_failure_in_the_fixed_words() -> None:
    found = finding(errnos.ENETUNREACH)
    assert found.message == (
        "NO-ROUTE: expected CIDR 172.16.0.0/16 (probe 172.16.0.0) has no IPv4 route; expected via eth0"
    )
    assert found.kind is FindingKind.NO_ROUTE


@pytest.mark.parametrize(
    ("errno", "type_"),
    [
        (errnos.EINVAL, RouteType.BLACKHOLE),
        (errnos.EHOSTUNREACH, RouteType.UNREACHABLE),
        (errnos.EACCES, RouteType.PROHIBIT),
    ],
)
def test_a_discarding_route_is_a_failure_and_is_found_in_the_tables(errno: int, type_: RouteType) -> None:
    route = Route(IPv4Network("172.16.0.0/24"), type=type_, protocol=Protocol.STATIC)
    shorter = Route(CIDR, type=RouteType.THROW, protocol=Protocol.STATIC)
    found = finding(errno, routes=(DEFAULT, shorter, route))
    word = type_.name.lower()
    assert found.message == (
        f"BLACKHOLE: expected CIDR 172.16.0.0/16 (probe 172.16.0.0) is discarded by {word}; expected via eth0; "
        f"by {word} 172.16.0.0/24 proto static"
    )
    assert found.route == route


def test_a_rule_that_discards_is_named_as_such() -> None:
    rules = (Rule(10, RuleAction.BLACKHOLE), *RULES)
    assert finding(errnos.EINVAL, rules=rules).message.endswith("; by a policy rule")


@pytest.mark.parametrize("kind", [RouteType.LOCAL, RouteType.BROADCAST])
@pytest.mark.parametrize("dev", ["ib0", "eth0"])
def test_own_and_broadcast_addresses_are_notes_since_no_route_can_change_them(kind: RouteType, dev: str) -> None:
    answer = Route(IPv4Network("172.16.0.0/32"), (NextHop(dev),), type=kind, table=Table.LOCAL, scope=Scope.HOST)
    found = note(answer, routes=(DEFAULT, answer))
    assert found.kind == NoteKind[kind.name]
    assert found.devs == (dev,)
    assert ("nothing in the cluster" in found.message) == (dev == "ib0")


@pytest.mark.parametrize(("length", "is_named"), [(12, True), (16, False), (24, True), (32, True)])
def test_an_own_address_where_pods_or_services_may_be_is_named_as_a_conflict(length: int, is_named: bool) -> None:
    """Not where the CIDR is the node's own subnet, nor where the config names the interfaces, as for nodes."""
    answer = Route(IPv4Network(PROBE), (NextHop("eth0"),), RouteType.LOCAL, table=Table.LOCAL, scope=Scope.HOST)
    for overlap, is_said in ((None, is_named), (RouteOverlap([{"cidr": CIDR, "devs": ["eth0"]}]), False)):
        own = Address("eth0", PROBE, length)
        found = note(answer, overlap, routes=(DEFAULT, answer), addresses=(own,))
        assert (found.kind, found.devs) == (NoteKind.LOCAL, ("eth0",))
        assert ("a pod or Service that has" in found.message) == is_said


@pytest.mark.parametrize("dev", ["veth1a2b", "cali0", "cilium_host", "azv123", "unbounded0", "kube-ipvs0"])
def test_a_container_interface_is_a_note(dev: str) -> None:
    assert note(attrs.evolve(SHADOW, hops=(NextHop(dev),))).kind is NoteKind.CONTAINER


@pytest.mark.parametrize(
    ("own", "taken", "is_named"),
    [
        ("eth0 172.16.0.4", "172.16.7.0/24", True),
        ("eth0 172.16.0.4", "172.16.7.9/32", False),  # a pod here
        ("eth0 10.1.0.4", "172.16.7.0/24", False),
        ("cbr0 172.16.7.1", "172.16.7.0/24", False),
    ],
)
def test_a_bridge_of_containers_that_takes_a_part_of_the_nodes_is_named_as_a_conflict(
    own: str, taken: str, is_named: bool
) -> None:
    dev, address = own.split()
    bridge = Route(IPv4Network(taken), (NextHop("cbr0"),), protocol=Protocol.KERNEL, scope=Scope.LINK)
    found = note(bridge, addresses=(Address(dev, IPv4Address(address), 24),))
    assert (found.kind, found.devs) == (NoteKind.CONTAINER, ("cbr0",))
    assert ('{"cidr": "172.16.0.0/16", "devs": ["eth0"]} in expectedCidrs' in found.message) == is_named


@pytest.mark.parametrize("dev", ["docker0", "br-1a2b", "podman1", "virbr0", "tailscale0", "ib0", "wg0", "eth1"])
def test_docker_libvirt_and_vpns_are_real_shadows(dev: str) -> None:
    assert finding(attrs.evolve(SHADOW, hops=(NextHop(dev),))).devs == (dev,)


def test_an_allowed_interface_is_a_note_and_given_container_devs_replace_the_default() -> None:
    overlap = RouteOverlap([CIDR], allowed_devs=["ib[0-3]"], container_devs=["pod*"])
    assert note(SHADOW, overlap).kind is NoteKind.ALLOWED
    assert note(attrs.evolve(SHADOW, hops=(NextHop("pod1"),)), overlap).kind is NoteKind.CONTAINER
    assert judged(attrs.evolve(SHADOW, hops=(NextHop("veth1"),)), overlap)[0][0].devs == ("veth1",)


def test_the_default_interface_is_never_a_container_one() -> None:
    default = attrs.evolve(DEFAULT, hops=(NextHop("veth0", GATEWAY),))
    found = finding(attrs.evolve(SHADOW, hops=(NextHop("ib0"),)), default=default)
    assert found.expected_devs == ("veth0",)
    assert judged(attrs.evolve(DEFAULT, hops=(NextHop("veth0"),)), default=default) == ([], [])


def test_the_live_hops_must_be_a_subset_of_the_defaults() -> None:
    default = attrs.evolve(DEFAULT, hops=(NextHop("eth0", GATEWAY), NextHop("eth1", GATEWAY)))
    one = attrs.evolve(SHADOW, hops=(NextHop("eth1"),))
    assert judged(one, default=default) == ([], [])
    strayed = attrs.evolve(SHADOW, hops=(NextHop("eth1"), NextHop("ib0")))
    assert finding(strayed, default=default).devs == ("eth1", "ib0")
    dead = attrs.evolve(SHADOW, hops=(NextHop("eth1"), NextHop("ib0", is_dead=True)))
    assert judged(dead, default=default) == ([], [])


def test_one_foreign_hop_beside_a_container_one_is_an_overlap() -> None:
    assert finding(attrs.evolve(SHADOW, hops=(NextHop("veth1"), NextHop("ib0")))).devs == ("ib0", "veth1")


@pytest.mark.parametrize("protocol", [Protocol.BIRD, 80])
def test_a_cnis_own_blackhole_is_a_note(protocol: int) -> None:
    route = Route(CIDR, type=RouteType.BLACKHOLE, protocol=protocol)
    assert note(errnos.EINVAL, routes=(DEFAULT, route)).kind is NoteKind.CNI_DISCARD


def test_a_blackhole_that_holds_a_route_to_a_container_is_a_note() -> None:
    route = Route(CIDR, type=RouteType.BLACKHOLE, protocol=Protocol.STATIC)
    pod = Route(IPv4Network("172.16.0.9/32"), (NextHop("cali1"),), protocol=Protocol.BOOT)
    assert note(errnos.EINVAL, routes=(DEFAULT, route, pod)).kind is NoteKind.CNI_DISCARD
    elsewhere = attrs.evolve(pod, destination=IPv4Network("10.0.0.9/32"))
    assert finding(errnos.EINVAL, routes=(DEFAULT, route, elsewhere)).kind is FindingKind.BLACKHOLE
    other_table = attrs.evolve(pod, table=100)
    assert finding(errnos.EINVAL, routes=(DEFAULT, route, other_table)).kind is FindingKind.BLACKHOLE


def test_a_discarded_default_is_no_cnis_block() -> None:
    route = Route(DEFAULT_DESTINATION, type=RouteType.BLACKHOLE, protocol=Protocol.BIRD, table=100)
    rules = (*RULES[:1], Rule(100, table=100), *RULES[1:])
    pod = Route(IPv4Network("172.16.0.9/32"), (NextHop("cali1"),), protocol=Protocol.BOOT, table=100)
    assert finding(errnos.EINVAL, rules=rules, routes=(DEFAULT, route, pod)).kind is FindingKind.BLACKHOLE


def test_an_infiniband_interface_without_an_address_is_pending() -> None:
    links = (
        Link(2, "ib0", hardware=Hardware.INFINIBAND),
        Link(3, "ib1", hardware=Hardware.INFINIBAND),
        Link(4, "eth1"),
    )
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
def test_rules_about_other_packets_are_one_note(selector: dict[str, Any]) -> None:
    rules = (*RULES[:1], Rule(100, table=100, **selector), Rule(101, table=101, **selector), *RULES[1:])
    found = note(DEFAULT, rules=rules)
    assert found.kind is NoteKind.RULE
    assert "100, 101" in found.message


def test_rules_that_the_kernel_judged_are_no_note() -> None:
    rules = (
        *RULES[:1],
        Rule(100, table=52, destination=CIDR),
        Rule(101, iif="lo", suppress_prefix_length=0),
        Rule(102, table=52, source=IPv4Network("10.0.0.0/8")),
        Rule(103, table=52, ip_protocol=6),
        *RULES[1:],
    )
    assert judged(DEFAULT, rules=rules) == ([], [])


def test_the_same_cidr_twice_is_one_finding() -> None:
    findings, _ = judged(SHADOW, RouteOverlap([CIDR, CIDR]))
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
    container = note(attrs.evolve(SHADOW, hops=(NextHop("veth1"),)))
    assert container.to_json() == {
        "kind": "CONTAINER",
        "message": "expected CIDR 172.16.0.0/16 routes via veth1, a container interface",
        "cidr": "172.16.0.0/16",
        "devs": ["veth1"],
        "ranges": ["172.16.0.0/16"],
    }


def test_a_route_whose_way_out_is_not_known_is_asked_about() -> None:
    """So the kernel shows one by a nexthop object where net.ipv4.nexthop_compat_mode is 0."""
    hidden = Route(IPv4Network("172.16.4.0/24"), nexthop_id=7, scope=Scope.UNIVERSE)
    tiles = Coverage([numbers(CIDR)], ["eth0"], RULES, ()).tiles([DEFAULT, hidden])
    assert {tile.question for tile in tiles} == {int(IPv4Address("172.16.0.0")), int(IPv4Address("172.16.4.0"))}
