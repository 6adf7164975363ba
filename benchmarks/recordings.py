"""Recordings of a fleet: AKS nodes with 60 pods each, of six kinds.

./run python -m benchmarks.recordings FOLDER [COUNT] writes them, and the config that they are to be judged by.
"""

from __future__ import annotations

import json
import sys
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from hostrouting.kernel.rules import KERNEL_RULES
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.model.links import Address, Hardware, Link
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route, RouteType, Scope, Table
from hostrouting.model.rules import Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CONFIG", "KINDS", "node", "write_recordings"]

CIDRS = ["172.16.0.0/16", "10.96.0.0/12", "10.244.0.0/16"]
CONFIG = {"hostRouting": {"routeOverlap": {"expectedCidrs": CIDRS, "mode": "STRICT"}}}

_PODS = 60
_NODES = int(IPv4Address("10.224.0.4"))
_HOPS = (NextHop("eth0", IPv4Address("10.224.0.1")),)
_SERVICES = IPv4Network("10.96.0.0/12")


def _pod(number: int, pod: int) -> IPv4Network:
    return IPv4Network((int(IPv4Address("10.244.0.0")) + number % 256 * 256 + pod + 2, 32))


def _connected(address: Address) -> Iterator[Route]:
    hops = (NextHop(address.dev),)
    network = Route(address.network, hops, protocol=Protocol.KERNEL, scope=Scope.LINK, source=address.local)
    yield network
    local = attrs.evolve(network, type=RouteType.LOCAL, table=Table.LOCAL, scope=Scope.HOST)
    yield attrs.evolve(local, destination=IPv4Network(address.local))
    last = IPv4Network(address.network.broadcast_address)
    yield attrs.evolve(local, destination=last, type=RouteType.BROADCAST, scope=Scope.LINK)


def _link(index: int, dev: str) -> Link:
    hardware = Hardware.INFINIBAND if dev.startswith("ib") else Hardware.ETHER
    return Link(index, dev, kind="veth" if dev.startswith("azv") else None, hardware=hardware)


def node(number: int) -> Snapshot:
    """A node as it should be: InfiniBand has the cluster's /16, and two routes mend that."""
    infiniband = [Address(f"ib{each}", IPv4Address("172.16.0.10") + number % 1000 * 8 + each, 16) for each in range(8)]
    addresses = (Address("eth0", IPv4Address(_NODES + number), 16), *infiniband)
    devs = (*(address.dev for address in addresses), *(f"azv{number:04x}{pod:03x}" for pod in range(_PODS)))
    pods = (
        Route(_pod(number, pod), (NextHop(dev),), protocol=Protocol.STATIC) for pod, dev in enumerate(devs[-_PODS:])
    )
    return Snapshot(
        links=(Link(1, "lo", hardware=Hardware.LOOPBACK), *(_link(index, dev) for index, dev in enumerate(devs, 2))),
        addresses=addresses,
        rules=KERNEL_RULES,
        routes=(
            Route(DEFAULT_DESTINATION, _HOPS, protocol=Protocol.DHCP, source=addresses[0].local, metric=100),
            *(route for address in addresses for route in _connected(address)),
            *(Route(half, _HOPS) for half in IPv4Network("172.16.0.0/16").subnets()),
            *pods,
        ),
        host=f"aks-h200-{number:05}",
        time="2026-11-20T09:00:00Z",
        kernel="Linux 5.15.0-1074-azure",
        is_merged=True,
    )


def _without(of: Snapshot, protocol: int) -> Snapshot:
    return attrs.evolve(of, routes=tuple(route for route in of.routes if route.protocol != protocol))


def _with(of: Snapshot, *routes: Route) -> Snapshot:
    return attrs.evolve(of, routes=(*of.routes, *routes))


def _past_main(of: Snapshot) -> Snapshot:
    """A policy rule leads a part of the services to a table of a VPN, which no route in main changes."""
    rule = Rule(100, table=100, destination=IPv4Network("10.100.0.0/16"))
    default = Route(DEFAULT_DESTINATION, (NextHop("ib7"),), table=100, protocol=Protocol.STATIC)
    return attrs.evolve(_with(of, default), rules=(KERNEL_RULES[0], rule, *KERNEL_RULES[1:]), is_merged=False)


KINDS: dict[str, Callable[[Snapshot], Snapshot]] = {
    "mended": lambda of: of,
    "shadowed": lambda of: _without(of, Protocol.HOSTROUTING),
    "discarded": lambda of: _with(of, Route(_SERVICES, type=RouteType.UNREACHABLE, protocol=Protocol.STATIC)),
    "past-main": _past_main,
    "no-default-route": lambda of: _without(of, Protocol.DHCP),
    "cut-off": lambda of: of,
}
"""What is done to a node as it should be; of the last kind only a part of the file has arrived."""


def write_recordings(folder: Path, count: int) -> list[Path]:
    """Write that many recordings and the config; the kinds take turns.

    Returns:
        The recordings' paths.
    """
    (folder / "config.json").write_text(json.dumps(CONFIG))
    paths = [folder / f"node-{number:05}.json" for number in range(count)]
    for number, path in enumerate(paths):
        kind = [*KINDS][number % len(KINDS)]
        text = KINDS[kind](node(number)).to_text()
        path.write_text(text if kind != "cut-off" else text[: len(text) // 2])
    return paths


if __name__ == "__main__":
    write_recordings(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10_000)
