"""Provide the sockets of rtnetlink(7): one for dumps, lookups and batches of changes, and one to listen.

The kernel processes a message within send(2), so all answers to a batch are queued when send returns. Even a short
answer takes up to 2 KiB of the receive buffer. The kernel drops an answer that doesn't fit and reports ENOBUFS once. A
batch is therefore never larger than the buffer allows. If an answer is lost anyway, a read is repeated, and the result
of a change is unknown.

A socket for queries doesn't join a group. If other messages arrive, they have another sequence number or port and are
ignored. A socket for events reads only the destination of each event. An event is just a reason to read the state,
because the kernel removes some routes without an event (for example those of a link that goes down, fib_disable_ip).
"""

from __future__ import annotations

import contextlib
import errno as errnos
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from hostrouting.kernel.port import matters
from hostrouting.kernel.refusals import NetlinkError
from hostrouting.kernel.rtnetlink import messages as rtnl
from hostrouting.kernel.rtnetlink import wire
from hostrouting.kernel.rtnetlink.messages import HEADER, HEADER_BYTES, Run, attributes, runs
from hostrouting.model.errors import RouteError
from hostrouting.model.prefixes import PrefixSet

T = TypeVar("T")

_EVERYWHERE = PrefixSet([(0, 0)])

_LOST = "an answer from the kernel was lost"

# The kernel puts up to 32 KiB of a dump into a datagram (netlink_dump), if earlier reads had a buffer of that size.
_DATAGRAM_BYTES = 0x10000
_MESSAGE_BYTES = 0x4000  # twice the size that the kernel uses (NLMSG_GOODSIZE)
_BATCH_BYTES = 0x8000
_BATCH_MAX = 100
_ANSWER_BYTES = 0x800
_QUEUED_MAX = 10_000

_INT = struct.Struct("=i")
_ERROR_BYTES = HEADER_BYTES + _INT.size + HEADER_BYTES  # header, errno, header of the request (NETLINK_CAP_ACK)
_NLMSGERR_ATTR_MSG = 1

_RTNLGRP_NEXTHOP = 32
_NETLINK_ADD_MEMBERSHIP = 1
# linux/rtnetlink.h: RTMGRP_*. The default groups of libraries also include IPv6, neighbours and traffic control.
_LINK, _IPV4_IFADDR, _IPV4_ROUTE, _IPV4_RULE, _IPV4_NETCONF = 0x1, 0x10, 0x40, 0x80, 0x800000

# asm-generic/socket.h
_SO_RCVBUFFORCE = 33
# This is enough for a read that takes seconds during hundreds of changes per second.
_HEARD_BYTES = 4 << 20
# The destination is near the start of an event.
_EVENT_BYTES = 0x80

# If routes change all the time, two of three dumps are interrupted. This many in a row happen once in a million cases.
_ATTEMPTS = 32

# A request that changes nothing and isn't a dump. It is for interface index 1, which may not exist.
_GET_LINK = HEADER.pack(HEADER_BYTES + 16, rtnl.RTM_GETLINK, rtnl.GET, 1, 0) + struct.pack("=BxHiII", 0, 0, 1, 0, 0)

# A limit, so that an endless flood of events can't keep the caller from reading. The next wait then returns at once.
_DRAINED_AT_ONCE = 100_000


class Socket(socket.socket):
    """A socket in the network namespace of this thread.

    Args:
        groups: the RTMGRP_* groups to listen to, in addition to nexthop objects, or 0 for a socket for queries.

    Raises:
        OSError: the socket can't be opened.
    """

    def __init__(self, groups: int = 0) -> None:
        super().__init__(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self.setblocking(not groups)
        # Ask for error messages, for refusals without the whole request, and for dumps that the kernel filters.
        for option in (rtnl.NETLINK_EXT_ACK, rtnl.NETLINK_CAP_ACK, rtnl.NETLINK_GET_STRICT_CHK):
            self.setsockopt(rtnl.SOL_NETLINK, option, 1)
        self.bind((0, groups))
        # No other socket can send to a socket that is connected to the kernel (netlink_getsockbyportid).
        self.connect((0, 0))
        if groups:
            self.setsockopt(rtnl.SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, _RTNLGRP_NEXTHOP)


class Conversation(Socket):
    """A socket for queries, which the caller closes.

    Raises:
        OSError: the socket can't be opened.
    """

    def __init__(self) -> None:
        super().__init__()
        self._port = self.getsockname()[0]
        room = self.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // _ANSWER_BYTES
        self._batch = max(1, min(_BATCH_MAX, room))
        self._sequence = 1

    # --- lists -------------------------------------------------------------------------------------------------

    def dump(self, kind: int, body: bytes) -> Iterator[Run]:
        """Request a list and yield it as it arrives, reading a datagram after the previous one has been processed.

        Args:
            kind: the kind of the request, RTM_GET*.
            body: the body and the attributes that filter the list.

        Raises:
            DumpInterrupted: the list changed while it was read (NLM_F_DUMP_INTR), or a part was lost. The dump may
                still be running, so this conversation can't be used any more.
            NetlinkError: the kernel refused.
        """
        sequence = self._reserve(1)
        self._send(HEADER.pack(HEADER_BYTES + len(body), kind, rtnl.DUMP, sequence, 0) + body)
        while True:
            for run in runs(self._receive(_DATAGRAM_BYTES)):
                if run.sequence != sequence or run.port != self._port:
                    continue
                if run.flags & rtnl.NLM_F_DUMP_INTR:
                    raise rtnl.DumpInterrupted
                if run.kind == rtnl.NLMSG_ERROR:
                    raise _refusal(run.messages)
                if run.kind == rtnl.NLMSG_DONE:
                    # The end of a dump may be the only message that says why the dump is empty.
                    (errno,) = _INT.unpack_from(run.messages, HEADER_BYTES)
                    if errno:
                        raise NetlinkError(-errno)
                    return
                yield run

    def messages(self, kind: int, body: bytes) -> Iterator[bytes]:
        """Yield the messages from ``dump`` one by one."""
        for run in self.dump(kind, body):
            for start in range(0, len(run.messages), (run.length + 3) & ~3):
                yield run.messages[start : start + run.length]

    # --- queries -----------------------------------------------------------------------------------------------

    def ask(
        self, subjects: Sequence[T], pack: Callable[[T, int], bytes]
    ) -> Iterator[tuple[Sequence[T], list[bytes | NetlinkError]]]:
        """Send a query about each subject, and yield the subjects in parts with their answers.

        Args:
            subjects: the subjects, of which there may be any number.
            pack: a function that makes a request from a subject and a sequence number.

        Returns:
            For each subject, the single message of the answer or the refusal.

        Raises:
            DumpInterrupted: an answer was lost.
            NetlinkError: nothing can be sent.
        """
        for start in range(0, len(subjects), self._batch):
            part = subjects[start : start + self._batch]
            yield part, self._answers(part, pack)

    def _answers(self, subjects: Sequence[T], pack: Callable[[T, int], bytes]) -> list[bytes | NetlinkError]:
        first = self._reserve(len(subjects))
        asked = range(first, first + len(subjects))
        self._send(b"".join(map(pack, subjects, asked)))
        answers: dict[int, bytes | NetlinkError] = {}
        while len(answers) < len(asked):
            # An answer is a single message.
            datagram = self._receive(_MESSAGE_BYTES)
            _, answer, _, sequence, port = HEADER.unpack_from(datagram)
            if sequence in asked and port == self._port:
                answers[sequence] = _refusal(datagram) if answer == rtnl.NLMSG_ERROR else datagram
        return [answers[sequence] for sequence in asked]

    # --- changes -----------------------------------------------------------------------------------------------

    def change(self, subjects: Sequence[T], pack: Callable[[T, int], bytes]) -> list[tuple[T, NetlinkError]]:
        """Request a change for each subject in order, and continue after a refusal.

        The kernel answers only refused requests.

        Args:
            subjects: the subjects, of which there may be any number.
            pack: a function that makes a request from a subject and a sequence number. It may refuse the subject
                itself.

        Returns:
            The refused subjects in order, each with its refusal. If that is ENOBUFS, the result of the change is
            unknown.
        """
        refusals: dict[int, NetlinkError] = {}
        first = self._reserve(len(subjects))
        for start in range(0, len(subjects), self._batch):
            messages: dict[int, bytes] = {}
            for sequence, subject in enumerate(subjects[start : start + self._batch], first + start):
                try:
                    messages[sequence] = pack(subject, sequence)
                except NetlinkError as error:
                    refusals[sequence] = error
            if messages:
                self._commit(messages, refusals)
        return [(subjects[sequence - first], refusals[sequence]) for sequence in sorted(refusals)]

    def _commit(self, messages: dict[int, bytes], refusals: dict[int, NetlinkError]) -> None:
        """Send requests in batches that fit into the socket, and record the refusals."""
        request_bytes = b"".join(messages.values())
        if len(request_bytes) > _BATCH_BYTES and len(messages) > 1:
            parts, half = list(messages.items()), len(messages) // 2
            self._commit(dict(parts[:half]), refusals)
            self._commit(dict(parts[half:]), refusals)
            return
        try:
            self._send(request_bytes)
        except NetlinkError as error:
            refusals.update(dict.fromkeys(messages, error))
            return
        is_lost = False
        for _ in range(_QUEUED_MAX):
            try:
                # Read until nothing is queued, even after an error. A socket that lost an answer drops more until then.
                for run in runs(self.recv(_DATAGRAM_BYTES, socket.MSG_DONTWAIT)):
                    if run.sequence in messages and run.port == self._port and run.kind == rtnl.NLMSG_ERROR:
                        refusals[run.sequence] = _refusal(run.messages)
            except BlockingIOError:
                break
            except OSError:
                is_lost = True
        if is_lost:
            refusals.update({sequence: refusals.get(sequence, _UNKNOWN) for sequence in messages})

    # --- the socket --------------------------------------------------------------------------------------------

    def _reserve(self, count: int) -> int:
        """Return the first of ``count`` sequence numbers that this socket hasn't used."""
        first = self._sequence
        self._sequence += count
        return first

    def _send(self, messages: bytes) -> None:
        try:
            self.send(messages)
        except OSError as error:
            raise NetlinkError(error.errno or 0, f"netlink accepts no request: {error.strerror or error}") from error

    def _receive(self, size: int) -> bytes:
        """Return the next complete datagram."""
        try:
            return self.recv(size)
        except OSError as error:
            is_lost = error.errno == errnos.ENOBUFS
            reason = _LOST if is_lost else f"netlink gives no answer: {error.strerror or error}"
            raise rtnl.DumpInterrupted(reason) from error


def read(attempt: str, ask: Callable[[Conversation], T], connect: Callable[[], Conversation] = Conversation) -> T:
    """Repeat a read until the answer is reliable, each time with a new socket, because a dump may still be running.

    Args:
        attempt: a description of the attempt, like "list the interfaces".
        ask: a function that reads. It is called again if the data changed while it was read.
        connect: a function that opens a conversation.

    Raises:
        RouteError: no socket can be opened, the kernel refuses, or its state changes during each read.
    """
    reason = ""
    for _ in range(_ATTEMPTS):
        try:
            with rtnl.translate_errors(attempt), connect() as talk:
                return ask(talk)
        except rtnl.DumpInterrupted as again:
            reason = str(again) or "they changed while they were read"
    raise RouteError(f"can't {attempt}: {reason}, {_ATTEMPTS} times over", hint="try again later")


_UNKNOWN = NetlinkError(errnos.ENOBUFS, f"{_LOST}; whether the change was made is unknown")


def _refusal(message: bytes) -> NetlinkError:
    """Return the refusal in an NLMSG_ERROR message, which must not be an acknowledgement."""
    (errno,) = _INT.unpack_from(message, HEADER_BYTES)
    text = attributes(message, _ERROR_BYTES).get(_NLMSGERR_ATTR_MSG, b"")
    return NetlinkError(-errno, text.partition(b"\0")[0].decode(errors="replace"))


class Listener(Socket):
    """A socket that listens for changes to everything that ``RouteBackend`` reads.

    When a link goes down or loses its last address, its routes disappear without an event. A dump of IPv4 routes never
    reports that they changed during the dump (NLM_F_DUMP_INTR). Rules matter because they decide which tables count.

    Args:
        inside: the prefixes in which entries matter.

    Raises:
        OSError: the socket can't be opened.
    """

    def __init__(self, inside: PrefixSet = _EVERYWHERE) -> None:
        super().__init__(_LINK | _IPV4_IFADDR | _IPV4_ROUTE | _IPV4_RULE | _IPV4_NETCONF)
        with contextlib.suppress(PermissionError):
            self.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _HEARD_BYTES)
        self._port = self.getsockname()[0]
        self._inside = inside
        self._has_seen = False

    def __del__(self) -> None:
        # A waiting listener ends together with its thread or its backend. This isn't a leak that needs a warning.
        with contextlib.suppress(AttributeError):  # the socket couldn't be opened
            self.close()

    def drain(self) -> bool:
        """Discard everything that has arrived.

        Returns:
            Whether anything that has arrived matters.

        Raises:
            OSError: the socket failed.
        """
        has_some = False
        for _ in range(_DRAINED_AT_ONCE):
            try:
                has_some |= self._matters(self.recv(_EVENT_BYTES))
            except BlockingIOError:
                return has_some
            except OSError as error:
                # Events were lost, and nothing is known about them. The socket still works.
                if error.errno != errnos.ENOBUFS:
                    raise
                has_some = True
        return True

    def saw_a_change(self) -> bool:
        """Return whether anything that matters has changed since this socket was opened.

        The kernel reports a change right after making it, before it releases its lock (rtnl_mutex). Lookups don't take
        this lock, but the request here does. When the request returns, every change that a lookup may have seen has
        therefore been reported.
        """
        if not self._has_seen:
            self.send(_GET_LINK)
            self._has_seen = self.drain()
        return self._has_seen

    def _matters(self, message: bytes) -> bool:
        _, kind, _, _, port = HEADER.unpack_from(message)
        if kind not in (rtnl.RTM_NEWROUTE, rtnl.RTM_DELROUTE):
            return bool(port != self._port)  # the answer to our own request has this port
        _, length, _, _, table, *_ = wire.BODY.unpack_from(message, HEADER_BYTES)
        first = attributes(message, HEADER_BYTES + wire.BODY.size).get(wire.RTA_DST, b"")
        return matters(table, (int.from_bytes(first, "big"), length), self._inside)


@contextlib.contextmanager
def retry_if_changed(attempts: Iterator[int]) -> Iterator[None]:
    """Cause the read in the block to be repeated if anything changes during it, while there are attempts left.

    Raises:
        DumpInterrupted: something has changed.
        OSError: the socket can't listen.
    """
    with Listener() as listener:
        yield
        if listener.saw_a_change() and next(attempts, None) is not None:
            raise rtnl.DumpInterrupted
