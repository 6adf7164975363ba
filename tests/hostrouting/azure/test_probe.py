"""Tests for planning, installing and removing the load balancer probe on an in-memory node."""

from __future__ import annotations

from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import attrs
import pytest
from azure_fakes import FakeProbeNode
from file_trees import outside_run

import phases
from hostrouting import Host
from hostrouting.azure import (
    ConfigureLoadBalancerProbe,
    HostNetworking,
    LoadBalancerProbeError,
    ProbeReport,
    RemoveLoadBalancerProbe,
)
from hostrouting.azure.probe.ruleset import TABLE, has_rules, host_route, render_ruleset
from hostrouting.azure.probe.tasks import plan_probe
from hostrouting.model.errors import ConfigError
from hostrouting.testing import FakeKernel

UNIT, CONSUMER = (
    "etc/systemd/system/load-balancer-probe.service",
    "etc/systemd/system/systemd-nspawn@.service.d",
)
FILES = {
    "etc/hostrouting/installed.json",
    "etc/aks-flex-node/load-balancer-probe.nft",
    UNIT,
    f"{CONSUMER}/hostrouting-load-balancer-probe.conf",
    "etc/systemd/system/nftables.service.d/hostrouting-load-balancer-probe.conf",
    "etc/systemd/system/nftables-flush.service.d/hostrouting-load-balancer-probe.conf",
}
# The output of nft 1.0.6. Other versions format the flags and the priority differently and omit the
# table comment.
LISTING = f"""\
table ip6 {TABLE} {{
	comment "hostrouting: IPv6 health probes of Azure's load balancer"
	chain prerouting {{
		type filter hook prerouting priority raw; policy accept;
		iifname "eth0" ip6 saddr fe80::1234:5678:9abc meta l4proto tcp counter ip6 saddr set 2603::1 comment "probe in"
	}}

	chain postrouting {{
		type filter hook postrouting priority raw; policy accept;
		oifname "eth0" ip6 daddr 2603::1 tcp flags != syn / syn,ack counter ip6 daddr set fe80::1 comment "answer out"
	}}
}}
"""  # noqa: E501


@pytest.fixture
def kernel() -> FakeKernel:
    return FakeKernel()


@pytest.fixture
def node() -> FakeProbeNode:
    return FakeProbeNode()


def asked(**probe: Any) -> HostNetworking:
    return HostNetworking({"enabled": True} | probe)


def configure(host: Host, node: FakeProbeNode | None, config: HostNetworking) -> ProbeReport:
    return phases.run(ConfigureLoadBalancerProbe(config, host=host, node=node))


def files(host: Host) -> set[str]:
    etc = (host.layout.root / "etc").rglob("*")
    return {
        str(path.relative_to(host.layout.root))
        for path in etc
        if path.is_file() and not path.is_symlink()
    }


@pytest.mark.parametrize(
    ("listing", "is_in_force"),
    [
        (LISTING, True),
        (render_ruleset("eth0"), True),
        (LISTING.replace("eth0", "eth1"), False),
        (LISTING.replace('iifname "eth0"', 'iifname "eth1"'), False),
        (LISTING.replace("raw; policy accept;\n", "raw; policy accept;\n\t\tdrop\n", 1), False),
        (LISTING.replace("\tchain", "\tflags dormant\n\tchain", 1), False),
        (LISTING[: LISTING.index("\tchain postrouting")] + "}\n", False),
        (f"table ip6 {TABLE} {{\n}}\n", False),
        (None, False),
    ],
)
def test_rules_are_recognised_by_what_all_versions_print(
    listing: str | None, is_in_force: bool
) -> None:
    assert has_rules(listing, "eth0") is is_in_force


@pytest.mark.parametrize("device", ['eth0"', "a b", "", "eth0; drop", "..", "a" * 16])
def test_no_other_text_reaches_a_rendered_file(device: str) -> None:
    with pytest.raises(ValueError, match="is not an interface name"):
        render_ruleset(device)
    with pytest.raises(ValueError, match="is not an interface name"):
        host_route(device)


def test_another_device_replaces_the_first(host: Host, node: FakeProbeNode) -> None:
    configure(host, node, asked())
    (change,) = configure(host, node, asked(devices=["azure0"])).changes.routes
    assert (change.action, change.was, node.host_route) == (
        "replaced",
        host_route("eth0"),
        host_route("azure0"),
    )


class Refusing(FakeProbeNode):
    """A node on which nft rejects the rules for azure0."""

    def load(self, text: str) -> None:
        if "azure0" in text:
            raise LoadBalancerProbeError("can't load the nftables rules: no")
        super().load(text)


class Led(FakeProbeNode):
    """A node on which a policy rule bypasses the route via azure0."""

    def route(self) -> str | None:
        if "azure0" in (self.host_route or ""):
            return "default via fe80::9 dev eth9"
        return self.host_route


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (Refusing(), "can't load the nftables rules"),
        (
            Led(),
            (
                r"the host route doesn't win .* would take default via fe80::9 dev eth9"
                r"\nhint: look at: ip -6 rule"
            ),
        ),
    ],
)
def test_a_failure_changes_nothing(host: Host, node: FakeProbeNode, message: str) -> None:
    configure(host, node, asked())
    before, texts = (dict(node.tables), node.host_route), outside_run(host.layout.root)
    with pytest.raises(LoadBalancerProbeError, match=message):
        configure(host, node, asked(devices=["azure0"]))
    assert ((node.tables, node.host_route), outside_run(host.layout.root)) == (before, texts)


def test_the_port_of_a_vrf_is_not_a_bridge_port(host: Host, node: FakeProbeNode) -> None:
    """tests/kernel/test_probe_packets.py has a bridge, whose port is refused."""
    assert isinstance(host.routes, FakeKernel)
    host.routes.add_link("above", kind="vrf")
    host.routes.add_link("eth0", master="above")
    assert configure(host, node, asked()).device == "eth0"


METADATA = asked(ipv6Detection="METADATA")


def test_a_node_without_ipv6_gets_no_rules(host: Host, node: FakeProbeNode) -> None:
    """Installed rules stay regardless of Azure's answer. Without one, nothing is changed."""
    planned, done = plan_probe(METADATA, host=host, node=node), configure(host, node, METADATA)
    assert (
        planned.skipped_because
        == done.skipped_because
        == "Azure's metadata service has assigned no IPv6 address"
    )
    with pytest.raises(LoadBalancerProbeError, match="unavailable"):
        configure(host, FakeProbeNode(problem="unavailable"), METADATA)
    assert (node.tables, files(host)) == ({}, set())
    assert configure(host, FakeProbeNode([IPv6Address("fd00::4")]), METADATA).device == "eth0"
    assert configure(host, node, METADATA).device == "eth0"
    assert files(host) == FILES


def test_a_config_without_it_removes_everything(host: Host, node: FakeProbeNode) -> None:
    """test_commands.py has the commands that remove it."""
    configure(host, node, asked(devices=["azure0"]))
    assert plan_probe(HostNetworking(), host=host, node=node).rules == "removed"
    report = configure(host, node, HostNetworking())
    assert (report.rules, [change.what for change in report.changes.routes]) == (
        "removed",
        [host_route("azure0")],
    )
    assert (node.tables, node.host_route, files(host)) == ({}, None, set())
    remove = RemoveLoadBalancerProbe(host=host, node=node)
    assert phases.run(remove) == ProbeReport(skipped_because="probe rewriting isn't installed")


def test_an_interrupted_removal_is_completed(host: Host, node: FakeProbeNode) -> None:
    configure(host, node, asked())
    kept = attrs.evolve(node, tables=dict(node.tables))
    phases.run(RemoveLoadBalancerProbe(host=host, node=node))
    assert phases.run(RemoveLoadBalancerProbe(host=host, node=kept)).rules == "removed"
    assert (kept.tables, kept.host_route) == ({}, None)


def test_an_image_gets_only_files(tmp_path: Path) -> None:
    (tmp_path / "usr/lib/systemd/system").mkdir(parents=True)
    host = Host.image(tmp_path)
    report = configure(host, None, METADATA)
    assert (report.device, report.rules, report.changes.routes) == ("eth0", None, ())
    assert files(host) == FILES
    assert not plan_probe(METADATA, host=host).changed
    phases.run(RemoveLoadBalancerProbe(host=host))
    assert files(host) == set()


def test_another_root_needs_an_explicit_node(host: Host) -> None:
    with pytest.raises(ConfigError, match="must be given with a layout below"):
        configure(host, None, asked())
