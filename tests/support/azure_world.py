"""A node that has used azure-vnet as its CNI, with real ebtables rules, a real bridge and pods that reply.

::

    fabric ─── eth0 ┐ azure0 (10.224.0.4) ┬ azv33 ─── live pod .33, azure-vnet's
                    └──── hairpin ────────┘
                      node ───────────────── lxc32 ─── new pod .32, another CNI's, routed

The old pod .32 is gone, but azure-vnet's state for it may remain (``leave``). Like Azure's fabric, this one sends no
ARP requests: it knows that all of these addresses are behind the NIC's MAC.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from datagrams import Echo, Place
from programs import refuse_host, tool
from stale import TUNNEL_MAC, arp_reply, dnat, state

from hostrouting.azure.vnet.tasks import LOCK_FILE, STATE_FILE
from hostrouting.kernel._namespaces import Namespace, in_thread

if TYPE_CHECKING:
    from hostrouting import Layout
    from hostrouting.kernel.namespace import NamespaceKernel

NODE, GATEWAY = "10.224.0.4", "10.224.0.1"
NIC = "00:0d:3a:00:00:04"
LIVE, NEW, HALF = "10.224.0.33", "10.224.0.32", "10.224.0.34"
OTHERS = "10.241.0.7"  # outside the CIDRs that are cleaned up
CIDRS = ("10.224.0.0/24", "fd00::/64")  # they contain the node, its gateway and other hosts
STALE_MAC = "a2:00:00:00:00:32"

# azure-vnet installs these rules once per node, even if there are no pods. Without them, pods on the bridge can't reach
# the fabric.
_NODE_RULES = (
    "-A PREROUTING -p ARP -i eth0 --arp-op Reply -j dnat --to-dst ff:ff:ff:ff:ff:ff --dnat-target ACCEPT",
    f"-A PREROUTING -p ARP --arp-op Request --arp-ip-dst {NODE} -j arpreply --arpreply-mac {NIC}",
    f"-A POSTROUTING -s Unicast -o eth0 -j snat --to-src {NIC} --snat-arp --snat-target ACCEPT",
)
# Rules of other programs. Some match addresses outside the CIDR; others match addresses inside it but only resemble
# azure-vnet's rules.
_OTHERS_RULES = (
    f"-A PREROUTING -p IPv4 -i eth0 --ip-dst {OTHERS} -j dnat --to-dst {STALE_MAC} --dnat-target ACCEPT",
    f"-A PREROUTING -p ARP --arp-op Request --arp-ip-dst {OTHERS} -j arpreply --arpreply-mac {STALE_MAC}",
    f"-A PREROUTING -p IPv4 -i eth1 --ip-dst 10.224.0.37 -j dnat --to-dst {STALE_MAC} --dnat-target ACCEPT",
    f"-A PREROUTING -p IPv4 -i ! eth0 --ip-dst 10.224.0.37 -j dnat --to-dst {STALE_MAC} --dnat-target ACCEPT",
    f"-A PREROUTING -p IPv4 -i eth0 --ip-dst 10.224.0.37 -j dnat --to-dst {STALE_MAC} --dnat-target CONTINUE",
    f"-A PREROUTING -p IPv4 -i eth0 --ip-dst 10.224.0.36/31 -j dnat --to-dst {STALE_MAC} --dnat-target ACCEPT",
    f"-A PREROUTING -p IPv4 -i eth0 --ip-dst 10.224.0.37 --ip-proto tcp -j dnat --to-dst {STALE_MAC} --dnat-target ACCEPT",
    f"-A PREROUTING -p ARP -i azv33 --arp-op Request --arp-ip-dst 10.224.0.37 -j arpreply --arpreply-mac {STALE_MAC}",
    "-A PREROUTING -p IPv4 --ip-src 10.224.0.35 -j mark --mark-set 0x7 --mark-target CONTINUE",
    "-A OUTPUT -p IPv4 -o eth0 --ip-dst 10.224.0.36 -j ACCEPT",
    "-N OTHERS",
    f"-A OTHERS -p IPv4 -i eth0 --ip-dst 10.224.0.37 -j dnat --to-dst {STALE_MAC} --dnat-target ACCEPT",
)


def mac_of(number: int) -> str:
    """Return the MAC of the pod whose address ends with this number."""
    return f"a2:00:00:00:00:{number}"


def ip(*commands: str) -> None:
    """Run ip(8) commands in this thread's network namespace, as a single batch."""
    tool("ip", "-batch", "-", stdin="\n".join(commands))


def restore(*rules: str) -> None:
    """Apply ``-A`` and ``-D`` commands with ebtables in a single transaction."""
    tool("ebtables-nft-restore", "--noflush", stdin="\n".join(("*nat", *rules, "COMMIT", "")))


def deleting(rule: str) -> str:
    """Return the command that deletes a saved rule."""
    return "-D" + rule.removeprefix("-A")


class AzureWorld:
    """A node, its pods and the fabric. It may only be used from the thread of the ``kernel`` fixture.

    Args:
        kernel: the node's kernel.
        layout: the paths of azure-vnet's files.
    """

    def __init__(self, kernel: NamespaceKernel, layout: Layout) -> None:
        self.kernel = kernel
        self.layout = layout
        self.echo = Echo()
        self._endpoints: dict[str, tuple[str, str, str]] = {}
        self.host = Place("node", in_thread)
        self._build_node()
        self.fabric = Place("fabric", kernel.in_fabric)
        kernel.in_fabric(self._build_fabric)
        layout.of(LOCK_FILE).parent.mkdir(parents=True)
        layout.of(LOCK_FILE).touch()
        self.live = self.add_azure_pod(LIVE)

    def close(self) -> None:
        self.echo.close()

    # --- the node and the fabric -------------------------------------------------------------------------------

    def _build_node(self) -> None:
        self.kernel.add_link("eth0")
        ip(
            "link add azure0 type bridge mcast_snooping 0",
            f"link set eth0 address {NIC}",
            "link set eth0 master azure0",
            "link set eth0 type bridge_slave hairpin on",
            f"link set azure0 address {NIC} up",
            f"address add {NODE}/24 dev azure0",
            f"route add default via {GATEWAY} dev azure0",
            f"route add 168.63.129.16 via {GATEWAY} dev azure0",
            f"route add 169.254.169.254 via {GATEWAY} dev azure0",
            # This entry imitates ip-masq-agent's.
            f"neighbour add 169.254.1.7 lladdr {TUNNEL_MAC} dev azure0 nud permanent",
            # These entries are inside the CIDR but belong to other programs.
            "neighbour add 10.224.0.250 lladdr a2:00:00:00:02:50 dev azure0 nud permanent",
            f"route add 10.224.0.251/32 via {GATEWAY} dev azure0",
            "route add 10.224.0.252/32 dev lo",
        )
        for name in ("all", "default", "azure0"):
            _sysctl(f"conf/{name}/rp_filter", 0)
            _sysctl(f"conf/{name}/send_redirects", 0)
        _sysctl("ip_forward", 1)
        # Otherwise, proxied ARP replies are delayed by up to 0.8 s.
        _sysctl("neigh/azure0/proxy_delay", 0)
        restore(*_NODE_RULES, *_OTHERS_RULES)
        self._await_carrier("azure0")

    def _build_fabric(self) -> None:
        ip(
            f"address add {GATEWAY}/24 dev eth0",
            *(f"neighbour add {there} lladdr {NIC} dev eth0 nud permanent" for there in (NODE, LIVE, NEW, HALF)),
        )
        self.echo.listen("fabric", GATEWAY)

    # --- pods --------------------------------------------------------------------------------------------------

    def add_azure_pod(self, address: str) -> Place:
        """Add a pod as azure-vnet does: a veth on the bridge, two rules, a neighbour entry and saved state."""
        number = int(address.rpartition(".")[2])
        veth, mac = f"azv{number}", mac_of(number)
        pod = self._add_pod(f"pod .{number}", veth, mac)
        self._serve_azure_pod(address, mac, veth)
        pod.run(
            lambda: ip(
                "link set lo up",
                "link set eth0 up",
                f"address add {address}/24 dev eth0",
                f"route add default via {GATEWAY} dev eth0",
            )
        )
        pod.run(lambda: self.echo.listen(pod.name))
        self._await_carrier(veth)
        self.save_endpoint(address, mac, veth)
        return pod

    def start_azure_pod(self, address: str) -> None:
        """Simulate azure-vnet crashing while it adds a pod, which leaves both ends of the veth on the node."""
        number = int(address.rpartition(".")[2])
        veth, mac = f"azv{number}", mac_of(number)
        ip(f"link add {veth} type veth peer name {veth}2 address {mac}")
        self._serve_azure_pod(address, mac, veth)

    def _serve_azure_pod(self, address: str, mac: str, veth: str) -> None:
        ip(f"link set {veth} master azure0 up", f"neighbour add {address} lladdr {mac} dev azure0 nud permanent")
        restore(dnat(address, mac), arp_reply(address, mac))

    def add_new_pod(self) -> Place:
        """Add pod .32 as a routed CNI such as Cilium does. The host answers ARP requests for it on the bridge."""
        pod = self._add_pod("new pod", "lxc32", "a6:00:00:00:00:32")
        ip(
            "link set lxc32 address a6:00:00:00:00:01 up",
            f"route add {NEW}/32 dev lxc32 metric 50",
            f"neighbour add proxy {NEW} dev azure0",
        )
        pod.run(
            lambda: ip(
                "link set lo up",
                "link set eth0 up",
                f"address add {NEW}/32 dev eth0",
                "neighbour add 169.254.1.1 lladdr a6:00:00:00:00:01 dev eth0 nud permanent",
                "route add default via 169.254.1.1 dev eth0 onlink",
            )
        )
        pod.run(lambda: self.echo.listen(pod.name))
        self._await_carrier("lxc32")
        return pod

    def _add_pod(self, name: str, veth: str, mac: str) -> Place:
        namespace = Namespace()
        far = f"/proc/{os.getpid()}/fd/{namespace.fd}"
        ip(f"link add {veth} type veth peer name eth0 address {mac} netns {far}")
        return Place(name, namespace.run)

    def _await_carrier(self, name: str) -> None:
        # Until routes are updated after a carrier change, they are flagged as linkdown, and the kernel drops packets
        # that use them.
        self.kernel.set_link(name, up=True)

    # --- leftovers --------------------------------------------------------------------------------------------

    def leave(self, *pods: tuple[str, str], is_listed: bool = True) -> None:
        """Create leftovers of deleted pods, each an address and a MAC; by default, of pod .32.

        They are the rule by which the fabric's packets go to the pod's MAC, the rule that tells it to the bridge's
        pods, the permanent neighbour that tells it to the host, and an entry in azure-vnet's state if ``is_listed``.
        """
        pods = pods or ((NEW, STALE_MAC),)
        restore(*(rule for pod in pods for rule in (dnat(*pod), arp_reply(*pod))))
        ip(*(f"neighbour replace {address} lladdr {mac} dev azure0 nud permanent" for address, mac in pods))
        for address, mac in pods if is_listed else ():
            self.save_endpoint(address, mac, f"azvgone{address.rpartition('.')[2]}")

    def save_endpoint(self, address: str, mac: str, veth: str) -> None:
        """Add an endpoint to azure-vnet's state."""
        self._endpoints[veth] = (veth, mac, address)
        self.layout.of(STATE_FILE).parent.mkdir(parents=True, exist_ok=True)
        self.layout.of(STATE_FILE).write_text(state(*self._endpoints.values()))

    # --- observations ------------------------------------------------------------------------------------------

    def rules(self) -> list[str]:
        """Return the ebtables-save output without counters or comments, which contain timestamps."""
        return [line for line in tool("ebtables-nft-save").splitlines() if not line.startswith("#")]

    def packets(self) -> dict[str, int]:
        """Return each rule's packet counter."""
        lines = [line for line in tool("ebtables-nft-save", "-c").splitlines() if line.startswith("[")]
        counted = [line[1:].partition("] ") for line in lines]
        return {rule: int(numbers.partition(":")[0]) for numbers, _, rule in counted}

    def neighbours(self) -> list[str]:
        """Return the permanent and proxy neighbour entries."""
        shown = tool("ip", "neighbour", "show", "nud", "permanent") + tool("ip", "neighbour", "show", "proxy")
        return sorted(line.strip() for line in shown.splitlines())

    def routes(self) -> list[str]:
        return [line.strip() for line in tool("ip", "route", "show", "table", "main").splitlines()]

    def everything(self) -> tuple[list[str], list[str], list[str], str]:
        """Return all state that a clean-up may change."""
        return self.rules(), self.neighbours(), self.routes(), self.layout.of(STATE_FILE).read_text()


def _sysctl(name: str, value: int) -> None:
    # /proc/sys/net belongs to the network namespace of the thread that opens the file.
    refuse_host()
    Path("/proc/sys/net/ipv4", name).write_text(str(value))
