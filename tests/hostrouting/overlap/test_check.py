"""The check of a host that changes while it is looked at."""

from __future__ import annotations

from contextlib import contextmanager
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import phases
from hostrouting import Config, Host, Layout
from hostrouting.model.routes import (
    DEFAULT_DESTINATION,
    Lookup,
    NextHop,
    Protocol,
    Route,
    RouteType,
    Scope,
    Table,
)
from hostrouting.model.rules import Rule
from hostrouting.overlap.check import check_overlap
from hostrouting.testing import FakeKernel, FakeSystemd
from phases.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from hostrouting import OverlapReport
    from hostrouting.model.prefixes import Prefix

SHADOW = Route(IPv4Network("172.20.4.0/24"), (NextHop("ib0"),))


def default_by(dev: str, gateway: str) -> Route:
    return Route(DEFAULT_DESTINATION, (NextHop(dev, IPv4Address(gateway)),), protocol=Protocol.DHCP)


ETH0, ETH1 = default_by("eth0", "10.1.0.1"), default_by("eth1", "10.2.0.1")


class RestlessKernel(FakeKernel):
    """Something happens right before the answers to a check's questions, as long as there are events left."""

    def __init__(self, *events: Callable[[FakeKernel], object]) -> None:
        super().__init__()
        for dev, address in (("eth0", "10.1.0.4/24"), ("eth1", "10.2.0.4/24"), ("ib0", "172.16.0.10/16")):
            self.add_link(dev)
            self.add_address(dev, address)
        assert self.add([ETH0]) == ()
        self._events: Iterator[Callable[[FakeKernel], object]] = iter(events)

    def lookup(
        self, addresses: Sequence[IPv4Address], *, source: IPv4Address | None = None, is_tcp: bool = False
    ) -> tuple[Lookup, ...]:
        for event in self._events:
            event(self)
            break
        return super().lookup(addresses, source=source, is_tcp=is_tcp)


def checked(kernel: FakeKernel, scope: phases.CancelScope | None = None) -> OverlapReport:
    overlap = {"expectedCidrs": ["172.20.0.0/16"]}
    config = Config.from_mapping({"hostRouting": {"routeOverlap": overlap}})
    host = Host(routes=kernel, units=FakeSystemd(), layout=Layout(Path("/nonexistent")))
    return check_overlap(config, host.routes, scope or phases.CancelScope())


def test_the_way_of_a_check_in_production_runs_on_the_kernel_in_memory() -> None:
    """The reads that pass over what can't matter, under a listener: the same calls as on ``NetlinkBackend``."""
    asked: list[tuple[str, int]] = []

    class Asked(FakeKernel):
        def routes_except(self, devs: Collection[str], **more: Any) -> tuple[Route, ...]:
            found = super().routes_except(devs, **more)
            asked.append(("routes_except", len(found)))
            return found

        @contextmanager
        def noticing_changes(self, inside: Sequence[Prefix], /) -> Iterator[Callable[[], bool]]:
            asked.append(("noticing_changes", 0))
            with super().noticing_changes(inside) as may_have_changed:
                yield may_have_changed

    kernel = Asked()
    for dev, address in (("eth0", "10.1.0.4/24"), ("ib0", "172.20.0.10/16")):
        kernel.add_link(dev)
        kernel.add_address(dev, address)
    plain = [Route(IPv4Network(f"20.0.{number}.0/24"), ETH0.hops) for number in range(100)]
    assert kernel.add([ETH0, *plain]) == ()
    asked.clear()
    assert [finding.devs for finding in checked(kernel).findings] == [("ib0",)]
    listening, *reads = asked
    assert listening == ("noticing_changes", 0)
    assert {name for name, _ in reads} == {"routes_except"}
    assert all(0 < count < len(plain) for _, count in reads)


def test_a_route_that_comes_between_the_tables_and_the_answers_is_seen() -> None:
    report = checked(RestlessKernel(lambda kernel: kernel.add([SHADOW])))
    assert [finding.ranges for finding in report.findings] == [(SHADOW.destination,)]


def test_a_default_route_that_moves_meanwhile_is_the_one_that_counts() -> None:
    def move(kernel: FakeKernel) -> None:
        assert (kernel.delete([ETH0]), kernel.add([ETH1])) == ((), ())

    report = checked(RestlessKernel(move))
    assert (report.verdict, report.default_devs) == ("ok", ("eth1",))


def test_a_default_route_that_goes_meanwhile_is_missed() -> None:
    report = checked(RestlessKernel(lambda kernel: kernel.delete([ETH0])))
    assert (report.verdict, report.reason_kind) == ("unknown", "no-default-route")


def test_a_route_elsewhere_is_no_reason_to_look_again() -> None:
    asked = []

    def add(kernel: FakeKernel) -> None:
        asked.append(1)
        kernel.add([Route(IPv4Network(f"172.21.{len(asked)}.0/24"), (NextHop("ib0"),))])

    assert checked(RestlessKernel(*[add] * 9)).verdict == "ok"
    assert len(asked) == 1


def _flap(kernel: FakeKernel) -> None:
    assert (kernel.add([SHADOW]), kernel.delete([SHADOW])) == ((), ())


CHANGES: dict[str, Callable[[FakeKernel], object]] = {
    "a link": lambda kernel: kernel.add_link("veth0", up=False),
    "an address": lambda kernel: kernel.add_address("ib0", "10.7.0.4/32"),
    "a rule": lambda kernel: kernel.add_rule(Rule(9, table=77)),
    "an entry of table local": lambda kernel: kernel.add(
        [Route(IPv4Network("10.8.0.4/32"), (NextHop("lo"),), RouteType.LOCAL, Table.LOCAL, scope=Scope.HOST)]
    ),
    "a shadow that came and went": _flap,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_matters_is_a_reason_to_look_again(change: Callable[[FakeKernel], object]) -> None:
    asked = []
    report = checked(RestlessKernel(change, lambda _: asked.append(1)))
    assert (report.verdict, asked) == ("ok", [1])


def test_tables_that_never_rest_can_not_be_judged() -> None:
    def flap(kernel: FakeKernel) -> None:
        if kernel.add([SHADOW]):
            kernel.delete([SHADOW])

    report = checked(RestlessKernel(*[flap] * 99))
    assert (report.verdict, report.reason_kind) == ("unknown", "check-failed")


def test_large_tables_that_never_rest_are_read_for_seconds_only() -> None:
    """A reading takes a second, and none is begun that would end after five."""
    clock, looks = FakeClock(), []

    def flap_slowly(kernel: FakeKernel) -> None:
        if kernel.add([SHADOW]):
            kernel.delete([SHADOW])
        clock.advance(1)
        looks.append(clock.monotonic())

    report = checked(RestlessKernel(*[flap_slowly] * 99), phases.CancelScope(clock=clock))
    assert (report.verdict, looks) == ("unknown", [1, 2, 3, 4, 5])


def test_a_cancel_ends_the_looking() -> None:
    scope = phases.CancelScope()
    scope.cancel("enough")
    host = Host(routes=RestlessKernel(), units=FakeSystemd(), layout=Layout(Path("/nonexistent")))
    config = Config.from_mapping({"hostRouting": {"routeOverlap": {"expectedCidrs": ["172.20.0.0/16"]}}})
    with pytest.raises(phases.Cancelled):
        check_overlap(config, host.routes, scope)
