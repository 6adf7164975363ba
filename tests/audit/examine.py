"""One host: what is said of it, live and recorded, before and after its mend, beside what the kernel and sockets do."""

from __future__ import annotations

import random
import re
import subprocess
from collections import Counter
from ipaddress import IPv4Address, IPv4Network
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from asking import BY_HAND, checked, recorded, recorded_by
from brute_force import Judge, disagreements_at, sort_all
from connecting import disagreements, seen_leaving
from mending import changed, failing, install, is_told

from audit.figures import Share
from hostrouting import HostRoutingError
from hostrouting.kernel.namespace import NamespaceKernel, enter_namespace
from hostrouting.kernel.recording import SnapshotBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from brute_force import Sort

    from audit.hosts import Audited
    from hostrouting import Config, OverlapReport
    from hostrouting.backend import RouteBackend
    from hostrouting.kernel.snapshot import Snapshot

Sorts = dict[IPv4Network, dict[IPv4Address, "Sort"]]


class Examination:
    """A host in a network namespace of its own, in which the calling thread is from then on.

    Args:
        host: which.
        addresses: how many of each expected CIDR are looked at beside all at which anything may change.

    Attributes:
        share: what was counted.
        mistakes: what was wrong, in words.
    """

    def __init__(self, host: Audited, addresses: int) -> None:
        self.host = host
        self._by_chance = addresses
        self.share = Share(worlds=1, features=Counter(host.features))
        self.mistakes: list[str] = []
        enter_namespace()
        self._kernel = NamespaceKernel()
        _make(host.steps)
        # Of a carrier the routes hear later.
        for link in self._kernel.links():
            self._kernel.set_link(link.name)

    def run(self) -> None:
        """Look at everything."""
        self.config, live = self._checked(self._kernel)
        config = self.config
        judge = self._judge(config)
        if judge.default is None:
            self.share.without_default = 1
        sorts = {} if judge.default is None else self._sorts(config)
        self._compare("live", live, sorts)
        for way, record in self._recordings():
            self._compare(way, record, sorts)
        if judge.default is not None:
            self._connect(live)
            self._mend(config, live, sorts)

    # --- what is said ------------------------------------------------------------------------------------------

    def _checked(self, backend: RouteBackend) -> tuple[Config, OverlapReport]:
        return checked(backend, self.host.expected, self.host.allowed, self.host.foreseen)

    def _recordings(self) -> Iterator[tuple[str, OverlapReport | str]]:
        ways: dict[str, Callable[[], Snapshot]] = {
            "snapshot": lambda: recorded(self._kernel),
            "ip": lambda: recorded_by(BY_HAND),
        }
        for way, record in ways.items():
            try:
                yield way, self._checked(SnapshotBackend(record()))[1]
            except HostRoutingError as error:
                yield way, str(error)

    # --- what is so --------------------------------------------------------------------------------------------

    def _judge(self, config: Config, patterns: tuple[str, ...] | None = None) -> Judge:
        return Judge(
            self._kernel,
            config.route_overlap,
            had_rules=self.host.had_rules,
            patterns=patterns,
            is_odd=self.host.is_odd,
        )

    def _addresses(self) -> list[IPv4Address]:
        """Those of the expected CIDRs at which anything begins or ends, and others by chance."""
        cidrs = [each.cidr for each in self.host.expected]
        cut = [*cidrs, *(route.destination for route in self._kernel.routes())]
        cut += [rule.destination for rule in self._kernel.rules() if rule.destination is not None]
        ends = {end for prefix in cut for end in (int(prefix[0]), int(prefix[-1]))}
        numbers = {number + beside for number in ends for beside in (-1, 0, 1)}
        chance = random.Random(len(self.host.steps))
        for cidr in cidrs:
            numbers.update(
                chance.sample(range(int(cidr[0]), int(cidr[-1]) + 1), min(cidr.num_addresses, self._by_chance))
            )
        asked = {number for number in numbers if 1 << 24 <= number < 224 << 24 and number >> 24 != 127}
        return [address for address in map(IPv4Address, sorted(asked)) if any(address in cidr for cidr in cidrs)]

    def _sorts(self, config: Config) -> Sorts:
        """What each address of each expected CIDR is."""
        addresses = self._addresses()
        sorts: Sorts = {}
        for patterns in {each.devs for each in self.host.expected}:
            cidrs = [each.cidr for each in self.host.expected if each.devs == patterns]
            judge = self._judge(config, patterns)
            found = sort_all(self._kernel, judge, [a for a in addresses if any(a in cidr for cidr in cidrs)])
            sorts |= {cidr: {a: sort for a, sort in found.items() if a in cidr} for cidr in cidrs}
            self.share.answers += judge.answers
        return sorts

    # --- the one beside the other ------------------------------------------------------------------------------

    def _compare(self, way: str, report: OverlapReport | str, sorts: Sorts) -> None:
        """Hold a report to the kernel; words: there is none, and why."""
        verdict, reason = ("unknown", report) if isinstance(report, str) else (report.verdict, report.reason)
        if not sorts:
            if verdict != "unknown" or not str(reason).startswith("no-default-route"):
                self._say(way, [f"the verdict is {verdict} ({reason}), and there is no default route"])
        elif verdict == "unknown":
            self.share.unknown[f"{way}: {_in_general(str(reason))}"] += 1
            if not self.host.is_odd:
                self._tell(way, [f"the verdict is unknown: {reason}"])
        elif not isinstance(report, str):
            told = {cidr: disagreements_at(report, cidr, there) for cidr, there in sorts.items()}
            wrong = [line for lines in told.values() for line in lines]
            fails = any(failing(there) for there in sorts.values())
            if fails and verdict == "ok":
                wrong.append("the verdict is ok, and something fails")
            self._say(way, wrong)
        if way == "live":
            self.share.look_ups += sum(map(len, sorts.values()))

    def _connect(self, live: OverlapReport) -> None:
        question = self.host.connecting
        if question is None:
            return
        # So that ports decide about the hop, and a few of them try all hops.
        Path("/proc/sys/net/ipv4/fib_multipath_hash_policy").write_text("1")
        seen = seen_leaving(question)
        self.share.sockets += 3 * question.tries * len(seen)
        wrong = disagreements(live, question, seen)
        self.share.unseen += len(wrong)
        self._tell("sockets", wrong)

    def _mend(self, config: Config, live: OverlapReport, before: Sorts) -> None:
        remedy = live.remedy
        if not remedy.routes:
            return
        self.share.fixes += 1
        self.share.entries += len(remedy.routes)
        with TemporaryDirectory() as root:
            try:
                install(self._kernel, remedy.routes, Path(root))
            except HostRoutingError as error:
                self.share.left += 1
                self._tell("fix", [f"it can't be applied: {error}"])
                return
        # What is fine by one expected CIDR may fail by another around it.
        failed = {address for there in before.values() for address, sort in there.items() if sort.is_failure}
        for cidr, after in self._sorts(config).items():
            there = {address: sort for address, sort in before[cidr].items() if address in after}
            left = [a for a in failing(after) if a in there and not is_told(a, remedy.unmendable)]
            other = changed(remedy, there, {address: after[address] for address in there})
            other = {address for address in other if address not in failed or after[address].is_failure}
            self.share.left += len(left)
            self.share.changed += len(other)
            self._tell("fix", [f"{a} of {cidr} still fails: {after[a]}" for a in left])
            self._tell("fix", [f"{a} of {cidr} was {there[a]}, and is {after[a]}" for a in other])

    def _say(self, way: str, wrong: list[str]) -> None:
        self.share.wrong[way] += len(wrong)
        if wrong:
            self.share.blamed.update(f"{way}: {feature}" for feature in self.host.odd_features)
        self._tell(way, wrong)

    def _tell(self, way: str, wrong: list[str]) -> None:
        if wrong:
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            self.mistakes.append(f"{way}: {wrong[0]}{more}")


def _in_general(reason: str) -> str:
    """A reason without what is only this host's."""
    reason = re.sub(r"\d+(\.\d+){3}(/\d+)?", "A", reason.splitlines()[0])
    return re.sub(r"\b\d+\b", "N", reason)


# --- making hosts ------------------------------------------------------------------------------------------------


def _make(steps: Sequence[str]) -> None:
    """Do what the kernel doesn't refuse."""
    for is_setting, some in groupby(steps, lambda step: step.startswith("sysctl ")):
        if is_setting:
            for step in some:
                name, _, value = step.split()[-1].partition("=")
                Path("/proc/sys", name.replace(".", "/")).write_text(value)
        else:
            batch = "".join(f"{step.removeprefix('ip ')}\n" for step in some)
            subprocess.run(["ip", "-batch", "-", "-force"], input=batch, text=True, capture_output=True, check=False)
