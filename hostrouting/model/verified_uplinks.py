"""The uplinks with which the check has passed, and which of a host's links they are now.

A verified uplink is recognized by its MAC address, or else by its name. A NIC's name may change:
Azure doesn't guarantee the order of NICs across reboots. When a VM is redeployed, a NIC's MAC
address changes, but its name doesn't.

A bond is recognized by its name, because it may take the MAC address of any of its NICs. A bridge
takes a NIC's MAC address, too. But the NIC with that address may be in no bridge by now. Then the
NIC is the uplink, and not the bridge. Two NICs may have swapped their names, so that the wrong NIC
was added to the bridge.

The boot scripts follow these rules, too.

This module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from hostrouting.model.links import VPN_DEVS, Link, is_like
from hostrouting.model.values import frozen

VERIFIED_PATH = "etc/hostrouting/uplink"
"""The file with the verified uplinks, below a host's root."""

# A link of these kinds sends through another link, and may have that link's MAC address.
_STACKED = ("ipvlan", "ipvtap", "macsec", "macvlan", "macvtap", "vlan")
# A link of these kinds takes over the network of its ports.
_GROUPS = ("bond", "bridge", "team")
# All ports of a bond or team lead to the same network.
_BONDS = ("bond", "team")
# At most this many lines of a record are read. A record of ours has a line for each uplink.
_LINES = 64
_LINE = re.compile(r"([A-Za-z0-9_.-]{1,15})(?: ([0-9A-Fa-f:]+))?")


@frozen
class VerifiedUplink:
    """An uplink as it was when the check passed.

    Args:
        name: the name that the interface had then.
        mac: the interface's MAC address; None if it had none.
        since: when the uplink was recorded (RFC 3339, UTC, whole seconds); None if that isn't
            known.
    """

    name: str
    mac: str | None = None
    since: str | None = None

    def __str__(self) -> str:
        return self.name if self.mac is None else f"{self.name} {self.mac}"


def parse_verified(text: str, since: str | None = None) -> tuple[VerifiedUplink, ...]:
    """Parse a record with a line ``NAME MAC`` for each verified uplink, ignoring other lines.

    Raises:
        ValueError: the record isn't empty, but no line is valid. An empty result would be wrong: it
            would mean that no uplink is verified, and that the default route determines the uplink.
    """
    lines = text.split("\n")[:_LINES]
    found = [line for line in map(_LINE.fullmatch, map(_bare, lines)) if line is not None]
    if text and not found:
        raise ValueError("none of its lines is an interface and its MAC address")
    return tuple(VerifiedUplink(line[1], line[2] and line[2].lower(), since) for line in found)


def _bare(line: str) -> str:
    # To bash, which reads the record at boot, a line ends at a NUL.
    return line.partition("\0")[0].removeprefix("\ufeff").removesuffix("\r")


def verified_text(verified: Iterable[VerifiedUplink]) -> str:
    """Return a record that ``parse_verified`` accepts."""
    return "".join(f"{uplink}\n" for uplink in verified)


def is_recordable(name: str) -> bool:
    """Return whether an interface name can be recorded."""
    return _LINE.fullmatch(name) is not None


def find_verified(
    verified: Iterable[VerifiedUplink],
    links: Sequence[Link],
) -> tuple[str, ...]:
    """Return the names of the links that are verified uplinks now.

    A verified uplink is found as the first of these that exists:

    - the bond that has the recorded name, and ports,
    - the links with the recorded MAC address; of these, the one with the recorded name if there is
      one,
    - the link with the recorded name.

    The topmost bridge or bond takes the place of its ports. A port of another kind of interface
    (except of a VRF) isn't an uplink. A VLAN or another link on top of a link isn't recognized by
    its MAC address alone.
    """
    by_name = {link.name: link for link in links}
    found: dict[str, None] = {}
    for uplink in verified:
        for link in _find(uplink, by_name):
            found[link.name] = None
    return tuple(found)


def _find(uplink: VerifiedUplink, links: Mapping[str, Link]) -> list[Link]:
    """Return the links that are a verified uplink now, as ``find_verified`` explains."""
    namesake = links.get(uplink.name)
    found_by_name = [] if namesake is None else _topmost([namesake], links)
    if namesake is not None and _is_bond_with_ports(namesake, links):
        return found_by_name
    found_by_mac = _topmost(_with_mac_of(uplink, links), links)
    if not found_by_mac:
        return found_by_name
    # Several links may have the MAC address. On Azure, a NIC's VF has the NIC's MAC address even
    # before it becomes a port of the NIC.
    name_fits = bool(found_by_name) and found_by_name[0] in found_by_mac
    return found_by_name if name_fits else found_by_mac


def _is_bond_with_ports(link: Link, links: Mapping[str, Link]) -> bool:
    return link.kind in _BONDS and any(each.master == link.name for each in links.values())


def _with_mac_of(uplink: VerifiedUplink, links: Mapping[str, Link]) -> list[Link]:
    """Return the links with an uplink's MAC address; a stacked link must have its name, too."""
    if uplink.mac is None:
        return []
    same = (link for link in links.values() if link.mac == uplink.mac)
    return [link for link in same if link.kind not in _STACKED or link.name == uplink.name]


def _topmost(found: Iterable[Link], links: Mapping[str, Link]) -> list[Link]:
    """Return the topmost bridge or bond above each link, or the link itself (see ``_group``).

    Links whose names can't be recorded are left out.
    """
    groups = (_group(link, links) for link in found)
    return [link for link in groups if link is not None and is_recordable(link.name)]


def _group(link: Link, links: Mapping[str, Link]) -> Link | None:
    """Return the topmost bridge or bond above a link; without one, the link itself.

    A VRF doesn't count as above its ports. If another kind of link is above, the result is None.
    """
    # Limit the number of steps, because in a snapshot, two links may be ports of each other.
    for _ in links:
        if link.master is None:
            return link
        master = links.get(link.master)
        if master is not None and master.kind == "vrf":
            return link
        if master is None or master.kind not in _GROUPS:
            return None
        link = master
    return None


def find_awaited_uplinks(
    verified: Sequence[VerifiedUplink],
    links: Sequence[Link],
) -> str | None:
    """Return a phrase about the verified uplinks that may still appear, or None.

    No uplink is awaited if at least one verified uplink is there. An uplink that has become a port
    of another interface isn't awaited, either.
    """
    if find_verified(verified, links):
        return None
    names = {link.name for link in links}
    macs = {link.mac for link in links if link.mac is not None}
    awaited = [
        uplink.name for uplink in verified if uplink.name not in names and uplink.mac not in macs
    ]
    return f"interface {','.join(awaited)}, with which the check passed" if awaited else None


def is_vpn_instead(
    verified: Sequence[VerifiedUplink],
    links: Sequence[Link],
    devs: Iterable[str],
) -> bool:
    """Return whether the verified uplinks are gone, and one of ``devs`` is a VPN's.

    If all of the verified uplinks were VPNs' interfaces, too, return False.
    """
    was_nic = any(not is_like(uplink.name, VPN_DEVS) for uplink in verified)
    is_gone = was_nic and not find_verified(verified, links)
    return is_gone and any(is_like(dev, VPN_DEVS) for dev in devs)


def find_swapped(
    verified: Iterable[VerifiedUplink],
    links: Sequence[Link],
    patterns: tuple[str, ...],
) -> tuple[tuple[VerifiedUplink, str], ...]:
    """Return the verified uplinks that match ``patterns`` by recorded, but not by present name.

    For example, the config names eth0, and the uplink that was recorded as eth0 is now named eth1.

    Args:
        verified: the verified uplinks.
        links: the host's links.
        patterns: the config's shell patterns for the uplinks.

    Returns:
        Each uplink that was found, with its present name.
    """
    by_name = {link.name: link for link in links}
    found: list[tuple[VerifiedUplink, str]] = []
    for uplink in verified:
        names = [link.name for link in _find(uplink, by_name)]
        is_named = any(is_like(name, patterns) for name in names)
        if names and is_like(uplink.name, patterns) and not is_named:
            found.append((uplink, names[0]))
    return tuple(found)


def find_renamed(
    verified: Iterable[VerifiedUplink],
    links: Sequence[Link],
) -> tuple[tuple[VerifiedUplink, tuple[str, ...]], ...]:
    """Return the verified uplinks whose recorded name another NIC has, with their present names.

    A port of the uplink's own bridge or bond doesn't count as another NIC.
    """
    by_name = {link.name: link for link in links}
    found: list[tuple[VerifiedUplink, tuple[str, ...]]] = []
    for uplink in verified:
        names = tuple(link.name for link in _find(uplink, by_name))
        if not names or uplink.name in names or uplink.name not in by_name:
            continue
        if not any(is_port_of(uplink.name, name, links) for name in names):
            found.append((uplink, names))
    return tuple(found)


def find_replaced(
    verified: Iterable[VerifiedUplink],
    links: Sequence[Link],
) -> tuple[tuple[VerifiedUplink, Link], ...]:
    """Return the verified uplinks whose MAC address is gone, each with the link of its name.

    If that link is a port, its topmost bridge or bond is returned instead. A bond with ports isn't
    replaced by a change of its MAC address.
    """
    by_name = {link.name: link for link in links}
    macs = {link.mac for link in links}
    found: list[tuple[VerifiedUplink, Link]] = []
    for uplink in verified:
        namesake = by_name.get(uplink.name)
        if uplink.mac is None or uplink.mac in macs or namesake is None or namesake.mac is None:
            continue
        if not _is_bond_with_ports(namesake, by_name):
            found.extend((uplink, link) for link in _topmost([namesake], by_name))
    return tuple(found)


def is_port_of(name: str, master: str, links: Sequence[Link]) -> bool:
    """Return whether ``master`` is the topmost bridge or bond above a link."""
    return master_of(name, links) == master


def master_of(name: str, links: Sequence[Link]) -> str | None:
    """Return the topmost bridge or bond above a link; None if none is above it."""
    by_name = {link.name: link for link in links}
    top = _group(by_name[name], by_name) if name in by_name else None
    return None if top is None or top.name == name else top.name
