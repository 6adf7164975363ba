"""Tests that for any table and config, a run is atomic, idempotent and touches only our routes."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import attrs
import pytest
from azure_fakes import FakeProbeNode
from backends import FailingBackend, RecordingBackend
from file_trees import outside_run, read_trees
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nightly import by_day
from node import build_node
from planning import install_for_boot, plan_boot, wanted_probe

import phases
from hostrouting import (
    Config,
    Configure,
    ConfigureStaticRoutes,
    Host,
    HostRoutingError,
    Layout,
    RemoveHostRouting,
    StaticRoute,
    StaticRoutes,
)
from hostrouting.azure import RemoveLoadBalancerProbe
from hostrouting.azure.probe.ruleset import PROBE
from hostrouting.boot.gate import DROP_INS, list_text
from hostrouting.boot.layout import CHECK, ROUTES, WATCH
from hostrouting.boot.manifest import Manifest
from hostrouting.boot.parts import is_watched
from hostrouting.boot.plan import plan_next_boot
from hostrouting.config.routing import Keep, StaticRule
from hostrouting.kernel.memory import FakeKernel
from hostrouting.kernel.port import Write, read_routes
from hostrouting.model.changes import Change, Changes
from hostrouting.model.routes import (
    SIDE_TABLES,
    NextHop,
    Protocol,
    Route,
    RouteType,
    Scope,
    Table,
)
from hostrouting.model.rules import Rule
from hostrouting.tasks import InstallRoutes
from hostrouting.testing import FakeSystemd

PREFIXES = ["172.16.0.0/16", "172.16.0.0/17", "172.16.128.0/17", "172.16.1.0/24", "172.16.1.9/32",
            "172.16.0.10/32", "10.1.0.0/24", "10.1.0.128/25", "10.96.0.0/12",
            "172.16.255.255/32"]  # fmt: skip
GATEWAYS = [IPv4Address(f"10.{subnet}.0.{host}") for subnet in (1, 2) for host in (1, 9)]

static_routes = st.builds(
    StaticRoute,
    destination=st.sampled_from(PREFIXES),
    gateway=st.sampled_from([None, None, "onlink", *map(str, GATEWAYS), "10.1.0.255"]),
    dev=st.sampled_from([None, None, "eth0", "eth1", "ib0", "none0"]),
    metric=st.sampled_from([0, 0, 5]),
)
configs = st.builds(
    lambda routes: Config(StaticRoutes(True, routes), wait_seconds=0),
    st.lists(static_routes, max_size=4, unique_by=lambda route: (route.destination, route.metric)),
)
hops = st.one_of(
    st.builds(NextHop, st.just("eth0"), st.sampled_from(GATEWAYS[:2])),
    st.builds(NextHop, st.just("eth1"), st.sampled_from(GATEWAYS[2:])),
    st.builds(NextHop, st.sampled_from(["eth0", "eth1", "ib0"])),
)
there = st.builds(
    lambda prefix, hop, type_, **more: Route(
        IPv4Network(prefix), () if type_.is_discard else (hop,), type=type_, **more
    ),
    st.sampled_from([*PREFIXES, "0.0.0.0/0"]),
    hops,
    st.sampled_from([RouteType.UNICAST, RouteType.UNICAST, RouteType.UNICAST, RouteType.BLACKHOLE]),
    protocol=st.sampled_from(
        [Protocol.HOSTROUTING, Protocol.HOSTROUTING, Protocol.DHCP, Protocol.STATIC]
    ),
    metric=st.sampled_from([0, 0, 5, 9]),
    table=st.sampled_from([Table.MAIN, Table.MAIN, Table.MAIN, 100]),
)
tables = st.lists(there, max_size=6)


def node(table: list[Route]) -> FakeKernel:
    kernel = build_node(FakeKernel())
    kernel.write(Write.ADD, table)
    return kernel


def foreign(kernel: FakeKernel) -> list[Route]:
    return [route for route in read_routes(kernel) if not route.is_ours]


# The second task also restores the files, and then the routes once more.
Installer = type[InstallRoutes] | type[ConfigureStaticRoutes]


def install(
    kernel: object, config: Config, root: str, task: Installer = ConfigureStaticRoutes
) -> HostRoutingError | None:
    host = Host(routes=kernel, units=FakeSystemd(), layout=Layout(root))  # type: ignore[arg-type]
    try:
        phases.run(task(config, host=host))
    except HostRoutingError as error:
        return error
    return None


# One of our routes can only be put back after another one.
NEAR = IPv4Network("192.168.5.0/24")
OURS = [
    Route(IPv4Network("172.16.1.0/24"), (NextHop("eth0", GATEWAYS[0]),)),
    Route(NEAR, (NextHop("eth1"),), scope=Scope.LINK),
    Route(IPv4Network("10.96.0.0/12"), (NextHop("eth1", NEAR[1]),)),
]
CHANGED = Config(
    StaticRoutes(True, [StaticRoute("172.16.1.0/24", "10.1.0.9"), StaticRoute("172.16.128.0/17")]),
    wait_seconds=0,
)
LOSING = Config(StaticRoutes(True, [StaticRoute("172.16.0.10/32")]), wait_seconds=0)

refused_calls = st.tuples(st.sampled_from(["add", "replace", "delete"]), st.integers(1, 4))


@pytest.mark.parametrize("task", [InstallRoutes, ConfigureStaticRoutes])
@given(tables, configs, st.none() | refused_calls)
@settings(max_examples=by_day(6, by_night=10_000))
@example(
    [],
    Config(StaticRoutes(True, [StaticRoute("172.16.1.0/24"), StaticRoute("10.96.0.0/12")])),
    ("add", 2),
)
@example([], LOSING, ("delete", 1))
@example(OURS, LOSING, None)
@example(OURS, CHANGED, ("delete", 1))
def test_any_run_is_all_or_nothing(
    task: Installer, table: list[Route], config: Config, refused: tuple[str, int] | None
) -> None:
    kernel = node(table)
    before, others = read_routes(kernel), foreign(kernel)
    backend = (
        FailingBackend(kernel, {refused[0]: {refused[1]: errno.ENOMEM}}) if refused else kernel
    )
    with tempfile.TemporaryDirectory() as root:
        error = install(backend, config, root, task)
        if error is None:
            after = read_routes(kernel)
            again = RecordingBackend(kernel)
            assert install(again, config, root, task) is None
            assert again.written == []
            assert read_routes(kernel) == after
        # The refused call may also break the rollback of a route that doesn't win. The error then
        # says so.
        elif not any("while putting things back" in note for note in error.__notes__):
            assert sorted(map(str, read_routes(kernel))) == sorted(map(str, before))
        assert foreign(kernel) == others
        phases.run(
            RemoveHostRouting(host=Host(routes=kernel, units=FakeSystemd(), layout=Layout(root)))
        )
        assert list(read_routes(kernel)) == others


# --- rules and side tables ------------------------------------------------------------------------


T = SIDE_TABLES[0]
static_rules = st.builds(
    StaticRule,
    to=st.sampled_from([*PREFIXES, "10.244.0.0/16"]),
    priority=st.sampled_from([100, 2000, 2173, 5269, 5269]),
)
kept = st.builds(
    Keep,
    dev=st.sampled_from(["ib0", "ib*", "eth1", "eth*", "*", "none0"]),
    gateway=st.sampled_from([None, None, "onlink", "10.2.0.1", "192.0.2.1"]),
)
policies = st.builds(
    lambda given, rules, keep: attrs.evolve(
        given, static_routes=StaticRoutes(True, given.static_routes.routes, rules, keep)
    ),
    configs,
    st.lists(static_rules, max_size=3, unique_by=lambda rule: rule.to),
    st.lists(kept, max_size=2),
)
ends = st.sampled_from(
    [None, *map(IPv4Network, ["172.16.0.10/32", "10.2.0.4/32", "10.244.0.0/16", "172.16.0.0/16"])]
)
rules_there = st.builds(
    Rule,
    preference=st.sampled_from([100, 2170, 2170, 2171, 2172, 5269, 32000]),
    table=st.sampled_from([T, T, T + 1, 100, Table.MAIN, Table.LOCAL]),
    source=ends,
    destination=ends,
    suppress_prefix_length=st.sampled_from([None, None, 0]),
    protocol=st.sampled_from([Protocol.HOSTROUTING, Protocol.HOSTROUTING, Protocol.STATIC]),
)
side_there = st.builds(
    lambda route, table, protocol: attrs.evolve(route, table=table, protocol=protocol),
    there,
    st.sampled_from([T, T, T + 1, T + 2]),
    st.sampled_from(
        [Protocol.HOSTROUTING, Protocol.HOSTROUTING, Protocol.HOSTROUTING, Protocol.STATIC]
    ),
)
states = st.tuples(
    st.lists(there, max_size=3),
    st.lists(side_there, max_size=4),
    st.lists(rules_there, max_size=4),
)


def of_others(kernel: FakeKernel) -> tuple[list[Route], list[Rule]]:
    routes = [route for route in foreign(kernel) if not route.is_in_side_table]
    return routes, [rule for rule in kernel.facts().rules if not rule.is_ours]


def in_order(kernel: FakeKernel) -> tuple[list[str], list[str]]:
    """Return routes and rules, sorted: what is put back comes after what stayed."""
    rules = [f"{rule.preference:5} {rule} {rule.protocol}" for rule in kernel.facts().rules]
    return sorted(map(str, read_routes(kernel))), sorted(rules)


refused_writes = st.tuples(
    st.sampled_from(["add", "replace", "delete", "add rule", "delete rule"]), st.integers(1, 4)
)


@given(states, policies, st.none() | refused_writes)
@settings(max_examples=by_day(30, by_night=20_000))
def test_any_run_with_rules_is_all_or_nothing(
    state: tuple[list[Route], list[Route], list[Rule]],
    config: Config,
    refused: tuple[str, int] | None,
) -> None:
    main, side, rules = state
    kernel = node([*main, *side])
    kernel.write_rules(Write.ADD, rules)
    before, others = in_order(kernel), of_others(kernel)
    fail = {refused[0]: {refused[1]: errno.ENOMEM}} if refused else {}
    backend = FailingBackend(kernel, fail)
    with tempfile.TemporaryDirectory() as root:
        error = install(backend, config, root, InstallRoutes)
        if error is None:
            after = in_order(kernel)
            again = RecordingBackend(kernel)
            assert install(again, config, root, InstallRoutes) is None
            assert again.written == []
            assert again.written_rules == []
            assert in_order(kernel) == after
        elif not any("while putting things back" in note for note in error.__notes__):
            assert in_order(kernel) == before
        assert of_others(kernel) == others
        phases.run(
            RemoveHostRouting(host=Host(routes=kernel, units=FakeSystemd(), layout=Layout(root)))
        )
        assert of_others(kernel) == others
        assert (list(read_routes(kernel)), list(kernel.facts().rules)) == others


# --- the parts of the core and of a plug-in -------------------------------------------------------


@attrs.frozen
class Probe:
    """A request to install the load balancer probe, or to remove it if the device is None."""

    device: str | None
    consumer: str


consumers = st.sampled_from(["systemd-nspawn@.service", "kubelet.service"])


def asked_config(
    has_routes: bool = False,
    has_check: bool = False,
    watch: Mapping[str, object] | None = None,
    consumer: str = "systemd-nspawn@.service",
) -> Config:
    return Config(
        StaticRoutes(has_routes, [StaticRoute("172.16.1.0/24")] * has_routes),
        {"expectedCidrs": ["10.96.0.0/12"] * has_check},
        wait_seconds=0,
        consumer=consumer,
        watch=watch or {},
    )


watches = st.sampled_from([{}, {"enabled": True}, {"enabled": True, "textfile": "/var/lib/x.prom"}])
asked_of_routing = st.builds(asked_config, st.booleans(), st.booleans(), watches, consumers)
BOTH = asked_config(has_routes=True, has_check=True)
ROUTES_ALONE, CHECK_ALONE = asked_config(has_routes=True), asked_config(has_check=True)
WATCHED = attrs.evolve(BOTH, watch={"enabled": True, "textfile": "/var/lib/x.prom"})
NOTHING = asked_config()
asked_of_probe = st.builds(Probe, st.sampled_from([None, "eth0", "azure0"]), consumers)


@given(st.lists(st.one_of(asked_of_routing, asked_of_probe), min_size=1, max_size=5))
@settings(max_examples=by_day(5, by_night=2500))
@example([BOTH, attrs.evolve(BOTH, consumer="kubelet.service"), NOTHING])
@example([ROUTES_ALONE, CHECK_ALONE, ROUTES_ALONE])
@example(
    [WATCHED, attrs.evolve(WATCHED, watch={"enabled": True, "textfile": "/var/lib/y.prom"}), BOTH]
)
def test_each_run_does_what_is_planned_and_removal_leaves_nothing(
    story: list[Config | Probe],
) -> None:
    with tempfile.TemporaryDirectory() as root:
        layout = Layout(root)
        layout.units.mkdir(parents=True)
        layout.of("/var/lib").mkdir(parents=True)
        units = FakeSystemd(layout)
        host = Host(routes=node([]), units=units, layout=layout)
        first, parts, consumer = outside_run(layout.root), dict[str, bool](), ""
        for asked in story:
            before, enabled, active, restarts = (
                contents(layout),
                {*units.enabled},
                {*units.active},
                len(units.restarts),
            )
            planned = planned_boot(host, asked)
            assert contents(layout) == before
            told = carry_out(host, asked)
            assert not planned_boot(host, asked)
            became = actions(before, contents(layout), {*layout.markers})
            assert {layout.of(str(path)): action for path, action, *_ in planned.files} == became
            of_files = {layout.of(str(path)): action for path, action, *_ in told.files}
            # A task may remove a file that the next task recreates unchanged.
            assert {action for path, action in of_files.items() if path not in became} <= {
                "replaced"
            }
            assert {path: action for path, action in of_files.items() if path in became} == became
            assert sorted(told.units) == sorted(planned.units)
            assert {*told.units} == {
                *(Change(unit, "enabled") for unit in units.enabled - enabled),
                *(Change(unit, "disabled") for unit in enabled - units.enabled),
                *(Change(unit, "restarted") for unit in units.restarts[restarts:]),
                *(Change(unit, "stopped") for unit in active - units.active),
            }
            consumer = update(parts, asked) or consumer
            manifest = Manifest.load(layout)
            assert {name: part.is_blocking for name, part in manifest.parts.items()} == parts
            there = {
                Path(name)
                for name, (kind, *_) in outside_run(layout.root).items()
                if kind != "folder"
            }
            assert there - {manifest.textfile(layout)} == (
                {layout.manifest, *manifest.files(layout)} if parts else set()
            )
            if manifest.has_gate:
                assert manifest.consumer == consumer
                assert layout.gates(consumer)[-1].read_text() == DROP_INS[-1]
                scripts = {
                    name: layout.script(name).read_bytes()
                    for name in parts
                    if name in (ROUTES, CHECK)
                }
                assert layout.gate_list.read_text() == list_text(manifest, scripts)
            if isinstance(asked, Config) and is_watched(asked) and asked.watch.textfile is not None:
                layout.of(asked.watch.textfile).touch()  # the watcher creates this file
        phases.run(RemoveLoadBalancerProbe(host=host, node=FakeProbeNode()))
        phases.run(RemoveHostRouting(host=host))
        assert outside_run(layout.root) == first


def contents(layout: Layout) -> dict[Path, object]:
    """Return content and mode of each file, without locks and symlinks of enabled units."""
    found = read_trees(layout.root, leaving_out=(layout.lock, layout.run_lock))
    return {Path(name): entry for name, entry in found.items() if entry[0] == "file"}


def actions(
    before: dict[Path, object], after: dict[Path, object], found: set[Path]
) -> dict[Path, str]:
    """Return how each file changed; for the check's markers, return only removals."""
    became = dict.fromkeys(before.keys() - after.keys(), "removed")
    became |= dict.fromkeys(after.keys() - before.keys() - found, "added")
    return became | {
        path: "replaced"
        for path in before.keys() & after.keys() - found
        if before[path] != after[path]
    }


def planned_boot(host: Host, asked: Config | Probe) -> Changes:
    if isinstance(asked, Config):
        return plan_boot(asked, host)
    return plan_next_boot(host, wanted_probe(asked.device, asked.consumer, host.layout)).changes


def carry_out(host: Host, asked: Config | Probe) -> Changes:
    if isinstance(asked, Config):
        return phases.run(Configure(asked, host=host)).changes
    return install_for_boot(host, wanted_probe(asked.device, asked.consumer, host.layout))


def update(parts: dict[str, bool], asked: Config | Probe) -> str:
    """Update the dict of installed parts, and return the consumer, or an empty string."""
    if isinstance(asked, Probe):
        parts.pop(PROBE, None)
        parts |= {} if asked.device is None else {PROBE: False}
        return ""
    wanted = {
        ROUTES: bool(asked.static_routes.routes),
        CHECK: bool(asked.route_overlap.expected_cidrs),
    }
    wanted[WATCH] = asked.watch.enabled and any(wanted.values())
    for name, is_wanted in wanted.items():
        parts.pop(name, None)
        parts |= {name: name == ROUTES} if is_wanted else {}
    return asked.consumer if any(wanted.values()) else ""
