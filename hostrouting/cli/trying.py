"""``apply --try`` and ``confirm``: routes for a while, and for good."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import phases
from hostrouting.cli.output import complain
from hostrouting.cli.running import EXIT_FAILURE, run_task, say_as_asked

if TYPE_CHECKING:
    import argparse

    from hostrouting.boot.host import Host
    from hostrouting.config.routing import Config


def apply_for_now(options: argparse.Namespace, config: Config, host: Host) -> int:
    """Give the kernel the routes until Enter keeps them; without a terminal, say how they are kept."""
    from hostrouting.cli.changes import applied_text
    from hostrouting.overlap.findings import RouteOverlapError
    from hostrouting.tasks.trial import TryRoutes

    seconds = options.try_seconds
    try:
        routes, overlap, until = run_task(TryRoutes(config, seconds, host=host))
    except RouteOverlapError:
        complain("hostrouting: the routes of before are back, as this fails with those that were tried:")
        raise
    document = routes.to_json() | {"overlap": overlap.to_json(), "until": until}
    text = f"{applied_text(routes, overlap)}\nuntil {until}, unless this keeps them: hostrouting confirm"
    say_as_asked(options, document, text)
    if options.output == "json" or not all(stream and stream.isatty() for stream in (sys.stdin, sys.stderr)):
        return 0
    if run_task(phases.task("await-enter")(partial(_await_enter, host, seconds, until))):
        return confirm(options, host)
    complain("hostrouting: the trial is over: the routes of before are back, unless these were confirmed elsewhere")
    return EXIT_FAILURE


def _await_enter(host: Host, seconds: int, until: str, scope: phases.CancelScope) -> bool:
    """Whether Enter comes while a trial stands; any other end, be it of the input or by a signal, ends the trial."""
    from hostrouting.boot.trial import put_back, standing

    end = scope.clock.monotonic() + seconds
    try:
        while standing(host.layout.trial) == until:
            left = max(0.0, end - scope.clock.monotonic())
            scope.progress(f"Enter keeps the routes, Ctrl-C puts them back; back in {left:.0f} s", 1 - left / seconds)
            with suppress(phases.TimedOut):
                scope.child(timeout=0.5).wait(sys.stdin)
                if sys.stdin.buffer.readline():  # whatever bytes come before Enter
                    return True
                put_back(host)
            scope.check()
    except phases.Cancelled:
        if standing(host.layout.trial) == until:
            put_back(host)
        raise
    return False


def confirm(options: argparse.Namespace, host: Host) -> int:
    """Keep the routes that apply --try has given the kernel.

    The command writes files and units and checks, as apply does with the config that was tried, and ends the trial. It
    exits with 1 if no trial stands.
    """
    from hostrouting.cli.changes import applied_text
    from hostrouting.tasks.trial import ConfirmTrial

    routes, overlap = run_task(ConfirmTrial(host=host))
    text = f"{applied_text(routes, overlap)}\nconfirmed: the next boot has them too"
    say_as_asked(options, routes.to_json() | {"overlap": overlap.to_json()}, text)
    return 0
