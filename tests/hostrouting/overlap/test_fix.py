"""Test what is proposed, asked and advised where other programs lead expected addresses through
another interface.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import attrs
import pytest
from fixing import install
from node import build_node
from scenario import play

import phases
from hostrouting import Config, ConfigureStaticRoutes, Host, Layout, OverlapReport, check, explain
from hostrouting.config.routing import InstalledUplinkRecord, StaticRoute
from hostrouting.model.family import IpAddress, IpNetwork
from hostrouting.model.links import Hardware
from hostrouting.model.parsing import is_inside
from hostrouting.model.routes import RouteType
from hostrouting.overlap import _modelled_host, _routes
from hostrouting.overlap._ask import Sockets
from hostrouting.overlap._cautions import cautions_about
from hostrouting.overlap._keep import Keeping
from hostrouting.overlap._losses import Loss
from hostrouting.overlap._modelled_host import ModelledHost, host_now
from hostrouting.overlap._places import Place, SocketLookup
from hostrouting.overlap._read import read_host
from hostrouting.overlap._static_routes import EntryMaker
from hostrouting.overlap.findings import NoteKind
from hostrouting.overlap.proposals import HostSettings
from hostrouting.overlap.summary import advice
from hostrouting.testing import FakeKernel, FakeSystemd

_NAMED = re.compile(r'\["[^]]*\]')


@attrs.frozen
class Row:
    """A node, and what a check says of it.

    The node has eth0 (10.1.0.4/24 and the default route) and eth1.

    Args:
        has: scenario commands.
        cidrs: the expected CIDRs, as in a config.
        proposed: the proposed entries.
        wanted: the interfaces that the check asks about, named as the node's uplinks if they are
            wanted.
        hints: the first words of each hint, or of the reason why nothing is proposed.
        uplinks: the uplinks that the config names.
    """

    has: str
    cidrs: tuple[Any, ...]
    proposed: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    uplinks: tuple[str, ...] = ()


PRIVATE = "route add 10.9.0.0/16 via 10.2.0.1 dev eth1 proto dhcp"
VPN = "link add tun0\naddr add 10.8.8.5/24 dev tun0\n"
HALVES = (
    f"{VPN}route add 0.0.0.0/1 via 10.8.8.1 dev tun0 proto static\n"
    "route add 128.0.0.0/1 via 10.8.8.1 dev tun0 proto static"
)
DOCKER = "link add docker0\naddr add 10.9.0.1/16 dev docker0"
POLICY = {"cidr": "10.9.0.0/16", "devs": ["eth1"]}
ROWS = {
    "another interface's gateway": Row(PRIVATE, ("10.9.0.0/16",), wanted=("eth0", "eth1")),
    "the same for a part": Row(PRIVATE, ("10.8.0.0/15", "10.96.0.0/12"), wanted=("eth0", "eth1")),
    "the same once uplinks are named": Row(
        PRIVATE,
        ("10.9.0.0/16",),
        ("10.9.0.0/17", "10.9.128.0/17"),
        uplinks=("eth0",),
    ),
    "another interface's network": Row("", ("10.2.0.0/24",), wanted=("eth0", "eth1")),
    "nested CIDRs": Row(
        PRIVATE,
        ("10.8.0.0/15", "10.8.0.0/16", "10.9.0.0/16", "10.9.1.0/24"),
        wanted=("eth0", "eth1"),
    ),
    "hops by both interfaces": Row(
        (
            "route add 10.9.0.0/16 proto static"
            " nexthop via 10.1.0.1 dev eth0 nexthop via 10.2.0.1 dev eth1"
        ),
        ("10.9.0.0/16",),
        wanted=("eth0", "eth1"),
    ),
    "two interfaces in one CIDR": Row(
        f"{PRIVATE}\nroute add 10.8.0.0/16 via 172.16.0.1 dev ib0 proto static",
        ("10.8.0.0/15",),
        wanted=("eth0", "eth1", "ib0"),
    ),
    "pods in the same CIDR": Row(
        f"{PRIVATE}\nlink add cni0\naddr add 10.10.0.1/24 dev cni0",
        ("10.8.0.0/14",),
        wanted=("eth0", "eth1"),
    ),
    "a CNI's block in the same CIDR": Row(
        (
            f"{PRIVATE}\nroute add blackhole 10.10.0.0/26 proto 80\n"
            "route add 10.10.1.0/26 via 10.1.0.9 dev eth0 proto 80"
        ),
        ("10.8.0.0/14",),
        wanted=("eth0", "eth1"),
    ),
    "another interface's network in the uplink's": Row(
        "addr add 10.1.0.130/25 dev eth1", ("10.1.0.0/24",), wanted=("eth0", "eth1")
    ),
    "a gateway within the uplink's subnet": Row(
        "route add 10.1.0.128/25 via 10.2.0.1 dev eth1 proto bird",
        ("10.1.0.0/24",),
        wanted=("eth0", "eth1"),
    ),
    "a larger CIDR settles it": Row(
        PRIVATE,
        ({"cidr": "10.9.0.0/16", "devs": ["eth0"]}, "10.9.0.0/17"),
        ("10.9.0.0/17", "10.9.128.0/17"),
    ),
    "an uplink that no config can name": Row(
        "link add e$th\naddr add 10.7.0.4/24 dev e$th\n"
        "route del default via 10.1.0.1 dev eth0 proto dhcp metric 100\n"
        f"route add default via 10.7.0.1 dev e$th\n{PRIVATE}",
        ("10.9.0.0/16",),
        hints=(
            (
                "10.9.0.0/16 via 10.2.0.1 dev eth1 proto dhcp may be there on purpose, "
                "but e$th has a name"
            ),
        ),
    ),
    "InfiniBand's network": Row("", ("172.16.0.0/16",), ("172.16.0.0/17", "172.16.128.0/17")),
    "InfiniBand by its type": Row(
        "addr add 10.9.0.1/16 dev rdma0", ("10.9.0.0/16",), ("10.9.0.0/17", "10.9.128.0/17")
    ),
    "a gateway behind InfiniBand": Row(
        "route add 10.9.0.0/16 via 172.16.0.1 dev ib0 proto static",
        ("10.9.0.0/16",),
        wanted=("eth0", "ib0"),
    ),
    "half of the address space": Row(
        HALVES, ("10.96.0.0/12",), ("10.96.0.0/12",), hints=("tun0 belongs to a VPN",)
    ),
    "half of the address space, with a CIDR that names its interfaces": Row(
        HALVES,
        ("10.96.0.0/12", {"cidr": "10.9.0.0/16", "devs": ["eth0"]}),
        ("10.9.0.0/16", "10.96.0.0/12"),
        hints=(
            (
                "tun0 belongs to a VPN: have it take fewer routes, or set "
                '"allowedDevs": ["tun0"] and add "tun0" to the CIDR\'s devs'
            ),
        ),
    ),
    "a part with InfiniBand's network, which a wider route wouldn't save": Row(
        f"{HALVES}\naddr add 10.96.128.1/17 dev ib0",
        ("10.96.0.0/16",),
        ("10.96.0.0/17", "10.96.128.0/18", "10.96.192.0/18"),
        hints=("tun0 belongs to a VPN",),
    ),
    "a gap between two CIDRs": Row(
        HALVES,
        ("10.96.0.0/15", "10.102.0.0/15"),
        ("10.96.0.0/15", "10.102.0.0/15"),
        hints=("tun0 belongs to a VPN",),
    ),
    "the last of two CIDRs that fail decides": Row(
        "route add 10.8.0.0/14 via 10.2.0.1 dev eth1\n"
        "route add 10.9.0.0/16 via 172.16.0.1 dev ib0 proto static",
        (
            {"cidr": "10.9.0.0/16", "devs": ["eth0", "eth1"]},
            {"cidr": "10.9.0.0/17", "devs": ["eth1"]},
        ),
        ("10.9.0.0/17 via 10.2.0.1 dev eth1", "10.9.128.0/17"),
    ),
    "an unused route has the destination": Row(
        "addr add 10.96.0.4/11 dev ib0\n"
        "route add 10.96.0.0/12 dev eth1 tos 0x10 proto kernel scope link",
        ("10.96.0.0/12",),
        ("10.96.0.0/13", "10.104.0.0/13"),
    ),
    "a network behind a tunnel": Row(
        f"{VPN}route add 10.9.0.0/16 via 10.8.8.1 dev tun0 proto static",
        ("10.9.0.0/16",),
        wanted=("eth0", "tun0"),
        hints=("tun0 belongs to a VPN",),
    ),
    "a part of the uplink's subnet": Row(
        f"{VPN}route add 10.1.0.128/25 dev tun0 proto static",
        ("10.1.0.0/24",),
        wanted=("eth0", "tun0"),
        hints=("tun0 belongs to a VPN",),
    ),
    "a bridge's network": Row(
        DOCKER, ("10.9.0.0/16",), hints=("docker0 belongs to Docker: move its address pools",)
    ),
    "a bridge of any name": Row(
        "addr add 10.9.0.1/16 dev lab", ("10.9.0.0/16",), hints=("lab is a bridge without",)
    ),
    "a bridge's network, and another interface allowed": Row(
        DOCKER,
        ({"cidr": "10.9.0.0/16", "devs": ["eth0"]},),
        hints=("docker0 belongs to Docker: move its address pools",),
    ),
    "a bridge's network in the same CIDR": Row(
        f"{PRIVATE}\nlink add docker0\naddr add 10.11.0.1/24 dev docker0",
        ("10.8.0.0/14",),
        wanted=("eth0", "eth1"),
        hints=("docker0 belongs to Docker: move its address pools",),
    ),
    "pods beyond the exemption in the same CIDR": Row(
        (
            f"{PRIVATE}\nlink add cni0\naddr add 10.10.0.1/24 dev cni0\n"
            "route add 10.1.0.128/25 via 10.10.0.9 dev cni0"
        ),
        ("10.0.0.0/12",),
        wanted=("eth0", "eth1"),
        hints=("10.1.0.128/25 lies in 10.1.0.0/24, the subnet of eth0",),
    ),
    "pods in the subnet of an uplink without a default route": Row(
        "link add cni0\naddr add 10.2.0.129/25 dev cni0",
        ("10.2.0.0/24",),
        hints=("10.2.0.128/25 lies in 10.2.0.0/24, the subnet of eth1",),
        uplinks=("eth1",),
    ),
    "a network of the second of two uplinks": Row(
        "route del default via 10.1.0.1 dev eth0 proto dhcp metric 100\n"
        "addr add 10.11.0.4/16 dev eth1\n"
        "route add default nexthop via 10.1.0.1 dev eth0 nexthop via 10.2.0.1 dev eth1\n"
        "addr add 10.8.0.4/13 dev eth0\nroute add 10.9.0.0/16 via 172.16.0.1 dev ib0 proto static",
        ("10.8.0.0/13",),
        wanted=("eth0", "eth1", "ib0"),
    ),
    "a CIDR settles it in the network of another default's interface": Row(
        "route add default via 10.2.0.1 dev eth1 metric 900",
        ({"cidr": "10.2.0.128/25", "devs": ["eth0"]}, "10.2.0.192/26"),
        ("10.2.0.128/25",),
    ),
    "a gateway behind a bridge": Row(
        "addr add 10.9.0.1/16 dev lab\nroute add 10.96.0.0/12 via 10.9.0.2 dev lab proto static",
        ("10.96.0.0/12",),
        wanted=("eth0", "lab"),
        hints=("lab is a bridge without",),
    ),
    "no other route, and one interface allowed": Row(
        "", (POLICY,), hints=("no route through eth1 tells its next hop",)
    ),
    "InfiniBand without an address": Row(
        "",
        ({"cidr": "10.9.0.0/16", "devs": ["rdma0"]},),
        hints=("rdma0 has no IPv4 address to send from",),
    ),
    "no other route, and a tunnel allowed": Row(
        "", ({"cidr": "10.9.0.0/16", "devs": ["wt*"]},), ("10.9.0.0/16 onlink dev wt0",)
    ),
    "two interfaces' networks": Row(
        PRIVATE, ("10.9.0.0/16", "10.2.0.0/24", "10.96.0.0/12"), wanted=("eth0", "eth1")
    ),
    "its gateway elsewhere": Row(
        "route add default via 10.2.0.1 dev eth1 metric 900", (POLICY,), ("10.9.0.0/16 dev eth1",)
    ),
    "its gateway in a shorter route": Row(
        "route add 10.8.0.0/14 via 10.2.0.1 dev eth1\nroute add 10.9.0.0/17 dev ib0 scope link",
        (POLICY,),
        ("10.9.0.0/18 via 10.2.0.1 dev eth1", "10.9.64.0/18 via 10.2.0.1 dev eth1"),
    ),
    "its gateway in a multipath route": Row(
        "route add 10.8.0.0/14 nexthop via 10.1.0.1 dev eth0 nexthop via 10.2.0.1 dev eth1",
        (POLICY,),
        ("10.9.0.0/16 via 10.2.0.1 dev eth1",),
    ),
    "InfiniBand in the network of another default's interface": Row(
        (
            "route add default via 10.2.0.1 dev eth1 metric 900\n"
            "route add 10.2.0.128/25 via 172.16.0.1 dev ib0 proto static"
        ),
        ("10.2.0.0/24",),
        wanted=("eth0", "eth1", "ib0"),
    ),
    "two interfaces allowed, one with its network there": Row(
        "route add 10.2.0.128/25 via 172.16.0.1 dev ib0 proto static",
        ({"cidr": "10.2.0.0/24", "devs": ["eth0", "eth1"]},),
        ("10.2.0.128/26 onlink dev eth1", "10.2.0.192/26 onlink dev eth1"),
    ),
    "two interfaces allowed": Row(
        "",
        ({"cidr": "10.9.0.0/16", "devs": ["eth1", "ib0"]},),
        hints=("eth1, ib0 may carry 10.9.0.0/16",),
    ),
    "two interfaces behind one router": Row(
        (
            "addr add 10.1.0.9/24 dev eth1\n"
            "route del 10.1.0.0/24 dev eth0 proto kernel scope link src 10.1.0.4"
        ),
        ("10.1.0.0/24",),
        ("10.1.0.0/25 onlink", "10.1.0.128/25 onlink"),
        uplinks=("eth0",),
    ),
    "a rule leads packets without a source elsewhere": Row(
        "route add default via 10.1.0.1 dev eth0 table 100\n"
        "rule add pref 10 from 0.0.0.0/32 lookup 100",
        ("172.16.0.0/16",),
        hints=("apply would refuse a route that fixes this",),
        uplinks=("eth0",),
    ),
    "a longer route nested in a refused one": Row(
        (
            "link add ib1\naddr add 10.77.0.4/24 dev ib1\nroute add 172.16.1.0/24 dev ib1\n"
            "route add default via 10.1.0.1 dev eth0 table 100\n"
            "rule add pref 10 from 0.0.0.0/32 to 172.16.0.0/24 lookup 100"
        ),
        ("172.16.0.0/16",),
        ("172.16.1.0/25", "172.16.1.128/25"),
        hints=("apply would refuse a route that fixes this: 172.16.0.0/17",) * 2,
        uplinks=("eth0",),
    ),
    "table local, once it is apart from main": Row(
        (
            "rule add pref 7 lookup 77\nrule del pref 7 lookup 77\n"
            "route add unreachable 10.5.0.64/28 table local proto static"
        ),
        ("10.5.0.0/24",),
        hints=(
            "unreachable 10.5.0.64/28 table local proto static decides before table main is asked",
        ),
    ),
}


def _host(row: Row, root: Path) -> Host:
    kernel = FakeKernel()
    kernel.add_link("rdma0", hardware=Hardware.INFINIBAND)
    kernel.add_link("lab", kind="bridge")
    kernel.add_link("wt0", kind="wireguard")
    build_node(kernel)
    play(kernel, row.has)
    return Host(routes=kernel, units=FakeSystemd(), layout=Layout(root))


def _config(row: Row, **more: Any) -> Config:
    overlap = {"expectedCidrs": list(row.cidrs)}
    keys = {"uplinks": list(row.uplinks)} if row.uplinks else {}
    document = {"hostRouting": keys | {"waitSeconds": 0, "routeOverlap": overlap} | more}
    # The rows' own routes count as installed, unless the config lists routes.
    config = Config.from_mapping(document)
    if "staticRoutes" in more:
        return config
    return attrs.evolve(config, record=InstalledUplinkRecord())


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_nothing_is_led_back_unasked(row: Row, tmp_path: Path) -> None:
    fix = check(_config(row), host=_host(row, tmp_path)).fix
    assert tuple(map(str, fix.routes)) == row.proposed
    asked = [each.answers for each in fix.unfixable if each.answers]
    named = [next(each["uplinks"] for each in answers if "uplinks" in each) for answers in asked]
    assert {*map(tuple, named)} == ({row.wanted} if row.wanted else set())
    told = (*fix.hints, *(each.reason for each in fix.unfixable if not each.answers))
    assert len(told) == len(row.hints)
    assert all(said.startswith(hint) for said, hint in zip(told, row.hints, strict=True))


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.wanted])
def test_each_answer_settles_the_question(name: str, tmp_path: Path) -> None:
    """After an answer, and the routes that follow from it, only what it names still fails."""
    row = ROWS[name]
    first = check(_config(row), host=_host(row, tmp_path)).fix
    asked = [each for each in first.unfixable if each.answers]
    assert asked
    for each in asked:
        others = [part for other in first.unfixable if other is not each for part in other.ranges]
        for answer in each.answers:
            for part in _left_after(row, answer, tmp_path):
                is_named = f"{part.network_address} still fails with" in each.reason
                assert is_named or any(map(partial(is_inside, part), others))


def _left_after(row: Row, answer: dict[str, Any], root: Path) -> set[IpNetwork]:
    """Return what still fails after an answer and the fix that follows from it."""
    named = {key: value for key, value in answer.items() if key != "expectedCidrs"}
    row = attrs.evolve(row, cidrs=_answered(row, answer))
    host = _host(row, root)
    fix = check(_config(row, **named), host=host).fix
    entries = {"enabled": True, "routes": [entry.to_mapping() for entry in fix.routes]}
    phases.run(ConfigureStaticRoutes(_config(row, staticRoutes=entries, **named), host=host))
    return _failing(check(_config(row, **named), host=host))


def _failing(report: OverlapReport) -> set[IpNetwork]:
    return {part for finding in report.findings for part in finding.ranges}


def _answered(row: Row, answer: dict[str, Any]) -> tuple[Any, ...]:
    """Return the expected CIDRs with those in an answer replaced."""
    named = {each["cidr"]: each for each in answer.get("expectedCidrs", ())}
    return tuple(named.get(cidr, cidr) for cidr in row.cidrs)


@attrs.frozen
class Asked:
    """A node, and the questions of a check.

    Args:
        has: scenario commands.
        cidrs: the expected CIDRs, as in a config.
        answers: the answers to each question. A string stands for uplinks, separated by commas;
            another item is an expected CIDR.
        says: what the reasons contain, one after the other.
        never: what no printed line contains.
        config: more keys of the config.
    """

    has: str
    cidrs: tuple[Any, ...]
    answers: tuple[tuple[Any, ...], ...] = ()
    says: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    config: Mapping[str, Any] = attrs.field(factory=dict)


def _devs(cidr: str, *devs: str) -> dict[str, Any]:
    return {"cidr": cidr, "devs": [*devs]}


SECOND_DEFAULT = "route add default dev tun0 proto static metric 50"
STATIC = "route add 172.16.0.0/17 via {0}\nroute add 172.16.128.0/17 via {0}"
VPN_TABLE = f"{VPN}rule add pref 5270 lookup 52\nroute add {{}} dev tun0 table 52 proto static"
PODS = "link add cni0\naddr add 10.244.1.1/24 dev cni0"
BOTH = ("eth0,tun0", "eth0")
QUESTIONS = {
    "a longer route takes a part of another interface's network": Asked(
        f"{VPN}route add 10.2.0.128/25 dev tun0 proto static",
        ("10.2.0.0/24",),
        (
            (_devs("10.2.0.0/24", "eth1", "tun0"), "eth0,eth1,tun0", "eth0"),
            (
                _devs("10.2.0.0/24", "eth1"),
                _devs("10.2.0.0/24", "eth1", "tun0"),
                "eth0,eth1,tun0",
            ),
        ),
        ("if these addresses belong to the network of eth1, expect", "proposes 2 routes"),
    ),
    "the default route of a storage NIC wins": Asked(
        "route add default via 10.2.0.1 dev eth1 metric 50",
        ("10.1.0.0/24", "10.96.0.0/12"),
        ((_devs("10.1.0.0/24", "eth0"), "eth0,eth1", "eth1", "eth0"),),
        (
            'if it isn\'t, set hostRouting\'s "uplinks": ["eth1"], and',
            'if only eth0 leads to the cluster, set hostRouting\'s "uplinks": ["eth0"]',
            "proposes 1 route, after which packets from the addresses of eth1 no longer go to",
        ),
    ),
    "and its network is expected, too": Asked(
        "route add default via 10.2.0.1 dev eth1 metric 50",
        ("10.0.0.0/8",),
        ((_devs("10.0.0.0/8", "eth0", "eth1"), "eth0,eth1", "eth1", "eth0"),),
        ("if only eth0 leads to the cluster", "; then 10.2.0.1 fails"),
    ),
    "a lower metric does": Asked(
        f"{VPN}addr del 10.2.0.4/24 dev eth1\naddr add 10.2.0.4/24 dev eth1 noprefixroute\n"
        "route add 10.2.0.0/24 dev eth1 metric 100 proto static\n"
        "route add 10.2.0.0/24 dev tun0 metric 50 proto static",
        ("10.2.0.0/24",),
        ((_devs("10.2.0.0/24", "eth1"), _devs("10.2.0.0/24", "tun0"), "eth0,tun0"),),
        ("proposes 1 route, after which packets from the addresses of tun0 no longer go to",),
    ),
    "an earlier table does": Asked(
        VPN_TABLE.format("10.2.0.0/24"),
        ("10.2.0.0/24",),
        ((_devs("10.2.0.0/24", "eth1"), _devs("10.2.0.0/24", "tun0"), "eth0,tun0"),),
        ("proposes 1 rule, after which packets from the addresses of tun0 no longer go to",),
    ),
    "no answer hides what a VPN's default route takes": Asked(
        f"{VPN}addr add 10.200.0.2/24 dev tun0\nrule add pref 5270 lookup 52\n"
        "route add default dev tun0 table 52 proto static",
        ("10.96.0.0/12", "10.200.0.0/16"),
        (("eth0",),),
        ("if it isn't wanted, set",),
    ),
    "the gateway of an interface that is kept": Asked(
        "addr add 10.100.0.5/24 dev eth1\n"
        "route add default via 10.100.0.1 dev eth1 table 2170000 proto 217",
        ("10.100.0.0/24",),
        says=(
            "it is the gateway of default via 10.100.0.1 dev eth1 table 2170000 proto",
            "by which keep sends: expect the CIDR without it",
        ),
        never=("remove",),
        config={"uplinks": ["eth0"]},
    ),
    "one for each entry": Asked(
        "addr add 10.100.0.5/24 dev eth1\n"
        "route add 10.0.0.0/8 via 10.100.0.1 dev eth1 proto static",
        ("10.96.0.0/12", "172.16.0.0/16"),
        ((_devs("10.96.0.0/12", "eth1"), "eth0,eth1", "eth0"),) * 2,
        (
            "10.0.0.0/8 via 10.100.0.1 dev eth1 proto static may be there on purpose",
            "hostrouting fix proposes 9 more routes, after which",
            "neighbours of eth1 in 10.100.0.0/24",
            "10.100.0.0/24 dev eth1 proto kernel scope link src 10.100.0.5 may be",
            "10.100.0.1 still fails with eth0 as uplink: it is the gateway of 10.0.0.0/8",
        ),
    ),
    "a single address": Asked(
        f"{VPN}route add 10.10.0.5 dev tun0 proto static",
        ("10.10.0.0/16",),
        ((_devs("10.10.0.0/16", "eth0", "tun0"), "eth0,tun0"),),
        ("if it isn't, 10.10.0.5 dev tun0", "no route is longer: remove it"),
    ),
    "two rules decide for replies": Asked(
        "route add default via 10.2.0.1 dev eth1 table 100\n"
        "rule add pref 50 from 10.2.0.4 lookup 100\n"
        "link add wg0\nroute add 10.42.0.0/16 dev wg0 table 52 proto static\n"
        "addr add 10.96.0.10/32 dev lo\nrule add pref 2 from 10.96.0.10 prohibit\n"
        "rule add pref 50 from 10.1.0.4 lookup 52",
        ("10.42.0.0/16",),
        never=("still fails with",),
    ),
    "a route to a gateway": Asked(
        "route add 10.9.0.1 dev eth1 proto static scope link\n"
        "route add 10.9.0.0/16 via 10.9.0.1 dev eth1 proto static",
        ("10.9.0.0/16",),
        (
            (_devs("10.9.0.0/16", "eth1"), "eth0,eth1", "eth0"),
            (_devs("10.9.0.0/16", "eth1"), "eth0,eth1"),
        ),
        (
            "if it isn't, it is the gateway of 10.9.0.0/16 via 10.9.0.1 dev eth1 proto static:",
            "remove the route and 10.9.0.1 dev eth1 proto static scope link, after which packets",
        ),
    ),
    "a bridge with a default route": Asked(
        f"{DOCKER}\nroute add default via 10.9.0.2 dev docker0 metric 900",
        ("10.9.0.0/16",),
        ((_devs("10.9.0.0/16", "docker0"), "docker0,eth0"),),
        ("if it isn't, docker0 belongs to Docker: move",),
    ),
    "pods by an earlier table": Asked(
        f"{PODS}\n{VPN_TABLE.format('10.244.0.0/16')}",
        ("10.244.0.0/16",),
        (("eth0",),),
        ("may be there on purpose; if it isn't wanted, set", "proposes 1 more rule"),
        never=("allowedDevs",),
    ),
    "pods by a longer route": Asked(
        f"{PODS}\n{VPN}route add 10.244.1.0/25 dev tun0 proto static",
        ("10.244.0.0/16",),
        says=("takes packets from 10.244.1.0/24, a network of pods on cni0: change that route",),
        never=("allowedDevs", "uplinks"),
    ),
    "static routes from before the uplink changed": Asked(
        f"{VPN}{SECOND_DEFAULT}\n{STATIC.format('10.1.0.1 dev eth0')}".replace("tun0", "eth2"),
        ("172.16.0.0/16",),
        (("eth0", "eth2"),),
        (
            "are static routes through eth0, but the uplink is now eth2; if that change isn't",
            'wanted, set hostRouting\'s "uplinks": ["eth0"]; if it is, set',
            '"uplinks": ["eth2"], and hostrouting fix proposes',
        ),
        never=("on purpose", "each run then waits"),
        config={"waitSeconds": 30},
    ),
    "the same without the earlier default route": Asked(
        f"{VPN}{SECOND_DEFAULT}\n{STATIC.format('10.1.0.1 dev eth0')}\n"
        "route del default via 10.1.0.1 dev eth0 proto dhcp metric 100",
        ("172.16.0.0/16",),
        (("eth0", "tun0"),),
        ("(each run then waits 1 s for a default route through eth0)",),
        config={"waitSeconds": 1},
    ),
    "static routes whose interface the config names": Asked(
        STATIC.format("10.2.0.1 dev eth1"),
        ("172.16.0.0/16",),
        ((_devs("172.16.0.0/16", "eth1"), "eth0,eth1", "eth0"),),
        ("proto hostrouting are static routes of this config, which names eth1; if it is wanted",),
        config={
            "staticRoutes": {
                "enabled": True,
                "routes": [{"destination": "172.16.0.0/17", "dev": "eth1"}],
            },
        },
    ),
    "more entries than questions": Asked(
        "\n".join(
            f"route add 10.9.{number}.0/24 via 10.2.0.1 dev eth1 proto static"
            for number in range(9)
        ),
        ("10.9.0.0/16",),
        ((_devs("10.9.0.0/16", "eth0", "eth1"), "eth0,eth1", "eth0"),) * 4,
        (
            "10.9.5.0/24 via 10.2.0.1 dev eth1 proto static and 3 more may be there on purpose",
            ", too: answer the other questions, and check again",
        ),
    ),
    "a CNI's interface, if the CIDR names others": Asked(
        "link add cilium_host\naddr add 10.10.0.1/32 dev cilium_host\n"
        "route add 10.10.0.0/24 via 10.10.0.1 dev cilium_host",
        (_devs("10.10.0.0/16", "eth0"),),
        says=('cilium_host leads to pods of this host: add "cilium_host" to the CIDR\'s devs',),
    ),
    "a CNI's block, if the CIDR names interfaces": Asked(
        "link add cali1\nroute add 10.10.0.5 dev cali1\nroute add blackhole 10.10.0.0/26 proto 80",
        (_devs("10.10.0.0/16", "eth0", "cali*"),),
        says=("blackhole 10.10.0.0/26 proto 80 is a CNI's own block for pods of this host",),
        never=("add an entry",),
    ),
}


@pytest.mark.parametrize("asked", QUESTIONS.values(), ids=QUESTIONS)
def test_a_question_has_the_answers_that_help(asked: Asked, tmp_path: Path) -> None:
    row = Row(asked.has, asked.cidrs)
    report = check(_config(row, **asked.config), host=_host(row, tmp_path))
    found = [each for each in report.fix.unfixable if each.answers]
    assert tuple(tuple(map(_brief, each.answers)) for each in found) == asked.answers
    assert not any(entry.dev == "tun0" for entry in report.fix.routes)
    printed = "\n".join(advice(report))
    for words in asked.says:
        assert words in printed
        printed = printed.partition(words)[2]
    printed = "\n".join(advice(report))
    assert not any(words in printed for words in asked.never)


def _brief(answer: dict[str, Any]) -> Any:
    if "uplinks" in answer:
        return ",".join(answer["uplinks"])
    (cidr,) = answer["expectedCidrs"]
    return cidr


@pytest.mark.parametrize("metric", [50, 200])
def test_rival_default_routes_come_with_answers(metric: int, tmp_path: Path) -> None:
    row = Row(f"route add default via 10.2.0.1 dev eth1 metric {metric}", ("10.96.0.0/12",))
    report = check(_config(row), host=_host(row, tmp_path))
    (told,) = [note.message for note in report.notes if note.kind is NoteKind.CONTESTED]
    answers = _NAMED.findall(told.partition('"uplinks": ')[2])
    assert {*answers} == {'["eth0"]', '["eth1"]'}
    for answer in map(json.loads, answers):
        settled = check(_config(row, uplinks=answer), host=_host(row, tmp_path))
        assert settled.default_devs == tuple(answer)
        assert NoteKind.CONTESTED not in {note.kind for note in settled.notes}


def test_devs_that_follow_another_default_route_are_told(tmp_path: Path) -> None:
    """A storage network is a part of the VNet, and the storage NIC's default route wins."""
    vnet = {"cidr": "10.0.0.0/8", "devs": ["eth0", "eth1"]}
    wins = "route add default via 10.2.0.1 dev eth1 metric 50"
    row = Row(wins, (vnet,), uplinks=("eth0",))
    report = check(_config(row), host=_host(row, tmp_path))
    (note,) = [each for each in report.notes if each.kind is NoteKind.CONTESTED]
    assert (str(note.cidr), note.devs) == ("10.0.0.0/8", ("eth1",))
    entry = '{"destination": "10.0.0.0/8"}'
    assert f"add {entry} to hostRouting.staticRoutes.routes" in note.message
    listed = _config(row, staticRoutes={"enabled": True, "routes": [json.loads(entry)]})
    host = _host(row, tmp_path)
    assert NoteKind.CONTESTED not in {each.kind for each in check(listed, host=host).notes}
    assert NoteKind.CONTESTED not in {
        each.kind for each in explain("10.5.0.1", listed, host=host).notes
    }
    rest = f"{wins}\nroute add 10.0.0.0/8 via 10.1.0.1 dev eth0 proto hostrouting"
    settled = check(_config(row), host=_host(attrs.evolve(row, has=rest), tmp_path))
    assert NoteKind.CONTESTED not in {each.kind for each in settled.notes}
    alone = attrs.evolve(row, cidrs=({"cidr": "10.0.0.0/8", "devs": ["eth1"]},))
    unasked = check(_config(alone), host=_host(alone, tmp_path))
    assert NoteKind.CONTESTED not in {each.kind for each in unasked.notes}


def test_no_answer_holds_a_name_that_is_a_pattern(tmp_path: Path) -> None:
    has = (
        "link add *\naddr add 10.7.0.4/24 dev *\n"
        f"route add 10.8.0.0/16 via 10.7.0.1 dev *\n{PRIVATE}"
    )
    row = Row(has, ("10.8.0.0/16", "10.9.0.0/16"))
    fix = check(_config(row), host=_host(row, tmp_path)).fix
    (answers,) = [each.answers for each in fix.unfixable if each.answers]
    assert {"uplinks": ["eth0", "eth1"]} in answers
    assert all("*" not in devs for answer in answers for devs in answer.values())


def test_a_fix_names_what_it_takes_from_alike_nics(tmp_path: Path) -> None:
    """Of eight NICs in one subnet, the CIDR names one."""
    nics = [f"roce{number}" for number in range(8)]
    links = [
        f"link add {dev}\naddr add 10.20.0.{10 + at}/16 dev {dev}" for at, dev in enumerate(nics)
    ]
    row = Row("\n".join(links), ({"cidr": "10.20.0.0/16", "devs": ["roce3"]},))
    fix = check(_config(row), host=_host(row, tmp_path)).fix
    assert [entry.dev for entry in fix.routes] == ["roce3", "roce3"]
    others = "roce0-roce2, roce4-roce7"
    assert f"also from the addresses of {others}" in "\n".join(fix.consequences)


def test_a_caution_tells_what_strict_rp_filter_drops(tmp_path: Path) -> None:
    """Kept interfaces drop nothing: the kernel looks up their addresses' replies, too."""
    row = Row("", ("10.2.0.0/24", "172.16.0.0/16"), uplinks=("eth0",))
    host = _host(row, tmp_path)
    for name, dev in (("0", "all"), ("1", "ib0"), ("1", "eth1")):
        sysctl = tmp_path / f"proc/sys/net/ipv4/conf/{dev}/rp_filter"
        sysctl.parent.mkdir(parents=True)
        sysctl.write_text(f"{name}\n")
    fix = check(_config(row), host=host).fix
    (strict, kept) = fix.consequences
    assert "drops what they send to eth1, as rp_filter is 1 there; to keep packets" in strict
    assert kept.endswith("this interface's own addresses; with keep, such packets stay on it")
    lost = Loss((IPv4Network("10.2.0.0/25"),), None, "", "", ("eth1",), ("eth0",))
    lost = attrs.evolve(lost, network=IPv4Network("10.2.0.0/24"), neighbours_of=("eth1",))
    moment = read_host(_config(row), host.routes, phases.CancelScope())
    before = host_now(moment.state, moment.places)
    settings = HostSettings(strict_devs=("eth0",))
    keeping = Keeping(before, (lost,))
    (lax,) = cautions_about(moment.state, settings, keeping.lost, before.model.fib, keeping)
    assert "drops" not in str(lax)


# ib0 has the cluster's /16, and ib1 a /24 of it, so the fix has a /17 with two nested /25s.
NESTED = """
    link add ib1
    addr add 172.16.0.9/16 dev ib0
    addr add 172.16.2.9/24 dev ib1
"""
NESTED_FIX = ("172.16.0.0/17", "172.16.2.0/25", "172.16.2.128/25", "172.16.128.0/17")


def _nested(tmp_path: Path, extra: str = "") -> OverlapReport:
    row = Row(f"{NESTED}{extra}", ("172.16.0.0/16",))
    return check(_config(row), host=_host(row, tmp_path))


def test_a_refused_route_leaves_the_routes_nested_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place that needs a longer route keeps it, though a refused one surrounds it."""
    refusals = [{(0xAC100000, 17): "a reason"}, {}]
    monkeypatch.setattr(ModelledHost, "refusals", lambda self: refusals.pop(0))
    fix = _nested(tmp_path).fix
    assert tuple(str(route.destination) for route in fix.routes) == NESTED_FIX[1:3]
    assert any("a reason" in item.reason for item in fix.unfixable)


def test_only_places_that_a_fix_may_change_are_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[IpAddress] = []

    class AskedSockets(Sockets):
        def ask(self, places: Iterable[Place]) -> dict[Place, tuple[SocketLookup, ...]]:
            some = [*places]
            asked.extend(place.probe for place in some)
            return super().ask(some)

    monkeypatch.setattr(_modelled_host, "Sockets", AskedSockets)
    row = Row(NESTED, ("172.16.0.0/16", "10.96.0.0/12"))
    fix = check(_config(row), host=_host(row, tmp_path)).fix
    assert fix.routes
    assert asked
    assert all(address in IPv4Network("172.16.0.0/16") for address in asked)


def test_a_fix_that_moves_a_fine_address_is_not_proposed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof doesn't rely on the search: it finds what a wrong search would take away."""
    whole = [IPv4Network(prefix) for prefix in (*NESTED_FIX, "172.16.9.0/25")]
    fine = "route add 172.16.9.0/24 via 10.1.0.77 dev eth0"
    assert _nested(tmp_path / "right", fine).fix.routes
    monkeypatch.setattr(_routes, "fewest_prefixes", lambda *_: sorted(whole))
    fix = _nested(tmp_path / "wrong", fine).fix
    assert fix.routes == ()
    assert any("172.16.9.0 would leave through" in item.reason for item in fix.unfixable)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("172.16.9.0/25", "172.16.9.0 would fail (OVERLAP), though it doesn't now"),
        ("172.16.2.0/25", "172.16.2.0 would still fail (OVERLAP)"),
    ],
)
def test_the_places_are_judged_again_after_a_fix(
    wrong: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judge alone finds a wrong route over a place that was fine, or is to be fixed."""

    def entry(_: EntryMaker, network: IpNetwork, dev: str | None) -> StaticRoute:
        if network == IPv4Network(wrong):
            return StaticRoute(network, IPv4Address("172.16.0.1"), "ib0")
        return StaticRoute(network, dev="eth0")

    prefixes = sorted(map(IPv4Network, {*NESTED_FIX, wrong}))
    monkeypatch.setattr(_routes, "fewest_prefixes", lambda *_: prefixes)
    monkeypatch.setattr(EntryMaker, "entry", entry)
    for proof in ("_why_others_change", "_why_not_fixed"):
        monkeypatch.setattr(_modelled_host, proof, lambda *_: "")
    fix = _nested(tmp_path, "route add 172.16.9.0/24 via 10.1.0.77 dev eth0").fix
    assert fix.routes == ()
    assert any(told in item.reason for item in fix.unfixable), fix.unfixable


# --- rules ----------------------------------------------------------------------------------------

TABLE_52 = f"{VPN}route add 10.9.0.0/16 via 10.8.8.1 dev tun0 table 52\n"
TABLE_60 = "route add default via 10.2.0.1 dev eth1 table 60\n"
BY_VPN = f"{TABLE_52}rule add pref 5270 lookup 52\n"
FROM_ETH0 = (
    "route add 10.9.0.0/16 via 10.2.0.1 dev eth1 table 52\n"
    "rule add pref 500 from 10.1.0.4 lookup 52\n"
)
PODS = "link add cali1\nroute add 10.9.4.4 dev cali1 proto static scope link\n"


@attrs.frozen
class RuleRow:
    """A node where a policy rule decides before table main.

    Args:
        has: scenario commands.
        rules: the proposed rules.
        routes: the proposed routes.
        why: a part of the reason why there is no rule, or an empty string.
        keep: the interfaces to keep.
        kept: the interfaces that the config keeps already.
        uplinks: the uplinks that the config names.
    """

    has: str
    rules: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()
    why: str = ""
    keep: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    uplinks: tuple[str, ...] = ("eth0",)


WHOLE = "to 10.9.0.0/16 priority 5269"
RULE_ROWS = {
    "a VPN's table": RuleRow(BY_VPN, (WHOLE,)),
    "a VPN's table, and main has pods": RuleRow(f"{BY_VPN}{PODS}", (WHOLE,)),
    "a part of the CIDR": RuleRow(
        BY_VPN.replace("10.9.0.0/16", "10.9.128.0/18"), ("to 10.9.128.0/18 priority 5269",)
    ),
    "two rules": RuleRow(
        f"{BY_VPN}route add 10.9.1.0/24 dev eth1 table 53\nrule add pref 300 lookup 53",
        ("to 10.9.0.0/16 priority 299",),
    ),
    "main leads it through InfiniBand": RuleRow(
        f"{BY_VPN}addr add 10.9.0.9/16 dev ib0",
        (WHOLE,),
        ("10.9.0.0/17", "10.9.128.0/17"),
        keep=("ib0",),
    ),
    "the same before the rules of keep": RuleRow(
        f"{TABLE_52}rule add pref 10 lookup 52\naddr add 10.9.0.9/16 dev ib0",
        ("to 10.9.0.0/16 priority 9",),
        ("10.9.0.0/17", "10.9.128.0/17"),
    ),
    "the same, and the config keeps it": RuleRow(
        f"{TABLE_52}rule add pref 10 lookup 52\naddr add 10.9.0.9/16 dev ib0",
        why="a rule before it would precede those of keep for 10.9.0.0/16: change that rule",
        kept=("ib*",),
    ),
    "the preferences of keep": RuleRow(
        f"{TABLE_52}rule add pref 2172 lookup 52", ("to 10.9.0.0/16 priority 2169",)
    ),
    "behind the kernel's own rule": RuleRow(
        f"{TABLE_52}rule del pref 32766 lookup main proto kernel\nrule add pref 40000 lookup 52\n"
        "rule add pref 50000 lookup main",
        ("to 10.9.0.0/16 priority 32765",),
    ),
    "the first preference": RuleRow(
        f"{TABLE_52}rule add pref 1 lookup 52",
        why="table 52 decide before table main is asked, and no preference is left before it",
    ),
    "a discarding rule": RuleRow(
        "rule add pref 100 to 10.9.4.0/24 prohibit", ("to 10.9.4.0/24 priority 99",)
    ),
    "a rule for connections": RuleRow(FROM_ETH0, ("to 10.9.0.0/16 priority 499",)),
    "a rule for another interface's address": RuleRow(
        f"{FROM_ETH0}{TABLE_60}rule add pref 600 from 10.2.0.4 lookup 60",
        why="a rule before it would also lead away packets of the rule 600: from 10.2.0.4 lookup",
    ),
    "a rule for marked packets": RuleRow(
        f"{FROM_ETH0}{TABLE_60}rule add pref 600 fwmark 0x1 lookup 60",
        why="a rule before it would also lead away packets of the rule 600: from all fwmark 0x1",
    ),
    "a rule for forwarded packets": RuleRow(
        f"{FROM_ETH0}{TABLE_60}rule add pref 600 from 10.77.0.0/16 lookup 60",
        why="a rule before it would also lead away packets of the rule 600: from 10.77.0.0/16",
    ),
    "a rule that discards packets of an interface": RuleRow(
        f"{FROM_ETH0}rule add pref 600 iif eth1 unreachable",
        why="a rule before it would also lead away packets of the rule 600: from all iif eth1",
    ),
    "such a rule, but earlier": RuleRow(
        f"{FROM_ETH0}{TABLE_60}rule add pref 400 fwmark 0x1 lookup 60",
        ("to 10.9.0.0/16 priority 499",),
    ),
    "such a rule behind one for everybody": RuleRow(
        f"{BY_VPN}{TABLE_60}rule add pref 6000 fwmark 0x1 lookup 60", (WHOLE,)
    ),
    "such a rule with main's answer": RuleRow(
        f"{FROM_ETH0}route add default via 10.1.0.1 dev eth0 table 61\n"
        "rule add pref 600 fwmark 0x1 lookup 61",
        ("to 10.9.0.0/16 priority 499",),
    ),
    "such a rule with no answer": RuleRow(
        f"{FROM_ETH0}rule add pref 600 fwmark 0x1 lookup 62", ("to 10.9.0.0/16 priority 499",)
    ),
    "such a rule for a part": RuleRow(
        f"{FROM_ETH0}route add 10.9.0.0/17 via 10.2.0.1 dev eth1 table 60\n"
        "rule add pref 600 fwmark 0x1 lookup 60",
        ("to 10.9.128.0/17 priority 499",),
        why="would also lead away packets of the rule 600",
    ),
    "a gateway that isn't reached before or after the rule": RuleRow(
        "rule del pref 32766 lookup main proto kernel\nroute add blackhole 10.9.0.0/16 table 253\n"
        "addr add 10.9.0.9/16 dev ib0",
        why="a rule before it wouldn't help: the kernel would refuse entries via 10.1.0.1",
    ),
    "a gateway that is only reached after the rule": RuleRow(
        "addr add 10.9.1.4/24 dev eth0\n"
        "route del default via 10.1.0.1 dev eth0 proto dhcp metric 100\n"
        "route add default via 10.9.1.1 dev eth0 proto dhcp\n"
        "route add blackhole 10.9.8.0/24 proto static\n"
        "route add blackhole 10.9.0.0/16 table 253\nrule del pref 32766 lookup main proto kernel",
        ("to 10.9.0.0/16 priority 32765",),
        why="apply would refuse a route that fixes this: Nexthop has invalid gateway",
    ),
    "a rule that has no effect on its first address": RuleRow(
        f"{BY_VPN}route add throw 10.9.0.0 proto static",
        why="apply would refuse a rule before it: the rule 5269: from all to 10.9.0.0/16 lookup",
    ),
    "an own address that only the VPN's table delivers": RuleRow(
        f"{TABLE_52}rule add pref 50 lookup 52\nrule add pref 100 lookup local\n"
        "rule del pref 0 lookup local proto kernel\naddr add 10.9.1.1/32 dev lo\n"
        "route del local 10.9.1.1 dev lo table local proto kernel scope host src 10.9.1.1\n"
        "route add local 10.9.1.1 dev lo table 52",
        why="with a rule before it, what comes in through eth0 for 10.9.1.1 is no longer delivered",
    ),
    "no default route in main": RuleRow(
        f"{BY_VPN}route del default via 10.1.0.1 dev eth0 proto dhcp metric 100",
        why="missing is the default route on eth0",
    ),
}


@pytest.mark.parametrize("row", RULE_ROWS.values(), ids=RULE_ROWS)
def test_table_main_decides_again(row: RuleRow, tmp_path: Path) -> None:
    """After the fix, only what it names fails, and this host still gets its own packets."""
    host = _host(Row(row.has, ()), tmp_path)
    kernel = host.routes
    assert isinstance(kernel, FakeKernel)
    static = {"enabled": True, "keep": list(row.kept)} if row.kept else {}
    asked = _config(
        Row("", ("10.9.0.0/16",), uplinks=row.uplinks),
        **({"staticRoutes": static} if static else {}),
    )
    fix = check(asked, host=host).fix
    assert tuple(map(str, fix.rules)) == row.rules
    assert tuple(map(str, fix.routes)) == row.routes
    assert tuple(map(str, fix.keep)) == row.keep
    assert bool(fix.unfixable) == bool(row.why)
    assert all(row.why in each.reason for each in fix.unfixable)
    assert not any(
        word in each.reason for each in fix.unfixable for word in ("ip rule", "ip route")
    )
    install(kernel, fix.routes, tmp_path, fix.rules, fix.keep)
    again = check(asked, host=host)
    assert _failing(again) == {part for each in fix.unfixable for part in each.ranges}
    own = [each.local for each in host.routes.facts().addresses]
    assert {each.route and each.route.type for each in host.routes.lookup(own)} == {RouteType.LOCAL}
    if row.rules and "cali1" in row.has:
        (found,) = host.routes.lookup([IPv4Address("10.9.4.4")])
        assert found.route is not None
        assert found.route.devs == ("cali1",)


def test_a_rule_waits_for_an_answer_about_mains_route(tmp_path: Path) -> None:
    """A route of main that may be there on purpose isn't put to use unasked."""
    has = (
        f"{VPN}route add 10.1.0.0/24 dev tun0 table 52\nrule add pref 5270 lookup 52\n"
        "route add 10.1.0.128/25 via 10.2.0.1 dev eth1 proto static"
    )
    row = Row(has, ("10.1.0.0/24",))
    fix = check(_config(row), host=_host(row, tmp_path)).fix
    assert tuple(map(str, fix.rules)) == ("to 10.1.0.0/25 priority 5269",)
    (left,) = fix.unfixable
    assert "and table main leads it through eth1, which may be wanted; if" in left.reason
    answered = check(_config(row, **left.answers[-1]), host=_host(row, tmp_path)).fix
    assert tuple(map(str, answered.rules)) == ("to 10.1.0.0/24 priority 5269",)
    assert answered.routes
    assert answered.unfixable == ()


# --- keep -----------------------------------------------------------------------------------------

MORE_IB = "link add ib1\naddr add 172.16.0.11/16 dev ib1\n"
KEEP_ROWS = {
    "one interface": ("", ("ib0",), ""),
    "two interfaces": (MORE_IB, ("ib*",), ""),
    "one of another network": (
        f"{MORE_IB}link add ib2\naddr add 172.17.0.12/16 dev ib2",
        ("ib0", "ib1"),
        "",
    ),
    "one without an address": (f"{MORE_IB}link add ib2", ("ib*",), ""),
    "pods in its network": (
        "link add cni0\naddr add 172.16.20.1/24 dev cni0",
        ("ib0",),
        "packets from the addresses of ib0 no longer go to 172.16.20.0/24 through cni0",
    ),
    "one that is an uplink": (
        (
            f"{MORE_IB}link add ib2\naddr add 10.3.0.4/24 dev ib2\n"
            "route add default via 10.3.0.1 dev ib2"
        ),
        ("ib0", "ib1"),
        "",
    ),
    "one address on two interfaces": (
        "link add ib1\naddr add 172.16.0.10/16 dev ib1",
        (),
        "in 172.16.0.0/16 through eth0, also from these interfaces' own addresses",
    ),
    "another interface": (
        "addr add 172.16.0.12/16 dev eth1",
        ("ib0",),
        'add to hostRouting.staticRoutes.keep: "eth1"',
    ),
}


def test_infiniband_that_is_down_is_kept_too(tmp_path: Path) -> None:
    host = _host(Row(MORE_IB, ("172.16.0.0/16",), uplinks=("eth0",)), tmp_path)
    assert isinstance(host.routes, FakeKernel)
    host.routes.set_link("ib1", up=False)
    fix = check(_config(Row(MORE_IB, ("172.16.0.0/16",))), host=host).fix
    assert tuple(map(str, fix.keep)) == ("ib0",)
    host.routes.add_link("ib2")
    host.routes.add_address("ib2", "172.16.0.12/16")
    fix = check(_config(Row(MORE_IB, ("172.16.0.0/16",))), host=host).fix
    assert tuple(map(str, fix.keep)) == ("ib*",)
    (caution,) = fix.consequences
    assert "neighbours of ib0, ib2 in" in caution


@pytest.mark.parametrize(("has", "keep", "caution"), KEEP_ROWS.values(), ids=KEEP_ROWS)
def test_infiniband_is_kept_and_others_are_offered(
    has: str, keep: tuple[str, ...], caution: str, tmp_path: Path
) -> None:
    row = Row(has, ("172.16.0.0/16",), uplinks=("ib2",) if "default" in has else ("eth0",))
    host = _host(row, tmp_path)
    kernel = host.routes
    assert isinstance(kernel, FakeKernel)
    fix = check(_config(row), host=host).fix
    assert fix.routes
    assert tuple(map(str, fix.keep)) == keep
    assert any(caution in line for line in fix.consequences)
    install(kernel, fix.routes, tmp_path, fix.rules, fix.keep)
    assert check(_config(row), host=host).verdict == "ok"
    for address in host.routes.facts().addresses:
        if keep and address.dev in ("ib0", "ib1"):
            (found,) = host.routes.lookup([IPv4Address("172.16.5.5")], source=address.local)
            assert found.route is not None
            assert found.route.devs == (address.dev,)
