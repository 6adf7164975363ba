"""Random hosts around the destinations for which a config may want routes."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

from hypothesis import strategies as st

from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route, RouteType, Table
from hostrouting.testing import strategies
from hostrouting.testing.strategies import NewAddress
from worlds import World

PREFIXES = (
    *("10.0.0.0/8", "10.0.0.0/16", "10.0.0.0/24", "10.0.0.0/25", "10.0.0.128/25", "10.0.0.0/31", "10.0.0.1/32"),
    *("10.0.0.5/32", "10.0.0.255/32", "10.0.1.0/24", "10.0.9.0/24", "10.0.9.1/32", "192.0.2.0/24", "172.16.1.0/24"),
)
GATEWAYS = ("10.0.0.1", "10.0.0.2", "10.0.0.5", "10.0.0.255", "10.0.1.7", "10.0.9.1", "192.0.2.1")

_ROUTE_HOPS = (
    NextHop("v0", IPv4Address("10.0.0.5")),
    NextHop("v0", IPv4Address("10.0.0.2")),
    NextHop("v1", IPv4Address("10.0.1.7")),
    NextHop("v2", IPv4Address("192.0.2.1"), onlink=True),
    NextHop("v2"),
)


@st.composite
def _default_routes(draw: st.DrawFn) -> Route:
    return Route(
        DEFAULT_DESTINATION,
        draw(st.lists(st.sampled_from(_ROUTE_HOPS), min_size=1, max_size=2, unique=True).map(tuple)),
        protocol=draw(st.sampled_from((Protocol.DHCP, Protocol.BOOT, Protocol.HOSTROUTING))),
        metric=draw(st.sampled_from((0, 100, 100, 2**32 - 1))),
        mtu=draw(st.sampled_from((None, None, 1400))),
        source=draw(st.sampled_from((None, None, IPv4Address("10.0.0.1")))),
    )


@st.composite
def _places(draw: st.DrawFn) -> Route:
    """Draw an existing route, ours or another program's, to a destination that the config may want."""
    discards = draw(st.sampled_from((False, False, False, True)))
    return Route(
        IPv4Network(draw(st.sampled_from(PREFIXES))),
        ()
        if discards
        else draw(st.lists(st.sampled_from(_ROUTE_HOPS), min_size=1, max_size=2, unique=True).map(tuple)),
        RouteType.BLACKHOLE if discards else RouteType.UNICAST,
        table=draw(st.sampled_from((Table.MAIN, Table.MAIN, Table.MAIN, 100))),
        protocol=draw(st.sampled_from((Protocol.HOSTROUTING, Protocol.HOSTROUTING, Protocol.DHCP, Protocol.BIRD, 80))),
        metric=draw(st.sampled_from((0, 0, 0, 10))),
    )


_CONNECTED = st.sampled_from((("v0", "10.0.0.1/24"), ("v1", "10.0.1.1/24")))


@st.composite
def hosts_with_routes(draw: st.DrawFn) -> World:
    usual = [(dev, NewAddress(address)) for dev, address in draw(st.lists(_CONNECTED, max_size=2, unique=True))]
    odd = draw(st.lists(st.tuples(st.sampled_from(strategies.DEVICES), strategies.new_addresses()), max_size=1))
    entries = [
        *draw(st.lists(_default_routes(), min_size=draw(st.sampled_from((0, 1, 1, 1))), max_size=2)),
        *draw(
            st.lists(st.one_of(_places(), _places(), strategies.variants(_places()), strategies.routes()), max_size=6)
        ),
    ]
    return World(
        tuple(usual + odd),
        tuple(entries),
        tuple(draw(st.lists(strategies.policy_rules(), max_size=draw(st.sampled_from((0, 0, 2)))))),
        down=draw(st.sampled_from(((),) * 5 + tuple((dev,) for dev in strategies.DEVICES))),
        links=strategies.DEVICES,
    )
