"""A host at one moment, as far as a check judges it: read in one state of its tables, and of large ones no more.

The look-ups are those that a socket of this host makes, and all of them are to go right. A datagram of no connection
goes by the first look-up. Whatever connects is looked up again, from the source that the first answer chose
(ip_route_connect in include/net/route.h), which matters where a policy rule asks for a source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, NamedTuple

import attrs

from hostrouting.config.routing import RouteOverlap
from hostrouting.kernel.nexthops import Sources, default_route
from hostrouting.kernel.port import RouteBackend, at_one_moment
from hostrouting.kernel.rules import KERNEL_RULES
from hostrouting.model.links import Address, Hardware, Link
from hostrouting.model.prefixes import Prefix, PrefixSet, ends, numbers
from hostrouting.model.routes import Lookup, Route
from hostrouting.model.rules import Rule
from hostrouting.overlap._coverage import Coverage, Tile
from phases import CancelScope

if TYPE_CHECKING:
    from hostrouting.kernel.fib import Fib


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

    @cached_property
    def fib(self) -> Fib:
        """What its tables and rules say to a packet with nothing that isn't known here."""
        from hostrouting.kernel.fib import Fib

        return Fib(self.rules, self.routes, self.addresses, links=self.links, lacks_unknown=True)


def read_host(overlap: RouteOverlap, backend: RouteBackend, scope: CancelScope) -> Reading | None:
    """Read tables and the kernel's answers that belong to them.

    Args:
        overlap: the expected CIDRs.
        backend: the kernel.
        scope: ends it between two looks.

    Returns:
        The reading; None without a default route.

    Raises:
        RouteError: the kernel can't be asked, or what matters changed each time that it was read.
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
    addresses, rules = backend.addresses(), backend.rules()
    if any(rule.source is not None or rule.ip_protocol for rule in rules):
        # Where connections would go once all is mended only whole tables tell.
        return default, addresses, rules, tuple(dict.fromkeys((*defaults, *backend.routes())))
    devs = default.devs
    # Connected routes are what shadows, as a rule; so one pass over a large table mostly does.
    connected = [numbers(address.network) for address in addresses if address.dev not in devs]
    single = [(end, 32) for each in addresses for end in (int(each.local), ends(numbers(each.network))[1])]
    foretold = _coverage(overlap, default, KERNEL_RULES, (*connected, *single)).suspects(())
    routes = backend.routes_except(devs, inside=foretold)
    told = _coverage(overlap, default, rules).suspects(routes)
    if not all(map(PrefixSet(foretold).covers, told)):
        routes = backend.routes_except(devs, inside=told)
    others = (route for route in routes if route.destination.prefixlen or route not in defaults)
    return default, addresses, rules, (*defaults, *others)


def _coverage(overlap: RouteOverlap, default: Route, rules: Sequence[Rule], besides: Iterable[Prefix] = ()) -> Coverage:
    cidrs = [numbers(expected.cidr) for expected in overlap.expected_cidrs]
    # Also where even the default route may be wrong is to be looked into.
    elsewhere = (each.cidr for each in overlap.expected_cidrs if not each.is_default(default.devs))
    return Coverage(cidrs, default.devs, rules, (*map(numbers, (*overlap.foreseen, *elsewhere)), *besides))


def _ask_about(overlap: RouteOverlap, tables: _Tables, backend: RouteBackend) -> Reading:
    default, addresses, rules, routes = tables
    tiles = _coverage(overlap, default, rules).tiles(routes, borders=own_subnets(addresses, default.devs))
    questions = dict.fromkeys(tile.question for tile in tiles)
    answers = ask(questions, rules, addresses, backend.lookup)
    return Reading(default, backend.links(), addresses, rules, routes, tiles, answers)


def ask(
    questions: Iterable[int],
    rules: Sequence[Rule],
    own: Sequence[Address],
    look_up: Callable[..., Sequence[Lookup]],
) -> dict[int, tuple[Answer, ...]]:
    """Make every look-up that a socket may make, and none that the rules have no use for.

    Args:
        questions: the addresses to send to, as numbers.
        rules: of the host; without any for a source there is no second look-up, without any for a protocol none of TCP.
        own: the host's addresses.
        look_up: ``RouteBackend.lookup``, or a model of it.

    Returns:
        For each question the answers: those of UDP first, of a protocol first the one without a source.

    Raises:
        RouteError: the kernel can't be asked.
    """
    has_source = any(rule.source is not None for rule in rules)
    has_protocol = any(rule.ip_protocol and not rule.has_ports for rule in rules)
    sources = Sources(own)
    found: dict[int, list[Answer]] = {question: [] for question in questions}
    addresses = [IPv4Address(question) for question in found]
    for is_tcp in (False, True) if has_protocol else (False,):
        by_source: dict[IPv4Address, list[IPv4Address]] = {}
        for lookup in look_up(addresses, is_tcp=is_tcp):
            found[int(lookup.address)].append(Answer(lookup, None, is_tcp))
            if has_source and lookup.route is not None:
                for source in sources.of(lookup.route):
                    by_source.setdefault(source, []).append(lookup.address)
        for source, asked in by_source.items():
            for lookup in look_up(asked, source=source, is_tcp=is_tcp):
                found[int(lookup.address)].append(Answer(lookup, source, is_tcp))
    return {question: tuple(answers) for question, answers in found.items()}


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
