"""Find the routes that divert packets to another interface, and tell which may be wanted.

Some routes look like an overlap, but a host may need them: those of a cloud's private network, a
storage network or a tunnel. A static route would divert their traffic. So no route is proposed
until the config says which interface is wanted. Three kinds of routes can't be wanted, so no
question is asked about them: to the network of an InfiniBand fabric or a bridge, to an uplink's
whole subnet, and to a large part of the address space (a VPN's). This module does no I/O.

``Diversions.asked`` raises the question whether another interface, such as a second NIC, is meant.
``_questions`` finds its answers. ``offers``, which is about packets from such an interface's own
addresses, asks nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from hostrouting.config.routing import ExpectedCidr
from hostrouting.kernel.rules import LOOPBACK
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.integer_prefixes import Prefix, PrefixIndex, numbers
from hostrouting.model.links import INFINIBAND_DEVS, VPN_DEVS, is_infiniband, is_like
from hostrouting.model.routes import NextHop, Route
from hostrouting.overlap._exemptions import Bounds
from hostrouting.overlap._places import Judgement
from hostrouting.overlap._state import State
from hostrouting.overlap.findings import Finding, FindingKind
from hostrouting.overlap.proposals import Obstacle, Question

# The interfaces of networks of containers and virtual machines, each with advice to the owner. If a
# static route led the network's addresses to an uplink, this host couldn't reach the network any
# more.
_BRIDGES = (
    (
        ("docker*", "br-*"),
        "belongs to Docker: move its address pools (bip, default-address-pools in daemon.json)",
    ),
    (
        ("podman*",),
        (
            "belongs to Podman: move its subnets"
            " (default_subnet, default_subnet_pools in containers.conf)"
        ),
    ),
    (("virbr*",), "belongs to libvirt: move its network (virsh net-edit)"),
)
_ANY_BRIDGE = "is a bridge without an uplink among its ports: move its network"
_VPNS = (*VPN_DEVS, "ppp*")
_OF_VPN = "belongs to a VPN: have it take fewer routes"

# The minimum prefix length of a route to a network. A shorter route leads a part of the whole
# address space away, as a VPN's routes do.
_NETWORK_LENGTH_MIN = {Family.IPV4: 8, Family.IPV6: 16}


class Diversions:
    """The routes on one host that may divert packets on purpose.

    Args:
        state: the host's state.
        container_devs: name patterns for pods' interfaces.
    """

    def __init__(self, state: State, container_devs: tuple[str, ...]) -> None:
        self._state = state
        self._bounds = Bounds(
            container_devs,
            state.family,
            state.uplinks,
            state.addresses,
            state.routes,
        )
        self._uplinks = {*state.uplinks.devs}
        self._links = {link.name: link for link in state.links}

    def hints(self, findings: Sequence[Finding], expected: Iterable[ExpectedCidr]) -> Iterator[str]:
        """Yield advice to the owner of each unexpected interface in the findings.

        Args:
            findings: the findings of the check.
            expected: the expected CIDRs.
        """
        limited = {each.cidr for each in expected if each.devs is not None}
        unexpected: dict[str, None] = {}
        kinds: dict[str, set[bool]] = {}
        taking: set[str] = set()
        for finding in findings:
            unexpected |= dict.fromkeys(d for d in finding.devs if d not in finding.expected_devs)
            for dev in finding.devs:
                kinds.setdefault(dev, set()).add(finding.cidr in limited)
            if any(map(self._bounds.has_pods, finding.ranges)):
                taking.update(finding.devs)
        for dev in unexpected:
            if dev in taking and dev not in self._bridges:
                advice = self._advice(dev)
                yield from [f"{dev} {advice}"] if advice else []
            else:
                yield from self._advice_on((dev,), kinds[dev])

    def _advice_on(self, devs: Iterable[str], kinds: Collection[bool]) -> tuple[str, ...]:
        """Return advice to the owner of each interface that isn't an uplink.

        Args:
            devs: interfaces through which packets leave.
            kinds: for each failing CIDR, whether it names its interfaces. ``allowedDevs`` has no
                effect then.
        """
        found = ((dev, self._advice(dev)) for dev in devs if dev not in self._uplinks)
        return tuple(
            f"{dev} {advice}, or {_allowing(dev, kinds)} if it may carry this traffic"
            for dev, advice in found
            if advice
        )

    def _advice(self, dev: str) -> str:
        if dev in self._bridges:
            return next(
                (advice for patterns, advice in _BRIDGES if is_like(dev, patterns)),
                _ANY_BRIDGE,
            )
        return _OF_VPN if is_like(dev, _VPNS) else ""

    def asked(self, failure: Judgement, subnet: Prefix | None) -> Obstacle | None:
        """Return the question to ask before a route moves packets to an uplink, or None.

        Args:
            failure: the judgement of a lookup that fails for an expected CIDR.
            subnet: the uplink's subnet that contains the address, if any.
        """
        devs = self._diverting(failure)
        route = failure.route
        if self._state.uplinks.is_configured or self.taken_from_pods(failure):
            return None
        if devs and route is not None and route.is_ours:
            return Obstacle("", is_withheld=True, question=Question(devs, is_ours=True))
        near = self._near(failure.address, devs, route)
        doubtful = self._doubtful(devs, route, subnet)
        # If the config names no uplinks, the cluster may be behind any interface with a default
        # route.
        rival = self._rival_around(failure.address)
        if rival is not None:
            reason = f"it is in the network of {rival}, which has a default route too"
            if route is not None:
                reason += f", and {route} decides"
            question = Question(tuple(sorted({rival, *doubtful})), route, near)
            return Obstacle(reason, is_withheld=True, question=question)
        if doubtful:
            return Obstacle("", is_withheld=True, question=Question(doubtful, route, near))
        return None

    def why_of_pods(self, failure: Judgement) -> Obstacle | None:
        """Return the obstacle if packets go to pods of this host, or None.

        Args:
            failure: the judgement of a lookup that fails for an expected CIDR.
        """
        if not failure.would_be_exempt:
            return None
        if failure.devs:
            names = ",".join(failure.devs)
            allow = "; ".join(_allowing(dev, {True}) for dev in failure.devs)
            return Obstacle(f"{names} leads to pods of this host: {allow}", is_withheld=True)
        reason = (
            f"{failure.route} is a CNI's own block for pods of this host,"
            " which is only exempt in a CIDR without devs"
        )
        return Obstacle(reason, is_withheld=True)

    def why_not_diverted(self, failure: Judgement, *, is_limited: bool) -> Obstacle | None:
        """Return the obstacle if an address is in a bridge's own network, or None.

        Args:
            failure: the judgement of a lookup that fails for an expected CIDR.
            is_limited: whether that CIDR names its interfaces.
        """
        devs = self._diverting(failure)
        if devs and self._bridges.issuperset(devs) and self._is_connected(failure.route):
            return Obstacle("; ".join(self._advice_on(devs, {is_limited})), is_withheld=True)
        return None

    def taken_from_pods(self, failure: Judgement) -> str:
        """Return a clause on the route that diverts packets to a network of pods, or ""."""
        devs = self._diverting(failure)
        found = self._bounds.network_of_pods(failure.address) if devs else None
        if found is None or found[1] in devs:
            return ""
        network, dev = found
        return f"{failure.route} takes packets from {network}, a network of pods on {dev}"

    def bridge_around(self, failure: Judgement) -> str | None:
        """Return the bridge whose network contains an address that has no route, or None."""
        if failure.kind not in (FindingKind.NO_ROUTE, FindingKind.BLACKHOLE):
            return None
        prefix = int(failure.address), self._state.family.bits
        around = (dev for dev in sorted(self._bridges) if dev in self._subnets)
        return next((dev for dev in around if any(self._subnets[dev].around(prefix))), None)

    def _diverting(self, failure: Judgement) -> tuple[str, ...]:
        """Return the interfaces other than the uplinks through which packets leave."""
        if failure.kind is not FindingKind.OVERLAP:
            return ()
        return tuple(dev for dev in failure.devs if dev not in {*self._uplinks, LOOPBACK})

    def _doubtful(
        self,
        devs: tuple[str, ...],
        route: Route | None,
        subnet: Prefix | None,
    ) -> tuple[str, ...]:
        """Return ``devs`` if the operator may want their route; otherwise an empty tuple.

        Args:
            devs: the interfaces other than the uplinks through which packets leave.
            route: the entry that carries the packets, or None if packets have none.
            subnet: the innermost uplink subnet that contains the address, if any.
        """
        if not devs or route is None:
            return ()
        length = route.destination.prefixlen
        if length < _NETWORK_LENGTH_MIN[self._state.family]:
            return ()
        if subnet is not None and length <= subnet[1]:
            return ()
        is_fabric = all(map(self.is_infiniband, devs))
        if (is_fabric or self._bridges.issuperset(devs)) and self._is_connected(route):
            return ()
        return devs

    def _near(
        self,
        address: IpAddress,
        devs: tuple[str, ...],
        route: Route | None,
    ) -> str:
        """Return an interface that packets don't use, but whose network contains an address.

        The result is empty if there is no such interface. InfiniBand and networks of containers are
        no part of the cluster's network, so their interfaces don't count.
        """
        # If the packets' route is connected, only networks at least as narrow as its destination
        # count.
        length_min = 1
        if route is not None and self._is_connected(route):
            length_min = route.destination.prefixlen
        networks, index = self._cluster_networks
        bits = self._state.family.bits
        for prefix in index.around((int(address), bits)):
            others = [dev for dev in networks[prefix] if dev not in devs]
            if others and length_min <= prefix[1] < bits:
                return others[0]
        return ""

    @cached_property
    def _cluster_networks(self) -> tuple[dict[Prefix, list[str]], PrefixIndex]:
        """Return the subnets that may be a part of the cluster's network, with their interfaces."""
        networks: dict[Prefix, list[str]] = {}
        order = {dev: at for at, dev in enumerate(filter(self._is_of_cluster, self._links))}
        addresses = (address for address in self._state.addresses if address.dev in order)
        for address in sorted(addresses, key=lambda address: order[address.dev]):
            networks.setdefault(address.prefix, []).append(address.dev)
        return networks, PrefixIndex(networks, self._state.family.bits)

    def _is_of_cluster(self, dev: str) -> bool:
        """Return whether an interface is up and may be connected to the cluster's network."""
        if not self._links[dev].is_up or dev in self._bridges:
            return False
        return not self.is_infiniband(dev) and not self._bounds.is_of_pods(dev)

    @cached_property
    def routers(self) -> frozenset[IpAddress | None]:
        """Return the gateways of the uplinks' default routes."""
        uplinks = self._state.uplinks
        defaults = [*self._state.defaults, *([] if uplinks.default is None else [uplinks.default])]
        return frozenset(hop.gateway for hop in _hops(defaults) if hop.dev in uplinks.devs)

    def rivals(self, devs: Iterable[str]) -> set[str]:
        """Return those of ``devs`` that may lead to the cluster in place of the uplinks.

        They have a default route, and are no VPN's.
        """
        with_default = {hop.dev for hop in _hops(self._state.defaults)}
        return {
            dev
            for dev in with_default.intersection(devs)
            if dev is not None and self._is_of_cluster(dev) and not self.is_vpn(dev)
        }

    def _rival_around(self, address: IpAddress) -> str | None:
        """Return the uplinks' rival whose network contains an address, or None.

        A rival is an interface that has a default route, but isn't an uplink. The gateway of an
        uplink has no rival, even if the gateway's address is in a rival's network.
        """
        networks, index = self._rivals
        inner = next(index.around((int(address), self._state.family.bits)), None)
        return None if inner is None or address in self.routers else networks[inner]

    @cached_property
    def _rivals(self) -> tuple[dict[Prefix, str], PrefixIndex]:
        """Return the rivals' networks and gateways, each with its interface, and an index of them.

        A rival is an interface that has a default route, but isn't an uplink.
        """
        family = self._state.family
        networks: dict[Prefix, str] = {}
        uplinks = self._state.uplinks
        if uplinks.named is not None and not uplinks.is_verified:
            return networks, PrefixIndex(networks, family.bits)
        devs: set[str] = set()
        for hop in _hops(self._state.defaults):
            if hop.dev is None or hop.dev in self._uplinks:
                continue
            devs.add(hop.dev)
            if hop.gateway is not None and Family.of(hop.gateway) is family:
                networks[int(hop.gateway), family.bits] = hop.dev
        for address in self._state.addresses:
            if address.dev in devs and address.prefix_length < family.bits:
                networks[address.prefix] = address.dev
        return networks, PrefixIndex(networks, family.bits)

    def is_bridge(self, dev: str) -> bool:
        """Return whether an interface is a bridge without an uplink among its ports."""
        return dev in self._bridges

    def is_vpn(self, dev: str) -> bool:
        """Return whether an interface is a VPN's, by its name or because it is point-to-point."""
        return is_like(dev, _VPNS) or self._links[dev].is_point_to_point

    def is_infiniband(self, dev: str) -> bool:
        """Return whether an interface is an InfiniBand interface, by its type or its name."""
        link = self._links.get(dev)
        if link is None:
            return is_like(dev, INFINIBAND_DEVS)
        return is_infiniband(link)

    @cached_property
    def _bridges(self) -> frozenset[str]:
        """Return the bridges without an uplink among their ports."""
        named = tuple(pattern for patterns, _ in _BRIDGES for pattern in patterns)
        bridges = {
            link.name
            for link in self._links.values()
            if link.kind == "bridge" or is_like(link.name, named)
        }
        of_uplinks = {link.master for link in self._links.values() if link.name in self._uplinks}
        return frozenset(bridges - of_uplinks - self._uplinks)

    def _is_connected(self, route: Route | None) -> bool:
        """Return whether a route has no gateway and leads to (part of) its interface's subnet."""
        if route is None or any(hop.gateway is not None for hop in route.hops):
            return False
        indexes = (self._subnets[dev] for dev in route.devs if dev in self._subnets)
        return any(any(index.around(numbers(route.destination))) for index in indexes)

    @cached_property
    def _subnets(self) -> Mapping[str, PrefixIndex]:
        """Return the subnets of each interface's addresses."""
        found: dict[str, list[Prefix]] = {link: [] for link in self._links}
        for address in self._state.addresses:
            found.setdefault(address.dev, []).append(address.prefix)
        return {
            dev: PrefixIndex(prefixes, self._state.family.bits) for dev, prefixes in found.items()
        }


def _hops(routes: Iterable[Route]) -> Iterator[NextHop]:
    for route in routes:
        yield from route.hops


def _allowing(dev: str, kinds: Collection[bool]) -> str:
    """Return what to set in CONFIG; for ``kinds``, see ``_advice_on``."""
    name = json.dumps(dev)
    ways = {False: f'set "allowedDevs": [{name}]', True: f"add {name} to the CIDR's devs"}
    return " and ".join(way for is_limited, way in ways.items() if is_limited in kinds)
