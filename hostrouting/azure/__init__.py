"""Two neighbours of host routing on Azure's nodes; nothing of host routing knows them.

``probe`` lets a node answer the IPv6 health probes of the load balancer, ``vnet`` cleans up what the CNI azure-vnet
has left of pods. ``config`` is their section of the config, ``examinations`` what they add to the doctor.
"""

from typing import TYPE_CHECKING

from hostrouting._lazy import lazily

if TYPE_CHECKING:
    from hostrouting.azure.config import HostNetworking as HostNetworking
    from hostrouting.azure.config import Ipv6Detection as Ipv6Detection
    from hostrouting.azure.config import LoadBalancerProbe as LoadBalancerProbe
    from hostrouting.azure.config import StaleAzureVnet as StaleAzureVnet
    from hostrouting.azure.nodes import AzureVnetError as AzureVnetError
    from hostrouting.azure.nodes import LoadBalancerProbeError as LoadBalancerProbeError
    from hostrouting.azure.probe.linux import LinuxProbeNode as LinuxProbeNode
    from hostrouting.azure.probe.plan import ProbeReport as ProbeReport
    from hostrouting.azure.probe.port import NodeAddress as NodeAddress
    from hostrouting.azure.probe.port import Pin as Pin
    from hostrouting.azure.probe.port import ProbeNode as ProbeNode
    from hostrouting.azure.probe.tasks import ConfigureLoadBalancerProbe as ConfigureLoadBalancerProbe
    from hostrouting.azure.probe.tasks import RemoveLoadBalancerProbe as RemoveLoadBalancerProbe
    from hostrouting.azure.vnet.linux import LinuxBridgeNode as LinuxBridgeNode
    from hostrouting.azure.vnet.plan import AzureVnetReport as AzureVnetReport
    from hostrouting.azure.vnet.port import BridgeNode as BridgeNode
    from hostrouting.azure.vnet.port import Interface as Interface
    from hostrouting.azure.vnet.port import Neighbour as Neighbour
    from hostrouting.azure.vnet.port import NodeState as NodeState
    from hostrouting.azure.vnet.tasks import RemoveStaleAzureVnet as RemoveStaleAzureVnet
else:
    __all__, __getattr__, __dir__ = lazily(
        __name__,
        {
            "config": "HostNetworking Ipv6Detection LoadBalancerProbe StaleAzureVnet",
            "nodes": "AzureVnetError LoadBalancerProbeError",
            "probe.linux": "LinuxProbeNode",
            "probe.plan": "ProbeReport",
            "probe.port": "NodeAddress Pin ProbeNode",
            "probe.tasks": "ConfigureLoadBalancerProbe RemoveLoadBalancerProbe",
            "vnet.linux": "LinuxBridgeNode",
            "vnet.plan": "AzureVnetReport",
            "vnet.port": "BridgeNode Interface Neighbour NodeState",
            "vnet.tasks": "RemoveStaleAzureVnet",
        },
    )
