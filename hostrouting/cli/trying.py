"""The commands for routes on trial: ``apply --try`` and ``confirm``, whose docstring is its help."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import phases
from hostrouting.cli.output import complain
from hostrouting.cli.running import cancelled_by_signals, run_task, say_as_asked
from hostrouting.model.errors import RouteError

if TYPE_CHECKING:
    from hostrouting.boot.host import Host
    from hostrouting.config.routing import Config


def try_routes(options: argparse.Namespace, config: Config, host: Host) -> int:
    """Install the routes in the kernel until Enter keeps them; without a terminal, print how to keep them."""
    from hostrouting.boot.trial import put_back, standing
    from hostrouting.cli.changes import applied_text
    from hostrouting.overlap.findings import RouteOverlapError
    from hostrouting.tasks.trial import TryRoutes

    seconds = options.try_seconds
    is_asking = options.output != "json" and all(stream and stream.isatty() for stream in (sys.stdin, sys.stderr))
    scope = phases.CancelScope()

    def keep_on() -> bool:
        return not scope.is_cancelled

    with cancelled_by_signals(scope):
        stood = standing(host.layout.trial)
        try:
            report = run_task(TryRoutes(config, seconds, host=host), scope)
        except RouteOverlapError:
            complain("hostrouting: the former routes are back, because this fails with the tried ones:", keep_on)
            raise
        except phases.Cancelled:
            # A signal may arrive between the task's last check and its end.
            if stood is None and standing(host.layout.trial) is not None:
                put_back(host)
            raise
        until = report.until
        text = applied_text(report.routes.plan, report.changes, report.overlap)
        text = f"{text}\nuntil {until}, unless they are kept with: hostrouting confirm"
        try:
            # A program always gets its whole document.
            say_as_asked(options, report.to_json, lambda: text, keep_on if options.output != "json" else None)
            if not is_asking:
                if options.output != "json":
                    scope.check()
                return 0
            is_kept = run_task(phases.task("await-enter")(partial(_await_enter, host, seconds, until)), scope)
        except phases.Cancelled:
            if standing(host.layout.trial) == until:
                put_back(host)
            raise
    if not is_kept:
        raise RouteError("the trial is over: the former routes are back, unless these were confirmed elsewhere")
    return confirm(options, host)


def _await_enter(host: Host, seconds: int, until: str, scope: phases.CancelScope) -> bool:
    """Return whether Enter is pressed before the trial ends; if standard input is closed, end the trial."""
    from hostrouting.boot.trial import put_back, standing

    end = scope.clock.monotonic() + seconds
    while standing(host.layout.trial) == until:
        left = max(0.0, end - scope.clock.monotonic())
        scope.progress(f"Enter keeps the routes, Ctrl-C puts them back; back in {left:.0f} s", 1 - left / seconds)
        with suppress(phases.TimedOut):
            scope.child(timeout=0.5).wait(sys.stdin)
            if sys.stdin.buffer.readline():  # other bytes may come before Enter
                return True
            put_back(host)
        scope.check()
    return False


def confirm(options: argparse.Namespace, host: Host) -> int:
    """Keep the routes that apply --try has installed in the kernel.

    The command writes the files and units and checks, as apply does with the tried config, and ends the trial. It exits
    with 1 if there is no trial.
    """
    from hostrouting.cli.changes import applied_text
    from hostrouting.tasks.trial import ConfirmTrial

    report = run_task(ConfirmTrial(host=host))
    text = applied_text(report.routes.plan, report.changes, report.overlap)
    say_as_asked(options, report.to_json, lambda: f"{text}\nconfirmed: the next boot has them too")
    return 0
