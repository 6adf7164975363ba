"""Fakes for tests of what is built on hostrouting; needs neither hypothesis nor pyroute2.

``FakeKernel`` answers as Linux does, ``FakeSystemd`` stands in for systemd. ``hostrouting.testing.conformance`` holds a
kernel of your own to Linux's answers; ``Kernel`` is what it asks of one.
"""

from hostrouting.boot.fake_systemd import FakeSystemd
from hostrouting.kernel.memory import FakeKernel
from hostrouting.kernel.port import Kernel

__all__ = ["FakeKernel", "FakeSystemd", "Kernel"]
