"""Compare the differences between two random hosts with the kernel's lookups, and take the causes
back in the kernel.
"""

from __future__ import annotations

import random
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import attrs
import pytest
from audit.making import make
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from nightly import by_day, printed
from node import nics
from worlds import boundaries, ipv6
from worlds.hosts import Host, hosts

from hostrouting.kernel.default_routes import with_every_default
from hostrouting.kernel.host_changes import HostChanges
from hostrouting.kernel.known_host import KnownHost
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.kernel.port import RouteBackend, read_routes
from hostrouting.kernel.rules import kernel_rules
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.kernel.sources import spread
from hostrouting.kernel.taking_snapshots import take_snapshot
from hostrouting.kernel.unshare import Namespace
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.lookups import Lookup
from hostrouting.model.routes import Route, RouteType, Scope, Table
from hostrouting.overlap.difference import Difference, compare

pytestmark = pytest.mark.kernel

ASKED_MAX = 400

# --- random changes -------------------------------------------------------------------------------


def changes_of(steps: Sequence[str], others: Sequence[str], chance: random.Random) -> list[str]:
    """Return the commands of one to five random changes of a host. Some may fail.

    Args:
        steps: the commands that build the host.
        others: the commands that build another host, from which things are added to this one.
        chance: the random numbers.
    """
    devs = re.findall(r"^ip link add (\S+) ", "\n".join(steps), re.MULTILINE)
    own = [
        step
        for step in steps
        if re.match(r"ip (-6 )?(route|rule|address|nexthop) (add|append) ", step)
    ]
    new = [
        step
        for step in others
        if re.match(r"ip (-6 )?(route|rule|address) (add|append|del) ", step)
    ]
    new += [step for step in others if step.startswith("ra ") and step.split()[1] in devs]
    prefixes = re.findall(
        r"^ip -6 (?:address|route) add (?:unicast )?(\S+:\S*/\d+)", "\n".join(own), re.MULTILINE
    )

    def change() -> list[str]:
        dev, some = (
            chance.choice(devs),
            [step for step in own if shlex.split(step)[-1:] != ["lo"]] or [*steps],
        )
        return chance.choice(
            (
                *[[undone(chance.choice(some))]] * 4,
                *[[added(chance.choice(new or some), chance)]] * 3,
                [f"ip link set {dev} down", f"ip link set {dev} up"],
                [f"ip link set {dev} {chance.choice(('down', 'group 3'))}"],
                [f"ip link set {'peer-' + dev if '$' not in dev else dev} down"],
                [undone(some[0]), some[0]],
                *[
                    [f"ip addrlabel add prefix {prefix} label 99"]
                    for prefix in prefixes and [chance.choice(prefixes)]
                ],
            )
        )

    return [step for _ in range(chance.randint(1, 5)) for step in change()]


def undone(step: str) -> str:
    """Return the command that takes back what another one has added."""
    words = re.sub(r" (expires \d+|preferred_lft \d+|nodad|noprefixroute|onlink)\b", "", step)
    return re.sub(r" (add|append|replace) ", " del ", words, count=1)


def added(step: str, chance: random.Random) -> str:
    verb = chance.choice(("add", "append", "replace", "prepend"))
    return step.replace(" route add ", f" route {verb} ", 1)


# --- the kernel's lookups -------------------------------------------------------------------------


def told(
    kernel: RouteBackend, addresses: Iterable[IpAddress], called: Iterable[IpAddress]
) -> dict[IpAddress, frozenset[object]]:
    """Return all that the kernel's lookups say about each address.

    Args:
        kernel: the kernel to query.
        addresses: the destinations.
        called: the addresses from which a server may reply.
    """
    found: dict[IpAddress, set[object]] = {address: set() for address in addresses}
    look_up = with_every_default(kernel.lookup, read_routes(kernel))
    for is_tcp in (False, True):
        asked: defaultdict[tuple[str, IpAddress], set[IpAddress]] = defaultdict(set)
        asked.update({("reply", source): {*found} for source in called})
        sent: list[tuple[Route, Sequence[IpAddress]]] = []
        firsts = look_up([*found], is_tcp=is_tcp)
        unrouted = [each.address for each in firsts if each.route is None]
        # A socket doesn't see the result of a failed IPv6 lookup, but that of the next one, from a
        # source.
        retried = kernel.sources([(None, [address]) for address in unrouted], is_tcp=is_tcp)
        repeated = {
            address: source
            for address, sources in zip(unrouted, retried, strict=True)
            for source in sources
        }
        for address, source in repeated.items():
            asked["connection", source].add(address)
            found[address].update(
                (is_tcp, where(each)) for each in look_up([address], source=source, is_tcp=is_tcp)
            )
        for address, first in (
            (each.address, each) for each in firsts if each.address not in repeated
        ):
            found[address].add((is_tcp, where(first)))
            if first.route is not None and first.route.type is not RouteType.LOCAL:
                sent.append((first.route, spread(first.route, [address])))
        chosen = kernel.sources(sent, is_tcp=is_tcp)
        for (_, (address, *_)), sources in zip(sent, chosen, strict=True):
            for source in sources:
                asked["connection", source].add(address)
        for (kind, source), some in asked.items():
            for lookup in look_up([*some], source=source, is_tcp=is_tcp):
                found[lookup.address].add((is_tcp, kind, source, where(lookup)))
    return {address: frozenset(answers) for address, answers in found.items()}


def where(lookup: Lookup) -> object:
    """Return the type, interfaces and gateways of a lookup's result."""
    if lookup.route is None:
        return lookup.discarded_by
    return lookup.route.type, frozenset(
        (hop.dev, hop.gateway) for hop in lookup.route.hops if not hop.is_dead
    )


@attrs.frozen
class Side:
    """A host in a network namespace of its own.

    Args:
        namespace: the namespace.
        family: the family of interest.
        snapshot: a snapshot of the host.
    """

    namespace: Namespace
    family: Family
    snapshot: Snapshot

    @classmethod
    def of(
        cls,
        steps: Sequence[str],
        family: Family,
        correct: Callable[[KnownHost], Iterable[str]] = lambda _: (),
    ) -> Side:
        """Build a host with commands, and with more commands that depend on the result."""
        namespace = Namespace()

        def build() -> Snapshot:
            kernel = NamespaceKernel()
            kernel.set_link("lo", up=True)
            make(steps)
            make([*correct(take_snapshot(kernel, NetlinkBackend6()).known(family))])
            return take_snapshot(kernel, NetlinkBackend6())

        return cls(namespace, family, namespace.run(build))

    @property
    def tables(self) -> KnownHost:
        return self.snapshot.known(self.family)

    def told(
        self, asked: Iterable[IpAddress], called: Sequence[IpAddress]
    ) -> dict[IpAddress, frozenset[object]]:
        backend = NetlinkBackend() if self.family is Family.IPV4 else NetlinkBackend6()
        return self.namespace.run(lambda: told(backend, asked, called))


# --- a snapshot's host in the kernel --------------------------------------------------------------


def loading(known: KnownHost) -> Iterator[str]:
    """Yield commands that build a host's links, addresses and rules in an empty namespace."""
    family, names = known.family, {link.name for link in known.links}
    yield "sysctl -qw net.ipv6.conf.default.addr_gen_mode=1"
    yield from nics(
        *(shlex.quote(link.name) for link in known.links if f"peer-{link.name}"[:15] in names)
    ).splitlines()
    yield from (
        f"ip link set {shlex.quote(link.name)} group {link.group}"
        for link in known.links
        if link.group
    )
    # A dump of IPv6 addresses begins with the newest one.
    for each in known.addresses if family is Family.IPV4 else reversed(known.addresses):
        peer = f" peer {each.peer}" if each.peer else ""
        words = (
            f"{each.local}{peer}/{each.prefix_length} dev {shlex.quote(each.dev)} noprefixroute "
            f"scope {each.scope}"
        )
        words += " nodad" if family is Family.IPV6 else ""
        words += (
            " preferred_lft 0 valid_lft forever" if getattr(each, "is_deprecated", False) else ""
        )
        yield from () if each.dev == "lo" else (f"{family.ip} address add {words}",)
    standard = kernel_rules(family)
    for rule in (rule for rule in known.rules if rule not in standard):
        words = str(rule if rule.has_table else attrs.evolve(rule, suppress_prefix_length=None))
        yield (
            f"{family.ip} rule add {words.replace('and ports', 'dport 443')} pref {rule.preference}"
        )
    yield from (
        f"{family.ip} rule del pref {each.preference}"
        for each in standard
        if each not in known.rules
    )
    if family is Family.IPV6:
        yield from (
            f"ip neigh replace {router} dev {dev} nud failed"
            for dev, router in known.silent_routers
        )
        yield "ip addrlabel flush"
        # Of two labels of a prefix, the newest one comes first.
        for label in reversed(known.labels or ()):
            on = f" dev {shlex.quote(label.dev)}" if label.dev else ""
            yield f"ip addrlabel add prefix {label.prefix}{on} label {label.label}"


def correcting(there: KnownHost, wanted: KnownHost, family: Family) -> Iterator[str]:
    """Yield commands that replace the entries with other next hops, or in another order, than the
    wanted ones.
    """
    before, after = by_key(there), by_key(wanted)
    differing = {key for key in {**before, **after} if essence(before, key) != essence(after, key)}
    yield from (
        f"{family.ip} route del {line(each)}"
        for key in before
        if key in differing
        for each in before[key]
    )
    yield from (
        f"{family.ip} route append {line(each)}"
        for key in after
        if key in differing
        for each in after[key]
    )


def by_key(held: KnownHost) -> dict[object, list[Route]]:
    """Return the entries by key, without the metric in table local: ip(8) can't add IPv6 entries
    with the kernel's.
    """
    found: dict[object, list[Route]] = {}
    for route in held.routes:
        found.setdefault(route.key if route.table != Table.LOCAL else route.destination, []).append(
            route
        )
    return found


def essence(entries: dict[object, list[Route]], key: object) -> list[object]:
    """Return what decides about lookups that match the entries with a key."""
    routes = entries.get(key, [])
    return [(where(Lookup(each.destination[0], each)), each.source, each.scope) for each in routes]


def line(route: Route) -> str:
    """Return an entry's words, with gateways that need no entry of their own."""
    words = re.sub(
        r" (nhid \d+|dead|linkdown|expires \d+sec|onlink)\b", "", route.words(is_numeric=True)
    )
    return re.sub(r"via (inet6 )?(\S+) dev (\S+)( weight \d+)?", r"via \1\2 dev \3\4 onlink", words)


def is_loaded(held: KnownHost, wanted: KnownHost) -> bool:
    """Return whether a namespace holds what is wanted. ip(8) can't add every entry of a router
    advertisement.
    """
    there, entries = by_key(held), by_key(wanted)
    alike = all(essence(there, key) == essence(entries, key) for key in {**there, **entries})
    lists = [
        (
            each.rules,
            [(a.dev, a.local, a.prefix_length) for a in each.addresses],
            getattr(each, "labels", ()),
        )
        for each in (held, wanted)
    ]
    return alike and lists[0] == lists[1]


# --- the promises ---------------------------------------------------------------------------------


@attrs.frozen
class Pair:
    """A host before and after random changes."""

    before: Side
    after: Side

    @property
    def called(self) -> list[IpAddress]:
        usable = [
            {
                each.local
                for each in side.tables.addresses
                if each.is_usable and each.scope == Scope.UNIVERSE
            }
            for side in (self.before, self.after)
        ]
        return sorted(usable[0] & usable[1])

    def see_ranges(self, host: Host, differences: Sequence[Difference]) -> None:
        """See that a lookup in the kernel differs for an address if and only if a difference names
        it.
        """
        routes, rules = (
            [*getattr(self.before.tables, name), *getattr(self.after.tables, name)]
            for name in ("routes", "rules")
        )
        asked = boundaries(
            [each.cidr for each in host.config.route_overlap.expected_cidrs], routes, rules
        )
        asked = random.Random(host.text).sample(asked, min(len(asked), ASKED_MAX))
        ends = [
            end for each in differences for part in each.ranges[:8] for end in (part[0], part[-1])
        ]
        before, after = (
            side.told([*asked, *ends], self.called) for side in (self.before, self.after)
        )
        named = [part for each in differences for part in each.ranges]
        wrong = [
            f"{address}: {before[address] ^ after[address]}"
            for address in before
            if (before[address] != after[address]) != any(address in part for part in named)
        ]
        assert not wrong

    def see_causes(self, difference: Difference, tally: Counter[str]) -> None:
        """See in the kernel that the causes explain a difference, and that each is needed."""
        family = self.before.family
        changes = HostChanges(self.before.snapshot, self.after.snapshot, family)
        asked = [end for part in difference.ranges for end in (part[0], part[-1])]
        before = self.before.told(asked, self.called)
        others = [
            [each for each in difference.causes if each != left] for left in difference.causes
        ]
        for is_whole, back in (
            (True, [*difference.causes]),
            *((False, each) for each in others[:2]),
        ):
            mixed = changes.without(back, changes.entries)
            side = Side.of(
                [*loading(mixed)],
                family,
                lambda there: correcting(there, mixed, family),  # noqa: B023
            )
            if is_loaded(side.tables, mixed):
                assert (side.told(asked, self.called) == before) == is_whole, (
                    f"{difference}\n{back}"
                )
                tally["taken back"] += 1


def keeps_shares(steps: Sequence[str]) -> bool:
    """Return whether a hop without a carrier may seem to get packets: if its interface was told to
    ignore it before.

    A snapshot doesn't show which came first (``with_shares``).
    """
    ignoring = re.findall(r"conf\.(\S+)\.ignore_routes_with_linkdown=1", "\n".join(steps))
    return any(step == f"ip link set peer-{dev} down" for dev in ignoring for step in steps)


def see_pair(host: Host, others: Host, chance: random.Random, tally: Counter[str]) -> None:
    changing = changes_of(host.steps, others.steps, chance)
    pair = Pair(Side.of(host.steps, host.family), Side.of([*host.steps, *changing], host.family))
    if keeps_shares([*host.steps, *changing]):
        tally["skipped"] += 1
        return
    cidrs = [each.cidr for each in host.config.route_overlap.expected_cidrs]
    report = compare(pair.before.snapshot, pair.after.snapshot, cidrs)
    tally[str(report.differs)] += 1
    if report.reason:
        return
    try:
        pair.see_ranges(host, report.changed)
        for difference in report.changed[:1]:
            pair.see_causes(difference, tally)
    except AssertionError as error:
        raise AssertionError(
            "\n".join((str(error)[:2000], *host.steps, "changes:", *changing, str(cidrs)))
        ) from error


@settings(
    phases=(Phase.explicit, Phase.generate),  # shrinking would take hours
    max_examples=by_day(5, by_night=500),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(host=hosts(), others=hosts(), seed=st.integers(0, 1 << 32))
def test_ipv4_differences_are_the_kernels(host: Host, others: Host, seed: int) -> None:
    see_pair(host, others, random.Random(seed), Counter())


def test_ipv6_differences_are_the_kernels() -> None:
    tally = Counter[str]()
    # By day, hosts of which some differ in what can be taken back.
    first, count = by_day(35, by_night=0), by_day(2, by_night=500)
    for seed in printed(range(first, first + count)):
        see_pair(ipv6.world(seed), ipv6.world(seed + 1_000_000), random.Random(seed), tally)
    assert tally["True"]
    assert tally["taken back"]
    assert tally["None"] + tally["skipped"] <= count / 2
