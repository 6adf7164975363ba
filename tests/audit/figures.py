"""Audit statistics and mistakes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs

WAYS = {
    "live": "the live verdict",
    "snapshot": "snapshots by hostrouting snapshot",
    "ip": "snapshots by ip -j",
    "boot": "the boot script",
}
"""The kinds of reports that an audit compares."""

# The maximum number of mistakes to print.
SHOWN = 5


@attrs.define
class Share:
    """The results for one kind of host.

    Args:
        worlds: number of hosts.
        without_default: number of hosts without a default route, whose verdict must be unknown.
        lookups: number of addresses compared with the kernel.
        answers: number of route lookups, counting datagrams, TCP and each source address separately.
        wrong: number of addresses with an incorrect report, by ``WAYS``.
        blamed: number of hosts with mistakes, by report type and non-plain feature.
        unknown: number of hosts with a default route but no verdict, by report type and reason.
        fixes: number of applied fixes.
        entries: number of routes in these fixes.
        left: number of addresses that still fail after the fix, although they should pass.
        changed: number of addresses that a fix changed incorrectly.
        sockets: number of connection attempts and datagrams.
        unseen: number of addresses where sockets and the check disagree.
        features: number of hosts with each feature.
        events: number of triggered events, by kind.
        passed: number of interfaces whose events weren't predicted, but were triggered anyway.
    """

    worlds: int = 0
    without_default: int = 0
    lookups: int = 0
    answers: int = 0
    wrong: Counter[str] = attrs.field(factory=Counter)
    blamed: Counter[str] = attrs.field(factory=Counter)
    unknown: Counter[str] = attrs.field(factory=Counter)
    fixes: int = 0
    entries: int = 0
    left: int = 0
    changed: int = 0
    sockets: int = 0
    unseen: int = 0
    features: Counter[str] = attrs.field(factory=Counter)
    events: Counter[str] = attrs.field(factory=Counter)
    passed: int = 0

    def add(self, other: Share) -> None:
        for name in attrs.fields_dict(Share):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def mistakes(self) -> int:
        return sum(self.wrong.values()) + self.left + self.changed + self.unseen


@attrs.define
class Figures:
    """The results of an audit.

    Args:
        plain: results for hosts that a snapshot can represent completely.
        odd: results for hosts with features that a snapshot may not represent.
        seen: results for hosts that are compared with sockets.
        events: results for hosts on which events are triggered.
        ipv6: results for IPv6 hosts, which are also compared with sockets.
        mistakes: descriptions of the first mistakes, including their hosts.
        seconds: duration of the audit.
        made: date, kernel version, program versions, and the command that repeats the audit.
    """

    plain: Share = attrs.field(factory=Share)
    odd: Share = attrs.field(factory=Share)
    seen: Share = attrs.field(factory=Share)
    events: Share = attrs.field(factory=Share)
    ipv6: Share = attrs.field(factory=Share)
    mistakes: list[str] = attrs.field(factory=list)
    seconds: float = 0.0
    made: dict[str, str] = attrs.field(factory=dict)

    def add(self, other: Figures) -> None:
        self.plain.add(other.plain)
        self.odd.add(other.odd)
        self.seen.add(other.seen)
        self.events.add(other.events)
        self.ipv6.add(other.ipv6)
        self.mistakes = list(dict.fromkeys((*self.mistakes, *other.mistakes)))[:SHOWN]

    @property
    def shares(self) -> tuple[Share, ...]:
        return self.plain, self.odd, self.seen

    @property
    def lookups(self) -> int:
        return sum(share.lookups for share in self.shares)

    @property
    def mistaken(self) -> int:
        """Return the number of mistakes."""
        return sum(share.mistakes for share in (*self.shares, self.events, self.ipv6))

    @property
    def is_right(self) -> bool:
        """Return whether there were no mistakes, and no unknown verdicts for plain hosts."""
        return not (self.mistaken or self.plain.unknown)

    def to_json(self) -> dict[str, Any]:
        return attrs.asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Figures:
        counters = ("wrong", "blamed", "unknown", "features", "events")
        shares = {
            name: Share(**document[name] | {key: Counter(document[name][key]) for key in counters})
            for name in ("plain", "odd", "seen", "events", "ipv6")
        }
        return cls(**document | shares)
