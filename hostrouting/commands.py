"""What each command does: a few lines over the tasks; what it prints is worded in ``report`` and ``styled``."""

from __future__ import annotations

import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs

import phases
from hostrouting import styled
from hostrouting.config import Config
from hostrouting.errors import ConfigError
from hostrouting.layout import Layout
from hostrouting.netaddr import parse_cidr
from hostrouting.progress import ProgressLine

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from ipaddress import IPv4Network

    from hostrouting.host import Host

__all__ = [
    "EXIT_CHECK_UNKNOWN",
    "EXIT_FAILURE",
    "EXIT_PLAN_CHANGES",
    "UsageError",
    "apply",
    "check",
    "demo",
    "plan",
    "remove",
    "render",
    "snapshot",
]

EXIT_FAILURE = 1
EXIT_CHECK_UNKNOWN = 2
EXIT_PLAN_CHANGES = 2


class UsageError(Exception):
    """The arguments can't be meant like that; the message says what is wrong."""


def demo(options: argparse.Namespace, host: Host | None) -> int:
    """The demo, in a world that it makes itself."""
    del host  # the demo makes its own
    from hostrouting import demo

    return demo.run_apart(output=options.output)


def apply(options: argparse.Namespace, host: Host | None) -> int:
    """Install, and check."""
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


def plan(options: argparse.Namespace, host: Host | None) -> int:
    """What apply would change."""
    from hostrouting import report
    from hostrouting.boot import plan_boot
    from hostrouting.tasks import plan_now, will_start

    config = _load(options, host)
    on = _asked_host(options, host)
    plan, missing = plan_now(config, on.routes)
    boot = None if options.snapshot is not None else plan_boot(config, on)
    next_start = will_start(_without_waits(config, options), on, plan, missing)
    if options.output == "json":
        document = {"schema": 1, **plan.to_json(), "missing": missing, "boot": None if boot is None else boot.to_json()}
        styled.say(report.to_json_text(document | {"nextStart": next_start.to_json()}).rstrip())
    else:
        styled.say(report.plan_text(plan, missing, boot, next_start, wait_seconds=config.wait_seconds))
    is_done = plan.is_empty and missing is None and (boot is None or boot.is_empty)
    return 0 if is_done else EXIT_PLAN_CHANGES


def render(options: argparse.Namespace, host: Host | None) -> int:
    """The files that apply would install."""
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


def check(options: argparse.Namespace, host: Host | None) -> int:
    """The check."""
    from hostrouting import report
    from hostrouting.check import check_overlap
    from hostrouting.findings import Verdict

    given = _cidrs(options.cidr)
    config = Config() if given and options.config is None else _load(options, host)
    expected = (*config.route_overlap.expected_cidrs, *given)
    config = attrs.evolve(config, route_overlap=attrs.evolve(config.route_overlap, expected_cidrs=expected))
    on, config = _asked_host(options, host), _without_waits(config, options)
    result = _run(phases.task("check")(lambda scope: check_overlap(config, on, scope)))
    if options.output == "json":
        styled.say(report.to_json_text(result.to_json()).rstrip())
    else:
        styled.say(report.overlap_text(result))
    return {Verdict.OK: 0, Verdict.OVERLAP: EXIT_FAILURE, Verdict.UNKNOWN: EXIT_CHECK_UNKNOWN}[result.verdict]


def snapshot(options: argparse.Namespace, host: Host | None) -> int:
    """The host as a document."""
    del options
    from hostrouting.host import Host
    from hostrouting.record import take_snapshot

    styled.say(take_snapshot(host or Host()).to_text().rstrip())
    return 0


def remove(options: argparse.Namespace, host: Host | None) -> int:
    """Take back what was installed."""
    del options
    from hostrouting import report
    from hostrouting.tasks import RemoveHostRouting

    styled.say(report.routes_text(_run(RemoveHostRouting(host=host))))
    return 0


# --- what the options name ---------------------------------------------------------------------------------------


def _asked_host(options: argparse.Namespace, host: Host | None) -> Host:
    """The host that a command asks: the recorded one of --snapshot, the given one, or this one."""
    from hostrouting.host import Host

    if options.snapshot is None:
        return host or Host()
    from hostrouting.backends.snapshot import SnapshotBackend
    from hostrouting.record import STDIN, load_snapshot
    from hostrouting.systemd.memory import FakeSystemd

    path = options.snapshot
    if path == "":
        raise UsageError("hostrouting: --snapshot is empty; is a shell variable unset?")
    try:
        recorded = load_snapshot(path)
    except ConfigError as error:
        name = "standard input" if path == STDIN else path
        if not any(where == name for where, _ in error.problems):
            styled.complain(f"{styled.bad('hostrouting:')} {styled.clean(name)} is no snapshot:")
        raise
    # Of units and files nothing is recorded, and nothing is asked.
    return Host(routes=SnapshotBackend(recorded), units=FakeSystemd(), layout=Layout() if host is None else host.layout)


def _without_waits(config: Config, options: argparse.Namespace) -> Config:
    """The config, but on a recorded host, where nothing will ever come, nothing is waited for."""
    if options.snapshot is None:
        return config
    return attrs.evolve(config, wait_seconds=0, route_overlap=attrs.evolve(config.route_overlap, settle_seconds=0))


def _load(options: argparse.Namespace, host: Host | None) -> Config:
    layout = Layout() if host is None else host.layout
    path = layout.config if options.config is None else options.config
    if path == "":
        raise UsageError("hostrouting: CONFIG is empty; is a shell variable unset?")
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
        raise UsageError("\n".join(problems))
    return tuple(cidrs)


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
