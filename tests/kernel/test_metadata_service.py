"""Azure's metadata service over real HTTP at its own address, inside a namespace: what it may say, and what not."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import AbstractContextManager, contextmanager
from ipaddress import IPv6Address
from typing import TYPE_CHECKING

import pytest

from hostrouting import Host, Layout
from hostrouting.azure.config import HostNetworking, LoadBalancerProbe
from hostrouting.azure.nodes import LoadBalancerProbeError
from hostrouting.azure.probe import metadata
from hostrouting.azure.probe.linux import LinuxProbeNode
from hostrouting.azure.probe.metadata import ANSWER_BYTES_MAX, TRIES
from hostrouting.azure.probe.ruleset import TABLE
from hostrouting.azure.probe.tasks import ConfigureLoadBalancerProbe
from hostrouting.testing import FakeSystemd
from phases import Cancelled, CancelScope, TimedOut
from phases.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hostrouting.azure.probe.plan import ProbeReport
    from hostrouting.kernel.namespace import NamespaceKernel

    Answer = Callable[[socket.socket], None]

pytestmark = pytest.mark.kernel

ADDRESS = "169.254.169.254"
TIMEOUT_SECONDS = 30.0


def nic(*addresses: str) -> dict[str, object]:
    return {
        "ipv4": {"ipAddress": [{"privateIpAddress": "10.1.0.4", "publicIpAddress": ""}], "subnet": []},
        "ipv6": {"ipAddress": [{"privateIpAddress": address} for address in addresses]},
        "macAddress": "000D3A000001",
    }


def said(body: str | bytes, status: str = "200 OK", *headers: str, length: bool = True) -> Answer:
    """An answer that the service gives, and then it hangs up."""
    content = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json; charset=utf-8", *headers]
    lines += [f"Content-Length: {len(content)}"] if length else []
    return lambda client: client.sendall("\r\n".join([*lines, "", ""]).encode() + content)


def nics(*them: object) -> Answer:
    return said(json.dumps(list(them)))


class Service:
    """Answers each connection in turn, the last answer for ever; notes the requests."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = answers
        self.requests: list[str] = []
        self.over = threading.Event()
        self._listener = socket.create_server((ADDRESS, 80))
        # Started from within the namespace, so in it.
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client:
                client.settimeout(TIMEOUT_SECONDS)
                try:
                    self._answer(client)
                except OSError:
                    continue  # it was enough for the client

    def _answer(self, client: socket.socket) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            chunk = client.recv(4096)
            if not chunk:
                return
            request += chunk
        self.requests.append(request.decode())
        self._answers[min(len(self.requests), len(self._answers)) - 1](client)

    def close(self) -> None:
        self.over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(TIMEOUT_SECONDS)
        assert not self._thread.is_alive()


if TYPE_CHECKING:
    Serve = Callable[..., AbstractContextManager[Service]]


@pytest.fixture
def serve(kernel: NamespaceKernel) -> Serve:
    kernel.add_address("lo", f"{ADDRESS}/32")

    @contextmanager
    def serving(*answers: Answer) -> Iterator[Service]:
        service = Service(*answers)
        try:
            yield service
        finally:
            service.close()

    return serving


def ask(scope: CancelScope | None = None) -> tuple[IPv6Address, ...]:
    return LinuxProbeNode().assigned_addresses(scope or CancelScope(timeout=TIMEOUT_SECONDS))


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "PAUSE_SECONDS", 0.001)


def silent(client: socket.socket) -> None:
    client.recv(1)  # until the client hangs up


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (nics(nic("fd00::4")), ["fd00::4"]),
        (nics(nic(), nic("fd00::4", "fd00::5"), nic("fd00::4")), ["fd00::4", "fd00::5"]),
        (nics(nic(" fd00::4 ", "", "  ")), ["fd00::4"]),
        (nics(), []),
        (nics(nic()), []),
        (nics({"macAddress": "000D3A000001"}), []),
        (nics({"ipv6": None}, {"ipv6": {}}, {"ipv6": {"ipAddress": None}}, {"ipv6": {"ipAddress": [{}]}}), []),
        (nics({"ipv6": {"ipAddress": [{"privateIpAddress": None}, {"privateIpAddress": ""}]}}), []),
        (said("[]", length=False), []),
        (said(b"2\r\n[]\r\n0\r\n\r\n", "200 OK", "Transfer-Encoding: chunked", length=False), []),
        (said(b"\xef\xbb\xbf[]"), []),
    ],
)
def test_what_azure_has_assigned_is_told_and_nothing_is_an_answer_too(
    serve: Serve, answer: Answer, expected: list[str]
) -> None:
    with serve(answer) as service:
        assert ask() == tuple(map(IPv6Address, expected))
    assert len(service.requests) == 1


def test_the_request_is_what_the_service_wants(serve: Serve) -> None:
    with serve(nics()) as service:
        ask()
    lines = service.requests[0].split("\r\n")
    assert lines[0] == "GET /metadata/instance/network/interface?api-version=2021-02-01 HTTP/1.1"
    assert {"Host: 169.254.169.254", "Metadata: true"} <= set(lines)


def test_no_proxy_is_asked(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with serve(nics(nic("fd00::4"))):
        assert ask() == (IPv6Address("fd00::4"),)


@pytest.mark.parametrize(
    "answer",
    [
        said(""),
        said("<html><body>Sign in</body></html>"),
        said("{}"),
        said("null"),
        said("[[]]"),
        said('[{"ipv6": [1]}]'),
        said('[{"ipv6": {"ipAddress": {"a": 1}}}]'),
        said('[{"ipv6": {"ipAddress": ["fd00::4"]}}]'),
        nics(nic("10.1.0.4")),
        said('[{"ipv6": {"ipAddress": [{"privateIpAddress": 7}]}}]'),
        said("[" * 500_000),
        said(b"\xff\xfe\xff"),
        said("[]", "302 Found", "Location: http://169.254.169.254/other"),
        said("[]", "404 Not Found"),
        said("", "204 No Content"),
        said(b"[]", "200 OK", "Content-Length: 99", length=False),
        said(b"f" * 16 + b"\r\n[]\r\n", "200 OK", "Transfer-Encoding: chunked", length=False),
        lambda client: client.sendall(b"SSH-2.0-OpenSSH_9.2\r\n"),
        said(b"[" + b" " * ANSWER_BYTES_MAX + b"]"),
        lambda client: client.sendall(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 300_000),
    ],
)
def test_what_is_not_understood_is_unavailable_and_never_no_ipv6(serve: Serve, answer: Answer) -> None:
    with serve(answer) as service, pytest.raises(LoadBalancerProbeError, match="metadata service is unavailable"):
        ask()
    assert len(service.requests) == TRIES


@pytest.mark.parametrize("status", ["429 Too Many Requests", "500 Internal Server Error", "503 Service Unavailable"])
def test_a_busy_service_is_asked_again(serve: Serve, status: str) -> None:
    with serve(said("busy", status), nics(nic("fd00::4"))) as service:
        assert ask() == (IPv6Address("fd00::4"),)
    assert len(service.requests) == 2


def test_one_that_hangs_up_is_asked_again(serve: Serve) -> None:
    with serve(lambda _: None, nics()) as service:
        assert ask() == ()
    assert len(service.requests) == 2


def test_one_that_stays_busy_is_unavailable(serve: Serve) -> None:
    with serve(said("", "500 Oops")) as service, pytest.raises(LoadBalancerProbeError, match="500 Oops"):
        ask()
    assert len(service.requests) == TRIES


def test_an_answer_of_known_length_is_enough_without_the_end_of_the_connection(serve: Serve) -> None:
    def answer_and_stay(client: socket.socket) -> None:
        nics(nic("fd00::4"))(client)
        silent(client)

    with serve(answer_and_stay):
        assert ask() == (IPv6Address("fd00::4"),)


def test_one_that_says_nothing_is_given_up_after_less_than_five_seconds(serve: Serve) -> None:
    clock = FakeClock()
    with serve(silent), pytest.raises(LoadBalancerProbeError, match="no answer within 1 s"):
        ask(CancelScope(clock=clock))
    assert TRIES <= clock.monotonic() <= 5


def test_an_answer_that_trickles_in_does_not_hold_it_up(serve: Serve) -> None:
    def drip(client: socket.socket) -> None:
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while not service.over.wait(0.01):
            client.sendall(b" ")

    clock = FakeClock()
    with serve(drip) as service, pytest.raises(LoadBalancerProbeError, match="no answer within 1 s"):
        ask(CancelScope(clock=clock))
    assert clock.monotonic() <= 5


def test_a_cancel_ends_it(serve: Serve) -> None:
    scope = CancelScope(timeout=TIMEOUT_SECONDS)

    def cancel(client: socket.socket) -> None:
        scope.cancel("enough")
        silent(client)

    with serve(cancel), pytest.raises(Cancelled, match="enough"):
        ask(scope)


def test_a_deadline_of_the_scope_is_its_own(serve: Serve) -> None:
    with serve(silent), pytest.raises(TimedOut), CancelScope(timeout=0.5, clock=FakeClock()) as scope:
        ask(scope)


def test_nobody_there_is_unavailable(kernel: NamespaceKernel) -> None:
    with pytest.raises(LoadBalancerProbeError, match="unavailable: .*Network is unreachable") as caught:
        ask()
    assert caught.value.errno is None
    kernel.add_address("lo", f"{ADDRESS}/32")
    with pytest.raises(LoadBalancerProbeError, match="unavailable: .*Connection refused"):
        ask()


# --- what the task makes of it -------------------------------------------------------------------------------------


@pytest.fixture
def host(kernel: NamespaceKernel, nft: None, tmp_path: Path) -> Host:
    """A node without an address of IPv6 but of link-local scope."""
    kernel.add_link("eth0")
    layout = Layout(tmp_path)
    return Host(routes=kernel, units=FakeSystemd(layout), layout=layout)


def configure(host: Host, *, required: bool) -> ProbeReport:
    probe = LoadBalancerProbe(True, ["eth0"], "METADATA", required, wait_seconds=0)
    return ConfigureLoadBalancerProbe(HostNetworking(probe), host=host, node=LinuxProbeNode()).do(
        CancelScope(timeout=TIMEOUT_SECONDS)
    )


@pytest.mark.parametrize(
    ("answer", "skipped_because"),
    [(nics(nic("fd00::4")), None), (nics(nic()), "Azure's metadata service has assigned no IPv6 address")],
)
def test_by_what_it_has_assigned_a_node_is_configured_or_not(
    serve: Serve, host: Host, answer: Answer, skipped_because: str | None
) -> None:
    with serve(answer):
        report = configure(host, required=True)
    assert report.skipped_because == skipped_because
    assert report.has_new_rules == (skipped_because is None)
    assert (LinuxProbeNode().listing(TABLE) is None) == (skipped_because is not None)


@pytest.mark.parametrize("answer", [said(""), said("", "500 Oops"), said("[]", "302 Found")])
def test_while_it_is_unavailable_no_node_is_taken_to_have_ipv6_or_not(serve: Serve, host: Host, answer: Answer) -> None:
    with serve(answer):
        with pytest.raises(LoadBalancerProbeError, match="unavailable"):
            configure(host, required=True)
        report = configure(host, required=False)
    assert "unavailable" in (report.problem or "")
    assert report.skipped_because is None
    assert LinuxProbeNode().listing(TABLE) is None
