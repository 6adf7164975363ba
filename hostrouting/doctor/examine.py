"""Does the gate hold on this host, and what may break it? Nothing is ever changed.

Each examination is a function of a ``Patient`` that yields what it finds; one that can't be made is a finding too,
and the others go on. A new one gets a row in ``EXAMINATIONS``.

===============  ====================================================================
``_patient``     what is looked at: host, config, what is installed; each read once
``_gate``        the units as systemd has them in memory
``_files``       what lies on disk for the next boot
``_routes``      the kernel's routes, and who may take them away
``_neighbours``  the load balancer's probes, what azure-vnet has left
``_text``        what was found, for people
===============  ====================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hostrouting.azure import examinations
from hostrouting.boot.examination import Ailment, Diagnosis, Examined, Severity
from hostrouting.cli.doctor_text import diagnosis_text
from hostrouting.doctor import files, gate, routes
from hostrouting.doctor.patient import Patient
from hostrouting.model.errors import HostRoutingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hostrouting.azure.config import HostNetworking
    from hostrouting.boot.host import Host
    from hostrouting.config.routing import Config

__all__ = ["EXAMINATIONS", "Examination", "diagnosis_text", "examine"]


@attrs.frozen
class Examination:
    """Something to look at.

    Args:
        name: a word.
        fine: what is the case if nothing is found, a clause.
        look: finds what is wrong.
        is_of_the_installed: whether it has nothing to look at where nothing is installed.
    """

    name: str
    fine: str
    look: Callable[[Patient], Iterable[Ailment]]
    is_of_the_installed: bool = True


EXAMINATIONS = (
    Examination("installed", "what is asked for is installed", files.installed, is_of_the_installed=False),
    Examination("files", "every file is as rendered", files.rendered),
    Examination("gate", "every instance runs the gate before it starts", gate.gate),
    Examination("break-glass", "nobody has left the gate open", gate.break_glass),
    Examination("namespace", "the gate sees the host's network", gate.namespaces),
    Examination("units", "the units start at boot, and systemd has read them", files.units),
    Examination("ordering", "everything starts after what it waits for, in no cycle", gate.ordering),
    Examination("restart", "after a mend every instance starts by itself", gate.restarts),
    Examination("tools", "bash, ip, awk, flock and timeout are there", files.tools),
    Examination("leftovers", "nothing is left of the reference or of earlier versions", files.leftovers, False),
    Examination("agents", "nobody else writes or runs our scripts", files.agents, False),
    Examination("routes", "every route is in the kernel, and wins", routes.routes),
    Examination("protocol", "nobody else uses protocol 217", routes.protocol, False),
    Examination("networkd", "systemd-networkd takes no route away", routes.networkd),
    Examination("networkmanager", "NetworkManager takes no route away", routes.network_manager),
    Examination("cloud-init", "cloud-init takes no route away", routes.cloud_init),
    Examination("probes", "the load balancer's probes are rewritten as asked", examinations.probes, False),
    Examination("flushes", "whoever flushes the ruleset gives the probes' rules back", examinations.flushes, False),
    Examination("azure-vnet", "azure-vnet has left nothing in a pod's way", examinations.azure_vnet, False),
    Examination("python", "the Python that hostrouting's commands name is there", files.python, False),
)


def examine(
    host: Host,
    config: Config | None = None,
    networking: HostNetworking | None = None,
    *,
    config_name: str = "CONFIG",
) -> Diagnosis:
    """Make all examinations of a running host, changing nothing.

    Args:
        host: whose kernel, systemd and files to look at.
        config: what is asked for; None: what the installed scripts were rendered from.
        networking: what is asked for beside host routing; None: what the installed script was rendered from.
        config_name: their file, as the remedies shall name it in commands; empty: the one that needn't be named.

    Returns:
        What was found. It never raises because one examination can't be made.
    """
    patient = Patient(host, config, networking, config_name)
    return Diagnosis(
        tuple(
            Examined(each.name, each.fine, _look(each, patient))
            for each in EXAMINATIONS
            if patient.has_installation or not each.is_of_the_installed
        )
    )


def _look(examination: Examination, patient: Patient) -> tuple[Ailment, ...]:
    try:
        return tuple(examination.look(patient))
    except (HostRoutingError, OSError) as error:
        can_not = isinstance(error, HostRoutingError) and error.is_not_permitted
        remedy = "run as root" if can_not else "mend that, then: hostrouting doctor"
        message = f"whether {examination.fine} couldn't be examined: {error}"
        return (Ailment("not-examined", examination.name, message, remedy, Severity.UNKNOWN),)
