"""The protocol for access to a node's bridge, and the state that it returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hostrouting.model.family import IpAddress
from hostrouting.model.values import frozen


@frozen
class Interface:
    """A network interface. MACs are six lower-case hex pairs.

    Args:
        name: the interface's name.
        mac: the interface's MAC, or an empty string.
        master: the interface's master, such as a bridge, or None.
        far_mac: the MAC of the other end of a veth pair, which may be in another namespace. None
            for other interfaces, or if this MAC can't be read.
        seen_macs: the MACs that the bridge has learned on the interface. The bridge forgets a MAC
            that sends nothing for some time.
    """

    name: str
    mac: str = ""
    master: str | None = None
    far_mac: str | None = None
    seen_macs: tuple[str, ...] = ()


@frozen
class Neighbour:
    """A permanent ARP or NDP entry without the flags managed and extern_learn (ip-neighbour(8)).

    Args:
        dev: the interface behind which the neighbour is.
        address: the neighbour's IP address.
        mac: the neighbour's MAC, as six lower-case hex pairs.
    """

    dev: str
    address: IpAddress
    mac: str

    def __str__(self) -> str:
        return f"{self.address} dev {self.dev} lladdr {self.mac} PERMANENT"


@frozen
class NodeState:
    """A snapshot of a node's state.

    Args:
        rules: the ``-A ...`` lines from ebtables-save for table nat, in order, including
            duplicates.
        interfaces: all interfaces of the node.
        gateways: the gateways of all IPv4 routes.
        neighbours: the permanent neighbours on the bridge.
        notes: messages about anything that couldn't be read.
    """

    rules: tuple[str, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    gateways: tuple[IpAddress, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    notes: tuple[str, ...] = ()


class BridgeNode(Protocol):
    """A node's bridge. All methods raise ``AzureVnetError`` or ``RouteError`` on failure."""

    def read_state(self, bridge: str) -> NodeState:
        """Return the node's state, for a plan.

        The interfaces must be read last, because for a new pod, azure-vnet creates the veth pair
        first, and then rules and neighbours. So if the state has a new pod's rule, it also has the
        pod's interface.

        Args:
            bridge: the bridge whose neighbours are read. A missing bridge has no neighbours.
        """

    def remove_rules(self, rules: Sequence[str]) -> None:
        """Delete rules, given in ebtables-save format, from ebtables' table nat in one transaction.

        If any rule is missing, none are deleted.
        """

    def remove_neighbours(self, neighbours: Sequence[Neighbour]) -> None:
        """Delete neighbours; missing ones are ignored."""
