"""Commands that change or show something. Each docstring doubles as the command's help text."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

import phases
from hostrouting.boot.host import Host
from hostrouting.cli.changes import NOTHING, applied_text, changed_text, changes_lines, plan_text
from hostrouting.cli.options import asked_host, config_path, load, read
from hostrouting.cli.output import complain, say
from hostrouting.cli.running import EXIT_PLAN_CHANGES, Result, cancelled_by_signals, run_function, run_task, say_result
from hostrouting.config.routing import Config
from hostrouting.model.errors import FileError, RouteError
from hostrouting.model.jsonable import to_json_text
from hostrouting.model.text import clean
from hostrouting.overlap.findings import RouteOverlapError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostrouting.tasks.reports import ConfigureReport

# Even if the terminal is stopped, the watcher continues, and a signal ends a trial.
_LINE_SECONDS, _TRIAL_SECONDS = 1.0, 5.0


def demo(_options: argparse.Namespace, _host: Host) -> int:
    """Demonstrate hostrouting in a throw-away network namespace.

    The demo simulates an Azure H200 node with IPv4 and IPv6. The default routes use eth0, and the connected routes on
    ib0 to ib7 shadow the cluster's networks. The demo runs a check, installs more specific routes, checks again, and
    cleans up. It never touches the host's routing tables, and doesn't need root if unprivileged user namespaces are
    enabled. If namespaces aren't available, it uses an in-memory fake kernel, which supports only IPv4.
    """
    import signal
    import subprocess

    # Use this process's sys.path, because -m would search the current directory first.
    program = "import sys; sys.path[:] = sys.argv[1:]; from hostrouting.cli import demo; demo.run()"
    # Ctrl-C reaches both processes. The child may still be importing, so SIGINT is blocked there and it is sent SIGTERM
    # instead.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    with subprocess.Popen([sys.executable, "-I", "-c", program, *sys.path]) as child:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return child.wait()
        except KeyboardInterrupt:
            child.terminate()
            child.wait()
            raise


def apply(options: argparse.Namespace, host: Host) -> Result | int:
    """Install CONFIG's routes, check and gate, and run the check.

    The command first installs the static routes, either all or none, and then runs the check. For later boots, it
    installs scripts, units and the gate. The gate consists of two drop-ins that hold back the consumer
    (systemd-nspawn@.service, or the unit set in CONFIG) until the routes are installed and, in STRICT mode, the check
    has passed. The command never stops or restarts a running machine. It removes anything from an earlier run that is
    no longer in CONFIG. It lists every route, file and unit that it changes, even if it fails half-way, and gives the
    number of unchanged routes; with -v it lists these, too. With --output json it always prints a single document,
    regardless of the exit code. The document has "host", "changed", lists of "routes", "files" and "units", the
    "unchanged" routes, "overlap", and "error" on failure.

    Other commands, and apply without an argument, use the default CONFIG. If it asks for something other than the
    CONFIG that was applied, the last line says so, with the command that records the applied one there. If the default
    CONFIG has no key hostRouting, apply without an argument fails rather than remove what is installed, unless all of
    its scripts are gone, as after a reset by AKSFlexNode.

    With --try it only changes the kernel's routes and runs the check. When the timeout expires, systemd restores the
    installed routes, even if other processes have died. To keep the tried routes and install the rest, run hostrouting
    confirm, or press Enter on a terminal. hostrouting revert and Ctrl-C restore the installed routes immediately, as
    does a failing check in STRICT mode. The end of a trial removes all other routes of hostrouting, also those that
    --routes-only added before it. The watcher doesn't change routes during a trial. Another apply, a remove or a start
    of the consumer ends the trial, too. Such a start is checked against the installed config.

      hostrouting apply /etc/aks-flex-node/config.json
      hostrouting apply --try 60 config.json                 Enter or hostrouting confirm keeps the routes
      hostrouting apply --root /mnt/image config.json        takes effect at the image's first boot
    """
    on = options.image or host
    document, config = read(options, on)
    _refuse_to_remove(options, document, on)
    if options.try_seconds is not None:
        return _try_routes(options, config, host)
    if options.routes_only:
        from hostrouting.tasks.install_routes import InstallRoutes

        routes = run_task(InstallRoutes(config, host=host))
        text = partial(changed_text, routes.plan, routes.changes, is_verbose=options.verbose)
        return Result(lambda: routes.to_json() | {"overlap": None}, text)
    from hostrouting.tasks.configure import Configure

    is_held = options.image is not None and config.is_gated
    ending = f"{on.layout.root} is set up from its first boot on" if is_held else ""
    return _applied(options, Configure(config, host=on), on, ending, options.config)


def _refuse_to_remove(options: argparse.Namespace, document: Mapping[str, Any], host: Host) -> None:
    """Raise an error if the default CONFIG was meant, and would take a working installation away."""
    if options.config is None:
        from hostrouting.cli.default_config import refuse_to_remove

        refuse_to_remove(document, host)


def _applied(
    options: argparse.Namespace, task: phases.Task[ConfigureReport], host: Host, ending: str, source: str | None = ""
) -> Result:
    """Run a task that installs a config, and end its output with a note if the default CONFIG differs.

    Args:
        options: the command's options.
        task: the task.
        host: the host or the image.
        ending: a line for the end of the output, or an empty string.
        source: the path of the config, if it is known; None for the default CONFIG.
    """
    try:
        report = run_task(task)
    except RouteOverlapError as error:  # everything is installed
        error.warnings += _notes_on_default(host, source)
        raise
    notes = _notes_on_default(host, source)
    noted = attrs.evolve(report, warnings=(*report.warnings, *notes))
    lines = "\n".join(filter(None, [ending, *map(clean, notes)]))
    text = partial(applied_text, report, lines, is_verbose=options.verbose)
    return Result(noted.to_json, text, warnings=report.warnings)


def _notes_on_default(host: Host, source: str | None) -> tuple[str, ...]:
    if source is None:
        return ()
    from hostrouting.cli.default_config import note_on_default

    note = note_on_default(host, source)
    return (note,) if note else ()


def _try_routes(options: argparse.Namespace, config: Config, host: Host) -> Result | int:
    """Install the routes temporarily until Enter is pressed; without a terminal, print how to confirm them."""
    from hostrouting.boot.trial import end_trial, trial_deadline
    from hostrouting.tasks.trial import TryRoutes

    seconds = options.try_seconds
    is_asking = options.output != "json" and all(stream and stream.isatty() for stream in (sys.stdin, sys.stderr))
    scope = phases.CancelScope()
    with cancelled_by_signals(scope):
        stood = trial_deadline(host.layout.trial)
        try:
            report = run_task(TryRoutes(config, seconds, host=host), scope)
            until = report.until
            ending = f"the installed routes return at {until}, or now: hostrouting revert; "
            ending += "to keep these: hostrouting confirm"
            text = applied_text(report, ending, is_verbose=options.verbose)
            say_result(options, Result(report.to_json, lambda: text), _TRIAL_SECONDS)
            if not is_asking:
                if options.output != "json":
                    scope.check()
                return 0
            is_kept = run_task(phases.task("await-enter")(partial(_await_enter, host, seconds, until)), scope)
        except RouteOverlapError:
            complain(
                "hostrouting: the installed routes are back, because the check fails with the new ones:", _TRIAL_SECONDS
            )
            raise
        except phases.Cancelled:
            # The signal may have arrived after the task's last cancellation check.
            if trial_deadline(host.layout.trial) not in (None, stood):
                end_trial(host)
            raise
    if not is_kept:
        raise RouteError("the trial is over: the installed routes are back, unless another process confirmed these")
    return confirm(options, host)


def _await_enter(host: Host, seconds: int, until: str, scope: phases.CancelScope) -> bool:
    """Return whether Enter is pressed before the trial ends; EOF on stdin ends the trial."""
    from hostrouting.boot.trial import end_trial, trial_deadline

    end = scope.clock.monotonic() + seconds
    while trial_deadline(host.layout.trial) == until:
        left = max(0.0, end - scope.clock.monotonic())
        scope.progress(
            f"Enter keeps the routes, Ctrl-C restores the installed ones; {left:.0f} s left", 1 - left / seconds
        )
        with suppress(phases.TimedOut):
            scope.child(timeout=0.5).wait(sys.stdin)
            if sys.stdin.buffer.readline():  # other bytes may come before Enter
                return True
            end_trial(host)
        scope.check()
    return False


def confirm(options: argparse.Namespace, host: Host) -> Result:
    """Keep the routes installed by apply --try.

    The command applies the tried config permanently, with files, units and a check, and ends the trial. It exits with 1
    if there is no trial.
    """
    from hostrouting.tasks.trial import ConfirmTrial

    return _applied(options, ConfirmTrial(host=host), host, "confirmed: the routes are installed for every boot")


def revert(_options: argparse.Namespace, host: Host) -> Result:
    """Restore the installed routes after apply --try.

    The command ends the trial without waiting for its timeout, from any terminal, and lists the routes that it changes.
    The trial hasn't changed any files or units. It exits with 1 if there is no trial, or if the installed routes can't
    be installed; then it still removes the tried ones.

      hostrouting apply --try 600 config.json      in one terminal
      hostrouting revert                           in another one, if something doesn't work with these routes
    """
    from hostrouting.tasks.trial import EndTrial

    report = run_task(EndTrial(host=host))
    text = "\n".join([*changes_lines(report.changes), "the trial is over: the installed routes are back"])
    return Result(report.to_json, lambda: text)


def plan(options: argparse.Namespace, host: Host) -> Result:
    """Show what apply would change, without changing anything.

    The plan marks each route: + added, ~ replaced, - removed. It gives the number of unchanged routes, and with -v
    lists them, marked with =. It shows file changes as diffs, then unit changes, and finally whether the consumer would
    be allowed to start. It warns if apply can't do it on this host. It exits with 2 if anything would change, and with
    0 otherwise. The JSON has the same format as apply's output. With --snapshot it only compares routes, and predicts
    the next start on the snapshot's host, because a snapshot doesn't include files or units. With --root it only
    compares files and units.
    """
    from hostrouting.tasks import preview

    document, config = read(options, options.image or host)
    on = asked_host(options, host)
    if on.snapshot is None:
        _refuse_to_remove(options, document, on)
    found = run_function("plan", lambda scope: preview.plan(config, host=on, scope=scope))
    code = EXIT_PLAN_CHANGES if found else 0
    text = partial(plan_text, found, config, is_verbose=options.verbose)
    return Result(found.to_json, text, code, found.warnings)


def render(options: argparse.Namespace, host: Host) -> Result | int:
    """Write the files that apply would install, for hosts without Python.

    With --out it writes the files to a directory, together with the scripts install.sh and remove.sh. Both scripts need
    bash, coreutils, util-linux, ip, sed and grep. With --format it prints the files as an Ignition config.

      hostrouting render --out routing config.json && scp -r routing root@node:    on the node: ./routing/install.sh
      hostrouting render --format ignition config.json > routing.ign    for a machine that is created from an image
    """
    from hostrouting.boot.bundle import bundle, ignition
    from hostrouting.boot.files import write_if_changed
    from hostrouting.boot.layout import Layout

    config = load(options, host)
    if not config.is_gated:
        complain("hostrouting: CONFIG enables nothing: there is nothing to install")
    if options.out is None:
        return Result(text=lambda: to_json_text(ignition(config)).rstrip())
    for file in bundle(config, Layout(options.out)):
        try:
            write_if_changed(file.path, file.text, mode=file.mode)
        except FileError as error:
            if error.is_not_permitted:  # writing these files doesn't need root
                error.hint = "use a folder that you own"
            raise
        say(str(file.path))
    return 0


def snapshot(_options: argparse.Namespace, host: Host) -> Result:
    """Print the state that a check needs, so that it can be run elsewhere.

    The output is a JSON document with links, addresses, rules, routes in all tables (with the hops of their nexthop
    objects), nameservers, and the sysctl and network managers that determine how events affect them. The command needs
    no privileges and changes nothing. If the host's state changes during every attempt to read it, the document has
    "isTorn": true, and a check of it returns no verdict.

      hostrouting snapshot > node.json                               on the failing node
      hostrouting check --snapshot node.json config.json             anywhere, with the same verdict

    To take a snapshot without hostrouting, a shell and ip (iproute2 5.15 or newer) are enough. For IPv6 CIDRs, change
    the first line to "only=":

      only=-4
      ip $only -o monitor link address rule route nexthop > node.changes 2>&1 &
      sleep 1
      { printf '{"kernel": "%s", "ip": "%s"' "$(uname -sr)" "$(ip -V)"
        echo ', "links":';     ip -j -N -d link show
        echo ', "addresses":'; ip -j -N -d $only address show
        echo ', "rules":';     ip -j -N -d -4 rule show
        echo ', "routes":';    ip -j -N -d -4 route show table all
        echo ', "nexthops":';  ip -j -N -d nexthop show
        [ "$only" ] || {
          echo ', "rules6":';  ip -j -N -d -6 rule show
          echo ', "routes6":'; ip -j -N -d -6 route show table all
          echo ', "labels6":'; ip -j addrlabel
          [ "$(cat /proc/sys/net/ipv6/conf/all/forwarding)" = 1 ] || {
            echo ', "neighbours6":'; ip -j -6 neigh show nud failed
          }
        }
        sleep 1; kill $! || echo gone >> node.changes
        echo ', "isTorn":';    [ -s node.changes ] && echo true || echo false
        echo '}'; } > node.json
    """
    from hostrouting.tasks import queries

    return Result(text=lambda: queries.snapshot(host=host).to_text().rstrip())


def schema(_options: argparse.Namespace, _host: Host) -> Result:
    """Print the JSON Schema of CONFIG, for editors and CI.

      hostrouting schema > config.schema.json

    Editors then offer completion and validation for a config with a top-level "$schema": "./config.schema.json". To use
    the schema for all configs, add the file to json.schemas in VS Code's settings.
    """
    from importlib import resources

    schema = resources.files("hostrouting.config").joinpath("config.schema.json")
    return Result(text=lambda: schema.read_text(encoding="utf-8").rstrip())


def watch(options: argparse.Namespace, host: Host) -> int:
    """Keep the node in the state described by CONFIG until stopped by a signal.

    The watcher runs a check whenever links, addresses, routes, rules or CONFIG change, and at least once a minute. It
    restores our routes if they disappear, and updates them if the default route changes. It also writes the markers,
    and the metrics if watch.textfile is set. It reports each failure once when it appears and once when it is resolved.
    The reports go to the journal if the watcher runs under systemd. Otherwise they go to stdout, and a line is dropped
    if it can't be written within a second. The watcher never stops a running machine. It refuses to run in another
    network namespace if it would overwrite the host's markers. With "watch": {"enabled": true} in CONFIG, apply
    installs it as hostrouting-watch.service.

      hostrouting watch config.json         in the foreground until SIGTERM or Ctrl-C; keeps the routes
      journalctl -u hostrouting-watch       the service's messages
    """
    from pathlib import Path

    from hostrouting.watch.loop import WatchHostRouting
    from hostrouting.watch.outputs import notify, write_entry

    load(options, host)  # report all its problems now; later only one line is reported
    path = config_path(options, host)
    journal = host.layout.journal_socket if "JOURNAL_STREAM" in os.environ else None
    # This reduces the wake-ups of an idle watcher from 40 to 4 per second.
    scope = phases.CancelScope(clock=phases.SystemClock(slice_seconds=0.25))
    task = WatchHostRouting(
        read=lambda: Config.load(path),
        host=host,
        say=lambda event: write_entry(event, journal, partial(say, patience=_LINE_SECONDS)),
        tell=lambda state: notify(os.environ.get("NOTIFY_SOCKET", ""), state),
        files=(Path(path), host.layout.gate_off),
    )
    with cancelled_by_signals(scope), suppress(phases.Cancelled):
        phases.run(task, scope=scope)
    return 0


def set_config(options: argparse.Namespace, host: Host) -> Result:
    """Copy our keys from CONFIG into FILE, which is shared with other components.

    The keys are hostRouting and hostNetworking. Each key is replaced as a whole; a key that is missing in CONFIG is
    left unchanged in FILE. Everything else in FILE, its mode and its owner are preserved, and a symlink is followed. If
    FILE doesn't exist, it is created with mode 0600. A second run is a no-op.

      hostrouting config set /etc/aks-flex-node/config.json --from ours.json && hostrouting apply
    """
    from hostrouting.cli.azure import sections
    from hostrouting.cli.fixing import set_sections

    changes = set_sections(options.file, sections.our_sections(options, host))
    return Result(changes.to_json, lambda: "\n".join(changes_lines(changes)) or NOTHING)


def remove(options: argparse.Namespace, host: Host) -> Result:
    """Remove everything that hostrouting has installed.

    The command removes our routes (protocol 217 in table main), files and markers, and lists each of them. With --root
    it removes the files from an image. It needs no config, and never touches anything that another program owns.
    """
    from hostrouting.boot.installation import requiring_units
    from hostrouting.boot.manifest import Manifest
    from hostrouting.cli.azure import sections

    host = options.image or host
    requiring = requiring_units(host, *Manifest.of_host(host.layout).parts)
    report = run_function("remove", partial(sections.remove_all, host))
    text = changed_text(report.plan, report.changes, is_verbose=options.verbose)
    for oneshot, required_by in requiring.items():
        text += f"\nsystemd won't start {' '.join(required_by)} any more: {oneshot}, which they require, is gone"
    return Result(lambda: report.to_json() | {"stillRequired": requiring}, lambda: text)
