"""An asyncio agent that traces tasks, counts changes, and rolls back if the node doesn't start.

Run it as root on a host:      python examples/traced_agent.py /etc/aks-flex-node/config.json
Run its tests without root:    python -m pytest examples/test_traced_agent.py

It needs opentelemetry-api. Configure the SDK to export the spans.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence

from opentelemetry import context, trace

import phases
from hostrouting import Config, Configure, ConfigureReport, Host, HostRoutingError, Verdict, check
from hostrouting.backend import (
    ForwardingBackend,
    NetlinkBackend,
    NetlinkBackend6,
    Route,
    RouteBackend,
    RouteFailure,
    Rule,
    RuleFailure,
    Write,
)
from hostrouting.report import changes_of
from hostrouting.tasks import RestoreOnFailure


class CountingBackend(ForwardingBackend):
    """A backend that counts the routes and rules that it changes."""

    def __init__(self, inner: RouteBackend) -> None:
        super().__init__(inner)
        self.counts: Counter[str] = Counter()

    def write(self, change: Write, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Count and change routes."""
        self.counts[change] += len(routes)
        return super().write(change, routes)

    def write_rules(self, change: Write, rules: Sequence[Rule]) -> tuple[RuleFailure, ...]:
        """Count and change rules."""
        self.counts[change] += len(rules)
        return super().write_rules(change, rules)


class SpanObserver(phases.Observer):
    """An observer that makes a span for each task, below the span of its creation."""

    def __init__(self) -> None:
        self.tracer = trace.get_tracer("bootstrap")
        self.outside = context.get_current()
        self.spans: dict[str, list[trace.Span]] = {}  # tasks in a Parallel may have the same path

    def started(self, path: str) -> None:
        """Start the task's span."""
        above, _, name = path.rpartition("/")
        parents = self.spans.get(above)
        parent = trace.set_span_in_context(parents[-1]) if parents else self.outside
        span = self.tracer.start_span(name, parent, attributes={"path": path})
        self.spans.setdefault(path, []).append(span)

    def finished(
        self,
        path: str,
        status: phases.Status,
        result: object,
        error: BaseException | None,
        seconds: float,
    ) -> None:
        """End the task's span."""
        made = changes_of(result, error)
        changes = (*made.routes, *made.rules, *made.files, *made.units)
        span = self.spans[path].pop()
        span.set_attribute("status", str(status))
        span.set_attribute("duration", seconds)
        span.set_attribute("changes", [f"{change.action} {change.what}" for change in changes])
        if error is not None:
            span.record_exception(error)
            span.set_status(trace.StatusCode.ERROR, str(error))
        span.end()


async def bring_up(config: Config, start: phases.Task[object], host: Host) -> ConfigureReport:
    """Install a config and start the node.

    If anything fails or is cancelled, restore what was installed before.
    """
    tree = RestoreOnFailure(phases.Serial(Configure(config, host=host), start), host=host)
    report, _ = await phases.run_async(tree, observers=[SpanObserver()])
    return report


async def is_ok(config: Config, host: Host) -> bool:
    """Return whether every expected CIDR leaves through an uplink."""
    report = await phases.call_async(check, config, host=host)
    return report.verdict is Verdict.OK


@phases.task("start-node")
def start_node(scope: phases.CancelScope) -> str:
    """Start the node."""
    return scope.run(["systemctl", "start", "systemd-nspawn@kube1"]).stdout


async def main(file: str) -> int:
    """Bring the node up, and return the exit code."""
    backends = CountingBackend(NetlinkBackend()), CountingBackend(NetlinkBackend6())
    host = Host(routes=backends[0], routes6=backends[1])
    try:
        config = Config.load(file)
        with trace.get_tracer("bootstrap").start_as_current_span("boot"):
            report = await bring_up(config, start_node, host)
    except HostRoutingError as error:
        print(f"no node was started: {error}", file=sys.stderr)
        return 1
    print(
        f"verdict: {report.overlap.verdict}; "
        f"changes of routes: {dict(backends[0].counts + backends[1].counts)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1])))
