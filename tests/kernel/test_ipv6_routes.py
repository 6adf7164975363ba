"""Tests that IPv6 routes are installed and removed without touching other programs' next hops."""

from __future__ import annotations

import errno as errnos
import random
import re
import subprocess
from contextlib import nullcontext
from ipaddress import IPv6Address, IPv6Network
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from nightly import by_day
from node import NICS, UPLINK, attempt, build_node6, run_ip, run_ip6, tool, until
from scripts import AWKS, Sandbox, awk_or_skip, awks_for
from test_trial_script import begin, end
from wanted import config

import phases
from hostrouting import Config, Host, Layout, RouteError, RoutesReport, check, plan
from hostrouting.boot.render import render_static_routes
from hostrouting.kernel.model import model_of
from hostrouting.kernel.namespace import enter_namespace
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.kernel.port import Write, read_our_routes, read_routes
from hostrouting.kernel.taking_snapshots import take_snapshot
from hostrouting.model.changes import Replacement
from hostrouting.model.family import Family
from hostrouting.model.lookups import RouteFailure
from hostrouting.model.routes import NextHop, Protocol, Route, Route6, RouteType, Table
from hostrouting.routes.install import apply_routes
from hostrouting.routes.plan import RoutePlan
from hostrouting.routes.verify import verify_routes
from hostrouting.tasks.install_routes import InstallRoutes
from hostrouting.testing import FakeSystemd
from hostrouting.watch._repair import Reconciler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostrouting.kernel.namespace import NamespaceKernel

pytestmark = pytest.mark.kernel

WANTED = IPv6Network("fd00:1::/48")
ETH0, ETH0_TOO, IB0 = (
    NextHop("eth0", IPv6Address("fd00:a::1")),
    NextHop("eth0", IPv6Address("fd00:a::9")),
    NextHop("ib0", IPv6Address("fd00:b::1")),
)
DIRECT = NextHop("eth0")
SILENT = "neigh add fd00:a::1 dev eth0 nud failed"


@pytest.fixture
def host(kernel: NamespaceKernel) -> NetlinkBackend6:
    """A namespace with two interfaces, eth0 and ib0, each with an IPv6 address."""
    assert kernel.facts().links
    build_node6()
    return NetlinkBackend6()


def route(*hops: NextHop, metric: int = 512, **fields: Any) -> Route6:
    return Route6(WANTED, hops, metric=metric, **fields)


def found(host: NetlinkBackend6) -> list[tuple[int, tuple[NextHop, ...]]]:
    entries = [entry for entry in read_routes(host, Table.MAIN) if entry.destination == WANTED]
    return [(entry.protocol, entry.hops) for entry in entries]


def join(hop: NextHop) -> None:
    """Add a next hop to the route as another program."""
    run_ip6(f"route append {WANTED} via {hop.gateway} dev {hop.dev} metric 512 proto static")


@pytest.mark.parametrize(
    "there",
    [
        "fd00:7::/64 dev eth0",
        "fd00:7::/64 dev ib0",
        "fd00:7::/64 via fd00:b::9 dev ib0",
        "unreachable fd00:7::/64",
        "8000::/1 dev ib0",
        "::/0 dev ib0",
        "local fd00:7::1 dev lo",
        "fd00::/16 dev ib0",
        "fd00:7::/64 dev eth0 metric 256; fd00:7::/64 dev ib0 metric 10",
        "fd00:7::/64 dev ib0 metric 256; fd00:7::/64 dev eth0 metric 10",
        "fd00:7::/64 dev ib0; fd00:7::/64 dev eth0",
        "fd00:7::/64 dev eth0; fd00:7::/64 dev ib0",
    ],
)
def test_an_onlink_gateway_is_refused_where_another_route_leads_to_it(
    kernel: NamespaceKernel, host: NetlinkBackend6, there: str
) -> None:
    run_ip6(*(f"route append {each}" for each in there.split("; ")))
    wanted = route(NextHop("eth0", IPv6Address("fd00:7::1"), onlink=True))
    model = model_of(take_snapshot(kernel, host).known(Family.IPV6)).with_routes([wanted])
    refused = [failure.route for failure in host.write(Write.ADD, [wanted])]
    assert [failure.route for failure in model.refused()] == refused


@pytest.mark.parametrize(
    "each",
    [
        route(ETH0),
        route(DIRECT),
        route(ETH0, IB0),
        route(NextHop("ib0", IPv6Address("fe80::1"))),
        route(ETH0, source=IPv6Address("fd00:a::2"), mtu=1400),
        route(NextHop("eth0", IPv6Address("fd00:7::1"), onlink=True)),
        route(attrs.evolve(ETH0, weight=3), IB0),
        route(ETH0, source_prefix=IPv6Network("fd00:a::/64")),
    ],
    ids=str,
)
def test_a_route_is_added_and_deleted(host: NetlinkBackend6, each: Route6) -> None:
    before = read_routes(host)
    assert host.write(Write.ADD, [each]) == ()
    assert read_our_routes(host) == (each,)
    assert [failure.errno for failure in host.write(Write.ADD, [each])] == [errnos.EEXIST]
    assert host.write(Write.DELETE, [each]) == ()
    assert read_routes(host) == before
    assert {failure.errno for failure in host.write(Write.DELETE, [each])} == {errnos.ESRCH}


@pytest.mark.parametrize(
    "old",
    [
        route(ETH0),
        route(DIRECT),
        route(ETH0, ETH0_TOO),
        route(IB0, mtu=1400),
        route(ETH0_TOO, metric=100),
    ],
    ids=str,
)
@pytest.mark.parametrize("new", [route(ETH0), route(DIRECT), route(ETH0, IB0)], ids=str)
def test_our_route_is_replaced(host: NetlinkBackend6, old: Route6, new: Route6) -> None:
    host.write(Write.ADD, [old])
    assert host.write(Write.REPLACE, [new]) == ()
    assert {*read_our_routes(host)} == ({new} if old.key == new.key else {old, new})


def test_a_missing_route_is_noticed_inside_another(host: NetlinkBackend6) -> None:
    outer = attrs.evolve(route(ETH0), destination=WANTED.supernet())
    assert host.write(Write.ADD, [outer]) == ()
    with pytest.raises(RouteError, match=f"^{WANTED} .* any more"):
        verify_routes([outer, route(ETH0)], host)


def test_a_change_of_the_next_hop_leaves_no_gap(host: NetlinkBackend6) -> None:
    host.write(Write.ADD, [route(ETH0)])
    run_ip6("route add default dev ib0")

    def change() -> None:
        for _ in range(50):
            for hops in ((ETH0_TOO,), (DIRECT,), (ETH0, IB0), (ETH0,)):
                assert host.write(Write.REPLACE, [route(*hops)]) == ()

    changing = Thread(target=change)
    changing.start()
    asked = [WANTED[1]] * 100
    while changing.is_alive():
        assert {found.route and found.route.destination for found in host.lookup(asked)} == {WANTED}


def after(monkeypatch: pytest.MonkeyPatch, step: str, act: Callable[[], object]) -> None:
    """Let another program act right after the backend's next step that succeeds."""
    original = getattr(NetlinkBackend6, step)

    def take(self: NetlinkBackend6, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        failures: tuple[RouteFailure, ...] = original(self, routes)
        if not failures:
            monkeypatch.undo()
            act()
        return failures

    monkeypatch.setattr(NetlinkBackend6, step, take)


@pytest.mark.parametrize(
    ("step", "new", "theirs"),
    [
        ("_delete", route(ETH0, IB0, mtu=1400), [ETH0, IB0]),
        (
            "_add",
            route(
                attrs.evolve(ETH0, gateway=IPv6Address("fd00:99::1")), attrs.evolve(IB0, weight=3)
            ),
            [IB0],
        ),
    ],
    ids=["deleting", "adding"],
)
def test_a_hop_that_is_lost_during_a_replacement_is_reported(
    host: NetlinkBackend6,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    new: Route6,
    theirs: list[NextHop],
) -> None:
    """Another program takes the place of our hop IB0."""
    host.write(Write.ADD, [old := route(ETH0, IB0)])

    def take_its_place() -> None:
        if ETH0 in theirs:
            run_ip6(f"route del {WANTED} proto 217 metric 512")
        for hop in theirs:
            join(hop)

    after(monkeypatch, step, take_its_place)
    undo = phases.Undo()
    with pytest.raises(RouteError, match=f"can't put back {WANTED} via {IB0.gateway}"):
        apply_routes(RoutePlan(replace=(Replacement(old, new),)), host, phases.CancelScope(), undo)
    # If ours are gone, the rollback can't put them back, either.
    assert len(undo.roll_back()) == (ETH0 in theirs)
    assert [hop for _, hops in found(host) for hop in hops] == [ETH0, IB0]


# --- the task -------------------------------------------------------------------------------------

BOTH = ("172.16.1.0/24", str(WANTED))
DEFAULT = "default via fd00:a::1 dev eth0 metric 1024 mtu 1400"
COVERING = {"destination": "fd00:a::8/125", "gateway": "fe80::1", "dev": "eth0"}


@pytest.fixture
def node(host: NetlinkBackend6, tmp_path: Path) -> Host:
    """Return a host with a default route through eth0 in each family."""
    run_ip(UPLINK)
    run_ip6(f"route add {DEFAULT}")
    assert not read_our_routes(host)
    return Host(NetlinkBackend(), FakeSystemd(), Layout(tmp_path), NetlinkBackend6())


def install(node: Host, *routes: str | dict[str, Any], wait: int = 0) -> RoutesReport:
    return phases.run(InstallRoutes(config(*routes, waitSeconds=wait), host=node))


class Refused(Exception):
    """A failed installation."""


@pytest.fixture(
    params=[-1, *range(by_day(1, by_night=len(AWKS)))],
    ids=lambda at: "task" if at < 0 else f"script{at}",
)
def run(request: pytest.FixtureRequest, node: Host, tmp_path: Path) -> Callable[..., None]:
    """Return a function that installs routes with the task, or with the boot script and one of the
    awks.
    """
    awk = awks_for(request.function.__name__)[request.param] if request.param >= 0 else ""

    def call(*routes: str | dict[str, Any]) -> None:
        if awk:
            done = boot(tmp_path, *routes, awk=awk)
            if done.returncode:
                raise Refused(done.stderr)
            return
        try:
            install(node, *routes)
        except RouteError as error:
            raise Refused("\n".join([str(error), *error.__notes__])) from error

    return call


def boot(
    root: Path, *routes: str | dict[str, Any], awk: str = ""
) -> subprocess.CompletedProcess[str]:
    """Install routes with the boot script."""
    return Sandbox(root, awk and awk_or_skip(awk)).run(render_static_routes(config(*routes)))


def tables(node: Host) -> set[Route]:
    return {route for family in Family for route in read_routes(node.routes_of(family))}


def test_routes_of_both_families_are_installed_once(node: Host, tmp_path: Path) -> None:
    before = tables(node)
    report = install(node, *BOTH)
    inherited = Route6(WANTED, (ETH0,), metric=512, mtu=1400)
    assert read_our_routes(node.routes_of(Family.IPV6)) == (inherited,)
    assert inherited in report.plan.add
    assert len(report.changes.routes) == 2
    assert not install(node, *BOTH).changes
    installed = tables(node)
    install(node, BOTH[1], "fd00:9::/48")
    assert boot(tmp_path, *BOTH).returncode == 0
    assert tables(node) == installed
    assert [change.action for change in install(node).changes.routes] == ["removed", "removed"]
    assert tables(node) == before


def test_a_plan_for_one_family_asks_the_kernel_about_the_other(node: Host) -> None:
    """Only the kernel knows the sources of this host's connections."""
    run_ip6(
        "addr add 2001:db8::4/64 dev eth0 nodad",
        "rule add from 2001:db8::/64 lookup 300",
        "route add ::/0 dev ib0 table 300",
    )
    run_ip(*(f"addrlabel add prefix {prefix} label 99" for prefix in ("2001:db8::/64", WANTED)))
    wanted = config(BOTH[0], cidrs=[WANTED])
    report = check(wanted, host=node)
    (finding,) = report.findings
    assert finding.source == IPv6Address("2001:db8::4")
    assert [each.obstacle.rule and each.obstacle.rule.table for each in report.fix.unfixable] == [
        300
    ]
    assert plan(wanted, host=node).next_start.reason == finding.message


def test_the_script_names_the_changes_of_either_family(node: Host, tmp_path: Path) -> None:
    for present, count in ((BOTH, 0), (BOTH[:1], 1), (BOTH[1:], 1), ((), 2)):
        install(node, *present)
        lines = boot(tmp_path, *BOTH).stdout.splitlines()
        assert [line.split()[:2] for line in lines] == (
            [["route", "add"]] * count or [["nothing", "to"]]
        )


def test_a_longer_prefix_for_sources_covers_packets_without_one(node: Host, tmp_path: Path) -> None:
    run_ip6("route add fd00:1::/49 from ::/1 dev ib0")
    assert boot(tmp_path, str(WANTED)).returncode == 0
    assert not install(node, str(WANTED)).changes
    run_ip6("route add fd00:1:0:8000::/49 from ::/1 dev ib0")
    done = boot(tmp_path, str(WANTED))
    assert (done.returncode, "longer prefixes cover all of it" in done.stderr) == (1, True)
    with pytest.raises(RouteError, match="never wins"):
        install(node, str(WANTED))


def test_a_route_is_inherited_from_a_router_advertisement(node: Host) -> None:
    run_ip6(
        f"route del {DEFAULT}",
        "route add default via fe80::1 dev eth0 proto ra metric 1024 expires 1800",
    )
    install(node, str(WANTED))
    (ours,) = read_our_routes(node.routes_of(Family.IPV6))
    assert ours.hops == (NextHop("eth0", IPv6Address("fe80::1")),)


@pytest.mark.parametrize(
    ("breaking", "words"),
    [
        (f"route add {WANTED} via fd00:b::1 dev ib0 metric 512", "another program's route"),
        ("rule add from all lookup 100 priority 50", "doesn't win"),
        (f"route add fd00::/16 dev ib0\n{SILENT}", "no answer"),
        (f"route add {WANTED} dev ib0 metric 9\n{SILENT}", "go by .* metric 9\nhint: .* rule"),
        (
            f"route add fd00:1::/49 dev ib0\nroute add {IPv6Network('fd00:1:0:8000::/49')} dev ib0",
            "never wins",
        ),
        (
            f"route add {WANTED} from fd00:b::/64 dev ib0",
            "from fd00:b::/64 .* hides ours.*\nhint: name its halves instead",
        ),
        (
            f"{SILENT}\nrule add to {WANTED} blackhole priority 50",
            f", by rule 50: from all to {WANTED} blackhole\nhint: ",
        ),
        (
            f"{SILENT}\nroute add prohibit {WANTED} metric 9",
            f"nowhere .*, by prohibit {WANTED} .*metric 9\nhint: ",
        ),
        (
            f"{SILENT}\nroute add unreachable fd00::/16",
            "by unreachable fd00::/16 .* no answer from fd00:a::1",
        ),
    ],
    ids=[
        "foreign",
        "rule",
        "silent",
        "lower metric",
        "covered",
        "source",
        "discard",
        "prohibit",
        "silent discard",
    ],
)
def test_a_refused_route_leaves_both_tables_as_they_were(
    node: Host, tmp_path: Path, breaking: str, words: str
) -> None:
    run_ip6("route add default dev ib0 table 100", *breaking.splitlines())
    install(node, BOTH[0])
    before = tables(node)
    with pytest.raises(RouteError, match=words):
        install(node, *BOTH)
    assert tables(node) == before
    done = boot(tmp_path, *BOTH, awk="busybox")
    assert (done.returncode, "put back" in done.stderr, tables(node)) == (1, False, before)


def test_longer_prefixes_for_a_source_or_without_carrier_cover_nothing(
    node: Host, run: Callable[..., None]
) -> None:
    Path("/proc/sys/net/ipv6/conf/ib0/ignore_routes_with_linkdown").write_text("1")
    places = {WANTED: "from fd00:a::/64 dev eth0", IPv6Network("fd00:2::/48"): "dev ib0"}
    run_ip6(
        *(f"route add {half} {hop}" for place, hop in places.items() for half in place.subnets())
    )
    run_ip("link set peer-ib0 down")
    until(lambda: tool("ip", "-6", "route", "show", "root", "fd00:2::/48").count("dead") == 2)
    run(*map(str, places))
    assert {route.destination for route in node.our_routes()} == {*places}


def test_a_device_without_ipv6_is_named_as_the_reason(node: Host) -> None:
    Path("/proc/sys/net/ipv6/conf/eth0/disable_ipv6").write_text("1")
    with pytest.raises(RouteError, match="its device has no IPv6") as caught:
        install(node, {"destination": str(WANTED), "gateway": "fe80::1", "dev": "eth0"})
    assert caught.value.hint == "look at: grep . /proc/sys/net/ipv6/conf/*/disable_ipv6"


@pytest.mark.parametrize("is_wanted", [False, True], ids=["removed", "added"])
def test_routes_are_restored_despite_one_that_covers_their_gateway(
    node: Host, run: Callable[..., None], is_wanted: bool
) -> None:
    """The kernel refuses a route whose gateway is behind another gateway of its interface
    (ip6_validate_gw).
    """
    install(
        node,
        {"destination": "fd00:7::/48", "gateway": "fd00:a::9"},
        *([] if is_wanted else [COVERING]),
    )
    run_ip6("route add default dev ib0 table 100", f"rule add to {WANTED} lookup 100 priority 50")
    before = tables(node)
    with pytest.raises(Refused, match="doesn't win") as caught:
        run(str(WANTED), *([COVERING] if is_wanted else []))
    assert ("put back" in str(caught.value), tables(node)) == (False, before)


def test_routes_that_cover_gateways_are_added_last(node: Host, run: Callable[..., None]) -> None:
    asked = COVERING, {"destination": str(WANTED), "gateway": "fd00:a::9"}
    run(*asked)
    assert len(node.our_routes()) == 2
    # The kernel refuses to add a lost route after one that covers its gateway.
    run_ip6(f"route del {WANTED} proto 217")
    with pytest.raises(RouteError, match="our route fd00:a::8/125 via fe80::1 dev eth0") as caught:
        install(node, *asked)
    (advised,) = re.findall(r"run ip -6 (route del [^,]*),", str(caught.value))
    run_ip6(advised)
    assert len(install(node, *asked).changes.routes) == 2


def test_a_route_with_two_hops_may_cover_their_gateways(
    node: Host, run: Callable[..., None]
) -> None:
    """The kernel refuses a second hop whose gateway is behind the first one."""
    run_ip6(
        f"route del {DEFAULT}",
        "route add default nexthop via fd00:a::1 dev eth0 nexthop via fd00:a::9 dev eth0",
    )
    run("fd00:a::/65")
    (ours,) = read_our_routes(node.routes_of(Family.IPV6))
    assert ours.hops == (ETH0, ETH0_TOO)


def test_old_routes_that_cover_half_of_a_new_one_are_removed(node: Host, tmp_path: Path) -> None:
    """The rest is another program's, so the new route isn't used before the old ones, with several
    hops, are removed.
    """
    mine, theirs = WANTED.subnets()
    hops = "metric 512 proto 217 nexthop via fd00:a::1 dev eth0 nexthop via fd00:b::1 dev ib0"
    old = [f"route add {part} {hops}" for part in mine.subnets()]
    run_ip6(*old, f"route add {theirs} dev ib0 metric 512")
    assert [change.action for change in install(node, str(WANTED)).changes.routes] == [
        "added",
        "removed",
        "removed",
    ]
    installed = tables(node)
    run_ip6(*old, f"route del {WANTED} metric 512")
    assert boot(tmp_path, str(WANTED)).returncode == 0
    assert tables(node) == installed


@pytest.mark.parametrize("destination", [str(WANTED), "fd00:7::/64"], ids=["replaced", "removed"])
@pytest.mark.parametrize("is_refused", [False, True], ids=["installed", "refused"])
def test_our_discard_goes_with_other_old_routes(
    node: Host, run: Callable[..., None], destination: str, is_refused: bool
) -> None:
    run_ip6(f"route add blackhole {destination} proto 217 metric 512")
    if is_refused:
        run_ip6(
            "route add default dev ib0 table 100", "rule add to fd00:2::/48 lookup 100 priority 50"
        )
    before = shown()
    with pytest.raises(Refused) if is_refused else nullcontext():
        run(str(WANTED), "fd00:2::/48")
    if is_refused:
        assert shown() == before
    else:
        destinations = {
            str(each.destination) for each in node.our_routes() if each.type is RouteType.UNICAST
        }
        assert (len(node.our_routes()), destinations) == (2, {str(WANTED), "fd00:2::/48"})


def test_another_programs_hop_next_to_ours_is_reported_and_left_alone(node: Host) -> None:
    install(node, *BOTH)
    join(IB0)
    before = tables(node)
    with pytest.raises(
        RouteError, match="^can't replace [^(]*: another program has added"
    ) as caught:
        install(node, *BOTH)
    assert caught.value.hint.startswith(
        "choose another metric or destination, or have its owner remove it"
    )
    assert tables(node) == before
    removed = install(node).plan.remove
    assert [each.hops for each in removed if each.destination == WANTED] == [(ETH0,)]
    assert found(NetlinkBackend6()) == [(Protocol.STATIC, (IB0,))]


@pytest.mark.parametrize(
    ("theirs", "asked", "words"),
    [
        ("via fd00:b::1 dev ib0", {"destination": "fd00:2::/48"}, "doesn't win"),
        # The kernel doesn't merge hops without a gateway.
        ("dev ib0", {"destination": "fd00:2::/48"}, "doesn't win"),
        (
            "dev ib0",
            {"destination": str(WANTED), "gateway": "fd00:a::9"},
            "another program's route has",
        ),
        (
            "via fd00:b::1 dev ib0",
            {"destination": str(WANTED), "metric": 1024},
            "would win because of its metric",
        ),
        (
            "dev ib0",
            {"destination": str(WANTED), "metric": 1024},
            "would win because of its metric",
        ),
    ],
    ids=["hop", "entry", "replaced", "hop with a lower metric", "entry with a lower metric"],
)
def test_a_refused_config_keeps_ours_before_another_programs(
    node: Host, run: Callable[..., None], theirs: str, asked: dict[str, str], words: str
) -> None:
    install(node, str(WANTED))
    run_ip6(f"route append {WANTED} {theirs} metric 512 proto static")
    run_ip6("rule add to fd00:2::/48 lookup 100 priority 50", "route add default dev ib0 table 100")
    before = shown()
    with pytest.raises(Refused, match=words) as caught:
        run(asked)
    assert "put back" not in str(caught.value)
    assert shown() == before
    assert found(NetlinkBackend6())[0][0] == Protocol.HOSTROUTING


def test_a_new_mtu_moves_no_route_behind_another_programs(
    node: Host, run: Callable[..., None]
) -> None:
    install(node, str(WANTED))
    run_ip6(f"route append {WANTED} dev ib0 metric 512 proto static")
    run_ip6(f"route replace {DEFAULT.replace('1400', '1300')}")
    before = shown()
    with pytest.raises(Refused, match="another program's route has"):
        run(str(WANTED))
    assert shown() == before


def test_a_missing_default_route_is_waited_for(node: Host) -> None:
    run_ip6(f"route del {DEFAULT}")
    with pytest.raises(RouteError, match="::/0"):
        install(node, *BOTH)
    adding = subprocess.Popen(["sh", "-c", f"sleep 0.3; ip -6 route add {DEFAULT}"])
    install(node, *BOTH, wait=20)
    assert adding.wait() == 0
    assert len(node.our_routes()) == 2


def test_the_watcher_restores_lost_routes_of_either_family(node: Host) -> None:
    install(node, *BOTH)
    lost = {*node.our_routes()}
    run_ip6(f"route del {WANTED} proto 217")
    run_ip("route del 172.16.1.0/24")
    assert not Reconciler().repair(lambda: config(*BOTH), node, phases.CancelScope()).problems
    assert {*node.our_routes()} == lost


def test_a_refused_ipv6_route_does_not_stop_the_repair_of_ipv4(node: Host) -> None:
    refused = config("172.16.1.0/24", {"destination": str(WANTED), "gateway": "fd00:a::2"})
    repair = Reconciler().repair(lambda: refused, node, phases.CancelScope())
    assert len(repair.problems) == 1
    assert [str(route.destination) for route in node.our_routes()] == ["172.16.1.0/24"]


def end_trial(sandbox: Sandbox, installed: Config) -> subprocess.CompletedProcess[str]:
    """End a trial where this config is installed."""
    trial = sandbox.root / "run/aks-flex-node/trial.json"
    trial.parent.mkdir(parents=True, exist_ok=True)
    begin(trial)
    done = end(sandbox, render_static_routes(installed))
    assert not trial.exists()
    return done


def test_the_end_of_a_trial_leaves_a_listed_route_that_a_hop_has_joined(
    node: Host, sandbox: Sandbox
) -> None:
    """The installed script refuses to change such a route, as it does at a start.

    The tried routes go all the same.
    """
    install(node, str(WANTED))
    join(IB0)
    before = shown()
    run_ip6("route add fd00:4::/48 via fd00:a::1 dev eth0 proto 217 metric 512")
    done = end_trial(sandbox, config(str(WANTED)))
    assert (done.returncode, shown()) == (1, before)
    assert str(WANTED) in done.stderr


# --- script and task ------------------------------------------------------------------------------

PLACES = (
    "::102:300/120",
    "fd00:1::/48",
    "fd00:1::/49",
    "fd00:1:0:1::/64",
    "fd00:1::7/128",
    "fd00:a::/64",
    "fd00:a::/65",
    "2000::/3",
)
HOPS = (
    *(
        "via fd00:a::1 dev eth0",
        "via fd00:a::9 dev eth0",
        "via fd00:b::1 dev ib0",
        "via fe80::1 dev ib0",
    ),
    *(
        "via fe80::1 dev eth0",
        "dev eth0",
        "dev ib0",
        "nexthop via fd00:a::1 dev eth0 nexthop via fd00:b::1 dev ib0",
    ),
)
DEFAULTS = (
    *("via fd00:a::1 dev eth0 metric 1024", "via fe80::1 dev eth0 proto ra metric 1024 mtu 1400"),
    *(
        "via fd00:b::1 dev ib0 proto ra metric 512",
        "dev eth0 metric 100",
        "from fd00:a::/64 via fd00:a::9 dev eth0",
    ),
    "metric 1024 nexthop via fd00:a::1 dev eth0 nexthop via fd00:a::9 dev eth0 weight 2",
    *(
        "via fd00:a::1 dev eth0 metric 300 src fd00:a::2",
        "via fd00:7::1 dev eth0 onlink metric 400",
    ),
)
GATEWAYS = (
    None,
    None,
    "onlink",
    "fd00:a::9",
    "fd00:b::1",
    "fe80::1",
    "fd00:99::1",
    "fd00:a::2",
    "fd00:1::9",
    "fd00:7::1",
)


def draw_host(rng: random.Random) -> list[str]:
    """Return random commands for default routes, routes of ours and of other programs, rules and
    neighbours.
    """
    commands = [
        f"-4 route add default via 10.1.0.1 dev eth0 metric {n}"
        for n in range(rng.choice((0, 1, 1)))
    ]
    commands += [f"-4 route add default dev ib0 metric {n}" for n in range(rng.choice((0, 0, 1)))]
    commands += [
        f"-6 route append default {each}"
        for each in rng.sample(DEFAULTS, rng.choice((0, 1, 1, 1, 2)))
    ]
    ours: list[tuple[str, str]] = []
    for _ in range(rng.randint(0, 6)):
        verb, place, metric = (
            rng.choice(("add", "append")),
            rng.choice(PLACES),
            rng.choice((100, 512, 512, 1024)),
        )
        protocol, source = rng.choice((217, 217, 4)), rng.choice(("", "", "", "from fd00:a::/64"))
        key, hops = f"{place} {source} metric {metric}", rng.choice(HOPS)
        # No rollback restores these: see the limits in docs/explanation/ipv6.md.
        is_ours, covers = protocol == 217, place.startswith("fd00:a::") and "via" in hops
        if is_ours and any(
            key == other and not ("via" in hops and "via" in via) for other, via in ours
        ):
            continue  # a separate entry of ours with the same key
        if not is_ours and covers and any("via fd00:a::" in via for _, via in ours):
            continue  # a later route that covers the gateway of ours
        ours += [(key, hops)] if is_ours else []
        commands.append(f"-6 route {verb} {key} proto {protocol} {hops}")
    if rng.random() < 0.2:
        table = rng.choice(("100", "main suppress_prefixlength 0"))
        commands.append(
            f"-6 rule add to {rng.choice(PLACES)} lookup {table} priority {rng.choice((9, 40000))}"
        )
    if rng.random() < 0.2:
        commands.append(
            "-6 neigh add fd00:a::1 dev eth0 "
            f"nud {rng.choice(('failed', 'permanent lladdr 2:0:0:0:0:1'))}"
        )
    return commands


def draw_config(rng: random.Random) -> Config:
    routes: dict[tuple[str, int], dict[str, Any]] = {}
    for number in range(rng.randint(1, 5)):
        # Without an IPv6 route, the script leaves IPv6 alone.
        place = rng.choice((*PLACES, *["172.16.1.0/24"][:number]))
        metric = rng.choice((0, 0, 100, 512))
        gateway, dev = rng.choice(GATEWAYS), rng.choice((None, None, "eth0", "ib0"))
        if ":" not in place:
            gateway = rng.choice((None, "onlink", "10.1.0.9"))
        if gateway == "fe80::1":
            dev = dev or "eth0"
        named = {"gateway": gateway, "dev": dev, "metric": metric}
        routes[place, metric or 512] = {"destination": place} | {
            key: each for key, each in named.items() if each
        }
    return config(*routes.values())


def build(commands: list[str]) -> None:
    enter_namespace()
    build_node6()
    run_ip(f"address add {NICS['eth0']} dev eth0")
    for words in commands:
        attempt("ip", *words.split())


def shown() -> list[str]:
    """Return both tables as the kernel shows them, with sorted next hops.

    Each route has its first hop's protocol.
    """
    commands = ("-4 route show table main", "-6 -N -o route show table main")
    lines = [
        line.split("\\\t") for words in commands for line in tool("ip", *words.split()).splitlines()
    ]
    return [
        " ".join([route, *sorted(hops)])
        for route, *hops in lines
        if not route.startswith("fe80::/64 ")
    ]


@pytest.mark.parametrize(
    "seed", [*range(by_day(2, by_night=1000)), 1004, 1626, 2962, 3163, 3347, 3364]
)
def test_script_and_task_leave_the_same_table(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    commands, wanted, awk = draw_host(rng), draw_config(rng), AWKS[seed % len(AWKS)]
    build(commands)
    before = shown()
    said = ""
    try:
        phases.run(
            InstallRoutes(
                wanted,
                host=Host(NetlinkBackend(), FakeSystemd(), Layout(tmp_path), NetlinkBackend6()),
            )
        )
    except RouteError as error:
        said = str(error)
    after = shown()
    build(commands)
    assert shown() == before
    done = Sandbox(tmp_path, awk_or_skip(awk)).run(render_static_routes(wanted))
    assert (done.returncode == 0, shown()) == (not said, after), (said, done.stdout, done.stderr)
    assert "put back" not in done.stderr
    if said:
        assert after == before


def install_any(rng: random.Random, sandbox: Sandbox) -> Config | None:
    """Run scripts until one doesn't refuse its routes, and return its config."""
    for _ in range(12):
        wanted = draw_config(rng)
        if sandbox.run(render_static_routes(wanted)).returncode == 0:
            return wanted
    return None


@pytest.mark.parametrize("seed", range(by_day(2, by_night=600)))
def test_a_trial_on_any_host_leaves_the_installed_routes(tmp_path: Path, seed: int) -> None:
    rng, awk = random.Random(seed), AWKS[seed % len(AWKS)]
    build(draw_host(rng))
    sandbox = Sandbox(tmp_path, awk_or_skip(awk))
    installed = install_any(rng, sandbox)
    before = shown()
    if installed is None or install_any(rng, sandbox) is None:
        return
    done = end_trial(sandbox, installed)
    assert (done.returncode, shown()) == (0, before), done.stderr
