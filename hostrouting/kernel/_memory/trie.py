"""net/ipv4/fib_trie.c: how entries come into tables, leave them, and are dumped."""

from __future__ import annotations

import errno as errnos
from typing import TYPE_CHECKING

from hostrouting.kernel.rtnetlink import messages as rtnl
from hostrouting.model.routes import Route, Scope

if TYPE_CHECKING:
    from hostrouting.kernel._memory.net import Net


def info_of(route: Route) -> tuple[object, ...]:
    """What routes to any destinations may share (struct fib_info, fib_find_info)."""
    paths = tuple(hop.path for hop in route.hops)
    return (route.type, route.table, route.protocol, route.scope, route.metric, route.source, route.mtu, paths)


def fib_table_insert(net: Net, route: Route, how: int) -> None:
    """Put a route into its table: by falling tos, then by rising metric, behind those of the same.

    Args:
        net: the namespace.
        route: as it will be shown.
        how: ADD, REPLACE or APPEND: what to do where the key is taken.

    Raises:
        RefusedError: EEXIST.
    """
    there = net.there(route)
    first = sum((-each.tos, each.metric) < (-route.tos, route.metric) for each in there)
    same = [each for each in there if (each.tos, each.metric) == (route.tos, route.metric)]
    infos = [info_of(each) for each in same]
    position = infos.index(info_of(route)) if info_of(route) in infos else None
    if same and how == rtnl.REPLACE and not position:
        if position is None:
            there[first] = route
            net.changes += 1
        return
    if position is not None or (same and how != rtnl.APPEND):
        raise rtnl.RefusedError(errnos.EEXIST)
    there.insert(first + len(same), route)
    net.changes += 1


def fib_table_delete(net: Net, cfg: Route) -> None:
    """Take the first route out that fits; metric 0, no source, scope NOWHERE and no hops fit any.

    Raises:
        RefusedError: ESRCH.
    """
    there = net.there(cfg)
    for route in there:
        if (
            (route.tos, route.type, route.protocol) == (cfg.tos, cfg.type, cfg.protocol)
            and cfg.scope in (Scope.NOWHERE, route.scope)
            and cfg.source in (None, route.source)
            and cfg.metric in (0, route.metric)
            and _fib_nh_match(cfg, route)
        ):
            there.remove(route)
            net.changes += 1
            return
    raise rtnl.RefusedError(errnos.ESRCH)


def _fib_nh_match(cfg: Route, route: Route) -> bool:
    """Whether the first hop fits; the kernel looks at no other where one is named by RTA_OIF or RTA_GATEWAY."""
    if not cfg.hops or not route.hops:
        return not cfg.hops
    meant, first = cfg.hops[0], route.hops[0]
    return meant.dev in (None, first.dev) and meant.gateway in (None, first.gateway)


def fib_tables_dump(net: Net, number: int | None) -> tuple[Route, ...]:
    """The entries of a table, or of all, in the kernel's order (inet_dump_fib, fn_trie_dump_leaf).

    Tables come by the low byte of their number, the newest of a byte first (fib_table_hash); entries by address,
    the longest prefix first.
    """
    newest_first = reversed([table for table in net.tables if number in (None, table)])
    return tuple(
        net.shown(route)
        for table in sorted(newest_first, key=lambda table: table & 0xFF)
        for _, _, routes in sorted(
            (first, -length, routes)
            for length, networks in net.tables[table].items()
            for first, routes in networks.items()
        )
        for route in routes
    )
