"""What became of the load balancer's probes, and what would, as text for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.azure.probe.ruleset import TABLE
from hostrouting.boot.preview import FileChange
from hostrouting.cli.changes import boot_lines, diff_lines
from hostrouting.cli.styled import bad, dim, good
from hostrouting.model.text import clean

if TYPE_CHECKING:
    from hostrouting.azure.probe.plan import PinPlan, ProbePlan, ProbeReport
    from hostrouting.boot.preview import BootPlan

__all__ = ["plan_text", "report_text"]

_TABLE = f"nftables table ip6 {TABLE}"


def plan_text(plan: ProbePlan, boot: BootPlan | None, *, wait_seconds: int) -> str:
    """What would become of rules, routes, files and units (None: they aren't known)."""
    lines = _reason_lines(plan)
    if plan.missing is not None:
        lines.append(f"would wait up to {wait_seconds} s for {clean(plan.missing)}")
    if plan.has_new_rules:
        lines.append(f"{_TABLE}: {_fate(plan)}")
        lines += diff_lines(FileChange(_TABLE, plan.rules_before, plan.rules_after))
    elif plan.rules_after is not None:
        lines.append(dim(f"= {_TABLE}"))
    lines += _pin_lines(plan.pins, "+", "-", "=")
    if boot is not None:
        lines += boot_lines(boot)
    if plan.is_empty and plan.missing is None and (boot is None or boot.is_empty):
        lines.append("nothing to change")
    return "\n".join(lines)


def report_text(report: ProbeReport) -> str:
    """What became of the rewriting of probes, a line each; one line if nothing changed."""
    lines = _reason_lines(report)
    if report.problem is not None:
        lines += [bad(f"problem: {clean(line)}") for line in report.problem.splitlines()]
    if report.has_new_rules:
        lines.append(good(f"{_TABLE}: {'loaded' if report.device else 'removed'}"))
    lines += _pin_lines(report.pins, "pinned", "unpinned", "unchanged")
    if report.files_changed:
        lines.append(good(f"for the next boot: {'installed' if report.device else 'removed'}"))
    if not report.changed and report.problem is None:
        lines.append("nothing to change")
    return "\n".join(lines)


def _reason_lines(about: ProbePlan | ProbeReport) -> list[str]:
    if about.skipped_because is not None:
        return [f"skipped: {clean(about.skipped_because)}"]
    why = f"  ({clean(about.evidence)})" if about.evidence else ""
    return [f"probes come in by: {clean(about.device)}{dim(why)}"] if about.device else []


def _fate(plan: ProbePlan) -> str:
    if plan.rules_before is None:
        return "new"
    return "changed" if plan.rules_after is not None else "removed"


def _pin_lines(pins: PinPlan, add: str, remove: str, unchanged: str) -> list[str]:
    width = max(map(len, (add, remove, unchanged)))
    return [
        *(good(f"{add:{width}} {clean(str(pin))}") for pin in pins.add),
        *(bad(f"{remove:{width}} {clean(str(pin))}") for pin in pins.remove),
        *(dim(f"{unchanged:{width}} {clean(str(pin))}") for pin in pins.unchanged),
    ]
