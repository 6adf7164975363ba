"""The load balancer probe's rules and tasks, held to packets: a balancer, a node and a pod, and real nft."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ipv6_frames import (
    ACK,
    ALL_NODES,
    BEYOND_SCOPE,
    CWR,
    ECE,
    FIN,
    ICMPV6,
    MLD_REPORT,
    PSH,
    RST,
    SYN,
    TCP,
    UDP,
    UNREACHABLE,
    URG,
    Packet,
    mld_query,
    redirect,
    router_advertisement,
    segment,
)
from nightly import by_day
from probe_world import (
    ANSWER,
    BALANCER,
    BALANCER_MAC,
    CLOSED_PORT,
    ELSEWHERE,
    HOST_PORT,
    LOST_AFTER_SECONDS,
    NODE,
    NODE_BY_SECOND_NIC,
    NODE_ON_POD_LINK,
    PATIENCE_SECONDS,
    PIN,
    POD,
    SECOND_ROUTER,
    SERVICE_PORT,
    World,
    capturing,
    counters,
    icmp,
    ip,
    load_rules,
    nft,
    routes,
    serving,
    tables,
)

import phases
from hostrouting import Host, Layout
from hostrouting.azure import (
    ConfigureLoadBalancerProbe,
    HostNetworking,
    LoadBalancerProbe,
    LoadBalancerProbeError,
    ProbeReport,
    RemoveLoadBalancerProbe,
    examinations,
)
from hostrouting.azure.probe.linux import LinuxProbeNode
from hostrouting.azure.probe.ruleset import PROBE_SOURCE, REMOVAL, REWRITTEN_SOURCE, TABLE, render_ruleset
from hostrouting.doctor.examine import examine
from hostrouting.testing import FakeSystemd

if TYPE_CHECKING:
    from collections.abc import Callable
    from ipaddress import IPv6Address

    from hostrouting.kernel.namespace import NamespaceKernel

    Lead = Callable[[], None]

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("nft")]

NODE_PORT = 30080
ECHO_REQUEST = 128
UDP_PORT = 5353

# kube-proxy's, of a Service whose externalTrafficPolicy is Cluster.
SERVICE = f"""
table ip6 kube {{
    chain services {{
        type nat hook prerouting priority dstnat; policy accept;
        ip6 daddr {NODE} tcp dport {NODE_PORT} dnat to [{POD}]:{SERVICE_PORT}
    }}
    chain masquerading {{
        type nat hook postrouting priority srcnat; policy accept;
        ct status dnat masquerade
    }}
}}
"""

# AgentBaker's ipv6_nftables: all but three kinds of ICMPv6 is rewritten, and whatever is sent to the rewritten address.
AGENTBAKER = f"""
table ip6 azureSLBProbe {{
    chain prerouting {{
        type filter hook prerouting priority -300; policy accept;
        iifname eth0 icmpv6 type {{ nd-neighbor-solicit, nd-router-advert, nd-neighbor-advert }} counter accept
        iifname eth0 ip6 saddr {PROBE_SOURCE} counter ip6 saddr set {REWRITTEN_SOURCE}
    }}
    chain postrouting {{
        type filter hook postrouting priority -300; policy accept;
        oifname eth0 ip6 daddr {REWRITTEN_SOURCE} counter ip6 daddr set {PROBE_SOURCE}
    }}
}}
"""


RULES = render_ruleset("eth0")

# Right after the rules.
SEEN = f"""
table ip6 seen {{
    chain prerouting {{
        type filter hook prerouting priority -299; policy accept;
        ip6 saddr {PROBE_SOURCE} meta l4proto icmpv6 counter
        ip6 saddr {REWRITTEN_SOURCE} counter
    }}
}}
"""


# What has the kernel track connections, as kube-proxy and firewalls do.
TRACKING = "table ip6 tracking { chain seen { type filter hook prerouting priority 0; ct state new counter; }; }"


@pytest.fixture(params=["", TRACKING], ids=["", "conntrack"])
def bare(kernel: NamespaceKernel, request: pytest.FixtureRequest) -> World:
    """No rules, no pin, no default route."""
    world = World()
    nft(request.param)
    return world


@pytest.fixture
def world(bare: World) -> World:
    """With the rules and the pin, and still no default route."""
    load_rules()
    ip(f"route add {PIN}")
    return bare


# --- probes of pods -----------------------------------------------------------------------------------------------


def test_without_rules_a_probe_of_a_pod_dies(bare: World) -> None:
    with serving(SERVICE_PORT, bare.pod) as service, capturing("eth0", bare.balancer) as wire:
        with pytest.raises(OSError, match=os.strerror(errno.EHOSTUNREACH)):
            bare.probe()
        wire.until(lambda packet: packet.icmp == (UNREACHABLE, BEYOND_SCOPE))
    assert service.peers == []


def test_a_probe_of_a_pod_is_answered(world: World) -> None:
    with serving(SERVICE_PORT, world.pod) as service:
        assert world.probe() == ANSWER
    assert service.peers == [REWRITTEN_SOURCE]
    probes_in, answers_out = counters()
    assert probes_in > 0
    assert answers_out > 0


@pytest.mark.parametrize("offload", [False, True], ids=["by who sends", "by the node's NICs"])
@pytest.mark.parametrize("length", [7, 100_001])
def test_every_tcp_checksum_is_right(world: World, length: int, offload: bool) -> None:
    """Also where a pod leaves its checksums to the uplink, and what is rewritten has but half of one."""
    world.set_checksum_offload(offload)
    answer = bytes(length)
    with (
        serving(SERVICE_PORT, world.pod, answer=answer),
        capturing("eth0", world.pod) as at_pod,
        capturing("eth0", world.balancer) as at_balancer,
    ):
        assert world.probe() == answer
        came = [packet for packet in at_pod.packets() if packet.protocol == TCP]
        went = [packet for packet in at_balancer.packets() if packet.protocol == TCP]
    assert {(packet.source, packet.destination) for packet in came} == {(REWRITTEN_SOURCE, POD)}
    assert {(packet.source, packet.destination) for packet in went} == {(POD, PROBE_SOURCE)}
    assert came[0].flags == SYN
    assert went[0].flags == SYN | ACK
    assert sum(len(packet.payload) for packet in went) > length
    assert [packet for packet in came + went if not packet.is_right] == []


def test_a_wrong_checksum_would_be_seen(world: World) -> None:
    """veth hides it from both kernels; the capture that the test before relies on doesn't."""
    world.set_checksum_offload(True)
    with serving(HOST_PORT), capturing("eth0") as at_node:
        assert world.probe(NODE, HOST_PORT) == ANSWER
        segments = [packet for packet in at_node.packets() if packet.protocol == TCP]
    assert segments
    assert not any(packet.is_right for packet in segments)


def test_a_probe_of_a_closed_port_is_refused(world: World) -> None:
    with pytest.raises(ConnectionRefusedError):
        world.probe(port=CLOSED_PORT)


def test_a_probe_of_a_node_port_is_answered(world: World) -> None:
    """As kube-proxy does it: to a pod by DNAT, and masqueraded, so that the pod sees the node."""
    nft(SERVICE)
    with serving(SERVICE_PORT, world.pod) as service, capturing("eth0", world.balancer) as wire:
        assert world.probe(NODE, NODE_PORT) == ANSWER
        segments = [packet for packet in wire.packets() if packet.protocol == TCP]
    assert service.peers == [NODE_ON_POD_LINK]
    assert {(packet.source, packet.destination) for packet in segments} == {(NODE, PROBE_SOURCE)}
    assert all(packet.is_right for packet in segments)


def test_address_translation_alone_saves_no_probe(bare: World) -> None:
    nft(SERVICE)
    with serving(SERVICE_PORT, bare.pod) as service:
        assert bare.is_lost(NODE, NODE_PORT)
    assert service.peers == []


# --- what else comes from that address -------------------------------------------------------------------------------


def answers_solicitations(world: World) -> bool:
    world.send_to_node()
    return True


def takes_advertisements(world: World) -> bool:
    def listen() -> socket.socket:
        server = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        server.bind((str(PROBE_SOURCE), UDP_PORT, 0, socket.if_nametoindex("eth0")))
        return server

    # The node has to ask who the balancer is before it can send to it.
    with world.balancer.run(listen) as server, socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as client:
        server.settimeout(PATIENCE_SECONDS)
        client.sendto(b"hello", (str(PROBE_SOURCE), UDP_PORT, 0, socket.if_nametoindex("eth0")))
        return server.recv(16) == b"hello"


def takes_router_advertisements(world: World) -> bool:
    assert routes("show", "default") == ""
    world.send_to_node(icmp(ALL_NODES, router_advertisement(BALANCER_MAC)))
    return f"default via {PROBE_SOURCE} dev eth0 proto ra" in routes("show", "default")


def answers_multicast_queries(world: World) -> bool:
    with capturing("eth0", world.balancer) as wire:
        world.send_to_node(icmp(ALL_NODES, mld_query(), hop_limit=1))
        try:
            wire.until(lambda packet: packet.icmp == (MLD_REPORT, 0), LOST_AFTER_SECONDS)
        except AssertionError:
            return False
        return True


def takes_redirects(world: World) -> bool:
    """Whether the node goes by the second router after the first, the balancer, has told it to."""
    ip(f"route add default via {PROBE_SOURCE} dev eth0")
    assert f"via {PROBE_SOURCE} dev eth0" in routes("get", str(ELSEWHERE))
    world.send_to_node(icmp(NODE, redirect(ELSEWHERE, SECOND_ROUTER, BALANCER_MAC)))
    return f"via {SECOND_ROUTER} dev eth0" in routes("get", str(ELSEWHERE))


@pytest.mark.parametrize(
    "is_heard",
    [
        answers_solicitations,
        takes_advertisements,
        takes_router_advertisements,
        answers_multicast_queries,
        takes_redirects,
    ],
)
def test_the_balancers_icmp_is_heard(world: World, is_heard: Callable[[World], bool]) -> None:
    assert is_heard(world)
    assert counters() == (0, 0)


@pytest.mark.parametrize("is_heard", [answers_multicast_queries, takes_redirects])
def test_agentbakers_rules_lose_icmp(bare: World, is_heard: Callable[[World], bool]) -> None:
    nft(AGENTBAKER)
    assert not is_heard(bare)


def test_icmp_of_any_type_keeps_its_source(world: World) -> None:
    """Also where the kernel wouldn't mind another one: it takes any neighbour's advertisement."""
    nft(SEEN)
    world.send_to_node(*(icmp(NODE, bytes((kind, 0)) + bytes(38)) for kind in range(256)))
    kept, rewritten = counters("seen")
    assert kept >= 256
    assert rewritten == 0


def test_datagrams_keep_their_source(world: World) -> None:
    def ask() -> socket.socket:
        client = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        client.bind((str(PROBE_SOURCE), 0, 0, socket.if_nametoindex("eth0")))
        client.sendto(b"hello", (str(NODE), UDP_PORT))
        return client

    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as server:
        server.bind((str(NODE), UDP_PORT))
        server.settimeout(PATIENCE_SECONDS)
        with world.balancer.run(ask) as client:
            _, peer = server.recvfrom(16)
            server.sendto(b"hello", peer)
            client.settimeout(PATIENCE_SECONDS)
            assert client.recv(16) == b"hello"
    assert peer[0].partition("%")[0] == str(PROBE_SOURCE)
    assert counters() == (0, 0)


# --- pods ---------------------------------------------------------------------------------------------------------


def test_no_pod_connects_to_the_fabric(world: World) -> None:
    with serving(SERVICE_PORT, world.balancer, str(PROBE_SOURCE)) as fabric, serving(SERVICE_PORT, world.pod):
        with capturing("eth0", world.balancer) as wire:
            connect_from_pod(world)
            syn = wire.until(lambda packet: packet.source == POD and packet.flags == SYN)[-1]
        assert syn.destination == REWRITTEN_SOURCE
        assert fabric.peers == []
        assert world.probe() == ANSWER


@pytest.mark.parametrize("loads", [(AGENTBAKER,), (RULES, AGENTBAKER), (AGENTBAKER, RULES)])
def test_agentbakers_rules_let_pods_connect(bare: World, loads: tuple[str, ...]) -> None:
    """Also beside ours; probes are answered all the same."""
    for text in loads:
        nft(text)
    ip(f"route add {PIN}")
    with serving(SERVICE_PORT, bare.pod):
        assert bare.probe() == ANSWER
    with serving(SERVICE_PORT, bare.balancer, str(PROBE_SOURCE)), capturing("eth0", bare.balancer) as wire:
        connect_from_pod(bare)
        syn = wire.until(lambda packet: packet.source == POD and packet.flags == SYN)[-1]
    assert syn.destination == PROBE_SOURCE


def connect_from_pod(world: World) -> None:
    """Begin to, and give up at once."""
    with world.pod.run(lambda: socket.socket(socket.AF_INET6, socket.SOCK_STREAM)) as client:
        client.setblocking(False)
        with suppress(BlockingIOError):
            client.connect((str(REWRITTEN_SOURCE), SERVICE_PORT))


@pytest.mark.parametrize("flags", [SYN, SYN | ECE | CWR, SYN | PSH | URG, SYN | FIN, SYN | RST])
def test_no_syn_of_a_pod_reaches_the_fabric(world: World, flags: int) -> None:
    """Nor one with a FIN or RST beside its SYN: there are stacks that open on it as well."""
    assert sent_to_rewritten(world, flags).destination == REWRITTEN_SOURCE
    assert counters() == (0, 0)


def test_no_datagram_of_a_pod_reaches_the_fabric(world: World) -> None:
    question = struct.pack("!HHHH", 1024, UDP_PORT, 8, 0)
    echo = struct.pack("!BBHHH", ECHO_REQUEST, 0, 0, 1, 1)
    with capturing("eth0", world.balancer) as wire:
        world.send_from_pod(
            Packet(POD, REWRITTEN_SOURCE, ICMPV6, echo, hop_limit=64),
            Packet(POD, REWRITTEN_SOURCE, UDP, question, hop_limit=64),
        )
        arrived = wire.until(lambda packet: packet.source == POD and packet.protocol == UDP)
    of_the_pod = [packet for packet in arrived if packet.source == POD]
    assert [packet.protocol for packet in of_the_pod] == [ICMPV6, UDP]
    assert {packet.destination for packet in of_the_pod} == {REWRITTEN_SOURCE}
    assert counters() == (0, 0)


@pytest.mark.parametrize("flags", [SYN | ACK, ACK, ACK | PSH | FIN, RST, RST | ACK])
def test_every_answer_reaches_the_balancer(world: World, flags: int) -> None:
    assert sent_to_rewritten(world, flags).destination == PROBE_SOURCE
    assert counters()[1] == 1


def sent_to_rewritten(world: World, flags: int) -> Packet:
    """What arrives at the balancer of a segment that the pod sends to the rewritten address."""
    with capturing("eth0", world.balancer) as wire:
        world.send_from_pod(Packet(POD, REWRITTEN_SOURCE, TCP, segment(1024, SERVICE_PORT, flags), hop_limit=64))
        arrived = wire.until(lambda packet: packet.source == POD and packet.protocol == TCP)[-1]
    assert arrived.is_right
    return arrived


@pytest.mark.parametrize(
    ("device", "arrives_from"),
    [("eth0", set()), ("pod0", {REWRITTEN_SOURCE})],
    ids=["by the uplink", "if the rules were of the pods' device"],
)
def test_a_pod_cant_claim_to_be_the_balancer(bare: World, device: str, arrives_from: set[object]) -> None:
    load_rules(device)
    ip(f"route add {PIN}")
    claim = Packet(PROBE_SOURCE, BALANCER, TCP, segment(1024, SERVICE_PORT, SYN), hop_limit=64)
    honest = Packet(POD, BALANCER, UDP, struct.pack("!HHHH", 1024, UDP_PORT, 8, 0), hop_limit=64)
    with capturing("eth0", bare.balancer) as wire:
        bare.send_from_pod(claim, honest)
        arrived = wire.until(lambda packet: packet.protocol == UDP)
    assert {packet.source for packet in arrived if packet.flags == SYN} == arrives_from
    assert counters()[0] == len(arrives_from)


# --- probes of the node itself ----------------------------------------------------------------------------------------


def no_default_route() -> None:
    assert routes("show", "default") == ""


def a_better_default_route_elsewhere() -> None:
    ip(
        f"route add default via {PROBE_SOURCE} dev eth0 metric 1024",
        "link add eth1 type veth peer name far1",
        "link set far1 up",
        "link set eth1 up",
        "neigh add fe80::99 lladdr 02:00:00:00:00:99 dev eth1",
        "route add default via fe80::99 dev eth1 metric 1",
    )


elsewhere = pytest.mark.parametrize("lead_astray", [no_default_route, a_better_default_route_elsewhere])


@elsewhere
def test_with_the_route_probes_of_the_host_work(world: World, lead_astray: Lead) -> None:
    lead_astray()
    with serving(HOST_PORT) as host, serving(SERVICE_PORT, world.pod):
        assert world.probe(NODE, HOST_PORT) == ANSWER
        assert world.probe() == ANSWER
    assert host.peers == [REWRITTEN_SOURCE]


@elsewhere
def test_without_the_route_probes_of_the_host_are_lost(bare: World, lead_astray: Lead) -> None:
    lead_astray()
    with serving(HOST_PORT):
        assert bare.probe(NODE, HOST_PORT) == ANSWER
        load_rules()
        assert bare.is_lost(NODE, HOST_PORT)
        ip(f"route add {PIN}")
        assert bare.probe(NODE, HOST_PORT) == ANSWER


def test_what_leaves_elsewhere_keeps_its_address(bare: World) -> None:
    """No link-local address of the uplink's gets onto another link."""
    load_rules()
    a_better_default_route_elsewhere()
    with capturing("far1") as wire:
        bare.send_from_pod(Packet(POD, REWRITTEN_SOURCE, TCP, segment(SERVICE_PORT, 1024, ACK), hop_limit=64))
        wire.until(lambda packet: packet.source == POD and packet.destination == REWRITTEN_SOURCE)
    assert counters() == (0, 0)


# --- reloads --------------------------------------------------------------------------------------------------------

# By night as many as there are probes in the promise: 1,500 of them over 100 reloads.
RELOADS, PROBES, PROBERS = by_day(15, by_night=100), by_day(200, by_night=1500), 4

# What the node may not send while the rules are there: an answer to the address that nobody has, a refusal.
MISSES = f"""
table ip6 misses {{
    chain prerouting {{
        type filter hook prerouting priority -300; policy accept;
        ip6 daddr {REWRITTEN_SOURCE} counter
        icmpv6 type destination-unreachable counter
    }}
}}
"""


def test_reloads_under_load_lose_nothing(world: World) -> None:
    """No probe, and no segment that TCP would send again."""
    node = LinuxProbeNode()
    nft(SERVICE)
    world.balancer.run(lambda: nft(MISSES))
    answered, done = threading.Semaphore(0), threading.Event()

    def keep_probing(destination: IPv6Address, port: int) -> list[bytes]:
        answers = []
        while not done.is_set():
            answers.append(world.probe(destination, port))
            answered.release()
        return answers

    with serving(SERVICE_PORT, world.pod), ThreadPoolExecutor(PROBERS) as pool:
        kinds = [(POD, SERVICE_PORT), (NODE, NODE_PORT)] * (PROBERS // 2)
        probing = [pool.submit(keep_probing, *kind) for kind in kinds]
        try:
            for number in range(PROBES):
                assert answered.acquire(timeout=PATIENCE_SECONDS)
                if number % (PROBES // RELOADS) == 0:
                    node.load(RULES)
        finally:
            done.set()
        answers = [answer for prober in probing for answer in prober.result()]
    assert set(answers) == {ANSWER}
    assert len(answers) >= PROBES
    assert world.balancer.run(lambda: counters("misses")) == (0, 0)


def test_misses_are_counted(world: World) -> None:
    world.balancer.run(lambda: nft(MISSES))
    nft(REMOVAL)
    with serving(SERVICE_PORT, world.pod):
        assert world.is_lost()
    assert world.balancer.run(lambda: counters("misses"))[1] > 0


# --- the bridge -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["0", "1"], ids=["bridge-nf off", "bridge-nf on"])
def bridged(bare: World, request: pytest.FixtureRequest) -> World:
    bare.bridge()
    ip(f"route add {PIN}".replace("eth0", "azure0"))
    # Whether frames that the bridge takes pass netfilter's IPv6 hooks already there.
    Path("/proc/sys/net/bridge/bridge-nf-call-ip6tables").write_text(request.param)
    return bare


def test_rules_by_the_bridge_work(bridged: World) -> None:
    load_rules("azure0")
    with serving(HOST_PORT) as host, serving(SERVICE_PORT, bridged.pod) as service:
        assert bridged.probe(NODE, HOST_PORT) == ANSWER
        assert bridged.probe() == ANSWER
    assert host.peers == service.peers == [REWRITTEN_SOURCE]


def test_rules_by_a_bridges_port_do_nothing(bridged: World) -> None:
    load_rules("eth0")
    with serving(SERVICE_PORT, bridged.pod) as service:
        assert bridged.is_lost()
    assert service.peers == []
    assert counters() == (0, 0)


# --- the tasks --------------------------------------------------------------------------------------------------------


@pytest.fixture
def host(kernel: NamespaceKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(examinations, "given_or_real", lambda *_: LinuxProbeNode())
    program = tmp_path / "usr/sbin/nft"
    program.parent.mkdir(parents=True)
    program.touch(0o755)
    return Host(kernel, FakeSystemd(Layout(tmp_path)), Layout(tmp_path))


def configure(host: Host, device: str = "eth0") -> ProbeReport:
    networking = HostNetworking(LoadBalancerProbe(enabled=True, devices=[device]))
    return phases.run(ConfigureLoadBalancerProbe(networking, host=host, node=LinuxProbeNode()))


def expire() -> None:
    ip("route del default")


def appear_elsewhere() -> None:
    ip("route add default via fe80::99 dev eth1 metric 1")


def tie() -> None:
    """As two router advertisements do: one route of two hops, and the first of them is the other NIC's."""
    ip("route del default", "route add default metric 1024 nexthop via fe80::99 dev eth1 nexthop via fe80::99 dev eth0")


@pytest.mark.parametrize("change", [expire, appear_elsewhere, tie])
def test_whatever_the_default_route_does_the_rules_stay(bare: World, host: Host, change: Lead) -> None:
    """The next run doesn't choose another device, and the doctor doesn't ask for one."""
    bare.add_nic()
    ip(f"route add default via {PROBE_SOURCE} dev eth0 metric 1024")
    with serving(SERVICE_PORT, bare.pod), serving(HOST_PORT):
        assert bare.is_lost()
        assert configure(host).changed
        change()
        for _ in "before and after another run":
            assert bare.probe() == ANSWER
            assert bare.probe(NODE, HOST_PORT) == ANSWER
            examined = examine(host, None, more=examinations.examinations(None))
            assert [faults for each, faults in examined.found.items() if each.name == "probes"] == [()]
            assert not configure(host).changed


def test_a_configured_node_hears_router_advertisements(bare: World, host: Host) -> None:
    configure(host)
    assert takes_router_advertisements(bare)


@pytest.mark.parametrize("wipe", ["flush ruleset", REMOVAL, f"flush table ip6 {TABLE}"])
def test_another_run_mends_what_was_wiped(bare: World, host: Host, wipe: str) -> None:
    configure(host)
    nft(wipe)
    ip(f"route del {PIN}")
    with serving(SERVICE_PORT, bare.pod):
        assert bare.is_lost()
        assert configure(host).rules == "loaded"
        assert bare.probe() == ANSWER


def test_probes_by_another_nic_are_answered_as_without_rules(bare: World, host: Host) -> None:
    bare.add_nic()
    for dev, metric in (("eth0", 10), ("eth1", 20)):
        ip(f"route add default via {PROBE_SOURCE} dev {dev} metric {metric}")
    with serving(SERVICE_PORT, bare.pod), serving(HOST_PORT) as own:
        configure(host)
        assert bare.probe(NODE_BY_SECOND_NIC, HOST_PORT, by="eth1") == ANSWER
        assert bare.probe(NODE, HOST_PORT) == ANSWER
        assert bare.probe() == ANSWER
        assert own.peers == [PROBE_SOURCE, REWRITTEN_SOURCE]
        # With rules of its own they would be lost: their answers would leave by the pinned route.
        nft(RULES.replace('"eth0"', '{ "eth0", "eth1" }'))
        assert bare.is_lost(NODE_BY_SECOND_NIC, HOST_PORT, by="eth1")


def test_an_ipv6_address_may_come_late(bare: World, host: Host) -> None:
    ip(f"address del {NODE}/64 dev eth0")
    configure(host)
    ip(f"address add {NODE}/64 dev eth0")
    with serving(SERVICE_PORT, bare.pod), serving(HOST_PORT):
        assert bare.probe() == ANSWER
        assert bare.probe(NODE, HOST_PORT) == ANSWER


def test_in_bridge_mode_the_bridge_is_named(bare: World, host: Host) -> None:
    bare.bridge()
    with pytest.raises(LoadBalancerProbeError, match="eth0 is a port of azure0.* name azure0"):
        configure(host)
    configure(host, "azure0")
    with serving(SERVICE_PORT, bare.pod), serving(HOST_PORT):
        assert bare.probe() == ANSWER
        assert bare.probe(NODE, HOST_PORT) == ANSWER


def test_a_removal_leaves_nothing(bare: World, host: Host) -> None:
    before = routes("show"), tables()
    configure(host)
    assert phases.run(RemoveLoadBalancerProbe(host=host, node=LinuxProbeNode())).rules == "removed"
    assert (routes("show"), tables()) == before
    with serving(SERVICE_PORT, bare.pod), serving(HOST_PORT) as own:
        assert bare.is_lost()
        assert bare.probe(NODE, HOST_PORT) == ANSWER
    assert own.peers == [PROBE_SOURCE]
