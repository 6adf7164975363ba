"""The command line. Every command is a few lines over the tasks; what it prints is in ``report`` and ``styled``."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import attrs

import phases
from hostrouting import __version__, styled
from hostrouting.config import Config
from hostrouting.errors import ConfigError, HostRoutingError
from hostrouting.layout import Layout
from hostrouting.netaddr import parse_cidr
from hostrouting.progress import ProgressLine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from ipaddress import IPv4Network

    from hostrouting.host import Host

__all__ = ["main"]

Command = Callable[[argparse.Namespace, "Host | None"], int]
T = TypeVar("T")

# sysexits.h
EXIT_USAGE, EXIT_NOT_PERMITTED, EXIT_CONFIG = 64, 77, 78
EXIT_FAILURE = 1
EXIT_CHECK_UNKNOWN = 2
EXIT_PLAN_CHANGES = 2

_DESCRIPTION = """\
Give a node's traffic the right interface before the node starts, and prove it.

Installs more specific IPv4 routes where an interface such as InfiniBand's shadows the cluster's network, and
checks by the kernel's own answers that every expected CIDR leaves by the default route's interface.
"""

_EPILOG = """\
exit codes: 0 done; 1 failed; 64 usage; 77 not permitted; 78 bad config
            check: 0 ok, 1 overlap, 2 couldn't judge;  plan: 0 nothing to change, 2 changes

see it happen, on a throw-away copy of the kernel's tables:   hostrouting demo
"""


class _UsageError(Exception):
    pass


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _UsageError(f"{self.format_usage()}{self.prog}: {message}; try {self.prog} --help")


def main(argv: Sequence[str] | None = None, *, host: Host | None = None) -> int:
    """Run a command.

    Args:
        argv: the arguments after the program's name; None: the process's.
        host: what to work on; None: this host.

    Returns:
        The exit code.
    """
    try:
        options = _parser().parse_args(argv)
        with _logging(options.verbose):
            return _finish(options.run(options, host))
    except _UsageError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return EXIT_USAGE
    except ConfigError as error:
        return _fail(error, EXIT_CONFIG)
    except HostRoutingError as error:
        failed: int = options.failed
        return _fail(error, EXIT_NOT_PERMITTED if error.is_not_permitted else failed)
    except phases.Cancelled as error:
        return _fail(error, options.failed)
    except BrokenPipeError:
        # The reader has gone; without this the interpreter complains once more as it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    except SystemExit as end:  # --help, --version
        return end.code if isinstance(end.code, int) else EXIT_USAGE


def _finish(code: int) -> int:
    sys.stdout.flush()
    return code


def _fail(error: BaseException, code: int) -> int:
    notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith("in task ")]
    what = f"stopped: {error.reason}; nothing is left half-done" if isinstance(error, phases.Cancelled) else str(error)
    for line in "\n".join([what, *notes]).splitlines():
        print(f"{styled.to_terminal(styled.bad('hostrouting:'), sys.stderr)} {styled.clean(line)}", file=sys.stderr)  # noqa: T201
    return code


def _say(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    text = styled.to_terminal(text, sys.stdout).encode(encoding, "replace").decode(encoding)
    print(text)  # noqa: T201


# --- the arguments -----------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    common = _Parser(add_help=False)
    common.add_argument(
        "-v", "--verbose", action="store_true", default=argparse.SUPPRESS, help="log each task as it starts and ends"
    )
    parser = _Parser(
        prog="hostrouting",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"hostrouting {__version__}")
    parser.add_argument("-v", "--verbose", action="store_true", help="log each task as it starts and ends")
    commands: argparse._SubParsersAction[_Parser] = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True
    )

    def command(name: str, run: Command, help_: str, *, more: str = "", failed: int = EXIT_FAILURE) -> _Parser:
        made: _Parser = commands.add_parser(
            name,
            help=help_,
            description=f"{help_[0].upper()}{help_[1:]}.{more}",
            parents=[common],
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        made.set_defaults(run=run, failed=failed)
        return made

    demo = command("demo", _demo, "show the whole story in a throw-away network namespace", more=_DEMO_MORE)
    demo.add_argument("--output", choices=("text", "svg"), default="text", help="text, or a picture of it")

    apply = command("apply", _apply, "install the static routes of CONFIG on this host", more=_APPLY_MORE)
    _add_config(apply)
    apply.add_argument("--routes-only", action="store_true", help="the kernel's routes alone: no files, no units")
    _add_output(apply)

    plan = command("plan", _plan, "show what apply would change, and change nothing", more=_PLAN_MORE)
    _add_config(plan)
    _add_output(plan)

    check = command(
        "check",
        _check,
        "check now that every expected CIDR leaves by the default route's interface",
        more=_CHECK_MORE,
        failed=EXIT_CHECK_UNKNOWN,
    )
    _add_config(check)
    check.add_argument("--cidr", action="append", default=[], metavar="C", help="a CIDR to expect; may be repeated")
    _add_output(check)

    command("remove", _remove, "take back everything that was ever installed", more=_REMOVE_MORE)
    return parser


_DEMO_MORE = """

Builds a node like Azure's H200 machines in a network namespace of its own: eth0 with the default route, and
ib0 to ib7 whose connected /16 routes shadow the cluster's network. Checks, installs more specific routes,
checks again, and cleans up. Needs no root where user namespaces are allowed; the host's tables aren't touched.
Where namespaces are refused, the same on a kernel in memory.
"""
_APPLY_MORE = """

All of the routes or none: on a failure, a signal or a route that doesn't win, the table is as it was. Routes of
an earlier run that are no longer wanted are removed; nothing of anybody else's is ever changed.

  hostrouting apply --routes-only /etc/aks-flex-node/config.json
"""
_PLAN_MORE = """

A line a route: + is added, ~ is replaced, - is removed, = is there already. Exits with 2 if there is anything to
change, with 0 if not.
"""
_CHECK_MORE = """

Asks the kernel about one address of each CIDR. Writes no marker. Exits with 0 if all is well, with 1 if a CIDR
is shadowed, has no route or is discarded, with 2 if nothing could be judged.

  hostrouting check                                        the CIDRs of /etc/aks-flex-node/config.json
  hostrouting check --cidr 172.16.0.0/16 --cidr 10.96.0.0/12     no file is read
"""
_REMOVE_MORE = """

Removes our routes (protocol 217 in table main), files and markers. Needs no config. Nothing of anybody else's is
touched.
"""


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", nargs="?", metavar="CONFIG", help=f"a JSON file; {Layout().config} if none is named")


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", choices=("text", "json"), default="text", help="for people, or for programs")


def _load(options: argparse.Namespace, host: Host | None) -> Config:
    layout = Layout() if host is None else host.layout
    return Config.load(options.config or layout.config)


def _cidr(text: str) -> IPv4Network:
    try:
        return parse_cidr(text)
    except ValueError as error:
        raise _UsageError(f"hostrouting check: --cidr {error}") from None


# --- the commands ------------------------------------------------------------------------------------------------


def _demo(options: argparse.Namespace, host: Host | None) -> int:
    del host  # the demo makes its own
    from hostrouting import demo

    return demo.run_apart(output=options.output)


def _apply(options: argparse.Namespace, host: Host | None) -> int:
    if not options.routes_only:
        raise _UsageError(
            "hostrouting apply: installs only the kernel's routes so far: say --routes-only; "
            "files and units for the next boot, and the gate, are not built yet"
        )
    from hostrouting import report
    from hostrouting.tasks import InstallRoutes

    result = _run(InstallRoutes(_load(options, host), host=host))
    if options.output == "json":
        _say(report.to_json_text(result.to_json()).rstrip())
    else:
        _say(report.routes_text(result))
    return 0


def _plan(options: argparse.Namespace, host: Host | None) -> int:
    from hostrouting import report
    from hostrouting.host import Host
    from hostrouting.tasks import plan_now

    config = _load(options, host)
    plan, missing = plan_now(config, (host or Host()).routes)
    if options.output == "json":
        _say(report.to_json_text({"schema": 1, **plan.to_json(), "missing": missing}).rstrip())
    else:
        _say(report.plan_text(plan, missing, wait_seconds=config.wait_seconds))
    return 0 if plan.is_empty and missing is None else EXIT_PLAN_CHANGES


def _check(options: argparse.Namespace, host: Host | None) -> int:
    from hostrouting import report
    from hostrouting.check import check_overlap
    from hostrouting.host import Host
    from hostrouting.overlap import Verdict

    given = [_cidr(text) for text in options.cidr]
    config = Config() if given and options.config is None else _load(options, host)
    expected = (*config.route_overlap.expected_cidrs, *given)
    config = attrs.evolve(config, route_overlap=attrs.evolve(config.route_overlap, expected_cidrs=expected))
    on = host or Host()
    result = _run(phases.task("check")(lambda scope: check_overlap(config, on, scope)))
    if options.output == "json":
        _say(report.to_json_text(result.to_json()).rstrip())
    else:
        _say(report.overlap_text(result))
    return {Verdict.OK: 0, Verdict.OVERLAP: EXIT_FAILURE, Verdict.UNKNOWN: EXIT_CHECK_UNKNOWN}[result.verdict]


def _remove(options: argparse.Namespace, host: Host | None) -> int:
    del options
    from hostrouting import report
    from hostrouting.tasks import RemoveHostRouting

    _say(report.routes_text(_run(RemoveHostRouting(host=host))))
    return 0


# --- running -----------------------------------------------------------------------------------------------------


def _run(task: phases.Task[Any]) -> Any:
    scope = phases.CancelScope()
    with _signals(scope), ProgressLine(sys.stderr) as observer:
        return phases.run(task, scope=scope, observer=observer)


@contextmanager
def _signals(scope: phases.CancelScope) -> Iterator[None]:
    """SIGINT and SIGTERM cancel the scope, so that what was begun is put back; only the main thread can say so."""

    def cancel(number: int, _frame: object) -> None:
        scope.cancel(signal.Signals(number).name)

    before: dict[signal.Signals, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, cancel)
    except ValueError:  # in another thread: whoever runs us there cancels the scope by other means
        before.clear()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _logging(verbose: bool) -> Iterator[None]:
    if not verbose:
        yield
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_ExtraFormatter("%(levelname)s %(name)s: %(message)s"))
    loggers = [logging.getLogger(name) for name in ("phases", "hostrouting")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)


class _ExtraFormatter(logging.Formatter):
    """Appends the namespaced data of a wide record, ``phases.path=…``."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        return " ".join([line, *(f"{key}={value}" for key, value in record.__dict__.items() if "." in key)])
