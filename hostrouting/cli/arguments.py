"""The command line's commands and flags.

Each command's help text is the docstring of the function that runs the command.

Only the parser of the given command is built. Building all parsers would take as long as a check.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeVar

from hostrouting.boot.host import Host
from hostrouting.cli import applying, commands
from hostrouting.cli.exit_codes import EXIT_CHECK_UNKNOWN, EXIT_FAILURE
from hostrouting.cli.help_layout import COMMAND, Help, Parser
from hostrouting.cli.output import complain
from hostrouting.cli.running import Result
from hostrouting.config.values import parse_pattern
from hostrouting.model.parsing import parse_any_cidr, parse_any_unicast_address
from hostrouting.model.version import VERSION

ActionT = TypeVar("ActionT", bound=argparse.Action)

_VERBOSE = "log each task when it starts and ends, and leave nothing out of the output"

_DESCRIPTION = """\
Route a node's traffic through the right interface before the node starts, and verify it.

hostrouting installs more specific routes if InfiniBand or another interface shadows the cluster's
network. It asks the kernel for the routes of every expected CIDR, and verifies that all of them
lead through the node's uplink.
"""

_EPILOG = """\
Exit codes: 0 done; 1 failed; 64 usage; 74 done, but the output could not be written; 77 not
permitted; 78 bad config; hostrouting COMMAND --help explains the further codes of check, fix, plan
and doctor.

See it happen, on a throw-away copy of the kernel's tables: hostrouting demo
"""


class Command(NamedTuple):
    """A command, or a group of commands. The docstring of ``run`` is its help text.

    Args:
        run: the function that runs the command. For a group, ``run`` returns the group's commands.
        takes: functions that add arguments to the parser, in order.
        failed: the exit code for errors without an exit code of their own.
        is_group: whether this is a group of commands.
    """

    run: Callable[..., Any]
    takes: tuple[Callable[[Parser], None], ...] = ()
    failed: int = EXIT_FAILURE
    is_group: bool = False


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments.

    Returns:
        The options, with the command's ``parser``, ``run`` and ``failed``. ``image`` is the host
        for --root, or None.

    Raises:
        ConfigError: --root isn't an image.
        UsageError: the arguments are invalid.
        SystemExit: after --help and --version.
    """
    options, unknown = _parser(_commands_for(argv)).parse_known_args(argv)
    if "snapshots" in options:
        # argparse ends the list of snapshots at the next option, and returns snapshots after the
        # option as unknown arguments.
        options.snapshots += [word for word in unknown if not word.startswith("-")]
        unknown = [word for word in unknown if word.startswith("-")]
    if unknown:
        instead = _instead_of(unknown, has_snapshots="before" in options)
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}{instead}")
    root = getattr(options, "root", None)
    options.image = None if root is None else Host.image(root)
    return options


def _instead_of(unknown: Sequence[str], *, has_snapshots: bool) -> str:
    """Return a clause with a replacement for unknown arguments, or an empty string."""
    if has_snapshots and not unknown[0].startswith("-"):
        return "; at most two snapshots are compared; to name a config, write --config CONFIG"
    return "; plan shows the changes of apply" if "--dry-run" in unknown else ""


def _commands_for(argv: Sequence[str]) -> Mapping[str, Command]:
    """Return, by name, the command that the arguments name. If they name none, return all."""
    first = next((each for each in argv if not each.startswith(("-v", "--verbose"))), "")
    by_name = {"apply": _APPLY} if first == "apply" else all_commands()
    if first in by_name:
        return {first: by_name[first]}
    return {name: Command(command.run) for name, command in by_name.items()}


def _parser(by_name: Mapping[str, Command], made_of: type[Parser] = Parser) -> Parser:
    parser = made_of(
        prog="hostrouting",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=Help,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"hostrouting {VERSION}")
    parser.add_argument("-v", "--verbose", action="store_true", help=_VERBOSE)
    _add_commands(parser, by_name, "hostrouting")
    return parser


def _name_commands(parser: Parser, by_name: Mapping[str, Command], *_: object) -> NoReturn:
    """List the commands, and exit with an error because none was given."""
    width = max(map(len, by_name))
    complain(
        "\n".join(f"  {name:{width}}  {_clause(command)}" for name, command in by_name.items())
    )
    parser.error("a command is missing")


def _clause(command: Command) -> str:
    clause = (inspect.getdoc(command.run) or "").partition(".\n")[0]
    return f"{clause[:1].lower()}{clause[1:]}"


def _add_commands(parser: Parser, by_name: Mapping[str, Command], prog: str) -> None:
    # Don't make the subparsers required: for an unknown option, argparse would then report that the
    # command is missing.
    made = parser.add_subparsers(
        title="commands",
        metavar=COMMAND,
        prog=prog,
    )
    parser.set_defaults(
        parser=parser,
        run=partial(_name_commands, parser, by_name),
        failed=EXIT_FAILURE,
    )
    for name, command in by_name.items():
        below = made.add_parser(
            name,
            help=_clause(command),
            description=inspect.getdoc(command.run) or "",
            allow_abbrev=False,
            formatter_class=Help,
        )
        below.add_argument(
            "-v",
            "--verbose",
            action="store_true",
            default=argparse.SUPPRESS,
            help=_VERBOSE,
        )
        for add in command.takes:
            add(below)
        if command.is_group:
            _add_commands(below, command.run(), f"{prog} {name}")
        else:
            below.set_defaults(
                parser=below,
                run=command.run,
                failed=command.failed,
                output="text",
            )


# --- the arguments of commands --------------------------------------------------------------------


def _add_config(parser: Parser) -> None:
    """Add the CONFIG argument."""
    # This is Layout().config. Importing the layout takes too long for a help text.
    default = "/etc/aks-flex-node/config.json"
    parser.add_argument(
        "config",
        nargs="?",
        metavar="CONFIG",
        help=f"a JSON file; defaults to {default}",
    )


def _add_seen_config(parser: Parser) -> None:
    """Add the CONFIG argument of a command that changes nothing."""
    parser.add_argument(
        "config",
        nargs="?",
        metavar="CONFIG",
        help="a JSON file; defaults to what is installed, or else /etc/aks-flex-node/config.json",
    )


def _add_output(parser: Parser) -> None:
    """Add the --output option."""
    parser.add_argument(
        "--output",
        choices=("text", "json"),
        default="text",
        help="for humans, or for programs",
    )


def _add_snapshot(parser: Parser) -> None:
    what = "use a snapshot instead of this host; - is standard input"
    parser.add_argument(
        "--snapshot",
        action="append",
        metavar="FILE",
        help=what,
    )


def _parsed(parse: Callable[[str], object]) -> Callable[[str], object]:
    """Return a converter for argparse whose error has the message of the ValueError."""

    def parsed(text: str) -> object:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def _add_cidr(parser: Parser) -> None:
    what = "a CIDR to expect; may be repeated"
    parser.add_argument(
        "--cidr",
        type=_parsed(parse_any_cidr),
        action="append",
        default=[],
        metavar="C",
        help=what,
    )


def _add_uplink(parser: Parser) -> None:
    what = "an uplink (a name or a pattern), instead of CONFIG's; may be repeated"
    parser.add_argument(
        "--uplink",
        type=_parsed(parse_pattern),
        action="append",
        default=[],
        metavar="NAME",
        help=what,
    )


def _add_root(parser: argparse._ActionsContainer) -> None:
    what = "use the image mounted at DIR instead of this host: only files and enabled units"
    parser.add_argument("--root", metavar="DIR", help=what)


def _add_where(parser: Parser) -> None:
    where = parser.add_mutually_exclusive_group()
    _add_root(where)
    where.add_argument(
        "--routes-only",
        action="store_true",
        help="change only the kernel's routes and rules, until the next boot, the end of a trial "
        "or, where a gate is installed, the next start: no files, units or check",
    )
    what = (
        "change only the kernel's routes and rules, and check; "
        "restore the installed ones after SECONDS unless confirmed"
    )
    where.add_argument(
        "--try",
        type=_try_seconds,
        dest="try_seconds",
        metavar="SECONDS",
        help=what,
    )


def _try_seconds(text: str) -> int:
    from hostrouting.tasks.trial import SECONDS_MAX

    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= SECONDS_MAX):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of seconds from 1 to {SECONDS_MAX}"
        )
    return int(text)


def _add_folder(parser: Parser) -> None:
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--out",
        metavar="DIR",
        help="write the files into this folder, as if it were /",
    )
    where.add_argument("--format", choices=("ignition",), help="print a single document instead")


def _add_more_output(parser: Parser) -> None:
    what = "for humans, for programs, as a monitoring plugin, a picture, or metrics"
    choices = ("text", "json", "nagios", "svg", "prometheus")
    parser.add_argument(
        "--output",
        choices=choices,
        default="text",
        help=what,
    )
    what = "answer the boot script, which has this verdict and its config on stdin; write a report"
    parser.add_argument("--at-boot", choices=("overlap", "unknown"), help=what)


def _add_snapshots(parser: Parser) -> None:
    parser.add_argument(
        "config",
        nargs="?",
        metavar="CONFIG",
        help="a JSON file that lists the expected CIDRs; defaults to the installed config",
    )
    parser.add_argument(
        "snapshots",
        nargs="+",
        metavar="FILE|FOLDER",
        help="the output of hostrouting snapshot on a host, or a folder with such files (*.json)",
    )
    what = "for humans, for programs, or as a web page"
    parser.add_argument(
        "--output",
        choices=("text", "json", "html"),
        default="text",
        help=what,
    )
    what = (
        "also group hosts by what has changed since their snapshots in DIR, "
        "with the same file names"
    )
    parser.add_argument("--since", metavar="DIR", help=what)


def _add_compared(parser: Parser) -> None:
    parser.add_argument("before", metavar="A", help="the earlier snapshot; - is standard input")
    parser.add_argument(
        "after",
        nargs="?",
        metavar="B",
        help="the later snapshot; defaults to this host as it is",
    )
    what = "a JSON file with the expected CIDRs; defaults to the installed config"
    parser.add_argument("--config", metavar="CONFIG", help=what)


def _add_address(parser: Parser) -> None:
    parser.add_argument(
        "address",
        type=_parsed(parse_any_unicast_address),
        metavar="ADDRESS",
        help="a unicast address, IPv4 or IPv6",
    )


def _add_fixed(parser: Parser) -> None:
    output = parser.add_mutually_exclusive_group()
    what = (
        "hostrouting's config, or the same routes for netplan, systemd-networkd or as ip commands"
    )
    output.add_argument(
        "--format",
        choices=("config", "netplan", "networkd", "ip"),
        default="config",
        help=what,
    )
    what = "write the fixed config to CONFIG's file instead of printing it"
    output.add_argument("--in-place", action="store_true", help=what)


def _add_shell(parser: Parser) -> None:
    parser.add_argument(
        "shell",
        metavar="SHELL",
        choices=("bash", "zsh", "fish"),
        help="bash, zsh or fish",
    )


def _add_doctor(parser: Parser) -> None:
    what = "for humans, for programs, or as AKSFlexNode's preflight"
    parser.add_argument(
        "--output",
        choices=("text", "json", "preflight"),
        default="text",
        help=what,
    )
    what = "treat errors of these preflight checks as warnings: names separated by commas, or all"
    parser.add_argument(
        "--ignore-preflight-errors",
        action="append",
        default=[],
        metavar="NAMES",
        help=what,
    )
    parser.add_argument(
        "--fail-on-warnings",
        action="store_true",
        help="make a preflight fail on warnings too",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="also exit with 1 for problems that may occur later",
    )


def _add_from(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="a JSON file shared with other components")
    parser.add_argument(
        "--from",
        dest="config",
        metavar="CONFIG",
        required=True,
        help="a JSON file with hostrouting's keys",
    )


# --- the commands ---------------------------------------------------------------------------------


def _config() -> Mapping[str, Command]:
    """Change our keys in a file shared with other components.

    The keys are hostRouting and hostNetworking.
    """
    return {"set": Command(commands.set_config, (_add_from, _add_output))}


def _lb_probe() -> Mapping[str, Command]:
    """Let nodes answer Azure's IPv6 health probes.

    The load balancer probes IPv6 Services from the link-local address fe80::1234:5678:9abc. A node
    must not forward packets from such an address. So probes for pods are dropped, and the load
    balancer removes the node from its pool. nftables rules rewrite the source address of incoming
    probes and the destination address of replies. The CONFIG key is
    hostNetworking.loadBalancerProbe.
    """
    from hostrouting.cli.azure import probe

    return {
        "apply": Command(probe.apply, (_add_config, _add_root, _add_output)),
        "plan": Command(probe.plan, (_add_config, _add_output)),
        "remove": Command(probe.remove, (_add_output,)),
    }


def _azure_vnet() -> Mapping[str, Command]:
    """Clean up what the CNI plug-in azure-vnet has left behind for deleted pods.

    If azure-vnet leaves rules and neighbours behind when a pod is deleted, a later pod with the
    same address is unreachable. The clean-up removes only these leftovers, and only inside the
    CIDRs listed in CONFIG's hostNetworking.staleAzureVnet. It never removes anything that a running
    pod or another program uses.
    """
    from hostrouting.cli.azure import vnet

    takes = _add_config, _add_output
    return {"plan": Command(vnet.plan, takes), "clean": Command(vnet.remove, takes)}


def _completion(options: argparse.Namespace, _host: Host) -> Result:
    """Print a shell completion script.

    To enable completion in new shells, write the script to the shell's completion directory:

      hostrouting completion bash > /usr/share/bash-completion/completions/hostrouting
      hostrouting completion zsh > /usr/local/share/zsh/site-functions/_hostrouting
      hostrouting completion fish > /etc/fish/completions/hostrouting.fish
    """
    import shtab

    class Completing(Parser):
        """A parser that lets the shell complete the names of files and directories."""

        def _add_action(self, action: ActionT) -> ActionT:
            if action.metavar in ("CONFIG", "FILE", "FILE|FOLDER", "A", "B"):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            elif action.metavar == "DIR":
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
            return super()._add_action(action)

    return Result(
        text=lambda: shtab.complete(_parser(all_commands(), Completing), options.shell).rstrip()
    )


_APPLY = Command(applying.apply, (_add_config, _add_where, _add_output))


def all_commands() -> Mapping[str, Command]:
    """Return all commands by name.

    This function imports the modules that only checks need. ``apply`` doesn't call this function,
    which saves ``apply`` 10 % of the CPU time.
    """
    from hostrouting.cli import checking

    return {
        "demo": Command(commands.demo),
        "apply": _APPLY,
        "confirm": Command(applying.confirm, (_add_output,)),
        "revert": Command(applying.revert, (_add_output,)),
        "plan": Command(applying.plan, (_add_config, _add_root, _add_snapshot, _add_output)),
        "render": Command(commands.render, (_add_config, _add_folder)),
        "check": Command(
            checking.check,
            (_add_seen_config, _add_cidr, _add_uplink, _add_snapshot, _add_more_output),
            EXIT_CHECK_UNKNOWN,
        ),
        "explain": Command(
            checking.explain,
            (_add_address, _add_seen_config, _add_uplink, _add_snapshot, _add_output),
            EXIT_CHECK_UNKNOWN,
        ),
        "diff": Command(checking.diff, (_add_compared, _add_cidr, _add_output), EXIT_CHECK_UNKNOWN),
        "fix": Command(
            checking.fix,
            (_add_seen_config, _add_cidr, _add_uplink, _add_fixed, _add_snapshot, _add_output),
            EXIT_CHECK_UNKNOWN,
        ),
        "snapshot": Command(commands.snapshot),
        "judge": Command(
            checking.judge,
            (_add_snapshots, _add_cidr, _add_uplink),
            EXIT_CHECK_UNKNOWN,
        ),
        "doctor": Command(checking.doctor, (_add_config, _add_root, _add_doctor)),
        "watch": Command(commands.watch, (_add_config,)),
        "config": Command(_config, is_group=True),
        "lb-probe": Command(_lb_probe, is_group=True),
        "azure-vnet": Command(_azure_vnet, is_group=True),
        "remove": Command(commands.remove, (_add_root, _add_output)),
        "schema": Command(commands.schema),
        "completion": Command(_completion, (_add_shell,)),
    }
