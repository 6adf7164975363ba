"""Reproduce bugs in the reference's units on a real systemd; each explains part of the gate's design.

The units are imitations. These oneshots have ``Before=`` and ``RequiredBy=`` on the template, and an installer restarts
them when their script changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from boot.payloads import add_nested_machine

if TYPE_CHECKING:
    from boot.rig import Machine

TEMPLATE = "systemd-nspawn@.service"
ROUTES, CHECK = "static-routes.service", "check-route-overlap.service"
ROUTES_SCRIPT, CHECK_SCRIPT = "/etc/aks-flex-node/static-routes.sh", "/etc/aks-flex-node/check-route-overlap.sh"

UNIT = """\
[Unit]
Wants=network-online.target
After=network-online.target {after}
Before={consumer}
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={script}
[Install]
WantedBy=multi-user.target
RequiredBy={consumer}
"""

PASSING = "#!/bin/sh\nexit 0\n"
FAILING = "#!/bin/sh\nexit 1\n"
# A slow STRICT check, for example one that waits for DHCP and then fails.
SLOWLY_FAILING = "#!/bin/sh\nuntil [ -e /run/go ]; do sleep .02; done\nexit 1\n"


def install(machine: Machine, consumer: str, *, check: str) -> None:
    for unit, script, text, after in (
        (ROUTES, ROUTES_SCRIPT, PASSING, ""),
        (CHECK, CHECK_SCRIPT, check, ROUTES),
    ):
        machine.write(script, text, mode=0o755)
        machine.write(f"/etc/systemd/system/{unit}", UNIT.format(script=script, after=after, consumer=consumer))
        machine.systemctl("enable", unit)


class TestBeforeATemplateOrdersNothing:
    """``Before=`` with a template, as in the reference, orders nothing."""

    def test_systemd_orders_an_instance_named_after_the_unit(self, node: Machine) -> None:
        kube1 = add_nested_machine(node)
        install(node, TEMPLATE, check=PASSING)
        node.boot()
        assert "systemd-nspawn@static-routes.service" in node.show(ROUTES, "Before")["Before"].split()
        instance = node.show(kube1.unit, "Requires", "After")
        assert {ROUTES, CHECK} <= set(instance["Requires"].split())
        assert {ROUTES, CHECK}.isdisjoint(instance["After"].split())
        assert node.run("systemd-analyze", "verify", f"/etc/systemd/system/{ROUTES}", check=False).returncode == 0

    def test_the_machine_starts_during_the_check(self, node: Machine) -> None:
        kube1 = add_nested_machine(node)
        install(node, TEMPLATE, check=SLOWLY_FAILING)
        node.boot(wait=False)
        kube1.wait_until_it_ran()
        assert node.state(CHECK) == "activating/start"
        started = kube1.main_pid()
        node.write("/run/go", "")
        node.wait_for(CHECK, "failed")
        assert kube1.is_running()
        assert kube1.main_pid() == started
        assert "Dependency failed" not in node.journal()


class TestARestartOfARequiredOneshotBouncesTheNode:
    """With the reference, a changed script restarts the node."""

    def test_it_is_stopped_and_started(self, node: Machine) -> None:
        payload = add_nested_machine(node)
        install(node, TEMPLATE, check=PASSING)
        node.boot()
        payload.wait_until_it_ran()
        before = payload.main_pid()
        node.systemctl("restart", ROUTES)
        node.wait_until(lambda: len(payload.starts()) == 2, "a second start")
        assert payload.main_pid() not in (0, before)
        assert "Stopped" in node.journal(payload.unit)

    def test_it_stays_down_if_the_restart_fails(self, node: Machine) -> None:
        payload = add_nested_machine(node)
        install(node, TEMPLATE, check=PASSING)
        # The template isn't ordered, so make sure that the check fails before the machine is up again.
        node.write(f"/etc/systemd/system/{TEMPLATE}.d/zz-order.conf", f"[Unit]\nAfter={CHECK}\n")
        node.boot()
        payload.wait_until_it_ran()
        node.write(CHECK_SCRIPT, FAILING, mode=0o755)
        assert node.systemctl("restart", CHECK, check=False).returncode != 0
        node.wait_for(payload.unit, "inactive/dead")
        assert not payload.is_running()
        assert len(payload.starts()) == 1
