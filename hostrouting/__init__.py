"""Phase tasks that give a node's traffic the right interface, and prove it.

This module *is* the API; everything else may move. The layers, each importing only those above it (a test holds it,
docs/design.md names every module):

    errors, netaddr, model                          values
    config, layout, the ports (backends, systemd)   what is asked, where, of whom
    resolve, plan, coverage, overlap, remedy...     pure: what the tables say, what is wrong, what has to change
    backends/*, systemd/*, files, host              adapters: the kernel, systemd, the file system
    install, verify, wait, check, repair            the host is changed and asked
    tasks, foresee, report, doctor                  what a bootstrap program runs
    watch, cli, demo, testing                       fronts

Two neighbours of host routing have rooms of their own, on the same floors: ``lb_probe`` (health probes of Azure's load
balancer) and ``azure_vnet`` (what that CNI leaves behind); ``networking`` is their config.

Names are looked up when they are first used (PEP 562): naming a config class loads no netlink.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hostrouting.azure.config import HostNetworking, Ipv6Detection, LoadBalancerProbe, StaleAzureVnet
    from hostrouting.azure.probe.plan import ProbeReport
    from hostrouting.azure.probe.port import ProbeNode
    from hostrouting.azure.probe.tasks import ConfigureLoadBalancerProbe, RemoveLoadBalancerProbe
    from hostrouting.azure.vnet.plan import AzureVnetReport
    from hostrouting.azure.vnet.port import BridgeNode
    from hostrouting.azure.vnet.tasks import RemoveStaleAzureVnet
    from hostrouting.boot.host import Host
    from hostrouting.boot.layout import Layout
    from hostrouting.boot.systemctl import Systemctl
    from hostrouting.boot.systemd import UnitManager
    from hostrouting.config.routing import Config, OverlapMode, RouteOverlap, StaticRoute, StaticRoutes
    from hostrouting.kernel.netlink import NetlinkBackend
    from hostrouting.kernel.port import RouteBackend
    from hostrouting.model.errors import (
        AzureVnetError,
        ConfigError,
        HostRoutingError,
        LoadBalancerProbeError,
        RouteError,
        RouteOverlapError,
        UnitError,
    )
    from hostrouting.overlap.findings import Finding, Note, OverlapReport
    from hostrouting.routes.plan import RoutesReport
    from hostrouting.tasks.configure import CheckRouteOverlap, Configure, ConfigureStaticRoutes, RemoveHostRouting

__all__ = [
    "AzureVnetError",
    "AzureVnetReport",
    "BridgeNode",
    "CheckRouteOverlap",
    "Config",
    "ConfigError",
    "Configure",
    "ConfigureLoadBalancerProbe",
    "ConfigureStaticRoutes",
    "Finding",
    "Host",
    "HostNetworking",
    "HostRoutingError",
    "Ipv6Detection",
    "Layout",
    "LoadBalancerProbe",
    "LoadBalancerProbeError",
    "NetlinkBackend",
    "Note",
    "OverlapMode",
    "OverlapReport",
    "ProbeNode",
    "ProbeReport",
    "RemoveHostRouting",
    "RemoveLoadBalancerProbe",
    "RemoveStaleAzureVnet",
    "RouteBackend",
    "RouteError",
    "RouteOverlap",
    "RouteOverlapError",
    "RoutesReport",
    "StaleAzureVnet",
    "StaticRoute",
    "StaticRoutes",
    "Systemctl",
    "UnitError",
    "UnitManager",
    "__version__",
]

__version__ = "0.1.0"

_HOMES = {
    "azure.vnet.port": ("BridgeNode",),
    "azure.vnet.plan": ("AzureVnetReport",),
    "azure.vnet.tasks": ("RemoveStaleAzureVnet",),
    "kernel.port": ("RouteBackend",),
    "kernel.netlink": ("NetlinkBackend",),
    "config.routing": ("Config", "OverlapMode", "RouteOverlap", "StaticRoute", "StaticRoutes"),
    "model.errors": (
        *("AzureVnetError", "ConfigError", "HostRoutingError", "LoadBalancerProbeError"),
        *("RouteError", "RouteOverlapError", "UnitError"),
    ),
    "boot.host": ("Host",),
    "boot.layout": ("Layout",),
    "azure.probe.port": ("ProbeNode",),
    "azure.probe.plan": ("ProbeReport",),
    "azure.probe.tasks": ("ConfigureLoadBalancerProbe", "RemoveLoadBalancerProbe"),
    "azure.config": ("HostNetworking", "Ipv6Detection", "LoadBalancerProbe", "StaleAzureVnet"),
    "overlap.findings": ("Finding", "Note", "OverlapReport"),
    "routes.plan": ("RoutesReport",),
    "boot.systemd": ("UnitManager",),
    "boot.systemctl": ("Systemctl",),
    "tasks.configure": ("CheckRouteOverlap", "Configure", "ConfigureStaticRoutes", "RemoveHostRouting"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    try:
        home = _HOME_OF[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
