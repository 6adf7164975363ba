"""The words of the command line and what each takes; what a command does and how it is explained is ``commands``'.

Only the command that is named is built, as a check takes no longer than the parsers of all the others.
"""

from __future__ import annotations

import argparse
import inspect
from typing import TYPE_CHECKING

from hostrouting import __version__
from hostrouting.cli import checking, commands
from hostrouting.cli.parser import Help, Parser, Word, add_config, add_output
from hostrouting.cli.running import EXIT_CHECK_UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_VERBOSE = "log each task as it starts and ends"

_DESCRIPTION = """\
Give a node's traffic the right interface before the node starts, and prove it.

Installs more specific IPv4 routes where an interface such as InfiniBand's shadows the cluster's network, and
checks by the kernel's own answers that every expected CIDR leaves by the default route's interface.
"""

_EPILOG = """\
exit codes: 0 done; 1 failed; 64 usage; 74 done, but the output could not be written; 77 not permitted; 78 bad config
            check, fix, plan and doctor have more: hostrouting COMMAND --help

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
        explained = inspect.getdoc(word.run) or ""
        clause = explained.partition(".\n")[0]
        below = made.add_parser(
            name,
            help=f"{clause[:1].lower()}{clause[1:]}",
            description=explained,
            parents=[common],
            allow_abbrev=False,
            formatter_class=Help,
        )
        if not is_deep:
            continue  # it is only listed
        for add in word.takes:
            add(below)
        if word.is_followed:
            _add_words(below, word.run(), f"{prog} {name}", is_deep=True)
        else:
            below.set_defaults(run=word.run, failed=word.failed)


# --- what commands take --------------------------------------------------------------------------------------------


def _add_snapshot(parser: Parser) -> None:
    what = "a host that was recorded, instead of this one; - is standard input"
    parser.add_argument("--snapshot", metavar="FILE", help=what)


def _add_cidr(parser: Parser) -> None:
    parser.add_argument("--cidr", action="append", default=[], metavar="C", help="a CIDR to expect; may be repeated")


def _add_picture(parser: Parser) -> None:
    parser.add_argument("--output", choices=("text", "svg"), default="text", help="text, or a picture of it")


def _add_where(parser: Parser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--root", metavar="DIR", help="into an image mounted at DIR: files and enablement only")
    where.add_argument("--routes-only", action="store_true", help="the kernel's routes alone: no files, units or check")


def _add_folder(parser: Parser) -> None:
    parser.add_argument("--out", metavar="DIR", required=True, help="the folder; it stands for /")


def _add_more_output(parser: Parser) -> None:
    add_output(parser, "nagios", "svg")
    what = "what the boot check's verdict leaves out: judges by the installed config, and leaves route-overlap.json"
    parser.add_argument("--report", action="store_true", help=what)


def _add_format(parser: Parser) -> None:
    what = "our own config, or the same routes for netplan, systemd-networkd or as ip commands"
    parser.add_argument("--format", choices=("config", "netplan", "networkd", "ip"), default="config", help=what)


def _add_strict(parser: Parser) -> None:
    parser.add_argument("--strict", action="store_true", help="exit with 1 also for what only may break later")


# --- the words -----------------------------------------------------------------------------------------------------


def _lb_probe() -> Mapping[str, Word]:
    """Let nodes answer Azure's IPv6 health probes.

    The balancer probes IPv6 Services from fe80::1234:5678:9abc, which a node must not forward: where a pod elsewhere
    has to answer (externalTrafficPolicy: Cluster) the probe dies, and the balancer takes the node out. nftables rules
    rewrite the source of probes on their way in, and the destination of answers on their way out. CONFIG's key is
    hostNetworking.loadBalancerProbe.
    """
    from hostrouting.cli.azure.probe import WORDS

    return WORDS


def _azure_vnet() -> Mapping[str, Word]:
    """Clean up what the CNI azure-vnet has left of pods.

    A pod that gets the address of an earlier one that azure-vnet served isn't reached as long as that one's ebtables
    rules and neighbour are there. What goes is just that: inside the CIDRs that CONFIG names in
    hostNetworking.staleAzureVnet, of no live pod, of nobody else.
    """
    from hostrouting.cli.azure.vnet import WORDS

    return WORDS


_WORDS = {
    "demo": Word(commands.demo, (_add_picture,)),
    "apply": Word(commands.apply, (add_config, _add_where, add_output)),
    "plan": Word(commands.plan, (add_config, _add_snapshot, add_output)),
    "render": Word(commands.render, (add_config, _add_folder)),
    "check": Word(checking.check, (add_config, _add_cidr, _add_snapshot, _add_more_output), EXIT_CHECK_UNKNOWN),
    "fix": Word(checking.fix, (add_config, _add_cidr, _add_format, _add_snapshot), EXIT_CHECK_UNKNOWN),
    "snapshot": Word(commands.snapshot),
    "doctor": Word(checking.doctor, (add_config, add_output, _add_strict)),
    "watch": Word(commands.watch, (add_config,)),
    "lb-probe": Word(_lb_probe, is_followed=True),
    "azure-vnet": Word(_azure_vnet, is_followed=True),
    "remove": Word(commands.remove),
}
