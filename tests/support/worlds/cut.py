"""Random hosts with a few prefixes in one /20 that split the expected CIDRs into many parts.

With ``by_source``, most rules select by a connection's source, and the host has several addresses
to choose from.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Any

import attrs
from hypothesis import strategies as st

from hostrouting import ExpectedCidr
from hostrouting.model.routes import (
    DEFAULT_DESTINATION,
    NextHop,
    Protocol,
    Route,
    RouteType,
    Scope,
    Table,
)
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.testing.strategies import NewAddress
from worlds import DEVICES, Question, World

SPACE = IPv4Network("10.0.0.0/20")
"""The cut network; every wider prefix that is drawn contains all of it."""

WIDE = tuple(
    map(IPv4Network, ("10.0.0.0/19", "10.0.0.0/16", "10.0.0.0/8", "8.0.0.0/5", "0.0.0.0/1"))
)

# --- parts of a host ------------------------------------------------------------------------------

_OFFSETS = (
    *(
        0,
        1,
        2,
        4,
        5,
        8,
        63,
        64,
        100,
        127,
        128,
        129,
        200,
        255,
        256,
        300,
        511,
        512,
        700,
        768,
        1000,
        1023,
    ),
    1024,
    2048,
)
_LENGTHS = (*(32, 31, 30, 29, 28, 27, 26, 25, 25, 24, 24, 24, 24, 23, 23, 22, 22, 21), 20)
_offsets = st.sampled_from(_OFFSETS)


def _network(offset: int, length: int) -> IPv4Network:
    return IPv4Network((int(SPACE.network_address) + offset, length), strict=False)


def _prefixes(*lengths: int) -> st.SearchStrategy[IPv4Network]:
    return st.builds(_network, _offsets, st.sampled_from(lengths))


def _inside(outer: IPv4Network) -> st.SearchStrategy[IPv4Network]:
    """Draw prefixes at or near the ends or the middle of another prefix."""
    size = outer.num_addresses
    starts = sorted({0, size // 4, size // 2, size // 2 - 1, size - 1, size, 1} - {-1})
    places = st.sampled_from(starts).map(lambda start: int(outer[0]) - int(SPACE[0]) + start)
    return st.builds(_network, places, st.sampled_from(_LENGTHS))


def _addresses(offsets: st.SearchStrategy[int] = _offsets) -> st.SearchStrategy[IPv4Address]:
    return offsets.map(lambda offset: SPACE.network_address + offset)


_FAR = IPv4Address("192.0.2.1")
_NEAR = st.one_of(
    st.sampled_from((0, 1, 4, 5, 100, 129, 300)).map(lambda offset: SPACE.network_address + offset),
    st.sampled_from(("10.1.0.1", "10.2.0.1", "10.3.0.1")).map(IPv4Address),
)

# With the onlink flag, the kernel accepts any gateway address.
_hops = st.one_of(
    st.sampled_from(DEVICES).map(NextHop),
    st.builds(
        NextHop, st.sampled_from(DEVICES), st.one_of(st.just(_FAR), _NEAR), onlink=st.just(True)
    ),
    st.builds(NextHop, st.sampled_from(("eth0", "ib0", None)), _NEAR),
)
_legs = st.one_of(
    _hops,
    st.builds(
        NextHop,
        st.sampled_from(("eth0", "eth1", "ib0")),
        st.just(_FAR),
        st.just(True),
        st.sampled_from((1, 7)),
    ),
)
_ways = st.one_of(
    _hops.map(lambda hop: (hop,)),
    _hops.map(lambda hop: (hop,)),
    _hops.map(lambda hop: (hop,)),
    st.lists(_legs, min_size=2, max_size=3, unique_by=lambda hop: hop.path).map(tuple),
)
_DISCARDS = (RouteType.BLACKHOLE, RouteType.UNREACHABLE, RouteType.PROHIBIT)
_PROTOCOLS = (Protocol.STATIC, Protocol.STATIC, Protocol.BOOT, Protocol.DHCP, Protocol.BIRD, 80)
_TABLES = (*(Table.MAIN,) * 7, 100, 100, 52, Table.DEFAULT)


@st.composite
def _entries(
    draw: st.DrawFn,
    destinations: st.SearchStrategy[IPv4Network],
    objects: tuple[int, ...],
    sources: st.SearchStrategy[IPv4Address | None],
) -> Route:
    kind = draw(
        st.sampled_from(
            (*(RouteType.UNICAST,) * 7, *_DISCARDS, RouteType.BLACKHOLE, RouteType.THROW)
        )
    )
    fields: dict[str, Any] = {
        "destination": draw(destinations),
        "table": draw(st.sampled_from(_TABLES)),
        "protocol": draw(st.sampled_from(_PROTOCOLS)),
        "metric": draw(st.sampled_from((0, 0, 0, 0, 10, 100, 2**32 - 1))),
        "tos": draw(st.sampled_from((0,) * 9 + (0x10,))),
    }
    if kind is not RouteType.UNICAST:
        return Route(type=kind, **fields)
    if objects and draw(st.integers(0, 1)) == 0:
        return Route(nexthop_id=draw(st.sampled_from(objects)), scope=Scope.UNIVERSE, **fields)
    return Route(hops=draw(_ways), source=draw(sources), **fields)


@st.composite
def _any_ips(draw: st.DrawFn, destinations: st.SearchStrategy[IPv4Network]) -> Route:
    """Draw ``ip route add local PREFIX dev lo``, which makes all addresses in the prefix local."""
    table = draw(st.sampled_from((Table.LOCAL, Table.LOCAL, Table.MAIN)))
    return Route(
        draw(destinations), (NextHop("lo"),), RouteType.LOCAL, table=table, protocol=Protocol.STATIC
    )


@st.composite
def _rules(
    draw: st.DrawFn,
    destinations: st.SearchStrategy[IPv4Network],
    selectors: st.SearchStrategy[dict[str, Any]],
) -> Rule:
    action = draw(st.sampled_from((*(RuleAction.TO_TABLE,) * 7, *RuleAction)))
    rule = Rule(
        preference=draw(st.sampled_from((0, 10, 20, 20, 30, 5210, 32765, 32766, 40000))),
        action=action,
        table=draw(st.sampled_from((100, 100, 52, 300, *Table)))
        if action is RuleAction.TO_TABLE
        else Table.MAIN,
        goto=draw(st.sampled_from((20, 30, 32766, 50000))) if action is RuleAction.GOTO else None,
        suppress_prefix_length=draw(st.sampled_from((None, None, None, 0, 22, 24))),
        is_inverted=draw(st.sampled_from((False, False, False, True))),
    )
    if draw(st.booleans()):
        rule = attrs.evolve(rule, destination=draw(destinations))
    return attrs.evolve(rule, **draw(selectors))


_SELECTORS: tuple[tuple[str, object], ...] = (
    *(("source", IPv4Network("10.0.0.0/24")), ("source", IPv4Network("0.0.0.0/0"))),
    *(("source", IPv4Network("192.0.2.4/32")), ("source", IPv4Network("192.0.2.4/32"))),
    *(("source", IPv4Network("10.0.0.4/32")), ("source", IPv4Network("10.0.0.0/20"))),
    *(("mark", 0xCA6C), ("mark", 0x80000), ("mark", 0), ("tos", 0x10)),
    *(("uid_range", (0, 0)), ("uid_range", (1000, 2000)), ("uid_range", (0, 2**32 - 2))),
    *(("iif", "lo"), ("iif", "eth1"), ("iif", "eth0:1"), ("oif", "ib0")),
    *(("ip_protocol", 17), ("ip_protocol", 6), ("has_ports", True)),
)

_selectors: st.SearchStrategy[dict[str, Any]] = st.lists(
    st.sampled_from(_SELECTORS), max_size=1
).map(dict)


def _of_sources(sources: st.SearchStrategy[IPv4Address]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw the selectors of rules, most of which select some of these sources."""
    lengths, protocols = st.sampled_from((32, 32, 24, 8)), st.sampled_from((0, 0, 0, 6, 17))
    networks = st.builds(
        lambda source, length: IPv4Network((source, length), strict=False), sources, lengths
    )
    chosen = st.fixed_dictionaries({"source": networks, "ip_protocol": protocols})
    return st.one_of(chosen, chosen, chosen, _selectors)


@st.composite
def _chains(draw: st.DrawFn) -> list[Rule]:
    """Draw a rule that uses only main's longer prefixes, and then a rule for all other packets."""
    shortest = draw(st.sampled_from((0, 0, 8, 22, 24, 26, 32)))
    ends = (
        RuleAction.BLACKHOLE,
        RuleAction.UNREACHABLE,
        RuleAction.PROHIBIT,
        *(RuleAction.TO_TABLE,) * 3,
    )
    end = draw(st.sampled_from(ends))
    return [
        Rule(11, suppress_prefix_length=shortest),
        Rule(
            12,
            action=end,
            table=100 if end is RuleAction.TO_TABLE else Table.MAIN,
            mark=0xCA6C,
            is_inverted=True,
        ),
    ]


# Addresses for the default interface, each with a gateway in its subnet.
_UPLINKS = (
    *(("192.0.2.4/24", "192.0.2.1"), ("192.0.2.4/24", "192.0.2.1"), ("10.0.0.4/24", "10.0.0.1")),
    *(("10.0.0.4/20", "10.0.0.1"), ("10.0.2.4/25", "10.0.2.1"), ("10.0.1.4/16", "10.0.0.1")),
    *(("10.0.0.2/31", "10.0.0.3"), ("10.0.0.4/32", None)),
)

# The first address, which is usually eth0's, and others that a connection may come from.
_HOME = (("eth0", NewAddress("10.1.0.4/24")),) * 7 + (("lo", NewAddress("10.9.0.4/32")),)
_SOURCES = (
    *(
        ("eth0", NewAddress("10.1.0.5/24")),
        ("eth0", NewAddress("10.1.9.4/25")),
        ("eth0", NewAddress("10.0.3.4/32")),
    ),
    *(
        ("eth1", NewAddress("10.2.0.4/24")),
        ("eth1", NewAddress("10.2.0.5/24")),
        ("eth1", NewAddress("10.2.9.4/25")),
    ),
    *(("eth1", NewAddress("10.0.0.9/24")), ("eth1", NewAddress("10.0.1.9/25", metric=50))),
    *(("ib0", NewAddress("10.3.0.4/24")), ("ib0", NewAddress("10.3.0.7/24", peer="10.3.7.7"))),
    *(("ib0", NewAddress("10.0.0.10/22")), ("ib0", NewAddress("10.0.2.10/24", prefix_route=False))),
)


@st.composite
def _default_of_sources(draw: st.DrawFn, sources: st.SearchStrategy[IPv4Address | None]) -> Route:
    hops = [
        draw(
            st.sampled_from(
                (NextHop("eth0", IPv4Address("10.1.0.1"), onlink=True),) * 5 + (NextHop("eth0"),)
            )
        )
    ]
    if draw(st.integers(0, 9)) == 0:
        hops.append(NextHop("eth1", IPv4Address("10.2.0.1"), onlink=True))
    return Route(
        DEFAULT_DESTINATION, tuple(hops), protocol=Protocol.DHCP, metric=100, source=draw(sources)
    )


@st.composite
def _defaults(draw: st.DrawFn, uplink: str, gateway: str | None, objects: tuple[int, ...]) -> Route:
    usual = NextHop("eth0", IPv4Address(gateway)) if gateway else NextHop("eth0", _FAR, onlink=True)
    second = NextHop("eth1", _FAR, onlink=True)
    way = draw(
        st.sampled_from(
            ((usual,),) * 7 + ((NextHop("eth0"),), (usual, second), (second,), (NextHop("ib0"),))
        )
    )
    more: dict[str, Any] = {
        "protocol": draw(st.sampled_from((Protocol.DHCP, Protocol.DHCP, Protocol.STATIC))),
        "metric": draw(st.sampled_from((0, 100, 100, 200))),
        "mtu": draw(st.sampled_from((None, None, None, 1400))),
        "source": draw(st.sampled_from((None, None, None, IPv4Interface(uplink).ip))),
    }
    if objects and draw(st.integers(0, 2)) == 0:
        return Route(
            DEFAULT_DESTINATION,
            nexthop_id=draw(st.sampled_from(objects)),
            scope=Scope.UNIVERSE,
            **more,
        )
    return Route(DEFAULT_DESTINATION, way, **more)


_OBJECTS = (
    *(
        "id 1 via 192.0.2.1 dev eth0 onlink",
        "id 2 dev ib0",
        "id 3 group 1/2",
        "id 4 blackhole",
        "id 5 group 1",
    ),
    *("id 6 via 192.0.2.1 dev eth1 onlink", "id 7 group 1,3/6", "id 8 dev cali1"),
)


@st.composite
def new_addresses(draw: st.DrawFn) -> NewAddress:
    length = draw(st.sampled_from((16, 20, 22, 24, 24, 24, 25, 28, 30, 31, 32)))
    return NewAddress(
        str(IPv4Interface((draw(_addresses()), length))),
        peer=str(draw(_addresses())) if draw(st.sampled_from((False,) * 7 + (True,))) else None,
        metric=draw(st.sampled_from((0, 0, 0, 5, 100))),
        prefix_route=draw(st.sampled_from((True, True, True, False))),
    )


@st.composite
def _blocks(draw: st.DrawFn) -> list[Route]:
    """Draw the routes of a CNI's block: a discard route for the block, and routes for some of its
    pods.
    """
    block = draw(_prefixes(22, 24, 26))
    pods = draw(st.lists(st.integers(0, block.num_addresses - 1), max_size=2, unique=True))
    discard = Route(
        block, type=draw(st.sampled_from(_DISCARDS)), protocol=draw(st.sampled_from(_PROTOCOLS))
    )
    ways = st.sampled_from((NextHop("cali1"), NextHop("veth1"), NextHop("eth0", _FAR, onlink=True)))
    return [
        discard,
        *(Route(IPv4Network(block[pod]), (draw(ways),), protocol=Protocol.STATIC) for pod in pods),
    ]


@st.composite
def questions(draw: st.DrawFn, *, has_objects: bool = False, by_source: bool = False) -> Question:
    """Draw a host and expected CIDRs that overlap its tables.

    Args:
        draw: Hypothesis's draw function.
        has_objects: whether routes may use nexthop objects, which only a real kernel supports.
        by_source: whether the host has a default route via eth0, several addresses, and rules that
            select by them.
    """
    pool = draw(st.lists(_prefixes(*_LENGTHS), min_size=2, max_size=5, unique=True))
    narrow = [prefix if prefix.prefixlen >= 22 else _network(0, 22) for prefix in pool]
    around = [prefix.supernet(new_prefix=min(prefix.prefixlen, 22)) for prefix in pool]
    within = st.sampled_from(pool).flatmap(_inside)
    meeting = st.one_of(
        st.sampled_from(pool), within, within, _prefixes(*_LENGTHS), st.sampled_from(WIDE)
    )
    ids = tuple(range(1, len(_OBJECTS) + 1)) if has_objects and draw(st.booleans()) else ()
    more = draw(
        st.lists(
            st.tuples(st.sampled_from(DEVICES), new_addresses()), max_size=1 if by_source else 3
        )
    )
    none: st.SearchStrategy[IPv4Address | None] = st.none()
    if by_source:
        several = st.lists(st.sampled_from(_SOURCES), max_size=5, unique=True)
        addresses = draw(st.permutations([draw(st.sampled_from(_HOME)), *draw(several), *more]))
        sources = st.sampled_from([IPv4Interface(address.address).ip for _, address in addresses])
        preferred, selectors = st.one_of(none, none, sources), _of_sources(sources)
        defaults = [draw(_default_of_sources(preferred))]
        fewest, most = draw(st.sampled_from(((0, 1), (1, 3), (1, 3), (2, 4))))
    else:
        uplink, gateway = draw(st.sampled_from(_UPLINKS))
        addresses, preferred, selectors = [("eth0", NewAddress(uplink)), *more], none, _selectors
        fewest = draw(st.sampled_from((0,) + (1,) * 15))
        defaults = draw(st.lists(_defaults(uplink, gateway, ids), min_size=fewest, max_size=2))
        # Most hosts have only the default rules, for which the kernel uses a different code path.
        fewest, most = 0, draw(st.sampled_from((0, 0, 1, 3)))
    entries = st.lists(
        _entries(meeting, ids, preferred), min_size=draw(st.sampled_from((0, 2, 4))), max_size=10
    )
    routes = [
        *defaults,
        *(draw(_blocks()) if draw(st.sampled_from((False, False, False, True))) else []),
        *draw(entries),
        *draw(st.lists(_any_ips(meeting), max_size=draw(st.sampled_from((0, 0, 0, 0, 1))))),
    ]
    rules = draw(st.lists(_rules(meeting, selectors), min_size=fewest, max_size=most))
    if draw(st.integers(0, 5)) == 0:
        rules += draw(_chains())
    world = World(
        tuple(addresses),
        tuple(routes),
        tuple(rules),
        draw(st.sampled_from(((),) * 9 + ((32766,), (0,), (0, 32766)))),
        _OBJECTS if ids else (),
        draw(st.sampled_from(((),) * 7 + (("eth1",), ("ib0",), ("veth1",)))),
        draw(st.sampled_from(((),) * 9 + (("ib0",), ("eth0",)))),
        hides_hops=bool(ids) and draw(st.booleans()),
        ports=draw(st.sampled_from(((),) * 11 + (("eth0",), ("eth1",), ("eth0", "veth1")))),
    )
    cidrs = st.one_of(
        st.sampled_from(narrow),
        st.sampled_from(around),
        _prefixes(22, 22, 22, 23, 24, 26, 30, 31, 32),
    )
    patterns = (
        st.sampled_from((None,) * 6 + (("eth[0]",), ("ib0", "eth1"), ("*0",)))
        if by_source
        else st.none()
    )
    expected = st.builds(ExpectedCidr, cidrs, patterns)
    return Question(
        world,
        tuple(draw(st.lists(expected, min_size=1, max_size=3))),
        draw(st.sampled_from(((), (), ("eth1",), ("eth1", "docker0")))),
        tuple(draw(st.lists(meeting, max_size=draw(st.sampled_from((0, 2)))))),
    )
