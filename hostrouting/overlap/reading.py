"""Pure: a host at one moment, as far as a check judges it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hostrouting.model.links import Hardware

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from ipaddress import IPv4Address, IPv4Network

    from hostrouting.model.links import Address, Link
    from hostrouting.model.routes import Route
    from hostrouting.model.rules import Rule
    from hostrouting.overlap.asking import Answer
    from hostrouting.overlap.coverage import Tiling


@attrs.frozen
class Reading:
    """Everything that a judgement needs to know of the host.

    Args:
        default: the default route that counts.
        links: all interfaces.
        addresses: of this host.
        rules: in the order in which the kernel asks them.
        routes: the entries of every table.
        tiling: of the expected CIDRs.
        answers: the kernel's answers to each question of the tiling; the first is what goes unconnected by UDP.
    """

    default: Route
    links: Sequence[Link]
    addresses: Sequence[Address]
    rules: Sequence[Rule]
    routes: Sequence[Route]
    tiling: Tiling
    answers: Mapping[IPv4Address, tuple[Answer, ...]]


def pending_devs(links: Sequence[Link], addresses: Sequence[Address], default_devs: Sequence[str]) -> tuple[str, ...]:
    """The InfiniBand interfaces without an IPv4 address: their connected routes may still come."""
    with_address = {address.dev for address in addresses} | set(default_devs)
    return tuple(
        sorted(link.name for link in links if link.hardware == Hardware.INFINIBAND and link.name not in with_address)
    )


def own_subnets(addresses: Iterable[Address], devs: Sequence[str]) -> dict[IPv4Network, str]:
    """The subnets of some interfaces, each with the interface.

    Args:
        addresses: of the host.
        devs: the default route's interfaces.

    Returns:
        None that is a single address: nobody else is in it.
    """
    subnets = ((address.network, address.dev) for address in addresses if address.dev in devs)
    return {network: dev for network, dev in subnets if network.prefixlen < 32}
