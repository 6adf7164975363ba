"""Test the load balancer probe rules and tasks with real packets and real nft."""

from __future__ import annotations

import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv6Address
from pathlib import Path

import frames
import probe_world as lab
import pytest
from needs import needs_connection_tracking
from nightly import IS_NIGHTLY, by_day
from node import run_ip6

import phases
from hostrouting import Host, Layout
from hostrouting.azure import (
    ConfigureLoadBalancerProbe,
    HostNetworking,
    LoadBalancerProbe,
    LoadBalancerProbeError,
    ProbeReport,
    RemoveLoadBalancerProbe,
    checks,
)
from hostrouting.azure.probe.node import LinuxProbeNode
from hostrouting.azure.probe.ruleset import (
    PROBE_SOURCE,
    REMOVAL,
    REWRITTEN_SOURCE,
    TABLE,
    render_ruleset,
)
from hostrouting.doctor.examine import examine
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.testing import FakeSystemd

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("nft")]

NODE_PORT = 30080
ECHO_REQUEST = 128
UDP_PORT = 5353
DATAGRAM = struct.pack("!HHHH", 1024, UDP_PORT, 8, 0)

# kube-proxy's rules for a Service with externalTrafficPolicy=Cluster.
SERVICE = f"""table ip6 kube {{
    chain services {{
        type nat hook prerouting priority dstnat;
        ip6 daddr {lab.NODE} tcp dport {NODE_PORT} dnat to [{lab.POD}]:{lab.SERVICE_PORT};
    }}
    chain masquerading {{ type nat hook postrouting priority srcnat; ct status dnat masquerade; }}
}}"""

RULES = render_ruleset("eth0")

# This table counts packets immediately after our rules.
SEEN = f"""table ip6 seen {{ chain prerouting {{
    type filter hook prerouting priority -299;
    ip6 saddr {PROBE_SOURCE} meta l4proto != tcp counter; ip6 saddr {REWRITTEN_SOURCE} counter;
}}; }}"""

# These rules make the kernel track connections, as kube-proxy and firewalls do.
TRACKING = (
    "table ip6 tracking { chain seen { type filter hook prerouting priority 0; "
    "ct state new counter; }; }"
)


@pytest.fixture(
    params=["", TRACKING] if IS_NIGHTLY else [TRACKING],
    ids=lambda text: "conntrack" if text else "",
)
def bare(kernel: NamespaceKernel, request: pytest.FixtureRequest) -> lab.World:
    """Return a node without rules, host route or default route."""
    if request.param:
        needs_connection_tracking()
    world = lab.World()
    lab.nft(request.param)
    return world


@pytest.fixture
def world(bare: lab.World) -> lab.World:
    """Return a node with the rules and the host route, but without a default route."""
    lab.load_rules()
    run_ip6(f"route add {lab.HOST_ROUTE}")
    return bare


# --- probes of pods -------------------------------------------------------------------------------


def test_a_probe_of_a_pod_is_answered(world: lab.World) -> None:
    with lab.serving(lab.SERVICE_PORT, world.pod) as peers:
        assert world.probe() == lab.ANSWER
    assert peers == [REWRITTEN_SOURCE]
    probes_in, answers_out = lab.counters()
    assert probes_in > 0
    assert answers_out > 0


@pytest.mark.parametrize("offload", [False, True], ids=["by who sends", "by the node's NICs"])
@pytest.mark.parametrize("length", [7, 100_001])
def test_every_tcp_checksum_is_right(world: lab.World, length: int, offload: bool) -> None:
    """The pod may leave checksums to the uplink's offload, so a rewritten packet has only a partial
    checksum.
    """
    world.set_checksum_offload(offload)
    answer = bytes(length)
    with (
        lab.serving(lab.SERVICE_PORT, world.pod, answer=answer),
        lab.capturing("eth0", world.pod) as at_pod,
        lab.capturing("eth0", world.balancer) as at_balancer,
    ):
        assert world.probe() == answer
        came = [packet for packet in at_pod.packets() if packet.protocol == frames.TCP]
        went = [packet for packet in at_balancer.packets() if packet.protocol == frames.TCP]
    assert {(packet.source, packet.destination) for packet in came} == {(REWRITTEN_SOURCE, lab.POD)}
    assert {(packet.source, packet.destination) for packet in went} == {(lab.POD, PROBE_SOURCE)}
    assert came[0].flags == frames.SYN
    assert went[0].flags == frames.SYN | frames.ACK
    assert sum(len(packet.payload) for packet in went) > length
    assert [packet for packet in came + went if not packet.is_right] == []


def test_a_probe_of_a_node_port_is_answered(bare: lab.World) -> None:
    """kube-proxy forwards the probe to a pod with DNAT and masquerading, so the pod sees the node's
    address.
    """
    lab.nft(SERVICE)
    with (
        lab.serving(lab.SERVICE_PORT, bare.pod) as peers,
        lab.capturing("eth0", bare.balancer) as wire,
    ):
        assert bare.is_lost(lab.NODE, NODE_PORT)  # address translation alone doesn't help
        lab.load_rules()
        run_ip6(f"route add {lab.HOST_ROUTE}")
        wire.packets()
        assert bare.probe(lab.NODE, NODE_PORT) == lab.ANSWER
        went = [packet for packet in wire.packets() if packet.protocol == frames.TCP]
    assert peers == [lab.NODE_ON_POD_LINK]
    assert {(packet.source, packet.destination) for packet in went} == {(lab.NODE, PROBE_SOURCE)}
    assert all(packet.is_right for packet in went)


# --- other packets from that address --------------------------------------------------------------


def test_all_but_tcp_keeps_its_source(world: lab.World) -> None:
    """Otherwise the node would ignore the router's advertisements, solicitations, MLD queries and
    redirects.
    """
    lab.nft(SEEN)
    datagram = frames.Packet(PROBE_SOURCE, lab.NODE, frames.UDP, DATAGRAM)
    world.send_to_node(
        datagram, *(lab.icmp(lab.NODE, bytes((kind, 0)) + bytes(38)) for kind in range(256))
    )
    kept, rewritten = lab.counters("seen")
    assert kept >= 257
    assert rewritten == 0


# --- pods -----------------------------------------------------------------------------------------


# Some stacks also open a connection on a SYN with FIN or RST set.
SYNS = [frames.SYN | more for more in (0, frames.ECE | frames.CWR, frames.FIN, frames.RST)]
ANSWERS = [
    *(frames.ACK | more for more in (0, frames.SYN, frames.PSH | frames.FIN, frames.RST)),
    frames.RST,
]


def of_pod(
    protocol: int,
    payload: bytes,
    destination: IPv6Address = REWRITTEN_SOURCE,
    *,
    source: IPv6Address = lab.POD,
) -> frames.Packet:
    return frames.Packet(source, destination, protocol, payload, hop_limit=64)


def segments(*flags: int) -> list[frames.Packet]:
    return [of_pod(frames.TCP, frames.segment(1024, lab.SERVICE_PORT, each)) for each in flags]


def sent_by_pod(world: lab.World, *packets: frames.Packet) -> list[frames.Packet]:
    """Return the packets of a pod that reach the balancer, the last of which is a datagram to the
    rewritten address.
    """
    with lab.capturing("eth0", world.balancer) as wire:
        world.send_from_pod(*packets, of_pod(frames.UDP, DATAGRAM))
        arrived = wire.until(
            lambda packet: packet.source == lab.POD and packet.protocol == frames.UDP
        )
    return [
        packet for packet in arrived if packet.protocol == frames.TCP or packet.source == lab.POD
    ]


def test_only_answers_of_a_pod_reach_the_balancer(world: lab.World) -> None:
    """No connection, datagram or echo request of a pod reaches the fabric."""
    echo = of_pod(frames.ICMPV6, struct.pack("!BBHHH", ECHO_REQUEST, 0, 0, 1, 1))
    others = sent_by_pod(world, echo, *segments(*SYNS))
    assert [packet.protocol for packet in others] == [
        frames.ICMPV6,
        *[frames.TCP] * len(SYNS),
        frames.UDP,
    ]
    assert {packet.destination for packet in others} == {REWRITTEN_SOURCE}
    assert lab.counters() == (0, 0)
    *answers, _ = sent_by_pod(world, *segments(*ANSWERS))
    assert [packet.destination for packet in answers] == [PROBE_SOURCE] * len(ANSWERS)
    assert all(packet.is_right for packet in others + answers)
    assert lab.counters()[1] == len(ANSWERS)


def test_a_pod_cant_claim_to_be_the_balancer(world: lab.World) -> None:
    syn = frames.segment(1024, lab.SERVICE_PORT, frames.SYN)
    arrived = sent_by_pod(world, of_pod(frames.TCP, syn, lab.BALANCER, source=PROBE_SOURCE))
    assert [packet.protocol for packet in arrived] == [frames.UDP]
    assert lab.counters()[0] == 0


# --- probes of the node itself --------------------------------------------------------------------


BY_ETH0 = f"route add default via {PROBE_SOURCE} dev eth0 metric 1024"
A_BETTER_ONE = f"route add default via {PROBE_SOURCE} dev eth1 metric 1"


@pytest.mark.parametrize(
    "defaults", [[], [BY_ETH0, A_BETTER_ONE]], ids=["no default", "a better one elsewhere"]
)
def test_probes_of_the_host_need_the_route(bare: lab.World, defaults: list[str]) -> None:
    bare.add_nic()
    run_ip6(*defaults)
    lab.load_rules()
    with lab.serving(lab.HOST_PORT) as peers, lab.serving(lab.SERVICE_PORT, bare.pod):
        assert bare.is_lost(lab.NODE, lab.HOST_PORT)
        run_ip6(f"route add {lab.HOST_ROUTE}")
        assert bare.probe(lab.NODE, lab.HOST_PORT) == lab.ANSWER
        assert bare.probe() == lab.ANSWER
    assert REWRITTEN_SOURCE in peers


def test_packets_on_other_interfaces_keep_their_address(bare: lab.World) -> None:
    """The uplink's link-local address must not appear on other links."""
    bare.add_nic()
    lab.load_rules()
    run_ip6(BY_ETH0, A_BETTER_ONE)
    with lab.capturing("eth1", bare.balancer) as wire:
        bare.send_from_pod(*segments(frames.ACK))
        wire.until(
            lambda packet: packet.source == lab.POD and packet.destination == REWRITTEN_SOURCE
        )
    assert lab.counters() == (0, 0)


# --- reloads --------------------------------------------------------------------------------------

RELOADS, PROBERS = by_day(10, by_night=100), 4
PROBES = 15 * RELOADS

# While the rules exist, the node must send neither replies to the unassigned address nor ICMP
# errors.
MISSES = f"""table ip6 misses {{ chain prerouting {{
    type filter hook prerouting priority -300;
    ip6 daddr {REWRITTEN_SOURCE} counter; icmpv6 type destination-unreachable counter;
}}; }}"""


def test_reloads_under_load_lose_nothing(world: lab.World) -> None:
    """No probe or TCP segment is lost; TCP retransmissions would hide the loss of a segment."""
    node = LinuxProbeNode()
    lab.nft(SERVICE)
    world.balancer.run(lambda: lab.nft(MISSES))
    answered, done = threading.Semaphore(0), threading.Event()

    def keep_probing(destination: IPv6Address, port: int) -> list[bytes]:
        answers = []
        while not done.is_set():
            answers.append(world.probe(destination, port))
            answered.release()
        return answers

    with lab.serving(lab.SERVICE_PORT, world.pod), ThreadPoolExecutor(PROBERS) as pool:
        kinds = [(lab.POD, lab.SERVICE_PORT), (lab.NODE, NODE_PORT)] * (PROBERS // 2)
        probing = [pool.submit(keep_probing, *kind) for kind in kinds]
        try:
            for number in range(PROBES):
                assert answered.acquire(timeout=lab.PATIENCE_SECONDS)
                if number % (PROBES // RELOADS) == 0:
                    node.load(RULES)
        finally:
            done.set()
        answers = [answer for prober in probing for answer in prober.result()]
    assert set(answers) == {lab.ANSWER}
    assert len(answers) >= PROBES
    assert world.balancer.run(lambda: lab.counters("misses")) == (0, 0)
    lab.nft(REMOVAL)  # proves that the counters would have seen a miss
    with lab.serving(lab.SERVICE_PORT, world.pod):
        assert world.is_lost()
    assert world.balancer.run(lambda: lab.counters("misses"))[1] > 0


# --- the tasks ------------------------------------------------------------------------------------


@pytest.fixture
def host(kernel: NamespaceKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(
        "hostrouting.azure.probe.tasks.node_or_default", lambda *_: LinuxProbeNode()
    )
    program = tmp_path / "usr/sbin/nft"
    program.parent.mkdir(parents=True)
    program.touch(0o755)
    return Host(kernel, FakeSystemd(Layout(tmp_path)), Layout(tmp_path))


def configure(host: Host, device: str = "eth0") -> ProbeReport:
    networking = HostNetworking(LoadBalancerProbe(enabled=True, devices=[device]))
    return phases.run(ConfigureLoadBalancerProbe(networking, host=host, node=LinuxProbeNode()))


CHANGES = {
    "it expires": ["route del default"],
    "another one appears": [A_BETTER_ONE],
    # Like two router advertisements do, with the other NIC's hop first.
    "one route has two hops": [
        "route del default",
        "route add default metric 1024 nexthop via fe80::99 dev eth1 nexthop via fe80::99 dev eth0",
    ],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_rules_survive_changes_of_the_default_route(
    bare: lab.World, host: Host, change: list[str]
) -> None:
    """The next run keeps the device, and the doctor doesn't recommend another one."""
    bare.add_nic()
    run_ip6(BY_ETH0)
    with lab.serving(lab.SERVICE_PORT, bare.pod), lab.serving(lab.HOST_PORT):
        assert bare.is_lost()
        assert configure(host).changed
        run_ip6(*change)
        for _ in range(2):  # before and after another run
            assert bare.probe() == lab.ANSWER
            assert bare.probe(lab.NODE, lab.HOST_PORT) == lab.ANSWER
            examined = examine(host=host, checks=checks.CHECKS)
            assert [faults for each, faults in examined.found.items() if each.name == "probes"] == [
                ()
            ]
            assert not configure(host).changed


@pytest.mark.parametrize(
    "wipe", ["flush ruleset", REMOVAL, f"flush table ip6 {TABLE}"][: by_day(1, by_night=3)]
)
def test_another_run_restores_wiped_rules(bare: lab.World, host: Host, wipe: str) -> None:
    configure(host)
    lab.nft(wipe)
    run_ip6(f"route del {lab.HOST_ROUTE}")
    with lab.serving(lab.SERVICE_PORT, bare.pod):
        assert bare.is_lost()
        assert configure(host).rules == "loaded"
        assert bare.probe() == lab.ANSWER


def test_probes_on_another_nic_are_answered_as_without_rules(bare: lab.World, host: Host) -> None:
    bare.add_nic()
    for dev, metric in (("eth0", 10), ("eth1", 20)):
        run_ip6(f"route add default via {PROBE_SOURCE} dev {dev} metric {metric}")
    with lab.serving(lab.SERVICE_PORT, bare.pod), lab.serving(lab.HOST_PORT) as own:
        configure(host)
        assert bare.probe(lab.NODE_BY_SECOND_NIC, lab.HOST_PORT, by="eth1") == lab.ANSWER
        assert bare.probe(lab.NODE, lab.HOST_PORT) == lab.ANSWER
        assert bare.probe() == lab.ANSWER
        assert own == [PROBE_SOURCE, REWRITTEN_SOURCE]


@pytest.mark.parametrize("is_filtered", [False, True], ids=["bridge-nf off", "bridge-nf on"])
def test_in_bridge_mode_the_rules_name_the_bridge(
    bare: lab.World, host: Host, is_filtered: bool
) -> None:
    bare.bridge()
    # This setting determines whether bridged frames already pass through netfilter's IPv6 hooks.
    Path("/proc/sys/net/bridge/bridge-nf-call-ip6tables").write_text(str(int(is_filtered)))
    with pytest.raises(LoadBalancerProbeError, match="a port of azure0.*\nhint: name azure0"):
        configure(host)
    configure(host, "azure0")
    with lab.serving(lab.HOST_PORT) as own, lab.serving(lab.SERVICE_PORT, bare.pod) as peers:
        assert bare.probe(lab.NODE, lab.HOST_PORT) == lab.ANSWER
        assert bare.probe() == lab.ANSWER
    assert own == peers == [REWRITTEN_SOURCE]


def test_a_failure_or_a_removal_leaves_nothing(bare: lab.World, host: Host) -> None:
    before = lab.everything()
    with pytest.raises(
        LoadBalancerProbeError, match="can't add the host route .* dev none0 .*Cannot find device"
    ):
        configure(host, "none0")
    assert lab.everything() == before
    configure(host)
    assert phases.run(RemoveLoadBalancerProbe(host=host, node=LinuxProbeNode())).rules == "removed"
    assert lab.everything() == before
    with lab.serving(lab.SERVICE_PORT, bare.pod), lab.serving(lab.HOST_PORT) as own:
        assert bare.is_lost()
        assert bare.probe(lab.NODE, lab.HOST_PORT) == lab.ANSWER
    assert own == [PROBE_SOURCE]
