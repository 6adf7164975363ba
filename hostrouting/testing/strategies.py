"""Hypothesis strategies for routes, rules and addresses that are likely to interact.

Values are drawn from small pools whose prefixes overlap: a subnet, its halves, the adjacent subnet,
and some /32s. Gateways are inside or outside of the subnet, and some are local or broadcast
addresses. Only what ``FakeKernel`` models is drawn.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address
from typing import Any

import attrs
from hypothesis import strategies as st

from hostrouting.model.routes import (
    SIDE_TABLES,
    NextHop,
    Protocol,
    Route,
    RouteType,
    Scope,
    Table,
)
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.model.values import frozen

__all__ = [
    "NewAddress",
    "new_addresses",
    "our_rules",
    "policy_rules",
    "routes",
    "rule_variants",
    "variants",
]

DEVICES = ("v0", "v1", "v2")
"""The links to add and delete."""


def mac_of(dev: str) -> str:
    """Return the MAC address that one of ``DEVICES`` has in the tests."""
    return f"02:00:00:00:00:{DEVICES.index(dev):02x}"


_ANY = IPv4Address(0)

DESTINATIONS = (
    _ANY,
    *map(
        IPv4Address,
        (
            *("0.0.0.5", "10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.5", "10.0.0.127"),
            *(
                "10.0.0.129",
                "10.0.0.255",
                "10.0.1.1",
                "10.0.1.255",
                "10.0.9.1",
                "10.1.0.1",
                "11.0.0.1",
            ),
            *("127.0.0.1", "127.5.0.1", "192.0.2.1", "224.0.0.1", "255.255.255.255"),
        ),
    ),
)
"""Addresses to look up, at least one in each range between the pools' prefixes."""

_prefixes = st.sampled_from(
    (
        *(
            "0.0.0.0/0",
            "0.0.0.0/1",
            "0.0.0.0/8",
            "10.0.0.0/8",
            "10.0.0.0/16",
            "10.0.0.0/24",
            "10.0.0.0/25",
        ),
        *(
            "10.0.0.128/25",
            "10.0.0.0/31",
            "10.0.0.1/32",
            "10.0.0.5/32",
            "10.0.0.255/32",
            "10.0.1.0/24",
        ),
        *("10.0.9.0/24", "10.0.9.1/32", "127.0.0.1/32", "127.5.0.0/16", "192.0.2.0/24"),
    )
).map(IPv4Network)
_GATEWAYS = (
    *("10.0.0.1", "10.0.0.2", "10.0.0.5", "10.0.0.129", "10.0.0.255", "10.0.1.7", "10.0.9.1"),
    *("10.1.0.1", "192.0.2.1"),
)
_ODD_GATEWAYS = (f"{_ANY}", "127.0.0.1", "224.0.0.5", "255.255.255.255")

SIDE_TABLE = SIDE_TABLES[0]
"""The table of a kept interface."""

_TABLES = (
    *(Table.MAIN, Table.MAIN, Table.MAIN, Table.DEFAULT, Table.LOCAL),
    *(100, 100, 300, 356, SIDE_TABLE),
)
_DISCARDING = (RouteType.BLACKHOLE, RouteType.UNREACHABLE, RouteType.PROHIBIT, RouteType.THROW)


@frozen
class NewAddress:
    """Arguments for ``Kernel.add_address``, except for the device."""

    address: str
    peer: str | None = None
    metric: int = 0
    prefix_route: bool = True


def new_addresses() -> st.SearchStrategy[NewAddress]:
    """Draw addresses in a few overlapping subnets. Some are secondary, or have a peer."""
    return st.builds(
        NewAddress,
        address=st.sampled_from(
            (
                *(
                    "10.0.0.1/24",
                    "10.0.0.2/24",
                    "10.0.0.2/24",
                    "10.0.0.3/24",
                    "10.0.0.1/25",
                    "10.0.0.129/25",
                ),
                *(
                    "10.0.0.2/31",
                    "10.0.0.3/31",
                    "10.0.0.1/32",
                    "10.0.0.9/32",
                    "10.0.1.1/24",
                    "10.0.0.1/16",
                ),
                *("10.0.0.0/24", "10.0.0.255/24", "10.0.1.1/30", "192.0.2.1/24", "10.0.1.2/24"),
                "0.0.0.0/24",
            )
        ),
        peer=st.sampled_from((None,) * 6 + ("10.0.9.1", "10.0.0.5", "10.0.0.1")),
        metric=st.sampled_from((0, 0, 0, 5, 100)),
        prefix_route=st.sampled_from((True, True, True, False)),
    )


# Hops that the kernel accepts if v0 is in 10.0.0.0/24 and v1 is in 10.0.1.0/24.
_plain_hops = st.sampled_from(
    (
        *(NextHop(dev) for dev in DEVICES),
        *(NextHop(None, IPv4Address(gateway)) for gateway in ("10.0.0.5", "10.0.1.7", "10.0.9.1")),
        *(NextHop("v0", IPv4Address(gateway)) for gateway in ("10.0.0.1", "10.0.0.2", "10.0.0.5")),
        NextHop("v1", IPv4Address("10.0.1.7")),
        NextHop("v2", IPv4Address("192.0.2.1"), onlink=True),
        *(NextHop("v1", IPv6Address(gateway)) for gateway in ("fe80::1", "fe80::2")),
    )
)
_odd_hops = st.builds(
    NextHop,
    dev=st.sampled_from((None, *DEVICES, *DEVICES, "lo", "nowhere0")),
    gateway=st.none() | st.sampled_from((*_GATEWAYS, *_GATEWAYS, *_ODD_GATEWAYS)).map(ip_address),
    onlink=st.sampled_from((False, False, True)),
    weight=st.sampled_from((1, 1, 2, 256)),
)


# The hops of a multipath route with two sources, and the same with different weights.
_TWO_SUBNETS = (NextHop("v0", IPv4Address("10.0.0.5")), NextHop("v1", IPv4Address("10.0.1.7")))
_WEIGHTED = (_TWO_SUBNETS[0], attrs.evolve(_TWO_SUBNETS[1], weight=3))


def _ways(hops: st.SearchStrategy[NextHop]) -> st.SearchStrategy[tuple[NextHop, ...]]:
    one = st.tuples(hops)
    return (
        one
        | st.sampled_from((_TWO_SUBNETS, _WEIGHTED))
        | st.lists(hops, min_size=2, max_size=3).map(tuple)
    )


_plain: dict[str, st.SearchStrategy[Any]] = {
    "destination": _prefixes,
    "table": st.sampled_from(_TABLES),
    "metric": st.sampled_from((0, 0, 0, 0, 10, 100, 2**32 - 1)),
    "source": st.sampled_from((None, None, None, IPv4Address("10.0.0.1"), IPv4Address("10.0.0.2"))),
}
_odd: dict[str, st.SearchStrategy[Any]] = {
    "hops": st.just(()) | _ways(_odd_hops) | _ways(_plain_hops),
    "type": st.sampled_from(
        (*_DISCARDING, RouteType.LOCAL, RouteType.BROADCAST, RouteType.ANYCAST)
    ),
    "protocol": st.sampled_from((4, 2)),
    "tos": st.sampled_from((0x10, 0x08)),
    "source": st.sampled_from((IPv4Address("10.0.1.1"), IPv4Address("127.0.0.1"))),
    "mtu": st.sampled_from((0, 1400)),
    "scope": st.sampled_from(
        (Scope.UNIVERSE, Scope.LINK, Scope.LINK, Scope.HOST, Scope.NOWHERE, Scope.SITE)
    ),
}


def routes() -> st.SearchStrategy[Route]:
    """Draw a route to add, replace or delete.

    A third of the routes are unusual: the kernel refuses most of them, or handles them in
    surprising ways.
    """
    plain = st.builds(Route, hops=_ways(_plain_hops), **_plain)
    discarding = st.builds(Route, type=st.sampled_from(_DISCARDING), **_plain)
    odd = st.builds(
        lambda usual, unusual: Route(**{"hops": (NextHop("v0"),), **usual, **unusual}),
        st.fixed_dictionaries(_plain),
        st.fixed_dictionaries({}, optional=_odd),
    )
    return plain | discarding | odd


# ``FakeKernel`` has no nexthop objects.
_RESPECTS = [field.name for field in attrs.fields(Route) if field.name != "nexthop_id"]


@st.composite
def variants(draw: st.DrawFn, originals: st.SearchStrategy[Route]) -> Route:
    """Draw a copy of a route that differs in at most two attributes.

    Args:
        draw: the function passed by Hypothesis.
        originals: the strategy for the route to copy.
    """
    changes = draw(
        st.lists(
            st.sampled_from(_RESPECTS),
            min_size=1,
            max_size=2,
            unique=True,
        )
    )
    donor = draw(routes())
    return attrs.evolve(
        draw(originals),
        **{respect: getattr(donor, respect) for respect in changes},
    )


_SELECTORS: dict[str, tuple[object, ...]] = {
    "source": tuple(map(IPv4Network, ("10.0.0.0/24", "0.0.0.0/8"))),
    "destination": tuple(map(IPv4Network, ("10.0.0.0/24", "10.0.0.0/16"))),
    "mark": (0, 5),
    "tos": (0x10,),
    "tun_id": (7,),
    "uid_range": ((0, 0), (1000, 2000)),
    "iif": ("lo", "v0"),
    "oif": ("v0",),
    "ip_protocol": (17, 6, 6, 6),  # a rule for TCP seldom has an effect
    "has_ports": (True,),
    "suppress_group": (0, 7),
    "protocol": (2, 0),
}
_selectors = st.sampled_from(
    [(name, value) for name, values in _SELECTORS.items() for value in values]
)
_TARGETS = (20, 30, 32766, 50000)


@st.composite
def policy_rules(draw: st.DrawFn) -> Rule:
    """Draw a valid policy rule with any action.

    About half of the rules match unmarked packets sent by this host.
    """
    action = draw(st.sampled_from((*(RuleAction.TO_TABLE,) * 5, *RuleAction)))
    selectors: dict[str, Any] = dict(draw(st.lists(_selectors, max_size=2)))
    if "mark" in selectors:
        selectors["mark_mask"] = draw(st.sampled_from((0xFFFFFFFF, 2)))
    preference = draw(st.sampled_from((0, 10, 20, 30, 40, 32766, 40000)))
    return Rule(
        preference=preference,
        action=action,
        table=draw(st.sampled_from((100, 100, 300, SIDE_TABLE, *Table)))
        if action is RuleAction.TO_TABLE
        else Table.MAIN,
        goto=draw(st.sampled_from([to for to in _TARGETS if to > preference]))
        if action is RuleAction.GOTO
        else None,
        suppress_prefix_length=draw(st.sampled_from((None, None, 0, 16, 24))),
        is_inverted=draw(st.sampled_from((False, False, False, True))),
        **selectors,
    )


_networks = st.sampled_from(
    (None, *map(IPv4Network, ("10.0.0.0/24", "10.0.0.0/16", "10.0.0.1/32", "10.0.0.2/32")))
)


def our_rules() -> st.SearchStrategy[Rule]:
    """Draw a rule like those that hostrouting adds. Most of these rules overlap."""
    return st.builds(
        Rule,
        preference=st.sampled_from((10, 2170, 2170, 2172)),
        table=st.sampled_from((100, SIDE_TABLE, SIDE_TABLE, Table.MAIN, Table.LOCAL)),
        source=_networks,
        destination=_networks,
        suppress_prefix_length=st.sampled_from((None, None, 0)),
        protocol=st.sampled_from((Protocol.HOSTROUTING,) * 3 + (Protocol.BOOT,)),
    )


_RESPECTS_OF_RULES = (
    *("preference", "source", "destination", "tos", "tun_id", "iif"),
    *("suppress_prefix_length", "is_inverted", "protocol"),
)


@st.composite
def rule_variants(draw: st.DrawFn, originals: st.SearchStrategy[Rule]) -> Rule:
    """Draw a copy of a rule that differs in at most two attributes.

    Args:
        draw: the function passed by Hypothesis.
        originals: the strategy for the rule to copy.
    """
    changes = draw(
        st.lists(
            st.sampled_from(_RESPECTS_OF_RULES),
            min_size=1,
            max_size=2,
            unique=True,
        )
    )
    donor = draw(policy_rules() | our_rules())
    return attrs.evolve(
        draw(originals),
        **{respect: getattr(donor, respect) for respect in changes},
    )
