"""Fill in missing fields of static routes from the default route and the existing links.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from functools import cache

import attrs

from hostrouting.config.routing import ONLINK, Gateway, StaticRoute
from hostrouting.kernel.default_routes import (
    inherited_route,
    missing_default_route,
    missing_uplink,
    unicast_defaults,
)
from hostrouting.model.errors import Refusal, RouteError
from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.links import Address, Link, is_like
from hostrouting.model.routes import NextHop, Route, Route6, RouteType
from hostrouting.model.text import shortened
from hostrouting.model.values import frozen

_NAMED_ROUTES_MAX = 3


def resolve(
    wanted: Sequence[StaticRoute],
    links: Sequence[Link],
    addresses: Sequence[Address],
    main: Sequence[Route],
    uplinks: tuple[str, ...] | None,
) -> tuple[tuple[Route, ...], str | None]:
    """Fill in the device, gateway, source and MTU of static routes.

    Configured values are used as they are. Other values are those of the default route through
    ``dev``. If ``dev`` isn't configured either, they are those of the default route through an
    uplink. A static route may inherit several hops, an IPv6 gateway of an IPv4 route (RFC 8950),
    ``onlink``, ``src`` and ``mtu``.

    Args:
        wanted: the config's static routes.
        links: the host's links.
        addresses: the host's addresses.
        main: entries in table main, including the default routes and the routes to gateways.
        uplinks: patterns for the interfaces whose default route is inherited, or None for any
            interface.

    Returns:
        The routes, and None. Routes that may make other routes' gateways reachable come first. If a
        device, gateway or default route is missing, the routes are incomplete, and a phrase takes
        the place of None. It names each missing item, with a route that needs the item.

    Raises:
        RouteError: some routes can never be installed. The error lists these routes. There are
            three reasons: the route's device is a port of a bridge or bond, its gateway is a local
            address, or it names no device and the default route has several devices.
    """
    resolver = _resolver(wanted, links, addresses, main, uplinks)
    # Thousands of routes may have the same device and gateway.
    template_of = cache(resolver.template)
    # The gateway of one wanted route may be reachable only through another wanted route, which must
    # then be installed first.
    near: list[Route] = []
    others: list[Route] = []
    missing: dict[str, StaticRoute] = {}
    refusals: list[Refusal] = []
    for static in wanted:
        try:
            template = template_of(static.dev, static.gateway)
        except _NotThere as reason:
            missing.setdefault(str(reason), static)
        except RouteError as refused:
            refusals.append(Refusal(f"can't install {static}: {refused.message}", refused.hint))
        else:
            metric = static.metric or resolver.family.usual_metric
            route = type(template)(
                static.destination,
                template.hops,
                scope=template.scope,
                metric=metric,
                source=template.source,
                mtu=template.mtu,
            )
            (near if template.is_near else others).append(route)
    if refusals:
        raise RouteError.of(refusals)
    words = [f"{what}, needed by {static}" for what, static in missing.items()]
    return (*near, *others), shortened(words, "; ", _NAMED_ROUTES_MAX) or None


def why_impossible(
    entry: StaticRoute,
    links: Sequence[Link],
    addresses: Sequence[Address],
    main: Sequence[Route],
    uplinks: tuple[str, ...] | None,
) -> str:
    """Return why ``resolve`` can't resolve a static route; empty if it can."""
    try:
        _resolver([entry], links, addresses, main, uplinks).template(entry.dev, entry.gateway)
    except _NotThere as reason:
        return f"missing is {reason}"
    except RouteError as refused:
        return refused.message
    return ""


class _NotThere(Exception):
    """Exception raised when a device, gateway or default route is missing, but may still appear."""


def _resolver(
    wanted: Sequence[StaticRoute],
    links: Sequence[Link],
    addresses: Sequence[Address],
    main: Sequence[Route],
    uplinks: tuple[str, ...] | None,
) -> _Resolver:
    return _Resolver(
        Family.of(wanted[0].destination) if wanted else Family.IPV4,
        uplinks,
        {link.name: link for link in links},
        {address.local for address in addresses},
        unicast_defaults(main),
        _on_link(main, wanted),
    )


def _on_link(
    main: Sequence[Route],
    wanted: Sequence[StaticRoute],
) -> list[tuple[IpNetwork, tuple[str | None, ...]]]:
    """Return prefixes that may contain gateways, each with the interfaces of its routes.

    None instead of an interface means the default route's interface. Our own existing routes don't
    count, because this run may remove them. Instead, the wanted routes with gateway ``ONLINK``
    count.
    """
    there = (
        route
        for route in main
        if route.type is RouteType.UNICAST and route.is_near and not route.is_ours
    )
    theirs = [(route.destination, route.devs) for route in there]
    return theirs + [
        (static.destination, (static.dev,)) for static in wanted if static.gateway == ONLINK
    ]


@frozen(eq=False, repr=False)
class _Resolver:
    """The host's state from which next hops are resolved.

    Args:
        family: the family of the wanted routes.
        uplinks: patterns for the interfaces whose default route is inherited, or None for any
            interface.
        links: the host's links by name.
        local: the host's addresses.
        defaults: the default routes of table main.
        on_link: the prefixes that may contain gateways, see ``_on_link``.
    """

    family: Family
    uplinks: tuple[str, ...] | None
    links: Mapping[str, Link]
    local: Container[IpAddress]
    defaults: Sequence[Route]
    on_link: Sequence[tuple[IpNetwork, tuple[str | None, ...]]]

    def template(self, dev: str | None, gateway: Gateway) -> Route:
        """Return a template for all routes with a device and gateway.

        The template has the routes' hops, source and MTU, and a placeholder destination.
        """
        hops, default = self._hops(dev, gateway)
        source, mtu = (default.source, default.mtu) if default else (None, None)
        made_of = Route if self.family is Family.IPV4 else Route6
        return made_of(self.family.any, hops, source=source, mtu=mtu)

    def _hops(self, dev: str | None, gateway: Gateway) -> tuple[tuple[NextHop, ...], Route | None]:
        """Return the next hops, and the default route that they are inherited from or None."""
        if dev is not None:
            self._check_device(dev)
        if dev is not None and gateway is not None:
            return (self._named_hop(gateway, dev),), None
        by = self.uplinks if dev is None else (dev,)
        default = inherited_route(self.defaults, by)
        if default is None:
            if dev is None and by and not any(is_like(name, by) for name in self.links):
                raise _NotThere(missing_uplink(by))
            raise _NotThere(missing_default_route(self.defaults, self.family, by))
        hops = tuple(attrs.evolve(hop, is_linkdown=False) for hop in default.hops)
        if gateway is not None:
            hops = (self._named_hop(gateway, self._default_device(gateway, hops), hops),)
        elif len(hops) == 1:
            hops = (attrs.evolve(hops[0], weight=1),)
        return hops, default

    def _named_hop(
        self,
        gateway: Gateway,
        dev: str,
        inherited: tuple[NextHop, ...] = (),
    ) -> NextHop:
        if gateway is None or gateway == ONLINK:
            return NextHop(dev)
        if gateway in self.local:
            # The kernel accepts a local address as a gateway (fib_check_nh), but the packets are
            # lost.
            raise RouteError(f"the gateway {gateway} is an address of this host")
        if any(hop.gateway == gateway and hop.dev == dev and hop.onlink for hop in inherited):
            return NextHop(dev, gateway, onlink=True)
        if not self._is_reachable(gateway, dev):
            raise _NotThere(f"gateway {gateway} (no route of scope link reaches it on {dev})")
        return NextHop(dev, gateway)

    def _default_device(self, gateway: Gateway, hops: tuple[NextHop, ...]) -> str:
        """Return the one interface of the default route's hops that a configured gateway is on."""
        devs = sorted({hop.dev for hop in hops if hop.dev is not None})
        if len(devs) > 1 and gateway is not None and gateway != ONLINK:
            devs = [dev for dev in devs if self._is_reachable(gateway, dev)] or devs
        if len(devs) != 1:
            raise RouteError(
                f"the default route leaves through {' and '.join(devs)}",
                hint="set dev to one of them",
            )
        return devs[0]

    def _check_device(self, dev: str) -> None:
        link = self.links.get(dev)
        if link is None:
            raise _NotThere(f"device {dev} (there is no such interface)")
        if link.master is not None:
            master = self.links.get(link.master)
            if master is None or master.kind != "vrf":
                raise RouteError(
                    f"{dev} is a port of {link.master}, which takes its packets",
                    hint=f"name {link.master} as dev",
                )
        if not link.is_up:
            raise _NotThere(f"device {dev} (it is down)")

    def _is_reachable(self, gateway: IpAddress, dev: str) -> bool:
        """Return whether the kernel's lookup for a gateway would succeed."""
        if self.family is Family.IPV6 and gateway.is_link_local:
            return True
        default = inherited_route(self.defaults, self.uplinks)
        is_default = default is not None and dev in default.devs
        return any(
            (dev in devs or (is_default and None in devs)) and gateway in network
            for network, devs in self.on_link
        )
