"""The command line: its words, and how every run ends. What the commands do is in ``commands``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn

import phases
from hostrouting import __version__, commands, styled
from hostrouting.commands import EXIT_CHECK_UNKNOWN, EXIT_FAILURE
from hostrouting.errors import ConfigError, HostRoutingError
from hostrouting.options import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from hostrouting.host import Host

__all__ = ["main"]

Command = Callable[[argparse.Namespace, "Host | None"], int]

# sysexits.h
EXIT_USAGE, EXIT_OUTPUT, EXIT_NOT_PERMITTED, EXIT_CONFIG = 64, 74, 77, 78

_DESCRIPTION = """\
Give a node's traffic the right interface before the node starts, and prove it.

Installs more specific IPv4 routes where an interface such as InfiniBand's shadows the cluster's network, and
checks by the kernel's own answers that every expected CIDR leaves by the default route's interface.
"""

_EPILOG = """\
exit codes: 0 done; 1 failed; 64 usage; 74 done, but the output could not be written; 77 not permitted; 78 bad config
            check: 0 ok, 1 overlap, 2 couldn't judge;  fix: 1 not all can be mended, 2 couldn't judge;
            plan: 0 nothing to change, 2 changes;  doctor: 0 nothing found, 1 findings

see it happen, on a throw-away copy of the kernel's tables:   hostrouting demo
"""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal, as argparse's own, which loads shutil and so three kinds of compression."""

    def __init__(self, prog: str) -> None:
        width = os.environ.get("COLUMNS", "")
        super().__init__(prog, width=(int(width) if width.isdecimal() else styled.columns(sys.stdout) or 80) - 2)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.format_usage()}{self.prog}: {message}; try {self.prog} --help")


def main(argv: Sequence[str] | None = None, *, host: Host | None = None) -> int:
    """Run a command.

    Args:
        argv: the arguments after the program's name; None: the process's.
        host: what to work on; None: this host.

    Returns:
        The exit code.
    """
    failed = EXIT_FAILURE
    try:
        options = _parser().parse_args(argv)
        failed = options.failed
        with _told_all() if options.verbose else nullcontext():
            code: int = options.run(options, host)
            return code
    except UsageError as error:
        if _is_for_nagios(sys.argv[1:] if argv is None else argv):
            return _fail_for_nagios(str(error).splitlines()[-1])
        styled.complain(str(error))
        return EXIT_USAGE
    except ConfigError as error:
        return _fail(error, EXIT_CONFIG)
    except HostRoutingError as error:
        return _fail(error, EXIT_NOT_PERMITTED if error.is_not_permitted else failed)
    except phases.Cancelled as error:
        return _fail(error, failed)
    except OSError as error:
        # Ours are HostRoutingErrors by now: this is standard output, and what was asked for has been done.
        styled.complain(f"hostrouting: done, but can't write the output: {error.strerror}")
        return EXIT_OUTPUT
    except SystemExit as end:  # --help, --version
        return end.code if isinstance(end.code, int) else EXIT_USAGE


def _is_for_nagios(argv: Sequence[str]) -> bool:
    """Whether a plugin's answer is expected, whatever is wrong with the other arguments."""
    words = list(argv)
    return "--output=nagios" in words or any(pair == ("--output", "nagios") for pair in pairwise(words))


def _fail_for_nagios(reason: str) -> int:
    from hostrouting.nagios import NAGIOS_UNKNOWN, nagios_unknown

    styled.say(nagios_unknown(reason))
    return NAGIOS_UNKNOWN


def _told_all() -> AbstractContextManager[None]:
    from hostrouting.verbose import logged_to_stderr

    return logged_to_stderr()


def _fail(error: BaseException, code: int) -> int:
    notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith("in task ")]
    what = f"stopped: {error.reason}; nothing is left half-done" if isinstance(error, phases.Cancelled) else str(error)
    for line in "\n".join([what, *notes]).splitlines():
        styled.complain(f"{styled.bad('hostrouting:')} {styled.clean(line)}")
    return code


# --- the arguments -----------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    common = _Parser(add_help=False, formatter_class=_Help)
    common.add_argument(
        "-v", "--verbose", action="store_true", default=argparse.SUPPRESS, help="log each task as it starts and ends"
    )
    parser = _Parser(
        prog="hostrouting",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=_Help,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"hostrouting {__version__}")
    parser.add_argument("-v", "--verbose", action="store_true", help="log each task as it starts and ends")
    subparsers: argparse._SubParsersAction[_Parser] = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, prog="hostrouting"
    )

    def command(name: str, run: Command, help_: str, *, more: str = "", failed: int = EXIT_FAILURE) -> _Parser:
        made: _Parser = subparsers.add_parser(
            name,
            help=help_,
            description=f"{help_[0].upper()}{help_[1:]}.{more}",
            parents=[common],
            allow_abbrev=False,
            formatter_class=_Help,
        )
        made.set_defaults(run=run, failed=failed)
        return made

    demo = command("demo", commands.demo, "show the whole story in a throw-away network namespace", more=_DEMO_MORE)
    demo.add_argument("--output", choices=("text", "svg"), default="text", help="text, or a picture of it")

    apply = command(
        "apply", commands.apply, "install routes, check and gate of CONFIG, and check now", more=_APPLY_MORE
    )
    _add_config(apply)
    where = apply.add_mutually_exclusive_group()
    where.add_argument("--root", metavar="DIR", help="into an image mounted at DIR: files and enablement only")
    where.add_argument("--routes-only", action="store_true", help="the kernel's routes alone: no files, units or check")
    _add_output(apply)

    plan = command("plan", commands.plan, "show what apply would change, and change nothing", more=_PLAN_MORE)
    _add_config(plan)
    _add_snapshot(plan)
    _add_output(plan)

    render = command(
        "render", commands.render, "write the files that apply would install into a folder", more=_RENDER_MORE
    )
    _add_config(render)
    render.add_argument("--out", metavar="DIR", required=True, help="the folder; it stands for /")

    check = command(
        "check",
        commands.check,
        "check now that every expected CIDR leaves by the default route's interface",
        more=_CHECK_MORE,
        failed=EXIT_CHECK_UNKNOWN,
    )
    _add_config(check)
    check.add_argument("--cidr", action="append", default=[], metavar="C", help="a CIDR to expect; may be repeated")
    check.add_argument("--coverage", type=str.upper, choices=("EXACT", "PROBE"), help="every address, or one of each")
    _add_snapshot(check)
    _add_output(check, "nagios", "svg")

    fix = command(
        "fix",
        commands.fix,
        "print the config that mends what a check finds",
        more=_FIX_MORE,
        failed=EXIT_CHECK_UNKNOWN,
    )
    _add_config(fix)
    fix.add_argument("--cidr", action="append", default=[], metavar="C", help="a CIDR to expect; may be repeated")
    fix.add_argument(
        "--format",
        choices=("config", "netplan", "networkd", "ip"),
        default="config",
        help="our own config, or the same routes for netplan, systemd-networkd or as ip commands",
    )
    _add_snapshot(fix)

    command("snapshot", commands.snapshot, "print what a check looks at, to judge it elsewhere", more=_SNAPSHOT_MORE)

    doctor = command(
        "doctor", commands.doctor, "does the gate on this host hold, and what may break it", more=_DOCTOR_MORE
    )
    _add_config(doctor)
    _add_output(doctor)

    watch = command("watch", commands.watch, "keep what CONFIG asks for true, until a signal ends it", more=_WATCH_MORE)
    _add_config(watch)

    command("remove", commands.remove, "take back everything that was ever installed", more=_REMOVE_MORE)
    return parser


_DEMO_MORE = """

Builds a node like Azure's H200 machines in a network namespace of its own: eth0 with the default route, and
ib0 to ib7 whose connected /16 routes shadow the cluster's network. Checks, installs more specific routes,
checks again, and cleans up. Needs no root where user namespaces are allowed; the host's tables aren't touched.
Where namespaces are refused, the same on a kernel in memory.
"""
_APPLY_MORE = """

Now: the static routes, all of them or none, then the check. For every boot: scripts, units, and the gate, a
drop-in that holds the consumer back (systemd-nspawn@.service, or what CONFIG names) until both have passed; never
stops or restarts a running machine. What an earlier run installed and CONFIG no longer asks for is taken back.

  hostrouting apply /etc/aks-flex-node/config.json
  hostrouting apply --root /mnt/image config.json        holds from the image's first boot
"""
_PLAN_MORE = """

Routes: + is added, ~ is replaced, - is removed, = is there already. Files as diffs. Last, whether the next start
of the consumer would be let through. Exits with 2 if there is anything to change, with 0 if not.
With --snapshot only routes are compared, and the next start is that of the recorded host: files and units aren't
recorded.
"""
_RENDER_MORE = """

For a look, or for a tool that installs files by itself: the units must then be enabled there too.
"""
_CHECK_MORE = """

Every address counts: the tables cut each CIDR into ranges, and the kernel is asked about each of them (PROBE asks
about one address of each CIDR). Waits for a default route, waitSeconds at most (30 without a CONFIG). Writes no
marker. Exits with 0 if all is well, with 1 if a CIDR is shadowed, has no route or is discarded, with 2 if nothing
could be judged.

  hostrouting check                                        the CIDRs of /etc/aks-flex-node/config.json
  hostrouting check --cidr 172.16.0.0/16 --cidr 10.96.0.0/12     no file is read
  hostrouting check --cidr 172.16.0.0/16 --snapshot node.json    another host, as it was recorded (waits for nothing)
  hostrouting check --output svg > check.svg                     a picture for a ticket
  hostrouting check --output nagios                              one line with performance data; waits for nothing;
                                                                 exits with 0, 1 (fails, WARN), 2 (fails, STRICT), 3
"""
_FIX_MORE = """

The fewest routes that cover every failing address and none that is fine, each longer than the route that wins there.
With CONFIG the whole document with these merged in, as if its own routes were installed already; with --cidr alone a
document with the proposal alone. What no route can mend, and what else changes sides, is said on standard error.
Changes nothing. Exits with 0, with 1 if something isn't mendable (the rest is printed), with 2 if nothing could be
judged.

  hostrouting fix config.json > mended.json && hostrouting apply mended.json
  hostrouting fix --cidr 172.16.0.0/16 --format netplan          for a host whose routes netplan keeps
  hostrouting fix --cidr 172.16.0.0/16 --snapshot node.json      for another host, as it was recorded
"""
_SNAPSHOT_MORE = """

One JSON document: links, IPv4 addresses, rules, routes of all tables, nexthop objects, nameservers. Needs no
privileges and changes nothing.

  hostrouting snapshot > node.json                               on the sick node
  hostrouting check --snapshot node.json config.json             anywhere, with the same verdict

A host without hostrouting is recorded by a shell and ip (iproute2 5.15 or newer):

{ echo '{"links":';      ip -j -N -d link show
  echo ', "addresses":'; ip -j -N -d -4 address show
  echo ', "rules":';     ip -j -N -d -4 rule show
  echo ', "routes":';    ip -j -N -d -4 route show table all
  echo ', "nexthops":';  ip -j -N -d nexthop show
  echo '}'; } > node.json
"""
_DOCTOR_MORE = """

Looks at the units as systemd has them in memory, at what is installed (all of it against what CONFIG renders), at the
kernel's routes, and at who may take them away; each finding with its remedy. Changes nothing. Without a CONFIG, and
without the default one, what is installed is compared with what its own scripts were rendered from. Exits with 0 if
nothing was found, with 1 otherwise.

  ✓ is fine;  ✗ is broken now;  • may break later;  ? couldn't be examined
"""
_WATCH_MORE = """

Looks whenever links, addresses, routes or rules change, and once a minute without a sign: puts our lost routes back,
has those that follow the default route follow it, checks, writes the markers and the metrics of watch.textfile, and
says once what has come and what has gone: to the journal where systemd has started it, else on standard output. Never
stops a running machine. With "watch": {"enabled": true} in CONFIG, apply installs it as hostrouting-watch.service.

  hostrouting watch config.json         in the foreground; SIGTERM or Ctrl-C ends it, the routes stay
  journalctl -u hostrouting-watch       what the service has said
"""
_REMOVE_MORE = """

Removes our routes (protocol 217 in table main), files and markers. Needs no config. Nothing of anybody else's is
touched.
"""


def _add_config(parser: argparse.ArgumentParser) -> None:
    # Layout().config, which a line of help is no reason to load.
    default = "/etc/aks-flex-node/config.json"
    parser.add_argument("config", nargs="?", metavar="CONFIG", help=f"a JSON file; {default} if none is named")


def _add_snapshot(parser: argparse.ArgumentParser) -> None:
    what = "a host that was recorded, instead of this one; - is standard input"
    parser.add_argument("--snapshot", metavar="FILE", help=what)


def _add_output(parser: argparse.ArgumentParser, *more: str) -> None:
    choices = ("text", "json", *more)
    help_ = "for people, for programs, as a monitoring plugin, or a picture" if more else "for people, or for programs"
    parser.add_argument("--output", choices=choices, default="text", help=help_)
