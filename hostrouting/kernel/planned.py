"""Predict how the kernel would answer after changes to its routes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from hostrouting.kernel.forwarding import ForwardingBackend
from hostrouting.kernel.port import ChangeListener, RouteBackend, Sent
from hostrouting.model.family import IpAddress
from hostrouting.model.integer_prefixes import Prefix, PrefixSet
from hostrouting.model.lookups import Lookup


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

    def sources(
        self, sent: Sequence[Sent], *, is_tcp: bool = False
    ) -> tuple[tuple[IpAddress, ...], ...]:
        """Return the source addresses that the kernel selects after the changes."""
        of_model = [any(map(self._is_changed, addresses)) for _, addresses in sent]
        modelled = [item for item, is_modelled in zip(sent, of_model, strict=True) if is_modelled]
        live = [item for item, is_modelled in zip(sent, of_model, strict=True) if not is_modelled]
        from_model = iter(self.inner.sources(modelled, is_tcp=is_tcp) if modelled else ())
        from_live = iter(self._live.sources(live, is_tcp=is_tcp) if live else ())
        return tuple(next(from_model if is_modelled else from_live) for is_modelled in of_model)

    def _shared_out(
        self, addresses: Sequence[IpAddress]
    ) -> Iterator[tuple[RouteBackend, list[IpAddress]]]:
        """Yield each backend with the addresses to ask it about."""
        asked = dict.fromkeys(addresses)
        for backend, is_model in ((self.inner, True), (self._live, False)):
            if some := [address for address in asked if self._is_changed(address) is is_model]:
                yield backend, some

    @contextmanager
    def changes(self, inside: Sequence[Prefix] | None = None) -> Iterator[ChangeListener]:
        """Listen for changes of the live kernel.

        Raises:
            UnstableHostError: the kernel changed while the model was made.
        """
        with self.inner.changes(inside), self._live.changes(inside) as changes:
            yield changes
