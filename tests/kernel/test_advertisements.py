"""Tests how long routes from router advertisements last, and why there are none."""

from __future__ import annotations

import errno as errnos
from ipaddress import IPv6Address
from pathlib import Path

import pytest
from asking import BY_HAND, recorded_by
from audit.making import advertise
from node import build_node6, run_ip, run_ip6, until
from wanted import config

import phases
from hostrouting import Host, Layout, check
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.model.routes import Route6
from hostrouting.overlap.one_event import anticipate
from hostrouting.report import EventKind, Outlook, Verdict
from hostrouting.tasks.queries import snapshot
from hostrouting.testing import FakeSystemd

pytestmark = pytest.mark.kernel

CIDR = "2001:db8::/32"
OUTSIDE = IPv6Address("2001:db8::1")

# A busy machine may take this long between two steps.
_SLOW_SECONDS = 30


@pytest.fixture
def host(kernel: NamespaceKernel) -> NetlinkBackend6:
    """A namespace with two interfaces, eth0 and ib0, and an IPv4 default route through eth0."""
    assert kernel.links()
    build_node6()
    run_ip("address add 10.1.0.4/24 dev eth0\nroute add default via 10.1.0.1 dev eth0")
    return NetlinkBackend6()


def test_an_advertised_route_tells_how_long_it_lasts(host: NetlinkBackend6) -> None:
    def lasts() -> int:
        (default,) = host.default_routes()
        (lookup,) = host.lookup([OUTSIDE])
        by_ip = recorded_by(BY_HAND.replace("only=-4", "only=")).ipv6
        assert by_ip is not None
        (recorded,) = (each for each in by_ip.routes if each == default)
        assert isinstance(default, Route6)
        assert isinstance(recorded, Route6)
        assert default.expires is not None
        assert lookup.route == default
        assert lookup.route.expires in (default.expires, default.expires - 1)
        assert recorded.expires is not None
        assert 0 <= default.expires - recorded.expires < _SLOW_SECONDS
        return default.expires

    advertise("eth0", "fe80::1", "600", "medium")
    until(lambda: bool(host.default_routes()))
    assert 600 - _SLOW_SECONDS < lasts() <= 600
    before = host.routes()
    with host.noticing_changes([(0, 0)]) as may_have_changed:
        advertise("eth0", "fe80::1", "900", "medium")
        until(lambda: lasts() > 600)
        assert not may_have_changed()
    assert host.routes() == before


def test_an_expired_route_is_told_from_one_that_lasts(host: NetlinkBackend6) -> None:
    run_ip6("route add default via fe80::1 dev eth0 proto ra expires 1")
    (before,) = host.default_routes()
    assert isinstance(before, Route6)
    assert (before.expires, before.is_expired) == (1, False)
    until(lambda: host.default_routes()[0] != before)
    (after,) = host.default_routes()
    assert isinstance(after, Route6)
    assert after.is_expired
    (lookup,) = host.lookup([OUTSIDE])
    assert lookup.errno == errnos.ENETUNREACH


@pytest.mark.parametrize(
    ("others", "outlook", "verdict", "devs"),
    [
        ([("eth0", "fe80::2")], Outlook.SAME, Verdict.OK, []),
        ([("ib0", "fe80::2")], Outlook.LASTING, Verdict.OVERLAP, [("ib0",)]),
    ],
)
def test_the_end_of_an_advertisement_is_predicted(
    host: NetlinkBackend6,
    tmp_path: Path,
    others: list[tuple[str, str]],
    outlook: Outlook,
    verdict: Verdict,
    devs: list[tuple[str]],
) -> None:
    for dev, router in others:
        advertise(dev, router, "9000", "low")
    advertise("eth0", "fe80::1", "2", "high")
    until(lambda: len(host.default_routes()) == 1 + len(others))
    layout = Layout(tmp_path)
    asked, on = config(cidrs=[CIDR], uplinks=["eth0"]), Host(NetlinkBackend(), FakeSystemd(layout), layout, host)
    before = snapshot(host=on)
    (told,) = (
        each
        for each in anticipate(asked, before, phases.CancelScope())
        if each.event.kind is EventKind.EXPIRED and str(each.event.gateway) == "fe80::1"
    )
    assert (told.event.subject, told.outlook, told.restored_by) == ("eth0", outlook, ())
    until(lambda: any(isinstance(route, Route6) and route.is_expired for route in host.default_routes()))
    now = check(asked, host=on)
    assert now.verdict is told.verdict is told.lasting_verdict is verdict
    assert [each.devs for each in now.findings] == [each.devs for each in told.findings] == devs
