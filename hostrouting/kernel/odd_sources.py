"""Find out whether the kernel chooses other IPv6 source addresses than the model of a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv6Address
from itertools import islice, zip_longest

from hostrouting.kernel.port import Lookups, RouteBackend, Sent
from hostrouting.kernel.rules import kernel_rules
from hostrouting.kernel.snapshot import Ipv6State
from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.links import AddressLabel
from hostrouting.model.parsing import is_inside, reserved_blocks
from hostrouting.model.routes import Route, RouteType

# The maximum number of addresses to try in all, and roughly the maximum for the entries through one
# set of interfaces.
_TRIED_ADDRESSES = 1024
_TRIED_A_DEV = 128
# An example of a destination in the internet.
_GLOBAL = IPv6Address("2000::1")


def has_odd_sources(state: Ipv6State, backend: RouteBackend, model: Lookups) -> bool:
    """Return whether the kernel deviates from RFC 6724 in choosing sources.

    Args:
        state: the host's IPv6 state.
        backend: the kernel to query.
        model: the model of a snapshot with this state.
    """
    # The model may find other entries than the kernel if a rule has an unsupported selector, or if
    # a default rule was deleted. Then the entries' sources can't be compared.
    if any(rule.has_unknown for rule in state.rules) or {*state.rules} < {
        *kernel_rules(Family.IPV6)
    }:
        return False
    entries: dict[Route, list[IpAddress]] = {}
    unrouted: list[IpAddress] = []
    for found in backend.lookup(list(islice(dict.fromkeys(_tried(state)), _TRIED_ADDRESSES))):
        if found.route is None:
            unrouted.append(found.address)
        elif found.route.type is RouteType.UNICAST:
            entries.setdefault(found.route, []).append(found.address)
    sent: list[Sent] = [*entries.items(), *((None, [address]) for address in unrouted)]
    return backend.sources(sent) != model.sources(sent)


def _tried(state: Ipv6State) -> Iterator[IpAddress]:
    """Yield addresses to try: first near the host's own addresses, then some for each interface.

    The sysctls for source selection may differ from interface to interface.
    """
    # A sysctl may keep the kernel from choosing the source that has the most leading bits in common
    # with the destination. To notice that, try destinations that differ from a host's address only
    # in the last bit of the prefix.
    lasts = (
        (own.local, 1 << (128 - own.prefix_length)) for own in state.addresses if own.prefix_length
    )
    yield from _unreserved(IPv6Address(int(local) ^ last_bit) for local, last_bit in lasts)
    by_devs: dict[tuple[str, ...], dict[IpAddress, None]] = {}
    # Include discarding entries, such as blackholes. If a lookup matches one, the kernel selects a
    # source from all interfaces, and repeats the lookup with this source.
    for route in state.routes:
        tried = by_devs.setdefault(route.devs, {})
        if len(tried) < _TRIED_A_DEV:
            tried.update(dict.fromkeys(_tried_addresses(route.destination, state.labels or ())))
    turns = zip_longest(*by_devs.values())
    yield from (address for turn in turns for address in turn if address is not None)


def _tried_addresses(destination: IpNetwork, labels: Iterable[AddressLabel]) -> Iterator[IpAddress]:
    """Yield the first and last address of a destination and of each labelled prefix inside it.

    For a prefix that contains 2000::1, this address is yielded instead.
    """
    inside = (label.prefix for label in labels if is_inside(label.prefix, destination))
    for prefix in (destination, *inside):
        ends = (_GLOBAL,) if _GLOBAL in prefix else (prefix[0], prefix[-1])
        yield from _unreserved(ends)


def _unreserved(addresses: Iterable[IpAddress]) -> Iterator[IpAddress]:
    blocks = reserved_blocks(Family.IPV6)
    return (address for address in addresses if not any(address in block for block in blocks))
