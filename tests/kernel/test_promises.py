"""Test the guarantees of static routes and the overlap check, on a real kernel in a namespace and
in memory.
"""

from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from ipaddress import IPv4Address, IPv4Network
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import pytest
import wanted
from acting import is_held
from backends import Altered, FailingBackend, RecordingBackend
from file_trees import outside_run, write_file
from go_package import ANY, go_package_script
from nightly import by_day
from node import (
    GATEWAY,
    OWN,
    SECOND_GATEWAY,
    build_links,
    build_node,
    default_route,
    like_linux,
    on_linux,
    run_ip,
)
from recording_tasks import OnProgress, handling
from scripts import AWKS, Sandbox, awk_or_skip, awks_for, render_check_route_overlap_script

import phases
from hostrouting import (
    CheckRouteOverlap,
    Config,
    ConfigureStaticRoutes,
    Host,
    Layout,
    RemoveHostRouting,
    RouteError,
    RouteOverlapError,
    RoutesReport,
)
from hostrouting.boot.go_package import hand_over, routes_to_adopt
from hostrouting.boot.layout import ROUTES
from hostrouting.boot.render import render_static_routes
from hostrouting.kernel.memory import FakeKernel
from hostrouting.kernel.port import Kernel, Write, read_routes
from hostrouting.kernel.rtnetlink import messages as rtnl
from hostrouting.kernel.rtnetlink.conversation import Listener, everywhere
from hostrouting.kernel.selection import Entries, Selection
from hostrouting.model.changes import Change, Changes
from hostrouting.model.errors import HostRoutingError
from hostrouting.model.family import Family
from hostrouting.model.lookups import RouteFailure
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route, RouteType, Table
from hostrouting.model.rules import Rule
from hostrouting.report import ChangesObserver
from hostrouting.testing import FakeSystemd

DESTINATION = IPv4Network("172.16.1.0/24")


@pytest.fixture
def kernel(each_kernel: Kernel) -> Kernel:
    return each_kernel


@pytest.fixture
def node(kernel: Kernel) -> Kernel:
    build_node(kernel)
    return kernel


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


def config(
    *routes: dict[str, Any] | str, wait: int = 0, cidrs: Sequence[str] = (), mode: str = "STRICT"
) -> Config:
    return wanted.config(*routes or (str(DESTINATION),), cidrs=cidrs, mode=mode, waitSeconds=wait)


NOTHING = wanted.config(cidrs=())


def host_of(kernel: object, layout: Layout) -> Host:
    return Host(routes=kernel, units=FakeSystemd(), layout=layout)  # type: ignore[arg-type]


def configure(kernel: object, layout: Layout, asked: Config | None = None) -> RoutesReport:
    return phases.run(ConfigureStaticRoutes(asked or config(), host=host_of(kernel, layout)))


def table(kernel: Kernel) -> list[str]:
    return [str(route) for route in read_routes(kernel)]


def times(root: Path) -> dict[str, int]:
    """Return when each file outside /run was changed."""
    return {name: Path(name).lstat().st_mtime_ns for name in outside_run(root)}


def route_of(kernel: Kernel, destination: str = str(DESTINATION)) -> Route:
    (route,) = [
        r for r in read_routes(kernel, Table.MAIN) if r.destination == IPv4Network(destination)
    ]
    return route


# --- installation by the task, on Linux and in memory, and by the boot script ---------------------


class Refused(Exception):
    """A failed installation."""


@attrs.frozen
class Installer:
    """A node and the program that installs static routes on it.

    Args:
        kernel: the node's kernel.
        root: root directory for the node's files.
        sandbox: the sandbox for the boot script, or None if the task installs the routes.
    """

    kernel: Kernel
    root: Path
    sandbox: Sandbox | None

    def __call__(self, *routes: str | dict[str, Any]) -> list[str]:
        """Install exactly these routes, and return the writes, such as ``add 172.16.1.0/24``."""
        asked = config(*routes) if routes else NOTHING
        if self.sandbox is not None:
            done = self.sandbox.run(render_static_routes(asked))
            if done.returncode:
                raise Refused(done.stderr.rstrip("\n"))
            assert done.stderr == ""
            lines = [line.split() for line in done.stdout.splitlines() if line.startswith("route ")]
            return [
                f"{verb.replace('del', 'delete')} {destination}"
                for _, verb, destination, *_ in lines
            ]
        snapshot = RecordingBackend(self.kernel)
        try:
            configure(snapshot, Layout(self.root), asked)
        except HostRoutingError as error:
            raise Refused(str(error)) from error
        return [f"{verb} {route.destination}" for verb, route in snapshot.written]

    def take_over(self, *rows: str) -> None:
        """Let the installer find the rows of the Go package's script: in it, or as install.sh hands
        them over.
        """
        layout = Layout(self.root)
        write_file(layout.script(ROUTES), go_package_script(*rows))
        if self.sandbox is not None:
            hand_over(
                routes_to_adopt(host_of(self.kernel, layout), replaces_script=True),
                layout,
                phases.Undo(),
            )

    def check(self, *cidrs: str, mode: str = "STRICT") -> tuple[bool, str]:
        """Check these CIDRs, and return whether a node would start, and the problems found."""
        if self.sandbox is not None:
            done = self.sandbox.run(render_check_route_overlap_script(cidrs, mode, wait_seconds=0))
            return done.returncode == 0, done.stderr
        task = CheckRouteOverlap(
            config(cidrs=cidrs, mode=mode), host=host_of(self.kernel, Layout(self.root))
        )
        try:
            report = phases.run(task)
        except RouteOverlapError as error:
            return False, str(error)
        return True, "\n".join(finding.message for finding in report.findings) or str(report.reason)


@pytest.fixture(
    params=[
        pytest.param("linux", marks=pytest.mark.kernel),
        "memory",
        *(
            pytest.param(number, marks=pytest.mark.kernel)
            for number in range(by_day(1, by_night=len(AWKS)))
        ),
    ],
    ids=lambda param: str(param) if isinstance(param, str) else f"script{param}",
)
def install(request: pytest.FixtureRequest, tmp_path: Path) -> Installer:
    kernel = like_linux() if request.param == "memory" else on_linux()
    build_node(kernel)
    if isinstance(request.param, str):
        return Installer(kernel, tmp_path, None)
    awk = awks_for(request.function.__name__)[request.param]
    return Installer(kernel, tmp_path, Sandbox(tmp_path, awk_or_skip(awk)))


@contextmanager
def heard(kernel: Kernel) -> Iterator[list[int]]:
    """Collect the kinds of the kernel's notifications about routes.

    The in-memory kernel sends none.
    """
    kinds: list[int] = []
    if isinstance(kernel, FakeKernel):
        yield kinds
        return
    with closing(Listener(everywhere(Family.IPV4))) as listener:
        yield kinds
        while select.select([listener], [], [], 0)[0]:
            heard = [stretch.kind for stretch in rtnl.stretches(listener.recv(1 << 16))]
            kinds += [kind for kind in heard if kind in (rtnl.RTM_NEWROUTE, rtnl.RTM_DELROUTE)]


def test_a_route_inherits_its_next_hop_and_wins(install: Installer) -> None:
    assert install(str(DESTINATION)) == [f"add {DESTINATION}"]
    assert route_of(install.kernel) == Route(DESTINATION, (NextHop("eth0", GATEWAY),))
    (answer,) = install.kernel.lookup([DESTINATION.network_address])
    assert answer.route == route_of(install.kernel)


def test_a_second_run_makes_no_write(install: Installer) -> None:
    install("172.16.1.0/24", "172.16.2.0/24")
    before, files = table(install.kernel), times(install.root)
    with heard(install.kernel) as events:
        assert install("172.16.1.0/24", "172.16.2.0/24") == []
    assert (table(install.kernel), times(install.root), events) == (before, files, [])


def test_a_changed_config_changes_the_routes_without_a_gap(install: Installer) -> None:
    install("172.16.1.0/24", "172.16.2.0/24")
    with heard(install.kernel) as events:
        changed = install(
            {"destination": "172.16.1.0/24", "dev": "eth1", "gateway": "10.2.0.1"}, "172.16.3.0/24"
        )
    assert changed == ["add 172.16.3.0/24", "replace 172.16.1.0/24", "delete 172.16.2.0/24"]
    told = (
        []
        if isinstance(install.kernel, FakeKernel)
        else [rtnl.RTM_NEWROUTE, rtnl.RTM_NEWROUTE, rtnl.RTM_DELROUTE]
    )
    assert events == told
    assert route_of(install.kernel).devs == ("eth1",)


def test_routes_removed_from_the_config_are_removed(install: Installer) -> None:
    before, files = table(install.kernel), outside_run(install.root)
    install("172.16.1.0/24", {"destination": "172.16.2.0/24", "metric": 2**32 - 1})
    ours_for_a_tos = Route(IPv4Network("172.16.3.0/24"), (NextHop("eth0", GATEWAY),), tos=0x10)
    assert install.kernel.write(Write.ADD, [ours_for_a_tos]) == ()
    assert install() == [f"delete 172.16.{n}.0/24" for n in (1, 2, 3)]
    assert table(install.kernel) == before
    assert install.sandbox is not None or outside_run(install.root) == files


@pytest.mark.parametrize("protocol", [Protocol.DHCP, Protocol.BOOT])
def test_a_foreign_route_is_never_changed(install: Installer, protocol: int) -> None:
    """The reference's ``ip route replace`` silently overwrites a DHCP route with the same
    destination and metric.
    """
    same = Route(DESTINATION, (NextHop("eth0", GATEWAY),), protocol=protocol)
    other = Route(
        IPv4Network("172.16.2.0/24"), (NextHop("eth1", SECOND_GATEWAY),), protocol=protocol
    )
    assert install.kernel.write(Write.ADD, [same, other]) == ()
    before = table(install.kernel)
    assert install(str(DESTINATION)) == []
    with pytest.raises(Refused, match=r"can't install 172\.16\.2\.0/24.* via 10\.2\.0\.1"):
        install("172.16.2.0/24")
    assert table(install.kernel) == before


def boot(
    destination: str, *, metric: int = 0, dev: str = "eth0", gateway: IPv4Address | None = GATEWAY
) -> Route:
    """Return a route as ``ip route add`` or ``ip route replace`` installs it."""
    return Route(
        IPv4Network(destination), (NextHop(dev, gateway),), protocol=Protocol.BOOT, metric=metric
    )


def test_the_go_packages_routes_become_ours(install: Installer) -> None:
    """Wanted routes are replaced in place, the others removed; routes that its rows don't describe
    stay.
    """
    install.take_over(
        f"172.16.1.0/24|{ANY}|0",
        "172.16.2.0/24|eth1|10.2.0.1|9",
        *(f"172.16.{n}.0/24|eth0|10.1.0.1|0" for n in range(3, 8)),
        *(f"172.16.{n}.0/24|{ANY}|0" for n in range(9, 13)),
        f"0.0.0.0/0|{ANY}|7",
    )
    theirs = (
        boot("172.16.1.0/24"),
        boot("172.16.2.0/24", metric=9, dev="eth1", gateway=SECOND_GATEWAY),
    )
    by_hand = (
        boot("172.16.4.0/24", gateway=IPv4Address("10.1.0.2")),
        boot("172.16.5.0/24", dev="eth1", gateway=SECOND_GATEWAY),
        boot("172.16.6.0/24", metric=1),
        boot("172.16.7.0/24", gateway=None),
        boot("172.16.8.0/24"),
        attrs.evolve(boot("172.16.3.0/24"), tos=0x10),
        boot("0.0.0.0/0", metric=7, dev="eth1", gateway=SECOND_GATEWAY),
        attrs.evolve(boot("172.16.9.0/24"), source=OWN),
        attrs.evolve(boot("172.16.10.0/24"), mtu=1400),
        attrs.evolve(boot("172.16.11.0/24"), hops=(NextHop("eth0", GATEWAY, onlink=True),)),
        attrs.evolve(
            boot("172.16.12.0/24"), hops=(NextHop("eth0", GATEWAY), NextHop("eth1", SECOND_GATEWAY))
        ),
    )
    assert install.kernel.write(Write.DELETE, [default_route()]) == ()
    first = default_route(metric=0)
    assert install.kernel.write(Write.ADD, [*theirs, boot("172.16.3.0/24"), *by_hand, first]) == ()
    wanted = "172.16.1.0/24", {"destination": "172.16.2.0/24", "metric": 9}
    with heard(install.kernel) as events:
        made = install(*wanted)
    assert made == ["replace 172.16.1.0/24", "replace 172.16.2.0/24", "delete 172.16.3.0/24"]
    told = (
        []
        if isinstance(install.kernel, FakeKernel)
        else [rtnl.RTM_NEWROUTE, rtnl.RTM_NEWROUTE, rtnl.RTM_DELROUTE]
    )
    assert events == told
    assert install(*wanted) == []
    install()
    left = [
        route
        for route in read_routes(install.kernel, Table.MAIN)
        if route.protocol in (Protocol.BOOT, 217)
    ]
    assert sorted(left, key=str) == sorted(by_hand, key=str)
    assert install.kernel.write(Write.ADD, [boot("172.16.3.0/24")]) == ()
    install(str(DESTINATION))
    assert boot("172.16.3.0/24") in read_routes(install.kernel, Table.MAIN)


# FakeKernel holds a single route for each key.
@pytest.mark.kernel
@pytest.mark.parametrize("install", ["linux", 0], indirect=True)
@pytest.mark.parametrize(("order", "gateway"), [("append", "10.1.0.1"), ("prepend", "10.1.0.2")])
def test_of_default_routes_with_one_metric_the_first_counts(
    install: Installer, order: str, gateway: str
) -> None:
    run_ip(f"route {order} default via 10.1.0.2 dev eth0 metric 100")
    install(str(DESTINATION))
    assert route_of(install.kernel).hops == (NextHop("eth0", IPv4Address(gateway)),)


# FakeKernel holds a single route for each key.
@pytest.mark.kernel
@pytest.mark.parametrize("install", ["linux", 0], indirect=True)
@pytest.mark.parametrize("order", ["append", "prepend"])
@pytest.mark.parametrize("more", ["via 10.1.0.2 dev eth0", "via 10.1.0.1 dev eth0 proto static"])
def test_a_route_beside_another_one_is_not_taken_over(
    install: Installer, order: str, more: str
) -> None:
    """The kernel would replace or delete the first of them, whichever program's it is."""
    install.take_over(f"172.16.2.0/24|{ANY}|0")
    assert install.kernel.write(Write.ADD, [boot("172.16.2.0/24")]) == ()
    run_ip(f"route {order} 172.16.2.0/24 {more}")
    before = table(install.kernel)
    first = more.split()[1] if order == "prepend" else "10.1.0.1"
    with pytest.raises(Refused, match=rf"(metric:|172\.16\.2\.0/24) via {first} dev"):
        install({"destination": "172.16.2.0/24", "gateway": "10.1.0.9"})
    assert install(str(DESTINATION)) == [f"add {DESTINATION}"]
    install()
    assert table(install.kernel) == before


def test_a_failed_run_gives_the_go_packages_routes_back(install: Installer) -> None:
    install.take_over(f"172.16.1.0/24|{ANY}|0", f"172.16.2.0/24|{ANY}|0")
    assert install.kernel.write(Write.ADD, [boot("172.16.1.0/24"), boot("172.16.2.0/24")]) == ()
    before, files = table(install.kernel), outside_run(install.root)
    with pytest.raises(Refused, match="Nexthop has invalid gateway"):
        install(
            "172.16.1.0/24",
            {"destination": "172.16.9.0/24", "dev": "eth0", "gateway": "10.1.0.255"},
        )
    assert table(install.kernel) == before
    assert install.sandbox is not None or outside_run(install.root) == files
    assert install("172.16.1.0/24") == ["replace 172.16.1.0/24", "delete 172.16.2.0/24"]


def test_a_connected_route_is_never_replaced(install: Installer) -> None:
    """The reference replaces ib0's connected route 172.16.0.0/16, which makes InfiniBand
    unreachable.
    """
    before = table(install.kernel)
    with pytest.raises(Refused, match=r"172\.16\.0\.0/16.* connected network"):
        install("172.16.0.0/16")
    assert table(install.kernel) == before
    install("172.16.0.0/17", "172.16.128.0/17")
    assert set(before) < set(table(install.kernel))
    (answer,) = install.kernel.lookup([IPv4Address("172.16.200.1")])
    assert answer.route == route_of(install.kernel, "172.16.128.0/17")


def test_one_failed_route_of_1000_leaves_the_table_as_before(install: Installer) -> None:
    install("172.16.2.0/24", "172.16.3.0/24")
    before, files = table(install.kernel), outside_run(install.root)
    entries = entries_of(1000, bad=499)
    with pytest.raises(Refused) as caught:
        install(*entries)
    said = str(caught.value)
    assert f"add {entries[499]['destination']} via 10.1.0.255 dev eth0" in said
    assert "Nexthop has invalid gateway" in said
    assert len(said.partition("\nhint: ")[0].splitlines()) == 1
    assert table(install.kernel) == before
    assert install.sandbox is not None or outside_run(install.root) == files


def beaten_by_a_rule(kernel: Kernel) -> Route:
    kernel.add_rule(Rule(5270, table=52))
    return Route(IPv4Network("172.0.0.0/8"), (NextHop("ib0"),), table=52, protocol=Protocol.STATIC)


def beaten_by_a_lower_metric(_: Kernel) -> Route:
    return Route(DESTINATION, (NextHop("ib0"),), protocol=Protocol.STATIC)


def beaten_by_table_local(kernel: Kernel) -> Route:
    """Once a rule has been added, the kernel searches table local first, so even a shorter prefix
    there wins.
    """
    kernel.add_rule(Rule(5270, table=52))
    kernel.del_rule(Rule(5270, table=52))
    return Route(
        IPv4Network("172.16.0.0/12"), (NextHop("lo"),), type=RouteType.LOCAL, table=Table.LOCAL
    )


def test_a_failed_rollback_is_reported(node: Kernel, layout: Layout) -> None:
    fail = {"add": {2: errno.ENOMEM}, "delete": dict.fromkeys(range(1, 9), errno.ENOMEM)}
    failing = FailingBackend(node, fail)
    task = ConfigureStaticRoutes(
        config("172.16.1.0/24", "172.16.2.0/24"), host=host_of(failing, layout)
    )
    collected = ChangesObserver()
    with pytest.raises(RouteError) as caught:
        phases.run(task, observers=[collected])
    notes = [note for note in caught.value.__notes__ if note.startswith("while putting")]
    # The second route was never added, so the rollback must not remove it.
    assert all("can't take back 172.16.1.0/24" in note for note in notes)
    assert not any("172.16.2.0/24" in note for note in notes)
    stays = route_of(node, "172.16.1.0/24")
    for changes in (caught.value.changes, collected.changes):
        assert changes == Changes((Change(stays, "added"),))


def test_a_rollback_restores_old_routes_before_new_ones_are_removed(
    node: Kernel, layout: Layout
) -> None:
    configure(node, layout, config("172.16.1.0/24", "172.16.2.0/24"))
    failing, before = FailingBackend(node, {"delete": {2: errno.ENOMEM}}), sorted(table(node))
    with heard(node) as events, pytest.raises(RouteError):
        configure(failing, layout, config("172.16.3.0/24"))
    assert events == (
        [] if isinstance(node, FakeKernel) else [rtnl.RTM_NEWROUTE, rtnl.RTM_DELROUTE] * 2
    )
    assert sorted(table(node)) == before


@pytest.mark.parametrize(
    ("beat", "more"),
    [
        (beaten_by_a_rule, 0),
        (beaten_by_a_rule, 60),
        (beaten_by_a_lower_metric, 0),
        (beaten_by_table_local, 0),
    ],
)
def test_a_route_that_loses_is_an_error_and_is_removed(
    install: Installer, beat: Callable[[Kernel], Route], more: int
) -> None:
    winner = beat(install.kernel)
    assert install.kernel.write(Write.ADD, [winner]) == ()
    before = table(install.kernel)
    with pytest.raises(
        Refused,
        match=rf"172\.16\.1\.0/24.* doesn't win.*\b{winner.destination} dev {winner.devs[0]}",
    ):
        install(
            {"destination": str(DESTINATION), "metric": 9},
            *(f"10.200.{n}.0/24" for n in range(more)),
        )
    assert table(install.kernel) == before


def test_a_route_may_be_covered_only_by_our_longer_prefixes(install: Installer) -> None:
    halves = [*map(str, DESTINATION.subnets())]
    install(str(DESTINATION), *halves)
    theirs = [
        Route(IPv4Network(half), (NextHop("ib0"),), protocol=Protocol.STATIC, metric=9)
        for half in halves
    ]
    assert install.kernel.write(Write.ADD, theirs) == ()
    with pytest.raises(Refused, match=r"172\.16\.1\.0/24.*longer prefixes cover all of it"):
        install(str(DESTINATION))


def test_a_route_whose_packets_are_discarded_is_an_error(install: Installer) -> None:
    assert (
        install.kernel.write(
            Write.ADD, [Route(DEFAULT_DESTINATION, type=RouteType.UNREACHABLE, table=52)]
        )
        == ()
    )
    install.kernel.add_rule(Rule(5270, table=52))
    before = table(install.kernel)
    with pytest.raises(
        Refused, match=r"172\.16\.1\.0/24.* doesn't win.* go nowhere \(No route to host\)"
    ):
        install(*(f"172.16.{n}.0/24" for n in range(1, 9)))
    assert table(install.kernel) == before


def test_a_wait_is_reported_and_its_error_is_specific(install: Installer) -> None:
    before = table(install.kernel)
    missing = (
        r"timed out after 0 s waiting for device ib9 \(there is no such interface\), "
        r"needed by 172\.16\.9\.0/24"
    )
    with pytest.raises(Refused, match=missing):
        install(
            {"destination": "172.16.9.0/24", "dev": "ib9", "gateway": "onlink"}, "172.16.1.0/24"
        )
    assert table(install.kernel) == before
    assert install.kernel.write(Write.DELETE, [default_route()]) == ()
    with pytest.raises(
        Refused,
        match=r"timed out after 0 s waiting for the default route.*, needed by 172\.16\.1\.0/24",
    ):
        install("172.16.1.0/24")


def test_without_the_lock_nothing_changes(install: Installer) -> None:
    (install.root / "run").mkdir()
    (install.root / "run/aks-flex-node").write_text("in the way")
    before = table(install.kernel)
    with pytest.raises(Refused, match="can't open the lock"):
        install("172.16.1.0/24")
    assert table(install.kernel) == before


# --- the check, by the task on Linux and in memory, and by the boot script ------------------------


@pytest.mark.parametrize("mode", ["STRICT", "WARN"])
def test_each_check_leaves_one_marker(install: Installer, mode: str) -> None:
    message = (
        "OVERLAP: expected CIDR 172.16.2.0/24 (probe 172.16.2.0) routes via ib0, expected eth0; "
        "by 172.16.0.0/16 dev ib0 proto kernel scope link src 172.16.0.10"
    )
    is_admitted, said = install.check("172.16.2.0/24", mode=mode)
    assert (is_admitted, markers(Layout(install.root))) == (
        mode == "WARN",
        {"route-overlap.detected": f"{message}\n"},
    )
    assert said.startswith(message)
    install("172.16.2.0/24")
    assert install.check("172.16.2.0/24", "10.96.0.0/12", mode=mode)[0]
    assert markers(Layout(install.root)) == {"route-overlap.ok": ""}
    if install.sandbox is None:  # the script isn't installed without CIDRs
        assert install.check(mode=mode)[0]
        assert markers(Layout(install.root)) == {}


@pytest.mark.parametrize("mode", ["STRICT", "WARN"])
def test_without_a_default_route_another_table_is_named(install: Installer, mode: str) -> None:
    wrong = Route(
        DEFAULT_DESTINATION, type=RouteType.UNREACHABLE, protocol=Protocol.BOOT, metric=4278198272
    )
    assert (
        install.kernel.write(Write.DELETE, [default_route()])
        == install.kernel.write(Write.ADD, [default_route(table=100), wrong])
        == ()
    )
    is_admitted, said = install.check("172.16.1.0/24", mode=mode)
    assert is_admitted is (mode == "WARN")
    assert "no-default-route: " in said
    assert (
        "another table has one: default via 10.1.0.1 dev eth0 table 100 proto dhcp metric 100"
        in said
    )
    assert markers(Layout(install.root)) == {"route-overlap.detected": "no-default-route\n"}


# --- resolved, added, replaced, left alone, refused, by the task ----------------------------------


def test_an_empty_config_on_a_new_host_does_nothing(node: Kernel, layout: Layout) -> None:
    snapshot = RecordingBackend(node)
    assert configure(snapshot, layout, NOTHING) == RoutesReport()
    assert phases.run(RemoveHostRouting(host=host_of(snapshot, layout))) == RoutesReport()
    assert snapshot.written == []
    assert list(layout.root.iterdir()) == []


# --- all or nothing -------------------------------------------------------------------------------


def entries_of(count: int, bad: int | None = None) -> list[dict[str, Any]]:
    """Return routes, one with a broadcast address as its gateway, which only the kernel rejects."""
    return [
        {
            "destination": f"172.17.{number // 64}.{number % 64 * 4}/30",
            "dev": "eth0",
            "gateway": "10.1.0.255" if number == bad else str(GATEWAY),
        }
        for number in range(count)
    ]


def many(count: int, bad: int | None = None) -> Config:
    return config(*entries_of(count, bad))


@pytest.mark.parametrize("at", [1, 2])  # including the last write
def test_sigterm_in_the_middle_rolls_everything_back(node: Kernel, layout: Layout, at: int) -> None:
    configure(node, layout, config("172.16.2.0/24"))
    before, files = table(node), outside_run(layout.root)
    scope, bulks = phases.CancelScope(), count(1)

    def write(change: Write, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        if change is Write.ADD and next(bulks) == at:
            os.kill(os.getpid(), signal.SIGTERM)
        return node.write(change, routes)

    with (
        handling(signal.SIGTERM, lambda: scope.cancel("SIGTERM")),
        pytest.raises(phases.Cancelled, match="SIGTERM"),
    ):
        phases.run(
            ConfigureStaticRoutes(many(300), host=host_of(Altered(node, write=write), layout)),
            scope=scope,
        )
    assert (table(node), outside_run(layout.root)) == (before, files)


def test_a_route_that_has_replaced_ours_stays(node: Kernel, layout: Layout) -> None:
    configure(node, layout)
    theirs = Route(DESTINATION, (NextHop("eth1", SECOND_GATEWAY),), protocol=Protocol.DHCP)

    reads = count(1)

    def entries(wanted: Selection) -> Entries:
        """Let another program write between our read, the first of which is for the plan, and our
        write.
        """
        if next(reads) == 2:
            assert (
                node.write(Write.DELETE, [route_of(node)]) == node.write(Write.ADD, [theirs]) == ()
            )
        return node.entries(wanted)

    changed = config({"destination": str(DESTINATION), "dev": "eth0", "gateway": "10.1.0.9"})
    with pytest.raises(RouteError, match="172.16.1.0/24 via 10.2.0.1 dev eth1 proto dhcp"):
        configure(Altered(node, entries=entries), layout, changed)
    assert route_of(node) == theirs


# --- two runs at once -----------------------------------------------------------------------------


def test_two_runs_take_turns_with_the_same_result(node: Kernel, layout: Layout) -> None:
    host = host_of(node, layout)
    reports = phases.run(
        phases.Parallel(*(ConfigureStaticRoutes(many(300), host=host) for _ in range(2)))
    )
    assert sorted(len(report.plan.add) for report in reports) == [0, 300]
    assert sum(route.protocol == 217 for route in read_routes(node, Table.MAIN)) == 300


def test_a_run_holds_the_lock_except_while_it_waits(kernel: Kernel, layout: Layout) -> None:
    build_links(kernel)
    write_file(layout.lock)
    calls: list[tuple[str, bool]] = []

    class Watching:
        """A backend that records whether the lock is held during each call."""

        def __getattr__(self, name: str) -> object:
            calls.append((name, is_held(layout.lock)))
            return getattr(kernel, name)

    host = host_of(Watching(), layout)
    calls.clear()  # a host looks whether a backend has all methods
    task = ConfigureStaticRoutes(config(wait=60), host=host)
    phases.run(task, observers=[OnProgress(act=lambda: kernel.write(Write.ADD, [default_route()]))])
    begin = next(number for number, (_, is_held) in enumerate(calls) if is_held)
    waiting, working = calls[:begin], calls[begin:]
    assert "changes" in dict(waiting)
    assert all(is_held for _, is_held in working)
    names = [name for name, _ in working]
    assert {"facts", "entries", "write"} <= set(names)
    assert "entries" in names[: names.index("write")]
    assert "entries" in names[names.index("write") :]


# --- the check, and the check together with routes ------------------------------------------------


def markers(layout: Layout) -> dict[str, str]:
    """Return the files that a check has left, without the report, which only Python writes."""
    return {path.name: path.read_text() for path in layout.run_dir.glob("route-overlap.[od]*")}


def test_a_check_without_lookups_is_unknown_with_the_reason(node: Kernel, layout: Layout) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RouteError("can't look up addresses: no buffer space")

    mute = host_of(Altered(node, lookup=refuse), layout)
    report = phases.run(CheckRouteOverlap(config(cidrs=["172.16.1.0/24"], mode="WARN"), host=mute))
    assert (report.verdict, report.reason) == (
        "unknown",
        "check-failed: can't look up addresses: no buffer space",
    )
    assert markers(layout) == {"route-overlap.detected": f"{report.reason}\n"}


def test_removal_leaves_files_that_the_manifest_does_not_name(node: Kernel, layout: Layout) -> None:
    write_file(layout.config, "{}")
    write_file(layout.protocol_names.with_name("other.conf"), "# another program's\n")
    before = outside_run(layout.root)
    configure(node, layout)
    assert layout.protocol_names.read_text().splitlines()[-1] == "217\thostrouting"
    phases.run(RemoveHostRouting(host=host_of(node, layout)))
    assert outside_run(layout.root) == before
