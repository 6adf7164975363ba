"""The H200's story, told on a real kernel in a throw-away namespace, or on the one in memory.

``python -m hostrouting.cli.demo`` moves its own process into the namespace, so the ``demo`` command starts it as a
child: a process that has entered a user namespace can't come back.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

import attrs

import phases
from hostrouting.boot.fake_systemd import FakeSystemd
from hostrouting.boot.host import Host
from hostrouting.boot.layout import Layout
from hostrouting.cli.changes import routes_text
from hostrouting.cli.output import columns, complain, say
from hostrouting.cli.page import bad, dim, good, head
from hostrouting.cli.report import overlap_text
from hostrouting.config.routing import Config
from hostrouting.kernel.memory import FakeKernel
from hostrouting.kernel.namespace import NamespaceError, NamespaceKernel, enter_namespace
from hostrouting.model.errors import HostRoutingError
from hostrouting.model.parsing import parse_cidr
from hostrouting.model.routes import NextHop, Protocol, Route
from hostrouting.overlap.check import check_overlap
from hostrouting.tasks.configure import ConfigureStaticRoutes, RemoveHostRouting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.kernel.port import Kernel

__all__ = ["main", "run_apart", "story"]

GATEWAY = "10.1.0.1"
API_SERVER = IPv4Address("172.16.1.1")
API_PORT = 6443
LOST_AFTER_SECONDS = 0.3
_INDENT = "   "

CONFIG = Config.from_mapping(
    {
        "hostRouting": {
            "routeOverlap": {"expectedCidrs": ["172.16.0.0/12", "10.96.0.0/12"], "mode": "STRICT"},
        }
    }
)


def run_apart(output: str) -> int:
    """Tell the story in a child process, and return its exit code."""
    return subprocess.run([sys.executable, "-m", "hostrouting.cli.demo", output], check=False).returncode


def main(output: str = "text") -> int:
    """Tell the story in this process, which is in another network namespace afterwards.

    Args:
        output: ``text`` or ``svg``.

    Returns:
        The exit code.
    """
    try:
        if output == "svg":
            from hostrouting.cli.drawn import PICTURE_COLUMNS, picture

            say(picture(list(story(PICTURE_COLUMNS)), "hostrouting demo"))
        else:
            for line in story(columns(sys.stdout)):
                say(line)
    except HostRoutingError as error:
        complain(f"hostrouting demo: {error}")
        return 1
    return 0


def story(width: int | None) -> Iterator[str]:
    """The lines of the demo, each as soon as it has happened.

    Args:
        width: how many columns there are; None: it isn't for a terminal.

    Raises:
        HostRoutingError: something went otherwise than it should.
    """
    kernel: Kernel
    api_server = None
    try:
        enter_namespace()
        kernel = namespace = NamespaceKernel()
        api_server = _ApiServer(namespace)
        yield head(f"kernel: Linux {'.'.join(os.uname().release.split('.')[:2])} (network namespace)")
    except NamespaceError as error:
        kernel = FakeKernel()
        yield head(f"kernel: in memory ({error})")
    with ExitStack() as stack:
        root = stack.enter_context(tempfile.TemporaryDirectory(prefix="hostrouting-demo-"))
        if api_server is not None:
            stack.callback(api_server.close)
        host = Host(routes=kernel, units=FakeSystemd(), layout=Layout(root))
        yield from _tell(kernel, host, api_server, None if width is None else width - len(_INDENT))


def _tell(kernel: Kernel, host: Host, api_server: _ApiServer | None, width: int | None) -> Iterator[str]:
    run = partial(phases.run, scope=phases.CancelScope())

    yield from _heading("A node comes up: eth0 has the default route, eight InfiniBand interfaces share 172.16.0.0/16")
    _build(kernel)
    if api_server is not None:
        api_server.open()
    before = kernel.routes(254)
    yield from _table(kernel)

    yield from _heading(
        f"The cluster's network is in there too. Where does a packet to its API server {API_SERVER} go?"
    )
    yield _answer(kernel)
    yield from _send(api_server)

    yield from _heading("hostrouting check: the node must not start like this; the fix is part of the error")
    sick = run(phases.task("check")(partial(check_overlap, CONFIG, kernel)))
    yield from _indent(overlap_text(sick, width=width))

    yield from _heading("hostrouting apply, with the fix: next hop inherited from the default route")
    config = attrs.evolve(CONFIG, static_routes={"enabled": True, "routes": sick.remedy.routes})
    yield from _indent(routes_text(run(ConfigureStaticRoutes(config, host=host))))
    yield _answer(kernel)
    yield from _send(api_server)

    yield from _heading("hostrouting check, again")
    after = run(phases.task("check")(partial(check_overlap, config, kernel)))
    yield from _indent(overlap_text(after, width=width))

    yield from _heading("hostrouting apply, again; then remove: the table is as it was")
    yield from _indent(routes_text(run(ConfigureStaticRoutes(config, host=host))))
    yield from _indent(routes_text(run(RemoveHostRouting(host=host))))
    if kernel.routes(254) != before:
        raise HostRoutingError("the table isn't what it was before; please report this")
    yield f"{_INDENT}{good('✓')} every route that was there before is untouched"


def _build(kernel: Kernel) -> None:
    kernel.add_link("eth0")
    kernel.add_address("eth0", "10.1.0.4/24")
    default = Route(
        parse_cidr("0.0.0.0/0"),
        (NextHop("eth0", IPv4Address(GATEWAY)),),
        protocol=Protocol.DHCP,
        metric=100,
        source=IPv4Address("10.1.0.4"),
    )
    failures = kernel.add([default])
    if failures:
        raise HostRoutingError(f"can't build the demo's node: {failures[0].message}")
    for number in range(8):
        kernel.add_link(f"ib{number}")
        kernel.add_address(f"ib{number}", f"172.16.0.{10 + number}/16")


def _table(kernel: Kernel) -> Iterator[str]:
    routes = [str(route) for route in kernel.routes(254)]
    for line in (*routes[:3], dim("…"), routes[-1]):
        yield f"{_INDENT}{line}"


def _answer(kernel: Kernel) -> str:
    (answer,) = kernel.lookup([API_SERVER])
    if answer.route is None:
        return f"{_INDENT}{API_SERVER}  {bad('no route')}"
    mark = good if answer.route.devs == ("eth0",) else bad
    return f"{_INDENT}{API_SERVER}  {mark('by ' + ','.join(answer.route.devs))}  {dim(str(answer.route))}"


def _send(api_server: _ApiServer | None) -> Iterator[str]:
    if api_server is not None:
        outcome = good("arrives") if api_server.hears() else bad("is lost")
        yield f"{_INDENT}a datagram to {API_SERVER}:{API_PORT} {outcome}"


def _heading(text: str) -> Iterator[str]:
    yield ""
    yield head(text)


def _indent(text: str) -> Iterator[str]:
    for line in text.splitlines():
        yield f"{_INDENT}{line}"


class _ApiServer:
    """Listens behind eth0's cable, and only there; the InfiniBand fabric doesn't know it."""

    def __init__(self, kernel: NamespaceKernel) -> None:
        self._kernel = kernel
        self._socket: socket.socket | None = None

    def open(self) -> None:
        self._socket = self._kernel.in_fabric(self._listen)

    def _listen(self) -> socket.socket:
        self._kernel.add_address("eth0", f"{GATEWAY}/24")
        self._kernel.add_address("eth0", f"{API_SERVER}/32")
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")
        server.bind((str(API_SERVER), API_PORT))
        server.settimeout(LOST_AFTER_SECONDS)
        return server

    def hears(self) -> bool:
        """Whether a datagram that the node sends arrives."""
        assert self._socket is not None
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.sendto(b"hello", (str(API_SERVER), API_PORT))
            try:
                return self._socket.recv(16) == b"hello"
            except TimeoutError:
                return False

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
