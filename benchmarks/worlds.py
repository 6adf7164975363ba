"""Fresh network namespaces, and what is put into them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from hostrouting.kernel.namespace import NamespaceKernel, enter_namespace
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "GATEWAY",
    "HOPS",
    "SCRATCH",
    "Effort",
    "World",
    "WrongOutcomeError",
    "batch_file",
    "cidrs_of",
    "routes_of",
    "script",
]

# inside.py sees to it that this is nobody else's.
SCRATCH = Path("/run/hostrouting-benchmarks")

GATEWAY = IPv4Address("10.1.0.1")
# One tuple for all, as resolving makes it.
HOPS = (NextHop("eth0", GATEWAY),)

# A /24 in each /22: room for a million before 127/8, and each /22 has a part by the default route besides.
_FIRST, _STRIDE, _LENGTH = int(IPv4Address("16.0.0.0")), 1024, 24

_INFINIBAND = 8
_FILL = 50_000


class WrongOutcomeError(Exception):
    """A contender didn't do what it was measured for."""


@attrs.frozen
class Effort:
    """How much is done.

    Args:
        is_quick: whether it's enough to see that everything runs.
    """

    is_quick: bool = False

    def size(self, full: int) -> int:
        """A number of routes or CIDRs."""
        return min(full, 20) if self.is_quick else full

    def rounds(self, full: int = 5) -> int:
        """How often each contender runs."""
        return 1 if self.is_quick else full


@cache
def routes_of(count: int) -> tuple[Route, ...]:
    """That many routes by the default gateway."""
    return tuple(Route(IPv4Network((_FIRST + number * _STRIDE, _LENGTH)), HOPS) for number in range(count))


def cidrs_of(count: int, routes: int, *, is_clear: bool = False) -> tuple[IPv4Network, ...]:
    """That many expected CIDRs, spread over the first so many routes.

    Args:
        count: how many.
        routes: how many there are; each CIDR holds one of them, if there are as many.
        is_clear: whether none lies where InfiniBand would shadow it, but for a route that mends it; else a few do.
    """
    stride = max(1, routes // count) * _STRIDE
    mended = [] if is_clear else [route.destination for route in World.mends[:count]]
    return (*mended, *(IPv4Network((_FIRST + number * stride, 22)) for number in range(count - len(mended))))


def batch_file(verb: str, words: Sequence[str]) -> Path:
    """A file for ``ip -batch``, a command a line."""
    path = SCRATCH / "batch"
    path.write_text("".join(f"route {verb} {each}\n" for each in words))
    return path


def script(name: str, text: str) -> Path:
    """An executable file."""
    path = SCRATCH / name
    path.write_text(text)
    path.chmod(0o755)
    return path


class World(AbstractContextManager["World"]):
    """A fresh network namespace, which this thread enters: eth0 with the default route, and nothing else.

    Args:
        has_default: whether the default route is there.
        has_infiniband: whether there are eight more interfaces with a connected /16 each, and more specific routes
            that mend a /24 of each.
    """

    default = Route(DEFAULT_DESTINATION, HOPS, protocol=Protocol.DHCP)
    mends = tuple(Route(IPv4Network(f"172.{16 + number}.1.0/24"), HOPS) for number in range(_INFINIBAND))

    def __init__(self, *, has_default: bool = True, has_infiniband: bool = False) -> None:
        enter_namespace()
        self._kernel = NamespaceKernel()
        self.backend = NetlinkBackend()
        self._kernel.add_link("eth0")
        self._kernel.add_address("eth0", "10.1.0.4/24")
        self._given: list[Route] = []
        if has_default:
            self.fill([self.default])
        if has_infiniband:
            for number in range(_INFINIBAND):
                self._kernel.add_link(f"ib{number}")
                self._kernel.add_address(f"ib{number}", f"172.{16 + number}.0.4/16")
            self.fill(self.mends)

    def fill(self, routes: Sequence[Route]) -> None:
        """Add routes, and remember them."""
        for start in range(0, len(routes), _FILL):
            if failures := self.backend.add(routes[start : start + _FILL]):
                raise WrongOutcomeError(f"can't prepare a table: {failures[0]}")
        self._given += routes

    def expect(self, routes: Sequence[Route], read: Sequence[Route] | None = None) -> None:
        """See that table main holds these routes, what was filled in, and nothing else.

        Args:
            routes: that a contender was to add; who added them doesn't count.
            read: the table, if it has been read already.

        Raises:
            WrongOutcomeError: it doesn't.
        """
        there = self.backend.routes(Table.MAIN) if read is None else read
        found = {(route.destination, route.metric, route.hops) for route in there if not route.is_connected}
        wanted = {(route.destination, route.metric, route.hops) for route in (*self._given, *routes)}
        if found != wanted:
            raise WrongOutcomeError(
                f"table main holds {len(found)} routes, of {len(wanted)} wanted {len(found & wanted)}"
            )

    def __exit__(self, *_: object) -> None:
        # Now, and not in a worker of the kernel's while the next contender runs.
        for link in self.backend.links():
            if link.name != "lo":
                self._kernel.del_link(link.name)
