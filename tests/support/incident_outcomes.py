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
from losing import Loss, losses, sorted_out
from node import tool
from reaching import Ways

from hostrouting import OverlapReport
from hostrouting.config.routing import Keep
from hostrouting.model.family import IpAddress, IpNetwork
from hostrouting.overlap.summary import advice

_COMMAND = re.compile(r"\bip(?: -[46])? (?:route|rule) (?:add|prepend) .*?(?=, or: |; |$)")
_KEEP = re.compile(r"staticRoutes\.keep: (.*?)(?: with its [^,;]*)?(?=, but |; |$)")
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
        report, leaves = host.judged(), tuple(host.leaves())
        if report.verdict == "ok":
            offers = tuple(host.offers())
            report = attrs.evolve(report, fix=attrs.evolve(report.fix, consequences=offers))
        attempts = [*_attempts(case, report)]
        asked = host.packets(_concerned(report)) if attempts else []
        before = _Before(report, leaves, host.ways(asked), host.owners, host.ties())
    results = {each.name: _result(each, case, root, before) for each in attempts}
    names = {name.partition(" ")[0]: None for name, result in results.items() if result == ""}
    broken = tuple(f"{name}: {result}" for name, result in results.items() if result)
    return Outcome(leaves, tuple(_said(case, report, leaves)), tuple(names), broken)


@attrs.frozen
class _Before:
    """A case's host as it is.

    Args:
        report: what the check says.
        leaves: how the probes leave.
        ways: how packets of all kinds go.
        owners: the interfaces of its addresses.
        ties: the next hops that the kernel takes by turns.
    """

    report: OverlapReport
    leaves: Sequence[str]
    ways: Ways
    owners: Mapping[IpAddress, str]
    ties: Sequence[set[tuple[str, str]]]

    def is_tie(self, loss: Loss) -> bool:
        """Return whether the kernel may have chosen a packet's new way before."""
        ways = {(way.dev, way.gateway) for way in (loss.before, loss.after)}
        return any(ways <= tie for tie in self.ties)


def _concerned(report: OverlapReport) -> list[IpNetwork]:
    """Return the destinations of what fails and of what is proposed."""
    entries = report.fix.entries
    return [
        *(part for finding in report.findings for part in finding.ranges),
        *(route.destination for route in entries.routes),
        *(rule.to for rule in entries.rules),
    ]


@attrs.frozen
class _Attempt:
    """Something that is printed, to be applied to a copy of the host.

    Args:
        name: one of the words of ``Outcome.fixes``, with a number if there are several.
        apply: a function that applies it and checks again.
        text: what is printed with it.
        settles: what it should fix at least, or None for everything that routes can fix.
        may_move: destinations whose probes it may lead elsewhere, because that is what the user has
            answered.
    """

    name: str
    apply: Callable[[Rebuilt], OverlapReport]
    text: tuple[str, ...]
    settles: tuple[IpNetwork, ...] | None = None
    may_move: tuple[IpNetwork, ...] = ()


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
        if commands:
            tool("sh", "-ec", "\n".join(commands))
        found = host.check()
        if report.reason_kind is None or not found.fix.entries.is_wanted:
            return found
        host.install(found)  # the first check couldn't judge
        return attrs.evolve(host.check(), fix=found.fix)

    def reply(host: Rebuilt, given: Mapping[str, Any]) -> OverlapReport:
        found = host.check(**given)
        if not found.fix.entries.is_wanted:
            return found
        host.install(found, **given)
        return attrs.evolve(host.check(**given), fix=found.fix)

    def act(host: Rebuilt) -> OverlapReport:
        found = host.check(**case.answer) if case.answer else report
        printed = _printed(report) + _printed(found)
        assert case.advised in printed, (
            f"the advice doesn't contain {case.advised!r}; it says: {printed}"
        )
        host.run(case.does)
        return reply(host, case.answer)

    said = report.fix.consequences
    if report.fix.entries.is_wanted:
        yield _Attempt("rule" if report.fix.rules else "route", apply, said)
    for number, line in enumerate(said, 1):
        for text in _KEEP.findall(line):
            if case.gateway or "GATEWAY" not in text:
                given = json.loads(f"[{text}]".replace("GATEWAY", case.gateway))
                keep = [Keep(each) if isinstance(each, str) else Keep(**each) for each in given]
                name = "route with keep" if report.fix.entries.is_wanted else "keep"
                yield _Attempt(f"{name} {number}", partial(apply, keep=keep), said)
    reasons = tuple(each.reason for each in report.fix.unfixable)
    by_command = {each.ranges: _COMMAND.findall(each.reason) for each in report.fix.unfixable}
    by_command[()] = _COMMAND.findall(report.reason or "")
    settled = tuple(chain(*(ranges for ranges, commands in by_command.items() if commands)))
    for number, commands in enumerate(zip_longest(*filter(None, by_command.values())), 1):
        apply_all = partial(apply, commands=[*filter(None, commands)])
        text = (report.reason or "", *reasons, *said)
        yield _Attempt(f"command {number}", apply_all, text, settled)
    numbers = count(1)
    asked = tuple(chain(*(each.ranges for each in report.fix.unfixable)))
    for each in report.fix.unfixable:
        for text in _ANSWERS.findall(each.reason):
            named = json.loads(
                f'{{"expectedCidrs": [{text}]}}' if text[0] == "{" else f"{{{text}}}"
            )
            rows = named.get("expectedCidrs", [])
            devs = {*chain(named.get("uplinks", ()), *(row["devs"] for row in rows))}
            yield _Attempt(
                f"answer {next(numbers)}",
                partial(reply, given=named),
                (each.reason,),
                each.ranges,
                may_move=() if devs.issuperset(each.devs) else asked,
            )
    if case.advised:
        yield _Attempt("owner", act, (_printed(report),), report.cidrs, report.cidrs)


def _printed(report: OverlapReport) -> str:
    return "\n".join([report.reason or "", *advice(report)])


def _result(attempt: _Attempt, case: Case, root: Path, before: _Before) -> str | None:
    """Return what an attempt broke, an empty string if it led every probe as expected, or None if
    it did neither.
    """
    report = before.report
    told = [part for each in report.fix.unfixable for part in each.ranges]
    if attempt.settles is not None:
        told = [part for part in told if not any(map(part.overlaps, attempt.settles))]
    with Rebuilt(case, root) as host:
        after = attempt.apply(host)
        if attempt.name.startswith("answer"):
            told += [part for each in after.fix.unfixable for part in each.ranges]
        failing = [part for each in after.findings for part in each.ranges]
        left = [str(part) for part in failing if not any(map(part.overlaps, told))]
        if report.reason_kind is not None:
            left = []  # these failed before, but couldn't be judged
        if after.reason_kind is not None or left:
            return f"then {after.reason_kind or ' '.join(left)}"
        lost = [*_lost(attempt, before, host, after)]
        leaves = host.leaves()
    for probe, earlier, later in zip(case.probes, before.leaves, leaves, strict=True):
        may_move = any(probe.to in part for part in attempt.may_move)
        if later not in (earlier, probe.expected) and not may_move:
            lost.append(f"{probe.to}: {earlier} -> {later}")
    if lost:
        return "loses " + "; ".join(lost)
    return (
        ""
        if all(later == probe.expected for probe, later in zip(case.probes, leaves, strict=True))
        else None
    )


def _lost(attempt: _Attempt, before: _Before, host: Rebuilt, after: OverlapReport) -> Iterator[str]:
    """Yield a line for each kind of packets that went well, go elsewhere now, and weren't named."""
    report = before.report
    meant = [part for finding in report.findings for part in finding.ranges]
    if report.reason_kind is not None:
        meant += report.cidrs
    found = losses(before.ways, host.ways(before.ways), meant, before.owners, report.default_devs)
    lines = "\n".join((*attempt.text, *after.fix.consequences)).splitlines()
    gone = before.owners.keys() - host.owners.keys() if attempt.name == "owner" else set()
    gone_devs = {*before.owners.values()} - {*host.devs, ""}

    def is_known(loss: Loss) -> bool:
        ends = {loss.packet.to, loss.packet.source}
        is_owners = attempt.name == "owner" and (
            any(loss.packet.to in part for part in attempt.may_move)
            or bool(ends & gone)  # the whole network moves
            or loss.packet.arrives_on in gone_devs
        )
        return is_owners or before.is_tie(loss) or any(map(loss.is_named, lines))

    return sorted_out(loss for loss in found if not is_known(loss))
