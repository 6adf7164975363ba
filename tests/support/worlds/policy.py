"""Random IPv4 hosts with policy rules and side tables, some of them ours, and configs for them."""

from __future__ import annotations

import random
from typing import Any

from node import as_batch, nics

from hostrouting import Config, ConfigError

_DEVS = ("eth0", "eth1", "ib0", "ib1", "wg0", "via")
_ADDRESSES = (
    *("10.1.0.4/24", "10.1.0.5/24", "10.2.0.4/24", "10.2.0.5/24", "10.2.0.4/25"),
    *("172.16.0.10/16", "172.16.0.11/16", "172.16.0.12/16", "172.16.5.1/17"),
    *("10.9.0.1/32", "10.9.0.1 peer 10.9.0.2/32", "10.9.0.3 peer 10.7.0.0/24", "10.5.0.0/31"),
    *("10.5.0.5/30", "169.254.7.1/16 scope link", "172.16.0.13/16 noprefixroute", "10.8.0.1/8"),
)
_GATEWAYS = ("10.1.0.1", "10.2.0.1", "10.2.0.4", "172.16.0.1", "10.9.0.2", "192.0.2.1")
_SOURCES = ("10.1.0.4", "10.2.0.4", "172.16.0.10", "172.16.0.11", "10.9.0.1", "10.9.0.77")
_CIDRS = (
    *("10.96.0.0/12", "172.16.5.0/24", "10.2.0.0/24", "10.1.0.4/32", "10.1.0.4/30"),
    *("198.51.100.0/24", "10.0.0.0/8", "172.16.0.0/16", "10.99.0.0/16"),
)
_CIDRS6 = ("fd00:18::/48", "fd00:19::/127", "fd00:20::5/128", "2001:db8::/32")
_PRIORITIES = (9, 100, 2169, 2173, 5269, 5269, 5270, 32765)
_PREFERENCES = (9, 100, 2169, 2170, 2171, 2172, 5000, 5269, 5270, 32000)
_TABLES = (52, 52, 254, 255, 2170000, 2170001, 2170003)
_PATTERNS = ("ib*", "eth1", "*", "wg0", "ib?", "[e]th1", "zz*", "lo", "eth*", "via", "??0", "ib1")


def world(seed: int) -> tuple[list[str], Config]:
    """Return commands of ``ip -4`` that build a host, some of which may fail, and a config."""
    chance = random.Random(f"policy {seed}")
    return [*_Drawing(chance).steps()], _config(chance)


class _Drawing:
    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def steps(self) -> list[str]:
        steps = [*self.links(), *self.defaults()]
        steps += [self.route() for _ in range(self.count(4))]
        steps += [self.rule() for _ in range(self.count(4))]
        own = [self.own() for _ in range(self.count(8))]
        if any(" table 217" in step for step in own):
            # Without any rule of ours, the task doesn't look for side tables.
            own.append("rule add pref 2172 from 10.9.0.77 lookup 2170003 proto 217")
        steps += own
        if self.is_rare():
            steps += [
                f"rule add pref {self.any('100', '2169', '2170', '32765')} lookup local",
                "rule del pref 0",
            ]
        return steps

    def count(self, most: int) -> int:
        return max(0, self.chance.randrange(-2, most + 1))

    def is_rare(self) -> bool:
        return self.chance.random() < 0.1

    def any(self, *choices: str) -> str:
        return self.chance.choice(choices)

    def links(self) -> list[str]:
        steps = as_batch(nics(*_DEVS)).splitlines()
        if self.is_rare():
            steps += ["link add br0 type bridge", f"link set {self.any(*_DEVS)} master br0"]
        for dev in _DEVS:
            count = self.chance.choice((0, 1, 1, 1, 1, 2, 3))
            steps += [f"addr add {self.any(*_ADDRESSES)} dev {dev}" for _ in range(count)]
            if self.is_rare():
                steps.append(f"link set {self.any('', 'peer-')}{dev} down")
        return steps

    def defaults(self) -> list[str]:
        steps = []
        for _ in range(self.chance.choice((0, 1, 1, 2, 3, 4))):
            dev = self.any("eth0", *_DEVS)
            hop = self.any(
                f"via {self.any(*_GATEWAYS)} dev {dev} onlink",
                f"via {self.any(*_GATEWAYS)} dev {dev}",
                f"dev {dev}",
                f"via inet6 fe80::1 dev {dev}",
                f"nexthop via 10.1.0.1 dev eth0 onlink nexthop via 10.2.0.1 dev {dev} onlink",
            )
            kind = self.any("blackhole ", "") if self.is_rare() else ""
            metric = self.any("0", "50", "100", "200")
            steps.append(f"route append {kind}default {'' if kind else hop} metric {metric}")
        return steps

    def route(self) -> str:
        dev, table = self.any(*_DEVS), self.any("52", "254", "254", "2170000", "2170001")
        to = self.any("default", "198.51.100.0/24", *_CIDRS)
        return f"route append {to} dev {dev} table {table}"

    def rule(self) -> str:
        selectors = self.any(
            f"from {self.any(*_SOURCES)}",
            f"to {self.any(*_CIDRS)}",
            f"from {self.any(*_SOURCES)} to {self.any(*_CIDRS)}",
            "from all",
            "from 172.16.0.0/16",
            "from all fwmark 0x1",
            "not from all fwmark 0x1",
            "from all iif lo",
            "from all oif via",
            "from all uidrange 0-0",
        )
        action = self.any(*(f"lookup {table}" for table in _TABLES), "unreachable", "prohibit")
        return f"rule add pref {self.chance.choice(_PREFERENCES)} {selectors} {action}"

    def own(self) -> str:
        """Return what an earlier run may have left."""
        table, source, dev = (
            2170000 + self.chance.randrange(4),
            self.any(*_SOURCES),
            self.any(*_DEVS),
        )
        to, priority = self.any(*_CIDRS), self.chance.choice(_PRIORITIES)
        limit = " suppress_prefixlength 0"
        words = self.any(
            f"rule add pref 2170 from {source} lookup {table}",
            f"rule add pref 2170 from {source} lookup {table}{limit}",
            f"rule add pref 2171 from {source} lookup 254{limit}",
            f"rule add pref 2172 from {source} lookup {table}",
            f"rule add pref {priority} to {to} lookup 254",
            f"rule add pref {priority} to {to} lookup 255",
            f"route add 172.16.0.0/16 dev {dev} table {table} scope link",
            f"route add 10.2.0.0/24 dev {dev} table {table} scope link",
            f"route add default via 10.2.0.1 dev {dev} onlink table {table}",
            f"route add default dev {dev} table {table} scope link",
            f"route add {to} dev {dev} scope link",
        )
        return f"{words} proto 217"


def _config(chance: random.Random) -> Config:
    while True:
        uplinks: dict[str, Any] = chance.choice(
            ({}, {}, {}, {"uplinks": ["eth0"]}, {"uplinks": ["eth*"]})
        )
        gateways = ("", "", "", "onlink", *_GATEWAYS)
        section = {
            "enabled": True,
            "routes": [
                {"destination": to, "gateway": "onlink", "dev": "eth0"}
                for to in chance.sample(_CIDRS, chance.choice((0, 0, 0, 1, 2)))
            ],
            "rules": [
                {"to": to, "priority": chance.choice(_PRIORITIES)}
                for to in chance.sample((*_CIDRS, *_CIDRS6), chance.choice((0, 0, 1, 2, 3)))
            ],
            "keep": [
                {"dev": pattern, "gateway": chance.choice(gateways)}
                for pattern in chance.sample(_PATTERNS, chance.choice((0, 1, 1, 2, 3)))
            ],
        }
        document = {"waitSeconds": 0, "staticRoutes": section} | uplinks
        try:
            return Config.from_mapping({"hostRouting": document})
        except ConfigError:
            continue
