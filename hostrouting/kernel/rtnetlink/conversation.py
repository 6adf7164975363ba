"""A socket of rtnetlink(7) for one batch of questions: dumps, questions by the hundred, changes by the hundred.

What the kernel does with a message it does within send(2), so all answers of a batch are queued when that returns. An
answer takes up to 2 KiB of the socket's receive buffer however short it is, and one too many is dropped; the kernel
then says ENOBUFS, once. So a batch is never larger than what its answers fit into; should one get lost all the same,
it counts as unanswered.

The socket joins no group. What else may arrive has another sequence number or port, and is passed over.
"""

from __future__ import annotations

import errno as errnos
import socket
import struct
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from hostrouting.kernel.rtnetlink import constants as rtnl
from hostrouting.kernel.rtnetlink.messages import (
    CUT_OFF,
    HEADER,
    HEADER_BYTES,
    NO_SENSE,
    attributes,
    cut,
    request,
    runs,
)
from hostrouting.kernel.rtnetlink.socket import Socket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hostrouting.kernel.rtnetlink.messages import Run

__all__ = ["LOST", "Conversation"]

T = TypeVar("T")

LOST = "an answer of the kernel got lost"

# The kernel fills a datagram of a dump up to 32 KiB (netlink_dump), if the buffer of the reader shows room for it.
_DATAGRAM_BYTES = 0x10000
_MESSAGE_BYTES = 0x4000  # twice what the kernel makes (NLMSG_GOODSIZE)
_BATCH_BYTES = 0x8000
_BATCH_MAX = 100
_ANSWER_BYTES = 0x800
_QUEUED_MAX = 10_000

# RTM_NEW*, RTM_DEL*, RTM_GET* follow each other (rtnetlink.h).
_FROM_GET_TO_NEW = 2

_INT = struct.Struct("=i")
_ERROR_BYTES = HEADER_BYTES + _INT.size + HEADER_BYTES  # header, errno, header of the request (NETLINK_CAP_ACK)
_NLMSGERR_ATTR_MSG = 1


class Conversation:
    """An rtnetlink socket in the network namespace of this thread; ``close`` it.

    Args:
        kernel: the socket; None: a new one.

    Raises:
        OSError: it can't be opened.
    """

    def __init__(self, kernel: socket.socket | None = None) -> None:
        self._kernel = Socket() if kernel is None else kernel
        self._port = self._kernel.getsockname()[0]
        room = self._kernel.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // _ANSWER_BYTES
        self._batch = max(1, min(_BATCH_MAX, room))
        self._sequence = 1
        self._buffer = bytearray(_DATAGRAM_BYTES)

    def close(self) -> None:
        """Close the socket."""
        self._kernel.close()

    # --- lists -------------------------------------------------------------------------------------------------

    def dump(self, kind: int, body: bytes) -> Iterator[Run]:
        """Ask for a list and yield it as it comes; a datagram is read when the one before has been worked off.

        Args:
            kind: RTM_GET*.
            body: and attributes, which filter.

        Raises:
            AgainError: the list changed while it was read (NLM_F_DUMP_INTR), or a part of it got lost. The dump may
                still be running, so this conversation is over.
            RefusedError: the kernel refused.
        """
        sequence = self._reserve(1)
        self._send(request(kind, rtnl.DUMP, sequence, body))
        while True:
            for run in runs(self._receive()):
                if run.sequence != sequence or run.port != self._port:
                    continue
                if run.flags & rtnl.NLM_F_DUMP_INTR:
                    raise rtnl.AgainError
                if run.kind == rtnl.NLMSG_DONE:
                    _check_done(run.messages)
                    return
                if run.kind == rtnl.NLMSG_ERROR:
                    raise _refused(run.messages)
                if run.kind != kind - _FROM_GET_TO_NEW:
                    raise rtnl.AgainError(NO_SENSE)
                yield run

    def messages(self, kind: int, body: bytes) -> Iterator[bytes]:
        """The messages of ``dump``, one by one."""
        return chain.from_iterable(map(cut, self.dump(kind, body)))

    # --- questions ---------------------------------------------------------------------------------------------

    def ask(
        self, kind: int, subjects: Sequence[T], pack: Callable[[T, int], bytes]
    ) -> Iterator[tuple[Sequence[T], list[bytes | rtnl.RefusedError]]]:
        """Ask a question about each subject; yield some of them at a time, with their answers.

        Args:
            kind: RTM_GET*.
            subjects: in any number.
            pack: makes a request of a subject and a sequence number.

        Returns:
            For each subject the one message of its answer, or the refusal.

        Raises:
            AgainError: an answer got lost, even of a question asked alone.
            RefusedError: nothing can be sent.
        """
        for start in range(0, len(subjects), self._batch):
            part = subjects[start : start + self._batch]
            yield part, self._answers(kind, part, pack)

    def _answers(
        self, kind: int, subjects: Sequence[T], pack: Callable[[T, int], bytes]
    ) -> list[bytes | rtnl.RefusedError]:
        first = self._reserve(len(subjects))
        asked = range(first, first + len(subjects))
        self._send(b"".join(map(pack, subjects, asked)))
        answers: dict[int, bytes | rtnl.RefusedError] = {}
        try:
            self._collect(kind - _FROM_GET_TO_NEW, asked, answers)
        except rtnl.AgainError:
            if len(subjects) == 1:
                raise
            self._forget()
            return [
                answers[sequence] if sequence in answers else self._answers(kind, (subject,), pack)[0]
                for subject, sequence in zip(subjects, asked, strict=True)
            ]
        return [answers[sequence] for sequence in asked]

    def _collect(self, expected: int, asked: range, answers: dict[int, bytes | rtnl.RefusedError]) -> None:
        """Read until every question has its answer; what has come until something goes wrong is kept."""
        receive, unpack, port = self._kernel.recv, HEADER.unpack_from, self._port
        while len(answers) < len(asked):
            try:
                # An answer is one message alone, so its length tells whether it is whole.
                datagram = receive(_MESSAGE_BYTES)
                length, kind, _, sequence, addressee = unpack(datagram)
            except InterruptedError:
                continue
            except OSError as error:
                raise _no_answer(error) from error
            except struct.error as error:
                raise rtnl.AgainError(CUT_OFF) from error
            if sequence not in asked or addressee != port:
                continue
            if length != len(datagram):
                raise rtnl.AgainError(CUT_OFF)
            if kind == expected:
                answers[sequence] = datagram
            elif kind == rtnl.NLMSG_ERROR:
                answers[sequence] = _refused(datagram)
            else:
                raise rtnl.AgainError(NO_SENSE)

    # --- changes -----------------------------------------------------------------------------------------------

    def change(
        self, subjects: Sequence[T], pack: Callable[[T, int], bytes], has_worked: Callable[[T, rtnl.RefusedError], bool]
    ) -> dict[int, rtnl.RefusedError]:
        """Ask for a change about each subject, in order, going on after a refusal.

        Only refusals are answered, and the last of each batch. Where an answer got lost, each of its batch that isn't
        known to be refused is asked for again, alone.

        Args:
            subjects: in any number.
            pack: makes a request of a subject and a sequence number; may refuse it itself.
            has_worked: tells by the refusal of a change that is asked for again whether it was the first time that
                made it.

        Returns:
            The refusals, by the number of the subject. One with ENOBUFS means that nobody knows.
        """
        refusals: dict[int, rtnl.RefusedError] = {}
        first = self._reserve(len(subjects))
        for messages in self._batches(first, subjects, pack, refusals):
            answered, unanswered = self._commit(messages)
            refusals.update({sequence - first: refusal for sequence, refusal in answered.items()})
            for message in unanswered:
                number = _sequence_of(message) - first
                refusal = self._commit_again(message)
                if refusal is not None and not has_worked(subjects[number], refusal):
                    refusals[number] = refusal
        return refusals

    def _batches(
        self,
        first: int,
        subjects: Sequence[T],
        pack: Callable[[T, int], bytes],
        refusals: dict[int, rtnl.RefusedError],
    ) -> Iterator[list[bytes]]:
        """The requests, as many at once as may be sent; notes what ``pack`` refuses."""
        batch: list[bytes] = []
        size = 0
        for number, subject in enumerate(subjects):
            try:
                message = pack(subject, first + number)
            except rtnl.RefusedError as error:
                refusals[number] = error
                continue
            size += len(message)
            if len(batch) == self._batch or (batch and size > _BATCH_BYTES):
                yield batch
                batch, size = [], len(message)
            batch.append(message)
        if batch:
            yield batch

    def _commit(self, messages: list[bytes]) -> tuple[dict[int, rtnl.RefusedError], list[bytes]]:
        """Send a batch; what was refused, by its sequence number, and what nobody knows about as an answer got lost."""
        refusals: dict[int, rtnl.RefusedError] = {}
        try:
            self._send(b"".join(messages[:-1]) + _acknowledged(messages[-1]))
        except rtnl.RefusedError as error:
            return dict.fromkeys(map(_sequence_of, messages), error), []
        own = range(_sequence_of(messages[0]), _sequence_of(messages[-1]) + 1)
        try:
            for sequence, refusal in self._acknowledgements(own[-1]):
                if refusal is not None and sequence in own:
                    refusals[sequence] = refusal  # noqa: PERF403 - those that came before a loss count
        except rtnl.AgainError:
            self._forget()
            return refusals, [message for message in messages if _sequence_of(message) not in refusals]
        return refusals, []

    def _commit_again(self, message: bytes) -> rtnl.RefusedError | None:
        sequence = self._reserve(1)
        try:
            self._send(_acknowledged(_numbered(message, sequence)))
            for answered, refusal in self._acknowledgements(sequence):
                if answered == sequence:
                    return refusal
        except rtnl.RefusedError as error:
            return error
        except rtnl.AgainError:
            self._forget()
        return _UNKNOWN

    def _acknowledgements(self, last: int) -> Iterator[tuple[int, rtnl.RefusedError | None]]:
        """The sequence numbers that the kernel answers to, each with its refusal, up to the last."""
        while True:
            for run in runs(self._receive()):
                if run.kind == rtnl.NLMSG_ERROR and run.port == self._port:
                    yield run.sequence, _refusal(run.messages)
                    if run.sequence == last:
                        return

    # --- the socket --------------------------------------------------------------------------------------------

    def _reserve(self, count: int) -> int:
        """The first of so many sequence numbers that this socket hasn't used."""
        first = self._sequence
        self._sequence += count
        return first

    def _send(self, messages: bytes) -> None:
        try:
            self._kernel.send(messages)
        except OSError as error:
            raise rtnl.RefusedError(error.errno or 0, f"netlink takes no request: {error.strerror or error}") from error

    def _receive(self, flags: int = 0) -> bytes:
        """The next datagram, whole."""
        while True:
            try:
                # With MSG_TRUNC the size is the datagram's own, even where the buffer is smaller.
                size = self._kernel.recv_into(self._buffer, 0, socket.MSG_TRUNC | flags)
            except InterruptedError:
                continue
            except BlockingIOError:
                raise
            except OSError as error:
                raise _no_answer(error) from error
            if not HEADER_BYTES <= size <= len(self._buffer):
                raise rtnl.AgainError(CUT_OFF)
            return bytes(memoryview(self._buffer)[:size])

    def _forget(self) -> None:
        """Read what is queued: as long as something is, a socket that lost an answer loses all that follow."""
        for _ in range(_QUEUED_MAX):
            try:
                self._receive(socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except rtnl.AgainError:
                continue


_UNKNOWN = rtnl.RefusedError(errnos.ENOBUFS, f"{LOST}; nobody knows whether the change was made")


def _no_answer(error: OSError) -> rtnl.AgainError:
    if error.errno == errnos.ENOBUFS:
        return rtnl.AgainError(LOST)
    return rtnl.AgainError(f"netlink gives no answer: {error.strerror or error}")


def _sequence_of(message: bytes) -> int:
    sequence: int = HEADER.unpack_from(message)[3]
    return sequence


def _numbered(message: bytes, sequence: int) -> bytes:
    length, kind, flags, _, port = HEADER.unpack_from(message)
    return HEADER.pack(length, kind, flags, sequence, port) + message[HEADER_BYTES:]


def _acknowledged(message: bytes) -> bytes:
    length, kind, flags, sequence, port = HEADER.unpack_from(message)
    return HEADER.pack(length, kind, flags | rtnl.NLM_F_ACK, sequence, port) + message[HEADER_BYTES:]


def _refusal(message: bytes) -> rtnl.RefusedError | None:
    """What a message of kind NLMSG_ERROR says; None: an acknowledgement."""
    if len(message) < _ERROR_BYTES:
        raise rtnl.AgainError(CUT_OFF)
    length, _, flags, _, _ = HEADER.unpack_from(message)
    (errno,) = _INT.unpack_from(message, HEADER_BYTES)
    if errno == 0:
        return None
    text = b""
    if flags & rtnl.NLM_F_ACK_TLVS:
        refused: int = HEADER.unpack_from(message, HEADER_BYTES + _INT.size)[0]
        echoed = 0 if flags & rtnl.NLM_F_CAPPED else (refused - HEADER_BYTES + 3) & ~3
        text = attributes(message[:length], _ERROR_BYTES + echoed).get(_NLMSGERR_ATTR_MSG, b"")
    return rtnl.RefusedError(-errno, text.partition(b"\0")[0].decode(errors="replace"))


def _refused(message: bytes) -> rtnl.RefusedError:
    refusal = _refusal(message)
    if refusal is None:
        raise rtnl.AgainError(NO_SENSE)  # nothing was to be acknowledged
    return refusal


def _check_done(message: bytes) -> None:
    """The end of a dump may be the only place that says why there is nothing."""
    errno = -_INT.unpack_from(message, HEADER_BYTES)[0] if len(message) >= HEADER_BYTES + _INT.size else 0
    if errno:
        raise rtnl.RefusedError(errno)
