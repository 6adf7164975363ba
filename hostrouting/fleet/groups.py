"""Group hosts with the same result."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

import attrs

from hostrouting.config.routing import StaticRoute
from hostrouting.model.family import IpNetwork
from hostrouting.model.jsonable import JsonObject
from hostrouting.overlap.findings import FindingKind, OverlapReport, UnknownReason, Verdict


@attrs.frozen
class GroupFailure(JsonObject):
    """A failure shared by all hosts in a group.

    Args:
        kind: type of failure.
        cidr: the expected CIDR.
        devs: sorted names of the interfaces that packets leave through, plus those they would use instead, or empty if
            packets don't leave the host. Both are listed because it may vary between hosts which of eight similar
            interfaces is used.
    """

    kind: FindingKind
    cidr: IpNetwork
    devs: tuple[str, ...]


@attrs.frozen
class HostGroup(JsonObject):
    """Hosts with the same verdict, failures and fix, or with the same kind of reason.

    Args:
        verdict: the verdict for each host.
        failures: the failures on each host.
        fix: the entries that fix the failures, as far as routes can fix them.
        hosts: host names, in the order of the snapshots.
        report: report for the first host. Details such as addresses may differ on other hosts.
    """

    verdict: Verdict
    failures: tuple[GroupFailure, ...]
    fix: tuple[StaticRoute, ...]
    hosts: tuple[str, ...]
    report: OverlapReport


@attrs.frozen
class FleetReport(JsonObject):
    """The result of ``judge``.

    Args:
        groups: the groups, ordered by verdict (``ok``, ``overlap``, ``unknown``) and then by size, largest first.
    """

    schema: ClassVar[Literal[1]] = 1
    json_names = ("schema", "counts", "one_event_away", "groups")

    groups: tuple[HostGroup, ...]

    @property
    def counts(self) -> dict[Verdict, int]:
        """Return the number of hosts for each verdict."""
        return {
            verdict: sum(len(group.hosts) for group in self.groups if group.verdict is verdict) for verdict in Verdict
        }

    @property
    def one_event_away(self) -> int | None:
        """Return the number of hosts that a single event would break permanently, or None if not predicted."""
        told = [group for group in self.groups if group.report.events is not None]
        return sum(len(group.hosts) for group in told if group.report.is_one_event_away) if told else None


# Maps a group's shared result to its first host's report and the names of all its hosts.
_Signature = tuple[Verdict, tuple[GroupFailure, ...], tuple[StaticRoute, ...], UnknownReason | None, bool | None]
Groups = dict[_Signature, tuple[OverlapReport, list[str]]]


def grouped(reports: Iterable[OverlapReport]) -> Groups:
    """Group hosts by their results."""
    groups: Groups = {}
    for report in reports:
        signature = (report.verdict, _failures(report), report.fix.routes, report.reason_kind, report.is_one_event_away)
        groups.setdefault(signature, (report, []))[1].append(report.host)
    return groups


def _failures(report: OverlapReport) -> tuple[GroupFailure, ...]:
    failures = (
        GroupFailure(each.kind, each.cidr, tuple(sorted((*each.devs, *each.behind)))) for each in report.findings
    )
    # Connections from several source addresses may fail in the same way.
    return tuple(dict.fromkeys(failures))
