"""Ask the operator about routes that may be there on purpose, and make the answers.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

from hostrouting.config.routing import ExpectedCidr
from hostrouting.model.parsing import is_device
from hostrouting.model.text import shortened
from hostrouting.overlap._places import Judgement, Place, Places, Span
from hostrouting.overlap.findings import EXEMPTIONS, FindingKind
from hostrouting.overlap.proposals import Obstacle, Question

# A limit for human-readable lines.
_SHOWN_ROUTES = 2


class Questions:
    """The questions to the operator about a host, with their answers.

    Args:
        uplinks: the host's uplinks.
        places: the judged places.
        devs: all interfaces that the questions are about. The answer that keeps one of them must
            keep the others.
    """

    def __init__(self, uplinks: tuple[str, ...], places: Places, devs: Iterable[str]) -> None:
        self._uplinks = uplinks
        self._places = places
        # A config can't name an interface with an odd name, so that one must be renamed first.
        self._devs = {dev for dev in devs if is_device(dev)}

    def completed(self, obstacle: Obstacle, spans: Iterable[Span]) -> Obstacle:
        """Return an obstacle whose reason names the routes, and whose question has the answers.

        Args:
            obstacle: the obstacle, with or without a question.
            spans: the spans that the question is about.
        """
        if obstacle.question is None:
            return obstacle
        devs = obstacle.question.devs
        failing = [*_failing(spans)]
        reason = obstacle.reason or _on_purpose(devs, [judgement for _, judgement in failing])
        unnameable = [dev for dev in (*devs, *self._uplinks) if not is_device(dev)]
        if unnameable:
            names = ", ".join(unnameable)
            return Obstacle(f"{reason}, but {names} has a name that no config accepts: rename it")
        cidrs = dict.fromkeys(expected for expected, _ in failing)
        limited = [
            ExpectedCidr(each.cidr, sorted({*devs, *self._carrying[each]})) for each in cidrs
        ]
        # The answer "wanted" adds the interfaces asked about to the uplinks. The answer "unwanted"
        # names only the uplinks that the host has now.
        question = Question(
            devs,
            wanted=tuple(sorted(self._devs.union(*self._carrying.values()))),
            cidrs=() if self._exempting.intersection(cidrs) else tuple(limited),
            unwanted=self._uplinks,
        )
        return obstacle._replace(reason=reason, question=question)

    @cached_property
    def _carrying(self) -> dict[ExpectedCidr, set[str]]:
        """Map each expected CIDR that names no interfaces to those that may carry a part of it.

        These are the interfaces asked about that carry a part now, and the uplinks if they carry a
        part now or will once it is fixed.
        """
        carrying: dict[ExpectedCidr, set[str]] = {}
        for place in self._places:
            for expected, judgement in _unlimited(place):
                carrying.setdefault(expected, set()).update(self._carriers(judgement))
        return carrying

    def _carriers(self, judgement: Judgement) -> set[str]:
        is_sent = judgement.kind is None or judgement.kind is FindingKind.OVERLAP
        devs = {*judgement.devs} if is_sent else set[str]()
        now = devs & self._devs
        # One place may stand for routes through several uplinks.
        if not devs.isdisjoint(self._uplinks) or (judgement.is_failure and not now):
            return now.union(self._uplinks)
        return now

    @cached_property
    def _exempting(self) -> set[ExpectedCidr]:
        """Return the expected CIDRs with parts that are exempt, or would be without a bound.

        Pods' networks are such parts. If such a CIDR named its interfaces, the exemption would end,
        and routes to those parts would be proposed.
        """
        return {
            expected
            for place in self._places
            for expected, judgement in _unlimited(place)
            if judgement.kind in EXEMPTIONS or judgement.bound
        }


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


def _on_purpose(devs: Iterable[str], failures: Iterable[Judgement]) -> str:
    routes = [
        str(failure.route)
        for failure in failures
        if failure.route is not None and not {*devs}.isdisjoint(failure.route.devs)
    ]
    return f"{shortened([*dict.fromkeys(routes)], '; ', _SHOWN_ROUTES)} may be there on purpose"
