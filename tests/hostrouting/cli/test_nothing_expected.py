"""Where no CIDR is expected: nobody is held back, nothing is installed for the check, and no command says ok."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from shadowed import shadowed_kernel

import phases
from hostrouting import Config, ConfigureReport, Host, Layout
from hostrouting.boot.manifest import CHECK
from hostrouting.overlap.findings import UnknownReason, Verdict
from hostrouting.tasks.configure import Configure
from hostrouting.testing import FakeSystemd

if TYPE_CHECKING:
    from pathlib import Path

ROUTES = {"enabled": True, "routes": [{"destination": "172.16.1.0/24"}]}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    layout = Layout(tmp_path / "host")
    layout.units.mkdir(parents=True)
    (layout.units / "systemd-nspawn@.service").write_text("[Service]\nExecStart=/bin/true\nRestart=always\n")
    units = FakeSystemd(layout, running=["systemd-nspawn@kube1.service"])
    return Host(routes=shadowed_kernel(), units=units, layout=layout)


@pytest.fixture(params=["WARN", "STRICT"])
def section(request: Any) -> dict[str, Any]:
    return {"waitSeconds": 0, "routeOverlap": {"mode": request.param}}


@pytest.fixture(params=[{}, {"staticRoutes": ROUTES}], ids=["none", "routes"])
def config(request: Any, section: dict[str, Any], host: Host) -> Path:
    path = host.layout.config
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"hostRouting": section | request.param}))
    return path


# The words of a command, its exit code, and whether it was asked for a verdict.
COMMANDS = [
    (("check",), 2, True),
    (("check", "--output", "nagios"), 3, True),
    (("check", "--output", "prometheus"), 2, False),
    (("fix",), 0, False),
    (("apply",), 0, False),
    (("apply", "--try", "600"), 0, False),
]


@pytest.mark.parametrize(("words", "code", "is_asked"), COMMANDS, ids=[" ".join(words) for words, *_ in COMMANDS])
def test_a_command_goes_on_and_one_that_is_asked_knows_nothing(
    run: Any, config: Path, words: tuple[str, ...], code: int, is_asked: bool
) -> None:
    got, out, err = run(*words)
    assert got == code, err
    assert not out.startswith("ok ")
    assert " OK " not in out
    if is_asked:
        assert "unknown" in out.lower()
    assert "hostrouting_failures" not in out
    assert "hostrouting_cidr_verdict" not in out


def test_it_is_unknown_to_a_program_and_never_raised(host: Host, config: Path) -> None:
    report: ConfigureReport = phases.run(Configure(Config.load(config), host=host))
    assert (report.overlap.verdict, report.overlap.reason_kind) == (Verdict.UNKNOWN, UnknownReason.NOTHING_EXPECTED)
    assert not host.layout.script(CHECK).exists()
    assert not host.layout.marker_ok.exists()
    assert not host.layout.marker_detected.exists()


def test_the_plan_lets_the_next_start_through(run: Any, config: Path) -> None:
    next_start = json.loads(run("plan", "--output", "json")[1])["nextStart"]
    assert next_start["admitted"]
    assert "no CIDR is expected" in next_start["reason"]


def test_a_recorded_host_is_not_judged(run: Any, config: Path, tmp_path: Path) -> None:
    recording = tmp_path / "node.json"
    recording.write_text(run("snapshot")[1])
    code, out, _ = run("judge", config, recording, "--output", "json")
    assert (code, json.loads(out)["counts"]) == (2, {"ok": 0, "overlap": 0, "unknown": 1})


def test_the_doctor_calls_it_a_risk(run: Any, config: Path) -> None:
    run("apply")
    report = json.loads(run("doctor", "--output", "json")[1])
    found = {fault["kind"]: fault["severity"] for fault in report["findings"]}
    if json.loads(config.read_text())["hostRouting"].get("staticRoutes"):
        assert found["nothing-expected"] == "risk"
    else:
        assert "not-installed" in found
