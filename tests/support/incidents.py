"""Rebuild a public incident's host in a network namespace, check it, and see with sockets how its
packets leave.

A case is a JSON file in ``tests/incidents``, whose keys CONTRIBUTING explains. Nothing here reads
its expectation.
"""

from __future__ import annotations

import errno as errnos
import os
import re
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import attrs
import pytest
from asking import recorded
from infiniband import infiniband
from leaving import Leaving
from nightly import is_chosen
from node import attempt, on_linux, run_ip, until
from reaching import Packet, Ways, packets, seen, ways

from hostrouting import Config, Host, Layout, OverlapReport, check
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.kernel.port import read_routes
from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.links import Link, is_like
from hostrouting.model.routes import Table
from hostrouting.model.verified_uplinks import VerifiedUplink
from hostrouting.overlap.offers import keep_offers
from hostrouting.tasks.install_routes import InstallRoutes
from hostrouting.testing import FakeSystemd
from phases import CancelScope

_ADDRESSING = ("nic", "bridge", "infiniband", "addr")
_PORTS = range(9, 41)
_IP_MTU, _IPV6_MTU = 14, 24  # linux/in.h, linux/in6.h


@attrs.frozen
class Probe:
    """A packet, and how it leaves when all is well.

    Args:
        to: the destination.
        through: the interface through which it should leave, or ``lo`` if this host should receive
            it.
        via: the gateway that should forward it, or an empty string if none should, if the incident
            is about gateways.
        mtu: the size of packets that should be sent, if the incident is about sizes.
        source: the address from which it should come, if the incident is about that.
        sender: the source address that the program has bound, or that of a packet that arrives.
        uid: the user of the program.
        arrives_on: the interface on which the packet arrives, if this host receives or forwards it.
    """

    to: IpAddress = attrs.field(converter=ip_address)
    through: str
    via: str | None = None
    mtu: int = 0
    source: str = ""
    sender: str = ""
    uid: int = 0
    arrives_on: str = ""

    @property
    def packet(self) -> Packet:
        source = ip_address(self.sender) if self.sender else None
        return Packet(self.to, source, self.arrives_on)

    @property
    def expected(self) -> str:
        return _way(self.through, self.via, self.source, self.mtu)


def _way(dev: str, via: str | None = None, source: str = "", mtu: int = 0) -> str:
    words = [dev]
    if via is not None:
        words.append(f"via {via}" if via else "on-link")
    if source:
        words.append(f"src {source}")
    if mtu:
        words.append(f"mtu {mtu}")
    return " ".join(words)


@attrs.frozen
class Case:
    """A host and its probes, without what is expected of them.

    Args:
        host: the commands that build it; see ``Rebuilt.run``.
        config: the ``uplinks`` and ``expectedCidrs`` of its config.
        probes: the packets.
        advised: words by which the check advises a change that isn't ours to make.
        does: the commands that make that change, as the owner of the cause would.
        answer: the uplinks that the user then names instead, if that is the advice.
        gateway: the router of an interface to keep, which the user fills in.
    """

    host: tuple[str, ...]
    config: Mapping[str, Any]
    probes: tuple[Probe, ...]
    advised: str = ""
    does: tuple[str, ...] = ()
    answer: Mapping[str, Any] = attrs.field(factory=dict)
    gateway: str = ""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Case:
        names = {"from": "sender", "in": "arrives_on"}
        probes = (
            Probe(**{names.get(key, key): value for key, value in row.items()})
            for row in document["probes"]
        )
        return cls(
            tuple(document["host"]),
            document["config"],
            tuple(probes),
            **document.get("owner", {}),
            gateway=document.get("gateway", ""),
        )


class Rebuilt:
    """A case's host in a new network namespace, which the thread enters.

    Args:
        case: the case.
        root: a directory for the host's files.
    """

    def __init__(self, case: Case, root: Path) -> None:
        self.case, self._open = case, ExitStack()
        if not (proc := root / "proc").exists():
            proc.symlink_to("/proc")  # its sys/net is that of the namespace
        self._kernel, self._kernel6 = on_linux(), NetlinkBackend6()
        self._host = Host(self._kernel, FakeSystemd(), Layout(root), self._kernel6)
        addressing = [line for line in case.host if line.split()[0] in _ADDRESSING]
        own6 = re.findall(r"(\S*:\S*)/\d+", " ".join(addressing))
        has_6 = bool(own6) or any(" inet6 " in line for line in case.host)
        self._families = [*Family][: 1 + has_6]
        _set(
            "net.ipv6.conf.default.accept_dad" if has_6 else "net.ipv6.conf.default.disable_ipv6",
            str(int(not has_6)),
        )
        for family in self._families:
            # The kernel then chooses among several next hops by the ports, so a few ports cover
            # every hop.
            _set(f"net.{str(family).lower()}.fib_multipath_hash_policy", "1")
        self.run(case.host)
        wanted = set(map(ip_address, own6))
        until(
            lambda: (
                wanted
                <= {
                    route.destination.network_address
                    for route in read_routes(self._kernel6, Table.LOCAL)
                }
            )
        )
        self._wait_for_carriers()

    def _wait_for_carriers(self) -> None:
        lines = [line.split() for line in self.case.host]
        devs = {name for word, name, *_ in lines if word in ("nic", "bridge")}
        unplugged = {name for word, name, *_ in lines if word == "unplug"}
        until(
            lambda: (
                devs - unplugged
                == {link.name for link in self._kernel.facts().links if link.has_carrier} & devs
            )
        )
        for dev in devs:
            # Changes nothing, but waits until the carrier is known to the routes.
            self._kernel.set_link(dev)

    def __enter__(self) -> Rebuilt:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def run(self, lines: Iterable[str]) -> None:
        """Run ip commands without ``ip``, and our own.

        ``nic NAME ADDRESS...`` adds an interface with a carrier, ``unplug NAME`` removes the
        carrier, ``bridge`` and ``infiniband`` add such interfaces, and ``sysctl NAME=VALUE``
        changes a setting.
        """
        batch: list[str] = []
        for line in lines:
            word, *words = line.split()
            if word in ("sysctl", "infiniband"):
                run_ip(*batch)
                batch = []
            if word == "sysctl":
                _set(*words[0].split("="))
            elif word == "infiniband":
                self._open.enter_context(infiniband(words[0]))
                batch += [f"addr add {address} dev {words[0]}" for address in words[1:]]
            elif word == "unplug":
                batch.append(f"link set {_far(words[0])} down")
            elif word == "route" and re.search(r" src \S*:", line):
                run_ip(*batch)
                batch = [line]
                until(lambda: not attempt("ip", "-6", "addr", "show", "tentative").stdout)
            else:
                batch += _linked(word, *words) if word in ("nic", "bridge") else [line]
        run_ip(*batch)

    def _config(self, **answer: Any) -> Config:
        named = answer.get("expectedCidrs", [])
        others = [
            each
            for each in self.case.config["expectedCidrs"]
            if each not in [row["cidr"] for row in named]
        ]
        section = {
            **self.case.config,
            **answer,
            "waitSeconds": 0,
            "routeOverlap": {"expectedCidrs": [*others, *named]},
        }
        del section["expectedCidrs"]
        return Config.from_mapping({"hostRouting": section})

    def check(self, **answer: Any) -> OverlapReport:
        """Check the host with an answer in the config."""
        return check(self._config(**answer), host=self._host)

    def judged(self) -> OverlapReport:
        """Check the host; live and from a snapshot must agree, by day for some cases."""
        live = self.check()
        if not is_chosen(str(self.case), one_of=6):
            return live
        snapshot = recorded(self._kernel, self._kernel6 if len(self._families) > 1 else None)
        later = check(self._config(), host=Host.recorded(snapshot))
        assert (later.verdict, later.reason_kind, later.findings) == (
            live.verdict,
            live.reason_kind,
            live.findings,
        )
        assert later.fix == live.fix
        now = self.check_verified()
        if now.reason_kind is None:
            # A record of the present uplinks changes nothing.
            again = self.check_verified(*now.default_devs)
            assert again.verdict == now.verdict
            assert {each.cidr for each in again.findings} == {each.cidr for each in now.findings}
        return live

    def check_verified(self, *devs: str) -> OverlapReport:
        """Check the host as if no uplinks were named, and a check had passed with these."""
        overlap = attrs.evolve(self._config().route_overlap, mode="STRICT")
        config = attrs.evolve(self._config(), route_overlap=overlap, uplinks=None)
        macs = {link.name: link.mac for link in self._kernel.facts().links}
        verified = tuple(VerifiedUplink(dev, macs[dev]) for dev in devs)
        snapshot = recorded(self._kernel, self._kernel6 if len(self._families) > 1 else None)
        return check(config, host=Host.recorded(attrs.evolve(snapshot, verified=verified)))

    def install(self, report: OverlapReport, keep: Sequence[Any] = (), **answer: Any) -> None:
        """Install a fix, and other interfaces to keep; a second run changes nothing.

        By day, only some cases are installed twice.

        Args:
            report: the report with the fix.
            keep: entries of a config.
            answer: an answer in the config, which may name the uplinks.
        """
        static = report.fix.entries
        static = attrs.evolve(static, keep=(*static.keep, *keep))
        uplinks = self._config(**answer).uplinks
        config = Config(static_routes=static, uplinks=uplinks, wait_seconds=0)
        install = InstallRoutes(config, host=self._host)
        install.do(CancelScope())
        if is_chosen(str(self.case), one_of=4):
            assert not install.do(CancelScope()).changes

    def offers(self) -> list[str]:
        """Return what ``fix`` says although nothing fails."""
        return [*map(str, keep_offers(self._config(), self._kernel, CancelScope()))]

    def leaves(self) -> list[str]:
        """Send the probes, and return how their packets leave."""
        # Only where hops take turns do the ports matter.
        ports = _PORTS if self.ties() else _PORTS[:1]
        links = self._kernel.facts().links
        with Leaving(*(link.name for link in links if link.name != "lo")) as leaving:
            return [self._end(probe, links, leaving, ports) for probe in self.case.probes]

    def _end(
        self, probe: Probe, links: Sequence[Link], leaving: Leaving, ports: Iterable[int]
    ) -> str:
        if probe.via is not None:
            way = self.ways([probe.packet])[probe.packet]
            return _way(way.dev, way.gateway) if way.dev else "dropped"
        if probe.arrives_on:
            if all(link.name != probe.arrives_on for link in links):
                return "dropped"  # the interface has been deleted
            return seen([probe.packet], links)[probe.packet].dev or "dropped"
        return _observed(leaving, probe, ports)

    def packets(self, more: Sequence[IpNetwork]) -> list[Packet]:
        """Return packets of all kinds that a change may lead elsewhere.

        Args:
            more: destinations that the change is about.
        """
        overlap = self._config().route_overlap
        cidrs = [each.cidr for each in overlap.expected_cidrs]
        found: list[Packet] = []
        for family in self._families:
            backend = self._host.routes_of(family)
            of_pods = [
                link.name
                for link in backend.facts().links
                if is_like(link.name, overlap.container_devs)
            ]
            found += packets(backend, _of(family, cidrs), _of(family, more), of_pods)
        return found

    def ways(self, asked: Collection[Packet]) -> Ways:
        """Return how packets go."""
        found: Ways = {}
        for family in self._families:
            found |= ways(family, [each for each in asked if each.to.version == family.value])
        return found

    def ties(self) -> list[set[tuple[str, str]]]:
        """Return the next hops, each an interface and a gateway, that the kernel takes by turns."""
        by_entry: dict[tuple[object, ...], set[tuple[str, str]]] = {}
        for family in self._families:
            for route in read_routes(self._host.routes_of(family)):
                entry = (route.destination, route.table, route.metric)
                hops = {(hop.dev or "", str(hop.gateway or "")) for hop in route.hops}
                by_entry.setdefault(entry, set()).update(hops)
        return [hops for hops in by_entry.values() if len(hops) > 1]

    @property
    def devs(self) -> list[str]:
        """Return the names of the host's interfaces."""
        return [link.name for link in self._kernel.facts().links]

    @property
    def owners(self) -> dict[IpAddress, str]:
        """Return the interfaces of the host's addresses."""
        return {
            each.local: each.dev
            for family in self._families
            for each in self._host.routes_of(family).facts().addresses
        }


def _of(family: Family, prefixes: Iterable[IpNetwork]) -> list[IpNetwork]:
    return [each for each in prefixes if each.version == family.value]


def _set(name: str, value: str) -> None:
    Path("/proc/sys", *name.split(".")).write_text(value)


def _far(dev: str) -> str:
    return f"peer-{dev}"[:15]


def _linked(word: str, dev: str, *addresses: str) -> list[str]:
    """Return the commands for an interface with a carrier: one end of a veth pair, or a bridge with
    such a port.
    """
    port = dev if word == "nic" else f"port-{dev}"[:15]
    far = _far(port)
    return [
        f"link add {port} type veth peer name {far}",
        f"link set {far} addrgenmode none",
        f"link set {far} arp off up",
        *(
            [f"link add {dev} type bridge", f"link set {port} addrgenmode none master {dev} up"]
            if port != dev
            else []
        ),
        f"link set {dev} arp off up",
        *(f"addr add {address} dev {dev}" for address in addresses),
    ]


# --- packets --------------------------------------------------------------------------------------


def _observed(leaving: Leaving, probe: Probe, ports: Iterable[int]) -> str:
    sends = (
        partial(_send, probe, kind, port)
        for port in ports
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)
    )
    ends = {leaving.sent(send, probe.to) for send in sends}
    names = {end if isinstance(end, str) else errnos.errorcode.get(end, "dropped") for end in ends}
    return _way(
        ",".join(sorted(names)),
        source=_source(probe) if probe.source else "",
        mtu=_mtu(probe) if probe.mtu else 0,
    )


def _send(probe: Probe, kind: int, port: int) -> None:
    with _opened(probe, kind) as client:
        if kind == socket.SOCK_DGRAM:
            client.sendto(b"", (str(probe.to), port))
        elif (errno := client.connect_ex((str(probe.to), port))) not in (
            errnos.EINPROGRESS,
            errnos.ECONNREFUSED,
        ):
            raise OSError(errno, "")


@contextmanager
def _opened(probe: Probe, kind: int) -> Iterator[socket.socket]:
    try:
        os.seteuid(probe.uid)  # a socket keeps the user of the process that opened it
    except OSError:
        pytest.skip("root of a user namespace with one user can't become another")
    try:
        client = socket.socket(Family.of(probe.to).af, kind | socket.SOCK_NONBLOCK)
    finally:
        os.seteuid(0)
    with client:
        if probe.sender:
            client.bind((probe.sender, 0))
        yield client


def _source(probe: Probe) -> str:
    """Return the address that a connected socket gets."""
    with _opened(probe, socket.SOCK_DGRAM) as client:
        client.connect((str(probe.to), 9))
        name: str = client.getsockname()[0]
        return name


def _mtu(probe: Probe) -> int:
    with _opened(probe, socket.SOCK_DGRAM) as client:
        client.connect((str(probe.to), 9))
        is_4 = probe.to.version == 4
        return client.getsockopt(
            *((socket.IPPROTO_IP, _IP_MTU) if is_4 else (socket.IPPROTO_IPV6, _IPV6_MTU))
        )
