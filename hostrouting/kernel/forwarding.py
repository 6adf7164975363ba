"""A base class for backends that wrap another backend, for example to log, count or refuse calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager

from hostrouting.kernel.nexthops import Router
from hostrouting.kernel.port import RouteBackend
from hostrouting.model.answers import Lookup, RouteFailure
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.integer_prefixes import Prefix
from hostrouting.model.links import Address, AddressLabel, Link
from hostrouting.model.routes import Route
from hostrouting.model.rules import Rule
from phases import CancelScope


class ForwardingBackend:
    """A base class for wrappers, which forwards every call of ``RouteBackend`` to another backend.

    A subclass overrides what it changes. All changes to routes go through ``add``, ``replace`` and
    ``delete``. The inner backend never calls the wrapper: overriding ``routes``, for example,
    doesn't affect ``default_routes``.

    Args:
        inner: the backend to forward to, of either address family.
    """

    def __init__(self, inner: RouteBackend) -> None:
        self.inner = inner

    @property
    def family(self) -> Family:
        """Return the inner backend's address family."""
        return self.inner.family

    # --- reads ------------------------------------------------------------------------------------

    def links(self) -> tuple[Link, ...]:
        """Forward to ``RouteBackend.links``."""
        return self.inner.links()

    def addresses(self) -> tuple[Address, ...]:
        """Forward to ``RouteBackend.addresses``."""
        return self.inner.addresses()

    def rules(self) -> tuple[Rule, ...]:
        """Forward to ``RouteBackend.rules``."""
        return self.inner.rules()

    def routes(self, table: int | None = None) -> tuple[Route, ...]:
        """Forward to ``RouteBackend.routes``."""
        return self.inner.routes(table)

    def routes_by_attributes(self, table: int) -> tuple[tuple[Route, Sequence[Prefix]], ...]:
        """Forward to ``RouteBackend.routes_by_attributes``."""
        return self.inner.routes_by_attributes(table)

    def default_routes(self) -> tuple[Route, ...]:
        """Forward to ``RouteBackend.default_routes``."""
        return self.inner.default_routes()

    def our_routes(self) -> tuple[Route, ...]:
        """Forward to ``RouteBackend.our_routes``."""
        return self.inner.our_routes()

    def routes_except(
        self,
        devs: Collection[str],
        *,
        inside: Sequence[Prefix] = (),
        sources: Collection[IpAddress] = (),
    ) -> tuple[Route, ...]:
        """Forward to ``RouteBackend.routes_except``."""
        return self.inner.routes_except(devs, inside=inside, sources=sources)

    def silent_routers(self) -> frozenset[Router]:
        """Forward to ``RouteBackend.silent_routers``."""
        return self.inner.silent_routers()

    def address_labels(self) -> tuple[AddressLabel, ...]:
        """Forward to ``RouteBackend.address_labels``."""
        return self.inner.address_labels()

    # --- lookups ----------------------------------------------------------------------------------

    def lookup(
        self,
        addresses: Sequence[IpAddress],
        *,
        source: IpAddress | None = None,
        is_tcp: bool = False,
    ) -> tuple[Lookup, ...]:
        """Forward to ``RouteBackend.lookup``."""
        return self.inner.lookup(addresses, source=source, is_tcp=is_tcp)

    def lookup_by_attributes(
        self, addresses: Sequence[IpAddress]
    ) -> tuple[tuple[Route, Prefix] | None, ...]:
        """Forward to ``RouteBackend.lookup_by_attributes``."""
        return self.inner.lookup_by_attributes(addresses)

    def sources(
        self, entries: Mapping[Route, Sequence[IpAddress]], *, is_tcp: bool = False
    ) -> dict[Route, tuple[IpAddress, ...]]:
        """Forward to ``RouteBackend.sources``."""
        return self.inner.sources(entries, is_tcp=is_tcp)

    def sources_of_unrouted(
        self, addresses: Sequence[IpAddress], *, is_tcp: bool = False
    ) -> dict[IpAddress, IpAddress]:
        """Forward to ``RouteBackend.sources_of_unrouted``."""
        return self.inner.sources_of_unrouted(addresses, is_tcp=is_tcp)

    # --- writes -----------------------------------------------------------------------------------

    def add(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Forward to ``RouteBackend.add``."""
        return self.inner.add(routes)

    def replace(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Forward to ``RouteBackend.replace``."""
        return self.inner.replace(routes)

    def delete(self, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        """Forward to ``RouteBackend.delete``."""
        return self.inner.delete(routes)

    # --- changes by others ------------------------------------------------------------------------

    def noticing_changes(
        self, inside: Sequence[Prefix], /
    ) -> AbstractContextManager[Callable[[], bool]]:
        """Forward to ``RouteBackend.noticing_changes``."""
        return self.inner.noticing_changes(inside)

    def wait_for_change(self, scope: CancelScope) -> None:
        """Forward to ``RouteBackend.wait_for_change``."""
        self.inner.wait_for_change(scope)
