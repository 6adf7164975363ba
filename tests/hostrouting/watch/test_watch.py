"""Tests for the watcher's repairs, reports and timing, with a fake kernel and a fake clock."""

from __future__ import annotations

import fcntl
import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from itertools import pairwise
from pathlib import Path
from syslog import LOG_ERR
from typing import Any

import attrs
import pytest
from backends import Altered, FailingBackend, RecordingBackend, listening
from file_trees import write_file
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import by_day
from node import shadowed_kernel
from wanted import SHADOWED, config

from hostrouting import (
    Config,
    ConfigError,
    ExpectedCidr,
    Host,
    Layout,
    RouteOverlap,
    StaticRoute,
    StaticRoutes,
)
from hostrouting.boot.assets import read_asset
from hostrouting.boot.render import PACKAGE
from hostrouting.boot.trial_timer import TRIAL_HINT, times_of
from hostrouting.config.routing import OverlapMode
from hostrouting.kernel.port import Write, read_routes
from hostrouting.model.errors import RouteError
from hostrouting.model.lookups import Lookup, RouteFailure
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route, Table
from hostrouting.model.rules import Rule
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.findings import Finding, FindingKind, OverlapReport, UnknownReason, Verdict
from hostrouting.testing import FakeKernel, FakeSystemd
from hostrouting.watch._backoff import Failures
from hostrouting.watch._events import Event, EventKind, of_failures, of_problems, of_routes, status
from hostrouting.watch._policy import CONTESTED
from hostrouting.watch._repair import Drift, Reconciler, Repair, plan_repair
from hostrouting.watch.loop import LOOK_SECONDS, WatchHostRouting
from phases import Cancelled, CancelScope
from phases.testing import FakeClock

WANTED = IPv4Network("172.16.1.0/24")


KEEPING = config(SHADOWED)


def default(gateway: str = "10.1.0.1", dev: str = "eth0", metric: int = 0) -> Route:
    hop = NextHop(dev, IPv4Address(gateway))
    return Route(DEFAULT_DESTINATION, (hop,), protocol=Protocol.DHCP, metric=metric)


class World:
    """A host with a watcher, and a clock that runs actions at given times."""

    def __init__(self, root: Path) -> None:
        self.kernel = shadowed_kernel()
        self.layout = Layout(root)
        self.units = FakeSystemd()
        self.clock = FakeClock()
        self.scope = CancelScope(clock=self.clock)
        self.backend: Any = self.kernel
        self.config: Config | Exception = KEEPING
        self.said: list[tuple[float, Event]] = []
        self.heard: list[tuple[float, str]] = []

    def at(self, seconds: float, function: Callable[[], object]) -> None:
        self.clock.call_at(seconds, function)

    def watch(self, seconds: float) -> None:
        """Run the watcher until the given time."""
        self.at(seconds, lambda: self.scope.cancel("the test ends"))
        host = Host(routes=self.backend, units=self.units, layout=self.layout)
        task = WatchHostRouting(
            self.read,
            host,
            lambda event: self.said.append((self.clock.monotonic(), event)),
            lambda line: self.heard.append((self.clock.monotonic(), line)),
            (self.layout.manifest, self.layout.gate_off, self.layout.verified),
        )
        with pytest.raises(Cancelled):
            task.do(self.scope)

    def read(self) -> Config:
        if isinstance(self.config, Exception):
            raise self.config
        return self.config

    def looks(self) -> int:
        return len([line for _, line in self.heard if line.startswith("STATUS=")])

    def longest_silence(self) -> float:
        """Return the longest time without a ping for systemd's watchdog."""
        pings = [when for when, line in self.heard if line == "WATCHDOG=1"]
        return max(later - earlier for earlier, later in pairwise(pings))

    def ours(self) -> list[Route]:
        return [route for route in read_routes(self.kernel, Table.MAIN) if route.is_ours]

    def lose(self) -> None:
        assert not self.kernel.write(Write.DELETE, self.ours())

    def kinds(self) -> list[EventKind]:
        return [event.kind for _, event in self.said]

    def of_kind(self, kind: EventKind) -> list[tuple[float, Event]]:
        return [(when, event) for when, event in self.said if event.kind is kind]

    def put_back(self) -> list[tuple[float, Event]]:
        """Return when routes were put back, except for the installation at the start."""
        return [
            (when, event) for when, event in self.of_kind(EventKind.ROUTES_RESTORED) if when > 1
        ]

    def marker(self) -> dict[str, str]:
        names = {"ok": self.layout.marker_ok, "detected": self.layout.marker_detected}
        return {name: path.read_text() for name, path in names.items() if path.exists()}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# --- our routes -----------------------------------------------------------------------------------


def test_an_expired_trial_is_ended(world: World) -> None:
    """A trial's timer can be lost, for example in a soft reboot."""
    trial = world.layout.trial
    world.at(5, lambda: trial.write_text(json.dumps(times_of(-2))))
    world.at(6, world.lose)
    world.watch(7)
    assert world.units.restarts == ["hostrouting-trial.service"]


def test_it_leaves_the_routes_of_a_trial_alone(world: World) -> None:
    trial = world.layout.trial
    world.at(5, lambda: trial.write_text(json.dumps(times_of(600))))
    world.at(5, world.lose)
    world.at(20, lambda: world.ours() and pytest.fail("it has put a route back"))
    world.at(30, trial.unlink)
    world.watch(30 + LOOK_SECONDS + 10)
    assert [route.destination for route in world.ours()] == [WANTED]
    ((back, _),) = world.put_back()
    assert back > 30
    ((when, problem),) = world.of_kind(EventKind.PROBLEM)
    assert 5 <= when < 6
    assert "trial" in problem.message
    ((_, failure),) = world.of_kind(EventKind.FAILURE)
    assert failure.message.endswith(TRIAL_HINT)
    assert "hostrouting apply" not in failure.message
    assert len(world.of_kind(EventKind.PROBLEM_OVER)) == 1


def test_it_changes_no_routes_during_a_run(world: World) -> None:
    world.layout.run_lock.parent.mkdir(parents=True, exist_ok=True)
    with world.layout.run_lock.open("w") as lock:
        world.at(5, lambda: fcntl.flock(lock, fcntl.LOCK_EX))
        world.at(5, world.lose)
        world.at(20, lambda: world.ours() and pytest.fail("it has put a route back"))
        world.at(30, lambda: fcntl.flock(lock, fcntl.LOCK_UN))
        world.watch(40)
    ((back, _),) = world.put_back()
    assert 30 < back <= 35
    assert world.of_kind(EventKind.PROBLEM) == []


def refuse_to_listen(_: CancelScope) -> None:
    raise RouteError("can't listen for changes of routes: no netlink socket")


@pytest.mark.parametrize(
    ("wait", "problems"), [(lambda scope: scope.wait(1e9), 0), (refuse_to_listen, 1)]
)
def test_a_loss_without_an_event_is_seen(
    world: World, wait: Callable[[CancelScope], None], problems: int
) -> None:
    world.backend = Altered(world.kernel, changes=listening(wait))
    world.at(5, world.lose)
    world.watch(LOOK_SECONDS * 2 + 10)
    assert len(world.ours()) == 1
    assert len(world.of_kind(EventKind.PROBLEM)) == problems


def test_an_inherited_next_hop_follows_the_default_route(world: World) -> None:
    """However often it changes: no change is a loss, after which the route would wait."""
    renewals = {5 + 2 * number: f"10.1.0.{250 + number}" for number in range(5)}
    for second, gateway in renewals.items():
        world.at(second, partial(put, world.kernel, default(gateway)))
    world.watch(60)
    assert [route.hops[0].gateway for route in world.ours()] == [IPv4Address("10.1.0.254")]
    followed = world.of_kind(EventKind.ROUTES_FOLLOWED)
    for (when, event), (second, gateway) in zip(followed, renewals.items(), strict=True):
        assert second <= when < second + 1
        assert f"via {gateway}" in event.message
    assert EventKind.ROUTES_CONTESTED not in world.kinds()


def default_at_metric_100(world: World) -> None:
    assert not world.kernel.write(Write.DELETE, [default()])
    assert not world.kernel.write(Write.ADD, [default(metric=100)])


def vpn_comes_up(kernel: FakeKernel) -> None:
    kernel.add_link("wg0")
    kernel.add_address("wg0", "10.99.0.2/24")
    assert not kernel.write(Write.ADD, [default("10.99.0.1", "wg0")])


def second_nic_takes_over(kernel: FakeKernel) -> None:
    vpn_comes_up(kernel)
    assert not kernel.write(Write.DELETE, [default(metric=100)])


def routes_are_lost_with_the_default_route(kernel: FakeKernel) -> None:
    second_nic_takes_over(kernel)
    assert not kernel.write(
        Write.DELETE, [route for route in read_routes(kernel, Table.MAIN) if route.is_ours]
    )


def other_program_moves_the_route(kernel: FakeKernel) -> None:
    vpn_comes_up(kernel)
    (route,) = [route for route in read_routes(kernel, Table.MAIN) if route.is_ours]
    assert not kernel.write(Write.REPLACE, [attrs.evolve(route, hops=(NextHop("wg0"),))])


@pytest.mark.parametrize(
    ("change", "devs"),
    [
        (vpn_comes_up, ["eth0"]),
        (second_nic_takes_over, ["eth0"]),
        (routes_are_lost_with_the_default_route, []),
        (other_program_moves_the_route, ["wg0"]),
    ],
)
def test_a_route_stays_on_its_interface(
    world: World, change: Callable[[FakeKernel], None], devs: list[str]
) -> None:
    """The watcher leaves routes alone that the default route would lead to another interface."""
    default_at_metric_100(world)
    world.at(5, lambda: change(world.kernel))
    world.watch(LOOK_SECONDS * 2 + 10)
    assert [route.hops[0].dev for route in world.ours()] == devs
    assert EventKind.ROUTES_FOLLOWED not in world.kinds()
    ((when, event),) = world.of_kind(EventKind.ROUTES_NOT_MOVED)
    assert 5 <= when < 6
    assert event.fields["DEV"] == ("eth0",)
    assert event.kind.priority == LOG_ERR


def test_a_route_that_waits_stays_on_its_interface(world: World) -> None:
    default_at_metric_100(world)
    for when in (5, 6, 7, 8, 9):
        world.at(when, world.lose)
    world.at(10, lambda: second_nic_takes_over(world.kernel))
    world.watch(LOOK_SECONDS * 2 + 10)
    assert world.ours() == []
    ((_, event),) = world.of_kind(EventKind.ROUTES_NOT_MOVED)
    assert event.fields["DEV"] == ("eth0",)


def test_routes_that_did_not_move_are_in_place_once_the_vpn_is_gone(world: World) -> None:
    default_at_metric_100(world)
    world.at(5, lambda: vpn_comes_up(world.kernel))
    world.at(10, world.lose)
    world.at(20, lambda: world.kernel.del_link("wg0"))
    world.watch(40)
    assert [route.hops[0].dev for route in world.ours()] == ["eth0"]
    ((when, _),) = world.of_kind(EventKind.PROBLEM_OVER)
    assert 20 <= when < 21


def test_a_watcher_that_starts_late_moves_no_route(world: World) -> None:
    default_at_metric_100(world)
    world.watch(5)
    vpn_comes_up(world.kernel)
    world.scope = CancelScope(clock=world.clock)
    world.watch(10)
    assert [route.hops[0].dev for route in world.ours()] == ["eth0"]
    assert EventKind.ROUTES_NOT_MOVED in world.kinds()


@pytest.mark.parametrize("becomes", ["gone", "port"])
def test_a_route_follows_once_its_interface_is_unusable(world: World, becomes: str) -> None:
    def rename() -> None:
        world.kernel.del_link("eth0")
        world.kernel.add_link("br0", kind="bridge")
        if becomes == "port":
            world.kernel.add_link("eth0", master="br0")
        world.kernel.add_address("br0", "10.1.0.4/24")
        assert not world.kernel.write(Write.ADD, [default("10.1.0.1", "br0")])

    world.at(5, rename)
    world.watch(60)
    assert [route.hops[0].dev for route in world.ours()] == ["br0"]
    assert EventKind.ROUTES_NOT_MOVED not in world.kinds()


def record(world: World, text: str) -> None:
    world.layout.verified.parent.mkdir(parents=True, exist_ok=True)
    world.layout.verified.write_text(text)


@pytest.mark.parametrize("uplinks", [None, ("eth0",)])
def test_another_nic_with_the_uplinks_name_is_an_event(
    world: World, uplinks: tuple[str, ...] | None
) -> None:
    def replace() -> None:
        world.kernel.del_link("eth0")
        world.kernel.add_link("eth0", mac="00:0d:3a:00:00:02")
        world.kernel.add_address("eth0", "10.1.0.4/24")
        assert not world.kernel.write(Write.ADD, [default()])

    def fail(*_: object, **__: object) -> tuple[Lookup, ...]:
        raise RouteError("can't look up routes: no memory")

    world.config = attrs.evolve(KEEPING, uplinks=uplinks)
    world.backend = Altered(world.kernel, lookup=world.kernel.lookup)
    record(world, "eth0 00:0d:3a:00:00:01\n")
    world.at(5, replace)
    world.at(20, lambda: world.backend.__dict__.update(lookup=fail))
    world.at(20, world.lose)
    world.at(30, lambda: world.backend.__dict__.update(lookup=world.kernel.lookup))
    world.watch(LOOK_SECONDS + 40)
    assert "STATUS=unknown" in " ".join(line for _, line in world.heard)
    ((_, event),) = world.of_kind(EventKind.UPLINK_MOVED)
    assert event.message.startswith("eth0 (00:0d:3a:00:00:02) counts as the uplink now, because")
    assert event.fields["DEV"] == ("eth0",)


@pytest.mark.parametrize("change", [vpn_comes_up, second_nic_takes_over])
def test_a_verified_uplink_keeps_its_routes_and_stays_expected(
    world: World, change: Callable[[FakeKernel], None]
) -> None:
    default_at_metric_100(world)
    record(world, "eth0\n")
    world.at(5, lambda: change(world.kernel))
    if change is vpn_comes_up:  # eth0 still has a default route
        world.at(10, world.lose)
    world.at(20, lambda: world.kernel.del_link("wg0"))
    world.watch(LOOK_SECONDS * 2 + 10)
    assert [route.hops[0].dev for route in world.ours()] == ["eth0"]
    assert EventKind.ROUTES_FOLLOWED not in world.kinds()
    ((when, event),) = world.of_kind(EventKind.UPLINK_MOVED)
    assert 5 <= when < 6
    assert event.kind.priority == LOG_ERR
    assert event.message.startswith("the default route has moved from eth0,")
    assert event.fields["DEV"] == ("wg0",)
    assert EventKind.FAILURE not in world.kinds()
    assert any(when >= 20 for when, _ in world.of_kind(EventKind.PROBLEM_OVER))


def test_a_route_moves_to_the_uplink_that_is_recorded_meanwhile(world: World) -> None:
    default_at_metric_100(world)
    vpn_comes_up(world.kernel)
    world.at(5, lambda: record(world, "wg0\n"))
    world.watch(20)
    assert [route.hops[0].dev for route in world.ours()] == ["wg0"]


@pytest.mark.parametrize("begin", [0, 5])
def test_an_unreadable_record_ends_no_watcher_and_moves_nothing(world: World, begin: int) -> None:
    """At the watcher's start, or later, until it can be read again."""
    default_at_metric_100(world)
    record(world, "eth0\n")
    if begin == 0:
        record(world, "???")
    world.at(begin, lambda: record(world, "???"))
    world.at(6, world.lose)
    world.at(7, lambda: second_nic_takes_over(world.kernel))
    found: list[Any] = []
    world.at(15, lambda: found.append((world.ours(), world.marker())))
    world.at(20, lambda: record(world, "eth0\n"))
    world.watch(30)
    ((routes, marker),) = found
    path = world.layout.verified
    assert routes == []
    assert marker["detected"].startswith(f"check-failed: can't read {path}: ")
    ((when, _),) = world.of_kind(EventKind.UNKNOWN)
    assert begin <= when < begin + 2
    problem = f"can't read {path}: none of its lines is an interface and its MAC address; "
    problem += "to record the default route's interface: "
    problem += f"rm -r {path} && hostrouting apply"
    assert problem in [event.message for _, event in world.of_kind(EventKind.PROBLEM)]


def test_the_metrics_say_that_the_default_route_has_moved(world: World) -> None:
    default_at_metric_100(world)
    record(world, "eth0\n")
    textfile = world.layout.of("/var/textfile/node.prom")
    textfile.parent.mkdir(parents=True)
    world.config = config(SHADOWED, watch={"enabled": True, "textfile": "/var/textfile/node.prom"})
    told: list[bool] = []
    for seconds in (4, 8):
        world.at(
            seconds, lambda: told.append("\nhostrouting_uplink_moved 1\n" in textfile.read_text())
        )
    world.at(5, lambda: vpn_comes_up(world.kernel))
    world.watch(10)
    assert told == [False, True]


def test_routes_fail_over_between_uplinks_that_the_config_names(world: World) -> None:
    default_at_metric_100(world)
    world.config = config(SHADOWED, uplinks=["eth0", "wg0"])
    world.at(5, lambda: second_nic_takes_over(world.kernel))
    world.watch(60)
    assert [route.hops[0].dev for route in world.ours()] == ["wg0"]
    assert EventKind.ROUTES_FOLLOWED in world.kinds()


def test_a_route_follows_only_an_uplinks_default_route(world: World) -> None:
    world.config = config(SHADOWED, uplinks=["eth*"])
    other = default("172.16.0.1", "ib0")
    world.at(5, lambda: world.kernel.write(Write.REPLACE, [default(metric=100), other]))
    world.watch(60)
    assert [route.hops[0].dev for route in world.ours()] == ["eth0"]
    assert EventKind.ROUTES_FOLLOWED not in world.kinds()
    assert list(world.marker()) == ["ok"]


def test_a_modified_route_is_repaired_and_counts_as_lost(world: World) -> None:
    def change() -> None:
        (route,) = world.ours()
        assert not world.kernel.write(Write.REPLACE, [attrs.evolve(route, hops=(NextHop("ib0"),))])

    world.at(5, change)
    world.watch(60)
    assert [route.devs for route in world.ours()] == [("eth0",)]
    assert len(world.put_back()) == 1


def test_an_obstacle_to_one_route_does_not_keep_others_lost(world: World) -> None:
    world.config = config(
        SHADOWED, {"destination": "172.16.2.0/24", "gateway": "onlink", "dev": "ib9"}
    )
    world.at(5, world.lose)
    world.watch(60)
    assert [route.destination for route in world.ours()] == [WANTED]
    ((_, problem),) = world.of_kind(EventKind.PROBLEM)
    assert "ib9" in problem.message


def test_a_foreign_route_in_our_place_is_kept(world: World) -> None:
    theirs = Route(IPv4Network("172.16.2.0/24"), (NextHop("ib0"),), protocol=Protocol.STATIC)
    world.kernel.write(Write.ADD, [theirs])
    world.config = config(SHADOWED, "172.16.2.0/24")
    world.at(5, world.lose)
    meanwhile: list[Route] = []
    world.at(90, lambda: meanwhile.extend(world.ours()))
    world.at(100, lambda: world.kernel.write(Write.DELETE, [theirs]))
    world.watch(200)
    assert [route.destination for route in meanwhile] == [WANTED]
    assert sorted(str(route.destination) for route in world.ours()) == [
        "172.16.1.0/24",
        "172.16.2.0/24",
    ]
    assert len(world.of_kind(EventKind.PROBLEM)) == 1
    assert len(world.of_kind(EventKind.PROBLEM_OVER)) == 1


def test_an_equal_foreign_route_that_a_rule_precedes_is_a_problem(world: World) -> None:
    hop = NextHop("eth0", IPv4Address("10.1.0.1"))
    vpn = Route(DEFAULT_DESTINATION, (NextHop("ib0"),), table=52, protocol=Protocol.STATIC)
    theirs = Route(WANTED, (hop,), protocol=Protocol.STATIC)
    assert not world.kernel.write(Write.ADD, [theirs, vpn])
    world.kernel.add_rule(Rule(100, table=52))
    host = Host(world.kernel, world.units, world.layout)
    (problem,) = Reconciler().repair(lambda: KEEPING, host, world.scope).problems
    assert problem.startswith(f"{theirs} is in the table but doesn't win")


def test_a_link_that_flaps_gets_its_routes_back_without_blame(world: World) -> None:
    def up() -> None:
        world.kernel.set_link("eth0", up=True)
        world.kernel.write(Write.ADD, [default()])

    for start in (10, 30, 50, 70):
        world.at(start, lambda: world.kernel.set_link("eth0", up=False))
        world.at(start + 10, up)
    world.watch(100)
    assert len(world.ours()) == 1
    assert EventKind.ROUTES_CONTESTED not in world.kinds()


def test_our_routes_stay_while_the_default_route_is_missing(world: World) -> None:
    world.backend = RecordingBackend(world.kernel)
    world.at(10, lambda: world.kernel.write(Write.DELETE, [default()]))
    world.watch(200)
    assert len(world.ours()) == 1
    assert [call for call, _ in world.backend.written] == ["add"]


def test_without_wanted_routes_the_table_is_untouched(world: World) -> None:
    world.kernel.write(Write.ADD, [Route(WANTED, (NextHop("eth0", IPv4Address("10.1.0.1")),))])
    world.config = config()
    world.watch(200)
    assert len(world.ours()) == 1


def test_a_route_dropped_from_the_config_is_removed(world: World) -> None:
    world.config = config(SHADOWED, "172.16.2.0/24")
    world.at(5, lambda: setattr(world, "config", KEEPING))
    world.watch(LOOK_SECONDS * 2)
    assert [route.destination for route in world.ours()] == [WANTED]
    assert len(world.of_kind(EventKind.ROUTES_REMOVED)) == 1


def test_a_route_that_another_program_removes_first_needs_no_second_repair(world: World) -> None:
    world.kernel.write(Write.ADD, [Route(IPv4Network("172.16.2.0/24"), (NextHop("ib0"),))])
    reconciler = Reconciler()

    def write(change: Write, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        if change is Write.DELETE:
            world.kernel.write(change, routes)
        return world.kernel.write(change, routes)

    backend: Any = Altered(world.kernel, write=write)
    repair = reconciler.repair(
        lambda: KEEPING, Host(backend, world.units, world.layout), world.scope
    )
    assert (repair.problems, repair.repaired[Drift.UNWANTED], reconciler.due) == ((), [], None)


def test_a_refused_route_is_retried_with_backoff(world: World) -> None:
    refused, tries = IPv4Network("172.16.2.0/24"), []

    def write(change: Write, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        bad = [route for route in routes if route.destination == refused and change is Write.ADD]
        tries.extend(bad)
        failures = world.kernel.write(change, [route for route in routes if route not in bad])
        return (*failures, *(RouteFailure(route, 12, "no memory") for route in bad))

    world.config = config(SHADOWED, str(refused))
    world.backend = Altered(world.kernel, write=write)
    world.at(400, world.lose)
    soon: list[Route] = []
    world.at(402, lambda: soon.extend(world.ours()))
    world.watch(800)
    assert [route.destination for route in soon] == [WANTED]
    assert [route.destination for route in world.ours()] == [WANTED]
    assert 3 < len(tries) < 20
    assert world.longest_silence() < LOOK_SECONDS + 1
    assert len(world.of_kind(EventKind.PROBLEM)) == 1
    assert world.of_kind(EventKind.ROUTES_CONTESTED) == []


def test_a_refused_route_does_not_count_as_waiting(world: World) -> None:
    """For a waiting route, the report of the check has the fix of the watcher."""
    backend = FailingBackend(world.kernel, {"add": dict.fromkeys(range(1, 10), 12)})
    host, reconciler = Host(backend, world.units, world.layout), Reconciler()
    for _ in range(3):
        repair = reconciler.repair(lambda: KEEPING, host, world.scope)
    assert reconciler.due is not None
    assert (len(repair.problems), repair.waiting) == (1, ())


def test_a_failed_repair_is_rolled_back_and_retried(world: World) -> None:
    world.config = config(SHADOWED, "172.16.2.0/24")
    world.at(5, lambda: setattr(world, "config", KEEPING))
    world.backend = RecordingBackend(
        FailingBackend(world.kernel, {"delete": dict.fromkeys(range(1, 100_000), 12)})
    )
    world.watch(600)
    assert len(world.ours()) == 2
    assert 3 < len([call for call, _ in world.backend.written if call == "delete"]) < 20
    assert len(world.of_kind(EventKind.PROBLEM)) == 1


# --- rules and side tables ------------------------------------------------------------------------


POLICY = attrs.evolve(
    KEEPING,
    static_routes=attrs.evolve(
        KEEPING.static_routes, rules=[{"to": "10.244.0.0/16", "priority": 5269}], keep=["ib*"]
    ),
)


def our_rules(world: World) -> list[str]:
    return [str(rule) for rule in world.kernel.facts().rules if rule.is_ours]


def side_routes(world: World) -> list[Route]:
    return [route for route in read_routes(world.kernel) if route.is_in_side_table]


def flush_rules(world: World) -> None:
    ours = [rule for rule in world.kernel.facts().rules if rule.is_ours]
    assert not world.kernel.write_rules(Write.DELETE, ours)


def flap(world: World) -> None:
    world.kernel.set_link("ib0", up=False)
    world.kernel.set_link("ib0", up=True)


@pytest.fixture
def policy(world: World) -> World:
    world.config = POLICY
    return world


def later_events(world: World) -> list[tuple[EventKind, float]]:
    """Return the events about rules after the installation at the start."""
    kinds = (EventKind.RULES_RESTORED, EventKind.RULES_REMOVED)
    return [(event.kind, when) for when, event in world.said if event.kind in kinds and when > 1]


@pytest.mark.parametrize("lose", [flush_rules, flap])
def test_lost_rules_and_side_tables_are_put_back(
    policy: World, lose: Callable[[World], None]
) -> None:
    policy.at(5, lambda: lose(policy))
    policy.watch(20)
    assert len(our_rules(policy)) == 3
    assert len(side_routes(policy)) == 1
    ((kind, when),) = later_events(policy)
    assert (kind, 5 <= when < 6) == (EventKind.RULES_RESTORED, True)
    assert policy.put_back() == []
    assert policy.of_kind(EventKind.PROBLEM) == []


def test_rules_follow_an_address(policy: World) -> None:
    def change() -> None:
        policy.kernel.del_address("ib0", "172.16.0.10/16")
        policy.kernel.add_address("ib0", "172.16.0.44/16")

    policy.at(5, change)
    policy.watch(20)
    assert any("from 172.16.0.44" in rule for rule in our_rules(policy))
    assert not any("from 172.16.0.10" in rule for rule in our_rules(policy))
    assert [kind for kind, _ in later_events(policy)] == [
        EventKind.RULES_RESTORED,
        EventKind.RULES_REMOVED,
    ]


def test_rules_of_an_interface_without_an_address_stay(policy: World) -> None:
    """They have no effect until the address is back, and are then as they were."""
    policy.at(5, lambda: policy.kernel.del_address("ib0", "172.16.0.10/16"))
    policy.at(10, lambda: len(our_rules(policy)) == 3 or pytest.fail("a rule is gone"))
    policy.at(15, lambda: policy.kernel.add_address("ib0", "172.16.0.10/16"))
    policy.watch(20)
    assert len(our_rules(policy)) == 3
    assert len(side_routes(policy)) == 1
    assert [kind for kind, _ in later_events(policy)] == [EventKind.RULES_RESTORED]
    assert policy.of_kind(EventKind.PROBLEM) == []


def test_rules_that_are_lost_now_and_then_do_not_wait(policy: World) -> None:
    losses = range(5, 300, 5)
    for second in losses:
        policy.at(second, lambda: flush_rules(policy))
        policy.at(second + 1, lambda: len(our_rules(policy)) == 3 or pytest.fail("it waits"))
    policy.watch(310)
    assert len(later_events(policy)) == len(losses)
    assert policy.of_kind(EventKind.PROBLEM) == []


def test_contested_rules_wait(policy: World) -> None:
    for step in range(600):
        policy.at(5 + step / 2, lambda: flush_rules(policy))
    policy.watch(600)
    assert len(our_rules(policy)) == 3
    assert 5 < len(later_events(policy)) < 20
    (message,) = {event.message for _, event in policy.of_kind(EventKind.PROBLEM)}
    assert "keeps removing our rules" in message


@pytest.mark.parametrize(("route_losses", "rule_losses"), [(2, 4), (4, 2)])
def test_the_next_attempt_is_the_first_of_those_that_wait(
    policy: World, route_losses: int, rule_losses: int
) -> None:
    reconciler, host = Reconciler(), Host(policy.kernel, policy.units, policy.layout)
    reconciler.repair(policy.read, host, policy.scope)
    now = policy.clock.monotonic()
    (route,) = policy.ours()
    reconciler.failures[route.key] = Failures(route_losses, now)
    reconciler.policy.failures = Failures(rule_losses, now)
    policy.lose()
    flush_rules(policy)
    repair = reconciler.repair(policy.read, host, policy.scope)
    assert repair.waiting == (route,)
    assert CONTESTED in repair.problems
    assert reconciler.due == now + 1


def test_an_obstacle_to_rules_does_not_keep_routes_lost(policy: World) -> None:
    def put_in_the_way() -> None:
        route = Route(
            IPv4Network("10.9.0.0/16"),
            (NextHop("eth0"),),
            table=side_routes(policy)[0].table,
            protocol=Protocol.STATIC,
        )
        assert not policy.kernel.write(Write.ADD, [route])
        policy.lose()

    policy.at(5, put_in_the_way)
    policy.watch(100)
    assert [route.destination for route in policy.ours()] == [WANTED]
    ((_, problem),) = policy.of_kind(EventKind.PROBLEM)
    assert "can't keep ib0: another program has a route in its table" in problem.message


def test_a_rule_that_comes_first_is_a_problem(policy: World) -> None:
    vpn = Route(DEFAULT_DESTINATION, (NextHop("ib0"),), table=52, protocol=Protocol.STATIC)

    def come_first() -> None:
        assert not policy.kernel.write(Write.ADD, [vpn])
        policy.kernel.add_rule(Rule(100, table=52))

    policy.at(5, come_first)
    policy.at(20, lambda: policy.kernel.del_rule(Rule(100, table=52)))
    policy.watch(40)
    messages = [event.message for _, event in policy.of_kind(EventKind.PROBLEM)]
    assert any("because of the rule 100: from all lookup 52" in message for message in messages)
    ((when, _),) = policy.of_kind(EventKind.PROBLEM_OVER)
    assert 20 <= when < 21


def test_rules_of_a_trial_stay(policy: World) -> None:
    policy.at(5, lambda: policy.layout.trial.write_text(json.dumps(times_of(600))))
    policy.at(5, lambda: flush_rules(policy))
    policy.watch(20)
    assert our_rules(policy) == []


def test_metrics_tell_of_rules(policy: World) -> None:
    path = policy.layout.root / "var/lib/metrics.prom"
    watched = {"enabled": True, "textfile": "/var/lib/metrics.prom"}
    policy.config = attrs.evolve(POLICY, watch=watched)
    policy.at(5, lambda: flush_rules(policy))
    policy.watch(10)
    text = path.read_text()
    assert "hostrouting_rules_kept 3\n" in text
    assert "hostrouting_rules_repaired_total 7\n" in text
    policy.config = attrs.evolve(KEEPING, watch=watched)
    policy.scope = CancelScope(clock=policy.clock)
    policy.watch(20)
    assert "hostrouting_rules" not in path.read_text()


# --- contested routes -----------------------------------------------------------------------------


def test_a_third_removal_is_reported_with_how_to_stop_us(world: World) -> None:
    assert {link.name: link.index for link in world.kernel.facts().links}["eth0"] == 2
    write_file(world.layout.root / "run/systemd/netif/links/2", "ADMIN_STATE=configured\n")
    for when in (10, 20, 30):
        world.at(when, world.lose)
    world.watch(60)
    messages = [event.message for _, event in world.of_kind(EventKind.ROUTES_CONTESTED)]
    assert len(messages) == 1
    ((_, failure),) = world.of_kind(EventKind.FAILURE)
    assert failure.message.endswith("over as soon as our route is back")
    ways = (
        "systemctl stop hostrouting-watch",
        "hostrouting remove",
        "watch.enabled",
        "ManageForeignRoutes=no",
    )
    for words in ("hostrouting keeps", "3 times", *ways):
        assert words in messages[0]
    assert len(world.ours()) == 1


def test_repeated_removals_of_many_routes_are_reported_once(world: World) -> None:
    world.config = config(*(f"172.16.{number}.0/24" for number in range(100)))
    for when in (5, 10, 15):
        world.at(when, world.lose)
    world.watch(60)
    ((_, event),) = world.of_kind(EventKind.ROUTES_CONTESTED)
    assert len(event.fields["ROUTE"]) == 100
    assert (
        "and 84 more: 3 times lately; hostrouting keeps these routes, and restores them in 1 s"
        in event.message
    )
    assert len(world.ours()) == 100


def test_it_backs_off_from_a_fight_and_recovers(world: World) -> None:
    def take() -> None:
        world.kernel.write(Write.DELETE, world.ours())
        if world.clock.monotonic() < 400:
            world.clock.call_at(world.clock.monotonic() + 1, take)

    world.at(10, take)
    world.at(1700, world.lose)
    world.backend = RecordingBackend(world.kernel)
    world.watch(1710)
    adds = [call for call, _ in world.backend.written if call == "add"]
    assert 8 < len(adds) < 20
    assert 1700 <= world.put_back()[-1][0] < 1702
    assert len(world.ours()) == 1


# --- the check ------------------------------------------------------------------------------------


def test_a_late_shadow_changes_marker_report_and_metrics(world: World) -> None:
    folder, textfile = world.layout.run_dir, world.layout.root / "var/metrics/hostrouting.prom"
    world.config = config(
        cidrs=("192.168.0.0/16",), watch={"textfile": "/var/metrics/hostrouting.prom"}
    )
    seen: dict[str, Any] = {}

    def look(name: str) -> None:
        seen[name] = (
            sorted(path.suffix for path in folder.glob("route-overlap.*")),
            textfile.read_text(),
        )

    world.at(9, lambda: look("before"))
    world.at(10, lambda: world.kernel.add_address("ib0", "192.168.7.1/16"))
    world.at(12, lambda: look("shadowed"))
    world.at(20, lambda: world.kernel.del_address("ib0", "192.168.7.1/16"))
    world.at(22, lambda: look("after"))
    world.watch(200)
    for name, verdict in (("before", "ok"), ("shadowed", "overlap"), ("after", "ok")):
        assert seen[name][0] == ([".ok"] if verdict == "ok" else [".detected", ".json"])
        assert (
            f'hostrouting_cidr_verdict{{cidr="192.168.0.0/16",verdict="{verdict}"}} 1\n'
            in seen[name][1]
        )
    ((when, failure),) = world.of_kind(EventKind.FAILURE)
    assert 10 <= when < 12
    assert "OVERLAP: expected CIDR 192.168.0.0/16" in failure.message
    assert (
        'fix: add to hostRouting.staticRoutes.routes: {"destination": "192.168.0.0/17"}'
        in failure.message
    )
    assert failure.fields["DEV"] == ("ib0",)
    assert [line.split()[0] for line in failure.fields["ROUTE"]] == ["192.168.0.0/16"]
    ((when, gone),) = world.of_kind(EventKind.FAILURE_GONE)
    assert 20 <= when < 22
    assert "192.168.0.0/16" in gone.message


def test_a_check_that_is_removed_during_a_round_leaves_no_marker(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = iter([config(cidrs=("172.16.0.0/16",))] * 2)
    monkeypatch.setattr(world, "read", lambda: next(configs, config(cidrs=())))
    world.watch(1)
    assert world.marker() == {}


def test_a_growing_failure_is_reported_again_and_not_as_gone(world: World) -> None:
    world.config = config(cidrs=("192.168.0.0/16",))
    world.at(10, lambda: world.kernel.add_address("ib0", "192.168.7.1/24"))
    world.at(20, lambda: world.kernel.add_address("ib0", "192.168.8.1/24"))
    world.watch(60)
    failures = [event.message for _, event in world.of_kind(EventKind.FAILURE)]
    assert len(failures) == 2
    assert "192.168.8.0/24" not in failures[0]
    assert "192.168.8.0/24" in failures[1]
    assert EventKind.FAILURE_GONE not in world.kinds()


def test_a_failure_without_a_verdict_in_between_is_reported_once(world: World) -> None:
    world.config = config(cidrs=("192.168.0.0/16",))
    world.kernel.add_address("ib0", "192.168.7.1/24")
    world.at(10, lambda: world.kernel.write(Write.DELETE, [default()]))
    world.at(20, lambda: put(world.kernel, default()))
    world.watch(60)
    assert len(world.of_kind(EventKind.FAILURE)) == 1
    assert EventKind.FAILURE_GONE not in world.kinds()
    assert "STATUS=unknown" in " ".join(line for _, line in world.heard)


# --- when the watcher looks -----------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_a_flood_of_changes_causes_few_looks(world: World, seconds: float) -> None:
    noise = Route(IPv4Network("192.0.2.0/24"), (NextHop("ib0"),), protocol=Protocol.STATIC)

    def change(number: int) -> None:
        world.kernel.write(Write.DELETE if number % 2 else Write.ADD, [noise])

    count = by_day(1000, by_night=10_000)
    for number in range(count):
        world.at(10 + number * seconds / count, partial(change, number))
    world.at(10 + seconds, world.lose)
    world.watch(10 + seconds + 20)
    assert world.looks() <= 20
    assert len(world.ours()) == 1


def test_a_long_flood_delays_a_repair_by_seconds_and_no_later_one(world: World) -> None:
    noise = Route(IPv4Network("192.0.2.0/24"), (NextHop("ib0"),), protocol=Protocol.STATIC)
    for begin, end in ((10, 60), (80, 85)):
        for number in range(20 * (end - begin)):
            change = Write.DELETE if number % 2 else Write.ADD
            world.at(begin + number / 20, partial(world.kernel.write, change, [noise]))
    world.at(42, world.lose)
    world.at(80, world.lose)
    world.watch(90)
    first, second = (when for when, _ in world.put_back())
    assert 42 <= first < 51
    assert 80 <= second < 82


def test_an_idle_watcher_looks_once_a_minute(world: World) -> None:
    world.config = config()
    world.watch(600)
    assert world.looks() == 600 / LOOK_SECONDS


def test_it_pings_the_watchdog_and_sends_systemd_the_verdict(world: World) -> None:
    world.watch(600)
    unit = read_asset(PACKAGE, "hostrouting-watch.service")
    watchdog_seconds = int(unit.partition("WatchdogSec=")[2].partition("\n")[0])
    assert world.longest_silence() <= watchdog_seconds / 3
    lines = [line for _, line in world.heard if line != "WATCHDOG=1"]
    assert lines[:2] == [
        "STATUS=ok: every expected CIDR leaves through eth0; static routes in place: 1",
        "READY=1",
    ]


def test_a_status_is_never_longer_than_systemd_reads(world: World) -> None:
    there = [f"172.16.{number}.0/24" for number in range(200)]
    world.config = config(
        *({"destination": each, "dev": "ib9", "gateway": "onlink"} for each in there),
        cidrs=tuple(there),
    )
    world.kernel.write(Write.DELETE, [default()])
    world.watch(1)
    (status,) = [line for _, line in world.heard if line.startswith("STATUS=")]
    assert len(status.encode()) < 4096


# --- failures of the watcher ----------------------------------------------------------------------


def test_a_broken_config_leaves_the_last_in_force(world: World) -> None:
    world.at(5, lambda: setattr(world, "config", ConfigError([("hostRouting", "is bad")])))
    world.at(10, world.lose)
    world.at(200, lambda: setattr(world, "config", KEEPING))
    world.watch(400)
    assert len(world.ours()) == 1
    ((_, problem),) = world.of_kind(EventKind.PROBLEM)
    assert "hostRouting: is bad" in problem.message
    assert len(world.of_kind(EventKind.PROBLEM_OVER)) == 1


def test_unwritable_files_do_not_end_it(world: World) -> None:
    world.config = attrs.evolve(KEEPING, watch={"textfile": "/var/file/hostrouting.prom"})
    write_file(world.layout.root / "var/file", "no folder")
    world.at(5, world.lose)
    world.watch(200)
    assert len(world.ours()) == 1
    ((_, problem),) = world.of_kind(EventKind.PROBLEM)
    assert "hostrouting.prom" in problem.message


def test_leftovers_of_a_killed_watcher_are_removed(world: World) -> None:
    litter = write_file(world.layout.run_dir / ".route-overlap.json.hostrouting-abc", "{")
    world.watch(10)
    assert not litter.exists()


# --- any events -----------------------------------------------------------------------------------


CIDRS = tuple(map(IPv4Network, ("10.96.0.0/12", "172.16.0.0/16", "192.168.0.0/24")))
findings = st.builds(
    lambda kind, cidr, dev: Finding(kind, cidr, cidr[1], (dev,), ("eth0",), (cidr,), None, (cidr,)),
    st.sampled_from(FindingKind),
    st.sampled_from(CIDRS),
    st.sampled_from(["ib0", "ib1"]),
)


def report_of(verdict: Verdict, **more: Any) -> OverlapReport:
    expected = tuple(map(ExpectedCidr, CIDRS))
    return OverlapReport(
        verdict, OverlapMode.WARN, "2026-01-01T00:00:00Z", "node-7", expected=expected, **more
    )


judged = st.lists(
    findings, max_size=3, unique_by=lambda item: (item.kind, item.cidr, item.devs)
).map(
    lambda items: report_of(
        Verdict.OVERLAP if items else Verdict.OK, default_devs=("eth0",), findings=tuple(items)
    )
)
unknown = st.sampled_from(
    [(UnknownReason.NO_DEFAULT_ROUTE, ""), (UnknownReason.CHECK_FAILED, "no memory")]
).map(lambda reason: report_of(Verdict.UNKNOWN, reason_kind=reason[0], reason_detail=reason[1]))
reports = st.one_of(judged, judged, unknown)


@given(st.lists(reports))
def test_open_problems_are_the_current_failures(seen: list[OverlapReport]) -> None:
    before: OverlapReport | None = None
    said: list[str] = []
    for report in seen:
        now = report
        if before is not None and report.verdict is Verdict.UNKNOWN:
            now = attrs.evolve(report, findings=before.findings)
        for event in of_failures(before, now, ()):
            if event.kind is EventKind.FAILURE:
                (message,) = {
                    each.message
                    for each in now.findings
                    if event.message.startswith(f"{each.message}; ")
                }
                said.append(message)
            elif event.kind is EventKind.FAILURE_GONE:
                said.remove(event.message.removeprefix("no longer so: "))
        assert sorted(said) == sorted(finding.message for finding in now.findings)
        assert list(of_failures(now, now, ())) == []
        assert "\n" not in status(now, Repair(), ())
        before = now


def test_an_event_names_its_routes_and_interfaces() -> None:
    routes = {dev: Route(WANTED, (NextHop(dev),)) for dev in ("ib0", "eth0")}
    contested = {Failures(3, 1.0): [routes["ib0"]], Failures(4, 1.0): [*routes.values()]}
    repair = Repair(
        repaired={Drift.UNWANTED: [*routes.values()], Drift.LOST: [routes["ib0"]]},
        lost_again=contested,
    )
    events = list(of_routes(repair, {"ib0": "it is networkd"}))
    assert [(event.kind, event.fields["ROUTE"], event.fields["DEV"]) for event in events] == [
        (EventKind.ROUTES_RESTORED, [str(routes["ib0"])], ("ib0",)),
        (EventKind.ROUTES_REMOVED, [*map(str, routes.values())], ("eth0", "ib0")),
        (EventKind.ROUTES_CONTESTED, [str(routes["ib0"])], ("ib0",)),
        (EventKind.ROUTES_CONTESTED, [*map(str, routes.values())], ("eth0", "ib0")),
    ]
    alone, both = (event.message for event in events[2:])
    assert "hostrouting keeps this route, and restores it in 1 s; it is networkd; to stop" in alone
    assert (
        "keeps these routes, and restores them in 2 s; "
        "the kernel doesn't say which one; it is networkd; to"
    ) in both


@given(st.lists(st.lists(st.sampled_from(["ib9 is missing", "the disk is full"]), unique=True)))
def test_a_problem_and_its_end_are_reported_once(seen: list[list[str]]) -> None:
    before: list[str] = []
    for now in seen:
        events = list(of_problems(before, now))
        assert [event.message for event in events if event.kind is EventKind.PROBLEM] == [
            each for each in now if each not in before
        ]
        assert any(event.kind is EventKind.PROBLEM_OVER for event in events) == bool(
            before and not now
        )
        before = now


@given(st.lists(st.tuples(st.floats(0, 1000), st.integers(0, 3))))
def test_a_backoff_never_shrinks_and_ends_in_time(failures: list[tuple[float, int]]) -> None:
    now, counted = 0.0, defaultdict[int, Failures](Failures)
    for seconds, key in failures:
        now += seconds
        before = counted[key]
        counted[key] = item = before.again(now)
        assert (item.count >= 3) == (item.wait_seconds > 0)
        assert now <= item.due <= now + 300
        if item.count > before.count:
            assert item.wait_seconds >= before.wait_seconds
        assert item.again(now + 10_000).count == 1


def test_a_burst_ends_a_while_after_its_last_attempt_was_due() -> None:
    failures = Failures(20, 0.0)
    assert [failures.again(failures.due + seconds).count for seconds in (899, 901)] == [21, 1]


# --- the whole watcher ----------------------------------------------------------------------------

GATEWAYS = ["10.1.0.1", "10.1.0.254"]
WATCHED_ROUTES = [IPv4Network("172.16.1.0/24"), IPv4Network("172.16.2.0/24")]
CONFIG = Config(
    StaticRoutes(
        True, [StaticRoute(WATCHED_ROUTES[0]), StaticRoute(WATCHED_ROUTES[1], gateway=GATEWAYS[1])]
    ),
    RouteOverlap(["172.16.0.0/22", "192.168.0.0/24"]),
)


def theirs(destination: IPv4Network) -> Route:
    return Route(destination, (NextHop("ib0"),), protocol=Protocol.STATIC)


def put(kernel: FakeKernel, route: Route) -> object:
    return kernel.write(Write.REPLACE, [route])


def take(kernel: FakeKernel, destination: IPv4Network) -> object:
    return kernel.write(
        Write.DELETE,
        [route for route in read_routes(kernel, Table.MAIN) if route.destination == destination],
    )


def set_link(kernel: FakeKernel, dev: str, is_up: bool) -> None:
    kernel.set_link(dev, up=is_up)


def set_address(kernel: FakeKernel, is_there: bool) -> None:
    with suppress(RouteError):
        (kernel.add_address if is_there else kernel.del_address)("ib0", "192.168.0.1/24")


happenings = st.one_of(
    st.builds(lambda gateway: (put, default(gateway)), st.sampled_from(GATEWAYS)),
    st.builds(
        lambda to: (take, to),
        st.sampled_from([DEFAULT_DESTINATION, *WATCHED_ROUTES, *WATCHED_ROUTES]),
    ),
    st.builds(lambda to: (put, theirs(to)), st.sampled_from(WATCHED_ROUTES)),
    st.builds(lambda to: (put, Route(to, (NextHop("ib0"),))), st.sampled_from(WATCHED_ROUTES)),
    st.builds(
        lambda dev, is_up: (set_link, dev, is_up), st.sampled_from(["eth0", "ib0"]), st.booleans()
    ),
    st.builds(lambda is_there: (set_address, is_there), st.booleans()),
)


@settings(max_examples=by_day(4, by_night=1500))
@given(st.lists(st.tuples(st.floats(0, 30), happenings), max_size=12))
def test_any_story_ends_as_configured_with_few_looks(
    story: list[tuple[float, tuple[Any, ...]]],
) -> None:
    now = 1.0
    with tempfile.TemporaryDirectory() as root:
        world = World(Path(root))
        world.config, world.backend = CONFIG, RecordingBackend(world.kernel)
        for seconds, (change, *arguments) in story:
            now += seconds
            world.at(now, partial(change, world.kernel, *arguments))
        world.watch(now + 700)
        report = check_overlap(CONFIG, world.kernel, CancelScope())
        assert (is_ok := world.layout.marker_ok.exists()) == (report.verdict is Verdict.OK)
        assert is_ok or json.loads(world.layout.report.read_text()) | {
            "time": ""
        } == report.to_json() | {"time": ""}
    assert not plan_repair(CONFIG, world.kernel)[0].changes
    assert all(route.is_ours for _, route in world.backend.written)
    assert len(world.of_kind(EventKind.PROBLEM)) <= len(story) + 1
    assert len(world.backend.written) <= 8 * (len(story) + 1)
