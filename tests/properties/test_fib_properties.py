"""Tests that tables and rules answer as the kernel does: for lookups, and for the routes that are
proven by them.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import attrs
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from nightly import by_day
from node import add_nics
from worlds import World

from hostrouting.kernel.fib import Fib
from hostrouting.kernel.memory import FakeKernel
from hostrouting.kernel.port import Write, read_routes
from hostrouting.kernel.rules import KERNEL_RULES
from hostrouting.kernel.selection import Selection
from hostrouting.model.lookups import Lookup
from hostrouting.model.routes import NextHop, Protocol, Route, Scope, Table
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.routes.verify import unproven
from hostrouting.testing.strategies import (
    DESTINATIONS,
    DEVICES,
    new_addresses,
    policy_rules,
    routes,
)

EMPTY = tuple(Rule(0, table=table) for table in range(1000, 1016))


def kernels(*, max_rules: int) -> st.SearchStrategy[FakeKernel]:
    few = st.sampled_from(((), (), (), *((dev,) for dev in DEVICES)))
    return st.builds(
        World,
        st.lists(st.tuples(st.sampled_from(DEVICES), new_addresses()), max_size=3).map(tuple),
        st.lists(routes(), max_size=10).map(tuple),
        st.lists(policy_rules(), max_size=max_rules).map(tuple),
        down=few,
        unplugged=few,
        links=st.just(DEVICES),
    ).map(built)


def built(world: World) -> FakeKernel:
    made = FakeKernel()
    world.build(made)
    return made


def substance(answer: Lookup) -> object:
    """Return the relevant fields of a lookup.

    The table is left out because local and main may share a trie.
    """
    route = answer.route
    return (
        answer.errno if route is None else (route.destination, route.metric, route.tos, route.hops)
    )


def test_a_snapshots_rule_that_points_back_makes_no_loop() -> None:
    """The kernel rejects such a rule, so it can only come from a document."""
    default = Route(IPv4Network("0.0.0.0/0"), (NextHop("eth0"),))
    rules = (Rule(5, action=RuleAction.NOP), Rule(10, action=RuleAction.GOTO, goto=5), Rule(20))
    assert Fib(rules, (default,)).lookup(IPv4Address("10.0.0.1")).route == default
    rules = (rules[0], attrs.evolve(rules[1], goto=10), rules[2])
    assert Fib(rules, (default,)).lookup(IPv4Address("10.0.0.1")).route == default


@given(kernels(max_rules=4))
def test_a_dump_is_enough_for_the_kernels_answers(made: FakeKernel) -> None:
    fib = Fib(made.facts().rules, read_routes(made), made.facts().addresses)
    # With this many rules, a lookup tries only some of them.
    with_more = attrs.evolve(fib, rules=(*EMPTY, *fib.rules))
    for answer in made.lookup(DESTINATIONS):
        assert fib.lookup(answer.address) == with_more.lookup(answer.address) == answer


@given(kernels(max_rules=4), st.lists(routes(), max_size=3))
def test_planned_routes_are_predicted_as_the_kernel_uses_them(
    made: FakeKernel, more: list[Route]
) -> None:
    before = read_routes(made)
    failures = made.write(Write.ADD, more)
    added = [route for route in read_routes(made) if route not in before]
    assert len(added) <= len(more) - len(failures)
    fib = Fib(made.facts().rules, before).with_routes(added)
    assert substance(fib.lookup(IPv4Address("11.0.0.1"))) == substance(
        made.lookup([IPv4Address("11.0.0.1")])[0]
    )


# --- routes that win according to the tables ------------------------------------------------------


BY_V0 = Route(IPv4Network("172.16.0.0/16"), (NextHop("v0"),))


def wins(kernel: FakeKernel, route: Route, address: IPv4Address) -> bool:
    winner = kernel.lookup((address,))[0].route
    return winner is not None and winner.key == route.key and winner.has_same_next_hops(route)


@given(kernels(max_rules=1))
@settings(max_examples=by_day(40, by_night=5000))
@example(built(World((), (BY_V0,), links=DEVICES)))
@example(built(World((), (attrs.evolve(BY_V0, source=IPv4Address("127.0.0.1")),), links=DEVICES)))
def test_the_kernel_confirms_the_winning_routes(kernel: FakeKernel) -> None:
    # A run installs no routes of a narrower scope.
    main, local = (
        [each for each in read_routes(kernel, Table.MAIN) if each.scope <= Scope.LINK],
        read_routes(kernel, Table.LOCAL),
    )
    by_way = kernel.entries(Selection(Table.MAIN)).groups
    left = unproven(main, rules=kernel.facts().rules, main=by_way, local=local)
    asked = {route for route, _ in left}
    event(f"{len(main) - len(asked)} proven")
    if kernel.facts().rules != KERNEL_RULES:
        assert asked == set(main)
    # Without the rules, every route needs a lookup. The address to look up is the one covered by
    # the proof.
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
    assert (
        kernel.write(
            Write.ADD, [Route(IPv4Network("0.0.0.0/0"), hop, protocol=Protocol.DHCP), *wanted]
        )
        == ()
    )
    main = kernel.entries(Selection(Table.MAIN)).groups
    local = read_routes(kernel, Table.LOCAL)
    assert unproven(wanted, rules=kernel.facts().rules, main=main, local=local) == []
