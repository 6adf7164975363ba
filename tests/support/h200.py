"""The H200 nodes of docs/howto/h200.md, which any kernel can build."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Any

import attrs

from hostrouting.backend import Write
from hostrouting.kernel.port import Kernel
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route

INFINIBAND = [IPv4Interface(f"172.16.0.{10 + number}/16") for number in range(8)]
METRIC = 100


@attrs.frozen
class Variant:
    """A node whose InfiniBand interfaces shadow the expected addresses of the cluster.

    Args:
        name: the test's name for the node.
        expected: the expected CIDR.
        eth0: the address of eth0, which has the default route.
        gateway: the gateway of the default route.
        behind: a destination with a gateway on ib0, if there is such a route.
    """

    name: str
    expected: str = "172.16.0.0/16"
    eth0: str = "10.1.0.4/24"
    gateway: str = "10.1.0.1"
    behind: tuple[str, str] | None = None

    @property
    def config(self) -> dict[str, Any]:
        """Return a config document that expects the CIDR."""
        return {
            "hostRouting": {"routeOverlap": {"expectedCidrs": [self.expected], "mode": "STRICT"}}
        }

    def build(self, kernel: Kernel) -> None:
        """Add the interfaces, addresses and routes of this node to a kernel with only ``lo``."""
        kernel.add_link("eth0")
        # networkd sets the metric of a connected route to the DHCP metric of its interface.
        kernel.add_address("eth0", self.eth0, metric=METRIC)
        for number, address in enumerate(INFINIBAND):
            kernel.add_link(f"ib{number}")
            kernel.add_address(f"ib{number}", str(address))
        hop = NextHop("eth0", IPv4Address(self.gateway))
        own = IPv4Interface(self.eth0).ip
        routes = [
            Route(DEFAULT_DESTINATION, (hop,), protocol=Protocol.DHCP, metric=METRIC, source=own)
        ]
        if self.behind is not None:
            destination, gateway = self.behind
            hop = NextHop("ib0", IPv4Address(gateway))
            routes.append(Route(IPv4Network(destination), (hop,), protocol=Protocol.STATIC))
        assert kernel.write(Write.ADD, routes) == ()


VARIANTS = (
    Variant("equal"),
    Variant("inside", expected="172.16.1.0/24"),
    Variant("around", expected="172.16.0.0/12"),
    # eth0's connected route has metric 100, so InfiniBand's, with metric 0, win.
    Variant("same-subnet", eth0="172.16.0.4/16", gateway="172.16.0.1"),
    Variant("own-subnet", eth0="172.16.4.4/24", gateway="172.16.4.1"),
    Variant("gateway", behind=("192.168.100.0/24", "172.16.0.1")),
)
