"""Build snapshots of dual-stack hosts from lines in ip-route(8) and ip-address(8) syntax."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Interface, IPv6Network

from hostrouting.kernel.fib6 import LABELS
from hostrouting.kernel.ip_commands import number, split_route
from hostrouting.kernel.rules import KERNEL_RULES, kernel_rules
from hostrouting.kernel.snapshot import Ipv6State, Snapshot
from hostrouting.model.family import Family
from hostrouting.model.links import Address, Address6, Hardware, Link
from hostrouting.model.routes import (
    DEFAULT_DESTINATION,
    NextHop,
    Preference,
    Protocol,
    Route,
    Route6,
    RouteType,
    Scope,
    Table,
)
from hostrouting.model.rules import Rule

DEVS = ("eth0", "rail0", "rail1", "cali0")
DEFAULT = "default via fe80::1 dev eth0 proto ra metric 1024"
_HARDWARE = {"rail0": Hardware.INFINIBAND}  # whose own networks need no question

RIVAL = "default via fe80::2 dev rail0 proto ra metric 1024"


def entry(line: str) -> Route6:
    """Parse a line of ``ip -6 route show`` output. The metric defaults to 1024."""
    kind, destination, hops, options = split_route(line, ("from", "pref", "expires"))
    return Route6(
        IPv6Network("::/0" if destination == "default" else destination),
        hops,
        kind,
        table=number(options.get("table", "main"), Table),
        protocol=number(options.get("proto", "static"), Protocol),
        metric=int(options.get("metric", "1024")),
        source=IPv6Address(options["src"]) if "src" in options else None,
        mtu=int(options["mtu"]) if "mtu" in options else None,
        source_prefix=IPv6Network(options["from"]) if "from" in options else None,
        preference=Preference[options.get("pref", "medium").upper()],
        expires=int(options["expires"].removesuffix("sec")) if "expires" in options else None,
    )


def routes_of(address: Address6) -> list[Route6]:
    """Return the routes that the kernel creates for an address."""
    local = f"local {address.local} dev {address.dev} table local proto kernel metric 0"
    return [entry(local), entry(f"{address.network} dev {address.dev} proto kernel metric 256")]


def local_route(address: Address) -> Route:
    """Return the entry in table local that the kernel creates for an IPv4 address."""
    return Route(
        IPv4Network(int(address.local)),
        (NextHop(address.dev),),
        RouteType.LOCAL,
        table=Table.LOCAL,
        protocol=Protocol.KERNEL,
        scope=Scope.HOST,
    )


def host(
    *lines: str,
    addresses: Sequence[str] = (),
    rules: Sequence[Rule] = (),
    ipv4_default: str | None = "eth0",
    silent: Sequence[tuple[str, str]] = (),
) -> Snapshot:
    """Return a snapshot of a host with the interfaces in ``DEVS``.

    Args:
        lines: the IPv6 routes, except those that the kernel creates for addresses.
        addresses: the IPv6 addresses, such as ``fd00:1::4/64 dev rail0``.
        rules: additional IPv6 policy rules.
        ipv4_default: the interface used by the IPv4 default route, or None to omit the route.
        silent: unreachable routers, as pairs of interface and address.
    """
    links = [
        Link(1, "lo", hardware=Hardware.LOOPBACK),
        *(
            Link(index, dev, hardware=_HARDWARE.get(dev, Hardware.ETHER))
            for index, dev in enumerate(DEVS, 2)
        ),
    ]
    own4 = [
        Address(dev, IPv4Address(f"10.{index}.0.4"), 24) for index, dev in enumerate(DEVS[:2], 1)
    ]
    routes4 = [
        Route(each.network, (NextHop(each.dev),), protocol=Protocol.KERNEL, scope=Scope.LINK)
        for each in own4
    ]
    routes4 += [local_route(each) for each in own4]
    if ipv4_default is not None:
        gateway = NextHop(
            ipv4_default, IPv4Address("10.1.0.1" if ipv4_default == "eth0" else "10.2.0.1")
        )
        routes4.append(Route(DEFAULT_DESTINATION, (gateway,), protocol=Protocol.DHCP))
    own = []
    for line in addresses:
        interface, _, dev, *_ = line.split()
        found = IPv6Interface(interface)
        own.append(Address6(dev, found.ip, found.network.prefixlen))
    routes = [*map(entry, lines), *(route for address in own for route in routes_of(address))]
    local, *others = kernel_rules(Family.IPV6)
    routers = frozenset((dev, IPv6Address(gateway)) for dev, gateway in silent)
    ordered = (local, *sorted(rules, key=lambda rule: rule.preference), *others)
    ipv6 = Ipv6State(tuple(own), ordered, tuple(routes), routers, labels=LABELS)
    return Snapshot(
        tuple(links),
        tuple(own4),
        KERNEL_RULES,
        tuple(routes4),
        host="node-6",
        is_merged=True,
        ipv6=ipv6,
    )
