"""Install routes, the check and the rules for health probes into the image of an Azure node.

python examples/azure_node.py

Leave out ``host`` on a running node. There, ``RemoveStaleAzureVnet`` can run first, before a pod
gets the former address of a pod of azure-vnet.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import phases
from hostrouting import Config, Configure, ConfigureReport, Host
from hostrouting.azure import (
    AzureVnetReport,
    ConfigureLoadBalancerProbe,
    HostNetworking,
    ProbeReport,
    RemoveStaleAzureVnet,
)

DOCUMENT = {
    "hostRouting": {"routeOverlap": {"expectedCidrs": ["10.96.0.0/12"], "mode": "STRICT"}},
    "hostNetworking": {
        "loadBalancerProbe": {"enabled": True},
        "staleAzureVnet": {"cidrs": ["10.241.0.0/16"]},
    },
}
CONFIG, NETWORKING = Config.from_mapping(DOCUMENT), HostNetworking.from_mapping(DOCUMENT)


def pipeline(host: Host) -> phases.Task[tuple[ConfigureReport, ProbeReport]]:
    """Return the tasks for a node.

    The probe rules come last, after all other changes of nftables.
    """
    return phases.Serial(
        Configure(CONFIG, host=host),
        ConfigureLoadBalancerProbe(NETWORKING, host=host),
        name="azure-node",
    )


def clean_up() -> AzureVnetReport:
    """Clean up a running node after its pods have moved to another CNI."""
    return phases.run(RemoveStaleAzureVnet(NETWORKING))


def main() -> int:
    """Install everything into a folder that looks like an image, and print the changes."""
    with tempfile.TemporaryDirectory() as root:
        Path(root, "usr/lib/systemd/system").mkdir(parents=True)
        report, probe = phases.run(pipeline(Host.image(root)))
    for change in (*report.changes.files, *probe.changes.files):
        print(change.action, change.what)
    print(f"probes are rewritten on {probe.device}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
