"""A recorded host as a routes backend that can be asked and not changed."""

from __future__ import annotations

import threading
from functools import cached_property
from typing import TYPE_CHECKING

from hostrouting.kernel.fib import Fib
from hostrouting.kernel.nexthops import with_hops
from hostrouting.model.errors import RouteError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from ipaddress import IPv4Address

    from hostrouting.kernel.snapshot import Snapshot
    from hostrouting.model.links import Address, Link
    from hostrouting.model.routes import Lookup, Route, RouteFailure
    from hostrouting.model.rules import Rule
    from phases import CancelScope

__all__ = ["SnapshotBackend"]


class SnapshotBackend:
    """A ``RouteBackend`` that answers as the kernel of a recorded host would have; threads may share it.

    Args:
        snapshot: the host.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._routes = with_hops(snapshot.routes, snapshot.nexthops)
        self._seen = threading.local()

    # --- reading -----------------------------------------------------------------------------------------------

    def links(self) -> tuple[Link, ...]:
        """All network interfaces, by index."""
        return self.snapshot.links

    def addresses(self) -> tuple[Address, ...]:
        """All IPv4 addresses of the host."""
        return self.snapshot.addresses

    def rules(self) -> tuple[Rule, ...]:
        """The policy rules in the order in which the kernel asked them."""
        return self.snapshot.rules

    def routes(self, table: int | None = None) -> tuple[Route, ...]:
        """The entries of a table, in the kernel's order; of every table, if none is named."""
        return tuple(route for route in self._routes if table is None or route.table == table)

    def lookup(self, addresses: Sequence[IPv4Address]) -> tuple[Lookup, ...]:
        """For each address the entry that wins for a packet of the host (mark 0, tos 0, uid 0, nothing bound)."""
        return tuple(map(self._fib.lookup, addresses))

    @cached_property
    def _fib(self) -> Fib:
        return Fib(self.snapshot.rules, self._routes)

    # --- writing -----------------------------------------------------------------------------------------------

    def add(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Refuse: what is recorded stays as it was."""
        return _refuse("add", routes)

    def replace(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Refuse: what is recorded stays as it was."""
        return _refuse("replace", routes)

    def delete(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Refuse: what is recorded stays as it was."""
        return _refuse("delete", routes)

    # --- waiting -----------------------------------------------------------------------------------------------

    def wait_for_change(self, scope: CancelScope, *, ways_only: bool = False) -> None:  # noqa: ARG002
        """Return at once on this thread's first call; then wait for the scope's end, since nothing ever changes.

        Args:
            scope: ends the wait.
            ways_only: makes no difference.

        Raises:
            phases.Cancelled, phases.TimedOut: the scope ended.
        """
        if getattr(self._seen, "is_seen", False):
            scope.wait(threading.Event())
        self._seen.is_seen = True


def _refuse(attempt: str, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
    if not routes:
        return ()
    raise RouteError(f"can't {attempt} {routes[0]}: this is a recorded host; do it on the host itself")
