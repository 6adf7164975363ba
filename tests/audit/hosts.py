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
from worlds import Question, World, cut

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
        cycle: commands that run continuously during the checks, to change the host.
        is_seen: whether the host can only be tested with sockets.
        names: additional feature names that can't be derived from the commands.
    """

    steps: tuple[str, ...]
    expected: tuple[ExpectedCidr, ...]
    allowed: tuple[str, ...] = ()
    foreseen: tuple[IPv4Network, ...] = ()
    connecting: Question | None = None
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
        return self.is_seen or self._has(_BORROWED)

    @property
    def had_rules(self) -> bool:
        """Return whether any rules were ever changed, which permanently separates tables local and main."""
        return any(step.startswith("ip rule ") for step in self.steps)

    @property
    def features(self) -> tuple[str, ...]:
        """Return the names in ``FEATURES`` that apply to the host."""
        return (*(name for name, pattern in FEATURES.items() if self._has(pattern)), *self.names)

    def _has(self, pattern: str) -> bool:
        text = "\n".join((*self.steps, *("# devs" for each in self.expected if each.devs is not None)))
        return re.search(pattern, text, re.MULTILINE) is not None


# Rules by source, and an interface without an address: its source address depends on the order in which interfaces were
# registered, which dumps don't include.
_BORROWED = (
    r"^ip link add (\S+) (index \d+ )?type veth (?![\s\S]*^ip address add .* dev \1$)"
    r"[\s\S]*^ip rule add .*\bfrom (?!all|0\.0\.0\.0/0)"
)

FEATURES = {
    "several metrics": r"^ip route add .* metric (?!4294967295)\d",
    "a type of service": r"^ip route add .* tos ",
    "blackhole, unreachable, prohibit": r"^ip route add (blackhole|unreachable|prohibit)",
    "throw": r"^ip route add throw",
    "local, broadcast, anycast or multicast routes of table main": r"^ip route add (local|broadcast|anycast|multicast) .* table main",
    "several hops": r"^ip route add .* nexthop ",
    "onlink gateways": r"^ip route add .* onlink",
    "a source of a route's own": r"^ip route add .* src (?!0\.0\.0\.0)",
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
    "a link that is down": r"^ip link set \S+ down$",
    "a carrier that was lost": r"^ip link set peer-\S+ down$",
    "expected CIDRs with interfaces of their own": r"^# devs",
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


@st.composite
def hosts(draw: st.DrawFn) -> Audited:
    """Generate a host whose every verdict the kernel's lookups tell."""
    if draw(st.booleans()):
        question = draw(cut.questions(by_source=True))
        expected = {each.cidr: each for each in reversed(question.expected)}
        question = attrs.evolve(question, expected=tuple(expected.values()))
        return Audited(tuple(commands(question.world)), question.expected, question.allowed, connecting=question)
    asked = draw(cut.questions(has_objects=True))
    wide = draw(st.sampled_from(((),) * 9 + (("10.0.0.0/16",), ("0.0.0.0/0",), ("8.0.0.0/5",))))
    # If a rule suppresses short prefixes, a fix would need millions of long ones.
    is_suppressed = any(rule.suppress_prefix_length is not None for rule in asked.world.rules)
    cidrs = dict.fromkeys((*asked.cidrs, *map(IPv4Network, () if is_suppressed else wide)))
    return Audited(tuple(commands(asked.world)), tuple(map(ExpectedCidr, cidrs)), asked.allowed, asked.foreseen)
