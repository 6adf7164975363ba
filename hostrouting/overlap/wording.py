"""A check in plain words: what errors, markers and events say of it."""

from __future__ import annotations

from ipaddress import collapse_addresses
from typing import TYPE_CHECKING

from hostrouting.model.text import shortened
from hostrouting.overlap.findings import Verdict

if TYPE_CHECKING:
    from hostrouting.overlap.findings import OverlapReport

__all__ = ["PASTE", "advice", "error_text", "pasted_entries", "reasons", "summary"]

# A line is for people; ``hostrouting fix`` prints all of them.
_SHOWN_ENTRIES, _SHOWN_RANGES = 50, 16


def summary(report: OverlapReport) -> str:
    """A line a failure; the reason where nothing could be judged; one line if all is well."""
    if report.verdict is Verdict.UNKNOWN:
        return f"the check couldn't judge anything: {report.reason}"
    if report.findings:
        return "\n".join(finding.message for finding in report.findings)
    return f"every expected CIDR leaves by {','.join(report.default_devs)}"


PASTE = "fix: add to hostRouting.staticRoutes.routes:"


def advice(report: OverlapReport) -> list[str]:
    """The mend in at most two lines: the entries to paste, and what no route mends; none if nothing fails."""
    entries, rest = pasted_entries(report)
    return ([f"{PASTE} {', '.join(entries)}{rest}"] if entries else []) + _left(report)


def pasted_entries(report: OverlapReport) -> tuple[list[str], str]:
    """The entries as JSON, as many as a person will read, and what to say of the others."""
    if not report.remedy.routes:
        return [], ""
    import json

    entries = [json.dumps(entry.to_mapping()) for entry in report.remedy.routes]
    more = len(entries) - _SHOWN_ENTRIES
    return entries[:_SHOWN_ENTRIES], f" and {more} more; hostrouting fix prints all" if more > 0 else ""


def _left(report: OverlapReport) -> list[str]:
    left = collapse_addresses(network for item in report.remedy.unmendable for network in item.ranges)
    ranges = [str(network).removesuffix("/32") for network in left]
    return [f"no route mends {shortened(ranges, ' ', _SHOWN_RANGES)}; hostrouting fix says why"] if ranges else []


def reasons(report: OverlapReport) -> list[str]:
    """What no route mends and why, a line a reason."""
    return [
        f"no route mends {shortened([str(part).removesuffix('/32') for part in left.about], ' ', _SHOWN_RANGES)}: "
        f"{left.reason}"
        for left in report.remedy.unmendable
    ]


def error_text(report: OverlapReport) -> str:
    """What an error says of a check: failures or reason, what mends them and whom that hits, what no route mends."""
    entries, rest = pasted_entries(report)
    fix = [f"{PASTE} {', '.join(entries)}{rest}"] if entries else []
    mind = [f"mind: {line}" for line in report.remedy.consequences]
    return "\n".join([summary(report), *fix, *mind, *reasons(report)])
