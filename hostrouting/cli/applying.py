"""The commands that apply a config, try it, or plan it.

Each docstring is also the command's help text.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

import phases
from hostrouting.boot.host import Host
from hostrouting.cli.changes import applied_text, changed_text, changes_lines, plan_text
from hostrouting.cli.exit_codes import EXIT_PLAN_CHANGES
from hostrouting.cli.inputs import asked_host, read
from hostrouting.cli.output import complain
from hostrouting.cli.running import (
    Result,
    cancelled_by_signals,
    run_function,
    run_task,
    say_result,
)
from hostrouting.config.routing import Config, OverlapMode
from hostrouting.model.errors import RouteError
from hostrouting.model.text import clean
from hostrouting.overlap.findings import RouteOverlapError, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostrouting.tasks.reports import ConfigureReport

# How long the command waits if the terminal is stopped. Then it goes on, so that a signal still
# ends the trial.
_TRIAL_SECONDS = 5.0


def apply(options: argparse.Namespace, host: Host) -> Result | int:
    """Install CONFIG's routes, check and gate, and run the check.

    The command installs the static routes and rules, either all or none, and runs the check. For
    later boots, it installs scripts, units and the gate: two drop-ins that hold back the consumer
    (systemd-nspawn@.service, or the unit set in CONFIG) until the routes are installed. In STRICT
    mode, they hold it back until the check has passed, too. What an earlier run installed and
    CONFIG no longer has is removed. A running machine is never stopped or restarted. The command
    lists each change, even if it fails half-way; -v also lists unchanged routes and rules. With
    --output json it always prints a single document, with "host", "changed", lists of "routes",
    "rules", "files" and "units", the "unchanged" routes, the "unchangedRules", "notes" on what
    isn't kept, "overlap", and "error" on failure.

    Without an argument, apply uses the default CONFIG. If that asks for something other than the
    CONFIG that was applied, the last line gives the command that copies the applied one there. If
    the default CONFIG has no key hostRouting, apply without an argument fails, because it would
    remove what is installed. A reset by AKSFlexNode removes all scripts. Then apply removes the
    rest.

    With --try it only changes the kernel's routes and rules, and runs the check. To keep the tried
    routes and install the rest, run hostrouting confirm, or press Enter on a terminal. When the
    timeout expires, systemd restores the installed routes, even if hostrouting has been killed. To
    restore them immediately, run hostrouting revert or press Ctrl-C; a failing check in STRICT mode
    does the same. At the end, every route of hostrouting that isn't installed is removed, even if
    --routes-only added it. The watcher changes no routes during a trial. Another apply, a remove or
    a start of the consumer ends the trial, too; such a start is checked against the installed
    config.

      hostrouting apply /etc/aks-flex-node/config.json
      hostrouting apply --try 60 config.json                 Enter or hostrouting confirm keeps the routes
      hostrouting apply --root /mnt/image config.json        takes effect at the image's first boot
    """  # noqa: E501
    on = options.image or host
    document, config = read(options, on)
    _refuse_to_remove(options, document, on)
    if options.try_seconds is not None:
        return _try_routes(options, config, host)
    if options.routes_only:
        from hostrouting.cli.default_config import note_on_gate
        from hostrouting.tasks.install_routes import InstallRoutes

        routes = run_task(InstallRoutes(config, host=host))
        text = partial(changed_text, routes.plan, routes.changes, is_verbose=options.verbose)
        warnings = (*routes.plan.diverted, *note_on_gate(config, host))
        document = routes.to_json() | {"overlap": None, "warnings": [*warnings]}
        return Result(lambda: document, text, warnings=(*warnings, *routes.plan.notes))
    from hostrouting.tasks.configure import Configure

    is_held = options.image is not None and config.is_gated
    ending = f"{on.layout.root} is set up from its first boot on" if is_held else ""
    return _applied(options, Configure(config, host=on), on, ending, options.config)


def _refuse_to_remove(options: argparse.Namespace, document: Mapping[str, Any], host: Host) -> None:
    """Raise an error if the default CONFIG is used and would remove the installation."""
    if options.config is None:
        from hostrouting.cli.default_config import refuse_to_remove

        refuse_to_remove(document, host)


def _applied(
    options: argparse.Namespace,
    task: phases.Task[ConfigureReport],
    host: Host,
    ending: str,
    source: str | None = "",
) -> Result:
    """Run a task that installs a config, and warn if the default CONFIG differs from it.

    Args:
        options: the command's options.
        task: the task to run.
        host: the host or the image.
        ending: a line for the end of the output, or an empty string.
        source: the path of the config; None for the default CONFIG; an empty string if the path
            isn't known.
    """
    try:
        report = run_task(task)
    except RouteOverlapError as error:  # everything is installed
        error.warnings += _notes_on_default(host, source)
        raise
    notes = _notes_on_default(host, source)
    noted = attrs.evolve(report, warnings=(*report.warnings, *notes))
    kept = _kept_uplinks(report, host)
    lines = "\n".join(filter(None, [kept, ending, *map(clean, notes)]))
    text = partial(applied_text, report, lines, is_verbose=options.verbose)
    warnings = (*report.warnings, *report.routes.plan.notes)
    return Result(noted.to_json, text, warnings=warnings)


def _kept_uplinks(report: ConfigureReport, host: Host) -> str:
    """Return a line about the verified uplinks, or an empty string if none were verified."""
    overlap = report.overlap
    is_verified = overlap.mode is OverlapMode.STRICT and overlap.verdict is Verdict.OK
    verified = host.verified if is_verified else ()
    if not verified:
        return ""
    devs = clean(",".join(overlap.default_devs))
    return f"uplink: {devs} since {verified[0].since}, kept until hostRouting.uplinks names another"


def _notes_on_default(host: Host, source: str | None) -> tuple[str, ...]:
    if source is None:
        return ()
    from hostrouting.cli.default_config import note_on_default

    note = note_on_default(host, source)
    return (note,) if note else ()


def _try_routes(
    options: argparse.Namespace,
    config: Config,
    host: Host,
) -> Result | int:
    """Try the routes, and print how to confirm them. On a terminal, wait for Enter."""
    from hostrouting.boot.trial_timer import trial_deadline
    from hostrouting.tasks.trial import TryRoutes, end_trial

    seconds = options.try_seconds
    is_asking = options.output != "json" and all(
        stream and stream.isatty() for stream in (sys.stdin, sys.stderr)
    )
    scope = phases.CancelScope()
    with cancelled_by_signals(scope):
        earlier = trial_deadline(host.layout.trial)
        try:
            report = run_task(TryRoutes(config, seconds, host=host), scope)
            until = report.until
            ending = f"the installed routes return at {until}, or now: hostrouting revert; "
            ending += "to keep these: hostrouting confirm"
            text = applied_text(report, ending, is_verbose=options.verbose)
            warnings = (*report.warnings, *report.routes.plan.notes)
            result = Result(report.to_json, lambda: text, warnings=warnings)
            say_result(options, result, _TRIAL_SECONDS)
            if not is_asking:
                if options.output != "json":
                    scope.check()
                return 0
            is_kept = run_task(
                phases.task("await-enter")(partial(_await_enter, host, seconds, until)),
                scope,
            )
        except RouteOverlapError:
            complain(
                "hostrouting: the installed routes are back, "
                "because the check fails with the new ones:",
                _TRIAL_SECONDS,
            )
            raise
        except phases.Cancelled:
            # The task checks for signals before it begins the trial. If the signal came after that
            # check, the trial has begun.
            if trial_deadline(host.layout.trial) not in (None, earlier):
                end_trial(host)
            raise
    if not is_kept:
        raise RouteError(
            "the trial is over: the installed routes are back, "
            "unless another process confirmed these"
        )
    return confirm(options, host)


def _await_enter(
    host: Host,
    seconds: int,
    until: str,
    scope: phases.CancelScope,
) -> bool:
    """Return whether Enter is pressed before the trial ends. If stdin is closed, end the trial."""
    from hostrouting.boot.trial_timer import trial_deadline
    from hostrouting.tasks.trial import end_trial

    end = scope.clock.monotonic() + seconds
    while trial_deadline(host.layout.trial) == until:
        left = max(0.0, end - scope.clock.monotonic())
        scope.progress(
            f"Enter keeps the routes, Ctrl-C restores the installed ones; {left:.0f} s left",
            1 - left / seconds,
        )
        with suppress(phases.TimedOut):
            scope.child(timeout=0.5).wait(sys.stdin)
            if sys.stdin.buffer.readline():  # other keys may have been pressed before Enter
                return True
            end_trial(host)
        scope.check()
    return False


def confirm(options: argparse.Namespace, host: Host) -> Result:
    """Keep the routes installed by apply --try.

    The command applies the tried config permanently, with files, units and a check, and ends the
    trial. Without a trial, it exits with 1.
    """
    from hostrouting.tasks.trial import ConfirmTrial

    return _applied(
        options,
        ConfirmTrial(host=host),
        host,
        "confirmed: the routes are installed for every boot",
    )


def revert(_options: argparse.Namespace, host: Host) -> Result:
    """Restore the installed routes after apply --try.

    The command ends the trial without waiting for its timeout, from any terminal, and lists the
    routes that it changes. If it can't restore the installed routes, it removes the tried ones and
    exits with 1. Without a trial, it exits with 1, too.

      hostrouting apply --try 600 config.json      in one terminal
      hostrouting revert                           in another one, if something doesn't work with these routes
    """  # noqa: E501
    from hostrouting.tasks.trial import EndTrial

    report = run_task(EndTrial(host=host))
    text = "\n".join(
        [*changes_lines(report.changes), "the trial is over: the installed routes are back"]
    )
    return Result(report.to_json, lambda: text)


def plan(options: argparse.Namespace, host: Host) -> Result:
    """Show what apply would change, without changing anything.

    The plan marks each route, rule and file: + added, ~ replaced, - removed. Then come unit
    changes, and whether the consumer would be allowed to start. -v lists unchanged routes and
    rules, too, marked with =, and shows files as diffs. A warning says if apply would fail on this
    host. The JSON has the same format as apply's output. With --snapshot, the command only compares
    routes and rules, and predicts the next start on that host. With --root it only compares files
    and units.

    It exits with 2 if anything would change or apply would fail, and with 0 otherwise.
    """
    from hostrouting.tasks import preview

    on = asked_host(options, host)
    document, config = read(options, options.image or host)
    if on.snapshot is None:
        _refuse_to_remove(options, document, on)
    found = run_function("plan", lambda scope: preview.plan(config, host=on, scope=scope))
    code = EXIT_PLAN_CHANGES if found else 0
    text = partial(plan_text, found, config, is_verbose=options.verbose)
    return Result(found.to_json, text, code, (*found.warnings, *found.routes.notes))
