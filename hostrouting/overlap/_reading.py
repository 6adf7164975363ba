"""A host at one moment, as far as a check judges it: read in one state of its tables, and of large ones no more.

The look-ups are those that a socket of this host makes, and all of them are to go right. A datagram of no connection
goes by the first look-up. Whatever connects is looked up again, from the source that the first answer chose
(ip_route_connect in include/net/route.h), which matters where a policy rule asks for a source, and where an entry names
one that isn't this host's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from ipaddress import IPv4Address
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Protocol

import attrs

from hostrouting.config.routing import RouteOverlap
from hostrouting.kernel.nexthops import Way, contested_defaults, default_route, in_turn, spread, way_of
from hostrouting.kernel.port import RouteBackend, at_one_moment
from hostrouting.kernel.rules import KERNEL_RULES
from hostrouting.model.errors import RouteError
from hostrouting.model.links import Address, Hardware, Link
from hostrouting.model.prefixes import Prefix, PrefixSet, ends, numbers
from hostrouting.model.routes import Lookup, Route, RouteType
from hostrouting.model.rules import Rule
from hostrouting.overlap._coverage import Coverage, Tile
from phases import CancelScope

if TYPE_CHECKING:
    from hostrouting.kernel.fib import Fib


class ContestedDefaultError(RouteError):
    """Default routes of one metric by several interfaces, so that nobody knows which interface is expected."""


# What a reading is made of: default route, addresses, rules and entries.
_Tables = tuple["Route", "tuple[Address, ...]", "tuple[Rule, ...]", "tuple[Route, ...]"]


class Answer(NamedTuple):
    """What a look-up said.

    Args:
        lookup: the answer.
        source: which it was asked from; None: the first look-up, which chooses one.
        is_tcp: whether it was TCP's, else UDP's.
    """

    lookup: Lookup
    source: IPv4Address | None = None
    is_tcp: bool = False


# Nobody compares or prints one, and to make what does that takes as long as to ask the kernel.
@attrs.frozen(eq=False, repr=False, slots=False)
class Reading:
    """Everything that a judgement needs to know of the host.

    Args:
        default: the default route that counts.
        links: all interfaces.
        addresses: of this host.
        rules: in the order in which the kernel asks them.
        routes: the entries of every table.
        tiles: of the expected CIDRs, in the order of their addresses.
        answers: the kernel's to each of their questions; the first is what goes unconnected by UDP.
    """

    default: Route
    links: Sequence[Link]
    addresses: Sequence[Address]
    rules: Sequence[Rule]
    routes: Sequence[Route]
    tiles: Sequence[Tile]
    answers: Mapping[int, tuple[Answer, ...]]

    @property
    def asks_local_first(self) -> bool:
        """Tell whether table local is asked first, as the kernel has it."""
        return _asks_local_first(self.rules)

    @cached_property
    def fib(self) -> Fib:
        """What its tables and rules say to a packet with nothing that isn't known here."""
        from hostrouting.kernel.fib import Fib

        return Fib(self.rules, self.routes, self.addresses, links=self.links, lacks_unknown=True)


def _asks_local_first(rules: Sequence[Rule]) -> bool:
    return tuple(rules[:1]) == KERNEL_RULES[:1]


def read_host(overlap: RouteOverlap, backend: RouteBackend, scope: CancelScope) -> Reading | None:
    """Read tables and the kernel's answers that belong to them.

    Args:
        overlap: the expected CIDRs.
        backend: the kernel.
        scope: ends it between two looks.

    Returns:
        The reading; None without a default route.

    Raises:
        ContestedDefaultError: the default route doesn't tell which interface an expected CIDR should leave by.
        RouteError: the kernel can't be asked, what matters changed each time that it was read, or an encapsulation
            decides where packets leave.
    """

    def read() -> Reading | None:
        scope.check()
        return read_once(overlap, backend)

    reading, why_torn = at_one_moment(backend, overlap.judged, read)
    if why_torn is not None:
        raise why_torn
    return reading


def read_once(overlap: RouteOverlap, backend: RouteBackend) -> Reading | None:
    """Read tables and answers one after the other; None without a default route."""
    tables = _read_tables(overlap, backend)
    return None if tables is None else _ask_about(overlap, tables, backend)


def _read_tables(overlap: RouteOverlap, backend: RouteBackend) -> _Tables | None:
    defaults = backend.default_routes()
    default = default_route(defaults)
    if default is None:
        return None
    if any(each.devs is None for each in overlap.expected_cidrs) and (tied := contested_defaults(defaults)):
        named = "; ".join(map(str, tied))
        raise ContestedDefaultError(
            f"table main has {len(tied)} default routes of metric {default.metric} by several interfaces, and which the"
            f" kernel takes may change with each packet: {named}",
            hint="give one of them a lower metric, or name the interfaces of each expected CIDR (devs)",
        )
    addresses, rules = backend.addresses(), backend.rules()
    if any(rule.source is not None or rule.ip_protocol for rule in rules):
        # Where connections would go once all is mended only whole tables tell.
        return default, addresses, rules, tuple(dict.fromkeys((*defaults, *backend.routes())))
    devs = default.devs
    # Connected routes are what shadows, as a rule; so one pass over a large table mostly does.
    connected = [numbers(address.network) for address in addresses if address.dev not in devs]
    single = [(end, 32) for each in addresses for end in (int(each.local), ends(numbers(each.network))[1])]
    foretold = _coverage(overlap, default, KERNEL_RULES, addresses, (*connected, *single)).suspects(())
    own = {address.local for address in addresses}
    routes = backend.routes_except(devs, inside=foretold, sources=own)
    told = _coverage(overlap, default, rules, addresses).suspects(routes)
    if not all(map(PrefixSet(foretold).covers, told)):
        routes = backend.routes_except(devs, inside=told, sources=own)
    others = (route for route in routes if route.destination.prefixlen or route not in defaults)
    return default, addresses, rules, (*defaults, *others)


def _coverage(
    overlap: RouteOverlap,
    default: Route,
    rules: Sequence[Rule],
    addresses: Iterable[Address],
    besides: Iterable[Prefix] = (),
) -> Coverage:
    cidrs = [numbers(expected.cidr) for expected in overlap.expected_cidrs]
    # Also where even the default route may be wrong is to be looked into.
    elsewhere = (each.cidr for each in overlap.expected_cidrs if not each.is_default(default.devs))
    besides = (*map(numbers, (*overlap.foreseen, *elsewhere)), *besides)
    return Coverage(cidrs, default.devs, rules, besides, [address.local for address in addresses])


def _ask_about(overlap: RouteOverlap, tables: _Tables, backend: RouteBackend) -> Reading:
    default, addresses, rules, routes = tables
    tiles = _coverage(overlap, default, rules, addresses).tiles(routes, borders=own_subnets(addresses, default.devs))
    answers = ask(tiles, rules, routes, backend)
    for lookup in (answer.lookup for found in answers.values() for answer in found):
        if lookup.route is not None and lookup.route.encap:
            reason = f"what is sent to {lookup.address} is encapsulated as {lookup.route.encap} (by {lookup.route})"
            raise RouteError(f"{reason}, and where that leaves is decided by other tables")
    return Reading(default, backend.links(), addresses, rules, routes, tiles, answers)


class Asked(Protocol):
    """A kernel to ask: a ``RouteBackend``, or a model of one."""

    def lookup(
        self, addresses: Sequence[IPv4Address], *, source: IPv4Address | None = None, is_tcp: bool = False
    ) -> Sequence[Lookup]:
        """As ``RouteBackend.lookup``."""

    def sources(
        self, entries: Mapping[Route, Sequence[IPv4Address]], *, is_tcp: bool = False
    ) -> Mapping[Route, tuple[IPv4Address, ...]]:
        """As ``RouteBackend.sources``."""


def ask(
    tiles: Sequence[Tile], rules: Sequence[Rule], routes: Iterable[Route], asked: Asked
) -> dict[int, tuple[Answer, ...]]:
    """Make every look-up that a socket may make, and none whose answer is known.

    Args:
        tiles: the addresses to send to.
        rules: of the host; without any for a source a second look-up can only differ where the entry names a source
            that isn't this host's, and without any for a protocol there is none of TCP.
        routes: the entries of every table, in the kernel's order.
        asked: the kernel.

    Returns:
        For each question the answers: those of UDP first, of a protocol first the one without a source.

    Raises:
        RouteError: the kernel can't be asked.
    """
    has_source = any(rule.source is not None for rule in rules)
    has_protocol = any(rule.ip_protocol and not rule.has_ports for rule in rules)
    # A rule for a source may take what is this host's own, too, if it is asked first.
    is_own_safe = _asks_local_first(rules)
    look_up = in_turn(asked.lookup, routes)
    found: dict[int, list[Answer]] = {tile.question: [] for tile in tiles}
    addresses = [IPv4Address(question) for question in found]
    for is_tcp in (False, True) if has_protocol else (False,):
        by_way: dict[Way, tuple[Route, list[int]]] = {}
        for lookup in look_up(addresses, is_tcp=is_tcp):
            number, route = int(lookup.address), lookup.route
            found[number].append(Answer(lookup, None, is_tcp))
            if route is None or (route.type is RouteType.LOCAL and is_own_safe):
                continue
            if has_source or route.source is not None:
                by_way.setdefault(way_of(route), (route, []))[1].append(number)
        for source, numbers_ in sorted(_by_source(by_way.values(), tiles, asked, is_tcp=is_tcp).items()):
            from_it = [IPv4Address(number) for number in numbers_]
            if not has_source and asked.lookup(from_it[:1], source=source, is_tcp=is_tcp)[0].route is not None:
                continue
            for lookup in look_up(from_it, source=source, is_tcp=is_tcp):
                found[int(lookup.address)].append(Answer(lookup, source, is_tcp))
    return {question: tuple(answers) for question, answers in found.items()}


def _by_source(
    ways: Iterable[tuple[Route, list[int]]], tiles: Sequence[Tile], asked: Asked, *, is_tcp: bool
) -> dict[IPv4Address, list[int]]:
    """Return for each source the questions to ask from it, by entries with the questions that go their way."""
    chosen: Mapping[Route, tuple[IPv4Address, ...]] = {}
    if unnamed := [way for way in ways if way[0].source is None]:
        ranges = {tile.question: range(tile.first, tile.last + 1) for tile in tiles if tile.first == tile.question}
        inside = {route: chain.from_iterable(map(ranges.__getitem__, questions)) for route, questions in unnamed}
        flows = {route: spread(route, map(IPv4Address, addresses)) for route, addresses in inside.items()}
        chosen = asked.sources(flows, is_tcp=is_tcp)
    found: dict[IPv4Address, list[int]] = {}
    for route, questions in ways:
        for source in chosen[route] if route.source is None else (route.source,):
            found.setdefault(source, []).extend(questions)
    return found


def pending_devs(links: Sequence[Link], addresses: Sequence[Address], default_devs: Sequence[str]) -> tuple[str, ...]:
    """The InfiniBand interfaces without an IPv4 address: their connected routes may still come."""
    with_address = {address.dev for address in addresses} | set(default_devs)
    return tuple(
        sorted(link.name for link in links if link.hardware == Hardware.INFINIBAND and link.name not in with_address)
    )


def own_subnets(addresses: Iterable[Address], devs: Sequence[str]) -> dict[Prefix, str]:
    """The subnets of some interfaces, each with the interface.

    Args:
        addresses: of the host.
        devs: the default route's interfaces.

    Returns:
        None that is a single address: nobody else is in it.
    """
    own = (address for address in addresses if address.dev in devs and address.prefix_length < 32)
    return {numbers(address.network): address.dev for address in own}
