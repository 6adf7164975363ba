"""What is rarely asked of a kernel, over pyroute2: changes of links, addresses and rules. Its only user.

pyroute2 drops keywords that it doesn't know, so nothing is passed through: a ``Request`` names all that it means,
and ``Channel`` sends just that. Attributes carry the names of pyroute2's tables (RTA_*, FRA_*, IFA_*, IFLA_*), which
are those of the kernel's headers.

pyroute2 is imported when the first channel is opened: it takes 130 ms, and brings asyncio.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from hostrouting.kernel.rtnetlink import constants as rtnl
from hostrouting.model.rules import RuleAction

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostrouting.model.rules import Rule


class Message(Protocol):
    """What is read of a decoded message; pyroute2's ``nlmsg`` and ``nla`` meet it."""

    def __getitem__(self, field: str, /) -> Any:
        """A field of the fixed header."""
        ...

    def get_attr(self, attribute: str, /) -> Any:
        """The value of an attribute, or None."""
        ...


@attrs.frozen
class Request:
    """One message to the kernel.

    Args:
        kind: RTM_*.
        flags: NLM_F_*.
        fields: of the fixed header; those that aren't named are zero.
        attributes: (name, value); nested ones as ``{"attrs": [...]}``.
    """

    kind: int
    flags: int
    fields: Mapping[str, int]
    attributes: tuple[tuple[str, object], ...] = ()


def _message_classes() -> dict[int, Any]:
    """pyroute2's message classes, with the attributes that it doesn't know."""
    from pyroute2.netlink.rtnl.fibmsg import fibmsg
    from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
    from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

    rule = type("rule", (fibmsg,), {"nla_map": (*fibmsg.nla_map, (25, "FRA_DSCP", "uint8"))})
    # A class inherits the compiled table of its parent, if that was used before.
    rule().compile_nla_table()
    families = (
        (ifinfmsg, (rtnl.RTM_NEWLINK, rtnl.RTM_DELLINK, rtnl.RTM_GETLINK)),
        (ifaddrmsg, (rtnl.RTM_NEWADDR, rtnl.RTM_DELADDR)),
        (rule, (rtnl.RTM_NEWRULE, rtnl.RTM_DELRULE)),
    )
    return {kind: message_class for message_class, kinds in families for kind in kinds}


_classes: dict[int, Any] = {}


class Channel:
    """An unbound rtnetlink socket, for one batch of requests in one thread; ``close`` it there."""

    def __init__(self) -> None:
        from pyroute2 import IPRoute
        from pyroute2.netlink.exceptions import NetlinkError

        if not _classes:
            _classes.update(_message_classes())
        self._netlink_error: Any = NetlinkError
        # Without ext_ack the kernel keeps its sentences to itself.
        self._socket: Any = IPRoute(ext_ack=True, strict_check=True, groups=0)
        self._socket.register_policy(_classes)
        # Its nlm_request asks for a key that only NetlinkSocket's own constructor sets.
        self._socket.status["nlm_generator"] = False

    def close(self) -> None:
        """Close the socket and its event loop."""
        self._socket.close()

    def ask(self, request: Request) -> tuple[Message, ...]:
        """Send one request and return the messages of the answer.

        A change is acknowledged. What is read isn't: the answer is the one message, and an ACK behind it would stay
        in pyroute2's queue.

        Raises:
            RefusedError: the kernel refused, or the socket failed.
        """
        message = _classes[request.kind]()
        message.update({name: 0 for name, _ in message.fields})
        message.update(request.fields)
        message["attrs"] = list(request.attributes)
        flags = request.flags if request.kind == rtnl.RTM_GETLINK else request.flags | rtnl.NLM_F_ACK
        try:
            return tuple(self._socket.nlm_request(message, request.kind, flags))
        except self._netlink_error as error:
            raise rtnl.RefusedError(error.code, str(error.args[1])) from error
        except OSError as error:
            raise rtnl.RefusedError(error.errno or 0, str(error)) from error


def get_link(index: int) -> Request:
    """Ask for one link."""
    return Request(rtnl.RTM_GETLINK, rtnl.GET, {"index": index})


def encode_rule(kind: int, flags: int, rule: Rule) -> Request:
    """A request that names all of a rule.

    ``has_ports`` doesn't tell which ports; it stands for every destination port here.
    """
    has_table = rule.action is RuleAction.TO_TABLE and not rule.is_l3mdev
    fields = {
        "family": socket.AF_INET,
        "src_len": rule.source.prefixlen if rule.source is not None else 0,
        "dst_len": rule.destination.prefixlen if rule.destination is not None else 0,
        "tos": rule.tos,
        "table": 0 if not has_table else rule.table if rule.table <= 0xFF else rtnl.RT_TABLE_COMPAT,
        "action": rule.action,
        "flags": rtnl.FIB_RULE_INVERT if rule.is_inverted else 0,
    }
    values: tuple[tuple[str, object], ...] = (
        ("FRA_PRIORITY", rule.preference),
        ("FRA_TABLE", rule.table if has_table else None),
        ("FRA_GOTO", rule.goto),
        ("FRA_SRC", str(rule.source.network_address) if rule.source is not None else None),
        ("FRA_DST", str(rule.destination.network_address) if rule.destination is not None else None),
        ("FRA_FWMARK", rule.mark),
        ("FRA_FWMASK", rule.mark_mask if rule.mark is not None else None),
        ("FRA_IIFNAME", os.fsencode(rule.iif) if rule.iif is not None else None),
        ("FRA_OIFNAME", os.fsencode(rule.oif) if rule.oif is not None else None),
        ("FRA_UID_RANGE", f"{rule.uid_range[0]}:{rule.uid_range[1]}" if rule.uid_range is not None else None),
        ("FRA_IP_PROTO", rule.ip_protocol or None),
        ("FRA_DPORT_RANGE", "1:65534" if rule.has_ports else None),
        ("FRA_SUPPRESS_PREFIXLEN", rule.suppress_prefix_length),
        ("FRA_SUPPRESS_IFGROUP", rule.suppress_group),
        ("FRA_L3MDEV", 1 if rule.is_l3mdev else None),
        ("FRA_PROTOCOL", rule.protocol),
    )
    return Request(kind, flags, fields, tuple((name, value) for name, value in values if value is not None))
