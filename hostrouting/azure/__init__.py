"""Two optional plug-ins for Azure nodes. The core doesn't depend on them.

``probe`` lets a node answer the load balancer's IPv6 health probes, and ``vnet`` cleans up after
the azure-vnet CNI. ``config`` defines the plug-ins' config section. ``CHECKS`` has the plug-ins'
doctor checks; to run these, call ``examine(checks=hostrouting.report.CHECKS + CHECKS)``.
"""

from hostrouting.azure.checks import CHECKS
from hostrouting.azure.config import (
    HostNetworking,
    Ipv6Detection,
    LoadBalancerProbe,
    StaleAzureVnet,
)
from hostrouting.azure.nodes import AzureVnetError, LoadBalancerProbeError
from hostrouting.azure.probe.node import ProbeNode
from hostrouting.azure.probe.tasks import (
    ConfigureLoadBalancerProbe,
    ProbeReport,
    RemoveLoadBalancerProbe,
    plan_probe,
)
from hostrouting.azure.vnet.bridge import BridgeNode, Interface, Neighbour, NodeState
from hostrouting.azure.vnet.leftovers import AzureVnetItem, AzureVnetReport
from hostrouting.azure.vnet.tasks import RemoveStaleAzureVnet, plan_stale

# fmt: off
__all__ = [
    "CHECKS",
    "AzureVnetError",
    "AzureVnetItem",
    "AzureVnetReport",
    "BridgeNode",
    "ConfigureLoadBalancerProbe",
    "HostNetworking",
    "Interface",
    "Ipv6Detection",
    "LoadBalancerProbe",
    "LoadBalancerProbeError",
    "Neighbour",
    "NodeState",
    "ProbeNode",
    "ProbeReport",
    "RemoveLoadBalancerProbe",
    "RemoveStaleAzureVnet",
    "StaleAzureVnet",
    "plan_probe",
    "plan_stale",
]
# fmt: on
