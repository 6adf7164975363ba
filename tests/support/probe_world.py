"""A load balancer, a node and a pod, each in its own network namespace, that exchange real probe
packets.

::

    balancer  eth0 -------- eth0  node  pod0 -------- eth0  pod

The node uses the calling thread's namespace. veth enables checksum offload by default; it is off at
both ends here, so captured packets contain real checksums.
"""

from __future__ import annotations

import array
import fcntl
import os
import re
import select
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address
from pathlib import Path

import attrs
from frames import ICMPV6, NEIGHBOUR_ADVERTISEMENT, Packet, neighbour_solicitation, read, written
from node import refuse_host, run_ip6, tool, until

from hostrouting.azure.probe.ruleset import PROBE_SOURCE, REWRITTEN_SOURCE, TABLE, render_ruleset
from hostrouting.kernel.unshare import Namespace

BALANCER = IPv6Address("2001:db8:1::1")
NODE = IPv6Address("2001:db8:1::4")
NODE_BY_SECOND_NIC = IPv6Address("2001:db8:2::4")
NODE_LINK_LOCAL = IPv6Address("fe80::4")
NODE_ON_POD_LINK = IPv6Address("fd00:cafe::1")
POD = IPv6Address("fd00:cafe::10")

BALANCER_MAC, NODE_MAC, NODE_POD_MAC, POD_MAC = (
    f"02:00:00:00:00:0{digit}" for digit in (1, 2, 3, 4)
)

SERVICE_PORT, HOST_PORT = 8080, 10256
ANSWER = b"healthy"
PATIENCE_SECONDS = 5.0
LOST_AFTER_SECONDS = 0.1
_POLL_SECONDS = 0.01

HOST_ROUTE = f"{REWRITTEN_SOURCE} via {PROBE_SOURCE} dev eth0 proto 218 metric 1"

_SIOCETHTOOL, _STXCSUM = 0x8946, 0x17  # linux/sockios.h, linux/ethtool.h
_ETH_P_IPV6 = 0x86DD


class World:
    """The three namespaces with links and addresses, but no default route or rules.

    The node forwards packets.
    """

    def __init__(self) -> None:
        self.balancer, self.pod = Namespace(), Namespace()
        for inside in (_here, self.balancer.run, self.pod.run):
            inside(_be_quiet)
        _write("all/forwarding", "1")
        self._wire()
        self._await_addresses()
        _set_checksum_offload(False, "eth0", "pod0")
        self.set_checksum_offload(False)

    def _wire(self) -> None:
        far = f"peer name eth0 address {BALANCER_MAC} netns {_path(self.balancer)}"
        pod = f"peer name eth0 address {POD_MAC} netns {_path(self.pod)}"
        run_ip6(
            f"link add eth0 address {NODE_MAC} type veth {far}",
            f"link add pod0 address {NODE_POD_MAC} type veth {pod}",
            *_up("eth0", f"{NODE}/64", f"{NODE_LINK_LOCAL}/64"),
            *_up("pod0", f"{NODE_ON_POD_LINK}/64", "fe80::4/64"),
        )
        addresses = [f"{address}/64" for address in (PROBE_SOURCE, BALANCER)]
        self.balancer.run(
            lambda: run_ip6(
                *_up("eth0", *addresses), f"route add default via {NODE_LINK_LOCAL} dev eth0"
            )
        )
        self.pod.run(
            lambda: run_ip6(
                *_up("eth0", f"{POD}/64", "fe80::10/64"),
                f"route add default via {NODE_ON_POD_LINK}",
            )
        )

    def _await_addresses(self) -> None:
        for inside in (_here, self.balancer.run, self.pod.run):
            inside(_await_addresses)

    def set_checksum_offload(self, on: bool) -> None:
        """Turn checksum offload on or off in the balancer and the pod; it stays off on the node."""
        for inside in (self.balancer.run, self.pod.run):
            inside(lambda: _set_checksum_offload(on, "eth0"))

    def bridge(self) -> None:
        """Set up azure-vnet's bridge mode: eth0 becomes a port of azure0, and the node's addresses
        move to azure0.
        """
        run_ip6(
            f"link add azure0 address {NODE_MAC} type bridge forward_delay 0",
            "address flush dev eth0",
            "link set eth0 master azure0",
            *_up("azure0", f"{NODE}/64", f"{NODE_LINK_LOCAL}/64"),
        )
        self._await_addresses()

    def add_nic(self) -> None:
        """Add eth1 to the node so that the balancer can send probes to it too."""
        far = f"peer name eth1 netns {_path(self.balancer)}"
        node = _up("eth1", f"{NODE_BY_SECOND_NIC}/64", f"{NODE_LINK_LOCAL}/64")
        run_ip6(f"link add eth1 type veth {far}", *node)
        balancer = _up("eth1", f"{PROBE_SOURCE}/64", "2001:db8:2::1/64")
        self.balancer.run(lambda: run_ip6(*balancer))
        self._await_addresses()
        for inside in (_here, self.balancer.run):
            inside(lambda: _set_checksum_offload(False, "eth1"))

    # --- probes -----------------------------------------------------------------------------------

    def probe(
        self,
        destination: IPv6Address = POD,
        port: int = SERVICE_PORT,
        *,
        by: str = "eth0",
        patience: float = PATIENCE_SECONDS,
    ) -> bytes:
        """Return the reply to the balancer's health probe."""
        with self.balancer.run(lambda: _probing_socket(by)) as client:
            client.settimeout(patience)
            client.connect((str(destination), port))
            return b"".join(iter(lambda: client.recv(65536), b""))

    def is_lost(
        self, destination: IPv6Address = POD, port: int = SERVICE_PORT, *, by: str = "eth0"
    ) -> bool:
        """Return whether a probe gets no reply."""
        try:
            self.probe(destination, port, by=by, patience=LOST_AFTER_SECONDS)
        except TimeoutError:
            return True
        return False

    # --- packets that no kernel would send --------------------------------------------------------

    def send_to_node(self, *packets: Packet) -> None:
        """Send packets from the balancer, and wait until the node has processed all of them that it
        doesn't defer.
        """
        question = icmp(NODE_LINK_LOCAL, neighbour_solicitation(NODE_LINK_LOCAL, BALANCER_MAC))
        frames = [written(packet, BALANCER_MAC, NODE_MAC) for packet in (*packets, question)]

        def is_answer(packet: Packet) -> bool:
            return packet.icmp == (NEIGHBOUR_ADVERTISEMENT, 0)

        with capturing("eth0", self.balancer) as wire:
            self.balancer.run(lambda: _send(frames))
            try:
                wire.until(is_answer, PATIENCE_SECONDS / 5)
            except AssertionError:
                # On a busy machine, this solicitation may get lost while the interfaces are coming
                # up.
                self.balancer.run(lambda: _send(frames[-1:]))
                wire.until(is_answer)

    def send_from_pod(self, *packets: Packet) -> None:
        frames = [written(packet, POD_MAC, NODE_POD_MAC) for packet in packets]
        self.pod.run(lambda: _send(frames))


def icmp(destination: IPv6Address, payload: bytes) -> Packet:
    """Return an ICMPv6 packet from the probe source address."""
    return Packet(PROBE_SOURCE, destination, ICMPV6, payload)


def _path(namespace: Namespace) -> str:
    return f"/proc/{os.getpid()}/fd/{namespace.fd}"


def _here(function: Callable[[], None]) -> None:
    function()


def _be_quiet() -> None:
    """Disable automatic addresses, duplicate address detection and router solicitations."""
    for name, value in (
        ("addr_gen_mode", 1),
        ("accept_dad", 0),
        ("router_solicitations", 0),
        ("accept_ra", 0),
    ):
        _write(f"default/{name}", str(value))
    _write("all/accept_dad", "0")


def _write(name: str, value: str) -> None:
    refuse_host()
    Path("/proc/sys/net/ipv6/conf", name).write_text(value)


def _await_addresses() -> None:
    """Wait until every address can be bound: even without DAD, the kernel clears the tentative flag
    asynchronously.
    """
    until(lambda: "tentative" not in tool("ip", "-6", "address"))


def _up(dev: str, *addresses: str) -> list[str]:
    return [*(f"address add {address} dev {dev}" for address in addresses), f"link set {dev} up"]


def _set_checksum_offload(on: bool, *devs: str) -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as here:
        for dev in devs:
            value = array.array("B", struct.pack("II", _STXCSUM, on))
            fcntl.ioctl(
                here, _SIOCETHTOOL, struct.pack("16sP", dev.encode(), value.buffer_info()[0])
            )


def _probing_socket(dev: str) -> socket.socket:
    client = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    client.bind((str(PROBE_SOURCE), 0, 0, socket.if_nametoindex(dev)))
    return client


def _send(frames: list[bytes]) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one CPU keeps packets in order
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as wire:
        wire.bind(("eth0", 0))
        for frame in frames:
            wire.send(frame)


# --- services -------------------------------------------------------------------------------------


@contextmanager
def serving(
    port: int, namespace: Namespace | None = None, answer: bytes = ANSWER
) -> Iterator[list[IPv6Address]]:
    """Serve TCP on a port, in another namespace or on the node, and collect the clients that have
    connected.
    """
    peers: list[IPv6Address] = []

    class Answer(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            peers.append(IPv6Address(self.client_address[0]))
            self.request.settimeout(PATIENCE_SECONDS)
            self.request.sendall(answer)

    class Server(socketserver.TCPServer):
        address_family, allow_reuse_address, request_queue_size = socket.AF_INET6, True, 512

    def listen() -> Server:
        return Server(("::", port), Answer)

    with listen() if namespace is None else namespace.run(listen) as server:
        thread = threading.Thread(target=server.serve_forever, args=(_POLL_SECONDS,))
        thread.start()
        try:
            yield peers
        finally:
            server.shutdown()
            thread.join()


# --- what is on the wire --------------------------------------------------------------------------


@attrs.frozen
class Capture:
    """The IPv6 packets received on a device since the capture started."""

    wire: socket.socket

    def packets(self) -> list[Packet]:
        packets = []
        while select.select([self.wire], [], [], 0)[0]:
            packets.append(read(self.wire.recv(65536)))
        return packets

    def until(
        self, wanted: Callable[[Packet], bool], patience: float = PATIENCE_SECONDS
    ) -> list[Packet]:
        """Return all packets up to and including the first match, or raise ``AssertionError`` if
        there is none.
        """
        packets: list[Packet] = []
        while select.select([self.wire], [], [], patience)[0]:
            packets.append(read(self.wire.recv(65536)))
            if wanted(packets[-1]):
                return packets
        raise AssertionError(f"what was waited for didn't come; this did: {packets}")


@contextmanager
def capturing(dev: str, namespace: Namespace | None = None) -> Iterator[Capture]:
    def listen() -> socket.socket:
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        wire.bind((dev, _ETH_P_IPV6))
        return wire

    with listen() if namespace is None else namespace.run(listen) as wire:
        yield Capture(wire)


# --- the node's rules and routes ------------------------------------------------------------------


def nft(text: str) -> None:
    tool("nft", "-f", "-", stdin=text)


def load_rules(device: str = "eth0") -> None:
    nft(render_ruleset(device))


def counters(table: str = TABLE) -> tuple[int, ...]:
    """Return the packet counters of a table's rules, in listing order."""
    return tuple(
        map(int, re.findall(r"counter packets (\d+)", tool("nft", "list", "table", "ip6", table)))
    )


def everything() -> tuple[str, str]:
    """Return all rules with their handles, and all routes."""
    return tool("nft", "-s", "-a", "list", "ruleset"), tool("ip", "-6", "route", "show")
