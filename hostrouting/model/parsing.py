"""Strict parsers for addresses, prefixes and interface names.

``ipaddress`` does the arithmetic, but it accepts input that must not end up in a boot script:
``10.0.0.0/255.0.0.0``, ``10.0.0.0``, ``/08``, whitespace, full-width digits. The parsers in this
module reject such input before they call ``ipaddress``. Each ``parse_*`` function raises a
``ValueError`` whose message starts with the rejected value.
"""

from __future__ import annotations

import re
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from socket import AF_INET, inet_pton

from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.integer_prefixes import Prefix, numbers
from hostrouting.model.text import shown

# Routes to these blocks are rejected. A route to fe80::/10 depends on the interface, and routes to
# the other blocks never match a packet. The kernel accepts all of them (fib_semantics.c has no
# check). The blocks are from RFC 791/1122 (0/8), RFC 1122 (127/8), RFC 5771 (224/4), RFC 1112
# (240/4), and for IPv6 RFC 4291.
RESERVED: dict[Family, dict[IpNetwork, str]] = {
    Family.IPV4: {
        IPv4Network("0.0.0.0/8"): "0.0.0.0/8, which means this host",
        IPv4Network("127.0.0.0/8"): "127.0.0.0/8, the loopback network",
        IPv4Network("224.0.0.0/3"): (
            "224.0.0.0/3, which is multicast (224.0.0.0/4) or reserved (240.0.0.0/4)"
        ),
    },
    Family.IPV6: {
        IPv6Network("::/127"): "::/127, which means this host",
        IPv6Network("::ffff:0:0/96"): "::ffff:0:0/96, which stands for IPv4 addresses",
        IPv6Network("fe80::/10"): "fe80::/10, which means nothing without an interface",
        IPv6Network("ff00::/8"): "ff00::/8, which is multicast",
    },
}

# The first octets of the addresses in ``RESERVED``. Some IPv6 addresses outside of ``RESERVED``
# begin with one of these octets, too.
_RESERVED_OCTETS = frozenset((0, 127, *range(224, 256)))

# Each form has two triples: the first for values without a colon (IPv4), the second for values with
# a colon (IPv6). A triple has the family, its AF_* constant, and a dict of prefix lengths. A length
# has the text after the address, such as "/24", as its key. "/024" isn't a key, so it is rejected.
# A dict lookup is several times faster than a regex, which matters for long configs.
_FORMS = {
    "prefix": [
        (family, family.af, {f"/{number}": number for number in range(family.bits + 1)})
        for family in Family
    ],
    "address": [(family, family.af, {"": family.bits}) for family in Family],
}
_EXAMPLES = {
    "IPv4 prefix": "an address and a length, such as 172.16.1.0/24",
    "IPv4 address": "four numbers like 10.1.0.1",
    "IPv6 prefix": "for example fd00:1::/48",
    "IPv6 address": "for example fd00:1::20",
}


def reserved_blocks(family: Family) -> tuple[IpNetwork, ...]:
    """Return a family's special-purpose blocks. The check ignores addresses in these blocks."""
    return tuple(RESERVED[family])


def reserved_block(network: IpNetwork) -> str | None:
    """Return a description of the special-purpose block that contains a network, or None."""
    for block, words in RESERVED[Family.of(network)].items():
        if is_inside(network, block):
            return words
    return None


def is_inside(network: IpNetwork, other: IpNetwork) -> bool:
    """Return whether a network is equal to or nested in another.

    Return False if their families differ.
    """
    if network.version != other.version or network.prefixlen < other.prefixlen:
        return False
    return network.network_address in other


def split_prefix(
    value: object,
    family: Family | None = None,
    *,
    what: str = "prefix",
) -> tuple[Family, Prefix]:
    """Parse an address, or a prefix with or without host bits, in strict notation.

    Args:
        value: the prefix or address as a string.
        family: the expected family, or None for either.
        what: the expected form: ``prefix`` or ``address``.

    Returns:
        The family and the prefix. The prefix of an address has the full length.

    Raises:
        ValueError: the value is invalid; the message says why.
    """
    if not isinstance(value, str):
        raise ValueError(
            f"{shown(value)} is not an {family or Family.IPV4} {what}; expected a string"
        )
    written, af, lengths = _FORMS[what][":" in value]
    address, slash, length = value.partition("/")
    try:
        # Reject zones ("fe80::1%eth0") and embedded dotted quads ("::10.1.0.0"), because addresses
        # are compared with the kernel's output and must have its form.
        if family in (None, written) and (af == AF_INET or "." not in address):
            return written, (int.from_bytes(inet_pton(af, address), "big"), lengths[slash + length])
    # inet_pton raises a ValueError if the text contains a NUL or half of a surrogate pair.
    except (OSError, ValueError, KeyError):
        pass
    raise _refusal(value, family or written, what)


def _is_address(value: str, family: Family) -> bool:
    try:
        split_prefix(value, family, what="address")
    except ValueError:
        return False
    return True


def _refusal(value: str, family: Family, what: str) -> ValueError:
    form = f"{family} {what}"
    if family is Family.IPV6 and "%" in value:
        return ValueError(f"{shown(value)} has a zone")
    expected = _EXAMPLES[form]
    if what == "prefix" and _is_address(value, family):
        expected += f"; for this address alone, write {value}/{family.bits}"
    if family is Family.IPV6 and "." in value:
        expected += ", without a dotted quad (write IPv4 alone, such as 10.1.0.0/16)"
    return ValueError(f"{shown(value)} is not an {form}; expected {expected}")


def parse_any_address(value: str | IpAddress, family: Family | None = None) -> IpAddress:
    """Parse an IPv4 address in strict dotted-quad notation or an IPv6 address without a zone.

    Args:
        value: a string or an address.
        family: the expected family, or None for either.

    Raises:
        ValueError: the value is invalid; the message says why.
    """
    if isinstance(value, (IPv4Address, IPv6Address)) and family in (None, Family.of(value)):
        # The value may be an IPv4Interface, a subclass whose text includes a prefix length.
        return Family.of(value).address(int(value))
    family, (number, _) = split_prefix(value, family, what="address")
    return family.address(number)


parse_address = partial(parse_any_address, family=Family.IPV4)


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


def parse_ipv4_gateway(value: str | IPv4Address) -> IPv4Address:
    """Parse a unicast IPv4 host address, which may be link-local.

    Raises:
        ValueError: the value is invalid; the message says why.
    """
    address = parse_gateway(parse_address(value))
    return IPv4Address(int(address))


def _refuse_reserved(network: IpNetwork) -> IpNetwork:
    if words := reserved_block(network):
        raise ValueError(f"'{network}' lies in {words}")
    return network


def parse_any_cidr(value: str | IpNetwork) -> IpNetwork:
    """Parse an expected CIDR in strict notation, masking host bits and rejecting special blocks.

    Args:
        value: a string such as ``172.16.0.0/16``, or a network.

    Returns:
        The masked network.

    Raises:
        ValueError: the value is invalid; the message says why.
    """
    if not isinstance(value, (IPv4Network, IPv6Network)):
        value = _masked(*split_prefix(value))
    return _refuse_reserved(value)


def parse_any_prefix(value: str | IpNetwork) -> IpNetwork:
    """Parse a route's destination in strict CIDR notation, without host bits.

    The default route and special-purpose blocks are rejected.

    Args:
        value: a string such as ``172.16.1.0/24``, or a network.

    Returns:
        The network.

    Raises:
        ValueError: the value is invalid. If host bits are set, the message suggests the masked
            prefix.
    """
    if isinstance(value, (IPv4Network, IPv6Network)):
        family = Family.of(value)
        prefix = numbers(value)
    else:
        family, prefix = split_prefix(value)
    try:
        network = family.network(prefix)
    except ValueError:
        raise ValueError(
            f"{shown(value)} has host bits set; did you mean {_masked(family, prefix)}?"
        ) from None
    number, length = prefix
    if length == 0:
        raise ValueError(f"'{network}' is the default route; expected a more specific prefix")
    return _refuse_reserved(network) if number >> (family.bits - 8) in _RESERVED_OCTETS else network


def _masked(family: Family, prefix: Prefix) -> IpNetwork:
    number, length = prefix
    host_bits = family.bits - length
    return family.network((number >> host_bits << host_bits, length))


def is_device(value: object) -> bool:
    """Return whether a value is an interface name that can't do harm in a shell script.

    A harmless name has 1-15 characters from ``[A-Za-z0-9_.-]``, and isn't ``.`` or ``..``. The
    kernel is more permissive: ``dev_valid_name`` in net/core/dev.c only rejects ``/``, ``:`` and
    whitespace. A name such as ``$(reboot)`` must never end up in a script.
    """
    if not isinstance(value, str):
        return False
    return re.fullmatch(r"(?!\.\.?$)[A-Za-z0-9_.-]{1,15}", value) is not None


def parse_device(value: str) -> str:
    """Parse a network interface name; see ``is_device``.

    Raises:
        ValueError: the value is invalid; the message says why.
    """
    if not is_device(value):
        raise ValueError(
            f"{shown(value)} is not an interface name; "
            "expected 1 to 15 characters of A-Z a-z 0-9 _ . -"
        )
    return value
