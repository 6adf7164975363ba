"""A check in plain words: what errors, markers and events say of it."""

from __future__ import annotations

from ipaddress import collapse_addresses

import attrs

from hostrouting.model.routes import Route, Table
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.model.text import shortened
from hostrouting.overlap.findings import OverlapReport, Verdict

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
    left = collapse_addresses(network for item in report.remedy.unmendable for network in item.ranges)
    ranges = [str(network).removesuffix("/32") for network in left]
    says = f"no route mends {shortened(ranges, ' ', _SHOWN_RANGES)}; hostrouting fix says why"
    return [*_pasted(report), *([says] if ranges else [])]


def _pasted(report: OverlapReport) -> list[str]:
    entries, rest = pasted_entries(report)
    return [f"{PASTE} {', '.join(entries)}{rest}"] if entries else []


def pasted_entries(report: OverlapReport) -> tuple[list[str], str]:
    """The entries as JSON, as many as a person will read, and what to say of the others."""
    if not report.remedy.routes:
        return [], ""
    import json

    entries = [json.dumps(entry.to_mapping()) for entry in report.remedy.routes]
    more = len(entries) - _SHOWN_ENTRIES
    return entries[:_SHOWN_ENTRIES], f" and {more} more; hostrouting fix prints all" if more > 0 else ""


def reasons(report: OverlapReport) -> list[str]:
    """What no route mends and why, a line a reason."""
    lines = []
    for left in report.remedy.unmendable:
        parts = [str(part).removesuffix("/32") for part in left.about or left.ranges]
        reason = left.reason.replace("CIDR", parts[0]) if len(parts) == 1 else left.reason
        lines.append(f"no route mends {shortened(parts, ' ', _SHOWN_RANGES)}: {reason}")
    return lines


def decided_by(rule: Rule) -> str:
    """That a policy rule decides, with what names it."""
    what = f"has table {rule.table} decide" if rule.action is RuleAction.TO_TABLE else "decides"
    return f"the policy rule of preference {rule.preference} {what}"


def ways_past(rule: Rule, default: Route) -> str:
    """What mends what a policy rule does to a CIDR: commands in which CIDR stands for it."""
    from shlex import quote

    ways = []
    if rule.action is RuleAction.TO_TABLE and rule.table not in (Table.MAIN, Table.LOCAL):
        named = [attrs.evolve(hop, dev=quote(hop.dev or "")) for hop in default.hops]
        hops = [hop.words() + (" onlink" if hop.onlink else "") for hop in named]
        way = hops[0] if len(hops) == 1 else " ".join(f"nexthop {hop}" for hop in hops)
        ways.append(f"ip route add CIDR table {rule.table} {way}")
    if rule.preference > 0:
        ways.append(f"ip rule add to CIDR lookup main pref {rule.preference - 1}")
    return f"{', or: '.join(ways)}; then check again" if ways else "change that rule"


def error_text(report: OverlapReport) -> str:
    """What an error says of a check: failures or reason, what mends them and whom that hits, what no route mends."""
    mind = [f"mind: {line}" for line in report.remedy.consequences]
    return "\n".join([summary(report), *_pasted(report), *mind, *reasons(report)])
