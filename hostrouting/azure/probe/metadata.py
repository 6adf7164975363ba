"""Azure's metadata service: plain HTTP at a link-local address that only this machine can reach.

Whatever isn't understood means that nobody knows, never that there is no IPv6.
"""

from __future__ import annotations

import json
import os
import threading
from http.client import HTTPException
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import HTTPHandler, OpenerDirector, Request

from hostrouting.azure.errors import LoadBalancerProbeError
from phases import TimedOut

if TYPE_CHECKING:
    from phases import CancelScope

__all__ = ["MetadataService"]

_REQUEST = Request(
    "http://169.254.169.254/metadata/instance/network/interface?api-version=2021-02-01",
    # Without it the service refuses, so that no page can lure a browser there.
    headers={"Metadata": "true"},
)
# It asks no proxy and follows no redirect: nobody but the machine's own host is to be believed.
_OPENER = OpenerDirector()
_OPENER.add_handler(HTTPHandler())

# Together less than 5 s.
TRY_SECONDS = 1.0
TRIES = 4
PAUSE_SECONDS = 0.25

ANSWER_BYTES_MAX = 1 << 20

_OK, _TOO_MANY_REQUESTS, _SERVER_ERRORS = 200, 429, range(500, 600)
_SILENCE = f"no answer within {TRY_SECONDS:g} s"


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
                return _read(_ask(scope))
            except _UnclearError as error:
                if not error.is_passing or number == TRIES:
                    raise LoadBalancerProbeError(
                        f"can't tell whether this machine has IPv6: Azure's metadata service is unavailable: {error}; "
                        "is this an Azure machine? KERNEL or ALWAYS as loadBalancerProbe.ipv6Detection don't ask it"
                    ) from error
            scope.wait(PAUSE_SECONDS)
        raise AssertionError("the last try returns or raises")


# --- HTTP ----------------------------------------------------------------------------------------------------------


def _ask(scope: CancelScope) -> bytes:
    """The body of one answer.

    It is asked for in a thread, as a cancel must end it at any moment and an answer that trickles in mustn't hold it
    up; a thread that is left behind ends with its socket's time-outs, or with the process.
    """
    answers: list[bytes | Exception] = []
    is_over = threading.Event()

    def ask() -> None:
        try:
            answers.append(_fetch())
        except Exception as error:  # noqa: BLE001 - raised where the answer is waited for
            answers.append(error)
        is_over.set()

    threading.Thread(target=ask, name="metadata-service", daemon=True).start()
    try:
        scope.child(timeout=TRY_SECONDS).wait(is_over)
    except TimedOut:
        scope.check()  # the try's end is no news; the scope's own deadline is
        raise _UnclearError(_SILENCE, is_passing=True) from None
    (answer,) = answers
    if isinstance(answer, Exception):
        raise answer
    return answer


def _fetch() -> bytes:
    try:
        with _OPENER.open(_REQUEST, timeout=TRY_SECONDS) as response:
            body: bytes = response.read(ANSWER_BYTES_MAX + 1)
    except OSError as error:
        cause = error.reason if isinstance(error, URLError) else error
        if isinstance(cause, TimeoutError):
            raise _UnclearError(_SILENCE, is_passing=True) from error
        if isinstance(cause, ConnectionResetError):
            raise _UnclearError("it hung up without an answer", is_passing=True) from error
        errno = getattr(cause, "errno", None)
        raise _UnclearError(os.strerror(errno).lower() if errno else str(cause)) from error
    except (HTTPException, ValueError, OverflowError) as error:
        raise _UnclearError(f"its answer isn't whole, or isn't HTTP: {error!r}") from error
    if response.status != _OK:
        is_passing = response.status == _TOO_MANY_REQUESTS or response.status in _SERVER_ERRORS
        raise _UnclearError(f"it answered {response.status} {response.reason}".rstrip(), is_passing=is_passing)
    if len(body) > ANSWER_BYTES_MAX:
        raise _UnclearError(f"its answer is longer than {ANSWER_BYTES_MAX} bytes")
    length = response.headers["Content-Length"]
    if length not in (None, str(len(body))):
        raise _UnclearError(f"its answer isn't whole: {len(body)} of {length[:20]} bytes")
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
