"""The command line. Every command is a few lines over the tasks; what it prints is in ``report`` and ``styled``."""

from __future__ import annotations

import argparse
import logging
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
EXIT_USAGE, EXIT_OUTPUT, EXIT_NOT_PERMITTED, EXIT_CONFIG = 64, 74, 77, 78
EXIT_FAILURE = 1
EXIT_CHECK_UNKNOWN = 2
EXIT_PLAN_CHANGES = 2

_DESCRIPTION = """\
Give a node's traffic the right interface before the node starts, and prove it.

Installs more specific IPv4 routes where an interface such as InfiniBand's shadows the cluster's network, and
checks by the kernel's own answers that every expected CIDR leaves by the default route's interface.
"""

_EPILOG = """\
exit codes: 0 done; 1 failed; 64 usage; 74 done, but the output could not be written; 77 not permitted; 78 bad config
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
    failed = EXIT_FAILURE
    try:
        options = _parser().parse_args(argv)
        failed = options.failed
        with _logging(options.verbose):
            code: int = options.run(options, host)
            return code
    except _UsageError as error:
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


def _fail(error: BaseException, code: int) -> int:
    notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith("in task ")]
    what = f"stopped: {error.reason}; nothing is left half-done" if isinstance(error, phases.Cancelled) else str(error)
    for line in "\n".join([what, *notes]).splitlines():
        styled.complain(f"{styled.bad('hostrouting:')} {styled.clean(line)}")
    return code


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

    apply = command("apply", _apply, "install routes, check and gate of CONFIG, and check now", more=_APPLY_MORE)
    _add_config(apply)
    where = apply.add_mutually_exclusive_group()
    where.add_argument("--root", metavar="DIR", help="into an image mounted at DIR: files and enablement only")
    where.add_argument("--routes-only", action="store_true", help="the kernel's routes alone: no files, units or check")
    _add_output(apply)

    plan = command("plan", _plan, "show what apply would change, and change nothing", more=_PLAN_MORE)
    _add_config(plan)
    _add_output(plan)

    render = command("render", _render, "write the files that apply would install into a folder", more=_RENDER_MORE)
    _add_config(render)
    render.add_argument("--out", metavar="DIR", required=True, help="the folder; it stands for /")

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

Now: the static routes, all of them or none, then the check. For every boot: scripts, units, and the gate, a
drop-in that holds the consumer back (systemd-nspawn@.service, or what CONFIG names) until both have passed; never
stops or restarts a running machine. What an earlier run installed and CONFIG no longer asks for is taken back.

  hostrouting apply /etc/aks-flex-node/config.json
  hostrouting apply --root /mnt/image config.json        holds from the image's first boot
"""
_PLAN_MORE = """

Routes: + is added, ~ is replaced, - is removed, = is there already. Files as diffs. Last, whether the next start
of the consumer would be let through. Exits with 2 if there is anything to change, with 0 if not.
"""
_RENDER_MORE = """

For a look, or for a tool that installs files by itself: the units must then be enabled there too.
"""
_CHECK_MORE = """

Asks the kernel about one address of each CIDR. Waits for a default route, waitSeconds at most (30 without a
CONFIG). Writes no marker. Exits with 0 if all is well, with 1 if a CIDR
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
    path = layout.config if options.config is None else options.config
    if path == "":
        raise _UsageError("hostrouting: CONFIG is empty; is a shell variable unset?")
    try:
        return Config.load(path)
    except ConfigError as error:
        if not any(where == str(path) for where, _ in error.problems):
            styled.complain(f"{styled.bad('hostrouting:')} {styled.clean(str(path))} breaks the rules:")
        raise


def _cidrs(texts: Sequence[str]) -> tuple[IPv4Network, ...]:
    cidrs: list[IPv4Network] = []
    problems: list[str] = []
    for text in texts:
        try:
            cidrs.append(parse_cidr(text))
        except ValueError as error:
            problems.append(f"hostrouting check: --cidr {error}")
    if problems:
        raise _UsageError("\n".join(problems))
    return tuple(cidrs)


# --- the commands ------------------------------------------------------------------------------------------------


def _demo(options: argparse.Namespace, host: Host | None) -> int:
    del host  # the demo makes its own
    from hostrouting import demo

    return demo.run_apart(output=options.output)


def _apply(options: argparse.Namespace, host: Host | None) -> int:
    from hostrouting import report
    from hostrouting.host import Host
    from hostrouting.tasks import Configure, InstallRoutes

    config = _load(options, host)
    if options.routes_only:
        routes, overlap = _run(InstallRoutes(config, host=host)), None
    else:
        if options.root is not None:
            host = Host.image(options.root)
        routes, overlap = _run(Configure(config, host=host))
    if options.output == "json":
        document = routes.to_json() | {"overlap": None if overlap is None else overlap.to_json()}
        styled.say(report.to_json_text(document).rstrip())
    elif options.root is not None:
        styled.say(f"installed into {options.root}; it holds from the first boot")
    else:
        styled.say(report.routes_text(routes))
        if overlap is not None and overlap.cidrs:
            styled.say(report.overlap_text(overlap))
    return 0


def _plan(options: argparse.Namespace, host: Host | None) -> int:
    from hostrouting import report
    from hostrouting.boot import plan_boot
    from hostrouting.host import Host
    from hostrouting.tasks import plan_now, will_start

    config = _load(options, host)
    on = host or Host()
    plan, missing = plan_now(config, on.routes)
    boot = plan_boot(config, on)
    next_start = will_start(config, on, plan, missing)
    if options.output == "json":
        document = {"schema": 1, **plan.to_json(), "missing": missing, "boot": boot.to_json()}
        styled.say(report.to_json_text(document | {"nextStart": next_start.to_json()}).rstrip())
    else:
        styled.say(report.plan_text(plan, missing, boot, next_start, wait_seconds=config.wait_seconds))
    return 0 if plan.is_empty and missing is None and boot.is_empty else EXIT_PLAN_CHANGES


def _render(options: argparse.Namespace, host: Host | None) -> int:
    from hostrouting.files import write_if_changed
    from hostrouting.parts import Manifest, wanted_files, wanted_parts

    config = _load(options, host)
    layout = Layout(options.out)
    parts = wanted_parts(config, layout)
    manifest = Manifest(config.consumer, {part.name: part.is_blocking for part in parts})
    for file in wanted_files(layout, manifest, parts) if parts else ():
        write_if_changed(file.path, file.text, mode=file.mode)
        styled.say(str(file.path))
    return 0


def _check(options: argparse.Namespace, host: Host | None) -> int:
    from hostrouting import report
    from hostrouting.check import check_overlap
    from hostrouting.findings import Verdict
    from hostrouting.host import Host

    given = _cidrs(options.cidr)
    config = Config() if given and options.config is None else _load(options, host)
    expected = (*config.route_overlap.expected_cidrs, *given)
    config = attrs.evolve(config, route_overlap=attrs.evolve(config.route_overlap, expected_cidrs=expected))
    on = host or Host()
    result = _run(phases.task("check")(lambda scope: check_overlap(config, on, scope)))
    if options.output == "json":
        styled.say(report.to_json_text(result.to_json()).rstrip())
    else:
        styled.say(report.overlap_text(result))
    return {Verdict.OK: 0, Verdict.OVERLAP: EXIT_FAILURE, Verdict.UNKNOWN: EXIT_CHECK_UNKNOWN}[result.verdict]


def _remove(options: argparse.Namespace, host: Host | None) -> int:
    del options
    from hostrouting import report
    from hostrouting.tasks import RemoveHostRouting

    styled.say(report.routes_text(_run(RemoveHostRouting(host=host))))
    return 0


# --- running -----------------------------------------------------------------------------------------------------


def _run(task: phases.Task[Any]) -> Any:
    scope = phases.CancelScope()
    with _signals(scope), ProgressLine(sys.stderr) as observer:
        return phases.run(task, scope=scope, observer=observer)


@contextmanager
def _signals(scope: phases.CancelScope) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP cancel the scope, so that what was begun is put back."""

    def cancel(number: int, _frame: object) -> None:
        scope.cancel(signal.Signals(number).name)

    before: dict[signal.Signals, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
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
        return " ".join(
            [line, *(f"{key}={value}" for key, value in record.__dict__.items() if "." in key and value is not None)]
        )
