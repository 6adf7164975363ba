"""Hosts with a verified uplink, and what it is by now."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from hostrouting.model.links import Link
from hostrouting.model.verified_uplinks import VerifiedUplink

MAC = "00:0d:3a:00:00:01"
OTHER = "00:0d:3a:00:00:02"
ETH0 = VerifiedUplink("eth0", MAC)
# A link of these kinds may have the address of the one that it is on.
STACKED = ("ipvlan", "ipvtap", "macsec", "macvlan", "macvtap", "vlan")


def link(name: str, mac: str | None = OTHER, kind: str | None = None, master: str = "") -> Link:
    return Link(1, name, kind=kind, master=master or None, mac=mac)


@attrs.frozen
class VerifiedHost:
    """A host after its check has passed.

    Args:
        links: its links by now, except `lo`.
        found: the names of the links that the recorded uplink is.
        record: the recorded uplink.
        is_awaited: whether the uplink may still appear.
    """

    links: Sequence[Link]
    found: tuple[str, ...]
    record: VerifiedUplink = ETH0
    is_awaited: bool = False


HOSTS = {
    "as it was": VerifiedHost([link("eth0", MAC), link("eth1")], ("eth0",)),
    "renamed": VerifiedHost([link("ens3", MAC), link("eth1")], ("ens3",)),
    "another address": VerifiedHost([link("eth0"), link("eth1")], ("eth0",)),
    "names swapped": VerifiedHost([link("eth0"), link("eth1", MAC)], ("eth1",)),
    "both new": VerifiedHost([link("lo", None), link("ens3")], (), is_awaited=True),
    "nothing there": VerifiedHost([link("lo", None)], (), is_awaited=True),
    "a bridge with its address": VerifiedHost(
        [link("eth0", MAC, master="br0"), link("br0", MAC, "bridge")], ("br0",)
    ),
    "a bridge with another address": VerifiedHost(
        [link("eth0", MAC, master="br0"), link("br0", OTHER, "bridge")], ("br0",)
    ),
    "renamed and a port": VerifiedHost(
        [link("ens3", MAC, master="br0"), link("br0", OTHER, "bridge")], ("br0",)
    ),
    "a port with another address": VerifiedHost(
        [link("eth0", master="br0"), link("br0", OTHER, "bridge")], ("br0",)
    ),
    "a port of a bond that is a port": VerifiedHost(
        [
            link("eth0", MAC, master="bond0"),
            link("bond0", MAC, "bond", master="br0"),
            link("br0", OTHER, "bridge"),
        ],
        ("br0",),
    ),
    "a port of a team in a VRF": VerifiedHost(
        [
            link("eth0", MAC, master="team0"),
            link("team0", OTHER, "team", master="red"),
            link("red", OTHER, "vrf"),
        ],
        ("team0",),
    ),
    "a port of Open vSwitch": VerifiedHost(
        [
            link("eth0", MAC, master="ovs-system"),
            link("ovs-system", OTHER, "openvswitch"),
            link("breth0", OTHER, "openvswitch"),
        ],
        (),
    ),
    "its address on an interface of Open vSwitch": VerifiedHost(
        [
            link("eth0", MAC, master="ovs-system"),
            link("ovs-system", OTHER, "openvswitch"),
            link("breth0", MAC, "openvswitch"),
        ],
        ("breth0",),
    ),
    "a bridge of a bridge of Open vSwitch": VerifiedHost(
        [
            link("eth0", MAC, master="br0"),
            link("br0", MAC, "bridge", master="ovs-system"),
            link("ovs-system", OTHER, "openvswitch"),
        ],
        (),
    ),
    "bridges that are ports of each other": VerifiedHost(
        [
            link("eth0", MAC, master="br0"),
            link("br0", OTHER, "bridge", master="br1"),
            link("br1", OTHER, "bridge", master="br0"),
        ],
        (),
    ),
    "a port of a link that isn't listed": VerifiedHost([link("eth0", MAC, master="br0")], ()),
    "a port of a link that can't be recorded": VerifiedHost(
        [link("eth0", MAC, master="br#0"), link("br#0", OTHER, "bridge")], ()
    ),
    "in a VRF": VerifiedHost(
        [link("eth0", MAC, master="red"), link("red", OTHER, "vrf")], ("eth0",)
    ),
    "a VF before it is a port": VerifiedHost([link("enP1", MAC), link("eth0", MAC)], ("eth0",)),
    "a VF that is a port": VerifiedHost(
        [link("enP1", MAC, master="eth0"), link("eth0", MAC)], ("eth0",)
    ),
    "a VF, names swapped": VerifiedHost(
        [link("eth0"), link("eth1", MAC), link("enP1", MAC, master="eth1")], ("eth1",)
    ),
    "a VF before it is a port, names swapped": VerifiedHost(
        [link("eth0"), link("eth1", MAC), link("enP1", MAC)], ("eth1", "enP1")
    ),
    "a NIC and its VF are ports of a bridge": VerifiedHost(
        [
            link("enP1", MAC, master="eth0"),
            link("eth0", MAC, master="br0"),
            link("br0", OTHER, "bridge"),
        ],
        ("br0",),
    ),
    "a VF before it is a port, the NIC in a bridge": VerifiedHost(
        [link("enP1", MAC), link("eth0", MAC, master="br0"), link("br0", OTHER, "bridge")], ("br0",)
    ),
    "names swapped, and a bridge takes the one of that name": VerifiedHost(
        [link("eth0", master="br0"), link("br0", OTHER, "bridge"), link("eth1", MAC)], ("eth1",)
    ),
    "its name is a bridge's": VerifiedHost(
        [link("peth0", MAC, master="eth0"), link("eth0", OTHER, "bridge")], ("eth0",)
    ),
    "its name is a bridge's, without it": VerifiedHost(
        [link("ens3", MAC), link("ens4", master="eth0"), link("eth0", OTHER, "bridge")], ("ens3",)
    ),
    "a VLAN on it in a bridge": VerifiedHost(
        [link("eth0", MAC), link("eth0.5", MAC, "vlan", master="br5"), link("br5", MAC, "bridge")],
        ("eth0",),
    ),
    "a VLAN on it": VerifiedHost([link("eth0", MAC), link("eth0.5", MAC, "vlan")], ("eth0",)),
    **{
        f"renamed, with a link of kind {kind} on it": VerifiedHost(
            [link("ens3", MAC), link("eth0.5", MAC, kind)], ("ens3",)
        )
        for kind in STACKED
    },
    "a bond with the address of another of its NICs": VerifiedHost(
        [link("bond0", OTHER, "bond"), link("eth0", master="bond0"), link("eth1", MAC)],
        ("bond0",),
        VerifiedUplink("bond0", MAC),
    ),
    "a team with the address of another of its NICs": VerifiedHost(
        [link("team0", OTHER, "team"), link("eth0", master="team0"), link("eth1", MAC)],
        ("team0",),
        VerifiedUplink("team0", MAC),
    ),
    "a bond with another address in a bridge": VerifiedHost(
        [
            link("br0", MAC, "bridge"),
            link("bond0", OTHER, "bond", master="br0"),
            link("eth0", master="bond0"),
        ],
        ("br0",),
        VerifiedUplink("bond0", MAC),
    ),
    "a bond that has lost its NIC": VerifiedHost(
        [link("bond0", OTHER, "bond"), link("eth1", MAC)], ("eth1",), VerifiedUplink("bond0", MAC)
    ),
    "a bridge of another NIC": VerifiedHost(
        [link("br0", OTHER, "bridge"), link("eth0", master="br0"), link("eth1", MAC)],
        ("eth1",),
        VerifiedUplink("br0", MAC),
    ),
    "a bridge that has lost its NIC": VerifiedHost(
        [link("br0", OTHER, "bridge"), link("eth1", MAC)], ("eth1",), VerifiedUplink("br0", MAC)
    ),
    "a bridge made anew": VerifiedHost(
        [link("br0", OTHER, "bridge"), link("eth1", MAC, master="br0")],
        ("br0",),
        VerifiedUplink("br0", MAC),
    ),
    "a bridge of another NIC, the first one is gone": VerifiedHost(
        [link("br0", OTHER, "bridge"), link("eth0", master="br0")],
        ("br0",),
        VerifiedUplink("br0", MAC),
    ),
    "a VLAN on a renamed NIC, recorded itself": VerifiedHost(
        [link("ens3", MAC), link("eth0.5", MAC, "vlan")], ("eth0.5",), VerifiedUplink("eth0.5", MAC)
    ),
    "a recorded VLAN in a bridge": VerifiedHost(
        [
            link("eth0", MAC),
            link("eth0.5", MAC, "vlan", master="br5"),
            link("br5", OTHER, "bridge"),
        ],
        ("br5",),
        VerifiedUplink("eth0.5", MAC),
    ),
    "without an address": VerifiedHost(
        [link("tun0", None), link("wg0", None)], ("wg0",), VerifiedUplink("wg0")
    ),
    "a bond of NICs with its address, in a bridge": VerifiedHost(
        [
            link("eth0", MAC, master="bond0"),
            link("eth1", MAC, master="bond0"),
            link("bond0", MAC, "bond", master="br0"),
            link("br0", MAC, "bridge"),
        ],
        ("br0",),
        VerifiedUplink("bond0", MAC),
    ),
}
