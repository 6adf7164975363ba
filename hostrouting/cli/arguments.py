"""The words of the command line: what each command takes, and how it is explained.

Only the command that is named is built, as a check takes no longer than the parsers of all the others.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hostrouting import __version__
from hostrouting.cli import commands
from hostrouting.cli.parser import Help, Parser, Word, add_config, add_output
from hostrouting.cli.running import EXIT_CHECK_UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


__all__ = ["parse"]


_VERBOSE = "log each task as it starts and ends"

_DESCRIPTION = """\
Give a node's traffic the right interface before the node starts, and prove it.

Installs more specific IPv4 routes where an interface such as InfiniBand's shadows the cluster's network, and
checks by the kernel's own answers that every expected CIDR leaves by the default route's interface.
"""

_EPILOG = """\
exit codes: 0 done; 1 failed; 64 usage; 74 done, but the output could not be written; 77 not permitted; 78 bad config
            check: 0 ok, 1 overlap, 2 couldn't judge;  fix: 1 not all can be mended, 2 couldn't judge;
            plan, lb-probe plan, azure-vnet plan: 0 nothing to change, 2 changes;
            doctor: 0 nothing is broken, 1 something is

see it happen, on a throw-away copy of the kernel's tables:   hostrouting demo
"""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the arguments.

    Returns:
        Them, with ``run`` and ``failed`` of the command that they name.

    Raises:
        UsageError: they can't be meant like that.
        SystemExit: after --help and --version.
    """
    first = next((word for word in argv if word not in ("-v", "--verbose")), "")
    parser = Parser(
        prog="hostrouting", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=Help, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"hostrouting {__version__}")
    parser.add_argument("-v", "--verbose", action="store_true", help=_VERBOSE)
    if first in _WORDS:
        _add_words(parser, {first: _WORDS[first]}, "hostrouting", is_deep=True)
    else:
        _add_words(parser, _WORDS, "hostrouting", is_deep=False)
    return parser.parse_args(argv)


def _add_words(parser: Parser, words: Mapping[str, Word], prog: str, *, is_deep: bool) -> None:
    common = Parser(add_help=False, formatter_class=Help)
    common.add_argument("-v", "--verbose", action="store_true", default=argparse.SUPPRESS, help=_VERBOSE)
    made: argparse._SubParsersAction[Parser] = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, prog=prog
    )
    for name, word in words.items():
        below = made.add_parser(
            name,
            help=word.help,
            description=f"{word.help[0].upper()}{word.help[1:]}.{word.more}",
            parents=[common],
            allow_abbrev=False,
            formatter_class=Help,
        )
        if not is_deep:
            continue  # it is only listed
        word.add(below)
        if word.words is None:
            below.set_defaults(run=word.run, failed=word.failed)
        else:
            _add_words(below, word.words(), f"{prog} {name}", is_deep=True)


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

Every address counts: the tables cut each CIDR into ranges, and the kernel is asked about each of them; where a
policy rule has a "from", also for connections from the source that they get. Waits for a default route, waitSeconds
at most (30 without a CONFIG). Writes no marker. Exits with 0 if all is well, with 1 if a CIDR is shadowed, has no
route or is discarded, with 2 if nothing could be judged.

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

First, what the check says now. Then looks at the units as systemd has them in memory, at what is installed (all of it
against what CONFIG renders), at the kernel's routes, and at who may take them away; each finding with its remedy.
Changes nothing. Without a CONFIG, and without the default one, what is installed is compared with what its own scripts
were rendered from. Exits with 0 if nothing is broken, with 1 otherwise; what only may break later is listed.

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
_LB_PROBE_MORE = """

The balancer probes IPv6 Services from fe80::1234:5678:9abc, which a node must not forward: where a pod elsewhere has
to answer (externalTrafficPolicy: Cluster) the probe dies, and the balancer takes the node out. nftables rules rewrite
the source of probes on their way in, and the destination of answers on their way out. CONFIG's key is
hostNetworking.loadBalancerProbe.
"""
_AZURE_VNET_MORE = """

A pod that gets the address of an earlier one that azure-vnet served isn't reached as long as that one's ebtables
rules and neighbour are there. What goes is just that: inside the CIDRs that CONFIG names in
hostNetworking.staleAzureVnet, of no live pod, of nobody else.
"""
_REMOVE_MORE = """

Removes our routes (protocol 217 in table main), files and markers. Needs no config. Nothing of anybody else's is
touched.
"""


def _add_snapshot(parser: argparse.ArgumentParser) -> None:
    what = "a host that was recorded, instead of this one; - is standard input"
    parser.add_argument("--snapshot", metavar="FILE", help=what)


def _add_cidr(parser: Parser) -> None:
    parser.add_argument("--cidr", action="append", default=[], metavar="C", help="a CIDR to expect; may be repeated")


# --- the arguments of each command ---------------------------------------------------------------------------------


def _demo(parser: Parser) -> None:
    parser.add_argument("--output", choices=("text", "svg"), default="text", help="text, or a picture of it")


def _apply(parser: Parser) -> None:
    add_config(parser)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--root", metavar="DIR", help="into an image mounted at DIR: files and enablement only")
    where.add_argument("--routes-only", action="store_true", help="the kernel's routes alone: no files, units or check")
    add_output(parser)


def _plan(parser: Parser) -> None:
    add_config(parser)
    _add_snapshot(parser)
    add_output(parser)


def _render(parser: Parser) -> None:
    add_config(parser)
    parser.add_argument("--out", metavar="DIR", required=True, help="the folder; it stands for /")


def _check(parser: Parser) -> None:
    add_config(parser)
    _add_cidr(parser)
    _add_snapshot(parser)
    add_output(parser, "nagios", "svg")
    what = "what the boot check's verdict leaves out: judges by the installed config, and leaves route-overlap.json"
    parser.add_argument("--report", action="store_true", help=what)


def _fix(parser: Parser) -> None:
    add_config(parser)
    _add_cidr(parser)
    parser.add_argument(
        "--format",
        choices=("config", "netplan", "networkd", "ip"),
        default="config",
        help="our own config, or the same routes for netplan, systemd-networkd or as ip commands",
    )
    _add_snapshot(parser)


def _doctor(parser: Parser) -> None:
    add_config(parser)
    add_output(parser)
    parser.add_argument("--strict", action="store_true", help="exit with 1 also for what only may break later")


def _lb_probe() -> Mapping[str, Word]:
    from hostrouting.cli.azure.probe import WORDS

    return WORDS


def _azure_vnet() -> Mapping[str, Word]:
    from hostrouting.cli.azure.vnet import WORDS

    return WORDS


_WORDS = {
    "demo": Word("show the whole story in a throw-away network namespace", _DEMO_MORE, _demo, commands.demo),
    "apply": Word("install routes, check and gate of CONFIG, and check now", _APPLY_MORE, _apply, commands.apply),
    "plan": Word("show what apply would change, and change nothing", _PLAN_MORE, _plan, commands.plan),
    "render": Word("write the files that apply would install into a folder", _RENDER_MORE, _render, commands.render),
    "check": Word(
        "check now that every expected CIDR leaves by the default route's interface",
        _CHECK_MORE,
        _check,
        commands.check,
        failed=EXIT_CHECK_UNKNOWN,
    ),
    "fix": Word(
        "print the config that mends what a check finds", _FIX_MORE, _fix, commands.fix, failed=EXIT_CHECK_UNKNOWN
    ),
    "snapshot": Word("print what a check looks at, to judge it elsewhere", _SNAPSHOT_MORE, run=commands.snapshot),
    "doctor": Word("does the gate on this host hold, and what may break it", _DOCTOR_MORE, _doctor, commands.doctor),
    "watch": Word("keep what CONFIG asks for true, until a signal ends it", _WATCH_MORE, add_config, commands.watch),
    "lb-probe": Word("let nodes answer Azure's IPv6 health probes", _LB_PROBE_MORE, words=_lb_probe),
    "azure-vnet": Word("clean up what the CNI azure-vnet has left of pods", _AZURE_VNET_MORE, words=_azure_vnet),
    "remove": Word("take back everything that was ever installed", _REMOVE_MORE, run=commands.remove),
}
