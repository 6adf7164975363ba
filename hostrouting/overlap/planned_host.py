"""Model a host after a plan, and find the entries of CONFIG that fix failures once installed."""

from __future__ import annotations

import errno as errnos
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import attrs

from hostrouting.boot.go_package import routes_to_adopt
from hostrouting.boot.host import Host
from hostrouting.config.routing import Config, Keep, StaticRoute, StaticRoutes
from hostrouting.host_files.proc_sys import devs_without_ipv6
from hostrouting.kernel.known_host import KnownHost
from hostrouting.kernel.model import Model, model_of
from hostrouting.kernel.port import Facts, RouteBackend, read_routes
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.kernel.taking_snapshots import take_snapshot
from hostrouting.model.changes import Replacement
from hostrouting.model.errors import Refusal, RouteError
from hostrouting.model.family import Family, IpNetwork
from hostrouting.model.integer_prefixes import PrefixSet, ends, numbers
from hostrouting.model.links import Address, is_infiniband, is_like
from hostrouting.model.lookups import RouteFailure
from hostrouting.model.routes import Route, Table
from hostrouting.model.rules import Rule
from hostrouting.model.text import counted, shortened, with_runs
from hostrouting.model.values import frozen
from hostrouting.overlap._diverted import Diverted, diverted
from hostrouting.overlap._modelled_host import ModelledHost
from hostrouting.overlap._places import Places
from hostrouting.overlap._state import State
from hostrouting.overlap.check import checked_families
from hostrouting.overlap.findings import Finding, OverlapReport, UnknownReason, Verdict
from hostrouting.overlap.proposals import Fix
from hostrouting.overlap.uplinks import find_uplinks, ipv4_defaults_for
from hostrouting.routes.install import refuse
from hostrouting.routes.plan import RoutePlan, plan_or_raise
from hostrouting.routes.policy import PolicyPlan, PolicyRouting
from hostrouting.routes.printed import Printed
from hostrouting.routes.verify import losing_routes, verify_routes
from hostrouting.routes.verify_policy import verify_policy
from phases import CancelScope

Printable = TypeVar("Printable", Route, Rule)

# A clause names at most this many CIDRs.
_SHOWN_CIDRS = 4

# A clause names at most this many failures.
_SHOWN_FAILURES = 3

# What ``plan_or_raise`` is asked for.
_INSTALL = "install the config's routes"


@frozen
class PlannedHost:
    """A host as it would be after a plan has been applied.

    Args:
        host: the host as it is.
        plan: the plan that changes the host.
        models: the models of the families whose routes the plan changes.
    """

    host: Host
    plan: RoutePlan
    models: Mapping[Family, Model] = attrs.field(factory=dict[Family, Model])

    def backend(self, family: Family) -> RouteBackend:
        """Return the model of a family that the plan changes, or else the host's backend."""
        return self.models.get(family) or self.host.routes_of(family)

    def refuse(self) -> None:
        """Raise a RouteError if the kernel would refuse any new route of the plan."""
        for family, model in self.models.items():
            new = _new_routes(self.plan.of(family))
            refuse("add", [*_without_ipv6(new, self.host), *model.refused()])

    def rehearse(self) -> None:
        """If installing the routes would raise an error, raise the same one.

        Raises:
            RouteError: a route can't be installed, or the kernel wouldn't use it.
        """
        self.refuse()
        for family in self.plan.families:
            of_family = self.plan.of(family)
            for policy in of_family.policies:
                verify_policy(policy.wanted, self.backend(family))
            verify_routes(of_family.wanted, self.backend(family))

    def refuse_unkept(self) -> None:
        """Raise a RouteError if another program's rule would decide about kept addresses."""
        for policy in self.plan.policies:
            rules = tuple(rule for rule in policy.wanted.rules if rule.source is not None)
            kept = attrs.evolve(policy.wanted, rules=rules)
            verify_policy(kept, self.backend(policy.family))

    def refuse_losing(self, fix: Fix, config: Config) -> None:
        """Raise a RouteError if a route or rule loses, even after the entries of a fix are added.

        Args:
            fix: the fix that a check of this host has found.
            config: the planned config.
        """
        if self.losing:
            static = with_more(config.static_routes, fix.entries)
            after = as_installed(attrs.evolve(config, static_routes=static), self.host)
            for family, model in after.models.items():
                verify_routes(_new_routes(after.plan.of(family)), model)
            for policy in after.plan.policies:
                verify_policy(policy.wanted, after.backend(policy.family))

    def moves(self, static: StaticRoutes) -> bool:
        """Return whether a static route that names no interface moves to another interface."""
        named = {route_key(route) for route in static.routes if route.dev is not None}
        moved = (pair.new for pair in self.plan.replace if pair.old.devs != pair.new.devs)
        return any((route.destination, route.metric) not in named for route in moved)

    def leading(self, findings: Iterable[Finding]) -> dict[Finding, list[Route]]:
        """Return the failures that a fix has routes for, though planned routes lead there.

        Each comes with the planned routes through its interfaces to its addresses.
        """
        by_devs: dict[tuple[str, ...], list[Route]] = {}
        for route in self.plan.wanted:
            by_devs.setdefault(tuple(sorted({*route.devs})), []).append(route)
        found: dict[Finding, list[Route]] = {}
        for finding in findings:
            for route in by_devs.get(finding.devs, ()) if finding.fix else ():
                if any(map(route.destination.overlaps, finding.ranges)):
                    found.setdefault(finding, []).append(route)
        return found

    def unlisted(self, fixed: Iterable[Finding], *, is_alone: bool) -> tuple[str, ...]:
        """Return our routes and rules that the plan removes, and that cause failures.

        Args:
            fixed: the failures that the plan fixes.
            is_alone: whether the plan installs nothing. Then all that it removes may be the cause.
        """
        changes = self.plan.changes
        removed = [str(each.what) for each in changes.routes if each.action == "removed"]
        matched = {str(finding.route) for finding in fixed}
        causes = tuple(route for route in removed if route in matched)
        if causes or not is_alone:
            return causes
        rules = (str(each.what) for each in changes.rules if each.action == "removed")
        return (*removed, *rules)

    @property
    def takes_any(self) -> bool:
        """Return whether the plan removes or replaces any route or rule of ours."""
        changes = self.plan.changes
        return any(each.action != "added" for each in (*changes.routes, *changes.rules))

    @property
    def losing(self) -> list[str]:
        """Return a reason for each route or rule that wouldn't win and thus makes ``apply`` fail.

        Of the routes, only new ones count, and of the rules, those of no kept addresses, which
        ``refuse_unkept`` has verified.
        """
        reasons: list[str] = []
        for family, model in self.models.items():
            losing = losing_routes(_new_routes(self.plan.of(family)), model)
            reasons += [refusal.message for _, refusal in losing]
        for policy in self.plan.policies:
            rules = tuple(rule for rule in policy.wanted.rules if rule.source is None)
            try:
                verify_policy(PolicyRouting(rules), self.backend(policy.family))
            except RouteError as error:
                reasons += error.message.splitlines()
        return reasons

    @property
    def losing_of_config(self) -> list[tuple[Route, Refusal]]:
        """Return the plan's routes, new or installed, that the kernel wouldn't use."""
        return [
            each
            for family in self.plan.families
            for each in losing_routes(self.plan.of(family).wanted, self.backend(family))
        ]

    def diverted(self, config: Config, scope: CancelScope) -> list[Diverted]:
        """Return the packets that the plan diverts unasked (see ``diverted``), family by family.

        Packets whose static route only follows the default route to another gateway aren't
        included.

        Args:
            config: the planned config.
            scope: cancels the reads.
        """
        found: list[Diverted] = []
        for model in self.models.values():
            if model.before is None:
                continue
            before = self._before(config, self._followed(config, model.before))
            rules = model.known.rules
            state = attrs.evolve(before.state, rules=rules, routes=model.known.routes)
            after = ModelledHost(state, before.places, model)
            found.append(diverted(config, before, after, self.host.routes, scope))
        return found

    def effects(self, config: Config, scope: CancelScope) -> tuple[str, ...]:
        """Return a sentence for each kind of packets that ``diverted`` finds.

        The arguments are those of ``diverted``. If the kernel can't be queried, or a fact isn't
        known, the only sentence says so.
        """
        try:
            found = self.diverted(config, scope)
        except RouteError as error:
            return (unknown_effects(error),)
        return tuple(sentence for each in found for sentence in each.sentences)

    def failure(self, config: Config, scope: CancelScope) -> str:
        """Return why the host would fail its check after the plan, or an empty string.

        Args:
            config: the planned config.
            scope: cancels the reads.
        """
        after = checked_families(config, self.backend, scope, host=self.host).report
        messages = [finding.message for finding in after.findings]
        if messages:
            return shortened(messages, "; ", _SHOWN_FAILURES)
        is_known = after.reason_kind is not UnknownReason.CHECK_FAILED
        is_unknown = after.verdict is Verdict.UNKNOWN and is_known
        return f"the check can't judge: {after.reason}" if is_unknown else ""

    def taken_by_ours(self, config: Config, scope: CancelScope) -> Diverted:
        """Return the packets of InfiniBand's addresses that our routes take away after the plan.

        The routes may have come long ago, without the ``keep`` of their fix. ``diverted`` finds
        only what the plan itself changes.

        Args:
            config: the planned config.
            scope: cancels the reads.

        Returns:
            Only ``kept``, ``keep`` and ``how_to_keep`` of the packets. If the kernel can't be
            queried, there are none.
        """
        backend = self.backend(Family.IPV4)
        try:
            if not _may_reach_unkept(read_routes(backend, Table.MAIN), backend.facts()):
                return Diverted()
            known = (self.models.get(Family.IPV4) or _model_of_now(self.host, config, scope)).known
            ours = [route for route in known.routes if route.is_ours]
            bare = model_of(known).without(ours)
            bare = bare.with_rules([rule for rule in known.rules if not rule.is_ours])
            before = self._before(config, bare.known)
            model = before.model.with_routes(ours).with_rules(known.rules)
            state = attrs.evolve(before.state, rules=known.rules, routes=known.routes)
            after = ModelledHost(state, before.places, model)
            found = diverted(config, before, after, self.host.routes, scope)
        except RouteError:
            return Diverted()
        return attrs.evolve(found, others=())

    def loses(self, report: OverlapReport, config: Config, scope: CancelScope) -> bool:
        """Return whether more expected addresses fail after the plan, or it diverts packets.

        Args:
            report: the report on the host as it is.
            config: the planned config.
            scope: cancels the reads.
        """
        after = checked_families(config, self.backend, scope, host=self.host).report
        now = {*map(failure_key, report.findings)}
        is_worse = any(failure_key(finding) not in now for finding in after.findings)
        return is_worse or bool(self.effects(config, scope))

    def _followed(self, config: Config, known: KnownHost) -> KnownHost:
        """Return a host on which our routes have followed the default route's gateway."""
        following = self._following(config.static_routes)
        pairs = [pair for pair in following if pair.new.family is known.family]
        if not pairs:
            return known
        without = model_of(known).without([pair.old for pair in pairs])
        return without.with_routes([pair.new for pair in pairs]).known

    def _following(self, static: StaticRoutes) -> list[Replacement]:
        """Return the pairs in which our route only follows a default route to another gateway.

        A route or kept interface for which the config names a gateway follows none.
        """
        inheriting = {route_key(route) for route in static.routes if route.gateway is None}
        found = [
            pair
            for pair in self.plan.replace
            if (pair.new.destination, pair.new.metric) in inheriting and pair.old.is_ours
        ]
        for policy in self.plan.policies:
            found += (pair for pair in policy.replace if _names_no_gateway(pair.new, static.keep))
        return [*filter(_changes_only_gateways, found)]

    def outdated(self, config: Config) -> list[str]:
        """Return a clause for each old gateway that static routes have inherited and still use.

        Args:
            config: the planned config.
        """
        counts = Counter(
            (_gateways(pair.old), _gateways(pair.new), pair.new.devs)
            for pair in self._following(config.static_routes)
            if pair.old.is_ours
        )
        return [
            f"the default route's gateway on {','.join(devs)} is now {new}, but "
            f"{counted(count, 'static route')} still {'uses' if count == 1 else 'use'} {old}"
            for (old, new, devs), count in counts.items()
        ]

    def _before(self, config: Config, known: KnownHost) -> ModelledHost:
        family = known.family
        defaults = ipv4_defaults_for(config, self.host.routes_of(family), self.host.routes)
        uplinks = find_uplinks(config, known.links, known.addresses, known.routes, defaults)
        state = State(
            family,
            uplinks,
            known.links,
            known.addresses,
            known.rules,
            known.routes,
            known.silent_routers,
            known.labels or (),
            known.is_merged,
        )
        return ModelledHost(state, Places((), family), model_of(known))

    def lacking(self, static: StaticRoutes) -> StaticRoutes:
        """Return the entries of a config that the plan has yet to install."""
        new = {route.destination for route in _new_routes(self.plan)}
        rules = _new_rules(self.plan)
        ruled = {rule.destination for rule in rules}
        devs = self.devs_to_keep
        lacking = StaticRoutes(
            enabled=True,
            routes=[route for route in static.routes if route.destination in new],
            rules=[rule for rule in static.rules if rule.to in ruled],
            keep=[each for each in static.keep if _keeps_any(each, devs)],
        )
        return lacking if lacking.is_wanted else StaticRoutes()

    def overdue(self, config: Config) -> list[str]:
        """Return clauses on what is missing or outdated, though no expected CIDR fails.

        Args:
            config: the planned config.
        """
        return [*filter(None, (self.unkept, *self.outdated(config)))]

    @property
    def devs_to_keep(self) -> set[str]:
        """Return the interfaces that the plan begins to keep."""
        devs = {
            dev
            for policy in self.plan.policies
            for route in (*policy.add, *(pair.new for pair in policy.replace))
            for dev in route.devs
        }
        rules = _new_rules(self.plan)
        sources = {rule.source for rule in rules if rule.source is not None}
        if sources:
            addresses = self.host.routes.facts().addresses
            devs.update(each.dev for each in addresses if _as_network(each) in sources)
        return devs

    @property
    def unkept(self) -> str:
        """Return a clause on what the plan begins to keep or to rule, or an empty string."""
        devs = ", ".join(with_runs(sorted(self.devs_to_keep)))
        rules = (rule for rule in _new_rules(self.plan) if rule.source is None)
        cidrs = [*dict.fromkeys(str(rule.destination) for rule in rules)]
        kept = f"the rules or routes that keep {devs}" if devs else ""
        ruled = f"CONFIG's rules for {shortened(cidrs, ', ', _SHOWN_CIDRS)}" if cidrs else ""
        lacking = " and ".join(filter(None, (kept, ruled)))
        return f"the kernel lacks {lacking}" if lacking else ""


def _changes_only_gateways(pair: Replacement) -> bool:
    """Return whether a route's packets stay on their interfaces, and go to another gateway."""
    devs = [{hop.dev for hop in route.hops} for route in (pair.old, pair.new)]
    return devs[0] == devs[1] and _gateways(pair.old) != _gateways(pair.new)


def _names_no_gateway(route: Route, keep: Iterable[Keep]) -> bool:
    return all(each.gateway is None for each in keep if _keeps_any(each, route.devs))


def _gateways(route: Route) -> str:
    return ",".join(dict.fromkeys(str(hop.gateway or "none") for hop in route.hops))


def route_key(route: StaticRoute) -> tuple[IpNetwork, int]:
    """Return the destination and the metric of an entry's route."""
    return route.destination, route.metric or Family.of(route.destination).usual_metric


def _keeps_any(keep: Keep, devs: Iterable[str]) -> bool:
    return any(is_like(dev, (keep.dev,)) for dev in devs)


def _as_network(address: Address) -> IpNetwork:
    return type(address.network)(address.local)


def with_more(static: StaticRoutes, more: StaticRoutes) -> StaticRoutes:
    """Return a config's entries and a fix's, whose rules replace the config's for the same CIDR."""
    rules = {rule.to: rule for rule in (*static.rules, *more.rules)}
    return StaticRoutes(
        enabled=True,
        routes=[*static.routes, *more.routes],
        rules=[*rules.values()],
        keep=[*dict.fromkeys((*static.keep, *more.keep))],
    )


def _may_reach_unkept(routes: Iterable[Route], facts: Facts) -> bool:
    """Return whether routes of ours overlap networks of InfiniBand addresses that aren't kept."""
    bits = Family.IPV4.bits
    ours = PrefixSet((numbers(each.destination) for each in routes if each.is_ours), bits)
    return any(ours.overlaps(*ends(each.prefix, bits)) for each in _unkept(facts))


def _unkept(facts: Facts) -> Iterator[Address]:
    """Yield the addresses of InfiniBand interfaces that no rule of ours selects."""
    fabric = {link.name for link in facts.links if is_infiniband(link)}
    kept = {rule.source for rule in facts.rules if rule.is_ours}
    for address in facts.addresses:
        if address.dev in fabric and _as_network(address) not in kept:
            yield address


def _new_routes(plan: RoutePlan) -> list[Route]:
    return [*plan.add, *(item.new for item in plan.replace)]


def _new_rules(plan: RoutePlan) -> list[Rule]:
    return [rule for policy in plan.policies for rule in policy.rule_steps.add]


def _without_ipv6(routes: Sequence[Route], host: Host) -> list[RouteFailure]:
    """Return a failure for each IPv6 route through an interface on which a sysctl disables IPv6."""
    routes6 = [route for route in routes if route.family is Family.IPV6]
    if not routes6 or host.snapshot is not None:
        return []
    lacking = {*devs_without_ipv6(host.layout, host.routes.facts().links)}
    message = "IPv6 is disabled on nexthop device"
    return [
        RouteFailure(route, errnos.EACCES, message)
        for route in routes6
        if not lacking.isdisjoint(route.devs)
    ]


def planned_host(
    config: Config,
    host: Host,
    plan: RoutePlan,
    scope: CancelScope,
) -> PlannedHost:
    """Return a host as it would be after a plan."""
    changed = [family for family in Family if plan.of(family).changes]
    if not changed:
        return PlannedHost(host, plan)
    backend6 = host.routes6 if Family.IPV6 in changed else None
    inside = config.route_overlap.of(Family.IPV4).judged
    now = host.snapshot or take_snapshot(
        host.routes,
        backend6,
        inside=inside,
        selects_source=_selects_source(plan),
        scope=scope,
    )
    models: dict[Family, Model] = {}
    for family in changed:
        beneath = None if host.snapshot is not None else host.routes_of(family)
        of_family = plan.of(family)
        gone = [*of_family.remove, *(item.old for item in of_family.replace)]
        model = model_of(now.known(family), beneath)
        model = model.without(gone).with_routes(_new_routes(of_family))
        for policy in of_family.policies:
            model = _with_policy(model, policy)
        models[family] = model
    return PlannedHost(host, plan, models)


def without_printed(
    config: Config,
    host: Host,
    printed: Sequence[Printed],
    scope: CancelScope,
) -> Host:
    """Return a host as the next boot finds it: without what ``fix --format ip`` printed.

    Args:
        config: the config with the CIDRs that will be checked.
        host: the host as it is.
        printed: what ``read_printed`` has found on the host.
        scope: cancels the reads.
    """
    if host.snapshot is not None:
        return Host.recorded(_before_printing(host.snapshot))
    has_ipv6 = any(each.family is Family.IPV6 for each in printed)
    now = take_snapshot(
        host.routes,
        host.routes6 if has_ipv6 else None,
        inside=config.route_overlap.of(Family.IPV4).judged,
        selects_source=True,
        scope=scope,
    )
    models: dict[Family, RouteBackend] = {}
    for each in printed:
        model = model_of(now.known(each.family), host.routes_of(each.family))
        left = _not_printed(model.known.rules)
        models[each.family] = model.without(each.routes).with_rules(left)
    return host.with_backends(models)


def _before_printing(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot without what ``fix --format ip`` printed."""
    rules, routes = _not_printed(snapshot.rules), _not_printed(snapshot.routes)
    ipv6 = snapshot.ipv6
    if ipv6 is not None:
        ipv6 = attrs.evolve(ipv6, rules=_not_printed(ipv6.rules), routes=_not_printed(ipv6.routes))
    # Adding a rule has separated tables local and main for good (fib_unmerge).
    is_merged = snapshot.is_merged if rules == snapshot.rules else False
    return attrs.evolve(snapshot, rules=rules, routes=routes, ipv6=ipv6, is_merged=is_merged)


def _not_printed(items: Iterable[Printable]) -> tuple[Printable, ...]:
    return tuple(each for each in items if not each.is_printed)


def diverted_by(
    config: Config,
    host: Host,
    plan: RoutePlan,
    scope: CancelScope,
) -> tuple[str, ...]:
    """Return a sentence for each kind of packets that ``PlannedHost.diverted`` finds.

    If the kernel can't be queried, the only sentence says so.
    """
    try:
        return planned_host(config, host, plan, scope).effects(config, scope)
    except RouteError as error:
        return (unknown_effects(error),)


def _model_of_now(host: Host, config: Config, scope: CancelScope) -> Model:
    """Return a model of the host's IPv4 kernel as it is."""
    inside = config.route_overlap.of(Family.IPV4).judged
    now = host.snapshot or take_snapshot(
        host.routes, inside=inside, selects_source=True, scope=scope
    )
    return model_of(now.known(Family.IPV4))


def unknown_effects(error: RouteError) -> str:
    """Return a sentence which says that the effects of routes aren't known, and why."""
    return f"what these routes take away isn't known: {error.message}"


def _selects_source(plan: RoutePlan) -> bool:
    return any(rule.source for policy in plan.policies for rule in policy.wanted.rules)


def _with_policy(model: Model, policy: PolicyPlan) -> Model:
    replaced = policy.replace
    gone = [*policy.remove, *(pair.old for pair in replaced)]
    changed = model.without(gone).with_routes([*policy.add, *(pair.new for pair in replaced)])
    rules = model.facts().rules
    after = policy.rules_after(rules)
    return changed if after == rules else changed.with_rules(after)


def as_installed(config: Config, host: Host, scope: CancelScope | None = None) -> PlannedHost:
    """Return a host as it would be with a config's routes, rules and kept interfaces.

    A route or rule that doesn't win is included: a rule of the fix may make it win.

    Raises:
        RouteError: the routes can't currently be installed.
    """
    config = host.with_verified(config)
    plan = plan_to_install(config, host)
    planned = planned_host(config, host, plan, scope or CancelScope())
    planned.refuse()
    return planned


def plan_to_install(config: Config, host: Host) -> RoutePlan:
    """Plan the installation of a config with its verified uplinks.

    Raises:
        RouteError: the routes can't currently be installed.
    """
    backends = host.planned_backends(config)
    adopted = routes_to_adopt(host, replaces_script=config.static_routes.is_wanted)
    return plan_or_raise(config, _INSTALL, *backends, adopted=adopted)


def failure_key(finding: Finding) -> tuple[object, ...]:
    """Return what identifies a failure, with the addresses that fail."""
    return *finding_key(finding), finding.ranges


def finding_key(finding: Finding) -> tuple[object, ...]:
    """Return what identifies a failure, whatever addresses fail."""
    return finding.kind, finding.cidr, finding.devs, finding.source
