"""The H200 demo, in a throw-away network namespace or on an in-memory fake kernel.

The demo moves its own process into the namespace. The ``demo`` command therefore runs it in a child process, because a
process can't leave a user namespace.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from functools import partial
from ipaddress import IPv4Address
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
from hostrouting.kernel.port import Kernel
from hostrouting.model.errors import HostRoutingError
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route, Table
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.findings import OverlapReport
from hostrouting.routes.plan import RoutesReport
from hostrouting.tasks.configure import ConfigureStaticRoutes, RemoveHostRouting

_NODE = "node-7"
_API_SERVER = IPv4Address("172.16.1.1")
_INDENT = "   "

CONFIG = Config(route_overlap=RouteOverlap(["172.16.0.0/12", "10.96.0.0/12"], "STRICT"))


def main() -> int:
    """Run the demo and return the exit code; this moves the process into another network namespace."""
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
        width: the number of columns, or None if the output isn't a terminal.

    Raises:
        HostRoutingError: a step failed or had an unexpected result.
    """
    kernel: Kernel
    with tempfile.TemporaryDirectory(prefix="hostrouting-demo-") as root:
        try:
            enter_namespace()
            kernel = NamespaceKernel()
            _build(kernel)
            yield head(f"kernel: Linux {'.'.join(os.uname().release.split('.')[:2])} (network namespace)")
        except NamespaceError as error:
            kernel = FakeKernel()
            _build(kernel)
            yield head(f"kernel: in memory ({error})")
        host = Host(routes=kernel, units=FakeSystemd(), layout=Layout(root))
        yield from _tell(kernel, host, None if width is None else width - len(_INDENT))


def _tell(kernel: Kernel, host: Host, width: int | None) -> Iterator[str]:
    before = kernel.routes(Table.MAIN)

    yield _heading("A node comes up: eth0 has the default route, eight InfiniBand interfaces share 172.16.0.0/16")
    first, second, third, *_, last = map(str, before)
    yield _below("\n".join([first, second, third, dim("…"), last]))

    yield _heading(f"The cluster's network is in there too. Where does a packet to its API server {_API_SERVER} go?")
    yield _below(_answer(kernel))

    yield _heading("hostrouting check: the node must not start like this; the fix is part of the error")
    sick = _checked(CONFIG, kernel)
    yield _below(overlap_text(sick, width=width))

    yield _heading("hostrouting apply, with the fix: next hop inherited from the default route")
    config = attrs.evolve(CONFIG, static_routes={"enabled": True, "routes": sick.fix.routes})
    yield _routes(phases.run(ConfigureStaticRoutes(config, host=host)))
    yield _below(_answer(kernel))

    yield _heading("hostrouting check, again")
    yield _below(overlap_text(_checked(config, kernel), width=width))

    yield _heading("hostrouting apply, again; then remove: the table is as it was")
    yield _routes(phases.run(ConfigureStaticRoutes(config, host=host)))
    yield _routes(phases.run(RemoveHostRouting(host=host)))
    if kernel.routes(Table.MAIN) != before:
        raise HostRoutingError("the table isn't what it was before; please report this")
    yield _below(f"{good('✓')} every route that was there before is untouched")


def _checked(config: Config, kernel: Kernel) -> OverlapReport:
    report = phases.run(phases.task("check")(partial(check_overlap, config, kernel)))
    return attrs.evolve(report, host=_NODE)


def _heading(text: str) -> str:
    return f"\n{head(text)}"


def _routes(report: RoutesReport) -> str:
    """Return only the route changes, because the demo's files are temporary."""
    return _below(changed_text(report.plan, report.plan.changes))


def _below(text: str) -> str:
    return textwrap.indent(text, _INDENT)


def _build(kernel: Kernel) -> None:
    kernel.add_link("eth0")
    kernel.add_address("eth0", "10.1.0.4/24")
    hop, own = NextHop("eth0", IPv4Address("10.1.0.1")), IPv4Address("10.1.0.4")
    kernel.add([Route(DEFAULT_DESTINATION, (hop,), protocol=Protocol.DHCP, metric=100, source=own)])
    for number in range(8):
        kernel.add_link(f"ib{number}")
        kernel.add_address(f"ib{number}", f"172.16.0.{10 + number}/16")


def _answer(kernel: Kernel) -> str:
    """Return the kernel's route lookup for the API server's address."""
    (answer,) = kernel.lookup([_API_SERVER])
    if answer.route is None:
        raise HostRoutingError(f"there is no route to {_API_SERVER}")
    mark = good if answer.route.devs == ("eth0",) else bad
    return f"{_API_SERVER}  {mark('by ' + ','.join(answer.route.devs))}  {dim(str(answer.route))}"


def run() -> NoReturn:
    """Run ``main`` and exit with its exit code."""
    # SIGTERM raises KeyboardInterrupt, so that the temporary directory is removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
