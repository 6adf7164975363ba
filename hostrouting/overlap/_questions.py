"""Find the answers to questions about routes that may be there on purpose.

This module does no I/O.

``_diversions`` raises the questions, for example about a route through a second NIC. Each answer is
a change of the config. To try an answer, the check and the search for a fix run again with the
changed config, on the model of the host. An answer is given only if it settles its question, and
comes with a clause on the packets that the resulting fix diverts or drops.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter, itemgetter

import attrs

from hostrouting.config.routing import Config, ExpectedCidr, StaticRoute
from hostrouting.kernel.model import Model
from hostrouting.model.errors import ConfigError, RouteError
from hostrouting.model.family import IpNetwork
from hostrouting.model.integer_prefixes import PrefixSet, numbers
from hostrouting.model.parsing import is_device, is_inside
from hostrouting.model.routes import Route, destination_words
from hostrouting.model.text import counted, shortened
from hostrouting.model.values import frozen
from hostrouting.overlap._cautions import Caution
from hostrouting.overlap._diversions import Diversions
from hostrouting.overlap._fewest_prefixes import networks_of
from hostrouting.overlap._group import findings_and_notes
from hostrouting.overlap._judge import Judge
from hostrouting.overlap._modelled_host import host_now
from hostrouting.overlap._places import Judgement, Place, Places, Span
from hostrouting.overlap._read import Moment, moment_with
from hostrouting.overlap.findings import EXEMPTIONS, Finding, FindingKind
from hostrouting.overlap.proposals import Answer, AnswerKind, Fix, Obstacle, Question, Unfixable

# Each question takes up to two trials. Two more trials are about all questions together.
_QUESTIONS_MAX = 4

# A trial takes as long as a check. On a host with more spans than this, an answer is only tried if
# it settles all questions at once.
_SPANS_MAX = 2000

# Limits for human-readable lines.
_SHOWN_ENTRIES = 2
_SHOWN_LOSSES = 8
_SHOWN_PARTS = 4

FindFix = Callable[[Sequence[Finding], Moment, Config], tuple[Fix, Sequence[Caution]]]
"""Finds the fix for findings, with its cautions. The fix's questions have no answers yet."""


@frozen(eq=False)
class _Outcome:
    """The result of a check with an answer in its config.

    Args:
        left: the failures that the fix of that check leaves.
        proposed: a clause on the entries of the fix.
        after: a clause on the packets that these entries take away, and on how long each run then
            waits for a missing default route.
        broken: the failures of ``left`` that are new: without the answer, they don't fail.
    """

    left: tuple[Unfixable, ...] = ()
    proposed: str = ""
    after: str = ""
    broken: tuple[Unfixable, ...] = ()

    @property
    def effect(self) -> str:
        """Return both clauses."""
        return f"{self.proposed}{self.after}"

    def left_of(self, ranges: Iterable[IpNetwork]) -> list[tuple[list[IpNetwork], Unfixable]]:
        """Return the failures left in ranges, each with the parts of the ranges that fail."""
        ranges = [*ranges]
        found: list[tuple[list[IpNetwork], Unfixable]] = []
        for each in self.left:
            parts = [
                max(part, other, key=attrgetter("prefixlen"))
                for part in ranges
                for other in each.ranges
                if part.overlaps(other)
            ]
            if parts:
                found.append((parts, each))
        return found


class Questions:
    """The questions to the operator about a host.

    Args:
        moment: the host, with judged places.
        config: the config, without an answer.
        diversions: the routes that may divert packets on purpose.
        fix: the fix without an answer.
        cautions: the cautions about the fix.
        find_fix: the search for a fix.
    """

    def __init__(
        self,
        moment: Moment,
        config: Config,
        diversions: Diversions,
        fix: Fix,
        cautions: Iterable[Caution],
        find_fix: FindFix,
    ) -> None:
        self._moment = moment
        self._state = moment.state
        self._places = moment.places
        self._config = config
        self._diversions = diversions
        self._fix = fix
        self._facts = {caution.fact for caution in cautions}
        self._find_fix = find_fix
        self._uplinks = moment.state.uplinks.devs
        self._devs: set[str] = set()
        # The outcome of each tried answer. Several questions may have the same answer.
        self._outcomes: dict[Answer, _Outcome | None] = {}

    def answered(self) -> tuple[Unfixable, ...]:
        """Return the failures that no entry fixes, with the answers to their questions.

        A failure whose question has no helpful answer is returned with a reason instead.
        """
        # If an answer names one of the interfaces asked about as an uplink, it must name all of
        # them. Interfaces with a name that no config accepts must be renamed first.
        for each in self._fix.unfixable:
            if each.obstacle.question is not None:
                self._devs.update(filter(is_device, each.obstacle.question.devs))
        completed: list[Unfixable] = []
        more: list[Unfixable] = []
        asked = 0
        for each in self._fix.unfixable:
            if each.obstacle.question is None:
                completed.append(each)
            elif asked < _QUESTIONS_MAX:
                asked += 1
                completed.append(self._completed(each, each.obstacle.question))
            else:
                more.append(each)
        return (*completed, *_joined(more, self._places))

    def _completed(self, unfixable: Unfixable, question: Question) -> Unfixable:
        """Return an ``Unfixable`` with the answers to its question, and with a reason."""
        obstacle = unfixable.obstacle
        reason = obstacle.reason
        if question.is_ours:
            question, about = self._about_ours(unfixable, question)
            reason = f"{reason}: {about}" if reason else about
        elif not reason:
            reason = _on_purpose([question])
        unnameable = [dev for dev in (*question.devs, *self._uplinks) if not is_device(dev)]
        if unnameable:
            names = ", ".join(unnameable)
            rename = f"{reason}, but {names} has a name that no config accepts: rename it"
            return attrs.evolve(unfixable, obstacle=Obstacle(rename))
        question = self._answered(unfixable, question)
        if question.answers:
            obstacle = obstacle._replace(reason=reason, question=question)
        else:
            reason = f"{reason}: {question.otherwise}" if question.otherwise else reason
            obstacle = obstacle._replace(reason=reason, question=None)
        return attrs.evolve(unfixable, obstacle=obstacle)

    def _about_ours(self, unfixable: Unfixable, question: Question) -> tuple[Question, str]:
        """Return a question about our own static routes, and a clause that names them."""
        ours = self._our_routes(unfixable.ranges, {*question.devs})
        listed = shortened([*map(str, ours)], ", ", _SHOWN_ENTRIES)
        what = "is a static route" if len(ours) == 1 else "are static routes"
        question = question._replace(devs=tuple(sorted({d for route in ours for d in route.devs})))
        through = ",".join(question.devs)
        by_destination = {route.destination for route in ours}
        for static in self._config.static_routes.routes:
            if static.dev is not None and static.destination in by_destination:
                # The question is about the config itself, whose static routes and uplinks
                # contradict each other, and not about what an earlier run has installed.
                question = question._replace(is_ours=False)
                return question, f"{listed} {what} of this config, which names {static.dev}"
        uplinks = ",".join(self._uplinks)
        return question, f"{listed} {what} through {through}, but the uplink is now {uplinks}"

    def _our_routes(self, ranges: Iterable[IpNetwork], devs: set[str]) -> list[Route]:
        """Return our installed routes that overlap ``ranges`` and lead through any of ``devs``."""
        return [
            route
            for route in self._state.routes
            if route.is_ours
            and not devs.isdisjoint(route.devs)
            and any(map(route.destination.overlaps, ranges))
        ]

    def _lists_ours(self, unfixable: Unfixable, question: Question) -> bool:
        """Return whether the config lists our static routes that a question is about."""
        listed = {static.destination for static in self._config.static_routes.routes}
        ours = self._our_routes(unfixable.ranges, {*question.devs})
        return listed.issuperset(route.destination for route in ours)

    # --- possible answers -------------------------------------------------------------------------

    def _answered(self, unfixable: Unfixable, question: Question) -> Question:
        """Return a question with the answers that settle the question, each with its effect."""
        proven: list[Answer] = []
        for answer in self._possible_answers(unfixable, question):
            outcome = self._outcome(answer)
            may_break = question.is_ours or answer.kind is AnswerKind.REPLACING
            if outcome is None or (outcome.broken and not may_break):
                continue
            left = outcome.left_of(unfixable.ranges)
            if not left:
                effect = self._effect_without_failure(answer, outcome, unfixable, question)
            elif answer.kind is not AnswerKind.UNWANTED:
                continue  # only this kind of answer may leave a part of the addresses failing
            elif _size(part for parts, _ in left for part in parts) == _size(unfixable.ranges):
                # The answer fixes none of the addresses: show the reasons instead of the answer.
                reasons = dict.fromkeys(each.obstacle.sentence() for _, each in left)
                question = question._replace(otherwise="; ".join(reasons))
                continue
            else:
                effect = outcome.effect + _failing_with(left, answer.uplinks, "still ")
            proven.append(answer._replace(effect=effect))
        return question._replace(answers=tuple(proven))

    def _effect_without_failure(
        self,
        answer: Answer,
        outcome: _Outcome,
        unfixable: Unfixable,
        question: Question,
    ) -> str:
        """Return the effect of an answer after which no address of its question fails.

        Args:
            answer: the answer that was tried.
            outcome: the result of a check with the answer. Other addresses may fail in it.
            unfixable: the addresses that the question is about.
            question: the question that it answers.
        """
        effect = outcome.effect
        if self._moves_ours(answer, unfixable, question):
            effect = f", and apply moves them there{outcome.after}"
        if answer.kind is AnswerKind.REPLACING:
            parts = [part for each in outcome.broken for part in each.ranges]
            failing = f"; then {_words(parts)} fails" if parts else ""
            return f"{self._move_of_listed()}{effect}{failing}"
        broken = [(list(each.ranges), each) for each in outcome.broken]
        return effect + _failing_with(broken, answer.uplinks)

    def _move_of_listed(self) -> str:
        """Return a clause on the listed routes, which inherit from other uplinks then."""
        static = self._config.static_routes.of(self._state.family)
        moved = [str(route.destination) for route in static if route.dev is None]
        if not moved:
            return ""
        return f", and hostrouting apply moves {shortened(moved, ', ', _SHOWN_ENTRIES)} there"

    def _moves_ours(self, answer: Answer, unfixable: Unfixable, question: Question) -> bool:
        """Return whether an answer moves the static routes that a question is about."""
        is_kept = answer.kind is AnswerKind.WANTED
        return question.is_ours and not is_kept and self._lists_ours(unfixable, question)

    def _outcome(self, answer: Answer) -> _Outcome | None:
        if answer not in self._outcomes:
            self._outcomes[answer] = self._outcome_of_check(answer)
        return self._outcomes[answer]

    def _possible_answers(self, unfixable: Unfixable, question: Question) -> Iterator[Answer]:
        """Yield the possible answers, the likeliest first."""
        spans = _spans(unfixable, self._places)
        cidrs = dict.fromkeys(expected for expected, _ in _failing(spans))
        if question.is_ours:
            yield Answer(AnswerKind.WANTED, question.devs)
            yield Answer(AnswerKind.UNWANTED, self._uplinks)
            return
        # If a CIDR with pods named its interfaces, the exemption would end.
        if len(self._places.spans) <= _SPANS_MAX and not self._exempting.intersection(cidrs):
            if question.near:
                outside = self._carrying_outside({*spans})
                devs = {each: {question.near, *outside.get(each, ())} for each in cidrs}
                yield _of_cidrs(AnswerKind.NEAR, devs)
            devs = {each: {*question.devs, *self._carrying[each]} for each in cidrs}
            yield _of_cidrs(AnswerKind.WANTED, devs)
        yield Answer(AnswerKind.WANTED, self._wanted)
        # If the addresses are in another interface's network, routes would lead packets for that
        # interface's neighbours through the uplinks.
        if not question.near or question.near in self._uplinks:
            yield Answer(AnswerKind.UNWANTED, self._uplinks)
        rivals = self._diversions.rivals(self._devs)
        if not rivals.isdisjoint(question.devs):
            yield Answer(AnswerKind.REPLACING, tuple(sorted(rivals)))

    @property
    def _wanted(self) -> tuple[str, ...]:
        """Return the uplinks to name if all interfaces asked about are wanted.

        The host's uplinks stay uplinks, because static routes inherit from their default route.
        """
        return tuple(sorted(self._devs.union(self._uplinks)))

    @cached_property
    def _carrying(self) -> dict[ExpectedCidr, set[str]]:
        """Map each expected CIDR without ``devs`` to the interfaces that may carry a part of it.

        An interface that a question is about is included if it carries a part now. An uplink is
        also included if it carries a part only after a fix.
        """
        return self._carrying_outside(())

    def _carrying_outside(self, spans: Container[Span]) -> dict[ExpectedCidr, set[str]]:
        """Return ``_carrying`` for the places with spans other than the given ones."""
        carrying: dict[ExpectedCidr, set[str]] = {}
        for place in self._places:
            if all(span in spans for span in place.spans):
                continue
            for expected, judgement in _unlimited(place):
                carrying.setdefault(expected, set()).update(self._carriers(judgement))
        return carrying

    def _carriers(self, judgement: Judgement) -> set[str]:
        """Return the interfaces that ``_carrying`` includes because of a judgement."""
        is_sent = judgement.kind is None or judgement.kind is FindingKind.OVERLAP
        devs = {*judgement.devs} if is_sent else set[str]()
        now = devs & self._devs
        # Routes may lead parts of a place through several uplinks, so all of them are named.
        if not devs.isdisjoint(self._uplinks) or (judgement.is_failure and not now):
            return now.union(self._uplinks)
        return now

    @cached_property
    def _exempting(self) -> set[ExpectedCidr]:
        """Return the expected CIDRs with exempt parts, or with parts beyond an exemption's bounds.

        For example, pods' networks are exempt. A CIDR with named interfaces has no exemptions, so
        no answer may name interfaces for such a CIDR.
        """
        return {
            expected
            for place in self._places
            for expected, judgement in _unlimited(place)
            if judgement.kind in EXEMPTIONS or judgement.bound
        }

    # --- trials -----------------------------------------------------------------------------------

    def _outcome_of_check(self, answer: Answer) -> _Outcome | None:
        """Return the outcome of a check with an answer, or None if the answer mustn't be offered.

        There are four such cases. With the answer, the config is invalid, the uplinks are unknown,
        or this host no longer receives packets to its addresses. Or a failure disappears that no
        question is about.
        """
        try:
            config = self._with_answer(answer)
            moment = moment_with(config, self._moment, self._model)
        except (ConfigError, RouteError):
            return None
        if moment.state.uplinks.unknown or moment.not_received:
            return None
        overlap = config.route_overlap
        Judge(overlap, moment.state).judge(moment.places)
        findings, _ = findings_and_notes(overlap, moment.state, moment.places)
        waits = self._waits(config, moment)
        if not findings:
            return None if self._unasked else _Outcome(after=waits)
        fix, cautions = self._find_fix(findings, moment, config)
        if self._hides(_ranges_of(findings)):
            return None
        proposed = self._proposed(fix)
        after = self._after(cautions) if proposed else ""
        broken = [each for each in fix.unfixable if not all(map(self._fails_now, each.ranges))]
        return _Outcome(fix.unfixable, proposed, f"{after}{waits}", tuple(broken))

    def _hides(self, failing: Iterable[IpNetwork]) -> bool:
        """Return whether an answer makes a failure disappear that no question is about.

        Args:
            failing: the addresses that fail with the answer, before the fix.
        """
        covered = PrefixSet(map(numbers, failing), self._state.family.bits)
        return not all(covered.overlaps(span.first, span.last) for span in self._unasked)

    @cached_property
    def _unasked(self) -> list[Span]:
        """Return the failing spans without a question, and the spans of unreachable pods."""
        with_question = (each for each in self._fix.unfixable if each.obstacle.question is not None)
        asked = PrefixSet(map(numbers, _ranges_of(with_question)), self._state.family.bits)
        return [
            span
            for span in self._places.spans
            for _, judgement in _unlimited(span.place)
            if judgement.is_failure
            and (
                not asked.overlaps(span.first, span.last)
                or self._diversions.taken_from_pods(judgement)
            )
        ]

    @cached_property
    def _model(self) -> Model:
        return host_now(self._state, self._places).model

    def _with_answer(self, answer: Answer) -> Config:
        if answer.uplinks:
            return attrs.evolve(self._config, uplinks=answer.uplinks)
        overlap = self._config.route_overlap
        named = {each.cidr: each for each in answer.cidrs}
        expected = [
            named.get(each.cidr, each) if each.devs is None else each
            for each in overlap.expected_cidrs
        ]
        overlap = attrs.evolve(overlap, expected_cidrs=tuple(expected))
        return attrs.evolve(self._config, route_overlap=overlap)

    def _proposed(self, fix: Fix) -> str:
        """Return a clause on the entries proposed only after an answer."""
        now = self._fix
        routes_now = set(map(self._led, now.routes))
        routes = set(map(self._led, fix.routes)) - routes_now
        rules = {*fix.rules}.difference(now.rules)
        counts = [
            _count(len(routes), "more route" if now.routes else "route"),
            _count(len(rules), "more rule" if now.rules else "rule"),
        ]
        proposed = " and ".join(filter(None, counts))
        if not proposed:
            return ""
        return f", and hostrouting fix proposes {proposed}"

    def _after(self, cautions: Iterable[Caution]) -> str:
        """Return a clause on the losses that come only with an answer's entries."""
        new = [each.fact for each in cautions if each.fact not in self._facts]
        return f", after which {shortened(new, '; ', _SHOWN_LOSSES)}" if new else ""

    def _led(self, static: StaticRoute) -> tuple[IpNetwork, object, object]:
        """Return a static route's destination, gateway and interface, by default the uplink."""
        return static.destination, static.gateway, static.dev or ",".join(self._uplinks)

    def _waits(self, config: Config, moment: Moment) -> str:
        """Return a clause if runs with an answer would wait for a default route that is missing."""
        uplinks = moment.state.uplinks
        if config.uplinks is None or uplinks.default is not None or not config.wait_seconds:
            return ""
        on = ",".join(config.uplinks)
        return f" (each run then waits {config.wait_seconds} s for a default route through {on})"

    def _fails_now(self, network: IpNetwork) -> bool:
        """Return whether all addresses in a network fail already, without an answer."""
        return all(
            any(each.is_failure for found in span.place.judgements.values() for each in found)
            for span in self._places.overlapping(numbers(network))
        )


def _ranges_of(failures: Iterable[Finding | Unfixable]) -> list[IpNetwork]:
    return [part for failure in failures for part in failure.ranges]


def _of_cidrs(kind: AnswerKind, devs: Mapping[ExpectedCidr, Iterable[str]]) -> Answer:
    cidrs = tuple(ExpectedCidr(each.cidr, sorted(named)) for each, named in devs.items())
    return Answer(kind, cidrs=cidrs)


def _count(number: int, name: str) -> str:
    return counted(number, name) if number else ""


def _joined(more: Iterable[Unfixable], places: Places) -> Iterator[Unfixable]:
    """Join the failures with further questions, so that each group of interfaces has one failure.

    A user who has answered the first questions runs the check again, and sees the next ones.
    """
    by_devs: dict[tuple[str, ...], list[Unfixable]] = {}
    for each in more:
        by_devs.setdefault(each.devs, []).append(each)
    for devs, group in by_devs.items():
        questions = [each.obstacle.question for each in group]
        asked = [question for question in questions if question is not None]
        about = f"{_on_purpose(asked)}, too: answer the other questions, and check again"
        spans = {span for each in group for span in _spans(each, places)}
        ranges = networks_of(sorted(spans, key=itemgetter(0)), places.family)
        yield Unfixable(ranges, devs, Obstacle(about, is_withheld=True))


def _spans(unfixable: Unfixable, places: Places) -> list[Span]:
    return [span for part in unfixable.ranges for span in places.overlapping(numbers(part))]


def _unlimited(place: Place) -> Iterator[tuple[ExpectedCidr, Judgement]]:
    """Yield the judgements of a place for each expected CIDR without interfaces of its own."""
    for expected, judgements in place.judgements.items():
        if expected.devs is None:
            for judgement in judgements:
                yield expected, judgement


def _failing(spans: Iterable[Span]) -> Iterator[tuple[ExpectedCidr, Judgement]]:
    for span in spans:
        for expected, judgement in _unlimited(span.place):
            if judgement.is_failure:
                yield expected, judgement


def _on_purpose(questions: Iterable[Question]) -> str:
    entries = dict.fromkeys(str(question.entry) for question in questions)
    return f"{shortened([*entries], ', ', _SHOWN_ENTRIES)} may be there on purpose"


def _failing_with(
    failures: Iterable[tuple[Sequence[IpNetwork], Unfixable]],
    uplinks: Iterable[str],
    still: str = "",
) -> str:
    """Return a clause for each failure with an answer's uplinks.

    Args:
        failures: the failures, each with the addresses that fail.
        uplinks: the uplinks that the answer names.
        still: the word before "fails" for addresses that also fail without the answer.
    """
    named = ",".join(uplinks)
    clauses = [
        f"{_words(parts)} {still}fails with {named} as uplink: {each.reason}"
        for parts, each in failures
    ]
    return "".join(f"; {clause}" for clause in clauses)


def _size(networks: Iterable[IpNetwork]) -> int:
    """Return how many addresses are in networks, of which some may be nested in others."""
    outermost: list[IpNetwork] = []
    for network in sorted(networks, key=numbers):
        if not outermost or not is_inside(network, outermost[-1]):
            outermost.append(network)
    return sum(network.num_addresses for network in outermost)


def _words(networks: Sequence[IpNetwork]) -> str:
    return shortened([*map(destination_words, networks)], " ", _SHOWN_PARTS)
