"""What users may import is written down here; a change of it is a change of the contract."""

from __future__ import annotations

import hostrouting
import hostrouting.testing
import phases
import phases.testing

PHASES = {
    "CancelScope", "Cancelled", "Clock", "Observer", "Parallel", "ParallelError", "Serial", "Status", "Task",
    "TimedOut", "Timeout", "describe", "run", "run_child", "task",
}  # fmt: skip
HOSTROUTING = {
    "AzureVnetError", "AzureVnetReport", "BridgeNode", "CheckRouteOverlap", "Config", "ConfigError",
    "Configure", "ConfigureLoadBalancerProbe", "ConfigureStaticRoutes", "Finding", "Host", "HostNetworking",
    "HostRoutingError", "Ipv6Detection", "Layout", "LoadBalancerProbe", "LoadBalancerProbeError",
    "NetlinkBackend", "Note", "OverlapMode", "OverlapReport", "ProbeNode", "ProbeReport", "RemoveHostRouting",
    "RemoveLoadBalancerProbe", "RemoveStaleAzureVnet", "RouteBackend", "RouteError", "RouteOverlap",
    "RouteOverlapError", "RoutesReport", "StaleAzureVnet", "StaticRoute", "StaticRoutes", "Systemctl",
    "UnitError", "UnitManager", "__version__",
}  # fmt: skip


def test_phases_offers_exactly_this() -> None:
    assert set(phases.__all__) == PHASES


def test_hostrouting_offers_exactly_this() -> None:
    assert set(hostrouting.__all__) == HOSTROUTING


def test_every_offered_name_is_there_and_listed() -> None:
    for name in hostrouting.__all__:
        assert getattr(hostrouting, name) is not None
        assert name in dir(hostrouting)
    for name in phases.__all__:
        assert getattr(phases, name) is not None


def test_a_name_that_is_not_offered_is_an_attribute_error() -> None:
    assert not hasattr(hostrouting, "FakeKernel")


def test_the_fakes_are_offered_without_hypothesis_and_netlink() -> None:
    assert {"FakeBridgeNode", "FakeKernel", "FakeProbeNode", "FakeSystemd"} <= set(hostrouting.testing.__all__)
