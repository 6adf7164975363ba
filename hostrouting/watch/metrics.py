"""Turn a check's report into metrics, and write these in Prometheus's exposition format 0.0.4.

docs/reference/watch.md lists the metrics. ``outputs.py`` writes them to the textfile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from hostrouting.boot.break_glass import why_open
from hostrouting.boot.files import is_present
from hostrouting.boot.layout import Layout
from hostrouting.boot.manifest import Manifest
from hostrouting.config.routing import OverlapMode
from hostrouting.model.version import VERSION
from hostrouting.overlap.findings import FindingKind, NoteKind, OverlapReport, Verdict

_EXPIRY = (
    "When the uplinks lose their default route unless a router advertises one again, "
    "in seconds since 1970."
)


class Metric(NamedTuple):
    """A metric and its samples.

    Args:
        name: metric name without the common prefix.
        kind: ``gauge`` or ``counter``.
        meaning: help text, a single sentence.
        samples: maps each label set to its value. The labels need no escaping.
    """

    name: str
    kind: str
    meaning: str
    samples: Mapping[str, float]


def check_metrics(
    report: OverlapReport,
    time: float | None,
    *,
    must_expect: bool = False,
) -> tuple[Metric, ...]:
    """Return a check's metrics.

    Args:
        report: the result of the check.
        time: Unix timestamp of the check; None if it was a check of a snapshot without a time.
        must_expect: whether to report ``unknown`` for a report without CIDRs. The watcher doesn't,
            because it may run only to keep routes.
    """
    verdicts = _verdicts(report)
    if must_expect and not report.cidrs:
        verdicts[f'{{cidr="",verdict="{Verdict.UNKNOWN}"}}'] = 1
    failures: dict[str, float] = {}
    moved: dict[str, float] = {}
    if report.cidrs:
        moved[""] = int(any(note.kind is NoteKind.MOVED for note in report.notes))
        counts = Counter(finding.kind for finding in report.findings)
        failures = {f'{{kind="{kind}"}}': counts[kind] for kind in FindingKind}
    return (
        Metric(
            "last_run_timestamp_seconds",
            "gauge",
            "When it was last checked, in seconds since 1970.",
            {} if time is None else {"": time},
        ),
        Metric(
            "cidr_verdict",
            "gauge",
            "1 for the verdict on an expected CIDR, 0 for the others.",
            verdicts,
        ),
        Metric(
            "failures",
            "gauge",
            "How many failures the last check has found, by their kind.",
            failures,
        ),
        Metric(
            "uplink_moved",
            "gauge",
            "1 if the check has the note MOVED on the verified uplink, or else 0.",
            moved,
        ),
        Metric(
            "default_route_expiry_timestamp_seconds",
            "gauge",
            _EXPIRY,
            {} if time is None else _expiries(report, time),
        ),
    )


def _verdicts(report: OverlapReport) -> dict[str, float]:
    """Return a sample for each expected CIDR and each possible verdict."""
    samples: dict[str, float] = {}
    for cidr in report.cidrs:
        found = report.verdict_on(cidr)
        for verdict in Verdict:
            samples[f'{{cidr="{cidr}",verdict="{verdict}"}}'] = int(verdict is found)
    return samples


def _expiries(report: OverlapReport, time: float) -> dict[str, float]:
    """Return a sample for each family whose default routes expire."""
    samples: dict[str, float] = {}
    for each in report.families:
        if each.default_expires is not None:
            family = str(each.family).lower()
            samples[f'{{family="{family}"}}'] = time + each.default_expires
    return samples


def gate_metrics(layout: Layout, mode: OverlapMode) -> tuple[Metric, ...]:
    """Return the metrics for a host's gate.

    Args:
        layout: paths of the host's files.
        mode: the check's mode.

    Raises:
        FileError: the manifest can't be read.
    """
    manifest = Manifest.load(layout)
    labels = f'{{version="{VERSION}",mode="{mode}",consumer="{manifest.consumer}"}}'
    is_open = int(why_open(layout) is not None)
    missing = sum(not is_present(path) for path in manifest.files(layout))
    return (
        Metric(
            "info",
            "gauge",
            "1; the version, the check's mode, and the unit that the gate holds.",
            {labels: 1},
        ),
        Metric(
            "gate_off",
            "gauge",
            "1 if the gate lets every start through unchecked.",
            {"": is_open},
        ),
        Metric(
            "files_missing",
            "gauge",
            "How many installed files are gone, such as the gate's.",
            {"": missing},
        ),
    )


def exposition(*metrics: Metric) -> str:
    """Return metrics in the exposition format, omitting those without samples."""
    lines: list[str] = []
    for name, kind, meaning, samples in metrics:
        if samples:
            lines += (f"# HELP hostrouting_{name} {meaning}", f"# TYPE hostrouting_{name} {kind}")
            lines += (f"hostrouting_{name}{labels} {value}" for labels, value in samples.items())
    return "".join(f"{line}\n" for line in lines)
