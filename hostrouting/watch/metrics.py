"""Pure: what a watcher measures, in Prometheus' text exposition format 0.0.4; docs/watch.md lists the metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hostrouting.overlap.findings import FindingKind, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hostrouting.overlap.findings import OverlapReport
    from hostrouting.watch.backoff import Repair

__all__ = ["Counters", "Metric", "exposition", "metrics_text"]

Labels = tuple[tuple[str, str], ...]


@attrs.frozen
class Counters:
    """What a watcher has done since it was started.

    Args:
        checks: how often it has looked.
        restored: lost routes that it has put back.
        followed: routes that it has changed with the default route.
        removed: routes of ours that it has removed.
    """

    checks: int = 0
    restored: int = 0
    followed: int = 0
    removed: int = 0

    def after(self, repair: Repair) -> Counters:
        """With one more look."""
        return Counters(
            self.checks + 1,
            self.restored + len(repair.restored),
            self.followed + len(repair.followed),
            self.removed + len(repair.removed),
        )


@attrs.frozen
class Metric:
    """A metric with its samples.

    Args:
        name: of the metric.
        kind: ``gauge`` or ``counter``.
        help: what it tells.
        samples: (labels, value).
    """

    name: str
    kind: str
    help: str
    samples: tuple[tuple[Labels, float], ...]


def metrics_text(report: OverlapReport, repair: Repair, counters: Counters, time: float) -> str:
    """The textfile after a look.

    Args:
        report: of the check.
        repair: of our routes.
        counters: with this look.
        time: of the look, in seconds since 1970.
    """
    return exposition(_metrics(report, repair, counters, time))


def _metrics(report: OverlapReport, repair: Repair, counters: Counters, time: float) -> Iterator[Metric]:
    def one(name: str, kind: str, help_: str, value: float) -> Metric:
        return Metric(f"hostrouting_{name}", kind, help_, (((), value),))

    yield one("last_run_timestamp_seconds", "gauge", "When the watcher last looked, in seconds since 1970.", time)
    yield Metric(
        "hostrouting_cidr_verdict",
        "gauge",
        "1 for the verdict on an expected CIDR, 0 for the others.",
        tuple(
            ((("cidr", str(cidr)), ("verdict", str(verdict))), float(verdict is _verdict_on(cidr, report)))
            for cidr in dict.fromkeys(report.cidrs)
            for verdict in Verdict
        ),
    )
    yield Metric(
        "hostrouting_failures",
        "gauge",
        "How many failures the last check has found, by their kind.",
        tuple(
            ((("kind", str(kind)),), sum(finding.kind is kind for finding in report.findings)) for kind in FindingKind
        ),
    )
    yield one("routes_kept", "gauge", "Static routes that are in place.", len(repair.kept))
    yield one("routes_contested", "gauge", "Lost routes that somebody keeps removing.", len(repair.waiting))
    yield one("trouble", "gauge", "1 if not all static routes can be kept as wanted.", float(bool(repair.problem)))
    yield one("checks_total", "counter", "Looks since the watcher was started.", counters.checks)
    yield Metric(
        "hostrouting_routes_repaired_total",
        "counter",
        "Routes put right since the watcher was started, by what was wrong with them.",
        (
            ((("drift", "lost"),), counters.restored),
            ((("drift", "default-changed"),), counters.followed),
            ((("drift", "unwanted"),), counters.removed),
        ),
    )


def _verdict_on(cidr: object, report: OverlapReport) -> Verdict:
    if report.verdict is Verdict.UNKNOWN:
        return Verdict.UNKNOWN
    return Verdict.OVERLAP if any(finding.cidr == cidr for finding in report.findings) else Verdict.OK


def exposition(metrics: Iterable[Metric]) -> str:
    """Metrics as text; those without samples are left out."""
    lines: list[str] = []
    for metric in metrics:
        if metric.samples:
            lines.append(f"# HELP {metric.name} {_escaped(metric.help)}")
            lines.append(f"# TYPE {metric.name} {metric.kind}")
            lines += [f"{metric.name}{_labels(labels)} {_number(value)}" for labels, value in metric.samples]
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{_escaped(value).replace(chr(34), chr(92) + chr(34))}"' for name, value in labels)
    return "{" + ",".join(pairs) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
