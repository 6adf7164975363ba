"""Random IPv6 hosts with router advertisements, source-specific routes, discards, rules, multipath
and dead routers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from ipaddress import IPv6Address, IPv6Network
from typing import Any

from leaving import Neighbour
from node import nics

from hostrouting.model.family import Family
from worlds.hosts import Host

DEVICES = ("eth0", "eth1", "ib0", "rail0", "cali1")
"""The NICs, the first of which is the uplink of most hosts, and an interface of a container."""

SPACE = IPv6Network("fd00:172:16::/48")
"""The network that contains most prefixes."""

_EXPECTED = (
    *(
        "fd00:172:16::/48",
        "fd00:172:16::/48",
        "fd00:172:16:7::/64",
        "fd00:172:16::/56",
        "fd00:172:16:8000::/49",
    ),
    *(
        "fd00:172:16:7::/112",
        "fd00:172::/32",
        "fd00:10:96::/108",
        "2001:db8:3::/48",
        "fd00:172:16:7::9/128",
    ),
    *("fd00:172:16::/48", "fd00:172:16:7::/64", "fc00::/7", "::/0", "8000::/1"),
)
_SUBNETS = (
    "::",
    "0:0:0:1::",
    "0:0:0:7::",
    "0:0:0:7:8000::",
    "0:0:0:ff::",
    "0:0:0:8000::",
    "0:0:0:ffff::",
)
_HOSTS = (0, 1, 9, 0xFF, 1 << 16, 1 << 63, (1 << 64) - 1)
_LENGTHS = (48, 49, 52, 56, 63, 64, 64, 64, 65, 72, 96, 112, 120, 126, 127, 128, 128)
_WIDE = (
    "fd00:172::/32",
    "fd00::/8",
    "fc00::/7",
    "8000::/1",
    "2001:db8::/32",
    "2000::/3",
    "fd00:10::/32",
    "::/0",
)
_METRICS = ("", "", "", "", " metric 512", " metric 100", " metric 256", " metric 2000")
_PREFERENCES = ("", "", "", "", " pref high", " pref low")
_DISCARDS = ("unreachable", "blackhole", "prohibit", "throw")
_ROUTERS = ("fe80::1", "fe80::2")


def moved_and_back(dev: str) -> str:
    """Return a command that moves an interface to another namespace and back, after which it is
    registered last.
    """
    return (
        f"unshare -n sh -c 'until ip link set {dev} netns '$$' 2>/dev/null; do sleep .01; done' & "
        "until [ $(readlink /proc/$!/ns/net) != $(readlink /proc/$$/ns/net) ]; do sleep .01; done; "
        f"ip link set {dev} netns $!; wait; ip link set {dev} arp off up"
    )


def world(seed: int) -> Host:
    """Return the random host for a seed."""
    return _Draw(seed).world()


class _Draw:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"{seed} host")
        self.devs = ("eth0", *self.chance.sample(DEVICES[1:], self.chance.choice((1, 1, 2, 3))))
        self.is_forwarding = self.one_in(2)
        self.has_several = self.one_in(3)
        self.gateways = {dev: list(_ROUTERS) for dev in self.devs}
        self.own: list[str] = []

    def one_in(self, often: int) -> bool:
        return self.chance.randrange(often) == 0

    def world(self) -> Host:
        steps = [
            *self.links(),
            *self.addresses(),
            *self.labels(),
            *self.defaults(),
            *self.advertisements(),
        ]
        steps += self.routes()
        steps += self.objects() if self.one_in(4) else ()
        steps += self.rules()
        failed = self.failed()
        steps += [f"ip neigh replace {router} dev {dev} nud failed" for dev, router in failed]
        if self.is_forwarding:
            # Half of the time, forwarding is enabled after the router advertisements.
            at = len(steps) if self.one_in(2) else 0
            steps.insert(at, "sysctl -qw net.ipv6.conf.all.forwarding=1")
        steps += self.losses()
        cycle = tuple(self.cycle()) if self.one_in(24) else ()
        return Host(tuple(steps), self.config(), Family.IPV6, failed=failed, cycle=cycle)

    # --- interfaces -------------------------------------------------------------------------------

    def links(self) -> Iterator[str]:
        yield "sysctl -qw net.ipv6.fib_multipath_hash_policy=1"
        yield from nics(*self.devs).splitlines()
        for dev in self.devs:
            yield f"sysctl -qw net.ipv6.conf.{dev}.accept_ra={self.chance.choice((2, 2, 2, 1))}"
            yield f"sysctl -qw net.ipv6.conf.{dev}.accept_ra_rt_info_max_plen=128"
            yield f"sysctl -qw net.ipv6.conf.{dev}.router_solicitations=0"
            if self.one_in(6):
                metric = self.chance.choice((100, 512, 2000))
                yield f"sysctl -qw net.ipv6.conf.{dev}.ra_defrtr_metric={metric}"
            for name in ("ignore_routes_with_linkdown=1", "use_oif_addrs_only=1", "use_tempaddr=2"):
                if self.one_in(10):
                    yield f"sysctl -qw net.ipv6.conf.{dev}.{name}"

        if self.one_in(10):
            yield moved_and_back(self.chance.choice(self.devs))

    def addresses(self) -> Iterator[str]:
        for number, dev in enumerate(self.devs, 1):
            if self.one_in(8):
                continue
            pool = [
                f"2001:db8:{number}::4/64",
                f"2001:db8:{number}::4/128",
                f"fd00:{number}::4/64",
                "fec0::7/64",
            ]
            if dev != "eth0" or self.one_in(4):
                pool += [
                    f"fd00:172:16:7::{number}/64",
                    f"fd00:172:16:7::{number}/112",
                    f"fd00:172:16:ff::{number}/56",
                ]
                pool += [f"fd00:172:16:7::{number}/128", f"2002:a0{number}::1/48"]
            for address in self.chance.sample(pool, self.chance.choice((1, 1, 2, 3))):
                more = self.chance.choice(
                    ("",) * 8 + (" preferred_lft 0", " noprefixroute", " metric 50")
                )
                peer = ""
                if self.one_in(12):
                    address, peer = address.partition("/")[0], f" peer fd00:172:16:9::{number}/128"
                yield f"ip address add {address}{peer} dev {dev} nodad{more}"
                self.own.append(address.partition("/")[0])
                if address.endswith("/64") and "noprefixroute" not in more:
                    self.gateways[dev].append(str(IPv6Network(address, strict=False)[1]) + "f")

        if self.one_in(40):
            yield "ip address add ::ffff:10.1.0.4/96 dev eth0 nodad"
        if self.one_in(6):
            # BGP to the host gives lo its addresses.
            own = self.chance.choice(("fd00:172:16:7::10", "2001:db8:3::10", "fd00:172:16:8000::"))
            yield f"ip address add {own}/128 dev lo nodad"
            self.own.append(own)
        if self.one_in(3):
            yield "ip address add 10.1.0.4/24 dev eth0"
            yield "ip route add default via 10.1.0.1 dev eth0"

    def labels(self) -> Iterator[str]:
        """Yield commands that change the labels by which the kernel selects sources."""
        if self.one_in(24):
            yield "ip addrlabel flush"
        for label in range(self.chance.choice((0, 0, 0, 1, 2, 3))):
            prefix = self.chance.choice((self.prefix(), self.source(), self.source()))
            dev = f" dev {self.chance.choice(self.devs)}" if self.one_in(4) else ""
            yield (
                f"ip addrlabel add prefix {prefix}{dev} "
                f"label {self.chance.choice((1, 5, 99, 99, label))}"
            )

    # --- routes -----------------------------------------------------------------------------------

    def defaults(self) -> Iterator[str]:
        if self.one_in(12):
            return
        metric = self.chance.choice(
            ("", " metric 1024", " metric 1024", " metric 512", " metric 100")
        )
        kind = self.chance.choice(("static", "ra", "ra", "dhcp"))
        if self.has_several and self.one_in(3):
            yield (
                f"ip -6 route add default proto {kind} "
                f"{self.hops(('eth0', self.chance.choice(self.devs)))}{metric}"
            )
        else:
            yield f"ip -6 route add default proto {kind} {self.hop('eth0')}{metric}"
        if self.one_in(4):
            verb = self.chance.choice(("add", "append")) if self.has_several else "add"
            dev = self.chance.choice(self.devs)
            yield (
                f"ip -6 route {verb} default proto {kind} "
                f"{self.hop(dev)}{self.chance.choice(_METRICS)}"
            )

        if self.own and self.one_in(6):
            for dev in self.devs:
                yield f"ip -6 route add default from {self.source()} {self.hop(dev)}"

    def advertisements(self) -> Iterator[str]:
        for number, dev in enumerate(self.devs, 1):
            for router in self.chance.sample(_ROUTERS, self.chance.choice((0, 0, 1, 1, 2))):
                lifetime = self.chance.choice((0, 600, 1800, 9000))
                preference = self.chance.choice(("medium", "medium", "high", "low"))
                words = [f"ra {dev} {router} {lifetime} {preference}"]
                if self.one_in(3):
                    prefixes = (f"2001:db8:{number}0::/64", "fd00:172:16:7::/64")
                    words.append(f"prefix {self.chance.choice(prefixes)}")
                served = [self.prefix() for _ in range(self.chance.choice((0, 0, 0, 1, 2)))]
                words += [
                    f"route {prefix} {self.chance.choice(('medium', 'high', 'low'))}"
                    for prefix in served
                ]
                yield " ".join(words)

    def routes(self) -> Iterator[str]:
        if self.one_in(8):
            table = self.chance.choice(("local", "main"))
            kind = self.chance.choice(("local", "anycast"))
            prefix = self.prefix()
            dev = self.chance.choice(("lo", *self.devs))
            yield f"ip -6 route add {kind} {prefix} dev {dev} table {table}"
        for _ in range(self.chance.randint(1, 7)):
            verb = self.chance.choice(
                ("add", "add", "append" if self.has_several else "add", "replace")
            )
            start = f"ip -6 route {verb} "
            end = self.chance.choice(_METRICS) + self.chance.choice(
                ("", "", "", " table 100", " table 101")
            )
            if self.one_in(5):
                yield f"{start}{self.chance.choice(_DISCARDS)} {self.prefix()}{end}"
                continue
            if self.one_in(20):
                kind = self.chance.choice(("multicast", "broadcast"))
                yield f"{start}{kind} {self.prefix()} dev {self.chance.choice(self.devs)}{end}"
                continue
            source = (
                f" from {self.chance.choice((self.source(), self.source(), '::/1', '8000::/1'))}"
                if self.one_in(6)
                else ""
            )
            if self.has_several and self.one_in(3):
                devs = [self.chance.choice(self.devs) for _ in range(self.chance.choice((2, 2, 3)))]
                yield f"{start}{self.prefix()}{source} {self.hops(devs)}{end}"
                continue
            more = self.chance.choice(_PREFERENCES) + self.chance.choice(
                ("",) * 12 + (" expires 0", " expires 600")
            )
            if self.own and self.one_in(8):
                more += f" src {self.chance.choice(self.own)}"
            prefix = self.prefix()
            hop = self.hop(self.chance.choice(self.devs))
            yield f"{start}{prefix}{source} {hop}{end}{more}"

    def objects(self) -> Iterator[str]:
        """Yield commands that add nexthop objects, a nexthop group, and routes that use them."""
        for number in (1, 2):
            yield (
                f"ip -6 nexthop add id {number} "
                f"{self.hop(self.chance.choice(self.devs), has_gateway=True)}"
            )
        yield "ip -6 nexthop add id 3 blackhole"
        if self.has_several:
            yield "ip -6 nexthop add id 4 group 1/2"
        for _ in range(self.chance.choice((1, 2))):
            prefix = self.prefix()
            number = self.chance.choice((1, 2, 3, 4, 4) if self.has_several else (1, 2, 3))
            yield f"ip -6 route add {prefix} nhid {number}"

    def rules(self) -> Iterator[str]:
        if self.one_in(2):
            yield f"ip -6 route add default {self.hop(self.chance.choice(self.devs))} table 100"
        if self.own and self.one_in(3):
            yield (
                f"ip -6 rule add from {self.source()} lookup 100 "
                f"pref {self.chance.choice((5, 15, 50))}"
            )
        for number in range(self.chance.choice((0, 0, 0, 1, 1, 2, 3))):
            yield self.rule(number)
        if self.one_in(16):
            yield f"ip -6 rule add lookup local pref {self.chance.choice((25, 40, 32767))}"
            yield "ip -6 rule del pref 0"
        if self.one_in(24):
            yield "ip -6 rule del pref 32766"

    def rule(self, number: int) -> str:
        selectors = []
        if self.one_in(2):
            selectors.append(f"from {self.source()}")
        if self.one_in(3):
            selectors.append(f"to {self.prefix()}")
        seldom = [
            "iif lo",
            "iif eth0",
            "iif eth0:1",
            "oif ib0",
            "fwmark 7",
            "fwmark 0/1",
            "ipproto tcp",
            "ipproto udp",
        ]
        seldom += [
            "uidrange 0-0",
            "uidrange 1-99",
            "dport 443",
            "sport 1-65534",
            "tos 0x10",
            "tun_id 5",
        ]
        selectors += [words for words in seldom if self.one_in(16)]
        action = f"lookup {self.chance.choice(('100', '100', '101', 'main'))}"
        if self.one_in(8):
            action = self.chance.choice(("prohibit", "unreachable", "blackhole"))
        elif self.one_in(12):
            action = f"goto {self.chance.choice((40, 32766))}"
        elif self.one_in(10):
            action = f"lookup main suppress_prefixlength {self.chance.choice((0, 48, 64))}"
        no = "not " if self.one_in(10) and selectors else ""
        preference = (
            self.chance.choice((10, 20, 30)) + number
            if self.chance.random() < 0.9
            else 33000 + number
        )
        return f"ip -6 rule add {no}{' '.join(selectors)} {action} pref {preference}"

    # --- what goes wrong --------------------------------------------------------------------------

    def failed(self) -> tuple[Neighbour, ...]:
        if not self.one_in(3):
            return ()
        all_routers = [
            (dev, IPv6Address(router)) for dev in self.devs for router in self.gateways[dev]
        ]
        return tuple(self.chance.sample(all_routers, self.chance.choice((1, 1, 2))))

    def losses(self) -> Iterator[str]:
        for dev in self.devs:
            if self.one_in(12):
                yield f"ip link set {self.chance.choice((dev, f'peer-{dev}'))} down"
                if self.one_in(3):
                    yield f"ip link set {dev} up"
                    yield f"ip link set peer-{dev} up"
                if self.one_in(2):
                    prefix = self.prefix()
                    yield f"ip -6 route add {prefix} {self.hop(self.chance.choice(self.devs))}"

    def cycle(self) -> Iterator[str]:
        """Yield commands that change the host and then revert the change."""
        words = self.chance.choice(
            (
                f"route {{}} {self.prefix()} {self.hop(self.chance.choice(self.devs))} metric 77",
                f"route {{}} unreachable {self.prefix()} metric 77",
                f"rule {{}} from {self.source()} lookup 100 pref 7",
                f"rule {{}} to {self.prefix()} lookup 100 pref 7",
            )
        )
        yield from (f"ip {words.format('add')}", f"ip {words.format('del')}")

    # --- words ------------------------------------------------------------------------------------

    def prefix(self) -> str:
        """Return a random prefix, usually inside ``SPACE``."""
        if self.one_in(6):
            return self.chance.choice(_WIDE)
        address = IPv6Address(
            int(SPACE[0])
            + int(IPv6Address(self.chance.choice(_SUBNETS)))
            + self.chance.choice(_HOSTS)
        )
        return str(IPv6Network((address, self.chance.choice(_LENGTHS)), strict=False))

    def source(self) -> str:
        """Return a source prefix, which usually contains one of this host's addresses."""
        if not self.own or self.one_in(6):
            return self.chance.choice(("2001:db8::/32", "2001:db8::/32", "::/1", "::/128"))
        own = self.chance.choice(self.own)
        return str(IPv6Network((own, self.chance.choice((128, 128, 64, 48))), strict=False))

    def hop(self, dev: str, *, has_gateway: bool = False) -> str:
        if not has_gateway and self.one_in(4):
            return f"dev {dev}"
        gateway = self.chance.choice(self.gateways[dev])
        onlink = " onlink" if self.one_in(6) else ""
        return f"via {gateway} dev {dev}{onlink}"

    def hops(self, devs: Sequence[str]) -> str:
        return " ".join(f"nexthop {self.hop(dev, has_gateway=True)}" for dev in devs)

    def config(self) -> dict[str, Any]:
        expected: list[Any] = self.chance.sample(_EXPECTED, self.chance.choice((1, 1, 2)))
        if self.one_in(8):
            devs = self.chance.choice((*self.devs, "*0"))
            # With a pattern, sometimes expect the same CIDR through the uplinks as well.
            expected[0 : self.chance.choice((0, 1)) if devs == "*0" else 1] = [
                {"cidr": expected[0], "devs": [devs]}
            ]
        section: dict[str, Any] = {
            "routeOverlap": {"expectedCidrs": list({str(each): each for each in expected}.values())}
        }
        if self.one_in(8):
            section["routeOverlap"]["allowedDevs"] = [self.chance.choice(self.devs)]
        if not self.one_in(3):
            section["uplinks"] = self.chance.choice(
                (["eth0"],) * 6 + (["eth*"], [self.chance.choice(self.devs)])
            )
        return section
