"""Compare a host's live and snapshot reports with the kernel and with sockets, before and after the
fix.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from ipaddress import IPv6Network
from pathlib import Path
from tempfile import TemporaryDirectory
from zlib import crc32

import attrs
from asking import AS_IT_IS, BY_HAND, KNOWS_ALL, recorded, recorded_by
from brute_force import Judge, Sort, default_route, disagreements_at, sort_all
from connecting import disagreements, words
from fixing import failing
from leaving import FIRST_PACKETS, SocketKind, seen_leaving, truths
from nightly import by_day
from scripts import AWKS, Sandbox, verdict_of
from worlds.hosts import Host

import phases
from audit.making import make
from hostrouting import Config, HostRoutingError, OverlapReport, Verdict
from hostrouting.backend import RouteBackend, read_routes
from hostrouting.boot.render import render_check
from hostrouting.kernel.model import model_of
from hostrouting.kernel.namespace import NamespaceKernel, enter_namespace
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.kernel.taking_snapshots import take_snapshot
from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.routes import RouteType
from hostrouting.overlap._ask import asks_local_first
from hostrouting.overlap.check import check_families
from hostrouting.overlap.explanation import ExplainedLookup, Explanation, explain

Sorts = dict[IpNetwork, dict[IpAddress, "Sort"]]


class Audit(ABC):
    """An audit of a host in a new network namespace, which the calling thread enters and doesn't
    leave.

    Args:
        host: the host.
        addresses: how many addresses to compare, or how many random ones in each expected CIDR.

    Attributes:
        config: the host's config.
        mistakes: a message for each mistake.
        unknown: the reason for each unknown verdict of a host with a default route.
    """

    def __init__(self, host: Host, addresses: int) -> None:
        self.host = host
        self.config = host.config
        self.mistakes: list[str] = []
        self.unknown: list[str] = []
        self._most = addresses
        self._make()
        self._has_default = (
            host.family is Family.IPV6 or default_route(read_routes(self._kernel)) is not None
        )
        judge = Judge(self._kernel, self.config.route_overlap, had_rules=host.had_rules)
        self._is_deaf = host.family is Family.IPV4 and self._has_default and judge.is_deaf()
        self._has_a_containers_default = (
            host.family is Family.IPV4 and judge.has_a_containers_default()
        )

    def _make(self) -> None:
        enter_namespace()
        self._kernel, self._kernel6 = NamespaceKernel(), NetlinkBackend6()
        make(self.host.steps)

    @abstractmethod
    def run(self) -> None:
        """Run every comparison."""

    # --- the reports ------------------------------------------------------------------------------

    def _live(self) -> OverlapReport:
        return self._checked(
            lambda family: self._kernel if family is Family.IPV4 else self._kernel6
        )

    def _checked(self, backends: Callable[[Family], RouteBackend]) -> OverlapReport:
        return check_families(self.config, backends, phases.CancelScope())

    def _on_snapshots(self) -> Iterator[tuple[str, OverlapReport | str]]:
        """Yield a report for each kind of snapshot, or the reason why there is none."""
        has_ipv6 = self.host.family is Family.IPV6
        ways: dict[str, Callable[[], Snapshot]] = {
            "snapshot": partial(recorded, self._kernel, self._kernel6 if has_ipv6 else None)
        }
        if not has_ipv6:
            # If ip can't print some of the rules, the snapshot names its real release.
            release = AS_IT_IS if any(" dscp " in step for step in self.host.steps) else KNOWS_ALL
            ways["ip"] = partial(recorded_by, BY_HAND, ip=release)
        for way, record in ways.items():
            try:
                snapshot = record()
                yield way, self._checked(lambda family: model_of(snapshot.known(family)))  # noqa: B023
            except HostRoutingError as error:
                yield way, str(error)

    # --- comparing the reports --------------------------------------------------------------------

    def _doubt(self, way: str, reason: str) -> None:
        """Note an unknown verdict.

        It is only a mistake if a snapshot can represent the host completely.
        """
        self.unknown.append(f"{way}: {reason}")
        if reason.startswith("no-local-table"):
            may_be_deaf = self.host.family is Family.IPV6 and self._may_be_deaf_to_ipv6()
            self._tell(way, [] if self._is_deaf or may_be_deaf else ["it receives everything"])
        elif reason.startswith("contested-default") and self._has_a_containers_default:
            pass
        elif not self.host.may_be_unknown(way):
            self._tell(way, [f"the verdict is unknown: {reason}"])

    def _may_be_deaf_to_ipv6(self) -> bool:
        facts = self._kernel6.facts()
        local = {route.destination for route in read_routes(self._kernel6) if route.table == 255}
        has_all = all(IPv6Network(int(own.local)) in local for own in facts.addresses)
        return not (asks_local_first(facts.rules) and has_all)

    def _tell(self, way: str, wrong: list[str]) -> None:
        if wrong:
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            self.mistakes.append(f"{way}: {wrong[0]}{more}")

    def _addresses(self) -> list[IpAddress]:
        kernel = self._kernel if self.host.family is Family.IPV4 else self._kernel6
        return self.host.addresses(kernel, self._most)

    def _compare_boot(self, reports: Sequence[OverlapReport]) -> None:
        """Run the boot script. Its verdict is unknown, or doesn't contradict all live reports."""
        lines = booted(self.config, self.host.steps)
        verdict = verdict_of(lines)
        if verdict == "unknown":
            self.unknown.append(f"boot: {lines[0]}")
        elif not any(
            (verdict == "ok") == (not report.findings and not report.reason) for report in reports
        ):
            self._tell("boot", [f"the verdict is {verdict} ({lines[:2]}), and not the check's"])


class HostAudit(Audit):
    """An audit that looks up every address. See ``Audit`` for the arguments."""

    def run(self) -> None:
        """Run every comparison."""
        live = self._live()
        sorts = self._sorts() if self._has_default else {}
        self._compare("live", live, sorts)
        for way, record in self._on_snapshots():
            self._compare(way, record, sorts)
        self._compare_boot([live])
        if self._has_default and not self._is_deaf:
            self._connect(live)

    # --- the truth --------------------------------------------------------------------------------

    def _sorts(self) -> Sorts:
        """Return the kernel's result for each checked address, by expected CIDR."""
        addresses = self._addresses()
        sorts: Sorts = {}
        for patterns in {each.devs for each in self.config.route_overlap.expected_cidrs}:
            cidrs = [
                each.cidr
                for each in self.config.route_overlap.expected_cidrs
                if each.devs == patterns
            ]
            overlap = self.config.route_overlap
            judge = Judge(self._kernel, overlap, had_rules=self.host.had_rules, patterns=patterns)
            for cidr in cidrs:
                sorts[cidr] = sort_all(
                    self._kernel, judge, [a for a in addresses if a in cidr], cidr
                )
        return sorts

    # --- comparisons ------------------------------------------------------------------------------

    def _compare(self, way: str, report: OverlapReport | str, sorts: Sorts) -> None:
        """Compare a report, or the reason why there is none, with the kernel."""
        verdict, reason = (
            ("unknown", report) if isinstance(report, str) else (report.verdict, report.reason)
        )
        if not sorts:
            if verdict != "unknown" or not str(reason).startswith("no-default-route"):
                self._tell(
                    way, [f"the verdict is {verdict} ({reason}), and there is no default route"]
                )
        elif verdict == "unknown":
            self._doubt(way, str(reason))
        elif not isinstance(report, str):
            if self._is_deaf:
                self._tell(
                    way,
                    [f"the verdict is {verdict}, and what is sent to this host isn't delivered"],
                )
            told = {cidr: disagreements_at(report, cidr, there) for cidr, there in sorts.items()}
            wrong = [line for lines in told.values() for line in lines]
            fails = any(failing(there) for there in sorts.values())
            if fails and verdict == "ok":
                wrong.append("the verdict is ok, and something fails")
            self._tell(way, wrong)

    def _connect(self, live: OverlapReport) -> None:
        question = self.host.connecting
        if question is None:
            return
        # Include ports in the multipath hash, so that a few ports are enough to try all next hops.
        Path("/proc/sys/net/ipv4/fib_multipath_hash_policy").write_text("1")
        seen = seen_leaving(question.addresses, *question.world.devs, tries=question.tries)
        self._tell("sockets", disagreements(live, self.config.route_overlap, seen))
        if not live.reason:
            self._tell(
                "explanation", [*self._unexplained(question.addresses[:: by_day(8, by_night=2)])]
            )

    def _unexplained(self, addresses: Sequence[IpAddress]) -> Iterator[str]:
        """Yield a message for each address whose explanation differs from a snapshot's or from what
        sockets do.
        """
        recorded = model_of(take_snapshot(self._kernel).known(Family.IPV4))
        # A snapshot may not tell which source an interface without an address borrows.
        is_whole = self._checked(lambda _: recorded).verdict is not Verdict.UNKNOWN
        explained = {
            a: explain(a, self.config, self._kernel, phases.CancelScope()) for a in addresses
        }
        for address, found in explained.items():
            if is_whole and found != explain(address, self.config, recorded, phases.CancelScope()):
                yield f"the snapshot explains {address} otherwise"
            if not all(map(_is_followed, found.lookups)):
                yield f"{address} isn't followed to the end: {found}"
        for truth in truths(addresses, kinds=FIRST_PACKETS):
            is_tcp, connects = truth.kind is SocketKind.SYN, truth.kind is not SocketKind.DATAGRAM
            ends = _ends_of(explained[truth.address], is_tcp=is_tcp, connects=connects)
            # The address of a local route of table main isn't a valid source for a connection to
            # itself.
            if not truth.ends <= ends | ({None} if "lo" in ends else set()):
                yield f"{truth}, but the explanation says {words(ends)}"


def _ends(way: ExplainedLookup) -> set[str | None]:
    """Return the interfaces through which a lookup's packets leave (lo for local addresses)."""
    route = way.judgement.route
    if route is None or route.type.is_discard or not route.hops:
        return {None}
    if route.type is RouteType.BROADCAST:
        return {*route.devs, None}  # a socket needs SO_BROADCAST to send there
    return {"lo"} if route.type is RouteType.LOCAL else {*route.devs}


def _ends_of(found: Explanation, *, is_tcp: bool, connects: bool) -> set[str | None]:
    """Return the interfaces through which a socket's packets may leave, according to an
    explanation.
    """
    lookups = [way for way in found.lookups if not way.judgement.lookup.is_reply]
    of_protocol = [way for way in lookups if way.judgement.lookup.is_tcp is is_tcp] or lookups
    chosen = [way for way in of_protocol if way.judgement.lookup.source is not None]
    return set().union(*map(_ends, chosen if chosen and connects else of_protocol[:1]))


def _is_followed(way: ExplainedLookup) -> bool:
    """Return whether the last step decides, and none before, if any does."""
    decides = [step for step in way.steps if step.passed is None]
    # An unreachable rule ends the lookup too, although the kernel reports no route for it.
    is_decided = way.judgement.route or way.judgement.lookup.result.discarded_by or decides
    return way.is_modelled and decides == ([way.steps[-1]] if is_decided else [])


def booted(config: Config, steps: Sequence[str]) -> list[str]:
    """Run the boot script and return the lines of its marker file.

    Args:
        config: the config to render the script from.
        steps: the host's commands; their hash selects one of the installed awk implementations.
    """
    awks = [found for found in map(shutil.which, AWKS) if found is not None]
    awk = awks[crc32("\n".join(steps).encode()) % len(awks)]
    with TemporaryDirectory() as root:
        done = Sandbox(Path(root), os.path.realpath(awk)).run(
            render_check(attrs.evolve(config, wait_seconds=0))
        )
        markers = [*Path(root, "run/aks-flex-node").glob("route-overlap.*")]
        if len(markers) != 1:
            return [f"check-failed: {len(markers)} markers ({done.stderr})"]
        return markers[0].read_text().splitlines()
