"""Fakes for tests of programs that use hostrouting; they need neither hypothesis nor pyroute2.

``FakeKernel`` answers like Linux, and ``FakeSystemd`` replaces systemd. ``hostrouting.testing.conformance`` compares
another kernel's answers with those of Linux; ``Kernel`` is the interface that it needs.
"""

from hostrouting.boot.fake_systemd import FakeSystemd
from hostrouting.kernel.memory import FakeKernel
from hostrouting.kernel.port import Kernel

__all__ = ["FakeKernel", "FakeSystemd", "Kernel"]
