"""Does the gate hold on this host, and what may break it? Nothing is ever changed.

Each examination is a function of an ``ExaminedHost`` that yields what it finds; one that can't be made is a fault too,
and the others go on. A new one gets a row in ``CHECKS``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from hostrouting.boot.host import Host
from hostrouting.config.routing import Config
from hostrouting.doctor import _files, _gate, _routes
from hostrouting.doctor.examination import Examination, ExaminedHost, Fault, Severity
from hostrouting.model.errors import HostRoutingError
from hostrouting.overlap.node_ip import NodeAddresses
from hostrouting.tasks.arguments import to_config, to_host
from phases import CancelScope

CHECKS = (
    Examination("verdict", "the check lets the next start through now", _gate.verdict),
    Examination("held", "the gate holds no start right now", _gate.held),
    Examination("trial", "no trial of routes stands", _routes.trial, is_of_the_installed=False),
    Examination("installed", "what is asked for is installed", _files.installed, False, True),
    Examination("consumer", "the unit that is held back exists", _gate.consumer, is_of_images=True),
    Examination(
        "node-ip", "the addresses that CONFIG gives node and DNS fit", _gate.node_ip, is_of_the_installed=False
    ),
    Examination("files", "every file is as rendered", _files.rendered, is_of_images=True),
    Examination("modes", "only root can change what the gate runs", _files.modes, is_of_images=True),
    Examination("access", "the scripts can be run, and their lock is free", _files.access),
    Examination("gate", "every instance runs the gate before it starts, and obeys it", _gate.gate, is_of_images=True),
    Examination("break-glass", "the gate wasn't left open", _gate.break_glass, is_of_images=True),
    Examination("sight", "the gate sees the host's network and files", _gate.sight),
    Examination("units", "the units start at boot, and systemd has read them", _files.units, is_of_images=True),
    Examination("ordering", "everything starts after what it waits for, in no cycle", _gate.ordering),
    Examination("ties", "nothing that is done to the oneshots stops an instance", _gate.ties),
    Examination("restart", "after a mend every instance starts by itself", _gate.restarts),
    Examination("tools", "bash, ip, awk, flock and timeout are there, and can be run", _files.tools, is_of_images=True),
    Examination("watcher", "what puts lost routes back runs, if it is installed", _routes.watcher),
    Examination("leftovers", "nothing is left of the reference or of earlier versions", _files.leftovers, False, True),
    Examination("agents", "no other program writes our scripts", _files.agents, False, True),
    Examination("routes", "every route is in the kernel, and wins", _routes.routes),
    Examination("networkd", "systemd-networkd takes no route away", _routes.networkd),
    Examination("networkmanager", "NetworkManager takes no route away", _routes.network_manager),
    Examination("cloud-init", "cloud-init takes no route away", _routes.cloud_init),
)


@attrs.frozen
class DoctorReport:
    """Findings of the doctor on a host.

    Args:
        found: by the examinations that were made, in order.
    """

    found: dict[Examination, tuple[Fault, ...]]

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Everything that was found."""
        return tuple(fault for faults in self.found.values() for fault in faults)

    @property
    def worst(self) -> Severity | None:
        """The gravest that was found; None if nothing was."""
        found = {fault.severity for fault in self.faults}
        return next((severity for severity in Severity if severity in found), None)

    @property
    def is_broken(self) -> bool:
        """Return whether anything is broken, or couldn't be seen; not if something only may break later."""
        return self.worst in (Severity.BROKEN, Severity.UNKNOWN)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        found = self.found.items()
        return {
            "schema": 1,
            "verdict": "ok" if self.worst is None else str(self.worst),
            "findings": [{"examination": each.name, **fault.to_json()} for each, faults in found for fault in faults],
            "examinations": [{"name": each.name, "ok": not faults, "fine": each.fine} for each, faults in found],
        }


def examine(
    config: Config | None = None,
    *,
    host: Host | None = None,
    checks: Iterable[Examination] = CHECKS,
    config_name: str = "CONFIG",
    scope: CancelScope | None = None,
    document: Mapping[str, Any] | None = None,
) -> DoctorReport:
    """Make all examinations of a host, or those of an image's files, changing nothing.

    Args:
        config: what is asked for; None: what is installed, as its manifest says.
        host: whose kernel, systemd and files to look at; None: this host.
        checks: those to make, in order; a plug-in's are added, as in ``CHECKS + azure.CHECKS``.
        config_name: the config's file, as the remedies shall name it in commands; empty: the one that needn't be named.
        scope: ends what is waited for.
        document: that the config was read from: its ``node.kubelet.nodeIP`` and ``networking.dnsServiceIP`` are to
            fit the host.

    Returns:
        What was found. It never raises because one examination can't be made.
    """
    config = None if config is None else to_config(config)
    given = NodeAddresses.of(document)
    examined = ExaminedHost(to_host(host), config, config_name, scope or CancelScope(), given)
    able = (each for each in checks if each.is_of_images or not examined.host.is_image)
    made = (each for each in able if examined.has_installation or not each.is_of_the_installed)
    return DoctorReport({each: _look(each, examined) for each in made})


def _look(examination: Examination, examined: ExaminedHost) -> tuple[Fault, ...]:
    try:
        return tuple(examination.look(examined))
    except (HostRoutingError, OSError) as error:
        can_not = isinstance(error, HostRoutingError) and error.is_not_permitted
        remedy = "run as root" if can_not else "mend that, then: hostrouting doctor"
        message = f"can't tell whether {examination.fine}: {error}"
        return (Fault("not-examined", examination.name, message, remedy, Severity.UNKNOWN),)
