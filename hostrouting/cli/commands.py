"""The commands that neither apply nor check a config. Each docstring is the command's help text."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from contextlib import suppress
from functools import partial

import phases
from hostrouting.boot.host import Host
from hostrouting.cli.changes import NOTHING, changed_text, changes_lines
from hostrouting.cli.inputs import config_path, load
from hostrouting.cli.output import complain, say
from hostrouting.cli.running import Result, cancelled_by_signals, run_function
from hostrouting.config.routing import Config
from hostrouting.model.errors import FileError
from hostrouting.model.jsonable import to_json_text
from hostrouting.model.text import clean

# If the terminal is stopped, the watcher waits this long, drops the line and goes on.
_LINE_SECONDS = 1.0


def demo(_options: argparse.Namespace, _host: Host) -> int:
    """Demonstrate hostrouting in a throw-away network namespace.

    On an Azure H200 node, connected routes on ib0 to ib7 shadow the cluster's networks. The demo
    runs a check, installs more specific routes, checks again, and cleans up. It never touches the
    host's routing tables. With unprivileged user namespaces, it doesn't need root. Without
    namespaces, it uses an in-memory fake kernel, which supports only IPv4.
    """
    import subprocess

    # Python with -m searches the working directory first. So use the sys.path of this process.
    program = "import sys; sys.path[:] = sys.argv[1:]; from hostrouting.cli import demo; demo.run()"
    # Ctrl-C reaches both processes, even while the child is still importing. So SIGINT is blocked
    # in the child, and this process sends the child SIGTERM instead.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    with subprocess.Popen([sys.executable, "-I", "-c", program, *sys.path]) as child:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return child.wait()
        except KeyboardInterrupt:
            child.terminate()
            child.wait()
            raise


def render(options: argparse.Namespace, host: Host) -> Result | int:
    """Write the files that apply would install, for hosts without Python.

    With --out it writes the files to a directory, together with the scripts install.sh and
    remove.sh. Both scripts need bash, coreutils, util-linux, ip, sed and grep. With --format it
    prints the files as an Ignition config.

      hostrouting render --out routing config.json && scp -r routing root@node:    on the node: ./routing/install.sh
      hostrouting render --format ignition config.json > routing.ign    for a machine that is created from an image
    """  # noqa: E501
    from hostrouting.boot.bundle import bundle, ignition
    from hostrouting.boot.files import write_if_changed
    from hostrouting.boot.layout import Layout
    from hostrouting.boot.python import why_unsafe

    config = load(options, host)
    if not config.is_gated:
        complain("hostrouting: CONFIG enables nothing: there is nothing to install")
    if config.watch.enabled:
        complain(
            f"hostrouting: the watcher's unit starts {clean(sys.executable)}: install hostrouting "
            "at that path on the node, or the unit fails"
        )
        if why := why_unsafe():
            complain(f"hostrouting: here {clean(why)}, and the unit runs it as root")
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
    """Print the state that a check needs, so that the check can be run elsewhere.

    The output is a JSON document with links, addresses, rules, routes in all tables (with the hops
    of their nexthop objects), nameservers, and the interfaces with the sysctls
    ignore_routes_with_linkdown and rp_filter. The command needs no privileges and changes nothing.
    If the host's state changes during every attempt to read it, the document has "isTorn": true,
    and a check of it returns no verdict.

      hostrouting snapshot > node.json                               on the failing node
      hostrouting check --snapshot node.json config.json             anywhere, with the same verdict

    To take a snapshot without hostrouting, a shell and ip (iproute2 5.15 or newer) are enough:
    ssh node sh < snap.sh > node.json. For IPv6 CIDRs, change the first line of snap.sh to "only=":

      only=-4
      changes=$(mktemp)
      ip $only -o monitor link address rule route nexthop > "$changes" 2>&1 &
      sleep 1
      { printf '{"time": "%s", ' "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
        printf '"kernel": "%s", "ip": "%s"' "$(uname -sr)" "$(ip -V)"
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
        sleep 1; kill $! || echo gone >> "$changes"
        echo ', "isTorn":';    [ -s "$changes" ] && echo true || echo false
        rm "$changes"
        echo '}'; }
    """
    from hostrouting.tasks import queries

    return Result(text=lambda: queries.snapshot(host=host).to_text().rstrip())


def schema(_options: argparse.Namespace, _host: Host) -> Result:
    """Print the JSON Schema of CONFIG, for editors and CI.

      hostrouting schema > config.schema.json

    Editors then offer completion and validation for a config with a top-level "$schema":
    "./config.schema.json". To use the schema for all configs, add the file to json.schemas in VS
    Code's settings.
    """
    from importlib import resources

    schema = resources.files("hostrouting.config").joinpath("config.schema.json")
    return Result(text=lambda: schema.read_text(encoding="utf-8").rstrip())


def watch(options: argparse.Namespace, host: Host) -> int:
    """Keep the node in the state described by CONFIG until stopped by a signal.

    The watcher runs a check whenever links, addresses, routes, rules or CONFIG change, and at least
    once a minute. It restores our routes and rules if they disappear, and updates routes if the
    default route changes. It also writes the markers, and the metrics if watch.textfile is set. It
    reports each failure once when it appears and once when it is resolved. Under systemd, it
    reports to the journal. Otherwise it reports to stdout, and drops a line that can't be written
    within a second. The watcher never stops a running machine. In another network namespace than
    the host's, it refuses to start if it would overwrite the host's markers. With "watch":
    {"enabled": true} in CONFIG, apply installs it as hostrouting-watch.service.

      hostrouting watch config.json         in the foreground until SIGTERM or Ctrl-C; keeps the routes
      journalctl -u hostrouting-watch       the service's messages
    """  # noqa: E501
    from pathlib import Path

    from hostrouting.watch.loop import WatchHostRouting
    from hostrouting.watch.outputs import notify, write_entry

    # If CONFIG is invalid, this error lists all problems. Later, the watcher reports only a line.
    load(options, host)
    path = config_path(options, host)
    journal = host.layout.journal_socket if "JOURNAL_STREAM" in os.environ else None
    # With this interval, an idle watcher wakes up 4 times a second instead of 40.
    scope = phases.CancelScope(clock=phases.SystemClock(slice_seconds=0.25))
    task = WatchHostRouting(
        read=lambda: Config.load(path),
        host=host,
        say=lambda event: write_entry(event, journal, partial(say, patience=_LINE_SECONDS)),
        tell=lambda state: notify(os.environ.get("NOTIFY_SOCKET", ""), state),
        files=(Path(path), host.layout.gate_off, host.layout.verified),
    )
    with cancelled_by_signals(scope), suppress(phases.Cancelled):
        phases.run(task, scope=scope)
    return 0


def set_config(options: argparse.Namespace, host: Host) -> Result:
    """Copy our keys from CONFIG into FILE, which is shared with other components.

    The keys are hostRouting and hostNetworking. Each key is replaced as a whole. A key that CONFIG
    lacks stays unchanged in FILE. Everything else in FILE, its mode and its owner are preserved. A
    symlink is followed; as root, only one that no other user can change. A missing FILE is created
    with mode 0600. A second run changes nothing.

      hostrouting config set /etc/aks-flex-node/config.json --from ours.json && hostrouting apply
    """
    from hostrouting.cli.azure import sections
    from hostrouting.cli.edit_config import set_sections

    changes = set_sections(options.file, sections.our_sections(options, host))
    return Result(changes.to_json, lambda: "\n".join(changes_lines(changes)) or NOTHING)


def remove(options: argparse.Namespace, host: Host) -> Result:
    """Remove everything that hostrouting has installed.

    The command removes our routes (protocol 217 in table main and in tables 2170000 to 2179999),
    our rules (protocol 217), what fix --format ip printed (protocol 216), files and markers, and
    lists each of them. With --root it removes the
    files from an image. It needs no config, and never touches what another program owns. At the
    end, it says what stays: CONFIG, and locks that are gone after the next boot.
    """
    from hostrouting.boot.installation import requiring_units
    from hostrouting.boot.manifest import Manifest
    from hostrouting.cli.azure import sections

    host = options.image or host
    requiring = requiring_units(host, *Manifest.of_host(host.layout).parts)
    report = run_function("remove", partial(sections.remove_all, host))
    text = changed_text(report.plan, report.changes, is_verbose=options.verbose)
    for oneshot, required_by in requiring.items():
        text += (
            f"\nsystemd won't start {' '.join(required_by)} any more: {oneshot}, "
            "which they require, is gone"
        )
    if stays := _what_stays(host):
        text += f"\nstays     {stays}"
    return Result(lambda: report.to_json() | {"stillRequired": requiring}, lambda: text)


def _what_stays(host: Host) -> str:
    """Return the files that stay, each with the reason."""
    from hostrouting.boot.files import is_present

    layout = host.layout
    reasons = {
        layout.config: "which isn't hostrouting's alone",
        layout.run_dir: "with locks, until the next boot",
    }
    there = (path for path in reasons if is_present(path))
    return "; ".join(f"{layout.relative(path)}, {reasons[path]}" for path in there)
