"""Azure's metadata service: plain HTTP at a link-local address that only this machine can reach.

By hand over one socket, so that a cancel ends it at any moment, an answer that trickles in can't hold it up, and no
proxy is ever asked. Whatever isn't understood means that nobody knows, never that there is no IPv6.
"""

from __future__ import annotations

import errno as errnos
import io
import json
import os
import select
import socket
from contextlib import closing
from http.client import HTTPException, HTTPResponse
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Any

from hostrouting.azure.errors import LoadBalancerProbeError
from phases import TimedOut

if TYPE_CHECKING:
    from phases import CancelScope

__all__ = ["MetadataService"]

_ADDRESS = ("169.254.169.254", 80)
_PATH = "/metadata/instance/network/interface?api-version=2021-02-01"
# Without the header "Metadata" the service refuses, so that no page can lure a browser there.
_REQUEST = (
    f"GET {_PATH} HTTP/1.1\r\nHost: {_ADDRESS[0]}\r\nMetadata: true\r\nAccept: application/json\r\n"
    "Accept-Encoding: identity\r\nConnection: close\r\n\r\n"
).encode()

# Together less than 5 s.
TRY_SECONDS = 1.0
TRIES = 4
PAUSE_SECONDS = 0.25

ANSWER_BYTES_MAX = 1 << 20
_CHUNK_BYTES = 1 << 16
_HEAD_END = b"\r\n\r\n"

_OK, _TOO_MANY_REQUESTS, _SERVER_ERRORS = 200, 429, range(500, 600)


class _UnclearError(Exception):
    """No answer, or one that can't be understood.

    Args:
        reason: in words.
        is_passing: whether it may be another one in a moment.
    """

    def __init__(self, reason: str, *, is_passing: bool = False) -> None:
        self.is_passing = is_passing
        super().__init__(reason)


class MetadataService:
    """Azure's metadata service, as it is reached from the network namespace that the calling thread is in."""

    def assigned_addresses(self, scope: CancelScope) -> tuple[IPv6Address, ...]:
        """The IPv6 addresses that Azure has assigned to this machine, on any NIC.

        Args:
            scope: ends it, within 100 ms.

        Returns:
            The addresses, each once, in the order of the answer; none is an answer too.

        Raises:
            LoadBalancerProbeError: there was no answer, or it can't be understood.
        """
        scope.progress("asking Azure's metadata service for this machine's IPv6 addresses")
        for number in range(1, TRIES + 1):
            try:
                return _read(_answer(scope))
            except _UnclearError as error:
                if not error.is_passing or number == TRIES:
                    raise LoadBalancerProbeError(
                        f"can't tell whether this machine has IPv6: Azure's metadata service is unavailable: {error}; "
                        "is this an Azure machine? KERNEL or ALWAYS as loadBalancerProbe.ipv6Detection don't ask it"
                    ) from error
            scope.wait(PAUSE_SECONDS)
        raise AssertionError("the last try returns or raises")


# --- HTTP ----------------------------------------------------------------------------------------------------------


def _answer(scope: CancelScope) -> bytes:
    """The body of one answer with status 200."""
    within = scope.child(timeout=TRY_SECONDS)
    try:
        with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)) as service:
            service.setblocking(False)
            _connect(service, within)
            service.sendall(_REQUEST)  # of a few hundred bytes, so into an empty buffer
            return _parse(_receive(service, within))
    except TimedOut:
        scope.check()  # the try's end is no news; the scope's own deadline is
        raise _UnclearError(f"no answer within {TRY_SECONDS:g} s", is_passing=True) from None
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise _UnclearError(reason.lower(), is_passing=error.errno == errnos.ECONNRESET) from error


def _connect(service: socket.socket, scope: CancelScope) -> None:
    errno = service.connect_ex(_ADDRESS)
    if errno == errnos.EINPROGRESS:
        # A scope waits for what can be read, which an epoll can be as soon as what it watches is as asked.
        with select.epoll() as watch:
            watch.register(service, select.EPOLLOUT)
            scope.wait(watch)
        errno = service.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if errno:
        raise OSError(errno, os.strerror(errno))


def _receive(service: socket.socket, scope: CancelScope) -> bytes:
    received = bytearray()
    while not _is_whole(received):
        scope.wait(service)
        chunk = service.recv(_CHUNK_BYTES)
        if not chunk:
            break
        received += chunk
        if len(received) > ANSWER_BYTES_MAX:
            raise _too_long()
    return bytes(received)


def _too_long() -> _UnclearError:
    return _UnclearError(f"its answer is longer than {ANSWER_BYTES_MAX} bytes")


def _is_whole(received: bytearray) -> bool:
    """Whether a body of a known length has come, for services that don't hang up."""
    head, end, body = bytes(received).partition(_HEAD_END)
    if not end:
        return False
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip().isdigit():
            digits = value.strip().lstrip(b"0")
            # Python turns no more than a few thousand digits into a number.
            if len(digits) > len(str(ANSWER_BYTES_MAX)):
                raise _too_long()
            return len(body) >= int(digits or b"0")
    return False


class _Received:
    """What ``HTTPResponse`` asks of a socket, for an answer that has come whole."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def makefile(self, _mode: str) -> io.BytesIO:
        """The answer as a file."""
        return io.BytesIO(self._answer)


def _parse(answer: bytes) -> bytes:
    if not answer:
        raise _UnclearError("it hung up without an answer", is_passing=True)
    try:
        response = HTTPResponse(_Received(answer), method="GET")  # type: ignore[arg-type]
        response.begin()
        body = response.read()
    except (HTTPException, ValueError, OverflowError) as error:
        raise _UnclearError(f"its answer isn't whole, or isn't HTTP: {error!r}") from error
    # A redirect is refused too: nobody but the machine's own host is to be believed.
    if response.status != _OK:
        is_passing = response.status == _TOO_MANY_REQUESTS or response.status in _SERVER_ERRORS
        raise _UnclearError(f"it answered {response.status} {response.reason}".rstrip(), is_passing=is_passing)
    return body


# --- what it says --------------------------------------------------------------------------------------------------


def _read(body: bytes) -> tuple[IPv6Address, ...]:
    try:
        nics = json.loads(body, object_pairs_hook=_object)
        found = [address for nic in _typed(nics, list) for address in _of_nic(_typed(nic, dict))]
    except (ValueError, RecursionError) as error:
        start = body[:40].decode("utf-8", "replace")
        raise _UnclearError(f"its answer can't be understood: {error} in {start!r}") from error
    return tuple(dict.fromkeys(found))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key!r} twice")
        found[key] = value
    return found


def _of_nic(nic: Any) -> list[IPv6Address]:
    addresses = _of(_of(nic, "ipv6", dict), "ipAddress", list)
    texts = [_of(_typed(entry, dict), "privateIpAddress", str).strip() for entry in addresses]
    return [IPv6Address(text) for text in texts if text]


def _of(section: Any, key: str, kind: type) -> Any:
    """What an object has by a name; an empty one of its kind where it has none."""
    value = section.get(key)
    return kind() if value is None else _typed(value, kind)


def _typed(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{type(value).__name__} instead of {kind.__name__}")
    return value
