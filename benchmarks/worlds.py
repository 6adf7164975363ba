"""New network namespaces and their routes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path

from benchmarks.measure import run
from hostrouting.kernel.namespace import NamespaceKernel, enter_namespace
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.kernel.port import Write, read_routes
from hostrouting.model.family import Family
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route, Route6, Table

SCRATCH = Path("/run/hostrouting-benchmarks")
"""A folder that exists only in the mount namespace of a run."""

# All routes share this tuple, as resolved routes do.
HOPS = (NextHop("eth0", IPv4Address("10.1.0.1")),)
_HOPS6 = (NextHop("eth0", IPv6Address("2001:db8:1::1")),)

# There is a /24 in each /22. A million of them fit below 127/8, and the default route serves the
# rest of each /22.
_FIRST, _STRIDE, _LENGTH = int(IPv4Address("16.0.0.0")), 1024, 24
_FIRST6, _STRIDE6, _LENGTH6 = int(IPv6Address("2a00::")), 1 << 66, 64

_INFINIBAND = 8
_FILL = 50_000


class WrongOutcomeError(Exception):
    """A contender that hasn't done its work."""


@cache
def routes_of(count: int) -> tuple[Route, ...]:
    """Return ``count`` routes via the default gateway."""
    return tuple(
        Route(IPv4Network((_FIRST + number * _STRIDE, _LENGTH)), HOPS) for number in range(count)
    )


@cache
def routes6_of(count: int) -> tuple[Route6, ...]:
    """Return ``count`` IPv6 routes via the default gateway."""
    metric = Family.IPV6.usual_metric
    return tuple(
        Route6(IPv6Network((_FIRST6 + number * _STRIDE6, _LENGTH6)), _HOPS6, metric=metric)
        for number in range(count)
    )


def cidrs_of(count: int, routes: int) -> tuple[IPv4Network, ...]:
    """Return ``count`` expected CIDRs, spread over the first routes.

    InfiniBand would shadow the first eight.
    """
    stride = max(1, routes // count) * _STRIDE
    fixed = [IPv4Network(str(route.destination)) for route in World.fixes[:count]]
    return (
        *fixed,
        *(IPv4Network((_FIRST + number * stride, 22)) for number in range(count - len(fixed))),
    )


def words_of(route: Route) -> str:
    """Return the arguments of ``ip route add`` for a route."""
    return f"{route.destination} {route.hops[0].words(Family.IPV4)} proto {route.protocol:d}"


def batch_file(verb: str, words: Sequence[str]) -> Path:
    """Write a file for ``ip -batch`` with a command on each line."""
    path = SCRATCH / f"batch-{verb}"
    path.write_text("".join(f"route {verb} {each}\n" for each in words))
    return path


def script(name: str, text: str) -> Path:
    """Write an executable file."""
    path = SCRATCH / name
    path.write_text(text)
    path.chmod(0o755)
    return path


class World(AbstractContextManager["World"]):
    """A new network namespace with only eth0 and its default route. The calling thread enters it.

    Args:
        has_default: whether there is a default route.
        has_infiniband: whether there are eight more interfaces with a connected /16 each, and a
            more specific route that fixes a /24 of each.
        fib: the routes that are there from the start.
        family: the family of the default route, of ``backend`` and of all routes that are filled in
            or expected.
    """

    default = Route(DEFAULT_DESTINATION, HOPS, protocol=Protocol.DHCP)
    default6 = Route6(Family.IPV6.any, _HOPS6, protocol=Protocol.DHCP, metric=1024)
    fixes = tuple(
        Route(IPv4Network(f"172.{16 + number}.1.0/24"), HOPS) for number in range(_INFINIBAND)
    )

    def __init__(
        self,
        *,
        has_default: bool = True,
        has_infiniband: bool = False,
        fib: Sequence[Route] = (),
        family: Family = Family.IPV4,
    ) -> None:
        enter_namespace()
        self._kernel = NamespaceKernel()
        self.backend = NetlinkBackend() if family is Family.IPV4 else NetlinkBackend6()
        self._given: list[Route] = []
        self._add_link("eth0", "10.1.0.4/24")
        if family is Family.IPV6:
            run("ip", "-6", "address", "add", "2001:db8:1::4/64", "dev", "eth0", "nodad")
        for number in range(_INFINIBAND if has_infiniband else 0):
            self._add_link(f"ib{number}", f"172.{16 + number}.0.4/16")
        default = self.default if family is Family.IPV4 else self.default6
        given = (*([default] if has_default else []), *(self.fixes if has_infiniband else []), *fib)
        self.fill(given)

    def _add_link(self, name: str, address: str) -> None:
        self._kernel.add_link(name)
        self._kernel.add_address(name, address)

    def fill(self, routes: Sequence[Route]) -> None:
        """Add routes, which ``expect`` then allows."""
        for start in range(0, len(routes), _FILL):
            if failures := self.backend.write(Write.ADD, routes[start : start + _FILL]):
                raise WrongOutcomeError(f"can't prepare a table: {failures[0]}")
        self._given += routes

    def expect(self, routes: Sequence[Route], read: Sequence[Route] | None = None) -> None:
        """Check that table main has these routes and those of ``fill``, and no others.

        Args:
            routes: the routes that the contender had to add. Their protocol doesn't matter.
            read: the entries of the table, or None to read them now.

        Raises:
            WrongOutcomeError: the table has different routes.
        """
        there = read_routes(self.backend, Table.MAIN) if read is None else read
        found = {
            (route.destination, route.metric, route.hops)
            for route in there
            if not route.is_connected
        }
        wanted = {
            (route.destination, route.metric, route.hops) for route in (*self._given, *routes)
        }
        if found != wanted:
            raise WrongOutcomeError(
                f"table main holds {len(found)} routes, "
                f"of {len(wanted)} wanted {len(found & wanted)}"
            )

    def __exit__(self, *_: object) -> None:
        # Delete the links now. Otherwise a kernel worker does it while the next contender runs.
        for link in self.backend.facts().links:
            if link.name != "lo":
                self._kernel.del_link(link.name)
