"""Test that the routes script leaves the table that the task leaves, and that the check script
never contradicts the library.
"""

from __future__ import annotations

import random
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import pytest
from all_keys import see_all_keys
from audit.making import make
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from nightly import by_day
from node import NICS, await_local6, churning, lines, nics, on_linux
from scripts import (
    AWKS,
    Sandbox,
    awk_or_skip,
    awks_for,
    judged_soundly,
    recorded,
    render_check_route_overlap_script,
    verdict_of,
    with_constants,
)
from worlds import Question, hosts, ipv6, seldom
from worlds.cut import questions

import phases
from hostrouting import Config, Host, Layout
from hostrouting.boot.render import render_check, render_static_routes
from hostrouting.config.routing import StaticRoute, UplinkRecord
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.kernel.port import read_routes
from hostrouting.model.errors import HostRoutingError
from hostrouting.model.family import Family
from hostrouting.model.verified_uplinks import VerifiedUplink, verified_text
from hostrouting.overlap.check import check_families
from hostrouting.overlap.findings import OverlapReport
from hostrouting.overlap.markers import marker_text
from hostrouting.tasks.install_routes import InstallRoutes
from hostrouting.testing import FakeSystemd

pytestmark = pytest.mark.kernel


def config_of(uplinks: Sequence[str] | None, **sections: object) -> Config:
    named = {} if uplinks is None else {"uplinks": uplinks}
    return Config.from_mapping({"hostRouting": {"waitSeconds": 0} | named | sections})


@pytest.fixture(scope="module")
def roots() -> Iterator[Callable[[], Path]]:
    """Return a function that creates an empty directory; Hypothesis calls the test function many
    times per fixture.
    """
    with tempfile.TemporaryDirectory() as parent:

        def fresh() -> Path:
            shutil.rmtree(Path(parent) / "root", ignore_errors=True)
            root = Path(parent) / "root"
            root.mkdir()
            return root

        yield fresh


# --- installation ---------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """The routes after a run, and what it failed with, or an empty string."""

    table: list[str]
    error: str


def _table(kernel: NamespaceKernel) -> list[str]:
    return [str(route) for route in read_routes(kernel)]


def _install(
    config: Config, kernel: NamespaceKernel, root: Path, verified: Sequence[VerifiedUplink]
) -> Outcome:
    host = Host(routes=kernel, units=FakeSystemd(), layout=Layout(root))
    host.layout.verified.parent.mkdir(parents=True, exist_ok=True)
    host.layout.verified.write_text(verified_text(verified))
    try:
        InstallRoutes(config, host=host).do(phases.CancelScope())
    except HostRoutingError as error:
        return Outcome(_table(kernel), "\n".join([str(error), *getattr(error, "__notes__", ())]))
    return Outcome(_table(kernel), "")


def _install_at_boot(
    config: Config,
    kernel: NamespaceKernel,
    sandbox: Sandbox,
    verified: Sequence[VerifiedUplink],
) -> Outcome:
    """Run the script twice, check that the second run writes nothing, and return the first."""
    script = render_static_routes(config)
    with_record: dict[str, Any] = recorded(verified)
    done = sandbox.run(script, **with_record)
    outcome = Outcome(_table(kernel), done.stderr)
    resigned, _, error = done.stderr.rpartition("; the default route tells the uplink now\n")
    assert resigned.count("\n") == 0, done
    outcome = Outcome(outcome.table, error)
    assert (done.returncode == 0, len(error.splitlines())) == (not error, bool(error))
    if not outcome.error:
        again = sandbox.run(script, **with_record)
        assert (again.returncode, again.stderr, again.stdout) == (
            0,
            done.stderr,
            "nothing to change\n",
        ), done.stdout
        assert _table(kernel) == outcome.table
    return outcome


# Each example runs a script and a task, which takes about 80 ms.
_SOME = settings(max_examples=by_day(3, by_night=2500), suppress_health_check=list(HealthCheck))


UPLINKS = st.sampled_from(
    (None, None, None, ("eth0",), ("eth1",), ("eth*",), ("ib0", "eth[1-9]"), ("eth9",))
)


# The values of an entry's keys. The last ones are those of one entry with all keys.
_VALUES: dict[str, tuple[object, ...]] = {
    "gateway": ("", "", "", "onlink", "192.0.2.1", "10.0.0.1", "10.0.0.5"),
    "dev": ("", "", "", "eth1", "ib0", "eth9", "eth0"),
    "metric": (0, 0, 10, 2**32 - 1),
}
see_all_keys(StaticRoute, {"destination", *_VALUES})


def _configs_for(question: Question) -> st.SearchStrategy[Config]:
    entries = st.fixed_dictionaries(
        {
            "destination": st.sampled_from([str(cidr) for cidr in question.cidrs]),
            **{key: st.sampled_from(values) for key, values in _VALUES.items()},
        }
    )
    wanted = st.lists(
        entries, max_size=4, unique_by=lambda entry: (entry["destination"], entry["metric"])
    )
    return st.builds(_installing, wanted, UPLINKS)


def _installing(entries: Sequence[object], uplinks: Sequence[str] | None = None) -> Config:
    return config_of(
        uplinks,
        staticRoutes={"enabled": True, "routes": entries},
        routeOverlap={"expectedCidrs": ["10.96.0.0/12"], "mode": "STRICT"},
    )


_RECORDS = st.just(()) | st.lists(
    st.builds(VerifiedUplink, st.sampled_from(("eth0", "eth1", "ib0", "eth9"))), max_size=2
)


class Story(NamedTuple):
    """A host, the configs that it gets one after another, and the verified uplinks."""

    question: Question
    configs: tuple[Config, ...]
    verified: Sequence[VerifiedUplink] = ()


def _stories(question: Question) -> st.SearchStrategy[Story]:
    configs = _configs_for(question)
    return st.builds(Story, st.just(question), st.tuples(configs, configs), _RECORDS)


_WITH_ALL_KEYS = Story(
    seldom.question("""
        addr add 10.0.0.4/24 dev eth0
        route add default via 10.0.0.1 dev eth0 proto dhcp
        expect 172.16.1.0/24
    """),
    (
        _installing(
            [{"destination": "172.16.1.0/24", **{key: last for key, (*_, last) in _VALUES.items()}}]
        ),
        _installing([]),
    ),
)

_EACH_KEY_ALONE = Story(
    seldom.question("""
        addr add 10.0.0.4/24 dev eth0
        addr add 192.0.2.4/24 dev eth1
        route add default via 10.0.0.1 dev eth0 proto dhcp
        expect 172.16.1.0/24
    """),
    tuple(
        _installing([{"destination": "172.16.1.0/24", key: value}])
        for key, values in _VALUES.items()
        for value in dict.fromkeys(values)
        if value
    ),
)


@_SOME
@example(story=_WITH_ALL_KEYS, awk="mawk")
@example(story=_EACH_KEY_ALONE, awk="mawk")
@given(
    story=st.one_of(questions(), questions(has_objects=True)).flatmap(_stories),
    awk=st.sampled_from(AWKS),
)
def test_installing_one_config_after_another(
    story: Story, awk: str, roots: Callable[[], Path]
) -> None:
    """If a route fails, both errors name it."""
    question, configs, verified = story
    outcomes: list[list[Outcome]] = []
    for is_boot in (True, False):
        kernel, folder = on_linux(), roots()
        question.world.build(kernel)
        sandbox = Sandbox(folder, awk_or_skip(awk))
        outcomes.append(
            [
                _install_at_boot(each, kernel, sandbox, verified)
                if is_boot
                else _install(each, kernel, folder, verified)
                for each in configs
            ]
        )
    for config, script, task in zip(configs, *outcomes, strict=True):
        assert (task.table, bool(task.error)) == (script.table, bool(script.error)), (
            script.error,
            task.error,
        )
        wanted = [
            str(route.destination).removesuffix("/32") for route in config.static_routes.routes
        ]
        named = [word for word in wanted if word in script.error and word in task.error]
        assert named or not script.error, (script.error, task.error)


# --- the check ------------------------------------------------------------------------------------


# Names, each with the number of the link whose MAC address is recorded, as names may
# have been swapped since. There is no link 9, and -1 stands for no address.
RECORDS = st.lists(
    st.tuples(st.sampled_from(("eth0", "eth0", "eth1", "ib0", "eth9")), st.integers(-1, 9)),
    max_size=2,
)


def records_of(
    kernel: NamespaceKernel, numbered: Iterable[tuple[str, int]]
) -> tuple[VerifiedUplink, ...]:
    macs = dict(enumerate(link.mac for link in kernel.facts().links)) | {-1: None}
    gone = "02:00:00:00:00:99"
    return tuple(VerifiedUplink(name, macs.get(number, gone)) for name, number in numbered)


WIDE = ("0.0.0.0/0", "128.0.0.0/1", "8.0.0.0/5", "10.0.0.77/24")
PATTERNS = ("eth1", "eth[1-9]", "eth?", "*b0", "[e]th0", "lo", "veth*")


def checks(question: Question) -> st.SearchStrategy[Config]:
    """Draw configs for checks of a host."""
    cidrs = st.sampled_from((*map(str, question.cidrs), *map(str, question.cidrs), *WIDE))
    devs = st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=2)
    overlap = st.fixed_dictionaries(
        {
            "expectedCidrs": st.lists(
                st.one_of(cidrs, cidrs, st.fixed_dictionaries({"cidr": cidrs, "devs": devs})),
                min_size=1,
                max_size=6,
            ),
            "mode": st.sampled_from(("WARN", "STRICT")),
            "containerDevs": st.lists(st.sampled_from(PATTERNS), max_size=1),
            "allowedDevs": st.lists(st.sampled_from(PATTERNS), max_size=1),
            "foreseen": st.lists(cidrs, max_size=2),
        }
    )
    return st.builds(
        lambda section, uplinks: config_of(uplinks, routeOverlap=section), overlap, UPLINKS
    )


CHECKED = st.one_of(questions(), questions(has_objects=True), questions(by_source=True))


def reported(config: Config) -> OverlapReport:
    backends = {Family.IPV4: NetlinkBackend(), Family.IPV6: NetlinkBackend6()}
    return check_families(config, backends.__getitem__, phases.CancelScope())


def see_sound(
    config: Config, awk: str, root: Path, verified: tuple[VerifiedUplink, ...] = ()
) -> str:
    """Check that the script's verdict doesn't contradict the library's, and return it.

    Where the script has none, Python has the library's.
    """
    is_strict = config.route_overlap.mode == "STRICT"
    if not is_strict:
        verified = ()
    sandbox = Sandbox(root, awk_or_skip(awk))
    report = reported(attrs.evolve(config, record=UplinkRecord(verified)))
    with_record: dict[str, Any] = recorded(verified)
    done = sandbox.run(render_check(config), **with_record)
    lines = sandbox.told()
    assert done.returncode == (is_strict and bool(lines)), done
    verdict = judged_soundly(lines, report)
    if verdict == "unknown":
        text = with_constants(render_check(config, python=sys.executable), JUDGE_SECONDS=50)
        done = sandbox.run(text, is_host=True, **({"etc": True} | with_record))
        assert verdict_of(sandbox.told()) == report.verdict, done
        assert done.returncode == (is_strict and report.verdict != "ok")
    return verdict


@settings(_SOME, max_examples=by_day(3, by_night=10_000))
@given(data=st.data(), question=CHECKED, awk=st.sampled_from(AWKS))
def test_the_check_never_contradicts_the_library(
    data: st.DataObject, question: Question, awk: str, roots: Callable[[], Path]
) -> None:
    kernel = on_linux()  # as long as it exists, so does its namespace
    question.world.build(kernel)
    see_sound(data.draw(checks(question)), awk, roots(), records_of(kernel, data.draw(RECORDS)))


@pytest.mark.parametrize(
    ("question", "awk"),
    [
        (question, awk)
        for number, question in enumerate(seldom.SELDOM)
        for awk in awks_for(str(number))
    ],
)
def test_checking_rare_hosts(question: Question, awk: str, tmp_path: Path) -> None:
    kernel = on_linux()  # as long as it exists, so does its namespace
    question.world.build(kernel)
    cidrs = [str(cidr) for cidr in question.cidrs]
    see_sound(config_of(None, routeOverlap={"expectedCidrs": cidrs}), awk, tmp_path)


# --- the check of random IPv6 hosts, some of which have IPv4 too ----------------------------------


def with_ipv4(host: hosts.Host, seed: int) -> tuple[tuple[str, ...], Config]:
    """Return a host's commands and config, in some cases with a default route and an expected CIDR
    of IPv4.
    """
    chance = random.Random(f"{seed} IPv4")
    steps, expected = list(host.steps), list(host.hostrouting["routeOverlap"]["expectedCidrs"])
    if chance.random() < 0.5:
        dev = chance.choice(("eth0", "eth0", host.devs[-1]))
        steps += [
            f"ip address add 10.0.0.4/24 dev {dev}",
            f"ip route add default via 10.0.0.1 dev {dev}",
        ]
        if chance.random() < 0.2:
            steps.append(
                f"ip route append default via 10.0.0.2 dev {chance.choice(host.devs)} onlink"
            )
        steps += ["ip route add 172.16.3.0/24 dev ib0"]
    if chance.random() < 0.5:
        expected.append(chance.choice(("172.16.0.0/16", "10.96.0.0/12")))
    overlap = host.hostrouting["routeOverlap"] | {"expectedCidrs": expected}
    return tuple(steps), Config.from_mapping(
        {"hostRouting": host.hostrouting | {"routeOverlap": overlap, "waitSeconds": 0}}
    )


@pytest.mark.parametrize("seed", range(by_day(3, by_night=10_000)))
def test_checking_ipv6(seed: int, roots: Callable[[], Path]) -> None:
    """Every second host is a STRICT node with a record."""
    steps, config = with_ipv4(ipv6.world(seed), seed)
    kernel = on_linux()
    verified: tuple[VerifiedUplink, ...] = ()
    make(steps)
    if seed % 2:
        chance = random.Random(f"{seed} record")
        name = chance.choice((*(link.name for link in kernel.facts().links), "eth9"))
        verified = records_of(kernel, [(name, chance.choice((-1, *range(9))))])
        strict = attrs.evolve(config.route_overlap, mode="STRICT")
        config = attrs.evolve(config, route_overlap=strict)
    try:
        see_sound(config, AWKS[seed % len(AWKS)], roots(), verified)
    except AssertionError:
        # Routers and addresses become usable a moment after they were added, or silent.
        see_sound(config, AWKS[seed % len(AWKS)], roots(), verified)


# --- IPv6 hosts that random draws rarely produce --------------------------------------------------

_NICS = lines(nics(eth0=NICS["eth0"], ib0=""), "ip address add 2001:db8:1::4/64 dev eth0 nodad")
_DEFAULT4 = "ip route add default via 10.1.0.1 dev eth0"
_DEFAULT = "ip -6 route add default via 2001:db8:1::1 dev eth0"
_OWN = "2001:db8:1::4"
_BOTH = ("172.16.0.0/16", "fd00:172::/32")
_SHADOWED = (
    "OVERLAP: expected CIDR fd00:172::/32 (probe fd00:172:0:7::) routes via ib0, expected eth0"
)

_SIX = _BOTH[1:]
_FOUR_SHADOW = "ip route add 172.16.3.0/24 dev ib0"
_FOUR_SHADOWED = (
    "OVERLAP: expected CIDR 172.16.0.0/16 (probe 172.16.3.0) routes via ib0, expected eth0"
)
_BY_RA = "ip -6 route add default via fe80::2 dev ib0 proto ra metric 512"
# A lookup shows the lifetime of the hop that its address selects, and only many select either.
_MANY = tuple(f"fd00:172:{number:x}::/48" for number in range(1, 17))
_FROM = f"ip -6 rule add from {_OWN} lookup 100"


def _expired_by(hop: str) -> tuple[str, str]:
    beside = f"ip -6 route append fd00:172::/32 {hop} expires 0"
    return "ip -6 route add fd00:172::/32 via 2001:db8:1::1 dev eth0", beside


class Case(NamedTuple):
    """A host: the commands that make it, the first parts of its marker, the expected CIDRs and the
    named uplinks.
    """

    steps: tuple[str, ...]
    lines: tuple[str, ...] = ()
    cidrs: tuple[str, ...] = _SIX
    uplinks: tuple[str, ...] | None = None


_CONTESTED = ("contested-default",)
CASES = {
    "both are ok": Case((_DEFAULT4, _DEFAULT), cidrs=_BOTH),
    "IPv4 fails": Case((_DEFAULT4, _DEFAULT, _FOUR_SHADOW), (_FOUR_SHADOWED,), _BOTH),
    "IPv6 fails": Case(
        (_DEFAULT4, _DEFAULT, "ip address add fd00:172:0:7::4/64 dev ib0 nodad"),
        (_SHADOWED,),
        _BOTH,
    ),
    "IPv4 has no default route": Case((_DEFAULT,), ("no-default-route",), _BOTH),
    "IPv6 has no default route": Case(
        (_DEFAULT4, _FOUR_SHADOW), ("no-default-route: IPv6", _FOUR_SHADOWED), _BOTH
    ),
    "none has one": Case((), ("no-default-route", "no-default-route: IPv6"), _BOTH),
    "no uplink exists": Case((_DEFAULT4, _DEFAULT), ("no-uplink",), _BOTH, ("eth9",)),
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
            f"OVERLAP: expected CIDR {cidr} (probe {cidr[:-3]}) routes via eth0,ib0, expected eth0"
            for cidr in _MANY
        ),
        _MANY,
    ),
    "contested": Case(
        (_DEFAULT, "ip -6 route append default proto ra metric 1024 dev ib0"), _CONTESTED
    ),
    "joined by networkd": Case(
        (
            (
                "ip -6 route add default proto ra "
                "nexthop via 2001:db8:1::1 dev eth0 nexthop via fe80::2 dev ib0"
            ),
        ),
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
        (
            _DEFAULT,
            "ip -6 route add anycast fd00:172:0:7::/64 dev ib0 table 100",
            "ip -6 rule add lookup 100",
        ),
        (_SHADOWED,),
    ),
    "what comes in for root isn't delivered": Case(
        (
            _DEFAULT,
            "ip -6 rule add iif eth0 uidrange 0-0 lookup main pref 21",
            "ip -6 rule add lookup local pref 25",
            "ip -6 rule del pref 0",
        ),
        ("no-local-table",),
    ),
    "a next hop depends on the source port": Case(
        (
            _DEFAULT,
            "sysctl -qw net.ipv6.fib_multipath_hash_policy=1",
            *(
                f"ip -6 route add {each} nexthop via fe80::1 dev eth0 nexthop via fe80::1 dev ib0"
                for each in _MANY
            ),
            f"ip -6 rule add from {_OWN} sport 1-65534 lookup 101",
        ),
        (
            (
                "OVERLAP: expected CIDR fd00:172::/32 (probe fd00:172:1::) "
                "routes via eth0,ib0, expected eth0"
            ),
        ),
        uplinks=("eth0",),
    ),
    "a block of a CNI": Case(
        (
            _DEFAULT,
            "ip -6 route add fd00:172:0:9::/64 via 2001:db8:1::9 proto bird",
            "ip -6 route add blackhole fd00:172:0:7::/64 proto bird",
            "ip -6 route add prohibit fd00:172:0:8::/64",
        ),
        (
            (
                "BLACKHOLE: expected CIDR fd00:172::/32 (probe fd00:172:0:8::) "
                "is discarded by prohibit; expected via eth0"
            ),
        ),
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


_REASON = re.compile("^(check-failed|no-uplink|no-local-table|contested-default): .*")


def _first_parts(lines: Iterable[str]) -> list[str]:
    """Strip the shadowed addresses and the route from each line, and all but the kind from each
    reason.
    """
    return [_REASON.sub(r"\1", re.sub("; (shadowed:|by) .*", "", line)) for line in lines]


@pytest.mark.parametrize(("name", "awk"), [(name, awk) for name in CASES for awk in awks_for(name)])
def test_checking_rare_ipv6_hosts(name: str, awk: str, tmp_path: Path) -> None:
    case = CASES[name]
    on_linux()
    make([*_NICS, *case.steps])
    await_local6(*re.findall(r"ip address add ([0-9a-f]*:[0-9a-f:]+)/", "\n".join(case.steps)))
    config = Config(
        route_overlap={"expectedCidrs": case.cidrs}, wait_seconds=0, uplinks=case.uplinks
    )
    see_sound(config, awk, tmp_path)
    assert _first_parts(marker_text(reported(config)).splitlines()) == [*case.lines]


# --- while routes change --------------------------------------------------------------------------

_SHADOWS = ("fd00:172::7/128", "fd00:172:ffff::7/128")

# The commands that are run all the time, and whether they matter.
CHURNS = {
    "one of two shadows exists": (
        tuple(f"ip -6 route {verb} {one} dev ib0" for one in _SHADOWS for verb in ("del", "add")),
        True,
    ),
    "IPv6 routes elsewhere": (
        tuple(f"ip -6 route {verb} fd00:9::/64 dev ib0" for verb in ("add", "del")),
        True,
    ),
    "IPv4 routes elsewhere": (
        tuple(f"ip route {verb} 10.9.0.0/16 dev ib0" for verb in ("add", "del")),
        False,
    ),
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
