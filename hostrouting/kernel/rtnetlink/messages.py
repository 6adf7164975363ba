"""rtnetlink(7) basics: constants, messages, attributes, errors and interface names.

A message consists of a header, a body and attributes:

::

    struct nlmsghdr

     0        4      6       8          12     16
    +--------+------+-------+----------+------+---------------------+-----------+-----
    | length | kind | flags | sequence | port | body of that kind   | attribute | ...
    +--------+------+-------+----------+------+---------------------+-----------+-----

    struct nlattr

     0        2      4
    +--------+------+-------------------------------+
    | length | kind | value, padded to four bytes   |
    +--------+------+-------------------------------+

Numbers are in host byte order, and addresses in network byte order. Lengths include the header but
not the padding. A datagram may contain several messages, each aligned to four bytes.
"""

from __future__ import annotations

import errno as errnos
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from hostrouting.kernel.refusals import NetlinkError
from hostrouting.model.errors import RouteError

T = TypeVar("T")

# linux/rtnetlink.h
RTM_NEWLINK = 16
RTM_DELLINK = 17
RTM_GETLINK = 18
RTM_NEWADDR = 20
RTM_DELADDR = 21
RTM_GETADDR = 22
RTM_NEWROUTE = 24
RTM_DELROUTE = 25
RTM_GETROUTE = 26
RTM_NEWRULE = 32
RTM_DELRULE = 33
RTM_GETRULE = 34
RTM_GETNEIGH = 30
RTM_GETADDRLABEL = 74
RTM_GETNETCONF = 82
RTM_GETNEXTHOP = 106

# linux/netlink.h
NLMSG_ERROR = 2
NLMSG_DONE = 3
NLM_F_REQUEST = 0x1
NLM_F_DUMP_INTR = 0x10
NLM_F_DUMP = 0x300
NLM_F_REPLACE = 0x100
NLM_F_EXCL = 0x200
NLM_F_CREATE = 0x400
NLM_F_APPEND = 0x800
SOL_NETLINK = 270
NETLINK_CAP_ACK = 10
NETLINK_EXT_ACK = 11
NETLINK_GET_STRICT_CHK = 12

ADD = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_EXCL
REPLACE = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_REPLACE
APPEND = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_APPEND
CHANGE = DELETE = GET = NLM_F_REQUEST
DUMP = NLM_F_REQUEST | NLM_F_DUMP

RTM_F_LOOKUP_TABLE = 0x1000
RTM_F_FIB_MATCH = 0x2000
RTNH_F_DEAD = 0x1
RTNH_F_ONLINK = 0x4
RTNH_F_LINKDOWN = 0x10
RT_TABLE_COMPAT = 252  # in the eight bits of a header, for a larger table number

IFF_UP = 0x1
IFF_POINTOPOINT = 0x10
IFF_RUNNING = 0x40
IFF_LOWER_UP = 0x10000
IFA_F_SECONDARY = 0x01
IFA_F_OPTIMISTIC = 0x04
IFA_F_DEPRECATED = 0x20
IFA_F_TENTATIVE = 0x40
IFA_F_NODAD = 0x02
IFA_F_NOPREFIXROUTE = 0x200
FIB_RULE_INVERT = 0x2

TABLE_MAX = 0xFFFFFFFF
PROTOCOL_MAX = 0xFF

# A function that returns an interface's name, and caches names while one reply is decoded.
Names = Callable[[int], str]

# A dump request: a description, the RTM_GET* type, the request body and a decoder.
Listing = tuple[str, int, bytes, Callable[[bytes, Names], T]]

HEADER = struct.Struct("=IHHII")
HEADER_BYTES = HEADER.size
LINK = struct.Struct("=BxHiII")  # struct ifinfomsg

_ATTRIBUTE = struct.Struct("=HH")
_NUMBER_ATTRIBUTE = struct.Struct("=HHI")
# The two highest bits are NLA_F_NESTED and NLA_F_NET_BYTEORDER.
_KIND_MASK = 0x3FFF


def message(
    kind: int,
    flags: int,
    sequence: int,
    body: bytes,
) -> bytes:
    """Return a message with its header."""
    return HEADER.pack(HEADER_BYTES + len(body), kind, flags, sequence, 0) + body


def attribute(kind: int, value: bytes) -> bytes:
    """Return an attribute with padding.

    Raises:
        struct.error: the value is too long for an attribute.
    """
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def number_attribute(kind: int, value: int) -> bytes:
    """Return an attribute with a 32-bit value."""
    return _NUMBER_ATTRIBUTE.pack(_NUMBER_ATTRIBUTE.size, kind, value)


def attributes(data: bytes, start: int = 0) -> dict[int, bytes]:
    """Parse the attributes in ``data``, beginning at ``start``, into a dict keyed by type."""
    found: dict[int, bytes] = {}
    header = _ATTRIBUTE.size
    unpack_from = _ATTRIBUTE.unpack_from
    last = len(data) - header
    while start <= last:
        length, kind = unpack_from(data, start)
        found[kind & _KIND_MASK] = data[start + header : start + length]
        start += (length + 3) & ~3
    return found


def to_number(value: bytes) -> int:
    """Convert an attribute value of any length to a number."""
    return int.from_bytes(value, sys.byteorder)


class Stretch(NamedTuple):
    """Consecutive messages in a datagram with equal headers, and therefore with equal lengths."""

    kind: int
    flags: int
    sequence: int
    port: int
    length: int
    messages: bytes

    @property
    def step(self) -> int:
        """Return the bytes from the start of a message to the start of the next one."""
        return _aligned(self.length)


def _aligned(length: int) -> int:
    return (length + 3) & ~3


def stretches(datagram: bytes) -> Iterator[Stretch]:
    """Split a datagram into stretches of messages with equal headers.

    Raises:
        struct.error: a message is shorter than its header.
    """
    start = 0
    while start < len(datagram):
        header = datagram[start : start + HEADER_BYTES]
        length, kind, flags, sequence, port = HEADER.unpack(header)
        if length < HEADER_BYTES:
            raise struct.error(f"a message of {length} bytes")
        step = _aligned(length)
        end = _end_of_like(datagram, header, step) if start == 0 else start + step
        while datagram[end : end + HEADER_BYTES] == header:
            end += step
        yield Stretch(kind, flags, sequence, port, length, datagram[start:end])
        start = end


def split(stretch: Stretch) -> Iterator[bytes]:
    """Yield the messages in a stretch."""
    for start in range(0, len(stretch.messages), stretch.step):
        yield stretch.messages[start : start + stretch.length]


def _end_of_like(datagram: bytes, header: bytes, step: int) -> int:
    """Return the end of the datagram if it is a single stretch; otherwise of its first message.

    Compare the first byte of all headers, then the second, and so on: sixteen comparisons of slices
    are faster than hundreds of comparisons of headers.
    """
    count = len(datagram) // step
    end = count * step
    is_stretch = all(
        datagram[column:end:step] == header[column : column + 1] * count
        for column in range(HEADER_BYTES)
    )
    return end if is_stretch else step


def decode_name(value: bytes) -> str:
    """Decode an interface name, which may contain any bytes, as ``socket.if_indextoname`` does."""
    return os.fsdecode(value.partition(b"\0")[0])


class DumpInterrupted(Exception):
    """Exception raised when a read must be retried. The exception never leaves the backend.

    The message is the reason; an empty message means that the data changed during the read.
    """


def name_of(index: int) -> str:
    """Return an interface's name.

    Raises:
        DumpInterrupted: the interface is gone.
    """
    try:
        return socket.if_indextoname(index)
    except OSError as error:
        _open_a_socket()
        if error.errno != errnos.ENXIO:
            raise
        raise DumpInterrupted from error


def index_of(name: str) -> int:
    """Return an interface's index.

    Raises:
        NetlinkError: there is no such interface (ENODEV).
    """
    try:
        return socket.if_nametoindex(name)
    except (OSError, ValueError) as error:
        _open_a_socket()
        raise NetlinkError(errnos.ENODEV, f"no interface is named {name!r}") from error


def _open_a_socket() -> None:
    """Raise an ``OSError`` if no socket can be opened: glibc's queries wouldn't report that."""
    socket.socket(socket.AF_UNIX).close()


@contextmanager
def as_route_errors(attempt: str) -> Iterator[None]:
    """Convert the errors of an attempt, such as "list the routes", to ``RouteError``."""
    try:
        yield
    except NetlinkError as refusal:
        raise RouteError(f"can't {attempt}: {refusal.message}", errno=refusal.errno) from refusal
    except OSError as error:
        raise RouteError(
            f"can't {attempt}: no netlink socket: {error.strerror or error}",
            errno=error.errno,
        ) from error
    except struct.error as error:
        raise RouteError(f"can't {attempt}: the kernel's answer is cut short ({error})") from error
