"""What the neighbours' tasks raise."""

from __future__ import annotations

from hostrouting.model.errors import HostRoutingError


class LoadBalancerProbeError(HostRoutingError):
    """Health probes of the load balancer can't be rewritten, or whether they have to be can't be told."""


class AzureVnetError(HostRoutingError):
    """What azure-vnet has left can't be read or removed, or it was held by others, or came back."""
