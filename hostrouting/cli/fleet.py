"""Fleet reports as text or HTML.

No other module imports jinja2.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from operator import attrgetter
from typing import Any

import attrs

from hostrouting.cli.bars import dev_words
from hostrouting.cli.difference import cause_lines, renamed_words
from hostrouting.cli.output import Page, Row, bad, dim, good
from hostrouting.cli.report import overlap_picture, page_text
from hostrouting.fleet.groups import (
    FleetReport,
    GroupFailure,
    HostGroup,
    SharedReason,
    in_general,
)
from hostrouting.kernel.host_changes import HostChange
from hostrouting.model.jsonable import in_json
from hostrouting.model.text import clean, counted, shortened, with_runs
from hostrouting.overlap.findings import FindingKind, NoteKind, Verdict
from hostrouting.overlap.summary import SHOWN_LINES, advice, brief, reason_lines, unapplied

# Longer lists are shortened in the text. The JSON output is complete.
_SHOWN_HOSTS = 16
_SHOWN_OWN_NAMES = 4
_SHOWN_REASONS = 32
_SHOWN_CAUSES = 4
_SHOWN_CAUTIONS = 4
_SHOWN_EXPECTING = 4
_DRAWN_GROUPS = 50
# What differs between the reasons of hosts that lack the same fact.
_RULE_OR_NUMBER = re.compile(r"(?<=the rule ).*(?= matches)|\d+")
_MARKS = {Verdict.OK: good("✓"), Verdict.OVERLAP: bad("✗"), Verdict.UNKNOWN: bad("?")}


def fleet_text(report: FleetReport, width: int | None, *, is_verbose: bool = False) -> str:
    """Return the groups as text, each with its fix and its hosts.

    Args:
        report: the fleet's report.
        width: the terminal's width in columns; None if the output isn't a terminal.
        is_verbose: whether to list all hosts of each group instead of the first few, and the whole
            reasons, names and cautions.

    Returns:
        Lines with colours.
    """
    page: Page = [_counts(report), *_remarks(report, is_verbose=is_verbose)]
    told: dict[str, str] = {}
    asked: dict[str, str] = {}
    for whole in report.groups:
        group = whole if is_verbose else _with_brief_reasons(whole)
        why = _new_reasons(group, told)
        fix = [good(clean(line)) for line in advice(group.report, why=why)]
        is_whole = is_verbose or group.verdict is Verdict.OK
        fix += _cautions(group) if is_whole else _brief_cautions(group)
        hosts = [dim(line) for line in _host_lines(group, is_verbose=is_verbose)]
        reasons = [*_reason_lines(group, is_verbose=is_verbose)]
        said = [_title(group, asked), *fix, *hosts, *reasons]
        mark = bad("•") if _is_doubtful(group) else _MARKS[group.verdict]
        if group.would_fail:
            mark = bad("✗")
        page.append(Row(mark, f"{len(group.hosts):,}", said))
    return page_text(page, width)


def _new_reasons(group: HostGroup, told: dict[str, str]) -> list[str]:
    """Return why no route fixes some failures, with a line for each answer to a question.

    An answer that an earlier line has is replaced by a reference to that line.

    Args:
        group: the group.
        told: the answers of earlier lines, each with the reference. New ones are added.
    """
    reasons: list[str] = []
    on = f" on {group.hosts[0]}"
    for unfixable in group.unfixable:
        reason, *answers = reason_lines(unfixable)
        # Reasons beyond these aren't printed.
        if len(reasons) >= SHOWN_LINES:
            reasons.append("; ".join((reason, *answers)))
            continue
        lines = [reason]
        for answer in answers:
            if answer not in told:
                told[answer] = f"{unfixable.parts[0]}{on}"
                lines.append(answer)
                continue
            short = f"{answer.partition(', ')[0]}, as for {told[answer].removesuffix(on)}"
            lines.append(min(answer, short, key=len))
        reasons.append("\n  ".join(map(clean, lines)))
    return reasons


def _host_lines(group: HostGroup, *, is_verbose: bool) -> Iterator[str]:
    """Yield a line with the hosts, and a line with those whose snapshots have another host name."""
    yield _names(group.hosts, is_verbose=is_verbose)
    pairs = [
        f"{clean(name)} is {clean(own)}"
        for name, own in group.own_names.items()
        if not _is_domain_alone(name, own)
    ]
    if pairs:
        most = len(pairs) if is_verbose else _SHOWN_OWN_NAMES
        yield f"own names: {shortened(pairs, ', ', most)}"


def _is_domain_alone(name: str, own: str) -> bool:
    """Return whether one name is the other plus a domain, such as ``a`` and ``a.example``."""
    return own.startswith(f"{name}.") or name.startswith(f"{own}.")


def _names(hosts: Sequence[str], *, is_verbose: bool) -> str:
    """Return the names of hosts, with commas for Ansible's --limit if the list is complete.

    A shortened list must not be used by mistake. So there are no commas between its names, which
    Ansible needs, and a parenthesis, which a shell rejects.
    """
    names = [*map(clean, hosts)]
    if is_verbose or len(names) <= _SHOWN_HOSTS:
        return ", ".join(names)
    more = len(names) - _SHOWN_HOSTS
    return f"{' '.join(names[:_SHOWN_HOSTS])} (and {more:,} more, -v lists all)"


def _reason_lines(group: HostGroup, *, is_verbose: bool) -> Iterator[str]:
    """Yield a line for each reason, if the group's hosts have different reasons."""
    for shared in (group.reasons, _uncompared(group)):
        if len(shared) > 1:
            lines = [
                f"{_names(each.hosts, is_verbose=is_verbose)}: {clean(each.detail)}"
                for each in shared
            ]
            most = len(lines) if is_verbose else _SHOWN_REASONS
            yield from shortened(lines, "\n", most).split("\n")


def _with_brief_reasons(group: HostGroup) -> HostGroup:
    """Return a group in which reasons that differ only in rules, addresses and numbers are one."""
    uncompared = _alike(_uncompared(group))
    return attrs.evolve(group, reasons=_alike(group.reasons), uncompared=uncompared)


def _alike(reasons: Sequence[SharedReason]) -> tuple[SharedReason, ...]:
    found: dict[str, list[SharedReason]] = {}
    for each in reasons:
        found.setdefault(_RULE_OR_NUMBER.sub("", in_general(each.reason, ())), []).append(each)
    return tuple(map(_as_one, found.values()))


def _as_one(reasons: Sequence[SharedReason]) -> SharedReason:
    first = reasons[0]
    if len(reasons) == 1:
        return first
    example = f" (on {first.hosts[0]}, and alike on the others: -v)"
    hosts = tuple(host for each in reasons for host in each.hosts)
    return SharedReason(f"{first.reason}{example}", hosts, f"{first.detail}{example}")


def _counts(report: FleetReport) -> str:
    words = ", ".join(f"{count:,} {verdict}" for verdict, count in report.counts.items())
    count = sum(report.counts.values())
    failing = f"; apply would fail on {report.would_fail:,}" if report.would_fail else ""
    return f"{counted(count, 'snapshot')}: {words}{failing}"


_PRINTED = "what hostrouting fix --format ip printed, which goes at the next boot"


def _remarks(report: FleetReport, *, is_verbose: bool) -> list[str]:
    """Return lines on odd snapshots (by time or host), and on hosts without a later snapshot."""
    newest = f"more than a day older than the newest ({clean(report.newest or '')})"
    newer = "newer than the later snapshot, so what came is shown as what went"
    remarks = (
        (report.since_newer, "warning: ", "earlier snapshot", ("is", "are"), newer),
        (report.since_of_another, "warning: ", "earlier snapshot", ("is", "are"), "another host's"),
        (report.ahead, "warning: ", "snapshot", ("is", "are"), "from the future: a clock is ahead"),
        (report.outdated, "", "snapshot", ("is", "are"), newest),
        (report.untimed, "", "snapshot", ("has", "have"), "no time"),
        (report.printed, "", "host", ("has", "have"), _PRINTED),
        (report.gone, "", "host", ("has", "have"), "a snapshot in --since, but none among these"),
    )
    lines: list[str] = []
    for hosts, label, noun, verbs, said in remarks:
        if hosts:
            verb = verbs[len(hosts) > 1]
            names = _names(hosts, is_verbose=is_verbose)
            lines.append(f"{label}{counted(len(hosts), noun)} {verb} {said}: {names}")
    return [*lines, *_repeated(report, is_verbose=is_verbose)]


def _repeated(report: FleetReport, *, is_verbose: bool) -> list[str]:
    """Return a line that names hosts with several snapshots, and their files; or no line."""
    files: dict[str, list[str]] = {}
    for group in report.groups:
        for name in group.hosts:
            own = group.own_names.get(name, name.rpartition("/")[2])
            files.setdefault(own, []).append(name)
    several = [
        f"{len(names)} snapshots are of {own}: {shortened(names, ', ', _SHOWN_OWN_NAMES)}"
        for own, names in files.items()
        if len(names) > 1
    ]
    most = len(several) if is_verbose else _SHOWN_OWN_NAMES
    return [clean(shortened(several, "; ", most))] if several else []


def _cautions(group: HostGroup) -> list[str]:
    """Return a line for each kind of traffic that the first host's fix moves."""
    return [clean(f"caution: {line}") for line in group.cautions]


def _brief_cautions(group: HostGroup) -> list[str]:
    """Return the first cautions without their details, and the number of the others."""
    lines = [
        clean(f"caution: {'; '.join(brief(line))}") for line in group.cautions[:_SHOWN_CAUTIONS]
    ]
    more = len(group.cautions) - _SHOWN_CAUTIONS
    return [*lines, f"and {counted(more, 'more caution')}: -v"] if more > 0 else lines


def _is_doubtful(group: HostGroup) -> bool:
    """Return whether a passing group has questions about its uplinks, or may fail later."""
    return group.verdict is Verdict.OK and bool(
        group.decisions or group.cautions or group.report.pending
    )


def _title(group: HostGroup, asked: dict[str, str]) -> str:
    """Return the result shared by all hosts in a group.

    Args:
        group: the group.
        asked: the questions of earlier titles, each with its first host. New ones are added.
    """
    said = [_words(failure) for failure in group.failures]
    if group.report.verdict is Verdict.UNKNOWN:
        said.append(f"unknown: {_if_shared(group.reasons) or group.report.reason_kind}")
    if not group.failures and group.verdict is Verdict.OK:
        said.insert(0, f"ok by {dev_words(group.report.default_devs)}" if group.decisions else "ok")
    if group.would_fail:
        said.append("apply would fail")
    said += _comparison(group)
    for note in group.decisions:
        first = asked.setdefault(note.message, group.hosts[0])
        is_new = first == group.hosts[0]
        question = f": {'; '.join(brief(note.message))}" if is_new else f", as on {first}"
        said.append(f"{note.kind}{question}")
    if group.verdict is Verdict.OK and group.report.pending:
        said.append(_about_pending(group.report.pending))
    return clean("; ".join(said))


def _about_pending(devs: Sequence[str]) -> str:
    verb, one = ("has", "it has") if len(devs) == 1 else ("have", "they have")
    without = f"{', '.join(with_runs(devs))} {verb} no IPv4 address yet"
    return f"{NoteKind.PENDING}: {without}, and may shadow once {one} one"


def _comparison(group: HostGroup) -> Iterator[str]:
    """Yield what has changed since the earlier snapshots, and why hosts can't be compared."""
    for words in renamed_words(group.renamed):
        yield f"since then {words}"
    if changed := _changes(group.causes or ()):
        example = "" if len(group.hosts) == 1 else f" (on {group.hosts[0]})"
        yield f"since then{example} {', '.join(changed)}"
    if uncompared := _uncompared(group):
        why = _if_shared(uncompared)
        yield f"not compared: {why}" if why else "not compared"


def _changes(causes: Iterable[HostChange]) -> list[str]:
    """Return other programs' changes, then ours, and the number of our new routes and rules.

    After a roll-out, every host has these.
    """
    changes = sorted(causes, key=attrgetter("is_ours"))
    new = [each for each in changes if each.is_ours and not each.before]
    others = [words for each in changes if each not in new for words in cause_lines(each)]
    told = [shortened(others, ", ", _SHOWN_CAUSES)] if others else []
    counts = Counter[str]()
    for each in new:
        counts[str(each.kind)] += each.count
    return [*told, *(f"+ {counted(count, kind)} of hostrouting" for kind, count in counts.items())]


def _uncompared(group: HostGroup) -> list[SharedReason]:
    """Return why hosts can't be compared, without the reasons why they have no verdict."""
    told = {each.detail for each in group.reasons}
    return [each for each in group.uncompared if each.detail not in told]


def _if_shared(reasons: Sequence[SharedReason]) -> str | None:
    """Return the reason that all hosts of a group share; None if there are several reasons."""
    return reasons[0].reason if len(reasons) == 1 else None


def _words(failure: GroupFailure) -> str:
    by = f" by {dev_words(failure.devs)}" if failure.devs else ""
    if failure.kind is FindingKind.OVERLAP and any(failure.expecting):
        by += f", expected {_expected_words(failure.expecting)}"
    return f"{failure.kind} {failure.cidr}{by}"


def _expected_words(expecting: Mapping[tuple[str, ...], Sequence[str]]) -> str:
    """Return the expected interfaces. If the hosts expect different ones, name the fewer hosts."""
    (most, hosts), *others = sorted(expecting.items(), key=lambda each: -len(each[1]))
    if not others:
        return dev_words(most)
    words = [f"{dev_words(most)} ({counted(len(hosts), 'host')})"]
    for devs, names in others:
        named = shortened([*names], ", ", _SHOWN_EXPECTING)
        words.append(f"{dev_words(devs)} ({len(names):,}: {named})")
    return " or ".join(words)


# --- a page for a browser -------------------------------------------------------------------------


def fleet_page(report: FleetReport, *, is_verbose: bool = False) -> str:
    """Return the groups as an HTML page, each with a picture of its first host and a fix to copy.

    Args:
        report: the fleet's report.
        is_verbose: whether the remarks list all of their hosts. The groups always do.

    Returns:
        A self-contained HTML document, encoded as pure ASCII.
    """
    from jinja2 import Environment, StrictUndefined

    script = _read("fleet.js")
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    sections = [
        _section(group, is_drawn=number < _DRAWN_GROUPS)
        for number, group in enumerate(report.groups)
    ]
    text = environment.from_string(_read("fleet.html")).render(
        counts=_counts(report),
        remarks=_remarks(report, is_verbose=is_verbose),
        groups=sections,
        script=script,
        script_hash=_base64(hashlib.sha256(script.encode()).digest()),
    )
    return text.encode("ascii", "xmlcharrefreplace").decode()


def _read(name: str) -> str:
    return resources.files("hostrouting.cli").joinpath(name).read_text(encoding="ascii")


def _section(group: HostGroup, *, is_drawn: bool) -> dict[str, Any]:
    picture = ""
    if group.failures and is_drawn:
        # The SVG is embedded as an image, so its scripts don't run and its styles stay inside.
        # Notes are left out, because they only apply to the first host.
        drawn = attrs.evolve(group.report, notes=())
        picture = _base64(overlap_picture(drawn).encode())
    return {
        "verdict": _class_of(group),
        "title": _title(group, {}),
        "picture": picture,
        "unapplied": [clean(line) for line in unapplied(group.report.fix)],
        "reasons": [[*map(clean, reason_lines(each))] for each in group.report.fix.unfixable],
        "fixes": [*_fixes(group)],
        "hints": [clean(line) for line in group.hints],
        "cautions": _cautions(group),
        "first": clean(group.hosts[0]),
        "count": len(group.hosts),
        "lists": _lists(group),
    }


def _class_of(group: HostGroup) -> str:
    if group.would_fail:
        return "failing"
    return "doubtful" if _is_doubtful(group) else str(group.verdict)


def _lists(group: HostGroup) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the hosts by reason. A host comes with its snapshot's host name if that differs."""
    apart = next((each for each in (group.reasons, _uncompared(group)) if len(each) > 1), None)
    lists = [SharedReason("", group.hosts, "")] if apart is None else apart
    return [
        (
            clean(each.reason),
            [(clean(host), clean(group.own_names.get(host, ""))) for host in each.hosts],
        )
        for each in lists
    ]


def _fixes(group: HostGroup) -> Iterator[tuple[str, str]]:
    """Yield each key of staticRoutes that gets entries, with the entries."""
    for key, entries in (("routes", group.fix), ("rules", group.rules), ("keep", group.keep)):
        if entries:
            yield key, ",\n".join(json.dumps(entry) for entry in in_json(entries))


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
