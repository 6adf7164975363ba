"""Random hosts, as commands that build them in an empty network namespace."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from ipaddress import IPv4Network
from typing import Any

import attrs
import worlds
from hypothesis import strategies as st
from worlds import Question, World, cut, sources

from hostrouting import ExpectedCidr
from hostrouting.backend import Route
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.testing.strategies import NewAddress


@attrs.frozen
class Audited:
    """A host and its config.

    Args:
        steps: the commands that build the host; failing ip(8) commands are ignored.
        expected: the expected CIDRs and their interfaces.
        allowed: the value of ``allowedDevs``.
        foreseen: the value of ``foreseen``.
        connecting: the addresses that sockets connect to, or None.
        is_odd: whether the host has features that a snapshot may not represent.
        cycle: commands that run continuously during the checks, to change the host.
        is_seen: whether the host can only be tested with sockets.
        names: additional feature names that can't be derived from the commands.
    """

    steps: tuple[str, ...]
    expected: tuple[ExpectedCidr, ...]
    allowed: tuple[str, ...] = ()
    foreseen: tuple[IPv4Network, ...] = ()
    connecting: Question | None = None
    is_odd: bool = False
    cycle: tuple[str, ...] = ()
    is_seen: bool = False
    names: tuple[str, ...] = ()

    failed = ()
    passes_hops = has_odd_sources = False

    @property
    def hostrouting(self) -> dict[str, Any]:
        """Return the config's ``hostRouting`` section."""
        overlap = {
            "expectedCidrs": [each.to_mapping() for each in self.expected],
            "allowedDevs": [*self.allowed],
            "foreseen": [str(prefix) for prefix in self.foreseen],
        }
        return {"routeOverlap": overlap, "waitSeconds": 0}

    @property
    def tries(self) -> int:
        """Return how many ports to try, because the next hop may depend on the port or on neighbours."""
        has_several = re.search(r" nexthop | group | nhid |( default .*\n[\s\S]*){2}", "\n".join((*self.steps, "")))
        return 12 if has_several else 1

    def may_be_unknown(self, _: str) -> bool:
        """Return whether a report may be unknown, because a snapshot may not represent the host."""
        return self.is_odd or self.is_seen

    @property
    def had_rules(self) -> bool:
        """Return whether any rules were ever changed, which permanently separates tables local and main."""
        return any(step.startswith("ip rule ") for step in self.steps)

    @property
    def features(self) -> tuple[str, ...]:
        """Return the names in ``FEATURES`` that apply to the host."""
        return (*self._having(FEATURES), *self.names)

    @property
    def odd_features(self) -> tuple[str, ...]:
        """Return the host's features that plain hosts never have."""
        return (*self._having(ODD_FEATURES), *self.names)

    def _having(self, features: dict[str, str]) -> tuple[str, ...]:
        text = "\n".join((*self.steps, *("# devs" for each in self.expected if each.devs is not None)))
        return tuple(name for name, pattern in features.items() if re.search(pattern, text, re.MULTILINE))


ODD_FEATURES = {
    "routes of other programs in table local": r"^ip route add .* table local",
    "encapsulation": r"^ip route \w+ .* encap ",
    "device groups": r"suppress_ifgroup",
    "a rule that was added and deleted": r"^ip rule add pref 5 .*\nip rule del pref 5$",
    "tied default routes": r"^ip route append default",
    "a neighbour that failed": r" nud failed$",
    "rules by an unknown attribute": r"^ip rule add .* (tun_id|realms) ",
    # The source address depends on the order in which interfaces were registered, which dumps don't include.
    "rules: from, and an interface without an address": (
        r"^ip link add (\S+) (index \d+ )?type veth (?![\s\S]*^ip address add .* dev \1$)"
        r"[\s\S]*^ip rule add .*\bfrom (?!all|0\.0\.0\.0/0)"
    ),
}

FEATURES = {
    "several metrics": r"^ip route add .* metric (?!4294967295)\d",
    "a type of service": r"^ip route add .* tos ",
    "blackhole, unreachable, prohibit": r"^ip route add (blackhole|unreachable|prohibit)",
    "throw": r"^ip route add throw",
    "local, broadcast, anycast or multicast routes of table main": r"^ip route add (local|broadcast|anycast|multicast) .* table main",
    "several hops": r"^ip route add .* nexthop ",
    "onlink gateways": r"^ip route add .* onlink",
    "an IPv6 gateway": r"^ip route add .* via inet6 ",
    "a source of a route's own": r"^ip route add .* src (?!0\.0\.0\.0)",
    "routes of equal metric": r"^ip route (append|prepend) (?!default)",
    "table default": r"^ip route add .* table default",
    "nexthop objects": r"^ip route add .* nhid ",
    "nexthop objects whose hops are hidden": r"nexthop_compat_mode=0",
    "peers": r"^ip address add .* peer ",
    "addresses without a connected route": r"^ip address add .* noprefixroute",
    "rules": r"^ip rule add ",
    "rules: from": r"^ip rule add .*\bfrom (?!all|0\.0\.0\.0/0)",
    "rules: to": r"^ip rule add .*\bto \d",
    "rules: not": r"^ip rule add not ",
    "rules: goto": r"^ip rule add .* goto ",
    "rules: suppress_prefixlength": r"^ip rule add .* suppress_prefixlength",
    "rules: mark, user, tos": r"^ip rule add .* (fwmark|uidrange|tos) ",
    "rules: iif, oif": r"^ip rule add .* (iif|oif) ",
    "rules: protocol, ports": r"^ip rule add .* (ipproto|dport) ",
    "rules that discard": r"^ip rule add .* (blackhole|unreachable|prohibit)",
    "without a rule of the kernel's": r"^ip rule del .* lookup (local|main)$",
    "an address that went": r"^ip address del ",
    "promoted secondary addresses": r"promote_secondaries=1",
    "a link that is down": r"^ip link set \S+ down$",
    "a link that came back": r"^ip link set (\S+) down\nip link set \1 up$",
    "a link that went": r"^ip link del ",
    "a carrier that was lost": r"^ip link set peer-\S+ down$",
    "a carrier that was lost, and counts": r"ignore_routes_with_linkdown=1",
    "expected CIDRs with interfaces of their own": r"^# devs",
    **ODD_FEATURES,
}
"""The features of a host that its commands show."""


# --- the worlds of the tests, as commands ------------------------------------------------------------------------


def commands(world: World) -> Iterator[str]:
    """Yield ip(8) commands equivalent to ``World.build``."""
    for dev in map(shlex.quote, world.devs):
        yield f"ip link add {dev} type veth peer name peer-{dev}"
        yield f"ip link set peer-{dev} up"
        yield f"ip link set {dev} up"
    for dev, address in world.addresses:
        yield f"ip address add {_address(address)} dev {shlex.quote(dev)}"
    if world.objects and world.hides_hops:
        yield "sysctl -qw net.ipv4.nexthop_compat_mode=0"
    yield from (f"ip nexthop add {words}" for words in world.objects)
    yield from (f"ip route add {_route(route)}" for route in world.routes)
    yield from (f"ip rule add {_rule(rule)}" for rule in world.rules)
    for rule in worlds.STANDARD_RULES:
        if rule.preference in world.without:
            yield f"ip rule del pref {rule.preference} lookup {_TABLES[rule.table]}"
    yield from (f"ip link set {dev} down" for dev in sorted({*world.devs} & {*world.down}))
    yield from (f"ip link set peer-{dev} down" for dev in sorted({*world.devs} & {*world.unplugged}))


_TABLES = {255: "local", 254: "main", 253: "default"}


def _address(address: NewAddress) -> str:
    words = address.address
    if address.peer is not None:
        local, _, length = address.address.partition("/")
        words = f"{local} peer {address.peer}/{length}"
    words += f" metric {address.metric}" if address.metric else ""
    return words if address.prefix_route else f"{words} noprefixroute"


def _route(route: Route) -> str:
    words = str(route)
    # Some of these routes don't have ip's default scope.
    more = ("" if " table " in words else " table main") + ("" if " scope " in words else " scope global")
    return re.sub(r"( proto \S+)", rf"\1{more}", words, count=1)


def _rule(rule: Rule) -> str:
    suppress = rule.suppress_prefix_length if rule.action is RuleAction.TO_TABLE else None
    selectors = (
        ("from", rule.source),
        ("to", rule.destination),
        ("tos", rule.tos or None),
        ("fwmark", None if rule.mark is None else f"{rule.mark:#x}/{rule.mark_mask:#x}"),
        ("iif", rule.iif),
        ("oif", rule.oif),
        ("uidrange", None if rule.uid_range is None else "{}-{}".format(*rule.uid_range)),
        ("ipproto", rule.ip_protocol or None),
        ("dport", 443 if rule.has_ports else None),
        ("pref", rule.preference),
        ("lookup", _TABLES.get(rule.table, rule.table) if rule.action is RuleAction.TO_TABLE else None),
        ("goto", rule.goto if rule.action is RuleAction.GOTO else None),
        ("suppress_prefixlength", suppress),
    )
    words = [f"{word} {value}" for word, value in selectors if value is not None]
    if rule.action not in (RuleAction.TO_TABLE, RuleAction.GOTO):
        words.append(rule.action.name.lower())
    return " ".join((*(["not"] if rule.is_inverted else []), *words))


# --- features that the worlds of the tests don't have ------------------------------------------------------------

_BACK = ("ip link set {dev} down", "ip link set {dev} up")


@st.composite
def _more(draw: st.DrawFn, prefixes: list[str], addresses: list[str], devs: list[str]) -> tuple[list[str], list[str]]:
    """Generate commands to run before and after the host's routes are added."""
    dev, prefix = draw(st.sampled_from(devs)), draw(st.sampled_from(prefixes))
    address = draw(st.sampled_from(addresses))
    return draw(
        st.sampled_from(
            (
                ([], [f"ip address del {address}"]),
                (["sysctl -qw net.ipv4.conf.all.promote_secondaries=1"], [f"ip address del {address}"]),
                ([], [step.format(dev=dev) for step in _BACK]),
                ([], [f"ip link del {dev}"]),
                ([], ["ip link set lo down"]),
                (["sysctl -qw net.ipv4.conf.all.ignore_routes_with_linkdown=1"], [f"ip link set peer-{dev} down"]),
                ([], [f"ip route append {prefix} dev {dev}", f"ip route prepend {prefix} dev {devs[-1]} tos 0x10"]),
                ([], [f"ip route prepend {prefix} dev {dev}"]),
                (
                    [],
                    [
                        f"ip route add anycast {prefix} dev {dev} table main",
                        f"ip route add broadcast {prefix} dev {dev} table main metric 5",
                    ],
                ),
                ([], [f"ip route add multicast {prefix} dev {dev}"]),
                ([], [f"ip route add {prefix} via inet6 fe80::1 dev {dev} metric 3"]),
                ([], [f"ip route add {prefix} dev {dev} metric 3 mtu lock 1300 src {address.split('/')[0]}"]),
            )
        )
    )


@st.composite
def _odd(draw: st.DrawFn, prefixes: list[str], devs: list[str], default: Route | None) -> list[str]:
    """Generate commands for features that a snapshot may not represent."""
    dev, (prefix, other) = draw(st.sampled_from(devs)), (draw(st.sampled_from(prefixes)) for _ in range(2))
    table, group = draw(st.sampled_from(("main", "100"))), draw(st.sampled_from((0, 5, 5)))
    inner = draw(st.sampled_from(("192.0.2.1", "10.0.1.1", "172.16.1.1")))
    unmerged = ["ip rule add pref 5 lookup 77", "ip rule del pref 5"]
    tied = []
    if default is not None and default.hops:
        tied = [f"ip route append default via 198.51.100.1 dev {devs[-1]} onlink metric {default.metric}"]
        tied += [
            f"ip neigh replace {hop.gateway} dev {hop.dev} lladdr 02:00:00:00:00:01 nud failed"
            for hop in default.hops
            if hop.gateway is not None
        ]
    return draw(
        st.sampled_from(
            (
                [f"ip route replace {prefix} encap ip id 1 dst {inner} dev {dev}"],
                [f"ip route replace {prefix} encap ip6 id 1 dst fc00::1 dev {dev}"],
                [f"ip route add {prefix} encap seg6 mode encap segs fc00::1 dev {dev} metric 9"],
                [f"ip route replace default encap ip id 1 dst {inner} dev {devs[0]}"],
                [
                    f"ip link set {dev} group 5",
                    f"ip route replace {prefix} dev {dev}",
                    f"ip rule add pref 15 lookup main suppress_ifgroup {group}",
                    f"ip route replace {other} dev eth0 table 100",
                    "ip rule add pref 16 lookup 100",
                ],
                [
                    *unmerged,
                    f"ip route add local {prefix} dev lo table local",
                    f"ip route replace {other} dev {dev}",
                ],
                tied,
                tied,
                [f"ip rule add pref 15 tun_id 5 lookup {table}"],
                [
                    f"ip rule add pref 15 tun_id 5 to {prefix} lookup {table}",
                    f"ip route replace {other} dev {dev} table 100",
                ],
                [f"ip rule add not pref 15 tun_id 5 lookup {table}", f"ip route replace {other} dev {dev} table 100"],
                [f"ip rule add pref 15 to {prefix} lookup {table} realms 3/4"],
                ["ip rule add pref 15 tun_id 5 prohibit"],
            )
        )
    )


def _default(world: World) -> Route | None:
    """Return the default route with the lowest metric."""
    return min(
        (r for r in world.routes if r.destination.prefixlen == 0 and r.table == 254),
        key=lambda r: r.metric,
        default=None,
    )


@st.composite
def hosts(draw: st.DrawFn, *, is_odd: bool) -> Audited:
    """Generate a host.

    Args:
        draw: Hypothesis's draw function.
        is_odd: whether the host must have features that a snapshot may not represent.
    """
    if draw(st.booleans()):
        question = draw(sources.questions())
        expected = {each.cidr: each for each in reversed(question.expected)}
        question = attrs.evolve(question, expected=tuple(expected.values()))
        audited = Audited((), question.expected, question.allowed, connecting=question)
        world = question.world
    else:
        asked = draw(cut.questions(has_objects=True))
        wide = draw(st.sampled_from(((),) * 9 + (("10.0.0.0/16",), ("0.0.0.0/0",), ("8.0.0.0/5",))))
        world = asked.world
        # If a rule suppresses short prefixes, a fix would need millions of long ones.
        is_suppressed = any(rule.suppress_prefix_length is not None for rule in world.rules)
        cidrs = dict.fromkeys((*asked.cidrs, *map(IPv4Network, () if is_suppressed else wide)))
        audited = Audited((), tuple(map(ExpectedCidr, cidrs)), asked.allowed, asked.foreseen)
    steps = list(commands(world))
    at = next((n for n, step in enumerate(steps) if step.startswith("ip address")), len(steps))
    prefixes = sorted({str(route.destination) for route in world.routes if route.destination.prefixlen}) or [
        "10.0.0.0/25"
    ]
    prefixes += [str(each.cidr) for each in audited.expected if each.cidr.prefixlen]
    addresses = [f"{_address(address).split()[0]} dev {dev}" for dev, address in world.addresses]
    if draw(st.integers(0, 3)) == 0:
        before, after = draw(_more(prefixes, addresses, list(world.devs)))
        steps[at:at] = before
        steps += after
        audited = attrs.evolve(audited, connecting=None)
    if is_odd:
        for _ in range(draw(st.sampled_from((1, 1, 2)))):
            steps += draw(_odd(prefixes, list(world.devs), _default(world)))
        audited = attrs.evolve(audited, connecting=None)
    audited = attrs.evolve(audited, steps=tuple(steps))
    return attrs.evolve(audited, is_odd=bool(audited.odd_features))
