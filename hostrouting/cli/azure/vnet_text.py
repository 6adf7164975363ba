"""The plan and the report of what azure-vnet has left, as text for people: each object with its reason."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hostrouting.azure.vnet.model import HostRoute, Neighbour
from hostrouting.azure.vnet.parse import parse_pod_rule
from hostrouting.cli.styled import bad, dim, good
from hostrouting.model.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostrouting.azure.vnet.plan import AzureVnetPlan, AzureVnetReport, Item

__all__ = ["plan_text", "report_text"]


def plan_text(plan: AzureVnetPlan) -> str:
    """What would go and what would stay, by reason, and how much it is; one line if there is nothing."""
    lines = _lines((("would go", "-", bad, plan.remove), ("stays", "=", dim, plan.keep)))
    lines += _others(plan.other_rules, plan.other_routes)
    if plan.is_empty:
        lines.append(_nothing(plan.notes))
    else:
        lines.append(f"would remove {_counted(plan.remove)}")
    return "\n".join(lines + _notes(plan.notes))


def report_text(report: AzureVnetReport) -> str:
    """What went and what stays, by reason, and how much it is; one line if there was nothing."""
    lines = _lines(
        (
            ("removed", "-", bad, report.removed),
            ("gone already", "-", dim, report.already_gone),
            ("kept", "=", dim, report.kept),
        )
    )
    lines += _others(report.other_rules, report.other_routes)
    if report.removed:
        lines.append(f"removed {_counted(report.removed)}")
    elif not report.already_gone:
        lines.append(_nothing(report.notes))
    if report.rounds > 1:
        lines.append(f"the node changed meanwhile: it took {report.rounds} rounds")
    return "\n".join(lines + _notes(report.notes))


def _lines(groups: Sequence[tuple[str, str, Callable[[str], str], Sequence[Item]]]) -> list[str]:
    """A heading for each fate and reason, and below it a line for each object, which 80 columns hold."""
    items = [item for _, _, _, group in groups for item in group]
    widths = [max((len(cells[column]) for cells in map(_cells, items)), default=0) for column in range(2)]
    lines = []
    for word, mark, paint, group in groups:
        for reason in dict.fromkeys(item.reason for item in group):
            lines.append(clean(f"{word}, because {reason}:"))
            lines += [paint(clean(_row(mark, item, widths))) for item in group if item.reason == reason]
    return lines


def _row(mark: str, item: Item, widths: Sequence[int]) -> str:
    kind, address = (f"{text:{width}}" for text, width in zip(_cells(item), widths, strict=True))
    return f"  {mark} {kind}  {address}  {_rest(item)}"


def _cells(item: Item) -> tuple[str, str]:
    return item.kind, str(item.address or "")


def _counted(items: Sequence[Item]) -> str:
    """Like ``3 rules, 1 neighbour``."""
    kinds = Counter(item.kind for item in items)
    order = ("rule", "neighbour", "route")
    return ", ".join(f"{kinds[kind]} {kind}{'s' * (kinds[kind] > 1)}" for kind in order if kinds[kind])


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


def _nothing(notes: Sequence[str]) -> str:
    if notes:
        return "nothing of what was looked at is to be removed"
    return good("azure-vnet has left nothing here that is to be removed")


def _notes(notes: Sequence[str]) -> list[str]:
    return [f"note: {clean(note)}" for note in notes]
