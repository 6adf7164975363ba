"""The plan and the report of what azure-vnet has left, as text for people: each object with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.azure_vnet.model import HostRoute, Neighbour
from hostrouting.azure_vnet.parse import parse_pod_rule
from hostrouting.styled import bad, clean, dim, good

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostrouting.azure_vnet.plan import AzureVnetPlan, AzureVnetReport, Item

__all__ = ["plan_text", "report_text"]


def plan_text(plan: AzureVnetPlan) -> str:
    """What would go and what would stay, a line each; one line if nothing would go."""
    lines = _lines((("-", bad, plan.remove), ("=", dim, plan.keep)))
    lines += _others(plan.other_rules, plan.other_routes)
    if plan.is_empty:
        lines.append(good("azure-vnet has left nothing here that is to be removed"))
    return "\n".join(lines + _notes(plan.notes))


def report_text(report: AzureVnetReport) -> str:
    """What went and what stays, a line each; one line if nothing was to go."""
    lines = _lines((("removed", bad, report.removed), ("gone", dim, report.already_gone), ("kept", dim, report.kept)))
    lines += _others(report.other_rules, report.other_routes)
    if not report.removed and not report.already_gone:
        lines.append(good("azure-vnet has left nothing here that is to be removed"))
    if report.rounds > 1:
        lines.append(f"the node changed meanwhile: it took {report.rounds} rounds")
    return "\n".join(lines + _notes(report.notes))


def _lines(groups: Sequence[tuple[str, Callable[[str], str], Sequence[Item]]]) -> list[str]:
    rows = [
        (paint, (word, item.kind, str(item.address or ""), _rest(item)), item.reason)
        for word, paint, items in groups
        for item in items
    ]
    widths = [max(map(len, column)) for column in zip(*(cells for _, cells, _ in rows), strict=True)]
    return [
        paint(clean("  ".join(f"{text:{width}}" for text, width in zip(cells, widths, strict=True)) + f"  {reason}"))
        for paint, cells, reason in rows
    ]


def _rest(item: Item) -> str:
    """What there is to say of it beside its address."""
    if isinstance(item.what, Neighbour):
        return f"dev {item.what.dev} {item.what.mac or ''} {item.what.state_words}".replace("  ", " ")
    if isinstance(item.what, HostRoute):
        return str(item.what).removeprefix(f"{item.address} ")
    return str(parse_pod_rule(item.what) or item.what)


def _others(rules: int, routes: int) -> list[str]:
    counted = [
        f"{count} {what}{'s' * (count > 1)}" for count, what in ((rules, "rule"), (routes, "host route")) if count
    ]
    return [dim(f"left alone: {' and '.join(counted)} of others")] if counted else []


def _notes(notes: Sequence[str]) -> list[str]:
    return [f"note: {clean(note)}" for note in notes]
