"""Test that a STRICT node is held until Azure's agent has configured the InfiniBand addresses, and is checked then."""

from __future__ import annotations

from infiniband import infiniband
from nightly import by_day

from boot.rig import Machine
from boot.test_gate import CONFIG, FIXED, installed, marker, write_config
from hostrouting.kernel.namespace import enter_namespace

# Longer than the gate's own wait.
LATE_SECONDS = by_day(6, by_night=20)
AGENT = f"""\
[Service]
ExecStart=/bin/sh -c 'sleep {LATE_SECONDS}; exec ip address add 172.16.0.10/16 dev ib0'
[Install]
WantedBy=multi-user.target
"""


def test_a_strict_node_waits_for_the_address_that_shadows(machine: Machine) -> None:
    enter_namespace()  # the interface is created in this thread's namespace, which was the host's
    machine.add_nic("eth0", "10.1.0.4/24", gateway="10.1.0.1", metric=100)
    with infiniband("ib0", is_up=False):
        machine.take_nic("ib0")
        payload = installed(machine)
        machine.write("/etc/systemd/system/agent.service", AGENT)
        machine.systemctl("enable", "agent.service")
        machine.boot(wait=False)
        machine.wait_until(payload.is_held, f"the gate holds {payload.unit}")
        assert "172.16.0.10/16" in machine.ip("address", "show", "dev", "ib0")
        assert not payload.has_run()
        assert list(marker(machine)) == ["detected"]
        assert "waiting up to 60 s for an address on ib0" in machine.journal("check-route-overlap.service")
        write_config(machine, FIXED)
        machine.python("apply", CONFIG)
        payload.wait_until_it_ran()
        assert marker(machine) == {"ok": ""}
