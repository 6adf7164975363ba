"""Tests that tables and rules answer as the kernel does: for lookups, and for the routes that are proven by them."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import attrs
from hypothesis import event, example, given
from hypothesis import strategies as st
from node import add_nics
from worlds import World

from hostrouting.kernel.fib import Fib
from hostrouting.kernel.memory import FakeKernel
from hostrouting.model.routes import Lookup, NextHop, Protocol, Route, RouteType, Table
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.routes.verify import unproven
from hostrouting.testing.strategies import DESTINATIONS, DEVICES, NewAddress, new_addresses, policy_rules, routes

EMPTY = tuple(Rule(0, table=table) for table in range(1000, 1016))


def kernel(addresses: list[tuple[str, NewAddress]], entries: list[Route], rules: list[Rule]) -> FakeKernel:
    made = FakeKernel()
    World(tuple(addresses), tuple(entries), tuple(rules), links=DEVICES).build(made)
    return made


def substance(answer: Lookup) -> object:
    """Return the relevant fields of a lookup. The table is left out because local and main may share a trie."""
    route = answer.route
    return answer.errno if route is None else (route.destination, route.metric, route.tos, route.hops)


def test_a_snapshots_rule_that_points_back_makes_no_loop() -> None:
    """The kernel rejects such a rule, so it can only come from a document."""
    default = Route(IPv4Network("0.0.0.0/0"), (NextHop("eth0"),))
    rules = (Rule(5, action=RuleAction.NOP), Rule(10, action=RuleAction.GOTO, goto=5), Rule(20))
    assert Fib(rules, (default,)).lookup(IPv4Address("10.0.0.1")).route == default
    rules = (rules[0], attrs.evolve(rules[1], goto=10), rules[2])
    assert Fib(rules, (default,)).lookup(IPv4Address("10.0.0.1")).route == default


worlds = st.builds(
    kernel,
    st.lists(st.tuples(st.sampled_from(DEVICES), new_addresses()), max_size=3),
    st.lists(routes(), max_size=10),
    st.lists(policy_rules(), max_size=4),
)


@given(worlds)
def test_a_dump_is_enough_for_the_kernels_answers(made: FakeKernel) -> None:
    fib = Fib(made.rules(), made.routes(), made.addresses())
    # With this many rules, a lookup tries only some of them.
    with_more = attrs.evolve(fib, rules=(*EMPTY, *fib.rules))
    for answer in made.lookup(DESTINATIONS):
        assert fib.lookup(answer.address) == with_more.lookup(answer.address) == answer


@given(worlds, st.lists(routes(), max_size=3))
def test_planned_routes_are_predicted_as_the_kernel_uses_them(made: FakeKernel, more: list[Route]) -> None:
    before = made.routes()
    failures = made.add(more)
    added = [route for route in made.routes() if route not in before]
    assert len(added) <= len(more) - len(failures)
    fib = Fib(made.rules(), before).with_routes(added)
    assert substance(fib.lookup(IPv4Address("11.0.0.1"))) == substance(made.lookup([IPv4Address("11.0.0.1")])[0])


# --- routes that win according to the tables ---------------------------------------------------------------------------


PREFIXES = [
    "172.16.0.0/16", "172.16.0.0/17", "172.16.128.0/17", "172.16.1.0/24", "172.16.1.0/32", "172.16.0.10/32",
    "172.16.0.0/32", "10.1.0.0/25", "0.0.0.0/0", "0.0.0.0/1", "127.0.0.0/8", "127.1.0.0/16",
]  # fmt: skip
DEVS = ["eth0", "eth1", "ib0"]

hops = st.builds(NextHop, st.sampled_from(DEVS))
any_route = st.builds(
    lambda prefix, hops, type_, **more: Route(
        IPv4Network(prefix), () if type_.is_discard else tuple(hops), type=type_, **more
    ),
    st.sampled_from(PREFIXES),
    st.lists(hops, min_size=1, max_size=2),
    st.sampled_from([RouteType.UNICAST, RouteType.UNICAST, RouteType.UNICAST, RouteType.BLACKHOLE, RouteType.LOCAL]),
    metric=st.sampled_from([0, 0, 5]),
    tos=st.sampled_from([0, 0, 0, 16]),
    table=st.sampled_from([Table.MAIN, Table.MAIN, Table.MAIN, Table.LOCAL, 100]),
)
any_rule = st.builds(
    Rule,
    st.sampled_from([100, 40000]),
    table=st.just(100),
    destination=st.sampled_from([None, IPv4Network("172.16.1.0/24")]),
)
cables = st.sets(st.sampled_from(DEVS), max_size=1)


def wins(kernel: FakeKernel, route: Route, address: IPv4Address) -> bool:
    winner = kernel.lookup((address,))[0].route
    return winner is not None and winner.key == route.key and winner.has_same_next_hops(route)


@given(st.lists(any_route, max_size=8), st.lists(any_rule, max_size=1), cables, cables)
@example([Route(IPv4Network("172.16.0.0/16"), (NextHop("ib0"),))], [], set(), set())
def test_the_kernel_confirms_the_winning_routes(
    table: list[Route], own_rules: list[Rule], unplugged: set[str], down: set[str]
) -> None:
    kernel = FakeKernel()
    add_nics(kernel, eth0="10.1.0.4/24", eth1="10.2.0.4/24")
    kernel.add_link("ib0")
    kernel.add(table)
    for rule in own_rules:
        kernel.add_rule(rule)
    for dev in unplugged:
        kernel.set_link(dev, carrier=False)
    for dev in down:
        kernel.set_link(dev, up=False)
    main, local = kernel.routes(Table.MAIN), kernel.routes(Table.LOCAL)
    by_way = kernel.routes_by_attributes(Table.MAIN)
    left = unproven(main, rules=kernel.rules(), main=by_way, local=local)
    asked = {route for route, _ in left}
    event(f"{len(main) - len(asked)} proven")
    if own_rules:
        assert asked == set(main)
    # Without the rules, every route needs a lookup. The address to look up is the one covered by the proof.
    addresses = dict(unproven(main, rules=(), main=by_way, local=local))
    for route in main:
        if route not in asked:
            address = addresses[route]
            assert isinstance(address, IPv4Address)
            assert wins(kernel, route, address), (str(route), address)


def test_plain_routes_need_no_lookup() -> None:
    kernel = FakeKernel()
    add_nics(kernel, eth0="10.1.0.4/24")
    hop = (NextHop("eth0", IPv4Address("10.1.0.1")),)
    wanted = [Route(IPv4Network(f"172.16.{third}.0/24"), hop) for third in range(8)]
    wanted += [Route(IPv4Network("172.16.0.0/16"), hop), Route(IPv4Network("172.16.1.0/32"), hop)]
    assert kernel.add([Route(IPv4Network("0.0.0.0/0"), hop, protocol=Protocol.DHCP), *wanted]) == ()
    tables = {
        "rules": kernel.rules(),
        "main": kernel.routes_by_attributes(Table.MAIN),
        "local": kernel.routes(Table.LOCAL),
    }
    assert unproven(wanted, **tables) == []  # type: ignore[arg-type]
