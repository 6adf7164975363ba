"""Predict a kernel's answers from the known facts of a host, before and after changes.

Where would packets go on a host with these links, addresses, rules and routes? Snapshots, fixes,
plans and comparisons all ask this question, and only ``Model`` answers it. The model implements the
reading half of the routes port. So a check can run on a model instead of a kernel.

``KnownHost`` holds the facts. ``Fib`` and ``Fib6`` imitate the kernel's lookup of a route.
``Sources`` and ``Fib6`` imitate the kernel's choice of a source address. ``with_routes``,
``with_rules`` and ``without`` return the model of the host after a change, and ``refused`` says
which of the added routes a kernel would refuse.

A dump lacks some facts that decide about a packet. Therefore:

- Two facts come from the kernel's own reports: the sources of connections, and whether tables local
  and main share one trie.
- A snapshot may lack a fact. Then the model looks up the packet once for each value that the fact
  may have. If the results differ, the model raises a ``RouteError`` that names the fact. See
  ``_alternatives`` for facts about tables, ``_refuse_doubt`` for unknown selectors of rules, and
  ``_sources_for`` for source addresses.
- For a live host (``KnownHost.is_live``), the kernel has just answered for the present state. The
  model doesn't raise errors for unknown facts, and considers every source that the kernel may
  choose.
- A model of a plan has the live kernel beneath it. A changed route only affects packets to
  addresses inside its destination, so the kernel itself answers for all other addresses. For an
  added route, the model considers every source that the kernel may choose.

This module does no I/O, apart from calls of the kernel beneath a model.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from operator import attrgetter

import attrs

from hostrouting.kernel.default_routes import unicast_defaults
from hostrouting.kernel.fib import Fib
from hostrouting.kernel.fib6 import LABELS, Fib6
from hostrouting.kernel.known_host import KnownHost, UnknownFactError
from hostrouting.kernel.port import (
    ChangeListener,
    Facts,
    RouteBackend,
    Sent,
    UnstableHostError,
    Write,
    refuse_datagrams,
)
from hostrouting.kernel.release import passes_discards, separates_on_deletion
from hostrouting.kernel.rules import KERNEL_RULES, NO_SOURCE, TCP, UDP, Flow, kernel_rules
from hostrouting.kernel.selection import EVERYTHING, Entries, Selection
from hostrouting.kernel.sources import Sources, scopes_of_objects, source_key_to
from hostrouting.model.errors import RouteError
from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.integer_prefixes import Prefix, PrefixSet, numbers
from hostrouting.model.lookups import Lookup, RouteFailure, RuleFailure
from hostrouting.model.routes import Route, Route6, RouteType, Table
from hostrouting.model.rules import HIDES_SELECTORS, Rule, RuleAction
from hostrouting.model.values import frozen
from phases import CancelScope

RECORD_HINT = "take the snapshot with hostrouting snapshot"
_CHECK_HINT = "check on the host itself"
_KNOWS_NO_SELECTOR = f"hostrouting doesn't know a selector of that rule: {_CHECK_HINT}"
_APPLY_HINT = "install the config first: hostrouting apply"
_ARE_MERGED = "whether tables local and main are one"
_LOCAL_AND_MAIN = (Table.LOCAL, Table.MAIN)
_LEAVING = (RouteType.UNICAST, RouteType.BROADCAST, RouteType.ANYCAST, RouteType.MULTICAST)


def model_of(known: KnownHost, beneath: RouteBackend | None = None) -> Model:
    """Return the model of a host.

    Args:
        known: the known facts of the host.
        beneath: the host's kernel, which answers for all addresses that no change affects. With
            None, the model answers for them, too.
    """
    return (Model if known.family is Family.IPV4 else Model6)(known, beneath)


@frozen(
    eq=False,
    repr=False,
    slots=False,
)
class Model(RouteBackend):
    """A thread-safe, read-only backend that answers as a host's kernel would.

    Args:
        known: the known facts of the host after all changes.
        beneath: the host's kernel, which answers for all addresses that no change affects. With
            None, the model answers for them, too.
        before: the host before the first change; None if nothing has changed.
        added: the added routes, in order.
        changed: the prefixes in which lookups may have changed.
    """

    known: KnownHost
    beneath: RouteBackend | None = None
    before: KnownHost | None = None
    added: tuple[Route, ...] = ()
    changed: tuple[Prefix, ...] = ()

    @property
    def family(self) -> Family:
        return self.known.family

    # --- changes ----------------------------------------------------------------------------------

    def with_routes(self, routes: Iterable[Route]) -> Model:
        """Return the model with added routes, placed before entries with the same ``key``."""
        new = tuple(routes)
        known = attrs.evolve(self.known, routes=(*new, *self.known.routes))
        changed = [numbers(route.destination) for route in new]
        return attrs.evolve(self._changed_to(known, changed), added=(*self.added, *new))

    def without(self, routes: Collection[Route]) -> Model:
        """Return the model of the host without some of its routes."""
        gone = {*routes}
        left = tuple(route for route in self.known.routes if route not in gone)
        known = attrs.evolve(self.known, routes=left)
        return self._changed_to(known, [numbers(route.destination) for route in gone])

    def with_rules(self, rules: Iterable[Rule]) -> Model:
        """Return the model with the given policy rules in place of the host's rules."""
        new = tuple(rules)
        # Adding a rule separates tables local and main for good (fib_unmerge). On some kernels,
        # deleting a rule separates them, too.
        is_merged = self.known.is_merged
        uses_deleted = self.known.uses_deleted
        if not {*new} <= {*self.known.rules}:
            is_merged = uses_deleted = False
        elif new != self.known.rules and is_merged is not False:
            is_merged = None
        known = attrs.evolve(
            self.known,
            rules=new,
            is_merged=is_merged,
            uses_deleted=uses_deleted,
        )
        return self._changed_to(known, self._reach(known))

    def _changed_to(self, known: KnownHost, prefixes: Iterable[Prefix]) -> Model:
        changed = (*self.changed, *prefixes)
        return attrs.evolve(
            self,
            known=known,
            before=self.before or self.known,
            changed=changed,
        )

    def _reach(self, known: KnownHost) -> set[Prefix]:
        """Return the prefixes in which lookups may differ after a change of policy rules.

        A rule for a table only matters to addresses that an entry of the table covers.

        Args:
            known: the host with the changed rules.
        """
        changed = {*self.known.rules} ^ {*known.rules}
        if _are_reordered(self.known, known, changed):
            return {(0, 0)}
        is_merged = _is_merged(self.known)
        reach = self._reach_of_separation() if is_merged != _is_merged(known) else set[Prefix]()
        looked_up = set[int]()
        for rule in changed:
            if rule.destination is not None and not rule.is_inverted:
                reach.add(numbers(rule.destination))
            elif not rule.has_table or (is_merged and rule.table in _LOCAL_AND_MAIN):
                return {(0, 0)}
            else:
                looked_up.add(rule.table)
        for route in known.routes:
            if route.table in looked_up:
                reach.add(numbers(route.destination))
        return reach

    def _reach_of_separation(self) -> set[Prefix]:
        """Return prefixes that cover all addresses whose lookups change once the tables separate.

        While tables local and main share one trie, a longer prefix in main wins over a shorter one
        in local. Once the tables are separate, local wins.
        """
        tables = {route.table for route in self.known.routes}
        if tuple(self.known.rules) != KERNEL_RULES or Table.DEFAULT in tables:
            return {(0, 0)}
        return {
            numbers(route.destination)
            for route in self.known.routes
            if route.table == Table.LOCAL and route.destination.prefixlen < self.family.bits
        }

    def refused(self) -> tuple[RouteFailure, ...]:
        """Return the added routes that a kernel with the host's tables would refuse."""
        from hostrouting.kernel.refused_routes import refused_in_memory

        return refused_in_memory(self.before or self.known, self.added)

    # --- reading ----------------------------------------------------------------------------------

    def facts(self) -> Facts:
        known = self.known
        return Facts(known.links, known.addresses, known.rules)

    def entries(self, wanted: Selection = EVERYTHING) -> Entries:
        """Return the wanted entries of the FIB, in the kernel's order.

        Raises:
            RouteError: the snapshot doesn't name every interface of the effective default route.
        """
        if not self.known.is_live:
            self._refuse_unknown_default()
        return wanted.filter(self.known.routes)

    def _refuse_unknown_default(self) -> None:
        defaults = unicast_defaults(self.known.routes)
        counting = (route for route in defaults if route.devs or _lacks_dev(route))
        first = min(counting, key=attrgetter("metric"), default=None)
        if first is not None and _lacks_dev(first):
            raise self._unknown_dev(first)

    @contextmanager
    def changes(self, inside: Sequence[Prefix] | None = None) -> Iterator[ChangeListener]:
        """Listen for changes of the kernel beneath the model, if there is one.

        Raises:
            UnstableHostError: the host changed while the snapshot was taken.
        """
        if self.known.is_torn:
            raise UnstableHostError(
                "the host changed while the snapshot was taken",
                hint="take another snapshot",
            )
        with ExitStack() as stack:
            if self.beneath is None:
                yield _NoChanges()
            else:
                yield stack.enter_context(self.beneath.changes(inside))

    # --- lookups ----------------------------------------------------------------------------------

    def lookup(
        self,
        addresses: Sequence[IpAddress],
        *,
        source: IpAddress | None = None,
        is_tcp: bool = False,
    ) -> tuple[Lookup, ...]:
        asked = dict.fromkeys(addresses)
        found: dict[IpAddress, Lookup] = {}
        left: list[IpAddress] = []
        for address in asked:
            if self._answers_for(address):
                found[address] = self._lookup(address, source, is_tcp=is_tcp)
            else:
                left.append(address)
        if self.beneath is not None and left:
            lookups = self.beneath.lookup(left, source=source, is_tcp=is_tcp)
            found.update(zip(left, lookups, strict=True))
        return tuple(found[address] for address in addresses)

    def _answers_for(self, address: IpAddress) -> bool:
        """Return whether the model answers for an address, not the kernel beneath it."""
        return self.beneath is None or self._changed_set.overlaps(int(address), int(address))

    @cached_property
    def _changed_set(self) -> PrefixSet:
        return PrefixSet(self.changed, self.family.bits)

    def _lookup(self, address: IpAddress, source: IpAddress | None, *, is_tcp: bool) -> Lookup:
        """Look up an address, and raise a RouteError if an unknown fact may change the result."""
        found = self.fib.lookup(address, source, is_tcp=is_tcp)
        if self.known.is_live:
            return found
        for other, what, advice in self._alternatives:
            if _entry(found) != _entry(other.lookup(address, source, is_tcp=is_tcp)):
                raise self._unknown_fact(what, address, advice)
        if self._has_unknown:
            self._refuse_doubt(Flow(address, source or NO_SOURCE, TCP if is_tcp else UDP))
        if found.route is not None and _lacks_dev(found.route):
            raise self._unknown_dev(found.route)
        return found

    def _refuse_doubt(self, flow: Flow) -> None:
        """Raise a RouteError if a rule with an unknown selector may change a lookup's result."""
        known = self.fib.decide(flow)
        for rule, other in self.fib.possible_decisions(flow):
            if other is None or (other.errno, other.route) != (known.errno, known.route):
                what = f"whether the rule {rule.preference}: {rule} matches"
                advice = _KNOWS_NO_SELECTOR if self.known.is_recorded else HIDES_SELECTORS
                raise self._unknown_fact(what, flow.address, advice)

    @cached_property
    def _has_unknown(self) -> bool:
        return any(rule.has_unknown for rule in self.known.rules)

    @cached_property
    def fib(self) -> Fib:
        """Return the model of the tables and rules."""
        known = self.known
        fib = Fib(
            known.rules,
            known.routes,
            known.addresses,
            links=known.links,
            passes_discards=bool(passes_discards(known.kernel)),
            lacks_unknown=known.is_live,
        )
        return fib if known.is_merged is None else attrs.evolve(fib, is_merged=known.is_merged)

    @cached_property
    def _alternatives(self) -> list[tuple[Fib, str, str]]:
        """Return the other FIBs that the host may have, because a fact isn't known.

        Each FIB comes with a clause that names the unknown fact, and with advice.
        """
        known = self.known
        others: list[tuple[Fib, str, str]] = []
        if known.is_merged is None and self.fib.is_merged:
            others.append((attrs.evolve(self.fib, is_merged=False), _ARE_MERGED, self._hint))
        if known.is_merged is None and not self._separates():
            others.append((attrs.evolve(self.fib, is_merged=True), _ARE_MERGED, self._hint))
        if self.fib.is_merged and passes_discards(known.kernel) is None:
            passing = attrs.evolve(self.fib, passes_discards=True)
            what = (
                "whether this kernel goes on to table default "
                "after a discarding route in table main"
            )
            others.append((passing, what, _CHECK_HINT))
        return others

    def _separates(self) -> bool:
        """Return whether the rules show that tables local and main are separate."""
        if separates_on_deletion(self.known.kernel) is True:
            return True
        return not {*self.known.rules} < {*KERNEL_RULES}

    # --- sources ----------------------------------------------------------------------------------

    def sources(
        self,
        sent: Sequence[Sent],
        *,
        is_tcp: bool = False,
    ) -> tuple[tuple[IpAddress, ...], ...]:
        found: dict[int, tuple[IpAddress, ...]] = {}
        left: list[int] = []
        for number, (entry, addresses) in enumerate(sent):
            if any(map(self._answers_for, addresses)):
                found[number] = self._sources_for(entry, addresses, is_tcp=is_tcp)
            else:
                left.append(number)
        if self.beneath is not None and left:
            reported = self.beneath.sources([sent[number] for number in left], is_tcp=is_tcp)
            found.update(zip(left, reported, strict=True))
        return tuple(found.get(number, ()) for number in range(len(sent)))

    def _sources_for(
        self,
        entry: Route | None,
        addresses: Sequence[IpAddress],
        *,
        is_tcp: bool,
    ) -> tuple[IpAddress, ...]:
        """Return the sources of packets through an entry, or of packets that match no entry."""
        if entry is None:
            return ()
        if entry.type is RouteType.LOCAL:
            return (addresses[0],)  # ip_route_output_key_hash_rcu
        reported = self.known.sources.get(source_key_to(addresses[0], entry))
        if reported is not None:
            return reported
        doubtful = self._chosen.doubtful(entry, self._scopes_of_objects)
        # The kernel beneath reports no source for an added route.
        if self.known.is_live or self.beneath is not None:
            return doubtful or self._chosen.of(entry)
        if self._are_told_apart(doubtful):
            what = f"which source connections by {entry} get"
            raise self._unknown_fact(what, addresses[0], self._hint)
        return self._chosen.of(entry)

    def _are_told_apart(self, sources: Iterable[IpAddress]) -> bool:
        """Return whether the source prefix of a rule or route distinguishes the sources."""
        kinds = {tuple(source in prefix for prefix in self._source_prefixes) for source in sources}
        return len(kinds) > 1

    @cached_property
    def _source_prefixes(self) -> list[IpNetwork]:
        """Return the source prefixes of rules and routes."""
        prefixes = [rule.source for rule in self.known.rules]
        prefixes += [
            route.source_prefix for route in self.known.routes if isinstance(route, Route6)
        ]
        return [prefix for prefix in dict.fromkeys(prefixes) if prefix is not None]

    @cached_property
    def _chosen(self) -> Sources:
        return Sources(self.known.addresses)

    @cached_property
    def _scopes_of_objects(self) -> set[int]:
        return scopes_of_objects(self.known.routes)

    # --- what isn't known -------------------------------------------------------------------------

    @property
    def _hint(self) -> str:
        """Return advice on how to learn a fact that this snapshot lacks."""
        return _CHECK_HINT if self.known.is_recorded else RECORD_HINT

    def _unknown_fact(self, what: str, address: IpAddress, advice: str) -> UnknownFactError:
        if self.beneath is None:
            text = f"the snapshot doesn't show {what}, which decides about {address}"
            return UnknownFactError(text, hint=advice)
        text = f"the kernel can't tell in advance {what}, which decides about {address}"
        return UnknownFactError(text, hint=_APPLY_HINT)

    def _unknown_dev(self, route: Route) -> UnknownFactError:
        if self.beneath is None:
            text = f"the snapshot doesn't name every interface of {route}"
            return UnknownFactError(text, hint=self._hint)
        return UnknownFactError(f"the kernel doesn't name every interface of {route}")

    # --- writing ----------------------------------------------------------------------------------

    def write(self, change: Write, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Raise an error, because a model is read-only."""
        if not routes:
            return ()
        raise _read_only(routes[0])

    def write_rules(self, change: Write, rules: Sequence[Rule]) -> tuple[RuleFailure, ...]:
        """Raise an error, because a model is read-only."""
        if not rules:
            return ()
        raise _read_only(rules[0])


class Model6(Model):
    """A thread-safe, read-only IPv6 backend that answers as a host's kernel would.

    Source addresses are selected from the host's addresses according to RFC 6724.
    """

    def facts(self) -> Facts:
        """Return the facts. For labels that aren't known, they have the kernel's default labels."""
        known = self.known
        labels = LABELS if known.labels is None else known.labels
        return Facts(known.links, known.addresses, known.rules, labels, known.silent_routers)

    def refused(self) -> tuple[RouteFailure, ...]:
        """Return the added routes that a kernel with the host's tables would refuse."""
        return tuple(self.fib.refused_hops(self.added))

    @cached_property
    def fib(self) -> Fib6:
        """Return the model of the tables and rules."""
        known = self.known
        return Fib6(
            kernel_rules(self.family) if known.uses_deleted else known.rules,
            known.routes,
            known.addresses,
            links=known.links,
            lacks_unknown=known.is_live,
            silent_routers=known.silent_routers,
            labels=known.labels,
        )

    @cached_property
    def _alternatives(self) -> list[tuple[Fib, str, str]]:
        """Return the FIB with the default rules that were deleted, but may still be in effect.

        Until a rule is added, the kernel consults tables local and main even if their rules are
        deleted (fib6_rule_lookup).
        """
        standard = kernel_rules(self.family)
        if self.known.uses_deleted is not None or not {*self.known.rules} < {*standard}:
            return []
        what = "whether the kernel uses a table whose rule was deleted"
        return [(attrs.evolve(self.fib, rules=standard), what, _CHECK_HINT)]

    # --- sources ----------------------------------------------------------------------------------

    def _sources_for(
        self,
        entry: Route | None,
        addresses: Sequence[IpAddress],
        *,
        is_tcp: bool,
    ) -> tuple[IpAddress, ...]:
        if entry is not None:
            return self._sources(entry, addresses)
        # No route matches the packets, so the kernel tries again with a source that it selects. For
        # TCP packets, only a UDP socket shows that source, and only if UDP packets match no route
        # either. A snapshot has no sockets, so if they do match one, raise an error.
        by_tcp = is_tcp and self.known.is_live
        if is_tcp and not by_tcp:
            refuse_datagrams(self.lookup(addresses))
        retried = {
            source
            for address in addresses
            for source in self._sources(None, [address])
            if self._lookup(address, source, is_tcp=by_tcp).route is not None
        }
        return tuple(sorted(retried))

    def _sources(
        self,
        entry: Route | None,
        addresses: Sequence[IpAddress],
    ) -> tuple[IpAddress, ...]:
        known = self.known
        reported = known.sources.get(source_key_to(addresses[0], entry)) if addresses else None
        if reported is not None:
            return reported
        if not known.is_live:
            self._refuse_unknown_sources(entry, addresses)
        found = {source for address in addresses for source in self.fib.sources_to(address, entry)}
        return tuple(sorted(found))

    def _refuse_unknown_sources(self, entry: Route | None, addresses: Sequence[IpAddress]) -> None:
        """Raise a RouteError if an unknown fact decides about the sources."""
        known = self.known
        has_src = entry is not None and entry.source is not None
        if addresses and known.has_odd_sources and not has_src:
            raise self._unknown_fact("which sources the kernel chooses", addresses[0], _CHECK_HINT)
        what = "in which order the kernel considers the interfaces' addresses"
        if known.labels is None:
            what = "the labels of addresses (ip addrlabel)"
        for address in addresses:
            possible = self.fib.possible_sources_to(address, entry, is_ordered=known.is_ordered)
            if any(map(self._are_told_apart, possible)):
                raise self._unknown_fact(what, address, self._hint)


def _are_reordered(old: KnownHost, new: KnownHost, changed: Container[Rule]) -> bool:
    """Return whether added or removed rules may change the effect of the other rules."""
    if any(rule.action is RuleAction.GOTO for rule in (*old.rules, *new.rules)):
        return True
    # The kernel's default rules may be in effect even after their deletion (Model6._alternatives).
    if {*old.rules} < {*kernel_rules(old.family)}:
        return True
    kept_before = [rule for rule in old.rules if rule not in changed]
    kept_after = [rule for rule in new.rules if rule not in changed]
    return kept_before != kept_after


def _is_merged(known: KnownHost) -> bool:
    """Return whether tables local and main share one trie. If unknown, judge by the rules."""
    if known.is_merged is not None:
        return known.is_merged
    return tuple(known.rules) == KERNEL_RULES


class _NoChanges(ChangeListener):
    def happened(self) -> bool:
        return False

    def wait(self, scope: CancelScope) -> None:
        scope.wait(threading.Event())


def _lacks_dev(route: Route) -> bool:
    """Return whether the snapshot lacks an interface through which a route sends packets."""
    is_known = route.hops and all(hop.dev is not None or hop.is_dead for hop in route.hops)
    return route.type in _LEAVING and not is_known


def _read_only(change: object) -> RouteError:
    return RouteError(
        f"can't change {change}: the host is a snapshot",
        hint="do it on the host itself",
    )


def _entry(found: Lookup) -> object:
    """Return a comparable lookup result. Its table is main: the kernel may show local as main."""
    return found.errno, found.route and attrs.evolve(found.route, table=Table.MAIN)
