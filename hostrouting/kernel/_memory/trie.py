"""net/ipv4/fib_trie.c: tables. A dict for each prefix length does what the kernel's trie does."""

from __future__ import annotations

import errno as errnos
from enum import Enum, auto
from typing import TYPE_CHECKING

from hostrouting.kernel._memory.device import MASKS, RefusedError
from hostrouting.kernel._memory.net import Alias, Answer, FibInfo, FibTable, Flow, Found, Hop, Net
from hostrouting.model.routes import Scope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.model.routes import Route

__all__ = [
    "Insert",
    "fib_flush",
    "fib_table_delete",
    "fib_table_insert",
    "fib_table_lookup",
    "fib_tables_dump",
]


class Insert(Enum):
    """What to do where the key is taken: the netlink flags of a request for a new route."""

    EXCLUSIVE = auto()
    REPLACE = auto()
    APPEND = auto()


def fib_table_lookup(net: Net, number: int, flow: Flow) -> Answer:
    """The best entry of a table; shorter prefixes are tried where none of a longer one fits."""
    tables = net.trie(number)
    lengths = sorted({length for table in tables for length in table.by_length}, reverse=True)
    for length in lengths:
        key = flow.destination & MASKS[length]
        for table in tables:
            for alias in table.by_length.get(length, {}).get(key, ()):
                info = alias.info
                # Every flow has tos 0, which no other tos matches.
                if alias.tos or info.scope < flow.scope:
                    continue
                if info.error:
                    return info.error
                for hop in info.hops:
                    if _fib_lookup_good_nhc(net, hop, flow):
                        return Found(alias, hop, number)
    return errnos.EAGAIN


def _fib_lookup_good_nhc(net: Net, hop: Hop, flow: Flow) -> bool:
    if hop.is_dead or (hop.is_linkdown and net.ignores_linkdown and not flow.ignores_linkstate):
        return False
    return flow.oif is None or flow.oif is hop.dev


def _fib_find_alias(aliases: list[Alias], tos: int, metric: int) -> int:
    """Where the first alias of this tos and metric is, or would be put."""
    for position, alias in enumerate(aliases):
        if alias.tos < tos or (alias.tos == tos and alias.info.metric >= metric):
            return position
    return len(aliases)


def fib_table_insert(net: Net, cfg: Route, info: FibInfo, how: Insert) -> None:
    """Put a route into its table.

    Raises:
        RefusedError: EEXIST.
    """
    table = net.new_table(cfg.table)
    aliases = list(table.aliases(cfg.destination))
    first = last = _fib_find_alias(aliases, cfg.tos, info.metric)
    while last < len(aliases) and (aliases[last].tos, aliases[last].info.metric) == (cfg.tos, info.metric):
        last += 1
    same = aliases[first:last]
    match = next((alias for alias in same if alias.info is info), None)
    if same and how is Insert.REPLACE:
        if match is same[0]:
            return
        if match is None:
            aliases[first] = _link(net, Alias(cfg.destination, cfg.tos, info))
            table.put(cfg.destination, aliases)
            _unlink(net, same[0])
            return
    if match is not None or (same and how is not Insert.APPEND):
        raise RefusedError(errnos.EEXIST, "File exists")
    aliases.insert(last, _link(net, Alias(cfg.destination, cfg.tos, info)))
    table.put(cfg.destination, aliases)


def fib_table_delete(net: Net, cfg: Route) -> None:
    """Take the first route out that fits; metric 0, protocol 0, no source, scope NOWHERE and no hops fit any.

    Raises:
        RefusedError: ESRCH.
    """
    table = net.tables.get(cfg.table)
    if table is None:
        raise RefusedError(errnos.ESRCH, "FIB table does not exist")
    aliases = table.aliases(cfg.destination)
    for alias in aliases:
        info = alias.info
        if (
            alias.tos == cfg.tos
            and info.type is cfg.type
            and cfg.scope in (Scope.NOWHERE, info.scope)
            and cfg.source in (None, info.source)
            and cfg.protocol in (0, info.protocol)
            and cfg.metric in (0, info.metric)
            and _fib_nh_match(cfg, info)
        ):
            table.put(cfg.destination, [other for other in aliases if other is not alias])
            _unlink(net, alias)
            return
    raise RefusedError(errnos.ESRCH, "No such process")


def _fib_nh_match(cfg: Route, info: FibInfo) -> bool:
    """Whether the first hop fits; the kernel looks at no other where one is named by RTA_OIF or RTA_GATEWAY."""
    if not cfg.hops:
        return True
    meant = cfg.hops[0]
    if meant.dev is None and meant.gateway is None:
        return True
    if not info.hops:
        return False
    first = info.hops[0]
    return meant.dev in (None, first.dev.name) and meant.gateway in (None, first.gateway)


def _link(net: Net, alias: Alias) -> Alias:
    alias.info.users += 1
    net.infos[alias.info.key] = alias.info
    net.changes += 1
    return alias


def _unlink(net: Net, alias: Alias) -> None:
    alias.info.users -= 1
    if not alias.info.users:
        del net.infos[alias.info.key]
    net.changes += 1


def fib_flush(net: Net) -> None:
    """Take all routes out whose info is dead."""
    for table in net.tables.values():
        for alias in [alias for alias in _aliases(table) if alias.info.is_dead]:
            table.put(alias.destination, [other for other in table.aliases(alias.destination) if other is not alias])
            _unlink(net, alias)


def _aliases(table: FibTable) -> Iterator[Alias]:
    for of_length in table.by_length.values():
        for aliases in of_length.values():
            yield from aliases


def fib_tables_dump(net: Net, number: int | None) -> tuple[Route, ...]:
    """The entries of a table, or of all, in the kernel's order (inet_dump_fib, fn_trie_dump_leaf).

    Tables come by the low byte of their number, the newest of a byte first (fib_table_hash); entries by address,
    the longest prefix first.
    """
    tables = sorted(net.tables.values(), key=lambda table: (table.id & 0xFF, -table.created))
    return tuple(
        alias.show(ignores_linkdown=net.ignores_linkdown)
        for table in tables
        if number in (None, table.id)
        for _, _, aliases in sorted(
            (key, -length, aliases)
            for length, of_length in table.by_length.items()
            for key, aliases in of_length.items()
        )
        for alias in aliases
    )
