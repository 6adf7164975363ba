"""Check by lookups of a few addresses that the kernel uses our rules and side tables.

After it has installed the rules at boot, the boot script looks up the same addresses.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from ipaddress import IPv4Address
from itertools import chain

from hostrouting.config.routing import KEEP_PRIORITIES
from hostrouting.kernel.fib import Fib
from hostrouting.kernel.port import Facts, RouteBackend
from hostrouting.kernel.rules import KERNEL_RULES, NO_SOURCE, Flow
from hostrouting.kernel.translating import foreign_name
from hostrouting.model.errors import Refusal, RouteError
from hostrouting.model.family import IpAddress, IpNetwork
from hostrouting.model.lookups import Lookup
from hostrouting.model.parsing import is_inside
from hostrouting.model.routes import Route, RouteType, Table, how_to_delete_all_printed, word_of
from hostrouting.model.rules import Rule, RuleAction, rule_words
from hostrouting.model.text import counted, shortened, with_runs
from hostrouting.routes.plan import read_policy
from hostrouting.routes.policy import PolicyPlan, PolicyRouting
from hostrouting.routes.verify import gone_route, left_route, read_fib

# The maximum number of addresses of a network to look up. One isn't enough, because the network's
# first address may be this host's own.
_TRIED = 4

# A message names at most this many interfaces.
_SHOWN_DEVS = 8

# An address of TEST-NET-2 (RFC 5737), which no host has.
ELSEWHERE = IPv4Address("198.51.100.1")

_BY_PRINTED = "by a rule that hostrouting fix --format ip has added"
_LASTING = "if CONFIG has the same (hostrouting fix --in-place), delete what it printed: {}"
_ONLY_LATER = "our rule decides only if that one has a higher preference"
# A hint moves another program's rule to this preference, or to the one after ours if that is
# higher.
_LATER = 5000
# Words that are safe to paste into a shell.
_PASTEABLE = re.compile(r"[\w./: -]+")

_NOT_TWICE = "other rules keep {} already: no entry of hostRouting.staticRoutes.keep may match it"

_OF_THIS_HOST = (RouteType.LOCAL, RouteType.BROADCAST, RouteType.ANYCAST)


def verify_policy(wanted: PolicyRouting, backend: RouteBackend) -> None:
    """Check that table main decides about the rules' CIDRs, and side tables about kept addresses.

    A lookup without a result is no error, because table main may have no route to a CIDR. But a
    kept interface with a gateway must have a route to any address.

    Args:
        wanted: the rules, and the routes in side tables, that must be in effect.
        backend: the backend for kernel access.

    Raises:
        RouteError: packets use another table. The error names the rule that looks up that table, or
            those of our own rules and routes that are gone.
    """
    # The tables are read only if something is refused, and only once.
    read = cache(lambda: read_fib(backend, backend.facts()))
    refusals = [*_late_rules(wanted, backend, read), *_lost_addresses(wanted, backend, read)]
    if refusals:
        # Without our own rules, packets use other programs' rules, which aren't the reason then.
        raise RouteError.of([*_gone(wanted, read_policy(backend), backend)] or refusals)


def verify_policy_changes(plan: PolicyPlan, backend: RouteBackend) -> None:
    """Check that a plan's changes have been made, by reading our rules and side tables.

    Raises:
        RouteError: a rule or route is missing, or is still there.
    """
    if not plan.changes:
        return
    there = read_policy(backend)
    refusals = [*_gone(plan.wanted, there, backend), *_left(plan, there, backend)]
    if refusals:
        raise RouteError.of(refusals)


def _gone(
    wanted: PolicyRouting,
    there: PolicyRouting,
    backend: RouteBackend,
) -> Iterator[Refusal]:
    """Yield a refusal for each of our rules and routes that the host doesn't have."""
    rules = {*there.rules}
    for rule in wanted.rules:
        if rule not in rules:
            state = "isn't among the rules"
            yield _rule_refusal(rule, state, f"{state} any more", "removed", backend)
    keys = {route.key for route in there.routes}
    for route in wanted.routes:
        if route.key not in keys:
            yield gone_route(route, backend)


def _left(plan: PolicyPlan, there: PolicyRouting, backend: RouteBackend) -> Iterator[Refusal]:
    """Yield a refusal for each removed rule and route that the host still has."""
    steps = plan.rule_steps
    left = {*there.rules}.difference(plan.wanted.rules)
    for rule in dict.fromkeys((*steps.remove_first, *steps.remove)):
        if rule in left:
            states = "is still among the rules", "is among the rules again"
            yield _rule_refusal(rule, *states, "added", backend)
    keys = {route.key for route in there.routes}.difference(each.key for each in plan.wanted.routes)
    for route in plan.remove:
        if route.key in keys:
            yield left_route(route, backend)


def _rule_refusal(
    rule: Rule,
    state: str,
    state_now: str,
    done: str,
    backend: RouteBackend,
) -> Refusal:
    what = f"the rule {rule_words(rule)}"
    if name := foreign_name(backend):
        reason = f"{name}.write_rules reported no failure, but {what} {state}"
    else:
        reason = f"{what} {state_now}: another program has just {done} it"
    return Refusal(reason, "look at: ip monitor rule")


# --- rules ----------------------------------------------------------------------------------------


def _late_rules(
    wanted: PolicyRouting,
    backend: RouteBackend,
    read: Callable[[], Fib],
) -> Iterator[Refusal]:
    """Yield a refusal for each rule for table main that another rule makes ineffective."""
    probes: dict[Rule, list[IpAddress]] = {}
    for rule in wanted.rules:
        if rule.destination is not None and rule.table == Table.MAIN:
            probes[rule] = _first_addresses(rule.destination)
    if not probes:
        return
    addresses = [*dict.fromkeys(chain.from_iterable(probes.values()))]
    found = dict(zip(addresses, backend.lookup(addresses), strict=True))
    for rule, tried in probes.items():
        answer = _first_beyond(found[address] for address in tried)
        if answer is not None and not _is_by_main(answer):
            what = f"the rule {rule_words(rule)} has no effect"
            yield _refusal(what, answer, _why_beaten(answer, rule, read()))


def _first_addresses(network: IpNetwork) -> list[IpAddress]:
    count = min(_TRIED, network.num_addresses)
    return [network[number] for number in range(count)]


def _first_beyond(answers: Iterable[Lookup]) -> Lookup | None:
    """Return the first lookup whose address isn't this host's own, or None."""
    return next((answer for answer in answers if not _is_of_this_host(answer)), None)


def _is_by_main(answer: Lookup) -> bool:
    """Return whether a lookup found an entry in table main, or no entry at all."""
    return answer.route is None or answer.route.table == Table.MAIN


def _is_of_this_host(answer: Lookup) -> bool:
    route = answer.route
    return route is not None and (route.table == Table.LOCAL or route.type in _OF_THIS_HOST)


# --- kept interfaces ------------------------------------------------------------------------------


def _lost_addresses(
    wanted: PolicyRouting,
    backend: RouteBackend,
    read: Callable[[], Fib],
) -> Iterator[Refusal]:
    """Yield a refusal for each reason why kept addresses' packets don't stay on their interface.

    A refusal names the first of these addresses, and counts the others.
    """
    if not wanted.routes:
        return
    lost = _lost_by_reason(wanted, backend, read)
    devs = {dev for answers in lost.values() for _, dev in answers}
    kept = {dev for dev in devs if _is_kept_already(dev, wanted, read())}
    not_twice = _NOT_TWICE.format(", ".join(with_runs(sorted(kept))))
    for why, answers in lost.items():
        (source, dev), *others = answers
        what = f"can't keep {source} on {dev}{_and_others(others)}"
        refusal = _refusal(what, answers[source, dev], why, f" from {source}")
        is_kept = all(dev in kept for _, dev in answers)
        yield refusal._replace(hint=not_twice) if is_kept else refusal


def _lost_by_reason(
    wanted: PolicyRouting,
    backend: RouteBackend,
    read: Callable[[], Fib],
) -> dict[Refusal, dict[tuple[IpAddress, str], Lookup]]:
    """Return the kept addresses whose packets leave their interface, by the reason.

    Each comes with its interface, and with the lookup that shows this.
    """
    facts = backend.facts()
    lost: dict[Refusal, dict[tuple[IpAddress, str], Lookup]] = {}
    for source, table in _sources(wanted.rules):
        routes = [route for route in wanted.routes if route.table == table]
        if not _has_carrier(routes, facts):
            continue  # the kernel may skip routes through an interface without a carrier
        probes = [*_probes(routes, facts)]
        (dev,) = _devs_of(routes)
        for answer in backend.lookup(probes, source=source):
            if not _is_kept(answer, table):
                rule = next(each for each in wanted.rules if each.table == table)
                why = _why_beaten(answer, rule, read(), source)
                lost.setdefault(why, {}).setdefault((source, dev), answer)
    return lost


def _is_kept_already(dev: str, wanted: PolicyRouting, fib: Fib) -> bool:
    """Return whether other programs' rules before ours keep all packets that our rules would keep.

    Args:
        dev: a kept interface.
        wanted: the rules, and the routes in side tables.
        fib: the host's rules and tables.
    """
    ours = [route for route in wanted.routes if dev in route.devs]
    networks = [route.destination for route in ours]
    if any(network.prefixlen == 0 for network in networks):
        return False  # with a gateway, there is more to keep than a network
    tables = {route.table for route in ours}
    return all(
        _are_led_through(dev, networks, source, fib)
        for source, table in _sources(wanted.rules)
        if table in tables
    )


def _are_led_through(
    dev: str,
    networks: Iterable[IpNetwork],
    source: IpAddress,
    fib: Fib,
) -> bool:
    """Return whether rules before ours lead packets from an address directly into its networks."""
    before = [
        rule
        for rule in fib.rules
        if rule.preference < KEEP_PRIORITIES[0] and not rule.is_ours and _may_select(rule, source)
    ]
    if any(rule.action is not RuleAction.TO_TABLE or rule.is_l3mdev for rule in before):
        return False
    return all(_are_direct(dev, network, before, fib) for network in networks)


def _are_direct(dev: str, network: IpNetwork, rules: Iterable[Rule], fib: Fib) -> bool:
    """Return whether rules lead all packets to a network directly to an interface, by source."""
    is_covered = False
    for rule in rules:
        routes = _routes_for(network, rule.table, fib)
        if not all(_is_direct(route, dev) for route in routes):
            return False
        covers = any(is_inside(network, each.destination) for each in routes)
        is_covered |= covers and _is_by_source(rule)
    return is_covered


def _may_select(rule: Rule, source: IpAddress) -> bool:
    """Return whether a rule may match packets from an address to another host."""
    is_local = rule.action is RuleAction.TO_TABLE and rule.table == Table.LOCAL
    is_other = rule.source is not None and source not in rule.source and not rule.is_inverted
    return not (is_local or is_other)


def _is_by_source(rule: Rule) -> bool:
    """Return whether a rule's only selector is a source."""
    usual = Rule(rule.preference, table=rule.table, source=rule.source, protocol=rule.protocol)
    return rule.source is not None and rule == usual


def _routes_for(network: IpNetwork, table: int, fib: Fib) -> list[Route]:
    """Return the routes of a table that can decide about addresses of a network."""
    routes = [route for route in fib.routes if route.table == table]
    inside = [route for route in routes if is_inside(route.destination, network)]
    around = [route for route in routes if is_inside(network, route.destination)]
    longest = max((route.destination.prefixlen for route in around), default=0)
    return [*inside, *(each for each in around if each.destination.prefixlen == longest)]


def _is_direct(route: Route, dev: str) -> bool:
    """Return whether a route sends to neighbours on an interface, or delivers to this host."""
    if route.type in _OF_THIS_HOST:
        return True
    is_direct = all(hop.gateway is None for hop in route.hops)
    return route.type is RouteType.UNICAST and route.devs == (dev,) and is_direct


def _and_others(lost: Sequence[tuple[IpAddress, str]]) -> str:
    """Return a clause with the number of further lost addresses, and their interfaces."""
    if not lost:
        return ""
    devs = with_runs(dict.fromkeys(dev for _, dev in lost))
    return f", nor {counted(len(lost), 'other address')} on {shortened(devs, ', ', _SHOWN_DEVS)}"


def _sources(rules: Iterable[Rule]) -> list[tuple[IpAddress, int]]:
    """Return the kept addresses, each with its side table."""
    pairs = dict.fromkeys(
        (rule.source.network_address, rule.table)
        for rule in rules
        if rule.source is not None and rule.table != Table.MAIN
    )
    return [*pairs]


def _devs_of(routes: Iterable[Route]) -> set[str]:
    return {dev for route in routes for dev in route.devs}


def _has_carrier(routes: Sequence[Route], facts: Facts) -> bool:
    names = _devs_of(routes)
    return all(link.has_carrier for link in facts.links if link.name in names)


def _probes(routes: Iterable[Route], facts: Facts) -> Iterator[IpAddress]:
    """Yield an address of another host to look up for each route of a side table."""
    own = {address.local for address in facts.addresses}
    for route in routes:
        network = route.destination
        if network.prefixlen == 0:
            yield ELSEWHERE
            continue
        count = min(_TRIED + 1, network.num_addresses)
        numbers = range(1, count) if count > 1 else range(1)
        address = next((network[each] for each in numbers if network[each] not in own), None)
        if address is not None:
            yield address


def _is_kept(answer: Lookup, table: int) -> bool:
    """Return whether a lookup from a kept address has a result that the rules of ``keep`` allow.

    Args:
        answer: the lookup from the kept address to one of ``_probes``.
        table: the number of the address's side table.
    """
    route = answer.route
    is_far = answer.address == ELSEWHERE
    if route is None:
        return not is_far
    if route.table == table or _is_of_this_host(answer):
        return True
    # Apart from its default route, table main precedes the side table's default route.
    return is_far and route.table == Table.MAIN and route.destination.prefixlen > 0


# --- the reason -----------------------------------------------------------------------------------


def _refusal(what: str, answer: Lookup, why: Refusal, origin: str = "") -> Refusal:
    """Return a refusal, given the reason that ``_why_beaten`` returns for a lookup."""
    return Refusal(f"{what}: packets to {answer.address}{origin} go {why.message}", why.hint)


def _why_beaten(
    answer: Lookup,
    ours: Rule,
    fib: Fib,
    source: IpAddress | None = None,
) -> Refusal:
    """Return where packets go instead, which rule makes them bypass ours, and what to do."""
    where = f"by {answer.route}"
    if answer.route is None:
        where = f"nowhere ({os.strerror(answer.errno or 0)})"
    look = f"look at: ip -{fib.family.value} rule"
    flow = Flow(answer.address, source or NO_SOURCE)
    if (jump := _jump_over(ours, fib, flow)) is not None:
        return Refusal(f"{where}, because the rule {rule_words(jump)} jumps over ours", look)
    rule = _deciding_rule(answer, fib, flow)
    if rule is None:
        return Refusal(where, look)
    reason = f"{where}, because of the rule {rule_words(rule)}"
    if rule.table == Table.LOCAL and rule.has_table:
        # No rule must come before table local's: this host's own addresses are there.
        return Refusal(reason, f"look at: ip -{fib.family.value} route show table local")
    if rule.is_printed:
        # The same reason and hint for all addresses, which are then one refusal.
        return Refusal(_BY_PRINTED, _LASTING.format(how_to_delete_all_printed()))
    if rule.preference > ours.preference:
        return Refusal(f"{reason}, as table {word_of(ours.table, Table)} has no route there", look)
    return Refusal(reason, _how_to_move(rule, ours, fib) or f"{_ONLY_LATER}; {look}")


def _how_to_move(rule: Rule, ours: Rule, fib: Fib) -> str:
    """Return a hint with the commands that move another program's rule behind ours.

    Rules between that rule and ours move with it, because they may belong together. For example,
    wg-quick's first rule looks up table main, and its second one leads everything else into the
    tunnel. The last rule moves first, so that meanwhile, the tunnel takes no packets that main has
    routes for. The hint is empty if the rules can't be moved.
    """
    first = max(_LATER, ours.preference + 1)
    moving = _movable(rule, ours, fib, first)
    if not moving:
        return ""
    ip = f"ip -{fib.family.value} rule"
    commands = [
        f"{ip} add {each} preference {preference} && {ip} del {each} preference {each.preference}"
        for preference, each in enumerate(moving, first)
    ]
    what = f"it with preference {first}"
    if len(moving) > 1:
        what = f"them with the preferences {first} to {first + len(moving) - 1}"
    return (
        f"{_ONLY_LATER}: {' && '.join(reversed(commands))}; and have its owner add {what}"
        " (wg-quick: Table = off, and the routes and rules as PostUp)"
    )


def _movable(rule: Rule, ours: Rule, fib: Fib, first: int) -> list[Rule]:
    """Return a rule and the rules between it and ours, or an empty list if one of them can't move.

    A rule that looks up no table or table local, or can't be written as a command, can't move. The
    rules can't move behind table main's rule either, or behind a rule of another program that comes
    after ours now.

    Args:
        rule: another program's rule, which must move behind ours.
        ours: our rule, which the other rule precedes.
        fib: the host's rules.
        first: the new preference of the first returned rule.
    """
    behind = [each for each in fib.rules if each.preference >= rule.preference and not each.is_ours]
    moving = [each for each in behind if each.preference < ours.preference]
    last = first + len(moving) - 1
    further = range(ours.preference + 1, last + 1)
    is_free = last < KERNEL_RULES[1].preference
    is_free &= not any(each.preference in further for each in behind)
    return moving if is_free and rule in moving and all(map(_may_move, moving)) else []


def _may_move(rule: Rule) -> bool:
    return rule.table != Table.LOCAL and _is_expressible(rule)


def _is_expressible(rule: Rule) -> bool:
    is_lookup = rule.action is RuleAction.TO_TABLE
    words = str(rule)
    return is_lookup and _PASTEABLE.fullmatch(words) is not None and " and " not in words


def _jump_over(ours: Rule, fib: Fib, flow: Flow) -> Rule | None:
    """Return the rule whose goto skips our rule, or None."""
    for rule, is_met, _ in fib.evaluated_rules(flow):
        target = rule.goto if rule.action is RuleAction.GOTO else None
        if is_met and target is not None and rule.preference < ours.preference < target:
            return rule
    return None


def _deciding_rule(answer: Lookup, fib: Fib, flow: Flow) -> Rule | None:
    """Return the rule that ends a lookup in a model; None if the kernel's lookup ends elsewhere."""
    decision = fib.decide(flow)
    if answer.route is None:
        return decision.rule if decision.errno == answer.errno else None
    if decision.route is None:
        return None
    return decision.rule if decision.route.table == answer.route.table else None
