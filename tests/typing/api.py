"""User code that type checkers must accept, with the documented result types. It never runs."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

from typing_extensions import assert_type

import hostrouting
import phases
from hostrouting import (
    CheckRouteOverlap,
    Config,
    ConfigureStaticRoutes,
    OverlapReport,
    RoutesReport,
    azure,
)
from hostrouting.azure.probe.node import LinuxProbeNode
from hostrouting.azure.vnet.linux import LinuxBridgeNode
from hostrouting.backend import ForwardingBackend, NetlinkBackend, RouteBackend, UnitManager
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.port import Kernel
from hostrouting.report import (
    CHECKS,
    Changes,
    ChangesObserver,
    DiffReport,
    DoctorReport,
    Explanation,
    Finding,
    FleetReport,
    Plan,
    changes_of,
)
from hostrouting.testing import FakeKernel, FakeSystemd
from phases.testing import RecordingObserver

config = Config(
    static_routes=hostrouting.StaticRoutes(
        True, [hostrouting.StaticRoute("172.16.1.0/24", "10.1.0.1", "eth0", metric=5)]
    ),
    route_overlap=hostrouting.RouteOverlap(
        ["172.16.0.0/16", IPv4Network("10.0.0.0/8")], "strict", allowed_devs=["wg*"]
    ),
)
hostrouting.StaticRoute(IPv4Network("10.0.0.0/8"), gateway=IPv4Address("10.1.0.1"))
hostrouting.StaticRoute("10.0.0.0/8", "onlink", dev=None)
hostrouting.RouteOverlap((), hostrouting.OverlapMode.WARN)
Config(static_routes={"enabled": False}, route_overlap=None)  # type: ignore[arg-type]  # ty: ignore[invalid-argument-type]

routes: RouteBackend = FakeKernel()
real: RouteBackend = NetlinkBackend()
wrapper: RouteBackend = ForwardingBackend(real)
kernel: Kernel = FakeKernel()
namespace: Kernel = NamespaceKernel()
units: UnitManager = FakeSystemd()
probe_node: azure.ProbeNode = LinuxProbeNode()
bridge_node: azure.BridgeNode = LinuxBridgeNode()
host = hostrouting.Host(routes=routes, units=units, layout=hostrouting.Layout("/tmp/x"))

networking = azure.HostNetworking(
    azure.LoadBalancerProbe(True, ["eth0"], "metadata"),
    azure.StaleAzureVnet(["10.241.0.0/16"], keep=["10.241.0.9"]),
)
azure.HostNetworking(stale_azure_vnet={"cidrs": ["fd00:1::/64"]}, consumer="kubelet.service")
assert_type(
    phases.run(azure.ConfigureLoadBalancerProbe(networking, host=host, node=probe_node)),
    azure.ProbeReport,
)
assert_type(
    phases.run(azure.RemoveLoadBalancerProbe(host=host, node=LinuxProbeNode())), azure.ProbeReport
)
assert_type(
    phases.run(azure.RemoveStaleAzureVnet(networking, host=host, node=bridge_node)),
    azure.AzureVnetReport,
)
azure.RemoveStaleAzureVnet(networking, node=LinuxBridgeNode())

assert_type(phases.run(ConfigureStaticRoutes(config, host=host)), RoutesReport)
assert_type(phases.run(CheckRouteOverlap(config)), OverlapReport)
assert_type(phases.run(hostrouting.Configure(config)), hostrouting.ConfigureReport)
assert_type(phases.run(hostrouting.RemoveHostRouting(host=host)), RoutesReport)
assert_type(phases.run(CheckRouteOverlap(config)).findings, tuple[Finding, ...])

taken = hostrouting.snapshot(host=host)
assert_type(taken, hostrouting.Snapshot)
assert_type(hostrouting.Snapshot.load("node.json"), hostrouting.Snapshot)
recorded = hostrouting.Host.recorded(taken)
assert_type(recorded, hostrouting.Host)
assert_type(hostrouting.check(config, host=recorded, scope=phases.CancelScope()), OverlapReport)
assert_type(hostrouting.check(config).verdict, hostrouting.Verdict)
assert_type(hostrouting.plan(config, host=recorded), Plan)
assert_type(hostrouting.plan(config).changes, Changes)
assert_type(hostrouting.explain("172.16.1.9"), Explanation)
assert_type(hostrouting.explain(IPv4Address("172.16.1.9"), config, host=recorded), Explanation)
assert_type(hostrouting.diff(taken, taken, config), DiffReport)
assert_type(hostrouting.judge([taken, "node.json"], config), FleetReport)
assert_type(hostrouting.examine(), DoctorReport)
assert_type(hostrouting.examine(config, host=host, checks=CHECKS + azure.CHECKS), DoctorReport)
hostrouting.check(config.to_mapping())  # type: ignore[arg-type]  # ty: ignore[invalid-argument-type]


@phases.task("own-task")
def own_task(scope: phases.CancelScope) -> int:
    scope.check()
    return 3


assert_type(phases.run(own_task), int)
assert_type(phases.run(phases.Serial(own_task, own_task)), tuple[int, int])
assert_type(
    phases.run(phases.Serial(ConfigureStaticRoutes(config), CheckRouteOverlap(config))),
    tuple[RoutesReport, OverlapReport],
)
assert_type(phases.run(phases.Parallel(*[own_task, own_task]))[0], int)
five = (own_task, ConfigureStaticRoutes(config), own_task, CheckRouteOverlap(config), own_task)
assert_type(
    phases.run(phases.Serial(*five)),
    tuple[int, RoutesReport, int, OverlapReport, int],
)
assert_type(
    phases.run(phases.Parallel(*five, own_task, ConfigureStaticRoutes(config), own_task)),
    tuple[int, RoutesReport, int, OverlapReport, int, int, RoutesReport, int],
)
assert_type(
    phases.run(
        phases.Serial(
            phases.Parallel(ConfigureStaticRoutes(config), own_task), CheckRouteOverlap(config)
        )
    ),
    tuple[tuple[RoutesReport, int], OverlapReport],
)
assert_type(phases.run(phases.Timeout(3, own_task)), int)
changes = ChangesObserver()
assert_type(phases.run(own_task, observers=[changes, RecordingObserver()]), int)
assert_type(changes_of(phases.run(hostrouting.Configure(config)), None), Changes)
phases.run(own_task, observers=changes)  # type: ignore[arg-type]  # ty: ignore[invalid-argument-type]
phases.run(own_task, observers=[print])  # type: ignore[list-item]  # ty: ignore[invalid-argument-type]


with phases.all_or_nothing() as undo:
    undo.push(lambda: phases.CancelScope().shield().run(["true"]))
    undo.push(None)  # type: ignore[arg-type]  # ty: ignore[invalid-argument-type]
phases.Timeout(own_task, 3)  # type: ignore[arg-type]  # ty: ignore[invalid-argument-type]
phases.run(own_task, scope=5)  # type: ignore[arg-type]  # ty: ignore[invalid-argument-type]
phases.run(own_task, logger="x")  # type: ignore[arg-type]  # ty: ignore[invalid-argument-type]


async def from_asyncio() -> None:
    assert_type(await phases.run_async(ConfigureStaticRoutes(config)), RoutesReport)
    assert_type(await phases.run_async(own_task, scope=phases.CancelScope()), int)
    assert_type(
        await phases.run_async(phases.Serial(own_task, ConfigureStaticRoutes(config))),
        tuple[int, RoutesReport],
    )
    assert_type(await phases.call_async(hostrouting.check, config, host=host), OverlapReport)
    assert_type(await phases.call_async(hostrouting.plan, config), Plan)
    assert_type(
        await phases.call_async(hostrouting.explain, "172.16.1.9", scope=phases.CancelScope()),
        Explanation,
    )
    assert_type(await phases.call_async(hostrouting.snapshot, host=host), hostrouting.Snapshot)
    assert_type(await phases.call_async(hostrouting.judge, ["node.json"], config), FleetReport)
    assert_type(await phases.call_async(hostrouting.examine, config), DoctorReport)
    assert_type(await phases.call_async(hostrouting.diff, taken, taken, config), DiffReport)
    await phases.call_async(hostrouting.check, "config")  # type: ignore[arg-type]  # ty: ignore[invalid-argument-type]
    await phases.call_async(hostrouting.check, config, hosts=host)  # type: ignore[call-arg]  # ty: ignore[unknown-argument]
    await phases.call_async(hostrouting.check(config))  # type: ignore[arg-type]  # ty: ignore[invalid-argument-type]
