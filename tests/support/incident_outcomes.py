"""Apply what a check prints on an incident's host, and observe what becomes of its packets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import attrs
from incidents import Case, Rebuilt
from node import tool

from hostrouting import OverlapReport
from hostrouting.overlap.wording import reasons
from hostrouting.report import Unfixable

_COMMAND = re.compile(r"\bip(?: -[46])? (?:route|rule) (?:add|prepend) .*?(?=, or: |; |$)")
_ANSWERS = re.compile(r'"uplinks": \[[^]]*\]|\{"cidr": [^}]*\}')


@attrs.frozen
class Outcome:
    """The outcome of a case, in the form of its expectation.

    Args:
        leaves: for each probe, how its packets leave: an interface, a socket's errno, or ``dropped``.
        says: the findings about the probes that go wrong, or why the verdict is ``unknown``, or else the notes.
        fixes: what was printed, applied, and led every probe as expected: a ``route``, a ``rule``, a route in another
            ``table``, the ``answer`` to a question, or the change that the ``owner`` was advised to make.
        breaks: what was printed, applied, and led a probe or another address elsewhere than promised.
    """

    leaves: tuple[str, ...]
    says: tuple[str, ...]
    fixes: tuple[str, ...] = ()
    breaks: tuple[str, ...] = ()


def outcome(case: Case, root: Path) -> Outcome:
    """Rebuild a case's host, check it, and apply each printed fix to another copy of it."""
    with Rebuilt(case, root) as host:
        report, leaves = host.check(), host.leaves()
    results = {name: _result(name, case, root, report, leaves, apply) for name, apply in _attempts(case, report)}
    names = {name.partition(" ")[0]: None for name, result in results.items() if result == ""}
    broken = tuple(f"{name}: {result}" for name, result in results.items() if result)
    return Outcome(tuple(leaves), tuple(_said(case, report, leaves)), tuple(names), broken)


Apply = Callable[[Rebuilt], OverlapReport]


def _said(case: Case, report: OverlapReport, leaves: Sequence[str]) -> Iterator[str]:
    wrong = [probe for probe, way in zip(case.probes, leaves, strict=True) if way != probe.expected] or case.probes
    if report.reason_kind is not None:
        yield f"unknown {report.reason_kind}"
    for each in report.findings:
        sources = {probe.source for probe in wrong if any(probe.to in part for part in each.ranges)}
        if sources and (not each.is_reply or str(each.source) in sources):
            yield f"{each.kind} {','.join(each.devs)}".strip() + (f" from {each.source}" if each.source else "")
    for note in report.notes:
        if not note.ranges or any(probe.to in part for probe in wrong for part in note.ranges):
            yield f"note {note.kind} {','.join(note.devs)}".strip()


def _attempts(case: Case, report: OverlapReport) -> Iterator[tuple[str, Apply]]:
    """Yield a name for each printed fix, and a function that applies it and checks again."""
    text = "\n".join([report.reason or "", *reasons(report)])

    def apply(host: Rebuilt, commands: Sequence[str] = (), changes: Sequence[str] = ()) -> OverlapReport:
        host.install(report)
        tool("sh", "-ec", "\n".join(commands))
        host.run(changes)
        return host.check()

    def reply(host: Rebuilt, given: Mapping[str, Any]) -> OverlapReport:
        found = host.check(**given)
        host.install(found)
        return host.check(**given) if found.fix.routes else found

    if report.fix.routes:
        yield "route", apply
    printed = [[[each] for each in _COMMAND.findall(report.reason or "")], *map(_commands, report.fix.unfixable)]
    for number, commands in enumerate(zip_longest(*filter(None, printed), fillvalue=()), 1):
        name = "table" if any(" table " in command for command in chain(*commands)) else "rule"
        yield f"{name} {number}", partial(apply, commands=[*chain(*commands)])
    for number, text_ in enumerate(dict.fromkeys(_ANSWERS.findall(text)), 1):
        yield f"answer {number}", partial(reply, given=json.loads(text_ if text_[0] == "{" else f"{{{text_}}}"))
    if case.owner and case.advised in text:
        yield "owner", partial(apply, changes=case.owner)


def _commands(unfixable: Unfixable) -> list[list[str]]:
    """Return each alternative among the printed commands, for each prefix if they contain a placeholder."""
    return [
        [re.sub(r"\bCIDR\b", part, command) for part in unfixable.parts]
        for command in _COMMAND.findall(unfixable.reason)
    ]


def _result(
    name: str, case: Case, root: Path, report: OverlapReport, leaves: Sequence[str], apply: Apply
) -> str | None:
    """Return what a fix broke, an empty string if it led every probe as expected, or None if it did neither."""
    is_owner = name == "owner"  # who may change anything
    told = [part for each in report.fix.unfixable for part in each.ranges if not is_owner]
    with Rebuilt(case, root) as host:
        before = {} if is_owner else host.bystanders(report)
        after = apply(host)
        left = [str(part) for each in after.findings for part in each.ranges if not any(map(part.overlaps, told))]
        if after.reason_kind is not None or left:
            return f"then {after.reason_kind or ' '.join(left)}"
        now = host.bystanders(report)
        moved = [str(address) for address in before if now.get(address) != before[address]]
        ways = [(probe, way, later) for probe, way, later in zip(case.probes, leaves, host.leaves(), strict=True)]
    moved += [f"{probe.to} to {later}" for probe, way, later in ways if later != way == probe.expected]
    if moved:
        return f"moves {' '.join(moved)}"
    return "" if all(later == probe.expected for probe, _, later in ways) else None
