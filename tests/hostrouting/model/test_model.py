"""Tests for address families, prefixes, strict parsers, IPv6 routes, and text for messages."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any

import attrs
import pytest
from dual_stack import entry
from hypothesis import given
from hypothesis import strategies as st

from hostrouting.model.changes import Change
from hostrouting.model.integer_prefixes import (
    PrefixIndex,
    PrefixSet,
    ends,
    numbers,
    uncovered_addresses,
)
from hostrouting.model.parsing import parse_any_address, reserved_block
from hostrouting.model.text import clean, shortened, with_runs
from hostrouting.model.values import frozen

_prefixes = st.builds(
    lambda number, length: (number >> 128 - length << 128 - length, length),
    st.integers(0, 7).map(lambda high: high << 125),
    st.sampled_from([0, 1, 2, 3, 64, 127, 128]),
)


@given(st.lists(_prefixes, max_size=6), _prefixes)
def test_sets_of_ipv6_prefixes_agree_with_networks(
    prefixes: list[tuple[int, int]], other: tuple[int, int]
) -> None:
    networks, network = [IPv6Network(each) for each in prefixes], IPv6Network(other)
    around = [each for each in networks if network.subnet_of(each)]
    inside = [each for each in networks if each.subnet_of(network)]
    index, found = PrefixIndex(prefixes, 128), PrefixSet(prefixes, 128)
    assert {*index.around(other)} == {*map(numbers, around)}
    assert {*index.meeting(other)} == {*map(numbers, (*around, *inside))}
    assert found.covers(other) == bool(around)
    assert found.overlaps(*ends(other, 128)) == bool(around or inside)


@pytest.mark.parametrize(
    "line",
    [
        "default via fe80::1 dev eth0 proto ra metric 1024",
        "fd00:1::/48 from fd00:2::1 dev eth0 proto hostrouting metric 1024 expires 0sec pref high",
        "prohibit fd00::5 proto boot metric 1024",
    ],
)
def test_an_ipv6_route_reads_as_ip_prints_it(line: str) -> None:
    assert str(entry(line)) == line.replace(" proto boot", "")


@pytest.mark.parametrize(
    ("one", "other", "are_equal"),
    [
        ("expires 30sec", "expires 20sec", True),
        ("expires 30sec", "", True),
        ("expires 0sec", "expires -7sec", True),
        ("expires 30sec", "expires 0sec", False),
        ("", "expires -7sec", False),
    ],
)
def test_a_countdown_is_no_difference(one: str, other: str, are_equal: bool) -> None:
    route, later = (
        entry(f"default via fe80::1 dev eth0 proto ra metric 1024 {expires}")
        for expires in (one, other)
    )
    assert (route == later) == are_equal
    assert (hash(route) == hash(later)) == are_equal
    assert (str(route) == str(later)) == are_equal


@pytest.mark.parametrize(
    ("network", "is_reserved"),
    [
        *(("0.0.0.0/7", False), ("0.0.0.0/8", True), ("239.1.2.3/32", True), ("224.0.0.0/3", True)),
        *(("192.0.0.0/2", False), ("127.0.0.0/8", True), ("::7f00:0/104", False)),
    ],
)
def test_only_a_prefix_inside_a_special_block_is_reserved(network: str, is_reserved: bool) -> None:
    assert (reserved_block(ip_network(network)) is not None) == is_reserved


@pytest.mark.parametrize(
    "text", ["::ffff:10.0.0.1", "10.0.0.01", "fd00::/64", ":", "1:2:3", 7, None]
)
def test_an_address_has_one_spelling(text: Any) -> None:
    with pytest.raises(ValueError, match="is not an IP"):
        parse_any_address(text)


SMALL = st.builds(
    lambda number, length: IPv4Network(
        (0xAC100000 + (number & ~((1 << (32 - length)) - 1)), length)
    ),
    st.integers(0, 255),
    st.integers(24, 32),
)


@given(st.sets(SMALL, max_size=12))
def test_uncovered_addresses_are_the_first_outside_longer_prefixes(
    prefixes: set[IPv4Network],
) -> None:
    def naive(prefix: IPv4Network) -> int | None:
        longer = [other for other in prefixes if other.prefixlen > prefix.prefixlen]
        return next((int(a) for a in prefix if not any(a in other for other in longer)), None)

    assert uncovered_addresses(map(numbers, prefixes), 32) == {
        numbers(prefix): naive(prefix) for prefix in prefixes
    }


def test_uncovered_addresses_of_the_whole_space_and_its_ends() -> None:
    whole, last = (0, 0), (0xFFFFFFFF, 32)
    assert uncovered_addresses([whole, last], 32) == {whole: 0, last: 0xFFFFFFFF}


@pytest.mark.parametrize(
    "letter", ["\x1b", "\x9b", "\r", "\x7f", "\u202e", "\u2028", "\u2029", "\udcff"]
)
def test_control_characters_and_line_breaks_are_removed(letter: str) -> None:
    assert clean(f"a{letter}é") == "a?é"


def test_omitted_items_are_counted_with_thousands_separators() -> None:
    assert shortened(["a"] * 1128, ", ", 2) == "a, a and 1,126 more"


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ([f"ib{number}" for number in range(8)], ["ib0-ib7"]),
        (["ib0", "ib1"], ["ib0", "ib1"]),
        (["eth9", "eth10", "eth11", "ib11"], ["eth9-eth11", "ib11"]),
        (["ib0", "ib2", "ib3", "ib4", "wg"], ["ib0", "ib2-ib4", "wg"]),
        (["a08", "a09", "a10"], ["a08", "a09", "a10"]),
        ([], []),
    ],
)
def test_names_in_a_row_are_told_as_one(names: list[str], told: list[str]) -> None:
    assert with_runs(names) == told


def test_a_changes_repr_leaves_out_the_contents() -> None:
    """All files of an installation have 100,000 characters."""
    assert repr(Change("/etc/a.sh", "replaced", before="a", after="b")) == (
        "Change('/etc/a.sh', 'replaced')"
    )
    assert repr(Change("a", "replaced", was="b")) == "Change('a', 'replaced', was='b')"


def test_a_value_has_the_repr_that_attrs_would_give_it() -> None:
    class Plain:
        name: str
        hidden: str = attrs.field(default="a", repr=False)
        shown: int = attrs.field(default=1, repr=lambda value: f"<{value}>")

    class Spoken:
        name: str

        def __repr__(self) -> str:
            return f"Spoken {self.name}"

    make: Any
    for make in (attrs.frozen, frozen, frozen(eq=False)):
        assert repr(make(Plain)("it's")) == 'Plain(name="it\'s", shown=<1>)'
        assert repr(make(Spoken)("it's")) == "Spoken it's"


def test_a_value_may_have_no_repr() -> None:
    @frozen(repr=False)
    class Plain:
        name: str

    assert "name" not in repr(Plain("a"))
