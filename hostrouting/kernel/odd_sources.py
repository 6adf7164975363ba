"""Find out whether the kernel chooses IPv6 sources that the model of a snapshot doesn't know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv6Address
from itertools import islice, zip_longest

from hostrouting.kernel.port import Lookups, RouteBackend
from hostrouting.kernel.rules import kernel_rules
from hostrouting.kernel.snapshot import Ipv6State
from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.links import AddressLabel
from hostrouting.model.parsing import is_inside, reserved_blocks
from hostrouting.model.routes import Route, RouteType

# How many addresses to try to learn whether sources follow RFC 6724, at most so many for entries through one interface,
# and an address of the internet.
_TRIED_ADDRESSES, _TRIED_A_DEV, _GLOBAL = 1024, 128, IPv6Address("2000::1")


def has_odd_sources(state: Ipv6State, backend: RouteBackend, model: Lookups) -> bool:
    """Return whether the kernel deviates from RFC 6724 in choosing sources.

    Args:
        state: the host's entries and rules.
        backend: the kernel to query.
        model: the lookups in a snapshot of this state.
    """
    # On these hosts, the model may find other entries than the kernel, and a snapshot is doubted anyway.
    if any(rule.has_unknown for rule in state.rules) or {*state.rules} < {*kernel_rules(Family.IPV6)}:
        return False
    entries: dict[Route, list[IpAddress]] = {}
    unrouted: list[IpAddress] = []
    for found in backend.lookup(list(islice(dict.fromkeys(_tried(state)), _TRIED_ADDRESSES))):
        if found.route is None:
            unrouted.append(found.address)
        elif found.route.type is RouteType.UNICAST:
            entries.setdefault(found.route, []).append(found.address)
    return backend.sources(entries) != model.sources(entries) or (
        backend.sources_of_unrouted(unrouted) != model.sources_of_unrouted(unrouted)
    )


def _tried(state: Ipv6State) -> Iterator[IpAddress]:
    """Yield addresses to try: near the host's own, then some for each interface, which has its own sysctls."""
    # In a sysctl's favour, the kernel may pass over an address with a longer common prefix.
    lasts = ((own.local, 1 << (128 - own.prefix_length)) for own in state.addresses if own.prefix_length)
    yield from _unreserved(IPv6Address(int(local) ^ last_bit) for local, last_bit in lasts)
    by_devs: dict[tuple[str, ...], dict[IpAddress, None]] = {}
    # Discards count too: the kernel looks up their packets again, with a source that it selects for no interface.
    for route in state.routes:
        tried = by_devs.setdefault(route.devs, {})
        if len(tried) < _TRIED_A_DEV:
            tried.update(dict.fromkeys(_tried_addresses(route.destination, state.labels or ())))
    turns = zip_longest(*by_devs.values())
    yield from (address for turn in turns for address in turn if address is not None)


def _tried_addresses(destination: IpNetwork, labels: Iterable[AddressLabel]) -> Iterator[IpAddress]:
    """Yield an address of a prefix for each label that its addresses have, and one at each end."""
    inside = (label.prefix for label in labels if is_inside(label.prefix, destination))
    for prefix in (destination, *inside):
        ends = (_GLOBAL,) if _GLOBAL in prefix else (prefix[0], prefix[-1])
        yield from _unreserved(ends)


def _unreserved(addresses: Iterable[IpAddress]) -> Iterator[IpAddress]:
    blocks = reserved_blocks(Family.IPV6)
    return (address for address in addresses if not any(address in block for block in blocks))
