"""Random hosts.

``World`` is a host before anything is asked about it, and builds itself on Linux or in memory. What is drawn:

- ``cut``: tables, rules and addresses that cut a /20 in many ways, with expected CIDRs; and hosts that chance seldom makes
- ``sources``: rules that ask for the source that a connection gets, and scopes of addresses
- ``routes``: what is there where a config wants its routes

``hostrouting.testing.strategies`` has the routes, rules and addresses for them that users draw too.
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

# The default route's, a second NIC, one that shadows, one that gets advice, and two of containers.
DEVICES = ("eth0", "eth1", "ib0", "docker0", "cali1", "veth1")

STANDARD_RULES = (
    Rule(0, table=Table.LOCAL, protocol=Protocol.KERNEL),
    Rule(32766, table=Table.MAIN, protocol=Protocol.KERNEL),
    Rule(32767, table=Table.DEFAULT, protocol=Protocol.KERNEL),
)


@attrs.frozen
class World:
    """What is done to a fresh kernel; a step that the kernel refuses is left out.

    Args:
        addresses: by interface.
        routes: in the order in which they are added; those with a ``nexthop_id`` come after the objects.
        rules: likewise.
        without: preferences of the rules of the kernel's own that are deleted.
        objects: the words behind ``ip nexthop add``; only where the kernel is a real one.
        down: interfaces that are set down in the end.
        unplugged: interfaces that lose their carrier in the end.
        hides_hops: whether the kernel shows no hops of routes by objects.
        links: interfaces that are there even if nothing is said of them.
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
        """Whether the rules were ever touched: from then on the kernel takes another path."""
        return bool(self.rules or self.without)

    @property
    def devs(self) -> tuple[str, ...]:
        """The interfaces that are there."""
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
