"""Group hosts with the same result."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import ClassVar, Literal

import attrs

from hostrouting.config.routing import Keep, StaticRoute, StaticRule
from hostrouting.kernel.host_changes import HostChange, HostChangeKind
from hostrouting.model.family import IpNetwork
from hostrouting.model.jsonable import JsonObject
from hostrouting.overlap.difference import DiffReport
from hostrouting.overlap.findings import FindingKind, OverlapReport, Verdict


@attrs.frozen
class GroupFailure(JsonObject):
    """A failure shared by all hosts in a group.

    Args:
        kind: type of failure.
        cidr: the expected CIDR.
        devs: the interfaces through which packets leave, and those through which packets would
            leave if the matching routes were removed, sorted by name. Of eight similar interfaces,
            a different one may win on each host. Such hosts are in one group, because all eight are
            named. If packets don't leave the host, there are none.
    """

    kind: FindingKind
    cidr: IpNetwork
    devs: tuple[str, ...]


@attrs.frozen
class HostGroup(JsonObject):
    """Hosts with the same verdict, failures and fix.

    If the verdict is unknown, they also have the same kind of reason. If the hosts are compared
    with earlier snapshots, they also have the same causes, except for addresses and gateways.

    Args:
        verdict: the verdict for each host.
        failures: the failures on each host.
        fix: the entries that fix those failures that routes can fix.
        rules: the rules that it also takes, where a policy rule decides before table main.
        keep: the interfaces to keep with the fix.
        hosts: host names, in the order of the snapshots.
        report: report for the first host. Details such as addresses may differ on other hosts.
        causes: the changes that have affected the first host's lookups since its earlier snapshot.
            On the other hosts, addresses and gateways may differ. If no lookup has changed, there
            are no causes. If that isn't known, this is None.
        uncompared: why the first host can't be compared with its earlier snapshot, or None. If the
            host has no earlier snapshot, this is None, too.
    """

    verdict: Verdict
    failures: tuple[GroupFailure, ...]
    fix: tuple[StaticRoute, ...]
    rules: tuple[StaticRule, ...]
    keep: tuple[Keep, ...]
    hosts: tuple[str, ...]
    report: OverlapReport
    causes: tuple[HostChange, ...] | None = None
    uncompared: str | None = None


@attrs.frozen
class FleetReport(JsonObject):
    """The result of ``judge``.

    Args:
        groups: the groups, ordered by verdict (``ok``, ``overlap``, ``unknown``) and then by size,
            largest first.
    """

    schema: ClassVar[Literal[1]] = 1
    json_names = ("schema", "counts", "groups")

    groups: tuple[HostGroup, ...]

    @classmethod
    def of(cls, reports: Iterable[tuple[OverlapReport, DiffReport | None]]) -> FleetReport:
        """Group hosts by their results, and by what has changed their lookups."""
        groups: dict[Hashable, HostGroup] = {}
        hosts: defaultdict[Hashable, list[str]] = defaultdict(list)
        for report, since in reports:
            causes = None if since is None or since.differs is None else since.causes
            uncompared = since.reason if since is not None and causes is None else None
            group = HostGroup(
                report.verdict,
                _failures(report),
                report.fix.routes,
                report.fix.rules,
                report.fix.keep,
                (),
                report,
                causes,
                uncompared,
            )
            changed = causes and frozenset(map(_alike, causes)), uncompared is None
            fix = (group.fix, group.rules, group.keep)
            key = (group.verdict, group.failures, fix, report.reason_kind, changed)
            groups.setdefault(key, group)
            hosts[key].append(report.host)
        made = [attrs.evolve(group, hosts=tuple(hosts[key])) for key, group in groups.items()]
        order = [*Verdict]
        made.sort(key=lambda group: (order.index(group.verdict), -len(group.hosts)))
        return cls(tuple(made))

    @property
    def counts(self) -> dict[Verdict, int]:
        """Return the number of hosts for each verdict."""
        counts = dict.fromkeys(Verdict, 0)
        for group in self.groups:
            counts[group.verdict] += len(group.hosts)
        return counts


def _alike(cause: HostChange) -> tuple[object, ...]:
    """Return a cause without the addresses and gateways, in which hosts of a group may differ."""
    pattern = r"^\S+(?= dev )" if cause.kind is HostChangeKind.ADDRESS else r"(?<=via |src )\S+"
    before = tuple(re.sub(pattern, "", line) for line in cause.before)
    after = tuple(re.sub(pattern, "", line) for line in cause.after)
    return cause.kind, before, after


def _failures(report: OverlapReport) -> tuple[GroupFailure, ...]:
    # Connections from several source addresses may fail in the same way.
    failures: dict[GroupFailure, None] = {}
    for finding in report.findings:
        devs = tuple(sorted((*finding.devs, *finding.behind)))
        failures[GroupFailure(finding.kind, finding.cidr, devs)] = None
    return tuple(failures)
