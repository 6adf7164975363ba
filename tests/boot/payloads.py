"""Payloads for a node: nested machines under systemd-nspawn@.service, or simple units like
kubelet.service.

Each time a payload starts, it appends the time to a file and then keeps running. The file is
truncated before each boot.
"""

from __future__ import annotations

from dataclasses import dataclass

from boot.rig import PAYLOADS, Machine

__all__ = ["Payload", "add_kubelet", "add_nested_machine"]

# The nested machine shares /usr with its host, so the program is available there too.
_PROGRAM = "/usr/local/bin/payload"
_SCRIPT = """\
#!/bin/bash
trap 'exit 0' TERM
echo "$EPOCHREALTIME payload ran" >>"$1"
sleep infinity &
wait
"""

# Like the reference agent's machine, it has no network namespace of its own and uses the host's
# routes.
_NSPAWN = """\
[Exec]
Boot=no
KillSignal=SIGTERM
PrivateUsers=no
Parameters={program} {log}
[Network]
VirtualEthernet=no
[Files]
BindReadOnly=/usr
Bind={logs}
"""

# A minimal root directory that systemd-nspawn(1) accepts. Everything else comes from /usr.
_NESTED_TREE = """
mkdir -p "$1"
cd "$1"
mkdir -p etc usr proc sys dev run tmp root var/lib
for name in bin sbin lib lib64; do ln -sfn "usr/$name" "$name"; done
echo 'ID=nested' >etc/os-release
echo 2f3f3e0d2a6c4d10a2a9f3c9a1a4c5e7 >etc/machine-id
"""

_KUBELET = """\
[Unit]
Description=kubelet
[Service]
ExecStart={program} {log}
[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True)
class Payload:
    """A payload run by a unit in a machine."""

    machine: Machine
    unit: str
    log: str

    def boot(self) -> Payload:
        """Power the machine on, wait for the payload's first start, and return the payload."""
        self.machine.boot()
        self.wait_until_it_ran()
        return self

    def starts(self) -> list[float]:
        """Return the payload's start times in the current or last boot, as Unix timestamps."""
        return [float(line.split()[0]) for line in self.machine.peek(self.log).splitlines()]

    def has_run(self) -> bool:
        """Return whether the payload has started in this boot, or in the last one if the machine is
        off.
        """
        return self.starts() != []

    def is_running(self) -> bool:
        """Return whether the payload's own process is running, not just its unit."""
        return (
            "sleep infinity" in self.machine.processes(self.unit).values()
            and self.machine.state(self.unit) == "active/running"
        )

    def is_held(self) -> bool:
        """Return whether the gate is holding the start, that is, sleeping between two checks."""
        return bool(self._pauses()) and self.machine.state(self.unit) == "activating/condition"

    def _pauses(self) -> set[str]:
        return {
            pid for pid, words in self.machine.processes(self.unit).items() if words == "sleep 1"
        }

    def main_pid(self) -> int:
        """Return the unit's main PID, which changes when the unit is restarted."""
        return self.machine.main_pid(self.unit)

    def wait_until_held(self) -> None:
        """Wait until the gate has checked the start and is holding it."""
        self.machine.wait_until(self.is_held, f"the gate holds {self.unit}")

    def wait_until_held_again(self) -> None:
        """Wait until the gate has checked a held start once more."""
        before = self._pauses()
        self.machine.wait_until(
            lambda: not self._pauses() & before and self.is_held(), f"the gate holds {self.unit}"
        )

    def wait_until_it_ran(self) -> None:
        """Wait for the payload's first start in this boot."""
        self.machine.wait_until(self.has_run, f"the payload of {self.unit} ran")


def add_nested_machine(machine: Machine, name: str = "kube1", *, enabled: bool = True) -> Payload:
    """Add a nested machine that is started by the unmodified systemd-nspawn@.service.

    Args:
        machine: the outer machine, on or off.
        name: the nested machine's name.
        enabled: whether the nested machine starts at boot.
    """
    unit, log = f"systemd-nspawn@{name}.service", _add_program(machine, name)
    run = machine.run if machine.is_on else machine.run_offline
    run("sh", "-euc", _NESTED_TREE, "sh", f"/var/lib/machines/{name}")
    machine.write(
        f"/etc/systemd/nspawn/{name}.nspawn",
        _NSPAWN.format(program=_PROGRAM, log=log, logs=PAYLOADS),
    )
    if enabled:
        machine.systemctl("enable", unit)
    return Payload(machine, unit, log)


def add_kubelet(machine: Machine, name: str = "kubelet", *, enabled: bool = True) -> Payload:
    """Add a simple ``kubelet.service`` or a similar unit.

    Args:
        machine: the machine, on or off.
        name: the unit's name.
        enabled: whether the unit starts at boot.
    """
    unit, log = f"{name}.service", _add_program(machine, name)
    machine.write(f"/etc/systemd/system/{unit}", _KUBELET.format(program=_PROGRAM, log=log))
    if machine.is_on:
        machine.systemctl("daemon-reload")
    if enabled:
        machine.systemctl("enable", unit)
    return Payload(machine, unit, log)


def _add_program(machine: Machine, name: str) -> str:
    machine.write(_PROGRAM, _SCRIPT, mode=0o755)
    log = f"{PAYLOADS}/{name}"
    machine.write(log, "")
    return log
