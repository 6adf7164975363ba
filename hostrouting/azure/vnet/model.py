"""What a node holds that azure-vnet may have left: frozen values."""

from __future__ import annotations

from enum import IntFlag
from typing import TYPE_CHECKING

import attrs

from hostrouting.model.routes import Protocol

if TYPE_CHECKING:
    from hostrouting.model.parsing import IpAddress

__all__ = ["HostRoute", "Interface", "Neighbour", "NeighbourState", "NodeState"]

_IPV4 = 4


class NeighbourState(IntFlag):
    """NUD_* of linux/neighbour.h, named as ip-neighbour(8) shows them."""

    INCOMPLETE = 0x01
    REACHABLE = 0x02
    STALE = 0x04
    DELAY = 0x08
    PROBE = 0x10
    FAILED = 0x20
    NOARP = 0x40
    PERMANENT = 0x80


@attrs.frozen
class Interface:
    """A network interface.

    Args:
        index: the kernel's number for it.
        name: its name.
        mac: in six pairs of lower-case digits; empty if it has none.
        master: the bridge that it is a port of.
        far_mac: of a veth pair's other end, in whichever namespace that is; None if it can't be read, or there is none.
    """

    index: int
    name: str
    mac: str = ""
    master: str | None = None
    far_mac: str | None = None


@attrs.frozen
class Neighbour:
    """An entry of the ARP or neighbour cache, ip-neighbour(8).

    Args:
        dev: the interface.
        address: whose MAC it tells.
        mac: in six pairs of lower-case digits; None where it isn't known.
        state: the NUD_* bit.
        is_foreign: learned from or managed by somebody else than the kernel's own resolution and ip(8).
    """

    dev: str
    address: IpAddress
    mac: str | None
    state: int
    is_foreign: bool = False

    @property
    def is_permanent(self) -> bool:
        """Whether it was put there for good; the kernel itself never ends it."""
        return bool(self.state & NeighbourState.PERMANENT)

    @property
    def is_unresolved(self) -> bool:
        """Whether nothing has answered for the address (yet)."""
        return bool(self.state & (NeighbourState.FAILED | NeighbourState.INCOMPLETE))

    @property
    def state_words(self) -> str:
        """The state as ip-neighbour(8) shows it."""
        return "|".join(state.name or "" for state in NeighbourState if self.state & state) or "NONE"

    def __str__(self) -> str:
        mac = "" if self.mac is None else f" lladdr {self.mac}"
        return f"{self.address} dev {self.dev}{mac} {self.state_words}"


@attrs.frozen
class HostRoute:
    """A full-length unicast route of table main.

    Args:
        destination: the address.
        dev: the interface; with commas between them where there are several.
        protocol: who installed it.
        metric: the lowest wins.
        has_gateway: whether the destination isn't on the link.
        tos: 0, or the type of service that it is for.
        is_plain: whether it has one hop of its own: not several, and no nexthop object.
    """

    destination: IpAddress
    dev: str
    protocol: int
    metric: int = 0
    has_gateway: bool = False
    tos: int = 0
    is_plain: bool = True

    @property
    def protocol_words(self) -> str:
        """Who installed it, as ip-route(8) shows it."""
        try:
            return Protocol(self.protocol).name.lower()
        except ValueError:
            return str(self.protocol)

    @property
    def requests(self) -> frozenset[tuple[object, ...]]:
        """What a deletion may ask for that takes this route: whatever gateway or further hops it has.

        fib_nh_match in net/ipv4/fib_semantics.c and ip6_route_del in net/ipv6/route.c, which doesn't look at the tos.
        """
        tos = self.tos if self.destination.version == _IPV4 else 0
        return frozenset((self.destination, dev, tos, self.metric, self.protocol) for dev in self.dev.split(","))

    def __str__(self) -> str:
        tos = f" tos {self.tos:#04x}" if self.tos else ""
        metric = f" metric {self.metric}" if self.metric else ""
        return f"{self.destination}{tos} dev {self.dev} proto {self.protocol_words}{metric}"


@attrs.frozen
class NodeState:
    """A node at one moment.

    Args:
        rules: the lines of ebtables-save's nat table that add a rule (``-A ...``), in order, duplicates too.
        interfaces: all.
        addresses: of this host, both families.
        gateways: of any route.
        neighbours: of the bridge.
        routes: the full-length ones of table main.
        notes: what couldn't be looked at, in words.
    """

    rules: tuple[str, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    addresses: tuple[IpAddress, ...] = ()
    gateways: tuple[IpAddress, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    routes: tuple[HostRoute, ...] = ()
    notes: tuple[str, ...] = ()
