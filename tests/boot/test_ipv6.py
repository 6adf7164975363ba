"""Test that the gate holds a STRICT node whose IPv6 packets would leave by another interface, until that is fixed."""

from __future__ import annotations

import pytest

from boot.rig import Machine
from boot.test_gate import FIXED, boot_held, installed, marker, start

CIDRS = ("172.16.1.0/24", "fd00:10:96::/48")
GATEWAY = "2001:db8:1::1"


@pytest.fixture
def dual(node: Machine) -> Machine:
    """Return a machine that is off, whose IPv4 and IPv6 default routes use eth0."""
    node.fabric("ip", "address", "add", f"{GATEWAY}/64", "dev", "eth0", "nodad")
    node.ip("address", "add", "2001:db8:1::4/64", "dev", "eth0", "nodad")
    node.ip("-6", "route", "add", "default", "via", GATEWAY, "dev", "eth0", "metric", "1024")
    return node


def test_strict_holds_a_contested_default_and_a_shadow_until_the_fix(dual: Machine) -> None:
    """A router on ib0 has advertised itself, and ib0 has a subnet of the cluster.

    A third CIDR needs a source, which the sandboxed unit can only learn from a socket.
    """
    dual.ip("-6", "route", "append", "default", "dev", "ib0", "proto", "ra", "metric", "1024", "pref", "high")
    dual.ip("address", "add", "fd00:10:96:7::10/64", "dev", "ib0", "nodad")
    dual.ip("-6", "route", "add", "default", "via", GATEWAY, "dev", "eth0", "table", "100")
    dual.ip("-6", "rule", "add", "from", "fd00:10:96:7::10", "to", "fd00:10:97::/48", "lookup", "100", "pref", "98")
    dual.ip("-6", "rule", "add", "to", "fd00:10:97::/48", "unreachable", "pref", "99")
    payload = installed(dual, FIXED, cidrs=(*CIDRS, "fd00:10:97::/48"))
    boot_held(dual, payload)
    assert "fd00:10:97::/48" not in dual.journal("check-route-overlap.service")
    overlap = "OVERLAP: expected CIDR fd00:10:96::/48 (probe fd00:10:96:{}) routes via ib0, expected eth0; "
    (told,) = marker(dual)["detected"].splitlines()
    assert told.startswith(overlap.format(":") + "by default dev ib0 proto ra metric 1024 pref high")
    dual.ip("-6", "route", "add", "fd00:10:96::/48", "via", GATEWAY, "dev", "eth0")
    dual.wait_until(lambda: overlap.format("7::") in marker(dual)["detected"], "the shadow is found")
    assert overlap.format("7::") in dual.journal(payload.unit)
    assert not start(dual, payload)
    for half in ("fd00:10:96:7::/65", "fd00:10:96:7:8000::/65"):
        dual.ip("-6", "route", "add", half, "via", GATEWAY, "dev", "eth0")
    payload.wait_until_it_ran()
    assert marker(dual) == {"ok": ""}
