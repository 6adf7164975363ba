"""Explain each lookup that a socket makes for one address, rule by rule and table by table.

The kernel decides the result, and a model of its tables shows the path. Where the two differ, the kernel is right, and
the explanation says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import attrs

from hostrouting.config.routing import Config, ExpectedCidr
from hostrouting.kernel.fib import Fib
from hostrouting.kernel.nexthops import in_turn, spread
from hostrouting.kernel.port import RouteBackend, at_one_moment
from hostrouting.kernel.rules import NO_SOURCE, TCP, UDP, Flow, why_unmet
from hostrouting.kernel.snapshot_backend import are_merged
from hostrouting.model.jsonable import JsonObject, fields_in_json, in_json
from hostrouting.model.routes import Lookup, Route, RouteType, Table, word_of
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.overlap._classify import Classification, classify_each, sends
from hostrouting.overlap._state import Probe, State, read_once
from phases import CancelScope


@attrs.frozen
class Step(JsonObject):
    """A rule that a lookup reaches.

    Args:
        rule: the rule.
        passed: why the kernel goes on to the next rule, or None if this rule decides.
        route: the longest match in the rule's table, or None if there is none or the rule doesn't look up a table.
    """

    json_names = ("preference", "rule", "passed", "route")

    rule: Rule
    passed: str | None
    route: Route | None

    @property
    def preference(self) -> int:
        """Return the preference of the rule."""
        return self.rule.preference


@attrs.frozen
class ExplainedLookup:
    """A lookup, with all rules that it reaches.

    Args:
        classification: what the kernel's answer means.
        steps: the rules up to the one that decides, according to the tables.
        sources: the sources that the kernel may choose if the lookup has no source.
        is_modelled: whether the model gives the same result as the kernel.
        sends: whether packets use the lookup. If not, it only chooses the source of a connection, which then makes
            another lookup.
    """

    classification: Classification
    steps: tuple[Step, ...]
    sources: tuple[IPv4Address, ...]
    is_modelled: bool
    sends: bool

    def to_json(self) -> dict[str, Any]:
        """Return the lookup as JSON."""
        probe = self.classification.probe
        ends = {"protocol": "tcp" if probe.is_tcp else "udp", "source": in_json(probe.source)}
        meaning = fields_in_json(self.classification, "kind", "devs", "route")
        return ends | meaning | fields_in_json(self, "sources", "sends", "is_modelled", "steps")


@attrs.frozen
class Explanation:
    """The path that packets to an address take.

    Args:
        address: the destination.
        expected: the expected CIDRs that contain the address. If there are none, the address is judged as if it were
            expected.
        default_devs: the uplinks, sorted, or empty if there is no default route to compare with.
        lookups: the lookups that a socket makes, in order.
        is_torn: whether the host changed during every read, so that the result may combine several moments.
    """

    address: IPv4Address
    expected: tuple[ExpectedCidr, ...]
    default_devs: tuple[str, ...]
    lookups: tuple[ExplainedLookup, ...]
    is_torn: bool = False

    @property
    def is_as_expected(self) -> bool | None:
        """Return whether every lookup is as expected, or None if there is no default route to compare with."""
        return (
            not any(each.sends and each.classification.is_failure for each in self.lookups)
            if self.default_devs
            else None
        )

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as JSON."""
        found = fields_in_json(self, "address", "is_as_expected", "default_devs", "lookups", "is_torn")
        return {"schema": 1, **found, "expected": [str(expected) for expected in self.expected]}


# The facts for an explanation: the state, all entries, whether local and main share one trie, and for each lookup its
# classification and the sources that the kernel chooses.
_Found = tuple[State, tuple[Route, ...], "bool | None", list[Classification], list[tuple[IPv4Address, ...]]]


def explain(address: IPv4Address, config: Config, backend: RouteBackend, scope: CancelScope) -> Explanation:
    """Follow an address through rules and tables.

    Args:
        address: the destination, a unicast address.
        config: the config with the expected CIDRs.
        backend: the kernel to query.
        scope: the scope that can cancel the reads.

    Returns:
        The explanation.

    Raises:
        RouteError: the kernel can't be queried.
    """
    overlap = config.route_overlap
    around = tuple(expected for expected in overlap.expected_cidrs if address in expected.cidr)
    network = IPv4Network(address)
    asked = tuple(dict.fromkeys(attrs.evolve(expected, cidr=network) for expected in around))
    narrowed = attrs.evolve(overlap, expected_cidrs=asked or (network,), foreseen=())
    anything = attrs.evolve(narrowed, expected_cidrs=(ExpectedCidr(network, ("*",)),))

    def read() -> _Found:
        state = read_once(attrs.evolve(config, route_overlap=narrowed), backend, needs_uplinks=False)
        assert state is not None
        classifications = classify_each(narrowed if state.uplinks else anything, state, int(address))
        chosen = [_chosen_sources(classification.probe, backend) for classification in classifications]
        return state, backend.routes(), are_merged(state.addresses, backend), classifications, chosen

    found, why_torn = at_one_moment(backend, narrowed.judged, scope, read)
    state, routes, merged, classifications, chosen = found
    fib = attrs.evolve(state, routes=routes).fib
    if merged is not None:
        fib = attrs.evolve(fib, is_merged=merged)

    def model(addresses: Sequence[IPv4Address], **flow: Any) -> list[Lookup]:
        return [fib.lookup(address, **flow) for address in addresses]

    modelled = in_turn(model, fib.routes)

    def explained(classification: Classification, sources: tuple[IPv4Address, ...]) -> ExplainedLookup:
        lookup, source, is_tcp = classification.probe
        steps = [*_steps(fib, Flow(address, source or NO_SOURCE, TCP if is_tcp else UDP))]
        is_modelled = lookup in modelled([address], source=source, is_tcp=is_tcp)
        if is_modelled and lookup.route is not None and lookup.route.destination.prefixlen == 0:
            # The model knows only the first of several default routes that take turns.
            steps[-1] = attrs.evolve(steps[-1], route=lookup.route)
        asked = [each.probe for each in classifications]
        return ExplainedLookup(classification, tuple(steps), sources, is_modelled, sends(classification.probe, asked))

    return Explanation(
        address, around, state.uplinks, tuple(map(explained, classifications, chosen)), why_torn is not None
    )


def _chosen_sources(probe: Probe, backend: RouteBackend) -> tuple[IPv4Address, ...]:
    lookup, source, is_tcp = probe
    route = lookup.route
    if route is None or route.type is RouteType.LOCAL or source is not None:
        return ()
    return backend.sources({route: spread(route, [lookup.address])}, is_tcp=is_tcp)[route]


def _steps(fib: Fib, flow: Flow) -> Iterator[Step]:
    for rule, is_met, route in fib.come_by(flow):
        if is_met and fib.is_merged and route is not None and route.table != rule.table:
            # For the kernel, this rule decided. In the tables that ip shows, the entry belongs to another rule.
            yield Step(rule, _passed(fib, rule, None), None)
            (rule,) = (each for each in fib.rules if each.table == route.table)
        yield Step(rule, _passed(fib, rule, route) if is_met else why_unmet(rule, flow, fib.loopback), route)


def _passed(fib: Fib, rule: Rule, route: Route | None) -> str | None:
    """Return why a matching rule doesn't decide, or None if it does."""
    if rule.action is RuleAction.NOP:
        return "it does nothing"
    if rule.action is RuleAction.GOTO:
        return f"it leads to preference {rule.goto}"
    if rule.action is not RuleAction.TO_TABLE:
        return None
    if route is None:
        return f"table {word_of(rule.table, Table)} has no entry for it"
    if fib.is_final(rule, route):
        return None
    if route.type is RouteType.THROW:
        return f"{route} sends the kernel on to the next rule"
    longest = rule.suppress_prefix_length
    is_short = longest is not None and route.destination.prefixlen <= longest
    why = f"its prefix isn't longer than {longest}" if is_short else f"its interface is of group {rule.suppress_group}"
    return f"{route} is passed over: {why}"
