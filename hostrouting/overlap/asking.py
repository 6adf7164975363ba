"""Which look-ups a socket of this host makes for an address: all of them are to go right.

A datagram of no connection goes by the first look-up. Whatever connects is looked up again, from the source that the
first answer chose (ip_route_connect in include/net/route.h), which matters where a policy rule asks for a source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

from hostrouting.kernel.nexthops import sources

if TYPE_CHECKING:
    from collections.abc import Sequence
    from ipaddress import IPv4Address

    from hostrouting.model.links import Address
    from hostrouting.model.routes import Lookup
    from hostrouting.model.rules import Rule


@attrs.frozen
class Answer:
    """What a look-up said.

    Args:
        lookup: the answer.
        source: which it was asked from; None: the first look-up, which chooses one.
        is_tcp: whether it was TCP's, else UDP's.
    """

    lookup: Lookup
    source: IPv4Address | None = None
    is_tcp: bool = False


class _LookUp(Protocol):
    def __call__(
        self, addresses: Sequence[IPv4Address], *, source: IPv4Address | None = None, is_tcp: bool = False
    ) -> Sequence[Lookup]: ...


def ask(
    addresses: Sequence[IPv4Address], rules: Sequence[Rule], own: Sequence[Address], look_up: _LookUp
) -> dict[IPv4Address, tuple[Answer, ...]]:
    """Make every look-up that a socket may make, and none that the rules have no use for.

    Args:
        addresses: to send to.
        rules: of the host; without any for a source there is no second look-up, without any for a protocol none of TCP.
        own: the host's addresses.
        look_up: ``RouteBackend.lookup``, or a model of it.

    Returns:
        For each address the answers: those of UDP first, of a protocol first the one without a source.

    Raises:
        RouteError: the kernel can't be asked.
    """
    has_source = any(rule.source is not None for rule in rules)
    has_protocol = any(rule.ip_protocol and not rule.has_ports for rule in rules)
    found: dict[IPv4Address, list[Answer]] = {address: [] for address in addresses}
    for is_tcp in (False, True) if has_protocol else (False,):
        by_source: dict[IPv4Address, list[IPv4Address]] = {}
        for lookup in look_up(addresses, is_tcp=is_tcp):
            found[lookup.address].append(Answer(lookup, None, is_tcp))
            if has_source and lookup.route is not None:
                for source in sources(lookup.route, own):
                    by_source.setdefault(source, []).append(lookup.address)
        for source, asked in by_source.items():
            for lookup in look_up(asked, source=source, is_tcp=is_tcp):
                found[lookup.address].append(Answer(lookup, source, is_tcp))
    return {address: tuple(answers) for address, answers in found.items()}
