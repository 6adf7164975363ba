"""A brute-force check that looks up every address in the kernel and classifies each answer
separately.

It is deliberately slow and simple, and apart from value classes it shares no code with the check
that it verifies. The kernel doesn't report which entry discards an address, so a walk through the
rules and tables finds it. The result of the walk is compared with the kernel's answer for every
address, discarded or not.
"""

from __future__ import annotations

import errno as errnos
import os
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from fnmatch import fnmatchcase
from functools import cache
from ipaddress import IPv4Address, IPv4Network, collapse_addresses
from itertools import product

import attrs

from hostrouting.config.routing import RouteOverlap
from hostrouting.kernel.memory import FakeKernel
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.port import RouteBackend, read_routes
from hostrouting.kernel.release import passes_discards
from hostrouting.model.family import IpAddress, IpNetwork
from hostrouting.model.links import Address
from hostrouting.model.lookups import Lookup
from hostrouting.model.parsing import is_inside
from hostrouting.model.routes import DEFAULT_DESTINATION, Route, RouteType, Table
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.overlap.findings import Finding, OverlapReport

FAILURES = ("OVERLAP", "NO-ROUTE", "BLACKHOLE", "GATEWAY", "PORT")
FINE = "fine"
_UNJUDGED = tuple(map(IPv4Network, ("0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/3")))
_DISCARDED = {
    errnos.EINVAL: "blackhole",
    errnos.EHOSTUNREACH: "unreachable",
    errnos.EACCES: "prohibit",
}


@attrs.frozen
class Sort:
    """The classification of one address.

    Args:
        kind: the kind of finding or note, or ``fine``.
        devs: the interfaces through which packets to the address leave.
        route: the matching entry, or None if there is none or a rule discards the address.
        discarded_by: blackhole, unreachable or prohibit if the address is discarded.
        source: the source address in a connection's second lookup, or None in the first lookup.
        more: failures of other lookups for the same address.
    """

    kind: str
    devs: tuple[str, ...] = ()
    route: Route | None = None
    discarded_by: str | None = None
    source: IpAddress | None = None
    more: tuple[Sort, ...] = ()

    @property
    def is_failure(self) -> bool:
        return self.kind in FAILURES

    @property
    def has_failure(self) -> bool:
        """Return whether any packet to the address fails, such as those of a connection."""
        return self.is_failure or any(other.is_failure for other in self.more)


# --- classification -------------------------------------------------------------------------------


def default_route(routes: Iterable[Route]) -> Route | None:
    """Return the unicast default route in table main that has a live next hop and the lowest
    metric.
    """
    best: Route | None = None
    for route in routes:
        is_default = route.destination == DEFAULT_DESTINATION and route.table == Table.MAIN
        if (
            is_default
            and route.type is RouteType.UNICAST
            and route.tos == 0
            and {*live(route)} - {"lo"}
        ):
            best = route if best is None or route.metric < best.metric else best
    return best


def _turn(route: Route) -> tuple[object, ...] | None:
    is_one_of_some = (
        route.type is RouteType.UNICAST
        and len(route.hops) == 1
        and route.hops[0].gateway is not None
    )
    return (
        (route.key, route.scope)
        if route.destination.prefixlen == 0 and is_one_of_some and live(route)
        else None
    )


# TCP can't connect to addresses that match these routes.
_UNCONNECTED = (RouteType.BROADCAST, RouteType.MULTICAST)


class Judge:
    """A brute-force classifier for a host with the given config.

    Args:
        kernel: the host's kernel, which is read only once.
        overlap: the routeOverlap config.
        had_rules: whether tables local and main are separate, as they are after the first change of
            the rules.
        patterns: name patterns of the interfaces that may carry the expected CIDR, or None.
        uplinks: the verified uplinks, or nothing if the default route tells the uplinks.
    """

    def __init__(
        self,
        kernel: RouteBackend,
        overlap: RouteOverlap,
        *,
        had_rules: bool,
        patterns: tuple[str, ...] | None = None,
        uplinks: tuple[str, ...] = (),
    ) -> None:
        self._patterns = patterns
        self.is_verified = bool(uplinks)
        self._cidr: IpNetwork = DEFAULT_DESTINATION
        self._routes = read_routes(kernel)
        self.rules = kernel.facts().rules
        self._had_rules = had_rules
        release = None if isinstance(kernel, FakeKernel) else os.uname().release
        self._passes_discards = not had_rules and bool(passes_discards(release))
        self._has_default_table = any(route.table == Table.DEFAULT for route in self._routes)
        self._overlap = overlap
        self.foreseen = tuple(dict.fromkeys(overlap.foreseen))
        self._spans = [
            (int(r.destination[0]), int(r.destination[-1]), r) for r in self._routes if r.tos == 0
        ]
        prefixes = [r.destination for r in self._routes] + [
            r.destination for r in self.rules if r.destination
        ]
        self._ends = sorted(
            {end for prefix in prefixes for end in (int(prefix[0]), int(prefix[-1]) + 1)}
        )
        self._walked: dict[tuple[int, int, int], Route | int] = {}
        self.addresses = kernel.facts().addresses
        kinds = {link.name: link.kind for link in kernel.facts().links}
        self._masters = {link.name: kinds.get(link.master or "") for link in kernel.facts().links}
        self._down = {link.name for link in kernel.facts().links if not link.is_up}
        self.default = default_route(
            route for route in self._routes if not uplinks or {*live(route)} & {*uplinks}
        )
        self.expected = uplinks or (live(self.default) if self.default is not None else ())

    def of(self, cidr: IpNetwork) -> Judge:
        """Return the same judge for one expected CIDR."""
        judge = copy(self)
        judge._cidr = cidr
        return judge

    def sort(
        self, answer: Lookup, source: IpAddress | None = None, *, is_tcp: bool = False
    ) -> Sort:
        """Return the classification that the check must assign to this answer."""
        decision = self._walked_to(int(answer.address), int(source or 0), 6 if is_tcp else 17)
        if source is not None and not self.is_local(source):
            decision = errnos.ENETUNREACH
        if (
            self._passes_discards
            and isinstance(decision, Route)
            and decision.type.is_discard
            and not answer.route
        ):
            # A table that exists without entries has this errno, too.
            decision = errnos.ENETUNREACH if answer.errno == errnos.ENETUNREACH else decision
        if not _is_same(answer, decision):
            raise LookupError(
                f"the walk found {decision} for {answer.address}, "
                f"the kernel says {answer.route or answer.errno}"
            )
        found = self._sort(answer, decision)
        return found if source is None else attrs.evolve(found, source=source)

    def in_turn(self, answer: Lookup) -> list[Lookup]:
        """Return one answer for each default route that the kernel may select, depending on the
        neighbours' states.
        """
        turn = None if answer.route is None else _turn(answer.route)
        return [
            Lookup(answer.address, r, answer.errno)
            for r in self._routes
            if turn is not None and _turn(r) == turn
        ] or [answer]

    def sources(self, answer: Lookup) -> list[IpAddress]:
        """Return the source addresses that a connection with this answer may use."""
        route = answer.route
        if route is None or route.type is RouteType.LOCAL:
            return []
        if route.source is not None:
            return [route.source]
        found = []
        for hop in route.hops:
            usable = [
                a
                for a in self.addresses
                if not a.is_secondary and a.scope <= route.scope and not hop.is_dead
            ]
            near = [a for a in usable if a.dev == hop.dev]
            on_link = [
                a for a in near if isinstance(hop.gateway, IPv4Address) and hop.gateway in a.network
            ]
            elsewhere = [a for a in usable if a.scope != 253]
            found += [address.local for address in (*on_link, *near, *elsewhere)[:1]]
        return found

    def is_local(self, source: IpAddress) -> bool:
        """Return whether an address belongs to this host."""
        local = (
            route.destination
            for route in self._routes
            if (route.type, route.table) == (RouteType.LOCAL, 255)
        )
        return any(source in network for network in local) or any(
            each.local == source for each in self.addresses
        )

    @property
    def called(self) -> list[IpAddress]:
        """The addresses at which a server may be called, if a rule tells them apart from packets
        without a source.
        """
        treats_tcp_apart = any(rule.ip_protocol for rule in self.rules)
        return [
            own.local
            for own in self.addresses
            if own.dev in (*self.expected, "lo") and own.scope == 0 and not own.local.is_link_local
            if any(
                r.source
                and (treats_tcp_apart or (own.local in r.source) != (IPv4Address(0) in r.source))
                for r in self.rules
            )
        ]

    @property
    def rivals(self) -> list[tuple[str, ...]]:
        """The interfaces of each default route of table main."""
        return [
            live(r)
            for r in self._routes
            if (r.destination, r.table, r.tos, r.type)
            == (DEFAULT_DESTINATION, Table.MAIN, 0, RouteType.UNICAST)
            if live(r)
        ]

    def has_a_containers_default(self) -> bool:
        """Return whether the default route that wins may be a container's, while another interface
        has one, too.
        """
        are_pods = [
            all(_is_like(dev, self._overlap.container_devs) for dev in devs)
            for devs in (self.expected, *self.rivals)
        ]
        return are_pods[0] and not all(are_pods)

    def is_deaf(self) -> bool:
        """Return whether this host doesn't receive what is sent to one of its addresses."""
        found: list[Route | int] = []
        called = self.called
        for own, protocol in product(self.addresses, (17, 6)):
            if not (own.local.is_loopback or self._must_hear(own, called)):
                continue
            to = int(own.local)
            found += [self.walk(to, int(each), protocol) for each in (0, *called)]
            plain = found[-1 - len(called)]
            if not own.local.is_loopback:
                source = plain.source if isinstance(plain, Route) else None
                found.append(self.walk(to, int(source or own.local), protocol))
                found += [
                    self.walk(to, int(sender), protocol, iif=dev)
                    for dev in (self.expected if own.dev == "lo" else [own.dev])
                    for sender in (*self._sender(own, dev), *self._clients())
                    if dev not in self._down
                ]
        return any(
            isinstance(each, int) or each.type not in (RouteType.LOCAL, RouteType.BROADCAST)
            for each in found
        )

    def _must_hear(self, own: Address, called: Sequence[IpAddress]) -> bool:
        is_expected = any(own.local in each.cidr for each in self._overlap.expected_cidrs)
        is_called = own.dev == "lo" and own.local in called
        return own.dev not in self._down and (is_expected or is_called or own.dev in self.expected)

    def _sender(self, own: Address, dev: str) -> list[IpAddress]:
        """Return the gateway or a neighbour, if it isn't an address of this host."""
        hops = self.default.hops if self.default else ()
        gateways = [hop.gateway for hop in hops if hop.dev == dev and hop.gateway]
        near = [
            IPv4Address(int(own.local) + step)
            for step in (1, -1, 2, -2)
            if int(own.network[0]) < int(own.local) + step < int(own.network[-1])
        ]
        mine = {each.local for each in self.addresses}
        likely = [each for each in (*gateways, *near, own.local + 1) if each not in mine]
        return likely[:1]

    def _clients(self) -> list[IpAddress]:
        """Return expected addresses at which the set of rules for sources may change."""
        sources, own = (
            [rule.source for rule in self.rules if rule.source],
            {each.local for each in self.addresses},
        )
        edges = {int(end) + more for each in sources for end, more in ((each[0], 0), (each[-1], 1))}
        edges |= {int(each) + 1 for each in own}
        cidrs = [each.cidr for each in self._overlap.expected_cidrs] if sources else []
        edges |= {int(cidr[0]) for cidr in cidrs}
        asked = [IPv4Address(edge) for edge in edges if edge < 1 << 32]
        return [each for each in asked if each not in own and any(each in cidr for cidr in cidrs)]

    def _sort(self, answer: Lookup, decision: Route | int) -> Sort:
        route = answer.route
        if route is None:
            return self._sort_without_route(answer, decision)
        devs = live(route)
        if route.type in (RouteType.LOCAL, RouteType.BROADCAST):
            if _is_kernels_local_route(decision):
                if via := self._default_via(answer.address):
                    return Sort("GATEWAY", live(via), via)
                return Sort(route.type.name, devs, route)
            # Like any other route, a shorter local prefix captures packets meant for the cluster.
            devs = ("lo",) if route.type is RouteType.LOCAL else devs
        foreign = [dev for dev in devs if not self._is_expected(dev)]
        if devs and not foreign:
            return self._sort_expected(route, devs)
        if devs and self._patterns is None:
            of_pods = [dev for dev in foreign if not _is_like(dev, self._overlap.allowed_devs)]
            if self._are_exempt(of_pods, answer.address, route):
                if route.type in _UNCONNECTED:
                    return _without_connection(route)
                kind = "CONTAINER" if len(of_pods) == len(foreign) else "ALLOWED"
                return Sort(kind, tuple(foreign), route)
        return Sort("OVERLAP", devs, route)

    def _sort_expected(self, route: Route, devs: tuple[str, ...]) -> Sort:
        if route.type in _UNCONNECTED:
            return _without_connection(route)
        if any(self._masters.get(dev) in ("bridge", "bond", "team", "openvswitch") for dev in devs):
            return Sort("PORT", devs, route)
        for hop in route.hops:
            if not hop.is_dead and self._has_on_another_link(hop.gateway, hop.dev):
                return Sort("GATEWAY", devs, route)
        return Sort(FINE, devs, route)

    def _default_via(self, address: IpAddress) -> Route | None:
        """Return an uplink's default route via an address that this host has on another link."""
        for route in self._routes:
            is_default = (route.destination, route.table) == (DEFAULT_DESTINATION, Table.MAIN)
            for hop in route.hops if is_default and route.tos == 0 else ():
                is_live = hop.dev in self.expected and not hop.is_dead
                if (
                    is_live
                    and hop.gateway == address
                    and self._has_on_another_link(address, hop.dev)
                ):
                    return route
        return None

    def _has_on_another_link(self, gateway: IpAddress | None, dev: str | None) -> bool:
        return any(own.local == gateway and own.dev != dev for own in self.addresses)

    def _are_exempt(self, of_pods: Sequence[str], address: IpAddress, route: Route) -> bool:
        if of_pods and self._is_beyond_pods(address, route):
            return False
        return all(map(self._is_container, of_pods))

    def _is_beyond_pods(self, address: IpAddress, route: Route) -> bool:
        """Return whether a route through a pod's interface can't be a network of pods."""
        network = route.destination
        mine = [each for each in self.addresses if each.dev in self.expected]
        defaults = [
            r
            for r in self._routes
            if (r.destination, r.table, r.tos) == (DEFAULT_DESTINATION, Table.MAIN, 0)
        ]
        gateways = [hop.gateway for r in defaults for hop in r.hops if hop.dev in self.expected]
        subnets = [each.network for each in mine if each.prefix_length >= 12]
        return (
            (
                address in IPv4Network("169.254.0.0/16")
                and not (network.prefixlen == 32 and address in IPv4Network("169.254.172.0/22"))
            )
            or address == IPv4Address("168.63.129.16")
            or network.prefixlen < 8
            or any(
                each in network
                for each in (*(own.local for own in mine), *gateways)
                if each is not None
            )
            or (network.prefixlen < 32 and any(is_inside(network, subnet) for subnet in subnets))
        )

    def _is_expected(self, dev: str) -> bool:
        return dev in self.expected if self._patterns is None else _is_like(dev, self._patterns)

    def _sort_without_route(self, answer: Lookup, decision: Route | int) -> Sort:
        assert answer.errno is not None
        if answer.errno == errnos.ENETUNREACH:
            return Sort("NO-ROUTE")
        route = decision if isinstance(decision, Route) else None
        word = _DISCARDED[answer.errno]
        if self._patterns is None and route is not None and self._is_of_cni(route, self._cidr):
            return Sort("CNI-DISCARD", (), route, word)
        return Sort("BLACKHOLE", (), route, word)

    def _is_of_cni(self, discard: Route, cidr: IpNetwork) -> bool:
        block = discard.destination
        if discard.type is not RouteType.BLACKHOLE or block.prefixlen <= cidr.prefixlen:
            return False
        has_peers = discard.protocol in (12, 80) and any(
            route.protocol == discard.protocol
            and route.type is RouteType.UNICAST
            and is_inside(route.destination, cidr)
            for route in self._routes
        )
        has_address = any(
            each.local in block and self._is_of_pods(each.dev) for each in self.addresses
        )
        return (
            has_peers
            or has_address
            or any(
                route.table == discard.table
                and is_inside(route.destination, block)
                and any(self._is_of_pods(dev) for dev in live(route))
                for route in self._routes
            )
        )

    def _is_of_pods(self, dev: str) -> bool:
        return self._is_container(dev) and dev not in (
            "kube-ipvs0",
            "kube-dummy-if",
            "nodelocaldns",
            "localdns",
        )

    def _is_container(self, dev: str) -> bool:
        return dev not in self.expected and _is_like(dev, self._overlap.container_devs)

    # --- rules and tables -------------------------------------------------------------------------

    def _walked_to(self, address: int, source: int, protocol: int) -> Route | int:
        """Return the cached result of ``walk``, which is the same for all addresses between two
        prefix boundaries.
        """
        key = (bisect_right(self._ends, address), source, protocol)
        if key not in self._walked:
            self._walked[key] = self.walk(address, source, protocol)
        return self._walked[key]

    def walk(
        self, address: int, source: int = 0, protocol: int = 17, *, iif: str = "lo"
    ) -> Route | int:
        """Return the route entry that matches an address, or the errno if a rule discards it."""
        position = 0
        while position < len(self.rules):
            rule = self.rules[position]
            position += 1
            if _selects(rule, address, source, protocol, iif) == rule.is_inverted:
                continue
            if rule.action is RuleAction.GOTO:
                targets = [
                    number
                    for number, other in enumerate(self.rules)
                    if other.preference == rule.goto
                ]
                position = targets[0] if targets else position
            elif rule.action is RuleAction.TO_TABLE:
                found = self._look_into(rule.table, address)
                if (
                    found is not None
                    and not self._is_passed(rule, found)
                    and not _is_suppressed(rule, found)
                ):
                    return found
            elif rule.action is not RuleAction.NOP:
                return {
                    RuleAction.BLACKHOLE: errnos.EINVAL,
                    RuleAction.UNREACHABLE: errnos.ENETUNREACH,
                    RuleAction.PROHIBIT: errnos.EACCES,
                }[rule.action]
        return errnos.ENETUNREACH

    def _is_passed(self, rule: Rule, found: Route) -> bool:
        is_main = rule.table != Table.DEFAULT
        return (
            self._passes_discards and self._has_default_table and is_main and found.type.is_discard
        )

    def _look_into(self, table: int, address: int) -> Route | None:
        merged = (Table.LOCAL, Table.MAIN)
        tables = merged if table in merged and not self._had_rules else (table,)
        covering = [
            (-route.destination.prefixlen, -route.table, route.metric, number, route)
            for number, (first, last, route) in enumerate(self._spans)
            if first <= address <= last and route.table in tables
        ]
        for *_, route in sorted(covering, key=lambda row: row[:-1]):
            if route.type is RouteType.THROW:
                return None
            if route.type in (
                RouteType.BLACKHOLE,
                RouteType.UNREACHABLE,
                RouteType.PROHIBIT,
            ) or live(route):
                return route
        return None


def _is_kernels_local_route(decision: Route | int) -> bool:
    """Return whether the kernel itself adds such a route, which it does for single addresses."""
    if not isinstance(decision, Route):
        return False
    return decision.table == Table.LOCAL and decision.destination.prefixlen == 32


def _without_connection(route: Route) -> Sort:
    """Return that a route takes datagrams, but no connections."""
    return Sort("BLACKHOLE", (), route, route.type.name.lower())


def live(route: Route) -> tuple[str, ...]:
    return tuple(sorted({hop.dev for hop in route.hops if hop.dev is not None and not hop.is_dead}))


@cache
def _is_like(dev: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(dev, pattern) for pattern in patterns)


def _is_suppressed(rule: Rule, found: Route) -> bool:
    limit = rule.suppress_prefix_length
    is_discard = found.type in (RouteType.BLACKHOLE, RouteType.UNREACHABLE, RouteType.PROHIBIT)
    return limit is not None and not is_discard and found.destination.prefixlen <= limit


def _selects(rule: Rule, address: int, source: int, protocol: int, iif: str) -> bool:
    """Return whether a rule matches a packet without a mark, TOS or ports, from an unbound socket
    owned by uid 0.
    """
    if rule.destination is not None and not int(rule.destination[0]) <= address <= int(
        rule.destination[-1]
    ):
        return False
    if rule.source is not None and not int(rule.source[0]) <= source <= int(rule.source[-1]):
        return False
    if rule.mark is not None and rule.mark & rule.mark_mask != 0:
        return False
    if rule.uid_range is not None and not rule.uid_range[0] <= 0 <= rule.uid_range[1]:
        return False
    if rule.iif not in (None, iif) or rule.oif is not None:
        return False
    if rule.tun_id or rule.has_ports or rule.has_unknown:
        return False
    return rule.tos == 0 and rule.ip_protocol in (0, protocol)


def _is_same(answer: Lookup, decision: Route | int) -> bool:
    """Return whether the walk and the kernel's answer agree."""
    if answer.route is not None:
        return isinstance(decision, Route) and _identity(decision) == _identity(answer.route)
    if isinstance(decision, int):
        return decision == answer.errno
    return decision.type.name.lower() == _DISCARDED.get(answer.errno or 0)


def _identity(route: Route) -> tuple[object, ...]:
    # While tables local and main are merged, the kernel reports both as main.
    return (
        route.destination,
        route.metric,
        route.type,
        route.hops,
        Table.MAIN if route.table == 255 else route.table,
    )


# --- the whole report -----------------------------------------------------------------------------


def judged(network: IPv4Network) -> list[IpAddress]:
    """Return the addresses of a CIDR that are checked: all except those in 0/8, 127/8, 224/4 and
    240/4.
    """
    return [
        IPv4Address(n)
        for n in range(int(network[0]), int(network[-1]) + 1)
        if n >> 24 not in (0, 127) and n >> 24 < 224
    ]


def sort_all(
    kernel: RouteBackend, judge: Judge, addresses: Iterable[IpAddress], cidr: IpNetwork
) -> dict[IpAddress, Sort]:
    """Classify each address of an expected CIDR, for datagrams and for connections."""
    asked = list(addresses)
    judge = judge.of(cidr)

    def answers(*, is_tcp: bool = False) -> list[Lookup]:
        return [
            each for answer in kernel.lookup(asked, is_tcp=is_tcp) for each in judge.in_turn(answer)
        ]

    firsts = answers()
    rounds = [(False, firsts)]
    # In the in-memory kernel, a lookup depends on the protocol only if a rule selects by protocol.
    if isinstance(kernel, NamespaceKernel) or any(rule.ip_protocol for rule in judge.rules):
        rounds.append((True, answers(is_tcp=True)))
    connected: dict[IpAddress, list[Sort]] = defaultdict(list)
    refused: set[IpAddress] = set()
    for is_tcp, found in rounds:
        connecting = [*_connecting(kernel, judge, found, is_tcp=is_tcp)]
        connecting += _replying(
            kernel, judge, found, {(s, a.address) for s, a in connecting}, is_tcp=is_tcp
        )
        for source, answer in connecting:
            if is_tcp or source is not None:
                connected[answer.address].append(judge.sort(answer, source, is_tcp=is_tcp))
            if (
                is_tcp == rounds[-1][0]
                and answer.route is not None
                and answer.route.type is RouteType.MULTICAST
            ):
                refused.add(answer.address)
    sorts: dict[IpAddress, list[Sort]] = defaultdict(list)
    for answer in firsts:
        sorts[answer.address].append(judge.sort(answer))
    for address, some in sorts.items():
        some.sort(key=lambda sort: not sort.is_failure)
        some += connected[address]
    return {
        a: _with_failures(some if a in refused else list(map(_sent_to_many, some)))
        for a, some in sorts.items()
    }


def _connecting(
    kernel: RouteBackend, judge: Judge, answers: Sequence[Lookup], *, is_tcp: bool
) -> Iterator[tuple[IpAddress | None, Lookup]]:
    """Yield the connections' lookups, each with the source that the first lookup selected."""
    has_source = any(rule.source for rule in judge.rules)
    from_source: dict[IpAddress, list[IpAddress]] = defaultdict(list)
    for answer in answers:
        sources = {
            source for source in judge.sources(answer) if has_source or not judge.is_local(source)
        }
        for source in sources:
            from_source[source].append(answer.address)
        if not sources:
            yield None, answer
    for source, asked in from_source.items():
        for answer in kernel.lookup(asked, source=source, is_tcp=is_tcp):
            for each in judge.in_turn(answer):
                yield source, each


def _replying(
    kernel: RouteBackend,
    judge: Judge,
    answers: Sequence[Lookup],
    known: set[tuple[IpAddress | None, IpAddress]],
    *,
    is_tcp: bool,
) -> Iterator[tuple[IpAddress, Lookup]]:
    """Yield the answers for replies from each address at which a server may be called."""
    is_local_first = judge.rules[:1] == (Rule(0, table=Table.LOCAL, protocol=2),)
    for own in judge.called:
        ends = (
            a.route is not None and a.route.type is RouteType.LOCAL and is_local_first
            for a in answers
        )
        asked = [a.address for a, is_over in zip(answers, ends, strict=True) if not is_over]
        asked = [address for address in dict.fromkeys(asked) if (own, address) not in known]
        for answer in kernel.lookup(asked, source=own, is_tcp=is_tcp):
            for each in judge.in_turn(answer):
                yield own, each


def _sent_to_many(sort: Sort) -> Sort:
    """Treat a multicast route as fine, because it is fine for datagrams."""
    return (
        attrs.evolve(sort, kind=FINE, discarded_by=None)
        if sort.discarded_by == "multicast"
        else sort
    )


def _with_failures(sorts: list[Sort]) -> Sort:
    first, *others = sorts
    told = {(first.kind, first.devs, None): first}
    for other in sorted(others, key=lambda sort: int(sort.source or 0)):
        if other.kind == "BROADCAST" and first.kind not in ("LOCAL", "BROADCAST"):
            other = attrs.evolve(other, kind="BLACKHOLE", devs=(), discarded_by="broadcast")
        if other.kind == "CNI-DISCARD" and first.is_failure:
            other = attrs.evolve(other, source=None)  # a note, in addition to the finding
        elif not other.is_failure and other.kind != "LOCAL":
            continue
        if (other.kind, other.devs, None) not in told:
            told.setdefault((other.kind, other.devs, other.source), other)  # type: ignore[arg-type]
    return first if len(told) == 1 else attrs.evolve(first, more=tuple(told.values())[1:])


def by_kind(sorts: dict[IpAddress, Sort]) -> dict[Group, list[tuple[IpAddress, Sort]]]:
    """Group the addresses by kind, interfaces and source, in ascending order."""
    found: dict[Group, list[tuple[IpAddress, Sort]]] = defaultdict(list)
    for address, first in sorted(sorts.items()):
        for sort in (first, *first.more):
            found[sort.kind, sort.devs, sort.source].append((address, sort))
    return found


Group = tuple[str, tuple[str, ...], "IpAddress | None"]


def fewest_prefixes(addresses: Iterable[IpAddress]) -> tuple[IPv4Network, ...]:
    """Return the fewest prefixes that cover exactly these addresses, in ascending order."""
    return tuple(collapse_addresses(map(IPv4Network, addresses)))


# --- what a report may contain --------------------------------------------------------------------


def disagreements(
    report: OverlapReport, judge: Judge, sorts: dict[IPv4Network, dict[IpAddress, Sort]]
) -> list[str]:
    """Return the differences between a report and brute force.

    Args:
        report: the report of ``check_overlap``.
        judge: brute-force judge for the same host.
        sorts: for each expected CIDR, the classification of each address.
    """
    wrong = [*_wrong_verdict(report, sorts)]
    for cidr, there in sorts.items():
        wrong += disagreements_at(report, cidr, there)
        wrong += _wrong_foresight(report, judge, cidr, there)
        groups = by_kind(there)
        for finding in report.findings:
            group = groups.get((str(finding.kind), finding.devs, finding.source))
            if finding.cidr == cidr and group:
                wrong += _wrong_finding(finding, judge, group)
    return wrong


def _wrong_verdict(
    report: OverlapReport, sorts: dict[IPv4Network, dict[IpAddress, Sort]]
) -> Iterator[str]:
    fails = any(sort.is_failure for there in sorts.values() for sort in there.values())
    if report.verdict != ("overlap" if fails else "ok"):
        yield f"the verdict is {report.verdict}, and it fails: {fails} ({report.reason})"


def _wrong_finding(
    finding: Finding, judge: Judge, found: list[tuple[IpAddress, Sort]]
) -> Iterator[str]:
    addresses, sorts = [address for address, _ in found], [sort for _, sort in found]
    what = f"{finding.kind} of {finding.cidr} via {finding.devs}"
    if finding.ranges != (ranges := fewest_prefixes(addresses)):
        yield f"{what} has the ranges {_brief(finding.ranges)}, not {_brief(ranges)}"
    if finding.probe != addresses[0]:
        yield f"{what} has the probe {finding.probe}, not {addresses[0]}"
        return
    first = sorts[0]
    if finding.expected_devs != judge.expected:
        yield f"{what} expects {finding.expected_devs}, not {judge.expected}"
    if finding.route != first.route:
        yield f"{what} names the route {finding.route}, not {first.route}"
    discards = {sort.discarded_by for sort in sorts} - {None}
    if discards != (named := {kind.name.lower() for kind in finding.discarded_by}):
        yield f"{what} is discarded by {named}, not {discards}"


def _wrong_foresight(
    report: OverlapReport, judge: Judge, cidr: IPv4Network, there: dict[IpAddress, Sort]
) -> Iterator[str]:
    """Check that each note about a ``foreseen`` prefix lists the fine addresses for which main has
    no longer prefix.
    """
    notes = [note for note in report.notes if note.kind == "FORESEEN" and note.cidr == cidr]
    for prefix in judge.foreseen:
        truth = {
            address
            for address, sort in there.items()
            if address in prefix and sort.kind == FINE and sort.route is not None
            if sort.route.table == Table.MAIN
            and sort.route.destination.prefixlen <= prefix.prefixlen
        }
        ranges = [
            part
            for note in notes
            if f" a route to {prefix}," in note.message
            for part in note.ranges
        ]
        if tuple(ranges) != fewest_prefixes(truth):
            yield (
                f"FORESEEN {prefix} of {cidr}: {_brief(ranges)}, "
                f"not {_brief(fewest_prefixes(truth))}"
            )


def _brief(items: Sequence[object]) -> str:
    return " ".join(map(str, items[:12])) + (
        f" and {len(items) - 12} more" if len(items) > 12 else ""
    )


def disagreements_at(
    report: OverlapReport, cidr: IpNetwork, sorts: dict[IpAddress, Sort]
) -> list[str]:
    """Return the differences between a report and brute force for some of the addresses in one
    CIDR.
    """
    told: dict[IpAddress, list[Group]] = defaultdict(list)
    asked = sorted(sorts)
    items: list[tuple[Group, Iterable[IpNetwork]]] = [
        ((str(f.kind), f.devs, f.source), f.ranges) for f in report.findings if f.cidr == cidr
    ]
    items += [
        ((str(n.kind), (), None), n.ranges)
        for n in report.notes
        if n.cidr == cidr and n.kind != "FORESEEN"
    ]
    for group, ranges in items:
        for part in ranges:
            for address in asked[bisect_left(asked, part[0]) : bisect_right(asked, part[-1])]:
                told[address].append(group)
    told_parts = [part for _, ranges in items for part in ranges]
    wrong = [
        f"{part} isn't judged"
        for part in told_parts
        if any(part.overlaps(block) for block in _UNJUDGED)
    ]
    for address, first in sorts.items():
        truth = {_told_as(sort) for sort in (first, *first.more)} - {(FINE, (), None)}
        if Counter(told[address]) != Counter(truth):
            wrong.append(f"{address} of {cidr} is {told[address]}, not {truth}")
    return wrong


def _told_as(sort: Sort) -> Group:
    """Return the group to which a report has to assign an address.

    A note names neither interfaces nor a source.
    """
    return (sort.kind, sort.devs, sort.source) if sort.is_failure else (sort.kind, (), None)
