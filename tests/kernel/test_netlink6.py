"""Tests that the IPv6 backend and the IPv6 model agree with the kernel."""

from __future__ import annotations

import errno as errnos
import json
import socket
from collections.abc import Sequence
from ipaddress import IPv6Address, IPv6Network, ip_address
from pathlib import Path
from typing import Any

import attrs
import pytest
from asking import BY_HAND, recorded_by
from audit.making import make
from backends import Altered
from dual_stack import entry
from nightly import by_day
from node import SUBNETS6, build_node, build_node6, on_linux, run_ip, run_ip6, tool
from wanted import config
from worlds.hosts import Host
from worlds.ipv6 import world

import hostrouting
from hostrouting.kernel.model import Model, model_of
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.kernel.port import Write, read_default_routes, read_our_routes, read_routes
from hostrouting.kernel.rtnetlink.conversation import Conversation
from hostrouting.kernel.rules import kernel_rules
from hostrouting.kernel.selection import except_plain
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.kernel.taking_snapshots import take_snapshot
from hostrouting.model.errors import ConfigError, RouteError
from hostrouting.model.family import Family
from hostrouting.model.links import Address6
from hostrouting.model.lookups import Lookup
from hostrouting.model.routes import Preference, Protocol, Route6, Table
from hostrouting.testing import FakeSystemd
from phases import CancelScope

pytestmark = pytest.mark.kernel

OWN = IPv6Address("fd00:a::2")


@pytest.fixture
def host(kernel: NamespaceKernel) -> NetlinkBackend6:
    """A namespace with two interfaces, eth0 and ib0, each with an IPv6 address."""
    assert kernel.family is Family.IPV4
    build_node6()
    return NetlinkBackend6()


def set_forwarding(value: int) -> None:
    Path("/proc/sys/net/ipv6/conf/all/forwarding").write_text(str(value), encoding="ascii")


def test_entries_are_read_with_all_their_properties(host: NetlinkBackend6) -> None:
    lines = (
        "fd00:1::/48 via fd00:a::1 dev eth0 src fd00:a::2 mtu 1400 proto 217 metric 7",
        "fd00:2::/48 from fd00:b::/64 via fe80::1 dev ib0 pref high table 1000 proto boot",
        "unreachable fd00:3::1/128 proto static",
        (
            "default pref high proto boot "
            "nexthop via fd00:b::1 dev ib0 weight 3 nexthop via fd00:a::1 dev eth0 onlink"
        ),
    )
    run_ip6(*(f"route add {line}" for line in lines))
    routed, to_source, discard, default = map(entry, lines)
    # Each hop has the preference, but the kernel shows only one hop's.
    default = attrs.evolve(default, hops=default.hops[::-1], preference=Preference.MEDIUM)
    assert {routed, discard, default} <= {*read_routes(host, Table.MAIN)}
    assert read_routes(host, 1000) == (to_source,)
    assert read_routes(host, 4711) == ()
    assert read_default_routes(host) == (default,)
    assert read_our_routes(host) == (routed,)
    connected = [
        route
        for route in read_routes(host, Table.MAIN)
        if route.is_connected and route.destination in SUBNETS6.values()
    ]
    assert {(route.destination, *route.devs) for route in connected} == {
        (SUBNETS6[dev], dev) for dev in SUBNETS6
    }
    # Only plain entries are filtered out.
    assert {*tuple(host.entries(except_plain({"eth0"})))} == {*read_routes(host)}
    assert host.write(Write.ADD, [entry("default via fd00:a::1 dev eth0 metric 7")]) == ()
    assert {*read_routes(host)} - {*tuple(host.entries(except_plain({"eth0"}, sources=[OWN])))} == {
        routed
    }
    assert routed in tuple(
        host.entries(
            except_plain({"eth0"}, sources=[OWN], inside=[(int(routed.destination[0]), 48)])
        )
    )
    assert host.facts().rules == kernel_rules(Family.IPV6)


def test_hundreds_of_entries_are_read_as_one_by_one(host: NetlinkBackend6) -> None:
    run_ip6(
        *[
            f"route add fd00:1:{number:x}::/48 via fd00:a::1 dev eth0 proto 217"
            for number in range(900)
        ]
    )
    run_ip6(
        *[
            f"route add fd00:2:{number:x}::/48 via fe80::{number:x} dev ib0"
            for number in range(1, 100)
        ]
    )
    read = [route for route in read_routes(host, Table.MAIN) if route.protocol != Protocol.KERNEL]
    listed = json.loads(tool("ip", "-6", "-j", "-N", "-d", "route", "show"))
    shown = {each["dst"] for each in listed if each["protocol"] != "2"}
    assert {str(route.destination) for route in read} == shown
    assert len(read) == len(shown) == 999
    assert len(read_our_routes(host)) == 900
    for first, length, count in (
        ("fd00:1:10::", 44, 16),
        ("fd00:1::", 48, 1),
        ("fd00:1:383::", 48, 1),
        ("fd00:1:384::", 48, 0),
        ("fd00::", 8, 900),
    ):
        found = tuple(
            host.entries(except_plain({"eth0"}, inside=[(int(IPv6Address(first)), length)]))
        )
        assert sum(route.protocol == Protocol.HOSTROUTING for route in found) == count


def test_addresses_are_read_with_their_states(host: NetlinkBackend6) -> None:
    # An address is tentative for a second for each of these probes.
    for name, value in (("accept_dad", 1), ("dad_transmits", 60)):
        Path("/proc/sys/net/ipv6/conf/ib0", name).write_text(str(value))
    run_ip6(
        "link set ib0 arp on",
        "address add fd00:c::1/64 dev eth0 nodad preferred_lft 0",
        "address add fd00:d::1 peer fd00:d::2/127 dev eth0 nodad noprefixroute metric 5",
        "address add fd00:e::1/64 dev ib0",
    )
    found = {address.local: address for address in host.facts().addresses}
    assert found[OWN] == Address6("eth0", OWN, 64)
    deprecated, peer, tentative = (IPv6Address(f"fd00:{part}::1") for part in "cde")
    assert found[deprecated] == Address6("eth0", deprecated, 64, is_deprecated=True)
    far_end = IPv6Address("fd00:d::2")
    assert found[peer] == Address6("eth0", peer, 127, far_end, metric=5, has_prefix_route=False)
    assert found[tentative] == Address6("ib0", tentative, 64, is_tentative=True)
    assert found[IPv6Address("::1")].scope == 254


def random_host(seed: int) -> Host:
    """Build a random host in a new namespace."""
    on_linux()
    drawn = world(seed)
    make(drawn.steps)
    return drawn


def test_entries_that_share_a_nexthop_object_are_distinguished(host: NetlinkBackend6) -> None:
    run_ip(
        "nexthop add id 1 via fd00:a::1 dev eth0",
        "nexthop add id 2 via fd00:b::1 dev ib0",
        "nexthop add id 3 group 1,3/2",
        "nexthop add id 4 via fd00:a::1 dev eth0",
    )
    run_ip6(*[f"route add fd00:{number}::/32 nhid {number}" for number in (1, 3, 4)])
    run_ip6("route add fd00::/16 nhid 1", "route add fd00:5::/32 via fd00:b::1 dev ib0")
    addresses = [
        IPv6Address(f"fd00:{part:x}::{low:x}") for low in range(1, 30) for part in (1, 3, 4, 5, 6)
    ]
    # The kernel ignores this until a rule is added.
    run_ip6("rule del pref 32766")
    for asked in (addresses, addresses[::-1]):
        for found in host.lookup(asked):
            assert found.route is not None
            part = int(found.address) >> 96 & 0xFFFF
            expected = "fd00::/16" if part == 6 else f"fd00:{part:x}::/32"
            assert str(found.route.destination) == expected
            assert found.route.devs == {3: ("eth0", "ib0"), 5: ("ib0",)}.get(part, ("eth0",))


def test_a_failed_lookup_is_repeated_from_an_address(host: NetlinkBackend6) -> None:
    reached, lost = IPv6Address("fd00:1::1"), IPv6Address("fd00:2::1")
    run_ip6(
        "route add fd00:1::/48 from fd00:a::/64 via fd00:a::1 dev eth0",
        "route add fd00:2::/48 from fd00:b::/64 via fd00:b::1 dev ib0",
    )
    assert [found.route for found in host.lookup([reached, lost])] == [None, None]
    assert host.sources([(None, [reached]), (None, [lost])]) == ((OWN,), ())
    assert NetlinkBackend().sources([(None, [ip_address("10.9.9.9")])]) == ((),)


@pytest.mark.parametrize(
    "change",
    [
        "route add fd00:1::/48 via fd00:a::1 dev eth0",
        "rule add to fd00:1::/48 table 100",
        "address add fd00:7::1/64 dev ib0 nodad",
        "link set ib0 down",
    ],
)
def test_changes_are_noticed(host: NetlinkBackend6, change: str) -> None:
    inside = [(int(IPv6Address("fd00:9::")), 48)]
    with host.changes(inside) as relevant, host.changes() as changes:
        assert not relevant.happened()
        run_ip6(change)
        assert relevant.happened()
        changes.wait(CancelScope(timeout=5))


def test_forwarding_is_noticed(host: NetlinkBackend6) -> None:
    set_forwarding(0)
    with host.changes([]) as changes:
        set_forwarding(1)
        assert changes.happened()


def test_changes_of_ipv4_do_not_disturb_a_read(host: NetlinkBackend6) -> None:
    """IPv4's default route shows the uplinks of IPv6."""
    with host.changes([(0, 0)]) as of_a_read, host.changes() as changes:
        run_ip("route add 10.9.0.0/16 dev ib0")
        assert not of_a_read.happened()
        changes.wait(CancelScope(timeout=5))


def test_routers_that_do_not_answer_are_silent_unless_the_host_forwards(
    host: NetlinkBackend6,
) -> None:
    run_ip6(
        "neigh add fd00:a::1 dev eth0 nud failed",
        "neigh add fd00:b::1 dev ib0 nud permanent lladdr 2:0:0:0:0:1",
    )
    set_forwarding(0)
    assert host.facts().silent_routers == {("eth0", IPv6Address("fd00:a::1"))}
    assert NetlinkBackend().facts().silent_routers == frozenset()
    set_forwarding(1)
    assert host.facts().silent_routers == frozenset()


# --- snapshots ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(by_day(5, by_night=1000)))
def test_a_snapshot_answers_like_its_host(seed: int) -> None:
    drawn, host = random_host(seed), NetlinkBackend6()
    taken = take_snapshot(NetlinkBackend(), host)
    read = Snapshot.from_document(json.loads(taken.to_text()))
    assert read == taken
    recorded = model_of(read.known(Family.IPV6))
    assert recorded.family is Family.IPV6
    assert recorded.facts().links == host.facts().links
    assert recorded.facts().addresses == host.facts().addresses
    assert recorded.facts().rules == host.facts().rules
    assert read_routes(recorded) == read_routes(host)
    assert read_default_routes(recorded) == read_default_routes(host)
    assert read_our_routes(recorded) == read_our_routes(host)
    assert recorded.facts().silent_routers == host.facts().silent_routers
    devs, inside = {"eth0"}, [(int(IPv6Address("fd00:1::")), 48)]
    assert tuple(recorded.entries(except_plain(devs, inside=inside))) == tuple(
        host.entries(except_plain(devs, inside=inside))
    )
    addresses = drawn.addresses(host, 40)
    for source in (None, *(address.local for address in host.facts().addresses[:3])):
        for is_tcp in (False, True):
            try:
                found = host.lookup(addresses, source=source, is_tcp=is_tcp)
            except RouteError:  # a rule selects by source port
                continue
            assert recorded.lookup(addresses, source=source, is_tcp=is_tcp) == found, (
                source,
                is_tcp,
                drawn.steps,
            )
            if source is None and not is_tcp and not drawn.has_odd_sources:
                assert_sources_agree(host, recorded, found)


def assert_sources_agree(host: NetlinkBackend6, recorded: Model, found: Sequence[Lookup]) -> None:
    """Compare the kernel's source addresses with those of the snapshot and of connected sockets."""
    failed = [lookup.address for lookup in found if lookup.route is None]
    retried = [(None, [address]) for address in failed]
    assert recorded.sources(retried) == host.sources(retried)
    for lookup in found:
        address, route = lookup.address, lookup.route
        if route is None:
            continue
        (sources,) = host.sources([(route, [address])])
        if len(route.hops) < 2:
            assert recorded.sources([(route, [address])]) == (sources,), (address, route)
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as datagrams:
            try:
                datagrams.connect((str(address), 9))
            except OSError:
                continue
            assert ip_address(datagrams.getsockname()[0]) in sources


@pytest.mark.parametrize("seed", range(by_day(1, by_night=8)))
def test_what_ip_prints_is_read_like_the_kernels_answers(seed: int) -> None:
    random_host(seed)
    host = NetlinkBackend6()
    run_ip6(
        "address add fd00:c::1/64 dev eth0 nodad preferred_lft 0",
        "route add fd00:9::/64 dev eth0 expires 0",
    )
    recorded = model_of(recorded_by(BY_HAND.replace("only=-4", "only=")).known(Family.IPV6))
    assert read_routes(recorded) == read_routes(host)
    assert recorded.facts().rules == host.facts().rules
    assert recorded.facts().addresses == host.facts().addresses
    (expired,) = (
        each
        for each in read_routes(host, Table.MAIN)
        if each.destination == IPv6Network("fd00:9::/64")
    )
    assert isinstance(expired, Route6)
    assert (expired.is_expired, expired.is_dead, expired.devs) == (True, True, ())
    assert recorded.facts().silent_routers == host.facts().silent_routers


@pytest.mark.parametrize("uplinks", [None, ["eth0"]])
@pytest.mark.parametrize("is_off", [0, 1])
def test_a_snapshot_without_ipv6_routes_gets_the_hosts_verdict(
    kernel: NamespaceKernel, tmp_path: Path, is_off: int, uplinks: list[str] | None
) -> None:
    Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text(str(is_off), encoding="ascii")
    build_node(kernel)
    host = hostrouting.Host(kernel, FakeSystemd(), hostrouting.Layout(tmp_path), NetlinkBackend6())
    recorded = hostrouting.Host.recorded(hostrouting.snapshot(host=host))
    asked = config(cidrs=["fd00:1::/48"], uplinks=uplinks)
    live, told = (hostrouting.check(asked, host=each) for each in (host, recorded))
    assert (told.verdict, told.reason, told.findings) == (live.verdict, live.reason, live.findings)
    assert live.verdict == ("overlap" if uplinks else "unknown")


def test_a_snapshot_names_the_hosts_link_local_source(
    kernel: NamespaceKernel, tmp_path: Path
) -> None:
    """Without another address, connections have this source after a failed first lookup."""
    build_node(kernel)
    run_ip6(
        "addr add fe80::2/64 dev eth0 nodad",
        "route add default dev ib0 table 100",
        "rule add from fe80::/10 lookup 100",
    )
    host = hostrouting.Host(kernel, FakeSystemd(), hostrouting.Layout(tmp_path), NetlinkBackend6())
    recorded = hostrouting.Host.recorded(hostrouting.snapshot(host=host))
    asked = config(cidrs=["fd00:1::/48"], uplinks=["eth0"])
    for each in (host, recorded):
        (finding,) = hostrouting.check(asked, host=each).findings
        assert (finding.devs, finding.source) == (("ib0",), IPv6Address("fe80::2"))


@pytest.mark.parametrize("missing", ["rules6", "routes6"])
def test_a_snapshot_of_half_of_ipv6_is_refused(missing: str) -> None:
    document: dict[str, list[Any]] = {
        key: []
        for key in ("links", "addresses", "rules", "routes", "rules6", "routes6")
        if key != missing
    }
    with pytest.raises(ConfigError, match=f"{missing}: is missing"):
        Snapshot.from_document(document)


# --- hosts that expect no IPv6 --------------------------------------------------------------------


def test_a_kernel_without_ipv6_has_no_ipv6_routes(
    kernel: NamespaceKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ipv6.disable=1, the kernel answers for all other families instead (rtnl_dump_all)."""
    Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1", encoding="ascii")
    build_node(kernel)
    dump = Conversation.dump
    monkeypatch.setattr(
        Conversation, "dump", lambda self, kind, body: dump(self, kind, b"\0" + body[1:])
    )
    backend = NetlinkBackend6()
    assert (
        read_routes(backend),
        read_our_routes(backend),
        read_default_routes(backend),
        backend._addresses(),
    ) == ((), (), (), ())


def test_a_kernel_without_ipv6_has_a_snapshot_without_it(
    kernel: NamespaceKernel, tmp_path: Path
) -> None:
    def refuse() -> None:
        raise RouteError("can't list the policy rules", errno=errnos.EAFNOSUPPORT)

    without = Altered(NetlinkBackend6(), facts=refuse)
    host = hostrouting.Host(kernel, FakeSystemd(), hostrouting.Layout(tmp_path), without)
    assert hostrouting.snapshot(host=host).ipv6 is None


def test_a_failure_is_asked_about_again(
    host: NetlinkBackend6, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another process replaces a route, new kernels find no route for a moment."""
    run_ip6("route add fd00:1::/48 via fd00:a::1 dev eth0")
    ask, gaps = NetlinkBackend._look_up, [errnos.ENETUNREACH]

    def with_a_gap(
        self: NetlinkBackend, addresses: Sequence[Any], *rest: Any, **more: Any
    ) -> list[Any]:
        return [gaps.pop() if gaps else answer for answer in ask(self, addresses, *rest, **more)]

    monkeypatch.setattr(NetlinkBackend, "_look_up", with_a_gap)
    found = host.lookup(
        [IPv6Address("fd00:1::1"), IPv6Address("fd00:1::2"), IPv6Address("2001:db8::1")]
    )
    assert [each.errno for each in found] == [None, None, errnos.ENETUNREACH]
