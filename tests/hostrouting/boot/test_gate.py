"""What the drop-in says, and whether what systemd holds is what it says."""

from __future__ import annotations

import pytest

from hostrouting.boot.gate import drop_in_text, gate_commands, missing_commands
from hostrouting.boot.manifest import CHECK, ROUTES, WATCH, InstalledPart, Manifest

CONSUMER = "systemd-nspawn@.service"


def gated(**is_blocking: bool) -> Manifest:
    parts = {name.replace("_", "-"): InstalledPart(blocks, is_gated=True) for name, blocks in is_blocking.items()}
    return Manifest(CONSUMER, parts)


BOTH = gated(static_routes=True, check_route_overlap=True)
STRICT, WARN = gated(check_route_overlap=True), gated(check_route_overlap=False)


def shown(argv: str, flags: str) -> str:
    path = argv.split()[0]
    times = "start_time=[n/a] ; stop_time=[n/a] ; pid=0 ; code=(null) ; status=0/0 }"
    return f"{{ path={path} ; argv[]={argv} ; flags={flags} ; {times}"


def test_the_drop_in_wants_orders_and_runs_the_scripts_directly_outside_the_sandbox() -> None:
    assert drop_in_text(BOTH).splitlines()[2:] == [
        "[Unit]",
        "Wants=static-routes.service check-route-overlap.service",
        "After=static-routes.service check-route-overlap.service",
        "",
        "[Service]",
        "ExecStartPre=+/etc/aks-flex-node/static-routes.sh gate",
        "ExecStartPre=+/etc/aks-flex-node/check-route-overlap.sh gate",
    ]


def test_in_warn_mode_only_the_check_is_forgiven() -> None:
    lines = drop_in_text(gated(check_route_overlap=False, static_routes=True)).splitlines()
    assert lines[-2:] == [
        "ExecStartPre=+/etc/aks-flex-node/static-routes.sh gate",
        "ExecStartPre=-+/etc/aks-flex-node/check-route-overlap.sh gate",
    ]


def test_only_what_is_installed_is_named() -> None:
    text = drop_in_text(STRICT)
    assert "static-routes" not in text
    assert "Wants=check-route-overlap.service\n" in text


def test_a_unit_that_holds_every_command_lacks_none_whatever_else_it_runs() -> None:
    lines = [shown("/bin/true", ""), *(shown(" ".join(c.argv), "privileged") for c in gate_commands(BOTH))]
    assert missing_commands(BOTH, "\n".join(lines)) == ()


@pytest.mark.parametrize(
    "exec_start_pre",
    [
        "",
        shown("/bin/true", "privileged"),
        shown("/etc/aks-flex-node/check-route-overlap.sh gate", ""),
        shown("/etc/aks-flex-node/check-route-overlap.sh gate", "ignore-failure privileged"),
        shown("/etc/aks-flex-node/check-route-overlap.sh gate; true", "privileged"),
        shown("/tmp/etc/aks-flex-node/check-route-overlap.sh gate", "privileged"),
    ],
)
def test_a_command_that_is_gone_or_has_lost_its_force_or_privileges_is_missing(exec_start_pre: str) -> None:
    assert missing_commands(STRICT, exec_start_pre) == gate_commands(STRICT)


def test_a_forgiven_command_must_be_forgiven() -> None:
    strict = shown("/etc/aks-flex-node/check-route-overlap.sh gate", "privileged")
    assert missing_commands(WARN, strict) == gate_commands(WARN)


def test_other_parts_come_behind_and_start_after_whom_they_name_and_the_watcher_is_in_no_gate() -> None:
    other = InstalledPart(is_gated=True, after=("nftables.service", "nftables-flush.service"))
    assert drop_in_text(BOTH.with_part("another", other).with_part(WATCH, InstalledPart())).splitlines()[2:] == [
        "[Unit]",
        f"Wants={ROUTES}.service {CHECK}.service another.service",
        f"After={ROUTES}.service {CHECK}.service another.service nftables.service nftables-flush.service",
        "",
        "[Service]",
        "ExecStartPre=+/etc/aks-flex-node/static-routes.sh gate",
        "ExecStartPre=+/etc/aks-flex-node/check-route-overlap.sh gate",
        "ExecStartPre=-+/etc/aks-flex-node/another.sh gate",
    ]
