"""Hypothesis strategies of routes, rules and addresses that meet each other often.

The pools are small and overlap on purpose: a subnet, its halves and its neighbour; gateways inside, outside, own
and broadcast; prefixes as long as an address. Nothing is drawn that ``FakeKernel`` doesn't model.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address
from typing import Any

import attrs
from hypothesis import strategies as st

from hostrouting.model.routes import NextHop, Route, RouteType, Scope, Table
from hostrouting.model.rules import Rule, RuleAction

__all__ = [
    "DESTINATIONS",
    "DEVICES",
    "NewAddress",
    "new_addresses",
    "next_hops",
    "policy_rules",
    "routes",
    "variants",
]

DEVICES = ("v0", "v1", "v2")
"""The links that are added and deleted."""

_MISSING = "nowhere0"

_ANY = IPv4Address(0)

DESTINATIONS = (
    _ANY,
    *map(
        IPv4Address,
        (
            *("0.0.0.5", "10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.5", "10.0.0.127"),
            *("10.0.0.129", "10.0.0.255", "10.0.1.1", "10.0.1.255", "10.0.9.1", "10.1.0.1", "11.0.0.1"),
            *("127.0.0.1", "127.5.0.1", "192.0.2.1", "224.0.0.1", "255.255.255.255"),
        ),
    ),
)
"""Addresses worth looking up: one at least in each range that the pools cut the address space into."""

_PREFIXES = tuple(
    map(
        IPv4Network,
        (
            *("0.0.0.0/0", "0.0.0.0/1", "0.0.0.0/8", "10.0.0.0/8", "10.0.0.0/16", "10.0.0.0/24", "10.0.0.0/25"),
            *("10.0.0.128/25", "10.0.0.0/31", "10.0.0.1/32", "10.0.0.5/32", "10.0.0.255/32", "10.0.1.0/24"),
            *("10.0.9.0/24", "10.0.9.1/32", "127.0.0.1/32", "127.5.0.0/16", "192.0.2.0/24"),
        ),
    )
)

_GATEWAYS = tuple(
    map(
        IPv4Address,
        (
            *("10.0.0.1", "10.0.0.2", "10.0.0.5", "10.0.0.129", "10.0.0.255", "10.0.1.7", "10.0.9.1"),
            *("10.1.0.1", "192.0.2.1"),
        ),
    )
)
_ODD_GATEWAYS: tuple[IPv4Address | IPv6Address, ...] = (
    _ANY,
    *map(IPv4Address, ("127.0.0.1", "224.0.0.5", "255.255.255.255")),
    *map(IPv6Address, ("fe80::1", "fe80::2", "2001:db8::1", "ff02::1")),
)

_TABLES = (Table.MAIN, Table.MAIN, Table.MAIN, 100, 100, Table.DEFAULT, 300, 356, Table.LOCAL)
_DISCARDING = (RouteType.BLACKHOLE, RouteType.UNREACHABLE, RouteType.PROHIBIT, RouteType.THROW)

_devices = st.sampled_from((*DEVICES, *DEVICES, *DEVICES, "lo", _MISSING))


@attrs.frozen
class NewAddress:
    """The arguments of ``Kernel.add_address`` behind the device."""

    address: str
    peer: str | None = None
    metric: int = 0
    prefix_route: bool = True


def new_addresses() -> st.SearchStrategy[NewAddress]:
    """Addresses of a few subnets that overlap: secondaries, /31, /32, ends of the subnet, peers."""
    return st.builds(
        NewAddress,
        address=st.sampled_from(
            (
                *("10.0.0.1/24", "10.0.0.2/24", "10.0.0.2/24", "10.0.0.3/24", "10.0.0.1/25", "10.0.0.129/25"),
                *("10.0.0.2/31", "10.0.0.3/31", "10.0.0.1/32", "10.0.0.9/32", "10.0.1.1/24", "10.0.0.1/16"),
                *("10.0.0.0/24", "10.0.0.255/24", "10.0.1.1/30", "192.0.2.1/24", "10.0.1.2/24"),
            )
        ),
        peer=st.sampled_from((None,) * 6 + ("10.0.9.1", "10.0.0.5", "10.0.0.1")),
        metric=st.sampled_from((0, 0, 0, 5, 100)),
        prefix_route=st.sampled_from((True, True, True, False)),
    )


@st.composite
def next_hops(draw: st.DrawFn, *, weighted: bool = False) -> NextHop:
    """A hop by gateway, device or both.

    Args:
        draw: by Hypothesis.
        weighted: whether it is one of several.
    """
    gateway: IPv4Address | IPv6Address | None = None
    dev: str | None = None
    kind = draw(st.sampled_from(("dev", "gateway", "both", "both", "onlink", "odd")))
    if kind in ("gateway", "both", "onlink"):
        gateway = draw(st.sampled_from(_GATEWAYS))
    elif kind == "odd":
        gateway = draw(st.one_of(st.none(), st.sampled_from(_ODD_GATEWAYS)))
    if kind in ("dev", "both", "onlink"):
        dev = draw(_devices)
    elif kind == "odd":
        dev = draw(st.sampled_from((None, *DEVICES, "lo")))
    onlink = kind == "onlink" or (kind == "odd" and draw(st.booleans()))
    weight = draw(st.sampled_from((1, 1, 2, 256))) if weighted else 1
    return NextHop(dev, gateway, onlink, weight)


def _hops(kind: RouteType) -> st.SearchStrategy[tuple[NextHop, ...]]:
    if kind in _DISCARDING:
        return st.sampled_from(((), (), (), (), (NextHop("v0"),)))
    one = next_hops().map(lambda hop: (hop,))
    several = st.lists(next_hops(weighted=True), min_size=2, max_size=3).map(tuple)
    return st.one_of(one, one, one, several, st.just(())) if kind is RouteType.UNICAST else one


_types = st.sampled_from(
    (*(RouteType.UNICAST,) * 6, *_DISCARDING, RouteType.LOCAL, RouteType.BROADCAST, RouteType.ANYCAST)
)
_tables = st.sampled_from(_TABLES)
_prefixes = st.sampled_from(_PREFIXES)
_metrics = st.sampled_from((0, 0, 0, 0, 10, 100, 2**32 - 1))

# Hops that the kernel takes where v0 has 10.0.0.0/24 and v1 has 10.0.1.0/24.
_plain_hops = st.sampled_from(
    (
        *(NextHop(dev) for dev in DEVICES),
        *(NextHop(None, IPv4Address(gateway)) for gateway in ("10.0.0.5", "10.0.1.7", "10.0.9.1")),
        *(NextHop("v0", IPv4Address(gateway)) for gateway in ("10.0.0.1", "10.0.0.2", "10.0.0.5")),
        NextHop("v1", IPv4Address("10.0.1.7")),
        NextHop("v2", IPv4Address("192.0.2.1"), onlink=True),
        NextHop("v1", IPv6Address("fe80::1")),
    )
)
_plain_ways = st.one_of(
    _plain_hops.map(lambda hop: (hop,)),
    _plain_hops.map(lambda hop: (hop,)),
    st.lists(_plain_hops, min_size=2, max_size=3).map(tuple),
)


def routes() -> st.SearchStrategy[Route]:
    """A route to add, replace or delete; a third of them are odd: refused mostly, or taken for a strange reason."""
    return st.one_of(_plain_routes(), _plain_routes(), _odd_routes())


@st.composite
def _plain_routes(draw: st.DrawFn) -> Route:
    kind = draw(st.sampled_from((*(RouteType.UNICAST,) * 5, *_DISCARDING)))
    return Route(
        destination=draw(_prefixes),
        hops=() if kind in _DISCARDING else draw(_plain_ways),
        type=kind,
        table=draw(_tables),
        metric=draw(_metrics),
        source=draw(st.sampled_from((None, None, None, IPv4Address("10.0.0.1"), IPv4Address("10.0.0.2")))),
    )


@st.composite
def _odd_routes(draw: st.DrawFn) -> Route:
    kind = draw(_types)
    scopes = (None, None, None, Scope.UNIVERSE, Scope.LINK, Scope.LINK, Scope.HOST, Scope.NOWHERE, Scope.SITE)
    route = Route(
        destination=draw(_prefixes),
        hops=draw(_hops(kind)),
        type=kind,
        table=draw(_tables),
        protocol=draw(st.sampled_from((217, 217, 217, 4, 2))),
        metric=draw(_metrics),
        tos=draw(st.sampled_from((0, 0, 0, 0, 0, 0x10, 0x08, 0x03))),
        source=draw(
            st.sampled_from((None,) * 6 + tuple(map(IPv4Address, ("10.0.0.1", "10.0.0.2", "10.0.1.1", "127.0.0.1"))))
        ),
        mtu=draw(st.sampled_from((None, None, None, None, None, 0, 1400, 70000))),
    )
    scope = draw(st.sampled_from(scopes))
    return route if scope is None else attrs.evolve(route, scope=scope)


_RESPECTS = ("destination", "hops", "type", "table", "protocol", "scope", "metric", "tos", "source", "mtu")


@st.composite
def variants(draw: st.DrawFn, originals: st.SearchStrategy[Route]) -> Route:
    """A route that differs from another in one or two respects, which it has from a third.

    Args:
        draw: by Hypothesis.
        originals: the other.
    """
    changes = draw(st.lists(st.sampled_from(_RESPECTS), min_size=1, max_size=2, unique=True))
    donor = draw(routes())
    return attrs.evolve(draw(originals), **{respect: getattr(donor, respect) for respect in changes})


@st.composite
def policy_rules(draw: st.DrawFn) -> Rule:
    """A policy rule of any action; about half of them select this host's unmarked packets."""
    action = draw(st.sampled_from((*(RuleAction.TO_TABLE,) * 5, *RuleAction)))
    rule = Rule(
        preference=draw(st.sampled_from((0, 10, 20, 20, 30, 32766, 40000))),
        action=action,
        table=draw(st.sampled_from((100, 100, 300, *Table))) if action is RuleAction.TO_TABLE else Table.MAIN,
        goto=draw(st.sampled_from((20, 30, 32766, 50000))) if action is RuleAction.GOTO else None,
        suppress_prefix_length=draw(st.sampled_from((None, None, 0, 16, 24))),
        is_inverted=draw(st.sampled_from((False, False, False, True))),
    )
    selectors: dict[str, Any] = dict(draw(st.lists(st.sampled_from(_SELECTORS), max_size=2)))
    return attrs.evolve(rule, **selectors)


_SELECTORS: tuple[tuple[str, object], ...] = (
    ("source", IPv4Network("10.0.0.0/24")),
    ("source", IPv4Network("0.0.0.0/8")),
    ("destination", IPv4Network("10.0.0.0/24")),
    ("destination", IPv4Network("10.0.0.0/16")),
    ("destination", IPv4Network("0.0.0.0/0")),
    ("mark", 0),
    ("mark", 5),
    ("mark_mask", 0),
    ("mark_mask", 2),
    ("tos", 0x10),
    ("tos", 0xE0),
    ("uid_range", (0, 0)),
    ("uid_range", (1000, 2000)),
    ("uid_range", (2000, 1000)),
    ("iif", "lo"),
    ("iif", "v0"),
    ("oif", "v0"),
    ("ip_protocol", 17),
    ("ip_protocol", 6),
    ("has_ports", True),
    ("suppress_group", 0),
    ("suppress_group", 7),
    ("protocol", 2),
)
