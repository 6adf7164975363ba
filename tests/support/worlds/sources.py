"""Random hosts with rules that select by source, and random hosts with scoped addresses."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import attrs
from hypothesis import strategies as st

from hostrouting import ExpectedCidr
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route, RouteType, Table
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.testing.strategies import NewAddress
from worlds import OFFSETS, Question, World

SPACE = IPv4Network("172.16.0.0/22")
"""The cut network; every wider prefix that is drawn contains all of it."""

_WIDE = tuple(map(IPv4Network, ("172.16.0.0/16", "172.16.0.0/12", "128.0.0.0/1", "0.0.0.0/0")))

_HOME = NewAddress("10.1.0.4/24")
_ADDRESSES = {
    "eth0": (NewAddress("10.1.0.5/24"), NewAddress("10.1.9.4/25"), NewAddress("172.16.3.4/32")),
    "eth1": (
        *(NewAddress("10.2.0.4/24"), NewAddress("10.2.0.5/24"), NewAddress("10.2.9.4/25")),
        *(NewAddress("172.16.0.9/24"), NewAddress("172.16.1.9/25", metric=50)),
    ),
    "ib0": (
        *(NewAddress("10.3.0.4/24"), NewAddress("10.3.0.7/24", peer="10.3.7.7"), NewAddress("172.16.0.10/22")),
        NewAddress("172.16.2.10/24", prefix_route=False),
    ),
}
_GATEWAYS = {
    "eth0": ("10.1.0.1", "10.1.0.1", "10.1.9.1"),
    "eth1": ("10.2.0.1", "10.2.0.1", "10.2.9.1", "172.16.0.1"),
    "ib0": ("10.3.0.1", "10.3.7.8", "172.16.0.2"),
}
_TABLES = (Table.MAIN, Table.MAIN, Table.MAIN, 100, 100, 101, 102)
_DISCARDS = (RouteType.UNREACHABLE, RouteType.BLACKHOLE, RouteType.PROHIBIT, RouteType.THROW)
_devs = st.sampled_from(("eth0", "eth0", "eth1", "eth1", "ib0"))


@st.composite
def _prefixes(draw: st.DrawFn) -> IPv4Network:
    """Draw a prefix in or around this module's address space."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from(_WIDE))
    address = SPACE[draw(st.sampled_from(OFFSETS))]
    return IPv4Network((address, draw(st.sampled_from((22, 23, 24, 24, 25, 26, 28, 32)))), strict=False)


@st.composite
def _hops(draw: st.DrawFn, dev: str) -> NextHop:
    gateway = draw(st.sampled_from((*_GATEWAYS[dev], None)))
    if gateway is None:
        return NextHop(dev)
    return NextHop(dev, IPv4Address(gateway), onlink=draw(st.booleans()))


def _sources(addresses: tuple[tuple[str, NewAddress], ...]) -> st.SearchStrategy[IPv4Address]:
    """Draw one of this host's addresses."""
    return st.sampled_from([IPv4Address(address.address.partition("/")[0]) for _, address in addresses])


def _preferred(sources: st.SearchStrategy[IPv4Address]) -> st.SearchStrategy[IPv4Address | None]:
    return st.one_of(st.none(), st.none(), sources)


@st.composite
def _routes(draw: st.DrawFn, sources: st.SearchStrategy[IPv4Address]) -> Route:
    destination, table = draw(_prefixes()), draw(st.sampled_from(_TABLES))
    if draw(st.integers(0, 9)) == 0:
        kind = draw(st.sampled_from(_DISCARDS))
        return Route(destination, type=kind, table=table, protocol=Protocol.STATIC)
    devs = draw(st.lists(_devs, min_size=1, max_size=2 if draw(st.integers(0, 7)) == 0 else 1, unique=True))
    return Route(
        destination,
        tuple(draw(_hops(dev)) for dev in devs),
        table=table,
        protocol=Protocol.STATIC,
        metric=draw(st.sampled_from((0, 0, 20))),
        source=draw(_preferred(sources)),
    )


@st.composite
def _rules(draw: st.DrawFn, sources: st.SearchStrategy[IPv4Address]) -> Rule:
    """Draw a rule; its preference is set later."""
    selectors = draw(st.sampled_from(("from", "from", "from", "from to", "to", "", "suppress")))
    networks = st.one_of(
        sources.map(IPv4Network),
        sources.map(IPv4Network),
        sources.map(lambda source: IPv4Network((source, 24), strict=False)),
        st.just(IPv4Network("10.0.0.0/8")),
    )
    rule = Rule(
        0,
        table=draw(st.sampled_from((100, 100, 101, 102, Table.MAIN))),
        source=draw(networks) if "from" in selectors else None,
        destination=draw(_prefixes()) if "to" in selectors else None,
        ip_protocol=draw(st.sampled_from((0, 0, 0, 6, 17) if selectors else (6, 17))),
        is_inverted=draw(st.sampled_from((False, False, False, True))),
    )
    if selectors == "suppress":
        return Rule(0, suppress_prefix_length=draw(st.sampled_from((0, 16, 24))))
    if draw(st.integers(0, 9)) == 0:
        discards = (RuleAction.UNREACHABLE, RuleAction.BLACKHOLE, RuleAction.PROHIBIT)
        rule = attrs.evolve(rule, action=draw(st.sampled_from(discards)), table=Table.MAIN)
    return rule


@st.composite
def questions(draw: st.DrawFn) -> Question:
    """Draw a host with a default route through eth0, and expected CIDRs that overlap its tables."""
    devs = draw(st.sampled_from((("eth0", "eth1"), ("eth0", "eth1", "ib0"))))
    more = st.sampled_from([(dev, address) for dev in devs for address in _ADDRESSES[dev]])
    # Without the first address, the default route's interface often has none and borrows the source from another
    # interface.
    home = [("eth0", _HOME)] if draw(st.integers(0, 7)) else [("lo", NewAddress("10.9.0.4/32"))]
    addresses = tuple(draw(st.permutations([*home, *draw(st.lists(more, max_size=5, unique=True))])))
    sources = _sources(addresses)
    gateway = draw(st.sampled_from(("10.1.0.1",) * 5 + (None,)))
    hops = [NextHop("eth0", IPv4Address(gateway) if gateway else None, onlink=gateway is not None)]
    if draw(st.integers(0, 9)) == 0:
        hops.append(NextHop("eth1", IPv4Address("10.2.0.1"), onlink=True))
    default = Route(
        DEFAULT_DESTINATION, tuple(hops), protocol=Protocol.DHCP, metric=100, source=draw(_preferred(sources))
    )
    routes = draw(st.lists(_routes(sources), min_size=2, max_size=8))
    fewest, most = draw(st.sampled_from(((0, 1), (1, 3), (1, 3), (2, 4))))
    rules = draw(st.lists(_rules(sources), min_size=fewest, max_size=most))
    preferences = draw(st.lists(st.integers(1, 99), min_size=len(rules), max_size=len(rules), unique=True))
    placed = (attrs.evolve(rule, preference=at) for rule, at in zip(rules, preferences, strict=True))
    cidrs = st.sampled_from(("172.16.0.0/22", "172.16.0.0/22", "172.16.0.0/23", "172.16.1.0/25", "172.16.0.0/16"))
    patterns = st.sampled_from((None,) * 6 + (("eth[0]",), ("ib0", "eth1"), ("*0",)))
    expected = st.builds(ExpectedCidr, cidrs.map(IPv4Network), patterns)
    return Question(
        World(addresses, (default, *routes), tuple(placed)),
        tuple(draw(st.lists(expected, min_size=1, max_size=2, unique=True))),
        draw(st.sampled_from(((),) * 5 + (("ib0",),))),
    )


# --- addresses of all scopes, added by ip(8) -----------------------------------------------------------------------

DEVICES = ("eth0", "eth1", "ib0")
_SCOPES = ("",) * 6 + (" scope link", " scope host", " scope 100", " scope 220")


@st.composite
def _address_commands(draw: st.DrawFn) -> str:
    dev = draw(st.sampled_from((*DEVICES, *DEVICES, "lo")))
    local = f"10.{draw(st.integers(1, 3))}.{draw(st.integers(0, 1))}.{draw(st.sampled_from((1, 2, 3, 129)))}"
    peer = f" peer 10.4.0.{draw(st.sampled_from((1, 2, 129)))}" if draw(st.integers(0, 5)) == 0 else ""
    length = draw(st.sampled_from((24, 24, 24, 25, 25, 16, 31, 32)))
    return f"address add {local}{peer}/{length} dev {dev}{draw(st.sampled_from(_SCOPES))}"


@st.composite
def _hop_words(draw: st.DrawFn) -> str:
    gateway = draw(
        st.sampled_from(
            (
                "",
                "",
                "via inet6 fe80::9 ",
                *(f"via 10.{net}.{host} " for net in ("1.0", "2.0", "3.1", "4.0") for host in (1, 9, 200)),
            )
        )
    )
    onlink = " onlink" if "via" in gateway and draw(st.booleans()) else ""
    return f"{gateway}dev {draw(st.sampled_from(DEVICES))}{onlink}"


@st.composite
def _route_commands(draw: st.DrawFn) -> str:
    """Draw an ip(8) route command for one of nine destinations, including the default route."""
    place = draw(st.integers(0, 8))
    start = f"route add {'default' if place == 8 else f'192.0.2.{16 * place}/28'}"
    if draw(st.integers(0, 3)) == 0:
        start += f" src 10.{draw(st.integers(1, 3))}.{draw(st.integers(0, 1))}.{draw(st.sampled_from((1, 2, 3)))}"
    if draw(st.integers(0, 3)) == 0:
        start += f" scope {draw(st.sampled_from(('global', 'global', 'link', 'host', '100', '200')))}"
    hops = draw(st.lists(_hop_words(), min_size=1, max_size=2 if draw(st.integers(0, 4)) == 0 else 1))
    return f"{start} {hops[0]}" if len(hops) == 1 else f"{start} nexthop {' nexthop '.join(hops)}"


@st.composite
def hosts_with_scopes(draw: st.DrawFn) -> list[str]:
    """Draw ip(8) commands, some of which fail."""
    addresses = draw(st.lists(_address_commands(), max_size=8))
    routes = draw(st.lists(_route_commands(), min_size=4, max_size=14))
    # The kernel also uses addresses of interfaces that are down.
    down = [f"link set {dev} down" for dev in draw(st.sampled_from(((), (), (), *((dev,) for dev in DEVICES))))]
    gone = draw(st.sampled_from(((),) * 3 + (addresses[:1], addresses[1:2])))
    return [*addresses, *down, *routes, *(line.replace(" add ", " del ") for line in gone)]
