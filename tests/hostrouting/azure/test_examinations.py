"""The doctor knows the neighbours of host routing: probes that die, rules that get flushed, what azure-vnet left."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Any

import attrs
import pytest

import phases
from hostrouting import Host, Layout
from hostrouting.azure import (
    ConfigureLoadBalancerProbe,
    HostNetworking,
    LinuxBridgeNode,
    LinuxProbeNode,
    LoadBalancerProbeError,
)
from hostrouting.azure import examinations as azure_examinations
from hostrouting.azure.examinations import examinations
from hostrouting.azure.probe import tasks as probe_tasks
from hostrouting.azure.probe.port import NodeAddress, Pin
from hostrouting.azure.probe.ruleset import REWRITTEN_SOURCE, TABLE
from hostrouting.azure.vnet import tasks as vnet_tasks
from hostrouting.azure.vnet.port import Interface, Neighbour, NodeState
from hostrouting.boot.examination import Severity
from hostrouting.doctor.examine import examine
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route
from hostrouting.testing import FakeBridgeNode, FakeKernel, FakeProbeNode, FakeSystemd

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hostrouting.doctor.examine import DoctorReport

MACHINE = "systemd-nspawn@kube1.service"
SCRIPT = "etc/aks-flex-node/load-balancer-probe.sh"
RULES = "etc/aks-flex-node/load-balancer-probe.nft"
EXAMINATIONS = (
    "probes",
    "azure-vnet",
    "tools",
    "files",
    "gate",
    "leftovers",
    "installed",
    "agents",
    "units",
)
STALE = (
    "-A PREROUTING -p IPv4 -i eth0 --ip-dst 10.241.0.32 -j dnat --to-dst a2:11:22:33:44:55 --dnat-target ACCEPT",
    "-A PREROUTING -p ARP --arp-op Request --arp-ip-dst 10.241.0.32 -j arpreply --arpreply-mac a2:11:22:33:44:55",
)


def networking(**more: Any) -> HostNetworking:
    return HostNetworking({"enabled": True, "waitSeconds": 0} | more, stale_azure_vnet={"cidrs": ["10.241.0.0/16"]})


@attrs.frozen
class Node:
    """A node on which faults are planted."""

    layout: Layout
    units: FakeSystemd
    probe: FakeProbeNode
    bridge: FakeBridgeNode
    host: Host

    def write(self, path: str, text: str) -> None:
        file = self.layout.of(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def examined(self, wanted: HostNetworking | None = None) -> DoctorReport:
        return examine(self.host, None, more=examinations(wanted))

    def found(self, wanted: HostNetworking | None = None) -> dict[str, tuple[str, Severity]]:
        """Each finding of the examinations that matter here, by its kind: its subject and how grave it is."""
        examined = self.examined(wanted).found.items()
        faults = [fault for each, faults in examined if each.name in EXAMINATIONS for fault in faults]
        assert all(fault.message and fault.remedy for fault in faults)
        return {fault.kind: (fault.subject, fault.severity) for fault in faults}


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node with IPv6 on which nothing is installed."""
    layout = Layout(tmp_path)
    layout.units.mkdir(parents=True)
    for name in ("bin/bash", *(f"usr/bin/{tool}" for tool in ("ip", "awk", "flock", "timeout", "nft", "unshare"))):
        path = layout.of(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/bash\necho 5.2\n")
        path.chmod(0o755)
    kernel = FakeKernel()
    kernel.add_link("eth0")
    kernel.add_link("eth1")
    kernel.add_address("eth0", "10.1.0.4/24")
    default = Route(DEFAULT_DESTINATION, (NextHop("eth0", IPv4Address("10.1.0.1")),), protocol=Protocol.DHCP)
    assert kernel.add([default]) == ()
    units = FakeSystemd(layout, running=[MACHINE])
    probe = FakeProbeNode(
        default_devices=["eth0"],
        addresses=[NodeAddress("eth0", IPv6Address("fd00:1::4"))],
    )
    bridge = FakeBridgeNode()
    fakes = {LinuxProbeNode: probe, LinuxBridgeNode: bridge}
    for module in (azure_examinations, probe_tasks, vnet_tasks):
        monkeypatch.setattr(module, "given_or_real", lambda _, given, real: given or fakes[real])
    host = Host(routes=kernel, units=units, layout=layout)
    return Node(layout, units, probe, bridge, host)


@pytest.fixture
def node(bare: Node) -> Node:
    """A healthy node whose probes are rewritten."""
    phases.run(ConfigureLoadBalancerProbe(networking(), host=bare.host, node=bare.probe))
    return bare


@pytest.mark.parametrize("wanted", [None, networking()], ids=["installed", "config"])
def test_a_healthy_node_has_no_finding(node: Node, wanted: HostNetworking | None) -> None:
    assert node.found(wanted) == {}


def test_where_nothing_is_asked_for_nothing_is_asked_of_the_node(bare: Node) -> None:
    names = {"probes", "azure-vnet"}
    found = examine(bare.host, None, more=examinations(HostNetworking())).found
    assert [faults for each, faults in found.items() if each.name in names] == [(), ()]


def flush(node: Node) -> None:
    node.probe.tables.clear()


def meddle(node: Node) -> None:
    node.probe.tables[TABLE] += "chain more { }\n"


def lose_the_pin(node: Node) -> None:
    node.probe.pin_list.clear()


def add_a_pin(node: Node) -> None:
    node.probe.pin_list.append(Pin(IPv6Address("fe80::1"), "eth1", Protocol.HOSTROUTING, 7))


def remove_nft(node: Node) -> None:
    node.layout.of("/usr/bin/nft").unlink()


def add_agentbakers(node: Node) -> None:
    node.probe.tables["azureSLBProbe"] = "table ip6 azureSLBProbe {\n}\n"


def edit_the_rules(node: Node) -> None:
    node.write(RULES, node.layout.of(RULES).read_text().replace("eth0", "eth1"))


def edit_the_script(node: Node) -> None:
    node.write(SCRIPT, "#!/bin/bash\nexit 0\n")


def override_the_gate(node: Node) -> None:
    node.write(f"etc/systemd/system/{MACHINE}.d/zzz.conf", "[Service]\nExecStartPre=\n")
    node.units.reload()


@pytest.mark.parametrize(
    ("plant", "kind", "subject"),
    [
        (flush, "probes-differ", f"nftables table ip6 {TABLE}"),
        (meddle, "probes-differ", f"nftables table ip6 {TABLE}"),
        (lose_the_pin, "probes-differ", f"{REWRITTEN_SOURCE} via fe80::1234:5678:9abc dev eth0"),
        (add_a_pin, "probes-differ", f"{REWRITTEN_SOURCE} via fe80::1 dev eth1"),
        (add_agentbakers, "other-probe-rules", "nftables table ip6 azureSLBProbe"),
        (remove_nft, "tool-missing", "nft"),
        (edit_the_rules, "probes-differ", f"/{RULES}"),
        (edit_the_script, "probes-differ", f"/{SCRIPT}"),
        (override_the_gate, "gate-overridden", MACHINE),
    ],
)
@pytest.mark.parametrize("wanted", [None, networking()], ids=["installed", "config"])
def test_each_fault_is_found(
    node: Node, wanted: HostNetworking | None, plant: Callable[[Node], None], kind: str, subject: str
) -> None:
    plant(node)
    found = node.found(wanted)
    assert list(found) == [kind]
    assert found[kind][0].startswith(subject)


def test_probes_that_are_asked_for_and_not_installed_are_a_finding(bare: Node) -> None:
    subject, severity = bare.found(networking())["probes-differ"]
    assert subject.startswith(f"nftables table ip6 {TABLE}, ")
    assert severity is Severity.BROKEN


def test_a_node_without_ipv6_has_nothing_to_install(bare: Node) -> None:
    bare.probe.address_list.clear()
    assert "probes-differ" not in bare.found(networking())


def test_what_is_no_longer_asked_for_is_a_finding(node: Node) -> None:
    ((kind, (subject, severity)),) = node.found(HostNetworking()).items()
    assert (kind, severity) == ("probes-differ", Severity.RISK)
    assert subject.startswith(f"nftables table ip6 {TABLE}, ")


@pytest.mark.parametrize(("required", "severity"), [(True, Severity.BROKEN), (False, Severity.RISK)])
def test_what_keeps_probes_from_being_rewritten_is_as_grave_as_they_are_required(
    node: Node, required: bool, severity: Severity
) -> None:
    node.probe.assigned = LoadBalancerProbeError("the metadata service doesn't answer")
    wanted = networking(ipv6Detection="METADATA", required=required)
    assert node.found(wanted) == {"probes-fail": ("load-balancer-probe.service", severity)}


def test_another_consumer_in_the_config_is_a_finding(node: Node) -> None:
    wanted = attrs.evolve(networking(), consumer="kubelet.service")
    assert list(node.found(wanted)) == ["probes-differ"]


@pytest.mark.parametrize("bridges", [("azure0",), ()])
def test_rules_that_nobody_looked_at_arent_called_fine_while_there_is_a_bridge(
    node: Node, bridges: tuple[str, ...]
) -> None:
    interfaces = tuple(Interface(name) for name in bridges)
    node.bridge.state = NodeState(interfaces=interfaces, notes=("the legacy ebtables has rules too",))
    unseen = [one for one in node.examined(networking()).faults if one.kind == "azure-vnet-unseen"]
    assert [(one.subject, one.severity) for one in unseen] == [(name, Severity.UNKNOWN) for name in bridges]
    assert all("the legacy ebtables has rules too" in one.message for one in unseen)


def test_what_azure_vnet_left_is_one_finding_with_the_command_that_removes_it(node: Node) -> None:
    stay = Neighbour("azure0", IPv4Address("10.9.0.1"), "0a:00:00:00:00:01")
    node.bridge.state = NodeState(rules=STALE, neighbours=(stay,))
    (left,) = [one for one in node.examined(networking()).faults if one.kind == "azure-vnet-left"]
    assert left.subject.startswith("rule ")
    assert left.subject.endswith("and 1 more")
    assert "hostrouting azure-vnet clean CONFIG" in left.remedy
    assert left.severity is Severity.RISK
