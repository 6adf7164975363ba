"""Build hosts with commands."""

from __future__ import annotations

import errno
import socket
import struct
import time
from collections.abc import Sequence
from ipaddress import IPv6Address, IPv6Network
from itertools import groupby
from pathlib import Path

import frames
from leaving import far_end
from node import as_batch, attempt, tool, until

from hostrouting.kernel.namespace import NamespaceKernel

# A route with a lifetime of 0 is used until the kernel's next clock tick, which a busy machine
# delays.
_EXPIRY_SECONDS = 0.05

# linux/if_addr.h, linux/rtnetlink.h, linux/fib_rules.h
_IFA_F_TENTATIVE = 0x40
_RTM_NEWRULE, _REQUEST_CREATE, _FR_ACT_TO_TBL = 32, 0x605, 1
_FRA_PRIORITY, _FRA_TABLE, _FRA_DSCP, _FRA_DSCP_MASK = 6, 15, 25, 30


def make(steps: Sequence[str]) -> None:
    """Run commands, ignoring ip(8) failures, and wait until the kernel has applied them."""
    # Otherwise, each host would wait a second for its interfaces' link-local addresses.
    Path("/proc/sys/net/ipv6/conf/default/accept_dad").write_text("0")
    # An ip that doesn't find a next hop's interface ends, and leaves the rest of its batch undone.
    for (program, _, deletes_local), some in groupby(
        steps,
        lambda step: (_program(step), " nexthop " in step and step, " del local " in step),
    ):
        if deletes_local:
            # Until duplicate address detection has ended, the kernel has not added the entry.
            _settle()
        if program.startswith("ip"):
            attempt(*program.split(), "-batch", "-", "-force", stdin=as_batch("\n".join(some)))
            continue
        _settle()
        for step in some:
            if program == "sysctl":
                name, _, value = step.split()[-1].partition("=")
                setting = Path("/proc/sys", name.replace(".", "/"))
                # A command before may have deleted the interface.
                if setting.exists():
                    setting.write_text(value)
            elif program == "ra":
                advertise(*step.split()[1:])
            elif program == "dscp":
                add_dscp_rule(*step.split()[4:9:2])
            else:
                tool("sh", "-c", step)
    _settle()
    if any(" expires 0" in step for step in steps):
        time.sleep(_EXPIRY_SECONDS)


def _settle() -> None:
    """Wait until the routes reflect every link's carrier and no IPv6 address is tentative."""
    kernel = NamespaceKernel()
    for link in kernel.facts().links:
        kernel.set_link(link.name)
    addresses = Path("/proc/thread-self/net/if_inet6")
    until(
        lambda: (
            not any(
                int(line.split()[4], 16) & _IFA_F_TENTATIVE
                for line in addresses.read_text().splitlines()
            )
        )
    )
    # The kernel adds an address's entry in table local after it clears the flag, under this lock.
    kernel.set_link("lo")


def _program(step: str) -> str:
    if " dscp " in step:
        return "dscp"
    if step.startswith("ip -6 "):
        return "ip -6"
    return step.split()[0] if step.startswith(("ip ", "ra ", "sysctl ")) else "sh"


def advertise(dev: str, router: str, lifetime: str, preference: str, *more: str) -> None:
    """Send a router advertisement from the other end of a veth pair.

    Args:
        dev: the interface.
        router: the router's link-local address.
        lifetime: the router lifetime in seconds.
        preference: the router preference: low, medium or high.
        more: options to advertise: ``prefix PREFIX`` and ``route PREFIX PREFERENCE``, as separate
            words.
    """
    words = iter(more)
    prefixes, routes = [], {}
    for word in words:
        prefix = IPv6Network(next(words))
        if word == "prefix":
            prefixes.append(prefix)
        else:
            routes[prefix] = next(words)
    link_address = f"02:00:00:00:01:{int(IPv6Address(router)) & 0xFF:02x}"
    body = frames.router_advertisement(link_address, int(lifetime), preference, prefixes, routes)
    packet = frames.Packet(IPv6Address(router), frames.ALL_NODES, frames.ICMPV6, body)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as wire:
        try:
            wire.sendto(
                frames.written(packet, link_address, "33:33:00:00:00:01"), (far_end(dev), 0)
            )
        except OSError as error:
            # A command before may have set the far end down.
            if error.errno != errno.ENETDOWN:
                raise


def add_dscp_rule(preference: str, dscp: str, table: str) -> int:
    """Add a rule with a DSCP, and return the errno. ip(8) supports these since 6.13, and masks
    since 6.16.
    """
    value, _, mask = dscp.partition("/")
    attributes = struct.pack(
        "=HHIHHI", 8, _FRA_PRIORITY, int(preference), 8, _FRA_TABLE, int(table)
    )
    attributes += struct.pack("=HHB3x", 5, _FRA_DSCP, int(value, 0))
    if mask:
        attributes += struct.pack("=HHB3x", 5, _FRA_DSCP_MASK, int(mask, 0))
    header = struct.pack("=8BI", socket.AF_INET, 0, 0, 0, 0, 0, 0, _FR_ACT_TO_TBL, 0)
    message = struct.pack(
        "=IHHII", 16 + len(header) + len(attributes), _RTM_NEWRULE, _REQUEST_CREATE, 1, 0
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.bind((0, 0))
        kernel.send(message + header + attributes)
        (negative,) = struct.unpack_from("=i", kernel.recv(4096), 16)
    return int(-negative)
