"""Read the files that describe a host's network: its nameservers, and a sysctl of each interface."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from ipaddress import IPv4Address
from pathlib import Path

from hostrouting.boot.files import read_text
from hostrouting.boot.layout import Layout
from hostrouting.model.family import IpAddress
from hostrouting.model.links import Link
from hostrouting.model.parsing import parse_address

# The stub listener of systemd-resolved.service(8). Its upstream servers are listed in another file.
_STUB = IPv4Address("127.0.0.53")

_SYSCTL = "/proc/sys/net/ipv4/conf/{}/ignore_routes_with_linkdown"


def nameservers(layout: Layout) -> tuple[IpAddress, ...]:
    """Return a host's IPv4 nameservers.

    If the only one is the systemd-resolved stub, return its upstream servers instead.

    Args:
        layout: the host's layout.

    Returns:
        The unique addresses in file order, or an empty tuple if the file doesn't exist.

    Raises:
        FileError: a file exists but can't be read.
    """
    named = _named(layout.resolv_conf)
    return _named(layout.resolved_conf) if named == (_STUB,) else named


def _named(path: Path) -> tuple[IpAddress, ...]:
    # glibc's res_init.c requires the keyword at the start of the line and ignores anything after the address.
    words = re.findall(r"^nameserver[ \t]+(\S+)", read_text(path) or "", re.MULTILINE)
    found: dict[IpAddress, None] = {}
    for word in words:
        with contextlib.suppress(ValueError):  # an IPv6 address
            found[parse_address(word)] = None
    return tuple(found)


def devs_ignoring_linkdown(layout: Layout, links: Iterable[Link]) -> tuple[str, ...] | None:
    """Return the interfaces whose routes are ignored when the carrier is down, or None if the sysctl doesn't exist.

    Args:
        layout: the host's layout.
        links: the host's links.

    Raises:
        FileError: a sysctl can't be read.
    """

    def value(name: str) -> str | None:
        return read_text(layout.of(_SYSCTL.format(name)))

    # "all" is ORed with the per-interface value (IN_DEV_ORCONF).
    if (of_all := value("all")) is None:
        return None
    return tuple(link.name for link in links if {of_all, value(link.name)} - {"0\n", None})
