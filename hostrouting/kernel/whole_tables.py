"""What a backend that reads whole tables anyway needn't write itself."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from hostrouting.model.prefixes import Prefix, PrefixSet, numbers
from hostrouting.model.routes import Route, RouteType, Scope, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence


def is_plain_by(route: Route, devs: Collection[str]) -> bool:
    """Whether ``RouteBackend.routes_except`` may pass over an entry by some interfaces.

    Args:
        route: its destination doesn't count.
        devs: names of interfaces.
    """
    is_plain = route.type is RouteType.UNICAST and route.tos == 0 and route.scope < Scope.LINK
    return is_plain and bool(route.devs) and set(route.devs) <= set(devs)


class WholeTables:
    """The selective reads of a ``RouteBackend``, made of ``routes``; derive from it."""

    if TYPE_CHECKING:

        def routes(self, table: int | None = None) -> tuple[Route, ...]:
            """As ``RouteBackend.routes``."""

    def routes_by_way(self, table: int) -> tuple[tuple[Route, Sequence[Prefix]], ...]:
        """The entries of a table in the kernel's order, each by itself."""
        return tuple((route, (numbers(route.destination),)) for route in self.routes(table))

    def default_routes(self) -> tuple[Route, ...]:
        """The entries of table main for 0.0.0.0/0, in the kernel's order."""
        return tuple(route for route in self.routes(Table.MAIN) if route.destination.prefixlen == 0)

    def routes_except(self, devs: Collection[str], *, inside: Sequence[Prefix] = ()) -> tuple[Route, ...]:
        """The entries of every table but the plain ones by some interfaces; of these, the ones inside some prefixes."""
        prefixes = PrefixSet(inside)
        return tuple(
            route
            for route in self.routes()
            if not is_plain_by(route, devs) or prefixes.covers(numbers(route.destination))
        )

    @contextmanager
    def noticing_changes(self) -> Iterator[Callable[[], bool]]:
        """While it is open, anything may have changed."""
        yield lambda: True
