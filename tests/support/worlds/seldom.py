"""Hosts that random draws rarely produce, in the syntax of ``scenario``."""

from __future__ import annotations

from ipaddress import IPv4Network

import scenario
from node import lines

from hostrouting.kernel import ip_commands
from hostrouting.testing.strategies import NewAddress
from worlds import Question, World


def question(text: str) -> Question:
    """Return a host and its expected CIDRs from the lines of a scenario, which may also add nexthop
    objects.
    """
    found: dict[str, list[str]] = {
        kind: [] for kind in ("addr add", "nexthop add", "route add", "rule add", "expect")
    }
    for line in lines(text):
        kind = next((kind for kind in found if line.startswith(kind)), None)
        if kind is None:
            raise ValueError(f"a scenario of a question has only {', '.join(found)}, not {line!r}")
        found[kind].append(line.removeprefix(f"{kind} "))
    world = World(
        tuple(map(_address, found["addr add"])),
        tuple(map(scenario.route, found["route add"])),
        tuple(map(ip_commands.parse_rule, found["rule add"])),
        objects=tuple(found["nexthop add"]),
        hides_hops=bool(found["nexthop add"]),
    )
    return Question(world, map(IPv4Network, found["expect"]))


def _address(words: str) -> tuple[str, NewAddress]:
    address, _, dev, *metric = words.split()
    return dev, NewAddress(address, metric=int(metric[1]) if metric else 0)


_UPLINK = """
    addr add 192.0.2.4/24 dev eth0
    route add default via 192.0.2.1 dev eth0 proto dhcp
"""

PAST_MAIN = question(f"""{_UPLINK}
    route add 10.0.1.0/24 via 192.0.2.1 dev eth0 table 100
    rule add pref 10 not to 8.0.0.0/8 goto 40000
    rule add pref 40000 lookup 100
    expect 10.0.0.0/23
""")
"""Rules lead all destinations but one past main, to a table that has some expected routes."""

OWN_BEHIND_MAIN = question(f"""{_UPLINK}
    route add 10.0.0.0/22 via 192.0.2.1 dev eth0
    route add local 10.0.0.0/22 dev lo table 100
    route add 10.0.1.0/24 dev ib0 table 100
    rule add pref 10 suppress_prefixlength 22 lookup main
    rule add pref 11 lookup 100
    expect 10.0.0.0/22
""")
"""Behind main, table 100 has local addresses and a shadow; a longer route in main takes both."""

ODD_NAME = question("""
    addr add 10.0.0.4/22 dev e$th metric 100
    addr add 192.0.2.4/24 dev eth1
    addr add 10.0.0.9/22 dev ib0
    route add default proto dhcp nexthop via 10.0.0.1 dev e$th onlink nexthop via 192.0.2.1 dev eth1
    expect 10.0.0.0/21
""")
"""A config can't contain the interface name that a fix would need."""

LOST_GATEWAY = question(f"""{_UPLINK}
    route add 10.0.1.0/24 dev ib0 proto static
    rule add pref 11 suppress_prefixlength 24 lookup main
    rule add pref 12 prohibit
    expect 10.0.0.0/23
    expect 10.0.1.0/28
""")
"""The rules skip the route to the default gateway, so the kernel refuses new routes by it."""

EXPECTED_LOST_GATEWAY = question("""
    addr add 10.0.0.4/24 dev eth0
    route add default via 10.0.0.1 dev eth0 proto dhcp
    rule add pref 11 suppress_prefixlength 24 lookup main
    rule add pref 12 prohibit
    expect 10.0.0.0/23
    expect 10.0.1.0/28
""")
"""The rules skip the route to the default gateway, which is itself in an expected CIDR."""

CLAIMED_GATEWAY = question("""
    addr add 192.0.2.4/24 dev eth0
    route add default via 192.0.2.1 dev eth0 onlink proto dhcp
    route add 10.0.1.0/24 dev ib0 proto static
    route add local 192.0.2.0/30 dev lo table local
    expect 10.0.0.0/23
""")
"""The default's onlink gateway is now this host's address, so the kernel refuses routes to it."""

PASSED_DISCARD = question(f"""{_UPLINK}
    addr add 198.51.100.4/24 dev ib0
    route add blackhole 10.0.0.0/25 proto static
    route add blackhole 10.0.1.0/25 proto static
    route add 10.0.1.0/26 dev ib0 table 100
    rule add pref 11 suppress_prefixlength 32 lookup main
    rule add pref 12 lookup 100
    expect 10.0.0.0/23
""")
"""A rule uses only the discards of table main; behind another table, main is looked up again."""

BLACKHOLED_GATEWAY = question(f"""{_UPLINK}
    route add blackhole 192.0.2.1/32 proto static
    route add 10.0.1.0/24 dev ib0 proto static
    expect 10.0.0.0/23
""")
"""Packets to the gateway are discarded; the kernel, looking up link routes only, finds it."""

UDP_REFUSED = question(f"""{_UPLINK}
    route add 10.0.1.0/24 dev ib0 proto static
    rule add pref 11 to 192.0.2.0/24 ipproto 17 prohibit
    rule add pref 12 oif eth0 lookup main
    rule add pref 13 to 192.0.2.0/24 prohibit
    expect 10.0.0.0/23
""")
"""Rules that decide differently about packets to the gateway and the kernel's own lookup of it."""

HIDDEN_HOPS = question("""
    addr add 192.0.2.4/24 dev eth0
    addr add 198.51.100.4/24 dev ib0
    nexthop add id 1 via 192.0.2.1 dev eth0
    nexthop add id 2 dev ib0
    nexthop add id 3 group 1,3/2
    nexthop add id 4 blackhole
    nexthop add id 5 group 2
    nexthop add id 6 via fe80::9 dev ib0
    nexthop add id 7 group 4
    nexthop add id 8 via 10.1.0.9 fdb
    route add default nhid 1 scope global proto dhcp metric 100
    route add default nhid 2 scope global proto dhcp metric 200
    route add 10.0.0.0/26 nhid 2 proto static
    route add 10.0.1.0/24 nhid 3 proto static
    route add 10.0.2.0/24 nhid 4 proto static
    route add 10.0.3.0/25 nhid 5 proto static
    route add 10.0.3.128/25 nhid 6 proto static
    route add 10.0.4.0/24 nhid 1 proto static
    route add 10.0.5.0/24 nhid 7 proto static
    expect 10.0.0.0/21
""")
"""Routes, also the default, by nexthop objects of all kinds, none of which shows its hops."""

SELDOM = (
    *(PAST_MAIN, OWN_BEHIND_MAIN, ODD_NAME, PASSED_DISCARD, HIDDEN_HOPS),
    *(LOST_GATEWAY, EXPECTED_LOST_GATEWAY, BLACKHOLED_GATEWAY, CLAIMED_GATEWAY, UDP_REFUSED),
)

# --- rules that select by source ------------------------------------------------------------------

_TWO_UPLINKS = """
    addr add 10.1.0.4/24 dev eth0
    addr add 10.1.9.4/25 dev eth0
    addr add 10.2.0.4/24 dev eth1
    route add default via 10.1.0.1 dev eth0
    route add default via 10.2.0.1 dev eth1 table 100
"""

CHOSEN_BY_AN_EXPECTED_ROUTE = question(f"""{_TWO_UPLINKS}
    route add 172.16.1.0/24 via 10.1.9.1 dev eth0
    rule add pref 5 from 10.1.9.4/32 lookup 100
    expect 172.16.0.0/16
""")
"""A right route has another source than the default route, and a rule selects that source."""

TCP_ONLY_CHOOSES = question(f"""{_TWO_UPLINKS}
    rule add pref 5 from 10.2.0.4/32 lookup main
    rule add pref 6 ipproto 6 lookup 100
    expect 172.16.0.0/16
""")
"""TCP's first lookup ends at eth1, the second, with its source, at eth0: no packet is wrong."""

A_SOURCE_A_HOP = question(f"""{_TWO_UPLINKS}
    route add 172.16.1.0/24 nexthop via 10.1.0.1 dev eth0 nexthop via 10.1.9.1 dev eth0
    rule add pref 5 from 10.1.9.4/32 lookup 100
    expect 172.16.0.0/16
""")
"""Of two hops through eth0, one has a source from which a connection leaves through eth1."""
