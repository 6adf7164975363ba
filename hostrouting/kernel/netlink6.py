"""The IPv6 routes backend for the running kernel; see netlink.py for IPv4."""

from __future__ import annotations

import errno as errnos
import os
import socket
from collections.abc import Collection, Iterable, Iterator, Sequence
from ipaddress import IPv6Address

import attrs

from hostrouting.kernel.netlink import NO_ROUTE_ERRNOS, NetlinkBackend, Request
from hostrouting.kernel.nexthops import Router
from hostrouting.kernel.port import Facts, Sent, read_our_routes, read_routes, refuse_datagrams
from hostrouting.kernel.rtnetlink import link_messages
from hostrouting.kernel.rtnetlink import messages as rtnl
from hostrouting.kernel.rtnetlink import route_messages as rtm
from hostrouting.kernel.rtnetlink.entries import Attributes
from hostrouting.kernel.rules import kernel_rules
from hostrouting.model.errors import RouteError
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.integer_prefixes import Prefix
from hostrouting.model.links import Address
from hostrouting.model.lookups import Lookup, RouteFailure
from hostrouting.model.opening import translate_errors
from hostrouting.model.routes import NextHop, Route
from hostrouting.model.values import frozen

# An arbitrary port, because no packet is sent.
_PORT = 9
_NO_GATEWAY = IPv6Address(0)
# Errors from connect(2) for unreachable destinations: failed lookup, no source address, IPv4-mapped
# source address.
_UNREACHABLE = (*NO_ROUTE_ERRNOS, errnos.EADDRNOTAVAIL, errnos.EAFNOSUPPORT)


class NetlinkBackend6(NetlinkBackend):
    """The IPv6 FIB in the calling thread's network namespace."""

    family = Family.IPV6

    def lookup(
        self,
        addresses: Sequence[IpAddress],
        *,
        source: IpAddress | None = None,
        is_tcp: bool = False,
    ) -> tuple[Lookup, ...]:
        """Return the best route to each address; see ``NetlinkBackend.lookup``.

        The kernel caches one result for each nexthop object (rt6_get_pcpu_route). If several
        entries use the same object, it may therefore report the wrong one of them. So if the kernel
        reports an entry with a nexthop object, the result is computed from the tables.

        Raises:
            RouteError: the kernel can't be queried, or reports an entry that contradicts the
                tables.
        """
        found = super().lookup(addresses, source=source, is_tcp=is_tcp)
        if not any(_has_object(each) for each in found):
            return found
        from hostrouting.kernel.fib6 import Fib6

        facts = self.facts()
        routes = read_routes(self)
        # Until a rule is added, the kernel consults tables local and main even if their rules were
        # deleted (fib6_rule_lookup).
        fibs = [
            Fib6(
                rules,
                routes,
                facts.addresses,
                links=facts.links,
                silent_routers=facts.silent_routers,
            )
            for rules in (facts.rules, kernel_rules(self.family))
        ]

        def shown(lookup: Lookup) -> Lookup:
            if not _has_object(lookup):
                return lookup
            modelled = (fib.lookup(lookup.address, source, is_tcp=is_tcp) for fib in fibs)
            right = next(filter(_has_object, modelled), None)
            if right is None:
                reason = (
                    f"the kernel shows {lookup.route} for {lookup.address}, and the tables don't"
                )
                raise RouteError(f"can't look up routes: {reason}", hint="try again later")
            return right

        return tuple(map(shown, found))

    def _look_up(
        self,
        addresses: Sequence[IpAddress],
        source: IpAddress | None = None,
        *,
        is_tcp: bool = False,
    ) -> list[tuple[Attributes, Prefix] | int]:
        """Return the attributes and the prefix of the entry for each address, or an errno.

        While another process replaces a route, lookups fail for a moment in Linux 7.2, even if a
        shorter prefix matches. So lookups that fail with ENETUNREACH are repeated once.
        """
        found = super()._look_up(addresses, source, is_tcp=is_tcp)
        failed = [
            address
            for address, answer in zip(addresses, found, strict=True)
            if answer == errnos.ENETUNREACH
        ]
        if not failed:
            return found
        again = dict(zip(failed, super()._look_up(failed, source, is_tcp=is_tcp), strict=True))
        return [
            again.get(address, answer) for address, answer in zip(addresses, found, strict=True)
        ]

    def _requests(self, entry: Route, addresses: Sequence[IpAddress]) -> Iterator[Request]:
        """Yield the lookups that exercise all hops of an entry.

        The kernel selects the source by the destination and by the hop's interface, so there is a
        lookup for each pair.
        """
        several = len(entry.devs) > 1
        for oif in map(rtnl.index_of, entry.devs) if several else (None,):
            yield from ((address, None, oif) for address in dict.fromkeys(addresses))

    def sources(
        self,
        sent: Sequence[Sent],
        *,
        is_tcp: bool = False,
    ) -> tuple[tuple[IpAddress, ...], ...]:
        """Return the addresses that the kernel selects as source of packets without a source.

        Raises:
            RouteError: the kernel can't be queried, or no socket can be opened. Or a TCP lookup
                fails where a UDP lookup succeeds: only a UDP socket shows the source.
        """
        routed = super().sources(sent, is_tcp=is_tcp)
        unrouted = [address for entry, addresses in sent if entry is None for address in addresses]
        if is_tcp and unrouted:
            refuse_datagrams(self.lookup(unrouted))
        return tuple(
            found if entry is not None else _sources_of_datagrams(addresses)
            for (entry, addresses), found in zip(sent, routed, strict=True)
        )

    def facts(self) -> Facts:
        # Read the rules first, because a kernel without IPv6 then reports EAFNOSUPPORT.
        rules = self._rules()
        labels = self._list(link_messages.LABELS6)
        return Facts(self._links(), self._addresses(), rules, labels, self._silent_routers())

    def _silent_routers(self) -> frozenset[Router]:
        if any(self._list(link_messages.FORWARDING6)):
            return frozenset()
        return frozenset(filter(None, self._list(link_messages.NEIGHBOURS6)))

    def _addresses(self) -> tuple[Address, ...]:
        """Return the addresses in the order in which the kernel considers them as sources.

        The kernel considers the interfaces in the order of their registration. Only the list of
        multicast groups shows this order.
        """
        path = "/proc/thread-self/net/igmp6"
        groups: list[bytes] = []  # without procfs, assume the order of the indexes
        with translate_errors(f"read {path}", errnos.ENOENT), open(path, "rb") as file:
            groups = file.read().splitlines()
        names = dict.fromkeys(os.fsdecode(line.split()[1]) for line in groups)
        order = {name: position for position, name in enumerate(names)}
        return tuple(
            sorted(super()._addresses(), key=lambda address: order.get(address.dev, len(order)))
        )

    # --- writing ----------------------------------------------------------------------------------

    def _replace(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Add routes. Each replaces our route with the same ``key``, if there is one.

        NLM_F_REPLACE would also remove the next hops that other programs have added to our route
        (fib6_add_rt2node). Instead, the new next hops are added, and then our old next hops are
        deleted one by one. If only the source, MTU, weight or ``onlink`` flag of a next hop
        changes, the route is missing for a moment.

        If another program has added a next hop to a route, the route isn't changed, and fails with
        EEXIST. A route fails with ENOTRECOVERABLE if an old next hop was deleted and couldn't be
        restored after a failure.
        """
        if not routes:
            return ()
        there = self._our_hops(routes)
        swaps = [_Swap(route, there.get(route.key, {}), _by_hop(route)) for route in routes]
        added = [hop for swap in swaps for hop in swap.added]
        failures = {failure.route.key: failure for failure in self._append(added)}
        # Another program may have added a next hop before our new ones. Without our old next hops,
        # this hop would be the first one, and the kernel would show the route with that program's
        # protocol. So read the routes again: ``_take_old`` then keeps our old next hops.
        now = self._our_hops(routes) if added else there
        for swap in swaps:
            key = swap.route.key
            failure = failures.get(key) or self._take_old(swap, now.get(key, {}))
            if failure is not None:
                failures[key] = failure._replace(route=swap.route)
        return self._taken_back(swaps, added, failures)

    def _taken_back(
        self,
        swaps: Sequence[_Swap],
        added: Iterable[Route],
        failures: dict[tuple[object, ...], RouteFailure],
    ) -> tuple[RouteFailure, ...]:
        """Delete the next hops added to failed routes, and return the failures in order."""
        if failures:
            self._delete([hop for hop in added if hop.key in failures])
            self._delete_lost(swaps, failures)
        keys = [swap.route.key for swap in swaps]
        return tuple(failures[key] for key in keys if key in failures)

    def _take_old(self, swap: _Swap, now: dict[Router, Route]) -> RouteFailure | None:
        """Delete a route's old next hops, and add the new ones unless they are there already."""
        if not swap.can_coexist:
            old = [*swap.old.values()]
            return self._take(old) or self._add_afresh(swap.route, old)
        joined = _without(now, swap.old | swap.new)
        return _joined(joined[0]) if joined else self._take(_without(swap.old, swap.new))

    def _delete_lost(
        self,
        swaps: Iterable[_Swap],
        failures: dict[tuple[object, ...], RouteFailure],
    ) -> None:
        """Delete our next hops of each failed route that looks like another program's by now.

        The kernel shows only the first next hop's protocol. If another program's next hop has
        become the first, a later run wouldn't recognize ours.
        """
        there = self._our_hops([swap.route for swap in swaps])
        for swap in swaps:
            key = swap.route.key
            if key in failures and key not in there:
                hops = [*(swap.old | swap.new).values()]
                if len(self._delete(hops)) < len(hops):
                    failures[key] = _lost(failures[key], swap.route)

    def _add_afresh(self, route: Route, old: Sequence[Route]) -> RouteFailure | None:
        """Add a route whose old next hops have been deleted.

        If the route can't be added, put the old next hops back.
        """
        for failure in self._add([route]):
            left = self._add(old[:1]) or self._append(old[1:])
            return _lost(failure, left[0].route) if left else failure
        return None

    def _our_hops(self, routes: Sequence[Route]) -> dict[tuple[object, ...], dict[Router, Route]]:
        """Return the next hops of our existing routes, by key, in the order of addition."""
        found: dict[tuple[object, ...], dict[Router, Route]] = {}
        keys = {route.key for route in routes}
        unsorted = NetlinkBackend6()
        unsorted._arrange = tuple
        for route in read_our_routes(unsorted):
            if route.key in keys:
                found.setdefault(route.key, {}).update(_by_hop(route))
        return found

    def _take(self, hops: Sequence[Route]) -> RouteFailure | None:
        """Delete next hops of a route. If one belongs to another program, delete none of them.

        The last next hop is deleted first. A next hop that another program has appended comes after
        ours. So the request to delete that hop fails before any of our next hops is deleted.
        """
        for position, hop in reversed([*enumerate(hops)]):
            for failure in self._delete([hop]):
                why = _joined(hop) if failure.errno == errnos.ESRCH else failure
                left = self._append(hops[position + 1 :])
                return _lost(why, left[0].route) if left else why
        return None

    def _append(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        return self._new(rtnl.APPEND, routes)

    def _delete(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Delete only the next hops in ``routes``, one by one.

        A next hop with another protocol, which another program has added, isn't deleted. The result
        then has a failure (ESRCH), whose route has only that next hop.
        """
        packer = rtm.RoutePacker(self.family)

        def pack(route: Route, sequence: int) -> bytes:
            hop = route.hops[0] if route.hops else NextHop()
            # If a request has a gateway, the kernel deletes only the next hop with this gateway,
            # and compares the next hop's protocol (ip6_route_del). The gateway :: matches only a
            # next hop without a gateway.
            if hop.gateway is None:
                route = attrs.evolve(route, hops=(attrs.evolve(hop, gateway=_NO_GATEWAY),))
            return packer.delete(route, sequence)

        return self._send([hop for route in routes for hop in _by_hop(route).values()], pack)


def _sources_of_datagrams(addresses: Sequence[IpAddress]) -> tuple[IpAddress, ...]:
    """Return the source addresses with which the kernel retries failed lookups.

    Netlink doesn't report these sources, so a UDP socket is connected to each address. Connecting a
    UDP socket sends no packet.
    """
    found: set[IpAddress] = set()
    for address in addresses:
        try:
            with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as datagrams:
                datagrams.connect((str(address), _PORT))
                found.add(IPv6Address(datagrams.getsockname()[0]))
        except OSError as error:
            if error.errno not in _UNREACHABLE:
                reason = (
                    f"can't ask for the source of packets to {address}: {error.strerror or error}"
                )
                raise RouteError(reason, errno=error.errno) from error
    return tuple(sorted(found))


def _by_hop(route: Route) -> dict[Router, Route]:
    """Split a route into a route for each next hop, by interface and gateway.

    A discarding route, such as a blackhole, stays whole.
    """
    if not route.hops:
        return {(None, None): route}
    several = len(route.hops) > 1
    return {
        (hop.dev, hop.gateway): attrs.evolve(route, hops=(hop,)) if several else route
        for hop in route.hops
    }


def _without(hops: dict[Router, Route], others: Collection[Router]) -> list[Route]:
    return [hop for router, hop in hops.items() if router not in others]


@frozen(eq=False, repr=False)
class _Swap:
    """A route whose next hops are replaced, with the old and the new next hops."""

    route: Route
    old: dict[Router, Route]
    new: dict[Router, Route]

    @property
    def can_coexist(self) -> bool:
        """Return whether the route can have its old and its new next hops at the same time.

        A route can't have two next hops with the same interface and gateway. So if a new next hop
        has the interface and gateway of an old one, its settings must be unchanged, too. Without
        old next hops, the result is False.
        """
        both = [(self.old[router], hop) for router, hop in self.new.items() if router in self.old]
        return bool(self.old) and all(_is_unchanged(old, new) for old, new in both)

    @property
    def added(self) -> list[Route]:
        """Return the next hops to add beside the old ones."""
        return _without(self.new, self.old) if self.can_coexist else []


def _is_unchanged(old: Route, new: Route) -> bool:
    has_same_settings = (old.source, old.mtu) == (new.source, new.mtu)
    return has_same_settings and old.has_same_next_hops(new)


def _joined(theirs: Route) -> RouteFailure:
    words = theirs.hops[0].words(Family.IPV6) if theirs.hops else str(theirs)
    return RouteFailure(
        theirs,
        errnos.EEXIST,
        f"another program has added the next hop {words}",
        is_by_kernel=False,
    )


def _lost(failure: RouteFailure, route: Route) -> RouteFailure:
    message = f"{failure.message}; can't put back {route}"
    return failure._replace(errno=errnos.ENOTRECOVERABLE, message=message)


def _has_object(lookup: Lookup) -> bool:
    return lookup.entry is not None and lookup.entry[0].nexthop_id is not None
