"""Policy rules, in the words of ip-rule(8)."""

from __future__ import annotations

from enum import IntEnum
from ipaddress import IPv4Network

import attrs

from hostrouting.model.routes import Protocol, Table, word_of

# No rule can select port 65535 (fib_rule_port_range_valid).
ALL_PORTS = (1, 65534)


class RuleAction(IntEnum):
    """FR_ACT_* of linux/fib_rules.h."""

    TO_TABLE = 1
    GOTO = 2
    NOP = 3
    BLACKHOLE = 6
    UNREACHABLE = 7
    PROHIBIT = 8

    @classmethod
    def _missing_(cls, _value: object) -> RuleAction:
        return cls.BLACKHOLE  # like fib4_rule_action for an unknown action


@attrs.frozen
class Rule:
    """A policy rule, ip-rule(8): packets that match its selectors are looked up in its table.

    Args:
        preference: 0-4294967295, the lowest is evaluated first.
        action: what happens on a match.
        table: for ``TO_TABLE``.
        goto: the preference to continue at, for ``GOTO``.
        source: prefix of the packet's source; None: any.
        destination: prefix of the packet's destination; None: any.
        tos: the type of service; 0: any.
        tun_id: the ID of the tunnel that the packet has come from; 0: any.
        mark: the selected firewall mark; None: any. (``fwmark 0`` is a selector too.)
        mark_mask: which bits of the mark count.
        iif: the selected incoming interface; ``lo`` means packets of this host.
        oif: the interface that the socket is bound to.
        uid_range: first and last user id.
        ip_protocol: 6 for TCP…; 0: any.
        has_ports: whether it selects a source or destination port, except by ranges of all ports that a client may use.
        suppress_prefix_length: results with prefixes up to this length are skipped; None: none are.
        suppress_group: results through interfaces of this group are skipped; None: none are.
        is_inverted: whether it matches packets that its selectors do *not* match.
        is_l3mdev: whether the table is that of the packet's VRF.
        has_unknown: whether it has a selector that isn't known here.
        protocol: the program that installed it.
    """

    preference: int
    action: RuleAction = RuleAction.TO_TABLE
    table: int = Table.MAIN
    goto: int | None = None
    source: IPv4Network | None = None
    destination: IPv4Network | None = None
    tos: int = 0
    tun_id: int = 0
    mark: int | None = None
    mark_mask: int = 0xFFFFFFFF
    iif: str | None = None
    oif: str | None = None
    uid_range: tuple[int, int] | None = None
    ip_protocol: int = 0
    has_ports: bool = False
    suppress_prefix_length: int | None = None
    suppress_group: int | None = None
    is_inverted: bool = False
    is_l3mdev: bool = False
    has_unknown: bool = False
    protocol: int = Protocol.BOOT

    @property
    def has_table(self) -> bool:
        """Return whether it has a table other than a VRF's."""
        return self.action is RuleAction.TO_TABLE and not self.is_l3mdev

    def __str__(self) -> str:
        """In the words of ip-rule(8), behind the preference."""
        ends = (("from", _end(self.source) or "all"), ("to", _end(self.destination)))
        selectors = (
            ("tos", f"{self.tos:#04x}" if self.tos else None),
            ("tun_id", self.tun_id or None),
            ("fwmark", _marked(self.mark, self.mark_mask)),
            ("iif", self.iif),
            ("oif", self.oif),
            ("uidrange", self.uid_range and f"{self.uid_range[0]}-{self.uid_range[1]}"),
            ("ipproto", self.ip_protocol or None),
            ("and", "ports" if self.has_ports else None),
            ("and", "more" if self.has_unknown else None),
        )
        action = f"goto {self.goto}" if self.action is RuleAction.GOTO else self.action.name.lower()
        if self.action is RuleAction.TO_TABLE:
            action = "lookup [l3mdev-table]" if self.is_l3mdev else f"lookup {word_of(self.table, Table)}"
        results = (
            ("", action),
            ("suppress_prefixlength", self.suppress_prefix_length),
            ("suppress_ifgroup", self.suppress_group),
        )
        said = (f"{name} {value}".strip() for name, value in (*ends, *selectors, *results) if value is not None)
        return f"{'not ' if self.is_inverted else ''}{' '.join(said)}"


def _end(network: IPv4Network | None) -> str | None:
    return None if network is None else str(network).removesuffix("/32")


def _marked(mark: int | None, mask: int) -> str | None:
    return None if mark is None else f"{mark:#x}" if mask == 0xFFFFFFFF else f"{mark:#x}/{mask:#x}"
