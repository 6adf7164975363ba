"""Tests of how verified uplinks are found again, as a table of hosts."""

from __future__ import annotations

import pytest

from hostrouting.model.links import Link
from hostrouting.model.verified import (
    VerifiedUplink,
    find_awaited_uplinks,
    find_swapped,
    find_verified,
    parse_verified,
    verified_text,
)

MAC = "00:0d:3a:00:00:01"
OTHER = "00:0d:3a:00:00:02"
ETH0 = VerifiedUplink("eth0", MAC)


def link(name: str, mac: str | None = OTHER, kind: str | None = None, master: str = "") -> Link:
    return Link(1, name, kind=kind, master=master or None, mac=mac)


LO = link("lo", None)

FOUND: dict[str, tuple[list[Link], tuple[str, ...], bool]] = {
    "as it was": ([link("eth0", MAC), link("eth1")], ("eth0",), False),
    "renamed": ([link("ens3", MAC), link("eth1")], ("ens3",), False),
    "another address": ([link("eth0"), link("eth1")], ("eth0",), False),
    "names swapped": ([link("eth0"), link("eth1", MAC)], ("eth1",), False),
    "both new": ([LO, link("ens3")], (), True),
    "nothing there": ([LO], (), True),
    "a bridge with its address": (
        [link("eth0", MAC, master="br0"), link("br0", MAC, "bridge")],
        ("br0",),
        False,
    ),
    "a bridge with another address": (
        [link("eth0", MAC, master="br0"), link("br0", OTHER, "bridge")],
        ("br0",),
        False,
    ),
    "renamed and a port": (
        [link("ens3", MAC, master="br0"), link("br0", OTHER, "bridge")],
        ("br0",),
        False,
    ),
    "a port with another address": (
        [link("eth0", OTHER, master="br0"), link("br0", OTHER, "bridge")],
        ("br0",),
        False,
    ),
    "a port of a bond that is a port": (
        [
            link("eth0", MAC, master="bond0"),
            link("bond0", MAC, "bond", master="br0"),
            link("br0", OTHER, "bridge"),
        ],
        ("br0",),
        False,
    ),
    "a port of a team in a VRF": (
        [
            link("eth0", MAC, master="team0"),
            link("team0", OTHER, "team", master="red"),
            link("red", OTHER, "vrf"),
        ],
        ("team0",),
        False,
    ),
    "a port of Open vSwitch": (
        [
            link("eth0", MAC, master="ovs-system"),
            link("ovs-system", OTHER, "openvswitch"),
            link("breth0", OTHER, "openvswitch"),
        ],
        (),
        False,
    ),
    "its address on an interface of Open vSwitch": (
        [
            link("eth0", MAC, master="ovs-system"),
            link("ovs-system", OTHER, "openvswitch"),
            link("breth0", MAC, "openvswitch"),
        ],
        ("breth0",),
        False,
    ),
    "a bridge of a bridge of Open vSwitch": (
        [
            link("eth0", MAC, master="br0"),
            link("br0", MAC, "bridge", master="ovs-system"),
            link("ovs-system", OTHER, "openvswitch"),
        ],
        (),
        False,
    ),
    "bridges that are ports of each other": (
        [
            link("eth0", MAC, master="br0"),
            link("br0", OTHER, "bridge", master="br1"),
            link("br1", OTHER, "bridge", master="br0"),
        ],
        (),
        False,
    ),
    "a port of a link that isn't listed": ([link("eth0", MAC, master="br0")], (), False),
    "a port of a link that can't be recorded": (
        [link("eth0", MAC, master="br#0"), link("br#0", OTHER, "bridge")],
        (),
        False,
    ),
    "in a VRF": ([link("eth0", MAC, master="red"), link("red", OTHER, "vrf")], ("eth0",), False),
    "a VF before it is a port": ([link("enP1", MAC), link("eth0", MAC)], ("eth0",), False),
    "a VF that is a port": (
        [link("enP1", MAC, master="eth0"), link("eth0", MAC)],
        ("eth0",),
        False,
    ),
    "a VF, names swapped": (
        [link("eth0", OTHER), link("eth1", MAC), link("enP1", MAC, master="eth1")],
        ("eth1",),
        False,
    ),
    "a VF before it is a port, names swapped": (
        [link("eth0", OTHER), link("eth1", MAC), link("enP1", MAC)],
        ("eth1", "enP1"),
        False,
    ),
    "a NIC and its VF are ports of a bridge": (
        [
            link("enP1", MAC, master="eth0"),
            link("eth0", MAC, master="br0"),
            link("br0", OTHER, "bridge"),
        ],
        ("br0",),
        False,
    ),
    "a VF before it is a port, the NIC in a bridge": (
        [link("enP1", MAC), link("eth0", MAC, master="br0"), link("br0", OTHER, "bridge")],
        ("br0",),
        False,
    ),
    "names swapped, and a bridge takes the one of that name": (
        [link("eth0", OTHER, master="br0"), link("br0", OTHER, "bridge"), link("eth1", MAC)],
        ("eth1",),
        False,
    ),
    "its name is a bridge's": (
        [link("peth0", MAC, master="eth0"), link("eth0", OTHER, "bridge")],
        ("eth0",),
        False,
    ),
    "its name is a bridge's, without it": (
        [link("ens3", MAC), link("ens4", master="eth0"), link("eth0", OTHER, "bridge")],
        ("ens3",),
        False,
    ),
    "a VLAN on it in a bridge": (
        [
            link("eth0", MAC),
            link("eth0.5", MAC, "vlan", master="br5"),
            link("br5", MAC, "bridge"),
        ],
        ("eth0",),
        False,
    ),
    "a VLAN on it": ([link("eth0", MAC), link("eth0.5", MAC, "vlan")], ("eth0",), False),
    "renamed, with a VLAN on it": (
        [link("ens3", MAC), link("eth0.5", MAC, "vlan")],
        ("ens3",),
        False,
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_verified_uplink_is_found_by_its_address_and_then_by_its_name(name: str) -> None:
    links, expected, is_awaited = FOUND[name]
    assert find_verified([ETH0], links) == expected
    awaited = "interface eth0, with which the check passed" if is_awaited else None
    assert find_awaited_uplinks([ETH0], links) == awaited


@pytest.mark.parametrize(
    ("name", "links", "expected"),
    [
        # Another of its NICs gives a bond its address now.
        (
            "bond0",
            [link("bond0", OTHER, "bond"), link("eth0", OTHER, master="bond0"), link("eth1", MAC)],
            "bond0",
        ),
        (
            "team0",
            [link("team0", OTHER, "team"), link("eth0", OTHER, master="team0"), link("eth1", MAC)],
            "team0",
        ),
        (
            "bond0",
            [
                link("br0", MAC, "bridge"),
                link("bond0", OTHER, "bond", master="br0"),
                link("eth0", OTHER, master="bond0"),
            ],
            "br0",
        ),
        # One that is left over has no NIC.
        ("bond0", [link("bond0", OTHER, "bond"), link("eth1", MAC)], "eth1"),
        # Another NIC in a bridge may have taken the name of the right one.
        (
            "br0",
            [link("br0", OTHER, "bridge"), link("eth0", OTHER, master="br0"), link("eth1", MAC)],
            "eth1",
        ),
        ("br0", [link("br0", OTHER, "bridge"), link("eth1", MAC)], "eth1"),
        # It was made anew.
        (
            "br0",
            [link("br0", OTHER, "bridge"), link("eth1", MAC, master="br0")],
            "br0",
        ),
        ("br0", [link("br0", OTHER, "bridge"), link("eth0", OTHER, master="br0")], "br0"),
    ],
)
def test_a_bond_keeps_its_name_and_a_bridge_its_nic(
    name: str, links: list[Link], expected: str
) -> None:
    assert find_verified([VerifiedUplink(name, MAC)], links) == (expected,)


def test_a_link_on_top_of_another_is_found_by_the_name_that_was_recorded() -> None:
    vlan = VerifiedUplink("eth0.5", MAC)
    links = [link("eth0", MAC), link("eth0.5", MAC, "vlan")]
    assert find_verified([vlan], links) == ("eth0.5",)
    assert find_verified([vlan], [link("bond0", OTHER), link("eth0.5", OTHER, "vlan")]) == (
        "eth0.5",
    )


def test_one_without_an_address_is_found_by_its_name() -> None:
    assert find_verified([VerifiedUplink("wg0")], [link("tun0", None), link("wg0", None)]) == (
        "wg0",
    )


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
