"""The commands ``apply --try`` and ``confirm``. The docstring of ``confirm`` doubles as its help text."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from functools import partial

import phases
from hostrouting.boot.host import Host
from hostrouting.cli.changes import applied_text
from hostrouting.cli.output import complain
from hostrouting.cli.running import cancelled_by_signals, run_task, say_as_asked
from hostrouting.config.routing import Config
from hostrouting.model.errors import RouteError
from hostrouting.overlap.findings import RouteOverlapError


def try_routes(options: argparse.Namespace, config: Config, host: Host) -> int:
    """Install the routes temporarily until Enter is pressed; without a terminal, print how to confirm them."""
    from hostrouting.boot.trial import put_back, standing
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
            until = report.until
            text = applied_text(report.routes.plan, report.changes, report.overlap)
            text = f"{text}\nuntil {until}, unless they are kept with: hostrouting confirm"
            # JSON output is never truncated.
            say_as_asked(options, report.to_json, lambda: text, keep_on if options.output != "json" else None)
            if not is_asking:
                if options.output != "json":
                    scope.check()
                return 0
            is_kept = run_task(phases.task("await-enter")(partial(_await_enter, host, seconds, until)), scope)
        except RouteOverlapError:
            complain("hostrouting: the former routes are back, because this fails with the tried ones:", keep_on)
            raise
        except phases.Cancelled:
            # The signal may have arrived after the task's last cancellation check.
            if standing(host.layout.trial) not in (None, stood):
                put_back(host)
            raise
    if not is_kept:
        raise RouteError("the trial is over: the former routes are back, unless these were confirmed elsewhere")
    return confirm(options, host)


def _await_enter(host: Host, seconds: int, until: str, scope: phases.CancelScope) -> bool:
    """Return whether Enter is pressed before the trial ends; EOF on stdin ends the trial."""
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
    """Keep the routes installed by apply --try.

    The command applies the tried config permanently, with files, units and a check, and ends the trial. It exits with 1
    if there is no trial.
    """
    from hostrouting.tasks.trial import ConfirmTrial

    report = run_task(ConfirmTrial(host=host))
    for warning in report.warnings:
        complain(f"hostrouting: {warning}")
    text = applied_text(report.routes.plan, report.changes, report.overlap)
    say_as_asked(options, report.to_json, lambda: f"{text}\nconfirmed: the next boot has them too")
    return 0
