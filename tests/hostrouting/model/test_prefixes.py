"""Prefix arithmetic has the same results as a naive implementation."""

from __future__ import annotations

from ipaddress import IPv4Network

from hypothesis import given
from hypothesis import strategies as st

from hostrouting.model.prefixes import numbers, uncovered_addresses

SMALL = st.builds(
    lambda number, length: IPv4Network((0xAC100000 + (number & ~((1 << (32 - length)) - 1)), length)),
    st.integers(0, 255),
    st.integers(24, 32),
)


@given(st.sets(SMALL, max_size=12))
def test_uncovered_addresses_are_the_first_outside_longer_prefixes(prefixes: set[IPv4Network]) -> None:
    def naive(prefix: IPv4Network) -> int | None:
        longer = [other for other in prefixes if other.prefixlen > prefix.prefixlen]
        return next((int(a) for a in prefix if not any(a in other for other in longer)), None)

    assert uncovered_addresses(map(numbers, prefixes)) == {numbers(prefix): naive(prefix) for prefix in prefixes}


def test_uncovered_addresses_of_the_whole_space_and_its_ends() -> None:
    whole, last = (0, 0), (0xFFFFFFFF, 32)
    assert uncovered_addresses([whole, last]) == {whole: 0, last: 0xFFFFFFFF}
