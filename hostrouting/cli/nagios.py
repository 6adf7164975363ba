"""Format a check's result as a monitoring plugin does, with a line and an exit code."""

from __future__ import annotations

from hostrouting.config.routing import OverlapMode
from hostrouting.model.text import clean
from hostrouting.overlap.findings import OverlapReport, Verdict

_OK, _WARNING, _CRITICAL, _UNKNOWN = range(4)
_WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")

# Daemons in between (NRPE, NSCA) truncate longer lines, and the performance data comes last.
_TEXT_CHARACTERS = 400


def nagios(report: OverlapReport) -> tuple[int, str]:
    """Return a check's exit code for a monitoring daemon, and a line with performance data.

    The format is that of the Monitoring Plugins' development guidelines
    (https://www.monitoring-plugins.org/doc/guidelines.html).

    Args:
        report: the check's report.

    Returns:
        The exit code (0 ok, 1 failures in WARN, 2 failures in STRICT, 3 nothing could be judged), and a line with the
        status, the failures and, after ``|``, the number of CIDRs that fail.
    """
    if not report.cidrs:
        return nagios_unknown("no CIDRs are expected: there is nothing to check")
    if report.verdict is Verdict.UNKNOWN:
        return nagios_unknown(f"nothing could be judged: {report.reason}")
    is_strict = report.mode is OverlapMode.STRICT
    cidrs, failing = set(report.cidrs), {finding.cidr for finding in report.findings}
    status, said = _OK, f"{len(cidrs)} expected CIDRs leave by {','.join(report.default_devs)}"
    if failing:
        status = _CRITICAL if is_strict else _WARNING
        said = f"{len(failing)} of {len(cidrs)} expected CIDRs fail: {report.findings[0].message}"
    # A threshold of 0 means that any other value raises an alert. Only the threshold that can be reached is given.
    thresholds = ";0" if is_strict else "0;"
    return status, f"{_text(status, said)} | failing={len(failing)};{thresholds};0;{len(cidrs)}"


def nagios_unknown(reason: str) -> tuple[int, str]:
    """Return the exit code and the line for a check that couldn't be made."""
    return _UNKNOWN, _text(_UNKNOWN, reason)


def _text(status: int, said: str) -> str:
    line = " ".join(clean(said).split()).replace("|", "/")
    cut = line if len(line) <= _TEXT_CHARACTERS else f"{line[: _TEXT_CHARACTERS - 1]}…"
    return f"HOSTROUTING {_WORDS[status]} - {cut}"
