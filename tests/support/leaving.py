"""Ordinary sockets of this host, and the interfaces by which what they send leaves."""

from __future__ import annotations

import errno as errnos
import fcntl
import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from ipaddress import IPv4Address
    from types import TracebackType

# linux/if_ether.h, linux/if_packet.h, linux/sockios.h, linux/if.h
_ETH_P_ALL, _ETH_P_IP, _PACKET_OUTGOING = 0x0003, 0x0800, 4
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_NOARP = 0x8913, 0x8914, 0x80


class Leaving:
    """Sends from the calling thread's network namespace, and sees what leaves it.

    Nothing is waited for: an interface without a queue (veth, lo) hands each packet to its listeners before the call
    that sends it returns. Nobody needs to answer.

    Args:
        devs: the interfaces; they stop to ask for the neighbour's address (ARP), so that packets leave at once.
    """

    def __init__(self, *devs: str) -> None:
        self._wires = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_ALL))
        self._wires.setblocking(False)
        for dev in devs:
            request = struct.pack("16sH14x", dev.encode(), 0)
            _, flags = struct.unpack("16sH14x", fcntl.ioctl(self._wires, _SIOCGIFFLAGS, request))
            fcntl.ioctl(self._wires, _SIOCSIFFLAGS, struct.pack("16sH14x", dev.encode(), flags | _IFF_NOARP))

    def __enter__(self) -> Leaving:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wires.close()

    def by_tcp(self, address: IPv4Address, port: int) -> str | None:
        """The interface by which the first packet of a connection leaves; None: the socket fails."""

        def connect() -> None:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as client:
                errno = client.connect_ex((str(address), port))
                if errno not in (errnos.EINPROGRESS, errnos.ECONNREFUSED):
                    raise OSError(errno, "")

        return self._seen(connect, address)

    def by_connected_datagram(self, address: IPv4Address, port: int) -> str | None:
        """The interface by which a datagram of a connected socket leaves; None: the socket fails."""

        def send() -> None:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
                client.connect((str(address), port))
                client.send(b"")

        return self._seen(send, address)

    def by_datagram(self, address: IPv4Address, port: int) -> str | None:
        """The interface by which a datagram of a socket that isn't connected leaves; None: the socket fails."""

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
        # By lo, the answer that refuses it is one to the same address. What leaves encapsulated isn't seen.
        return next(iter(self._leaving_for(address)), "")

    def _leaving_for(self, address: IPv4Address) -> list[str]:
        devs: list[str] = []
        while True:
            try:
                header, (dev, protocol, kind, *_) = self._wires.recvfrom(20)
            except BlockingIOError:
                return devs
            if protocol == _ETH_P_IP and kind == _PACKET_OUTGOING and header[16:20] == address.packed:
                devs.append(dev)
