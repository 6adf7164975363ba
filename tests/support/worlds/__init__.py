"""Random hosts.

``World`` describes a host, and builds it on Linux or in memory. The modules draw different kinds of hosts:

- ``cut``: tables, rules and addresses that split a /20 into many parts, with expected CIDRs, and hosts that chance
  rarely produces
- ``sources``: rules that select by the source of a connection, and addresses with scopes
- ``routes``: existing routes to the destinations that a config wants

``hostrouting.testing.strategies`` draws single routes, rules and addresses, and is available to users.
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

# These are the default route's interface, a second NIC, one that shadows, one that gets advice, and two of containers.
DEVICES = ("eth0", "eth1", "ib0", "docker0", "cali1", "veth1")

STANDARD_RULES = (
    Rule(0, table=Table.LOCAL, protocol=Protocol.KERNEL),
    Rule(32766, table=Table.MAIN, protocol=Protocol.KERNEL),
    Rule(32767, table=Table.DEFAULT, protocol=Protocol.KERNEL),
)


@attrs.frozen
class World:
    """The steps that build a host from a fresh kernel. Steps that the kernel refuses are skipped.

    Args:
        addresses: the addresses with their interfaces.
        routes: the routes, in the order in which they are added. The nexthop objects that they use are added first.
        rules: the rules, in the order in which they are added.
        without: the preferences of the default rules to delete.
        objects: the arguments of ``ip nexthop add``, which are used only on a real kernel.
        down: the interfaces that are set down at the end.
        unplugged: the interfaces that lose their carrier at the end.
        hides_hops: whether the kernel hides the hops of routes that use nexthop objects.
        links: the interfaces that exist even without addresses or routes.
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
        """Return whether the rules were ever changed, which makes the kernel use another code path from then on."""
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
                Path("/proc/sys/net/ipv4/nexthop_compat_mode").write_text("0")  # in the kernel's namespace
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
