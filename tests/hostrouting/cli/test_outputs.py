"""Tests for the documents and lines that programs read: JSON, Nagios, and the preflight of
AKSFlexNode and unbounded.

The contract of the preflight is defined in unbounded's pkg/agent/preflight/preflight.go.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
from backends import listening
from file_trees import write_file
from wanted import LINE, SHADOWED, lose_default_route, section

import phases
from hostrouting import Config, Configure, Host, RouteOverlapError
from hostrouting.cli.preflight import preflight
from hostrouting.doctor.check_types import DoctorCheck, DoctorFinding, Severity
from hostrouting.doctor.examine import CHECKS, DoctorReport
from hostrouting.kernel.port import Write, read_our_routes
from hostrouting.model.links import Hardware
from hostrouting.model.routes import NextHop, Route
from hostrouting.testing import FakeKernel

Run = Callable[..., tuple[int, Any]]
COMMANDS = ("apply", "plan", "check", "fix", "doctor", "remove")
TOLD = {"changed", "routes", "files", "units"}
SECTION = section(SHADOWED)
SICK = section(SHADOWED, cidrs=["172.16.2.0/24"])


@pytest.fixture
def config(host: Host) -> Callable[[object], Path]:
    """Return a function that writes a config to the default path."""
    (host.layout.units / "systemd-nspawn@.service").write_text(
        "[Service]\nExecStart=/bin/true\nRestart=always\n"
    )

    return lambda section: write_file(host.layout.config, json.dumps({"hostRouting": section}))


@pytest.fixture
def run_json(run: Any) -> Run:
    def call(*words: object) -> tuple[int, Any]:
        code, out, _ = run(*words, "--output", "json")
        return code, json.loads(out)

    return call


@pytest.mark.parametrize("command", COMMANDS)
def test_it_names_the_host_and_the_changes(run_json: Run, config: Any, command: str) -> None:
    config(SECTION)
    code, document = run_json(command)
    assert code in (0, 1, 2)
    assert (document["schema"], document["host"]) == (1, os.uname().nodename)
    assert "error" not in document
    assert document.keys() >= TOLD or command in ("check", "doctor")


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "remove"])
def test_each_problem_of_a_config_has_its_path(run_json: Run, config: Any, command: str) -> None:
    config(SECTION | {"waitSeconds": -1, "consumer": "x"})
    code, document = run_json(command)
    assert code == 78
    assert TOLD | {"error", "problems"} <= document.keys()
    assert (document["host"], document["changed"]) == (os.uname().nodename, False)
    assert {problem["path"] for problem in document["problems"]} == {
        "hostRouting.waitSeconds",
        "hostRouting.consumer",
    }
    assert document["error"].count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_usage_is_a_document(run_json: Run, command: str) -> None:
    code, document = run_json(command, "--frobnicate")
    assert code == 64
    assert "--frobnicate" in document["error"]
    assert document["hint"] is None
    assert not document["changed"]


def test_a_strict_failure_has_changes_and_findings(run_json: Run, config: Any) -> None:
    config(SICK)
    code, document = run_json("apply")
    assert (code, document["changed"]) == (1, True)
    assert document["routes"] == [{"route": LINE, "change": "added"}]
    assert {"unit": "check-route-overlap.service", "change": "enabled"} in document["units"]
    assert {"path": "/etc/aks-flex-node/check-route-overlap.sh", "change": "added"} in document[
        "files"
    ]
    assert [finding["cidr"] for finding in document["overlap"]["findings"]] == ["172.16.2.0/24"]
    assert "172.16.2.0/24" in document["error"]
    code, again = run_json("apply")
    assert (code, again["changed"], again["routes"], again["overlap"]["verdict"]) == (
        1,
        False,
        [],
        "overlap",
    )


def test_the_text_has_the_same_facts(run: Any, config: Any) -> None:
    def told(section: object, code: int) -> list[str]:
        config(section)
        got, out, _ = run("apply")
        assert got == code
        return [*out.splitlines()]

    told(SECTION, 0)
    assert {
        "added     /etc/systemd/system/kubelet.service.d/zz-hostrouting.conf",
        "removed   /etc/systemd/system/systemd-nspawn@.service.d/zz-hostrouting.conf",
        "enabled   hostrouting-watch.service",
        "restarted hostrouting-watch.service",
    } <= {*told(SICK | {"consumer": "kubelet.service", "watch": {"enabled": True}}, 1)}
    lines = told({}, 0)
    assert "nothing to change" not in lines
    assert {
        f"removed   {LINE}",
        "stopped   hostrouting-watch.service",
        "disabled  static-routes.service",
    } <= {*lines}
    assert told({}, 0)[0] == "nothing to change"


# --- Nagios, after the Monitoring Plugins guidelines ----------------------------------------------


# The format of performance data is 'label'=value[UOM];[warn];[crit];[min];[max]. Our only value is
# a count.
PLUGIN = re.compile(
    r"HOSTROUTING (OK|WARNING|CRITICAL|UNKNOWN) - ([^|\n]+?)"
    r"( \| failing=(\d+);(0?);(0?);0;(\d+))?\n"
)


@pytest.fixture
def plugin(run: Any) -> Callable[..., tuple[int, tuple[str | None, ...]]]:
    """Return a function that runs the plugin and returns its exit code and the parts of its output
    line.
    """

    def call(*words: object) -> tuple[int, tuple[str | None, ...]]:
        code, out, _ = run("check", "--output", "nagios", *words)
        match = PLUGIN.fullmatch(out)
        assert match, out
        return code, match.groups()

    return call


BY_IB0 = {"cidr": "172.16.0.0/16", "devs": ["ib0"]}


def expecting(mode: str, *cidrs: Any) -> object:
    return {"hostRouting": {"routeOverlap": {"expectedCidrs": cidrs, "mode": mode}}}


def test_a_healthy_host_is_0(plugin: Any) -> None:
    code, (word, said, _, failing, _, _, count) = plugin(
        "--cidr", "10.96.0.0/12", "--cidr", "10.1.2.0/24"
    )
    assert (code, word, failing, count) == (0, "OK", "0", "2")
    assert said == "2 expected CIDRs leave through eth0"
    assert plugin("--cidr", "10.96.0.0/12")[1][1] == "1 expected CIDR leaves through eth0"


@pytest.mark.parametrize(
    ("cidrs", "through"),
    [
        (["10.96.0.0/12", BY_IB0], "eth0,ib0"),
        ([BY_IB0, {"cidr": "172.16.8.0/24", "devs": ["ib0", "wg0"]}], "ib0,wg0"),
    ],
)
def test_the_interfaces_that_cidrs_name_are_told(
    plugin: Any, write: Any, cidrs: list[Any], through: str
) -> None:
    _, (word, said, *_) = plugin(write(expecting("WARN", *cidrs)))
    assert (word, said) == ("OK", f"2 expected CIDRs leave through {through}")


@pytest.mark.parametrize(
    ("mode", "code", "word", "warn", "crit"),
    [("WARN", 1, "WARNING", "0", ""), ("STRICT", 2, "CRITICAL", "", "0")],
)
def test_failures_are_1_in_warn_and_2_in_strict(
    plugin: Any, write: Any, mode: str, code: int, word: str, warn: str, crit: str
) -> None:
    got, (status, said, _, *numbers) = plugin(
        write(expecting(mode, "172.16.0.0/16", "10.96.0.0/12"))
    )
    assert (got, status) == (code, word)
    assert said.startswith(
        "1 of 2 expected CIDRs fails: "
        "OVERLAP: expected CIDR 172.16.0.0/16 (probe 172.16.0.0) routes"
    )
    assert numbers == ["1", warn, crit, "2"]


@pytest.mark.parametrize(
    ("mode", "cidr", "code"),
    [("STRICT", "10.96.0.0/12", 1), ("WARN", "172.16.0.0/16", 1), ("STRICT", "172.16.0.0/16", 2)],
)
def test_a_gate_that_is_off_is_a_warning(
    plugin: Any, write: Any, host: Host, mode: str, cidr: str, code: int
) -> None:
    write_file(host.layout.gate_off, "")
    got, (_, said, *_) = plugin(write(expecting(mode, cidr)))
    told = "every start is let through unchecked, because the file /etc/hostrouting/gate.off is "
    assert (got, said.startswith(f"{told}there; 1 ")) == (code, True)


def test_the_metrics_count_installed_files_that_are_gone(run: Any, write: Any, host: Host) -> None:
    path = write(expecting("STRICT", "10.96.0.0/12"))
    assert run("apply", path)[0] == 0
    for missing in (0, 1):
        lines = run("check", path, "--output", "prometheus")[1].splitlines()
        assert f"hostrouting_files_missing {missing}" in lines
        host.layout.gate_script.unlink(missing_ok=True)


def test_without_a_default_route_it_is_3_at_once(
    plugin: Any, kernel: FakeKernel, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits neither for the default route nor for an address of InfiniBand, as other checks
    would.
    """
    monkeypatch.setattr(kernel, "changes", listening(lambda _: pytest.fail("it waits")))
    kernel.add_link("ib1", hardware=Hardware.INFINIBAND)
    config = write(expecting("STRICT", "10.96.0.0/12"))
    assert plugin(config)[0] == 0
    lose_default_route(kernel)
    code, (word, said, perfdata, *_) = plugin(config)
    assert (code, word, perfdata) == (3, "UNKNOWN", None)
    assert "no-default-route" in said


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["none.json"], "none.json: there is no such file"),
        (["--cidr", "10.0.0.0/33"], "--cidr"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_other_errors_are_3_too(plugin: Any, words: list[str], why: str) -> None:
    code, (word, said, perfdata, *_) = plugin(*words)
    assert (code, word, perfdata) == (3, "UNKNOWN", None)
    assert why in said


def test_a_hostile_name_can_not_forge_performance_data(plugin: Any, kernel: FakeKernel) -> None:
    kernel.add_link("a|b=1\n")
    kernel.add_address("a|b=1\n", "192.168.7.1/24")
    code, (_, said, *_) = plugin("--cidr", "192.168.7.0/24")
    assert code == 1
    assert "a/b=1" in said


def test_a_long_line_is_truncated_before_its_performance_data(
    plugin: Any, kernel: FakeKernel
) -> None:
    for number in range(0, 256, 2):
        route = Route(IPv4Network(f"192.168.{number}.0/24"), (NextHop("ib0"),))
        assert not kernel.write(Write.ADD, [route])
    code, (_, said, perfdata, *_) = plugin("--cidr", "192.168.0.0/16")
    assert code == 1
    assert perfdata is not None
    assert said.endswith("…")
    assert len(said) < 500


# --- the preflight --------------------------------------------------------------------------------


# Every value in this config is unique so that the test can search for it.
CANARIES = {
    "hostRouting": {
        "staticRoutes": {
            "enabled": True,
            "routes": [
                {
                    "destination": "172.16.77.0/24",
                    "gateway": "10.1.0.78",
                    "dev": "eth0",
                    "metric": 7979,
                }
            ],
        },
        "routeOverlap": {
            "expectedCidrs": ["172.16.0.0/16", {"cidr": "203.0.113.0/25", "devs": ["canary0"]}],
            "mode": "STRICT",
            "containerDevs": ["canary1*"],
            "allowedDevs": ["canary2*"],
        },
        "watch": {"enabled": True, "textfile": "/canary/4/3.prom"},
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
        and all(
            check.keys() == {"name", "target", "severity", "message", "ignored"} for check in checks
        )
        and all(
            re.fullmatch("host-[a-z-]+", check["name"]) and check["message"] for check in checks
        )
        and {check["severity"] for check in checks} <= {"ok", "warning", "error"}
    )


def report(*severities: Severity | None) -> DoctorReport:
    """Return a report on checks named a, b and so on, each with one finding."""
    found: dict[DoctorCheck, tuple[DoctorFinding, ...]] = {}
    for name, severity in zip("abcdef", severities, strict=False):
        fault = (
            ()
            if severity is None
            else (DoctorFinding("kind", "subject", "message", "fix", severity),)
        )
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
    severities: tuple[Severity | None, ...],
    more: dict[str, Any],
    status: str,
    counts: tuple[int, ...],
) -> None:
    document = preflight(report(*severities), **more)
    assert conforms(document)
    assert (document["status"], tuple(document["summary"].values())) == (status, counts)
    ignored = [check["ignored"] for check in document["checks"]]
    assert sum(ignored) == sum(each is not Severity.RISK for each in severities if each) - counts[2]
    assert not any(
        check["ignored"] and check["severity"] != "warning" for check in document["checks"]
    )


def test_no_value_of_config_or_host_is_printed(run: Any, host: Host, write: Any) -> None:
    path = write(CANARIES)
    with pytest.raises(RouteOverlapError):
        phases.run(Configure(Config.from_mapping(CANARIES), host=host))
    assert host.routes.write(Write.DELETE, read_our_routes(host.routes)) == ()
    host.layout.gate_off.touch()
    host.layout.script("static-routes").write_text("#!/bin/true\n")
    for command in ((path,), ()):
        code, out, err = run("doctor", *command, "--output", "preflight")
        document = json.loads(out)
        assert conforms(document)
        assert (code, document["status"], err) == (1, "failed", "")
        found = {
            check["name"].removeprefix("host-"): check["message"] for check in document["checks"]
        }
        assert found.keys() >= {each.name for each in CHECKS}
        assert "found: route-missing" in found["routes"]
        assert "found: file-differs" in found["files"]
        assert [value for value in VALUES if value in out] == []


def test_errors_can_be_ignored_and_warnings_fail(run: Any, write: Any) -> None:
    path = write(CANARIES)
    ignored = ("doctor", path, "--output=preflight", "--ignore-preflight-errors", "all")
    assert (run(*ignored)[0], run(*ignored, "--fail-on-warnings")[0]) == (0, 1)


def test_a_wrong_config_fails_the_preflight_without_its_values(run: Any, write: Any) -> None:
    path = write({"hostRouting": {"canary": "10.1.0.78"}})
    code, out, err = run("doctor", path, "--output", "preflight")
    document = json.loads(out)
    assert conforms(document)
    assert (code, document["status"], "canary" in err) == (78, "failed", True)
    assert [value for value in VALUES if value in out] == []
