"""rtnetlink(7) sockets: one for dumps, lookups and batched changes, and one for notifications.

The kernel processes a batch of messages within send(2), so all replies are queued when send
returns. The kernel drops replies that don't fit into the receive buffer, and reports ENOBUFS once.
Even a short reply takes up to 2 KiB, so the buffer size limits the batch size. If a reply is lost
anyway, a read is retried, but the result of a change is unknown.

Query sockets don't join multicast groups. Messages with another sequence number or port are
ignored. A notification socket reads only the destination of each event. After an event, the caller
reads the tables again. The kernel removes some routes without an event, for example when a link
goes down (fib_disable_ip).
"""

from __future__ import annotations

import contextlib
import errno as errnos
import socket
import struct
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from itertools import chain
from typing import TypeVar

from hostrouting.kernel.port import is_relevant
from hostrouting.kernel.refusals import NetlinkError
from hostrouting.kernel.rtnetlink import messages as rtnl
from hostrouting.kernel.rtnetlink import route_messages as rtm
from hostrouting.kernel.rtnetlink.messages import (
    HEADER,
    HEADER_BYTES,
    Stretch,
    attributes,
    stretches,
)
from hostrouting.model.errors import RouteError
from hostrouting.model.family import Family
from hostrouting.model.integer_prefixes import PrefixSet
from phases import CancelScope

T = TypeVar("T")

_LOST = "an answer from the kernel was lost"
LISTENING = "listen for changes of routes"

# The kernel sends up to 32 KiB of a dump in a datagram, if the previous reads had a buffer that
# large (netlink_dump).
_DATAGRAM_BYTES = 0x10000
_MESSAGE_BYTES = 0x4000  # twice the size that the kernel uses (NLMSG_GOODSIZE)
_BATCH_BYTES = 0x8000
_BATCH_MAX = 100
_ANSWER_BYTES = 0x800
_QUEUED_MAX = 10_000

_INT = struct.Struct("=i")
# Header, errno, header of the request (NETLINK_CAP_ACK)
_ERROR_BYTES = HEADER_BYTES + _INT.size + HEADER_BYTES
_NLMSGERR_ATTR_MSG = 1

_RTNLGRP_NEXTHOP = 32
_NETLINK_ADD_MEMBERSHIP = 1
# linux/rtnetlink.h: RTMGRP_*. Netlink libraries join more groups by default, such as neighbours and
# traffic control.
_LINK = 0x1
_IPV4_IFADDR = 0x10
_IPV4_ROUTE = 0x40
_IPV4_RULE = 0x80
_IPV4_NETCONF = 0x800000
_IPV6_IFADDR = 0x100
_IPV6_ROUTE = 0x400
_IPV6_RULE = 0x40000
_IPV6_NETCONF = 0x1000000
_GROUPS = {
    32: _LINK | _IPV4_IFADDR | _IPV4_ROUTE | _IPV4_RULE | _IPV4_NETCONF,
    128: _LINK | _IPV6_IFADDR | _IPV6_ROUTE | _IPV6_RULE | _IPV6_NETCONF,
}

# asm-generic/socket.h
_SO_RCVBUFFORCE = 33
# This buffer holds the events of a read of several seconds, at hundreds of events per second.
_HEARD_BYTES = 4 << 20
# The destination is near the start of an event.
_EVENT_BYTES = 0x80

# If routes change constantly, two out of three dumps are interrupted. That 32 dumps in a row are
# interrupted has a probability of about one in a million.
_ATTEMPTS = 32

# A read-only request that isn't a dump, for interface index 1. The reply may be an error, because
# nothing reads its content.
_GET_LINK = rtnl.message(rtnl.RTM_GETLINK, rtnl.GET, 1, rtnl.LINK.pack(0, 0, 1, 0, 0))

# A limit of events for one call, because an endless stream of events must not block the caller.
_DRAINED_AT_ONCE = 100_000


class Socket(socket.socket):
    """A netlink socket in the calling thread's network namespace.

    Args:
        groups: the RTMGRP_* groups to join, in addition to RTNLGRP_NEXTHOP, or 0 for a query
            socket.

    Raises:
        OSError: the socket can't be opened.
    """

    def __init__(self, groups: int = 0) -> None:
        super().__init__(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self.setblocking(not groups)
        # Enable extended ACKs, errors without a copy of the request, and dump filtering in the
        # kernel.
        for option in (rtnl.NETLINK_EXT_ACK, rtnl.NETLINK_CAP_ACK, rtnl.NETLINK_GET_STRICT_CHK):
            self.setsockopt(rtnl.SOL_NETLINK, option, 1)
        self.bind((0, groups))
        # A socket that is connected to the kernel gets no messages from other sockets
        # (netlink_getsockbyportid).
        self.connect((0, 0))
        if groups:
            self.setsockopt(rtnl.SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, _RTNLGRP_NEXTHOP)


class Conversation(Socket):
    """A query socket. The caller must close it.

    Raises:
        OSError: the socket can't be opened.
    """

    def __init__(self) -> None:
        super().__init__()
        self._port = self.getsockname()[0]
        room = self.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // _ANSWER_BYTES
        self._batch = max(1, min(_BATCH_MAX, room))
        self._sequence = 1

    # --- lists ------------------------------------------------------------------------------------

    def dump(self, kind: int, body: bytes) -> Iterator[Stretch]:
        """Request a dump, and yield its messages in stretches, as they arrive.

        Args:
            kind: the message type, RTM_GET*.
            body: the message body, including attributes that filter the dump.

        Raises:
            DumpInterrupted: the data changed during the dump (NLM_F_DUMP_INTR), or part of it was
                lost. The dump may still be in progress, so this conversation can't be reused.
            NetlinkError: the kernel returned an error.
        """
        sequence = self._reserve(1)
        self._send(rtnl.message(kind, rtnl.DUMP, sequence, body))
        while True:
            for stretch in stretches(self._receive(_DATAGRAM_BYTES)):
                if stretch.sequence != sequence or stretch.port != self._port:
                    continue
                if stretch.flags & rtnl.NLM_F_DUMP_INTR:
                    raise rtnl.DumpInterrupted
                if stretch.kind == rtnl.NLMSG_ERROR:
                    raise _refusal(stretch.messages)
                if stretch.kind == rtnl.NLMSG_DONE:
                    # NLMSG_DONE may be the only message that says why a dump is empty.
                    (errno,) = _INT.unpack_from(stretch.messages, HEADER_BYTES)
                    if errno:
                        raise NetlinkError(-errno)
                    return
                yield stretch

    def messages(self, kind: int, body: bytes) -> Iterator[bytes]:
        """Yield one by one the messages that ``dump`` yields in stretches."""
        return chain.from_iterable(map(rtnl.split, self.dump(kind, body)))

    # --- queries ----------------------------------------------------------------------------------

    def ask(
        self,
        subjects: Sequence[T],
        pack: Callable[[T, int], bytes],
        expected: Collection[int] = (),
    ) -> Iterator[tuple[T, bytes | NetlinkError]]:
        """Send a query for each subject, and yield the subject with the reply or an expected error.

        Args:
            subjects: for example, the addresses to look up.
            pack: a function that builds a request from a subject and a sequence number.
            expected: the errnos of expected errors.

        Raises:
            DumpInterrupted: a reply was lost.
            NetlinkError: the request can't be sent, or the kernel returned another error.
        """
        for start in range(0, len(subjects), self._batch):
            part = subjects[start : start + self._batch]
            first = self._reserve(len(part))
            asked = range(first, first + len(part))
            self._send(b"".join(map(pack, part, asked)))
            answers: dict[int, bytes | NetlinkError] = {}
            while len(answers) < len(asked):
                # Each reply is a single message.
                datagram = self._receive(_MESSAGE_BYTES)
                _, answer, _, sequence, port = HEADER.unpack_from(datagram)
                if sequence in asked and port == self._port:
                    answers[sequence] = (
                        _refusal(datagram) if answer == rtnl.NLMSG_ERROR else datagram
                    )
            for subject, sequence in zip(part, asked, strict=True):
                reply = answers[sequence]
                if isinstance(reply, NetlinkError) and reply.errno not in expected:
                    raise reply
                yield subject, reply

    def get(self, kind: int, body: bytes) -> bytes:
        """Send a single query, and return the reply message.

        Raises:
            DumpInterrupted: the reply was lost.
            NetlinkError: the kernel returned an error.
        """
        ((_, answer),) = self.ask(
            [body],
            lambda body, sequence: rtnl.message(kind, rtnl.GET, sequence, body),
        )
        assert isinstance(answer, bytes)
        return answer

    # --- changes ----------------------------------------------------------------------------------

    def change(
        self,
        subjects: Sequence[T],
        pack: Callable[[T, int], bytes],
    ) -> list[tuple[T, NetlinkError]]:
        """Request a change for each subject in order, and continue after errors.

        The kernel replies only to failed requests.

        Args:
            subjects: for example, the routes to add.
            pack: a function that builds a request from a subject and a sequence number. The
                function may raise ``NetlinkError`` to reject the subject.

        Returns:
            The rejected subjects in order, each with its error. The error ENOBUFS means that the
                change may have been made or not.
        """
        refusals: dict[int, NetlinkError] = {}
        batch: dict[int, bytes] = {}
        first = self._reserve(len(subjects))
        size = 0
        for sequence, subject in enumerate(subjects, first):
            try:
                message = pack(subject, sequence)
            except NetlinkError as error:
                refusals[sequence] = error
                continue
            if len(batch) == self._batch or size + len(message) > _BATCH_BYTES:
                self._commit(batch, refusals)
                batch = {}
                size = 0
            batch[sequence] = message
            size += len(message)
        self._commit(batch, refusals)
        return [(subjects[sequence - first], refusals[sequence]) for sequence in sorted(refusals)]

    def _commit(self, messages: dict[int, bytes], refusals: dict[int, NetlinkError]) -> None:
        """Send a batch of requests, and collect the errors."""
        if not messages:
            return
        try:
            self._send(b"".join(messages.values()))
        except NetlinkError as error:
            refusals.update(dict.fromkeys(messages, error))
            return
        is_lost = False
        for _ in range(_QUEUED_MAX):
            try:
                # Read until the queue is empty, even after an error: while the buffer is full, the
                # socket loses further replies.
                refusals.update(self._queued_refusals(messages))
            except BlockingIOError:
                break
            except OSError:
                is_lost = True
        if is_lost:
            refusals.update({sequence: refusals.get(sequence, _UNKNOWN) for sequence in messages})

    def _queued_refusals(self, messages: Container[int]) -> dict[int, NetlinkError]:
        """Return the errors in the next datagram of the queue, by sequence number."""
        datagram = self.recv(_DATAGRAM_BYTES, socket.MSG_DONTWAIT)
        return {
            stretch.sequence: _refusal(stretch.messages)
            for stretch in stretches(datagram)
            if stretch.kind == rtnl.NLMSG_ERROR
            and stretch.port == self._port
            and stretch.sequence in messages
        }

    # --- the socket -------------------------------------------------------------------------------

    def _reserve(self, count: int) -> int:
        """Reserve ``count`` unused sequence numbers, and return the first."""
        first = self._sequence
        self._sequence += count
        return first

    def _send(self, messages: bytes) -> None:
        try:
            self.send(messages)
        except OSError as error:
            raise NetlinkError(
                error.errno or 0,
                f"netlink accepts no request: {error.strerror or error}",
            ) from error

    def _receive(self, size: int) -> bytes:
        """Return the next complete datagram."""
        try:
            return self.recv(size)
        except OSError as error:
            is_lost = error.errno == errnos.ENOBUFS
            reason = _LOST if is_lost else f"netlink gives no answer: {error.strerror or error}"
            raise rtnl.DumpInterrupted(reason) from error


def read(
    attempt: str,
    ask: Callable[[Conversation], T],
    connect: Callable[[], Conversation] = Conversation,
) -> T:
    """Retry a read until the result is consistent.

    Each attempt has a new socket, because an interrupted dump may still be in progress on the old
    one.

    Args:
        attempt: a description for error messages, like "list the interfaces".
        ask: a function that reads. The function is called again if the data changed during the
            read.
        connect: a function that opens a conversation.

    Raises:
        RouteError: no socket can be opened, the kernel returns an error, or the data changes during
            every read.
    """
    reason = ""
    for _ in range(_ATTEMPTS):
        try:
            with rtnl.as_route_errors(attempt), connect() as talk:
                return ask(talk)
        except rtnl.DumpInterrupted as again:
            reason = str(again) or "they changed while they were read"
    raise RouteError(f"can't {attempt}: {reason}, {_ATTEMPTS} times over", hint="try again later")


_UNKNOWN = NetlinkError(errnos.ENOBUFS, f"{_LOST}; whether the change was made is unknown")


def _refusal(message: bytes) -> NetlinkError:
    """Return the error in an NLMSG_ERROR message that isn't an acknowledgement."""
    (errno,) = _INT.unpack_from(message, HEADER_BYTES)
    text = attributes(message, _ERROR_BYTES).get(_NLMSGERR_ATTR_MSG, b"")
    return NetlinkError(-errno, text.partition(b"\0")[0].decode(errors="replace"))


def everywhere(family: Family) -> PrefixSet:
    """Return a set that contains all addresses of a family."""
    return PrefixSet([(0, 0)], family.bits)


class Listener(Socket):
    """A socket that listens for changes to everything that ``RouteBackend`` reads.

    Routes disappear without an event when their link goes down or loses its last address, so links
    and addresses are included. Rules are included because they determine which tables are used.

    Args:
        inside: the prefixes in which changes of entries are relevant. The set also determines the
            address family.
        others: other address families, in which all changes are relevant.

    Raises:
        OSError: the socket can't be opened.
    """

    def __init__(self, inside: PrefixSet, *others: Family) -> None:
        groups = _GROUPS[inside.bits]
        for other in others:
            groups |= _GROUPS[other.bits]
        super().__init__(groups)
        with contextlib.suppress(PermissionError):
            self.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _HEARD_BYTES)
        self._port = self.getsockname()[0]
        self._inside = inside
        # Whether a relevant change has happened since the socket was opened.
        self._has_seen = False
        # Whether a relevant change has happened since the last wait.
        self._has_news = False

    def drain(self) -> None:
        """Read all pending events, and remember whether one of them is relevant.

        Events may be lost, or too many to read. Then assume that one of them is relevant.

        Raises:
            OSError: the socket failed.
        """
        for _ in range(_DRAINED_AT_ONCE):
            try:
                is_relevant_event = self._matters(self.recv(_EVENT_BYTES))
            except BlockingIOError:
                return
            except OSError as error:
                # ENOBUFS: events were lost. The socket still works.
                if error.errno != errnos.ENOBUFS:
                    raise
                is_relevant_event = True
            if is_relevant_event:
                self._has_seen = self._has_news = True
        self._has_seen = self._has_news = True

    @rtnl.as_route_errors(LISTENING)
    def happened(self) -> bool:
        """Return whether anything relevant has changed since this socket was opened.

        The kernel makes a change and sends its event under one lock (rtnl_mutex). A lookup takes no
        lock, so it may see a change before its event is sent. The request that is sent here waits
        for the lock. So when the request returns, that event has arrived.
        """
        if not self._has_seen:
            self.send(_GET_LINK)
            self.drain()
        return self._has_seen

    @rtnl.as_route_errors(LISTENING)
    def wait(self, scope: CancelScope) -> None:
        """Wait for an event, if ``happened`` has read no relevant one since the last wait."""
        if not self._has_news:
            scope.wait(self)
            self.drain()
        self._has_news = False

    def _matters(self, message: bytes) -> bool:
        _, kind, _, _, port = HEADER.unpack_from(message)
        if kind not in (rtnl.RTM_NEWROUTE, rtnl.RTM_DELROUTE):
            return bool(port != self._port)  # the answer to our own request has this port
        _, length, _, _, table, *_ = rtm.BODY.unpack_from(message, HEADER_BYTES)
        first = attributes(message, HEADER_BYTES + rtm.BODY.size).get(rtm.RTA_DST, b"")
        return is_relevant(table, (int.from_bytes(first, "big"), length), self._inside)
