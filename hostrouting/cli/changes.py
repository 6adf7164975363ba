"""What became, or would become, of routes, files and units, as text for people."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hostrouting.cli.output import bad, columns, dim, good
from hostrouting.model.text import clean

if TYPE_CHECKING:
    from hostrouting.boot.parts import BootPlan, FileChange
    from hostrouting.cli.preview import NextStart
    from hostrouting.overlap.findings import OverlapReport
    from hostrouting.routes.plan import RoutePlan, RoutesReport

_NEW_FILE_LINES = 40


def routes_text(report: RoutesReport) -> str:
    """What became of the routes, a line each; one line if nothing changed."""
    lines = _route_lines(report.changes, "added", "replaced", "removed", "unchanged")
    if report.changes.is_empty:
        lines.append("nothing to change")
    return "\n".join(lines)


def applied_text(routes: RoutesReport, overlap: OverlapReport | None) -> str:
    """What became of the routes, and what is said of the expected CIDRs, if there are any."""
    if overlap is None or not overlap.cidrs:
        return routes_text(routes)
    from hostrouting.cli.report import overlap_text

    return f"{routes_text(routes)}\n{overlap_text(overlap, width=columns(sys.stdout))}"


def plan_text(
    plan: RoutePlan, missing: str | None, boot: BootPlan | None, next_start: NextStart, *, wait_seconds: int
) -> str:
    """What would become of routes, files and units (None: they aren't known), and of the consumer's next start."""
    lines = _route_lines(plan, "+", "~", "-", "=")
    if missing is not None:
        lines.append(f"would wait up to {wait_seconds} s for {clean(missing)}")
    if boot is not None:
        lines += boot_lines(boot)
    if plan.is_empty and missing is None and (boot is None or boot.is_empty):
        lines.append("nothing to change")
    if boot is None:
        lines.append(dim("files and units aren't recorded: only routes were compared"))
    verdict = good("would be let through") if next_start.is_admitted else bad("would be held back")
    lines.append(f"the next start of {next_start.consumer} {verdict}: {clean(next_start.reason)}")
    return "\n".join(lines)


def boot_lines(boot: BootPlan) -> list[str]:
    """What would become of files and units, as diffs and a line a unit."""
    return [
        *(line for change in boot.files for line in diff_lines(change)),
        *(good(f"enable {unit}") for unit in boot.enable),
        *(bad(f"disable {unit}") for unit in boot.disable),
    ]


def diff_lines(change: FileChange) -> list[str]:
    """What would become of a file, as a unified diff; a long new one is only named."""
    import difflib

    before, after = (change.before or "").splitlines(), (change.after or "").splitlines()
    if change.before is None and len(after) > _NEW_FILE_LINES:
        return [good(f"+ {clean(change.path)} ({len(after)} lines, new)")]
    old, new = (change.path if text is not None else "/dev/null" for text in (change.before, change.after))
    paint = {"+": good, "-": bad, "@": dim}
    return [
        paint.get(line[0], str)(clean(line))
        for line in difflib.unified_diff(before, after, old, new, n=1, lineterm="")
        if line
    ]


def _route_lines(plan: RoutePlan, add: str, replace: str, remove: str, unchanged: str) -> list[str]:
    width = max(map(len, (add, replace, remove, unchanged)))
    add, replace, remove, unchanged = (f"{word:{width}} " for word in (add, replace, remove, unchanged))
    return [
        *(good(add + clean(str(route))) for route in plan.add),
        *(replace + clean(str(item.new)) + dim(f"  was: {clean(str(item.old))}") for item in plan.replace),
        *(bad(remove + clean(str(route))) for route in plan.remove),
        *(dim(unchanged + clean(str(route))) for route in plan.unchanged),
        *(dim(f"{unchanged}{clean(str(route))}  (somebody else's, already there)") for route in plan.foreign),
    ]
