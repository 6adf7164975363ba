"""Return the doctor's report in AKSFlexNode's preflight format (``doctor --output preflight``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hostrouting.doctor.check_types import DoctorFinding, Severity
from hostrouting.doctor.examine import DoctorReport

# The preflights of AKSFlexNode and of unbounded show no values of the config. So a message has only
# fixed text: what the check expects, and which kinds of findings it has.
_PREFIX = "host-"
_TARGET = "host"
_ALL = "all"


def preflight(
    report: DoctorReport,
    *,
    ignored: Iterable[str] = (),
    fails_on_warnings: bool = False,
) -> dict[str, Any]:
    """Return the doctor's report in preflight format.

    Args:
        report: the doctor's report.
        ignored: the names of checks whose errors count as warnings, such as ``host-gate``, or
            ``all`` for all checks. Each string may be a list of names, separated by commas.
        fails_on_warnings: whether a warning makes the preflight fail.
    """
    names = {name.strip().lower() for each in ignored for name in each.split(",")}
    checks = []
    for check, findings in report.found.items():
        name = f"{_PREFIX}{check.name}"
        severity = _severity(findings)
        message = check.fine
        if findings:
            kinds = ", ".join(dict.fromkeys(finding.kind for finding in findings))
            message = f"expected: {check.fine}; found: {kinds}"
        is_ignored = severity == "error" and not names.isdisjoint((name, _ALL))
        if is_ignored:
            severity = "warning"
        checks.append(_check(name, severity, message, is_ignored=is_ignored))
    return _document(checks, fails_on_warnings=fails_on_warnings)


def _severity(findings: Sequence[DoctorFinding]) -> str:
    if not findings:
        return "ok"
    are_risks = all(finding.severity is Severity.RISK for finding in findings)
    return "warning" if are_risks else "error"


def unmade_preflight() -> dict[str, Any]:
    """Return a failed preflight for a host that couldn't be examined."""
    message = "the host couldn't be examined; the reason is on standard error"
    return _document([_check(f"{_PREFIX}config", "error", message)])


def _check(
    name: str,
    severity: str,
    message: str,
    *,
    is_ignored: bool = False,
) -> dict[str, Any]:
    return {
        "name": name,
        "target": _TARGET,
        "severity": severity,
        "message": message,
        "ignored": is_ignored,
    }


def _document(checks: list[dict[str, Any]], *, fails_on_warnings: bool = False) -> dict[str, Any]:
    severities = [check["severity"] for check in checks]
    ok, warnings, errors = map(severities.count, ("ok", "warning", "error"))
    is_failed = errors or (warnings and fails_on_warnings)
    summary = {"ok": ok, "warnings": warnings, "errors": errors}
    return {"status": "failed" if is_failed else "ok", "checks": checks, "summary": summary}
