"""Strict parsers for addresses, prefixes and interface names.

The standard library's ``ipaddress`` does the arithmetic. It accepts some text that a boot script must not get
(``10.0.0.0/255.0.0.0``, ``10.0.0.0``, ``/08``, white space, full-width digits), so such text is refused here first.
Every ``parse_*`` raises ``ValueError`` with a sentence that starts with the refused value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from socket import AF_INET, inet_pton
from typing import TypeVar

from hostrouting.model.prefixes import Prefix, numbers
from hostrouting.model.text import shown

# RFC 791/1122 (0/8), RFC 1122 (127/8), RFC 5771 (224/4), RFC 1112 (240/4). The kernel accepts routes for all of these
# (fib_semantics.c has no such check), so only this check refuses a route that can never carry a packet.
RESERVED = {
    IPv4Network("0.0.0.0/8"): "0.0.0.0/8, which means this host",
    IPv4Network("127.0.0.0/8"): "127.0.0.0/8, the loopback network",
    IPv4Network("224.0.0.0/3"): "224.0.0.0/3, which is multicast (224.0.0.0/4) or reserved (240.0.0.0/4)",
}

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network
Made = TypeVar("Made")

# The first octets of all addresses in these blocks.
_RESERVED_OCTETS = frozenset((0, 127, *range(224, 256)))

# The only accepted spelling of each length, as in inet_pton(3), without leading zeros or other digits. This is several
# times as fast as a pattern, which matters because configs are long.
_LENGTHS = {str(number): number for number in range(33)}

_IPV4_ONLY = "these tasks are IPv4-only"


def _text(value: object, kind: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not {kind}; expected a string")
    return value


def reserved_block(network: IPv4Network) -> str | None:
    """Return a text about the special-purpose block that contains all of a network, or None if there is none."""
    return next((words for block, words in RESERVED.items() if network.subnet_of(block)), None)


def parse_address(value: object) -> IPv4Address:
    """Read an address in strict dotted-quad form.

    Args:
        value: the text, or an ``IPv4Address``.

    Returns:
        The address.

    Raises:
        ValueError: the value is anything else; the message says what is wrong.
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


def parse_unicast_address(value: str | IPv4Address) -> IPv4Address:
    """Read an address that a host can have, which isn't in 0/8, 127/8, 224/4 or 240/4.

    Raises:
        ValueError: the value is anything else; the message says what is wrong.
    """
    address = parse_address(value)
    if int(address) >> 24 in _RESERVED_OCTETS:
        raise ValueError(f"'{address}' lies in {reserved_block(IPv4Network(address))}")
    return address


def split_prefix(value: object) -> Prefix:
    """Read a prefix in strict CIDR form, and keep its host bits.

    Raises:
        ValueError: the value is anything else; the message says what is wrong.
    """
    text = _text(value, "an IPv4 prefix")
    quad, _, bits = text.partition("/")
    try:
        return int.from_bytes(inet_pton(AF_INET, quad), "big"), _LENGTHS[bits]
    except (OSError, ValueError, KeyError):
        why = _IPV4_ONLY if ":" in text else "expected an address and a length, such as 172.16.1.0/24"
        raise ValueError(f"{shown(text)} is not an IPv4 prefix; {why}") from None


def _refuse_reserved(network: IPv4Network) -> IPv4Network:
    if words := reserved_block(network):
        raise ValueError(f"'{network}' lies in {words}")
    return network


def parse_prefix(value: str | IPv4Network) -> IPv4Network:
    """Read the destination of a route in strict CIDR form, without host bits.

    The default route and special blocks are refused.

    Args:
        value: text such as ``172.16.1.0/24``, or an ``IPv4Network``.

    Returns:
        The network.

    Raises:
        ValueError: the value is anything else. If it has host bits, the message names the masked prefix.
    """
    number, length = numbers(value) if isinstance(value, IPv4Network) else split_prefix(value)
    if number & (0xFFFFFFFF >> length):
        masked = IPv4Network((number, length), strict=False)
        raise ValueError(f"'{IPv4Address(number)}/{length}' has host bits set; did you mean {masked}?")
    if length == 0:
        raise ValueError("'0.0.0.0/0' is the default route; these tasks install only more specific ones")
    network = value if isinstance(value, IPv4Network) else IPv4Network((number, length))
    return _refuse_reserved(network) if number >> 24 in _RESERVED_OCTETS else network


def parse_cidr(value: str | IPv4Network) -> IPv4Network:
    """Read an expected CIDR in strict form; mask its host bits, and refuse it if it lies inside a special block.

    Args:
        value: text such as ``172.16.0.0/16``, or an ``IPv4Network``.

    Returns:
        The masked network.

    Raises:
        ValueError: the value is anything else; the message says what is wrong.
    """
    if not isinstance(value, IPv4Network):
        value = IPv4Network(split_prefix(value), strict=False)
    return _refuse_reserved(value)


def _ipv6(text: str, form: str, make: Callable[[str], Made], what: str) -> Made:
    # A zone ("fe80::1%eth0") or a mapped dotted quad is refused, because an address that is compared with the kernel's
    # text must have only one spelling.
    try:
        if re.fullmatch(form, text):
            return make(text)
    except ValueError:
        pass
    raise ValueError(f"{shown(text)} {'has a zone' if '%' in text else f'is not an IPv6 {what}'}")


def parse_any_address(value: str | IpAddress) -> IpAddress:
    """Read an address of either family: IPv4 in strict dotted-quad form, or IPv6 without a zone.

    Raises:
        ValueError: the value is anything else; the message says what is wrong.
    """
    if isinstance(value, IPv6Address):
        return IPv6Address(int(value))
    if isinstance(value, str) and ":" in value:
        return _ipv6(value, r"[0-9A-Fa-f:]+", IPv6Address, "address; expected for example fd00:1::20")
    return parse_address(value)


def parse_any_prefix(value: str | IpNetwork) -> IpNetwork:
    """Read a prefix of either family in strict CIDR form, without host bits.

    Prefixes of length 0 and the special blocks of IPv4 are refused.

    Raises:
        ValueError: the value is anything else; the message says what is wrong.
    """
    if isinstance(value, str) and ":" in value:
        form = r"[0-9A-Fa-f:]+/(?:0|[1-9][0-9]{0,2})"
        interface = _ipv6(value, form, IPv6Interface, "prefix; expected for example fd00:1::/64")
        if interface.ip != interface.network.network_address:
            raise ValueError(f"{shown(value)} has host bits set; did you mean {interface.network}?")
        value = interface.network
    if str(value) in ("0.0.0.0/0", "::/0"):
        raise ValueError(f"'{value}' is every address")
    return value if isinstance(value, IPv6Network) else parse_prefix(value)


def parse_device(value: str) -> str:
    """Read the name of a network interface, which has 1-15 characters of ``[A-Za-z0-9_.-]`` and isn't ``.`` or ``..``.

    The kernel allows more: ``dev_valid_name`` in net/core/dev.c refuses only ``/``, ``:`` and white space. Other
    characters are refused here because they must not get into a shell script.

    Raises:
        ValueError: the value is anything else; the message says what is wrong.
    """
    text = _text(value, "an interface name")
    if text in (".", "..") or not re.fullmatch(r"[A-Za-z0-9_.-]{1,15}", text):
        raise ValueError(f"{shown(text)} is not an interface name; expected 1 to 15 characters of A-Z a-z 0-9 _ . -")
    return text
