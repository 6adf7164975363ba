"""What each command does: a few lines over the tasks; what it prints is worded elsewhere in this room."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import phases
from hostrouting.cli import output
from hostrouting.cli.azure import neighbours
from hostrouting.cli.options import Asked, UsageError, load, merged, read, read_with_cidrs
from hostrouting.cli.running import (
    EXIT_CHECK_UNKNOWN,
    EXIT_FAILURE,
    EXIT_PLAN_CHANGES,
    cancelled_by_signals,
    run_task,
    say_as_asked,
)
from hostrouting.config.routing import Config
from hostrouting.model.errors import HostRoutingError, UnitError
from hostrouting.model.text import to_json_text

if TYPE_CHECKING:
    import argparse

    from hostrouting.boot.host import Host
    from hostrouting.doctor.examine import DoctorReport
    from hostrouting.overlap.findings import OverlapReport

__all__ = [
    "apply",
    "check",
    "demo",
    "doctor",
    "fix",
    "plan",
    "remove",
    "render",
    "snapshot",
    "watch",
]


def demo(options: argparse.Namespace, host: Host | None) -> int:
    """The demo, in a world that it makes itself."""
    del host  # the demo makes its own
    from hostrouting.cli import demo

    return demo.run_apart(options.output)


def apply(options: argparse.Namespace, host: Host | None) -> int:
    """Install, and check."""
    document, config = read(options, host)
    neighbours.say_what_is_asked_for(document)
    if options.routes_only:
        from hostrouting.tasks.install_routes import InstallRoutes

        routes, overlap = run_task(InstallRoutes(config, host=host)), None
    else:
        from hostrouting.boot.host import Host
        from hostrouting.tasks.configure import Configure

        on = (host or Host()) if options.root is None else Host.image(options.root)
        _warn_without_consumer(config, on)
        routes, overlap = run_task(Configure(config, host=on))
    if options.output == "json":
        document = routes.to_json() | {"overlap": None if overlap is None else overlap.to_json()}
        output.say(to_json_text(document).rstrip())
    elif options.root is not None:
        output.say(f"installed into {options.root}; it holds from the first boot")
    else:
        from hostrouting.cli.changes import routes_text

        output.say(routes_text(routes))
        if overlap is not None and overlap.cidrs:
            from hostrouting.cli.report import overlap_text

            output.say(overlap_text(overlap))
    return 0


def _warn_without_consumer(config: Config, on: Host) -> None:
    """Say that nothing is held back, if there is no unit of the consumer's name; it may come later."""
    from hostrouting.boot.installation import is_there

    if not (config.static_routes.routes or config.route_overlap.expected_cidrs):
        return
    with suppress(UnitError):  # without a systemd to ask nothing can be told
        if not is_there(on, config.consumer):
            output.complain(f"hostrouting: there is no unit {config.consumer}: until there is, nothing is held back")


def plan(options: argparse.Namespace, host: Host | None) -> int:
    """What apply would change."""
    from hostrouting.boot.preview import plan_boot
    from hostrouting.cli.changes import plan_text
    from hostrouting.cli.preview import will_start
    from hostrouting.routes.plan import plan_now

    config = load(options, host)
    on = Asked.of(options, host).host
    plan, missing = plan_now(config, on.routes)
    boot = None if options.snapshot is not None else plan_boot(config, on)
    if boot is not None:
        _warn_without_consumer(config, on)
    next_start = will_start(config, on.routes, plan, missing)
    if boot is not None:
        next_start = neighbours.as_probes_allow(next_start, on)
    if options.output == "json":
        document = {"schema": 1, **plan.to_json(), "missing": missing, "boot": None if boot is None else boot.to_json()}
        output.say(to_json_text(document | {"nextStart": next_start.to_json()}).rstrip())
    else:
        output.say(plan_text(plan, missing, boot, next_start, wait_seconds=config.wait_seconds))
    is_done = plan.is_empty and missing is None and (boot is None or boot.is_empty)
    return 0 if is_done else EXIT_PLAN_CHANGES


def render(options: argparse.Namespace, host: Host | None) -> int:
    """The files that apply would install."""
    from hostrouting.boot.files import write_if_changed
    from hostrouting.boot.layout import Layout
    from hostrouting.boot.manifest import Manifest
    from hostrouting.boot.parts import wanted_files, wanted_manifest, wanted_parts

    config = load(options, host)
    layout = Layout(options.out)
    parts = wanted_parts(config, layout)
    manifest = wanted_manifest(Manifest(), config, parts, layout)
    for file in wanted_files(layout, manifest, parts) if parts else ():
        write_if_changed(file.path, file.text, mode=file.mode)
        output.say(str(file.path))
    return 0


def check(options: argparse.Namespace, host: Host | None) -> int:
    """The check."""
    from hostrouting.cli import report
    from hostrouting.overlap.findings import Verdict

    if options.report:
        from hostrouting.cli.boot_report import explain_verdict

        return explain_verdict(host)
    if options.output == "nagios":
        return _check_for_nagios(options, host)
    result, config, on = _judge(options, host)
    if options.output == "json":
        output.say(to_json_text(result.to_json()).rstrip())
    elif options.output == "svg":
        from hostrouting.cli.report import overlap_picture

        output.say(overlap_picture(result))
    else:
        output.say(report.overlap_text(result, width=output.columns(sys.stdout)))
        if result.findings and _has_more_to_install(config, on):
            output.say("CONFIG has routes that aren't installed; how it looks with them tells: hostrouting fix, plan")
    return {Verdict.OK: 0, Verdict.OVERLAP: EXIT_FAILURE, Verdict.UNKNOWN: EXIT_CHECK_UNKNOWN}[result.verdict]


def _judge(
    options: argparse.Namespace, host: Host | None, *, is_waiting: bool = True
) -> tuple[OverlapReport, Config, Host]:
    """The report, with what was asked and whom."""
    from hostrouting.overlap.check import check_overlap

    _, config = read_with_cidrs(options, host)
    on = Asked.of(options, host).host
    if options.snapshot is not None or not is_waiting:
        config = config.without_waits()
    result: OverlapReport = run_task(phases.task("check")(lambda scope: check_overlap(config, on.routes, scope)))
    return result, config, on


def _has_more_to_install(config: Config, on: Host) -> bool:
    """Whether routes of the config aren't there yet, or can't be."""
    from hostrouting.model.errors import RouteError
    from hostrouting.routes.plan import plan_now

    if not config.static_routes.routes:
        return False
    try:
        plan, missing = plan_now(config, on.routes)
    except RouteError:
        return True
    return missing is not None or not plan.is_empty


def _check_for_nagios(options: argparse.Namespace, host: Host | None) -> int:
    """The check as a plugin: whatever happens is one line on standard output, and nothing is waited for."""
    from hostrouting.cli.nagios import NAGIOS_UNKNOWN, nagios_line, nagios_status, nagios_unknown

    try:
        result, _, _ = _judge(options, host, is_waiting=False)
    except (HostRoutingError, UsageError) as error:
        output.say(nagios_unknown(str(error)))
        return NAGIOS_UNKNOWN
    except phases.Cancelled as error:
        output.say(nagios_unknown(f"stopped: {error.reason}"))
        return NAGIOS_UNKNOWN
    output.say(nagios_line(result))
    return nagios_status(result)


def fix(options: argparse.Namespace, host: Host | None) -> int:
    """What mends the failures of a check."""
    from hostrouting.cli import report
    from hostrouting.cli.preview import propose, resolve_now
    from hostrouting.overlap.findings import Verdict
    from hostrouting.routes import formats

    document, config = read_with_cidrs(options, host)
    asked = Asked.of(options, host)
    on = asked.host
    config = config if options.snapshot is None else config.without_waits()
    # A config is all that is wanted; what is proposed for CIDRs alone is to join a config that isn't known.
    is_alone = document is None
    task = phases.task("fix")(
        lambda scope: propose(config, on.routes, scope, keeps_routes=is_alone, nameservers=asked.nameservers)
    )
    result = run_task(task)
    for line in report.remedy_lines(result):
        output.complain(line)
    if result.verdict is Verdict.UNKNOWN:
        return EXIT_CHECK_UNKNOWN
    if _has_more_to_install(config, on):
        output.complain("this is so once the routes that CONFIG has already are installed: hostrouting apply")
    if options.cidr:
        output.complain("--cidr isn't kept: for a check at every boot add these CIDRs to routeOverlap.expectedCidrs")
    entries = result.remedy.routes
    if options.format == "config":
        output.say(to_json_text(merged(document, entries)).rstrip())
    else:
        write = {"ip": formats.as_ip, "netplan": formats.as_netplan, "networkd": formats.as_networkd}[options.format]
        output.say(write(resolve_now(entries, on.routes)).rstrip())
    return EXIT_FAILURE if result.remedy.unmendable else 0


def snapshot(options: argparse.Namespace, host: Host | None) -> int:
    """The host as a document."""
    del options
    from hostrouting.boot.host import Host
    from hostrouting.boot.resolvers import nameservers
    from hostrouting.kernel.recording import take_snapshot

    on = host or Host()
    output.say(take_snapshot(on.routes, nameservers=nameservers(on.layout)).to_text().rstrip())
    return 0


def doctor(options: argparse.Namespace, host: Host | None) -> int:
    """What may break the gate."""
    import shlex

    from hostrouting.boot import files
    from hostrouting.boot.host import Host
    from hostrouting.cli.doctor_text import doctor_text
    from hostrouting.doctor.examine import examine

    on = host or Host()
    has_config = options.config is not None or files.read_text(on.layout.config) is not None
    name = "" if options.config is None and has_config else shlex.quote(options.config or "CONFIG")
    config = load(options, host) if has_config else None
    more = neighbours.examinations(options, on, has_config=has_config)
    report: DoctorReport = run_task(
        phases.task("doctor")(lambda scope: examine(on, config, more=more, config_name=name, scope=scope))
    )
    say_as_asked(options, report.to_json(), doctor_text(report, width=output.columns(sys.stdout)))
    return EXIT_FAILURE if report.is_broken or (options.strict and report.faults) else 0


def remove(options: argparse.Namespace, host: Host | None) -> int:
    """Take back what was installed."""
    del options
    from hostrouting.boot.host import Host
    from hostrouting.boot.installation import requiring_units
    from hostrouting.boot.manifest import Manifest
    from hostrouting.cli.changes import routes_text
    from hostrouting.tasks.configure import RemoveHostRouting

    on = host or Host()
    requiring = requiring_units(on, *Manifest.load(on.layout).parts)
    neighbours.remove(on)
    output.say(routes_text(run_task(RemoveHostRouting(host=on))))
    for oneshot, units in requiring.items():
        output.say(f"{' '.join(units)} can't be started any more: still required is {oneshot}, which is gone")
    return 0


def watch(options: argparse.Namespace, host: Host | None) -> int:
    """What was installed stays true, until a signal ends it."""
    from hostrouting.boot.host import Host
    from hostrouting.watch.loop import WatchHostRouting
    from hostrouting.watch.outputs import notify, write_entry

    on = host or Host()
    load(options, on)  # what is wrong with it is told in full now, and in one line later
    path = on.layout.config if options.config is None else options.config
    journal = on.layout.journal_socket if "JOURNAL_STREAM" in os.environ else None
    # A process that does nothing for hours wakes up four times a second, not forty.
    scope = phases.CancelScope(clock=phases.SystemClock(slice_seconds=0.25))
    gc.enable()
    task = WatchHostRouting(
        read=lambda: Config.load(path),
        host=on,
        say=lambda event: write_entry(event, journal),
        tell=lambda state: notify(os.environ.get("NOTIFY_SOCKET", ""), state),
    )
    with cancelled_by_signals(scope), suppress(phases.Cancelled):
        phases.run(task, scope=scope)
    return 0
