"""Observe how packets from, to and through a host go, to compare that before and after a change.

The bulk is asked of the kernel with RTM_GETROUTE, because that takes microseconds: ``ways``. It
runs the code that packets run: ip_route_output_key_hash, and ip_route_input with the filter of
reverse paths for packets that arrive. ``seen`` sends the same packets from sockets, or as frames
from the far end of an interface's veth pair; that is the truth, and takes longer. Tests compare
both for a sample.

A lookup doesn't tell whether neighbours answer, and one without a source is made twice, as by a
socket that connects: again with the source that the first lookup has chosen.
"""

from __future__ import annotations

import errno as errnos
import ipaddress
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise

import attrs
import frames
from leaving import Leaving, far_end, send_datagram

from hostrouting.backend import RouteBackend, read_routes
from hostrouting.kernel.netlink import NO_ROUTE_ERRNOS
from hostrouting.kernel.refusals import NetlinkError
from hostrouting.kernel.rtnetlink import messages as rtnl
from hostrouting.kernel.rtnetlink import route_messages as rtm
from hostrouting.kernel.rtnetlink.conversation import Conversation
from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.links import Link
from hostrouting.model.routes import RouteType, Table

# linux/rtnetlink.h, linux/if.h
_RTA_IIF, _IFF_NOARP = 3, 0x80
_RTMSG = struct.Struct("=8BI")
_PORT, _FAR_PORT = 7777, 5555
# On a busy machine, workers of the kernel start queues and deliver frames late.
_PAUSES_SECONDS = (0, 0.001, 0.004, 0.016, 0.064, 0.256)
_SENDERS_MAX, _PODS_MAX = 6, 4

_OF_THE_LINK = (RouteType.BROADCAST, RouteType.MULTICAST, RouteType.ANYCAST)

# Addresses that no host sends to, or that need an interface.
_UNASKED: tuple[IpNetwork, ...] = (
    *map(ipaddress.IPv4Network, ("0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/3")),
    *map(ipaddress.IPv6Network, ("::/8", "fe80::/10", "ff00::/8")),
)


@attrs.frozen
class Packet:
    """A packet that a program of this host sends, or that arrives.

    Args:
        to: its destination.
        source: its source, or None if the program leaves the choice to the kernel.
        arrives_on: the interface on which it arrives, or an empty string if this host sends it.
    """

    to: IpAddress
    source: IpAddress | None = None
    arrives_on: str = ""

    def __str__(self) -> str:
        source = "" if self.source is None else f" from {self.source}"
        return f"{self.to}{source}" + (f" in by {self.arrives_on}" if self.arrives_on else "")


@attrs.frozen
class Way:
    """How a packet goes.

    Args:
        dev: the interface through which it leaves, ``lo`` if this host receives it, or an empty
            string.
        gateway: the router that it is sent to, or an empty string.
        error: the name of the errno if it is refused or dropped, or an empty string.
        then: the way of the second lookup, with the source chosen by the first one, if it differs.
    """

    dev: str = ""
    gateway: str = ""
    error: str = ""
    then: str = ""

    def __str__(self) -> str:
        way = self.error or self.dev + (f" via {self.gateway}" if self.gateway else "")
        return f"{way}, then {self.then}" if self.then else way


Ways = dict[Packet, Way]


def packets(
    backend: RouteBackend,
    cidrs: Iterable[IpNetwork] = (),
    more: Iterable[IpNetwork] = (),
    containers: Sequence[str] = (),
) -> list[Packet]:
    """Return packets of all kinds that a change may lead elsewhere.

    To a destination of each range in which the routes, rules and given prefixes can't tell
    addresses apart: packets without a source, from each own address, and from pods. To each own
    address and pod: packets that arrive on each interface, from a neighbour, from an expected
    address, and from an address that a rule selects.

    Args:
        backend: the host's kernel.
        cidrs: the expected CIDRs.
        more: the destinations of what will be installed.
        containers: interfaces behind which there are pods.
    """
    facts, cidrs = backend.facts(), [*cidrs]
    family = backend.family
    routes = read_routes(backend)
    own = {
        each.local: each.dev
        for each in facts.addresses
        if each.is_usable and not each.local.is_link_local and not each.local.is_loopback
    }
    selected = [rule.source for rule in facts.rules if rule.source is not None]
    prefixes = [
        *(route.destination for route in routes),
        *(rule.destination for rule in facts.rules if rule.destination is not None),
        *cidrs,
        *more,
    ]
    kernels = {int(each.destination[0]) for each in routes if each.type in _OF_THE_LINK}
    destinations = [each for each in _one_of_each(prefixes, family) if int(each) not in kernels]
    pods = {
        _inner(route.destination, own): hop.dev
        for route in routes
        for hop in route.hops
        if hop.dev is not None and hop.dev in containers and route.type is RouteType.UNICAST
        if route.table == Table.MAIN and route.destination.prefixlen
    }
    pods = dict([(pod, dev) for pod, dev in pods.items() if pod not in own][:_PODS_MAX])
    found = dict.fromkeys(Packet(to) for to in destinations)
    found |= dict.fromkeys(Packet(to, source) for source in own for to in destinations)
    found |= dict.fromkeys(
        Packet(to, pod, dev) for pod, dev in pods.items() for to in destinations if to not in own
    )
    strangers = [_inner(network, own) for network in (*cidrs[:2], *selected) if network.prefixlen]
    for link in facts.links:
        if not link.is_up or link.name == "lo" or link.name.startswith(("peer-", "port-")):
            continue
        near = [
            _inner(each.network, own)
            for each in facts.addresses
            if each.dev == link.name and each.prefix_length < family.bits - 1
        ]
        senders = [each for each in dict.fromkeys((*near, *strangers)) if each not in own]
        found |= dict.fromkeys(
            Packet(to, sender, link.name)
            for to in (*own, *pods)
            for sender in senders[:_SENDERS_MAX]
            if to != sender and pods.get(sender, link.name) == link.name
        )
    return [*found]


def _one_of_each(prefixes: Iterable[IpNetwork], family: Family) -> list[IpAddress]:
    """Return an address of each range between the edges of prefixes."""
    end = 1 << family.bits
    edges = sorted(
        {int(prefix[0]) for prefix in prefixes}
        | {int(prefix[-1]) + 1 for prefix in prefixes}
        | {end}
    )
    blocks = [block for block in _UNASKED if block.version == family.value]
    addresses = (
        family.address(edge + (edge + 2 < following)) for edge, following in pairwise(edges)
    )
    return [each for each in addresses if not any(each in block for block in blocks)]


def _inner(network: IpNetwork, own: Iterable[IpAddress]) -> IpAddress:
    """Return an address of a network, if possible not this host's."""
    some = (network[number] for number in range(min(network.num_addresses, 9)))
    others = [each for each in some if each not in {*own}]
    return others[min(1, len(others) - 1)] if others else network[0]


# --- by the kernel's lookups ----------------------------------------------------------------------


def ways(family: Family, asked: Iterable[Packet]) -> Ways:
    """Return how packets go, by the lookups of the kernel of this thread's network namespace."""
    asked = [*asked]
    with Conversation() as talk:
        first = _asked(talk, family, asked)
        again = [
            attrs.evolve(packet, source=source)
            for packet, (way, source) in first.items()
            if packet.source is None and source is not None and way.dev != "lo"
        ]
        second = _asked(talk, family, again)
    found: Ways = {}
    for packet, (way, source) in first.items():
        then, _ = second.get(attrs.evolve(packet, source=source), (way, None))
        found[packet] = way if then == way else attrs.evolve(way, then=f"{then} from {source}")
    return found


def _asked(
    talk: Conversation, family: Family, asked: Sequence[Packet]
) -> dict[Packet, tuple[Way, IpAddress | None]]:
    """Return for each packet the way, and the source that the kernel has chosen."""
    indexes = {name: index for index, name in socket.if_nameindex()}
    names = {index: name for name, index in indexes.items()}
    head = _RTMSG.pack(family.af, family.bits, 0, 0, 0, 0, 0, 0, 0)
    head_from = _RTMSG.pack(family.af, family.bits, family.bits, 0, 0, 0, 0, 0, 0)
    user = rtnl.number_attribute(rtm.RTA_UID, 0) + rtnl.attribute(
        rtm.RTA_IP_PROTO, bytes((socket.IPPROTO_UDP,))
    )

    def pack(packet: Packet, sequence: int) -> bytes:
        body = (head if packet.source is None else head_from) + rtnl.attribute(
            rtm.RTA_DST, packet.to.packed
        )
        if packet.source is not None:
            body += rtnl.attribute(rtm.RTA_SRC, packet.source.packed)
        if packet.arrives_on:
            body += rtnl.number_attribute(_RTA_IIF, indexes[packet.arrives_on])
        return rtnl.message(rtnl.RTM_GETROUTE, rtnl.GET, sequence, body + user)

    # Nothing arrives on an interface that has been deleted.
    found: dict[Packet, tuple[Way, IpAddress | None]] = {
        packet: (Way(error="ENODEV"), None)
        for packet in asked
        if packet.arrives_on and packet.arrives_on not in indexes
    }
    asked = [packet for packet in asked if packet not in found]
    expected = (*NO_ROUTE_ERRNOS, errnos.EXDEV, errnos.ENODEV, errnos.EADDRNOTAVAIL)
    for packet, answer in talk.ask(asked, pack, expected):
        if isinstance(answer, NetlinkError):
            found[packet] = (Way(error=errnos.errorcode[answer.errno]), None)
        else:
            way = _way(answer, names, is_sent=not packet.arrives_on)
            found[packet] = (way, rtm.chosen_source(answer))
    return found


def _way(answer: bytes, names: dict[int, str], *, is_sent: bool) -> Way:
    *_, kind, _ = _RTMSG.unpack_from(answer, rtnl.HEADER_BYTES)
    attributes = rtnl.attributes(answer, rtnl.HEADER_BYTES + _RTMSG.size)
    if kind in (RouteType.LOCAL, RouteType.ANYCAST):
        return Way("lo")
    # An IPv6 entry that discards is answered with its error.
    if kind in (RouteType.BLACKHOLE, RouteType.UNREACHABLE, RouteType.PROHIBIT):
        return Way(error=RouteType(kind).name)
    index = rtnl.to_number(attributes[rtm.RTA_OIF])
    via = attributes.get(rtm.RTA_GATEWAY, b"") or attributes.get(rtm.RTA_VIA, b"")[2:]
    if names[index] == "lo" and not is_sent:
        return Way(error="UNHEARD")  # main's route to an IPv6 address on lo drops what arrives
    return Way(names[index], str(ipaddress.ip_address(via)) if via else "")


# --- by sockets and frames ------------------------------------------------------------------------


def seen(asked: Iterable[Packet], links: Iterable[Link]) -> Ways:
    """Return how packets go, as they are seen; a packet that isn't seen has the error ``LOST``.

    Only packets of this host, and those that arrive on an interface with a far end in the same
    namespace: ``peer-NAME``, or that of its port ``port-NAME``. For packets without a source, only
    an unconnected socket's.

    Args:
        asked: the packets.
        links: the host's interfaces.
    """
    names = {link.name for link in links}
    found: Ways = {}
    with ExitStack() as stack:
        leaving = stack.enter_context(Leaving(*(names - {"lo"})))
        arriving = stack.enter_context(_Arriving(leaving))
        for packet in asked:
            if packet.arrives_on:
                end = arriving.end(packet)
            else:
                own = "" if packet.source is None else str(packet.source)
                end = leaving.sent(partial(send_datagram, packet.to, 9, own), packet.to)
            if isinstance(end, str):
                found[packet] = Way(end)
            else:
                found[packet] = Way(error=errnos.errorcode.get(end, "LOST"))
    return found


class _Arriving:
    """Frames sent from the far ends of interfaces, and sockets that wait for them."""

    def __init__(self, leaving: Leaving) -> None:
        self._leaving = leaving
        self._far = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._heard: dict[Family, socket.socket] = {}
        for family in Family:
            heard = socket.socket(family.af, socket.SOCK_DGRAM)
            if family is Family.IPV6:
                heard.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            heard.bind(("", _PORT))
            heard.setblocking(False)
            self._heard[family] = heard
        self._number = 0

    def __enter__(self) -> _Arriving:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._far, *self._heard.values()):
            each.close()

    def end(self, packet: Packet) -> str | int:
        """Return ``lo`` if a socket receives a packet, or the interface through which it leaves."""
        assert packet.source is not None
        self._number += 1
        data = self._number.to_bytes(4, "big")
        datagram = struct.pack("!HHHH", _FAR_PORT, _PORT, 8 + len(data), 0) + data
        written = frames.written(
            frames.Packet(packet.source, packet.to, frames.UDP, datagram, hop_limit=64),
            "02:00:00:00:ff:01",
            self._leaving.link_address(packet.arrives_on),
        )

        far = self._port(packet.arrives_on)
        for pause in _PAUSES_SECONDS:
            time.sleep(pause)
            self._far.sendto(written, (far, 0))
            # Through lo, this host may send an error about the packet.
            passing = [dev for dev in self._leaving.passing(packet.to) if dev not in (far, "lo")]
            if self._hears(Family.of(packet.to), data):
                return "lo"
            if passing:
                return passing[0]
        return 0

    def _port(self, dev: str) -> str:
        names = {name for _, name in socket.if_nameindex()}
        ports = (far_end(dev)[:15], far_end(f"port-{dev}"[:15])[:15])
        return next(port for port in ports if port in names)

    def _hears(self, family: Family, data: bytes) -> bool:
        try:
            while self._heard[family].recv(16) != data:
                pass
        except BlockingIOError:
            return False
        return True
