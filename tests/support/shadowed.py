"""A node in memory on which ib0 shadows 172.16.0.0/16."""

from __future__ import annotations

from ipaddress import IPv4Address

from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route
from hostrouting.testing import FakeKernel


def shadowed_kernel() -> FakeKernel:
    """With a default route by eth0."""
    kernel = FakeKernel()
    for dev, address in (("eth0", "10.1.0.4/24"), ("ib0", "172.16.0.10/16")):
        kernel.add_link(dev)
        kernel.add_address(dev, address)
    default = Route(DEFAULT_DESTINATION, (NextHop("eth0", IPv4Address("10.1.0.1")),), protocol=Protocol.DHCP)
    assert kernel.add([default]) == ()
    return kernel
