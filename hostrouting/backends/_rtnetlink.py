"""The way to the kernel over rtnetlink(7): numbers, a request, a message, a socket; the only user of pyroute2.

pyroute2 drops keywords that it doesn't know and takes a missing destination for the default route, so nothing is
passed through: a ``Request`` names all that it means, and ``Channel`` sends just that. The modules beside this
one word requests and read messages: of links and addresses (_link_messages.py), routes (_route_messages.py), rules
(_rule_messages.py) and nexthop objects (_nexthop_messages.py). Attributes carry the names of pyroute2's tables
(RTA_*, FRA_*, IFA_*, IFLA_*), which are those of the kernel's headers.

pyroute2 is imported when the first channel is opened: it takes 130 ms, and brings asyncio.
"""

from __future__ import annotations

import errno as errnos
import os
import socket
import struct
from typing import TYPE_CHECKING, Any, Protocol, overload

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# linux/rtnetlink.h
RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22
RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTM_NEWRULE, RTM_DELRULE, RTM_GETRULE = 32, 33, 34
RTM_NEWNEXTHOP, RTM_GETNEXTHOP = 104, 106

# linux/netlink.h
NLMSG_DONE = 3
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP_INTR, NLM_F_DUMP = 0x1, 0x4, 0x10, 0x300
NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE = 0x100, 0x200, 0x400

ADD = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
REPLACE = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE
CHANGE = DELETE = NLM_F_REQUEST | NLM_F_ACK
# Without NLM_F_ACK: the answer is the one message, and an ACK behind it would stay in pyroute2's queue.
GET = NLM_F_REQUEST
DUMP = NLM_F_REQUEST | NLM_F_DUMP

RTM_F_CLONED, RTM_F_LOOKUP_TABLE, RTM_F_FIB_MATCH = 0x200, 0x1000, 0x2000
RTNH_F_DEAD, RTNH_F_ONLINK, RTNH_F_LINKDOWN = 0x1, 0x4, 0x10
RT_TABLE_COMPAT = 252  # in the eight bits of a header, for a table beyond them
RTEXT_FILTER_SKIP_STATS = 0x8

IFF_UP, IFF_LOWER_UP = 0x1, 0x10000
IFA_F_SECONDARY, IFA_F_NOPREFIXROUTE = 0x01, 0x200
FIB_RULE_INVERT = 0x2

UINT32 = range(0x1_0000_0000)
BYTE = range(0x100)
TABLES = range(1, UINT32.stop)

_INT = struct.Struct("=i")
_HEADER_BYTES = 16


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


class RefusedError(Exception):
    """The kernel's refusal of one request; never leaves the backend.

    Args:
        errno: its reason.
        message: its own sentence (ext-ACK), or the errno in words.
    """

    def __init__(self, errno: int, message: str = "") -> None:
        self.errno = errno
        self.message = message or os.strerror(errno)
        super().__init__(self.message)


class ChangedError(Exception):
    """What was read changed meanwhile: read it again. Never leaves the backend."""


@overload
def decode_name(name: str | bytes) -> str: ...
@overload
def decode_name(name: str | bytes | None) -> str | None: ...
def decode_name(name: str | bytes | None) -> str | None:
    """An interface name of a message as ``socket.if_indextoname`` and ``Names`` would give it.

    Any bytes make a name to the kernel; pyroute2 decodes those that are UTF-8 and leaves others as they are.
    """
    if name is None:
        return None
    return os.fsdecode(name.encode() if isinstance(name, str) else name)


class Names(dict[int, str]):
    """Interface names by index, each looked up once; good for one answer of the kernel."""

    def __missing__(self, index: int) -> str:
        try:
            name = self[index] = socket.if_indextoname(index)
        except OSError as error:
            raise ChangedError from error
        return name


class Indexes(dict[str, int]):
    """Interface indexes by name, each looked up once; good for one batch, as a re-created link gets a new one."""

    def __missing__(self, name: str) -> int:
        try:
            index = self[name] = socket.if_nametoindex(name)
        except (OSError, ValueError) as error:
            raise RefusedError(errnos.ENODEV, f"no interface is named {name!r}") from error
        return index


# linux/nexthop.h, as far as it is read
_NHMSG = (("family", "B"), ("scope", "B"), ("protocol", "B"), ("reserved", "B"), ("flags", "I"))
_NHA = (
    ("NHA_UNSPEC", "none"),
    ("NHA_ID", "uint32"),
    ("NHA_GROUP", "cdata"),
    ("NHA_GROUP_TYPE", "uint16"),
    ("NHA_BLACKHOLE", "flag"),
    ("NHA_OIF", "uint32"),
    ("NHA_GATEWAY", "cdata"),
)


def _message_classes() -> dict[int, Any]:
    """pyroute2's message classes, with the attributes and messages that it doesn't know."""
    from pyroute2.netlink import nlmsg
    from pyroute2.netlink.rtnl.fibmsg import fibmsg
    from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
    from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
    from pyroute2.netlink.rtnl.rtmsg import rtmsg

    numbered = tuple((number, *row) for number, row in enumerate(rtmsg.nla_map))
    route = type("route", (rtmsg,), {"nla_map": (*numbered, (25, "RTA_UID", "uint32"), (30, "RTA_NH_ID", "uint32"))})
    rule = type("rule", (fibmsg,), {"nla_map": (*fibmsg.nla_map, (25, "FRA_DSCP", "uint8"))})
    nexthop = type("nexthop", (nlmsg,), {"prefix": "NHA_", "fields": _NHMSG, "nla_map": _NHA})
    for extended in (route, rule):
        # A class inherits the compiled table of its parent, if that was used before.
        extended().compile_nla_table()
    families = (
        (ifinfmsg, (RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK)),
        (ifaddrmsg, (RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR)),
        (route, (RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE)),
        (rule, (RTM_NEWRULE, RTM_DELRULE, RTM_GETRULE)),
        (nexthop, (RTM_NEWNEXTHOP, RTM_GETNEXTHOP)),
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
        # strict_check makes the kernel filter dumps; without ext_ack it keeps its sentences to itself.
        self._socket: Any = IPRoute(ext_ack=True, strict_check=True, groups=0)
        self._socket.register_policy(_classes)
        # Its nlm_request asks for a key that only NetlinkSocket's own constructor sets.
        self._socket.status["nlm_generator"] = False

    def close(self) -> None:
        """Close the socket and its event loop."""
        self._socket.close()

    def ask(self, request: Request) -> tuple[Message, ...]:
        """Send one request and return the messages of the answer.

        Raises:
            RefusedError: the kernel refused, or the socket failed.
        """
        return self._exchange(request, None)

    def dump(self, request: Request) -> tuple[Message, ...]:
        """Send a request for a list and return it.

        Raises:
            ChangedError: the list changed while it was read (NLM_F_DUMP_INTR, which pyroute2 0.9 ignores).
            RefusedError: the kernel refused, or the socket failed.
        """
        is_interrupted = False
        errno = 0

        def note(message: Any) -> None:
            # The only sight of the last message of a dump, and on it may be the only sign of either.
            nonlocal is_interrupted, errno
            header = message["header"]
            is_interrupted = is_interrupted or bool(header["flags"] & NLM_F_DUMP_INTR)
            if header["type"] == NLMSG_DONE:
                errno = -_INT.unpack_from(message.data, message.offset + _HEADER_BYTES)[0]

        answer = self._exchange(request, note)
        if is_interrupted:
            raise ChangedError
        if errno:
            raise RefusedError(errno)
        return answer

    def _exchange(self, request: Request, note: Callable[[Any], None] | None) -> tuple[Message, ...]:
        message = _classes[request.kind]()
        message.update({name: 0 for name, _ in message.fields})
        message.update(request.fields)
        message["attrs"] = list(request.attributes)
        try:
            return tuple(self._socket.nlm_request(message, request.kind, request.flags, callback=note))
        except self._netlink_error as error:
            raise RefusedError(error.code, str(error.args[1])) from error
        except OSError as error:
            raise RefusedError(error.errno or 0, str(error)) from error
