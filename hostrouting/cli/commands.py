"""The commands that change or show something: a few lines over the tasks. Docstrings are the help."""

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

    The demo builds a node like Azure's H200 machines: eth0 has the default route, and the connected /16 routes of ib0
    to ib7 shadow the cluster's network. It checks, installs more specific routes, checks again, and cleans up. It needs
    no root where user namespaces are allowed, and never touches the host's tables. Where namespaces are refused it runs
    on a kernel in memory.
    """
    import signal
    import subprocess

    # Use exactly this process's modules: -m alone would search the caller's folder first.
    program = "import sys; sys.path[:] = sys.argv[1:]; from hostrouting.cli import demo; demo.run()"
    # Ctrl-C reaches both; as the child may still be loading its modules, it has SIGINT blocked and gets SIGTERM.
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

    First apply installs the static routes, all of them or none, and then it checks. For every boot it installs scripts,
    units and the gate, two drop-ins that hold the consumer back (systemd-nspawn@.service, or what CONFIG names) until
    both have passed. It never stops or restarts a running machine. It removes parts that an earlier run installed and
    CONFIG no longer asks for. It lists every route, file and unit that it changes, even if it fails half-way. With
    --output json it prints one document, whatever the exit code: "host", "changed", lists of "routes", "files" and
    "units", "overlap"; and "error" if it fails.

    With --try it changes only the kernel's routes, and checks. When the time is over systemd restores the former
    routes, whatever has died by then, unless they were confirmed with hostrouting confirm (or Enter on a terminal),
    which installs the rest. Ctrl-C restores them at once, and so does a failing check in STRICT mode. Until then the
    watcher leaves routes alone. Another apply, remove, and a start of the consumer end the trial; the installation
    judges that start.

      hostrouting apply /etc/aks-flex-node/config.json
      hostrouting apply --try 60 config.json                 Enter or hostrouting confirm keeps them
      hostrouting apply --root /mnt/image config.json        holds from the image's first boot
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

    The plan marks routes: + is added, ~ is replaced, - is removed, = is there already. It shows files as diffs, then
    units, and last whether the next start of the consumer would be admitted. It exits with 2 if there is anything to
    change, and with 0 if not. Its JSON has the form of apply's, as if it were done. With --snapshot it compares only
    routes, and judges the next start on the snapshot's host, because a snapshot contains no files and units. With
    --root it compares only files and units.
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

    With --out it writes them into a folder, with an install.sh that installs them and a remove.sh that removes them;
    both need bash, coreutils, util-linux, ip, sed and grep. With --format it prints them as an Ignition document.

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
            # None of this needs root.
            hint = "name a folder that is yours" if error.is_not_permitted else error.hint
            raise FileError(error.message, hint=hint, errno=error.errno) from error
        say(str(file.path))
    return 0


def snapshot(_options: argparse.Namespace, host: Host) -> int:
    """Print the state that a check needs, to judge it elsewhere.

    This is one JSON document: links, IPv4 addresses, rules, routes of all tables, nexthop objects, nameservers, and the
    sysctl and network managers that decide the effect of events on them. The command needs no privileges and changes
    nothing. If the host changes during every read, the document has "isTorn": true, and isn't judged.

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

    An editor then completes and checks a config whose top level has the key "$schema": "./config.schema.json". For all
    configs at once, name the file in json.schemas of VS Code's settings.
    """
    from importlib import resources

    say(resources.files("hostrouting.config").joinpath("config.schema.json").read_text(encoding="utf-8").rstrip())
    return 0


def watch(options: argparse.Namespace, host: Host) -> int:
    """Keep the node as CONFIG asks, until a signal ends it.

    The watcher looks whenever links, addresses, routes, rules or CONFIG change, and otherwise once a minute. It
    restores our lost routes, makes routes follow a changed default route, checks, and writes the markers and the
    metrics of watch.textfile. It reports each new failure once, and its end once: to the journal if systemd has started
    it, otherwise on standard output, where a line that isn't accepted within a second is lost. It never stops a running
    machine, and refuses to leave the host's markers where it is in another network namespace. With "watch":
    {"enabled": true} in CONFIG, apply installs it as hostrouting-watch.service.

      hostrouting watch config.json         in the foreground; SIGTERM or Ctrl-C ends it, the routes stay
      journalctl -u hostrouting-watch       the service's messages
    """
    from pathlib import Path

    from hostrouting.config.routing import Config
    from hostrouting.watch.loop import WatchHostRouting
    from hostrouting.watch.outputs import notify, write_entry

    load(options, host)  # report its problems in full now, in one line later
    path = host.layout.config if options.config is None else options.config
    journal = host.layout.journal_socket if "JOURNAL_STREAM" in os.environ else None
    # A process that is idle for hours wakes up four times a second, not forty.
    scope = phases.CancelScope(clock=phases.SystemClock(slice_seconds=0.25))

    def print_line(line: str) -> None:
        # A stopped terminal must not stop the watcher.
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

    The keys are hostRouting and hostNetworking. Each is replaced as a whole; a key that CONFIG lacks stays in FILE as
    it is. The bytes around them, the mode, the owner and a link to FILE stay too. If there is no FILE, it is created
    for its owner alone. A second run writes nothing.

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

    The command removes our routes (protocol 217 in table main), files and markers, and lists each of them; with --root
    it removes the files of an image. It needs no config, and touches nothing that another program owns.
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
