"""Send packets from ordinary sockets of this host, and see through which interface they leave."""

from __future__ import annotations

import errno as errnos
import fcntl
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from ipaddress import IPv4Address
    from types import TracebackType

# linux/if_ether.h, linux/if_packet.h, linux/sockios.h, linux/if.h
_ETH_P_ALL, _ETH_P_IP, _ETH_P_IPV6, _PACKET_OUTGOING = 0x0003, 0x0800, 0x86DD, 4
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_NOARP = 0x8913, 0x8914, 0x80


class Leaving:
    """A sender in the calling thread's network namespace that sees through which interface its packets leave.

    Sending requires no waiting, because an interface without a queue (veth, lo) delivers each packet to its listeners
    before the system call returns. No reply is needed.

    Args:
        devs: the interfaces; ARP is turned off on them, so that packets leave at once.
    """

    def __init__(self, *devs: str) -> None:
        self._wires = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_ALL))
        self._wires.setblocking(False)
        for dev in devs:
            request = struct.pack("16sH14x", dev.encode(), 0)
            _, flags = struct.unpack("16sH14x", fcntl.ioctl(self._wires, _SIOCGIFFLAGS, request))
            fcntl.ioctl(self._wires, _SIOCSIFFLAGS, struct.pack("16sH14x", dev.encode(), flags | _IFF_NOARP))
        self._dropped = _dropped()

    def __enter__(self) -> Leaving:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wires.close()

    def by_tcp(self, address: IPv4Address, port: int) -> str | None:
        """Return the interface through which a connection's first packet leaves, or None if there is none."""

        def connect() -> None:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as client:
                errno = client.connect_ex((str(address), port))
                if errno not in (errnos.EINPROGRESS, errnos.ECONNREFUSED):
                    raise OSError(errno, "")

        return self._seen(connect, address)

    def by_connected_datagram(self, address: IPv4Address, port: int) -> str | None:
        """Return the interface through which a connected socket's datagram leaves, or None if there is none."""

        def send() -> None:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
                client.connect((str(address), port))
                client.send(b"")

        return self._seen(send, address)

    def by_datagram(self, address: IPv4Address, port: int) -> str | None:
        """Return the interface through which an unconnected socket's datagram leaves, or None if there is none."""

        def send() -> None:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
                client.sendto(b"", (str(address), port))

        return self._seen(send, address)

    def _seen(self, send: Callable[[], None], address: IPv4Address) -> str | None:
        try:
            send()
        except OSError as error:
            if error.errno not in (errnos.ENETUNREACH, errnos.EHOSTUNREACH, errnos.EACCES, errnos.EINVAL):
                raise
            assert self._leaving_for(address) == [], f"{address}: the socket failed, and something left: {error}"
            return None
        # On lo, the reply that refuses a packet is itself a packet to the same address.
        return next(iter(self._leaving_for(address) or self._newly_dropped()), None)

    def _newly_dropped(self) -> list[str]:
        """Return the interfaces that dropped a packet for lack of a carrier, which their listeners can't see."""
        before, self._dropped = self._dropped, _dropped()
        return [dev for dev, count in self._dropped.items() if count > before.get(dev, 0)]

    def _leaving_for(self, address: IPv4Address) -> list[str]:
        devs: list[str] = []
        while True:
            try:
                header, (dev, protocol, kind, *_) = self._wires.recvfrom(128)
            except BlockingIOError:
                return devs
            is_plain = protocol == _ETH_P_IP and header[16:20] == address.packed
            is_wrapped = protocol == _ETH_P_IPV6 and address.packed in header[40:]
            if kind == _PACKET_OUTGOING and (is_plain or is_wrapped):
                devs.append(dev)


def _dropped() -> dict[str, int]:
    """Return the number of packets that each interface has dropped."""
    lines = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
    return {name.strip(): int(counts.split()[11]) for name, _, counts in (line.rpartition(":") for line in lines)}
