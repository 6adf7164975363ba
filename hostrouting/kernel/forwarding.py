"""A base class for backends that wrap another backend, for example to log or refuse calls."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from hostrouting.kernel.arguments import check_methods
from hostrouting.kernel.port import ChangeListener, Facts, RouteBackend, Sent, Write
from hostrouting.kernel.selection import EVERYTHING, Entries, Selection
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.integer_prefixes import Prefix
from hostrouting.model.lookups import Lookup, RouteFailure, RuleFailure
from hostrouting.model.routes import Route
from hostrouting.model.rules import Rule


class ForwardingBackend(RouteBackend):
    """A base class for wrappers, which forwards calls of ``RouteBackend`` to another backend.

    A subclass overrides the calls that it changes. The inner backend never calls the wrapper.

    Args:
        inner: the backend to forward to, of either address family.
    """

    def __init__(self, inner: RouteBackend) -> None:
        check_methods(inner, RouteBackend, "ForwardingBackend()")
        self.inner = inner

    @property
    def family(self) -> Family:
        return self.inner.family

    def facts(self) -> Facts:
        return self.inner.facts()

    def entries(self, wanted: Selection = EVERYTHING) -> Entries:
        return self.inner.entries(wanted)

    def lookup(
        self,
        addresses: Sequence[IpAddress],
        *,
        source: IpAddress | None = None,
        is_tcp: bool = False,
    ) -> tuple[Lookup, ...]:
        return self.inner.lookup(addresses, source=source, is_tcp=is_tcp)

    def sources(
        self,
        sent: Sequence[Sent],
        *,
        is_tcp: bool = False,
    ) -> tuple[tuple[IpAddress, ...], ...]:
        return self.inner.sources(sent, is_tcp=is_tcp)

    def write(self, change: Write, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
        return self.inner.write(change, routes)

    def write_rules(self, change: Write, rules: Sequence[Rule]) -> tuple[RuleFailure, ...]:
        return self.inner.write_rules(change, rules)

    def changes(
        self,
        inside: Sequence[Prefix] | None = None,
    ) -> AbstractContextManager[ChangeListener]:
        return self.inner.changes(inside)
