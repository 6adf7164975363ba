"""Tests of the model of a host before and after changes; test_diff_random.py and test_plans.py
compare it with Linux.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

from backends import RecordingBackend
from scenario import play, route

from hostrouting.kernel.memory import FakeKernel
from hostrouting.kernel.model import Model, model_of
from hostrouting.kernel.port import RouteBackend, Write, read_routes
from hostrouting.kernel.taking_snapshots import take_snapshot
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.routes import Table
from hostrouting.model.rules import Rule

INSIDE, OUTSIDE, ELSEWHERE = map(IPv4Address, ("172.16.1.9", "172.16.2.9", "8.8.8.8"))
NODE = """
    link add eth0
    addr add 10.1.0.4/24 dev eth0
    link add ib0
    addr add 172.16.0.4/16 dev ib0
    route add default via 10.1.0.1 dev eth0
    route add default via 172.16.0.1 dev ib0 table 100
"""
ADDED = route("172.16.1.0/24 via 10.1.0.1 dev eth0")
RULE = Rule(100, table=100, destination=IPv4Network("8.0.0.0/8"))
EVERYTHING_BY_MAIN = Rule(100, table=Table.MAIN)


def node() -> FakeKernel:
    kernel = FakeKernel()
    play(kernel, NODE)
    return kernel


def model(kernel: FakeKernel, beneath: RouteBackend | None = None) -> Model:
    return model_of(take_snapshot(kernel).known(Family.IPV4), beneath)


def devs(backend: RouteBackend, *addresses: IpAddress) -> list[tuple[str, ...]]:
    return [found.route.devs if found.route else () for found in backend.lookup(addresses)]


def test_an_added_route_wins_and_one_taken_away_does_not() -> None:
    kernel = node()
    assert devs(model(kernel), INSIDE, OUTSIDE, ELSEWHERE) == [("ib0",), ("ib0",), ("eth0",)]
    after = model(kernel).with_routes([ADDED])
    assert devs(after, INSIDE, OUTSIDE, ELSEWHERE) == [("eth0",), ("ib0",), ("eth0",)]
    assert devs(after.without([ADDED]), INSIDE) == [("ib0",)]
    assert kernel.write(Write.ADD, [ADDED]) == ()
    assert {*read_routes(after)} == {*read_routes(kernel)}


def test_an_added_rule_decides_and_separates_the_tables() -> None:
    kernel = node()
    after = model(kernel).with_rules([RULE, *kernel.facts().rules])
    assert after.known.is_merged is False
    assert devs(after, ELSEWHERE) == [("ib0",)]
    kernel.add_rule(RULE)
    assert devs(kernel, ELSEWHERE) == [("ib0",)]


def test_routes_that_a_kernel_would_refuse_are_told() -> None:
    far = route("172.16.1.0/24 via 10.99.0.1 dev eth0")
    after = model(node()).with_routes([ADDED, far])
    assert [failure.route for failure in after.refused()] == [far]


def test_a_route_that_takes_a_gateway_away_makes_the_kernel_refuse_the_next() -> None:
    kernel = node()
    routes = [
        route(words)
        for words in (
            "172.16.1.0/24 via 10.1.0.9 dev eth0",
            "blackhole 10.1.0.8/29 scope link",
            "172.16.2.0/24 via 10.1.0.9 dev eth0",
            "172.16.3.0/24 via 10.1.0.1 dev eth0",
        )
    ]
    refused = [failure.route for failure in model(kernel).with_routes(routes).refused()]
    assert refused == [failure.route for failure in kernel.write(Write.REPLACE, routes)]
    assert refused == [routes[2]]


def test_the_kernel_beneath_answers_where_nothing_has_changed() -> None:
    kernel = node()
    other = FakeKernel()
    play(other, NODE.partition("addr add 172")[0])
    play(other, "route add default via 10.1.0.1 dev eth0")
    after = model(kernel, RecordingBackend(other)).with_routes([ADDED])
    # The other kernel, which stands for the live one, leads everything through eth0.
    assert devs(after, INSIDE, OUTSIDE) == [("eth0",), ("eth0",)]
    assert devs(after.without([ADDED]), INSIDE, OUTSIDE) == [("ib0",), ("eth0",)]
    rules = kernel.facts().rules
    assert devs(after.with_rules(rules), INSIDE, OUTSIDE) == [("eth0",), ("eth0",)]
    assert devs(after.with_rules([*rules, EVERYTHING_BY_MAIN]), INSIDE, OUTSIDE) == [
        ("eth0",),
        ("ib0",),
    ]


def test_the_kernel_beneath_is_listened_to() -> None:
    kernel = node()
    with model(kernel, kernel).changes() as beneath, model(kernel).changes() as alone:
        kernel.add_rule(RULE)
        assert (beneath.happened(), alone.happened()) == (True, False)
