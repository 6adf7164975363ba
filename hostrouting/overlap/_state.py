"""The facts about a host on which a check's verdict depends. This module does no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from hostrouting.kernel.default_routes import unicast_defaults
from hostrouting.kernel.nexthops import Router
from hostrouting.model.family import Family
from hostrouting.model.links import Address, AddressLabel, Link
from hostrouting.model.routes import Route, Route6
from hostrouting.model.rules import Rule
from hostrouting.model.values import frozen
from hostrouting.overlap.uplinks import Uplinks

if TYPE_CHECKING:
    from hostrouting.kernel.fib import Fib
    from hostrouting.kernel.model import Model


# The kinds of masters that receive in place of their ports.
_MASTERS = ("bridge", "bond", "team", "openvswitch")


# eq and repr are off because they aren't needed, and generating them takes as long as querying the
# kernel.
@frozen(
    eq=False,
    repr=False,
    slots=False,
)
class State:
    """The state of a host, as far as a check needs it.

    Args:
        family: the CIDRs' address family.
        uplinks: the interfaces that may carry traffic to the cluster.
        links: all interfaces of the host.
        addresses: the host's addresses.
        rules: the policy rules, in evaluation order.
        routes: the entries in all tables. If a table is large, only the routes that can matter.
        silent_routers: IPv6 routers that the kernel skips because they don't respond; empty for
            IPv4.
        labels: the labels of IPv6 addresses; empty for IPv4.
        is_merged: whether tables local and main share one trie; None if that is unknown or doesn't
            matter.
    """

    family: Family
    uplinks: Uplinks
    links: Sequence[Link]
    addresses: Sequence[Address]
    rules: Sequence[Rule]
    routes: Sequence[Route] = ()
    silent_routers: frozenset[Router] = frozenset()
    labels: Sequence[AddressLabel] = ()
    is_merged: bool | None = None

    @cached_property
    def defaults(self) -> Sequence[Route]:
        """Return the unicast default routes in table main, including dead ones."""
        return unicast_defaults(self.routes)

    @cached_property
    def ports(self) -> Mapping[str, Link]:
        """Return the interfaces that are ports of a bridge or bond, by name.

        A port's master takes all incoming packets (rx_handler), so no reply reaches the port's own
        address.
        """
        kinds = {link.name: link.kind for link in self.links}
        return {link.name: link for link in self.links if kinds.get(link.master or "") in _MASTERS}

    @cached_property
    def mtus(self) -> Mapping[str, int]:
        """Return the interfaces' known MTUs."""
        return {link.name: link.mtu for link in self.links if link.mtu}

    @property
    def plain_devs(self) -> tuple[str, ...]:
        """Return the uplinks that aren't ports. Only routes through these uplinks are plain."""
        return tuple(dev for dev in self.uplinks.devs if dev not in self.ports)

    @property
    def default_expires(self) -> int | None:
        """Return for how many more seconds an uplink has a default route.

        The result is None if no uplink has a default route, or if one never expires.
        """
        uplinks = {*self.uplinks.devs}
        # A dead route has no devs, so it doesn't count.
        ours = (route for route in self.defaults if not uplinks.isdisjoint(route.devs))
        lifetimes = [route.expires for route in ours if isinstance(route, Route6)]
        known = [lifetime for lifetime in lifetimes if lifetime is not None]
        return max(known, default=None) if len(known) == len(lifetimes) else None

    @cached_property
    def model(self) -> Model:
        """Return a model of the host, for questions that no lookup in the kernel answers."""
        from hostrouting.kernel.known_host import KnownHost
        from hostrouting.kernel.model import model_of

        known = KnownHost(
            self.family,
            tuple(self.links),
            tuple(self.addresses),
            tuple(self.rules),
            tuple(self.routes),
            tuple(self.labels),
            self.silent_routers,
            self.is_merged,
            is_live=True,
        )
        return model_of(known)

    @property
    def fib(self) -> Fib:
        """Return the model's tables and rules."""
        return self.model.fib
