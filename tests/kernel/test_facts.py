"""Test facts about the kernel's IPv4 FIB on the real kernel and on the in-memory kernel."""

from __future__ import annotations

import pytest
from node import PAIR, like_linux, on_linux
from scenario import play, skip_without_other_users

from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.port import Kernel, read_routes

LOOKUPS = {
    "for an entry with scope host, the source may be 127.0.0.1, which may not leave": """
        link add x0
        route add 172.16.0.0/16 dev x0 scope host
        get 172.16.1.1 -> EINVAL
        route add 172.17.0.0/16 dev x0 scope link
        get 172.17.1.1 -> 172.17.0.0/16 dev x0 proto hostrouting scope link
    """,
    "the first rule with an answer wins, even with a short prefix": """
        route add 172.16.5.1/32 via 10.1.0.1 dev eth0
        route add 172.0.0.0/8 via 10.2.0.1 dev ib0 table 100
        rule add pref 100 lookup 100
        get 172.16.5.1 -> 172.0.0.0/8 via 10.2.0.1 dev ib0 table 100 proto hostrouting
        rule del pref 100 lookup 100
        get 172.16.5.1 -> 172.16.5.1 via 10.1.0.1 dev eth0 proto hostrouting
    """,
    "local and main are one trie until the first rule was added, even if it is gone": """
        route add 127.5.0.0/16 via 10.1.0.1 dev eth0
        get 127.5.0.1 -> 127.5.0.0/16 via 10.1.0.1 dev eth0 proto hostrouting
        rule add pref 100 lookup 100
        get 127.5.0.1 -> local 127.0.0.0/8 dev lo table local proto kernel scope host src 127.0.0.1
        rule del pref 100 lookup 100
        get 127.5.0.1 -> local 127.0.0.0/8 dev lo table local proto kernel scope host src 127.0.0.1
    """,
    "local and broadcast addresses win as local in both cases": """
        route add 10.1.0.4/32 via 10.2.0.1 dev ib0
        route add 10.1.0.255/32 via 10.2.0.1 dev ib0
        get 10.1.0.4 -> local 10.1.0.4 dev eth0 proto kernel scope host src 10.1.0.4
        get 10.1.0.255 -> broadcast 10.1.0.255 dev eth0 proto kernel scope link src 10.1.0.4
        rule add pref 100 lookup 100
        get 10.1.0.4 -> local 10.1.0.4 dev eth0 table local proto kernel scope host src 10.1.0.4
        get 10.1.0.255 -> broadcast 10.1.0.255 dev eth0 table local proto kernel scope link src 10.1.0.4
    """,  # noqa: E501
    "the longest prefix beats the metric": """
        route add 172.16.0.0/16 via 10.1.0.1 dev eth0 metric 900
        route add 172.0.0.0/8 via 10.2.0.1 dev ib0
        get 172.16.1.1 -> 172.16.0.0/16 via 10.1.0.1 dev eth0 proto hostrouting metric 900
        get 172.17.1.1 -> 172.0.0.0/8 via 10.2.0.1 dev ib0 proto hostrouting
    """,
    "the lowest metric wins, in any order of additions": """
        route add 172.16.0.0/16 via 10.1.0.1 dev eth0 metric 20
        route add 172.16.0.0/16 via 10.2.0.1 dev ib0 metric 10
        get 172.16.1.1 -> 172.16.0.0/16 via 10.2.0.1 dev ib0 proto hostrouting metric 10
        route add 172.16.0.0/16 via 10.1.0.1 dev eth0
        get 172.16.1.1 -> 172.16.0.0/16 via 10.1.0.1 dev eth0 proto hostrouting
    """,
    "a route for a tos doesn't serve tos 0": """
        route add 172.16.0.0/16 via 10.2.0.1 dev ib0 tos 0x10
        get 172.16.1.1 -> ENETUNREACH
        route add 172.16.0.0/16 via 10.1.0.1 dev eth0 metric 5
        get 172.16.1.1 -> 172.16.0.0/16 via 10.1.0.1 dev eth0 proto hostrouting metric 5
    """,
    "throw ends its table and goes on with the next rule": """
        route add throw 172.16.0.0/16 table 100
        route add 172.0.0.0/8 via 10.2.0.1 dev ib0 table 100
        rule add pref 100 lookup 100
        get 172.16.1.1 -> ENETUNREACH
        get 172.17.1.1 -> 172.0.0.0/8 via 10.2.0.1 dev ib0 table 100 proto hostrouting
        route add default via 10.1.0.1 dev eth0
        get 172.16.1.1 -> default via 10.1.0.1 dev eth0 proto hostrouting
    """,
    "table default is used last": """
        route add default via 10.2.0.1 dev ib0 table default
        get 8.8.8.8 -> default via 10.2.0.1 dev ib0 table default proto hostrouting
        route add default via 10.1.0.1 dev eth0
        get 8.8.8.8 -> default via 10.1.0.1 dev eth0 proto hostrouting
    """,
    "suppress_prefixlength 0 suppresses the default route only": """
        route add default via 10.1.0.1 dev eth0
        route add 172.16.0.0/16 via 10.1.0.1 dev eth0
        route add default via 10.2.0.1 dev ib0 table 100
        rule add pref 100 suppress_prefixlength 0 lookup main
        rule add pref 200 lookup 100
        get 8.8.8.8 -> default via 10.2.0.1 dev ib0 table 100 proto hostrouting
        get 172.16.1.1 -> 172.16.0.0/16 via 10.1.0.1 dev eth0 proto hostrouting
    """,
    "suppress_prefixlength suppresses prefixes of its own length": """
        route add default via 10.1.0.1 dev eth0
        route add 172.16.0.0/16 via 10.2.0.1 dev ib0 table 100
        rule add pref 200 suppress_prefixlength 16 lookup 100
        get 172.16.1.1 -> default via 10.1.0.1 dev eth0 proto hostrouting
        rule add pref 100 suppress_prefixlength 15 lookup 100
        get 172.16.1.1 -> 172.16.0.0/16 via 10.2.0.1 dev ib0 table 100 proto hostrouting
    """,
    "goto skips the rules in between": """
        route add default via 10.1.0.1 dev eth0
        route add default via 10.2.0.1 dev ib0 table 100
        rule add pref 200 lookup 100
        get 8.8.8.8 -> default via 10.2.0.1 dev ib0 table 100 proto hostrouting
        rule add pref 300 nop
        rule add pref 100 goto 300
        get 8.8.8.8 -> default via 10.1.0.1 dev eth0 proto hostrouting
        rule add pref 60 goto 50000
        get 8.8.8.8 -> default via 10.1.0.1 dev eth0 proto hostrouting
        rule add pref 40000 lookup 77
        rule add pref 50 goto 40000
        get 8.8.8.8 -> ENETUNREACH
    """,
}

# Each key is a selector for ``lookup 100``; the value says whether the rule matches a packet from
# this host.
SELECTORS = {
    "": True,
    "from 10.1.0.0/24": False,
    "from 0.0.0.0/1": True,
    "not from 10.1.0.0/24": True,
    "to 8.8.8.0/24": True,
    "to 9.0.0.0/8": False,
    "not to 8.8.8.0/24": False,
    "fwmark 5": False,
    "fwmark 0": True,
    "not fwmark 5": True,
    "fwmark 2/1": True,
    "uidrange 0-0": True,
    "uidrange 1000-2000": False,
    "iif lo": True,
    "iif eth0": False,
    "oif eth0": False,
    "ipproto 6": False,
    "ipproto 17": True,
    "dport 443": False,
    "tos 0x10": False,
    "suppress_ifgroup 0": False,
}

DISCARDS = {
    "no route": "get 8.8.8.8 -> ENETUNREACH",
    "a route unreachable": "route add unreachable 8.0.0.0/8 \n get 8.8.8.8 -> EHOSTUNREACH",
    "a route prohibit": "route add prohibit 8.0.0.0/8 \n get 8.8.8.8 -> EACCES",
    "a route blackhole": "route add blackhole 8.0.0.0/8 \n get 8.8.8.8 -> EINVAL",
    "a route throw": "route add throw 8.0.0.0/8 \n get 8.8.8.8 -> ENETUNREACH",
    "a rule unreachable": "rule add pref 100 unreachable \n get 8.8.8.8 -> ENETUNREACH",
    "a rule prohibit": "rule add pref 100 prohibit \n get 8.8.8.8 -> EACCES",
    "a rule blackhole": "rule add pref 100 blackhole \n get 8.8.8.8 -> EINVAL",
}

DESTINATIONS = {
    "own addresses": """
        get 10.1.0.4 -> local 10.1.0.4 dev eth0 proto kernel scope host src 10.1.0.4
        get 127.0.0.1 -> local 127.0.0.1 dev lo proto kernel scope host src 127.0.0.1
        get 127.9.9.9 -> local 127.0.0.0/8 dev lo proto kernel scope host src 127.0.0.1
    """,
    "the last address of a subnet": """
        get 10.1.0.255 -> broadcast 10.1.0.255 dev eth0 proto kernel scope link src 10.1.0.4
    """,
    "special blocks without a default route": """
        get 0.0.0.0 -> EHOSTUNREACH
        get 0.1.2.3 -> ENETUNREACH
        get 240.0.0.1 -> ENETUNREACH
        get 169.254.1.1 -> ENETUNREACH
        get 224.0.0.1 -> ENETUNREACH
        get 255.255.255.255 -> ENETUNREACH
    """,
    "special blocks with a default route": """
        route add default via 10.1.0.1 dev eth0
        get 0.0.0.0 -> EHOSTUNREACH
        get 0.1.2.3 -> default via 10.1.0.1 dev eth0 proto hostrouting
        get 240.0.0.1 -> default via 10.1.0.1 dev eth0 proto hostrouting
        get 169.254.1.1 -> default via 10.1.0.1 dev eth0 proto hostrouting
        get 224.0.0.1 -> multicast default via 10.1.0.1 dev eth0 proto hostrouting
        get 255.255.255.255 -> broadcast default via 10.1.0.1 dev eth0 proto hostrouting
    """,
    "special blocks with a local default route": """
        rule add pref 0 lookup 100
        route add local default dev eth0 table main scope host
        get 224.0.0.1 -> multicast default dev eth0 proto hostrouting scope host
        get 255.255.255.255 -> broadcast default dev eth0 proto hostrouting scope host
    """,
    "special blocks are accepted as destinations": """
        route add 0.0.0.0/8 via 10.1.0.1 dev eth0
        route add 127.0.0.0/8 via 10.1.0.1 dev eth0
        route add 224.0.0.0/4 via 10.1.0.1 dev eth0
        route add 240.0.0.0/4 via 10.1.0.1 dev eth0
        route add 255.255.255.255/32 via 10.1.0.1 dev eth0
        route add 10.1.0.4/32 via 10.1.0.1 dev eth0
    """,
}

WRITES = {
    "same prefix, tos and metric: taken, whatever the gateway, device or type": """
        route add 172.16.0.0/16 via 10.1.0.1 dev eth0
        route add 172.16.0.0/16 via 10.1.0.1 dev eth0 -> EEXIST
        route add 172.16.0.0/16 via 10.2.0.1 dev ib0 -> EEXIST
        route add blackhole 172.16.0.0/16 -> EEXIST
        route add 172.16.0.0/16 via 10.2.0.1 dev ib0 metric 5
        route add 172.16.0.0/16 via 10.2.0.1 dev ib0 tos 0x10
        route add 172.16.0.0/16 via 10.2.0.1 dev ib0 table 100
    """,
    "replace replaces the first route with that key": """
        route replace 172.16.0.0/16 via 10.1.0.1 dev eth0 mtu 1400
        route replace 172.16.0.0/16 via 10.2.0.1 dev ib0
        route replace 172.16.0.0/16 via 10.2.0.1 dev ib0
        route replace 172.16.0.0/16 via 10.1.0.1 dev eth0 metric 5
    """,
    "replace replaces even a connected route": """
        route replace 10.2.0.0/24 via 10.1.0.1 dev eth0
    """,
    "replace replaces a multipath route as a whole": """
        route add 172.16.0.0/16 nexthop via 10.1.0.1 dev eth0 weight 2 nexthop via 10.2.0.1 dev ib0
        route replace 172.16.0.0/16 via 10.2.0.1 dev ib0
    """,
    "delete a missing route": """
        route del 172.16.0.0/16 via 10.1.0.1 dev eth0 -> ESRCH
        route del 172.16.0.0/16 via 10.1.0.1 dev eth0 table 77 -> ESRCH
    """,
    "delete the exact route": """
        route add 172.16.0.0/16 via 10.1.0.1 dev eth0 metric 5
        route del 172.16.0.0/16 via 10.1.0.1 dev eth0 -> ESRCH
        route del 172.16.0.0/16 via 10.1.0.1 dev eth0 metric 6 -> ESRCH
        route del 172.16.0.0/16 via 10.1.0.1 dev eth0 metric 5 tos 0x10 -> ESRCH
        route del 172.16.0.0/16 via 10.1.0.1 dev eth0 metric 5 table 100 -> ESRCH
        route del 172.16.0.0/16 via 10.1.0.1 dev eth0 metric 5 proto static -> ESRCH
        route del 172.16.0.0/16 via 10.1.0.2 dev eth0 metric 5 -> ESRCH
        route del 172.16.0.0/16 via 10.1.0.1 dev ib0 metric 5 -> ESRCH
        route del 172.16.0.0/16 dev eth0 metric 5 -> ESRCH
        route del blackhole 172.16.0.0/16 metric 5 -> ESRCH
        route del 172.16.0.0/17 via 10.1.0.1 dev eth0 metric 5 -> ESRCH
        route del 172.16.0.0/16 via 10.1.0.1 dev eth0 metric 5 scope link
    """,
    "delete a link route": """
        route add 172.16.0.0/16 dev eth0
        route del 172.16.0.0/16 dev eth0
    """,
    "delete a multipath route by its first hop": """
        route add 172.16.0.0/16 nexthop via 10.1.0.1 dev eth0 nexthop via 10.2.0.1 dev ib0
        route del 172.16.0.0/16 via 10.2.0.1 dev ib0 -> ESRCH
        route del 172.16.0.0/16 via 10.1.0.1 dev eth0
    """,
    "unreachable gateways": """
        route add 172.16.0.0/16 via 10.9.0.1 -> ENETUNREACH
        route add 172.16.0.0/16 via 10.9.0.1 dev eth0 -> ENETUNREACH
        route add 172.16.0.0/16 via 10.2.0.1 dev eth0 -> ENETUNREACH
        route add 172.16.0.0/16 via 224.0.0.5 dev eth0 -> ENETUNREACH
        route add 172.16.0.0/16 via 10.1.0.1 dev eth0
        route add 172.17.0.0/16 via 172.16.0.1 dev eth0 -> ENETUNREACH
    """,
    "gateways on a link that is down": """
        link set ib0 down
        route add 172.16.0.0/16 via 10.2.0.1 dev ib0 -> ENETUNREACH
        route add 172.16.0.0/16 via 10.2.0.1 -> ENETUNREACH
    """,
    "a gateway that is a broadcast address": """
        route add 172.16.0.0/16 via 10.1.0.255 dev eth0 -> EINVAL
        route add 172.16.0.0/16 via 10.1.0.255 dev eth0 onlink -> EINVAL
        route add 172.16.0.0/16 via 10.1.0.4 dev eth0 onlink -> EINVAL
    """,
    "a gateway that is a local address": """
        route add 172.16.0.0/16 via 10.1.0.4
        route add 172.17.0.0/16 via 127.0.0.1
    """,
    "a gateway behind a discarding route of global scope": """
        route add blackhole 10.1.0.1/32
        route add 172.16.0.0/16 via 10.1.0.1 dev eth0
    """,
    "a gateway behind a discarding route of scope link": """
        route add blackhole 10.1.0.1/32 scope link
        route add unreachable 10.1.0.2/32 scope link
        route add prohibit 10.1.0.3/32 scope link
        route add 172.16.0.0/16 via 10.1.0.1 dev eth0 -> EINVAL
        route add 172.16.0.0/16 via 10.1.0.2 dev eth0 -> EHOSTUNREACH
        route add 172.16.0.0/16 via 10.1.0.3 dev eth0 -> EACCES
    """,
    "a gateway behind a link route needs scope link": """
        route add 192.0.2.1/32 dev eth0 scope global
        route add 172.16.0.0/16 via 192.0.2.1 dev eth0 -> ENETUNREACH
        route del 192.0.2.1/32 dev eth0
        route add 192.0.2.1/32 dev eth0
        route add 172.16.0.0/16 via 192.0.2.1 dev eth0
    """,
    "onlink accepts any gateway": """
        route add 172.16.0.0/16 via 192.0.2.1 dev eth0 onlink
        route add 172.17.0.0/16 via 192.0.2.1 onlink -> ENODEV
    """,
    "a link-local IPv6 gateway": """
        route add 172.16.0.0/16 via inet6 fe80::1 dev eth0
    """,
    "a link that is down": """
        link set ib0 down
        route add 172.16.0.0/16 dev ib0 -> ENETDOWN
        route add 172.16.0.0/16 via 10.2.0.1 dev ib0 onlink -> ENETDOWN
        route add 172.16.0.0/16 via inet6 fe80::1 dev ib0 -> ENETDOWN
    """,
    "no device": """
        route add 172.16.0.0/16 dev nope -> ENODEV
        route add 172.16.0.0/16 -> ENODEV
        route add 172.16.0.0/16 via 0.0.0.0 -> ENODEV
    """,
    "routes that the kernel calls invalid": """
        route add 172.16.0.0/16 via 10.1.0.1 dev eth0 src 10.9.9.9 -> EINVAL
        route add blackhole 172.16.0.0/16 via 10.1.0.1 -> EINVAL
        route add blackhole 172.16.0.0/16 dev eth0 -> EINVAL
        route add 172.16.0.0/16 via 10.1.0.1 dev eth0 scope host -> EINVAL
        route add 172.16.0.0/16 via 10.1.0.1 dev eth0 scope nowhere -> EINVAL
        route add 172.16.0.0/16 via 10.1.0.1 nhid 7 -> EINVAL
        route add 172.16.0.0/16 dev eth0 onlink -> EINVAL
        route add local 172.16.0.0/16 dev eth0 scope link -> EINVAL
    """,
    "the source of a discarding route is ignored": "route add blackhole 172.16.0.0/16 src 10.9.9.9",
    "a lost carrier doesn't matter": """
        link set ib0 carrier off
        route add 172.16.0.0/16 via 10.2.0.1 dev ib0
        route add 172.17.0.0/16 via inet6 fe80::1 dev ib0
        get 172.17.0.1 -> 172.17.0.0/16 via inet6 fe80::1 dev ib0 proto hostrouting
    """,
    "gateways are checked only when a route is added": """
        route add 192.0.2.1/32 dev eth0
        route add 172.16.0.0/16 via 192.0.2.1 dev eth0
        route del 192.0.2.1/32 dev eth0
        get 172.16.1.1 -> 172.16.0.0/16 via 192.0.2.1 dev eth0 proto hostrouting
    """,
}

LIFE = {
    "the routes of an address": """
        addr add 10.5.0.4/24 dev eth0
        addr add 10.6.0.4/31 dev eth0
        addr add 10.7.0.4/32 dev eth0
        addr add 10.8.0.4/24 dev eth0 noprefixroute
        addr add 10.9.0.4/24 dev eth0 metric 77
        addr add 10.10.0.4/32 dev eth0 peer 10.11.0.1
        addr add 10.5.0.4/24 dev eth0 -> EEXIST
        addr del 10.5.0.9/24 dev eth0 -> EADDRNOTAVAIL
    """,
    "one subnet on two links: the first wins": """
        addr add 10.1.0.5/24 dev ib0
        get 10.1.0.9 -> 10.1.0.0/24 dev eth0 proto kernel scope link src 10.1.0.4
    """,
    "one of several addresses is deleted: routes through its subnet stay": """
        addr add 10.5.0.4/24 dev eth0
        route add 172.16.0.0/16 via 10.5.0.1 dev eth0
        route add 172.17.0.0/16 via 10.1.0.1 dev eth0 src 10.5.0.4
        addr del 10.5.0.4/24 dev eth0
    """,
    "the primary is deleted with its secondaries": """
        addr add 10.1.0.5/24 dev eth0
        route add 172.16.0.0/16 via 10.1.0.1 dev eth0
        addr del 10.1.0.4/24 dev eth0
    """,
    "the last address is deleted with all routes of the link": """
        route add 172.16.0.0/16 via 10.2.0.1 dev ib0
        route add 172.17.0.0/16 dev ib0 table 100
        route add 172.18.0.0/16 nexthop via 10.1.0.1 dev eth0 nexthop via 10.2.0.1 dev ib0
        addr del 10.2.0.4/24 dev ib0
    """,
    "a link goes down": """
        route add 172.16.0.0/16 via 10.2.0.1 dev ib0
        route add 172.17.0.0/16 dev ib0 table 100
        route add 172.18.0.0/16 nexthop via 10.1.0.1 dev eth0 nexthop via 10.2.0.1 dev ib0
        route add 172.19.0.0/16 via 10.1.0.1 dev eth0 src 10.2.0.4
        link set ib0 down
        get 10.2.0.4 -> local 10.2.0.4 dev ib0 proto kernel scope host src 10.2.0.4
        link set eth0 down
    """,
    "a link comes back up": """
        route add 172.16.0.0/16 via 10.2.0.1 dev ib0
        route add 172.18.0.0/16 nexthop via 10.1.0.1 dev eth0 nexthop via 10.2.0.1 dev ib0
        link set ib0 down
        link set ib0 up
    """,
    "a lost carrier: the route still wins": """
        route add 172.16.0.0/16 via 10.2.0.1 dev ib0
        route add 172.16.0.0/16 via 10.1.0.1 dev eth0 metric 10
        link set ib0 carrier off
        get 172.16.1.1 -> 172.16.0.0/16 via 10.2.0.1 dev ib0 proto hostrouting linkdown
        link set ib0 carrier on
    """,
    "a link is deleted": """
        route add 172.16.0.0/16 via 10.2.0.1 dev ib0
        route add 172.18.0.0/16 nexthop via 10.1.0.1 dev eth0 nexthop via 10.2.0.1 dev ib0
        link del ib0
        link del ib0 -> ENODEV
    """,
    "lo is down": """
        link set lo down
        get 10.1.0.4 -> local 10.1.0.4 dev eth0 proto kernel scope host src 10.1.0.4
        route add 172.16.0.0/16 dev lo -> ENETDOWN
    """,
}


def _rows(*tables: dict[str, str]) -> list[object]:
    return [pytest.param(scenario, id=name) for table in tables for name, scenario in table.items()]


@pytest.mark.kernel
@pytest.mark.parametrize("scenario", _rows(LOOKUPS, DISCARDS, DESTINATIONS, WRITES, LIFE))
def test_row(scenario: str) -> None:
    """After each command, all routes and addresses are the same on both kernels."""
    ours, linux = like_linux(), on_linux()
    for commands in (PAIR, *scenario.splitlines()):
        for kernel in (ours, linux):
            play(kernel, commands)
        assert (read_routes(ours), ours.facts().addresses) == (
            read_routes(linux),
            linux.facts().addresses,
        ), commands


@pytest.mark.parametrize(("selector", "is_caught"), SELECTORS.items())
def test_rule_selector(each_kernel: Kernel, selector: str, is_caught: bool) -> None:
    if "uidrange 1000" in selector and isinstance(each_kernel, NamespaceKernel):
        skip_without_other_users()
    way = "via 10.2.0.1 dev ib0 table 100" if is_caught else "via 10.1.0.1 dev eth0"
    scenario = f"""
        route add default via 10.1.0.1 dev eth0
        route add default via 10.2.0.1 dev ib0 table 100
        rule add pref 100 {selector} lookup 100
        get 8.8.8.8 -> default {way} proto hostrouting
    """
    play(each_kernel, PAIR + scenario)
