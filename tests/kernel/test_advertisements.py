"""Tests how long routes from router advertisements last, and why there are none."""

from __future__ import annotations

import errno as errnos
import re
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import pytest
from asking import BY_HAND, recorded_by
from audit.making import advertise
from file_trees import write_file
from node import build_node6, run_ip, run_ip6, until
from wanted import config

import phases
from hostrouting import Config, ConfigureStaticRoutes, Host, Layout, RouteError, check, plan
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.kernel.port import read_default_routes, read_routes
from hostrouting.model.routes import Route6
from hostrouting.report import UnknownReason, Verdict
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
    assert kernel.facts().links
    build_node6()
    run_ip("address add 10.1.0.4/24 dev eth0\nroute add default via 10.1.0.1 dev eth0")
    return NetlinkBackend6()


def node_in(root: Path, host: NetlinkBackend6) -> Host:
    """Return this namespace as a host that has this machine's sysctls, and no other file of it."""
    (root / "proc").mkdir()
    (root / "proc/sys").symlink_to("/proc/sys")
    layout = Layout(root)
    return Host(NetlinkBackend(), FakeSystemd(layout), layout, host)


def set_sysctls(**values: int) -> None:
    for name, value in values.items():
        Path(f"/proc/sys/net/ipv6/conf/eth0/{name}").write_text(str(value), encoding="ascii")


def test_an_advertised_route_tells_how_long_it_lasts(host: NetlinkBackend6) -> None:
    def lasts() -> int:
        (default,) = read_default_routes(host)
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
    until(lambda: bool(read_default_routes(host)))
    assert 600 - _SLOW_SECONDS < lasts() <= 600
    before = read_routes(host)
    with host.changes([(0, 0)]) as changes:
        advertise("eth0", "fe80::1", "900", "medium")
        until(lambda: getattr(read_default_routes(host)[0], "expires", 0) > 600)
        assert 900 - _SLOW_SECONDS < lasts() <= 900
        assert not changes.happened()
    assert read_routes(host) == before


def test_an_expired_route_is_told_from_one_that_lasts(host: NetlinkBackend6) -> None:
    run_ip6("route add default via fe80::1 dev eth0 proto ra expires 1")
    (before,) = read_default_routes(host)
    assert isinstance(before, Route6)
    assert (before.expires, before.is_expired) == (1, False)
    until(lambda: read_default_routes(host)[0] != before)
    (after,) = read_default_routes(host)
    assert isinstance(after, Route6)
    assert after.is_expired
    (lookup,) = host.lookup([OUTSIDE])
    assert lookup.errno == errnos.ENETUNREACH


IGNORING = pytest.mark.parametrize(
    ("sysctls", "reason"),
    [
        ({"forwarding": 1, "accept_ra": 1}, "it forwards packets and its accept_ra is 1"),
        ({"forwarding": 1, "accept_ra": 0}, "its accept_ra is 0, and no network manager claims it"),
        ({"forwarding": 0, "accept_ra": 0}, "its accept_ra is 0, and no network manager claims it"),
    ],
)


@IGNORING
def test_a_check_says_why_there_is_no_default_route(
    host: NetlinkBackend6, tmp_path: Path, sysctls: dict[str, int], reason: str
) -> None:
    on, asked, named = node_in(tmp_path, host), expecting(), expecting(uplinks=["eth0"])
    set_sysctls(**sysctls)
    advertise("eth0", "fe80::1", "1800", "medium")
    assert read_default_routes(host) == ()
    why = f"; eth0 ignores router advertisements, because {reason}: sysctl -w "
    (unfixable,) = check(named, host=on).fix.unfixable
    assert why in unfixable.reason
    report = check(asked, host=on)
    assert report.reason_kind is UnknownReason.NO_DEFAULT_ROUTE
    assert why in report.reason_detail
    recorded = check(asked, host=Host.recorded(snapshot(host=on)))
    assert recorded.reason_kind is UnknownReason.NO_DEFAULT_ROUTE
    assert "router advertisements" not in recorded.reason_detail

    # What it says is what helps.
    (setting,) = re.findall(r"sysctl -w ([^\s;]+)", report.reason_detail)
    name, _, value = setting.partition("=")
    Path("/proc/sys", name).write_text(value, encoding="ascii")
    advertise("eth0", "fe80::1", "1800", "medium")
    until(lambda: bool(read_default_routes(host)))
    assert check(asked, host=on).verdict is Verdict.OK


@IGNORING
def test_an_installation_says_why_it_waits_in_vain(
    host: NetlinkBackend6, tmp_path: Path, sysctls: dict[str, int], reason: str
) -> None:
    on, wanted = (
        node_in(tmp_path, host),
        config("fd00:1::/48", cidrs=[], mode="WARN", waitSeconds=0),
    )
    set_sysctls(**sysctls)
    why = f"eth0 ignores router advertisements, because {reason}: sysctl -w "
    assert any(each.startswith(why) for each in plan(wanted, host=on).warnings)
    with pytest.raises(RouteError, match="::/0") as caught:
        phases.run(ConfigureStaticRoutes(wanted, host=on))
    assert caught.value.hint.startswith(why)


def test_a_manager_may_handle_advertisements(host: NetlinkBackend6, tmp_path: Path) -> None:
    on = node_in(tmp_path, host)
    set_sysctls(forwarding=1, accept_ra=0)
    (eth0,) = (link for link in host.facts().links if link.name == "eth0")
    write_file(on.layout.of(f"/run/systemd/netif/links/{eth0.index}"), "ADMIN_STATE=configured\n")
    report = check(expecting(), host=on)
    assert report.reason_kind is UnknownReason.NO_DEFAULT_ROUTE
    assert "router advertisements" not in report.reason_detail


def test_an_expired_default_route_is_the_reason(host: NetlinkBackend6, tmp_path: Path) -> None:
    on = node_in(tmp_path, host)
    advertise("eth0", "fe80::1", "1", "medium")
    until(
        lambda: any(
            isinstance(route, Route6) and route.is_expired for route in read_default_routes(host)
        )
    )
    for reason in (
        check(expecting(), host=on).reason_detail,
        check(expecting(), host=Host.recorded(snapshot(host=on))).reason_detail,
        plan(config("fd00:1::/48", cidrs=[], mode="WARN"), host=on).missing or "",
    ):
        assert "expires 0sec has expired, as no advertisement has renewed it" in reason


def expecting(**more: Any) -> Config:
    return config(cidrs=[CIDR], waitSeconds=0, **more)
