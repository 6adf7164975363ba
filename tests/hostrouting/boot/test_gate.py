"""Tests for the drop-ins, the gate list, and the check that systemd has loaded the drop-ins unchanged."""

from __future__ import annotations

import pytest

from hostrouting.boot.gate import DROP_INS, list_text, missing_commands, opening_settings, with_other_scripts
from hostrouting.boot.manifest import WATCH, InstalledPart, Manifest

CONSUMER = "systemd-nspawn@.service"
HOLD, AGAIN, LAST = (f"/etc/hostrouting/gate.sh {word}" for word in ("hold", "again", "last"))
PASSED = "/usr/bin/test -f /run/aks-flex-node/passed/${INVOCATION_ID} -o -e /etc/hostrouting/gate.off"


def gated(**is_blocking: bool) -> Manifest:
    parts = {name.replace("_", "-"): InstalledPart(blocks, is_gated=True) for name, blocks in is_blocking.items()}
    return Manifest(CONSUMER, parts)


def shown(argv: str, flags: str = "privileged") -> str:
    path = argv.split()[0]
    times = "start_time=[n/a] ; stop_time=[n/a] ; pid=0 ; code=(null) ; status=0/0 }"
    return f"{{ path={path} ; argv[]={argv} ; flags={flags} ; {times}"


HELD = {
    "ExecConditionEx": shown(HOLD, "ignore-failure privileged"),
    "ExecStartPreEx": "\n".join(map(shown, (AGAIN, LAST, PASSED))),
}


def test_the_drop_ins_order_oneshots_and_unconfine_the_gate() -> None:
    oneshots = "static-routes.service check-route-overlap.service"
    first, last = (text.splitlines()[2:] for text in DROP_INS)
    assert first == [
        *("[Unit]", f"Wants={oneshots}", f"After={oneshots}", ""),
        *("[Service]", f"ExecCondition=-+{HOLD}", f"ExecStartPre=+{AGAIN}"),
    ]
    assert last == ["[Service]", f"ExecStartPre=+{LAST}", f"ExecStartPre=+{PASSED}"]


def test_all_lines_of_the_drop_ins_differ() -> None:
    """If two lines were identical, systemd would confuse them and skip the lines between them."""
    lines = [line for text in DROP_INS for line in text.splitlines() if line.startswith("Exec")]
    assert len({line.partition("=")[2].lstrip("-+") for line in lines}) == len(lines) == 4


def test_the_list_has_forgiven_steps_last() -> None:
    folder = "/etc/aks-flex-node"
    assert list_text(gated(static_routes=True, check_route_overlap=True), {"static-routes": b"one"}) == (
        f"{folder}/static-routes.sh required 7692c3ad3540bb80\n{folder}/check-route-overlap.sh required -\nend\n"
    )
    warn = gated(check_route_overlap=False, static_routes=True, another=True).with_parts((), {WATCH: InstalledPart()})
    assert [line.split()[:2] for line in list_text(warn, {}).splitlines()] == [
        [f"{folder}/static-routes.sh", "required"],
        [f"{folder}/another.sh", "required"],
        [f"{folder}/check-route-overlap.sh", "forgiven"],
        ["end"],
    ]
    assert list_text(Manifest(), {}) == "end\n"


def test_scripts_in_other_folders() -> None:
    text = list_text(gated(static_routes=True, check_route_overlap=True), {})
    assert with_other_scripts(text, {"/etc/aks-flex-node/static-routes.sh": "/new/static-routes.sh"}) == (
        "/new/static-routes.sh required -\n/etc/aks-flex-node/check-route-overlap.sh required -\nend\n"
    )


def test_a_unit_with_all_commands_lacks_none() -> None:
    assert missing_commands(HELD) == ()
    others = "\n".join((shown("/bin/true", ""), shown(LAST), shown("/bin/true"), shown(PASSED)))
    assert missing_commands(HELD | {"ExecStartPreEx": others}) == ()


@pytest.mark.parametrize(
    "command",
    [
        *("", shown("/bin/true"), shown(LAST, ""), shown(LAST, "ignore-failure privileged")),
        *(shown(f"{LAST}; true"), shown(f"/tmp{LAST}"), shown(AGAIN)),
    ],
)
def test_a_weakened_command_counts_as_missing(command: str) -> None:
    assert missing_commands(HELD | {"ExecStartPreEx": f"{command}\n{shown(PASSED)}"}) == (f"ExecStartPre=+{LAST}",)


def test_an_unforgiven_condition_counts_as_missing() -> None:
    """Without the "-" prefix, systemd would skip the unit permanently."""
    assert missing_commands(HELD | {"ExecConditionEx": shown(HOLD)}) == (f"ExecCondition=-+{HOLD}",)
    assert missing_commands(HELD | {"ExecConditionEx": ""}) == (f"ExecCondition=-+{HOLD}",)


FINE = {"SuccessExitStatus": "133", "TimeoutStartUSec": "1min 30s", "Environment": "A=1 B=INVOCATION_ID"}
FINE |= {"UnsetEnvironment": "B", "RuntimeDirectory": "kubelet", "RuntimeDirectoryPreserve": "no"}


@pytest.mark.parametrize(
    "status", ["255", "1", "133 2", "126", "127", "200", "203", "243", "KILL", "SIGTERM", "ABRT 0"]
)
def test_counting_the_gates_exit_status_as_success_opens_it(status: str) -> None:
    (found,) = opening_settings(FINE | {"SuccessExitStatus": status}, is_strict=False)
    assert "SuccessExitStatus=" in found


@pytest.mark.parametrize("status", ["", "133", "143", "254", "199", "244", "HUP"])
def test_counting_another_exit_status_as_success_is_fine(status: str) -> None:
    assert not list(opening_settings(FINE | {"SuccessExitStatus": status}, is_strict=True))


@pytest.mark.parametrize("span", ["4s", "24.500s", "500ms", "24"])
def test_a_short_timeout_is_a_problem_in_strict_only(span: str) -> None:
    (found,) = opening_settings(FINE | {"TimeoutStartUSec": span}, is_strict=True)
    assert "TimeoutStartSec=" in found
    assert not list(opening_settings(FINE | {"TimeoutStartUSec": span}, is_strict=False))


@pytest.mark.parametrize("span", ["25s", "59s", "1min", "1min 30s", "1h", "infinity", ""])
def test_a_long_timeout_is_no_problem(span: str) -> None:
    assert not list(opening_settings(FINE | {"TimeoutStartUSec": span}, is_strict=True))
