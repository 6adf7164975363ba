"""Random hosts with what few hosts have, as commands: only sockets know what the kernel makes of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

from audit.hosts import Audited, commands

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

    import connecting

# Out of this namespace and back: the interface is then the last of the kernel's list, by its old number.
_MOVED = (
    "unshare -n sh -c 'until ip link set eth1 netns '$$' 2>/dev/null; do sleep .01; done' & "
    "until [ $(readlink /proc/$!/ns/net) != $(readlink /proc/$$/ns/net) ]; do sleep .01; done; "
    "ip link set eth1 netns $!; wait; ip link set eth1 arp off up"
)
_AWAY = "ip route add default dev ib0 table 104"
_KNOWN = "ip neigh replace {} lladdr 02:00:00:00:00:01 nud"
_OBJECTS = (
    *(
        "ip nexthop add id 1 via 10.1.0.1 dev eth0 onlink",
        "ip nexthop add id 2 dev DEV",
        "ip nexthop add id 3 group 1/2",
    ),
    *("ip nexthop add id 4 blackhole", "ip nexthop add id 5 group 1"),
)
_HOPS = (
    "ip route replace [PREFIX|PREFIX|default] nexthop via 10.1.0.1 dev eth0 onlink nexthop via 10.2.0.1 dev DEV onlink"
)
_LOST, _COUNTS = "ip link set peer-[DEV|DEV|eth0] down", "sysctl -qw net.ipv4.conf.all.ignore_routes_with_linkdown=1"

SEEN_FEATURES: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "default routes of one metric": (
        (),
        (
            "ip route [append|append|prepend] default via 10.2.0.1 dev DEV onlink metric 100",
            "[ip route append default via 10.3.0.1 dev tap9 onlink metric 100|]",
            "sysctl -qw net.ipv4.neigh.eth0.delay_first_probe_time=3600",
            "sysctl -qw net.ipv4.neigh.DEV.delay_first_probe_time=3600",
            f"{_KNOWN.format('10.1.0.1 dev eth0')} [stale|stale|delay|reachable|permanent]",
            f"{_KNOWN.format('10.2.0.1 dev DEV')} [stale|permanent]",
        ),
    ),
    "default routes of several metrics": ((), ("ip route append default via 10.2.0.1 dev DEV onlink metric [50|200]",)),
    "a route whose source went": (
        (),
        (
            "ip address add 10.1.0.77/32 dev eth0",
            "ip route replace PREFIX dev eth0 src 10.1.0.77 table [105|105|main]",
            "ip rule add pref 3 to PREFIX lookup 105",
            "ip address del 10.1.0.77/32 dev eth0",
        ),
    ),
    "a source by a local route (AnyIP), which may be gone": (
        ("ip route add local 10.7.7.7 dev lo",),
        (
            "ip route replace [default|default|PREFIX] via 10.1.0.1 dev eth0 onlink src 10.7.7.7",
            "[ip route del local 10.7.7.7 dev lo table local|]",
        ),
    ),
    "a default route by an interface without an address": (
        ("ip address add 10.9.0.1/24 dev ib0",),
        ("ip route add default dev tap9",),
    ),
    "the same, and an interface that was in another namespace": (
        (_MOVED, "ip address add 10.9.0.1/24 dev ib0"),
        ("ip route add default dev tap9",),
    ),
    "addresses of scope host or link, and route_localnet": (
        (
            "sysctl -qw net.ipv4.conf.all.route_localnet=[1|1|0]",
            "ip address add 10.1.8.8/[24|32] dev eth0 scope [host|host|link]",
        ),
        ("ip route add default dev eth0 scope [link|global]",),
    ),
    "an IPv6 gateway whose first bytes are a subnet's": (
        ("ip address add 2001:db8::4/64 dev eth0 nodad",),
        (
            "ip address add 32.1.13.4/16 dev eth0",
            "ip route add [0.0.0.0/0|0.0.0.0/0|PREFIX] via inet6 2001:db8::1 dev eth0 onlink metric 3",
        ),
    ),
    "two scopes by one nexthop object": (
        ("ip address add 10.1.8.4/24 dev eth0 scope link", "ip address add 10.1.7.4/24 dev eth0"),
        (
            "ip nexthop add id 1 dev eth0",
            "ip route add [default|10.6.0.0/16] nhid 1 scope [global|link]",
            "ip route add [default|10.6.0.0/16] nhid 1 scope [link|global]",
        ),
    ),
    "wide routes of type anycast, broadcast or multicast": (
        (),
        ("ip route add [anycast|anycast|broadcast|multicast] PREFIX dev [eth0|eth0|DEV] table main metric 2",),
    ),
    "wide entries of table local": (
        (),
        (
            "[ip rule add pref 5 lookup 77|]",
            "ip rule del pref 5",
            "ip route add [local PREFIX dev lo|broadcast PREFIX dev DEV] table local",
        ),
    ),
    "several hops, and a carrier lost before it counts": ((), (_HOPS, _LOST, _COUNTS)),
    "several hops, and a carrier lost when it counts": ((), (_HOPS, _COUNTS, _LOST)),
    "encapsulation in IPv6 (seg6)": (
        ("ip address add fd00:2::4/64 dev ib0 nodad",),
        (
            "ip route add fc00::/16 via fd00:2::1 dev [ib0|ib0|eth0] onlink",
            "ip route add PREFIX encap seg6 mode [encap|encap.red] segs fc00::1 dev eth0 metric 2",
        ),
    ),
    "rules for all ports of a client": (
        (),
        (_AWAY, "ip rule add pref 2 [|ipproto tcp |ipproto udp ][dport|sport] 1-6553[4|5] lookup 104"),
    ),
    "rules for some ports, or all but some": (
        (),
        (_AWAY, "ip rule add [|not ]pref 2 [|ipproto tcp ]dport [443|8000-9000] lookup 104"),
    ),
    "rules by DSCP": ((), (_AWAY, "ip rule add pref 2 dscp [5|0|0x0/0x3|0x0/0x3|0x4/0x3f] lookup [104|104|254]")),
    "rules: l3mdev": (
        (),
        (
            _AWAY,
            "ip rule add pref 1000 l3mdev",
            "ip rule add pref 2 [not to 10.5.0.0/16 unreachable|to PREFIX lookup 104]",
        ),
    ),
    "rules: nop, goto, suppress": (
        (),
        (
            _AWAY,
            "ip link set ib0 group 5",
            "ip rule add pref 2 [goto 40000|nop|lookup main suppress_[ifgroup 5|prefixlength 16]]",
            "ip rule add pref [4|40000] [to PREFIX |]lookup 104",
        ),
    ),
    "the rule of table local behind others": (
        ("ip address add BASE.5/[24|32] dev DEV",),
        ("ip rule add pref 500 lookup local", "ip rule del pref 0"),
    ),
    "interfaces with odd names": (
        (),
        (
            "ip link add name 'NAME' type veth peer name peer-odd",
            "ip link set peer-odd up",
            "ip link set dev 'NAME' arp off up",
            "ip route add PREFIX dev 'NAME' metric 1",
        ),
    ),
    "nexthop groups and blackhole objects": (
        ("[sysctl -qw net.ipv4.nexthop_compat_mode=0|]",),
        (*_OBJECTS, "ip route add PREFIX nhid [1|2|3|3|4|5] metric 1"),
    ),
    "a nexthop group that lost a member": ((), (*_OBJECTS, "ip route add PREFIX nhid 3", "ip nexthop del id [1|2]")),
    "shadows with a metric": (
        (),
        ("ip route add PREFIX dev ib0 metric 100", "ip route add BASE.7/32 dev ib0 metric 100"),
    ),
}
"""What only hosts have that sockets judge: what is done before they have addresses, and in the end.

``[a|b]`` is one of them by chance; DEV, PREFIX, BASE and NAME are an interface, a destination, its first three bytes, and
an odd name.
"""

CHURN: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "churn: of two shadows one is always there": (
        ("ip route add BASE.0/32 dev DEV", "ip route add BASE.255/32 dev DEV"),
        (
            *("ip route del BASE.0/32 dev DEV", "ip route add BASE.0/32 dev DEV"),
            *("ip route del BASE.255/32 dev DEV", "ip route add BASE.255/32 dev DEV"),
        ),
    ),
    "churn: a shadow that moves between tables": (
        ("ip route add BASE.255/32 dev DEV table 105", "ip rule add pref 3 lookup 105"),
        (
            *("ip route add BASE.255/32 dev DEV", "ip rule del pref 3"),
            *("ip rule add pref 3 lookup 105", "ip route del BASE.255/32 dev DEV"),
        ),
    ),
    "churn: an own address that comes and goes": (
        ("ip address add BASE.0/32 dev DEV",),
        ("ip address del BASE.0/32 dev DEV", "ip address add BASE.0/32 dev DEV"),
    ),
    "churn: a shadow that comes and goes": (
        ("ip route add BASE.0/32 dev DEV",),
        ("ip route del BASE.0/32 dev DEV", "ip route add BASE.0/32 dev DEV"),
    ),
    "churn: a route elsewhere": ((), ("ip route add 203.0.113.0/24 dev eth1", "ip route del 203.0.113.0/24 dev eth1")),
}
"""What is there before, and what changes again and again; after each cycle all is as it was."""

# Routes that lead where they should, so that a look at the tables takes a while.
_MANY = (
    "ip rule add pref 4 to PREFIX lookup 200",
    "for i in $(seq 100); do echo route add BASE.$((i + 100)) dev eth0; done | ip -batch - -force",
)


def with_features(question: connecting.Question, chance: random.Random) -> Audited:
    """Give a host one or two features, or let it change all the time.

    Args:
        question: the host without them; its interfaces are made anew.
        chance: chooses.
    """
    world = question.world if chance.random() < 0.5 else attrs.evolve(question.world, rules=())
    expected = tuple({each.cidr: each for each in question.expected}.values())
    prefix = chance.choice((str(expected[0].cidr), "172.16.1.0/24", "172.16.0.128/25"))
    words = {
        "PREFIX": prefix,
        "BASE": prefix.rpartition(".")[0],
        "DEV": chance.choice(("eth1", "ib0")),
        "NAME": chance.choice(("eth0,eth0", "eth0,tap9", "*", "eth?", "-n")),
    }

    def chosen(templates: Sequence[str]) -> list[str]:
        return [step for step in (_chosen(chance, template, words) for template in templates) if step]

    steps = [step for step in commands(world) if not step.startswith("ip link ")]
    cycle: list[str] = []
    if chance.random() < 0.15:
        names = [chance.choice([*CHURN])]
        there, again = CHURN[names[0]]
        steps += chosen((*_MANY, *there))
        cycle = chosen(again)
    else:
        names = chance.sample([*SEEN_FEATURES], chance.choice((1, 1, 2)))
        for before, after in map(SEEN_FEATURES.__getitem__, names):
            steps = [*chosen(before), *steps, *chosen(after)]
        steps += _caught(chance, steps)
    steps = [*_links(chance), *steps]
    return Audited(tuple(steps), expected, question.allowed, cycle=tuple(cycle), is_seen=True, names=tuple(names))


def _chosen(chance: random.Random, template: str, words: dict[str, str]) -> str:
    while choice := re.search(r"\[([^][]*\|[^][]*)\]", template):
        template = template.replace(choice[0], chance.choice(choice[1].split("|")), 1)
    return re.sub("|".join(words), lambda word: words[word[0]], template)


def _links(chance: random.Random) -> Iterator[str]:
    """Interfaces that are registered in another order than numbered, or in the same."""
    numbers = chance.choice(((21, 22, 23, 24), (50, 60, 40, 70), (70, 40, 60, 50)))
    for number, dev in zip(numbers, chance.sample(("eth0", "eth1", "ib0", "tap9"), 4), strict=True):
        yield f"ip link add {dev} index {number} type veth peer name peer-{dev}"
        yield f"ip link set peer-{dev} up"
        yield f"ip link set {dev} arp off up"


def _caught(chance: random.Random, steps: list[str]) -> list[str]:
    """Rules that lead connections from some sources away."""
    sources = sorted({*re.findall(r"^ip address add ([\d.]+)/", "\n".join(steps), re.MULTILINE)})
    some = chance.sample(sources, chance.choice([n for n in (0, 0, 1, 1, 2) if n <= len(sources)]))
    rules = [f"ip rule add pref {60 + n} from {source} lookup 104" for n, source in enumerate(some)]
    return [_AWAY, *rules] if rules else []
