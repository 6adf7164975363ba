"""Format the result of a check as text for errors, markers and events. This module does no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hostrouting.config.routing import Keep, StaticRoute, StaticRule
from hostrouting.model.family import IpNetwork
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.model.text import shortened
from hostrouting.overlap.findings import OverlapReport, Verdict
from hostrouting.overlap.proposals import Fix, Unfixable

# Limits for human-readable lines; ``hostrouting fix`` prints everything.
_SHOWN_ENTRIES = 50
SHOWN_LINES = 16
_SHOWN_RANGES = 4


def summary(report: OverlapReport) -> str:
    """Return one line per finding, after the reason for an ``unknown`` verdict.

    The verdict ``ok`` has a single line.
    """
    lines = [finding.message for finding in report.findings]
    if report.verdict is Verdict.UNKNOWN:
        judged = any(each.verdict is not Verdict.UNKNOWN for each in report.families)
        what = (
            next(str(each.family) for each in report.families if each.reason)
            if judged
            else "anything"
        )
        lines.insert(0, f"the check couldn't judge {what}: {report.reason}")
    if lines:
        return "\n".join(lines)
    return f"every expected CIDR leaves through {_expected_devs(report)}"


def _expected_devs(report: OverlapReport) -> str:
    named = "the devs that it names"
    if all(each.devs is not None for each in report.expected):
        return named
    uplinks = ",".join(report.default_devs)
    return (
        uplinks if all(each.devs is None for each in report.expected) else f"{uplinks}, or {named}"
    )


CONFIG = "CONFIG"
PASTE = "fix: add to hostRouting.staticRoutes.{}:"


def advice(
    report: OverlapReport,
    config: str = CONFIG,
    why: Sequence[str] | None = None,
) -> list[str]:
    """Return lines with entries to paste, why no route fixes some failures, and hints.

    Args:
        report: the check's report.
        config: as for ``unapplied``.
        why: the lines of ``reasons``, if they differ from these.
    """
    hints = (f"hint: {line}" for line in report.fix.hints)
    told = _first(reasons(report) if why is None else why)
    return [*unapplied(report.fix, config), *_pastes(report), *told, *hints]


def _first(lines: Sequence[str]) -> list[str]:
    """Return all lines or, if there are many, the first ones and the number of the others."""
    return shortened(lines, "\n", SHOWN_LINES).splitlines()


def unapplied(fix: Fix, config: str = CONFIG) -> list[str]:
    """Return lines on what ``apply`` installs and removes, if that fixes anything.

    Args:
        fix: the fix with ``unapplied`` and ``unlisted``.
        config: the argument of the suggested apply command, or an empty string if the command needs
            no argument.
    """
    is_part = fix.routes or fix.rules or fix.unfixable or (fix.unapplied and fix.unlisted)
    this = "a part of this" if is_part else "this"
    # Without keep, the routes would lead packets of InfiniBand's addresses away.
    first = "add keep first, then " if fix.keep else ""
    command = f"{first}hostrouting apply {config}".rstrip()
    lines: list[str] = []
    if fix.unapplied is not None:
        listed = fix.unapplied
        named = [
            *_counted(len(listed.routes), "route"),
            *_counted(len(listed.rules), "rule"),
            *(["keep"] if listed.keep else []),
        ]
        there = f"{CONFIG} already lists what fixes {this} ({', '.join(named)})"
        lines.append(f"fix: {there}, and the kernel lacks it: {command}")
    if fix.unlisted:
        ours = shortened(fix.unlisted, ", ", _SHOWN_RANGES)
        lines.append(f"fix: {CONFIG} no longer lists what causes {this} ({ours}): {command}")
    return lines


def _counted(number: int, name: str) -> list[str]:
    return [f"{number:,} {name}{'' if number == 1 else 's'}"] if number else []


def _pastes(report: OverlapReport) -> Iterator[str]:
    for heading, (entries, rest) in pasted_entries(report.fix):
        yield f"{heading} {', '.join(entries)}{rest}"


def pasted_entries(fix: Fix) -> Iterator[tuple[str, tuple[list[str], str]]]:
    """Yield a heading for each key of the config with entries to add.

    Each heading comes with the first entries as JSON, and a note with the number of omitted
    entries.
    """
    for key, entries in (("routes", fix.routes), ("rules", fix.rules), ("keep", fix.keep)):
        if entries:
            yield PASTE.format(key), _first_in_json(entries)


def _first_in_json(entries: Sequence[StaticRoute | StaticRule | Keep]) -> tuple[list[str], str]:
    import json

    shown = [json.dumps(entry.to_mapping()) for entry in entries[:_SHOWN_ENTRIES]]
    more = len(entries) - len(shown)
    return shown, f" and {more} more; hostrouting fix prints all" if more > 0 else ""


def reasons(report: OverlapReport, cidr: IpNetwork | None = None) -> list[str]:
    """Return a line for each group of addresses (in a CIDR) that no route fixes, with a reason."""
    unfixable = [
        each
        for each in report.fix.unfixable
        if cidr is None or any(map(cidr.overlaps, each.ranges))
    ]
    return ["; ".join(reason_lines(each)) for each in unfixable]


def reason_lines(unfixable: Unfixable) -> list[str]:
    """Return the reason why no route fixes some addresses, and a line for each possible answer."""
    what = f"{_verdict_on(unfixable)} {shortened(unfixable.parts, ' ', _SHOWN_RANGES)}"
    question = unfixable.obstacle.question
    if question is None:
        return [f"{what}: {unfixable.reason}"]
    return [f"{what}: {unfixable.obstacle.reason}", *question.clauses()]


def _verdict_on(unfixable: Unfixable) -> str:
    obstacle = unfixable.obstacle
    if obstacle.question is not None:  # after the answer, a route or rule may be proposed
        return "nothing is proposed for"
    # ``is_hidden`` means that the snapshot may lack some selectors of the rule. Then the packets
    # may not match the rule, and a route may fix them after all.
    is_open = obstacle.is_withheld or obstacle.is_hidden
    return "no route is proposed for" if is_open else "no route fixes"


def brief(line: str) -> list[str]:
    """Return the first clauses of a caution or a note: the fact, and the setting to change."""
    told, *details = line.split("; ")
    return [told, *(clause for clause in details if "hostRouting" in clause)]


def decided_by(rule: Rule) -> str:
    """Return a clause that names the deciding policy rule, and the rule's table."""
    what = f"has table {rule.table} decide" if rule.action is RuleAction.TO_TABLE else "decides"
    return f"the policy rule of preference {rule.preference} {what}"


def error_text(report: OverlapReport) -> str:
    """Return an error message: the failures, the reason for ``unknown``, and the fix.

    The message also names failures that no route fixes, and other traffic that the fix moves.
    """
    cautions = [f"caution: {'; '.join(brief(line))}" for line in report.fix.consequences]
    findings = summary(report).splitlines()
    return "\n".join([*_first(findings), *advice(report), *_first(cautions)])
