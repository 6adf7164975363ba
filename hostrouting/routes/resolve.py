"""Fill in what a static route leaves open, from the default route and the existing links.

All functions are pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from ipaddress import IPv4Address, IPv4Network

import attrs

from hostrouting.config.routing import ONLINK, Gateway, StaticRoute
from hostrouting.kernel.nexthops import inherited_route, missing_default_route, unicast_defaults
from hostrouting.model.errors import Refusal, RouteError
from hostrouting.model.links import Address, Link
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Route, RouteType, Scope
from hostrouting.model.text import shortened

_NAMED_ROUTES_MAX = 3


def resolve(
    wanted: Sequence[StaticRoute],
    links: Sequence[Link],
    addresses: Sequence[Address],
    main: Sequence[Route],
    uplinks: tuple[str, ...] | None,
) -> tuple[tuple[Route, ...], str | None]:
    """Fill in the device, gateway, source and MTU of static routes.

    Values that the config gives are used as they are. Other values are inherited from the default route through the
    named device, or if none is named, through an uplink. These are the gateway of either family (RFC 8950), ``onlink``,
    all hops of a multipath route, ``src`` and ``mtu``.

    Args:
        wanted: the config's routes.
        links: the host's links.
        addresses: the host's addresses.
        main: the entries of table main; those for 0.0.0.0/0 and those of scope link or nearer are enough.
        uplinks: the config's patterns of the interfaces whose default route is inherited, or None for any interface.

    Returns:
        The routes, and a phrase for what is missing, or None if nothing is. Routes through which others may reach their
        gateway come first. If anything is missing, the routes are incomplete, and the phrase names for each missing
        thing a route that needs it.

    Raises:
        RouteError: some routes can never be installed: a device is a port of another one, a gateway is this host
            itself, or the default route has several interfaces and a device must be named. The error names all such
            routes.
    """
    resolver = _Resolver(links, addresses, main, wanted, uplinks)
    # A gateway may be reachable only through another of these routes, which must then be installed first.
    near: list[Route] = []
    others: list[Route] = []
    missing: dict[str, StaticRoute] = {}
    refusals: list[Refusal] = []
    for static in wanted:
        try:
            like = resolver.like(static.dev, static.gateway)
        except _NotThere as reason:
            missing.setdefault(str(reason), static)
        except _Refused as refused:
            refusals.append(Refusal(f"can't install {static}: {refused}", refused.hint))
        else:
            (near if like.scope == Scope.LINK else others).append(
                Route(
                    static.destination,
                    like.hops,
                    scope=like.scope,
                    metric=static.metric,
                    source=like.source,
                    mtu=like.mtu,
                )
            )
    if refusals:
        raise RouteError.of(refusals)
    words = [f"{what}, needed by {static}" for what, static in missing.items()]
    return (*near, *others), shortened(words, "; ", _NAMED_ROUTES_MAX) or None


class _NotThere(Exception):
    """An error because something is missing that may still appear."""


class _Refused(Exception):
    """An error because the route can never be installed."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.hint = hint


def _on_link(main: Sequence[Route], wanted: Sequence[StaticRoute]) -> list[tuple[IPv4Network, tuple[str | None, ...]]]:
    """Return the prefixes that may contain a gateway, each with the interfaces that reach it.

    None as an interface stands for that of the default route.

    The kernel looks up a gateway only among routes of scope link or nearer (fib_check_nh_v4_gw). Our own existing
    routes count only if they are wanted, because routes that this run adds must not depend on routes that it removes.
    """
    there = (route for route in main if route.type is RouteType.UNICAST and route.scope >= Scope.LINK)
    theirs = [(route.destination, route.devs) for route in there if not route.is_ours]
    return theirs + [(static.destination, (static.dev,)) for static in wanted if static.gateway == ONLINK]


class _Resolver:
    def __init__(
        self,
        links: Sequence[Link],
        addresses: Sequence[Address],
        main: Sequence[Route],
        wanted: Sequence[StaticRoute],
        uplinks: tuple[str, ...] | None,
    ) -> None:
        self._links = {link.name: link for link in links}
        self._local = {address.local for address in addresses}
        self._defaults = unicast_defaults(main)
        self._uplinks = uplinks
        self._on_link = _on_link(main, wanted)
        self.like = cache(self._like)  # thousands of routes may have the same values

    def _like(self, dev: str | None, gateway: Gateway) -> Route:
        """Return what all routes with this device and gateway have in common, as a route.

        It has their hops, scope, source and MTU, and the default route's destination.
        """
        hops, default = self._hops(dev, gateway)
        source, mtu = (default.source, default.mtu) if default else (None, None)
        return Route(DEFAULT_DESTINATION, hops, source=source, mtu=mtu)

    def _hops(self, dev: str | None, gateway: Gateway) -> tuple[tuple[NextHop, ...], Route | None]:
        """Return the next hops, and the default route from which the other values are inherited, if any."""
        if dev is not None:
            self._check_device(dev)
        if dev is not None and gateway is not None:
            return (self._named_hop(gateway, dev),), None
        by = self._uplinks if dev is None else (dev,)
        default = inherited_route(self._defaults, by)
        if default is None:
            raise _NotThere(missing_default_route(self._defaults, by))
        hops = tuple(attrs.evolve(hop, is_linkdown=False) for hop in default.hops)
        if gateway is not None:
            hops = (self._named_hop(gateway, self._default_device(gateway, hops), hops),)
        elif len(hops) == 1:
            hops = (attrs.evolve(hops[0], weight=1),)
        return hops, default

    def _named_hop(self, gateway: Gateway, dev: str, inherited: tuple[NextHop, ...] = ()) -> NextHop:
        if not isinstance(gateway, IPv4Address):
            return NextHop(dev)
        if gateway in self._local:
            # The kernel accepts a local address as a gateway (fib_check_nh), but the packets are lost.
            raise _Refused(f"the gateway {gateway} is an address of this host")
        if any(hop.gateway == gateway and hop.dev == dev and hop.onlink for hop in inherited):
            return NextHop(dev, gateway, onlink=True)
        if not self._is_reachable(gateway, dev):
            raise _NotThere(f"gateway {gateway} (no route of scope link reaches it on {dev})")
        return NextHop(dev, gateway)

    def _default_device(self, gateway: Gateway, hops: tuple[NextHop, ...]) -> str:
        devs = sorted({hop.dev for hop in hops if hop.dev is not None})
        if len(devs) > 1 and isinstance(gateway, IPv4Address):
            devs = [dev for dev in devs if self._is_reachable(gateway, dev)] or devs
        if len(devs) != 1:
            raise _Refused(f"the default route leaves by {' and '.join(devs)}", "name the one meant as dev")
        return devs[0]

    def _check_device(self, dev: str) -> None:
        link = self._links.get(dev)
        if link is None:
            raise _NotThere(f"device {dev} (there is no such interface)")
        if link.master is not None:
            master = self._links.get(link.master)
            if master is None or master.kind != "vrf":
                raise _Refused(
                    f"{dev} is a port of {link.master}, which takes its packets", f"name {link.master} as dev"
                )
        if not link.is_up:
            raise _NotThere(f"device {dev} (it is down)")

    def _is_reachable(self, gateway: IPv4Address, dev: str) -> bool:
        """Return whether the kernel's lookup of a gateway would succeed."""
        default = inherited_route(self._defaults, self._uplinks)
        is_default = default is not None and dev in default.devs
        return any(
            (dev in devs or (is_default and None in devs)) and gateway in network for network, devs in self._on_link
        )
