"""FIB entries in bulk, and the selection of the entries that a reader needs.

A table may hold a million entries, most of which differ only in their destinations. So a backend
returns groups: a template entry, and the prefixes of the entries that otherwise equal the template.
Iterating over ``Entries`` makes the routes. A reader that needs only some entries passes a
``Selection``. A backend then skips the other entries early. The kernel filters by table and
protocol, and ``RouteReader`` skips hundreds of entries at a time. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import attrs

from hostrouting.model.family import IpAddress, IpNetwork
from hostrouting.model.integer_prefixes import Prefix, PrefixSet, numbers
from hostrouting.model.routes import Protocol, Route, Route6, RouteType, Table
from hostrouting.model.values import frozen

# A template entry, and the destinations of the entries that equal it apart from the destination.
# The template's own destination is a placeholder.
Group = tuple[Route, Sequence[Prefix]]

# Not a MappingProxyType, which can't be pickled.
_NO_MTUS: Mapping[str, int] = {}


class Entries:
    """Entries in the kernel's order. Iterating makes a route for each entry.

    Args:
        groups: templates, each with the prefixes of consecutive entries.
    """

    def __init__(self, groups: Sequence[Group] = ()) -> None:
        self._groups = groups

    @property
    def groups(self) -> Sequence[Group]:
        """Return templates, each with the prefixes of consecutive entries."""
        return self._groups

    def __iter__(self) -> Iterator[Route]:
        for template, prefixes in self.groups:
            if len(prefixes) == 1 and prefixes[0] == numbers(template.destination):
                yield template
                continue
            copy = copier(template)
            network = type(template.destination)
            for prefix in prefixes:
                yield copy(network(prefix))

    def __len__(self) -> int:
        return sum(len(prefixes) for _, prefixes in self.groups)


class WholeEntries(Entries):
    """Entries that are routes already, each a group of its own.

    Args:
        routes: the routes, in the kernel's order.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        super().__init__()
        self._routes = tuple(routes)

    @property
    def groups(self) -> Sequence[Group]:
        """Return a group for each route."""
        return [(route, (numbers(route.destination),)) for route in self._routes]

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes)

    def __len__(self) -> int:
        return len(self._routes)


def copier(template: Route) -> Callable[[IpNetwork], Route]:
    """Return a function that copies a route with a new destination, twice as fast as evolve."""
    _, *others = attrs.astuple(template, recurse=False)
    return lambda destination: type(template)(destination, *others)


def _none(_: Route) -> bool:
    return False


def _all(_: Route) -> bool:
    return True


def _name_of(predicate: Callable[[Route], bool]) -> str:
    """Return a function's name, or the repr of another callable."""
    return getattr(predicate, "__name__", repr(predicate)).lstrip("_")


@frozen
class Selection:
    """The entries that a reader wants; by default all of them.

    Args:
        table: the table's number, or None for all tables.
        protocol: the entries' protocol, or None for any.
        is_omitted: a function that returns whether to omit an entry, whatever the entry's
            destination is. Default routes are never omitted.
        inside: prefixes in which no entry is omitted.
    """

    table: int | None = None
    protocol: int | None = None
    is_omitted: Callable[[Route], bool] = attrs.field(default=_none, repr=_name_of)
    inside: Sequence[Prefix] = ()

    def filter(self, routes: Iterable[Route]) -> Entries:
        """Return the wanted entries among all routes of a FIB."""
        if self == EVERYTHING:
            return WholeEntries(routes)
        asked = [route for route in routes if self._may_want(route)]
        if self.is_omitted is _none or not asked:
            return WholeEntries(asked)
        inside = PrefixSet(self.inside, asked[0].family.bits)
        return WholeEntries(
            route
            for route in asked
            if not self._may_omit(route) or inside.covers(numbers(route.destination))
        )

    def _may_want(self, route: Route) -> bool:
        is_in_table = self.table in (None, route.table)
        return is_in_table and self.protocol in (None, route.protocol)

    def _may_omit(self, route: Route) -> bool:
        """Return whether a route is omitted outside of the prefixes ``inside``."""
        return route.destination.prefixlen != 0 and self.is_omitted(route)


EVERYTHING = Selection()
# The entries for 0.0.0.0/0 or ::/0 in table main. All other entries are omitted.
DEFAULT_ROUTES = Selection(Table.MAIN, is_omitted=_all)

# The entries with our protocol in table main. Default routes among them aren't ours
# (``Route.is_ours``).
OURS_IN_MAIN = Selection(Table.MAIN, Protocol.HOSTROUTING)


def inside_only(prefixes: Sequence[Prefix], table: int, protocol: int) -> Selection:
    """Return the selection of a table's entries with a protocol that are in given prefixes.

    The default routes with that table and protocol are selected, too.
    """
    return Selection(table, protocol, _all, prefixes)


def except_plain(
    devs: Collection[str],
    *,
    inside: Sequence[Prefix] = (),
    sources: Collection[IpAddress] = (),
    mtus: Mapping[str, int] = _NO_MTUS,
) -> Selection:
    """Return the selection of all entries, except plain entries through certain interfaces.

    Args:
        devs: the names of these interfaces.
        inside: prefixes in which plain entries are selected, too.
        sources: the host's addresses, from which packets may leave.
        mtus: the interfaces' MTUs. An entry with a larger MTU isn't plain.
    """
    return Selection(is_omitted=PlainThrough(devs, sources, mtus), inside=inside)


@frozen
class PlainThrough:
    """A predicate for plain entries through certain interfaces.

    A plain entry has tos 0, and all of its packets leave through ``devs`` (``leaves_through``). An
    entry with scope link or narrower isn't plain, because the kernel may need it to reach a
    gateway.

    Args:
        devs: the names of these interfaces.
        sources: the host's addresses, from which packets may leave.
        mtus: the interfaces' MTUs. An entry with a larger MTU isn't plain.
    """

    devs: Collection[str]
    sources: Collection[IpAddress] = ()
    mtus: Mapping[str, int] = _NO_MTUS

    def __call__(self, route: Route) -> bool:
        is_ordinary = route.tos == 0 and not route.is_near
        return is_ordinary and is_plain(route, self.devs, self.sources, self.mtus)


def is_plain(
    route: Route,
    devs: Collection[str],
    sources: Collection[IpAddress],
    mtus: Mapping[str, int],
) -> bool:
    """Return whether a route ``leaves_through`` interfaces, and its MTU isn't larger than theirs.

    Args:
        route: the route. Its destination doesn't matter.
        devs: the names of these interfaces.
        sources: the host's addresses, from which packets may leave.
        mtus: the interfaces' MTUs.
    """
    return leaves_through(route, devs, sources) and not devs_below_mtu(route, mtus)


def devs_below_mtu(route: Route, mtus: Mapping[str, int]) -> list[str]:
    """Return the interfaces of a route whose own MTU is smaller than the route's."""
    if route.mtu is None:
        return []
    return [dev for dev in route.devs if route.mtu > mtus.get(dev, route.mtu)]


def leaves_through(route: Route, devs: Collection[str], sources: Collection[IpAddress]) -> bool:
    """Return whether every packet that matches an entry leaves through certain interfaces.

    The entry must be unicast, and all its live hops on these interfaces. It must have neither an
    encapsulation (``Route.encap``) nor a source prefix. If it has a ``src``, this must be in
    ``sources``. None of its gateways may be in ``sources``.

    Args:
        route: the entry. Its destination doesn't matter.
        devs: the names of these interfaces.
        sources: the host's addresses, from which packets may leave.
    """
    through = route.devs
    if route.type is not RouteType.UNICAST or not through or not set(through).issubset(devs):
        return False
    if route.encap or (isinstance(route, Route6) and route.source_prefix is not None):
        return False
    if route.source is not None and route.source not in sources:
        return False
    return not any(hop.gateway in sources for hop in route.hops)
