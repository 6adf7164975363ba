"""What other programs get of a check: one marker, the report as JSON, and metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hostrouting.boot.files import read_text, remove, write_if_changed
from hostrouting.boot.layout import Layout
from hostrouting.boot.seen import exists
from hostrouting.model.text import to_json_text
from hostrouting.overlap.findings import FindingKind, OverlapReport, UnknownReason, Verdict


def marker_text(report: OverlapReport) -> str:
    """What the marker holds: nothing, a line a failure, ``no-default-route``, or ``check-failed: REASON``."""
    if report.verdict is not Verdict.UNKNOWN:
        return "".join(f"{finding.message}\n" for finding in report.findings)
    if report.reason_kind is UnknownReason.NO_DEFAULT_ROUTE:
        return f"{report.reason_kind}\n"
    return f"{' '.join((report.reason or '').split())}\n"


def marked_verdict(layout: Layout) -> Verdict | None:
    """What the marker says; None if there is none.

    Raises:
        FileError: it can't be read.
    """
    if exists(layout.marker_ok):
        return Verdict.OK
    text = read_text(layout.marker_detected)
    if text is None:
        return None
    return Verdict.OVERLAP if text.startswith(tuple(f"{kind}: " for kind in FindingKind)) else Verdict.UNKNOWN


def write_markers(layout: Layout, report: OverlapReport) -> None:
    """Leave exactly one marker, ``route-overlap.ok`` or ``route-overlap.detected``, and the report beside it.

    Args:
        layout: where.
        report: what was found.

    Raises:
        FileError: one can't be written.
    """
    marker, other = layout.marker_ok, layout.marker_detected
    if report.verdict is not Verdict.OK:
        marker, other = other, marker
    write_if_changed(layout.report, to_json_text(report.to_json()))
    # The stale one goes first: a reader never sees both, and none is never taken for "ok".
    remove(other)
    write_if_changed(marker, marker_text(report))


# --- metrics, in Prometheus' text exposition format 0.0.4; docs/reference/watch.md lists them ------------------------


class Metric(NamedTuple):
    """What is measured.

    Args:
        name: without the prefix that all of ours have.
        kind: ``gauge`` or ``counter``.
        meaning: a sentence.
        samples: the values by their labels, which hold nothing that has to be escaped.
    """

    name: str
    kind: str
    meaning: str
    samples: Mapping[str, float]


def check_metrics(report: OverlapReport, time: float) -> tuple[Metric, ...]:
    """What a check found.

    Args:
        report: of the check.
        time: of the check, in seconds since 1970.
    """
    failing = {finding.cidr for finding in report.findings}
    usual = Verdict.UNKNOWN if report.verdict is Verdict.UNKNOWN else Verdict.OK
    verdicts = {
        f'{{cidr="{cidr}",verdict="{verdict}"}}': int(verdict is (Verdict.OVERLAP if cidr in failing else usual))
        for cidr in report.cidrs
        for verdict in Verdict
    }
    failures = {f'{{kind="{kind}"}}': sum(each.kind is kind for each in report.findings) for kind in FindingKind}
    return (
        Metric("last_run_timestamp_seconds", "gauge", "When it was last checked, in seconds since 1970.", {"": time}),
        Metric("cidr_verdict", "gauge", "1 for the verdict on an expected CIDR, 0 for the others.", verdicts),
        Metric("failures", "gauge", "How many failures the last check has found, by their kind.", failures),
    )


def exposition(*metrics: Metric) -> str:
    """Metrics as text; one without a sample is left out."""
    lines: list[str] = []
    for name, kind, meaning, samples in metrics:
        if samples:
            lines += (f"# HELP hostrouting_{name} {meaning}", f"# TYPE hostrouting_{name} {kind}")
            lines += (f"hostrouting_{name}{labels} {value}" for labels, value in samples.items())
    return "".join(f"{line}\n" for line in lines)
