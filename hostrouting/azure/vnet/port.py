"""The port of the clean-up after azure-vnet: a node's bridge, and what it holds."""

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
        mac: its own; empty if it has none.
        master: the bridge that it is a port of.
        far_mac: of a veth pair's other end, in whichever namespace that is; None if it can't be read, or there is none.
        seen_macs: what its bridge has seen frames from behind it: after a while of silence a MAC is forgotten.
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
        address: whose MAC it tells.
        mac: in six pairs of lower-case digits.
    """

    dev: str
    address: IpAddress
    mac: str

    def __str__(self) -> str:
        return f"{self.address} dev {self.dev} lladdr {self.mac} PERMANENT"


@attrs.frozen
class NodeState:
    """A node at one moment.

    Args:
        rules: the lines of ebtables-save's nat table that add a rule (``-A ...``), in order, duplicates too.
        interfaces: all.
        gateways: of any route of IPv4.
        neighbours: of the bridge.
        notes: what couldn't be looked at, in words.
    """

    rules: tuple[str, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    gateways: tuple[IpAddress, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    notes: tuple[str, ...] = ()


class BridgeNode(Protocol):
    """A node on which azure-vnet may have been. Every call raises ``AzureVnetError`` or ``RouteError`` if it can't."""

    def look(self, bridge: str) -> NodeState:
        """Return all that a plan is made of, apart from files.

        The interfaces are read last: azure-vnet makes a pod's veth pair before anything else, so whatever else is
        seen of a pod, its pair is seen too.

        Args:
            bridge: whose neighbours to read; no such bridge: there are none.
        """

    def remove_rules(self, rules: Sequence[str]) -> None:
        """Delete rules of ebtables' nat table in one transaction, each as it was saved; if one isn't there, none."""

    def remove_neighbours(self, neighbours: Sequence[Neighbour]) -> None:
        """Delete neighbours; one that isn't there is fine."""
