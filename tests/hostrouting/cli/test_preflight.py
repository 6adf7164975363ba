"""Tests that ``doctor --output preflight`` fulfils the preflight contract of AKSFlexNode and unbounded.

The contract is defined in unbounded's pkg/agent/preflight/preflight.go. An ignored error becomes a warning. Names are
case-insensitive, and an argument may contain several names separated by commas. Messages and targets never contain
config values.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from node import shadowed_kernel

import phases
from hostrouting import Config, Configure, Host, Layout, RouteOverlapError
from hostrouting.cli.preflight import preflight
from hostrouting.doctor.checks import DoctorCheck, DoctorFinding, Severity
from hostrouting.doctor.examine import CHECKS, DoctorReport
from hostrouting.testing import FakeSystemd

if TYPE_CHECKING:
    from pathlib import Path

MACHINE = "systemd-nspawn@kube1.service"
# Every value in this config is unique so that the test can search for it.
CANARIES = {
    "hostRouting": {
        "staticRoutes": {
            "enabled": True,
            "routes": [{"destination": "172.16.77.0/24", "gateway": "10.1.0.78", "dev": "eth0", "metric": 7979}],
        },
        "routeOverlap": {
            "expectedCidrs": ["172.16.0.0/16", {"cidr": "203.0.113.0/25", "devs": ["canary0"]}],
            "mode": "STRICT",
            "containerDevs": ["canary1*"],
            "allowedDevs": ["canary2*"],
        },
        "watch": {"enabled": True, "textfile": "/canary/3.prom"},
        "consumer": "canary4@.service",
        "waitSeconds": 0,
    },
    "node": {"kubelet": {"nodeIP": "198.51.100.5"}},
    "networking": {"dnsServiceIP": "198.51.100.6"},
}
VALUES = (
    *("172.16.77", "10.1.0.78", "7979", "172.16.0.0", "203.0.113", "198.51.100"),
    *("canary", "eth0", "ib0", "kube1", "given.json"),
)


def conforms(document: dict[str, Any]) -> bool:
    """Return whether a document has the specified form."""
    checks = document["checks"]
    return (
        document.keys() == {"status", "checks", "summary"}
        and document["summary"].keys() == {"ok", "warnings", "errors"}
        and all(check.keys() == {"name", "target", "severity", "message", "ignored"} for check in checks)
        and all(re.fullmatch("host-[a-z-]+", check["name"]) and check["message"] for check in checks)
        and {check["severity"] for check in checks} <= {"ok", "warning", "error"}
    )


@pytest.fixture
def host(tmp_path: Path) -> Host:
    layout = Layout(tmp_path / "root")
    return Host(routes=shadowed_kernel(), units=FakeSystemd(layout, running=[MACHINE]), layout=layout)


def report(*severities: Severity | None) -> DoctorReport:
    """Return a report on checks named a, b and so on, each with one finding."""
    found: dict[DoctorCheck, tuple[DoctorFinding, ...]] = {}
    for name, severity in zip("abcdef", severities, strict=False):
        fault = () if severity is None else (DoctorFinding("kind", "subject", "message", "fix", severity),)
        found[DoctorCheck(name, "all is well", lambda _: ())] = fault
    return DoctorReport(found)


@pytest.mark.parametrize(
    ("severities", "more", "status", "counts"),
    [
        ((None, None), {}, "ok", (2, 0, 0)),
        ((None, Severity.RISK), {}, "ok", (1, 1, 0)),
        ((None, Severity.RISK), {"fails_on_warnings": True}, "failed", (1, 1, 0)),
        ((Severity.BROKEN,), {}, "failed", (0, 0, 1)),
        ((Severity.UNKNOWN,), {}, "failed", (0, 0, 1)),
        ((Severity.BROKEN, Severity.BROKEN), {"ignored": ["host-a"]}, "failed", (0, 1, 1)),
        ((Severity.BROKEN, Severity.BROKEN), {"ignored": ["x, Host-A ,host-b"]}, "ok", (0, 2, 0)),
        ((Severity.BROKEN, Severity.RISK, None), {"ignored": ["", "ALL"]}, "ok", (1, 2, 0)),
        ((Severity.BROKEN,), {"ignored": ["all"], "fails_on_warnings": True}, "failed", (0, 1, 0)),
    ],
)
def test_errors_warnings_and_ignored_checks_are_counted(
    severities: tuple[Severity | None, ...], more: dict[str, Any], status: str, counts: tuple[int, ...]
) -> None:
    document = preflight(report(*severities), **more)
    assert conforms(document)
    assert (document["status"], tuple(document["summary"].values())) == (status, counts)
    ignored = [check["ignored"] for check in document["checks"]]
    assert sum(ignored) == sum(each is not Severity.RISK for each in severities if each) - counts[2]
    assert not any(check["ignored"] and check["severity"] != "warning" for check in document["checks"])


def test_no_value_of_config_or_host_is_printed(run: Any, host: Host, tmp_path: Path) -> None:
    path = tmp_path / "given.json"
    path.write_text(json.dumps(CANARIES))
    with pytest.raises(RouteOverlapError):
        phases.run(Configure(Config.from_mapping(CANARIES), host=host))
    assert host.routes.delete(host.routes.our_routes()) == ()
    host.layout.gate_off.touch()
    host.layout.script("static-routes").write_text("#!/bin/true\n")
    for command in ((path,), ()):
        code, out, err = run("doctor", *command, "--output", "preflight")
        document = json.loads(out)
        assert conforms(document)
        assert (code, document["status"], err) == (1, "failed", "")
        found = {check["name"].removeprefix("host-"): check["message"] for check in document["checks"]}
        assert found.keys() >= {each.name for each in CHECKS}
        assert "found: route-missing" in found["routes"]
        assert "found: file-differs" in found["files"]
        assert [value for value in VALUES if value in out] == []


def test_errors_can_be_ignored_and_warnings_fail(run: Any, host: Host, tmp_path: Path) -> None:
    path = tmp_path / "given.json"
    path.write_text(json.dumps(CANARIES))
    ignored = ("doctor", path, "--output=preflight", "--ignore-preflight-errors", "all")
    assert (run(*ignored)[0], run(*ignored, "--fail-on-warnings")[0]) == (0, 1)


def test_a_wrong_config_fails_the_preflight_without_its_values(run: Any, host: Host, tmp_path: Path) -> None:
    path = tmp_path / "given.json"
    path.write_text('{"hostRouting": {"canary": "10.1.0.78"}}')
    code, out, err = run("doctor", path, "--output", "preflight")
    document = json.loads(out)
    assert conforms(document)
    assert (code, document["status"], "canary" in err, [value for value in VALUES if value in out]) == (
        78,
        "failed",
        True,
        [],
    )


@pytest.mark.parametrize("option", [["--fail-on-warnings"], ["--ignore-preflight-errors", "all"]])
def test_its_options_need_the_preflight_output(run: Any, host: Host, option: list[str]) -> None:
    assert run("doctor", *option)[0] == 64
