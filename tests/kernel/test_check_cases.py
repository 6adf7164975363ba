"""Hosts that once got a wrong verdict, and hosts with several uplinks: sockets, the library and the
boot scripts agree.
"""

from __future__ import annotations

import subprocess
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import attrs
import pytest
from asking import ETH0, Case, all_say, leaving, words_of
from audit.making import add_dscp_rule
from kernels.hosts import keep
from needs import NO_BROADCAST, needs_encapsulation, needs_linux
from node import nics, run_ip, until
from scripts import Sandbox, sandboxes
from wanted import config

import phases
from hostrouting.boot.render import render_check, render_static_routes
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.port import Write, read_routes
from hostrouting.model.errors import RouteError
from hostrouting.model.routes import Table
from hostrouting.model.rules import Rule
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.explanation import explain
from hostrouting.routes.plan import plan_now

pytestmark = pytest.mark.kernel


# Table 100 leads to ib0.
AWAY = "route add default via 10.2.0.1 dev ib0 table 100"

FROM_ETH0 = "rule add pref 100 from 10.1.0.4 lookup 100"
# IPv6 traffic leaves through ib0.
WRAPPED = "addr add fd00:2::4/64 dev ib0 nodad\nroute add fc00::/16 dev ib0"
# The kernel alternates between the routes until the first gateway's neighbour entry becomes
# reachable.
BY_TURNS = """
    link set eth0 arp on
    route add default via 10.1.0.1 metric 1024 table {table}
    route append default via 10.2.0.1 metric 1024 table {table}
    neigh replace 10.1.0.1 dev eth0 lladdr 02:00:00:00:00:01 nud stale
    neigh replace 10.2.0.1 dev ib0 lladdr 02:00:00:00:00:02 nud permanent
"""
GROUP = (
    "link set ib0 group 5\nroute add 10.5.0.0/24 dev ib0\n"
    "route add 10.5.0.0/16 via 10.1.0.1 table 100"
)
BEHIND = "rule add pref 100 lookup main suppress_ifgroup {group}\nrule add pref 200 lookup 100"
WAYS = (
    "encap ip id 1 dst 192.0.2.1",
    "encap ip id 1 dst 192.0.2.1 tos 4",
    "encap ip id 1 dst 192.0.2.1 ttl 9 tos 4 csum",
    "encap ip6 id 1 dst 2001:db8::1 tc 4",
    "encap ip id 1 dst 192.0.2.1 tos 4 nexthop",
)
TUNNELS = "".join(
    f"{nics(f't{n}')}\nroute add 10.5.{n}.0/24 {way} dev t{n}\n" for n, way in enumerate(WAYS, 1)
)
CALICO = f"{nics('cali1')}\nroute add 10.5.7.0/24 dev cali1"
RENAMED_LOOPBACK = "link set lo down\nlink set lo name loop\nlink set loop up"
# Only half of the CIDR has a route once the rules for table main are gone.
ONLY_HALF = """
    route add 10.5.0.0/17 via 10.1.0.1 table 100
    rule add pref 200 lookup 100
    rule del pref 32766
    rule del pref 32767
"""
LOCAL_AROUND = """
    route add local 10.5.0.0/16 dev lo table local
    route add 10.5.1.0/24 via 10.1.0.1
    route add 10.5.2.0/24 dev ib0
"""
# Whatever becomes of the other rules, the node still receives what is sent to its addresses.
RECEIVES = "rule add pref 1 to 10.1.0.4 lookup local\nrule add pref 1 to 127.0.0.0/8 lookup local"
# Table local is searched after main, except for connections from 10.1.0.4.
LOCAL_LAST = """
    rule add pref 200 lookup local
    rule add pref 100 not from 10.1.0.4 lookup main
    rule del pref 0
    addr add 10.5.5.1/24 dev eth0 noprefixroute
"""
WAS_LOCAL = (
    "route add local 10.7.7.7 dev lo\nroute add {} via 10.1.0.1 src 10.7.7.7\n"
    "route del local 10.7.7.7 dev lo table local"
)
# A rule before table local leads a network away.
LED = """
    rule add pref 500 lookup local
    rule del pref 0
    rule add pref 90 to 10.5.5.0/24 lookup 50
    route add default via 10.1.0.1 dev eth0 table 50
"""
# The interfaces are registered in a different order from their indexes.
UNORDERED = nics("eth1 index 50", "ib0 index 60", "eth2 index 40", "tun0 index 70")
BY_TUN0 = "addr add 10.1.0.4/24 dev eth1\naddr add 10.9.0.1/24 dev eth2\nroute add default dev tun0"
BY_IB0 = "route add default dev ib0 table 100"
MOVED = """
unshare -n sleep 100 & other=$!
while [ /proc/$other/ns/net -ef /proc/self/ns/net ]; do sleep .02; done
ip link set eth1 netns $other
nsenter -t $other -n ip link set eth1 netns $$
ip link set eth1 arp off up
kill $other
"""
TWO_ADDRESSES = (
    f"{nics('eth0', 'ib0')}\naddr add 10.1.0.4/24 dev eth0 scope link\n"
    "addr add 10.1.7.4/24 dev eth0"
)
MAIN_OR_LOCAL = "route add local 10.5.0.0/16 dev lo table local\nroute add 10.5.0.0/17 via 10.1.0.1"

CASES = {
    # Interfaces of its own.
    "no default route, and each CIDR names its interfaces": Case(
        "route add 10.5.0.0/17 dev ib0",
        "NO-ROUTE at 10.5.128.0",
        cidr={"cidr": "10.5.0.0/16", "devs": ["ib0"]},
        default="",
    ),
    "no default route, and a CIDR names its interfaces": Case(
        "", cidr={"cidr": "10.2.0.0/24", "devs": ["ib0"]}, default="", notes="BROADCAST LOCAL"
    ),
    # Rules.
    "a rule for the source of connections": Case(f"{AWAY}\n{FROM_ETH0}", "ib0 from 10.1.0.4"),
    "a rule for another source": Case(f"{AWAY}\nrule add from 10.2.0.4 lookup 100"),
    "a rule for another source, and datagrams fail": Case(
        f"{AWAY}\nroute add 10.5.0.0/16 dev ib0\nrule add from 10.2.0.4 lookup 100", "ib0"
    ),
    "a rule for the source and a part of the CIDR": Case(
        f"{AWAY}\nrule add from 10.1.0.4 to 10.5.9.0/24 lookup 100", "ib0 at 10.5.9.0 from 10.1.0.4"
    ),
    "a rule for the source and a protocol of no socket": Case(
        f"{AWAY}\nrule add from 10.1.0.4 ipproto icmp lookup 100"
    ),
    "a rule for the source of a longer route": Case(
        f"{AWAY}\naddr add 10.1.0.9/24 dev eth0\nroute add 10.5.9.0/24 via 10.1.0.1 src 10.1.0.9\n"
        "rule add from 10.1.0.9 lookup 100",
        "ib0 from 10.1.0.9; ib0 at 10.5.9.0 from 10.1.0.9",
    ),
    "a rule for replies alone": Case(
        (
            f"{AWAY}\naddr add 10.1.0.5/24 dev eth0\n"
            f"route replace default via 10.1.0.1 proto dhcp src 10.1.0.5\n{FROM_ETH0}"
        ),
        "ib0 from 10.1.0.4",
    ),
    "a rule for replies from the loopback interface": Case(
        f"{AWAY}\nlink set lo up\naddr add 10.9.9.9/32 dev lo\nrule add from 10.9.9.9 lookup 100",
        "ib0 from 10.9.9.9",
    ),
    "a rule for replies before a local route of main": Case(
        f"{AWAY}\nroute add local 10.5.0.0/16 dev lo table main\n{FROM_ETH0}",
        "lo; ib0 from 10.1.0.4",
    ),
    "a rule for replies beside one for half of all sources": Case(
        (
            f"{AWAY}\naddr add 192.168.7.4/24 dev eth0\n"
            "rule add pref 7 from 0.0.0.0/1 lookup main\nrule add pref 8 lookup 100"
        ),
        "ib0 from 192.168.7.4",
    ),
    "a rule for replies through another interface": Case(
        f"{AWAY}\nrule add from 10.2.0.4 lookup 100"
    ),
    "a rule for replies that leads back": Case(
        "addr add 10.1.0.5/24 dev eth0\nroute add default via 10.1.0.1 table 100\n"
        "rule add from 10.1.0.5 lookup 100"
    ),
    "a rule that datagrams meet and connections don't": Case(
        f"{AWAY}\nrule add not from 10.1.0.4 lookup 100", "ib0"
    ),
    "a failure of TCP's first lookup is reported once": Case(
        (
            "rule add pref 5 ipproto tcp to 10.5.0.0/16 blackhole\n"
            "rule add pref 6 from 10.1.0.4 to 10.5.0.0/16 blackhole"
        ),
        "BLACKHOLE",
    ),
    "a rule to a prefix with host bits": Case(
        f"{AWAY}\naddr add 10.5.1.255/32 dev eth0\nrule add to 10.5.1.255/24 lookup 100",
        "ib0 at 10.5.1.0",
        notes="LOCAL",
    ),
    "an interface with a hostile name": Case(
        "link add secondary type veth peer name q3\n"
        "link set secondary up\naddr add 10.3.0.4/24 dev secondary\n"
        "route replace default dev secondary\n"
        "route add unreachable default table 100\nrule add from 10.3.0.4 lookup 100",
        "BLACKHOLE from 10.3.0.4",
    ),
    "a discard by a rule with realms is a CNI's": Case(
        "route add 10.5.7.0/24 via 10.1.0.7 proto bird\n"
        "route add blackhole 10.5.4.0/24 table 100 proto bird\n"
        "rule add pref 5 lookup 100 realms 5/6"
    ),
    "TCP and datagrams are discarded differently": Case(
        (
            "rule add pref 10 to 10.5.0.0/16 prohibit\n"
            "rule add pref 5 ipproto tcp to 10.5.0.0/16 blackhole"
        ),
        "BLACKHOLE",
    ),
    "three rules that aren't the default ones": Case(
        "route add 10.5.1.0/24 via 10.1.0.1\nroute add 10.5.0.0/16 dev ib0 table 100\n"
        "rule add pref 20 lookup 100 protocol kernel\nrule del pref 32767",
        "ib0",
    ),
    "one for TCP": Case(f"{AWAY}\nrule add ipproto tcp lookup 100", "ib0"),
    "one for UDP": Case(f"{AWAY}\nrule add ipproto udp lookup 100", "ib0"),
    "a rule for UDP from a source": Case(
        f"{AWAY}\nrule add from 10.1.0.4 ipproto udp lookup 100", "ib0 from 10.1.0.4"
    ),
    "a rule for TCP, which only replies meet": Case(
        (
            f"{AWAY}\nrule add pref 10 from 10.2.0.4 lookup main\n"
            "rule add pref 11 ipproto tcp lookup 100"
        ),
        "ib0 from 10.1.0.4",
    ),
    "a rule for tunnels, and no other rule leads to the default route": Case(
        f"rule add pref 100 tun_id 5 lookup main\n{ONLY_HALF}", "NO-ROUTE at 10.5.128.0"
    ),
    "a rule for all but tunnels that redirects": Case(
        f"{AWAY}\nrule add not pref 100 tun_id 5 lookup 100", "ib0"
    ),
    "a rule for tunnels that redirects, as main does": Case(
        (
            "route add 10.5.0.0/24 dev ib0\nroute add default dev peer-ib0 table 100\n"
            "rule add pref 100 tun_id 5 lookup 100"
        ),
        "ib0",
    ),
    "a connection that is discarded": Case(
        "rule add from 10.1.0.4 to 10.5.0.0/24 blackhole", "BLACKHOLE from 10.1.0.4"
    ),
    "a connection that an unreachable rule discards": Case(
        "rule add from 10.1.0.4 unreachable", "NO-ROUTE from 10.1.0.4"
    ),
    "a connection that is prohibited": Case(
        "rule add from 10.1.0.4 prohibit", "BLACKHOLE from 10.1.0.4"
    ),
    "rules that discard": Case(
        "rule add pref 10 to 10.5.0.0/25 unreachable\nrule add pref 11 to 10.5.0.128/25 blackhole",
        "NO-ROUTE; BLACKHOLE at 10.5.0.128",
    ),
    "results of prefixes up to a length are suppressed": Case(
        "route add 10.5.0.0/24 dev ib0\nroute add 10.5.0.0/16 via 10.1.0.1 table 100\n"
        "rule add pref 100 lookup main suppress_prefixlength 24\nrule add pref 200 lookup 100"
    ),
    "a renamed loopback": Case(
        f"{AWAY}\n{RENAMED_LOOPBACK}\nrule add pref 50 iif lo lookup 101\n"
        "route add default dev peer-ib0 table 101\n"
        "rule add pref 100 iif loop lookup 100",
        "ib0",
    ),
    "a renamed loopback, and no other rule leads to the default route": Case(
        f"{RENAMED_LOOPBACK}\nrule add pref 100 iif lo lookup main\n{ONLY_HALF}",
        "NO-ROUTE at 10.5.128.0",
    ),
    "results over an interface group are suppressed": Case(f"{GROUP}\n{BEHIND.format(group=5)}"),
    "results over an interface group are suppressed, and the next rule redirects": Case(
        "link set ib0 group 5\nroute add 10.5.0.0/24 dev ib0\n"
        "route add 10.5.0.0/16 dev peer-ib0 table 100\n"
        f"{BEHIND.format(group=5)}",
        "peer-ib0",
        cidr="10.5.0.0/24",
    ),
    "results over another group are suppressed": Case(
        f"{GROUP}\n{BEHIND.format(group=0)}", "ib0", cidr="10.5.0.0/24"
    ),
    # Rules that match ports.
    "a rule for all ports": Case(f"{AWAY}\nrule add dport 1-65534 lookup 100", "ib0"),
    "rules for all ports, and for some": Case(
        f"{AWAY}\nrule add dport 1-65534 lookup 100\nrule add dport 1-8 lookup main\n"
        "rule add ipproto udp dport 443 lookup main\nrule add ipproto tcp sport 1-9 lookup main",
        "ib0",
    ),
    "a rule for all source ports": Case(
        f"{AWAY}\nroute add unreachable 10.5.0.0/16\nroute add 10.5.0.0/16 dev eth0 table 100\n"
        "rule add sport 1-65534 lookup 100",
        unknown="check-failed",
    ),
    "a rule for all source ports that changes nothing": Case(
        "route add default via 10.1.0.1 dev eth0 table 100\nroute add 10.5.0.0/16 dev ib0\n"
        "rule add to 10.6.0.0/16 sport 1-65534 dport 1-65534 lookup 100",
        "ib0",
    ),
    "table local is asked first about source ports alone": Case(
        "rule add pref 25 sport 1-65534 lookup local\nrule del pref 0",
        unknown="check-failed",
    ),
    "a rule for all but the ports that all have": Case(
        f"{AWAY}\nrule add not dport 1-65534 lookup 100"
    ),
    "a rule for all ports of TCP": Case(
        f"{AWAY}\nrule add ipproto tcp dport 1-65534 lookup 100", "ib0"
    ),
    "a rule for some ports": Case(f"{AWAY}\nrule add dport 1000-65534 lookup 100"),
    # Discards.
    "a CNI's own block, or a rule for tunnels": Case(
        "route add blackhole 10.5.1.0/24 proto bird\n"
        "route add 10.5.7.0/24 via 10.1.0.1 proto bird\n"
        "rule add tun_id 5 blackhole",
    ),
    # Tables local, main and default.
    "a wide local entry of table local": Case(
        "route add local 10.5.0.0/17 dev lo table local\nroute add 10.5.1.0/24 via 10.1.0.1",
        "lo",
        by_ip="check-failed",
    ),
    "a wide local entry, and a longer route of main": Case(
        MAIN_OR_LOCAL, by_ip="check-failed", cidr="10.5.0.0/17"
    ),
    "a wide local entry and a longer route, of two tables": Case(
        f"{MAIN_OR_LOCAL}\nrule add pref 5 lookup 77", "lo", cidr="10.5.0.0/17"
    ),
    "a wide broadcast entry of table local": Case(
        "route add broadcast 10.5.0.0/17 dev ib0 table local", "ib0"
    ),
    "a local and a broadcast address of table local": Case(
        (
            "route add local 10.5.0.9 dev lo table local\n"
            "route add broadcast 10.5.0.7 dev ib0 table local"
        ),
        notes="BROADCAST LOCAL",
    ),
    "local and broadcast addresses": Case("addr add 10.5.5.1/24 dev eth0", notes="BROADCAST LOCAL"),
    "table local throws for a network": Case(
        (
            f"{RECEIVES}\nrule add pref 50 lookup 7\nrule del pref 0\n"
            "route add throw 10.5.1.0/24 table local\nroute add local 10.5.1.0/24 dev lo table main"
        ),
        "lo at 10.5.1.0",
    ),
    "table local discards local addresses": Case(
        f"{RECEIVES}\nrule add pref 50 lookup 7\nrule del pref 0\n"
        "route add unreachable 10.5.1.0/24 table local\n"
        "route add local 10.5.1.0/24 dev lo table main",
        "lo at 10.5.1.0",
    ),
    "a local route of main": Case(
        "route add local 10.5.5.0/24 dev lo table main", "lo at 10.5.5.0"
    ),
    "a local route of main, with rules": Case(
        "rule add pref 9 lookup 7\nroute add local 10.5.5.0/24 dev eth0 table main",
        "lo at 10.5.5.0",
    ),
    "a local route of main before table local": Case(
        (
            f"{RECEIVES}\nroute add local 10.5.5.0/24 dev lo table main\n"
            "rule add from 10.2.0.4 lookup 77\nrule del pref 0"
        ),
        "lo at 10.5.5.0; NO-ROUTE at 10.5.5.0 from 10.5.5.0",
    ),
    "a rule was added and deleted": Case(
        f"rule add pref 5 lookup 77\nrule del pref 5\n{LOCAL_AROUND}",
        "lo at 10.5.1.0",
        by_ip="check-failed",
        cidr="10.5.1.0/24",
    ),
    "no rule ever came": Case(
        LOCAL_AROUND, "lo; ib0 at 10.5.2.0", by_ip="check-failed", cidr="10.5.0.0/22"
    ),
    "a discard that differs between one trie and two": Case(
        "route add unreachable 10.5.0.0/16 table local\nroute add blackhole 10.5.1.0/24",
        "BLACKHOLE",
        by_ip="check-failed",
    ),
    "routes of main discard before table default is used": Case(
        "route add blackhole 10.5.0.0/24\n"
        "route add unreachable 10.5.1.0/24\nroute add throw 10.5.2.0/24\n"
        "route add 10.5.0.0/16 via 10.1.0.1 table default",
        "BLACKHOLE",
    ),
    "a route of main discards, and table default has other routes": Case(
        "route add blackhole 10.5.0.0/24\nroute add 192.168.0.0/16 via 10.1.0.1 table default",
        "BLACKHOLE",
    ),
    # Routes of other types.
    "a broadcast and an anycast route of main": Case(
        "route add broadcast 10.5.6.0/24 dev ib0 table main\nroute add anycast 10.5.7.0/24 dev ib0",
        "ib0 at 10.5.6.0",
    ),
    "an anycast route": Case(
        f"route add anycast 10.5.0.0/16 dev eth0 table main\n{AWAY}\n{FROM_ETH0}",
        "ib0 from 10.1.0.4",
    ),
    "a broadcast route of table main": Case(
        "route add broadcast 10.5.0.0/16 dev eth0 table main", "BLACKHOLE"
    ),
    "a broadcast route, which no connection uses": Case(
        f"{AWAY}\nroute add broadcast 10.5.0.0/16 dev eth0 table main\n{FROM_ETH0}",
        "BLACKHOLE; ib0 from 10.1.0.4",
    ),
    "a broadcast route through a container's interface": Case(
        f"{nics('cali1')}\nroute add broadcast 10.5.7.0/24 dev cali1 table main",
        "BLACKHOLE at 10.5.7.0",
    ),
    "a multicast route through a container's interface": Case(
        f"{nics('cali1')}\nroute add multicast 10.5.7.0/24 dev cali1 table main",
        "BLACKHOLE at 10.5.7.0",
    ),
    "a multicast route": Case("route add multicast 10.5.0.0/16 dev eth0 table main", "BLACKHOLE"),
    "a multicast route, which no connection uses": Case(
        f"{AWAY}\nroute add multicast 10.5.0.0/16 dev eth0 table main\n{FROM_ETH0}",
        "ib0 from 10.1.0.4",
    ),
    "a multicast route, which TCP doesn't use": Case(
        (
            f"{AWAY}\nroute add multicast 10.5.0.0/16 dev eth0 table main\n"
            "rule add ipproto tcp lookup 100"
        ),
        "ib0",
    ),
    "a multicast route, and a rule for other sources": Case(
        (
            f"{AWAY}\nroute add multicast 10.5.0.0/16 dev eth0 table main\n"
            "rule add from 10.2.0.4 lookup 100"
        ),
        "BLACKHOLE",
    ),
    # Tunnels.
    "a default route for a tos": Case(
        f"{nics('t0')}\nroute add default tos 0x10 dev t0\nroute add 10.5.3.0/24 dev ib0",
        "ib0 at 10.5.3.0",
    ),
    "a default route for a tos, into a tunnel": Case(
        "route add default tos 0x10 encap ip6 id 1 dst 2001:db8::1 via 10.2.0.1 dev ib0"
    ),
    "a default route into a tunnel with a tos": Case(
        "route replace default encap ip id 1 dst 192.0.2.1 tos 4 via 10.1.0.1 dev eth0\n"
        "route add default via 10.2.0.1 dev ib0 metric 50"
    ),
    "routes into tunnels": Case(TUNNELS, "; ".join(f"t{n} at 10.5.{n}.0" for n in range(1, 6))),
    "routes for a tos, into tunnels": Case(
        "route add 10.5.0.0/24 tos 0x10 encap ip id 1 dst 192.0.2.1 dev ib0\n"
        "route add 10.5.1.0/24 tos 0x10 encap ip6 id 1 dst 2001:db8::1 via 10.2.0.1 dev ib0"
    ),
    "hops into tunnels": Case(
        (
            "route add 10.5.0.0/24 nexthop encap ip id 1 dst 192.0.2.1 dev eth0 "
            "nexthop encap ip id 2 dst 192.0.2.2 dev ib0"
        ),
        "eth0,ib0",
    ),
    "packets encapsulated by a tunnel with addresses": Case(
        "route add 10.5.0.0/16 encap ip6 id 1 dst 2001:db8::1 dev ib0", "ib0"
    ),
    "connections encapsulated by a tunnel": Case(
        (
            "route add 10.5.1.0/24 encap ip id 7 dst 192.0.2.1 dev ib0\n"
            "rule add from 10.2.0.4 to 10.5.1.0/24 prohibit"
        ),
        "ib0 at 10.5.1.0; BLACKHOLE at 10.5.1.0 from 10.2.0.4",
    ),
    "packets encapsulated in IPv6": Case(
        f"{WRAPPED}\nroute add 10.5.0.0/24 encap seg6 mode encap segs fc00::1 dev eth0",
        unknown="check-failed",
    ),
    "packets of one hop encapsulated in IPv6": Case(
        (
            f"{WRAPPED}\nroute add 10.5.0.0/24 "
            "nexthop encap seg6 mode encap segs fc00::1 dev eth0 nexthop dev eth0"
        ),
        unknown="check-failed",
    ),
    "packets of a nexthop object encapsulated in IPv6": Case(
        (
            f"{WRAPPED}\nnexthop add id 5 encap seg6 mode encap segs fc00::1 dev eth0\n"
            "route add 10.5.0.0/24 nhid 5"
        ),
        unknown="check-failed",
    ),
    # Several default routes.
    "a default route that leads to lo": Case(
        "addr add 10.9.0.1/24 dev lo\nroute add default via 10.9.0.9 dev lo",
        unknown="no-default-route",
        default="",
    ),
    "a default route that leads to lo before the node's": Case(
        "addr add 10.9.0.1/24 dev lo\nroute add default via 10.1.0.1 dev eth0 metric 100\n"
        "route add default via 10.9.0.9 dev lo",
        "lo",
        default="",
    ),
    "two default routes of one metric": Case(
        BY_TURNS.format(table="main"), unknown="contested-default", default=""
    ),
    "two default routes of one metric, and the CIDR names its interfaces": Case(
        BY_TURNS.format(table="main"),
        "ib0",
        cidr={"cidr": "10.5.0.0/16", "devs": ["eth0"]},
        default="",
    ),
    "two default routes of one metric, and the CIDR may use both": Case(
        BY_TURNS.format(table="main"),
        cidr={"cidr": "10.5.0.0/16", "devs": ["eth0", "ib0"]},
        default="",
    ),
    "two default routes of one metric, and another rule decides": Case(
        f"{BY_TURNS.format(table=100)}\nrule add lookup 100", "ib0"
    ),
    "two default routes of one metric by one interface": Case(
        "route append default via 10.1.0.7 dev eth0"
    ),
    "two default routes of one metric, and only connections meet them": Case(
        f"{BY_TURNS.format(table='main')}\nroute add 10.5.0.0/16 via 10.1.0.1 dev eth0 table 100\n"
        "rule add not from 10.0.0.0/8 lookup 100",
        "ib0 from 10.1.0.4",
        cidr={"cidr": "10.5.0.0/16", "devs": ["eth0"]},
        default="",
    ),
    # Source addresses that only the kernel knows.
    "a route's src was deleted": Case(
        "addr add 10.1.0.7/32 dev eth0\n"
        "route add 10.5.0.0/16 via 10.1.0.1 dev eth0 src 10.1.0.7 table 100\n"
        "rule add to 10.5.0.0/16 lookup 100\naddr del 10.1.0.7/32 dev eth0",
        "NO-ROUTE from 10.1.0.7",
    ),
    "a longer route's src was local through a route": Case(
        WAS_LOCAL.format("10.5.7.0/24"), "NO-ROUTE at 10.5.7.0 from 10.7.7.7"
    ),
    "the default route's src was local through a route": Case(
        WAS_LOCAL.format("default"), "NO-ROUTE from 10.7.7.7", default=""
    ),
    "the default route's src is local through a route": Case(
        WAS_LOCAL.format("default").rpartition("\n")[0], default=""
    ),
    "a local source, and a rule that only TCP meets": Case(
        "route add 10.5.0.0/24 dev ib0 src 10.2.0.4\nroute add unreachable 10.5.0.0/16 table 100\n"
        "rule add not to 10.5.0.0/24 ipproto tcp lookup 100",
        "BLACKHOLE; ib0",
        cidr="10.5.0.0/24",
    ),
    "the first registered interface hasn't the lowest index": Case(
        f"{BY_TUN0}\n{BY_IB0}\n{FROM_ETH0}",
        "ib0 from 10.1.0.4",
        by_ip="check-failed",
        node=UNORDERED,
        default="",
    ),
    "an interface from another namespace": Case(
        f"{BY_TUN0}\n{BY_IB0}\nrule add from 10.9.0.1 lookup 100",
        "ib0 from 10.9.0.1",
        by_ip="check-failed",
        node=nics("eth1", "ib0", "eth2", "tun0"),
        shell=MOVED,
        default="",
    ),
    "a src that can't leave the host": Case(
        "route add 10.5.7.0/24 via 10.1.0.1 src 127.0.0.1", "BLACKHOLE at 10.5.7.0"
    ),
    "an interface without an address, which takes that of lo": Case(
        "addr flush dev ib0\nroute add 10.5.7.0/24 dev ib0 scope host", "BLACKHOLE at 10.5.7.0"
    ),
    "a rule before table local for a local source": Case(
        f"addr add 10.5.0.9/32 dev ib0\nrule add pref 500 lookup local\nrule del pref 0\n{AWAY}\n"
        "rule add pref 100 from 10.5.0.9 lookup 100",
        unknown="no-local-table",
    ),
    "route_localnet allows an address of scope host as the source": Case(
        "addr add 10.1.0.4/32 dev eth0 scope host\naddr add 10.1.7.5/24 dev eth0\n"
        f"route add default dev eth0 scope link\n{BY_IB0}\n{FROM_ETH0}",
        "ib0 from 10.1.0.4",
        by_ip="check-failed",
        node=nics("eth0", "ib0"),
        default="",
        sysctl=("conf/all/route_localnet",),
    ),
    "an IPv6 gateway is mistaken for four bytes of IPv4": Case(
        "addr add 32.1.13.4/16 dev eth0\naddr add 2001:db8::4/64 dev eth0 nodad\n"
        "route add 0.0.0.0/0 via inet6 2001:db8::1 dev eth0 onlink\n"
        f"{BY_IB0}\nrule add from 32.1.13.4 lookup 100",
        "ib0 from 32.1.13.4",
        default="",
    ),
    "routes of two scopes share a nexthop object": Case(
        "nexthop add id 1 dev eth0\nroute add default nhid 1 scope global\n"
        f"route add 10.6.0.0/16 nhid 1 scope link\n{BY_IB0}\n{FROM_ETH0}",
        "ib0 from 10.1.0.4",
        by_ip="check-failed",
        node=TWO_ADDRESSES,
        default="",
    ),
    "a nexthop object has a source before a route uses it": Case(
        f"nexthop add id 1 dev eth0\nroute add default nhid 1\n{BY_IB0}\n{FROM_ETH0}",
        "ib0 from 10.1.0.4",
        by_ip="check-failed",
        node=TWO_ADDRESSES,
        default="",
    ),
    "two hops by one interface have two sources": Case(
        f"addr add 10.1.7.4/24 dev eth0\n{BY_IB0}\nrule add from 10.1.7.4 lookup 100",
        "ib0 from 10.1.7.4",
        node=ETH0,
        default=(
            "route add default nexthop via 10.1.0.1 dev eth0 nexthop via 10.1.7.1 dev eth0 onlink"
        ),
    ),
    "table local is asked after a rule for what a client sends": Case(
        (
            f"{AWAY}\nrule add pref 60 from 10.5.9.0/24 lookup 100\n"
            "rule add pref 200 lookup local\nrule del pref 0"
        ),
        unknown="no-local-table",
        cidr="10.5.9.0/24",
    ),
    "table local is asked after a rule for who is no client": Case(
        f"{AWAY}\nrule add pref 60 from 10.6.9.0/24 lookup 100\n"
        "rule add pref 200 lookup local\nrule del pref 0"
    ),
    "table local is asked after a rule for TCP": Case(
        "rule add pref 60 ipproto tcp lookup main\nrule add pref 200 lookup local\nrule del pref 0",
        unknown="no-local-table",
    ),
    "only connections meet an address of this host": Case(
        LOCAL_LAST, unknown="no-local-table", cidr="10.5.5.1/32"
    ),
    "only connections meet a broadcast address": Case(
        f"{RECEIVES}\nrule add pref 2 to 10.5.5.1 lookup local\n{LOCAL_LAST}",
        "BLACKHOLE at 10.5.5.255 from 10.1.0.4",
        cidr="10.5.5.128/25",
    ),
    "an address of another interface isn't delivered": Case(
        f"{LED}\naddr add 10.5.5.1/24 dev ib0", unknown="no-local-table"
    ),
    "an address on lo isn't delivered": Case(
        f"{LED}\naddr add 10.5.5.1/32 dev lo", unknown="no-local-table"
    ),
    "an address on lo that is called from elsewhere isn't delivered": Case(
        f"rule add pref 500 lookup local\nrule del pref 0\naddr add 10.6.6.6/32 dev lo\n{AWAY}\n"
        "rule add pref 90 from 10.6.6.6 lookup 100",
        unknown="no-local-table",
    ),
    "an address outside of the expected CIDRs isn't delivered": Case(
        f"{LED.replace('10.5.5.0', '10.6.6.0')}\naddr add 10.6.6.6/32 dev lo"
    ),
    "an address of an interface that is down isn't delivered": Case(
        f"{LED}\n{nics('eth9')}\naddr add 10.5.5.1/32 dev eth9\nlink set eth9 down"
    ),
    "table local lacks an address": Case(
        "addr add 10.5.5.1/24 dev eth0\nroute del local 10.5.5.1 dev eth0 table local",
        unknown="no-local-table",
    ),
    "another entry of table local precedes an address's": Case(
        "addr add 10.5.5.1/24 dev eth0\nroute prepend unreachable 10.5.5.1 table local",
        unknown="no-local-table",
    ),
    "table local has all of a network": Case(
        "addr add 10.5.5.1/24 dev eth0\nroute del local 10.5.5.1 dev eth0 table local\n"
        "route add local 10.5.5.0/24 dev lo",
        "lo at 10.5.5.0",
        notes=None,
    ),
    "connections to a broadcast address use another interface": Case(
        "addr add 10.5.5.1/24 dev eth0 brd +\nrule add pref 10 lookup local\n"
        "rule add pref 5 from 10.5.5.1 to 10.5.5.128/25 lookup 100\n"
        f"{BY_IB0}\nrule del pref 0",
        "ib0 at 10.5.5.128 from 10.5.5.1",
        notes="BROADCAST",
        cidr="10.5.5.128/25",
    ),
    # Interfaces.
    "the uplink is a port of a bridge": Case(
        "link add br0 type bridge\nlink set eth0 master br0", "PORT", notes=None
    ),
    "the uplink is a port of a bridge, for replies alone": Case(
        f"link add br0 type bridge\nlink set ib0 master br0\n{AWAY}\n"
        "rule add pref 90 from 10.1.0.4 lookup 100",
        "PORT from 10.1.0.4",
        uplinks="eth0 ib0",
    ),
    "a port of a bridge carries nothing expected": Case(
        "link add br0 type bridge\nlink set ib0 master br0"
    ),
    "an interface with commas in its name": Case(
        f"{nics('eth0,eth0')}\naddr add 10.5.0.1/24 dev eth0,eth0",
        "eth0,eth0",
        notes="BROADCAST LOCAL",
        cidr="10.5.0.0/24",
    ),
    "an interface that took a node's CIDR": Case(
        CALICO, "cali1 at 10.5.7.0", cidr={"cidr": "10.5.0.0/16", "devs": ["eth0"]}
    ),
    "one of several allowed interfaces": Case(
        CALICO, cidr={"cidr": "10.5.0.0/16", "devs": ["eth0", "cal*"]}
    ),
}


ENDS = (6, 12, "a discarding route of table main ends a lookup")
NEEDS = {
    "routes of main discard before table default is used": ENDS,
    "a route of main discards, and table default has other routes": ENDS,
    "an interface with commas in its name": NO_BROADCAST,
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_check_matches_the_sockets(
    case: Case, kernel: NamespaceKernel, tmp_path: Path
) -> None:
    for name, needed in NEEDS.items():
        if case is CASES[name]:
            needs_linux(*needed)
    if "encap seg6" in case.does:
        needs_encapsulation("seg6")
    case.build()
    keep(case.config, kernel)
    all_say(case, tmp_path)


# --- hosts that ip commands alone can't create ----------------------------------------------------


IGNORES = "conf/all/ignore_routes_with_linkdown"
BY_OBJECTS = """
    addr add 10.3.0.4/24 dev ib0
    nexthop add id 7 dev ib0
    nexthop add id 8 via 10.3.0.1 dev ib0
    route add 10.5.0.0/24 nhid 7
    route add 10.5.0.0/24 via 10.1.0.1 metric 10
    route add 10.5.1.0/24 nhid 8
    route add 10.5.0.0/16 dev peer-eth0
"""
LEGS = "route add 10.5.0.0/16 nexthop via 10.1.0.1 dev eth0 nexthop via 10.2.0.1 dev ib0"
MEMBERS = """
    nexthop add id 1 via 10.1.0.1 dev eth0
    nexthop add id 2 via 10.2.0.1 dev ib0
    nexthop add id 3 group 1/2
    route add 10.5.0.0/16 nhid 3
"""


@pytest.mark.parametrize(
    ("case", "ends", "state"),
    [
        (
            Case(BY_OBJECTS, "peer-eth0 at 10.5.1.0", node=ETH0, sysctl=(IGNORES,)),
            "link set peer-ib0 down",
            "is_dead",
        ),
        # ib0 drops packets for lack of a carrier.
        (Case(LEGS, "eth0,ib0"), "link set peer-ib0 down", "is_linkdown"),
        (Case(LEGS), "link set ib0 down", "is_linkdown"),
        (Case(MEMBERS), "link set peer-ib0 down", "is_linkdown"),
    ],
)
def test_a_hop_loses_its_carrier(
    case: Case, ends: str, state: str, kernel: NamespaceKernel, tmp_path: Path
) -> None:
    """A route by nexthop objects is gone.

    A hop keeps its share if the sysctl to ignore it is set later.
    """
    needs_linux(6, 12, "an interface without a carrier passes packets to packet sockets")
    case.build()
    run_ip(ends)
    # Routes are updated after the link. Setting the link down removes the connected route.
    until(
        lambda: all(
            getattr(hop, state)
            for r in read_routes(kernel, Table.MAIN)
            for hop in r.hops
            if hop.dev == "ib0"
        )
    )
    Path("/proc/sys/net/ipv4", IGNORES).write_text("1")
    all_say(case, tmp_path)


def test_a_hop_without_a_carrier_is_dead_once_its_interface_has_no_address(
    kernel: NamespaceKernel, tmp_path: Path
) -> None:
    """The kernel shows the same words as for a hop that only a sysctl shows as dead."""
    needs_linux(6, 12, "an interface without a carrier passes packets to packet sockets")
    case = Case(LEGS)
    case.build()
    run_ip("link set peer-ib0 down")
    until(lambda: not any(each.has_carrier for each in kernel.facts().links if each.name == "ib0"))
    run_ip("addr flush dev ib0")
    (legs,) = (route for route in read_routes(kernel) if len(route.hops) == 2)
    by_ib0 = next(hop for hop in legs.hops if hop.dev == "ib0")
    assert (by_ib0.is_dead, by_ib0.is_linkdown) == (True, True)
    all_say(case, tmp_path)


def test_a_negative_suppress_length_suppresses_nothing(
    kernel: NamespaceKernel, tmp_path: Path
) -> None:
    """The kernel treats the number as negative, and ip prints it that way."""
    case = Case(
        (
            "route add 10.5.0.0/24 dev ib0\n"
            "route add default via 10.1.0.1 table 100\nrule add pref 200 lookup 100"
        ),
        "ib0",
    )
    case.build()
    kernel.add_rule(Rule(100, suppress_prefix_length=3_000_000_000))
    all_say(case, tmp_path)


OLD_IP = "iproute2-6.1.0"


@pytest.mark.parametrize(
    ("case", "dscp"),
    [
        (
            Case(
                "route add 10.5.0.0/16 dev ib0\nroute add default via 10.1.0.1 table 100",
                "ib0",
                by_ip="check-failed",
                ip=OLD_IP,
            ),
            "5",
        ),
        (Case(AWAY, "ib0", by_ip="check-failed", ip=OLD_IP), "0/3"),
        (
            Case(
                "route add 10.5.0.0/16 dev ib0\nroute add 10.6.0.0/16 dev ib0 table 100",
                "ib0",
                ip=OLD_IP,
            ),
            "0/3",
        ),
        (
            Case(
                f"{AWAY}\nrule add pref 40 not from 10.1.0.4 lookup main",
                "ib0 from 10.1.0.4",
                by_ip="check-failed",
                ip=OLD_IP,
            ),
            "0/3",
        ),
    ],
    ids=["ip may not print it", "a mask", "it may not matter", "only connections"],
)
def test_a_rule_by_a_dscp(case: Case, dscp: str, kernel: NamespaceKernel, tmp_path: Path) -> None:
    needs_linux(6, 16 if "/" in dscp else 13, "rules for a DSCP")
    case.build()
    assert add_dscp_rule("50", dscp, "100") == 0
    all_say(case, tmp_path)


# --- several interfaces that may lead to the cluster ----------------------------------------------

# eth0 is the node's NIC in 10.1.0.0/16, eth1 leads to a storage network, and ib0 has an address in
# the pod range.
THREE_NICS = nics(eth0="10.1.0.4/16", eth1="10.9.0.4/24", ib0="172.16.0.10/16")
NODES, SERVICES, PODS = "10.1.0.0/16", "10.96.0.0/12", "172.16.0.0/16"
BY_ETH0 = "route add default via 10.1.0.1 dev eth0 proto dhcp"
BY_ETH1 = "route add default via 10.9.0.1 dev eth1 proto dhcp"
STORAGE_WINS = f"{BY_ETH0} metric 200\n{BY_ETH1} metric 100"
NODE_WINS = f"{BY_ETH0} metric 100\n{BY_ETH1} metric 200"
TIED = f"{BY_ETH0} metric 100\n{BY_ETH1.replace('add', 'append')} metric 100"
MULTIPATH = (
    "route add default proto dhcp nexthop via 10.1.0.1 dev eth0 nexthop via 10.9.0.1 dev eth1"
)
PODS_FIXED = "172.16.0.0/17 172.16.128.0/17"
SERVICES_BY_ETH1, PODS_BY_IB0 = "eth1 at 10.96.0.0", "ib0 at 172.16.0.0"


@attrs.frozen
class UplinkCase(Case):
    """A host with default routes through several interfaces, and its expected report.

    Lists are separated by spaces.

    Args:
        by: the expected interfaces, or an empty string if there is no verdict.
        inherits: the interfaces of a route that names none, if they aren't the expected ones, or an
            empty string if such a route has to wait.
        is_contested: whether a note says that another default route may be the uplink's.
        fixed: each destination in the fix.
        named: the device that the fix names, or an empty string if its routes inherit one.
        left: the failures that no route can fix.
    """

    by: str = ""
    inherits: str = attrs.field(default=attrs.Factory(lambda self: self.by, takes_self=True))
    is_contested: bool = False
    fixed: str = ""
    named: str = ""
    left: str = ""
    notes: str | None = None
    node: str = THREE_NICS
    default: str = ""
    cidrs: tuple[str, ...] = attrs.field(default=f"{NODES} {SERVICES} {PODS}", converter=words_of)


UPLINK_CASES = {
    "the storage's default wins": UplinkCase(
        STORAGE_WINS,
        f"eth0 at 10.1.0.0; {PODS_BY_IB0}",
        by="eth1",
        is_contested=True,
        fixed=PODS_FIXED,
        left=NODES,
    ),
    "the storage's default wins, and the uplink is named": UplinkCase(
        STORAGE_WINS,
        f"{SERVICES_BY_ETH1}; {PODS_BY_IB0}",
        uplinks="eth0",
        by="eth0",
        fixed=f"{SERVICES} {PODS_FIXED}",
    ),
    "the node's default wins": UplinkCase(
        NODE_WINS, PODS_BY_IB0, by="eth0", is_contested=True, fixed=PODS_FIXED
    ),
    "the node's default wins, and the uplink is named": UplinkCase(
        NODE_WINS, PODS_BY_IB0, uplinks="eth0", by="eth0", fixed=PODS_FIXED
    ),
    "equal metrics": UplinkCase(TIED, inherits="eth0", unknown="contested-default"),
    "equal metrics, and the uplink is named": UplinkCase(
        TIED,
        f"{SERVICES_BY_ETH1}; {PODS_BY_IB0}",
        uplinks="eth0",
        by="eth0",
        fixed=f"{SERVICES} {PODS_FIXED}",
    ),
    "multipath": UplinkCase(MULTIPATH, PODS_BY_IB0, by="eth0 eth1", fixed=PODS_FIXED),
    "multipath, and one is the uplink": UplinkCase(
        MULTIPATH,
        f"eth0,eth1 at 10.96.0.0; {PODS_BY_IB0}",
        uplinks="eth0",
        by="eth0",
        fixed=f"{SERVICES} {PODS_FIXED}",
    ),
    "several uplinks": UplinkCase(
        STORAGE_WINS,
        PODS_BY_IB0,
        uplinks="eth*",
        by="eth0 eth1",
        inherits="eth1",
        is_contested=True,
        fixed=PODS_FIXED,
    ),
    "several uplinks with equal metrics": UplinkCase(
        TIED,
        PODS_BY_IB0,
        uplinks="eth*",
        by="eth0 eth1",
        inherits="eth0",
        is_contested=True,
        fixed=PODS_FIXED,
        named="eth0",
    ),
    "only the storage network has a default": UplinkCase(
        BY_ETH1,
        f"{SERVICES_BY_ETH1}; {PODS_BY_IB0}",
        uplinks="eth0",
        by="eth0",
        is_contested=True,
        inherits="",
        left=f"{SERVICES} {PODS}",
    ),
    "no default at all": UplinkCase(
        "route add 10.96.0.0/16 via 10.1.0.1",
        f"NO-ROUTE at 10.97.0.0; {PODS_BY_IB0}",
        uplinks="eth0",
        by="eth0",
        inherits="",
        left=f"10.97.0.0/16 10.98.0.0/15 10.100.0.0/14 10.104.0.0/13 {PODS}",
    ),
    "a late bond": UplinkCase(BY_ETH0, uplinks="bond* team0", unknown="no-uplink"),
    "the uplink is down": UplinkCase(
        f"{NODE_WINS}\nlink set eth0 down",
        f"eth1 at 10.1.0.0; {SERVICES_BY_ETH1}; {PODS_BY_IB0}",
        uplinks="eth0",
        by="eth0",
        inherits="",
        left=f"{NODES} {SERVICES} {PODS}",
    ),
}


@pytest.mark.parametrize(("mtu", "kinds"), [(1500, []), (1501, ["MTU"])])
def test_a_route_with_too_large_an_mtu_is_noted_without_any_other_cause(
    mtu: int, kinds: list[str], kernel: NamespaceKernel, tmp_path: Path
) -> None:
    case = Case(f"route add 10.5.7.0/24 via 10.1.0.1 dev eth0 mtu {mtu}")
    case.build()
    for report in all_say(case, tmp_path):
        assert [str(note.kind) for note in report.notes] == kinds


@pytest.fixture(params=list(UPLINK_CASES.values()), ids=list(UPLINK_CASES))
def uplinks(request: pytest.FixtureRequest, kernel: NamespaceKernel) -> UplinkCase:
    found: UplinkCase = request.param
    found.build()
    return found


def test_the_uplinks_are_expected_everywhere(
    uplinks: UplinkCase, kernel: NamespaceKernel, tmp_path: Path
) -> None:
    needs_linux(*NO_BROADCAST)
    reports = all_say(uplinks, tmp_path)
    assert bool(reports) != bool(uplinks.unknown)
    for report in reports:
        assert report.default_devs == tuple(uplinks.by.split())
        assert uplinks.is_contested == any(note.kind == "CONTESTED" for note in report.notes)
        assert {str(entry.destination) for entry in report.fix.routes} == {*uplinks.fixed.split()}
        assert {entry.dev for entry in report.fix.routes} <= {uplinks.named or None}
        assert {part for each in report.fix.unfixable for part in each.parts} == {
            *uplinks.left.split()
        }
    if uplinks.unknown == "contested-default":
        with pytest.raises(RouteError, match="several interfaces"):
            explain(IPv4Address("10.96.0.9"), uplinks.config, kernel, phases.CancelScope())
        return
    found = explain(IPv4Address("10.97.0.9"), uplinks.config, kernel, phases.CancelScope())
    assert found.default_devs == tuple(uplinks.by.split())
    is_fine = {probe for _, _, probe, _ in uplinks.told}.isdisjoint({"10.96.0.0", "10.97.0.0"})
    assert found.is_as_expected == (None if uplinks.unknown else is_fine)


def test_an_explanation_shows_each_alternating_default(kernel: NamespaceKernel) -> None:
    case = UPLINK_CASES["equal metrics, and the uplink is named"]
    case.build()
    found = explain(IPv4Address("10.97.0.9"), case.config, kernel, phases.CancelScope())
    ends = {str(way.steps[-1].route): way.judgement.is_failure for way in found.lookups}
    assert ends == {
        "default via 10.1.0.1 dev eth0 proto dhcp metric 100": False,
        "default via 10.9.0.1 dev eth1 proto dhcp metric 100": True,
    }
    own = {address.dev: address.local for address in kernel.facts().addresses}
    assert [way.sources for way in found.lookups] == [(own["eth0"],), (own["eth1"],)]


def test_an_explanation_names_a_route_whose_link_is_down(kernel: NamespaceKernel) -> None:
    run_ip(
        f"{THREE_NICS}\n{BY_ETH0}\n"
        f"route add {SERVICES} via 10.9.0.1 dev eth1\nlink set peer-eth1 down"
    )
    Path("/proc/sys/net/ipv4/conf/eth1/ignore_routes_with_linkdown").write_text("1")
    until(lambda: any(route.is_dead for route in read_routes(kernel)))
    found = explain(
        IPv4Address("10.97.0.9"), config(cidrs=[SERVICES]), kernel, phases.CancelScope()
    )
    assert [str(route.destination) for route in found.lookups[0].steps[-1].ignored] == [SERVICES]
    assert found.is_as_expected


def test_a_route_without_a_device_inherits_from_an_uplink(
    uplinks: UplinkCase, kernel: NamespaceKernel, tmp_path: Path
) -> None:
    def inherited() -> str:
        (route,) = (route for route in read_routes(kernel, Table.MAIN) if route.is_ours)
        assert kernel.write(Write.DELETE, [route]) == ()
        return " ".join(route.devs)

    asked = uplinks.config_with({"destination": "192.168.77.0/24"})
    plan, missing = plan_now(asked, kernel)
    assert bool(missing) != bool(uplinks.inherits)
    assert kernel.write(Write.ADD, plan.add) == ()
    if uplinks.inherits:
        assert inherited() == uplinks.inherits
    for sandbox in sandboxes(uplinks.does, tmp_path):
        done = sandbox.run(render_static_routes(asked))
        assert done.returncode == (not uplinks.inherits), done.stderr
        if uplinks.inherits:
            assert inherited() == uplinks.inherits


def test_the_fix_agrees_with_what_sockets_do(uplinks: UplinkCase, kernel: NamespaceKernel) -> None:
    before = leaving("10.1.0.9"), leaving("10.9.0.9")
    report = check_overlap(uplinks.config, kernel, phases.CancelScope())
    plan, missing = plan_now(
        uplinks.config_with(*(entry.to_mapping() for entry in report.fix.routes)), kernel
    )
    assert missing is None
    assert kernel.write(Write.ADD, plan.add) == ()
    assert (leaving("10.1.0.9"), leaving("10.9.0.9")) == before
    after = check_overlap(uplinks.config, kernel, phases.CancelScope())
    if not uplinks.unknown:
        assert (after.verdict == "ok") == (not uplinks.left)
        assert after.fix.routes == ()
    for network in uplinks.fixed.split():
        assert leaving(str(IPv4Network(network)[9])) <= {*uplinks.by.split()}


def test_it_waits_for_a_late_uplink(kernel: NamespaceKernel, tmp_path: Path) -> None:
    run_ip(f"{THREE_NICS}\n{BY_ETH1}")
    asked = config(SERVICES, cidrs=[SERVICES], uplinks=["bond0"], waitSeconds=60)
    default = f"{BY_ETH0.replace('eth0', 'bond0')} metric 300"

    def start(name: str, text: str, missing: str) -> subprocess.Popen[str]:
        (tmp_path / name).mkdir()
        script = Sandbox(tmp_path / name).start(text)
        assert script.stdout is not None
        assert f"waiting up to 60 s for {missing}" in script.stdout.readline()
        return script

    routes = start(
        "routes",
        render_static_routes(asked),
        f"device bond0 (there is no such interface), needed by {SERVICES}\n",
    )
    run_ip(f"link set eth0 down\nlink set eth0 name bond0\nlink set bond0 up\n{default}")
    assert routes.wait(timeout=60) == 0
    # At boot, too, the check begins after the routes.
    run_ip("route del default dev bond0")
    check = start("check", render_check(asked), "the default route on an uplink\n")
    run_ip(default)
    assert check.wait(timeout=60) == 0
    report = check_overlap(asked, kernel, phases.CancelScope())
    assert (report.verdict, report.default_devs) == ("ok", ("bond0",))


# Two uplinks are in the same subnet, and the second has no carrier.
SHARED = (
    f"{BY_ETH0} metric 100\naddr add 10.1.0.6/16 dev eth1\n"
    "link set peer-eth1 down\naddr add 10.1.2.4/24 dev ib0"
)
# ib0 has an address in the subnet of an uplink that is down.
DOWN = f"{BY_ETH0}\nlink set eth1 down\naddr add 10.9.0.9/16 dev ib0"


@pytest.mark.parametrize(
    ("does", "cidr", "fixed", "named"),
    [
        (SHARED, NODES, ["10.1.2.0/25", "10.1.2.128/25"], None),
        (DOWN, "10.9.0.0/16", ["10.9.0.0/17", "10.9.128.0/17"], None),
        (
            BY_ETH0,
            {"cidr": "10.9.0.0/24", "devs": ["eth0"]},
            ["10.9.0.0/25", "10.9.0.128/25"],
            "eth0",
        ),
    ],
)
def test_a_fix_uses_an_expected_uplink_that_works(
    does: str, cidr: Any, fixed: list[str], named: str | None, kernel: NamespaceKernel
) -> None:
    run_ip(f"{THREE_NICS}\n{does}")
    asked = config(cidrs=[cidr], uplinks=["eth*"])
    fix = check_overlap(asked, kernel, phases.CancelScope()).fix
    assert [(str(entry.destination), entry.dev) for entry in fix.routes] == [
        (network, named) for network in fixed
    ]
    assert bool(fix.unfixable) != bool(fixed)
    wanted = config(*(entry.to_mapping() for entry in fix.routes), cidrs=[cidr], uplinks=["eth*"])
    assert kernel.write(Write.ADD, plan_now(wanted, kernel)[0].add) == ()
    assert check_overlap(asked, kernel, phases.CancelScope()).verdict == (
        "ok" if fixed else "overlap"
    )


@pytest.mark.parametrize(
    ("does", "uplinks", "verdict"),
    [
        (f"{BY_ETH0}\nlink set eth0 alias 'the inet uplink'", ["eth0"], "ok"),
        (f"{BY_ETH0}\nroute add local {SERVICES} dev lo table main", ["*"], "overlap"),
        (f"{BY_ETH0}\nroute add local {SERVICES} dev lo table main", ["lo"], "unknown"),
    ],
)
def test_the_loopback_and_an_alias_do_not_confuse_the_check(
    does: str, uplinks: list[str], verdict: str, kernel: NamespaceKernel, sandbox: Sandbox
) -> None:
    run_ip(f"{THREE_NICS}\n{does}")
    asked = config(cidrs=[SERVICES], uplinks=uplinks)
    report = check_overlap(asked, kernel, phases.CancelScope())
    assert report.verdict == verdict
    assert sandbox.run(render_check(asked)).returncode == (verdict != "ok")
    if verdict == "unknown":
        assert report.reason_detail.endswith("(lo) matches only lo, which can't be an uplink")
        assert sandbox.told() == [report.reason]
