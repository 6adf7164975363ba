"""A bootstrap agent that installs routes while it pulls an image, and then starts the node.

Run it as root on a host:       python examples/agent.py /etc/aks-flex-node/config.json
Look, but change nothing:       python examples/agent.py --look /etc/aks-flex-node/config.json
Try it on a host in memory:     python examples/agent.py --try
Run its tests without root:     python -m pytest examples/test_agent.py
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import phases
from hostrouting import (
    CheckRouteOverlap,
    Config,
    ConfigError,
    ConfigureStaticRoutes,
    Host,
    HostRoutingError,
    Layout,
    OverlapMode,
    RouteOverlap,
    StaticRoute,
    StaticRoutes,
    Verdict,
    check,
    examine,
    explain,
    plan,
    snapshot,
)
from hostrouting.backend import (
    ForwardingBackend,
    NetlinkBackend,
    NetlinkBackend6,
    Route,
    RouteFailure,
    Rule,
    RuleFailure,
    Systemctl,
    Write,
)
from hostrouting.report import ChangesObserver
from hostrouting.testing import FakeKernel, FakeSystemd

log = logging.getLogger("agent")


@dataclass(frozen=True)
class PullImage:
    """A task, which is any object with a ``name`` and ``do(scope)``."""

    command: Sequence[str]
    name: str = "pull-image"

    def do(self, scope: phases.CancelScope) -> str:
        """Pull the image. The subprocess and its children end when the scope is cancelled."""
        scope.progress(" ".join(self.command))
        return scope.run(self.command).stdout.strip()


@phases.task("start-node")
def start_node(scope: phases.CancelScope) -> str:
    """Start the node. This shows that a function can be a task too."""
    scope.check()
    return "kube1"


class Logged(ForwardingBackend):
    """A backend that logs each change of a route or rule before another backend makes it."""

    def write(self, change: Write, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Log and change routes."""
        for route in routes:
            log.info("%s %s", change, route)
        return super().write(change, routes)

    def write_rules(self, change: Write, rules: Sequence[Rule]) -> tuple[RuleFailure, ...]:
        """Log and change rules."""
        for rule in rules:
            log.info("%s rule %s: %s", change, rule.preference, rule)
        return super().write_rules(change, rules)


class Printing(phases.Observer):
    """An observer that prints every start, progress and end.

    Its calls never overlap, even with parallel tasks.
    """

    def __init__(self) -> None:
        self.printed: dict[str, str] = {}

    def started(self, path: str) -> None:
        """Print that a task starts."""
        print(f"{path}: started")

    def progress(self, path: str, message: str, fraction: float | None) -> None:
        """Print what a task does, once: a wait reports its fraction each second."""
        del fraction
        if self.printed.get(path) != message:
            print(f"{path}: {message}")
        self.printed[path] = message

    def finished(
        self,
        path: str,
        status: phases.Status,
        result: object,
        error: BaseException | None,
        seconds: float,
    ) -> None:
        """Print that a task has ended."""
        del result
        print(f"{path}: {status} after {seconds:.1f} s" + (f": {error}" if error else ""))


def look(config: Config, host: Host, file: Path) -> int:
    """Print failures and planned changes, take a snapshot, and return the exit code."""
    report = check(config, host=host)
    print(f"verdict: {report.verdict}")
    for finding in report.findings:
        way = explain(finding.probe, config, host=host).lookups[0]
        print(
            f"{finding.cidr} leaves through {','.join(way.judgement.devs)}: {way.judgement.route}"
        )
    wanted = plan(config, host=host)
    for change in (*wanted.changes.routes, *wanted.changes.rules):
        print(f"would be {change.action}: {change.what}")
    print(f"the next start: {wanted.next_start.reason}")
    for each in examine(config, host=host).findings:
        print(f"{each.subject}: {each.message}")
    if report.verdict is not Verdict.OK:
        snapshot(host=host).save(file)
        # hostrouting check --snapshot can read this file on another machine.
        print(f"recorded: {file}")
    return 0 if report.verdict is Verdict.OK else 1


async def bootstrap(config: Config, host: Host, pull: Sequence[str]) -> int:
    """Bring the node up, and return the exit code of the agent.

    If a task fails or is stopped, it rolls back its own changes. The tasks that have completed keep
    theirs, which are printed: such routes are safe to keep, and the next run continues from there.
    """
    scope = phases.CancelScope()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, scope.cancel, number.name)
    prepare = phases.Parallel(
        ConfigureStaticRoutes(config, host=host),
        phases.Timeout(600, PullImage(pull)),
        name="prepare",
    )
    tree = phases.Serial(
        prepare, CheckRouteOverlap(config, host=host), start_node, name="bootstrap"
    )
    print(tree)
    observer = ChangesObserver()
    try:
        (routes, _image), overlap, node = await phases.run_async(
            tree, scope=scope, observers=[observer, Printing()]
        )
    except phases.Cancelled as stop:
        print(f"stopped by {stop.reason}; no node was started", file=sys.stderr)
    except Exception as error:  # noqa: BLE001 - also the group of all that failed in parallel: except* is Python 3.11's
        failures: Sequence[Exception] = getattr(error, "exceptions", (error,))
        for failure in failures:
            print(f"not starting the node: {failure}", file=sys.stderr)
    else:
        # Only in WARN mode, as findings are an error in STRICT mode.
        for finding in overlap.findings:
            print(f"warning: {finding.message}")
        print(f"{len(routes.plan.add)} routes added; verdict: {overlap.verdict}; started {node}")
        return 0
    stays = observer.changes
    for change in (*stays.routes, *stays.rules, *stays.files):
        print(f"{change.action}, and stays: {change.what}")
    return 1


def h200() -> FakeKernel:
    """Return an H200 node in memory whose ib0 shadows the network of the cluster."""
    kernel = FakeKernel()
    kernel.ip("""
        link add eth0
        link add ib0
        address add 10.1.0.4/24 dev eth0
        address add 172.16.0.10/16 dev ib0
        route add default via 10.1.0.1 dev eth0 proto dhcp
    """)
    return kernel


TRIED = Config(
    StaticRoutes(True, [StaticRoute("172.16.1.0/24")]),
    RouteOverlap(["172.16.1.0/24"], OverlapMode.STRICT),
)


def main(arguments: list[str]) -> int:
    """Run the command line of the agent."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    if arguments == ["--try"]:
        with tempfile.TemporaryDirectory(prefix="agent-") as root:
            host = Host(routes=Logged(h200()), units=FakeSystemd(), layout=Layout(root))
            look(TRIED, host, Path(root, "node.json"))
            return asyncio.run(bootstrap(TRIED, host, ["echo", "node:1.31"]))
    options, files = arguments[:-1], arguments[-1:]
    if options not in ([], ["--look"]) or not files or files[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 64
    try:
        config = Config.load(files[0])
    except ConfigError as error:
        for path, message in error.problems:
            print(f"{path}: {message}", file=sys.stderr)
        return 78
    host = Host(
        routes=Logged(NetlinkBackend()), routes6=Logged(NetlinkBackend6()), units=Systemctl()
    )
    if options:
        try:
            return look(config, host, Path("node.json"))
        except HostRoutingError as error:
            print(error, file=sys.stderr)
            return 1
    return asyncio.run(
        bootstrap(config, host, ["ctr", "image", "pull", "docker.io/library/node:1.31"])
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
