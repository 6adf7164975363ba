"""Compose the pages of ``explain`` and ``doctor``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter

from hostrouting.cli.bars import KINDS
from hostrouting.cli.output import Page, Row, bad, dim, good, head
from hostrouting.cli.report import since_text
from hostrouting.doctor.check_types import Severity
from hostrouting.doctor.examine import DoctorReport
from hostrouting.model.routes import Route6
from hostrouting.model.text import clean
from hostrouting.overlap.explanation import ExplainedLookup, Explanation, Step
from hostrouting.overlap.findings import FindingKind, NoteKind


def explanation_page(found: Explanation) -> Page:
    """Return a page that shows each lookup: a row per rule, followed by the result."""
    expected = " and ".join(map(str, found.expected))
    whose = f"of {expected}" if expected else "in no expected CIDR"
    page: Page = [
        head(f"{found.address}, {whose}; {_expected_devs(found)}"),
        dim(
            "the kernel evaluates the rules from the top: after ↓ it continues; "
            "at → an entry decides"
        ),
    ]
    if found.is_torn:
        page.append(bad("the host changed while it was being read, so this may be inconsistent"))
    if found.not_received:
        page.append(bad(clean(found.not_received)))
    for number, lookup in enumerate(found.lookups, 1):
        page.append(head(f"{number}. {_asked(lookup)}"))
        page += map(_row, lookup.steps)
        page.append(_end(lookup, found))
        if not lookup.is_modelled:
            page.append(bad(_OTHERWISE))
    if found.expected:
        page += [bad(clean(finding.failure)) for finding in found.findings]
        page += [dim(f"note: {note.kind}: {clean(note.message)}") for note in found.notes]
    return page


def _expected_devs(found: Explanation) -> str:
    named = [each.devs for each in found.expected if each.devs is not None]
    since = ""
    if len(named) == len(found.expected) > 0:
        devs = named
    elif found.default_devs:
        devs = [found.default_devs, *named]
        since = since_text(found.verified_since)
    else:
        return "the uplink is unknown, and so the expected interface: hostrouting check says why"
    return f"expected is {clean(' and '.join(map(','.join, dict.fromkeys(devs))))}{since}"


_OTHERWISE = (
    "this is the kernel's answer, although its tables, as far as they are known here, say otherwise"
)


def _asked(lookup: ExplainedLookup) -> str:
    judged = lookup.judgement.lookup
    protocol = "TCP" if judged.is_tcp else "UDP"
    if judged.is_reply:
        return f"a server that is called at {judged.source} answers from there ({protocol})"
    if judged.source is not None:
        return (
            f"a connection now has the source {judged.source}, "
            f"and the kernel looks it up again ({protocol})"
        )
    return f"no source is chosen yet ({protocol})"


def _row(step: Step) -> Row:
    label = f"{step.rule.preference}:"
    ignored = [dim(f"ignored, as its link is down: {clean(str(route))}") for route in step.ignored]
    rule = clean(str(step.rule))
    if step.passed is not None:
        return Row(dim("↓"), label, [dim(f"{rule}: {clean(step.passed)}"), *ignored])
    entry = f"{step.rule.action.name.lower()}: it is discarded"
    if step.route is not None:
        entry = str(step.route)
    if isinstance(step.route, Route6) and step.route.expires is not None:
        entry += f" expires {step.route.expires}sec"
    return Row("→", label, [rule, *ignored, clean(entry)])


def _by(lookup: ExplainedLookup) -> str:
    """Return a clause on the interfaces that carry a lookup's packets, and on their sources."""
    if not lookup.judgement.devs:
        return ""
    sources = " or ".join(map(str, lookup.sources))
    return f"by {','.join(lookup.judgement.devs)}{f', from {sources}' if sources else ''}"


def _judged(kind: FindingKind | NoteKind | None) -> str:
    if kind is None:
        return "as expected"
    return "not as expected" if kind is FindingKind.OVERLAP else KINDS[kind].meaning


def _end(lookup: ExplainedLookup, found: Explanation) -> Row:
    by = _by(lookup)
    kind = lookup.judgement.kind
    if not lookup.sends:
        return Row("·", "", [clean(f"{by or 'no route'}; nothing is sent yet")])
    if found.is_as_expected is None and not lookup.judgement.is_failure:
        meaning = "" if kind is None else f": {KINDS[kind].meaning}"
        return Row("?", "", [clean(f"{by}{meaning}")])
    mark, paint = (dim("•"), str) if kind or found.notes else (good("✓"), good)
    if lookup.judgement.is_failure:
        mark, paint = bad("✗"), bad
    judged = _judged(kind)
    return Row(mark, "", [paint(clean(f"{by}: {judged}" if by else judged))])


# --- the doctor -----------------------------------------------------------------------------------

_MARKS = {Severity.BROKEN: bad("✗"), Severity.RISK: bad("•"), Severity.UNKNOWN: bad("?")}


def doctor_page(report: DoctorReport, notes: Iterable[str] = ()) -> Page:
    """Return a page with all checks, their findings and hints, notes, and a verdict."""
    page: Page = []
    by_cause = _checks_by_cause(report)
    for each, findings in report.found.items():
        if not findings:
            page.append(Row(good("✓"), each.name, [each.fine]))
        for (severity, hint, cause), alike in groupby(findings, _SHARED):
            names = by_cause[cause] if cause else [each.name]
            if each.name != names[0]:  # the first check with this cause reports it for all
                continue
            messages = [f"{finding.subject}: {finding.message}" for finding in alike]
            if len(names) > 1:
                messages = [f"{cause}, so these can't be examined: {', '.join(names)}"]
            wrong = clean("\n".join(messages)).splitlines()
            first, *others = clean(hint).splitlines()
            said = [*map(bad, wrong), f"do: {first}", *map(dim, others)]
            page.append(Row(_MARKS[severity], each.name, said))
    return [*page, *map(dim, notes), _verdict(report)]


# Findings with the same severity, hint and cause are shown with one hint.
_SHARED = attrgetter("severity", "hint", "cause")


def _checks_by_cause(report: DoctorReport) -> dict[str, list[str]]:
    """Map each cause to the checks that it prevents from running, to report each cause once."""
    checks: dict[str, list[str]] = {}
    for each, findings in report.found.items():
        for cause in dict.fromkeys(finding.cause for finding in findings):
            checks.setdefault(cause, []).append(each.name)
    return checks


def _verdict(report: DoctorReport) -> str:
    if not report.findings:
        return good("nothing was found: the gate holds")
    count = Counter(finding.severity for finding in report.findings)
    words = {Severity.RISK: "may break it later", Severity.UNKNOWN: "couldn't be examined"}
    others = [f"{count[severity]} {word}" for severity, word in words.items() if count[severity]]
    return bad("; ".join([f"{count[Severity.BROKEN] or 'nothing is'} broken", *others]))
