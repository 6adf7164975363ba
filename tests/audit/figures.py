"""The counts and mistakes of an audit."""

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

# The largest number of mistakes to print.
SHOWN = 5


@attrs.define
class Share:
    """The results for one kind of host.

    Args:
        worlds: the number of hosts.
        without_default: the number of hosts without a default route. Their verdict must be unknown.
        lookups: the number of addresses whose verdict was compared with the kernel.
        answers: the number of answers by the kernel, for datagrams, TCP and each source of a connection.
        wrong: the number of addresses whose report differs from the kernel, by ``WAYS``.
        blamed: the number of hosts with a mistake, by the kind of report and a feature that plain hosts lack.
        unknown: the number of hosts with a default route but no verdict, by the kind of report and the reason.
        fixes: the number of fixes that were applied.
        entries: the number of routes in these fixes.
        left: the number of addresses that still fail after a fix that promised to fix them.
        changed: the number of addresses that a fix changed by mistake.
        sockets: the number of connections and datagrams that were sent.
        unseen: the number of addresses for which sockets and the check disagree.
        features: the number of hosts with each feature.
        events: the number of events that happened, by kind.
        passed: the number of interfaces whose events the prediction skipped, although the audit made them happen.
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
        plain: the results for hosts that a snapshot represents completely.
        odd: the results for hosts with features that a snapshot may not represent.
        seen: the results for hosts that sockets judge.
        events: the results for hosts to which events happen.
        mistakes: sentences about the first mistakes, each with its host.
        seconds: the duration of the audit.
        made: the date, the kernel, the programs, and the command to repeat the audit.
    """

    plain: Share = attrs.field(factory=Share)
    odd: Share = attrs.field(factory=Share)
    seen: Share = attrs.field(factory=Share)
    events: Share = attrs.field(factory=Share)
    mistakes: list[str] = attrs.field(factory=list)
    seconds: float = 0.0
    made: dict[str, str] = attrs.field(factory=dict)

    def add(self, other: Figures) -> None:
        self.plain.add(other.plain)
        self.odd.add(other.odd)
        self.seen.add(other.seen)
        self.events.add(other.events)
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
        return sum(share.mistakes for share in (*self.shares, self.events))

    @property
    def is_right(self) -> bool:
        """Return whether there was no mistake, and no unknown verdict for a plain host."""
        return not (self.mistaken or self.plain.unknown)

    def to_json(self) -> dict[str, Any]:
        return attrs.asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Figures:
        counters = ("wrong", "blamed", "unknown", "features", "events")
        shares = {
            name: Share(**document[name] | {key: Counter(document[name][key]) for key in counters})
            for name in ("plain", "odd", "seen", "events")
        }
        return cls(**document | shares)
