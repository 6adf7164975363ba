"""Random hosts with much that a fix may take away, as commands for ``ip -batch``.

A host has an uplink and, by chance: a second NIC with a table of its own, interfaces whose networks
shadow expected CIDRs, a VPN with its rules, pods, bridges, discards, addresses on lo, and rules
that stand before those of tables local and main. IPv6 hosts are the IPv4 hosts with each address
translated, so that prefixes contain each other as before: 10.1.0.4/24 is fd0a:1:0::4/48.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import attrs

from hostrouting import Config, ConfigError
from hostrouting.model.family import Family

NICS = ("eth0", "eth1", "ib0", "ib1", "enp7s0", "wg0", "veth1", "cilium_host")
BRIDGES = ("cni0", "docker0", "br-lab")
PODS = ("veth1", "cilium_host", "cni0")

_EXPECTED = (
    *("10.96.0.0/12", "172.16.0.0/16", "172.16.0.0/16", "10.42.0.0/16", "10.42.0.0/16"),
    *("10.1.0.0/24", "10.1.0.0/16", "10.2.0.0/24", "192.0.2.0/24", "198.51.100.0/24"),
    *("172.16.5.0/24", "10.0.0.0/8", "172.16.5.9/32", "10.96.0.10/32"),
)
_ADDRESS = re.compile(r"\b(\d+)\.(\d+)\.(\d+)\.(\d+)(?:/(\d+))?\b")


@attrs.frozen
class Crowded:
    """A host and its config.

    Args:
        seed: what it was drawn with.
        family: the family of its addresses.
        steps: lines for ``ip -batch``; those that fail are skipped.
        section: the config's ``hostRouting``.
        forwards: whether it forwards packets, as hosts with pods do.
    """

    seed: int
    family: Family
    steps: tuple[str, ...]
    section: dict[str, Any]
    forwards: bool

    @property
    def config(self) -> Config:
        return Config.from_mapping({"hostRouting": self.section})

    @property
    def devs(self) -> frozenset[str]:
        """Return the interfaces that the steps name."""
        words = {word for step in self.steps for word in step.split()}
        return frozenset(words.intersection((*NICS, *BRIDGES)))

    def __str__(self) -> str:
        steps = "\n".join(f"  {step}" for step in self.steps)
        return f"{self.family} host {self.seed}:\n{steps}\n  {json.dumps(self.section)}"


def crowded(seed: int, family: Family) -> Crowded:
    """Draw a host."""
    chance = random.Random(f"crowded {seed}")
    inside = _inside(random.Random(f"inside {seed}"))
    while True:
        drawing = _Drawing(chance)
        steps = [*drawing.steps(), *inside]
        section = drawing.config()
        steps, section = json.loads(in_family(json.dumps([steps, section]), family))
        host = Crowded(seed, family, tuple(steps), section, drawing.forwards)
        try:
            host.config  # noqa: B018
        except ConfigError:
            continue
        return host


def in_family(text: str, family: Family) -> str:
    """Return a text with its IPv4 addresses translated, if the family is IPv6."""
    return _ADDRESS.sub(_translated, text) if family is Family.IPV6 else text


def _inside(chance: random.Random) -> list[str]:
    """Return steps by which the uplink leads to a part of the network of an interface of a shadow,
    so that this interface's addresses answer neighbours through the uplink.
    """
    inside = (
        "addr add 172.16.9.4/24 dev eth0",
        "addr add 172.16.5.66/26 dev eth0",
        "route add 172.16.9.0/24 via 10.1.0.1 dev eth0",
    )
    return [chance.choice(inside)] if chance.random() < 0.2 else []


def _translated(found: re.Match[str]) -> str:
    *octets, length = (None if part is None else int(part) for part in found.groups())
    if found[0] in ("0.0.0.0/1", "128.0.0.0/1"):
        return {"0.0.0.0/1": "::/1", "128.0.0.0/1": "8000::/1"}[found[0]]
    first, second, third, fourth = octets
    address = f"fd{first:02x}:{second:x}:{third:x}::{fourth:x}"
    if length is None:
        return address
    whole, rest = divmod(length, 8)
    bits = 16 * whole + (8 + rest if rest else 0)
    if whole == 3 and rest:
        bits = 112 + 8 + rest
    return f"{address}/{128 if whole == 4 else bits}"


class _Drawing:
    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.forwards = False
        self.second = ""

    def is_so(self, share: float) -> bool:
        return self.chance.random() < share

    def any(self, *choices: str) -> str:
        return self.chance.choice(choices)

    def preference(self) -> int:
        """Return a preference, usually before that of table main, sometimes before local's."""
        return self.chance.choice((1, 2, 50, 90, 99, 101, 1000, 5270, 31999, 32000, 32765, 32767))

    def cidr(self) -> str:
        return self.chance.choice(_EXPECTED)

    def steps(self) -> Iterator[str]:
        yield from self.uplink()
        kinds = (
            (0.45, self.second_nic),
            (0.65, self.shadow),
            (0.3, self.vpn),
            (0.5, self.pods),
            (0.35, self.bridge),
            (0.3, self.own_addresses),
            (0.25, self.discards),
            (0.3, self.odd_rules),
            (0.25, self.late_local),
        )
        for share, steps in kinds:
            if self.is_so(share):
                yield from steps()

    def uplink(self) -> Iterator[str]:
        yield "link set lo up"
        length = self.any("24", "24", "24", "16", "32")
        yield f"addr add 10.1.0.4/{length} dev eth0"
        if length == "32":
            yield "route add 10.1.0.1/32 dev eth0 scope link"
        metric = self.any("", " metric 100", " metric 100", " metric 1024")
        table = " table 253" if self.is_so(0.03) else ""
        onlink = " onlink" if self.is_so(0.1) else ""
        yield f"route add default via 10.1.0.1 dev eth0{onlink}{metric}{table}"
        if self.is_so(0.15):
            yield "route add 172.16.3.0/24 via 10.1.0.1 dev eth0"

    def second_nic(self) -> Iterator[str]:
        address, router = self.chance.choice(
            (
                ("10.2.0.4/24", "10.2.0.1"),
                ("10.2.0.4/24", "10.2.0.1"),
                ("172.16.9.4/24", "172.16.9.1"),
                ("10.1.0.5/24", "10.1.0.1"),
                ("10.2.0.4/32", "10.2.0.1"),
            )
        )
        own = address.partition("/")[0]
        yield f"addr add {address} dev eth1"
        onlink = " onlink"
        if self.is_so(0.25):
            yield f"route add default via {router} dev eth1{onlink} metric {self.any('50', '200')}"
        if self.is_so(0.6):
            table = self.any("100", "101")
            yield f"route add default via {router} dev eth1{onlink} table {table}"
            if self.is_so(0.5):
                yield f"route add {address.replace('4/', '0/')} dev eth1 table {table}"
            yield f"rule add pref {self.preference()} from {own} lookup {table}"
            if self.is_so(0.3):
                yield f"rule add pref {self.preference()} to {self.cidr()} lookup {table}"

    def shadow(self) -> Iterator[str]:
        dev = self.any("ib0", "ib0", "enp7s0", "eth1")
        network = self.any("172.16.0.10/16", "172.16.0.10/16", "172.16.5.1/24", "10.96.3.1/16")
        yield f"addr add {network} dev {dev}"
        if dev == "ib0" and self.is_so(0.5):
            yield f"addr add {network.replace('.10/', '.11/').replace('.1/', '.2/')} dev ib1"
        if self.is_so(0.3):
            yield f"route add {self.cidr()} via 172.16.0.1 dev {dev} onlink"
        if self.is_so(0.2):
            yield f"route add {self.cidr()} dev {dev} metric 10"
        if self.is_so(0.15):
            yield f"route add 172.16.5.0/24 dev {dev} table 100"
            yield f"rule add pref {self.preference()} from 172.16.0.10 lookup 100"

    def vpn(self) -> Iterator[str]:
        yield f"addr add {self.any('10.9.0.2/32', '10.9.0.2/24')} dev wg0"
        table = self.any("52", "51820")
        where = self.any("", f" table {table}", f" table {table}")
        takes = self.any(
            "default", "halves", self.cidr(), self.cidr(), "10.0.0.0/8", "172.16.0.0/12"
        )
        if takes == "halves":
            yield f"route add 0.0.0.0/1 dev wg0{where}"
            yield f"route add 128.0.0.0/1 dev wg0{where}"
        elif takes != "default" or where:
            yield f"route add {takes} dev wg0{where}"
        if self.is_so(0.3):
            yield f"route add {self.cidr()} dev wg0{where}"
        if where:
            if self.is_so(0.15):
                yield f"route add throw 10.1.0.0/24{where}"
            preference = self.preference()
            if self.is_so(0.4):
                yield (
                    f"rule add pref {max(1, preference - 1)} lookup main suppress_prefixlength 0"
                )
            selector = self.any("", "not fwmark 0xca6c ", "not fwmark 0xca6c ", f"to {takes} ")
            selector = "" if "default" in selector or "halves" in selector else selector
            yield f"rule add pref {preference} {selector}lookup {table}"

    def pods(self) -> Iterator[str]:
        self.forwards = True
        kind = self.any("veth1", "cni0", "cilium_host", "cni0")
        node = self.any("10.42.3", "10.42.3", "172.16.7", "10.96.7")
        if kind == "cni0":
            yield f"addr add {node}.1/24 dev cni0"
        elif kind == "veth1":
            yield f"route add {node}.7/32 dev veth1 scope link"
            if self.is_so(0.5):
                yield f"route add blackhole {node}.0/26 proto 80"
            if self.is_so(0.3):
                yield f"rule add pref {self.any('20', '512')} to {node}.7/32 lookup main"
        else:
            yield f"addr add {node}.1/32 dev cilium_host"
            yield f"route add {node}.0/24 via {node}.1 dev cilium_host"
        if self.is_so(0.3):
            yield "route add 10.42.4.0/24 via 10.1.0.6 dev eth0 onlink"

    def bridge(self) -> Iterator[str]:
        dev = self.any("docker0", "br-lab")
        network = self.any("172.17.0.1/16", "172.16.0.1/16", "192.0.2.1/25", "10.42.200.1/24")
        yield f"addr add {network} dev {dev}"

    def own_addresses(self) -> Iterator[str]:
        some = ("192.0.2.9/32", "10.96.0.10/32", "172.16.5.9/32", "198.51.100.7/32")
        for address in self.chance.sample(some, self.chance.choice((1, 1, 2))):
            yield f"addr add {address} dev {self.any('lo', 'lo', 'eth0', 'eth1', 'cni0')}"
            if self.is_so(0.3):
                own = address.partition("/")[0]
                lookup = self.any("lookup 100", "lookup 101", "prohibit", "lookup main")
                yield f"rule add pref {self.preference()} from {own} {lookup}"

    def discards(self) -> Iterator[str]:
        kind = self.any("blackhole", "unreachable", "prohibit")
        table = self.any("", "", " table 100", " table 52")
        metric = self.any("", " metric 4278198272")
        network = self.any(self.cidr(), "10.42.3.0/26", "172.16.0.0/17")
        yield f"route add {kind} {network}{table}{metric}"

    def odd_rules(self) -> Iterator[str]:
        for _ in range(self.chance.choice((1, 1, 2))):
            selector = self.any(
                "from 10.2.0.4",
                "from 172.16.0.10",
                "from 10.1.0.4",
                f"to {self.cidr()}",
                f"to {self.cidr()}",
                "from 10.42.0.0/16",
                "from 10.1.0.0/24",
                "from all iif lo",
                "from all iif cni0",
            )
            action = self.any(
                *("lookup 100", "lookup 101", "lookup 52", "lookup main", "lookup 253"),
                *("prohibit", "unreachable", "lookup main suppress_prefixlength 0"),
            )
            yield f"rule add pref {self.preference()} {selector} {action}"

    def late_local(self) -> Iterator[str]:
        yield f"rule add pref {self.any('100', '100', '32765')} lookup local"
        yield "rule del pref 0"

    # --- the config -------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        count = self.chance.choice((1, 2, 2, 3))
        expected: list[Any] = [*dict.fromkeys(self.cidr() for _ in range(count))]
        if self.is_so(0.12):
            devs = [self.any("eth1", "ib0", "eth0", "wg0", "enp7s0")]
            expected[0] = {"cidr": expected[0], "devs": devs}
        section: dict[str, Any] = {
            "waitSeconds": 0,
            "routeOverlap": {"mode": "STRICT", "expectedCidrs": expected, "settleSeconds": 0},
        }
        if self.is_so(0.5):
            section["uplinks"] = [self.any("eth0", "eth0", "eth0", "eth0", "eth1")]
        static: dict[str, Any] = {}
        if self.is_so(0.1):
            static["routes"] = [{"destination": "203.0.113.0/24"}]
        if self.is_so(0.05):
            static["rules"] = [{"to": self.cidr(), "priority": self.chance.choice((9, 5000))}]
        if static:
            section["staticRoutes"] = {"enabled": True, **static}
        return section
