"""Trace each lookup that a socket performs for an address, rule by rule and table by table.

The result comes from the kernel, and the path from a model of its tables. If the two disagree, the
kernel is right, and the explanation points out the mismatch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from hostrouting.config.routing import Config, ExpectedCidr
from hostrouting.kernel.fib import Fib
from hostrouting.kernel.port import RouteBackend, read_consistently, read_routes
from hostrouting.kernel.rules import Flow, why_unmet
from hostrouting.kernel.sources import Sources, spread
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.jsonable import JsonObject, fields_in_json, in_json
from hostrouting.model.routes import Route, Route6, RouteType, Table, word_of
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.model.values import frozen
from hostrouting.overlap._ask import is_modelled, modelled_lookups
from hostrouting.overlap._group import findings_and_notes, without_listed
from hostrouting.overlap._host_notes import notes_on_host
from hostrouting.overlap._judge import Judge, sends_packets
from hostrouting.overlap._places import Judgement, SocketLookup
from hostrouting.overlap._read import read_once, watched
from hostrouting.overlap.findings import Finding, Note, NoteKind
from hostrouting.overlap.uplinks import contested_error
from phases import CancelScope


@frozen
class Step(JsonObject):
    """A policy rule evaluated during a lookup.

    Args:
        rule: the policy rule.
        passed: why the lookup continues with the next rule; None if it ends at this rule.
        route: the longest match in the rule's table; None if nothing matches or the rule looks up
            no table.
        ignored: longer entries in the rule's table that the kernel ignores, because their links are
            down.
    """

    json_names = ("preference", "rule", "passed", "route", "ignored")

    rule: Rule
    passed: str | None
    route: Route | None
    ignored: tuple[Route, ...] = ()

    @property
    def preference(self) -> int:
        """Return the rule's preference."""
        return self.rule.preference


@frozen
class ExplainedLookup:
    """A lookup, with every rule evaluated for it.

    Args:
        judgement: the kernel's result, with the kind of failure or note (``kind``), ``devs``
            and ``route``.
        steps: the evaluated rules, ending with the one that determines the model's result.
        sources: the sources that the kernel may select; empty if the lookup has one already.
        is_modelled: whether the model's result is the same as the kernel's.
        sends: whether a packet is sent. If not, the lookup only selects the source address for a
            second lookup.
    """

    judgement: Judgement
    steps: tuple[Step, ...]
    sources: tuple[IpAddress, ...]
    is_modelled: bool
    sends: bool

    @property
    def expires(self) -> int | None:
        """Return for how many more seconds the kernel uses the route; None if it doesn't expire."""
        route = self.judgement.route
        return route.expires if isinstance(route, Route6) else None

    def to_json(self) -> dict[str, Any]:
        """Return the lookup as JSON."""
        lookup = self.judgement.lookup
        ends = {"protocol": "tcp" if lookup.is_tcp else "udp", "source": in_json(lookup.source)}
        meaning = fields_in_json(self.judgement, "kind", "devs", "route")
        return (
            ends
            | meaning
            | fields_in_json(self, "expires", "sources", "sends", "is_modelled", "steps")
        )


@frozen
class Explanation:
    """A trace of the lookups for an address.

    Args:
        address: the destination that was looked up.
        expected: the expected CIDRs that contain the address. If there are none, the address is
            judged as if it were expected.
        default_devs: sorted names of the uplinks; empty if there is no default route to compare
            with.
        verified_since: see ``OverlapReport``.
        lookups: the lookups performed by a socket, in order.
        is_judged: whether there are interfaces to compare with: uplinks, or the interfaces that the
            config names for the CIDR.
        findings: the check's failures for this address; empty if nothing is judged.
        notes: the check's notes on this address.
        is_torn: whether the host changed during every read, so the result may be inconsistent.
        not_received: why this host doesn't receive packets to its addresses (see
            ``no-local-table``). Null if it receives them.
    """

    address: IpAddress
    expected: tuple[ExpectedCidr, ...]
    default_devs: tuple[str, ...]
    lookups: tuple[ExplainedLookup, ...]
    is_judged: bool
    findings: tuple[Finding, ...] = ()
    notes: tuple[Note, ...] = ()
    is_torn: bool = False
    not_received: str | None = None
    verified_since: str | None = None

    @property
    def is_as_expected(self) -> bool | None:
        """Return whether all packets to this address are sent as expected, as the check judges it.

        The result is None in two cases: there is no interface to compare with, or this host doesn't
        receive packets to its addresses.
        """
        if not self.is_judged or self.not_received:
            return None
        return not self.findings

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as JSON."""
        found = fields_in_json(
            self,
            "address",
            "is_as_expected",
            "default_devs",
            "verified_since",
            "lookups",
            "findings",
            "notes",
            "is_torn",
            "not_received",
        )
        return {"schema": 1, **found, "expected": [str(expected) for expected in self.expected]}


def explain(
    address: IpAddress,
    config: Config,
    backend: RouteBackend,
    scope: CancelScope,
    *,
    ipv4: RouteBackend | None = None,
) -> Explanation:
    """Trace an address through the rules and tables.

    Args:
        address: destination address (unicast).
        config: the config with the expected CIDRs.
        backend: the kernel to query, for the address's family.
        scope: cancellation scope for the reads.
        ipv4: the host's IPv4 backend; see ``check_overlap``.

    Returns:
        The explanation.

    Raises:
        RouteError: the kernel can't be queried.
    """
    overlap = config.route_overlap
    around = tuple(expected for expected in overlap.expected_cidrs if address in expected.cidr)
    family = Family.of(address)
    network = family.network((int(address), family.bits))
    asked = tuple(dict.fromkeys(attrs.evolve(expected, cidr=network) for expected in around))
    narrowed = attrs.evolve(overlap, expected_cidrs=asked or (network,), foreseen=())
    anything = attrs.evolve(narrowed, expected_cidrs=(ExpectedCidr(network, ("*",)),))
    narrow = attrs.evolve(config, route_overlap=narrowed)

    def read() -> Explanation:
        received = (*overlap.of(family).expected_cidrs, *narrowed.expected_cidrs)
        moment = read_once(narrow, backend, ipv4, needs_uplinks=False, received=received)
        uplinks = moment.state.uplinks
        if uplinks.contested:
            raise contested_error(uplinks, links=moment.state.links)
        whole = attrs.evolve(moment.state, routes=read_routes(backend))
        is_judged = uplinks.unknown is None
        # Whether a discarding entry is for a CNI's own block depends on the whole CIDR.
        judged = attrs.evolve(narrowed, expected_cidrs=around or (network,))
        judge = Judge(judged if is_judged else anything, whole)
        (place,) = moment.places
        judgements = judge.judge_each_lookup(place.lookups)
        findings: tuple[Finding, ...] = ()
        notes: tuple[Note, ...] = ()
        if is_judged:
            judge.judge(moment.places)
            findings, notes = findings_and_notes(judged, whole, moment.places)
            notes = (*notes, *notes_on_host(judged, whole, moment.places))
            notes = without_listed(notes, config.static_routes)
        lookups = [
            _explained(each, whole.fib, backend, sends=sends_packets(each.lookup, place.lookups))
            for each in judgements
        ]
        return Explanation(
            address,
            around,
            uplinks.devs if is_judged else (),
            tuple(lookups),
            is_judged,
            tuple(attrs.evolve(finding, shadowed=(finding.cidr,)) for finding in findings),
            tuple(filter(_is_about_address, notes)),
            not_received=moment.not_received or None,
            verified_since=uplinks.since,
        )

    explanation, why_torn = read_consistently(watched(narrow, backend, ipv4), scope, read)
    return attrs.evolve(explanation, is_torn=why_torn is not None)


def _is_about_address(note: Note) -> bool:
    return note.cidr is not None or note.kind in (NoteKind.SOURCE, NoteKind.MTU)


def _explained(
    judgement: Judgement,
    fib: Fib,
    backend: RouteBackend,
    *,
    sends: bool,
) -> ExplainedLookup:
    lookup = judgement.lookup
    steps = [*_steps(fib, lookup.flow)]
    is_alike = is_modelled(lookup, modelled_lookups(fib))
    if is_alike and lookup.route is not None and lookup.route.destination.prefixlen == 0:
        # If the kernel alternates between default routes, the model only has the first one.
        steps[-1] = attrs.evolve(steps[-1], route=lookup.route)
    sources = _chosen_sources(lookup, backend)
    return ExplainedLookup(judgement, tuple(steps), sources, is_alike, sends)


def _chosen_sources(lookup: SocketLookup, backend: RouteBackend) -> tuple[IpAddress, ...]:
    route = lookup.route
    if route is None or route.type is RouteType.LOCAL or lookup.source is not None:
        return ()
    if lookup.result not in backend.lookup([lookup.address], is_tcp=lookup.is_tcp):
        # The kernel alternates between default routes, and only reports the source of the present
        # one.
        return Sources(backend.facts().addresses).of(route)
    sent = [(route, spread(route, [lookup.address]))]
    return backend.sources(sent, is_tcp=lookup.is_tcp)[0]


def _steps(fib: Fib, flow: Flow) -> Iterator[Step]:
    for rule, is_met, route in fib.evaluated_rules(flow, range(len(fib.rules))):
        if is_met and fib.is_merged and route is not None and route.table != rule.table:
            # While local and main share one trie, a lookup in local also finds main's entries. Show
            # such an entry at main's rule, because ip route shows it in main.
            yield Step(rule, _passed(fib, rule, None), None)
            (rule,) = (each for each in fib.rules if each.table == route.table)
        passed = _passed(fib, rule, route) if is_met else why_unmet(rule, flow, fib.loopback)
        yield Step(rule, passed, route, _ignored(fib, rule, route, flow) if is_met else ())


def _ignored(
    fib: Fib,
    rule: Rule,
    found: Route | None,
    flow: Flow,
) -> tuple[Route, ...]:
    shortest = -1 if found is None else found.destination.prefixlen
    dead = (route for route in fib.routes if route.is_dead and route.table == rule.table)
    around = (route for route in dead if flow.address in route.destination)
    return tuple(route for route in around if route.destination.prefixlen > shortest)


def _passed(fib: Fib, rule: Rule, route: Route | None) -> str | None:
    """Return why a lookup continues after a matching rule; None if it ends at the rule."""
    if rule.action is RuleAction.NOP:
        return "it does nothing"
    if rule.action is RuleAction.GOTO:
        return f"it jumps to preference {rule.goto}"
    if rule.action is not RuleAction.TO_TABLE:
        return None
    if route is None:
        return f"table {word_of(rule.table, Table)} has no entry for it"
    if fib.is_final(rule, route):
        return None
    if route.type is RouteType.THROW:
        return f"{route} makes the kernel continue with the next rule"
    longest = rule.suppress_prefix_length
    is_short = longest is not None and route.destination.prefixlen <= longest
    why = (
        f"its prefix isn't longer than {longest}"
        if is_short
        else f"its interface is of group {rule.suppress_group}"
    )
    return f"{route} is passed over: {why}"
