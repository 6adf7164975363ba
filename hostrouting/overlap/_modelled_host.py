"""Model the host after a fix: which routes would be refused, and which connections still fail.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import attrs

from hostrouting.config.routing import ExpectedCidr, RouteOverlap, StaticRoute
from hostrouting.kernel.model import Model
from hostrouting.kernel.sources import SourceKey, source_key_to
from hostrouting.model.errors import RouteError
from hostrouting.model.family import IpAddress
from hostrouting.model.integer_prefixes import Prefix, PrefixSet, numbers
from hostrouting.model.routes import Table
from hostrouting.model.values import frozen
from hostrouting.overlap._ask import Sockets, called_addresses
from hostrouting.overlap._judge import Judge
from hostrouting.overlap._places import Judgement, Place, Places, distinct
from hostrouting.overlap._state import State
from hostrouting.routes.plan import plan_routes
from hostrouting.routes.resolve import resolve
from hostrouting.routes.verify import losing_routes


@frozen(eq=False, repr=False, slots=False)
class ModelledHost:
    """A model of a host, with or without a fix. It knows the sources that the kernel has reported.

    Args:
        state: the host's state, perhaps without changes of a fix. ``model`` has all changes.
        places: the places, with the lookups before the fix.
        model: the model of the host.
    """

    state: State
    places: Places
    model: Model

    def refusals(self) -> dict[Prefix, str]:
        """Map the destinations of new routes that an installation would refuse to the reasons."""
        added = self.model.added
        reasons = {
            numbers(route.destination): refusal.message
            for route, refusal in losing_routes(added, self.model)
        }
        for failure in self.model.refused():
            reasons[numbers(failure.route.destination)] = failure.message
        return reasons

    def judged(
        self,
        overlap: RouteOverlap,
        places: Iterable[Place] | None = None,
    ) -> list[Rejudged]:
        """Judge places on the model, by expected CIDR in config order.

        The model is asked only about places that its changes reach. Other places keep their
        judgements.

        Args:
            overlap: the expected CIDRs.
            places: some of the places, or None for all.
        """
        state = self.state
        routes = self.model.known.routes
        called = called_addresses(state.addresses, state.uplinks.devs, state.rules)
        sockets = Sockets(self.model, state.rules, routes, state.family, called)
        wanted = dict.fromkeys(self.places if places is None else places)
        lookups = sockets.ask(filter(self._is_changed, wanted))
        judge = Judge(overlap, attrs.evolve(state, routes=routes))
        judged: list[Rejudged] = []
        for expected in dict.fromkeys(overlap.expected_cidrs):
            for place in distinct(self.places.overlapping(numbers(expected.cidr))):
                if place in lookups:
                    judgements = judge.judge_place(lookups[place], expected)
                    judged.append(Rejudged(expected, place, judgements))
                elif place in wanted:
                    judged.append(Rejudged(expected, place, place.judgements[expected]))
        return judged

    def _is_changed(self, place: Place) -> bool:
        return any(self._changed.overlaps(span.first, span.last) for span in place.spans)

    @cached_property
    def _changed(self) -> PrefixSet:
        return PrefixSet(self.model.changed, self.state.family.bits)


class Rejudged(NamedTuple):
    """The judgements of a place for an expected CIDR, on the model of a host after a fix."""

    expected: ExpectedCidr
    place: Place
    judgements: tuple[Judgement, ...]

    @property
    def other_failures(self) -> list[Judgement]:
        """Return the failures of the place's other lookups: connections, replies and TCP.

        A fix may change the source that the kernel selects for a connection. With another source,
        the connection may match other rules.
        """
        return [judgement for judgement in self.judgements[1:] if judgement.is_failure]


def why_ineffective(judged: Iterable[Rejudged], fixed: Container[int]) -> str:
    """Return why a fix fails its purpose, or an empty string.

    Two kinds of places must not fail after the fix: places that don't fail now, and those in
    ``fixed``. All other places may fail as before.

    Args:
        judged: the judgements on the model after the fix.
        fixed: addresses, as integers; with them, the probe of each place that the fix has a route
            for.
    """
    for expected, place, (after, *_) in judged:
        if not after.is_failure:
            continue
        if not place.unconnected_for(expected).is_failure:
            return f"{after.address} would fail ({after.kind}), though it doesn't now"
        if int(place.probe) in fixed:
            return f"{after.address} would still fail ({after.kind})"
    return ""


def host_now(state: State, places: Places) -> ModelledHost:
    """Return the model of a host as it is, without a fix."""
    known = attrs.evolve(state.model.known, sources=_reported_sources(places))
    return ModelledHost(state, places, attrs.evolve(state.model, known=known))


def _reported_sources(places: Places) -> dict[SourceKey, tuple[IpAddress, ...]]:
    """Return the sources that the kernel has reported, with the keys of ``source_key_to``."""
    reported: dict[SourceKey, dict[IpAddress, None]] = {}
    for place in places:
        key: SourceKey = ()
        for lookup in place.lookups:
            if lookup.source is None:
                key = source_key_to(lookup.address, lookup.route)
            elif not lookup.is_reply:
                reported.setdefault(key, {})[lookup.source] = None
    return {key: tuple(sources) for key, sources in reported.items()}


def host_after(
    state: State,
    places: Places,
    entries: Sequence[StaticRoute],
    targets: Mapping[int, str | None],
) -> ModelledHost | str:
    """Return the model of a host with the routes of some entries, or why these routes don't work.

    The result proves two things for datagrams. Packets to each target leave through its interface.
    Packets to every other address that an entry covers leave as before.
    ``why_ineffective`` then compares the judgements. Connections, replies and TCP that still fail
    are in ``Rejudged.other_failures``. In the model's tables, the new routes come before existing
    routes with the same key.

    Args:
        state: the host's state.
        places: the places, with the lookups before the fix.
        entries: the static routes to try.
        targets: the addresses to fix, each with the interface that packets must leave through, or
            None for the uplinks.
    """
    main = [route for route in state.routes if route.table == Table.MAIN]
    try:
        routes, missing = resolve(entries, state.links, state.addresses, main, state.uplinks.named)
        # Without our existing routes, the plan only adds the new routes, and removes no route.
        plan = plan_routes(routes, [route for route in main if not route.is_ours])
    except RouteError as error:
        return error.clause
    if missing:
        return missing
    host = host_now(state, places)
    model = host.model.with_routes(plan.add)
    reason = _why_not_fixed(state, model, targets) or _why_others_change(host, model, targets)
    return reason or attrs.evolve(host, model=model)


def _why_not_fixed(state: State, model: Model, targets: Mapping[int, str | None]) -> str:
    """Return why an address that the entries are to fix still fails, or an empty string."""
    for number, dev in targets.items():
        address = state.family.address(number)
        devs = state.uplinks.devs if dev is None else (dev,)
        route = model.fib.lookup(address).route
        if route is None or not set(route.devs) <= set(devs):
            silent = [
                f"{gateway} on {by} doesn't answer"
                for by, gateway in sorted(state.silent_routers, key=str)
            ]
            return "; ".join([f"{address} would still not leave through {','.join(devs)}", *silent])
    return ""


def _why_others_change(host: ModelledHost, model: Model, targets: Container[int]) -> str:
    """Return why added routes affect an address that isn't a target, or an empty string.

    The search finds no routes that do so, but a proof must not rely on the search.
    """
    for route in model.added:
        prefix = numbers(route.destination)
        for span in host.places.overlapping(prefix):
            number = max(prefix[0], span.first)
            if number in targets:
                continue
            address = host.state.family.address(number)
            before = host.model.fib.lookup(address)
            after = model.fib.lookup(address)
            if after != before:
                devs = "no interface" if after.route is None else ",".join(after.route.devs)
                return f"{address} would leave through {devs}, and no longer as it does now"
    return ""
