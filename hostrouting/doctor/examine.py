"""Check whether the gate is effective on this host and look for risks, without changing anything.

Each check is a function that takes an ``ExaminedHost`` and yields findings. If a check raises an
error, the error becomes a finding, and the other checks still run. To add a check, add it to
``CHECKS``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from hostrouting.boot.host import Host
from hostrouting.boot.systemctl import NoAnswerError, NoSystemdError
from hostrouting.boot.trial_timer import TRIAL_HINT, is_overdue, trial_deadline
from hostrouting.config.routing import Config
from hostrouting.doctor import _consumer, _files, _routes
from hostrouting.doctor.check_types import DoctorCheck, DoctorFinding, ExaminedHost, Severity
from hostrouting.model.errors import FileError, HostRoutingError
from hostrouting.model.text import shown
from hostrouting.model.values import frozen
from hostrouting.tasks.arguments import to_config, to_host, to_scope
from phases import CancelScope

CHECKS = (
    DoctorCheck("verdict", "everything expected leaves as expected now", _consumer.verdict),
    DoctorCheck("held", "the gate holds no start right now", _consumer.held),
    DoctorCheck(
        "trial",
        "no trial of routes is in progress",
        _routes.trial,
        is_of_the_installed=False,
    ),
    DoctorCheck(
        "installed",
        "everything that CONFIG asks for is installed",
        _files.installed,
        is_of_the_installed=False,
        is_of_images=True,
    ),
    DoctorCheck(
        "consumer", "the unit that is held back exists", _consumer.consumer, is_of_images=True
    ),
    DoctorCheck("files", "every file is as rendered", _files.rendered, is_of_images=True),
    DoctorCheck(
        "modes",
        "only root can change what the gate runs",
        _files.modes,
        is_of_images=True,
    ),
    DoctorCheck("access", "the scripts can be run, and their lock is free", _files.access),
    DoctorCheck(
        "gate",
        "every instance runs the gate before it starts, and obeys it",
        _consumer.gate,
        is_of_images=True,
    ),
    DoctorCheck(
        "break-glass", "the gate wasn't left open", _consumer.break_glass, is_of_images=True
    ),
    DoctorCheck("sight", "the gate sees the host's network and files", _consumer.sight),
    DoctorCheck(
        "units",
        "the units start at boot, as their current files say",
        _files.units,
        is_of_images=True,
    ),
    DoctorCheck("ordering", "units start in the right order, without a cycle", _consumer.ordering),
    DoctorCheck("ties", "nothing that is done to the oneshots stops an instance", _consumer.ties),
    DoctorCheck("restart", "after a fix every instance starts by itself", _consumer.restarts),
    DoctorCheck(
        "tools",
        "bash, ip, awk, flock and timeout exist and can be run",
        _files.tools,
        is_of_images=True,
    ),
    DoctorCheck("watcher", "the watcher runs, if it is installed", _routes.watcher),
    DoctorCheck(
        "leftovers",
        "nothing is left of the Go package or of earlier versions",
        _files.leftovers,
        is_of_the_installed=False,
        is_of_images=True,
    ),
    DoctorCheck(
        "agents",
        "no other program writes our scripts",
        _files.agents,
        is_of_the_installed=False,
        is_of_images=True,
    ),
    DoctorCheck("routes", "every route is in the kernel, and wins", _routes.routes),
    DoctorCheck(
        "networkd",
        "systemd-networkd removes no routes or rules, or the watcher restores them",
        _routes.networkd,
    ),
    DoctorCheck(
        "networkmanager",
        "NetworkManager removes no routes, or the watcher restores them",
        _routes.network_manager,
    ),
    DoctorCheck(
        "cloud-init",
        "cloud-init removes no routes, or the watcher restores them",
        _routes.cloud_init,
    ),
    DoctorCheck(
        "advertisements",
        "the kernel accepts IPv6 router advertisements",
        _routes.advertisements,
        is_of_the_installed=False,
    ),
)


GATE_CHECKS = tuple(each for each in CHECKS if each.look in (_files.rendered, _consumer.gate))
"""The checks of the files and of each instance's gate."""


@frozen
class DoctorReport:
    """The doctor's report on a host.

    Args:
        found: findings by check, in execution order.
    """

    found: dict[DoctorCheck, tuple[DoctorFinding, ...]]

    @property
    def findings(self) -> tuple[DoctorFinding, ...]:
        """Return the findings from all checks."""
        return tuple(finding for findings in self.found.values() for finding in findings)

    @property
    def worst(self) -> Severity | None:
        """Return the worst severity of all findings, or None without findings."""
        found = {finding.severity for finding in self.findings}
        return next((severity for severity in Severity if severity in found), None)

    @property
    def is_broken(self) -> bool:
        """Return whether anything is broken or couldn't be checked. Risks don't count."""
        return self.worst in (Severity.BROKEN, Severity.UNKNOWN)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        found = self.found.items()
        return {
            "schema": 1,
            "verdict": "ok" if self.worst is None else str(self.worst),
            "findings": [
                {"check": each.name, **finding.to_json()}
                for each, findings in found
                for finding in findings
            ],
            "checks": [
                {"name": each.name, "ok": not findings, "fine": each.fine}
                for each, findings in found
            ],
        }


def examine(
    config: Config | None = None,
    *,
    host: Host | None = None,
    checks: Iterable[DoctorCheck] = CHECKS,
    config_name: str = "CONFIG",
    scope: CancelScope | None = None,
) -> DoctorReport:
    """Run all checks on a host, without changing anything.

    In a mounted image, only the checks that need just files are run. If nothing is installed, the
    checks of installed parts are skipped.

    Args:
        config: the wanted config. With None, the installed config counts.
        host: the host to examine; defaults to the local host.
        checks: the checks to run, in order. To add a plug-in's checks, pass e.g. ``CHECKS +
            azure.CHECKS``.
        config_name: the config file that suggested commands name. Empty if they need no such
            argument.
        scope: cancels the run.

    Returns:
        The report. Errors in checks are reported as findings and don't raise an exception.

    Raises:
        phases.Cancelled, phases.TimedOut: the scope was cancelled.
        FileError: the host is a snapshot, which holds no files.
    """
    if not isinstance(config_name, str):
        raise TypeError(f"examine(config_name=…) takes a str, not {shown(config_name)}")
    config = None if config is None else to_config(config)
    checks = _to_checks(checks)
    host = to_host(host)
    with to_scope(scope) as scope:
        examined = ExaminedHost(host, host.layout, config, config_name, scope)
        able = (each for each in checks if each.is_of_images or not examined.host.is_image)
        made = (each for each in able if examined.has_installation or not each.is_of_the_installed)
        return DoctorReport({each: _look(each, examined) for each in made})


def why_unpredicted(host: Host, scope: CancelScope) -> str:
    """Return that a host's gate has changed, so that no start can be predicted; else "".

    Raises:
        FileError: a file can't be read.
    """
    changed = _files.changed_gate_files(ExaminedHost(host, host.layout, None, "", scope))
    files = " and ".join(changed)
    return f"the gate's {files} isn't as installed: hostrouting doctor" if changed else ""


def _to_checks(values: Iterable[DoctorCheck]) -> tuple[DoctorCheck, ...]:
    if not isinstance(values, Iterable):
        raise TypeError(f"examine(checks=…) takes checks such as CHECKS, not {shown(values)}")
    checks = tuple(values)
    for each in checks:
        if not isinstance(each, DoctorCheck):
            raise TypeError(f"examine(checks=…) takes checks such as CHECKS, not {shown(each)}")
    return checks


def _look(check: DoctorCheck, examined: ExaminedHost) -> tuple[DoctorFinding, ...]:
    examined.scope.check()
    try:
        found = tuple(check.look(examined))
        return tuple(map(_first_of_trial, found)) if _is_on_trial(examined) else found
    except (HostRoutingError, OSError) as error:
        cause, hint = _cause_and_hint(error)
        message = f"can't tell whether {check.fine}: {cause}"
        unknown = Severity.UNKNOWN
        return (DoctorFinding("not-examined", check.name, message, hint, unknown, cause),)


def _is_on_trial(examined: ExaminedHost) -> bool:
    """Return whether a trial of routes is in progress, and can still be confirmed."""
    layout = examined.layout
    try:
        return trial_deadline(layout.trial) is not None and not is_overdue(layout)
    except FileError:  # the doctor's check ``trial`` reports this error
        return False


def _first_of_trial(finding: DoctorFinding) -> DoctorFinding:
    """Return a finding that doesn't advise an ``apply``, which would end the trial in progress."""
    if "hostrouting apply" not in finding.hint:
        return finding
    return attrs.evolve(finding, hint=f"{TRIAL_HINT}; then: hostrouting doctor")


def _cause_and_hint(error: HostRoutingError | OSError) -> tuple[str, str]:
    """Return why a check couldn't run, and advice."""
    again = "then: hostrouting doctor"
    if isinstance(error, OSError):
        return str(error), f"fix that, {again}"
    if error.is_not_permitted:
        return error.message, "run as root"
    if isinstance(error, NoSystemdError):
        return error.reason, "run it where systemd runs: hostrouting doctor"
    cause = error.reason if isinstance(error, NoAnswerError) else error.message
    return cause, f"{error.hint or 'fix that'}, {again}"
