"""The plan and the report of what azure-vnet has left, as text for people: each object with its reason."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hostrouting.azure.vnet.parse import parse_pod_rule
from hostrouting.azure.vnet.port import Neighbour
from hostrouting.cli.styled import bad, dim, good
from hostrouting.model.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostrouting.azure.vnet.plan import AzureVnetPlan, AzureVnetReport, Item

__all__ = ["plan_text", "report_text"]


def plan_text(plan: AzureVnetPlan) -> str:
    """What would go and what would stay, by reason, and how much it is; one line if there is nothing."""
    return _text("would go", plan.remove, "stays", plan.keep, "would remove", plan)


def report_text(report: AzureVnetReport) -> str:
    """What went and what stays, by reason, and how much it is; one line if there was nothing."""
    return _text("removed", report.removed, "kept", report.kept, "removed", report)


def _text(
    goes: str,
    going: Sequence[Item],
    stays: str,
    staying: Sequence[Item],
    verb: str,
    about: AzureVnetPlan | AzureVnetReport,
) -> str:
    width = max((len(str(item.address or "")) for item in (*going, *staying)), default=0)
    lines = [*_lines(goes, "-", bad, going, width), *_lines(stays, "=", dim, staying, width)]
    if about.other_rules:
        lines.append(dim(f"left alone: {about.other_rules} rule{'s' * (about.other_rules > 1)} of others"))
    if going:
        lines.append(f"{verb} {_counted(going)}")
    elif about.notes:
        lines.append("nothing of what was looked at is to be removed")
    else:
        lines.append(good("azure-vnet has left nothing here that is to be removed"))
    return "\n".join([*lines, *(f"note: {clean(note)}" for note in about.notes)])


def _lines(word: str, mark: str, paint: Callable[[str], str], items: Sequence[Item], width: int) -> list[str]:
    """A heading for each reason, and below it a line for each object, which 80 columns hold."""
    lines = []
    for reason in dict.fromkeys(item.reason for item in items):
        lines.append(clean(f"{word}, because {reason}:"))
        lines += [
            paint(clean(f"  {mark} {item.kind:9}  {item.address!s:{width}}  {_rest(item)}"))
            for item in items
            if item.reason == reason
        ]
    return lines


def _rest(item: Item) -> str:
    """What there is to say of it beside its address."""
    if isinstance(item.what, Neighbour):
        return f"dev {item.what.dev} {item.what.mac} PERMANENT"
    return str(parse_pod_rule(item.what))


def _counted(items: Sequence[Item]) -> str:
    """Like ``3 rules, 1 neighbour``."""
    kinds = Counter(item.kind for item in items)
    return ", ".join(f"{kinds[kind]} {kind}{'s' * (kinds[kind] > 1)}" for kind in ("rule", "neighbour") if kinds[kind])
