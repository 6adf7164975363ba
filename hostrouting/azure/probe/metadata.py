"""Query the Azure Instance Metadata Service over HTTP at its link-local address.

A malformed response is an error, and doesn't mean that the machine has no IPv6.
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

RESPONSE_BYTES_MAX = 1 << 20


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
            return _query(scope)
        except Exception as error:  # noqa: BLE001 - no response, or a malformed one
            problem = error
    raise LoadBalancerProbeError(
        "can't tell whether this machine has IPv6: "
        f"Azure's metadata service is unavailable: {problem}; is this an Azure machine? "
        "To skip this check, set loadBalancerProbe.ipv6Detection to ALWAYS"
    ) from problem


def _query(scope: CancelScope) -> tuple[IPv6Address, ...]:
    """Send a query in a thread, so that a slow response doesn't delay a cancellation."""
    outcome: Future[tuple[IPv6Address, ...]] = Future()
    is_over = threading.Event()
    outcome.add_done_callback(lambda _: is_over.set())

    def work() -> None:
        try:
            outcome.set_result(_addresses_in(_fetch()))
        except Exception as error:  # noqa: BLE001 - raised by the waiting thread
            outcome.set_exception(error)

    # After a cancellation, this thread ends when its socket times out.
    threading.Thread(
        target=work,
        name="metadata-service",
        daemon=True,
    ).start()
    scope.child(timeout=_TRY_SECONDS).wait(is_over)
    return outcome.result()


def _fetch() -> bytes:
    # HTTPConnection uses no proxy and follows no redirect: only Azure's own service can be trusted.
    with closing(HTTPConnection(_ADDRESS, timeout=_TRY_SECONDS)) as service:
        # The service requires this header, which protects it from forged requests.
        service.request("GET", _PATH, headers={"Metadata": "true"})
        response = service.getresponse()
        body = response.read(RESPONSE_BYTES_MAX)
        is_cut_off = bool(response.length)
        if response.status != 200 or is_cut_off:
            rest = ", cut off" if is_cut_off else ""
            raise ValueError(f"it answered {response.status} {response.reason}{rest}")
    return body


def _addresses_in(body: bytes) -> tuple[IPv6Address, ...]:
    nics = json.loads(body)
    if not isinstance(nics, list):
        raise TypeError("its answer isn't a list")
    addresses: dict[IPv6Address, None] = {}
    for nic in nics:
        for entry in (nic.get("ipv6") or {}).get("ipAddress") or ():
            text = (entry.get("privateIpAddress") or "").strip()
            if text:
                addresses[IPv6Address(text)] = None
    return tuple(addresses)
