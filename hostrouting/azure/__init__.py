"""Two plug-ins of hostrouting for Azure's nodes, which the core doesn't depend on.

``probe`` lets a node answer the load balancer's IPv6 health probes, and ``vnet`` cleans up what the CNI azure-vnet has
left of pods. ``config`` has their section of the config. ``CHECKS`` has their checks for the doctor; to add them, call
``examine(checks=hostrouting.report.CHECKS + CHECKS)``.
"""

from hostrouting.azure.checks import CHECKS
from hostrouting.azure.config import HostNetworking, Ipv6Detection, LoadBalancerProbe, StaleAzureVnet
from hostrouting.azure.nodes import AzureVnetError, LoadBalancerProbeError
from hostrouting.azure.probe.port import ProbeNode
from hostrouting.azure.probe.tasks import ConfigureLoadBalancerProbe, ProbeReport, RemoveLoadBalancerProbe
from hostrouting.azure.vnet.plan import AzureVnetReport
from hostrouting.azure.vnet.port import BridgeNode, Interface, Neighbour, NodeState
from hostrouting.azure.vnet.tasks import RemoveStaleAzureVnet

# fmt: off
__all__ = [
    "CHECKS",
    "AzureVnetError",
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
]
# fmt: on
