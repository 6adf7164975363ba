"""Policy rules, in the terms of ip-rule(8)."""

from __future__ import annotations

from enum import IntEnum
from ipaddress import IPv4Network

import attrs

from hostrouting.model.routes import Protocol, Table, word_of

# No rule can select port 65535 (fib_rule_port_range_valid).
ALL_PORTS = (1, 65534)


class RuleAction(IntEnum):
    """The values FR_ACT_* of linux/fib_rules.h."""

    TO_TABLE = 1
    GOTO = 2
    NOP = 3
    BLACKHOLE = 6
    UNREACHABLE = 7
    PROHIBIT = 8

    @classmethod
    def _missing_(cls, _value: object) -> RuleAction:
        return cls.BLACKHOLE  # fib4_rule_action treats an unknown action like this


@attrs.frozen
class Rule:
    """A policy rule, ip-rule(8). Packets that match its selectors are looked up in its table.

    Args:
        preference: 0-4294967295; the rule with the lowest is evaluated first.
        action: what happens when a packet matches.
        table: the table to look up, for ``TO_TABLE``.
        goto: the preference of the rule at which to continue, for ``GOTO``.
        source: the prefix of the packet's source, or None for any.
        destination: the prefix of the packet's destination, or None for any.
        tos: the type of service, or 0 for any.
        tun_id: the ID of the tunnel through which the packet arrived, or 0 for any.
        mark: the selected firewall mark, or None for any (``fwmark 0`` is a selector too).
        mark_mask: the bits of the mark that are compared.
        iif: the selected incoming interface; ``lo`` stands for packets of this host.
        oif: the interface that the socket is bound to.
        uid_range: the first and the last user ID.
        ip_protocol: the number of the IP protocol, such as 6 for TCP, or 0 for any.
        has_ports: whether it selects a source or destination port; a range of all ports that a client may use doesn't
            count.
        suppress_prefix_length: the prefix length up to which results are skipped, or None if none are.
        suppress_group: the group of interfaces through which results are skipped, or None if none are.
        is_inverted: whether the rule matches the packets that its selectors do *not* match.
        is_l3mdev: whether the table is that of the packet's VRF.
        has_unknown: whether the rule has a selector that isn't known here.
        protocol: the program that installed the rule.
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
        """Return whether the rule has a table other than that of a VRF."""
        return self.action is RuleAction.TO_TABLE and not self.is_l3mdev

    def __str__(self) -> str:
        """Return the rule in the syntax of ip-rule(8), without the preference."""
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
