"""Compare the reports on a host of either family with the behaviour of real sockets, without any
route lookups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from brute_force import default_route, live
from connecting import disagreements, holds, local_ranges, words
from fixing import install, is_told
from leaving import FIRST_PACKETS, Leaving, Seen, SocketKind, far_end, send_datagram, truths
from node import as_batch, attempt, churning

from audit.examine import Audit
from audit.making import make
from hostrouting import Config, HostRoutingError, OverlapReport
from hostrouting.backend import RouteBackend, read_routes
from hostrouting.kernel.default_routes import unicast_defaults
from hostrouting.kernel.rules import KERNEL_RULES
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.routes import RouteType
from hostrouting.overlap.findings import NoteKind
from hostrouting.overlap.proposals import Fix
from hostrouting.routes.formats import PlacedRule, as_ip
from hostrouting.routes.policy import resolve_policy
from hostrouting.routes.resolve import resolve

# How many reports of each kind to create while the host is changing.
_LIVE, _RECORDED, _BOOTED = 4, 2, 1
# How often to look for packets before a report is called wrong. A busy kernel delivers a packet to
# the other end of a veth pair late (ksoftirqd), and then it seems lost.
_LOOKS = 3
# How many notes on local addresses to test.
_NOTES = 3


class SocketAudit(Audit):
    """An audit that only uses sockets, and applies the fix. See ``Audit`` for the arguments.

    Attributes:
        fixes: how many fixes were applied.
    """

    fixes = 0

    def run(self) -> None:
        """Run every comparison."""
        self._has_ipv4 = self.host.family is Family.IPV4
        self._connected = set[IpAddress]()
        # Include ports in the multipath hash.
        Path("/proc/sys/net/ipv4/fib_multipath_hash_policy").write_text("1")
        seen, report = self._look(self._addresses()), self._live()
        # Also test the probes and the ends of the failing ranges.
        ends = {
            end
            for finding in report.findings
            for part in finding.ranges
            for end in (part[0], part[-1])
        }
        seen |= self._look(
            sorted({*sorted(ends)[: self._most], *(f.probe for f in report.findings)} - {*seen})
        )
        self._compare_live(report, seen)
        if not report.reason:
            self._compare_replies(report, [*seen])
        for way, record in self._on_snapshots():
            self._compare_with_live(way, record, report)
        if self._has_ipv4 or not self.host.cycle:
            self._compare_boot([report])
        if self.host.cycle:
            self._compare_in_churn(report, seen)
        elif not report.reason:
            if self._has_ipv4:
                self._tell("live", self._changeable(report, seen))
            self._fix(report, seen)

    def _look(self, addresses: Sequence[IpAddress]) -> Seen:
        kinds = FIRST_PACKETS if self._has_ipv4 else tuple(SocketKind)
        seen = dict.fromkeys(addresses, frozenset[str | None]())
        for truth in truths(addresses, tries=self.host.tries, failed=self.host.failed, kinds=kinds):
            seen[truth.address] |= truth.ends
            if truth.kind is SocketKind.CONNECTION:
                self._connected.add(truth.address)
        return seen

    def _checked(self, backends: Callable[[Family], RouteBackend]) -> OverlapReport:
        with Leaving(failed=self.host.failed):
            pass  # leaves these neighbours FAILED
        return super()._checked(backends)

    # --- comparisons ------------------------------------------------------------------------------

    def _compare_live(self, report: OverlapReport, seen: Seen) -> None:
        default = default_route(read_routes(self._kernel)) if self._has_ipv4 else None
        if report.reason:
            if self._has_default:
                self._doubt("live", report.reason)
        elif not self._has_default and any(
            each.devs is None for each in self.config.route_overlap.expected_cidrs
        ):
            self._tell("live", ["there is no default route, and it is judged"])
        else:
            # The kernel may still use a next hop that it reports as dead.
            may_be = (
                {*report.default_devs} if default is None else {hop.dev for hop in default.hops}
            )
            if default is not None and not {*live(default)} <= {*report.default_devs} <= may_be:
                self._tell(
                    "live", [f"the default route is said to lead through {report.default_devs}"]
                )
            for _ in range(_LOOKS):
                if not (wrong := self._wrong(report, seen)):
                    break
                seen = self._look([*seen])
            self._tell("live", wrong)

    def _compare_replies(self, report: OverlapReport, addresses: Sequence[IpAddress]) -> None:
        """Call servers on this host from each address through the uplinks, and compare where their
        replies leave.
        """
        kernel = self._kernel if self._has_ipv4 else self._kernel6
        up = {link.name for link in kernel.facts().links if link.is_up and link.has_carrier}
        plugged = {dev for dev in up if far_end(dev) in up}
        # Of two default routes, the kernel may send by one, and validate the answer by the other.
        # It takes no answer from an address to which a route of another type than unicast leads.
        odd = (RouteType.ANYCAST, RouteType.BROADCAST, RouteType.MULTICAST)
        unanswered = [route.destination for route in read_routes(kernel) if route.type in odd]
        broadcasts = [
            route.destination for route in read_routes(kernel) if route.type is RouteType.BROADCAST
        ]
        unheard = [*local_ranges(report), *(unanswered if self._has_ipv4 else ())]
        mine, uplinks = (
            {own.local for own in kernel.facts().addresses},
            plugged.intersection(report.default_devs),
        )
        clients = [
            address for address in addresses if address not in mine and not holds(unheard, address)
        ]
        # A host without an address sends from 0.0.0.0, to which nothing can be answered.
        is_answered = any(not own.local.is_loopback for own in kernel.facts().addresses)
        if self._has_ipv4 and is_answered and len(unicast_defaults(read_routes(kernel))) < 2:
            with Leaving() as leaving:
                sent = [
                    address
                    for address in clients
                    if leaving.end(SocketKind.SYN, address) in uplinks
                ]
                lost = [
                    address
                    for address in sent
                    if leaving.end(SocketKind.CONNECTION, address) is None
                ]
            self._tell(
                "rp_filter", [f"it drops what {address} answers to a SYN" for address in lost]
            )
        for own in kernel.facts().addresses:
            dev = next(iter(report.default_devs), None) if own.dev == "lo" else own.dev
            # TCP answers no call of an address that is another subnet's broadcast address.
            is_called = not (own.scope or own.local.is_link_local or holds(broadcasts, own.local))
            if not is_called or dev not in uplinks:
                continue
            for _ in range(_LOOKS):
                with Leaving(failed=self.host.failed) as leaving:
                    seen = {a: self._replies(leaving, own.local, a, dev) for a in clients}
                if not (wrong := self._wrong(report, seen, own.local)):
                    break
            self._tell("replies", wrong)

    def _replies(
        self, leaving: Leaving, own: IpAddress, address: IpAddress, dev: str
    ) -> frozenset[str | None]:
        """Return the interfaces through which a server replies, whatever rp_filter lets in.

        The kernel validates a packet by the lookup of its reply, so ``rp_filter`` only drops
        packets through ``dev`` whose replies leave elsewhere.
        """
        ends = set[str | int | None]()
        for port in range(9, 9 + self.host.tries):
            end = leaving.answer(own, address, dev, port)
            if not end and self._has_ipv4:
                with _without_rp_filter():
                    end = leaving.answer(own, address, dev, port)
                if end == dev:
                    self._tell(
                        "rp_filter",
                        [f"it drops {address}, to which replies from {own} leave through {dev}"],
                    )
            ends |= {end, leaving.sent(partial(send_datagram, address, port, str(own)), address)}
        return frozenset(end if isinstance(end, str) else None for end in ends)

    def _wrong(
        self, report: OverlapReport, seen: Seen, called: IpAddress | None = None
    ) -> list[str]:
        routes, tied = read_routes(self._kernel), dict[tuple[int, int], set[str | None]]()
        for route in routes:
            if route.destination.prefixlen == 0:
                tied.setdefault((route.table, route.metric), set()).update(route.devs)
        unconnected = [
            r.destination for r in routes if r.type in (RouteType.BROADCAST, RouteType.MULTICAST)
        ]
        return disagreements(
            report,
            self.config.route_overlap,
            seen,
            passes_hops=self.host.passes_hops,
            turns=tuple(map(frozenset, tied.values())),
            unconnected=unconnected,
            connected=None if self._has_ipv4 else self._connected,
            called=called,
        )

    def _compare_with_live(
        self, way: str, found: OverlapReport | str, report: OverlapReport
    ) -> None:
        """Compare a report on a snapshot, or the reason why there is none, with the live report."""
        reason = found if isinstance(found, str) else found.reason
        if reason and reason.partition(":")[0] != (report.reason or "").partition(":")[0]:
            self._doubt(way, reason)
        elif not isinstance(found, str):
            names = ("verdict", "findings", "notes")
            # An ip that doesn't print DSCPs doesn't tell for which packets a rule is.
            is_unsaid = way == "ip" and any(" dscp " in step for step in self.host.steps)
            unsaid = {(NoteKind.RULE, None, (), ())} if is_unsaid else set[object]()
            # Nor does ip show which interface was made first. If the outgoing interface has no
            # address, the kernel selects the address of the first one.
            has_source = way != "ip" or self.host.indexes == sorted(self.host.indexes)
            essences = (_essence(each, has_source=has_source) for each in (found, report))
            wrong = [
                f"{name}: {sorted(map(str, then - now))}; but live: {sorted(map(str, now - then))}"
                for name, then, now in zip(names, *essences, strict=True)
                if then - unsaid != now - unsaid
            ]
            self._tell(way, wrong)

    def _compare_in_churn(self, report: OverlapReport, seen: Seen) -> None:
        """Check that each report from a changing host matches some state in the cycle."""
        moments = [report]
        for step in self.host.cycle:
            make([step])
            moments.append(self._live())
            if not moments[-1].reason:
                self._tell("live", self._wrong(moments[-1], self._look([*seen])))
        essences = [*map(_essence, moments)]
        with churning(self.host.cycle, may_fail=True):
            for way in ("live",) * _LIVE + ("snapshot",) * _RECORDED:
                found = self._live() if way == "live" else next(self._on_snapshots())[1]
                if isinstance(found, str) or found.reason:
                    self._doubt(way, found if isinstance(found, str) else str(found.reason))
                elif _essence(found) not in essences:
                    self._tell(
                        way,
                        [
                            (
                                f"in churn it says {found.verdict}: "
                                f"{[f.message for f in found.findings]}"
                            )
                        ],
                    )
            for _ in range(_BOOTED if self._has_ipv4 else 0):
                self._compare_boot(moments)

    def _changeable(self, report: OverlapReport, before: Seen) -> list[str]:
        """Return a message for each address that a route affects despite a note to the contrary."""
        wrong: list[str] = []
        if self._kernel.facts().rules[:1] != KERNEL_RULES[:1] or not report.default_devs:
            return wrong  # without the first rule, the notes don't claim that
        for address in [part[0] for part in local_ranges(report)][:_NOTES]:
            route = f"{address}/32 dev {report.default_devs[0]} table main"
            attempt("ip", "route", "add", *route.split())
            after = self._look([address])[address]
            attempt("ip", "route", "del", *route.split())
            if after != before.get(address, after):
                wrong.append(
                    f"a route takes {address} by {words(after)}, "
                    "although it is said to be this host's own"
                )
        return wrong

    # --- the fix ----------------------------------------------------------------------------------

    def _fix(self, report: OverlapReport, seen: Seen) -> None:
        if not report.fix.entries.is_wanted:
            return
        self.fixes += 1
        if refused := self._install(report.fix):
            self._tell("fix", [f"it can't be applied: {refused}"])
            return
        after, unfixable = self._live(), report.fix.unfixable
        # The kernel may skip the fix's entries too, and the fix assumes RFC 6724 source address
        # selection.
        is_certain = not (self.host.passes_hops or self.host.has_odd_sources)
        left = [
            f"{part} of {finding.cidr} still fails: {finding.message}"
            for finding in after.findings
            for part in finding.ranges
            if is_certain and not (is_told(part[0], unfixable) and is_told(part[-1], unfixable))
        ]
        if after.reason:
            self._doubt("fix", after.reason)
        else:
            left += self._wrong(after, self._look([*seen]))
        self._tell("fix", left)

    def _install(self, fix: Fix) -> str:
        """Install a fix, and return why that isn't possible, or an empty string."""
        try:
            if self._has_ipv4:
                with TemporaryDirectory() as root:
                    install(self._kernel, fix.routes, Path(root), fix.rules, fix.keep)
                return ""
            # IPv6 routes are installed with the commands that ``fix`` prints, of which there may be
            # thousands.
            facts, routes = self._kernel6.facts(), read_routes(self._kernel6)
            resolved, missing = resolve(
                fix.routes, facts.links, facts.addresses, routes, self.config.uplinks
            )
            wanted = Config(static_routes=fix.entries)
            policy = resolve_policy(wanted, Family.IPV6, facts, routes, lambda _: None)
            rules = [PlacedRule(rule, "eth0") for rule in policy.rules]
            commands = as_batch(as_ip(resolved, rules))
            return missing or attempt("ip", "-6", "-batch", "-", stdin=commands).stderr.strip()
        except HostRoutingError as error:
            return str(error)


@contextmanager
def _without_rp_filter() -> Iterator[None]:
    """Disable the validation of source addresses on every interface."""
    before = {
        path: path.read_text() for path in Path("/proc/sys/net/ipv4/conf").glob("*/rp_filter")
    }
    for path in before:
        path.write_text("0")
    try:
        yield
    finally:
        for path, value in before.items():
            path.write_text(value)


def _essence(report: OverlapReport, *, has_source: bool = True) -> tuple[frozenset[object], ...]:
    """Return the parts of a report that must be the same in every report for a host."""
    findings = frozenset(
        (f.kind, f.cidr, f.devs, f.probe, f.source if has_source else None, f.ranges)
        for f in report.findings
    )
    notes = frozenset((n.kind, n.cidr, n.devs, n.ranges) for n in report.notes)
    return frozenset({report.verdict, report.reason_kind}), findings, notes
