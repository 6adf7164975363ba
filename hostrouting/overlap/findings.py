"""Pure: define the failures, notes and fixes that a check returns and every output uses."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import Any, ClassVar, Literal, NamedTuple

import attrs

from hostrouting.config.routing import OverlapMode, StaticRoute
from hostrouting.model.changes import Changes
from hostrouting.model.errors import HostRoutingError
from hostrouting.model.events import HostEvent
from hostrouting.model.jsonable import JsonObject, StrEnum
from hostrouting.model.routes import NextHop, Route, RouteType, Table
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.model.text import shortened

# Lines for people are shortened; ``ranges`` is complete.
_SHOWN_NETWORKS = 16


class Verdict(StrEnum):
    """The result of a check in one word. If it is ``unknown``, the ``reason`` in the report says why."""

    OK = "ok"
    OVERLAP = "overlap"
    UNKNOWN = "unknown"


class UnknownReason(StrEnum):
    """A reason why nothing could be judged."""

    NO_DEFAULT_ROUTE = "no-default-route"
    CONTESTED_DEFAULT = "contested-default"
    NO_UPLINK = "no-uplink"
    CHECK_FAILED = "check-failed"
    NO_SNAPSHOT = "no-snapshot"
    NO_KERNEL = "no-kernel"
    NOTHING_EXPECTED = "nothing-expected"


class FindingKind(StrEnum):
    """A way in which an expected CIDR fails."""

    OVERLAP = "OVERLAP"
    NO_ROUTE = "NO-ROUTE"
    BLACKHOLE = "BLACKHOLE"


class NoteKind(StrEnum):
    """A reason for a note, which isn't a failure."""

    LOCAL = "LOCAL"
    BROADCAST = "BROADCAST"
    CONTAINER = "CONTAINER"
    ALLOWED = "ALLOWED"
    CNI_DISCARD = "CNI-DISCARD"
    PENDING = "PENDING"
    FORESEEN = "FORESEEN"
    RULE = "RULE"
    NETNS = "NETNS"
    CONTESTED = "CONTESTED"
    NODE_IP = "NODE-IP"


@attrs.frozen
class Finding(JsonObject):
    """An expected CIDR that fails.

    Args:
        kind: why it fails: ``OVERLAP`` if packets leave through another interface, ``NO-ROUTE`` if there is no route,
            or ``BLACKHOLE`` if packets are discarded.
        cidr: the expected CIDR, masked.
        probe: the first failing address.
        devs: the interfaces that packets leave through, sorted, or empty if they don't leave.
        expected_devs: the uplinks, sorted, or the patterns that the config names for this CIDR.
        source: the source from which connections fail, or null if unconnected packets fail.
        ranges: the failing part, as the fewest CIDRs.
        route: the entry that wins for ``probe`` or discards its packets, as ``ip route show`` prints it, or null if
            there is none or a policy rule decides.
        fix: the entries that fix a part of this failure. Together they fix everything that routes can fix.
        shadowed: the failing part as fewer prefixes, which include the local and broadcast addresses between them. Not
            part of the JSON.
        discarded_by: the types of the entries that discard packets. Not part of the JSON.
        behind: the interfaces that packets would leave through if the winning routes were removed, sorted. Not part of
            the JSON.
    """

    json_names = ("kind", "cidr", "probe", "devs", "expected_devs", "source", "ranges", "route", "fix", "message")

    kind: FindingKind
    cidr: IPv4Network
    probe: IPv4Address
    devs: tuple[str, ...]
    expected_devs: tuple[str, ...]
    ranges: tuple[IPv4Network, ...]
    route: Route | None
    shadowed: tuple[IPv4Network, ...]
    discarded_by: tuple[RouteType, ...] = ()
    source: IPv4Address | None = None
    fix: tuple[StaticRoute, ...] = ()
    behind: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """Return the finding as one line."""
        return f"{self.failure}; {self.cause}" if self.cause else self.failure

    @property
    def failure(self) -> str:
        """Return the line without the cause."""
        subject, expected = f"{self.kind}: expected CIDR {self.cidr} (probe {self.probe})", ",".join(self.expected_devs)
        if self.kind is FindingKind.OVERLAP:
            text = f"{subject} routes via {','.join(self.devs) or 'no device'}, expected {expected}"
        elif self.kind is FindingKind.NO_ROUTE:
            text = f"{subject} has no IPv4 route; expected via {expected}"
        else:
            types = ",".join(sorted(type_.name.lower() for type_ in self.discarded_by))
            text = f"{subject} is discarded by {types}; expected via {expected}"
        if self.source is not None:
            text += f" for connections from {self.source}"
        if self.shadowed != (self.cidr,):
            text += f"; shadowed: {shortened(list(map(str, self.shadowed)), ' ', _SHOWN_NETWORKS)}"
        return text

    @property
    def cause(self) -> str:
        """Return the entry or policy rule that decides, or an empty string if there is none."""
        return "" if self.kind is FindingKind.NO_ROUTE else f"by {self.route or 'a policy rule'}"


@attrs.frozen
class Note(JsonObject):
    """A fact that is worth knowing but isn't a failure.

    Args:
        kind: the subject of the note. docs/reference/report.md describes each one.
        message: one line of text.
        cidr: the expected CIDR that the note is about, masked, or null if it is about all of them.
        devs: the interfaces that the note is about, sorted.
        ranges: the part of the CIDR that the note is about, as the fewest CIDRs.
    """

    kind: NoteKind
    message: str
    cidr: IPv4Network | None = None
    devs: tuple[str, ...] = ()
    ranges: tuple[IPv4Network, ...] = ()


class Obstacle(NamedTuple):
    """A reason why no route in table main fixes certain addresses.

    Args:
        reason: the reason, together with the fix unless a policy rule is the reason.
        preference: the preference of the policy rule that decides instead, or None if no rule does.
        table: the table that this rule names, in which a route could fix the addresses, or None if there is no such
            table.
        next_hops: the next hops of the default route, which such a route would use.
    """

    reason: str
    preference: int | None = None
    table: int | None = None
    next_hops: tuple[NextHop, ...] = ()

    @classmethod
    def of_rule(cls, reason: str, rule: Rule, next_hops: tuple[NextHop, ...]) -> Obstacle:
        """Return the obstacle for a policy rule."""
        leads = rule.action is RuleAction.TO_TABLE and rule.table not in (Table.MAIN, Table.LOCAL)
        return cls(reason, rule.preference, rule.table if leads else None, next_hops if leads else ())

    def commands(self, cidr: str) -> tuple[str, ...]:
        """Return commands, each of which lets a CIDR bypass the policy rule on its own.

        Args:
            cidr: the CIDR, or a placeholder for it.
        """
        from shlex import quote

        found = []
        if self.table is not None:
            named = [attrs.evolve(hop, dev=quote(hop.dev or "")) for hop in self.next_hops]
            hops = [hop.words() + (" onlink" if hop.onlink else "") for hop in named]
            next_hops = hops[0] if len(hops) == 1 else " ".join(f"nexthop {hop}" for hop in hops)
            found.append(f"ip route add {cidr} table {self.table} {next_hops}")
        if self.preference:
            found.append(f"ip rule add to {cidr} lookup main pref {self.preference - 1}")
        return tuple(found)

    def sentence(self, cidr: str) -> str:
        """Return the reason together with the fix.

        Args:
            cidr: the CIDR, or a placeholder for it.
        """
        if self.preference is None:
            return self.reason
        commands = ", or: ".join(self.commands(cidr))
        return f"{self.reason}: {f'{commands}; then check again' if commands else 'change that rule'}"


@attrs.frozen
class Unfixable(JsonObject):
    """Failing addresses that can't be fixed with a route in table main that we would propose.

    Args:
        ranges: the failing addresses.
        devs: the interfaces that their packets leave through, sorted.
        obstacle: the reason.
        about: the addresses as fewer prefixes, which include the local and broadcast addresses between them, or empty
            to use ``ranges``.
    """

    json_names = ("ranges", "devs", "reason")

    ranges: tuple[IPv4Network, ...]
    devs: tuple[str, ...]
    obstacle: Obstacle
    about: tuple[IPv4Network, ...] = attrs.field(default=(), eq=False)

    @property
    def reason(self) -> str:
        """Return the reason and the fix.

        If there are several prefixes, the commands contain ``CIDR`` as a placeholder.
        """
        return self.obstacle.sentence(self.parts[0] if len(self.parts) == 1 else "CIDR")

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the fewest prefixes to name, with single addresses written without a length."""
        return tuple(str(part).removesuffix("/32") for part in self.about or self.ranges)


@attrs.frozen
class Fix(JsonObject):
    """The common fix for all failures of a check.

    Args:
        routes: the fewest entries that cover the failing addresses without affecting any others.
        unfixable: the failures that these entries don't fix.
        consequences: other traffic that the entries move to another interface, one line each.
    """

    routes: tuple[StaticRoute, ...] = ()
    unfixable: tuple[Unfixable, ...] = ()
    consequences: tuple[str, ...] = ()


class Outlook(StrEnum):
    """The change of the verdict after an event."""

    SAME = "same"
    RESTORED = "restored"
    LASTING = "lasting"
    UNTOLD = "untold"


@attrs.frozen
class EventVerdict(JsonObject):
    """The verdict right after an event, and the verdict once other programs have reacted to it.

    Args:
        event: the event.
        outlook: ``same`` if the verdict doesn't change, ``restored`` if it changes until programs restore routes,
            ``lasting`` if it changes permanently, or ``untold`` if it can't be predicted.
        verdict: the result of a check right after the event.
        findings: the failures right after the event, without fixes.
        reason: why the verdict is ``unknown`` or can't be predicted, or null if it is known.
        restored_by: the programs that restore routes afterwards, in order, or empty if none does until the interface or
            the host is set up again.
        lasting_verdict: the result of a check after these programs have restored routes.
        lasting_findings: the failures that remain after that, without fixes.
    """

    event: HostEvent
    outlook: Outlook
    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    reason: str | None = None
    restored_by: tuple[str, ...] = ()
    lasting_verdict: Verdict = Verdict.UNKNOWN
    lasting_findings: tuple[Finding, ...] = ()

    @property
    def is_risk(self) -> bool:
        """Return whether an expected CIDR fails permanently, and not only for lack of a default route."""
        return self.outlook is Outlook.LASTING and bool(self.lasting_findings)


@attrs.frozen
class OverlapReport(JsonObject):
    """The result of a check.

    Args:
        verdict: ``overlap`` if there are findings, ``unknown`` if nothing could be judged, otherwise ``ok``.
        mode: how a failure affects the node: ``WARN`` only reports it, and ``STRICT`` stops the node from starting.
        time: when the kernel was queried, in RFC 3339 format, in UTC and without fractions of a second.
        host: the name of the host.
        default_devs: the uplinks, sorted. These are the interfaces of the default route or those that the config names.
            Empty if nothing was judged.
        findings: the failures, ordered as in the config and by address within a CIDR.
        notes: the facts that are worth knowing but aren't failures.
        reason_kind: the kind of the reason if the verdict is ``unknown``, otherwise None.
        reason_detail: details of the reason.
        cidrs: the CIDRs that were checked.
        fix: the common fix for all failures. Not part of the JSON, in which each failure has its own fix.
        changes: the changes made by the task that ran the check. Not part of the JSON, which is the same for every
            task.
        events: the verdict after each possible event, or null if predictions weren't requested.
    """

    schema: ClassVar[Literal[1]] = 1
    json_names = ("schema", "host", "verdict", "mode", "default_devs", "findings", "notes", "reason", "time", "events")

    verdict: Verdict
    mode: OverlapMode
    time: str
    host: str
    default_devs: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[Note, ...] = ()
    reason_kind: UnknownReason | None = None
    reason_detail: str = ""
    cidrs: tuple[IPv4Network, ...] = ()
    fix: Fix = attrs.field(factory=Fix)
    changes: Changes = attrs.field(factory=Changes)
    events: tuple[EventVerdict, ...] | None = None

    @property
    def is_one_event_away(self) -> bool | None:
        """Return whether a single event would break an expected CIDR for good, or None if no events were requested."""
        return None if self.events is None else any(each.is_risk for each in self.events)

    @property
    def reason(self) -> str | None:
        """Return why nothing could be judged, in a line that begins with the kind, or None if there is a verdict."""
        if self.reason_kind is None:
            return None
        return f"{self.reason_kind}: {self.reason_detail}" if self.reason_detail else str(self.reason_kind)


class RouteOverlapError(HostRoutingError):
    """The error of a check in STRICT mode that found failures or couldn't judge anything.

    Args:
        message: a line for each finding, or the reason why nothing could be judged.
        report: the result of the check.
        warnings: other problems that keep the installation from working, one sentence each.
        hint: what to do next.

    The error also has the attributes ``findings``, ``reason`` and ``fix`` of the report. ``fix`` is None if nothing
    could be judged.
    """

    def __init__(self, message: str, report: OverlapReport, warnings: tuple[str, ...] = (), *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.report = report
        self.warnings = warnings
        self.findings: tuple[Finding, ...] = report.findings
        self.reason: str | None = report.reason
        self.fix: Fix | None = None if report.verdict is Verdict.UNKNOWN else report.fix

    def __reduce__(self) -> tuple[type[RouteOverlapError], tuple[str, OverlapReport], dict[str, Any]]:
        return type(self), (self.message, self.report), vars(self)
