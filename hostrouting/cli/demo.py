"""The H200 demo, in a throw-away network namespace or on an in-memory fake kernel.

The demo moves its own process into a namespace, and a process can't leave a user namespace. So the
command ``demo`` runs ``main`` in a child process.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from itertools import groupby
from typing import NoReturn

import attrs

import phases
from hostrouting.boot.fake_systemd import FakeSystemd
from hostrouting.boot.host import Host
from hostrouting.boot.layout import Layout
from hostrouting.cli.changes import changed_text
from hostrouting.cli.output import OutputError, bad, columns, complain, dim, good, head, say
from hostrouting.cli.report import overlap_text
from hostrouting.config.routing import Config, RouteOverlap
from hostrouting.kernel.memory import FakeKernel
from hostrouting.kernel.namespace import NamespaceError, NamespaceKernel, enter_namespace
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.kernel.port import Kernel, RouteBackend, Write, read_routes
from hostrouting.model.errors import HostRoutingError, RouteError
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route, Route6, Table
from hostrouting.overlap.findings import OverlapReport
from hostrouting.routes.plan import RoutesReport
from hostrouting.tasks.configure import ConfigureStaticRoutes, RemoveHostRouting
from hostrouting.tasks.queries import check

_NODE = "node-7"
_INDENT = "   "

_CIDRS = {Family.IPV4: ["172.16.0.0/12", "10.96.0.0/12"], Family.IPV6: ["fd00:172::/32"]}
_API_SERVERS: dict[Family, IpAddress] = {
    Family.IPV4: IPv4Address("172.16.1.1"),
    Family.IPV6: IPv6Address("fd00:172:16::1"),
}
_SHARED = {Family.IPV4: "172.16.0.0/16", Family.IPV6: "fd00:172:16::/64"}
_ON_IB0 = IPv4Address("172.16.0.10")
_NEIGHBOUR = IPv4Address("172.16.5.5")

_PORT = 6443
# Without a reply, give up after this long.
_CONNECT_SECONDS = 3.0


def main() -> int:
    """Run the demo in a network namespace of its own, and return the exit code."""
    try:
        for part in story(columns(sys.stdout)):
            say(part)
    except (HostRoutingError, OutputError) as error:
        complain(f"hostrouting demo: {error}")
        return 1
    except KeyboardInterrupt:
        return 1
    return 0


def story(width: int | None) -> Iterator[str]:
    """Run the demo, yielding the output of each step when it is done.

    Args:
        width: the number of columns; None if the output isn't a terminal.

    Raises:
        HostRoutingError: a step failed or had an unexpected result.
    """
    kernel: Kernel
    routes6: RouteBackend | None = None
    with (
        tempfile.TemporaryDirectory(prefix="hostrouting-demo-") as root,
        ExitStack() as servers,
    ):
        try:
            enter_namespace()
            kernel = NamespaceKernel()
            _build(kernel)
            yield head(
                f"kernel: Linux {'.'.join(os.uname().release.split('.')[:2])} (network namespace)"
            )
        except NamespaceError as error:
            kernel = FakeKernel()
            _build(kernel)
            yield head(f"kernel: in memory ({error.clause})")
        if isinstance(kernel, NamespaceKernel):
            for server in _start_servers(kernel):
                servers.enter_context(server)
            try:
                routes6 = _build6(kernel)
            except RouteError as error:
                yield f"without IPv6: {error.clause}"
        host = Host(
            routes=kernel,
            units=FakeSystemd(),
            layout=Layout(root),
            routes6=routes6,
        )
        yield from _tell(host, None if width is None else width - len(_INDENT))


def _tell(host: Host, width: int | None) -> Iterator[str]:
    kernels = [host.routes] if host.routes6 is None else [host.routes, host.routes6]
    families = [kernel.family for kernel in kernels]
    cidrs = [cidr for family in families for cidr in _CIDRS[family]]
    config = Config(route_overlap=RouteOverlap(cidrs, "STRICT"))
    before = [*map(_state, kernels)]

    shared = " and ".join(_SHARED[family] for family in families)
    yield _heading(f"A node comes up: eth0 has the default route, ib0 to ib7 share {shared}")
    for kernel in kernels:
        yield _below("\n".join(_first_and_last(read_routes(kernel, Table.MAIN))))

    yield _heading(
        "The cluster's network is in there too. Where do packets to its API server go, "
        "and InfiniBand's?"
    )
    yield _lookups(kernels)

    yield _heading(
        "hostrouting check: the node must not start like this; the fix is part of the error"
    )
    sick = _checked(config, host)
    yield _below(overlap_text(sick, width=width))

    yield _heading(
        "hostrouting apply, with the fix: eth0 leads to the cluster, and InfiniBand keeps its own"
    )
    static = {"enabled": True, "routes": sick.fix.routes, "keep": sick.fix.keep}
    config = attrs.evolve(config, static_routes=static)
    yield _routes(phases.run(ConfigureStaticRoutes(config, host=host)))
    yield _lookups(kernels)

    yield _heading("hostrouting check, again")
    yield _below(overlap_text(_checked(config, host), width=width))

    yield _heading("hostrouting apply, again; then remove: all is as it was")
    yield _routes(phases.run(ConfigureStaticRoutes(config, host=host)))
    yield _routes(phases.run(RemoveHostRouting(host=host)))
    if [*map(_state, kernels)] != before:
        raise HostRoutingError("the kernel isn't as it was before; please report this")
    yield _below(f"{good('✓')} every route and rule is as it was before")


def _checked(config: Config, host: Host) -> OverlapReport:
    return attrs.evolve(check(config, host=host), host=_NODE)


def _first_and_last(routes: Sequence[Route]) -> list[str]:
    """Return the default route, and the shared network's first and last route."""
    default, *_ = (str(route) for route in routes if route.destination.prefixlen == 0)
    first, *_, last = (str(route) for route in routes if str(route.destination) in _SHARED.values())
    return [default, first, dim("…"), last]


def _heading(text: str) -> str:
    return f"\n{head(text)}"


def _state(kernel: RouteBackend) -> tuple[object, ...]:
    """Return the rules, and the routes of table main and of our side tables."""
    routes = (
        route
        for route in read_routes(kernel)
        if route.table == Table.MAIN or route.is_in_side_table
    )
    return (kernel.facts().rules, *routes)


def _routes(report: RoutesReport) -> str:
    """Return the changes in the kernel as text, without the demo's files, which are temporary.

    Of lines that only differ in their numbers, the text contains the first and the last.
    """
    lines = changed_text(report.plan, report.plan.changes, is_verbose=True).split("\n")
    shown: list[str] = []
    for _, group in groupby(lines, key=partial(re.sub, r"\d+", "0")):
        first, *others = group
        shown.append(first)
        if len(others) > 1:
            shown.append(dim("…"))
        shown += others[-1:]
    return _below("\n".join(shown))


def _below(text: str) -> str:
    return textwrap.indent(text, _INDENT)


def _build(kernel: Kernel) -> None:
    kernel.add_link("eth0")
    kernel.add_address("eth0", "10.1.0.4/24")
    default = Route(
        DEFAULT_DESTINATION,
        (NextHop("eth0", IPv4Address("10.1.0.1")),),
        protocol=Protocol.DHCP,
        metric=100,
        source=IPv4Address("10.1.0.4"),
    )
    kernel.write(Write.ADD, [default])
    for number in range(8):
        kernel.add_link(f"ib{number}")
        kernel.add_address(f"ib{number}", f"172.16.0.{10 + number}/16")


def _build6(kernel: NamespaceKernel) -> RouteBackend:
    """Give the node IPv6 addresses and an IPv6 default route, and return the IPv6 backend.

    Raises:
        RouteError: IPv6 is disabled.
    """
    kernel.add_address("eth0", "fd00:10:1::4/64")
    for number in range(8):
        kernel.add_address(f"ib{number}", f"fd00:172:16::{10 + number}/64")
    hop = NextHop("eth0", IPv6Address("fd00:10:1::1"))
    default = Route6(IPv6Network("::/0"), (hop,), protocol=Protocol.RA, metric=1024)
    backend = NetlinkBackend6()
    backend.write(Write.ADD, [default])
    return backend


def _lookups(kernels: Sequence[RouteBackend]) -> str:
    """Return the lookups for each family's API server, and for InfiniBand's own packets.

    On a real kernel, also return which server answers each connection.
    """
    kernel, *_ = kernels
    lines = [_lookup(each, _API_SERVERS[each.family], None, "eth0") for each in kernels]
    lines.append(_lookup(kernel, _NEIGHBOUR, _ON_IB0, "ib0"))
    if isinstance(kernel, NamespaceKernel):
        lines += _connections(kernel)
    return _below("\n".join(lines))


def _lookup(kernel: RouteBackend, address: IpAddress, source: IpAddress | None, dev: str) -> str:
    (found,) = kernel.lookup([address], source=source)
    if found.route is None:
        raise HostRoutingError(f"there is no route to {address}")
    mark = good if found.route.devs == (dev,) else bad
    packet = f"{address}" if source is None else f"{address} from {source}"
    return f"{packet:27}  {mark('by ' + ','.join(found.route.devs))}  {dim(str(found.route))}"


# --- connections on a real kernel -----------------------------------------------------------------


def _start_servers(kernel: NamespaceKernel) -> Iterator[socket.socket]:
    """Yield servers: the cluster's behind eth0, a neighbour's on InfiniBand, and the node's own."""
    api_server = _API_SERVERS[Family.IPV4]

    def build() -> list[socket.socket]:
        kernel.add_address("eth0", "10.1.0.1/24")
        kernel.add_address("eth0", f"{api_server}/32")
        kernel.add_address("ib0", f"{_NEIGHBOUR}/16")
        return [_listen(api_server, "eth0"), _listen(_NEIGHBOUR, "ib0")]

    yield from kernel.in_fabric(build)
    yield _listen(_ON_IB0, "")


def _listen(address: IpAddress, dev: str) -> socket.socket:
    """Return a server that accepts packets through one interface only, or through any."""
    server = _socket(dev)
    server.bind((str(address), _PORT))
    server.listen()
    return server


def _connections(kernel: NamespaceKernel) -> Iterator[str]:
    """Yield a line for each host that the node should be connected with."""
    api_server = _API_SERVERS[Family.IPV4]
    is_answering = _connects(None, api_server)
    yield _talk(is_answering, f"the API server {api_server}", "answers", "doesn't answer")

    answers = _connects(_ON_IB0, _NEIGHBOUR)
    is_answered = kernel.in_fabric(lambda: _connects(_NEIGHBOUR, _ON_IB0, "ib0"))
    yield _talk(
        answers and is_answered,
        f"the neighbour {_NEIGHBOUR} on InfiniBand",
        "answers, and is answered",
        "doesn't answer, or isn't answered",
    )


def _talk(is_connected: bool, host: str, verb: str, otherwise: str) -> str:
    return f"{good('✓')} {host} {verb}" if is_connected else f"{bad('✗')} {host} {otherwise}"


def _connects(source: IpAddress | None, address: IpAddress, dev: str = "") -> bool:
    """Return whether a TCP connection is made, which takes packets in both directions."""
    with _socket(dev) as client:
        client.settimeout(_CONNECT_SECONDS)
        client.bind(("" if source is None else str(source), 0))
        try:
            client.connect((str(address), _PORT))
        except OSError:
            return False
        return True


def _socket(dev: str) -> socket.socket:
    made = socket.socket()
    if dev:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, dev.encode())
    return made


def run() -> NoReturn:
    """Run ``main`` and exit with its exit code."""
    # SIGTERM raises KeyboardInterrupt. The temporary directory is then removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
