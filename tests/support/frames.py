"""Build IPv4 and IPv6 packets in Ethernet frames by hand, including their checksums, and parse
those of IPv6.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Mapping
from ipaddress import IPv6Address, IPv6Network

import attrs

from hostrouting.model.family import IpAddress

TCP, UDP, ICMPV6, HOP_BY_HOP = (
    socket.IPPROTO_TCP,
    socket.IPPROTO_UDP,
    socket.IPPROTO_ICMPV6,
    socket.IPPROTO_HOPOPTS,
)

FIN, SYN, RST, PSH, ACK, URG, ECE, CWR = (1 << bit for bit in range(8))
ROUTER_ADVERTISEMENT, NEIGHBOUR_SOLICITATION, NEIGHBOUR_ADVERTISEMENT = 134, 135, 136  # RFC 4861

ALL_NODES = IPv6Address("ff02::1")

_ETHERNET, _FIXED = 14, 40
_SOURCE_LINK_ADDRESS, _PREFIX, _ROUTE = 1, 3, 24
_ON_LINK, _AUTONOMOUS = 0x80, 0x40
_PREFERENCE = {"medium": 0, "high": 1 << 3, "low": 3 << 3}  # RFC 4191, 2.1


@attrs.frozen
class Packet:
    """The contents of a frame; ``payload`` begins with the TCP, UDP or ICMPv6 header."""

    source: IpAddress
    destination: IpAddress
    protocol: int
    payload: bytes
    hop_limit: int = 255

    @property
    def is_right(self) -> bool:
        """Return whether the checksum is correct."""
        return _sum(self) == 0

    @property
    def flags(self) -> int:
        """Return the FIN, SYN, RST and ACK flags of a TCP segment, or 0 for any other packet."""
        return self.payload[13] & (FIN | SYN | RST | ACK) if self.protocol == TCP else 0

    @property
    def icmp(self) -> tuple[int, int] | None:
        """Return the ICMPv6 type and code."""
        return (self.payload[0], self.payload[1]) if self.protocol == ICMPV6 else None


def read(frame: bytes) -> Packet:
    length, protocol, hop_limit = struct.unpack_from("!HBB", frame, _ETHERNET + 4)
    source, destination = (
        frame[_ETHERNET + 8 : _ETHERNET + 24],
        frame[_ETHERNET + 24 : _ETHERNET + _FIXED],
    )
    payload = frame[_ETHERNET + _FIXED : _ETHERNET + _FIXED + length]
    if protocol == HOP_BY_HOP:
        protocol, payload = payload[0], payload[8 * (payload[1] + 1) :]
    return Packet(IPv6Address(source), IPv6Address(destination), protocol, payload, hop_limit)


def written(packet: Packet, source: str, router: str) -> bytes:
    """Return a frame between these Ethernet addresses (or to a multicast group), with a computed
    checksum.
    """
    destination = packet.destination.packed
    link = b"\x33\x33" + destination[-4:] if packet.destination.is_multicast else _raw(router)
    payload = bytearray(packet.payload)
    place = {TCP: 16, UDP: 6, ICMPV6: 2}[packet.protocol]
    payload[place : place + 2] = b"\0\0"
    payload[place : place + 2] = struct.pack(
        "!H", _sum(attrs.evolve(packet, payload=bytes(payload)))
    )
    ends = packet.source.packed + destination
    if packet.source.version == 4:
        fixed = struct.pack(
            "!BxHxxxxBB", 0x45, 20 + len(payload), packet.hop_limit, packet.protocol
        )
        fixed += struct.pack("!H", _checksum(fixed + ends))
        return link + _raw(source) + b"\x08\x00" + fixed + ends + payload
    fixed = struct.pack("!IHBB", 6 << 28, len(payload), packet.protocol, packet.hop_limit)
    return link + _raw(source) + b"\x86\xdd" + fixed + ends + payload


def segment(source_port: int, destination_port: int, flags: int, *, acknowledged: int = 1) -> bytes:
    return struct.pack(
        "!HHIIBBHHH", source_port, destination_port, 1, acknowledged, 5 << 4, flags, 1024, 0, 0
    )


def neighbour_solicitation(target: IPv6Address, link_address: str) -> bytes:
    return _icmp(
        NEIGHBOUR_SOLICITATION,
        bytes(4) + target.packed + _option(_SOURCE_LINK_ADDRESS, link_address),
    )


def router_advertisement(
    link_address: str,
    lifetime: int = 1800,
    preference: str = "medium",
    prefixes: Iterable[IPv6Network] = (),
    routes: Mapping[IPv6Network, str] | None = None,
) -> bytes:
    """Return the payload for an ICMPv6 router advertisement.

    Args:
        link_address: the router's Ethernet address.
        lifetime: the router lifetime in seconds, or 0 if it isn't a default router.
        preference: the router preference.
        prefixes: on-link prefixes for address autoconfiguration.
        routes: maps each advertised destination to its preference (RFC 4191).
    """
    body = struct.pack("!BBHII", 64, _PREFERENCE[preference], lifetime, 0, 0)
    body += _option(_SOURCE_LINK_ADDRESS, link_address)
    for prefix in prefixes:
        flags = _ON_LINK | _AUTONOMOUS
        body += struct.pack(
            "!BBBBIII16s", _PREFIX, 4, prefix.prefixlen, flags, 86400, 14400, 0, prefix[0].packed
        )
    for prefix, its_preference in (routes or {}).items():
        flags = _PREFERENCE[its_preference]
        body += struct.pack("!BBBBI16s", _ROUTE, 3, prefix.prefixlen, flags, 1800, prefix[0].packed)
    return _icmp(ROUTER_ADVERTISEMENT, body)


def _icmp(kind: int, body: bytes) -> bytes:
    return bytes((kind, 0, 0, 0)) + body


def _option(kind: int, link_address: str) -> bytes:
    return bytes((kind, 1)) + _raw(link_address)


def _raw(link_address: str) -> bytes:
    return bytes.fromhex(link_address.replace(":", ""))


def _sum(packet: Packet) -> int:
    """Return the checksum of the pseudo-header and payload (RFC 8200, 8.1), which is 0 if the
    packet's is correct.
    """
    pseudo = packet.source.packed + packet.destination.packed
    pseudo += struct.pack("!II", len(packet.payload), packet.protocol)
    return _checksum(pseudo + packet.payload + b"\0" * (len(packet.payload) % 2))


def _checksum(covered: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(covered) // 2}H", covered))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
