"""Pure: what a check finds: failures, notes, and what mends them, as values that every output is made of."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from hostrouting.config.schema import fields_in_json
from hostrouting.model.changes import Changes
from hostrouting.model.errors import HostRoutingError
from hostrouting.model.text import StrEnum

if TYPE_CHECKING:
    from hostrouting.config.overlap import OverlapMode
    from hostrouting.config.routing import StaticRoute
    from hostrouting.model.routes import Route


NO_DEFAULT_ROUTE = "no-default-route"


class Verdict(StrEnum):
    """``unknown``: nothing could be judged; the report's ``reason`` says why."""

    OK = "ok"
    OVERLAP = "overlap"
    UNKNOWN = "unknown"


class FindingKind(StrEnum):
    """Why an expected CIDR fails."""

    OVERLAP = "OVERLAP"
    NO_ROUTE = "NO-ROUTE"
    BLACKHOLE = "BLACKHOLE"


class NoteKind(StrEnum):
    """Why something that doesn't leave by the default interface is no failure."""

    LOCAL = "LOCAL"
    BROADCAST = "BROADCAST"
    CONTAINER = "CONTAINER"
    ALLOWED = "ALLOWED"
    CNI_DISCARD = "CNI-DISCARD"
    PENDING = "PENDING"
    FORESEEN = "FORESEEN"
    RULE = "RULE"
    NETNS = "NETNS"


@attrs.frozen
class Finding:
    """An expected CIDR that fails.

    Args:
        kind: why.
        cidr: the expected CIDR, masked.
        probe: the first failing address.
        devs: the interfaces that it leaves by, sorted; none if it doesn't.
        expected_devs: the default route's interfaces, sorted; or the patterns that the config names for this CIDR.
        source: from which connections fail, and otherwise than the rest; None: it fails unconnected.
        ranges: the failing part, as the fewest CIDRs.
        route: the entry that wins at ``probe``, or discards there; None if there is none.
        fix: those entries of the whole remedy that mend some of it: all of it that routes can mend.
        message: one line for a person.
        behind: the interfaces that it leaves by next if the routes that win are removed, sorted: others have routes to
            the same destinations. Not part of the JSON.
    """

    kind: FindingKind
    cidr: IPv4Network
    probe: IPv4Address
    devs: tuple[str, ...]
    expected_devs: tuple[str, ...]
    ranges: tuple[IPv4Network, ...]
    route: Route | None
    message: str
    source: IPv4Address | None = None
    fix: tuple[StaticRoute, ...] = ()
    behind: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON."""
        names = ("kind", "cidr", "probe", "devs", "expected_devs", "source", "ranges", "route", "fix", "message")
        return fields_in_json(self, *names)


@attrs.frozen
class Note:
    """Something worth knowing that is no failure.

    Args:
        kind: what sort.
        message: one line for a person.
        cidr: the expected CIDR that it is about; None: all of them.
        devs: the interfaces that it is about, sorted.
        ranges: the part of the CIDR that it is about.
    """

    kind: NoteKind
    message: str
    cidr: IPv4Network | None = None
    devs: tuple[str, ...] = ()
    ranges: tuple[IPv4Network, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The note as JSON."""
        return fields_in_json(self, "kind", "message", "cidr", "devs", "ranges")


@attrs.frozen
class Unmendable:
    """Failing addresses that no route in table main can mend, or none that we would propose.

    Args:
        ranges: the addresses.
        devs: the interfaces that they leave by, sorted.
        reason: why, and what would mend it.
        about: the same in fewer prefixes, with the own and broadcast addresses among them, which are noted; none: as
            they are.
    """

    ranges: tuple[IPv4Network, ...]
    devs: tuple[str, ...]
    reason: str
    about: tuple[IPv4Network, ...] = attrs.field(default=(), eq=False)

    def to_json(self) -> dict[str, Any]:
        """The same as JSON."""
        return fields_in_json(self, "ranges", "devs", "reason")


class Remedy(NamedTuple):
    """What mends all failures of a check together.

    Args:
        routes: the fewest entries that cover what fails, and nothing that was fine.
        unmendable: what they leave.
        consequences: what else changes sides with them, a line each.
    """

    routes: tuple[StaticRoute, ...] = ()
    unmendable: tuple[Unmendable, ...] = ()
    consequences: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The same as JSON; routes as a config has them."""
        return fields_in_json(self, *self._fields)


@attrs.frozen
class OverlapReport:
    """The result of a check.

    Args:
        verdict: the result in a word.
        mode: what a failure means to the node.
        time: RFC 3339, UTC, in seconds.
        host: the name of the host that was judged.
        default_devs: the default route's interfaces, sorted.
        findings: the failures.
        notes: the rest.
        reason: why the verdict is ``unknown``.
        cidrs: what was checked.
        remedy: what mends all failures together; not part of the JSON, which has each failure's own.
        changes: what the task that checked has changed; not part of the JSON, which is the same everywhere.
    """

    verdict: Verdict
    mode: OverlapMode
    time: str
    host: str
    default_devs: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[Note, ...] = ()
    reason: str | None = None
    cidrs: tuple[IPv4Network, ...] = ()
    remedy: Remedy = attrs.field(factory=Remedy)
    changes: Changes = attrs.field(factory=Changes)

    def to_json(self) -> dict[str, Any]:
        """The report in the one form that every output has."""
        names = ("host", "verdict", "mode", "default_devs", "findings", "notes", "reason", "time")
        return {"schema": 1} | fields_in_json(self, *names)


class RouteOverlapError(HostRoutingError):
    """STRICT mode found traffic that leaves by a wrong interface, or couldn't judge.

    Args:
        message: a line for each finding, or the reason why nothing could be judged.
        report: what was found.
        warnings: what else keeps the installation from doing its job, a sentence each.

    Of the report ``findings``, ``reason`` and ``remedy`` are its own too; the last is None where nothing could be
    judged.
    """

    def __init__(self, message: str, report: OverlapReport, warnings: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.report = report
        self.warnings = warnings
        self.findings: tuple[Finding, ...] = report.findings
        self.reason: str | None = report.reason
        self.remedy: Remedy | None = None if report.verdict is Verdict.UNKNOWN else report.remedy

    def __reduce__(self) -> tuple[type[RouteOverlapError], tuple[str, OverlapReport], dict[str, Any]]:
        return type(self), (str(self), self.report), vars(self)
