"""The commands that change or show something; each docstring is the command's help."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import phases
from hostrouting.cli.options import asked_host, load
from hostrouting.cli.output import complain, patience, say
from hostrouting.cli.running import EXIT_PLAN_CHANGES, cancelled_by_signals, run_task, say_as_asked

if TYPE_CHECKING:
    from hostrouting.boot.host import Host

_LINE_SECONDS = 1.0


def demo(_options: argparse.Namespace, _host: Host) -> int:
    """Show the whole story in a throw-away network namespace.

    The demo builds a node like Azure's H200 machines. Its interface eth0 has the default route, and the connected /16
    routes of ib0 to ib7 shadow the cluster's network. The demo checks, installs more specific routes, checks again, and
    cleans up. It never touches the host's tables, and needs no root where user namespaces are allowed. Where namespaces
    are refused, it uses a kernel in memory.
    """
    import signal
    import subprocess

    # Use exactly the modules of this process: -m alone would search the caller's folder first.
    program = "import sys; sys.path[:] = sys.argv[1:]; from hostrouting.cli import demo; demo.run()"
    # Ctrl-C reaches both processes. SIGINT is blocked in the child, which may still be importing, so the child gets
    # SIGTERM.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    with subprocess.Popen([sys.executable, "-I", "-c", program, *sys.path]) as child:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return child.wait()
        except KeyboardInterrupt:
            child.terminate()
            child.wait()
            raise


def apply(options: argparse.Namespace, host: Host) -> int:
    """Install the routes, the check and the gate of CONFIG, and check now.

    The command first installs the static routes, either all of them or none, and then checks. For every boot it
    installs scripts, units and the gate. The gate is two drop-ins that hold back the consumer (systemd-nspawn@.service,
    or the unit that CONFIG names) until the routes are installed and the check has passed. The command never stops or
    restarts a running machine. It removes parts that an earlier run installed and that CONFIG no longer asks for. It
    lists every route, file and unit that it changes, even if it fails half-way. With --output json it prints one
    document, whatever the exit code. This has "host", "changed", lists of "routes", "files" and "units", "overlap", and
    "error" if it fails.

    With --try it changes only the kernel's routes, and checks. When the time is over, systemd restores the former
    routes, even if other processes have died. To keep the routes and install the rest, confirm them with
    hostrouting confirm, or with Enter on a terminal. Ctrl-C restores the former routes at once, and so does a failing
    check in STRICT mode. During the trial the watcher leaves routes alone. Another apply, remove or a start of the
    consumer ends the trial. That start is judged as the installation says.

      hostrouting apply /etc/aks-flex-node/config.json
      hostrouting apply --try 60 config.json                 Enter or hostrouting confirm keeps the routes
      hostrouting apply --root /mnt/image config.json        takes effect at the image's first boot
    """
    from hostrouting.cli.changes import applied_text, changed_text

    on = options.image or host
    config = load(options, on)
    if options.try_seconds is not None:
        from hostrouting.cli.trying import try_routes

        return try_routes(options, config, host)
    if options.routes_only:
        from hostrouting.tasks.install_routes import InstallRoutes

        routes = run_task(InstallRoutes(config, host=host))
        text = partial(changed_text, routes.plan, routes.changes)
        say_as_asked(options, lambda: routes.to_json() | {"overlap": None}, text)
        return 0
    from hostrouting.tasks.configure import Configure

    report = run_task(Configure(config, host=on))
    for warning in report.warnings:
        complain(f"hostrouting: {warning}")

    def applied() -> str:
        if options.image is None:
            return applied_text(report.routes.plan, report.changes, report.overlap)
        holds, idle = f"{on.layout.root} holds from its first boot", "CONFIG asks for nothing: no node is held back"
        return f"{changed_text(report.routes.plan, report.changes)}\n{holds if config.is_gated else idle}"

    say_as_asked(options, report.to_json, applied)
    return 0


def plan(options: argparse.Namespace, host: Host) -> int:
    """Show what apply would change, and change nothing.

    The plan marks each route: + is added, ~ is replaced, - is removed, = is there already. It shows files as diffs,
    then units, and finally whether the consumer's next start would be admitted. It exits with 2 if there is anything to
    change, and with 0 if not. Its JSON has the form of apply's output, as if the changes were made. With --snapshot it
    compares only routes, and judges the next start on the snapshot's host, because a snapshot has no files and units.
    With --root it compares only files and units.
    """
    from hostrouting.cli.changes import plan_text
    from hostrouting.tasks import preview

    config = load(options, options.image or host)
    on = asked_host(options, host)
    found = run_task(phases.task("plan")(lambda scope: preview.plan(config, host=on, scope=scope)))
    for warning in found.warnings:
        complain(f"hostrouting: {warning}")
    say_as_asked(options, found.to_json, lambda: plan_text(found, config))
    return EXIT_PLAN_CHANGES if found else 0


def render(options: argparse.Namespace, host: Host) -> int:
    """Write the files that apply would install, for a host without Python.

    With --out it writes the files into a folder, together with install.sh, which installs them, and remove.sh, which
    removes them. Both scripts need bash, coreutils, util-linux, ip, sed and grep. With --format it prints the files as
    an Ignition document.

      hostrouting render --out routing config.json && scp -r routing root@node:    there: ./routing/install.sh
      hostrouting render --format ignition config.json > routing.ign    for a machine that is made from an image
    """
    from hostrouting.boot.bundle import bundle, ignition
    from hostrouting.boot.files import write_if_changed
    from hostrouting.boot.layout import Layout
    from hostrouting.model.errors import FileError
    from hostrouting.model.jsonable import to_json_text

    config = load(options, host)
    if not config.is_gated:
        complain("hostrouting: CONFIG asks for nothing: there is nothing to install")
    if options.out is None:
        say(to_json_text(ignition(config)).rstrip())
        return 0
    for file in bundle(config, Layout(options.out)):
        try:
            write_if_changed(file.path, file.text, mode=file.mode)
        except FileError as error:
            # Writing these files doesn't need root.
            hint = "name a folder that is yours" if error.is_not_permitted else error.hint
            raise FileError(error.message, hint=hint, errno=error.errno) from error
        say(str(file.path))
    return 0


def snapshot(_options: argparse.Namespace, host: Host) -> int:
    """Print the state that a check needs, to judge it elsewhere.

    The output is one JSON document with links, IPv4 addresses, rules, routes of all tables, nexthop objects,
    nameservers, and the sysctl and network managers that decide how events affect them. The command needs no privileges
    and changes nothing. If the host changes during every attempt to read it, the document has "isTorn": true, and can't
    be judged.

      hostrouting snapshot > node.json                               on the sick node
      hostrouting check --snapshot node.json config.json             anywhere, with the same verdict

    To record a host without hostrouting, a shell and ip (iproute2 5.15 or newer) are enough:

      ip -4 -o monitor link address rule route nexthop > node.changes 2>&1 &
      sleep 1
      { printf '{"kernel": "%s", "ip": "%s"' "$(uname -sr)" "$(ip -V)"
        echo ', "links":';     ip -j -N -d link show
        echo ', "addresses":'; ip -j -N -d -4 address show
        echo ', "rules":';     ip -j -N -d -4 rule show
        echo ', "routes":';    ip -j -N -d -4 route show table all
        echo ', "nexthops":';  ip -j -N -d nexthop show
        sleep 1; kill $! || echo gone >> node.changes
        echo ', "isTorn":';    [ -s node.changes ] && echo true || echo false
        echo '}'; } > node.json
    """
    from hostrouting.tasks import queries

    say(queries.snapshot(host=host).to_text().rstrip())
    return 0


def schema(_options: argparse.Namespace, _host: Host) -> int:
    """Print the JSON Schema of CONFIG, for editors and CI.

      hostrouting schema > config.schema.json

    An editor then completes and validates a config that has the key "$schema": "./config.schema.json" at its top level.
    To use the schema for all configs, name the file in json.schemas of VS Code's settings.
    """
    from importlib import resources

    say(resources.files("hostrouting.config").joinpath("config.schema.json").read_text(encoding="utf-8").rstrip())
    return 0


def watch(options: argparse.Namespace, host: Host) -> int:
    """Keep the node as CONFIG asks, until a signal ends it.

    The watcher runs a check whenever links, addresses, routes, rules or CONFIG change, and otherwise once a minute. It
    restores our routes if they are lost, and adapts them if the default route changes. It also writes the markers, and
    the metrics of watch.textfile. It reports each new failure once, and once more when the failure ends. If systemd has
    started it, the reports go to the journal. Otherwise they go to standard output, and a line is lost if it can't be
    written within a second. The watcher never stops a running machine. In another network namespace it refuses to run
    if it would replace the host's markers. With "watch": {"enabled": true} in CONFIG, apply installs it as
    hostrouting-watch.service.

      hostrouting watch config.json         in the foreground until SIGTERM or Ctrl-C; the routes stay
      journalctl -u hostrouting-watch       the service's messages
    """
    from pathlib import Path

    from hostrouting.config.routing import Config
    from hostrouting.watch.loop import WatchHostRouting
    from hostrouting.watch.outputs import notify, write_entry

    load(options, host)  # report all its problems now; later only one line is reported
    path = host.layout.config if options.config is None else options.config
    journal = host.layout.journal_socket if "JOURNAL_STREAM" in os.environ else None
    # An idle process then wakes up four times a second, not forty times.
    scope = phases.CancelScope(clock=phases.SystemClock(slice_seconds=0.25))

    def print_line(line: str) -> None:
        # The watcher must go on even if its terminal is stopped.
        is_in_time = patience(_LINE_SECONDS)
        say(line, lambda: is_in_time() and not scope.is_cancelled)

    task = WatchHostRouting(
        read=lambda: Config.load(path),
        host=host,
        say=lambda event: write_entry(event, journal, print_line),
        tell=lambda state: notify(os.environ.get("NOTIFY_SOCKET", ""), state),
        files=(Path(path), host.layout.gate_off),
    )
    with cancelled_by_signals(scope), suppress(phases.Cancelled):
        phases.run(task, scope=scope)
    return 0


def set_config(options: argparse.Namespace, host: Host) -> int:
    """Write our keys of CONFIG into FILE, which other components share.

    The keys are hostRouting and hostNetworking. Each is replaced as a whole, and a key that CONFIG lacks stays in FILE
    unchanged. The bytes around the keys, the mode, the owner and a link to FILE stay the same too. If FILE doesn't
    exist, it is created and only its owner can read it. A second run writes nothing.

      hostrouting config set /etc/aks-flex-node/config.json --from ours.json && hostrouting apply
    """
    from hostrouting.cli.azure import sections
    from hostrouting.cli.changes import NOTHING, changes_lines
    from hostrouting.cli.fixing import set_sections

    changes = set_sections(options.file, sections.our_sections(options, host))
    say_as_asked(options, changes.to_json, lambda: "\n".join(changes_lines(changes)) or NOTHING)
    return 0


def remove(options: argparse.Namespace, host: Host) -> int:
    """Remove everything that was ever installed.

    The command removes our routes (protocol 217 in table main), files and markers, and lists each of them. With --root
    it removes the files in an image. It needs no config, and touches nothing that another program owns.
    """
    from hostrouting.boot.installation import requiring_units
    from hostrouting.boot.manifest import Manifest
    from hostrouting.cli.azure import sections

    host = options.image or host
    requiring = requiring_units(host, *Manifest.of_host(host.layout).parts)
    text, document = run_task(phases.task("remove")(lambda scope: sections.remove_all(host, scope)))
    for oneshot, required_by in requiring.items():
        text += f"\nsystemd won't start {' '.join(required_by)} any more: {oneshot}, which they require, is gone"
    say_as_asked(options, lambda: document | {"stillRequired": requiring}, lambda: text)
    return 0
