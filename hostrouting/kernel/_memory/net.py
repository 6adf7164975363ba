"""What holds routes and addresses: struct net, net_device with its in_device."""

from __future__ import annotations

import errno as errnos
from itertools import chain, count
from typing import TYPE_CHECKING

import attrs

from hostrouting.kernel.fib import Fib
from hostrouting.kernel.nexthops import Sources
from hostrouting.kernel.rtnetlink.messages import RefusedError
from hostrouting.kernel.rules import KERNEL_RULES
from hostrouting.model.links import Address, Hardware, Link

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from ipaddress import IPv4Address, IPv4Network

    from hostrouting.model.routes import Route
    from hostrouting.model.rules import Rule


@attrs.define(eq=False)
class Device:
    """An interface (struct net_device with its in_device); ``is_plugged``: the far end of its cable is up."""

    index: int
    name: str
    kind: str | None = None
    hardware: int = Hardware.ETHER
    master: str | None = None
    is_up: bool = False
    is_plugged: bool = True
    addresses: list[Address] = attrs.field(factory=list)

    @property
    def has_carrier(self) -> bool:
        """IFF_LOWER_UP: a device that is down has none (veth_close)."""
        return self.is_up and self.is_plugged

    def by_network(self, network: IPv4Network) -> Address | None:
        """The primary address of a subnet (inet_ifa_byprefix)."""
        return next((ifa for ifa in self.addresses if ifa.network == network), None)

    def show(self) -> Link:
        """As a dump shows it."""
        return Link(self.index, self.name, self.is_up, self.has_carrier, self.kind, self.hardware, self.master)


class Net(Fib):
    """A network namespace; ``changes`` counts what would be told to listeners.

    Args:
        promotes_secondaries: net.ipv4.conf.all.promote_secondaries.
        ignores_linkdown: net.ipv4.conf.all.ignore_routes_with_linkdown.
    """

    def __init__(self, *, promotes_secondaries: bool, ignores_linkdown: bool) -> None:
        super().__init__(KERNEL_RULES, ())
        self.rules: list[Rule] = [*KERNEL_RULES]
        self.promotes_secondaries = promotes_secondaries
        self.ignores_linkdown = ignores_linkdown
        self.devices: dict[str, Device] = {}
        self.changes = 0
        self.indexes = count(1)  # of devices; none is given twice

    def device(self, name: str) -> Device:
        """A device by name.

        Raises:
            RefusedError: ENODEV.
        """
        if name not in self.devices:
            raise RefusedError(errnos.ENODEV, f"no interface is named {name!r}")
        return self.devices[name]

    def addresses(self) -> tuple[Address, ...]:
        """Of the devices by their index."""
        return tuple(ifa for dev in self.devices.values() for ifa in dev.addresses)

    def sources(self) -> Sources:
        """Those of now: addresses come and go."""
        return Sources(self.addresses())

    def _rules_around(self, _: IPv4Address) -> Sequence[int]:
        """All: rules come and go."""
        return range(len(self.rules))

    def there(self, route: Route) -> list[Route]:
        """The entries of a route's table for its destination, to be changed in place; none without that table."""
        networks = self.tables.get(route.table, {}).setdefault(route.destination.prefixlen, {})
        return networks.setdefault(int(route.destination.network_address), [])

    def entries(self) -> Iterator[Route]:
        """The entries of all tables."""
        return chain.from_iterable(self._lists())

    def change_entries(self, changed: Callable[[Route], Route | None]) -> None:
        """Give each entry another state, or none: then it is gone (fib_flush)."""
        for routes in self._lists():
            routes[:] = [now for route in routes if (now := changed(route)) is not None]

    def _lists(self) -> Iterator[list[Route]]:
        networks = chain.from_iterable(lengths.values() for lengths in self.tables.values())
        return chain.from_iterable(each.values() for each in networks)
