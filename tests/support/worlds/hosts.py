"""Hosts of either family, as commands that build them in an empty network namespace."""

from __future__ import annotations

import os
import random
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network
from typing import Any

import attrs
from hypothesis import strategies as st
from leaving import Neighbour
from node import as_batch, nics

from hostrouting import Config, ExpectedCidr
from hostrouting.backend import Route, RouteBackend, read_routes
from hostrouting.kernel.release import separates_on_deletion
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.testing.strategies import NewAddress
from worlds import BRIDGE, STANDARD_RULES, Question, World, boundaries, cut


def _words(kind: str, words: str) -> tuple[str, ...]:
    return tuple(f"{kind} {word}" for word in words.split())


_COMMON = (
    *_words("route", "metric blackhole unreachable prohibit throw local nexthop onlink src nhid"),
    *_words("address", "peer noprefixroute"),
    *_words(
        "rule", "from to not goto suppress_prefixlength ipproto del blackhole unreachable prohibit"
    ),
    *("link down", "config devs"),
)
FEATURES: Mapping[Family, Collection[str]] = {
    Family.IPV4: (
        *_COMMON,
        *(
            "route tos",
            "sysctl nexthop_compat_mode=0",
            "rule fwmark",
            "rule uidrange|rule tos",
            "rule iif|rule oif",
        ),
    ),
    Family.IPV6: (
        *_COMMON,
        *_words("ra", "high low 0 prefix route"),
        *_words(
            "sysctl",
            "forwarding=1 ignore_routes_with_linkdown=1 use_oif_addrs_only=1 use_tempaddr=2",
        ),
        *_words("address", "preferred_lft fec0::7/64"),
        *_words("route", "ra from high low expires anycast append ::/1 multicast broadcast"),
        *_words("addrlabel", "add flush dev"),
        *("address lo", "link netns"),
        *_words("rule", "iif fwmark uidrange dport sport tos oif tun_id"),
        *("sysctl ra_defrtr_metric=100", "neigh failed", "link cali1", "# churn"),
        *_words("config", "uplinks allowedDevs"),
    ),
}
"""The commands and configs of a night's hosts. Where there is a ``|``, one is enough."""

# Rules by source, and an interface without an address: its source address depends on the order in
# which interfaces were registered, which dumps don't include.
_BORROWED = (
    r"^ip link add (\S+) (index \d+ )?address \S+ type veth (?![\s\S]*^ip address add .* dev \1$)"
    r"[\s\S]*^ip rule add .*\bfrom (?!all|0\.0\.0\.0/0)"
)
# How many ports to try on a host with several next hops, which may depend on the port or on
# neighbours; more if some of them are seldom chosen.
_TRIES_IF_WEIGHTED = 64
_TRIES = {
    Family.IPV4: (12, r" nexthop | group | nhid |( default .*\n[\s\S]*){2}"),
    Family.IPV6: (16, r"nexthop via| group | append "),
}


@attrs.frozen
class Host:
    """A host and its config.

    Args:
        steps: the commands that build the host; failing ip(8) commands are ignored.
        hostrouting: the config's ``hostRouting`` section.
        family: the family that the config checks.
        connecting: the addresses that sockets connect to, or None.
        failed: unreachable routers.
        cycle: commands that run continuously during the checks, to change the host.
        is_seen: whether the host can only be tested with sockets.
        names: more features, which the commands don't show.
    """

    steps: tuple[str, ...]
    hostrouting: dict[str, Any]
    family: Family = Family.IPV4
    connecting: Question | None = None
    failed: tuple[Neighbour, ...] = ()
    cycle: tuple[str, ...] = ()
    is_seen: bool = False
    names: tuple[str, ...] = ()

    @property
    def devs(self) -> tuple[str, ...]:
        """Return the host's interfaces."""
        return tuple(re.findall(r"^ip link add (\S+) ", self.text, re.MULTILINE))

    @property
    def indexes(self) -> list[int]:
        """Return the indexes that the interfaces are given, in the order in which they are made."""
        return [
            int(index)
            for index in re.findall(r"^ip link add \S+ index (\d+) ", self.text, re.MULTILINE)
        ]

    @property
    def text(self) -> str:
        """Return everything that describes the host."""
        return "\n".join(
            (*self.steps, *("# churn" for _ in self.cycle[:1]), *self.cycle, str(self.hostrouting))
        )

    @property
    def config(self) -> Config:
        return Config.from_mapping({"hostRouting": self.hostrouting})

    def addresses(self, kernel: RouteBackend, most: int) -> list[IpAddress]:
        """Return the expected addresses around the boundaries of a kernel's prefixes, and random
        others.

        The number is limited, because sockets take long for each address of an IPv6 host.
        """
        chance, is_ipv4 = random.Random(self.text), self.family is Family.IPV4
        cidrs = [each.cidr for each in self.config.route_overlap.expected_cidrs]
        numbers = set[int]()
        for cidr in cidrs:
            size, count = cidr.num_addresses, most if is_ipv4 else 3
            some = range(size) if size <= count else (chance.randrange(size) for _ in range(count))
            numbers.update(int(cidr[0]) + number for number in some)
        labelled = map(
            IPv6Network, re.findall(r"^ip addrlabel add prefix (\S+)", self.text, re.MULTILINE)
        )
        numbers.update(int(prefix[0]) for prefix in labelled)
        found = boundaries(cidrs, read_routes(kernel), kernel.facts().rules, numbers)
        return found if is_ipv4 else sorted(chance.sample(found, min(most, len(found))))

    @property
    def features(self) -> set[str]:
        """Return the words of each kind of command, such as ``rule not``, the lists of the config,
        and ``names``.
        """
        lines = [line.split() for line in as_batch(self.text).splitlines()]
        found = {f"{kind} {word.rpartition('.')[2]}" for kind, *words in lines for word in words}
        return {
            *found,
            *(f"config {key}" for key in re.findall(r"'(\w+)': \['", self.text)),
            *self.names,
        }

    @property
    def tries(self) -> int:
        """Return how many ports to try, because the next hop may depend on the port or on
        neighbours.
        """
        tries, several = _TRIES[self.family]
        if not self._has(several):
            return 1
        return _TRIES_IF_WEIGHTED if self._has(r" weight (?!1\b)") else tries

    def may_be_unknown(self, way: str) -> bool:
        """Return whether a report may be unknown: in churn, or unless a snapshot represents the
        whole host.
        """
        if self.family is Family.IPV4:
            hides_merging = way == "ip" and not self.had_rules and self._has("^ip rule del ")
            return hides_merging or self.is_seen or self._has(_BORROWED)
        is_odd = self.has_odd_sources or self._has(r"^ip -6 rule .*(tun_id|sport|dport)")
        return is_odd or way != "snapshot" or bool(self.cycle)

    @property
    def had_rules(self) -> bool:
        """Return whether rules have been changed in a way that permanently separates tables local
        and main.
        """
        return self._has(
            "^ip rule " if separates_on_deletion(os.uname().release) else "^ip rule add "
        )

    @property
    def has_odd_sources(self) -> bool:
        """Return whether the kernel's IPv6 source address selection may differ from RFC 6724."""
        return self._has("use_oif_addrs_only|use_tempaddr")

    @property
    def passes_hops(self) -> bool:
        """Return whether the kernel may skip some hops, which the check counts.

        These are unreachable routers, unless forwarding is enabled, and hops without a carrier if
        ignore_routes_with_linkdown is set. Only those that had a share of the packets before still
        get it.
        """
        for dev in self.devs:
            ignores = (
                rf"^sysctl -qw net\.ipv[46]\.conf\.({dev}|all)\.ignore_routes_with_linkdown=1$"
            )
            if f"ip link set peer-{dev} down" in self.steps and self._has(ignores):
                return True
        return bool(self.failed) and "sysctl -qw net.ipv6.conf.all.forwarding=1" not in self.steps

    def _has(self, pattern: str) -> bool:
        return re.search(pattern, self.text, re.MULTILINE) is not None


def section(
    expected: Sequence[ExpectedCidr],
    allowed: Sequence[str] = (),
    foreseen: Sequence[IPv4Network] = (),
) -> dict[str, Any]:
    """Return a config's ``hostRouting`` section."""
    overlap = {
        "expectedCidrs": [each.to_mapping() for each in expected],
        "allowedDevs": [*allowed],
        "foreseen": [str(prefix) for prefix in foreseen],
    }
    return {"routeOverlap": overlap, "waitSeconds": 0}


# --- worlds as commands ------------------------------------------------------------------------


def commands(world: World) -> Iterator[str]:
    """Yield ip(8) commands equivalent to ``World.build``."""
    yield from nics(*map(shlex.quote, world.devs)).splitlines()
    ports = [dev for dev in world.devs if dev in world.ports]
    if ports:
        yield f"ip link add {BRIDGE} type bridge"
    yield from (f"ip link set {dev} master {BRIDGE}" for dev in ports)
    for dev, address in world.addresses:
        yield f"ip address add {_address(address)} dev {shlex.quote(dev)}"
    if world.objects and world.hides_hops:
        yield "sysctl -qw net.ipv4.nexthop_compat_mode=0"
    yield from (f"ip nexthop add {words}" for words in world.objects)
    yield from (f"ip route add {_route(route)}" for route in world.routes)
    yield from (f"ip rule add {_rule(rule)}" for rule in world.rules)
    for rule in STANDARD_RULES:
        if rule.preference in world.without:
            yield f"ip rule del {_rule(rule)}"
    yield from (f"ip link set {dev} down" for dev in sorted({*world.devs} & {*world.down}))
    yield from (
        f"ip link set peer-{dev} down" for dev in sorted({*world.devs} & {*world.unplugged})
    )


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
    more = ("" if " table " in words else " table main") + (
        "" if " scope " in words else " scope global"
    )
    return re.sub(r"( proto \S+)", rf"\1{more}", words, count=1)


def _rule(rule: Rule) -> str:
    if rule.action is not RuleAction.TO_TABLE:
        rule = attrs.evolve(rule, suppress_prefix_length=None)
    words = str(rule).replace("from all ", "", 1).replace("and ports", "dport 443")
    return f"{words} pref {rule.preference}"


# --- random hosts ---------------------------------------------------------------------------------


def connected(asked: Question) -> Host:
    """Return a host to whose expected addresses sockets connect."""
    return Host(
        tuple(commands(asked.world)), section(asked.expected, asked.allowed), connecting=asked
    )


@st.composite
def hosts(draw: st.DrawFn) -> Host:
    """Draw an IPv4 host whose every verdict the kernel's lookups tell."""
    if draw(st.booleans()):
        asked = draw(cut.questions(by_source=True))
        expected = {each.cidr: each for each in reversed(asked.expected)}
        asked = attrs.evolve(asked, expected=tuple(expected.values()))
        return connected(asked)
    asked = draw(cut.questions(has_objects=True))
    wide = draw(st.sampled_from(((),) * 9 + (("10.0.0.0/16",), ("0.0.0.0/0",), ("8.0.0.0/5",))))
    # If a rule suppresses short prefixes, a fix would need millions of long ones.
    is_suppressed = any(rule.suppress_prefix_length is not None for rule in asked.world.rules)
    cidrs = dict.fromkeys((*asked.cidrs, *map(IPv4Network, () if is_suppressed else wide)))
    expected_cidrs = tuple(map(ExpectedCidr, cidrs))
    return Host(
        tuple(commands(asked.world)), section(expected_cidrs, asked.allowed, asked.foreseen)
    )
