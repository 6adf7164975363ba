"""Random hosts.

``World`` is a host before any lookup, and builds itself on Linux or in memory. The modules draw:

- ``cut``: tables, rules and addresses that cut a /20 into many parts, with expected CIDRs; and hosts rare by chance
- ``sources``: rules that select by the source of a connection, and scopes of addresses
- ``routes``: the routes that exist where a config wants its own

``hostrouting.testing.strategies`` has the routes, rules and addresses; users draw from them too.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.model.errors import RouteError
from hostrouting.model.routes import Protocol, Route, Table
from hostrouting.model.rules import Rule

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostrouting.kernel.port import Kernel
    from hostrouting.testing.strategies import NewAddress

# The default route's interface, a second NIC, one that shadows, one that gets advice, and two of containers.
DEVICES = ("eth0", "eth1", "ib0", "docker0", "cali1", "veth1")

STANDARD_RULES = (
    Rule(0, table=Table.LOCAL, protocol=Protocol.KERNEL),
    Rule(32766, table=Table.MAIN, protocol=Protocol.KERNEL),
    Rule(32767, table=Table.DEFAULT, protocol=Protocol.KERNEL),
)


@attrs.frozen
class World:
    """The steps that build a host from a fresh kernel; a step that the kernel refuses is left out.

    Args:
        addresses: the addresses by interface.
        routes: the routes, in the order in which they are added; those with a ``nexthop_id`` come after the objects.
        rules: the rules, in the same way.
        without: preferences of the default rules that are deleted.
        objects: the words behind ``ip nexthop add``; only on a real kernel.
        down: interfaces that are set down last.
        unplugged: interfaces that lose their carrier last.
        hides_hops: whether the kernel hides the hops of routes that use nexthop objects.
        links: interfaces that exist without addresses or routes too.
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

    @property
    def has_rules(self) -> bool:
        """Tell whether the rules were ever touched: the kernel then takes another code path for good."""
        return bool(self.rules or self.without)

    @property
    def devs(self) -> tuple[str, ...]:
        """Return the host's interfaces."""
        named = {dev for dev, _ in self.addresses} | {hop.dev for route in self.routes for hop in route.hops}
        named |= {word for words in self.objects for word in words.split()}
        return (*self.links, *(dev for dev in (*DEVICES, "e$th") if dev in named and dev not in self.links))

    def build(self, kernel: Kernel) -> None:
        for dev in self.devs:
            kernel.add_link(dev)
        for dev, address in self.addresses:
            _tried(lambda dev=dev, address=address: kernel.add_address(dev, **attrs.asdict(address)))  # type: ignore[misc]
        if self.objects and isinstance(kernel, NamespaceKernel):
            if self.hides_hops:
                Path("/proc/sys/net/ipv4/nexthop_compat_mode").write_text("0")  # of the kernel's namespace
            _ip("".join(f"nexthop add {words}\n" for words in self.objects))
        kernel.add(self.routes)
        for rule in self.rules:
            _tried(lambda rule=rule: kernel.add_rule(rule))  # type: ignore[misc]
        for rule in filter(lambda rule: rule.preference in self.without, STANDARD_RULES):
            kernel.del_rule(rule)
        for dev in set(self.devs).intersection(self.down):
            kernel.set_link(dev, up=False)
        for dev in set(self.devs).intersection(self.unplugged):
            kernel.set_link(dev, carrier=False)


def _ip(batch: str) -> None:
    subprocess.run(["ip", "-batch", "-", "-force"], input=batch, text=True, capture_output=True, check=False)


def _tried(step: Callable[[], object]) -> None:
    try:
        step()
    except RouteError as error:
        if error.errno is None:
            raise
