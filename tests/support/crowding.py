"""Build a crowded host in a network namespace of its own."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

from node import attempt, on_linux, until
from reaching import Packet, Way, Ways, packets, seen, ways
from worlds.crowded import BRIDGES, PODS, Crowded

from hostrouting import Host, Layout
from hostrouting.backend import RouteBackend, read_routes
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.model.family import Family, IpNetwork
from hostrouting.model.routes import Table
from hostrouting.testing import FakeSystemd


class Built:
    """A crowded host in a new network namespace, which the thread enters.

    Args:
        crowded: the host.
        root: a directory for its files.
    """

    def __init__(self, crowded: Crowded, root: Path) -> None:
        self.crowded = crowded
        self.kernel: NamespaceKernel = on_linux()
        self.kernel6 = NetlinkBackend6()
        self.host = Host(self.kernel, FakeSystemd(), Layout(root), self.kernel6)
        is_ipv6 = crowded.family is Family.IPV6
        _set("net.ipv6.conf.default.accept_dad", 0)
        _set("net.ipv6.conf.default.disable_ipv6", int(not is_ipv6))
        if crowded.forwards:
            _set("net.ipv4.ip_forward", 1)
            if is_ipv6:
                _set("net.ipv6.conf.all.forwarding", 1)
        links = [
            step for number, dev in enumerate(sorted(crowded.devs)) for step in _link(number, dev)
        ]
        self.run([*links, *crowded.steps])
        if is_ipv6:
            wanted = {
                ip_address(step.split()[2].partition("/")[0])
                for step in crowded.steps
                if step.startswith("addr add")
            }
            until(lambda: wanted <= self._local())

    def _local(self) -> set[object]:
        return {
            route.destination.network_address for route in read_routes(self.backend, Table.LOCAL)
        }

    @property
    def backend(self) -> RouteBackend:
        return self.kernel6 if self.crowded.family is Family.IPV6 else self.kernel

    def run(self, steps: list[str]) -> None:
        """Run lines for ``ip -batch``; those that fail are skipped."""
        family = f"-{self.crowded.family.value}"
        attempt("ip", family, "-force", "-batch", "-", stdin="\n".join(steps) + "\n")

    def packets(self, more: list[IpNetwork]) -> list[Packet]:
        cidrs = [each.cidr for each in self.crowded.config.route_overlap.expected_cidrs]
        return packets(self.backend, cidrs, more, PODS)

    def ways(self, asked: list[Packet]) -> Ways:
        return ways(self.crowded.family, asked)

    def differences(self, asked: list[Packet], told: Ways) -> list[str]:
        """Return where sockets and frames show other ways than the kernel's lookups tell."""
        found = seen(asked, self.kernel.facts().links)
        return [
            f"{packet} goes {told[packet]}, but {found[packet]} is seen"
            for packet in asked
            if not self._is_alike(packet, told[packet], found[packet])
        ]

    def _is_alike(self, packet: Packet, told: Way, found: Way) -> bool:
        if packet.to.version == 6 and packet.source is None and told.error:
            return True  # a socket tries again with a source
        if packet.arrives_on and not self.crowded.forwards:
            return (told.dev == "lo") == (found.dev == "lo")
        return told.dev == found.dev


def _set(name: str, value: int) -> None:
    Path("/proc/sys", *name.split(".")).write_text(str(value))


def _link(number: int, dev: str) -> list[str]:
    """Return the lines for an interface, or for a bridge with a port, whose far end is here."""
    port = f"port-{dev}" if dev in BRIDGES else dev
    peer = f"peer-{port}"[:15]
    steps = [
        f"link add {port} address 02:00:00:00:00:{number:02x} type veth peer name {peer}",
        f"link set {peer} addrgenmode none arp off up",
    ]
    if port != dev:
        steps += [
            f"link add {dev} address 02:00:00:00:00:{number:02x} type bridge",
            f"link set {port} addrgenmode none arp off master {dev} up",
        ]
    return [*steps, f"link set {dev} addrgenmode none arp off up"]
