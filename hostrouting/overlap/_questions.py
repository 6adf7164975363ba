"""Ask the user about routes that may be there on purpose, and make the answers.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from hostrouting.config.routing import ExpectedCidr
from hostrouting.model.parsing import is_device
from hostrouting.model.text import shortened
from hostrouting.overlap._cut import Interval
from hostrouting.overlap._judge import Classification, Classifications
from hostrouting.overlap._state import State
from hostrouting.overlap.findings import EXEMPTIONS, FindingKind
from hostrouting.overlap.proposals import Obstacle, Question

# A limit for human-readable lines.
_SHOWN_ROUTES = 2


class Questions:
    """The questions to the user about a host, with their answers.

    Args:
        state: the host's state.
        asked: all interfaces that the questions are about. The answer that keeps one of them must
            keep the others.
        classifications: the result of ``classify_probes``.
    """

    def __init__(
        self,
        state: State,
        asked: Iterable[str],
        classifications: Mapping[ExpectedCidr, Classifications],
    ) -> None:
        self._uplinks = state.uplinks.devs
        self._inside, self._classifications = state.inside, classifications
        # A config can't name the other interfaces. They must be renamed first.
        self._asked = {dev for dev in asked if is_device(dev)}

    def completed(self, obstacle: Obstacle, group: Iterable[Interval]) -> Obstacle:
        """Return an obstacle whose reason names the routes, and whose question has the answers.

        Args:
            obstacle: the obstacle, with or without a question.
            group: the intervals that the question is about.
        """
        if obstacle.question is None:
            return obstacle
        devs = obstacle.question.devs
        failing = [each for interval in group for each in self._failures.get(interval.probed, ())]
        routes = dict.fromkeys(
            str(each.route) for _, each in failing if each.route and {*devs} & {*each.route.devs}
        )
        reason = (
            obstacle.reason
            or f"{shortened([*routes], '; ', _SHOWN_ROUTES)} may be there on purpose"
        )
        if unnameable := [dev for dev in (*devs, *self._uplinks) if not is_device(dev)]:
            return Obstacle(
                f"{reason}, but {', '.join(unnameable)} has a name that no config accepts: rename it"
            )
        cidrs, by = dict.fromkeys(expected for expected, _ in failing), self._carrying
        limited = [ExpectedCidr(each.cidr, sorted({*devs, *by[each]})) for each in cidrs]
        question = Question(
            devs,
            tuple(sorted(self._asked.union(*by.values()))),
            () if self._exempting.intersection(cidrs) else tuple(limited),
            self._uplinks,
        )
        return obstacle._replace(reason=reason, question=question)

    @cached_property
    def _failures(self) -> Mapping[int, Sequence[tuple[ExpectedCidr, Classification]]]:
        """Return the failures of each probe, for all expected CIDRs without interfaces of their own."""
        found: dict[int, list[tuple[ExpectedCidr, Classification]]] = {}
        for expected, probed in self._unlimited:
            failures = (each for each in self._classifications[expected][probed] if each.is_failure)
            found.setdefault(probed, []).extend((expected, each) for each in failures)
        return found

    @cached_property
    def _carrying(self) -> Mapping[ExpectedCidr, set[str]]:
        """Return the interfaces that may carry a part of each expected CIDR without interfaces of its own.

        These are the interfaces asked about that carry a part now, and the uplinks if they carry a
        part now or will once it is fixed.
        """
        found: dict[ExpectedCidr, set[str]] = {}
        for expected, probed in self._unlimited:
            carrying = found.setdefault(expected, set())
            for each in self._classifications[expected][probed]:
                devs = (
                    {*each.devs} if each.kind is None or each.kind is FindingKind.OVERLAP else set()
                )
                carrying.update(devs & self._asked)
                # One probe may stand for routes through several uplinks.
                if not devs.isdisjoint(self._uplinks) or (
                    each.is_failure and devs.isdisjoint(self._asked)
                ):
                    carrying.update(self._uplinks)
        return found

    @cached_property
    def _exempting(self) -> set[ExpectedCidr]:
        """Return the expected CIDRs with parts that are exempt, such as pods' networks, or would be without a bound.

        If such a CIDR named its interfaces, the exemption would end, and routes to those parts
        would be proposed.
        """
        return {
            expected
            for expected, probed in self._unlimited
            if any(
                each.kind in EXEMPTIONS or each.bound
                for each in self._classifications[expected][probed]
            )
        }

    @cached_property
    def _unlimited(self) -> Sequence[tuple[ExpectedCidr, int]]:
        """Return each expected CIDR without interfaces of its own, with each of its probes."""
        return [
            (expected, probed)
            for expected in self._classifications
            if expected.devs is None
            for probed in {each.probed for each in self._inside[expected]}
        ]
