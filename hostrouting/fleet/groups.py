"""Group hosts with the same verdict, failures and fix, for a report on all hosts."""

from __future__ import annotations

import json
import math
import re
from array import array
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import attrs

from hostrouting.config.routing import Keep, StaticRoute, StaticRoutes, StaticRule
from hostrouting.kernel.host_changes import HostChange, HostChangeKind, RenamedNic
from hostrouting.kernel.snapshot import unix_time
from hostrouting.model.family import IpNetwork
from hostrouting.model.jsonable import JsonObject, in_json
from hostrouting.model.values import frozen
from hostrouting.overlap.difference import DiffReport
from hostrouting.overlap.findings import (
    FindingKind,
    Note,
    OverlapReport,
    UnknownReason,
    Verdict,
)
from hostrouting.overlap.proposals import Unfixable

# A snapshot is outdated if the newest snapshot is more than a day newer.
_SECONDS_MAX = 24 * 3600

# A host's clock is ahead if its snapshot is from more than an hour after the time of judging.
_SECONDS_AHEAD = 3600

# For these reasons, a snapshot's time isn't known.
_UNREAD = (UnknownReason.NO_SNAPSHOT, UnknownReason.CHECK_FAILED)


@frozen
class GroupFailure(JsonObject):
    """A failure shared by all hosts in a group.

    Args:
        kind: the type of failure.
        cidr: the expected CIDR that fails.
        devs: the interfaces that packets leave through now, or would leave through if the matching
            routes were removed, sorted by name. Empty if packets don't leave the host. Of several
            similar interfaces, such as ib0 and ib1, different ones may win on the hosts of a group.
        expected_devs: the interfaces that packets should leave through; empty if the hosts expect
            different ones.
        expecting: the hosts by the interfaces that they expect. The JSON has a list: each item's
            ``devs`` and ``hosts``. The list is empty if all hosts expect the same.
    """

    json_names = ("kind", "cidr", "devs", "expected_devs")

    kind: FindingKind
    cidr: IpNetwork
    devs: tuple[str, ...]
    expected_devs: tuple[str, ...] = attrs.field(default=(), eq=False)
    expecting: Mapping[tuple[str, ...], tuple[str, ...]] = attrs.field(factory=dict, eq=False)

    def to_json(self) -> dict[str, Any]:
        """Return the failure as JSON."""
        differs = len(self.expecting) > 1
        listed = [{"devs": devs, "hosts": hosts} for devs, hosts in self.expecting.items()]
        return super().to_json() | {"expecting": in_json(listed if differs else [])}


@frozen
class SharedReason(JsonObject):
    """A reason that some hosts of a group share.

    Args:
        reason: the reason, in words.
        hosts: the names of the hosts.
        detail: the reason without its kind; the kind is the same for all hosts of a group.
    """

    json_names = ("reason", "hosts")

    reason: str
    hosts: tuple[str, ...]
    detail: str


@frozen
class JudgedHost:
    """The results for one host.

    Args:
        name: the name of the snapshot's file without ``.json``. The host's own name if the snapshot
            isn't a file.
        report: the result of the check.
        since: what has changed since the host's earlier snapshot; None if nothing is compared.
        is_new: whether there is no earlier snapshot.
        is_of_another: whether the earlier snapshot is of another host.
        taken: when the snapshot was taken (RFC 3339); None if that isn't known.
        has_printed: whether anything is left of what ``fix --format ip`` printed.
    """

    name: str
    report: OverlapReport
    since: DiffReport | None = None
    is_new: bool = False
    is_of_another: bool = False
    taken: str | None = None
    has_printed: bool = False


@frozen
class HostGroup(JsonObject):
    """Hosts with the same verdict, failures and fix, and the same doubts about their uplinks.

    If the verdict is unknown, the hosts also have the same kind of reason. In a comparison with
    earlier snapshots, the hosts also have the same causes, except for addresses, gateways, and our
    new routes and rules. Hosts without an earlier snapshot form groups of their own.

    Args:
        verdict: the verdict for each host. It is ``overlap`` if one family fails and the other has
            no verdict, although the verdict of ``report`` is then ``unknown``.
        failures: the failures that each host has.
        would_fail: whether ``apply`` would fail on each host with the config as it is; None if that
            isn't known. If the hosts pass, one of ``cautions`` says why, and otherwise one of
            ``hints`` or of ``unfixable``.
        fix: the static routes for all failures that routes can fix.
        rules: the policy rules that the fix needs where another rule decides before table main.
        keep: the entries of ``staticRoutes.keep`` that belong to the fix.
        unfixable: the first host's failures that these entries don't fix. On the other hosts, the
            reasons and answers are the same, except for addresses.
        hints: what the owners of other interfaces can change, or why nothing is proposed; one line
            each, for the first host. On the other hosts, addresses may differ.
        hosts: the names of the snapshots' files without ``.json``, in the order of the snapshots.
            For a snapshot that isn't a file, the host's own name.
        report: report for the first host. Details such as addresses may differ on other hosts.
        causes: the changes that have affected the first host's lookups since its earlier snapshot.
            The other hosts' causes may have other addresses, gateways, and new routes of ours.
            Empty if no lookup has changed; None if the causes aren't known.
        reasons: why there is no verdict, with the hosts for each reason.
        uncompared: why hosts can't be compared with their earlier snapshots, with the hosts for
            each reason.
        own_names: maps a name in ``hosts`` to the host name in the snapshot, where the two differ.
        decisions: the first host's notes that ask which interface is the uplink.
            The other hosts' notes have the same kinds and interfaces, and offer the same choices.
        cautions: one line each. A line is about other traffic that the fix moves on the first host,
            or about an interface of ``keep`` that isn't kept there.
        renamed: each host's NICs that had another name in its earlier snapshot.
        unapplied: the config's entries that would fix failures, but that the kernel lacks.
        unlisted: our routes and rules that cause the first host's failures, but that the config
            doesn't list. On the other hosts, addresses may differ.
    """

    verdict: Verdict
    failures: tuple[GroupFailure, ...]
    fix: tuple[StaticRoute, ...]
    rules: tuple[StaticRule, ...]
    keep: tuple[Keep, ...]
    hosts: tuple[str, ...]
    report: OverlapReport
    causes: tuple[HostChange, ...] | None = None
    reasons: tuple[SharedReason, ...] = ()
    uncompared: tuple[SharedReason, ...] = ()
    own_names: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    decisions: tuple[Note, ...] = ()
    cautions: tuple[str, ...] = ()
    renamed: tuple[RenamedNic, ...] = ()
    would_fail: bool | None = False
    unfixable: tuple[Unfixable, ...] = ()
    hints: tuple[str, ...] = ()
    unapplied: StaticRoutes | None = None
    unlisted: tuple[str, ...] = ()


@frozen
class FleetReport(JsonObject):
    """The result of ``judge``.

    Args:
        groups: the groups, ordered by verdict (``ok``, ``overlap``, ``unknown``) and then by size,
            largest first.
        outdated: the hosts whose snapshots are more than a day older than the newest one.
        newest: the host with the newest snapshot, of those whose clock isn't ahead; None without
            such a host.
        gone: the hosts with an earlier snapshot (see ``since`` of ``judge``), but no later one.
        since_newer: the hosts whose earlier snapshot is newer than the later one. What came is then
            reported as what went.
        since_of_another: the hosts whose earlier snapshot is of another host.
        ahead: the hosts whose clock is ahead: their snapshots are from more than an hour after the
            judging.
        untimed: the hosts whose snapshots have no time (RFC 3339).
        printed: the hosts with anything left of what ``fix --format ip`` printed, which the next
            boot doesn't add again.
    """

    schema: ClassVar[Literal[1]] = 1
    json_names = (
        "schema",
        "counts",
        "would_fail",
        "may_fail",
        "outdated",
        "newest",
        "gone",
        "since_newer",
        "since_of_another",
        "ahead",
        "untimed",
        "printed",
        "groups",
    )

    groups: tuple[HostGroup, ...]
    outdated: tuple[str, ...] = ()
    newest: str | None = None
    gone: tuple[str, ...] = ()
    since_newer: tuple[str, ...] = ()
    since_of_another: tuple[str, ...] = ()
    ahead: tuple[str, ...] = ()
    untimed: tuple[str, ...] = ()
    printed: tuple[str, ...] = ()

    @classmethod
    def of(cls, hosts: Iterable[JudgedHost], now: float = math.inf) -> FleetReport:
        """Group hosts by their results, and by the changes behind differing lookups.

        Args:
            hosts: the judged hosts.
            now: Unix timestamp of the judging.
        """
        members: dict[Hashable, _Members] = {}
        names: list[str] = []
        times = array("d")
        ahead: list[str] = []
        untimed: list[str] = []
        printed: list[str] = []
        since_newer: list[str] = []
        since_of_another: list[str] = []
        for host in hosts:
            if _is_since_newer(host):
                since_newer.append(host.name)
            if host.is_of_another:
                since_of_another.append(host.name)
            if host.has_printed:
                printed.append(host.name)
            taken = unix_time(host.taken)
            if taken is not None and taken > now + _SECONDS_AHEAD:
                ahead.append(host.name)
            elif taken is not None:
                names.append(host.name)
                times.append(taken)
            elif host.report.reason_kind not in _UNREAD:
                untimed.append(host.name)
            key = _key_of(host)
            if key not in members:
                members[key] = _Members(host)
            members[key].add(host)
        groups = [each.group() for each in members.values()]
        order = [*Verdict]
        groups.sort(key=lambda group: (order.index(group.verdict), -len(group.hosts)))
        return cls(
            tuple(groups),
            _outdated(names, times),
            names[times.index(max(times))] if names else None,
            since_newer=tuple(since_newer),
            since_of_another=tuple(since_of_another),
            ahead=tuple(ahead),
            untimed=tuple(untimed),
            printed=tuple(printed),
        )

    @property
    def counts(self) -> dict[Verdict, int]:
        """Return the number of hosts for each verdict."""
        counts = dict.fromkeys(Verdict, 0)
        for group in self.groups:
            counts[group.verdict] += len(group.hosts)
        return counts

    @property
    def would_fail(self) -> int:
        """Return the number of hosts with a verdict on which ``apply`` would fail."""
        return sum(len(group.hosts) for group in self.groups if group.would_fail)

    @property
    def may_fail(self) -> int:
        """Return the number of hosts with a verdict on which ``apply`` may fail or not."""
        return sum(len(group.hosts) for group in self.groups if group.would_fail is None)


def _outdated(names: Iterable[str], times: Sequence[float]) -> tuple[str, ...]:
    newest = max(times, default=0.0)
    each = zip(names, times, strict=True)
    return tuple(name for name, taken in each if newest - taken > _SECONDS_MAX)


def _is_since_newer(host: JudgedHost) -> bool:
    """Return whether the earlier snapshot is newer than the later one."""
    if host.since is None:
        return False
    before = unix_time(host.since.before)
    after = unix_time(host.since.after)
    return before is not None and after is not None and before > after


class _Members:
    """The hosts of a group while it grows.

    Only the first host's report is kept, because there may be any number of hosts.
    """

    def __init__(self, first: JudgedHost) -> None:
        self._first = first
        self._failures = _failures(first.report)
        # For each failure, the names of the hosts by the interfaces that they expect.
        self._expecting: list[dict[tuple[str, ...], list[str]]] = [{} for _ in self._failures]
        self._names: list[str] = []
        self._own_names: dict[str, str] = {}
        # Both dictionaries map a reason and its detail to the names of the hosts.
        self._reasons: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        self._uncompared: defaultdict[tuple[str, str], list[str]] = defaultdict(list)

    def add(self, host: JudgedHost) -> None:
        report = host.report
        self._names.append(host.name)
        for expecting, failure in zip(self._expecting, _failures(report), strict=True):
            expecting.setdefault(failure.expected_devs, []).append(host.name)
        # For a snapshot without a host name, report.host is the file's name.
        if report.host not in ("", host.name, host.name.rpartition("/")[2]):
            self._own_names[host.name] = report.host
        if report.reason is not None:
            self._reasons[report.reason, report.reason_detail].append(host.name)
        if (why := _why_uncompared(host)) is not None:
            self._uncompared[why, why].append(host.name)

    def group(self) -> HostGroup:
        report = self._first.report
        return HostGroup(
            _verdict_on(report),
            tuple(map(_with_expecting, self._failures, self._expecting)),
            report.fix.routes,
            report.fix.rules,
            report.fix.keep,
            tuple(self._names),
            report,
            _causes_of(self._first),
            _shared(self._reasons),
            _shared(self._uncompared),
            self._own_names,
            report.decisions,
            report.fix.consequences,
            _renamed(self._first),
            report.fix.would_fail,
            report.fix.unfixable,
            report.fix.hints,
            report.unapplied,
            report.unlisted,
        )


def _verdict_on(report: OverlapReport) -> Verdict:
    """Return a report's verdict. With failures in one family, it is ``overlap`` in any case.

    If the other family has no verdict, the report's own verdict is ``unknown``. A script that lists
    failing hosts would miss the host.
    """
    return Verdict.OVERLAP if report.findings else report.verdict


def _shared(hosts: Mapping[tuple[str, str], Iterable[str]]) -> tuple[SharedReason, ...]:
    return tuple(
        SharedReason(reason, tuple(names), detail) for (reason, detail), names in hosts.items()
    )


def _key_of(host: JudgedHost) -> Hashable:
    """Return a key that hosts of the same group share."""
    report = host.report
    unlisted = frozenset(in_general(line, ()) for line in report.unlisted)
    hints = frozenset(in_general(line, report.default_devs) for line in report.fix.hints)
    entries = (report.fix.routes, report.fix.rules, report.fix.keep, report.unapplied, unlisted)
    fix = (*entries, hints, _reasons(report), report.fix.would_fail)
    causes = _causes_of(host)
    changed = causes and frozenset(map(_alike, causes))
    is_compared = _why_uncompared(host) is None
    verdict = (report.verdict, _failures(report), fix, report.reason_kind)
    since = (changed, is_compared, host.is_new, _renamed(host))
    return verdict, _answers(report), _doubts(report), since


def _reasons(report: OverlapReport) -> Hashable:
    """Return why no route fixes some failures, without what may differ within a group."""
    devs = {dev for finding in report.findings for dev in (*finding.devs, *finding.behind)}
    names = devs.union(report.default_devs)
    return frozenset(
        (in_general(each.reason, names), each.obstacle.to_add) for each in report.fix.unfixable
    )


def _answers(report: OverlapReport) -> Hashable:
    """Return the possible answers to a report's questions about failing addresses."""
    return frozenset(json.dumps(each.answers) for each in report.fix.unfixable)


def _doubts(report: OverlapReport) -> Hashable:
    """Return a report's questions about the uplinks, and its cautions.

    The result also contains the interfaces that the group's line names. These are the uplinks if
    there are questions, and if nothing fails, the interfaces whose route may still come.
    """
    asked = frozenset(
        (note.kind, note.devs, note.winner, note.choices) for note in report.decisions
    )
    uplinks = report.default_devs
    cautions = frozenset(in_general(line, uplinks) for line in report.fix.consequences)
    pending = report.pending if report.verdict is Verdict.OK else ()
    return asked, cautions, uplinks if asked else (), pending


def in_general(line: str, devs: Iterable[str]) -> str:
    """Return a line without addresses, numbers and some interfaces, which may differ in a group."""
    names = "".join(rf"|\b{re.escape(dev)}\b" for dev in devs)
    return re.sub(rf"{_ADDRESS}(,? (and )?{_ADDRESS})*|\b\d+ more\b{names}", "", line)


def _causes_of(host: JudgedHost) -> tuple[HostChange, ...] | None:
    """Return the changes that have affected a host's lookups; None if they aren't known."""
    since = host.since
    return None if since is None or since.differs is None else since.causes


def _renamed(host: JudgedHost) -> tuple[RenamedNic, ...]:
    return () if host.since is None else host.since.renamed


def _why_uncompared(host: JudgedHost) -> str | None:
    since = host.since
    return since.reason if since is not None and since.differs is None else None


_ADDRESS = r"(?:\d+(?:\.\d+){3}|[0-9a-f]*:[0-9a-f:.]*:[0-9a-f.]*)(?:/\d+)?"

# For two kinds of causes, a pattern for the host's own address in the cause's lines. In a rule, a
# source without a prefix length is the host's own address. ``_alike`` has the pattern for the other
# kinds.
_OWN = {
    HostChangeKind.ADDRESS: r"^\S+(?= dev )",
    HostChangeKind.RULE: r"(?<=from )(?!all )[^\s/]+(?= )",
}


def _alike(cause: HostChange) -> tuple[object, ...]:
    """Return a cause's kind and its lines without what may differ within a group.

    That is some addresses, and which routes or rules of ours are new.
    """
    if cause.is_ours and not cause.before:
        return (cause.kind,)
    pattern = _OWN.get(cause.kind, r"(?<=via |src )\S+|(?<=^local )\S+|(?<=^broadcast )\S+")
    before = tuple(re.sub(pattern, "", line) for line in cause.before)
    after = tuple(re.sub(pattern, "", line) for line in cause.after)
    return cause.kind, before, after


def _failures(report: OverlapReport) -> tuple[GroupFailure, ...]:
    # Findings for different source addresses may give equal failures: list each failure once.
    failures: dict[GroupFailure, None] = {}
    for finding in report.findings:
        devs = tuple(sorted((*finding.devs, *finding.behind)))
        failure = GroupFailure(finding.kind, finding.cidr, devs, finding.expected_devs)
        failures[failure] = None
    return tuple(failures)


def _with_expecting(
    failure: GroupFailure,
    expecting: Mapping[tuple[str, ...], Sequence[str]],
) -> GroupFailure:
    """Return a failure with the hosts by the interfaces that they expect."""
    hosts = {devs: tuple(names) for devs, names in expecting.items()}
    common = failure.expected_devs if len(hosts) == 1 else ()
    return attrs.evolve(failure, expected_devs=common, expecting=hosts)
