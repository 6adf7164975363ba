"""``--output json``: one document on standard output, whatever the exit code."""

from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from backends import FailingBackend
from shadowed import shadowed_kernel

from hostrouting import Host, Layout, UnitError, cli
from hostrouting.cli import changes
from hostrouting.report import Changes
from hostrouting.testing import FakeSystemd

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., tuple[int, Any]]

COMMANDS = ("apply", "plan", "check", "fix", "doctor", "remove")
TOLD = {"changed", "routes", "files", "units"}
SECTION = {
    "staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.1.0/24"}]},
    "routeOverlap": {"expectedCidrs": ["172.16.1.0/24"], "mode": "STRICT"},
    "waitSeconds": 0,
}
SHADOWED = SECTION | {"routeOverlap": {"expectedCidrs": ["172.16.2.0/24"], "mode": "STRICT"}}
LINE = "172.16.1.0/24 via 10.1.0.1 dev eth0 proto hostrouting"
MACHINE = "systemd-nspawn@kube1.service"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


@pytest.fixture
def host(layout: Layout) -> Host:
    layout.units.mkdir(parents=True)
    (layout.units / "systemd-nspawn@.service").write_text("[Service]\nExecStart=/bin/true\nRestart=always\n")
    return Host(routes=shadowed_kernel(), units=FakeSystemd(layout, running=[MACHINE]), layout=layout)


@pytest.fixture
def config(layout: Layout) -> Callable[[object], Path]:
    def write(section: object) -> Path:
        layout.config.parent.mkdir(parents=True, exist_ok=True)
        layout.config.write_text(json.dumps({"hostRouting": section}))
        return layout.config

    return write


@pytest.fixture
def run(host: Host, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: object, on: Host | None = None) -> tuple[int, Any]:
        code = cli.main([*map(str, words), "--output", "json"], host=on or host)
        return code, json.loads(capsys.readouterr().out)

    return call


@pytest.mark.parametrize("command", COMMANDS)
def test_it_names_the_host_and_what_changes_things_says_what(run: Run, config: Any, command: str) -> None:
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
def test_each_problem_of_a_config_is_in_it_with_its_path(run: Run, config: Any, command: str) -> None:
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


def test_a_strict_failure_has_what_was_installed_and_what_was_found(run: Run, config: Any) -> None:
    config(SHADOWED)
    code, document = run("apply")
    assert (code, document["changed"]) == (1, True)
    assert document["routes"] == [{"route": LINE, "change": "added"}]
    assert {"unit": "check-route-overlap.service", "change": "enabled"} in document["units"]
    assert {"path": "/etc/aks-flex-node/check-route-overlap.sh", "change": "added"} in document["files"]
    assert [finding["cidr"] for finding in document["overlap"]["findings"]] == ["172.16.2.0/24"]
    assert "172.16.2.0/24" in document["error"]
    code, again = run("apply")
    assert (code, again["changed"], again["routes"], again["overlap"]["verdict"]) == (1, False, [], "overlap")


def test_what_the_kernel_does_not_permit_is_77(run: Run, config: Any, host: Host) -> None:
    config(SECTION)
    on = Host(FailingBackend(host.routes, {"add": {1: errno.EPERM}}), host.units, host.layout)
    code, document = run("apply", on=on)
    assert (code, document["changed"], document["files"]) == (77, False, [])
    assert "not permitted" in document["error"]
    assert document["hint"] == "run as root (CAP_NET_ADMIN)"


def test_a_systemd_that_refuses_is_1(run: Run, config: Any, host: Host) -> None:
    class Refusing(FakeSystemd):
        def disable(self, unit: str) -> None:
            raise UnitError("`systemctl disable` failed")

    config(SECTION)
    run("apply")
    code, document = run("remove", on=Host(host.routes, Refusing(host.layout, running=[MACHINE]), host.layout))
    assert (code, document["error"]) == (1, "`systemctl disable` failed")
    folder = "/etc/systemd/system/systemd-nspawn@.service.d"
    drop_ins = {f"{folder}/{name}-hostrouting.conf" for name in ("00", "zz")}
    assert {change["path"] for change in document["files"] if change["change"] == "removed"} == drop_ins
    # What would have gone after it lets a start through meanwhile.
    assert {change["path"] for change in document["files"] if change["change"] == "replaced"} == {
        "/etc/aks-flex-node/static-routes.sh",
        "/etc/hostrouting/gate.list",
        "/etc/hostrouting/installed.json",
    }
    assert document["changed"]


def test_a_removal_lists_all_that_went(run: Run, config: Any, host: Host) -> None:
    config(SECTION)
    added = run("apply")[1]
    code, removed = run("remove")
    assert (code, removed["routes"]) == (0, [{"route": LINE, "change": "removed"}])
    assert {each["path"] for each in added["files"]} <= {each["path"] for each in removed["files"]}
    assert [(each["unit"], each["change"]) for each in removed["units"]] == [
        ("static-routes.service", "disabled"),
        ("check-route-overlap.service", "disabled"),
    ]
    assert run("remove")[1]["changed"] is False


def test_a_gate_that_moves_is_told_and_foreseen(run: Run, config: Any) -> None:
    config(SECTION)
    run("apply")
    config(SECTION | {"consumer": "kubelet.service"})
    plan, applied = run("plan")[1], run("apply")[1]
    gates = [each for each in applied["files"] if each["path"].endswith("zz-hostrouting.conf")]
    assert gates == [
        {"path": "/etc/systemd/system/kubelet.service.d/zz-hostrouting.conf", "change": "added"},
        {"path": "/etc/systemd/system/systemd-nspawn@.service.d/zz-hostrouting.conf", "change": "removed"},
    ]
    assert (plan["changed"], applied["changed"]) == (True, True)
    assert sorted(map(str, plan["files"])) == sorted(map(str, applied["files"]))


def test_people_are_told_the_same(config: Any, host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    config(SECTION)
    cli.main(["apply"], host=host)
    capsys.readouterr()
    config(SHADOWED | {"consumer": "kubelet.service", "watch": {"enabled": True}})
    assert cli.main(["apply"], host=host) == 1
    lines = capsys.readouterr().out.splitlines()
    assert {
        "added     /etc/systemd/system/kubelet.service.d/zz-hostrouting.conf",
        "removed   /etc/systemd/system/systemd-nspawn@.service.d/zz-hostrouting.conf",
        "enabled   hostrouting-watch.service",
        "restarted hostrouting-watch.service",
    } <= {*lines}
    config({})
    assert cli.main(["apply"], host=host) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "nothing to change" not in lines
    assert {f"removed   {LINE}", "stopped   hostrouting-watch.service", "disabled  static-routes.service"} <= {*lines}
    assert cli.main(["apply"], host=host) == 0
    assert capsys.readouterr().out.splitlines()[0] == "nothing to change"


@pytest.mark.parametrize("output", ["text", "json"])
def test_only_the_form_that_is_asked_for_is_made(
    output: str, config: Any, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of thousands of routes the other would take as long as to install them."""
    config(SECTION)
    made: list[str] = []

    def noted(form: str, function: Any) -> Any:
        def noting(*given: Any) -> Any:
            made.append(form)
            return function(*given)

        return noting

    monkeypatch.setattr(Changes, "to_json", noted("json", Changes.to_json))
    monkeypatch.setattr(changes, "changes_lines", noted("text", changes.changes_lines))
    assert cli.main(["apply", "--routes-only", "--output", output], host=host) == 0
    assert {*made} == {output}
