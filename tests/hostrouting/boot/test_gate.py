"""What the drop-in says, and whether what systemd holds is what it says."""

from __future__ import annotations

import pytest

from hostrouting.boot.gate import CHECK, GATED, PROBE, ROUTES, drop_in_text, gate_commands, missing_commands

BOTH = {ROUTES: True, CHECK: True}


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
    lines = drop_in_text({CHECK: False, ROUTES: True}).splitlines()
    assert lines[-2:] == [
        "ExecStartPre=+/etc/aks-flex-node/static-routes.sh gate",
        "ExecStartPre=-+/etc/aks-flex-node/check-route-overlap.sh gate",
    ]


def test_only_what_is_installed_is_named() -> None:
    text = drop_in_text({CHECK: True})
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
    assert missing_commands({CHECK: True}, exec_start_pre) == gate_commands({CHECK: True})


def test_a_forgiven_command_must_be_forgiven() -> None:
    strict = shown("/etc/aks-flex-node/check-route-overlap.sh gate", "privileged")
    assert missing_commands({CHECK: False}, strict) == gate_commands({CHECK: False})


def test_the_probe_is_the_third_and_starts_after_whoever_flushes_the_ruleset() -> None:
    assert drop_in_text({PROBE: False, **BOTH}).splitlines()[2:] == [
        "[Unit]",
        "Wants=static-routes.service check-route-overlap.service load-balancer-probe.service",
        f"After={' '.join(f'{name}.service' for name in GATED)} nftables.service nftables-flush.service",
        "",
        "[Service]",
        "ExecStartPre=+/etc/aks-flex-node/static-routes.sh gate",
        "ExecStartPre=+/etc/aks-flex-node/check-route-overlap.sh gate",
        "ExecStartPre=-+/etc/aks-flex-node/load-balancer-probe.sh gate",
    ]
    assert "ExecStartPre=+/etc/aks-flex-node/load-balancer-probe.sh gate\n" in drop_in_text({PROBE: True})
