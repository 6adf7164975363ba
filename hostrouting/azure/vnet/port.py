"""The port of the clean-up after azure-vnet, which defines what it needs from a node's bridge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs

from hostrouting.model.parsing import IpAddress


@attrs.frozen
class Interface:
    """A network interface; MACs are given as six pairs of lower-case digits.

    Args:
        name: the interface's name.
        mac: the interface's MAC, or an empty string if it has none.
        master: the bridge of which it is a port, if any.
        far_mac: the MAC of a veth pair's other end, in any namespace, or None if there is none or it can't be read.
        seen_macs: the MACs from which the bridge has seen frames behind the interface; the bridge forgets a silent MAC
            after a while.
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
        mac: the neighbour's MAC, as six pairs of lower-case digits.
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
        rules: the lines with which ebtables-save adds rules (``-A ...``) to table nat, in order, including duplicates.
        interfaces: all interfaces.
        gateways: the gateways of all IPv4 routes.
        neighbours: the bridge's neighbours.
        notes: what couldn't be read, one sentence each.
    """

    rules: tuple[str, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    gateways: tuple[IpAddress, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    notes: tuple[str, ...] = ()


class BridgeNode(Protocol):
    """A node that azure-vnet may have used; every method that fails raises ``AzureVnetError`` or ``RouteError``."""

    def look(self, bridge: str) -> NodeState:
        """Return everything that a plan needs, except files.

        The interfaces are read last. azure-vnet creates a pod's veth pair before anything else, so if anything of a pod
        is seen, its pair is seen too.

        Args:
            bridge: the bridge whose neighbours to read; if there is no such bridge, there are no neighbours.
        """

    def remove_rules(self, rules: Sequence[str]) -> None:
        """Delete rules of ebtables' nat table, given in their saved form, in one transaction.

        If a rule is missing, none is deleted.
        """

    def remove_neighbours(self, neighbours: Sequence[Neighbour]) -> None:
        """Delete neighbours, and ignore those that don't exist."""
