"""Prefix arithmetic against a naive reading of the same words."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostrouting.netaddr import halves, own_addresses, reserved_block

SMALL = st.builds(
    lambda number, length: IPv4Network((0xAC100000 + (number & ~((1 << (32 - length)) - 1)), length)),
    st.integers(0, 255),
    st.integers(24, 32),
)


@given(st.sets(SMALL, max_size=12))
def test_own_addresses_are_the_first_that_no_longer_prefix_covers(prefixes: set[IPv4Network]) -> None:
    def naive(prefix: IPv4Network) -> IPv4Address | None:
        longer = [other for other in prefixes if other.prefixlen > prefix.prefixlen]
        return next((a for a in prefix if not any(a in other for other in longer)), None)

    assert own_addresses(prefixes) == {prefix: naive(prefix) for prefix in prefixes}


def test_own_addresses_of_the_whole_space_and_its_ends() -> None:
    whole, last = IPv4Network("0.0.0.0/0"), IPv4Network("255.255.255.255/32")
    assert own_addresses([whole, last]) == {whole: IPv4Address("0.0.0.0"), last: IPv4Address("255.255.255.255")}


def test_halves_cover_a_network_and_a_single_address_has_none() -> None:
    assert list(map(str, halves(IPv4Network("172.16.0.0/16")))) == ["172.16.0.0/17", "172.16.128.0/17"]
    assert halves(IPv4Network("10.0.0.1/32")) == ()


@pytest.mark.parametrize(
    ("network", "is_reserved"),
    [("0.0.0.0/7", False), ("0.0.0.0/8", True), ("239.1.2.3/32", True), ("224.0.0.0/3", True), ("192.0.0.0/2", False)],
)
def test_only_what_lies_wholly_in_a_special_block_is_reserved(network: str, is_reserved: bool) -> None:
    assert (reserved_block(IPv4Network(network)) is not None) == is_reserved
