"""Pure: the result of a check: failures, notes and their fixes, as values that every output uses."""

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

# A line is for people, so it is cut; ``ranges`` is complete.
_SHOWN_NETWORKS = 16


class Verdict(StrEnum):
    """Result of a check in a word. For ``unknown`` nothing could be judged; the report's ``reason`` says why."""

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
        kind: why it fails: ``OVERLAP`` leaves through another interface, ``NO-ROUTE`` has no route, ``BLACKHOLE`` is
            discarded.
        cidr: the expected CIDR, masked.
        probe: the first failing address.
        devs: the interfaces that it leaves through, sorted; empty if it doesn't leave.
        expected_devs: the uplinks, sorted; or the patterns that the config names for this CIDR.
        source: the source from which connections fail, unlike the rest; None: it fails unconnected.
        ranges: the failing part, as the fewest CIDRs.
        route: the entry that wins at ``probe``, or discards it, as ``ip route show`` prints it; null if there is
            none, or a policy rule decides.
        fix: those entries of the whole fix that fix a part of it; together they fix everything that routes can fix.
        shadowed: the failing part as fewer prefixes, including the noted local and broadcast addresses between them.
            Not part of the JSON.
        discarded_by: the types of the entries that discard it. Not part of the JSON.
        behind: the interfaces that it would leave through next if the winning routes were removed, sorted: other
            interfaces have routes to the same destinations. Not part of the JSON.
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
        """The finding as one line."""
        return f"{self.failure}; {self.cause}" if self.cause else self.failure

    @property
    def failure(self) -> str:
        """The line without the cause."""
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
        """The entry or policy rule that decides; empty if there is none."""
        return "" if self.kind is FindingKind.NO_ROUTE else f"by {self.route or 'a policy rule'}"


@attrs.frozen
class Note(JsonObject):
    """A fact worth knowing that isn't a failure.

    Args:
        kind: the subject; docs/reference/report.md has a row for each.
        message: one line of text.
        cidr: the expected CIDR concerned, masked; null: all of them.
        devs: the interfaces concerned, sorted.
        ranges: the part of the CIDR concerned, as the fewest CIDRs.
    """

    kind: NoteKind
    message: str
    cidr: IPv4Network | None = None
    devs: tuple[str, ...] = ()
    ranges: tuple[IPv4Network, ...] = ()


class Obstacle(NamedTuple):
    """A reason why no route in table main fixes certain addresses.

    Args:
        reason: the reason, and the fix unless a policy rule is the reason.
        preference: the preference of the policy rule that decides instead; None: no rule does.
        table: the table that this rule names, where a route could send the addresses back; None: there is none.
        next_hops: the default route's next hops, for such a route.
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
        """Return commands; each of them alone lets a CIDR past the policy rule.

        Args:
            cidr: the CIDR, or a word that stands for it.
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
            cidr: as for ``commands``.
        """
        if self.preference is None:
            return self.reason
        commands = ", or: ".join(self.commands(cidr))
        return f"{self.reason}: {f'{commands}; then check again' if commands else 'change that rule'}"


@attrs.frozen
class Unfixable(JsonObject):
    """Failing addresses that no route in table main can fix, or none that we would propose.

    Args:
        ranges: the failing addresses.
        devs: the interfaces that they leave through, sorted.
        obstacle: the reason.
        about: the addresses as fewer prefixes, including the noted local and broadcast addresses between them; empty:
            use ``ranges``.
    """

    json_names = ("ranges", "devs", "reason")

    ranges: tuple[IPv4Network, ...]
    devs: tuple[str, ...]
    obstacle: Obstacle
    about: tuple[IPv4Network, ...] = attrs.field(default=(), eq=False)

    @property
    def reason(self) -> str:
        """Return the reason and how to fix it; if there are several prefixes, its commands say CIDR in their place."""
        return self.obstacle.sentence(self.parts[0] if len(self.parts) == 1 else "CIDR")

    @property
    def parts(self) -> tuple[str, ...]:
        """The fewest prefixes to name; single addresses have no length."""
        return tuple(str(part).removesuffix("/32") for part in self.about or self.ranges)


@attrs.frozen
class Fix(JsonObject):
    """The common fix for all failures of a check.

    Args:
        routes: the fewest entries that cover what fails without touching anything that is fine.
        unfixable: the failures that they don't fix.
        consequences: what else they move to another interface, a line each.
    """

    routes: tuple[StaticRoute, ...] = ()
    unfixable: tuple[Unfixable, ...] = ()
    consequences: tuple[str, ...] = ()


class Outlook(StrEnum):
    """The course of the verdict after an event, compared with the current verdict."""

    SAME = "same"
    RESTORED = "restored"
    LASTING = "lasting"
    UNTOLD = "untold"


@attrs.frozen
class EventVerdict(JsonObject):
    """The verdict after an event: before any other program reacts to it, and after the programs that will.

    Args:
        event: the event.
        outlook: ``same``: no change; ``restored``: another verdict until programs restore routes; ``lasting``: another
            verdict that stays; ``untold``: it can't be predicted.
        verdict: the result of a check right after the event.
        findings: the failures then, without fixes.
        reason: why the verdict is ``unknown``, or can't be predicted; null: it is known.
        restored_by: the programs that restore routes afterwards, in their order; empty: none does until the interface
            or the host is set up again.
        lasting_verdict: the result of a check after that.
        lasting_findings: the failures that remain then, without fixes.
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
        """Return whether an expected CIDR fails permanently, and not just because there is no default route."""
        return self.outlook is Outlook.LASTING and bool(self.lasting_findings)


@attrs.frozen
class OverlapReport(JsonObject):
    """The result of a check.

    Args:
        verdict: ``overlap`` if there are findings, ``unknown`` if nothing could be judged.
        mode: how a failure affects the node: ``WARN`` reports it, ``STRICT`` holds the node back.
        time: when the kernel was queried: RFC 3339, UTC, in seconds.
        host: the name of the host.
        default_devs: the uplinks, sorted: the default route's interfaces, or those that the config names; none if
            nothing was judged.
        findings: the failures in the order of the config, and within a CIDR in address order.
        notes: facts worth knowing that aren't failures.
        reason_kind: the kind of the reason for ``unknown``; None for the other verdicts.
        reason_detail: details of the reason.
        cidrs: the CIDRs that were checked.
        fix: the common fix for all failures; not part of the JSON, where each failure has its own.
        changes: the changes made by the task that checked; not part of the JSON, which is the same everywhere.
        events: the verdicts after each event that the host may meet; null: they weren't requested.
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
        """Return whether a single event leads an expected CIDR astray permanently; None: no events were requested."""
        return None if self.events is None else any(each.is_risk for each in self.events)

    @property
    def reason(self) -> str | None:
        """Return why nothing could be judged, in a line that begins with the kind; None if something was judged."""
        if self.reason_kind is None:
            return None
        return f"{self.reason_kind}: {self.reason_detail}" if self.reason_detail else str(self.reason_kind)


class RouteOverlapError(HostRoutingError):
    """STRICT mode found traffic that leaves through a wrong interface, or couldn't judge.

    Args:
        message: a line for each finding, or the reason why nothing could be judged.
        report: the result of the check.
        warnings: other problems that keep the installation from working, a sentence each.
        hint: what to do next.

    The report's ``findings``, ``reason`` and ``fix`` are attributes of the error too; ``fix`` is None if nothing could
    be judged.
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
