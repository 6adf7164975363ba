"""The deletion of what an operator has pasted from ``fix --format ip`` in an emergency."""

from __future__ import annotations

from hostrouting.kernel.port import read_routes
from hostrouting.testing import FakeKernel

DELETING = "ip -4 rule flush proto 216 && ip -4 route flush table all proto 216"


def delete_printed(kernel: FakeKernel, told: str) -> None:
    """Delete what was printed from a kernel in memory, if a text says how."""
    assert DELETING in told
    for rule in kernel.facts().rules:
        if rule.is_printed:
            kernel.ip(f"rule del {rule} pref {rule.preference} proto 216")
    for route in read_routes(kernel):
        if route.is_printed:
            kernel.ip(f"route del {route}")
