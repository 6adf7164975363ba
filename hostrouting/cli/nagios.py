"""Format a check's result as a monitoring plugin's output line and exit code."""

from __future__ import annotations

from hostrouting.config.routing import OverlapMode
from hostrouting.model.text import clean
from hostrouting.overlap.findings import OverlapReport, Verdict
from hostrouting.overlap.wording import summary

_OK, _WARNING, _CRITICAL, _UNKNOWN = range(4)
_WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")

# NRPE and NSCA truncate longer lines, which would cut off the performance data.
_TEXT_CHARACTERS = 400


def nagios(report: OverlapReport) -> tuple[int, str]:
    """Return a check's monitoring plugin exit code, and its output line with performance data.

    See the Monitoring Plugins Development Guidelines (https://www.monitoring-plugins.org/doc/guidelines.html).

    Args:
        report: the check's report.

    Returns:
        The exit code (0 OK, 1 failures in WARN mode, 2 failures in STRICT mode, 3 unknown), and a line with the status,
        the failures and, after ``|``, the number of failing CIDRs.
    """
    if not report.cidrs:
        return nagios_unknown("no CIDRs are expected: there is nothing to check")
    if report.verdict is Verdict.UNKNOWN:
        return nagios_unknown(summary(report) if report.families else f"nothing could be judged: {report.reason}")
    is_strict = report.mode is OverlapMode.STRICT
    cidrs, failing = set(report.cidrs), {finding.cidr for finding in report.findings}
    status, said = _OK, f"{len(cidrs)} expected CIDRs leave by {','.join(report.default_devs)}"
    if failing:
        status = _CRITICAL if is_strict else _WARNING
        said = f"{len(failing)} of {len(cidrs)} expected CIDRs fail: {report.findings[0].message}"
    # A threshold of 0 alerts on any other value. Only the current mode's threshold is set.
    thresholds = ";0" if is_strict else "0;"
    return status, f"{_text(status, said)} | failing={len(failing)};{thresholds};0;{len(cidrs)}"


def nagios_unknown(reason: str) -> tuple[int, str]:
    """Return the exit code and output line for a check without a verdict."""
    return _UNKNOWN, _text(_UNKNOWN, reason)


def _text(status: int, said: str) -> str:
    line = " ".join(clean(said).split()).replace("|", "/")
    cut = line if len(line) <= _TEXT_CHARACTERS else f"{line[: _TEXT_CHARACTERS - 1]}…"
    return f"HOSTROUTING {_WORDS[status]} - {cut}"
