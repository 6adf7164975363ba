"""Predict how the kernel would answer after changes to its routes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from hostrouting.kernel.forwarding import ForwardingBackend
from hostrouting.kernel.port import RouteBackend
from hostrouting.model.answers import Lookup
from hostrouting.model.family import IpAddress
from hostrouting.model.integer_prefixes import Prefix, PrefixSet, numbers
from hostrouting.model.routes import Route


class PlannedBackend(ForwardingBackend):
    """A read-only backend that answers as the kernel would after changes.

    A changed route affects only lookups of addresses inside the route's destination. For all other
    addresses, the live kernel answers, because a model lacks some facts, such as the sysctls that
    decide about sources.

    Args:
        model: a model of the kernel after the changes.
        live: the kernel before the changes.
        changed: the destinations of the changed routes.
    """

    def __init__(self, model: RouteBackend, live: RouteBackend, changed: Iterable[Prefix]) -> None:
        super().__init__(model)
        self._live, self._changed = live, PrefixSet(changed, model.family.bits)

    def _is_changed(self, address: IpAddress) -> bool:
        return self._changed.overlaps(int(address), int(address))

    def lookup(
        self,
        addresses: Sequence[IpAddress],
        *,
        source: IpAddress | None = None,
        is_tcp: bool = False,
    ) -> tuple[Lookup, ...]:
        """Return the best route to each address after the changes."""
        found: dict[IpAddress, Lookup] = {}
        for backend, asked in self._shared_out(addresses):
            found |= zip(asked, backend.lookup(asked, source=source, is_tcp=is_tcp), strict=True)
        return tuple(map(found.__getitem__, addresses))

    def lookup_by_attributes(
        self, addresses: Sequence[IpAddress]
    ) -> tuple[tuple[Route, Prefix] | None, ...]:
        """Return the same entries as ``lookup``, each with its prefix."""
        found = (lookup.route for lookup in self.lookup(addresses))
        return tuple(
            None if route is None else (route, numbers(route.destination)) for route in found
        )

    def sources(
        self, entries: Mapping[Route, Sequence[IpAddress]], *, is_tcp: bool = False
    ) -> dict[Route, tuple[IpAddress, ...]]:
        """Return the source addresses that each entry selects after the changes."""
        modelled = {
            entry: asked for entry, asked in entries.items() if any(map(self._is_changed, asked))
        }
        live = {entry: asked for entry, asked in entries.items() if entry not in modelled}
        found = self.inner.sources(modelled, is_tcp=is_tcp) | self._live.sources(
            live, is_tcp=is_tcp
        )
        return {entry: found[entry] for entry in entries}

    def sources_of_unrouted(
        self, addresses: Sequence[IpAddress], *, is_tcp: bool = False
    ) -> dict[IpAddress, IpAddress]:
        """Return the source addresses with which the kernel retries failed lookups after the changes."""
        found: dict[IpAddress, IpAddress] = {}
        for backend, asked in self._shared_out(addresses):
            found |= backend.sources_of_unrouted(asked, is_tcp=is_tcp)
        return found

    def _shared_out(
        self, addresses: Sequence[IpAddress]
    ) -> Iterator[tuple[RouteBackend, list[IpAddress]]]:
        """Yield each backend with the addresses to ask it about."""
        asked = dict.fromkeys(addresses)
        for backend, is_model in ((self.inner, True), (self._live, False)):
            if some := [address for address in asked if self._is_changed(address) is is_model]:
                yield backend, some

    @contextmanager
    def noticing_changes(self, inside: Sequence[Prefix], /) -> Iterator[Callable[[], bool]]:
        """Yield a function that returns whether the live kernel may have changed since this call.

        Raises:
            UnstableHostError: the kernel changed while the model was made.
        """
        with (
            self.inner.noticing_changes(inside),
            self._live.noticing_changes(inside) as may_have_changed,
        ):
            yield may_have_changed
