"""What drop-in and list say, and whether what systemd holds is what they say."""

from __future__ import annotations

import pytest

from hostrouting.boot.gate import DROP_IN, list_text, missing_commands, opening_settings, with_other_scripts
from hostrouting.boot.manifest import WATCH, InstalledPart, Manifest

CONSUMER = "systemd-nspawn@.service"
FIRST, AGAIN = "/etc/hostrouting/gate.sh first", "/etc/hostrouting/gate.sh again"


def gated(**is_blocking: bool) -> Manifest:
    parts = {name.replace("_", "-"): InstalledPart(blocks, is_gated=True) for name, blocks in is_blocking.items()}
    return Manifest(CONSUMER, parts)


def shown(argv: str, flags: str = "privileged") -> str:
    path = argv.split()[0]
    times = "start_time=[n/a] ; stop_time=[n/a] ; pid=0 ; code=(null) ; status=0/0 }"
    return f"{{ path={path} ; argv[]={argv} ; flags={flags} ; {times}"


HELD = {"ExecConditionEx": shown(FIRST), "ExecStartPreEx": shown(AGAIN)}


def test_the_drop_in_wants_and_orders_all_oneshots_and_runs_the_gate_twice_outside_the_sandbox() -> None:
    oneshots = "static-routes.service check-route-overlap.service"
    assert DROP_IN.splitlines()[2:] == [
        "[Unit]",
        f"Wants={oneshots}",
        f"After={oneshots}",
        "",
        "[Service]",
        f"ExecCondition=+{FIRST}",
        f"ExecStartPre=+{AGAIN}",
    ]


def test_the_list_names_what_is_installed_and_forgives_what_does_not_block_last() -> None:
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


def test_other_places_for_scripts() -> None:
    text = list_text(gated(static_routes=True, check_route_overlap=True), {})
    assert with_other_scripts(text, {"/etc/aks-flex-node/static-routes.sh": "/new/static-routes.sh"}) == (
        "/new/static-routes.sh required -\n/etc/aks-flex-node/check-route-overlap.sh required -\nend\n"
    )


def test_a_unit_that_holds_both_commands_lacks_none_whatever_else_it_runs() -> None:
    assert missing_commands(HELD) == ()
    assert missing_commands(HELD | {"ExecStartPreEx": f"{shown('/bin/true', '')}\n{shown(AGAIN)}"}) == ()


@pytest.mark.parametrize(
    "commands",
    [
        "",
        shown("/bin/true"),
        shown(AGAIN, ""),
        shown(AGAIN, "ignore-failure privileged"),
        shown(f"{AGAIN}; true"),
        shown(f"/tmp{AGAIN}"),
        shown(FIRST),
    ],
)
def test_a_command_that_is_gone_or_has_lost_its_force_or_privileges_is_missing(commands: str) -> None:
    assert missing_commands(HELD | {"ExecStartPreEx": commands}) == (f"ExecStartPre=+{AGAIN}",)


FINE = {"SuccessExitStatus": "133", "TimeoutStartUSec": "1min 30s"}


@pytest.mark.parametrize("status", ["255", "133 2", "126", "127", "200", "203", "243", "KILL", "SIGTERM", "ABRT 0"])
def test_a_success_by_which_the_gate_can_end_opens_it(status: str) -> None:
    (found,) = opening_settings(FINE | {"SuccessExitStatus": status}, is_strict=False)
    assert "SuccessExitStatus=" in found


@pytest.mark.parametrize("status", ["", "133", "1", "143", "254", "199", "244", "HUP"])
def test_another_success_does_not(status: str) -> None:
    assert not list(opening_settings(FINE | {"SuccessExitStatus": status}, is_strict=True))


@pytest.mark.parametrize("span", ["4s", "24.500s", "500ms", "24"])
def test_a_short_time_out_ends_a_strict_gate_and_a_warning_one_makes_do_with_it(span: str) -> None:
    (found,) = opening_settings(FINE | {"TimeoutStartUSec": span}, is_strict=True)
    assert "TimeoutStartSec=" in found
    assert not list(opening_settings(FINE | {"TimeoutStartUSec": span}, is_strict=False))


@pytest.mark.parametrize("span", ["25s", "59s", "1min", "1min 30s", "1h", "infinity", ""])
def test_a_time_out_that_is_long_enough_does_not(span: str) -> None:
    assert not list(opening_settings(FINE | {"TimeoutStartUSec": span}, is_strict=True))
