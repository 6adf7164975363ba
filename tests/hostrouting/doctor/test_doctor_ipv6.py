"""Test that the doctor sees what IPv6 adds: sysctls that lose a default route, and default routes that are contested."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from dual_stack import DEFAULT, RIVAL, host

import phases
from hostrouting import Config, Host, Layout
from hostrouting.doctor.examine import examine
from hostrouting.kernel.snapshot_backend import SnapshotBackend, SnapshotBackend6
from hostrouting.tasks.configure import Configure
from hostrouting.testing import FakeSystemd

if TYPE_CHECKING:
    from pathlib import Path

    from hostrouting.doctor.checks import DoctorFinding


def found(root: Path, cidr: str, sysctls: dict[str, str], *defaults: str) -> dict[str, DoctorFinding]:
    """Return the findings on a host whose uplink is eth0, by their kinds."""
    layout, snapshot = Layout(root), host(*defaults)
    layout.units.mkdir(parents=True)
    config = Config.from_mapping({"hostRouting": {"routeOverlap": {"expectedCidrs": [cidr]}, "waitSeconds": 0}})
    node = Host(SnapshotBackend(snapshot), FakeSystemd(layout), layout, SnapshotBackend6(snapshot))
    phases.run(Configure(config, host=node))
    for name, value in sysctls.items():
        file = layout.of(f"/proc/sys/net/ipv6/conf/{name}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n")
    return {finding.kind: finding for finding in examine(host=node).findings}


@pytest.mark.parametrize(
    ("cidr", "accept_ra", "forwarding", "default", "is_risk"),
    [
        ("fd00:10::/48", "1", "1", DEFAULT, True),
        ("fd00:10::/48", "2", "1", DEFAULT, False),
        ("fd00:10::/48", "1", "0", DEFAULT, False),
        ("fd00:10::/48", "1", "1", DEFAULT.replace("proto ra", "proto static"), False),
        ("10.96.0.0/12", "1", "1", DEFAULT, False),
    ],
)
def test_a_default_route_that_forwarding_loses_is_a_risk(
    tmp_path: Path, cidr: str, accept_ra: str, forwarding: str, default: str, *, is_risk: bool
) -> None:
    sysctls = {
        "eth0/accept_ra": accept_ra,
        "eth0/forwarding": forwarding,
        "rail0/accept_ra": "1",
        "rail0/forwarding": "1",
    }
    findings = found(tmp_path, cidr, sysctls, default)
    assert ("accept-ra" in findings) is is_risk
    if is_risk:
        finding = findings["accept-ra"]
        assert (finding.subject, str(finding.severity)) == ("eth0", "risk")
        assert finding.hint.startswith("sysctl -w net/ipv6/conf/eth0/accept_ra=2,")


def test_a_contested_default_route_is_a_risk(tmp_path: Path) -> None:
    finding = found(tmp_path, "fd00:10::/48", {}, DEFAULT, RIVAL)["contested"]
    assert "rail0" in finding.message
    assert "uplinks" in finding.hint
    assert "accept_ra" not in finding.message + finding.hint
