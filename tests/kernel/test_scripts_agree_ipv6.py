"""Test that the boot script and the library agree on random IPv6 hosts, some of which have IPv4 too."""

from __future__ import annotations

import random
import re
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
from audit.making import make
from churning import churning
from nightly import IS_NIGHTLY, by_day
from node import NICS, lines, nics, on_linux
from scripts import AWKS, Sandbox, awk_or_skip, awks_for, render_check_route_overlap_script
from worlds.hosts import Host
from worlds.ipv6 import world

import phases
from hostrouting import Config, OverlapReport
from hostrouting.boot.render import render_check
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.model.family import Family
from hostrouting.overlap.check import check_families
from hostrouting.overlap.markers import marker_text

pytestmark = pytest.mark.kernel

_FIRST_PARTS = re.compile("; (shadowed:|by) .*")


def with_ipv4(host: Host, seed: int) -> tuple[tuple[str, ...], Config]:
    """Return a host's commands and config, in some cases with a default route and an expected CIDR of IPv4."""
    chance = random.Random(f"{seed} IPv4")
    steps, expected = list(host.steps), list(host.hostrouting["routeOverlap"]["expectedCidrs"])
    if chance.random() < 0.5:
        dev = chance.choice(("eth0", "eth0", host.devs[-1]))
        steps += [f"ip address add 10.0.0.4/24 dev {dev}", f"ip route add default via 10.0.0.1 dev {dev}"]
        if chance.random() < 0.2:
            steps.append(f"ip route append default via 10.0.0.2 dev {chance.choice(host.devs)} onlink")
        steps += ["ip route add 172.16.3.0/24 dev ib0"]
    if chance.random() < 0.5:
        expected.append(chance.choice(("172.16.0.0/16", "10.96.0.0/12")))
    overlap = host.hostrouting["routeOverlap"] | {"expectedCidrs": expected}
    return tuple(steps), Config.from_mapping(
        {"hostRouting": host.hostrouting | {"routeOverlap": overlap, "waitSeconds": 0}}
    )


def reported(config: Config) -> OverlapReport:
    backends = {Family.IPV4: NetlinkBackend(), Family.IPV6: NetlinkBackend6()}
    return check_families(config, backends.__getitem__, phases.CancelScope())


def first_parts(text: str) -> list[str]:
    """Return a marker's lines without the shadowed addresses and the route, and only the kind of each reason."""
    return [
        re.sub(
            "^((check-failed|no-uplink): |contested-default: .* by several interfaces).*",
            r"\1",
            _FIRST_PARTS.sub("", line),
        )
        for line in text.splitlines()
    ]


def judged(config: Config, awk: str, root: Path) -> tuple[list[str], str]:
    """Run the script, and return the first parts of its marker and its messages."""
    sandbox = Sandbox(root, awk_or_skip(awk))
    done = sandbox.run(render_check(config))
    return first_parts("\n".join(sandbox.told())), done.stderr


# By day, one awk for each host.
HOSTS = [*product(range(500), AWKS)] if IS_NIGHTLY else [(seed, AWKS[seed % 3]) for seed in range(6)]


@pytest.mark.parametrize(("seed", "awk"), HOSTS)
def test_the_script_agrees_with_the_library(seed: int, awk: str, tmp_path: Path) -> None:
    steps, config = with_ipv4(world(seed), seed)
    on_linux()
    make(steps)
    report = reported(config)
    told, said = judged(config, awk, tmp_path)
    if told != first_parts(marker_text(report)):
        # Whether a silent router is passed over may change by itself.
        report = reported(config)
    assert told == first_parts(marker_text(report)), "\n".join((said, *steps, str(config.to_mapping())))


# --- what random hosts seldom have ---------------------------------------------------------------------------------

_NICS = lines(nics(eth0=NICS["eth0"], ib0=""), "ip address add 2001:db8:1::4/64 dev eth0 nodad")
_DEFAULT4 = "ip route add default via 10.1.0.1 dev eth0"
_DEFAULT = "ip -6 route add default via 2001:db8:1::1 dev eth0"
_OWN = "2001:db8:1::4"
_BOTH = ("172.16.0.0/16", "fd00:172::/32")
_SHADOWED = "OVERLAP: expected CIDR fd00:172::/32 (probe fd00:172:0:7::) routes via ib0, expected eth0"

_SIX = _BOTH[1:]
_FOUR_SHADOW = "ip route add 172.16.3.0/24 dev ib0"
_FOUR_SHADOWED = "OVERLAP: expected CIDR 172.16.0.0/16 (probe 172.16.3.0) routes via ib0, expected eth0"
_BY_RA = "ip -6 route add default via fe80::2 dev ib0 proto ra metric 512"
# A lookup shows the lifetime of the hop that its address selects, and only many select either.
_MANY = tuple(f"fd00:172:{number:x}::/48" for number in range(1, 17))
_FROM = f"ip -6 rule add from {_OWN} lookup 100"


def _expired_by(hop: str) -> tuple[str, str]:
    beside = f"ip -6 route append fd00:172::/32 {hop} expires 0"
    return "ip -6 route add fd00:172::/32 via 2001:db8:1::1 dev eth0", beside


class Case(NamedTuple):
    """A host: the commands that make it, the first parts of its marker, the expected CIDRs and the named uplinks."""

    steps: tuple[str, ...]
    lines: tuple[str, ...] = ()
    cidrs: tuple[str, ...] = _SIX
    uplinks: tuple[str, ...] | None = None


_CONTESTED = ("contested-default: table main has 2 IPv6 default routes of metric 1024 by several interfaces",)
CASES = {
    "both are ok": Case((_DEFAULT4, _DEFAULT), cidrs=_BOTH),
    "IPv4 fails": Case((_DEFAULT4, _DEFAULT, _FOUR_SHADOW), (_FOUR_SHADOWED,), _BOTH),
    "IPv6 fails": Case((_DEFAULT4, _DEFAULT, "ip address add fd00:172:0:7::4/64 dev ib0 nodad"), (_SHADOWED,), _BOTH),
    "IPv4 has no default route": Case((_DEFAULT,), ("no-default-route",), _BOTH),
    "IPv6 has no default route": Case((_DEFAULT4, _FOUR_SHADOW), ("no-default-route: IPv6", _FOUR_SHADOWED), _BOTH),
    "none has one": Case((), ("no-default-route", "no-default-route: IPv6"), _BOTH),
    "no uplink exists": Case((_DEFAULT4, _DEFAULT), ("no-uplink: ",), _BOTH, ("eth9",)),
    "IPv6's own default route is won elsewhere": Case((_BY_RA, _DEFAULT)),
    "IPv4 tells the uplink": Case(
        (_DEFAULT4, _BY_RA, _DEFAULT),
        ("OVERLAP: expected CIDR fd00:172::/32 (probe fd00:172::) routes via ib0, expected eth0",),
    ),
    "an expired hop beside a live one": Case(
        (_DEFAULT4, _DEFAULT, *_expired_by("via 2001:db8:1::7 dev eth0")), cidrs=_MANY
    ),
    "an expired hop elsewhere": Case(
        (_DEFAULT4, _DEFAULT, *_expired_by("via fe80::7 dev ib0")),
        tuple(
            f"OVERLAP: expected CIDR {cidr} (probe {cidr[:-3]}) routes via eth0,ib0, expected eth0" for cidr in _MANY
        ),
        _MANY,
    ),
    "contested": Case((_DEFAULT, "ip -6 route append default proto ra metric 1024 dev ib0"), _CONTESTED),
    "joined by networkd": Case(
        ("ip -6 route add default proto ra nexthop via 2001:db8:1::1 dev eth0 nexthop via fe80::2 dev ib0",),
        _CONTESTED,
    ),
    "only for a source": Case(
        (f"ip -6 route add default from {_OWN}/128 via 2001:db8:1::1 dev eth0",), uplinks=("eth0",)
    ),
    "a rule for a source alone leads to a route": Case(
        (_FROM, "ip -6 route add default via 2001:db8:1::1 dev eth0 table 100"), uplinks=("eth0",)
    ),
    "a rule for a source leads elsewhere": Case(
        (_DEFAULT, _FROM, "ip -6 route add fd00:172:0:7::/64 dev ib0 table 100"),
        (f"{_SHADOWED} for connections from {_OWN}",),
        uplinks=("eth0",),
    ),
    "anycast and own addresses": Case(
        (
            _DEFAULT,
            "ip address add fd00:172:0:7::4/128 dev ib0 nodad",
            "ip address add fd00:172:0:8::4/64 dev eth0 nodad",
            "sysctl -qw net.ipv6.conf.all.forwarding=1",
        )
    ),
    "an anycast route": Case(
        (_DEFAULT, "ip -6 route add anycast fd00:172:0:7::/64 dev ib0 table 100", "ip -6 rule add lookup 100"),
        (_SHADOWED,),
    ),
    "a block of a CNI": Case(
        (
            _DEFAULT,
            "ip -6 route add blackhole fd00:172:0:7::/64 proto bird",
            "ip -6 route add prohibit fd00:172:0:8::/64",
        ),
        ("BLACKHOLE: expected CIDR fd00:172::/32 (probe fd00:172:0:8::) is discarded by prohibit; expected via eth0",),
    ),
    "special blocks": Case(
        (_DEFAULT, "ip -6 route add fc00::/6 dev ib0"),
        ("OVERLAP: expected CIDR fe00::/7 (probe fe00::) routes via ib0, expected eth0",),
        ("fe00::/7", "::/96"),
    ),
    "the end of all addresses": Case(
        (_DEFAULT, "ip -6 route add 8000::/1 dev ib0 metric 5"),
        ("OVERLAP: expected CIDR ::/0 (probe 8000::) routes via ib0, expected eth0",),
        ("::/0",),
    ),
}


@pytest.mark.parametrize(("name", "awk"), [(name, awk) for name in CASES for awk in awks_for(name)])
def test_the_script_judges_rare_hosts(name: str, awk: str, tmp_path: Path) -> None:
    case = CASES[name]
    on_linux()
    make([*_NICS, *case.steps])
    config = Config(route_overlap={"expectedCidrs": case.cidrs}, wait_seconds=0, uplinks=case.uplinks)
    told, said = judged(config, awk, tmp_path)
    assert told == [*case.lines], said
    assert first_parts(marker_text(reported(config))) == [*case.lines]


# --- while routes change ---------------------------------------------------------------------------------------------

_SHADOWS = ("fd00:172::7/128", "fd00:172:ffff::7/128")

# The commands that are run all the time, and whether they matter.
CHURNS = {
    "one of two shadows exists": (
        tuple(f"ip -6 route {verb} {one} dev ib0" for one in _SHADOWS for verb in ("del", "add")),
        True,
    ),
    "IPv6 routes elsewhere": (tuple(f"ip -6 route {verb} fd00:9::/64 dev ib0" for verb in ("add", "del")), True),
    "IPv4 routes elsewhere": (tuple(f"ip route {verb} 10.9.0.0/16 dev ib0" for verb in ("add", "del")), False),
}


@pytest.mark.parametrize("churn", CHURNS)
def test_no_verdict_of_the_script_mixes_two_states(churn: str, sandbox: Sandbox) -> None:
    steps, matters = CHURNS[churn]
    on_linux()
    make([*_NICS, _DEFAULT4, _DEFAULT, *(f"ip -6 route add {one} dev ib0" for one in _SHADOWS)])
    script = render_check_route_overlap_script(_BOTH, wait_seconds=0)
    # These routes are read between the shadows.
    make([f"ip -6 route add fd00:172:{number:x}::/64 dev eth0" for number in range(1, 200)])
    with churning(steps):
        for _ in range(by_day(1, by_night=100)):
            sandbox.run(script)
            (kind,) = {line.partition(": ")[0] for line in sandbox.told()}
            assert kind in ("OVERLAP", *(("check-failed",) if matters else ()))


# --- its costs -------------------------------------------------------------------------------------------------------


def test_more_cidrs_take_no_more_processes(sandbox: Sandbox) -> None:
    """Not even where connections are asked about too, and where lookups fail without a source."""
    on_linux()
    source = f"ip -6 rule add from {_OWN} lookup 100"
    make([*_NICS, _DEFAULT4, _DEFAULT, source, "ip -6 route add unreachable fd00:172::/32 metric 5"])
    expected = [[f"fd00:172:{number:x}::/48" for number in range(count)] for count in (1, 50)]
    scripts = [render_check_route_overlap_script(cidrs, wait_seconds=0) for cidrs in expected]
    sandbox.run(scripts[0])  # makes the folder
    few, many = map(sandbox.count_processes, scripts)
    assert few == many
