"""Types for a check's findings, notes and fixes, shared by all output formats.

This module does no I/O.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import attrs

from hostrouting.config.routing import (
    ExpectedCidr,
    Keep,
    OverlapMode,
    StaticRoute,
    StaticRoutes,
    StaticRule,
)
from hostrouting.model.changes import Changes
from hostrouting.model.errors import HostRoutingError
from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.jsonable import JsonObject, StrEnum
from hostrouting.model.links import Address, Link
from hostrouting.model.routes import Route, RouteType
from hostrouting.model.text import shortened
from hostrouting.model.values import frozen
from hostrouting.overlap.proposals import Fix, Unfixable

# Limit for human-readable lines; ``ranges`` is always complete.
_SHOWN_NETWORKS = 16


class Verdict(StrEnum):
    """A check's result in one word. The report's ``reason`` explains the verdict ``unknown``."""

    OK = "ok"
    OVERLAP = "overlap"
    UNKNOWN = "unknown"


class UnknownReason(StrEnum):
    """The reason for an ``unknown`` verdict."""

    NO_DEFAULT_ROUTE = "no-default-route"
    CONTESTED_DEFAULT = "contested-default"
    NO_UPLINK = "no-uplink"
    SWAPPED = "swapped"
    NO_LOCAL_TABLE = "no-local-table"
    CHECK_FAILED = "check-failed"
    NO_SNAPSHOT = "no-snapshot"
    NO_KERNEL = "no-kernel"
    NOTHING_EXPECTED = "nothing-expected"


class FindingKind(StrEnum):
    """A type of failure."""

    OVERLAP = "OVERLAP"
    NO_ROUTE = "NO-ROUTE"
    BLACKHOLE = "BLACKHOLE"
    GATEWAY = "GATEWAY"
    PORT = "PORT"


class NoteKind(StrEnum):
    """A type of note."""

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
    MOVED = "MOVED"
    NODE_IP = "NODE-IP"
    SOURCE = "SOURCE"
    MTU = "MTU"
    LINK = "LINK"
    ON_LINK = "ON-LINK"
    START = "START"


EXEMPTIONS = (NoteKind.CONTAINER, NoteKind.ALLOWED, NoteKind.CNI_DISCARD)
"""The kinds of notes on exempt addresses. A CIDR that names its interfaces has no exemptions."""


DECISIONS = (NoteKind.CONTESTED, NoteKind.MOVED)
"""The kinds of notes that ask which interface is the uplink."""


@frozen
class Finding(JsonObject):
    """An expected CIDR that fails.

    Args:
        kind: type of failure: ``OVERLAP``: packets leave through the wrong interface. ``NO-ROUTE``:
            there is no route. ``BLACKHOLE``: packets are discarded. ``GATEWAY``: the next hop is
            also an address of this host on another interface, and the router's ARP requests aren't
            answered. ``PORT``: packets leave through a port, but the port's bridge or bond takes
            the replies.
        cidr: the expected CIDR, without host bits.
        probe: the first failing address.
        devs: sorted names of the interfaces that packets leave through; empty if packets are
            discarded or have no route.
        expected_devs: sorted names of the uplinks, or the config's interface patterns for this
            CIDR.
        source: source address of the failing connections or replies. Null if the packets have no
            source yet, as unconnected datagrams don't.
        ranges: the failing addresses, as the fewest CIDRs.
        route: the entry that matches ``probe``, in the format of ``ip route show``. Null if no
            entry matches, or a policy rule discards the packets. For ``GATEWAY``, the entry whose
            next hop is this host's address.
        fix: the routes that fix this failure, as far as routes can fix it.
        rules: the rules that the fix takes in addition, where a policy rule decides before table
            main.
        shadowed: the failing addresses as a shorter list of prefixes that also includes adjacent
            local and broadcast addresses. Not included in the JSON.
        discarded_by: types of the entries that discard packets. Not included in the JSON.
        behind: sorted names of further unexpected interfaces, which packets would use if the
            matching routes were removed. Not included in the JSON.
        gateway: for ``GATEWAY``, this host's address that is also the next hop's. Not included in
            the JSON.
        port: for ``PORT``, the interface whose master takes the replies. Not included in the JSON.
        is_reply: whether a server's replies from ``source`` fail, rather than connections. Not
            included in the JSON.
    """

    json_names = (
        "kind",
        "cidr",
        "probe",
        "devs",
        "expected_devs",
        "source",
        "ranges",
        "route",
        "fix",
        "rules",
        "message",
    )

    kind: FindingKind
    cidr: IpNetwork
    probe: IpAddress
    devs: tuple[str, ...]
    expected_devs: tuple[str, ...]
    ranges: tuple[IpNetwork, ...]
    route: Route | None
    shadowed: tuple[IpNetwork, ...]
    discarded_by: tuple[RouteType, ...] = ()
    source: IpAddress | None = None
    fix: tuple[StaticRoute, ...] = ()
    rules: tuple[StaticRule, ...] = ()
    behind: tuple[str, ...] = ()
    gateway: Address | None = None
    port: Link | None = None
    is_reply: bool = False

    @property
    def message(self) -> str:
        """Return the failure and its cause in one line."""
        return f"{self.failure}; {self.cause}" if self.cause else self.failure

    @property
    def failure(self) -> str:
        """Return the description without the cause."""
        subject = f"{self.kind}: expected CIDR {self.cidr} (probe {self.probe})"
        expected = ",".join(self.expected_devs)
        if self.kind is FindingKind.OVERLAP:
            text = f"{subject} routes via {','.join(self.devs) or 'no device'}, expected {expected}"
        elif self.gateway is not None:
            owner = f"which is also an address of this host ({self.gateway.dev})"
            text = f"{subject} leaves for {self.gateway.local}, {owner}; expected via {expected}"
        elif self.port is not None:
            taken = f"a port of {self.port.master}, which takes all replies"
            text = f"{subject} leaves through {self.port.name}, {taken}; expected via {expected}"
        elif self.kind is FindingKind.NO_ROUTE:
            text = f"{subject} has no {Family.of(self.cidr)} route; expected via {expected}"
        else:
            types = ",".join(sorted(type_.name.lower() for type_ in self.discarded_by))
            text = f"{subject} is discarded by {types}; expected via {expected}"
        if self.source is not None:
            text += f" for {'replies' if self.is_reply else 'connections'} from {self.source}"
        if self.shadowed != (self.cidr,):
            text += f"; shadowed: {shortened(list(map(str, self.shadowed)), ' ', _SHOWN_NETWORKS)}"
        return text

    @property
    def cause(self) -> str:
        """Return the matching entry or policy rule, or an empty string if there is none."""
        return "" if self.kind is FindingKind.NO_ROUTE else f"by {self.route or 'a policy rule'}"


class UplinkChoice(NamedTuple):
    """Interfaces to choose as the uplinks.

    Args:
        devs: the names of the interfaces.
        failing: the other interfaces that carry expected packets now. With this choice, these
            packets would fail.
    """

    devs: tuple[str, ...]
    failing: tuple[str, ...] = ()


@frozen
class Note(JsonObject):
    """An informational message that isn't a failure.

    Args:
        kind: type of note; see docs/reference/report.md for a description of each type.
        message: one line of text.
        cidr: the expected CIDR without host bits. Null if the note applies to all expected CIDRs.
        devs: sorted names of the interfaces involved.
        ranges: the affected addresses, as the fewest CIDRs.
        winner: for ``CONTESTED``, the interfaces of the default route that wins, or empty if that
            isn't known. Not included in the JSON.
        choices: for ``CONTESTED``, the uplinks that the message offers to name. Not included in the
            JSON.
    """

    json_names = ("kind", "message", "cidr", "devs", "ranges")

    kind: NoteKind
    message: str
    cidr: IpNetwork | None = None
    devs: tuple[str, ...] = ()
    ranges: tuple[IpNetwork, ...] = ()
    winner: tuple[str, ...] = ()
    choices: tuple[UplinkChoice, ...] = ()


@frozen
class FamilyVerdict(JsonObject):
    """The verdict for the CIDRs in one address family.

    Args:
        family: the family. Not included in the JSON object, because the report uses it as the
            object's key.
        verdict: the verdict.
        default_devs: sorted names of the uplinks, or empty if the check couldn't run.
        reason: why the verdict is ``unknown``; null for other verdicts.
        default_expires: for how many more seconds an uplink has a default route, if no router
            renews it. Null if there is no such route, or if it doesn't expire.
    """

    json_names = ("verdict", "default_devs", "reason", "default_expires")

    family: Family
    verdict: Verdict
    default_devs: tuple[str, ...]
    reason: str | None
    default_expires: int | None = attrs.field(default=None, eq=False)


@frozen
class OverlapReport(JsonObject):
    """The result of a check.

    Args:
        verdict: ``overlap`` if there are findings, ``unknown`` if the check couldn't run, otherwise
            ``ok``.
        mode: what happens on failure: ``WARN`` lets the node start, and ``STRICT`` prevents this.
        time: timestamp of the check, in RFC 3339 format, in UTC and without fractional seconds. If
            a snapshot was checked, the snapshot's time; null if it has none.
        host: the name of the host.
        default_devs: sorted names of the uplinks: the interfaces of the default route, or those
            that the config names. Empty if the verdict is ``unknown``; with two families, if it is
            ``unknown`` for both.
        findings: the failures, in config order and by address within a CIDR.
        notes: informational messages that aren't failures.
        reason_kind: why the verdict is ``unknown``; None for other verdicts.
        reason_detail: details about the reason.
        expected: the CIDRs that were checked, each with the interfaces that the config names for
            it.
        families: the verdict for each family, if IPv6 CIDRs are expected. The report's verdict is
            the worse of the two. If one family's verdict is ``unknown``, there may still be
            findings in the other family.
        fix: a fix for all failures. Not included in the JSON, in which each finding has its own
            routes and rules. The JSON also has the interfaces to keep (``keep``), the fix's entries
            that the config already lists (``unapplied``), our routes and rules that it doesn't list
            (``unlisted``), the failures that no entry fixes (``unfixable``), and ``hints``.
        changes: changes made by the task that ran the check. Not included in the JSON, which
            doesn't depend on the task.
        default_expires: for how many more seconds an uplink has an IPv6 default route, if the
            report is about IPv6. Not included in the JSON, in which ``families`` has it.
        verified_since: since when these uplinks have been the verified ones (RFC 3339). Null in
            three cases: the uplinks aren't the verified ones, another NIC has an uplink's name now,
            or the time is unknown.
    """

    schema: ClassVar[Literal[1]] = 1
    json_names = (
        "schema",
        "host",
        "verdict",
        "mode",
        "default_devs",
        "verified_since",
        "findings",
        "keep",
        "unapplied",
        "unlisted",
        "unfixable",
        "hints",
        "notes",
        "reason",
        "time",
    )

    verdict: Verdict
    mode: OverlapMode
    time: str | None
    host: str
    default_devs: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[Note, ...] = ()
    reason_kind: UnknownReason | None = None
    reason_detail: str = ""
    expected: tuple[ExpectedCidr, ...] = ()
    families: tuple[FamilyVerdict, ...] = ()
    fix: Fix = attrs.field(factory=Fix)
    changes: Changes = attrs.field(factory=Changes)
    default_expires: int | None = attrs.field(default=None, eq=False)
    verified_since: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON, including the families if IPv6 CIDRs are expected."""
        families = {str(each.family).lower(): each.to_json() for each in self.families}
        return super().to_json() | ({"families": families} if families else {})

    @property
    def keep(self) -> tuple[Keep, ...]:
        """Return the interfaces to keep with the fix."""
        return self.fix.keep

    @property
    def unapplied(self) -> StaticRoutes | None:
        """Return the config's entries that the kernel lacks, if they would fix failures."""
        return self.fix.unapplied

    @property
    def unlisted(self) -> tuple[str, ...]:
        """Return our routes and rules that cause failures, and that ``apply`` would remove."""
        return self.fix.unlisted

    @property
    def unfixable(self) -> tuple[Unfixable, ...]:
        """Return the failures that the fix's entries don't fix, each with the reason."""
        return self.fix.unfixable

    @property
    def hints(self) -> tuple[str, ...]:
        """Return what other interfaces' owners can change instead, or why nothing is proposed."""
        return self.fix.hints

    @property
    def decisions(self) -> tuple[Note, ...]:
        """Return the notes that ask which interface is the uplink."""
        return tuple(note for note in self.notes if note.kind in DECISIONS)

    @property
    def pending(self) -> tuple[str, ...]:
        """Return the InfiniBand interfaces without an IPv4 address, whose route may still come."""
        return tuple(
            dev for note in self.notes if note.kind is NoteKind.PENDING for dev in note.devs
        )

    @property
    def cidrs(self) -> tuple[IpNetwork, ...]:
        """Return the CIDRs that were checked, without duplicates."""
        return tuple(dict.fromkeys(each.cidr for each in self.expected))

    def verdict_on(self, cidr: IpNetwork) -> Verdict:
        """Return the verdict for an expected CIDR."""
        if cidr in self._failing:
            return Verdict.OVERLAP
        of_family = (each.verdict for each in self.families if each.family is Family.of(cidr))
        is_unknown = next(of_family, self.verdict) is Verdict.UNKNOWN
        return Verdict.UNKNOWN if is_unknown else Verdict.OK

    @cached_property
    def _failing(self) -> frozenset[IpNetwork]:
        return frozenset(finding.cidr for finding in self.findings)

    @property
    def reason(self) -> str | None:
        """Return the kind and the details of the reason for ``unknown``, or else None."""
        if self.reason_kind is None:
            return None
        return (
            f"{self.reason_kind}: {self.reason_detail}"
            if self.reason_detail
            else str(self.reason_kind)
        )


class RouteOverlapError(HostRoutingError):
    """The error for a check in STRICT mode that found failures or couldn't reach a verdict.

    Args:
        message: one line per finding, or the reason why the verdict is ``unknown``.
        report: the result of the check.
        warnings: other problems that prevent the installation from working, one sentence each.
        hint: what to do next.

    The error also has the report's attributes ``findings``, ``reason`` and ``fix``. ``fix`` is None
    if the verdict is ``unknown`` and there are no findings.
    """

    def __init__(
        self,
        message: str,
        report: OverlapReport,
        warnings: tuple[str, ...] = (),
        *,
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.report = report
        self.warnings = warnings
        self.findings: tuple[Finding, ...] = report.findings
        self.reason: str | None = report.reason
        self.fix: Fix | None = (
            None if report.verdict is Verdict.UNKNOWN and not report.findings else report.fix
        )

    def __reduce__(
        self,
    ) -> tuple[type[RouteOverlapError], tuple[str, OverlapReport], dict[str, Any]]:
        return type(self), (self.message, self.report), vars(self)
