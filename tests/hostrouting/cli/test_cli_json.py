"""Tests that ``--output json`` prints a single document on standard output, whatever the exit code."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from wanted import LINE, SHADOWED, section

from hostrouting import Host, cli

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., tuple[int, Any]]

COMMANDS = ("apply", "plan", "check", "fix", "doctor", "remove")
TOLD = {"changed", "routes", "files", "units"}
SECTION = section(SHADOWED)
SICK = section(SHADOWED, cidrs=["172.16.2.0/24"])


@pytest.fixture
def config(host: Host) -> Callable[[object], Path]:
    """Return a function that writes a config to the default path."""
    (host.layout.units / "systemd-nspawn@.service").write_text("[Service]\nExecStart=/bin/true\nRestart=always\n")

    def write(section: object) -> Path:
        path = host.layout.config
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"hostRouting": section}))
        return path

    return write


@pytest.fixture
def run(host: Host, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: object, on: Host | None = None) -> tuple[int, Any]:
        code = cli.main([*map(str, words), "--output", "json"], host=on or host)
        return code, json.loads(capsys.readouterr().out)

    return call


@pytest.mark.parametrize("command", COMMANDS)
def test_it_names_the_host_and_the_changes(run: Run, config: Any, command: str) -> None:
    config(SECTION)
    code, document = run(command)
    assert code in (0, 1, 2)
    assert (document["schema"], document["host"]) == (1, os.uname().nodename)
    assert "error" not in document
    assert document.keys() >= TOLD or command in ("check", "doctor")


@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in ("remove", "doctor", "check")])
def test_a_missing_config_is_a_document(run: Run, command: str) -> None:
    code, document = run(command)
    assert (code, document["host"], document["changed"]) == (78, os.uname().nodename, False)
    assert TOLD | {"error", "problems"} <= document.keys()


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "remove"])
def test_each_problem_of_a_config_has_its_path(run: Run, config: Any, command: str) -> None:
    config(SECTION | {"waitSeconds": -1, "consumer": "x"})
    code, document = run(command)
    assert code == 78
    assert {problem["path"] for problem in document["problems"]} == {
        "hostRouting.waitSeconds",
        "hostRouting.consumer",
    }
    assert document["error"].count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_usage_is_a_document(run: Run, command: str) -> None:
    code, document = run(command, "--frobnicate")
    assert code == 64
    assert "--frobnicate" in document["error"]
    assert document["hint"] is None
    assert not document["changed"]


def test_a_strict_failure_has_changes_and_findings(run: Run, config: Any) -> None:
    config(SICK)
    code, document = run("apply")
    assert (code, document["changed"]) == (1, True)
    assert document["routes"] == [{"route": LINE, "change": "added"}]
    assert {"unit": "check-route-overlap.service", "change": "enabled"} in document["units"]
    assert {"path": "/etc/aks-flex-node/check-route-overlap.sh", "change": "added"} in document["files"]
    assert [finding["cidr"] for finding in document["overlap"]["findings"]] == ["172.16.2.0/24"]
    assert "172.16.2.0/24" in document["error"]
    code, again = run("apply")
    assert (code, again["changed"], again["routes"], again["overlap"]["verdict"]) == (1, False, [], "overlap")


def test_the_text_has_the_same_facts(config: Any, host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    def told(section: object, code: int) -> list[str]:
        config(section)
        assert cli.main(["apply"], host=host) == code
        return capsys.readouterr().out.splitlines()

    told(SECTION, 0)
    assert {
        "added     /etc/systemd/system/kubelet.service.d/zz-hostrouting.conf",
        "removed   /etc/systemd/system/systemd-nspawn@.service.d/zz-hostrouting.conf",
        "enabled   hostrouting-watch.service",
        "restarted hostrouting-watch.service",
    } <= {*told(SICK | {"consumer": "kubelet.service", "watch": {"enabled": True}}, 1)}
    lines = told({}, 0)
    assert "nothing to change" not in lines
    assert {f"removed   {LINE}", "stopped   hostrouting-watch.service", "disabled  static-routes.service"} <= {*lines}
    assert told({}, 0)[0] == "nothing to change"
