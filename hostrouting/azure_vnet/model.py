"""What a node holds that azure-vnet may have left: frozen values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address

__all__ = ["HostRoute", "Interface", "Neighbour", "Scene"]


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
    address: IPv4Address | IPv6Address
    mac: str | None
    state: int
    is_foreign: bool = False


@attrs.frozen
class HostRoute:
    """A full-length unicast route of table main.

    Args:
        destination: the address.
        dev: the interface.
        protocol: who installed it.
        metric: the lowest wins.
        has_gateway: whether the destination isn't on the link.
        tos: 0, or the type of service that it is for.
        scope: rtm_scope.
    """

    destination: IPv4Address | IPv6Address
    dev: str
    protocol: int
    metric: int = 0
    has_gateway: bool = False
    tos: int = 0
    scope: int = 0


@attrs.frozen
class Scene:
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
    addresses: tuple[IPv4Address | IPv6Address, ...] = ()
    gateways: tuple[IPv4Address | IPv6Address, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    routes: tuple[HostRoute, ...] = ()
    notes: tuple[str, ...] = ()
