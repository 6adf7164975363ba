"""Fakes for testing programs that use hostrouting. The fakes need neither hypothesis nor pyroute2.

``FakeKernel`` behaves like Linux, and ``FakeSystemd`` replaces systemd.
``hostrouting.testing.conformance`` tests whether another kernel behaves like Linux; ``Kernel`` is
the interface that it must implement.
"""

from hostrouting.boot.fake_systemd import FakeSystemd
from hostrouting.kernel.memory import FakeKernel
from hostrouting.kernel.port import Kernel

__all__ = ["FakeKernel", "FakeSystemd", "Kernel"]
