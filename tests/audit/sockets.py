"""Compare the reports on a host only with what its sockets do, without any lookup or calculation."""

from __future__ import annotations

import subprocess
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv4Network, summarize_address_range
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from brute_force import default_route, live
from fixing import is_told
from leaving import Leaving
from scripts import told_by

from audit.examine import HostAudit, booted, is_unknown
from audit.making import flapping, make
from hostrouting.kernel.rules import KERNEL_RULES
from hostrouting.model.routes import RouteType, Table
from hostrouting.report import NoteKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hostrouting import ExpectedCidr, OverlapReport

    Said = OverlapReport | list[str] | str
    """A report, the lines of the boot script's marker, or the reason why there is neither."""

# The number of tries for each address if the hop is chosen at random, or if default routes alternate.
_TRIES = 12
# The number of reports of each kind that are made while the host changes.
_LIVE, _RECORDED, _BOOTED = 8, 4, 2
# The number of notes about local addresses that are tested.
_NOTES = 3


@attrs.frozen
class Moment:
    """The state of a host, as far as sockets show it.

    Args:
        seen: the interfaces on which packets to each address leave. They include None if a socket fails.
        default_devs: the interfaces of the default route, or an empty tuple if there is none.
        more_devs: the same, with the hops that the kernel shows as dead. It uses some of these.
        devs: the names of all interfaces.
        own: the destinations in table local.
        loud: the destinations of broadcast and multicast routes, to which an ordinary socket can't connect.
        turns: sets of default route interfaces. The neighbour states of the gateways decide between those of a set.
    """

    seen: dict[IPv4Address, frozenset[str | None]]
    default_devs: tuple[str, ...]
    more_devs: tuple[str, ...]
    devs: tuple[str, ...]
    own: tuple[IPv4Network, ...]
    loud: tuple[IPv4Network, ...]
    turns: tuple[frozenset[str | None], ...] = ()

    def fine(self, expected: ExpectedCidr, allowed: Sequence[str]) -> set[str]:
        """Return the interfaces on which packets to an expected address may leave."""
        if expected.devs is None:
            return {*self.more_devs, *allowed}
        return {dev for dev in self.devs if any(fnmatchcase(dev, like) for like in expected.devs)}

    def soon(self, devs: frozenset[str | None]) -> frozenset[str | None]:
        """Return the interfaces on which packets may leave after neighbours have changed their states."""
        return devs.union(*(turn for turn in self.turns if turn & devs))


@attrs.frozen
class Claim:
    """A failure that a report claims.

    Args:
        kind: the kind of the finding.
        devs: the interfaces on which packets leave.
        source: the source address that fails, or an empty string if every source fails.
        sure: the addresses that must fail in this way.
        reach: the addresses that may fail in this way.
    """

    kind: str
    devs: tuple[str, ...]
    source: str
    sure: tuple[IPv4Network, ...]
    reach: tuple[IPv4Network, ...]

    def is_seen(self, devs: frozenset[str | None], fine: set[str]) -> bool:
        """Return whether a socket has failed in this way."""
        if self.kind != "OVERLAP":
            return None in devs
        # Since 6.15, Linux prefers the hop whose own address is the source, and such a hop is always right.
        return bool(devs & (set(self.devs) - fine)) or (self.source != "" and not fine.isdisjoint(self.devs))


class SocketAudit(HostAudit):
    """An audit of a host that sockets judge. Its arguments are those of ``HostAudit``."""

    def run(self) -> None:
        """Run every comparison."""
        self.config, first = self._checked(self._kernel)
        self.share.without_default = int(default_route(self._kernel.routes()) is None)
        # The kernel then chooses the hop by the ports.
        Path("/proc/sys/net/ipv4/fib_multipath_hash_policy").write_text("1")
        addresses = self._addresses()
        moments = [self._look(addresses)]
        self.share.lookups += len(addresses)
        for step in self.host.cycle:
            make([step], self._settle)
            moments.append(self._look(addresses))
        if self.host.cycle:
            with flapping(self.host.cycle):
                for way, said in self._said_in_churn():
                    self._hold(way, said, moments)
            return
        self._hold("live", first, moments)
        for way, record in self._recordings():
            self._hold(way, record, moments)
        lines = booted(self.config, self.host.steps)
        self._hold("boot", lines, moments)
        self._compare_lines(lines, first, moments[0])
        if first.verdict != "unknown":
            self._say("live", list(self._changeable(first, moments[0])))
            self._fix_seen(first, moments[0])

    def _said_in_churn(self) -> Iterator[tuple[str, Said]]:
        for _ in range(_LIVE):
            yield "live", self._checked(self._kernel)[1]
        for _ in range(_RECORDED):
            yield next(iter(self._recordings()))
        for _ in range(_BOOTED):
            yield "boot", booted(self.config, self.host.steps)

    def _look(self, addresses: Sequence[IPv4Address]) -> Moment:
        routes = self._kernel.routes()
        default = default_route(routes)
        defaults = [route for route in routes if route.destination.prefixlen == 0 and route.table == Table.MAIN]
        has_several = len(defaults) > 1 or any(len(route.hops) > 1 or route.nexthop_id for route in routes)
        ports = range(9, 9 + (_TRIES if has_several else 1))
        with Leaving() as leaving:
            ways = (leaving.by_tcp, leaving.by_connected_datagram, leaving.by_datagram)
            seen = {a: frozenset(way(a, port) for way in ways for port in ports) for a in addresses}
        self.share.sockets += len(addresses) * len(ways) * len(ports)
        own = tuple(route.destination for route in routes if route.table == Table.LOCAL)
        devs = tuple(link.name for link in self._kernel.links())
        loud = tuple(r.destination for r in routes if r.type in (RouteType.BROADCAST, RouteType.MULTICAST))
        if default is None:
            return Moment(seen, (), (), devs, own, loud)
        tied: dict[tuple[int, int], set[str | None]] = {}
        for route in routes:
            if route.destination.prefixlen == 0:
                tied.setdefault((route.table, route.metric), set()).update(route.devs)
        more = tuple(hop.dev for hop in default.hops if hop.dev is not None)
        return Moment(seen, live(default), more, devs, own, loud, tuple(map(frozenset, tied.values())))

    # --- comparisons -------------------------------------------------------------------------------------------

    def _hold(self, way: str, said: Said, moments: Sequence[Moment]) -> None:
        """Compare a report with each moment of a host. At least one of them must justify it."""
        if isinstance(said, str) or (reason := _reason(said)) is not None:
            if any(moment.default_devs for moment in moments):
                self._doubt(way, said if isinstance(said, str) else str(reason))
        else:
            self._say(way, min((self._wrong(said, moment) for moment in moments), key=len))

    def _wrong(self, said: OverlapReport | list[str], moment: Moment) -> list[str]:
        if not moment.default_devs:
            return ["there is no default route, and it is judged"]
        if not isinstance(said, list):
            if not {*moment.default_devs} <= {*said.default_devs} <= {*moment.more_devs}:
                return [f"the default route is said to lead by {said.default_devs}"]
            moment = attrs.evolve(moment, more_devs=said.default_devs)
        return [line for expected in self.host.expected for line in self._wrong_at(expected, said, moment)]

    def _wrong_at(self, expected: ExpectedCidr, said: OverlapReport | list[str], moment: Moment) -> Iterator[str]:
        fine = moment.fine(expected, self.host.allowed)
        if isinstance(said, list):
            claims, own = [*_claims_at_boot(said, expected.cidr)], moment.own
        else:
            claims = [
                Claim(str(f.kind), f.devs, str(f.source or ""), f.ranges, f.ranges)
                for f in said.findings
                if f.cidr == expected.cidr
            ]
            own = tuple(chain.from_iterable(_own(said)))
        for address, devs in moment.seen.items():
            if address not in expected.cidr:
                continue
            told: set[str | None] = set()
            for claim in claims:
                if _holds(claim.reach, address):
                    told |= {*claim.devs} if claim.kind == "OVERLAP" else {None}
                is_refused = None in devs and _holds(moment.loud, address)
                if _holds(claim.sure, address) and not (claim.is_seen(moment.soon(devs), fine) or is_refused):
                    yield f"{address} of {expected} leaves by {_words(devs)}, and is said to be {claim.kind} {claim.devs} {claim.source}"
            # A socket that fails at once confirms a reported failure.
            left = devs - fine - told - ({None} if told else set())
            if left - {"lo", None} if _holds(own, address) else left:
                yield f"{address} of {expected} leaves by {_words(devs)}, and that isn't said"

    def _compare_lines(self, lines: list[str], live: OverlapReport, moment: Moment) -> None:
        """Compare the boot script with a correct live report. Its lines don't show the last address of a failure."""
        if is_unknown(lines) or live.verdict == "unknown" or self._wrong(live, moment):
            return
        of_cni = any(note.kind == NoteKind.CNI_DISCARD for note in live.notes)
        told = {line for line in told_by(lines) if not (of_cni and line[0] == "BLACKHOLE")}
        truth = {(str(f.kind), ",".join(f.devs), str(f.probe), str(f.source or "")) for f in live.findings}
        self._say("boot", [f"it says no {line}, and check does" for line in truth - told])

    def _changeable(self, report: OverlapReport, before: Moment) -> Iterator[str]:
        """Yield a sentence about each address that a route changes, although a note says that no route can."""
        if self._kernel.rules()[:1] != KERNEL_RULES[:1]:
            return  # without this rule, the notes don't claim that
        for address in [ranges[0][0] for ranges in _own(report)][:_NOTES]:
            words = f"{address}/32 dev {report.default_devs[0]} table main"
            subprocess.run(["ip", "route", "add", *words.split()], capture_output=True, check=False)
            after = self._look([address]).seen[address]
            subprocess.run(["ip", "route", "del", *words.split()], capture_output=True, check=False)
            if after != before.seen.get(address, after):
                yield f"{address} is said to be this host's own whatever a route says, and one by {_words(after)} takes it"

    def _fix_seen(self, live: OverlapReport, before: Moment) -> None:
        if not self._is_installed(live.fix.routes):
            return
        after = self._look([*before.seen])
        told = [part for finding in live.findings for part in finding.ranges]
        wrong = []
        for expected in self.host.expected:
            fine = before.fine(expected, self.host.allowed)
            for address in filter(expected.cidr.__contains__, before.seen):
                was, is_now = before.seen[address] - fine, after.seen[address] - fine
                is_excused = _holds(before.own, address) or is_told(address, live.fix.unfixable)
                # If the check misses a failure, that is a mistake of the check, and not of the fix.
                if not is_now or is_excused or (was and not _holds(told, address)):
                    continue
                self.share.left += bool(was)
                self.share.changed += not was
                wrong.append(f"{address} of {expected} left by {_words(was)}, and leaves by {_words(is_now)}")
        self._tell("fix", wrong)


def _reason(said: OverlapReport | list[str]) -> str | None:
    """Return why the verdict is unknown, or None if there is a verdict."""
    if isinstance(said, list):
        return said[0] if is_unknown(said) else None
    return said.reason


def _claims_at_boot(lines: list[str], cidr: IPv4Network) -> Iterator[Claim]:
    """Yield the claims of the boot script about a CIDR. It shows only the first address of each failure."""
    for line, (kind, devs, probe, source) in zip(lines, told_by(lines), strict=True):
        if f" expected CIDR {cidr} " in line:
            first = IPv4Address(probe)
            rest = tuple(summarize_address_range(first, cidr[-1]))
            # The name of an interface may contain a comma, which isn't escaped.
            yield Claim(kind, (devs, *devs.split(",")), source, (IPv4Network(first),), rest)


def _own(report: OverlapReport) -> list[tuple[IPv4Network, ...]]:
    """Return the address ranges of each note about local and broadcast addresses."""
    return [note.ranges for note in report.notes if note.kind in (NoteKind.LOCAL, NoteKind.BROADCAST)]


def _holds(ranges: Iterable[IPv4Network], address: IPv4Address) -> bool:
    return any(address in part for part in ranges)


def _words(devs: Iterable[str | None]) -> str:
    return ", ".join(sorted(dev or "nothing" for dev in devs))
