"""Send packets from ordinary sockets on this host, and observe which interfaces they leave through.

``seen_leaving`` is usually enough. ``truths`` also distinguishes kinds of sockets.
"""

from __future__ import annotations

import errno as errnos
import fcntl
import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import cached_property
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import attrs
import frames

from hostrouting.model.family import Family, IpAddress

# linux/if_ether.h, linux/if_packet.h, linux/sockios.h, linux/if.h, asm-generic/socket.h,
# netinet/tcp.h
_ETH_P_ALL, _ETH_P_IP, _ETH_P_IPV6, _PACKET_OUTGOING = 0x0003, 0x0800, 0x86DD, 4
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCGIFHWADDR = 0x8913, 0x8914, 0x8927
_IFF_UP, _IFF_RUNNING, _IFF_NOARP = 0x01, 0x40, 0x80
_SO_MARK, _TCP_ESTABLISHED = 36, 1

# linux/rtnetlink.h, linux/neighbour.h
_RTM_NEWNEIGH, _REQUEST_REPLACE, _NDA_DST, _NDA_LLADDR = 28, 0x501, 1, 2
_NUD_FAILED, _NUD_PERMANENT = 0x20, 0x80

# The first type of ICMPv6 that isn't an error (RFC 4443).
_INFORMATIONAL = 128

# Errors for packets that the kernel refuses to send.
_REFUSALS = (
    *(errnos.ENETUNREACH, errnos.EHOSTUNREACH, errnos.EACCES, errnos.EINVAL, errnos.EADDRNOTAVAIL),
    errnos.EAFNOSUPPORT,  # an IPv4-mapped source
)

_ROUTER = "02:00:00:00:ff:01"
_SERVED = 80

T = TypeVar("T")

Neighbour = tuple[str, IPv6Address]
"""A router or host on the link of an interface, with the interface first."""

Seen = dict[IpAddress, frozenset["str | None"]]


class SocketKind(Enum):
    """A kind of packet that an ordinary socket sends."""

    DATAGRAM = "an unconnected socket's datagram"
    CONNECTED = "a connected socket's datagram"
    LATER = "a connected socket's datagram after a change of routes"
    SYN = "a connection's first packet"
    CONNECTION = "a connection's packet after a change of routes"


FIRST_PACKETS = (SocketKind.SYN, SocketKind.CONNECTED, SocketKind.DATAGRAM)


@attrs.frozen
class Truth:
    """The outcome for packets that one kind of socket sends to an address.

    Args:
        address: the destination.
        kind: the kind of socket.
        ends: the interfaces through which the packets leave, including None if some are refused or
            dropped.
    """

    address: IpAddress
    kind: SocketKind
    ends: frozenset[str | None]


def truths(
    addresses: Iterable[IpAddress],
    *devs: str,
    tries: int = 1,
    failed: Sequence[Neighbour] = (),
    kinds: Iterable[SocketKind] = SocketKind,
) -> list[Truth]:
    """Return the outcome for each address and kind of socket in the calling thread's network
    namespace.

    Args:
        addresses: the destinations.
        devs: the interfaces on which to disable ARP.
        tries: number of ports to try for each address.
        failed: unreachable neighbours.
        kinds: the kinds of sockets.

    Returns:
        One item per address and kind, except for connections that can't be established.
    """
    found: list[Truth] = []
    kinds = tuple(kinds)
    with Leaving(*devs, failed=failed) as leaving:
        for address in addresses:
            for kind in kinds:
                ends = {leaving.end(kind, address, port) for port in range(9, 9 + tries)} - {None}
                if ends:
                    leaves = frozenset(end if isinstance(end, str) else None for end in ends)
                    found.append(Truth(address, kind, leaves))
    return found


def seen_leaving(
    addresses: Sequence[IpAddress],
    *devs: str,
    tries: int = 1,
    failed: Sequence[Neighbour] = (),
    kinds: Iterable[SocketKind] = FIRST_PACKETS,
) -> Seen:
    """Return the interfaces through which packets to each address leave, including None if some are
    dropped.

    See ``truths`` for the arguments.
    """
    seen = dict.fromkeys(addresses, frozenset[str | None]())
    for truth in truths(addresses, *devs, tries=tries, failed=failed, kinds=kinds):
        seen[truth.address] |= truth.ends
    return seen


@attrs.frozen
class _Frame:
    dev: str
    link_address: str
    packet: bytes


class Leaving:
    """A sender in the calling thread's network namespace that observes which interfaces its packets
    leave through.

    There is no need to wait: an interface without a queue (veth, lo) delivers each packet to its
    packet sockets before the system call returns. No reply is needed.

    Args:
        devs: the interfaces. ARP is disabled on them, so packets leave immediately.
        failed: unreachable neighbours. Their state is reset to FAILED before each packet.
    """

    def __init__(self, *devs: str, failed: Sequence[Neighbour] = ()) -> None:
        self._wires = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_ALL))
        self._wires.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self._wires.setblocking(False)
        self._rtnetlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        for dev in devs:
            flags = self._flags(dev)
            fcntl.ioctl(
                self._wires, _SIOCSIFFLAGS, struct.pack("16sH14x", dev.encode(), flags | _IFF_NOARP)
            )
        self._failed = {address.packed for _, address in failed}
        self._fails = [_neighbour(dev, address, _NUD_FAILED) for dev, address in failed]
        self._answers = [_neighbour(dev, address, _NUD_PERMANENT) for dev, address in failed]
        self._dropped = _dropped()
        self._may_drop = any(
            self._flags(dev) & (_IFF_UP | _IFF_RUNNING) == _IFF_UP
            for _, dev in socket.if_nameindex()
        )

    def _flags(self, dev: str) -> int:
        flags: int = struct.unpack("16sH14x", self._asked(_SIOCGIFFLAGS, dev))[1]
        return flags

    def _asked(self, request: int, dev: str) -> bytes:
        return fcntl.ioctl(self._wires, request, struct.pack("16s16x", dev.encode()))

    def link_address(self, dev: str) -> str:
        """Return an interface's Ethernet address."""
        return self._asked(_SIOCGIFHWADDR, dev)[18:24].hex(":")

    @cached_property
    def _far(self) -> socket.socket:
        return socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)

    def __enter__(self) -> Leaving:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._set(self._fails)
        # Closing a packet socket takes the kernel some 15 ms, so most hosts have only one.
        for opened in (self._wires, self.__dict__.get("_far"), self._rtnetlink):
            if opened is not None:
                opened.close()

    def end(self, kind: SocketKind, address: IpAddress, port: int = 9) -> str | int | None:
        """Return the interface through which a packet leaves, or the socket's errno.

        Args:
            kind: the kind of socket.
            address: the destination.
            port: the destination port.

        Returns:
            The interface name, or the errno, which is 0 if a packet is dropped without an error.
            None for a connection that can't be established because the reply doesn't reach the
            socket.
        """
        if kind is SocketKind.CONNECTION:
            return self._after(lambda: self._connection(address, port), address)
        return self.sent(lambda: _SENDERS[kind](address, port), address)

    def sent(self, send: Callable[[], object], address: IpAddress) -> str | int:
        """Return the interface through which a packet to an address leaves, or the socket's errno;
        see ``end``.

        Args:
            send: a function that sends the packet.
            address: the packet's destination.
        """

        def observe() -> str | int:
            send()
            return self.newest(address)

        return self._after(observe, address)

    def _after(self, observe: Callable[[], T], address: IpAddress) -> T | int:
        self._prepare(address)
        try:
            return observe()
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise
            assert self._leaving_for(address) == [], (
                f"{address}: the socket failed, and something left: {error}"
            )
            return error.errno

    def answer(self, own: IpAddress, address: IpAddress, dev: str, port: int = 9) -> str | int:
        """Return the interface through which a server accepts a connection, or 0 if the client gets
        no answer.

        Args:
            own: the server's address.
            address: the client's address.
            dev: the interface through which the client's SYN arrives.
            port: the client's port.
        """
        self._prepare(address)
        link_address = self.link_address(dev)
        # Once the server is closed, the kernel doesn't repeat its answer.
        with socket.create_server(("", _SERVED), family=Family.of(own).af):
            self._send_back(
                address, own, frames.segment(port, _SERVED, frames.SYN), link_address, dev
            )
            return self.newest(address)

    def _connection(self, address: IpAddress, port: int) -> str | int | None:
        protocol_at = 9 if address.version == 4 else 6
        with socket.socket(
            Family.of(address).af, socket.SOCK_STREAM | socket.SOCK_NONBLOCK
        ) as client:
            # Otherwise, the connection keeps sending after it is closed.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            _connect(client, address, port)
            self._set(self._answers)  # releases packets queued for a neighbour
            sent = [
                frame
                for frame in self._leaving_for(address)
                if frame.packet[protocol_at] == frames.TCP
            ]
            if not sent or sent[0].dev == "lo":
                return sent[0].dev if sent else next(iter(self._newly_dropped()), None)
            self._accept(sent[0], address)
            self._leaving_for(address)
            if client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _TCP_ESTABLISHED:
                return None
            self._prepare(address)
            _drop_route(client)
            client.send(b"x")
            return self.newest(address)

    def _accept(self, syn: _Frame, address: IpAddress) -> None:
        """Reply to a SYN from the other end of the veth pair."""
        own, header = (syn.packet[12:16], 20) if address.version == 4 else (syn.packet[8:24], 40)
        sport, dport, number = struct.unpack_from("!HHI", syn.packet, header)
        reply = frames.segment(
            dport, sport, frames.SYN | frames.ACK, acknowledged=(number + 1) % 2**32
        )
        self._send_back(address, ip_address(own), reply, syn.link_address, syn.dev)

    def _send_back(
        self, address: IpAddress, own: IpAddress, segment: bytes, link_address: str, dev: str
    ) -> None:
        """Send a TCP segment to this host from the other end of the veth pair."""
        packet = frames.Packet(address, own, frames.TCP, segment, hop_limit=64)
        self._far.sendto(frames.written(packet, _ROUTER, link_address), (far_end(dev), 0))

    def _prepare(self, address: IpAddress) -> None:
        if self._fails:
            self._set(self._fails)
            self._leaving_for(address)  # discard errors for packets queued for a neighbour
        if self._may_drop:
            self._dropped = _dropped()  # ignore earlier drops

    def _set(self, neighbours: Sequence[bytes]) -> None:
        for neighbour in neighbours:
            self._rtnetlink.send(neighbour)

    def newest(self, address: IpAddress) -> str | int:
        """Return the interface through which a packet to an address has just left, or 0 if it
        hasn't left.
        """
        # On lo, an error reply is also addressed to the same address.
        seen = self.passing(address)
        if not seen and self._answers:
            # The kernel had asked who the neighbour is before, for an error that it sent.
            self._set(self._answers)
            seen = [frame.dev for frame in self._leaving_for(address)]
        return next(iter(seen or self._newly_dropped()), 0)

    def passing(self, address: IpAddress) -> list[str]:
        """Return the interfaces through which packets to an address have just left, in order."""
        return [frame.dev for frame in self._leaving_for(address)]

    def _newly_dropped(self) -> list[str]:
        """Return the interfaces that dropped a packet for lack of a carrier; packet sockets don't
        see those packets.
        """
        before, self._dropped = self._dropped, _dropped()
        return [dev for dev, count in self._dropped.items() if count > before.get(dev, 0)]

    def _leaving_for(self, address: IpAddress) -> list[_Frame]:
        """Return the captured packets to an address, and neighbour solicitations for failed
        neighbours.
        """
        found: list[_Frame] = []
        while True:
            try:
                packet, (dev, protocol, kind, _, link_address) = self._wires.recvfrom(128)
            except BlockingIOError:
                return found
            if kind != _PACKET_OUTGOING:
                continue
            if protocol == _ETH_P_IP:
                is_one = packet[16:20] == address.packed
            else:
                asked = packet[48:64] if packet[6:7] == _ICMPV6 else b""
                is_one = address.packed in packet[24:] or asked in self._failed
                if asked and packet[40] < _INFORMATIONAL:
                    # An error from this host to itself, which leaves if table main comes before
                    # table local.
                    dev = "lo"
            if is_one:
                found.append(_Frame(dev, link_address.hex(":"), packet))


_ICMPV6 = bytes((frames.ICMPV6,))


def far_end(dev: str) -> str:
    """Return the name of an interface's veth peer, if it is in the same namespace."""
    return f"peer-{dev}"


def _connect(client: socket.socket, address: IpAddress, port: int) -> None:
    errno = client.connect_ex((str(address), port))
    if errno not in (errnos.EINPROGRESS, errnos.ECONNREFUSED):
        raise OSError(errno, "")


def _send_syn(address: IpAddress, port: int) -> None:
    with socket.socket(Family.of(address).af, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as client:
        _connect(client, address, port)


def _send_connected(address: IpAddress, port: int) -> None:
    with socket.socket(Family.of(address).af, socket.SOCK_DGRAM) as client:
        client.connect((str(address), port))
        client.send(b"")


def _send_later(address: IpAddress, port: int) -> None:
    with socket.socket(Family.of(address).af, socket.SOCK_DGRAM) as client:
        client.connect((str(address), port))
        _drop_route(client)
        client.send(b"")


def _drop_route(client: socket.socket) -> None:
    """Invalidate a socket's cached route, as a relevant route change would, by temporarily changing
    its mark.
    """
    for mark in (1, 0):
        client.setsockopt(socket.SOL_SOCKET, _SO_MARK, mark)


def send_datagram(address: IpAddress, port: int, own: str = "") -> None:
    """Send a datagram, from this host's own address if one is named."""
    with socket.socket(Family.of(address).af, socket.SOCK_DGRAM) as client:
        client.bind((own, 0))
        client.sendto(b"", (str(address), port))


_SENDERS: dict[SocketKind, Callable[[IpAddress, int], None]] = {
    SocketKind.DATAGRAM: send_datagram,
    SocketKind.CONNECTED: _send_connected,
    SocketKind.LATER: _send_later,
    SocketKind.SYN: _send_syn,
}


def _neighbour(dev: str, address: IPv6Address, state: int) -> bytes:
    """Return a netlink request that sets a neighbour's state."""
    header = struct.pack("=BxxxiHBB", socket.AF_INET6, socket.if_nametoindex(dev), state, 0, 0)
    attributes = struct.pack("=HH16s", 20, _NDA_DST, address.packed)
    if state == _NUD_PERMANENT:
        attributes += struct.pack(
            "=HH6sxx", 10, _NDA_LLADDR, bytes.fromhex(_ROUTER.replace(":", ""))
        )
    body = header + attributes
    return struct.pack("=IHHII", 16 + len(body), _RTM_NEWNEIGH, _REQUEST_REPLACE, 0, 0) + body


def _dropped() -> dict[str, int]:
    """Return the number of dropped packets on each interface."""
    lines = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
    return {
        name.strip(): int(counts.split()[11])
        for name, _, counts in (line.rpartition(":") for line in lines)
    }
