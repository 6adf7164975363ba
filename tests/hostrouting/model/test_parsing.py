"""Addresses and prefixes are parsed strictly."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Any

import pytest

from hostrouting.model.parsing import parse_any_address, parse_any_prefix, reserved_block


@pytest.mark.parametrize(
    ("network", "is_reserved"),
    [("0.0.0.0/7", False), ("0.0.0.0/8", True), ("239.1.2.3/32", True), ("224.0.0.0/3", True), ("192.0.0.0/2", False)],
)
def test_only_a_prefix_inside_a_special_block_is_reserved(network: str, is_reserved: bool) -> None:
    assert (reserved_block(IPv4Network(network)) is not None) == is_reserved


@pytest.mark.parametrize("text", ["::ffff:10.0.0.1", "10.0.0.01", "fd00::/64", ":", "1:2:3", 7, None])
def test_an_address_has_one_spelling(text: Any) -> None:
    with pytest.raises(ValueError, match="is not an IP"):
        parse_any_address(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fd00::1/64", "has host bits set; did you mean fd00::/64"),
        ("fd00::/129", "is not an IPv6 prefix"),
        ("fd00::/064", "is not an IPv6 prefix"),
        ("fd00::", "is not an IPv6 prefix"),
        ("fd00::%1/64", "'fd00::%1/64' has a zone"),
        ("10.0.0.0", "is not an IPv4 prefix; expected an address and a length"),
        ("224.0.0.0/8", "which is multicast"),
    ],
)
def test_a_prefix_of_either_family_is_strict(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_any_prefix(text)
    with pytest.raises(ValueError, match="'fe80::1%eth0' has a zone"):
        parse_any_address("fe80::1%eth0")
