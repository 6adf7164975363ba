"""Apply what a check prints on an incident's host, and observe what becomes of its packets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, count, zip_longest
from pathlib import Path
from typing import Any

import attrs
from incidents import Case, Rebuilt
from node import tool

from hostrouting import OverlapReport
from hostrouting.config.routing import Keep
from hostrouting.model.family import IpNetwork
from hostrouting.overlap.summary import advice

_COMMAND = re.compile(r"\bip(?: -[46])? (?:route|rule) (?:add|prepend) .*?(?=, or: |; |$)")
_KEEP = re.compile(r'"keep": (\[[^]]*\])')
_CIDR = r'\{"cidr": [^}]*\}'
_ANSWERS = re.compile(rf'"uplinks": \[[^]]*\]|{_CIDR}(?:, {_CIDR})*')


@attrs.frozen
class Outcome:
    """The outcome of a case, in the form of its expectation.

    Args:
        leaves: for each probe, how its packets leave: an interface, a socket's errno, or
            ``dropped``.
        says: the findings about the probes that go wrong, or why the verdict is ``unknown``, or
            else the notes.
        fixes: what was printed, applied, and led every probe as expected: a ``route``, a ``rule``,
            interfaces to ``keep``, an ip ``command``, the ``answer`` to a question, or the change
            that the ``owner`` was advised to make.
        breaks: what was printed, applied, and led a probe or another address elsewhere than
            promised.
    """

    leaves: tuple[str, ...]
    says: tuple[str, ...]
    fixes: tuple[str, ...] = ()
    breaks: tuple[str, ...] = ()


def outcome(case: Case, root: Path) -> Outcome:
    """Rebuild a case's host, check it, and apply each printed fix to another copy of it."""
    with Rebuilt(case, root) as host:
        report, leaves = host.check(), host.leaves()
        if report.verdict == "ok":
            offers = tuple(host.offers())
            report = attrs.evolve(report, fix=attrs.evolve(report.fix, consequences=offers))
    results = {
        each.name: _result(each, case, root, report, leaves) for each in _attempts(case, report)
    }
    names = {name.partition(" ")[0]: None for name, result in results.items() if result == ""}
    broken = tuple(f"{name}: {result}" for name, result in results.items() if result)
    return Outcome(tuple(leaves), tuple(_said(case, report, leaves)), tuple(names), broken)


@attrs.frozen
class _Attempt:
    """Something that is printed, to be applied to a copy of the host.

    Args:
        name: one of the words of ``Outcome.fixes``, with a number if there are several.
        apply: a function that applies it and checks again.
        settles: what it should fix at least, or None for everything that routes can fix.
        may_move: whether it may lead working traffic elsewhere, because that is what the user has
            answered.
    """

    name: str
    apply: Callable[[Rebuilt], OverlapReport]
    settles: tuple[IpNetwork, ...] | None = None
    may_move: bool = False


def _said(case: Case, report: OverlapReport, leaves: Sequence[str]) -> Iterator[str]:
    wrong = [
        probe for probe, way in zip(case.probes, leaves, strict=True) if way != probe.expected
    ] or case.probes
    if report.reason_kind is not None:
        yield f"unknown {report.reason_kind}"
    for each in report.findings:
        sources = {probe.sender for probe in wrong if any(probe.to in part for part in each.ranges)}
        if sources and (not each.is_reply or str(each.source) in sources):
            yield f"{each.kind} {','.join(each.devs)}".strip() + (
                f" from {each.source}" if each.source else ""
            )
    for note in report.notes:
        if not note.ranges or any(probe.to in part for probe in wrong for part in note.ranges):
            yield f"note {note.kind} {','.join(note.devs)}".strip()


def _attempts(case: Case, report: OverlapReport) -> Iterator[_Attempt]:
    """Yield what is printed, in the order in which an operator would try it."""

    def apply(
        host: Rebuilt, commands: Sequence[str] = (), keep: Sequence[Any] = ()
    ) -> OverlapReport:
        host.install(report, keep)
        tool("sh", "-ec", "\n".join(commands))
        return host.check()

    def reply(host: Rebuilt, given: Mapping[str, Any]) -> OverlapReport:
        found = host.check(**given)
        host.install(found)
        return attrs.evolve(host.check(**given), fix=found.fix)

    def act(host: Rebuilt) -> OverlapReport:
        found = host.check(**case.answer)
        host.run(case.does if case.advised in _printed(report) + _printed(found) else ())
        return reply(host, case.answer)

    if report.fix.entries.is_wanted:
        yield _Attempt("rule" if report.fix.rules else "route", apply)
    for number, line in enumerate(report.fix.consequences, 1):
        for text in _KEEP.findall(line):
            if case.gateway or "GATEWAY" not in text:
                given = json.loads(text.replace("GATEWAY", case.gateway))
                keep = [Keep(each) if isinstance(each, str) else Keep(**each) for each in given]
                name = "route with keep" if report.fix.entries.is_wanted else "keep"
                yield _Attempt(f"{name} {number}", partial(apply, keep=keep))
    by_command = {each.ranges: _COMMAND.findall(each.reason) for each in report.fix.unfixable}
    by_command[()] = _COMMAND.findall(report.reason or "")
    settled = tuple(chain(*(ranges for ranges, commands in by_command.items() if commands)))
    for number, commands in enumerate(zip_longest(*filter(None, by_command.values())), 1):
        apply_all = partial(apply, commands=[*filter(None, commands)])
        yield _Attempt(f"command {number}", apply_all, settled)
    numbers = count(1)
    for each in report.fix.unfixable:
        for text in _ANSWERS.findall(each.reason):
            named = json.loads(
                f'{{"expectedCidrs": [{text}]}}' if text[0] == "{" else f"{{{text}}}"
            )
            devs = {
                *chain(
                    named.get("uplinks", ()),
                    *(row["devs"] for row in named.get("expectedCidrs", ())),
                )
            }
            attempt = partial(reply, given=named)
            yield _Attempt(
                f"answer {next(numbers)}",
                attempt,
                each.ranges,
                may_move=not devs.issuperset(each.devs),
            )
    if case.advised:
        yield _Attempt("owner", act, report.cidrs, may_move=True)


def _printed(report: OverlapReport) -> str:
    return "\n".join([report.reason or "", *advice(report)])


def _result(
    attempt: _Attempt, case: Case, root: Path, report: OverlapReport, leaves: Sequence[str]
) -> str | None:
    """Return what an attempt broke, an empty string if it led every probe as expected, or None if
    it did neither.
    """
    told = [part for each in report.fix.unfixable for part in each.ranges]
    if attempt.settles is not None:
        told = [part for part in told if not any(map(part.overlaps, attempt.settles))]
    with Rebuilt(case, root) as host:
        before = {} if attempt.may_move else host.bystanders(report)
        after = attempt.apply(host)
        if attempt.name.startswith("answer"):
            told += [part for each in after.fix.unfixable for part in each.ranges]
        failing = [part for each in after.findings for part in each.ranges]
        left = [str(part) for part in failing if not any(map(part.overlaps, told))]
        if after.reason_kind is not None or left:
            return f"then {after.reason_kind or ' '.join(left)}"
        now = host.bystanders(report)
        moved = [str(address) for address in before if now.get(address) != before[address]]
        lookups = list(zip(case.probes, leaves, host.leaves(), strict=True))
    for probe, earlier, later in lookups:
        if later not in (earlier, probe.expected):
            moved.append(f"{probe.to} to {later}")
    if moved and not attempt.may_move:
        return f"moves {' '.join(moved)}"
    return "" if all(later == probe.expected for probe, _, later in lookups) else None
