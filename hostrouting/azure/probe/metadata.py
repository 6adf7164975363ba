"""Query the Azure Instance Metadata Service over HTTP at its link-local address.

A malformed response is always an error; it is never treated as a lack of IPv6.
"""

from __future__ import annotations

import json
import threading
from concurrent.futures import Future
from contextlib import closing
from http.client import HTTPConnection
from ipaddress import IPv6Address

from hostrouting.azure.nodes import LoadBalancerProbeError
from phases import CancelScope

_ADDRESS = "169.254.169.254"
_PATH = "/metadata/instance/network/interface?api-version=2021-02-01"

# The attempts take less than 5 s in total.
_TRY_SECONDS = 1.0
TRIES = 4
PAUSE_SECONDS = 0.25

ANSWER_BYTES_MAX = 1 << 20


def assigned_addresses(scope: CancelScope) -> tuple[IPv6Address, ...]:
    """Query the IPv6 addresses assigned to this machine's NICs.

    Args:
        scope: the cancel scope; the query ends within 100 ms of a cancellation.

    Returns:
        The unique addresses, in response order; may be empty.

    Raises:
        LoadBalancerProbeError: there was no response, or it was malformed.
    """
    scope.progress("asking Azure's metadata service for this machine's IPv6 addresses")
    for number in range(TRIES):
        scope.wait(PAUSE_SECONDS if number else 0)
        try:
            return _ask(scope)
        except Exception as error:  # noqa: BLE001 - whatever the error is, the answer can't be understood
            problem = error
    raise LoadBalancerProbeError(
        f"can't tell whether this machine has IPv6: Azure's metadata service is unavailable: {problem}; "
        "is this an Azure machine? To skip this check, set loadBalancerProbe.ipv6Detection to ALWAYS"
    ) from problem


def _ask(scope: CancelScope) -> tuple[IPv6Address, ...]:
    """Send a single query in a thread, so that it can be cancelled even if the response is slow."""
    answer: Future[tuple[IPv6Address, ...]] = Future()
    is_over = threading.Event()
    answer.add_done_callback(lambda _: is_over.set())

    def ask() -> None:
        try:
            answer.set_result(_fetch())
        except Exception as error:  # noqa: BLE001 - raised by the waiting thread
            answer.set_exception(error)

    # An abandoned thread ends when its socket times out, or with the process.
    threading.Thread(target=ask, name="metadata-service", daemon=True).start()
    scope.child(timeout=_TRY_SECONDS).wait(is_over)
    return answer.result()


def _fetch() -> tuple[IPv6Address, ...]:
    # Proxies and redirects are ignored, because only Azure's own service can be trusted.
    with closing(HTTPConnection(_ADDRESS, timeout=_TRY_SECONDS)) as service:
        # The service requires this header as a protection against request forgery.
        service.request("GET", _PATH, headers={"Metadata": "true"})
        response = service.getresponse()
        body = response.read(ANSWER_BYTES_MAX)
        if response.status != 200 or response.length:
            raise ValueError(
                f"it answered {response.status} {response.reason}{', cut off' if response.length else ''}"
            )
    nics = json.loads(body)
    if not isinstance(nics, list):
        raise TypeError("its answer isn't a list")
    entries = (entry for nic in nics for entry in (nic.get("ipv6") or {}).get("ipAddress") or ())
    texts = ((entry.get("privateIpAddress") or "").strip() for entry in entries)
    return tuple(dict.fromkeys(IPv6Address(text) for text in texts if text))
