"""What a task of a neighbour works on: the node that it was given, or the kernel of this very host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.model.errors import ConfigError

if TYPE_CHECKING:
    from hostrouting.azure.probe.port import ProbeNode
    from hostrouting.azure.vnet.port import BridgeNode
    from hostrouting.boot.host import Host

__all__ = ["bridge_node", "probe_node"]


def probe_node(host: Host, given: ProbeNode | None) -> ProbeNode:
    """The IPv6 side of a node; by default the kernel's, by nft and ip.

    Raises:
        ConfigError: it wasn't given beside a layout of another root.
    """
    if given is None:
        _refuse_another_root(host)
        from hostrouting.azure.probe.linux import LinuxProbeNode

        given = LinuxProbeNode()
    return given


def bridge_node(host: Host, given: BridgeNode | None) -> BridgeNode:
    """The bridge's side of a node; by default the kernel's, by ebtables and netlink.

    Raises:
        ConfigError: it wasn't given beside a layout of another root.
    """
    if given is None:
        _refuse_another_root(host)
        from hostrouting.azure.vnet.linux import LinuxBridgeNode

        given = LinuxBridgeNode()
    return given


def _refuse_another_root(host: Host) -> None:
    if not host.layout.is_this_host:
        raise ConfigError([("node", f"must be given beside a layout below {host.layout.root}: a real one, or a fake")])
