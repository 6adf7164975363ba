"""Find a host's uplinks, related interfaces, and their subnets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hostrouting.config.routing import Config
from hostrouting.kernel.default_routes import contested_defaults, default_route
from hostrouting.kernel.port import RouteBackend
from hostrouting.kernel.rules import LOOPBACK
from hostrouting.model.errors import RouteError
from hostrouting.model.family import Family
from hostrouting.model.links import Address, Hardware, Link, is_like
from hostrouting.model.prefixes import Prefix
from hostrouting.model.routes import Route


class ContestedDefaultError(RouteError):
    """The error for default routes with equal metrics on several interfaces, which make the expected one ambiguous."""


class NoUplinkError(RouteError):
    """The error for a host without any of the uplinks named in the config."""


def uplink_patterns(config: Config, backend: RouteBackend, ipv4: RouteBackend | None) -> tuple[str, ...] | None:
    """Return the name patterns for uplinks, or None to use the default route in the backend's family.

    Any router on a link can advertise an IPv6 default route, so the IPv4 default route is used for IPv6 too.

    Args:
        config: the config, which may name the uplinks.
        backend: the kernel to query.
        ipv4: the host's IPv4 backend, or None to ignore the IPv4 default route.

    Raises:
        ContestedDefaultError: a CIDR's expected interface is ambiguous because of the IPv4 default routes.
    """
    if config.uplinks is not None or backend.family is Family.IPV4 or ipv4 is None:
        return config.uplinks
    defaults = ipv4.default_routes()
    refuse_contested(config, defaults)
    default = default_route(defaults)
    return None if default is None else default.devs


def contested(config: Config, defaults: Sequence[Route]) -> list[Route]:
    """Return default routes with the same metric, if they make a CIDR's expected interface ambiguous."""
    is_open = any(each.devs is None for each in config.route_overlap.expected_cidrs)
    return contested_defaults(defaults) if config.uplinks is None and is_open else []


def refuse_contested(config: Config, defaults: Sequence[Route]) -> None:
    """Raise an error if a CIDR's expected interface is ambiguous."""
    if not (tied := contested(config, defaults)):
        return
    is_4 = tied[0].family is Family.IPV4
    whose = "" if is_4 else "IPv6 "
    raise ContestedDefaultError(
        f"table main has {len(tied)} {whose}default routes with metric {tied[0].metric} through several "
        f"interfaces, and the kernel may choose another one for each packet: {'; '.join(map(str, tied))}",
        hint=f"{'give one of them a lower metric, or ' if is_4 else ''}name the node's uplinks (hostRouting.uplinks)",
    )


def pending_devs(links: Sequence[Link], addresses: Sequence[Address], uplinks: Sequence[str]) -> tuple[str, ...]:
    """Return the InfiniBand interfaces that have no IPv4 address yet and may still get connected routes."""
    with_address = {address.dev for address in addresses} | set(uplinks)
    return tuple(
        sorted(link.name for link in links if link.hardware == Hardware.INFINIBAND and link.name not in with_address)
    )


def named_uplinks(links: Sequence[Link], patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the sorted names of the uplinks named in the config, excluding the loopback interface."""
    return tuple(sorted(link.name for link in links if link.name != LOOPBACK and is_like(link.name, patterns)))


def usable_devs(links: Sequence[Link], devs: Sequence[str]) -> list[str]:
    """Return the subset of interfaces on which the kernel accepts and uses routes."""
    vrfs = {link.name for link in links if link.kind == "vrf"}
    return [
        link.name
        for link in links
        if link.name in devs and link.is_up and link.has_carrier and (link.master is None or link.master in vrfs)
    ]


def local_subnets(addresses: Iterable[Address], devs: Sequence[str]) -> dict[Prefix, str]:
    """Map the subnets of the given interfaces to interface names.

    Args:
        addresses: the host's addresses.
        devs: the names of the interfaces.

    Returns:
        The subnets, except /32s and /128s, which can't contain another host.
    """
    local = (
        address for address in addresses if address.dev in devs and address.prefix_length < address.local.max_prefixlen
    )
    return {address.prefix: address.dev for address in local}
