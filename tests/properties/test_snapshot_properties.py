"""Tests that any kernel state survives being written to a document and read back."""

from __future__ import annotations

import json
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hostrouting.kernel.snapshot import Snapshot
from hostrouting.model.errors import ConfigError
from hostrouting.model.links import Address, Link
from hostrouting.model.routes import NextHop, Route, RouteType, Table
from hostrouting.model.rules import Rule, RuleAction

uint32s = st.integers(0, 2**32 - 1)
bytes_ = st.integers(0, 255)
ipv4 = st.integers(0, 2**32 - 1).map(IPv4Address)
ipv6 = st.integers(0, 2**128 - 1).map(IPv6Address)
networks = st.builds(lambda address, length: IPv4Network((address, length), strict=False), ipv4, st.integers(0, 32))
# In interface names, the kernel accepts any bytes except NUL, /, : and whitespace; os.fsdecode decodes them like this.
names = (
    st.binary(min_size=1, max_size=15)
    .filter(lambda raw: raw.split() == [raw] and not {*b"\0/:"} & {*raw} and raw not in (b".", b".."))
    .map(lambda raw: raw.decode("utf-8", "surrogateescape"))
)

links = st.builds(
    Link,
    index=st.integers(1, 2**31 - 1),
    name=names,
    is_up=st.booleans(),
    has_carrier=st.booleans(),
    kind=st.none() | st.sampled_from(("veth", "bond", "vrf")),
    hardware=st.integers(0, 0xFFFF),
    master=st.none() | names,
)
addresses = st.builds(
    Address,
    dev=st.sampled_from(("eth0", "ib0")) | names,
    local=ipv4,
    prefix_length=st.integers(0, 32),
    peer=st.none() | ipv4,
    metric=uint32s,
    is_secondary=st.booleans(),
    has_prefix_route=st.booleans(),
)
hops = st.builds(
    NextHop,
    dev=st.none() | names,
    gateway=st.none() | ipv4 | ipv6,
    onlink=st.booleans(),
    weight=st.just(1) | st.integers(1, 256),
    is_dead=st.booleans(),
    is_linkdown=st.booleans(),
    encap=st.sampled_from(("", "", "seg6")),
)


@st.composite
def routes(draw: st.DrawFn) -> Route:
    kind = draw(st.sampled_from(RouteType))
    few = st.lists(hops, max_size=3).map(tuple)
    return Route(
        destination=draw(networks),
        hops=draw(few) if kind < RouteType.BLACKHOLE else (),
        type=kind,
        table=draw(st.sampled_from(Table) | st.integers(1, 2**32 - 1)),
        protocol=draw(bytes_),
        scope=draw(bytes_),
        metric=draw(uint32s),
        tos=draw(bytes_),
        source=draw(st.none() | ipv4),
        mtu=draw(st.none() | uint32s),
        nexthop_id=draw(st.none() | uint32s),
    )


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    action = draw(st.sampled_from(RuleAction))
    is_l3mdev = draw(st.booleans())
    mark = draw(st.none() | uint32s)
    has_table = action is RuleAction.TO_TABLE and not is_l3mdev
    return Rule(
        preference=draw(uint32s),
        action=action,
        table=draw(st.integers(1, 2**32 - 1)) if has_table else Table.MAIN,
        goto=draw(st.none() | uint32s) if action is RuleAction.GOTO else None,
        source=draw(st.none() | networks),
        destination=draw(st.none() | networks),
        tos=draw(bytes_),
        mark=mark,
        mark_mask=0xFFFFFFFF if mark is None else draw(uint32s),
        iif=draw(st.none() | names),
        oif=draw(st.none() | names),
        uid_range=draw(st.none() | st.tuples(uint32s, uint32s)),
        ip_protocol=draw(bytes_),
        has_ports=draw(st.booleans()),
        tun_id=draw(st.sampled_from((0, 0, 1, 2**64 - 1))),
        suppress_prefix_length=draw(st.none() | uint32s),
        suppress_group=draw(st.none() | uint32s),
        is_inverted=draw(st.booleans()),
        is_l3mdev=is_l3mdev,
        protocol=draw(bytes_),
    )


def tuples(items: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, max_size=4).map(tuple)


snapshots = st.builds(
    Snapshot,
    links=tuples(links),
    addresses=tuples(addresses),
    rules=tuples(rules()),
    routes=tuples(routes()),
    nameservers=tuples(ipv4),
    host=st.none() | st.text().filter(lambda name: len(name.splitlines()) < 2),
    time=st.none() | st.text(),
    kernel=st.none() | st.text(),
)


@given(snapshots)
def test_a_snapshot_survives_a_round_trip_through_text(snapshot: Snapshot) -> None:
    assert Snapshot.from_document(json.loads(snapshot.to_text())) == snapshot
    assert Snapshot.from_document(snapshot.to_document()) == snapshot


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.just("10.0.0.1"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def broken(draw: st.DrawFn) -> object:
    """Draw a valid document in which one value is replaced by an arbitrary one."""
    document = draw(snapshots).to_document()
    place: Any = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = draw(st.sampled_from(keys))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or draw(st.booleans()):
            place[key] = draw(anything)
            return document
        place = inner


@given(broken() | anything)
def test_any_document_is_a_snapshot_or_one_config_error(document: object) -> None:
    try:
        Snapshot.from_document(document)
    except ConfigError as error:
        assert all(message and "\n" not in message for _, message in error.problems)
