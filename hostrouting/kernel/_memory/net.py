"""What holds routes: struct net, fib_table, fib_alias, fib_info and fib_nh, as far as they show."""

from __future__ import annotations

import errno as errnos
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from typing import TypeAlias

import attrs

from hostrouting.kernel._memory.device import Device, RefusedError
from hostrouting.model.routes import NextHop, Protocol, Route, RouteType, Scope, Table
from hostrouting.model.rules import Rule

__all__ = [
    "Alias",
    "Answer",
    "FibInfo",
    "FibTable",
    "Flow",
    "Found",
    "Gateway",
    "Hop",
    "Net",
]

Gateway: TypeAlias = IPv4Address | IPv6Address

# fib_props in fib_semantics.c: the errors of the types that have one.
_ERROR_OF_TYPE = {
    RouteType.BLACKHOLE: errnos.EINVAL,
    RouteType.UNREACHABLE: errnos.EHOSTUNREACH,
    RouteType.PROHIBIT: errnos.EACCES,
    RouteType.THROW: errnos.EAGAIN,
}


@attrs.define(eq=False)
class Hop:
    """A next hop (struct fib_nh). ``scope`` is the one of the route that leads to it."""

    dev: Device
    gateway: Gateway | None
    onlink: bool
    weight: int
    scope: int
    is_linkdown: bool
    is_dead: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """What nh_comp compares."""
        return (self.dev.index, self.gateway, self.onlink, self.weight, self.scope)


@attrs.define(eq=False)
class FibInfo:
    """What routes with the same attributes share (struct fib_info); ``users`` are the aliases that do."""

    key: tuple[object, ...]
    type: RouteType
    scope: int
    protocol: int
    metric: int
    source: IPv4Address | None
    mtu: int | None
    table: int
    hops: tuple[Hop, ...]
    error: int = attrs.field(init=False)
    is_dead: bool = False
    users: int = 0
    _shown: tuple[NextHop, ...] | None = None

    def __attrs_post_init__(self) -> None:
        self.error = _ERROR_OF_TYPE.get(self.type, 0)

    def changed(self) -> None:
        """Forget how the hops were shown: their state has changed."""
        self._shown = None

    def show_hops(self, *, ignores_linkdown: bool) -> tuple[NextHop, ...]:
        """The hops as a dump shows them: one without carrier as dead too, if it isn't used (fib_nexthop_info)."""
        if self._shown is None:
            # A weight is an attribute of RTA_MULTIPATH; a lone hop has none to show.
            is_lone = len(self.hops) == 1
            self._shown = tuple(
                NextHop(
                    hop.dev.name,
                    hop.gateway,
                    hop.onlink,
                    1 if is_lone else hop.weight,
                    hop.is_dead or (hop.is_linkdown and ignores_linkdown),
                    hop.is_linkdown,
                )
                for hop in self.hops
            )
        return self._shown


@attrs.define(eq=False)
class Alias:
    """A route: a destination and tos with its info (struct fib_alias)."""

    destination: IPv4Network
    tos: int
    info: FibInfo
    _shown: Route | None = None

    def show(self, *, ignores_linkdown: bool) -> Route:
        """As a dump shows it."""
        info = self.info
        hops = info.show_hops(ignores_linkdown=ignores_linkdown)
        if self._shown is None or self._shown.hops is not hops:
            self._shown = Route(
                self.destination,
                hops,
                info.type,
                info.table,
                info.protocol,
                info.scope,
                info.metric,
                self.tos,
                info.source,
                info.mtu,
            )
        return self._shown


@attrs.define(eq=False)
class FibTable:
    """A routing table: by prefix length and prefix its aliases, by falling tos and then rising metric."""

    id: int
    created: int
    by_length: dict[int, dict[int, list[Alias]]] = attrs.field(factory=dict)

    def aliases(self, destination: IPv4Network) -> list[Alias]:
        """The aliases of a prefix."""
        return self.by_length.get(destination.prefixlen, {}).get(int(destination.network_address), [])

    def put(self, destination: IPv4Network, aliases: list[Alias]) -> None:
        """Set the aliases of a prefix; an empty list makes an end of it."""
        length, key = destination.prefixlen, int(destination.network_address)
        if aliases:
            self.by_length.setdefault(length, {})[key] = aliases
            return
        of_length = self.by_length[length]
        del of_length[key]
        if not of_length:
            del self.by_length[length]


@attrs.frozen
class Flow:
    """What is looked up (struct flowi4): a packet without mark and tos, of uid 0, that comes in by ``lo``."""

    destination: int
    source: int = 0
    scope: int = Scope.UNIVERSE
    oif: Device | None = None
    ip_protocol: int = 0
    ignores_linkstate: bool = False


@attrs.frozen
class Found:
    """A look-up's result (struct fib_result); ``table`` is the one that was asked."""

    alias: Alias
    hop: Hop
    table: int


# The entry, or the errno; EAGAIN where a table has nothing to say.
Answer: TypeAlias = Found | int


def _initial_rules() -> list[Rule]:
    return [
        Rule(preference, table=table, protocol=Protocol.KERNEL)
        for preference, table in ((0, Table.LOCAL), (32766, Table.MAIN), (32767, Table.DEFAULT))
    ]


@attrs.define(eq=False)
class Net:
    """A network namespace; ``changes`` counts what would be told to listeners.

    Args:
        promotes_secondaries: net.ipv4.conf.all.promote_secondaries.
        ignores_linkdown: net.ipv4.conf.all.ignore_routes_with_linkdown.
    """

    promotes_secondaries: bool
    ignores_linkdown: bool
    devices: dict[str, Device] = attrs.field(factory=dict)
    tables: dict[int, FibTable] = attrs.field(factory=dict)
    infos: dict[tuple[object, ...], FibInfo] = attrs.field(factory=dict)
    rules: list[Rule] = attrs.field(factory=_initial_rules)
    has_custom_rules: bool = False
    changes: int = 0
    last_index: int = 0

    def next_index(self) -> int:
        """The number of the next device; none is given twice."""
        self.last_index += 1
        return self.last_index

    def device(self, name: str) -> Device:
        """A device by name.

        Raises:
            RefusedError: ENODEV.
        """
        try:
            return self.devices[name]
        except KeyError:
            raise RefusedError(errnos.ENODEV, f"no interface is named {name!r}") from None

    def new_table(self, number: int) -> FibTable:
        """A table, made if need be; none is ever unmade (fib_new_table)."""
        table = self.tables.get(number)
        if table is None:
            table = self.tables[number] = FibTable(number, len(self.tables))
        return table

    def trie(self, number: int) -> tuple[FibTable, ...]:
        """The tables that a look-up in one searches, all at once.

        local and main are one trie until the first rule is added or deleted (fib_unmerge).
        """
        is_merged = number in (Table.LOCAL, Table.MAIN) and not self.has_custom_rules
        numbers = (Table.LOCAL, Table.MAIN) if is_merged else (number,)
        return tuple(self.tables[each] for each in numbers if each in self.tables)
