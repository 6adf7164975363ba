"""Strict parsers for addresses, prefixes and interface names.

The arithmetic is left to the standard library's ``ipaddress``. It accepts some input that must not end up in a boot
script (``10.0.0.0/255.0.0.0``, ``10.0.0.0``, ``/08``, whitespace, full-width digits), so these parsers reject such
input first. Each ``parse_*`` function raises ``ValueError`` with a message that starts with the rejected value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from socket import AF_INET, AF_INET6, inet_pton
from typing import Any, TypeVar

from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.prefixes import Prefix, numbers
from hostrouting.model.text import shown

# RFC 791/1122 (0/8), RFC 1122 (127/8), RFC 5771 (224/4), RFC 1112 (240/4). The kernel accepts routes to all of these
# (there is no check in fib_semantics.c), so only this check rejects a route that can never match a packet.
RESERVED = {
    IPv4Network("0.0.0.0/8"): "0.0.0.0/8, which means this host",
    IPv4Network("127.0.0.0/8"): "127.0.0.0/8, the loopback network",
    IPv4Network("224.0.0.0/3"): "224.0.0.0/3, which is multicast (224.0.0.0/4) or reserved (240.0.0.0/4)",
}

# RFC 4291: the unspecified and loopback addresses, IPv4-mapped addresses, link-local addresses, multicast.
RESERVED6 = {
    IPv6Network("::/127"): "::/127, which means this host",
    IPv6Network("::ffff:0:0/96"): "::ffff:0:0/96, which stands for IPv4 addresses",
    IPv6Network("fe80::/10"): "fe80::/10, which means nothing without an interface",
    IPv6Network("ff00::/8"): "ff00::/8, which is multicast",
}

Network = TypeVar("Network", bound=IpNetwork)

# The first octets of addresses in these blocks. Some IPv6 addresses outside of them have these octets, too.
_RESERVED_OCTETS = frozenset((0, 127, *range(224, 256)))

# Each length in its only valid form: ASCII digits without leading zeros, as in inet_pton(3). A dict lookup is several
# times faster than a regex, which matters for long configs.
_LENGTHS = {str(number): number for number in range(33)}
_LENGTHS6 = {f"/{number}": number for number in range(129)}
_WITHOUT_LENGTH = {"": 128}

_DEFAULT = "'{}' is the default route; expected a more specific prefix"
_IPV4_ONLY = "these tasks are IPv4-only"


def _text(value: object, kind: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not {kind}; expected a string")
    return value


def reserved_blocks(family: Family) -> tuple[IpNetwork, ...]:
    """Return a family's special-purpose blocks. Addresses in these blocks don't get a verdict."""
    return tuple(RESERVED) if family is Family.IPV4 else tuple(RESERVED6)


def reserved_block(network: IpNetwork) -> str | None:
    """Return a description of the special-purpose block that contains a network, if any."""
    blocks: Mapping[Any, str] = RESERVED if network.version == 4 else RESERVED6
    return next((words for block, words in blocks.items() if is_inside(network, block)), None)


def is_inside(network: IpNetwork, other: IpNetwork) -> bool:
    """Return whether a network is equal to or nested in another. Networks in different families never are."""
    is_of_family = network.version == other.version
    return is_of_family and network.prefixlen >= other.prefixlen and network.network_address in other


def parse_address(value: object) -> IPv4Address:
    """Parse an address in strict dotted-quad notation.

    Args:
        value: a string or an ``IPv4Address``.

    Returns:
        The address.

    Raises:
        ValueError: the value is invalid; the message says why.
    """
    if isinstance(value, IPv4Address):
        return IPv4Address(int(value))  # an IPv4Interface is also an IPv4Address, and prints its length
    text = _text(value, "an IPv4 address")
    if ":" in text:
        raise ValueError(f"{shown(text)} is not an IPv4 address; {_IPV4_ONLY}")
    try:
        return IPv4Address(inet_pton(AF_INET, text))
    except (OSError, ValueError):  # the text contains a NUL or half of a surrogate pair
        raise ValueError(f"{shown(text)} is not an IPv4 address; expected four numbers like 10.1.0.1") from None


def parse_any_unicast_address(value: str | IpAddress) -> IpAddress:
    """Parse a unicast host address of either family, rejecting special-purpose blocks.

    Raises:
        ValueError: the value is invalid; the message says why.
    """
    address = parse_any_address(value)
    if words := reserved_block(Family.of(address).network((int(address), address.max_prefixlen))):
        raise ValueError(f"'{address}' lies in {words}")
    return address


def parse_gateway(value: str | IpAddress) -> IpAddress:
    """Parse a unicast host address of either family, which may be link-local.

    Raises:
        ValueError: the value is invalid; the message says why.
    """
    address = parse_any_address(value)
    return address if address.is_link_local else parse_any_unicast_address(address)


def split_prefix(value: object) -> Prefix:
    """Parse a prefix in strict CIDR notation, keeping any host bits.

    Raises:
        ValueError: the value is invalid; the message says why.
    """
    text = _text(value, "an IPv4 prefix")
    quad, _, bits = text.partition("/")
    try:
        return int.from_bytes(inet_pton(AF_INET, quad), "big"), _LENGTHS[bits]
    except (OSError, ValueError, KeyError):
        why = _IPV4_ONLY if ":" in text else "expected an address and a length, such as 172.16.1.0/24"
        raise ValueError(f"{shown(text)} is not an IPv4 prefix; {why}") from None


def _refuse_reserved(network: Network) -> Network:
    if words := reserved_block(network):
        raise ValueError(f"'{network}' lies in {words}")
    return network


def parse_any_cidr(value: str | IpNetwork) -> IpNetwork:
    """Parse an expected CIDR in strict notation, masking host bits and rejecting special-purpose blocks.

    Args:
        value: a string such as ``172.16.0.0/16``, or a network.

    Returns:
        The masked network.

    Raises:
        ValueError: the value is invalid; the message says why.
    """
    if isinstance(value, str) and ":" in value:
        prefix = _split_ipv6(value, _LENGTHS6, "prefix; expected for example fd00:1::/48")
        value = IPv6Network(prefix, strict=False)
    if not isinstance(value, (IPv4Network, IPv6Network)):
        value = IPv4Network(split_prefix(value), strict=False)
    return _refuse_reserved(value)


def _split_ipv6(text: str, lengths: Mapping[str, int], what: str) -> Prefix:
    # Reject zones ("fe80::1%eth0") and embedded dotted quads, because addresses compared with the kernel's output must
    # have a canonical form.
    address, slash, length = text.partition("/")
    try:
        if "." not in address:
            return int.from_bytes(inet_pton(AF_INET6, address), "big"), lengths[slash + length]
    except (OSError, ValueError, KeyError):
        pass
    what += ", without a dotted quad (write IPv4 alone, such as 10.1.0.0/16)" if "." in text else ""
    raise ValueError(f"{shown(text)} {'has a zone' if '%' in text else f'is not an IPv6 {what}'}")


def parse_any_address(value: str | IpAddress) -> IpAddress:
    """Parse an IPv4 address in strict dotted-quad notation or an IPv6 address without a zone.

    Raises:
        ValueError: the value is invalid; the message says why.
    """
    if isinstance(value, IPv6Address):
        return IPv6Address(int(value))
    if isinstance(value, str) and ":" in value:
        return IPv6Address(_split_ipv6(value, _WITHOUT_LENGTH, "address; expected for example fd00:1::20")[0])
    return parse_address(value)


def parse_any_prefix(value: str | IpNetwork) -> IpNetwork:
    """Parse a route's destination in strict CIDR notation, without host bits.

    The default route and special-purpose blocks are rejected.

    Args:
        value: a string such as ``172.16.1.0/24``, or a network.

    Returns:
        The network.

    Raises:
        ValueError: the value is invalid. If it has host bits set, the message suggests the masked prefix.
    """
    made: type[IpNetwork] = IPv4Network
    if isinstance(value, str) and ":" in value:
        prefix, made = _split_ipv6(value, _LENGTHS6, "prefix; expected for example fd00:1::/64"), IPv6Network
    elif isinstance(value, (IPv4Network, IPv6Network)):
        prefix, made = numbers(value), type(value)
    else:
        prefix = split_prefix(value)
    try:
        network = made(prefix)
    except ValueError:
        raise ValueError(f"{shown(value)} has host bits set; did you mean {made(prefix, strict=False)}?") from None
    number, length = prefix
    if length == 0:
        raise ValueError(_DEFAULT.format(network))
    return _refuse_reserved(network) if number >> (network.max_prefixlen - 8) in _RESERVED_OCTETS else network


def parse_device(value: str) -> str:
    """Parse a network interface name: 1-15 characters from ``[A-Za-z0-9_.-]``, but not ``.`` or ``..``.

    The kernel is more permissive: ``dev_valid_name`` in net/core/dev.c only rejects ``/``, ``:`` and whitespace. Other
    characters are rejected here so that they never end up in a shell script.

    Raises:
        ValueError: the value is invalid; the message says why.
    """
    text = _text(value, "an interface name")
    if text in (".", "..") or not re.fullmatch(r"[A-Za-z0-9_.-]{1,15}", text):
        raise ValueError(f"{shown(text)} is not an interface name; expected 1 to 15 characters of A-Z a-z 0-9 _ . -")
    return text
