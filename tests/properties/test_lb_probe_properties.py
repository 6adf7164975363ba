"""The probe's planner, whatever routes there are: nobody else's is touched, the right one wins, and twice is once."""

from __future__ import annotations

from ipaddress import IPv6Address

from hypothesis import example, given
from hypothesis import strategies as st

from hostrouting.azure.nodes import LoadBalancerProbeError
from hostrouting.azure.probe.plan import PinPlan, choose_device, judge_addresses, plan_pins
from hostrouting.azure.probe.port import NodeAddress, Pin
from hostrouting.azure.probe.ruleset import PROBE_SOURCE
from hostrouting.model.links import Link

DEVICES = ["eth0", "eth1", "azure0"]
OURS = 217

pins = st.builds(
    Pin,
    gateway=st.sampled_from([PROBE_SOURCE, PROBE_SOURCE, IPv6Address("fe80::1"), None]),
    dev=st.sampled_from(DEVICES),
    protocol=st.sampled_from([OURS, OURS, 4, 9]),
    metric=st.integers(1, 5) | st.just(1024),
)
tables = st.lists(pins, max_size=6, unique=True)
links = st.builds(
    Link,
    index=st.integers(1, 99),
    name=st.sampled_from(DEVICES),
    is_up=st.booleans(),
    kind=st.sampled_from([None, "bridge", "bond", "vrf"]),
    master=st.sampled_from([None, None, *DEVICES]),
)
addresses = st.builds(
    NodeAddress,
    dev=st.sampled_from(DEVICES),
    address=st.sampled_from([IPv6Address("fd00::4"), IPv6Address("2001:db8::4")]),
    is_global=st.booleans(),
    is_usable=st.booleans(),
)


def carried_out(plan: PinPlan, there: list[Pin]) -> list[Pin]:
    return [pin for pin in [*there, *plan.add] if pin not in plan.remove]


def leads_out(pin: Pin, dev: str) -> bool:
    return (pin.gateway, pin.dev) == (PROBE_SOURCE, dev)


@given(tables, st.sampled_from(DEVICES))
@example([Pin(PROBE_SOURCE, "eth1", OURS, 1)], "eth0")
@example([Pin(PROBE_SOURCE, "eth0", 4, 1), Pin(None, "eth0", 4, 1)], "eth0")
def test_the_route_that_wins_leads_the_answers_out_or_an_error_names_the_one_in_the_way(
    there: list[Pin], dev: str
) -> None:
    foreign = [pin for pin in there if pin.protocol != OURS]
    astray = [pin for pin in foreign if pin.metric == 1 and not leads_out(pin, dev)]
    try:
        plan = plan_pins(dev, there)
    except LoadBalancerProbeError as error:
        assert any(str(pin) in str(error) for pin in astray)
        return
    assert not astray
    after = carried_out(plan, there)
    assert {pin.metric for pin in after if leads_out(pin, dev)} >= {1}
    assert all(leads_out(pin, dev) for pin in after if pin.metric == 1)
    assert [pin for pin in after if pin.protocol != OURS] == foreign
    assert len([pin for pin in after if pin.protocol == OURS]) <= 1
    assert all(pin.protocol == OURS for pin in (*plan.add, *plan.remove))


@given(tables, st.sampled_from([*DEVICES, None]))
def test_a_second_plan_is_empty(there: list[Pin], dev: str | None) -> None:
    try:
        plan = plan_pins(dev, there)
    except LoadBalancerProbeError:
        return
    assert not plan_pins(dev, carried_out(plan, there)).changes


@given(tables)
def test_a_removal_takes_all_of_ours_and_nothing_else(there: list[Pin]) -> None:
    plan = plan_pins(None, there)
    assert plan.add == ()
    assert all(pin.protocol != OURS for pin in carried_out(plan, there))
    assert set(carried_out(plan, there)) == {pin for pin in there if pin.protocol != OURS}


@given(st.lists(st.sampled_from(DEVICES), min_size=1, unique=True), st.lists(links, unique_by=lambda link: link.name))
def test_the_device_is_the_first_that_is_no_port_and_missing_while_it_is_not_there_and_up(
    devices: list[str], there: list[Link]
) -> None:
    by_name = {link.name: link for link in there}

    def is_port(name: str) -> bool:
        master = by_name[name].master if name in by_name else None
        return master is not None and not (master in by_name and by_name[master].kind == "vrf")

    try:
        dev, missing = choose_device(devices, there)
    except LoadBalancerProbeError:
        assert all(map(is_port, devices))
        return
    assert dev == next(name for name in devices if not is_port(name))
    assert (missing is None) == (dev in by_name and by_name[dev].is_up)


@given(st.lists(addresses, max_size=5).flatmap(lambda found: st.tuples(st.just(found), st.permutations(found))))
def test_whether_a_node_has_ipv6_does_not_depend_on_the_order(
    both: tuple[list[NodeAddress], list[NodeAddress]],
) -> None:
    verdicts = {judge_addresses("eth0", found).has_ipv6 for found in both}
    expected = any(own.is_global and own.is_usable and own.dev == "eth0" for own in both[0])
    assert verdicts == {expected}
