"""Snapshots of six kinds of AKS nodes with 60 pods each, and of hosts of any size."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import attrs

from hostrouting.config.routing import RouteOverlap
from hostrouting.kernel.rules import KERNEL_RULES
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.model.links import Address, Hardware, Link
from hostrouting.model.routes import (
    DEFAULT_DESTINATION,
    NextHop,
    Protocol,
    Route,
    RouteType,
    Scope,
    Table,
)
from hostrouting.model.rules import Rule

CONFIG = {
    "hostRouting": {
        "routeOverlap": {
            "expectedCidrs": ["172.16.0.0/16", "10.96.0.0/12", "10.244.0.0/16"],
            "mode": "STRICT",
        }
    }
}

_HALVES = tuple(IPv4Network("172.16.0.0/16").subnets())
_PODS = 60
_HOPS = (NextHop("eth0", IPv4Address("10.224.0.1")),)


def _record(
    addresses: Sequence[Address], routes: Sequence[Route], rules: Sequence[Rule] = ()
) -> Snapshot:
    """Return a snapshot with these addresses, their links, connected and local routes."""
    devs = dict.fromkeys(address.dev for address in addresses)
    return Snapshot(
        links=(
            Link(1, "lo", hardware=Hardware.LOOPBACK),
            *(_link(index, dev) for index, dev in enumerate(devs, 2)),
        ),
        addresses=tuple(addresses),
        rules=(KERNEL_RULES[0], *rules, *KERNEL_RULES[1:]),
        routes=(*routes, *(route for address in addresses for route in _connected(address))),
        is_merged=not rules,
    )


def _link(index: int, dev: str) -> Link:
    hardware = Hardware.INFINIBAND if dev.startswith("ib") else Hardware.ETHER
    return Link(index, dev, kind="veth" if dev.startswith("azv") else None, hardware=hardware)


def _connected(address: Address) -> Iterator[Route]:
    hops = (NextHop(address.dev),)
    network = Route(
        address.network, hops, protocol=Protocol.KERNEL, scope=Scope.LINK, source=address.local
    )
    yield network
    local = attrs.evolve(network, type=RouteType.LOCAL, table=Table.LOCAL, scope=Scope.HOST)
    yield attrs.evolve(local, destination=IPv4Network(address.local))
    last = IPv4Network(address.network.broadcast_address)
    yield attrs.evolve(local, destination=last, type=RouteType.BROADCAST, scope=Scope.LINK)


# --- a fleet --------------------------------------------------------------------------------------


def node(number: int, protocol: int = Protocol.STATIC) -> Snapshot:
    """Return a healthy node's snapshot: two routes override InfiniBand's connected /16.

    Args:
        number: the number of the node in its fleet.
        protocol: the protocol of the two routes, by default another program's.
    """
    infiniband = [
        Address(f"ib{each}", IPv4Address("172.16.0.10") + number % 1000 * 8 + each, 16)
        for each in range(8)
    ]
    eth0 = Address("eth0", IPv4Address("10.224.0.4") + number, 16)
    first_pod, pods = (
        IPv4Address("10.244.0.2") + number % 256 * 256,
        [f"azv{number:04x}{n:03x}" for n in range(_PODS)],
    )
    routes = (
        Route(DEFAULT_DESTINATION, _HOPS, protocol=Protocol.DHCP, source=eth0.local, metric=100),
        *(Route(half, _HOPS, protocol=protocol) for half in _HALVES),
        *(
            Route(IPv4Network(first_pod + n), (NextHop(dev),), protocol=Protocol.STATIC)
            for n, dev in enumerate(pods)
        ),
    )
    made = _record([eth0, *infiniband], routes)
    return attrs.evolve(
        made,
        links=(
            *made.links,
            *(_link(index, dev) for index, dev in enumerate(pods, len(made.links) + 1)),
        ),
        host=f"aks-h200-{number:05}",
        time="2026-11-20T09:00:00Z",
        kernel="Linux 5.15.0-1074-azure",
    )


def _without(of: Snapshot, protocol: int) -> Snapshot:
    return attrs.evolve(
        of, routes=tuple(route for route in of.routes if route.protocol != protocol)
    )


def _without_halves(of: Snapshot) -> Snapshot:
    left = tuple(route for route in of.routes if route.destination not in _HALVES)
    return attrs.evolve(of, routes=left)


def _with(of: Snapshot, route: Route) -> Snapshot:
    return attrs.evolve(of, routes=(*of.routes, route))


def _past_main(of: Snapshot) -> Snapshot:
    """Send some service addresses to a VPN's table by a rule, so that no route in main helps."""
    rule = Rule(100, table=100, destination=IPv4Network("10.100.0.0/16"))
    default = Route(DEFAULT_DESTINATION, (NextHop("ib7"),), table=100, protocol=Protocol.STATIC)
    return attrs.evolve(
        _with(of, default), rules=(KERNEL_RULES[0], rule, *KERNEL_RULES[1:]), is_merged=False
    )


_DISCARDED = Route(
    IPv4Network("10.96.0.0/12"), type=RouteType.UNREACHABLE, protocol=Protocol.STATIC
)

KINDS: dict[str, Callable[[Snapshot], Snapshot]] = {
    "fixed": lambda of: of,
    "shadowed": _without_halves,
    "discarded": lambda of: _with(of, _DISCARDED),
    "past-main": _past_main,
    "no-default-route": lambda of: _without(of, Protocol.DHCP),
    "cut-off": lambda of: of,
}
"""Functions that change the snapshot of a healthy node. A file of the last kind is truncated."""


def write_snapshots(folder: Path, count: int) -> list[Path]:
    """Write the config and ``count`` snapshots of alternating kinds, and return their paths."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    paths = [folder / f"node-{number:05}.json" for number in range(count)]
    for number, path in enumerate(paths):
        kind = [*KINDS][number % len(KINDS)]
        text = KINDS[kind](node(number)).to_text()
        path.write_text(text if kind != "cut-off" else text[: len(text) // 2])
    return paths


# --- hosts that grow ------------------------------------------------------------------------------

# Each added item has a /24 of this CIDR in which there is something to report.
_CIDR = IPv4Network("172.16.0.0/12")
_OTHER = Address("ib0", IPv4Address("10.2.0.4"), 24)


def _host(
    addresses: Sequence[Address] = (), routes: Sequence[Route] = (), rules: Sequence[Rule] = ()
) -> tuple[Snapshot, RouteOverlap]:
    default = Route(DEFAULT_DESTINATION, _HOPS, protocol=Protocol.DHCP)
    eth0 = Address("eth0", IPv4Address("10.224.0.4"), 24)
    return _record([eth0, *addresses], [default, *routes], rules), RouteOverlap([_CIDR])


def _part(number: int, length: int = 24) -> IPv4Network:
    return IPv4Network((int(_CIDR[0]) + number * 256, length))


def _interfaces(count: int) -> tuple[Snapshot, RouteOverlap]:
    return _host([Address(f"ib{number}", _part(number)[4], 24) for number in range(count)])


def _rules(count: int) -> tuple[Snapshot, RouteOverlap]:
    rules = [Rule(number + 1, table=100, destination=_part(number)) for number in range(count)]
    return _host([_OTHER], [Route(DEFAULT_DESTINATION, (NextHop("ib0"),), table=100)], rules)


def _foreseen(count: int) -> tuple[Snapshot, RouteOverlap]:
    foreseen = [_part(number, 25) for number in range(count)]
    return _host()[0], RouteOverlap([_part(number) for number in range(count)], foreseen=foreseen)


def _subnets(count: int) -> tuple[Snapshot, RouteOverlap]:
    return _host([Address("ib0", _part(number)[4], 24) for number in range(count)])


def _gateways(count: int) -> tuple[Snapshot, RouteOverlap]:
    hops = ((NextHop("ib0", _part(number)[9]),) for number in range(count))
    routes = [
        Route(IPv4Network(((16 << 24) + number * 1024, 24)), hop) for number, hop in enumerate(hops)
    ]
    return _host([Address("ib0", _CIDR[4], _CIDR.prefixlen)], routes)


def _addresses(count: int) -> tuple[Snapshot, RouteOverlap]:
    own = (Address("eth0", _part(number)[4], 24) for number in range(count))
    routes = [
        Route(IPv4Network((int(_part(number)[128]), 25)), (NextHop("ib0"),))
        for number in range(count)
    ]
    return _host([*own, _OTHER], routes)


def shadowed(count: int) -> tuple[Snapshot, RouteOverlap]:
    """Return a host whose VPN takes all traffic by a rule, and CIDRs that fail, each apart."""
    rule = Rule(32762, table=51820)
    vpn = Route(DEFAULT_DESTINATION, (NextHop("ib0"),), table=51820, scope=Scope.LINK)
    cidrs = [IPv4Network(((16 << 24) + number * 512, 24)) for number in range(count)]
    return _host([_OTHER], [vpn], [rule])[0], RouteOverlap(cidrs)


HOSTS: dict[str, tuple[str, Callable[[int], tuple[Snapshot, RouteOverlap]]]] = {
    "interfaces": ("interfaces in a CIDR", _interfaces),
    "rules": ("policy rules to parts of a CIDR", _rules),
    "foreseen": ("CIDRs and foreseen prefixes", _foreseen),
    "subnets": ("subnets of an interface in a CIDR", _subnets),
    "gateways": ("gateways behind another interface", _gateways),
    "addresses": ("subnets of the default route's interface", _addresses),
}
"""Kinds of items that a host may have many of, each with a function that makes a snapshot."""
