"""Describe the result of a check in plain words for errors, markers and events."""

from __future__ import annotations

from ipaddress import collapse_addresses

from hostrouting.model.rules import Rule, RuleAction
from hostrouting.model.text import shortened
from hostrouting.overlap.findings import OverlapReport, Verdict

# Lines for people are shortened; ``hostrouting fix`` prints everything.
_SHOWN_ENTRIES, _SHOWN_RANGES = 50, 16


def summary(report: OverlapReport) -> str:
    """Return a line for each failure, or one line if nothing fails or nothing could be judged."""
    if report.verdict is Verdict.UNKNOWN:
        return f"the check couldn't judge anything: {report.reason}"
    if report.findings:
        return "\n".join(finding.message for finding in report.findings)
    return f"every expected CIDR leaves by {','.join(report.default_devs)}"


PASTE = "fix: add to hostRouting.staticRoutes.routes:"


def advice(report: OverlapReport) -> list[str]:
    """Return at most two lines with the entries to paste and the addresses that no route fixes."""
    left = collapse_addresses(network for item in report.fix.unfixable for network in item.ranges)
    ranges = [str(network).removesuffix("/32") for network in left]
    says = f"no route fixes {shortened(ranges, ' ', _SHOWN_RANGES)}; hostrouting fix says why"
    return [*_pasted(report), *([says] if ranges else [])]


def _pasted(report: OverlapReport) -> list[str]:
    entries, rest = pasted_entries(report)
    return [f"{PASTE} {', '.join(entries)}{rest}"] if entries else []


def pasted_entries(report: OverlapReport) -> tuple[list[str], str]:
    """Return the first entries as JSON, and a remark about the remaining ones."""
    if not report.fix.routes:
        return [], ""
    import json

    entries = [json.dumps(entry.to_mapping()) for entry in report.fix.routes]
    more = len(entries) - _SHOWN_ENTRIES
    return entries[:_SHOWN_ENTRIES], f" and {more} more; hostrouting fix prints all" if more > 0 else ""


def reasons(report: OverlapReport) -> list[str]:
    """Return a line for each reason why no route fixes some addresses."""
    unfixable = report.fix.unfixable
    return [f"no route fixes {shortened(each.parts, ' ', _SHOWN_RANGES)}: {each.reason}" for each in unfixable]


def decided_by(rule: Rule) -> str:
    """Describe the policy rule that decides."""
    what = f"has table {rule.table} decide" if rule.action is RuleAction.TO_TABLE else "decides"
    return f"the policy rule of preference {rule.preference} {what}"


def error_text(report: OverlapReport) -> str:
    """Return the text of an error: the failures or reason, the fix and its consequences, and what no route fixes."""
    mind = [f"mind: {line}" for line in report.fix.consequences]
    return "\n".join([summary(report), *_pasted(report), *mind, *reasons(report)])
