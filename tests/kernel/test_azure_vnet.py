"""Test that azure-vnet's leftovers break a new pod and that removing them fixes it.

The node has used azure-vnet as its CNI, with real ebtables rules, a real bridge and pods that
reply.

::

    fabric ─── eth0 ┐ azure0 (10.1.0.4)   ┬ azv33 ─── live pod .33, azure-vnet's
                    └──── hairpin ────────┘
                      node ───────────────── lxc32 ─── new pod .32, another CNI's, routed

The old pod .32 is gone, but azure-vnet's state for it may remain (``leave``). Like Azure's fabric,
this one sends no ARP requests: it knows that all of these addresses are behind the NIC's MAC.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from socketserver import BaseRequestHandler, UDPServer
from typing import Any

import attrs
import pytest
import stale
from acting import is_held
from backends import Altered
from node import refuse_host, run_ip, tool, until
from stale import (
    GONE_MAC,
    LIVE_MAC,
    LIVE_RULES,
    NIC_MAC,
    NODE_RULES,
    TUNNEL_MAC,
    arp_reply,
    dnat,
    state,
)

import phases
from hostrouting import Host, Layout
from hostrouting.azure.nodes import AzureVnetError
from hostrouting.azure.vnet.bridge import Neighbour
from hostrouting.azure.vnet.leftovers import AzureVnetReport
from hostrouting.azure.vnet.linux import LinuxBridgeNode
from hostrouting.azure.vnet.tasks import LOCK_FILE, STATE_FILE, RemoveStaleAzureVnet
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.unshare import Namespace, in_thread
from hostrouting.testing import FakeSystemd

NODE, GATEWAY, LIVE, NEW = map(str, (stale.OWN, stale.GATEWAY, stale.LIVE, stale.GONE))
OTHERS = "10.241.0.7"  # outside the CIDRs that are cleaned up

# Rules of other programs. Some match addresses outside the CIDR; others match addresses inside it
# but only resemble azure-vnet's rules. tests/hostrouting/azure/test_vnet.py has all shapes.
_OTHERS_RULES = (
    dnat(OTHERS),
    arp_reply(OTHERS),
    dnat("10.1.0.37").replace("ACCEPT", "CONTINUE"),
    "-A OUTPUT -p IPv4 -o eth0 --ip-dst 10.1.0.36 -j ACCEPT",
    "-N OTHERS",
    dnat("10.1.0.37").replace("PREROUTING", "OTHERS"),
)


def restore(*rules: str) -> None:
    """Apply ``-A`` and ``-D`` commands with ebtables in a single transaction."""
    tool("ebtables-nft-restore", "--noflush", stdin="\n".join(("*nat", *rules, "COMMIT", "")))


class AzureWorld:
    """A node, its pods and the fabric.

    It may only be used from the thread of the ``kernel`` fixture.

    Args:
        kernel: the node's kernel.
        layout: the paths of azure-vnet's files.
    """

    def __init__(self, kernel: NamespaceKernel, layout: Layout) -> None:
        self.kernel = kernel
        self.layout = layout
        self._servers: list[UDPServer] = []
        self._endpoints: dict[str, tuple[str, str, str]] = {}
        self.host = Place("node", in_thread)
        self._build_node()
        self.fabric = Place("fabric", kernel.in_fabric)
        kernel.in_fabric(self._build_fabric)
        self._servers.append(self.fabric.listen(GATEWAY))
        layout.of(LOCK_FILE).parent.mkdir(parents=True)
        layout.of(LOCK_FILE).touch()
        self.live = self._add_live_pod()

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    # --- the node and the fabric ------------------------------------------------------------------

    def _build_node(self) -> None:
        self.kernel.add_link("eth0")
        run_ip(
            "link add azure0 type bridge mcast_snooping 0",
            f"link set eth0 address {NIC_MAC}",
            "link set eth0 master azure0",
            "link set eth0 type bridge_slave hairpin on",
            f"link set azure0 address {NIC_MAC} up",
            f"address add {NODE}/24 dev azure0",
            f"route add default via {GATEWAY} dev azure0",
            f"route add 168.63.129.16 via {GATEWAY} dev azure0",
            f"route add 169.254.169.254 via {GATEWAY} dev azure0",
            # This entry imitates ip-masq-agent's.
            f"neighbour add 169.254.1.7 lladdr {TUNNEL_MAC} dev azure0 nud permanent",
            # These entries are inside the CIDR but belong to other programs.
            "neighbour add 10.1.0.250 lladdr a2:00:00:00:02:50 dev azure0 nud permanent",
            f"route add 10.1.0.251/32 via {GATEWAY} dev azure0",
            "route add 10.1.0.252/32 dev lo",
        )
        for name in ("all", "default", "azure0"):
            _sysctl(f"conf/{name}/rp_filter", 0)
            _sysctl(f"conf/{name}/send_redirects", 0)
        _sysctl("ip_forward", 1)
        # Otherwise, proxied ARP replies are delayed by up to 0.8 s.
        _sysctl("neigh/azure0/proxy_delay", 0)
        restore(*NODE_RULES, *_OTHERS_RULES)
        self._await_carrier("azure0")

    def _build_fabric(self) -> None:
        run_ip(
            f"address add {GATEWAY}/24 dev eth0",
            *(
                f"neighbour add {there} lladdr {NIC_MAC} dev eth0 nud permanent"
                for there in (NODE, LIVE, NEW)
            ),
        )

    # --- pods -------------------------------------------------------------------------------------

    def _add_live_pod(self) -> Place:
        """Add a pod as azure-vnet does: a veth on the bridge, two rules, a neighbour entry and
        saved state.
        """
        pod = self._add_pod("pod .33", "azv33", LIVE_MAC)
        run_ip(
            "link set azv33 master azure0 up",
            f"neighbour add {LIVE} lladdr {LIVE_MAC} dev azure0 nud permanent",
        )
        restore(*LIVE_RULES)
        pod.run(
            lambda: run_ip(
                "link set lo up",
                "link set eth0 up",
                f"address add {LIVE}/24 dev eth0",
                f"route add default via {GATEWAY} dev eth0",
            )
        )
        self._servers.append(pod.listen())
        self._await_carrier("azv33")
        self.save_endpoint(LIVE, LIVE_MAC, "azv33")
        return pod

    def add_new_pod(self) -> Place:
        """Add pod .32 as a routed CNI such as Cilium does.

        The host answers ARP requests for it on the bridge.
        """
        pod = self._add_pod("new pod", "lxc32", "a6:00:00:00:00:32")
        run_ip(
            "link set lxc32 address a6:00:00:00:00:01 up",
            f"route add {NEW}/32 dev lxc32 metric 50",
            f"neighbour add proxy {NEW} dev azure0",
        )
        pod.run(
            lambda: run_ip(
                "link set lo up",
                "link set eth0 up",
                f"address add {NEW}/32 dev eth0",
                "neighbour add 169.254.1.1 lladdr a6:00:00:00:00:01 dev eth0 nud permanent",
                "route add default via 169.254.1.1 dev eth0 onlink",
            )
        )
        self._servers.append(pod.listen())
        self._await_carrier("lxc32")
        return pod

    def _add_pod(self, name: str, veth: str, mac: str) -> Place:
        namespace = Namespace()
        far = f"/proc/{os.getpid()}/fd/{namespace.fd}"
        run_ip(f"link add {veth} type veth peer name eth0 address {mac} netns {far}")
        return Place(name, namespace.run)

    def _await_carrier(self, name: str) -> None:
        # Until routes are updated after a carrier change, they are flagged as linkdown, and the
        # kernel drops packets that use them.
        self.kernel.set_link(name, up=True)

    # --- leftovers --------------------------------------------------------------------------------

    def leave(self, *pods: tuple[str, str]) -> None:
        """Create leftovers of deleted pods, each an address and a MAC; by default, of pod .32.

        They are the rule by which the fabric's packets go to the pod's MAC, the rule that tells it
        to the bridge's pods, the permanent neighbour that tells it to the host, and an entry in
        azure-vnet's state.
        """
        pods = pods or ((NEW, GONE_MAC),)
        restore(*(rule for pod in pods for rule in (dnat(*pod), arp_reply(*pod))))
        run_ip(
            *(
                f"neighbour replace {address} lladdr {mac} dev azure0 nud permanent"
                for address, mac in pods
            )
        )
        for address, mac in pods:
            self.save_endpoint(address, mac, f"azvgone{address.rpartition('.')[2]}")

    def save_endpoint(self, address: str, mac: str, veth: str) -> None:
        """Add an endpoint to azure-vnet's state."""
        self._endpoints[veth] = (veth, mac, address)
        self.layout.of(STATE_FILE).parent.mkdir(parents=True, exist_ok=True)
        self.layout.of(STATE_FILE).write_text(state(*self._endpoints.values()))

    # --- observations -----------------------------------------------------------------------------

    def rules(self) -> list[str]:
        """Return ebtables-save's output without counters and comments, which contain the time."""
        return [line for line in tool("ebtables-nft-save").splitlines() if not line.startswith("#")]

    def neighbours(self) -> list[str]:
        """Return the permanent and proxy neighbour entries."""
        shown = tool("ip", "neighbour", "show", "nud", "permanent") + tool(
            "ip", "neighbour", "show", "proxy"
        )
        return sorted(line.strip() for line in shown.splitlines())

    def routes(self) -> list[str]:
        return [line.strip() for line in tool("ip", "route", "show", "table", "main").splitlines()]


def _sysctl(name: str, value: int) -> None:
    # /proc/sys/net belongs to the network namespace of the thread that opens the file.
    refuse_host()
    Path("/proc/sys/net/ipv4", name).write_text(str(value))


# --- datagrams ------------------------------------------------------------------------------------

PORT = 5353
PATIENCE_SECONDS, LOST_AFTER_SECONDS = 5.0, 0.1


@attrs.frozen
class Place:
    """A named namespace that sends datagrams, and echoes each with its name.

    Args:
        name: the name in its answers.
        run: a callable that runs a function in the namespace.
    """

    name: str
    run: Callable[[Callable[[], Any]], Any]

    def answer(self, address: str, *, patience: float = PATIENCE_SECONDS) -> str | None:
        """Return the name of the responder to a datagram, or None after ``patience`` seconds."""
        with self.run(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as client:
            client.settimeout(patience)
            # The time is up, or the host found that no machine has this address.
            with suppress(OSError):
                client.sendto(b"", (address, PORT))
                return str(client.recv(64).decode())
        return None

    def loses(self, address: str) -> bool:
        """Return whether a datagram to an address gets no reply."""
        return self.answer(address, patience=LOST_AFTER_SECONDS) is None

    def listen(self, address: str = "") -> UDPServer:
        """Answer in the namespace, in a thread."""
        name = self.name.encode()

        class Handler(BaseRequestHandler):
            def handle(self) -> None:
                with suppress(OSError):  # there is no route back; the client will time out
                    self.request[1].sendto(name, self.client_address)

        server: UDPServer = self.run(lambda: UDPServer((address, PORT), Handler))
        threading.Thread(target=server.serve_forever, args=[0.05], daemon=True).start()
        return server


@contextmanager
def served(*pairs: tuple[Place, str, str]) -> Iterator[Callable[[], None]]:
    """Send datagrams in a loop, and fail if one gets no reply, or another one than expected.

    A single thread serves all pairs, because more threads would take CPU time away from the code
    under test.

    Args:
        pairs: source, destination address, and name of the expected responder.

    Yields:
        A function that waits until each pair has had five more replies.
    """
    lost, done, is_over = list[str](), 0, threading.Event()

    def keep_asking() -> None:
        nonlocal done
        while not is_over.is_set():
            answers = [
                (source.name, address, source.answer(address), name)
                for source, address, name in pairs
            ]
            lost.extend(
                f"{source} -> {address}: {found}"
                for source, address, found, name in answers
                if found != name
            )
            done += 1

    def await_more() -> None:
        aim = done + 5
        until(lambda: bool(lost) or done >= aim)

    thread = threading.Thread(target=keep_asking)
    thread.start()
    try:
        await_more()
        yield await_more
    finally:
        is_over.set()
        thread.join()
    assert lost == []


# --- the tests ------------------------------------------------------------------------------------


pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("ebtables")]

DNAT, ARPREPLY = dnat(NEW), arp_reply(NEW)


@pytest.fixture
def world(kernel: NamespaceKernel, tmp_path: Path) -> Iterator[AzureWorld]:
    built = AzureWorld(kernel, Layout(tmp_path))
    try:
        yield built
    finally:
        built.close()


def clean(world: AzureWorld, node: Any = None) -> AzureVnetReport:
    host = Host(world.kernel, FakeSystemd(world.layout), world.layout)
    return phases.run(
        RemoveStaleAzureVnet(stale.networking(), host=host, node=node or LinuxBridgeNode())
    )


# --- all leftovers together: what is removed, and what stays --------------------------------------


def test_a_live_pod_is_served_throughout(world: AzureWorld) -> None:
    world.add_new_pod()
    rules, neighbours, routes = world.rules(), world.neighbours(), world.routes()
    world.leave(
        *((f"10.1.0.{number}", f"a2:00:00:00:00:{number}") for number in (32, *range(40, 60)))
    )
    assert world.fabric.loses(NEW)
    assert world.host.answer(NEW) == "new pod"  # so a probe from the host proves nothing
    kept = (
        (world.fabric, LIVE, "pod .33"),
        (world.host, LIVE, "pod .33"),
        (world.live, GATEWAY, "fabric"),
    )
    are_held: list[bool] = []
    with served(*kept) as await_more:
        clean(world, before_rules(lambda: are_held.append(is_held(world.layout.of(LOCK_FILE)))))
        await_more()
    assert are_held == [True]  # all in one transaction, under azure-vnet's lock
    assert (world.rules(), world.neighbours(), world.routes()) == (rules, neighbours, routes)
    for source in (world.fabric, world.live, world.host):
        assert source.answer(NEW) == "new pod"


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("meta mark set numgen inc mod 3", "printed no table nat"),
        ("meta cpu 0 ip daddr 10.1.0.32 accept", "unknown meta key"),
    ],
)
@pytest.mark.usefixtures("nft")
def test_rules_that_ebtables_cannot_print_are_an_error(
    world: AzureWorld, rule: str, reason: str
) -> None:
    world.leave()
    tool("nft", f"insert rule bridge nat PREROUTING {rule}")
    before = listed_by_nft(), world.neighbours(), world.routes()
    with pytest.raises(AzureVnetError, match=f"can't read ebtables' rules: .*{reason}"):
        clean(world)
    assert (listed_by_nft(), world.neighbours(), world.routes()) == before


def listed_by_nft() -> str:
    """Return the rules without their counters, which change with every packet."""
    return tool("nft", "-s", "list", "table", "bridge", "nat")


def test_rules_are_removed_without_the_bridge_too(world: AzureWorld) -> None:
    run_ip("link del azure0")
    rules = world.rules()
    restore(DNAT, ARPREPLY)
    clean(world)
    assert world.rules() == rules


# --- a node that other programs change too --------------------------------------------------------


def before_rules(act: Callable[[], object]) -> Any:
    """Return the real node, on which something happens immediately before rules are removed."""
    node: Any = LinuxBridgeNode()

    def remove_rules(rules: Sequence[str]) -> None:
        act()
        node.remove_rules(rules)

    return Altered(node, remove_rules=remove_rules)


def test_a_rule_that_changed_meanwhile_is_an_error(world: AzureWorld) -> None:
    rules = world.rules()
    world.leave()

    def change() -> None:
        restore(DNAT.replace("-A", "-D", 1), dnat(NEW, "a2:00:00:00:00:98"))

    with pytest.raises(
        AzureVnetError,
        match=("can't delete 2 rules .*but 1 neighbours before that\nhint: run it again"),
    ):
        clean(world, before_rules(change))
    assert ARPREPLY in world.rules()
    clean(world)
    assert world.rules() == rules


# --- observations of the node, and failures -------------------------------------------------------


def test_only_permanent_neighbours_are_listed(world: AzureWorld) -> None:
    before = set(LinuxBridgeNode().read_state("azure0").neighbours)
    run_ip(
        "neighbour add 10.1.0.50 dev azure0 lladdr a2:00:00:00:00:50 nud permanent router",
        "neighbour add 10.1.0.51 dev azure0 nud failed",
        "neighbour add 10.1.0.52 dev azure0 lladdr a2:00:00:00:00:52 nud stale",
        "neighbour add 10.1.0.53 dev azv33 lladdr a2:00:00:00:00:53 nud permanent",
        "neighbour add fd00::53 dev azure0 lladdr a2:00:00:00:00:53 nud permanent",
        "neighbour add 10.1.0.60 lladdr a2:00:00:00:00:60 dev azure0 nud permanent extern_learn",
        "neighbour add 10.1.0.61 dev azure0 managed extern_learn",
    )
    assert set(LinuxBridgeNode().read_state("azure0").neighbours) - before == {
        Neighbour("azure0", IPv4Address("10.1.0.50"), "a2:00:00:00:00:50"),
        Neighbour("azure0", IPv6Address("fd00::53"), "a2:00:00:00:00:53"),
    }


def test_peers_are_found_in_any_namespace(world: AzureWorld) -> None:
    """After a crash amidst adding a pod, both ends of its veth are on the node."""
    run_ip(f"link add azv34 type veth peer name azv342 address {GONE_MAC}")
    assert world.live.answer(GATEWAY) == "fabric"
    found = {one.name: one for one in LinuxBridgeNode().read_state("azure0").interfaces}
    assert found["azv33"].far_mac == LIVE_MAC
    assert LIVE_MAC in found["azv33"].seen_macs
    assert (found["azv34"].far_mac, found["azv342"].mac) == (GONE_MAC, GONE_MAC)
    assert (found["azv33"].master, found["eth0"].master, found["azure0"].master) == (
        "azure0",
        "azure0",
        None,
    )
    assert (found["azure0"].mac, found["azure0"].far_mac) == (NIC_MAC, None)


def node_with(folder: Path, **programs: str) -> LinuxBridgeNode:
    """Return a node whose PATH contains only these shell scripts, ip(8) and bridge(8)."""
    for name in ("ip", "bridge"):
        programs[name] = real(name)
    for name, text in programs.items():
        program = folder / name.replace("_", "-")
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    return LinuxBridgeNode(search_path=str(folder))


def real(program: str, user: str = "") -> str:
    return f'PATH={os.environ["PATH"]} exec {user} {program} "$@"'


def test_without_privileges_no_rule_is_touched(world: AzureWorld, tmp_path: Path) -> None:
    unprivileged = "setpriv --reuid 65534 --clear-groups --"
    if subprocess.run([*unprivileged.split(), "true"], check=False).returncode:
        pytest.skip("root of a user namespace with one user can't become another")
    programs = {
        name.replace("-", "_"): real(name, unprivileged)
        for name in ("ebtables-nft-save", "ebtables-nft-restore")
    }
    node = node_with(tmp_path, **programs)
    with pytest.raises(
        AzureVnetError, match="can't read ebtables' rules: .*\nhint: run as root"
    ) as caught:
        node.read_state("azure1")  # even if there is no such bridge
    assert caught.value.is_not_permitted
    with pytest.raises(AzureVnetError, match="can't delete 1 rules .*\nhint: run as root"):
        node.remove_rules([DNAT])


def test_no_ebtables_is_an_error_if_there_is_a_bridge(world: AzureWorld, tmp_path: Path) -> None:
    restore(DNAT)
    before, node = world.rules(), node_with(tmp_path)
    missing = "ebtables-nft-save isn't installed"
    with pytest.raises(AzureVnetError, match=missing):
        node.read_state("azure0")
    with pytest.raises(
        AzureVnetError, match="rules of ebtables-legacy aren't read; list them with"
    ):
        node.read_state("azure0")
    state = node.read_state("azure1")
    assert (state.rules, state.neighbours) == ((), ())
    assert "there is no bridge azure1" in state.notes[0]
    assert f"rules weren't read: can't read ebtables' rules: {missing}" in state.notes[1]
    half = node_with(tmp_path, ebtables_nft_save=real("ebtables-nft-save"))
    with pytest.raises(AzureVnetError, match="ebtables-nft-restore isn't installed"):
        clean(world, half)
    assert world.rules() == before


def test_the_legacy_table_is_named(
    world: AzureWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module/ebtable_nat").mkdir(parents=True)
    plain = LinuxBridgeNode().read_state("azure0")
    monkeypatch.setenv("EBTABLES_SAVE_COUNTER", "yes")  # the rules are still read without counters
    state = LinuxBridgeNode(sys=tmp_path).read_state("azure0")
    assert (state.rules, plain.notes) == (plain.rules, ())
    assert (
        "rules of ebtables-legacy aren't read; list them with `ebtables-legacy -t nat -L"
        in state.notes[0]
    )
