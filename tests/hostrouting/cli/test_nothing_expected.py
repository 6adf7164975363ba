"""Tests that without expected CIDRs, the gate holds no node, no check is installed, and no command reports success."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from wanted import SHADOWED, section

import phases
from hostrouting import Config, ConfigureReport, Host
from hostrouting.boot.manifest import CHECK
from hostrouting.overlap.findings import UnknownReason, Verdict
from hostrouting.tasks.configure import Configure

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def host(host: Host) -> Host:
    (host.layout.units / "systemd-nspawn@.service").write_text("[Service]\nExecStart=/bin/true\nRestart=always\n")
    return host


@pytest.fixture(params=[(routes, mode) for routes in ((), (SHADOWED,)) for mode in ("WARN", "STRICT")], ids=str)
def config(request: Any, host: Host) -> Path:
    routes, mode = request.param
    path = host.layout.config
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"hostRouting": section(*routes, cidrs=(), mode=mode)}))
    return path


# Each command's arguments, its exit code, and whether it returns a verdict.
COMMANDS = [
    (("check",), 2, True),
    (("check", "--output", "nagios"), 3, True),
    (("check", "--output", "prometheus"), 2, False),
    (("fix",), 0, False),
    (("apply",), 0, False),
    (("apply", "--try", "600"), 0, False),
]


@pytest.mark.parametrize(("words", "code", "is_asked"), COMMANDS, ids=[" ".join(words) for words, *_ in COMMANDS])
def test_no_command_gives_a_verdict(run: Any, config: Path, words: tuple[str, ...], code: int, is_asked: bool) -> None:
    got, out, err = run(*words)
    assert got == code, err
    assert not out.startswith("ok ")
    assert " OK " not in out
    if is_asked:
        assert "unknown" in out.lower()
    assert "hostrouting_failures" not in out
    assert "hostrouting_cidr_verdict" not in out


def test_the_verdict_is_unknown_and_never_raised(host: Host, config: Path) -> None:
    report: ConfigureReport = phases.run(Configure(Config.load(config), host=host))
    assert (report.overlap.verdict, report.overlap.reason_kind) == (Verdict.UNKNOWN, UnknownReason.NOTHING_EXPECTED)
    assert not host.layout.script(CHECK).exists()
    assert not host.layout.marker_ok.exists()
    assert not host.layout.marker_detected.exists()


def test_the_plan_lets_the_next_start_through(run: Any, config: Path) -> None:
    next_start = json.loads(run("plan", "--output", "json")[1])["nextStart"]
    assert next_start["admitted"]
    assert "no CIDR is expected" in next_start["reason"]


def test_a_snapshot_gets_no_verdict(run: Any, config: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "node.json"
    snapshot.write_text(run("snapshot")[1])
    code, out, _ = run("judge", config, snapshot, "--output", "json")
    assert (code, json.loads(out)["counts"]) == (2, {"ok": 0, "overlap": 0, "unknown": 1})


def test_the_doctor_calls_it_a_risk(run: Any, config: Path) -> None:
    run("apply")
    report = json.loads(run("doctor", "--output", "json")[1])
    found = {finding["kind"]: finding["severity"] for finding in report["findings"]}
    if json.loads(config.read_text())["hostRouting"]["staticRoutes"]["routes"]:
        assert found["nothing-expected"] == "risk"
    else:
        assert "not-installed" in found
