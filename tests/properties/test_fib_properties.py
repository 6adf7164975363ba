"""Tests that lookups in a dump of tables and rules give the same results as the kernel."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING

import attrs
from hypothesis import given
from hypothesis import strategies as st
from worlds import World

from hostrouting.kernel.fib import Fib
from hostrouting.kernel.memory import FakeKernel
from hostrouting.model.routes import NextHop, Route
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.testing.strategies import DESTINATIONS, DEVICES, NewAddress, new_addresses, policy_rules, routes

if TYPE_CHECKING:
    from hostrouting.model.routes import Lookup


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
