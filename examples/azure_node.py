"""A node on Azure: what azure-vnet left is cleaned up, routes are proven, health probes rewritten; on fakes.

python examples/azure_node.py

On a real node leave out ``host`` and ``node``.
"""

from __future__ import annotations

import sys
import tempfile
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import phases
from hostrouting import (
    DEFAULT_DESTINATION,
    Config,
    Configure,
    Host,
    Layout,
    NextHop,
    OverlapReport,
    Protocol,
    Route,
    RoutesReport,
)
from hostrouting.azure import (
    AzureVnetReport,
    BridgeNode,
    ConfigureLoadBalancerProbe,
    HostNetworking,
    NodeAddress,
    NodeState,
    ProbeNode,
    ProbeReport,
    RemoveStaleAzureVnet,
)
from hostrouting.testing import FakeBridgeNode, FakeKernel, FakeProbeNode, FakeSystemd

DOCUMENT = {
    "hostRouting": {"routeOverlap": {"expectedCidrs": ["10.96.0.0/12"], "mode": "STRICT"}},
    "hostNetworking": {"loadBalancerProbe": {"enabled": True}, "staleAzureVnet": {"cidrs": ["10.241.0.0/16"]}},
}
STALE = "-A PREROUTING -p IPv4 -i eth0 --ip-dst 10.241.0.32 -j dnat --to-dst a2:11:22:33:44:55 --dnat-target ACCEPT"


def fake_node(root: Path) -> tuple[Host, FakeProbeNode, FakeBridgeNode]:
    """eth0 has the default route and an IPv6 address; a rule of azure-vnet is there for a pod that is gone."""
    kernel = FakeKernel()
    kernel.add_link("eth0")
    kernel.add_address("eth0", "10.1.0.4/24")
    kernel.add([Route(DEFAULT_DESTINATION, (NextHop("eth0", IPv4Address("10.1.0.1")),), protocol=Protocol.DHCP)])
    probe_node = FakeProbeNode(
        default_devices=["eth0"],
        addresses=[NodeAddress("eth0", IPv6Address("fd00:1::4"))],
    )
    host = Host(routes=kernel, units=FakeSystemd(), layout=Layout(root))
    return host, probe_node, FakeBridgeNode(NodeState(rules=(STALE,)))


def pipeline(
    host: Host, probe_node: ProbeNode, bridge_node: BridgeNode
) -> phases.Task[tuple[AzureVnetReport, tuple[RoutesReport, OverlapReport], ProbeReport]]:
    """The clean-up first, before a pod gets an address of an earlier one; the probes after all that changes rules."""
    config, networking = Config.from_mapping(DOCUMENT), HostNetworking.from_mapping(DOCUMENT)
    return phases.Serial(
        RemoveStaleAzureVnet(networking, host=host, node=bridge_node),
        Configure(config, host=host),
        ConfigureLoadBalancerProbe(networking, host=host, node=probe_node),
        name="azure-node",
    )


def main() -> int:
    """Run it, and say what was done."""
    with tempfile.TemporaryDirectory() as root:
        stale, _, probe = phases.run(pipeline(*fake_node(Path(root))))
    for item in stale.removed:
        print(f"removed {item.what}: {item.reason}")
    print(f"probes are rewritten on {probe.device}, as {probe.evidence}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
