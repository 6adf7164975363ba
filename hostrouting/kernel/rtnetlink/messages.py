"""Define the basics of rtnetlink(7): its numbers, messages, attributes and errors, and the names of interfaces.

There are two implementations. Our own code makes all reads and changes of routes (wire.py, conversation.py), and
pyroute2 makes the other requests (requests.py). A message consists of a header and attributes:

::

     0        4      6       8          12     16
    +--------+------+-------+----------+------+---------------------+-----------+-----
    | length | kind | flags | sequence | port | body of that kind   | attribute | ...     struct nlmsghdr
    +--------+------+-------+----------+------+---------------------+-----------+-----

     0        2      4
    +--------+------+-------------------------------+
    | length | kind | value, padded to four bytes   |                                     struct nlattr
    +--------+------+-------------------------------+

Numbers are in host byte order, and addresses are in network byte order. Lengths include the header but no padding. A
datagram may contain several messages, each of which starts at a multiple of four bytes.
"""

from __future__ import annotations

import errno as errnos
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from typing import NamedTuple

from hostrouting.kernel.refusals import NetlinkError
from hostrouting.model.errors import RouteError

# linux/rtnetlink.h
RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22
RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTM_NEWRULE, RTM_DELRULE, RTM_GETRULE = 32, 33, 34
RTM_GETNEXTHOP = 106

# linux/netlink.h
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_REQUEST, NLM_F_DUMP_INTR, NLM_F_DUMP = 0x1, 0x10, 0x300
NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE = 0x100, 0x200, 0x400
SOL_NETLINK, NETLINK_CAP_ACK, NETLINK_EXT_ACK, NETLINK_GET_STRICT_CHK = 270, 10, 11, 12

ADD = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_EXCL
REPLACE = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_REPLACE
CHANGE = DELETE = GET = NLM_F_REQUEST
DUMP = NLM_F_REQUEST | NLM_F_DUMP

RTM_F_LOOKUP_TABLE, RTM_F_FIB_MATCH = 0x1000, 0x2000
RTNH_F_DEAD, RTNH_F_ONLINK, RTNH_F_LINKDOWN = 0x1, 0x4, 0x10
RT_TABLE_COMPAT = 252  # in the eight bits of a header, for a larger table number
RTEXT_FILTER_SKIP_STATS = 0x8

IFF_UP, IFF_RUNNING, IFF_LOWER_UP = 0x1, 0x40, 0x10000
IFA_F_SECONDARY, IFA_F_NOPREFIXROUTE = 0x01, 0x200
FIB_RULE_INVERT = 0x2

TABLE_MAX, PROTOCOL_MAX = 0xFFFFFFFF, 0xFF

HEADER = struct.Struct("=IHHII")
HEADER_BYTES = HEADER.size

# linux/sockios.h, and struct ifreq of linux/if.h
_SIOCGIFFLAGS, _INTERFACE = 0x8913, struct.Struct("=16sH22x")

_ATTRIBUTE = struct.Struct("=HH")
_NUMBER_ATTRIBUTE = struct.Struct("=HHI")
# The two higher bits are NLA_F_NESTED and NLA_F_NET_BYTEORDER.
_KIND_MASK = 0x3FFF
_VALUE_BYTES_MAX = 0xFFFF - _ATTRIBUTE.size


def attribute(kind: int, value: bytes) -> bytes:
    """Return an attribute with padding.

    Raises:
        NetlinkError: the value is too long for an attribute (EMSGSIZE).
    """
    if len(value) > _VALUE_BYTES_MAX:
        raise NetlinkError(errnos.EMSGSIZE, f"{len(value)} bytes don't fit into an attribute of netlink")
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def number(kind: int, value: int) -> bytes:
    """Return an attribute whose value is a 32-bit number."""
    return _NUMBER_ATTRIBUTE.pack(_NUMBER_ATTRIBUTE.size, kind, value)


def attributes(data: bytes, start: int = 0) -> dict[int, bytes]:
    """Return the attributes in ``data``, beginning at ``start``, by kind."""
    found: dict[int, bytes] = {}
    while start + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, start)
        found[kind & _KIND_MASK] = data[start + _ATTRIBUTE.size : start + length]
        start += (length + 3) & ~3
    return found


def to_number(value: bytes) -> int:
    """Return the number in the value of an attribute, which may have any length."""
    return int.from_bytes(value, sys.byteorder)


class Run(NamedTuple):
    """Consecutive messages of a datagram that have the same header, and therefore the same length."""

    kind: int
    flags: int
    sequence: int
    port: int
    length: int
    messages: bytes


def runs(datagram: bytes) -> Iterator[Run]:
    """Split a datagram into runs of messages that have the same header.

    Raises:
        struct.error: a message is shorter than its header.
    """
    start = 0
    while start < len(datagram):
        header = datagram[start : start + HEADER_BYTES]
        length, kind, flags, sequence, port = HEADER.unpack(header)
        if length < HEADER_BYTES:
            raise struct.error(f"a message of {length} bytes")
        step = (length + 3) & ~3
        end = _end_of_like(datagram, header, step) if start == 0 else start + step
        while datagram[end : end + HEADER_BYTES] == header:
            end += step
        yield Run(kind, flags, sequence, port, length, datagram[start:end])
        start = end


def _end_of_like(datagram: bytes, header: bytes, step: int) -> int:
    """Return the end of the only run in a datagram, or the end of the first message if there are several runs.

    Headers are compared by columns, because byte 5 of all headers is one slice, and comparing sixteen slices is faster
    than comparing hundreds of headers.
    """
    count = len(datagram) // step
    end = count * step
    is_run = all(datagram[column:end:step] == header[column : column + 1] * count for column in range(HEADER_BYTES))
    return end if is_run else step


def decode_name(value: bytes) -> str:
    """Return an interface name as ``socket.if_indextoname`` does, because the kernel allows any bytes in a name."""
    return os.fsdecode(value.partition(b"\0")[0])


def is_read(kind: int) -> bool:
    """Return whether a request changes nothing.

    Each family has four numbers, which begin with RTM_NEW*, RTM_DEL* and RTM_GET*.
    """
    return kind % 4 == RTM_GETLINK % 4


class DumpInterrupted(Exception):
    """The error for a read that must be repeated, because the data changed or for the reason in the message.

    It never leaves the backend.
    """


class Names(dict[int, str]):
    """Interface names by index, which are looked up once and are valid for one answer from the kernel."""

    def __missing__(self, index: int) -> str:
        try:
            name = self[index] = socket.if_indextoname(index)
        except OSError as error:
            if error.errno != errnos.ENXIO:  # the query itself failed, as if_indextoname opens a socket
                raise
            raise DumpInterrupted from error
        return name


def lacks_carrier(name: str) -> bool:
    """Return whether an interface is up but has no carrier.

    Raises:
        DumpInterrupted: the interface is gone.
    """
    request = _INTERFACE.pack(os.fsencode(name), 0)
    try:
        # Any socket works, but our units may open only this kind and netlink.
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as kernel:
            _, flags = _INTERFACE.unpack(ioctl(kernel, _SIOCGIFFLAGS, request))
    except OSError as error:
        if error.errno != errnos.ENODEV:
            raise
        raise DumpInterrupted from error
    return bool(flags & (IFF_UP | IFF_RUNNING) == IFF_UP)


class Indexes(dict[str, int]):
    """Interface indexes by name, which are looked up once and are valid for one batch.

    A link that is created again gets a new index.
    """

    def __missing__(self, name: str) -> int:
        try:
            index = self[name] = socket.if_nametoindex(name)
        except (OSError, ValueError) as error:
            raise NetlinkError(errnos.ENODEV, f"no interface is named {name!r}") from error
        return index


@contextmanager
def translate_errors(attempt: str) -> Iterator[None]:
    """Raise ``RouteError`` if the kernel refuses an attempt ("list the routes"), or if no socket can be opened."""
    try:
        yield
    except NetlinkError as refusal:
        raise RouteError(f"can't {attempt}: {refusal.message}", errno=refusal.errno) from refusal
    except OSError as error:
        raise RouteError(f"can't {attempt}: no netlink socket: {error.strerror or error}", errno=error.errno) from error
    except struct.error as error:
        raise RouteError(f"can't {attempt}: the kernel's answer is cut short ({error})") from error
