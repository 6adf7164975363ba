"""Tests that compare checks of random IPv6 hosts with the behaviour of real sockets."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from audit.making import make
from audit.sockets import SocketAudit
from leaving import SocketKind, truths
from nightly import IS_NIGHTLY, by_day
from node import nics, on_linux
from worlds.ipv6 import FEATURES6, World6, world

from hostrouting.backend import Lookup
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.model.family import IpAddress
from hostrouting.model.routes import RouteType

pytestmark = pytest.mark.kernel

_ADDRESSES = """
    ip address add 2001:db8:1::4/64 dev eth0 nodad
    ip address add fd00:172:16:7::9/64 dev ib0 nodad
    ip -6 route add default via fe80::1 dev eth0
"""


def test_sockets_leave_by_the_entries_that_the_port_finds() -> None:
    """Each address is looked up without a source, and then with each source that a connection may use."""
    for seed in range(by_day(3, by_night=1000)):
        drawn = world(seed)
        on_linux()
        make(drawn.steps)
        kernel, addresses = NetlinkBackend6(), drawn.addresses()
        told = {is_tcp: _answers(kernel, addresses, is_tcp=is_tcp) for is_tcp in (False, True)}
        wrong = []
        for truth in truths(addresses, tries=drawn.tries, failed=drawn.failed):
            is_tcp = truth.kind in (SocketKind.SYN, SocketKind.CONNECTION)
            if truth.address not in told[is_tcp]:
                continue
            first, second = told[is_tcp][truth.address]
            ends = second if truth.kind in _SECOND else first
            # In a multipath route, hops with unreachable routers are skipped, and the source may favour some hops.
            may_pass = truth.kind in _SECOND or drawn.passes_hops
            if truth.ends - ends or (ends - truth.ends and not (drawn.tries > 1 and may_pass)):
                wrong.append(f"{truth}, but the port says {ends}")
        assert not wrong, "\n".join((f"seed {seed}", *wrong, *drawn.steps))


_SECOND = (SocketKind.LATER, SocketKind.CONNECTION)

Ends = frozenset[str | None]


def _answers(
    kernel: NetlinkBackend6, addresses: Sequence[IpAddress], *, is_tcp: bool
) -> dict[IpAddress, tuple[Ends, Ends]]:
    """Map each address to the devices from its first lookup and, if the source is known, from its later lookups."""
    found: dict[IpAddress, tuple[Ends, Ends]] = {}
    for lookup in kernel.lookup(addresses, is_tcp=is_tcp):
        address, route = lookup.address, lookup.route
        if route is None and is_tcp and kernel.lookup([address])[0].route is not None:
            continue  # the port can't tell the source
        if route is None or route.type.is_discard:
            sources: Sequence[IpAddress] = tuple(kernel.sources_of_unrouted([address], is_tcp=is_tcp).values())
        else:
            sources = kernel.sources({route: [address]}, is_tcp=is_tcp)[route]
        again = [kernel.lookup([address], source=source, is_tcp=is_tcp)[0] for source in sources]
        second = frozenset[str | None]().union(*map(_ends, again))
        is_over = route is None or route.type.is_discard
        found[address] = (second if is_over and again else _ends(lookup), second if again else _ends(lookup))
    return found


def _ends(lookup: Lookup) -> Ends:
    route = lookup.route
    if route is None or route.type.is_discard:
        return frozenset({None})
    return frozenset({"lo"} if route.type in (RouteType.LOCAL, RouteType.ANYCAST) else route.devs)


# --- the check -----------------------------------------------------------------------------------------------------


def test_the_check_says_what_sockets_do() -> None:
    """The snapshot check agrees too, and nothing fails after the fix."""
    hosts, fixes, unknown, features = by_day(8, by_night=2000), 0, 0, set[str]()
    for seed in range(hosts):
        audited = SocketAudit(world(seed), by_day(16, by_night=40))
        audited.run()
        assert not audited.mistakes, "\n".join((f"seed {seed}", *audited.mistakes, *audited.host.steps))
        fixes += audited.fixes
        unknown += bool(audited.unknown)
        features.update(audited.host.features)
    assert 0 < fixes < hosts > unknown
    assert not IS_NIGHTLY or features == {*FEATURES6}


_SELDOM = {
    "an anycast route that a program added": """
        ip -6 route add anycast fd00:172:16:8000::/64 dev ib0 table local
    """,
    "an anycast route to lo of table main, which comes before table local": """
        ip -6 route add anycast fd00:172:16:8000::/64 dev lo table main
        ip -6 rule add lookup local pref 32767
        ip -6 rule del pref 0
    """,
    "a local route of table main after a rule": """
        ip -6 route add local fd00:172:16:ff::/72 dev lo table main
        ip -6 route add prohibit fd00:172:16::/48 table 100
        ip -6 rule add from fd00:172:16:7::/64 lookup 100 pref 15
    """,
    "the rule of table main deleted before any other was added": "ip -6 rule del pref 32766",
    "sources of the outgoing interface alone": """
        sysctl -qw net.ipv6.conf.eth0.use_oif_addrs_only=1
        ip -6 route add default via fe80::2 dev ib0 table 100
        ip -6 rule add from 2001:db8:1::/64 lookup 100 pref 15
        ip address change 2001:db8:1::4/64 dev eth0 preferred_lft 0
    """,
    "temporary addresses that an interface would prefer": """
        sysctl -qw net.ipv6.conf.eth0.use_tempaddr=2
        ip address add 2001:db8:2::4/64 dev ib0 nodad
        ip -6 route add default via fe80::2 dev ib0 table 100
        ip -6 rule add from 2001:db8:1::/64 lookup 100 pref 15
        ip -6 rule add not from 2001:db8::/32 unreachable pref 16
    """,
    "temporary addresses that an interface would prefer, for packets that an entry discards": """
        sysctl -qw net.ipv6.conf.eth0.use_tempaddr=2
        ip address add fd00:172:16:ff::4/64 dev eth0 nodad
        ip -6 route add throw fd00:172:16:8000::/49
        ip -6 route add default via fe80::2 dev ib0 table 100
        ip -6 rule add from fd00:172:16:ff::/64 lookup 100 pref 15
    """,
    "a CNI's own block, which only TCP meets": """
        ip -6 route add unreachable fd00:172:16:8000::/49
        ip -6 route add fd00:172:16:8000::7/128 dev cali1
        ip -6 route add 2001:db8:7::/64 dev cali1
        ip -6 route add default via fe80::2 dev ib0 table 100
        ip -6 rule add ipproto udp lookup 100 pref 15
    """,
    "a TCP connection that fails once it has a source, and whose replies are lost": """
        ip -6 route add unreachable default table 100
        ip -6 rule add not from 2001:db8::/32 ipproto tcp lookup main pref 11
        ip -6 rule add from 2001:db8::/32 lookup 100 pref 22
        ip -6 rule add lookup local pref 40
        ip -6 rule del pref 0
    """,
    "a failing lookup of TCP alone that another source repeats": """
        ip -6 route add default via fe80::2 dev ib0 table 100
        ip -6 route add blackhole fd00:172:16::/52 table 101
        ip -6 route add default via fe80::1 dev eth0 table 102
        ip -6 rule add from 2001:db8:1::/64 lookup 102 pref 13
        ip -6 rule add from fd00:172:16:7::/64 lookup 100 pref 14
        ip -6 rule add ipproto tcp lookup 101 pref 15
    """,
    "a rule for all source ports, behind a route that the fix replaces": """
        ip -6 route add prohibit fd00:172:16::/64
        ip -6 rule add from 2001:db8:9::/64 lookup main pref 10
        ip -6 rule add sport 1-65534 prohibit pref 21
    """,
}


@pytest.mark.parametrize("name", _SELDOM)
def test_rare_hosts(name: str) -> None:
    devs = ("eth0", "ib0", "cali1") if "cali1" in _SELDOM[name] else ("eth0", "ib0")
    lines = f"{_ADDRESSES}{_SELDOM[name]}".splitlines()
    steps = (*nics(*devs), *filter(None, map(str.strip, lines)))
    expected = ["fd00:172:16::/48", "2001:db8::/32", {"cidr": "2001:db8::/32", "devs": ["eth0"]}]
    config = {"routeOverlap": {"expectedCidrs": expected}, "uplinks": ["eth0"]}
    audited = SocketAudit(World6(-1, steps, config), by_day(16, by_night=40))
    audited.run()
    assert not audited.mistakes
