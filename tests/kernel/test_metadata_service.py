"""Test valid and invalid responses from Azure's metadata service, over real HTTP at its usual
address.
"""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from ipaddress import IPv6Address
from itertools import takewhile

import pytest

from hostrouting.azure.nodes import LoadBalancerProbeError
from hostrouting.azure.probe import metadata
from hostrouting.azure.probe.metadata import RESPONSE_BYTES_MAX, TRIES
from hostrouting.azure.probe.node import LinuxProbeNode
from hostrouting.kernel.namespace import NamespaceKernel
from phases import Cancelled, CancelScope
from phases.testing import FakeClock

Answer = Callable[[socket.socket], None]

pytestmark = pytest.mark.kernel

ADDRESS = "169.254.169.254"
TIMEOUT_SECONDS = 30.0


def nic(*addresses: str) -> dict[str, object]:
    return {
        "ipv4": {
            "ipAddress": [{"privateIpAddress": "10.1.0.4", "publicIpAddress": ""}],
            "subnet": [],
        },
        "ipv6": {"ipAddress": [{"privateIpAddress": address} for address in addresses]},
        "macAddress": "000D3A000001",
    }


def said(body: str | bytes, status: str = "200 OK", *headers: str, length: bool = True) -> Answer:
    """Return a function that sends an HTTP response."""
    content = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json; charset=utf-8", *headers]
    lines += [f"Content-Length: {len(content)}"] if length else []
    return lambda client: client.sendall("\r\n".join([*lines, "", ""]).encode() + content)


def nics(*them: object) -> Answer:
    return said(json.dumps(list(them)))


class Service(socketserver.TCPServer):
    """An HTTP server that sends one response per connection, repeats the last one forever, and
    records the requests.
    """

    allow_reuse_address = True

    def __init__(self, *answers: Answer) -> None:
        self.answers, self.requests, self.over = answers, list[str](), threading.Event()
        super().__init__((ADDRESS, 80), Client)


class Client(socketserver.StreamRequestHandler):
    """A connection to the server."""

    server: Service
    timeout = TIMEOUT_SECONDS

    def handle(self) -> None:
        lines = [*map(bytes.decode, takewhile(bytes.strip, self.rfile))]
        if lines:
            self.server.requests.append("".join(lines))
            with suppress(OSError):  # the client has read enough
                self.server.answers[min(len(self.server.requests), len(self.server.answers)) - 1](
                    self.connection
                )


Serve = Callable[..., AbstractContextManager[Service]]


@pytest.fixture
def serve(kernel: NamespaceKernel) -> Serve:
    kernel.add_address("lo", f"{ADDRESS}/32")

    @contextmanager
    def serving(*answers: Answer) -> Iterator[Service]:
        with Service(*answers) as service:
            # The thread stays in the namespace in which it was started.
            thread = threading.Thread(target=service.serve_forever, args=(0.01,))
            thread.start()
            try:
                yield service
            finally:
                service.over.set()
                service.shutdown()
                thread.join()

    return serving


def ask(scope: CancelScope | None = None) -> tuple[IPv6Address, ...]:
    return LinuxProbeNode().assigned_addresses(scope or CancelScope(timeout=TIMEOUT_SECONDS))


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "PAUSE_SECONDS", 0.001)


def silent(client: socket.socket) -> None:
    client.recv(1)  # wait until the client hangs up


def answer_and_stay(client: socket.socket) -> None:
    nics(nic("fd00::4"))(client)
    silent(client)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (nics(nic("fd00::4")), ["fd00::4"]),
        (nics(nic(), nic("fd00::4", "fd00::5"), nic("fd00::4")), ["fd00::4", "fd00::5"]),
        (nics(nic(" fd00::4 ", "", "  ")), ["fd00::4"]),
        (nics(), []),
        (nics(nic()), []),
        (nics({"macAddress": "000D3A000001"}), []),
        (
            nics(
                {"ipv6": None},
                {"ipv6": {}},
                {"ipv6": {"ipAddress": None}},
                {"ipv6": {"ipAddress": [{}]}},
            ),
            [],
        ),
        (nics({"ipv6": {"ipAddress": [{"privateIpAddress": None}, {"privateIpAddress": ""}]}}), []),
        (said("[]", length=False), []),
        (said(b"2\r\n[]\r\n0\r\n\r\n", "200 OK", "Transfer-Encoding: chunked", length=False), []),
        (said(b"\xef\xbb\xbf[]"), []),
        (answer_and_stay, ["fd00::4"]),
    ],
)
def test_azures_assignment_is_an_answer(
    serve: Serve, answer: Answer, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # no proxy may be used
    with serve(answer) as service:
        assert ask() == tuple(map(IPv6Address, expected))
    (request,) = service.requests
    assert request.startswith(
        "GET /metadata/instance/network/interface?api-version=2021-02-01 HTTP/1.1\r\n"
    )
    assert {"Host: 169.254.169.254", "Metadata: true"} <= set(request.split("\r\n"))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (said(""), "Expecting value"),
        (said("{}"), "isn't a list"),
        (said('[{"ipv6": [1]}]'), ""),
        (said('[{"ipv6": {"ipAddress": {"a": 1}}}]'), ""),
        (said('[{"ipv6": {"ipAddress": ["fd00::4"]}}]'), ""),
        (nics(nic("10.1.0.4")), "10.1.0.4"),
        (said('[{"ipv6": {"ipAddress": [{"privateIpAddress": 7}]}}]'), ""),
        (said("[" * 500_000), ""),
        (said(b"\xff\xfe\xff"), ""),
        (
            said("[]", "302 Found", "Location: http://169.254.169.254/other"),
            "it answered 302 Found$",
        ),
        (said("", "500 Oops"), "it answered 500 Oops$"),
        (said(b"[]", "200 OK", "Content-Length: 99", length=False), ""),
        (said(b"f" * 16 + b"\r\n[]\r\n", "200 OK", "Transfer-Encoding: chunked", length=False), ""),
        (lambda client: client.sendall(b"SSH-2.0-OpenSSH_9.2\r\n"), "SSH"),
        (said(b"[" + b" " * RESPONSE_BYTES_MAX + b"]"), "it answered 200 OK, cut off"),
        (lambda client: client.sendall(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 300_000), ""),
    ],
)
def test_an_unknown_answer_is_an_error(serve: Serve, answer: Answer, reason: str) -> None:
    """An unknown response never means "no IPv6"."""
    message = (
        f"metadata service is unavailable: .*{reason.removesuffix('$')}"
        f"{'; is this' if '$' in reason else ''}"
    )
    with serve(answer) as service, pytest.raises(LoadBalancerProbeError, match=message):
        ask()
    assert len(service.requests) == TRIES


@pytest.mark.parametrize(
    "first",
    [said("busy", "429 Slow"), said("busy", "500 Oops"), said("busy", "503 Busy"), lambda _: None],
)
def test_a_busy_service_is_retried(serve: Serve, first: Answer) -> None:
    with serve(first, nics(nic("fd00::4"))) as service:
        assert ask() == (IPv6Address("fd00::4"),)
    assert len(service.requests) == 2


@pytest.mark.parametrize("is_dripping", [False, True])
def test_a_service_that_hangs_fails_after_five_seconds(serve: Serve, is_dripping: bool) -> None:
    def drip(client: socket.socket) -> None:
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while not service.over.wait(0.01):
            client.sendall(b" ")

    clock = FakeClock()
    with serve(drip if is_dripping else silent) as service:
        with pytest.raises(LoadBalancerProbeError, match="not done within 1 s"):
            ask(CancelScope(clock=clock))
        assert TRIES <= clock.monotonic() <= 5


def test_a_cancel_ends_it(serve: Serve) -> None:
    scope = CancelScope(timeout=TIMEOUT_SECONDS)

    def cancel(client: socket.socket) -> None:
        scope.cancel("enough")
        silent(client)

    with serve(cancel), pytest.raises(Cancelled, match="enough"):
        ask(scope)


def test_no_service_is_an_error(kernel: NamespaceKernel) -> None:
    with pytest.raises(
        LoadBalancerProbeError,
        match=r"unavailable: .*Network is unreachable.*; is this an Azure machine",
    ):
        ask()
    kernel.add_address("lo", f"{ADDRESS}/32")
    with pytest.raises(LoadBalancerProbeError, match="unavailable: .*Connection refused"):
        ask()
