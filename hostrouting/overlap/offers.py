"""Offer to keep an interface if packets from its addresses leave through another interface.

Replies from a second NIC's address are often meant to leave through that NIC. Without policy rules,
they leave through the default route. The check can't know which interface is meant, so it reports
no failure and proposes no fix. A question is asked only about expected addresses (``_diversions``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import attrs

from hostrouting.config.routing import ONLINK, Config, Keep
from hostrouting.kernel.fib import Fib
from hostrouting.kernel.port import RouteBackend, read_routes
from hostrouting.model.errors import ConfigError
from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.links import Address, Hardware, is_like
from hostrouting.overlap._diversions import Diversions
from hostrouting.overlap._judge import Judge
from hostrouting.overlap._keep import entries_for, keepable, lost_by_keeping
from hostrouting.overlap._modelled_host import ModelledHost, host_now
from hostrouting.overlap._read import read_host
from hostrouting.overlap.proposals import OFFER
from hostrouting.routes.verify_policy import ELSEWHERE
from phases import CancelScope

# Only the addresses of a network before this position are tried as a neighbour's.
_FIRST_ADDRESSES = 5
# A line of text names at most this many networks.
_SHOWN_NETWORKS = 4
_GATEWAY = "GATEWAY"
_BY_DEFAULT = " that only a default route carries"


class Offer(NamedTuple):
    """Packets that don't leave through the interface of their source, with advice.

    Args:
        fact: a clause: which packets leave through which interface.
        what_to_do: advice to add an entry of ``keep``.
    """

    fact: str
    what_to_do: str

    def __str__(self) -> str:
        return f"{self.fact}; {self.what_to_do}"


def keep_offers(
    config: Config,
    backend: RouteBackend,
    scope: CancelScope,
    keep: Sequence[Keep] = (),
) -> list[Offer]:
    """Offer ``keep`` entries for interfaces from whose addresses packets leave through others.

    Each entry is proven on a model of the host: with the entry, no expected address fails.

    Args:
        config: the config with the expected CIDRs.
        backend: the kernel to query, for IPv4.
        scope: cancellation scope for the reads.
        keep: the entries of the fix. Nothing is offered for their interfaces.
    """
    kept = tuple(entry.dev for entry in keep)
    offers = _offers(config, backend, scope, kept)
    return [] if offers is None else [*offers.of_all()]


def _offers(
    config: Config,
    backend: RouteBackend,
    scope: CancelScope,
    kept: tuple[str, ...],
) -> _Offers | None:
    overlap = config.route_overlap.of(Family.IPV4)
    if not overlap.expected_cidrs:
        return None
    config = attrs.evolve(config, route_overlap=overlap)
    moment = read_host(config, backend, scope)
    state = attrs.evolve(moment.state, routes=read_routes(backend))
    if state.uplinks.unknown is not None:
        return None
    Judge(overlap, state).judge(moment.places)
    return _Offers(config, host_now(state, moment.places), kept)


class _Offers:
    def __init__(self, config: Config, host: ModelledHost, kept: tuple[str, ...]) -> None:
        self._config = config
        self._host = host
        self._kept = kept
        self._state = host.state
        # Most users' packets don't match the rules that are only for some users, so leave these
        # rules out.
        rules = [rule for rule in self._state.rules if rule.uid_range is None]
        self._fib = host.model.with_rules(rules).fib
        ours = [route for route in self._state.routes if route.is_ours]
        theirs = (rule for rule in rules if not rule.is_ours)
        self._fib_without_ours = host.model.without(ours).with_rules(theirs).fib
        self._own = {address.local for address in self._state.addresses}
        self._diversions = Diversions(self._state, config.route_overlap.container_devs)
        self._virtual = {
            link.name
            for link in self._state.links
            if link.hardware == Hardware.LOOPBACK or link.kind == "dummy"
        }

    def of_all(self) -> Iterator[Offer]:
        done: set[str] = set()
        for address in keepable(self._state):
            dev = address.dev
            if dev in done or not self._may_be_meant(dev):
                continue
            # An offer for packets to neighbours, if they leave through another interface.
            near = self._neighbour_of(address)
            if near is not None and self._through(near, address) != (dev,):
                devs = self._devs_in(address.network)
                done.update(devs)
                yield from self._offer(address, near, entries_for(devs, self._state))
                continue
            # Else an offer for packets to distant hosts, if they leave through another interface.
            through = self._through(ELSEWHERE, address)
            if through not in ((dev,), ()) and not self._diversions.is_infiniband(dev):
                done.add(dev)
                yield from self._offer(address, ELSEWHERE, self._with_gateway(address))

    def _may_be_meant(self, dev: str) -> bool:
        """Return whether an interface may be meant to carry packets from its own addresses."""
        not_meant = (*self._config.route_overlap.container_devs, *self._kept)
        return not (
            is_like(dev, not_meant) or dev in self._virtual or self._diversions.is_bridge(dev)
        )

    def _neighbour_of(self, address: Address) -> IpAddress | None:
        """Return another host's address in the network of one of our addresses, or None."""
        size = address.network.num_addresses
        first = address.network.network_address
        others = (first + number for number in range(1, min(size - 1, _FIRST_ADDRESSES)))
        return next((other for other in others if other not in self._own), None)

    def _through(self, to: IpAddress, address: Address) -> tuple[str, ...]:
        return _through(self._fib, to, address)

    def _devs_in(self, network: IpNetwork) -> list[str]:
        devs = (each.dev for each in keepable(self._state) if each.network == network)
        return [*dict.fromkeys(devs)]

    # --- gateways ---------------------------------------------------------------------------------

    def _with_gateway(self, address: Address) -> tuple[Keep, ...] | None:
        """Return the ``keep`` entry for an interface, or None if it needs an unknown gateway."""
        dev = address.dev
        if any(dev in route.devs for route in self._state.defaults):
            return (Keep(dev),)
        gateways = self._gateways(dev)
        if len(gateways) != 1:
            return None
        (gateway,) = gateways
        if gateway is None:
            return (Keep(dev, ONLINK),)
        return _entry(dev, gateway)

    def _gateways(self, dev: str) -> set[IpAddress | None]:
        """Return the gateways of an interface's default routes or, without these, of its routes.

        None stands for a default route without a gateway.
        """
        of_defaults: set[IpAddress | None] = set()
        of_others: set[IpAddress | None] = set()
        for route in self._state.routes:
            gateways = {hop.gateway for hop in route.hops if hop.dev == dev}
            if route.destination.prefixlen == 0:
                of_defaults |= gateways
            else:
                of_others |= gateways - {None}
        return of_defaults or of_others

    # --- the words --------------------------------------------------------------------------------

    def _offer(
        self,
        address: Address,
        to: IpAddress,
        keep: tuple[Keep, ...] | None,
    ) -> Iterator[Offer]:
        dev = address.dev
        if keep is None and self._diversions.is_vpn(dev):
            return
        # Without a known gateway, the entry is proven with a neighbour as its gateway.
        stand_in = self._neighbour_of(address)
        proven = keep or (None if stand_in is None else _entry(dev, stand_in))
        if proven is None:
            return
        lost = lost_by_keeping(self._host, proven, [(to, address)], self._config)
        if lost is not None:
            is_beyond = to == ELSEWHERE
            where = _BY_DEFAULT if is_beyond else f" to {address.network}"
            fact = self._fact(address, to, where)
            without = _through(self._fib_without_ours, to, address)
            is_ours = self._through(to, address) != without
            cause = "because of hostrouting's routes" if is_ours else "as without hostrouting"
            yield Offer(f"{fact}, {cause}", self._what_to_do(dev, keep, lost, is_beyond))

    def _what_to_do(
        self,
        dev: str,
        keep: tuple[Keep, ...] | None,
        lost: Sequence[str],
        is_beyond: bool,
    ) -> str:
        but = "".join(f", but {line}" for line in lost)
        listed = (entry.dev for entry in self._config.static_routes.keep)
        adding = f"{OFFER}, as its first entry" if is_like(dev, tuple(listed)) else OFFER
        return f"{_promise(dev, keep, is_beyond)}, {adding}: {_to_paste(dev, keep)}{but}"

    def _fact(self, address: Address, to: IpAddress, where: str) -> str:
        through = ",".join(self._through(to, address)) or "no interface"
        return f"packets from {address.local} ({address.dev}){where} leave through {through}"


def _through(fib: Fib, to: IpAddress, address: Address) -> tuple[str, ...]:
    route = fib.lookup(to, address.local).route
    return () if route is None else route.devs


def _promise(dev: str, keep: tuple[Keep, ...] | None, is_beyond: bool) -> str:
    gateway = keep[0].gateway if keep else _GATEWAY
    if not is_beyond or gateway in (None, ONLINK):
        return f"to keep them on {dev}"
    return f"to send all of them to {gateway} through {dev}"


def _to_paste(dev: str, keep: tuple[Keep, ...] | None) -> str:
    """Return entries to paste into a config. None stands for an entry with a gateway to fill in."""
    if keep is None:
        entry = json.dumps({"dev": dev, "gateway": _GATEWAY})
        return f"{entry} with its router's address for {_GATEWAY}"
    return ", ".join(json.dumps(entry.to_mapping()) for entry in keep)


def _entry(dev: str, gateway: IpAddress) -> tuple[Keep, ...] | None:
    """Return the ``keep`` entry with a gateway, or None if a config can't name the gateway."""
    try:
        return (Keep(dev, str(gateway)),)
    except ConfigError:
        return None  # such as an IPv6 gateway, or one in 240.0.0.0/4
