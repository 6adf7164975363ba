"""Trial routes: installed in the kernel, and removed by systemd unless they are confirmed in time.

A trial's state is kept in /run, so a reboot discards both the trial routes and their timer. A
trial's script ends the trial by running the installed routes script, so the former routes needn't
be saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

import attrs
from attrs.validators import ge, le

from hostrouting.boot import files, trial_timer
from hostrouting.boot.host import Host, is_fake_systemd
from hostrouting.boot.layout import Layout
from hostrouting.boot.locks import Done, exclusive_run, locked
from hostrouting.boot.manifest import Manifest
from hostrouting.boot.parts import Wanted
from hostrouting.boot.python import python_of
from hostrouting.boot.render import fill, render_no_routes
from hostrouting.boot.trial_timer import (
    is_overdue,
    read_trial,
    remove_trial_leftovers,
    start_timer,
    times_of,
    trial_deadline,
)
from hostrouting.config.routing import Config
from hostrouting.model.errors import RouteError, UnitError
from hostrouting.model.family import Family
from hostrouting.model.field_types import check_fields
from hostrouting.model.jsonable import to_json_text
from hostrouting.model.routes import Route
from hostrouting.model.values import frozen
from hostrouting.overlap.check import check_families
from hostrouting.routes.plan import RoutePlan, RoutesReport, plan_possible, read_policy
from hostrouting.routes.policy import PolicyPlan, PolicyRouting
from hostrouting.tasks.arguments import ConfigTask, HostTask
from hostrouting.tasks.configure import Run, raise_if_strict
from hostrouting.tasks.install_routes import (
    apply_and_verify,
    planned_routes,
    wait_for_network,
    write_routes,
)
from hostrouting.tasks.remaining import final_note, record_remaining
from hostrouting.tasks.reports import ConfigureReport
from phases import CancelScope, all_or_nothing

SECONDS_MAX = 86400


def _check_type(trial: TryRoutes, _attribute: object, _value: object) -> None:
    check_fields(trial, {"seconds": (int,)})


@frozen
class TryRoutes(ConfigTask):
    """Install the static routes for a limited time, and run the check.

    Units and files outside /run aren't changed.

    Without a confirmation in time, a systemd timer restores the routes of the installed config. The
    timer works even if this process has died. ``Configure``, another task that installs or removes
    routes, or a start of the consumer ends the trial earlier. If a STRICT check fails, the routes
    are restored immediately. The end of a trial removes every route of hostrouting that isn't in
    the installed config, including routes that ``InstallRoutes`` added earlier.

    Args:
        config: the config to try.
        seconds: duration of the trial in seconds, from 1 to 86400.
    """

    name = "try-routes"

    seconds: int = attrs.field(validator=[_check_type, ge(1), le(SECONDS_MAX)])

    def do(self, scope: CancelScope) -> ConfigureReport:
        """Start the trial.

        Returns:
            The changes, the result of the check, and the end of the trial.

        Raises:
            RouteOverlapError: the mode is STRICT, and a CIDR fails or the verdict is unknown; all
                changes are rolled back.
            HostRoutingError: a trial is already in progress, systemd isn't running, or a route
                can't be installed; all changes are rolled back.
        """
        config = self.config
        host = self.host.within(scope)
        with exclusive_run(host, scope, is_installing=True) as done:
            if is_overdue(host.layout):
                end_trial(host)
            # A process may have been killed while it confirmed a trial. The trial is then still in
            # progress.
            layout = host.layout
            if until := trial_deadline(layout.trial) or trial_deadline(layout.confirmed):
                raise RouteError(
                    f"a trial of routes is in progress until {until}",
                    hint="to keep it: hostrouting confirm; to end it: hostrouting revert",
                )
            config = host.with_verified(config)
            started = scope.clock.monotonic()
            wait_for_network(config, host, scope, started)
            times = times_of(self.seconds)
            end = scope.clock.monotonic() + self.seconds
            start_timer(host, self.seconds)
            with final_note(done), all_or_nothing() as ending:
                ending.push(partial(record_remaining, done, host))
                ending.push(partial(end_trial, host))
                with planned_routes(config, host, scope, started) as plan:
                    # Write the script that ends the trial before changing any routes.
                    _write_trial(config, times, host)
                    if scope.clock.monotonic() >= end:
                        files.remove(host.layout.trial)
                        raise RouteError(
                            f"the trial's {self.seconds} s expired before the lock was free",
                            hint="try again",
                        )
                    done.attempted = plan.changes
                    with all_or_nothing() as undo:
                        plan = apply_and_verify(plan, host, scope, undo)
                overlap = check_families(config, host.routes_of, scope, host=host)
                scope.check()
                raise_if_strict(overlap)
        report = ConfigureReport.of(plan, overlap, plan.changes, plan.diverted)
        return attrs.evolve(report, until=times["until"])


class ConfirmTrial(HostTask):
    """Keep the routes installed by ``TryRoutes``, and install everything else in its config."""

    name = "confirm-trial"

    def do(self, scope: CancelScope) -> ConfigureReport:
        """Confirm the trial.

        If this process is killed, the trial's timer starts another confirmation at the timeout. If
        the second confirmation fails, or the consumer starts before the timeout, the trial ends.

        Returns:
            The report of ``Configure``.

        Raises:
            RouteError: there is no trial.
            HostRoutingError: any error raised by ``Configure``; if nothing was installed, the
                previous routes are restored.
        """
        host = self.host.within(scope)
        with exclusive_run(host, scope, is_installing=True) as done:
            # Once the trial's file is renamed, the timer can't end the trial.
            document = _moved(
                host.layout.trial,
                host.layout.confirmed,
                host,
                scope,
                verb="confirm",
                hint="revert, or when the consumer starts; "
                "to install its config: hostrouting apply CONFIG",
            )
            with all_or_nothing() as undo:
                undo.push(partial(_take_back_confirm, host))
                config = Config.from_mapping(document)
                wanted = Wanted.of(config, host.layout)
                run = Run.begin(config, host, wanted, scope, done)
                plan = run.install(scope)
            try:
                overlap = run.finish(scope)
            finally:
                remove_trial_leftovers(host)
        return ConfigureReport.of(plan, overlap, done.changes, run.warnings)


def _take_back_confirm(host: Host) -> None:
    files.move(host.layout.confirmed, host.layout.trial)
    end_trial(host)


class EndTrial(HostTask):
    """End a trial before its timeout, and restore the routes of the installed config."""

    name = "end-trial"

    def do(self, scope: CancelScope) -> RoutesReport:
        """End the trial, even if a process that was confirming the trial has been killed.

        Returns:
            The routes and rules that the trial added, replaced, removed and left unchanged.

        Raises:
            RouteError: there is no trial, or a killed process had already installed the trial's
                config to confirm it.
            UnitError: systemd refuses to run the script that ends the trial, or the script fails.
                The error lists the routes that have changed. If the trial isn't over, systemd runs
                the script again at the timeout.
        """
        host = self.host.within(scope)
        with exclusive_run(host, scope, is_installing=True) as done:
            # This process holds the run lock, so no other process is confirming the trial. If this
            # file exists, such a process was killed.
            was_confirmed = files.exists(host.layout.confirmed)
            document = _moved(
                host.layout.confirmed,
                host.layout.trial,
                host,
                scope,
                verb="end",
                hint="confirm, or when the consumer starts",
            )
            before = _Ours.of(host)
            try:
                end_trial(host)
            finally:
                plan = before.difference(_Ours.of(host))
                done.changes |= plan.changes
            if files.is_present(host.layout.trial):
                # The script's paths are this machine's, even if it is below another root.
                run_it = f"run it: {quote(str(host.layout.trial_script))}"
                raise UnitError(
                    "can't end the trial: systemd has run its script, but the trial isn't over",
                    hint=run_it if host.layout.is_this_host else "",
                )
            config = Config.from_mapping(document)
            if was_confirmed and Manifest.of_host(host.layout).config == config:
                raise RouteError(
                    "the trial is over, but a confirmation, which was killed, "
                    "has installed its config",
                    hint="to install the former config again: hostrouting apply CONFIG",
                )
        return RoutesReport(plan, done.changes)


def end_trial(host: Host) -> None:
    """End the current trial, if any, as its script does.

    Raises:
        UnitError: the script failed. If the trial's timer is there, it runs the script again.
        RouteError: without a systemd to run the script, the installed routes can't be restored.
    """
    trial_timer.end_trial(host)
    if is_fake_systemd(host.units) and files.is_present(host.layout.trial):
        # FakeSystemd runs no program. On the machine of a test, the script would change the machine
        # instead of the fakes.
        installed = Manifest.of_host(host.layout).config
        write_routes(installed, host, CancelScope(), 0, (), Done())
        trial_timer.end_trial(host)  # stops the timer


def _moved(
    at: Path,
    to: Path,
    host: Host,
    scope: CancelScope,
    *,
    verb: str,
    hint: str,
) -> dict[str, Any]:
    """Rename the trial's file while holding the lock, and return its content.

    A process that was killed may have renamed the file already.

    Raises:
        RouteError: there is no trial.
    """
    with locked(host.layout.lock, scope):
        files.move(at, to)
    if (document := read_trial(to)) is None:
        reason = f"there is nothing to {verb}: no trial of routes is in progress"
        raise RouteError(reason, hint=f"a trial ends at its timeout, with {hint}")
    return document


@frozen
class _Ours:
    """Our routes, rules and side tables in a kernel.

    Args:
        routes: our routes in table main.
        policies: our rules and side tables, by family.
    """

    routes: tuple[Route, ...]
    policies: Mapping[Family, PolicyRouting]

    @classmethod
    def of(cls, host: Host) -> _Ours:
        """Read our routes, rules and side tables from a host's kernel."""
        backends = host.planned_backends(Config())
        return cls(host.our_routes(), {each.family: read_policy(each) for each in backends})

    def difference(self, after: _Ours) -> RoutePlan:
        """Return the plan that turns this state into a later one."""
        difference = RoutePlan()
        for family in Family:
            new = [route for route in after.routes if route.family is family]
            old = [route for route in self.routes if route.family is family]
            difference |= plan_possible(new, old)[0]
            policy = PolicyPlan(
                family,
                after.policies.get(family, PolicyRouting()),
                self.policies.get(family, PolicyRouting()),
            )
            if policy.wanted != policy.there or policy.there.rules:
                difference |= RoutePlan(policies=(policy,))
        return difference


# --- the files in /run ----------------------------------------------------------------------------


def _write_trial(config: Config, times: Mapping[str, Any], host: Host) -> None:
    script = render_trial(times["until"])
    files.write_if_changed(host.layout.trial_script, script, mode=0o755)
    document = {**times, **config.to_mapping()}
    files.write_if_changed(host.layout.trial, to_json_text(document))


def render_trial(until: str) -> str:
    """Render the script that ends a trial.

    Args:
        until: the end of the trial, by which the script recognizes its own trial. The script
            ignores other trials.
    """
    return fill(
        "trial.sh",
        UNTIL=until,
        PYTHON=quote(python_of(Layout())),
        NO_ROUTES=render_no_routes(),
    )
