"""Where another rule decides before table main, find the fewest new rules that let main decide.

This module does no I/O.

Static routes are in table main, so one doesn't help if another table, such as a VPN's, decides
about an address. An entry of ``rules`` does: main decides about the entry's CIDR before all later
rules, with all of main's routes, including those to this host's pods::

    5270  lookup 52    192.168.1.0/24 dev tailscale0       fails
    entry              to 192.168.1.0/24 priority 5269     main decides: dev eth0

An entry may also cover places that don't fail, if main gives the same results. But some packets
that no check looks up may match a later rule. Such packets are marked, come from a pod or from
another interface's address, or come in from other hosts. If such packets go to a place, no entry
covers the place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter

import attrs

from hostrouting.config.routing import (
    KEEP_PRIORITIES,
    PRIORITY_MAX,
    Config,
    StaticRoutes,
    StaticRule,
)
from hostrouting.kernel.fib import Fib
from hostrouting.kernel.model import Model
from hostrouting.kernel.port import Facts
from hostrouting.kernel.rules import Flow, is_about_other_packets
from hostrouting.model.errors import RouteError
from hostrouting.model.family import IpAddress, IpNetwork
from hostrouting.model.integer_prefixes import Prefix, PrefixSet, numbers, prefix_around
from hostrouting.model.links import is_like
from hostrouting.model.parsing import is_device
from hostrouting.model.routes import Protocol, Route, Table
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.overlap._ask import Sockets, called_addresses, is_modelled, modelled_lookups
from hostrouting.overlap._fewest_prefixes import Segment, fewest_prefixes, networks_of
from hostrouting.overlap._judge import Judge
from hostrouting.overlap._losses import Loss, taken_away
from hostrouting.overlap._modelled_host import host_now
from hostrouting.overlap._places import Place, Places, SocketLookup, Span
from hostrouting.overlap._read import Moment
from hostrouting.overlap._state import State
from hostrouting.overlap.proposals import Obstacle
from hostrouting.routes.policy import PolicyRouting, resolve_policy
from hostrouting.routes.verify_policy import verify_policy

# More rules would slow down every lookup of the host.
_RULES_MAX = 64

_NONE_LEFT = Obstacle("no preference is left before it")
_TOO_MANY = Obstacle(f"it would take more than {_RULES_MAX} rules before it")


def routing_of(
    state: State,
    entries: StaticRoutes,
    uplinks: tuple[str, ...] | None = None,
) -> PolicyRouting:
    """Return the kernel's rules and side tables for entries of a config.

    Args:
        state: the host's state.
        entries: the entries, of which only ``rules`` and ``keep`` count.
        uplinks: the uplinks that the config names.

    Raises:
        RouteError: the kernel's rules can't be made for some entries.
    """

    def foreign_in(table: int) -> Route | None:
        of_table = (route for route in state.routes if route.table == table)
        return next((route for route in of_table if not route.is_in_side_table), None)

    named = uplinks
    if not uplinks:
        found = tuple(filter(is_device, state.uplinks.devs))
        # A config may not name an uplink that it keeps, but this one doesn't name any.
        keep = tuple(each for each in entries.keep if each.dev not in found)
        entries = attrs.evolve(entries, keep=keep)
        named = found or None
    return resolve_policy(
        Config(static_routes=entries, uplinks=named),
        state.family,
        Facts(tuple(state.links), tuple(state.addresses), tuple(state.rules)),
        state.defaults,
        foreign_in,
    )


def with_added(rules: Sequence[Rule], added: Iterable[Rule]) -> tuple[Rule, ...]:
    """Return rules in evaluation order, with new rules behind old ones of the same preference."""
    return tuple(sorted((*rules, *added), key=attrgetter("preference")))


class RuleSearch:
    """The search for rules that let table main decide about failing places.

    Args:
        moment: the host, with judged places.
        config: the expected CIDRs, and the interfaces that are kept.

    ``now`` is the model of the host without new rules.
    """

    def __init__(self, moment: Moment, config: Config) -> None:
        self._moment = moment
        self._state = moment.state
        self._places = moment.places
        self._family = moment.state.family
        self._overlap = config.route_overlap
        self._kept = tuple(keep.dev for keep in config.static_routes.keep)
        self.now = host_now(self._state, self._places).model
        self._look_up = modelled_lookups(self._state.fib)
        # The results of ``_answers_at``, by priority.
        self._answers: dict[int, dict[Place, tuple[SocketLookup, ...]]] = {}

    def entries(
        self,
        wanted: Mapping[IpAddress, int],
    ) -> tuple[tuple[StaticRule, ...], dict[IpAddress, Obstacle]]:
        """Return the fewest entries of ``staticRoutes.rules``, and why some places get none.

        Args:
            wanted: the places about which main must decide, as probes. Each probe is mapped to the
                lowest preference of the rules that decide about it now.
        """
        unruled = {probe: _NONE_LEFT for probe, each in wanted.items() if each < 2}
        possible = wanted.keys() - unruled.keys()
        if not possible:
            return (), unruled
        priority = _priority_before(min(wanted[probe] for probe in possible))
        targets: set[Place] = set()
        for place in self._places:
            if place.probe not in possible:
                continue
            if why := self._why_moving(place, priority):
                unruled[place.probe] = Obstacle(why)
            else:
                targets.add(place)
        networks = self._networks(targets, priority)
        obstacle = self._why_no_entries(networks, priority)
        if obstacle is not None:
            return (), dict.fromkeys(wanted, obstacle)
        return tuple(StaticRule(network, priority) for network in networks), unruled

    def _why_no_entries(self, networks: Sequence[IpNetwork], priority: int) -> Obstacle | None:
        """Return why ``staticRoutes.rules`` for these networks can't be proposed, or None."""
        kept = self._kept_network(networks, priority)
        if kept is not None:
            return Obstacle(f"a rule before it would precede those of keep for {kept}")
        return _TOO_MANY if len(networks) > _RULES_MAX else None

    # --- which prefixes -----------------------------------------------------------------------

    def _networks(self, targets: set[Place], priority: int) -> list[IpNetwork]:
        """Return the fewest prefixes that cover all targets and no place that main would divert."""
        if not targets:
            return []
        bits = self._family.bits
        # Outside of the suspects, where nothing fails, plain routes don't cut places. So main may
        # have several entries in such a place, but the place's lookup finds only one of them.
        is_cut = PrefixSet(_decided(targets), bits).covers
        # No chosen prefix is larger than the one around all targets, so no span outside of that
        # prefix can be covered.
        wanted = [span for place in targets for span in place.spans]
        first = min(span.first for span in wanted)
        last = max(span.last for span in wanted)
        is_near = PrefixSet([prefix_around(first, last, bits)], bits).overlaps

        def segment(span: Span) -> Segment:
            if span.place in targets:
                return Segment(span.first, span.last, longer_than=-1)
            if not is_near(span.first, span.last):
                return Segment(span.first, span.last, length_max=-1)
            is_local = span.place.unconnected.is_local
            is_free = is_local or is_cut((span.first, bits))
            if not (is_free and self._is_same(span.place, priority)):
                return Segment(span.first, span.last, length_max=-1)
            # With a maximum below ``bits``, the fewest prefixes cover as few such places as
            # possible. Local places aren't counted.
            return Segment(span.first, span.last, length_max=bits if is_local else bits - 1)

        return fewest_prefixes([*map(segment, self._places.spans)], self._family)

    def _is_same(self, place: Place, priority: int) -> bool:
        """Return whether all packets to a place go as before if main decides about the place."""
        if not all(is_modelled(lookup, self._look_up) for lookup in place.lookups):
            return False
        if self._answers_at(0)[place] != self._answers_at(priority)[place]:
            return False
        return not self._why_moving(place, priority)

    def _answers_at(self, priority: int) -> dict[Place, tuple[SocketLookup, ...]]:
        """Return the lookups of all places if a new rule with a priority lets main decide.

        Priority 0 stands for the present rules.
        """
        if priority not in self._answers:
            model = self._model_at(priority) if priority else self.now
            self._answers[priority] = self._ask(model, self._places)
        return self._answers[priority]

    def _model_at(self, priority: int) -> Model:
        everywhere = networks_of(self._places.spans, self._family)
        return self.now.with_rules(
            self._rules_with(StaticRule(network, priority) for network in everywhere)
        )

    def _rules_with(self, entries: Iterable[StaticRule]) -> tuple[Rule, ...]:
        """Return the host's rules, together with the rules that entries produce."""
        added = routing_of(self._state, StaticRoutes(enabled=True, rules=tuple(entries)))
        return with_added(self._state.rules, added.rules)

    def _ask(
        self,
        model: Model,
        places: Iterable[Place],
    ) -> dict[Place, tuple[SocketLookup, ...]]:
        state = self._state
        rules = model.known.rules
        called = called_addresses(state.addresses, state.uplinks.devs, rules)
        return Sockets(model, rules, state.routes, self._family, called).ask(places)

    def _kept_network(self, networks: Iterable[IpNetwork], priority: int) -> IpNetwork | None:
        """Return a network of ``keep`` whose rules a new entry would precede, or None."""
        if priority > KEEP_PRIORITIES[-1]:
            return None
        for address in self._state.addresses:
            if is_like(address.dev, self._kept) and any(map(address.network.overlaps, networks)):
                return address.network
        return None

    # --- packets that no check looks up ---------------------------------------------------------

    def _why_moving(self, place: Place, priority: int) -> str:
        """Return a clause on packets that no check looks up but a new rule would divert, or ""."""
        fib = self._state.fib
        flow = Flow(place.probe)
        rules = self._state.rules
        end = self._end_after(priority, flow)
        main = fib.longest_match(Table.MAIN, flow)
        asked = {lookup.source for lookup in place.lookups}
        for position, own in self._about_others:
            rule = rules[position]
            if rule.preference <= priority or position > end or not _is_to(rule, place.probe):
                continue
            # The new rule may move packets from own addresses in two cases: the check looks these
            # packets up, or table main leads them to pods.
            if own and (asked.issuperset(own) or self._leads_to_pods(main)):
                continue
            if _leads_elsewhere(fib, rule, flow, main):
                whose = f"{rule.preference}: {rule}"
                return f"a rule before it would also lead away packets of the rule {whose}"
        return ""

    def _end_after(self, priority: int, flow: Flow) -> int:
        """Return the position of the first rule behind a priority at which every lookup ends.

        If lookups may pass all of these rules, return the number of rules.
        """
        fib = self._state.fib
        rules = self._state.rules
        for position in fib.rules_around(flow):
            rule = rules[position]
            if rule.preference > priority and _ends_for_all(fib, rule, flow):
                return position
        return len(rules)

    @cached_property
    def _about_others(self) -> list[tuple[int, frozenset[IpAddress]]]:
        """Return the positions of rules for packets that the check perhaps doesn't look up.

        Each position comes with the addresses of this host that send the packets. The set of
        addresses is empty if other hosts send the packets.
        """
        found = enumerate(map(self._senders, self._state.rules))
        return [(position, own) for position, own in found if own is not None]

    def _senders(self, rule: Rule) -> frozenset[IpAddress] | None:
        """Return this host's addresses whose packets a rule matches, or None.

        None means that the check looks up all packets that the rule matches. The set is empty if
        the rule also matches other packets.
        """
        others = frozenset[IpAddress]()
        if rule.is_l3mdev:
            return others if self._has_vrf else None
        if is_about_other_packets(rule, self._state.fib.loopback):
            return others
        if rule.source is None or rule.is_inverted:
            return None
        own = {each.local for each in self._state.addresses if each.local in rule.source}
        return frozenset(own) if len(own) == rule.source.num_addresses else others

    @cached_property
    def _has_vrf(self) -> bool:
        return any(link.kind == "vrf" for link in self._state.links)

    def _leads_to_pods(self, route: Route | None) -> bool:
        if route is None or not route.devs:
            return False
        return all(is_like(dev, self._overlap.container_devs) for dev in route.devs)

    # --- the host with rules --------------------------------------------------------------------

    def moment_after(self, rules: Sequence[StaticRule]) -> Moment:
        """Return the host after rules are installed, with judged places.

        Places that the rules cover are looked up in the model; others keep their lookups.
        """
        state = attrs.evolve(self._state, rules=self._rules_with(rules), is_merged=False)
        model = self.now.with_rules(state.rules)
        bits = self._family.bits
        cidrs = PrefixSet((numbers(rule.to) for rule in rules), bits)
        # Copies, because the present places keep their lookups and judgements.
        copies = {place: Place(place.probe, lookups=place.lookups) for place in self._places}
        spans = [Span(span.first, span.last, copies[span.place]) for span in self._places.spans]
        for span in spans:
            span.place.spans.append(span)
        covered = [each for each in copies.values() if cidrs.covers((int(each.probe), bits))]
        for place, lookups in self._ask(model, covered).items():
            place.lookups = lookups
        places = Places(spans, self._family)
        Judge(self._overlap, state).judge(places)
        return Moment(state, places)

    def refused(
        self,
        rules: Iterable[StaticRule],
        model: Model,
        wanted: Iterable[IpAddress],
    ) -> dict[IpAddress, Obstacle]:
        """Return the places whose rule an installation would refuse, each with the reason.

        Args:
            rules: the rules of a fix.
            model: the host after the fix.
            wanted: the places for which main must decide, by their probes.
        """
        refused: dict[IpAddress, Obstacle] = {}
        for rule in rules:
            entries = StaticRoutes(enabled=True, rules=(rule,))
            try:
                verify_policy(routing_of(self._state, entries), model)
            except RouteError as error:
                why = Obstacle(f"apply would refuse a rule before it: {error.message}")
                refused |= {probe: why for probe in wanted if probe in rule.to}
        return refused

    def harmful(
        self,
        rules: Iterable[StaticRule],
        lost: Iterable[Loss],
        wanted: Iterable[IpAddress],
    ) -> dict[IpAddress, Obstacle]:
        """Return the places whose rule causes a forbidden loss, each with the reason.

        Args:
            rules: the rules of a fix.
            lost: the packets that the fix diverts or drops.
            wanted: the places for which main must decide, by their probes.
        """
        harmful: dict[IpAddress, Obstacle] = {}
        for loss in lost:
            if not loss.is_forbidden:
                continue
            why = Obstacle(f"with a rule before it, {taken_away([loss])[0]}")
            for rule in rules:
                if any(map(rule.to.overlaps, loss.ranges)):
                    harmful |= {probe: why for probe in wanted if probe in rule.to}
        return harmful


def _priority_before(preference: int) -> int:
    """Return an entry's priority that lets the entry precede a rule with a preference above 1."""
    priority = min(preference - 1, PRIORITY_MAX)
    return KEEP_PRIORITIES[0] - 1 if priority in KEEP_PRIORITIES else priority


def _decided(targets: Iterable[Place]) -> Iterator[Prefix]:
    """Yield the destinations of the entries that make targets fail."""
    for place in targets:
        for judgements in place.judgements.values():
            for judgement in judgements:
                if judgement.is_failure:
                    route = judgement.route
                    yield (0, 0) if route is None else numbers(route.destination)


def _is_to(rule: Rule, address: IpAddress) -> bool:
    return rule.destination is None or rule.is_inverted or address in rule.destination


def _leads_elsewhere(fib: Fib, rule: Rule, flow: Flow, main: Route | None) -> bool:
    """Return whether a rule leads packets elsewhere than table main's entry ``main``."""
    if rule.action is RuleAction.NOP:
        return False
    if rule.action is not RuleAction.TO_TABLE or rule.is_l3mdev:
        return True
    found = fib.find(rule.table, flow)
    if found is None or not fib.is_final(rule, found):
        return False
    return main is None or (found.type, found.hops) != (main.type, main.hops)


def _ends_for_all(fib: Fib, rule: Rule, flow: Flow) -> bool:
    """Return whether a lookup for an address always ends at a rule, whatever the source."""
    is_for_all = attrs.evolve(
        rule,
        preference=0,
        action=RuleAction.TO_TABLE,
        table=Table.MAIN,
        goto=None,
        destination=None,
        protocol=Protocol.BOOT,
        suppress_prefix_length=None,
        suppress_group=None,
    ) == Rule(0)
    if not is_for_all or rule.action in (RuleAction.NOP, RuleAction.GOTO):
        return False
    if rule.action is not RuleAction.TO_TABLE:
        return True
    found = fib.find(rule.table, flow)
    return found is not None and fib.is_final(rule, found)
