"""What is on running nodes, on Linux and in memory: CNIs, Docker, VPNs and own addresses, sorted as they should be."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import TYPE_CHECKING, Any

import pytest
from brute_force import Judge, disagreements, judged, sort_all
from node import build_node
from scenario import play

import phases
from hostrouting import Config, Host, Layout
from hostrouting.kernel.memory import FakeKernel
from hostrouting.kernel.namespace import NamespaceKernel, enter_namespace
from hostrouting.overlap.check import check_overlap
from hostrouting.tasks.install_routes import InstallRoutes
from hostrouting.testing import FakeSystemd

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hostrouting import OverlapReport
    from hostrouting.kernel.port import Kernel


def _linux() -> Kernel:
    enter_namespace()
    return NamespaceKernel()


@pytest.fixture(
    params=[pytest.param(_linux, marks=pytest.mark.kernel, id="linux"), pytest.param(FakeKernel, id="memory")]
)
def bare(request: pytest.FixtureRequest) -> Kernel:
    made: Kernel = request.param()
    return made


@pytest.fixture
def node(bare: Kernel) -> Kernel:
    """eth0 with 10.1.0.4/24 and the default route, eth1 with 10.2.0.4/24, ib0 with 172.16.0.10/16."""
    build_node(bare)
    return bare


def check(kernel: Kernel, tmp_path: Path, *cidrs: str, **overlap: Any) -> OverlapReport:
    """The check; around all that it tells of it is held to brute force."""
    report = _check(kernel, tmp_path, [*cidrs], **overlap)[1]
    ranges = [finding.ranges for finding in report.findings] + [note.ranges for note in report.notes]
    near = {IPv4Network((part[0], 24), strict=False) for parts in ranges for part in parts}
    # Where all is as expected nothing is told of, and any part of it will do.
    around = [str(cidr) for cidr in sorted(near)[:4]] or [cidrs[0]]
    config, closer = _check(kernel, tmp_path, around, **overlap)
    judge = Judge(kernel, config.route_overlap, had_rules=len(kernel.rules()) > 3)
    asked = [expected.cidr for expected in config.route_overlap.expected_cidrs]
    assert disagreements(closer, judge, {cidr: sort_all(kernel, judge, judged(cidr)) for cidr in asked}) == []
    return report


def _check(kernel: Kernel, root: Path, cidrs: list[str], **overlap: Any) -> tuple[Config, OverlapReport]:
    section = {"routeOverlap": {"expectedCidrs": cidrs, **overlap}, "waitSeconds": 0}
    config = Config.from_mapping({"hostRouting": section})
    host = Host(routes=kernel, units=FakeSystemd(), layout=Layout(root))
    return config, check_overlap(config, host.routes, phases.CancelScope())


def told(report: OverlapReport) -> list[str]:
    """A line a failure or note: kind, CIDR, interfaces, addresses."""
    lines = [_line(finding.kind, finding.devs, finding.ranges) for finding in report.findings]
    lines += [_line(note.kind, note.devs, note.ranges) for note in report.notes]
    lines += [f"fix {entry}" for entry in report.remedy.routes]
    return lines + [
        f"unmendable {_span(part.ranges)}: {part.reason.partition(':')[0]}" for part in report.remedy.unmendable
    ]


def _line(kind: str, devs: Sequence[str], ranges: tuple[IPv4Network, ...]) -> str:
    return " ".join(filter(None, (kind, ",".join(devs), _span(ranges))))


def _span(ranges: tuple[IPv4Network, ...]) -> str:
    if len(ranges) <= 4:
        return " ".join(str(part).removesuffix("/32") for part in ranges)
    return f"{sum(part.num_addresses for part in ranges)} of {ranges[0][0]}-{ranges[-1][-1]}"


def apply(kernel: Kernel, tmp_path: Path, report: OverlapReport) -> None:
    routes = [entry.to_mapping() for entry in report.remedy.routes]
    config = Config.from_mapping({"hostRouting": {"staticRoutes": {"enabled": True, "routes": routes}}})
    InstallRoutes(config, host=Host(routes=kernel, units=FakeSystemd(), layout=Layout(tmp_path))).do(
        phases.CancelScope()
    )


def test_eight_infiniband_interfaces_shadow_all_of_it_and_two_routes_mend_it(node: Kernel, tmp_path: Path) -> None:
    for number in range(1, 8):
        play(node, f"link add ib{number}\naddr add 172.16.0.{10 + number}/16 dev ib{number}")
    report = check(node, tmp_path, "172.16.0.0/16")
    (finding,) = report.findings
    assert (str(finding.cidr), finding.devs, finding.expected_devs) == ("172.16.0.0/16", ("ib0",), ("eth0",))
    assert told(report) == [
        "OVERLAP ib0 65527 of 172.16.0.0-172.16.255.254",
        "LOCAL ib0,ib1,ib2,ib3,ib4,ib5,ib6,ib7 172.16.0.10/31 172.16.0.12/30 172.16.0.16/31",
        "BROADCAST ib0 172.16.255.255",
        "fix 172.16.0.0/17",
        "fix 172.16.128.0/17",
    ]
    apply(node, tmp_path, report)
    assert check(node, tmp_path, "172.16.0.0/16").verdict == "ok"


def test_calicos_block_pods_and_tunnels_are_no_failures(node: Kernel, tmp_path: Path) -> None:
    play(
        node,
        """
        link add cali1a
        link add vxlan.calico
        addr add 10.244.1.0/32 dev vxlan.calico
        route add blackhole 10.244.1.0/26 proto 80
        route add 10.244.1.5 dev cali1a proto boot scope link
        route add 10.244.2.0/26 via 10.244.2.0 dev vxlan.calico onlink proto 80
        """,
    )
    assert told(check(node, tmp_path, "10.244.0.0/16")) == [
        "LOCAL vxlan.calico 10.244.1.0",
        "CNI-DISCARD 62 of 10.244.1.1-10.244.1.63",
        "CONTAINER cali1a,vxlan.calico 10.244.1.5 10.244.2.0/26",
    ]


def test_calicos_routes_by_bird_are_no_failures(node: Kernel, tmp_path: Path) -> None:
    play(
        node,
        """
        link add cali1a
        link add tunl0
        addr add 10.244.1.1/32 dev tunl0
        route add blackhole 10.244.1.0/26 proto bird
        route add 10.244.2.0/26 via 10.1.0.5 dev tunl0 onlink proto bird
        route add 10.244.3.0/26 via 10.1.0.6 dev eth0 proto bird
        """,
    )
    assert told(check(node, tmp_path, "10.244.0.0/16")) == [
        "CNI-DISCARD 63 of 10.244.1.0-10.244.1.63",
        "LOCAL tunl0 10.244.1.1",
        "CONTAINER tunl0 10.244.2.0/26",
    ]


def test_a_discarded_block_with_a_pod_inside_is_a_cnis_and_one_without_fails(node: Kernel, tmp_path: Path) -> None:
    play(
        node,
        """
        link add veth1
        route add unreachable 10.244.1.0/24 proto static
        route add 10.244.1.5 dev veth1 proto static scope link
        route add unreachable 10.244.2.0/24 proto static
        """,
    )
    assert told(check(node, tmp_path, "10.244.0.0/16")) == [
        "BLACKHOLE 10.244.2.0/24",
        "CNI-DISCARD 255 of 10.244.1.0-10.244.1.255",
        "CONTAINER veth1 10.244.1.5",
        "fix 10.244.2.0/25",
        "fix 10.244.2.128/25",
    ]


def test_cilium_routes_are_no_failures_and_its_rule_is_noted(node: Kernel, tmp_path: Path) -> None:
    play(
        node,
        """
        link add cilium_host
        link add lxc1a2b3c
        addr add 10.0.0.80/32 dev cilium_host
        route add 10.0.0.80 dev cilium_host proto kernel scope link
        route add 10.0.0.0/24 via 10.0.0.80 dev cilium_host proto kernel src 10.0.0.80
        route add 10.0.1.0/24 via 10.0.0.80 dev cilium_host proto kernel src 10.0.0.80 mtu 1450
        route add local 0.0.0.0/0 dev lo table 2004 proto kernel
        rule add 9 fwmark 0x200 lookup 2004
        """,
    )
    assert told(check(node, tmp_path, "10.0.0.0/16")) == [
        "CONTAINER cilium_host 511 of 10.0.0.0-10.0.1.255",
        "LOCAL cilium_host 10.0.0.80",
        "RULE",
    ]


def test_flannels_tunnel_and_bridge_are_no_failures(node: Kernel, tmp_path: Path) -> None:
    play(
        node,
        """
        link add flannel.1
        link add cni0
        addr add 10.244.0.0/32 dev flannel.1
        addr add 10.244.0.1/24 dev cni0
        route add 10.244.1.0/24 via 10.244.1.0 dev flannel.1 onlink
        """,
    )
    assert told(check(node, tmp_path, "10.244.0.0/16")) == [
        "LOCAL cni0,flannel.1 10.244.0.0/31",
        "CONTAINER cni0,flannel.1 509 of 10.244.0.2-10.244.1.255",
        "BROADCAST cni0 10.244.0.255",
    ]


def test_a_pool_of_dockers_that_overlaps_fails_with_advice(node: Kernel, tmp_path: Path) -> None:
    play(node, "link add docker0\naddr add 172.17.0.1/16 dev docker0")
    assert told(check(node, tmp_path, "172.17.0.0/16")) == [
        "OVERLAP docker0 65534 of 172.17.0.0-172.17.255.254",
        "LOCAL docker0 172.17.0.1",
        "BROADCAST docker0 172.17.255.255",
        "unmendable 65534 of 172.17.0.0-172.17.255.254: docker0 belongs to Docker",
    ]


def test_a_second_nic_fails_unless_it_is_allowed(node: Kernel, tmp_path: Path) -> None:
    assert told(check(node, tmp_path, "10.2.0.0/24")) == [
        "OVERLAP eth1 254 of 10.2.0.0-10.2.0.254",
        "LOCAL eth1 10.2.0.4",
        "BROADCAST eth1 10.2.0.255",
        "fix 10.2.0.0/25",
        "fix 10.2.0.128/25",
    ]
    assert told(check(node, tmp_path, "10.2.0.0/24", allowedDevs=["eth[1-9]"])) == [
        "ALLOWED eth1 254 of 10.2.0.0-10.2.0.254",
        "LOCAL eth1 10.2.0.4",
        "BROADCAST eth1 10.2.0.255",
    ]


def test_what_a_vpn_takes_by_rule_from_the_default_route_is_mended_by_longer_routes(
    node: Kernel, tmp_path: Path
) -> None:
    play(
        node,
        """
        link add vpn0
        addr add 10.99.0.2/32 dev vpn0
        route add default dev vpn0 table 51820 proto boot scope link
        rule add 32764 lookup main suppress 0
        rule add 32765 not fwmark 0xca6c lookup 51820
        """,
    )
    report = check(node, tmp_path, "10.96.0.0/16", "10.1.0.0/24")
    assert told(report) == [
        "OVERLAP vpn0 10.96.0.0/16",
        "LOCAL eth0 10.1.0.4",
        "BROADCAST eth0 10.1.0.255",
        "fix 10.96.0.0/16",
    ]
    apply(node, tmp_path, report)
    assert told(check(node, tmp_path, "10.96.0.0/16", "10.1.0.0/24")) == [
        "LOCAL eth0 10.1.0.4",
        "BROADCAST eth0 10.1.0.255",
    ]


def test_a_cnis_wireguard_is_one_where_the_config_says_so(node: Kernel, tmp_path: Path) -> None:
    play(
        node,
        """
        link add wg0
        route add 10.244.0.0/16 dev wg0 table 51820 proto boot scope link
        rule add 32765 not fwmark 0xca6c lookup 51820
        """,
    )
    named = check(node, tmp_path, "10.244.0.0/16", containerDevs=["wg[0-9]*"])
    assert told(named) == ["CONTAINER wg0 10.244.0.0/16"]
    assert [finding.devs for finding in check(node, tmp_path, "10.244.0.0/16").findings] == [("wg0",)]


def test_tailscales_table_fails_with_advice_unless_it_is_allowed(node: Kernel, tmp_path: Path) -> None:
    play(
        node,
        """
        link add tailscale0
        addr add 100.101.102.103/32 dev tailscale0
        route add 10.96.0.0/20 dev tailscale0 table 52 proto boot scope link
        route add throw 127.0.0.0/8 table 52 proto boot
        rule add 5210 fwmark 0x80000 lookup main
        rule add 5230 fwmark 0x80000 lookup default
        rule add 5250 fwmark 0x80000 unreachable
        rule add 5270 lookup 52
        """,
    )
    assert told(check(node, tmp_path, "10.96.0.0/16")) == [
        "OVERLAP tailscale0 10.96.0.0/20",
        "RULE",
        "unmendable 10.96.0.0/20: tailscale0 belongs to a VPN",
    ]
    assert told(check(node, tmp_path, "10.96.0.0/16", allowedDevs=["tailscale*"])) == [
        "ALLOWED tailscale0 10.96.0.0/20",
        "RULE",
    ]


def test_service_addresses_on_a_dummy_are_this_hosts_own(node: Kernel, tmp_path: Path) -> None:
    play(
        node,
        """
        link add kube-ipvs0
        addr add 10.96.0.1/32 dev kube-ipvs0
        addr add 10.96.0.10/32 dev kube-ipvs0
        """,
    )
    assert told(check(node, tmp_path, "10.96.0.0/16")) == ["LOCAL kube-ipvs0 10.96.0.1 10.96.0.10"]


def test_a_network_that_is_all_this_hosts_own_takes_the_clusters(node: Kernel, tmp_path: Path) -> None:
    play(node, "route add local 10.96.0.0/16 dev lo table local proto boot scope host")
    assert told(check(node, tmp_path, "10.96.0.0/16", "10.96.3.0/24")) == [
        "OVERLAP lo 10.96.0.0/16",
        "OVERLAP lo 10.96.3.0/24",
        "fix 10.96.0.0/17",
        "fix 10.96.128.0/17",
    ]


def test_azures_own_addresses_leave_by_the_default_interface(node: Kernel, tmp_path: Path) -> None:
    play(
        node,
        """
        route add 168.63.129.16 via 10.1.0.1 dev eth0 proto dhcp src 10.1.0.4 metric 100
        route add 169.254.169.254 via 10.1.0.1 dev eth0 proto dhcp src 10.1.0.4 metric 100
        """,
    )
    assert told(check(node, tmp_path, "168.63.129.16/32", "169.254.169.254/32")) == []
