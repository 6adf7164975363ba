"""Policy rules, using the terms from ip-rule(8)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import IntEnum

import attrs

from hostrouting.model.family import IpNetwork
from hostrouting.model.field_types import NETWORK, NONE, TUPLE, Types, check_fields
from hostrouting.model.routes import PRINTED, Protocol, Table, word_of
from hostrouting.model.values import frozen

# Rules can't match port 65535 (fib_rule_port_range_valid).
ALL_PORTS = (1, 65534)

HIDES_SELECTORS = (
    "this snapshot may hide selectors of that rule: take one with hostrouting snapshot"
)
"""A hint for a snapshot taken with ``ip``: an old ``ip`` doesn't print newer selectors."""


class RuleAction(IntEnum):
    """The FR_ACT_* constants from linux/fib_rules.h."""

    TO_TABLE = 1
    GOTO = 2
    NOP = 3
    BLACKHOLE = 6
    UNREACHABLE = 7
    PROHIBIT = 8

    @classmethod
    def _missing_(cls, _value: object) -> RuleAction:
        return cls.BLACKHOLE  # fib4_rule_action treats an unknown action like BLACKHOLE


_FIELDS: dict[str, Types] = {
    **dict.fromkeys(("preference", "table", "tos", "tun_id", "ip_protocol", "protocol"), (int,)),
    "action": (RuleAction,),
    **dict.fromkeys(("source", "destination"), (*NETWORK, *NONE)),
    **dict.fromkeys(("goto", "mark", "suppress_prefix_length", "suppress_group"), (int, *NONE)),
    "mark_mask": (int,),
    **dict.fromkeys(("iif", "oif"), (str, *NONE)),
    "uid_range": (*TUPLE, *NONE),
}


@frozen
class Rule:
    """A policy rule (ip-rule(8)): selectors, and an action for the packets that match them.

    Args:
        preference: 0-4294967295; lower values are evaluated first.
        action: see ``RuleAction``.
        table: the table to look up, for ``TO_TABLE``.
        goto: preference of the target rule, for ``GOTO``.
        source: source prefix to match, or None for any.
        destination: destination prefix to match, or None for any.
        tos: TOS value to match, or 0 for any.
        tun_id: ID of the tunnel that the packet arrived through, or 0 for any.
        mark: firewall mark to match, or None for any (``fwmark 0`` is a valid selector).
        mark_mask: mask applied to the mark before comparison.
        iif: incoming interface to match; ``lo`` matches locally generated packets.
        oif: outgoing interface to match, for sockets bound to an interface.
        uid_range: first and last user ID to match.
        ip_protocol: IP protocol number (for example 6 for TCP), or 0 for any.
        has_ports: whether the rule matches on a source or destination port. A range of all ports
            that a client can use (``ALL_PORTS``) doesn't count.
        suppress_prefix_length: the rule ignores routes of this prefix length and shorter ones. None
            if it ignores no length.
        suppress_group: the rule ignores routes through this interface group. None if it ignores no
            group.
        is_inverted: whether the rule matches packets that its selectors do *not* match.
        is_l3mdev: whether to look up the table of the packet's VRF.
        has_unknown: whether the rule has an unsupported selector.
        protocol: origin of the rule (see ``Protocol``).
        hides_selectors: whether ``has_unknown`` is only a guess, because the snapshot's ``ip`` may
            not have printed each selector.
    """

    preference: int
    action: RuleAction = RuleAction.TO_TABLE
    table: int = Table.MAIN
    goto: int | None = None
    source: IpNetwork | None = None
    destination: IpNetwork | None = None
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
    hides_selectors: bool = attrs.field(default=False, eq=False)

    def __attrs_post_init__(self) -> None:
        check_fields(self, _FIELDS)

    @property
    def is_ours(self) -> bool:
        """Return whether the rule has protocol 217."""
        return self.protocol == Protocol.HOSTROUTING

    @property
    def is_printed(self) -> bool:
        """Return whether a command of ``fix --format ip`` has added the rule."""
        return self.protocol == PRINTED

    @property
    def has_table(self) -> bool:
        """Return whether the rule looks up a fixed table, not that of the packet's VRF."""
        return self.action is RuleAction.TO_TABLE and not self.is_l3mdev

    def __str__(self) -> str:
        """Return the rule in ip-rule(8) syntax, without the preference."""
        options = (
            *self._selectors(),
            ("", self._action()),
            ("suppress_prefixlength", self.suppress_prefix_length),
            ("suppress_ifgroup", self.suppress_group),
        )
        words = [f"{name} {value}".strip() for name, value in options if value is not None]
        if self.is_inverted:
            words.insert(0, "not")
        return " ".join(words)

    def _selectors(self) -> Iterator[tuple[str, object]]:
        """Yield each selector's name with its value. The value of an unset selector is None."""
        yield "from", end_words(self.source) or "all"
        yield "to", end_words(self.destination)
        yield "tos", f"{self.tos:#04x}" if self.tos else None
        yield "tun_id", self.tun_id or None
        yield "fwmark", _marked(self.mark, self.mark_mask)
        yield "iif", _on_one_line(self.iif)
        yield "oif", _on_one_line(self.oif)
        yield "uidrange", self.uid_range and f"{self.uid_range[0]}-{self.uid_range[1]}"
        yield "ipproto", self.ip_protocol or None
        yield "and", "ports" if self.has_ports else None
        yield "", self._unknown_selectors()

    def _unknown_selectors(self) -> str | None:
        if self.hides_selectors:
            return "(and perhaps more selectors)"
        return "(and more selectors)" if self.has_unknown else None

    def _action(self) -> str:
        if self.action is RuleAction.GOTO:
            return f"goto {self.goto}"
        if self.action is not RuleAction.TO_TABLE:
            return self.action.name.lower()
        if self.is_l3mdev:
            return "lookup [l3mdev-table]"
        return f"lookup {word_of(self.table, Table)}"


def rule_words(rule: Rule) -> str:
    """Return a rule with its preference, as ip-rule(8) shows it."""
    return f"{rule.preference}: {rule}"


def end_words(network: IpNetwork | None) -> str | None:
    """Return a source or destination selector in ip-rule(8) syntax; None if it isn't set."""
    return None if network is None else str(network).removesuffix(f"/{network.max_prefixlen}")


def _on_one_line(name: str | None) -> str | None:
    # A rule may name an interface that can't exist, for example with a line break in its name.
    return None if name is None else re.sub(r"\s", "?", name)


def _marked(mark: int | None, mask: int) -> str | None:
    if mark is None:
        return None
    return f"{mark:#x}" if mask == 0xFFFFFFFF else f"{mark:#x}/{mask:#x}"
