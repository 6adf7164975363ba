"""Nodes as CNIs and clouds set them up, healthy and sick: an exemption covers what a healthy node
has, and no more.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from asking import Case, all_say, as_told, recorded
from audit.sockets import SocketAudit
from needs import NO_BROADCAST, needs_linux
from nightly import is_chosen
from node import lines, nics, run_ip
from scripts import sandboxes, verdict_of
from worlds.hosts import Host

import phases
from hostrouting.boot.render import render_check
from hostrouting.kernel.model import model_of
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.kernel.release import separates_on_deletion
from hostrouting.model.family import Family
from hostrouting.model.routes import Table
from hostrouting.overlap.check import check_overlap
from hostrouting.report import UnknownReason

pytestmark = pytest.mark.kernel


def node(
    links: str, does: str, cidrs: str, told: str = "", *, uplinks: str = "", unknown: str = ""
) -> Case:
    """Describe a node.

    Args:
        links: the interfaces, each with its addresses, such as ``eth0=10.1.0.4/24,10.1.0.5/24``; a
            bridge has a ``+``.
        does: ip commands without ``ip``, separated by semicolons or line breaks.
        cidrs: the expected CIDRs.
        told: the failures; see ``asking.failures``.
        uplinks: the uplinks in the config.
        unknown: the reason for an unknown verdict.
    """
    steps = []
    for link in links.split():
        name, _, addresses = link.partition("=")
        if (dev := name.removesuffix("+")) != name:
            steps += [
                nics(f"p-{dev[:7]}"),
                f"link add {dev} type bridge",
                f"link set p-{dev[:7]} master {dev}",
            ]
            steps += [f"link set {dev} arp off up"]
        else:
            steps += [nics(dev)]
        steps += [f"addr add {address} dev {dev}" for address in addresses.split(",") if address]
    commands = "\n".join(filter(None, map(str.strip, does.replace(";", "\n").splitlines())))
    return Case(
        commands,
        told,
        unknown,
        notes=None,
        node="\n".join(steps),
        default="",
        cidrs=cidrs,
        uplinks=uplinks,
    )


UP = "eth0=10.1.0.4/24"
VIA = "route add default via 10.1.0.1 dev eth0 proto dhcp src 10.1.0.4 metric 100"
PODS, SERVICES, NODES = "10.244.0.0/16", "10.96.0.0/12", "10.1.0.0/24"
CLUSTER = f"{PODS} {SERVICES} {NODES}"
CALICO_PEER = "route add 10.244.7.64/26 via 10.1.0.7 dev eth0 proto bird"
CALICO_BLOCK = "route add blackhole 10.244.9.0/26 proto bird"
CILIUM_FIRST = """rule add pref 9 fwmark 0x200/0xf00 lookup 2004
    route add local default dev lo table 2004
    rule add pref 10 fwmark 0xa00/0xf00 lookup 2005; route add default dev cilium_host table 2005"""
LOCAL_AT_100 = "rule add pref 100 lookup local; rule del pref 0"

HEALTHY = {
    "Azure CNI, transparent": node(
        "eth0=10.224.0.4/16 azv1",
        """route add default via 10.224.0.1 dev eth0 proto dhcp metric 100
        route add 168.63.129.16 via 10.224.0.1 dev eth0
        route add 169.254.169.254 via 10.224.0.1 dev eth0
        route add 10.224.0.9 dev azv1 proto static""",
        "10.224.0.0/16 10.0.0.0/16 169.254.169.254/32 168.63.129.16/32",
    ),
    "Azure CNI, bridge": node(
        "azure0+=10.240.0.4/16",
        (
            "route add default via 10.240.0.1 dev azure0; "
            "route add 169.254.169.254 via 10.240.0.1 dev azure0"
        ),
        "10.240.0.0/16 10.0.0.0/16 169.254.169.254/32",
    ),
    "Azure CNI, overlay, with LocalDNS": node(
        "eth0=10.224.0.5/16 azv1 localdns=169.254.10.10/32,169.254.10.11/32",
        "route add default via 10.224.0.1 dev eth0 metric 100; route add 10.244.1.12 dev azv1",
        f"{PODS} 10.0.0.0/16 10.224.0.0/16 169.254.10.10/32",
    ),
    "Azure with Cilium": node(
        "eth0=10.224.0.6/16 cilium_host=169.254.23.0/32 azv1",
        (
            "route add default via 10.224.0.1 dev eth0 metric 100; "
            "route add 10.244.2.7 dev azv1 scope link"
        ),
        f"{PODS} 10.0.0.0/16 10.224.0.0/16",
    ),
    "AWS": node(
        "ens5=10.0.96.155/19 ens6 eni30c eniab8",
        """route add default via 10.0.96.1 dev ens5 metric 512
        route add default via 10.0.96.1 dev ens6 table 2 onlink
        route add 10.0.97.41 dev eni30c scope link; route add 10.0.97.77 dev eniab8 scope link
        rule add pref 512 to 10.0.97.41 lookup main; rule add pref 1024 fwmark 0x80/0x80 lookup main
        rule add pref 1536 from 10.0.97.41 lookup 2""",
        "10.0.0.0/16 172.20.0.0/16 169.254.169.254/32",
    ),
    "AWS, IPv6 cluster, whose pods have IPv4 addresses for egress": node(
        "ens5=192.168.7.5/19 veth1=169.254.172.1/32 veth2=169.254.172.1/32",
        """route add default via 192.168.0.1 dev ens5 metric 512
        route add 169.254.172.5 dev veth1 scope host
        route add 169.254.175.9 dev veth2 scope host""",
        "192.168.0.0/16 169.254.0.0/16",
    ),
    "GKE": node(
        "eth0=10.164.0.7/32 lxc75 gke0a1 cilium_host=169.254.4.6/32",
        f"""route add 10.164.0.1 dev eth0 scope link metric 1024
        route add default via 10.164.0.1 dev eth0 metric 1024
        route add 10.68.0.3 dev lxc75 scope link; route add 10.68.0.5 dev gke0a1 scope link
        {CILIUM_FIRST}; {LOCAL_AT_100}""",
        "10.68.0.0/14 10.164.0.0/20 34.118.224.0/20",
    ),
    "Calico": node(
        f"{UP} cali1",
        f"{VIA}; route add 10.244.9.2 dev cali1 scope link; {CALICO_BLOCK}; {CALICO_PEER}",
        CLUSTER,
    ),
    "Calico, drained": node(UP, f"{VIA}; {CALICO_BLOCK}; {CALICO_PEER}", CLUSTER),
    "Calico with IP-in-IP and a second, empty block": node(
        f"{UP} tunl0=10.244.9.0/32",
        f"""{VIA}; {CALICO_BLOCK}; route add blackhole 10.244.12.64/26 proto bird
        route add 10.244.7.64/26 via 10.1.0.7 dev tunl0 proto bird onlink""",
        CLUSTER,
    ),
    "Calico with VXLAN": node(
        f"{UP} vxlan.cali=10.244.9.0/32 bpfin.cali",
        f"""{VIA}
        route add blackhole 10.244.9.0/26 proto 80
        route add 169.254.1.1 dev bpfin.cali scope link
        route add 10.244.7.64/26 via 10.244.7.64 dev vxlan.cali onlink
        route add 10.96.0.0/12 via 169.254.1.1 dev bpfin.cali src 10.1.0.4""",
        CLUSTER,
    ),
    "Cilium, native": node(
        f"{UP} cilium_host=10.244.1.55/32",
        f"""{VIA}; route add 10.244.1.55 dev cilium_host scope link
        route add 10.244.1.0/24 via 10.244.1.55 dev cilium_host src 10.244.1.55
        route add 10.244.2.0/24 via 10.1.0.7 dev eth0""",
        CLUSTER,
    ),
    "Cilium, tunnelled, with its rules": node(
        f"{UP} cilium_host=10.0.1.55/32",
        f"""{VIA}; route add 10.0.1.55 dev cilium_host scope link
        route add 10.0.1.0/24 via 10.0.1.55 dev cilium_host src 10.0.1.55
        route add 10.0.2.0/24 via 10.0.1.55 dev cilium_host src 10.0.1.55 mtu 1450
        {CILIUM_FIRST}
        {LOCAL_AT_100}""",
        f"10.0.0.0/16 10.0.1.0/24 10.0.2.0/24 {SERVICES}",
    ),
    "Flannel with host-gw": node(
        f"{UP} cni0+=10.244.1.1/24",
        f"{VIA}; route add 10.244.2.0/24 via 10.1.0.7 dev eth0",
        CLUSTER,
    ),
    "k3s in a flat 10/8": node(
        "eth0=10.9.3.4/8 cni0+=10.42.0.1/24 flannel.1=10.42.0.0/32",
        (
            "route add default via 10.0.0.1 dev eth0; "
            "route add 10.42.1.0/24 via 10.42.1.0 dev flannel.1 onlink"
        ),
        "10.42.0.0/16 10.43.0.0/16",
    ),
    "kubenet in a flat 10/8": node(
        "eth0=10.0.0.4/8 cbr0+=10.244.3.1/24",
        "route add default via 10.0.0.1 dev eth0",
        f"{PODS} {SERVICES}",
    ),
    "OVN-Kubernetes": node(
        "br-ex+=10.0.128.4/17,169.254.169.2/29 ovn-k8s-m0=10.131.0.2/23",
        """route add default via 10.0.128.1 dev br-ex metric 48
        route add 10.128.0.0/14 via 10.131.0.1 dev ovn-k8s-m0
        route add 169.254.169.3 via 10.131.0.1 dev ovn-k8s-m0
        route add 172.30.0.0/16 via 169.254.169.4 dev br-ex src 169.254.169.2 mtu 1360""",
        "10.128.0.0/14 172.30.0.0/16 10.0.128.0/17 169.254.169.254/32",
    ),
    "Antrea with proxyAll": node(
        "eth0=192.168.77.101/24 antrea-gw0=10.10.0.1/24",
        """route add default via 192.168.77.1 dev eth0
        route add 10.10.1.0/24 via 10.10.1.1 dev antrea-gw0 onlink
        route add 10.96.0.0/12 via 169.254.0.253 dev antrea-gw0 onlink
        route add 192.168.77.200 via 169.254.0.253 dev antrea-gw0 onlink""",
        f"10.10.0.0/16 {SERVICES} 192.168.77.0/24",
    ),
    "kube-router": node(
        f"{UP} kube-br+=10.244.1.1/24 kube-dummy=10.96.0.1/32,10.96.0.10/32 tun-192168",
        f"""{VIA}; route add 10.244.3.0/24 dev tun-192168 src 10.1.0.4
        rule add pref 32764 from 10.244.1.0/24 lookup 77
        route add 10.244.3.0/24 dev tun-192168 table 77""",
        CLUSTER,
    ),
    "kube-proxy in IPVS mode, MetalLB, NodeLocal DNS, keepalived": node(
        f"{UP},10.1.0.240/32 kube-ipvs0=10.96.0.1/32,10.1.0.200/32 cbr0+=10.244.1.1/24"
        " nodelocaldns=169.254.20.10/32,10.96.0.10/32",
        VIA,
        f"{CLUSTER} 169.254.20.10/32",
    ),
    "unbounded beside InfiniBand": node(
        f"{UP} ib0=192.168.0.9/24 ib1=192.168.1.9/24 unbounded0=10.244.5.1/24",
        f"{VIA}; route add 10.244.0.0/16 dev unbounded0; route add 10.2.0.0/16 dev unbounded0",
        f"{PODS} {SERVICES} 10.2.0.0/16",
    ),
    "BGP to the host": node(
        "eth0 eth1",
        "link set lo up; addr add 10.9.9.9/32 dev lo; route add default proto bgp src 10.9.9.9"
        " nexthop via 169.254.0.1 dev eth0 onlink nexthop via 169.254.0.1 dev eth1 onlink",
        f"{SERVICES} 10.9.0.0/16",
    ),
    "InfiniBand and its fix": node(
        f"{UP} ib0=172.16.0.10/16",
        (
            f"{VIA}; route add 172.16.0.0/17 via 10.1.0.1 proto 217; "
            "route add 172.16.128.0/17 via 10.1.0.1 proto 217"
        ),
        "172.16.0.0/16",
        uplinks="eth0",
    ),
    "Docker": node(f"{UP} docker0+=172.17.0.1/16", VIA, f"172.16.0.0/16 {SERVICES}"),
    "Tailscale": node(
        f"{UP} tailscale0=100.100.7.7/32",
        f"""{VIA}; route add 100.64.0.0/10 dev tailscale0 table 52; rule add pref 5270 lookup 52
        rule add pref 5210 fwmark 0x80000/0xff0000 lookup main
        rule add pref 5230 fwmark 0x80000/0xff0000 lookup default
        rule add pref 5250 fwmark 0x80000/0xff0000 unreachable""",
        CLUSTER,
        uplinks="eth0",
    ),
    "a VRF's rules": node(
        UP,
        f"{VIA}; rule add pref 1000 l3mdev; rule add pref 2000 lookup local; rule del pref 0",
        SERVICES,
    ),
    "AWS with custom networking": node(
        "ens5=10.0.96.155/19 ens6=100.64.9.30/19 eni30c",
        """route add default via 10.0.96.1 dev ens5 metric 512; route del 100.64.0.0/19 dev ens6
        route add 100.64.0.1 dev ens6 table 2 scope link
        route add default via 100.64.0.1 dev ens6 table 2
        route add 100.64.9.41 dev eni30c scope link; rule add pref 512 to 100.64.9.41 lookup main
        rule add pref 1536 from 100.64.9.41 lookup 2; rule add pref 20 lookup local
        rule del pref 0""",
        "10.0.0.0/16 100.64.0.0/16 172.20.0.0/16",
    ),
    "AWS with Cilium": node(
        "ens5=10.0.96.155/19 ens6=10.0.99.5/19 cilium_host=10.0.99.8/32 lxc00a",
        f"""route add default via 10.0.96.1 dev ens5 metric 512; route del 10.0.96.0/19 dev ens6
        route add 10.0.99.20 dev lxc00a scope link
        route add default via 10.0.96.1 dev ens6 table 11 onlink
        rule add pref 20 to 10.0.99.20 lookup main
        rule add pref 111 from 10.0.99.20 to 10.0.0.0/16 lookup 11
        {LOCAL_AT_100}""",
        "10.0.0.0/16 172.20.0.0/16",
    ),
    "two uplinks with a table each": node(
        "eth0=10.1.0.4/24 eth1=10.2.0.4/24",
        """route add default via 10.1.0.1 dev eth0 metric 100
        route add default via 10.2.0.1 dev eth1 metric 200
        route add default via 10.1.0.1 dev eth0 table 101
        route add default via 10.2.0.1 dev eth1 table 102
        rule add pref 101 from 10.1.0.4 lookup 101; rule add pref 102 from 10.2.0.4 lookup 102""",
        f"{NODES} {SERVICES}",
        uplinks="eth*",
    ),
    "kube-vip with a public uplink": node(
        "private=10.1.0.4/24 public=198.51.100.9/32 lxc11",
        """route add default via 10.1.0.1 dev private; route add 10.244.1.7 dev lxc11 scope link
        route add 198.51.100.1 dev public scope link table 200
        route add default via 198.51.100.1 dev public table 200 onlink
        rule add pref 200 from 198.51.100.9 lookup 200""",
        CLUSTER,
        uplinks="private public",
    ),
    "a second NIC with rules for its address": node(
        f"{UP} eth1=10.2.0.4/24",
        f"""{VIA}; route add default via 10.2.0.1 dev eth1 table 102
        rule add from 10.2.0.4 lookup 102
        rule add to 10.2.0.4 lookup 102""",
        CLUSTER,
    ),
    "InfiniBand, its fix, and rules that keep it": node(
        f"{UP} ib0=172.16.0.10/16",
        f"""{VIA}; route add 172.16.0.0/17 via 10.1.0.1 dev eth0
        route add 172.16.128.0/17 via 10.1.0.1 dev eth0
        route add 172.16.0.0/16 dev ib0 src 172.16.0.10 table 2170000
        rule add pref 2170 from 172.16.0.10 lookup 2170000""",
        "172.16.0.0/16",
    ),
    "a Service has the address of a neighbour": node(f"{UP} kube-ipvs0=10.1.0.7/32", VIA, NODES),
    # What no table tells apart: name the devs of such a CIDR.
    "another subnet of the network under a bridge": node(
        f"{UP} cni0+=10.1.7.1/24", VIA, "10.1.0.0/16"
    ),
    "a stale route of a pod to a neighbour": node(
        f"{UP} cali1", f"{VIA}; route add 10.1.0.7 dev cali1 scope link", NODES
    ),
}

SICK = {
    "InfiniBand": node(
        f"{UP} ib0=172.16.0.10/16 ib1=172.16.0.11/16", VIA, "172.16.0.0/16", "ib0 at 172.16.0.0"
    ),
    "WireGuard": node(
        f"{UP} wg0=10.8.0.2/24",
        f"{VIA}; route add 10.97.0.0/16 dev wg0",
        SERVICES,
        "wg0 at 10.97.0.0",
        uplinks="eth0",
    ),
    "a default route by WireGuard": node(
        f"{UP} wg0=10.8.0.2/24",
        f"""{VIA}; route add default dev wg0 table 51820; rule add not fwmark 51820 lookup 51820
        rule add lookup main suppress_prefixlength 0""",
        f"{SERVICES} {NODES}",
        "wg0 at 10.96.0.0",
    ),
    "an unreachable network of the API server": node(
        f"{UP} cali1",
        (
            f"{VIA}; route add unreachable 10.3.1.0/24 proto bird; "
            "route add 10.3.1.2 dev cali1 scope link"
        ),
        "10.3.0.0/16",
        "BLACKHOLE at 10.3.1.0",
    ),
    "an aggregate wider than the CIDRs": node(
        f"{UP} cali1",
        (
            f"{VIA}; route add blackhole 10.0.0.0/8 proto bird; "
            "route add 10.3.9.2 dev cali1 scope link"
        ),
        f"{SERVICES} 10.3.0.0/16",
        "BLACKHOLE at 10.96.0.0; BLACKHOLE at 10.3.0.0",
    ),
    "discarded Services beside a DNS cache": node(
        f"{UP} localdns=169.254.10.10/32,10.96.0.10/32",
        f"{VIA}; route add blackhole 10.96.0.0/23 proto bird",
        SERVICES,
        "BLACKHOLE at 10.96.0.0",
    ),
    "discarded Services beside Calico's own block": node(
        f"{UP} tunl0=10.244.9.1/32 cali1",
        f"""{VIA}; route add blackhole 10.96.0.0/23 proto bird; {CALICO_BLOCK}; {CALICO_PEER}
        route add 10.244.9.2 dev cali1 scope link""",
        CLUSTER,
        "BLACKHOLE at 10.96.0.0",
    ),
    "a default route through a container's interface": node(
        f"{UP} veth1",
        (
            "route add default via 10.1.0.1 dev eth0 metric 2000; "
            "route add default dev veth1 scope link metric 1021"
        ),
        SERVICES,
        "veth1 at 10.96.0.0",
        uplinks="eth0",
    ),
    "quarters of it": node(
        f"{UP} veth1",
        (
            f"{VIA}; route add 0.0.0.0/2 dev veth1; "
            "route add 64.0.0.0/2 dev veth1; route add 128.0.0.0/2 dev veth1"
        ),
        f"{SERVICES} {NODES}",
        "veth1 at 10.96.0.0",
    ),
    "a default route of a container before table main": node(
        f"{UP} veth1",
        f"{VIA}; route add default dev veth1 table 9; rule add pref 9 lookup 9",
        SERVICES,
        "veth1 at 10.96.0.0",
    ),
    "the nodes' network under a bridge": node(
        "eth0=10.244.3.4/16 cni0+=10.244.1.1/24",
        "route add default via 10.244.0.1 dev eth0",
        PODS,
        "cni0 at 10.244.1.0",
    ),
    "the nodes' network under a bridge, with a /32 on the uplink": node(
        "eth0=10.1.0.4/32 cni0+=10.1.0.99/24",
        "route add 10.1.0.1 dev eth0 scope link; route add default via 10.1.0.1 dev eth0",
        NODES,
        "cni0 at 10.1.0.0",
    ),
    "the gateway through a container's interface": node(
        f"{UP} veth1", f"{VIA}; route add 10.1.0.1 dev veth1 scope link", NODES, "veth1 at 10.1.0.1"
    ),
    "the metadata service through a container's interface": node(
        f"{UP} veth1",
        f"{VIA}; route add 169.254.169.254 dev veth1",
        "169.254.169.254/32",
        "veth1 at 169.254.169.254",
    ),
    "a network of containers where EKS' pods have single addresses": node(
        f"{UP} veth1",
        f"{VIA}; route add 169.254.172.0/22 dev veth1; route add 169.254.169.253 dev veth1",
        "169.254.0.0/16",
        "veth1 at 169.254.169.253",
    ),
    "Azure's platform within a wider network of containers": node(
        f"{UP} veth1",
        f"{VIA}; route add 168.63.0.0/16 dev veth1",
        "168.0.0.0/8",
        "veth1 at 168.63.129.16",
    ),
    "link-local addresses within a wider network of containers": node(
        f"{UP} veth1",
        f"{VIA}; route add 169.0.0.0/8 dev veth1",
        "169.252.0.0/14",
        "veth1 at 169.254.0.0",
    ),
    "the gateway's address on a bridge": node(
        "ens160=10.244.0.15/24 cni0+",
        "route add default via 10.244.0.1 dev ens160; addr add 10.244.0.1/24 dev cni0",
        SERVICES,
        "GATEWAY at 10.96.0.0",
    ),
    "the gateway's address on a bridge, in the nodes' network": node(
        f"{UP} cni0+=10.1.0.1/32", VIA, NODES, "GATEWAY at 10.1.0.1"
    ),
    "a route's gateway on the loopback interface": node(
        UP,
        f"{VIA}; link set lo up; route add 10.97.0.0/16 via 10.1.0.9; addr add 10.1.0.9/32 dev lo",
        SERVICES,
        "GATEWAY at 10.97.0.0",
    ),
    "a site's network inside the uplink's": node(
        "eth0=10.1.0.4/16 unbounded0=10.244.5.1/24",
        "route add default via 10.1.0.1 dev eth0; route add 10.1.8.0/24 dev unbounded0",
        f"{PODS} 10.1.0.0/16",
        "unbounded0 at 10.1.8.0",
    ),
}


# Rules that leave table local out of something that the node receives, and rules that don't.
DEAF = {
    "the rule is gone": "rule del pref 0",
    "it comes after main": "rule add pref 40000 lookup local; rule del pref 0",
    "it is for this host's packets": "rule add pref 1 iif lo lookup local; rule del pref 0",
    "a table with a default comes before it": (
        "route add default via 10.1.0.1 dev eth0 table 100; "
        "rule add pref 5 lookup 100; rule add pref 9 lookup local;"
        " rule del pref 0"
    ),
    "a goto jumps over it": (
        "rule add pref 300 lookup main; rule add pref 100 goto 300; "
        "rule add pref 200 lookup local; rule del pref 0"
    ),
    "another rule of preference 0 comes before it": (
        "rule add pref 0 lookup main; rule del pref 0 lookup local; rule add pref 0 lookup local"
    ),
    "another rule of preference 0 takes its place": (
        "rule add pref 0 lookup main; rule del pref 0 lookup local"
    ),
}
RECEIVING = {
    "another preference": "rule add pref 100 lookup local; rule del pref 0",
    "behind the rule for VRFs": (
        "rule add pref 1000 l3mdev; rule add pref 2000 lookup local; rule del pref 0"
    ),
    "in halves": (
        "rule add pref 1 to 0.0.0.0/1 lookup local; rule add pref 1 to 128.0.0.0/1 lookup local; "
        "rule del pref 0"
    ),
    "for all marks but one": "rule add pref 1 not fwmark 0x99 lookup local; rule del pref 0",
    "for all marks": "rule add pref 1 fwmark 0/0xf00 lookup local; rule del pref 0",
    "an address that is another subnet's broadcast address": (
        "addr add 10.2.0.255/16 dev eth0; addr add 10.2.0.4/24 brd + dev eth0; "
        "rule add pref 9 lookup local; rule del pref 0"
    ),
    "twice, once for this host's packets": "rule add pref 1 iif lo lookup local",
}


UNKNOWN = {
    "a container's default route wins": node(
        f"{UP} veth1",
        "route add default via 10.1.0.1 dev eth0 metric 2000; route add default dev veth1 metric 1",
        SERVICES,
        unknown="contested-default",
    ),
    **{
        name: node(UP, f"link set lo up; {VIA}; {DEAF[name]}", SERVICES, unknown="no-local-table")
        for name in DEAF
    },
}
NODES_BY_NAME = {
    **HEALTHY,
    **SICK,
    **UNKNOWN,
    **{name: node(UP, f"link set lo up; {VIA}; {RECEIVING[name]}", SERVICES) for name in RECEIVING},
}
# Without Python, the boot check gives up on other ways to ask table local first than in one rule.
NEEDING_PYTHON = [
    NODES_BY_NAME[name] for name in ("in halves", "for all marks but one", "for all marks")
]
WITHOUT_BROADCAST = (
    "InfiniBand",
    "the nodes' network under a bridge",
    "the nodes' network under a bridge, with a /32 on the uplink",
)


@pytest.mark.parametrize("case", NODES_BY_NAME.values(), ids=NODES_BY_NAME)
def test_a_node_gets_its_verdict_live_recorded_and_at_boot(
    case: Case, kernel: NamespaceKernel, tmp_path: Path
) -> None:
    """At boot, ordinary nodes get it without Python, and others with it: by day some of them."""
    if case is NODES_BY_NAME["the rule is gone"] and not separates_on_deletion(os.uname().release):
        pytest.skip(
            "a snapshot made with ip doesn't show "
            "whether this kernel has separated the tables local and main"
        )
    if case in map(NODES_BY_NAME.get, WITHOUT_BROADCAST):
        needs_linux(*NO_BROADCAST)
    case.build()
    all_say(case, tmp_path)
    (tmp_path / "boot").mkdir()
    for sandbox in sandboxes(case.does, tmp_path / "boot"):
        without_python = "unknown" if case in NEEDING_PYTHON else case.verdict
        done = sandbox.run(render_check(case.config))
        assert verdict_of(sandbox.told()) == without_python, done.stderr
        assert done.returncode == (without_python != "ok")
        if without_python == "unknown" and is_chosen(case.does, one_of=3):
            text = render_check(case.config, python=sys.executable)
            done = sandbox.run(text, "gate", is_host=True, etc=True)
            assert verdict_of(sandbox.told()) == case.verdict, done.stderr
            assert done.returncode == (case.verdict != "ok")


UP6 = "eth0=2001:db8:5::4/64"
VIA6 = "link set lo up; route add default via fe80::1 dev eth0"
PODS6, SERVICES6 = "fd00:44::/48", "fd00:96::/112"
NODES6 = {
    "Cilium": node(
        f"{UP6} cilium_host=fd00:44:0:1::9/128 lxc1",
        (
            f"{VIA6}; route add fd00:44:0:1::/64 via fd00:44:0:1::9 dev cilium_host; "
            "route add fd00:44:0:1::7 dev lxc1"
        ),
        f"{PODS6} fd00:44:0:1::/64 {SERVICES6}",
    ),
    "Calico": node(
        f"{UP6} cali1",
        f"""{VIA6}
        route add blackhole fd00:44:0:1::/122 proto bird
        route add fd00:44:0:1::7 dev cali1
        route add fd00:44:0:2::/122 via fe80::7 dev eth0 proto bird""",
        f"{PODS6} {SERVICES6}",
    ),
    "one /64 for the node and its pods": node(
        f"{UP6} cni0=2001:db8:5:0:9::1/80 cali1",
        f"{VIA6}; route add 2001:db8:5::7 dev cali1",
        "2001:db8:5::/64",
    ),
    "a part of a longer subnet under a bridge": node(
        "eth0=2001:db8:5::4/80 cni0=2001:db8:5::9:0:1/96",
        VIA6,
        "2001:db8:5::/64",
        "cni0 at 2001:db8:5::9:0:0",
    ),
    "a quarter of the default route through a container's interface": node(
        f"{UP6} veth1",
        f"{VIA6}; route add c000::/2 dev veth1",
        f"{SERVICES6} 2001:db8:5::/64",
        "veth1 at fd00:96::",
    ),
    "the gateway's address on a bridge, in the nodes' network": node(
        f"{UP6} cni0+",
        """link set lo up; route add default via 2001:db8:5::1 dev eth0
        addr add 2001:db8:5::1/128 dev cni0""",
        "2001:db8:5::/64",
        "GATEWAY at 2001:db8:5::1",
    ),
    "discarded Services": node(
        f"{UP6} cali1",
        f"{VIA6}; route add unreachable fd00:96::/112 proto bird",
        SERVICES6,
        "BLACKHOLE at fd00:96::",
    ),
    "the rule for table local is gone": node(
        UP6,
        f"{VIA6}; -6 rule add pref 9 to fd00:99::/48 lookup 9; -6 rule del pref 0",
        SERVICES6,
        unknown="no-local-table",
    ),
    "an address of a second NIC is led away": node(
        f"{UP6} eth1=fd00:96::4/112",
        f"{VIA6}; -6 route add default via fe80::1 dev eth0 table 50; "
        "-6 rule add pref 90 to fd00:96::/112 lookup 50; "
        "-6 rule add pref 100 lookup local; -6 rule del pref 0",
        SERVICES6,
        unknown="no-local-table",
    ),
    "connections to an address on lo are led away": node(
        UP6,
        f"{VIA6}; addr add fd00:99::9/128 dev lo; "
        "-6 route add default via fe80::1 dev eth0 table 50; "
        "-6 rule add pref 90 from fd00:99::9 lookup 50; "
        "-6 rule add pref 100 lookup local; -6 rule del pref 0",
        SERVICES6,
        unknown="no-local-table",
    ),
    "table local lacks an address of a second NIC": node(
        f"{UP6} eth1=fd00:96::4/112",
        f"{VIA6}; -6 route del local fd00:96::4 dev eth1 table local",
        SERVICES6,
        unknown="no-local-table",
    ),
    "another preference": node(
        UP6, f"{VIA6}; -6 rule add pref 100 lookup local; -6 rule del pref 0", SERVICES6
    ),
}


@pytest.mark.parametrize("name", NODES6)
def test_an_ipv6_node_gets_its_verdict_live_recorded_and_at_boot(name: str, tmp_path: Path) -> None:
    case = NODES6[name]
    steps = tuple(f"ip {each.removeprefix('ip ')}" for each in lines(case.node, case.does))
    overlap = {"expectedCidrs": [*case.cidrs]}
    audit = SocketAudit(Host(steps, {"routeOverlap": overlap, "waitSeconds": 0}, Family.IPV6), 16)
    report = check_overlap(
        audit.config, NetlinkBackend6(), phases.CancelScope(), ipv4=NetlinkBackend()
    )
    assert (report.reason_kind or "", as_told(report)) == (case.unknown, case.told)
    for sandbox in sandboxes(case.does, tmp_path):
        sandbox.run(render_check(audit.config))
        assert verdict_of(sandbox.told()) == case.verdict
    audit.run()
    assert audit.mistakes == []


@pytest.mark.parametrize("name", DEAF)
def test_a_deaf_node_receives_what_is_sent_to_it_as_advised(
    name: str, kernel: NamespaceKernel
) -> None:
    case = UNKNOWN[name]
    case.build()
    report = check_overlap(case.config, kernel, phases.CancelScope())
    assert report.reason_kind is UnknownReason.NO_LOCAL_TABLE
    for command in re.findall(r"ip (rule add \S+ \S+ lookup local)", report.reason_detail):
        run_ip(command)
    if "each other rule of preference 0" in report.reason_detail:
        for rule in kernel.facts().rules:
            if rule.preference == 0 and rule.table != Table.LOCAL:
                kernel.del_rule(rule)
                kernel.add_rule(rule)
    assert kernel.facts().rules[0].table == Table.LOCAL
    after = check_overlap(case.config, kernel, phases.CancelScope())
    assert after.reason_kind is not UnknownReason.NO_LOCAL_TABLE


def test_a_bridge_may_be_the_nodes_own(kernel: NamespaceKernel) -> None:
    """Only a note names the uplink, where any other interface of a container has no verdict."""
    case = UNKNOWN["a container's default route wins"]
    case.build()
    run_ip(
        "link del veth1\nlink add veth1 type bridge\n"
        "link set veth1 up\nroute add default dev veth1 metric 1"
    )
    report = check_overlap(case.config, kernel, phases.CancelScope())
    assert (report.verdict, report.default_devs) == ("ok", ("veth1",))


def test_a_route_whose_mtu_is_above_its_interfaces_is_noted(kernel: NamespaceKernel) -> None:
    case = node(UP, f"{VIA} mtu 9000; link set eth0 mtu 1400", SERVICES)
    case.build()
    for backend in (kernel, model_of(recorded(kernel).known(Family.IPV4))):
        report = check_overlap(case.config, backend, phases.CancelScope())
        assert [(note.kind, note.devs) for note in report.notes] == [("MTU", ("eth0",))]
