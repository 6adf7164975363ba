"""Make the static routes that a fix proposes. This module does no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from ipaddress import IPv4Address, IPv6Address

import attrs

from hostrouting.config.routing import ONLINK, ExpectedCidr, StaticRoute
from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.integer_prefixes import Prefix, PrefixIndex, numbers
from hostrouting.model.links import Link, is_like
from hostrouting.model.parsing import is_device
from hostrouting.model.routes import NextHop, Route, RouteType, Table
from hostrouting.model.values import frozen
from hostrouting.overlap._exemptions import local_gateway
from hostrouting.overlap._state import State
from hostrouting.overlap.proposals import Obstacle, OwnersChange
from hostrouting.routes.resolve import why_impossible


@frozen(eq=False)
class Path:
    """The path by which an entry for a prefix leads to the expected interface.

    Args:
        dev: the interface that the entry names because the expected CIDR does, or None for the
            uplinks.
        devs: the interfaces that the entry would use.
        next_hops: the next hops of a route for the prefix; empty if they aren't known.
        subnet: the innermost uplink subnet that contains the prefix, or None.
        obstacle: why there is no entry that works, or None if there is one.
    """

    dev: str | None
    devs: tuple[str, ...]
    next_hops: tuple[NextHop, ...]
    subnet: Prefix | None
    obstacle: Obstacle | None

    @property
    def length_min(self) -> int:
        """Return the minimum prefix length of an entry.

        If the entry is on-link in an uplink's subnet, the minimum is the subnet's length.
        """
        return 0 if self.subnet is None or self.dev is not None else self.subnet[1]


class EntryMaker:
    """A maker of the static routes that a fix may propose on a host.

    An entry leads to the uplinks, or to one interface that an expected CIDR names.

    Args:
        state: the host's state.
        why_no_default: why there is no default route to inherit from; empty if there is one.
    """

    def __init__(self, state: State, why_no_default: str) -> None:
        self.why_no_default = why_no_default
        self._state = state
        self._family = state.family
        self._bits = state.family.bits
        self._default = state.uplinks.default
        self._usable = _usable_devs(state.links)
        self._point_to_point = {link.name for link in state.links if link.is_point_to_point}
        self._local_subnets = self._find_local_subnets()
        self._nested_subnets = PrefixIndex(self._local_subnets, self._bits)
        # Results are kept by interface, because thousands of CIDRs may name the same interface.
        self._known_by: dict[str, tuple[Mapping[Prefix, NextHop], PrefixIndex, PrefixIndex]] = {}
        self._obstacles_by: dict[tuple[str, NextHop | None], str] = {}

    def _find_local_subnets(self) -> dict[Prefix, str]:
        """Return the subnets of the uplinks that can have routes, each with its uplink.

        If two uplinks share a subnet, it is assigned to the one used by the default route.
        """
        default_devs = () if self._default is None else self._default.devs
        subnets: dict[Prefix, str] = {}
        of_default: dict[Prefix, str] = {}
        for subnet, dev in self._state.uplinks.subnets:
            if dev in self._usable:
                (of_default if dev in default_devs else subnets)[subnet] = dev
        return subnets | of_default

    def path(self, expected: ExpectedCidr, address: IpAddress) -> Path | Obstacle:
        """Return the path of a static route to an address, or why no route is proposed.

        Args:
            expected: the expected CIDR, which may name the interface.
            address: an address in that CIDR.
        """
        to_uplinks = self._path_to_uplinks(address)
        dev = None
        if expected.devs is not None:
            dev = self._dev_of(expected, expected.devs, address, to_uplinks)
        if isinstance(dev, Obstacle):
            return dev
        if dev is None:
            # In an uplink's subnet, an entry inherits nothing from the default route.
            is_near = to_uplinks.subnet is not None
            return (
                to_uplinks if is_near or not self.why_no_default else Obstacle(self.why_no_default)
            )
        hop = self._hop_by(dev, (int(address), self._bits))
        next_hops = () if hop is None else (hop,)
        why = self._obstacle_by(dev, hop)
        obstacle = Obstacle(why) if why else None
        return Path(dev, (dev,), next_hops, to_uplinks.subnet, obstacle)

    def _path_to_uplinks(self, address: IpAddress) -> Path:
        """Return the path by which a static route leads packets for an address to the uplinks."""
        subnet = self.subnet_around(address)
        default = self._default
        if subnet is not None:
            dev = self._local_subnets[subnet]
            obstacle = None
            if not (self._is_inherited(dev) or is_device(dev)):
                why = f"it is on the link of {dev}, a name that no config accepts: rename it"
                obstacle = Obstacle(why)
            return Path(None, (dev,), (NextHop(dev),), subnet, obstacle)
        if default is not None:
            return Path(None, default.devs, default.hops, None, self._why_gateway_is_lost)
        return Path(None, (), (), None, None)

    def subnet_around(self, address: IpAddress) -> Prefix | None:
        """Return the innermost uplink subnet that contains an address, if any."""
        return next(self._nested_subnets.around((int(address), self._bits)), None)

    def next_hops(self, expected: ExpectedCidr, address: IpAddress) -> tuple[NextHop, ...]:
        """Return the next hops that lead packets to an address as expected, or an empty tuple."""
        path = self.path(expected, address)
        return () if isinstance(path, Obstacle) else path.next_hops

    def _dev_of(
        self,
        expected: ExpectedCidr,
        patterns: tuple[str, ...],
        address: IpAddress,
        to_uplinks: Path,
    ) -> str | Obstacle | None:
        """Return the one interface that an entry for an expected CIDR uses, or an obstacle.

        None stands for the uplinks.
        """
        usable = [dev for dev in self._usable if is_like(dev, patterns)]
        if to_uplinks.subnet is None:
            near = [dev for dev in usable if self._is_near(address, dev)]
            if len(near) == 1:
                return near[0]
        if to_uplinks.devs and expected.allows_all(to_uplinks.devs):
            return None
        if len(usable) == 1:
            return usable[0]
        if usable:
            several = f"{', '.join(usable)} may carry {expected.cidr}"
            how = "name one of them in its devs, or add the route"
            return Obstacle(f"{several}: {how}", is_withheld=True)
        return Obstacle(
            f"{self._why_none(patterns)}, and no other interface may carry {expected.cidr}"
        )

    def _why_none(self, patterns: tuple[str, ...]) -> str:
        matching = [link.name for link in self._state.links if is_like(link.name, patterns)]
        if matching:
            return f"{','.join(matching)} is down or has no carrier"
        return f"there is no interface {','.join(patterns)}"

    def _is_near(self, address: IpAddress, dev: str) -> bool:
        """Return whether an address is in a subnet of an interface."""
        return any(self._around_by(dev)[2].around((int(address), self._bits)))

    def _obstacle_by(self, dev: str, hop: NextHop | None) -> str:
        if (dev, hop) not in self._obstacles_by:
            self._obstacles_by[dev, hop] = self._why_impossible_by(dev, hop)
        return self._obstacles_by[dev, hop]

    def _why_impossible_by(self, dev: str, hop: NextHop | None) -> str:
        if not is_device(dev):
            return f"it is expected on {dev}, a name that no config accepts: rename it"
        if self._family is Family.IPV4 and dev in self._state.uplinks.pending:
            return (
                f"{dev} has no IPv4 address to send from;"
                " once it has one, its subnet's route comes too"
            )
        if hop is None or (hop.gateway is not None and Family.of(hop.gateway) is not self._family):
            return (
                f"no route through {dev} tells its next hop:"
                ' add an entry that names dev, and gateway or "onlink"'
            )
        state = self._state
        main = [route for route in state.routes if route.table == Table.MAIN]
        # Any destination will do, because only the interface and next hop can be impossible.
        any_address = self._family.network((1 << (self._bits - 1), self._bits))
        entry = self._entry_by(dev, hop, any_address)
        why = why_impossible(entry, state.links, state.addresses, main, state.uplinks.named)
        return f"no entry for it through {dev} is possible: {why}" if why else ""

    def entry(self, network: IpNetwork, dev: str | None) -> StaticRoute:
        """Return the entry for a prefix whose ``Path`` has no obstacle.

        Args:
            network: the prefix that the entry leads to.
            dev: see ``Path``.
        """
        if dev is not None:
            return self._entry_by(dev, self._hop_by(dev, numbers(network)), network)
        if (subnet := next(self._nested_subnets.around(numbers(network)), None)) is not None:
            dev = self._local_subnets[subnet]
            return StaticRoute(network, ONLINK, None if self._is_inherited(dev) else dev)
        default = self._inherited
        if self._has_lost_source:
            (hop,) = default.hops
            return StaticRoute(
                network,
                hop.gateway if isinstance(hop.gateway, IPv4Address) else ONLINK,
                hop.dev,
            )
        is_one = self._must_name_dev and len(default.devs) == 1 and is_device(default.devs[0])
        return StaticRoute(network, dev=default.devs[0] if is_one else None)

    def _entry_by(self, dev: str, hop: NextHop | None, network: IpNetwork) -> StaticRoute:
        if hop is None or hop.gateway is None:
            return StaticRoute(network, ONLINK, dev)
        defaults = (route for route in self._state.defaults if route.devs == (dev,))
        is_inherited = any(hop in route.hops for route in defaults)
        return StaticRoute(network, None if is_inherited else hop.gateway, dev)

    @property
    def _inherited(self) -> Route:
        if self._default is None:  # ``path`` has returned an obstacle
            raise AssertionError("an entry for the uplinks needs a default route")
        return self._default

    def _hop_by(self, dev: str, prefix: Prefix) -> NextHop | None:
        """Return the next hop through an interface for a prefix.

        The next hop is that of the longest route that contains the prefix. If there is no such
        route, the prefix may be on the interface's link: the interface is point-to-point, or has an
        address in the same subnet. A point-to-point interface needs no gateway. So a gateway that
        an entry can't have is left out there.
        """
        hops, destinations, subnets = self._around_by(dev)
        if (longest := next(destinations.around(prefix), None)) is not None:
            hop = hops[longest]
            is_needed = dev not in self._point_to_point or not self._obstacle_by(dev, hop)
            return hop if is_needed else NextHop(dev)
        is_near = any(subnets.around(prefix))
        return NextHop(dev) if is_near or dev in self._point_to_point else None

    def _around_by(self, dev: str) -> tuple[Mapping[Prefix, NextHop], PrefixIndex, PrefixIndex]:
        """Return an interface's next hops by their routes' destinations, and two indexes.

        One index has these destinations, and the other the interface's subnets. Routes in all
        tables count, except those with several next hops through the interface.
        """
        if dev not in self._known_by:
            found: dict[Prefix, NextHop] = {}
            for route in self._state.routes:
                hops = [hop for hop in route.hops if hop.dev == dev]
                if route.type is RouteType.UNICAST and len(hops) == 1 and dev in route.devs:
                    found.setdefault(numbers(route.destination), attrs.evolve(hops[0], weight=1))
            subnets = (
                numbers(address.network) for address in self._state.addresses if address.dev == dev
            )
            self._known_by[dev] = (
                found,
                PrefixIndex(found, self._bits),
                PrefixIndex(subnets, self._bits),
            )
        return self._known_by[dev]

    def _is_inherited(self, dev: str) -> bool:
        """Return whether an on-link entry without a device can be used for an uplink.

        An entry without a device inherits the default route's src. If this host has no such
        address, the entry must name the device.
        """
        is_default = self._default is not None and self._default.devs == (dev,)
        return is_default and not (self._must_name_dev or self._has_lost_source)

    @cached_property
    def _must_name_dev(self) -> bool:
        """Return whether an entry without a device may inherit another interface after a reboot.

        - Verified uplinks: it can't. An entry inherits them even under new names.
        - Uplinks of the family's own default route: it can't. An entry inherits from the same
          route.
        - Uplinks that the config names: it may if several of their default routes have the lowest
          metric. An entry inherits the first of these routes, and their order may change.
        - IPv6 uplinks of the IPv4 default route: it may. An entry inherits from the IPv6 default
          route, which may lead through another interface after a reboot.
        """
        uplinks = self._state.uplinks
        if uplinks.is_verified or uplinks.named is None:
            return False
        return not uplinks.is_configured or self._is_default_tied

    @property
    def _is_default_tied(self) -> bool:
        """Return whether default routes through several uplinks have the lowest metric."""
        default = self._default
        if default is None:
            return False
        rivals = [route for route in self._state.defaults if route.metric == default.metric]
        used = {dev for route in rivals for dev in route.devs if dev in self._state.uplinks.devs}
        return used != {*default.devs}

    @cached_property
    def _has_lost_source(self) -> bool:
        """Return whether the default route has a src that isn't one of this host's addresses.

        The kernel refuses new routes with such a src.
        """
        source = None if self._default is None else self._default.source
        return source is not None and not self._state.fib.is_local(source)

    @cached_property
    def _why_gateway_is_lost(self) -> Obstacle | None:
        """Return why entries via the default route's gateways wouldn't work, or None."""
        default = self._inherited
        if (local := local_gateway(default, self._state.addresses)) is not None:
            whose = f"{local.local}, the gateway of {default}, is also an address of {local.dev}"
            return Obstacle(whose, change=OwnersChange("remove it from there", address=local))
        if self._has_lost_source and not _is_nameable(default.hops):
            return Obstacle(
                f"the kernel would refuse entries with the src of {default}:"
                " it isn't an address of this host"
            )
        return next(filter(None, map(self._why_refused_via, default.hops)), None)

    def _why_refused_via(self, hop: NextHop) -> Obstacle | None:
        """Return why the kernel would refuse entries via an IPv4 gateway, or None."""
        gateway = hop.gateway
        if not isinstance(gateway, IPv4Address):
            return None
        refused = f"the kernel would refuse entries via {gateway}"
        # If this host doesn't have the default route's src, the entry names gateway and dev, and so
        # isn't onlink.
        if hop.onlink and not self._has_lost_source:
            claim = self._state.fib.claims_gateway(gateway)
            if claim is None:
                return None
            change = OwnersChange("remove that", (claim,))
            return Obstacle(f"{refused}, because it is in {claim}", change=change)
        if self._state.fib.finds_gateway(gateway, hop.dev or ""):
            return None
        why = f"under the policy rules, it isn't reachable on {hop.dev}; change the rules"
        return Obstacle(f"{refused}: {why}")


def _is_nameable(hops: Sequence[NextHop]) -> bool:
    """Return whether there is exactly one next hop, and an entry can name it."""
    hop, *others = hops
    return not others and not isinstance(hop.gateway, IPv6Address) and is_device(hop.dev)


def _usable_devs(links: Sequence[Link]) -> list[str]:
    """Return the interfaces on which the kernel accepts and uses routes."""
    vrfs = {link.name for link in links if link.kind == "vrf"}
    return [
        link.name
        for link in links
        if link.is_up and link.has_carrier and (link.master is None or link.master in vrfs)
    ]
