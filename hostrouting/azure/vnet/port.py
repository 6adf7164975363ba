"""The port of the clean-up after azure-vnet: a node's bridge and its state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs

from hostrouting.model.parsing import IpAddress


@attrs.frozen
class Interface:
    """A network interface. MACs are in six pairs of lower-case digits.

    Args:
        name: its name.
        mac: the interface's MAC; empty if it has none.
        master: the bridge that it is a port of.
        far_mac: the MAC of a veth pair's other end, in any namespace; None if it can't be read, or there is none.
        seen_macs: the MACs from which the bridge has seen frames behind it; the bridge forgets a silent MAC after a
            while.
    """

    name: str
    mac: str = ""
    master: str | None = None
    far_mac: str | None = None
    seen_macs: tuple[str, ...] = ()


@attrs.frozen
class Neighbour:
    """A permanent entry of the ARP or neighbour cache, ip-neighbour(8), that no daemon has learned or manages.

    Args:
        dev: the interface.
        address: the neighbour's IP address.
        mac: its MAC, in six pairs of lower-case digits.
    """

    dev: str
    address: IpAddress
    mac: str

    def __str__(self) -> str:
        return f"{self.address} dev {self.dev} lladdr {self.mac} PERMANENT"


@attrs.frozen
class NodeState:
    """A node's state at one moment.

    Args:
        rules: the lines of ebtables-save's nat table that add a rule (``-A ...``), in order, including duplicates.
        interfaces: all interfaces.
        gateways: the gateways of all IPv4 routes.
        neighbours: the bridge's neighbours.
        notes: what couldn't be read, in words.
    """

    rules: tuple[str, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    gateways: tuple[IpAddress, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    notes: tuple[str, ...] = ()


class BridgeNode(Protocol):
    """A node that azure-vnet may have used. Every method raises ``AzureVnetError`` or ``RouteError`` if it fails."""

    def look(self, bridge: str) -> NodeState:
        """Return everything that a plan needs, except files.

        The interfaces are read last: azure-vnet makes a pod's veth pair before anything else, so if anything of a pod
        is seen, its pair is seen too.

        Args:
            bridge: the bridge whose neighbours to read; without such a bridge there are none.
        """

    def remove_rules(self, rules: Sequence[str]) -> None:
        """Delete rules of ebtables' nat table in one transaction, by their saved form; if one is missing, none."""

    def remove_neighbours(self, neighbours: Sequence[Neighbour]) -> None:
        """Delete neighbours; ignore missing ones."""
