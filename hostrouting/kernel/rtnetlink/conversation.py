"""The sockets of rtnetlink(7): one asks (dumps, questions by the hundred, changes by the hundred), one only listens.

What the kernel does with a message it does within send(2), so all answers of a batch are queued when that returns. An
answer takes up to 2 KiB of the socket's receive buffer however short it is, and one too many is dropped; the kernel
then says ENOBUFS, once. So a batch is never larger than what its answers fit into; should one get lost all the same,
what was read is read again, and the fate of a change is unknown.

A socket that asks joins no group. What else may arrive has another sequence number or port, and is passed over.
Of an event one that listens reads only where the route leads to: an event is a reason to look, as some losses of routes
send none (a link that goes down takes its routes along in silence, fib_disable_ip).
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

_LOST = "an answer of the kernel got lost"

# The kernel fills a datagram of a dump up to 32 KiB (netlink_dump), if the buffer of the reader shows room for it.
_DATAGRAM_BYTES = 0x10000
_MESSAGE_BYTES = 0x4000  # twice what the kernel makes (NLMSG_GOODSIZE)
_BATCH_BYTES = 0x8000
_BATCH_MAX = 100
_ANSWER_BYTES = 0x800
_QUEUED_MAX = 10_000

_INT = struct.Struct("=i")
_ERROR_BYTES = HEADER_BYTES + _INT.size + HEADER_BYTES  # header, errno, header of the request (NETLINK_CAP_ACK)
_NLMSGERR_ATTR_MSG = 1

_RTNLGRP_NEXTHOP = 32
_NETLINK_ADD_MEMBERSHIP = 1
# linux/rtnetlink.h: RTMGRP_*. Never the default groups of a library: those bring IPv6, neighbours and traffic control.
_LINK, _IPV4_IFADDR, _IPV4_ROUTE, _IPV4_RULE, _IPV4_NETCONF = 0x1, 0x10, 0x40, 0x80, 0x800000

# asm-generic/socket.h
_SO_RCVBUFFORCE = 33
# For a reading of seconds beside hundreds of changes a second.
_HEARD_BYTES = 4 << 20
# What tells where a route leads to is at its beginning.
_EVENT_BYTES = 0x80

# Under constant churn two dumps of three are interrupted; this many in a row happen once in a million.
_ATTEMPTS = 32

# A request that changes nothing and is no dump, about the interface with the index 1, which needn't be there.
_GET_LINK = HEADER.pack(HEADER_BYTES + 16, rtnl.RTM_GETLINK, rtnl.GET, 1, 0) + struct.pack("=BxHiII", 0, 0, 1, 0, 0)

# A bound, so that a flood that never ends can't keep the caller from looking; the next wait returns at once.
_DRAINED_AT_ONCE = 100_000


class Socket(socket.socket):
    """A socket in the network namespace of this thread.

    Args:
        groups: RTMGRP_*, to listen to; changes of nexthop objects come besides. 0: it asks.

    Raises:
        OSError: it can't be opened.
    """

    def __init__(self, groups: int = 0) -> None:
        super().__init__(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self.setblocking(not groups)
        # The kernel's own sentences; refusals without the whole request; dumps filtered by the kernel.
        for option in (rtnl.NETLINK_EXT_ACK, rtnl.NETLINK_CAP_ACK, rtnl.NETLINK_GET_STRICT_CHK):
            self.setsockopt(rtnl.SOL_NETLINK, option, 1)
        self.bind((0, groups))
        # To a socket that is connected to the kernel no other socket can send (netlink_getsockbyportid).
        self.connect((0, 0))
        if groups:
            self.setsockopt(rtnl.SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, _RTNLGRP_NEXTHOP)


class Conversation(Socket):
    """A socket that asks; close it.

    Raises:
        OSError: it can't be opened.
    """

    def __init__(self) -> None:
        super().__init__()
        self._port = self.getsockname()[0]
        room = self.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // _ANSWER_BYTES
        self._batch = max(1, min(_BATCH_MAX, room))
        self._sequence = 1

    # --- lists -------------------------------------------------------------------------------------------------

    def dump(self, kind: int, body: bytes) -> Iterator[Run]:
        """Ask for a list and yield it as it comes; a datagram is read when the one before has been worked off.

        Args:
            kind: RTM_GET*.
            body: and attributes, which filter.

        Raises:
            DumpInterrupted: the list changed while it was read (NLM_F_DUMP_INTR), or a part of it got lost. The dump
                may still be running, so this conversation is over.
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
                    # The end of a dump may be the only place that says why there is nothing.
                    (errno,) = _INT.unpack_from(run.messages, HEADER_BYTES)
                    if errno:
                        raise NetlinkError(-errno)
                    return
                yield run

    def messages(self, kind: int, body: bytes) -> Iterator[bytes]:
        """Yield the messages of ``dump``, one by one."""
        for run in self.dump(kind, body):
            for start in range(0, len(run.messages), (run.length + 3) & ~3):
                yield run.messages[start : start + run.length]

    # --- questions ---------------------------------------------------------------------------------------------

    def ask(
        self, subjects: Sequence[T], pack: Callable[[T, int], bytes]
    ) -> Iterator[tuple[Sequence[T], list[bytes | NetlinkError]]]:
        """Ask a question about each subject; yield some of them at a time, with their answers.

        Args:
            subjects: in any number.
            pack: makes a request of a subject and a sequence number.

        Returns:
            For each subject the one message of its answer, or the refusal.

        Raises:
            DumpInterrupted: an answer got lost.
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
            # An answer is one message alone.
            datagram = self._receive(_MESSAGE_BYTES)
            _, answer, _, sequence, port = HEADER.unpack_from(datagram)
            if sequence in asked and port == self._port:
                answers[sequence] = _refusal(datagram) if answer == rtnl.NLMSG_ERROR else datagram
        return [answers[sequence] for sequence in asked]

    # --- changes -----------------------------------------------------------------------------------------------

    def change(self, subjects: Sequence[T], pack: Callable[[T, int], bytes]) -> list[tuple[T, NetlinkError]]:
        """Ask for a change about each subject, in order, going on after a refusal; only refusals are answered.

        Args:
            subjects: in any number.
            pack: makes a request of a subject and a sequence number; may refuse it itself.

        Returns:
            The subjects that were refused, in order, each with the refusal. One with ENOBUFS is unknown.
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
        """Send requests in parts that the socket takes, and note what is refused."""
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
                # Whatever goes wrong, until nothing is queued: a socket that lost an answer loses all up to then.
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
        """Return the first of so many sequence numbers that this socket hasn't used."""
        first = self._sequence
        self._sequence += count
        return first

    def _send(self, messages: bytes) -> None:
        try:
            self.send(messages)
        except OSError as error:
            raise NetlinkError(error.errno or 0, f"netlink takes no request: {error.strerror or error}") from error

    def _receive(self, size: int) -> bytes:
        """Return the next datagram, whole."""
        try:
            return self.recv(size)
        except OSError as error:
            is_lost = error.errno == errnos.ENOBUFS
            reason = _LOST if is_lost else f"netlink gives no answer: {error.strerror or error}"
            raise rtnl.DumpInterrupted(reason) from error


def read(attempt: str, ask: Callable[[Conversation], T], connect: Callable[[], Conversation] = Conversation) -> T:
    """Read until an answer can be relied upon; each time over a new socket, as a dump may still be running.

    Args:
        attempt: in words, "list the interfaces".
        ask: reads; called anew if what it read changed meanwhile.
        connect: gives a conversation.

    Raises:
        RouteError: no socket can be opened, the kernel refuses, or it changes whenever it is read.
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
    """Return the refusal that a message of kind NLMSG_ERROR holds; one that acknowledges doesn't come here."""
    (errno,) = _INT.unpack_from(message, HEADER_BYTES)
    text = attributes(message, _ERROR_BYTES).get(_NLMSGERR_ATTR_MSG, b"")
    return NetlinkError(-errno, text.partition(b"\0")[0].decode(errors="replace"))


class Listener(Socket):
    """Listens for all that ``RouteBackend`` reads.

    A link that goes down, or loses its last address, takes routes along in silence; a dump of IPv4 routes itself never
    tells that they changed meanwhile (NLM_F_DUMP_INTR); and rules decide which tables count.

    Args:
        inside: where entries matter.

    Raises:
        OSError: it can't be opened.
    """

    def __init__(self, inside: PrefixSet = _EVERYWHERE) -> None:
        super().__init__(_LINK | _IPV4_IFADDR | _IPV4_ROUTE | _IPV4_RULE | _IPV4_NETCONF)
        with contextlib.suppress(PermissionError):
            self.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _HEARD_BYTES)
        self._port = self.getsockname()[0]
        self._inside = inside
        self._has_seen = False

    def __del__(self) -> None:
        # One that waits lives as long as its thread and its backend; that it ends with them is no leak to warn of.
        with contextlib.suppress(AttributeError):  # it couldn't be opened
            self.close()

    def drain(self) -> bool:
        """Forget what has arrived.

        Returns:
            Whether anything of it matters.

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
                # Events were lost; that they were is all there is to know. The socket goes on.
                if error.errno != errnos.ENOBUFS:
                    raise
                has_some = True
        return True

    def saw_a_change(self) -> bool:
        """Return whether anything that matters has changed since this was opened, also when asked again.

        The kernel tells of a change right after it is made, and before it releases its lock (rtnl_mutex), which no
        lookup takes. The request takes it, so whatever has been seen is told when it returns.
        """
        if not self._has_seen:
            self.send(_GET_LINK)
            self._has_seen = self.drain()
        return self._has_seen

    def _matters(self, message: bytes) -> bool:
        _, kind, _, _, port = HEADER.unpack_from(message)
        if kind not in (rtnl.RTM_NEWROUTE, rtnl.RTM_DELROUTE):
            return bool(port != self._port)  # that of the answer to our own request
        _, length, _, _, table, *_ = wire.BODY.unpack_from(message, HEADER_BYTES)
        first = attributes(message, HEADER_BYTES + wire.BODY.size).get(wire.RTA_DST, b"")
        return matters(table, (int.from_bytes(first, "big"), length), self._inside)


@contextlib.contextmanager
def retry_if_changed(attempts: Iterator[int]) -> Iterator[None]:
    """Have what is read meanwhile read again if anything changes, as long as there are attempts left.

    Raises:
        DumpInterrupted: something has changed.
        OSError: the socket can't listen.
    """
    with Listener() as listener:
        yield
        if listener.saw_a_change() and next(attempts, None) is not None:
            raise rtnl.DumpInterrupted
