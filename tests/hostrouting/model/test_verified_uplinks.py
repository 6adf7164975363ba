"""Tests of how verified uplinks are found again, as a table of hosts."""

from __future__ import annotations

import pytest
from verified_hosts import ETH0, HOSTS, MAC, OTHER, link

from hostrouting.model.links import Link
from hostrouting.model.verified_uplinks import (
    VerifiedUplink,
    find_awaited_uplinks,
    find_swapped,
    find_verified,
    parse_verified,
    verified_text,
)


@pytest.mark.parametrize("name", HOSTS)
def test_a_verified_uplink_is_found_by_its_address_and_then_by_its_name(name: str) -> None:
    host = HOSTS[name]
    assert find_verified([host.record], host.links) == host.found
    awaited = f"interface {host.record.name}, with which the check passed"
    assert find_awaited_uplinks([host.record], host.links) == (awaited if host.is_awaited else None)


def test_an_interface_that_two_records_find_counts_once() -> None:
    links = [link("bond0", MAC)]
    assert find_verified([ETH0, VerifiedUplink("bond0", OTHER)], links) == ("bond0",)


@pytest.mark.parametrize(
    ("links", "patterns", "expected"),
    [
        ([link("eth0"), link("eth1", MAC)], ("eth0",), ((ETH0, "eth1"),)),
        ([link("eth0"), link("eth1", MAC)], ("eth*",), ()),
        ([link("eth1"), link("ens3", MAC)], ("eth*",), ((ETH0, "ens3"),)),
        ([link("eth0"), link("eth1")], ("eth0",), ()),
        ([link("eth0"), link("eth1", MAC)], ("eth1",), ()),
        ([link("eth0", MAC), link("eth1")], ("eth0",), ()),
        ([link("eth0", MAC, master="br0"), link("br0", MAC, "bridge")], ("br0",), ()),
        (
            [link("eth0", MAC, master="br0"), link("br0", MAC, "bridge")],
            ("eth0",),
            ((ETH0, "br0"),),
        ),
        ([link("eth0", master="br0"), link("br0", kind="bridge")], ("eth0",), ((ETH0, "br0"),)),
    ],
)
def test_a_swap_is_a_name_of_the_config_that_another_nic_has_taken(
    links: list[Link], patterns: tuple[str, ...], expected: tuple[tuple[VerifiedUplink, str], ...]
) -> None:
    assert find_swapped([ETH0], links, patterns) == expected


def test_a_record_may_have_lines_of_windows() -> None:
    assert parse_verified(f"{ETH0}\r\neth1\r\n") == (ETH0, VerifiedUplink("eth1"))


def test_a_record_has_a_line_for_each() -> None:
    uplinks = (ETH0, VerifiedUplink("wg0"))
    assert verified_text(uplinks) == f"eth0 {MAC}\nwg0\n"
    assert parse_verified(verified_text(uplinks)) == uplinks
    assert parse_verified("# eth1\neth0  x\n\nthis-name-is-too-long\na xyz\neth0 " + MAC) == (ETH0,)
