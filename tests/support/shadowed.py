"""An in-memory node on which ib0 shadows 172.16.0.0/16."""

from __future__ import annotations

from node import add_nics, default_route

from hostrouting.testing import FakeKernel


def shadowed_kernel() -> FakeKernel:
    """Return a kernel with a default route through eth0 and a shadowing route through ib0."""
    kernel = FakeKernel()
    add_nics(kernel, eth0="10.1.0.4/24", ib0="172.16.0.10/16")
    assert kernel.add([default_route(metric=0)]) == ()
    return kernel
