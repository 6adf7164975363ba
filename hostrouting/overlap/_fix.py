"""Pure: what fails -> the fewest static routes that mend it, and what no route can mend.

A route in table main mends an address if it is longer than what wins there now, or as long where that has a metric, and
if no rule decides before main. Each failing tile needs such a route; what must stay as it is may be covered by routes
that are shorter than its entry in main, which then change nothing there::

    172.16.0.0/16  dev ib0       fails: /17 and longer mend it
    172.16.3.7     dev ib0       fails, as a route of its own to one address: nothing is longer than /32, so it stays
    172.16.3.10    local         no route changes it, so it may be covered
    172.16.9.0/24  dev eth0      fine: what covers it must be shorter than /24
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from operator import itemgetter
from shlex import quote

import attrs

from hostrouting.config.routing import ONLINK, ExpectedCidr, StaticRoute
from hostrouting.kernel.fib import Fib
from hostrouting.kernel.nexthops import in_turn, unicast_defaults
from hostrouting.kernel.rules import Flow
from hostrouting.model.errors import RouteError
from hostrouting.model.links import is_like
from hostrouting.model.parsing import parse_device
from hostrouting.model.prefixes import Prefix, PrefixIndex, ends, numbers
from hostrouting.model.routes import NextHop, Route, Table
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.model.text import shortened
from hostrouting.overlap._cover import Neighbours, Piece, fewest_prefixes
from hostrouting.overlap._coverage import Tile, networks_of, tiles_in
from hostrouting.overlap._judge import Outcome, Outcomes
from hostrouting.overlap._reading import Reading, own_subnets, usable_devs
from hostrouting.overlap.findings import Finding, Obstacle, Remedy, Unmendable
from hostrouting.overlap.wording import decided_by
from hostrouting.routes.plan import plan_routes
from hostrouting.routes.resolve import resolve

# Where another program owns the network: a route would be undone, or break what it is for.
_OWNERS = (
    (("docker*", "br-*"), "Docker: move its address pools (bip, default-address-pools in daemon.json)"),
    (("podman*",), "Podman: move its subnets (default_subnet, default_subnet_pools in containers.conf)"),
    (("virbr*",), "libvirt: move its network (virsh net-edit)"),
    (
        ("tailscale*", "wg*", "tun*", "tap*", "ppp*", "zt*", "nebula*"),
        "a VPN: have it take fewer routes, or name it in routeOverlap.allowedDevs if it may carry this traffic",
    ),
)


# Where a rule passes over short routes, a wide CIDR would take more routes than a node should have.
_ROUTES_MAX = 4096


def _is_named_in_config(route: Route) -> bool:
    """Tell whether a static route can name the next hop of another."""
    is_plain = len(route.hops) == 1 and not isinstance(route.hops[0].gateway, IPv6Address)
    return is_plain and _is_nameable(route.hops[0].dev or "")


def _is_nameable(dev: str) -> bool:
    """Tell whether a config can name an interface."""
    try:
        parse_device(dev)
    except ValueError:  # the kernel allows $(reboot)
        return False
    return True


@attrs.frozen
class _Stake:
    """Demand that an answer makes on the routes that cover its addresses.

    Args:
        above: it fails, and a route that is longer than this mends it (-1: any does); None: else.
        obstacle: why it fails and no route can mend it; None: it doesn't, or one can.
        most: what is longer would change it; -1: whatever covers it.
        holder: instead of ``most`` the entry of table main that holds it; what is shorter changes nothing.
    """

    above: int | None = None
    obstacle: Obstacle | None = None
    most: int = -1
    holder: Route | None = None

    def piece(self, tile: Tile) -> Piece:
        """Return the demand for some of its addresses."""
        if self.above is not None:
            return Piece(tile.first, tile.last, is_target=True, above=self.above)
        most = self.most
        if self.holder is not None:
            # A large table isn't cut at each of its entries.
            destination = self.holder.destination
            first, last = ends(numbers(destination))
            most = destination.prefixlen - 1 if first <= tile.first and tile.last <= last else -1
        return Piece(tile.first, tile.last, is_target=False, most=most)


def _length_to_exceed(found: Route) -> int:
    """Return the length that an entry of table main must exceed to win over one that is there.

    Entries have no metric, so one of the same length wins over one that has. A connected route is refused a second.
    """
    is_outdone = found.table == Table.MAIN and found.metric > 0 and not found.is_connected
    return found.destination.prefixlen - is_outdone


class Remedies:
    """Fixes of the failures of a check.

    Args:
        reading: the host.
        default: of the reading: the entries inherit from it.
        outcomes: of each expected CIDR, by ``sort_answers``.
        nameservers: of resolv.conf.
    """

    def __init__(
        self,
        reading: Reading,
        default: Route,
        outcomes: Mapping[ExpectedCidr, Outcomes],
        nameservers: Iterable[IPv4Address] = (),
    ) -> None:
        self._reading, self._default, self._nameservers = reading, default, tuple(nameservers)
        tiles, devs = reading.tiles, reading.uplinks
        # Of two uplinks in one subnet the default route's has it, and one that takes no route has none.
        usable = usable_devs(reading.links, devs)
        self._own_subnets = own_subnets(reading.addresses, usable) | own_subnets(reading.addresses, default.devs)
        self._nested_subnets = PrefixIndex(self._own_subnets)
        # For each question what its first look-up means, of several CIDRs a failure; and which CIDR expects other
        # interfaces than those by which an entry would lead it.
        self._outcomes: dict[int, Outcome] = {}
        self._elsewhere: dict[int, tuple[ExpectedCidr, Sequence[str]]] = {}
        for expected, found in outcomes.items():
            for question in dict.fromkeys(tile.question for tile in tiles_in(tiles, numbers(expected.cidr))):
                outcome, known = found[question][0], self._outcomes.get(question)
                if known is None or outcome.is_failure or not known.is_failure:
                    self._outcomes[question] = outcome
                subnet = self._subnet_of((question, 32))
                by = default.devs if subnet is None else (self._own_subnets[subnet],)
                if not expected.allows_all(by):
                    self._elsewhere[question] = expected, by
        self._fib, self._tiles = reading.fib, tiles
        self._look_up = in_turn(lambda addresses: map(self._fib.lookup, addresses), reading.routes)
        # The config doesn't say whether the cluster is reached by these instead.
        rivals = {hop.dev or "" for route in unicast_defaults(reading.routes) for hop in route.hops} - {*devs}
        self._rivals = own_subnets(reading.addresses, () if reading.named is not None else tuple(rivals))
        self._nested_rivals = PrefixIndex(self._rivals)
        # The gateways behind all other interfaces, each with a route by it.
        self._gateways = {
            (hop.gateway, hop.dev): route for route in reading.routes for hop in route.hops if hop.dev not in devs
        }
        # Where a static route to the same destination would be refused.
        self._taken = {
            numbers(route.destination)
            for route in reading.routes
            if route.table == Table.MAIN and ((route.tos == 0 and route.metric == 0) or route.is_connected)
        }
        sizes: Counter[int] = Counter()
        for tile in self._tiles:
            sizes[tile.question] += tile.last - tile.first + 1
        self._stakes = {question: self._stake(outcome, sizes[question]) for question, outcome in self._outcomes.items()}

    def with_fixes(self, findings: Iterable[Finding], remedy: Remedy) -> Iterator[Finding]:
        """Yield the failures, each with those entries of the fix that mend some of it."""
        entries = {numbers(entry.destination): entry for entry in remedy.routes}
        places = PrefixIndex(entries)
        for finding in findings:
            ranges = finding.ranges if finding.source is None else ()
            mending = {place for network in ranges for place in self._mending(places, network)}
            yield attrs.evolve(finding, fix=tuple(entries[place] for place in sorted(mending)))

    def of_all(self) -> tuple[Remedy, Fib]:
        """Return the fix of all failures together, proven on the tables as they would be, and these tables."""
        stakes = [(tile, self._stakes[tile.question]) for tile in self._tiles]
        targets = [tile for tile, stake in stakes if stake.above is not None]
        found = fewest_prefixes([stake.piece(tile) for tile, stake in stakes], self._taken)
        entries = tuple(map(self._entry, found))
        places = [numbers(entry.destination) for entry in entries]
        mended = dict.fromkeys(first for place in places for first in self._mended_in(place, place))
        taken = Obstacle("a route that isn't used has this very destination and metric: remove it")
        obstacles = [(tile, stake.obstacle) for tile, stake in stakes if stake.obstacle is not None]
        obstacles += [(tile, taken) for tile in targets if tile.first not in mended]
        left: dict[tuple[tuple[str, ...], Obstacle], list[Tile]] = {}
        for tile, obstacle in obstacles:
            left.setdefault((self._outcomes[tile.question].devs, obstacle), []).append(tile)
        own = Neighbours(tile for tile in self._tiles if self._outcomes[tile.question].is_own)
        unmendable = [
            Unmendable(networks_of(group), devs, obstacle, tuple(own.around(group)))
            for (devs, obstacle), group in left.items()
        ]
        tables = self._tables_with(entries, map(IPv4Address, mended))
        if isinstance(tables, Fib):
            return Remedy(entries, tuple(unmendable), tuple(self._consequences(PrefixIndex(places)))), tables
        return Remedy((), (*unmendable, Unmendable(networks_of(targets), (), Obstacle(tables)))), self._fib

    # --- one answer --------------------------------------------------------------------------------------------

    def _stake(self, outcome: Outcome, size: int) -> _Stake:
        address = outcome.answer.lookup.address
        if outcome.is_own:
            # A longer route would change it only if table main is asked first and passes it on (suppressed, throw).
            beaten = self._beaten(address)
            return _Stake(most=beaten if isinstance(beaten, int) else 32)
        route = outcome.route
        entry = route if route is not None and route.table == Table.MAIN else None
        if not outcome.is_failure:
            # Where a rule decides before main, an entry would be seen not to win, and refused.
            return _Stake(holder=entry)
        if reason := self._not_ours_to_mend(address, outcome):
            return _Stake(obstacle=Obstacle(reason))
        holder = entry or self._fib.longest_match(Table.MAIN, address)
        if owner := self._owner(outcome.devs):
            return _Stake(obstacle=Obstacle(owner), holder=holder)
        above = self._above(address, outcome.devs)
        if isinstance(above, int) and (needed := size >> (31 - above)) > _ROUTES_MAX:
            reason = f"that takes {needed} routes longer than /{above}: change the rule that passes over shorter ones"
            above = Obstacle(reason)
        return _Stake(above, holder=holder) if isinstance(above, int) else _Stake(obstacle=above, holder=holder)

    def _not_ours_to_mend(self, address: IPv4Address, outcome: Outcome) -> str:
        if (found := self._elsewhere.get(int(address))) is not None:
            expected, by = found
            return f"{expected} is expected, and a route would lead it by {','.join(by)}"
        if (subnet := next(self._nested_rivals.around((int(address), 32)), None)) is not None:
            dev = self._rivals[subnet]
            return (
                f"it is in the subnet of {dev}, which has a default route too: name the uplinks (hostRouting.uplinks)"
            )
        if outcome.answer.lookup not in self._look_up([address]):
            return f"the kernel's answer doesn't follow from its tables and rules; see: ip route get fibmatch {address}"
        return ""

    def _owner(self, devs: Iterable[str]) -> str:
        foreign = [dev for dev in devs if dev not in self._reading.uplinks]
        owned = (
            f"{dev} belongs to {advice}" for dev in foreign for patterns, advice in _OWNERS if is_like(dev, patterns)
        )
        return next(owned, "")

    def _above(self, address: IPv4Address, devs: Iterable[str]) -> int | Obstacle:
        """Return the length that a route must exceed to mend an address; or why none can."""
        beaten = self._beaten(address)
        if isinstance(beaten, Obstacle):
            return beaten
        if beaten == 32:
            entry = self._fib.find(Table.MAIN, Flow(address))
            return Obstacle(f"{entry} is for this address alone, and no route is longer: remove it")
        for dev in devs:
            if (route := self._gateways.get((address, dev))) is not None:
                return Obstacle(f"it is the gateway of {route}: move that gateway, or remove the route")
        subnet = self._subnet_of((int(address), 32))
        if subnet is None:
            return Obstacle(self._lost_gateway) if self._lost_gateway else beaten
        dev = self._own_subnets[subnet]
        if (self._names_devs or self._has_lost_source) and not _is_nameable(dev):
            return Obstacle(f"it is on the link of {dev}, a name that no config takes: rename it")
        return max(beaten, subnet[1] - 1)

    def _beaten(self, address: IPv4Address) -> int | Obstacle:
        """Return the length that a new entry of table main must exceed; or why main isn't asked."""
        last: Rule | None = None
        bounds: list[int] = []
        dev = self._default.devs[0]
        for rule, found in self._fib.asked(Flow(address), own=dev):
            last = rule
            # While local and main are one trie, local's turn is main's too.
            is_main = rule.table == Table.MAIN or (rule.table == Table.LOCAL and self._fib.is_merged)
            shortest = -1 if rule.suppress_prefix_length is None else rule.suppress_prefix_length
            if rule.action is RuleAction.TO_TABLE and is_main and not self._fib.suppresses(rule, 32, dev):
                # What is too short for this rule may be long enough for the next that asks main.
                bounds.append(max(-1 if found is None else _length_to_exceed(found), shortest))
        if bounds:
            return min(bounds)
        decision = self._fib.decide(address)
        if last is None or decision.rule is None:
            return Obstacle("no policy rule leads to table main: add one: ip rule add preference 32766 lookup main")
        if decision.route is not None and decision.route.table == Table.LOCAL:
            return Obstacle(f"{decision.route} decides before table main is asked: remove it")
        return Obstacle.of_rule(f"{decided_by(last)} before table main is asked", last, self._default.hops)

    @cached_property
    def _has_lost_source(self) -> bool:
        """Tell whether the default route names a src that isn't this host's; the kernel refuses a route with it."""
        source = self._default.source
        return source is not None and not self._fib.is_own(source)

    @cached_property
    def _lost_gateway(self) -> str:
        """Why the kernel would refuse entries by the default route's gateways; "" if it wouldn't."""
        default = self._default
        if self._has_lost_source and not _is_named_in_config(default):
            return f"the kernel would refuse entries with the src of {default}: it is no address of this host"
        for hop in default.hops:
            gateway, dev = hop.gateway, hop.dev
            if hop.is_dead or dev is None or not isinstance(gateway, IPv4Address):
                continue
            if hop.onlink and (claim := self._fib.claims_gateway(gateway)) is not None:
                return f"the kernel would refuse entries via {gateway}, as it is in {claim}: remove that"
            if hop.onlink or self._fib.finds_gateway(gateway, dev):
                continue
            reason = f"the kernel would refuse entries via {gateway}: by its rules it finds no route to it on {dev}"
            own = Route(IPv4Network(gateway), (NextHop(dev),))
            if not self._fib.with_changes(add=[own]).finds_gateway(gateway, dev):
                return f"{reason}; change them"
            named = f', "dev": {json.dumps(dev)}' if len(default.devs) > 1 else ""
            entry = f'{{"destination": "{gateway}/32", "gateway": "onlink"{named}}}'
            return f"{reason}; change them, or first add an entry to it alone: {entry}"
        return ""

    def _subnet_of(self, prefix: Prefix) -> Prefix | None:
        """Return the innermost subnet of the uplinks that a prefix lies in."""
        return next(self._nested_subnets.around(prefix), None)

    # --- the entries -------------------------------------------------------------------------------------------

    def _entry(self, network: IPv4Network) -> StaticRoute:
        subnet, default = self._subnet_of(numbers(network)), self._default
        if self._has_lost_source:
            # What names gateway and device inherits nothing, so no src.
            if subnet is not None:
                return StaticRoute(network, ONLINK, self._own_subnets[subnet])
            (hop,) = default.hops
            return StaticRoute(network, hop.gateway if isinstance(hop.gateway, IPv4Address) else ONLINK, hop.dev)
        if subnet is not None:
            return StaticRoute(network, ONLINK, self._own_subnets[subnet] if self._names_devs else None)
        # The default route that wins may be another one's.
        is_one = self._reading.named is not None and len(default.devs) == 1 and _is_nameable(default.devs[0])
        return StaticRoute(network, dev=default.devs[0] if is_one else None)

    @property
    def _names_devs(self) -> bool:
        """Tell whether an entry for the link of an uplink has to name it."""
        return self._reading.named is not None or len(self._default.devs) > 1

    def _tables_with(self, entries: Sequence[StaticRoute], mended: Iterable[IPv4Address]) -> Fib | str:
        """Return the tables as the planner would leave them; or why the entries don't do what they shall."""
        reading = self._reading
        main = [route for route in reading.routes if route.table == Table.MAIN]
        try:
            routes, missing = resolve(entries, reading.links, reading.addresses, main, reading.named)
            # Ours that are there stay: the entries are meant to join them.
            plan = plan_routes(routes, [route for route in main if not route.is_ours])
        except RouteError as error:
            return str(error)
        if missing:
            return missing
        fib = self._fib.with_changes(add=plan.add)
        for address in mended:
            answer = fib.lookup(address).route
            if answer is None or not set(answer.devs) <= set(reading.uplinks):
                return f"{address} would still not leave by {','.join(reading.uplinks)}"
        return fib

    def _mended_in(self, prefix: Prefix, entry: Prefix) -> list[int]:
        """Return the first address of each piece of an interval that an entry mends, within or around a prefix."""
        first, _ = inner = max(prefix, entry, key=itemgetter(1))
        mended = []
        for tile in tiles_in(self._tiles, inner):
            above = self._stakes[tile.question].above
            if above is not None and above < entry[1]:
                mended.append(max(first, tile.first))
        return mended

    def _mending(self, entries: PrefixIndex, network: IPv4Network) -> list[Prefix]:
        """Return the entries that mend something in a network."""
        prefix = numbers(network)
        return sorted(entry for entry in entries.meeting(prefix) if self._mended_in(prefix, entry))

    def _consequences(self, entries: PrefixIndex) -> Iterator[str]:
        """Yield what a fix moves besides the expected traffic."""
        reading = self._reading
        by = ",".join(self._default.devs)
        neighbours: dict[IPv4Network, list[str]] = {}
        for address in reading.addresses:
            if address.dev not in reading.uplinks and address.prefix_length < 32:
                neighbours.setdefault(address.network, []).append(address.dev)
        for subnet, devs in neighbours.items():
            if parts := [str(IPv4Network(entry)) for entry in self._mending(entries, subnet)]:
                yield (
                    f"the node then reaches neighbours of {', '.join(dict.fromkeys(devs))} in {subnet} by {by} "
                    f"({shortened(parts, ' ', 8)}); if an interface must still answer them itself, give it a table: "
                    f"ip route add {subnet} dev {quote(devs[0])} table 100; ip rule add from ITS-ADDRESS lookup 100"
                )
        for server in self._nameservers:
            now = self._fib.lookup(server).route
            if now is not None and self._mending(entries, IPv4Network(server)):
                yield f"the node then reaches the DNS server {server} of resolv.conf by {by}, not {','.join(now.devs)}"
