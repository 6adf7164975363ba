"""Define what is known about the state of a host in one address family.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from hostrouting.kernel.nexthops import Router
from hostrouting.kernel.sources import SourceKey
from hostrouting.model.errors import RouteError
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.links import Address, AddressLabel, Link
from hostrouting.model.routes import Route
from hostrouting.model.rules import Rule
from hostrouting.model.values import frozen


class UnknownFactError(RouteError):
    """Exception raised if an answer depends on a fact that a model or a snapshot lacks."""


@frozen(eq=False, repr=False)
class KnownHost:
    """The known state of a host in one address family.

    Args:
        family: the family that addresses, rules and routes belong to.
        links: the links, sorted by index.
        addresses: the host's addresses.
        rules: the policy rules, in evaluation order.
        routes: the entries in all tables, in the kernel's order, including the hops of nexthop
            objects. For a live host, only the entries that matter to the check.
        labels: the labels of IPv6 addresses; None if they aren't known.
        silent_routers: the unreachable IPv6 routers, which the kernel avoids.
        is_merged: whether tables local and main share one trie; None if that isn't known. IPv4
            only.
        sources: the source addresses that the kernel has reported, by the result of
            ``source_key_to``.
        kernel: the kernel's name and release; None if they aren't known.
        is_torn: whether the host changed during the read.
        has_odd_sources: whether the kernel's source address selection differs from RFC 6724.
        uses_deleted: whether the kernel still uses tables local and main after their rules were
            deleted; None if that isn't known. IPv6 only.
        is_ordered: whether IPv6 addresses are in the order in which the kernel considers them.
        is_recorded: whether hostrouting, and not ip, took this snapshot. Another snapshot by
            hostrouting would show no more facts.
        is_live: whether the kernel itself has just answered for this state. The model then accepts
            unknown facts: an unsupported selector counts as not matching, and the model returns
            every source that the kernel may choose.
    """

    family: Family
    links: tuple[Link, ...]
    addresses: tuple[Address, ...]
    rules: tuple[Rule, ...]
    routes: tuple[Route, ...]
    labels: tuple[AddressLabel, ...] | None = None
    silent_routers: frozenset[Router] = frozenset()
    is_merged: bool | None = None
    sources: Mapping[SourceKey, tuple[IpAddress, ...]] = attrs.field(
        factory=dict[SourceKey, tuple[IpAddress, ...]]
    )
    kernel: str | None = None
    is_torn: bool = False
    has_odd_sources: bool = False
    uses_deleted: bool | None = None
    is_ordered: bool = True
    is_recorded: bool = False
    is_live: bool = False
