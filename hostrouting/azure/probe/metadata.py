"""Query Azure's metadata service with plain HTTP, at a link-local address that only this machine can reach.

An answer that can't be understood is always an error, and never means that there is no IPv6.
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

# All tries together take less than 5 s.
_TRY_SECONDS = 1.0
TRIES = 4
PAUSE_SECONDS = 0.25

ANSWER_BYTES_MAX = 1 << 20


def assigned_addresses(scope: CancelScope) -> tuple[IPv6Address, ...]:
    """Query the IPv6 addresses that Azure has assigned to any NIC of this machine.

    Args:
        scope: cancels the query within 100 ms.

    Returns:
        The addresses, if there are any, without duplicates and in the order of the answer.

    Raises:
        LoadBalancerProbeError: there was no answer, or it couldn't be understood.
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
        "is this an Azure machine? With ALWAYS as loadBalancerProbe.ipv6Detection it isn't asked"
    ) from problem


def _ask(scope: CancelScope) -> tuple[IPv6Address, ...]:
    """Query once, in a thread, so that a cancellation can end it even if the answer arrives slowly."""
    answer: Future[tuple[IPv6Address, ...]] = Future()
    is_over = threading.Event()
    answer.add_done_callback(lambda _: is_over.set())

    def ask() -> None:
        try:
            answer.set_result(_fetch())
        except Exception as error:  # noqa: BLE001 - raised by the waiting thread
            answer.set_exception(error)

    # If the thread is left behind, it ends with its socket's time-outs or with the process.
    threading.Thread(target=ask, name="metadata-service", daemon=True).start()
    scope.child(timeout=_TRY_SECONDS).wait(is_over)
    return answer.result()


def _fetch() -> tuple[IPv6Address, ...]:
    # No proxy or redirect is followed, because only Azure's own service can be trusted.
    with closing(HTTPConnection(_ADDRESS, timeout=_TRY_SECONDS)) as service:
        # The service refuses requests without this header, so that a web page can't make a browser send one.
        service.request("GET", _PATH, headers={"Metadata": "true"})
        response = service.getresponse()
        body = response.read(ANSWER_BYTES_MAX)
        if response.status != 200 or response.length:
            raise ValueError(f"it answered {response.status} {response.reason}{', cut off' if response.length else ''}")
    nics = json.loads(body)
    if not isinstance(nics, list):
        raise TypeError("its answer isn't a list")
    entries = (entry for nic in nics for entry in (nic.get("ipv6") or {}).get("ipAddress") or ())
    texts = ((entry.get("privateIpAddress") or "").strip() for entry in entries)
    return tuple(dict.fromkeys(IPv6Address(text) for text in texts if text))
