"""Whatever the table and the config: all or nothing, nobody else's, and twice is once."""

from __future__ import annotations

import errno
import tempfile
from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING

import attrs
from backends import FailingBackend, RecordingBackend
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nightly import by_day

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
from hostrouting.azure.probe.part import probe_part
from hostrouting.azure.probe.ruleset import PROBE
from hostrouting.boot.files import Run
from hostrouting.boot.gate import DROP_IN, list_text
from hostrouting.boot.installation import install_part, remove_parts
from hostrouting.boot.manifest import CHECK, ROUTES, WATCH, Manifest
from hostrouting.boot.parts import plan_boot, plan_part
from hostrouting.kernel.memory import FakeKernel
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route, RouteType, Table
from hostrouting.testing import FakeProbeNode, FakeSystemd
from phases import all_or_nothing

if TYPE_CHECKING:
    from pathlib import Path

PREFIXES = ["172.16.0.0/16", "172.16.0.0/17", "172.16.128.0/17", "172.16.1.0/24", "172.16.1.9/32", "172.16.0.10/32",
            "10.1.0.0/24", "10.1.0.128/25", "10.96.0.0/12", "172.16.255.255/32"]  # fmt: skip
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
    protocol=st.sampled_from([Protocol.HOSTROUTING, Protocol.HOSTROUTING, Protocol.DHCP, Protocol.STATIC]),
    metric=st.sampled_from([0, 0, 5, 9]),
    table=st.sampled_from([Table.MAIN, Table.MAIN, Table.MAIN, 100]),
)
tables = st.lists(there, max_size=6)


def node(table: list[Route]) -> FakeKernel:
    kernel = FakeKernel()
    for dev, address in (("eth0", "10.1.0.4/24"), ("eth1", "10.2.0.4/24"), ("ib0", "172.16.0.10/16")):
        kernel.add_link(dev)
        kernel.add_address(dev, address)
    default = Route(DEFAULT_DESTINATION, (NextHop("eth0", GATEWAYS[0]),), protocol=Protocol.DHCP, metric=100)
    kernel.add([default, *table])
    return kernel


def foreign(kernel: FakeKernel) -> list[Route]:
    return [route for route in kernel.routes() if not route.is_ours]


def configure(kernel: object, config: Config, root: str) -> bool:
    host = Host(routes=kernel, units=FakeSystemd(), layout=Layout(root))  # type: ignore[arg-type]
    try:
        phases.run(ConfigureStaticRoutes(config, host=host))
    except HostRoutingError:
        return False
    return True


@given(tables, configs)
def test_it_is_all_or_nothing_and_twice_is_once_and_removal_takes_all_of_ours(
    table: list[Route], config: Config
) -> None:
    kernel = node(table)
    before, others = kernel.routes(), foreign(kernel)
    with tempfile.TemporaryDirectory() as root:
        if configure(kernel, config, root):
            after = kernel.routes()
            again = RecordingBackend(kernel)
            assert configure(again, config, root)
            assert again.written == []
            assert kernel.routes() == after
        else:
            assert sorted(map(str, kernel.routes())) == sorted(map(str, before))
        assert foreign(kernel) == others
        phases.run(RemoveHostRouting(host=Host(routes=kernel, units=FakeSystemd(), layout=Layout(root))))
        assert list(kernel.routes()) == others


@given(tables, configs, st.sampled_from(["add", "replace", "delete"]), st.integers(1, 4))
@example([], Config(StaticRoutes(True, [StaticRoute("172.16.1.0/24"), StaticRoute("10.96.0.0/12")])), "add", 2)
@example([], Config(StaticRoutes(True, [StaticRoute("172.16.0.10/32")]), wait_seconds=0), "delete", 1)
def test_a_refusal_anywhere_puts_everything_back_or_says_what_it_could_not(
    table: list[Route], config: Config, call: str, number: int
) -> None:
    kernel = node(table)
    before = kernel.routes()
    with tempfile.TemporaryDirectory() as root:
        host = Host(
            routes=FailingBackend(kernel, {call: {number: errno.ENOMEM}}), units=FakeSystemd(), layout=Layout(root)
        )
        try:
            phases.run(ConfigureStaticRoutes(config, host=host))
        except HostRoutingError as error:
            # The refusal may hit the way back itself, of a route that doesn't win; then the error says so.
            if not any("while putting things back" in note for note in error.__notes__):
                assert sorted(map(str, kernel.routes())) == sorted(map(str, before))


@given(configs)
def test_a_config_reads_back_as_itself(config: Config) -> None:
    assert Config.from_mapping(config.to_mapping()) == config


# --- the parts of two rooms in one gate ----------------------------------------------------------------------------


@attrs.frozen
class Probe:
    """What is asked for of the load balancer's probe; no device: that it goes."""

    device: str | None
    required: bool
    consumer: str


consumers = st.sampled_from(["systemd-nspawn@.service", "kubelet.service"])
asked_of_routing = st.builds(
    lambda has_routes, has_check, is_watched, consumer: Config(
        StaticRoutes(has_routes, [StaticRoute("172.16.1.0/24")] * has_routes),
        {"expectedCidrs": ["10.96.0.0/12"] * has_check},
        wait_seconds=0,
        consumer=consumer,
        watch={"enabled": is_watched},
    ),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    consumers,
)
asked_of_probe = st.builds(Probe, st.sampled_from([None, "eth0", "azure0"]), st.booleans(), consumers)


@given(st.lists(st.one_of(asked_of_routing, asked_of_probe), min_size=1, max_size=5))
@settings(max_examples=by_day(6, by_night=2500))
def test_whatever_each_room_asks_for_the_gate_is_that_of_all_and_removal_leaves_nothing(
    story: list[Config | Probe],
) -> None:
    with tempfile.TemporaryDirectory() as root:
        layout = Layout(root)
        layout.units.mkdir(parents=True)
        host = Host(routes=node([]), units=FakeSystemd(layout), layout=layout)
        before = all_below(layout)
        parts: dict[str, bool] = {}
        consumer = ""
        for asked in story:
            consumer = ask(host, asked, parts) or consumer
            manifest = Manifest.load(layout)
            assert {name: part.is_blocking for name, part in manifest.parts.items()} == parts
            assert is_planned_empty(host, asked)
            files = {path for path in all_below(layout) - before if not path.is_dir()}
            assert files == ({layout.manifest, *manifest.files(layout)} if parts else set())
            if manifest.has_gate:
                assert manifest.consumer == consumer
                assert layout.gate(consumer).read_text() == DROP_IN
                assert layout.gate_list.read_text() == list_text(manifest)
        phases.run(RemoveLoadBalancerProbe(host=host, node=FakeProbeNode()))
        phases.run(RemoveHostRouting(host=host))
        assert all_below(layout) == before


def ask(host: Host, asked: Config | Probe, parts: dict[str, bool]) -> str:
    """Have it done; what is installed then; the consumer, if it is named anew."""
    if isinstance(asked, Config):
        phases.run(Configure(asked, host=host))
        wanted = {
            ROUTES: bool(asked.static_routes.routes),
            CHECK: bool(asked.route_overlap.expected_cidrs),
        }
        wanted[WATCH] = asked.watch.enabled and any(wanted.values())
        for name, is_wanted in wanted.items():
            parts.pop(name, None)
            if is_wanted:
                parts[name] = name == ROUTES
        return asked.consumer if any(wanted.values()) else ""
    parts.pop(PROBE, None)
    if asked.device is None:
        remove_parts(host, phases.CancelScope(), Run(), PROBE)
        return ""
    with all_or_nothing(phases.CancelScope()) as undo:
        part = probe_part(asked.device, host.layout, required=asked.required)
        install_part(host, asked.consumer, part, undo)
    parts[PROBE] = asked.required
    return asked.consumer


def is_planned_empty(host: Host, asked: Config | Probe) -> bool:
    if isinstance(asked, Config):
        return plan_boot(asked, host).is_empty
    part = None if asked.device is None else probe_part(asked.device, host.layout, required=asked.required)
    return plan_part(host, asked.consumer, part, PROBE).is_empty


def all_below(layout: Layout) -> set[Path]:
    return {path for path in layout.root.rglob("*") if layout.run_dir.parent not in (path, *path.parents)}
