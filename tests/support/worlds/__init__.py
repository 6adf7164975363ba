"""Random hosts.

``World`` describes a host and builds it on Linux or in memory, and ``Question`` adds its config.
Each module draws a different kind of host:

- ``cut``: tables, rules and addresses that split a /20 into many parts; knobs ask for nexthop
  objects, or for rules that select by a connection's source
- ``hosts``: the same as commands, for any kernel that ip(8) can change; knobs ask for more
  interfaces
- ``features``: the same with one or two things that only sockets can judge
- ``ipv6``: hosts with IPv6, as commands
- ``seldom``: hosts that random draws rarely produce

``hostrouting.testing.strategies`` is public and draws single routes, rules and addresses.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

import attrs

from hostrouting import ExpectedCidr
from hostrouting.kernel.memory import FakeKernel
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.port import Kernel, Write
from hostrouting.model.errors import RouteError
from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.routes import Protocol, Route, Table
from hostrouting.model.rules import Rule
from hostrouting.testing.strategies import NewAddress

OFFSETS = (0, 1, 4, 9, 100, 128, 200, 255, 256, 300, 511, 512, 700, 1023)
"""Offsets of addresses and prefixes in a part of the address space."""

# The bridge of the interfaces that are ports.
BRIDGE = "br-ex"

# The default route's interface, a second NIC, a shadowing interface, a container bridge, and two
# pod interfaces.
DEVICES = ("eth0", "eth1", "ib0", "docker0", "cali1", "veth1")

# The check leaves these out, because the addresses need an interface, don't identify hosts or
# aren't unicast.
_UNJUDGED: tuple[IpNetwork, ...] = (
    *map(IPv4Network, ("0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/3")),
    *map(IPv6Network, ("::/127", "::ffff:0:0/96", "fe80::/10", "ff00::/8")),
)

STANDARD_RULES = (
    Rule(0, table=Table.LOCAL, protocol=Protocol.KERNEL),
    Rule(32766, table=Table.MAIN, protocol=Protocol.KERNEL),
    Rule(32767, table=Table.DEFAULT, protocol=Protocol.KERNEL),
)


@attrs.frozen
class World:
    """The steps that turn a new kernel into a host. Steps that fail are skipped.

    Args:
        addresses: each address with its interface.
        routes: the routes, in the order of their creation. Their nexthop objects are added first.
        rules: the rules, in the order of their creation.
        without: preferences of the default rules to delete.
        objects: arguments for ``ip nexthop add``, used only on a real kernel.
        down: interfaces to set down at the end.
        unplugged: interfaces that lose their carrier at the end.
        hides_hops: whether the kernel hides the next hops of routes with nexthop objects.
        links: interfaces that exist even without addresses or routes.
        ports: interfaces that are ports of ``BRIDGE``.
    """

    addresses: tuple[tuple[str, NewAddress], ...]
    routes: tuple[Route, ...]
    rules: tuple[Rule, ...] = ()
    without: tuple[int, ...] = ()
    objects: tuple[str, ...] = ()
    down: tuple[str, ...] = ()
    unplugged: tuple[str, ...] = ()
    hides_hops: bool = False
    links: tuple[str, ...] = ("eth0",)
    ports: tuple[str, ...] = ()

    @property
    def has_rules(self) -> bool:
        """Return whether the rules were ever changed, after which the kernel uses a different code
        path.
        """
        return bool(self.rules or self.without)

    @property
    def devs(self) -> tuple[str, ...]:
        """Return the host's interfaces."""
        named = {dev for dev, _ in self.addresses} | {
            hop.dev for route in self.routes for hop in route.hops
        }
        named |= {word for words in self.objects for word in words.split()}
        return (
            *self.links,
            *(dev for dev in (*DEVICES, "e$th") if dev in named and dev not in self.links),
        )

    def build(self, kernel: Kernel) -> None:
        ports = [dev for dev in self.devs if dev in self.ports]
        if ports and isinstance(kernel, FakeKernel):
            kernel.add_link(BRIDGE, kind="bridge")
        for dev in self.devs:
            if dev in ports and isinstance(kernel, FakeKernel):
                kernel.add_link(dev, master=BRIDGE)
            else:
                kernel.add_link(dev)
        if ports and isinstance(kernel, NamespaceKernel):
            _ip("\n".join([f"link add {BRIDGE} type bridge", *map(_enslaving, ports)]))
        for dev, address in self.addresses:
            _tried(partial(kernel.add_address, dev, **attrs.asdict(address)))
        if self.objects and isinstance(kernel, NamespaceKernel):
            if self.hides_hops:
                # In the kernel's namespace.
                Path("/proc/sys/net/ipv4/nexthop_compat_mode").write_text("0")
            _ip("".join(f"nexthop add {words}\n" for words in self.objects))
        kernel.write(Write.ADD, self.routes)
        for rule in self.rules:
            _tried(lambda rule=rule: kernel.add_rule(rule))  # type: ignore[misc]
        for rule in filter(lambda rule: rule.preference in self.without, STANDARD_RULES):
            kernel.del_rule(rule)
        for dev in set(self.devs).intersection(self.down):
            kernel.set_link(dev, up=False)
        for dev in set(self.devs).intersection(self.unplugged):
            kernel.set_link(dev, carrier=False)


def boundaries(
    cidrs: Sequence[IpNetwork],
    routes: Iterable[Route],
    rules: Iterable[Rule],
    more: Iterable[int] = (),
) -> list[IpAddress]:
    """Return the addresses of CIDRs at and next to the ends of all prefixes, and some more."""
    family = Family.of(cidrs[0])
    blocks = [block for block in _UNJUDGED if block.version == family.value]
    prefixes: list[IpNetwork] = [*cidrs, *blocks, *(route.destination for route in routes)]
    prefixes += [rule.destination for rule in rules if rule.destination is not None]
    numbers = {
        int(end) + beside
        for prefix in prefixes
        for end in (prefix[0], prefix[-1])
        for beside in (-1, 0, 1)
    }
    asked = [
        family.address(number)
        for number in sorted(numbers.union(more))
        if 0 <= number < 1 << family.bits
    ]
    inside = [address for address in asked if any(address in cidr for cidr in cidrs)]
    return [address for address in inside if not any(address in block for block in blocks)]


def as_expected(given: Iterable[ExpectedCidr | IPv4Network]) -> tuple[ExpectedCidr, ...]:
    return tuple(each if isinstance(each, ExpectedCidr) else ExpectedCidr(each) for each in given)


@attrs.frozen
class Question:
    """A host and its config.

    Args:
        world: the host.
        expected: the expected CIDRs, as prefixes or with their own interfaces.
        allowed: the value of ``allowedDevs``.
        foreseen: prefixes that may later get a route through another interface.
    """

    world: World
    expected: tuple[ExpectedCidr, ...] = attrs.field(converter=as_expected)
    allowed: tuple[str, ...] = ()
    foreseen: tuple[IPv4Network, ...] = ()

    @property
    def cidrs(self) -> tuple[IPv4Network, ...]:
        """Return the expected CIDRs without their interfaces."""
        return tuple(IPv4Network(each.cidr) for each in self.expected)

    @property
    def addresses(self) -> list[IpAddress]:
        """Return the expected addresses at and next to the boundaries of all prefixes, and at a few
        offsets.
        """
        some = {int(cidr[0]) + offset for cidr in self.cidrs for offset in OFFSETS}
        return boundaries(self.cidrs, self.world.routes, self.world.rules, some)

    @property
    def tries(self) -> int:
        """Return the number of ports to try, since the kernel selects among several next hops at
        random.
        """
        return 32 if any(len(route.hops) > 1 for route in self.world.routes) else 1


def _ip(batch: str) -> None:
    subprocess.run(
        ["ip", "-batch", "-", "-force"], input=batch, text=True, capture_output=True, check=False
    )


def _enslaving(dev: str) -> str:
    return f"link set {dev} master {BRIDGE}"


def _tried(step: Callable[[], object]) -> None:
    try:
        step()
    except RouteError as error:
        if error.errno is None:
            raise
